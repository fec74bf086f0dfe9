"""Gradients where operands are equal: who gets how much is torch's choice. The shares below are torch's (2.13); start at SHARES.

tests/ops/beside_torch/test_breakpoints_torch.py compares every function with the installed torch; here are the right values, for where
there is none.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of

NAN, INF = float("nan"), float("inf")
# per case: the function, its vectors, and the gradient of the sum of the result by each of them
SHARES: dict[str, tuple[Any, list[list[float]], list[list[float]]]] = {
    "clamp to numbers": (lambda t, F, x: t.clamp(x, -1, 1), [[-2, -1, 0, 1, 2]], [[0, 1, 1, 1, 0]]),
    "clamp from below": (lambda t, F, x: x.clamp(min=0), [[-1, -0.0, 0, 1]], [[0, 1, 1, 1]]),
    "clamp from above": (lambda t, F, x: x.clamp_max(1.0), [[0, 1, 2]], [[1, 1, 0]]),
    "clamp, equal numbers": (lambda t, F, x: x.clamp(0, 0), [[-1, 0, 1]], [[0, 1, 0]]),
    "clamp, min above max": (lambda t, F, x: x.clamp(1, -1), [[-2, -1, 0, 1, 2]], [[0, 0, 0, 0, 0]]),
    "clip of the infinite and of NaN": (lambda t, F, x: t.nan_to_num(x.clip(-INF, 1)), [[-INF, INF, NAN]], [[0, 0, 0]]),
    "clamp of NaN": (lambda t, F, x: t.where(x == x, x, x.clamp(-1, 1) * 0 + 1).clamp(0, 9), [[NAN, 2]], [[0, 1]]),
    "clamp to a tensor from below": (lambda t, F, x, y: x.clamp(min=y), [[0, 1, 2], [1, 1, 1]], [[0, 1, 1], [1, 0, 0]]),
    "clamp to a tensor from above": (lambda t, F, x, y: x.clip(max=y), [[0, 1, 2], [1, 1, 1]], [[1, 1, 0], [0, 0, 1]]),
    "clamp to tensors": (
        lambda t, F, x, y, z: t.clamp(x, y, z), [[0, 1, 2, 3, 4], [1] * 5, [3] * 5],
        [[0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]],
    ),
    "clamp to tensors, min above max": (
        lambda t, F, x, y, z: t.clamp(x, y, z), [[0, 1, 2, 3], [3] * 4, [1] * 4], [[0] * 4, [0] * 4, [1] * 4],
    ),
    "maximum": (lambda t, F, x, y: t.maximum(x, y), [[0, 1, 2], [1, 1, 1]], [[0, 0.5, 1], [1, 0.5, 0]]),
    "fmax": (lambda t, F, x, y: t.fmax(x, y), [[0, 1, 2, NAN, 1], [1, 1, 1, 1, NAN]], [[0, 1, 1, 0, 1], [1, 0, 0, 1, 0]]),
    "fmin": (lambda t, F, x, y: t.fmin(x, y), [[0, 1, 2, NAN, 1], [1, 1, 1, 1, NAN]], [[1, 1, 0, 0, 1], [0, 0, 1, 1, 0]]),
    "median": (lambda t, F, x: x.median() * 6, [[1, 2, 2, 3, 2]], [[0, 2, 2, 0, 2]]),
    "nanmedian": (lambda t, F, x: t.nanmedian(x) * 6, [[1, 2, NAN, 2, 3, 2]], [[0, 2, 0, 2, 0, 2]]),
    "median of the infinite": (lambda t, F, x: t.exp(x.median()) + x.median(), [[-INF, INF]], [[1, 0]]),
    "nanmedian of the infinite": (lambda t, F, x: t.nanmedian(x), [[INF, INF, NAN, -INF]], [[0.5, 0.5, 0, 0]]),
    "median of an even number": (lambda t, F, x: x.median(), [[4, 1, 3, 2]], [[0, 0, 0, 1]]),
    "relu": (lambda t, F, x: F.relu(x), [[-1, 0, 1]], [[0, 0, 1]]),
    "hardtanh": (lambda t, F, x: F.hardtanh(x), [[-1, 0, 1]], [[0, 1, 0]]),
    "amax": (lambda t, F, x: x.amax(), [[1, 2, 2]], [[0, 0.5, 0.5]]),
    "relu6": (lambda t, F, x: F.relu6(x), [[-1, 0, 3, 6, 7]], [[0, 0, 1, 0, 0]]),
    "threshold": (lambda t, F, x: F.threshold(x, 1.0, 9.0), [[0, 1, 2]], [[0, 0, 1]]),
    "hardsigmoid": (lambda t, F, x: F.hardsigmoid(x) * 6, [[-3, 0, 3]], [[0, 1, 0]]),
    "hardshrink": (lambda t, F, x: F.hardshrink(x), [[-1, -0.5, 0, 0.5, 1]], [[1, 0, 0, 0, 1]]),
    "softshrink": (lambda t, F, x: F.softshrink(x), [[-1, -0.5, 0, 0.5, 1]], [[1, 0, 0, 0, 1]]),
    "leaky_relu": (lambda t, F, x: F.leaky_relu(x, 0.25), [[-1, -0.0, 0, 1]], [[0.25, 0.25, 0.25, 1]]),
    "elu": (lambda t, F, x: F.elu(x, 0.5), [[-INF, 0, 1]], [[0, 0.5, 1]]),
    "celu": (lambda t, F, x: F.celu(x, 2.0), [[-INF, 0, 1]], [[0, 1, 1]]),
    "abs and sign": (lambda t, F, x: x.abs() + x.sign(), [[-1, -0.0, 0, 1]], [[-1, 0, 0, 1]]),
    "remainder": (lambda t, F, x, y: t.remainder(x, y) + t.fmod(x, y), [[4, -1, -1, 2], [2, 2, INF, 2]], [[2, 2, 2, 2], [-4, 1, 1, -2]]),
    "nextafter": (lambda t, F, x, y: t.nextafter(x, y), [[0, 1], [1, 1]], [[1, 0], [0, 0]]),
    "atan2 at 0": (lambda t, F, x, y: t.atan2(x, y), [[0], [0]], [[0], [0]]),
    "norm at 0": (lambda t, F, x: x.norm() + t.linalg.vector_norm(x, 1), [[0, 0]], [[0, 0]]),
    "prod with a zero": (lambda t, F, x: x.prod(), [[2, 0, 3]], [[0, 6, 0]]),
    "prod with two zeros": (lambda t, F, x: x.prod(), [[2, 0, 0]], [[0, 0, 0]]),
    "huber": (lambda t, F, x: F.huber_loss(x, x.detach() * 0, reduction="sum"), [[-2, -1, 0, 1, 2]], [[-1, -1, 0, 1, 1]]),
    "cummax": (lambda t, F, x: t.cummax(x, 0)[0], [[1, 1, 0, 2]], [[1, 2, 0, 1]]),
    "hardswish of the infinite": (lambda t, F, x: F.hardswish(x), [[-INF, -4, 0, 4, INF]], [[0, 0, 0.5, 1, 1]]),
    "hinge": (
        lambda t, F, x: F.hinge_embedding_loss(x, t.tensor([-1, -1, -1, 1]), reduction="sum"), [[0, 1, 2, 1]], [[-1, -1, 0, 1]]
    ),
    "margin ranking": (
        lambda t, F, x, y: F.margin_ranking_loss(x, y, t.tensor([1, 1, 1]), reduction="sum"),
        [[0, 1, 2], [1, 1, 1]], [[-1, -1, 0], [1, 1, 0]],
    ),
    "lp_pool of zeros": (lambda t, F, x: F.lp_pool1d(x.reshape(1, 1, -1), 2.0, 2).sum(), [[0, 0, 3, 4]], [[0, 0, 0.6, 0.8]]),
}


@one_of(6, "case", SHARES)
def test_shares_of_the_gradient(case: str) -> None:
    """Untraced, traced, and as a direction: a jvp along each vector is the sum of its gradient."""
    fn, arrays, expected = SHARES[case]

    def gradients(*xs: Any) -> Any:
        return tg.autograd.grad(fn(tg, tg.nn.functional, *xs).sum(), xs)

    xs = [tg.tensor(a, dtype=tg.float64).requires_grad_() for a in arrays]
    for found in (gradients(*xs), tg.trace(gradients)(*xs)):
        for one, share in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.numpy(), share, atol=1e-12)
    for k, share in enumerate(expected):
        along = tuple(tg.ones_like(x) if i == k else tg.zeros_like(x) for i, x in enumerate(xs))
        slope = tg.func.jvp(lambda *xs: fn(tg, tg.nn.functional, *xs).sum(), tuple(x.detach() for x in xs), along)[1]
        np.testing.assert_allclose(slope.numpy(), sum(share), atol=1e-12)


OTHERS_SINCE = 2, 14           # the version from which on torch has other shares of these: none at a limit, or half by a tensor
OTHERS = re.compile("clamp (to|from) .*|clamp, equal numbers|fmax|fmin|hinge|margin ranking")


@pytest.mark.slow
@pytest.mark.parametrize("case", SHARES)
def test_shares_as_in_torch(case: str) -> None:
    torch = pytest.importorskip("torch")
    if OTHERS.fullmatch(case) and tuple(map(int, torch.__version__.split(".")[:2])) >= OTHERS_SINCE:
        pytest.skip("torch has other shares since 2.14; those here are 2.13's (docs/differences.md)")
    fn, arrays, expected = SHARES[case]
    xs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    for one, share in zip(torch.autograd.grad(fn(torch, torch.nn.functional, *xs).sum(), xs), expected, strict=True):
        np.testing.assert_allclose(one.numpy(), share, atol=1e-12)


def test_a_limit_of_run_time_is_a_number() -> None:
    """A Python float of a traced call: equal elements have the gradient, as by a number that the graph holds."""
    gradient = tg.trace(lambda x, low: tg.autograd.grad(x.clamp(low, 1.0).sum(), x)[0])
    x = tg.tensor([-1.0, 0.0, 0.5, 1.0], requires_grad=True)
    assert gradient(x, -1.0).tolist() == [1, 1, 1, 1]
    assert gradient(x, 0.0).tolist() == [0, 1, 1, 1]
    assert np.isnan(tg.trace(lambda x, low: x.clamp(low))(x, NAN).detach().numpy()).all()


def test_a_weight_at_the_limit_learns(device) -> None:
    """As in torch: a weight that starts at the limit leaves it."""
    w = tg.zeros(1).requires_grad_()
    optimizer = tg.optim.SGD([w], lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        ((w.clamp(min=0) - 1) ** 2).sum().backward()
        optimizer.step()
    assert abs(w.item() - 1) < 1e-3


def test_a_loss_that_is_nan_has_no_gradient_of_zero(device) -> None:
    """NaN must be seen in the gradient of pairs' losses, or training goes on without that element."""
    for loss in (tg.nn.functional.huber_loss, tg.nn.functional.smooth_l1_loss):
        x = tg.tensor([NAN, 1.0]).requires_grad_()
        loss(x, tg.zeros(2)).backward()
        assert np.isnan(x.grad.numpy()).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [tg.float32, tg.float64])
