"""torch.distributions.transforms: the class of inverses by torch's private name."""

from __future__ import annotations

from tracegrad.distributions.transforms import _Inverse as _InverseTransform

__all__ = ["_InverseTransform"]
