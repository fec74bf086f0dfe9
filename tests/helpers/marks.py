"""Which of a test's cases `make test` runs, and which only .ci/run and `make test-all`: a driver builds for seconds what runs for none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(count: int, names: str | tuple[str, ...], cases: Iterable[Any], first: int = 0, **more: Any) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize(names, cases)`, where of `count` cases one after the other all are marked long but number `first`."""
    cases = list(cases)
    if isinstance(names, str):
        cases = [(case,) for case in cases]
    return pytest.mark.parametrize(names, [
        pytest.param(*case, marks=() if k % count == first else pytest.mark.long) for k, case in enumerate(cases)
    ], **more)
