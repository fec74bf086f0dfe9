"""Functional transforms: grad, value_and_grad, vjp, jvp, jacobian, hessian. They nest with each other and with @trace.

Each takes a function of tensors and makes a function of tensors. The arguments to differentiate are wrapped in variables of
their own, so an inner transform never confuses its variable with an outer one's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optree

from tracegrad import autodiff, dtypes
from tracegrad.batching import batch
from tracegrad.creation import tensor
from tracegrad.errors import ArgumentError, AutogradError, DTypeError, ShapeError
from tracegrad.function import REGISTRY, as_node, bind, cast, iota, placeholder
from tracegrad.ir import Aval, Node, own_nodes, topological
from tracegrad.modes import enable_grad, state
from tracegrad.operators import public
from tracegrad.ops.movement import concat, permute, reshape
from tracegrad.tensor import Tensor
from tracegrad.tensor import leaves as leaves_of_users

_VARIABLE, _DETACH = REGISTRY["variable"], REGISTRY["detach"]


def _leaves(call: str, value: Any) -> tuple[list[Tensor], Any]:
    """The tensors of a (nested container of) argument; floats and complex numbers only."""
    leaves, treedef = optree.tree_flatten(value, none_is_leaf=False)
    out = []
    for x in leaves:
        if isinstance(x, (int, float, complex)) and not isinstance(x, bool):
            x = tensor(x if isinstance(x, complex) else float(x))
        if not isinstance(x, Tensor):
            raise DTypeError(f"{call}: can only differentiate with respect to tensors, got {type(x).__name__}; see argnums")
        if not dtypes.differentiable(x.dtype):
            raise DTypeError(
                f"{call}: can only differentiate with respect to floats and complex numbers, got {x.dtype}; cast it or see argnums"
            )
        out.append(x)
    return out, treedef


def _fresh(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [Tensor(autodiff.variable(t._node()), t._device, state.trace) for t in tensors]


def _scalar_output(call: str, out: Any) -> Tensor:
    if not isinstance(out, Tensor) or out.numel() != 1 or not dtypes.is_float(out.dtype):
        seen = f"{out.dtype}{list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ShapeError(
            f"{call}: the function must return one real float tensor of one element, got {seen}; reduce it with sum(), or use vjp"
        )
    return out


@public("value_and_grad", method=False)
def value_and_grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns (fn's value, its gradient with respect to the arguments `argnums`).

    fn returns a scalar tensor (with has_aux: a pair of it and anything). The gradient has the structure of the argument, or is a tuple
    of such for a sequence of argnums. Arguments may be nested containers of float tensors.

    >>> tg.value_and_grad(lambda x: (x * x).sum())(tg.ones(2))
    """
    single = isinstance(argnums, int)
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        new, flat, trees = _substitute("grad", args, numbers)
        outer = state.grad
        with enable_grad():
            out = fn(*new, **kwargs)
        value, aux = out if has_aux else (out, None)
        value = _scalar_output("grad", value)
        node = value._node()
        variables = [t._node() for group in flat for t in group]
        with enable_grad():  # custom backwards build graph, too
            found = autodiff.vjp([node], variables, [autodiff.ones_like(node)]) if node.needs_grad else [None] * len(variables)
        nodes = [g if g is not None else autodiff.zeros_like(v) for g, v in zip(found, variables, strict=True)]
        value, *results = _release([node, *nodes], flat, value, outer)
        if state.trace is not None:
            state.trace.called = {**_names(fn, numbers, flat, value, results), **state.trace.called}
        tensors = iter(results)
        grads = tuple(optree.tree_unflatten(tree, [next(tensors) for _ in group]) for group, tree in zip(flat, trees, strict=True))
        result = grads[0] if single else grads
        return ((value, aux), result) if has_aux else (value, result)

    return wrapped


