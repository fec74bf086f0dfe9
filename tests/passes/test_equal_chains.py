"""Equal chains of operations on many small arrays become one (tracegrad/passes/equal_chains.py), to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.execute.test_numpy_program import made_of, recorded, work_of
from tracegrad import nn
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind, const, placeholder
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.ops.primitives.movement import expand
from tracegrad.passes.equal_chains import chains
from tracegrad.passes.untraced import CHAINS

VALUES = [0.0, -0.0, 1.0, -1.5, 0.1, 3e-5, 6e4, np.nan, np.inf, -np.inf]
SHAPES = [(3, 4), (5,), (2, 2, 3), (1,), (17, 3), (64,), (4, 3)]


def op(name: str, *operands: Any, **attrs: Any) -> Node:
    return bind(REGISTRY[name], operands, attrs)


def computing(graph: Graph) -> int:
    """How many operations compute something."""
    return sum(node.fn.placeless for node in graph)


def same(graph: Graph, arrays: list[np.ndarray], other: Graph) -> None:
    """Both graphs give the same bits."""
    for a, b in zip(interpret(graph, arrays), interpret(other, arrays), strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def random_chains(seed: int) -> tuple[Graph, list[np.ndarray]]:
    """The same random operations on arrays of several shapes, with numbers that all share, one of them the sum of a chain's results."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(["float32", "float64", "float16"][seed % 3])
    shapes = [SHAPES[i] for i in rng.integers(len(SHAPES), size=8)]
    given = [[placeholder(Aval(shape, dtype)) for _ in range(3)] for shape in shapes]
    number = placeholder(Aval((), dtype))
    numbers, values = [number, const(0.5, dtype), op("div", const(1.0, dtype), number)], [[*xs] for xs in given]
    for step in range(int(rng.integers(4, 12))):
        name = str(rng.choice(["add", "sub", "mul", "div", "neg", "sqrt", "abs", "where"]))
        at, beside = rng.integers(len(values[0]), size=3), int(rng.integers(len(numbers))) if rng.random() < 0.4 else None
        for xs in values:
            x, y, z = (xs[i] for i in at)
            y = y if beside is None else expand(numbers[beside], x.shape)
            xs.append(op(name, x) if name in ("neg", "sqrt", "abs") else op("where", op("lt", x, y), y, z) if name == "where"
                      else op(name, y, x))
        if step == 2:
            numbers.append(op("sum", values[1][-1], dim=tuple(range(len(shapes[1])))))
    arrays = [rng.choice(np.array(VALUES), size=x.shape).astype(dtype) for xs in given for x in xs]
    arrays = [np.asfortranarray(a) if rng.random() < 0.3 else a for a in arrays]
    return Graph.capture([*(x for xs in given for x in xs), number], [xs[-1] for xs in values] + [xs[-2] for xs in values[2:]]), [
        *arrays, np.array(0.3, dtype)]


@pytest.mark.parametrize("seed", range(24))
def test_random_chains_have_the_same_bits(seed: int) -> None:
    graph, arrays = random_chains(seed)
    joined = chains(graph, CHAINS._replace(least=2))
    same(graph, arrays, joined)
    assert computing(joined) < computing(graph) or joined is graph


def moved(xs: list[Node], gs: list[Node], by: Any) -> list[Node]:
    """x - by * g * g + g, of each."""
    return [op("add", op("sub", x, op("mul", expand(by(k), x.shape), op("mul", g, g))), g)
            for k, (x, g) in enumerate(zip(xs, gs, strict=True))]


def inputs(count: int, shape: tuple[int, ...] = (3, 4), dtype: str = "float32") -> list[Node]:
    return [placeholder(Aval(shape, np.dtype(dtype))) for _ in range(count)]


def test_one_operation_stands_for_those_of_all_chains() -> None:
    xs, gs, number = inputs(6), inputs(6), const(0.1, np.dtype("float32"))
    graph = Graph.capture([*xs, *gs], moved(xs, gs, lambda k: number))
    assert [computing(graph), computing(chains(graph, CHAINS))] == [24, 4]


