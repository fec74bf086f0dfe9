"""Values and derivatives beside infinite, zero and equal elements. The numbers are torch's (2.13), or the true ones where it has NaN."""

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
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


@pytest.mark.parametrize(("dtype", "large"), [(tg.float32, 100.0), (tg.float64, 1000.0), (tg.float64, 1e308)])
def test_logsumexp_beside_inf(device: Any, dtype: Any, large: float) -> None:
    """The neighbours' gradient is 0, also where their own exponential overflows."""
    value, gradient = derivatives(lambda x: tg.logsumexp(x, 0), [inf, large, 1.0, -inf], dtype=dtype)
    assert value == [inf]
    assert gradient[1:] == [0, 0, 0]
    value, gradient = derivatives(lambda x: tg.logsumexp(x, 1), [[-inf, -inf, -inf], [large, -inf, 0.0]], dtype=dtype)
    assert value == [-inf, pytest.approx(large)]
    assert gradient[3:] == pytest.approx([1, 0, 0])


@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss])
def test_round_losses_where_there_is_no_difference_and_beyond(device: Any, loss: Any) -> None:
    x = tg.tensor([0.0, 0.5, 2.0, inf, -inf], dtype=tg.float64, requires_grad=True)
    first, = tg.autograd.grad(loss(x, tg.zeros_like(x), reduction="sum"), x, create_graph=True)
    assert first.tolist() == [0, 0.5, 1, 1, -1]
    assert tg.autograd.grad(first.sum(), x)[0].tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_infinite_extremes_at_indices_have_their_gradient(device: Any, reduce: str) -> None:
    index = tg.tensor([0, 0, 1, 1])
    value, gradient = derivatives(lambda x: tg.ones(2, dtype=tg.float64).scatter_reduce(0, index, x, reduce), [2, inf, -inf, 0.5])
    assert (value, gradient) == (([inf, 1], [0, 1, 0, 0]) if reduce == "amax" else ([1, -inf], [0, 0, 1, 0]))


def test_a_power_of_0_differentiated_by_both(device: Any) -> None:
    """d²/da db a^b = a^(b - 1) (1 + b log a): 1/a where b is 0, which was 1."""
    def mixed(a: Any, b: Any) -> Any:
        return tg.autograd.grad((a ** b).sum(), a, create_graph=True)[0]

    value, _, found = derivatives(mixed, [2.0, 4.0, 3.0, 0.0, float("nan")], [0.0, -0.0, 2.0, 0.0, 0.0])
    np.testing.assert_array_equal(value, [0, 0, 6, 0, 0])
    np.testing.assert_allclose(found[:3], [0.5, 0.25, 3 * (1 + 2 * np.log(3))])
    assert derivatives(lambda a, b: a ** b, [1e-40], [0.0], dtype=tg.float32)[1] == [0]


def test_trigamma_ends_at_0(device: Any) -> None:
    value, gradient = derivatives(lambda x: tg.digamma(x) * tg.tensor([0.0, 1.0], dtype=tg.float64), [2.0, inf])
    assert (value[1], gradient[1]) == (inf, 0)
    assert tg.polygamma(2, tg.tensor([inf])).tolist() == [0]


@pytest.mark.parametrize("dtype", [tg.float32, tg.float64])
@pytest.mark.parametrize("shape", [(3, 5), (40, 50)])
def test_where_gives_the_bits_of_what_it_selects(device: Any, dtype: Any, shape: Any) -> None:
    rng = np.random.default_rng(0)
    values = np.array([0.0, -0.0, inf, -inf, float("nan"), 1e-310, -1e-40, 1.5, -3.25]).astype(dtype)
    if device.kind == "gpu":
        values = values[[0, 1, 2, 3, 7, 8]]                                    # which may flush what is denormal, and has one NaN
    a, b = (rng.choice(values, shape) for _ in range(2))
    mask = rng.random(shape) < 0.5
    bits = np.int32 if dtype == tg.float32 else np.int64
    for x, y in ((a, b), (a, np.zeros((), dtype)), (np.zeros((), dtype), b), (a, np.full((), -0.0, dtype)), (a[:, ::-1], b)):
        found = tg.where(tg.tensor(mask), tg.tensor(x.copy()), tg.tensor(y.copy()))
        np.testing.assert_array_equal(found.numpy().view(bits), np.where(mask, x, y).view(bits))


@pytest.mark.parametrize("row", [[3e38, 3e38], [3e38, 3e38, -3e38, 1.0], [1e20, 2e20, 3e20, -1e19]])
def test_a_variance_whose_squares_overflow_is_infinite(device: Any, row: list[float]) -> None:
    """It was inf - inf, a NaN, where the mean or what it was rounded by overflows, too."""
    x = tg.tensor(row)
    assert [v.item() for v in (x.var(), x.var(correction=0), tg.trace(tg.var)(x), tg.var_mean(x)[0])] == [inf] * 4
    assert np.isnan(tg.var(tg.tensor([inf, 1.0])).item())
    assert tg.var(tg.tensor([3.3, 3.3, 3.3])).item() == 0


@one_of(5, "name", [
    "relu", "relu6", "elu", "selu", "celu", "leaky_relu", "gelu", "silu", "mish", "softplus", "logsigmoid", "hardtanh", "hardsigmoid",
    "hardswish", "softshrink", "hardshrink", "tanhshrink", "softsign", "rrelu", "sigmoid", "tanh",
])
def test_the_gradient_of_an_activation_at_NaN_is_that_of_one_element(name: str) -> None:
    """torch has another one (0, or NaN) where an element is in a vector of its CPU's; ours does not depend on an element's place."""
    torch = pytest.importorskip("torch", reason="torch, the reference of this comparison, is not installed")
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        found = []
        for lib, size in ((torch, 1), (tg, 1), (tg, 64)):
            x = lib.tensor([float("nan")] * size, dtype=getattr(lib, dtype), requires_grad=True)
            y = getattr(lib.nn.functional, name)(x)
            assert all(np.isnan(v) for v in y.tolist())
            found.append({round(v, 6) if v == v else "NaN" for v in lib.autograd.grad(y.sum(), x)[0].tolist()})
        assert found[0] == found[1] == found[2]
