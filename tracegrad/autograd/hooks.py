"""Hooks on gradients, tensors that retain theirs, and `grad_fn`: the history as users see it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tracegrad.autodiff import derivatives
from tracegrad.errors import AutogradError, DeviceError, TraceError
from tracegrad.graph.ir import Node
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.primitive import REGISTRY, unique
from tracegrad.graph.substitution import HOOKS
from tracegrad.support.cache import listed
from tracegrad.support.modes import set_grad_enabled, state, unseen
from tracegrad.tensors.parts.history import leaves
from tracegrad.tensors.tensor import Tensor

_VARIABLE, _CONST = REGISTRY["variable"], REGISTRY["const"]
_OUTPUT, _OFFSET = REGISTRY["output"], REGISTRY["offset"]


def steps_back(node: Node) -> tuple[Node, ...]:
    """Where the derivative goes on from `node`."""
    return node.fn.tracked(node.operands) if isinstance(node.fn, CustomCall) and node.operands else node.operands


class RemovableHandle:
    """What register_hook returns: remove(), or the end of a `with` block, takes the hook away.

    A class that has hooks of its own makes one, handle = RemovableHandle(hooks), and puts the hook under hooks[handle.id].
    """

    def __init__(self, hooks: dict[int, Any], key: int | None = None) -> None:
        self._hooks, self.id = hooks, unique() if key is None else key

    def remove(self) -> None:
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(gradient)` whenever the tensor's gradient is computed; what it returns (unless None) takes the gradient's place.

    Raises AutogradError if the tensor does not require grad.
    """
    node = tensor._node()
    if not node.needs_grad:
        raise AutogradError("register_hook: the tensor does not require grad, so no gradient of it is ever computed")
    hooks = HOOKS.setdefault(node)
    if tensor._is_leaf():
        tensor._hooks = hooks
    key = unique()

    def on_node(ct: Node) -> Node:
        owner = owner_ref()
        place = device if owner is None else owner._device               # a leaf may have moved
        replaced = hook(Tensor(ct, place, state.trace))
        if replaced is None:
            return ct
        if replaced._device is not place:
            raise DeviceError(f"register_hook: the hook returned a gradient on {replaced._device} for a tensor on {place}; "
                              "move it with x.to(device)")
        return derivatives.conform(replaced._node(), node_ref() or ct)

    device, node_ref, owner_ref = tensor._device, weakref.ref(node), weakref.ref(tensor)
    hooks[key] = on_node
    _note("register_hook", tensor, hooks, key)
    return RemovableHandle(hooks, key)


def _note(call: str, tensor: Tensor, hooks: dict[int, Any], key: int) -> None:
    """A trace wants to know of a hook on a tensor from outside: a replay registers none."""
    if state.trace is not None and not state.trace.made(tensor):
        state.trace.hooks.append((call, hooks, key))


# By id, the hooks of leaves that run when their gradients have been added up, with the leaf.
post_accumulate_hooks: dict[int, tuple[weakref.ref[Tensor], dict[int, Callable[[Tensor], None]]]] = {}


