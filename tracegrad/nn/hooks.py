"""Hooks of modules: handles to remove them, and how the gradients that pass a module are seen."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tracegrad.custom.custom_function import Function
from tracegrad.tensors.tensor import Tensor

_numbers = itertools.count()


class RemovableHandle:
    """What registering a hook returns: `remove()` takes the hook away; as a context manager, at the end of the block."""

    def __init__(self, hooks: dict[str, dict[int, Any]], kind: str) -> None:
        self._hooks, self._kind, self.id = hooks, kind, next(_numbers)

    def remove(self) -> None:
        """Take the hook away; a second time does nothing."""
        of_kind = self._hooks.get(self._kind, {})
        of_kind.pop(self.id, None)
        if not of_kind:
            self._hooks.pop(self._kind, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class _Passing(Function):
    """The tensors as they are; backward hands their gradients, a tuple, to `seen` and passes on what that returns."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[tuple[Any, ...]], tuple[Any, ...]], *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.seen = seen
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.seen(grads))


def around_backward(module: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                    hooks: dict[str, dict[int, Any]]) -> Any:
    """forward(*args, **kwargs) between two operations whose derivatives call the module's backward hooks, if it has any."""
    before, after = list(hooks.get("backward_pre", {}).values()), list(hooks.get("backward", {}).values())
    if not before and not after:
        return forward(*args, **kwargs)
    inputs = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
    taken, given_back = len(args), 0                        # the operations know these numbers and no tensors: those know the operations
    latest: tuple[Any, ...] = ()                            # the gradients of the outputs

    def at_inputs(grads: tuple[Any, ...]) -> tuple[Any, ...]:
        full: Any = tuple(grads[inputs.index(k)] if k in inputs else None for k in range(taken))
        for hook in after:
            given = hook(module, full, latest)
            if given is not None:
                full = given if isinstance(given, tuple) else (given,)
        return tuple(full[k] for k in inputs)

    def at_outputs(grads: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal latest
        full: Any = tuple(grads[outputs.index(k)] if k in outputs else None for k in range(given_back))
        for hook in before:
            given = hook(module, full)
            if given is not None:
                full = given if isinstance(given, tuple) else (given,)
        latest = full
        if not inputs:                                      # nothing below needs a gradient: this is as far as it comes
            for hook in after:
                hook(module, (None,) * taken, full)
        return tuple(full[k] for k in outputs)

    if inputs:
        passed = dict(zip(inputs, _Passing.apply(at_inputs, *(args[k] for k in inputs)), strict=True))
        args = tuple(passed.get(k, a) for k, a in enumerate(args))
    result = forward(*args, **kwargs)
    several = isinstance(result, (tuple, list))
    results = list(result) if several else [result]
    given_back = len(results)
    outputs = [k for k, r in enumerate(results) if isinstance(r, Tensor) and r.requires_grad]
    if outputs:
        for k, passing in zip(outputs, _Passing.apply(at_outputs, *(results[k] for k in outputs)), strict=True):
            results[k] = passing
    if not several:
        return results[0]
    return type(result)(*results) if hasattr(result, "_fields") else type(result)(results)
