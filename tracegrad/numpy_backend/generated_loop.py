"""The iterations of a loop by numpy, written as Python with the loop in it: `GeneratedLoop`.

An iteration of few elements is as long as what is done around its operations: lists of values, rows taken from arrays, results put into
others. So rows are what Python's `zip` goes through, what is stacked is computed into its place, and what an iteration needs for itself
has the same memory in all of them, of which views (the gates of an LSTM) are made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.graph.primitive import REGISTRY
from tracegrad.numpy_backend.generated import SPREAD, Writer
from tracegrad.numpy_backend.steps import Step, Steps

_SLICE, _RESHAPE, _PERMUTE = REGISTRY["slice"], REGISTRY["reshape"], REGISTRY["permute"]
MOST = 1 << 14                  # bytes of an array that keeps its memory: larger ones had better follow each other in the cache


class GeneratedLoop(Writer):
    """Makes the `function` of a routine of one iteration: from arrays of the first carries, all iterations' rows, of what stays, and

    those that results are stacked in, the last carries. (Rows in the order of the iterations, in C order, as the first carries are.)

    Names: i... are inputs, o... rows of results, b... arrays that every iteration writes anew, v... other values. head: the lines before
    the iterations, body: of an iteration.
    """

    parameters = "state, wholes, still, stacks, constants, count"

    def __init__(self, routine: Steps, inputs: Sequence[Any], strides: dict[int, Any], carries: int, rows: int) -> None:
        """carries, rows: how many of the inputs, and of the results, are carries; how many inputs after them are rows."""
        self.carries, self.rows = carries, rows
        self.head: list[str] = []
        self.body: list[str] = []
        self.memory: dict[str, Any] = {}                # arrays that stay the same ones, and views of them: one like it
        super().__init__(routine, inputs, strides)

    def _lines(self) -> list[str]:
        routine, n, m = self.routine, self.carries, self.carries + self.rows
        self.names["empty"] = np.empty
        state, rows, still = (", ".join(f"i{k}" for k in range(*part)) for part in ((n,), (n, m), (m, self.inputs)))
        outs = [f"o{k}" for k in range(len(routine.targets) - n)]
        given = {"state": state, "still": still, "constants": ", ".join(f"c{i}" for i in routine.constants)}
        ends = self._write()
        moving = ", ".join([*([rows] if rows else []), *outs])
        through = ", ".join([*(["*wholes"] if rows else []), *(["*stacks"] if outs else [])])
        lines = [f"{names}, = {what}" for what, names in given.items() if names]
        lines += [*self.head, f"for {moving}, in zip({through}):" if moving else "for _ in range(count):"]
        if n:
            self.body.append(f"{state}, = {', '.join(ends)},")
        return [*lines, *(f" {line}" for line in self.body or ["pass"]), f"return [{state}]"]

    def _write(self) -> list[str]:
        """Writes `head` and `body`. Gives the names of the iteration's carries."""
        routine, avals = self.routine, self.routine.avals
        at = {~k: f"i{k}" for k in range(self.inputs)} | {i: f"c{i}" for i in routine.constants}
        at |= {i: self._name(value, "f") for i, value in routine.fixed}
        carried, stacked = routine.targets[:self.carries], routine.targets[self.carries:]
        lasting = self._lasting(carried)
        wanted = {place: f"o{k}" for k, place in reversed([*enumerate(stacked)])}
        for count, step in enumerate(self.steps):
            place, arguments = step.place, [at[o] for o in step.operands]
            if self._can_be_given(step) and (place in wanted or (place not in lasting and avals[place].nbytes <= MOST)):
                name = at[place] = wanted.pop(place, f"b{count}")
                self.body.append(self._call(step, arguments, name))
                if name[0] == "b":
                    self.memory[name] = np.empty(avals[place].shape, avals[place].dtype)
                    self.head.append(f"{name} = empty({self._name(avals[place].shape, 's')}, {self._name(avals[place].dtype, 'd')})")
            else:
                name = at[place] = f"v{count}"
                lines = self.head if self._is_invariant_view(step, name, arguments) else self.body
                lines.append(f"{name} = {self._made_right(step, self._call(step, arguments))}")
            self.body += [f"{at[o]} = None" for o in step.dead if at[o][0] == "v" and at[o] not in self.memory
                          and (o >= routine.size or avals[o].nbytes >= SPREAD)]
        self.body += [f"o{k}[...] = {at[place]}" for k, place in enumerate(stacked) if at[place] != f"o{k}"]
        return [at[place] for place in carried]

    def _lasting(self, carried: Sequence[int]) -> set[int]:
        """The places whose memory carries may lie in."""
        found = set(carried)
        for step in reversed(self.steps):
            if step.place in found and not self._can_be_given(step):
                found.update(step.operands)
        return found

    def _can_be_given(self, step: Step) -> bool:
        """Whether a step can be computed into an array that it is given, to the same bits."""
        aval = step.node.aval
        return bool(step.dtype is not None and self._is_right(step) and self._function(step)[2]
                    and self.strides[step.place] == np.empty(aval.shape, aval.dtype).strides)

    def _is_invariant_view(self, step: Step, name: str, arguments: Sequence[str]) -> bool:
        """Whether a step is a view of an array that stays the same: it stays the same, too."""
        base = self.memory.get(arguments[0])
        view = step.rule(base) if base is not None and step.node.fn in (_SLICE, _RESHAPE, _PERMUTE) else None
        if view is None or not np.may_share_memory(view, base):
            return False
        self.memory[name] = view
        return True
