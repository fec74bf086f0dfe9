"""torch.distributions.transforms: what programs take from it by torch's private names."""

from __future__ import annotations

from typing import Any

from tracegrad.distributions.transforms import _InverseTransform
from tracegrad.distributions.utils import clamp_open
from tracegrad.tensors.tensor import Tensor

__all__ = ["_InverseTransform", "_clipped_sigmoid"]


def _clipped_sigmoid(x: Tensor) -> Any:
    """sigmoid(x), never 0 or 1."""
    return clamp_open(x.sigmoid())
