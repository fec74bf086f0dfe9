"""torch.autograd.graph."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tracegrad.errors import UnsupportedError


class Node:
    """None is made here: `isinstance` says so."""


class save_on_cpu(nullcontext[None]):
    """Nothing changes: what a backward needs is computed again or stored as the plan decides, on the device."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__()


class saved_tensors_hooks:
    """Functions that would see each saved tensor. They cannot be entered: a derivative saves graphs, not tensors."""

    def __init__(self, pack_hook: Any, unpack_hook: Any) -> None:
        raise UnsupportedError("saved_tensors_hooks: no tensor would come to them; use tracegrad.utils.checkpoint to save memory")


def increment_version(tensor: Any) -> None:
    """Nothing."""
