"""torch.fx: functions and modules as graphs that programs read and change. Start at `symbolic_trace`.

A function is called with proxies (proxy.py), which record what is done with them as the nodes (node.py) of a graph (graph.py). A
`GraphModule` runs a graph as the Python code that _code.py writes, an `Interpreter` node by node.
"""

from __future__ import annotations

from tracegrad.torch_api.names.fx._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap
from tracegrad.torch_api.names.fx.graph import CodeGen, Graph
from tracegrad.torch_api.names.fx.graph_module import GraphModule
from tracegrad.torch_api.names.fx.interpreter import Interpreter, Transformer
from tracegrad.torch_api.names.fx.node import Node, has_side_effect, map_arg
from tracegrad.torch_api.names.fx.proxy import Proxy
from tracegrad.torch_api.names.fx.subgraph_rewriter import replace_pattern

__all__ = ["PH", "CodeGen", "Graph", "GraphModule", "Interpreter", "Node", "Proxy", "ProxyableClassMeta", "Tracer", "Transformer",
           "has_side_effect", "map_arg", "replace_pattern", "symbolic_trace", "wrap"]
