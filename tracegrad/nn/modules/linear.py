"""Linear layers."""

from __future__ import annotations

import math
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.tensors.creation.filled import empty
from tracegrad.tensors.tensor import Tensor


class Identity(Module):
    """The input as it is; takes and ignores any arguments. Any shape and dtype; raises nothing.

    >>> nn.Identity()(tg.ones(2))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """y = x Wᵀ + b: (*, in_features) -> (*, out_features). weight (out, in) and bias (out) start uniform in ±1/sqrt(in_features).

    Of the shapes and dtypes of nn.functional.linear; raises what that raises.

    >>> nn.Linear(3, 2)(tg.rand(4, 3)).shape
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, dtype=dtype, device=device))
        self.register_parameter("bias", Parameter(empty(out_features, dtype=dtype, device=device)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        uniform_by_fan_in(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear that quantization leaves alone: the last map of `MultiheadAttention`."""


def uniform_by_fan_in(weight: Parameter, bias: Parameter | None) -> None:
    """torch's default for linear and convolution layers."""
    init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan_in = init.fan(weight)[0]
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(bias, -bound, bound)


class Bilinear(Module):
    """y_k = x1ᵀ A_k x2 + b_k: (*, in1_features), (*, in2_features) -> (*, out_features). weight (out, in1, in2) and bias (out) start
    uniform in ±1/sqrt(in1_features). Of the shapes and dtypes of nn.functional.bilinear; raises what that raises.

    >>> nn.Bilinear(3, 4, 2)(tg.rand(5, 3), tg.rand(5, 4)).shape
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if in1_features < 1:
            raise ArgumentError(f"Bilinear: in1_features must be at least 1, got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, dtype=dtype, device=device))
        self.register_parameter("bias", Parameter(empty(out_features, dtype=dtype, device=device)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        bound = 1 / math.sqrt(self.in1_features)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}")
