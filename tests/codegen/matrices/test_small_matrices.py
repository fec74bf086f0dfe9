"""Factorisations of many small matrices in kernels: against NumPy's LAPACK on every kind of target, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad import linalg as L
from tracegrad.errors import LinAlgError
from tracegrad.support.tuning import Tuning, tuned
from tracegrad.testing import gradcheck, gradgradcheck


def matrices(batch: tuple[int, ...], n: int, k: int, dtype: str) -> tuple[Any, ...]:
    """A, B, a positive definite one and a tall one."""
    rng = np.random.default_rng(100 * n + k)
    a, b = rng.standard_normal((*batch, n, n)), rng.standard_normal((*batch, n, k))
    tall = rng.standard_normal((*batch, n + 1, n)) if n < 16 else a
    return tuple(x.astype(dtype) for x in (a, b, a @ a.swapaxes(-1, -2) + n * np.eye(n), tall))


def everything(a: Any, b: Any, p: Any, tall: Any) -> Any:
    return (L.solve(a, b), L.inv(a), L.det(a), *L.slogdet(a), L.cholesky(p), L.cholesky_ex(p).info, L.inv_ex(a).info,
            L.solve_triangular(p, b, upper=True), L.solve_triangular(p, b, upper=False, unitriangular=True), *L.lu_factor(a), *L.lu(tall),
            *L.qr(a), *L.qr(tall, mode="complete"), *L.lu_factor(tall.mT))


def compare(found: Any, wanted: Any, dtype: str) -> None:
    for k, (y, w) in enumerate(zip(found, wanted, strict=True)):
        assert (y.shape, y.dtype) == (w.shape, w.dtype)
        if w.dtype.kind == "f":
            tolerance = 2e-3 if dtype == "float32" else 1e-9
            size = np.max(np.abs(w), where=np.isfinite(w), initial=1.0)
            np.testing.assert_allclose(y, w, rtol=tolerance, atol=tolerance * size, err_msg=f"result {k}")
        else:
            np.testing.assert_array_equal(y, w, err_msg=f"result {k}")


@pytest.mark.long
@pytest.mark.parametrize(("batch", "n", "k", "dtype"), [
    ((7,), 1, 1, "float64"), ((33,), 2, 3, "float32"), ((129,), 3, 1, "float64"), ((3, 11), 4, 2, "float32"), ((), 5, 5, "float64"),
    ((1,), 7, 1, "float32"), ((9,), 6, 1, "float64"), ((16,), 6, 2, "float32"), ((2,), 8, 3, "float32"), ((3,), 17, 1, "float64"),
])
def test_kernels_of_every_target_give_lapacks_results(batch: tuple[int, ...], n: int, k: int, dtype: str, on_numpy: None) -> None:
    with Checked(slack=50.0) as checked:
        for y in tg.trace(everything)(*map(tg.tensor, matrices(batch, n, k, dtype))):
            y.numpy()
    assert checked.count == 6


@pytest.mark.parametrize(("n", "dtype"), [(13, "float32"), (16, "float64")])
def test_kernels_of_larger_ones(n: int, dtype: str, on_numpy: None) -> None:
    with Checked({name: TARGETS[name] for name in ("avx2", "gpu")}, slack=50.0) as checked:
        f = tg.trace(lambda a, b, p, _: (L.solve(a, b), L.cholesky(p), L.det(a), L.qr(a).Q))
        for y in f(*map(tg.tensor, matrices((5,), n, 2, dtype))):
            y.numpy()
    assert checked.count == 2


@one_of(8, ("batch", "n", "k", "dtype"), [
    ((1000,), 2, 1, "float32"), ((129,), 4, 16, "float64"), ((1000,), 5, 2, "float32"), ((33,), 9, 1, "float64"), ((7,), 16, 3, "float32"),
    ((1,), 11, 2, "float64"), ((129,), 17, 1, "float64"), ((40,), 3, 17, "float32"),
])
def test_the_device_gives_lapacks_results(batch: tuple[int, ...], n: int, k: int, dtype: str) -> None:
    given = matrices(batch, n, k, dtype)
    f = tg.trace(everything)
    found = [y.numpy() for y in f(*map(tg.tensor, given))]
    with tuned(Tuning(matrix_size=0)):
        host = tg.trace(everything)
        wanted = [y.numpy() for y in host(*map(tg.tensor, given))]
        story = host.explain()
    compare(found, wanted, dtype)
    if tg.device().kind != "numpy":
        assert "LAPACK's: larger than 0 x 0" in story
        assert ("host code" in f.explain()) == (n > 16 or k > 16)
        assert n > 16 or "LAPACK's steps for" in f.explain()


def test_numbers_of_extreme_size() -> None:
    """Products on the way to a determinant may overflow; a norm's squares may, too."""
    a = np.stack([np.diag(x) for x in ([1e200, 1e200, 1e-200, -1e-200], [1e-200, 1e-200, 1e200, 3e200], [0.0, 1e300, 1e300, 1.0])])
    scaled = np.random.default_rng(0).standard_normal((3, 4, 4)) * np.array([1e200, 1.0, 1e-200])[:, None, None]
    d, q, r = (y.numpy() for y in tg.trace(lambda a, s: (L.det(a), *L.qr(s)))(tg.tensor(a), tg.tensor(scaled)))
    np.testing.assert_allclose(d, [-1.0, 3.0, 0.0], rtol=1e-12)
    wanted = np.linalg.qr(scaled)
    np.testing.assert_allclose(q, wanted[0], rtol=1e-9)
    np.testing.assert_allclose(r, wanted[1], rtol=1e-9)


