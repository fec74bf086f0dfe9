"""torch.autograd.graph."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import UnsupportedError
from tracegrad.torch_api.names._markers import Unchanged


class Node:
    """None is made here: `isinstance` says so."""


save_on_cpu = Unchanged               # what a backward needs is computed again or stored as the plan decides, on the device


class saved_tensors_hooks:
    """Functions that would see each saved tensor. They cannot be entered: a derivative saves graphs, not tensors."""

    def __init__(self, pack_hook: Any, unpack_hook: Any) -> None:
        raise UnsupportedError("saved_tensors_hooks: no tensor would come to them; use tracegrad.utils.checkpoint to save memory")


def increment_version(tensor: Any) -> None:
    """Nothing."""
