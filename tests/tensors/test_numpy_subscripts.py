"""Parts of what NumPy holds, taken and written by its subscripts (tensors/numpy_subscripts.py), are what the composed operations make."""

from __future__ import annotations

import copy
import gc
import random
import weakref

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.graph.intervals import interval
from tracegrad.runtime.buffer import Buffer, HostBuffer, held, upload
from tracegrad.support.tuning import tuning
from tracegrad.tensors import numpy_subscripts

pytestmark = pytest.mark.skipif(tg.device().kind == "numpy" or not tg.device().in_host_memory, reason="one way only on this device")

KEYS = [3, -1, np.int64(2), slice(2, 5), slice(None, None, 2), slice(4, 1), (1, slice(None), -2), (..., 3),
        (slice(1, 6, 3), ..., slice(-4, None)), (None, 2), (slice(None), None, 1, slice(2, 9)), (2, 1, 5), ..., slice(None),
        (0, None, ..., None), ()]


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    tg.flush()
    monkeypatch.setattr(tg.config, "eager", True)


def given(*shape, dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 50).astype(dtype)


def both_ways(fn, monkeypatch):
    """What fn() gives, and gives where parts are taken and written at length."""
    found = fn()
    with monkeypatch.context() as patch:
        patch.setattr(numpy_subscripts, "_forward", lambda key: None)
        patch.setattr(numpy_subscripts, "_write_held", lambda x, key, given: False)
        return found, fn()


def equal(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert type(a) is type(b)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, tg.bfloat16, np.complex64])
def test_parts_are_numpys_and_seen_from_both_ends(dtype, monkeypatch):
    def run():
        found = []
        for key in KEYS:
            x = tg.tensor(given(7, 4, 16, dtype=dtype))
            part = x[key]
            found += [part.numpy(), part.shape, part.dtype, part.stride(), part.is_contiguous(), part._base is x]
            x.copy_(x.flip(0))                                  # seen through the part
            found += [part.numpy(), part._version]
            part.copy_(part.flip(0) if part.ndim else part)     # and the other way
            again = x[key]
            found += [part.numpy(), x.numpy(), again.reshape(-1).numpy(), again.unsqueeze(0)._version]
        return found

    equal(*both_ways(run, monkeypatch))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16])
def test_what_is_written_is_seen_by_all_and_counted(dtype, monkeypatch):
    value = tg.tensor(given(4, 16, dtype=dtype, seed=1))

    def run():
        found = []
        for key in KEYS:
            x = tg.tensor(given(7, 4, 16, dtype=dtype))
            early, rows, kept, shared = x[2:], x.unbind(0), x.clone(), np.asarray(x)
            alias = x.detach()
            x[key] = True if dtype is np.bool_ else 3
            inner = x[key]
            if inner.shape[-1:] == (16,):
                x[key] = value[0]
                inner[..., 2:5] = value[1, 2:5]
                inner[..., -1] = 0 if dtype is not np.bool_ else False
            found += [x.numpy(), x._version, shared, *[part.numpy() for part in (inner, early, alias, kept, *rows[:2])]]
        return found

    equal(*both_ways(run, monkeypatch))


def test_what_overlaps_is_read_before_it_is_written():
    x = tg.arange(10)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


REFUSED = [lambda x: x[7], lambda x: x[-8], lambda x: x[0, 0, 0, 0], lambda x: x[..., ...], lambda x: x["a"], lambda x: x[1.0],
           lambda x: x.__setitem__(7, 1), lambda x: x.__setitem__(0, tg.zeros(5)), lambda x: x.__setitem__(0, 1j), lambda x: x[2**70],
           lambda x: x.__setitem__((0, 0, 0, 0), 1.0), lambda x: x.long().__setitem__(0, 2**80), lambda x: x.char().__setitem__(0, 300)]


