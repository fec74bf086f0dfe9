"""tg.while_loop, bounded loops and branches inside kernels: results and derivatives beside Python's loop, and what the plan looks like."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.codegen.compiler import compile_graph
from tracegrad.control_flow import while_backward
from tracegrad.execute.compile import executable_graph
from tracegrad.support.plan import HostStep, Launch
from tracegrad.support.tuning import Tuning, tuned

F = tg.float64
RNG = np.random.default_rng(43)
X, W = RNG.standard_normal(3), 0.3 * RNG.standard_normal((3, 3))


def python_while(cond, body, value, max_iterations=None):
    left = max_iterations
    while left != 0 and bool(cond(value)):
        value, left = body(value), None if left is None else left - 1
    return value


def growing(loop, **limits):
    """It ends by what the body makes."""
    def f(x, w):
        y, n = loop(lambda v: v[0].norm() < 9, lambda v: (v[0] * 1.3 + (w @ v[0]).sin(), v[1] + 1), (x, tg.tensor(0)), **limits)
        return (y * y).sum() + 0.0 * n
    return f


def everything(f):
    """The value, gradients of two orders, and forward mode of both."""
    def run(x, w):
        along = tg.ones_like(x), tg.ones_like(w) * 0.5
        second = tg.grad(lambda *a: sum(g.sin().sum() for g in tg.grad(f, (0, 1))(*a)), (0, 1))(x, w)
        return f(x, w), *tg.grad(f, (0, 1))(x, w), *second, tg.jvp(f, (x, w), along)[1], tg.jvp(tg.grad(f), (x, w), along)[1]
    return run


def first_order(f):
    return lambda *args: (f(*args), *tg.grad(f, (0, 1))(*args))


def close(found, wanted, tolerance=1e-9):
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance, err_msg=f"result {k}")


def steps_of(f, *args):
    """The kinds of the steps of a traced function's plan, on the device and for each target."""
    run = tg.trace(f)
    run(*args)
    graph = executable_graph(run.graph)
    plans = {"device": run.plan} if run.plan is not None else {}
    return {name: plan.steps for name, plan in (plans | {n: compile_graph(graph, t) for n, t in TARGETS.items()}).items()}


@pytest.fixture
def args(device):
    return tg.tensor(X), tg.tensor(W)


@pytest.fixture
def interpreter():
    previous = tg.device()
    yield tg.set_device("numpy")
    tg.set_device(previous)


# ------------------------------------------------------------------------------------------------------------------ the plan


def test_a_small_loop_is_one_launch_on_every_target():
    x = tg.tensor(X)

    def forward(x):
        return tg.while_loop(lambda v: (v[0] * v[0]).sum() < 9, lambda v: (v[0] * 1.3, v[1] + 1), (x, tg.tensor(0)))[0]

    for name, steps in steps_of(forward, x).items():
        assert [type(s) for s in steps] == [Launch], name
    for name, steps in steps_of(tg.grad(lambda x: forward(x).sum()), x).items():
        assert len(steps) <= 3, name
        assert all(isinstance(s, Launch) for s in steps), name


def test_a_large_one_is_a_step_of_the_host():
    big = tg.ones(400, 400, dtype=F)
    steps = tg.trace(lambda x: tg.while_loop(lambda v: v.sum() < 1e9, lambda v: v @ v * 0.1, x))
    steps(big)
    assert [type(s) for s in steps.plan.steps] == [HostStep]
    with tuned(Tuning(iteration_work=0)):
        steps = tg.trace(lambda x: tg.while_loop(lambda v: v.sum() < 9, lambda v: v * 2, x))
        steps(tg.ones(3))
    assert [type(s) for s in steps.plan.steps] == [HostStep]


def newton(loop, **limits):
    """The condition and the body read the same exponential."""
    def f(x, w):
        wanted = x * x + w.sum() + 3
        step = lambda y: y - 0.3 * (y.exp() - wanted) / y.exp()
        return loop(lambda y: (y.exp() - wanted).abs().amax() > 1e-9, step, x * 0, **limits).sum()
    return f


@pytest.mark.parametrize("limits", [{}, {"max_iterations": 60}])
def test_what_the_condition_and_the_body_compute_is_computed_once_an_iteration(args, limits):
    value = tg.trace(newton(tg.while_loop, **limits))
    close([value(*args)], [newton(python_while, **limits)(*args)])
    close(tg.trace(first_order(newton(tg.while_loop, **limits)))(*args), first_order(newton(python_while, **limits))(*args))
    if value.plan is not None:
        loop = value.plan.source.partition("while (")[2]
        assert len(re.findall(r"= tg_exp|= exp\(", loop)) == 1, loop        # of the new value; that of the old one is handed on


