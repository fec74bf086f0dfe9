"""Hooks on gradients, tensors that retain theirs, and `grad_fn`: the history as users see it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tracegrad.autodiff import derivatives
from tracegrad.errors import ArgumentTypeError, AutogradError, DeviceError, DTypeError, ShapeError, TraceError, type_name
from tracegrad.execute.device_partition import device_of
from tracegrad.execute.devices import find_device
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.leaf_operations import Bundle, CustomCall
from tracegrad.graph.primitive import REGISTRY, unique
from tracegrad.graph.substitution import HOOKS, StepHook
from tracegrad.support.cache import listed
from tracegrad.support.modes import set_grad_enabled, state, unseen
from tracegrad.tensors.bases.history import leaves
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

    Raises AutogradError if the tensor does not require grad; backward raises ShapeError or DTypeError if the hook returns a gradient of
    another shape or dtype.
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
        if not isinstance(replaced, Tensor):
            raise ArgumentTypeError(f"register_hook: the hook must return a Tensor, or None to leave the gradient, got "
                                    f"{type_name(replaced)}")
        if replaced._device is not place:
            raise DeviceError(f"register_hook: the hook returned a gradient on {replaced._device} for a tensor on {place}; "
                              "move it with x.to(device)")
        _check_replaced(replaced._node().aval, ct.aval)
        return derivatives.conform(replaced._node(), node_ref() or ct)

    device, node_ref, owner_ref = tensor._device, weakref.ref(node), weakref.ref(tensor)
    hooks[key] = on_node
    _note("register_hook", tensor, hooks, key)
    return RemovableHandle(hooks, key)


def _note(call: str, tensor: Tensor, hooks: dict[int, Any], key: int) -> None:
    """A trace wants to know of a hook on a tensor from outside: a replay registers none."""
    if state.trace is not None and not state.trace.made(tensor):
        state.trace.hooks.append((call, hooks, key))


def _check_replaced(replaced: Aval, gradient: Aval) -> None:
    """Raise unless what a hook returned can stand for the gradient that it was given: broadcasting would make another gradient of it."""
    if replaced.shape != gradient.shape:
        raise ShapeError(f"register_hook: the hook returned a gradient of shape {replaced.shape} for one of {gradient.shape}; "
                         "return one of the same shape, or None to leave it")
    if replaced.dtype != gradient.dtype:
        raise DTypeError(f"register_hook: the hook returned a gradient of {replaced.dtype} for one of {gradient.dtype}; "
                         "return one of the same dtype, for example g.to(gradient.dtype)")


# By id, the leaves with hooks that run when their gradients have been added up. The leaves keep these: hooks often know the leaf.
accumulating: weakref.WeakValueDictionary[int, Tensor] = listed("leaves with hooks on accumulation", weakref.WeakValueDictionary())


def _at_leaf(tensor: Tensor) -> list[Any]:
    """The hooks that run when gradients of this leaf are added up."""
    return list(tensor._post_hooks.values()) if tensor is accumulating.get(id(tensor)) else []


def register_post_accumulate_grad_hook(tensor: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook(tensor)` whenever a backward has added to the leaf's `grad`: to step an optimizer of its own, and free the gradient.

    Raises AutogradError unless the tensor is a leaf that requires grad. Backward inside @trace raises TraceError for such a tensor.
    """
    if not tensor._node().needs_grad or not tensor._is_leaf():
        raise AutogradError("register_post_accumulate_grad_hook: only a leaf that requires grad accumulates gradients; use register_hook")
    return _register_at_leaf(tensor, hook)


def _register_at_leaf(tensor: Tensor, hook: Callable[[Tensor], None] | _Accumulation) -> RemovableHandle:
    """Put a hook among those of a leaf that run where its gradients are added up."""
    if id(tensor) not in accumulating:
        tensor._post_hooks = {}
        accumulating[id(tensor)] = tensor
    key = unique()
    tensor._post_hooks[key] = hook
    _note("register_post_accumulate_grad_hook", tensor, tensor._post_hooks, key)
    return RemovableHandle(tensor._post_hooks, key)


class _Accumulation(NamedTuple):
    """A hook of a leaf's AccumulateGrad, among those that run when its gradients are added up."""

    call: Callable[..., Any]
    before: bool


