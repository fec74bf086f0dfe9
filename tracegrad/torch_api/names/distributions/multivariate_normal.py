"""torch.distributions.multivariate_normal: a private name that other packages ask for."""

from __future__ import annotations

from tracegrad.distributions.location_scale import _precision_to_scale_tril

__all__ = ["_precision_to_scale_tril"]
