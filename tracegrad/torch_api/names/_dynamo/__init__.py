"""torch._dynamo: no such compiler runs; `torch.compile` is `trace`."""

from __future__ import annotations

from typing import Any

from tracegrad.torch_api.names._markers import unchanged

disable = allow_in_graph = disallow_in_graph = forbid_in_graph = assume_constant_result = run = optimize = unchanged


def is_compiling() -> bool:
    """False."""
    return False


def graph_break(*_: Any) -> None:
    """Nothing."""


def reset() -> None:
    """Nothing."""


def mark_dynamic(*_: Any, **__: Any) -> None:
    """Nothing: each shape has a trace of its own."""


mark_static = maybe_mark_dynamic = mark_static_address = mark_dynamic


def is_dynamo_supported() -> bool:
    return False
