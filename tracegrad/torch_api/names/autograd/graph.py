"""torch.autograd.graph: hooks on saved tensors and on several gradients. Start at `saved_tensors_hooks`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.autodiff.derivatives import pull_back, variable
from tracegrad.autograd.hooks import GradFn, register_hook, steps_back
from tracegrad.custom.custom_function import Function
from tracegrad.custom.user_call import UserCall
from tracegrad.errors import ArgumentTypeError, AutogradError, DeviceError, ShapeError, type_name
from tracegrad.execute.device_partition import device_of
from tracegrad.execute.devices import find_device
from tracegrad.execute.realize import realize
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Node as GraphNode
from tracegrad.graph.ir import own_nodes, topological
from tracegrad.graph.leaf_operations import Bundle
from tracegrad.graph.primitive import placeholder
from tracegrad.graph.substitution import HOOKS
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.bases.history import leaves
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.names._markers import Unchanged

__all__ = ["Node", "disable_saved_tensors_hooks", "increment_version", "register_multi_grad_hook", "save_on_cpu", "saved_tensors_hooks"]


Node = GradFn                         # a step of a history: what `grad_fn` is


save_on_cpu = Unchanged               # what a backward needs is computed again or stored as the plan decides, on the device


def increment_version(tensor: Any) -> None:
    """Nothing."""


class _Handles:
    """Several handles as one."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take all of the hooks away."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register_multi_grad_hook(tensors: Sequence[Tensor], fn: Callable[[Any], None], *, mode: str = "all") -> _Handles:
    """Call `fn` in each backward that reaches some of `tensors`: with a list of their gradients, None for those that it does not reach,

    when all of these are known; in the mode "any" with the first gradient. Raises AutogradError for a tensor that does not require grad,
    ValueError for another mode.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"register_multi_grad_hook: mode is 'all' or 'any', got {mode!r}")
    tensors = list(tensors)
    nodes = [t._node() for t in tensors]
    key = object()

    def on_one(k: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            walk = HOOKS.walk
            if mode == "any":
                if key not in walk.notes:
                    walk.notes[key] = True
                    fn(gradient)
                return
            if key not in walk.notes:               # a leaf's node is another one when it was changed
                reached = sum((t._node() if t.is_leaf else n) in walk.live for t, n in zip(tensors, nodes, strict=True))
                walk.notes[key] = [reached, [None] * len(tensors)]
            noted = walk.notes[key]
            noted[0] -= 1
            noted[1][k] = gradient
            if not noted[0]:
                fn(noted[1])

        return hook

    return _Handles([register_hook(t, on_one(k)) for k, t in enumerate(tensors)])


# ---------------------------------------------------------------------------------------------------- saved tensors


class _Thread(threading.local):
    refused: tuple[str, ...] = ()               # why saved_tensors_hooks cannot be entered


_thread = _Thread()


class disable_saved_tensors_hooks:
    """A block in which `saved_tensors_hooks` is a RuntimeError with this message; so is the block inside one."""

    def __init__(self, error_message: str) -> None:
        self._message = error_message

    def __enter__(self) -> None:
        if any(isinstance(w, saved_tensors_hooks) for w in state.watch):
            raise RuntimeError(self._message)
        _thread.refused = (*_thread.refused, self._message)

    def __exit__(self, *_: object) -> None:
        _thread.refused = _thread.refused[:-1]


class saved_tensors_hooks:
    """A block in which what operations save for their derivatives goes through functions, as torch's does.

    pack_hook(x) is called when an operation is, with each tensor that its derivative reads: operands, a result, what a custom Function
    saves. unpack_hook(what that returned) is called when the derivative is taken, and its tensor, of the same shape and device, is
    what the derivative reads. Which tensors an operation saves is the library's own affair: here some are computed of several primitives.
    Results of operations with several results (`svd`) stay as they are. The history keeps its own values as long as it is there, so memory
    is not saved: that is what `torch.utils.checkpoint` is for. Traced functions run untraced meanwhile.
    Raises RuntimeError where a pack hook changes what it gets, TypeError where unpacking gives no tensor.
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        if _thread.refused:
            raise RuntimeError(_thread.refused[-1])
        self._before = state.watch
        state.watch = (*(w for w in self._before if not isinstance(w, saved_tensors_hooks)), self)

    def __exit__(self, *_: object) -> None:
        state.watch = self._before

    def __call__(self, name: str, operands: list[GraphNode], results: list[GraphNode]) -> None:
        """Pack what the nodes of a call save."""
        if not state.grad or state.hidden:
            return
        given = set(operands)
        made = topological(results, lambda n: n in given or not n.needs_grad, steps_back)
        before, state.watch = state.watch, ()
        try:
            for node in made:
                if node.needs_grad and node not in given and node.fn.saves and node.fn.family != "output":
                    self._pack(node)
        finally:
            state.watch = before

    def _pack(self, node: GraphNode) -> None:
        packed = {place: self._packed(n) for place, n in _read(node)}
        if packed:
            HOOKS.setdefault(node)[HOOKS.UNPACK] = _Unpacking(self.unpack_hook, packed)

    def _packed(self, node: GraphNode) -> Any:
        leaf = leaves.get(node.attrs["uid"]) if node.fn.name == "variable" else None
        tensor = leaf if leaf is not None and leaf._node() is node else Tensor(node, device_of(node) or find_device())
        version = tensor._writes
        with no_grad():
            packed = self.pack_hook(tensor)
        if tensor._writes != version:
            raise AutogradError("saved_tensors_hooks: pack_hook changed the tensor that it was given, in place; compute a new one")
        return packed


