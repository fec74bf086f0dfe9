"""Backwards through custom Functions that came before: the users' `backward` is called each time, and what is around it is recalled."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import tracegrad as tg
from tests.helpers.values import given
from tracegrad import autograd, nn
from tracegrad.execute.program import recipes
from tracegrad.nn import functional as F

pytestmark = pytest.mark.skipif(tg.device().kind == "numpy" or not tg.device().in_host_memory, reason="nothing is eager on this device")
STEPS = 12


class Noting(tg.Function):
    """Its classes note each call of their backward, and what it was given."""

    calls: list = []


class Square(Noting):
    """Its factor is its gradient's only, as where gradients are scaled."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        Noting.calls.append(("square", ctx.factor))
        return 2.0 * x * g * ctx.factor, None


class Reversed(Noting):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        Noting.calls.append("reversed")
        return g


class Through(Noting):
    """Its gradient is what it was given, changed in place, and the one that it saved."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x.round(), x + y

    @staticmethod
    def backward(ctx, g, h):
        Noting.calls.append("through")
        g.mul_(3.0)
        g += h
        return {"x": g, "y": ctx.saved_tensors[0]}


class Parts(Noting):
    """Some of its results are not used, and of one there is no gradient."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        largest = x.argmax()
        ctx.mark_non_differentiable(largest)
        return x * 2.0, y.exp(), largest

    @staticmethod
    def backward(ctx, a, b, _):
        Noting.calls.append((a is None, b is None, *ctx.needs_input_grad))
        return None if a is None else a.mean().expand(2, 5), None if b is None else b * 0.5


class Dirty(Noting):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        Noting.calls.append("dirty")
        return g * 2.0


