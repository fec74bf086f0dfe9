"""torch._dynamo: no such compiler runs; `torch.compile` is `trace`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tracegrad.nn.module import Module
from tracegrad.torch_api.names._dynamo.eval_frame import OptimizedModule as OptimizedModule
from tracegrad.torch_api.names._dynamo.eval_frame import is_dynamo_supported as is_dynamo_supported
from tracegrad.torch_api.names._markers import unchanged
from tracegrad.tracing.trace import trace

disable = allow_in_graph = disallow_in_graph = forbid_in_graph = assume_constant_result = run = optimize = unchanged


def is_compiling() -> bool:
    """False."""
    return False


def list_backends(exclude_tags: Any = ("debug", "experimental")) -> list[str]:
    """The names that programs give `torch.compile` as `backend=`: each is `trace`.

    >>> import tracegrad.torch_api.names._dynamo as dynamo
    >>> dynamo.list_backends()
    ['inductor', 'tracegrad']
    """
    return ["inductor", "tracegrad"]


def graph_break(*_: Any) -> None:
    """Nothing."""


def reset() -> None:
    """Nothing."""


def mark_dynamic(*_: Any, **__: Any) -> None:
    """Nothing: each shape has a trace of its own."""


mark_static = maybe_mark_dynamic = mark_static_address = mark_dynamic


@dataclasses.dataclass
class _ExplainOutput:
    """What `explain` found: one graph (a traced function's record), whose operations are tracegrad's."""

    graphs: list[Any]
    graph_count: int
    graph_break_count: int
    break_reasons: list[Any]
    op_count: int
    ops_per_graph: list[Any] | None = None
    out_guards: list[Any] | None = None
    compile_times: str | None = None

    def __str__(self) -> str:
        return (f"Graph Count: {self.graph_count}\nGraph Break Count: {self.graph_break_count}\nOp Count: {self.op_count}\n"
                "Break Reasons:\n")


def explain(f: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., _ExplainOutput]:
    """A function that traces `f` with its arguments, and tells of the graph: there is one, or an error says why not."""
    def explained(*args: Any, **kwargs: Any) -> _ExplainOutput:
        traced: Any = trace(f.forward if isinstance(f, Module) else f)
        traced(*args, **kwargs)
        graph = traced.graph
        names = [node.fn.name for node in graph if node.operands]
        return _ExplainOutput([graph], 1, 0, [], len(names), [names])

    return explained
