"""Which sizes of a program will be others in its next calls, and forms of loops that serve all of them. Start at `varies`.

A kernel for one size leaves out what that size has no use for: the rest of a loop of vectors, the shorter last part, the tile that begins
early. Kernels for sizes that vary keep it, so those of two sizes differ in numbers only (see `planning/arguments/generic.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

LEAST = 5                              # sizes below tell nothing: too much is a multiple of them


class Sizes(NamedTuple):
    """The sizes of inputs that vary, and those of dimensions that do not."""

    varying: frozenset[int] = frozenset()
    fixed: frozenset[int] = frozenset()


NEAR = 8                               # what is cut off, padded and put before or behind changes a size by so much at most


def derived(varying: Iterable[int], fixed: Collection[int], found: Iterable[int]) -> frozenset[int]:
    """Sizes that vary, with those of the ones found that look as if they were made of these: one more (a cache that grows), two less."""
    given = frozenset(varying)
    return given.union(n for n in frozenset(found).difference(fixed) if any(abs(n - v) <= NEAR for v in given if v >= LEAST))


_NONE = Sizes()
_now: ContextVar[Sizes | None] = ContextVar("sizes that vary", default=None)


@contextmanager
def sizes_that_vary(varying: Iterable[int], fixed: Iterable[int] = ()) -> Iterator[None]:
    """`varies` says so of multiples of these, as long as this lasts, but of those that are a size that does not vary."""
    given = frozenset(n for n in varying if n >= LEAST)
    token = _now.set(Sizes(given, frozenset(fixed) - given))
    try:
        yield
    finally:
        _now.reset(token)


def varies(size: int) -> bool:
    """Whether a number of indices looks as if it were another in a program for other sizes."""
    varying, fixed = _now.get() or _NONE
    return bool(varying) and size > 0 and size not in fixed and any(size % n == 0 for n in varying)


def room(size: int) -> int:
    """Elements of an array that has `size` of them, for this size and for others."""
    return max(256, 1 << 2 * ((size - 1).bit_length() + 1 >> 1)) if varies(size) else size      # 256, 1024, 4096, ...


def any_vary() -> bool:
    """Whether any size of the program does."""
    return bool((_now.get() or _NONE).varying)


def uneven(size: int, length: int) -> bool:
    """Whether the last of as many parts of this length may be shorter, for this size or for another one."""
    return size % length > 0 or varies(size)
