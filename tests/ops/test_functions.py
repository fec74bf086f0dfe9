"""The composed functions against numpy and scipy, and torch's meanings written down as expected values."""

import pickle
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import signal, special

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.nodes import check_gradient, evaluate, gradients
from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError, TraceError
from tracegrad.graph.ir import Aval
from tracegrad.graph.operators import FUNCTIONAL as F
from tracegrad.graph.operators import PUBLIC as P
from tracegrad.graph.primitive import const, placeholder
from tracegrad.ops.arrays import random_bits, subscripts
from tracegrad.support import dtypes
from tracegrad.support.philox import philox_numpy

inf, nan = np.inf, np.nan
RNG = np.random.default_rng(11)


def r(*shape: int) -> Any:
    return RNG.uniform(-2, 2, shape)


def node(*shape: int, dtype: Any = np.float64) -> Any:
    return placeholder(Aval(shape, np.dtype(dtype)))


def check(ours: Any, expected: Any, *arrays: Any, tolerance: float = 1e-12) -> None:
    """ours(*nodes) computes what expected(*arrays) is, shapes and dtypes included; results may be tuples."""
    got, wanted = evaluate(ours, *arrays), expected(*arrays)
    if not isinstance(got, list):
        got, wanted = [got], [wanted]
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        w = np.asarray(w)
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


X = r(2, 3, 4)

# ----------------------------------------------------------------------------------------------------------------- shaping

SHAPING = {
    "reshape": (lambda x: x.reshape(4, -1), lambda x: x.reshape(4, -1)),
    "reshape to a tuple": (lambda x: x.reshape((3, 8)), lambda x: x.reshape(3, 8)),
    "view": (lambda x: x.view(6, 4), lambda x: x.reshape(6, 4)),
    "flatten": (lambda x: x.flatten(1), lambda x: x.reshape(2, 12)),
    "unflatten": (lambda x: x.unflatten(2, (2, -1)), lambda x: x.reshape(2, 3, 2, 2)),
    "unsqueeze": (lambda x: x.unsqueeze(-2), lambda x: x[:, :, None]),
    "squeeze leaves other sizes": (lambda x: x.unsqueeze(1).squeeze((1, 2)), lambda x: x),
    "permute": (lambda x: x.permute(2, 0, -2), lambda x: x.transpose(2, 0, 1)),
    "transpose": (lambda x: x.transpose(0, -1), lambda x: x.swapaxes(0, 2)),
    "movedim": (lambda x: x.movedim((0, 2), (1, 0)), lambda x: np.moveaxis(x, (0, 2), (1, 0))),
    "T": (lambda x: x.T, lambda x: x.T),
    "mT": (lambda x: x.mT, lambda x: x.swapaxes(1, 2)),
    "expand": (lambda x: x.unsqueeze(0).expand(5, -1, 3, 4), lambda x: np.broadcast_to(x, (5, 2, 3, 4))),
    "repeat": (lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3))),
    "repeat with new dimensions": (lambda x: x.repeat(3, 1, 1, 2), lambda x: np.tile(x, (3, 1, 1, 2))),
    "tile": (lambda x: x.tile(2, 2), lambda x: np.tile(x, (2, 2))),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), lambda x: np.repeat(x, 3, 1)),
    "repeat_interleave flat": (lambda x: x.repeat_interleave(2), lambda x: np.repeat(x, 2)),
    "split": (lambda x: x.split(2, 1), lambda x: [x[:, :2], x[:, 2:]]),
    "split by sizes": (lambda x: x.split([1, 3], -1), lambda x: [x[..., :1], x[..., 1:]]),
    "chunk": (lambda x: x.chunk(2, 1), lambda x: [x[:, :2], x[:, 2:]]),
    "unbind": (lambda x: x.unbind(1), lambda x: [x[:, 0], x[:, 1], x[:, 2]]),
    "narrow": (lambda x: x.narrow(1, -2, 2), lambda x: x[:, 1:]),
    "select": (lambda x: x.select(2, -1), lambda x: x[..., -1]),
    "flip": (lambda x: x.flip(0, 2), lambda x: np.flip(x, (0, 2))),
    "roll": (lambda x: x.roll((1, -5), (0, 2)), lambda x: np.roll(x, (1, -5), (0, 2))),
    "roll flat": (lambda x: x.roll(5), lambda x: np.roll(x, 5)),
    "tril": (lambda x: x.tril(-1), lambda x: np.tril(x, -1)),
    "triu": (lambda x: x.triu(1), lambda x: np.triu(x, 1)),
    "diagonal": (lambda x: x.diagonal(1, 1, 2), lambda x: np.diagonal(x, 1, 1, 2)),
    "diagonal below": (lambda x: x.diagonal(-1, 2, 0), lambda x: np.diagonal(x, -1, 2, 0)),
    "diag_embed": (lambda x: x.diag_embed(1).diagonal(1, -2, -1), lambda x: x),
    "unfold": (lambda x: x.unfold(2, 3, 1), lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 2)),
    "unfold apart": (lambda x: x.unfold(2, 2, 2), lambda x: x.reshape(2, 3, 2, 2)),
    "pad": (lambda x: F["pad"](x, (1, 2, 0, 1), value=1.5), lambda x: np.pad(x, ((0, 0), (0, 1), (1, 2)), constant_values=1.5)),
    "pad cuts": (lambda x: F["pad"](x, (-1, 1)), lambda x: np.pad(x[..., 1:], ((0, 0), (0, 0), (0, 1)))),
    "pad reflect": (lambda x: F["pad"](x, (3, 1), "reflect"), lambda x: np.pad(x, ((0, 0), (0, 0), (3, 1)), "reflect")),
    "pad replicate": (lambda x: F["pad"](x, (1, 5), "replicate"), lambda x: np.pad(x, ((0, 0), (0, 0), (1, 5)), "edge")),
    "pad circular": (lambda x: F["pad"](x, (2, 1), "circular"), lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), "wrap")),
    "meshgrid": (lambda x: P["meshgrid"](x[0, 0], x[:, 0, 0], indexing="xy"), lambda x: np.meshgrid(x[0, 0], x[:, 0, 0])),
}


@pytest.mark.parametrize("name", SHAPING)
def test_shaping_is_numpys_and_differentiable(name: str) -> None:
    ours, numpys = SHAPING[name]
    check(ours, numpys, X)
    check_gradient(lambda x: P["cat"]([y.flatten() for y in ours(x)]) if isinstance(ours(x), (tuple, list)) else ours(x), X, order=1)


def test_joining_promotes_and_skips_empty_vectors() -> None:
    check(lambda a, b: P["cat"]([a, b], 1), lambda a, b: np.concatenate([a, b], 1), r(2, 3), np.ones((2, 1), np.int32))
    check(lambda a, b: P["stack"]([a, b], -1), lambda a, b: np.stack([a, b], -1), r(2, 3), r(2, 3))
    check(lambda a, b: P["cat"]([a, b]), lambda a, b: b, np.zeros(0), r(2, 3))


@pytest.mark.usefixtures("device")
@one_of(2, "n", [12, 65, 257])
def test_what_is_made_of_several_operations_promotes_before_the_first_of_them(n: int) -> None:
    """200 * 2 is no uint8, and 60000 * 3 no float16: it is not computed there if the result is wider."""
    rng = np.random.default_rng(n)
    byte, small, half = rng.integers(0, 256, n).astype(np.uint8), rng.integers(-100, 100, n).astype(np.int8), np.full(n, 6e4, np.float16)
    single, double, short = rng.normal(size=n).astype(np.float32), rng.normal(size=n), np.arange(n, dtype=np.int16)

    def same(ours: Any, expected: Any, *arrays: Any) -> None:
        wanted, found = expected(*arrays), ours(*map(tg.tensor, arrays)).numpy()
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-6 if wanted.dtype == np.float32 else 1e-12)

    whole = byte.astype(np.int64)
    same(lambda a, b: tg.add(a, b, alpha=2), lambda a, b: a + 2 * whole.astype(a.dtype), single, byte)
    same(lambda a, b: tg.add(a, b, alpha=3), lambda a, b: a + 3 * b.astype(a.dtype), short, small)
    same(lambda a, b: tg.sub(a, b, alpha=3), lambda a, b: a - 3 * b.astype(a.dtype), double, half)
    same(lambda a, b: a.clone().sub_(b, alpha=3), lambda a, b: a - 3 * b.astype(a.dtype), double, half)
    same(lambda a, b: tg.rsub(b, a, alpha=2), lambda a, b: a - 2 * whole.astype(a.dtype), single, byte)
    same(lambda a, b: tg.addcmul(a, b, b, value=2), lambda a, b: a + 2 * b.astype(a.dtype) ** 2, single, byte)
    same(lambda a, b: tg.addcmul(a, b, b), lambda a, b: a + b.astype(a.dtype) ** 2, short, small)
    same(lambda a, b: tg.addcdiv(a, b, a, value=-3), lambda a, b: a - 3 * (b.astype(a.dtype) / a), double, half)
    least = np.full(n, -2**31, np.int32)
    same(lambda a, b, c: tg.clamp(c, b, a), lambda a, b, c: np.clip(-np.inf, b, a), double, least, np.full(n, -np.inf, np.float16))
    same(tg.trapezoid, lambda a: np.float32(np.trapezoid(whole)), byte)
    same(tg.cumulative_trapezoid, lambda a: np.cumsum((whole[1:] + whole[:-1]) / 2).astype(np.float32), byte)
    same(tg.trapezoid, lambda a, b: np.trapezoid(a, whole), double, byte)
    same(lambda a: tg.vander(a, 4), lambda a: np.vander(whole, 4), byte)


