"""torch.func's names: the transforms of functions (`transforms.py`), and modules as functions of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.nn.module import Module
from tracegrad.nn.utils.stateless import functional_call
from tracegrad.operators import PUBLIC
from tracegrad.tensor import Tensor
from tracegrad.transforms import grad, hessian, jacfwd, jacobian, jvp, linearize, value_and_grad, vjp, vmap

jacrev = jacobian


def grad_and_value(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns (gradient, value), the value with has_aux being (value, aux): tg.value_and_grad, the other way round.

    >>> tg.func.grad_and_value(lambda x: (x ** 2).sum())(tg.ones(2))
    """
    both = value_and_grad(func, argnums, has_aux)

    @wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return gradient, value

    return wrapped


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of models of one structure, each stacked along a new first dimension: for vmap over `functional_call`.

    >>> params, buffers = tg.func.stack_module_state([tg.nn.Linear(2, 3) for _ in range(5)])
    """
    models = list(models)
    if not models:
        raise ArgumentError("stack_module_state: needs at least one model")
    if len({type(m) for m in models}) > 1 or len({m.training for m in models}) > 1:
        raise ArgumentError("stack_module_state: the models must be of one class, all in training or all not, got "
                            f"{', '.join(sorted({type(m).__name__ for m in models}))}")

    def stacked(tables: list[dict[str, Any]], leaves: bool) -> dict[str, Tensor]:
        if any(t.keys() != tables[0].keys() for t in tables):
            raise ArgumentError("stack_module_state: the models have different parameters or buffers")
        out = {}
        for name in tables[0]:
            value = PUBLIC["stack"]([t[name].detach() for t in tables])
            out[name] = value.requires_grad_() if leaves and tables[0][name].requires_grad else value
        return out

    return stacked([dict(m.named_parameters()) for m in models], True), stacked([dict(m.named_buffers()) for m in models], False)


__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "stack_module_state", "vjp",
           "vmap"]