class Again(Noting):
    """What reentrant checkpoints do: the forward pass once more, in backward."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        with tg.no_grad():
            return (x @ w).tanh()

    @staticmethod
    def backward(ctx, g):
        Noting.calls.append("again")
        x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with tg.enable_grad():
            y = (x @ w).tanh()
        autograd.backward(y, g)
        return x.grad, w.grad


def a_network():
    tg.manual_seed(0)
    first, second = nn.Linear(5, 7), nn.Linear(7, 3)
    optimizer = tg.optim.Adam([*first.parameters(), *second.parameters()])
    found = []
    for k in range(STEPS):
        optimizer.zero_grad()
        h = Square.apply(first(given(k, 4, 5)).tanh(), 0.5 + k) + first(given(k, 4, 5))
        loss = F.mse_loss(Square.apply(second(h), 2.0).softmax(-1), given(9, 4, 3))
        loss.backward()
        optimizer.step()
        found += [loss.detach(), *(p.grad.clone() for p in first.parameters())]
    return [*found, *first.parameters(), *second.parameters()]


def gradients_that_are_written():
    w, v, found = given(0, 6).requires_grad_(), given(1, 6).requires_grad_(), []
    for k in range(STEPS):
        y = w * 1.5
        z = Reversed.apply(y) + y + Reversed.apply(v)
        a, b = Through.apply(z, v * 0.5)
        (a + b * z).sum().backward()
        found += [w.grad.clone(), v.grad.clone()]
        with tg.no_grad():
            w.grad.mul_(0.5)
            v.grad.add_(w.grad)
            if k == 5:
                w.grad = v.grad = None
    return found


def results_that_are_not_used():
    x, y, found = given(0, 5).requires_grad_(), given(1, 5).requires_grad_(), []
    for k in range(3 * STEPS):
        a, b, at = Parts.apply(x * 1.0, y)
        loss = a.sum() + at.float() if k % 3 == 0 else b.square().sum() if k % 3 == 1 else (a * b).sum()
        x.grad = y.grad = None
        loss.backward()
        found += [tg.zeros(1) if t.grad is None else t.grad for t in (x, y)]
    return found


def gradients_that_are_operands():
    x, w, found = given(0, 6), given(1, 6).requires_grad_(), []
    for _ in range(STEPS):
        w.grad = None
        (Reversed.apply(w) * x).sum().backward()
        (w * x).sum().backward()
        with tg.no_grad():
            w.grad.mul_(3.0)
        w.grad = None
        (w * x).sum().backward()
        w.grad.add_(1.0)
        found += [w.grad, x.clone()]
    return found


def changed_in_place():
    w, found = given(0, 4, 3).requires_grad_(), []
    for _ in range(STEPS):
        y = w * 1.5
        z = Dirty.apply(y)
        (z * z.detach()).sum().backward()
        found += [w.grad.clone(), y.detach()]
    return found


def nested():
    w, found = given(0, 4, 4).requires_grad_(), []
    for k in range(STEPS):
        x = given(k + 1, 3, 4)
        loss = Again.apply(Again.apply(x @ w, w).relu(), w).sum()
        found += [*autograd.grad(loss, w), loss.detach()]
    return found


PROGRAMS = {a_network: 2 * STEPS, gradients_that_are_written: 3 * STEPS, results_that_are_not_used: 3 * STEPS, changed_in_place: STEPS,
            gradients_that_are_operands: STEPS,             nested: 2 * STEPS}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.recall
def test_bits_and_calls_are_those_of_the_long_way(program, recalled, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)

    def done():
        Noting.calls.clear()
        return [t.detach().numpy().tobytes() for t in program()], [*Noting.calls]

    found, calls = done()
    assert recalled() >= STEPS // 2
    assert len(calls) == PROGRAMS[program]
    monkeypatch.setattr(tg.config, "recall", False)
    wanted, asked = done()
    assert [k for k, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b] == []
    assert calls == asked


def tried(cls, more=lambda w: w, times=STEPS):
    """The gradients of steps through a Function, one more of its arguments after the other."""
    w, found = given(0, 5).requires_grad_(), []
    for k in range(times):
        w.grad = None
        more(cls.apply(w * 2.0, k).exp()).sum().backward()
        found.append(w.grad)
    return found


def test_a_gradient_of_another_form_is_taken_as_it_is(monkeypatch):
    """And backward is called once all the same."""
    monkeypatch.setattr(tg.config, "eager", True)
    seen = []

    class Changing(tg.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            return x + 1.0

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.k)
            return (g if ctx.k % 4 else g.sum().double().expand(3, 5) if ctx.k % 8 else None), None

    for k, g in enumerate(tried(Changing, times=16)):
        y = (given(0, 5) * 2.0 + 1.0).exp() * 2.0
        if k % 8 == 0:
            assert g is None
        else:
            assert tg.allclose(g, y if k % 4 else (0.5 * y).sum().expand(5) * 6.0), k
    assert seen == [*range(16)]


def test_what_a_backward_raises_leaves_the_history(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    w, tries = given(0, 5).requires_grad_(), []

    class Failing(tg.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            ctx.save_for_backward(x)
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            tries.append(ctx.k)
            if ctx.k >= 6 and tries.count(ctx.k) == 1:
                raise tg.AutogradError("not now") if ctx.k == 6 else KeyError
            return g * 2.0, None

    for k in range(8):
        w.grad = None
        loss = Failing.apply(Reversed.apply(w), k).sum()
        if k >= 6:
            with pytest.raises((tg.AutogradError, KeyError)):
                loss.backward()
            assert w.grad is None
        loss.backward()
        assert w.grad.tolist() == [2.0] * 5
        with pytest.raises(tg.AutogradError, match="freed"):
            loss.backward()
    assert tries == [0, 1, 2, 3, 4, 5, 6, 6, 7, 7]


def test_derivatives_of_derivatives_and_hooks_are_made_at_length(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    hooked = []
    for k in range(STEPS):
        w = given(0, 5).requires_grad_()
        y = Square.apply(w * 1.0, 3.0)
        if k > 4:
            y.register_hook(lambda g: hooked.append(1) or g * 2.0)
        g, = autograd.grad(y.sum(), w, create_graph=k % 2 == 0)
        assert g.requires_grad == (k % 2 == 0)
        assert tg.allclose(g.detach(), w.detach() * (12.0 if k > 4 else 6.0))
        if g.requires_grad:
            assert tg.allclose(autograd.grad(g.sum(), w)[0], tg.full((5,), 12.0 if k > 4 else 6.0))
    assert len(hooked) >= 3


def test_a_backward_may_wait_for_another_thread(monkeypatch):
    """No lock is held while the users' code runs."""
    monkeypatch.setattr(tg.config, "eager", True)

    class Elsewhere(tg.Function):
        @staticmethod
        def forward(ctx, x, k):
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            found = []
            thread = threading.Thread(target=lambda: tg.flush() or found.append((g.exp() * 2.0 + given(3, 5)).tolist()))
            thread.start()
            thread.join(30)
            assert found
            return g * 2.0, None

    assert len(tried(Elsewhere)) == STEPS


def test_classes_are_let_go_of(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    made = []
    for _ in range(4):
        double = tg.autograd_function(lambda ctx, x: x * 2.0, lambda ctx, g: g * 2.0)
        made.append(weakref.ref(double.__self__))
        for _ in range(4):
            w = given(0, 5).requires_grad_()
            double(w).sum().backward()
        assert w.grad.tolist() == [2.0] * 5
    del double
    gc.collect()
    assert [ref() for ref in made] == [None] * 4


@pytest.mark.recall
def test_what_kernels_may_fuse_is_not_taken_apart(monkeypatch):
    """Large work keeps its structure, so that the bits are those of the long way, whichever kernels there are."""
    monkeypatch.setattr(tg.config, "eager", True)
    before = recipes.hits
    for _ in range(4):
        w = given(0, 700, 300).requires_grad_()
        Square.apply(w.sin(), 2.0).sum().backward()
    assert recipes.hits == before
