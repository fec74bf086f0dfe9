"""`autograd.grad` in every iteration, and floats that differ in every iteration: what autograd/backward_cache.py makes of structures that
came before."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.values import given
from tracegrad import autograd, nn
from tracegrad.execute.program import recipes
from tracegrad.graph.ir import INTERN
from tracegrad.nn import functional as F
from tracegrad.tensors.bases.history import leaves
from tracegrad.tracing.traced_call import TracedCall

# ---------------------------------------------------------------------------------------------------------------- programs


def lotka_volterra():
    """Runge and Kutta's method, the parameters fitted by descent on leaves that are made anew in every iteration."""
    p, found = tg.tensor([1.1, 0.4, 0.1, 0.4]).requires_grad_(), []
    data = given(0, 9, 2).abs()

    def rhs(z):
        x, y = z[0], z[1]
        return tg.stack([p[0] * x - p[1] * x * y, p[2] * x * y - p[3] * y])

    for _ in range(6):
        z = tg.tensor([2.0, 1.0])
        out = [z]
        for _ in range(8):
            k1 = rhs(z)
            k2 = rhs(z + 0.05 * k1)
            z = z + 0.1 * k2
            out.append(z)
        loss = ((tg.stack(out) - data) ** 2).mean()
        slope, = autograd.grad(loss, p)
        found += [loss.detach(), slope]
        p = (p.detach() - 0.01 * slope).requires_grad_()
    return found


def hamiltonian():
    """Leapfrog: the gradient by a detached position, under whatever mode the caller is in."""
    x, w, found = given(0, 65, 12), given(1, 12), []
    y = (given(2, 65) > 0).float()

    def slope(w):
        w = w.detach().requires_grad_()
        energy = F.binary_cross_entropy_with_logits(x @ w, y, reduction="sum") + 0.5 * (w * w).sum()
        return energy.detach(), autograd.grad(energy, w)[0]

    momentum = given(3, 12)
    for _ in range(8):
        energy, g = slope(w)
        momentum = momentum - 0.01 * g
        w = w + 0.01 * momentum
        found += [energy, w]
    return found


def a_part_of_the_leaves():
    """An adversary's step by the image, then the parameters'; the history that the first did not go through is not freed."""
    model, found = nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 3)), []
    with tg.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(given(k, *p.shape) * 0.3)
    target = tg.arange(12) % 3
    for k in range(6):
        x = given(10 + k, 12, 7).requires_grad_()
        by_image, = autograd.grad(F.cross_entropy(model(x), target), [x])
        loss = F.cross_entropy(model(x.detach() + 0.1 * by_image.sign()), target)
        gradients = autograd.grad(loss, list(model.parameters()))
        with tg.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p.sub_(0.1 * g)
        found += [loss.detach(), by_image, *gradients]
    return found


def annealed():
    """Weights and a temperature that change; a learning rate that does not belong to the loss."""
    w, found = given(0, 12, 7).requires_grad_(), []
    x = given(1, 33, 12)
    for k in range(9):
        weight, temperature = k / 10, 2.0 - 0.1 * k
        y = F.softmax(x @ w / temperature, 1)
        loss = (y * y).sum() + weight * (w * w).mean() - (1.0 - weight) * w.abs().sum() + (weight - w).exp().mean()
        loss = loss + (1.0 + weight) / (w * w + 0.5).sum()
        loss.backward()
        found += [loss.detach(), w.grad.clone()]
        with tg.no_grad():
            w -= 0.01 / (k + 1) * w.grad
        w.grad = None
    return found


def exponents_and_bounds():
    """The derivative is another function for another exponent: each is made at length."""
    w, found = given(0, 33).requires_grad_(), []
    for k in range(12):
        loss = ((w * w + 0.5) ** (0.5 * (k % 4))).sum() + w.clamp(-0.1 * k, 0.1 * k).sum() * (0.3 * k)
        g, = autograd.grad(loss, w)
        found += [loss.detach(), g]
    return found


def numbers_that_meet():
    """Weights that are 1, as the cotangent of a loss is, or equal each other, or a constant of the loss, at some iterations."""
    w, found = given(0, 13).requires_grad_(), []
    weights = [(0.3, 0.7), (1.0, 0.0), (0.6, 0.4), (0.5, 0.5), (0.0, 1.0), (2.0, -1.0), (0.25, 0.75), (1.0, 1.0), (-0.5, 0.5), (0.1, 0.9)]
    for a, b in weights:
        loss = a * (w * w).sum() + b * (w * 0.5).sin().sum() + (w - a).tanh().sum()
        found += [loss.detach(), *autograd.grad(loss, w)]
    return found


# How many of their derivatives are recalled, at least.
PROGRAMS = {lotka_volterra: 4, hamiltonian: 4, a_part_of_the_leaves: 3, annealed: 3, exponents_and_bounds: 0, numbers_that_meet: 1}


