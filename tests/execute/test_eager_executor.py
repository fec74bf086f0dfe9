"""Small operations are done by numpy when they are called (tracegrad/execute/eager_executor.py): to what deferred ones compute, where that
is right."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.execute import eager_executor, policy
from tracegrad.execute.program import Program
from tracegrad.nn import functional as F
from tracegrad.ops.primitives import movement
from tracegrad.runtime.buffer import held
from tracegrad.support.blas import silent
from tracegrad.support.tuning import tuning

pytestmark = pytest.mark.skipif(tg.device().kind == "numpy" or not tg.device().in_host_memory, reason="all is deferred on this device")


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)


def given(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def moved(x):
    y = x.transpose(0, 1)
    return y, y.reshape(-1)[3:9], y[1:4, ::2], x.T @ y.T, y.unsqueeze(1).expand(-1, 2, -1).sum(2), x.split(3, 0)[1] * 2.0, x.diagonal()


def reduced(x):
    return x.mean(), x.var(1), x.amax(0), x.argmax(1), F.softmax(x, 1), F.layer_norm(x, (x.shape[1],)), (x.T * 3.0).sum(0), x.cumsum(1)


def indexed(x):
    i = x.argmax(1) % 3
    return x[i], x[i, 2], x.gather(1, i[:, None]), x[[2, 0, 1]], F.one_hot(i, 3), x[tg.arange(4)], tg.where(x > 0, x, 0.0), x[-1, :5]


def mixed(x):
    return x.double().exp(), (x > 0) & (x < 1.0), x.to(tg.int32) // 2, x / 0.0, (x - x) / (x - x), F.gelu(x), x.half() + 1, tg.stack([x, x])


PROGRAMS = [moved, reduced, indexed, mixed]


@pytest.mark.parametrize("shape", [(7, 13), (33, 33), (65, 16)])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.recall
def test_the_same_values_shapes_and_dtypes_as_deferred(program, shape, monkeypatch):
    inputs = [given(k, *shape) for k in range(5)]
    done = []
    for k, array in enumerate(inputs):
        before = tg.report()["eager"]
        found = program(tg.from_numpy(array))
        assert k < 2 or sum(held(r._node().value) is None for r in found) <= 5        # of calls that have no template
        done.append(([(r.numpy(), r.shape, r.dtype, r.requires_grad, r._base is not None) for r in found], tg.report()["eager"] - before))
    assert done[-1][1] >= len(done[-1][0]) - 5
    monkeypatch.setattr(eager_executor.EagerCall, "arrays", lambda *given: None)
    for array, (results, _) in zip(inputs, done, strict=True):
        for r, (values, *rest) in zip(program(tg.from_numpy(array)), results, strict=True):
            assert [r.shape, r.dtype, r.requires_grad, r._base is not None] == rest
            assert values.flags.c_contiguous
            np.testing.assert_array_equal(r.numpy(), values)


def test_what_is_written_into_a_view_is_seen_in_its_base_and_the_other_way():
    for step in range(5):
        x = tg.from_numpy(given(step, 5, 7))
        wanted = given(step, 5, 7)
        view, row = x.transpose(0, 1)[1:3], x[2]
        view += 1.0
        wanted.T[1:3] += 1.0
        np.testing.assert_array_equal(x.numpy(), wanted)
        np.testing.assert_array_equal(row.numpy(), wanted[2])
        x.mul_(2.0)
        np.testing.assert_array_equal(view.numpy(), wanted.T[1:3] * 2.0)
        row.zero_()
        assert x[2].abs().sum().item() == 0.0


def test_values_that_left_do_not_change():
    x = tg.from_numpy(given(0, 33, 7))
    for _ in range(5):
        y = x + 1.0
        shared, turned, copied = np.asarray(y), np.asarray(y.T), y.numpy()
        assert turned.flags.c_contiguous
        assert not shared.flags.writeable
        before = shared.copy()
        y += 5.0
        y.T.mul_(2.0)
        copied[:] = 0.0
        np.testing.assert_array_equal(shared, before)
        np.testing.assert_array_equal(turned, before.T)
        np.testing.assert_array_equal(x.numpy(), given(0, 33, 7))


@pytest.mark.recall
def test_a_small_part_does_not_keep_the_whole():
    for _ in range(5):
        x = tg.from_numpy(given(0, 64, 65)) * 1.0
        part = x[3, 5] * 1.0
        row = x[3]
        whole = weakref.ref(held(x._n.value)) if held(x._n.value) is not None else None
        value = held(row._node().value)
    assert whole is not None
    assert value is not None
    assert value.base is None or value.base.nbytes <= movement.SPARE * value.nbytes
    del x, row
    gc.collect()
    assert whole() is None
    assert np.isfinite(part.item())


def test_what_has_no_value_yet_is_deferred():
    x = tg.from_numpy(given(0, 33)).requires_grad_()
    for _ in range(5):
        y = x * 2.0 + 1.0                                # to be differentiated
        assert y._n.value is None
        with tg.no_grad():
            z = y.detach() * 3.0
            w = x * 3.0                                  # its value is there
        assert z._n.value is None
        np.testing.assert_array_equal(z.numpy(), (given(0, 33) * np.float32(2) + 1) * 3)
    assert held(w._n.value) is not None
    assert not w.requires_grad
    assert w.is_leaf
    (x * w).sum().backward()                             # what an eager call made is a leaf to others
    np.testing.assert_allclose(x.grad.numpy(), given(0, 33) * 3, rtol=1e-6)


@pytest.mark.recall
def test_the_switch_and_large_work(monkeypatch):
    big, small = tg.from_numpy(given(0, 700, 300)), tg.from_numpy(given(0, 7, 3))
    for _ in range(5):
        assert (big - 0.5)._n.value is None
        known = small - 0.5
    assert known._n.value is not None
    monkeypatch.setattr(tg.config, "eager", False)
    for _ in range(5):
        assert (small - 0.5)._n.value is None


def test_indices_out_of_range_are_told_when_a_value_is_read():
    table = tg.from_numpy(given(0, 7, 3))
    for k in (0, 6, 3, 5, 7, 2, -8):
        found = F.embedding(tg.tensor([1, k]), table) if k >= 0 else table[tg.tensor([1, k])]
        later = found * 2.0
        if 0 <= k < 7:
            np.testing.assert_array_equal(later.numpy(), given(0, 7, 3)[[1, k]] * 2)
        else:
            with pytest.raises(IndexError, match=rf"{k}.*test_eager_executor\.py"):
                later.sum().item()
    for _ in range(4):
        with pytest.raises(tg.ShapeError, match=r"test_eager_executor\.py"):
            table + tg.from_numpy(given(0, 4))


def test_ranges_of_integers_stay_known():
    scores = tg.from_numpy(given(0, 5, 3))
    for _ in range(5):
        best = scores.argmax(1)
        assert eager_executor.interval(best._n) == (0, 2)
        picked = scores.gather(1, best[:, None])
    np.testing.assert_array_equal(picked.numpy()[:, 0], given(0, 5, 3).max(1))
    for _ in range(4):
        assert tg.from_numpy(given(1, 3, 2))[best].shape == (5, 2)
        with pytest.raises(IndexError):
            tg.from_numpy(given(1, 2, 2))[(best * 0 + 2)].sum().item()


def test_the_same_way_in_every_run():
    """Which calls are eager depends on what was called before, and on nothing else."""
    def run():
        found, x = [], tg.from_numpy(given(0, 16, 31))
        for _ in range(4):
            before = tg.report()["eager"]
            x = F.softmax(x @ tg.from_numpy(given(1, 31, 31)), 1) * 3.25
            found.append((tg.report()["eager"] - before, x.numpy().tobytes()))
        return found

    run()
    assert run() == run()


@pytest.mark.recall
def test_signatures_are_forgotten_when_there_are_too_many(monkeypatch):
    x = tg.from_numpy(given(0, 100))
    memo = tg.graph.primitive.REGISTRY["add"].memo
    monkeypatch.setattr(memo, "budget", 20)
    memo.clear()
    for n in range(1, 90):
        for _ in range(3):
            x[:n].sum()
            y = x + 0.125                                  # used all the time
        x + float(n)
        x + float(n)
        assert memo.size() <= 20
    assert held(y._n.value) is not None
    np.testing.assert_array_equal(y.numpy(), given(0, 100) + np.float32(0.125))


def test_parts_of_complex_numbers_stay_views():
    """At every use: the calls that make them become known at the second or third."""
    for step in range(5):
        z = (np.arange(15).reshape(3, 5) + 1j).astype(np.complex64)
        x = tg.tensor(z)
        x.real.mul_(2)
        z.real *= 2
        x.imag[1] = 5
        z.imag[1] = 5
        x[0] = 1j
        z[0] = 1j
        tg.view_as_real(x)[2, 1:, 0] += 3
        z.real[2, 1:] += 3
        np.testing.assert_array_equal(x.numpy(), z, err_msg=f"iteration {step}")
        y = x.detach()
        y.abs()
        y[1] = 0
        z[1] = 0
        np.testing.assert_array_equal(x.numpy(), z, err_msg=f"iteration {step}")


@pytest.mark.recall
def test_what_is_made_of_numbers_is_remembered_and_nobody_changes_it():
    def all_kinds():
        return [tg.arange(12), tg.arange(1, 8, 2), tg.arange(0.0, 1.0, 0.25), tg.ones(3, 5), tg.zeros((2, 3), dtype=tg.int32), tg.eye(4),
                tg.full((2, 2), True), tg.full((2, 2), 1), tg.full((2, 2), 1.0), tg.full((2,), -0.0), tg.full((2,), 0.0),
                tg.linspace(-1.0, 1.0, 5), tg.full((2,), float("nan"))]

    first = [(x.numpy(), x.dtype, x.shape) for x in all_kinds()]
    for _ in range(5):
        made = all_kinds()
        for x, (values, dtype, shape) in zip(made, first, strict=True):
            assert (x.dtype, x.shape, x.requires_grad, x._base) == (dtype, shape, False, None)
            assert x.numpy().tobytes() == values.tobytes()
            x.zero_() if dtype != np.bool_ else x.logical_not_()         # what is written stays the tensor's own
            x[...] = 1
    assert held(tg.ones(3, 5)._n.value) is not None
    assert eager_executor.interval(tg.arange(12)._n) == (0, 11)
    assert tg.ones(3, 5, requires_grad=True).is_leaf
    assert tg.trace(lambda x: x + tg.arange(12))(tg.zeros(12)).tolist() == list(range(12))
    try:
        tg.set_default_dtype(tg.float64)
        assert [tg.ones(3, 5).dtype for _ in range(4)] == [np.float64] * 4
        assert held([tg.linspace(-1.0, 1.0, 5) for _ in range(4)][-1]._n.value) is not None or not tg.device().fp64
    finally:
        tg.set_default_dtype(tg.float32)
    assert tg.ones(3, 5).dtype == np.float32
    for _ in range(4):
        with pytest.raises(tg.ArgumentError, match=r"arange: .*step not 0"):
            tg.arange(0, 1, 0)


def test_views_of_views_follow_their_base():
    for step in range(5):
        x = tg.from_numpy(given(step, 6, 4, 5))
        wanted = given(step, 6, 4, 5)
        y = x.transpose(0, 1)
        z = y[1:3]
        w = z.reshape(2, 30)[:, 3:7] if step % 2 else z.transpose(1, 2)

        def w_of(a, step=step):
            part = a.transpose(1, 0, 2)[1:3]
            return part.reshape(2, 30)[:, 3:7] if step % 2 else part.transpose(0, 2, 1)

        np.testing.assert_array_equal(w.numpy(), w_of(wanted))
        if not step % 2:
            x.mul_(2.0)                                             # the base, a view in the middle, and the last one
            z.add_(1.0)
            w.sub_(3.0)
            wanted *= 2
            wanted.transpose(1, 0, 2)[1:3] += 1
            wanted.transpose(1, 0, 2)[1:3].transpose(0, 2, 1)[...] -= 3
            np.testing.assert_array_equal(x.numpy(), wanted)
        np.testing.assert_array_equal(w.numpy(), w_of(wanted))
        y.transpose_(0, 1)                                          # what it is a view of is what it was
        np.testing.assert_array_equal(w.numpy(), w_of(wanted))
        np.testing.assert_array_equal(y.numpy(), wanted)
        if not step % 2:
            z.requires_grad_()                                      # a leaf, which shares memory with x as before
            with tg.no_grad():
                x.fill_(3.0)
                z.mul_(2.0)
            np.testing.assert_array_equal(w.detach().numpy(), np.full(w.shape, 6.0, np.float32))
            np.testing.assert_array_equal(x[:, 1:3].numpy(), np.full((6, 2, 5), 6.0, np.float32))


def test_numpy_does_not_warn_and_its_errors_stay_as_they_were(recwarn):
    before = np.geterr()
    x = tg.from_numpy(np.array([0.0, -1.0, 3e38], np.float32))
    for _ in range(5):
        found = [x.log(), 1.0 / x, x * x, (x[:, None] @ x[None, :])]
    assert np.isinf(found[2].numpy()[2])
    assert np.geterr() == before
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


@pytest.mark.recall
def test_numpy_is_silent_in_every_thread_and_in_a_call_within_a_call(recwarn):
    """A signal's handler, or what the garbage collector calls, computes while a call does: that is deferred."""
    x, found = tg.tensor([3e38]), []

    def many():
        found.append([(x * 2.0).item() for _ in range(20)])

    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[float("inf")] * 20] * 3
    many()
    before = policy.eager_calls[0]
    assert silent.call(lambda: x * 2.0).item() == float("inf")
    assert policy.eager_calls[0] == before
    assert (x * 2.0).item() == float("inf")
    assert policy.eager_calls[0] == before + 1
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_views_stay_what_they_are_where_a_base_is_moved_in_place():
    def program():
        x = tg.tensor(given(0, 4, 6)) * 1.0
        y = x.reshape(4, 2, 3).transpose(0, 1)
        z = y[1]
        found = [z + 1]
        y.transpose_(0, 2)
        found += [z + 1, y + 1]
        x.t_()
        found += [z + 1, y + 1, x + 1]
        x[0] = 5.0
        z *= 2.0
        return [t.numpy() for t in (*found, z + 1, y + 1, x + 1)]

    with tg.no_grad():
        expected = program()
        for _ in range(4):
            for a, b in zip(expected, program(), strict=True):
                np.testing.assert_array_equal(a, b)
    numbers = given(0, 4, 6)
    np.testing.assert_array_equal(expected[0], numbers.reshape(4, 2, 3).transpose(1, 0, 2)[1] + 1)
    np.testing.assert_array_equal(expected[1], expected[0])
    np.testing.assert_array_equal(expected[3], expected[0])
    numbers[:, 0] = 5.0
    numbers.reshape(4, 2, 3)[:, 1] *= 2.0
    np.testing.assert_array_equal(expected[6], numbers.reshape(4, 2, 3).transpose(1, 0, 2)[1] + 1)
    np.testing.assert_array_equal(expected[7], numbers.reshape(4, 2, 3).transpose(1, 0, 2).swapaxes(0, 2) + 1)
    np.testing.assert_array_equal(expected[8], numbers.T + 1)


