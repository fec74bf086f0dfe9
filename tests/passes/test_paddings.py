"""Sums of many paddings are put together once (tracegrad/passes/paddings.py): to the last bit, signs of zeros included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.execute.test_plan_files import graph_of, planned
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.codegen.compiler import limits
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.passes import paddings as passes
from tracegrad.support.tuning import Tuning, tuned

SOME = {name: TARGETS[name] for name in ("avx2", "gpu")}


def paddings(graph: Graph) -> Graph:
    """As kernels have it."""
    return passes.paddings(graph, limits())


def names(graph: Graph) -> list[str]:
    return [node.fn.name for node in graph]


def op(name: str, *operands: Any, **attrs: Any) -> Any:
    return bind(REGISTRY[name], operands, attrs)


def random_sum(rng: np.random.Generator, dtype: str) -> tuple[Graph, list[np.ndarray]]:
    """A tree of additions of paddings along one dimension, apart and not, and of other values."""
    shape, dim = [(12, 5), (65,), (3, 130)][rng.integers(3)], 0
    dim = len(shape) - 1 if shape[0] == 3 else 0
    inputs, arrays, terms = [], [], []
    many, at = int(rng.integers(8, 20)), 0
    for _ in range(many):
        width = int(rng.integers(1, max(2, shape[dim] // many)))
        low = at if rng.random() < 0.8 else int(rng.integers(0, shape[dim] - width + 1))
        low = min(low, shape[dim] - width)
        at = low + width
        whole = rng.random() < 0.04
        own = shape if whole else (*shape[:dim], width, *shape[dim + 1:])
        x = placeholder(Aval(own, np.dtype(dtype)))
        values = rng.choice(np.array([0.0, -0.0, 1.0, -1.0, 0.1, 3e-7, np.nan, np.inf]) if dtype[0] == "f" else np.arange(-3, 4), own)
        inputs.append(x)
        arrays.append(values.astype(dtype))
        pads = [(low if d == dim else 0, shape[dim] - low - width if d == dim else 0) for d in range(len(shape))]
        terms.append(x if whole else op("pad", x, low=tuple(a for a, _ in pads), high=tuple(b for _, b in pads), interior=(0,) * len(shape),
                                        value=0.0))
    while len(terms) > 1:
        i = int(rng.integers(len(terms) - 1)) if rng.random() < 0.3 else 0
        terms[i:i + 2] = [op("add", *(terms[i:i + 2] if rng.random() < 0.7 else terms[i:i + 2][::-1]))]
    return Graph.capture(inputs, terms), arrays


@pytest.mark.parametrize("seed", range(60))
def test_bits(seed):
    rng = np.random.default_rng(seed)
    graph, arrays = random_sum(rng, ("float64", "float32", "int32")[seed % 3])
    with tuned(Tuning(put_together=(48, 3)[seed % 2])):
        found = paddings(graph)
    if "pad" not in names(found):
        assert "concat" in names(found)
    with np.errstate(all="ignore"):
        (a,), (b,) = (interpret(g, arrays) for g in (graph, found))
    a, b = np.asarray(a), np.asarray(b)
    assert (np.isnan(a) == np.isnan(b)).all() if a.dtype.kind == "f" else True
    assert np.where(a == a, a, 0).tobytes() == np.where(b == b, b, 0).tobytes()


def test_most_of_those_are_put_together():
    graphs = [random_sum(np.random.default_rng(seed), "float32")[0] for seed in range(60)]
    assert sum("pad" not in names(paddings(graph)) for graph in graphs) > 20
    assert sum("pad" in names(paddings(graph)) for graph in graphs) > 2           # too many on top of each other


def gradient(iterations: int) -> Any:
    """Of a loop that reads a row of x in each iteration, and its square."""
    def loss(x: Any) -> Any:
        h = x[0] * 0.0
        for i in range(iterations):
            h = (h * 0.9).sin() + x[i] + 0.001 * x[i] * x[i]
        return h.sum()

    return tg.grad(loss)


@pytest.mark.parametrize(("iterations", "width"), [(7, 3), (8, 3), (12, 1), (65, 2)])
def test_the_gradient_of_a_loop(iterations, width, on_numpy):
    x = tg.tensor(np.random.default_rng(0).standard_normal((iterations, width)))
    with Checked(SOME if iterations < 65 else {"avx2": TARGETS["avx2"]}) as checked:
        tg.trace(gradient(iterations))(x)
    assert checked.count


def test_a_longer_loop_has_no_more_kernels(on_numpy):
    def kernels(iterations: int) -> int:
        return len(planned(graph_of(gradient(iterations), np.ones((iterations, 1)))).functions)

    assert kernels(100) <= 16
    assert kernels(200) <= 20                            # of the sum of paddings alone there were 25


@pytest.mark.parametrize("changed", ["dims", "interior", "value", "negative"])
def test_other_paddings_stay(changed):
    """Along several dimensions, with gaps, of other numbers, and those that take something away."""
    inputs = [placeholder(Aval((2, 2), np.dtype("float32"))) for _ in range(12)]
    last = len(inputs) - 1
    terms = []
    for i, x in enumerate(inputs):
        low, high, interior, value = [2 * i, 0], [2 * (last - i), 0], [0, 0], 0.0
        if changed == "dims" and i == last:
            inputs[i] = x = placeholder(Aval((24, 1), np.dtype("float32")))
            low, high = [0, 0], [0, 1]
        elif changed == "interior" and i == 0:
            inputs[i] = x = placeholder(Aval((1, 2), np.dtype("float32")))
            low, high, interior = [0, 0], [23, 0], [1, 0]
        elif changed == "value":
            value = -0.0
        elif changed == "negative":
            inputs[i] = x = placeholder(Aval((2, 3), np.dtype("float32")))
            high[1] = -1
        terms.append(op("pad", x, low=tuple(low), high=tuple(high), interior=tuple(interior), value=value))
    total = terms[0]
    for term in terms[1:]:
        total = op("add", total, term)
    graph = Graph.capture(inputs, [total])
    if changed == "interior":                            # nothing is between one element's neighbours
        assert names(paddings(graph)).count("pad") == 1
    else:
        assert names(paddings(graph)) == names(graph)
