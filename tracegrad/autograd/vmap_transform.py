"""vmap: a function of one example becomes one of a batch. Start at `_vmapped`; each operation's rule is in `autodiff/batching.py`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optree

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.batching import batch, spread
from tracegrad.errors import ArgumentError, ShapeError, check_function
from tracegrad.execute.realize import is_view
from tracegrad.graph.ir import NODES, Aval, Node, own_nodes, topological
from tracegrad.graph.operators import PUBLIC, named, public
from tracegrad.graph.primitive import REGISTRY, as_node, bind, iota, placeholder
from tracegrad.ops.primitives.movement import concat, permute
from tracegrad.support import dtypes
from tracegrad.support.modes import state
from tracegrad.tensors.bases.view_steps import Steps, is_placed
from tracegrad.tensors.scopes import Examples
from tracegrad.tensors.tensor import Tensor

_DETACH = REGISTRY["detach"]
joins: list[Callable[..., Any]] = [PUBLIC["cat"]]           # of containers that map themselves; torch.cat, which asks them, comes last
_TREES: dict[str, Any] = {"none_is_leaf": True, "namespace": NODES}


@contextmanager
def _examples() -> Iterator[None]:
    """Tensors made inside stand for one example of a batch: they are never computed by themselves."""
    state.examples += 1
    try:
        yield
    finally:
        state.examples -= 1


@public("vmap", method=False)
@named
def vmap(func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
         chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that maps `func` over a dimension of its arguments, as torch.func.vmap: written for one example, run on a batch.

    in_dims: the mapped dimension of each positional argument (None: the same for all; one value for all arguments, or a tuple of
    values, each of them for every tensor of a nested argument or in that argument's structure); keyword arguments are not mapped.
    out_dims: where the batch goes in each output, likewise; None for an output that is the same for all.
    What func changes in place in an argument that is mapped is changed in the batch; what is not mapped can only be given values in place
    that are the same for all (TraceError). Results that are arguments, views of them, or captured, are views outside, too.
    The result is one program with batched operations, not a loop; chunk_size: how many examples are run at once, where memory is short.
    randomness: what random functions do inside. "error": they are an error; "different": every example has numbers of its own, as if one
    call had drawn them for the batch; "same": all have the same.
    Raises ShapeError if mapped sizes differ, ArgumentError if nothing is mapped or dims do not fit. Tensors of any dtype.

    >>> tg.vmap(lambda a, b: a @ b)(tg.ones(5, 3), tg.ones(5, 3)).shape
    (5,)
    """
    check_function("vmap", func)
    if randomness not in ("error", "different", "same"):
        raise ArgumentError(f"vmap: randomness must be 'error', 'different' or 'same', got {randomness!r}")
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"vmap: chunk_size must be positive, got {chunk_size}")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if isinstance(in_dims, (tuple, list)) and len(in_dims) != len(args):
            raise ArgumentError(f"vmap: in_dims has {len(in_dims)} entries for {len(args)} arguments")
        given: Any = list(args)
        leaves, tree = optree.tree_flatten(given, is_leaf=_maps_itself, **_TREES)
        dims = _spread_dims("in_dims", list(in_dims) if isinstance(in_dims, (tuple, list)) else in_dims, given)
        sizes: list[int] = []
        for x, dim in zip(leaves, dims, strict=True):
            if dim is None or not (isinstance(x, Tensor) or _maps_itself(x)):
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
                count = min(step, size - start)
                part = [x if dim is None else _narrowed(x, dim, start, count) for x, dim in zip(leaves, dims, strict=True)]
            one = functools.partial(func, **kwargs)
            results, out_tree, places = _vmapped(one, part, dims, tree, out_dims, randomness, chunk_size is None)
            parts.append(results)
        if len(parts) == 1:
            return optree.tree_unflatten(out_tree, parts[0])
        joined = []
        for place, *pieces in zip(places, *parts, strict=True):
            joined.append(pieces[0] if place is None else _joined(pieces, place))
        return optree.tree_unflatten(out_tree, joined)

    return wrapped