@pytest.mark.usefixtures("device")
@one_of(8, "n", [1, 12, 65, 257], first=2)
def test_float16_times_a_number_is_rounded_once(n: int) -> None:
    """As in torch: a loss times 65536 is no infinity, what is divided by 100000 no zero. So is the derivative."""
    rng = np.random.default_rng(n)
    x = rng.uniform(-0.4, 0.4, (n, 3)).astype(np.float16)
    wide, sign = x.astype(np.float32), np.where(x < 0, -1, 1).astype(np.float32)
    many = {
        "*": (lambda a: a * 65536.0, wide * 65536), "r*": (lambda a: 65536 * a, wide * 65536), "/": (lambda a: a / 1e5, wide / 1e5),
        "r/": (lambda a: 0.1 / a.sign(), np.float32(0.1) / sign), "0-d": (lambda a: a * tg.tensor(1e5), wide * 1e5),
        "0-d float64": (lambda a: a / tg.tensor(0.1, dtype=tg.float64), wide / np.float32(0.1)),
        "//": (lambda a: a // 0.1, wide // np.float32(0.1)),
        "mul_": (lambda a: a.clone().mul_(1e5), wide * 1e5), "0.1": (lambda a: a * 0.1, wide * np.float32(0.1)),
        "of no dimensions": (lambda a: a[0, 0] * 65536.0, wide[0, 0] * 65536), "exact": (lambda a: a * 0.25, wide * 0.25),
    }
    run_time = tg.trace(lambda a, by: a * by)
    for name, (fn, wanted) in many.items():
        for found in (fn(tg.tensor(x)), tg.trace(fn)(tg.tensor(x))):
            assert found.dtype == tg.float16, name
            np.testing.assert_array_equal(found.numpy(), wanted.astype(np.float16), err_msg=name)
    for by in (0.3, 65536.0, 1e5, 1e-7):
        np.testing.assert_array_equal(run_time(tg.tensor(x), by).numpy(), (wide * np.float32(by)).astype(np.float16))
    for way in (lambda f: f, tg.trace):
        a = tg.tensor(x).requires_grad_()
        gradient = way(lambda a: tg.autograd.grad((a * 60000.3).sum() / 60000.3, a)[0])(a)
        np.testing.assert_allclose(gradient.numpy(), np.ones_like(x), rtol=2e-3)


# -------------------------------------------------------------------------------------------------------------- statistics

STATISTICS = {
    "sum": (lambda x: x.sum(), np.sum),
    "sum over dims": (lambda x: x.sum((0, -1), keepdim=True), lambda x: x.sum((0, 2), keepdims=True)),
    "numpy's names": (lambda x: x.sum(axis=1, keepdims=True), lambda x: x.sum(1, keepdims=True)),
    "mean": (lambda x: x.mean((0, 1)), lambda x: x.mean((0, 1))),
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1)),
    "cumsum": (lambda x: x.cumsum(1), lambda x: x.cumsum(1)),
    "cumprod": (lambda x: x.cumprod(2), lambda x: x.cumprod(2)),
    "amax": (lambda x: x.amax((0, 2)), lambda x: x.max((0, 2))),
    "max": (lambda x: x.max(), np.max),
    "max of two": (lambda x: x.max(x * 0.5), lambda x: np.maximum(x, x * 0.5)),
    "var": (lambda x: x.var(1), lambda x: x.var(1, ddof=1)),
    "var uncorrected": (lambda x: x.var((0, 2), unbiased=False, keepdim=True), lambda x: x.var((0, 2), keepdims=True)),
    "std": (lambda x: x.std(), lambda x: x.std(ddof=1)),
    "logsumexp": (lambda x: x.logsumexp((0, 1)), lambda x: special.logsumexp(x, (0, 1))),
    "softmax": (lambda x: x.softmax(1), lambda x: special.softmax(x, 1)),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda x: special.log_softmax(x, -1)),
    "norm": (lambda x: x.norm(), np.linalg.norm),
    "1-norm": (lambda x: x.norm(1, dim=1), lambda x: np.linalg.norm(x, 1, 1)),
    "3-norm": (lambda x: x.norm(3, dim=2, keepdim=True), lambda x: np.linalg.norm(x, 3, 2, keepdims=True)),
    "max-norm": (lambda x: x.norm(inf, dim=2), lambda x: np.abs(x).max(2)),
}


@pytest.mark.parametrize("run", [lambda fn: fn, tg.trace], ids=["untraced", "traced"])
@pytest.mark.parametrize("alpha", [0.1, -0.3, 3])
def test_float16_sums_with_alpha_are_rounded_once(run: Any, alpha: float) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.normal(size=129).astype(np.float16) for _ in range(2))
    x, y = a.astype(np.float32), b.astype(np.float32) * np.float32(alpha)
    for fn, wanted in [(lambda a, b: tg.add(a, b, alpha=alpha), x + y), (lambda a, b: tg.sub(a, b, alpha=alpha), x - y),
                       (lambda a, b: tg.rsub(b, a, alpha=alpha), x - y), (lambda a, b: a.clone().add_(b, alpha=alpha), x + y)]:
        np.testing.assert_array_equal(run(fn)(tg.tensor(a), tg.tensor(b)).numpy(), wanted.astype(np.float16))


def test_older_constructors(run: Any) -> None:
    """As in torch: sizes, or values, which become the default dtype or that of the name."""
    x = tg.tensor(np.arange(65.0))

    def made(x: Any) -> Any:
        held = tg.Tensor(65)
        held.copy_(x)
        return (tg.Tensor([1, 2, 3]) * 2, held.mul_(2), tg.Tensor(2, 3, 4, 5), tg.Tensor(x.shape), tg.LongTensor([3, 4]) + 1,
                tg.DoubleTensor(2).fill_(0.1), tg.BoolTensor([1, 0]))

    for _ in range(2):
        found = run(made)(x)
        assert [(y.shape, y.dtype) for y in found] == [
            ((3,), tg.float32), ((65,), tg.float32), ((2, 3, 4, 5), tg.float32), ((65,), tg.float32), ((2,), tg.int64), ((2,), tg.float64),
            ((2,), tg.bool)]
        assert [y.tolist() for y in (found[0], found[4], found[5], found[6])] == [[2, 4, 6], [4, 5], [0.1, 0.1], [True, False]]
        np.testing.assert_array_equal(found[1].numpy(), np.arange(65) * 2)
    weight = tg.nn.Parameter(tg.Tensor(3, 65))
    tg.nn.init.ones_(weight)
    (weight.sum(0) * tg.FloatTensor(65).fill_(2)).sum().backward()
    assert weight.grad is not None
    np.testing.assert_array_equal(weight.grad.numpy(), np.full((3, 65), 2))
    assert tg.Tensor().shape == (0,)
    with pytest.raises(tg.ArgumentError, match="non-negative"):
        tg.Tensor(-1)


def test_tensors_of_uint8_are_masks_as_in_torch() -> None:
    x, mask = np.arange(39.0).reshape(13, 3), np.arange(13) % 3 == 1
    t, byte = tg.tensor(x), tg.tensor(mask).to(tg.uint8)
    with pytest.warns(UserWarning, match="getitem: an index of uint8 is a mask"):
        np.testing.assert_array_equal(t[byte].numpy(), x[mask])
    with pytest.warns(UserWarning, match="getitem: an index of uint8 is a mask"):
        np.testing.assert_array_equal(t[byte, 1].numpy(), x[mask, 1])
    with pytest.warns(UserWarning, match="setitem: an index of uint8 is a mask"):
        t[byte * 7] = -1.0
    np.testing.assert_array_equal(t.numpy(), np.where(mask[:, None], -1.0, x))
    for accumulate in (False, True):
        found = tg.tensor(x).index_put((byte,), tg.ones(1, dtype=tg.float64), accumulate=accumulate)
        np.testing.assert_array_equal(found.numpy(), np.where(mask[:, None], 1 + accumulate * x, x))


@pytest.mark.parametrize(("call", "expected"), [
    (lambda x, n: x.reshape(n, -1), (1, 6)), (lambda x, n: x.reshape([n * 6]), (6,)), (lambda x, n: x.view(n + 2, 2), (3, 2)),
    (lambda x, n: x.expand(n * 4, 2, 3), (4, 2, 3)), (lambda x, n: x.tile(n + 1), (2, 6)), (lambda x, n: x.repeat(n + 1, n), (4, 3)),
    (lambda x, n: x.permute(n, n - 1), (3, 2)), (lambda x, n: x.unflatten(1, (n * 3, n)), (2, 3, 1)), (lambda x, n: x.flip(n), (2, 3)),
    (lambda x, n: x.sum(n), (2,)), (lambda x, n: x.mean(dim=n), (2,)), (lambda x, n: x.sum((n, n - 1)), ()),
    (lambda x, n: x.sum(n[None]), (2,)),
    (lambda x, n: tg.cat([x, x], n), (2, 6)), (lambda x, n: x.softmax(n), (2, 3)), (lambda x, n: x.transpose(n - 1, n), (3, 2)),
    (lambda x, n: x.topk(n).values, (2, 1)), (lambda x, n: x.roll(n), (2, 3)), (lambda x, n: x.chunk(n)[0], (2, 3)),
    (lambda x, n: tg.zeros(n, 4), (1, 4)),
])
def test_integer_tensors_of_one_element_are_sizes_and_dims(call: Any, expected: Any) -> None:
    x = tg.arange(6.0).reshape(2, 3)
    for _ in range(3):                                                          # the same when it is recalled
        for given in (tg.tensor(1), tg.tensor([0, 1], dtype=tg.uint8)[1]):
            assert call(x, given).shape == expected


