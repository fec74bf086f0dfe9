"""torch.onnx: nothing is exported; packages that tell it how are accepted."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import UnsupportedError


def is_in_onnx_export() -> bool:
    """False."""
    return False


def register_custom_op_symbolic(*_: Any) -> None:
    """Nothing."""


def export(*_: Any, **__: Any) -> Any:
    raise UnsupportedError("torch.onnx.export: tracegrad writes no ONNX files; tracegrad.save keeps the weights, which torch loads")
