"""tg.linalg against numpy.linalg: values at many sizes, derivatives of any order, batches, traces, what it refuses."""

import networkx as nx
import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.errors import ArgumentError, AutogradError, DTypeError, LinAlgError, ShapeError
from tracegrad.support import blas
from tracegrad.testing import gradcheck, gradgradcheck

L = tg.linalg
SIZES = (1, 2, 3, 7, 13, 33, 65)
BATCHES = ((), (3,), (2, 3))


@pytest.fixture(autouse=True)
def interpreter(request):
    """Everything here runs on the interpreter, except for what asks for the device."""
    if "device" not in request.fixturenames:
        request.getfixturevalue("on_numpy")


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape)


def regular(*shape, seed=0):
    """Well-conditioned square matrices."""
    return draw(*shape, seed=seed) + (1 + shape[-1] ** 0.5) * np.eye(shape[-1])


def positive(*shape):
    a = regular(*shape)
    return a @ a.swapaxes(-1, -2)


def leaf(a):
    return tg.tensor(np.asarray(a, np.float64), requires_grad=True)


def t(x):
    return x.swapaxes(-1, -2)


def near(found, wanted, dtype, factor=100):
    found = found.detach().numpy() if isinstance(found, tg.Tensor) else found
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == (dtype if wanted.dtype.kind == "f" else wanted.dtype)
    scale = np.abs(wanted).max(initial=1.0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=factor * np.finfo(dtype).eps * scale)


def expm(a):
    """The series, in more precision than float64 (scipy's expm is off by 1e-13 to 1e-12 for norms about 5)."""
    iterations = 12
    x = a.astype(np.longdouble) / 2**iterations
    y = term = np.broadcast_to(np.eye(a.shape[-1], dtype=np.longdouble), a.shape)
    for k in range(1, 15):
        term = term @ x / k
        y = y + term
    for _ in range(iterations):
        y = y @ y
    return y.astype(np.float64)