def test_tensors_that_are_no_sizes() -> None:
    for call in (lambda n: tg.ones(2).reshape(n), lambda n: tg.ones(2).sum(n)):
        for given in (tg.tensor(1.0), tg.tensor([1, 1]), tg.tensor(True)):
            with pytest.raises(tg.ArgumentTypeError, match=r"(reshape: sizes and dims must be integers|sum: dim must be an integer)"):
                call(given)
    with pytest.raises(tg.TraceError):
        tg.trace(lambda x, n: x.sum(n))(tg.ones(2), tg.tensor(0))


def test_gradients_of_extremes_beside_nans_are_torchs() -> None:
    """The NaNs share that of max(), min() and median(); amax's is NaN."""
    for values, shares in (([1.0, np.nan, 3.0, np.nan], [0.0, 0.5, 0.0, 0.5]), ([3.0, 1.0, 1.0, 3.0], None)):
        for name in ("max", "min", "median", "amax", "amin"):
            x = tg.tensor(values, requires_grad=True)
            found = tg.autograd.grad(getattr(x, name)(), x)[0].tolist()
            expected = [0.5 * (v == (3.0 if name.endswith("max") else 1.0)) for v in values] if shares is None else shares
            np.testing.assert_array_equal(found, [np.nan] * 4 if shares and name[0] == "a" else expected)
    assert np.isnan(tg.tensor([]).median().item())


BOOLS: tuple[Any, ...] = ((True, True), (True, False), (False, True, ...), (True, ..., True), (True, slice(None), True), (True, 0, True),
                          (np.array([True, False]), True, True), (True, [0, 1], True))


@pytest.mark.parametrize("key", BOOLS, ids=str)
def test_several_bools_of_an_index_are_one_mask(key: Any) -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(tg.tensor(x)[key].numpy(), x[key])
    changed = tg.tensor(x)
    changed[key], x[key] = -1.0, -1.0
    np.testing.assert_array_equal(changed.numpy(), x)


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_are_numpys_and_differentiable(name: str) -> None:
    ours, numpys = STATISTICS[name]
    check(ours, numpys, X)
    check_gradient(ours, X)


def test_extremes_with_their_places() -> None:
    check(lambda x: x.max(1), lambda x: [x.max(1), x.argmax(1)], X)
    check(lambda x: x.min(-1, keepdim=True), lambda x: [x.min(-1, keepdims=True), x.argmin(-1, keepdims=True)], X)
    check(lambda x: x.argmax(), np.argmax, X)
    assert P["max"](node(2, 3), 1)._fields == ("values", "indices")
    ties = np.array([[3.0, 1.0, 3.0], [2.0, 2.0, 2.0]])
    np.testing.assert_array_equal(gradients(lambda x: x.max(1).values, [ties])[0], [[1, 0, 0], [1, 0, 0]])          # the first takes all
    np.testing.assert_array_equal(gradients(lambda x: x.amax(1), [ties])[0], [[0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]])  # shared evenly
    long = np.zeros((2, 40))
    long[:, [7, 9]] = 1.0                                   # more elements than the elementwise search takes
    np.testing.assert_array_equal(np.argwhere(gradients(lambda x: x.max(1).values, [long])[0]), [[0, 7], [1, 7]])


def test_integers_and_bools_are_summed_as_int64() -> None:
    x = np.array([[200, 100], [3, 4]], np.uint8)
    check(lambda x: x.sum(), lambda x: np.int64(307), x)
    check(lambda x: x.prod(1), lambda x: np.array([20000, 12]), x)
    check(lambda x: (x > 3).sum(0), lambda x: np.array([1, 2]), x)
    check(lambda x: x.sum(dtype="float32"), lambda x: np.float32(307), x)
    check(lambda x: (x > 3).any(1), lambda x: (x > 3).any(1), x)
    check(lambda x: x.all(), lambda x: np.uint8(1), x)
    check(lambda x: x.count_nonzero(), lambda x: np.int64(4), x)


def test_integers_are_not_rounded_to_tens() -> None:
    assert tg.tensor([15, 24]).round(decimals=1).tolist() == [15, 24]
    with pytest.raises(DTypeError, match=r"^round: decimals=-1 of int64: integers"):
        tg.tensor([15, 24]).round(decimals=-1)


def test_edges_of_exponential_functions() -> None:
    x = np.array([[inf, 1.0], [-inf, -inf], [nan, 1.0], [1000.0, 0.0]])
    np.testing.assert_array_equal(evaluate(lambda x: x.logsumexp(1), x), [inf, -inf, nan, 1000.0])
    np.testing.assert_array_equal(evaluate(lambda x: x.softmax(1), x), [[nan, nan], [nan, nan], [nan, nan], [1.0, 0.0]])
    np.testing.assert_array_equal(evaluate(lambda x: x.log_softmax(1), x)[3], [0.0, -1000.0])


def test_empty_and_0d() -> None:
    x = np.zeros((0, 3))
    check(lambda x: x.sum(0), lambda x: np.zeros(3), x)
    check(lambda x: x.mean(), lambda x: np.array(nan), x)
    check(lambda x: x.softmax(0), lambda x: x, x)
    check(lambda x: x.logsumexp(0), lambda x: np.full(3, -inf), x)
    check(lambda x: x.any(0), lambda x: np.zeros(3, bool), x)
    check(lambda x: x.all(), lambda x: np.array(True), x)
    check(lambda x: x @ x.T, lambda x: np.zeros((0, 0)), x)
    check(lambda x: x.T @ x, lambda x: np.zeros((3, 3)), x)
    check(lambda x: x[[]], lambda x: x, x)
    one = np.array(1.5)
    for fn in (lambda x: x.sum(0), lambda x: x.cumsum(-1), lambda x: x.max(0).values, lambda x: x.sort().values, lambda x: x.squeeze(),
               lambda x: x.t()):
        check(fn, lambda x: x, one)
    check(lambda x: x.softmax(0), lambda x: np.array(1.0), one)
    check(lambda x: x.argmax(0), lambda x: np.int64(0), one)
    check(lambda x: x.flatten(), lambda x: np.array([1.5]), one)
    np.testing.assert_array_equal(gradients(lambda x: x.norm(), [np.zeros(3)])[0], np.zeros(3))


# ----------------------------------------------------------------------------------------------------------------- products

MATMULS = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 2)),
           ((4, 1, 2, 3), (5, 3, 2)), ((2, 3), (5, 3, 2))]


@pytest.mark.parametrize("shapes", MATMULS, ids=str)
def test_matmul_of_all_ranks(shapes: Any) -> None:
    a, b = r(*shapes[0]), r(*shapes[1])
    check(lambda a, b: a @ b, np.matmul, a, b)
    check_gradient(P["matmul"], a, b, order=1)


EINSUMS = ["ij,jk->ik", "ij,jk", "ii", "ii->i", "ij->ji", "ij->", "i,j->ij", "bij,bjk->bik", "...ij,...jk->...ik", "ij,ij->i", "ij,ij->",
           "iij,jk->ik", "ij,jk,kl->il", "a,b,c,d->dcba", "iijj->ij", "abc,cd,be->ade", "ba", "...ii->...i", "i...->...", "i,ij,j"]


@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum(equation: str) -> None:
    sizes = {c: 2 + i % 3 for i, c in enumerate("abcdeijkl")}
    arrays = [r(*[n for c in part.replace("...", "Z") for n in ((2, 3) if c == "Z" else (sizes[c],))])
              for part in equation.split("->")[0].split(",")]
    check(lambda *xs: P["einsum"](equation, *xs), lambda *xs: np.einsum(equation, *xs), *arrays)
    check_gradient(lambda *xs: P["einsum"](equation, *xs), *arrays, order=1)


def test_einsum_of_lists() -> None:
    """Numbers in the place of letters; without the result's they come in their order."""
    a, b = r(2, 3, 7), r(7, 13)
    for given, equation in (((a, [0, 1, 2], b, [2, 3], [3, 0]), "abc,cd->da"), ((a, [5, ..., 30], b, [30, 1]), "F...e,eB->...BF"),
                            ((b, (40, 2)), "oc->co"), ((b, [0, 0]), None)):
        if equation is None:
            with pytest.raises(ShapeError, match="einsum"):
                P["einsum"](*[node(*v.shape) if isinstance(v, np.ndarray) else v for v in given])
            continue
        arrays = [v for v in given if isinstance(v, np.ndarray)]

        def fn(*xs: Any, given: Any = given) -> Any:
            left = iter(xs)
            return P["einsum"](*[next(left) if isinstance(v, np.ndarray) else v for v in given])

        check(fn, lambda *xs, equation=equation: np.einsum(equation, *xs), *arrays)
        check_gradient(fn, *arrays, order=1)


def test_other_products() -> None:
    x, w, b = r(4, 2, 3), r(5, 3), r(5)
    check(F["linear"], lambda x, w, b: x @ w.T + b, x, w, b)
    check_gradient(F["linear"], x, w, b)
    check(P["outer"], np.outer, r(3), r(2))
    check(P["dot"], np.dot, r(3), r(3))
    check(P["tensordot"], np.tensordot, r(2, 3, 4), r(3, 4, 5))
    check(lambda a, b: P["tensordot"](a, b, ([0, 2], [1, 0])), lambda a, b: np.tensordot(a, b, ([0, 2], [1, 0])), r(2, 3, 4), r(4, 2, 5))
    check(lambda c, a, b: P["addmm"](c, a, b, beta=2, alpha=0.5), lambda c, a, b: 2 * c + 0.5 * a @ b, r(4), r(2, 3), r(3, 4))
    check(lambda x: x.trace(), np.trace, r(3, 4))
    check(P["inner"], np.inner, r(2, 3), r(4, 5, 3))
    check(P["inner"], np.inner, r(3), r(3))
    check(P["inner"], np.multiply, r(), r(2, 3))
    check(lambda c, a, b: P["addmm"](c, a, b, beta=0), lambda c, a, b: a @ b, np.full((2, 4), nan), r(2, 3), r(3, 4))