@pytest.mark.parametrize("call", range(len(REFUSED)))
def test_what_is_refused_is_told_as_ever_and_changes_nothing(call, monkeypatch):
    x = tg.tensor(given(7, 4, 16))

    def run():
        with pytest.raises(tg.TracegradError) as caught:
            REFUSED[call](x)
        return type(caught.value), str(caught.value)

    found, wanted = both_ways(run, monkeypatch)
    assert found == wanted
    np.testing.assert_array_equal(x.numpy(), given(7, 4, 16))
    assert x._version == 0


def test_numbers_that_may_not_fit_and_other_dtypes_go_at_length(monkeypatch):
    def run():
        x, n = tg.tensor(given(4, 5)), tg.tensor(given(4, 5, dtype=np.int32))
        x[0], x[1], x[2], x[3] = 1e30, float("nan"), tg.arange(5), -0.0
        n[0], n[1] = tg.tensor([1.5, -1.5, 2.5, 0.5, 3.9]), np.arange(5)
        return x.numpy(), np.signbit(x.numpy()), n.numpy()

    equal(*both_ways(run, monkeypatch))


def test_histories_scopes_and_traces_are_not_passed_by(monkeypatch):
    def run():
        w = tg.tensor(given(4, 5)).requires_grad_()
        x = w * 1.0
        x[1:3] = w[0] * 2.0
        x[0, 2] = 5.0
        x[:, 1].square().sum().backward()
        seen = tg.vmap(lambda row: row[1:3] * row[0])(tg.tensor(given(4, 5)))
        traced = tg.trace(lambda a: a[1] + a[:, 2].sum())(tg.tensor(given(4, 5)))
        with pytest.raises(tg.TracegradError):
            w[0] = 1.0
        with tg.no_grad():
            w[0] = 1.0
        return x.detach().numpy(), w.grad.numpy(), seen.numpy(), traced.numpy(), w.detach().numpy(), w.requires_grad, w.is_leaf

    for a, b in zip(*both_ways(run, monkeypatch), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.recall
def test_rows_of_what_a_kernel_has_are_read_where_it_is(monkeypatch):
    x = tg.tensor(given(300, 40))
    x._n.value = upload(tg.device(), given(300, 40))
    assert type(x._n.value) is Buffer
    rows = [x[k] for k in (5, 299)]
    assert all(type(r._n.value) is HostBuffer for r in rows)
    assert type(x._n.value) is Buffer
    memory = weakref.ref(x._n.value)
    np.testing.assert_array_equal(np.stack([r.numpy() for r in rows]), given(300, 40)[[5, 299]])
    monkeypatch.setattr(tg.config, "eager", False)
    x.mul_(2.0)                                              # by a kernel: elsewhere, or in place once nobody has the Buffer
    tg.flush()
    monkeypatch.setattr(tg.config, "eager", True)
    np.testing.assert_array_equal(np.stack([r.numpy() for r in rows]), given(300, 40)[[5, 299]] * 2)
    np.testing.assert_array_equal(x[7].numpy(), given(300, 40)[7] * 2)
    gc.collect()
    assert memory() is None                                  # the window does not keep it


@pytest.mark.recall
def test_rows_of_a_read_only_array_that_is_shared():
    array = given(1000, 300)
    array.flags.writeable = False
    x = tg.from_numpy(array)
    assert x._n.value.borrowed
    rows = [x[k] for k in (5, -1)]
    assert all(type(r._n.value) is HostBuffer and r._n.value.array.base is None for r in rows)
    np.testing.assert_array_equal(np.stack([r.numpy() for r in rows]), array[[5, -1]])
    x[5] = 0.0
    assert rows[0].abs().sum().item() == 0.0
    assert array[5].any()


@pytest.mark.recall
def test_a_part_does_not_keep_the_whole():
    x = tg.tensor(given(64, 65))
    whole, part = weakref.ref(held(x._n.value)), x[3, 5:20]
    del x
    part._base = None
    gc.collect()
    assert whole() is None
    assert part.shape == (15,)


@pytest.mark.recall
def test_what_is_known_of_integers_stays_known():
    x = tg.zeros(6, 5, dtype=tg.int64)
    assert interval(x[2]._n) == interval(x._n) == (0, 0)
    x[1:3] = 7
    assert interval(x[2]._n) != (0, 0)
    assert tg.arange(10)[x[2]].tolist() == [7] * 5


@pytest.mark.recall
def test_lengths_and_indices_that_never_come_again_make_no_cached_calls():
    x = tg.tensor(given(500, 3))
    before = {name: n["entries"] for name, n in tg.report()["caches"].items() if name in ("calls", "programs")}
    for k in range(500):
        row = tg.zeros(600)
        row[:k] = 1.0
        row[k:k + 3] = x[k]
        assert row[k + 2].item() == x[k, 2].item()
    assert {name: n["entries"] for name, n in tg.report()["caches"].items() if name in before} == before


def test_what_numpy_has_made_a_scalar_is_written():
    """Again and again: the second time the filling is recalled, and gives a scalar of NumPy's."""
    for _ in range(4):
        x = tg.tensor(np.zeros((), np.float32))
        part, other = x[...], x[...]
        part.fill_(2)
        assert part.numpy() == 2
        x[...] = 3
        assert x.item() == part.item() == other.item() == 3


def random_key(draw, shape):
    """Integers, slices, None and '...', some of them for fewer dimensions than there are."""
    key = []
    for n in shape:
        kind = draw.random()
        if kind < 0.3 and n:
            key.append(draw.randrange(-n, n))
        elif kind < 0.7:
            start, stop = sorted((draw.randrange(n + 1), draw.randrange(n + 1)))
            key.append(slice(draw.choice([None, start]), draw.choice([None, stop]), draw.choice([None, 1, 2])))
        else:
            key += [None, slice(None)] if kind < 0.8 else [slice(None)]
        if draw.random() < 0.15:
            break
    return (*key[:draw.randrange(len(key) + 1)], ...) if draw.random() < 0.2 else tuple(key)


@pytest.mark.parametrize("seed", range(4))
def test_programs_of_views_and_writes_are_numpys(seed):
    """Views of views, written from both ends: what each of them has is what NumPy's views have."""
    draw = random.Random(seed)
    for _ in range(150):
        dtype, numbers = draw.choice([("float32", (0.5, -1.25, 3)), ("float64", (2, 0.5)), ("int64", (0, 7, -3)), ("bool", (True, False))])
        shape = tuple(draw.randrange(1, 6) for _ in range(draw.randrange(4)))
        arrays = [np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)]
        tensors = [draw.choice([tg.tensor, tg.from_numpy])(arrays[0].copy())]
        said = [f"{dtype}{shape}"]
        for _ in range(draw.randrange(2, 12)):
            i = draw.randrange(len(arrays))
            key, what = random_key(draw, arrays[i].shape), draw.random()
            said.append(f"{i} [{key}] {what:.2f}")
            if what < 0.4:
                arrays.append(arrays[i][(*key, ...)] if ... not in key else arrays[i][key])
                tensors.append(tensors[i][key])
            elif what < 0.7:
                arrays[i][key] = tensors[i][key] = draw.choice(numbers)
            elif what < 0.8:
                arrays[i][...] = draw.choice(numbers)
                tensors[i].fill_(arrays[i].flat[0].item() if arrays[i].size else 0)
            elif what < 0.9:
                assert tensors[i][key].tolist() == arrays[i][key].tolist(), said
            else:
                arrays.append(arrays[i].copy())
                tensors.append(tensors[i].clone())
            for a, t in zip(arrays, tensors, strict=True):
                if draw.random() < 0.3:
                    assert np.array_equal(t.numpy(), a), said
        assert all(np.array_equal(t.numpy(), a) for a, t in zip(arrays, tensors, strict=True)), said


