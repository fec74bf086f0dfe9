"""Activations: each is a function and its arguments. Start at `FunctionModule`."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ShapeError, warn
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.modules.function import FunctionModule
from tracegrad.nn.parameter import Parameter
from tracegrad.ops.arguments import integer
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.filled import full
from tracegrad.tensors.tensor import Tensor


class _Inplace(FunctionModule):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class _Exponential(FunctionModule):
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace


class ReLU(_Inplace):
    """max(x, 0). Of the shapes and dtypes of nn.functional.relu; raises what that raises.

    >>> nn.ReLU()(tg.tensor([-1.0, 1.0]))
    """

    function = "relu"


class LeakyReLU(FunctionModule):
    """x where positive, else negative_slope * x. Of the shapes and dtypes of nn.functional.leaky_relu; raises what that raises.

    >>> nn.LeakyReLU()(tg.tensor([-1.0, 1.0]))
    """

    function = "leaky_relu"

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace


class GELU(FunctionModule):
    """x times the normal distribution function of x; approximate="tanh" for the tanh formula.

    Of the shapes and dtypes of nn.functional.gelu; raises what that raises.

    >>> nn.GELU()(tg.tensor([-1.0, 1.0]))
    """

    function = "gelu"

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate


class SiLU(_Inplace):
    """x * sigmoid(x). Of the shapes and dtypes of nn.functional.silu; raises what that raises.

    >>> nn.SiLU()(tg.tensor([-1.0, 1.0]))
    """

    function = "silu"


class ELU(_Exponential):
    """x where positive, else alpha * (exp(x) - 1). Of the shapes and dtypes of nn.functional.elu; raises what that raises.

    >>> nn.ELU()(tg.tensor([-1.0, 1.0]))
    """

    function = "elu"


class Softplus(FunctionModule):
    """log(1 + exp(beta x)) / beta, x itself where beta x is above the threshold.

    Of the shapes and dtypes of nn.functional.softplus; raises what that raises.

    >>> nn.Softplus()(tg.tensor([-1.0, 1.0]))
    """

    function = "softplus"

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold


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

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = None if dim is None else integer(type(self).__name__, "dim", dim)


class Softmax(_AlongDim):
    """Exponentials along dim divided by their sum. dim: None takes dim 1 (of 0, 1 or 3 dimensions 0), with a warning: give it.

    Of the shapes and dtypes of nn.functional.softmax; raises what that raises.

    >>> nn.Softmax(dim=0)(tg.tensor([1.0, 2.0]))
    """

    function = "softmax"


class LogSoftmax(_AlongDim):
    """The logarithm of the softmax along dim. Of the shapes and dtypes of nn.functional.log_softmax; raises what that raises.

    >>> nn.LogSoftmax(dim=0)(tg.tensor([1.0, 2.0]))
    """

    function = "log_softmax"


class Softmin(FunctionModule):
    """The softmax of -x along dim. Of the shapes and dtypes of nn.functional.softmin; raises what that raises.

    >>> nn.Softmin(dim=0)(tg.tensor([1.0, 2.0]))
    """

    function = "softmin"

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim


class Softmax2d(Module):
    """The softmax over the channels of (N, C, H, W) or (C, H, W), at every pixel.

    Of the shapes and dtypes of nn.functional.softmax; raises what that raises.

    >>> nn.Softmax2d()(tg.rand(1, 3, 2, 2))
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: takes (N, C, H, W) or (C, H, W), got {input.shape}")
        return F.softmax(input, -3)


class SELU(_Inplace):
    """elu scaled so that activations keep mean 0 and variance 1 (Klambauer et al. 2017).

    Of the shapes and dtypes of nn.functional.selu; raises what that raises.

    >>> nn.SELU()(tg.tensor([-1.0, 1.0]))
    """

    function = "selu"


class LogSigmoid(FunctionModule):
    """log(sigmoid(x)), without overflow. Of the shapes and dtypes of nn.functional.logsigmoid; raises what that raises.

    >>> nn.LogSigmoid()(tg.tensor([-1.0, 1.0]))
    """

    function = "logsigmoid"


