"""torch.nn's names that are not in `tracegrad.nn`."""

from __future__ import annotations

from tracegrad.torch_api.names.nn.modules import RNNBase, RNNCellBase
from tracegrad.torch_api.names.nn.parallel import DataParallel

__all__ = ["DataParallel", "RNNBase", "RNNCellBase"]
