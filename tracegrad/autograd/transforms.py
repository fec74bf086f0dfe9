"""Functional transforms: grad, value_and_grad, vjp, jvp, jacobian, hessian. They nest with each other and with @trace.

Each takes a function of tensors and makes a function of tensors. The arguments to differentiate are wrapped in variables of
their own, so an inner transform never confuses its variable with an outer one's.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optree

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.batching import batch, spread
from tracegrad.errors import ArgumentError, AutogradError, DeviceError, DTypeError, ShapeError
from tracegrad.execute.realize import is_view
from tracegrad.graph.ir import Aval, Node, own_nodes, topological
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import REGISTRY, as_node, bind, cast, iota, placeholder
from tracegrad.ops.primitives.movement import concat, narrow, permute, reshape
from tracegrad.support import dtypes
from tracegrad.support.modes import enable_grad, state
from tracegrad.tensors.creation import tensor
from tracegrad.tensors.scopes import Examples
from tracegrad.tensors.tensor import Tensor
from tracegrad.tensors.view_steps import Steps

_VARIABLE, _DETACH = REGISTRY["variable"], REGISTRY["detach"]


def _leaves(call: str, value: Any, pushed: bool = False) -> tuple[list[Tensor], Any]:
    """The tensors of a (nested container of) argument; floats and complex numbers only, but for results to be `pushed`."""
    leaves, treedef = optree.tree_flatten(value, none_is_leaf=False)
    out = []
    for x in leaves:
        if isinstance(x, (int, float, complex)) and not isinstance(x, bool):
            x = tensor(x if isinstance(x, complex) else float(x))
        if not isinstance(x, Tensor):
            raise DTypeError(f"{call}: can only differentiate with respect to tensors, got {type(x).__name__}; see argnums")
        if not pushed and not dtypes.differentiable(x.dtype):
            raise DTypeError(
                f"{call}: can only differentiate with respect to floats and complex numbers, got {x.dtype}; cast it or see argnums"
            )
        out.append(x)
    return out, treedef


class _Variables(list[Tensor]):
    """Variables for the tensors of an argument. `given`: handles of the same that fn gets, and may change in place: derivatives are taken

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
        value, aux = _without_aux("grad", out) if has_aux else (out, None)
        value = _scalar_output("grad", value)
        node = value._node()
        variables = [t._n for group in flat for t in group]
        with enable_grad():  # custom backwards build graph, too
            found = derivatives.vjp([node], variables, [derivatives.ones_like(node)]) if node.needs_grad else [None] * len(variables)
        nodes = derivatives.dense(found, variables)
        value, *results = _release([node, *nodes], flat, [value, *_each(flat)], outer)
        aux = _released(aux, outer)
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


