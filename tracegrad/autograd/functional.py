"""Derivatives of functions at given inputs, under torch.autograd.functional's names (`tg.autograd.functional`).

Each takes a function of tensors and the inputs (a tensor or a tuple), and returns numbers, where `tg.func` has transforms that return
functions. Results are cut off from the history unless create_graph is given. `strict` is accepted and means nothing here: what an
output does not depend on has derivative zero. `vectorize` neither: derivatives are always batched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from tracegrad.autograd import jacobians, transforms
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.ir import NODES
from tracegrad.tensors.creation.filled import ones_like
from tracegrad.tensors.tensor import Tensor


def jacobian(func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
             strategy: str = "reverse-mode") -> Any:
    """d func / d inputs: shape (*output.shape, *input.shape); a tuple of them for tuples of outputs or of inputs.

    >>> tg.autograd.functional.jacobian(lambda x: x ** 2, tg.tensor([1.0, 2.0]))
    Tensor([[2., 0.],
            [0., 4.]], device='cpu')
    """
    del strict, vectorize
    if strategy not in ("reverse-mode", "forward-mode"):
        raise ArgumentError(f"jacobian: strategy {strategy!r}; it is 'reverse-mode' or 'forward-mode'")
    args, numbers = _arguments(inputs, create_graph)
    transform = jacobians.jacobian if strategy == "reverse-mode" else jacobians.jacfwd
    return _released(transform(func, numbers)(*args), create_graph)


def hessian(func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
            outer_jacobian_strategy: str = "reverse-mode") -> Any:
    """Second derivatives of a function that returns one element: shape (*input.shape, *input.shape), or a tuple of tuples of blocks."""
    del strict, vectorize
    if outer_jacobian_strategy not in ("reverse-mode", "forward-mode"):
        raise ArgumentError(f"hessian: outer_jacobian_strategy {outer_jacobian_strategy!r}; it is 'reverse-mode' or 'forward-mode'")
    args, numbers = _arguments(inputs, create_graph)
    outer = jacobians.jacobian if outer_jacobian_strategy == "reverse-mode" else jacobians.jacfwd
    return _released(outer(transforms.grad(func, numbers), numbers)(*args), create_graph)


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """(func(*inputs), v @ J). v: cotangents of the outputs' structure and shapes; not needed if there is one output of one element."""
    del strict
    args, numbers = _arguments(inputs, create_graph)
    value, pull = transforms.vjp(func, *args)
    found = pull(_ones("vjp", value) if v is None else v)
    return _released((value, found[0] if isinstance(numbers, int) else found), create_graph)


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """(func(*inputs), J @ v). v: tangents of the inputs' structure and shapes; not needed if there is one input of one element."""
    del strict
    args, _ = _arguments(inputs, create_graph)
    tangents = _arguments(_ones("jvp", inputs) if v is None else v)[0]
    return _released(transforms.jvp(func, args, tangents), create_graph)


def hvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """(func(*inputs), H @ v) of a function that returns one element, forward over reverse."""
    del strict
    args, numbers = _arguments(inputs, create_graph)
    tangents = _arguments(_ones("hvp", inputs) if v is None else v)[0]

    def gradient(*xs: Any) -> tuple[Any, Any]:
        value, found = transforms.value_and_grad(func, numbers)(*xs)
        return found, value

    _, moved, value = transforms.jvp(gradient, args, tangents, has_aux=True)
    return _released((value, moved), create_graph)


def vhp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """(func(*inputs), v @ H): what `hvp` gives, since the matrix is symmetric; by reverse over reverse."""
    del strict
    args, numbers = _arguments(inputs, create_graph)
    cotangents = _ones("vhp", inputs) if v is None else v

    def gradient(*xs: Any) -> tuple[Any, Any]:
        value, found = transforms.value_and_grad(func, numbers)(*xs)
        return found, value

    _, pull, value = transforms.vjp(gradient, *args, has_aux=True)
    found = pull(cotangents)
    return _released((value, found[0] if isinstance(numbers, int) else found), create_graph)


def _arguments(inputs: Any, create_graph: bool = False) -> tuple[tuple[Any, ...], int | tuple[int, ...]]:
    """The positional arguments, and the numbers of those to differentiate: a single tensor gives results that are no tuples.

    For a graph, constants become leaves that require gradients, as in torch, so that results do.
    """
    if create_graph:
        inputs = optree.tree_map(_leaf, inputs, namespace=NODES)
    if isinstance(inputs, Tensor):
        return (inputs,), 0
    return tuple(inputs), tuple(range(len(inputs)))


def _leaf(t: Any) -> Any:
    return t.detach().requires_grad_() if isinstance(t, Tensor) and not t.requires_grad else t


def _ones(call: str, like: Any) -> Any:
    leaves = optree.tree_leaves(like, namespace=NODES)
    if len(leaves) != 1 or leaves[0].numel() != 1:
        raise ShapeError(f"{call}: v is needed, since there is not one tensor of one element but shapes {[tuple(t.shape) for t in leaves]}")
    return optree.tree_map(ones_like, like, namespace=NODES)


def _released(result: Any, create_graph: bool) -> Any:
    return result if create_graph else optree.tree_map(lambda t: t.detach(), result, namespace=NODES)


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
