"""What a traced function reaches besides its arguments, and whether that is still the same. Start at `GuardSet`.

A trace bakes in every Python value that the function read from globals, closures and attributes, and takes the Tensors it
found there as inputs by reference. `GuardSet` walks from the function over everything its code can name and notes where each
scalar, container and Tensor was found; `change()` compares, so a changed value makes a new trace instead of a stale result.
Attributes are followed where the code (or that of a function it calls) mentions their name. What cannot be seen this way: the clock, files,
and whatever else lies outside of Python's objects.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, MappingView
from contextlib import suppress
from typing import Any

import numpy as np
import optree

from tracegrad.errors import TraceError, TracegradError
from tracegrad.support.cache import is_own
from tracegrad.tensors.tensor import RunTimeNumber, Tensor
from tracegrad.tracing.content_guards import SCALARS, Methods, alike, is_bare_iterator, members, objects_in, progress, same, way_to_sum_up
from tracegrad.tracing.reachable_names import (
    asks_for_any_attribute,
    codes_of,
    function_in,
    imported_names,
    is_foreign,
    is_foreign_function,
    loaded_names,
    names_of,
)

_LIMIT = 100_000
WRITTEN = 64                                        # places that are compared by lines of their own (20 us each to read); more by a loop
_OF_FUNCTIONS = "cell_contents", "__code__", "__defaults__"          # attributes that are there always: no default is needed


_FLAGS = bool, str, type(None)
_EXTENDED = list, tuple, deque, dict, set, frozenset, functools.partial, weakref.ref, bytearray, np.ndarray   # whose items are watched
ORDERED = "tracegrad"                               # where optree goes through dicts in their own order
_ordering = optree.dict_insertion_ordered(True, namespace=ORDERED)
_ordering.__enter__()
_register: Any = optree.register_pytree_node        # its types ask for collections, which it does not
# A slice has no hash before Python 3.12, and its ends may be tensors: it is a container of them.
_register(slice, lambda given: ((given.start, given.stop, given.step), None, ("start", "stop", "step")), lambda _, ends: slice(*ends),
          namespace=ORDERED)
_EQUAL_IS_NOT_ALIKE = tuple, members                # what sums up keys and members that are no words
_MISSING = object()
Change = tuple[Any, ...]


class Slot:
    """A place that holds a value: an item of a container, or an attribute (of what has no dictionary: a variable of a closure)."""

    __slots__ = ("before", "key", "owner", "variable")

    def __init__(self, owner: Any, key: Any, before: Any, variable: str | None = None) -> None:
        """before: what it held, `_MISSING` if it was not there. variable: what an attribute is called, None for an item."""
        self.owner, self.key, self.before, self.variable = owner, key, before, variable

    @property
    def name(self) -> str:
        return self.variable or (self.key if isinstance(self.key, str) else f"item {self.key!r}")

    @property
    def held_tensors(self) -> bool:
        return any(isinstance(x, Tensor) for x in optree.tree_leaves(self.before, none_is_leaf=True, namespace=ORDERED))

    def get(self) -> Any:
        if self.variable is not None:
            return getattr(self.owner, self.key, _MISSING)
        with suppress(KeyError, IndexError):
            return self.owner[self.key]
        return _MISSING

    def set(self, value: Any) -> None:
        if self.variable is not None:
            setattr(self.owner, self.key, value)
        else:
            self.owner[self.key] = value

    def restore(self) -> None:
        """Put back what it held."""
        if self.before is not _MISSING:
            self.set(self.before)
        elif self.variable is not None:
            delattr(self.owner, self.key)
        else:
            del self.owner[self.key]


class GuardSet:
    """Everything that `fn` (and `objects`, its static arguments) can name, as it is now. Raises TraceError where that is too much."""

    def __init__(self, fn: Callable[..., Any], objects: Iterable[Any] = (), without: Iterable[Slot] = ()) -> None:
        """without: places not to look into."""
        self._without = {(id(slot.owner), slot.key) for slot in without}
        self._classes: dict[int, type] = {}                  # by id of what holds their attributes
        self._attribute_dicts: set[int] = set()              # ids of dictionaries that hold the attributes of an object
        self.tensors: Counter[int] = Counter()               # by id, in how many places they are
        self._items: list[tuple[Any, Any, Any]] = []         # (something with [], key, what was there)
        self._attributes_of: list[tuple[Any, str, Any]] = [] # (object, attribute, what it was), where there is no dictionary to look into
        self._lengths: list[tuple[Any, int]] = []            # of lists and of dictionaries that hold attributes
        self._contents: list[tuple[Any, Callable[[Any], Any], Any]] = []       # (object, how to sum up what it holds, that sum)
        self._iterators: list[tuple[Any, Any]] = []  # with how far each was
        self._names: set[str] = {"__call__", "forward", "backward"}
        self._dynamic = False                                # some code asks for attributes whose names are not in its text
        self._functions: list[types.FunctionType] = []
        self._instances: list[Any] = []
        self._seen: set[int] = set()
        self._noted: set[tuple[int, Any]] = set()
        self._cell_names: dict[int, str] = {}
        self._absent: list[tuple[dict[str, Any], str]] = []  # globals that would hide a builtin
        self._alive: list[Any] = []                          # ids stay valid as long as we hold the objects
        self._found: deque[Any] = deque([fn, *objects])      # to look into
        self._walk()
        functions, instances, dynamic = 0, 0, False          # how many were looked into
        known: set[str] = set()                              # the names that those instances were asked for
        while True:                                          # attribute names may come from functions found later
            names = set(self._names)
            before = (len(self._functions), len(self._instances))
            if before == (functions, instances) and names == known and dynamic == self._dynamic:
                break
            for f in self._functions[functions:before[0]]:
                self._globals(f)
            again = dynamic != self._dynamic
            dynamic = self._dynamic
            for k, o in enumerate(self._instances[:before[1]]):
                self._attributes(o, names - known if k < instances and not again else names)
            known, (functions, instances) = names, before
            self._walk()
        self._methods = Methods(self._names)

    def assigned(self) -> list[tuple[Slot, Any]]:
        """The places that hold something else now than before, and what they hold; what they held is put back.

        That is tensors, new containers of tensors and plain values, and flags: a function that switches one (`model.train()`) leaves it
        as it is at the second call, or somebody switches it back. A counter is none: each call would find another number.
        """
        found: list[tuple[Slot, Any]] = []

        def compare(slot: Slot) -> None:
            now = slot.get()
            if now is slot.before or now is _MISSING:
                return
            if isinstance(now, _FLAGS) and isinstance(slot.before, _FLAGS):
                found.append((slot, now))
                return
            leaves = optree.tree_leaves(now, none_is_leaf=True, namespace=ORDERED)
            made = [type(x) in (Tensor, RunTimeNumber) for x in leaves]
            plain = any(made) and all(m or isinstance(x, SCALARS) for m, x in zip(made, leaves, strict=True))
            if plain and not any(c in self for c in containers(now) if not isinstance(c, tuple)):
                found.append((slot, now))

        for container, key, value in self._items:
            if id(container) in self._classes:
                compare(Slot(self._classes[id(container)], key, value, key))
            elif isinstance(container, (dict, list)):
                compare(Slot(container, key, value))
        for o, name, value in self._attributes_of:
            compare(Slot(o, name, value, self._cell_names.get(id(o), name)))
        for o, length in self._lengths:
            if isinstance(o, (dict, types.MappingProxyType)) and len(o) > length:                      # what was there stands first
                for key in list(o)[length:]:
                    compare(Slot(self._classes[id(o)], key, _MISSING, key) if id(o) in self._classes else Slot(o, key, _MISSING))
        for o, _, keys in self._contents:
            if isinstance(o, dict) and all(a is b for a, b in zip(o, keys, strict=False)):
                for key in list(o)[len(keys):]:
                    compare(Slot(o, key, _MISSING))
        for slot, _ in found:
            slot.restore()
        return found

    def reads(self, slot: Slot) -> bool:
        """Whether some code may read what is in a place, or look what kind of thing that is."""
        if self.asks or (slot.variable is None and id(slot.owner) not in self._attribute_dicts):
            return True
        return any(slot.name in loaded_names(c) for f in self._functions for c in codes_of(f.__code__))
    @property
    def asks(self) -> bool:
        """Whether some code may ask for an attribute that is not there."""
        return self._dynamic or not self._names.isdisjoint(("getattr", "hasattr", "AttributeError"))

    def shapes(self, known: Container[int]) -> list[tuple[Tensor, Any]]:
        """The tensors that were found (but views, and those of these ids), with their shapes and dtypes: Python may have looked at them."""
        return [(t, t._n.aval) for t in self._alive if isinstance(t, Tensor) and t._base is None and id(t) not in known]

    def __contains__(self, value: Any) -> bool:
        """Whether the very object `value` was found."""
        return id(value) in self._seen

    def renew(self, owner: dict[str, Any], name: str, tensor: Tensor) -> None:
        """Another tensor has come to a place in a dictionary, and was there from the beginning."""
        for k, (container, key, before) in enumerate(self._items):
            if container is owner and key == name:
                self._items[k] = (owner, name, tensor)
                self._alive.append(tensor)
                self.tensors[id(tensor)] += 1
                self.tensors[id(before)] -= 1

    def change(self) -> Change:
        """The first thing that is no longer what it was, as `in_words` takes it; empty if everything is. (A hot path: most calls ask.)"""
        for container, key, value in self._items:
            try:
                now = container[key]
            except (KeyError, IndexError):
                now = _MISSING
            if now is not value and not same(now, value):
                return "{} was {} and is {}", _called(key), value, now
        for o, name, value in self._attributes_of:
            now = getattr(o, name, _MISSING)
            if now is not value and not same(now, value):
                return "{} was {} and is {}", self._cell_names.get(id(o), name), value, now
        for names, name in self._absent:
            if name in names:
                return "{} was {} and is {}", name, _MISSING, names[name]
        for o, length in self._lengths:
            if len(o) != length:
                return "a {} of {} items has {} now", type(o).__name__, length, len(o)
        for o, summed, before in self._contents:
            with suppress(TracegradError):                   # other tensors as keys: to compare them is to compute
                now = summed(o)
                if now == before and (summed is list or summed not in _EQUAL_IS_NOT_ALIKE
                                      or all(map(operator.is_, now, before)) or alike(now, before)):
                    continue
            return "a {} holds something else now", type(o).__name__
        return self._methods.change()

    def advanced(self) -> Change:
        """An iterator that is further than it was. (A body that does not advance one does not see how far it is: no replay asks.)"""
        return next((("a {} holds something else now", type(o).__name__) for o, before in self._iterators if progress(o) != before), ())

    def lines(self, names: dict[str, Any]) -> list[str]:
        """Lines of a function that returns None where there is a `change`; notes what they name."""
        if self._contents or len(self._items) + len(self._attributes_of) + len(self._lengths) + len(self._absent) > WRITTEN:
            names["change"] = self.change
            return ["if change():", " return None"]
        own = self._methods
        names |= {"same": same, "missing": _MISSING, "members": Tensor.__dict__, "read": own.read, "methods": own.before}
        known: dict[int, str] = {}

        def called(thing: Any) -> str:
            name = known.setdefault(id(thing), f"g{len(known)}")
            names[name] = thing
            return name

        reads = [(f"{called(container)}.get({called(key)}, missing)" if value is _MISSING else f"{called(container)}[{called(key)}]", value)
                 for container, key, value in self._items]
        reads += [(f"{called(o)}.{name}" if name in _OF_FUNCTIONS else f"getattr({called(o)}, {called(name)}, missing)", value)
                  for o, name, value in self._attributes_of]
        lines = ["try:"]
        for read, value in reads:
            lines += [f" now = {read}", f" if now is not {called(value)} and not same(now, {called(value)}):", "  return None"]
        for o, length in self._lengths:
            lines += [f" if len({called(o)}) != {length}:", "  return None"]
        for container, name in self._absent:
            lines += [f" if {called(name)} in {called(container)}:", "  return None"]
        lines += [f" if len(members) != {own.count} or read(members) != methods:", "  return None"]
        return [*lines, " pass", "except (KeyError, IndexError, AttributeError):", " return None"]

    def watched(self) -> list[str]:
        """What `change` compares, of names and what they held: `scale = 2`. Of functions and modules only that they are the same ones."""
        looked = [(key, value) for _, key, value in self._items]
        looked += [(self._cell_names.get(id(o), name), value) for o, name, value in self._attributes_of]
        return list(dict.fromkeys(f"{_called(key)} = {_shown(value)}" for key, value in looked
                                  if isinstance(value, (*SCALARS, Tensor))))

    def _note(self, container: Any, key: Any, value: Any, owner: Any = None) -> None:
        if owner is not None:
            self._attribute_dicts.add(id(container))
        if self._new(container if owner is None else owner, key) and {(id(container), key), (id(owner), key)}.isdisjoint(self._without):
            self._items.append((container, key, value))
            self._found.append(value)

    def _note_attribute(self, o: Any, name: str) -> None:
        if self._new(o, name) and (id(o), name) not in self._without:
            value = getattr(o, name, _MISSING)
            self._attributes_of.append((o, name, value))
            self._found.append(value)

    def _note_length(self, o: Any, owner: Any = None) -> None:
        if self._new(o if owner is None else owner, len):
            self._lengths.append((o, len(o)))

    def _sum(self, o: Any, summed: Callable[[Any], Any]) -> None:
        if self._new(o, summed):
            self._contents.append((o, summed, summed(o)))

    def _new(self, o: Any, what: Any) -> bool:
        """Whether `what` of `o` was not noted before."""
        mark = (id(o), what)
        if mark in self._noted:
            return False
        self._noted.add(mark)
        return True

    def _walk(self) -> None:
        """Look into what was found, until nothing new turns up (no recursion: structures may be deep)."""
        while self._found:
            value = self._found.popleft()
            if isinstance(value, Tensor):
                self.tensors[id(value)] += 1
            if (not isinstance(value, SCALARS) or hasattr(value, "__dict__")) and id(value) not in self._seen:
                self._seen.add(id(value))
                self._alive.append(value)
                if len(self._seen) > _LIMIT:
                    raise TraceError(
                        f"trace: the function reaches more than {_LIMIT} Python objects through closures, globals and attributes, "
                        "too many to watch for changes; keep large tables in a tensor, or pass what it needs as arguments"
                    )
                self._look_into(value)

    def _look_into(self, value: Any) -> None:
        if is_own(value):                                    # a name of the user's is that of a table in a module of ours
            return
        if isinstance(value, Tensor):
            if type(value) is not Tensor:
                self._instances.append(value)                # a Parameter, which has attributes of the user's
            if value._base is not None:
                self._found.append(value._base)
                self.tensors[id(value._base)] -= 1           # to come: a view is no place that it is in
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._found += (value.__func__, value.__self__)
            self._names.add(getattr(value, "__name__", ""))
        elif isinstance(value, functools.partial):
            self._found += (value.func, value.args, value.keywords)
        elif isinstance(value, operator.attrgetter):
            self._names.update(name for path in value.__reduce__()[1] for name in path.split("."))
        elif isinstance(value, types.BuiltinMethodType):
            if not isinstance(value.__self__, types.ModuleType):
                self._found.append(value.__self__)
        elif isinstance(value, (list, tuple, deque)):
            if not isinstance(value, tuple):
                self._note_length(value)
            for i, item in enumerate(value):
                self._note(value, i, item)
        elif is_plain_dict(value) or isinstance(value, types.MappingProxyType):
            self._sum(value, list if all(type(key) is str for key in value) else tuple)         # its keys, in their order
            for key, item in list(value.items()):
                self._note(value, key, item)
        elif isinstance(value, (set, frozenset)):
            if not isinstance(value, frozenset):
                self._sum(value, frozenset if all(type(member) is str for member in value) else members)
            self._found += value
        elif isinstance(value, weakref.ref):
            self._found.append(value())
        elif isinstance(value, MappingView):
            self._found.append(getattr(value, "mapping", None))
        elif is_bare_iterator(value):
            self._iterators.append((value, progress(value)))
        elif (summed := way_to_sum_up(value)) is not None:
            self._sum(value, summed)
            self._found += objects_in(value)
        elif hasattr(type(value), "__wrapped__") or "__wrapped__" in getattr(value, "__dict__", ()):
            self._found.append(value.__wrapped__)
            self._instances.append(value)
        elif hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            self._instances.append(value)
        if isinstance(value, _EXTENDED) and type(value) not in _EXTENDED:
            self._instances.append(value)                    # of a class of the user's: it has attributes and methods, too

    def _function(self, f: types.FunctionType) -> None:
        self._found += (getattr(f, "__wrapped__", None), getattr(f, "registry", None))       # registry: functools.singledispatch's
        if is_foreign_function(f):
            return
        self._functions.append(f)
        self._instances.append(f)                            # it may have attributes
        self._names.update(names_of(f.__code__))
        self._dynamic |= any(map(asks_for_any_attribute, codes_of(f.__code__)))
        for variable, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=False):
            self._note_attribute(cell, "cell_contents")
            self._cell_names[id(cell)] = variable
        for part in ("__code__", "__defaults__"):
            self._note_attribute(f, part)
        self._found.append(f.__kwdefaults__)

    def _globals(self, f: types.FunctionType) -> None:
        for name in names_of(f.__code__):
            if name in f.__globals__:
                self._note(f.__globals__, name, f.__globals__[name])
            elif hasattr(builtins, name):                    # somebody may put a global before it
                self._absent.append((f.__globals__, name))
        for name in imported_names(f):                       # one that the body itself imports first is watched from the second call on
            self._note(sys.modules, name, sys.modules.get(name, _MISSING))

    def _attributes(self, o: Any, names: set[str]) -> None:
        attributes = getattr(o, "__dict__", None)
        if isinstance(o, Tensor):
            if attributes or self.asks or not is_foreign(type(o)):
                self._note_length(attributes)
                for name, value in list((attributes or {}).items()):
                    self._note(attributes, name, value, o)
                self._class(type(o), names)
        elif isinstance(o, types.FunctionType):
            if attributes or (self.asks and o.__name__ in o.__code__.co_names + o.__code__.co_freevars):      # it may give itself one
                self._note_length(attributes)
                for name in sorted(names & set(attributes or ())):
                    self._note(attributes, name, (attributes or {})[name], o)
        elif isinstance(o, type):
            self._class(o, names)
            if not is_foreign(type(o)):                      # a metaclass
                self._class(type(o), names)
        elif isinstance(o, types.ModuleType):
            if o is np and "random" in names:
                self._found.append(np.random)                # numpy loads it when it is named, which may be in the body only
            for name in sorted(names & set(attributes or ())):
                self._note(attributes, name, (attributes or {})[name])
        else:
            kind = type(o)
            users = not is_foreign(kind)
            # All attributes of: nn.Module, optimizers; containers whose code we do not read; objects that are asked for computed names.
            everything = getattr(kind, "_trace_all_attributes", False) or (
                (self._dynamic or hasattr(kind, "__getattr__")) if users
                else hasattr(kind, "__getitem__") or (self._dynamic and kind.__name__ in ("SimpleNamespace", "Namespace")))
            if isinstance(attributes, dict):
                self._note_attribute(o, "__class__")         # it may be given another one
                if users or everything:
                    self._note_length(attributes)
                for name in sorted(attributes) if everything else sorted(names & attributes.keys()):
                    if name not in getattr(kind, "_trace_by_reference", ()) or isinstance(attributes[name], Tensor):
                        self._note(attributes, name, attributes[name], o)
            reads = getattr(kind, "_trace_reads", {})        # methods of ours, and a function that gives what they read
            for name in sorted(names & reads.keys()):
                self._sum(o, reads[name])
            self._class(kind, names)
            for base in kind.__mro__:
                slots = base.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else tuple(slots):
                    if (everything or name in names) and name not in ("__dict__", "__weakref__") and users:
                        self._note_attribute(o, name)

    def _class(self, o: type, names: set[str]) -> None:
        """What the code names of a class, and the methods that Python calls by itself (operators, iteration, `with`)."""
        for base in o.__mro__:
            members = base.__dict__
            if is_foreign(base):
                for name in sorted(names & members.keys()):
                    self._found.append(function_in(members[name]))
                if getattr(base, "_trace_all_attributes", False):       # of a layer what its call runs, which somebody may replace
                    for name in sorted({"__call__", "forward"} & members.keys()):
                        self._note(members, name, members[name], base)
                        self._called_by(function_in(members[name]), o)
                continue
            self._classes[id(members)] = base
            self._note_length(members, base)
            for name, member in list(members.items()):
                if name in names or (name.startswith("__") and isinstance(function_in(member), types.FunctionType)):
                    self._note(members, name, member, base)
                    self._found.append(function_in(member))


    def _called_by(self, f: Any, kind: type) -> None:
        """Look into a layer's method f, and watch what it calls of nn.functional, which somebody may replace."""
        self._found.append(f)
        if isinstance(functional := getattr(f, "__globals__", {}).get("F"), types.ModuleType):
            for name in sorted({*f.__code__.co_names, getattr(kind, "function", "")} & vars(functional).keys()):
                self._note(vars(functional), name, vars(functional)[name])


def is_plain_dict(value: Any) -> bool:
    """Whether it is a dict, but none whose items are its attributes (an optimizer's parameter group): that is watched as an object is."""
    return isinstance(value, dict) and not hasattr(type(value), "_trace_all_attributes")


def containers(value: Any) -> Iterator[Any]:
    """The tuples, lists, dicts and deques that a value is made of."""
    if isinstance(value, (tuple, list, deque)) or is_plain_dict(value):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


def in_words(change: Change) -> str:
    """What is no longer what it was: a change is a sentence, a name in it, and values, which are shown only here. Empty if it is."""
    text, *named = change or ("",)
    return text.format(*named[:1], *map(_shown, named[1:]))  # type: ignore[no-any-return]


def _called(key: Any) -> str:
    return key if isinstance(key, str) else f"item {key}"


def _shown(value: Any) -> str:
    """A value in a few words."""
    if value is _MISSING:
        return "not there"
    if isinstance(value, Tensor):
        return f"a {value.dtype}{list(value.shape)} tensor" + (" (another object)" if value._trace is None else "")
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"
