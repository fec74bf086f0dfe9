"""Recurring work by NumPy: `NumpyProgram`, the NumPy rules of a structure, ready to be called one after the other. Start there.

A routine goes through an ordered, simplified list (ordered.py) and drops each value after its last use. A loop in it is a step, whose
iterations are a routine of their own (`LoopRoutine`). What is computed before them is cut off by passes/loops.py. From its
`WRITTEN`-th use on a routine is Python of its own (generated.py), and so are the iterations of a loop, with the loop in it
(generated_loop.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.errors import LinAlgError, OutOfMemoryError
from tracegrad.graph.canonical import canonical, is_number
from tracegrad.graph.ir import Graph, Node
from tracegrad.numpy_backend.generated import LINES, Writer
from tracegrad.numpy_backend.generated_loop import GeneratedLoop
from tracegrad.numpy_backend.ordered import ordered
from tracegrad.numpy_backend.steps import Step, StepList, with_last_uses
from tracegrad.passes.loops import Split

WRITTEN = 12            # Python takes 20 us to read a line, which is saved in 40 uses; of longer routines than LINES this that many times
                        # later, since somebody waits for it
ROW, WHOLE = 1 << 14, 1 << 20       # bytes, of an iteration and of all: larger arrays take no less time together than one after the other


def out_of_memory(node: Node | None) -> OutOfMemoryError:
    """The error for a result that numpy has no memory for."""
    return OutOfMemoryError(f"out of memory: numpy cannot have {node and node.aval.nbytes} bytes for {node!r}; drop tensors that are no "
                            "longer needed, or use smaller batches")


class NumpyProgram(StepList):
    """The numpy rules of a structure: what its second use makes and the later ones take.

    Values have places (see graph/canonical.py): those of `size` operations, then those of leaves, the last one first. The results of a loop
    are computed together, by a step whose place is between the operations' and the leaves'. ends: the places of what a call gives, in the
    order that was given; targets: in that of the steps (see ordered.py). origin: of each operation, its position in the given order.
    """

    __slots__ = ("ends", "first", "uses", "written")

    def __init__(self, order: Sequence[Node], places: Sequence[tuple[int, ...]], ends: Sequence[int]) -> None:
        found = ordered(order, places, ends)
        order, places = found.nodes, found.places
        self.size, self.ends, self.targets, self.uses = len(order), tuple(ends), found.ends, 0
        self.constants, self.origin = found.constants, found.origin
        self.written: Callable[..., list[Any]] | None = None
        self.avals = [node.aval for node in order]
        self.fixed = []
        loops: dict[Any, list[int]] = {}
        for i, (node, operands) in enumerate(zip(order, places, strict=True)):
            if node.fn.family == "loop":
                loops.setdefault((node.fn, operands), []).append(i)
        self.first: list[int] = []                      # of each loop, the first result
        numbers, steps = set(self.constants), dict[int, Step]()
        for i, (node, operands) in enumerate(zip(order, places, strict=True)):
            fn: Any = node.fn
            if i in numbers:
                continue
            if not operands:
                self.fixed.append((i, np.asarray(fn.computed((), node.attrs, node.aval.dtype), node.aval.dtype)))
            elif fn.family == "loop":
                results = loops[fn, operands]
                used = sorted({order[k].attrs["index"] for k in results})
                at = self.size + len(self.first)
                if i == results[0]:
                    self.first.append(i)
                    steps[at] = Step(LoopRoutine.of(fn, tuple(used)), operands, -1, at, None, False)
                else:
                    at = self.size + self.first.index(results[0])
                steps[i] = Step(itemgetter(used.index(node.attrs["index"])), (at,), 1, i, node.aval.dtype, False)
            else:
                rule = fn.rule(node.attrs, node.aval.dtype, node.given)
                steps[i] = Step(rule, operands, len(operands), i, node.aval.dtype, fn.reports, fn, node.attrs)
        kept = {*self.targets, *self.constants, *(i for i, _ in self.fixed)}
        self.steps = with_last_uses([*steps.values()], kept)

    def __call__(self, inputs: Sequence[Any], constants: Sequence[Any], nodes: Any, notes: list[int]) -> list[Any]:
        """The values at `ends`. nodes: the operations, for what they report (to `notes`)."""
        if self.written is not None:
            known = len(notes)
            try:
                return self.written(inputs, constants, nodes, notes)
            except Exception:                           # raised again, with the user's line
                del notes[known:]
        else:
            self.uses += 1
            if self.uses == WRITTEN * (1 + len(self.steps) // LINES) and config.recall:
                strides: dict[int, Any] = {}
                found = self.run(inputs, constants, nodes, notes, strides)
                self.written = Writer(self, inputs, strides).function
                return found
        return self.run(inputs, constants, nodes, notes, None)

    def run(self, inputs: Sequence[Any], constants: Sequence[Any], nodes: Any, notes: list[int],
             strides: dict[int, Any] | None) -> list[Any]:
        """The same step by step. strides: gets those of each result; None of what was no array of the right dtype before it was made one.
        """
        values: list[Any] = [None] * (self.size + len(self.first))
        values += reversed(inputs)
        for i, value in zip(self.constants, constants, strict=True):
            values[i] = value
        for i, value in self.fixed:
            values[i] = value
        i = -1
        array = np.ndarray
        try:
            for rule, operands, arity, i, dtype, reports, _, _, dead in self.steps:
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
                    node = nodes[self.origin[i]]
                    notes += node.fn.excess(values[operands[0]], node)
                for o in dead:
                    values[o] = None
        except LinAlgError as error:
            self._node(nodes, i).loc.tell(error)
            raise
        except MemoryError:
            raise out_of_memory(self._node(nodes, i)) from None
        return [values[t] for t in self.targets]

    def _node(self, nodes: Any, i: int) -> Any:
        """The operation whose step has the place i."""
        return nodes[self.origin[i if i < self.size else self.first[i - self.size]]]


def _early(node: Node, length: int) -> bool:
    """Whether an operation on rows is better done for all `length` iterations together."""
    return node.aval.nbytes <= ROW and length * node.aval.nbytes <= WHOLE and node.fn.family in ("elementwise", "movement")


class _Part:
    """A graph that is computed again and again, of arrays of its inputs."""

    def __init__(self, graph: Graph) -> None:
        found = canonical(graph.outputs, graph.inputs)
        self.routine = NumpyProgram(found.order, found.places, [found.number[o] for o in graph.outputs])
        self.order = found.order
        # As arrays: ufuncs take these in half of a scalar's time.
        self.constants = [np.asarray(n.attrs["value"]) for n in self.order if is_number(n)]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        return self.routine(arrays, self.constants, self.order, [])


class LoopRoutine:
    """What computes, of arrays of a loop's operands, its results `used`. The loop's body reports nothing."""

    def __init__(self, loop: Any, used: Sequence[int]) -> None:
        carries, rows, length = self._carries, self._rows, self._length = loop.body.carries, loop.body.rows, loop.length
        split = Split(loop.graph, carries, rows, length, [i for i in used if i >= carries], lambda node: _early(node, length))
        parts = self._parts = split.parts()
        self._before = _Part(parts.before)
        self._stacks = [((length, *n.shape), n.dtype) for n in split.inner]
        self.iterations = _Iterations(_Part(parts.iteration), carries, len(parts.scanned) + parts.ahead, length, loop.reverse)
        place = {n: k for k, n in enumerate([*split.given, *split.inner])}
        self._sources = [place[split.outputs[i]] if i >= carries else ~i for i in used]

    @staticmethod
    def of(loop: Any, used: tuple[int, ...]) -> LoopRoutine:
        """The loop's, made once."""
        if used not in loop.prepared:
            loop.prepared[used] = LoopRoutine(loop, used)
        found: LoopRoutine = loop.prepared[used]
        return found

    def __call__(self, *arrays: Any) -> list[Any]:
        parts, n, m = self._parts, self._carries, self._carries + self._rows
        whole, still = arrays[n:m], arrays[m:]
        found = self._before([*whole, *still])
        last = len(found) - parts.once
        stacks = [np.empty(shape, dtype) for shape, dtype in self._stacks]
        moving = [*[whole[k] for k in parts.scanned], *found[:parts.ahead]]
        state = self.iterations(list(arrays[:n]), moving, [*still, *found[last:]], stacks)
        rows = [*found[parts.ahead:last], *stacks]
        return [rows[k] if k >= 0 else state[~k] for k in self._sources]


