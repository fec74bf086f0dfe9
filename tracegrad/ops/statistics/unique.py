"""Functions whose result has a shape that only values tell: bincount, nonzero, argwhere, unique.

They read values, so they work untraced only; the error inside @trace says what to use there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError, TraceError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import PUBLIC, Operators, public
from tracegrad.graph.primitive import cast, const, iota
from tracegrad.ops.arguments import held, integer, on_nodes, one_dim
from tracegrad.ops.arrays.pointwise import lt, ne
from tracegrad.ops.arrays.reductions import sum_
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.arrays.sorting import argsort
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes
from tracegrad.support.modes import state

Array = Any      # a Node or a Tensor


def known(name: str, x: Any, instead: str) -> np.ndarray[Any, Any]:
    """The values of a Tensor, for a function whose result's shape depends on them; a TraceError says what to use in a trace."""
    if not isinstance(x, Operators):
        raise DTypeError(f"{name}: expected a Tensor, got {type(x).__name__}; use tg.tensor(...) for arrays and lists")
    if isinstance(x, Node):
        raise TraceError(f"{name}: the shape of the result depends on values, which a derivative rule does not have; {instead}")
    if (found := held(x)) is not None:
        return found  # type: ignore[no-any-return]
    try:
        return x.detach().numpy()  # type: ignore[no-any-return]
    except TraceError:
        raise TraceError(f"{name}: the shape of the result depends on values, which are not known inside @trace; {instead}") from None


def _tensor(like: Any, array: Any) -> Any:
    if state.trace is not None:                 # which takes no arrays of the user's; this is none
        return PUBLIC["tensor"](array.reshape(-1).tolist(), dtype=array.dtype, device=like.device).reshape(array.shape)
    if hasattr(like, "_of_own") and array.flags.writeable:      # made here
        return like._of_own(np.asarray(array, order="C"))
    return PUBLIC["tensor"](np.asarray(array, order="C"), device=like.device)


@public("bincount")
def bincount(input: Array, weights: Array = None, minlength: int = 0) -> Array:
    """How often each integer from 0 on is in input (1-d), as int64; with weights, how much of them, as float32 if they are
    (float64 else; of no integers int64). At least minlength numbers.

    Inside @trace of constants only: the length depends on values (there use zeros(n).index_add(0, input, ones), or histc).
    Raises DTypeError unless input holds integers.

    >>> tg.bincount(tg.tensor([0, 2, 2]))
    """
    values = known("bincount", input, "use tg.zeros(n).index_add(0, input, ones) with the number n of bins")
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DTypeError(f"bincount: takes a vector of integers, got {values.dtype} {values.shape}")
    if integer("bincount", "minlength", minlength) < 0:
        raise ArgumentError(f"bincount: minlength must not be negative, got {minlength}")
    if values.size and values.min() < 0:
        raise IndexOutOfRange(f"bincount: the integers must not be negative, got {values.min()}")
    if weights is None:
        return _tensor(input, np.bincount(values, minlength=minlength).astype(np.int64))
    if weights.shape != values.shape:
        raise ShapeError(f"bincount: weights {weights.shape} must have the shape of the input {values.shape}")
    w = known("bincount", weights, "use tg.zeros(n).index_add(0, input, weights)")
    if not values.size:                                         # as in torch, whatever the weights are
        return _tensor(input, np.zeros(minlength, np.int64))
    return _tensor(input, np.bincount(values, w, minlength).astype(np.float32 if w.dtype == np.float32 else np.float64))


@public("nonzero")
def nonzero(input: Array, *, as_tuple: bool = False) -> Any:
    """The indices (int64) of the elements that are not 0: a row for each; as_tuple: a vector for each dimension.

    Inside @trace of constants only: how many there are depends on values. Raises TraceError in a trace.

    >>> tg.nonzero(tg.tensor([0, 5, 7]))
    """
    values = known("nonzero", input, "use tg.where(condition, x, y), or masked_fill")
    found = np.nonzero(values.reshape(-1) if as_tuple and not values.ndim else values) if values.ndim else (
        np.nonzero(values.reshape(1)) if as_tuple else ())
    if as_tuple:
        return tuple(_tensor(input, part) for part in found)
    if values.ndim == 1:
        return _tensor(input, found[0][:, None])
    return _tensor(input, np.stack(found, 1) if values.ndim else np.zeros((int(values != 0), 0), np.int64))