def test_a_step_with_batch_norms_has_one_structure_from_the_third_on(monkeypatch):
    """Counters of batches are known calls at once, and running values are the same work where a kernel has them."""
    made, record = [], Program.recorded.__func__

    def recorded(cls, key, order, *rest):
        made.append(record(cls, key, order, *rest))
        return made[-1]

    monkeypatch.setattr(Program, "recorded", classmethod(recorded))
    tg.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(5)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 2))
    optimizer = tg.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = tg.rand(4, 3, 4, 4), tg.arange(4) % 2
    counts = []
    for k in range(7):
        if k == 5:                          # kernels from here on
            step = max(made, key=lambda program: len(program.order))
            made[-1].usage.tier_up = step.usage.tier_up = 0
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        counts.append(len(made))
    assert counts[2:] == [counts[2]] * 5
    assert any(program.versions for program in made)
    assert int(layers[0][1].num_batches_tracked) == 7


@pytest.mark.recall
def test_integers_that_never_come_again_are_numbers_as_floats_are():
    """A running mean divides by how many there were: each is another call, and none is deferred; nor is what was before they were known."""
    mean, total = tg.zeros(8), np.zeros(8, np.float32)
    for n in range(1, 40):
        x = given(n, 8)
        found = tg.tensor(x)
        parts = [found / n, n / found, found - n, n - found, found * n, found / float(n)]
        mean.add_((found - mean) / n)
        total += (x - total) / np.float32(n)
        wanted = [x / np.float32(n), np.float32(n) / x, x - n, n - x, x * np.float32(n), x / np.float32(n)]
        for a, b in zip(parts, wanted, strict=True):
            assert n < 5 or held(a._n.value) is not None
            np.testing.assert_array_equal(a.numpy(), b.astype(np.float32))
        assert n < 5 or held(mean._n.value) is not None
    np.testing.assert_array_equal(mean.numpy(), total)
    i = tg.tensor([1, 2, 3])
    assert [(i * n).tolist() for n in (2**40, 3, True)] == [[2**40, 2**41, 3 * 2**40], [3, 6, 9], [1, 2, 3]]
    assert [(tg.ones(1) * n).item() for n in (2**24 + 1, 2**24 + 3)] == [2.0**24, 2.0**24 + 4]


