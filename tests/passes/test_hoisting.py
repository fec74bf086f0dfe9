"""What is slow and the same in all iterations of a loop is computed once, before it (tracegrad/passes/loops.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.execute.test_plan_files import graph_of, planned
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad.codegen.compiler import compile_graph
from tracegrad.execute.compile import executable_graph
from tracegrad.graph.ir import Graph
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.passes import loops as loops_pass
from tracegrad.passes.liveness import last_uses
from tracegrad.passes.loops import CARRIED, CONSTANT, ROW, counted_before, dependence, hoisted
from tracegrad.support.plan import Launch

SIZE, ITERATIONS = 12, 9
SOME = {name: TARGETS[name] for name in ("avx2", "gpu")}


def with_one_row(h: Any, row: Any, w: Any, v: Any) -> Any:
    """All iterations scan the same row. Its product is fused with what the carry goes into."""
    return tg.scan(lambda h, x: (((x @ v) * h + h @ w).tanh(), h.sum()), h, row.expand(ITERATIONS, *row.shape))


def nested(h: Any, row: Any, w: Any, v: Any) -> Any:
    """The inner loop's product is the outer loop's, too."""
    def iterate(h: Any, x: Any) -> Any:
        h, sums = tg.scan(lambda h, y: ((h @ w + (y @ v) * h).tanh(), h.sum(0)), h, x.expand(3, *x.shape))
        return h, sums
    return tg.scan(iterate, h, row.expand(ITERATIONS, *row.shape))


def nothing(h: Any, row: Any, w: Any, v: Any) -> Any:
    """The product is of a carry, and what is left moves elements only."""
    return tg.scan(lambda h, x: ((h @ w.T + x).tanh(), h.sum()), h, row.expand(ITERATIONS, *row.shape))


def given(size: int = SIZE) -> list[Any]:
    rng = np.random.default_rng(0)
    return [(0.3 * rng.standard_normal((size, size))).astype(np.float32) for _ in range(4)]


def count(graph: Graph, name: str) -> int:
    """How often an operation is done, iterations counted."""
    loops = {node.fn: node.fn for node in graph if node.fn.family == "loop"}
    return sum(node.fn.name == name for node in graph) + sum(fn.length * count(fn.graph, name) for fn in loops)


@pytest.mark.parametrize(("program", "before", "after"), [
    (with_one_row, 2 * ITERATIONS, ITERATIONS + 1), (nested, 6 * ITERATIONS, 3 * ITERATIONS + 1), (nothing, ITERATIONS, ITERATIONS)])
def test_products_of_constants_are_done_once(program, before, after, on_numpy):
    graph = executable_graph(graph_of(program, *given()))
    assert count(graph, "matmul") == before
    assert count(hoisted(graph), "matmul") == after


def test_plans_do_as_much_arithmetic(on_numpy):
    plan = planned(graph_of(with_one_row, *given(48)))
    assert sum(launch.flops for launch in plan.launches) < 1.1 * (ITERATIONS + 1) * 2 * 48 ** 3


@one_of(2, "program", [with_one_row, nested, nothing])
def test_values_and_derivatives(program, on_numpy):
    def loss(*args: Any) -> Any:
        h, ys = program(*args)
        return (h * h).sum() + ys.sum()

    with Checked(SOME) as checked:
        tg.trace(tg.grad(loss, argnums=(0, 1, 2, 3)))(*map(tg.from_numpy, given()))
    assert checked.count


def test_what_a_node_of_a_body_depends_on(on_numpy):
    graph = executable_graph(graph_of(lambda h, xs, w: tg.scan(lambda h, x: (h * x.exp() + w.sin().sum() * x.cos(), x.exp()), h, xs),
                                      np.ones(3), np.ones((5, 3)), np.ones(4)))
    loop = next(node.fn for node in graph if node.fn.family == "loop")
    found = {node.fn.name: kind for node, kind in dependence(loop.graph, loop.body.carries, loop.body.rows).items() if node.operands}
    assert (found["exp"], found["cos"], found["add"]) == (ROW, ROW, CARRIED)
    late = dependence(loop.graph, loop.body.carries, loop.body.rows, lambda node: node.fn.name != "exp")
    assert {node.fn.name: kind for node, kind in late.items()}["exp"] == CARRIED
    assert all(late[p] == CONSTANT for p in loop.graph.inputs[loop.body.carries + loop.body.rows:])


def test_last_uses():
    assert last_uses([("a", "b"), ("b", "b"), ("a", "c"), ()], ["c"]) == [(), ("b",), ("a",), ()]
    assert last_uses([]) == []


# ------------------------------------------------------------------------------------------------------------------- counters


def counter_and_field(y: Any, c: Any, xs: Any) -> Any:
    """The count is read before and after it is made, and stacked."""
    def step(v: Any, x: Any) -> Any:
        return (v[0] * 0.9 + x / (1 + v[1]), v[1] + 1), (v[1] * 2, v[0] + v[1])
    return tg.scan(step, (y, c), xs)


def two_counters(y: Any, c: Any, xs: Any) -> Any:
    """One of another; and a number that depends on the field is none."""
    def step(v: Any, x: Any) -> Any:
        return (v[0] * v[2] + c, v[1] + x * v[2], v[2] * 0.5 + v[1]), v[2]
    return tg.scan(step, (y, c, c + 1), xs, reverse=True)


COUNTERS = {"counter and field": (counter_and_field, 2), "two": (two_counters, 2)}


@pytest.mark.parametrize("name", COUNTERS)
def test_counters_are_loops_of_their_own(name, on_numpy, monkeypatch):
    program, wanted = COUNTERS[name]
    monkeypatch.setattr(loops_pass, "_MANY", 2)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(7), np.array(0.5), rng.standard_normal(5)]
    graph = executable_graph(graph_of(program, *arrays))
    split = counted_before(graph)
    found = {node.fn for node in split if node.fn.family == "loop"}
    assert len(found) == wanted
    assert {frozenset(o.aval.size for o in fn.graph.outputs[:fn.body.carries]) for fn in found} == {frozenset({1}), frozenset({7})}
    for a, b in zip(interpret(split, arrays), interpret(graph, arrays), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_depends_on_the_field_is_no_counter(on_numpy, monkeypatch):
    monkeypatch.setattr(loops_pass, "_MANY", 2)

    def program(y: Any, c: Any) -> Any:
        return tg.scan(lambda v, _: ((v[0] * 0.9 + v[1], v[1] + v[0].sum()), None), (y, c), None, 4)[0]

    graph = executable_graph(graph_of(program, np.ones(7), np.array(0.5)))
    assert counted_before(graph).outputs == graph.outputs


def test_a_counter_keeps_no_loop_from_its_elements():
    """Beside a number that counts, elements go through all iterations block by block: no launch for each of them."""
    y, c = tg.ones(1 << 15, dtype=tg.float64), tg.tensor(0.0, dtype=tg.float64)
    run = tg.trace(lambda y, c: tg.scan(lambda v, _: ((v[0] * 0.9 + 1 / (1 + v[1]), v[1] + 1), None), (y, c), None, 50)[0])
    got = run(y, c)
    want, count = np.ones(1 << 15), 0.0
    for _ in range(50):
        want, count = want * 0.9 + 1 / (1 + count), count + 1
    np.testing.assert_allclose(got[0].numpy(), want, 1e-12)
    assert got[1].item() == 50
    plans = {name: compile_graph(executable_graph(run.graph), t) for name, t in SOME.items()} | {"device": run.plan}
    for name, plan in plans.items():
        assert [type(s) for s in plan.steps] == [Launch] * 2, name
