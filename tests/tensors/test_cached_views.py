"""Views of what numpy holds that are taken again (tensors/cached_views.py) are the views that the long way makes."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.graph.intervals import interval
from tracegrad.runtime.buffer import HostBuffer
from tracegrad.tensors import cached_views, numpy_subscripts
from tracegrad.tensors.tensor import holding

pytestmark = pytest.mark.skipif(tg.device().kind == "numpy" or not tg.device().in_host_memory, reason="one way only on this device")

CALLS = {
    "transpose": lambda x: x.transpose(1, 2), "permute": lambda x: x.permute((2, 0, 1)), "reshape": lambda x: x.reshape(7, -1),
    "view": lambda x: x.view(7, 4, 2, 8), "flatten": lambda x: x.flatten(1), "narrow": lambda x: x.narrow(2, 3, 5),
    "select": lambda x: x.select(1, -2), "unsqueeze": lambda x: x.unsqueeze(-1), "expand": lambda x: x[:, :1].expand(7, 5, 16),
    "movedim": lambda x: x.movedim(0, 2), "diagonal": lambda x: x.diagonal(0, 1, 2), "T": lambda x: x[0].T, "mT": lambda x: x.mT,
    "unfold": lambda x: x.unfold(2, 4, 3), "twice": lambda x: x.transpose(0, 2).transpose(0, 1), "squeeze": lambda x: x[:1].squeeze(0),
    "item": lambda x: x[3], "items": lambda x: x[2, -1, 5], "slices": lambda x: x[1:-1, ..., ::3], "new": lambda x: x[None, 2, :, 4:9],
    "a copy": lambda x: x.transpose(1, 2).reshape(7, 64), "of a part": lambda x: x.chunk(2, -1)[1].reshape(7, 4, 4, 2),
}
SEVERAL = {"split": lambda x: x.split(5, dim=2), "split_sizes": lambda x: x.split((3, 13), 2), "chunk": lambda x: x.chunk(3, 1),
           "unbind": lambda x: x.unbind(1)}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    tg.flush()
    monkeypatch.setattr(tg.config, "eager", True)


@pytest.fixture
def taken(monkeypatch):
    """How many views were taken."""
    count = []
    real = cached_views._View.of
    monkeypatch.setattr(cached_views._View, "of", lambda *given: count.append(True) or real(*given))
    monkeypatch.setattr(numpy_subscripts, "holding", lambda *part: count.append(True) or holding(*part))
    return count


def given(seed=0, dtype=np.float32):
    x = tg.tensor(np.random.default_rng(seed).standard_normal((7, 4, 16)).astype(dtype))
    assert type(x._n.value) is HostBuffer or not tg.config.eager
    return x


def both_ways(fn, monkeypatch):
    """What fn() gives the long way, and once its views are known."""
    with monkeypatch.context() as patch:
        patch.setattr(tg.config, "recall", False)
        patch.setattr(numpy_subscripts, "_forward", lambda key: None)
        wanted = fn()
    for _ in range(4):
        fn()
    return wanted, fn()


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.recall
def test_a_view_is_the_same_and_shares_memory_as_before(name, dtype, taken, monkeypatch):
    call = CALLS[name]

    def run():
        x = given(0, dtype)
        view = call(x)
        found = [view.numpy(), view.shape, view.dtype, view.is_contiguous(), view._version, view.stride()]
        x.mul_(2)                                       # seen through the view
        found += [view.numpy(), view._version]
        if name not in ("unfold", "expand"):
            view.add_(1)                                # and the other way
            view[...] = view * 3
            found += [view.numpy(), x.numpy(), x._version]
        y = view * 2.0
        return [*found, y.numpy(), (y.sum() + view.sum()).item()]

    wanted, found = both_ways(run, monkeypatch)
    assert any(taken)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.recall
def test_several_views(name, taken, monkeypatch):
    def run():
        x = given(1, np.float64)
        parts = SEVERAL[name](x)
        parts[1].zero_()
        return [type(parts), len(parts), *(p.numpy() for p in parts), x.numpy()]

    wanted, found = both_ways(run, monkeypatch)
    assert any(taken)
    for a, b in zip(wanted, found, strict=True):
        assert a is b if isinstance(a, type) else np.array_equal(a, b)


def test_derivatives_go_through_views_of_what_begins_to_require_grad():
    def run():
        x = given(2)
        early = x.transpose(1, 2).numpy()
        x.requires_grad_()
        late = x.transpose(1, 2)
        assert late.requires_grad
        (late ** 2).sum().backward()
        with tg.no_grad():
            assert not x.transpose(1, 2).requires_grad
        return early, x.grad.numpy()

    for _ in range(5):
        early, grad = run()
        np.testing.assert_array_equal(early, given(2).numpy().swapaxes(1, 2))
        np.testing.assert_allclose(grad, 2 * given(2).numpy(), rtol=1e-6)


def test_arguments_that_are_equal_and_no_integers_are_errors_or_ways_of_their_own():
    x = given()
    for _ in range(5):
        assert x.transpose(1, 0).shape == (4, 7, 16)
        assert x[1].shape == (4, 16)
        assert x[True].shape == (1, 7, 4, 16)
        assert x[1, 0].shape == x[[1, 2], [0, 0]][0].shape == (16,)
        assert x.reshape(7, 64).shape == x.reshape((7, 64)).shape == (7, 64)
    for bad in (lambda: x.transpose(1.0, 0), lambda: x.transpose(True, 0), lambda: x.reshape(7, 65), lambda: x.transpose(1, 3),
                lambda: x.reshape(7.0, 64), lambda: x.split(5, dim=1.0), lambda: x[7], lambda: x[0, 0, 0, 0], lambda: x[1.0]):
        with pytest.raises(tg.TracegradError):
            bad()


def test_a_view_of_what_a_kernel_has_and_of_traced_tensors_is_no_array(kernels):
    x = given()
    f = tg.trace(lambda a: a.transpose(1, 2) * 2.0)
    for _ in range(4):
        np.testing.assert_array_equal(x.transpose(1, 2).numpy(), x.numpy().swapaxes(1, 2))
        np.testing.assert_array_equal(f(x).numpy(), 2 * x.numpy().swapaxes(1, 2))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_view_that_a_tensors_value_decides_is_of_that_value(requires_grad):
    a = np.arange(24.0).reshape(4, 6)
    x = tg.tensor(a, requires_grad=requires_grad)
    for _ in range(3):
        for at in ([3], [0], [5], [1]):
            for found, wanted in zip(x.tensor_split(tg.tensor(at), 1), np.array_split(a, at, 1), strict=True):
                np.testing.assert_array_equal(found.detach().numpy(), wanted)
            np.testing.assert_array_equal(x.narrow(1, tg.tensor(at[0]), 1).detach().numpy(), a[:, at[0]:at[0] + 1])
        for count in (1, 3, 2):
            assert len(x.tensor_split(tg.tensor(count))) == len(x.tensor_split(tensor_indices_or_sections=tg.tensor(count))) == count
    numbers = tg.arange(3)
    assert [len(numbers.tensor_split(numbers)) for _ in range(3)] == [4] * 3


def test_a_small_view_does_not_keep_a_large_array():
    x = tg.zeros(1000, 100)
    tg.flush()
    x = tg.tensor(x.numpy())
    for _ in range(4):
        row = x.select(0, 3)
    array = row._n.value.array
    assert (array if array.base is None else array.base).nbytes <= 4 * row.nbytes


KEYS = [(), 1, (1,), 0, (0,), -1, True, (True,), False, None, (None,), (None, 1), ..., (...,), (..., 1), slice(None), (slice(None),),
        slice(0, 1), slice(1, None), slice(None, 1), (slice(None), 1), (1, slice(None)), (1, None), (0, 1), (1, 0), [1], ([1], 1)]


@pytest.mark.parametrize("way", ["plain", "no_grad", "history"])
def test_keys_that_are_nearly_alike_are_other_keys(way):
    """`x[()]` and `x[1]` had one description: True, which tells a tuple, equals 1."""
    for step in range(8):
        x = given(step)
        array = x.numpy()
        if way == "history":
            x = x.requires_grad_() * 1.0
        with tg.set_grad_enabled(way != "no_grad"):
            for key in KEYS if step % 2 else KEYS[::-1]:
                np.testing.assert_array_equal(x[key].detach().numpy(), array[key], err_msg=f"{key} at iteration {step}")


def test_what_is_known_of_integers_is_known_of_their_views(taken):
    """A view of indices that fit is not looked at; one of others is, also where its base has the same shape."""
    table = tg.arange(24.0).reshape(12, 2)
    for step in range(6):
        fit = tg.arange(12).reshape(3, 4)
        part = fit[1:, :2]
        assert interval(part._n) == (0, 11)
        np.testing.assert_array_equal(table[part.reshape(-1)].numpy(), table.numpy()[[4, 5, 8, 9]])
        other = tg.tensor(np.arange(12).reshape(3, 4) + 3 * (step == 5))
        row = table[other[1:, 2:]]
        if step < 5:
            np.testing.assert_array_equal(row.numpy(), table.numpy()[[[6, 7], [10, 11]]])
        else:
            with pytest.raises(tg.IndexOutOfRange):
                row.numpy()


@pytest.mark.recall
def test_batches_of_a_view_that_has_no_value_yet_are_eager_views(taken):
    """As of a text in rows: where a batch starts is not even known to the work."""
    rows = tg.tensor(np.arange(360))[:352].reshape(8, 44)
    for start in (0, 12, 5, 0, 12, 5, 0, 12, 5):
        batch = rows[:, start:start + 12]
        assert type(batch._n.value) is HostBuffer
        np.testing.assert_array_equal(batch.numpy(), np.arange(352).reshape(8, 44)[:, start:start + 12])
    assert taken[-1]
    rows[0, 5] = -1
    assert batch[0, 0].item() == -1


@pytest.mark.recall
def test_views_of_what_was_detached_are_cached(taken):
    w = tg.ones(2, 7, 5, requires_grad=True)
    for _ in range(6):
        state = (w * 2.0).tanh().detach()
        state.sum().item()
        taken.clear()
        first = state[0]
    assert taken == [True]
    assert not first.requires_grad
    first.zero_()
    assert (state[0] == 0.0).all().item()
    assert (state[1] != 0.0).all().item()
