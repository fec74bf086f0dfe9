"""Random distributions: moments and quantiles of many draws, shapes, dtypes, traces that draw anew, errors."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

import tracegrad as tg

N = 20000


def drawn(name: str, *args: Any, dtype: Any = tg.float64) -> Any:
    return getattr(tg.empty(N, dtype=dtype), name)(*args).numpy()


FILLED = {
    "exponential_": ((2.0,), stats.expon(scale=0.5)),
    "cauchy_": ((1.0, 2.0), stats.cauchy(1.0, 2.0)),
    "log_normal_": ((0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "normal_": ((1.0, 3.0), stats.norm(1.0, 3.0)),
    "uniform_": ((-1.0, 3.0), stats.uniform(-1.0, 4.0)),
}


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", FILLED)
def test_filled_tensors_have_the_distribution(name: str) -> None:
    tg.manual_seed(1)
    args, distribution = FILLED[name]
    for dtype in (tg.float32, tg.float64):
        assert stats.kstest(drawn(name, *args, dtype=dtype), distribution.cdf).pvalue > 1e-3
    assert drawn(name, *args, dtype=tg.float16).dtype == np.float16


def test_discrete_ones(on_numpy: Any) -> None:
    tg.manual_seed(2)
    x = drawn("geometric_", 0.3)
    counts = np.bincount(x.astype(int))[1:9]
    np.testing.assert_allclose(counts / N, stats.geom(0.3).pmf(np.arange(1, 9)), atol=0.012)
    assert x.min() == 1
    assert set(np.unique(drawn("geometric_", 1.0))) == {1.0}
    assert drawn("geometric_", 0.5, dtype=tg.int64).dtype == np.int64
    y = drawn("random_", 3, 9, dtype=tg.int32)
    assert set(np.unique(y)) == set(range(3, 9))
    assert set(np.unique(drawn("random_", 4))) == {0, 1, 2, 3}
    assert drawn("random_", dtype=tg.uint8).max() == 255 or drawn("random_", dtype=tg.uint8).max() == 254
    assert set(np.unique(drawn("random_", dtype=tg.bool_))) == {False, True}
    assert drawn("random_", dtype=tg.float32).max() > 2**23
    z = tg.bernoulli(tg.full((N,), 0.3)).numpy()
    assert abs(z.mean() - 0.3) < 0.012
    assert abs(tg.bernoulli(tg.zeros(N, dtype=tg.int64), 0.6).numpy().mean() - 0.6) < 0.012
    w = tg.zeros(2, N).bernoulli_(tg.tensor([[0.1], [0.9]])).numpy()
    np.testing.assert_allclose(w.mean(1), [0.1, 0.9], atol=0.012)


def test_exponential_is_never_zero(on_numpy: Any) -> None:
    assert tg.empty(100, 10007).exponential_().numpy().min() > 0


def test_normal(on_numpy: Any) -> None:
    tg.manual_seed(3)
    mean = tg.tensor([[0.0], [10.0]])
    x = tg.normal(mean, tg.full((N,), 2.0)).numpy()
    np.testing.assert_allclose(x.mean(1), [0.0, 10.0], atol=0.06)
    np.testing.assert_allclose(x.std(1), 2.0, atol=0.05)
    assert tg.normal(1.0, tg.ones(3, dtype=tg.float64)).dtype == tg.float64
    assert tg.normal(1, 2, (2, 3)).shape == (2, 3)
    assert tg.normal(0.0, 1.0, 4, requires_grad=True).requires_grad


def test_multinomial(on_numpy: Any) -> None:
    tg.manual_seed(4)
    p = np.array([0.1, 0.0, 0.5, 0.4, 0.0], np.float32)
    x = tg.multinomial(tg.tensor(p * 7), N, replacement=True)
    assert x.dtype == tg.int64
    np.testing.assert_allclose(np.bincount(x.numpy(), minlength=5) / N, p, atol=0.012)
    rows = tg.multinomial(tg.tensor(np.stack([p] * N)), 2).numpy()
    assert rows.shape == (N, 2)
    assert (rows[:, 0] != rows[:, 1]).all()
    np.testing.assert_allclose(np.bincount(rows[:, 0], minlength=5) / N, p, atol=0.012)
    second = sum(p[i] * p[2] / (1 - p[i]) for i in (0, 3))  # the chance that 2 comes second
    assert abs((rows[:, 1] == 2).mean() - second) < 0.012


def test_traces_draw_anew_and_seeds_repeat(device: Any) -> None:
    @tg.trace
    def f(p: Any) -> Any:
        return (
            tg.multinomial(p, 7, replacement=True),
            tg.multinomial(p, 3),
            tg.empty(13).exponential_(),
            tg.empty(13).cauchy_(),
            tg.empty(13).geometric_(0.2),
            tg.normal(p, 1.0),
            tg.empty(13).log_normal_(),
            tg.empty(13, dtype=tg.int64).random_(1000),
            tg.bernoulli(p),
        )

    p = tg.rand(33) + 0.1
    tg.manual_seed(5)
    first, second = [[r.numpy() for r in f(p)] for _ in range(2)]
    tg.manual_seed(5)
    again = [r.numpy() for r in f(p)]
    assert any((a != b).any() for a, b in zip(first, second, strict=True))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda: tg.normal(0.0, -1.0, (2,)), tg.ArgumentError, "normal: std must not be negative"),
        (lambda: tg.normal(0.0, 1.0), tg.ArgumentError, "normal: two numbers need a size"),
        (lambda: tg.normal(tg.ones(2), 1.0, (2,)), tg.ArgumentError, "normal: a size is for two numbers"),
        (lambda: tg.normal(tg.ones(2), tg.ones(3)), tg.ShapeError, "normal"),
        (lambda: tg.normal(tg.ones(2).long(), 1.0), tg.DTypeError, "normal: mean and std"),
        (lambda: tg.multinomial(tg.ones(3), 4), tg.ArgumentError, "multinomial: num_samples must be from 1 to 3"),
        (lambda: tg.multinomial(tg.ones(3).long(), 1), tg.DTypeError, "multinomial: takes a vector"),
        (lambda: tg.multinomial(tg.tensor([1.0, -1.0]), 1).numpy(), tg.IndexOutOfRange, "multinomial"),
        (lambda: tg.multinomial(tg.tensor([1.0, 0.0]), 2).numpy(), tg.IndexOutOfRange, "multinomial"),
        (lambda: tg.bernoulli(tg.ones(2).long()), tg.DTypeError, "bernoulli: takes probabilities"),
        (lambda: tg.ones(2).bernoulli_(1.5), tg.ArgumentError, "bernoulli_: p must be from 0 to 1"),
        (lambda: tg.ones(2).exponential_(0.0), tg.ArgumentError, "exponential_: lambd must be positive"),
        (lambda: tg.ones(2).long().cauchy_(), tg.DTypeError, "cauchy_: makes floats, not int64"),
        (lambda: tg.ones(2).geometric_(0.0), tg.ArgumentError, "geometric_: p must be above 0"),
        (lambda: tg.ones(2).random_(5, 5), tg.ArgumentError, "random_: low must be below high"),
    ],
)
def test_errors(fn: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fn()