WRITES = {
    "index_add_": lambda part, k: part.index_add_(0, tg.tensor([0, 2, 0]), tg.full((3, 4), 0.5 * k)),
    "mul_": lambda part, k: part.mul_(1.0 + k), "add_": lambda part, k: part.add_(part, alpha=0.25), "zero_": lambda part, k: part.zero_(),
    "copy_": lambda part, k: part.copy_(tg.arange(4.0) * k), "masked_fill_": lambda part, k: part.masked_fill_(part > 0, -1.0 * k),
    "clamp_": lambda part, k: part.clamp_(max=0.125 * k), "fill_": lambda part, k: part.fill_(k / 7),
    "index_fill_": lambda part, k: part.index_fill_(1, tg.tensor([1]), 2.0 * k)}
VIEWS = {"row": lambda x, k: x[k % 5], "transposed": lambda x, k: x[k % 5].T[:, :4].T,
         "flat": lambda x, k: x.reshape(5, 12)[:, k % 5:k % 5 + 4],
         "flipped": lambda x, k: x.flip(0)[k % 5], "permuted": lambda x, k: x.permute(1, 0, 2)[:, k % 5],
         "all": lambda x, k: x.view(15, 4)}


@pytest.mark.recall
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("write", WRITES)
def test_parts_are_written_by_any_method(write, view, monkeypatch):
    """... and what NumPy holds stays so: zeros into which a loop writes are not deferred until somebody reads them."""
    def run(base):
        x = base()
        other, found = x[1:], []
        for k in range(8):
            part = VIEWS[view](x, k)
            WRITES[write](part, k)
            found.append(part)
        waits = x._n.value is None
        return waits, [x.numpy(), other.numpy(), *(y.numpy() for y in found), x._version]

    for base in (lambda: tg.zeros(5, 3, 4), lambda: tg.tensor(given(5, 3, 4))):
        (waits, found), (_, wanted) = both_ways(lambda base=base: run(base), monkeypatch)
        assert not waits or view in ("flipped", "permuted", "transposed")
        equal(found, wanted)


