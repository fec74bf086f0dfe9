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
    """max(x, 0). Of the shapes and dtypes of nn.functional.relu; raises what that raises.

    >>> nn.ReLU()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "relu", {"inplace": False}


class LeakyReLU(FunctionModule):
    """x where positive, else negative_slope * x. Of the shapes and dtypes of nn.functional.leaky_relu; raises what that raises.

    >>> nn.LeakyReLU()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "leaky_relu", {"negative_slope": 0.01, "inplace": False}


class GELU(FunctionModule):
    """x times the normal distribution function of x; approximate="tanh" for the tanh formula.

    Of the shapes and dtypes of nn.functional.gelu; raises what that raises.

    >>> nn.GELU()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "gelu", {"approximate": "none"}


class SiLU(FunctionModule):
    """x * sigmoid(x). Of the shapes and dtypes of nn.functional.silu; raises what that raises.

    >>> nn.SiLU()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "silu", {"inplace": False}


class ELU(FunctionModule):
    """x where positive, else alpha * (exp(x) - 1). Of the shapes and dtypes of nn.functional.elu; raises what that raises.

    >>> nn.ELU()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "elu", {"alpha": 1.0, "inplace": False}


class Softplus(FunctionModule):
    """log(1 + exp(beta x)) / beta, x itself where beta x is above the threshold.

    Of the shapes and dtypes of nn.functional.softplus; raises what that raises.

    >>> nn.Softplus()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "softplus", {"beta": 1.0, "threshold": 20.0}


class Tanh(FunctionModule):
    """tanh x. Of the shapes and dtypes of nn.functional.tanh; raises what that raises.

    >>> nn.Tanh()(tg.tensor([-1.0, 1.0]))
    """

    function = "tanh"


class Sigmoid(FunctionModule):
    """1 / (1 + exp(-x)). Of the shapes and dtypes of nn.functional.sigmoid; raises what that raises.

    >>> nn.Sigmoid()(tg.tensor([-1.0, 1.0]))
    """

    function = "sigmoid"


class _AlongDim(FunctionModule):
    """Base of those that take a dim: an integer or None, as in torch since 2.14. Raises ArgumentTypeError for another."""

    dim: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.dim is not None:
            self.dim = integer(type(self).__name__, "dim", self.dim)


class Softmax(_AlongDim):
    """Exponentials along dim divided by their sum. dim: None takes dim 1 (of 0, 1 or 3 dimensions 0), with a warning: give it.

    Of the shapes and dtypes of nn.functional.softmax; raises what that raises.

    >>> nn.Softmax(dim=0)(tg.tensor([1.0, 2.0]))
    """

    function, options = "softmax", {"dim": None}


class LogSoftmax(_AlongDim):
    """The logarithm of the softmax along dim. Of the shapes and dtypes of nn.functional.log_softmax; raises what that raises.

    >>> nn.LogSoftmax(dim=0)(tg.tensor([1.0, 2.0]))
    """

    function, options = "log_softmax", {"dim": None}


class Softmin(FunctionModule):
    """The softmax of -x along dim. Of the shapes and dtypes of nn.functional.softmin; raises what that raises.

    >>> nn.Softmin(dim=0)(tg.tensor([1.0, 2.0]))
    """

    function, options = "softmin", {"dim": None}


class Softmax2d(Module):
    """The softmax over the channels of (N, C, H, W) or (C, H, W), at every pixel.

    Of the shapes and dtypes of nn.functional.softmax; raises what that raises.

    >>> nn.Softmax2d()(tg.rand(1, 3, 2, 2))
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: takes (N, C, H, W) or (C, H, W), got {input.shape}")
        return F.softmax(input, -3)


class SELU(FunctionModule):
    """elu scaled so that activations keep mean 0 and variance 1 (Klambauer et al. 2017).

    Of the shapes and dtypes of nn.functional.selu; raises what that raises.

    >>> nn.SELU()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "selu", {"inplace": False}


class LogSigmoid(FunctionModule):
    """log(sigmoid(x)), without overflow. Of the shapes and dtypes of nn.functional.logsigmoid; raises what that raises.

    >>> nn.LogSigmoid()(tg.tensor([-1.0, 1.0]))
    """

    function = "logsigmoid"


