"""torch.nn.init's older names, which write in place like those with "_"."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from tracegrad.nn import init


def _older(name: str) -> Callable[..., Any]:
    real = getattr(init, f"{name}_")

    @wraps(real)
    def function(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`.", FutureWarning, stacklevel=2)
        return real(*args, **kwargs)

    return function


(constant, dirac, eye, kaiming_normal, kaiming_uniform, normal, orthogonal, sparse, uniform, xavier_normal, xavier_uniform) = map(
    _older, ("constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal", "sparse", "uniform",
             "xavier_normal", "xavier_uniform"))


def _calculate_correct_fan(tensor: Any, mode: str) -> int:
    """What "fan_in" or "fan_out" is of a weight."""
    return init.fan(tensor)[("fan_in", "fan_out").index(mode.lower())]
