"""Steps as Python of their own, a line an operation: `Writer`.

What a step costs beside NumPy's own time (half a microsecond of looking up, checking, dropping) is as much as NumPy takes for few elements.
So a program that comes often is written straight on, with variables that take each other's places, without the broadcasts that NumPy makes
anyway. All of that is about NumPy's calls, so it stands here and in no pass: the
bits are those of the steps.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.graph.operation import KnownArray
from tracegrad.graph.primitive import REGISTRY
from tracegrad.numpy_backend.steps import Step, Steps, with_last_uses
from tracegrad.ops.primitives.elementwise import Identity
from tracegrad.support.cache import written

LINES = 3000            # the code of longer functions is not kept for others
SPREAD = 1 << 12        # bytes from which on an array is dropped after its last use: the next one then finds its memory

_WHERE = REGISTRY["where"]
_EXPAND, _RESHAPE, _PERMUTE = REGISTRY["expand"], REGISTRY["reshape"], REGISTRY["permute"]
_CONCAT, _SLICE = REGISTRY["concat"], REGISTRY["slice"]
_OUT_BY_NAME = (np.maximum, np.minimum)            # NumPy 2.4 warns where it is given by position
_ROUNDED_RIGHT = frozenset((np.add, np.subtract, np.multiply, np.divide))        # to the same bits, however the operands lie in memory
# Families whose rules give arrays of the node's dtype, or never do.
_STEADY = frozenset(("elementwise", "movement", "reduction", "contraction", "gather", "dynamic_slice"))


class Writer:
    """Makes the `function` of a routine: what NumpyProgram.run does, as Python without loops and look-ups.

    inputs: those of one call; all calls' have these shapes and dtypes. strides: of each result; None where a conversion has to be tried.
    """

    parameters = "inputs, constants, notes"

    def __init__(self, routine: Steps, inputs: Sequence[Any], strides: dict[int, Any]) -> None:
        self.routine, self.inputs, self.strides = routine, len(inputs), strides
        self.given = [KnownArray(x.shape, x.dtype, False) if type(x) is np.ndarray else None for x in inputs]
        self.names: dict[str, Any] = {"asarray": np.asarray}        # what the text names: its last arguments, which nobody gives
        self.known: dict[int, str] = {}                 # what is in `names`, by id
        self.sources: dict[int, int] = {}               # of what only broadcasts: the place of what is broadcast
        self.flat: dict[int, int] = {}                  # of rows: the place of what has the same elements
        self.same: dict[int, int] = {}                  # of what hands its operand on: the place of that
        self.steps = self._needed([self._direct(step) for step in routine.steps])
        self.readers: dict[int, list[Any]] = {}         # by place, the rules that read it
        for step in self.steps:
            for o in step.operands:
                self.readers.setdefault(o, []).append(step.rule)
        lines = self._lines()
        self.function: Callable[..., list[Any]] = written(self.parameters, lines, self.names, keep=len(lines) <= LINES)

    def _shape(self, place: int) -> tuple[int, ...] | None:
        """The shape of what is at a place; None where that is not known."""
        if place < 0:
            return None if (given := self.given[~place]) is None else given.shape
        return self.routine.avals[place].shape if place < self.routine.size else None

    def _direct(self, step: Step) -> Step:
        """The step, with what is broadcast in the place of broadcasts that numpy makes by itself, and what is handed on where it stands."""
        step = step._replace(operands=tuple([self.same.get(o, o) for o in step.operands])) if self.same else step
        fn, shape, source = step.node.fn, step.node.aval.shape, self._shape(step.operands[0])
        if source is not None and (fn is _EXPAND or (fn is _RESHAPE and shape[len(shape) - len(source):] == source
                                                     and set(shape[:len(shape) - len(source)]) <= {1})):
            self.sources[step.place] = self.sources.get(step.operands[0], step.operands[0])
        if isinstance(fn, Identity) and len(step.operands) == 1 and step.place not in self.routine.targets:        # the operand as it is
            self.same[step.place] = step.operands[0]
        if len(shape) == 1 and fn is _RESHAPE:
            self.flat[step.place] = step.operands[0]
        if len(shape) == 1 and fn is _CONCAT:
            return step._replace(rule=_end_to_end, operands=tuple([self.flat.get(o, o) for o in step.operands]))
        # Where numpy broadcasts the operands itself, it goes through the same elements in the same way, to the same bits.
        if not isinstance(step.rule, np.ufunc) and not isinstance(fn, type(_WHERE)):
            return step
        operands = list(step.operands)
        for k, o in enumerate(operands):
            if o in self.sources:
                shapes = [self._shape(p) for p in (*operands[:k], self.sources[o], *operands[k + 1:])]
                known = [s for s in shapes if s is not None]
                if len(known) == len(shapes) and np.broadcast_shapes(*known) == shape:
                    operands[k] = self.sources[o]
        return step._replace(operands=tuple(operands))

    def _needed(self, steps: list[Step]) -> list[Step]:
        """The steps that something needs, each with the places that nobody reads after it."""
        wanted = set(self.routine.targets)
        found = []
        for step in reversed(steps):
            if step.place in wanted or step.reports:
                wanted.update(step.operands)
                found.append(step)
        return with_last_uses(found[::-1], self.routine.targets)

    def _name(self, what: Any, hint: str) -> str:
        name = self.known.get(id(what))
        if name is None:
            name = self.known[id(what)] = f"{hint}{len(self.names)}"
            self.names[name] = what
        return name

    def _lines(self) -> list[str]:
        routine = self.routine
        at: dict[int, str] = {~k: f"i{k}" for k in range(self.inputs)}
        lines = []
        if self.inputs:
            lines.append(f"{', '.join(f'i{k}' for k in range(self.inputs))}, = inputs")
        if routine.constants:
            lines.append(f"{', '.join(f'c{i}' for i in routine.constants)}, = constants")
        at.update({i: f"c{i}" for i in routine.constants})
        at.update({i: self._name(value, "f") for i, value in routine.fixed})
        free, count = list[str](), 0
        for step in self.steps:
            arguments = [at[o] for o in step.operands]
            name = free.pop() if free else f"v{count}"
            count += name == f"v{count}"
            lines.append(f"{name} = {self._made_right(step, self._call(step, arguments))}")
            if step.reports:
                node = self._name(step.node, "n")
                lines.append(f"notes += {node}.fn.excess({arguments[0]}, {node})")
            at[step.place] = name
            for o in step.dead:
                if at[o].startswith("v") and o != step.place:
                    free.append(at[o])
                    if o >= routine.size or routine.avals[o].nbytes >= SPREAD:
                        lines.append(f"{at[o]} = None")
        lines.append(f"return [{', '.join(at[t] for t in routine.targets)}]")
        return lines

    def _is_right(self, step: Step) -> bool:
        """Whether what the step's rule gives is an array of its dtype, as it was: it depends on nothing but the structure."""
        steady = step.node.fn.family in _STEADY and self.strides[step.place] is not None
        return step.dtype is None or bool(step.node.aval.shape and steady)

    def _made_right(self, step: Step, call: str) -> str:
        """The call that computes a step, made an array of its dtype where it may be none."""
        return call if self._is_right(step) else f"asarray({call}, {self._name(step.dtype, 'd')})"

    def _call(self, step: Step, arguments: Sequence[str], *out: str) -> str:
        """out: the array that it is computed into, if its rule takes one."""
        if step.node.fn is _PERMUTE and step.node.attrs["dims"] == (1, 0):
            return f"{arguments[0]}.T"
        if step.node.fn is _RESHAPE and step.node.attrs["shape"]:
            return f"{arguments[0]}.reshape({self._name(tuple(map(operator.index, step.node.attrs['shape'])), 's')})"
        if step.node.fn is _SLICE and self._may_be_view(step):
            parts = tuple(map(slice, *(step.node.attrs[end] for end in ("start", "stop", "step"))))
            return f"{arguments[0]}[{self._name(parts[0] if len(parts) == 1 else parts, 's')}]"
        function, more, _ = self._function(step)
        named = not isinstance(function, np.ufunc) or function in _OUT_BY_NAME
        given = [*arguments, *(self._name(x, "a") for x in more), *(f"out={array}" if named else array for array in out)]
        return f"{self._name(function, 'r')}({', '.join(given)})"

    def _may_be_view(self, step: Step) -> bool:
        """Whether a slice may lie as NumPy's own does: as rows, or nobody keeps it and those who read it do not mind."""
        if step.place not in self.routine.targets and all(rule in _ROUNDED_RIGHT for rule in self.readers[step.place]):
            return True
        known = self._array(step.operands[0])
        return len(step.node.aval.shape) == 1 and step.node.attrs["step"] == (1,) and known is not None and known.rows

    def _function(self, step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], bool]:
        """What is called for a step, what it gets after the operands, and whether it takes an array for the result."""
        known = [self._array(o) for o in step.operands]
        found = None
        if all(k is not None and k.dtype.char in "fd" for k in known):
            found = step.node.fn.numpy_function(known, **step.node.attrs)
        return (step.rule, (), isinstance(step.rule, np.ufunc)) if found is None else (*found, True)

    def _array(self, place: int) -> KnownArray | None:
        """An operand that is an array; else None."""
        if place < 0:
            return self.given[~place]
        strides = self.strides.get(place) if place < self.routine.size else None
        if strides is None:
            return None
        aval = self.routine.avals[place]
        return KnownArray(aval.shape, aval.dtype, strides == np.empty(aval.shape, aval.dtype).strides)


def _end_to_end(*arrays: Any) -> Any:
    """The elements of arrays, row by row, as one row."""
    return np.concatenate(arrays, axis=None)
