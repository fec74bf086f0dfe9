"""torch.nn's names that are not in `tracegrad.nn`."""

from __future__ import annotations

from tracegrad.nn.modules.recurrent import _Cell as RNNCellBase
from tracegrad.nn.modules.recurrent import _Recurrent as RNNBase
from tracegrad.torch_api.names.nn.parallel import DataParallel

__all__ = ["DataParallel", "RNNBase", "RNNCellBase"]
