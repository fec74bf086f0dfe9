"""Activations: each is a function and its arguments. Start at `_Activation`."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.creation import full
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.operators import PUBLIC
from tracegrad.tensor import Tensor


class _Activation(Module):
    """Base of modules that are one function and its arguments: `options` names them, with their defaults."""

    function: ClassVar[str] = ""
    options: ClassVar[dict[str, Any]] = {}
    shown: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        names = list(self.options)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        unknown = [name for name in given if name not in self.options and name != "inplace"]
        if unknown or len(args) > len(names) + 1:
            raise TypeError(f"{type(self).__name__}: takes {', '.join(names) or 'no arguments'}, got {unknown or args}")
        for name, default in self.options.items():
            setattr(self, name, given.get(name, default))

    def forward(self, input: Tensor) -> Tensor:
        return getattr(F, self.function)(input, **{name: getattr(self, name) for name in self.options})  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in (self.options if self.shown is None else self.shown))


class ReLU(_Activation):
    """max(x, 0). `inplace` is accepted and means nothing: fused code has no temporary to save."""

    function = "relu"


class LeakyReLU(_Activation):
    """x where positive, else negative_slope * x."""

    function, options = "leaky_relu", {"negative_slope": 0.01}


class GELU(_Activation):
    """x times the normal distribution function of x; approximate="tanh" for the tanh formula."""

    function, options = "gelu", {"approximate": "none"}


class SiLU(_Activation):
    """x * sigmoid(x)."""

    function = "silu"


class ELU(_Activation):
    """x where positive, else alpha * (exp(x) - 1)."""

    function, options = "elu", {"alpha": 1.0}


class Softplus(_Activation):
    """log(1 + exp(beta x)) / beta, x itself where beta x is above the threshold."""

    function, options = "softplus", {"beta": 1.0, "threshold": 20.0}


class Tanh(_Activation):
    """tanh x."""

    function = "tanh"


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    function = "sigmoid"


class Softmax(_Activation):
    """Exponentials along dim divided by their sum. `dim` has to be given: torch's guess is deprecated there and absent here."""

    function, options = "softmax", {"dim": None}

    def __init__(self, dim: int) -> None:
        super().__init__(dim)


class LogSoftmax(_Activation):
    """The logarithm of the softmax along dim."""

    function, options = "log_softmax", {"dim": None}

    def __init__(self, dim: int) -> None:
        super().__init__(dim)


class Softmin(_Activation):
    """The softmax of -x along dim."""

    options = {"dim": None}

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(-input, self.dim)


class Softmax2d(Module):
    """The softmax over the channels of (N, C, H, W) or (C, H, W), at every pixel."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: takes (N, C, H, W) or (C, H, W), got {input.shape}")
        return F.softmax(input, -3)


class SELU(_Activation):
    """elu scaled so that activations keep mean 0 and variance 1 (Klambauer et al. 2017)."""

    function = "selu"


class LogSigmoid(_Activation):
    """log(sigmoid(x)), without overflow."""

    function = "logsigmoid"


class Hardtanh(_Activation):
    """x limited to [min_val, max_val]."""

    function, options = "hardtanh", {"min_val": -1.0, "max_val": 1.0}


class ReLU6(_Activation):
    """x limited to [0, 6]."""

    function = "relu6"


class GLU(_Activation):
    """The first half along dim times the sigmoid of the second (Dauphin et al. 2017)."""

    function, options = "glu", {"dim": -1}


class CELU(_Activation):
    """x where positive, else alpha (exp(x / alpha) - 1) (Barron 2017)."""

    options = {"alpha": 1.0}

    def forward(self, input: Tensor) -> Tensor:
        if self.alpha == 0:
            raise ArgumentError("CELU: alpha must not be 0")
        positive = input > 0
        return PUBLIC["where"](  # type: ignore[no-any-return]
            positive, input, (PUBLIC["where"](positive, 0.0, input) / self.alpha).expm1() * self.alpha)


class Hardsigmoid(_Activation):
    """x / 6 + 1 / 2, limited to [0, 1]."""

    def forward(self, input: Tensor) -> Tensor:
        return F.hardtanh(input + 3.0, 0.0, 6.0) / 6.0  # type: ignore[no-any-return]


class Hardswish(_Activation):
    """x times its hard sigmoid (Howard et al. 2019)."""

    def forward(self, input: Tensor) -> Tensor:
        return input * F.hardtanh(input + 3.0, 0.0, 6.0) / 6.0  # type: ignore[no-any-return]


class Mish(_Activation):
    """x tanh(log(1 + exp(x))) (Misra 2020)."""

    def forward(self, input: Tensor) -> Tensor:
        return input * F.tanh(F.softplus(input))  # type: ignore[no-any-return]


class Softsign(_Activation):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        return input / (input.abs() + 1.0)  # type: ignore[no-any-return]


class Tanhshrink(_Activation):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return input - input.tanh()  # type: ignore[no-any-return]


class Softshrink(_Activation):
    """x moved towards 0 by lambd; 0 where |x| is at most that."""

    options = {"lambd": 0.5}

    def forward(self, input: Tensor) -> Tensor:
        if not self.lambd >= 0:
            raise ArgumentError(f"Softshrink: lambd must be at least 0, got {self.lambd}")
        where = PUBLIC["where"]
        return where(input > self.lambd, input - self.lambd,  # type: ignore[no-any-return]
                     where(input < -self.lambd, input + self.lambd, input * 0.0))


class Hardshrink(_Activation):
    """x; 0 where |x| is at most lambd."""

    options = {"lambd": 0.5}

    def forward(self, input: Tensor) -> Tensor:
        return PUBLIC["where"](input.abs() <= self.lambd, 0.0, input)  # type: ignore[no-any-return]


class Threshold(_Activation):
    """x where above threshold, else value."""

    options = {"threshold": None, "value": None}

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(threshold, value)

    def forward(self, input: Tensor) -> Tensor:
        return PUBLIC["where"](input <= self.threshold, self.value, input)  # type: ignore[no-any-return]


class PReLU(Module):
    """x where positive, else weight * x with a learned weight, one or one for each channel (He et al. 2015)."""

    weight: Parameter

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), init, dtype=dtype, device=device))

    def forward(self, input: Tensor) -> Tensor:
        channels = input.shape[1] if input.ndim > 1 else 1
        if self.num_parameters not in (1, channels):
            raise ShapeError(f"PReLU: made for {self.num_parameters} channels, the input {input.shape} has {channels}")
        weight = self.weight if self.num_parameters == 1 or input.ndim < 2 else self.weight.reshape(-1, *[1] * (input.ndim - 2))
        return PUBLIC["where"](input > 0, input, weight * input)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(_Activation):
    """x where positive, else x times a factor: while training drawn uniformly from [lower, upper) for each element, else their mean."""

    options = {"lower": 1.0 / 8, "upper": 1.0 / 3}

    def forward(self, input: Tensor) -> Tensor:
        slope: Any = (self.lower + self.upper) / 2
        if self.training:
            slope = PUBLIC["rand"](input.shape, dtype=input.dtype, device=input.device) * (self.upper - self.lower) + self.lower
        return PUBLIC["where"](input >= 0, input, input * slope)  # type: ignore[no-any-return]
