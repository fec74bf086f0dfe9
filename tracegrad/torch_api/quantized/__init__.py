"""Floats as integers of few bits would hold them, with gradients: torch.fake_quantize_per_tensor_affine. Start at `_per_tensor_affine`."""

from __future__ import annotations

from typing import Any

import tracegrad as tg
from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.support import dtypes
from tracegrad.tensors.tensor import Tensor

__all__: list[str] = []


def _per_tensor_affine(input: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Any:
    """(clamp(round(input / scale) + zero_point, quant_min, quant_max) - zero_point) * scale, in the shape and dtype of input, a float one.

    scale, zero_point: numbers, or tensors of one element. The gradient is 1 where nothing was clamped, else 0; a NaN becomes the lowest.
    Raises ArgumentError for a range that is empty or leaves the zero point out, DTypeError for other dtypes.
    """
    if not isinstance(zero_point, Tensor) and quant_min <= quant_max and not quant_min <= zero_point <= quant_max:
        raise ArgumentError("fake_quantize_per_tensor_affine: `zero_point` must be between `quant_min` and `quant_max`, got "
                            f"{zero_point}, {quant_min} and {quant_max}")
    scale, zero_point = (x.reshape(()) if isinstance(x, Tensor) else x for x in (scale, zero_point))
    scale = tg.tensor(scale, dtype="float32", device=input.device) if not isinstance(scale, Tensor) else scale
    return _fake_quantized("fake_quantize_per_tensor_affine", input, scale, zero_point, quant_min, quant_max)


def _per_channel_affine(input: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int) -> Any:
    """The same with a scale and a zero point, which may be a float, for each index along a dimension.

    Raises ShapeError unless they are vectors of its size, ArgumentError for an axis that is not there.
    """
    if not 0 <= axis < input.ndim:
        raise ArgumentError(f"fake_quantize_per_channel_affine: `axis` must be between 0 and number of dimensions of input, got {axis}")
    if dtypes.as_dtype(zero_point.dtype).name not in ("int32", "float32", "float16"):
        raise DTypeError(f"fake_quantize_per_channel_affine: Zero-point must be Int32, Float or Half, found {zero_point.dtype}")
    if not scale.shape == zero_point.shape == (input.shape[axis],):
        raise ArgumentError("fake_quantize_per_channel_affine: dimensions of scale and zero-point are not consistent with input tensor: "
                            f"{scale.shape}, {zero_point.shape}, and {input.shape[axis]} along axis {axis}")
    along = [-1 if d == axis else 1 for d in range(input.ndim)]
    return _fake_quantized("fake_quantize_per_channel_affine", input, scale.reshape(along), zero_point.reshape(along), quant_min, quant_max)


def _fake_quantized(call: str, input: Any, scale: Any, zero_point: Any, low: int, high: int) -> Any:
    """scale and zero_point broadcast with input. What was kept passes the gradient on, though rounding has none."""
    if not dtypes.is_float(input.dtype):
        raise DTypeError(f"{call}: takes floats, got {input.dtype}")
    if low > high:
        raise ArgumentError(f"{call}: `quant_min` should be less than or equal to `quant_max`, got {low} and {high}")
    computed = "float64" if dtypes.as_dtype(input.dtype) == dtypes.float64 else "float32"
    given, step = input.detach().to(dtype=computed), scale.detach().to(dtype="float32")
    scaled = given * (1.0 / step).to(dtype=computed)
    step = step.to(dtype=computed)
    if isinstance(zero_point, Tensor):
        zero_point = zero_point.detach()
        rounded = (tg.round(scaled + zero_point.to(dtype=computed)) if dtypes.is_float(zero_point.dtype)
                   else tg.round(scaled) + zero_point.to(dtype=computed))
        zero_point = zero_point.to(dtype=computed)
    else:
        rounded = tg.round(scaled) + zero_point
    kept = tg.where(tg.isnan(rounded), low, rounded.clamp(low, high))
    result = ((kept - zero_point) * step).to(dtype=input.dtype)
    if not input.requires_grad:
        return result
    passed = tg.where((rounded >= low) & (rounded <= high), input, 0.0)           # finite: infinities are clamped
    return result + (passed - passed.detach())


_per_tensor_affine.__name__, _per_channel_affine.__name__ = "fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine"
