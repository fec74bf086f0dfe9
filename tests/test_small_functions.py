"""Functions of many small matrices in kernels: the exponential (codegen/lower/exponential.py) and its derivatives, of every norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.kernels import TARGETS, Checked
from tracegrad import linalg as L
from tracegrad.codegen.tuning import Tuning, tuned
from tracegrad.testing import gradcheck


def drawn(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(shape[-1])
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
        g = tg.trace(lambda *x: f(*x))
        found = g(*map(tg.tensor, given))
        if tg.device().kind != "numpy":
            assert "host code" in g.explain()
    return [y.numpy() for y in found] if isinstance(found, tuple) else found.numpy()


def in_kernels(f: Any, *given: Any, size: int = 1) -> Any:
    """Without a host step, if the matrices are small."""
    g = tg.trace(lambda *x: f(*x))
    found = g(*map(tg.tensor, given))
    if tg.device().kind != "numpy":
        assert ("host code" in g.explain()) == (size > 16)
    return [y.numpy() for y in found] if isinstance(found, tuple) else found.numpy()


# ---------------------------------------------------------------------------------------------------------- the exponential


def exact(a: Any) -> Any:
    """exp by the series, in long doubles, after as many halvings as the norm asks for."""
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    turns = max(0, int(np.ceil(np.log2(max(np.abs(a).max() * a.shape[-1], 1)))))
    x = a.astype(wide) / wide(2) ** turns
    y = term = np.broadcast_to(np.eye(a.shape[-1], dtype=wide), x.shape)
    for k in range(1, 40):
        term = np.einsum("bij,bjk->bik", term, x) / k
        y = y + term
    for _ in range(turns):
        y = np.einsum("bij,bjk->bik", y, y)
    return y


def scaled(batch: int, n: int, dtype: str) -> Any:
    """Matrices of norms from 1e-5 to 10."""
    norms = 10.0 ** np.random.default_rng(n).uniform(-5, 1, (batch, 1, 1))
    norms[0] = 10
    return (drawn((batch, n, n), dtype) * norms / n).astype(dtype)


@pytest.mark.parametrize(("batch", "n", "dtype"), [
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
    given = [np.zeros((n, n)), np.eye(n) + np.diag(np.ones(n - 1), 1), np.diag([1e3] * 3, 1), np.diag([-1000.0, -1, -50, 3]), 50 * (x[0] - x[0].T),
             100 * x[1], 1e-12 * x[2], 1e-300 * x[3], x[4] * 10.0 ** (5 * x[5]).clip(-5, 2), np.diag([1e150, 1e140, 0], 1),
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
    targets = TARGETS if n < 3 else {name: TARGETS[name] for name in ("avx512", "gpu")}
    with Checked(targets, slack=50.0) as checked:
        for y in tg.trace(lambda a, e: (L.matrix_exp(a * 0.1), tg.func.jvp(L.matrix_exp, (a * 0.1,), (e,))[1]))(tg.tensor(a), tg.tensor(e)):
            y.numpy()
    assert checked.count == len(targets)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
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