def test_what_a_loop_hands_on_is_in_registers():
    """Temporaries of one number are variables of the kernel: its parameters are inputs, results and stacks."""
    x = tg.tensor(1.5, dtype=F)

    def root(x):
        return tg.while_loop(lambda y: (y * y - x).abs() > 1e-9, lambda y: y - 0.3 * (y * y - x) / (2 * y), x)

    run = tg.trace(tg.value_and_grad(root))
    close(run(x), [x.sqrt(), 0.5 / x.sqrt()], 1e-6)
    others = {n: compile_graph(executable_graph(run.graph), t) for n, t in TARGETS.items()}
    for name, plan in {"device": run.plan, **others}.items():
        inside = {a for launch in plan.launches for a in launch.args if isinstance(a, int) and plan.slots[a].kind == "temp"}
        users = {a: sum(a in launch.args for launch in plan.launches) for a in inside}
        assert all(n > 1 or plan.slots[a].shape != (1,) for a, n in users.items()), name
        assert sum(plan.slots[a].nbytes > 8 for a in inside) == 2, name       # the two stacks


def test_small_vectors_that_a_loop_hands_on_are_in_registers():
    """So are vectors of few numbers: in a descent within a descent a store and a load of them would be waited for at every iteration.

    (Those that kernels read as a whole vector of the CPU stay in memory: there, a vector has two numbers at least.)
    """
    def descent(f, x):
        def step(v):
            new = v[0] - 0.1 * tg.grad(f)(v[0])
            return new, ((new - v[0]) ** 2).sum().sqrt()

        return tg.while_loop(lambda v: v[1] > 1e-6, step, (x, tg.tensor(1.0, dtype=F)))[0]

    def nested(x):
        return descent(lambda a: ((a - 1) ** 2).sum() + (a * descent(lambda b: ((b - a) ** 2).sum(), tg.zeros_like(a)).detach()).sum(), x)

    run = tg.trace(nested)
    close([run(tg.zeros(2, dtype=F))], [tg.full((2,), 2 / 3, dtype=F)], 1e-4)
    wide = {n: compile_graph(executable_graph(run.graph), t) for n, t in TARGETS.items() if t.simd_bytes > 16}
    for name, plan in {"device": run.plan, **wide}.items():
        within = [k for k in plan.launches if "while" in plan.source.partition(f" {k.entry}(")[2].partition("__kernel")[0]]
        inside = [plan.slots[a] for launch in within for a in launch.args if isinstance(a, int)]
        assert within, name
        assert not any(s.kind == "temp" and s.shape == (2,) for s in inside), name
        lines = [line.strip() for k in within for line in plan.source.partition(f" {k.entry}(")[2].partition("__kernel")[0].splitlines()]
        above = [a for a, line in pairwise(lines) if line.startswith("for (")]
        assert set(above) == {"#pragma unroll"}, name                        # written out: no array has an index that varies


def descent_along_a_loop(x):
    """A descent whose objective is a loop, and whose derivative is needed where the objective got less."""
    def objective(w):
        def step(v):
            return v[0] + 0.1 * v[1], v[1] - 0.1 * (v[0] - tg.tensor([1.0, 0.5], dtype=F)) * w

        y = tg.while_loop(lambda v: v[0][0] < 1, step, (tg.tensor([0.0, 0.1], dtype=F), tg.tensor([0.7, 0.2], dtype=F)))[0]
        return (y[1] - 1) ** 2

    def step(v):
        w, f, g = v
        new = w - 0.05 * g
        f_new = objective(new)
        return tg.cond(f_new < f, lambda _: (new, f_new, tg.func.jacfwd(objective)(new)), lambda _: (w, f, g * 0), (w,))

    start = x, objective(x), tg.func.jacfwd(objective)(x)
    return tg.while_loop(lambda v: (v[2] ** 2).sum() > 1e-6, step, start, max_iterations=40)[0]


def test_a_loop_that_is_recorded_twice_runs_once():
    """The objective's loop, recorded again where it is differentiated: equal constants, on one side of a branch or the other."""
    x = tg.tensor(0.3, dtype=F)
    run = tg.trace(descent_along_a_loop)
    close([run(x)], [descent_along_a_loop(x)])
    others = {n: compile_graph(executable_graph(run.graph), t) for n, t in TARGETS.items()}
    for name, plan in {"device": run.plan, **others}.items():
        kernels = [k.partition("\n}")[0] for k in plan.source.split("__kernel void ")[1:]]
        assert max(k.count("while (") for k in kernels) == 3, name           # the descent, the objective, its tangent


