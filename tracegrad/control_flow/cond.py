"""`cond`, and its derivative `Choice`. Start at `cond`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from tracegrad.autodiff.batching import batch
from tracegrad.autodiff.derivatives import dense, stand_in, vjp, zeros_like
from tracegrad.control_flow.recorded import NodeFn, agreed, flattened, function_of, on_one_device, read_outside
from tracegrad.errors import ArgumentError, ArgumentTypeError, ShapeError, type_name
from tracegrad.graph.ir import Aval, Node, topological
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import REGISTRY, bind, cast, placeholder
from tracegrad.graph.substitution import that_matter
from tracegrad.ops.arrays.index_checks import counts_where
from tracegrad.ops.arrays.logical import logical_not
from tracegrad.ops.primitives.movement import reshape
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import enable_grad, state
from tracegrad.tensors.scopes import Recorded
from tracegrad.tensors.tensor import Tensor

_DETACH, _OUTPUT, _WHERE = (REGISTRY[name] for name in ("detach", "output", "where"))


@public("cond", method=False)
def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *args: Any, operands: Sequence[Any] | None = None) -> Any:
    """true_fn(*args) if pred else false_fn(*args).

    pred: a bool, or a tensor of one element. args: (nested containers of) tensors, as jax.lax.cond takes them; or, by name, torch's
    operands: a tuple of them. (Given by place, a tuple is one argument, as in JAX: branches of one argument could mean either.) The
    branches return the same structure, shapes and dtypes. Where pred has a value it is read and one branch runs. Inside @trace and vmap
    both are computed and the results selected; derivatives, to any order, are those of the branch taken. A branch must not change outside
    tensors, nor its arguments, in place there. Raises ShapeError or DTypeError if the branches disagree or pred is not one element,
    TraceError for an effect in a branch, ArgumentError for both args and operands.

    >>> x = tg.tensor([4.0, 9.0])
    >>> tg.cond(x.sum() > 0, lambda x: x.sqrt(), lambda x: x * 0, x)
    Tensor([2., 3.], device='cpu')
    >>> tg.cond(x.sum() < 0, lambda x: x.sqrt(), lambda x: x * 0, operands=(x,))
    Tensor([0., 0.], device='cpu')
    """
    if operands is not None:
        if args or not isinstance(operands, (tuple, list)):
            raise ArgumentError(f"cond: operands must be a tuple, and all of them; got {type(operands).__name__} and {len(args)} more")
        args = tuple(operands)
    if not isinstance(pred, Tensor):
        if not isinstance(pred, (bool, int, float, np.bool_, np.number)):
            raise ArgumentTypeError(f"cond: pred must be a bool, or a tensor of one element, got {type_name(pred)}")
        return (true_fn if pred else false_fn)(*args)
    if pred.numel() != 1:
        raise ShapeError(f"cond: pred has shape {pred.shape}; it must be one element, use any(), all(), or tg.where to choose by element")
    if state.trace is None and not state.examples:
        return (true_fn if bool(pred) else false_fn)(*args)
    packed: Any = args
    flat, tree = optree.tree_flatten(packed, none_is_leaf=True)
    places = [i for i, x in enumerate(flat) if isinstance(x, Tensor)]
    nodes = [flat[i]._node() for i in places]

    on_one_device("cond", [pred, *flat])
    chosen = reshape(cast(pred._node(), dtypes.bool_), ())
    refused: Any = logical_not(chosen)

    def recorded(fn: Callable[..., Any], condition: Node) -> tuple[list[Node], list[Node], Any]:
        inputs = [_input(n) for n in nodes]
        filled = list(flat)
        for i, n in zip(places, inputs, strict=True):
            filled[i] = Tensor(n, pred.device, state.trace)
        with counts_where(condition), Recorded("cond"):              # the branch not taken reports no index out of range
            outs, out_tree = flattened("cond", fn(*optree.tree_unflatten(tree, filled)), pred)
        return inputs, outs, out_tree

    yes, no = recorded(true_fn, chosen), recorded(false_fn, refused)
    if yes[2] != no[2]:
        raise ArgumentError(f"cond: the branches return different structures, {yes[2]} and {no[2]}")
    pairs = [agreed("cond: the branches return", a, b) for a, b in zip(yes[1], no[1], strict=True)]
    # All that the branches read but constants: without a derivative, too, it may stand for a row, a carry or an example of what is around.
    outer = read_outside([*(a for a, _ in pairs), *(b for _, b in pairs)], {*yes[0], *no[0]},
                         lambda n: not n.constant or n in (chosen, refused))
    operands_ = [*nodes, *outer]
    results = choose(chosen, function_of([*yes[0], *outer], [a for a, _ in pairs]),
                     function_of([*no[0], *outer], [b for _, b in pairs]), operands_)
    return optree.tree_unflatten(yes[2], [pred._tensor_of(r) for r in results])


def choose(pred: Node, yes: NodeFn, no: NodeFn, operands: Sequence[Node]) -> list[Node]:
    """The results of `yes` where pred, else of `no`. pred: 0-d, or 1-d if the results have a batch in front."""
    detached = [bind(_DETACH, (o,), {}) if o.needs_grad else o for o in operands]
    raw = [_select(pred, a, b) for a, b in zip(yes(detached), no(detached), strict=True)]
    raw = [bind(_DETACH, (r,), {}) if r.needs_grad else r for r in raw]
    alike: dict[tuple[int, ...], list[int]] = {}           # results that depend on the same operands are one call
    for k, r in enumerate(raw):
        used = set(topological([r], operands_of=that_matter))
        alike.setdefault(tuple(i for i, d in enumerate(detached) if d in used), []).append(k)
    out = list(raw)
    for places, group in alike.items():
        if any(operands[i].needs_grad for i in places):
            choice = Choice(_only(yes, group), _only(no, group), places, detached, len(group))
            call = bind(choice, (*(raw[k] for k in group), pred, *(operands[i] for i in places)), {})
            for i, k in enumerate(group):
                if dtype_kind(raw[k].dtype) in "fc":
                    out[k] = bind(_OUTPUT, (call,), {"index": i, "aval": raw[k].aval})
    return out


def _only(fn: NodeFn, wanted: list[int]) -> NodeFn:
    """fn with some of its results."""

    def run(values: Sequence[Node]) -> list[Node]:
        results = fn(values)
        return [results[k] for k in wanted]

    return run


def _select(pred: Node, a: Node, b: Node) -> Node:
    return bind(_WHERE, (reshape(pred, (*pred.shape, *[1] * (len(a.shape) - len(pred.shape)))), a, b), {})


class Choice(CustomCall):
    """A cond as differentiation sees it: operands are the selected results, the predicate, and the operands of the branches."""

    def __init__(self, yes: NodeFn, no: NodeFn, places: Sequence[int], rest: list[Node], count: int) -> None:
        self.yes, self.no, self.places, self.count = yes, no, places, count
        self.rest = [zeros_like(o) for o in rest]      # not the operands: inside a loop that is recorded again, they would be the old one's
        self.name = "cond"  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return operands[:self.count]

    def tracked(self, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        """The branches' operands."""
        return operands[self.count + 1:]

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        """A cond of the branches' derivatives."""
        xs, pred = list(operands[self.count + 1:]), operands[self.count]
        wanted = [i for i, x in enumerate(xs) if x.needs_grad]
        given = [i for i, c in enumerate(ct) if c is not None]

        def pulled(branch: NodeFn) -> NodeFn:
            def run(values: Sequence[Node]) -> list[Node]:
                here = list(values[:len(xs)])
                for i in wanted:
                    here[i] = stand_in(here[i])
                with enable_grad():            # the branch may be a derivative, whose own is wanted here, if no further one
                    outs = branch(self._all(here))
                found = vjp([outs[i] for i in given], [here[i] for i in wanted], values[len(xs):])
                return dense(found, [xs[i] for i in wanted])

            return run

        found = dict(zip(wanted, choose(pred, pulled(self.yes), pulled(self.no), [*xs, *(ct[i] for i in given)]), strict=True))
        return (*[None] * (self.count + 1), *(found.get(i) for i in range(len(xs))))

    def _all(self, xs: Sequence[Node]) -> list[Node]:
        """The branches' operands, of which this call has only those that matter: zeros stand for the others."""
        out = list(self.rest)
        for place, x in zip(self.places, xs, strict=True):
            out[place] = x
        return out

    def batched(self, operands: Sequence[Node], size: int) -> list[Node]:
        """The results for operands that have a batch in front."""
        xs = operands[self.count + 1:]

        def lifted(branch: NodeFn) -> NodeFn:
            def run(values: Sequence[Node]) -> list[Node]:
                examples = [placeholder(Aval(v.shape[1:], v.dtype), "example") for v in values]
                examples = [stand_in(e) if v.needs_grad else e for e, v in zip(examples, values, strict=True)]
                return batch(branch(self._all(examples)), dict(zip(examples, values, strict=True)), size)

            return run

        return choose(operands[self.count], lifted(self.yes), lifted(self.no), xs)


def _input(node: Node) -> Node:
    """A stand-in for `node` in a recorded branch."""
    fresh = placeholder(node.aval, "operand")
    return stand_in(fresh) if node.needs_grad else fresh
