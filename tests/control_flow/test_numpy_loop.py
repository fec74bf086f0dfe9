"""Loops by NumPy (tracegrad/numpy_backend/): what is computed before and in the iterations is what the interpreter makes, one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.derivatives import variable
from tracegrad.control_flow import scan
from tracegrad.control_flow.loop import Loop
from tracegrad.graph.canonical import canonical
from tracegrad.graph.ir import Aval, topological
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.nn.modules import recurrent
from tracegrad.numpy_backend import numpy_program
from tracegrad.numpy_backend.interpreter import run_loop
from tracegrad.numpy_backend.numpy_program import LoopRoutine, NumpyProgram
from tracegrad.ops.primitives.movement import reshape
from tracegrad.support import cache


def sums(c, x, k):
    """A carry that is read, one that is added up, one whose terms are sums; rows that no carry goes into."""
    h, s, t = c
    new = (h @ k + x[0].tanh() * 0.5).tanh()
    return [new, x[0] * 2.0 + s, t + (new * x[0].sigmoid()).sum(0)], [new, x[0].exp(), x[0][:, :3].T, new]


def levels(c, x, k):
    """What is the same in all iterations, results that are, a carry that is another's row, a sum of what is always the same."""
    return [c[1], c[0] * (k.exp() @ k).mean() + x[0], c[2] + k.sum(0) * 2.0], [k.T + 1.0, c[0], x[0]]


def read_sums(c, x, k):
    """Sums that somebody reads in an iteration: none of them may wait."""
    s, t, u = c
    return [s + x[0], t + x[0] * 3.0, u + t.sum(0)], [s * 2.0]


def lstm(c, x, k):
    n = x[0].shape[1]
    gates = REGISTRY["concat"](x[0], x[0].tanh(), x[0] * 0.5, x[0].sigmoid(), dim=1)
    weight = REGISTRY["concat"](k, k * 0.3, k.T, k + 0.1, dim=0)
    h, new = recurrent._STEPS["LSTM"](gates, (c[0], c[1]), weight, weight[:, n - 1])
    return [h, new, c[2] + new.sum(0)], [h]


def gru(c, x, k):
    n = x[0].shape[1]
    gates = REGISTRY["concat"](x[0], x[0].tanh(), x[0] * 0.5, dim=1)
    weight = REGISTRY["concat"](k, k * 0.3, k.T, dim=0)
    h, = recurrent._STEPS["GRU"](gates, (c[0],), weight, weight[:, n - 1])
    return [h, c[1] * 0.5 + h, c[2]], [h, c[0], c[1]]


def exchanged(c, x, k):
    """Carries that are each other's rows, views of what iterations write anew, numbers; unequal parts, or read as a whole, too."""
    both = REGISTRY["concat"](c[0], c[1] * x[0], dim=1) + 0.25
    some, other = both[:, 1:6].tanh(), both[:, 2:] * 2.0
    wide = (both * 0.5).sigmoid()
    m = c[0].shape[1]
    transposed = (x[0].T * c[0].T).sin().T                             # in another order
    new = wide[:, m:].sum(0) * 0.1 + c[2] * (c[0].mean() + 0.5)
    return [wide[:, :m] + transposed, c[0], new], [some, other.T, wide[:, m:], c[2].sum(), c[0]]


def unequal(c, x, k):
    """Parts side by side of several widths, in rows and in columns, and one that is somebody else's, too."""
    a, b = c[0] * x[0], (c[1] + x[0]).sigmoid()
    beside = REGISTRY["concat"](a[:, :3], b, dim=1)
    below = REGISTRY["concat"](a * 2.0, b * a, dim=0)
    grad = (beside[:, 1:-2] * 0.1).sum() + below.mean()
    return [a + grad, b * 0.5 + below[:a.shape[0]], c[2] + below.sum(0)], [beside, below, a]


def views(c, x, k):
    """A carry that is a view of what the next iteration must not write over before it is read."""
    m = c[0].shape[1]
    both = REGISTRY["concat"](c[1], x[0], dim=1) * 0.5
    other = (REGISTRY["concat"](x[0] * c[1] + both[:, m:], c[0], dim=1) + 0.25).tanh()
    return [both[:, :m], other[:, m:], c[2]], [c[2] + 1.0]


