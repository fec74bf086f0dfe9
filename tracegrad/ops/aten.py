"""torch.ops.aten's names: what torch's compiler and exporters write in place of the public functions, with aten's arguments.

Each is composed of the public function, which is the better choice in a program of one's own. They are `tg.ops.aten.<name>`; those that
torch also has in its own namespace are `tg.<name>`, too.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from math import floor, prod
from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, public
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import integer, on_nodes, one_dim, rounded_once
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import scatter_rows
from tracegrad.ops.arrays.pointwise import clamp, eq, le
from tracegrad.ops.arrays.reductions import all_, logsumexp, sum_
from tracegrad.ops.arrays.shaping.reordering import mT
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.convolution.resampling import resampled
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.neural.softmax import softmax
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


# ----------------------------------------------------------------------------------------------------- softmax and attention


@public("_softmax_backward_data", method=False)
@on_nodes
@rounded_once
def _softmax_backward_data(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    """The gradient of softmax's input, from the gradient and the value of its output; in input_dtype."""
    d = one_dim("_softmax_backward_data", dim, output.ndim)
    if grad_output.shape != output.shape:
        raise ShapeError(f"_softmax_backward_data: grad_output {grad_output.shape} and output {output.shape} must have one shape")
    return cast(grad_output * output - output * sum_(grad_output * output, d, True), dtypes.as_dtype(input_dtype))


@on_nodes
@rounded_once
def _safe_softmax(input: Array, dim: int, dtype: Any = None) -> Array:
    """softmax along dim, and 0 where all along it are -inf (there softmax is NaN)."""
    x = input if dtype is None else cast(input, dtypes.as_dtype(dtype))
    x = x if dtype_kind(x.dtype) == "f" else cast(x, dtypes.get_default_dtype())
    nothing = all_(eq(x, float("-inf")), one_dim("_safe_softmax", dim, x.ndim), True)
    zero = const(0, x.dtype)
    return where(nothing, zero, softmax(where(nothing, zero, x), dim))


def _scaled_dot_product_flash_attention_for_cpu(query: Array, key: Array, value: Array, dropout_p: float = 0.0, is_causal: bool = False, *,
                                                attn_mask: Any = None, scale: float | None = None) -> Any:
    """(nn.functional.scaled_dot_product_attention, the logarithm of the sum of exponentials of each row: (N, heads, L))."""
    if len(query.shape) != 4 or dropout_p:
        raise ArgumentError("_scaled_dot_product_flash_attention_for_cpu: takes (N, heads, L, E) and dropout_p 0, got "
                            f"{tuple(query.shape)} and {dropout_p}")
    y = FUNCTIONAL["scaled_dot_product_attention"](query, key, value, attn_mask, 0.0, is_causal, scale)
    factor = query.shape[-1]**-0.5 if scale is None else scale
    if attn_mask is None and _is_fused(query, key, value):
        return y, _fused_sums(query.detach(), key.detach(), value.detach(), bool(is_causal), factor)
    return y, _row_sums(query.detach(), key.detach(), attn_mask, bool(is_causal), factor)


def attention_gradients(grad: Array, query: Array, key: Array, value: Array, out: Array, sums: Array, is_causal: bool,
                        scale: float | None) -> tuple[Array, ...] | None:
    """The gradients of query, key and value, of what `_scaled_dot_product_flash_attention_for_cpu` gave without a mask, which is not
    computed again. None where attention is not one operation."""
    if not _is_fused(query, key, value):
        return None
    return tuple(_fused_gradients(grad, query, key, value, out, sums, is_causal, query.shape[-1]**-0.5 if scale is None else scale))


def _is_fused(query: Array, key: Array, value: Array) -> bool:
    """Whether attention is one operation, with a result and sums of query's dtype."""
    alike = query.dtype == key.dtype == value.dtype and query.dtype.itemsize >= 4 and 0 not in (*query.shape, *key.shape, *value.shape)
    return alike and query.shape[:2] == key.shape[:2] == value.shape[:2]


def _flat(x: Any) -> Any:
    return mv.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _without_masks(is_causal: bool, scale: float) -> dict[str, Any]:
    return {"scale": float(scale), "causal": is_causal, "masks": (), "zeros": False}


@on_nodes
def _fused_sums(query: Array, key: Array, value: Array, is_causal: bool, scale: float) -> Array:
    sums = bind(REGISTRY["attention_sums"], (_flat(query), _flat(key), _flat(value)), _without_masks(is_causal, scale))
    return mv.reshape(sums, query.shape[:3])