def test_what_is_written_to_a_parameters_data_is_the_parameters(monkeypatch):
    def run():
        w = tg.tensor(given(3, 4), requires_grad=True)
        before = (w * w).sum()
        for k in range(4):
            w.data.mul_(0.5)
            w.data[1].add_(float(k))
            with tg.no_grad():
                w[2] += 1.0
                w[:, 1].mul_(2.0)
            w.detach().copy_(w.data + 1.0)
        after = (w * w).sum()
        after.backward()
        return [w.is_leaf, w.requires_grad, w.detach().numpy(), w.grad.numpy(), w._version, before.item(), after.item()]

    equal(*both_ways(run, monkeypatch))
    w = tg.ones(3, requires_grad=True)
    with pytest.raises(tg.AutogradError, match="a leaf tensor that requires grad"):
        w[1:].mul_(2.0)


def test_what_detach_gives_of_a_leaf_is_its_value():
    """No node stands between them, and neither is seen to be the other: histories, writes, versions, transforms, traces."""
    w = tg.tensor(given(3, 4), requires_grad=True)
    d = w.detach()
    assert d._n is w._n.operands[0]
    before, was = (w * d).sum(), w.detach().clone().numpy()
    before.backward()
    np.testing.assert_array_equal(w.grad.numpy(), was)                 # not twice that
    d.mul_(2.0)
    np.testing.assert_array_equal(w.detach().numpy(), 2 * was)
    with tg.no_grad():
        w.add_(1.0)
    np.testing.assert_array_equal(d.numpy(), 2 * was + 1)
    assert (d._version, d.requires_grad, w.requires_grad, d.is_leaf, w.is_leaf) == (w._version, False, True, True, True)
    own = w.detach().requires_grad_()
    own_grad, grad = tg.autograd.grad((own * w * w).sum(), [own, w])
    now = w.detach().numpy()
    np.testing.assert_array_equal(own_grad.numpy(), now * now)
    np.testing.assert_array_equal(grad.numpy(), now * now + now * now)
    seen = []
    w.register_hook(seen.append)
    (w.detach() * own).sum().backward()
    assert not seen
    assert w.grad.tolist() == was.tolist()
    other = tg.ones(3, 4)
    other.copy_(w.detach())
    other.zero_()
    np.testing.assert_array_equal(w.detach().numpy(), now)
    with pytest.raises(tg.AutogradError):
        w.detach().mean().backward()
    assert tg.grad(lambda x: (x.detach() * x).sum())(w.detach()).tolist() == now.tolist()
    assert tg.vmap(lambda x: (x.detach() * w.detach()[0]).sum())(w.detach()).tolist() == tg.tensor(now @ now[0]).tolist()
    traced = tg.trace(lambda x: (x.detach() * x).sum() + w.detach().sum())
    for _ in range(3):
        with tg.no_grad():
            w.mul_(0.5)
        np.testing.assert_allclose(traced(w).item(), (w.numpy(force=True)**2).sum() + w.numpy(force=True).sum(), rtol=1e-5)


