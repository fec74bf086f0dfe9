"""Activations: each is a function and its arguments. Start at `FunctionModule`."""

from __future__ import annotations

import warnings
from typing import Any

from tracegrad.errors import ShapeError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.modules.function import FunctionModule
from tracegrad.nn.parameter import Parameter
from tracegrad.ops.arguments import integer
from tracegrad.tensors.creation.filled import full
from tracegrad.tensors.tensor import Tensor


class ReLU(FunctionModule):
    """max(x, 0)."""

    function, options = "relu", {"inplace": False}


class LeakyReLU(FunctionModule):
    """x where positive, else negative_slope * x."""

    function, options = "leaky_relu", {"negative_slope": 0.01, "inplace": False}


class GELU(FunctionModule):
    """x times the normal distribution function of x; approximate="tanh" for the tanh formula."""

    function, options = "gelu", {"approximate": "none"}


class SiLU(FunctionModule):
    """x * sigmoid(x)."""

    function, options = "silu", {"inplace": False}


class ELU(FunctionModule):
    """x where positive, else alpha * (exp(x) - 1)."""

    function, options = "elu", {"alpha": 1.0, "inplace": False}


class Softplus(FunctionModule):
    """log(1 + exp(beta x)) / beta, x itself where beta x is above the threshold."""

    function, options = "softplus", {"beta": 1.0, "threshold": 20.0}


class Tanh(FunctionModule):
    """tanh x."""

    function = "tanh"


class Sigmoid(FunctionModule):
    """1 / (1 + exp(-x))."""

    function = "sigmoid"


class _AlongDim(FunctionModule):
    """Base of those that take a dim: an integer or None, as in torch since 2.14. Raises ArgumentTypeError for another."""

    dim: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.dim is not None:
            self.dim = integer(type(self).__name__, "dim", self.dim)


class Softmax(_AlongDim):
    """Exponentials along dim divided by their sum. dim: None takes dim 1 (of 0, 1 or 3 dimensions 0), with a warning: give it."""

    function, options = "softmax", {"dim": None}


class LogSoftmax(_AlongDim):
    """The logarithm of the softmax along dim."""

    function, options = "log_softmax", {"dim": None}


class Softmin(FunctionModule):
    """The softmax of -x along dim."""

    function, options = "softmin", {"dim": None}


class Softmax2d(Module):
    """The softmax over the channels of (N, C, H, W) or (C, H, W), at every pixel."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: takes (N, C, H, W) or (C, H, W), got {input.shape}")
        return F.softmax(input, -3)


class SELU(FunctionModule):
    """elu scaled so that activations keep mean 0 and variance 1 (Klambauer et al. 2017)."""

    function, options = "selu", {"inplace": False}


class LogSigmoid(FunctionModule):
    """log(sigmoid(x)), without overflow."""

    function = "logsigmoid"


class Hardtanh(FunctionModule):
    """x limited to [min_val, max_val]."""

    function, options = "hardtanh", {"min_val": -1.0, "max_val": 1.0, "inplace": False}

    def __init__(self, *args: Any, min_value: float | None = None, max_value: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # torch's older names, which come before the others
        for name, older, value in (("min_val", "min_value", min_value), ("max_val", "max_value", max_value)):
            if value is not None:
                warnings.warn(f"Hardtanh: {older} is deprecated; use {name} instead", FutureWarning, stacklevel=2)
                setattr(self, name, value)


class ReLU6(FunctionModule):
    """x limited to [0, 6]."""

    function, options = "relu6", {"inplace": False}
    min_val, max_val = 0.0, 6.0                                 # as of Hardtanh, which it is to torch


class GLU(FunctionModule):
    """The first half along dim times the sigmoid of the second (Dauphin et al. 2017)."""

    function, options = "glu", {"dim": -1}


class CELU(FunctionModule):
    """x where positive, else alpha (exp(x / alpha) - 1) (Barron 2017)."""

    function, options = "celu", {"alpha": 1.0, "inplace": False}


class Hardsigmoid(FunctionModule):
    """x / 6 + 1 / 2, limited to [0, 1]."""

    function, options = "hardsigmoid", {"inplace": False}


class Hardswish(FunctionModule):
    """x times its hard sigmoid (Howard et al. 2019)."""

    function, options = "hardswish", {"inplace": False}


class Mish(FunctionModule):
    """x tanh(log(1 + exp(x))) (Misra 2020)."""

    function, options = "mish", {"inplace": False}


class Softsign(FunctionModule):
    """x / (1 + |x|)."""

    function = "softsign"


class Tanhshrink(FunctionModule):
    """x - tanh(x)."""

    function = "tanhshrink"


class Softshrink(FunctionModule):
    """x moved towards 0 by lambd; 0 where |x| is at most that."""

    function, options = "softshrink", {"lambd": 0.5}

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(FunctionModule):
    """x; 0 where |x| is at most lambd."""

    function, options = "hardshrink", {"lambd": 0.5}

    def extra_repr(self) -> str:
        return str(self.lambd)


class Threshold(FunctionModule):
    """x where above threshold, else value."""

    function, options = "threshold", {"threshold": ..., "value": ..., "inplace": False}


class PReLU(Module):
    """x where positive, else weight * x with a learned weight, one or one for each channel (He et al. 2015)."""

    weight: Parameter

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), init, dtype=dtype, device=device))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(FunctionModule):
    """x where positive, else x times a factor: while training drawn uniformly from [lower, upper) for each element, else their mean."""

    options = {"lower": 1.0 / 8, "upper": 1.0 / 3, "inplace": False}

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)