def register_post_accumulate_grad_hook(tensor: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook(tensor)` whenever a backward has added to the leaf's `grad`: to step an optimizer of its own, and free the gradient.

    Raises AutogradError unless the tensor is a leaf that requires grad. Backward inside @trace raises TraceError for such a tensor.
    """
    if not tensor._node().needs_grad or not tensor._is_leaf():
        raise AutogradError("register_post_accumulate_grad_hook: only a leaf that requires grad accumulates gradients; use register_hook")
    if id(tensor) not in post_accumulate_hooks:
        post_accumulate_hooks[id(tensor)] = weakref.ref(tensor), {}
        weakref.finalize(tensor, post_accumulate_hooks.pop, id(tensor), None)
    key, hooks = unique(), post_accumulate_hooks[id(tensor)][1]
    hooks[key] = hook
    _note("register_post_accumulate_grad_hook", tensor, hooks, key)
    return RemovableHandle(hooks, key)


class Underway(Protocol):
    """What a listener wants to know of a backward that goes on."""

    def ready(self, leaf: Tensor, arrival: Callable[[], Any]) -> None:
        """The launches are enqueued that the leaf's gradient needs; `arrival` waits for its values, in any thread."""


class Listener(Protocol):
    """What hears of every backward. It may record: a trace has what it did."""

    def before_backward(self, reached: Sequence[Tensor]) -> Underway | None:
        """A backward that is recalled begins, which will add to the gradients of these leaves."""

    def after_backward(self, reached: Sequence[Tensor], underway: Any) -> None:
        """A backward has ended, recalled or not, which added to the gradients of these leaves. underway: what it was told on the way."""


listeners: weakref.WeakKeyDictionary[Listener, None] = weakref.WeakKeyDictionary()     # in the order in which they came: alike on all ranks


def expect_backward(tensors: Sequence[Tensor]) -> tuple[Listener, Underway] | None:
    """Who wants to hear of gradients one by one. Not where several do: what they do on the way would have an order of its own."""
    found = [(listener, underway) for listener in list(listeners) if (underway := listener.before_backward(tensors)) is not None]
    return found[0] if len(found) == 1 else None


def tell_of_backward(tensors: Sequence[Tensor], told: tuple[Listener, Underway] | None = None) -> None:
    """A backward has ended, recalled or not, which added to the gradients of these leaves. told: who heard of it on the way."""
    for listener in list(listeners):
        listener.after_backward(tensors, told[1] if told is not None and told[0] is listener else None)


def run_post_accumulate_hooks(tensors: Sequence[Tensor], create_graph: bool) -> None:
    """Call what was registered for these leaves, as torch does: nothing is differentiated there without create_graph."""
    for tensor in tensors:
        for hook in list(post_accumulate_hooks.get(id(tensor), (None, {}))[1].values()):
            if state.trace is not None:
                raise TraceError(f"backward: inside @trace ({state.trace.name}) a post-accumulate-grad hook would run at the first call "
                                 "only; do what it does after backward, in the traced function")
            with set_grad_enabled(create_graph):
                hook(tensor)


def retain_grad(tensor: Tensor) -> None:
    """Make backward store the gradient of this non-leaf tensor in its `grad`, too."""
    node = tensor._node()
    if not node.needs_grad:
        raise AutogradError("retain_grad: the tensor does not require grad")
    if not tensor._is_leaf():
        retaining[id(tensor)] = tensor


# By id, those that retain their gradients. Their nodes are looked up at a backward: changed in place, one retains that of its last value.
retaining: weakref.WeakValueDictionary[int, Tensor] = listed("tensors that retain gradients", weakref.WeakValueDictionary())


def retaining_by_node() -> dict[Node, list[Tensor]]:
    """The non-leaf tensors that want their gradients stored, by node."""
    found: dict[Node, list[Tensor]] = {}
    for tensor in list(retaining.values()):
        if tensor._trace is state.trace or (state.trace is not None and state.trace.knows(tensor)):
            found.setdefault(tensor._node(), []).append(tensor)
    return found


def retains_grad(tensor: Tensor) -> bool:
    return id(tensor) in retaining


class GradFn:
    """The step of the derivative history that made a tensor: `name()`, and `next_functions` towards the leaves."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def name(self) -> str:
        """The operation's name; "AccumulateGrad" for a leaf."""
        return "AccumulateGrad" if self.variable is not None else self._call.fn.name

    @property
    def _call(self) -> Node:
        """The node whose rule is the step: the call itself for one of several results."""
        return self.node.operands[0] if self.node.fn is _OUTPUT and self.node.operands else self.node

    @property
    def variable(self) -> Tensor | None:
        """The leaf, if this is its AccumulateGrad."""
        return leaves.get(self.node.attrs["uid"]) if self.node.fn is _VARIABLE else None

    @property
    def next_functions(self) -> tuple[tuple[GradFn | None, int], ...]:
        """(GradFn, output number) per operand; (None, 0) for operands without a history. Numbers of Python's come last, as in torch."""
        if self.variable is not None:
            return ()
        operands = sorted(steps_back(self._call), key=lambda o: o.fn is _CONST)
        return tuple(
            (GradFn(o), o.attrs.get("index", 0) if o.fn is _OUTPUT else 0) if o.needs_grad else (None, 0)
            for o in operands
            if o.fn is not _OFFSET  # where a slice starts is a number to the user
        )

    def __getattr__(self, name: str) -> Any:
        """What the forward of a custom Function left in ctx, but for tensors."""
        ctx = None if name == "node" or name.startswith("_") else getattr(self._call.fn, "ctx", None)
        if ctx is None or not hasattr(ctx, name):
            raise AttributeError(f"grad_fn: has no attribute {name!r}")
        return getattr(ctx, name)

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GradFn) and other.node is self.node

    def __hash__(self) -> int:
        return hash(self.node)


def grad_fn_of(tensor: Tensor) -> GradFn | None:
    node = tensor._node()
    return None if unseen() or tensor._is_leaf() else GradFn(node)
