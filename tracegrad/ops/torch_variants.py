"""torch's variants of functions that are here: copies in place of views, what returns its statistics too, and other names.

Each is the plain function and a step more, so that programs which use these names run; the plain ones are the better choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any

from tracegrad.errors import ArgumentError, ShapeError, TracegradError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import FUNCTIONAL, LINALG, PUBLIC, is_function, method, public
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import on_nodes, sizes_of
from tracegrad.ops.arrays.indexing import scatter_rows
from tracegrad.ops.arrays.pointwise import detach, rsqrt
from tracegrad.ops.arrays.random_bits import kept
from tracegrad.ops.arrays.reductions import mean
from tracegrad.ops.primitives import movement as mv
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


# ------------------------------------------------------------------------------------------------------- copies of views


@on_nodes
def _copied(x: Array) -> Array:
    return Node(REGISTRY["copy"], (x,), {}, x.aval, True) if x.needs_grad else bind(REGISTRY["copy"], (x,), {})


def _copy_of(name: str, arguments: str) -> None:
    """torch.<name>_copy: the function, its results with memory of their own. arguments: those of its docstring's example."""
    whole: Callable[..., Any] = PUBLIC[name]

    @wraps(whole)
    def fn(input: Array, *args: Any, **kwargs: Any) -> Any:
        try:
            result = whole(input, *args, **kwargs)
        except TracegradError as error:
            error.called_instead(fn.__name__, is_function)
            error.called(fn.__name__)
            raise
        return tuple(map(_copied, result)) if isinstance(result, tuple) else _copied(result)

    vars(fn).pop("_entered", None)                          # out= is the copy's: it is what is returned
    fn.__name__ = fn.__qualname__ = f"{name}_copy"
    operand = "tg.tensor([1 + 2j])" if name == "view_as_real" else "tg.ones(2, 2)"
    fn.__doc__ = f"""`{name}`, a copy where that is a view: arguments, shapes and dtypes as there, and it raises what that raises.

    >>> tg.{name}_copy({operand}{arguments})
    """
    public(f"{name}_copy", method=name == "narrow")(fn)


for _name, _arguments in {"as_strided": ", (2,), (1,)", "detach": "", "diagonal": "", "expand": ", 3, 2, 2", "narrow": ", 0, 0, 1",
                          "permute": ", (1, 0)", "select": ", 0, 1", "split": ", 1", "split_with_sizes": ", [1, 1]", "squeeze": "", "t": "",
                          "transpose": ", 0, 1", "unbind": "", "unfold": ", 0, 2, 1", "unsqueeze": ", 0", "view": ", 4",
                          "view_as_complex": "", "view_as_real": ""}.items():
    _copy_of(_name, _arguments)


@public("alias_copy", method=False)
def alias_copy(input: Array) -> Array:
    """A copy of input. Any shape and dtype. Raises DTypeError for what is no tensor.

    >>> tg.alias_copy(tg.ones(2))
    """
    return _copied(input)


for _name in ("chunk", "split", "split_with_sizes"):
    public(f"unsafe_{_name}")(PUBLIC[_name])