@public("argwhere")
def argwhere(input: Array) -> Array:
    """The indices (int64) of the elements that are not 0, a row for each. Inside @trace of constants only. Raises TraceError else.

    >>> tg.argwhere(tg.tensor([0, 5, 7]))
    """
    return nonzero(input)


@public("nonzero_static")
@on_nodes
def nonzero_static(input: Array, *, size: int, fill_value: int = -1) -> Array:
    """The first `size` rows of nonzero(input), filled up with fill_value: a shape that is known, so also inside @trace.

    int64. Raises ArgumentError for size < 0.

    >>> tg.nonzero_static(tg.tensor([0, 5, 7]), size=3)
    """
    if integer("nonzero_static", "size", size) < 0:
        raise ArgumentError(f"nonzero_static: size must not be negative, got {size}")
    n = input.aval.size
    if not n or not input.ndim or not size:
        return full_like_shape((size, input.ndim), fill_value, dtypes.int64)
    hit = cast(mv.reshape(ne(input, 0) if input.dtype != dtypes.bool_ else input, (n,)), dtypes.int64)
    order = argsort(hit, 0, True, True)                         # the hits, in their order, then the others
    count = sum_(hit)
    taken = mv.narrow(order, 0, 0, min(size, n))
    taken = mv.pad(taken, (0,), (size - min(size, n),))
    columns, rest = [], taken
    for s in reversed(input.shape):
        columns.append(mv.reshape(rest % s, (size, 1)))
        rest = rest // s
    index = mv.concat([cast(c, dtypes.int64) for c in reversed(columns)], 1)
    return where(lt(iota((size, 1), 0), count), index, const(fill_value, dtypes.int64))


def _results(like: Any, found: tuple[Any, ...], inverse: bool, counts: bool) -> Any:
    parts = [found[0], *([found[1]] if inverse else []), *([found[2]] if counts else [])]
    out = tuple(_tensor(like, p) for p in parts)
    return out if len(out) > 1 else out[0]


@public("unique")
def unique(input: Array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The different elements (or, with dim, slices) of input, sorted; with them, if asked: where each element went, how many there are.

    Inside @trace of constants only: their number depends on values. No derivative.
    Any dtype, which the result has; the others are int64. Raises TraceError in a trace.

    >>> tg.unique(tg.tensor([3, 1, 3]))
    """
    values = known("unique", input, "sort, and compare neighbours")
    axis = None if dim is None else one_dim("unique", dim, values.ndim)
    ordered = values.astype(np.float32) if values.dtype == dtypes.bfloat16 else values          # NumPy cannot sort its NaN
    found, inverse, counts = np.unique(ordered, return_inverse=True, return_counts=True, axis=axis, equal_nan=False)
    found = found.astype(values.dtype)
    shape = values.shape if axis is None else (values.shape[axis],)
    return _results(input, (found, inverse.reshape(shape).astype(np.int64), counts.astype(np.int64)), return_inverse, return_counts)


@public("unique_consecutive")
def unique_consecutive(input: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """input (flattened, or its slices along dim) without those that equal the one in front. Inside @trace of constants only.

    Any dtype. Raises TraceError in a trace.

    >>> tg.unique_consecutive(tg.tensor([3, 3, 1, 3]))
    """
    values = known("unique_consecutive", input, "compare neighbours, x[1:] != x[:-1]")
    axis = 0 if dim is None else one_dim("unique_consecutive", dim, values.ndim)
    rows = values.reshape(-1) if dim is None else np.moveaxis(values, axis, 0)
    n = len(rows)
    new = np.ones(n, bool)
    if n > 1:
        new[1:] = (rows[1:] != rows[:-1]).reshape(n - 1, -1).any(1)
    starts = np.flatnonzero(new)
    inverse = np.cumsum(new) - 1
    counts = np.diff(np.append(starts, n))
    found = rows[new] if dim is None else np.moveaxis(rows[new], 0, axis)
    shape = values.shape if dim is None else (n,)
    return _results(input, (found, inverse.reshape(shape).astype(np.int64), counts.astype(np.int64)), return_inverse, return_counts)
