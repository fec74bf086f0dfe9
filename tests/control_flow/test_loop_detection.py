"""Untraced scans: iterations that are alike become one operation (control_flow/loop_detection.py), and nothing else about them changes."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.control_flow.test_scan import PROGRAMS, numbers, unrolled
from tests.helpers.marks import one_of
from tracegrad.control_flow import loop_detection
from tracegrad.graph.ir import topological

F = tg.float64


@pytest.fixture
def interpreter():
    before = tg.device()
    tg.set_device("numpy")
    yield
    tg.set_device(before)


def loops(*tensors):
    """How many loops the tensors are made by."""
    return len({(n.fn, n.operands) for n in topological([t._node() for t in tensors]) if n.fn.family == "loop"})


def iterate(c, x):
    c = (c * 0.9 + x.sin()).tanh()
    return c, c * x


def of(scan, w, xs):
    c, ys = scan(lambda c, x: iterate(c * w, x), w * 0.5, xs)
    return (c * c).sum() + ys.cos().sum()


@one_of(6, "n", [7, 9, 33], 1)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_values_and_derivatives_are_those_of_the_iterations(interpreter, program, n):
    """Of Python's loop, untraced both: the value, the gradients, a product with the Hessian, a tangent."""
    f, args = program(tg.scan, n)
    g, same = program(unrolled, n)
    args = [a for a in args if a.dtype == F]
    same = [a for a in same if a.dtype == F]
    which = tuple(range(len(args)))
    (v, d), (u, e) = tg.value_and_grad(f, which)(*args), tg.value_and_grad(g, which)(*same)
    np.testing.assert_allclose(v.numpy(), u.numpy(), rtol=1e-12)
    for a, b in zip(d, e, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)
    if n > 9:
        return
    second = [tg.grad(lambda x, h=h: (tg.grad(h)(x, *args[1:]) ** 2).sum())(args[0]).numpy() for h in (f, g)]
    np.testing.assert_allclose(second[0], second[1], rtol=1e-8, atol=1e-11)
    tangents = [tg.jvp(lambda x, h=h: h(x, *args[1:]), (args[0],), (tg.ones_like(args[0]),))[1].numpy() for h in (f, g)]
    np.testing.assert_allclose(tangents[0], tangents[1], rtol=1e-9, atol=1e-12)


def test_iterations_become_a_loop(interpreter):
    """Where there are enough, whatever their results are part of; also where the first has other operands than the others."""
    x = numbers(20, 5).requires_grad_()
    c, ys = tg.scan(iterate, tg.zeros(5, dtype=F), x)
    assert loops(c, ys) == 1
    assert loops(*tg.scan(iterate, tg.zeros(5, dtype=F), x, reverse=True)) == 1
    assert loops(*tg.scan(iterate, tg.zeros(5, dtype=F), x[:loop_detection.LEAST - 1])) == 0
    u = numbers(7)
    (a, b), none = tg.scan(lambda c, _: ((c[1], 2.0 * c[1] - c[0]), None), (u, u), length=64)
    assert none is None
    assert loops(a, b) == 1
    np.testing.assert_array_equal(b.numpy(), u.numpy())
    c, ys = tg.scan(lambda c, x: (c, x * c), u[0], numbers(33))          # the carry stays
    assert c.shape == ()
    np.testing.assert_array_equal(ys.numpy(), (numbers(33) * u[0]).numpy())


def test_what_is_python_s_stays_python_s(interpreter):
    """What a body counts and appends, prints and looks at, it does in every iteration."""
    count, seen, kept = [0], [], []

    def counting(c, x):
        count[0] += 1
        return iterate(c, x)

    def looking(c, x):
        seen.append(c.sum().item())
        return iterate(c, x)

    def keeping(c, x):
        c, y = iterate(c, x)
        kept.append(c)
        return c, y

    x, start = numbers(20, 3).requires_grad_(), tg.zeros(3, dtype=F)
    expected = unrolled(iterate, start, x)[1].detach().numpy()
    for body in (counting, looking, keeping):
        ys = tg.scan(body, start, x)[1]
        np.testing.assert_allclose(ys.detach().numpy(), expected, rtol=1e-13)
    assert count[0] == len(seen) == len(kept) == 20
    assert len(set(seen)) == 20
    ys = tg.scan(keeping, start, x)[1]                        # a derivative with respect to what was kept on the way
    (got,) = tg.autograd.grad(ys.sum(), kept[25], retain_graph=True)
    (wanted,) = tg.autograd.grad(ys.sum(), kept[20 + 5])
    np.testing.assert_array_equal(got.numpy(), wanted.numpy())
    assert np.abs(got.numpy()).min() > 0