def test_nan_stays_with_its_matrix() -> None:
    a = np.random.default_rng(0).standard_normal((9, 3, 3))
    p = a @ a.swapaxes(-1, -2) + np.eye(3)
    a[4, 1, 1] = p[6, 1, 1] = np.nan

    @tg.trace
    def f(a: Any, p: Any) -> Any:
        return L.det(a), *L.slogdet(a), L.cholesky(p), L.inv_ex(a).info, L.cholesky_ex(p).info, L.lu_factor(a).LU, L.qr(a).R

    found = [y.numpy() for y in f(tg.tensor(a), tg.tensor(p))]
    for k in (0, 1, 2, 6, 7):
        assert np.isnan(found[k].reshape(9, -1)).any(1).nonzero()[0].tolist() == [4], k
    assert np.isnan(found[3].reshape(9, -1)).any(1).nonzero()[0].tolist() == [6]
    assert found[4].nonzero()[0].tolist() == [4]
    assert found[5].nonzero()[0].tolist() == [6]
    with tuned(Tuning(matrix_size=0)):
        host = [y.numpy() for y in tg.trace(f.__wrapped__)(tg.tensor(a), tg.tensor(p))]
    compare(found[:6], host[:6], "float64")


CALLS: dict[str, Callable[..., Any]] = {
    "solve": lambda a, b, p: L.solve(a, b), "inv": lambda a, b, p: L.inv(a), "cholesky": lambda a, b, p: L.cholesky(p),
    "solve_triangular": lambda a, b, p: L.solve_triangular(p, b, upper=True),
}


def message(call: Callable[..., Any], *given: Any) -> str:
    with pytest.raises(LinAlgError) as told:
        call(*map(tg.tensor, given)).numpy()
    return str(told.value).split(" (at ")[0]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("batch", [(33,), (3, 11), ()])
def test_the_error_names_function_matrix_and_pivot(name: str, batch: tuple[int, ...]) -> None:
    a, b, p, _ = matrices(batch, 4, 2, "float64")
    places = [(20,), (12,)] if batch == (33,) else [(2, 0), (1, 1)] if batch else [()]
    for place in places:
        a[place][:, 2] = 0
        p[place][2, 2] = 0 if name == "solve_triangular" else -9.0
    found = message(tg.trace(CALLS[name]), a, b, p)
    where = f"matrix {12 if batch == (33,) else (1, 1)} of the batch {batch}" if batch else "the matrix"
    what = {"cholesky": "is not positive definite (pivot 3)", "solve_triangular": "is singular: element (2, 2) is 0"}
    assert found.startswith(f"{name}: {where} (4x4) {what.get(name, 'is singular (pivot 3)')}")
    with tuned(Tuning(matrix_size=0)):
        assert message(tg.trace(CALLS[name]), a, b, p) == found
    assert message(CALLS[name], a, b, p) == found                      # untraced


