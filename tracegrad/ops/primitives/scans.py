"""Running sums, products and extremes, and the first-order linear recurrence that derivatives of products are. Start at `Scan`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation import Pair
from tracegrad.graph.operation_families import by_parts, common_dtype, refuse_complex
from tracegrad.graph.primitive import REGISTRY, Primitive, bind
from tracegrad.ops.primitives import complex_parts
from tracegrad.ops.primitives.movement import flip, narrow, pad
from tracegrad.support import dtypes
from tracegrad.support.dtypes import DType, dtype_kind


def accumulator(dtype: DType) -> DType:
    """What numpy adds up in: 4096 ones in float16 would be 2048."""
    return dtypes.float32 if dtypes.is_half(dtype) else dtype


_WIDER: dict[DType, DType] = {
    **dict.fromkeys(dtypes.HALVES, dtypes.float32), dtypes.float32: dtypes.float64, dtypes.complex64: dtypes.complex128}


def wider(dtype: DType) -> DType:
    """What many numbers of `dtype` are added up in, where numpy does so one after the other: itself, if there is nothing wider."""
    return _WIDER.get(dtype, dtype)


def earlier(x: Node, dim: int, first: float = 0, by: int = 1) -> Node:
    """x moved on by one (or more) along dim, `first` in front."""
    low = tuple(by * (i == dim) for i in range(len(x.shape)))
    return narrow(pad(x, low, (0,) * len(x.shape), None, first), dim, 0, x.shape[dim])


def _earlier(z: Pair, dim: int, first: float, by: int) -> Pair:
    return Pair(earlier(z.re, dim, first, by), earlier(z.im, dim, 0, by))


class Scan(Primitive):
    """Base of running sums, products, extremes: one operand, one dimension, how two parts are put together (`bools`: by C's operator)."""

    family, expensive, cost = "scan", True, 3.0
    bools: ClassVar[str]
    total: ClassVar[str]                    # what kernels call the value that is carried along
    cases = [(((5,),), dict(dim=0)), (((3, 4),), dict(dim=1)), (((3, 4),), dict(dim=0)), (((0, 2),), dict(dim=0))]

    def aval(self, x, *, dim): return x


class Cumsum(Scan):
    """Running sums along dim."""
    name, saves, linear, bools, total, pair = "cumsum", False, True, "|", "sum", by_parts
    def numpy(self, x, *, dim): return np.cumsum(x, axis=dim, dtype=wider(x.dtype)).astype(x.dtype, copy=False)
    def vjp(self, ct, y, x, *, dim): return (flip(bind(self, (flip(ct, (dim,)),), {"dim": dim}), (dim,)),)
    def combine(self, a: str, b: str) -> str: return f"({a} + {b})"
    def identity(self, dtype: DType) -> Any: return dtype.type(0)


class Cumprod(Scan):
    """Running products along dim. Its derivative is right where an element is zero, too: nothing is divided."""
    name, bools, total, holomorphic, wraps = "cumprod", "&", "product", True, True
    def numpy(self, x, *, dim): return np.cumprod(x, axis=dim, dtype=wider(x.dtype)).astype(x.dtype, copy=False)
    def vjp(self, ct, y, x, *, dim): return (earlier(y, dim, 1) * backwards(x, ct, dim),)
    def combine(self, a: str, b: str) -> str: return f"({a} * {b})"
    def identity(self, dtype: DType) -> Any: return dtype.type(1)

    def pair(self, x, *, dim):                       # of 2, of 4, of 8, ... elements (Hillis & Steele, 1986)
        by = 1
        while by < x.re.shape[dim]:
            x = complex_parts.mul(x, _earlier(x, dim, 1, by))
            by *= 2
        return x


class _Extreme(Primitive):
    selects_elements = True

    def aval(self, *operands: Any, **attrs: Any) -> Any:
        refuse_complex(self.name.removeprefix("first_"), operands[0])
        return super().aval(*operands, **attrs)


class Largest(_Extreme):
    """How the larger of two is found (NaN if either is), and what is larger than nothing. bools: C's operator for those."""
    bools = "|"
    def combine(self, a: str, b: str) -> str: return f"tg_max({a}, {b})"
    def identity(self, dtype: DType) -> Any:
        return dtype.type(-np.inf if dtype_kind(dtype) == "f" else dtype.kind != "b" and np.iinfo(dtype).min)


class Smallest(_Extreme):
    """The same for the smaller."""
    bools = "&"
    def combine(self, a: str, b: str) -> str: return f"tg_min({a}, {b})"
    def identity(self, dtype: DType) -> Any:
        return dtype.type(np.inf if dtype_kind(dtype) == "f" else dtype.kind == "b" or np.iinfo(dtype).max)


class RunningMax(Largest, Scan):
    """The largest so far along dim; NaN from the first on. dtype: of the result, where places are compared in fewer bits than they have."""
    name, saves, differentiable, total = "running_max", False, False, "largest"

    def aval(self, x, *, dim, dtype=None): return super().aval(x, dim=dim) if dtype is None else Aval(x.shape, dtype)
    def numpy(self, x, *, dim, dtype=None): return np.maximum.accumulate(x, axis=dim).astype(dtype or x.dtype, copy=False)


class RunningMin(Smallest, Scan):
    """The smallest so far along dim; NaN from the first on."""
    name, saves, differentiable, total = "running_min", False, False, "smallest"

    def numpy(self, x, *, dim): return np.minimum.accumulate(x, axis=dim)


def _without_first(x: Node, dim: int) -> Node:
    """x with 0 in place of its first element along dim."""
    n = x.shape[dim]
    return pad(narrow(x, dim, 1, n - 1), tuple(int(i == dim) for i in range(len(x.shape))), (0,) * len(x.shape), None, 0)


class Recurrence(Primitive):
    """y[i] = a[i] * y[i - 1] + b[i] along dim, y[0] = b[0]: a[0] does not count."""
    name, family, expensive, cost, holomorphic = "recurrence", "recurrence", True, 10.0, True
    cases = [(((5,), (5,)), dict(dim=0)), (((3, 4), (3, 4)), dict(dim=1)), (((3, 4), (3, 4)), dict(dim=0)), (((0, 2), (0, 2)), dict(dim=0))]

    def prepare(self, args): return tuple(common_dtype(args, name=self.name))
    def aval(self, a, b, *, dim): return b
    def work(self, y, a, b, *, dim): return y.size + 40 * y.shape[dim]

    def numpy(self, a, b, *, dim):
        y = np.moveaxis(np.array(b, wider(b.dtype)), dim, 0)
        factors = np.moveaxis(a, dim, 0)
        for i in range(1, len(y)):                   # n steps, each over all the other dimensions
            y[i] += factors[i] * y[i - 1]
        return np.moveaxis(y, 0, dim).astype(b.dtype, copy=False)

    def vjp(self, ct, y, a, b, *, dim):
        g = backwards(a, ct, dim)
        return g * earlier(y, dim), g

    def pair(self, a, b, *, dim):                    # as Cumprod's, of the maps y -> a y + b
        n = b.re.shape[dim]
        a = Pair(*(_without_first(part, dim) for part in a)) if n > 1 else a
        by = 1
        while by < n:
            more = complex_parts.mul(a, _earlier(b, dim, 0, by))
            a, b = complex_parts.mul(a, _earlier(a, dim, 1, by)), Pair(b.re + more.re, b.im + more.im)
            by *= 2
        return b


RECURRENCE = REGISTRY["recurrence"]


def backwards(a: Node, ct: Node, dim: int) -> Node:
    """g[i] = ct[i] + a[i + 1] * g[i + 1]: how cotangents run back through a recurrence with factors a."""
    return flip(bind(RECURRENCE, (earlier(flip(a, (dim,)), dim), flip(ct, (dim,))), {"dim": dim}), (dim,))