def numbers(c, x, k):
    """Numbers that are elements of rows which the same iteration makes: results, and read by others."""
    new, low = (c[0] * 0.5 + x[0]).sin(), (c[2] + x[0].sum(0)).tanh()
    one, other = reshape(new[-1:, 1:2], ()), reshape(low[2:3], ())
    return [new, c[1] * one, low], [new, one, low, other, new[0, 1:3] * other]


PROGRAMS = (sums, levels, read_sums, lstm, gru, exchanged, unequal, views, numbers)


def prepared(loop, used=None):
    """The NumpyProgram of these results of a loop (of all), and what goes through its iterations."""
    used = range(len(loop._avals)) if used is None else used
    inputs = [placeholder(aval) for aval in operands_of(loop)]
    outs = [bind(loop, tuple(inputs), {"index": i}) for i in used]
    found = canonical(outs, inputs)
    program = NumpyProgram(found.order, found.places, [found.number[o] for o in outs])
    return program, next((step.rule for step in program.steps if isinstance(step.rule, LoopRoutine)), None)


def operands_of(loop):
    n, m = loop.body.carries, loop.body.carries + loop.body.rows
    return [Aval((loop.length, *p.shape), p.dtype) if n <= i < m else p.aval for i, p in enumerate(loop.graph.inputs)]


def made(program, n, m, length, reverse, dtype):
    """The loops of a program and of its derivative, nodes of theirs."""
    avals = [Aval((n, m), dtype), Aval((n, m), dtype), Aval((m,), dtype), Aval((length, n, m), dtype), Aval((m, m), dtype)]
    given = [variable(placeholder(a)) for a in avals]
    lasts, stacks = scan.scan_nodes(lambda c, x: program(c, x, given[-1]), given[:3], given[3:4], reverse)
    outs = [*lasts, *stacks]
    grads = derivatives.vjp(outs, given, [placeholder(o.aval) for o in outs])
    return [node for node in topological([*outs, *(g for g in grads if g is not None)]) if isinstance(node.fn, Loop)]


@pytest.mark.parametrize(("length", "n", "m", "dtype", "reverse"), [
    (31, 7, 13, np.float32, False), (16, 13, 7, np.float64, True), (1, 7, 13, np.float32, True),
    (2, 33, 129, np.float32, False)])                                   # the last one's arrays are above the limit of what is put together
@pytest.mark.parametrize("program", PROGRAMS)
def test_iterations_are_the_interpreters(program, length, n, m, dtype, reverse):
    rng = np.random.default_rng(length)
    found = {}
    for node in made(program, n, m, length, reverse, np.dtype(dtype)):
        found.setdefault(node.fn, node.operands)
    assert len(found) >= 2
    for loop, operands in found.items():
        arrays = [(0.3 * rng.standard_normal(o.shape)).astype(o.dtype) for o in operands]
        before = [a.copy() for a in arrays]
        wanted, _ = run_loop(loop, arrays)
        count = len(wanted)
        for used in (range(count), range(0, count, 2), range(count - 1, count)):
            for _ in range(2 if used == range(count) else 1):
                results = prepared(loop, used)[0](arrays, [], [])
                for i, y in zip(used, results, strict=True):
                    assert (y.shape, y.dtype) == (wanted[i].shape, wanted[i].dtype)
                    np.testing.assert_allclose(y, wanted[i], rtol=3e-5 if dtype == np.float32 else 1e-12, atol=1e-5 * abs(wanted[i]).max())
        assert all(map(np.array_equal, arrays, before))