def _names(fn: Callable[..., Any], numbers: Sequence[int], flat: Sequence[Sequence[Tensor]], value: Tensor,
           gradients: Sequence[Tensor]) -> dict[Node, str]:
    """What a program's text calls a value (as its function) and its gradients (as their arguments)."""
    code = getattr(fn, "__code__", None)
    parameters = code.co_varnames[:code.co_argcount] if code is not None else ()
    names = {value._n: "value" if code is None or code.co_name == "<lambda>" else code.co_name}
    left = iter(gradients)
    for k, group in zip(numbers, flat, strict=True):
        base = parameters[k] if -len(parameters) <= k < len(parameters) else "argument"
        for i in range(len(group)):
            names.setdefault(next(left)._n, f"{base}_grad" if len(group) == 1 else f"{base}_{i}_grad")
    return names


_active: set[Node] = set()  # the variables of transforms that are running


def _release(nodes: Sequence[Node], fresh: Sequence[Sequence[Tensor]], like: Tensor, outer: bool) -> list[Tensor]:
    """Results as the caller sees them: part of the caller's history if they depend on a variable that is not the transform's own."""
    _active.difference_update(t._n for group in fresh for t in group)
    order = topological(nodes, lambda n: not n.needs_grad) if outer else ()
    recorded = any(n.fn is _VARIABLE and (n in _active or n.attrs["uid"] in leaves_of_users) for n in order)
    return [Tensor(n if recorded or not n.needs_grad else bind(_DETACH, (n,), {}), like._device, state.trace) for n in nodes]


def _substitute(call: str, args: tuple[Any, ...], numbers: Sequence[int]) -> tuple[list[Any], list[list[Tensor]], list[Any]]:
    """args with fresh variables in the places `numbers`."""
    new = list(args)
    flat, trees = [], []
    for k in numbers:
        if not -len(args) <= k < len(args):
            raise ArgumentError(f"{call}: argnums {k} is out of range for {len(args)} positional arguments")
        leaves, tree = _leaves(call, args[k])
        fresh = _fresh(leaves)
        _active.update(t._n for t in fresh)
        new[k] = optree.tree_unflatten(tree, fresh)
        flat.append(fresh)
        trees.append(tree)
    return new, flat, trees


