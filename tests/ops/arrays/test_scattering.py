"""Writing at places, joining, splitting and building tensors of others, against numpy; the device agrees.

torch_gradient=False: torch's own backward fails there (negative or repeated indices, a source larger than the index, vander).
"""

import re
from typing import Any

import numpy as np
import pytest
from scipy import linalg

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.marks import one_of
from tests.helpers.names import Case, checks
from tracegrad.execute.devices import find_device

inf, nan = np.inf, np.nan
RNG = np.random.default_rng(7)


def u(*shape: int) -> Any:
    return RNG.uniform(-2, 2, shape)


def i(low: int, high: int, *shape: int, dtype: str = "int64") -> Any:
    return RNG.integers(low, high, shape).astype(dtype)


def put(x: Any, key: Any, value: Any, ufunc: Any = None) -> Any:
    out = np.array(x)
    if ufunc is None:
        out[key] = value
    else:
        ufunc.at(out, key, value)
    return out


def reduced(x: Any, d: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """scatter_reduce by a loop."""
    groups: dict[Any, list[Any]] = {}
    for place in np.ndindex(index.shape):
        to = (*place[:d], index[place], *place[d + 1 :])
        groups.setdefault(to, []).append(src[place])
    out = np.array(x)
    fns = {
        "sum": np.sum,
        "prod": np.prod,
        "amax": np.max,
        "amin": np.min,
        "mean": np.mean if x.dtype.kind == "f" else lambda v: sum(v) // len(v),
    }
    for to, values in groups.items():
        out[to] = fns[reduce]([x[to], *values] if include_self else values)
    return out


X, MASK = u(5, 7), i(0, 2, 5, 7, dtype="bool")
INDEX, SRC = i(0, 5, 13, 7), u(13, 7)
ROWS = i(0, 5, 13)
CASES = {
    "index_fill": Case(
        lambda t, F, x, k: (x.index_fill(0, k, 3.5), t.index_fill(x, 1, k, t.sum(x))),
        X,
        np.array([0, 2, 0, -1]),
        expected=lambda x, k: (put(x, k, 3.5), put(x.T, k, x.sum()).T),
        torch_gradient=False,
    ),
    "index_put": Case(
        lambda t, F, x, a, b, v: (t.index_put(x, (a, b), v), t.index_put(x, (a, b), v, accumulate=True), t.index_put(x, (a,), v[0])),
        X,
        np.array([0, 2, 2, 1]),
        np.array([3, 1, 1, 0]),
        u(4),
        gradient=0,
        expected=lambda x, a, b, v: (put(x, (a, b), v), put(x, (a, b), v, np.add), put(x, a, v[0])),
    ),
    "index_put: gradient": Case(lambda t, F, x, a, v: t.index_put(x, (a,), v, accumulate=True), X, np.array([0, 2, 2, 1]), u(4, 7)),
    "index_put by mask": Case(
        lambda t, F, x, m, v: (t.index_put(x, (m,), v[:1]), t.index_put(x, (m,), v[0], accumulate=True)),
        X,
        MASK,
        u(3),
        gradient=0,
        expected=lambda x, m, v: (put(x, m, v[0]), np.where(m, x + v[0], x)),
    ),
    "put": Case(
        lambda t, F, x, k, v: (t.put(x, k, v), t.put(x, k, v, accumulate=True)),
        X,
        np.array([[3, -1], [17, 3]]),
        u(2, 2),
        gradient=1,
        expected=lambda x, k, v: (put(x.ravel(), k, v).reshape(5, 7), put(x.ravel(), k, v, np.add).reshape(5, 7)),
        torch_gradient=False,
    ),
    "masked_scatter": Case(
        lambda t, F, x, m, v: (t.masked_scatter(x, m, v), t.masked_scatter(x, m[0], v)),
        X,
        MASK,
        u(5, 8),
        expected=lambda x, m, v: (put(x, m, v.ravel()[: m.sum()]), put(x, np.broadcast_to(m[0], x.shape), v.ravel()[: 5 * m[0].sum()])),
    ),
    **{
        f"scatter_reduce, {r}": Case(
            lambda t, F, x, k, v, r=r: (t.scatter_reduce(x, 0, k, v, r), x.scatter_reduce(0, k[:3], v, reduce=r, include_self=False)),
            X,
            INDEX,
            SRC,
            expected=lambda x, k, v, r=r: (reduced(x, 0, k, v, r), reduced(x, 0, k[:3], v, r, False)),
            torch_gradient=False,
        )
        for r in ("sum", "prod", "mean", "amax", "amin")
    },
    "scatter_reduce along dim 1": Case(
        lambda t, F, x, k, v: t.scatter_reduce(x, 1, k, v, "amax"),
        X,
        i(0, 7, 5, 16),
        u(5, 16),
        expected=lambda x, k, v: reduced(x, 1, k, v, "amax"),
    ),
    "scatter_reduce of integers": Case(
        lambda t, F, x, k, v: tuple(t.scatter_reduce(x, 0, k, v, r) for r in ("sum", "prod", "mean", "amax", "amin")),
        i(-9, 9, 5),
        i(0, 5, 31),
        i(-9, 9, 31),
        expected=lambda x, k, v: tuple(reduced(x, 0, k, v, r) for r in ("sum", "prod", "mean", "amax", "amin")),
    ),
    "scatter_reduce with zeros, NaN, equals": Case(
        lambda t, F, x, k, v: tuple(t.scatter_reduce(x, 0, k, v, r) for r in ("prod", "amax", "amin")),
        np.array([0.0, 1.0, 2.0, 2.0]),
        np.array([0, 1, 1, 2, 3, 3]),
        np.array([3.0, 0.0, 0.0, nan, 2.0, inf]),
        expected=lambda x, k, v: tuple(reduced(x, 0, k, v, r) for r in ("prod", "amax", "amin")),
        gradient=0,
    ),
    "scatter_reduce: shared gradients": Case(
        lambda t, F, x, k, v: t.scatter_reduce(x, 0, k, v, "amax"),
        np.array([1.0, 0.0]),
        np.array([0, 0, 1, 1, 1]),
        np.array([1.0, 1.0, -1.0, 3.0, 3.0]),
        differences=False,
    ),
    "index_reduce": Case(
        lambda t, F, x, k, v: tuple(t.index_reduce(x, 0, k, v, r) for r in ("prod", "mean", "amax", "amin")),
        X,
        ROWS,
        SRC,
        expected=lambda x, k, v: tuple(reduced(x, 0, np.repeat(k[:, None], 7, 1), v, r) for r in ("prod", "mean", "amax", "amin")),
    ),
    "select_scatter": Case(
        lambda t, F, x, v: (t.select_scatter(x, v, 0, -2), t.select_scatter(x, x[:, 0], 1, 3)),
        X,
        u(7),
        expected=lambda x, v: (put(x, -2, v), put(x, (slice(None), 3), x[:, 0])),
    ),
    "slice_scatter": Case(
        lambda t, F, x, v: (t.slice_scatter(x, v, 0, 1, 4), t.slice_scatter(x, x[:, :3], 1, -6, None, 2)),
        X,
        u(3, 7),
        expected=lambda x, v: (put(x, slice(1, 4), v), put(x, (slice(None), slice(1, None, 2)), x[:, :3])),
    ),
    "diagonal_scatter": Case(
        lambda t, F, x, v: (
            t.diagonal_scatter(x, v),
            t.diagonal_scatter(x, v, 2),
            t.diagonal_scatter(x, v[:3], -2, 0, 1),
            t.diagonal_scatter(x, v[:3], 2, 1, 0),
        ),
        X,
        u(5),
        expected=lambda x, v: (
            put(x, (range(5), range(5)), v),
            put(x, (range(5), range(2, 7)), v),
            put(x, ([2, 3, 4], [0, 1, 2]), v[:3]),
            put(x, ([2, 3, 4], [0, 1, 2]), v[:3]),
        ),
    ),
    "as_strided": Case(
        lambda t, F, x: (t.as_strided(x, (3, 4), (7, 2), 1), t.as_strided(x, (2, 2, 3), (1, 0, 1))),
        X,
        expected=lambda x: (
            x.ravel()[1 + 7 * np.arange(3)[:, None] + 2 * np.arange(4)],
            np.stack([np.stack([x[0, :3]] * 2), np.stack([x[0, 1:4]] * 2)]),
        ),
    ),
    "atleast": Case(
        lambda t, F, x: (*t.atleast_1d(x[0, 0], x), t.atleast_2d(x[0]), *t.atleast_3d(x[0, 0], x[0], x)),
        X,
        expected=lambda x: (x[0, 0].reshape(1), x, x[:1], x[0, 0].reshape(1, 1, 1), x[:1, :, None], x[:, :, None]),
    ),
    "stacks": Case(
        lambda t, F, x: (
            t.hstack((x, x[:, :2])),
            t.hstack([x[0], x[1]]),
            t.vstack((x, x[0])),
            t.dstack((x, x)),
            t.column_stack((x[:, 0], x)),
        ),
        X,
        expected=lambda x: (
            np.hstack((x, x[:, :2])),
            np.hstack([x[0], x[1]]),
            np.vstack((x, x[0])),
            np.dstack((x, x)),
            np.column_stack((x[:, 0], x)),
        ),
    ),
    "splits": Case(
        lambda t, F, x: (
            *t.tensor_split(x, 3),
            *t.tensor_split(x, (1, 5, 3, 9), 1),
            *t.hsplit(x, 7),
            *t.vsplit(x, [2]),
            *t.hsplit(x[0], [1, -1]),
        ),
        X,
        expected=lambda x: (
            *np.array_split(x, 3),
            *np.array_split(x, (1, 5, 3, 9), 1),
            *np.hsplit(x, 7),
            *np.vsplit(x, [2]),
            *np.hsplit(x[0], [1, -1]),
        ),
    ),
    "dsplit": Case(
        lambda t, F, x: (*t.dsplit(x, 2), *t.split_with_sizes(x, (1, 3), 2)),
        u(2, 3, 4),
        expected=lambda x: (*np.dsplit(x, 2), x[..., :1], x[..., 1:]),
    ),
    "block_diag": Case(
        lambda t, F, x, y: (t.block_diag(x, y[0], y), t.block_diag(x)), X, u(2, 3), expected=lambda x, y: (linalg.block_diag(x, y[0], y), x)
    ),
    "cartesian_prod": Case(
        lambda t, F, x: (t.cartesian_prod(x[0], x[:, 1], x[1, :2]), t.cartesian_prod(x[0])),
        X,
        expected=lambda x: (np.stack([g.ravel() for g in np.meshgrid(x[0], x[:, 1], x[1, :2], indexing="ij")], 1), x[0]),
    ),
    "combinations": Case(
        lambda t, F, x: (t.combinations(x), t.combinations(x, 3), t.combinations(x, 2, True), t.combinations(x, 0)),
        u(7),
        expected=lambda x: (
            np.stack([x[a] for a in np.triu_indices(7, 1)], 1),
            np.array([[x[a], x[b], x[c]] for a in range(7) for b in range(a + 1, 7) for c in range(b + 1, 7)]),
            np.stack([x[a] for a in np.triu_indices(7)], 1),
            np.zeros(0),
        ),
    ),
    "kron": Case(
        lambda t, F, x, y: (t.kron(x, y), t.kron(y[0], x), t.kron(x, y[0, 0])),
        u(3, 2),
        u(2, 5),
        expected=lambda x, y: (np.kron(x, y), np.kron(y[0], x), np.kron(x, y[0, 0])),
    ),
    "vander": Case(
        lambda t, F, x: (t.vander(x), t.vander(x, 3, increasing=True), t.vander(x, N=1)),
        u(7),
        expected=lambda x: (np.vander(x), np.vander(x, 3, True), np.vander(x, 1)),
        torch_gradient=False,
    ),
    "rot90": Case(
        lambda t, F, x: tuple(t.rot90(x, k, d) for k in (-1, 0, 1, 2, 3) for d in ((0, 1), (2, 0))),
        u(2, 3, 4),
        expected=lambda x: tuple(np.rot90(x, k, d) for k in (-1, 0, 1, 2, 3) for d in ((0, 1), (2, 0))),
    ),
    "diagflat and fill": Case(
        lambda t, F, x: (t.diagflat(x, 1), t.fill(x, 2), t.constant_pad_nd(x, (1, 2), 3.0)),
        u(2, 3),
        expected=lambda x: (np.diagflat(x, 1), np.full((2, 3), 2.0), np.pad(x, ((0, 0), (1, 2)), constant_values=3)),
    ),
    "unravel_index": Case(
        lambda t, F, k: t.unravel_index(k, (3, 4, 5)), i(0, 60, 2, 33), expected=lambda k: np.unravel_index(k, (3, 4, 5))
    ),
    "indices of triangles": Case(
        lambda t, F, x: (t.tril_indices(4, 5, 1), t.triu_indices(5, 3, -1), t.triu_indices(2, 2, 9, dtype=t.int32)),
        u(1),
        gradient=0,
        expected=lambda x: (np.stack(np.tril_indices(4, 1, 5)), np.stack(np.triu_indices(5, -1, 3)), np.zeros((2, 0), np.int32)),
    ),
    "logspace": Case(
        lambda t, F, x: (t.logspace(0, 2, 7, dtype=t.float64), t.logspace(0, 3, 4, base=2, dtype=t.float64), t.scalar_tensor(3)),
        u(1),
        gradient=0,
        expected=lambda x: (np.logspace(0, 2, 7), np.logspace(0, 3, 4, base=2), np.float32(3)),
    ),
}

test_values, test_gradients, test_as_in_torch = checks(CASES)


def test_broadcast_shapes() -> None:
    assert tg.broadcast_shapes((2, 1), (1, 3), (3,)) == np.broadcast_shapes((2, 1), (1, 3), (3,))
    assert tg.broadcast_shapes(3, (2, 1)) == (2, 3)


def test_methods_write_in_place(on_numpy: Any) -> None:
    x = tg.zeros(3, 4)
    x.index_fill_(0, tg.tensor([1]), 2.0)
    x.index_put_((tg.tensor([0, 0]), tg.tensor([3, 3])), tg.ones(2), accumulate=True)
    x.masked_scatter_(tg.tensor([[True, False, False, False]]), tg.tensor([7.0, 8.0, 9.0]))
    x.scatter_reduce_(1, tg.tensor([[1], [1], [1]]), tg.ones(3, 1) * 5, "amax")
    np.testing.assert_array_equal(x.numpy(), [[7, 5, 0, 2], [8, 5, 2, 2], [9, 5, 0, 0]])


def test_splits_are_views(on_numpy: Any) -> None:
    x = tg.zeros(4, 4)
    tg.hsplit(x, 2)[1].fill_(1.0)
    np.testing.assert_array_equal(x.numpy()[:, 2:], np.ones((4, 2)))


def test_the_device_agrees(device: Any) -> None:
    x, src, index = u(33, 7).astype(np.float32), u(257, 7).astype(np.float32), i(0, 33, 257, 7)

    @tg.trace
    def all_of(x: Any, index: Any, src: Any) -> Any:
        return (
            *(tg.scatter_reduce(x, 0, index, src, r) for r in ("prod", "mean", "amax")),
            tg.kron(x[:3], x[:2]),
            tg.block_diag(x, x),
            tg.masked_scatter(x, x > 0, src),
            tg.as_strided(x, (5, 31), (31, 1)),
        )

    found = [r.numpy() for r in all_of(tg.tensor(x), tg.tensor(index), tg.tensor(src))]
    wanted = [
        *(reduced(x, 0, index, src, r) for r in ("prod", "mean", "amax")),
        np.kron(x[:3], x[:2]),
        linalg.block_diag(x, x),
        put(x, x > 0, src.ravel()[: (x > 0).sum()]),
        x.ravel()[:155].reshape(5, 31),
    ]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x: x.index_fill(0, tg.ones(2, 2).long(), 1.0), tg.ShapeError, "index_fill: index must be a 1-d tensor"),
        (lambda x: x.index_fill(0, tg.tensor([5]), 1.0).numpy(), tg.IndexOutOfRange, "index_fill"),
        (lambda x: tg.index_put(x, (tg.tensor([0]),), 1.0), tg.DTypeError, "index_put: values must be a tensor"),
        (lambda x: tg.put(x, tg.tensor([0]), tg.ones(2)), tg.ShapeError, "put: source"),
        (lambda x: tg.masked_scatter(x, x, x), tg.DTypeError, "masked_scatter: the mask must be bool, got float32"),
        (lambda x: tg.masked_scatter(x, x > 0, tg.ones(2)).numpy(), tg.IndexOutOfRange, "masked_scatter"),
        (lambda x: tg.scatter_reduce(x, 0, tg.tensor([[0]]), x, "min"), tg.ArgumentError, "scatter_reduce: reduce must be one of"),
        (lambda x: tg.scatter_reduce(x, 0, tg.tensor([[9]]), x, "sum").numpy(), tg.IndexOutOfRange, "scatter_reduce"),
        (lambda x: tg.index_reduce(x, 0, tg.tensor([0]), x, "amax"), tg.ShapeError, "index_reduce: source"),
        (lambda x: tg.select_scatter(x, x, 0, 0), tg.ShapeError, "select_scatter: src"),
        (lambda x: tg.slice_scatter(x, x, 0, 0, 1), tg.ShapeError, "slice_scatter: src"),
        (lambda x: tg.diagonal_scatter(x, x), tg.ShapeError, "diagonal_scatter: src"),
        (lambda x: tg.as_strided(x, (3, 3), (3, 2)), tg.ShapeError, "as_strided: size"),
        (lambda x: tg.vsplit(x, 2), tg.ShapeError, "vsplit: dimension 0"),
        (lambda x: tg.tensor_split(x, 0), tg.ArgumentError, "tensor_split: the number of sections"),
        (tg.combinations, tg.ShapeError, "combinations: takes a vector"),
        (lambda x: tg.rot90(x, 1, (0, 0)), tg.ArgumentError, "rot90: dims"),
        (lambda x: tg.unravel_index(tg.tensor([60]), (3, 4, 5)), tg.IndexOutOfRange, "unravel_index"),
        (lambda x: tg.broadcast_shapes((2,), (3,)), tg.ShapeError, "broadcast_shapes"),
        (tg.cartesian_prod, tg.ShapeError, "cartesian_prod: takes vectors"),
    ],
)
def test_errors(fn: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        [r.numpy() for r in fn(tg.ones(3, 3))]


@one_of(2, "n", [3, 4, 8, 12, 16, 20, 33, 64, 100])
@pytest.mark.usefixtures("device")
def test_what_was_scattered_is_seen_by_what_reads_it_next(n):
    """In one kernel: clang's inliner lost the order of a scatter and the loads after it where the CPU has one in a register (AVX-512)."""
    rng = np.random.default_rng(n)
    index, x = rng.permutation(2 * n)[:n], rng.standard_normal(n).astype(np.float32)
    image = rng.permutation(4 * n).reshape(1, 1, 2, 2 * n).astype(np.float32)

    def fn(x, index, image):
        put = tg.zeros(2 * n).scatter(0, index, x)
        again = tg.ones(2 * n)
        again[index] = x * 2
        doubled = put + again
        pooled = F.max_pool2d(image, 2)
        slope, = tg.autograd.grad((pooled * 1.5).sum(), image)
        taken = doubled[index]
        return put * put, (again * again).sum(), taken * 3, taken.flip(0) + put[index], slope.square().sum(), slope.square().sum(-2)

    got = tg.trace(fn)(tg.tensor(x), tg.tensor(index), tg.tensor(image, requires_grad=True))
    put, again = np.zeros(2 * n, np.float32), np.ones(2 * n, np.float32)
    put[index], again[index] = x, x * 2
    blocks = image.reshape(2, n, 2)
    slope = np.where(blocks == blocks.max((0, 2), keepdims=True), 1.5, 0).reshape(2, 2 * n)
    taken = (put + again)[index]
    wanted = put * put, (again * again).sum(), taken * 3, taken[::-1] + x, (slope**2).sum(), (slope**2).sum(0)[None, None]
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g.detach().numpy(), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", ["batched", "scatter", "pool"])
def test_no_pointer_is_restrict_to_what_a_kernel_scatters_and_reads(source):
    def fn(x, index):
        if source == "batched":
            return (x * 2).flip(0)[index].sum() + x[0], (x * 2)[:5].cumsum(0)
        if source == "scatter":
            return x.scatter(0, index, x + 1)
        return tg.autograd.grad(F.max_pool1d(x[None], 2).sum(), x)

    traced = tg.trace(fn)
    traced(tg.tensor(np.linspace(0, 1, 12), requires_grad=source == "pool"), tg.tensor(np.arange(12)[::-1].copy()))
    for text in str(traced.kernels()).split("__kernel")[1:]:
        head, body = text.split(") {", 1)
        for name in re.findall(r"__global (?!const )\w+ \*restrict (\w+)", head):
            assert not re.search(rf"= (?:\w+\()?(?:\w+, )?{name}\b", body), f"{name} is read\n{text}"
            assert len(re.findall(rf"^ *{name}\[at\d*\] =", body, re.MULTILINE)) == 0, f"{name} is scattered to\n{text}"


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_extremes_count_equals_only_for_a_gradient(reduce: str) -> None:
    index, x = tg.tensor([0, 1, 1, 0, 3]), tg.tensor([1.0, 5.0, 5.0, -3.0, inf])
    step = tg.trace(lambda base, x: base.scatter_reduce(0, index, x, reduce))
    wanted = [1, 5, 0, inf] if reduce == "amax" else [-3, 0, 0, 0]
    np.testing.assert_array_equal(np.asarray(step(tg.zeros(4), x)), wanted)
    assert "scatter_add" not in {n.fn.name for n in step.graph}
    again = x.clone().requires_grad_()
    step(tg.full((4,), 0.0 if reduce == "amax" else 9.0), again).sum().backward()
    np.testing.assert_array_equal(np.asarray(again.grad), [1, 0.5, 0.5, 0, 1] if reduce == "amax" else [0, 0.5, 0.5, 1, 0])


def test_a_scatter_checks_its_indices_and_adds_constants_itself() -> None:
    index = RNG.integers(0, 7, 5000)
    step = tg.trace(lambda index: tg.zeros(7, dtype=tg.int64).index_add(0, index, tg.ones_like(index)))
    np.testing.assert_array_equal(np.asarray(step(tg.tensor(index))), np.bincount(index, minlength=7))
    assert str(step.kernels()).count("__kernel") == 1
    index[4321] = 7
    with pytest.raises(IndexError, match="index holds 7"):
        np.asarray(step(tg.tensor(index)))


def test_a_row_number_is_clamped_where_it_is_reported() -> None:
    step = tg.trace(lambda x, k: tg.zeros(4).index_add(0, k, x))
    x = tg.ones(40)
    np.testing.assert_array_equal(np.asarray(step(x, tg.arange(40) % 4)), [10, 10, 10, 10])
    if find_device(None).target.traits.long_items:
        assert any(line.strip().startswith("if ((k_i < 0) |") for line in str(step.kernels()).splitlines())
    for wrong in (-3, 4, 1 << 40):
        with pytest.raises(tg.IndexOutOfRange):
            np.asarray(step(x, tg.full((40,), wrong, dtype=tg.int64)))


@pytest.mark.parametrize("count", [2, 4, 6])
def test_values_for_a_mask_are_as_many_as_its_places(count):
    """In a trace, too, where only the device knows how many places the mask has."""
    x, mask = tg.zeros(2, 3), tg.tensor([[True, False, True], [False, True, False]])

    def assigned(x, mask, value):
        x = x.clone()
        x[mask] = value
        return x

    calls = [assigned, *[tg.trace(assigned)] * 3, lambda x, mask, value: x.index_put((mask,), value)]
    for call in calls:
        with pytest.raises(RuntimeError, match=f"{'index_put' if call is calls[-1] else 'setitem'}.*{count}"):
            call(x, mask, tg.ones(count)).numpy()
    given, right = tg.tensor([1.0, 2.0, 3.0]), [[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]
    assert all(call(x, mask, given).tolist() == right for call in calls)
    with pytest.raises(tg.ArgumentError, match=f"setitem at .*the value holds {count} elements for a mask of shape"):
        calls[1](x, mask, tg.ones(count)).numpy()
    assert calls[1](x, mask, given).tolist() == right


def test_values_of_a_branch_that_is_not_taken_are_not_counted():
    def assigned(x):
        x = x.clone()
        x[x > 0] = tg.ones(2)
        return x

    chosen = tg.trace(lambda pred, x: tg.cond(pred, assigned, lambda x: x * 3, x))
    assert chosen(tg.tensor(False), tg.ones(3)).tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(tg.ArgumentError, match="setitem"):
        chosen(tg.tensor(True), tg.ones(3)).numpy()


def test_numbers_of_a_branch_that_is_not_taken_are_not_checked():
    drawn = tg.trace(lambda pred, x: tg.cond(pred, lambda x: tg.multinomial(x, 2).float(), lambda x: x[:2] * 3, x))
    assert drawn(tg.tensor(False), -tg.ones(3)).tolist() == [-3.0, -3.0]
    with pytest.raises(tg.ArgumentError, match=r"multinomial .*probabilities"):
        drawn(tg.tensor(True), -tg.ones(3)).numpy()
