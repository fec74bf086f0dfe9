"""Values in the buffers of others: arguments that a trace changes, scatters one after the other. Whoever reads gets what was there then."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of

pytestmark = pytest.mark.usefixtures("kernels")
twice = tg.opencl_function(
    source="__kernel void twice(__global const float *x, __global float *y) { int i = get_global_id(0); y[i] = 2 * x[i]; }",
    entry="twice", numpy=lambda x: 2 * x)


def scanned(x: Any, rows: Any) -> Any:
    return tg.scan(lambda c, r: (tg.tanh(c.roll(1) - c.sum()) + r.sum(), c.sum()), x, rows)


READERS: dict[str, Callable[[Any, Any], Any]] = {
    "loop": scanned,
    "loop's constant": lambda x, rows: tg.scan(lambda c, r: (c + (x * r.sum()).sum().tanh(), c), rows.sum(), rows),
    "host": lambda x, rows: tg.linalg.svdvals(x.reshape(20, -1)),
    "small matrices": lambda x, rows: tg.linalg.inv(x.reshape(-1, 2, 2) + 9 * tg.eye(2)),
    "product": lambda x, rows: x.reshape(20, -1) @ x.reshape(-1, 20),
    "sort": lambda x, rows: x.sort()[0],
    "running sum": lambda x, rows: x.cumsum(0),
    "user's kernel": lambda x, rows: twice(x),
}


def leaves(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in leaves(part)] if isinstance(x, tuple) else [x]


def f4(array: Any) -> Any:
    return tg.tensor(array.astype(np.float32))


def held(traced: Any, shape: tuple[int, ...]) -> int:
    """How many temporary buffers of that shape the program has."""
    return sum(slot.kind == "temp" and slot.shape == shape for slot in traced.plan.slots)


@one_of(6, "n", [60, 300, 1500], 1)
@pytest.mark.parametrize("reader", READERS)
def test_what_a_trace_changed_is_what_later_steps_read(reader: str, n: int) -> None:
    read, rng = READERS[reader], np.random.default_rng(n)

    @tg.trace
    def step(x: Any, y: Any, z: Any, rows: Any) -> Any:
        before = read(x, rows)
        x.mul_(2.0)
        found = read(x, rows)
        y.add_(z.sum())                          # small kernels, which are brought together
        return before, found

    x, y, z, rows = (tg.tensor(rng.uniform(0.5, 1.5, shape).astype(np.float32)) for shape in (n, n, n // 2, (40, 3)))
    for _ in range(2):
        old = x.clone()
        wanted = read(old.clone(), rows), read(old * 2.0, rows)
        for found, expected in zip(leaves(step(x, y, z, rows)), leaves(wanted), strict=True):
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(x.numpy(), 2 * old.numpy())


def deposited(x: Any, w: Any, n: int) -> Any:
    """Particles' weights on a grid, as clouds of three cells."""
    i = x.floor().long()
    f = x - i
    grid = tg.zeros(n, dtype=x.dtype)
    for k, part in enumerate(((1 - f) ** 2, 2 * f * (1 - f), f * f)):
        grid = grid.index_add(0, (i + k) % n, w * part)
    return grid


@pytest.mark.parametrize("n", [12, 65, 300, 40_000])
def test_scatters_one_after_the_other_share_a_buffer(n: int) -> None:
    rng = np.random.default_rng(n)
    x, w = tg.tensor(rng.uniform(0, n, 200)), tg.tensor(rng.standard_normal(200))

    @tg.trace
    def deposit(x: Any, w: Any) -> Any:
        grid = deposited(x, w, n)
        return grid, grid.sum()

    wanted = np.zeros(n)
    i, f = np.floor(x.numpy()).astype(int), x.numpy() % 1
    for k, part in enumerate(((1 - f) ** 2, 2 * f * (1 - f), f * f)):
        np.add.at(wanted, (i + k) % n, w.numpy() * part)
    grid, total = deposit(x, w)
    np.testing.assert_allclose(grid.numpy(), wanted, atol=1e-5)
    assert total.item() == pytest.approx(wanted.sum())
    assert not held(deposit, (n,))


