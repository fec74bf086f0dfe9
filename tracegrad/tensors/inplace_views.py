"""t_, squeeze_, unsqueeze_ and transpose_: a tensor becomes a view of itself, in place. Start at `move`. resize_ is at the end.

Views of the tensor are made relative to how it was laid out. So it keeps what undoes each of its moves, and a view puts what was added
since in front of its own steps (`Tensor._chain`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tracegrad.autodiff.derivatives import variable
from tracegrad.errors import ArgumentError, ArgumentTypeError, AutogradError, OutOfMemoryError, ShapeError, TraceError, type_name
from tracegrad.graph.ir import Aval
from tracegrad.graph.locations import user_location
from tracegrad.graph.operators import PUBLIC
from tracegrad.graph.primitive import REGISTRY, bind, const
from tracegrad.ops.arguments import sizes_of
from tracegrad.ops.primitives.movement import concat, expand, inverse, narrow, reshape
from tracegrad.support.modes import enable_grad, state
from tracegrad.tensors.attributes import base_of
from tracegrad.tensors.bases.view_steps import Step
from tracegrad.tensors.tensor import Tensor


def move(tensor: Tensor, view: Tensor, call: str) -> Tensor:
    """Make `tensor` what `view`, a view of it, is. Other views of it stay what they are. `call` is the method's name, for errors."""
    if state.trace is not None and tensor._trace is not state.trace:
        raise TraceError(
            f"{call} at {user_location()}: inside @trace ({state.trace.name}) a tensor from outside cannot get another shape, which a "
            f"replay would not do; use the result of {call[:-1]}()"
        )
    tensor._guard(None, call)
    base = base_of(tensor)
    leaf = base._is_leaf()
    history = view._n.needs_grad
    if history and leaf and state.grad:
        raise AutogradError(
            f"{call}: a leaf tensor that requires grad, or a view of one, was modified in place; do it inside `with tg.no_grad():`"
        )
    if history and not leaf and not state.grad:
        raise AutogradError(
            f"{call}: a tensor with a derivative history was modified in place where none is recorded (in no_grad); clone() it first"
        )
    steps: tuple[Step, ...] = view._chain
    undone: list[Step] = []
    source = tensor._node()
    for fn, attrs in steps:
        undone.append((fn, {"dims": inverse(attrs["dims"])} if fn.name == "permute" else {"shape": source.shape}))
        source = bind(fn, (source,), attrs)
    if tensor._base is None:
        tensor._set_node(variable(bind(REGISTRY["detach"], (source,), {})) if history and leaf else view._n)
    else:
        own = tensor._n.fn is REGISTRY["variable"]
        tensor._steps, tensor._n = (*tensor._chain, *steps), view._n
        if own:
            tensor._n = tensor._as_leaf(bind(REGISTRY["detach"], (source,), {}))
    tensor._moved += tuple(undone)
    base._versions += 1
    return tensor


def _in_place(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with enable_grad():  # the mode decides on what the tensor becomes, not on the view
            view = fn(self, *args, **kwargs)
        return move(self, view, name)

    method.__wrapped__ = fn  # type: ignore[attr-defined]    # whose parameters are the method's
    method.__name__, method.__doc__ = name, f"In-place version of `{name[:-1]}`: the same elements and the same memory in another shape."
    return method


class _Cut:
    """A step of a view to elements that its base no longer has."""

    name = "cut"

    def aval(self, x: Any, size: tuple[int, ...]) -> Any:
        raise ArgumentError(f"resize_: the tensor that this view was taken of has the shape {size} now, of fewer elements; take the view "
                            "again, or clone() it before resize_")


_CUT = _Cut()


def resize_(self: Tensor, *sizes: Any, memory_format: Any = None) -> Tensor:
    """Give the tensor another shape in place: its first elements stay, in their order, and further ones are 0 (torch: not initialised).

    sizes: integers, as several arguments or one tuple. Not inside @trace, where shapes are known before values: use x.reshape, x[:n]
    or nn.functional.pad there. AutogradError for a tensor that requires grad; ArgumentError where the number of elements changes and the
    tensor is a view. Views of the tensor go on showing its first elements if it gets more; if it gets fewer, to use one is an
    ArgumentError (torch keeps the elements that are cut off).

    >>> tg.arange(6).resize_(2, 2)
    """
    return _resized("resize_", self, sizes_of("resize_", sizes))


def resize_as_(self: Tensor, the_template: Tensor, memory_format: Any = None) -> Tensor:
    """`resize_` to the shape of the_template. Any dtype, which stays. Raises AutogradError where it requires grad.

    >>> tg.arange(4).resize_as_(tg.ones(2, 2))
    Tensor([[0, 1],
            [2, 3]], device='cpu')
    """
    if not isinstance(the_template, Tensor):
        raise ArgumentTypeError(f"resize_as_: the_template must be a Tensor, got {type_name(the_template)}; use x.resize_(sizes)")
    return _resized("resize_as_", self, the_template.shape)


def _resized(call: str, self: Tensor, size: tuple[int, ...]) -> Tensor:
    """`resize_`, which the user called by the name `call`."""
    if min(size, default=0) < 0:
        raise ShapeError(f"{call}: sizes must not be negative, got {size}")
    if state.trace is not None:
        raise TraceError(f"{call}: a tensor cannot be resized inside @trace; use x.reshape(...), x[:n] or nn.functional.pad")
    if self._has_history():
        raise AutogradError(f"{call}: the tensor requires grad; use x.reshape(...), x[:n] or nn.functional.pad, which have derivatives")
    try:
        Aval(size, self.dtype)                               # which refuses what no index reaches
    except OutOfMemoryError as error:
        error.called(call)
        raise
    have, want = self.numel(), prod(size)
    if have == want:
        return self if self.shape == size else move(self, PUBLIC["reshape"](self, size), call)
    if self._base is not None:
        raise ArgumentError(f"{call}: from {self.shape} to {size} the number of elements changes, and it is a view of another tensor; "
                            "clone() it first")
    shape = self.shape
    flat = reshape(self._node(), (have,))
    flat = narrow(flat, 0, 0, want) if want < have else concat([flat, expand(const(0, self.dtype), (want - have,))], 0)
    self._set_node(reshape(flat, size))
    # How a view that is there gets from the new elements to those that it was made from: the last step is the first.
    first = (REGISTRY["slice"], {"start": (0,), "stop": (have,), "step": (1,)}) if want > have else (_CUT, {"size": size})
    self._moved += ((REGISTRY["reshape"], {"shape": shape}), first, (REGISTRY["reshape"], {"shape": (want,)}))
    self._versions += 1
    return self


def install() -> None:
    """Make the methods, once the views that they take are made (`methods.install`)."""
    for name in ("t", "squeeze", "unsqueeze", "transpose", "swapaxes", "swapdims"):
        setattr(Tensor, f"{name}_", _in_place(PUBLIC[name], f"{name}_"))
    for fn in (resize_, resize_as_):
        setattr(Tensor, fn.__name__, fn)