def test_only_what_depends_on_a_singular_matrix_is_an_error() -> None:
    a = np.random.default_rng(0).standard_normal((20, 3, 3))
    a[7] = 0
    f = tg.trace(lambda a: (L.inv(a) * 2.0, a.sum()))
    x, total = f(tg.tensor(a))
    assert np.isclose(total.item(), a.sum())
    with pytest.raises(LinAlgError, match="inv: matrix 7 of the batch"):
        (x + 1.0).numpy()
    a[7] = np.eye(3)
    np.testing.assert_allclose(f(tg.tensor(a))[0].numpy(), 2 * np.linalg.inv(a), rtol=1e-9)


@pytest.mark.long
def test_derivatives_of_any_order_in_kernels() -> None:
    a, b, p, tall = (tg.tensor(x, requires_grad=True) for x in matrices((2,), 3, 2, "float64"))

    def loss(a: Any, b: Any, p: Any, tall: Any) -> Any:
        s = p @ p.mT
        return (L.solve(a, b).sum() + L.inv(p).sum() + L.slogdet(p)[1].sum() + (L.cholesky(s) * p).sum() + L.lu_factor(a).LU.sin().sum()
                + L.qr(tall).R.sum() + (L.solve_triangular(p, b, upper=False) ** 2).sum())

    f = tg.trace(loss)
    assert gradcheck(f, (a, b, p, tall))
    assert gradgradcheck(f, (a, b, p, tall), atol=1e-4)
    first = tg.trace(tg.grad(loss, (0, 1, 2, 3)))
    first(a, b, p, tall)
    assert "host code" not in first.explain()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_reflections_of_columns_that_begin_with_zero(dtype: str, kernels: None) -> None:
    """The sign of R's diagonal is LAPACK's there, too: minus that of the first number, 0 being positive and -0.0 negative."""
    a = np.stack([np.eye(3)[::-1], np.eye(3), np.zeros((3, 3)), np.roll(np.eye(3), 1, 0) - 0.0, -np.eye(3)[::-1]]).astype(dtype)
    for y, w in zip(tg.trace(lambda a: tuple(L.qr(a)))(tg.tensor(a)), np.linalg.qr(a), strict=True):
        np.testing.assert_allclose(y.numpy(), w, atol=1e-14)


def test_vmap_scan_and_cond() -> None:
    a, b, _, _ = matrices((6, 5), 4, 1, "float64")
    y = tg.trace(tg.vmap(L.solve))(tg.tensor(a), tg.tensor(b))
    np.testing.assert_allclose(y.numpy(), np.linalg.solve(a, b), rtol=1e-7)

    def iterations(a: Any, x: Any) -> Any:
        return tg.scan(lambda x, m: (y := L.solve(m, x), y), x, a)[0]

    wanted = b[0]
    for m in a:
        wanted = np.linalg.solve(m, wanted)
    f = tg.trace(iterations)
    np.testing.assert_allclose(f(tg.tensor(a), tg.tensor(b[0])).numpy(), wanted, rtol=1e-6)
    assert "host code" not in f.explain()
    a[3, 2] = 0
    with pytest.raises(LinAlgError, match="solve: matrix 2 of the batch"):
        f(tg.tensor(a), tg.tensor(b[0])).numpy()


def complex_ones(batch: tuple[int, ...], n: int, k: int, dtype: str) -> list[Any]:
    """A and B."""
    rng = np.random.default_rng(n)
    return [(rng.standard_normal((*batch, n, c)) + 1j * rng.standard_normal((*batch, n, c))).astype(dtype) for c in (n, k)]


def of_complex(a: Any, b: Any) -> Any:
    u = a + 3 * a.shape[-1] * tg.eye(a.shape[-1])
    return (L.solve(a, b), L.inv(a) * 2.0, L.solve_triangular(u, b, upper=True), L.solve_triangular(a, b.mT, upper=False, left=False,
            unitriangular=True) if a.shape[-1] < 4 else L.solve_triangular(u, b, upper=False))


def lapacks(a: Any, b: Any) -> Any:
    """The same by NumPy."""
    n, solve = a.shape[-1], np.linalg.solve
    one, t = np.eye(n), lambda x: x.swapaxes(-1, -2)
    u = a + 3 * n * one
    last = t(solve(t(np.tril(a, -1) + one), b)) if n < 4 else solve(np.tril(u), b)
    return [y.astype(a.dtype) for y in (solve(a, b), 2 * np.linalg.inv(a), solve(np.triu(u), b), last)]


