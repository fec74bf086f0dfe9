"""`TRACEGRAD_RECALL=0` does untraced work anew each time: no cache of what came before is asked or filled, and the bits are the same."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tracegrad as tg
from tests.autodiff.test_lazy_nodes import NUMBERS, by_chance
from tests.control_flow.test_scan import unrolled
from tests.execute import test_recalled_steps as steady
from tests.helpers.marks import one_of
from tests.helpers.values import given
from tracegrad import nn
from tracegrad.execute.program import programs
from tracegrad.nn import functional as F
from tracegrad.support import cache

TIMES = 15


def trained(name, options):
    """An MLP trained by an optimizer."""
    tg.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    optimizer = getattr(tg.optim, name)(model.parameters(), **options)
    found = []
    for k in range(TIMES):
        optimizer.zero_grad()
        loss = F.mse_loss(model(given(k, 4, 5)), given(k + 100, 4, 3))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [*found, *model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]


def an_lstm():
    tg.manual_seed(2)
    cell, state, found = nn.LSTM(4, 6), None, []
    optimizer = tg.optim.SGD(cell.parameters(), lr=0.1)
    for k in range(TIMES):
        out, (h, c) = cell(given(k, 9, 2, 4), state)
        state = h.detach(), c.detach()
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        found += state
    return [*found, *cell.parameters()]


def views():
    x, w, found = given(0, 6, 4, 8), given(1, 8, 3).requires_grad_(), []
    for k in range(TIMES):
        part = x[k % 6].T[1:, ::2].reshape(-1, 7).unsqueeze(0).expand(2, 2, 7)
        loss = (x[:, k % 4] @ w).unflatten(0, (2, 3)).transpose(0, 1).flatten(1).chunk(2, 1)[0].sum() + (w.T[1] * k).sum()
        loss.backward()
        found += [part + 1.0, w.grad.clone(), *x.unbind(1)[:2], x.split((2, 4))[1] * 2.0]
    return found


def strided():
    """Sums and products of what is not row by row in memory, computed when it is called, read in between, or deferred."""
    x, v, found = given(0, 237, 41), given(1, 237), []
    for k in range(5):
        y = x * 2.0
        if k == 3:
            y.tolist()
        cut = [a[at] for a in (x, y) for at in (np.s_[::2], np.s_[:, 0:7], np.s_[:, ::8], np.s_[:, ::2], np.s_[:, 3])]
        found += [f(a) for a in (*cut, x.T, y.T, x.T * 2.0) for f in (tg.sum, tg.mean)]
        z = x.T * 2.0
        (x + 1.0).sum().item()                      # which computes z, too
        found += [z @ v, z.sum(), *(a.T @ v for a in (*cut[1:5], *cut[6:]))]
        found += [(x.T * 2.0) @ v, x.T.cumsum(0)[-1].sum(), y.unfold(0, 5, 3) @ v[:5]]
    return found


def in_place():
    x, w, found = given(0, 5, 6), given(1, 6).requires_grad_(), []
    for k in range(TIMES):
        x[k % 5] *= 0.5
        x[:, 1:3] += k * 0.1
        x.t()[2].sub_(0.25)
        y = x * w
        y[1] = 0.0
        y.relu_().sum().backward()
        with tg.no_grad():
            w.sub_(w.grad, alpha=0.01)
        found += [x.clone(), w.grad.clone(), w.detach().clone()]
    return found


def by_hand():
    """What a loop writes itself: parts by methods and masks, running values, parameters' data, gradients that are set to zero."""
    x, w, mean, counts, found = given(0, 5, 6), given(1, 6).requires_grad_(), tg.zeros(6), tg.zeros(4, 3), []
    for k in range(TIMES):
        x[k % 5].mul_(0.5)
        counts[k % 4].index_add_(0, tg.tensor([0, k % 3]), tg.ones(2))
        mean.add_((x[k % 5] - mean) / (k + 1))
        y = x.clone()
        y[y > 0.5] = 0.25
        y[[k % 5, 0]] = y[[0, k % 5]] * 2.0
        (((y * w) ** 2).sum() / 3).backward()
        w.data.sub_(0.01 * w.grad)
        found += [y, y[y[:, 0] > 0], y.topk(2)[0], counts.sum(1), mean.clone(), w.grad.clone(), w.detach().clone()]
        w.grad.zero_()
        with tg.no_grad():
            w[1:3] *= 0.99
    return found


