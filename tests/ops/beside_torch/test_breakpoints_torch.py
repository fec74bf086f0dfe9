"""Every function that torch has, too, at its breakpoints and beside them, compared with the installed torch: see
tests/ops/beside_torch/breakpoints.py.

A new public function is covered by being there. What is right there stands in tests/ops/test_ties.py also, for where torch is not
installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")

import tracegrad as tg  # noqa: E402  (after torch is known to be there)
from tests.ops.beside_torch import breakpoints  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_numpy"), pytest.mark.filterwarnings("ignore:index_reduce")]
CASES = dict(breakpoints.names())


@pytest.mark.parametrize("name", CASES)
def test_breakpoints_as_in_torch(name: str) -> None:
    found = [*breakpoints.found(name, CASES[name])]
    assert not found, "\n".join([f"{len(found)} differences:", *found[:10]])


def test_the_comparison_sees_what_differs() -> None:
    """A function whose gradient at the breakpoint is another one is found, and a call that torch takes is not left out."""

    def off(t: Any, F: Any, x: Any) -> Any:
        return x.relu() if t is torch else tg.where(x < 0, 0, x)

    lines = [*breakpoints.differences("off", off, [[-1.0, 0.0, 1.0]], torch, torch.nn.functional)]
    assert lines == ["gradient 0 at (0): 1.5, not 0", "direction 0 0 at (0): 1, not 0"]
    taken = [name for name, (fn, arrays) in breakpoints.CALLS.items() if not breakpoints.outcome(
        torch, lambda *xs, fn=fn: fn(torch, torch.nn.functional, *xs), arrays)["value"]]
    assert not taken


def test_every_deviation_stands_in_the_documents() -> None:
    text = " ".join((Path(__file__).parents[3] / "docs" / "differences.md").read_text().split())
    assert [why for _, _, why in breakpoints.DEVIATIONS if why not in text] == []
