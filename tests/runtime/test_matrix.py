"""What every driver has to get right: one traced program for each family of kernels, beside the interpreter. `pytest -m matrix`.

Each program runs twice, with the schedule of the device and with that for GPUs (work-group trees, local-memory tiles), which a CPU
driver executes as well. Kernels read all of a group's sizes: vectors with a rest, rows and columns with and without chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tracegrad import nn, optim
from tracegrad.errors import LinAlgError, UnsupportedError
from tracegrad.execute.devices import NUMPY
from tracegrad.runtime.device import Device
from tracegrad.support.tuning import Tuning, tuned

pytestmark = [pytest.mark.matrix, pytest.mark.long]        # .ci/run runs them on every driver
F4, F8 = np.dtype("float32"), np.dtype("float64")


@pytest.fixture(scope="module", params=["own_schedule", "gpu_schedule"])
def on(request: Any) -> Iterator[Any]:
    """The default device, and the same one planned for as if it were a GPU."""
    found = previous = tg.device()
    if found.kind == "numpy":
        pytest.skip("the default device is the interpreter")
    if request.param == "gpu_schedule":
        if found.target.kind == "gpu":
            pytest.skip("this device is planned for as a GPU already")
        found = Device(previous.cl_device, previous.cl_basic)
        found.target = replace(previous.target, kind="gpu", local_memory=32768, plain_math=False, clang_builtins=False,
                               max_work_group=min(256, previous.target.max_work_group))
    yield found
    tg.set_device(previous)


@pytest.fixture(params=["float32", "float64"])
def dtype(request: Any, on: Any) -> Any:
    if request.param == "float64" and not on.target.fp64:
        pytest.skip(f"{on.name} has no float64")
    if request.param == "float64" and (on.kind, on.target.kind) == ("cpu", "gpu"):
        pytest.skip("the schedule for GPUs is tried in float32")
    return np.dtype(request.param)


def draw(dtype: Any, *shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def compute(device: Any, fn: Callable[..., Any], arrays: Any) -> list[Any]:
    tg.set_device(device)
    found = tg.trace(fn)(*[tg.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays])
    return [x.numpy() for x in (found if isinstance(found, (tuple, list)) else [found])]


def check(on: Any, fn: Callable[..., Any], *arrays: Any, tolerance: float = 4e-6) -> None:
    """fn traced on the device gives what it gives on the interpreter; tolerance: float32's, of the largest result."""
    wanted = compute(NUMPY, fn, arrays)
    for number, (g, w) in enumerate(zip(compute(on, fn, arrays), wanted, strict=True)):
        assert (g.shape, g.dtype) == (w.shape, w.dtype), f"result {number}"
        if g.dtype.kind != "f":
            np.testing.assert_array_equal(g, w, err_msg=f"result {number}")
            continue
        close = tolerance if g.dtype == F4 else tolerance * 1e-7
        scale = np.max(np.abs(w), initial=0, where=np.isfinite(w))
        np.testing.assert_allclose(g, w, rtol=close, atol=close * scale, err_msg=f"result {number}")


# ------------------------------------------------------------------------------------------------------------ one item, one value


def test_elementwise(on: Any, dtype: Any) -> None:
    def fn(x: Any, y: Any, row: Any, column: Any, scalar: float) -> Any:
        p = x.abs() + 0.5
        return (x * y + row - column / p, x * scalar + 1, x.exp(), p.log(), p.sqrt(), p.rsqrt(), x.sin(), x.cos(), x.tanh(), x.sigmoid(),
                x.erf(), x.expm1(), p.log1p(), p**1.5, x**3, tg.atan2(x, y), F.gelu(x), F.softplus(x), x.floor(), x.round(), x.trunc(),
                tg.where(x > y, x, -y), tg.maximum(x, row), x.clamp(-0.5, 0.5), tg.remainder(x, p), (x > 0) & (y > 0) | ~(x < -1),
                x.isnan(), (x * 7).to(dtype=tg.int32))
    check(on, fn, *draw(dtype, (37, 53), (37, 53), (53,), (37, 1)), 0.3, tolerance=1e-5)
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1.0, -1.0], dtype)
    check(on, lambda x: (x + 1, x * 2, x.abs(), x.sqrt(), x.exp(), x.tanh(), x.isinf(), x.relu(), tg.minimum(x, x.flip(0)), x == x),
          edges, tolerance=1e-5)