def test_lerp_ends_at_its_end(dtype: Any) -> None:
    """With a weight of 1 (a number, a tensor) the result is the end to the last bit, however far the start is."""
    start, end = (tg.tensor(v, dtype=dtype) for v in ([1e9, -1e30, 3.0], [1.0, 0.1, 1e-9]))
    for weight in (1, 1.0, tg.ones(3, dtype=dtype)):
        assert tg.lerp(start, end, weight).tolist() == start.clone().lerp_(end, weight).tolist() == end.tolist()
    assert tg.lerp(start, end, 0.0).tolist() == start.tolist()


def test_small_things_that_torch_takes() -> None:
    """A Python number times alpha; the median of nothing."""
    for dtype in (tg.float32, tg.int64):
        x = tg.tensor([5, 7], dtype=dtype)
        assert tg.sub(x, 1, alpha=2).tolist() == x.sub(2, alpha=1).tolist() == tg.add(x, 1, alpha=-2).tolist() == [3, 5]
        assert x.clone().sub_(1, alpha=3).tolist() == [2, 4]
    for median in (tg.median, tg.nanmedian):
        assert np.isnan(median(tg.zeros(0)).item())
        with pytest.raises(tg.ArgumentError, match=r"median: .*empty"):
            median(tg.zeros(0, 3), 0)


