"""What a LinAlgError tells: the function that the user called, the matrix, the pivot and the line; whichever way it is computed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.errors import LinAlgError

L = tg.linalg


def _slope(fn: Any) -> Any:
    return tg.func.grad(lambda x: (fn(x) ** 2).sum())


# Of matrices that have no inverse, no Cholesky factor, a zero on the diagonal; and of right sides.
CALLS: dict[str, Callable[..., Any]] = {
    "inv": lambda s, p, t, b: L.inv(s),
    "inverse": lambda s, p, t, b: s.inverse(),
    "inv_ex": lambda s, p, t, b: L.inv_ex(s, check_errors=True).inverse,
    "solve": lambda s, p, t, b: L.solve(s, b),
    "solve_ex": lambda s, p, t, b: L.solve_ex(s, b, check_errors=True).result,
    "matrix_power": lambda s, p, t, b: L.matrix_power(s, -3),
    "tensorinv": lambda s, p, t, b: L.tensorinv(s[3], ind=1),
    "tensorsolve": lambda s, p, t, b: L.tensorsolve(s[3], b[3, :, 0]),
    "cholesky": lambda s, p, t, b: tg.cholesky(p),
    "cholesky_ex": lambda s, p, t, b: L.cholesky_ex(p, check_errors=True).L,
    "cholesky_solve": lambda s, p, t, b: tg.cholesky_solve(b, t),
    "cholesky_inverse": lambda s, p, t, b: tg.cholesky_inverse(t),
    "solve_triangular": lambda s, p, t, b: L.solve_triangular(t, b, upper=False),
    "triangular_solve": lambda s, p, t, b: tg.triangular_solve(b, t, upper=False).solution,
    "det": lambda s, p, t, b: _slope(_slope(_slope(lambda x: L.det(x) + 0.0)))(s),
    "slogdet": lambda s, p, t, b: tg.func.grad(lambda x: L.slogdet(x).logabsdet.sum())(s),
    "logdet": lambda s, p, t, b: tg.func.grad(lambda x: tg.logdet(x).sum())(s),
}
ENDLESS: dict[str, Callable[..., Any]] = {
    "svd": lambda x: L.svd(x).U, "svdvals": L.svdvals, "matrix_norm": lambda x: L.matrix_norm(x, 2),
    "lstsq": lambda x: L.lstsq(x, x).solution, "matrix_rank": L.matrix_rank, "pinv": L.pinv, "eigvalsh": L.eigvalsh,
    "eigh": lambda x: L.eigh(x).eigenvectors,
    "eig": lambda x: L.eig(x).eigenvectors, "cond": L.cond,
}


def operands(n: int) -> list[tg.Tensor]:
    """Five matrices n x n of each kind, of which number 3 is a bad one, at pivot 2."""
    rng = np.random.default_rng(n)
    s = rng.uniform(-1, 1, (5, n, n)) + n ** 0.5 * np.eye(n)
    p, t = s @ s.swapaxes(-1, -2), np.tril(s)
    s[3, :, 1] = s[3, 1, :] = 0
    p[3, 1, 1] = -1
    t[3, 1, 1] = 0
    return [tg.tensor(x) for x in (s, p, t, rng.standard_normal((5, n, 2)))]


def told(call: Callable[[], Any]) -> str:
    """The message of its error. What failed is let go of: as long as somebody holds it, it is pending."""
    try:
        call().numpy()
    except LinAlgError as error:
        return str(error)
    raise AssertionError("no error")


def line_of(fn: Callable[..., Any]) -> str:
    return f"test_linalg_errors.py:{inspect.getsourcelines(fn)[1]} computes"


@one_of(4, "n", [7, 13, 40])
def test_errors_name_what_was_called(n: int, device: Any) -> None:
    """Kernels of small matrices, LAPACK's steps, numpy alone, the interpreter; untraced and traced."""
    given = operands(n)
    chosen = CALLS if device.kind == "numpy" or tg.config.eager else {k: CALLS[k] for k in ("inverse", "matrix_power", "det")}
    for name, fn in chosen.items():
        what = "is not positive definite (pivot 2)" if name in ("cholesky", "cholesky_ex") else "is singular (pivot 2)"
        if name in ("cholesky_solve", "cholesky_inverse", "solve_triangular", "triangular_solve"):
            what = "is singular: element (1, 1) is 0"
        which = "the matrix" if name.startswith("tensor") else "matrix 3 of the batch (5,)"
        derived = "in its derivative, " if name in ("det", "slogdet", "logdet") else ""
        for call in (fn, tg.trace(fn)):
            message = told(lambda call=call: call(*given))
            assert message.startswith(f"{name}: {derived}{which} ({n}x{n}) {what}"), message
            assert message.endswith(line_of(fn)), message
            assert message.count(" computes") == 1