def test_a_loop_takes_what_it_is_given_twice_once():
    def loop(x, a, b):
        return tg.while_loop(lambda y: y.sum() < 10, lambda y: y * a + b, x)

    def twice(x, a):
        return (loop(x, a * 2, a * 2) + loop(x, a * 2, a * 2)).sum()

    x, a = tg.tensor([0.5, 1.0], dtype=F), tg.tensor([0.75, 1.0], dtype=F)
    run = tg.trace(twice)
    close([run(x, a)], [twice(x, a)])
    loops = {(n.fn, n.operands) for n in executable_graph(run.graph) if n.fn.family == "while_loop"}
    assert [len(operands) for _, operands in loops] == [2]                   # the carry, the constant
    close(tg.trace(first_order(twice))(x, a), first_order(twice)(x, a))


def test_the_batch_of_a_vmap_adds_no_launches():
    f = growing(tg.while_loop)

    def launches(size):
        run = tg.trace(tg.vmap(tg.grad(f), in_dims=(0, None)))
        found = run(xs := tg.tensor(RNG.standard_normal((size, 3))), tg.tensor(W))
        np.testing.assert_allclose(found.numpy(), np.stack([tg.grad(growing(python_while))(x, tg.tensor(W)).numpy() for x in xs]), 1e-9)
        return len(run.plan.launches)

    assert launches(3) == launches(9)


@pytest.mark.long
def test_a_loop_whose_count_all_examples_share_is_one_loop_of_the_batch():
    """A Jacobian's directions: what the condition reads is computed once. With conditions of their own it is a scan."""
    def objective(x, w):
        def body(v):
            return v[0] * 1.3 + (w @ v[0]).sin(), v[1] * w.sum()

        y = tg.while_loop(lambda v: v[0].norm() < 9, body, (x, x * 0 + 1))
        return y[0] * y[1]

    def both(x, w):
        return tg.func.jacfwd(objective)(x, w), tg.func.jacrev(objective)(x, w), tg.func.jacfwd(tg.func.jacrev(objective, 1))(x, w)

    args = tg.tensor(X), tg.tensor(W)
    run = tg.trace(both)
    for found, wanted in zip(run(*args), both(*args), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), 1e-9, 1e-9)
    for f, shared in ((tg.func.jacfwd(objective), True), (tg.func.jacrev(objective), True), (tg.vmap(objective, (0, None)), False)):
        run = tg.trace(f)
        run(args[0] if shared else tg.stack([args[0], args[0] * 2]), args[1])
        loops = {n.fn for n in executable_graph(run.graph) if n.fn.family in ("loop", "while_loop")}
        assert all(fn.family == "while_loop" for fn in loops) == shared


def test_a_batch_of_counted_loops_as_each_example_alone(args):
    """Batches of the first values, of constants and of cotangents; what they share stays as it is."""
    def f(x, w):
        def body(v):
            return v[0] + 1, (w @ v[1]).sin() + v[2], v[2] * 1.5

        return tg.while_loop(lambda v: v[0] < 4, body, (tg.tensor(0), x, x * 0 + 1))[1].sum()

    x, w = args
    xs, ws = tg.stack([x, x * 2, x - 1]), tg.stack([w, w * 2, w + 1])
    for dims, given in (((0, None), (xs, w)), ((None, 0), (x, ws)), ((0, 0), (xs, ws))):
        each = [(a if d is not None else [a] * 3) for a, d in zip(given, dims, strict=True)]
        second = [tg.grad(lambda x, w: (tg.grad(f)(x, w) ** 2).sum(), (0, 1))] if dims == (0, 0) else []
        for order in (f, tg.grad(f, (0, 1)), *second):
            found = tg.trace(tg.vmap(order, dims))(*given)
            alone = [order(*pair) for pair in zip(*each, strict=True)]
            if order is f:
                found, alone = (found,), [(a,) for a in alone]
            close(found, [tg.stack(list(parts)) for parts in zip(*alone, strict=True)])


# --------------------------------------------------------------------------------------------------- results and derivatives


