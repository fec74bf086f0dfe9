"""Where untraced slices start is no part of the structure (ops/primitives/dynamic_slice.py): work with other indices is known, and never
mistaken."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.autodiff import batching
from tracegrad.execute import eager_executor, policy
from tracegrad.execute.program import programs
from tracegrad.graph.ir import topological
from tracegrad.graph.primitive import REGISTRY
from tracegrad.nn import functional as F


@pytest.fixture(params=["numpy's rules", "kernels"])
def way(request):
    """Both backends of untraced work, on the default device."""
    if tg.device().kind == "numpy" and request.param == "kernels":
        pytest.skip("the default device is the interpreter")
    before, tg.config.eager = tg.config.eager, request.param == "numpy's rules"
    yield request.param
    tg.flush()
    tg.config.eager = before


def given(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def structures():
    return len(programs.entries())


def compiled():
    return policy.counts["programs"] + policy.counts["background"]


KEYS = [lambda k: k % 13, lambda k: -1 - k % 13, lambda k: (slice(None), k % 7), lambda k: (k % 13, -(k % 7) - 1),
        lambda k: slice(k % 9, k % 9 + 4), lambda k: (slice(k % 5, k % 5 + 8, 2), slice(k % 3, None, 7)), lambda k: (..., k % 7, None),
        lambda k: (slice(k % 4 + 8, k % 4, -3), k % 7), lambda k: slice(k % 13, k % 13 + 1), lambda k: np.int64(k % 13)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_and_derivatives_of_every_key_as_it_changes(way, dtype):
    """Many keys in one loss, so that few programs are built; all of them change in every iteration."""
    x = given(0, 13, 7, dtype=dtype)
    for k in range(7):
        w = tg.tensor(x).requires_grad_()
        y, loss, expected, factor = w * w, 0.0, 0.0, np.zeros_like(x)
        for i, key in enumerate(KEYS):
            c = 0.5 + 0.25 * i
            loss = loss + c * (y[key(k + i)] ** 2).sum()
            expected += c * ((x * x)[key(k + i)] ** 2).sum()
            one = np.zeros_like(x)
            one[key(k + i)] = 1
            factor += c * one
        (first,) = tg.autograd.grad(loss, [w], create_graph=True)
        (second,) = tg.autograd.grad((first * first).sum(), [w])
        np.testing.assert_allclose(loss.item(), expected, rtol=1e-5)
        np.testing.assert_allclose(first.detach().numpy(), 4 * factor * x ** 3, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(second.numpy(), 2 * (4 * factor * x ** 3) * 12 * factor * x ** 2, rtol=1e-4, atol=1e-5)


def test_writes_into_parts_that_change(way):
    x, mine = given(1, 33, 16), given(1, 33, 16)
    t = tg.tensor(x)
    for k in range(12):
        t = t + 1.0
        mine = mine + 1
        t[k % 33] = float(k)
        mine[k % 33] = k
        t[k:k + 5, k % 16] += tg.tensor(x[:5, 0])
        mine[k:k + 5, k % 16] += x[:5, 0]
        part = t[2 + k:4 + k]
        part[1, k % 3:k % 3 + 7].mul_(2.0)
        mine[2 + k:4 + k][1, k % 3:k % 3 + 7] *= 2
        part[0].zero_()
        mine[2 + k] = 0
        t[::-2][k % 5] = -3.0
        mine[::-2][k % 5] = -3
        np.testing.assert_allclose(part.numpy(), mine[2 + k:4 + k], rtol=1e-5)
        np.testing.assert_allclose(t.numpy(), mine, rtol=1e-5)


def test_a_view_taken_earlier_reads_its_own_place(way):
    x = given(2, 65)
    for k in range(9):
        base = tg.tensor(x) * 2.0
        early, late, grown = base[k:k + 16], base[k + 30:k + 46], base[:k + 1]
        base[k + 3] = 100.0
        base[k + 31].fill_(-100.0)
        expected = x * 2
        expected[k + 3], expected[k + 31] = 100, -100
        np.testing.assert_array_equal(early.numpy(), expected[k:k + 16])
        np.testing.assert_array_equal(late.numpy(), expected[k + 30:k + 46])
        np.testing.assert_array_equal(grown.numpy(), expected[:k + 1])


def test_growing_prefixes_are_never_an_earlier_one(way):
    x = given(3, 31, 5)
    w = tg.tensor(x).requires_grad_()
    for repeat in range(3):
        for t in [1, 2, 7, 30, 31, 16]:
            w.grad = None
            (w * w)[:t].sum().backward()
            expected = np.zeros_like(x)
            expected[:t] = 2 * x[:t]
            np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-6, err_msg=f"{repeat}, {t}")


# ------------------------------------------------------------------------------------------------------------- what is one structure


def test_other_indices_are_the_same_structure_and_other_things_are_not(monkeypatch):
    if tg.device().kind == "numpy":
        pytest.skip("all that the interpreter does is of one way")
    monkeypatch.setattr(tg.config, "eager", True)
    monkeypatch.setattr(eager_executor.EagerCall, "arrays", lambda *given: None)         # what is deferred has structures
    x = given(4, 16, 9)

    def new(key, dtype=np.float32, shape=(16, 9), grad=False):
        base = tg.tensor(x.reshape(shape).astype(dtype)).requires_grad_(grad) * 1.5
        part = base[key] + 1.0
        before = structures()
        result = part.detach().numpy()
        np.testing.assert_allclose(result, x.reshape(shape).astype(dtype)[key] * dtype(1.5) + 1, rtol=1e-6)
        return structures() - before

    new(3), new(slice(2, 6))
    assert [new(k) for k in (0, 5, 15, -1, -16)] == [0] * 5
    assert [new(key) for key in (slice(1, 5), slice(3, 7), slice(12, 16), slice(-4, None), slice(-9, -5))] == [0] * 5
    assert new(slice(2, 7)) == 1
    assert new(slice(2, 6, 2)) == 1
    assert new((slice(None), 3)) == 1
    assert new(3, dtype=np.float64) == 1
    assert new(3, shape=(9, 16)) == 1
    assert new(3, grad=True) == 0                                     # of its value, that is
    assert new((3, 4)) == 1
    assert new((4, 3)) == 0


def test_backwards_are_recalled_whatever_the_indices(recalled, monkeypatch):
    """As REINFORCE has it: one log-probability a move; which, is new in every iteration."""
    if tg.device().kind == "numpy":
        pytest.skip("recalled programs are those of devices")
    monkeypatch.setattr(tg.config, "eager", True)
    rng = np.random.default_rng(5)
    w = tg.tensor(given(6, 4, 3)).requires_grad_()
    states = tg.tensor(given(7, 7, 4))
    for k in range(8):
        actions = [int(a) for a in rng.integers(0, 3, 7)]
        chosen = [F.log_softmax(states[t] @ w, -1)[a] for t, a in enumerate(actions)]
        loss = -tg.stack(chosen).sum()
        w.grad = None
        before = recalled()
        loss.backward()
        assert recalled() - before == (k >= 2)
        logits = states.numpy() @ w.detach().numpy()
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(7), actions] -= 1
        np.testing.assert_allclose(w.grad.numpy(), states.numpy().T @ p, rtol=1e-4, atol=1e-5)
        chances = [np.exp(row)[a] / np.exp(row).sum() for row, a in zip(logits, actions, strict=True)]
        np.testing.assert_allclose(loss.item(), -np.log(chances).sum(), rtol=1e-5)


def test_the_same_index_twice_is_not_known_as_two_that_are_equal_by_chance(recalled, monkeypatch):
    """Iterations in which two indices are equal, beside others in which they are not; and one tensor used at two places."""
    monkeypatch.setattr(tg.config, "eager", True)
    x = given(8, 9)
    w = tg.tensor(x).requires_grad_()
    for i, j in [(1, 1), (1, 2), (2, 2), (0, 8), (8, 0), (3, 3), (4, 5), (5, 5)]:
        y = w * 2.0
        w.grad = None
        (y[i] * y[j]).backward()
        expected = np.zeros_like(x)
        expected[i] += 4 * x[j]
        expected[j] += 4 * x[i]
        np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-6)
        y = w * 2.0
        w.grad = None
        part = y[i]
        (part * part).backward()
        expected[:] = 0
        expected[i] = 8 * x[i]
        np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-6)


def test_bounds_are_checked_as_ever(way):
    x = tg.tensor(given(9, 7, 5)) * 1.0
    for k in range(5):
        x[k % 7]
        for bad in (7, -8):
            with pytest.raises(tg.IndexOutOfRange, match=rf"getitem: index {bad} is out of range for dimension 0 of shape \(7, 5\)"):
                x[bad]
        with pytest.raises(tg.IndexOutOfRange, match=r"setitem: index 5 is out of range for dimension 1"):
            x[0, 5] = 1.0


def test_no_grad_and_detached_views(way):
    w = tg.tensor(given(10, 13, 4)).requires_grad_()
    for k in range(6):
        y = w * 3.0
        with tg.no_grad():
            still = y[k]
        assert not still.requires_grad
        assert not y.detach()[k + 1].requires_grad
        assert y[k].requires_grad
        np.testing.assert_allclose(still.numpy(), 3 * w.detach().numpy()[k], rtol=1e-6)
        with tg.no_grad():
            w[k] += 1.0
        w.grad = None
        (w * w)[k].sum().backward()
        expected = np.zeros((13, 4), np.float32)
        expected[k] = 2 * w.detach().numpy()[k]
        np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-6)


def test_forward_mode_and_hooks():
    x = tg.tensor(given(11, 7, 5, dtype=np.float64))
    for k in range(4):
        value, tangent = tg.jvp(lambda v, k=k: (v * v)[k, 1:4] * 2.0, (x,), (tg.ones_like(x),))
        np.testing.assert_allclose(value.numpy(), 2 * x.numpy()[k, 1:4] ** 2)
        np.testing.assert_allclose(tangent.numpy(), 4 * x.numpy()[k, 1:4])
        w = x.detach().requires_grad_()
        y = (w * w)[k]                                               # the slice was noted untraced, its derivatives are asked for below
        seen = []
        y.register_hook(seen.append)
        (y * 3.0).sum().backward()
        np.testing.assert_array_equal(seen[0].numpy(), np.full(5, 3.0))


def test_complex_numbers_integers_and_bools(way):
    z = given(12, 9, 4) + 1j * given(13, 9, 4)
    n = np.arange(36).reshape(9, 4)
    for k in range(4):
        a, b, c = tg.tensor(z) * 2.0, tg.tensor(n) + 1, tg.tensor(n) > 7
        a[k, 1] = 1j
        expected = z * 2
        expected[k, 1] = 1j
        np.testing.assert_allclose(a[k].numpy(), expected[k], rtol=1e-6)
        np.testing.assert_array_equal(b[k + 1:k + 3].numpy(), n[k + 1:k + 3] + 1)
        np.testing.assert_array_equal(c[k].numpy(), (n > 7)[k])


def test_indices_of_a_slice_are_known_to_be_in_range():
    order = tg.tensor(given(14, 9, 16)).argsort(1)
    table = tg.tensor(given(15, 16))
    for k in range(4):
        node = table[order[k]]._n
        assert not any(n.fn.reports for n in topological([node]))


def test_a_loop_in_which_an_index_changes_builds_few_programs():
    """With kernels: the first two uses show that it changes; from then on it is a run-time number."""
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter builds nothing")
    before, tg.config.eager = tg.config.eager, False
    try:
        x = tg.tensor(given(16, 100, 7))
        built = compiled()
        for k in range(20):
            np.testing.assert_allclose((x * 2.0)[k].sum().item(), 2 * x.numpy()[k].sum(), rtol=1e-4, atol=1e-5)
        assert compiled() - built == 2
    finally:
        tg.config.eager = before


def test_scans_and_traces_have_ordinary_slices():
    x = tg.tensor(given(17, 12, 5))

    @tg.trace
    def f(v):
        return v[3] + v[1:3].sum(0)

    np.testing.assert_allclose(f(x).numpy(), x.numpy()[3] + x.numpy()[1:3].sum(0), rtol=1e-6)
    names = {n.fn.name for n in f.graph}
    assert "slice" in names
    assert not names & {"slice_at", "offset"}
    carry, ys = tg.scan(lambda c, row: (c + row[1], c * row[2]), tg.zeros(()), x)
    np.testing.assert_allclose(carry.item(), x.numpy()[:, 1].sum(), rtol=1e-5)
    assert all(n.fn.family != "dynamic_slice" for n in topological([carry._n, ys._n]))


def test_the_history_shows_no_indices():
    w = tg.tensor(given(19, 7, 5)).requires_grad_()
    ((step, number),) = (w * 2.0)[3:5].grad_fn.next_functions
    assert (step.name(), number) == ("mul", 0)


def test_the_derivative_of_each_is_the_other():
    assert REGISTRY["slice_at"].family == REGISTRY["pad_at"].family == "dynamic_slice"
    cell = nn.Linear(4, 3)
    for k in range(3):
        y = cell(tg.tensor(given(k, 6, 4)))[k:k + 2]
        (first,) = tg.autograd.grad(y.square().sum(), [cell.weight], create_graph=True)
        made = {n.fn.name for n in topological([first._n])}
        assert {"slice_at", "pad_at"} <= made


def test_reading_a_part_of_what_numpy_holds_computes_nothing_else(monkeypatch):
    """A part of something pending has that computed, once; an index that was out of range is told of all the same."""
    if tg.device().kind == "numpy":
        pytest.skip("all that the interpreter does is of one way")
    monkeypatch.setattr(tg.config, "eager", True)
    REGISTRY["mul"].memo.clear()                                     # one with another number would be eager
    x = given(18, 7, 5)
    done, other = tg.tensor(x) * 2.0, tg.tensor(x) + 1.0
    for _ in range(2):                                               # the first time, `done` and `other` are pending
        before = tg.report()["interpreted"]
        assert [done[k, 1].item() for k in range(7)] == [2 * v for v in x[:, 1].tolist()]
        np.testing.assert_array_equal(done.T[1:3, ::2].numpy(), 2 * x.T[1:3, ::2])
        fresh = done[2].numpy()
        fresh[:] = 0
        np.testing.assert_array_equal(np.asarray(done[2]), 2 * x[2])
        assert not np.asarray(done[2]).flags.writeable
        assert tg.report()["interpreted"] - before == (other is not None)
        other, pending = None, done * 3.0
        assert done[3].tolist() == (2 * x[3]).tolist()
        assert pending._n.value is None
        tg.flush()
    bad = tg.tensor(x)[tg.tensor([1, 2, 9])]
    with pytest.raises(tg.IndexOutOfRange, match="index holds 9, out of range"):
        bad[0, 1].item()
    with pytest.raises(tg.IndexOutOfRange, match="index holds 9, out of range"):
        bad[0, 1].item()


@one_of(3, "n", [5, 17])
@pytest.mark.parametrize("transform", [tg.hessian, tg.jacfwd, tg.jacrev, lambda f: tg.vmap(lambda v: tg.jvp(f, (v.sin(),), (v,))[1])],
                         ids=["hessian", "jacfwd", "jacrev", "vmap of jvp"])
def test_derivatives_of_loops_over_rows_are_batched(way, transform, n, monkeypatch):
    """A rule per family maps a slice that starts at an operand: not one slice an example, and all stacked."""

    def pairs(x):
        total = 0.0
        for i in range(n):
            for j in range(max(0, i - 2), i):
                total = total + 1 / (1 + (x[i] - x[j]) ** 2) + x[j:i].sum() * x[-i]
        return total

    monkeypatch.setattr(batching, "_unrolled", lambda node, *rest: pytest.fail(f"{node.fn.name} is done one by one"))
    x = tg.tensor(given(0, n, dtype=np.float64))
    of = tg.eye(n, dtype=tg.float64) if transform not in (tg.hessian, tg.jacfwd, tg.jacrev) else x
    found = transform(pairs)(of)
    monkeypatch.undo()
    np.testing.assert_allclose(found.numpy(), tg.trace(transform(pairs))(of).numpy(), rtol=1e-10, atol=1e-12)
