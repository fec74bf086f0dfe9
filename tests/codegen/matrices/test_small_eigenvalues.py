"""Eigenvalues of many small general matrices in kernels (codegen/lower/matrices/eig_qr.py): against NumPy's LAPACK, and what is hard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad import linalg as L
from tracegrad.codegen.lower.matrices import eig_qr
from tracegrad.errors import LinAlgError
from tracegrad.ops.linalg import eigen
from tracegrad.support.tuning import Tuning, tuned
from tracegrad.testing import gradcheck


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    rng = np.random.default_rng(100 * shape[-1] + seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def both(a: Any) -> Any:
    """Eigenvalues and vectors, and the values alone: what nobody asks for is not computed."""
    return (*L.eig(a), L.eigvals(a))


def told(a: Any) -> Any:
    """What does not depend on the order of eigenvalues."""
    w, v = L.eig(a)
    return (w.sum(-1), (w * w).sum(-1), (v * w.unsqueeze(-2)) @ L.inv(v), (abs(v) ** 2).sum(-2), abs(v).max(-1).values,
            (L.eigvals(a * 2.0) ** 3).sum(-1))


def right(a: Any, w: Any, v: Any, values: Any, factor: float = 60.0) -> None:
    """A V = V diag(w); vectors have the length 1 and a positive largest component. Of real matrices pairs are conjugates to the bit."""
    n, eps = a.shape[-1], np.finfo(a.dtype).eps
    assert w.dtype == v.dtype == values.dtype == np.result_type(a.dtype, np.complex64)
    assert np.isfinite(w).all()
    assert np.isfinite(v).all()
    size = np.maximum(np.abs(a).max((-2, -1)), np.finfo(a.dtype).tiny).astype(np.float64)
    one, scaled = a / size[..., None, None].astype(a.real.dtype), w.astype(np.complex128) / size[..., None]
    np.testing.assert_allclose(values / size[..., None], scaled, atol=factor * n * eps)
    wide = v.astype(np.complex128)
    residual = np.abs(one @ wide - wide * scaled[..., None, :]).max((-2, -1))
    assert residual.max() < factor * n * eps, (residual.argmax(), residual.max() / eps)
    assert np.abs(np.linalg.norm(wide, axis=-2) - 1).max() < 20 * eps
    first = (np.abs(v) >= 0.999 * np.abs(v).max(-2, keepdims=True)).argmax(-2)[..., None, :]
    largest = np.take_along_axis(v, first, -2)
    assert (largest.real > 0).all()
    assert (largest.imag == 0).all()
    if a.dtype.kind == "f":
        assert (v.imag * (w.imag == 0)[..., None, :] == 0).all()
        for sign in (1, -1):
            here = sign * w.imag > 0
            other = np.roll(here, sign, -1)
            assert (w[here] == w[other].conj()).all()
            assert (v.swapaxes(-1, -2)[here] == v.swapaxes(-1, -2)[other].conj()).all()


def matched(w: Any, wanted: Any, size: Any, tolerance: float) -> None:
    """That these are the same numbers, in any order: each is near one that no other is nearer to."""
    left = wanted.astype(np.complex128).copy()
    for j in range(w.shape[-1]):
        apart = np.abs(left - w[..., j:j + 1])
        place = apart.argmin(-1)[..., None]
        assert (np.take_along_axis(apart, place, -1)[..., 0] <= tolerance * size).all()
        np.put_along_axis(left, place, np.inf, -1)


@pytest.mark.long
@pytest.mark.parametrize(("batch", "n", "dtype"), [
    ((7,), 1, "float64"), ((17,), 2, "float32"), ((3,), 3, "float64"), ((2, 1), 3, "float32"), ((), 4, "float64"), ((1,), 5, "float64"),
    ((7,), 1, "complex64"), ((9,), 2, "complex128"), ((2,), 3, "complex64"),
])
def test_kernels_of_every_target_give_lapacks_results(batch: tuple[int, ...], n: int, dtype: str, on_numpy: None) -> None:
    with Checked(slack=50.0) as checked:
        for y in tg.trace(told)(tg.tensor(drawn((*batch, n, n), dtype))):
            y.numpy()
    assert checked.count == 6


@pytest.mark.parametrize(("n", "dtype"), [(8, "float32"), (7, "complex128")])
def test_kernels_of_larger_ones(n: int, dtype: str, on_numpy: None) -> None:
    with Checked({"gpu": TARGETS["gpu"]}, slack=500.0) as checked:
        for y in tg.trace(told)(tg.tensor(drawn((2, n, n), dtype))):
            y.numpy()
    assert checked.count == 1


@one_of(10, ("batch", "n", "dtype"), [
    (7, 1, "float32"), (300, 2, "float64"), (33, 3, "float32"), (1000, 3, "float64"), (33, 4, "float64"), (1, 5, "float64"),
    (300, 7, "float32"), (300, 8, "float64"), (1, 12, "float32"), (65, 12, "float64"), (33, 13, "float32"), (300, 16, "float64"),
    (17, 16, "float32"), (9, 17, "float64"),
    (33, 1, "complex128"), (300, 2, "complex64"), (300, 3, "complex128"), (1, 5, "complex64"), (65, 8, "complex128"),
    (33, 12, "complex64"), (65, 16, "complex128"), (7, 16, "complex64"), (9, 17, "complex128"),
])
def test_the_device_gives_lapacks_results(batch: int, n: int, dtype: str) -> None:
    a = drawn((batch, n, n), dtype)
    f = tg.trace(both)
    found = [y.numpy() for y in f(tg.tensor(a))]
    right(a, *found)
    wide = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    matched(found[0], np.linalg.eigvals(wide), np.abs(a).max((-2, -1)), 1e-3 if dtype in ("float32", "complex64") else 1e-9)
    if tg.device().kind != "numpy":
        assert ("QR steps for" in f.explain()) == (n <= 16)
        assert ("host code" in f.explain()) == (n > 16)


def hard(n: int, dtype: str) -> Any:
    """Matrices of extreme size, defective ones, ones with equal eigenvalues, with none at all, and where shifts of 0 lead nowhere."""
    rng = np.random.default_rng(n)
    kind = np.complex128 if dtype.startswith("complex") else np.float64
    a = drawn((60, n, n), dtype, 1).astype(kind)
    above = np.diag(np.ones(n - 1), 1)
    rows = np.arange(n)
    a[0], a[1], a[2] = 0, np.eye(n), 1
    a[3], a[4], a[5] = above, 2 * np.eye(n) + above, 3 * np.eye(n) + above.T            # Jordan's
    for k in range(1, 5):
        a[5 + k] = np.roll(np.eye(n), k, 0)
    a[10] = np.linalg.qr(a[10])[0]
    a[11], a[12] = np.triu(a[11]), np.tril(a[12])
    a[13], a[14] = a[13] + a[13].T.conj(), a[14] - a[14].T.conj()
    a[15, 1:] = np.eye(n)[:-1]                                                          # a companion matrix
    a[16] = np.outer(a[16, 0], a[16, 1])
    a[17] = [[n - max(i, j) if j >= i - 1 else 0 for j in rows] for i in rows]          # Frank's
    a[18] *= 10.0 ** -np.add.outer(rows, rows)
    scales = 10.0 ** rng.uniform(-10, 10, n)
    a[19] = a[19] * scales[:, None] / scales
    for k in range(20, 30):
        a[k] *= rng.uniform(size=(n, n)) < (0.15, 0.3)[k % 2]
    a[30:40] = rng.integers(-1, 2, (10, n, n))
    a[40:44] = np.eye(n) + 1e-9 * a[40:44]
    a[44:48] = 2 * np.eye(n) + above + 1e-14 * a[44:48]
    a[48] = np.kron(np.eye(n), [[0.0, 1.0], [-1.0, 0.0]])[:n, :n]
    for k, size in enumerate((1e-20, 1e20, 1e-30, 1e30, 1e-36, 1e37)):
        a[50 + k] *= size
    if dtype in ("float64", "complex128"):
        for k, size in enumerate((1e-290, 1e290, 1e307)):
            a[56 + k] *= size
    return a.astype(dtype)


@one_of(6, ("n", "dtype"), [
    (2, "float64"), (3, "float32"), (5, "float64"), (12, "float64"), (16, "float32"),
    (2, "complex64"), (5, "complex128"), (16, "complex128"),
], first=1)
def test_matrices_that_are_hard(n: int, dtype: str) -> None:
    a = hard(n, dtype)
    f = tg.trace(both)
    right(a, *(y.numpy() for y in f(tg.tensor(a))))
    w = f(tg.tensor(a))[0].numpy()
    well = np.r_[0:2, 6:17, 48:60]                                              # those whose eigenvalues are well conditioned
    wide = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)[well]
    matched(w[well], np.linalg.eigvals(wide), np.abs(wide).max((-2, -1)), 2e-4 if dtype in ("float32", "complex64") else 1e-7)
    order = np.random.default_rng(1).permutation(len(a))                        # a matrix does not depend on its neighbours, to the bit
    for y, first in zip(f(tg.tensor(a[order])), f(tg.tensor(a)), strict=True):
        np.testing.assert_array_equal(y.numpy(), first.numpy()[order])


@pytest.mark.long
def test_numbers_of_any_size_beside_each_other() -> None:
    """Where balancing does not get far, and rounding errors are larger than what is to become small."""
    rng = np.random.default_rng(5)
    for dtype, most in (("float64", 300), ("complex64", 37)):
        kind = np.complex128 if dtype == "complex64" else np.float64
        a = drawn((400, 4, 4), dtype).astype(kind) * 10.0 ** rng.uniform(-most, most, (400, 4, 4))
        w, v = (y.numpy() for y in tg.trace(lambda a: tuple(L.eig(a)))(tg.tensor(a.astype(dtype))))
        assert np.isfinite(w).all()
        assert np.abs(np.linalg.norm(v, axis=-2) - 1).max() < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_hard_ones_in_kernels_of_gpus(dtype: str, on_numpy: None) -> None:
    """Sums of powers, for defective matrices have less that is the same."""
    a = hard(3, dtype)[np.r_[0:20, 23:26]]
    a = a / np.maximum(np.abs(a).max((-2, -1), keepdims=True), 1e-30).astype(a.real.dtype)
    with Checked({"gpu": TARGETS["gpu"]}, slack=50.0) as checked:
        for y in tg.trace(lambda a: (lambda w: (w.sum(-1), (w * w).sum(-1)))(L.eigvals(a)))(tg.tensor(a)):
            y.numpy()
    assert checked.count == 1


def test_triangles_have_their_diagonals() -> None:
    """To the bit, also where Jordan's blocks are: rows and columns that are alone are taken out."""
    rng = np.random.default_rng(0)
    for dtype in ("float64", "complex128"):
        a = np.triu(drawn((20, 8, 8), dtype))
        a[:5, range(8), range(8)] = 2.0
        for order in (np.arange(8), np.arange(8)[::-1], rng.permutation(8)):
            x = a[:, order][:, :, order]
            w = tg.trace(L.eigvals)(tg.tensor(x)).numpy()
            np.testing.assert_array_equal(np.sort_complex(w), np.sort_complex(x[:, range(8), range(8)].astype(complex)))


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (0, 0, 0)])
def test_none_at_all(shape: tuple[int, ...]) -> None:
    w, v = tg.trace(lambda a: tuple(L.eig(a)))(tg.tensor(np.zeros(shape)))
    assert (w.shape, v.shape, w.dtype) == (shape[:-1], shape, tg.complex128)


