"""sparse_jacobian, sparse_hessian, hessian_diagonal: values are those of the dense ones, patterns have each entry that is not zero, and few

others; how many products they take.
"""

from __future__ import annotations

import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import tracegrad as tg
from tracegrad import func
from tracegrad.autodiff import coloring, sparsity
from tracegrad.autograd import sparse
from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.nn import functional as F

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("on_numpy")


def random(*shape):
    return tg.tensor(RNG.normal(size=shape), device="numpy")


X, M, BATCH, IMAGE = random(9), random(4, 5), random(3, 4, 4), random(1, 2, 6, 5)
STENCIL = tg.tensor(RNG.normal(size=(2, 2, 3, 3)) * [[0, 1, 0], [1, 1, 1], [0, 1, 0]], device="numpy")
BAND = tg.tensor(np.triu(np.tril(RNG.normal(size=(9, 9)), 1), -1), device="numpy")
INDEX = tg.tensor([3, 1, 1, 8], device="numpy")
ROWS = tg.tensor([2, 0, 2], device="numpy")


class Straight(tg.Function):
    """Its backward is not the derivative of its forward: the pattern is that of the backward."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, ct):
        return ct.roll(1, 0)


def stepped(m):
    """A scan whose stencil grows by one at each iteration."""
    return tg.scan(lambda c, row: ((c + c.roll(1, 0)).sin() + row, (c * row).exp()), m[0], m[1:])


# What has few entries, and how many those are: no more are stored than differ from zero for some argument.
EXACT = {
    "elementwise": (lambda x: x.sin() * x.exp(), X, 9),
    "neighbours": (lambda x: x[1:] * x[:-1], X, 16),
    "roll": (lambda x: x.roll(1) - 2 * x * x + x.roll(-1), X, 27),
    "flip and pad": (lambda x: F.pad(x.flip(0), (1, 2)) * 2, X, 9),
    "cat": (lambda x: tg.cat([x[:2], x[5:], x[:1]]).cos(), X, 7),
    "gather": (lambda x: x[INDEX].sin(), X, 4),
    "rows": (lambda m: m[ROWS] * 2, M, 15),
    "index_add": (lambda m: m.index_add(0, ROWS, m[:3].exp()), M, 30),
    "scatter": (lambda x: (x * 1).index_copy(0, INDEX[1:2], x[:1]), X, 9),
    "band matrix": (lambda x: BAND @ x, X, 25),
    "product": (lambda m: m @ BAND[:5, :5], M, 52),
    "sum": (lambda m: m.sum(0), M, 20),
    "batch": (lambda m: m.softmax(1), M, 100),
    "sorted rows": (lambda m: m.sort(1)[0], M, 100),
    "largest of rows": (lambda m: m.max(1)[0] + m.amin(1), M, 20),
    "topk of rows": (lambda m: m.topk(2, 1)[0], M, 40),
    "running sums": (lambda x: x.cumsum(0), X, 45),
    "running products": (lambda m: m.cumprod(1), M, 60),
    "mask of constants": (lambda m: (m * tg.ones(4, 5, dtype=tg.float64).tril()).sum(1), M, 10),
    "where of constants": (lambda x: tg.where(tg.arange(9) < 4, x, x.sum()), X, 49),
    "stencil": (lambda i: F.conv2d(i, STENCIL, padding=1), IMAGE, 512),
    "transposed stencil": (lambda i: F.conv_transpose2d(i, STENCIL, padding=1), IMAGE, 512),
    "grouped stencil": (lambda i: F.conv2d(i, STENCIL[:, :1], stride=2, groups=2), IMAGE, 40),
    "weights": (lambda w: F.conv2d(IMAGE, w), STENCIL, 432),
    "max_pool": (lambda i: F.max_pool2d(i, 2), IMAGE, 48),
    "avg_pool": (lambda i: F.avg_pool2d(i, 3, 1), IMAGE, 216),
    "inverses": (tg.linalg.inv, BATCH, 768),
    "fft of rows": (lambda m: tg.fft.rfft(m).abs(), M, 60),
    "complex numbers": (lambda m: tg.view_as_real(tg.complex(m[:, :2], m[:, 2:4]) * 1j), M, 32),
    "matrices": (lambda a: a @ a.transpose(1, 2), BATCH, 336),
    "scan": (lambda m: stepped(m)[1], M, 65),
    "scan, last": (lambda m: stepped(m)[0], M, 50),
    "custom function": (lambda x: Straight.apply(x) * 2, X, 9),
    "detach": (lambda x: x * x.sum().detach(), X, 9),
    "independent": (lambda x: x.detach() * 2 + 0 * x, X, 0),
    "clamp": (lambda x: x.clamp(-0.5, 0.5).relu(), X, 9),
    "vmap": (tg.vmap(lambda r: r[1:] * r[0]), M, 32),
}
# What is taken to be denser than it is.
WIDER = {
    "where": (lambda x: tg.where(x > x.mean(), x, x.flip(0)), X),
    "sort": (lambda x: x.sort()[0][:3], X),
    "cholesky": (lambda a: tg.linalg.cholesky(a @ a.transpose(1, 2) + tg.eye(4)), BATCH),
    "argmax": (lambda m: m.gather(1, m.argmax(1, keepdim=True)), M),
    "masked": (lambda x: x.masked_fill(x < 0, 0.0), X),
    "cond": (lambda x: tg.cond(x.sum() > 0, lambda v: v * 2, lambda v: v.roll(1), x), X),
    "attention": (lambda a: F.scaled_dot_product_attention(a, a * 2, a), BATCH),
    "while": (lambda x: tg.while_loop(lambda v: (v * v).sum() < 100, lambda v: v * 2 + v.roll(1), x), X),
    "median": (lambda m: m.median(1)[0], M),
    "logsumexp": (lambda m: m.logsumexp(0), M),
    "norm": (lambda m: m / m.norm(dim=1, keepdim=True), M),
    "interpolated": (lambda i: F.interpolate(i, scale_factor=2, mode="bilinear"), IMAGE),
    "einsum": (lambda m: tg.einsum("ij,kj->ik", m, m.exp()), M),
    "svd": (tg.linalg.svdvals, BATCH),
    "checkpointed": (lambda x: tg.utils.checkpoint.checkpoint(lambda v: v.sin() * v.roll(2), x), X),
    "traced": (tg.trace(lambda x: x[1:] * x[:-1]), X),
}


def agrees(found, dense):
    """Values are equal; an entry that is not zero is stored. The number of stored ones."""
    np.testing.assert_allclose(found.to_dense().numpy(), dense.numpy(), atol=1e-9)
    place = np.ravel_multi_index(tuple(found.indices.numpy()), tuple(found.shape)) if found.shape else np.zeros(1)
    assert (np.diff(place) > 0).all()
    assert set(np.flatnonzero(dense.numpy())) <= set(place)
    return found.values.shape[0]


@pytest.mark.parametrize("name", EXACT)
def test_patterns_that_are_exact(name):
    fn, x, entries = EXACT[name]
    assert agrees(func.sparse_jacobian(fn)(x), tg.jacrev(fn)(x)) == entries


@pytest.mark.parametrize("name", WIDER)
def test_patterns_that_are_wider(name):
    fn, x = WIDER[name]
    agrees(func.sparse_jacobian(fn)(x), tg.jacrev(fn)(x))


@pytest.mark.parametrize("name", sorted({*EXACT, *WIDER} - {"svd", "fft of rows", "while", "inverses", "cholesky", "attention"}))
def test_hessians(name):
    fn, x = (EXACT | WIDER)[name][:2]
    weight = tg.tensor(np.sin(np.arange(1.0, fn(x).numel() + 1)), device="numpy").reshape(fn(x).shape)

    def scalar(x):
        return (fn(x) ** 2 * weight).sum()

    dense = tg.hessian(scalar)(x)
    agrees(func.sparse_hessian(scalar)(x), dense)
    flat = dense.numpy().reshape(x.numel(), x.numel())
    np.testing.assert_allclose(func.hessian_diagonal(scalar)(x).numpy().ravel(), np.diag(flat), atol=1e-9)


def products(transform, fn, *args):
    """How many products the transform takes, and whether they are those of forward mode."""
    made = []
    plan = sparse._plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "_plan", lambda *args: made.append(plan(*args)) or made[-1])
        transform(fn)(*args)
    return made[0].count, made[0].forward


def grid(m):
    return ((m[1:] - m[:-1]).sin()).sum() + ((m[:, 1:] - m[:, :-1]) ** 4).sum()


@pytest.mark.parametrize(("transform", "fn", "x", "expected"), [
    (func.sparse_jacobian, lambda x: x.sin(), X, (1, True)),
    (func.sparse_jacobian, lambda x: x.roll(1) - 2 * x + x.roll(-1), X, (3, True)),
    (func.sparse_jacobian, lambda m: (m @ BAND[:5, :5]).softmax(1), random(40, 5), (5, True)),             # blocks of a batch
    (func.sparse_jacobian, lambda m: m.sum(1), random(40, 5), (1, False)),
    (func.sparse_jacobian, lambda x: x.sum() * x, X, (9, True)),
    (func.sparse_hessian, lambda x: (x ** 3).sum(), X, (1, True)),
    (func.sparse_hessian, lambda x: ((x[1:] - x[:-1] ** 2) ** 2).sum(), random(50), (3, True)),
    (func.sparse_hessian, lambda x: (x[1:] * x[0]).sum(), random(50), (2, True)),                           # an arrow: columns take 50
    (func.sparse_hessian, grid, random(12, 15), (6, True)),
    (func.hessian_diagonal, lambda x: (x ** 3).sum(), X, (1, True)),
    (func.hessian_diagonal, grid, random(12, 15), (2, True)),
    (func.hessian_diagonal, lambda m: m.logsumexp(1).sum(), random(30, 4), (4, True)),
    (func.hessian_diagonal, lambda x: (x @ x) ** 2, X, (9, True)),
])
def test_products_are_few(transform, fn, x, expected):
    count, forward = products(transform, fn, x)
    assert (count, forward) == expected


@pytest.mark.parametrize("fn", [lambda d: {"y": d["a"][1:] * d["b"][0], "z": (d["b"] ** 2).sum()}])
def test_structures(fn, run):
    given = {"a": X[:4], "b": X[4:7]}
    found, dense = run(func.sparse_jacobian(fn))(given), tg.jacrev(fn)(given)
    for name in ("y", "z"):
        for of in ("a", "b"):
            agrees(found[name][of], dense[name][of])
    assert found["z"]["a"].values.shape == (0,)
    hessian = run(func.sparse_hessian(lambda d: (d["a"] ** 3).sum() * d["b"].prod()))(given)
    dense = tg.hessian(lambda d: (d["a"] ** 3).sum() * d["b"].prod())(given)
    for name in "ab":
        for of in "ab":
            agrees(hessian[name][of], dense[name][of])
    pair = run(func.sparse_jacobian(lambda x, y: x * y.roll(1), argnums=(0, 1)))(X, X * 2)
    for one, other in zip(pair, tg.jacrev(lambda x, y: x * y.roll(1), argnums=(0, 1))(X, X * 2), strict=True):
        assert agrees(one, other) == 9
    first, second = run(func.hessian_diagonal(lambda x, y: (x ** 3 * y).sum(), argnums=(0, 1)))(X, X * 2)
    np.testing.assert_allclose(first.numpy(), 12 * X.numpy() ** 2)
    np.testing.assert_allclose(second.numpy(), np.zeros(9))


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 100])
def test_aux_and_chunks(chunk_size):
    found, aux = func.sparse_jacobian(lambda x: (x * x.roll(1), x + 1), has_aux=True, chunk_size=chunk_size)(X)
    agrees(found, tg.jacrev(lambda x: x * x.roll(1))(X))
    np.testing.assert_allclose(aux.numpy(), X.numpy() + 1)
    agrees(func.sparse_hessian(lambda x: (x * x.roll(1)).sum(), chunk_size=chunk_size)(X), tg.hessian(lambda x: (x * x.roll(1)).sum())(X))
    diagonal = func.hessian_diagonal(lambda x: (x ** 2 * x.roll(1)).sum(), chunk_size=chunk_size)(X)
    np.testing.assert_allclose(diagonal.numpy(), 2 * X.roll(1).numpy())


def test_transforms_nest(run):
    def f(x):
        return (x[1:] - x[:-1] ** 2).sin()

    def dense(x):
        return (tg.jacfwd(f)(x) ** 2).sum()

    def stored(x):
        return (func.sparse_jacobian(f)(x).values ** 2).sum()

    np.testing.assert_allclose(run(tg.grad(stored))(X).numpy(), tg.grad(dense)(X).numpy())
    np.testing.assert_allclose(run(tg.jacfwd(tg.grad(stored)))(X).numpy(), tg.hessian(dense)(X).numpy(), atol=1e-12)
    third = run(tg.grad(lambda x: func.hessian_diagonal(lambda x: (x ** 4).sum())(x).sum()))(X)
    np.testing.assert_allclose(third.numpy(), 24 * X.numpy())
    agrees(run(func.sparse_jacobian(func.hessian_diagonal(lambda x: (x ** 3 * x.roll(1)).sum())))(X),
           tg.jacfwd(lambda x: 6 * x * x.roll(1))(X))
    rows = random(3, 9)
    each = run(tg.vmap(lambda x: func.sparse_jacobian(f)(x).to_dense()))(rows)
    np.testing.assert_allclose(each.numpy(), tg.vmap(tg.jacfwd(f))(rows).numpy())
    whole = run(tg.vmap(func.sparse_jacobian(f)))(rows)
    assert whole.values.shape == (3, 16)
    assert whole.shape == (8, 9)
    x = X.clone().requires_grad_()
    (func.sparse_jacobian(lambda v: v * v)(x).to_dense() ** 2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 8 * X.numpy())


def test_a_pattern_is_found_once(run):
    sparse._plans.clear()
    made = []
    pattern = sparse.pattern
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "pattern", lambda *args: made.append(1) or pattern(*args))
        call = run(func.sparse_jacobian(lambda x: x[INDEX] * BAND.exp()[:4, 0]))
        for x in (X, X * 2, X.abs()):
            agrees(call(x), tg.jacrev(lambda x: x[INDEX] * BAND.exp()[:4, 0])(x))
        assert len(made) == 1
        func.sparse_jacobian(lambda x: x[INDEX] * BAND.exp()[:4, 0])(X)                # another function of the same operations
        assert len(made) == 1 + (run is tg.trace)


def test_an_index_counts_by_value():
    """One that changes is another pattern; in a trace, where it is an argument, it may be any."""
    index, mask = tg.tensor([0, 3]), tg.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=tg.float64)

    def rows(x):
        return x[index] * 2

    def masked(m):
        return (m[:2, :2] * mask).sum(1) + mask @ m[:2, 0]

    assert func.sparse_jacobian(rows)(X).indices.tolist() == [[0, 1], [0, 3]]
    assert agrees(func.sparse_jacobian(masked)(M), tg.jacrev(masked)(M)) == 3
    index.copy_(tg.tensor([5, 5]))
    mask.copy_(tg.tensor([[0.0, 7.0], [1.0, 1.0]]))
    assert func.sparse_jacobian(rows)(X).indices.tolist() == [[0, 1], [5, 5]]
    assert agrees(func.sparse_jacobian(masked)(M), tg.jacrev(masked)(M)) == 5
    traced = tg.trace(lambda x, index: func.sparse_jacobian(lambda x: x[index])(x))
    for chosen in ([0, 3], [8, 8]):
        found = traced(X, tg.tensor(chosen))
        assert agrees(found, tg.jacrev(lambda x, chosen=chosen: x[chosen])(X)) == 18


def test_values_that_are_told_make_the_pattern_of_a_trace():
    """Of an argument, of what is computed from floats, of a mask and of a matrix; where they hold something else it is an error."""
    def rows(x, index):
        return func.sparse_jacobian(lambda x: x[index] * 2, known=[(index, [0, 3])])(x)

    def nearest(x, at):
        order = (at[:, None] - x.detach()).abs().argsort(-1)[:, 0]
        return func.sparse_jacobian(lambda x: x[order] ** 2, known=[(order, tg.tensor([2, 8]))])(x)

    def mixed(m, mask, factors):
        known = [(mask, [[True, False], [False, True]]), (factors, np.eye(2))]
        return func.sparse_jacobian(lambda m: tg.where(mask, m[:2, :2], 0.0).sum(1) + factors @ m[:2, 0], known=known)(m)

    traced = tg.trace(rows)
    assert agrees(traced(X, tg.tensor([0, 3])), tg.jacrev(lambda x: x[[0, 3]] * 2)(X)) == 2
    with pytest.raises(ArgumentError, match=r"sparse_jacobian at .*known\[0\] does not hold the values that were given") as error:
        traced(X, tg.tensor([0, 4])).values.numpy()
    assert __file__ in str(error.value)
    assert agrees(traced(X, tg.tensor([0, 3])), tg.jacrev(lambda x: x[[0, 3]] * 2)(X)) == 2
    with pytest.raises(ArgumentError, match="known"):
        rows(X, tg.tensor([1, 3])).to_dense().numpy()
    at = tg.stack([X[2], X[8]]) + 1e-9
    assert agrees(tg.trace(nearest)(X, at), tg.jacrev(lambda x: x[[2, 8]] ** 2)(X)) == 2
    with pytest.raises(ArgumentError, match="known"):
        tg.trace(nearest)(X, at.flip(0)).to_dense().numpy()
    run, mask = tg.trace(mixed), tg.eye(2, dtype=tg.bool)
    wanted = tg.jacrev(lambda m: m[:2, :2].diagonal() + 3 * m[:2, 0])(M)
    assert agrees(run(M, mask, 3 * tg.eye(2, dtype=tg.float64)), wanted) == 3
    assert run(M, mask, tg.zeros(2, 2, dtype=tg.float64)).values.shape == (3,)          # fewer are no error
    for given in ((mask.flip(0), tg.eye(2, dtype=tg.float64)), (mask, tg.ones(2, 2, dtype=tg.float64))):
        with pytest.raises(ArgumentError, match="known"):
            run(M, *given).values.sum().item()


def test_a_pattern_without_entries_is_checked_too():
    def f(x, mask):
        return func.sparse_jacobian(lambda x: tg.where(mask, x, 0.0), known=[(mask, np.zeros(9, bool))])(x)

    assert tg.trace(f)(X, tg.zeros(9, dtype=tg.bool)).values.tolist() == [0.0]
    with pytest.raises(ArgumentError, match="known"):
        tg.trace(f)(X, X > -9).values.numpy()


def test_values_are_told_of_hessians():
    index, wanted = tg.tensor([0, 1]), tg.hessian(lambda x: (x[[0, 1]] ** 3).prod())(X)
    run = tg.trace(lambda x, i: func.sparse_hessian(lambda x: (x[i] ** 3).prod(), known=[(i, [0, 1])])(x))
    assert agrees(run(X, index), wanted) == 4
    diagonal = tg.trace(lambda x, i: func.hessian_diagonal(lambda x: (x[i] ** 3).sum(), known=[(i, [0, 1])])(x))
    np.testing.assert_allclose(diagonal(X, index)[:2].numpy(), 6 * X[:2].numpy())
    for found in (run(X, index + 2).values, diagonal(X, index + 2)):
        with pytest.raises(ArgumentError, match="known"):
            found.numpy()


def test_what_is_told_has_to_fit():
    index = tg.tensor([0, 3])
    for known, error, match in ((index, ArgumentError, r"known\[0\] must be a pair of a tensor and the values"),
                                ([([0, 3], index)], ArgumentError, r"must be a pair of a tensor"),
                                ([(index, [0])], ShapeError, r"a tensor of shape \(2,\) and values of shape \(1,\)"),
                                ([(index, [0.5, 3])], DTypeError, r"a tensor of int64 and values of float64 that it cannot hold")):
        with pytest.raises(error, match=match):
            func.sparse_jacobian(lambda x: x[index], known=known)(X)


def test_result(device):
    """On every device: kernels, NumPy for small work, the interpreter."""
    x = tg.tensor([1.0, 2.0, 3.0])
    found = func.sparse_jacobian(lambda x: tg.stack([x[0] * x[1], x[2] ** 2]))(x)
    assert repr(found) == "SparseCOO(shape=(2, 3), 3 entries, float32)"
    assert found.indices.dtype == tg.int64
    assert found.values.device is x.device
    assert found.indices.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert found.values.tolist() == [2, 1, 6]
    np.testing.assert_array_equal(found.to_scipy().toarray(), [[2, 1, 0], [0, 0, 6]])
    scalar = func.sparse_hessian(lambda x: x ** 3)(tg.tensor(2.0))
    assert scalar.shape == ()
    assert scalar.to_dense().item() == 12
    assert func.sparse_jacobian(lambda x: x[:0])(x).to_dense().shape == (0, 3)


def test_errors(monkeypatch):
    with pytest.raises(DTypeError, match="sparse_jacobian: the result is complex"):
        func.sparse_jacobian(lambda x: x * 1j)(X)
    with pytest.raises(DTypeError, match="sparse_jacobian: can only differentiate with respect to floats"):
        func.sparse_jacobian(lambda x: x)(INDEX)
    with pytest.raises(ShapeError, match="must return one real float"):
        func.sparse_hessian(lambda x: x * 2)(X)
    with pytest.raises(ArgumentError, match="sparse_jacobian: chunk_size must be positive, got 0"):
        func.sparse_jacobian(lambda x: x * x.roll(1), chunk_size=0)(X)
    monkeypatch.setattr(sparsity, "ENTRIES", 80)
    with pytest.raises(ArgumentError, match="sparse_jacobian: 81 entries of 9 x 9 may differ from zero"):
        func.sparse_jacobian(lambda x: x * x.exp().sum() * x.sin().sum())(X)
    taken = tg.trace(lambda x, index: func.sparse_jacobian(lambda x: x[index])(x))
    with pytest.raises(ArgumentError, match=rf"The index at .*{re.escape(Path(__file__).name)}:\d+ may be any.*`known`"):
        taken(X, tg.arange(9).flip(0))
    monkeypatch.setattr(sparse, "import_module", lambda name: (_ for _ in ()).throw(ImportError))
    with pytest.raises(ArgumentError, match="to_scipy: scipy is not installed"):
        func.sparse_jacobian(lambda x: x)(X).to_scipy()


def symmetric(n, degree):
    rows, columns = RNG.integers(0, n, (2, n * degree))
    keys = np.unique(np.concatenate([rows * n + columns, columns * n + rows, np.arange(n) * (n + 1)]))
    return keys // n, keys % n


def test_columns_are_coloured_as_their_intersection_graph():
    rows, columns = RNG.integers(0, 40, 90), RNG.integers(0, 30, 90)
    graph = nx.Graph()
    graph.add_nodes_from(range(30))
    graph.add_edges_from((a, b) for r in range(40) for a in columns[rows == r] for b in columns[rows == r] if a < b)
    greedy = nx.greedy_color(graph, strategy=lambda graph, colors: range(30))
    lists = coloring._lists(columns, rows, 30)
    assert coloring._by_rows(lists, range(30), 40) == [greedy[j] for j in range(30)]
    found = coloring.color_columns(rows, columns, 30)
    assert found.max() <= max(greedy.values())
    assert all(found[a] != found[b] for a, b in graph.edges)


@pytest.mark.parametrize(("n", "degree"), [(1, 1), (12, 1), (40, 2), (60, 4)])
def test_star_colourings_tell_every_entry(n, degree):
    """Each entry, or its mirror image, is the only one of its row with its colour."""
    rows, columns = symmetric(n, degree)
    near = coloring._neighbours(rows, columns, n)
    for colors in (coloring._star(near, range(n)), coloring.color_star(rows, columns, n).tolist()):
        def alone(i, j, colors=colors):
            return [k for k in (*near[i], i) if colors[k] == colors[j]] == [j]
        assert all(alone(i, j) or alone(j, i) for i, j in zip(rows.tolist(), columns.tolist(), strict=True))
    apart = coloring.color_apart(rows, columns, n)
    assert all(apart[i] != apart[j] for i, j in zip(rows, columns, strict=True) if i != j)