@pytest.mark.long
def test_derivatives_are_those_of_pythons_loop():
    args = tg.tensor(X), tg.tensor(W)
    close(tg.trace(everything(growing(tg.while_loop)))(*args), everything(growing(python_while))(*args))
    other = args[0] * 0.01, args[1]                        # another number of iterations
    close(tg.trace(everything(growing(tg.while_loop)))(*other), everything(growing(python_while))(*other))


def test_kernels_of_every_target(interpreter):
    targets = {name: TARGETS[name] for name in ("avx2", "gpu, no local memory")}
    with Checked(targets) as checked:
        args = tg.tensor(X), tg.tensor(W)
        for f in (growing(tg.while_loop), ended(tg.scan), chosen(tg.while_loop)):
            tg.trace(first_order(f))(*args)
    assert checked.count >= 3 * len(targets)


@pytest.mark.long
@pytest.mark.parametrize("program", ["growing", "ended", "chosen"])
def test_kernels_of_every_target_for_all_derivatives(interpreter, program):
    f, loop = {"growing": (growing, tg.while_loop), "ended": (ended, tg.scan), "chosen": (chosen, tg.while_loop)}[program]
    with Checked(tuning=Tuning(branch_work=1)):
        tg.trace(everything(f(loop)))(tg.tensor(X), tg.tensor(W))


@pytest.mark.parametrize("rows", [2, 4])
def test_reverse_of_more_iterations_than_a_stack_has_rows(monkeypatch, rows):
    """One block of iterations, segments of one block, and segments of several."""
    monkeypatch.setattr(while_backward, "ROWS", rows)

    def f(loop):
        def squared(x, n):
            return (loop(lambda v: v[1] < n, lambda v: ((v[0] * 1.1).sin() + 0.01 * v[1], v[1] + 1), (x, tg.tensor(0)))[0] ** 2).sum()
        return squared

    run = tg.trace(tg.grad(f(tg.while_loop)))
    for n in (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 37):
        close([run(tg.tensor(X), tg.tensor(n))], [tg.grad(f(python_while))(tg.tensor(X), n)])


@pytest.mark.long
def test_a_loop_in_a_loop():
    args = tg.tensor(X), tg.tensor(W)

    def f(loop):
        def inner(y, w):
            return loop(lambda v: v.abs().sum() < 4, lambda v: v * 1.2 + 0.1 * (w @ v).cos(), y * 0.3)
        return lambda x, w: loop(lambda v: v[1] < 4, lambda v: (inner(v[0], w), v[1] + 1), (x, tg.tensor(0)))[0].sum()

    close(tg.trace(first_order(f(tg.while_loop)))(*args), first_order(f(python_while))(*args))
    assert all(isinstance(s, Launch) for s in steps_of(tg.grad(f(tg.while_loop)), *args)["avx2"])


def test_the_limit_of_a_loop(args):
    """It ends with the value that it has: cond_fn tells that it holds still."""
    for most in (0, 3, 50):
        found = first_order(growing(tg.while_loop, max_iterations=most))
        wanted = first_order(growing(python_while, max_iterations=most))(*args)
        close(found(*args), wanted)
        close(tg.trace(found)(*args), wanted)
    x = args[0]
    examples = tg.stack([x, x * 5])

    def limited(x):
        return tg.while_loop(lambda y: y.norm() < 9, lambda y: y * 1.5, x, max_iterations=2)

    np.testing.assert_allclose(tg.vmap(limited)(examples).numpy(), np.stack([limited(e).numpy() for e in examples]))
    three = tg.trace(lambda x: tg.while_loop(lambda i, x: i < 9, lambda i, x: (i + 1, x * 2), carried_inputs=(0, x), max_iterations=3))
    assert three(x)[0].item() == 3
    with pytest.raises(tg.ArgumentError, match=r"while_loop: max_iterations must be a number of iterations, 0 or more, got -1"):
        tg.while_loop(lambda y: y < 1, tg.neg, x, max_iterations=-1)


# ------------------------------------------------------------------------------------------------------- scans that end early


def python_scan(f, init, xs, until, reverse=False):
    carry, ys = init, [None] * len(xs)
    for i in reversed(range(len(xs))) if reverse else range(len(xs)):
        if not bool(until(carry)):
            carry, ys[i] = f(carry, xs[i])
    made = next(y for y in ys if y is not None)
    return carry, tg.stack([tg.zeros_like(made) if y is None else y for y in ys])


