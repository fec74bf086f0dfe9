"""torch.distributions.kl: beside `tracegrad.distributions.divergence`, the table in which packages look for a rule."""

from __future__ import annotations

from tracegrad.distributions import divergence

__all__: list[str] = []
_KL_REGISTRY = divergence._RULES
