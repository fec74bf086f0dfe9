"""Eigenvalues and singular values of many small matrices in kernels (codegen/lower/matrices/jacobi.py): against NumPy's LAPACK, and what
is hard."""

from __future__ import annotations

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

EPS = {"float32": 1.2e-7, "float64": 2.3e-16, "complex64": 1.2e-7, "complex128": 2.3e-16}


def t(x: Any) -> Any:
    """Adjoints: of real matrices, transposes."""
    return x.conj().swapaxes(-1, -2)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def matrices(batch: tuple[int, ...], m: int, n: int, dtype: str) -> tuple[Any, Any]:
    """Any matrices (m x n), and ones (n x n) of which the lower triangle is that of symmetric ones (Hermitian, but for the diagonal)."""
    rng = np.random.default_rng(100 * m + n)
    return drawn(rng, (*batch, m, n), dtype), drawn(rng, (*batch, n, n), dtype)


def everything(a: Any, s: Any) -> Any:
    """Both, whole and in parts: what nobody asks for is not computed."""
    return (*L.eigh(s), L.eigvalsh(s + s), *L.svd(a, full_matrices=False), L.svdvals(a + a), L.svd(a * 2.0, full_matrices=False).U,
            L.svd(a * 3.0, full_matrices=False).Vh)


def small(found: Any, norm: Any, dtype: str, factor: float) -> None:
    """That numbers are nothing but rounding errors of matrices of so large numbers."""
    if found.size:
        excess = np.abs(found).reshape(*norm.shape, -1).max(-1) / np.maximum(norm, np.finfo(dtype).tiny)
        assert excess.max() < factor * EPS[dtype], excess.max()


def right(a: Any, s: Any, w: Any, v: Any, u: Any, values: Any, vh: Any) -> None:
    """Eigenvalues and vectors, and singular ones: as LAPACK's, in order, orthonormal, and they make the matrices again."""
    dtype, (m, n) = str(a.dtype), a.shape[-2:]
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, s = a.astype(wide), np.tril(s.astype(wide), -1) + s.real * np.eye(s.shape[-1])
    s = s + t(np.tril(s, -1))
    k, bound = min(m, n), 8.0 * max(m, n)
    norm, size = np.abs(s).max((-2, -1)), np.abs(a).max((-2, -1))
    one = np.ones_like(norm)
    assert v.dtype == u.dtype == vh.dtype == dtype
    assert w.dtype == values.dtype == np.empty(0, dtype).real.dtype
    assert (np.diff(w) >= 0).all()
    assert (np.diff(values) <= 0).all()
    assert (values >= 0).all()
    small(w - np.linalg.eigvalsh(s), norm, dtype, bound)
    small(values - np.linalg.svd(a, compute_uv=False), size, dtype, bound)
    scaled, of_a = norm[..., None, None], size[..., None, None]
    scaled, of_a = (np.where(x > 0, x, 1) for x in (scaled, of_a))
    w, v, u, values, vh = (x.astype(wide) for x in (w, v, u, values, vh))
    small(v * (w[..., None, :] / scaled) @ t(v) - s / scaled, one, dtype, bound)
    small((u[..., :k] * (values[..., None, :] / of_a)) @ vh[..., :k, :] - a / of_a, one, dtype, bound)
    for x in (v, u, t(vh)):
        small(t(x) @ x - np.eye(x.shape[-1]), one, dtype, bound)


@pytest.mark.long
@pytest.mark.parametrize(("batch", "m", "n", "dtype"), [
    ((7,), 1, 1, "float64"), ((33,), 2, 2, "float32"), ((7,), 3, 3, "float64"), ((3, 11), 3, 3, "float32"), ((), 4, 4, "float64"),
    ((9,), 5, 3, "float64"), ((5,), 2, 5, "float32"), ((4,), 5, 5, "float64"), ((7,), 1, 1, "complex64"), ((17,), 2, 2, "complex128"),
    ((2, 3), 3, 3, "complex64"), ((), 4, 4, "complex128"), ((5,), 4, 3, "complex64"), ((5,), 2, 3, "complex128"),
])
def test_kernels_of_every_target_give_lapacks_results(batch: tuple[int, ...], m: int, n: int, dtype: str, on_numpy: None) -> None:
    with Checked(slack=50.0) as checked:
        for y in tg.trace(everything)(*map(tg.tensor, matrices(batch, m, n, dtype))):
            y.numpy()
    assert checked.count == 6


