"""`import tracegrad`: what it loads, and what only when somebody asks for it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.ops.arguments import _parameters
from tracegrad.support.plan import Fault, Iteration, Offset, Slot

ROOT = Path(__file__).parents[2]
LATER = ("array_api", "distributed", "distributions", "func", "jiterator", "masked", "nn", "optim")


def alone(*lines: str) -> str:
    """What these lines print in a process of their own."""
    done = subprocess.run([sys.executable, "-c", "\n".join(["import sys", *lines])], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_first_line_loads_no_more_than_it_needs():
    loaded = alone("import tracegrad as tg", "str(tg.ones(3) * 2)", "print(*sys.modules)").split()
    assert "tracegrad.tensors.tensor" in loaded
    assert not {f"tracegrad.{name}" for name in LATER} & {*loaded}
    assert not {"numpy.random", "fractions", "statistics", "networkx"} & {*loaded}


@one_of(3, "lines", [
    ["import tracegrad as tg", "print(tg.nn.Linear(2, 3).weight.shape)"],
    ["import tracegrad.nn", "print(tracegrad.nn.Linear(2, 3).weight.shape)"],
    ["from tracegrad import nn", "print(nn.Linear(2, 3).weight.shape)"],
    ["from tracegrad import *", "print(nn.Linear(2, 3).weight.shape)"],
    ["import tracegrad as tg", "print(tg.ones(3, 2).__array_namespace__().ones((3, 2)).shape)"],
    ["import tracegrad as tg", "f = tg.trace(lambda x: tg.nn.functional.relu(x))", "f(tg.ones(3, 2))", "f(tg.ones(3, 2))",
     "assert f.compilations == ['first call']", "print(f(tg.ones(3, 2)).shape)"],
])
def test_asked_for(lines):
    assert alone(*lines) == "(3, 2)"


def test_saved_and_loaded(tmp_path):
    """Before anything of nn is loaded, and after a pickled module was."""
    model = nn.Linear(3, 2)
    tg.save(model.state_dict(), tmp_path / "weights")
    (tmp_path / "module").write_bytes(pickle.dumps(model))
    read = alone("import tracegrad as tg", f"print(tg.load({str(tmp_path / 'weights')!r})['weight'].tolist())")
    pickled = alone("import pickle", f"print(pickle.load(open({str(tmp_path / 'module')!r}, 'rb')).weight.tolist())")
    assert read == pickled == str(model.weight.tolist())


def test_names():
    assert {*LATER, "load", "save"} <= {*dir(tg)} & {*tg.__all__}
    assert tg.__all__ == sorted(tg.__all__)
    for name in LATER:
        assert getattr(tg, name).__name__ == f"tracegrad.{name}"
    with pytest.raises(AttributeError, match="tracegrad has no 'optimum'"):
        tg.optimum


def test_parameters_as_inspect_has_them():
    Array = object

    def f(x: Array, other: Array, *sizes: Array, dim: int, of: Array, last: Array = 3) -> None: ...
    def g(x: Array, n: int = 1, y: Array = None, **more: int) -> None: ...
    places, rest, arrays = _parameters(f)
    assert (places, rest) == ({"x": 0, "other": 1, "sizes": 2, "dim": 3, "of": 4, "last": 5}, "sizes")
    assert arrays == [(0, "x"), (1, "other"), (4, "of")]
    assert _parameters(g) == ({"x": 0, "n": 1, "y": 2}, None, [(0, "x")])


def test_plain_data():
    """Equal by class and fields, hashed and shown by them."""
    assert Iteration(1) == Iteration(1) != Iteration(2)
    assert Iteration(1) != Offset(1) != Fault(1)
    assert len({Iteration(1), Iteration(1), Offset(1)}) == 2
    slot = Slot("temp", (2, 3), np.dtype("f4"), block=1)
    assert slot == eval(repr(slot), {"Slot": Slot, "dtype": np.dtype})
    assert slot.nbytes == 24
