"""Functional transforms: grad, value_and_grad, vjp, jvp, linearize. They nest with each other and with @trace.

Each takes a function of tensors and makes a function of tensors. The arguments to differentiate are wrapped in variables of
their own, so an inner transform never confuses its variable with an outer one's. The batched ones are in `jacobians.py` and
`vmap_transform.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import optree

from tracegrad.autodiff import derivatives
from tracegrad.errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError, ShapeError, check_function, type_name
from tracegrad.graph.ir import NODES, Node, own_nodes
from tracegrad.graph.operators import named, public
from tracegrad.graph.primitive import REGISTRY, bind
from tracegrad.ops.arguments import integer
from tracegrad.support import dtypes
from tracegrad.support.modes import enable_grad, state
from tracegrad.tensors.creation.from_data import tensor
from tracegrad.tensors.tensor import Tensor

_VARIABLE, _DETACH = REGISTRY["variable"], REGISTRY["detach"]
_OF_TENSORS = "of a tensor that was computed there are y.backward() and tg.autograd.grad(y, x)"


def differentiable_leaves(call: str, value: Any, pushed: bool = False) -> tuple[list[Tensor], Any]:
    """The tensors of a (nested container of) argument; floats and complex numbers only, but for results to be `pushed`."""
    leaves, treedef = optree.tree_flatten(value, none_is_leaf=False, namespace=NODES)
    out = []
    for x in leaves:
        if isinstance(x, (int, float, complex)) and not isinstance(x, bool):
            x = tensor(x if isinstance(x, complex) else float(x))
        if not isinstance(x, Tensor):
            raise DTypeError(
                f"{call}: can only differentiate with respect to tensors, got {type_name(x)}; make one with tg.tensor(...), or see argnums"
            )
        if not pushed and not dtypes.differentiable(x.dtype):
            raise DTypeError(
                f"{call}: can only differentiate with respect to floats and complex numbers, got {x.dtype}; cast it or see argnums"
            )
        out.append(x)
    return out, treedef


class _Variables(list[Tensor]):
    """Variables for the tensors of an argument. `given`: handles of the same that func gets, and may change in place: derivatives are taken

    of what it got.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(Tensor(derivatives.variable(t._node()), t._device, state.trace) for t in tensors)
        self.given = [Tensor(t._n, t._device, state.trace) for t in self]


def matching(call: str, what: str, given: Any, owner: str, like: Tensor) -> Node:
    """The node of a cotangent or tangent given for `like` (its owner), in its dtype; errors if it is no tensor of its shape and device."""
    if not isinstance(given, Tensor):
        raise ArgumentError(f"{call}: {what} must be a tensor of shape {like.shape}, got {type(given).__name__}")
    if given.shape != like.shape:
        raise ShapeError(f"{call}: {what} has shape {given.shape}, the {owner} {like.shape}")
    if given._device is not like._device:
        raise DeviceError(f"{call}: {what} is on {given._device}, the {owner} on {like._device}; move it with to(device)")
    return derivatives.conform(given._node(), like._node())


def _scalar_output(call: str, out: Any) -> Tensor:
    if not isinstance(out, Tensor) or out.numel() != 1 or not dtypes.is_float(out.dtype):
        seen = f"{out.dtype}{list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ShapeError(
            f"{call}: the function must return one real float tensor of one element, got {seen}; reduce it with sum(), or use vjp"
        )
    return out