def test_an_extremum_of_a_traced_forward_is_found_by_an_untraced_backward(monkeypatch):
    """numpy computes the small backward after kernels did the forward: its exp rounds otherwise, and none equals the kernel's minimum."""
    monkeypatch.setattr(tg.config, "eager", True)
    a = tg.tensor(np.random.default_rng(0).normal(size=(65, 70)), dtype=tg.float32, requires_grad=True)
    for reduce in (lambda x: x.amin(1), lambda x: x.amax(1)):
        loss = tg.trace(lambda a, reduce=reduce: reduce((a * 3 - 20).exp().log1p()).sum())(a)
        (gradient,) = tg.autograd.grad(loss, a)
        assert ((gradient.numpy() != 0).sum(1) == 1).all()


def test_an_extremum_in_a_loop_is_found_by_derivatives_of_its_derivative(monkeypatch):
    """They compute its elements for all iterations at once, where numpy's log rounds otherwise than in an iteration."""
    monkeypatch.setattr(tg.config, "eager", True)
    a, costs = (tg.tensor(np.random.default_rng(0).normal(size=s)) for s in (4, (4, 5)))

    def loss(costs):
        def body(carry, _):
            f = -tg.logsumexp(carry[1] - costs, 1)
            return (f, -tg.logsumexp(f[:, None] - costs, 0)), None
        (f, _), _ = tg.scan(body, (tg.zeros_like(a), tg.zeros_like(costs[0])), length=3)
        return (f * a).sum()

    def second(loss):
        x = costs.clone().requires_grad_()
        (slope,) = tg.autograd.grad(loss(x), x, create_graph=True)
        return tg.autograd.grad((slope * costs.sin()).sum(), x)[0].numpy()

    np.testing.assert_allclose(second(tg.trace(loss)), second(loss), rtol=1e-9)


