"""Sums keep their digits: every reducing op of the registry, in every schedule, beside float64. Bounds: see docs/robustness.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.ops.test_sizes import OTHERS, on, planned  # noqa: F401 - a fixture
from tracegrad.codegen.mathlib.builtins import meaning
from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops import aten
from tracegrad.ops.primitives.scans import Largest, Smallest
from tracegrad.support.tuning import tuning

NEAR = 2e-7           # of the largest result: sums, whatever they are fused with
ALIKE = 3.5           # times that where all terms are one number, so that all are rounded in one direction (6.3e-7 seen; torch: up to 6e-7)
EACH = 1.2e-7         # times the square root of how many terms: what has one accumulator for each result
PRODUCT = 1e-6        # products (torch's, by MKL: up to 5e-7), however long k is


class Paired(float):
    """A bound of what goes on in float64 or in pairs: that all terms are one number makes no difference."""


class Normalized(float):
    """A bound of numbers that are divided by their standard deviation: what the rounding of the mean makes of them grows with it."""


def _loss(f: Callable[..., Any]) -> Callable[..., Any]:
    """A loss and its gradients."""
    return lambda *xs: tg.value_and_grad(f, argnums=tuple(range(len(xs))))(*xs)


def _recurrent(x: Any, w: Any, p: Any) -> Any:
    return tg.grad(lambda p: (p.cumprod(0) * w).mean())(p)


def _attended(x: Any, w: Any, p: Any) -> Any:
    k, v = x.reshape(1, -1, 8), w.reshape(1, -1, 8)
    return F.scaled_dot_product_attention(k[:, :16], k, v)


def _kept(x: Any, w: Any, p: Any) -> Any:
    """The rows' sums of `_attended`, and the gradient of v by them."""
    k, v = x.reshape(1, 1, -1, 8), w.reshape(1, 1, -1, 8)
    y, sums = aten._scaled_dot_product_flash_attention_for_cpu(k[:, :, :16], k, v)
    return sums, aten.attention_gradients(y * 2, k[:, :, :16], k, v, y, sums, False, None)[2]  # type: ignore[index]