@public("value_and_grad", method=False)
@named
def value_and_grad(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns (func's value, its gradient with respect to the arguments `argnums`).

    func returns a scalar tensor (with has_aux: a pair of it and anything). The gradient has the structure of the argument, or is a tuple
    of such for a sequence of argnums. Arguments may be nested containers of float tensors.
    Raises ShapeError unless func returns one real float element, DTypeError for other arguments.

    >>> tg.value_and_grad(lambda x: (x * x).sum())(tg.ones(2))
    """
    check_function("value_and_grad", func, _OF_TENSORS)
    given: Any = argnums
    single = isinstance(given, str) or not isinstance(given, Sequence)
    numbers = [integer("grad", "argnums", k) for k in ([given] if single else given)]

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        new, flat, trees = substitute("grad", args, numbers)
        outer = state.grad
        with enable_grad():
            out = func(*new, **kwargs)
        value, aux = without_aux("grad", out) if has_aux else (out, None)
        value = _scalar_output("grad", value)
        node = value._node()
        variables = [t._n for group in flat for t in group]
        with enable_grad():  # custom backwards build graph, too
            found = derivatives.vjp([node], variables, [derivatives.ones_like(node)]) if node.needs_grad else [None] * len(variables)
        nodes = derivatives.dense(found, variables)
        value, *results = release([node, *nodes], flat, [value, *tensors_of(flat)], outer)
        aux = release_aux(aux, outer)
        if state.trace is not None:
            state.trace.called = {**_names(func, numbers, flat, value, results), **state.trace.called}
        tensors = iter(results)
        grads = tuple(optree.tree_unflatten(tree, [next(tensors) for _ in group]) for group, tree in zip(flat, trees, strict=True))
        result = grads[0] if single else grads
        return ((value, aux), result) if has_aux else (value, result)

    return wrapped


def _names(func: Callable[..., Any], numbers: Sequence[int], flat: Sequence[Sequence[Tensor]], value: Tensor,
           gradients: Sequence[Tensor]) -> dict[Node, str]:
    """What a program's text calls a value (as its function) and its gradients (as their arguments)."""
    code = getattr(func, "__code__", None)
    parameters = code.co_varnames[:code.co_argcount] if code is not None else ()
    names = {value._n: "value" if code is None or code.co_name == "<lambda>" else code.co_name}
    left = iter(gradients)
    for k, group in zip(numbers, flat, strict=True):
        base = parameters[k] if -len(parameters) <= k < len(parameters) else "argument"
        for i in range(len(group)):
            names.setdefault(next(left)._n, f"{base}_grad" if len(group) == 1 else f"{base}_{i}_grad")
    return names


def tensors_of(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The tensors of all groups."""
    return [t for group in groups for t in group]


def release(nodes: Sequence[Node], fresh: Sequence[Sequence[Tensor]], like: Sequence[Tensor], outer: bool) -> list[Tensor]:
    """Results as the caller sees them: part of the caller's history if they depend on a variable that is not the transform's own.

    like: for each result a tensor that lies where it does.
    """
    derivatives.awaited.difference_update(t._n for t in tensors_of(fresh))
    recorded = outer and derivatives.recorded(nodes)
    return [Tensor(n if recorded or not n.needs_grad else bind(_DETACH, (n,), {}), t._device, state.trace)
            for n, t in zip(nodes, like, strict=True)]


def release_aux(aux: Any, outer: bool) -> Any:
    """What func returned beside its result, as the caller sees it; when the results were released."""

    def released(t: Any) -> Any:
        node = t._node() if isinstance(t, Tensor) else None
        return t if node is None or not node.needs_grad or (outer and derivatives.recorded([node])) else Tensor(
            bind(_DETACH, (node,), {}), t._device, state.trace)

    return optree.tree_map(released, aux, none_is_leaf=True, namespace=NODES)


def substitute(call: str, args: tuple[Any, ...], numbers: Sequence[int]) -> tuple[list[Any], list[_Variables], list[Any]]:
    """args with fresh variables in the places `numbers`."""
    new = list(args)
    flat, trees = list[_Variables](), []
    if args and len({k % len(args) for k in numbers}) != len(numbers):
        raise ArgumentError(f"{call}: argnums {tuple(numbers)} name an argument twice")
    for k in numbers:
        if not -len(args) <= k < len(args):
            raise ArgumentError(f"{call}: argnums {k} is out of range for {len(args)} positional arguments")
        leaves, tree = differentiable_leaves(call, args[k])
        fresh = _Variables(leaves)
        derivatives.awaited.update(t._n for t in fresh)
        new[k] = optree.tree_unflatten(tree, fresh.given)
        flat.append(fresh)
        trees.append(tree)
    return new, flat, trees


@public("grad", method=False)
@named
def grad(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of scalar-valued `func` with respect to the arguments `argnums`; see value_and_grad.

    dtype: float or complex, which the gradient has. Raises ShapeError unless func returns one real float element, DTypeError for other
    arguments.

    >>> tg.grad(lambda x: (x ** 3).sum())(tg.tensor([2.0]))
    """
    check_function("grad", func, _OF_TENSORS)
    both = value_and_grad(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


@public("vjp", method=False)
@named
def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(func(*primals), pull): pull(cotangents) gives a tuple with the cotangent of each primal. Structures as the function's own.

    has_aux: func returns a pair, whose second part comes back as a third result.
    primals: float or complex, else DTypeError. Raises ShapeError for a cotangent of another shape.

    >>> value, pull = tg.vjp(lambda x: x ** 2, tg.tensor([1.0, 3.0]))
    >>> pull(tg.ones(2))
    """
    check_function("vjp", func, _OF_TENSORS)
    new, flat, trees = substitute("vjp", primals, range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = func(*new)
    out, aux = without_aux("vjp", out) if has_aux else (out, None)
    leaves, tree = differentiable_leaves("vjp", out)
    nodes = [t._node() for t in leaves]

    def pull(cotangents: Any) -> tuple[Any, ...]:
        given = optree.tree_leaves(cotangents, namespace=NODES)
        if len(given) != len(nodes):
            raise ArgumentError(f"vjp: {len(nodes)} outputs but {len(given)} cotangents")
        cts = [matching("vjp", f"cotangent {i}", c, "output", t) for i, (c, t) in enumerate(zip(given, leaves, strict=True))]
        variables = [t._n for group in flat for t in group]
        with enable_grad(), own_nodes():
            found = derivatives.vjp(nodes, variables, cts)
        results = derivatives.dense(found, variables)
        tensors = iter(release(results, flat, tensors_of(flat), state.grad))
        return tuple(optree.tree_unflatten(t, [next(tensors) for _ in group]) for group, t in zip(flat, trees, strict=True))

    result = optree.tree_unflatten(tree, release(nodes, flat, leaves, outer))
    return (result, pull, release_aux(aux, outer)) if has_aux else (result, pull)


def without_aux(call: str, out: Any) -> tuple[Any, Any]:
    if not (isinstance(out, tuple) and len(out) == 2):
        raise ArgumentError(f"{call}: has_aux is for a function that returns a pair (output, aux), got {type(out).__name__}")
    return out


@public("jvp", method=False)
@named
def jvp(func: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], *, strict: bool = False,
        has_aux: bool = False) -> tuple[Any, ...]:
    """(func(*primals), its directional derivative along `tangents`), by forward mode. tangents: the structure and shapes of primals.

    has_aux: func returns a pair, whose second part comes back as a third result. strict is torch's: what an output does not depend on has
    derivative zero, with it or without. primals: float or complex, else DTypeError. Raises ShapeError for a tangent of another shape.

    >>> tg.jvp(lambda x: x ** 2, (tg.tensor([1.0, 3.0]),), (tg.tensor([1.0, 0.5]),))
    """
    del strict
    check_function("jvp", func)
    for what, given in (("primals", primals), ("tangents", tangents)):
        if isinstance(given, Tensor):
            raise ArgumentTypeError(f"jvp: {what} must be a tuple with one entry for each argument, got a Tensor {given.shape}; pass (x,)")
    if len(primals) != len(tangents):
        raise ArgumentError(f"jvp: {len(primals)} primals but {len(tangents)} tangents")
    new, flat, _ = substitute("jvp", tuple(primals), range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = func(*new)
    out, aux = without_aux("jvp", out) if has_aux else (out, None)
    leaves, tree = differentiable_leaves("jvp", out, pushed=True)
    variables = [t._n for group in flat for t in group]
    along = _tangents("jvp", tangents, flat)
    nodes = [t._node() for t in leaves]
    moved = pushed_forward(nodes, variables, along)
    results = release([*nodes, *moved], flat, [*leaves, *leaves], outer)
    value, moved_by = optree.tree_unflatten(tree, results[: len(nodes)]), optree.tree_unflatten(tree, results[len(nodes) :])
    return (value, moved_by, release_aux(aux, outer)) if has_aux else (value, moved_by)


def pushed_forward(nodes: Sequence[Node], variables: Sequence[Node], along: Sequence[Node]) -> list[Node]:
    """The results' tangents: of integers and bools (the indices of a sort) zeros of their dtype, as in torch."""
    smooth = [node for node in nodes if dtypes.differentiable(node.dtype)]
    with enable_grad():
        found = dict(zip(smooth, derivatives.jvp(smooth, variables, along), strict=True))
    return derivatives.dense([found.get(node) for node in nodes], nodes)


def _tangents(call: str, tangents: Sequence[Any], flat: Sequence[Sequence[Tensor]]) -> list[Node]:
    given, primals = [t for x in tangents for t in differentiable_leaves(call, x)[0]], [t for group in flat for t in group]
    if len(given) != len(primals):
        raise ArgumentError(f"{call}: {len(primals)} tensors among the primals but {len(given)} among the tangents")
    return [matching(call, f"tangent {i}", t, "primal", p) for i, (t, p) in enumerate(zip(given, primals, strict=True))]


@public("linearize", method=False)
@named
def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(func(*primals), push): push(*tangents) gives the directional derivative along tangents of the primals' structure, as torch.func's.

    func itself runs once, however many tangents are pushed.
    primals: float or complex, else DTypeError. Raises ShapeError for a tangent of another shape.

    >>> value, push = tg.linearize(lambda x: x ** 2, tg.tensor([1.0, 3.0]))
    >>> push(tg.tensor([1.0, 0.5]))
    Tensor([2., 3.], device='cpu')
    """
    check_function("linearize", func)
    new, flat, _ = substitute("linearize", primals, range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = func(*new)
    leaves, tree = differentiable_leaves("linearize", out, pushed=True)
    nodes = [t._node() for t in leaves]
    variables = [t._n for group in flat for t in group]

    def push(*tangents: Any) -> Any:
        along = _tangents("linearize", tangents, flat)
        moved = pushed_forward(nodes, variables, along)
        return optree.tree_unflatten(tree, release(moved, flat, leaves, state.grad))

    return optree.tree_unflatten(tree, release(nodes, flat, leaves, outer)), push