# ------------------------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", SIZES)
def test_square_values(n, dtype):
    for batch in BATCHES:
        a, b = regular(*batch, n, n).astype(dtype), draw(*batch, n, 2).astype(dtype)
        spd = positive(*batch, n, n).astype(dtype)
        exact, tall = a.astype(np.float64), b.astype(np.float64)
        x, y, s = tg.tensor(a), tg.tensor(b), tg.tensor(spd)
        near(L.solve(x, y), np.linalg.solve(exact, tall), dtype)
        near(L.solve(x, t(y), left=False), t(np.linalg.solve(t(exact), tall)), dtype)
        near(L.inv(x), np.linalg.inv(exact), dtype)
        near(L.cholesky(s), np.linalg.cholesky(spd.astype(np.float64)), dtype)
        near(L.cholesky(s, upper=True), t(np.linalg.cholesky(spd.astype(np.float64))), dtype)
        near(L.det(x / n), np.linalg.det(exact / n), dtype, 1000)
        for found, wanted in zip(L.slogdet(x), np.linalg.slogdet(exact), strict=True):
            near(found, wanted, dtype, 1000)
        near(L.eigvalsh(s), np.linalg.eigvalsh(spd.astype(np.float64)), dtype)
        w, v = L.eigh(s)
        near((v * w.unsqueeze(-2)) @ v.mT, spd, dtype)
        near(v.mT @ v, np.broadcast_to(np.eye(n), a.shape), dtype)
        for upper in (False, True):
            triangle = np.triu(exact) if upper else np.tril(exact)
            near(L.solve_triangular(x, y, upper=upper), np.linalg.solve(triangle, tall), dtype)
            near(L.solve_triangular(x, t(y), upper=upper, left=False), t(np.linalg.solve(t(triangle), tall)), dtype)
        ones = np.tril(exact / n, -1) + np.eye(n)
        near(L.solve_triangular(x / n, y, upper=False, unitriangular=True), np.linalg.solve(ones, tall), dtype)
        p, low, up = L.lu(x)
        near(p @ low @ up, a, dtype)
        assert np.abs(low.numpy()).max() <= 1
        np.testing.assert_array_equal(low.numpy(), np.tril(low.numpy()))
        np.testing.assert_array_equal(up.numpy(), np.triu(up.numpy()))
        near(L.lu_solve(*L.lu_factor(x), y), np.linalg.solve(exact, tall), dtype)
        near(L.lu_solve(*L.lu_factor(x), y, adjoint=True), np.linalg.solve(t(exact), tall), dtype)
        near(L.lu_solve(*L.lu_factor(x), t(y), left=False), t(np.linalg.solve(t(exact), tall)), dtype)
        near(tg.cholesky_solve(y, L.cholesky(s)), np.linalg.solve(spd.astype(np.float64), tall), dtype)
        near(tg.cholesky_solve(y, L.cholesky(s, upper=True), upper=True), np.linalg.solve(spd.astype(np.float64), tall), dtype)
        near(L.matrix_exp(x), expm(exact), dtype, 1000)
        for k in (0, 1, 2, 5, -1, -3):
            near(L.matrix_power(x, k), np.linalg.matrix_power(exact, k), dtype, 10000)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_many_columns_are_solved_as_exactly_as_by_substitution(upper, unit):
    """Of triangles whose inverses are large (numbers of size one below a diagonal of ones), too: what A X leaves of B is rounding alone."""
    a, b = np.tril(draw(2, 75, 75)) + (0 if unit else np.eye(75)), draw(2, 75, 90)
    a = a.swapaxes(-1, -2) if upper else a
    other = np.triu(np.full((75, 75), np.nan), 1)                            # is not read
    x = L.solve_triangular(tg.tensor(a + (other.T if upper else other)), tg.tensor(b), upper=upper, unitriangular=unit).numpy()
    a = a - a * np.eye(75) + np.eye(75) if unit else a
    assert (abs(a @ x - b) <= 1e-14 * (abs(a) @ abs(x))).all()
    few = L.solve_triangular(tg.tensor(a), tg.tensor(b[..., :3]), upper=upper).numpy()
    np.testing.assert_allclose(few, x[..., :3], rtol=1e-6, atol=1e-8 * abs(x).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", SIZES)
def test_square_roots_and_what_reports(n, dtype):
    for batch in BATCHES:
        a, b, spd = regular(*batch, n, n).astype(dtype), draw(*batch, n, 2).astype(dtype), positive(*batch, n, n).astype(dtype)
        x, y, s = tg.tensor(a), tg.tensor(b), tg.tensor(spd)
        root = L.matrix_sqrth(s)
        near(root @ root, spd, dtype)
        near(root.mT, root.numpy(), dtype)
        for found, wanted in ((L.inv_ex(x), L.inv(x)), (L.solve_ex(x, y), L.solve(x, y)), (L.cholesky_ex(s), L.cholesky(s))):
            np.testing.assert_array_equal(found[0].numpy(), wanted.numpy())
            assert found.info.shape == batch
            assert found.info.dtype == np.int32
            assert not found.info.numpy().any()
        packed, pivots, info = L.lu_factor_ex(x)
        assert not info.numpy().any()
        near(tg.lu_solve(y, *tg.lu(x)), np.linalg.solve(a.astype(np.float64), b.astype(np.float64)), dtype)
        for mine, theirs in zip(tg.lu_unpack(packed, pivots), L.lu(x), strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_info_tells_the_pivot_and_errors_name_it():
    a = np.stack([np.eye(4)] * 6)
    a[3, 2, 2] = 0
    a[4, 1] = a[4, 0]
    x = tg.tensor(a)
    assert L.inv_ex(x).info.tolist() == L.solve_ex(x, x).info.tolist() == [0, 0, 0, 3, 2, 0]
    assert L.lu_factor_ex(x).info.tolist()[:4] == [0, 0, 0, 3]
    found = L.inv_ex(x).inverse.numpy()
    assert np.isnan(found[3]).all()
    assert (found[0] == np.eye(4)).all()
    a[4] = np.eye(4)
    a[5, 1, 1] = -1
    assert L.cholesky_ex(tg.tensor(a)).info.tolist() == [0, 0, 0, 3, 0, 2]
    for call, words in (
        (lambda: L.inv(x), r"^inv: matrix 3 of the batch \(6,\) \(4x4\) is singular \(pivot 3\)"),
        (lambda: L.solve(x, x), r"^solve: matrix 3 of the batch .* \(pivot 3\)"),
        (lambda: L.inv_ex(x, check_errors=True).inverse, r"^inv_ex: matrix 3"),
        (lambda: L.cholesky(tg.tensor(a[5])), r"^cholesky: the matrix \(4x4\) is not positive definite \(pivot 2\)"),
        (lambda: L.matrix_sqrth(tg.tensor(a)), r"^matrix_sqrth: matrix 3 of the batch"),
    ):
        with pytest.raises(LinAlgError, match=words):
            call().numpy()


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 2), (7, 13), (13, 7), (33, 33), (65, 40), (40, 65)])
def test_rectangular_lu_and_orthogonal_factors(m, n):
    for batch in BATCHES:
        a = draw(*batch, m, n)
        x, k = tg.tensor(a), min(m, n)
        p, low, up = L.lu(x)
        assert (p.shape, low.shape, up.shape) == ((*batch, m, m), (*batch, m, k), (*batch, k, n))
        near(p @ low @ up, a, np.float64)
        packed, tau = tg.geqrf(x)
        q, r = np.linalg.qr(a)
        near(packed.triu()[..., :k, :], r, np.float64, 3000)
        c = draw(*batch, m, 3)
        whole = np.linalg.qr(a, "complete")[0]
        near(tg.ormqr(packed, tau, tg.tensor(c)), whole @ c, np.float64, 3000)
        near(tg.ormqr(packed, tau, tg.tensor(c), transpose=True), t(whole) @ c, np.float64, 3000)
        near(tg.ormqr(packed, tau, tg.tensor(t(c)), left=False), t(c) @ whole, np.float64, 3000)
        if m >= n:
            near(L.householder_product(packed, tau), q, np.float64, 3000)
            near(tg.orgqr(packed, tau), q, np.float64, 3000)
            u, h = L.polar(x)
            near(u @ h, a, np.float64)
            near(u.mT @ u, np.broadcast_to(np.eye(n), (*batch, n, n)), np.float64, 3000)
            assert (np.linalg.eigvalsh(h.numpy()) > -1e-12).all()
        u, s, v = tg.svd(x)
        near((u * s.unsqueeze(-2)) @ v.mT, a, np.float64)
        assert tg.svd(x, some=False).V.shape == (*batch, n, n)
        assert not tg.svd(x, compute_uv=False).U.numpy().any()


def test_low_rank_decompositions():
    tg.manual_seed(0)
    a = draw(2, 40, 3) @ draw(2, 3, 25)
    for shape in (a, t(a)):
        u, s, v = tg.svd_lowrank(tg.tensor(shape), q=5)
        near((u * s.unsqueeze(-2)) @ v.mT, shape, np.float64, 1e5)
        near(s[..., :3], np.linalg.svd(shape, compute_uv=False)[..., :3], np.float64, 1e5)
    u, s, v = tg.pca_lowrank(tg.tensor(a), q=4)
    near((u * s.unsqueeze(-2)) @ v.mT, a - a.mean(-2, keepdims=True), np.float64, 1e5)
    with pytest.raises(ArgumentError, match=r"^svd_lowrank: q"):
        tg.svd_lowrank(tg.tensor(a), q=30)


