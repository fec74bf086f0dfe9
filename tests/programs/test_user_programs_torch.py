"""user_, field_, method_, model_, science_ and training_programs.py give what torch gives, to 1e-9: in all ways to run them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tracegrad as tg

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")

import tests.programs.field_programs  # noqa: E402  (after the check for torch, as its neighbours; it adds to the two lists)
import tests.programs.method_programs  # noqa: E402
import tests.programs.model_programs  # noqa: E402
import tests.programs.science_programs  # noqa: E402
import tests.programs.training_programs  # noqa: E402, F401
from tests.programs.user_programs import PROGRAMS, TRAININGS  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
Wrap = Callable[[Any], Any]


@pytest.fixture(params=["interpreted", "interpreted, traced", "eager", "eager, traced"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wrap]:
    previous = tg.device()
    if "eager" in request.param:
        monkeypatch.setattr(tg.config, "eager", True)
    else:
        tg.set_device("numpy")
    yield tg.trace if "traced" in request.param else lambda f: f
    tg.set_device(previous)


def run(T: Any, name: str, wrap: Wrap) -> tuple[list[Any], list[Any]]:
    """(results, gradients of the first of them)."""
    fn, arrays = PROGRAMS[name]
    tensors = [T.tensor(a, requires_grad=a.dtype.kind in "fc") for a in arrays]
    out = wrap(lambda *args: fn(T, *args))(*tensors)
    out = list(out) if isinstance(out, (tuple, list)) else [out]
    out[0].backward()
    return [o.detach().numpy() for o in out], [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in tensors]


def same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), i
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * max(1.0, float(np.abs(b).max(initial=0.0))), err_msg=str(i))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, way: Wrap) -> None:
    for found, wanted in zip(run(tg, name, way), run(torch, name, lambda f: f), strict=True):
        same(found, wanted)


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings(name: str, way: Wrap) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(TRAININGS[name](tg, way), TRAININGS[name](torch, lambda f: f))