PICKED = {
    "largest": lambda v: v * (v == v.amax(1, keepdim=True)),
    "topk": lambda v: tg.where(v >= tg.topk(v, 3, 1).values[:, -1:], v * v, 0),
    "sorted": lambda v: tg.relu(v - tg.sort(v, 1).values[:, -6:-5]),
    "deviation": lambda v: (v - tg.median(v, 1, True).values).abs(),
    "running": lambda v: tg.where(v == tg.cummax(v, 1).values, v * v, 0),
    "pointed at": lambda v: tg.where(v < v.gather(1, tg.full((65, 1), 3)), v * v, 0),
    "peaks": lambda v: tg.where(v == tg.nn.functional.max_pool2d(v[None], 3, 1, 1)[0], v * v, 0),
    "pooled": lambda v: tg.where(v == tg.nn.functional.max_pool1d(v, 7).repeat_interleave(7, 1), v * v, 0),
    "scattered": lambda v: tg.zeros(7, dtype=v.dtype).scatter_reduce(0, tg.arange(65) % 7, v[:, 0], "amax", include_self=False),
}


@pytest.mark.parametrize("scanned", [False, True])
@one_of(4, "name", PICKED, first=1)
@pytest.mark.parametrize("dtype", [tg.float32, tg.float64])
def test_thresholds_that_are_elements_equal_them_in_an_untraced_backward(monkeypatch, dtype, name, scanned):
    """Kernels did the forward and numpy computes elements again, in other last places: what was picked from them is picked again."""
    monkeypatch.setattr(tg.config, "eager", True)
    pick, a = PICKED[name], tg.tensor(np.random.default_rng(0).normal(size=(65, 70)), dtype=dtype)

    def loss(x):
        return (pick((x * 3 - 20).exp().log1p()) * 1e9).sum()

    def iterations(x):
        return tg.scan(lambda c, _: (c * 1.5, loss(c)), x, length=3)[1].sum()

    def slope(f):
        x = a.clone().requires_grad_()
        return tg.autograd.grad(f(x), x)[0].numpy()

    f = iterations if scanned else loss
    found, wanted = slope(tg.trace(f)), slope(f)
    assert ((found == 0) == (wanted == 0)).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-3 if dtype is tg.float32 else 1e-9)


