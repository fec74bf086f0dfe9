"""torch.amp's names, for programs that ask for mixed precision where there is CUDA: they run as with torch where there is none.

Products of float16 and bfloat16 are computed in float32 anyway; `model.half()`, `model.bfloat16()` and `x.to(dtype)` choose what is stored.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from tracegrad.errors import INTERNAL, ArgumentError


class autocast:
    """Context manager and decorator that changes nothing. Asked for "cuda" it says so in a warning, as torch does where there is no CUDA;

    any other device_type raises ArgumentError unless enabled is False: results would have other dtypes than the program expects.

    >>> with tg.autocast("cpu", enabled=False):
    ...     (tg.ones(2) * 2).dtype
    dtype('float32')
    """

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        _disabled("autocast", device_type, enabled)
        del dtype, cache_enabled

    def __enter__(self) -> autocast:
        return self

    def __exit__(self, *exc: object) -> None:
        return

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapped


class GradScaler:
    """torch's scaler of losses, switched off, as it is there without CUDA: `scale` gives the loss, `step` is the optimizer's.

    Asked for "cuda" it says so in a warning; any other device raises ArgumentError unless enabled is False.

    >>> scaler = tg.amp.GradScaler(enabled=False)
    >>> scaler.scale(tg.tensor(2.0))
    Tensor(2., device='cpu')
    """

    def __init__(self, device: str = "cuda", init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, enabled: bool = True) -> None:
        _disabled("GradScaler", device, enabled)
        del init_scale, growth_factor, backoff_factor, growth_interval

    def scale(self, outputs: Any) -> Any:
        """The loss, or losses, as they are."""
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Nothing: gradients have no scale."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args, **kwargs)`."""
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Nothing: there is no scale."""

    def get_scale(self) -> float:
        """1.0"""
        return 1.0

    def is_enabled(self) -> bool:
        """False."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Empty, as torch's of a scaler that is switched off."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing, as in torch."""


def _disabled(who: str, device_type: Any, enabled: bool) -> None:
    """Say of mixed precision that is asked for that there is none. Raises ArgumentError where torch would change dtypes."""
    if not enabled:
        return
    if str(device_type).partition(":")[0] != "cuda":
        raise ArgumentError(f"{who}: there is no automatic mixed precision (asked for on {str(device_type)!r}); choose dtypes with "
                            "model.half() and x.to(dtype), or give enabled=False")
    depth = next(k for k, frame in enumerate(inspect.stack()) if not frame.filename.startswith(INTERNAL))
    warnings.warn(f"{who} is switched off: there is no CUDA here (tg.cuda.is_available() is False)", stacklevel=depth + 1)
