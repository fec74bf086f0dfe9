"""Recurring calls under no_grad give what they give the first time, bit for bit, and nobody can tell."""

from __future__ import annotations

import threading
import weakref
from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers import corpus
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.nn import functional as F
from tracegrad.runtime.buffer import held

pytestmark = pytest.mark.skipif(tg.device().kind == "numpy" or not tg.device().in_host_memory, reason="one way only on this device")


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    tg.flush()
    monkeypatch.setattr(tg.config, "eager", True)


@pytest.fixture
def anew(monkeypatch):
    """Makes a function that does it as if nothing came before."""
    def run(fn):
        with monkeypatch.context() as patch:
            patch.setattr(tg.config, "recall", False)
            return fn()

    return run


def given(seed, *shape, dtype=np.float32):
    return tg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.up = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (p.reshape(b, t, 2, w // 2).transpose(1, 2) for p in self.qkv(self.norm(x)).split(w, dim=2))
        scores = (q @ k.transpose(2, 3) * w ** -0.5).masked_fill(tg.ones(t, t).tril() == 0, float("-inf"))
        x = x + self.out((tg.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, w))
        return x + F.gelu(self.up(x))


def arithmetic(x):
    return x + 1.0, x * True, x - 1, -x / 0.0, (x - x) / (x - x), x > 0, tg.where(x > 0, x, -0.0), x.clamp(-0.5, 0.5), F.gelu(x), x.rsqrt()


def reductions(x):
    return (x.sum(), x.mean(1), x.amax(0, keepdim=True), x.var(1), x.argmax(1), F.softmax(x, 0), F.softmax(x.T, 0),
            F.layer_norm(x, x.shape[1:]), x.T.sum(0), (x * x).T.sum(0, keepdim=True), x.cumsum(1))


def movement(x):
    y = x.T
    a, b = (y * 2.0).split([y.shape[0] // 3, y.shape[0] - y.shape[0] // 3])
    return (y, y.reshape(-1)[3:9], y[1:4, ::2], x.T @ y.T, y.unsqueeze(1).expand(-1, 2, -1).sum(2), a, b + 1.0, a.reshape(-1),
            x[:, None], x[-1])


def dtypes(x):
    return x.double().exp(), x.half() + 1, x.to(tg.int32) // 2, (x > 0).sum(), x.to(tg.float64) * 0.1


def identities(x):
    """What is its argument again, of values from outside and of results."""
    y, row = x * 2.0, x[0] + 1.0
    return (x.reshape(x.shape), y.reshape(y.shape), row.reshape(-1), row.flatten(), y.expand_as(x), y[:], y[...], y.view_as(x), y.float(),
            y.split(y.shape[0])[0], y.chunk(1)[0], tg.cat([row]), x.squeeze(), y.contiguous(), tg.cat([row.reshape(-1), x.reshape(-1)]))


@pytest.mark.parametrize("shape", [(7, 13), (33, 33), (65, 16), (5, 0)])
@pytest.mark.parametrize("program", [arithmetic, reductions, movement, dtypes, identities])
@pytest.mark.recall
def test_the_same_bits_shapes_dtypes_and_views(program, shape, anew):
    if 0 in shape and program is not arithmetic:
        pytest.skip("nothing has no largest element and no parts")
    with tg.no_grad():
        for step in range(16):                          # known from the third on, written as Python from the fifteenth on
            x = given(step, *shape)
            found = [(r.numpy(), r.shape, r.dtype, r.requires_grad, r._base is not None) for r in program(x)]
            wanted = anew(lambda x=x: [(r.numpy(), r.shape, r.dtype, r.requires_grad, r._base is not None) for r in program(x)])
            for (a, *rest), (b, *others) in zip(found, wanted, strict=True):
                assert rest == others
                assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.recall
def test_rows_and_later_columns(dim, anew):
    """What was written for an operand that lies row by row gives the same bits for one that does not: a sum is added up as elements lie."""
    with tg.no_grad():
        for step in range(18):
            F.softmax(given(step, 33, 65), dim)
        for step in range(4):
            x = given(step, 65, 33)
            assert F.softmax(x.T, dim).numpy().tobytes() == anew(lambda x=x: F.softmax(x.T, dim).numpy()).tobytes()


@pytest.mark.recall
def test_a_transformers_block_at_growing_lengths(anew):
    tg.manual_seed(0)
    model = nn.Sequential(Block(16), Block(16))
    for step in range(15):
        for t in (1, 2, 5, 9):
            x = given(step, 1, t, 16)
            with tg.no_grad():
                found = model(x)
                wanted = anew(lambda x=x: model(x).numpy())
            np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.recall
def test_who_writes_afterwards_changes_nothing_that_was_called_before():
    for step in range(18):
        x, wanted = given(step, 5, 6), given(step, 5, 6).numpy()
        with tg.no_grad():
            y = x * 2.0
            view = x.T                                  # of what comes from outside
            inner = y.T                                 # of what is
            z = y + 1.0
            product = view @ y
            x.add_(1.0)
            y.mul_(3.0)
            assert (view.numpy() == wanted.T + 1.0).all()
            assert (inner.numpy() == wanted.T * 2.0 * 3.0).all()
            again = view * 1.0                          # a call with a view that is another by now
            assert (again.numpy() == wanted.T + 1.0).all()
            inner.zero_()
            assert not y.numpy().any()
            np.testing.assert_array_equal(z.numpy(), wanted * 2.0 + 1.0)
            np.testing.assert_allclose(product.numpy(), wanted.T @ (wanted * 2.0), rtol=1e-5)


def averaged(w, avg, step):
    """A parameter is written and read in one block: what is read has no history, and the leaf has one."""
    w.sub_(0.01 * w.grad)
    return 0.9 * avg + 0.1 * w


def averaged_in_place(w, avg, step):
    w.sub_(0.01 * w.grad)
    avg.lerp_(w, 0.1)
    return avg * 1.0


def decayed(w, avg, step):
    w.mul_(0.99).sub_(w.grad, alpha=0.01)
    w.clamp_(-1.5, 1.5)
    return avg + w.norm() * w[3:4] + w.abs().max()


def projected(w, avg, step):
    before = w.clone()
    w -= 0.01 * w.grad
    w /= w.norm()
    return avg * 0.5 + (w - before) + before * w


def rows(w, avg, step):
    w[step % 3:step % 3 + 2] = avg[:2] * w.grad[:2]
    return tg.where(w > avg, w, avg * 0.9)


def copied(w, avg, step):
    w.copy_(avg * 0.5 + w.grad * 0.01)
    avg.copy_(w + avg)
    return (avg + w) * 0.3


@one_of(5, ("size", "update"), product([12, 130], [averaged, averaged_in_place, decayed, projected, rows, copied]))
def test_a_parameter_that_was_written_is_read_in_the_same_block(update, size, monkeypatch):
    def run():
        w = tg.linspace(-1, 1, size, dtype=tg.float64).requires_grad_()
        avg, found = tg.linspace(2, 1, size, dtype=tg.float64), []
        for step in range(12):
            w.grad = None
            (w**3 + w * w).sum().backward()
            with tg.no_grad():
                avg = update(w, avg, step)
            found.append([avg.numpy(), w.detach().numpy()])
        return np.array(found)

    found = run()
    monkeypatch.setattr(tg.config, "eager", False)
    np.testing.assert_allclose(found, run(), 1e-12)


def test_views_are_written_through_and_copies_are_not():
    for _ in range(6):
        with tg.no_grad():
            x = given(0, 2, 6) * 1.0
            for rows in (x.T.reshape(-1), x.reshape(-1), (x.T + 0.0).reshape(-1)):      # torch: a copy, a view, a view of something else
                before = x.numpy()
                rows += 1.0
                assert (x.numpy() != before).any() == (rows._base is x)
            y = x.T
            y[0] = 5.0
            assert (x[:, 0].numpy() == 5.0).all()


def test_only_what_is_held_is_computed_whatever_that_is():
    for step in range(40):
        x = given(step, 7, 9)
        with tg.no_grad():
            y = [x + 1.0, x.T, x * 2.0, x.exp()]
            y += [y[0] @ y[1], y[2] - y[3], y[1].sum(0)]
            keep = [k for k in range(7) if (step % 8 + 3) * (k + 1) % 5 < 2]
            y = {k: y[k] for k in keep}
        a = x.numpy()
        wanted = [a + 1, a.T, a * 2, np.exp(a), (a + 1) @ a.T, a * 2 - np.exp(a), a.T.sum(0)]
        for k, v in y.items():
            np.testing.assert_allclose(v.numpy(), wanted[k], rtol=1e-5, atol=1e-6)


def test_one_tensor_twice_is_another_call_than_two():
    with tg.no_grad():
        for step in range(6):
            x, y = given(step, 5, 5), given(step + 100, 5, 5)
            a, b = x.numpy(), y.numpy()
            for first, second, p, q in ((x, x, a, a), (x, y, a, b), (y, x, b, a)):
                assert ((first - second).numpy() == p - q).all()
                np.testing.assert_allclose((first @ second).numpy(), p @ q, rtol=1e-5, atol=1e-6)
                z = first * 1.0
                assert ((z - z).numpy() == 0).all()
                assert ((z - second).numpy() == p - q).all()


def test_equal_arguments_of_other_types_are_other_calls():
    with tg.no_grad():
        for _ in range(6):
            x = tg.tensor([1, 2, 3]) * 1
            for scalar, dtype in ((1, tg.int64), (True, tg.int64), (1.0, tg.float32)):
                y = x * scalar
                assert y.dtype == dtype
                assert y.tolist() == [1, 2, 3]
            z = given(0, 3) * 0.0
            for zero in (0.0, -0.0):
                assert np.signbit(tg.where(z > 1, z, zero).numpy()).tolist() == [zero.__repr__() == "-0.0"] * 3
            assert [x[1].item(), x[True].shape, x[1:2].shape, x[None].shape] == [2, (1, 3), (1,), (1, 3)]


def test_the_default_dtype_and_the_modes_are_seen():
    with tg.no_grad():
        for _ in range(6):
            x = tg.tensor([1, 2, 3]) * 1
            before = x / 2
            tg.set_default_dtype(tg.float64)
            try:
                after = x / 2
            finally:
                tg.set_default_dtype(tg.float32)
            assert [before.dtype, after.dtype, (x / 2).dtype] == [tg.float32, tg.float64, tg.float32]
            y = given(0, 4)
            sums = tg.vmap(lambda row: (row * 2.0).sum())(y.reshape(2, 2))
            np.testing.assert_array_equal(sums.numpy(), (y.numpy() * 2).reshape(2, 2).sum(1))
            with tg.enable_grad():
                np.testing.assert_allclose(tg.grad(lambda v: (v * v).sum())(y + 1.0).numpy(), 2 * (y.numpy() + 1), rtol=1e-6)
    traced = tg.trace(lambda v: v * 3.0)
    with tg.no_grad():
        for _ in range(3):
            np.testing.assert_array_equal(traced(y + 1.0).numpy(), (y.numpy() + 1) * 3)


def test_leaves_and_what_comes_out_take_part_in_derivatives():
    for step in range(6):
        w = given(1, 4, 4).requires_grad_()
        x = given(step, 3, 4)
        with tg.no_grad():
            y = (x @ w).tanh() * 2.0
            seen = w.T, w[1], x @ w.T
            assert not any(s.requires_grad for s in seen)
            np.testing.assert_array_equal(seen[0].numpy(), w.detach().numpy().T)
        (y @ w).sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), y.numpy().sum(0)[:, None].repeat(4, 1), rtol=1e-5)
        with tg.no_grad():                              # a step of gradient descent by hand
            before = w.numpy(force=True)
            w -= 0.1 * w.grad
            np.testing.assert_allclose(w.numpy(force=True), before - np.float32(0.1) * w.grad.numpy(), rtol=1e-6)
        assert w.requires_grad
        assert w.is_leaf


def test_errors_are_raised_by_the_call():
    with tg.no_grad():
        for _ in range(5):
            y = given(0, 3, 4) + 1.0
            with pytest.raises(tg.errors.ShapeError, match=r"matmul.*\(3, 4\)"):
                y @ y
            with pytest.raises(tg.errors.ShapeError, match="reshape"):
                y.reshape(5, 5)
            with pytest.raises(tg.errors.IndexOutOfRange):
                (y * 2.0)[tg.tensor([7])].tolist()
            assert (y * 2.0).shape == (3, 4)


@pytest.mark.recall
def test_indices_are_checked_when_they_are_used(anew):
    tg.manual_seed(0)
    table = nn.Embedding(9, 4)
    rows = table.weight.detach().numpy()
    with tg.no_grad():
        for step in range(12):
            for wrong in (step > 4 and step % 2 == 0, False):
                i = tg.tensor([[step % 9, 8, 0], [1, 9 if wrong else 5, -1 if wrong and step % 4 else 3]])
                x = table(i) * 2.0
                y = tg.softmax(x, -1)
                if wrong:
                    with pytest.raises(tg.errors.IndexOutOfRange, match=r"embedding.*test_calls_without_grad"):
                        y.numpy()
                    continue
                np.testing.assert_array_equal(x.numpy(), rows[i.numpy()] * 2.0)
            j = tg.tensor([step % 5 - 2, 1]) + 0                  # computed indices, and negative ones
            np.testing.assert_array_equal((y + 0.0)[0][j].numpy(), y.numpy()[0][j.numpy()])
            np.testing.assert_array_equal(x[tg.tensor([1, -1, step % 2])].numpy(), x.numpy()[[1, -1, step % 2]])


@pytest.mark.recall
def test_what_a_block_made_is_let_go_of_with_it():
    for step in range(5):
        x = given(0, 33)
        node, array = weakref.ref(x._n), weakref.ref(held(x._n.value))
        with tg.no_grad():
            kept = x + 1.0
            dropped = x * 2.0
            gone = weakref.ref(dropped)
            del dropped
            assert gone() is None                       # as it ever was
        del x
        assert step < 3 or (node() is None and array() is None)         # at first `kept` is pending
        assert kept.shape == (33,)


def test_values_that_other_threads_ask_for():
    def ask(tensors, found):
        found.append([t.numpy() for t in tensors])

    with tg.no_grad():
        for step in range(20):
            x = given(step, 9)
            made, found = [x + 1.0], []
            threads = []
            for k in range(30):
                made.append(made[-1] * 1.0 + float(k % 3))
                if k % 10 == 5:
                    threads.append(threading.Thread(target=ask, args=(made[:], found)))
                    threads[-1].start()
            ask(made, found)
            for t in threads:
                t.join()
            longest = max(found, key=len)
            for values in found:
                for a, b in zip(values, longest, strict=False):
                    np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(longest[-1], x.numpy() + 1 + sum(k % 3 for k in range(30)), rtol=1e-5)


def test_random_numbers_and_copies_between():
    def program():
        tg.manual_seed(3)
        x = given(0, 8)
        y = x * 2.0
        z = y + tg.rand(8)
        w = z.clone()
        w += y.detach()
        y.detach().zero_()
        return [v.numpy() for v in (x, y, z, w, tg.stack([x, z]), tg.cat([w, y]))]

    with tg.no_grad():
        results = [program() for _ in range(6)]
    for result in results:
        for a, b in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_only_what_was_given_is_held():
    for step in range(18):
        x = given(step, 13)
        with tg.no_grad():
            y = x.reshape(-1)
            x * 2.0                                     # nobody holds it: no operation is left to do
            np.testing.assert_array_equal(y.numpy(), x.numpy())
            z = (x + 1.0).reshape(-1)
            np.testing.assert_array_equal(z.numpy(), x.numpy() + 1)


@pytest.mark.parametrize("name", corpus.programs())
def test_the_programs_of_the_corpus_in_every_iteration(name, anew):
    program = corpus.programs()[name]

    def results(x, y):
        found = program(x, y, 0.5)
        return [r.numpy() for r in (found if isinstance(found, tuple) else (found,))]

    with tg.no_grad():
        for step in range(18):
            x, y = given(step, *corpus.N).numpy(), given(step + 100, *corpus.N).numpy()
            found = results(tg.tensor(x), tg.tensor(y))
            for a, b in zip(found, anew(lambda x=x, y=y: results(tg.tensor(x), tg.tensor(y))), strict=True):
                assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()), step