def test_errors_name_the_function_that_was_called() -> None:
    """clamp is made of clamp_min, and says clamp."""
    small = tg.ones(2, dtype=tg.uint8)
    for name, call in (("clamp", lambda: small.clamp(min=-1)), ("clamp_max", lambda: small.clamp_max(300))):
        with pytest.raises(tg.errors.DTypeError, match=rf"^{name}: .*does not fit uint8"):
            call()


@pytest.mark.parametrize("name", ["nonzero", "argwhere", "where"])
def test_errors_of_a_trace_name_the_function_that_was_called(name: str) -> None:
    """They are no ValueErrors or TypeErrors."""
    with pytest.raises(tg.TraceError, match=f"^{name}: the shape of the result depends on values"):
        tg.trace(getattr(tg, name))(tg.ones(2))


@pytest.mark.parametrize("name", sorted(tg.signal.windows.__all__))
def test_errors_of_a_window_name_it(name: str) -> None:
    """Most are sums of cosines."""
    given = {"general_cosine": {"a": [0.5, 0.5]}}.get(name, {})
    with pytest.raises(tg.errors.ArgumentError, match=f"^{name}: M must not be negative, got -1"):
        getattr(tg.signal.windows, name)(-1, **given)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("dtype", "least", "most"), [("int8", -128, 127), ("uint8", 0, 255), ("int64", -2**63, 2**63 - 1), ("bool", 0, 1)])
def test_a_number_beyond_an_integer_dtype_compares_by_its_value(dtype, least, most, traced):
    """It was an error; torch says so of ==, and wraps the number in <."""
    compare = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
    elements, numbers = (least, 1, most), (-2**63 - 1, least - 1, most + 1, 2**70)

    def run(x):
        return [(f(x, n), f(n, x)) for f in compare for n in numbers], [(tg.isin(x, n), tg.searchsorted(x, n)) for n in numbers]

    x = tg.tensor(elements, dtype=getattr(tg, dtype))
    call = tg.trace(run) if traced else run
    for _ in range(3):              # recalled calls, too
        compared, searched = call(x)
        assert [[y.tolist() for y in pair] for pair in compared] == [
            [[f(v, n) for v in elements], [f(n, v) for v in elements]] for f in compare for n in numbers]
        assert [[y.tolist() for y in pair] for pair in searched] == [[[False] * 3, 3 if n > 0 else 0] for n in numbers]
    assert (x[None] == numbers[-1]).shape == (1, 3)
    assert not (x[:0] == numbers[-1]).tolist()
    assert numbers[-1] not in x
    assert tg.vmap(lambda row: row < numbers[-1])(x.expand(2, 3)).tolist() == [[True] * 3] * 2


def test_alpha_is_of_the_kind_of_the_sum():
    """As in torch: a float that scales integers made a float of them, and a factor of bools an integer."""
    x, y = tg.tensor([1, 2]), tg.tensor([2, 5])
    for fn in (tg.add, tg.sub, tg.rsub):
        with pytest.raises(tg.DTypeError, match=r"alpha is 2.0, but .*int64 and .*int64 have an integer sum; pass an integer"):
            fn(x, y, alpha=2.0)
    with pytest.raises(tg.DTypeError, match=r"alpha is 2j, but .* have a real sum"):
        tg.add(x.float(), 1, alpha=2j)
    assert tg.add(x, y.float(), alpha=2.5).tolist() == [6.0, 14.5]
    assert tg.add(x, 1.5, alpha=2.0).tolist() == [4.0, 5.0]
    found = tg.add(tg.tensor([True, False]), tg.tensor([True, False]), alpha=2)
    assert found.dtype == tg.bool
    assert found.tolist() == [True, False]
