"""Sums of all of an array, read in shorter rows: of what is broadcast, shifted, turned (codegen/graph/reductions.py)."""

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import Checked
from tests.helpers.marks import one_of
from tracegrad.codegen.graph.reductions import _run

A, B, C = (120, 90), (120, 1), (90,)
PROGRAMS = {
    "columns": (lambda x, y, z: x * z, 90),
    "rows": (lambda x, y, z: x * y, 90),
    "outer": (lambda x, y, z: abs(y - z), 90),
    "shifted": (lambda x, y, z: (x[:, 1:] - x[:, :-1]) ** 2, 89),
    "shifted rows": (lambda x, y, z: (x[1:] - x[:-1]) ** 2, 119 * 90),
    "rolled": (lambda x, y, z: x * x.roll(3, 1), 90),
    "flipped": (lambda x, y, z: x * x.flip(1), 90),
    "padded": (lambda x, y, z: tg.nn.functional.pad(x, (1, 2)) + 2, 93),
    "transposed": (lambda x, y, z: x.T * tg.cat([z, z[:30]]), 120),
    "channels": (lambda x, y, z: x.reshape(8, 15, 9, 10) * z[:15].reshape(15, 1, 1), 90),
    "pairs": (lambda x, y, z: abs(x[:, None, :8] - x[:100, :8]), 8),
    "triples": (lambda x, y, z: abs(x[:, None, :3] - x[:100, :3]), 3),
    "distances": (lambda x, y, z: ((x[:, None, :6] - x[:100, :6]) ** 2).sum(2), 100),
    "distances of two sums": (lambda x, y, z: abs(x[:, None, :6] - x[:100, :6]).reshape(120, 100, 2, 3).sum(3).amax(2), 100),
    "distances of many": (lambda x, y, z: abs(x[:, None, :30] - x[:100, :30]).sum(2), 120 * 100),
    "middle sums": (lambda x, y, z: abs(x[:, :6, None] - z[:70]).sum(1), 120 * 70),
    "together": (lambda x, y, z: tg.cat([x, x * 2], 1), 180),
    "whole": (lambda x, y, z: tg.exp(x.reshape(90, 120)), 120 * 90),
    "windows": (lambda x, y, z: x.unfold(1, 5, 1) * 2, 120 * 86 * 5),
    "one number": (lambda x, y, z: x + y[0], 120 * 90),
}


@pytest.fixture
def on_numpy():
    previous = tg.device()
    tg.set_device("numpy")
    yield
    tg.set_device(previous)


def inputs():
    rng = np.random.default_rng(0)
    return [tg.from_numpy(rng.standard_normal(shape)) for shape in (A, B, C)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs(name):
    of, run = PROGRAMS[name]
    found = []

    def f(*given):
        y = of(*given)
        found.append(_run(y._node()))
        return y

    tg.trace(f)(*inputs())
    assert found == [run]


@one_of(7, ("name", "reduced"), [(name, reduced) for name in PROGRAMS for reduced in ("sum", "amax")])
def test_values(name, reduced, on_numpy):
    """Kernels of all targets, without a driver."""
    x, y, z = inputs()
    of = PROGRAMS[name][0]
    with Checked() as checked:
        got = tg.trace(lambda *given: getattr(of(*given), reduced)())(x, y, z)
        np.testing.assert_allclose(got.numpy(), getattr(np, reduced)(of(x, y, z).numpy()), rtol=1e-11)
    assert checked.count


@pytest.mark.skipif(tg.device().kind != "cpu", reason="vectors are a CPU's")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in
                                  ("padded", "together", "transposed", "triples", "windows", "middle sums")])
def test_no_vector_is_read_lane_by_lane(name):
    f = tg.trace(lambda *given: PROGRAMS[name][0](*given).sum())
    f(*inputs())
    assert "GATHER" not in str(f.kernels())
    assert "_IF(" not in str(f.kernels())


COLUMNS = {                                                  # sums over the first dimension of (20, 30, 40)
    "pairs": lambda a, b: abs(a[:, None] - b),
    "shifted": lambda a, b: a[:, None] * (b.roll(1, 1) + b),
    "matrices": lambda a, b: a[:, None] * b.T.reshape(30, 40),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_read_in_their_runs(name, on_numpy):
    rng = np.random.default_rng(0)
    a, b = (tg.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((20, 40), (30, 40)))
    with Checked() as checked:
        got = tg.trace(lambda a, b: COLUMNS[name](a, b).sum(0))(a, b)
        np.testing.assert_allclose(got.numpy(), COLUMNS[name](a, b).numpy().sum(0), rtol=1e-4, atol=1e-4)
    assert checked.count


@pytest.mark.skipif(tg.device().kind != "cpu", reason="vectors are a CPU's")
def test_no_vector_of_columns_is_read_lane_by_lane():
    f = tg.trace(lambda a, b: COLUMNS["pairs"](a, b).sum(0))
    f(tg.rand(20, 40), tg.rand(30, 40))
    assert "GATHER" not in str(f.kernels())
    assert "_IF(" not in str(f.kernels())