@pytest.mark.long
@pytest.mark.parametrize(("batch", "m", "n", "dtype"), [
    ((3,), 7, 8, "float32"), ((8,), 8, 4, "float64"), ((2,), 13, 13, "float64"), ((3,), 7, 8, "complex128"), ((2,), 8, 4, "complex64"),
])
def test_kernels_of_larger_ones(batch: tuple[int, ...], m: int, n: int, dtype: str, on_numpy: None) -> None:
    with Checked({name: TARGETS[name] for name in ("avx512", "gpu")}, slack=50.0) as checked:
        f = tg.trace(lambda a, s: (*L.eigh(s), *L.svd(a, full_matrices=False)))
        for y in f(*map(tg.tensor, matrices(batch, m, n, dtype))):
            y.numpy()
    assert checked.count == 2


@one_of(6, ("batch", "m", "n", "dtype", "full"), [
    (7, 1, 1, "float32", False), (300, 2, 2, "float64", True), (33, 3, 3, "float32", False), (300, 3, 3, "float64", False),
    (33, 4, 4, "float64", True), (1, 5, 5, "float64", False), (300, 7, 5, "float32", True), (7, 7, 7, "float64", False),
    (33, 8, 8, "float32", False), (300, 8, 8, "float64", False), (33, 5, 13, "float64", True), (7, 13, 13, "float32", False),
    (33, 16, 16, "float64", False), (300, 16, 16, "float32", False), (33, 17, 16, "float64", False),
    (33, 1, 1, "complex128", True), (300, 2, 2, "complex64", False), (300, 3, 3, "complex128", False), (33, 7, 5, "complex128", True),
    (1, 8, 8, "complex64", False), (33, 5, 13, "complex64", True), (300, 8, 8, "complex128", False), (33, 16, 16, "complex64", False),
    (7, 16, 16, "complex128", False), (7, 17, 16, "complex128", False),
])
def test_the_device_gives_lapacks_results(batch: int, m: int, n: int, dtype: str, full: bool) -> None:
    a, s = matrices((batch,), m, n, dtype)
    f = tg.trace(lambda a, s: (*L.eigh(s), *L.svd(a, full_matrices=full)))
    found = [y.numpy() for y in f(tg.tensor(a), tg.tensor(s))]
    right(a, s, *found)
    if tg.device().kind != "numpy" and batch > 1:
        assert "Jacobi's rotations for" in f.explain()
        assert ("host code" in f.explain()) == (m > 16)
    k = min(m, n)
    for y, w in zip(found, [*L.eigh(tg.tensor(s)), *L.svd(tg.tensor(a), full_matrices=full)], strict=True):      # untraced: LAPACK's
        y, w = (x[..., :k] if x.shape[-2:] == (m, m) else x[..., :k, :] for x in (y, w.numpy()))    # the null spaces' are not unique
        np.testing.assert_allclose(y, w, atol=5e-3 if dtype in ("float32", "complex64") else 1e-9)


def hard(n: int, dtype: str) -> tuple[Any, Any]:
    """Matrices of extreme size and scaling, of less than full rank, with equal values, and none at all: 40 of each kind."""
    a, s = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in matrices((40,), n + 2, n, dtype))
    rng = np.random.default_rng(0)
    phases = [np.exp(2j * np.pi * rng.uniform(size=x.shape[1:])) if x.dtype.kind == "c" else 1.0 for x in (a, s)]
    a[0], s[0] = 0, 0
    a[1] = s[1] = 1                                                     # the rank is 1
    a[1, n:] = 1
    a[2], s[2] = np.eye(n + 2, n), np.eye(n)
    a[3, :, 1] = a[3, :, 0]
    a[4, :, 1:] = 0
    a[5, 2:] = 0
    s[3] = np.diag(np.arange(n)[::-1])
    s[4] = s[4, :, :1] * t(s[4, :, :1])
    q = np.linalg.qr(s[5])[0]
    s[5] = q * np.r_[np.ones(n - 1), 2] @ t(q)                          # all but one are equal
    s[6] = np.eye(n) + 1e-9 * s[6]
    a[7] = np.eye(n + 2, n) + 1e-9 * a[7]
    a[8, :, 1] *= 1e-25
    for k, size in enumerate((1e-30, 1e30, 1e-36, 1e37)):
        a[9 + k] *= size
        s[9 + k] *= size
    a[13], s[13] = (10.0 ** rng.uniform(-30, 30, x.shape[1:]) * phase for x, phase in zip((a, s), phases, strict=True))
    a[14] *= 10.0 ** rng.uniform(-30, 30, n)
    s[14] = np.diag(10.0 ** rng.uniform(-30, 30, n))
    a[15] *= 10.0 ** rng.uniform(-30, 30, (n + 2, 1))
    if dtype in ("float64", "complex128"):
        for k, size in enumerate((1e-290, 1e290, 1e307)):
            a[16 + k] *= size
            s[16 + k] *= size
        a[19, :, 1:] *= 1e-160
    return a.astype(dtype), s.astype(dtype)


