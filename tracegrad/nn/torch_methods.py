"""Methods of torch's modules that programs call or override, made of the ones that `Module` has. Start at `TorchMethods._apply`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import DECORATORS
from tracegrad.support.html import preformatted, table
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor

if TYPE_CHECKING:
    from tracegrad.nn.hooks import RemovableHandle

M = TypeVar("M", bound="TorchMethods")


def empty_tables() -> dict[str, Any]:
    """What a module keeps its parts in, before it has any."""
    return {"_parameters": {}, "_buffers": {}, "_modules": {}, "_non_persistent_buffers_set": set(), "_tg_hooks": {}}


class _WithoutModule:
    """A hook that is called without the module that comes first. (An object, so that modules can be pickled.)"""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, module: Any, *rest: Any) -> Any:
        return self.hook(*rest)


class TorchMethods:
    """The base of `Module`."""

    T_destination = TypeVar("T_destination", bound=dict[str, Any])
    dump_patches = False
    call_super_init = False
    _version = 1                                        # of what state dicts hold
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    if TYPE_CHECKING:
        _tg_moved: Callable[..., Any]
        _tg_own_state: Callable[..., Any]
        modules: Callable[[], Iterator[Any]]
        children: Callable[[], Iterator[Any]]
        forward: Callable[..., Any]
        named_parameters: Callable[[], Iterator[tuple[str, Any]]]
        register_full_backward_hook: Callable[..., RemovableHandle]
        register_state_dict_post_hook: Callable[..., RemovableHandle]
        register_load_state_dict_pre_hook: Callable[..., RemovableHandle]

    def cpu(self: M) -> M:
        """Move parameters and buffers to the CPU; returns self."""
        self._tg_moved("cpu")
        return self

    def cuda(self: M, device: Any = None) -> M:
        """Move parameters and buffers to the GPU, whoever made it; returns self. Raises DeviceError where there is none."""
        self._tg_moved("gpu" if device is None or isinstance(device, int) else device)
        return self

    xpu = cuda

    def _apply(self: M, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> M:
        """Put fn(tensor) in the place of each parameter's and buffer's value, here and below; the objects stay the same. Returns self."""
        if recurse:
            for child in self.children():
                child._apply(fn)
        with no_grad():
            for table in (self._parameters, self._buffers):
                for tensor in table.values():
                    if tensor is not None:
                        tensor.data = fn(tensor.data)
                        if tensor.grad is not None:
                            tensor.grad.data = fn(tensor.grad.data)
        return self

    def to_empty(self: M, *, device: Any, recurse: bool = True) -> M:
        """Move to a device without the values, which are zeros there; returns self."""
        return self._apply(lambda t: t.new_zeros(t.shape, device=device), recurse)

    def share_memory(self: M) -> M:
        """Nothing: threads share memory as it is; processes do not. Returns self."""
        return self

    def compile(self, *_: Any, **__: Any) -> None:
        """Trace `forward` from now on. torch's options mean nothing here."""
        self.forward = DECORATORS["trace"](self.forward)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`register_full_backward_hook`, by torch's older name."""
        return self.register_full_backward_hook(hook)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`register_state_dict_post_hook`, by torch's older name."""
        return self.register_state_dict_post_hook(hook)

    def _register_load_state_dict_pre_hook(self, hook: Callable[..., Any], with_module: bool = False) -> RemovableHandle:
        """`register_load_state_dict_pre_hook`, by torch's older name: without `with_module` the hook is not given the module."""
        return self.register_load_state_dict_pre_hook(hook if with_module else _WithoutModule(hook))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
                              missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str]) -> None:
        """Nothing: `load_state_dict` copies what is in `state_dict` after it has called this.

        A class overrides it to rename, add or remove entries of `state_dict`, and may call `super()`'s.
        """

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Put the module's own tensors, without those of modules below, into `destination`; a class may put others there."""
        for name, tensor in self._tg_own_state(prefix):
            destination[name] = tensor if keep_vars or not isinstance(tensor, Tensor) else tensor.data

    def _repr_html_(self) -> str:
        """In a notebook: its parts, and a table of its parameters."""
        found = list(self.named_parameters())
        rows = [(name, " x ".join(map(str, p.shape)), p.dtype, p.numel(), "" if p.requires_grad else "frozen") for name, p in found]
        total = f"{sum(p.numel() for _, p in found)} parameters"
        return f"<div>{preformatted(repr(self))}{table(('parameter', 'shape', 'dtype', 'elements', ''), rows, total)}</div>"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What pickle gives: attributes that it lacks are empty."""
        if not isinstance(state, dict):
            raise ArgumentError(f"__setstate__: expected a dict of attributes, got {type(state).__name__}")
        vars(self).update(empty_tables() | state)
