"""torch.compiler: what programs ask of a compiler that is not running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.torch_api.names._dynamo import list_backends as list_backends
from tracegrad.torch_api.names._markers import unchanged


def is_compiling() -> bool:
    """False: `torch.compile` is `trace`, which runs the function's own Python code."""
    return False


is_dynamo_compiling = is_exporting = is_compiling
disable = allow_in_graph = unchanged
assume_constant_result = unchanged


def reset() -> None:
    """Nothing: traces are guarded by what they depend on."""


def cudagraph_mark_step_begin() -> None:
    """Nothing."""


def set_stance(*_: Any, **__: Any) -> None:
    """Nothing."""


def substitute_in_graph(original: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    return unchanged
