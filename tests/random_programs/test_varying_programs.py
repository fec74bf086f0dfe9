"""Random programs at several sizes: kernels whose sizes vary compute what those for one size do, bit by bit, and keep their promises.

(`config.check` is on in tests, so each kernel is proved for its own numbers.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tracegrad as tg
from tests.random_programs.random_programs import FLOATS, Program, programs

LONG = settings.default is not None and settings.default.max_examples > 100
SIZES = (5, 6, 8, 13, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65, 100, 129, 200, 517)


def resized(arrays: dict[str, Any], n: int) -> list[Any]:
    """The arrays with n in place of the number of columns that the program was drawn for."""
    columns = arrays["k0"].shape[1]
    return [np.resize(a, tuple(n if size == columns else size for size in a.shape)) for a in arrays.values()]


def called(program: Program, fn: Any, n: int) -> list[Any]:
    """The results of a call with n columns, and what became of the inputs."""
    args = [tg.tensor(a) for a in resized(program.inputs[0], n)]
    results = fn(*args, FLOATS[0])
    return [t.detach().numpy() for t in (*results, *args)]


@settings(max_examples=400 if LONG else 3, suppress_health_check=list(HealthCheck))
@given(programs(), st.lists(st.sampled_from(SIZES), min_size=3, max_size=4, unique=True))
def test_a_program_at_several_sizes(program: Program, sizes: list[int]) -> None:
    if tg.device().kind == "numpy":
        pytest.skip("has no kernels")
    assume(program.inputs[0]["k0"].shape[1] > 1)
    fixed, any_size = tg.trace(program.function()), tg.trace(program.function(), dynamic=True)
    for n in sizes:
        try:
            wanted = called(program, fixed, n)
        except (tg.TracegradError, ValueError, IndexError):   # the program says a size
            continue
        for k, (f, w) in enumerate(zip(called(program, any_size, n), wanted, strict=True)):
            assert (f.shape, f.dtype) == (w.shape, w.dtype), program
            assert np.array_equal(f, w, equal_nan=w.dtype.kind in "fc"), f"result {k} for {n} columns, after {sizes}, of\n{program!r}"
