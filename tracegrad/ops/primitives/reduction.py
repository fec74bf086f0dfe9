"""Reduction primitives: sum, prod, amax, amin, argmax, argmin. Composed ones (mean, ...) are in `ops/arrays/reductions.py`."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.graph.intervals import Interval
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation import Pair
from tracegrad.graph.operation_families import SHORT, Reduction, by_parts, refuse_complex
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, cast, filled
from tracegrad.ops.primitives import complex_parts
from tracegrad.ops.primitives.elementwise import bitwise_or, eq, ne
from tracegrad.ops.primitives.movement import concat, expand, flip, narrow, permute, reshape
from tracegrad.ops.primitives.scans import Largest, Smallest, accumulator, earlier, wider
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType, dtype_kind


def keep_dims(y: Node, x: Node, dim: tuple[int, ...]) -> Node:
    """y (x reduced over dim) broadcast back over x's shape."""
    return expand(reshape(y, tuple(1 if i in dim else n for i, n in enumerate(x.shape))), x.shape)


_WIDE = frozenset({dtypes.float32, dtypes.float64})        # what numpy adds up in itself


def _pairwise(shape: tuple[int, ...], dim: tuple[int, ...]) -> bool:
    """Whether numpy adds up so that few digits are lost: few numbers, or those of the last dimensions, as they lie one after the other."""
    return prod(shape[d] for d in dim) <= SHORT or dim == tuple(range(len(shape) - len(dim), len(shape)))


def _row_by_row(x: Any) -> Any:
    """x in C order, unless elements repeat: numpy adds up as elements lie in memory, and a view's sum is to be that of its copy."""
    return x if x.flags.c_contiguous or 0 in x.strides else np.array(x, order="C")


class _Step(NamedTuple):
    """A part of a sum: what is added up along `axis` of the array in another shape (None: as it is).

    uneven: where some numbers are left over, the shape that the array is seen in before, which of it is added up, what is left over, and
    which of the sums get that.
    """

    shape: tuple[int, ...] | None
    axis: Any
    uneven: tuple[Any, ...] | None = None


@memoize(1000)
def _in_blocks(shape: tuple[int, ...], dim: tuple[int, ...], rows: bool) -> list[_Step]:
    """How to add up an array, one step after the other: of the last dimensions, if it lies row by row, as NumPy does it, then of the
    others, neighbours as one. No step adds up many numbers one after the other.
    """
    if rows and _pairwise(shape, dim):
        return [_Step(None, dim)]
    first, steps = len(shape), list[_Step]()
    while rows and first - 1 in dim:
        first -= 1
    if first < len(shape):
        steps.append(_Step(None, tuple(range(first, len(shape)))))
    while first := max([d + 1 for d in dim if d < first], default=0):
        start = first - 1
        while rows and start - 1 in dim:
            start -= 1
        steps += _of_one(shape[:start], shape[start:first], tuple([n for d, n in enumerate(shape) if d >= first and d not in dim]))
        first = start
    return steps or [_Step(None, ())]


def _of_one(before: tuple[int, ...], sizes: tuple[int, ...], after: tuple[int, ...]) -> list[_Step]:
    """The steps of dimensions that are added up as one. `count` numbers are one sum, which lie far apart: so NumPy adds long rows, in a
    fifth of the time that it takes for neighbours.
    """
    n, axis, steps = prod(sizes), len(before), list[_Step]()
    whole = None if len(sizes) == 1 else (*before, n, *after)
    while n > SHORT:
        even = next((k for k in range(isqrt(n - 1) + 1, 2 * SHORT + 1) if n % k == 0), 0)
        sums = n // even if even else -(-n // SHORT)
        count, every, uneven = n // sums, (slice(None),) * axis, None
        if sums == 1:                                   # a prime number: they are few enough
            break
        if count * sums < n:
            many = count * sums
            uneven = (*before, n, *after), (*every, slice(many)), (*every, slice(many, n)), (*every, slice(n - many))
        steps.append(_Step((*before, count, sums, *after), axis, uneven))
        n, whole = sums, None
        if even:
            break
    return [*steps, _Step(whole, axis)]


def _added_up(x: Any, steps: Sequence[_Step], out: Any = None) -> Any:
    """The sum of an array in these steps."""
    add = np.add.reduce
    for shape, axis, uneven in steps[:-1]:
        if uneven is not None:
            seen, blocks, rest, ahead = uneven
            x = x.reshape(seen)
            left, x = x[rest], add(x[blocks].reshape(shape), axis)
            x[ahead] += left
        else:
            x = add(x if shape is None else x.reshape(shape), axis)
    shape, axis, _ = steps[-1]
    return add(x if shape is None else x.reshape(shape), axis, out=out)


