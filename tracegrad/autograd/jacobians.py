"""jacobian, jacfwd, hessian, hvp: derivatives of functions of many outputs, batched over unit tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optree

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.batching import batch
from tracegrad.autograd.transforms import (
    differentiable_leaves,
    grad,
    jvp,
    pushed_forward,
    release,
    release_aux,
    substitute,
    tensors_of,
    without_aux,
)
from tracegrad.errors import ArgumentError, AutogradError, DTypeError, check_function
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import cast, iota, placeholder
from tracegrad.ops.arguments import integer
from tracegrad.ops.primitives.movement import concat, narrow, permute, reshape
from tracegrad.support.modes import enable_grad, state
from tracegrad.tensors.scopes import Examples
from tracegrad.tensors.tensor import Tensor


@public("jacobian", "jacrev", method=False)
def jacobian(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *,
             chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns d func / d argument, of shape (*output.shape, *argument.shape), by reverse mode, batched over the output.

    Of nested outputs and arguments: the outputs' structure, each tensor replaced by the argument's structure of such matrices (a tuple
    of them for a sequence of argnums), as torch.func.jacrev. has_aux: func returns a pair, of which the second is passed through.
    chunk_size: how many rows are computed at once, where memory is short. The function must return real numbers; of a complex argument
    z, each entry is a gradient, d/d(re z) + i d/d(im z). Arguments: float, and complex ones of real results; else DTypeError.

    >>> tg.jacrev(lambda x: x ** 2)(tg.tensor([1.0, 2.0]))
    Tensor([[2., 0.],
            [0., 4.]], device='cpu')
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = JacobianCall("jacobian", func, argnums, has_aux, args, kwargs)
        blocks = []
        for node in call.nodes:
            only_real("jacobian", "result", node)
            probe = placeholder(node.aval, "cotangent")
            with enable_grad(), Examples([probe]):
                found = derivatives.vjp([node], call.variables, [probe]) if node.needs_grad else [None] * len(call.variables)
            pulled = derivatives.dense(found, call.variables)
            rows = _at_unit_tensors(pulled, probe, chunk_size)
            blocks += [reshape(r, (*node.shape, *v.shape)) for r, v in zip(rows, call.variables, strict=True)]
        return call.result(blocks, call.inputs * len(call.nodes))

    return wrapped


@public("jacfwd", method=False)
def jacfwd(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *,
           chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns d func / d argument, as `jacobian`, by forward mode, batched over the argument's elements,

    which must be real numbers. Raises DTypeError for others.

    >>> tg.jacfwd(lambda x: x ** 2)(tg.tensor([1.0, 3.0]))
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = JacobianCall("jacfwd", func, argnums, has_aux, args, kwargs)
        columns = []
        for variable in call.variables:
            only_real("jacfwd", "argument", variable)
            probe = placeholder(variable.aval, "tangent")
            with Examples([probe]):
                pushed = pushed_forward(call.nodes, [variable], [probe])
            columns.append([
                reshape(permute(m, (*range(1, len(m.shape)), 0)), (*m.shape[1:], *variable.shape))
                for m in _at_unit_tensors(pushed, probe, chunk_size)
            ])
        return call.result([column[i] for i in range(len(call.nodes)) for column in columns],
                           [t for t in call.outs for _ in columns])

    return wrapped


class JacobianCall:
    """A call whose Jacobian is wanted: its outputs, its variables, and how blocks (outputs x variables) are given back."""

    def __init__(self, call: str, func: Any, argnums: int | Sequence[int], has_aux: bool, args: Any, kwargs: Any) -> None:
        self.name, self.single = call, isinstance(argnums, int)
        check_function(call, func)
        numbers = [argnums] if isinstance(argnums, int) else list(argnums) if isinstance(argnums, (tuple, list)) else [argnums]
        new, self.flat, self.trees = substitute(call, args, [integer(call, "argnums", k) for k in numbers])
        self.outer, self.has_aux = state.grad, has_aux
        with enable_grad():
            out = func(*new, **kwargs)
        self.aux: Any = None
        if has_aux:
            out, self.aux = without_aux(call, out)
        self.outs, self.tree = differentiable_leaves(call, out, pushed=call == "jacfwd")
        if not self.outs:
            raise AutogradError(f"{call}: the function must return a tensor or a container of tensors, got {type(out).__name__}")
        self.nodes = [t._node() for t in self.outs]
        self.inputs = tensors_of(self.flat)
        self.variables = [t._n for t in self.inputs]

    def result(self, blocks: Sequence[Node], like: Sequence[Tensor], shown: Callable[[int, Tensor], Any] = lambda _, block: block) -> Any:
        """The blocks, which lie where those of `like` do, in the structures of outputs and arguments. shown: from a block's number and

        tensor to what stands for it.
        """
        tensors = itertools.starmap(shown, enumerate(release(blocks, self.flat, like, self.outer)))
        rows = []
        for _ in self.nodes:
            row = tuple(optree.tree_unflatten(t, [next(tensors) for _ in group]) for group, t in zip(self.flat, self.trees, strict=True))
            rows.append(row[0] if self.single else row)
        found = optree.tree_unflatten(self.tree, rows)
        return (found, release_aux(self.aux, self.outer)) if self.has_aux else found


def only_real(call: str, what: str, node: Node) -> None:
    """Unit tensors of a complex space are twice as many: along 1 and along i."""
    if node.dtype.kind == "c":
        raise DTypeError(f"{call}: the {what} is {node.dtype}, which has two derivatives an element; use tg.view_as_real, or vjp and jvp")


def _at_unit_tensors(nodes: Sequence[Node], probe: Node, chunk_size: int | None) -> list[Node]:
    """`nodes` for each unit tensor of the probe's shape in its place, stacked: (size, *node.shape)."""
    n = probe.aval.size
    unit = reshape(cast(iota((n, n), 0).eq(iota((n, n), 1)), probe.dtype), (n, *probe.shape))
    return at_seeds("jacobian", nodes, {probe: unit}, n, chunk_size)


