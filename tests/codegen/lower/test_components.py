"""Arrays with a short last dimension, as scientists write coordinates: pairs of particles, means, weights; for all targets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.support.tuning import Tuning, tuned


def pairs(x: Any) -> Any:
    """A pair potential."""
    apart = x[:, None, :] - x[None, :, :]
    return (1.0 / ((apart * apart).sum(-1) + 0.5)).sum()


def springs(x: Any) -> Any:
    """Forces that are added up by hand, with a weight for each pair."""
    apart = x.unsqueeze(1) - x.unsqueeze(0)
    near = tg.exp(-(apart ** 2).sum(-1, keepdim=True))
    force = near * apart
    return (force.sum(1) ** 2).sum() + (force.sum(0) * x).sum() + (force.amax(0) * x).sum()


def clouds(x: Any) -> Any:
    """Moments of points, all and in two halves, and how far they are from the mean."""
    mean = x.mean(0)
    away = (x - mean) / (1.0 + ((x - mean) ** 2).sum(-1, keepdim=True)).sqrt()
    half = x[: len(x) // 2 * 2].reshape(2, -1, x.shape[-1])
    return (away ** 3).sum(0).sum() + (half.mean(1) ** 2).sum() + (half.amin(1) * half.amax(1)).sum() + (away[:, 0] * away[:, -1]).sum()


def moments(x: Any) -> Any:
    """Of what is read twice, kept and summed: the components may not be all that is needed."""
    y = tg.tanh(x[:, None, :] * x[None, :5, :].sum(-1, keepdim=True))
    return (y.sum(0) ** 2).sum() + y.prod(1).sum() + (y * y).sum() + (y[..., 0].cumsum(0) ** 2).mean()


PROGRAMS: dict[str, Callable[[Any], Any]] = {f.__name__: f for f in (pairs, springs, clouds, moments)}
SIZES = [(7, 3), (16, 2), (33, 1), (17, 5), (17, 3), (33, 4), (33, 3), (100, 3), (7, 7), (17, 8)]


@one_of(7, ("name", "size"), product(PROGRAMS, SIZES), first=1)
def test_kernels_compute_what_the_interpreter_does(name: str, size: tuple[int, int], on_numpy: None) -> None:
    """Value, gradient and second derivative."""
    count, n = size
    choice = count + 3 * n + list(PROGRAMS).index(name)
    rng = np.random.default_rng(choice)
    dtype = "float64" if choice % 2 else "float32"
    x, v = (tg.tensor(rng.normal(size=(count, n)).astype(dtype)) for _ in range(2))

    @tg.trace
    def step(x: Any, v: Any) -> Any:
        value, g = tg.value_and_grad(PROGRAMS[name])(x)
        return value, g, tg.grad(lambda x: (tg.grad(PROGRAMS[name])(x) * v).sum())(x)

    tuning = Tuning(few_components=0)
    if choice % 3 == 0:
        tuning = Tuning(few_components=100, components=(0, 2, 4, 8)[choice % 4], long_row=(16, 8192)[choice % 2])
    with Checked(dict(list(TARGETS.items())[choice % 3::3]), tuning=tuning, slack=64.0) as checked:
        step(x, v)
    assert checked.count


@one_of(5, ("n", "dtype"), product([1, 2, 3, 4, 5, 8], ["float32", "float64", "int32", "int64", "uint8", "float16", "bool"]))
def test_reductions_that_keep_components(n: int, dtype: str, on_numpy: None) -> None:
    """Of stored arrays, over the first, the middle and all but the last dimension, also of slices, for every dtype."""
    rng = np.random.default_rng(n)
    x = tg.tensor(rng.integers(0, 5, size=(5, 33, n)).astype(dtype))

    @tg.trace
    def step(x: Any) -> Any:
        found = [x.amax(1), x.amin((0, 1)), x[:, 1:].amax(1), x.flip(-1).amax(1), x[:, :, :-1].amax(1) if n > 1 else x.amin(1)]
        if dtype != "bool":
            found += [x.sum(1), x.sum((0, 1)), x[:, ::2].sum(1)]
        return found

    with Checked(slack=4.0, tuning=Tuning(few_components=0)) as checked:
        step(x)
    assert checked.count


def test_few_elements_are_one_reduction() -> None:
    """The gradient of a bias of two, over a small batch, is no faster for its components: it is what it is without them."""
    model = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))

    def planned(**numbers: int) -> str:
        @tg.trace
        def step(y: Any) -> Any:
            for _ in range(2):
                k = model(y)
                y = y + 0.1 * (k + model(y + 0.5 * k))
            return tg.autograd.grad((y ** 2).mean(), list(model.parameters()))

        with tuned(Tuning(**numbers)):
            step(tg.ones(64, 2))
        return step.plan.source

    assert planned() == planned(components=0) != planned(few_components=0)


def test_forces_between_particles_share_their_passes() -> None:
    """Energy and forces are made in passes over the pairs that know nothing of coordinates: whole vectors, no gather, no loop of three.
    Only the forces are written three apart.
    """

    @tg.trace
    def step(x: Any) -> Any:
        return tg.value_and_grad(pairs)(x)

    step(tg.randn(256, 3))
    text = str(step.kernels()).replace("STORE_STRIDED", "")
    assert not [word for word in ("GATHER", "STRIDED", "< 3;", "% 3", "/ 3") if word in text]
    assert text.count("__kernel") == 2


@pytest.mark.parametrize("n", [3, 4])
def test_on_the_device(n: int) -> None:
    """What the driver's compiler makes of vectors that are picked from others."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(129, n))

    @tg.trace
    def step(x: Any) -> Any:
        return tg.value_and_grad(pairs)(x)

    value, g = step(tg.tensor(x))
    apart = x[:, None] - x[None]
    s = (apart ** 2).sum(-1) + 0.5
    np.testing.assert_allclose(value.item(), (1 / s).sum(), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(g), (-4 * apart / s[..., None] ** 2).sum(1), rtol=1e-9, atol=1e-11)