def test_special_functions(on: Any, dtype: Any) -> None:
    def fn(x: Any, n: Any) -> Any:
        legendre = tg.grad(lambda x: tg.special.legendre_polynomial_p(x, n).sum())(x)
        return (tg.erfc(x * 4), tg.special.ndtr(x), tg.special.bessel_j0(x * 9), tg.special.entr(x), tg.special.hermite_polynomial_he(x, 7),
                tg.special.shifted_chebyshev_polynomial_t(x, n), legendre)

    check(on, fn, *draw(dtype, (5, 37)), np.arange(37) % 9)


def test_names_that_kernels_use_themselves(on: Any) -> None:
    def fn(i: Any, r: Any, c0: Any, c1: Any, chunk: Any, item: Any, half: Any, half_size: Any) -> Any:
        col = i * r + c0 * c1 - chunk * item + half * half_size
        row = col.transpose(0, 1).sum((0, 2))
        return col, row, col.sum(-1), col.sum(0), col.sum(), i.softmax(-1), item.amax(0), (chunk + r).flatten().mean()

    check(on, fn, *draw(np.float32, *[(64, 32, 40)] * 8), tolerance=2e-5)


@pytest.mark.parametrize("name", ["uint8", "int16", "uint16", "int32", "int64", "uint64", "bool"])
def test_integers(on: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2 if name == "bool" else 120, (33, 19)).astype(name) for _ in range(2))

    def fn(x: Any, y: Any) -> Any:
        out = [x & y, x | y, x ^ y, ~x, x == y, x < y, x.sum(), x.sum(0), x.amax(1), x.any(0), x.all(1), x.argmax(1), tg.where(x > y, x, y)]
        return out if name == "bool" else [*out, x + y, x * y, x - y, x // (y + 1), x % (y + 1), x << 2, x >> 1, x.cumsum(1), x.prod(0)]
    check(on, fn, a, b)


def test_movement(on: Any, dtype: Any) -> None:
    def fn(x: Any) -> Any:
        return (x.permute(2, 0, 1) + 1, x.transpose(0, 2).reshape(-1) * 2, x.flip(0, 2) - x, x[1:9:2, 2:, ::3].exp(), x[..., None, 0] + 1,
                tg.cat([x, x * 2], 1) + 1, tg.stack([x, -x]).sum(0), F.pad(x, (1, 2, 0, 3)) * 2, x.roll(3, 1) + x, x[0].tril(),
                x[0].triu(1), x.repeat(2, 1, 1), *x.chunk(2, 1), tg.eye(5), tg.arange(7), tg.linspace(0, 1, 9),
                x[:, :1].expand(-1, 4, -1).sum(1))
    check(on, fn, *draw(dtype, (10, 20, 30)))


# -------------------------------------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("shape", [(40, 300, 3), (5, 1, 7), (3, 17, 64), (1, 1, 40_000), (3000, 2, 33), (0, 3, 2)])
def test_reductions(on: Any, dtype: Any, shape: Any) -> None:
    def fn(x: Any) -> Any:
        sums = [(x * x).sum(dim) for dim in (0, 1, 2, (0, 1), (0, 2), (1, 2))]
        if 0 in shape:
            return [*sums, x.sum()]
        return [*sums, x.mean(), x.amax((0, 2)), x.amin(1), x.var(2), x.std(), x.norm(), x.logsumexp(1), x.argmax(2), x.argmin(0),
                (x > 0).any(1), (x > 0).all((0, 1)), (x * 0.01 + 1).prod(2)]
    x, = draw(dtype, shape)
    check(on, fn, x, tolerance=2e-5)


def test_rows_that_are_used_again(on: Any, dtype: Any) -> None:
    """Softmax, norms and losses: what is read more than once per row, and their gradients."""
    def fn(x: Any, w: Any, labels: Any) -> Any:
        loss, slope = tg.value_and_grad(lambda x: F.cross_entropy(x * 2, labels))(x)
        norm = tg.grad(lambda x, w: (F.layer_norm(x, (x.shape[-1],), w, w) ** 3).mean(), argnums=(0, 1))(x, w)
        return [x.softmax(-1), x.softmax(0), x.log_softmax(-1), loss, slope, *norm]
    for rows, cols in ((33, 10), (7, 300), (2, 5000)):
        x, w = draw(dtype, (rows, cols), (cols,))
        check(on, fn, x, w, np.random.default_rng(0).integers(0, cols, rows), tolerance=2e-5)


def test_rows_that_are_fetched_ahead(on: Any, dtype: Any) -> None:
    """Two passes over each of rows that no cache holds; the last row has no next one."""
    def fn(x: Any, labels: Any) -> Any:
        return [F.cross_entropy(x, labels), x.softmax(-1).amax(-1)]
    x, = draw(dtype, (700, 512))
    check(on, fn, x, np.random.default_rng(0).integers(0, 512, 700), tolerance=2e-5)


# ----------------------------------------------------------------------------------------------------- products and convolutions


@pytest.mark.parametrize("sizes", [
    (1, 1, 1), (5, 7, 3), (64, 64, 64), (33, 130, 70), (1, 200, 90), (128, 300, 1), (200, 17, 150), (7, 3000, 13),
])
def test_products(on: Any, dtype: Any, sizes: Any) -> None:
    m, k, n = sizes

    def fn(a: Any, b: Any, bias: Any) -> Any:
        y = a @ b
        return (y, F.relu(F.linear(a, b.t(), bias)), b.t() @ a.t() + 1, a.t().contiguous().t() @ b * 2, a.t() @ y, y @ b.t(),
                tg.einsum("ij,kj->ik", a, a))
    check(on, fn, *draw(dtype, (m, k), (k, n), (n,)), tolerance=2e-5)


def test_batched_products(on: Any, dtype: Any) -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.transpose(-1, -2), tg.bmm(q[0], v[0]), F.scaled_dot_product_attention(q, k, v), q[0, 0] @ v[0, 0, :, 0],
                tg.dot(q[0, 0, 0], v[0, 0, :, 0]), tg.outer(q[0, 0, 0], k[0, 0, 0]))
    check(on, fn, *draw(dtype, (2, 3, 19, 19), (2, 3, 19, 19), (2, 3, 19, 19)), tolerance=2e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_in_tiles(on: Any, dtype: Any, causal: bool) -> None:
    """Enough scores for kernels of its own; sizes that no block divides."""
    def loss(q: Any, k: Any, v: Any) -> Any:
        return (F.scaled_dot_product_attention(q, k, v, is_causal=causal) ** 2).sum()
    check(on, lambda q, k, v: (F.scaled_dot_product_attention(q, k, v, is_causal=causal), *tg.grad(loss, argnums=(0, 1, 2))(q, k, v)),
          *draw(dtype, (2, 77, 33), (2, 100, 33), (2, 100, 17)), tolerance=5e-5)


def test_transposed_reads_short_rows_and_equal_kernels(on: Any, dtype: Any) -> None:
    def fn(x: Any, y: Any, z: Any) -> Any:
        return (x.t() + y, (x.t() * y).sum(0), z.softmax(-1), z.transpose(0, 1).softmax(-1), *(x[0, :n] * 2 + 1 for n in (7, 33, 100)))
    check(on, fn, *draw(dtype, (130, 150), (150, 130), (40, 30, 10)))


@pytest.mark.parametrize(("x", "w", "options"), [
    ((4, 3, 9, 17), (5, 3, 3, 3), dict(padding=1)),
    ((2, 4, 8, 8), (6, 2, 3, 3), dict(stride=2, padding=1, groups=2)),
    ((2, 4, 9, 20), (4, 1, 3, 3), dict(groups=4)),
    ((1, 3, 12, 11), (2, 3, 3, 2), dict(dilation=2)),
    ((2, 16, 14, 14), (16, 16, 3, 3), dict(padding=1)),
])
def test_convolutions(on: Any, dtype: Any, x: Any, w: Any, options: Any) -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        def pooled(x: Any, w: Any, b: Any) -> Any:
            return (F.max_pool2d(F.conv2d(x, w, b, **options).relu(), 2) ** 2).sum()
        return (F.conv2d(x, w, b, **options), F.conv1d(x[:, :, 0], w[:, :, 0], b, **options), F.avg_pool2d(x, 2),
                *tg.grad(pooled, argnums=(0, 1, 2))(x, w, b))
    check(on, fn, *draw(dtype, x, w, (w[0],)), tolerance=2e-5)


@pytest.mark.parametrize(("x", "w", "options"), [
    ((2, 6, 19, 33), (6, 1, 3, 3), dict(groups=6, padding=1)),
    ((2, 6, 20, 31), (12, 1, 3, 3), dict(groups=6, stride=2, padding=1)),
    ((2, 8, 33, 29), (5, 8, 3, 3), dict(stride=2, padding=1)),
    ((2, 3, 37, 40), (16, 3, 7, 7), dict(stride=(3, 2), padding=3)),
])
def test_gradients_of_strided_and_depthwise_convolutions(on: Any, dtype: Any, x: Any, w: Any, options: Any) -> None:
    def fn(x: Any, w: Any) -> Any:
        return tg.grad(lambda x, w: (F.conv2d(x, w, **options) ** 2).sum(), argnums=(0, 1))(x, w)
    check(on, fn, *draw(dtype, x, w), tolerance=2e-5)


def test_windows_that_overlap(on: Any, dtype: Any) -> None:
    def fn(x: Any) -> Any:
        slope = tg.grad(lambda x: (F.max_pool2d(x, 3, 2, 1) ** 2).sum())(x)
        return F.max_pool2d(x, 3, 2, 1), slope, F.conv_transpose2d(x, x[:7, :, :3, :4], stride=2)
    check(on, fn, *draw(dtype, (7, 7, 33, 40)), tolerance=2e-5)


def test_long_scans(on: Any, dtype: Any) -> None:
    check(on, lambda x: (x.flatten().cumsum(0), x.cumsum(1), x.flatten().flip(0).cumsum(0)), *draw(dtype, (3, 70_001)), tolerance=2e-4)


def test_coordinates(on: Any, dtype: Any) -> None:
    """A short last dimension inside of what is reduced: pairs of particles."""
    def energy(x: Any) -> Any:
        d = x[:, None] - x
        return (1 / ((d * d).sum(-1) + 1)).sum()
    for n, k in ((7, 3), (33, 2), (100, 3), (129, 4)):
        check(on, lambda x: (energy(x), tg.grad(energy)(x), x.sum(1), (x * x).sum(0), x.roll(1, 1) + x.roll(-1, 0)), *draw(dtype, (n, k)),
              tolerance=5e-5)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
def test_many_small_matrices(on: Any, dtype: Any, n: int) -> None:
    def fn(a: Any) -> Any:
        p = a @ a.mT + tg.eye(n, dtype=a.dtype)
        values, vectors = tg.linalg.eigh(p)
        u, s, vh = tg.linalg.svd(a)
        return values, (vectors * values[:, None]) @ vectors.mT, s, (u * s[:, None]) @ vh, tg.linalg.solve(p, a), tg.linalg.cholesky(p)
    check(on, fn, *draw(dtype, (37, n, n)), tolerance=2e-4)


@pytest.mark.parametrize("n", [3, pytest.param(16, marks=pytest.mark.slow)])
def test_functions_of_many_small_matrices(on: Any, dtype: Any, n: int) -> None:
    def fn(a: Any, b: Any) -> Any:
        c = a + 4 * tg.eye(n, dtype=a.dtype)
        return (tg.linalg.matrix_exp(a), tg.func.jvp(tg.linalg.matrix_exp, (a,), (b,))[1], tg.linalg.pinv(c[..., :-1]),
                tg.linalg.lstsq(c[..., :-1], b).solution, tg.linalg.polar(c).U, *tg.geqrf(c),
                tg.linalg.lu_solve(*tg.linalg.lu_factor(c), b), tg.grad(lambda x: tg.linalg.det(x / n ** 0.5).sum())(c))
    check(on, fn, *draw(dtype, (37, n, n), (37, n, n)), tolerance=5e-4)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_many_small_matrices_of_complex_numbers(on: Any, dtype: Any, n: int) -> None:
    def fn(x: Any, y: Any) -> Any:
        a = tg.complex(x, y)
        p = a @ a.mH + tg.eye(n, dtype=x.dtype)
        values, vectors = tg.linalg.eigh(p)
        u, s, vh = tg.linalg.svd(a)
        every = ((vectors * values[:, None]) @ vectors.mH, (u * s[:, None]) @ vh, tg.linalg.solve(p, a),
                 tg.linalg.solve_triangular(p, a, upper=True), tg.linalg.cholesky(p))
        return values, s, *(tg.view_as_real(z) for z in every)
    check(on, fn, *draw(dtype, (37, n, n), (37, n, n)), tolerance=2e-4)


def test_eigenvalues_of_many_small_matrices(on: Any, dtype: Any) -> None:
    """What does not depend on their order; 1 and what is left of A V - V diag(w)."""
    def fn(x: Any, y: Any) -> Any:
        found = []
        for a in (x, tg.complex(x, y)):
            w, v = tg.linalg.eig(a)
            found += [tg.view_as_real(w.sum(-1)), tg.view_as_real((w * w).sum(-1)), (abs(v) ** 2).sum(-2),
                      1 + abs(a.to(v.dtype) @ v - v * w[:, None])]
        return tuple(found)
    check(on, fn, *draw(dtype, (37, 3, 3), (37, 3, 3)), tolerance=2e-4)


def test_large_matrices(on: Any, dtype: Any) -> None:
    """Block by block where there is local memory; columns of L and rows of U are those of the interpreter."""
    n = 70

    def fn(a: Any, b: Any) -> Any:
        p = a @ a.mT + tg.eye(n, dtype=a.dtype)
        packed, pivots = tg.linalg.lu_factor(a)
        sign, size = tg.linalg.slogdet(a / 8)
        return (tg.linalg.cholesky(p), packed, pivots, tg.linalg.solve(p, b), tg.linalg.inv(p), sign, size,
                tg.linalg.solve_triangular(p, b, upper=True), tg.linalg.solve_triangular(p / n, b, upper=False, unitriangular=True))
    tuning = Tuning(factor_shared=16, factor_block=8, factor_rows=16, factor_items=16)
    with tuned(tuning):
        check(on, fn, *draw(dtype, (2, n, n), (2, n, 3)), tolerance=1e-3)


def test_impossible_large_matrices(on: Any) -> None:
    """The first matrix, and its first pivot, as LAPACK's: whatever computes them."""
    rng, n = np.random.default_rng(0), 40
    x = rng.standard_normal((2, n, n)).astype(F4)
    bad = x @ x.swapaxes(-1, -2) / n + np.eye(n, dtype=F4)
    bad[1, 20, 20] = bad[1, 33, 33] = -50
    zero = (x / n + 2 * np.eye(n)).astype(F4)
    zero[1, 3, 3] = zero[1, 37, 37] = 0
    with tuned(Tuning(factor_shared=16, factor_block=8, factor_rows=16, factor_items=16)):
        for fn, a, words in ((tg.linalg.cholesky, bad, r"^cholesky: matrix 1 of .*not positive definite \(pivot 21\)"),
                             (lambda a: tg.linalg.solve_triangular(a, a, upper=True), zero, r"matrix 1 of .*element \(3, 3\) is 0"),
                             (tg.linalg.inv, x * 0, r"^inv: matrix 0 of .*singular \(pivot 1\)")):
            tg.set_device(on)
            with pytest.raises(LinAlgError, match=words):
                tg.trace(fn)(tg.tensor(a)).numpy()


@pytest.mark.parametrize("n", [30, 48, 13, 37, 256])
def test_fourier_transforms(on: Any, dtype: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns, backwards, of and to real numbers; a prime; as kernels, in local memory where there is some."""
    monkeypatch.setattr(tg.config, "fourier", "kernels")

    def fn(x: Any, y: Any) -> Any:
        z = tg.complex(x, y)
        found = (tg.fft.fft2(z), tg.fft.ifft(z, dim=0, norm="ortho"), tg.fft.rfft(x * y))
        return *(tg.view_as_real(f) for f in found), tg.fft.irfft(z, n=n), tg.fft.hfft(z, dim=0)
    check(on, fn, *draw(dtype, (n, n), (n, n)), tolerance=2e-5)


def test_grouped_queries_and_many_keys(on: Any, dtype: Any) -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            return (F.scaled_dot_product_attention(q, k, v, enable_gqa=True) ** 2).sum()
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True), *tg.grad(loss, argnums=(0, 1, 2))(q, k, v)
    check(on, fn, *draw(dtype, (1, 4, 40, 32), (1, 2, 700, 32), (1, 2, 700, 32)), tolerance=1e-4)


# -------------------------------------------------------------------------------------------- indices, scans, sorting, random numbers


def test_gather_and_scatter(on: Any, dtype: Any) -> None:
    def fn(x: Any, rows: Any, where: Any) -> Any:
        table = tg.grad(lambda t: (F.embedding(rows, t) ** 2).sum())(x)
        y = x.clone()
        y[x < 0] = 0
        y[rows[:3]] = 1
        return (x[rows], x.index_select(1, rows[:9]), x.gather(0, where), tg.zeros_like(x).scatter_add(0, where, x), table,
                x[rows, rows % 5], x.take_along_dim(where, 0), y)
    rng = np.random.default_rng(0)
    x, = draw(dtype, (20, 33))
    check(on, fn, x, rng.integers(0, 20, 50), rng.integers(0, 20, (20, 33)))


def test_running_sums_of_a_million_numbers(on: Any) -> None:
    """What the chunks before one make is put together without a rounding for each."""
    x, = draw(F4, (1_000_000,))
    got, = compute(on, lambda x: x.cumsum(0), [x])
    wanted = np.cumsum(x, dtype=F8)
    assert np.abs(got - wanted).max() <= 1.3e-7 * np.abs(wanted).max()


def test_indices_out_of_range_are_reported(on: Any) -> None:
    """By the results that depend on them, and no others: in vectors, in scalar rests, in work-groups, in kernels of their own."""
    tg.set_device(on)
    rng = np.random.default_rng(0)
    x, = (tg.tensor(a) for a in draw(F4, (20, 33)))
    good = [rng.integers(0, 20, 50), rng.integers(0, 20, (20, 33)).astype(np.int32), rng.integers(0, 33, 20), rng.integers(0, 20, 20)]
    f = tg.trace(lambda x, rows, where, labels, places: (
        x[rows] * 2, x.gather(0, where).sum(1), F.cross_entropy(x, labels), tg.zeros_like(x).index_add(0, places, x), x + 1))
    names = ("getitem", "gather", "cross_entropy", "index_add")
    for k, name in enumerate(names):
        for place, wrong in ((0, -40), (-1, 40)):
            indices = [a.copy() for a in good]
            indices[k].reshape(-1)[place] = wrong
            results = f(x, *map(tg.tensor, indices))
            for j, result in enumerate(results):
                if j != k:
                    result.numpy()
                    continue
                with pytest.raises(tg.IndexOutOfRange, match=f"^{name} at .* holds {wrong}, "):
                    result.numpy()


@pytest.mark.parametrize("length", [1, 7, 64, 1000])
def test_scans_and_sorting(on: Any, dtype: Any, length: int) -> None:
    def fn(x: Any) -> Any:
        values, order = x.round().sort(-1)
        top, places = x.topk(min(3, length), -1)
        return x.cumsum(-1), x.cumsum(0), values, order, top, places, x.argsort(0), tg.grad(lambda x: (x.cumsum(-1) ** 2).sum())(x)
    check(on, fn, *draw(dtype, (5, length)), tolerance=5e-5)


@pytest.mark.parametrize("rows", [5, 100])
def test_the_few_largest(on: Any, dtype: Any, rows: int) -> None:
    """How many are kept is the size of small arrays, which a compiler takes apart for each size in another way."""
    x = np.random.default_rng(rows).permutation(rows * 60).reshape(rows, 60).astype(dtype)
    check(on, lambda x: [part for k in (1, 2, 3, 4, 5, 6, 7, 9, 16, 33) for part in x.topk(k, -1)], x)


def test_random_bits(on: Any) -> None:
    """The stream is the same on every device, bit for bit, and goes on from one replay to the next."""
    def streams(device: Any) -> Any:
        tg.set_device(device)
        tg.manual_seed(7)
        replay = tg.trace(lambda x: (tg.rand(1001), tg.randint(0, 1000, (33, 3)), F.dropout(x, 0.5)))
        return [y.numpy() for _ in range(2) for y in replay(tg.ones(40))]
    found, wanted = streams(on), streams(NUMPY)
    for g, w in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(g, w)
    assert not np.array_equal(found[0], found[3])

    def normal(device: Any) -> Any:
        tg.set_device(device)
        tg.manual_seed(7)
        return tg.randn(5000).numpy()
    np.testing.assert_allclose(normal(on), normal(NUMPY), rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------------------------------------------------------------- training


def test_training_step(on: Any) -> None:
    """A convolutional net, cross-entropy, Adam and SGD with momentum: parameters and losses of a few traced steps."""
    def losses(device: Any) -> Any:
        tg.set_device(device)
        tg.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 24), nn.LayerNorm(24),
                              nn.ReLU(), nn.Linear(24, 10))
        parameters = list(model.parameters())
        optimizers = [optim.Adam(parameters[:4], lr=1e-2), optim.SGD(parameters[4:], lr=1e-2, momentum=0.9)]

        @tg.trace
        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x), y)
            for o in optimizers:
                o.zero_grad()
            loss.backward()
            for o in optimizers:
                o.step()
            return loss
        rng = np.random.default_rng(2)
        x, y = tg.tensor(rng.standard_normal((32, 1, 8, 8)).astype(F4)), tg.tensor(rng.integers(0, 10, 32))
        return [step(x, y).item() for _ in range(8)], [p.detach().numpy() for p in parameters]
    (found, parameters), (wanted, wanted_parameters) = losses(on), losses(NUMPY)
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
    assert found[-1] < found[0]
    for g, w in zip(parameters, wanted_parameters, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-2, atol=1e-3)


def test_two_layer_net(on: Any) -> None:
    """The classic, with gradients by backward() and updates in place, beside float64 NumPy."""
    x, y, w1, w2 = draw(F8, (64, 200), (64, 10), (200, 50), (50, 10), seed=3)
    wanted, a, b = [], w1.copy(), w2.copy()
    for _ in range(30):
        h = np.maximum(x @ a, 0)
        error = h @ b - y
        wanted.append((error**2).sum())
        grad = 2 * error
        a, b = a - 1e-5 * (x.T @ ((grad @ b.T) * (h > 0))), b - 1e-5 * (h.T @ grad)

    tg.set_device(on)
    tx, ty, t1, t2 = (tg.tensor(v.astype(F4)) for v in (x, y, w1, w2))
    for w in (t1, t2):
        w.requires_grad_()

    @tg.trace
    def step(lr: float) -> Any:
        loss = (((tx @ t1).relu() @ t2 - ty) ** 2).sum()
        loss.backward()
        with tg.no_grad():
            for w in (t1, t2):
                w.sub_(w.grad, alpha=lr)
                w.grad = None
        return loss
    np.testing.assert_allclose([step(1e-5).item() for _ in range(30)], wanted, rtol=1e-3)
    np.testing.assert_allclose(t1.detach().numpy(), a, rtol=1e-3, atol=1e-3)
    assert len(step.compilations) == 1


def test_float64_is_refused_where_it_is_missing(on: Any) -> None:
    tg.set_device(on)
    x = np.arange(5, dtype=F8)
    if on.target.fp64:
        np.testing.assert_array_equal((tg.tensor(x) * 2).numpy(), x * 2)
    else:
        with pytest.raises(UnsupportedError, match="float64"):
            (tg.tensor(x) * 2).numpy()