def before_accumulation(tensor: Tensor, ct: Node) -> Node:
    """What is added to the leaf's `grad`: the gradient that came, as the hooks of its AccumulateGrad leave it."""
    for hook in _at_leaf(tensor):
        if isinstance(hook, _Accumulation) and hook.before:
            left = _answered("register_prehook", hook.call, (Tensor(ct, tensor._device, state.trace),), ())[0]
            ct = derivatives.zeros_like(ct) if left is None else left
    return ct


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


def run_post_accumulate_hooks(reached: Sequence[tuple[Tensor, Node]], create_graph: bool) -> None:
    """Call what was registered for these leaves, to which these gradients were added, as torch does: those of AccumulateGrad last, and

    nothing is differentiated there without create_graph.
    """
    for tensor, ct in reached:
        for hook in sorted(_at_leaf(tensor), key=lambda h: isinstance(h, _Accumulation)):
            if state.trace is not None:
                raise TraceError(f"backward: inside @trace ({state.trace.name}) a post-accumulate-grad hook would run at the first call "
                                 "only; do what it does after backward, in the traced function")
            with set_grad_enabled(create_graph):
                if not isinstance(hook, _Accumulation):
                    if (given := hook(tensor)) is not None:
                        raise AutogradError("register_post_accumulate_grad_hook: the hook must return None, got "
                                            f"{type_name(given)}; write to its tensor's grad in place")
                elif not hook.before:
                    hook.call((), (Tensor(ct, tensor._device, None),))


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
    """The step of the derivative history that made a tensor: `name()`, `next_functions` towards the leaves, and hooks of its own.

    There is one of each step, as long as somebody holds it.
    """

    def __new__(cls, node: Node) -> GradFn:
        call = node.operands[0] if node.fn is _OUTPUT and node.operands else node           # of several results, what made them
        self = _held.get(id(call))
        if self is None:
            self = super().__new__(cls)
            self.node = call
            _held[id(call)] = self
        return self

    node: Node

    def name(self) -> str:
        """The operation's name; "AccumulateGrad" for a leaf."""
        return "AccumulateGrad" if self.variable is not None else self.node.fn.name

    @property
    def variable(self) -> Tensor | None:
        """The leaf, if this is its AccumulateGrad."""
        return leaves.get(self.node.attrs["uid"]) if self.node.fn is _VARIABLE else None

    @property
    def metadata(self) -> dict[Any, Any]:
        """What a program notes of the step: a dict that lives as long as the history does."""
        return _metadata.setdefault(self.node, {})

    @property
    def next_functions(self) -> tuple[tuple[GradFn | None, int], ...]:
        """(GradFn, output number) per operand; (None, 0) for operands without a history. Numbers of Python's come last, as in torch."""
        operands = [self.node.operands[i] for i in self._places()]
        return tuple((GradFn(o), o.attrs.get("index", 0) if o.fn is _OUTPUT else 0) if o.needs_grad else (None, 0) for o in operands)

    def _places(self) -> list[int]:
        """The places of the operands that `next_functions` tells of, in its order."""
        node, fn = self.node, self.node.fn
        if self.variable is not None:
            return []
        operands = node.operands
        tracked: Any = fn.tracked(tuple(range(len(operands)))) if isinstance(fn, CustomCall) and operands else range(len(operands))  # type: ignore[arg-type]
        places = [i for i in tracked if operands[i].fn is not _OFFSET]      # where a slice starts is a number to the user
        return sorted(places, key=lambda i: operands[i].fn is _CONST)

    def register_hook(self, fn: Callable[[Any, Any], Any]) -> RemovableHandle:
        """Call `fn(grad_inputs, grad_outputs)` whenever a backward has made this step: tuples of tensors, None where nothing is computed.

        grad_inputs are in the order of `next_functions`, those of a leaf's AccumulateGrad empty: its step has added to `grad`. What `fn`
        returns, unless None, takes the place of grad_inputs: a tuple of as many, of equal shapes and devices; None leaves out a gradient.
        Raises RuntimeError for another number, and where there was no gradient; TypeError for what is no tensor.
        """
        return self._register(fn, before=False)

    def register_prehook(self, fn: Callable[[Any], Any]) -> RemovableHandle:
        """Call `fn(grad_outputs)` whenever a backward is about to make this step; what it returns, unless None, is what the step gets.

        Raises as `register_hook`.
        """
        return self._register(fn, before=True)

    def _register(self, fn: Callable[..., Any], before: bool) -> RemovableHandle:
        leaf = self.variable
        if leaf is not None:
            return _register_at_leaf(leaf, _Accumulation(fn, before))
        node_ref = weakref.ref(self.node)

        def pre(ct: Any) -> Any:
            node = node_ref()
            if node is None:
                return ct
            found = _answered("register_prehook", fn, _as_results(node, ct), ())
            if isinstance(node.fn, Bundle):
                return {i: part for i, part in enumerate(found) if part is not None}
            return found[0]

        def post(contributions: tuple[Any, ...], ct: Any, reaches: Sequence[bool]) -> tuple[Any, ...]:
            node = node_ref()
            if node is None:
                return contributions
            places = GradFn(node)._places()
            given = [derivatives.conform(c, node.operands[i]) if reaches[i] and c is not None else None
                     for i in places for c in (contributions[i],)]
            found = _answered("register_hook", fn, _tensors(given, [node.operands[i] for i in places]), (_as_results(node, ct),))
            made = dict(zip(places, found, strict=True))
            return tuple([made.get(i, c) for i, c in enumerate(contributions)])

        key, hooks = unique(), HOOKS.setdefault(self.node)
        hooks[key] = StepHook(before, pre if before else post)
        return RemovableHandle(hooks, key)

    def __getattr__(self, name: str) -> Any:
        """What the forward of a custom Function left in ctx, but for tensors."""
        ctx = None if name == "node" or name.startswith("_") else getattr(self.node.fn, "ctx", None)
        if ctx is None or not hasattr(ctx, name):
            raise AttributeError(f"grad_fn: has no attribute {name!r}")
        return getattr(ctx, name)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


