"""Which of a test's cases `make test` runs, and which only .ci/run and `make test-all`: a driver builds for seconds what runs for none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

DEVICES, RUNS = ("default", "eager", "numpy"), ("untraced", "traced")       # what the fixtures `device` and `run` of tests/conftest.py are


def one_of(count: int, names: str | tuple[str, ...], cases: Iterable[Any], first: int = 0, **more: Any) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize(names, cases)`, where of `count` cases one after the other all are marked long but number `first`.

    Of two things that are crossed, `itertools.product(a, b)` with a count that shares no factor with len(b) leaves each of both in. The
    fixtures `device` and `run` may be among them: `indirect=["device"]`.
    """
    cases = list(cases)
    if isinstance(names, str):
        cases = [(case,) for case in cases]
    return pytest.mark.parametrize(names, [
        pytest.param(*case, marks=() if k % count == first else pytest.mark.long) for k, case in enumerate(cases)
    ], **more)