@pytest.mark.matrix
def test_a_table_that_a_trace_changes_is_not_copied() -> None:
    rng = np.random.default_rng(0)
    table = f4(rng.standard_normal((3000, 4)))
    i, j = (tg.tensor(rng.integers(0, 3000, 130)) for _ in range(2))
    v = f4(rng.standard_normal((130, 4)))

    @tg.trace
    def step(table: Any) -> Any:
        table.index_add_(0, i, v)
        total = table.sum()
        table[j] = v
        table.index_add_(0, i, v * 2)
        return total

    wanted = table.numpy().copy()
    for _ in range(3):
        total = step(table)
        np.add.at(wanted, i.numpy(), v.numpy())
        assert total.item() == pytest.approx(wanted.sum(), abs=1e-2)
        wanted[j.numpy()] = v.numpy()
        np.add.at(wanted, i.numpy(), 2 * v.numpy())
        np.testing.assert_allclose(table.numpy(), wanted, rtol=1e-4, atol=1e-4)
    assert not held(step, (3000, 4))


@pytest.mark.matrix
def test_an_old_table_that_is_read_later_stays() -> None:
    rng = np.random.default_rng(0)
    i, j = (tg.tensor(rng.integers(0, 300, 65)) for _ in range(2))
    v = f4(rng.standard_normal(65))

    @tg.trace
    def step(table: Any) -> Any:
        first = table.index_add(0, i, v)
        second = first.index_add(0, j, v * 2)
        third = first.index_add(0, i, second[j])               # reads both
        return third, (first * 3).cumsum(0), second

    table = rng.standard_normal(300)
    first = table.copy()
    np.add.at(first, i.numpy(), v.numpy())
    second, third = first.copy(), first.copy()
    np.add.at(second, j.numpy(), 2 * v.numpy())
    np.add.at(third, i.numpy(), second[j.numpy()])
    for found, expected in zip(step(f4(table)), (third, np.cumsum(3 * first), second), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def inserted(x: Any, k: Any, v: Any) -> Any:
    return x.index_copy(0, k.reshape(1), v.reshape(1))


BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "one element": lambda c, k: ((inserted(c[0], k, c[0][k] * 0.5 + c[0][(k + 1) % c[0].shape[0]]), c[1]), c[0][k]),
    "read before and after": lambda c, k: ((inserted(c[0], k, c[0].mean()), c[1]), c[0].sum() + inserted(c[0], k, c[0].mean()).max()),
    "several": lambda c, k: ((inserted(inserted(c[0], k, c[1][k]), k // 2, c[0][k]), c[1].index_add(0, k.reshape(1), c[0][:1])), c[1][k]),
    "exchanged": lambda c, k: ((inserted(c[1], k, c[0][k] + 1), inserted(c[0], k, c[1][k] - 1)), c[0][0]),
    "all of it later": lambda c, k: ((inserted(c[0], k, c[1][k]) * 0.99, inserted(c[1], k, c[0][k])), c[0][k]),
    "the old one is kept": lambda c, k: ((inserted(c[0], k, c[1][k] + 1), c[0]), c[1][k]),
}


@pytest.mark.parametrize("n", [65, 20_000])
@pytest.mark.parametrize("body", BODIES)
def test_a_loop_changes_elements_of_its_carries(body: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, iterate = np.random.default_rng(n), BODIES[body]
    a, b = (tg.tensor(rng.standard_normal(n), requires_grad=True) for _ in range(2))
    ks = tg.tensor(rng.integers(0, n, 33))

    @tg.trace
    def loop(a: Any, b: Any, ks: Any) -> Any:
        (c, d), rows = tg.scan(iterate, (a, b), ks)
        return c, d, rows, *tg.autograd.grad((c * d).sum() + rows.sum() ** 2, (a, b), allow_unused=True, materialize_grads=True)

    results = loop(a, b, ks)
    monkeypatch.setattr(tg.config, "eager", True)
    c, rows = (a, b), []
    for k in ks:
        c, row = iterate(c, k)
        rows.append(row)
    rows = tg.stack(rows)
    wanted = *c, rows, *tg.autograd.grad((c[0] * c[1]).sum() + rows.sum() ** 2, (a, b), allow_unused=True, materialize_grads=True)
    for found, expected in zip(results, wanted, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fill", [lambda p: p.data.fill_(2.0), tg.nn.init.zeros_, lambda p: tg.nn.init.constant_(p, 2.0)])
def test_what_is_filled_with_a_number_keeps_its_value_when_frozen(fill, device):
    for _ in range(3):
        weights = [tg.nn.Parameter(tg.randn(12)) for _ in range(2)]
        for w in weights:
            fill(w)
            w.requires_grad_(w.detach().sum().item() < 0)       # its value is known, and what it was made of is forgotten
            w.requires_grad_()
        with tg.no_grad():
            weights[1] += 1.0
        (weights[0] * weights[1]).sum().backward()
        first, second = (w.detach().numpy() for w in weights)
        assert (second == first + 1.0).all()
        assert (weights[0].grad.numpy() == second).all()
        assert (weights[1].grad.numpy() == first).all()