@pytest.mark.long
def test_vectors_are_the_same_whichever_way() -> None:
    """Where the order is: signs and phases are nobody's."""
    for dtype in ("float64", "complex128"):
        a = tg.tensor(drawn((50, 4, 4), dtype))
        w, v = (y.numpy() for y in tg.trace(lambda a: tuple(L.eig(a)))(a))
        with tuned(Tuning(matrix_size=0)):
            host = tg.trace(lambda a: tuple(L.eig(a)))
            wanted, vectors = (y.numpy() for y in host(a))
        same = np.abs(w - wanted).max(-1) < 1e-9
        assert same.mean() > 0.8
        np.testing.assert_allclose(v[same], vectors[same], atol=1e-9)


@one_of(2, ("value", "dtype"), [
    (np.nan, "float64"), (complex(-np.inf, 1), "complex128"),
])
def test_the_error_names_function_and_matrix(value: complex, dtype: str) -> None:
    a = drawn((3, 11, 3, 3), dtype)
    a[2, 0, 1, 1] = a[1, 5, 2, 0] = value
    for name, call in {"eig": lambda a: L.eig(a).eigenvectors, "eigvals": L.eigvals}.items():
        messages = []
        for fn in (tg.trace(call), call):
            with pytest.raises(LinAlgError) as error:
                fn(tg.tensor(a)).numpy()
            messages.append(str(error.value).split(" (at ")[0])
        assert messages[0].startswith(f"{name}: matrix (1, 5) of the batch (3, 11) (3x3) has no decomposition: it holds NaN or infinity")
        assert messages[0] == messages[1]


