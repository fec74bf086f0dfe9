"""torch.nn.utils._per_sample_grad: modules whose backward leaves the gradients of each sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tracegrad.errors import AutogradError
from tracegrad.func import functional_call, vmap
from tracegrad.nn.module import Module
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.names.utils import _pytree as pytree

__all__ = ["call_for_per_sample_grads"]


def call_for_per_sample_grads(
    module: Module, *, batch_size: Any = None, loss_reduction: str = "sum", batch_first: bool = True
) -> Callable[..., Any]:
    """The module's forward, after which a backward leaves (batch, *shape) gradients of each sample in the parameters' `grad_sample`.

    Their `grad` stays as it was. The samples are computed by `vmap`, each as a batch of one. batch_size: by default the size of the
    arguments' first dimension (batch_first=False: second one); of arguments that do not have it, each sample gets the whole.
    loss_reduction: what the loss makes of the samples' losses; for "mean" gradients are multiplied by the batch's size.
    Raises RuntimeError for other arguments, batches of several sizes, and parameters with a `grad_sample` already.
    """
    if loss_reduction not in ("sum", "mean"):
        raise AutogradError(f"call_for_per_sample_grads: loss_reduction is 'sum' or 'mean', got {loss_reduction!r}")
    if not isinstance(module, Module):
        raise AutogradError(f"call_for_per_sample_grads: module is an nn.Module, got a {type(module).__name__}")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise AutogradError(f"call_for_per_sample_grads: batch_size is None or a positive integer, got {batch_size!r}")
    if any(getattr(p, "grad_sample", None) is not None for p in module.parameters()):
        raise AutogradError("call_for_per_sample_grads: a parameter has a grad_sample already; delete it first, nothing is added to it")
    dim = 0 if batch_first else 1

    @wraps(module.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        flat, spec = pytree.tree_flatten((args, kwargs))
        size = _batch_size(flat, dim) if batch_size is None else batch_size
        batched = [i for i, x in enumerate(flat) if isinstance(x, Tensor) and x.ndim > dim and x.shape[dim] == size]
        scale = size if loss_reduction == "mean" else 1
        owned = {name: p for name, p in module.named_parameters() if p.requires_grad}
        expanded = {name: _expanded(p, size, scale) for name, p in owned.items()}

        def sample(parameters: dict[str, Tensor], given: list[Tensor]) -> Any:
            leaves = list(flat)
            for i, x in zip(batched, given, strict=True):
                leaves[i] = x.unsqueeze(dim)
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            made = functional_call(module, parameters, args, kwargs)
            return pytree.tree_map(lambda y: y.squeeze(dim) if isinstance(y, Tensor) else y, made)

        return vmap(sample, in_dims=(0, dim), out_dims=dim, randomness="different")(expanded, [flat[i] for i in batched])

    return forward


def _batch_size(flat: list[Any], dim: int) -> int:
    sizes = {x.shape[dim] for x in flat if isinstance(x, Tensor)}
    if len(sizes) != 1:
        raise AutogradError(f"call_for_per_sample_grads: the tensors among the arguments have batches of {sorted(sizes) or 'no'} sizes; "
                            "give batch_size")
    return sizes.pop()


def _expanded(parameter: Any, size: int, scale: int) -> Tensor:
    """A copy of the parameter for each sample, whose gradient goes to the parameter's `grad_sample`."""
    copies: Tensor = parameter.detach().expand(size, *parameter.shape).requires_grad_()

    def arrived(gradient: Tensor) -> None:
        present = getattr(parameter, "grad_sample", None)
        own = gradient.detach() * scale
        parameter.grad_sample = own if present is None else present + own

    copies.register_hook(arrived)
    return copies