@one_of(6, "program", PROGRAMS)
def test_values_are_those_of_the_long_way(program, device, recalled, at_length):
    found = [t.numpy() for t in program()]
    assert recalled() >= (PROGRAMS[program] if device.kind != "numpy" else 0)
    at_length()
    for k, (a, b) in enumerate(zip(found, program(), strict=True)):
        np.testing.assert_allclose(a, b.numpy(), rtol=3e-5, atol=3e-6, err_msg=str(k))


@one_of(4, "n", [1, 12, 65, 1000])
def test_gradients_of_ordinary_sizes(n, device, recalled):
    for k in range(6):
        x, y = given(k, n).requires_grad_(), given(k + 9, n).requires_grad_()
        loss = (x * y).tanh().sum() * (k + 0.5) + (x - 0.1 * k).square().mean()
        by_x, by_y = autograd.grad(loss, (x, y))
        a, b = (v.detach().numpy().astype(np.float64) for v in (x, y))
        slope = (1 - np.tanh(a * b) ** 2) * (k + 0.5)
        np.testing.assert_allclose(by_x.numpy(), slope * b + 2 * (a - 0.1 * k) / n, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(by_y.numpy(), slope * a, rtol=2e-4, atol=1e-5)
        assert not by_x.requires_grad
    assert recalled() >= 3


# ------------------------------------------------------------------------------------------------------- what must not be lost


def test_a_history_is_freed_as_ever(device, recalled):
    w = given(0, 7).requires_grad_()
    for _ in range(5):
        loss = (w * w).sum()
        autograd.grad(loss, w)
        with pytest.raises(tg.AutogradError, match="was freed by an earlier backward"):
            autograd.grad(loss, w)
    for _ in range(5):
        loss = (w * w).sum()
        autograd.grad(loss, w, retain_graph=True)
        np.testing.assert_allclose(autograd.grad(loss, w)[0].numpy(), 2 * w.detach().numpy(), rtol=1e-6)
    assert recalled() >= 3


def test_errors_are_those_of_the_first_iteration(device):
    w, v = given(0, 7).requires_grad_(), given(1, 7).requires_grad_()
    for _ in range(5):
        with pytest.raises(tg.AutogradError, match=r"input 1 .* was not used"):
            autograd.grad((w * w).sum(), (w, v))
        assert autograd.grad((w * w).sum(), (w, v), allow_unused=True)[1] is None
        with pytest.raises(tg.AutogradError, match="does not require grad"):
            autograd.grad((w * w).sum(), w.detach())
        np.testing.assert_array_equal(autograd.grad((w * w).sum(), (w, v), materialize_grads=True)[1].numpy(), np.zeros(7))


def test_inputs_that_are_no_leaves_come_twice_or_in_another_order(device, recalled):
    a, b = given(0, 7).requires_grad_(), given(1, 7).requires_grad_()
    x, y = a.detach().numpy(), b.detach().numpy()
    for _ in range(5):
        middle = a * b
        np.testing.assert_allclose(autograd.grad((middle * middle).sum(), middle)[0].numpy(), 2 * x * y, rtol=1e-5)
        one, other, again = autograd.grad((a * a * b).sum(), (b, a, b))
        np.testing.assert_allclose(one.numpy(), x * x, rtol=1e-5)
        np.testing.assert_allclose(other.numpy(), 2 * x * y, rtol=1e-5)
        np.testing.assert_allclose(again.numpy(), x * x, rtol=1e-5)
        again.add_(1.0)
        np.testing.assert_allclose(autograd.grad((a * a * b).sum(), (a, b, a))[1].numpy(), x * x, rtol=1e-5)
    assert recalled() >= 3


def test_hooks_kept_gradients_and_leaves_that_were_written(device):
    w, seen = given(0, 7).requires_grad_(), []
    x = w.detach().numpy()
    for k in range(9):
        y = w * 3.0
        if k in (4, 6):
            y.register_hook(lambda g: seen.append(1) or g * 10)
        if k == 5:
            y.retain_grad()
        g, = autograd.grad((y * y).sum(), w)
        np.testing.assert_allclose(g.numpy(), 18 * x * (10 if k in (4, 6) else 1), rtol=1e-5)
        if k == 5:
            np.testing.assert_allclose(y.grad.numpy(), 6 * x, rtol=1e-5)
        loss = (w * w).sum()
        if k == 7:
            with tg.no_grad():
                w.mul_(1.0)
        np.testing.assert_allclose(autograd.grad(loss, w)[0].numpy(), 2 * x, rtol=1e-5)
    assert seen == [1, 1]
    assert w.grad is None


def test_a_wrong_index_names_the_line_of_this_call(device):
    table = given(0, 5, 3).requires_grad_()
    for _ in range(4):
        autograd.grad(table[tg.tensor([1, 4])].exp().sum(), table)
    g, = autograd.grad(table[tg.tensor([1, 5])].exp().sum(), table)
    with pytest.raises(tg.IndexOutOfRange, match=r"test_recalled_grads\.py:\d+: index holds 5, out of range"):
        g.numpy()


def test_a_matrix_without_an_inverse_is_an_error_in_every_iteration(device):
    a = (given(0, 12, 12) + 8 * tg.eye(12)).requires_grad_()
    for _ in range(4):
        autograd.grad(tg.linalg.inv(a).sum(), a)
    singular = tg.ones(12, 12).requires_grad_()
    with pytest.raises(tg.LinAlgError, match="inv"):
        autograd.grad(tg.linalg.inv(singular).sum(), singular)[0].numpy()


def test_derivatives_of_derivatives_between(device):
    w = given(0, 12).requires_grad_()
    x = w.detach().numpy()
    for _ in range(6):
        first, = autograd.grad((w ** 3).sum(), w, create_graph=True)
        second, = autograd.grad(first.sum(), w, create_graph=True)
        third, = autograd.grad(second.sum(), w)
        np.testing.assert_allclose(second.detach().numpy(), 6 * x, rtol=1e-5)
        np.testing.assert_allclose(third.numpy(), np.full(12, 6.0), rtol=1e-5)


def test_nothing_grows(device, recalled):
    w = given(0, 13).requires_grad_()

    def iterations(n):
        for k in range(n):
            autograd.grad((w * (1.0 + 1e-3 * k)).square().sum(), w)[0].numpy()
        gc.collect()
        return len(INTERN), len(leaves), len(gc.get_objects())

    before, after = iterations(1300), iterations(3900)        # of `*`, a thousand signatures are remembered, with their constants
    assert [b - a < limit for a, b, limit in zip(before, after, (1100, 10, 3000), strict=True)] == [True] * 3
    assert len(recipes.entries()) < 100


@pytest.mark.parametrize("limit", [200, 2000])
def test_structures_are_forgotten_when_there_are_too_many(limit, monkeypatch, recalled):
    monkeypatch.setattr(tg.config, "eager", tg.device().in_host_memory)
    monkeypatch.setattr(recipes, "budget", limit)
    for repeat in range(3):
        for n in range(1, 40):
            w = given(n, n).requires_grad_()
            for k in range(3):
                g, = autograd.grad((w * (0.5 + k + repeat)).sin().sum(), w)
                scale = 0.5 + k + repeat
                np.testing.assert_allclose(g.numpy(), scale * np.cos(scale * w.detach().numpy()), rtol=1e-4, atol=1e-5)
    found = sum(recipes.weigh(*item) for item in recipes.entries())
    assert recipes.size() == found <= max(limit, 200)


def test_threads(monkeypatch):
    """Each with leaves of its own; all know what one of them learned, and one may compute what another one recorded, and then frees."""
    monkeypatch.setattr(tg.config, "eager", tg.device().in_host_memory)     # (what is pending in all of them is a program: many kernels)
    wanted = {program: [t.numpy() for t in program()] for program in (lotka_volterra, annealed, hamiltonian)}
    found: dict[int, tuple] = {}

    def work(number, program):
        found[number] = program, [t.numpy() for _ in range(3) for t in program()]

    threads = [threading.Thread(target=work, args=(k, program)) for k, program in enumerate([*wanted, *wanted])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(threads)
    for program, values in found.values():
        for a, b in zip(values, wanted[program] * 3, strict=True):
            np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("how", ["backward", "grad"])
@pytest.mark.recall
def test_the_pullback_of_a_traced_call_is_derived_once(how, monkeypatch):
    """A training loop around a traced forward: from the third backward on no operation of the trace is derived, or made, again."""
    derived = []
    real = TracedCall.vjp
    monkeypatch.setattr(TracedCall, "vjp", lambda *args, **attrs: derived.append(0) or real(*args, **attrs))

    def layer(x, w):
        return (x @ w).tanh() * tg.tensor([0.5, 1.0, 1.5, 2.0])            # a product, which is kept, and a constant of the trace

    def loss(f, x, w):
        return (f(f(x, w) * 0.5, w) - 1.0).square().sum()

    traced, x = tg.trace(layer), given(0, 3, 4)
    for step in range(6):
        w = given(1 + step, 4, 4).requires_grad_()
        wanted, = tg.autograd.grad(loss(layer, x, w), w)
        if how == "grad":
            found, = tg.autograd.grad(loss(traced, x, w), w)
        else:
            loss(traced, x, w).backward()
            found = w.grad
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), 1e-4, 1e-5)
    assert len(derived) == 2 * 2
