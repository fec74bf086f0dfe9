"""Places outside (attributes, variables, items) that a traced function gives new tensors: each replay does. Start at `Assignments`.

What such a place held before is what the call before put there, so a replay cannot know it by identity, as it knows other tensors that
the function reaches. It takes what is there then, if that is of the kind that was there when the body ran (`_kind`), and if it shares
memory with arguments, with what the function reaches otherwise and with what lies in other such places just as it did then (`pattern`).
A place may hold a tensor, or tuples, lists and dicts (of such) of tensors and plain values: an LSTM's state, a cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import optree

from tracegrad.errors import TraceError
from tracegrad.graph.primitive import REGISTRY
from tracegrad.tensors.attributes import base_of
from tracegrad.tensors.tensor import Tensor
from tracegrad.tracing.content_guards import same
from tracegrad.tracing.guards import ORDERED, GuardSet, Slot, containers
from tracegrad.tracing.recording import Recording, Source, path_of

_VARIABLE = REGISTRY["variable"]


class Part:
    """A tensor in a place: what it holds, or one of the leaves of the containers there."""

    __slots__ = ("number", "slot")

    def __init__(self, slot: Slot, number: int) -> None:
        self.slot, self.number = slot, number

    def get(self) -> Tensor:
        held = self.slot.get()
        found: Tensor = held if isinstance(held, Tensor) else _flat(held)[0][self.number]
        return found


class Assignments:
    """The places that a recording assigns to. values: all leaves of what it puts there, in order."""

    def __init__(self, found: Sequence[tuple[Slot, Any]], recording: Recording, guard_set: GuardSet) -> None:
        """found: the places and what the body put there. guard_set: what the function reaches otherwise."""
        self.slots = [slot for slot, _ in found]
        lists: dict[int, Slot] = {}
        for slot, value in found:
            for container in containers(value):
                if not isinstance(container, tuple) and lists.setdefault(id(container), slot) is not slot:
                    raise TraceError(f"{recording.name}: assigns the same {type(container).__name__} to {lists[id(container)].name} and "
                                     f"{slot.name}, which a replay would not do; assign a new one to each")
        self.values: list[Any] = []
        self._forms: list[Any] = []                          # how the values in each place are put together of these
        for _, value in found:
            leaves, form = _flat(value)
            self.values += leaves
            self._forms.append(form)
        self.once = ""                                       # why this recording does for the present call only, in words
        for slot in self.slots:
            owner = next((other for other in self.slots if any(c is slot.owner for c in containers(other.before))), None)
            if owner is not None:
                self.once = f"assigns to {slot.name} of what {owner.name} held, and to {owner.name}, too"
        self._held: list[tuple[Slot, Any, list[Any]]] = []   # (place, form of what it held, of each leaf: a tensor's kind, or the value)
        self._parts: list[Part] = []
        self._pattern: list[Any] = []
        for slot in self.slots:
            leaves, form = _flat(slot.before)
            if slot.held_tensors:
                self._held.append((slot, form, [_kind(x) if isinstance(x, Tensor) else x for x in leaves]))
                self._parts += [Part(slot, k) for k, x in enumerate(leaves) if isinstance(x, Tensor)]
        self._move(recording, guard_set)

    def __bool__(self) -> bool:
        return bool(self.slots)

    def _move(self, recording: Recording, guard_set: GuardSet) -> None:
        """Let a replay take from the places what the recording took from the tensors that were there."""
        moved: dict[int, Source] = {}
        for part in self._parts:
            tensor = part.get()
            base = base_of(tensor)
            if id(base) in guard_set.tensors:                    # it is this one at every replay: see `pattern`
                continue
            moved.setdefault(id(base), ("slot base", part))
            moved[id(tensor)] = ("slot", part)
        recording.places.update({key: place for key, place in moved.items() if key not in recording.places})
        for k, (kind, what) in enumerate(recording.sources):
            if kind == "tensor":
                recording.sources[k] = moved.get(id(what), (kind, what))
            elif kind == "grad" and what[0] == "tensor":
                recording.sources[k] = (kind, moved.get(id(what[1]), what))
        recording.no_grads = [moved.get(id(what), (kind, what)) if kind == "tensor" else (kind, what) for kind, what in recording.no_grads]

    def settle(self, used: Iterable[Source], flat: Sequence[Any], guard_set: GuardSet) -> None:
        """Note what is to be the same again; what nobody reads is not.

        used: where a replay takes tensors from. flat: the argument leaves.
        """
        read = {id(what.slot) for kind, what in used if kind.startswith("slot")}
        read |= {id(slot) for slot in self.slots if guard_set.reads(slot)}
        self._held = [held for held in self._held if id(held[0]) in read]
        self._parts = [part for part in self._parts if id(part.slot) in read]
        self._pattern = self.pattern(flat, guard_set)
        for slot in self.slots:
            slot.before = None                               # a recording holds no tensor of the call that it was made in

    def pattern(self, flat: Sequence[Any], guard_set: GuardSet) -> list[Any]:
        """Which tensors here are, or are views of, one that an argument or an earlier place has, or that the function reaches otherwise."""
        seen: dict[int, int] = {}
        for k, x in enumerate(flat):
            if isinstance(x, Tensor):
                seen.setdefault(id(x), k)
                seen.setdefault(id(base_of(x)), k)
        found = []
        for k, part in enumerate(self._parts, len(flat)):
            tensor = part.get()
            base = id(base_of(tensor))
            found.append((seen.setdefault(id(tensor), k), seen.setdefault(base, k), base if base in guard_set.tensors else None))
        return found

    def change(self, flat: Sequence[Any], guard_set: GuardSet) -> str:
        """What is no longer as it was, but for values, in words; empty if nothing."""
        for slot, form, kinds in self._held:
            leaves, now = _flat(slot.get())
            if now != form or not all(_kind(x) == kind if isinstance(x, Tensor) else same(x, kind)
                                      for x, kind in zip(leaves, kinds, strict=True)):
                return f"{slot.name} holds another kind of value"
        if self._parts and self.pattern(flat, guard_set) != self._pattern:
            return "other tensors that it assigns to share memory"
        return ""

    def put(self, leaves: Iterator[Any]) -> None:
        """Assign new leaves."""
        for slot, form in zip(self.slots, self._forms, strict=True):
            slot.set(optree.tree_unflatten(form, [next(leaves) for _ in range(form.num_leaves)]))


def _flat(value: Any) -> tuple[list[Any], Any]:
    leaves, form = optree.tree_flatten(value, none_is_leaf=True, namespace=ORDERED)
    return leaves, form


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    """What a program depends on of a tensor, but for its values."""
    base = base_of(tensor)
    node = base._n
    return (type(tensor), node.aval, node.needs_grad, node.fn is _VARIABLE, tuple(tensor._hooks or ()), tuple(base._hooks or ()),
            base._device, base._trace is None, path_of(tensor))