@public("grad", method=False)
def grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of scalar-valued `fn` with respect to the arguments `argnums`; see value_and_grad.

    >>> tg.grad(lambda x: (x ** 3).sum())(tg.tensor([2.0]))
    """
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


@public("vjp", method=False)
def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(fn(*primals), pull): pull(cotangents) gives a tuple with the cotangent of each primal. Structures as the function's own."""
    new, flat, trees = _substitute("vjp", primals, range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = fn(*new)
    leaves, tree = _leaves("vjp", out)
    nodes = [t._node() for t in leaves]

    def pull(cotangents: Any) -> tuple[Any, ...]:
        given = optree.tree_leaves(cotangents)
        if len(given) != len(nodes):
            raise ArgumentError(f"vjp: {len(nodes)} outputs but {len(given)} cotangents")
        for i, (c, n) in enumerate(zip(given, nodes, strict=True)):
            if c.shape != n.shape:
                raise ShapeError(f"vjp: cotangent {i} has shape {c.shape}, the output {n.shape}")
        variables = [t._node() for group in flat for t in group]
        with enable_grad(), own_nodes():
            found = autodiff.vjp(nodes, variables, [c._node() for c in given])
        results = [g if g is not None else autodiff.zeros_like(v) for g, v in zip(found, variables, strict=True)]
        tensors = iter(_release(results, flat, leaves[0], state.grad))
        return tuple(optree.tree_unflatten(t, [next(tensors) for _ in group]) for group, t in zip(flat, trees, strict=True))

    return optree.tree_unflatten(tree, _release(nodes, flat, leaves[0], outer)), pull


@public("jvp", method=False)
def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(fn(*primals), its directional derivative along `tangents`), by forward mode. tangents: the structure and shapes of primals."""
    if len(primals) != len(tangents):
        raise ArgumentError(f"jvp: {len(primals)} primals but {len(tangents)} tangents")
    new, flat, _ = _substitute("jvp", tuple(primals), range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = fn(*new)
    leaves, tree = _leaves("jvp", out)
    variables = [t._node() for group in flat for t in group]
    given = [t for x in tangents for t in _leaves("jvp", x)[0]]
    for i, (t, v) in enumerate(zip(given, variables, strict=True)):
        if t.shape != v.shape:
            raise ShapeError(f"jvp: tangent {i} has shape {t.shape}, its primal {v.shape}")
    nodes = [t._node() for t in leaves]
    with enable_grad():
        found = autodiff.jvp(nodes, variables, [autodiff.conform(t._node(), v) for t, v in zip(given, variables, strict=True)])
    moved = [g if g is not None else autodiff.zeros_like(n) for g, n in zip(found, nodes, strict=True)]
    results = _release([*nodes, *moved], flat, leaves[0], outer)
    return optree.tree_unflatten(tree, results[: len(nodes)]), optree.tree_unflatten(tree, results[len(nodes) :])


@contextmanager
def _examples() -> Iterator[None]:
    """Tensors made inside stand for one example of a batch: they are never computed by themselves."""
    state.examples += 1
    try:
        yield
    finally:
        state.examples -= 1


def _dims_of(arg: Any, dims: Any, count: int) -> list[int | None]:
    """The mapped dimension of each leaf of an argument: one for all, or a container like the argument, or the upper part of one."""
    if dims is None or isinstance(dims, int):
        return [dims] * count
    try:
        return list(optree.broadcast_prefix(dims, arg, none_is_leaf=True))
    except ValueError as error:
        raise ArgumentError(f"vmap: in_dims {dims!r} does not have the structure of the argument: {error}") from None


@public("vmap", method=False)
def vmap(fn: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "same", *,
         chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that maps `fn` over a dimension of its arguments, as torch.func.vmap: written for one example, run on a batch.

    in_dims: the mapped dimension of each positional argument (None: the same for all; one value for all arguments or a
    tuple; it holds for every tensor of a nested argument, or is a container of such). out_dims: where the batch goes in each output.
    The result is one program with batched operations, not a loop. Random draws inside are the same for every example: randomness
    "same", or torch's "error", as which it is taken; "different" is an ArgumentError. chunk_size is there for torch's sake.
    Raises ShapeError if mapped sizes differ, ArgumentError if nothing is mapped.

    >>> tg.vmap(lambda a, b: a @ b)(tg.ones(5, 3), tg.ones(5, 3)).shape
    (5,)
    """

    if randomness not in ("same", "error"):
        raise ArgumentError(f"vmap: randomness must be 'same' or 'error', got {randomness!r}; for different draws take random numbers "
                            "as an argument that is mapped")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        dims = in_dims if isinstance(in_dims, (tuple, list)) else [in_dims] * len(args)
        if len(dims) != len(args):
            raise ArgumentError(f"vmap: in_dims has {len(dims)} entries for {len(args)} arguments")
        mapped: dict[Node, Node] = {}
        sizes: list[int] = []
        new = []
        like: Tensor | None = None
        for arg, given in zip(args, dims, strict=True):
            leaves, tree = optree.tree_flatten(arg, none_is_leaf=True)
            for i, (x, dim) in enumerate(zip(leaves, _dims_of(arg, given, len(leaves)), strict=True)):
                if dim is None or not isinstance(x, Tensor):
                    continue
                like = x
                if not -x.ndim <= dim < x.ndim:
                    raise ShapeError(f"vmap: in_dims {dim} is out of range for a tensor of shape {x.shape}")
                node = x._node()
                front = permute(node, (dim % x.ndim, *(d for d in range(x.ndim) if d != dim % x.ndim)))
                example = placeholder(Aval(front.shape[1:], front.dtype), "example")
                if front.needs_grad:           # the batch has a history, of which a transform inside is a part
                    example = autodiff.variable(example)
                    _active.add(example)
                mapped[example] = front
                sizes.append(front.shape[0])
                with _examples():
                    leaves[i] = Tensor(example, x._device, state.trace)
            new.append(optree.tree_unflatten(tree, leaves))
        if like is None:
            raise ArgumentError("vmap: no argument is mapped; give at least one tensor an in_dims that is not None")
        if len(set(sizes)) != 1:
            raise ShapeError(f"vmap: the mapped dimensions have different sizes {sizes}")
        try:
            with _examples():
                out = fn(*new, **kwargs)
        finally:
            _active.difference_update(mapped)
        outs, tree = optree.tree_flatten(out, none_is_leaf=True)
        places = out_dims if isinstance(out_dims, (tuple, list)) else [out_dims] * len(outs)
        nodes = [t._n if isinstance(t, Tensor) else as_node(t) for t in outs]
        results = []
        with own_nodes():
            for node, place in zip(batch(nodes, mapped, sizes[0]), places, strict=True):
                n = len(node.shape)
                order = [*range(1, n)]
                order.insert(place % n, 0)
                results.append(Tensor(permute(node, tuple(order)), like._device, state.trace))
        return optree.tree_unflatten(tree, results)

    return wrapped


@public("jacobian", "jacrev", method=False)
def jacobian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False,
             chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns d fn / d argument, of shape (*output.shape, *argument.shape), by reverse mode, batched over the output.

    fn may take nested containers of tensors, and return one: then there is a derivative for each tensor of the result (in its
    structure), with the structure of the argument inside; a sequence of argnums gives a tuple of such. has_aux: fn returns (result,
    anything), the function (derivative, anything). chunk_size: how many elements of a result are worked on at once (default: all).
    The results must be real numbers; of a complex argument z, each entry is a gradient, d/d(re z) + i d/d(im z).

    >>> tg.jacrev(lambda p: {"y": p[0] * p[1]})((tg.ones(2), tg.ones(2)))["y"][0].shape
    (2, 2)
    """
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"jacobian: chunk_size must be positive, got {chunk_size}")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        run = _Jacobian("jacobian", fn, argnums, has_aux, args, kwargs)
        for node in run.nodes:
            _only_real("jacobian", "result", node)
        found = []
        for node in run.nodes:
            probe = placeholder(node.aval, "cotangent")
            with enable_grad():
                pulled = autodiff.vjp([node], run.variables, [probe]) if node.needs_grad else [None] * len(run.variables)
            given = [g if g is not None else autodiff.zeros_like(v) for g, v in zip(pulled, run.variables, strict=True)]
            rows = _batched(given, probe, node.aval.size, chunk_size)
            found.append([reshape(r, (*node.shape, *v.shape)) for r, v in zip(rows, run.variables, strict=True)])
        return run.result(found)

    return wrapped


@public("jacfwd", method=False)
def jacfwd(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *, randomness: str = "error",
           chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns d fn / d argument, as `jacobian`, by forward mode, batched over the argument's elements,

    which must be real numbers. randomness is there for torch's sake: random draws are the same for every element.
    """
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"jacfwd: chunk_size must be positive, got {chunk_size}")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        run = _Jacobian("jacfwd", fn, argnums, has_aux, args, kwargs)
        for v in run.variables:
            _only_real("jacfwd", "argument", v)
        found: list[list[Node]] = [[] for _ in run.nodes]
        for v in run.variables:
            probe = placeholder(v.aval, "tangent")
            with enable_grad():
                moved = autodiff.jvp(run.nodes, [v], [probe])
            given = [t if t is not None else autodiff.zeros_like(n) for t, n in zip(moved, run.nodes, strict=True)]
            for row, columns, n in zip(found, _batched(given, probe, v.aval.size, chunk_size), run.nodes, strict=True):
                row.append(reshape(permute(columns, (*range(1, len(n.shape) + 1), 0)), (*n.shape, *v.shape)))
        return run.result(found)

    return wrapped


