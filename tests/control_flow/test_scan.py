"""tg.scan as a loop, beside the unrolled Python loop: on the interpreter, by kernels read in C, on the device."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers import standalone
from tests.helpers.functions import square
from tests.helpers.kernels import CPU, TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad.codegen.compiler import compile_graph
from tracegrad.control_flow import functions
from tracegrad.execute.compile import executable_graph
from tracegrad.graph.printing import to_text
from tracegrad.numpy_backend import interpreter as rules
from tracegrad.support.plan import Loop
from tracegrad.support.tuning import Tuning, tuned

F = tg.float64
PLAIN = Tuning(launch_work=0, iteration_work=0, parted_work=0)     # no kernel is small: a loop is launches in turn,
PARTED = Tuning(launch_work=0, iteration_work=0, parted_iterations=0)   # or a launch of the parts of its batch


def unrolled(f, init, xs=None, length=None, reverse=False, checkpoint=None):
    """What scan means."""
    leaves = [xs] if isinstance(xs, tg.Tensor) else list(xs or ())
    n = leaves[0].shape[0] if leaves else length
    carry, ys = init, [None] * n
    for i in reversed(range(n)) if reverse else range(n):
        row = xs[i] if isinstance(xs, tg.Tensor) else None if xs is None else tuple(x[i] for x in xs)
        carry, ys[i] = f(carry, row)
    if not ys or ys[0] is None:
        return carry, None
    return carry, tg.stack(ys) if isinstance(ys[0], tg.Tensor) else tuple(map(tg.stack, zip(*ys, strict=True)))


def checkpointed(k):
    return lambda *args, **more: tg.scan(*args, **more, checkpoint=k)


def numbers(*shape, scale=0.7, seed=0):
    return tg.tensor(np.random.default_rng([seed, *shape]).standard_normal(shape) * scale, dtype=F)


def rnn(scan, n):
    """A product, a nonlinearity, results that read the carry."""
    def f(w, xs):
        c, ys = scan(lambda c, x: ((c @ w + x).tanh(), c * x.sin()), tg.zeros(xs.shape[1], dtype=F), xs)
        return (c * c).sum() + ys.cos().sum()
    return f, (numbers(5, 5), numbers(n, 5))


def reversed_with_counter(scan, n):
    """From the last row to the first; an integer carry; two results."""
    def f(w, xs):
        (c, k), (a, b) = scan(lambda c, x: ((c[0] * w + x, c[1] + 1), (c[0] * x, c[1].to(F) * x)), (w, tg.tensor(0)), xs, reverse=True)
        return (c * c).sum() + (a * b).sum() * 0.01 + k
    return f, (numbers(3), numbers(n, 3))


def wave(scan, n):
    """Two carries of which one becomes the other; no xs, no ys; linear."""
    def f(u):
        def step(state, _):
            before, now = state
            return (now, 1.9 * now - before + 0.1 * (now.roll(1, 0) - 2.0 * now + now.roll(-1, 0))), None
        (before, now), _ = scan(step, (u, u * 0.5), length=n)
        return (before * now.sin()).sum()
    return f, (numbers(33, scale=0.1),)


def adams_bashforth(scan, n):
    """Each carry becomes another one but for the first, which reads its neighbours; the last is stacked, too."""
    def f(y, w):
        def slope(y):
            return (y.roll(1, 0) - y) * w

        def step(state, _):
            y, d1, d2, d3 = state
            d = slope(y)
            return (y + 0.01 * (55.0 * d - 59.0 * d1 + 37.0 * d2 - 9.0 * d3.roll(1, 0)), d, d1, d2), d3
        (y, d1, d2, d3), ys = scan(step, (y, y * 0.5, slope(y), w * y), length=n)
        return (y * d1 * d2).sum() + d3.sin().sum() + (ys * ys).sum()
    return f, (numbers(33, scale=0.3), numbers(33))


def behind_one_another(scan, n):
    """Two carries become the same one, which becomes a product; two change places; one becomes what one of those was."""
    def f(w, u, xs):
        def step(state, x):
            now, a, _, p, q, r = state
            return (0.3 * (now @ w) + x, now, now, q, p, p), (a, r)
        found, (a, r) = scan(step, (u, u * 2.0, u.sin(), u * 3.0, u, u * 0.5), xs)
        return sum((c * (k + 1.0)).sin().sum() for k, c in enumerate(found)) + (a * r).sum()
    return f, (numbers(5, 5), numbers(5), numbers(n, 5))


def signs_that_change(scan, n):
    """Carries become negatives of others: of one that is a product, of each other; one is stacked as it is."""
    def f(u, w):
        def step(state, _):
            a, b, c, d = state
            return (-b, (b * w).sin() - a + 0.1 * b.roll(1, 0), -d, -c), (a, c * d)
        (a, b, c, d), (ys, zs) = scan(step, (u, u * 0.5, w, u * w), length=n)
        return (a * b).sum() + (c - d).sin().sum() + (ys * ys * ys).sum() + zs.sum()
    return f, (numbers(33, scale=0.3), numbers(33))


def nested(scan, n):
    def f(w, xs):
        def inner(c, x):
            return (c * w).sin() + x, c

        def outer(c, x):
            c, ys = scan(inner, c, x.reshape(3, 1) * tg.ones(3, 2, dtype=F))
            return c, ys.sum(0)
        c, ys = scan(outer, tg.ones(2, dtype=F), xs)
        return (c * c).sum() + (ys * ys).sum()
    return f, (numbers(2), numbers(n, 3))


def unchanged(scan, n):
    """A carry that passes through as it is, and rows that are all alike."""
    def f(w, xs):
        (a, b, k), ys = scan(lambda c, x: ((c[0], c[1] * c[0] + x[0], c[2]), x[0] * x[1]), (w, w * 2, tg.tensor(1.0, dtype=F)),
                             (xs, w.expand(n, 3)))
        return a.sum() + b.sum() * k + ys.sum()
    return f, (numbers(3), numbers(n, 3))


squared = square(slope=lambda x: 3 * x)         # a wrong derivative, to see that it is the one taken


def custom_function(scan, n):
    def f(w, xs):
        c, ys = scan(lambda c, x: (squared(c * w * 0.3) + x, squared(x).sum()), w, xs)
        return c.sum() + ys.sum()
    return f, (numbers(3), numbers(n, 3, scale=0.3))


def inside_a_custom_function(scan, n):
    class Grown(tg.Function):
        @staticmethod
        def forward(ctx, w):
            ctx.save_for_backward(w)
            return scan(lambda c, _: ((c * w).sin(), None), w, length=n)[0]

        @staticmethod
        def backward(ctx, g):
            (w,) = ctx.saved_tensors
            return g * scan(lambda c, _: ((c * w).cos(), None), w, length=n)[0]

    return lambda w: (Grown.apply(w) ** 2).sum(), (numbers(3),)


def derivative_in_the_body(scan, n):
    def f(w, xs):
        def body(c, x):
            g = tg.grad(lambda c: ((c * w - x) ** 4).sum())(c)
            return c - 0.01 * g, (g * g).sum()
        c, ys = scan(body, w * 0.3, xs)
        return (c * c).sum() + ys.sum() * 0.1
    return f, (numbers(3), numbers(n, 3))


def gathers(scan, n):
    index = tg.tensor(np.random.default_rng(1).integers(0, 4, n))

    def f(w):
        c, ys = scan(lambda c, i: (c.sin() + w[i], c[i] * w[i]), w * 0.3, index)
        return (c * c).sum() + ys.sum()
    return f, (numbers(4),)


def temporaries_changed_in_place(scan, n):
    def f(w, xs):
        def body(c, x):
            t = c * w
            t.add_(x)
            t[0] = t[1] * 2.0
            t.mul_(0.5)
            return t.sin(), t
        c, ys = scan(body, w * 0.5, xs)
        return (c * c).sum() + (ys * ys).sum()
    return f, (numbers(3), numbers(n, 3))


def reductions_and_branches(scan, n):
    def f(w, xs):
        def body(c, x):
            p = (c * w).softmax(0)
            c = tg.cond(x.sum() > 0, lambda c: c + p, lambda c: c.cumsum(0) * 0.1, c)
            return c, (p.max(), tg.where(x > 0, p, c))
        c, (a, b) = scan(body, w, xs)
        return (c * c).sum() + (a * a).sum() + b.sin().sum()
    return f, (numbers(7), numbers(n, 7))


def mapped(scan, n):
    """vmap of a scan (weights shared), and vmap of its gradient (weights mapped)."""
    one = rnn(scan, n)[0]

    def f(w, xs):
        shared = tg.vmap(lambda x: one(w, x))(xs)
        own = tg.vmap(tg.grad(one))(w.expand(3, 5, 5) * 0.5, xs)
        return shared.sum() + (own * own).sum()
    return f, (numbers(5, 5, scale=0.4), numbers(3, n, 5))


PROGRAMS = [rnn, reversed_with_counter, wave, adams_bashforth, behind_one_another, signs_that_change, nested, unchanged, custom_function,
            inside_a_custom_function, derivative_in_the_body, gathers, temporaries_changed_in_place, reductions_and_branches, mapped]
LENGTHS = {rnn: 13, wave: 16, reversed_with_counter: 31, gathers: 33}


def first_order(program, scan, n):
    """Value and gradients, in one traced function."""
    f, args = program(scan, n)
    return tg.trace(tg.value_and_grad(f, tuple(range(len(args))))), args


def leaves(result):
    return [x for r in result for x in leaves(r)] if isinstance(result, tuple) else [result.numpy()]


def arrays(result):
    value, grads = result
    return [value.numpy(), *(g.numpy() for g in grads)]


def close(found, wanted, tolerance=1e-9):
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=f"result {k}")


@pytest.fixture
def interpreter():
    previous = tg.device()
    yield tg.set_device("numpy")
    tg.set_device(previous)


@one_of(3, ("program", "k"), [(program, (None, 1, 4)[(number + k) % 3]) for number, program in enumerate(PROGRAMS) for k in range(3)])
def test_derivatives_of_every_kind(interpreter, program, k):
    n = LENGTHS.get(program, 7)

    def everything(scan):
        f, args = program(scan, n)
        which = tuple(range(len(args)))
        directions = tuple(tg.ones_like(a) * 0.5 for a in args)

        @tg.trace
        def run(*args):
            value, grads = tg.value_and_grad(f, which)(*args)
            second = tg.grad(lambda *a: sum(g.sin().sum() for g in tg.grad(f, which)(*a)), which)(*args)
            forward = tg.jvp(f, args, directions)[1]
            over = tg.jvp(tg.grad(f), args, directions)[1]
            return value, *grads, *second, forward, over

        return [r.numpy() for r in run(*args)]

    close(everything(tg.scan if k is None else checkpointed(k)), everything(unrolled), 1e-8)


TUNINGS = {"one launch": Tuning(), "launch by launch": PLAIN, "in parts": PARTED}


@one_of(3, ("program", "tuning"), [(program, [*TUNINGS][(number + k) % 3]) for number, program in enumerate(PROGRAMS) for k in range(3)])
def test_kernels_read_in_c(interpreter, program, tuning):
    """Every access checked: rows, the two places of a carry, what iterations share."""
    with Checked({"cpu": CPU}, tuning=TUNINGS[tuning]) as checked:
        for scan in (tg.scan, checkpointed(3)):
            f, args = first_order(program, scan, 7)
            f(*args)
    assert checked.count >= 2


@pytest.mark.parametrize("n", [0, 1, 2, 7, 13, 16, 31, 33, 64, 65, 100])
def test_lengths(interpreter, n):
    for k in (None, 1, 7, 64, 200):
        f, args = first_order(rnn, tg.scan if k is None else checkpointed(k), n)
        g, _ = first_order(rnn, lambda f, c, xs: unrolled(f, c, xs) if n else (c, xs * 0.0), n)
        close(arrays(f(*args)), arrays(g(*args)))


@pytest.mark.parametrize("n", [40, 95, 128, 181, 260])
def test_an_iteration_is_one_core_s_or_all_of_them_launched(n):
    """On both sides of where one core is slower: the same numbers as numpy's, and at these sizes on the device."""
    def f(u, v):
        def step(state, row):
            before, now = state
            near = now.roll(1, 0) + now.roll(-1, 0) + now.roll(1, 1) + now.roll(-1, 1)
            return (now, 1.9 * now - before + 0.1 * (near - 4.0 * now) * row), now.sum(1)
        (before, now), sums = tg.scan(step, (u, u * 0.5), v)
        return before * now, sums

    u, v = numbers(n, n), numbers(7)
    traced = tg.trace(f)
    found = leaves(traced(u, v))
    before, now, sums = u.numpy(), u.numpy() * 0.5, []
    for row in v.numpy():
        near = sum(np.roll(now, k, axis) for axis in (0, 1) for k in (1, -1))
        sums.append(now.sum(1))
        before, now = now, 1.9 * now - before + 0.1 * (near - 4.0 * now) * row
    for a, b in zip(found, (before * now, np.stack(sums)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)
    graph = executable_graph(traced.graph)
    with tuned(PLAIN):
        iterations, = (step for step in compile_graph(graph, CPU).steps if isinstance(step, Loop))
    work = max(launch.work for launch in iterations.steps)
    for more, launched in ((1, False), (0, True)):                         # of two cores, each saves half
        with tuned(Tuning(launch_work=0, iteration_work=work // 2 + more)):
            assert any(isinstance(step, Loop) for step in compile_graph(graph, CPU).steps) == launched


@one_of(2, "n", [700, 4097, 6400, 9000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_loop_of_several_work_items_becomes_part_of_another_kernel(n, dtype):
    """Each of its items goes through all iterations: so does each where they are a loop of one work-item, inside or beside others."""
    def segments(x, xs):                                     # a loop in a loop: as checkpoints make them
        def iterate(c, rows):
            return tg.scan(lambda c, x: ((x * 0.3 + c[1] * 0.2, c[0]), None), c, rows)[0], None
        (h, g), _ = tg.scan(iterate, (x, x * 0.5), xs.reshape(2, 3, n))
        return h, g, tg.scan(lambda c, x: ((x * 0.3 + c[1] * 0.2, c[0]), None), (x, x * 0.5), xs, checkpoint=3)[0][0]

    def beside(x, xs):
        h, _ = tg.scan(lambda c, x: (x * 0.3 + c * 0.2, None), x, xs)
        return h, h.flip(0).roll(3) * 2.0, x.sum()

    x, xs = numbers(n), numbers(6, n)
    x, xs = x.to(getattr(tg, dtype)), xs.to(getattr(tg, dtype))
    h, g = x.numpy(), x.numpy() * 0.5
    for row in xs.numpy():
        h, g = row * 0.3 + g * 0.2, h
    found = leaves(tg.trace(segments)(x, xs))
    tolerance = dict(rtol=1e-5, atol=1e-5) if dtype == "float32" else dict(rtol=1e-12, atol=1e-12)
    for a, b in zip(found, (h, g, h), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)
    for iterations in (1, 2):
        h = x.numpy()
        for row in xs.numpy()[:iterations]:
            h = row * 0.3 + h * 0.2
        found = leaves(tg.trace(beside)(x, xs[:iterations]))
        for a, b in zip(found, (h, np.roll(h[::-1], 3) * 2.0, x.numpy().sum()), strict=True):
            np.testing.assert_allclose(a, b, **(tolerance if a.ndim else dict(rtol=1e-3, atol=1e-3)))


@pytest.mark.parametrize("program", [wave, adams_bashforth, behind_one_another, signs_that_change])
@one_of(4, "tuning", [Tuning(), PLAIN, PARTED], ids=["one launch", "launch by launch", "in parts"])
@pytest.mark.parametrize("iterations", [(1, 2, 3, 12), pytest.param((4, 5, 6, 40), marks=pytest.mark.long)])
def test_carries_that_become_others_lie_in_a_ring(interpreter, program, tuning, iterations):
    """Also where there are fewer iterations than carries in the row."""
    for n in iterations:
        with Checked({"cpu": CPU, "gpu": TARGETS["gpu"]} if n in (2, 5) else {"cpu": CPU}, tuning=tuning):
            f, _ = first_order(program, tg.scan, n)
            g, args = first_order(program, unrolled, n)
            close(arrays(f(*args)), arrays(g(*args)))


def test_a_leapfrog_copies_nothing_and_is_one_launch_an_iteration():
    """Nor does its gradient launch a kernel for what an iteration's cotangent only negates."""
    f, args = first_order(wave, tg.scan, 50)
    f(*args)
    with tuned(PLAIN):
        plan = compile_graph(executable_graph(f.graph), CPU)
    loops = [step for step in plan.steps if isinstance(step, Loop)]
    assert [len(loop.steps) for loop in loops] == [1, 1]
    assert "_ring" in plan.source
    assert "variable" not in plan.source


def test_what_is_written_in_place_is_read_by_who_writes_it(interpreter):
    """Of a row in two parts by its neighbours, one carry over the other: no work-item reads an element of another one's part."""
    def f(scan):
        return tg.trace(lambda a, b, xs: tg.add(*scan(lambda c, v: ((-c[1], c[1].roll(1) * 0.5 + c[0] * 0.3 - v), None), (a, b), xs)[0]))

    given = numbers(65), numbers(65), numbers(9, 65)
    in_place = Tuning(list_work=1, item=16, kept_bytes=0, kept_iterations=1, looped_lines=0, looped_work=0, launch_work=1024)
    with Checked({"cpu": replace(CPU, cores=16, simd_bytes=16)}, tuning=in_place):
        found = f(tg.scan)(*given)
    close([found.numpy()], [f(unrolled)(*given).numpy()])


@pytest.mark.parametrize("size", [1, 7, 13, 16, 31, 33, 64, 65, 100])
def test_sizes_of_rows(interpreter, size):
    """Rows begin at any element's address."""
    def f(scan):
        @tg.trace
        def run(x):
            c, ys = scan(lambda c, x: (c * 0.9 + x, (c - x).cumsum(0)), x[0] * 0.0, x)
            return c, ys, tg.grad(lambda x: (scan(lambda c, x: ((c * x).sin() + x, c), x[0], x)[1] ** 2).sum())(x)
        return run

    x = numbers(5, size)
    with Checked({"cpu": CPU}), Checked({"cpu": CPU}, tuning=PLAIN), Checked({"cpu": CPU}, tuning=PARTED):
        found = f(tg.scan)(x)
    close([a.numpy() for a in found], [a.numpy() for a in f(unrolled)(x)])


@pytest.mark.parametrize("name", ["avx512", "builtins", "gpu", "gpu, no local memory"])
def test_kernels_for_other_devices(interpreter, name):
    with Checked({name: TARGETS[name]}) as checked:
        for program, n in ((wave, 3), (nested, 2), (unchanged, 3), (gathers, 4)):
            f, args = first_order(program, tg.scan, n)
            f(*args)
    assert checked.count == 4


@pytest.mark.parametrize("name", ["sse, 16 cores", "gpu"])
def test_elements_that_do_not_depend_on_each_other(interpreter, name):
    """Each work-item does all iterations of its own elements: a batch of pendulums is one launch. Where neighbours are read, it is not."""
    def loss(scan, coupled):
        def f(u, angle):
            def body(state, u):
                angle, speed = state
                near = angle.roll(1, 0) if coupled else angle
                speed = speed + 0.05 * (u - near.sin() - 0.1 * speed)
                return (angle + 0.05 * speed, speed), angle
            (angle, speed), ys = scan(body, (angle, angle * 0.0), u)
            return (angle * angle).sum() + speed.sum() + (ys * ys).sum() * 0.1
        return tg.trace(tg.value_and_grad(f, (0, 1)))

    args = numbers(5, 300), numbers(300)
    tuning = Tuning(item=16, launch_work=0, iteration_work=0, parted_iterations=0)
    for coupled in (False, True):
        with Checked({name: TARGETS[name]}, tuning=tuning):
            f = loss(tg.scan, coupled)
            close(arrays(f(*args)), arrays(loss(unrolled, coupled)(*args)))
        with tuned(tuning):
            plan = compile_graph(executable_graph(f.graph), TARGETS[name])
        assert any(isinstance(step, Loop) for step in plan.steps) == coupled


def test_what_is_counted_in_an_iteration_is_counted_anew(interpreter):
    """A GPU's scatter sorts its indices: a launch counts their digits, and one adds up the counts in place, which reads nothing else."""
    def iterate(carry, row):
        carry = tg.zeros(35).index_add(0, (carry * 10).long().clamp(0, 34), row)
        return carry, (carry * row).sum()

    carry, rows = numbers(35).abs().float(), numbers(4, 35).float()
    with Checked({"gpu": TARGETS["gpu"]}) as checked:
        found = tg.trace(lambda c, x: tg.scan(iterate, c, x))(carry, rows)
    assert checked.count
    for a, b in zip(found, unrolled(iterate, carry, rows), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


def test_equal_launches_of_a_loop_that_read_other_iterations_have_other_names(interpreter):
    """The loss before a step and the one after it are equal kernels, of the carry that was and of the one that will be."""
    def descent(x, y):
        def iterate(w, row):
            def loss(w):
                return ((w.tanh() * row[0]).sum() - row[1]) ** 2 + 0.01 * (w**4).sum()
            w = w - 0.05 * tg.grad(loss)(w)
            return w, loss(w)
        w, losses = tg.scan(iterate, x[0] * 0.1, (x, y))
        return w.sum() + losses.sum()

    x, y = numbers(11, 33).float(), numbers(11).float()
    with Checked({"avx2": TARGETS["avx2"]}, tuning=Tuning(max_statements=4, launch_work=1024, iteration_work=1024), slack=50.0) as checked:
        tg.trace(lambda x, y: tg.jvp(tg.grad(descent, (0, 1)), (x, y), (x, y)))(x, y)
    assert checked.count


def test_dtypes_and_rows_of_no_elements(interpreter):
    """Halves, bools and bytes as carries and rows, and a Python bool; rows that hold nothing beside others."""
    def mixed(scan):
        def body(c, x):
            h, b, u, k = c
            return (h * 0.5 + x[0], b ^ x[1], u + x[2], k), (h, b, u, u.float() * h.float())
        return tg.trace(lambda h, b, u: scan(body, (h[0], b[0], u[0], True), (h, b, u)))

    def empty(scan):
        return tg.trace(lambda x, w: scan(lambda c, x: ((c[0] + 1, c[1] * w), (x * 2, c[1])), (x[0], w), x))

    rng = np.random.default_rng(0)
    args = [tg.tensor(a) for a in (rng.standard_normal((5, 33)).astype(np.float16), rng.integers(0, 2, (5, 33)).astype(bool),
                                   rng.integers(0, 9, (5, 33)).astype(np.uint8))]
    with Checked({"cpu": CPU}), Checked({"cpu": CPU}, tuning=PLAIN):
        (*carry, k), ys = mixed(tg.scan)(*args)
        (e, w), (doubled, _) = empty(tg.scan)(tg.zeros(4, 0), numbers(3))
    (*wanted, _), wanted_ys = mixed(unrolled)(*args)
    for a, b in zip((*carry, *ys), (*wanted, *wanted_ys), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert k.item() is True
    assert (e.shape, doubled.shape) == ((0,), (4, 0))
    np.testing.assert_allclose(w.numpy(), numbers(3).numpy() ** 5)


def test_finite_differences(interpreter):
    """In float64, of every program: independent of all derivative rules."""
    for program in PROGRAMS:
        if program in (custom_function, inside_a_custom_function):       # whose derivatives are wrong on purpose
            continue
        f, args = first_order(program, tg.scan, 5)
        grads = f(*args)[1]
        directions = [np.random.default_rng(3).standard_normal(a.shape) for a in args]

        def moved(h, args=args, directions=directions, f=f):
            return f(*(tg.tensor(a.numpy() + h * d, dtype=F) for a, d in zip(args, directions, strict=True)))[0].item()

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        found = sum(float((g.numpy() * d).sum()) for g, d in zip(grads, directions, strict=True))
        assert abs(slope - found) <= 1e-6 * max(1.0, abs(slope)), program.__name__


@pytest.mark.long
@pytest.mark.parametrize("dtype", [tg.float32, F])
def test_on_the_device(dtype):
    """All programs in one traced function, by the device's kernels."""
    def everything(scan):
        made = [program(scan, LENGTHS.get(program, 7)) for program in PROGRAMS[:8]]

        @tg.trace
        def run(*args):
            out, at = [], 0
            for f, own in made:
                given = args[at:at + len(own)]
                at += len(own)
                value, grads = tg.value_and_grad(f, tuple(range(len(own))))(*given)
                out += [value, *grads]
            return out

        return run, [a for _, own in made for a in own]

    if dtype == tg.float32:
        x = tg.tensor(np.random.default_rng(0).standard_normal((65, 33)).astype(np.float32))

        def f(scan):
            return tg.trace(tg.value_and_grad(lambda x: (scan(lambda c, x: ((c * x).sin() + x, c), x[0], x)[1] ** 2).mean()))

        (value, grad), (wanted, wanted_grad) = f(tg.scan)(x), f(unrolled)(x)
        close([value.numpy(), grad.numpy()], [wanted.numpy(), wanted_grad.numpy()], 2e-5)
        return
    run, args = everything(tg.scan)
    found = [r.numpy() for r in run(*args)]
    previous = tg.device()
    tg.set_device("numpy")
    try:
        run, _ = everything(unrolled)
        wanted = [r.numpy() for r in run(*(tg.tensor(a.numpy(), dtype=F) for a in args))]
    finally:
        tg.set_device(previous)
    close(found, wanted)


@pytest.mark.usefixtures("device")
def test_large_rows_are_launched_turn_by_turn():
    x = numbers(7, 300, 257)
    f = tg.trace(tg.value_and_grad(lambda x: (tg.scan(lambda c, x: ((c * x).sin() + x, None), x[0], x)[0] ** 2).sum()))
    g = tg.trace(tg.value_and_grad(lambda x: (unrolled(lambda c, x: ((c * x).sin() + x, None), x[0], x)[0] ** 2).sum()))
    with tuned(Tuning(parted_work=0)):
        value, grad = f(x)
    wanted, wanted_grad = g(x)
    close([value.numpy(), grad.numpy()], [wanted.numpy(), wanted_grad.numpy()])
    if f.plan is not None:
        assert sum(isinstance(step, Loop) for step in f.plan.steps) == 2


def test_everything_is_as_long_for_2048_iterations_as_for_64(interpreter):
    """Nodes, kernels and launches do not grow with the length; of small bodies, the loop is in the kernel."""
    def program(n):
        f, args = first_order(rnn, tg.scan, n)
        f(*args)
        return f

    short, long = program(64), program(2048)
    assert len(short.graph) == len(long.graph)
    tg.set_device("cpu")
    f, args = first_order(rnn, tg.scan, 100)
    f(*args)
    assert len(f.plan.launches) <= 3
    assert "a loop of 100 iterations in one launch" in f.explain()


@pytest.mark.parametrize("reverse", [False, True])
def test_one_iteration_is_no_loop(reverse):
    """It is fused with what is around it: the gradient of the carry has nothing of the row that is stacked."""
    def program(scan):
        def f(c, x, k):
            carry, rows = scan(lambda c, x: ((c * x).sin() + k, (c.exp(), x * k)), c, x, reverse=reverse)
            return carry * 2 + rows[0][0], rows[1].sum(1)

        return f

    args = numbers(70), numbers(1, 70, seed=1), numbers(70, seed=2)
    f = tg.trace(program(tg.scan))
    close([r.numpy() for r in f(*args)], [r.numpy() for r in program(unrolled)(*args)])
    f = tg.trace(tg.grad(lambda c, x, k: program(tg.scan)(c, x, k)[0].sum(), argnums=(0, 1, 2)))
    wanted = tg.grad(lambda c, x, k: program(unrolled)(c, x, k)[0].sum(), argnums=(0, 1, 2))(*args)
    close([r.numpy() for r in f(*args)], [r.numpy() for r in wanted])
    if f.plan is not None:
        assert len(f.plan.launches) == 1
        assert "a loop of" not in f.explain()


def test_memory_with_checkpoints(kernels):
    """What a derivative keeps grows with the root of the length."""
    def kept(scan, n):
        f = tg.trace(tg.grad(lambda c: scan(lambda c, _: ((c * 1.1).sin(), None), c, length=n)[0].sum()))
        previous = tg.device()
        tg.set_device("numpy")
        try:
            f(numbers(1000))
        finally:
            tg.set_device(previous)
        return sum(compile_graph(executable_graph(f.graph), CPU).blocks) / 8000

    assert kept(tg.scan, 1024) > 1024
    assert kept(checkpointed(32), 1024) < 80
    assert kept(checkpointed(100), 10000) < 220


def test_sqrt_is_chosen_above_a_bound(interpreter, monkeypatch):
    monkeypatch.setattr(functions, "KEPT", 1000)
    f, args = first_order(rnn, tg.scan, 33)
    g, _ = first_order(rnn, unrolled, 33)
    close(arrays(f(*args)), arrays(g(*args)))
    assert max(n.fn.length for n in f.graph if n.fn.family == "loop") < 33


# ------------------------------------------------------------------------------------------------------- what a body may do


@pytest.mark.parametrize("reverse", [False, True])
def test_random_numbers(interpreter, reverse):
    """Each iteration has its own; the stream is that of the Python loop; the derivative sees the same; a replay draws on."""
    def run(scan):
        def f(w):
            def body(c, x):
                return c * tg.rand(3, dtype=F) + x.sin() * tg.randn(3, dtype=F), tg.rand((), dtype=F) * c.sum()
            c, ys = scan(body, w, w.reshape(1, 3) * tg.ones(7, 1, dtype=F), reverse=reverse)
            return (c * tg.rand(3, dtype=F)).sum() + (ys * ys).sum()
        tg.manual_seed(5)
        g = tg.trace(tg.value_and_grad(f))
        w = tg.tensor([1.0, 2.0, 3.0], dtype=F)
        return [x.numpy() for x in (*g(w), *g(w), tg.rand(2), tg.trace(tg.grad(lambda w: (tg.grad(f)(w) ** 2).sum()))(w))]

    found = run(tg.scan)
    close(found, run(unrolled), 1e-10)
    assert not np.allclose(found[0], found[2])


@pytest.mark.parametrize("n", [7, 33])
def test_the_gradient_of_a_weight_is_one_product(interpreter, n):
    """Of what the iterations stack, not a sum that every iteration adds to; of the rows that are there, nothing is stacked again."""
    def f(scan):
        def loss(w, r, xs):
            c, ys = scan(lambda c, x: ((x @ w + (c @ r.T) * 0.5).tanh(), c.sum(0)), xs[0] @ w, xs)
            return (c * c).sum() + ys.sin().sum()
        which = (0, 1, 2)
        return tg.trace(lambda *a: (*tg.value_and_grad(loss, which)(*a),
                                    tg.grad(lambda *a: sum(g.sin().sum() for g in tg.grad(loss, which)(*a)), which)(*a))), loss

    args = numbers(13, 16, scale=0.3), numbers(16, 16, scale=0.3), numbers(n, 5, 13)
    found, wanted = f(tg.scan)[0](*args), f(unrolled)[0](*args)
    close([a.numpy() for part in found[1:] for a in part], [a.numpy() for part in wanted[1:] for a in part], 1e-8)
    g = tg.trace(tg.grad(f(tg.scan)[1], (0, 1)))
    with Checked({"cpu": CPU}), Checked({"cpu": CPU}, tuning=PLAIN):
        g(*args)
    (back,) = {x.fn for x in executable_graph(g.graph) if x.fn.family == "loop" and x.fn.reverse}
    assert back.body.carries == 1


def test_random_numbers_in_nested_loops(interpreter):
    def run(scan):
        tg.manual_seed(5)
        f = tg.trace(lambda x: scan(lambda c, x: (scan(lambda c, _: (c + tg.rand(2), None), c, length=3)[0] + tg.rand(2), c), x[0], x))
        c, ys = f(tg.ones(4, 2))
        return [c.numpy(), ys.numpy(), tg.rand(2).numpy()]

    close(run(tg.scan), run(unrolled), 1e-6)


@pytest.mark.usefixtures("device")
def test_an_index_out_of_range_in_a_loop_is_reported():
    def f(w, index):
        c, _ = tg.scan(lambda c, i: (c + w[i], c), tg.zeros((), dtype=F), index)
        return c, (w * 2).sum()

    f = tg.trace(f)
    w = numbers(5)
    c, _ = f(w, tg.tensor([0, 4, 2]))
    np.testing.assert_allclose(c.item(), w.numpy()[[0, 4, 2]].sum())
    c, other = f(w, tg.tensor([0, 7, 2]))
    with pytest.raises(tg.IndexOutOfRange, match=r"test_scan.py:\d+.* holds 7"):
        c.item()
    np.testing.assert_allclose(other.item(), 2 * w.numpy().sum())
    np.testing.assert_allclose(f(w, tg.tensor([1, 1, 1]))[0].item(), 3 * w.numpy()[1])


@pytest.mark.usefixtures("device")
def test_host_calls_factorizations_and_users_kernels_in_the_body():
    source = "__kernel void twice(__global const double *x, __global double *y) { y[get_global_id(0)] = 2.0 * x[get_global_id(0)]; }"
    twice = tg.opencl_function(source=source, entry="twice") if tg.device().kind != "numpy" else None
    seen = []

    def double(x):
        seen.append(x.copy())
        return 2 * x

    def f(scan):
        def body(c, x):
            m = x.reshape(2, 2) @ x.reshape(2, 2).T + tg.eye(2, dtype=F)
            s = tg.linalg.solve(m, c[:2])
            return tg.cat([s, tg.host_call(double, x)[2:]]) * 0.5, c
        return tg.trace(lambda c, xs: scan(body, c, xs))

    c, xs = numbers(4), numbers(7, 4)
    found, wanted = f(tg.scan)(c, xs), f(unrolled)(c, xs)
    close([a.numpy() for a in found], [a.numpy() for a in wanted])
    assert len(seen) == 14
    if twice is not None:
        g = tg.trace(lambda c, xs: tg.scan(lambda c, x: (twice(c) * 0.3 + twice(x), twice(c)), c, xs))
        h = tg.trace(lambda c, xs: unrolled(lambda c, x: (c * 0.6 + 2 * x, 2 * c), c, xs))
        close([a.numpy() for a in g(c, xs)], [a.numpy() for a in h(c, xs)])


@one_of(4, "length", [1, 5], first=1)
@pytest.mark.usefixtures("device")
def test_host_calls_and_users_kernels_read_what_an_iteration_hands_on(length):
    """They are given whole buffers, and carries and rows lie somewhere else in every iteration: also in a loop around theirs."""
    source = "__kernel void twice(__global const double *x, __global double *y) { y[get_global_id(0)] = 2.0 * x[get_global_id(0)]; }"
    twice = tg.opencl_function(source=source, entry="twice") if tg.device().kind != "numpy" else lambda x: 2 * x
    double = lambda x: tg.host_call(lambda x: 2 * x, x)

    def f(scan, call, around):
        def iterate(c, x):
            c, row = c * 0.5 + x, x.sin()
            return c, (row, call(c) + call(row), call(c))

        def outer(m, x):
            m, row = m * 0.5 + x, x.sin()
            c, ys = scan(lambda c, _: ((call(m) + call(row) + call(x)) * c, call(c)), row, length=3)
            return m, (row, c, ys)
        return tg.trace(lambda c, xs: scan(outer if around else iterate, c, xs))

    c, xs = numbers(37), numbers(length, 37)
    for call in (double, twice):
        for around in (False, True):
            close(leaves(f(tg.scan, call, around)(c, xs)), leaves(f(unrolled, call, around)(c, xs)))


@pytest.mark.usefixtures("device")
def test_several_results_of_a_call_that_reads_a_carry_are_one_call():
    calls = []

    def parts(x):
        calls.append(x)
        return x + 1, x * 2

    def body(c, _):
        a, b = tg.host_call(parts, c, like=[c, c])
        return b - a, None

    c = numbers(5)
    close(tg.trace(lambda c: tg.scan(body, c, length=4)[0])(c).numpy(), c.numpy() - 4)
    assert len(calls) == 4


@pytest.mark.usefixtures("device")
def test_an_index_out_of_range_is_reported_by_a_backward_from_outside():
    w = numbers(5).requires_grad_()
    f = tg.trace(lambda index: tg.scan(lambda c, i: ((c * w[i]).sin(), None), tg.ones((), dtype=F), index)[0])
    f(tg.tensor([0, 9, 1])).backward()
    with pytest.raises(tg.IndexOutOfRange, match="holds 9"):
        w.grad.numpy()


def test_linear_systems_in_a_loop_have_derivatives(interpreter):
    def f(scan):
        def loss(a, xs):
            c, ys = scan(lambda c, x: (tg.linalg.solve(a + tg.eye(3, dtype=F) * 4.0, c + x), c.norm()), xs[0], xs)
            return (c * c).sum() + ys.sum()
        return tg.trace(tg.value_and_grad(loss, (0, 1)))

    args = numbers(3, 3), numbers(7, 3)
    close(arrays(f(tg.scan)(*args)), arrays(f(unrolled)(*args)))


def test_python_numbers_as_carries_and_as_run_time_scalars(interpreter):
    f = tg.trace(lambda x, rate: tg.scan(lambda c, x: ((c[0] + rate * x, c[1] + 1), c[0]), (0.0, 0), x))
    x = numbers(7)
    for rate in (0.5, 2.0):
        (c, k), ys = f(x, rate)
        np.testing.assert_allclose(c.item(), rate * x.numpy().sum())
        assert (c.dtype, k.dtype, k.item()) == (F, tg.int64, 7)
        np.testing.assert_allclose(ys.numpy(), rate * (np.cumsum(x.numpy()) - x.numpy()))
    assert f.compilations == 1 or len(f.compilations) == 1


def test_an_effect_on_a_tensor_from_outside_unrolls_the_loop(interpreter):
    total = tg.zeros(3, dtype=F)

    @tg.trace
    def f(xs):
        return tg.scan(lambda c, x: (c + total.add_(x), None), xs[0] * 0.0, xs)[0]

    xs = numbers(4, 3)
    np.testing.assert_allclose(f(xs).numpy(), np.cumsum(xs.numpy(), 0).sum(0))
    np.testing.assert_allclose(total.numpy(), xs.numpy().sum(0))


def test_no_grad_detach_and_hooks_in_the_body(interpreter):
    seen = []

    def f(scan):
        def loss(w, xs):
            def body(c, x):
                with tg.no_grad():
                    still = c * 2.0
                t = c * w
                if t.requires_grad:
                    t.register_hook(lambda g: (seen.append(1), g * 3.0)[1])
                return (t + still + (c * x).detach()).sin(), None
            return scan(body, xs[0], xs)[0].sum()
        return tg.trace(tg.value_and_grad(loss, (0, 1)))

    args = numbers(3), numbers(5, 3)
    found = arrays(f(tg.scan)(*args))
    assert seen
    close(found, arrays(f(unrolled)(*args)))


@pytest.mark.parametrize("way", [lambda f: f, pytest.param(tg.trace, marks=pytest.mark.long)])
@pytest.mark.parametrize("device", [pytest.param("numpy", marks=pytest.mark.long), "kernels"])
def test_a_loop_that_depends_on_nothing(way, device, request):
    if device == "numpy":
        request.getfixturevalue("on_numpy")
    m = tg.nn.RNN(3, 5, 2, nonlinearity="relu", batch_first=True).double()
    x = tg.randn(4, 13, 3, dtype=tg.float64).requires_grad_()

    @way
    def second(x):
        (g,) = tg.autograd.grad(m(x)[0].square().sum() + m(x)[0].sum(), [x], create_graph=True)
        return g, *tg.autograd.grad((g * x.detach()).sum(), [x])

    @way
    def nothing(x):
        (g,) = tg.autograd.grad(m(x)[0].sum(), [x], create_graph=True)      # constant in x: its loop has no operands
        return tg.autograd.grad(g.sum(), [x], materialize_grads=True, allow_unused=True)[0]

    _, h = second(x)
    e = 1e-6 * x.detach()
    forward, back = (second((x + s * e).detach().requires_grad_())[0] for s in (1, -1))
    np.testing.assert_allclose((h * x).sum().item(), ((forward - back) * x / 2e-6).sum().item(), rtol=1e-5)
    assert nothing(x).tolist() == np.zeros((4, 13, 3)).tolist()


# -------------------------------------------------------------------------------------------------------------- while_loop


def python_while(cond, body, value):
    while bool(cond(value)):
        value = body(value)
    return value


def counted(loop):
    """A count, a carry that depends on nothing that varies, constants of two kinds."""
    def f(x, w):
        first = x * 0.5, tg.tensor(0), x.sum() * 0.0 + 1.0
        y, _, t = loop(lambda s: s[1] < 6, lambda s: ((s[0] * w).sin() + x, s[1] + 1, s[2] * 1.1), first)
        return (y * y).sum() * t
    return f, (numbers(3), numbers(3))


def until(loop):
    """The condition reads what the body makes."""
    def f(x, w):
        y = loop(lambda y: y.norm() < 9, lambda y: y * 1.5 + w.sin() @ x, x)
        return (y * y).sum()
    return f, (numbers(3), numbers(3, 3))


def not_at_all(loop):
    def f(x, w):
        return (loop(lambda y: y.sum() > 1000, lambda y: y * w, x) * w).sum()
    return f, (numbers(3), numbers(3))


@pytest.mark.parametrize("program", [counted, until, not_at_all])
def test_derivatives_of_a_while_loop(interpreter, program):
    def everything(loop, way):
        f, args = program(loop)
        directions = tuple(tg.ones_like(a) * 0.3 for a in args)

        @way
        def run(*args):
            grads = tg.grad(f, (0, 1))(*args)
            second = tg.grad(lambda *a: sum(g.sin().sum() for g in tg.grad(f, (0, 1))(*a)), (0, 1))(*args)
            forward, over = tg.jvp(f, args, directions)[1], tg.jvp(tg.grad(f), args, directions)[1]
            third = tg.grad(lambda *a: tg.jvp(tg.grad(f), a, directions)[1].sin().sum(), (0, 1))(*args)
            return f(*args), *grads, *second, forward, over, *third

        return [r.numpy() for r in run(*args)]

    close(everything(tg.while_loop, tg.trace), everything(python_while, lambda f: f))


@pytest.mark.usefixtures("device")
def test_gradient_of_a_while_loop_on_the_device():
    for program in (counted, until):
        f, args = program(tg.while_loop)
        g, _ = program(python_while)
        run = tg.trace(tg.value_and_grad(f, (0, 1)))
        close(arrays(run(*args)), arrays(tg.value_and_grad(g, (0, 1))(*args)))
        more = tuple(a * 0.5 for a in args)
        close(arrays(run(*more)), arrays(tg.value_and_grad(g, (0, 1))(*more)))       # another number of iterations


@pytest.mark.parametrize("way", [tg.trace, lambda f: f])
def test_vmap_of_a_while_loop(interpreter, way):
    f, (_, w) = until(tg.while_loop)
    g, _ = until(python_while)
    xs = numbers(4, 3)
    found = way(lambda xs: tg.vmap(tg.grad(f), in_dims=(0, None))(xs, w))(xs)
    close([found.numpy()], [np.stack([tg.grad(g)(x, w).numpy() for x in xs])])


def test_untraced_vmap_of_loops_whose_condition_is_each_examples_own(interpreter):
    """At first, after some iterations that are the same for all, or never: those draw numbers and change tensors like Python's loop."""
    xs, iterations = numbers(12, 5).abs() + 0.1, []

    def summing(loop):
        return lambda x: loop(lambda s: s[0].sum() < 40, lambda s: (s[0] + x, s[1] + 1), (tg.zeros(5, dtype=F), 0))

    summed, expected = tg.vmap(summing(tg.while_loop))(xs), [summing(python_while)(x) for x in xs]
    close([s.numpy() for s in summed], [np.stack([y.numpy() for y, _ in expected]), np.array([n for _, n in expected])])
    with pytest.raises(tg.TraceError, match="inside @trace or vmap would be the same at every iteration"):
        tg.vmap(lambda x: tg.while_loop(lambda y: y.sum() < 40, lambda y: y + tg.rand(5, dtype=F), x), randomness="same")(xs)

    def counted(s):
        iterations.append(s[1])
        return s[0] + tg.rand(5, dtype=F), s[1] + 1

    different = tg.vmap(lambda x: tg.while_loop(lambda s: s[1] < 3, counted, (x, 0))[0], randomness="different")(xs)
    assert iterations == [0, 1, 2]
    assert len(np.unique((different - xs).numpy().round(9))) == 60


def test_a_while_loop_in_a_scan(interpreter):
    def f(scan, loop):
        def body(c, x):
            return loop(lambda y: (y * y).sum() < 4, lambda y: y * 1.3 + x * 0.1, c) * 0.5, c.sum()
        return tg.value_and_grad(lambda c, xs: (lambda c, ys: (c * c).sum() + ys.sum())(*scan(body, c, xs)), (0, 1))

    args = numbers(3), numbers(5, 3)
    close(arrays(tg.trace(f(tg.scan, tg.while_loop))(*args)), arrays(f(unrolled, python_while)(*args)))


# --------------------------------------------------------------------------------------------------- traces and transforms


@pytest.mark.usefixtures("device")
def test_backward_of_a_traced_step_and_from_outside():
    w = numbers(3, 3).requires_grad_()
    xs = numbers(7, 3)

    def loss(scan):
        return (scan(lambda c, x: ((c @ w + x).tanh(), c), tg.zeros(3, dtype=F), xs)[1] ** 2).sum()

    loss(unrolled).backward()
    wanted, w.grad = w.grad.numpy(), None

    @tg.trace
    def step():
        value = loss(tg.scan)
        value.backward()
        return value

    step()
    np.testing.assert_allclose(w.grad.numpy(), wanted, rtol=1e-9)
    w.grad = None
    tg.trace(lambda: loss(tg.scan))().backward()
    np.testing.assert_allclose(w.grad.numpy(), wanted, rtol=1e-9)


def test_a_backward_from_outside_runs_the_loop_once(interpreter, monkeypatch):
    """The trace hands out what it kept."""
    runs = []
    run = rules.run_loop
    monkeypatch.setattr(rules, "run_loop", lambda loop, arrays: (runs.append(loop.reverse), run(loop, arrays))[1])
    w, xs = numbers(5, 5).requires_grad_(), numbers(13, 5)

    @tg.trace
    def f():
        _, ys = tg.scan(lambda c, x: ((c @ w + x).tanh(), c), tg.zeros(5, dtype=F), xs)
        return (ys * ys).sum()

    f().backward()
    assert runs == [False, True]


def test_a_trace_in_the_body_of_a_scan_in_a_trace(interpreter):
    step = tg.trace(lambda c, x: (c * x).sin())
    f = tg.trace(tg.value_and_grad(lambda c, xs: tg.scan(lambda c, x: (step(c, x), None), c, xs)[0].sum(), (0, 1)))
    g = tg.trace(tg.value_and_grad(lambda c, xs: unrolled(lambda c, x: ((c * x).sin(), None), c, xs)[0].sum(), (0, 1)))
    args = numbers(3), numbers(5, 3)
    close(arrays(f(*args)), arrays(g(*args)))


def test_jacobian_and_hessian(interpreter):
    def f(scan):
        return lambda w: scan(lambda c, _: ((c * w).sin() + w.roll(1, 0), None), w, length=5)[0]

    w = numbers(3)
    for transform in (tg.jacobian, tg.jacfwd, lambda f: tg.hessian(lambda w: (f(w) ** 2).sum())):
        close([tg.trace(transform(f(tg.scan)))(w).numpy()], [transform(f(unrolled))(w).numpy()])


def test_a_loop_in_a_branch_and_a_trace_differentiated_from_outside(interpreter):
    w, xs = numbers(3), numbers(4, 3)

    def branch(scan, p):
        return lambda w: tg.cond(p, lambda w: scan(lambda c, x: ((c * w).sin() + x, c), w, xs)[1].sum(), lambda w: (w * w).sum(), w)

    for p in (tg.tensor(True), tg.tensor(False)):
        for order in (tg.grad, lambda f: tg.grad(lambda w: (tg.grad(f)(w) ** 2).sum())):
            close([tg.trace(order(branch(tg.scan, p)))(w).numpy()], [order(branch(unrolled, p))(w).numpy()])

    def loss(scan):
        return lambda w: scan(lambda c, x: ((c * w).sin() + x, None), w, xs)[0].sum()

    for transform in (tg.grad, tg.hessian):
        close([transform(tg.trace(loss(tg.scan)))(w).numpy()], [transform(loss(unrolled))(w).numpy()])
    close([tg.vmap(tg.grad(tg.trace(loss(tg.scan))))(xs).numpy()], [tg.vmap(tg.grad(loss(unrolled)))(xs).numpy()])


def test_forward_mode_costs_a_constant_number_of_loops(interpreter):
    f, args = rnn(tg.scan, 64)
    g = tg.trace(lambda *a: tg.jvp(f, a, a)[1])
    g(*args)
    assert len({(n.fn, n.operands) for n in g.graph if n.fn.family == "loop"}) <= 4


# ------------------------------------------------------------------------------------------------------------ text, errors


def test_text_of_a_loop(interpreter):
    f, args = first_order(rnn, tg.scan, 7)
    found = f(*args)
    source = f.source()
    names: dict = {}
    exec(compile(source, "source", "exec"), names)
    run = next(v for k, v in reversed(names.items()) if callable(v) and getattr(v, "__code__", None) and k not in ("pair", "iteration"))
    again = run(*args)
    close([a.numpy() for a in again], arrays(found))
    text = to_text(f.graph)
    assert re.search(r"scan\(.*iteration, length=7", text)
    assert "iteration: one of scan" in text


def test_explain_and_a_standalone_program(tmp_path, kernels):
    if tg.device().kind == "numpy":
        pytest.skip("needs an OpenCL device")
    f, _ = first_order(rnn, tg.scan, 7)
    w, xs = numbers(65, 65, scale=0.1), numbers(7, 65)
    found = f(w, xs)
    assert "a loop of 7 iterations" in f.explain()
    script = standalone.write(tmp_path, "loop", f.plan, [w.numpy(), xs.numpy()], [], arrays(found), 1e-9)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_errors(interpreter):
    def traced(f, *args):
        return tg.trace(f)(*args)

    x = numbers(4, 3)
    with pytest.raises(tg.ArgumentError, match=r"scan: f must return a pair.*test_scan"):
        traced(lambda x: tg.scan(lambda c, x: c, x[0], x), x)
    with pytest.raises(tg.ShapeError, match=r"scan: f makes float64\[2\] of a carry of float64\[3\]"):
        traced(lambda x: tg.scan(lambda c, x: (c[:2], None), x[0], x), x)
    with pytest.raises(tg.DTypeError, match=r"scan: f makes float32\[3\] of a carry of float64\[3\]"):
        traced(lambda x: tg.scan(lambda c, x: (c.float(), None), x[0], x), x)
    with pytest.raises(tg.ArgumentError, match=r"scan: f returns .* for a carry of"):
        traced(lambda x: tg.scan(lambda c, x: ((c, c), None), x[0], x), x)
    with pytest.raises(tg.ShapeError, match="must be one number"):
        traced(lambda x: tg.scan(lambda c, x: (c, None), x[0], (x, x[:2])), x)
    with pytest.raises(tg.ArgumentError, match="checkpoint must be a positive"):
        traced(lambda x: tg.scan(lambda c, x: (c, None), x[0], x, checkpoint=0), x)
    with pytest.raises(tg.ArgumentError, match="length must not be negative"):
        traced(lambda x: tg.scan(lambda c, x: (c, None), x[0], length=-1), x)
    with pytest.raises(tg.DTypeError, match="scan: init must hold tensors"):
        traced(lambda x: tg.scan(lambda c, x: (c, None), "start", x), x)
    with pytest.raises(tg.TraceError):
        traced(lambda x: tg.scan(lambda c, x: (c if c.sum() > 0 else -c, None), x[0], x), x)
