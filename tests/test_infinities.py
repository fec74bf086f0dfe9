"""Values and derivatives beside infinite, zero and equal elements. The numbers are torch's (2.13), or the true ones where it has NaN."""

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.nn import functional as F

inf = float("inf")


def derivatives(fn: Any, *rows: Any, dtype: Any = tg.float64) -> list[list[float]]:
    """fn's value, and its gradient by each of the rows."""
    xs = [tg.tensor(row, dtype=dtype, requires_grad=True) for row in rows]
    y = fn(*xs)
    return [value.reshape(-1).tolist() for value in (y.detach(), *tg.autograd.grad(y.sum(), xs))]


def test_the_nearest_pixel_has_a_gradient_of_zeros_by_the_grid(device: Any) -> None:
    image, grid = tg.rand(1, 2, 4, 5).requires_grad_(), tg.zeros(1, 3, 3, 2).requires_grad_()
    F.grid_sample(image, grid, mode="nearest", align_corners=False).sum().backward()
    assert grid.grad is not None
    assert not grid.grad.any()
    assert image.grad is not None
    assert image.grad.sum().item() == 18
