"""torch.optim's modules with names that tracegrad has no need of; here, what torch's Optimizer has beside tracegrad's."""

from __future__ import annotations

from typing import Any

from tracegrad.optim import optimizer as _ours


def _patch_step_function(self: Any) -> None:
    """Nothing: a step has its hooks when its class is made."""


_optimizer: Any = _ours.Optimizer
_optimizer.profile_hook_step, _optimizer._patch_step_function = staticmethod(_ours.hooked), _patch_step_function
