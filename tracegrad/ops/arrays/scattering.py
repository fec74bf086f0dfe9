"""Functions that write at places: index_fill, index_put, scatter_reduce, masked_scatter, ... composed of scatters and selects.

All are pure here (the methods with a trailing underscore write in place). Checks of indices are those of `indexing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import PUBLIC, Operators, public
from tracegrad.graph.primitive import REGISTRY, cast, const, iota, scalar
from tracegrad.ops.arguments import integer, on_nodes, one_dim, sizes_of
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import _linear, scatter_rows, take_rows
from tracegrad.ops.arrays.joining import select
from tracegrad.ops.arrays.logical import isfinite, isinf
from tracegrad.ops.arrays.pointwise import detach, div, eq, ne
from tracegrad.ops.arrays.reductions import cumsum
from tracegrad.ops.arrays.shaping.diagonals import diagonal
from tracegrad.ops.arrays.shaping.reordering import movedim
from tracegrad.ops.arrays.shaping.repeating import expanded
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.arrays.sorting import argsort
from tracegrad.ops.arrays.subscripts import getitem, selects, setitem
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.dynamic_slice import put_slice
from tracegrad.ops.primitives.elementwise import choose, where
from tracegrad.ops.primitives.windows import windows
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state

Array = Any      # a Node or a Tensor


def _flat(x: Node) -> Node:
    return mv.reshape(x, (x.aval.size,))


# ------------------------------------------------------------------------------------------------- by indices along a dim


@public("index_fill")
@on_nodes
def index_fill(input: Array, dim: int, index: Array, value: Any) -> Array:
    """input with the slices along dim that index (1-d) names filled with value (a number or a 0-d tensor).

    Any dtype. Raises DTypeError unless index holds integers.

    >>> tg.index_fill(tg.zeros(3), 0, tg.tensor([1]), 5.0)
    """
    d = one_dim("index_fill", dim, input.ndim)
    if index.ndim > 1:
        raise ShapeError(f"index_fill: index must be a 1-d tensor, got {index.shape}")
    if isinstance(value, Node) and value.ndim:
        raise ShapeError(f"index_fill: value must be a number or a 0-d tensor, got shape {value.shape}")
    fill = cast(value, input.dtype) if isinstance(value, Node) else scalar("index_fill", value, input.dtype)
    x = input if input.ndim else mv.reshape(input, (1,))
    rows = in_range(_flat(index), x.shape[d], "index_fill", "index", f"dimension {d} of shape {x.shape}", wrap=True)
    none, all_ = full_like_shape((x.shape[d],), False, dtypes.bool_), full_like_shape(rows.shape, True, dtypes.bool_)
    hit = scatter_rows("scatter_set", none, rows, all_)
    hit = mv.reshape(hit, tuple(n if i == d else 1 for i, n in enumerate(x.shape)))
    return mv.reshape(where(hit, fill, x), input.shape)


REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _reduced_at(x: Node, index: Node, src: Node, reduce: str, include_self: bool) -> Any:
    """x (1-d) with src combined into the elements that index names; `reduce` is one of REDUCTIONS."""
    n, m = x.shape[0], index.shape[0]
    if not m or not n:
        return x
    zeros = full_like_shape((n,), 0, x.dtype)
    hits = scatter_rows("scatter_add", full_like_shape((n,), 0, dtypes.int64), index, full_like_shape((m,), 1, dtypes.int64))
    untouched = eq(hits, 0)
    if reduce in ("sum", "mean"):
        start = x if include_self else where(untouched, x, zeros)
        total = scatter_rows("scatter_add", start, index, src)
        if reduce == "sum":
            return total
        count = hits + 1 if include_self else where(untouched, 1, hits)
        return total / cast(count, x.dtype) if dtype_kind(x.dtype) == "f" else div(total, cast(count, x.dtype), rounding_mode="floor")
    if include_self and reduce != "prod" and not (x.needs_grad or src.needs_grad):
        return scatter_rows(f"scatter_{reduce[1:]}", x, index, src)
    every = mv.concat([cast(iota((n,), 0), index.dtype), index], 0) if include_self else index
    values = mv.concat([x, src], 0) if include_self else src
    if reduce == "prod":
        found = _products(n, every, values)
    else:
        found = _extremes(n, every, values, reduce)
    return found if include_self else where(untouched, x, found)


def _products(n: int, index: Node, values: Node) -> Any:
    """The product of the values of each index, by running products in the groups of the sorted indices."""
    order = argsort(index, 0, False, True)
    group, running = take_rows(index, order), take_rows(values, order)
    m, step = group.shape[0], 1
    while step < m:
        before = mv.pad(mv.narrow(running, 0, 0, m - step), (step,), (0,), None, 1)
        same = eq(mv.pad(mv.narrow(group, 0, 0, m - step), (step,), (0,), None, -1), group)
        running = running * where(same, before, const(1, running.dtype))
        step *= 2
    return scatter_rows("scatter_set", full_like_shape((n,), 1, values.dtype), group, running)     # the last of a group wins


def _extremes(n: int, index: Node, values: Node, reduce: str) -> Any:
    """The largest (smallest) value of each index; the gradient is shared by those that are equal to it. Anything where there is none."""
    name = f"scatter_{reduce[1:]}"
    fn: Any = REGISTRY[name]
    best = scatter_rows(name, full_like_shape((n,), fn.identity(values.dtype), values.dtype), index, detach(values))
    if dtype_kind(values.dtype) != "f" or not values.needs_grad:
        return best
    wins = cast(eq(values, take_rows(best, index)), values.dtype)
    zeros = full_like_shape((n,), 0, values.dtype)
    count = scatter_rows("scatter_add", zeros, index, wins)
    share = scatter_rows("scatter_add", zeros, index, where(ne(wins, 0.0), values, 0.0)) / where(eq(count, 0.0), 1.0, count)
    finite = best + where(isfinite(share), share - detach(share), 0.0)       # best's value, share's gradient
    return where(isinf(best), share, finite)


@public("scatter_reduce")
@on_nodes
def scatter_reduce(input: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True) -> Array:
    """input with src[i][j][k] combined into [index[i][j][k]][j][k] (for dim 0) by reduce: "sum", "prod", "mean", "amax" or "amin".

    include_self=False: elements that index names do not count themselves. Equal extremes share the gradient.
    Any dtype. Raises DTypeError unless index holds integers, ArgumentError for another reduce.

    >>> tg.scatter_reduce(tg.zeros(3), 0, tg.tensor([1, 1]), tg.tensor([2.0, 5.0]), "amax")
    """
    if reduce not in REDUCTIONS:
        raise ArgumentError(f"scatter_reduce: reduce must be one of {', '.join(REDUCTIONS)}, got {reduce!r}")
    d = one_dim("scatter_reduce", dim, input.ndim)
    if src.dtype != input.dtype:
        raise DTypeError(f"scatter_reduce: src {src.dtype} and input {input.dtype} must have one dtype; cast one of them")
    if src.ndim != index.ndim or any(i > s for i, s in zip(index.shape, src.shape, strict=True)):
        raise ShapeError(f"scatter_reduce: src {src.shape} must be at least as large as index {index.shape} in every dimension")
    x = input if input.ndim else mv.reshape(input, (1,))
    index, src = (v if input.ndim else mv.reshape(v, (1,)) for v in (index, src))
    src = mv.slice_(src, (0,) * src.ndim, index.shape, (1,) * src.ndim)
    lines = _linear("scatter_reduce", x.shape, d, index)
    return mv.reshape(_reduced_at(_flat(x), _flat(lines), _flat(src), reduce, include_self), input.shape)


@public("index_reduce")
@on_nodes
def index_reduce(input: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True) -> Array:
    """input with the slices of source combined into those along dim that index (1-d) names: reduce is "prod", "mean", "amax" or "amin".

    dtype: real. Raises ArgumentError for another reduce, DTypeError unless index holds integers.

    >>> tg.index_reduce(tg.ones(3), 0, tg.tensor([1]), tg.tensor([4.0]), "amax")
    """
    if reduce not in REDUCTIONS[1:]:
        raise ArgumentError(f"index_reduce: reduce must be one of {', '.join(REDUCTIONS[1:])}, got {reduce!r}")
    d = one_dim("index_reduce", dim, input.ndim)
    if not input.ndim and source.ndim <= 1:
        whole = index_reduce(mv.reshape(input, (1,)), 0, index, _flat(source), reduce, include_self=include_self)
        return mv.reshape(whole, ())
    expected = (*input.shape[:d], index.aval.size, *input.shape[d + 1:])
    if index.ndim > 1 or source.shape != expected or source.dtype != input.dtype:
        raise ShapeError(f"index_reduce: source {source.aval} must be {input.dtype} of shape {expected} for index {index.shape} (1-d) and "
                         f"input {input.shape}")
    place = mv.expand(mv.reshape(index, tuple(index.aval.size if i == d else 1 for i in range(input.ndim))), expected)
    lines = _linear("index_reduce", input.shape, d, place)
    return mv.reshape(_reduced_at(_flat(input), _flat(lines), _flat(source), reduce, include_self), input.shape)


@public("segment_reduce", method=False)
def segment_reduce(data: Array, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0,
                   unsafe: bool = False, initial: Any = None) -> Array:
    """data with each segment along axis reduced by "sum", "mean", "prod", "max" or "min": (*lead, segments, ...).

    lengths (*lead, segments): how many elements each segment has; they add up to data's size along axis, which comes after `lead`.
    offsets (*lead, segments + 1): where segments start and the last one ends, in place of lengths. indices: not supported, as in torch.
    initial: what each segment starts from (default: 0 for "sum", 1 for "prod", -inf for "max", inf for "min"; an empty "mean" is NaN).
    unsafe: whether not to check the lengths' values; inside @trace, where they are not known, they are not checked either.
    Equal extremes share the gradient. Raises ArgumentError for what does not fit together, DTypeError unless data are floats.

    >>> tg.segment_reduce(tg.tensor([1.0, 2.0, 3.0]), "sum", lengths=tg.tensor([1, 2]))
    """
    if reduce not in _SEGMENTS:
        raise ArgumentError(f"segment_reduce: reduce must be one of {', '.join(_SEGMENTS)}, got {reduce!r}")
    if indices is not None or (lengths is None) == (offsets is None):
        raise ArgumentError("segment_reduce: give lengths or offsets (one of them; indices are not supported, as in torch)")
    given = lengths if offsets is None else offsets
    if not isinstance(given, Node) and state.trace is None and not unsafe and isinstance(data, Operators):
        found = given.detach().numpy()
        counts = np.diff(found, axis=-1) if lengths is None else found
        d = one_dim("segment_reduce", axis, data.ndim)
        if counts.size and (counts.min() < 0 or (counts.sum(-1) != data.shape[d]).any()):
            raise ArgumentError(f"segment_reduce: the lengths of the segments must not be negative and must add up to {data.shape[d]}, the "
                                f"size of dimension {d}, got {counts.tolist()}")
    return _segments(data, reduce, lengths, offsets, axis, initial)


_SEGMENTS = {"sum": ("sum", 0.0), "mean": ("sum", 0.0), "prod": ("prod", 1.0), "max": ("amax", -inf), "min": ("amin", inf)}
_SEGMENTS |= {"amax": _SEGMENTS["max"], "amin": _SEGMENTS["min"]}              # torch has both names


@on_nodes
def _segments(data: Array, reduce: str, lengths: Any, offsets: Any, axis: int, initial: Any) -> Any:
    name = "segment_reduce"
    if dtype_kind(data.dtype) != "f":
        raise DTypeError(f"{name}: data must be floats, got {data.dtype}; use data.float()")
    d = one_dim(name, axis, data.ndim)
    given = offsets if lengths is None else lengths
    fits = given.dtype.kind in "iu" and given.ndim == d + 1 and given.shape[:d] == data.shape[:d]
    if not fits or (lengths is None and not given.shape[d]):
        raise ShapeError(f"{name}: {'offsets' if lengths is None else 'lengths'} must be integers {(*data.shape[:d], 'segments')} for "
                         f"data {data.shape} and axis {d}, got {given.aval}")
    given = cast(given, dtypes.int64)
    if lengths is None:
        count = given.shape[d] - 1
        ends, lengths = mv.narrow(given, d, 1, count), mv.narrow(given, d, 1, count) - mv.narrow(given, d, 0, count)
    else:
        count = given.shape[d]
        ends = cumsum(given, d)
    lead, n, rest = data.shape[:d], data.shape[d], data.shape[d + 1:]
    tail = (1,) * len(rest)
    lengths = mv.reshape(lengths, (*lead, count, *tail))
    how, start = _SEGMENTS[reduce]
    base = full_like_shape((*lead, count, *rest), start if initial is None else initial, data.dtype)
    if n and count:
        # the segment of an element: how many end at it or before (one behind the last: beyond all of them)
        segment = PUBLIC["searchsorted"](ends, mv.expand(iota((n,), 0, dtypes.int64), (*lead, n)), right=True)
        places = mv.expand(mv.reshape(segment, (*lead, n, *tail)), data.shape)
        room = mv.pad(base, (0,) * base.ndim, tuple(1 if k == d else 0 for k in range(base.ndim)))
        base = mv.narrow(scatter_reduce(room, d, places, data, how), d, 0, count)
    if reduce != "mean":
        return base
    empty = eq(lengths, 0)
    return where(empty, const(float("nan") if initial is None else initial, data.dtype), base / cast(where(empty, 1, lengths), data.dtype))


# ------------------------------------------------------------------------------------------------------------ by several


@public("index_put")
def index_put(input: Array, indices: Sequence[Array], values: Array, accumulate: bool = False) -> Array:
    """What input becomes by input[indices] = values (a tensor), or with accumulate by += (equal places add up).

    Any shapes and dtypes that assigning to input[indices] takes; raises what that raises.

    >>> tg.index_put(tg.zeros(3), (tg.tensor([1]),), tg.ones(1))
    """
    if not isinstance(indices, (tuple, list)) or not all(k is None or isinstance(k, Operators) for k in indices):
        raise ArgumentError("index_put: indices must be a tuple of tensors (or None, for whole dimensions)")
    if not isinstance(values, Operators) or values.dtype != input.dtype:
        got = getattr(values, "dtype", type(values).__name__)
        raise DTypeError(f"index_put: values must be a tensor of input's dtype {input.dtype}, got {got}")
    # A tensor of uint8 is a mask, as it is in input[indices].
    key: tuple[Any, ...] = tuple(slice(None) if k is None else ne(k, 0) if k.dtype == dtypes.uint8 else k for k in indices)
    if not accumulate:
        if not isinstance(input, Node) and state.trace is None and not state.examples and _masked(key) and not selects(input, key, values):
            key = input._known_masks(key)                       # the number of hits is a shape, so it is known before anything is written
        return setitem(input, key, values)
    if _masked(key):
        if len(key) == 1 and all(n == 1 for n in values.shape):
            mask = key[0].reshape((*key[0].shape, *[1] * (input.ndim - key[0].ndim)))
            return where(mask, input + values, input)
        if not isinstance(input, Node):                         # masks are read: a TraceError in a trace
            key = input._known_masks(key)
    places = getitem(_numbered(input), key)
    return _accumulated(input, places, values)  # type: ignore[arg-type]  # (Tensors, as the decorator allows)


def _masked(key: Sequence[Any]) -> bool:
    return any(isinstance(k, Operators) and k.dtype == dtypes.bool_ for k in key)


@on_nodes
def _numbered(x: Node) -> Node:
    return mv.reshape(iota((x.aval.size,), 0), x.shape)


@on_nodes
def _accumulated(x: Node, places: Node, values: Node) -> Any:
    spread = expanded("index_put", values, places.shape)
    return mv.reshape(scatter_rows("scatter_add", _flat(x), _flat(places), _flat(spread)), x.shape)


@public("put")
@on_nodes
def put(input: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    """input with source put at (or added to) the places of the flattened tensor that index names. Negative indices count from the end.

    The shape and dtype (any) stay. Raises DTypeError unless index holds integers.

    >>> tg.put(tg.zeros(2, 2), tg.tensor([3]), tg.ones(1))
    """
    if source.dtype != input.dtype:
        raise DTypeError(f"put: source {source.dtype} and input {input.dtype} must have one dtype; cast one of them")
    if source.aval.size != index.aval.size:
        raise ShapeError(f"put: source {source.shape} must have as many elements as index {index.shape}")
    n = input.aval.size
    rows = in_range(_flat(index), n, "put", "index", f"the {n} elements of shape {input.shape}", wrap=True)
    return mv.reshape(scatter_rows("scatter_add" if accumulate else "scatter_set", _flat(input), rows, _flat(source)), input.shape)


@public("masked_scatter")
@on_nodes
def masked_scatter(input: Array, mask: Array, source: Array) -> Array:
    """input with the elements where mask (bool) holds replaced by the first ones of source, in order; input and mask broadcast.

    That source has enough elements only the device knows: else looking at the result raises an IndexOutOfRange.

    >>> tg.masked_scatter(tg.zeros(3), tg.tensor([True, False, True]), tg.tensor([5.0, 6.0]))
    """
    if mask.dtype != dtypes.bool_:
        raise DTypeError(f"masked_scatter: the mask must be bool, got {mask.dtype}; use mask.bool()")
    if source.dtype != input.dtype:
        raise DTypeError(f"masked_scatter: source {source.dtype} and input {input.dtype} must have one dtype; cast one of them")
    shape = broadcast_shapes("masked_scatter", [input.shape, mask.shape])
    input = mv.expand(input, shape)
    hit = _flat(mv.expand(mask, shape))
    if not input.aval.size:
        return input
    count = source.aval.size
    place = where(hit, cumsum(hit, 0) - 1, const(0, dtypes.int64))
    if not count:
        source, count = full_like_shape((1,), 0, input.dtype), 1
        place = where(hit, place + 1, place)
    place = in_range(place, count, "masked_scatter", "mask", f"source, which has {source.aval.size} elements")
    return mv.reshape(where(hit, take_rows(_flat(source), place), _flat(input)), input.shape)


# -------------------------------------------------------------------------------------------------------- parts of a tensor


def _check_part(name: str, src: Node, part: tuple[int, ...], x: Node) -> Any:
    if src.shape != part:
        raise ShapeError(f"{name}: src {src.shape} must be {part}, the part of input {x.shape}")
    return cast(src, x.dtype)


@public("select_scatter")
@on_nodes
def select_scatter(input: Array, src: Array, dim: int, index: int) -> Array:
    """input with its slice input.select(dim, index) replaced by src. Any dtype. Raises ShapeError unless src has the slice's shape.

    >>> tg.select_scatter(tg.zeros(2, 2), tg.ones(2), 0, 1)
    """
    d = one_dim("select_scatter", dim, input.ndim)
    part = select(input, d, index)
    value = mv.reshape(_check_part("select_scatter", src, part.shape, input), (*part.shape[:d], 1, *part.shape[d:]))
    start = tuple(index % input.shape[d] if i == d else 0 for i in range(input.ndim))
    return put_slice(input, value, start, (1,) * input.ndim)


@public("slice_scatter")
@on_nodes
def slice_scatter(input: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """input with start:end:step along dim replaced by src. Any dtype. Raises ShapeError unless src has that shape.

    >>> tg.slice_scatter(tg.zeros(4), tg.ones(2), 0, 1, 3)
    """
    d = one_dim("slice_scatter", dim, input.ndim)
    if integer("slice_scatter", "step", step) < 1:
        raise ArgumentError(f"slice_scatter: step must be positive, got {step}")
    first, last, _ = slice(start, end, step).indices(input.shape[d])
    count = len(range(first, last, step))
    value = _check_part("slice_scatter", src, (*input.shape[:d], count, *input.shape[d + 1:]), input)
    starts, steps = ([v if i == d else rest for i in range(input.ndim)] for v, rest in ((first, 0), (step, 1)))
    return put_slice(input, value, starts, steps)


@public("diagonal_scatter")
@on_nodes
def diagonal_scatter(input: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """input with its diagonal (as `diagonal` takes it) replaced by src. Any shapes and dtypes that fit, else ShapeError.

    >>> tg.diagonal_scatter(tg.zeros(2, 2), tg.ones(2))
    """
    a, b = one_dim("diagonal_scatter", dim1, input.ndim), one_dim("diagonal_scatter", dim2, input.ndim)
    value = _check_part("diagonal_scatter", src, diagonal(input, offset, dim1, dim2).shape, input)
    x = movedim(input, (a, b), (-2, -1))
    rows, columns = x.shape[-2:]
    n, low = value.shape[-1], max(0, offset)
    along = mv.pad(value, (*[0] * (value.ndim - 1), low), (*[0] * (value.ndim - 1), columns - n - low)) if n else None
    if along is None:
        return input
    on = eq(iota((rows, columns), 1), iota((rows, columns), 0) + offset)
    return movedim(choose(on, mv.reshape(along, (*along.shape[:-1], 1, columns)), x), (-2, -1), (a, b))


# ------------------------------------------------------------------------------------------------------------------- storage


@public("as_strided")
@on_nodes
def as_strided(input: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Array:
    """Element (i, j, ...) is number storage_offset + i stride[0] + j stride[1] + ... of input's elements, row by row: a view.

    Any dtype. Raises ShapeError if it would go beyond.

    >>> tg.as_strided(tg.arange(4), (3, 2), (1, 1))
    """
    sizes, strides = sizes_of("as_strided", (size,)), sizes_of("as_strided", (stride,))
    storage_offset = integer("as_strided", "storage_offset", storage_offset)
    if len(sizes) != len(strides) or any(n < 0 for n in (*sizes, *strides, storage_offset)):
        raise ArgumentError(f"as_strided: size {sizes} and stride {strides} must be equally many numbers, not negative, as storage_offset "
                            f"({storage_offset})")
    if not prod(sizes):
        return full_like_shape(sizes, 0, input.dtype)
    last = storage_offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if last >= input.aval.size:
        raise ShapeError(f"as_strided: size {sizes}, stride {strides} and offset {storage_offset} reach element {last} of "
                         f"{input.aval.size}")
    x, left = mv.narrow(_flat(input), 0, storage_offset, last - storage_offset + 1), last - storage_offset + 1
    for d, (n, s) in enumerate(zip(sizes, strides, strict=True)):       # what a place in this dimension sees are the dimensions left
        left -= (n - 1) * s
        x = windows(x, d, left, s) if s else mv.expand(mv.reshape(x, (*sizes[:d], 1, left)), (*sizes[:d], n, left))
    return mv.reshape(x, sizes)


