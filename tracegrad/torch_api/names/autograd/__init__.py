"""torch.autograd's names that are not in `tracegrad.autograd`."""

from __future__ import annotations

import tracegrad as tg

Variable = tg.Tensor