class Hardtanh(FunctionModule):
    """x limited to [min_val, max_val]. Of the shapes and dtypes of nn.functional.hardtanh; raises what that raises.

    >>> nn.Hardtanh()(tg.tensor([-1.0, 1.0]))
    """

    function, options = "hardtanh", ("min_val", "max_val", "inplace")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False, min_value: float | None = None,
                 max_value: float | None = None) -> None:
        super().__init__()
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace
        # torch's older names, which come before the others
        for name, older, value in (("min_val", "min_value", min_value), ("max_val", "max_value", max_value)):
            if value is not None:
                warn(f"Hardtanh: {older} is deprecated; use {name} instead", FutureWarning)
                setattr(self, name, value)


class ReLU6(Hardtanh):
    """x limited to [0, 6]. Of the shapes and dtypes of nn.functional.relu6; raises what that raises.

    >>> nn.ReLU6()(tg.tensor([-1.0, 1.0]))
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class GLU(FunctionModule):
    """The first half along dim times the sigmoid of the second (Dauphin et al. 2017).

    Of the shapes and dtypes of nn.functional.glu; raises what that raises.

    >>> nn.GLU()(tg.tensor([1.0, 0.0]))
    """

    function = "glu"

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim


class CELU(_Exponential):
    """x where positive, else alpha (exp(x / alpha) - 1) (Barron 2017).

    Of the shapes and dtypes of nn.functional.celu; raises what that raises.

    >>> nn.CELU()(tg.tensor([-1.0, 1.0]))
    """

    function = "celu"


class Hardsigmoid(_Inplace):
    """x / 6 + 1 / 2, limited to [0, 1]. Of the shapes and dtypes of nn.functional.hardsigmoid; raises what that raises.

    >>> nn.Hardsigmoid()(tg.tensor([-1.0, 1.0]))
    """

    function = "hardsigmoid"


class Hardswish(_Inplace):
    """x times its hard sigmoid (Howard et al. 2019). Of the shapes and dtypes of nn.functional.hardswish; raises what that raises.

    >>> nn.Hardswish()(tg.tensor([-1.0, 1.0]))
    """

    function = "hardswish"


class Mish(_Inplace):
    """x tanh(log(1 + exp(x))) (Misra 2020). Of the shapes and dtypes of nn.functional.mish; raises what that raises.

    >>> nn.Mish()(tg.tensor([-1.0, 1.0]))
    """

    function = "mish"


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


class _Shrink(FunctionModule):
    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def extra_repr(self) -> str:
        return str(self.lambd)


class Softshrink(_Shrink):
    """x moved towards 0 by lambd; 0 where |x| is at most that.

    Of the shapes and dtypes of nn.functional.softshrink; raises what that raises.

    >>> nn.Softshrink()(tg.tensor([-1.0, 1.0]))
    """

    function = "softshrink"


class Hardshrink(_Shrink):
    """x; 0 where |x| is at most lambd. Of the shapes and dtypes of nn.functional.hardshrink; raises what that raises.

    >>> nn.Hardshrink()(tg.tensor([-1.0, 1.0]))
    """

    function = "hardshrink"


class Threshold(FunctionModule):
    """x where above threshold, else value. Of the shapes and dtypes of nn.functional.threshold; raises what that raises.

    >>> nn.Threshold(0.5, 0.0)(tg.tensor([-1.0, 1.0]))
    """

    function = "threshold"

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace


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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The weight as it began."""
        with no_grad():
            self.weight.fill_(self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(FunctionModule):
    """x where positive, else x times a factor: while training drawn uniformly from [lower, upper) for each element, else their mean.

    Of the shapes and dtypes of nn.functional.rrelu; raises what that raises.

    >>> nn.RReLU()(tg.tensor([-1.0, 1.0]))
    """

    function = "rrelu"

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)
