"""The iterations of a loop by numpy, written as Python with the loop in it: `GeneratedLoop`.

An iteration of few elements is as long as what is done around its operations: lists of values, rows taken from arrays, results put into
others. So rows are what Python's `zip` goes through, what is stacked is computed into its place, and what an iteration needs for itself
has the same memory in all of them, of which views (the gates of an LSTM) are taken once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.graph.primitive import REGISTRY
from tracegrad.numpy_backend.generated import SPREAD, Writer
from tracegrad.numpy_backend.steps import Step, Steps

_SLICE, _RESHAPE, _PERMUTE = REGISTRY["slice"], REGISTRY["reshape"], REGISTRY["permute"]
SOME = 3                        # iterations, of an array that stands for one of all iterations
MOST = 1 << 14                  # bytes of an array that keeps its memory: larger ones had better follow each other in the cache


class GeneratedLoop(Writer):
    """Makes the `function` of a routine of one iteration: from arrays of the first carries, all iterations' rows, of what stays, and

    those that results are stacked in, the last carries. (Rows in the order of the iterations, in C order, as the first carries are.)

    Names: i... are inputs, o... rows of results, b... arrays that every iteration uses anew, v... other
    values. head: the lines before the iterations, body: of an iteration.
    """

    parameters = "state, wholes, still, stacks, constants, count"

    def __init__(self, routine: Steps, inputs: Sequence[Any], strides: dict[int, Any], carries: int, rows: int) -> None:
        """carries, rows: how many of the inputs, and of the results, are carries; how many inputs after them are rows."""
        self.carries, self.rows = carries, rows
        self.head: list[str] = []
        self.body: list[str] = []
        self.memory: dict[str, Any] = {}                # arrays that stay the same ones, and views of them: one like it
        self.row_views: dict[str, Any] = {}             # o..., and views of it, of which w... has all iterations': some iterations like it
        super().__init__(routine, inputs, strides)

    def _lines(self) -> list[str]:
        routine, n, m = self.routine, self.carries, self.carries + self.rows
        self.names["empty"] = np.empty
        state, rows, still = (", ".join(f"i{k}" for k in range(*part)) for part in ((n,), (n, m), (m, self.inputs)))
        outs = [f"o{k}" for k in range(len(routine.targets) - n)]
        given = {"state": state, "still": still, "constants": ", ".join(f"c{i}" for i in routine.constants)}
        ends, views = self._write()
        moving = ", ".join([*([rows] if rows else []), *outs, *views])
        through = ", ".join([*(["*wholes"] if rows else []), *(["*stacks"] if outs else []), *(f"w{v}" for v in views)])
        lines = [f"{names}, = {what}" for what, names in given.items() if names]
        lines += [*self.head, f"for {moving}, in zip({through}):" if moving else "for _ in range(count):"]
        if n:
            self.body.append(f"{state}, = {', '.join(ends)},")
        return [*lines, *(f" {line}" for line in self.body or ["pass"]), f"return [{state}]"]

    def _write(self) -> tuple[list[str], list[str]]:
        """Writes `head` and `body`. Gives the names of the iteration's carries, and of views of results that it reads."""
        routine, avals = self.routine, self.routine.avals
        at = {~k: f"i{k}" for k in range(self.inputs)} | {i: f"c{i}" for i in routine.constants}
        at |= {i: self._name(value, "f") for i, value in routine.fixed}
        carried, stacked = routine.targets[:self.carries], routine.targets[self.carries:]
        lasting = self._lasting(carried)
        wanted = {place: f"o{k}" for k, place in reversed([*enumerate(stacked)])}
        read: dict[str, None] = {}
        for count, step in enumerate(self.steps):
            place, arguments = step.place, [at[o] for o in step.operands]
            into = self._into(step, arguments)
            if into is not None and (place in wanted or (place not in lasting and avals[place].nbytes <= MOST)):
                name = at[place] = wanted.pop(place, f"b{count}")
                self.body.append(into.format(name))
                if name[0] == "o":
                    self.row_views[name] = np.empty((SOME, *avals[place].shape), avals[place].dtype)
                    self.head.append(f"w{name} = stacks[{name[1:]}]")
                else:
                    self.memory[name] = np.empty(avals[place].shape, avals[place].dtype)
                    self.head.append(f"{name} = empty({self._name(avals[place].shape, 's')}, {self._name(avals[place].dtype, 'd')})")
            else:
                name = at[place] = f"v{count}"
                if self._is_row_view(step, name, arguments):
                    arguments = []
                else:
                    lines = self.head if self._is_invariant_view(step, name, arguments) else self.body
                    lines.append(f"{name} = {self._made_right(step, self._call(step, arguments))}")
            read.update(dict.fromkeys(arguments))
            self.body += [f"{at[o]} = None" for o in step.dead if at[o][0] == "v" and at[o] not in self.memory
                          and (o >= routine.size or avals[o].nbytes >= SPREAD)]
        self.body += [f"o{k}[...] = {at[place]}" for k, place in enumerate(stacked) if at[place] != f"o{k}"]
        ends = [at[place] for place in carried]
        return ends, [v for v in self.row_views if v[0] == "v" and (v in read or v in ends or v in [at[place] for place in stacked])]

    def _lasting(self, carried: Sequence[int]) -> set[int]:
        """The places whose memory carries may lie in."""
        found = set(carried)
        for step in reversed(self.steps):
            if step.place in found and not self._can(step):
                found.update(step.operands)
        return found

    def _can(self, step: Step) -> bool:
        return self._into(step, [""] * len(step.operands)) is not None

    def _into(self, step: Step, arguments: Sequence[str]) -> str | None:
        """The call that computes a step into an array, whose name is put in for {}; None where it is not known to give the same."""
        aval = step.node.aval
        if step.dtype is None or not self._is_right(step) or self.strides[step.place] != np.empty(aval.shape, aval.dtype).strides:
            return None
        return self._call(step, arguments, "{}") if self._function(step)[2] else None

    def _is_invariant_view(self, step: Step, name: str, arguments: Sequence[str]) -> bool:
        """Whether a step is a view of an array that stays the same: it stays the same, too."""
        base = self.memory.get(arguments[0])
        view = step.rule(base) if base is not None and step.node.fn in (_SLICE, _RESHAPE, _PERMUTE) else None
        if view is None or not np.may_share_memory(view, base):
            return False
        self.memory[name] = view
        return True

    def _is_row_view(self, step: Step, name: str, arguments: Sequence[str]) -> bool:
        """Whether a step is a view of a row of results: one of a view of all of them."""
        whole = self.row_views.get(arguments[0])
        if whole is None or step.node.fn not in (_SLICE, _RESHAPE, _PERMUTE):
            return False
        if step.node.fn is _SLICE:
            index = (slice(None), *map(slice, *(step.node.attrs[end] for end in ("start", "stop", "step"))))
            view, call = whole[index], f"[{self._name(index, 's')}]"
        elif step.node.fn is _RESHAPE:
            shape = tuple(map(int, step.node.attrs["shape"]))
            view, call = whole.reshape((SOME, *shape)), f".reshape((count, *{self._name(shape, 's')}))"
        else:
            dims = (0, *(d + 1 for d in step.node.attrs["dims"]))
            view, call = whole.transpose(dims), f".transpose({self._name(dims, 's')})"
        if not np.may_share_memory(view, whole) or view.ndim == 1:       # going through numbers gives copies of what was there before
            return False
        self.row_views[name] = view
        self.head.append(f"w{name} = w{arguments[0]}{call}")
        return True