def test_tolerances_may_be_tensors():
    a = np.stack([np.diag([4.0, 1.0, 0.1])] * 2)
    limits = tg.tensor([0.5, 2.0], dtype="float64")
    assert L.matrix_rank(tg.tensor(a), atol=limits).tolist() == [2, 1]
    assert L.matrix_rank(tg.tensor(a), rtol=limits / 4).tolist() == [2, 1]
    near(L.pinv(tg.tensor(a), atol=limits), np.stack([np.diag([0.25, 1, 0]), np.diag([0.25, 0, 0])]), np.float64)
    near(L.pinv(tg.tensor(a), rtol=limits / 4), np.stack([np.diag([0.25, 1, 0]), np.diag([0.25, 0, 0])]), np.float64)
    with pytest.raises(ShapeError, match=r"^pinv: atol"):
        L.pinv(tg.tensor(a), atol=tg.ones(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 2), (2, 3), (7, 13), (13, 7), (33, 33), (65, 40), (40, 65)])
def test_rectangular_values(m, n, dtype):
    for batch in BATCHES:
        a = draw(*batch, m, n).astype(dtype)
        exact, x = a.astype(np.float64), tg.tensor(a)
        q, r = L.qr(x)
        wanted = np.linalg.qr(exact)
        near(q, wanted[0], dtype, 3000)
        near(r, wanted[1], dtype, 3000)
        q, r = L.qr(x, "complete")
        assert q.shape == (*batch, m, m)
        near(q @ r, a, dtype)
        assert L.qr(x, mode="r").Q.shape == (0,)
        for full in (False, True):
            u, s, vh = L.svd(x, full_matrices=full)
            k = min(m, n)
            near(s, np.linalg.svd(exact, compute_uv=False), dtype)
            near((u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], a, dtype)
            assert (u.shape, vh.shape) == ((*batch, m, m if full else k), (*batch, n if full else k, n))
        near(L.svdvals(x), np.linalg.svd(exact, compute_uv=False), dtype)
        near(L.pinv(x), np.linalg.pinv(exact), dtype, 10000)
        near(L.matrix_rank(x), np.asarray(np.linalg.matrix_rank(exact)), dtype)
        b = draw(*batch, m, 2)
        near(L.lstsq(x, tg.tensor(b.astype(dtype))).solution, np.linalg.pinv(exact) @ b, dtype, 10000)


def test_vectors_and_batches_broadcast_as_in_torch():
    a = regular(2, 3, 5, 5)
    x = tg.tensor(a)
    for b, wanted in (
        (draw(5), np.linalg.solve(a, np.broadcast_to(draw(5)[:, None], (2, 3, 5, 1)))[..., 0]),
        (draw(2, 3, 5), np.linalg.solve(a, draw(2, 3, 5)[..., None])[..., 0]),
        (draw(5, 4), np.linalg.solve(a, np.broadcast_to(draw(5, 4), (2, 3, 5, 4)))),
        (draw(3, 5, 4), np.linalg.solve(a, np.broadcast_to(draw(3, 5, 4), (2, 3, 5, 4)))),
    ):
        near(L.solve(x, tg.tensor(b)), wanted, np.float64)
    near(L.solve(x[0, 0], tg.tensor(draw(7, 5, 2))), np.linalg.solve(a[0, 0], draw(7, 5, 2)), np.float64)


def test_lstsq_is_numpys():
    a, b = draw(9, 4), draw(9)
    for rank in (4, 2):
        if rank == 2:
            a = a[:, :2] @ draw(2, 4)
        found, (x, residuals, r, s) = L.lstsq(tg.tensor(a), tg.tensor(b)), np.linalg.lstsq(a, b)
        near(found.solution, x, np.float64)
        near(found.singular_values, s, np.float64)
        assert found.rank.item() == r == rank
        near(found.residuals, ((a @ x - b) ** 2).sum(keepdims=True), np.float64)
        if rank == 4:
            near(found.residuals, residuals, np.float64)
    assert L.lstsq(tg.tensor(draw(2, 4)), tg.tensor(draw(2, 3))).residuals.shape == (0,)


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
def test_lstsq_gives_what_its_driver_gives(driver):
    """The shapes are torch's, for every driver: what LAPACK's does not compute is empty."""
    for batch in ((), (2,), (3, 2)):
        for m, n in ((4, 3), (3, 3), (2, 3), (3, 0), (0, 3)):
            a, b = draw(*batch, m, n), draw(*batch, m, 2)
            x, residuals, rank, s = L.lstsq(tg.tensor(a), tg.tensor(b), driver=driver)
            assert x.shape == (*batch, n, 2)
            assert residuals.shape == ((*batch, 2) if m > n and driver != "gelsy" else (0,))
            assert rank.shape == ((0,) if driver == "gels" else batch)
            assert s.shape == ((0,) if driver in ("gels", "gelsy") else (*batch, min(m, n)))
            assert rank.dtype == tg.int64
            near(x, np.linalg.pinv(a) @ b, np.float64, 10000)
    a, b = (tg.tensor(draw(4, 3)).requires_grad_() for _ in range(2))
    x, residuals, rank, s = L.lstsq(a, b, driver=driver)
    assert x.requires_grad
    assert not rank.requires_grad
    assert not s.requires_grad


def test_the_gradient_of_a_hermitian_pinv_is_of_the_whole_matrix():
    """As in torch: that of the general pseudo-inverse, though only a triangle is read."""
    a = draw(4, 4)
    a = a + a.T
    pairs = []
    for hermitian in (False, True):
        x = tg.tensor(a).requires_grad_()
        (L.pinv(x, hermitian=hermitian) * tg.tensor(draw(4, 4, seed=3))).sum().backward()
        pairs.append(x.grad.numpy())
    np.testing.assert_allclose(*pairs, rtol=1e-8)
    near(L.pinv(tg.tensor(np.tril(a)), hermitian=True), np.linalg.pinv(a), np.float64, 10000)


