"""What is watched as a whole, since no code names its parts: buffers, arrays, random generators, iterators. Start at `way_to_sum_up`.

`same` and `alike` compare what was read then with what is there now.
"""

from __future__ import annotations

import array
import ctypes
import gc
import operator
import queue
import random
import sys
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import numpy as np

from tracegrad.support import dtypes
from tracegrad.support.modes import every_module, float32_matmul, state
from tracegrad.tensors.tensor import Tensor

_FIRST = frozenset(Tensor.__dict__) - {"__eq__", "__ne__"}           # beside the operators: Python's own, which nobody replaces
_MADE_OF = slice, range, tuple
SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
WALKED = 1000           # objects that are looked at to find out how far an iterator is
_TOLD = bool, int, str, bytes, type(None)
_BUFFERS = (bytearray, array.array, memoryview, ctypes.c_int.__mro__[-2])           # the last one: all of ctypes'


class Methods:
    """The methods of Tensor that code of these names may call, and all operators: somebody may replace them, or add others.

    count, read, before: how many members there are, what reads those, and what they were.
    """

    __slots__ = ("before", "count", "names", "read")

    def __init__(self, names: Container[str]) -> None:
        members = Tensor.__dict__
        self.names = [name for name in members if name in names or (name.startswith("__") and name not in _FIRST)]
        self.count, self.read = len(members), operator.itemgetter(*self.names)
        self.before = self.read(members)

    def change(self) -> tuple[Any, ...]:
        """What is no longer as it was, as `guards.in_words` takes it. (A hot path.)"""
        members = Tensor.__dict__
        if len(members) != self.count:
            return "Tensor has other methods now",
        if self.read(members) != self.before:
            return "Tensor.{} is another method now", next(n for n, b in zip(self.names, self.before, strict=True) if members[n] is not b)
        return ()


def way_to_sum_up(value: Any) -> Callable[[Any], Any] | None:
    """A function that sums up what a value holds, to compare; None of values that are looked into."""
    if isinstance(value, _BUFFERS):
        return bytes
    if isinstance(value, np.ndarray):
        return _array_contents
    if isinstance(value, random.Random):
        return random.Random.getstate
    if _is_generator(value):
        return _generator_state
    if isinstance(value, ContextVar):
        return _context_value
    if isinstance(value, threading.Event):
        return threading.Event.is_set
    if isinstance(value, queue.Queue):
        return _queued
    return None


def objects_in(value: Any) -> Sequence[Any]:
    """The Python objects that such a value holds."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.ravel().tolist()
    return (value.get(None),) if isinstance(value, ContextVar) else ()


def members(held: set[Any]) -> frozenset[Any]:
    """Of a set: frozenset's like, but by its own name for those whose == does not tell all (see `alike`)."""
    return frozenset(held)


def _queued(q: queue.Queue[Any]) -> list[Any]:
    return list(q.queue)


def _context_value(variable: ContextVar[Any]) -> Any:
    return variable.get(None)


def _array_contents(a: np.ndarray[Any, Any]) -> Any:
    return a.shape, a.dtype, a.tobytes()


def _is_generator(value: Any) -> bool:
    """Whether numpy draws from it. (numpy.random is loaded when it is named: 7 ms of a first call, and nobody has a generator before.)"""
    return "numpy.random" in sys.modules and isinstance(value, (np.random.Generator, np.random.RandomState))


def _generator_state(g: Any) -> str:
    with np.printoptions(threshold=sys.maxsize):
        return repr(g.bit_generator.state if isinstance(g, np.random.Generator) else g.get_state())


def is_bare_iterator(value: Any) -> bool:
    """Whether this is an iterator that no class of a user's made: it has no attributes, and does not tell how far it is."""
    return isinstance(value, Iterator) and not hasattr(value, "__dict__") and not hasattr(type(value), "__slots__")


def progress(iterator: Any) -> list[Any]:
    """How far such an iterator is: what it tells, the numbers that it holds, and how far those are that it reads from."""
    found: list[Any] = []
    pending = [iterator]
    met: dict[int, Any] = {}                                # holds what was met: an id is then of one object only
    while pending and len(met) < WALKED:
        x = pending.pop()
        if isinstance(x, SCALARS):
            found.append(x)
        elif id(x) not in met:
            met[id(x)] = x
            if is_bare_iterator(x):
                if not getattr(x, "gi_running", False):     # nobody advances one that runs
                    frame = getattr(x, "gi_frame", None)
                    found += [operator.length_hint(x, -1), frame and frame.f_lasti, repr(x)]
                    pending += [*gc.get_referents(x), *_copied(x)]
            elif type(x) is tuple:
                pending += x[:WALKED]
            elif isinstance(x, types.CellType):
                pending += gc.get_referents(x)
            elif isinstance(x, (types.BuiltinMethodType, types.MethodWrapperType)):
                pending.append(x.__self__)
            elif isinstance(x, (list, dict, set, deque)):
                found.append(len(x))
            elif not isinstance(x, (type, types.FunctionType, types.ModuleType, Tensor)):
                found += [v for v in getattr(x, "__dict__", {}).values() if isinstance(v, SCALARS)]
    return found


