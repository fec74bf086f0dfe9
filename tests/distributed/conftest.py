"""`ranks`: runs a program on several ranks. Where MPI cannot be had, its tests are skipped, with the reason."""

from __future__ import annotations

import pytest

from tests.helpers.ranks import MPIEXEC, run, why_not


@pytest.fixture
def ranks():
    """ranks(count, text, code=0, seconds=100, options=()): runs BEGIN and the text on so many ranks, and returns what they printed."""
    if why_not():
        pytest.skip(f"several ranks: {why_not()}")

    def start(count, text, code=0, seconds=100, options=()):
        return run([MPIEXEC, *options, "-n", str(count)], text, code, seconds)

    return start
