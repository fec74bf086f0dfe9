"""A pickle as data: numbers, strings and containers, and what the caller knows of names, calls and persistent ids. Start at `Reader`.

Python's own unpickler keeps a table as long as the largest number in the file, and what it makes can take any time to look at. Here
every step costs what its bytes do, a key of a dict is a number or a string (whose hash is known at once), and `check_size` looks at the
result: how deep it is, and how large once everything that occurs again is counted again.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_DEPTH = 200                     # levels of containers: what walks them may be recursive
_DEEP = f"holds containers that are nested more than {_DEPTH} deep; save them flat, by names such as 'a.b.c'"
_AGAIN = 16                      # times the bytes of the pickle: the elements of all containers, each counted wherever it occurs
_LONG = 1024                     # bytes of a whole number: its digits take the square of that
_ATOMS = frozenset((str, int, float, bool, bytes, complex, type(None)))
_ALIKE = 100                     # keys of one hash in a dict or set: that of tuples and numbers can be chosen, and each is compared


class PickleError(Exception):
    """What is wrong with a pickle, or with the archive around it: the end of a sentence that begins with the file's name."""


class Reader:
    """Reads one pickle of protocol 2 to 5.

    named(module, name): what a name stands for; called(what, args): what a call gives; stored(id): what a persistent id stands for. They
    raise PickleError, as `read` does, for what is not to be read.
    """

    def __init__(self, data: bytes, named: Callable[[str, str], Any], called: Callable[[Any, Any], Any], stored: Callable[[Any], Any]
                 ) -> None:
        self.data, self.at = data, 0
        self.named, self.called, self.stored = named, called, stored
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []                    # the stacks below the marks
        self.memo: dict[int, Any] = {}
        self._alike: dict[int, tuple[Any, dict[int, int]]] = {}         # by a container's identity: itself, and what `check_keys` counts

    def read(self) -> Any:
        """The value. Raises PickleError, or IndexError where the pickle ends too early or takes what is not there."""
        data, steps = self.data, _STEPS
        while True:
            code = data[self.at]
            self.at += 1
            step = steps.get(code)
            if step is not None:
                step(self)
            elif code == 0x2E:                               # STOP
                if self.marked or len(self.stack) != 1:
                    raise PickleError("has a pickle that leaves more or less than one value; the file is damaged: get it again")
                return self.stack[0]
            else:
                raise PickleError(f"has an instruction {bytes([code])!r} in its pickle, which plain data does not need; save it as "
                                  "tensors, numbers, strings and containers of them (a state_dict)")

    # -- bytes

    def take(self, count: int) -> bytes:
        start = self.at
        if count > len(self.data) - start:
            raise PickleError(f"has a pickle in which {count} bytes are to follow where {len(self.data) - start} are left; the file is "
                              "damaged: get it again")
        self.at = start + count
        return self.data[start:self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at:end].decode()
        self.at = end + 1
        return text

    # -- the memo

    def put(self, number: int) -> None:
        if number > len(self.data):
            raise PickleError(f"has a pickle that numbers a value {number}, but only {len(self.data)} bytes; the file is "
                              "damaged: get it again")
        self.memo[number] = self.stack[-1]

    # -- containers

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marked.pop()
        return items

    def alike(self, target: Any) -> dict[int, int]:
        """The counts of `check_keys` for a container, which may be filled by many instructions."""
        return self._alike.setdefault(id(target), (target, {}))[1]

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict) or len(items) % 2:
            raise PickleError("has a pickle that puts items into what is no dict; the file is damaged: get it again")
        check_keys(items[::2], self.alike(target))
        target.update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise PickleError("has a pickle that appends to what is no list; the file is damaged: get it again")
        target.extend(items)

    def add_items(self) -> None:
        items = self.since_mark()
        if type(self.stack[-1]) is not set:
            raise PickleError("has a pickle that adds to what is no set; the file is damaged: get it again")
        check_keys(items, self.alike(self.stack[-1]))
        self.stack[-1].update(items)

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("a tuple of what is not there")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def make_set(self, items: list[Any]) -> Any:
        check_keys(items, {})
        return frozenset(items)

    def make_dict(self, items: list[Any]) -> Any:
        self.stack.append({})
        self.set_items(items)
        return self.stack.pop()

    # -- names, calls, attributes

    def name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise PickleError("has a pickle with a name that is no text; the file is damaged: get it again")
        self.stack.append(self.named(module, name))

    def call(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self.called(self.stack[-1], args)

    def build(self) -> None:
        """The attributes of a dict that a module's state_dict has (its `_metadata`)."""
        state = self.stack.pop()
        if type(self.stack[-1]) is not OrderedDict or type(state) is not dict or any(type(key) is not str for key in state):
            raise PickleError(f"sets attributes of a {type(self.stack[-1]).__name__}, which is not loaded; save a state_dict")
        vars(self.stack[-1]).update(state)

    def long(self, size: int) -> int:
        if size > _LONG:
            raise PickleError(f"has a whole number of {size} bytes in its pickle; the most are {_LONG}: save large numbers as "
                              "tensors or bytes")
        return int.from_bytes(self.take(size), "little", signed=True)


_Step = Callable[[Reader], Any]


def _value(make: _Step) -> _Step:
    """A step that adds a value."""
    return lambda r: r.stack.append(make(r))


def _text(size: int) -> _Step:
    return _value(lambda r: r.take(r.number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> _Step:
    return _value(lambda r: r.take(r.number(size)))


def _mark(r: Reader) -> None:
    r.marked.append(r.stack)
    r.stack = []


_STEPS: dict[int, _Step] = {ord(code): step for code, step in {
    "\x80": lambda r: _protocol(r.number(1)), "\x95": lambda r: r.take(8), "(": _mark,
    "N": _value(lambda r: None), "\x88": _value(lambda r: True), "\x89": _value(lambda r: False),
    "K": _value(lambda r: r.number(1)), "M": _value(lambda r: r.number(2)),
    "J": _value(lambda r: int.from_bytes(r.take(4), "little", signed=True)), "G": _value(lambda r: struct.unpack(">d", r.take(8))[0]),
    "\x8a": _value(lambda r: r.long(r.number(1))), "\x8b": _value(lambda r: r.long(r.number(4))),
    "\x8c": _text(1), "X": _text(4), "\x8d": _text(8), "C": _bytes(1), "B": _bytes(4), "\x8e": _bytes(8),
    "\x96": _value(lambda r: bytearray(r.take(r.number(8)))),
    ")": _value(lambda r: ()), "]": _value(lambda r: []), "}": _value(lambda r: {}), "\x8f": _value(lambda r: set()),
    "\x85": lambda r: r.tuple_of(1), "\x86": lambda r: r.tuple_of(2), "\x87": lambda r: r.tuple_of(3),
    "t": lambda r: _add(r, tuple(r.since_mark())), "l": lambda r: _add(r, r.since_mark()),
    "d": lambda r: _add(r, r.make_dict(r.since_mark())), "\x91": lambda r: _add(r, r.make_set(r.since_mark())),
    "a": lambda r: r.extend([r.stack.pop()]), "e": lambda r: r.extend(r.since_mark()), "\x90": Reader.add_items,
    "s": lambda r: r.set_items([r.stack.pop(-2), r.stack.pop()]), "u": lambda r: r.set_items(r.since_mark()),
    "q": lambda r: r.put(r.number(1)), "r": lambda r: r.put(r.number(4)), "\x94": lambda r: r.put(len(r.memo)),
    "h": _value(lambda r: r.memo[r.number(1)]), "j": _value(lambda r: r.memo[r.number(4)]),
    "0": lambda r: r.stack.pop(), "1": lambda r: r.since_mark(), "2": lambda r: r.stack.append(r.stack[-1]),
    "c": _value(lambda r: r.named(r.line(), r.line())), "\x93": Reader.name, "R": Reader.call, "b": Reader.build,
    "Q": _value(lambda r: r.stored(r.stack.pop())),
}.items()}


def _add(r: Reader, value: Any) -> None:
    r.stack.append(value)


def _protocol(number: int) -> None:
    if not 2 <= number <= 5:
        raise PickleError(f"has a pickle of protocol {number}; torch.save writes 2 to 5")


def check_keys(keys: Sequence[Any], alike: dict[int, int]) -> None:
    """Raises PickleError if one of these may not be a key of a dict, or an element of a set. alike: how many it has of each hash."""
    for key in keys:
        kind = type(key)
        if kind is str:
            continue
        if kind is tuple:
            if len(key) > 64 or any(type(part) not in _ATOMS for part in key):
                raise PickleError("has a dict or set with keys that are nested tuples, or tuples of more than 64; use strings")
        elif kind not in _ATOMS or (kind is int and key.bit_length() > 64):
            raise PickleError(f"has a dict or set with a key of type {kind.__name__}; keys are strings, numbers of 64 bits and tuples "
                              "of them")
    check_hashes(keys, alike)


def check_hashes(keys: Iterable[Any], alike: dict[int, int]) -> None:
    """Raises PickleError if too many have one hash. (Strings' hashes cannot be chosen, those of tuples and of other numbers can.)"""
    for key in keys:
        if type(key) is not str:
            code = hash(key)
            alike[code] = alike.get(code, 0) + 1
            if alike[code] > _ALIKE:
                raise PickleError(f"has a dict or set with more than {_ALIKE} keys of one hash, which take the square of their number to "
                                  "tell apart; use strings")


def check_size(value: Any, size: int) -> None:
    """Raises PickleError for what is nested too deep, holds itself, or is far larger than the `size` bytes that it was read from.

    A container that occurs twice is read once, and looked at twice by whatever goes through the result: of lists of two lists, each
    twice the one before, forty make a million million.
    """
    most = 1_000_000 + _AGAIN * size
    known: dict[int, tuple[int, int]] = {}                   # by identity: levels, and elements
    open_: set[int] = set()
    todo: list[tuple[Any, bool]] = [(value, False)]
    while todo:
        here, seen = todo.pop()
        if id(here) in known or (children := _children(here)) is None:
            continue
        if not seen:
            if id(here) in open_:
                raise PickleError("holds a container that holds itself; save it without the cycle")
            open_.add(id(here))
            if len(open_) > _DEPTH:
                raise PickleError(_DEEP)
            todo.append((here, True))
            todo += [(child, False) for child in children if type(child) not in _ATOMS]
            continue
        open_.discard(id(here))
        found = [known[id(child)] for child in children if id(child) in known and type(child) not in _ATOMS]
        levels = 1 + max([depth for depth, _ in found], default=0)
        total = len(children) + sum([count for _, count in found])
        known[id(here)] = levels, total
        if levels > _DEPTH:
            raise PickleError(_DEEP)
        if total > most:
            raise PickleError(f"holds the same containers again and again, {total} elements of {size} bytes; the most are {most}: "
                              "save each once")


def _children(value: Any) -> list[Any] | None:
    kind = type(value)
    if kind in (dict, OrderedDict):
        return [*value.values(), *(vars(value).values() if kind is OrderedDict else ())]
    return list(value) if kind in (list, tuple) else None
