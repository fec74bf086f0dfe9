"""Reductions and what is made of them: sum, mean, max, argmax, var, logsumexp, norm, cumsum, ...

dim: an integer, a sequence of them, or None for all; keepdim leaves reduced dimensions with size 1. IndexOutOfRange if a dim is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any, NamedTuple

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import LINALG, Operators, public
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import no_tensor, on_nodes, one_dim, rounded_once, some_dims
from tracegrad.ops.arrays.pointwise import abs_, abs_squared, eq, gt, lt, maximum, minimum, ne, real, sqrt
from tracegrad.ops.arrays.pointwise import pow as power
from tracegrad.ops.arrays.shaping.reshaping import as_float, flatten, full_like_shape
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import times, where
from tracegrad.ops.primitives.float_functions import exp, log
from tracegrad.ops.primitives.reduction import Amax, Amin
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


class ValuesIndices(NamedTuple):
    """What max(x, dim), min(x, dim), sort and topk return."""

    values: Any
    indices: Any


class FirstMax(Amax):
    """The largest; the whole gradient goes to the first of equal winners (torch's max over a dim, and max pooling)."""
    name = "first_max"
    cases = [(((2, 3),), dict(dim=(1,))), (((2, 3, 4),), dict(dim=(1, 2))), (((17, 5),), dict(dim=(0,)))]
    def vjp(self, ct, y, x, *, dim): return (_to_winner(ct, x, dim, "argmax"),)


class FirstMin(Amin):
    """The smallest; the whole gradient goes to the first of equal winners (torch's min over a dim)."""
    name = "first_min"
    cases = [(((2, 3),), dict(dim=(1,))), (((2, 3, 4),), dict(dim=(1, 2)))]
    def vjp(self, ct, y, x, *, dim): return (_to_winner(ct, x, dim, "argmin"),)


def _to_winner(ct: Node, x: Node, dim: tuple[int, ...], search: str) -> Node:
    """ct at the winner of each group along `dim`, zero elsewhere: elementwise, never a scatter."""
    rest = tuple(d for d in range(x.ndim) if d not in dim)
    order = rest + dim
    kept = tuple(x.shape[d] for d in rest)
    groups = mv.reshape(mv.permute(x, order), (*kept, prod(x.shape[d] for d in dim)))
    hit = eq(iota(groups.shape, len(rest), dtypes.int32), mv.reshape(first_winner(search, groups), (*kept, 1)))
    spread = where(hit, mv.reshape(ct, (*kept, 1)), const(0, ct.dtype))
    return mv.permute(mv.reshape(spread, tuple(x.shape[d] for d in order)), mv.inverse(order))


WRITTEN_OUT = 16                         # elements of a group whose winner is found by comparisons that are written out, and fuse


def first_winner(search: str, groups: Node) -> Node:
    """The number of the first of the best in each group (*kept, n), as int32: (*kept). search: "argmax" or "argmin"."""
    *kept, n = groups.shape
    if n > WRITTEN_OUT:
        return cast(bind(REGISTRY[search], (groups,), {"dim": len(kept)}), dtypes.int32)
    return mv.expand(of_winner(search, groups, [const(k, dtypes.int32) for k in range(n)]), tuple(kept))


def of_winner(search: str, groups: Node, numbers: Sequence[Node]) -> Node:
    """That of the `numbers`, which broadcast to (*kept), which belongs to the first of the best in each group (*kept, n)."""
    better = gt if search == "argmax" else lt
    best, winner = _column(groups, 0), numbers[0]
    for k, number in enumerate(numbers[1:], 1):
        other = _column(groups, k)
        wins = better(other, best) | (ne(other, other) & eq(best, best))           # NaN wins over all, the first one
        best, winner = where(wins, other, best), where(wins, number, winner)
    return winner


def _column(x: Node, k: int) -> Node:
    return mv.reshape(mv.narrow(x, x.ndim - 1, k, 1), x.shape[:-1])


def reduce(primitive: str, x: Node, dim: tuple[int, ...], keepdim: bool) -> Node:
    """x reduced over the sorted dims by that primitive."""
    y = bind(REGISTRY[primitive], (x,), {"dim": dim}) if dim else x
    return mv.reshape(y, tuple(1 if d in dim else n for d, n in enumerate(x.shape))) if keepdim else y


def _accumulated(x: Node, dtype: Any) -> Node:
    """x in the dtype that it is summed in: as asked, else int64 for bools and integers, as in torch."""
    if dtype is not None:
        return as_asked(x, dtype)
    return cast(x, dtypes.int64) if dtype_kind(x.dtype) not in "fc" else x


def as_asked(x: Node, dtype: Any) -> Node:
    """x in the dtype that the user gave. DTypeError where that would drop imaginary parts."""
    found = dtypes.as_dtype(dtype)
    if x.dtype.kind == "c" and found.kind != "c":
        raise DTypeError(f"dtype: {x.dtype} would lose its imaginary parts as {found}; use x.real or x.abs()")
    return cast(x, found)


def is_empty(x: Node, dim: tuple[int, ...]) -> bool:
    return any(x.shape[d] == 0 for d in dim)


def _check_some(name: str, x: Node, dim: tuple[int, ...]) -> None:
    if is_empty(x, dim):
        raise ArgumentError(f"{name}: there is nothing along dimensions {dim} of shape {x.shape}: no extremum")


# ------------------------------------------------------------------------------------------------------------ sums and products


@public("sum")
@on_nodes
def sum_(input: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The sum over dim; bools and integers are summed as int64. 0 of nothing. Other dtypes stay. Raises IndexOutOfRange for other dims.

    >>> tg.sum(tg.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0)
    """
    return reduce("sum", _accumulated(input, dtype), some_dims("sum", dim, input.ndim), keepdim)


@public("prod")
@on_nodes
def prod_(input: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The product over dim; bools and integers are multiplied as int64. 1 of nothing.
    Other dtypes stay. Raises IndexOutOfRange for other dims.

    >>> tg.prod(tg.tensor([[1, 2], [3, 4]]), dim=0)
    Tensor([3, 8], device='cpu')
    """
    return reduce("prod", _accumulated(input, dtype), some_dims("prod", dim, input.ndim), keepdim)


@public("mean")
@on_nodes
@rounded_once
def mean(input: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The mean over dim, of floats or complex numbers (DTypeError else, as in torch; or give dtype). NaN of nothing. dtype stays.

    >>> tg.mean(tg.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0)
    """
    x = input if dtype is None else as_asked(input, dtype)
    if dtype_kind(x.dtype) not in "fc":
        raise DTypeError(f"mean: takes a float tensor, got {x.dtype}; use x.float().mean() or mean(dtype=tg.float32)")
    dims = some_dims("mean", dim, x.ndim)
    return times(reduce("sum", x, dims, keepdim), _inverse(prod(x.shape[d] for d in dims)))


def _inverse(n: float) -> float:
    return 1.0 / n if n else float("nan")


@public("nansum")
@on_nodes
@rounded_once
def nansum(input: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The sum over dim, NaNs counting as 0. dtype: real; bools and integers are summed as int64. Raises DTypeError for complex numbers.

    >>> tg.nansum(tg.tensor([1.0, float("nan"), 2.0]))
    Tensor(3., device='cpu')
    """
    refuse_complex("nansum", input)
    x = _accumulated(where(ne(input, input), const(0, input.dtype), input), dtype)
    return reduce("sum", x, some_dims("nansum", dim, input.ndim), keepdim)


@public("count_nonzero")
@on_nodes
def count_nonzero(input: Array, dim: Any = None) -> Array:
    """How many elements are not zero, as int64. Raises IndexOutOfRange for other dims.

    >>> tg.count_nonzero(tg.tensor([[0, 1], [2, 3]]), dim=0)
    Tensor([1, 2], device='cpu')
    """
    return reduce("sum", cast(ne(input, 0), dtypes.int64), some_dims("count_nonzero", dim, input.ndim), False)


@public("any")
@on_nodes
def any_(input: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """Whether any element is nonzero, as bool (uint8 for uint8, as in torch). False of nothing.
    Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.any(tg.tensor([[0, 0], [0, 3]]), 1)
    Tensor([False,  True], device='cpu')
    """
    return _boolean("any", "amax", input, dim, keepdim)


@public("all")
@on_nodes
def all_(input: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """Whether all elements are nonzero, as bool (uint8 for uint8, as in torch). True of nothing.
    Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.all(tg.tensor([False, True]))
    """
    return _boolean("all", "amin", input, dim, keepdim)


def _boolean(name: str, primitive: str, x: Node, dim: Any, keepdim: bool) -> Node:
    dims = some_dims(name, dim, x.ndim) if dim is None or dim not in ((), []) else ()       # no dims: elementwise, as in torch
    truth = x if x.dtype == dtypes.bool_ else ne(x, 0)
    if is_empty(x, dims):
        kept = tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims)
        truth = full_like_shape(kept, name == "all", dtypes.bool_)
    else:
        truth = reduce(primitive, truth, dims, keepdim)
    return cast(truth, x.dtype) if x.dtype == dtypes.uint8 else truth


@public("cumsum")
@on_nodes
def cumsum(input: Array, dim: int, *, dtype: Any = None) -> Array:
    """Running sums along dim; of bools and integers as int64. The shape and other dtypes stay. Raises IndexOutOfRange for other dims.

    >>> tg.cumsum(tg.tensor([1.0, 2.0]), 0)
    """
    x = _accumulated(input, dtype)
    d = one_dim("cumsum", dim, x.ndim)
    return bind(REGISTRY["cumsum"], (x,), {"dim": d}) if x.ndim else x


@public("cumprod")
@on_nodes
def cumprod(input: Array, dim: int, *, dtype: Any = None) -> Array:
    """Running products along dim; of bools and integers as int64. The shape and other dtypes stay.
    Raises IndexOutOfRange for other dims.

    >>> tg.cumprod(tg.tensor([1.0, 2.0, 3.0]), 0)
    Tensor([1., 2., 6.], device='cpu')
    """
    x = _accumulated(input, dtype)
    d = one_dim("cumprod", dim, x.ndim)
    return bind(REGISTRY["cumprod"], (x,), {"dim": d}) if x.ndim else x


# -------------------------------------------------------------------------------------------------------------------- extremes


@public("amax")
@on_nodes
def amax(input: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """The largest over dim; NaN if any is. Equal winners share the gradient evenly. ArgumentError if there is nothing.
    dtype: any real one, which the result has.

    >>> tg.amax(tg.tensor([[1, 5], [7, 2]]), 1)
    Tensor([5, 7], device='cpu')
    """
    refuse_complex("amax", input)
    return reduce("amax", input, some_dims("amax", dim, input.ndim), keepdim)


@public("amin")
@on_nodes
def amin(input: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """The smallest over dim; NaN if any is. Equal winners share the gradient evenly. ArgumentError if there is nothing.
    dtype: any real one, which the result has.

    >>> tg.amin(tg.tensor([[1, 5], [7, 2]]), 1)
    Tensor([1, 2], device='cpu')
    """
    refuse_complex("amin", input)
    return reduce("amin", input, some_dims("amin", dim, input.ndim), keepdim)


@public("max")
@on_nodes
def max_(input: Array, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """max(x): the largest of all. max(x, dim): (values, indices) along dim. max(x, other): the larger, elementwise.
    dtype: any real one, which the result has. Indices are int64. Raises DTypeError for complex numbers, ArgumentError of nothing.

    >>> tg.max(tg.tensor([[1.0, 5.0], [3.0, 4.0]]), dim=1)
    """
    return _extreme("max", input, dim, keepdim, other)


@public("min")
@on_nodes
def min_(input: Array, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """min(x): the smallest of all. min(x, dim): (values, indices) along dim. min(x, other): the smaller, elementwise.
    dtype: any real one, which the result has. Indices are int64. Raises DTypeError for complex numbers, ArgumentError of nothing.

    >>> tg.min(tg.tensor([[1.0, 5.0], [3.0, 2.0]]), dim=1).indices
    Tensor([0, 1], device='cpu')
    """
    return _extreme("min", input, dim, keepdim, other)


def _extreme(name: str, x: Node, dim: Any, keepdim: bool, other: Any) -> Any:
    if isinstance(dim, Operators):
        dim, other = None, dim
    if other is not None:
        return (maximum if name == "max" else minimum)(x, other)
    if dim is None:
        _check_some(name, x, tuple(range(x.ndim)))
        return reduce(f"{name}_of_all" if dtype_kind(x.dtype) == "f" else f"a{name}", x, tuple(range(x.ndim)), False)
    if isinstance(dim, (list, tuple)):
        raise ArgumentError(f"{name}: dim must be one integer, got {dim}; use a{name} for several")
    d = one_dim(name, dim, x.ndim)
    refuse_complex(name, x)
    if not x.ndim:
        return ValuesIndices(x, const(0, dtypes.int64))
    return ValuesIndices(reduce("first_" + name, x, (d,), keepdim), _arg("arg" + name, x, d, keepdim))


@public("argmax")
@on_nodes
def argmax(input: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The index (int64) of the largest along dim, or in the flattened tensor; the first of equals; NaN is the largest.
    Raises DTypeError for complex numbers, ArgumentError of nothing.

    >>> tg.argmax(tg.tensor([1.0, 5.0]))
    """
    return _arg("argmax", input, dim, keepdim)


@public("argmin")
@on_nodes
def argmin(input: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The index (int64) of the smallest along dim, or in the flattened tensor; the first of equals; NaN is the smallest.
    Raises DTypeError for complex numbers, ArgumentError of nothing.

    >>> tg.argmin(tg.tensor([[4.0, 1.0], [2.0, 3.0]]), dim=1)
    Tensor([1, 0], device='cpu')
    """
    return _arg("argmin", input, dim, keepdim)


def _arg(name: str, x: Node, dim: int | None, keepdim: bool) -> Node:
    if dim is None:
        y = bind(REGISTRY[name], (flatten(x),), {"dim": 0})
        return mv.reshape(y, (1,) * x.ndim) if keepdim else y
    d = one_dim(name, dim, x.ndim)
    refuse_complex(name, x)
    if not x.ndim:
        return const(0, dtypes.int64)
    y = bind(REGISTRY[name], (x,), {"dim": d})
    return mv.reshape(y, (*x.shape[:d], 1, *x.shape[d + 1:])) if keepdim else y


# -------------------------------------------------------------------------------------------------------------- spread and norm


def _spread(name: str, x: Node, dim: Any, unbiased: Any, correction: float | None, keepdim: bool) -> Any:
    if isinstance(dim, bool):                               # torch: x.var(False) is x.var(unbiased=False)
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = 1 if unbiased else 0
    elif correction is None:
        correction = 1
    if dtype_kind(x.dtype) not in "fc":
        raise DTypeError(f"{name}: takes a float tensor, got {x.dtype}; use x.float()")
    dims = some_dims(name, dim, x.ndim)
    n = prod(x.shape[d] for d in dims)
    centred = x - mean(x, dims, True) if dims else x - x
    total = reduce("sum", abs_squared(centred), dims, keepdim)
    if n > 1:
        # What the mean was rounded by is the mean of what is left: without it, squares of numbers that lie close together, far from 0, say
        # little (Chan, Golub, LeVeque 1983). A constant, as it would be 0 for any x, and finite: squares that overflow stay infinite.
        off = abs_squared(reduce("sum", centred, dims, keepdim)) * (1.0 / n)
        off = minimum(minimum(off, total), float(dtypes.finfo(total.dtype).max))
        total = total - bind(REGISTRY["detach"], (off,), {})
    freedom = max(0, n - correction)
    return total * (1.0 / freedom) if freedom else total / 0.0


@public("var")
@on_nodes
@rounded_once
def var(input: Array, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1) -> Array:
    """The variance over dim: squared distances from the mean, summed, over n - correction (unbiased=False: correction 0).

    Of complex numbers, too, it is real. Raises DTypeError for integers and bools.

    >>> tg.var(tg.tensor([1.0, 2.0, 4.0]))
    """
    return _spread("var", input, dim, unbiased, correction, keepdim)


@public("std")
@on_nodes
@rounded_once
def std(input: Array, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1) -> Array:
    """The standard deviation over dim: the square root of `var`. The gradient where it is 0 is 0, as in torch.
    dtype: float; float of complex numbers. Raises DTypeError for integers and bools.

    >>> tg.std(tg.tensor([1.0, 2.0, 3.0]))
    Tensor(1., device='cpu')
    """
    return _root(_spread("std", input, dim, unbiased, correction, keepdim))


@public("var_mean", method=False)
@on_nodes
@rounded_once
def var_mean(input: Array, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1) -> Any:
    """(variance, mean) over dim. dtype: float or complex, the variance real. Raises DTypeError for integers and bools.

    >>> variance, mean = tg.var_mean(tg.tensor([1.0, 2.0, 3.0]))
    >>> variance, mean
    (Tensor(1., device='cpu'), Tensor(2., device='cpu'))
    """
    return _spread("var_mean", input, dim, unbiased, correction, keepdim), mean(input, None if isinstance(dim, bool) else dim, keepdim)


@public("norm")
@on_nodes
@rounded_once
def norm(input: Array, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The p-norm over dim of the elements as one vector: (sum |x|^p)^(1/p). p: a number, inf, -inf, 0 (how many are nonzero), "fro" (2),

    or "nuc": the nuclear norm of the matrices in two dims (`linalg.matrix_norm`).
    The gradient at a zero vector is 0, as in torch.
    dtype: any; of integers and bools the default float one. The norm is real. Raises IndexOutOfRange for other dims.

    >>> tg.norm(tg.tensor([3.0, 4.0]))
    Tensor(5., device='cpu')
    """
    if dtype is not None and not dtypes.differentiable(dtypes.as_dtype(dtype)):
        raise DTypeError(f"norm: dtype must be a float dtype, got {dtypes.as_dtype(dtype)}")
    x = as_float(input) if dtype is None else as_asked(input, dtype)
    no_tensor("p", p)
    if p == "nuc":
        if dim is None and x.ndim != 2:
            raise ShapeError(f"norm: p='nuc' without dim takes a matrix, got {x.shape}; give two dimensions as dim")
        return LINALG["matrix_norm"](x, "nuc", (-2, -1) if dim is None else dim, keepdim)
    dims = some_dims("norm", dim, x.ndim)
    if p in (inf, "inf", "-inf") or (isinstance(p, (int, float)) and p < 0):            # of nothing there is none
        _check_some("norm", x, dims)
    if p in ("fro", None, 2):
        return _root(reduce("sum", abs_squared(x), dims, keepdim))
    if p in (inf, "inf"):                                   # NaNs take the gradient, as in torch: that of the others is 0, not NaN
        return reduce("max_of_all", abs_(x), dims, keepdim)
    if p in (-inf, "-inf"):
        return reduce("min_of_all", abs_(x), dims, keepdim)
    if not isinstance(p, (int, float)):
        raise ArgumentError(f"norm: p must be a number, 'fro' or 'nuc', got {p!r}")
    if p == 0:
        return reduce("sum", cast(ne(x, 0), dtypes.real_of(x.dtype)), dims, keepdim)
    if p == 1:
        return reduce("sum", abs_(x), dims, keepdim)
    if p > 2:
        terms = power(abs_(x), float(p))
    else:                                                   # a derivative at 0, the first or second, is infinite: those elements have none
        zero = eq(x, 0.0)
        terms = where(zero, 0.0 if p > 0 else inf, power(abs_(where(zero, 1.0, x)), float(p)))
    total = reduce("sum", terms, dims, keepdim)
    zero = eq(total, 0.0)
    return where(zero, 0.0, power(where(zero, 1.0, total), 1.0 / p)) if p > 0 else power(total, 1.0 / p)


def _root(total: Node) -> Any:
    """The square root whose derivative at 0 is 0."""
    zero = eq(total, 0.0)
    return where(zero, 0.0, sqrt(where(zero, 1.0, total)))


# --------------------------------------------------------------------------------------------------------- exponential families


def _finite_max(x: Node, dims: tuple[int, ...]) -> Any:
    """The largest, kept as dims of size 1, constant to differentiation; the largest (smallest) number for inf (-inf): no inf - inf."""
    limit = float(dtypes.finfo(x.dtype).max)
    return maximum(minimum(detached_max(x, dims), limit), -limit)


def detached_max(x: Node, dims: tuple[int, ...]) -> Node:
    return bind(REGISTRY["detach"], (reduce("amax", x, dims, True),), {})


@public("logsumexp")
@on_nodes
@rounded_once
def logsumexp(input: Array, dim: Any, keepdim: bool = False) -> Array:
    """log(sum(exp(x))) over dim, without overflow; -inf of nothing and of rows of -inf. Also of complex numbers.
    Integers and bools as the default float dtype. Raises IndexOutOfRange for other dims.

    >>> tg.logsumexp(tg.tensor([1000.0, 1000.0]), 0)
    Tensor(1000.6932, device='cpu')
    """
    x = as_float(input)
    dims = some_dims("logsumexp", dim, x.ndim)
    if is_empty(x, dims):
        return log(reduce("sum", x, dims, keepdim))
    top = _finite_max(real(x) if x.dtype.kind == "c" else x, dims)
    y = log(reduce("sum", exp(x - top), dims, True)) + top
    return y if keepdim else mv.reshape(y, tuple(n for d, n in enumerate(x.shape) if d not in dims))
