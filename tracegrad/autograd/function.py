"""What torch.autograd.function holds: the base of custom Functions, their ctx, and `once_differentiable`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tracegrad.custom.custom_function import Function
from tracegrad.custom.user_call import Context as FunctionCtx
from tracegrad.custom.user_call import opaque_value
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor

__all__ = ["Function", "FunctionCtx", "once_differentiable"]


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for the backward of a custom Function whose result must not be differentiated again.

    It runs without recording, so that it may compute in ways that have no derivative (NumPy on values). A derivative of what it returns
    raises AutogradError.

    >>> class Exp(tg.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         y = x.exp()
    ...         ctx.save_for_backward(y)
    ...         return y
    ...     @staticmethod
    ...     @tg.autograd.function.once_differentiable
    ...     def backward(ctx, grad):
    ...         return grad * ctx.saved_tensors[0]
    """
    @wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        wanted = state.grad
        sources = [t._node() for t in (*grads, *(ctx.saved_tensors or ())) if isinstance(t, Tensor) and t._node().needs_grad]
        with no_grad():
            found = backward(ctx, *grads)
        if not wanted or not sources:
            return found
        message = f"{ctx._function.__name__}.backward is marked with @once_differentiable: what it returns cannot be differentiated again"

        def closed(g: Any) -> Any:
            return Tensor(opaque_value(g._node(), sources, message), g._device, state.trace) if isinstance(g, Tensor) else g

        if isinstance(found, dict):
            return {name: closed(g) for name, g in found.items()}
        return tuple(closed(g) for g in found) if isinstance(found, (tuple, list)) else closed(found)

    return once