class Hardtanh(FunctionModule):
    """x limited to [min_val, max_val]. Of the shapes and dtypes of nn.functional.hardtanh; raises what that raises.

    >>> nn.Hardtanh()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "hardtanh", {"min_val": -1.0, "max_val": 1.0, "inplace": False}

    def __init__(self, *args: Any, min_value: float | None = None, max_value: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # torch's older names, which come before the others
        for name, older, value in (("min_val", "min_value", min_value), ("max_val", "max_value", max_value)):
            if value is not None:
                warnings.warn(f"Hardtanh: {older} is deprecated; use {name} instead", FutureWarning, stacklevel=2)
                setattr(self, name, value)


class ReLU6(FunctionModule):
    """x limited to [0, 6]. Of the shapes and dtypes of nn.functional.relu6; raises what that raises.

    >>> nn.ReLU6()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "relu6", {"inplace": False}
    min_val, max_val = 0.0, 6.0                                 # as of Hardtanh, which it is to torch


class GLU(FunctionModule):
    """The first half along dim times the sigmoid of the second (Dauphin et al. 2017).

    Of the shapes and dtypes of nn.functional.glu; raises what that raises.

    >>> nn.GLU()(tg.tensor([1.0, 0.0]))
    """

    function, options = "glu", {"dim": -1}


class CELU(FunctionModule):
    """x where positive, else alpha (exp(x / alpha) - 1) (Barron 2017).

    Of the shapes and dtypes of nn.functional.celu; raises what that raises.

    >>> nn.CELU()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "celu", {"alpha": 1.0, "inplace": False}


class Hardsigmoid(FunctionModule):
    """x / 6 + 1 / 2, limited to [0, 1]. Of the shapes and dtypes of nn.functional.hardsigmoid; raises what that raises.

    >>> nn.Hardsigmoid()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "hardsigmoid", {"inplace": False}


class Hardswish(FunctionModule):
    """x times its hard sigmoid (Howard et al. 2019). Of the shapes and dtypes of nn.functional.hardswish; raises what that raises.

    >>> nn.Hardswish()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "hardswish", {"inplace": False}


class Mish(FunctionModule):
    """x tanh(log(1 + exp(x))) (Misra 2020). Of the shapes and dtypes of nn.functional.mish; raises what that raises.

    >>> nn.Mish()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "mish", {"inplace": False}


class Softsign(FunctionModule):
    """x / (1 + |x|). Of the shapes and dtypes of nn.functional.softsign; raises what that raises.

    >>> nn.Softsign()(tg.tensor([-1.0, 1.0]))
    """

    function = "softsign"


class Tanhshrink(FunctionModule):
    """x - tanh(x). Of the shapes and dtypes of nn.functional.tanhshrink; raises what that raises.

    >>> nn.Tanhshrink()(tg.tensor([-1.0, 1.0]))
    """

    function = "tanhshrink"


class Softshrink(FunctionModule):
    """x moved towards 0 by lambd; 0 where |x| is at most that.

    Of the shapes and dtypes of nn.functional.softshrink; raises what that raises.

    >>> nn.Softshrink()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "softshrink", {"lambd": 0.5}

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(FunctionModule):
    """x; 0 where |x| is at most lambd. Of the shapes and dtypes of nn.functional.hardshrink; raises what that raises.

    >>> nn.Hardshrink()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "hardshrink", {"lambd": 0.5}

    def extra_repr(self) -> str:
        return str(self.lambd)


class Threshold(FunctionModule):
    """x where above threshold, else value. Of the shapes and dtypes of nn.functional.threshold; raises what that raises.

    >>> nn.Threshold(0.5, 0.0)(tg.tensor([-1.0, 1.0]))
    """

    function, options = "threshold", {"threshold": ..., "value": ..., "inplace": False}


class PReLU(Module):
    """x where positive, else weight * x with a learned weight, one or one for each channel (He et al. 2015).

    Of the shapes and dtypes of nn.functional.prelu; raises what that raises.

    >>> nn.PReLU()(tg.tensor([-1.0, 1.0]))
    """

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
    """x where positive, else x times a factor: while training drawn uniformly from [lower, upper) for each element, else their mean.

    Of the shapes and dtypes of nn.functional.rrelu; raises what that raises.

    >>> nn.RReLU()(tg.tensor([-1.0, 1.0]))
    """

    options = {"lower": 1.0 / 8, "upper": 1.0 / 3, "inplace": False}

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)
