"""Recurring work by NumPy: `NumpyProgram`, the NumPy rules of a structure, ready to be called one after the other. Start there.

A routine goes through a list of steps (steps.py) and drops each value after its last use. A loop in it is a step, whose iterations are a
routine of their own (`LoopRoutine`). From its `WRITTEN`-th use on a routine is Python of its own (generated.py), and so are the iterations
of a loop, with the loop in it (generated_loop.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.errors import LinAlgError, OutOfMemoryError
from tracegrad.graph.canonical import Places, canonical, is_number
from tracegrad.graph.ir import Node
from tracegrad.numpy_backend.generated import LINES, Writer
from tracegrad.numpy_backend.generated_loop import GeneratedLoop
from tracegrad.numpy_backend.steps import Steps

WRITTEN = 12            # Python takes 20 us to read a line, which is saved in 40 uses; of longer routines than LINES this that many times
                        # later, since somebody waits for it


def out_of_memory(node: Node | None) -> OutOfMemoryError:
    """The error for a result that numpy has no memory for."""
    return OutOfMemoryError(f"out of memory: numpy cannot have {node and node.aval.nbytes} bytes for {node!r}; drop tensors that are no "
                            "longer needed, or use smaller batches")


class NumpyProgram(Steps):
    """The numpy rules of a structure: what its second use makes and the later ones take."""

    __slots__ = ("uses", "written")

    def __init__(self, order: Sequence[Any], places: Sequence[Places], ends: Sequence[int]) -> None:
        super().__init__(order, places, ends, LoopRoutine.of)
        self.uses = 0
        self.written: Callable[..., list[Any]] | None = None

    def __call__(self, inputs: Sequence[Any], constants: Sequence[Any], notes: list[int]) -> list[Any]:
        """The values of the results. notes: gets what operations have to report."""
        if self.written is not None:
            known = len(notes)
            try:
                return self.written(inputs, constants, notes)
            except Exception:                           # raised again, with the user's line
                del notes[known:]
        else:
            self.uses += 1
            if self.uses == WRITTEN * (1 + len(self.steps) // LINES) and config.recall:
                strides: dict[int, Any] = {}
                found = self.run(inputs, constants, notes, strides)
                self.written = Writer(self, inputs, strides).function
                return found
        return self.run(inputs, constants, notes, None)

    def run(self, inputs: Sequence[Any], constants: Sequence[Any], notes: list[int], strides: dict[int, Any] | None) -> list[Any]:
        """The same step by step. strides: gets those of each result; None of what was no array of the right dtype before it was made one.
        """
        values: list[Any] = [None] * (self.size + self.loops)
        values += reversed(inputs)
        for i, value in zip(self.constants, constants, strict=True):
            values[i] = value
        for i, value in self.fixed:
            values[i] = value
        node: Any = None
        array = np.ndarray
        try:
            for rule, operands, arity, i, dtype, reports, node, dead in self.steps:
                if arity == 2:
                    made = rule(values[operands[0]], values[operands[1]])
                elif arity == 1:
                    made = rule(values[operands[0]])
                else:
                    made = rule(*[values[o] for o in operands])
                right = dtype is None or (type(made) is array and made.dtype is dtype)
                values[i] = made if right else np.asarray(made, dtype)
                if strides is not None:
                    strides[i] = made.strides if right and dtype is not None else None
                if reports:
                    notes += node.fn.excess(values[operands[0]], node)
                for o in dead:
                    values[o] = None
        except LinAlgError as error:
            node.loc.tell(error)
            raise
        except MemoryError:
            raise out_of_memory(node) from None
        return [values[t] for t in self.targets]


class LoopRoutine:
    """What computes, of arrays of a loop's operands, all its results: one iteration after the other, and from many uses on as they are

    written. The loop's body reports nothing.
    """

    def __init__(self, loop: Any) -> None:
        graph, self.carries, self.rows = loop.graph, loop.body.carries, loop.body.rows
        self.length, self.reverse, self.uses = loop.length, loop.reverse, 0
        found = canonical(graph.outputs, graph.inputs)
        self.routine = NumpyProgram(found.order, found.places, [found.number[o] for o in graph.outputs])
        # As arrays: ufuncs take these in half of a scalar's time.
        self.constants = [np.asarray(n.attrs["value"]) for n in found.order if is_number(n)]
        self.stacks = [((self.length, *n.shape), n.dtype) for n in graph.outputs[self.carries:]]
        self.written: Callable[..., list[Any]] | None = None

    @staticmethod
    def of(loop: Any) -> LoopRoutine:
        """The loop's, made once."""
        found: LoopRoutine | None = loop.prepared.get(LoopRoutine)
        if found is None:
            found = loop.prepared[LoopRoutine] = LoopRoutine(loop)
        return found

    def __call__(self, *arrays: Any) -> list[Any]:
        results = [np.empty(shape, dtype) for shape, dtype in self.stacks]
        n, m = self.carries, self.carries + self.rows
        state = [np.ascontiguousarray(a) if a.ndim else a for a in arrays[:n]]
        moving = [np.ascontiguousarray(x) if x.ndim > 1 else x for x in arrays[n:m]]        # or rows take three times as long
        still, stacks = arrays[m:], [stack if stack.ndim > 1 else stack[:, None] for stack in results]
        if self.reverse:
            moving, stacks = [x[::-1] for x in moving], [x[::-1] for x in stacks]
        done, written = 0, self.written if config.recall else None
        if written is None:
            self.uses += 1
            often = config.recall and (self.uses > 1 or self.length >= WRITTEN) and len(self.routine.steps) <= LINES
            done = min(2, self.length) if often else self.length
            seen: list[dict[int, Any]] = []             # the strides of what iterations made; those that differ are not relied on
            for i in range(done):
                seen.append({})
                inputs = [*state, *(x[i] for x in moving), *still]
                state = self._run_iteration(inputs, stacks, i, seen[-1] if often else None)
            if often:
                strides = {place: s if s == seen[0][place] else None for place, s in seen[-1].items()}
                written = self.written = GeneratedLoop(self.routine, inputs, strides, self.carries, self.rows).function
        if written is None or done == self.length:
            return [*state, *results]
        late = [[x[done:] for x in arrays] if done else arrays for arrays in (moving, stacks)]
        try:
            state = written(state, late[0], still, late[1], self.constants, self.length - done)
        except Exception:                               # raised again, with the user's line
            for i in range(done, self.length):
                state = self._run_iteration([*state, *(x[i] for x in moving), *still], stacks, i, None)
        return [*state, *results]

    def _run_iteration(self, inputs: list[Any], stacks: Sequence[Any], i: int, strides: dict[int, Any] | None) -> list[Any]:
        values = self.routine.run(inputs, self.constants, [], strides)
        for stack, value in zip(stacks, values[self.carries:], strict=True):
            stack[i] = value
        return values[:self.carries]