@pytest.mark.recall
@pytest.mark.parametrize("made", [lambda x: x.topk(2).values, lambda x: x.sort(descending=True).indices, lambda x: x.argsort(0),
                                  lambda x: x.clone(), lambda x: tg.multinomial(x.abs() + 0.1, 1)])
def test_sorts_copies_and_draws_are_done_when_called(made):
    x = tg.tensor(given(0, 6, 5))
    for _ in range(4):
        found = made(x)
    assert held(found._n.value) is not None


@pytest.mark.recall
def test_what_no_grad_takes_of_a_history_that_has_values():
    """Its views are known calls: the node of what has no history is the same for the whole call."""
    w = tg.tensor(given(0, 6), requires_grad=True)
    for k in range(6):
        y = w * float(k)
        y.tolist()
        with tg.no_grad():
            view = y.reshape(2, 3)
            twice = view.detach() * 2.0
    assert held(view._n.value) is not None
    assert held(twice._n.value) is not None
    np.testing.assert_array_equal(twice.numpy(), (given(0, 6) * np.float32(5) * 2).reshape(2, 3))
    y.sum().backward()
    assert w.grad.tolist() == [5.0] * 6
    node = weakref.ref(y._n)
    y = view = None
    assert node() is None                                       # nor is a history kept by what was taken of it
    assert twice.shape == (2, 3)


@pytest.mark.recall
def test_attention_is_computed_when_it_is_called():
    """All that followed it was pending: a transformer that generates text took twice the time."""
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(1, 5, 8) * 2.0

    q, k, v = (tg.tensor(given(i, 1, 2, 5, 4)) for i in range(3))
    wanted = attend(q, k, v).numpy()
    for _ in range(3 * tuning().early_uses):
        found = attend(q, k, v)
    assert held(found._n.value) is not None
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_constants_of_large_work_are_not_computed(monkeypatch):
    """Large random numbers are made of a range, which was computed to see whether NumPy does the work (on "meta", too)."""
    asked = []
    value = eager_executor.constant_value

    def noted(node, depth=0):
        asked.append(node.aval.size)
        return value(node, depth)

    monkeypatch.setattr(eager_executor, "constant_value", noted)
    for device in (None, "meta"):
        for _ in range(3):
            tg.rand(1 << 20, device=device)
    assert max(asked, default=0) < 1 << 20