def ended(scan, reverse=False):
    def f(x, w):
        xs = tg.cat([w, w * 2, w * 3])
        carry, ys = scan(lambda c, r: (c + (c * r).sin() + 0.5, (c * c + 1).sqrt()), x, xs, until=lambda c: c.sum() > 3, reverse=reverse)
        return (carry ** 2).sum() + (ys * tg.arange(9, dtype=F)[:, None]).sum()
    return f


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_ends_where_it_is_told(args, reverse):
    kind = first_order if reverse else everything
    found, wanted = kind(ended(tg.scan, reverse)), kind(ended(python_scan, reverse))(*args)
    close(first_order(ended(tg.scan, reverse))(*args), wanted[:3])
    close(tg.trace(found)(*args), wanted)
    examples = tg.stack([args[0], args[0] - 2, args[0] + 9])
    over = tg.trace(tg.vmap(tg.grad(ended(tg.scan, reverse)), in_dims=(0, None)))(examples[:2], args[1])
    close(over, [tg.grad(ended(python_scan, reverse))(x, args[1]) for x in examples[:2]])
    carry, ys = tg.scan(lambda c, r: (c + r, (c, 1.0)), examples[2], args[1], until=lambda c: c.sum() > 3)     # before the first row
    assert carry.tolist() == examples[2].tolist()
    assert not ys[0].any()
    assert not ys[1].any()


def test_derivatives_see_only_the_iterations_that_were_made(args):
    """Where the others would divide by zero."""
    def f(x):
        return tg.scan(lambda c, _: ((2 - c).sqrt() * 0 + c + 1, None), x, None, 6, until=lambda c: (c >= 2).all())[0].sum()

    x = tg.zeros(2, dtype=F)
    value, grad = tg.trace(tg.value_and_grad(f))(x)
    assert value.item() == 4
    assert grad.tolist() == [1.0, 1.0]


# ------------------------------------------------------------------------------------------------------------------- branches


def chosen(loop):
    def f(x, w):
        def body(v):
            y = tg.cond(v[0].sum() > 1, lambda y: y * 0.5 + w.sum(), lambda y: (y.exp() + (w @ y).sin() ** 2 + 2).log(), v[0])
            return y, v[1] + 1
        return loop(lambda v: v[1] < 7, body, (x, tg.tensor(0)))[0].sum()
    return f


@pytest.mark.parametrize("results", [first_order, pytest.param(everything, marks=pytest.mark.long)])
def test_a_cond_in_a_loop_is_a_branch(results):
    args = tg.tensor(X), tg.tensor(W)
    close(tg.trace(results(chosen(tg.while_loop)))(*args), results(chosen(python_while))(*args))


def test_kernels_with_branches():
    run = tg.trace(chosen(tg.while_loop))
    run(tg.tensor(X), tg.tensor(W))
    text = re.sub("//.*", "", str(run.kernels()))
    taken, other = text.split("while (", 1)[1].split("else {", 1)
    assert "if (" in taken
    assert "exp" not in taken
    assert "exp" in other
    xs = tg.tensor(RNG.standard_normal((8, 3)))
    steps = tg.trace(lambda x, xs: tg.scan(lambda c, r: (tg.cond(c.sum() > 0, lambda c: (c.exp() + r).log(), tg.neg, c), None), x, xs)[0])
    steps(tg.tensor(X), xs)
    assert len(steps.plan.launches) == 1
    assert "else {" in str(steps.kernels())
    few = tg.trace(lambda x: tg.while_loop(lambda v: v.sum() < 9, lambda v: tg.cond(v[0] > 0, lambda v: v + 1, lambda v: v + 2, v), x))
    few(tg.tensor(X))
    assert "if (" not in str(few.kernels())                # an `if` would cost more than the sum that it saves


def test_a_condition_that_is_long_in_coming_is_guessed():
    """A step that halves where it went up: its numbers would wait for the root and the comparison at every iteration."""
    def descent(x):
        def step(v):
            new = v[0] - v[1] * v[0]
            return tg.cond((new * new).sum().sqrt() < v[2], lambda _: (new, v[1], (new * new).sum().sqrt()),
                           lambda _: (v[0], v[1] / 2, v[2]), x)

        return tg.while_loop(lambda v: v[2] > 1e-3, step, (x, x[0] * 0 + 2.5, (x * x).sum().sqrt()))[0]

    run = tg.trace(descent)
    close([run(tg.tensor(X))], [descent(tg.tensor(X))])
    inside = str(run.kernels()).split("while (", 1)[1]
    assert "if (" in inside
    assert "sqrt" in inside.split("if (", 1)[0]
    large = tg.trace(lambda x: tg.while_loop(lambda v: v.sum() > 1, lambda v: tg.where((v * v).sum().sqrt() < 1, v * 0.25, v * 0.5), x))
    large(tg.ones(16, dtype=F))
    assert "if (" not in str(large.kernels()).split("while (", 1)[1]         # what is selected is no few numbers: they would be copied