@one_of(2, "n", [3, 7, 40])
def test_a_factorisation_with_a_zero_pivot(n: int, device: Any) -> None:
    """Is an error of lu_factor, as in torch, whichever of its results is looked at; lu_factor_ex tells of it, and lu takes it."""
    s, _, _, b = operands(n)
    for name, call in (("lu_factor", L.lu_factor), ("lu_factor_ex", lambda s: L.lu_factor_ex(s, check_errors=True))):
        for k in range(2):
            message = told(lambda call=call, k=k: call(s)[k])
            assert message.startswith(f"{name} at "), message
            assert "U has a zero on its diagonal" in message
    good = s[:3]
    checked = *L.lu_factor(good), *L.lu_factor_ex(good, check_errors=True)
    for found, wanted in zip(checked, (*L.lu_factor_ex(good)[:2], *L.lu_factor_ex(good)), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    np.testing.assert_allclose(L.lu_solve(*L.lu_factor(good), b[:3]).numpy(), L.solve(good, b[:3]).numpy(), rtol=1e-9)
    *factors, info = L.lu_factor_ex(s)
    assert info.tolist() == [0, 0, 0, 2, 0]
    for options in ({}, {"adjoint": True}):                       # programs look at info, and leave the others where they are
        x = L.lu_solve(*factors, b, **options)
        assert x.isnan().all((-2, -1)).tolist() == [False, False, False, True, False]
        np.testing.assert_allclose(x[:3].numpy(), L.solve(good.mT if options else good, b[:3]).numpy(), rtol=1e-8)
    p, low, high = L.lu(s)
    np.testing.assert_allclose((p @ low @ high).numpy(), s.numpy(), atol=1e-12)


@pytest.mark.parametrize("n", [7, 40])
def test_matrices_without_a_decomposition(n: int, on_numpy: Any) -> None:
    x = np.random.default_rng(0).standard_normal((2, n, n))
    for value in (np.nan, np.inf):
        x[1, 2, 1] = value
        for name, fn in ENDLESS.items():
            message = told(lambda fn=fn: fn(tg.tensor(x)))
            assert message.startswith(f"{name}: matrix 1 of the batch (2,) ({n}x{n}) has no decomposition: it holds NaN or inf"), message
        x[1, 2, 1] = 0
        x[1, 1, 2] = value                                         # eigh reads the lower triangle
        np.testing.assert_allclose(L.eigvalsh(tg.tensor(x)).numpy(), np.linalg.eigvalsh(np.tril(x)))
        x[1, 1, 2] = 0
    x[1] = np.nan
    assert np.isnan(tg.func.grad(lambda x: L.det(x).sum())(tg.tensor(x)).numpy()).all((1, 2)).tolist() == [False, True]


@pytest.mark.parametrize("n", [5, 40])
def test_condition_numbers_of_singular_matrices(n: int, on_numpy: Any) -> None:
    """They are infinite, in every norm, as in torch and numpy; NaN stays NaN."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((4, n, n))
    a[1, :, 2] = 0
    a[2] = 0
    for p in (1, -1, "fro", "nuc", float("inf"), -float("inf")):
        found = tg.linalg.cond(tg.tensor(a), p).numpy()
        assert found[1:3].tolist() == [np.inf, np.inf]
        np.testing.assert_allclose(found[::3], np.linalg.cond(a[::3], p))
    x = tg.tensor(a[::2], requires_grad=True)
    tg.linalg.cond(x, "fro")[0].backward()
    assert not x.grad[1].numpy().any()
    assert x.grad.isfinite().all()
    assert x.grad[0].numpy().any()
    a[1, 0, 0] = np.nan
    assert np.isnan(tg.linalg.cond(tg.tensor(a), 1).numpy()).tolist() == [False, True, False, False]


@pytest.mark.parametrize("n", [6, 40])
def test_programs_that_come_again_tell_the_present_line(n: int, device: Any) -> None:
    """One structure from several lines, under several names: first by numpy, then by kernels or LAPACK's step."""
    def first(x: tg.Tensor) -> tg.Tensor:
        return L.inv(x) * 2.0

    def second(x: tg.Tensor) -> tg.Tensor:
        return x.inverse() * 2.0

    def third(x: tg.Tensor) -> tg.Tensor:
        return x.matrix_power(-1) * 2.0

    good = tg.tensor(np.tile(np.eye(n), (5, 1, 1)))
    bad = operands(n)[0]
    for step in range(8):
        for fn, name in ((first, "inv"), (second, "inverse"), (third, "matrix_power")):
            assert fn(good).numpy()[0, 0, 0] == 2.0
            message = told(lambda fn=fn: fn(bad + 0.0))
            assert message.startswith(f"{name}: matrix 3 of the batch (5,)"), (step, message)
            line = inspect.getsourcelines(fn)[1] + 1
            assert re.search(rf"test_linalg_errors.py:{line} computes$", message), (step, message)


@pytest.mark.parametrize("n", [6, 40])
def test_backwards_that_come_again_tell_the_present_line(n: int, device: Any) -> None:
    def first(x: tg.Tensor) -> tg.Tensor:
        return (L.slogdet(x).logabsdet * 2.0).sum()

    def second(x: tg.Tensor) -> tg.Tensor:
        return (L.slogdet(x).logabsdet * 2.0).sum()

    good = np.tile(np.eye(n), (5, 1, 1))
    bad = operands(n)[0].numpy()
    for step in range(6):
        for fn in (first, second):
            for matrices in (good, bad):
                x = tg.tensor(matrices, requires_grad=True)

                def gradient(fn: Any = fn, x: Any = x) -> tg.Tensor:
                    fn(x).backward()
                    return x.grad

                if matrices is good:
                    np.testing.assert_array_equal(gradient().numpy(), 2 * good)
                    continue
                message = told(gradient)
                assert message.startswith("slogdet: in its derivative, matrix 3 of the batch (5,)"), (step, message)
                line = inspect.getsourcelines(fn)[1] + 1
                assert re.search(rf"test_linalg_errors.py:{line} computes$", message), (step, message)