@pytest.mark.parametrize("leak", ["result", "view", "detached", "row"])
def test_derivatives_with_respect_to_what_the_user_kept(interpreter, leak):
    kept = []

    def body(c, x):
        c = (c + x) * 0.5
        y = c * x
        kept.append({"result": y, "view": c[1:], "detached": c.detach(), "row": x}[leak])
        return c, y

    x = numbers(12, 3).requires_grad_()
    c, ys = tg.scan(body, x[0] * 2.0, x)
    want = unrolled(lambda c, x: ((c + x) * 0.5, (c + x) * 0.5 * x), x[0] * 2.0, x)[1]
    np.testing.assert_allclose(ys.detach().numpy(), want.detach().numpy())
    if leak != "detached":
        outputs, inputs = (kept[4].sum(), x) if leak == "view" else ((ys * ys).sum() + (c * c).sum(), kept[4])
        (g,) = tg.autograd.grad(outputs, inputs)
        assert np.abs(g.numpy()).sum() > 0


def test_hooks_effects_and_draws_leave_the_iterations_alone(interpreter):
    seen, total = [], tg.zeros(3, dtype=F)

    def hooked(c, x):
        c, y = iterate(c, x)
        c.register_hook(lambda g: seen.append(1))
        return c, y

    def adding(c, x):
        c, y = iterate(c, x)
        with tg.no_grad():
            total.add_(c.detach())
        return c, y

    x = numbers(10, 3).requires_grad_()
    tg.scan(hooked, tg.zeros(3, dtype=F), x)[1].sum().backward()
    assert len(seen) == 10
    tg.scan(adding, tg.zeros(3, dtype=F), x)
    states = [c.detach() for c in [iterate(tg.zeros(3, dtype=F), x[0])[0]]]
    for i in range(1, 10):
        states.append(iterate(states[-1], x[i])[0].detach())
    np.testing.assert_allclose(total.numpy(), sum(s.numpy() for s in states), rtol=1e-13)
    tg.manual_seed(3)
    drawn = tg.scan(lambda c, _: (c, c + tg.rand(3)), tg.zeros(3), length=12)[1].numpy()
    assert len(np.unique(drawn)) == 36


def test_a_long_loop_waits_for_its_end(interpreter):
    """More tensors than `config.pending`; a body of several hundred iterations is one operation all the same."""
    x = numbers(700, 2)

    def body(c, x):
        for _ in range(8):
            c = (c * 0.5 + x).sin()
        return c, c

    assert tg.config.pending < 700 * 16
    c, ys = tg.scan(body, tg.zeros(2, dtype=F), x)
    assert loops(c, ys) == 1
    np.testing.assert_allclose(ys.numpy()[-1], c.numpy())
    np.testing.assert_allclose(ys.numpy(), unrolled(body, tg.zeros(2, dtype=F), x)[1].numpy(), rtol=1e-12)


def test_nested_loops_and_vmap(interpreter):
    def outer(c, x):
        c, ys = tg.scan(iterate, c, x)
        return c * 0.5, ys.sum(0)

    x = numbers(9, 11, 3)
    c, ys = tg.scan(outer, tg.zeros(3, dtype=F), x)
    assert loops(c, ys) == 2                                  # the first iteration's, and the one of the others
    want = unrolled(lambda c, x: (lambda c, ys: (c * 0.5, ys.sum(0)))(*unrolled(iterate, c, x)), tg.zeros(3, dtype=F), x)
    np.testing.assert_allclose(ys.numpy(), want[1].numpy(), rtol=1e-12)
    got = tg.vmap(lambda x: tg.scan(iterate, x[0], x)[1])(x).numpy()
    np.testing.assert_allclose(got, np.stack([unrolled(iterate, r[0], r)[1].numpy() for r in x]), rtol=1e-12)


@pytest.mark.parametrize("grad", [False, True])
def test_a_second_call_builds_nothing(device, grad):
    """On a device, with and without config.eager: the same body at the same sizes is known, though each call makes it anew."""
    if device.kind == "numpy":
        pytest.skip("the interpreter builds nothing")
    x, w = numbers(40, 7).float(), numbers(7).float()
    tg.synchronize()

    def call():
        value = of(tg.scan, w.clone().requires_grad_() if grad else w, x)
        if grad:
            v = w.clone().requires_grad_()
            return value.item(), tg.autograd.grad(of(tg.scan, v, x), v)[0].numpy()
        return value.item()

    first = call()
    before = tg.report()
    second = call()
    after = tg.report()
    assert after["programs"] == before["programs"]
    assert after["background"] == before["background"]
    if grad:
        np.testing.assert_array_equal(first[1], second[1])
    else:
        assert first == second


def test_the_loop_is_compiled_once_it_came_often(device, monkeypatch):
    """By the rule of other untraced work; the program has a loop, not so many iterations."""
    if device.kind == "numpy" or not tg.config.eager:
        pytest.skip("of the two backends of untraced work")
    from tracegrad.execute import policy  # noqa: PLC0415
    from tracegrad.execute.program import programs  # noqa: PLC0415

    monkeypatch.setattr(policy, "_tier_up", lambda order, device: (3, ""))
    x, c = numbers(100, 6).float(), tg.zeros(6)
    values = [tg.scan(iterate, c + 0.0, x)[1].numpy() for _ in range(6)]
    np.testing.assert_allclose(values[0], values[-1], rtol=2e-5, atol=1e-6)
    found = [program for _, program in programs.entries() if program.versions]
    program = found[-1]
    assert program.usage.loops
    assert len(program.graph) < 60