@pytest.mark.parametrize(("batch", "n", "k", "dtype"), [
    ((33,), 1, 2, "complex64"), ((7,), 3, 1, "complex128"), ((), 2, 2, "complex128"), ((5,), 4, 3, "complex64"),
])
def test_complex_matrices_in_kernels_of_every_target(batch: tuple[int, ...], n: int, k: int, dtype: str, on_numpy: None) -> None:
    with Checked(slack=200.0) as checked:
        for y in tg.trace(of_complex)(*map(tg.tensor, complex_ones(batch, n, k, dtype))):
            y.numpy()
    assert checked.count == 6


@one_of(6, ("batch", "n", "k", "dtype"), [
    ((300,), 3, 1, "complex128"), ((33,), 7, 8, "complex64"), ((3, 11), 8, 2, "complex128"), ((7,), 9, 1, "complex128"),
    ((33,), 16, 16, "complex128"), ((1,), 13, 1, "complex64"), ((7,), 17, 1, "complex128"), ((7,), 3, 17, "complex64"),
])
def test_complex_matrices(batch: tuple[int, ...], n: int, k: int, dtype: str) -> None:
    a, b = complex_ones(batch, n, k, dtype)
    f = tg.trace(of_complex)
    found = [y.numpy() for y in f(tg.tensor(a), tg.tensor(b))]
    for y, w in zip(found, lapacks(a, b), strict=True):
        assert (y.dtype, y.shape) == (w.dtype, w.shape)
        tolerance = 2e-3 if dtype == "complex64" else 1e-9
        np.testing.assert_allclose(y, w, rtol=tolerance, atol=tolerance * np.abs(w).max())
    if tg.device().kind != "numpy":
        assert ("host code" in f.explain()) == (n > 16 or k > 16)


def of_parts(a: Any, p: Any, tall: Any) -> Any:
    return (L.det(a), *L.slogdet(a), L.cholesky(p), L.cholesky_ex(a).info, L.inv_ex(a).info, *L.lu_factor(a), *L.lu(tall),
            *L.lu_factor(tall.mT), *L.qr(a), *L.qr(tall, mode="complete"), *L.qr(tall.mT))


def complex_operands(batch: tuple[int, ...], n: int, dtype: str) -> list[Any]:
    """A, a positive definite one and a tall one."""
    a, tall = complex_ones(batch, n, n + 1, dtype)
    return [a, (a @ a.conj().swapaxes(-1, -2) + n * np.eye(n)).astype(dtype), tall.swapaxes(-1, -2)]


@pytest.mark.long
@pytest.mark.parametrize(("batch", "n", "dtype"), [((33,), 1, "complex64"), ((7,), 3, "complex128"), ((), 2, "complex128")])
def test_factors_of_complex_matrices_in_kernels_of_every_target(batch: tuple[int, ...], n: int, dtype: str, on_numpy: None) -> None:
    with Checked(slack=200.0) as checked:
        for y in tg.trace(of_parts)(*map(tg.tensor, complex_operands(batch, n, dtype))):
            y.numpy()
    assert checked.count == 6


@one_of(10, ("batch", "n", "dtype"), [
    ((300,), 3, "complex128"), ((33,), 8, "complex64"), ((3, 11), 13, "complex128"), ((7,), 15, "complex64"), ((1,), 16, "complex128"),
])
def test_factors_of_complex_matrices(batch: tuple[int, ...], n: int, dtype: str) -> None:
    given = complex_operands(batch, n, dtype)
    f = tg.trace(of_parts)
    found = [y.numpy() for y in f(*map(tg.tensor, given))]
    with tuned(Tuning(matrix_size=0)):
        wanted = [y.numpy() for y in tg.trace(of_parts)(*map(tg.tensor, given))]
    for k, (y, w) in enumerate(zip(found, wanted, strict=True)):
        assert (y.dtype, y.shape) == (w.dtype, w.shape)
        tolerance = 0 if w.dtype.kind in "iu" else 2e-3 if dtype == "complex64" else 1e-9
        np.testing.assert_allclose(y, w, rtol=tolerance, atol=tolerance * np.abs(w).max(), err_msg=f"result {k}")
    if tg.device().kind != "numpy":
        assert ("host code" in f.explain()) == (n > 15)                     # the tall ones' size