@one_of(6, ("n", "dtype"), [
    (3, "float64"), (6, "float32"), (8, "float64"), (3, "complex64"), (5, "complex128"),
])
def test_matrices_that_are_hard(n: int, dtype: str) -> None:
    a, s = hard(n, dtype)
    for full in (False, True):
        found = tg.trace(lambda a, s, full=full: (*L.eigh(s), *L.svd(a, full_matrices=full)))(tg.tensor(a), tg.tensor(s))
        right(a, s, *(y.numpy() for y in found))
    u, values, vh = (y.numpy() for y in tg.trace(lambda a: L.svd(a))(tg.tensor(t(a).copy())))         # noqa: PLW0108 - a trace of its own
    right(t(a), s, *(y.numpy() for y in L.eigh(tg.tensor(s))), u, values, vh)


@pytest.mark.long
def test_hard_ones_in_kernels_of_every_target(on_numpy: None) -> None:
    """Vectors of equal values are anything: compared is what is made of them."""
    def made(a: Any, s: Any) -> Any:
        w, v = L.eigh(s)
        u, values, vh = L.svd(a, full_matrices=True)
        k = values.shape[-1]
        return (w, (v * w.unsqueeze(-2)) @ v.mH, v.mH @ v, values, (u[..., :k] * values.unsqueeze(-2)) @ vh[..., :k, :], u.mH @ u,
                vh @ vh.mH)

    for dtype in ("float32", "float64", "complex64", "complex128"):
        a, s = hard(3, dtype)
        kept = [k for k in range(16) if k not in (10, 12, 13, 14, 15)]             # one tolerance is for all numbers of a result
        targets = TARGETS if a.dtype.kind == "f" else {name: TARGETS[name] for name in ("avx512", "builtins", "gpu")}
        with Checked(targets, slack=50.0) as checked:
            for y in tg.trace(made)(tg.tensor(a[kept]), tg.tensor(s[kept])):
                y.numpy()
        assert checked.count == len(targets)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_matrix_does_not_depend_on_its_neighbours(device: Any, dtype: str) -> None:
    """To the bit: one that is done waits for the others."""
    a, s = hard(5, dtype)
    f = tg.trace(lambda a, s: (*L.eigh(s), *L.svd(a)))
    first = [y.numpy() for y in f(tg.tensor(a), tg.tensor(s))]
    order = np.random.default_rng(1).permutation(40)
    for y, w in zip(f(tg.tensor(a[order]), tg.tensor(s[order])), first, strict=True):
        np.testing.assert_array_equal(y.numpy(), w[order])