def test_what_is_not_alike_stays() -> None:
    """Chains with numbers of their own, of other dtypes, too few, too long, on what another chain computes."""
    xs, gs, dtype = inputs(6), inputs(6), np.dtype("float32")
    numbers = [const(0.1 * k, dtype) for k in range(6)]
    for graph in (Graph.capture([*xs, *gs], moved(xs, gs, lambda k: numbers[k])),
                  Graph.capture([*xs[:3], *gs[:3]], moved(xs[:3], gs[:3], lambda k: numbers[0])),
                  Graph.capture([*xs, gs[0]], moved(xs, [gs[0]] * 6, lambda k: numbers[0]))):
        assert computing(chains(graph, CHAINS)) == computing(graph)
    long = inputs(6, (CHAINS.part // 4 + 1,))
    assert computing(chains(Graph.capture(long, moved(long, long, lambda k: numbers[1])), CHAINS)) == 24
    wide, narrow = inputs(4, dtype="float64"), inputs(4)
    graph = Graph.capture([*wide, *narrow], [*moved(wide, wide, lambda k: const(0.1, np.dtype("float64"))),
                                             *moved(narrow, narrow, lambda k: numbers[1])])
    assert computing(chains(graph, CHAINS)) == 8


def test_as_many_are_put_together_as_fit() -> None:
    count = 3 * CHAINS.whole // CHAINS.part
    xs, number = inputs(count, (CHAINS.part // 4,)), const(0.1, np.dtype("float32"))
    graph = Graph.capture(xs, moved(xs, xs, lambda k: number))
    found = chains(graph, CHAINS)
    assert [computing(found), max(node.aval.nbytes for node in found)] == [3 * 4, CHAINS.whole]


def stepped(*arrays: Any) -> tuple[Any, ...]:
    """A step like Adam's with the parameters, gradients and means that these are; the gradients are scaled by their norm."""
    count = len(arrays) // 3
    ps, gs, ms = arrays[:count], arrays[count:2 * count], arrays[2 * count:]
    norm = sum((g * g).sum() for g in gs).sqrt()
    scale, rate = 1.0 / (norm + 1e-6), 0.01 / (norm + 1.0)
    scaled = [g * scale for g in gs]
    means = [m * 0.9 + g * 0.1 for m, g in zip(ms, scaled, strict=True)]
    return (*[p - m / ((m * m).sqrt() + 1e-8) * rate for p, m in zip(ps, means, strict=True)], *means, norm)


def test_numpy_computes_a_step_end_to_end() -> None:
    """As steps, and as Python; inputs that lie column by column as well."""
    rng = np.random.default_rng(0)
    shapes = [(8, 5), (5,), (3, 3), (7,), (2, 4, 2)]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes * 3]
    program = recorded(work_of(stepped, *arrays))
    routine, constants = made_of(stepped, *arrays)
    assert sum(step.node.fn.placeless for step in routine.steps) < computing(program.graph) - 30
    assert len(routine.joined) == 8
    for turn in range(16):
        given = [np.asfortranarray(a) if turn % 2 else a for a in arrays]
        for a, b in zip(routine(given, constants, []), interpret(program.graph, given), strict=True):
            assert (a.shape, a.tobytes()) == (b.shape, b.tobytes())
    assert (routine.written is not None) == tg.config.recall


def test_parameters_of_a_model_lie_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer's step gives parts of one array, which are not copied; whoever writes one, writes no other."""
    monkeypatch.setattr(tg.config, "eager", True)
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(5)])
    optimizer = tg.optim.AdamW(model.parameters(), lr=0.01)
    x = tg.ones(2, 6)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    arrays = [p._n.operands[0].value.array for p in model.parameters()]
    before = [np.array(a) for a in arrays]
    assert all(a.base is arrays[0].base for a in arrays)
    with tg.no_grad():
        model[0].weight.add_(1.0)
        model[1].bias.zero_()
    after = [p.detach().numpy() for p in model.parameters()]
    assert np.array_equal(after[0], before[0] + 1)
    assert not after[3].any()
    assert all(np.array_equal(after[k], before[k]) for k in (1, 2, *range(4, 10)))
