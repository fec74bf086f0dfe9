"""torch.nn.grad: the gradients of convolutions, as functions of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.autograd import grad
from tracegrad.graph.operators import FUNCTIONAL
from tracegrad.support.modes import enable_grad, state
from tracegrad.tensors.tensor import Tensor


def _gradient(of: Sequence[int], like: Tensor, convolved: Callable[[Any], Any], grad_output: Tensor) -> Any:
    """The gradient of a linear function with respect to its argument of shape `of`; it may be differentiated again."""
    wanted = state.grad
    with enable_grad():
        x = like.new_zeros(tuple(of)).requires_grad_()
        found, = grad(convolved(x), x, grad_output, create_graph=wanted)
    return found


def _pair(dims: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    conv = FUNCTIONAL[f"conv{dims}d"]

    def by_input(input_size: Sequence[int], weight: Tensor, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
                 groups: int = 1) -> Any:
        """The gradient by an input of `input_size` of a convolution with `weight`, from that of its result."""
        return _gradient(input_size, weight, lambda x: conv(x, weight, None, stride, padding, dilation, groups), grad_output)

    def by_weight(input: Tensor, weight_size: Sequence[int], grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
                  groups: int = 1) -> Any:
        """The gradient by weights of `weight_size` of a convolution of `input`, from that of its result."""
        return _gradient(weight_size, input, lambda w: conv(input, w, None, stride, padding, dilation, groups), grad_output)

    by_input.__name__, by_weight.__name__ = f"conv{dims}d_input", f"conv{dims}d_weight"
    return by_input, by_weight


conv1d_input, conv1d_weight = _pair(1)
conv2d_input, conv2d_weight = _pair(2)
conv3d_input, conv3d_weight = _pair(3)
