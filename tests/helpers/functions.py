"""Custom Functions that tests of several files need, for tracegrad or (m=torch) for torch. Start at `square`."""

from collections.abc import Callable
from typing import Any

import tracegrad as tg


def square(m: Any = tg, slope: Callable[[Any], Any] = lambda x: 2 * x) -> Any:
    """x * x, which saves x; its backward takes `slope(x)` for the derivative, which may be wrong on purpose."""

    class Square(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * slope(x)

    return Square.apply


def double(m: Any = tg, called: Callable[[], None] = lambda: None) -> Any:
    """x * 2, which saves nothing; `called` is what its backward does first."""

    class Double(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            called()
            return grad * 2

    return Double.apply