def test_vander_of_a_scalar(device):
    """One row, as in torch: values, dtypes, derivatives, in a trace as outside."""
    for run in (lambda f: f, tg.trace):
        found = run(lambda x: L.vander(x, N=3))(tg.tensor(2.0))
        assert (found.shape, found.dtype, found.numpy().tolist()) == ((1, 3), tg.float32, [[1, 2, 4]])
        assert run(lambda x: L.vander(x, N=2))(tg.tensor(3)).numpy().tolist() == [[1, 3]]
        assert run(lambda x: L.vander(x, N=2))(tg.tensor(3)).dtype == tg.int64
        assert run(tg.grad(lambda x: (L.vander(x, N=4) * tg.tensor([1.0, 2.0, 3.0, 4.0])).sum()))(tg.tensor(2.0)).item() == 2 + 12 + 48
        assert run(tg.vmap(lambda x: L.vander(x, N=2)))(tg.tensor([2.0, 5.0])).numpy().tolist() == [[[1, 2]], [[1, 5]]]
    with pytest.raises(ArgumentError, match=r"vander: .*N must be given"):
        L.vander(tg.tensor(2.0))
    with pytest.raises(ShapeError, match=r"vander: takes a vector, got \(\)"):
        tg.vander(tg.tensor(2.0))


def test_norms_and_condition_numbers():
    for shape in ((7, 13), (3, 5, 5)):
        a = draw(*shape)
        x = tg.tensor(a)
        for ord in ("fro", "nuc", np.inf, -np.inf, 1, -1, 2, -2):
            near(L.matrix_norm(x, ord), np.linalg.matrix_norm(a, ord=ord), np.float64)
            near(L.matrix_norm(x, ord, keepdim=True), np.linalg.matrix_norm(a, ord=ord, keepdims=True), np.float64)
            near(L.norm(x, ord, dim=(-1, 0)), np.linalg.norm(a, ord, axis=(-1, 0)), np.float64)
        for ord in (0, 1, 2, 3, 0.5, -1, np.inf, -np.inf):
            for dim in (None, 0, (0, 1)):
                near(L.vector_norm(x, ord, dim), np.linalg.vector_norm(a, ord=ord, axis=dim), np.float64)
        near(L.norm(x), np.linalg.norm(a), np.float64)
        near(L.norm(x, dim=1, keepdim=True), np.linalg.norm(a, axis=1, keepdims=True), np.float64)
        near(L.cond(x), np.linalg.cond(a), np.float64, 10000)
        near(L.cond(x, -2), np.linalg.cond(a, -2), np.float64)
    a = regular(2, 4, 4)
    for p in ("fro", "nuc", 1, -1, np.inf, -np.inf):
        near(L.cond(tg.tensor(a), p), np.linalg.cond(a, p), np.float64)
    assert L.vector_norm(tg.tensor([3.0, 4.0]), dtype=tg.float64).dtype == tg.float64
    assert L.cond(tg.zeros(2, 2) + tg.tensor([[1.0, 0.0], [0.0, 0.0]])).item() == np.inf


def test_products():
    a, b, c, v, w = draw(3, 40), draw(40, 2), draw(2, 30), draw(30), draw(3)
    near(L.multi_dot(list(map(tg.tensor, (a, b, c)))), a @ b @ c, np.float64)
    near(L.multi_dot(list(map(tg.tensor, (w, a, b, c, v)))), np.linalg.multi_dot([w, a, b, c, v]), np.float64)
    x, y = draw(4, 3, 5), draw(1, 3, 5, seed=1)
    near(L.cross(tg.tensor(x), tg.tensor(y), dim=1), np.cross(x, y, axis=1), np.float64)
    near(tg.cross(tg.tensor(x), tg.tensor(y)), np.cross(x, y, axis=1), np.float64)
    near(L.vecdot(tg.tensor(x), tg.tensor(y), dim=1), (x * y).sum(1), np.float64)
    near(L.vander(tg.tensor(x), N=4), x[..., None] ** np.arange(4), np.float64)
    assert L.vander(tg.tensor([2, 3])).numpy().tolist() == [[1, 2], [1, 3]]
    a = draw(4, 6, 8, 3)
    near(L.tensorinv(tg.tensor(a)), np.linalg.tensorinv(a), np.float64, 10000)
    a, b = draw(6, 4, 2, 3, 4), draw(6, 4)
    near(L.tensorsolve(tg.tensor(a), tg.tensor(b)), np.linalg.tensorsolve(a, b), np.float64, 10000)
    a = draw(2, 6, 4, 3, 4)
    near(L.tensorsolve(tg.tensor(a), tg.tensor(draw(6, 4)), dims=(0,)), np.linalg.tensorsolve(a, draw(6, 4), axes=(0,)), np.float64, 10000)


def test_names_outside_linalg():
    a = positive(3, 3)
    x = tg.tensor(a)
    for found, wanted in ((tg.inverse(x), np.linalg.inv(a)), (x.inverse(), np.linalg.inv(a)), (x.det(), np.linalg.det(a)),
                          (x.logdet(), np.log(np.linalg.det(a))), (x.slogdet().logabsdet, np.log(np.linalg.det(a))),
                          (x.cholesky(True), t(np.linalg.cholesky(a))), (x.pinverse(), np.linalg.pinv(a)),
                          (tg.cholesky_inverse(tg.cholesky(x)), np.linalg.inv(a)), (x.matrix_power(2), a @ a)):
        near(found, wanted, np.float64, 1000)
    assert np.isnan(tg.logdet(tg.tensor([[-1.0]])).item())
    assert tg.logdet(tg.zeros(2, 2)).item() == -np.inf


def test_empty_matrices_and_batches():
    assert L.inv(tg.zeros(0, 0)).shape == (0, 0)
    assert L.det(tg.zeros(3, 0, 0)).numpy().tolist() == [1, 1, 1]
    assert L.solve(tg.zeros(0, 2, 2), tg.zeros(0, 2, 1)).numpy().shape == (0, 2, 1)
    assert L.pinv(tg.zeros(0, 3)).numpy().shape == (3, 0)
    assert L.matrix_rank(tg.zeros(2, 0, 3)).numpy().tolist() == [0, 0]
    assert L.matrix_exp(tg.zeros(2, 0, 0)).numpy().shape == (2, 0, 0)
    for shape in ((0, 0), (3, 0), (0, 5), (2, 0, 3), (2, 3, 0), (0, 3, 2), (0, 0, 0)):
        for dtype in (tg.float32, tg.complex64):
            for full in (False, True):
                wanted = np.linalg.svd(np.zeros(shape, dtype.name), full_matrices=full)
                for y, w in zip(L.svd(tg.zeros(shape, dtype=dtype), full_matrices=full), wanted, strict=True):
                    assert (y.numpy().shape, y.dtype) == (w.shape, w.dtype)
            if shape[-1] == shape[-2]:
                assert [tuple(y.numpy().shape) for y in L.eigh(tg.zeros(shape, dtype=dtype))] == [shape[:-1], shape]


