"""torch.fx.graph_module."""

from __future__ import annotations

from tracegrad.torch_api.names.fx import GraphModule

__all__ = ["GraphModule"]
