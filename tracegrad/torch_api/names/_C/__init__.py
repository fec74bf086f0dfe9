"""torch._C: what Python programs ask of torch's compiled half. There is no dispatcher here, so its guards change nothing."""

from __future__ import annotations

from contextlib import nullcontext
from enum import Enum, auto
from typing import Any

from tracegrad.support.random_state import Generator
from tracegrad.torch_api import devices
from tracegrad.torch_api.devices import device

__all__ = ["DispatchKey", "DispatchKeySet", "Generator", "Graph", "Node", "Value", "device"]


class DispatchKey(Enum):
    """Whose kernels torch would take."""

    CPU, CUDA, XPU, Meta, Autograd, AutocastCPU, AutocastCUDA, AutocastXPU, CompositeImplicitAutograd, Undefined = (auto() for _ in range(10))


class DispatchKeySet(frozenset[Any]):
    """Some of them."""

    def __new__(cls, *keys: Any) -> DispatchKeySet:
        return super().__new__(cls, keys)


class StreamContext(nullcontext[None]):
    """A context in which nothing changes."""

    def __init__(self, *_: Any) -> None:
        super().__init__()


_ExcludeDispatchKeyGuard = _IncludeDispatchKeyGuard = _AutoDispatchBelowAutograd = _DisableTorchDispatch = DisableTorchFunction = StreamContext
DisableTorchFunctionSubclass = StreamContext


class Graph:
    """None is made here: `isinstance` says so."""


class Node(Graph):
    """None is made here."""


class Value(Graph):
    """None is made here."""


def _get_tracing_state() -> None:
    """None: torch.jit does not trace."""


def _log_api_usage_once(*_: Any) -> None:
    """Nothing is logged."""


def _get_accelerator() -> Any:
    return devices.accelerator() or device("cpu")


def _get_privateuse1_backend_name() -> str:
    return "privateuseone"


def _set_none(*_: Any) -> bool:
    return False


_jit_set_texpr_fuser_enabled = _jit_set_profiling_mode = _jit_set_profiling_executor = _jit_override_can_fuse_on_gpu = _set_none
_jit_override_can_fuse_on_cpu = _jit_set_nvfuser_enabled = _jit_set_nvfuser_guard_mode = _jit_can_fuse_on_gpu = _jit_can_fuse_on_cpu = _set_none
_is_torch_function_enabled = _len_torch_function_stack = _set_none
