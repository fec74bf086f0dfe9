"""torch._C: what Python programs ask of torch's compiled half. There is no dispatcher here, so its guards change nothing."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from tracegrad.execute.devices import find_device
from tracegrad.torch_api import devices
from tracegrad.torch_api.devices import device
from tracegrad.torch_api.names._markers import Unchanged
from tracegrad.torch_api.random_numbers import Generator

__all__ = ["DispatchKey", "DispatchKeySet", "Generator", "Graph", "Node", "Value", "device"]


class DispatchKey(Enum):
    """Whose kernels torch would take."""

    Undefined, CPU, CUDA, XPU, Meta = auto(), auto(), auto(), auto(), auto()
    Autograd, AutocastCPU, AutocastCUDA, AutocastXPU, CompositeImplicitAutograd = auto(), auto(), auto(), auto(), auto()


class DispatchKeySet(frozenset[Any]):
    """Some of them."""

    def __new__(cls, *keys: Any) -> DispatchKeySet:
        return super().__new__(cls, keys)


_ExcludeDispatchKeyGuard = _IncludeDispatchKeyGuard = _AutoDispatchBelowAutograd = _DisableTorchDispatch = Unchanged
DisableTorchFunction = DisableTorchFunctionSubclass = Unchanged


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
    return devices.accelerator() or find_device("cpu")


def _get_privateuse1_backend_name() -> str:
    return "privateuseone"


def _false(*_: Any) -> bool:
    """False; what is to be set is not."""
    return False


_is_torch_function_enabled = _len_torch_function_stack = _false
_jit_set_texpr_fuser_enabled = _jit_set_profiling_mode = _jit_set_profiling_executor = _false
_jit_override_can_fuse_on_gpu = _jit_override_can_fuse_on_cpu = _jit_can_fuse_on_gpu = _jit_can_fuse_on_cpu = _false
_jit_set_nvfuser_enabled = _jit_set_nvfuser_guard_mode = _false
