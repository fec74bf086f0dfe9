"""Order statistics, moments, differences, bins, and results whose shape depends on values: against numpy and scipy."""

from typing import Any

import numpy as np
import pytest
from scipy import integrate, special, stats

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.names import Case, checks

inf, nan = np.inf, np.nan
RNG = np.random.default_rng(6)


def u(*shape: int) -> Any:
    return RNG.uniform(-2, 2, shape)


def i(low: int, high: int, *shape: int, dtype: str = "int64") -> Any:
    return RNG.integers(low, high, shape).astype(dtype)


def holes(*shape: int) -> Any:
    x = u(*shape)
    x[RNG.random(shape) < 0.2] = nan
    return x


def at(x: Any, places: Any, d: int) -> Any:
    return np.take_along_axis(x, places, d)


def running(x: Any, d: int, better: Any) -> Any:
    """Values and places of the best so far; of equals the last; NaN stays."""
    x = np.moveaxis(x, d, -1)
    values, places = np.empty_like(x), np.empty(x.shape, np.int64)
    for row in np.ndindex(x.shape[:-1]):
        best, place = x[row][0], 0
        for k, v in enumerate(x[row]):
            if np.isnan(v) or (not np.isnan(best) and better(v, best)):
                best, place = v, k
            values[row][k], places[row][k] = best, place
    return np.moveaxis(values, -1, d), np.moveaxis(places, -1, d)


def modes(x: Any) -> Any:
    out = []
    for row in x:
        values, counts = np.unique(row, return_counts=True)
        best = values[counts.argmax()]
        out.append((best, np.flatnonzero(row == best)[-1]))
    return np.array([b for b, _ in out], x.dtype), np.array([k for _, k in out], np.int64)


def quantiles(x: Any, method: str, ignore: bool = False) -> Any:
    fn = np.nanquantile if ignore else np.quantile
    q = np.array([0.0, 0.1, 0.5, 0.77, 1.0])
    return fn(x, q, axis=1, method=method), fn(x, 0.3, method=method), fn(x, q, axis=0, keepdims=True, method=method)


def our_quantiles(t: Any, x: Any, q: Any, method: str, ignore: bool = False) -> Any:
    fn = t.nanquantile if ignore else t.quantile
    return fn(x, q, 1, interpolation=method), fn(x, 0.3, interpolation=method), fn(x, q, dim=0, keepdim=True, interpolation=method)