class Sum(Reduction):
    """The sum; 0 of nothing."""
    name, saves, linear, in_steps, pair = "sum", False, True, True, by_parts
    cases = [(((2, 3),), dict(dim=(0, 1))), (((2, 3, 4),), dict(dim=(1,))), (((3, 0),), dict(dim=(1,))), (((17, 5),), dict(dim=(0,)))]

    def numpy(self, x, *, dim):
        if dtype_kind(x.dtype) in "fc":
            x, wide = _row_by_row(x), wider(x.dtype)
            rows = x.flags.c_contiguous
            if not (rows and _pairwise(x.shape, dim)):
                steps = _in_blocks(x.shape, dim, rows)
                return _added_up(x, steps) if wide == x.dtype else np.add.reduce(x, axis=dim, dtype=wide).astype(x.dtype, copy=False)
        return np.add.reduce(x, axis=dim, dtype=accumulator(x.dtype)).astype(x.dtype, copy=False)

    def numpy_with(self, *, dim):
        def rule(x):                                # the same with fewer questions
            if x.dtype not in _WIDE or not x.flags.c_contiguous:
                return self.numpy(x, dim=dim)
            return _added_up(x, _in_blocks(x.shape, dim, True))

        return rule

    def numpy_function(self, operands, *, dim):
        x, = operands
        steps = _in_blocks(x.shape, dim, True)
        once = steps[0].axis if len(steps) == 1 and steps[0].shape is None else ()         # in few steps of Python's
        add = np.add.reduce

        def added_up(x, out=None):
            if x.flags.c_contiguous:        # as it was when this was asked; what x is made of may lie otherwise
                return add(x, once, None, out) if once else _added_up(x, steps, out)
            found = self.numpy(x, dim=dim)
            if out is None:
                return found
            out[...] = found
            return out

        return (added_up, ()) if x.rows else None

    def vjp(self, ct, y, x, *, dim): return (keep_dims(ct, x, dim),)
    def identity(self, dtype: DType) -> Any: return dtype.type(0)
    def combine(self, a: str, b: str) -> str: return f"({a} + {b})"


class Prod(Reduction):
    """The product; 1 of nothing. Its derivative is right where an element is zero, too."""
    name, holomorphic, wraps, in_steps = "prod", True, True, True
    cases = [(((2, 3),), dict(dim=(0, 1))), (((2, 3),), dict(dim=(1,)))]

    def numpy(self, x, *, dim):
        many = prod(x.shape[d] for d in dim) > SHORT         # numpy multiplies one after the other, and each loses digits
        return np.prod(x, axis=dim, dtype=wider(x.dtype) if many else accumulator(x.dtype)).astype(x.dtype, copy=False)

    def vjp(self, ct, y, x, *, dim):
        # The product of all the others: exclusive running products from both ends, so that zeros need no division.
        return (keep_dims(ct, x, dim) * products_of_others(x, dim),)

    def identity(self, dtype: DType) -> Any: return dtype.type(1)
    def combine(self, a: str, b: str) -> str: return f"({a} * {b})"

    def pair(self, x, *, dim):                     # one half times the other, until one element is left
        rest = tuple(d for d in range(len(x.re.shape)) if d not in dim)
        shape, axis = tuple(x.re.shape[d] for d in rest), len(rest)
        z = Pair(*(reshape(permute(part, rest + dim), (*shape, prod(x.re.shape[d] for d in dim))) for part in x))
        n = z.re.shape[axis]
        if n == 0:
            return Pair(expand(filled(1, bind(REGISTRY["sum"], (z.re,), {"dim": (axis,)})), shape),
                        bind(REGISTRY["sum"], (z.im,), {"dim": (axis,)}))
        while n > 1:
            half = n // 2
            left, right = (Pair(*(narrow(part, axis, at, half) for part in z)) for at in (0, half))
            rest_of = [narrow(part, axis, n - 1, 1) for part in z] if n % 2 else []
            z = complex_parts.mul(left, right)
            z = Pair(*(concat([part, last], axis) for part, last in zip(z, rest_of, strict=True))) if rest_of else z
            n -= half
        return Pair(*(reshape(part, shape) for part in z))


