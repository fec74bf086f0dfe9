"""The turns of a loop by numpy, written as Python with the loop in it: `Turns`.

A turn of few elements is as long as what is done around its operations: lists of values, rows taken from arrays, results put into others.
So rows are what Python's `zip` goes through, what is stacked is computed into its place, and what a turn needs for itself has the same
memory in all of them, of which views (the gates of an LSTM) are taken once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tracegrad.numpy_routines import DOT, SPREAD, Routine, SideBySide, Step, Writer


class Turns(Writer):
    """Makes the `function` of a routine that is a turn: from arrays of the first carries, of the rows of all turns, of what stays, and

    those that results are stacked in, the last carries. (Rows in the order of the turns, in C order, as the first carries are.)
    """

    parameters = "state, wholes, still, stacks, constants, count"

    def __init__(self, routine: Routine, inputs: Sequence[Any], strides: dict[int, Any], carries: int, rows: int) -> None:
        """carries, rows: how many of the inputs, and of the results, are carries; how many inputs after them are rows."""
        self.carries, self.rows = carries, rows
        self.joins: dict[int, str] = {}                 # of parts side by side, where they are rows
        super().__init__(routine, inputs, strides)

    def _lines(self) -> list[str]:
        n, m = self.carries, self.carries + self.rows
        state, rows, still = (", ".join(f"i{k}" for k in range(*part)) for part in ((n,), (n, m), (m, self.inputs)))
        outs = [f"o{k}" for k in range(len(self.routine.ends) - n)]
        constants = ", ".join(f"c{i}" for i in self.routine.constants)
        given = {"state": state, "still": still, "constants": constants}
        lines = [f"{names}, = {what}" for what, names in given.items() if names]
        head, body, ends = self._turn()
        moving = ", ".join(part for part in (rows, *outs) if part)
        through = ", ".join(["*wholes"] * bool(rows) + ["*stacks"] * bool(outs))
        lines += [*head, f"for {moving}, in zip({through}):" if moving else "for _ in range(count):", *(f" {line}" for line in body)]
        if n:
            lines.append(f" {state}, = {', '.join(ends)},")
        return [*lines, f"return [{state}]"]

    def _turn(self) -> tuple[list[str], list[str], list[str]]:
        """The lines before the turns, those of a turn, and the names of its carries."""
        routine, avals = self.routine, self.routine.avals
        at = {~k: f"i{k}" for k in range(self.inputs)} | {i: f"c{i}" for i in routine.constants}
        at |= {i: self._name(value, "f") for i, value in routine.fixed}
        carried, stacked = routine.ends[:self.carries], routine.ends[self.carries:]
        place_of = {place: f"o{k}" for k, place in reversed([*enumerate(stacked)])}
        lasting = self._lasting(carried)
        head: list[str] = []
        body: list[str] = []
        memory: dict[str, Any] = {}                     # arrays that stay the same ones, and views of them, as they will be
        shares: dict[int, set[str]] = {}                # of each place, those whose memory it may lie in
        alive: dict[str, set[int]] = {}                 # of each of them, the places that may
        free: dict[Any, list[str]] = {}

        def let_go(places: Sequence[int]) -> None:
            for o in places:
                for name in shares.get(o, ()):
                    alive[name].discard(o)
                    if not alive[name]:
                        free.setdefault((memory[name].shape, memory[name].dtype), []).append(name)
                shares.pop(o, None)

        for count, step in enumerate(self.steps):
            parts = self._rows(step, lasting)
            if parts:
                name = self.joins[step.place] = f"j{count}"
                self.names["empty"] = np.empty
                head.append(f"{name} = empty({self._name(step.rule.rows, 's')}, {self._name(step.dtype, 'd')})")
                head += [f"{name}_{k} = {name}[{k}]" for k in parts.values()]
                place_of.update((o, f"{name}_{k}") for o, k in parts.items())
        for count, step in enumerate(self.steps):
            place, arguments = step.place, [at[o] for o in step.operands]
            into = self._into(step, arguments)
            if into is not None and place in place_of:
                at[place] = place_of.pop(place)
                body.append(into.format(at[place]))
            elif into is not None and place not in lasting:
                aval = avals[place]
                if self._elementwise(step):             # which may be computed over what it reads, if that is no view
                    let_go([o for o in step.dead if at[o] in memory and memory[at[o]].base is None])
                found = free.get((aval.shape, aval.dtype))
                name = found.pop() if found else f"b{count}"
                if name not in memory:
                    memory[name] = np.empty(aval.shape, aval.dtype)
                    head.append(f"{name} = empty({self._name(aval.shape, 's')}, {self._name(aval.dtype, 'd')})")
                    self.names["empty"] = np.empty
                at[place], shares[place], alive[name] = name, {name}, {place}
                body.append(into.format(name))
            else:
                at[place] = f"v{count}"
                call = self._call(step, arguments)
                if not self._is_right(step, avals[place].shape if place < routine.size else ()):
                    call = f"asarray({call}, {self._name(step.dtype, 'd')})"
                shares[place] = set().union(*(shares.get(o, ()) for o in step.operands))
                for name in shares[place]:
                    alive[name].add(place)
                view = self._view(step, memory.get(arguments[0]))
                if view is not None:
                    memory[at[place]] = view
                (body if view is None else head).append(f"{at[place]} = {call}")
            let_go(step.dead)
            body += [f"{at[o]} = None" for o in step.dead
                     if at[o][0] == "v" and at[o] not in memory and (o >= routine.size or avals[o].nbytes >= SPREAD)]
        body += [f"o{k}[...] = {at[place]}" for k, place in enumerate(stacked) if at[place] != f"o{k}"]
        return head, body, [at[place] for place in carried]

    def _lasting(self, carried: Sequence[int]) -> set[int]:
        """The places whose memory carries may lie in."""
        found = set(carried)
        for step in reversed(self.steps):
            if step.place in found and self._into(step, [""] * len(step.operands)) is None:
                found.update(step.operands)
        return found

    def _into(self, step: Step, arguments: Sequence[str]) -> str | None:
        """The call that computes a step into an array, whose name is put in for {}; None where it is not known to give the same."""
        if step.fn is None or not self._is_right(step, self.routine.avals[step.place].shape):
            return None
        aval = self.routine.avals[step.place]
        if step.place in self.joins:
            return f"{self._name(step.rule.joined, 'r')}({self.joins[step.place]}, {{}})"
        if self.strides[step.place] != np.empty(aval.shape, aval.dtype).strides:
            return None
        rule = self._by_itself(step)
        if rule is DOT:
            return f"{arguments[0]}.dot({arguments[1]}, {{}})"
        if rule is not None:
            keeps = ", True" if "keepdim" in step.attrs else ""
            return f"{self._name(rule, 'r')}({arguments[0]}, {self._name(step.attrs['dim'], 'd')}, None, {{}}{keeps})"
        if isinstance(step.rule, np.ufunc) or getattr(step.rule, "into", False):
            return f"{self._name(step.rule, 'r')}({', '.join(arguments)}, {{}})"
        return None

    def _rows(self, step: Step, lasting: Collection[int]) -> dict[int, int]:
        """Of parts that are put side by side, which row of one array each can be computed into, as nobody else reads it."""
        rule, made = step.rule, {s.place: s for s in self.steps}
        if not isinstance(rule, SideBySide) or rule.rows is None or self._into(step, [""] * len(step.operands)) is None:
            return {}
        uses = Counter(o for s in self.steps for o in s.operands)
        uses.update(self.routine.ends)
        parts = [made[o] for o in step.operands if o in made and o not in lasting and uses[o] == 1]
        if len(parts) < len(step.operands) or any(self._into(s, [""] * len(s.operands)) is None for s in parts):
            return {}
        return dict(zip(step.operands, rule.row, strict=True))

    @staticmethod
    def _elementwise(step: Step) -> bool:
        return step.fn is not None and step.fn.family == "elementwise"

    @staticmethod
    def _view(step: Step, base: Any) -> Any:
        """The view of `base`, an array that stays the same, that a step makes; None where it makes something else."""
        if base is None or step.fn is None or step.fn.family != "movement" or len(step.operands) != 1:
            return None
        view = step.rule(base)
        return view if type(view) is np.ndarray and view.base is not None and np.may_share_memory(view, base) else None
