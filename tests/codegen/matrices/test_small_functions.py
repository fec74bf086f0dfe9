"""Functions of many small matrices in kernels: exponentials, of every norm, pseudo-inverses, cofactors, ... and their derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad import linalg as L
from tracegrad.errors import LinAlgError
from tracegrad.support.tuning import Tuning, tuned
from tracegrad.testing import gradcheck

WITHOUT_FLOAT64 = replace(TARGETS["avx2"], fp64=False)


def drawn(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def near(found: Any, wanted: Any, dtype: str, factor: float = 1.0) -> None:
    """Matrix by matrix: within so many roundings of its largest number."""
    assert (found.shape, found.dtype) == (wanted.shape, np.dtype(dtype))
    np.testing.assert_array_equal(np.isfinite(found).all((-2, -1)), np.isfinite(wanted).all((-2, -1)))
    with np.errstate(invalid="ignore"):
        excess = np.abs(found - wanted).max((-2, -1)) / np.maximum(np.abs(wanted).max((-2, -1)), 1e-30)
    assert np.nanmax(excess, initial=0) < factor * {"float32": 2e-6, "complex64": 2e-6}.get(dtype, 2e-13)


def by_the_host(f: Any, *given: Any) -> Any:
    with tuned(Tuning(matrix_size=0)):
        g = tg.trace(lambda *x: f(*x))                                 # noqa: PLW0108
        found = g(*map(tg.tensor, given))
        if tg.device().kind != "numpy":
            assert "host code" in g.explain()
    return [y.numpy() for y in found] if isinstance(found, tuple) else found.numpy()


def in_kernels(f: Any, *given: Any, size: int = 1) -> Any:
    """Without a host step, if the matrices are small."""
    g = tg.trace(lambda *x: f(*x))                                     # noqa: PLW0108 - a trace of its own
    found = g(*map(tg.tensor, given))
    if tg.device().kind != "numpy":
        assert ("host code" in g.explain()) == (size > 16)
    return [y.numpy() for y in found] if isinstance(found, tuple) else found.numpy()


# ---------------------------------------------------------------------------------------------------------- the exponential


def exact(a: Any) -> Any:
    """exp by the series, in long doubles, after as many halvings as the norm asks for."""
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    iterations = max(0, int(np.ceil(np.log2(max(np.abs(a).max() * a.shape[-1], 1)))))
    x = a.astype(wide) / wide(2) ** iterations
    y = term = np.broadcast_to(np.eye(a.shape[-1], dtype=wide), x.shape)
    for k in range(1, 40):
        term = np.einsum("bij,bjk->bik", term, x) / k
        y = y + term
    for _ in range(iterations):
        y = np.einsum("bij,bjk->bik", y, y)
    return y


def scaled(batch: int, n: int, dtype: str) -> Any:
    """Matrices of norms from 1e-5 to 10."""
    norms = 10.0 ** np.random.default_rng(n).uniform(-5, 1, (batch, 1, 1))
    norms[0] = 10
    return (drawn((batch, n, n), dtype) * norms / n).astype(dtype)


@one_of(6, ("batch", "n", "dtype"), [
    (33, 1, "float64"), (200, 2, "float32"), (3, 3, "float64"), (1, 5, "float64"), (33, 5, "complex64"), (200, 8, "float64"),
    (33, 12, "float32"), (3, 12, "complex128"), (33, 15, "float64"), (3, 16, "float64"), (1, 16, "complex128"), (3, 17, "float64"),
    (200, 2, "complex128"),
])
def test_exponentials(batch: int, n: int, dtype: str, kernels: None) -> None:
    a, e = scaled(batch, n, dtype), drawn((batch, n, n), dtype)
    near(in_kernels(L.matrix_exp, a, size=n), exact(a), dtype)
    wide = a.astype(np.result_type(a, np.float64))
    near(by_the_host(L.matrix_exp, a), exact(wide), dtype)

    def along(a: Any, e: Any) -> Any:
        return tg.func.jvp(L.matrix_exp, (a,), (e,))[1]

    zero = np.zeros_like(wide)
    whole = exact(np.block([[wide, e.astype(wide.dtype)], [zero, wide]]))[..., :n, n:]
    near(in_kernels(along, a, e, size=n), whole, dtype, 3)
    near(by_the_host(along, a, e), whole, dtype, 3)


def hard() -> Any:
    """Nothing, defective and nilpotent ones, equal eigenvalues, bad scaling, small and large norms."""
    n = 4
    x = drawn((12, n, n), "float64")
    given = [
        np.zeros((n, n)), np.eye(n) + np.diag(np.ones(n - 1), 1), np.diag([1e3] * 3, 1), np.diag([-1000.0, -1, -50, 3]),
        50 * (x[0] - x[0].T), 100 * x[1], 1e-12 * x[2], 1e-300 * x[3], x[4] * 10.0 ** (5 * x[5]).clip(-5, 2), np.diag([1e150, 1e140, 0], 1),
        np.diag([-1e305, -1e307, 0.0, -1.0]), np.kron(np.eye(2), [[1.0, 1.0], [-1.0, -1.0]]) * 1e3, np.ones((n, n)), -30 * np.eye(n)]
    return np.stack(given)


def test_exponentials_that_are_hard(kernels: None) -> None:
    a = hard()
    y, host = in_kernels(L.matrix_exp, a), by_the_host(L.matrix_exp, a)
    near(y, host, "float64", 10)
    finite = np.abs(a).max((1, 2)) < 1e100
    near(y[finite], exact(a[finite]), "float64", 10)
    for found in (y, host):
        np.testing.assert_array_equal(found[0], np.eye(4))
        np.testing.assert_array_equal(found[9, 0], [1, 1e150, 5e289, 0])
        np.testing.assert_array_equal(found[10, 2], [0, 0, 1, 0])


def test_exponentials_without_a_number(kernels: None) -> None:
    """NaN where a matrix has one, or infinity, and nowhere else; beyond the largest number there is infinity, or NaN."""
    a = drawn((9, 3, 3), "float64")
    a[1, 0, 2], a[4, 1, 1], a[6, 2, 0] = np.nan, np.inf, -np.inf
    a[7] *= 1e6
    e = drawn((9, 3, 3), "float64")
    for f, given in ((L.matrix_exp, (a,)), (lambda a, e: tg.func.jvp(L.matrix_exp, (a,), (e,))[1], (a, e))):
        y, w = in_kernels(f, *given), by_the_host(f, *given)
        for found in (y, w):
            assert np.isnan(found[[1, 4, 6]]).all()
            assert not np.isfinite(found[7]).all()
            assert np.isfinite(found[[0, 2, 3, 5, 8]]).all()


@pytest.mark.parametrize(("batch", "n", "dtype"), [(7, 1, "float32"), (33, 3, "float64"), (5, 2, "complex64"), (3, 4, "complex128")])
def test_exponentials_in_kernels_of_every_target(batch: int, n: int, dtype: str, on_numpy: None) -> None:
    a, e = scaled(batch, n, dtype), drawn((batch, n, n), dtype)
    few = {name: TARGETS[name] for name in ("avx512", "gpu")}
    targets = few if dtype in ("float64", "complex128") else {**TARGETS, "no float64": WITHOUT_FLOAT64}
    with Checked(targets, slack=50.0) as checked:
        for y in tg.trace(lambda a, e: (L.matrix_exp(a * 0.1), tg.func.jvp(L.matrix_exp, (a * 0.1,), (e,))[1]))(tg.tensor(a), tg.tensor(e)):
            y.numpy()
    assert checked.count == len(targets)


@one_of(4, "dtype", ["float64", "complex128"])
def test_derivatives_of_exponentials_in_kernels(dtype: str, kernels: None) -> None:
    """The second one is that of matrices twice as large."""
    a = tg.tensor(drawn((1, 2, 2), dtype) * 0.5, requires_grad=True)

    def loss(a: Any) -> Any:
        return (abs(L.matrix_exp(a)) ** 2).sum()

    first = tg.trace(tg.grad(loss))
    second = tg.trace(tg.grad(lambda a: (abs(tg.grad(loss)(a)) ** 2).sum()))
    for g in (first, second):
        g(a)
        assert tg.device().kind == "numpy" or "host code" not in g.explain()
    assert gradcheck(tg.trace(loss), (a,))
    assert gradcheck(first, (a,), atol=1e-4)


def test_a_derivative_is_linear_in_a_direction_of_any_size(kernels: None) -> None:
    """Its size does not ask for halvings: that of a block matrix would."""
    a, e = drawn((5, 4, 4), "float64"), drawn((5, 4, 4), "float64")

    def along(a: Any, e: Any) -> Any:
        return tg.func.jvp(L.matrix_exp, (a,), (e,))[1]

    for way in (in_kernels, by_the_host):
        near(way(along, a, e * 2.0 ** 90), way(along, a, e) * 2.0 ** 90, "float64", 0.01)


def test_one_exponential_does_not_depend_on_its_neighbours(device: Any) -> None:
    a = hard()
    f = tg.trace(L.matrix_exp)
    order = np.random.default_rng(1).permutation(len(a))
    np.testing.assert_array_equal(f(tg.tensor(a[order])).numpy(), f(tg.tensor(a)).numpy()[order])


# ----------------------------------------------------------------------------------------- what is made of decompositions


def rectangles(batch: int, m: int, n: int, dtype: str) -> Any:
    """Matrices of every rank, and nearly so: 0, 1, one less than full, full, badly scaled."""
    a = drawn((batch, m, n), dtype)
    a[0] = 0
    a[-1] = np.outer(a[-1, :, 0], a[-1, 0])
    if batch > 5:
        a[1, :, -1] = a[1, :, 0]
        a[2] = np.eye(m, n)
        a[3] *= 0.01
        a[4] *= 100
    return a


def square(a: Any) -> Any:
    return a[..., :min(a.shape[-2:]), :min(a.shape[-2:])]


def bounded(a: Any) -> Any:
    """Its elements are 4 at most: products of those of larger matrices overflow float32."""
    return a / tg.clamp(abs(a).amax((-2, -1), keepdim=True) / 4, min=1)


DECOMPOSED: dict[str, Any] = {
    "pinv": lambda a: (L.pinv(a), L.pinv(a, atol=0.1 + 0 * abs(a).sum((-2, -1)), rtol=0.2)),
    "lstsq": lambda a: tuple(L.lstsq(a, a[..., :2] + 1))[::2],
    "residuals": lambda a: (L.lstsq(a, a[..., :2] * 2 + 1).residuals,),
    "polar": lambda a: (L.polar(a if a.shape[-2] >= a.shape[-1] else a.mH).H,),
    "cofactors": lambda a: (tg.grad(lambda x: abs(L.det(x) + 3.0).sum())(square(a)),),
    "minors": lambda a: (tg.grad(lambda x: (abs(tg.grad(lambda x: L.det(x).real.sum())(x)) ** 2).sum())(bounded(square(a))),),
}
REFLECTED: list[Any] = [
    lambda a: tuple(tg.geqrf(a)),
    lambda a: (L.householder_product(*tg.geqrf(a if a.shape[-2] >= a.shape[-1] else a.mH)),),
    lambda a: (tg.ormqr(*tg.geqrf(a), a + 1, transpose=True),),
]


@pytest.mark.parametrize(("batch", "m", "n", "dtype"), [
    (200, 2, 2, "float64"),
    *(pytest.param(*given, marks=pytest.mark.long) for given in [
        (33, 3, 5, "complex128"),
        (33, 12, 5, "float64"), (33, 1, 1, "float32"), (33, 5, 3, "float32"), (3, 17, 3, "float64")]),
    *(pytest.param(*given, marks=pytest.mark.slow) for given in [
        (3, 8, 8, "complex64"), (1, 15, 15, "float64"), (33, 16, 12, "complex64"), (200, 16, 16, "float32")]),
])
def test_functions_of_decompositions(batch: int, m: int, n: int, dtype: str, kernels: None) -> None:
    """As the host has them."""
    given = rectangles(batch, m, n, dtype), drawn((batch, m, n), dtype)

    def every(a: Any, b: Any) -> Any:                                  # reflections of dependent columns are nobody's
        return tuple(y for calls, x in ((DECOMPOSED.values(), a), (REFLECTED, b)) for call in calls for y in call(x))

    coarse = dtype in ("float32", "complex64")
    for k, (y, w) in enumerate(zip(in_kernels(every, *given, size=m), by_the_host(every, *given), strict=True)):
        assert (y.shape, y.dtype) == (w.shape, w.dtype)
        if y.dtype.kind == "i":
            np.testing.assert_array_equal(y, w)
        elif y.size:
            y, w = (x.reshape(batch, -1) for x in (y, w))
            # What is 0 but for rounding, as the minors of matrices of rank 1, has errors of the size of a's elements to the third power.
            size = np.maximum(np.abs(w).max(1, keepdims=True), 0.01 if coarse else 1e-3)
            np.testing.assert_array_less(np.abs(y - w) / size, 1e-4 if coarse else 1e-10, err_msg=f"result {k}")


@pytest.mark.long
def test_a_pseudo_inverse_of_any_rank(kernels: None) -> None:
    """A P A = A, P A P = P, and both products are Hermitian (E. H. Moore, R. Penrose)."""
    for dtype in ("float64", "complex128"):
        for m, n in ((5, 3), (3, 5), (16, 16)):
            a = rectangles(33, m, n, dtype)
            a[5] *= 1e-200
            a[6] *= 1e100
            p = in_kernels(L.pinv, a)
            size, other = np.abs(a).max((1, 2), keepdims=True), np.abs(p).max((1, 2), keepdims=True)
            for found, wanted, scale in ((a @ p @ a, a, size), (p @ a @ p, p, other)):
                assert (np.abs(found - wanted) <= 1e-10 * scale).all()
            for product in (a @ p, p @ a):
                np.testing.assert_allclose(product, product.conj().swapaxes(1, 2), atol=1e-10)


@pytest.mark.parametrize(("m", "n", "dtype"), [(1, 1, "float64"), (4, 2, "float32"), (2, 3, "complex128")])
def test_functions_of_decompositions_in_kernels_of_every_target(m: int, n: int, dtype: str, on_numpy: None) -> None:
    a = drawn((9, m, n), dtype)
    a[0] = 0
    targets = {**TARGETS, "no float64": WITHOUT_FLOAT64} if dtype == "float32" else {name: TARGETS[name] for name in ("avx512", "gpu")}
    f = tg.trace(lambda a: (L.pinv(a), *tg.geqrf(a), *DECOMPOSED["minors"](a[1:]), *DECOMPOSED["polar"](a[1:]),
                            *L.lstsq(a, a.sin())[::2]))
    with Checked(targets, slack=200.0) as checked:
        for y in f(tg.tensor(a)):
            y.numpy()
    assert checked.count == len(targets)


def test_errors_are_the_hosts(kernels: None) -> None:
    a = drawn((3, 11, 4, 4), "float64")
    for place in ((2, 0), (1, 5)):
        a[place][1, 2] = np.nan
    calls = {"pinv": L.pinv, "lstsq": lambda a: L.lstsq(a, a).solution, "polar": lambda a: L.polar(a).U}
    for name, call in calls.items():
        told = []
        for way in (in_kernels, by_the_host):
            with pytest.raises(LinAlgError) as error:
                way(call, a)
            told.append(str(error.value).split(" (at ")[0])
        assert told[0].startswith(f"{name}: matrix (1, 5) of the batch (3, 11) (4x4) has no decomposition: it holds NaN or infinity")
        assert told[0] == told[1]
    a = a.reshape(33, 4, 4)
    for way in (in_kernels, by_the_host):                              # a determinant is NaN: so is its derivative
        found = way(tg.grad(lambda a: L.det(a).sum()), a)
        assert np.isnan(found).all((1, 2)).nonzero()[0].tolist() == [16, 22]
        assert np.isfinite(found[[k for k in range(33) if k not in (16, 22)]]).all()


def differentiated(tall: Any, wide: Any, square: Any) -> Any:
    return ((L.pinv(tall) ** 2).sum() + L.lstsq(wide, square[:, :1]).solution.sin().sum() + (L.polar(square).U ** 3).sum()
            + L.det(square).sin().sum())


def operands() -> list[Any]:
    return [tg.tensor(drawn(shape, "float64"), requires_grad=True) for shape in ((1, 2, 1), (1, 1, 2), (1, 2, 2))]


def test_derivatives_of_functions_of_decompositions_in_kernels() -> None:
    first = tg.trace(tg.grad(differentiated, (0, 1, 2)))
    found = first(*operands())
    assert tg.device().kind == "numpy" or "host code" not in first.explain()
    assert gradcheck(tg.trace(differentiated), operands())
    for y, w in zip(found, tg.grad(differentiated, (0, 1, 2))(*operands()), strict=True):
        np.testing.assert_allclose(y.detach().numpy(), w.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_second_derivatives_of_functions_of_decompositions_in_kernels() -> None:
    assert gradcheck(tg.trace(lambda *x: sum((g ** 2).sum() for g in tg.grad(differentiated, (0, 1, 2))(*x))), operands(), atol=1e-4)


@one_of(4, ("batch", "n", "dtype"), [
    (200, 2, "float32"), (33, 5, "float64"), (3, 12, "complex64"), (1, 16, "float64"), (3, 17, "float64"),
], first=1)
def test_systems_of_known_factors(batch: int, n: int, dtype: str, kernels: None) -> None:
    a, b = drawn((batch, n, n), dtype), drawn((batch, n, 2), dtype)
    factors, pivots = (y.numpy() for y in L.lu_factor(tg.tensor(a)))

    def f(lu: Any, p: Any, b: Any) -> Any:
        return L.lu_solve(lu, p, b), L.lu_solve(lu, p, b, adjoint=True), *tg.lu_unpack(lu, p)

    for y, w in zip(in_kernels(f, factors, pivots, b, size=n), by_the_host(f, factors, pivots, b), strict=True):
        tolerance = 1e-3 if dtype in ("float32", "complex64") else 1e-9
        np.testing.assert_allclose(y, w, rtol=tolerance, atol=tolerance)


def test_orders_of_any_exchanges(device: Any) -> None:
    """Those of lists that no factorisation gives, too: earlier rows, rows beyond the square."""
    pivots = np.random.default_rng(0).integers(1, 7, (37, 4)).astype(np.int32)
    wanted = np.tile(np.arange(6), (37, 1))
    for order, exchanges in zip(wanted, pivots - 1, strict=True):
        for j, p in enumerate(exchanges):
            order[[j, p]] = order[[p, j]]
    p, _, _ = tg.trace(tg.lu_unpack)(tg.zeros(37, 6, 4), tg.tensor(pivots))
    np.testing.assert_array_equal(p.numpy().argmax(1), wanted)


def test_pivots_that_cannot_be(device: Any) -> None:
    pivots = np.ones((3, 5, 4), np.int32)
    pivots[1, 2, 3], pivots[2, 0, 0] = 5, 0
    eye = tg.eye(4).expand(3, 5, 4, 4)
    with pytest.raises(LinAlgError, match=r"lu_solve: matrix \(1, 2\) of the batch \(3, 5\) .* not from 1 to the number of rows"):
        tg.trace(L.lu_solve)(eye, tg.tensor(pivots), eye).numpy()


def test_pivots_in_kernels_of_every_target(on_numpy: None) -> None:
    a = drawn((9, 3, 3), "float32")
    factors, pivots = L.lu_factor(tg.tensor(a))
    with Checked({**TARGETS, "no float64": WITHOUT_FLOAT64}, slack=50.0) as checked:
        tg.trace(L.lu_solve)(factors, pivots, tg.tensor(a[..., :1])).numpy()
    assert checked.count == 2 * len(TARGETS) + 2                       # the factors, too