def test_matrix_exp_of_large_and_small_norms():
    for scale in (1e-9, 0.1, 5.0, 60.0):
        a = draw(2, 7, 7) * scale
        near(L.matrix_exp(tg.tensor(a)), expm(a), np.float64, 1000 * max(1, scale))


# ------------------------------------------------------------------------------------------------------------- derivatives

A, B, TALL, WIDE = regular(2, 3, 3), draw(2, 3, 2), draw(2, 5, 3), draw(2, 3, 5)


def of_spd(f):
    return lambda x: f(x @ x.mT)


def of_symmetric(f):
    return lambda x: f(x + x.mT)


GRADIENTS = {
    "solve": (L.solve, A, B),
    "solve, broadcast": (L.solve, A[0], B),
    "solve, vector from the left": (lambda a, b: L.solve(a, b.mT, left=False), A, B),
    "inv": (L.inv, A),
    "solve_triangular": (lambda a, b: L.solve_triangular(a, b, upper=True), A, B),
    "solve_triangular, lower, unit, left=False": (
        lambda a, b: L.solve_triangular(a, b.mT, upper=False, unitriangular=True, left=False), A, B),
    "pinv": (L.pinv, TALL),
    "pinv, wide": (L.pinv, WIDE),
    "pinv, of rank 2": (lambda a, b: L.pinv(a @ b, rtol=1e-8), TALL[..., :2], WIDE[..., :2, :]),
    "lstsq": (lambda a, b: L.lstsq(a, b)[:2], TALL, draw(2, 5, 2)),
    "lstsq, wide": (lambda a, b: L.lstsq(a, b).solution, WIDE, B),
    "det": (L.det, A),
    "slogdet": (lambda a: L.slogdet(-a).logabsdet, A),
    "logdet": (tg.logdet, A),
    "cholesky": (of_spd(L.cholesky), A),
    "cholesky, upper": (of_spd(lambda x: L.cholesky(x, upper=True)), A),
    "cholesky_solve": (lambda a, b: tg.cholesky_solve(b, L.cholesky(a @ a.mT)), A, B),
    "cholesky_inverse": (lambda a: tg.cholesky_inverse(a.triu(), True), A),
    "eigh": (of_symmetric(lambda x: tuple(L.eigh(x))), A),
    "eigh, U": (of_symmetric(lambda x: tuple(L.eigh(x, "U"))), A),
    "qr": (lambda a: tuple(L.qr(a)), TALL),
    "qr, wide": (lambda a: tuple(L.qr(a)), WIDE),
    "qr, complete and square": (lambda a: tuple(L.qr(a, "complete")), A),
    "svd": (lambda a: tuple(L.svd(a, full_matrices=False)), TALL),
    "svd, wide": (lambda a: tuple(L.svd(a, full_matrices=False)), WIDE),
    "svd, square": (lambda a: tuple(L.svd(a)), A),
    "svd, the values of full matrices": (lambda a: L.svd(a).S, TALL),
    "lu": (lambda a: tuple(L.lu(a)[1:]), A),
    "lu, rows exchanged": (lambda a: tuple(L.lu(a.flip(1))[1:]), A),
    "lu, tall": (lambda a: tuple(L.lu(a)[1:]), TALL),
    "lu, wide": (lambda a: tuple(L.lu(a.flip(1))[1:]), WIDE),
    "lu_unpack": (lambda a: tuple(tg.lu_unpack(*tg.lu(a))[1:]), TALL),
    "solve_ex": (lambda a, b: L.solve_ex(a, b).result, A, B),
    "inv_ex": (lambda a: L.inv_ex(a).inverse, A),
    "cholesky_ex": (of_spd(lambda x: L.cholesky_ex(x).L), A),
    "householder_product": (L.householder_product, TALL, draw(2, 3) * 0.2 + 0.5),
    "ormqr": (tg.ormqr, TALL, draw(2, 3) * 0.2 + 0.5, draw(2, 5, 2)),
    "polar": (lambda a: tuple(L.polar(a)), TALL),
    "polar, square": (lambda a: tuple(L.polar(a)), A),
    "matrix_sqrth": (of_spd(L.matrix_sqrth), A),
    "pinv, hermitian": (of_symmetric(lambda x: L.pinv(x, hermitian=True)), A),
    "triangular_solve": (lambda a, b: tg.triangular_solve(b, a).solution, A, B),
    "triangular_solve, transposed": (lambda a, b: tg.triangular_solve(b, a, False, True).solution, A, B),
    "lu_solve": (lambda a, b: L.lu_solve(*L.lu_factor(a.flip(1)), b), A, B),
    "lu_solve, adjoint": (lambda a, b: L.lu_solve(*L.lu_factor(a.flip(1)), b, adjoint=True), A, B),
    "matrix_exp": (L.matrix_exp, A),
    "matrix_power": (lambda a: L.matrix_power(a, -3), A),
    "nuclear norm": (lambda a: L.matrix_norm(a, "nuc"), WIDE),
    "spectral norm": (lambda a: L.matrix_norm(a, 2), TALL),
    "cond": (L.cond, TALL),
    "cond, 1": (lambda a: L.cond(a, 1), A),
    "cross": (lambda a, b: L.cross(a, b, dim=1), A, A + 1),
    "multi_dot": (lambda a, b, c: L.multi_dot([a, b, c]), A[0], B[0], draw(2, 4)),
    "vander": (lambda a: L.vander(a, N=4), A),
    "tensorinv": (lambda a: L.tensorinv(a.reshape(6, 2, 3)[:6], ind=1), regular(6, 6)),
}