CHOSEN = [[2, 0, -1], np.array([3, 3]), (slice(1, 6), [0, 2]), (None, slice(None), np.array([[0, 1], [2, 3]])), ([0, 1], [2, 3]),
          ([1, 2], slice(2, 9), [0, 1]), (..., [5, 1]), "mask", "rows", "places", "ends", "place", ("rows", slice(1, 3)),
          (slice(None), "four")]


def chosen(key, x):
    made = {"mask": lambda: x > 1, "rows": lambda: x[:, 0, 0] > 0, "four": lambda: tg.tensor([True, False, True, True]),
            "places": lambda: tg.tensor([[0, 6], [-1, 2]]), "ends": lambda: slice(tg.tensor(1), tg.tensor(4)),
            "place": lambda: tg.tensor(-2)}
    return tuple(chosen(k, x) for k in key) if type(key) is tuple else made[key]() if type(key) is str else key


@pytest.mark.recall
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("key", CHOSEN, ids=str)
def test_elements_are_chosen_by_numpys_indices(key, dtype, monkeypatch):
    def run():
        x = tg.tensor(given(7, 4, 16, dtype=dtype))
        part = x[chosen(key, x)]
        waits, found = part._n.value is None, part.numpy()
        part.add_(1)                                            # a tensor of its own, but of a slice
        found = [found, x.numpy()]
        y = x.clone()
        y[chosen(key, y)] = 7
        z = x.clone()
        z[chosen(key, z)] = tg.tensor(found[0]) * 2
        return waits, [*found, y.numpy(), z.numpy()]

    (waits, found), (_, wanted) = both_ways(run, monkeypatch)
    assert not waits
    equal(found, wanted)
    ours = given(7, 4, 16, dtype=dtype)
    places = chosen(key, tg.tensor(ours))
    items = places if isinstance(places, tuple) else (places,)
    np.testing.assert_array_equal(found[0], ours[tuple(k.numpy() if isinstance(k, tg.Tensor) else k for k in items)])


def test_integers_beside_indices_and_what_does_not_fit_go_at_length():
    x = tg.tensor(given(7, 4, 16))
    np.testing.assert_array_equal(x[0, :, [1, 2]].numpy(), given(7, 4, 16)[0][:, [1, 2]])             # NumPy's own has another shape
    np.testing.assert_array_equal(x[:, [1, 2], ..., [0, 1]].numpy(), given(7, 4, 16)[:, [1, 2], [0, 1]])
    for key in ([9], np.array([-8]), tg.tensor([7]), tg.tensor([True, False])):
        with pytest.raises(tg.IndexOutOfRange, match="getitem"):
            x[key].numpy()

        def write(key=key):
            y = x.clone()
            y[key] = 1.0
            y.numpy()

        with pytest.raises(tg.IndexOutOfRange, match="setitem"):
            write()
    with pytest.raises(tg.ShapeError, match="setitem"):
        x[x > 0] = tg.ones(3, 2)