def nested(outer, inner):
    """A function of three numbers: a loop, or a branch, in another one."""
    def one(kind, of):
        return {
            "while": lambda x: tg.while_loop(lambda i, h: (i < 2) & (h.abs().sum() < 9), lambda i, h: (i + 1, of(h)),
                                             carried_inputs=(tg.tensor(0), x))[1],
            "scan": lambda x: tg.scan(lambda h, row: (of(h) * row, None), x, tg.ones(2, dtype=F))[0],
            "until": lambda x: tg.scan(lambda h, row: (of(h) * row, None), x, tg.ones(3, dtype=F), until=lambda h: (h > 2).any())[0],
            "cond": lambda x: tg.cond(x.sum() > 0, lambda h: of(h) * h, of, x),
        }[kind]

    return one(outer, one(inner, tg.sin))


@pytest.mark.parametrize(("outer", "inner"), [("while", "while"), ("while", "scan"), ("while", "cond"), ("scan", "while"),
                                              ("cond", "while"), ("cond", "scan"), ("until", "while")])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_second_derivative_of_nested_loops_that_nobody_differentiates(outer, inner, mapped):
    """What it is the derivative of was recorded in no_grad, where the inner loop had none: it was 0, or short of a part, without a word."""
    def derivatives(f, x):
        x = tg.tensor(x, requires_grad=True)
        first, = tg.autograd.grad(f(x).square().sum(), x, create_graph=True)
        second, = tg.autograd.grad(first.square().sum(), x)
        return first.detach(), second

    f, rows = nested(outer, inner), np.stack([X, -X])
    wanted = [derivatives(f, row) for row in rows]
    if mapped:
        close(derivatives(tg.trace(tg.vmap(f)), rows), [tg.stack(w) for w in zip(*wanted, strict=True)])
    else:
        traced = tg.trace(f)
        for row, w in zip(rows, wanted, strict=True):
            close(derivatives(traced, row), w)


def test_a_third_derivative_of_a_scan_that_ends_early_with_a_scan_inside(on_numpy):
    """Its cond's derivative read operands of the iteration that was recorded first, which have no value elsewhere: a TraceError."""
    f = nested("until", "scan")

    def third(f, x):
        x = tg.tensor(x, requires_grad=True)
        y = f(x)
        for _ in range(3):
            y, = tg.autograd.grad(y.square().sum(), x, create_graph=True)
        return y.detach()

    close([third(tg.trace(f), X)], [third(f, X)])


class Cube(tg.autograd.Function):
    """x³, by a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, ct):
        x, = ctx.saved_tensors
        return ct * 3.0 * x * x


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_second_derivative_of_a_custom_function_in_a_branch_of_a_loop(on_numpy, create_graph):
    """Zeros stand for the cotangent there; a tensor of them was another node, so what depends on it had no derivative, without a word."""
    def f(x):
        branch = lambda h: tg.cond(h.sum() > 0, Cube.apply, lambda h: Cube.apply(h * 2.0), h)
        return tg.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, branch(h) * 0.9), carried_inputs=(tg.tensor(0), x))[1]

    def second(f):
        x = tg.tensor([0.9, 1.1, -0.8], dtype=tg.float64, requires_grad=True)
        first, = tg.autograd.grad(f(x).square().sum(), x, create_graph=True)
        return tg.autograd.grad(first.square().sum(), x, create_graph=create_graph)[0].detach()

    close([second(tg.trace(f))], [second(f)])


@pytest.mark.parametrize("condition", ["no", None, (False,), [tg.tensor(False)]], ids=["word", "None", "tuple", "list"])
@pytest.mark.parametrize("around", [lambda f: f, tg.trace], ids=["untraced", "traced"])
def test_conditions_that_are_no_bool_are_refused(condition, around):
    """Untraced Python would take a container for true: the loop never ended."""
    loop = around(lambda x: tg.while_loop(lambda x: condition, lambda x: x * 2, x, max_iterations=3))
    with pytest.raises(tg.ArgumentError, match="while_loop: cond_fn must return a bool, or a tensor of one element, got"):
        loop(tg.ones(2))
