"""Loops that carry a value from one step to the next without its history, or have hooks, keep nothing of the steps before."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

import tracegrad as tg
from tests.helpers.functions import double
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.config import config
from tracegrad.execute import realize as realize_
from tracegrad.graph.ir import Node

STEPS = 12


def nodes() -> int:
    gc.collect()
    return sum(isinstance(o, Node) for o in gc.get_objects())


def recurrent(repackage: Callable[[Any], Any], late: bool) -> Callable[[], None]:
    """Truncated backpropagation through an LSTM. late: the state loses its history before the next step, not before backward."""
    model, head = nn.LSTM(5, 12, batch_first=True), nn.Linear(12, 3)
    optimizer = tg.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    state: Any = (tg.zeros(1, 4, 12), tg.zeros(1, 4, 12))

    def step() -> None:
        nonlocal state
        out, state = model(tg.ones(4, 7, 5), tuple(map(repackage, state)) if late else state)
        if not late:
            state = tuple(map(repackage, state))
        loss = head(out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def accumulated(cut: Callable[[Any], Any]) -> Callable[[], None]:
    """A state to which something is added: additions save nothing, so a backward does not free them."""
    w = tg.ones(130, requires_grad=True)
    h = tg.zeros(130)

    def step() -> None:
        nonlocal h
        h = cut(h) + w * 0.5
        w.grad = None
        h.square().sum().backward()
        float(w.grad[0])

    return step


def in_a_row(cut: Callable[[Any], Any]) -> Callable[[], None]:
    """The last row of a result is the next step's first, through a view and before its value is known."""
    w = tg.ones(65, requires_grad=True)
    h = tg.zeros(65)

    def step() -> None:
        nonlocal h
        rows = tg.stack([h + w, h * w, (h + w).sin()])
        h = cut(rows)
        w.grad = None
        rows.square().sum().backward()

    return step


def hooked(register: Callable[[nn.Module, Any, Any], None]) -> Callable[[], None]:
    """Steps of a layer of which somebody sees gradients; what register gets is the layer, its input and its output."""
    model, width = nn.Linear(33, 12), 33

    def step() -> None:
        x = tg.ones(7, width, requires_grad=True)
        y = model(x)
        register(model, x, y)
        y.tanh().sum().backward()
        model.zero_grad()

    return step


def seen_by_the_module() -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(33, 12), nn.Linear(12, 3))
    model[0].register_full_backward_hook(lambda module, into, out: (into[0] * 0.5,))
    model[1].register_full_backward_pre_hook(lambda module, out: (out[0] * 0.5,))

    def step() -> None:
        model(tg.ones(7, 33, requires_grad=True)).tanh().sum().backward()
        model.zero_grad()

    return step


CASES = {
    "lstm, before backward": lambda: recurrent(lambda s: s.detach(), False),
    "lstm, before the next step": lambda: recurrent(lambda s: s.detach(), True),
    "lstm, data": lambda: recurrent(lambda s: s.data, True),
    "lstm, a view of what is detached": lambda: recurrent(lambda s: s.detach()[:, :, :].view(1, 4, 12), True),
    "lstm, clone": lambda: recurrent(lambda s: s.detach().clone(), True),
    "lstm, in place": lambda: recurrent(lambda s: s.detach_(), True),
    "added to": lambda: accumulated(lambda h: h.detach()),
    "added to, under no_grad": lambda: accumulated(tg.no_grad()(lambda h: h * 0.5)),
    "added to, detach of a view": lambda: accumulated(lambda h: h.view(10, 13).detach().reshape(130)),
    "added to, in place": lambda: accumulated(lambda h: h.detach_()),
    "added to, a part of complex numbers": lambda: accumulated(lambda h: tg.complex(h, h).real.detach()),
    "added to, of what has no name": lambda: accumulated(lambda h: (h * 0.5).detach()),
    "added to, of what has no name, a view": lambda: accumulated(lambda h: (h * 0.5).view(10, 13).detach().reshape(130)),
    "added to, of parts of it": lambda: accumulated(lambda h: tg.cat([h[60:], h[:60]]).detach()),
    "added to, of a product": lambda: accumulated(lambda h: (tg.ones(130, 130) @ h).tanh().detach()),
    "added to, of a function's result": lambda: accumulated(lambda h: tg.nn.functional.layer_norm(h, (130,)).detach()),
    "added to, of a custom function": lambda: accumulated(lambda h: (double()(h) * 0.25).detach()),
    "a hook that reads its tensor": lambda: hooked(lambda model, x, y: y.register_hook(lambda g: g * y)),
    "a hook that reads its tensor's values": lambda: hooked(lambda model, x, y: y.register_hook(lambda g: g * y.detach())),
    "a leaf's hook that reads it": lambda: hooked(lambda model, x, y: x.register_hook(lambda g: g * x.detach())),
    "a leaf's hook that reads a result": lambda: hooked(lambda model, x, y: x.register_hook(lambda g: g * y.detach().sum())),
    "hooks of modules": seen_by_the_module,
    "a row, detached": lambda: in_a_row(lambda rows: rows[-1].detach()),
    "a row of what is detached": lambda: in_a_row(lambda rows: rows.detach()[-1]),
    "a row's part, twice": lambda: in_a_row(lambda rows: rows.detach()[1:].detach()[-1]),
}