def chosen_and_written():
    """What is chosen by index arrays, or written, lies in memory as what is composed does: sums and products of it have the same bits."""
    found = []
    keys = (lambda x: (slice(None), [0, 4, 2]), lambda x: [3, 1], lambda x: x > 0, lambda x: (slice(None), x[0] > 0),
            lambda x: (slice(2, 30), [1, 2]), lambda x: ([1, 2], slice(1, 5)), lambda x: (..., tg.tensor([1, 3])),
            lambda x: ([0, 1], [1, 2]))
    views = (lambda x: x.T[3], lambda x: x.T[:, 2:9], lambda x: x.view(-1)[5:90], lambda x: x[:, 4], lambda x: x.transpose(0, 1),
             lambda x: x[3:9], lambda x: x.unsqueeze(1)[:, 0, 2:5],
             lambda x: x.reshape(1, 137, 41).transpose(1, 2)[0, 2:7])
    for k in range(4):
        for key in keys:
            x, z = given(k, 137, 41), given(k, 137, 41)
            x[key(x)] = 2.5
            z[key(z)] = z[key(z)] * 2.0
            found += [f(u) for u in (x, z, x[key(x)]) for f in (tg.mean, lambda u: u.sum(0), lambda u: u.sum(-1), lambda u: u.T @ u)]
        for view in views:
            x = given(k, 137, 41)
            part = view(x)
            part.mul_(1.5).clamp_(min=0.1)
            found += [x.sum(0), x.sum(1), x.T @ x, x @ x.T, part.sum(-1), (part * 2.0).mean()]
    return found


def without_gradients():
    tg.manual_seed(3)
    model, x, found = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 5)), given(0, 3, 5), []
    for k in range(TIMES):
        with tg.no_grad():
            x = model(x) + x / (1.0 + k)
            found.append(x[1:].softmax(-1))
    return found


def hooks():
    w, seen, found = given(0, 4, 3).requires_grad_(), [], []
    handle = None
    for k in range(TIMES):
        y = (w * given(k, 4, 3)).tanh()
        if k % 5 == 2:
            y.register_hook(lambda g: seen.append(g.sum()) or g * 0.5)
        if k == 6:
            handle = w.register_hook(lambda g: g + 1.0)
        if k == 9:
            handle.remove()
        y.square().sum().backward()
        found.append(w.grad.clone())
    return [*found, *seen]


def gradients():
    w, b, found = given(0, 4, 3).requires_grad_(), given(1, 3).requires_grad_(), []
    for k in range(TIMES):
        loss = ((given(k, 5, 4) @ w + b).sigmoid() ** 2).sum()
        found += tg.autograd.grad(loss, (b, w))
        dw, = tg.autograd.grad((given(k, 5, 4) @ w).cos().sum(), w, create_graph=True)
        found += tg.autograd.grad(dw.square().sum(), w)
    return found


def draws():
    tg.manual_seed(5)
    w, found = given(0, 6).requires_grad_(), []
    for _ in range(TIMES):
        x = tg.randn(3, 6) + tg.rand(6)
        found += [x, tg.randint(0, 9, (4,)), tg.randperm(7), tg.bernoulli(tg.full((5,), 0.4)), F.dropout(w, 0.5).detach()]
        (F.dropout(x * w, 0.3) * tg.distributions.Normal(0.0, 1.0).sample((6,))).sum().backward()
        found.append(w.grad.clone())
    return found


