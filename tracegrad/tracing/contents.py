"""What is watched as a whole, since no code names its parts: buffers, arrays, random generators, iterators. Start at `way_to_sum_up`."""

from __future__ import annotations

import array
import ctypes
import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

_BUFFERS = (bytearray, array.array, memoryview, ctypes.c_int.__mro__[-2])           # the last one: all of ctypes'


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
    if isinstance(value, Iterator) and not hasattr(value, "__dict__"):
        return _progress
    return None


def objects_in(value: Any) -> Sequence[Any]:
    """The Python objects that such a value holds."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.ravel().tolist()
    return (value.get(None),) if isinstance(value, ContextVar) else ()


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


def _progress(iterator: Any) -> Any:
    """How far an iterator is, as far as it tells."""
    frame = getattr(iterator, "gi_frame", None)
    return operator.length_hint(iterator, -1), frame and frame.f_lasti, repr(iterator)