# ------------------------------------------------------------------------------------------------------------- convolutions


def conv2d_reference(x: Any, w: Any, padding: int = 0) -> Any:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    return np.array([[sum(signal.correlate2d(image[c], kernel[c], "valid") for c in range(len(image))) for kernel in w] for image in x])


def test_convolution_is_scipys_correlation() -> None:
    x, w, b = r(2, 3, 6, 5), r(4, 3, 3, 2), r(4)
    plain = conv2d_reference(x, w, 1)
    check(lambda x, w, b: F["conv2d"](x, w, b, padding=1), lambda x, w, b: plain + b[:, None, None], x, w, b, tolerance=1e-10)
    check(lambda x, w: F["conv2d"](x, w, stride=(2, 3), padding=1), lambda x, w: plain[:, :, ::2, ::3], x, w, tolerance=1e-10)
    spread = np.zeros((4, 3, 5, 3))
    spread[:, :, ::2, ::2] = w
    check(lambda x, w: F["conv2d"](x, w, dilation=2), lambda x, w: conv2d_reference(x, spread), x, w, tolerance=1e-10)
    halves = [conv2d_reference(x[:, :1], w[:2, :1]), conv2d_reference(x[:, 1:2], w[2:, :1])]
    check(lambda x, w: F["conv2d"](x[:, :2], w[:, :1], groups=2), lambda x, w: np.concatenate(halves, 1), x, w, tolerance=1e-10)
    check(lambda x, w: F["conv2d"](x[0], w), lambda x, w: conv2d_reference(x, w)[0], x, w, tolerance=1e-10)
    same = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1)))       # torch puts the odd one at the end
    check(lambda x, w: F["conv2d"](x, w, padding="same"), lambda x, w: conv2d_reference(same, w), x, w, tolerance=1e-10)
    line, taps = r(2, 3, 7), r(4, 3, 3)
    check(lambda x, w: F["conv1d"](x, w, stride=2), lambda x, w: conv2d_reference(x[:, :, None], w[:, :, None])[:, :, 0, ::2], line, taps,
          tolerance=1e-10)


def test_transposed_convolution_is_the_adjoint() -> None:
    x, w, y = r(2, 3, 7, 6), r(4, 3, 3, 2), r(2, 4, 4, 4)
    options = dict(stride=(2, 2), padding=1)
    forward = evaluate(lambda x, w: F["conv2d"](x, w, **options), x, w)
    back = evaluate(lambda y, w: F["conv_transpose2d"](y, w, **options), y, w)
    assert forward.shape == y.shape
    assert back.shape == (2, 3, 7, 6)
    np.testing.assert_allclose(np.sum(forward * y), np.sum(x * back))
    grown = evaluate(lambda y, w: F["conv_transpose2d"](y, w, stride=2, output_padding=1), y, w)
    assert grown.shape == (2, 3, 10, 9)
    check_gradient(lambda y, w, b: F["conv_transpose2d"](y, w, b, **options), y[:1, :, :2, :2], w, r(3), order=1)


@pytest.mark.parametrize(("padding", "more", "stride", "dilation"), [(0, 1, 2, 1), (1, 1, 1, 2), (2, 1, 2, 1), (1, 2, 2, 3), (0, 2, 1, 3)])
def test_output_padding_gives_back_what_padding_cut(padding: int, more: int, stride: int, dilation: int) -> None:
    x, w = r(1, 2, 4), r(2, 3, 3)
    whole = np.zeros((1, 3, 3 * stride + 2 * dilation + 1 + more))
    for tap, at in product(range(3), range(4)):
        whole[0, :, at * stride + tap * dilation] += x[0, :, at] @ w[:, :, tap]
    options = dict(padding=padding, output_padding=more, stride=stride, dilation=dilation)
    check(lambda x, w: F["conv_transpose1d"](x, w, **options), lambda x, w: whole[..., padding:whole.shape[2] - padding], x, w)
    check_gradient(lambda x, w: F["conv_transpose1d"](x, w, **options), x, w, order=1)


def pooled(x: Any, size: int, step: int, reduce: Any) -> Any:
    return reduce(np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::step, ::step], (4, 5))


def test_pooling() -> None:
    x = r(2, 3, 7, 6)
    for size, step in ((2, 2), (3, 2), (2, 3), (3, 1)):
        largest, average = pooled(x, size, step, np.max), pooled(x, size, step, np.mean)
        check(lambda x, size=size, step=step: F["max_pool2d"](x, size, step), lambda x, y=largest: y, x)
        check(lambda x, size=size, step=step: F["avg_pool2d"](x, size, step), lambda x, y=average: y, x)
        check_gradient(lambda x, size=size, step=step: F["max_pool2d"](x, size, step), x[:1, :1])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-inf)
    check(lambda x: F["max_pool2d"](x, 3, 2, 1), lambda x: pooled(padded, 3, 2, np.max), x)
    check(lambda x: F["max_pool2d"](x, 2, ceil_mode=True)[:, :, 3:], lambda x: pooled(x[:, :, 6:], 1, 2, np.max).clip(
        pooled(x[:, :, 6:, 1:], 1, 2, np.max)), x)
    ones = np.ones((1, 1, 4, 4))
    check(lambda x: F["avg_pool2d"](x, 2, padding=1)[:, :, 0, 0], lambda x: np.full((1, 1), 0.25), ones)
    check(lambda x: F["avg_pool2d"](x, 2, padding=1, count_include_pad=False), lambda x: np.ones((1, 1, 3, 3)), ones)
    check(lambda x: F["adaptive_avg_pool2d"](x, (1, 2)), lambda x: x.reshape(2, 3, 1, 7, 2, 3).mean((3, 5)), x)
    grid = np.arange(16.0).reshape(1, 1, 4, 4)
    check(lambda x: F["max_pool2d"](x, 2, return_indices=True).indices, lambda x: np.array([[[[5, 7], [13, 15]]]]), grid)
    nothing = np.full((1, 1, 4, 4), -inf)                    # padding is no element, also where it is as large as all of them
    check(lambda x: F["max_pool2d"](x, 3, 2, 1, return_indices=True).indices, lambda x: np.array([[[[0, 1], [4, 5]]]]), nothing)
    check(lambda x: F["max_pool2d"](x, 2), lambda x: x[:, :, 1::2, 1::2], grid.astype(np.int32))
    np.testing.assert_array_equal(gradients(lambda x: F["max_pool2d"](x, 2), [ones])[0][0, 0], np.kron(np.ones((2, 2)), [[1, 0], [0, 0]]))
    np.testing.assert_array_equal(gradients(lambda x: F["max_pool2d"](x, 3, 1), [ones])[0][0, 0], np.pad(np.ones((2, 2)), (0, 2)))


# ----------------------------------------------------------------------------------------------------------------- indexing

BASIC = [0, -1, slice(1, 3), (slice(None), slice(None, None, 2)), (Ellipsis, -2), (None, 1, Ellipsis, None, slice(1, 4)), (1, 2, 3),
         (slice(None), slice(None, None, -1)), (slice(None), slice(2, None, -2), slice(3, 0, -1)), (slice(5, 2),), (slice(0, 0),)]
ADVANCED = [[1, 0, 1], (slice(None), [2, 0]), ([0, 1], slice(None), [1, -1]), (slice(None), [0, 2], [1, 3]),
            (slice(None), [[0, 1], [2, 2]]), (Ellipsis, [0, -1], None), ([[0]], [[1, 2]]), (slice(None), [True, False, True]),
            (slice(1, 2), [0, 2], slice(0, 4, 3)),
            (np.array([[True, False, True], [False, True, True]]),), ([0, 1], None, [1, 2]), (True, [1, 0]), (slice(None), True, [0, 2])]


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
def test_getitem_and_setitem_are_numpys(key: Any) -> None:
    check(lambda x: x[key], lambda x: x[key], X)
    assert subscripts.is_basic(key) == (key in BASIC if isinstance(key, (int, slice)) else any(key is k for k in BASIC))
    changed = X.copy()
    value = r(*X[key].shape)
    changed[key] = value
    check(lambda x, v: subscripts.setitem(x, key, v), lambda x, v: changed, X, value)
    changed[key] = 2.5
    check(lambda x: subscripts.setitem(x, key, 2.5), lambda x: changed, X)
    if value.size:
        check_gradient(lambda x: x[key], X, order=1)
        check_gradient(lambda x, v: subscripts.setitem(x, key, v), X, value, order=1)


def test_integers_beside_an_index_array_are_taken_first_as_in_torch() -> None:
    check(lambda x: x[0, :, [1, 3]], lambda x: x[0][:, [1, 3]], X)


