"""t_, squeeze_, unsqueeze_ and transpose_: a tensor becomes a view of itself, in place. Start at `move`.

Views of the tensor are made relative to how it was laid out. So it keeps what undoes each of its moves, and a view puts what was added
since in front of its own steps (`Tensor._chain`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad import methods
from tracegrad.autodiff import variable
from tracegrad.errors import AutogradError, TraceError
from tracegrad.function import REGISTRY, bind
from tracegrad.ir import user_location
from tracegrad.modes import enable_grad, state
from tracegrad.operators import PUBLIC
from tracegrad.ops.movement import inverse
from tracegrad.tensor import Step, Tensor
from tracegrad.tracing.recording import base_of

_FIRST = methods  # imported for the views that it makes


def move(tensor: Tensor, view: Tensor, call: str) -> Tensor:
    """Make `tensor` what `view`, a view of it, is. Other views of it stay what they are. `call` is the method's name, for errors."""
    if state.trace is not None and tensor._trace is not state.trace:
        raise TraceError(
            f"{call} at {user_location()}: inside @trace ({state.trace.name}) a tensor from outside cannot get another shape, which a "
            f"replay would not do; use the result of {call[:-1]}()"
        )
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
        tensor._steps, tensor._n = (*tensor._chain, *steps), view._n
    tensor._moved += tuple(undone)
    base._versions += 1
    return tensor


def _in_place(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with enable_grad():  # the mode decides on what the tensor becomes, not on the view
            view = fn(self, *args, **kwargs)
        return move(self, view, name)

    method.__name__, method.__doc__ = name, f"In-place version of `{name[:-1]}`: the same elements and the same memory in another shape."
    return method


for _name in ("t", "squeeze", "unsqueeze", "transpose", "swapaxes", "swapdims"):
    setattr(Tensor, f"{_name}_", _in_place(PUBLIC[_name], f"{_name}_"))