# By op: functions of two vectors and of one whose numbers are near 1, and the bound. Of the first ones nothing else is asked.
CASES: dict[str, list[tuple[Callable[..., Any], float]]] = {
    "sum": [
        (lambda x, w, p: x.sum(), NEAR),
        (lambda x, w, p: x.reshape(-1, 8).sum(0), NEAR),
        (lambda x, w, p: x.reshape(8, -1).sum(1), NEAR),
        (lambda x, w, p: x.reshape(-1, 4, 8).sum((0, 2)), NEAR),
        (lambda x, w, p: x.reshape(8, -1, 4).sum(1), NEAR),
        (lambda x, w, p: (x * w).mean(), NEAR),
        (lambda x, w, p: (x + 1000).mean(), NEAR),
        (lambda x, w, p: x.var(), NEAR),
        (lambda x, w, p: tg.var_mean(x.reshape(-1, 8), 0), NEAR),
        (lambda x, w, p: x.reshape(-1, 4, 8).std((0, 2)), NEAR),
        (lambda x, w, p: x.norm(), NEAR),
        (lambda x, w, p: x.logsumexp(0), NEAR),
        (lambda x, w, p: x.softmax(0), 2 * NEAR),
        (lambda x, w, p: x.reshape(-1, 8).softmax(0), 2 * NEAR),
        (lambda x, w, p: _loss(F.mse_loss)(x, w), NEAR),
        (lambda x, w, p: _loss(F.binary_cross_entropy_with_logits)(x, w), 4 * NEAR),
        (lambda x, w, p: _loss(lambda s: ((s * x - w) ** 2).mean())(w[:1]), NEAR),
        (lambda x, w, p: F.layer_norm(x.reshape(8, -1), (x.numel() // 8,)), Normalized(4 * NEAR)),
        (lambda x, w, p: _loss(lambda g: (F.layer_norm(x.reshape(-1, 32), (32,), g) ** 2).sum())(w[:32]), Normalized(4 * NEAR)),
        (lambda x, w, p: _loss(lambda g: (x.reshape(-1, 32).softmax(1) * g).sum(1).exp().sum())(w[:32]), 2 * NEAR),
    ],
    "prod": [
        (lambda x, w, p: p.prod(), Paired(NEAR)),
        (lambda x, w, p: p.reshape(-1, 8).prod(0), Paired(NEAR)),
        (lambda x, w, p: p.reshape(8, -1, 4).prod(1), Paired(NEAR)),
        (lambda x, w, p: (p[:len(p) // 17 * 17].reshape(-1, 17) * 2 - 1).prod(1), Paired(NEAR)),
        (lambda x, w, p: tg.grad(lambda p: p.prod())(p), NEAR),
    ],
    "cumsum": [
        (lambda x, w, p: x.cumsum(0), Paired(NEAR)),
        (lambda x, w, p: x.reshape(-1, 8).cumsum(0), Paired(NEAR)),
        (lambda x, w, p: x.reshape(8, -1).cumsum(1), Paired(NEAR)),
        (lambda x, w, p: x.reshape(64, -1).cumsum(1), Paired(NEAR)),
        (lambda x, w, p: tg.grad(lambda x: (x.cumsum(0) * w).sum())(x), NEAR),
        (lambda x, w, p: x.logcumsumexp(0), Paired(NEAR)),
        (lambda x, w, p: x.reshape(8, -1).logcumsumexp(1), Paired(NEAR)),
    ],
    "cumprod": [
        (lambda x, w, p: p.cumprod(0), Paired(NEAR)),
        (lambda x, w, p: p.reshape(-1, 8).cumprod(0), Paired(NEAR)),
    ],
    "recurrence": [(_recurrent, 4 * NEAR)],
    "matmul": [
        (lambda x, w, p: x @ w, PRODUCT),
        (lambda x, w, p: x.reshape(-1, 8).T @ w.reshape(-1, 8), PRODUCT),
        (lambda x, w, p: x.reshape(32, -1) @ w.reshape(-1, 32), PRODUCT),
        (lambda x, w, p: x.reshape(64, -1) @ w.reshape(64, -1).T, PRODUCT),
        (lambda x, w, p: x.reshape(2, 16, -1) @ w.reshape(2, -1, 16), PRODUCT),
        (lambda x, w, p: x.reshape(64, -1) @ w[:len(x) // 64], PRODUCT),
        (lambda x, w, p: x.reshape(-1, 64).T @ w[:len(x) // 64], PRODUCT),
    ],
    "conv2d": [(lambda x, w, p: F.conv1d(x.reshape(1, 1, -1), w[:1024].reshape(1, 1, -1), stride=512), EACH)],
    "conv2d_input_grad": [(lambda x, w, p: F.conv_transpose1d(x[:4096].reshape(1, 64, 64), w[:320].reshape(64, 1, 5)), EACH)],
    "conv2d_weight_grad": [
        (lambda x, w, p: tg.grad(lambda k: (F.conv1d(x.reshape(2, 4, -1), k) ** 2).sum())(w[:24].reshape(2, 4, 3)), EACH)],
    "dot_product_attention": [(_attended, EACH)],
    "attention_gradient": [(lambda x, w, p: tg.grad(lambda w: (_attended(x, w, None) ** 2).sum())(w), EACH)],
    "attention_sums": [(lambda x, w, p: _kept(x, w, p)[0], EACH)],
    "attention_gradient_of_sums": [(lambda x, w, p: _kept(x, w, p)[1], EACH)],
    "scatter_add": [
        (lambda x, w, p: tg.zeros(4, dtype=x.dtype, device=x.device).index_add(0, tg.arange(len(x), device=x.device) % 2, x), EACH)],
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "here": {}, "1 core": OTHERS["1 core"], "simd 16": OTHERS["simd 16"], "gpu": OTHERS["gpu"],
    "gpu without local memory": {**OTHERS["gpu"], "local_memory": 0}, "without float64": {"fp64": False},
    "gpu without float64": {**OTHERS["gpu"], "fp64": False},
}
WAYS = [*SCHEDULES, "eager", "interpreter"]
QUICK = ("here", "eager", "interpreter")


def reducing() -> set[str]:
    """The ops that make one element of many by rounding: found by what they are, not by name."""
    families = {"reduction", "scan", "recurrence", "contraction", "conv", "attention"}
    found = {name for name, fn in REGISTRY.items() if fn.family in families and not isinstance(fn, (Largest, Smallest))}
    return found | {name for name, fn in REGISTRY.items() if fn.family == "scatter" and getattr(fn, "joins", False) and not
                    isinstance(fn, (Largest, Smallest))}


def test_every_reducing_op_has_cases() -> None:
    assert reducing() == set(CASES)


@pytest.fixture
def way(request: Any, on: Any, monkeypatch: Any) -> Iterator[str]:  # noqa: F811
    previous = tg.device()
    monkeypatch.setattr(tg.config, "eager", request.param == "eager")
    if request.param == "interpreter":
        tg.set_device("numpy")
    elif request.param != "eager":
        tg.set_device(planned(on, **SCHEDULES[request.param]))
    yield request.param
    tg.set_device(previous)


def flat(found: Any) -> list[Any]:
    if isinstance(found, (tuple, list)):
        return [x for each in found for x in flat(each)]
    return [found.numpy()]


def agree(cases: list[tuple[Callable[..., Any], float]], given: tuple[Any, ...], traced: bool, least: float = 0.0) -> None:
    """All the cases in one program, beside the interpreter's float64."""
    equal, spread = np.ptp(given[0]) == 0, given[0].astype(np.float64).std()
    by_blas = tg.config.eager or tg.device().kind == "numpy"              # has accumulators of its own
    cases = [(f, EACH if by_blas and bound == PRODUCT else bound) for f, bound in cases]
    if equal:                                    # whose results are not what is left of nothing, and not of one accumulator
        cases = [(f, (1 if isinstance(bound, Paired) else 5 if bound == PRODUCT else ALIKE) * bound) for f, bound in cases
                 if bound != EACH and not isinstance(bound, Normalized)]
    elif given[0].mean() > 100:                  # which one accumulator rounds in one direction, too
        cases = [(f, bound) for f, bound in cases if bound != EACH]
    def together(*given: Any) -> Any:
        return [f(*given) for f, _ in cases]

    found = (tg.trace(together) if traced else together)(*map(tg.tensor, given))
    here = tg.device()
    tg.set_device("numpy")
    wanted = together(*[tg.tensor(x.astype(np.float64)) for x in given])
    tg.set_device(here)
    wrong = []
    for number, ((_, bound), a, b) in enumerate(zip(cases, found, wanted, strict=True)):
        limit = max(least, bound * (np.sqrt(given[0].size) if bound == EACH else 1))
        if isinstance(bound, Normalized):
            limit *= max(1, np.abs(given[0]).max() / spread / 4)
        for ours, right in zip(flat(a), flat(b), strict=True):
            none = equal and np.abs(right).max() < 1e-12                 # a variance, say
            off = np.abs(ours - right).max() / (1 if none else np.abs(right).max())
            if not off <= limit:
                wrong.append(f"case {number}: off by {off:.1e} of the largest, {limit:.1e} allowed")
    assert not wrong, wrong


def numbers(n: int, kind: str = "random") -> tuple[Any, Any, Any]:
    """Two vectors of numbers from 0 to 1, and one of numbers near 1. "equal": of one number each; "shifted": the first from 1000."""
    rng = np.random.default_rng(n)
    if kind == "equal":
        return tuple(np.full(n, value, np.float32) for value in (0.1, 0.3, 1 - 1e-5))  # type: ignore[return-value]
    if kind == "shifted":
        x, *others = numbers(n)
        return (x + np.float32(1000), *others)  # type: ignore[return-value]
    return (*(rng.random(n, dtype=np.float32) for _ in range(2)), 1 + (rng.random(n, dtype=np.float32) - np.float32(0.5)) / 1000)


def cases_of(*names: str) -> list[tuple[Callable[..., Any], float]]:
    return [case for name in names for case in CASES[name]]


@pytest.mark.parametrize("way", ["eager", "interpreter"], indirect=True)
@pytest.mark.parametrize("n", [4096, 50_048, pytest.param(10_000_128, marks=pytest.mark.long)])
def test_by_numpy(way: str, n: int) -> None:
    """Every op, without kernels."""
    names = [name for name in CASES if n < 10**6 or name not in ("recurrence", "attention_gradient", "attention_gradient_of_sums",
                                                                          "attention_sums", "dot_product_attention")]
    agree(cases_of(*names), numbers(n), way != "eager", 4 * NEAR * (n == 4096))


@pytest.mark.parametrize("way", ["here"], indirect=True)
def test_kernels(way: str) -> None:
    """A kernel of each kind; all of them are in the long tests."""
    some = [CASES["sum"][k] for k in (1, 5, 7, 14)] + CASES["cumsum"][2:4] + CASES["cumprod"][:1] + CASES["matmul"][1:3]
    agree(some, numbers(50_048), True)


@pytest.mark.long
@pytest.mark.parametrize("way", SCHEDULES, indirect=True)
@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("kind", ["random", "equal", "shifted"])
def test_every_op_in_every_schedule(way: str, op: str, kind: str) -> None:
    # A scatter on a GPU sorts by digits, in tiles of 1024. PoCL 3.0 gets the last one wrong where it is not whole (without a driver it is
    # right).
    n = 98 * 1024 if op == "scatter_add" else 100_096
    agree(CASES[op], numbers(n, kind), True)


LARGE = ["here", "gpu", "without float64", "gpu without float64"]


@pytest.mark.long
@pytest.mark.parametrize("way", LARGE, indirect=True)
@pytest.mark.parametrize("op", CASES)
def test_ten_million(way: str, op: str) -> None:
    agree(CASES[op], numbers(10_000_128 if op != "scatter_add" else 9766 * 1024), True)


@pytest.mark.long
@pytest.mark.parametrize("way", LARGE, indirect=True)
@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("kind", ["equal", "shifted"])
def test_a_million_equal_or_far_from_zero(way: str, op: str, kind: str) -> None:
    agree(CASES[op], numbers(1_000_064 if op != "scatter_add" else 976 * 1024, kind), True)


@pytest.mark.long
@pytest.mark.parametrize("way", LARGE, indirect=True)
@pytest.mark.parametrize("op", ["sum", "prod", "cumsum", "cumprod"])
@pytest.mark.parametrize("kind", ["equal", "shifted"])
def test_ten_million_equal_or_far_from_zero(way: str, op: str, kind: str) -> None:
    """What goes on in levels, in float64 or in pairs, however many there are."""
    agree(CASES[op], numbers(10_000_128, kind), True)


@pytest.mark.long
@pytest.mark.parametrize("way", ["here", "gpu", "eager"], indirect=True)
def test_what_was_found(way: str) -> None:
    """The programs that lost digits: 71 % of a variance, an eighth of a running sum."""
    traced = tg.trace if way != "eager" else lambda f: f
    x = np.random.default_rng(0).random(1 << 24, dtype=np.float32)
    shifted = (x + np.float32(1000)).astype(np.float64)
    assert abs(traced(lambda x: (x + 1000).var())(tg.tensor(x)).item() / shifted.var(ddof=1) - 1) < NEAR
    assert abs(traced(lambda x: (x + 1000).std())(tg.tensor(x)).item() / shifted.std(ddof=1) - 1) < NEAR
    assert abs(traced(lambda x: (x + 1000).mean())(tg.tensor(x)).item() / shifted.mean() - 1) < NEAR
    ones = tg.tensor(np.ones(1 << 25, np.float32))
    assert traced(lambda x: x.cumsum(0)[-1])(ones).item() == 1 << 25
    assert traced(lambda x: x.sum())(ones).item() == 1 << 25
    columns = tg.tensor(x[:7 << 20].reshape(-1, 7))
    wanted = x[:7 << 20].reshape(-1, 7).astype(np.float64).var(0, ddof=1)
    assert np.abs(traced(lambda x: x.var(0))(columns).numpy() / wanted - 1).max() < NEAR


@pytest.mark.parametrize("way", QUICK, indirect=True)
def test_equal_numbers(way: str) -> None:
    """All terms are rounded in one direction."""
    some = [CASES["sum"][k] for k in (0, 1, 2)] + CASES["cumsum"][:1]
    for value in (0.1, 0.7):
        agree(some, (np.full(40_000, value, np.float32),) * 3, way != "eager")


@pytest.mark.parametrize("way", QUICK, indirect=True)
def test_sums_that_loops_carry(way: str) -> None:
    """A carried sum is what the same loop makes of float32 numbers one after the other; what an iteration adds up keeps its digits."""
    x = np.full((500, 3000), 0.1, np.float32)
    x[:, 0] = np.random.default_rng(0).random(500, dtype=np.float32)

    def f(x: Any) -> Any:
        return tg.scan(lambda carry, row: (carry + row.sum(), carry), tg.zeros((), dtype=x.dtype, device=x.device), x)[0]

    rows, wanted = x.astype(np.float64).sum(1).astype(np.float32), x.astype(np.float64).sum()
    one_by_one = np.cumsum(rows)[-1]
    found = (tg.trace(f) if way != "eager" else f)(tg.tensor(x)).item()
    assert abs(found / wanted - 1) <= max(NEAR, 4 * abs(one_by_one / wanted - 1))


@pytest.mark.parametrize("way", QUICK, indirect=True)
def test_variance_far_from_zero(way: str) -> None:
    """The mean is rounded, which the squares of what is left would keep."""
    x = (np.random.default_rng(0).random((1500, 8)) + 10_000).astype(np.float32)
    agree([(lambda x: x.var(0), NEAR), (lambda x: x.std(), NEAR)], (x,), way != "eager")
    for same in (np.full(1000, 0.1, np.float32), np.full((100, 3), 1e10 / 3, np.float32)):
        assert tg.tensor(same).std().item() <= 1e-7 * same.max()
        assert np.isfinite(tg.grad(lambda x: x.std())(tg.tensor(same)).numpy()).all()


@pytest.mark.parametrize("far", [1000, 1_000_000])
@pytest.mark.parametrize("way", QUICK, indirect=True)
def test_normalized_far_from_zero(way: str, far: int) -> None:
    """What the mean is rounded by is no part of a normalized number (torch's layer norm is off by 1e-4, and by 0.1)."""
    x = (np.random.default_rng(0).random((600, 20)) + far).astype(np.float32)
    factor = np.random.default_rng(1).random((600, 20)).astype(np.float32)

    def f(x: Any, factor: Any) -> Any:
        def loss(g: Any) -> Any:
            return (F.layer_norm(x, (20,), g) * factor).sum()

        return (F.layer_norm(x, (20,)), F.batch_norm(x, None, None, training=True), F.group_norm(x.reshape(2, 4, -1), 2),
                F.instance_norm(x.reshape(2, 4, -1)), tg.grad(loss)(tg.ones(20, dtype=x.dtype, device=x.device)))

    agree([(lambda x, w, p: f(x, w), 1e-6)], (x, factor, factor), way != "eager")


@pytest.mark.parametrize("way", QUICK, indirect=True)
def test_many_into_one(way: str) -> None:
    """`index_add` and its kind add one after the other, as torch's do on CPUs: the same bits, so no less exact."""
    x = np.random.default_rng(0).random(5000, dtype=np.float32)

    def f(x: Any, i: Any) -> Any:
        zeros = tg.zeros(3, dtype=x.dtype, device=x.device)
        return zeros.index_add(0, i, x), zeros.scatter_add(0, i, x), zeros.index_put((i,), x, accumulate=True)

    at = np.arange(len(x)) % 3
    wanted = [np.cumsum(x[at == k])[-1] for k in range(3)]
    for found in (tg.trace(f) if way != "eager" else f)(tg.tensor(x), tg.tensor(at)):
        np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("way", QUICK, indirect=True)
def test_infinities(way: str) -> None:
    """What is lost of an infinity is no number: the sum is the infinity."""
    for value, wanted in ((np.inf, np.inf), (-np.inf, -np.inf), (np.nan, np.nan)):
        x = np.ones(20_000, np.float32)
        x[9_999] = value
        f = lambda x: (x.sum(), (x * 2).reshape(-1, 2).sum(0)[1], x.cumsum(0)[-1])
        found = (tg.trace(f) if way != "eager" else f)(tg.tensor(x))
        assert all(np.array_equal(y.item(), wanted, equal_nan=True) for y in found)


def test_pairs_of_infinities_without_a_driver() -> None:
    plus, low = meaning("tg_pair_plus"), meaning("tg_pair_plus_low")
    with np.errstate(invalid="ignore"):
        assert plus(np.float32(np.inf), np.float32(0), np.float32(1)) == np.inf
        assert low(np.float32(np.inf), np.float32(0), np.float32(1)) == 0
    one, tiny = np.float32(1), np.float32(2**-30)
    assert (plus(one, np.float32(0), tiny), low(one, np.float32(0), tiny)) == (1, 2**-30)


@pytest.mark.parametrize("way", ["eager", "interpreter"], indirect=True)
def test_float64(way: str) -> None:
    """The same of float64, with its own epsilon: numpy adds up the first dimensions one after the other."""
    x = np.random.default_rng(0).random((200_000, 2))
    wanted = x.astype(np.longdouble)
    for f in (lambda x: x.sum(0), lambda x: x.reshape(-1, 4, 2).sum((0, 2)), lambda x: x.sum()):
        assert np.abs(f(tg.tensor(x)).numpy() / f(wanted) - 1).max() < 4e-16
    assert abs(tg.tensor(x.T.copy()).T.sum().item() / wanted.sum() - 1) < 4e-16


def test_short_rows_have_no_blocks(on: Any) -> None:  # noqa: F811
    """A sum of few steps is one loop; a long one is the same program with the same bits each time."""
    f = tg.trace(lambda x: (x * x).sum(1))
    f(tg.tensor(numbers(16 * 4 * tuning().sum_steps)[0].reshape(4, -1)))
    assert "block" not in str(f.kernels())
    f, x = tg.trace(lambda x: (x * x).sum(1)), tg.tensor(numbers(400_000)[0].reshape(4, -1))
    assert len({f(x).numpy().tobytes() for _ in range(3)}) == 1
    assert "tg_sum_lost" in str(f.kernels())