def loops():
    w, found = given(0, 4).requires_grad_(), []

    def step(c, x):
        c = (c * 0.9 + x * w).tanh()
        return c, c * x

    for k in range(TIMES):
        for scan in (tg.scan, unrolled):
            c, ys = scan(step, tg.zeros(4), given(k, 10, 4))
            (c.sum() + ys.cos().sum()).backward()
        total = tg.zeros(4)
        for i in range(4):
            total = total + ys.detach()[i] * (i + 1)
        found += [c.detach(), w.grad.clone(), total]
    return found


def varying_floats():
    w, found = given(0, 7).requires_grad_(), []
    for k in range(TIMES):
        t = 1.0 / (1 + k)
        loss = ((w * t + 0.1 * k) / (2.0 + t) - t).square().sum() * (0.5 + t)
        loss.backward()
        found += [loss.detach(), w.grad.clone(), (w.detach() - t) * 3.0 ** -k]
    return found


PROGRAMS = {f.__name__: f for f in (an_lstm, views, strided, in_place, by_hand, chosen_and_written, without_gradients, hooks,
                                    gradients, draws, loops, varying_floats, *steady.PROGRAMS)}
PROGRAMS |= {name: lambda name=name, options=options: trained(name, options) for name, options in steady.OPTIMIZERS.items()}


@pytest.mark.parametrize("numpy_first", [True, False], ids=["eager", "kernels"])
@one_of(6, "program", PROGRAMS)
def test_bits_are_the_same(program, numpy_first, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", numpy_first)

    def bits():
        return [(t.shape, t.dtype, t.detach().numpy().tobytes()) for t in PROGRAMS[program]()]

    found = bits()
    monkeypatch.setattr(tg.config, "recall", False)
    for k, (a, b) in enumerate(zip(found, bits(), strict=True)):
        if a != b:
            x, y = np.frombuffer(a[2], a[1]), np.frombuffer(b[2], b[1])
            raise AssertionError(f"result {k}: {x} and {y}")


def program_by_chance(seed):
    """Its bits in every iteration, told apart by what it looked at and refused."""
    reached = []
    by_chance(seed, reached, 0, first=True)
    return [(seen, [None if v is None else (v.shape, v.dtype, v.tobytes()) for v in found])
            for seen, found in (by_chance(seed, reached, repeat) for repeat in range(len(NUMBERS)))]


def fuzz(seeds, monkeypatch, eager):
    monkeypatch.setattr(tg.config, "eager", eager)
    for seed in seeds:
        found = program_by_chance(seed)
        with monkeypatch.context() as patch:
            patch.setattr(tg.config, "recall", False)
            wanted = program_by_chance(seed)
        for repeat, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert repr(a[0]) == repr(b[0]), (seed, repeat)
            for k, (x, y) in enumerate(zip(a[1], b[1], strict=True)):
                assert x == y, (seed, repeat, k, np.frombuffer(x[2], x[1]), np.frombuffer(y[2], y[1]))


def test_programs_by_chance_have_the_same_bits(monkeypatch):
    fuzz(range(1000, 1020), monkeypatch, True)


@pytest.mark.long
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "kernels"])
def test_many_programs_by_chance_have_the_same_bits(eager, monkeypatch):
    fuzz(range(2000, 2400 if eager else 2030), monkeypatch, eager)


RECALLED = {"calls", "recipes", "templates by attributes"}


@one_of(2, "known", [False, True], ids=["from the start", "after recall"])
def test_nothing_is_asked_or_kept(known, monkeypatch):
    """Neither where everything is known already."""
    monkeypatch.setattr(tg.config, "eager", True)
    cases = [f for f in PROGRAMS.values() if f not in (trained, loops)]
    for program in cases if known else ():
        program()
    cache.clear(["programs"] if known else ["programs", *RECALLED & {c.name for c in cache.caches()}])
    gc.collect()

    def state():
        found = cache.statistics()
        return {name: [found[name].get(what) for what in ("entries", "hits", "misses")] for name in RECALLED & found.keys()}

    monkeypatch.setattr(tg.config, "recall", False)
    before, at_once = state(), tg.report()["eager"]
    for program in cases:
        program()
    gc.collect()
    assert state() == before
    assert tg.report()["eager"] == at_once
    assert all(program.routine is None for _, program in programs.entries())