def _spread_dims(name: str, prefix: Any, whole: Any) -> list[Any]:
    """A value for each leaf of `whole`, from a tree of which each leaf stands for all that `whole` has there."""
    try:
        shape: Any = optree.tree_map(lambda _: 0, whole, is_leaf=_maps_itself, **_TREES)  # optree prints what does not fit: no values
        dims: list[Any] = optree.broadcast_prefix(prefix, shape, **_TREES)
    except ValueError as error:
        raise ArgumentError(f"vmap: {name} {prefix} does not fit the structure of the {'arguments' if name == 'in_dims' else 'results'}: "
                            f"{str(error).splitlines()[0]}") from None
    for d in dims:
        if d is not None and (isinstance(d, bool) or not isinstance(d, int)):
            raise ArgumentError(f"vmap: {name} holds dimensions (int) or None, got {d!r}")
    return dims


def _vmapped(func: Callable[..., Any], leaves: Sequence[Any], dims: Sequence[Any], tree: Any, out_dims: Any,
             randomness: str, views: bool) -> tuple[list[Tensor], Any, list[Any]]:
    """One batch of examples: the results, their structure, and where the batch is in each. views: whether results may share memory."""
    mapped: dict[Node, Node] = {}
    scope = Examples(mapped, randomness)
    examples = list(leaves)
    for i, (x, dim) in enumerate(zip(leaves, dims, strict=True)):
        if _maps_itself(x):                           # a copy, which is not locked: what is would store its examples
            examples[i] = x.copy() if dim is None else x.copy()._add_batch_dim(in_dim=dim % x.ndim, vmap_level=scope)
        elif dim is not None and isinstance(x, Tensor):
            examples[i] = example_of(scope, x, dim)
        if dim is not None and examples[i] is not x:
            scope.size, device = x.shape[dim], x.device
    size = scope.size
    scope.number = placeholder(Aval((), dtypes.int64), "example")
    mapped[scope.number] = iota((size,), 0)
    try:
        with _examples(), scope:
            out = func(*optree.tree_unflatten(tree, examples))
            outs, out_tree = optree.tree_flatten(out, is_leaf=_maps_itself, **_TREES)
            nodes = [t._node() if isinstance(t, Tensor) else as_node(t) for t in outs if not _maps_itself(t)]
            written = [(whole, order, node) for one, whole, order in scope.known.values() if (node := one._node()) not in mapped]
    finally:
        derivatives.awaited.difference_update(mapped)
        given = {id(one): (whole, order) for one, whole, order in scope.known.values()}
        scope.known.clear()                           # examples hold their scope: no circle of references is left
    places = _spread_dims("out_dims", out_dims, out)
    results = []
    with own_nodes():
        for (x, order, _), whole in zip(written, batch([node for *_, node in written], mapped, size), strict=True):
            x._rebind(permute(whole, tuple(sorted(range(x.ndim), key=order.__getitem__))), "vmap")      # func changed it in place
        memory = _Memory(scope, mapped, given, outs if views else [])
        batched = zip(nodes, batch(nodes, mapped, size), strict=True)
        for t, place in zip(outs, places, strict=True):
            if _maps_itself(t):
                results.append(t._maybe_remove_batch_dim("vmap", vmap_level=scope, batch_size=size, out_dim=place))
                continue
            one, node = next(batched)
            where = t._device if isinstance(t, Tensor) else device
            if place is None:
                _same_for_all(one, scope)
                results.append(memory.result(t, None, one, where))
                continue
            order = _with_batch_at(place, node)
            results.append(memory.result(t, order, permute(node, order), where))
    return results, out_tree, places


def _maps_itself(x: Any) -> bool:
    """Whether it is a container that maps the tensors that it holds (TensorDict), by `example_of` and `whole_of`."""
    return hasattr(type(x), "_add_batch_dim")


def _narrowed(x: Any, dim: int, start: int, length: int) -> Any:
    """A part of what is mapped along a dimension."""
    if isinstance(x, Tensor):
        return x.narrow(dim, start, length)
    return x[(*[slice(None)] * (dim % x.ndim), slice(start, start + length))] if _maps_itself(x) else x