def test_only_what_depends_on_such_a_matrix_is_an_error() -> None:
    a = drawn((20, 3, 3), "float64")
    a[7, 0, 0] = np.nan
    f = tg.trace(lambda a: (L.eigvals(a) * 2.0, a[:5].sum()))
    values, total = f(tg.tensor(a))
    assert np.isclose(total.item(), a[:5].sum())
    with pytest.raises(LinAlgError, match="eigvals: matrix 7 of the batch"):
        (values + 1.0).numpy()


def test_an_iteration_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    if tg.device().kind == "numpy":
        pytest.skip("no kernels")
    monkeypatch.setattr(eig_qr, "_STEPS", 0)
    a = np.stack([np.triu(x) for x in drawn((5, 4, 4), "float64")])
    f = tg.trace(lambda a: L.eigvals(a) + 0.125)                                # a program of its own
    f(tg.tensor(a)).numpy()
    a[3] = drawn((4, 4), "float64")
    with pytest.raises(LinAlgError, match=r"eigvals: matrix 3 of the batch \(5,\) .*: the iteration did not converge"):
        f(tg.tensor(a)).numpy()


def loss(a: Any) -> Any:
    """Of what does not depend on phases."""
    w, v = L.eig(a)
    weights = tg.arange(v.shape[-1], dtype=v.real.dtype)[:, None]
    return (abs(v) ** 3 * weights).sum() + ((v * (w * 0.3).cos().unsqueeze(-2)) @ L.inv(v)).sin().imag.sum() + w.sin().real.sum()