@one_of(2, ("value", "dtype"), [
    (np.nan, "float64"), (np.inf, "float64"), (-np.inf, "float64"), (complex(0, np.nan), "complex128"), (complex(-np.inf, 1), "complex128"),
])
def test_the_error_names_function_and_matrix(value: complex, dtype: str) -> None:
    a, s = matrices((3, 11), 4, 4, dtype)
    for place in ((2, 0), (1, 5)):
        a[place][1, 2] = s[place][2, 1] = value
    s[0, 0, 1, 2] = value                                              # that triangle is not read, nor imaginary parts of the diagonal
    if dtype == "complex128":
        s[0, 1, 2, 2] = complex(1, np.nan)
    calls: dict[str, Any] = {
        "eigh": lambda a, s: L.eigh(s).eigenvectors, "eigvalsh": lambda a, s: L.eigvalsh(s), "svd": lambda a, s: L.svd(a).Vh,
        "svdvals": lambda a, s: L.svdvals(a),
    }
    for name, call in calls.items():
        messages = []
        for fn in (tg.trace(call), call):
            with pytest.raises(LinAlgError) as told:
                fn(tg.tensor(a), tg.tensor(s)).numpy()
            messages.append(str(told.value).split(" (at ")[0])
        assert messages[0].startswith(f"{name}: matrix (1, 5) of the batch (3, 11) (4x4) has no decomposition: it holds NaN or infinity")
        assert messages[0] == messages[1]


def test_only_what_depends_on_such_a_matrix_is_an_error() -> None:
    a, _ = matrices((20,), 3, 3, "float64")
    a[7, 0, 0] = np.nan
    f = tg.trace(lambda a: (L.svdvals(a) * 2.0, a[:5].sum()))
    values, total = f(tg.tensor(a))
    assert np.isclose(total.item(), a[:5].sum())
    with pytest.raises(LinAlgError, match="svdvals: matrix 7 of the batch"):
        (values + 1.0).numpy()
    a[7] = np.eye(3)
    np.testing.assert_allclose(f(tg.tensor(a))[0].numpy(), 2 * np.linalg.svd(a, compute_uv=False), rtol=1e-9)


@pytest.mark.long
def test_derivatives_of_any_order_in_kernels() -> None:
    a, s = matrices((2,), 4, 3, "float64")
    a, s = tg.tensor(a, requires_grad=True), tg.tensor(s + np.diag([0.0, 3.0, 7.0]), requires_grad=True)

    def loss(a: Any, s: Any) -> Any:
        w, v = L.eigh(s + s.mT)
        u, values, vh = L.svd(a, full_matrices=False)
        return ((v[..., 0] ** 3).sum() + w.sin().sum() + (u * values.cos().unsqueeze(-2) @ vh).sin().sum() + (vh ** 3).sum()
                + L.eigvalsh(s @ s.mT)[..., 1].sum() + L.svdvals(a).exp().sum())

    f = tg.trace(loss)
    assert gradcheck(f, (a, s))
    assert gradgradcheck(f, (a, s), atol=1e-4)
    first = tg.trace(tg.grad(loss, (0, 1)))
    first(a, s)
    assert "host code" not in first.explain()


@pytest.mark.long
def test_derivatives_of_complex_matrices_in_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what does not depend on the vectors' phases: real functions of each column, and products in which the phases cancel."""
    a, s = matrices((1,), 4, 3, "complex128")
    wide, _ = matrices((1,), 2, 3, "complex128")
    given = [tg.tensor(x, requires_grad=True) for x in (a, s + np.diag([0.0, 3.0, 7.0]), wide)]

    def loss(a: Any, s: Any, wide: Any) -> Any:
        w, v = L.eigh(s + s.mH)
        total = w.sin().sum() + ((v * (w * 0.3).cos().unsqueeze(-2)) @ v.mH).imag.sin().sum() + (abs(v[..., 0]) ** 3).sum()
        for x in (a, wide):
            u, values, vh = L.svd(x, full_matrices=False)
            total = total + (u * values.cos().unsqueeze(-2) @ vh).imag.sin().sum() + (abs(vh) ** 3).sum()
        return total + L.eigvalsh(s @ s.mH, UPLO="U")[..., 1].sum() + (abs(u[..., 0]) ** 3).sum() + L.svdvals(a).exp().sum()

    first = tg.trace(tg.grad(loss, (0, 1, 2)))
    for g, w in zip(first(*given), tg.grad(loss, (0, 1, 2))(*given), strict=True):
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), atol=1e-9)
    assert "host code" not in first.explain()
    assert gradcheck(tg.trace(loss), given)
    monkeypatch.setattr(tg.config, "eager", True)                      # by LAPACK
    assert gradcheck(loss, given)