@one_of(4, "name", GRADIENTS)
def test_first_and_second_derivatives(name):
    fn, *arrays = GRADIENTS[name]
    gradcheck(fn, [leaf(a) for a in arrays])
    gradgradcheck(fn, [leaf(a) for a in arrays])


@pytest.mark.parametrize("name", GRADIENTS)
def test_forward_mode_vmap_and_traces_agree(name):
    fn, *arrays = GRADIENTS[name]

    def flat(*xs):
        y = fn(*xs)
        return tg.cat([part.flatten() for part in (y if isinstance(y, tuple) else (y,))])

    xs = [tg.tensor(a) for a in arrays]
    tangents = [tg.tensor(draw(*a.shape, seed=5)) for a in arrays]
    value, tangent = tg.jvp(flat, tuple(xs), tuple(tangents))
    pulled = tg.grad(lambda *v: (flat(*v) * weights).sum(), argnums=tuple(range(len(xs))))
    weights = tg.tensor(draw(*value.shape, seed=6))
    gradients = pulled(*xs)
    # <weights, J tangents> = <J^T weights, tangents>
    near((weights * tangent).sum(), sum((g * s).sum() for g, s in zip(gradients, tangents, strict=True)).numpy(), np.float64, 10000)
    for found, wanted in zip(tg.trace(pulled)(*xs), gradients, strict=True):
        near(found, wanted.numpy(), np.float64, 10000)
    near(tg.trace(flat)(*xs), value.numpy(), np.float64, 1000)
    moved = [tg.stack([x, x * 1.01]) for x in xs]
    near(tg.vmap(flat)(*moved), np.stack([flat(*[m[k] for m in moved]).numpy() for k in range(2)]), np.float64, 10000)


def test_per_example_gradients():
    a = tg.tensor(regular(4, 3, 3))
    found = tg.vmap(tg.grad(tg.logdet))(a)
    near(found, t(np.linalg.inv(a.numpy())), np.float64)


def test_vmap_factorises_the_batch_in_one_call(monkeypatch):
    calls = []
    inv = np.linalg.inv
    monkeypatch.setattr(np.linalg, "inv", lambda x: (calls.append(x.shape), inv(x))[1])
    tg.vmap(L.inv)(tg.tensor(regular(6, 3, 3))).numpy()
    assert calls == [(6, 3, 3)]


def test_all_results_of_a_call_come_from_one_factorisation(monkeypatch):
    calls = []
    svd = np.linalg.svd
    monkeypatch.setattr(np.linalg, "svd", lambda x, **k: (calls.append(x.shape), svd(x, **k))[1])
    a = tg.tensor(draw(4, 3))
    tg.trace(lambda x: tuple(L.svd(x, full_matrices=False)))(a)[1].numpy()
    assert calls == [(4, 3)]


def test_another_value_of_the_same_array_is_factorised_again():
    @tg.trace
    def values(x):
        return L.eigh(x).eigenvalues

    @tg.trace
    def vectors(x):
        return L.eigh(x).eigenvectors

    a = np.diag([1.0, 2.0])
    values(tg.tensor(a)).numpy()
    x = tg.tensor(a)
    x[0, 0] = 5.0
    assert np.abs(vectors(x).numpy()).tolist() == [[0, 1], [1, 0]]


def test_equal_eigenvalues_and_singular_values():
    x = leaf(2 * np.eye(3))
    L.eigvalsh(x).sum().backward()
    assert x.grad.numpy().tolist() == np.eye(3).tolist()
    x = leaf(2 * np.eye(3))
    L.svdvals(x).sum().backward()
    near(x.grad, np.eye(3), np.float64)
    x = leaf(2 * np.eye(3))
    (L.eigh(x).eigenvectors * tg.tensor(draw(3, 3))).sum().backward()
    assert not np.isfinite(x.grad.numpy()).all()           # vectors of equal eigenvalues are arbitrary


def test_the_gradient_of_det_is_right_for_singular_matrices():
    gradcheck(L.det, [leaf([[1.0, 2.0], [2.0, 4.0]])])
    gradcheck(L.det, [leaf(draw(4, 3) @ draw(3, 4))])
    x = leaf(np.diag([1.0, 0.0, 0.0]))
    L.det(x).backward()
    assert np.abs(x.grad.numpy()).max() == 0               # of rank n - 2 and less all cofactors are 0


def test_the_second_derivative_of_det_is_right_for_singular_matrices():
    """As differences of the gradient have it: of rank n - 1, n - 2, and of all zeros, where torch has NaN."""
    def weighted(x):
        return (tg.grad(lambda x: L.det(x).sum())(x) * tg.tensor(draw(*x.shape))).sum()

    for a in ([[1.0, 2.0], [2.0, 4.0]], draw(4, 3) @ draw(3, 4), np.diag([1.0, 0.0, 0.0]), np.zeros((2, 2)), np.zeros((2, 3, 3))):
        gradcheck(weighted, [leaf(a)])
    np.testing.assert_array_equal(tg.func.hessian(L.det)(tg.zeros(2, 2)).reshape(4, 4).numpy(), np.diag([1, -1, -1, 1])[:, ::-1])


def test_the_gradient_of_symmetric_functions_is_symmetric():
    for fn in (L.cholesky, lambda x: L.eigh(x).eigenvectors[:, 0] ** 2, L.eigvalsh):
        x = leaf(positive(5, 5))
        (g,) = tg.autograd.grad((fn(x) ** 3).sum(), [x])
        near(g, t(g.numpy()), np.float64)


# ----------------------------------------------------------------------------------------------------------------- refusals