@pytest.mark.parametrize("recall", [True, False])
@pytest.mark.parametrize("made", [lambda: tg.tensor(1), lambda: tg.tensor([0.0, 3.0, 1.0]).argmax(), lambda: tg.tensor(-2, dtype=tg.int32)])
def test_what_an_integer_tensor_chooses_is_a_view(made, recall, monkeypatch):
    """As in torch. (With index arrays beside it the part is a tensor of its own.)"""
    monkeypatch.setattr(tg.config, "recall", recall)
    x, wanted = tg.zeros(3, 4), np.zeros((3, 4))
    for _ in range(4):
        i = made()
        k = int(i)
        part, column, cell, own = x[i], x[:, i], x[i, i], x[i, [0, 1]]
        part += 1
        column *= 2
        cell -= 0.5
        own += 100
        wanted[k] += 1
        wanted[:, k] *= 2
        wanted[k, k] -= 0.5
        np.testing.assert_array_equal(x.numpy(), wanted)
    w = tg.ones(3, 4, requires_grad=True)
    y = w * 2
    y[made()].mul_(3.0)
    y[made()].sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), 6 * (np.arange(3) == int(made()) % 3)[:, None] * np.ones(4))
    with pytest.raises(IndexError, match="index 5 is out of range for dimension 0"):
        x[tg.tensor(5)]


@pytest.mark.recall
def test_parameters_that_nobody_reads_are_written_when_it_is_asked_for():
    """An average of weights was pending until somebody read it, if the calls that make it were known of other tensors."""
    def step(average, new):
        with tg.no_grad():
            average.mul_(0.75)
            average.add_(new(weight))

    average, weight = tg.nn.Parameter(tg.ones(6, 5)), tg.nn.Parameter(tg.zeros(6, 5))
    for _ in range(3 * tuning().early_uses):
        step(average, lambda x: x * 0.25)
        average.sum().item()
    average = tg.nn.Parameter(tg.ones(6, 5))
    for _ in range(3):
        step(average, tg.cosh)                              # what is called for the first time is deferred
        assert type(average._n.operands[0].value) is HostBuffer
    assert average.is_leaf
    assert average._version == 6
    np.testing.assert_array_equal(average.detach().numpy(), np.full((6, 5), 2.734375, np.float32))
    (average * 2.0).sum().backward()
    assert (average.grad == 2.0).all()


@pytest.mark.parametrize("key", [2, (1, 3), slice(1, 3), (..., 0)])
def test_a_part_that_was_changed_in_place_is_not_written_again(key, monkeypatch):
    """`x[i] += v` writes x[i], then gives x[i] what it is already."""
    written = []
    write = numpy_subscripts._write_held
    monkeypatch.setattr(numpy_subscripts, "_write_held", lambda *args: written.append(args) or write(*args))
    x, array = tg.tensor(given(4, 5)), given(4, 5)
    view, row = x[1], x[2, 1:]
    for _ in range(20):
        written.clear()
        x[key] += 1.5
        array[key] += np.float32(1.5)
        assert len(written) == 1
        equal((x.numpy(), view.numpy(), row.numpy()), (array, array[1], array[2, 1:]))
    assert x._version == 40
    x[key] = x[key]                                         # no other part
    x[0] = x[3]
    array[0] = array[3]
    equal((x.numpy(), view.numpy()), (array, array[1]))


def test_what_detach_gives_is_written_with_its_base():
    leaf, plain = tg.nn.Parameter(tg.tensor(given(3, 4))), tg.tensor(given(3, 4))
    for x in (leaf, plain):
        node, wanted = x._n, x.detach().numpy()
        for _ in range(20):
            alias = x.detach()
            alias.mul_(-0.5).add_(alias, alpha=2.0)
            wanted = wanted * np.float32(-0.5)
            wanted = wanted + wanted * np.float32(2.0)
            equal((x.detach().numpy(), alias.numpy()), (wanted, wanted))
        assert x._version == 40
        assert x._n is not node
        assert x.is_leaf
        assert x.requires_grad is (x is leaf)