def any_program(seed):
    """An iteration of random operations on parts, views and whole arrays."""
    def program(c, x, k):
        pick = random.Random(seed)
        n, m = c[0].shape
        made = [c[0], c[1], x[0]]

        def full():
            return pick.choice([v for v in made if v.shape == (n, m)])

        def beside(a, b):
            return [w := REGISTRY["concat"](a, b, dim=1) + 0.5, w[:, :m], w[:, m:].tanh()]

        def gates(h):
            w = h @ REGISTRY["concat"](k, k * 0.3, dim=1) + REGISTRY["concat"](full(), x[0], dim=1)
            return [(s := w.sigmoid())[:, :m], s[:, m:], w[:, m:].tanh(), *[w, s][:pick.randint(0, 2)]]

        def part(v):
            return [v[:, pick.randint(0, v.shape[1] - 1):], v[:pick.randint(1, v.shape[0])]] if len(v.shape) == 2 else []

        for _ in range(pick.randint(4, 14)):
            v = pick.choice(made)
            made += pick.choice([
                lambda v: [full() * full()], lambda v: [v.tanh()], lambda v: [v.sigmoid()], lambda v: [full() @ k], lambda v: [v.T], part,
                lambda v: [v.sum(pick.randint(0, len(v.shape) - 1))] if v.shape else [], lambda v: beside(full(), full()),
                lambda v: [w := REGISTRY["concat"](full(), full(), dim=0), w[n:]], lambda v: [v + c[2].sum() * 0.1],
                lambda v: [full() + c[2]], lambda v: gates(full()), lambda v: [v - v * 0.25]])(v)
        rows = [pick.choice(made) for _ in range(pick.randint(1, 4))] + pick.choice([[], [c[0]], [c[1], c[2]]])
        return [pick.choice([full(), full().tanh()]), pick.choice([full(), c[0]]), pick.choice([c[2], full().mean(0)]) * 0.5], rows
    return program


SHAPES = [(9, 7, 13, np.float32, False), (5, 13, 7, np.float16, True), (2, 12, 65, np.float64, False), (1, 3, 8, np.float32, False)]


@pytest.mark.parametrize(("program", "length", "n", "m", "dtype", "reverse"), [
    *((program, *shape) for program in PROGRAMS for shape in SHAPES),
    *((any_program(seed), *SHAPES[seed % 4]) for seed in range(32)),
    *(pytest.param(any_program(seed), *SHAPES[seed % 4], marks=pytest.mark.slow) for seed in range(32, 600))])
@pytest.mark.recall
def test_generated_loops_have_the_bits_of_iterations_one_by_one(program, length, n, m, dtype, reverse, monkeypatch):
    monkeypatch.setattr(numpy_program, "WRITTEN", 12)
    rng = np.random.default_rng(length)
    found = {}
    for node in made(program, n, m, length, reverse, np.dtype(dtype)):
        found.setdefault(node.fn, node.operands)
    for loop, operands in found.items():
        compute, iterations = prepared(loop)
        arrays, others = ([(0.3 * rng.standard_normal(o.shape)).astype(o.dtype) for o in operands] for _ in range(2))
        with np.errstate(all="ignore"):
            wanted = [np.array(y) for y in compute(arrays, [], [])]
            assert iterations.written is None                          # too few iterations for one call
            compute(others, [], [])
            assert iterations.written is not None
            again = compute(arrays, [], [])
            compute(others, [], [])                                        # which must not change what was given
        for y, z in zip(wanted, again, strict=True):
            assert y.dtype == z.dtype
            np.testing.assert_array_equal(y, z)


@pytest.mark.recall
def test_iterations_of_an_lstm_need_few_operations():
    """What is stacked is computed into its place, views are taken once: no line of an iteration copies."""
    loop = next(node.fn for node in made(lstm, 7, 13, 9, False, np.dtype(np.float32)) if not node.fn.reverse)
    operands = [np.ones((9, *p.shape) if 3 <= i < 4 else p.shape, p.dtype) for i, p in enumerate(loop.graph.inputs)]
    texts = []
    with pytest.MonkeyPatch.context() as patch:
        read = cache.code_of
        patch.setattr(cache, "code_of", lambda text: texts.append(text) or read(text))
        compute, _ = prepared(loop)
        for _ in range(3):
            compute(operands, [], [])
    body = [line for line in texts[-1].splitlines() if line.startswith("  ")]
    assert not any("[...]" in line or "reshape" in line for line in body)
    assert len(body) <= 12


def test_most_of_an_lstms_derivative_is_before_its_iterations(monkeypatch):
    sizes = []
    real = numpy_program.NumpyProgram.__init__

    def counted(self, *given):
        real(self, *given)
        sizes.append(len(self.steps))

    monkeypatch.setattr(numpy_program.NumpyProgram, "__init__", counted)
    loop, = {node.fn for node in made(lstm, 7, 13, 9, False, np.dtype(np.float32)) if node.fn.reverse}
    prepared(loop, [i for i, o in enumerate(loop.graph.outputs) if o not in loop.graph.inputs])
    iteration, before = sizes
    assert iteration <= 36                              # of 53; what the gates are, the first loop has kept
    assert before >= 20
