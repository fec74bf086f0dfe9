"""torch._C: what Python programs ask of torch's compiled half. There is no dispatcher here, so its guards change nothing."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from tracegrad.execute.devices import find_device
from tracegrad.graph.operators import PUBLIC
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import devices
from tracegrad.torch_api.devices import device
from tracegrad.torch_api.names._markers import Unchanged
from tracegrad.torch_api.overrides import Off
from tracegrad.torch_api.overrides import Off as DisableTorchFunction
from tracegrad.torch_api.overrides import disabled as _disabled_torch_function_impl
from tracegrad.torch_api.overrides import enabled as _is_torch_function_enabled
from tracegrad.torch_api.overrides import modes_entered as _len_torch_function_stack
from tracegrad.torch_api.random_numbers import Generator
from tracegrad.torch_api.storages import root

__all__ = ["DisableTorchFunction", "DispatchKey", "DispatchKeySet", "Generator", "Graph", "Node", "Value",
           "_disabled_torch_function_impl", "_is_torch_function_enabled", "_len_torch_function_stack", "device"]


_TensorMeta = type(Tensor)


def _are_functorch_transforms_active() -> bool:
    """Whether a vmap goes on, for whose examples there are no values to look at."""
    return bool(state.examples)


def _is_torch_function_mode_enabled() -> bool:
    """Whether there is a mode around whose `__torch_function__` is called."""
    return _is_torch_function_enabled() and _len_torch_function_stack() > 0


def _is_alias_of(a: Tensor, b: Tensor) -> bool:
    """Whether the tensors share memory."""
    return root(a) is root(b)


class DispatchKey(Enum):
    """Whose kernels torch would take."""

    Undefined, CPU, CUDA, XPU, Meta = auto(), auto(), auto(), auto(), auto()
    Autograd, AutocastCPU, AutocastCUDA, AutocastXPU, CompositeImplicitAutograd = auto(), auto(), auto(), auto(), auto()


class DispatchKeySet(frozenset[Any]):
    """Some of them."""

    def __new__(cls, *keys: Any) -> DispatchKeySet:
        return super().__new__(cls, keys)


_ExcludeDispatchKeyGuard = _IncludeDispatchKeyGuard = _AutoDispatchBelowAutograd = _DisableTorchDispatch = Unchanged


class DisableTorchFunctionSubclass(Off):
    """A block in which no argument's `__torch_function__` is called; those of modes are."""

    def __init__(self) -> None:
        super().__init__(modes=False)


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


def _get_default_device() -> str:
    """The kind of device on which tensors are made, where nothing else is said."""
    return str(PUBLIC["empty"](0).device.type)


def _get_accelerator() -> Any:
    return devices.accelerator() or find_device("cpu")


def _get_privateuse1_backend_name() -> str:
    return "privateuseone"


def _false(*_: Any) -> bool:
    """False; what is to be set is not."""
    return False


_jit_set_texpr_fuser_enabled = _jit_set_profiling_mode = _jit_set_profiling_executor = _false
_jit_override_can_fuse_on_gpu = _jit_override_can_fuse_on_cpu = _jit_can_fuse_on_gpu = _jit_can_fuse_on_cpu = _false
_jit_set_nvfuser_enabled = _jit_set_nvfuser_guard_mode = _false
