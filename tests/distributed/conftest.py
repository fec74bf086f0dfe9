"""`ranks`: runs a program on several ranks. Where MPI cannot be had, its tests are skipped, with the reason."""

from __future__ import annotations

import time

import pytest

from tests.helpers.ranks import MPIEXEC, run, why_not


@pytest.fixture
def ranks():
    """ranks(count, text, code=0, seconds=100): runs BEGIN and the text on so many ranks, and returns what they printed."""
    if why_not():
        pytest.skip(f"several ranks: {why_not()}")

    def start(count: int, text: str, code: int = 0, seconds: float = 100) -> str:
        began = time.monotonic()
        told = run([MPIEXEC, "-n", str(count)], text, code, seconds)
        start.seconds = time.monotonic() - began
        return told

    return start
