"""Which inputs each element of a result may depend on: the sparsity of a Jacobian, found from the graph. Start at `pattern`.

One rule per op family, as in `batching.py`. A movement applies its NumPy rule to the numbers of sets as to any other elements: its index
map is that rule. A family without a rule here is taken to mix all that it is given, so a pattern has every entry that may differ from 0.

Indices and masks count by value where they have one: numbers that do not depend on the inputs. The rules note which leaves these were read
from, since a pattern holds for their contents only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tracegrad.autodiff.derivatives import pull_back, variable
from tracegrad.autodiff.index_sets import EMPTY, Ids, IndexSets
from tracegrad.autodiff.known_values import KNOWN, Values, moved
from tracegrad.errors import ArgumentError
from tracegrad.graph.ir import Node, topological
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.primitive import REGISTRY, placeholder
from tracegrad.support.dtypes import differentiable

ENTRIES = 1 << 26            # of a pattern, at most
STEPS = 20_000               # operations of a loop's iterations that are followed one by one
ROUNDS = 100                 # iterations of a loop of unknown length, until it is taken to mix everything
_OUTPUT = REGISTRY["output"]


def pattern(call: str, outputs: Sequence[Node], variables: Sequence[Node], told: Mapping[Node, Any]) -> tuple[Any, Any, list[Node]]:
    """(rows, columns, leaves read): the entries of the Jacobian of all outputs by all variables that may differ from zero, sorted.

    Rows and columns count the elements of the outputs and of the variables, one after the other. It holds wherever `contents` of the leaves
    is the same, and nodes hold what is `told` of them. ArgumentError, in the name of `call`, if there are more than ENTRIES.
    """
    sets = IndexSets(sum(v.aval.size for v in variables))
    given, first = {}, 0
    for v in variables:
        given[v] = sets.singles(v.shape, first)
        first += v.aval.size
    unknown = set(variables)
    for node in topological(outputs, unknown.__contains__):
        if any(o in unknown for o in node.operands):
            unknown.add(node)
    walk = Walk(sets, Values(unknown, told))
    found = walk.run(outputs, given)
    entries = sum(int(sets.sizes(ids).sum()) for ids in found)
    if entries > ENTRIES:
        found_any = f" The index at {walk.any_index.loc} may be any." if walk.any_index is not None else ""
        raise ArgumentError(
            f"{call}: {entries} entries of {sum(o.aval.size for o in outputs)} x {sets.count} may differ from zero, which is dense: use "
            f"jacfwd or jacrev in parts.{found_any} (So may one that is an argument or a variable of a trace: tell its values by "
            "`known`, call this outside of the trace, or make the index in its body, of a list)")
    rows, columns = sets.members(np.concatenate([np.zeros(0, np.int64), *(ids.reshape(-1) for ids in found)]))
    return rows, columns, list(walk.values.leaves)


class Walk:
    """Sets for the nodes of a graph. values: what is known of nodes that do not depend on the inputs.

    by_value: whether it is about what values depend on, not derivatives. These go through custom Functions by their backward, and end at
    `detach`.
    """

    def __init__(self, sets: IndexSets, values: Values, by_value: bool = False) -> None:
        self.sets, self.values, self.by_value = sets, values, by_value
        self.any_index: Node | None = None                  # an index whose values would have told more

    def run(self, outputs: Sequence[Node], given: Mapping[Node, Ids]) -> list[Ids]:
        """The patterns of `outputs`, from those of nodes before them."""
        found: dict[Node, Any] = dict(given)
        for node in topological(outputs, lambda n: n in given or not (n.needs_grad or self.by_value)):
            if node in found or not (node.needs_grad or self.by_value):
                continue
            operands = [found.get(o) for o in node.operands]
            if any(o is not None for o in operands):
                found[node] = self._node(node, operands)
        return [np.zeros(o.shape, np.int64) if found.get(o) is None else found[o] for o in outputs]

    def _node(self, node: Node, operands: list[Any]) -> Any:
        """operands: None where an operand depends on no input. Of a custom call: the list of its results' patterns."""
        fn = node.fn
        if fn is _OUTPUT:
            return operands[0][node.attrs["index"]]
        if isinstance(fn, CustomCall):
            if self.by_value:
                return operands[:len(fn.avals(*[o.aval for o in node.operands], **node.attrs))]
            return self._custom(node, operands)
        if fn.family in ("loop", "while_loop"):
            return self._loop(node, operands)
        rule = FAMILIES.get(fn.family)
        return self.mixed(node, operands) if rule is None else rule(self, node, operands)

    def dense(self, node: Node, operands: Sequence[Any]) -> list[Ids]:
        """The patterns of operands, empty where there was none."""
        return [np.zeros(o.shape, np.int64) if ids is None else ids for o, ids in zip(node.operands, operands, strict=True)]

    def mixed(self, node: Node, operands: Sequence[Any]) -> Ids:
        """Every element depends on every element."""
        return np.full(node.shape, self.sets.all_of(*self.given(operands)))

    def given(self, operands: Sequence[Any]) -> list[Ids]:
        """The patterns that there are, those of custom calls (lists) taken apart."""
        flat = [x for o in operands if o is not None for x in (o if isinstance(o, list) else [o])]
        return [x for x in flat if x is not None]

    # -- calls that have derivatives of their own

    def _custom(self, node: Node, operands: list[Any]) -> list[Ids | None]:
        fn = node.fn
        body, loop = getattr(fn, "body", None), getattr(fn, "loop", None)
        if loop is not None:
            return self._iterated(loop.body, operands[len(loop._avals):], loop.length, loop.reverse)
        if body is not None and not hasattr(fn, "pull"):
            return self._iterated(body, operands[body.carries + 1:], None, False)
        avals = fn.avals(*[o.aval for o in node.operands], **node.attrs)  # type: ignore[attr-defined]
        if hasattr(fn, "pull"):
            return [np.full(a.shape, self.sets.all_of(*self.given(operands))) for a in avals]
        return self._by_backward(node, operands, avals)

    def _by_backward(self, node: Node, operands: list[Any], avals: Sequence[Any]) -> list[Ids | None]:
        """By the pattern of the backward in its cotangents, which is that of the derivative, transposed."""
        probes = [placeholder(a, "probe") for a in avals]
        pulled = pull_back(node, dict(enumerate(probes)), [o is not None for o in operands])
        found = [(o.shape, ids, p) for o, ids, p in zip(node.operands, operands, pulled, strict=True) if ids is not None and p is not None]
        sets = IndexSets(sum(a.size for a in avals))
        starts = np.cumsum([0, *(a.size for a in avals)])
        walk = Walk(sets, self.values, by_value=True)
        own = walk.run([p for _, _, p in found], {p: sets.singles(p.shape, int(s)) for p, s in zip(probes, starts, strict=False)})
        groups, members = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for (shape, ids, p), back in zip(found, own, strict=True):
            if p.shape == shape:
                at, row = sets.members(back)
                groups.append(row)
                members.append(ids.reshape(-1)[at])
            else:                                           # what `conform` sums or spreads
                groups.append(np.arange(sets.count))
                members.append(np.full(sets.count, self.sets.all_of(ids)))
        flat = self.sets.merged(np.concatenate(groups), np.concatenate(members), sets.count)
        return [flat[s:s + a.size].reshape(a.shape) for s, a in zip(starts, avals, strict=False)]

    # -- loops

    def _loop(self, node: Node, operands: list[Any]) -> Ids:
        fn: Any = node.fn
        index = node.attrs["index"]
        if fn.family == "loop":
            return self._iterated(fn.body, operands, fn.length, fn.reverse)[index]
        body = getattr(fn, "body", None)
        if body is None or hasattr(fn, "pull") or index >= body.carries:
            return self.mixed(node, operands)
        return self._iterated(body, operands[:len(body.inputs)], None, False)[index]

    def _iterated(self, body: Any, operands: Sequence[Any], length: int | None, reverse: bool) -> list[Any]:
        """The results of a loop over `body`: iteration by iteration, or, of many or an unknown number, the union over all.

        length None: any number of iterations, none included.
        """
        n, rows = body.carries, body.rows
        inner = [variable(p) if differentiable(p.dtype) and not self.by_value else p for p in body.inputs]
        outs = body.outs if self.by_value else body(inner)
        shapes = [p.shape for p in body.inputs]
        ids = [np.zeros((length, *s) if n <= i < n + rows else s, np.int64) if x is None else x
               for i, (x, s) in enumerate(zip(operands, shapes, strict=True))]
        carries, scanned, constants = ids[:n], ids[n:n + rows], ids[n + rows:]

        def iteration(carries: Sequence[Ids], row: Sequence[Ids]) -> list[Ids]:
            return self.run(outs, dict(zip(inner, [*carries, *row, *constants], strict=True)))

        if length is not None and length * len(topological(outs)) <= STEPS:
            stacked: list[Any] = [np.zeros((length, *o.shape), np.int64) for o in outs[n:]]
            for k in reversed(range(length)) if reverse else range(length):
                made = iteration(carries, [s[k] for s in scanned])
                carries = made[:n]
                for stack, y in zip(stacked, made[n:], strict=True):
                    stack[k] = y
            return [*carries, *stacked]
        whole = [self.sets.over(s, (0,)) for s in scanned]
        for _ in range(ROUNDS):
            made = iteration(carries, whole)
            grown = [self.sets.union(c, m) for c, m in zip(carries, made[:n], strict=True)]
            if all(np.array_equal(a, b) for a, b in zip(grown, carries, strict=True)):
                break
            carries = grown
        else:
            everything = self.sets.all_of(*ids)
            carries = [np.full(c.shape, everything) for c in carries]
            made = iteration(carries, whole)
        return [*carries, *(np.broadcast_to(y, (length or 0, *y.shape)) for y in made[n:])]


