"""Loops over complex numbers: scan and while_loop beside the unrolled Python loop, with derivatives of every kind."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.control_flow.test_scan import PLAIN, checkpointed, close, interpreter, numbers, python_while, unrolled
from tests.helpers.kernels import CPU, Checked
from tracegrad.support.tuning import Tuning

__all__ = ["interpreter"]               # the fixture
C = tg.complex128


def complexes(*shape, scale=0.5):
    return tg.complex(numbers(*shape, scale=scale), numbers(*shape, scale=scale, seed=1))


def size_of(z):
    return (z * z.conj()).real.sum()


def thin_film(scan, n):
    """Transfer matrices of layers: real rows, a complex carry that depends on nothing at first, a complex result of each row."""
    wave = tg.tensor(np.linspace(0.4, 0.8, 6))

    def f(depth, index):
        def layer(m, x):
            d, k = x
            phase = 6.0 * k * d / wave
            c, s = phase.cos(), 1j * phase.sin()
            turn = tg.stack([tg.stack([c, s / k], -1), tg.stack([s * k, c], -1)], -2)
            return m @ turn, tg.linalg.det(m + turn)
        m, dets = scan(layer, tg.eye(2, dtype=C).expand(6, 2, 2), (depth, index))
        return size_of(m[:, 0, 0] + 1.5 * m[:, 0, 1]) + size_of(dets) * 0.1
    return f, (numbers(n, scale=0.1), complexes(n, scale=0.1) + 1.5)


def weights(scan, n):
    """A constant matrix, whose gradient is one product of what the turns stack, and a carry that is conjugated."""
    def f(w, xs):
        c, ys = scan(lambda c, x: ((c.conj() @ w + x) * 0.6, (c * x).abs()), xs[0] * 0.3, xs)
        return size_of(c) + ys.sum()
    return f, (complexes(7, 7, scale=0.3), complexes(n, 7))


def split_step(scan, n):
    """Transforms in the body, from the last row to the first; the potential is real."""
    kinetic = tg.tensor(np.exp(-0.05j * np.fft.fftfreq(13, 1 / 13) ** 2))

    def f(psi, potential):
        def step(p, v):
            p = tg.fft.ifft(kinetic * tg.fft.fft(p * tg.exp(-0.1j * (v + p.abs() ** 2))))
            return p, (p.conj() * p.roll(1)).imag
        last, currents = scan(step, psi, potential, reverse=True)
        return last.real.sum() + size_of(last * last) + (currents * currents).sum()
    return f, (complexes(13), numbers(n, 13))


def parts(scan, n):
    """A real carry beside a complex one, each of which needs the other."""
    def f(a, z):
        (r, c), ys = scan(lambda s, x: ((s[0] * 0.9 + (s[1] * x).real, s[1] * tg.exp(1j * s[0]) + x), s[1].imag), (a, z[0]), z)
        return (r * r).sum() + size_of(c) + (ys * ys).sum()
    return f, (numbers(3), complexes(n, 3))


PROGRAMS = [thin_film, weights, split_step, parts]


def everything(f, args):
    """Value, gradients, second derivatives of two kinds, forward mode, and vmap of the gradient."""
    which = tuple(range(len(args)))
    rng = np.random.default_rng(2)
    directions = tuple(tg.tensor(rng.standard_normal(a.shape).astype(a.dtype)) for a in args)
    batches = tuple(tg.stack([a, a * 0.8, a * 1.1]) for a in args)

    @tg.trace
    def run(batches, *args):
        value, grads = tg.value_and_grad(f, which)(*args)
        forward, over = tg.jvp(f, args, directions)[1], tg.jvp(tg.grad(f, which), args, directions)[1]
        second = tg.grad(lambda *a: sum((g * g.conj()).real.sum() for g in tg.grad(f, which)(*a)), which)(*args)
        return value, *grads, forward, *over, *second, *tg.vmap(tg.grad(f, which))(*batches)

    return [r.numpy() for r in run(batches, *args)]


@pytest.mark.parametrize("k", [None, 4], ids=["all kept", "every 4th"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_derivatives_of_every_kind(interpreter, program, k):
    f, args = program(tg.scan if k is None else checkpointed(k), 7)
    found = everything(f, args)
    assert all(np.abs(g).max() > 1e-3 for g in found)
    close(found, everything(*program(unrolled, 7)), 1e-8)


def test_finite_differences(interpreter):
    """Independent of all derivative rules: the gradient along a direction is the sum of the products of the parts."""
    for program in PROGRAMS:
        f, args = program(tg.scan, 5)
        grads = [g.numpy() for g in tg.trace(tg.grad(f, (0, 1)))(*args)]
        rng = np.random.default_rng(3)
        along = [rng.standard_normal(a.shape) * (1 + 1j if a.is_complex() else 1) for a in args]

        def moved(h, f=f, args=args, along=along):
            return f(*(tg.tensor(a.numpy() + h * d) for a, d in zip(args, along, strict=True))).item()

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        found = sum(float((g.conj() * d).real.sum()) for g, d in zip(grads, along, strict=True))
        assert abs(slope - found) <= 1e-6 * max(1.0, abs(slope)), program.__name__


@pytest.mark.parametrize("n", [1, 13, 33])
def test_backward_through_a_traced_call(interpreter, n):
    """From outside: the results say that they have a derivative, and have it."""
    f, args = weights(tg.scan, n)
    g, _ = weights(unrolled, n)
    found = []
    for way in (tg.trace(f), g):
        leaves = [a.detach().clone().requires_grad_() for a in args]
        loss = way(*leaves)
        assert loss.requires_grad
        loss.backward()
        found.append([x.grad.numpy() for x in leaves])
    close(*found)


def test_while_loops(interpreter):
    def program(loop):
        def f(z, w):
            y, k = loop(lambda s: size_of(s[0]) < 40.0, lambda s: ((s[0] * w).sin() * 1.5 + z, s[1] + 1), (z * 0.5, tg.tensor(0)))
            return size_of(y) + y.real.sum() * 0.3 + k
        return f, (complexes(7), complexes(7) + 1.0)

    f, args = program(tg.while_loop)
    g, _ = program(python_while)
    which, along = (0, 1), tuple(a * (0.3 - 0.2j) for a in args)
    run = tg.trace(lambda *a: (*tg.grad(f, which)(*a), tg.jvp(f, a, along)[1], *tg.jvp(tg.grad(f, which), a, along)[1]))
    wanted = *tg.grad(g, which)(*args), tg.jvp(g, args, along)[1], *tg.jvp(tg.grad(g, which), args, along)[1]
    found = [r.numpy() for r in run(*args)]
    assert all(np.abs(r).max() > 1e-3 for r in found)
    close(found, [r.numpy() for r in wanted], 1e-8)


def test_python_numbers_as_carries(interpreter):
    x = complexes(5)
    found, ys = tg.trace(lambda x: tg.scan(lambda c, x: (c * x, c), 1j, x))(x)
    np.testing.assert_allclose(found.numpy(), 1j * np.prod(x.numpy()))
    assert ys.dtype == C
    assert tg.trace(lambda x: tg.while_loop(lambda c: c.abs() < 10, lambda c: c * 2, 1j))(x).item() == 16j


@pytest.mark.parametrize("tuning", [Tuning(), PLAIN], ids=["one launch", "launch by launch"])
def test_kernels_read_in_c(interpreter, tuning):
    with Checked({"cpu": CPU}, tuning=tuning) as checked:
        for program in PROGRAMS:
            f, args = program(tg.scan, 7)
            tg.trace(tg.value_and_grad(f, (0, 1)))(*args)
    assert checked.count >= 2


def test_on_the_device():
    """All programs in one traced function, by the device's kernels, beside turns in Python."""
    def values(scan):
        made = [program(scan, 13) for program in PROGRAMS]

        @tg.trace
        def run(*args):
            found = [tg.value_and_grad(f, (0, 1))(*args[2 * i:2 * i + 2]) for i, (f, _) in enumerate(made)]
            return [x for value, grads in found for x in (value, *grads)]

        return [r.numpy() for r in run(*(a for _, args in made for a in args))]

    found = values(tg.scan)
    previous = tg.device()
    tg.set_device("numpy")
    try:
        wanted = values(unrolled)
    finally:
        tg.set_device(previous)
    close(found, wanted)