class _Jacobian:
    """What `jacobian` and `jacfwd` share: fn called with variables, and derivatives put into the structures of result and arguments."""

    def __init__(self, call: str, fn: Any, argnums: int | Sequence[int], has_aux: bool, args: Any, kwargs: Any) -> None:
        self.single = isinstance(argnums, int)
        self.has_aux = has_aux
        new, self.flat, self.trees = _substitute(call, args, [argnums] if isinstance(argnums, int) else list(argnums))
        self.outer = state.grad
        with enable_grad():
            out = fn(*new, **kwargs)
        self.aux: Any = None
        if has_aux:
            out, self.aux = out
        self.outs, self.tree = optree.tree_flatten(out, none_is_leaf=False)
        if not self.outs or not all(isinstance(t, Tensor) for t in self.outs):
            seen = next((type(t).__name__ for t in self.outs if not isinstance(t, Tensor)), "nothing")
            raise AutogradError(f"{call}: the function must return tensors, or nested containers of tensors, got {seen}")
        self.nodes: list[Node] = [t._node() for t in self.outs]
        self.variables: list[Node] = [t._node() for group in self.flat for t in group]

    def result(self, found: list[list[Node]]) -> Any:
        """found: for each result, its derivative with respect to each variable."""
        tensors = iter(_release([n for row in found for n in row], self.flat, self.outs[0], self.outer))
        rows = []
        for _ in found:
            parts = tuple(optree.tree_unflatten(tree, [next(tensors) for _ in group])
                          for group, tree in zip(self.flat, self.trees, strict=True))
            rows.append(parts[0] if self.single else parts)
        out = optree.tree_unflatten(self.tree, rows)
        return (out, self.aux) if self.has_aux else out


