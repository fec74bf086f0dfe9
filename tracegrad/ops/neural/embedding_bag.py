"""embedding_bag: sums, means and maxima of rows of a table."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import functional
from tracegrad.graph.primitive import cast, const, iota
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import embedding, scatter_rows, shorten_rows
from tracegrad.ops.arrays.pointwise import eq, ge, le, lt, ne
from tracegrad.ops.arrays.reductions import amax, sum_
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape, unsqueeze
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.reduction import total
from tracegrad.support import dtypes

Array = Any      # a Node or a Tensor


@functional
def embedding_bag(input: Array, weight: Array, offsets: Array = None, max_norm: float | None = None, norm_type: float = 2,
                  scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Array = None,
                  include_last_offset: bool = False, padding_idx: int | None = None) -> Array:
    """Rows of weight (V, D) summed, averaged, or their largest elements, over bags of integers.

    input (B, N): each row is a bag. input (N): offsets (B) says where each bag starts (include_last_offset: and the last one ends).
    per_sample_weights: factors of the rows, for mode "sum". padding_idx: that row counts for nothing. Empty bags are 0. The others: as of
    `embedding`; as in torch, scale_grad_by_freq is not for mode "max". weight: float. Raises DTypeError unless input holds integers.

    >>> nn.functional.embedding_bag(tg.tensor([[0, 1]]), tg.eye(3))
    """
    if sparse or (scale_grad_by_freq and mode == "max"):
        raise ArgumentError("embedding_bag: sparse=True is not supported (there are no sparse gradients), nor is scale_grad_by_freq with "
                            "mode 'max'; leave them out")
    if max_norm is not None:
        shorten_rows(weight, input, max_norm, norm_type)
    return _embedding_bag(input, weight, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx)


@on_nodes
def _embedding_bag(input: Array, weight: Array, offsets: Any, scale_grad_by_freq: bool, mode: str, per_sample_weights: Any,
                   include_last_offset: bool, padding_idx: int | None) -> Array:
    found = _bags(input, weight, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx)
    alike = per_sample_weights is None or per_sample_weights.dtype == weight.dtype
    return cast(found, weight.dtype) if dtypes.is_half(weight.dtype) and alike else found


def _bags(input: Array, weight: Array, offsets: Any, scale_grad_by_freq: bool, mode: str, per_sample_weights: Any,
          include_last_offset: bool, padding_idx: int | None) -> Array:
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"embedding_bag: mode must be 'sum', 'mean' or 'max', got {mode!r}")
    if per_sample_weights is not None and (mode != "sum" or per_sample_weights.shape != input.shape):
        raise ArgumentError(f"embedding_bag: per_sample_weights are for mode 'sum', of input's shape {input.shape}, got "
                            f"{per_sample_weights.shape}")
    if (input.ndim == 1) != (offsets is not None) or input.ndim not in (1, 2):
        raise ShapeError(f"embedding_bag: takes an input (B, N) without offsets, or (N) with offsets, got {input.shape}")
    rows = embedding(input, weight, padding_idx, scale_grad_by_freq=scale_grad_by_freq)
    counts = full_like_shape(input.shape, True, dtypes.bool_) if padding_idx is None else ne(input, padding_idx % weight.shape[0])
    if dtypes.is_half(rows.dtype):                          # the rows that are read are widened, not the table
        rows = cast(rows, dtypes.float32)
    if per_sample_weights is not None:
        rows = rows * unsqueeze(per_sample_weights, -1)
    if input.ndim == 2:
        held: Any = unsqueeze(counts, -1)
        if mode == "max":
            return _largest(where(held, rows, const(-float("inf"), rows.dtype)), 1, sum_(cast(counts, dtypes.int64), 1))
        y = total(where(held, rows, const(0, rows.dtype)), (1,))
        number: Any = sum_(cast(counts, dtypes.int64), 1)
    else:
        bags = offsets.shape[0] - include_last_offset
        n = input.shape[0]
        starts: Any = in_range(mv.narrow(offsets, 0, 0, bags), n + 1, "embedding_bag", "offsets", f"{n} indices")
        if bags:
            first = in_range(mv.narrow(starts, 0, 0, 1), 1, "embedding_bag", "offsets[0]", "the first bag, which starts at 0")
            starts = mv.concat([first, mv.narrow(starts, 0, 1, bags - 1)], 0)
        # The bag of each place: how many bags start at or before it, less one.
        bag = sum_(le(unsqueeze(starts, 0), unsqueeze(iota((n,), 0), 1)), 1) - 1
        inside = ge(bag, 0)
        if include_last_offset:
            inside = inside & lt(iota((n,), 0), mv.reshape(mv.narrow(offsets, 0, bags, 1), ()))
        counts = counts & inside
        bag = where(inside, bag, const(0, dtypes.int64))
        if mode == "max":
            held = unsqueeze(eq(unsqueeze(bag, 0), unsqueeze(iota((bags,), 0), 1)) & unsqueeze(counts, 0), -1)
            return _largest(where(held, unsqueeze(rows, 0), const(-float("inf"), rows.dtype)), 1, total(cast(held, dtypes.int64), (1, 2)))
        rows = where(unsqueeze(counts, -1), rows, const(0, rows.dtype))
        y = scatter_rows("scatter_add", full_like_shape((bags, weight.shape[1]), 0, rows.dtype), bag, rows)
        number = scatter_rows("scatter_add", full_like_shape((bags,), 0, dtypes.int64), bag, cast(counts, dtypes.int64))
    return y if mode == "sum" else y / unsqueeze(cast(where(eq(number, 0), 1, number), y.dtype), -1)


def _largest(x: Any, dim: int, number: Any) -> Any:
    if not x.shape[dim]:
        return full_like_shape(tuple(n for d, n in enumerate(x.shape) if d != dim), 0, x.dtype)
    empty = mv.reshape(eq(number, 0), (x.shape[0], 1))
    filled = where(unsqueeze(empty, -1), const(0, x.dtype), x)
    return amax(filled, dim)