@one_of(4, "dtype", ["float64", "complex128"])
def test_derivatives_in_kernels(dtype: str) -> None:
    a = tg.tensor(drawn((2, 4, 4), dtype), requires_grad=True)
    assert gradcheck(tg.trace(loss), (a,))
    first = tg.trace(tg.grad(loss))
    first(a)
    assert "host code" not in first.explain()


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_second_derivatives_in_kernels(dtype: str) -> None:
    a = tg.tensor(drawn((1, 3, 3), dtype), requires_grad=True)
    assert gradcheck(tg.trace(lambda a: (abs(tg.grad(loss)(a)) ** 2).sum()), (a,), atol=1e-4)


def test_derivatives_by_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tg.config, "eager", True)
    for dtype in ("float64", "complex128"):
        assert gradcheck(loss, (tg.tensor(drawn((2, 3, 3), dtype), requires_grad=True),))


def test_derivatives_where_each_call_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch, on_numpy: None) -> None:
    """What is computed forward by LAPACK may be by kernels backward."""
    a = np.stack([drawn((5, 5), "float64"), np.diag([1.0, 1.0, 2.0, 3.0, 1.0]), np.zeros((5, 5))])

    def gradients() -> Any:
        found = []
        for fn in (lambda w, v: (w ** 3).real.sum() + (w.imag.abs() * w.real).sum(),
                   lambda w, v: (abs(v[:1]) ** 3).sum() + (w ** 2).real.sum()):
            x = tg.tensor(a, requires_grad=True)
            y = L.eig(x)
            tg.synchronize()
            fn(*y).backward()
            found.append(x.grad.numpy())
        return found

    wanted, plain, calls = gradients(), eigen.Eig.results, [0]

    def results(self: Any, a: Any) -> Any:
        calls[0] += 1
        order = np.random.default_rng(calls[0]).permutation(5)
        w, v = plain(self, a)
        return [w[..., order], v[..., order]]

    monkeypatch.setattr(eigen.Eig, "results", results)
    for found, same in zip(gradients(), wanted, strict=True):
        np.testing.assert_allclose(found, same, atol=1e-9)
    assert calls[0] > 3


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_vmap_forward_mode_and_scan(dtype: str) -> None:
    a = drawn((6, 5, 4, 4), dtype)
    y = tg.trace(tg.vmap(L.eigvals))(tg.tensor(a)).numpy()
    matched(y, np.linalg.eigvals(a), np.ones(a.shape[:2]), 1e-9)
    f = tg.trace(lambda s, d: tg.func.jvp(L.eigvals, (s,), (d,)))
    w, tangent = (y.numpy() for y in f(tg.tensor(a), tg.tensor(a @ a)))
    np.testing.assert_allclose(tangent, w * w, rtol=1e-8)
    assert "host code" not in f.explain()

    def body(x: Any, m: Any) -> Any:
        w, v = L.eig(x)
        y = m * 0.1 + ((v * w.unsqueeze(-2)) @ L.inv(v)).real.to(m.dtype)
        return y, y

    def iterations(a: Any, x: Any) -> Any:
        return tg.scan(body, x, a)[0]

    wanted = a[0]
    for m in a:
        wanted = m * 0.1 + (wanted.real if dtype == "complex128" else wanted)
    g = tg.trace(iterations)
    np.testing.assert_allclose(g(tg.tensor(a), tg.tensor(a[0])).numpy(), wanted, atol=1e-8)
    assert "host code" not in g.explain()