# By the node's id, the steps that users hold; and what they noted of steps.
_held: weakref.WeakValueDictionary[int, GradFn] = listed("steps of histories that users hold", weakref.WeakValueDictionary())
_metadata: weakref.WeakKeyDictionary[Node, dict[Any, Any]] = listed("what users noted of steps", weakref.WeakKeyDictionary())


def _tensors(cotangents: Sequence[Any], of: Sequence[Node]) -> tuple[Tensor | None, ...]:
    """Cotangents as tensors, where the nodes lie that they are of."""
    return tuple([None if ct is None else Tensor(ct, device_of(n) or find_device(), state.trace)
                  for ct, n in zip(cotangents, of, strict=True)])


def _as_results(node: Node, ct: Any) -> tuple[Tensor | None, ...]:
    """The cotangents of a node's results, as tensors."""
    if not isinstance(node.fn, Bundle):
        return _tensors([ct], [node])
    count = len(node.fn.avals(*[o.aval for o in node.operands], **node.attrs))
    return _tensors([ct.get(i) for i in range(count)], [node] * count)


def _answered(call: str, fn: Callable[..., Any], given: tuple[Tensor | None, ...], rest: tuple[Any, ...]) -> list[Node | None]:
    """The cotangents that a hook leaves of those that it is given."""
    answer = fn(given, *rest)
    if answer is None:
        answer = given
    elif not isinstance(answer, tuple):
        raise ArgumentTypeError(f"grad_fn.{call}: the hook returns a tuple or None, got {type_name(answer)}")
    if len(answer) != len(given):
        raise AutogradError(f"grad_fn.{call}: the hook returned {len(answer)} values for {len(given)} gradients; return a tuple of as many")
    found: list[Node | None] = []
    for before, after in zip(given, answer, strict=True):
        if after is None:
            found.append(None)
        elif before is None:
            raise AutogradError(f"grad_fn.{call}: the hook returned a tensor where no gradient is computed; return None there")
        elif not isinstance(after, Tensor):
            raise ArgumentTypeError(f"grad_fn.{call}: the hook returns tensors, got {type_name(after)}")
        elif after.shape != before.shape or after._device is not before._device:
            raise AutogradError(f"grad_fn.{call}: the hook returned a {tuple(after.shape)} tensor on {after._device} for a gradient of "
                                f"shape {tuple(before.shape)} on {before._device}; keep both")
        else:
            found.append(derivatives.conform(after._node(), before._node()))
    return found


def grad_fn_of(tensor: Tensor) -> GradFn | None:
    node = tensor._node()
    if unseen():
        argument = tensor._argument()
        return None if argument is None or argument._is_leaf() else GradFn(argument._node())
    return None if tensor._is_leaf() else GradFn(node)