@pytest.mark.recall
def test_a_part_at_places_that_tensors_hold_is_written_once(monkeypatch):
    """A confusion matrix: `counts[target, guess] += 1` of tensors of no dimensions."""
    written = []
    write = numpy_subscripts._write_held
    monkeypatch.setattr(numpy_subscripts, "_write_held", lambda *args: written.append(args) or write(*args))
    counts, wanted = tg.zeros(4, 4, dtype=tg.int64), np.zeros((4, 4), np.int64)
    targets, guesses = [0, 3, 1, 3, 3], [0, 2, 1, 2, 0]
    for target, guess in zip(tg.tensor(targets), tg.tensor(guesses), strict=True):
        counts[target, guess] += 1
    for _ in range(20):
        written.clear()
        counts[tg.tensor(3), tg.tensor(2)] += 1
        assert len(written) == 1
    np.add.at(wanted, (targets, guesses), 1)
    wanted[3, 2] += 20
    np.testing.assert_array_equal(counts.numpy(), wanted)


def refused(*_):
    raise AssertionError("computed by a program of its own")


@pytest.mark.recall
def test_a_copy_and_a_draw_in_place_need_no_program(monkeypatch):
    source, x, leaf = tg.tensor(given(3, 4)), tg.zeros(3, 4), tg.nn.Parameter(tg.zeros(3, 4))
    view, few = x[1], tg.zeros(8)
    source.sum().item(), x.sum().item()
    monkeypatch.setattr(numpy_subscripts, "computed_early", refused)
    x.copy_(source)
    with tg.no_grad():
        leaf.copy_(source)
    tg.manual_seed(3)
    few.uniform_()
    source[0] = 7.0                                         # the copies are their own
    monkeypatch.undo()
    wanted = given(3, 4)
    equal((x.numpy(), view.numpy(), leaf.detach().numpy()), (wanted, wanted[1], wanted))
    assert leaf.requires_grad
    assert leaf.is_leaf
    tg.manual_seed(3)
    equal((few.numpy(),), (tg.rand(8).numpy(),))


@pytest.mark.recall
@pytest.mark.recall
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16, np.complex64, tg.bfloat16])
def test_what_is_filled_and_a_copy_of_its_own_are_there_at_once(dtype, monkeypatch):
    array = given(3, 4, dtype=dtype)
    x, view_of = tg.tensor(array), tg.tensor(array)
    view = view_of[1]
    monkeypatch.setattr(numpy_subscripts, "computed_early", refused)
    copied, deep = x.clone(), copy.deepcopy(x)
    assert type(copied._n.value) is type(deep._n.value) is HostBuffer
    x.zero_()
    assert type(x._n.value) is HostBuffer
    np.testing.assert_array_equal(x.numpy(), np.zeros((3, 4), dtype))
    x.fill_(True), view.fill_(True)
    np.testing.assert_array_equal(x.numpy(), np.ones((3, 4), dtype))
    np.testing.assert_array_equal(view_of.numpy(), np.stack([array[0], np.ones(4, dtype), array[2]]))
    np.testing.assert_array_equal(copied.numpy(), array)
    np.testing.assert_array_equal(deep.numpy(), array)


@pytest.mark.recall
def test_a_state_that_was_copied_is_loaded_without_a_program(monkeypatch):
    model = tg.nn.Sequential(tg.nn.Linear(3, 2), tg.nn.BatchNorm1d(2))
    saved = copy.deepcopy(model.state_dict())
    wanted = [x.numpy() for x in saved.values()]
    with tg.no_grad():
        for x in model.state_dict().values():
            x.fill_(7)
    monkeypatch.setattr(numpy_subscripts, "computed_early", refused)
    model.load_state_dict(saved)
    for x, array in zip(model.state_dict().values(), wanted, strict=True):
        np.testing.assert_array_equal(x.numpy(), array)