class Extremum(Reduction):
    """Base of amax and amin: equal winners share the gradient evenly, as in torch. nans: so do NaNs (else all of it is NaN beside one)."""
    nans = False

    def aval(self, x: Aval, *, dim: tuple[int, ...]) -> Aval:
        if any(x.shape[d] == 0 for d in dim):
            empty = next(d for d in dim if x.shape[d] == 0)
            raise ArgumentError(f"{self.name.removeprefix('first_')}: dimension {empty} of shape {x.shape} is empty: no extremum")
        return super().aval(x, dim=dim)

    def vjp(self, ct: Node, y: Node, x: Node, *, dim: tuple[int, ...]) -> tuple[Any, ...]:
        found = eq(x, keep_dims(y, x, dim))
        winners = cast(bitwise_or(found, ne(x, x)) if self.nans else found, x.dtype)
        count = bind(REGISTRY["sum"], (winners,), {"dim": dim})
        return (winners * keep_dims(ct / count, x, dim),)


class Amax(Largest, Extremum):
    """The largest; NaN if any is."""
    name = "amax"
    cases = [(((2, 3),), dict(dim=(0, 1))), (((2, 3, 4),), dict(dim=(2,))), (((17, 5),), dict(dim=(0,)))]

    def numpy(self, x, *, dim): return np.maximum.reduce(x, axis=dim)
    def numpy_function(self, operands, *, dim): return np.maximum.reduce, (dim,)


class Amin(Smallest, Extremum):
    """The smallest; NaN if any is."""
    name = "amin"
    cases = [(((2, 3),), dict(dim=(0, 1))), (((2, 3, 4),), dict(dim=(2,))), (((17, 5),), dict(dim=(0,)))]

    def numpy(self, x, *, dim): return np.minimum.reduce(x, axis=dim)
    def numpy_function(self, operands, *, dim): return np.minimum.reduce, (dim,)


class MaxOfAll(Amax):
    """The largest; where that is NaN, the NaNs share the gradient: torch's max and median without a dim, and its norm of order inf."""
    name, nans = "max_of_all", True
    cases = [(((2, 3),), dict(dim=(0, 1))), (((5,),), dict(dim=(0,)))]


class MinOfAll(Amin):
    """The same for the smallest."""
    name, nans = "min_of_all", True
    cases = [(((2, 3),), dict(dim=(0, 1)))]


class ArgReduction(Primitive):  # two outputs (value and index) would make a node's result a tuple; the value is a gather
    """Base of argmax and argmin along one dim: int64, the first of equals wins, NaN wins over all."""
    family, differentiable, expensive = "arg_reduction", False, True
    better = ""                              # the comparison that makes a later element win
    cases = [(((4,),), dict(dim=0)), (((2, 3),), dict(dim=1)), (((3, 2, 2),), dict(dim=0))]

    def aval(self, x: Aval, *, dim: int) -> Aval:
        refuse_complex(self.name, x)
        if x.shape[dim] == 0:
            raise ArgumentError(f"{self.name.removeprefix('first_')}: dimension {dim} of shape {x.shape} is empty: no extremum")
        return Aval(x.shape[:dim] + x.shape[dim + 1:], dtypes.int64)

    def interval(self, node: Node, *operands: Interval) -> Interval | None:
        return (0, node.operands[0].shape[node.attrs["dim"]] - 1) if operands else None


class Argmax(ArgReduction):
    """Index of the largest."""
    name, better = "argmax", ">"
    def numpy(self, x, *, dim): return x.argmax(dim)


class Argmin(ArgReduction):
    """Index of the smallest."""
    name, better = "argmin", "<"
    def numpy(self, x, *, dim): return x.argmin(dim)


def products_of_others(x: Node, dim: tuple[int, ...]) -> Node:
    """For each element the product of the others along `dim` (exact where some are zero): exclusive products from both ends."""
    rest = tuple(d for d in range(len(x.shape)) if d not in dim)
    moved = permute(x, rest + dim)
    flat = reshape(moved, (*(x.shape[d] for d in rest), int(np.prod([x.shape[d] for d in dim]))))
    axis = len(rest)

    def before(z: Node) -> Node:             # product of all earlier elements
        return earlier(bind(REGISTRY["cumprod"], (z,), {"dim": axis}), axis, 1)

    others = before(flat) * flip(before(flip(flat, (axis,))), (axis,))
    back = reshape(others, moved.shape)
    order = rest + dim
    return permute(back, tuple(order.index(d) for d in range(len(order))))


def total(x: Node, dim: tuple[int, ...]) -> Node:
    """Sum over `dim` (x itself for no dims)."""
    return bind(REGISTRY["sum"], (x,), {"dim": tuple(dim)}) if dim else x


def sum_to(x: Node, shape: tuple[int, ...]) -> Node:
    """x summed down to `shape`: the adjoint of broadcasting, the one place where broadcast gradients are summed."""
    if x.shape == shape:
        return x
    lead = len(x.shape) - len(shape)
    dim = tuple(i for i in range(len(x.shape)) if i < lead or (shape[i - lead] == 1 and x.shape[i] != 1))
    return reshape(total(x, dim), shape)