def test_a_list_that_holds_more_than_numbers_is_a_tuple_as_in_torch() -> None:
    x = tg.arange(24).reshape(2, 3, 4)
    two, wanted = tg.tensor([0, 1]), np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(x[[two, two + 1]].numpy(), wanted[[0, 1], [1, 2]])
    np.testing.assert_array_equal(tg.trace(lambda x: x[[0, slice(1, 3)]])(x).numpy(), wanted[0, 1:3])
    np.testing.assert_array_equal(x[[..., 0]].numpy(), wanted[..., 0])
    np.testing.assert_array_equal(x[[None, 0]].numpy(), wanted[None, 0])
    np.testing.assert_array_equal(x[[[0, 1], [1, 0]]].numpy(), wanted[[[0, 1], [1, 0]]])        # of numbers: an array, as in numpy
    x[[two, two]] = 0
    wanted[[0, 1], [0, 1]] = 0
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_index_tensors_of_no_dimensions_are_integers_as_in_torch(on_numpy: None) -> None:
    x = tg.tensor(np.random.default_rng(0).normal(size=(7, 5, 13, 6)))
    two, one, rows = tg.tensor(2), np.array(1), tg.tensor([0, 3, 1])
    every = slice(None)
    for key, plain in (((two, every, rows), (2, every, rows)), ((rows, two), (rows, 2)), ((two, ..., rows), (2, ..., rows)),
                       ((rows, every, two, rows), (rows, every, 2, rows)), ((rows, two, rows), (rows, 2, rows)),
                       ((every, rows, two, rows), (every, rows, 2, rows)), ((two, one), (2, 1)), ((two, None, rows), (2, None, rows)),
                       ((one, every, two), (1, every, 2))):
        np.testing.assert_array_equal(x[key].numpy(), x[plain].numpy())
        np.testing.assert_array_equal(tg.trace(lambda x, k=key: x[k])(x).numpy(), x[plain].numpy())
        put, wanted = x.clone(), x.clone()
        put[key] = put[key] * 2 + 1
        wanted[plain] = wanted[plain] * 2 + 1
        np.testing.assert_array_equal(put.numpy(), wanted.numpy())
    assert (x[two, :, rows].shape, x[:, rows, two, rows].shape) == ((5, 3, 6), (7, 3))


def test_index_tensors_wrap_negatives() -> None:
    i, j = np.array([1, 0, -1]), np.array([[3], [-1]], np.int32)
    check(lambda x, i: x[i], lambda x, i: x[i], X, i)
    check(lambda x, i, j: x[:, i, j], lambda x, i, j: x[:, i, j], X, i, j)
    changed = X.copy()
    changed[:, i % 3] = 0
    check(lambda x, i: subscripts.setitem(x, (slice(None), i), 0), lambda x, i: changed, X, i)


def test_the_last_of_equal_indices_wins_and_gets_the_gradient() -> None:
    x, i, v = np.zeros(3), np.array([1, 1, 0]), np.array([5.0, 6.0, 7.0])
    check(subscripts.setitem, lambda x, i, v: np.array([7.0, 6.0, 0.0]), x, i, v)
    gx, _, gv = gradients(subscripts.setitem, [x, i, v])
    np.testing.assert_array_equal(gx, [0, 0, 1])
    np.testing.assert_array_equal(gv, [0, 1, 1])


def test_mask_assignment_reads_no_mask() -> None:
    mask = X > 0.3
    for value in (7.0, r(int(mask.sum()))):
        changed = X.copy()
        changed[mask] = value
        check(subscripts.setitem, lambda x, m, v, changed=changed: changed, X, mask, np.asarray(value))
    rows = np.array([[True, False, True], [False, True, True]])
    for value in (r(4), r(4, 4)):
        changed = X.copy()
        changed[rows] = value
        check(subscripts.setitem, lambda x, m, v, changed=changed: changed, X, rows, value)
    with pytest.raises(TraceError, match=r"getitem: .*tg\.where"):
        node(2, 3)[node(2, 3) > 0]
    with pytest.raises(ShapeError, match=r"tg\.where\(mask, value, x\)"):
        subscripts.setitem(node(2, 3), node(2, 3) > 0, node(2, 3))


def test_gather_and_scatter() -> None:
    index = RNG.integers(0, 3, (2, 2, 4))
    check(lambda x, i: x.gather(1, i), lambda x, i: np.take_along_axis(x, i, 1), X, index)
    check(lambda x, i: x.take_along_dim(i, 1), lambda x, i: np.take_along_axis(x, i, 1), X, index[:1] - 3)
    check(lambda x, i: x.take(i), np.take, X, np.array([[3, -1], [23, 0]]))
    expected = X.copy()
    source = r(2, 3, 4)
    for at in np.ndindex(index.shape):
        expected[at[0], index[at], at[2]] += source[at]
    check(lambda x, i, s: x.scatter_add(1, i, s), lambda x, i, s: expected, X, index, source)
    check_gradient(lambda x, s: x.scatter_add(1, const(0, dtypes.int64).expand(2, 1, 4), s), X, source)
    expected = X.copy()
    np.put_along_axis(expected, index % 3, 1.5, 1)
    check(lambda x, i: x.scatter(1, i, 1.5), lambda x, i: expected, X, index)
    some = np.array([2, 0, 2, 1])
    check(lambda x, i: x.index_select(1, i), lambda x, i: x[:, i], X, some)
    expected = X.copy()
    added = r(2, 4, 4)
    np.add.at(expected, (slice(None), some), 2 * added)
    check(lambda x, i, s: x.index_add(1, i, s, alpha=2.0), lambda x, i, s: expected, X, some, added)
    check(lambda x, m: x.masked_fill(m, -inf), lambda x, m: np.where(m, -inf, x), X, X > 0)


def test_embedding_and_one_hot() -> None:
    rows, table = np.array([[1, 3], [0, 1]]), r(4, 5)
    check(F["embedding"], lambda i, w: w[i], rows, table)
    grad = gradients(lambda i, w: F["embedding"](i, w, padding_idx=1), [rows, table])[1]
    np.testing.assert_array_equal(grad, np.repeat([[1.0], [0.0], [0.0], [1.0]], 5, 1))
    check(lambda i: F["one_hot"](i, 4), lambda i: np.eye(4, dtype=np.int64)[i], rows)


def test_sorting() -> None:
    x = np.array([[3.0, nan, 1.0, 3.0, -inf], [0.0, -0.0, 2.0, inf, 2.0]])
    check(lambda x: x.sort(), lambda x: [np.sort(x), np.argsort(x, kind="stable")], x)
    check(lambda x: x.argsort(descending=True), lambda x: np.array([[1, 0, 3, 2, 4], [3, 2, 4, 0, 1]]), x)
    check(lambda x: x.topk(2), lambda x: [np.array([[nan, 3.0], [inf, 2.0]]), np.array([[1, 0], [3, 2]])], x)
    check(lambda x: x.topk(1, 0, largest=False).values, lambda x: x.min(0, keepdims=True), X)
    check(lambda x: x.median(), lambda x: np.sort(x.ravel())[11], X)
    check(lambda x: x.median(), lambda x: np.array(nan), x)
    check(lambda x: x.median(1), lambda x: [np.array([nan, 0.0 + 2.0]), np.array([1, 2])], x)
    check_gradient(lambda x: x.sort(1).values, X)
    check_gradient(lambda x: x.topk(2, 1).values, X)


# ------------------------------------------------------------------------------------------------------------ neural networks


def standardized(x: Any, axes: Any) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def test_normalization() -> None:
    w, b = r(3, 4), r(3, 4)
    check(lambda x, w, b: F["layer_norm"](x, (3, 4), w, b), lambda x, w, b: standardized(x, (1, 2)) * w + b, X, w, b)
    check_gradient(lambda x, w, b: F["layer_norm"](x, 4, w, b), X[0], r(4), r(4), tolerance=1e-5)
    x, w, b = r(5, 4, 3, 2), r(4), r(4)
    check(lambda x, w, b: F["batch_norm"](x, None, None, w, b, training=True),
          lambda x, w, b: standardized(x, (0, 2, 3)) * w[:, None, None] + b[:, None, None], x, w, b)
    check(F["batch_norm"], lambda x, m, v: (x - m[:, None, None]) / np.sqrt(v[:, None, None] + 1e-5), x, r(4), r(4)**2)
    check(lambda x: F["group_norm"](x, 2), lambda x: standardized(x.reshape(5, 2, 12), 2).reshape(x.shape), x)
    check(lambda x: F["rms_norm"](x, 4, eps=1e-5), lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5), X)
    check(F["normalize"], lambda x: x / np.linalg.norm(x, axis=1, keepdims=True), X)
    y = r(4)
    check(lambda x, y: F["cosine_similarity"](x, y, 1),
          lambda x, y: (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(np.broadcast_to(y, X.shape), axis=1)), X, y)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm", "batch_norm"])
def test_float16_is_normalized_without_overflow(name: str) -> None:
    x, w = (r(4, 2, 8) * 1000).astype(np.float16), r(8).astype(np.float32)
    call = {"layer_norm": lambda x, w: F[name](x, 8, w), "rms_norm": lambda x, w: F[name](x, 8, w),
            "group_norm": lambda x, w: F[name](x, 2), "batch_norm": lambda x, w: F[name](x, training=True)}[name]
    half = evaluate(call, x, w)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, evaluate(call, x.astype(np.float64), w.astype(np.float64)), rtol=2e-3, atol=2e-3)


