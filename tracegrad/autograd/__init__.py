"""backward and grad on Tensors, as in torch.autograd. Start at `backward`; the differentiation itself is in `autodiff/derivatives.py`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

from tracegrad.autodiff import derivatives
from tracegrad.autograd import forward_ad, function, functional
from tracegrad.autograd.anomaly import detect_anomaly, set_detect_anomaly
from tracegrad.autograd.backward_cache import Backward
from tracegrad.autograd.hooks import (
    GradFn,
    RemovableHandle,
    accumulating,
    before_accumulation,
    grad_fn_of,
    listeners,
    register_hook,
    register_post_accumulate_grad_hook,
    retain_grad,
    retaining,
    retaining_by_node,
    retains_grad,
    run_post_accumulate_hooks,
    steps_back,
    tell_of_backward,
)
from tracegrad.autograd.transforms import matching
from tracegrad.custom.custom_function import Function
from tracegrad.custom.user_call import Context as FunctionCtx
from tracegrad.errors import ArgumentError, ArgumentTypeError, AutogradError, TraceError, type_name
from tracegrad.execute.deferred import flush
from tracegrad.execute.realize import free_saved, lock, parted, realize, without_freed
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Node, own_nodes, topological
from tracegrad.graph.locations import user_location
from tracegrad.graph.operators import PUBLIC, named
from tracegrad.graph.primitive import REGISTRY, bind, saves
from tracegrad.graph.substitution import HOOKS
from tracegrad.support.modes import enable_grad, no_grad, set_grad_enabled, state
from tracegrad.tensors.bases.history import leaves
from tracegrad.tensors.bases.view_steps import own_copy
from tracegrad.tensors.scopes import inference_mode
from tracegrad.tensors.tensor import Tensor

__all__ = ["Function", "FunctionCtx", "GradFn", "RemovableHandle", "Variable", "backward", "detect_anomaly", "enable_grad",
           "forward_ad", "function", "functional", "grad", "inference_mode", "no_grad", "register_hook", "retain_grad",
           "set_detect_anomaly", "set_grad_enabled"]
_VARIABLE, _DETACH = REGISTRY["variable"], REGISTRY["detach"]


def __getattr__(name: str) -> Any:
    if name in ("gradcheck", "gradgradcheck"):              # torch has them here; they are made of what is here
        return getattr(import_module("tracegrad.testing"), name)
    raise AttributeError(f"tracegrad.autograd has no {name!r}")


class _Older(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_Older):
    """torch's older name of tensors: Variable(x, requires_grad=True) is one of x's values, and every tensor is an instance."""

    def __new__(cls, data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Tensor:  # type: ignore[misc]
        if not isinstance(data, Tensor):
            raise ArgumentTypeError(f"Variable: data is a tensor, got a {type(data).__name__}; make one by `tensor`")
        return data.detach().requires_grad_(requires_grad)


@named
def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradients of `tensors` with respect to every leaf that requires grad to the leaves' `grad`.

    grad_tensors: the cotangent of each root (same shape; None for a root of one element, which means 1). retain_graph: keep
    the history for another backward (default: create_graph); else what it went through is freed, where that saved values.
    create_graph: the gradients can be differentiated again. inputs: add to the `grad` of these tensors only, which need not be leaves.
    Raises AutogradError if a root does not require grad, is not a scalar and has no cotangent, or its history was freed.
    dtype: float or complex, as the leaves'.

    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.autograd.backward((x * x).sum())
    >>> x.grad
    """
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if inputs is not None:
        _backward_to([inputs] if isinstance(inputs, Tensor) else list(inputs), roots, grad_tensors, retain_graph, create_graph)
        return
    outputs = [t._node() for t in roots]
    known = None
    plain = grad_tensors is None and not (create_graph or retain_graph or retaining or accumulating)
    if len(roots) == 1 and plain and outputs[0].aval.size == 1:
        with lock:
            known = Backward(roots[0])
            leaves_reached = known.run()
        if leaves_reached is not None:
            tell_of_backward(leaves_reached, known.told)
            return
    cotangents = _cotangents("backward", roots, outputs, grad_tensors)
    order = _history("backward", outputs)
    # All variables, also those whose tensors are gone: what a custom backward on the way there does, and its errors, are the caller's.
    retained = retaining_by_node() if retaining else {}
    wanted = [n for n in order if n.fn is _VARIABLE or n in retained]
    arrived = _arrival(create_graph) if accumulating else None
    with _asking(known):
        grads = _differentiate(outputs, wanted, cotangents, create_graph, arrived)
        receivers = [(t, ct) for n, ct in zip(wanted, grads, strict=True) if ct is not None for t in (*_leaf(n), *retained.get(n, ()))]
        for tensor, ct in reversed(receivers) if listeners else receivers:      # they want the last layers' gradients first, and what is
            if arrived is None or not tensor._is_leaf():                        # asked for first is computed first
                _accumulate(tensor, ct, create_graph)
    if not (create_graph if retain_graph is None else retain_graph):
        reached = [n for n, ct in zip(wanted, grads, strict=True) if ct is not None]
        sums = [(n, resolve(t._grad._n)) for n in reached for t in _leaf(n) if t._grad is not None]
        works = _free(order, [t._grad for t, _ in receivers if t._grad is not None])
        if known is not None:
            known.learn(works, order, sums)
    elif state.trace is None:
        flush()
    tell_of_backward([t for t, _ in receivers], None if known is None else known.told)


