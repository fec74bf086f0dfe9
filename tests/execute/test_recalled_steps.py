"""Recurring steps: what is made without its nodes (autograd/backward_cache.py, graph/cached_calls.py, optim/update.py) is what
they would make."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.values import given
from tracegrad import nn
from tracegrad.autodiff import derivatives
from tracegrad.execute import policy as eager
from tracegrad.execute import realize as tg_realize
from tracegrad.execute.program import programs
from tracegrad.graph import cached_calls, ir, primitive
from tracegrad.graph.ir import INTERN
from tracegrad.nn import functional as F
from tracegrad.tensors.bases.history import leaves

ROOT = Path(__file__).parents[2]


def network():
    tg.manual_seed(3)
    return nn.Sequential(nn.Linear(13, 33), nn.LayerNorm(33), nn.GELU(), nn.Dropout(0.3), nn.Linear(33, 7))


# ---------------------------------------------------------------------------------------------------------------- programs


def dropout_and_adamw():
    model = network()
    optimizer = tg.optim.AdamW(model.parameters(), lr=0.01)
    x, y = given(0, 65, 13), tg.arange(65) % 7
    found = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [*found, *model.parameters()]


def accumulated_and_clipped():
    model = network().eval()
    optimizer = tg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    found = []
    for k in range(6):
        optimizer.zero_grad()
        for part in range(3):
            (model(given(10 * k + part, 16, 13)).square().mean() / 3).backward()
        found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        optimizer.step()
    return [*found, *model.parameters()]


def two_losses_of_one_forward():
    model, head = nn.Linear(13, 16), nn.Linear(16, 3)
    tg.manual_seed(1)
    with tg.no_grad():
        for k, p in enumerate([*model.parameters(), *head.parameters()]):
            p.copy_(given(k, *p.shape) * 0.2)
    one, other = tg.optim.Adam(model.parameters(), lr=0.01), tg.optim.RMSprop(head.parameters(), lr=0.01)
    found = []
    for k in range(6):
        hidden = model(given(k, 31, 13)).tanh()
        other.zero_grad()
        first = head(hidden.detach()).square().mean()
        first.backward()
        other.step()
        one.zero_grad()
        second = (head(hidden) - 1.0).square().mean()
        second.backward()                                   # adds to the gradients of `head`, too
        one.step()
        found += [first.detach(), second.detach(), hidden.detach().sum(), *(p.grad.clone() for p in head.parameters())]
    return [*found, *model.parameters(), *head.parameters()]


def constants_that_change():
    w = given(0, 33).requires_grad_()
    found = []
    for k in range(13):
        loss = ((w * (1.0 + 0.5 * (k % 4))) ** 2).sum() * (0.1 * (k % 4)) + (w ** (2 + k % 2)).sum()
        loss.backward()
        found.append(w.grad)
        with tg.no_grad():
            w -= 0.01 * w.grad
        w.grad = None
    return [*found, w]


def state_carried_on():
    cell, table = nn.LSTM(5, 7), nn.Embedding(11, 5)
    with tg.no_grad():
        for k, p in enumerate([*cell.parameters(), *table.parameters()]):
            p.copy_(given(k, *p.shape) * 0.3)
    optimizer = tg.optim.Adam([*cell.parameters(), *table.parameters()], lr=0.01)
    state, text, found = None, tg.tensor([k * k % 11 for k in range(100)]), []
    for k in range(8):
        out, (h, c) = cell(table(text[9 * k:9 * k + 9])[:, None], state)
        state = h.detach(), c.detach()
        optimizer.zero_grad()
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()
        found += [loss.detach(), state[0]]
    return [*found, *cell.parameters()]


def a_schedule_and_groups_that_change():
    model = network().eval()
    last = list(model[4].parameters())
    optimizer = tg.optim.AdamW([{"params": list(model[0].parameters())}, {"params": last, "weight_decay": 0.3}], lr=0.1)
    schedule = tg.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for k in range(9):
        optimizer.zero_grad()
        y = model(given(k, 16, 13))
        (y.square().mean() if k != 4 else model[4](given(k, 16, 33)).mean()).backward()      # once, only the last layer has gradients
        if k == 6:
            optimizer.param_groups[1]["weight_decay"] = 0.0
        if k == 7:
            optimizer.load_state_dict(optimizer.state_dict())
        optimizer.step()
        schedule.step()
    return [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]


PROGRAMS = [dropout_and_adamw, accumulated_and_clipped, two_losses_of_one_forward, constants_that_change, state_carried_on,
            a_schedule_and_groups_that_change]


@one_of(4, "program", PROGRAMS)
def test_the_short_way_computes_what_the_long_way_does(program, device, at_length, recalled):
    if device.kind != "numpy" and not tg.config.eager and program not in PROGRAMS[:2]:
        pytest.skip("two programs are compiled, the others run by numpy")
    found = [t.detach().numpy() for t in program()]
    assert recalled() > 0 or (device.kind == "numpy" and program is state_carried_on)        # where a slice is work like any other
    at_length()
    wanted = [t.detach().numpy() for t in program()]
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if tg.config.eager:
            np.testing.assert_array_equal(a, b, err_msg=str(k))
        else:
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=str(k))


OPTIMIZERS = {
    "ASGD": dict(lr=0.05, t0=3), "Adagrad": {}, "Adadelta": {}, "Adam": dict(amsgrad=True, weight_decay=0.1), "Adamax": {}, "NAdam": {},
    "RAdam": {}, "RMSprop": dict(momentum=0.5, centered=True), "Rprop": {}, "SGD": dict(lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name, at_length, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", tg.device().in_host_memory)

    def train():
        ws = [given(k, 7, 13).requires_grad_() for k in range(3)]
        optimizer = getattr(tg.optim, name)(ws, **OPTIMIZERS[name])
        for k in range(8):
            optimizer.zero_grad()
            (ws[0] @ ws[1].T * (ws[2] if k != 5 else ws[0]).sum()).tanh().sum().backward()    # once, the third one has no gradient
            optimizer.step()
        return [w.detach().numpy() for w in ws] + [v.numpy() for s in optimizer.state.values() for v in s.values()]

    found = train()
    at_length()
    for a, b in zip(found, train(), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-7)


# --------------------------------------------------------------------------------------------------------- what a step costs


@pytest.mark.parametrize("numpy_first", [False, True], ids=["kernels", "eager"])
@pytest.mark.recall
def test_a_known_step_is_one_program_without_a_graph_or_another_queue(numpy_first, monkeypatch):
    """Nor an order of its nodes: which program it is shows from how they were recorded."""
    monkeypatch.setattr(tg.config, "eager", numpy_first)
    model, device = network(), tg.device()
    optimizer = tg.optim.AdamW(model.parameters(), lr=0.01)
    x, y = given(0, 65, 13), tg.arange(65) % 7
    happened: Counter[str] = Counter()

    def count(owner, name):
        real = getattr(owner, name)

        def counted(*args, **more):
            if name != "topological" or args[0]:                # (of nothing: which of no nodes have a history)
                happened[name] += 1
            return real(*args, **more)

        monkeypatch.setattr(owner, name, counted)

    def steps(n):
        happened.clear()
        for _ in range(n):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
        return dict(happened)

    count(tg_realize, "_values")
    count(ir.Graph, "capture")
    for module in (derivatives, tg_realize):
        count(module, "topological")
    if hasattr(device, "_switch"):
        count(type(device), "_switch")
    first = steps(30)
    assert {"topological", "_values"} <= set(first)
    assert steps(5) == {}


# --------------------------------------------------------------------------------------------------- what must not be lost


def test_a_history_is_freed_as_ever(device, recalled):
    w = given(0, 7).requires_grad_()
    for k in range(5):
        inner = w * 2.0
        middle = inner.exp()
        shifted = middle + 1.0
        loss = shifted.sum()
        loss.backward()
        assert recalled() == max(0, k - 1)
        np.testing.assert_allclose(w.grad.numpy(), 2 * np.exp(2 * w.detach().numpy()), rtol=1e-5)
        np.testing.assert_allclose(shifted.detach().numpy(), np.exp(2 * w.detach().numpy()) + 1, rtol=1e-5)
        for result in (loss, middle, shifted):
            with pytest.raises(tg.AutogradError, match="freed by an earlier backward"):
                result.sum().backward()
        w.grad = None
    node = weakref.ref(inner._n)
    del inner, middle, shifted, loss, result
    assert node() is None


def test_a_hook_that_comes_later_is_called(device, recalled):
    w = given(0, 7).requires_grad_()
    seen = []
    for k in range(7):
        y = w.tanh()
        if k in (4, 5):
            y.register_hook(lambda g: seen.append(1) or g * 10)
        y.sum().backward()
        slope = 1 - np.tanh(w.detach().numpy()) ** 2
        np.testing.assert_allclose(w.grad.numpy(), slope * (10 if k in (4, 5) else 1), rtol=1e-5)
        w.grad = None
    assert seen == [1, 1]
    handle = w.register_hook(lambda g: g * 3)
    w.tanh().sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), slope * 3, rtol=1e-5)
    handle.remove()
    assert recalled() == 3


def test_a_wrong_index_names_the_line_of_this_call(device):
    table = given(0, 5, 3).requires_grad_()

    def loss(index):
        return table[index].exp().sum()

    for _ in range(4):
        loss(tg.tensor([1, 4])).backward()
        table.grad = None
    bad = table[tg.tensor([1, 5])].exp().sum()                      # another line
    bad.backward()
    with pytest.raises(tg.IndexOutOfRange, match=r"test_recalled_steps\.py:\d+: index holds 5, out of range"):
        table.grad.numpy()
    table.grad = None
    again = loss(tg.tensor([-6, 0]))
    again.backward()
    with pytest.raises(tg.IndexOutOfRange, match="holds -6"):
        again.item()


@pytest.mark.recall                     # (a step that is recorded anew makes leaves, which are known while the tensor lives)
def test_nothing_grows(device):
    w = given(0, 13).requires_grad_()
    optimizer = tg.optim.Adam([w], lr=0.01)

    def train(n):
        for _ in range(n):
            optimizer.zero_grad()
            (w * w).sum().backward()
            optimizer.step()
        gc.collect()
        return len(INTERN), len(leaves), len(gc.get_objects())

    train(20)
    before = train(5)
    after = train(60)
    assert [b - a < 30 for a, b in zip(before, after, strict=True)] == [True] * 3


def test_batches_of_one_array_are_one_structure(monkeypatch, recalled):
    monkeypatch.setattr(tg.config, "eager", True)
    if not tg.device().in_host_memory:
        pytest.skip("one way only on this device")
    data, w = given(0, 100, 7), given(1, 7).requires_grad_()
    for k in range(9):
        batch = data[10 * k:10 * k + 10]
        (batch @ w).square().mean().backward()
        rows = data.numpy()[10 * k:10 * k + 10].astype(np.float64)
        np.testing.assert_allclose(w.grad.numpy(), 0.2 * rows.T @ (rows @ w.detach().numpy()), rtol=1e-4)
        w.grad = None
    assert recalled() == 7
    batch += 1.0                                                     # it is a view, as ever
    np.testing.assert_array_equal(data[80:90].numpy(), batch.numpy())
    data.mul_(0.0)
    assert batch.sum().item() == 0


# -------------------------------------------------------------------------------------------------------------- templates


def test_equal_arguments_of_other_types_are_other_calls(device):
    for _ in range(4):
        assert tg.ones(3, dtype=tg.int32).add(True).dtype == tg.int32
        assert tg.full((2,), 1.0).mul(1).dtype == tg.float32
        assert (tg.tensor([1, 2]) + 1).dtype == tg.int64
        assert (tg.tensor([1, 2]) + 1.0).dtype == tg.float32
        x = given(0, 4, 4)
        assert x.sum(0).shape == (4,)
        assert x.sum(0, True).shape == (1, 4)
        assert (1.0 / (x * 0.0 + 0.0)).sum().item() == np.inf * 1
        assert np.signbit(tg.tensor([-1.0]).mul(0.0).numpy()).all()
        np.testing.assert_array_equal((x * x - x * x.T).numpy(), x.numpy() ** 2 - x.numpy() * x.numpy().T)


def test_modes_and_default_dtype_are_seen(device):
    x = given(0, 7).requires_grad_()
    for k in range(8):
        with tg.set_grad_enabled(k % 2 == 0):
            y = F.softplus(x)
        assert y.requires_grad is (k % 2 == 0)
        assert F.softplus(x.detach()).requires_grad is False
    previous = tg.get_default_dtype()
    ones = tg.tensor([1, 2, 3])
    try:
        for k in range(6):
            tg.set_default_dtype(tg.float64 if k % 2 else tg.float32)
            assert tg.sqrt(ones).dtype == (tg.float64 if k % 2 else tg.float32)
    finally:
        tg.set_default_dtype(previous)


def test_errors_come_each_time_and_name_their_line(device):
    x = given(0, 4, 5)
    for _ in range(4):
        with pytest.raises(tg.ShapeError, match=r"test_recalled_steps\.py"):
            x + given(0, 3)
        with pytest.raises(tg.DTypeError):
            x & 3
        assert F.softmax(x.requires_grad_(), 1)._n.loc.filename == __file__


# ----------------------------------------------------------------------------------------------------------------- threads


def test_an_array_let_go_of_elsewhere_is_unmapped_under_the_lock(kernels):
    device = tg.device()
    if device.kind == "numpy" or not device.in_host_memory:
        pytest.skip("no memory is mapped on this device")
    made = tg.arange(65.0) * 2
    made.sum().item()
    array = [made._node().value.fetch((65,), np.float32)[0]]         # mapped for itself, not with a block of the pool
    tg.synchronize()
    device._unmap()
    dropping = threading.Thread(target=array.clear)
    with device.lock:
        dropping.start()
        dropping.join(10)
        assert not dropping.is_alive()                               # it did not wait for the lock ...
        assert len(device._let_go) == 1                              # ... and did not enqueue
    assert (tg.arange(65.0) * 2).sum().item() == 65 * 64
    assert not device._let_go


def test_threads_that_read_values(kernels):
    wrong, iterations = [], [0, 0]

    def look(k):
        return np.asarray((tg.tensor(np.arange(65.0) + k) * 2).sqrt())[3]

    def work(k):
        while iterations[k] < 300 and not wrong:
            if abs(look(k) - (6 + 2 * k) ** 0.5) > 1e-6:
                wrong.append(k)
            iterations[k] += 1

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert iterations == [300, 300]


def test_a_users_expression_of_constants_is_not_folded(kernels):
    if tg.device().kind == "numpy":
        pytest.skip("the expression is OpenCL C")
    twice = tg.elementwise("2 * x + c", args=["x", "c"])
    np.testing.assert_array_equal(twice(tg.ones(5), 0.5).numpy(), 2.5)


@pytest.mark.parametrize("op", [op for op in primitive.REGISTRY.values() if op.family == "movement"], ids=repr)
def test_rules_prepared_for_attributes_are_the_rules(op):
    rng = np.random.default_rng(0)
    for shapes, attrs in op.cases:
        for make in (np.ascontiguousarray, np.asfortranarray, lambda a: a[::-1] if a.ndim else a):
            arrays = [make(s if isinstance(s, np.ndarray) else np.asarray(rng.standard_normal(s)).astype(np.float32)) for s in shapes]
            found, wanted = op.numpy_with(**attrs)(*arrays), op.numpy(*arrays, **attrs)
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == np.asarray(wanted).dtype


def test_numpy_first_and_kernels_later(monkeypatch):
    """The switch is at the same use however a step is made, so that a program that is run again computes the same bits.

    Again is in a new process: what a process knows of a program's calls already is a part of their number.
    """
    if not tg.device().in_host_memory or tg.device().kind == "numpy":
        pytest.skip("one way only on this device")
    program = """if True:
        import sys
        import numpy as np
        import tracegrad as tg
        from tests.execute.test_recalled_steps import dropout_and_adamw
        from tracegrad.execute import policy as eager
        tg.config.eager = True
        eager._tier_up = lambda order, device: (3, "")
        found = [t.detach().numpy() for t in dropout_and_adamw()]
        np.savez(sys.argv[1], *found, counts=[tg.report()["compiled"], tg.report()["interpreted"]])
    """
    monkeypatch.setattr(tg.config, "eager", True)
    wanted = [t.detach().numpy() for t in dropout_and_adamw()]
    runs = []
    for seed in ("1", "2"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "found.npz")
            done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True, check=False,
                                  env=os.environ | {"PYTHONHASHSEED": seed})
            assert done.returncode == 0, done.stderr
            runs.append(dict(np.load(path)))
    compiled, interpreted = runs[0].pop("counts")
    assert compiled in (4, 5, 6)                                # backwards (the first draws parameters), three updates
    assert interpreted >= 6
    assert (compiled, interpreted) == tuple(runs[1].pop("counts"))
    for a, b, c in zip(*[run.values() for run in runs], wanted, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=2e-5, atol=2e-6)


def test_indices_whose_range_is_known_and_those_whose_is_not(device):
    """Calls are known by the range of their integer operands: one that fits says nothing of one that may not."""
    table, scores = tg.arange(12.0).reshape(4, 3), tg.tensor([[0.0, 2.0, 1.0, 0.5], [3.0, 0.0, 0.0, 1.0]])
    inside, outside = tg.tensor([1, 0]), tg.tensor([1, 4])
    for _ in range(4):
        np.testing.assert_array_equal(table[scores.argmax(1)].numpy(), [[3, 4, 5], [0, 1, 2]])
        np.testing.assert_array_equal(table[inside].numpy(), [[3, 4, 5], [0, 1, 2]])
        np.testing.assert_array_equal(tg.gather(scores, 1, scores.argmax(1)[:, None]).numpy(), [[2], [3]])
        with pytest.raises(tg.IndexOutOfRange):
            table[outside].numpy()
        with pytest.raises(tg.IndexOutOfRange):
            tg.gather(scores, 1, outside[:, None]).numpy()
        with pytest.raises(tg.IndexOutOfRange):              # an argmax, of a larger range than this table has
            tg.arange(3.0)[scores.argmin(1) + 2].numpy()


# ---------------------------------------------------------------------------------------------- looking in the middle of a history


def episodes():
    """Values are looked at in the middle of a history, in every iteration, and how many iterations there are differs."""
    policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
    with tg.no_grad():
        for k, p in enumerate(policy.parameters()):
            p.copy_(given(k, *p.shape) * 0.3)
    optimizer = tg.optim.Adam(policy.parameters(), lr=0.01)
    found = []
    for k in range(24):
        chances = []
        for t in range(3 + k % 4):
            logits = policy(tg.tensor([0.1 * t, 1.0]))
            found.append(tg.softmax(logits, -1)[1].item())
            chances.append(tg.log_softmax(logits, -1)[t % 3])
        loss = tg.stack(chances).sum() / len(chances)
        found.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [*map(tg.tensor, found), *policy.parameters()]


@pytest.fixture
def looking(monkeypatch):
    """What is looked at twice is computed when it is called. Tells how many templates are."""
    tg.flush()
    monkeypatch.setattr(tg.config, "eager", tg.device().in_host_memory)
    monkeypatch.setattr(tg_realize, "READS", 2)
    programs.clear()
    gc.collect()
    for template in cached_calls._owners.values():
        template.is_read, template.calls = False, 0
    yield lambda: len({id(t) for t in cached_calls._owners.values() if t.is_read})
    for template in cached_calls._owners.values():
        template.is_read, template.prepared = False, None


@pytest.mark.recall
def test_calls_whose_values_are_read_are_eager(looking, at_length):
    if tg.device().kind == "numpy" or not tg.device().in_host_memory:
        pytest.skip("of small work by numpy")
    found = [t.detach().numpy() for t in episodes()]
    assert looking() >= 4
    flushed = eager.counts["interpreted"]
    episodes()
    assert eager.counts["interpreted"] - flushed <= 4 * 24                   # of losses, backwards, steps: not of 108 looks
    at_length()
    for a, b in zip(found, episodes(), strict=True):
        np.testing.assert_array_equal(a, b.detach().numpy())


def test_calls_whose_values_are_seldom_read_are_deferred(looking):
    w = given(0, 33).requires_grad_()
    for k in range(60):
        y = (w * 2.0).tanh().sum()
        if k % 10 == 9:
            y.item()
        y.backward()
        w.grad = None
    assert looking() == 0


@pytest.mark.recall
def test_histories_of_eager_calls(looking):
    """Hooks, freed histories, derivatives of derivatives, views, changes in place, indices out of range: as ever."""
    def look(index):
        w = given(0, 7, 13).requires_grad_()
        table = given(1, 5, 13).requires_grad_()
        inner = w * 2.0 + table[index].sum(0)
        part = inner[2:5].T
        y = part.tanh()
        return w, table, inner, part, y

    for _ in range(12):
        look(tg.tensor([1, 4]))[-1].sum().item()
    if tg.device().kind != "numpy" and tg.device().in_host_memory:
        assert looking() >= 4
    seen = []
    w, table, inner, part, y = look(tg.tensor([1, 4]))
    inner.register_hook(lambda g: seen.append(1) or g * 10)
    y.retain_grad()
    loss = y.square().sum()
    loss.backward(retain_graph=True)
    a, b = w.detach().numpy() * 2 + table.detach().numpy()[[1, 4]].sum(0), np.zeros((7, 13), np.float32)
    b[2:5] = 20 * 2 * np.tanh(a[2:5]) * (1 - np.tanh(a[2:5]) ** 2)
    np.testing.assert_allclose(w.grad.numpy(), b, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(y.grad.numpy(), 2 * np.tanh(a[2:5].T), rtol=2e-5)
    assert seen == [1]
    np.testing.assert_array_equal(part.detach().numpy(), inner.detach().numpy()[2:5].T)
    gradient, = tg.autograd.grad(loss, w, create_graph=True)
    gradient.sum().backward()
    assert w.grad.abs().sum().item() > 0
    with pytest.raises(tg.AutogradError, match="freed"):
        loss.backward()
    w, table, inner, part, y = look(tg.tensor([0, 2]))
    before = y.detach().clone()
    with tg.no_grad():
        w += 1.0                                        # y keeps the values that it was computed of
    np.testing.assert_array_equal(y.detach().numpy(), before.numpy())
    y.sum().backward()
    inner2 = look(tg.tensor([0, 2]))[2]
    inner2[0] = 3.0
    assert inner2[0].sum().item() == 39.0
    with pytest.raises(tg.IndexOutOfRange, match="5, out of range"):
        look(tg.tensor([1, 5]))[-1].sum().item()
    node = weakref.ref(y._n)
    del w, table, inner, part, y, loss, gradient, inner2, before
    gc.collect()
    assert node() is None


@pytest.mark.recall
@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("size", [6, 200])
def test_gradients_that_are_set_to_zero_are_added_to_without_the_derivative(size, read, monkeypatch):
    """`w.grad.zero_()`, or `zero_grad(set_to_none=False)`: the zeros are pending, and nobody reads them but the sum in their place."""
    w, x, made = given(0, size, size).requires_grad_(), given(1, 3, size), []
    vjp = derivatives.vjp
    monkeypatch.setattr(derivatives, "vjp", lambda *args, **more: made.append(len(made)) or vjp(*args, **more))
    for _ in range(8):
        loss = ((x @ w) ** 2).sum()
        loss.backward()
        np.testing.assert_allclose(w.grad.numpy(), (2 * x.T @ (x @ w)).detach().numpy(), rtol=1e-4, atol=1e-4)
        zeros = w.grad.zero_()
        with tg.no_grad():
            w.mul_(0.9)
        if read:
            loss.item()
    assert len(made) < 5
    assert not zeros.numpy().any()