class _Iterations:
    """A part that is an iteration, for all iterations of a loop: one after the other, and from many uses on as they are written.

    carries, rows: how many of its inputs, the first ones, are carries; how many after them rows.
    """

    def __init__(self, iteration: _Part, carries: int, rows: int, length: int, reverse: bool) -> None:
        self.iteration, self.carries, self.rows, self.length, self.reverse = iteration, carries, rows, length, reverse
        self.uses = 0
        self.written: Callable[..., list[Any]] | None = None

    def __call__(self, state: list[Any], moving: Sequence[Any], still: Sequence[Any], stacks: Sequence[Any]) -> list[Any]:
        """The last carries. stacks: get the other results."""
        state = [np.ascontiguousarray(a) if a.ndim else a for a in state]
        moving = [np.ascontiguousarray(x) if x.ndim > 1 else x for x in moving]             # or rows take three times as long
        stacks = [stack if stack.ndim > 1 else stack[:, None] for stack in stacks]
        if self.reverse:
            moving, stacks = [x[::-1] for x in moving], [x[::-1] for x in stacks]
        done, written = 0, self.written if config.recall else None
        if written is None:
            self.uses += 1
            often = config.recall and (self.uses > 1 or self.length >= WRITTEN) and len(self.iteration.routine.steps) <= LINES
            done = min(2, self.length) if often else self.length
            seen: list[dict[int, Any]] = []             # the strides of what iterations made; those that differ are not relied on
            for i in range(done):
                seen.append({})
                inputs = [*state, *(x[i] for x in moving), *still]
                state = self._run_iteration(inputs, stacks, i, seen[-1] if often else None)
            if often:
                strides = {place: s if s == seen[0][place] else None for place, s in seen[-1].items()}
                written = self.written = GeneratedLoop(self.iteration.routine, inputs, strides, self.carries, self.rows).function
        if written is None or done == self.length:
            return state
        late = [[x[done:] for x in arrays] if done else arrays for arrays in (moving, stacks)]
        try:
            return written(state, late[0], still, late[1], self.iteration.constants, self.length - done)
        except Exception:                               # raised again, with the user's line
            for i in range(done, self.length):
                state = self._run_iteration([*state, *(x[i] for x in moving), *still], stacks, i, None)
            return state

    def _run_iteration(self, inputs: list[Any], stacks: Sequence[Any], i: int, strides: dict[int, Any] | None) -> list[Any]:
        iteration = self.iteration
        values = iteration.routine.run(inputs, iteration.constants, iteration.order, [], strides)
        for stack, value in zip(stacks, values[self.carries:], strict=True):
            stack[i] = value
        return values[:self.carries]
