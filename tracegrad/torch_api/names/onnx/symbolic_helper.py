"""torch.onnx.symbolic_helper: a decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def parse_args(*_: str) -> Callable[[Any], Any]:
    return lambda fn: fn
