"""torch.amp.grad_scaler, beside what tracegrad.amp has."""

from __future__ import annotations

from enum import Enum
from typing import Any


class OptState(Enum):
    """How far a scaler is with an optimizer, which programs compare with."""

    READY, UNSCALED, STEPPED = range(3)


def _refresh_per_optimizer_state() -> dict[str, Any]:
    """What a scaler knows of an optimizer before a step."""
    return {"stage": OptState.READY, "found_inf_per_device": {}}