@on_nodes
def _fused_gradients(grad: Array, query: Array, key: Array, value: Array, out: Array, sums: Array, is_causal: bool,
                     scale: float) -> list[Array]:
    given = [_flat(x) for x in (query, key, value, grad, out, sums)]
    fn, attrs = REGISTRY["attention_gradient_of_sums"], _without_masks(is_causal, scale)
    return [mv.reshape(bind(fn, tuple(given), attrs | {"index": i}), x.shape) for i, x in enumerate((query, key, value))]


@on_nodes
def _row_sums(query: Array, key: Array, mask: Any, is_causal: bool, scale: float) -> Array:
    scores = matmul(query, mT(key)) * scale
    if is_causal:
        shape = scores.shape[-2:]
        mask = le(iota(shape, 1, dtypes.int32), iota(shape, 0, dtypes.int32))
    if mask is not None and mask.dtype == dtypes.bool_:
        scores = where(mask, scores, const(float("-inf"), scores.dtype))
    elif mask is not None:
        scores = scores + cast(mask, scores.dtype)
    return logsumexp(scores, -1)


# ------------------------------------------------------------------------------------------------------ normalization, images


@public("_native_batch_norm_legit", method=False)
def _native_batch_norm_legit(input: Array, weight: Any, bias: Any, *rest: Any) -> Any:
    """`native_batch_norm`: (input, weight, bias, running_mean, running_var, training, momentum, eps), or without the running statistics."""
    if len(rest) not in (3, 5):
        raise ArgumentError("_native_batch_norm_legit: takes (input, weight, bias, running_mean, running_var, training, momentum, eps), or "
                            f"these without the running statistics, got {3 + len(rest)} arguments")
    mean, var, training, momentum, eps = rest if len(rest) == 5 else (None, None, *rest)
    return PUBLIC["native_batch_norm"](input, weight, bias, mean, var, training, momentum, eps)