def _backward_to(
    inputs: list[Tensor], roots: list[Tensor], cotangents: Any, retain_graph: bool | None, create_graph: bool
) -> None:
    """`backward` with inputs: `grad`, added up."""
    if not inputs:
        raise AutogradError("backward: inputs is empty; name the tensors whose gradients are wanted, or leave it out")
    found = grad(roots, inputs, cotangents, retain_graph, create_graph, allow_unused=True)
    reached = [(t, g) for t, g in zip(inputs, found, strict=True) if g is not None]
    added = [(t, before_accumulation(t, g._node()) if accumulating else g._node()) for t, g in reached]
    for tensor, ct in added:
        _accumulate(tensor, ct, create_graph)
    if accumulating:
        run_post_accumulate_hooks(added, create_graph)
    tell_of_backward([t for t, _ in reached])


def _tensors(call: str, argument: str, given: Any) -> list[Tensor]:
    """One Tensor or several as a list; an ArgumentTypeError names the argument if there is anything else."""
    found = [given] if isinstance(given, Tensor) else list(given) if isinstance(given, Iterable) else [given]
    for x in found:
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"{call}: {argument} must be a Tensor or a sequence of Tensors, got {type_name(x)}")
    return found


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, one tensor of its input's shape each; nothing is accumulated.

    materialize_grads: zeros for an input that reaches no output; with create_graph they require grad. is_grads_batched: grad_outputs have
    a further first dimension, and so have the gradients, one for each of them. only_inputs: True, as in torch.
    Raises AutogradError if an input does not require grad, or does not reach an output (unless allow_unused: then None).
    """
    if not only_inputs:
        raise AutogradError("grad: only_inputs must be True; tg.backward accumulates the gradients of leaves")
    if materialize_grads and allow_unused is False:
        raise AutogradError("grad: materialize_grads gives zeros for unused inputs, and allow_unused=False refuses them; leave one out")
    roots, wanted = _tensors("grad", "outputs", outputs), _tensors("grad", "inputs", inputs)
    if not wanted:
        raise ArgumentError("grad: inputs is empty; name the tensors whose gradients are wanted")
    if is_grads_batched:
        return _grads_of_rows(roots, wanted, grad_outputs, retain_graph, create_graph, allow_unused, materialize_grads)
    nodes = [t._node() for t in roots]
    sources = [t._node() for t in wanted]
    known = None
    plain = grad_outputs is None and not (create_graph or retain_graph or retaining or forward_ad.active())
    if len(roots) == 1 and plain and nodes[0].aval.size == 1:
        with lock:
            known = Backward(roots[0], sources)
            made = known.run()
            if made is not None:
                return tuple(made)
    cotangents = _cotangents("grad", roots, nodes, grad_outputs)
    for i, n in enumerate(sources):
        if not n.needs_grad:
            raise AutogradError(f"grad: input {i} ({n.aval}) does not require grad; call requires_grad_() on it before it is used")
    order = _history("grad", nodes, sources)
    if state.trace is not None:
        _check_outside(order, wanted)
    earlier = _earlier(order, wanted, sources)
    ends = sources + [n for n, _ in earlier]
    retained = retaining_by_node() if retaining else {}
    if retained:
        live = set(derivatives.dependents(nodes, ends))
        retained = {n: kept for n, kept in retained.items() if n in live}
    with _asking(known):                                    # (gradients carry tangents, too)
        found = _differentiate(nodes, [*ends, *retained], cotangents, create_graph or forward_ad.active())
    for kept, ct in zip(retained.values(), found[len(ends):], strict=True):
        if ct is not None:
            for tensor in kept:
                _accumulate(tensor, ct, create_graph)
    found = _with_earlier(found[:len(ends)], [i for _, i in earlier], create_graph)
    unused = [i for i, g in enumerate(found) if g is None]
    for i, g in enumerate(found):
        if g is None and materialize_grads:
            found[i] = derivatives.zeros_like(sources[i])
        elif g is None and not allow_unused:
            raise AutogradError(
                f"grad: input {i} ({sources[i].aval}) was not used to compute the outputs; pass allow_unused=True to get None for it"
            )
    result = tuple(None if g is None else Tensor(g, t._device, state.trace) for g, t in zip(found, wanted, strict=True))
    for i in unused:
        if (zeros := result[i]) is not None and create_graph:        # so that the next derivative is zeros, too, and no error
            zeros.requires_grad_()
    if state.trace is not None:
        names = [state.trace.names.get(id(t)) for t in wanted]
        state.trace.called.update({t._n: f"{name}_grad" for name, t in zip(names, result, strict=True) if name and t is not None})
    if not (create_graph if retain_graph is None else retain_graph):
        live = set(derivatives.dependents(nodes, ends))
        reached = [t for t in result if t is not None]
        made_of = [(n, resolve(t._n)) for n, t in zip(sources, result, strict=True) if t is not None]
        walked = [n for n in order if n in live and any(o in live for o in steps_back(n))]
        works = _free(walked, reached)
        if known is not None and len(reached) == len(result):
            known.learn(works, walked, made_of, [n for n in order if n.needs_grad and n not in live])
    return result


def _earlier(order: Sequence[Node], wanted: Sequence[Tensor], sources: Sequence[Node]) -> list[tuple[Node, int]]:
    """The variables that leaves among `wanted` were before they were written, as far as a history reads them; whose each is."""
    owners, now = {id(t) for t in wanted if t._is_leaf()}, set(sources)
    found = [(n, leaves.get(n.attrs["uid"])) for n in order if n.fn is _VARIABLE and n not in now]
    return [(n, i) for n, t in found if id(t) in owners for i, w in enumerate(wanted) if w is t]


def _with_earlier(found: list[Node | None], owners: list[int], create_graph: bool) -> list[Node | None]:
    """The gradients of all but the last, to which those of the last are added: each belongs to one of the others."""
    grads, later = found[:len(found) - len(owners)], found[len(found) - len(owners):]
    with nullcontext() if create_graph else no_grad():
        for i, g in zip(owners, later, strict=True):
            held = grads[i]
            grads[i] = g if held is None else held if g is None else held + g
    return grads


def _grads_of_rows(
    roots: list[Tensor], wanted: list[Tensor], cotangents: Any, retain_graph: bool | None, create_graph: bool, *options: Any
) -> tuple[Tensor | None, ...]:
    """`grad` for each row of cotangents, stacked."""
    given = [cotangents] if isinstance(cotangents, Tensor) else list(cotangents or ())
    counts = {g.shape[0] for g in given if isinstance(g, Tensor) and g.ndim}
    if len(counts) != 1 or len(given) != len(roots):
        raise AutogradError("grad: is_grads_batched takes grad_outputs with one further first dimension each, all of one size")
    count = counts.pop()
    keep = create_graph if retain_graph is None else retain_graph
    rows = [grad(roots, wanted, [g[k] for g in given], keep or k + 1 < count, create_graph, True, options[0], False, options[1])
            for k in range(count)]
    return tuple(None if row[0] is None else PUBLIC["stack"](list(row)) for row in zip(*rows, strict=True))


def _free(walked: Sequence[Node], gradients: Sequence[Tensor]) -> list[Any]:
    """Give up what the nodes that a backward went through have saved, once the gradients are computed (or raise what they could not be).

    Returns what was computed for that.
    """
    works: list[Any] = []
    if state.trace is not None:
        state.trace.freed.update(n for n in walked if saves(n))
        return works
    if state.examples:                  # the gradients are computed at the end of the vmap, of what was saved
        return works
    flush(keep_history=False, works=works)
    for t in gradients:
        realize([t._node()], t._device, works=works)
    HOOKS.let_go(walked)
    saving, staying = parted(walked)
    free_saved(saving)
    without_freed(map(weakref.ref, staying))
    return works


def _leaf(node: Node) -> tuple[Tensor, ...]:
    """The leaf whose `grad` gets the gradient of `node`, if it is one, is there and requires grad still."""
    tensor = leaves.get(node.attrs["uid"]) if node.fn is _VARIABLE else None
    if tensor is None:
        return ()
    if not tensor._is_leaf():
        raise _began_outside("backward", tensor)
    return (tensor,) if tensor._node().needs_grad else ()


def _began_outside(call: str, tensor: Tensor) -> TraceError:
    return TraceError(
        f"{call} at {user_location()}: inside @trace ({state.trace.name if state.trace else ''}) it reaches a "
        f"{tensor.dtype}{list(tensor.shape)} tensor from outside that has a history there, where a replay cannot go; call {call} outside "
        "on what the function returns, or give it x.detach().requires_grad_()"
    )


def _check_outside(order: Sequence[Node], inputs: Sequence[Tensor]) -> None:
    """In a trace: refuse gradients of which a part would come by a way outside, from a tensor with a history to one of `inputs`."""
    wanted = {t._node_outside() for t in inputs if t._trace is not state.trace}
    for node in order if wanted else ():
        tensor = leaves.get(node.attrs["uid"]) if node.fn is _VARIABLE else None
        if tensor is not None and not tensor._is_leaf():
            start = tensor._node_outside()
            if not wanted.isdisjoint({*topological([start], lambda n: not n.needs_grad, steps_back)} - {start}):
                raise _began_outside("grad", tensor)


def _history(call: str, outputs: Sequence[Node], inputs: Sequence[Node] = ()) -> list[Node]:
    """The nodes that a derivative of `outputs` goes through, operands first; to `inputs`, nothing behind them.

    Raises AutogradError if one of them was freed.
    """
    ends = set(inputs)
    order = topological(outputs, lambda n: not n.needs_grad or n in ends, steps_back)
    if not ends.issubset(order):  # an input behind another one, or none at all
        ends = set()
        order = topological(outputs, lambda n: not n.needs_grad, steps_back)
    freed = state.trace.freed if state.trace is not None else ()
    for node in order:
        if node not in ends and (node in freed or (node.needs_grad and not node.operands)):
            name = "a result" if node.fn.name == "output" else node.fn.name                # of several, or of a custom Function
            raise AutogradError(
                f"{call}: the history of {name} ({node.loc}) was freed by an earlier backward; pass retain_graph=True to that one"
            )
    return order


def _cotangents(call: str, roots: list[Tensor], outputs: list[Node], given: Any) -> list[Node]:
    given = [None] * len(roots) if given is None else list(given) if isinstance(given, (tuple, list)) else [given]
    if len(given) != len(roots):
        raise AutogradError(f"{call}: {len(roots)} roots but {len(given)} grad_tensors; give one each (None for roots of one element)")
    result = []
    for i, (root, node, g) in enumerate(zip(roots, outputs, given, strict=True)):
        if not node.needs_grad:
            raise AutogradError(
                f"{call}: root {i} ({node.aval}) does not require grad and has no history; "
                "was it computed under no_grad, or from tensors without requires_grad?"
            )
        if g is None:
            if node.aval.size != 1:
                raise AutogradError(
                    f"{call}: root {i} has shape {node.shape}; only a root of one element has an implicit gradient, "
                    "pass grad_tensors or reduce it with sum() or mean()"
                )
            if node.dtype.kind == "c":
                raise AutogradError(
                    f"{call}: root {i} is {node.dtype}; only a real root has an implicit gradient, pass grad_tensors or make a real number "
                    "of it, for example with abs() or real"
                )
            result.append(derivatives.ones_like(node))
        else:
            result.append(matching(call, f"the cotangent of root {i}", g, "root", root))
    return result


def _differentiate(outputs: list[Node], inputs: list[Node], cotangents: list[Node], create_graph: bool,
                   arrived: Callable[[Node, Node], None] | None = None) -> list[Node | None]:
    previous, state.grad = state.grad, create_graph
    try:
        with own_nodes():
            found = derivatives.vjp(outputs, inputs, cotangents, arrived=arrived)
    finally:
        state.grad = previous
    return found if create_graph else [bind(_DETACH, (g,), {}) if g is not None and g.needs_grad else g for g in found]


@contextmanager
def _asking(known: Backward | None) -> Iterator[None]:
    """Custom calls are asked by `known`, if it notes what it will ask them for the next time."""
    before, state.asking = state.asking, None if known is None or known.asked is None else known.ask
    try:
        yield
    finally:
        state.asking = before


def _arrival(create_graph: bool) -> Callable[[Node, Node], None]:
    """What adds gradients to leaves as they come, and calls the hooks on that: before those of what comes later, as in torch."""
    def arrived(node: Node, ct: Node) -> None:
        own, state.own = state.own, None
        try:
            for tensor in _leaf(node):
                ct = before_accumulation(tensor, ct)
                ct = ct if create_graph or not ct.needs_grad else bind(_DETACH, (ct,), {})
                _accumulate(tensor, ct, create_graph)
                run_post_accumulate_hooks([(tensor, ct)], create_graph)
        finally:
            state.own = own

    return arrived


def _accumulate(tensor: Tensor, ct: Node, create_graph: bool) -> None:
    present = tensor.grad
    if present is None:
        # Several leaves may have this gradient; if it has a history, each gets its own.
        tensor.grad = Tensor(own_copy(ct) if create_graph else ct, tensor._device, state.trace)
    elif create_graph or present._node().needs_grad:
        tensor.grad = present + Tensor(ct, tensor._device, state.trace)
    else:
        with no_grad():
            present._rebind(present._node() + ct, "backward")


def _backward_method(
    self: Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add this tensor's gradients to the leaves' `grad`; see tg.backward."""
    backward(self, gradient, retain_graph, create_graph, inputs=inputs)


for _name, _value in {
    "backward": _backward_method,
    "register_hook": register_hook,
    "register_post_accumulate_grad_hook": register_post_accumulate_grad_hook,
    "retain_grad": retain_grad,
    "grad_fn": property(grad_fn_of),
    "retains_grad": property(retains_grad),
}.items():
    setattr(Tensor, _name, _value)
