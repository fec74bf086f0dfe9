"""torch.cuda.amp's names, older forms of `tg.autocast` and `tg.amp.GradScaler` that name no device."""

from __future__ import annotations

from typing import Any

from tracegrad import amp
from tracegrad.amp import custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(amp.autocast):
    """`tg.autocast("cuda", ...)`: changes nothing, and says so in a warning where it is enabled."""

    def __init__(self, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """`tg.amp.GradScaler("cuda", ...)`: switched off, which a warning says where it is enabled."""

    def __init__(self, init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000,
                 enabled: bool = True) -> None:
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