@public("_batch_norm_with_update", method=False)
def _batch_norm_with_update(input: Array, weight: Any, bias: Any, running_mean: Array, running_var: Array, momentum: float,
                            eps: float) -> Any:
    """(`native_batch_norm` in training, and no bytes: what cuDNN would keep for its backward)."""
    found = PUBLIC["native_batch_norm"](input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *found, PUBLIC["zeros"](0, dtype=dtypes.uint8, device=input.device)


@public("_upsample_bilinear2d_aa", method=False)
@on_nodes
def _upsample_bilinear2d_aa(input: Array, output_size: Any, align_corners: bool, scale_factors: Any = None, scales_w: float | None = None,
                            *, scales_h: float | None = None) -> Array:
    """nn.functional.interpolate(mode="bilinear", antialias=True) to output_size, or (if that is None) by scale_factors (two numbers).

    scales_h, scales_w: by what the images are taken to be scaled, whatever output_size says; scales_h may be given fourth.
    """
    name = "_upsample_bilinear2d_aa"
    if input.ndim != 4 or dtype_kind(input.dtype) != "f" or 0 in input.shape[1:]:
        raise ShapeError(f"{name}: takes floats (N, C, H, W), got {input.aval}")
    if scales_h is None and isinstance(scale_factors, (int, float)):
        scale_factors, scales_h = None, scale_factors
    scales: Any = (scales_h, scales_w) if scale_factors is None else tuple(scale_factors)
    if (output_size is None) == (scale_factors is None) or len(scales) != 2:
        raise ArgumentError(f"{name}: give output_size or two scale_factors, and not both, got {output_size} and {scale_factors}")
    size = output_size if scale_factors is None else [floor(s * f) for s, f in zip(input.shape[2:], scales, strict=True)]
    sizes = [integer(name, "output_size", s) for s in size]
    if len(sizes) != 2 or min(sizes) < 1:
        raise ArgumentError(f"{name}: output_size must be two positive integers, got {sizes}")
    return resampled(input, sizes, scales, "bilinear", bool(align_corners), True)


@public("max_pool2d_with_indices_backward", method=False)
@on_nodes
def max_pool2d_with_indices_backward(grad_output: Array, self: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
                                     ceil_mode: bool, indices: Array) -> Array:
    """The gradient of max_pool2d's input `self`: grad_output added up at indices. The windows' arguments are there for torch's sake.

    self (*, C, H, W), the others (*, C, h, w); dtype: float, of indices int64. Raises ShapeError where they do not fit, IndexOutOfRange for
    an index outside of its image.

    >>> x = tg.rand(1, 4, 4)
    >>> y, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
    >>> tg.max_pool2d_with_indices_backward(tg.ones_like(y), x, 2, 2, 0, 1, False, indices).sum()
    Tensor(4., device='cpu')
    """
    name = "max_pool2d_with_indices_backward"
    if self.ndim not in (3, 4) or grad_output.shape != indices.shape or grad_output.shape[:-2] != self.shape[:-2]:
        raise ShapeError(f"{name}: grad_output {grad_output.shape} and indices {indices.shape} must be what max_pool2d gives of the input, "
                         f"{self.shape}")
    images, room, count = prod(self.shape[:-2]), prod(self.shape[-2:]), prod(indices.shape[-2:])
    place = in_range(mv.reshape(indices, (images, count)), room, name, "indices", f"an image of {self.shape[-2:]}")
    place = place + mv.reshape(iota((images,), 0, place.dtype), (images, 1)) * room
    flat = full_like_shape((images * room,), 0, grad_output.dtype)
    whole = (images * count,)
    return mv.reshape(scatter_rows("scatter_add", flat, mv.reshape(place, whole), mv.reshape(grad_output, whole)), self.shape)


# ---------------------------------------------------------------------------------------------------------------- indexing


@public("_chunk_cat", method=False)
@on_nodes
def _chunk_cat(tensors: Sequence[Array], dim: int, num_chunks: int) -> Array:
    """(*lead, num_chunks, n): each tensor filled up with zeros along dim to a multiple of num_chunks, cut into those, rest flattened."""
    if integer("_chunk_cat", "num_chunks", num_chunks) < 1:
        raise ArgumentError(f"_chunk_cat: num_chunks must be positive, got {num_chunks}")
    ndims = {x.ndim for x in tensors}
    if dim < 0 and len(ndims) > 1:
        raise ArgumentError(f"_chunk_cat: dim must not be negative for tensors of different numbers of dimensions, got {dim}")
    d = one_dim("_chunk_cat", dim, min(ndims))
    if any(not x.aval.size or x.shape[:d] != tensors[0].shape[:d] or x.dtype != tensors[0].dtype for x in tensors):
        raise ShapeError("_chunk_cat: the tensors must have one dtype, the same sizes before dim, and none may be empty, got "
                         f"{', '.join(str(x.aval) for x in tensors)}")
    parts = []
    for x in tensors:
        more = -x.shape[d] % num_chunks
        x = mv.pad(x, (0,) * x.ndim, tuple(more if k == d else 0 for k in range(x.ndim)))
        parts.append(mv.reshape(x, (*x.shape[:d], num_chunks, prod(x.shape[d:]) // num_chunks)))
    return mv.concat(parts, d + 1)


def _bounded(x: Array, indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(k if k is None else clamp(k, -n, n - 1) for k, n in zip(indices, x.shape, strict=False))


@public("_unsafe_masked_index", method=False)
def _unsafe_masked_index(self: Array, mask: Array, indices: Sequence[Any], fill: Any) -> Array:
    """self[indices] where mask holds, else fill: indices (None: a whole dimension) may be out of range where it does not."""
    if 0 in self.shape:
        return PUBLIC["full"](mask.shape, fill, dtype=self.dtype, device=self.device)
    key = tuple(builtins.slice(None) if k is None else k for k in _bounded(self, indices))
    return self[key].masked_fill(~mask, fill)


@public("_unsafe_masked_index_put_accumulate", method=False)
def _unsafe_masked_index_put_accumulate(self: Array, mask: Array, indices: Sequence[Any], values: Array) -> Array:
    """self with values added at indices where mask holds: indices may be out of range where it does not."""
    if 0 in self.shape:
        return self
    return PUBLIC["index_put"](self, _bounded(self, indices), values.masked_fill(~mask, 0), accumulate=True)


@on_nodes
def slice(input: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """input[start:end:step] along dim; step must be positive."""
    if not input.ndim:
        raise ShapeError("slice: a 0-d tensor has no dimension to cut")
    d = one_dim("slice", dim, input.ndim)
    if integer("slice", "step", step) < 1:
        raise ArgumentError(f"slice: step must be positive, got {step}")
    return input[(*[builtins.slice(None)] * d, builtins.slice(start, end, step))]
