"""Lists of many parts put together: what Python loops make (trajectories, rows, tables). Their parts are computed side by side on CPUs."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracegrad as tg
from tests.helpers.kernels import Checked, random_target, random_tuning
from tests.helpers.marks import one_of
from tests.helpers.values import close

RNG = np.random.default_rng(31)


def draw(*shape: int, dtype: Any = tg.float64) -> Any:
    return tg.tensor(RNG.standard_normal(shape), dtype=dtype)


def _running(xs: list[Any]) -> list[Any]:
    out, c = [], xs[0] * 0
    for x in xs:
        c = 0.5 * c + x / (1 + x * x)
        out.append(c)
    return out


def _shifted(xs: list[Any]) -> list[Any]:
    """Parts that read others at other places."""
    out, c = [], xs[0]
    for k, x in enumerate(xs):
        c = (c.roll(1, -1) if k % 2 else c.flip(-1)) * 0.5 + x
        out.append(c)
    return out


def _several(xs: list[Any]) -> list[Any]:
    total = sum(x.sin() for x in xs[:3])
    return [x * total if k % 3 else x.cumsum(-1) for k, x in enumerate(xs)]


def _few(xs: list[Any]) -> list[Any]:
    """Some are the same, some are constants, some are inputs."""
    return [[x, xs[0] * 2, tg.ones_like(x), xs[-1].abs()][k % 4] for k, x in enumerate(xs)]


LISTS = {"running": _running, "shifted": _shifted, "several": _several, "few": _few}
BEHIND = {
    "stack": lambda y, dim: y,
    "elementwise": lambda y, dim: y * 2 + y.sin(),
    "other dimension": lambda y, dim: y.sum(1 - dim),
    "same dimension": lambda y, dim: y.amax(dim) - y.mean(dim),
    "transposed": lambda y, dim: (y.transpose(0, 1) * 3, y),
    "softmax": lambda y, dim: y.softmax(dim) + y,
    "product": lambda y, dim: y @ y.transpose(0, 1),
    "differences": lambda y, dim: y.diff(dim=dim),
    "flipped": lambda y, dim: y.flip(dim) + y.roll(1, dim),
}


def put_together(parts: list[Any], how: str, dim: int) -> Any:
    return tg.stack(parts, dim) if how == "stack" else tg.cat(parts, dim)


def ragged(parts: list[Any], dim: int, seed: int) -> Any:
    """Slices of some of the parts one behind the other, of lengths that differ."""
    rng = Random(seed)
    cuts = [rng.randrange(1, p.shape[dim] + 1) for p in parts]
    return tg.cat([p.narrow(dim, rng.randrange(p.shape[dim] - n + 1), n) for p, n in zip(parts, cuts, strict=True)], dim)


def as_list(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple) else [out]


SHAPES = [(8, 12, 0), (9, 1, 0), (9, 12, 1), (12, 130, 0), (12, 8, 1), (20, 3, 1), (20, 33, 0), (33, 4, 0), (65, 1, 0), (65, 3, 0)]


@one_of(17, ("shape", "name"), [(shape, name) for shape in SHAPES for name in LISTS])
def test_what_loops_put_together(shape: tuple[int, int, int], name: str) -> None:
    parts, inner, dim = shape
    single = (parts + inner + len(name)) % 2 == 0
    x = draw(parts, inner, dtype=tg.float32 if single else tg.float64)

    def fn(x: Any) -> Any:
        return tg.stack(LISTS[name](list(x.unbind(0))), dim)

    traced = tg.trace(lambda x: (fn(x), *tg.vjp(fn, x)[1](tg.cos(fn(x)))))(x)
    y, pull = tg.vjp(fn, x.double())
    close(traced[0], y, 2e-5 if single else 1e-11)
    close(traced[1], pull(y.cos())[0], 2e-4 if single else 1e-10)


@one_of(17, ("name", "behind"), [(name, behind) for behind in BEHIND for name in LISTS])
def test_what_is_done_with_them(name: str, behind: str) -> None:
    for parts, inner, dim in [(9, 12, 0), (17, 3, 1)] if len(name + behind) % 2 else [(20, 5, 0), (12, 20, 1)]:
        x = draw(parts, inner)

        def fn(x: Any, dim: int = dim) -> list[Any]:
            return as_list(BEHIND[behind](tg.stack(LISTS[name](list(x.unbind(0))), dim), dim))

        for found, wanted in zip(tg.trace(fn)(x), fn(x), strict=True):
            close(found, wanted.numpy(), 1e-11)

        def loss(x: Any, fn: Any = fn) -> Any:
            return sum((y * y).sum() for y in fn(x))

        close(tg.trace(tg.grad(loss))(x), tg.grad(loss)(x).numpy(), 1e-9)


@one_of(2, "rows", [1, 5, 33, 3000])
def test_rows_of_lists(rows: int) -> None:
    """Of lists of numbers in each row, and of vectors in the middle, in one work-item or many."""
    x, wide = draw(rows, 12), draw(12, rows, 7)

    def numbers(x: Any) -> Any:
        return tg.vmap(lambda r: tg.stack(_running(list(r.unbind(0)))))(x)

    def vectors(x: Any) -> Any:
        return tg.stack(_running(list(x.unbind(0))), 1)

    def joined(x: Any) -> Any:
        return tg.cat(_shifted(list(x.unbind(0))), 1)

    for fn, argument in ((numbers, x), (vectors, wide), (joined, wide)):
        close(tg.trace(fn)(argument), fn(argument).numpy(), 1e-11)


@pytest.mark.parametrize("n", [5000, 40000])
def test_long_parts_are_cut_in_chunks(n: int) -> None:
    x = draw(12, n)

    def fn(x: Any) -> Any:
        return tg.stack(_running(list(x.unbind(0)))), tg.stack(_shifted(list(x.unbind(0))), 1)

    for found, wanted in zip(tg.trace(fn)(x), fn(x), strict=True):
        close(found, wanted.numpy(), 1e-11)


@one_of(25, ("shape", "name"), [
    (shape, name) for shape in [(9, 12), (33, 7), (12, 3000), (10, 9000), (12, 65), (60, 100), (20, 3001)] for name in LISTS
])
def test_lists_of_parts_that_differ(shape: tuple[int, int], name: str) -> None:
    """Short ones that a work-item does together, and long ones that several do."""
    dim = (shape[0] + len(name)) % 2
    x = draw(shape[0], 5, shape[1] // 5 + 1) if dim else draw(*shape)

    def fn(x: Any) -> list[Any]:
        y = ragged(LISTS[name](list(x.unbind(0))), dim, shape[1])
        return [y, y * 2 + y.cos(), y.sum(dim)]

    def gradient(x: Any) -> Any:
        return tg.grad(lambda x: sum((y * y).sum() for y in fn(x)))(x)

    for found, wanted in zip(tg.trace(fn)(x), fn(x), strict=True):
        close(found, wanted.numpy(), 1e-10)
    exact = gradient(x).numpy()
    close(tg.trace(gradient)(x), exact, 1e-10 * max(1.0, float(np.abs(exact).max())))


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(9, 4), (12, 33), (10, 1900)])
def test_lists_on_every_driver(shape: tuple[int, int]) -> None:
    """In one work-item, in vectors with some left, and in several work-items."""
    x = draw(*shape, dtype=tg.float32)

    def fn(rows: list[Any], stack: Any, cat: Any) -> list[Any]:
        running = _running(rows)
        parts = [y[k % 3: len(y) - k % 2] for k, y in enumerate(running)]
        return [stack(running, 0), stack([y * 2 for y in running], 1), cat(parts), stack([cat(parts), cat(parts[::-1])], 0)]

    exact = fn(list(x.numpy().astype(np.float64)), np.stack, np.concatenate)
    for found, wanted in zip(tg.trace(lambda x: fn(list(x.unbind(0)), tg.stack, tg.cat))(x), exact, strict=True):
        close(found, wanted, 2e-5)


def test_a_trajectory_is_computed_once() -> None:
    """Not each part for all elements: the text has no test of which part an element is in, and each sine once."""
    fn = tg.trace(lambda x: tg.stack(_running(list(x.unbind(0)))))
    x = draw(30, 4)
    fn(x)
    text = str(fn.kernels())
    assert "inside" not in text
    assert "/ 4" not in text
    assert text.count("\n") < 300


def random_lists(rng: Random, x: Any) -> list[Any]:
    """A few lists of a random number of parts, some of which are made of others."""
    pool = [[x[k] for k in range(x.shape[0])]]
    for _ in range(rng.randrange(1, 4)):
        xs = list(rng.choice(pool))
        ys = LISTS[rng.choice(list(LISTS))](xs)
        if rng.random() < 0.4:
            ys = ys[rng.randrange(len(ys)):] or ys
        if rng.random() < 0.4:
            y = put_together(ys, rng.choice(["stack", "cat"]), 0)
            y = y.reshape(-1, x.shape[1]) if rng.random() < 0.5 else y.reshape(x.shape[1], -1).transpose(0, 1)
            ys = list((y * 2 if rng.random() < 0.5 else y).unbind(0))
        pool.append(ys)
    out: list[Any] = []
    for ys in pool[1:]:
        how, dim = rng.choice(["stack", "cat"]), rng.choice([0, 1])
        if rng.random() < 0.4 and ys[0].ndim:
            wide = rng.random() < 0.5
            y = ragged([tg.stack([p, p * 2]) for p in ys] if wide else ys, int(wide), rng.randrange(99))
            out.append(rng.choice([y, y.sin(), y.cumsum(0), y.flip(0) * 2, y.reshape(1, -1) + y.sum()]))
            continue
        y = put_together(ys, how, dim if how == "stack" else 0)
        out += as_list(rng.choice(list(BEHIND.values()))(y, dim) if y.ndim == 2 else y)
    return out


@given(rng=st.randoms(use_true_random=False))
def test_random_lists_for_random_devices_and_thresholds(rng: Random) -> None:
    shape, seed = (rng.choice([2, 4, 9, 13]), rng.choice([1, 2, 3, 4, 8, 11])), rng.randrange(1 << 30)
    target = random_target(rng, "cpu")
    before = tg.device()
    tg.set_device("numpy")
    try:
        x = tg.tensor(np.random.default_rng(seed).standard_normal(shape))
        with Checked({"random": target}, tuning=random_tuning(rng), slack=10.0):
            if rng.random() < 0.6:
                tg.trace(lambda x: tuple(random_lists(Random(seed), x)))(x)
            else:
                tg.trace(tg.grad(lambda x: sum((y * 0.1).sin().sum() for y in random_lists(Random(seed), x))))(x)
    finally:
        tg.set_device(before)


@pytest.mark.parametrize(("rows", "wide", "narrow", "rest"), [(600, 11, 4, 5000), (601, 8, 8, 4099), (4096, 1, 2, 70_001)])
def test_long_parts_put_together_of_rows_of_their_own(rows: int, wide: int, narrow: int, rest: int) -> None:
    """cat([cat([a, b], -1).flatten(), c]): the first part has rows of its own, and none of its elements asks which part it is in."""
    a, b, c = draw(rows, wide), draw(rows, narrow), draw(rest)

    @tg.trace
    def joined(a: Any, b: Any, c: Any) -> Any:
        return tg.cat([tg.cat([a, b], -1).flatten(), c]) * 2

    found = joined(a, b, c).numpy()
    wanted = 2 * np.concatenate([np.concatenate([a.numpy(), b.numpy()], -1).ravel(), c.numpy()])
    np.testing.assert_array_equal(found, wanted)
    if tg.device().kind == "cpu":
        assert "in 2 parts" in joined.explain()
    weights = draw(found.size)
    gradients = tg.trace(tg.grad(lambda a, b, c: (tg.cat([tg.cat([a, b], -1).flatten(), c]).sin() * weights).sum(), (0, 1, 2)))(a, b, c)
    first, last = np.split(weights.numpy(), [rows * (wide + narrow)])
    first = first.reshape(rows, -1)
    for found, x, w in zip(gradients, (a, b, c), (first[:, :wide], first[:, wide:], last), strict=True):
        np.testing.assert_allclose(found.numpy(), np.cos(x.numpy()) * w, rtol=1e-12)
