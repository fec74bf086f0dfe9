"""Activations: each is a function and its arguments. Start at `_Activation`."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
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