def _read(node: GraphNode) -> list[tuple[int, GraphNode]]:
    """What the derivative of a node reads, by the places of its operands; -1: its result."""
    operands, fn = node.operands, node.fn
    if isinstance(fn, UserCall):
        first = len(operands) - len(fn.saved_nodes)
        return list(enumerate(operands))[first:]
    with own_nodes():
        probe = {i: placeholder(a, "probe") for i, a in enumerate(fn.avals(*[o.aval for o in operands], **node.attrs))} if isinstance(
            fn, Bundle) else placeholder(node.aval, "probe")
        reaches = [o.needs_grad for o in operands]
        pulled = pull_back(node, probe, reaches)
    near = {node, *operands}
    wanted = [p for p, reached in zip(pulled, reaches, strict=True) if reached and isinstance(p, GraphNode)]
    read = near.intersection(topological(wanted, near.__contains__))
    found = [(i, o) for i, o in enumerate(operands) if o in read and not o.constant and o.fn.family != "index"]
    return found + ([(-1, node)] if node in read and not isinstance(fn, Bundle) else [])


class _Unpacking:
    """What is called in a derivative: gives a node like the one that was packed, whose operands are what was unpacked."""

    def __init__(self, unpack: Callable[[Any], Tensor], packed: dict[int, Any]) -> None:
        self._unpack, self._packed = unpack, packed

    def __call__(self, node: GraphNode) -> GraphNode:
        operands, value = list(node.operands), None
        for place, packed in self._packed.items():
            original = node if place < 0 else operands[place]
            with no_grad():
                tensor = self._unpack(packed)
            tensor = _checked(tensor, original)
            if place < 0:
                realize([tensor._node()], tensor._device)
                value = resolve(tensor._node()).value
            elif original.needs_grad:
                operands[place] = _with_history(tensor, original)
            else:
                operands[place] = tensor._node()
        made = GraphNode(node.fn, tuple(operands), node.attrs, node.aval, True)
        made.loc, made.value = node.loc, value
        return made


def _checked(tensor: Any, original: GraphNode) -> Tensor:
    """What was unpacked, in the dtype of what was packed: hooks that compress need not know which tensors are bools."""
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"saved_tensors_hooks: unpack_hook must return a tensor, got {type_name(tensor)}")
    if tensor.shape != original.shape:
        raise ShapeError(f"saved_tensors_hooks: unpack_hook returned a tensor of shape {tuple(tensor.shape)} for one of {original.shape}; "
                         "give back what was packed")
    place = device_of(original) or find_device()
    if tensor._device is not place:
        raise DeviceError(f"saved_tensors_hooks: unpack_hook returned a tensor on {tensor._device} for one on {place}; move it with "
                          "x.to(device)")
    return tensor.detach().to(dtype=original.dtype)


def _with_history(tensor: Tensor, original: GraphNode) -> GraphNode:
    """The values of a tensor, whose derivative is that of the node that they were."""
    if not state.grad:
        return variable(tensor._node())
    return _Restored.apply(tensor, Tensor(original, tensor._device))._node()  # type: ignore[no-any-return]


class _Restored(Function):
    """The first tensor; the derivative is the second one's."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, original: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, grad
