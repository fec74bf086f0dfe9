"""torch.fx.passes.shape_prop: what tensors a graph's nodes give for example arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

from tracegrad.graph.ir import Size
from tracegrad.support.layouts import contiguous_format
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.names.fx.interpreter import Interpreter
from tracegrad.torch_api.names.fx.node import Node, map_aggregate

__all__ = ["ShapeProp"]


class TensorMetadata(NamedTuple):
    """What is known of a tensor. Nothing is quantized here, so `qparams` is empty."""

    shape: Size
    dtype: Any
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: Any
    is_quantized: bool
    qparams: dict[str, Any]


def _extract_tensor_metadata(result: Tensor, include_contiguity: bool = True) -> TensorMetadata:
    """memory_format: contiguous_format, or None of a tensor that is not contiguous."""
    known = contiguous_format if include_contiguity and result.is_contiguous() else None
    return TensorMetadata(result.shape, result.dtype, result.requires_grad, result.stride(), known, False, {})


class ShapeProp(Interpreter):
    """Runs a graph and notes of each node what it gives: meta["tensor_meta"] (a TensorMetadata, or several), and meta["type"].

    gm: the module whose graph it is.

    >>> traced = torch.fx.symbolic_trace(torch.nn.Linear(2, 3))
    >>> _ = torch.fx.passes.shape_prop.ShapeProp(traced).propagate(torch.ones(4, 2))
    >>> [node.meta["tensor_meta"].shape for node in traced.graph.nodes][-1]
    torch.Size([4, 3])
    """

    def __init__(self, gm: Any, fake_mode: Any = None) -> None:
        super().__init__(gm)

    def run_node(self, n: Node) -> Any:
        """What the node gives, which is noted."""
        result = super().run_node(n)
        found = False

        def noted(value: Any) -> Any:
            nonlocal found
            if not isinstance(value, Tensor):
                return value
            found = True
            return _extract_tensor_metadata(value)

        meta = map_aggregate(result, noted)
        if found:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args: Any) -> Any:
        """What the graph gives for the arguments."""
        return self.run(*args)