def at_seeds(call: str, nodes: Sequence[Node], seeds: Mapping[Node, Node], n: int, chunk_size: int | None) -> list[Node]:
    """`nodes` for each of the `n` rows of what is given for some nodes, stacked; chunk_size at a time."""
    step = n if chunk_size is None else chunk_size
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"{call}: chunk_size must be positive, got {chunk_size}")
    if step >= n:
        return batch(nodes, seeds, n)
    lengths = [min(step, n - start) for start in range(0, n, step)]
    parts = [batch(nodes, {probe: narrow(rows, 0, k * step, length) for probe, rows in seeds.items()}, length)
             for k, length in enumerate(lengths)]
    return [concat(list(part), 0) for part in zip(*parts, strict=True)]


@public("hessian", method=False)
def hessian(func: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives: shape (*output.shape, *argument.shape, *argument.shape), forward over reverse.

    Nested as `jacobian` of `jacobian`: of a dict argument, h["a"]["b"] is d2 func / da db.
    dtype: float. Raises DTypeError for integers and complex numbers.

    >>> tg.hessian(lambda x: (x ** 3).sum())(tg.tensor([1.0, 2.0]))
    Tensor([[ 6.,  0.],
            [ 0., 12.]], device='cpu')
    """
    return jacfwd(jacobian(func, argnums), argnums)


@public("hvp", method=False)
def hvp(func: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(gradient of func with respect to the first primal, Hessian times tangent), forward over reverse.

    Of the shapes and dtypes (float) of the first primal. Raises ShapeError for a tangent of another shape.

    >>> tg.hvp(lambda x: (x ** 3).sum(), (tg.tensor([1.0, 2.0]),), (tg.tensor([1.0, 0.0]),))
    """
    return jvp(grad(func), primals, tangents)
