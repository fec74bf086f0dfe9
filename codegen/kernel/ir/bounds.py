"""Where loops begin and end. Start at `Bound`."""

from __future__ import annotations

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, constant
from tracegrad.codegen.kernel.index.varying import any_vary
from tracegrad.codegen.kernel.ir.expressions.arithmetic import Infix, Select
from tracegrad.codegen.kernel.ir.expressions.base import At, Expression, whole


class Bound:
    """Where a loop begins or ends: its value, and the indices that it is not below and not above. None: known when the program runs only.

    limit: it is the less of `high` and this.
    """

    __slots__ = ("high", "limit", "low", "value")

    def __init__(self, value: Expression, low: Index | None, high: Index | None, limit: int | None = None) -> None:
        self.value, self.low, self.high, self.limit = value, low, high, limit

    def __str__(self) -> str:
        return str(self.value)


BoundLike = int | Index | Var | Bound


def bound(x: BoundLike) -> Bound:
    if isinstance(x, Bound):
        return x
    at = x if isinstance(x, Index) else x.index if isinstance(x, Var) else constant(x)
    return Bound(At(at), at, at)


def product(x: Var, factor: int, more: int = 0) -> Bound:
    """x * factor + more: the parts of something begin and end there."""
    return bound(x.index * factor + more)


def rest(first: BoundLike, last: BoundLike, step: int) -> Bound:
    """Where what is left of first to last after whole steps begins."""
    begin, end = bound(first), bound(last).value
    at_zero = begin.low is not None and begin.low == begin.high == ZERO
    left = Infix("%", end if at_zero else Infix("-", end, begin.value), whole(step))
    return Bound(Infix("-", end, left), begin.low, None)


def clipped(end: BoundLike, size: int, length: int) -> Bound:
    """Where a part, of `length`, of 0..size-1 ends: at `end`, but the last one, which may be shorter, at `size`."""
    return clipped_at(end, size, size % length > 0 or any_vary())


def clipped_at(end: BoundLike, size: int, shorter: bool = True) -> Bound:
    """The less of `end` and `size`; shorter: whether that may be the latter."""
    end, most = bound(end), whole(size)
    return Bound(Select(Infix("<", end.value, most), end.value, most), ZERO, end.high, size) if shorter else end
