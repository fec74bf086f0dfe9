"""A batch norm that is not trained any more, put into the layer before it: torch.nn.utils.fusion's names."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import named
from tracegrad.nn.parameter import Parameter
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor

M = TypeVar("M")


def fuse_conv_bn_weights(conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
                         bn_b: Tensor | None, transpose: bool = False) -> tuple[Parameter, Parameter]:
    """Weight and bias of the convolution that is a convolution and then a batch norm, of running statistics bn_rm and bn_rv.

    transpose: of a transposed convolution, whose weight has its outputs in the second dimension.
    """
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 1 if transpose else 0)


def fuse_linear_bn_weights(linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
                           bn_b: Tensor | None) -> tuple[Parameter, Parameter]:
    """Weight and bias of the linear layer that is a linear layer and then a batch norm."""
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)


def _fused(w: Any, b: Any, mean: Any, var: Any, eps: float, scale: Any, shift: Any, outputs: int) -> tuple[Parameter, Parameter]:
    with no_grad():
        factor = (var + eps).rsqrt() if scale is None else scale * (var + eps).rsqrt()
        shape = [-1 if d == outputs else 1 for d in range(w.ndim)]
        bias = (-mean if b is None else b - mean) * factor
        bias = bias if shift is None else bias + shift
        weight = w * factor.reshape(shape)
    trained = w.requires_grad if b is None else b.requires_grad
    return (Parameter(weight.to(dtype=w.dtype), w.requires_grad), Parameter(bias.to(dtype=(w if b is None else b).dtype), trained))


@named
def fuse_conv_bn_eval(conv: M, bn: Any, transpose: bool = False) -> M:
    """A copy of the convolution that does what it and the batch norm after it do, both in eval mode. ArgumentError if one is training.

    >>> fused = nn.utils.fuse_conv_bn_eval(nn.Conv2d(3, 8, 3).eval(), nn.BatchNorm2d(8).eval())
    """
    return _copy_with("fuse_conv_bn_eval", conv, bn, 1 if transpose else 0)  # type: ignore[no-any-return]


@named
def fuse_linear_bn_eval(linear: M, bn: Any) -> M:
    """A copy of the linear layer that does what it and the batch norm after it do, both in eval mode. ArgumentError if one is training,

    or if the batch norm has another number of features than the layer has outputs, and not 1.
    """
    if bn.num_features not in (1, linear.out_features):  # type: ignore[attr-defined]
        raise ArgumentError(f"fuse_linear_bn_eval: the batch norm's num_features {bn.num_features} must be 1 or the layer's out_features "
                            f"{linear.out_features}")  # type: ignore[attr-defined]
    return _copy_with("fuse_linear_bn_eval", linear, bn, 0)  # type: ignore[no-any-return]


def _copy_with(call: str, layer: Any, bn: Any, outputs: int) -> Any:
    if layer.training or bn.training:
        raise ArgumentError(f"{call}: fuses layers in eval mode; call eval() on both")
    if bn.running_mean is None or bn.running_var is None:
        raise ArgumentError(f"{call}: the batch norm has no running statistics; make it with track_running_stats=True")
    fused = copy.deepcopy(layer)
    fused.weight, fused.bias = _fused(layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, outputs)
    return fused


__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]