def test_singular_matrices_are_named():
    a = np.tile(np.eye(3), (2, 3, 1, 1))
    a[1, 2, 1] = 0
    x = tg.tensor(a)
    for fn, name in ((L.inv, "inv"), (lambda x: L.solve(x, tg.ones(3, 1, dtype=tg.float64)), "solve"),
                     (lambda x: L.solve_triangular(x, x, upper=True), "solve_triangular")):
        for call in (fn, tg.trace(fn)):
            with pytest.raises(LinAlgError, match=rf"^{name}: matrix \(1, 2\) of the batch \(2, 3\) \(3x3\) is singular.*test_linalg.py:"):
                call(x).numpy()
    a[1, 2, 1, 1] = -1
    with pytest.raises(np.linalg.LinAlgError, match=r"^cholesky: matrix \(1, 2\) of the batch \(2, 3\) \(3x3\) is not positive definite"):
        L.cholesky(tg.tensor(a)).numpy()
    with pytest.raises(tg.linalg.LinAlgError, match=r"^inv: the matrix \(2x2\) is singular"):
        L.inv(tg.zeros(2, 2)).numpy()
    with pytest.raises(LinAlgError, match=r"^svdvals: matrix 1 of the batch \(2,\) .* holds NaN"):
        L.svdvals(tg.tensor([[[1.0]], [[np.nan]]])).numpy()
    assert issubclass(LinAlgError, tg.TracegradError)


def test_an_error_leaves_other_work_as_it_was():
    x = tg.tensor([[1.0, 2.0], [3.0, 4.0]])
    y, bad = x * 2, L.inv(tg.zeros(2, 2))
    z = y + 1
    with pytest.raises(LinAlgError):
        bad.numpy()
    assert z.numpy().tolist() == [[3, 5], [7, 9]]
    with pytest.raises(LinAlgError):
        bad.numpy()
    step = tg.trace(L.inv)
    with pytest.raises(LinAlgError):
        step(tg.zeros(2, 2)).numpy()
    assert step(tg.eye(2)).numpy().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("name", ["inv", "det", "slogdet", "cholesky", "eigh", "eigvalsh", "matrix_exp", "inv_ex", "cholesky_ex",
                                  "matrix_sqrth", "matrix_power"])
def test_matrices_must_be_square(name):
    args = [2] if name == "matrix_power" else []
    for shape in ((2, 3), (4, 3, 2), (3,)):
        with pytest.raises(ShapeError, match=rf"^{name}: takes .*matrices"):
            getattr(L, name)(tg.zeros(*shape), *args)


@pytest.mark.parametrize("name", ["inv", "det", "cholesky", "eigh", "qr", "svd", "svdvals", "pinv", "matrix_rank", "lu", "matrix_exp"])
def test_dtypes_that_lapack_does_not_have(name):
    for dtype in (tg.int64, tg.float16, tg.bool_):
        with pytest.raises(DTypeError, match=rf"^{name}: takes float32, float64 and complex tensors, got {np.dtype(dtype)}"):
            getattr(L, name)(tg.ones(2, 2, dtype=dtype))
    with pytest.raises(DTypeError, match=rf"^{name}: .*list"):
        getattr(L, name)([[1.0]])


def test_other_refusals():
    a, x = tg.eye(3), tg.ones(3, 2)
    for error, match, call in (
        (DTypeError, r"^solve: the tensors must have one dtype, got float32 and float64", lambda: L.solve(a, x.double())),
        (ShapeError, r"^solve: A \(3, 3\) and B \(2, 2\) do not fit: B must have 3 rows, has 2", lambda: L.solve(a, tg.ones(2, 2))),
        (ShapeError, r"^solve: the batch dimensions of .*\(2,\) and \(4,\)", lambda: L.solve(tg.ones(2, 3, 3), tg.ones(4, 3, 1))),
        (ShapeError, r"^solve: left=False takes matrices", lambda: L.solve(a, tg.ones(3), left=False)),
        (ShapeError, r"^solve_triangular: .* B must have 3 columns", lambda: L.solve_triangular(a, x, upper=True, left=False)),
        (ShapeError, r"^lstsq: A \(3, 3\) and B \(2,\)", lambda: L.lstsq(a, tg.ones(2))),
        (ArgumentError, r"^lstsq: driver", lambda: L.lstsq(a, x, driver="fast")),
        (ArgumentError, r"^qr: mode must be", lambda: L.qr(a, mode="full")),
        (ArgumentError, r"^eigh: UPLO must be", lambda: L.eigh(a, "X")),
        (ArgumentError, r"^pinv: rtol must be a number", lambda: L.pinv(a, rtol="x")),
        (ArgumentError, r"^matrix_power: n must be an integer", lambda: L.matrix_power(a, 0.5)),
        (ArgumentError, r"^matrix_norm: ord must be", lambda: L.matrix_norm(a, 3)),
        (ArgumentError, r"^vector_norm: ord must be", lambda: L.vector_norm(a, "fro")),
        (ArgumentError, r"^multi_dot: takes at least 2", lambda: L.multi_dot([a])),
        (ShapeError, r"^multi_dot: tensors 1 and 2", lambda: L.multi_dot([a, x, a])),
        (ShapeError, r"^cross: dimension -1", lambda: L.cross(x, x)),
        (ShapeError, r"^tensorinv: ", lambda: L.tensorinv(tg.ones(2, 3, 4))),
        (ShapeError, r"^tensorsolve: ", lambda: L.tensorsolve(tg.ones(2, 3, 4), tg.ones(2, 3))),
        (ShapeError, r"^lu_solve: pivots", lambda: L.lu_solve(a, tg.ones(3), x)),
        (ArgumentError, r"^lu: pivot=False", lambda: L.lu(a, pivot=False)),
        (DTypeError, r"^eig: .*int64", lambda: L.eig(a.long())),
        (DTypeError, r"^eigvals: .*int64", lambda: L.eigvals(a.long())),
    ):
        with pytest.raises(error, match=match):
            call()


