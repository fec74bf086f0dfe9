"""functorch, what torch.func was called: its transforms, and models as functions of their weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.func import functional_call, stack_module_state
from tracegrad.nn.module import Module


def _warn(name: str, now: str) -> None:
    warnings.warn(f"functorch.{name} is deprecated, as in torch; use torch.func.{now}", FutureWarning, stacklevel=3)


class FunctionalModule:
    """A model as a function of its weights: f(params, *inputs), or f(params, buffers, *inputs)."""

    def __init__(self, model: Module, buffers: bool) -> None:
        self.stateless_model = copy.deepcopy(model)
        self.param_names = tuple(name for name, _ in model.named_parameters())
        self.buffer_names = tuple(name for name, _ in model.named_buffers()) if buffers else None

    def __call__(self, params: Sequence[Any], *inputs: Any, **kwargs: Any) -> Any:
        state = dict(zip(self.param_names, params, strict=True))
        if self.buffer_names is not None:
            buffers, *inputs = inputs  # type: ignore[assignment]
            state |= zip(self.buffer_names, buffers, strict=True)
        return functional_call(self.stateless_model, state, tuple(inputs), kwargs)

    forward = __call__


FunctionalModuleWithBuffers = FunctionalModule


def _values(tensors: Any, tracked: bool) -> tuple[Any, ...]:
    return tuple(t.detach().clone().requires_grad_(tracked and t.requires_grad) for t in tensors)


def make_functional(model: Module, disable_autograd_tracking: bool = False) -> tuple[FunctionalModule, tuple[Any, ...]]:
    """(f, params): f(params, *inputs) is what the model computes. The model must have no buffers."""
    _warn("make_functional", "functional_call")
    if any(True for _ in model.buffers()):
        raise ArgumentError("make_functional: the model has buffers; use make_functional_with_buffers")
    return FunctionalModule(model, False), _values(model.parameters(), not disable_autograd_tracking)


def make_functional_with_buffers(model: Module, disable_autograd_tracking: bool = False
                                 ) -> tuple[FunctionalModule, tuple[Any, ...], tuple[Any, ...]]:
    """(f, params, buffers): f(params, buffers, *inputs) is what the model computes."""
    _warn("make_functional_with_buffers", "functional_call")
    return FunctionalModule(model, True), _values(model.parameters(), not disable_autograd_tracking), _values(model.buffers(), False)


def combine_state_for_ensemble(models: Sequence[Module]) -> tuple[FunctionalModule, tuple[Any, ...], tuple[Any, ...]]:
    """(f, params, buffers) of models of one kind, with a first dimension for the models: for `vmap(f, ...)`."""
    _warn("combine_state_for_ensemble", "stack_module_state")
    params, buffers = stack_module_state(models)
    return FunctionalModule(models[0], True), tuple(params.values()), tuple(buffers.values())