def _each(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The tensors of all groups."""
    return [t for group in groups for t in group]


def _release(nodes: Sequence[Node], fresh: Sequence[Sequence[Tensor]], like: Sequence[Tensor], outer: bool) -> list[Tensor]:
    """Results as the caller sees them: part of the caller's history if they depend on a variable that is not the transform's own.

    like: for each result a tensor that lies where it does.
    """
    derivatives.awaited.difference_update(t._n for t in _each(fresh))
    recorded = outer and derivatives.recorded(nodes)
    return [Tensor(n if recorded or not n.needs_grad else bind(_DETACH, (n,), {}), t._device, state.trace)
            for n, t in zip(nodes, like, strict=True)]


def _released(aux: Any, outer: bool) -> Any:
    """What fn returned beside its result, as the caller sees it; when the results were released."""

    def released(t: Any) -> Any:
        node = t._node() if isinstance(t, Tensor) else None
        return t if node is None or not node.needs_grad or (outer and derivatives.recorded([node])) else Tensor(
            bind(_DETACH, (node,), {}), t._device, state.trace)

    return optree.tree_map(released, aux, none_is_leaf=True)


def _substitute(call: str, args: tuple[Any, ...], numbers: Sequence[int]) -> tuple[list[Any], list[_Variables], list[Any]]:
    """args with fresh variables in the places `numbers`."""
    new = list(args)
    flat, trees = list[_Variables](), []
    for k in numbers:
        if not -len(args) <= k < len(args):
            raise ArgumentError(f"{call}: argnums {k} is out of range for {len(args)} positional arguments")
        leaves, tree = _leaves(call, args[k])
        fresh = _Variables(leaves)
        derivatives.awaited.update(t._n for t in fresh)
        new[k] = optree.tree_unflatten(tree, fresh.given)
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
def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(fn(*primals), pull): pull(cotangents) gives a tuple with the cotangent of each primal. Structures as the function's own.

    has_aux: fn returns a pair, whose second part comes back as a third result.
    """
    new, flat, trees = _substitute("vjp", primals, range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = fn(*new)
    out, aux = _without_aux("vjp", out) if has_aux else (out, None)
    leaves, tree = _leaves("vjp", out)
    nodes = [t._node() for t in leaves]

    def pull(cotangents: Any) -> tuple[Any, ...]:
        given = optree.tree_leaves(cotangents)
        if len(given) != len(nodes):
            raise ArgumentError(f"vjp: {len(nodes)} outputs but {len(given)} cotangents")
        cts = [matching("vjp", f"cotangent {i}", c, "output", t) for i, (c, t) in enumerate(zip(given, leaves, strict=True))]
        variables = [t._n for group in flat for t in group]
        with enable_grad(), own_nodes():
            found = derivatives.vjp(nodes, variables, cts)
        results = derivatives.dense(found, variables)
        tensors = iter(_release(results, flat, _each(flat), state.grad))
        return tuple(optree.tree_unflatten(t, [next(tensors) for _ in group]) for group, t in zip(flat, trees, strict=True))

    result = optree.tree_unflatten(tree, _release(nodes, flat, leaves, outer))
    return (result, pull, _released(aux, outer)) if has_aux else (result, pull)


def _without_aux(call: str, out: Any) -> tuple[Any, Any]:
    if not (isinstance(out, tuple) and len(out) == 2):
        raise ArgumentError(f"{call}: has_aux is for a function that returns a pair (output, aux), got {type(out).__name__}")
    return out


@public("jvp", method=False)
def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], *, strict: bool = False,
        has_aux: bool = False) -> tuple[Any, ...]:
    """(fn(*primals), its directional derivative along `tangents`), by forward mode. tangents: the structure and shapes of primals.

    has_aux: fn returns a pair, whose second part comes back as a third result. strict is torch's: what an output does not depend on has
    derivative zero, with it or without.
    """
    del strict
    if len(primals) != len(tangents):
        raise ArgumentError(f"jvp: {len(primals)} primals but {len(tangents)} tangents")
    new, flat, _ = _substitute("jvp", tuple(primals), range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = fn(*new)
    out, aux = _without_aux("jvp", out) if has_aux else (out, None)
    leaves, tree = _leaves("jvp", out, pushed=True)
    variables = [t._n for group in flat for t in group]
    along = _tangents("jvp", tangents, flat)
    nodes = [t._node() for t in leaves]
    moved = _pushed(nodes, variables, along)
    results = _release([*nodes, *moved], flat, [*leaves, *leaves], outer)
    value, moved_by = optree.tree_unflatten(tree, results[: len(nodes)]), optree.tree_unflatten(tree, results[len(nodes) :])
    return (value, moved_by, _released(aux, outer)) if has_aux else (value, moved_by)


def _pushed(nodes: Sequence[Node], variables: Sequence[Node], along: Sequence[Node]) -> list[Node]:
    """The results' tangents: of integers and bools (the indices of a sort) zeros of their dtype, as in torch."""
    smooth = [node for node in nodes if dtypes.differentiable(node.dtype)]
    with enable_grad():
        found = dict(zip(smooth, derivatives.jvp(smooth, variables, along), strict=True))
    return derivatives.dense([found.get(node) for node in nodes], nodes)


def _tangents(call: str, tangents: Sequence[Any], flat: Sequence[Sequence[Tensor]]) -> list[Node]:
    given, primals = [t for x in tangents for t in _leaves(call, x)[0]], [t for group in flat for t in group]
    if len(given) != len(primals):
        raise ArgumentError(f"{call}: {len(primals)} tensors among the primals but {len(given)} among the tangents")
    return [matching(call, f"tangent {i}", t, "primal", p) for i, (t, p) in enumerate(zip(given, primals, strict=True))]


@public("linearize", method=False)
def linearize(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(fn(*primals), push): push(*tangents) gives the directional derivative along tangents of the primals' structure, as torch.func's.

    fn itself runs once, however many tangents are pushed.

    >>> value, push = tg.linearize(lambda x: x ** 2, tg.tensor([1.0, 3.0]))
    >>> push(tg.tensor([1.0, 0.5]))
    Tensor([2., 3.], device='cpu')
    """
    new, flat, _ = _substitute("linearize", primals, range(len(primals)))
    outer = state.grad
    with enable_grad():
        out = fn(*new)
    leaves, tree = _leaves("linearize", out, pushed=True)
    nodes = [t._node() for t in leaves]
    variables = [t._n for group in flat for t in group]

    def push(*tangents: Any) -> Any:
        along = _tangents("linearize", tangents, flat)
        moved = _pushed(nodes, variables, along)
        return optree.tree_unflatten(tree, _release(moved, flat, leaves, state.grad))

    return optree.tree_unflatten(tree, _release(nodes, flat, leaves, outer)), push


@contextmanager
def _examples() -> Iterator[None]:
    """Tensors made inside stand for one example of a batch: they are never computed by themselves."""
    state.examples += 1
    try:
        yield
    finally:
        state.examples -= 1


@public("vmap", method=False)
def vmap(fn: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
         chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that maps `fn` over a dimension of its arguments, as torch.func.vmap: written for one example, run on a batch.

    in_dims: the mapped dimension of each positional argument (None: the same for all; one value for all arguments, or a tuple of
    values, each of them for every tensor of a nested argument or in that argument's structure); keyword arguments are not mapped.
    out_dims: where the batch goes in each output, likewise; None for an output that is the same for all.
    What fn changes in place in an argument that is mapped is changed in the batch; what is not mapped can only be given values in place
    that are the same for all (TraceError). Results that are arguments, views of them, or captured, are views outside, too.
    The result is one program with batched operations, not a loop; chunk_size: how many examples are run at once, where memory is short.
    randomness: what random functions do inside. "error": they are an error; "different": every example has numbers of its own, as if one
    call had drawn them for the batch; "same": all have the same.
    Raises ShapeError if mapped sizes differ, ArgumentError if nothing is mapped or dims do not fit.

    >>> tg.vmap(lambda a, b: a @ b)(tg.ones(5, 3), tg.ones(5, 3)).shape
    (5,)
    """
    if randomness not in ("error", "different", "same"):
        raise ArgumentError(f"vmap: randomness must be 'error', 'different' or 'same', got {randomness!r}")
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"vmap: chunk_size must be positive, got {chunk_size}")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if isinstance(in_dims, (tuple, list)) and len(in_dims) != len(args):
            raise ArgumentError(f"vmap: in_dims has {len(in_dims)} entries for {len(args)} arguments")
        given: Any = list(args)
        leaves, tree = optree.tree_flatten(given, none_is_leaf=True)
        dims = _spread_dims("in_dims", list(in_dims) if isinstance(in_dims, (tuple, list)) else in_dims, given)
        sizes: list[int] = []
        for x, dim in zip(leaves, dims, strict=True):
            if dim is None or not isinstance(x, Tensor):
                continue
            if not -x.ndim <= dim < x.ndim:
                raise ShapeError(f"vmap: in_dims {dim} is out of range for a tensor of shape {x.shape}")
            sizes.append(x.shape[dim])
        if not sizes:
            raise ArgumentError("vmap: no argument is mapped; give at least one tensor an in_dims that is not None")
        if len(set(sizes)) != 1:
            raise ShapeError(f"vmap: the mapped dimensions have different sizes {sizes}")
        size, step = sizes[0], sizes[0] if chunk_size is None else chunk_size
        parts: list[list[Tensor]] = []
        for start in range(0, max(1, size), max(1, step)):
            part = leaves
            if step < size:
                part = [
                    x.narrow(dim, start, min(step, size - start)) if dim is not None and isinstance(x, Tensor) else x
                    for x, dim in zip(leaves, dims, strict=True)
                ]
            one = functools.partial(fn, **kwargs)
            results, out_tree, places = _vmapped(one, part, dims, tree, out_dims, randomness, chunk_size is None)
            parts.append(results)
        if len(parts) == 1:
            return optree.tree_unflatten(out_tree, parts[0])
        joined = []
        for place, *pieces in zip(places, *parts, strict=True):
            nodes = [t._node() for t in pieces]
            joined.append(pieces[0] if place is None else pieces[0]._wrap(concat(nodes, place % len(nodes[0].shape))))
        return optree.tree_unflatten(out_tree, joined)

    return wrapped


def _spread_dims(name: str, prefix: Any, whole: Any) -> list[Any]:
    """A value for each leaf of `whole`, from a tree of which each leaf stands for all that `whole` has there."""
    try:
        shape: Any = optree.tree_map(lambda _: 0, whole, none_is_leaf=True)  # optree prints what does not fit: no values
        dims: list[Any] = optree.broadcast_prefix(prefix, shape, none_is_leaf=True)
    except ValueError as error:
        raise ArgumentError(f"vmap: {name} {prefix} does not fit the structure of the {'arguments' if name == 'in_dims' else 'results'}: "
                            f"{str(error).splitlines()[0]}") from None
    for d in dims:
        if d is not None and (isinstance(d, bool) or not isinstance(d, int)):
            raise ArgumentError(f"vmap: {name} holds dimensions (int) or None, got {d!r}")
    return dims


def _vmapped(fn: Callable[..., Any], leaves: Sequence[Any], dims: Sequence[Any], tree: Any, out_dims: Any,
             randomness: str, views: bool) -> tuple[list[Tensor], Any, list[Any]]:
    """One batch of examples: the results, their structure, and where the batch is in each. views: whether results may share memory."""
    mapped: dict[Node, Node] = {}
    scope = Examples(mapped, randomness)
    examples, orders = list(leaves), dict[int, tuple[int, ...]]()
    known: dict[tuple[int, int], Tensor] = {}
    for i, (x, dim) in enumerate(zip(leaves, dims, strict=True)):
        if dim is None or not isinstance(x, Tensor):
            continue
        like = x
        examples[i] = known.get((id(x), dim % x.ndim))
        if examples[i] is not None:                   # one tensor given twice: what fn writes to one is written to the other
            continue
        node = x._node()
        node = node if state.grad or not node.needs_grad else bind(_DETACH, (node,), {})
        orders[i] = (dim % x.ndim, *(d for d in range(x.ndim) if d != dim % x.ndim))
        front = permute(node, orders[i])
        example = placeholder(Aval(front.shape[1:], front.dtype), "example")
        if front.needs_grad:           # the batch has a history, of which a transform inside is a part
            example = derivatives.stand_in(example)
        mapped[example] = front
        scope.size = size = front.shape[0]
        with _examples(), scope:
            examples[i] = known[id(x), orders[i][0]] = Tensor(example, x._device, state.trace)
    scope.number = placeholder(Aval((), dtypes.int64), "example")
    mapped[scope.number] = iota((size,), 0)
    try:
        with _examples(), scope:
            out = fn(*optree.tree_unflatten(tree, examples))
            outs, out_tree = optree.tree_flatten(out, none_is_leaf=True)
            nodes = [t._node() if isinstance(t, Tensor) else as_node(t) for t in outs]
            written = {i: node for i in orders if (node := examples[i]._node()) not in mapped}
    finally:
        derivatives.awaited.difference_update(mapped)
    places = _spread_dims("out_dims", out_dims, out)
    results = []
    with own_nodes():
        for i, whole in zip(written, batch(list(written.values()), mapped, size), strict=True):      # arguments that fn changed in place
            leaves[i]._rebind(permute(whole, tuple(sorted(range(leaves[i].ndim), key=orders[i].__getitem__))), "vmap")
        memory = _Memory(scope, mapped, {id(examples[i]): (leaves[i], orders[i]) for i in orders}, outs if views else [])
        for t, one, node, place in zip(outs, nodes, batch(nodes, mapped, size), places, strict=True):
            device = t._device if isinstance(t, Tensor) else like._device
            if place is None:
                if any(n in mapped for n in topological([one])):
                    raise ArgumentError("vmap: out_dims is None for a result that depends on a mapped argument; say where the batch goes")
                results.append(memory.result(t, None, one, device))
                continue
            n = len(node.shape)
            if not -n <= place < n:
                raise ShapeError(f"vmap: out_dims {place} is out of range for a result of {n} dimensions with the batch")
            order = [*range(1, n)]
            order.insert(place % n, 0)
            results.append(memory.result(t, tuple(order), permute(node, tuple(order)), device))
    return results, out_tree, places


class _Memory:
    """Which results of a vmap share memory: with its arguments, with what it reached otherwise, with each other.

    given: of the examples, by id, the batch and the order of its dimensions that has the batch in front.
    """

    def __init__(self, scope: Examples, mapped: Mapping[Node, Node], given: dict[int, tuple[Tensor, tuple[int, ...]]],
                 outs: Sequence[Any]) -> None:
        self.scope, self.given = scope, given
        roots = [_root(t)[0] for t in outs if isinstance(t, Tensor)]
        counts = Counter(map(id, roots))
        self.known = set(counts)
        self.made: dict[int, Tensor] = {}                        # what fn made and several results are, or are views of: the batch
        for root in roots:
            if counts[id(root)] > 1 and id(root) not in given and id(root) not in self.made and self.own(root):
                self.made[id(root)] = Tensor(batch([root._node()], mapped, scope.size)[0], root._device, state.trace)

    def own(self, t: Tensor) -> bool:
        """Whether fn made t."""
        return t._base is None and self.scope in getattr(t, "_within", ())

    def result(self, t: Any, order: tuple[int, ...] | None, node: Node, device: Any) -> Tensor:
        """Result t, whose value is `node`: a view of what it shares memory with, else a tensor of its own."""
        found = self.view(t, order) if isinstance(t, Tensor) else None
        return Tensor(node, device, state.trace) if found is None else found

    def view(self, t: Tensor, order: tuple[int, ...] | None) -> Tensor | None:
        """t as a view, its dimensions in that order, where the batch was in front (None: no batch)."""
        root, steps, detached = _root(t)
        if id(root) not in self.known:
            return None
        made = self.made.get(id(root))
        base, front = self.given.get(id(root), (root if made is None else made, None))
        if front is None and self.own(root) and (made is None or order is None):
            return None
        size = self.scope.size
        start = node = placeholder(base._node().aval)
        if order is not None:
            batched = permute(start, front) if front is not None else start if made is not None else spread(start, size)
            example = node = placeholder(Aval(batched.shape[1:], batched.dtype))
        for fn, attrs in steps:
            node = bind(fn, (node,), attrs)
        if order is not None:
            node = permute(batch([node], {example: batched}, size)[0], order)
        moves = []
        while node is not start:
            if not is_view(node):
                return None
            moves.append((node.fn, node.attrs))
            node = node.operands[0]
        base = base.detach() if detached or (not state.grad and base._node().needs_grad) else base
        node = base._node()
        for fn, attrs in reversed(moves):
            node = bind(fn, (node,), attrs)
        return base._view(Tensor(node, base._device, state.trace) if moves else base)


def _root(t: Tensor) -> tuple[Tensor, Steps, bool]:
    """What t is a view of in the end, how it is reached, and whether a detach() lies between."""
    steps: Steps = ()
    detached = False
    while t._base is not None and not t._stands_alone():
        steps, detached, t = (*t._chain, *steps), detached or t._detached, t._base
    return t, steps, detached


@public("jacobian", "jacrev", method=False)
def jacobian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *,
             chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns d fn / d argument, of shape (*output.shape, *argument.shape), by reverse mode, batched over the output.

    Of nested outputs and arguments: the outputs' structure, each tensor replaced by the argument's structure of such matrices (a tuple
    of them for a sequence of argnums), as torch.func.jacrev. has_aux: fn returns a pair, of which the second is passed through.
    chunk_size: how many rows are computed at once, where memory is short. The function must return real numbers; of a complex argument
    z, each entry is a gradient, d/d(re z) + i d/d(im z).

    >>> tg.jacrev(lambda x: x ** 2)(tg.tensor([1.0, 2.0]))
    Tensor([[2., 0.],
            [0., 4.]], device='cpu')
    """

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = _Jacobian("jacobian", fn, argnums, has_aux, args, kwargs)
        blocks = []
        for node in call.nodes:
            _only_real("jacobian", "result", node)
            probe = placeholder(node.aval, "cotangent")
            with enable_grad(), Examples([probe]):
                found = derivatives.vjp([node], call.variables, [probe]) if node.needs_grad else [None] * len(call.variables)
            pulled = derivatives.dense(found, call.variables)
            rows = _at_unit_tensors(pulled, probe, chunk_size)
            blocks += [reshape(r, (*node.shape, *v.shape)) for r, v in zip(rows, call.variables, strict=True)]
        return call.result(blocks, call.inputs * len(call.nodes))

    return wrapped


@public("jacfwd", method=False)
def jacfwd(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *,
           chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns d fn / d argument, as `jacobian`, by forward mode, batched over the argument's elements,

    which must be real numbers.
    """

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = _Jacobian("jacfwd", fn, argnums, has_aux, args, kwargs)
        columns = []
        for variable in call.variables:
            _only_real("jacfwd", "argument", variable)
            probe = placeholder(variable.aval, "tangent")
            with Examples([probe]):
                pushed = _pushed(call.nodes, [variable], [probe])
            columns.append([
                reshape(permute(m, (*range(1, len(m.shape)), 0)), (*m.shape[1:], *variable.shape))
                for m in _at_unit_tensors(pushed, probe, chunk_size)
            ])
        return call.result([column[i] for i in range(len(call.nodes)) for column in columns],
                           [t for t in call.outs for _ in columns])

    return wrapped


class _Jacobian:
    """A call whose Jacobian is wanted: its outputs, its variables, and how blocks (outputs x variables) are given back."""

    def __init__(self, call: str, fn: Any, argnums: int | Sequence[int], has_aux: bool, args: Any, kwargs: Any) -> None:
        self.single = isinstance(argnums, int)
        new, self.flat, self.trees = _substitute(call, args, [argnums] if isinstance(argnums, int) else list(argnums))
        self.outer, self.has_aux = state.grad, has_aux
        with enable_grad():
            out = fn(*new, **kwargs)
        self.aux: Any = None
        if has_aux:
            out, self.aux = _without_aux(call, out)
        self.outs, self.tree = _leaves(call, out, pushed=call == "jacfwd")
        if not self.outs:
            raise AutogradError(f"{call}: the function must return a tensor or a container of tensors, got {type(out).__name__}")
        self.nodes = [t._node() for t in self.outs]
        self.inputs = _each(self.flat)
        self.variables = [t._n for t in self.inputs]

    def result(self, blocks: Sequence[Node], like: Sequence[Tensor]) -> Any:
        """The blocks, which lie where those of `like` do, in the structures of outputs and arguments."""
        tensors = iter(_release(blocks, self.flat, like, self.outer))
        rows = []
        for _ in self.nodes:
            row = tuple(optree.tree_unflatten(t, [next(tensors) for _ in group]) for group, t in zip(self.flat, self.trees, strict=True))
            rows.append(row[0] if self.single else row)
        found = optree.tree_unflatten(self.tree, rows)
        return (found, _released(self.aux, self.outer)) if self.has_aux else found


def _only_real(call: str, what: str, node: Node) -> None:
    """Unit tensors of a complex space are twice as many: along 1 and along i."""
    if node.dtype.kind == "c":
        raise DTypeError(f"{call}: the {what} is {node.dtype}, which has two derivatives an element; use tg.view_as_real, or vjp and jvp")


def _at_unit_tensors(nodes: Sequence[Node], probe: Node, chunk_size: int | None) -> list[Node]:
    """`nodes` for each unit tensor of the probe's shape in its place, stacked: (size, *node.shape)."""
    n = probe.aval.size
    step = n if chunk_size is None else chunk_size
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"jacobian: chunk_size must be positive, got {chunk_size}")
    unit = reshape(cast(iota((n, n), 0).eq(iota((n, n), 1)), probe.dtype), (n, *probe.shape))
    if step >= n:
        return batch(nodes, {probe: unit}, n)
    lengths = [min(step, n - start) for start in range(0, n, step)]
    parts = [batch(nodes, {probe: narrow(unit, 0, k * step, length)}, length) for k, length in enumerate(lengths)]
    return [concat(list(part), 0) for part in zip(*parts, strict=True)]


@public("hessian", method=False)
def hessian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives: shape (*output.shape, *argument.shape, *argument.shape), forward over reverse.

    Nested as `jacobian` of `jacobian`: of a dict argument, h["a"]["b"] is d2 fn / da db.

    >>> tg.hessian(lambda x: (x ** 3).sum())(tg.tensor([1.0, 2.0]))
    Tensor([[ 6.,  0.],
            [ 0., 12.]], device='cpu')
    """
    return jacfwd(jacobian(fn, argnums), argnums)


@public("hvp", method=False)
def hvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(gradient of fn with respect to the first primal, Hessian times tangent), forward over reverse."""
    return jvp(grad(fn), primals, tangents)
