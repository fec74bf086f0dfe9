"""In a trace a body may assign new tensors to attributes, variables and items outside: each replay does it anew."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn

pytestmark = pytest.mark.usefixtures("on_numpy")

def batches(count=4, rows=7, columns=13):
    rng = np.random.default_rng(0)
    return [tg.tensor(rng.standard_normal((rows, columns)).astype(np.float32)) for _ in range(count)]


class Running(nn.Module):
    """Running averages as torch's users write them."""

    def __init__(self, columns=13):
        super().__init__()
        self.register_buffer("mean", tg.zeros(columns))
        self.register_buffer("square", tg.ones(columns))
        self.weight = nn.Parameter(tg.linspace(0.5, 1.5, columns))
        self.seen = None

    def forward(self, x):
        with tg.no_grad():
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.square = 0.9 * self.square + 0.1 * (x * x).mean(0)
        self.seen = ((x - self.mean) / self.square.sqrt()).detach()
        self.largest = self.seen.max()
        return (x - self.mean) / self.square.sqrt() * self.weight


def test_buffers_of_a_module_are_assigned_at_every_call(device):
    plain, traced = Running(), Running()
    step = tg.trace(traced)
    kept = []
    for x in batches():
        before = traced.mean
        was = before.numpy()
        np.testing.assert_allclose(step(x).detach().numpy(), plain(x).detach().numpy(), rtol=1e-5, atol=1e-6)
        for name in ("mean", "square", "seen", "largest"):
            np.testing.assert_allclose(getattr(traced, name).numpy(), getattr(plain, name).numpy(), rtol=1e-5, atol=1e-6)
        assert traced.mean is not before
        kept.append((before, was))
    for tensor, was in kept:                         # it is another tensor each time: who holds an earlier one sees its value
        np.testing.assert_array_equal(tensor.numpy(), was)
    assert set(traced.state_dict()) == {"mean", "square", "weight"}
    assert len(step.compilations) <= 2               # `seen` and `largest` are there from the second call on


def test_a_step_with_backward_and_an_exponential_average(device):
    def program(wrap):
        model = nn.Linear(13, 5)
        with tg.no_grad():
            model.weight.copy_(tg.linspace(-1, 1, 65).reshape(5, 13))
            model.bias.zero_()
        optimizer = tg.optim.SGD(model.parameters(), lr=0.1)
        average = {"weight": model.weight.detach().clone()}

        @wrap
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            average["weight"] = 0.5 * average["weight"] + 0.5 * model.weight.detach()
            return loss

        found = [(step(x).detach().numpy(), average["weight"].numpy()) for x in batches()]
        return found, step

    plain, _ = program(lambda f: f)
    traced, step = program(tg.trace)
    for ours, wanted in zip(traced, plain, strict=True):
        np.testing.assert_allclose(ours[0], wanted[0], rtol=1e-5)
        np.testing.assert_allclose(ours[1], wanted[1], rtol=1e-5, atol=1e-6)
    assert step.compilations == ["first call"]


def test_variables_of_closures_and_globals_and_items_of_lists():
    total = tg.tensor(0.0)
    held = [tg.zeros(3), tg.ones(3)]

    @tg.trace
    def add(x):
        nonlocal total
        global LATEST
        total = total + x.sum()
        held[1] = held[0] + held[1] * x
        LATEST = x * 3
        return total * 2

    for k in range(1, 4):
        result = add(tg.full((3,), 2.0))
        assert result.item() == 12.0 * k
        assert total.item() == 6.0 * k
        assert LATEST.tolist() == [6.0] * 3
    assert held[1].tolist() == [8.0] * 3


LATEST = None


def test_what_is_returned_is_what_was_assigned():
    class Box:
        value = None

    box = Box()
    box.value = tg.zeros(4)

    @tg.trace
    def f(x):
        box.value = box.value + x
        box.row = box.value[1:3]
        return box.value, box.value[0]

    for k in range(1, 4):
        whole, first = f(tg.ones(4))
        assert whole is box.value
        assert whole.tolist() == [float(k)] * 4
        whole.add_(1.0)                              # as untraced: the results are views of it
        assert first.item() == k + 1
        assert box.row.tolist() == [k + 1.0] * 2
        whole.sub_(1.0)


def test_another_tensor_put_there_is_read():
    class Box:
        pass

    box = Box()
    box.state = tg.zeros(4)

    @tg.trace
    def f(x):
        box.state = box.state * 0.5 + x
        return box.state.sum()

    assert f(tg.ones(4)).item() == 4.0
    box.state = tg.full((4,), 10.0)
    assert f(tg.ones(4)).item() == 24.0
    box.state = tg.full((4,), 10.0, dtype=tg.float64)          # another dtype: another recording
    assert f(tg.ones(4)).dtype == tg.float64
    box.state = x = tg.ones(4)                                 # the very argument: two ways to one tensor; no recording is kept of that
    assert f(x).item() == 6.0
    assert (box.state.tolist(), x.tolist()) == ([1.5] * 4, [1.0] * 4)
    box.state = x
    with pytest.raises(tg.TraceError, match=r"state\.copy_.*at every call"):
        f(x)
    assert box.state is x


def test_a_state_with_a_history_goes_on():
    class Box:
        pass

    def program(wrap):
        box, w = Box(), tg.tensor([0.5, -0.25], requires_grad=True)
        box.h = tg.ones(2)
        f = wrap(lambda x: setattr(box, "h", box.h * w + x))
        for k in range(3):
            f(tg.full((2,), float(k)))
        box.h.sum().backward()
        return box.h.tolist(), w.grad.tolist()

    assert program(tg.trace) == program(lambda f: f)


def test_a_body_that_fails_leaves_what_was_there():
    class Box:
        pass

    box = Box()
    box.state, old = tg.zeros(3), None
    old = box.state

    @tg.trace
    def f(x):
        box.state = box.state + x
        box.new = x * 2
        raise KeyError("no")

    with pytest.raises(KeyError):
        f(tg.ones(3))
    assert box.state is old
    assert not hasattr(box, "new")


def test_what_cannot_be_told_apart_is_done_once_and_not_replayed():
    class Box:
        pass

    box = Box()
    box.state = box.again = tg.zeros(3)

    @tg.trace
    def f(x):
        box.state = box.state + x
        return box.again * 1.0

    for k in range(3):                                         # after the first call they are two tensors
        assert f(tg.ones(3)).tolist() == [0.0] * 3
        assert box.state.tolist() == [k + 1.0] * 3
        assert box.again.tolist() == [0.0] * 3

    @tg.trace
    def g(x):
        box.state.add_(1.0)
        box.state = box.state + x

    old = box.state
    g(tg.ones(3))
    assert (old.tolist(), box.state.tolist()) == ([4.0] * 3, [5.0] * 3)
    with pytest.raises(tg.TraceError, match=r"changed in place, too; state\.copy_.*at every call"):
        g(tg.ones(3))
    assert box.state.tolist() == [5.0] * 3
