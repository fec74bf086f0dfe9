"""What a launch takes a core (`Launch.work`), by which the runtime decides about threads, and what is foreseen of it from a graph."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import CPU
from tracegrad.codegen.compiler import compile_graph
from tracegrad.execute.compile import _rough, executable_graph
from tracegrad.support.plan import Launch, by_one
from tracegrad.support.tuning import Tuning, tuned


def works(fn, *shapes, dtype=tg.float32, tuning=None):
    """(launch, how often) of a traced function's plan."""
    traced = tg.trace(fn)
    traced(*(tg.ones(*s, dtype=dtype) for s in shapes))
    with tuned(tuning or Tuning()):
        plan = compile_graph(executable_graph(traced.graph), CPU)
    return [(step, times) for step, times in plan.each() if isinstance(step, Launch)]


def total(found):
    return sum(launch.work * times for launch, times in found)


def test_flops_and_half_of_the_bytes_and_doubles_count_twice():
    for n in (100, 5000, 70_000):
        (single, _), = works(lambda x: (x * 3.0 + 1.0) * x, (n,))
        assert single.work == single.flops + single.bytes // 2
        (double, _), = works(lambda x: (x * 3.0 + 1.0) * x, (n,), dtype=tg.float64)
        assert (double.flops, double.bytes) == (single.flops, 2 * single.bytes)
        assert double.work == 2 * single.work


@pytest.mark.parametrize(("fn", "least"), [
    (lambda x: x.sort(1).values, 3 * 8), (lambda x: x.argsort(1), 3 * 8), (lambda x: x.quantile(0.3, dim=1), 3 * 8),
    (lambda x: x.topk(5, 1).values, 2), (tg.lgamma, 8), (lambda x: tg.linalg.det(x.reshape(-1, 4, 4)), 1),
], ids=["sort", "argsort", "quantile", "topk", "lgamma", "det"])
def test_what_flops_and_bytes_do_not_tell(fn, least):
    """Nanoseconds for each of 64 x 256 elements: 8 comparisons of a sort."""
    found = works(fn, (64, 256))
    counted = sum((launch.flops + launch.bytes // 2) * times for launch, times in found)
    assert total(found) >= counted + 64 * least * 64 * 256


def test_a_loop_in_one_launch_takes_what_its_iterations_take():
    def f(x):
        return tg.scan(lambda c, _: (c.sort(1).values.roll(1, 0) * 0.5, None), x, None, length=7)[0]

    one = works(f, (6, 40))
    launched = works(f, (6, 40), tuning=Tuning(launch_work=0, iteration_work=0, parted_work=0, looped_work=0))
    assert sum(times for _, times in one) < 7 <= sum(times for _, times in launched)
    assert total(one) == pytest.approx(total(launched), rel=0.3)


def test_a_launch_is_worth_waking_cores_for_from_twice_its_work_on_where_there_are_two():
    assert [by_one(cores, 1000) for cores in (1, 2, 3, 5, 101)] == [2000, 2000, 1500, 1250, 1010]


LAYER = (lambda x, w, v: tg.nn.functional.layer_norm((x @ w).tanh() @ v, (x.shape[1],)).pow(2).sum())
FORESEEN = {
    "products": (LAYER, lambda n: ((n, n), (n, n), (n, n))),
    "elementwise": (lambda x, y: (x * y + x.exp()).sum(1), lambda n: ((n, n), (n, n))),
    "sort": (lambda x: x.sort(1).values, lambda n: ((n, n),)),
    "loop": (lambda x: tg.scan(lambda c, _: (c.roll(1, 0) * 0.5 + c.tanh(), None), x, None, length=20)[0], lambda n: ((n, n),)),
}


@pytest.mark.parametrize("name", FORESEEN)
def test_how_much_work_a_program_is_is_foreseen_from_its_graph(name):
    """Within a factor of 20, where the least and the most here differ by 10,000: so PoCL's compiler is loaded on the right side."""
    fn, shapes = FORESEEN[name]
    for n in (10, 100, 700):
        traced = tg.trace(fn)
        traced(*(tg.ones(*s) for s in shapes(n)))
        graph = executable_graph(traced.graph)
        work, launches = _rough(graph)
        real = total([(step, times) for step, times in compile_graph(graph, CPU).each() if isinstance(step, Launch)])
        assert real / 20 < work < 20 * real, (n, work, real)
        assert launches <= len(graph) * (20 if name == "loop" else 1)


def test_slow_results_are_right_on_both_sides_of_where_threads_pay():
    """Sorts of rows, on the device, at ordinary sizes."""
    for rows, n in ((3, 50), (40, 256), (64, 1000), (300, 130)):
        x = np.random.default_rng(n).standard_normal((rows, n))
        found = tg.trace(lambda x: (x.sort(1).values, x.topk(3, 1).values, tg.lgamma(x.abs() + 0.5)))(tg.tensor(x, dtype=tg.float64))
        np.testing.assert_array_equal(found[0].numpy(), np.sort(x, 1))
        np.testing.assert_array_equal(found[1].numpy(), np.sort(x, 1)[:, :-4:-1])
        assert np.isfinite(found[2].numpy()).all()
