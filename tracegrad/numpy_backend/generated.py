"""Steps as Python of their own, a line an operation: `Writer`.

What a step costs beside NumPy's own time (half a microsecond of looking up, checking, dropping) is as much as NumPy takes for few elements.
So a program that comes often is written straight on, with variables that take each other's places, without the broadcasts that NumPy makes
anyway. All of that is about NumPy's calls, so it stands here and in no pass: the
bits are those of the steps.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tracegrad.graph.families import SHORT
from tracegrad.graph.primitive import REGISTRY
from tracegrad.numpy_backend.steps import Step, StepList, with_last_uses
from tracegrad.support.cache import written

LINES = 3000            # the code of longer functions is not kept for others
SPREAD = 1 << 12        # bytes from which on an array is dropped after its last use: the next one then finds its memory

_WHERE = REGISTRY["where"]
_EXPAND, _RESHAPE, _PERMUTE = REGISTRY["expand"], REGISTRY["reshape"], REGISTRY["permute"]
_MATMUL, _DOT = REGISTRY["matmul"], np.ndarray.dot
_SUM = np.add.reduce
_OUT_BY_NAME = (np.maximum, np.minimum)            # NumPy 2.4 warns where it is given by position
_REDUCTIONS: dict[Any, Any] = {REGISTRY["sum"]: _SUM, REGISTRY["amax"]: np.maximum.reduce, REGISTRY["amin"]: np.minimum.reduce}
# Families whose rules give arrays of the node's dtype, or never do.
_STEADY = frozenset(("elementwise", "movement", "reduction", "contraction", "gather", "dynamic_slice"))


class Writer:
    """Makes the `function` of a routine: what NumpyProgram.run does, as Python without loops and look-ups.

    inputs: those of one call; all calls' have these shapes and dtypes. strides: of each result; None where a conversion has to be tried.
    """

    parameters = "inputs, constants, nodes, notes"

    def __init__(self, routine: StepList, inputs: Sequence[Any], strides: dict[int, Any]) -> None:
        self.routine, self.inputs, self.strides = routine, len(inputs), strides
        self.given = [(x.shape, x.dtype) if type(x) is np.ndarray else None for x in inputs]
        self.names: dict[str, Any] = {"asarray": np.asarray}        # what the text names: its last arguments, which nobody gives
        self.known: dict[int, str] = {}                 # what is in `names`, by id
        self.sources: dict[int, int] = {}               # of what only broadcasts: the place of what is broadcast
        self.steps = self._needed([self._direct(step) for step in routine.steps])
        lines = self._lines()
        self.function: Callable[..., list[Any]] = written(self.parameters, lines, self.names, keep=len(lines) <= LINES)

    def _shape(self, place: int) -> tuple[int, ...] | None:
        """The shape of an operation's result; None where that is not known (leaves)."""
        return self.routine.avals[place].shape if 0 <= place < self.routine.size else None

    def _direct(self, step: Step) -> Step:
        """The step, with what is broadcast in the place of broadcasts that numpy makes by itself."""
        fn = step.fn
        if fn is None or step.dtype is None:
            return step
        shape = self.routine.avals[step.place].shape
        source = self._shape(step.operands[0])
        if source is not None and (fn is _EXPAND or (fn is _RESHAPE and shape[len(shape) - len(source):] == source
                                                     and set(shape[:len(shape) - len(source)]) <= {1})):
            self.sources[step.place] = self.sources.get(step.operands[0], step.operands[0])
        if not self._broadcasts(step) or not any(o in self.sources for o in step.operands):
            return step
        operands = list(step.operands)
        shapes = [self._shape(o) for o in operands]
        for k, o in enumerate(operands):
            other = self.sources.get(o)
            if other is None:
                continue
            tried = [self._shape(other) if j == k else s for j, s in enumerate(shapes)]
            # A leaf beside it has an unknown shape: it must be there already, in another operand of the result's.
            known = [s for s in tried if s is not None]
            beside = any(s == shape for j, s in enumerate(tried) if j != k)
            if beside or (len(known) == len(tried) and np.broadcast_shapes(*known) == shape):
                operands[k], shapes = other, tried
        return step._replace(operands=tuple(operands))

    @staticmethod
    def _broadcasts(step: Step) -> bool:
        """Whether numpy broadcasts the operands itself: it then goes through the same elements in the same way, to the same bits."""
        return isinstance(step.rule, np.ufunc) or isinstance(step.fn, type(_WHERE))

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
            shape = routine.avals[step.place].shape if step.place < routine.size else ()
            arguments = [at[o] for o in step.operands]
            name = free.pop() if free else f"v{count}"
            count += name == f"v{count}"
            call = self._call(step, arguments)
            if self._is_right(step, shape):
                lines.append(f"{name} = {call}")
            else:
                lines.append(f"{name} = asarray({call}, {self._name(step.dtype, 'd')})")
            if step.reports:
                node = f"nodes[{routine.origin[step.place]}]"
                lines.append(f"notes += {node}.fn.excess({arguments[0]}, {node})")
            at[step.place] = name
            for o in step.dead:
                if at[o].startswith("v") and o != step.place:
                    free.append(at[o])
                    if o >= routine.size or routine.avals[o].nbytes >= SPREAD:
                        lines.append(f"{at[o]} = None")
        lines.append(f"return [{', '.join(at[t] for t in routine.targets)}]")
        return lines

    def _is_right(self, step: Step, shape: tuple[int, ...]) -> bool:
        """Whether what the step's rule gives is an array of its dtype, as it was: it depends on nothing but the structure."""
        steady = step.fn is not None and step.fn.family in _STEADY and self.strides[step.place] is not None
        return step.dtype is None or bool(shape and steady)

    def _call(self, step: Step, arguments: Sequence[str], *out: str) -> str:
        """out: the array that it is computed into, if its rule takes one."""
        if step.fn is _PERMUTE and step.attrs["dims"] == (1, 0):
            return f"{arguments[0]}.T"
        if step.fn is _RESHAPE and step.attrs["shape"]:
            return f"{arguments[0]}.reshape({self._name(tuple(map(operator.index, step.attrs['shape'])), 's')})"
        rule = self._by_itself(step)
        if rule is _DOT:
            return f"{arguments[0]}.dot({', '.join([arguments[1], *out])})"
        if rule is not None:
            more = ["None", *out] if out else []
            return f"{self._name(rule, 'r')}({', '.join([arguments[0], self._name(step.attrs['dim'], 'd'), *more])})"
        return self._rule(step, arguments, *out)

    def _rule(self, step: Step, arguments: Sequence[str], *out: str) -> str:
        named = [f"out={array}" for array in out] if step.rule in _OUT_BY_NAME else out
        return f"{self._name(step.rule, 'r')}({', '.join([*arguments, *named])})"

    def _by_itself(self, step: Step) -> Any:
        """What the rule of a product or a reduction calls for operands like these, without its questions; None where that is not known."""
        reduce = _REDUCTIONS.get(step.fn)
        if reduce is None and step.fn is not _MATMUL:
            return None
        known = [self._array(o) for o in step.operands]
        if any(k is None or k[1].char not in "fd" for k in known):
            return None
        shape = known[0][0]
        if reduce is None:
            return _DOT if len(shape) == 2 else None
        dim = step.attrs["dim"]
        if reduce is not _SUM:
            return reduce
        last, place = tuple(range(len(shape) - len(dim), len(shape))), step.operands[0]
        in_rows = place >= 0 and self.strides[place] == np.empty(shape, known[0][1]).strides
        short = prod(shape[d] for d in dim) <= SHORT
        return reduce if in_rows and (short or dim == last) else None       # else numpy adds up otherwise: the rule knows better

    def _array(self, place: int) -> Any:
        """The shape and dtype of an operand that is an array; else None."""
        if place < 0:
            return self.given[~place]
        steady = place < self.routine.size and self.strides.get(place) is not None
        return (self.routine.avals[place].shape, self.routine.avals[place].dtype) if steady else None