Rule = Callable[[Walk, Node, list[Any]], Ids]


def _elementwise(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    if node.fn.name == "where" and operands[0] is None:
        chosen = walk.values.of(node.operands[0])
        if chosen is not None:
            return np.where(chosen, *walk.dense(node, operands)[1:])
    found = np.broadcast_to(walk.sets.union(*walk.given(operands)), node.shape)
    if node.fn.name == "mul":
        for o, ids in zip(node.operands, operands, strict=True):
            mask = walk.values.nonzero(o) if ids is None else None
            if mask is not None:
                found = np.where(mask, found, EMPTY)
    return found


def _movement(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    if node.fn.name == "view_as_complex":
        return walk.sets.over(operands[0], (operands[0].ndim - 1,))
    return np.asarray(moved(node, walk.dense(node, operands), EMPTY))


def _placed(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    starts = [walk.values.of(o) for o in node.operands[1:]]
    if operands[0] is None or any(s is None for s in starts):
        return walk.mixed(node, operands)
    return np.asarray(node.fn.numpy(operands[0], *starts, **node.attrs))


def _reduction(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    dim = node.attrs["dim"]
    return walk.sets.over(operands[0], dim if isinstance(dim, tuple) else (dim,))


def _scan(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    """Of running results, and of a recurrence, whose first factor does not count."""
    dim = node.attrs["dim"]
    parts = [np.moveaxis(x, dim, 0).copy() for x in walk.dense(node, operands)]
    if node.fn.family == "recurrence" and len(parts[0]):
        parts[0][0] = EMPTY
    found = walk.sets.union(*parts).copy()
    for i in range(1, len(found)):
        found[i] = walk.sets.union(found[i - 1], found[i])
    return np.moveaxis(found, 0, dim)


def _last(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    """What mixes the last dimension."""
    mixed = walk.sets.over(operands[0], (operands[0].ndim - 1,))
    return np.broadcast_to(mixed[..., None], node.shape)


def _contraction(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    sets, parts = walk.sets, []
    for k, ids in enumerate(operands):
        if ids is None:
            continue
        other = node.operands[1 - k]
        mask = walk.values.nonzero(other) if operands[1 - k] is None else None
        x = ids if k == 0 else np.swapaxes(ids, -1, -2)                 # (*B, kept, K)
        if mask is None or mask.all() or prod(node.shape) * x.shape[-1] > KNOWN:
            made = sets.over(x, (x.ndim - 1,))[..., None]
        else:
            mask = mask if k == 1 else np.swapaxes(mask, -1, -2)        # (*B, new, K)
            spread = np.broadcast_arrays(x[..., :, None, :], mask[..., None, :, :])
            made = sets.over(np.where(spread[1], spread[0], EMPTY), (x.ndim,))
        parts.append(made if k == 0 else np.swapaxes(made, -1, -2))
    return np.broadcast_to(sets.union(*parts), node.shape)


def _gather(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    x, index = node.operands
    ids = operands[0]
    if ids is None:
        return walk.mixed(node, operands)
    low, high = walk.values.bounds(index)
    low, high = (np.clip(b, 0, max(0, x.shape[0] - 1)) for b in (low, high))
    if np.array_equal(low, high) or not ids.size:
        found = ids[low]
    else:                                                   # any row in between
        walk.any_index = walk.any_index or node
        ends, back = np.unique(np.stack([low.reshape(-1), high.reshape(-1)], 1), axis=0, return_inverse=True)
        parts = [walk.sets.over(ids[a:b + 1], (0,)) for a, b in ends.tolist()]
        found = np.stack(parts)[back.reshape(-1)].reshape(node.shape)
    if operands[1] is not None:
        found = walk.sets.union(found, operands[1].reshape(*index.shape, *[1] * (len(x.shape) - 1)))
    return found


def _scatter(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    base, _, source = walk.dense(node, operands)
    index = walk.values.of(node.operands[1]) if operands[1] is None else None
    if index is None or not len(base):
        walk.any_index = walk.any_index or node
        return walk.sets.union(base, np.broadcast_to(walk.sets.all_of(*walk.given(operands[1:])), base.shape)) if base.size else base
    if node.fn.name == "scatter_set":
        return np.asarray(node.fn.numpy(base, index, source))
    width = prod(base.shape[1:])
    rows = np.clip(index, 0, len(base) - 1).reshape(-1, 1) * width + np.arange(width)
    groups = np.concatenate([np.arange(base.size), rows.reshape(-1)])
    return walk.sets.merged(groups, np.concatenate([base.reshape(-1), source.reshape(-1)]), base.size).reshape(base.shape)


def _taps(kernel: Any, stride: Any, padding: Any, dilation: Any, image: Any, size: Any) -> tuple[Any, Any, Any]:
    """(window, place in the window, place in the image), flat, for each that is inside the image."""
    window, tap, place = (np.zeros((1, 1), np.int64) for _ in range(3))
    inside = np.ones((1, 1), bool)

    def crossed(a: Any, b: Any, join: Any) -> Any:
        made = join(a[:, None, :, None], b[None, :, None, :])
        return made.reshape(a.shape[0] * b.shape[0], a.shape[1] * b.shape[1])

    for k, s, p, d, n, m in zip(kernel, stride, padding, dilation, image, size, strict=True):
        at = np.arange(m)[:, None] * s + np.arange(k) * d - p
        window = crossed(window, np.arange(m)[:, None], lambda a, b, m=m: a * m + b)
        tap = crossed(tap, np.arange(k)[None, :], lambda a, b, k=k: a * k + b)
        place = crossed(place, at, lambda a, b, n=n: a * n + b)
        inside = crossed(inside, (at >= 0) & (at < n), np.logical_and)
    window, tap = (np.broadcast_to(a, place.shape) for a in (window, tap))
    return window[inside], tap[inside], place[inside]


def _conv(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    """The three of one family relate elements of the image, the weight and the result: two of them make the third."""
    a, b = node.operands
    attrs, names = node.attrs, node.fn.roles  # type: ignore[attr-defined]
    shapes = dict(zip(names, (a.shape, b.shape, node.shape), strict=True))
    (n, c, *image), (o, per, *kernel), (_, _, *size) = shapes["x"], shapes["w"], shapes["y"]
    if n * o * per * prod(kernel) * prod(size) > KNOWN:
        return walk.mixed(node, operands)
    window, tap, place = _taps(kernel, attrs["stride"], [p[0] for p in attrs["padding"]], attrs["dilation"], image, size)
    batch, out, channel = (np.arange(k).reshape([-1 if i == j else 1 for i in range(4)]) for j, k in enumerate((n, o, per)))
    source = out // (o // attrs["groups"]) * per + channel
    numbers = {"x": (batch * c + source) * prod(image) + place, "w": (out * per + channel) * prod(kernel) + tap,
               "y": (batch * o + out) * prod(size) + window}
    numbers = dict(zip(numbers, (x.reshape(-1) for x in np.broadcast_arrays(*numbers.values())), strict=True))
    groups, members = [], []
    for k, ids in enumerate(operands):
        if ids is None:
            continue
        mask = walk.values.nonzero(node.operands[1 - k]) if operands[1 - k] is None else None
        used = slice(None) if mask is None else mask.reshape(-1)[numbers[names[1 - k]]]
        groups.append(numbers[names[2]][used])
        members.append(ids.reshape(-1)[numbers[names[k]]][used])
    return walk.sets.merged(np.concatenate(groups), np.concatenate(members), prod(node.shape)).reshape(node.shape)


def _pool(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    """From an image to its windows (max_pool), or back (its gradient): any element of the window may be the one."""
    attrs = node.attrs
    if node.fn.name == "max_pool_gradient" and node.operands[1].fn.name != "max_pool_places":
        return _batched(walk, node, operands, 1)            # the places may be any of the plane
    window, _, place = _taps(*(attrs[k] for k in ("kernel", "stride", "padding", "dilation", "image", "size")))
    source, target = (window, place) if node.fn.name == "max_pool_gradient" else (place, window)
    planes, inner = node.shape[0], prod(node.shape[1:])
    ids = walk.sets.union(*walk.given(operands))
    groups = np.arange(planes)[:, None] * inner + target
    return walk.sets.merged(groups.reshape(-1), ids.reshape(planes, -1)[:, source].reshape(-1), planes * inner).reshape(node.shape)


def _batched(walk: Walk, node: Node, operands: list[Any], lead: int) -> Ids:
    """What mixes everything but the first `lead` dimensions."""
    parts = [walk.sets.over(x, tuple(range(lead, x.ndim))) for x in walk.given(operands)]
    found = walk.sets.union(*parts)
    return np.broadcast_to(found.reshape(*found.shape, *[1] * (len(node.shape) - lead)), node.shape)


def _attention(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    count = len(node.operands) - len(node.attrs["masks"])
    if any(o is not None for o in operands[count:]):
        return walk.mixed(node, operands)
    return _batched(walk, node, operands, 1)


def _host(walk: Walk, node: Node, operands: list[Any]) -> Ids:
    """Transforms along some dimensions, and functions of matrices in a batch."""
    attrs = node.attrs
    first = node.operands[0]
    if node.fn.registered and ("dims" in attrs or "dim" in attrs):
        dims = tuple(d % len(first.shape) for d in (attrs["dims"] if "dims" in attrs else (attrs["dim"],)))
        mixed = walk.sets.over(operands[0], dims)
        return np.broadcast_to(np.expand_dims(mixed, dims), node.shape)
    lead = len(first.shape) - 2
    batch = first.shape[:max(0, lead)]
    if getattr(node.fn, "batches", False) and lead > 0 and all(x.shape[:lead] == batch for x in (node, *node.operands)):
        return _batched(walk, node, operands, lead)
    return walk.mixed(node, operands)


FAMILIES: dict[str, Rule] = {
    "elementwise": _elementwise,
    "movement": _movement,
    "dynamic_slice": _placed,
    "reduction": _reduction,
    "arg_reduction": _reduction,
    "scan": _scan,
    "recurrence": _scan,
    "sort": _last,
    "selection": _last,
    "contraction": _contraction,
    "gather": _gather,
    "scatter": _scatter,
    "conv": _conv,
    "pool": _pool,
    "attention": _attention,
    "host_call": _host,
    "transfer": lambda walk, node, operands: operands[0],
}