def _copied(iterator: Any) -> Sequence[Any]:
    """What a copy of one of itertools' would be made of, which tells its place. (Python 3.14 copies none any more.)"""
    if type(iterator).__module__ != "itertools":
        return ()
    with suppress(TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(x for part in iterator.__reduce__()[1:] for x in (part if type(part) is tuple else (part,)))
    return ()


def same(a: Any, b: Any) -> bool:
    """Equal as compile-time values: scalars by type and value (NaN is itself, -0.0 is not 0.0), slices, ranges and tuples by what they are

    made of, everything else by identity."""
    if type(a) in _MADE_OF and type(a) is type(b):
        mine, theirs = (a, b) if type(a) is tuple else ((a.start, a.stop, a.step), (b.start, b.stop, b.step))
        return len(mine) == len(theirs) and all(x is y or same(x, y) for x, y in zip(mine, theirs, strict=True))
    if not isinstance(a, SCALARS) or type(a) is not type(b) or getattr(a, "__dict__", None) or getattr(b, "__dict__", None):
        return False
    if isinstance(a, (float, np.floating)) and isinstance(b, (float, np.floating)) and a == b == 0.0:
        return bool(np.signbit(a) == np.signbit(b))
    if isinstance(a, (complex, np.complexfloating)) and isinstance(b, (complex, np.complexfloating)):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return bool(a == b or (a != a and b != b))


def alike(a: Any, b: Any) -> bool:
    """Whether code that looks at either of two values finds the same. Their == does not tell: 1 equals True, and that of an object of the
    user's may leave out an attribute. False where that cannot be known."""
    pairs = [(a, b)]
    compared: dict[tuple[int, int], Any] = {}               # holds them, so that ids stay valid
    while pairs:
        a, b = pairs.pop()
        if a is b or (id(a), id(b)) in compared or same(a, b):
            continue
        mine, theirs = (_parts(a), _parts(b)) if type(a) is type(b) else ((), None)
        if theirs is None or len(mine or ()) != len(theirs):
            return False
        compared[id(a), id(b)] = a, b, mine, theirs
        pairs += zip(mine or (), theirs, strict=True)
    return True


def objects_among(leaves: Sequence[Any]) -> list[tuple[int, Any]]:
    """The static arguments of a call, with their places, of which type and == do not tell everything."""
    return [(i, x) for i, x in enumerate(leaves) if type(x) not in _TOLD and not isinstance(x, (Tensor, float, complex))]


def other_object(objects: Sequence[tuple[int, Any]], leaves: Sequence[Any]) -> tuple[Any, ...]:
    """The first that is another one in this call, as `guards.in_words` takes it; empty if they are the same or alike."""
    for i, x in objects:
        if leaves[i] is not x and not alike(leaves[i], x):
            return "argument {} was {} and is {}", str(i), x, leaves[i]
    return ()


def _parts(value: Any) -> list[Any] | None:
    """What a value is made of; None of what is only equal to itself."""
    if isinstance(value, (Tensor, type, types.FunctionType, types.ModuleType)):
        return None
    if isinstance(value, SCALARS) and not getattr(value, "__dict__", None):
        return None
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if type(value) in (tuple, list, deque):
        return list(value)
    if type(value) is dict:
        return [*value, *value.values()]
    if type(value) in (set, frozenset):
        return sorted(value, key=lambda x: (hash(x), type(x).__qualname__))
    try:                                                     # as for a copy of it: its class, its state, its items
        made = [list(part) if isinstance(part, Iterator) else part for part in value.__reduce_ex__(4)]
    except Exception:                                        # (it is the user's code)
        return None
    return [made, getattr(value, "__dict__", None)]


def mode() -> tuple[Any, ...]:
    """What a program depends on beside its arguments and what the function reaches: the recording of derivatives, the default dtype, ..."""
    return state.grad, dtypes.get_default_dtype(), float32_matmul[0], state.autocast, *(k for of in every_module.values() for k in of)


def difference(before: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    """What differs between two modes, in words; "" if nothing does."""
    if before == now:
        return ""
    grad, dtype, precision, autocast, *hooks = now
    if hooks != [*before[4:]]:
        return "hooks of all modules came or went"
    if autocast != before[3]:
        return f"autocast is {f'on, to {autocast.dtype}' if autocast else 'off'} now"
    if precision != before[2]:
        return f"the precision of float32 products is {precision!r} now"
    return f"the default dtype is {dtype} now" if dtype is not before[1] else f"grad mode is {'on' if grad else 'off'} now"