Q = np.array([0.0, 0.1, 0.5, 0.77, 1.0])
X33 = u(3, 33)
EDGES = np.sort(u(65))
CASES = {
    "aminmax": Case(
        lambda t, F, x: (*t.aminmax(x), *t.aminmax(x, dim=1, keepdim=True)),
        X33,
        gradient=1,
        expected=lambda x: (x.min(), x.max(), x.min(1, keepdims=True), x.max(1, keepdims=True)),
    ),
    "cummax": Case(lambda t, F, x: t.cummax(x, 1), u(2, 33), expected=lambda x: running(x, 1, np.greater_equal)),
    "cummin": Case(lambda t, F, x: t.cummin(x, 0), u(13, 2), expected=lambda x: running(x, 0, np.less_equal)),
    "cummax of equals": Case(
        lambda t, F, x: (*t.cummax(x, 0), *t.cummin(x, 0)),
        i(0, 4, 65, 2),
        expected=lambda x: (*running(x, 0, np.greater_equal), *running(x, 0, np.less_equal)),
    ),
    "cummax with NaN": Case(
        lambda t, F, x: (*t.cummax(x, 0), *t.cummin(x, 0)),
        holes(16, 2),
        gradient=0,
        expected=lambda x: (*running(x, 0, np.greater_equal), *running(x, 0, np.less_equal)),
    ),
    "logcumsumexp": Case(lambda t, F, x: t.logcumsumexp(x, 1), u(2, 13) * 9, expected=lambda x: np.logaddexp.accumulate(x, 1)),
    "logcumsumexp of infinities": Case(
        lambda t, F, x: t.logcumsumexp(x, 0), [-inf, -inf, 1.0, 2.0, inf, 3.0], gradient=0, expected=np.logaddexp.accumulate
    ),
    "kthvalue": Case(
        lambda t, F, x: (*t.kthvalue(x, 5, 1), t.kthvalue(x, 2, 0, keepdim=True)[0]),
        X33,
        expected=lambda x: (np.sort(x, 1)[:, 4], np.argsort(x, 1)[:, 4], np.sort(x, 0)[1:2]),
    ),
    "mode": Case(
        lambda t, F, x: (t.mode(x, 1)[0], t.mode(x, 1, keepdim=True)[0], *t.mode(x[:, :9])),
        i(0, 9, 5, 65),
        expected=lambda x: (modes(x)[0], modes(x)[0][:, None], *modes(x[:, :9])),
    ),  # (torch's places in long rows are arbitrary)
    "mode: gradient": Case(lambda t, F, x: t.mode(x.round(decimals=1) * 0 + x, 1)[0], u(3, 7), torch=False),
    "nanmedian": Case(
        lambda t, F, x: (t.nanmedian(x), t.nanmedian(x, 1)[0]),
        holes(3, 31),
        gradient=0,
        expected=lambda x: (
            np.sort(x[x == x])[(np.sum(x == x) - 1) // 2],
            np.array([np.sort(r[r == r])[(np.sum(r == r) - 1) // 2] for r in x]),
        ),
    ),
    "nanmedian of nothing": Case(
        lambda t, F, x: t.nanmedian(x, 0)[0], np.array([[nan, 1.0], [nan, 2.0]]), gradient=0, expected=lambda x: np.array([nan, 1.0])
    ),
    "msort": Case(lambda t, F, x: t.msort(x), u(13, 3), expected=lambda x: np.sort(x, 0)),
    **{
        f"quantile, {m}": Case(
            lambda t, F, x, q, m=m: our_quantiles(t, x, q, m), X33, Q, expected=lambda x, q, m=m: quantiles(x, m), gradient=0
        )
        for m in ("linear", "lower", "higher", "midpoint", "nearest")
    },
    "nanquantile": Case(
        lambda t, F, x, q: our_quantiles(t, x, q, "linear", True),
        holes(5, 33),
        Q,
        expected=lambda x, q: quantiles(x, "linear", True),
        gradient=0,
    ),
    "quantile with NaN": Case(
        lambda t, F, x, q: t.quantile(x, q, 1), holes(5, 7), Q, expected=lambda x, q: np.quantile(x, q, axis=1), gradient=0
    ),
    "quantile: gradient": Case(lambda t, F, x: (t.quantile(x, 0.3, 1), t.quantile(x, 0.71), t.nanquantile(x, 0.4, 0)), u(4, 7)),
    "searchsorted": Case(
        lambda t, F, s, v: (t.searchsorted(s, v), t.searchsorted(s, v, right=True), t.bucketize(v, s, out_int32=True)),
        EDGES,
        np.concatenate([u(3, 100), EDGES[None, :100].repeat(3, 0)], 1),
        gradient=0,
        expected=lambda s, v: (np.searchsorted(s, v), np.searchsorted(s, v, "right"), np.searchsorted(s, v).astype(np.int32)),
    ),
    "searchsorted, few": Case(
        lambda t, F, s, v: (t.searchsorted(s, v), t.searchsorted(s, v, side="right"), t.bucketize(v, s, right=True)),
        [-1.0, 0.0, 0.0, 1.0],
        [[-2.0, -1.0, 0.0], [0.5, 3.0, nan]],
        gradient=0,
        expected=lambda s, v: (np.searchsorted(s, v), np.searchsorted(s, v, "right"), np.searchsorted(s, v, "right")),
    ),
    "searchsorted in rows": Case(
        lambda t, F, s, v: (t.searchsorted(s, v), t.searchsorted(s[:, :7], v)),
        np.sort(u(3, 100), 1),
        u(3, 13),
        gradient=0,
        expected=lambda s, v: (
            np.stack([np.searchsorted(*p) for p in zip(s, v, strict=True)]),
            np.stack([np.searchsorted(*p) for p in zip(s[:, :7], v, strict=True)]),
        ),
    ),
    "searchsorted, unsorted": Case(
        lambda t, F, s, o, v: t.searchsorted(s, v, sorter=o),
        EDGES[::-1].copy(),
        np.arange(64, -1, -1),
        u(33),
        gradient=0,
        expected=lambda s, o, v: np.searchsorted(s, v, sorter=o),
    ),
    "histc": Case(
        lambda t, F, x: (t.histc(x, 13), t.histc(x, bins=7, min=-1, max=1)),
        u(257),
        gradient=0,
        expected=lambda x: (np.histogram(x, 13)[0].astype(float), np.histogram(x, 7, (-1, 1))[0].astype(float)),
    ),
    "histc of one value": Case(lambda t, F, x: t.histc(x, 4), np.ones(5), gradient=0, expected=lambda x: np.array([0.0, 0, 5, 0])),
    "histogram": Case(
        lambda t, F, x, w: (*t.histogram(x, 13), *t.histogram(x, 7, range=(-1, 1), weight=w, density=True)),
        u(257),
        u(257) + 3,
        gradient=0,
        expected=lambda x, w: (
            *map(np.float64, np.histogram(x, 13)[:1]),
            np.histogram(x, 13)[1],
            *np.histogram(x, 7, (-1, 1), weights=w, density=True),
        ),
    ),
    "histogram with edges": Case(
        lambda t, F, x, e: t.histogram(x, e),
        u(257),
        [-1.0, -0.5, 0.7, 1.1],
        gradient=0,
        expected=lambda x, e: (np.histogram(x, e)[0].astype(float), e),
    ),
    "bincount": Case(
        lambda t, F, x, w: (t.bincount(x), t.bincount(x, minlength=20), t.bincount(x, w)),
        i(0, 9, 100),
        u(100),
        traced=False,
        gradient=0,
        expected=lambda x, w: (np.bincount(x), np.bincount(x, minlength=20), np.bincount(x, w)),
        singles=False,
    ),
    "nonzero": Case(
        lambda t, F, x: (t.nonzero(x), *t.nonzero(x, as_tuple=True), t.argwhere(x), x[0, 0].nonzero()),
        i(0, 2, 3, 7),
        traced=False,
        expected=lambda x: (np.argwhere(x), *np.nonzero(x), np.argwhere(x), np.zeros((int(x[0, 0] != 0), 0), np.int64)),
    ),
    "nonzero_static": Case(
        lambda t, F, x: (t.nonzero_static(x, size=30, fill_value=-7), t.nonzero_static(x, size=3)),
        i(0, 2, 3, 7),
        expected=lambda x: (np.concatenate([np.argwhere(x), np.full((30 - np.count_nonzero(x), 2), -7)]), np.argwhere(x)[:3]),
    ),
    "unique": Case(
        lambda t, F, x: (t.unique(x), *t.unique(x, return_inverse=True, return_counts=True)),
        i(0, 9, 3, 33),
        traced=False,
        expected=lambda x: (
            np.unique(x),
            *(p.reshape(q) for p, q in zip(np.unique(x, return_inverse=True, return_counts=True), ((-1,), (3, 33), (-1,)), strict=True)),
        ),
    ),
    "unique slices": Case(
        lambda t, F, x: t.unique(x, dim=1, return_counts=True),
        i(0, 2, 2, 33),
        traced=False,
        expected=lambda x: np.unique(x, axis=1, return_counts=True),
    ),
    "unique_consecutive": Case(
        lambda t, F, x: (*t.unique_consecutive(x, return_inverse=True, return_counts=True), t.unique_consecutive(x, dim=0)),
        [[1, 1, 2], [1, 1, 2], [2, 2, 2], [3, 1, 1]],
        traced=False,
        expected=lambda x: ([1, 2, 1, 2, 3, 1], [[0, 0, 1], [2, 2, 3], [3, 3, 3], [4, 5, 5]], [2, 1, 2, 4, 1, 2], x[[0, 2, 3]]),
    ),
    "std_mean": Case(
        lambda t, F, x: (*t.std_mean(x, 1), *t.std_mean(x, (0, 1), correction=0)),
        X33,
        expected=lambda x: (x.std(1, ddof=1), x.mean(1), x.std(), x.mean()),
    ),
    "nanmean": Case(
        lambda t, F, x: (t.nanmean(x), t.nanmean(x, 1, True)),
        holes(3, 33),
        gradient=0,
        expected=lambda x: (np.nanmean(x), np.nanmean(x, 1, keepdims=True)),
    ),
    "nanmean: gradient": Case(lambda t, F, x: t.nanmean(x * x, 1), u(3, 13)),
    "cov": Case(
        lambda t, F, x: (t.cov(x), t.cov(x, correction=0), t.cov(x[0])),
        X33,
        expected=lambda x: (np.cov(x), np.cov(x, ddof=0), np.cov(x[0])),
    ),
    "cov with weights": Case(
        lambda t, F, x, f, a: (t.cov(x, fweights=f, aweights=a), t.cov(x, fweights=f), t.cov(x, aweights=a)),
        u(3, 13),
        i(1, 5, 13),
        u(13) + 3,
        gradient=1,
        expected=lambda x, f, a: (np.cov(x, fweights=f, aweights=a), np.cov(x, fweights=f), np.cov(x, aweights=a)),
    ),
    "corrcoef": Case(lambda t, F, x: t.corrcoef(x), u(3, 13), expected=np.corrcoef, differences=False),
    "diff": Case(
        lambda t, F, x, y: (t.diff(x), t.diff(x, 2, 0), t.diff(x, dim=1, prepend=y, append=y), t.diff(x, 40)),
        X33,
        u(3, 2),
        expected=lambda x, y: (np.diff(x), np.diff(x, 2, 0), np.diff(x, axis=1, prepend=y, append=y), np.zeros((3, 0))),
    ),
    "diff of bools": Case(lambda t, F, x: t.diff(x), i(0, 2, 13, dtype="bool"), expected=np.diff),
    "trapezoid": Case(
        lambda t, F, y, x: (t.trapezoid(y), t.trapz(y, dx=0.5), t.trapezoid(y, x), t.trapezoid(y, x[:3], dim=0)),
        X33,
        np.sort(u(33)),
        expected=lambda y, x: (np.trapezoid(y), np.trapezoid(y, dx=0.5), np.trapezoid(y, x), np.trapezoid(y, x[:3], axis=0)),
    ),
    "cumulative_trapezoid": Case(
        lambda t, F, y, x: (t.cumulative_trapezoid(y), t.cumulative_trapezoid(y, x), t.cumulative_trapezoid(y, dx=2.0, dim=0)),
        u(3, 13),
        u(3, 13),
        expected=lambda y, x: (
            integrate.cumulative_trapezoid(y),
            integrate.cumulative_trapezoid(y, x),
            integrate.cumulative_trapezoid(y, dx=2.0, axis=0),
        ),
    ),
    "gradient": Case(
        lambda t, F, x: (*t.gradient(x), *t.gradient(x, spacing=0.5, dim=1, edge_order=2), *t.gradient(x, spacing=[2.0, 0.5])),
        X33,
        expected=lambda x: (*np.gradient(x), np.gradient(x, 0.5, axis=1, edge_order=2), *np.gradient(x, 2.0, 0.5)),
    ),
    "gradient at places": Case(
        lambda t, F, x, p: (*t.gradient(x, spacing=(p,), dim=1), *t.gradient(x, spacing=(p,), dim=1, edge_order=2)),
        u(3, 13),
        np.cumsum(u(13) + 2.5),
        gradient=2,
        torch_gradient=False,
        expected=lambda x, p: (np.gradient(x, p, axis=1), np.gradient(x, p, axis=1, edge_order=2)),
    ),
    "dist": Case(
        lambda t, F, x, y: (t.dist(x, y), t.dist(x, y[0], 1), t.dist(x, y, inf)),
        X33,
        u(3, 33),
        gradient=1,
        expected=lambda x, y: (np.linalg.norm(x - y), np.abs(x - y[0]).sum(), np.abs(x - y).max()),
    ),
    "renorm": Case(lambda t, F, x: (t.renorm(x, 2, 0, 3.0), t.renorm(x, 1, 1, 4.0)), u(3, 13)),
}

test_values, test_gradients, test_as_in_torch = checks(CASES)


def test_scipy_agrees_about_modes(on_numpy: Any) -> None:
    x = i(0, 5, 9, 100)
    np.testing.assert_array_equal(tg.mode(tg.tensor(x), 1).values.numpy(), stats.mode(x, axis=1).mode)


def test_logcumsumexp_does_not_overflow(on_numpy: Any) -> None:
    x = np.array([1000.0, 1001.0, -1000.0])
    np.testing.assert_allclose(tg.logcumsumexp(tg.tensor(x), 0).numpy(), [special.logsumexp(x[:k]) for k in (1, 2, 3)], rtol=1e-14)


@one_of(4, "n", [5, 12, 65, 257], first=1)
def test_nans_at_the_end_of_a_sorted_sequence_are_behind_all(device: Any, n: int) -> None:
    """As for numpy; a value that is NaN goes to the end, as for torch. Few boundaries and many."""
    x = u(n, 1).ravel().astype(np.float32)
    x[:4] = np.nan, -np.inf, np.inf, np.nan
    s, v = np.sort(x), np.concatenate([x[1:], [-9.0, 0.0, 9.0, np.nan]]).astype(np.float32)
    for right in (False, True):
        wanted = np.where(np.isnan(v), n, np.searchsorted(s, v, "right" if right else "left"))
        np.testing.assert_array_equal(tg.searchsorted(tg.tensor(x).sort()[0], tg.tensor(v), right=right).numpy(), wanted)
        np.testing.assert_array_equal(tg.trace(tg.bucketize)(tg.tensor(v), tg.tensor(s), right=right).numpy(), wanted)
        rows = tg.tensor(np.stack([s, s])), tg.tensor(np.stack([v, v[::-1]]))
        np.testing.assert_array_equal(tg.searchsorted(*rows, right=right).numpy(), [wanted, wanted[::-1]])


@one_of(2, "n", [65, 1000, 4095, 4097, 9000])
def test_running_extremes_of_long_rows(device: Any, n: int) -> None:
    """Longer than what one core scans, with equals and NaNs, in the middle of others."""
    x, k = np.stack([holes(n), u(n), i(-3, 3, n).astype(float)]), i(0, 9, n)
    found = tg.trace(lambda x, k: (*x.cummax(1), *(x * 2).T.cummin(0), *k.cummin(0), *(k > 3).cummax(0)))(tg.tensor(x), tg.tensor(k))
    wanted = [(x, 1, np.greater_equal), (x.T * 2, 0, np.less_equal), (k, 0, np.less_equal), (k > 3, 0, np.greater_equal)]
    for got, expected in zip(found, (r for args in wanted for r in running(*args)), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected)


def test_the_device_agrees(device: Any) -> None:
    """The composed ones that gather and scan, in one program of whatever device there is."""
    x = u(5, 129).astype(np.float32)

    @tg.trace
    def all_of(x: Any) -> Any:
        return (
            *tg.cummax(x, 1),
            tg.logcumsumexp(x, 0),
            tg.quantile(x, 0.3, 1),
            tg.searchsorted(x.msort()[:, 0].contiguous(), x[0]),
            tg.histc(x, 13),
            tg.mode((x * 2).round(), 1)[0],
        )

    found = [r.numpy() for r in all_of(tg.tensor(x))]
    wanted = [
        *running(x, 1, np.greater_equal),
        np.logaddexp.accumulate(x, 0),
        np.quantile(x, 0.3, axis=1),
        np.searchsorted(np.sort(x, 0)[:, 0], x[0]),
        np.histogram(x, 13)[0],
        modes(np.round(x * 2))[0],
    ]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x: tg.kthvalue(x, 0), tg.ArgumentError, "kthvalue: k must be from 1 to 3"),
        (lambda x: tg.logcumsumexp(x.long(), 0), tg.DTypeError, "logcumsumexp: takes a float tensor, got int64"),
        (lambda x: tg.quantile(x, 1.5), tg.ArgumentError, "quantile: q must be from 0 to 1, got 1.5"),
        (lambda x: tg.quantile(x, tg.tensor([0.5, 1.5])).numpy(), tg.IndexOutOfRange, "quantile"),
        (lambda x: tg.quantile(x, 0.5, interpolation="cubic"), tg.ArgumentError, "quantile: interpolation"),
        (lambda x: tg.quantile(x, tg.tensor([0.5], dtype=tg.float64)), tg.DTypeError, "quantile: q must be"),
        (lambda x: tg.searchsorted(x, x, right=True, side="left"), tg.ArgumentError, "searchsorted: side"),
        (lambda x: tg.searchsorted(tg.ones(2, 3), x), tg.ShapeError, "searchsorted: sorted_sequence"),
        (lambda x: tg.histc(x, 0), tg.ArgumentError, "histc: bins must be positive"),
        (lambda x: tg.histc(x, 3, 2.0, 1.0), tg.ArgumentError, "histc: the range"),
        (tg.bincount, tg.DTypeError, "bincount: takes a vector of integers, got float32"),
        (lambda x: tg.bincount(-x.long()), tg.IndexOutOfRange, "bincount: the integers must not be negative, got -1"),
        (lambda x: tg.trace(tg.bincount)(x.long()), tg.TraceError, "bincount: .*index_add"),
        (tg.trace(tg.nonzero), tg.TraceError, "nonzero: .* tg.where"),
        (tg.trace(tg.unique), tg.TraceError, "unique: .* sort"),
        (tg.trace(tg.unique_consecutive), tg.TraceError, "unique_consecutive: .* neighbours"),
        (lambda x: tg.cov(tg.ones(2, 2, 2)), tg.ShapeError, "cov: takes at most 2 dimensions"),
        (lambda x: tg.cov(x, fweights=x), tg.ShapeError, "cov: fweights"),
        (lambda x: tg.diff(x, -1), tg.ArgumentError, "diff: n must not be negative"),
        (lambda x: tg.trapezoid(x, tg.ones(4)), tg.ShapeError, "trapezoid: x"),
        (lambda x: tg.gradient(x, edge_order=3), tg.ArgumentError, "gradient: edge_order"),
        (lambda x: tg.gradient(tg.ones(1)), tg.ShapeError, "gradient: dimension 0"),
        (lambda x: tg.renorm(x, 2, 0, 1.0), tg.ShapeError, "renorm: takes at least 2 dimensions"),
        (lambda x: tg.nanmean(x.long()), tg.DTypeError, "nanmean: takes a float tensor"),
    ],
)
def test_errors(fn: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fn(tg.ones(3))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes_are_gathered_only_for_a_gradient(name: str) -> None:
    x = tg.tensor([[1.0, 3.0, 3.0, -2.0, np.nan, 5.0], [-0.0, 0.0, -0.0, -np.inf, np.inf, 0.0]])
    step = tg.trace(lambda x: getattr(tg, name)(x, 1))
    values, indices = step(x)
    np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(np.asarray(x), np.asarray(indices), 1))
    assert "gather" not in {n.fn.family for n in step.graph}
    again = x.clone().requires_grad_()
    step(again).values[:, :4].sum().backward()
    assert np.asarray(again.grad).sum() == 8
    assert set(np.asarray(again.grad).ravel()) <= {0, 1, 2, 3}


def test_bincount_has_the_dtypes_of_torchs():
    integers, none = tg.tensor([1, 1]), tg.tensor([], dtype=tg.int64)
    for dtype, wanted in ((tg.float16, tg.float64), (tg.float32, tg.float32), (tg.float64, tg.float64), (tg.int32, tg.float64)):
        assert tg.bincount(integers, tg.ones(2, dtype=dtype)).dtype == wanted
        empty = tg.bincount(none, tg.ones(0, dtype=dtype), minlength=2)
        assert (empty.dtype, empty.tolist()) == (tg.int64, [0, 0])


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_lies_at_an_edge_is_in_the_bin_that_begins_there(dtype: str) -> None:
    for low, high, n in ((0.0, 3.0, 5), (0.0, 0.3, 3), (0.0, 10.0, 100)):
        x = np.linspace(low, high, n + 1).round(2).astype(dtype)
        hist, edges = tg.histogram(tg.tensor(x), n, range=(low, high))
        assert hist.tolist() == np.histogram(x, edges.numpy())[0].tolist()          # by the edges that it returns
        cells = tg.histogramdd(tg.tensor(np.stack([x, x], -1)), n, range=(low, high) * 2)[0]
        assert cells.diagonal().tolist() == hist.tolist()
        begin, end, bins = np.array([low, high, n], dtype)
        counted = ((x - begin) * bins / (end - begin)).astype(int).clip(max=n - 1)
        assert tg.histc(tg.tensor(x), n, low, high).tolist() == np.bincount(counted, minlength=n).tolist()      # as torch's