def test_complex_determinants_of_every_size(kernels: None) -> None:
    """Singular ones, those beyond the largest number on the way, and NaN."""
    a = complex_ones((9,), 4, 1, "complex128")[0]
    a[1], a[2, 1], a[3, 2] = 0, 2j * a[2, 0], np.nan
    a[4] *= 1e-100
    a[5, :2] *= 1e150
    a[5, 2:] *= 1e-150
    a[6] *= 1e90
    determinant, sign, logarithm = tg.trace(lambda a: (L.det(a), *L.slogdet(a)))(tg.tensor(a))
    with np.errstate(all="ignore"):
        wanted = np.linalg.slogdet(a)
    kept = [0, 1, 4, 5, 6, 7, 8]                                            # the third is singular but for roundings
    np.testing.assert_allclose(sign.numpy()[kept], wanted[0][kept], rtol=1e-12)
    np.testing.assert_allclose(logarithm.numpy()[kept], wanted[1][kept], rtol=1e-12)
    assert logarithm.numpy()[2] < -30
    assert np.isnan(determinant.numpy()[3])
    for k in (0, 1, 5, 7, 8):
        np.testing.assert_allclose(determinant.numpy()[k], wanted[0][k] * np.exp(wanted[1][k]), rtol=1e-10)
    assert determinant.numpy()[4] == 0
    assert not np.isfinite(determinant.numpy()[6])


@pytest.mark.long
def test_errors_and_derivatives_of_complex_factors() -> None:
    _, p, _ = complex_operands((3, 5), 4, "complex128")
    p[1, 3, 2, 2] = -1
    found = message(tg.trace(lambda p, *_: L.cholesky(p)), p, p, p)
    assert found.startswith("cholesky: matrix (1, 3) of the batch (3, 5) (4x4) is not positive definite (pivot 3)")
    assert message(lambda p, *_: L.cholesky(p), p, p, p) == found
    a, p, _ = (tg.tensor(x[:2], requires_grad=True) for x in complex_operands((4,), 3, "complex128"))
    of_a = [lambda a: abs(L.det(a)), lambda a: L.slogdet(a)[1], lambda a: L.slogdet(a)[0].imag, lambda a: abs(L.lu_factor(a)[0]),
            lambda a: abs(L.qr(a).R) + abs(L.qr(a).Q) ** 2]
    assert gradcheck(tg.trace(lambda a: [f(a).sum() for f in of_a]), [a])
    assert gradcheck(tg.trace(lambda a: abs(L.cholesky(a @ a.mH + 3 * tg.eye(3))).sum()), [a])


@pytest.mark.long
def test_errors_and_derivatives_of_complex_matrices() -> None:
    a, b = complex_ones((3, 5), 4, 2, "complex128")
    a[2, 1] = np.tril(np.ones((4, 4)))                         # whose elimination is exact
    a[2, 1, :, 2] = 1j * a[2, 1, :, 0]
    a[1, 3, :, 2] = 0
    for name in ("solve", "inv"):
        found = message(tg.trace(CALLS[name]), a, b, b)
        assert found.startswith(f"{name}: matrix (1, 3) of the batch (3, 5) (4x4) is singular (pivot 3)")
        assert message(CALLS[name], a, b, b) == found
        assert "matrix 1 of the batch (5,) (4x4) is singular (pivot 3)" in message(tg.trace(CALLS[name]), a[2], b[2], b[2])
    u = a.copy()
    u[1, 3, 2, 2] = 0
    found = message(tg.trace(CALLS["solve_triangular"]), u, b, u)
    assert found.startswith("solve_triangular: matrix (1, 3) of the batch (3, 5) (4x4) is singular: element (2, 2) is 0")
    assert message(CALLS["solve_triangular"], u, b, u) == found
    given = [tg.tensor(x[:2], requires_grad=True) for x in complex_ones((4,), 3, 2, "complex128")]
    assert gradcheck(tg.trace(lambda a, b: [(abs(y) ** 2).sum() + y.real.sin().sum() for y in of_complex(a, b)]), given)
    assert gradgradcheck(lambda a, b: abs(L.solve(a, b)).sum(), given, atol=1e-4)