def test_attention() -> None:
    q, k, v = r(2, 4, 5), r(2, 6, 5), r(2, 6, 3)
    attend = F["scaled_dot_product_attention"]
    scores = q @ k.swapaxes(1, 2) / np.sqrt(5)
    check(attend, lambda q, k, v: special.softmax(scores, -1) @ v, q, k, v)
    causal = np.where(np.arange(6) <= np.arange(4)[:, None], scores, -inf)
    check(lambda q, k, v: attend(q, k, v, is_causal=True), lambda q, k, v: special.softmax(causal, -1) @ v, q, k, v)
    mask = RNG.random((4, 6)) < 0.7
    mask[:, 0] = True
    check(attend, lambda q, k, v, m: special.softmax(np.where(m, scores, -inf), -1) @ v, q, k, v, mask)
    check(attend, lambda q, k, v, m: special.softmax(scores + m, -1) @ v, q, k, v, r(4, 6))
    check_gradient(lambda q, k, v: attend(q, k, v, is_causal=True), q[0], k[0], v[0], order=1)
    mask[1] = False                                          # a row that may attend to nothing: 0, without a gradient
    weights = np.exp(np.where(mask, scores, -inf)) / np.maximum(np.exp(np.where(mask, scores, -inf)).sum(-1, keepdims=True), 1e-300)
    for m in (mask, np.where(mask, 0.0, -inf)):
        check(attend, lambda q, k, v, m: weights @ v, q, k, v, m)
        assert all(np.isfinite(g).all() for g in gradients(attend, [q, k, v, m])[:3])
    check(attend, lambda q, k, v: np.full((2, 3), v.mean(0)), np.zeros((2, 0)), np.zeros((4, 0)), r(4, 3))


LOSSES = {
    "mse_loss": lambda x, y: (x - y)**2,
    "l1_loss": lambda x, y: np.abs(x - y),
    "smooth_l1_loss": lambda x, y: np.where(np.abs(x - y) < 1, 0.5 * (x - y)**2, np.abs(x - y) - 0.5),
    "huber_loss": lambda x, y: np.where(np.abs(x - y) < 1, 0.5 * (x - y)**2, np.abs(x - y) - 0.5),
    "binary_cross_entropy_with_logits": lambda x, y: -(y * special.log_expit(x) + (1 - y) * special.log_expit(-x)),
    "kl_div": lambda x, y: special.xlogy(y, y) - y * x,
}


@pytest.mark.parametrize(("name", "reduction"), list(product(LOSSES, ["mean", "sum", "none"])))
def test_losses_of_pairs(name: str, reduction: str) -> None:
    x, y = r(3, 4), RNG.uniform(0.1, 0.9, (3, 4))
    reduce = {"mean": np.mean, "sum": np.sum, "none": lambda v: v}[reduction]
    check(lambda x, y: F[name](x, y, reduction=reduction), lambda x, y: reduce(LOSSES[name](x, y)), x, y)
    if reduction == "mean":
        check_gradient(F[name], x, y)


def test_binary_cross_entropy_at_zero_logits_is_smooth() -> None:
    zero, y = np.zeros(2), np.array([0.0, 1.0])
    check_gradient(lambda x: F["binary_cross_entropy_with_logits"](x, const(0.25, dtypes.float64).expand(2)), zero, tolerance=1e-5)
    grad = gradients(lambda x, y: F["binary_cross_entropy_with_logits"](x, y, reduction="sum"), [zero, y])[0]
    np.testing.assert_allclose(grad, [0.5, -0.5])
    check(lambda x, y: F["binary_cross_entropy"](x, y, reduction="none"), lambda x, y: np.array([0.0, 100.0]), zero, y)
    sure, y = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0])
    grad = gradients(lambda x, y: F["binary_cross_entropy"](x, y, reduction="sum"), [sure, y])[0]
    np.testing.assert_array_equal(grad, [1.0, 0.0, 0.0, -1.0])


def cross_entropy_reference(x: Any, t: Any, w: Any, ignore: int, smoothing: float) -> Any:
    """Per-element losses and weights, by the definition (classes in dimension 1)."""
    logp = np.moveaxis(special.log_softmax(x, 1), 1, -1)
    classes = logp.shape[-1]
    hit = np.arange(classes) == t[..., None]
    counted = (t != ignore)
    weights = np.where(counted, (hit * w).sum(-1), 0.0)
    smooth = -(logp * w).sum(-1) / classes
    return np.where(counted, (1 - smoothing) * -(logp * hit * w).sum(-1) + smoothing * smooth, 0.0), weights


@pytest.mark.parametrize(("shape", "ignore", "smoothing", "weighted"),
                         list(product([(6, 5), (2, 5, 3)], [-100, 2], [0.0, 0.1], [False, True])))
def test_cross_entropy(shape: Any, ignore: int, smoothing: float, weighted: bool) -> None:
    x, t, w = r(*shape), RNG.integers(0, 5, shape[:1] + shape[2:]), RNG.uniform(0.5, 2, 5)
    t.flat[:2] = (0, ignore)
    given = [x, t, w] if weighted else [x, t]
    losses, weights = cross_entropy_reference(x, t, w if weighted else np.ones(5), ignore, smoothing)
    for reduction, expected in (("mean", losses.sum() / weights.sum()), ("sum", losses.sum()), ("none", losses)):
        check(lambda x, t, w=None, reduction=reduction: F["cross_entropy"](x, t, w, ignore, reduction, smoothing),
              lambda *_, expected=expected: expected, *given)
    check_gradient(lambda x, t, w=None: F["cross_entropy"](x, t, w, ignore, label_smoothing=smoothing), *given,
                   order=1 + (shape == (2, 5, 3)))
    if not smoothing:
        logp = special.log_softmax(x, 1)
        check(lambda x, t, w=None: F["nll_loss"](x, t, w, ignore), lambda *_: losses.sum() / weights.sum(), logp, *given[1:])


def test_cross_entropy_of_probabilities_and_of_one_example() -> None:
    x, p = r(4, 5), special.softmax(r(4, 5), 1)
    check(F["cross_entropy"], lambda x, p: -(p * special.log_softmax(x, 1)).sum(1).mean(), x, p)
    mixed = 0.9 * p + 0.02
    check(lambda x, p: F["cross_entropy"](x, p, label_smoothing=0.1), lambda x, p: -(mixed * special.log_softmax(x, 1)).sum(1).mean(), x, p)
    check(F["cross_entropy"], lambda x, t: -special.log_softmax(x)[3], r(5), np.array(3))
    check(F["cross_entropy"], lambda x, t: np.array(nan), np.zeros((0, 5)), np.zeros((0, 5)))
    big = np.array([[1e4, 1e4 - 10.0]])
    np.testing.assert_allclose(evaluate(F["cross_entropy"], big, np.array([0])), np.log1p(np.exp(-10.0)), rtol=1e-9)


def test_activations() -> None:
    x = np.array([-3.0, -0.5, 0.0, 0.5, 800.0, -800.0])
    check(F["logsigmoid"], special.log_expit, x)
    check(F["elu"], lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), x)
    check(F["hardtanh"], lambda x: np.clip(x, -1, 1), x)
    np.testing.assert_array_equal(gradients(F["hardtanh"], [np.array([-1.0, 0.5, 1.0, 2.0])])[0], [0, 1, 0, 0])
    check(F["glu"], lambda x: x[:3] * special.expit(x[3:]), x)
    check_gradient(F["selu"], x[:2])


# ------------------------------------------------------------------------------------------------------------------- random


def drawn(fn: Any, n: int, dtype: Any, seed: int = 2**40 + 5, offset: int = 2**33 + 1, bounds: tuple[int, ...] = ()) -> Any:
    return evaluate(lambda s, o: fn(s, o, *bounds, (n,), np.dtype(dtype)), np.array(seed), np.array(offset))


def test_random_numbers_are_philox() -> None:
    counter = np.array([[1 + i, 2, 0, 0] for i in range(5)], np.uint32)
    words = philox_numpy((5, 2**8), counter).astype(np.uint64)
    np.testing.assert_array_equal(drawn(random_bits.uniform, 5, np.float32), ((words[:, 0] >> 8) * 2.0**-24).astype(np.float32))
    np.testing.assert_array_equal(drawn(random_bits.uniform, 5, np.float64), ((words[:, 0] >> 5) * 2.0**26 + (words[:, 1] >> 6)) * 2.0**-53)
    np.testing.assert_array_equal(drawn(random_bits.randint, 5, np.int64, bounds=(-3, 7)), (words[:, 0] * 10 >> 32).astype(np.int64) - 3)


def test_random_distributions() -> None:
    u = drawn(random_bits.uniform, 20000, np.float32)
    assert u.dtype == np.float32
    assert 0 <= u.min() < 0.001
    assert 0.999 < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01
    z = drawn(random_bits.normal, 20000, np.float64)
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.02
    assert drawn(random_bits.normal, 3, np.float16).dtype == np.float16
    whole = drawn(random_bits.randint, 1000, np.int32, bounds=(2, 5))
    assert whole.dtype == np.int32
    assert set(whole) == {2, 3, 4}
    wide = drawn(random_bits.randint, 100, np.int64, bounds=(-2**40, 2**40))
    assert wide.min() < -2**39 < 2**39 < wide.max()
    earlier, later = drawn(random_bits.uniform, 5, np.float32, offset=7), drawn(random_bits.uniform, 3, np.float32, offset=9)
    np.testing.assert_array_equal(earlier[2:], later)


# ------------------------------------------------------------------------------------------------------------------- errors

