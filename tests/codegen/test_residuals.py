"""codegen.residuals: the least cut is the least cost there is, and what programs with a gradient then store."""

import re
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from networkx.algorithms.flow import preflow_push

import tracegrad as tg
import tracegrad.nn.functional as F
from tracegrad import ops  # noqa: F401
from tracegrad.autodiff import derivatives
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.schedule.access_maps import ONLY_IDENTITY
from tracegrad.codegen.schedule.rematerialization import SINK, SOURCE, rematerialized, sinks_side
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.support.plan import Plan, Target
from tracegrad.support.tuning import tuning


class Thing:
    """A stand-in for a node or a kernel."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def value(size: int) -> Thing:
    return Thing(aval=SimpleNamespace(nbytes=4 * size, size=size), dtype=np.dtype(np.float32), fn=SimpleNamespace(family=""))


def case(seed: int) -> Any:
    """A random chain of values that one kernel computes and another reads some of; inputs come first."""
    rng = np.random.default_rng(seed)
    values = [value(int(n)) for n in rng.choice([100, 200, 400, 800], 9)]
    inputs, inner = values[:2], values[2:]
    deps = {}
    for i, v in enumerate(inner):
        operands = sorted(rng.choice(2 + i, size=rng.integers(1, min(3, 2 + i) + 1), replace=False))
        deps[v] = dict.fromkeys((values[j] for j in operands), ONLY_IDENTITY)
    costs = {v: int(rng.integers(1, 40)) for v in inner}
    fixed = {v for v in inner if rng.random() < 0.2}
    maker = Thing(size=800, roots=inner, repeats=lambda maps: False, reads={v: frozenset((1,)) for v in inputs})
    wanted = [v for v in inner if rng.random() < 0.4] or inner[-1:]
    reader = Thing(size=800, roots=[], repeats=lambda maps: False, reads={v: frozenset((1,)) for v in (*wanted, *inputs[:1])})
    return inputs, inner, deps, costs, fixed, maker, reader, wanted


def price(stored: set[Any], inner: list[Any], deps: Any, costs: Any, maker: Any, reader: Any, wanted: list[Any]) -> float:
    """Bytes that the reader's kernel costs (arithmetic as bytes) if `stored` are read and everything else it needs is computed."""
    needed = set(wanted)
    for v in reversed(inner):
        if v in needed and v not in stored:
            needed |= set(deps[v])
    total = 0.0
    for v in needed:
        if v not in inner:
            total += 0 if v in reader.reads else v.aval.nbytes
        elif v in stored:
            total += 2 * v.aval.nbytes
        else:
            total += costs[v] * v.aval.size / tuning().flops_per_byte
    return total


@pytest.mark.parametrize("seed", range(40))
def test_the_cut_is_the_best_of_all_choices(seed: int) -> None:
    inputs, inner, deps, costs, fixed, maker, reader, wanted = case(seed)
    root = value(1)
    group_of = dict.fromkeys(inner, maker) | {root: reader}
    readers = {v: [reader] for v in wanted} | {v: [maker, reader] for v in inputs[:1]} | {inputs[1]: [maker]}
    free = [v for v in inner if v not in fixed]
    deps[root] = dict.fromkeys(wanted, ONLY_IDENTITY)
    again = rematerialized([*inner, root], group_of, deps, costs | {root: 1}, fixed | {root}, readers)
    best = min(price(set(chosen) | fixed, inner, deps, costs, maker, reader, wanted)
               for n in range(len(free) + 1) for chosen in combinations(free, n))
    assert price(set(inner) - again, inner, deps, costs, maker, reader, wanted) == pytest.approx(best)


def leaf(*shape: int, dtype: str = "float32") -> Node:
    return placeholder(Aval(shape, np.dtype(dtype)))


def plan_of(inputs: list[Node], outputs: list[Any]) -> Plan:
    return compile_graph(Graph.capture(inputs, outputs), Target())


def moved(plan: Plan) -> int:
    return sum(step.bytes for step in plan.launches)


def test_a_long_chain_is_not_kept_link_by_link() -> None:
    """Thirty links, each needed by its derivative: a few are stored, and the rest are computed again from those."""
    x = leaf(1 << 20)
    v = derivatives.variable(x)
    y = v
    for _ in range(30):
        y = (y * 1.1 + 0.1).tanh() * y
    gradient, = derivatives.vjp([y], [v], [derivatives.ones_like(y)])
    assert moved(plan_of([x], [gradient])) < 20 * x.aval.nbytes


def test_cheap_activations_are_rematerialized_and_products_are_not() -> None:
    x, w, u = leaf(256, 128), leaf(128, 512), leaf(512, 64)
    leaves = [derivatives.variable(n) for n in (x, w, u)]
    hidden = F.gelu(bind(REGISTRY["matmul"], (leaves[0], leaves[1]), {}))
    out = bind(REGISTRY["matmul"], (hidden, leaves[2]), {})
    gradients = derivatives.vjp([out], leaves, [derivatives.ones_like(out)])
    plan = plan_of([x, w, u], [out, *gradients])
    stored = [s for s in plan.slots if s.kind == "temp" and s.shape == (256, 512)]
    assert plan.source.count("256x512x128 product") == 1
    assert len(stored) <= 3              # x @ w, its gelu (a product's operand), and the gradient there: no intermediate of gelu