def test_what_is_not_unique_has_no_derivative():
    x = leaf(TALL[0])
    with pytest.raises(AutogradError, match=r"^qr: .*no derivative"):
        L.qr(x, "complete").Q.sum().backward()
    y = tg.randn(5, 3, dtype=tg.float64, requires_grad=True)
    L.svd(y).U.sum().backward()                     # what turns the last two columns in their plane is nobody's
    assert y.grad.isnan().all()


@pytest.mark.parametrize("dtype", [tg.float64, tg.complex128])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 3), (3, 4)])
def test_square_singular_vectors_have_the_derivative_of_the_space_that_they_span(shape, dtype):
    x = tg.randn(*shape, dtype=dtype, requires_grad=True)
    k = min(shape[-2:])

    def of(a):
        u, s, vh = L.svd(a)
        beyond = u[..., k:] if a.shape[-2] > k else vh[..., k:, :].mH
        return u[..., :k] @ (s[..., None] * vh[..., :k, :]), beyond @ beyond.mH, u[..., :k].abs(), vh[..., :k, :].abs()

    assert tg.testing.gradcheck(of, (x,))
    if dtype == tg.float64 and max(shape[-2:]) == k + 1:          # one vector more: it is unique but for its sign
        assert tg.testing.gradcheck(lambda a: (L.svd(a)[0], L.svd(a)[2]), (x,))


# ------------------------------------------------------------------------------------------------------------------- device


def test_a_training_step_on_the_device(device):
    """A Gaussian's negative log likelihood: LAPACK's steps between kernels, gradients; as numpy has it."""
    x, low = draw(40, 5), np.tril(regular(5, 5))
    c = tg.tensor(low @ low.T, requires_grad=True)

    def loss(c, x):
        scale = L.cholesky(c)
        z = L.solve_triangular(scale, x.mT, upper=False)
        return (z * z).sum() * 0.5 + x.shape[0] * scale.diagonal().log().sum()

    step = tg.trace(tg.value_and_grad(loss))
    inverse = np.linalg.inv(low @ low.T)
    value = 0.5 * np.einsum("ni,ij,nj", x, inverse, x) + 20 * np.linalg.slogdet(low @ low.T)[1]
    gradient = 20 * inverse - 0.5 * inverse @ x.T @ x @ inverse
    for _ in range(2):
        found, g = step(c, tg.tensor(x))
        near(found, value, np.float64, 1000)
        near(g, gradient, np.float64, 1000)
    loss(c, tg.tensor(x)).backward()
    near(c.grad, gradient, np.float64, 1000)


def test_several_results_and_errors_on_the_device(device):
    a = draw(2, 5, 3)

    @tg.trace
    def f(x):
        u, s, vh = L.svd(x, full_matrices=False)
        q, r = L.qr(x)
        return (u * s.unsqueeze(-2)) @ vh, q @ r, L.pinv(x), L.inv(x.mT @ x) + 1, L.eigh(x.mT @ x).eigenvalues, s

    found = f(tg.tensor(a))
    gram = t(a) @ a
    for y, wanted in zip(found, (a, a, np.linalg.pinv(a), np.linalg.inv(gram) + 1, np.linalg.eigvalsh(gram),
                                 np.linalg.svd(a, compute_uv=False)), strict=True):
        near(y, wanted, np.float64, 1000)
    for line in ("svd = tg.linalg.svd(x, full_matrices=False)", "= svd[0]", "= svd[2]"):
        assert f.source().count(line) == 1, f.source()
    with pytest.raises(LinAlgError, match=r"^inv: matrix 0 of the batch \(2,\) \(3x3\) is singular"):
        [y.numpy() for y in f(tg.zeros(2, 5, 3, dtype=tg.float64))]
    near(f(tg.tensor(a))[0], a, np.float64, 1000)


def test_a_factorisation_whose_only_use_is_a_reshape(device) -> None:
    """The call's slot is the reshape's: both hold the same numbers, in another shape."""
    x = tg.eye(3).expand(4, 3, 3) * 2
    np.testing.assert_array_equal(tg.trace(lambda a: tg.linalg.det(a).reshape(4, 1))(x).numpy(), np.full((4, 1), 8.0))


def test_threads_share_large_factorizations_only(device, monkeypatch):
    """On a busy machine OpenBLAS's threads wait for each other a hundred times as long as one computes."""
    if blas._found is None or device.kind == "numpy":
        pytest.skip("needs numpy with OpenBLAS and an OpenCL device")
    threads, put = blas._found
    seen, own, before = [], np.linalg.eigh, threads()

    def eigh(a):
        seen.append(threads())
        return own(a)

    monkeypatch.setattr(np.linalg, "eigh", eigh)
    monkeypatch.setattr(blas, "LARGE", 100**3)
    put(2)
    try:
        for n in (65, 100, 101):
            tg.trace(tg.linalg.eigvalsh)(tg.eye(n, dtype=tg.float64)).numpy()
        assert (seen, threads()) == ([1, 1, 2], 2)
    finally:
        put(before)


@pytest.mark.parametrize("equation", ["kij,nkj->nki", "kij,knj->kni", "kij,nkj->kni", "kij,knj->nki", "nkj,kij->nki", "nkj,kij->kni"])
def test_an_einsums_last_dimension_is_the_columns_of_its_product(equation):
    """Whichever operand it comes from: so the product's rows are the result's, and are not transposed element by element."""
    sizes = {"n": 9, "k": 4, "i": 5, "j": 3}
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal([sizes[c] for c in part]) for part in equation.split("->")[0].split(","))
    product = tg.trace(lambda x, y: tg.einsum(equation, x, y))
    np.testing.assert_allclose(product(tg.tensor(left), tg.tensor(right)).numpy(), np.einsum(equation, left, right), rtol=1e-12, atol=1e-12)
    after = [node for node in nx.descendants(product.graph, next(n for n in product.graph if n.name == "matmul")) if node.name == "permute"]
    assert all(node.attrs["dims"][-1] == len(node.shape) - 1 for node in after)