ERRORS = [
    (lambda: tg.fft.fft(tg.ones(5), n=-1), ArgumentError, "fft: the number of points must be positive, got -1"),
    (lambda: tg.fft.irfft(tg.ones(5), n=-3), ArgumentError, "irfft: the number of points must be positive, got -3"),
    (lambda: node(2, 3).reshape(4, 2), ShapeError, "reshape: .*6 elements"),
    (lambda: node(2, 3).view(-1, -1), ShapeError, "view: only one"),
    (lambda: node(2, 3).sum(2), IndexOutOfRange, "sum: dim 2 .*use -2 to 1"),
    (lambda: node(2, 3).sum((0, 0)), ArgumentError, "sum: .*twice"),
    (lambda: node(2, 3).mean(1.5), ArgumentError, "mean: dim must be an integer"),
    (lambda: node(2, 3, dtype=np.int64).mean(), DTypeError, r"mean: .*float\(\)"),
    (lambda: node(2, 3, dtype=np.int64).softmax(1), DTypeError, "softmax: "),
    (lambda: node(2, 0).amax(1), ArgumentError, "amax: .*empty"),
    (lambda: P["cat"]([node(2, 3), node(2)]), ShapeError, "cat: shapes"),
    (lambda: P["stack"]([node(2, 3), node(2)]), ShapeError, "stack: shapes"),
    (lambda: P["softmax"]([1.0, 2.0], 0), DTypeError, r"softmax: expected a Tensor, got list; use tg\.tensor"),
    (lambda: node(2, 3) @ node(2, 3), ShapeError, "matmul: .*transpose"),
    (lambda: P["mm"](node(2, 3), node(3)), ShapeError, "mm: takes 2-d"),
    (lambda: P["einsum"]("ij,jk->ik", node(2, 3), node(4, 5)), ShapeError, "einsum: the letter 'j'"),
    (lambda: P["einsum"]("ij->iz", node(2, 3)), ArgumentError, "einsum: 'z'"),
    (lambda: F["linear"](node(2, 3), node(4, 2)), ShapeError, "linear: input"),
    (lambda: F["conv2d"](node(1, 3, 5, 5), node(4, 2, 3, 3)), ShapeError, "conv2d: .*groups=1"),
    (lambda: F["conv2d"](node(1, 3, 2, 2), node(4, 3, 3, 3)), ShapeError, "conv2d: a kernel of 3 .*pad more"),
    (lambda: F["conv1d"](node(1, 3, 2), node(4, 3)), ShapeError, "conv1d: takes an input"),
    (lambda: F["max_pool2d"](node(1, 3, 2, 2), 3), ShapeError, "max_pool2d: a window"),
    (lambda: F["mse_loss"](node(3, 1), node(3)), ShapeError, r"mse_loss: input \(3, 1\) and target \(3,\)"),
    (lambda: F["mse_loss"](node(3), node(3), "avg"), ArgumentError, "mse_loss: reduction"),
    (lambda: F["cross_entropy"](node(3, 4), node(4, dtype=np.int64)), ShapeError, r"cross_entropy: target \(4,\) must have the"),
    (lambda: F["nll_loss"](node(3, 4), node(3)), DTypeError, "nll_loss: target must hold class numbers"),
    (lambda: node(2, 3)[2], IndexOutOfRange, "getitem: index 2 is out of range for dimension 0"),
    (lambda: node(2, 3)[[0, 5]], IndexOutOfRange, "getitem: index 5"),
    (lambda: node(2, 3)[0, 0, 0], IndexOutOfRange, "getitem: 3 indices"),
    (lambda: node(2, 3)["a"], TypeError, "getitem: an index must be"),
    (lambda: node(2, 3)[1.5], IndexError, "getitem: an index must be"),
    (lambda: node(2, 3)[0, 1.5:2], TypeError, "getitem: bad slice"),
    (lambda: node(2, 3)[node(2)], DTypeError, "getitem: index must hold integers"),
    (lambda: node(2, 3)[[True, False, True]], IndexOutOfRange, "getitem: a boolean mask"),
    (lambda: subscripts.setitem(node(2, 3), 0, node(2)), ShapeError, "setitem: a value of shape"),
    (lambda: node(2, 3).gather(1, node(2, dtype=np.int64)), ShapeError, "gather: index"),
    (lambda: F["layer_norm"](node(2, 3), 4), ShapeError, "layer_norm: normalized_shape"),
    (lambda: F["dropout"](node(2), 1.5), ArgumentError, "dropout: p"),
    (lambda: node(3).topk(4), ArgumentError, "topk: k"),
    (lambda: F["one_hot"](node(3, dtype=np.int64), 0), ArgumentError, "one_hot: num_classes"),
    (lambda: P["mm"](node(2, 3), node(2, 3)), ShapeError, r"mm: \(2, 3\) and \(2, 3\) do not fit"),
    (lambda: P["bmm"](node(2, 2, 3), node(2, 2, 3)), ShapeError, r"bmm: \(2, 2, 3\) and"),
    (lambda: P["dot"](node(3, dtype=bool), node(3, dtype=bool)), DTypeError, "dot: does not take bools"),
    (lambda: P["inner"](node(2, 3), node(3, 2)), ShapeError, "inner: the last sizes"),
    (lambda: P["addmm"](node(5, 2, 4), node(2, 3), node(3, 4)), ShapeError, "addmm: input"),
    (lambda: P["einsum"]("ii->i", node(1, 3)), ShapeError, "einsum: the letter 'i'"),
    (lambda: P["einsum"](node(2), "i"), ArgumentError, "einsum: an operand is followed by the list of its dimensions"),
    (lambda: P["einsum"](node(2), [52]), ArgumentError, "einsum: .*from 0 to 51"),
    (lambda: P["tensordot"](node(2, 3), node(3, 2), 3), ArgumentError, "tensordot: dims must be from 0 to 2"),
    (lambda: P["tensordot"](node(2, 3), node(3, 2), ([5], [0])), IndexOutOfRange, "tensordot: dim 5"),
    (lambda: F["linear"](node(2, 3), node(4, 3), node(3)), ShapeError, "linear: "),
    (lambda: F["conv1d"](node(1, 3, 5, dtype=bool), node(4, 3, 3, dtype=bool)), DTypeError, "conv1d: takes an input and a weight"),
    (lambda: F["conv2d"](node(1, 3, 5, 5), node(4, 3, 3, 3), node(1)), ShapeError, r"conv2d: bias \(1,\) must be \(4,\)"),
    (lambda: F["conv2d"](node(1, 3, 5, 5), node(4, 3, 0, 3)), ShapeError, "conv2d: the kernel"),
    (lambda: F["conv2d"](node(1, 3, 5, 5), node(4, 3, 3, 3), stride=1.5), ArgumentError, "conv2d: stride must be an integer"),
    (lambda: F["max_pool2d"](node(1, 3, 6, 6), None), ArgumentError, "max_pool2d: kernel_size must be an integer"),
    (lambda: F["avg_pool2d"](node(1, 3, 6, 6), 2, divisor_override=0), ArgumentError, "avg_pool2d: divisor_override"),
    (lambda: F["layer_norm"](node(2, 4), 4, node(1)), ShapeError, r"layer_norm: weight \(1,\) must be \(4,\)"),
    (lambda: F["layer_norm"](node(2, 4, dtype=np.int64), 4), DTypeError, "layer_norm: takes a float input"),
    (lambda: F["batch_norm"](node(2, 4), node(4), node(4), node(1)), ShapeError, r"batch_norm: weight \(1,\) must be \(4,\)"),
    (lambda: F["batch_norm"](node(2, 4), node(3), node(3)), ShapeError, r"batch_norm: running_mean \(3,\) must be \(4,\)"),
    (lambda: F["batch_norm"](node(2, 4), node(4), training=True), ArgumentError, "batch_norm: running_mean and running_var are given both"),
    (lambda: F["group_norm"](node(2, 4), 0), ShapeError, "group_norm: "),
    (lambda: F["scaled_dot_product_attention"](node(4, 5), node(6, 5), node(6, 3), node(4, 6, dtype=np.int64)), DTypeError,
     r"scaled_dot_product_attention: .*mask\.bool\(\)"),
    (lambda: F["mse_loss"](node(3), 1.0), DTypeError, "mse_loss: target must be a Tensor"),
    (lambda: F["cross_entropy"](node(3, 4), node(3, dtype=np.int64), label_smoothing=1.5), ArgumentError, "cross_entropy: label_smoothing"),
    (lambda: F["cross_entropy"](node(3, 4), node(3, 4), ignore_index=1), ArgumentError, "cross_entropy: ignore_index 1 means nothing"),
    (lambda: F["huber_loss"](node(3), node(3), delta=0.0), ArgumentError, "huber_loss: delta"),
    (lambda: F["cross_entropy"](node(3, 4), node(3, dtype=np.int64), ignore_index=1.5), TypeError,
     "cross_entropy: ignore_index must be an integer"),
    (lambda: F["nll_loss"](node(3, 4), node(3, dtype=np.int64), ignore_index=1.0), TypeError, "nll_loss: ignore_index must be an integer"),
    (lambda: F["embedding"](node(3, dtype=np.int64), node(3, 4), padding_idx=1.0), TypeError, "embedding: padding_idx must be an integer"),
    (lambda: F["avg_pool2d"](node(1, 3, 6, 6), 2, divisor_override=2.5), TypeError, "avg_pool2d: divisor_override must be an integer"),
    (lambda: node(3).topk(1.5), ArgumentError, "topk: k must be an integer"),
    (lambda: node(0, 3).median(0), ArgumentError, "median: dimension 0"),
    (lambda: F["kl_div"](node(3), node(2)), ShapeError, "kl_div: shapes"),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), ERRORS, ids=[m.split(" ")[0] + str(i) for i, (_, _, m) in enumerate(ERRORS)])
def test_errors_name_the_function_and_the_way_out(wrong: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match="^" + message):
        wrong()


# ------------------------------------------------------------------------------------------------- torch's meanings, as facts

F32, F16, I8 = np.float32, np.float16, np.int8


def t(values: Any, dtype: Any = np.float64) -> Any:
    return tg.tensor(np.asarray(values, dtype))