def _joined(pieces: Sequence[Any], place: int) -> Any:
    """The results of parts of a batch as one, along a dimension."""
    if _maps_itself(pieces[0]):
        return joins[-1](pieces, place % pieces[0].ndim)
    nodes = [t._node() for t in pieces]
    return pieces[0]._tensor_of(concat(nodes, place % len(nodes[0].shape)))


def example_of(scope: Examples, x: Tensor, dim: int) -> Tensor:
    """What stands for one example of x along the dimension, in a vmap. Of a tensor that is given twice it is the same."""
    if (found := scope.known.get((id(x), dim % x.ndim))) is not None:               # what func writes to one is written to the other
        return found[0]  # type: ignore[no-any-return]
    node = x._node()
    node = node if state.grad or not node.needs_grad else bind(_DETACH, (node,), {})
    order = (dim % x.ndim, *(d for d in range(x.ndim) if d != dim % x.ndim))
    front = permute(node, order)
    example = placeholder(Aval(front.shape[1:], front.dtype), "example")
    if front.needs_grad:               # the batch has a history, of which a transform inside is a part
        example = derivatives.stand_in(example)
    mapped: Any = scope.mapped
    mapped[example] = front
    scope.size = front.shape[0]
    with _examples(), scope:
        made = Tensor(example, x._device, state.trace)
    scope.known[id(x), order[0]] = made, x, order
    return made


def whole_of(scope: Examples, x: Any, place: int | None) -> Any:
    """The whole batch, whose dimension is at `place`, of what a vmap's function made for one example. None: x, the same for all."""
    node = x._node() if isinstance(x, Tensor) else as_node(x)
    if place is None:
        _same_for_all(node, scope)
        return x
    mapped: Any = scope.mapped
    with own_nodes():
        (whole,) = batch([node], mapped, scope.size)
        return Tensor(permute(whole, _with_batch_at(place, whole)), x._device, state.trace)


def _same_for_all(node: Node, scope: Examples) -> None:
    """Raise ArgumentError for what each example has its own of."""
    if any(n in scope.mapped for n in topological([node])):
        raise ArgumentError("vmap: out_dims is None for a result that depends on a mapped argument; say where the batch goes")


def _with_batch_at(place: int, node: Node) -> tuple[int, ...]:
    """The order of a batch's dimensions that has the first one at `place`. Raises ShapeError."""
    n = len(node.shape)
    if not -n <= place < n:
        raise ShapeError(f"vmap: out_dims {place} is out of range for a result of {n} dimensions with the batch")
    order = [*range(1, n)]
    order.insert(place % n, 0)
    return tuple(order)


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
        self.made: dict[int, Tensor] = {}                        # what func made and several results are, or are views of: the batch
        for root in roots:
            if counts[id(root)] > 1 and id(root) not in given and id(root) not in self.made and self.own(root):
                self.made[id(root)] = Tensor(batch([root._node()], mapped, scope.size)[0], root._device, state.trace)

    def own(self, t: Tensor) -> bool:
        """Whether func made t."""
        return t._base is None and self.scope in getattr(t, "_within", ())

    def result(self, t: Any, order: tuple[int, ...] | None, node: Node, device: Any) -> Tensor:
        """Result t, whose value is `node`: a view of what it shares memory with, else a tensor of its own."""
        found = self.view(t, order) if isinstance(t, Tensor) else None
        return Tensor(node, device, state.trace) if found is None else found

    def view(self, t: Tensor, order: tuple[int, ...] | None) -> Tensor | None:
        """t as a view, its dimensions in that order, where the batch was in front (None: no batch)."""
        root, steps, detached = _root(t)
        if id(root) not in self.known or any(is_placed(func) for func, _ in steps):      # at another place for each example
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
        for func, attrs in steps:
            node = bind(func, (node,), attrs)
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
        for func, attrs in reversed(moves):
            node = bind(func, (node,), attrs)
        return base._view(Tensor(node, base._device, state.trace) if moves else base)


def _root(t: Tensor) -> tuple[Tensor, Steps, bool]:
    """What t is a view of in the end, how it is reached, and whether a detach() lies between."""
    steps: Steps = ()
    detached = False
    while t._base is not None and not t._stands_alone():
        steps, detached, t = (*t._chain, *steps), detached or t._detached, t._base
    return t, steps, detached