def _batched(nodes: list[Node], probe: Node, size: int, chunk: int | None) -> list[Node]:
    """The nodes for every unit tensor in place of `probe`: (size, *shape) each."""
    step = max(1, size if chunk is None else min(chunk, size))
    parts = [batch(nodes, {probe: _bases(probe, at, min(step, size - at))}, min(step, size - at)) for at in range(0, max(1, size), step)]
    return [concat(list(group), 0) if len(group) > 1 else group[0] for group in zip(*parts, strict=True)]


def _only_real(call: str, what: str, node: Node) -> None:
    """Unit tensors of a complex space are twice as many: along 1 and along i."""
    if node.dtype.kind == "c":
        raise DTypeError(f"{call}: the {what} is {node.dtype}, which has two derivatives an element; use tg.view_as_real, or vjp and jvp")


def _bases(like: Node, first: int, count: int) -> Node:
    """`count` of the unit tensors of like's shape from the `first` on, stacked: (count, *shape)."""
    shape = (count, like.aval.size)
    return reshape(cast((iota(shape, 0) + first).eq(iota(shape, 1)) if first else iota(shape, 0).eq(iota(shape, 1)), like.dtype),
                   (count, *like.shape))


@public("hessian", method=False)
def hessian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives: shape (*output.shape, *argument.shape, *argument.shape), in the structures

    that `jacfwd(jacobian(fn))` gives.
    """
    return jacfwd(jacobian(fn, argnums), argnums)


@public("linearize", method=False)
def linearize(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(fn(*primals), push): push(*tangents) is the directional derivative there; fn is run once, however often push is called.

    >>> value, push = tg.linearize(tg.sin, tg.zeros(2))
    """
    new, flat, _ = _substitute("linearize", primals, range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = fn(*new)
    leaves, tree = _leaves("linearize", out)
    nodes, variables = [t._node() for t in leaves], [t._node() for group in flat for t in group]

    def push(*tangents: Any) -> Any:
        given = [t for x in tangents for t in _leaves("linearize", x)[0]]
        if [t.shape for t in given] != [v.shape for v in variables]:
            raise ShapeError(f"linearize: the tangents have the shapes {[t.shape for t in given]}, the primals "
                             f"{[tuple(v.shape) for v in variables]}")
        with enable_grad(), own_nodes():
            found = autodiff.jvp(nodes, variables, [autodiff.conform(t._node(), v) for t, v in zip(given, variables, strict=True)])
        moved = [g if g is not None else autodiff.zeros_like(n) for g, n in zip(found, nodes, strict=True)]
        return optree.tree_unflatten(tree, _release(moved, flat, leaves[0], state.grad))

    return optree.tree_unflatten(tree, _release(nodes, flat, leaves[0], outer)), push


@public("hvp", method=False)
def hvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(gradient of fn with respect to the first primal, Hessian times tangent), forward over reverse."""
    return jvp(grad(fn), primals, tangents)