@pytest.mark.long
def test_second_derivatives_of_complex_matrices_in_kernels() -> None:
    a, s = matrices((1,), 3, 3, "complex128")
    given = [tg.tensor(x, requires_grad=True) for x in (a, s + np.diag([0.0, 3.0, 7.0]))]

    def loss(a: Any, s: Any) -> Any:
        w, v = L.eigh(s)
        u, values, vh = L.svd(a)
        return ((v * (w * 0.3).cos().unsqueeze(-2)) @ v.mH).imag.sin().sum() + (u * values.cos().unsqueeze(-2) @ vh).imag.sin().sum()

    assert gradcheck(tg.trace(lambda *x: sum((abs(g) ** 2).sum() for g in tg.grad(loss, (0, 1))(*x))), given, atol=1e-4)


@pytest.mark.long
def test_derivatives_with_equal_values_are_lapacks() -> None:
    """Of the values they are right, of the vectors NaN or infinite."""
    real = np.stack([np.diag([1.0, 1.0, 2.0]), np.eye(3), np.diag([0.0, 3.0, 4.0])])
    for s in (real, real + 0j):
        for fn in (lambda x: (L.eigvalsh(x) ** 2).sum(), lambda x: (L.svdvals(x) ** 2).sum()):
            np.testing.assert_allclose(tg.trace(tg.grad(fn))(tg.tensor(s)).numpy(), 2 * s, atol=1e-12)
    for fn in (lambda x: (L.eigh(x).eigenvectors * 3.0).sin().sum(), lambda x: (L.svd(x).U * 3.0).sin().sum()):
        found = tg.trace(tg.grad(fn))(tg.tensor(real)).numpy()
        assert np.isfinite(found).all((-2, -1)).tolist() == [False, False, True]
    found = tg.trace(tg.grad(lambda x: (abs(L.eigh(x).eigenvectors * 3.0) ** 2).sin().sum()))(tg.tensor(real + 0j)).numpy()
    assert np.isfinite(found).all((-2, -1)).tolist() == [False, False, True]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_vmap_forward_mode_and_scan(dtype: str) -> None:
    a, s = matrices((6, 5), 4, 4, dtype)
    y = tg.trace(tg.vmap(L.svdvals))(tg.tensor(a))
    np.testing.assert_allclose(y.numpy(), np.linalg.svd(a, compute_uv=False), rtol=1e-9)
    s = s + t(s)
    f = tg.trace(lambda s, d: tg.func.jvp(lambda x: L.eigh(x).eigenvalues, (s,), (d,)))
    w, tangent = (y.numpy() for y in f(tg.tensor(s), tg.tensor(t(s) @ s)))
    np.testing.assert_allclose(tangent, w * w, rtol=1e-9)                         # d w = v^T s^2 v
    assert "host code" not in f.explain()

    def iterations(a: Any, x: Any) -> Any:
        return tg.scan(lambda x, m: (y := L.eigh(m + x @ x.mH).eigenvectors, y), x, a)[0]

    wanted = a[0]
    for m in s:
        wanted = L.eigh(tg.tensor(m + wanted @ t(wanted))).eigenvectors.numpy()
    g = tg.trace(iterations)
    np.testing.assert_allclose(g(tg.tensor(s), tg.tensor(a[0])).numpy(), wanted, atol=1e-8)
    assert "host code" not in g.explain()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_signs_are_the_same_whichever_way(dtype: str) -> None:
    """The first component of a vector that is not small is positive: of eigenvectors, and of right singular vectors."""
    a, s = matrices((33,), 5, 4, dtype)
    f = lambda a, s: (L.eigh(s).eigenvectors, *L.svd(a, full_matrices=False))
    kernels = [y.numpy() for y in tg.trace(f)(tg.tensor(a), tg.tensor(s))]
    with tuned(Tuning(matrix_size=0)):
        host = [y.numpy() for y in tg.trace(f)(tg.tensor(a), tg.tensor(s))]
    for y, w in zip(kernels, host, strict=True):
        np.testing.assert_allclose(y, w, atol=1e-9)
    for v in (kernels[0], t(kernels[3])):
        first = np.take_along_axis(v, (np.abs(v) > 0.185).argmax(-2)[:, None], -2)
        assert (first.real > 0).all()
        assert np.abs(first.imag).max() < 1e-15