@public("as_strided_scatter")
@on_nodes
def as_strided_scatter(input: Array, src: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Array:
    """input with the elements that `as_strided(size, stride, storage_offset)` takes replaced by src; of several for one place, the last.

    Any dtype. Raises ShapeError unless src has the shape size.

    >>> tg.as_strided_scatter(tg.zeros(4), tg.ones(2), (2,), (2,))
    """
    sizes = sizes_of("as_strided_scatter", (size,))
    if src.shape != sizes:
        raise ShapeError(f"as_strided_scatter: src {src.shape} must have the shape {sizes}")
    n = input.aval.size
    places = PUBLIC["as_strided"](iota((n,), 0), sizes, stride, storage_offset)
    count = prod(sizes)
    flat, values = mv.reshape(input, (n,)), mv.reshape(cast(src, input.dtype), (count,))
    return mv.reshape(scatter_rows("scatter_set", flat, mv.reshape(places, (count,)), values), input.shape) if count else input


# --------------------------------------------------------------------------------------- normalizations and their statistics


def _moments(x: Node, dims: tuple[int, ...], eps: float) -> tuple[Any, Any]:
    """The mean and 1 / sqrt(variance + eps) over dims, which stay as sizes of 1."""
    average = mean(x, dims, True)
    centred = x - average
    return average, rsqrt(mean(centred * centred, dims, True) + eps)


@public("native_layer_norm", method=False)
@on_nodes
def native_layer_norm(input: Array, normalized_shape: Sequence[int], weight: Array = None, bias: Array = None, eps: float = 1e-5) -> Any:
    """(nn.functional.layer_norm, the means, 1 / sqrt(variance + eps)), the normalized dimensions of the last two being 1.

    dtype: float, which the result has. Raises ShapeError unless those are input's last sizes.

    >>> tg.native_layer_norm(tg.ones(2, 3), (3,))
    """
    y = FUNCTIONAL["layer_norm"](input, normalized_shape, weight, bias, eps)
    k = len(sizes_of("native_layer_norm", (normalized_shape,)))
    return (y, *_moments(detach(input), tuple(range(input.ndim - k, input.ndim)), eps))   # no derivatives, as in torch


@public("native_group_norm", method=False)
@on_nodes
def native_group_norm(input: Array, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float) -> Any:
    """(nn.functional.group_norm, the means (N, group), 1 / sqrt(variance + eps)). weight and bias may be None.

    dtype: float. Raises ShapeError where N, C, HxW are not the input's sizes, DTypeError for integers.

    >>> y, mean, scale = tg.native_group_norm(tg.rand(2, 4, 3), None, None, 2, 4, 3, 2, 1e-5)
    >>> mean.shape
    (2, 2)
    """
    if input.shape[:2] != (N, C) or prod(input.shape[2:]) != HxW:
        raise ShapeError(f"native_group_norm: N {N}, C {C} and HxW {HxW} are not the sizes of the input {input.shape}")
    y = FUNCTIONAL["group_norm"](input, group, weight, bias, eps)
    average, scale = _moments(mv.reshape(input, (N, group, C // group * HxW)), (2,), eps)
    return y, mv.reshape(average, (N, group)), mv.reshape(scale, (N, group))


@public("native_batch_norm", method=False)
def native_batch_norm(input: Array, weight: Array, bias: Array, running_mean: Array, running_var: Array, training: bool, momentum: float,
                      eps: float) -> Any:
    """(nn.functional.batch_norm, the batch's means (C), 1 / sqrt(variance + eps)); the latter empty unless training.

    dtype: float. Raises what that raises: ShapeError, DTypeError for integers, ArgumentError for one of the running ones alone.

    >>> y, mean, scale = tg.native_batch_norm(tg.rand(8, 3), None, None, None, None, True, 0.1, 1e-5)
    >>> mean.shape
    (3,)
    """
    y = FUNCTIONAL["batch_norm"](input, running_mean, running_var, weight, bias, training, momentum, eps)
    return (y, *_channel_moments(input, eps, bool(training)))


@on_nodes
def _channel_moments(input: Array, eps: float, training: bool) -> Any:
    if not training:
        nothing = mv.expand(const(0, input.dtype), (0,))
        return nothing, nothing
    average, scale = _moments(detach(input), tuple(d for d in range(input.ndim) if d != 1), eps)
    return mv.reshape(average, input.shape[1:2]), mv.reshape(scale, input.shape[1:2])


@public("native_dropout", method=False)
def native_dropout(input: Array, p: float, train: bool | None) -> Any:
    """(nn.functional.dropout, the mask of what was kept). dtype: any; the mask is bool. Raises ArgumentError unless p is from 0 to 1.

    >>> out, mask = tg.native_dropout(tg.ones(4), 0.5, True)
    """
    if train is False or not p:
        return input, PUBLIC["ones_like"](input, dtype=dtypes.bool_)
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"native_dropout: p must be from 0 to 1, got {p}")
    mask = kept(input, p, input.shape)
    return native_dropout_backward(input, mask, 1.0 / (1.0 - p) if p < 1.0 else 0.0), mask


@public("native_dropout_backward", method=False)
def native_dropout_backward(grad_output: Array, mask: Array, scale: float) -> Array:
    """grad_output where the mask (of `native_dropout`) holds, times scale; else 0. Any shape and dtype; mask: bool, else DTypeError.

    >>> tg.native_dropout_backward(tg.ones(2), tg.tensor([True, False]), 2.0)
    """
    return PUBLIC["where"](mask, grad_output * scale, 0)


# ----------------------------------------------------------------------------------------------------------- other names


def _grid_sampler(name: str, ndim: int | None) -> None:
    def fn(input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Array:
        modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
        if not (interpolation_mode in range(3) and padding_mode in range(3)) or (ndim is not None and len(input.shape) != ndim):
            raise ArgumentError(f"{name}: takes an input of {ndim or '4 or 5'} dimensions and modes from 0 to 2, got {input.shape}, "
                                f"{interpolation_mode} and {padding_mode}")
        return FUNCTIONAL["grid_sample"](input, grid, modes[interpolation_mode], paddings[padding_mode], align_corners)

    fn.__name__ = fn.__qualname__ = name
    sizes, point = ("2, 2, 2", "1, 1, 1, 3") if ndim == 5 else ("2, 2", "1, 1, 2")
    fn.__doc__ = f"""nn.functional.grid_sample with numbers for its modes: 0 bilinear, 1 nearest, 2 bicubic; 0 zeros, 1 border, 2 reflection

    dtype: float. Raises ArgumentError for other numbers.

    >>> tg.{name}(tg.ones(1, 1, {sizes}), tg.zeros(1, {point}), 0, 0, False)
    """
    public(name, method=False)(fn)


for _name, _ndim in (("grid_sampler", None), ("grid_sampler_2d", 4), ("grid_sampler_3d", 5)):
    _grid_sampler(_name, _ndim)

# torch has these in its own namespace as well, with the same arguments (but for those that it lacks there).
for _name in ("adaptive_avg_pool1d", "alpha_dropout", "avg_pool1d", "bilinear", "celu", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
              "conv_transpose2d", "conv_transpose3d", "cosine_similarity", "dropout", "feature_alpha_dropout", "group_norm", "hardshrink",
              "layer_norm", "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool3d", "rms_norm", "selu"):
    if _name in FUNCTIONAL:
        public(_name, method=_name == "hardshrink")(FUNCTIONAL[_name])


@public("chain_matmul", method=False)
def chain_matmul(*matrices: Array) -> Array:
    """`linalg.multi_dot` of the matrices. The shapes and dtypes are those; raises what that raises.

    >>> tg.chain_matmul(tg.ones(2, 3), tg.ones(3, 4), tg.ones(4, 5)).shape
    (2, 5)
    """
    return LINALG["multi_dot"](matrices)


public("affine_grid_generator", method=False)(FUNCTIONAL["affine_grid"])
public("native_channel_shuffle", method=False, functional=True)(FUNCTIONAL["channel_shuffle"])


@public("conv_tbc", method=False, functional=True)
@on_nodes
def conv_tbc(input: Array, weight: Array, bias: Array, pad: int = 0) -> Array:
    """conv1d of (time, batch, channels) with a weight (kernel, channels in, channels out) and a bias -> (time, batch, channels out).

    dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> nn.functional.conv_tbc(tg.ones(4, 1, 1), tg.ones(2, 1, 1), tg.zeros(1))
    """
    if input.ndim != 3 or weight.ndim != 3:
        raise ShapeError(f"conv_tbc: takes an input (T, N, C) and a weight (k, C, C out), got {input.shape} and {weight.shape}")
    y = FUNCTIONAL["conv1d"](mv.permute(input, (1, 2, 0)), mv.permute(weight, (2, 1, 0)), bias, 1, pad)
    return mv.permute(y, (2, 0, 1))


@public("qr")
def qr(input: Array, some: bool = True) -> Any:
    """`linalg.qr` by torch's older name: Q and R of (*, m, n), of their least sizes (some) or with all of Q.

    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.qr(tg.tensor([[1.0, 2.0], [3.0, 4.0]]))
    """
    return LINALG["qr"](input, "reduced" if some else "complete")


@public("is_same_size")
def is_same_size(input: Array, other: Array) -> bool:
    """Whether the two tensors have the same shape. Any dtypes. Raises DTypeError for what is no tensor.

    >>> tg.is_same_size(tg.ones(2), tg.zeros(2))
    """
    return tuple(input.shape) == tuple(other.shape)


@public("is_signed")
def is_signed(input: Array) -> bool:
    """Whether the dtype has negative numbers. Raises DTypeError for what is no tensor.

    >>> tg.is_signed(tg.tensor([1]))
    """
    return dtype_kind(input.dtype) in "if"


@public("is_nonzero")
def is_nonzero(input: Array) -> bool:
    """Whether a tensor of one element is not 0. Looks at it: not inside @trace.

    Any dtype. Raises ShapeError for several elements, TraceError in a trace.

    >>> tg.is_nonzero(tg.tensor([2.0]))
    """
    return bool(input)


@method("ndimension")
def ndimension(self: Array) -> int:
    """The number of dimensions."""
    return len(self.shape)