def test_gathers_are_never_made_twice() -> None:
    table, index, w = leaf(1000, 64), leaf(512, dtype="int64"), leaf(64, 64)
    rows = bind(REGISTRY["take"], (table, index), {}) * 2.0
    y = bind(REGISTRY["matmul"], (rows, w), {})
    z = bind(REGISTRY["matmul"], (rows + y, w), {})
    plan = plan_of([table, index, w], [z])
    assert sum("1000" in kernel or "999" in kernel for kernel in plan.source.split("__kernel")[1:]) == 1


def test_random_draws_are_never_made_twice() -> None:
    @tg.trace
    def step(x: Any, w: Any) -> Any:
        return tg.grad(lambda w: (F.dropout(x @ w, 0.5) ** 2).sum())(w)

    step(tg.randn(128, 64), tg.randn(64, 96))
    kernels = str(step.kernels()).split("__kernel")[1:]
    assert sum("tg_philox" in kernel for kernel in kernels) == 1


@pytest.mark.parametrize("seed", range(40))
def test_the_sinks_side_is_that_of_a_least_cut(seed: int) -> None:
    """Random networks, some with edges given twice and edges both ways, no path without a limit."""
    rng = np.random.default_rng(seed)
    nodes = [SOURCE, *range(int(rng.integers(1, 40))), SINK]
    edges = [(nodes[a], nodes[b], None if 0 < a and b < len(nodes) - 1 and rng.random() < 0.3 else int(rng.integers(0, 9)))
             for a, b in rng.integers(0, len(nodes), (int(rng.integers(0, 6 * len(nodes))), 2)) if a != b and b and a < len(nodes) - 1]
    network = nx.DiGraph()
    network.add_nodes_from((SOURCE, SINK))
    for a, b, capacity in edges:
        network.add_edge(a, b)
        network[a][b].clear()
        network[a][b].update({} if capacity is None else {"capacity": capacity})
    value, (_, there) = nx.minimum_cut(network, SOURCE, SINK, flow_func=preflow_push)
    found = sinks_side(edges)
    assert found == there
    final = {(a, b): c for a, b, c in edges}
    assert sum(c for (a, b), c in final.items() if a not in found and b in found) == value


def test_a_short_sum_is_computed_once_where_many_elements_read_it() -> None:
    """The gradient of the distance to the nearest centre: each of the 16 coordinates' elements reads one sum of 16 terms."""
    @tg.trace
    def gradient(centres: Any, points: Any) -> Any:
        return tg.grad(lambda c: ((points[:, None] - c) ** 2).sum(-1).amin(1).sum())(centres)

    rng = np.random.default_rng(0)
    points, centres = (rng.standard_normal((n, 16)) for n in (3000, 20))
    found = gradient(tg.tensor(centres), tg.tensor(points))
    nearest = ((points[:, None] - centres) ** 2).sum(-1).argmin(1)
    wanted = np.stack([2 * (centres[k] - points[nearest == k]).sum(0) for k in range(20)])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-12)
    by_columns = next(k for k in str(gradient.kernels()).split("__kernel") if "void partial" in k)
    assert len(by_columns.splitlines()) < 150               # it reads which centre is the nearest, and does not add up 16 squares to see


def test_a_short_sum_is_stored_for_a_product_that_adds_it() -> None:
    @tg.trace
    def distances(points: Any, centres: Any) -> Any:
        return (points ** 2).sum(1)[:, None] - points @ centres.T

    rng = np.random.default_rng(0)
    points, centres = (rng.standard_normal((n, 16)) for n in (300, 100))
    found = distances(tg.tensor(points), tg.tensor(centres)).numpy()
    np.testing.assert_allclose(found, (points ** 2).sum(1)[:, None] - points @ centres.T, rtol=1e-12, atol=1e-12)
    sums, *others = str(distances.kernels()).split("__kernel")[1:]
    assert "void sum" in sums
    assert not any(" mul = " in kernel for kernel in others)    # the product reads them


def test_an_exponential_in_float64_is_computed_once() -> None:
    """The gradient of a logarithm of a sum of exponentials reads them three times: to store them costs less than to compute them again."""
    def value(x: Any) -> Any:
        largest = x.max()
        return largest + tg.log(tg.exp(x - largest).sum())

    gradient = tg.trace(tg.grad(value))
    x = np.random.default_rng(0).standard_normal(40000)
    found = gradient(tg.tensor(x)).numpy()
    np.testing.assert_allclose(found, np.exp(x) / np.exp(x).sum(), rtol=1e-11)
    kernels = str(gradient.kernels()).split("__kernel")[1:]
    assert sum(re.search(r"(?<!\.)exp\(", kernel) is not None for kernel in kernels) == 1        # (`tg.exp(` is in the lines told)
