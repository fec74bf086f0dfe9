"""Function transforms under torch.func's names. They stand in `autograd/`; what is about modules, here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.autograd.jacobians import hessian, jacfwd
from tracegrad.autograd.jacobians import jacobian as jacrev
from tracegrad.autograd.sparse import SparseCOO, hessian_diagonal, sparse_hessian, sparse_jacobian
from tracegrad.autograd.transforms import grad, jvp, linearize, value_and_grad, vjp
from tracegrad.autograd.vmap_transform import vmap
from tracegrad.errors import ArgumentError, check_function
from tracegrad.graph.operators import named
from tracegrad.nn.module import Module
from tracegrad.nn.modules.normalization import _BatchNorm
from tracegrad.nn.utils.stateless import functional_call
from tracegrad.ops.arrays.joining import stack
from tracegrad.tensors.tensor import Tensor


@named
def grad_and_value(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns (the gradient, fn's value), in torch's order; `tg.value_and_grad` has the other.

    dtype: float or complex, which the gradient has. Raises ShapeError unless fn returns one real float element.

    >>> tg.func.grad_and_value(lambda x: (x * x).sum())(tg.ones(2))
    (Tensor([2., 2.], device='cpu'), Tensor(2., device='cpu'))
    """
    check_function("grad_and_value", fn)
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return gradient, value

    return wrapped


def replace_all_batch_norm_modules_(root: Module) -> Module:
    """Take the running statistics from all batch norms of a model, in place, since transforms cannot update them; returns the model.

    >>> model = tg.func.replace_all_batch_norm_modules_(tg.nn.Sequential(tg.nn.Linear(3, 4), tg.nn.BatchNorm1d(4)))
    """
    for module in root.modules():
        if isinstance(module, _BatchNorm):
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root


@named
def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of models of one class, each stacked along a new first dimension: for an ensemble by vmap.

    Raises ArgumentError if there are no models, if they are of several classes, or if some are in training mode and some are not.
    The dtypes are the models'.

    >>> models = [tg.nn.Linear(3, 2) for _ in range(5)]
    >>> parameters, buffers = tg.func.stack_module_state(models)
    >>> one = lambda p, x: tg.func.functional_call(models[0], p, x)
    >>> tg.vmap(one, in_dims=(0, None))(parameters, tg.ones(4, 3)).shape
    (5, 4, 2)
    """
    found = list(models)
    if not found:
        raise ArgumentError("stack_module_state: give at least one model")
    if len({type(m) for m in found}) != 1:
        raise ArgumentError(f"stack_module_state: the models are of several classes: {sorted({type(m).__name__ for m in found})}")
    if len({m.training for m in found}) != 1:
        raise ArgumentError("stack_module_state: some models are in training mode and some are not; call train() or eval() on all")

    def stacked(tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {
            name: stack([t[name].detach() for t in tensors]).requires_grad_(any(t[name].requires_grad for t in tensors))
            for name in tensors[0]
        }

    return stacked([dict(m.named_parameters()) for m in found]), stacked([dict(m.named_buffers()) for m in found])


__all__ = [
    "SparseCOO", "functional_call", "grad", "grad_and_value", "hessian", "hessian_diagonal", "jacfwd", "jacrev", "jvp", "linearize",
    "sparse_hessian", "sparse_jacobian", "stack_module_state", "vjp", "vmap",
]