def test_what_has_a_history_is_filled_and_copied_with_it():
    leaf = tg.tensor(given(3), requires_grad=True)
    y = leaf * 2.0
    z = y.clone()
    y.zero_()
    (y + z).sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), [2, 2, 2])
    with tg.no_grad():
        assert not leaf.clone().requires_grad
        leaf.fill_(3.0)
    assert leaf.is_leaf
    np.testing.assert_array_equal(leaf.detach().numpy(), [3, 3, 3])
    with pytest.raises(tg.errors.DTypeError, match="fill_"):
        tg.zeros(2, dtype=tg.int8).fill_(1000)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16, np.complex64, tg.bfloat16])
@pytest.mark.parametrize("name", ["cat", "stack"])
def test_lists_of_what_numpy_holds_are_joined_when_they_are_met(name, dtype):
    join = getattr(tg, name)
    wide = given(5, 4, dtype=dtype)
    arrays = [given(3, 4, dtype=dtype, seed=k) for k in range(3)]
    parts = [tg.tensor(a) for a in arrays] + [tg.tensor(wide)[1:4]]
    arrays.append(wide[1:4])
    rule = np.concatenate if name == "cat" else np.stack
    for count in (2, 3, 4):
        for dim in (0, 1, -1):
            found = join(parts[:count], dim) if dim else join(tuple(parts[:count]))
            assert type(found._n.value) is HostBuffer           # though such a list was never met before
            np.testing.assert_array_equal(found.numpy(), rule(arrays[:count], dim))
    found, before = join(parts, dim=0), join(parts).numpy()
    parts[0][0] = 1
    found[1] = 0
    np.testing.assert_array_equal(join([*parts[1:]]).numpy(), rule(arrays[1:], 0))
    np.testing.assert_array_equal(found.numpy()[0], before[0])


@pytest.mark.recall
def test_numbers_are_stacked():
    numbers = [tg.tensor(1.5), tg.tensor(float("nan")), tg.tensor(-0.0), tg.tensor([2.5, float("inf")])[1]]
    found = tg.stack(numbers)
    assert type(found._n.value) is HostBuffer
    assert found.numpy().tobytes() == np.array([1.5, np.nan, -0.0, np.inf], np.float32).tobytes()


def test_other_lists_are_joined_at_length():
    """Histories, promotion, empty vectors, what lies otherwise in memory, and what is wrong."""
    leaf = tg.ones(2, 3, requires_grad=True)
    found = tg.cat([leaf, leaf * 2.0])
    (found * tg.arange(12.0).reshape(4, 3)).sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), [[12, 15, 18], [21, 24, 27]])
    with tg.no_grad():
        assert not tg.stack([leaf, leaf]).requires_grad
    assert tg.cat([tg.ones(2), tg.ones(2, dtype=tg.int32)]).dtype == tg.float32
    np.testing.assert_array_equal(tg.cat([tg.tensor([]), tg.ones(2, 3)]).numpy(), np.ones((2, 3)))
    turned = tg.tensor(given(3, 4)).t()
    np.testing.assert_array_equal(tg.stack([turned, turned]).numpy(), np.stack([given(3, 4).T] * 2))
    for call in (lambda: tg.cat([tg.ones(2), tg.ones(2, 3)]), lambda: tg.stack([tg.ones(2), tg.ones(3)]),
                 lambda: tg.cat([tg.ones(()), tg.ones(())])):
        with pytest.raises(tg.errors.ShapeError):
            call()
    with pytest.raises(tg.errors.IndexOutOfRange):
        tg.stack([tg.ones(2), tg.ones(2)], 3)
    np.testing.assert_array_equal(tg.trace(lambda x: tg.cat([x, tg.ones(2)]))(tg.zeros(2)).numpy(), [0, 0, 1, 1])
