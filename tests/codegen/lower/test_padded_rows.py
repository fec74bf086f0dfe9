"""Rows with something at their ends, read by kernels that are not peeled: they are stored. First the kernels, then values."""

import math
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import ops  # noqa: F401
from tracegrad.codegen.compiler import compile_graph
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.support.plan import Plan, Target


def op(name: str, *operands: Any, **attrs: Any) -> Any:
    return bind(REGISTRY[name], operands, attrs)


def plan_of(u: Node, y: Node) -> Plan:
    return compile_graph(Graph.capture([u], [y]), Target())


def _bilateral(p: Node, u: Node, columns: int, factor: float = -30.0) -> Any:
    """A filter of 3 x `columns` neighbours: each takes an exponential."""
    values = [op("slice", p, start=(dy, dx), stop=(dy + 200, dx + 256), step=(1, 1)) for dy in range(3) for dx in range(columns)]
    weights = [op("exp", (v - u) * (v - u) * factor) for v in values]
    pairs = zip(weights, values, strict=True)
    return reduce(add, [w * v for w, v in pairs]) / reduce(add, weights)


@pytest.mark.parametrize("kind", ["zeros", "reflected"])
def test_a_long_stencil_reads_rows_that_have_their_ends(kind: str) -> None:
    """Its loop would be three times as long if it were cut where the guards change, so the padded rows are stored, once."""
    u = placeholder(Aval((200, 256), np.dtype("float32")), "u")
    if kind == "zeros":
        p = op("pad", u, low=(1, 3), high=(1, 4), interior=(0, 0), value=0.0)
    else:
        ends = (op("slice", u, start=(0, at), stop=(200, at + n), step=(1, 1)) for at, n in ((1, 3), (251, 4)))
        left, right = (op("flip", end, dims=(1,)) for end in ends)
        p = op("pad", op("concat", left, u, right, dim=1), low=(1, 0), high=(1, 0), interior=(0, 0), value=0.0)
    plan = plan_of(u, _bilateral(p, u, 8))
    assert len(plan.launches) == 2
    second = plan.source.split("__kernel")[-1]
    assert "GATHER" not in second
    assert ("inside" in second) == (kind == "reflected")         # whether a whole row is there is one test for all lanes
    assert len(plan_of(u, _bilateral(p, u, 1)).launches) == 1    # a short one


def test_large_windows_of_padded_rows() -> None:
    """Those that are written out are peeled; of larger ones the element is known when the kernel runs, so the rows have their ends."""
    u = placeholder(Aval((200, 256), np.dtype("float32")), "u")
    p = op("pad", u, low=(0, 10), high=(0, 10), interior=(0, 0), value=0.0)
    large, small = (op("sum", op("unfold", p, dim=1, size=n, step=1, gap=1), dim=(2,)) for n in (21, 3))
    plan = plan_of(u, large)
    assert "GATHER8_IF" not in plan.source.split("__kernel")[-1]
    assert len(plan.launches) == 2
    assert len(plan_of(u, small).launches) == 1


def test_neighbours_that_are_stacked() -> None:
    """Each part of a list has lines of its own, in a loop that is not cut."""
    u = placeholder(Aval((200, 256), np.dtype("float32")), "u")
    p = op("pad", u, low=(0, 9), high=(0, 9), interior=(0, 0), value=0.0)
    parts = [op("reshape", op("slice", p, start=(0, at), stop=(200, at + 256), step=(1, 1)), shape=(1, 200, 256)) for at in range(18)]
    plan = plan_of(u, op("concat", *parts, dim=0))
    assert len(plan.launches) == 2
    assert "GATHER" not in plan.source.split("__kernel")[-1]


def bilateral(padded: Callable[[Any], Any], exp: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The filter of 5 x 5 neighbours of an image, of tracegrad or numpy."""
    def f(x: Any) -> Any:
        h, w = x.shape
        p = padded(x)
        total = weights = 0.0
        for dy in range(5):
            for dx in range(5):
                q = p[dy : dy + h, dx : dx + w]
                g = math.exp(-((dy - 2) ** 2 + (dx - 2) ** 2) / 8.0) * exp(-(q - x) ** 2 / 0.1)
                total, weights = total + g * q, weights + g
        return total / weights

    return f


NUMPYS = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@one_of(3, ("mode", "shape"), [(m, s) for m in NUMPYS for s in ((9, 33), (40, 64), (7, 5))])
def test_a_bilateral_filter_and_its_gradient(mode: str, shape: tuple[int, int]) -> None:
    def padded(x: Any) -> Any:
        return tg.nn.functional.pad(x[None, None], (2, 2, 2, 2), mode=mode)[0, 0]

    def padded_array(x: Any) -> Any:
        return np.pad(x, 2, mode=NUMPYS[mode])  # type: ignore[call-overload]

    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    exact = bilateral(padded_array, np.exp)
    f = tg.trace(bilateral(padded, tg.exp))
    np.testing.assert_allclose(f(tg.tensor(x)).numpy(), exact(x.astype(np.float64)), rtol=2e-5)
    direction = np.random.default_rng(1).standard_normal(shape)
    gradient = tg.trace(tg.func.grad(lambda x: (bilateral(padded, tg.exp)(x) ** 2).sum()))(tg.tensor(x)).numpy()
    high, low = ((exact(x.astype(np.float64) + h * direction) ** 2).sum() for h in (1e-5, -1e-5))
    np.testing.assert_allclose((gradient * direction).sum(), (high - low) / 2e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [5, 21])
def test_windows_of_a_padded_row(size: int) -> None:
    x = np.random.default_rng(0).standard_normal((6, 70)).astype(np.float32)
    f = tg.trace(lambda x: tg.nn.functional.pad(x, (size // 2, size // 2)).unfold(1, size, 1).exp().sum(-1))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (size // 2, size // 2))), size, axis=1)
    np.testing.assert_allclose(f(tg.tensor(x)).numpy(), np.exp(windows).sum(-1), rtol=1e-5)
