"""The operation of `lower/fourier/lines_gpu.py`: transforms of many lines of as many points as a work-group holds. Start at `FourierLines`.

`shape_of` says how a work-group does it; where it says None, `transforms.py` cuts the transform into several.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracegrad.graph.ir import Aval
from tracegrad.graph.primitive import Primitive
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning


class FourierLines(Primitive):
    """Sums over j < n of x[j] exp(-2 pi i j k / n) along lines of numbers, whose parts are re and im. The result is (*shape, 2).

    Point j of line l is element (l // read * n + j) * read + l % read of the operands; point k is element (l // write * most + k * write
    + l % write) of the result, if k * write + l % write < most. So a line may be a row, a column, or a row that becomes a column.
    factors (n, 2): exp(-2 pi i t / n). backwards: with +. scale: factor of the result. real: only its real part is wanted: (*shape).
    whole: if not 0, the results are multiplied by exp(-2 pi i k m / whole), m = l % read // apart: a step of a longer transform. Then there
    are two more operands, factors for t < size and for multiples of size, which is their length.
    """

    family, differentiable, expensive = "fourier", False, True

    def __init__(self) -> None:
        super().__init__()
        self.name = "fourier_lines"  # type: ignore[misc]

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        return Aval(attrs["shape"] if attrs["real"] else (*attrs["shape"], 2), operands[0].dtype)

    def numpy(self, re: Any, im: Any, factors: Any, *more: Any, shape: tuple[int, ...], n: int, read: int, write: int, most: int,
              scale: float, backwards: bool, real: bool, whole: int, apart: int) -> Any:
        z = (re + 1j * im).reshape(-1, n, read)
        y = np.fft.ifft(z, axis=1) * n if backwards else np.fft.fft(z, axis=1)
        if whole:
            turns = np.arange(n)[:, None] * (np.arange(read) // apart)
            y = y * np.exp((2j if backwards else -2j) * np.pi * (turns % whole) / whole)
        lines = y.transpose(0, 2, 1).reshape(-1, write, n).transpose(0, 2, 1).reshape(-1, n * write)[:, :most] * scale
        lines = lines.reshape(shape)
        return (lines.real if real else np.stack([lines.real, lines.imag], -1)).astype(re.dtype)


LINES = FourierLines()


class GroupShape(NamedTuple):
    """How a work-group transforms `lines` lines with `items` work-items each, by butterflies of `radices`; pitch: elements of local memory
    of a line; arrays: 2 if both parts of the numbers have room there at a time."""

    radices: tuple[int, ...]
    items: int
    lines: int
    pitch: int
    arrays: int


def padded(n: int, dtype: DType) -> int:
    """Elements of local memory for n: one is skipped in each row of banks, so that items at distances of powers of two meet in few."""
    return n + (n - 1) // (128 // dtype.itemsize)


@memoize(256)
def radices(n: int, largest: int) -> tuple[int, ...] | None:
    """Factors of n, each at most `largest`: the fewest, then of the least sum, large ones first. None: there are none."""
    best: dict[int, tuple[int, ...] | None] = {1: ()}

    def of(m: int) -> tuple[int, ...] | None:
        if m not in best:
            found = [(r, *rest) for r in range(2, min(m, largest) + 1) if m % r == 0 and (rest := of(m // r)) is not None]
            best[m] = min(found, key=lambda f: (len(f), sum(f), f), default=None)
        return best[m]

    found = of(n)
    return None if found is None else tuple(sorted(found, reverse=True))


def shape_of(n: int, across: bool, lines: int, dtype: DType, target: Target) -> GroupShape | None:
    """How a work-group does lines of n points, of which there are so many; None if it has no room for one.

    across: neighbours in memory are of different lines, so several are wanted.
    """
    numbers, most = tuning(), target.max_work_group
    if n > numbers.fourier_points or n < 2:
        return None
    factors = radices(n, numbers.fourier_radix)
    if factors is None:
        return None
    counts = [(max(r * -(-n // (r * items)) for r in factors), items) for items in {n // r for r in factors} if items <= most]
    if not counts:
        return None
    points, items = min(counts)
    if points > 2 * numbers.fourier_radix:
        return None
    many = 1
    wanted = max(1, numbers.fourier_across // (2 * dtype.itemsize)) if across else 1
    while many < lines and (many < wanted or 2 * many * items <= numbers.fourier_group) and 2 * many * items <= most and (
            _pitch(n, items, 2 * many, across, dtype) * 2 * many * dtype.itemsize <= target.local_memory or len(factors) == 1):
        many *= 2
    pitch = _pitch(n, items, many, across, dtype)
    bytes_ = pitch * many * dtype.itemsize
    if bytes_ > target.local_memory and len(factors) > 1:
        return None
    return GroupShape(factors, items, many, pitch, 2 if 2 * bytes_ <= target.local_memory else 1)


def _pitch(n: int, items: int, lines: int, across: bool, dtype: DType) -> int:
    """Elements between lines: as many more than a row of banks as let the items of several lines meet in few."""
    banks = 128 // dtype.itemsize
    apart = max(1, (banks // min(lines, banks) if across else min(items, banks)) // 2)
    size = padded(n, dtype)
    return size + (apart - size) % banks if lines > 1 else size


def halves(n: int, lines: int, dtype: DType, target: Target) -> tuple[int, int] | None:
    """n as a b, where a work-group does a points, and b if any such b can be done: of those the two most alike, else the largest a."""
    found = [a for a in _divisors(n) if shape_of(a, True, lines, dtype, target) is not None]
    both = [a for a in found if shape_of(n // a, True, lines, dtype, target) is not None]
    a = min(both, key=lambda a: (max(a, n // a), a), default=max(found, default=0))
    return (a, n // a) if a else None


def _divisors(n: int) -> list[int]:
    """Those between 1 and n."""
    found = {a for a in range(2, int(n ** 0.5) + 1) if n % a == 0}
    return sorted(found | {n // a for a in found})
