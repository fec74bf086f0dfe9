"""torch.autograd's names that are not in `tracegrad.autograd`."""

from __future__ import annotations

from tracegrad.tensors.tensor import Tensor

Variable = Tensor