@one_of(9, ("case", "eager"), product(CASES, [True, False]))
def test_nothing_is_kept_of_the_steps_before(case, eager, monkeypatch):
    monkeypatch.setattr(config, "eager", eager)
    step = CASES[case]()
    for _ in range(STEPS if eager else 4):
        step()
    before = nodes()
    for _ in range(STEPS):
        step()
    assert nodes() - before < STEPS                             # one would be kept of each


@pytest.mark.parametrize("eager", [True, False])
def test_writes_to_what_was_detached_reach_its_source(eager, monkeypatch):
    monkeypatch.setattr(config, "eager", eager)
    for repeat in range(4):
        x = tg.arange(12.0).requires_grad_()
        y = x * 2
        d, row, later = x.detach(), x.detach()[3:5], y.detach()
        if repeat % 2:
            y.sum().backward()
            later.numpy()
        with tg.no_grad():
            d[0] = 7.0
            row.add_(1.0)
        assert x.tolist()[:5] == d.tolist()[:5] == [7.0, 1.0, 2.0, 4.0, 5.0]
        assert later.tolist() == y.tolist() == [2.0 * k for k in range(12)]


def test_a_result_that_lost_its_steps_is_what_it_was():
    w = tg.linspace(0.5, 1.5, 65).requires_grad_()
    for _ in range(8):
        rows = tg.stack([w, w * w, w.exp()])
        kept, first, part = rows.detach(), rows[0].detach(), rows.detach()[1:, 3:40].detach()
        rows.sum().backward()
        for found, expected in ((kept, rows), (first, rows[0]), (part, rows[1:, 3:40])):
            assert not found.requires_grad
            assert (found == expected).all()


def test_what_is_small_and_was_detached_is_computed_with_the_rest(monkeypatch):
    """Actions that a policy's values chose, in the middle of a history that reads them: nothing is made anew to let go of it."""
    made_anew: list[int] = []
    substituted = realize_.substituted
    monkeypatch.setattr(config, "eager", True)
    monkeypatch.setattr(realize_, "substituted", lambda outs, given: (made_anew.append(sum(o not in given for o in outs)),
                                                                      substituted(outs, given))[1])
    x, w = tg.linspace(-1.0, 1.0, 7 * 12).reshape(7, 12), tg.linspace(-1.0, 2.0, 12 * 10).reshape(12, 10).requires_grad_()
    losses = []
    for _ in range(20):
        state, chances = x, []
        for _ in range(5):
            logs = nn.functional.log_softmax(state @ w, -1)
            action = logs.detach().argmax(-1)
            chances.append(logs.gather(1, action[:, None]).squeeze(1))
            state = tg.tanh(state + action[:, None] * 0.1)
        loss = tg.stack(chances).mean()
        w.grad = None
        loss.backward()
        losses.append((float(loss), w.grad.sum().item()))
    assert len(set(losses)) == 1
    assert sum(made_anew) == 0