MEANINGS = {
    # what torch 2.13 gives: (call, values, dtype)
    "tuples are lists of indices": (lambda: t([[1, 2], [3, 4], [5, 6]])[(0, 2), (1, 0)], [2, 5], np.float64),
    "a tuple of bools is a mask": (lambda: t([[1, 2], [3, 4], [5, 6]])[(True, False, True), 1:], [[2], [6]], np.float64),
    "scatter multiplies": (lambda: t([1, 3], F32).scatter(0, t([1, 0, 1], np.int64), t([5, 7, 2], F32), reduce="multiply"), [7, 30], F32),
    "scatter multiplies by a number": (lambda: t([1, 2], F32).scatter_(0, t([1], np.int64), 4, reduce="multiply"), [1, 8], F32),
    "0-d tensors do not widen": (lambda: t([1, 2], F32) + t(0.5), [1.5, 2.5], F32),
    "0-d tensors raise the category": (lambda: t([1, 2], I8) * t(0.5), [0.5, 1], np.float64),
    "0-d integers do not widen": (lambda: t([1, 2], I8) + t(3, np.int64), [4, 5], I8),
    "numpy scalars are weak": (lambda: t([1, 2], F32) * np.float64(0.5), [0.5, 1], F32),
    "numpy scalars are weak on the left": (lambda: np.sqrt(4.0) * t([1, 2], F16), [2, 4], F16),
    "where is a method of the first choice": (lambda: t([1, 2, 3]).where(t([1, 0, 1], bool), 0.0), [1, 0, 3], np.float64),
    "where of two numbers": (lambda: tg.where(t([1, 0], bool), 1, 2.5), [1, 2.5], F32),
    "integers to negative powers": (lambda: t([1, -1, 2, -1], np.int32) ** t([-3, -3, -1, -2], np.int32), [1, -1, 0, 1], np.int32),
    "the power 0.5 is sqrt": (lambda: 1 / t([-0.0, -inf, 4]) ** 0.5, [-inf, nan, 0.5], np.float64),
    "trunc division is exact": (lambda: t([2**62 + 1, -7, 7], np.int64).div(t([1, 2, -2], np.int64), rounding_mode="trunc"),
                                [2**62 + 1, -3, -3], np.int64),
    "trunc division keeps the dtype": (lambda: t([7, -7], I8).div(2, rounding_mode="trunc"), [3, -3], I8),
    "sign of NaN": (lambda: t([nan, -0.0, -inf]).sign(), [0, 0, -1], np.float64),
    "clamp to NaN": (lambda: t([1, nan]).clamp(min=nan), [nan, nan], np.float64),
    "clamp to a tensor with NaN": (lambda: t([1, 5]).clamp(max=t([nan, 2])), [nan, 2], np.float64),
    "any of no dims": (lambda: t([[0, 2]]).any(dim=()), [[False, True]], bool),
    "norm of powers below 1": (lambda: t([[0, 4], [0, 9]]).norm(0.5, dim=1), [4, 9], np.float64),
    "correction None": (lambda: t([1, 3]).var(correction=None), 2, np.float64),
    "logical of numbers": (lambda: t([0, 2]).logical_or(1.5), [True, True], bool),
    "arange of numpy integers": (lambda: tg.arange(np.int64(3)), [0, 1, 2], np.int64),
    "arange by names": (lambda: tg.arange(start=1, end=6, step=2), [1, 3, 5], np.int64),
    "tensor of arrays": (lambda: tg.tensor([np.ones(2), np.zeros(2)]), [[1, 1], [0, 0]], np.float64),
    "float is float64": (lambda: tg.tensor([1], dtype=float), [1], np.float64),
    "full of a numpy scalar": (lambda: tg.full((2,), np.int32(3)), [3, 3], np.int64),
    "randint by names": (lambda: tg.randint(1, size=(2,)), [0, 0], np.int64),
    "randint_like": (lambda: tg.randint_like(t([1, 2]), 5, 6), [5, 5], np.float64),
    "new_full": (lambda: t([1], F16).new_full((2,), 3), [3, 3], F16),
    "sizes by name": (lambda: tg.expand(t([[1], [2]]).permute(dims=(1, 0)).repeat(repeats=(1, 1)), size=(2, 2)), [[1, 2], [1, 2]],
                      np.float64),
    "squeeze of no dims": (lambda: t([[1]]).squeeze(()), [[1]], np.float64),
    "index False": (lambda: t([1, 2])[False], np.zeros((0, 2)), np.float64),
    "a 0-d mask": (lambda: t(3)[t(True, bool)], [3], np.float64),
    "a range as index": (lambda: t([1, 2, 3])[range(1, 3)], [2, 3], np.float64),
    "negative floats as uint8 wrap": (lambda: t(np.arange(-20.0, 20.0)).to(tg.uint8), [*range(236, 256), *range(20)], np.uint8),
    "a negative float as uint8 wraps": (lambda: t([-1.5, 300.0]).to(tg.uint8), [255, 44], np.uint8),
    "scatter of nothing": (lambda: t([1, 2]).scatter_add(0, t([], np.int64), t([])), [1, 2], np.float64),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", MEANINGS)
def test_torchs_meanings(name: str) -> None:
    call, values, dtype = MEANINGS[name]
    got, expected = call(), np.asarray(values, dtype)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(got.numpy(), expected)


GRADIENTS = {
    # at points where the rule divides by zero or ties: (function, point, torch's gradient of the sum)
    "pow at a zero exponent": (lambda a, b: a**b, ([0, 2], [0, 0]), ([0, 0], [0, np.log(2)])),
    "pow of a negative base": (lambda a, b: a**b, ([-2, 0], [2, -1]), ([-4, -inf], [nan, -inf])),
    "atan2 at the origin": (tg.atan2, ([0, 1], [0, 1]), ([0, 0.5], [0, -0.5])),
    "maximum with a NaN": (tg.maximum, ([nan, 1], [1, 1]), ([1, 0.5], [1, 0.5])),
    "std of equal values": (lambda a: a.std(), ([2, 2],), ([0, 0],)),
    "norm of powers below 1 at zero": (lambda a: a.norm(0.5), ([0, 4],), ([0, 1],)),
    "floor": (lambda a: a.floor(), ([0.5, 1],), ([0, 0],)),
    "sign": (lambda a: a.sign(), ([0.5, 1],), ([0, 0],)),
    "a scatter of nothing": (lambda a: a[a > 9], ([0.5, 1],), ([0, 0],)),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", GRADIENTS)
def test_torchs_gradients_at_singular_points(name: str) -> None:
    function, points, expected = GRADIENTS[name]
    inputs = [t(p).requires_grad_() for p in points]
    for got, want in zip(tg.autograd.grad(function(*inputs).sum(), inputs), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want)


def test_names_that_torch_has_as_functions_methods_and_dtypes() -> None:
    for name in ("clone", "numel", "is_floating_point", "is_tensor", "randint_like", "bool", "float", "int", "short"):
        assert hasattr(tg, name), name
    for name in ("short", "byte", "char", "new_full", "new_empty", "cumprod_", "relu_", "where"):
        assert hasattr(tg.Tensor, name), name
    x = t([-1.0, 2.0])
    assert tg.nn.functional.relu(x, inplace=True) is x
    assert x.tolist() == [0, 2]
    with pytest.raises(DTypeError, match=r"^clone: "):
        tg.clone([1.0])


@one_of(5, ("n", "dtype"), product([1, 5, 100], ["int8", "int16", "int32", "int64"]), first=2)
def test_signed_integers_wrap_also_where_they_are_compared(dtype: str, n: int) -> None:
    """A C compiler may take it that they never overflow, and make `x * 2 > 5` of it `x > 2`."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(0)
    x, y = (rng.integers(limits.min, limits.max, n, dtype=dtype) for _ in range(2))
    x[0] = limits.min
    a, b = tg.tensor(x), tg.tensor(y)
    with np.errstate(all="ignore"):
        for f in (lambda x, y: x * 2 > 5, lambda x, y: x + y > x, lambda x, y: x - y < x, lambda x, y: x * y, lambda x, y: -x > 0):
            np.testing.assert_array_equal(f(a, b).numpy(), f(x, y))


@pytest.mark.parametrize("make", [lambda: tg.randn(3, 4), lambda: tg.arange(5), lambda: tg.ones(2, requires_grad=True),
                                  lambda: tg.randn(2).half(), lambda: tg.nn.Parameter(tg.ones(3))])
def test_tensors_are_pickled(make: Any) -> None:
    x = make()
    back = pickle.loads(pickle.dumps(x))
    assert type(back) is type(x)
    assert (back.dtype, back.requires_grad) == (x.dtype, x.requires_grad)
    np.testing.assert_array_equal(back.detach().numpy(), x.detach().numpy())


def test_ranges_of_integers_between_floats():
    """As torch has it: of int64 the ends are rounded towards 0, of narrower integers the values."""
    cases = [((0.5, 3.7), [0, 1, 2], [0, 1, 2, 3]), ((-1.5, 3.2), [-1, 0, 1, 2], [-1, 0, 1, 2, 3]),
             ((0.0, 5.5, 1.5), [0, 1, 2, 3, 4], [0, 1, 2, 3]), ((5.0, -2.5, -1.5), [5, 4, 3, 2, 1, 0, -1], [5, 4, 3, 2, 1])]
    for args, wide, narrow in cases:
        assert tg.arange(*args, dtype=tg.int64).tolist() == wide
        assert tg.arange(*args, dtype=tg.int32).tolist() == narrow
    with pytest.raises(tg.ArgumentError, match="step"):
        tg.arange(0.0, 3.0, 0.5, dtype=tg.int64)
