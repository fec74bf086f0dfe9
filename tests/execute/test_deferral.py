"""Deferral (docs/design.md): when work runs, how often something is compiled, what stays alive; and hash-consing."""

from __future__ import annotations

import gc
import resource
import weakref

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.execute import compile as tg_compile
from tracegrad.execute import deferred as pending
from tracegrad.execute import eager_executor, policy
from tracegrad.execute import program as tg_program
from tracegrad.graph.ir import INTERN
from tracegrad.nn import functional as F
from tracegrad.runtime.programs.background import in_background
from tracegrad.support.tuning import tuned, tuning


class Work:
    """What was compiled and run since it was made. Eager runs count as such, and nothing is compiled for the few that there are here."""

    def __init__(self, monkeypatch):
        self.runs = 0

        def count(real):
            def counted(*args):
                self.runs += 1
                return real(*args)

            return counted

        monkeypatch.setattr(tg_program.Program, "__call__", count(tg_program.Program.__call__))
        monkeypatch.setattr(tg_program.Program, "_by_numpy", count(tg_program.Program._by_numpy))
        self._compiled = built()

    def happened(self, runs):
        """Whether there were so many runs, each of a program of its own."""
        return (self.runs, self.compiled) == (runs, 0 if tg.config.eager else runs)

    @property
    def compiled(self):
        return built() - self._compiled


def built():
    return policy.counts["programs"] + policy.counts["background"]


@pytest.fixture(autouse=True)
def deferred(monkeypatch):
    """Small operations, too, wait until a value is read (else numpy does them when they are called:
    tests/execute/test_eager_executor.py)."""
    monkeypatch.setattr(eager_executor.EagerCall, "arrays", lambda *given: None)
    with tuned(tuning()._replace(early_operations=0)):                  # nor is anything computed early
        yield


@pytest.fixture
def work(device, monkeypatch):
    tg.flush()
    return Work(monkeypatch)


class TestWhen:
    def test_nothing_runs_before_a_value_is_read(self, work):
        x = tg.tensor([1.0, 2.0])
        y = ((x * 2).exp().sum() + x).relu()
        y[0] = 3.0
        y += 1
        assert y.shape == (2,)
        assert y.dtype == tg.float32
        assert (work.runs, work.compiled) == (0, 0)
        assert y[0].item() == 4.0
        held = tg.config.eager and tg.device().kind != "numpy"         # a part of what numpy holds is read as it is
        assert work.happened(1 if held else 2)                         # y, then the view of it that was asked for
        runs = work.runs
        y.numpy()
        assert work.runs == runs

    @pytest.mark.parametrize("reading", [lambda x: x.numpy(), lambda x: x.sum().item(), repr, lambda x: x.tolist(), np.asarray,
                                      lambda x: bool((x > 0).all()), lambda x: [row.item() for row in x], lambda x: f"{x.sum():.2f}"])
    def test_reads_of_a_value(self, work, reading):
        x = tg.tensor([1.0, 2.0]) * 3
        assert work.runs == 0
        reading(x)
        assert work.runs >= 1

    def test_one_read_computes_all_that_is_pending_in_one_program(self, work):
        x = tg.tensor(np.arange(5.0))
        kept = [x * i for i in range(2, 8)]
        dropped = x * 100
        del dropped
        kept[0].numpy()
        assert work.happened(1)
        for i, y in enumerate(kept, 2):
            np.testing.assert_array_equal(y.numpy(), np.arange(5.0) * i)
        assert work.runs == 1

    def test_backward_runs(self, work):
        w = tg.tensor([1.0, 2.0], requires_grad=True)
        (w * w).sum().backward()
        runs = work.runs
        assert runs >= 1
        assert w.grad.tolist() == [2, 4]
        assert work.runs == runs

    def test_much_pending_work_runs_by_itself(self, work, monkeypatch):
        monkeypatch.setattr(tg.config, "pending", 50)
        xs = [tg.ones(2) * i for i in range(120)]
        assert work.runs >= 2
        assert len(pending.waiting) <= 50
        assert xs[7].tolist() == [7, 7]

    @pytest.mark.parametrize("view", [lambda x: x[:, 1:3], lambda x: x.reshape(6, 2), lambda x: x.T], ids=["part", "reshape", "T"])
    def test_a_view_that_makes_it_run_is_a_view(self, view, monkeypatch):
        monkeypatch.setattr(tg.config, "pending", 20)
        x = tg.ones(3, 4).exp()
        for _ in range(25):
            seen = view(x)
            seen.zero_()
            assert not view(x).numpy().any()
            x = x * 2.0 + 1.0
            others = [view(x) for _ in range(4)]
        others[-1].zero_()
        assert not others[0].numpy().any()


class TestLoops:
    def test_a_training_loop_compiles_a_constant_number_of_programs(self, work):
        rng = np.random.default_rng(0)
        x, y = tg.tensor(rng.standard_normal((8, 3)).astype(np.float32)), tg.tensor(rng.standard_normal((8, 1)).astype(np.float32))
        w = tg.zeros(3, 1, requires_grad=True)
        after = []
        for i in range(12):
            loss = ((x @ w - y) ** 2).mean()
            loss.backward()
            with tg.no_grad():
                w -= 0.1 / (1 + i) * w.grad                            # another learning rate at every step
                w.grad = None
            loss.item()
            after.append(work.compiled)
        assert after[-1] == after[8]
        assert after[-1] <= 8
        reference, xs, ys = np.zeros((3, 1)), x.numpy().astype(float), y.numpy().astype(float)
        for i in range(12):
            reference -= 0.1 / (1 + i) * 2 / 8 * xs.T @ (xs @ reference - ys)
        np.testing.assert_allclose(w.detach().numpy(), reference, rtol=1e-4, atol=1e-6)

    def test_an_optimizer_loop_with_a_schedule(self, work):
        w = tg.ones(4, requires_grad=True)
        optimizer = tg.optim.SGD([w], lr=0.1, momentum=0.9)
        after = []
        for i in range(12):
            optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
            optimizer.zero_grad()
            (w * w).sum().backward()
            optimizer.step()
            after.append(work.compiled)
        assert after[-1] == after[8]

    @one_of(2, "reading", [True, False])
    def test_a_loop_does_not_grow(self, device, reading, monkeypatch):
        monkeypatch.setattr(tg.config, "pending", 300)

        def loop(n):
            nonlocal x
            for _ in range(n):
                x = (x * 0.5 + 1.0).tanh()
                if reading:
                    x[0].item()

        x = tg.ones(16)
        loop(600)
        tg.flush()
        gc.collect()
        nodes, before = len(INTERN), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        loop(3000)
        tg.flush()
        gc.collect()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10
        assert len(INTERN) < nodes + 1000                             # 9000 were made
        assert len(pending.waiting) <= tg.config.pending

    def test_a_training_loop_that_never_reads_does_not_grow(self, device):
        w = tg.ones(4, requires_grad=True)

        def loop(n):
            for _ in range(n):
                ((w * w).sum() * 0.5).backward()
                with tg.no_grad():
                    w.sub_(w.grad, alpha=0.01)
                    w.grad = None

        loop(50)
        gc.collect()
        nodes, before = len(INTERN), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        loop(300)
        gc.collect()
        assert len(INTERN) <= nodes + 20
        assert len(pending.waiting) < 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10
        np.testing.assert_allclose(w.detach().numpy(), 0.99**350, rtol=1e-3)

    def test_history_is_freed_with_its_tensors(self, device):
        x = tg.tensor([1.0, 2.0])
        y = (x * 2).sin()
        node = weakref.ref(y._n.operands[0])
        y.numpy()
        gc.collect()
        assert node() is None                                          # computed, needs no derivative: it forgot its operands


@pytest.mark.usefixtures("device")
class TestNodes:
    def test_the_same_expression_is_the_same_node(self):
        x = tg.tensor([1.0, 2.0])
        assert (x * 2 + 1)._n is (x * 2 + 1)._n
        assert (x * 2)._n is not (x * 2.5)._n
        assert (x * 0.0)._n is not (x * -0.0)._n
        assert (x - x * 2)._n is not (x * 2 - x)._n

    def test_two_draws_are_two_nodes(self):
        a, b = tg.rand(3), tg.rand(3)
        assert a._n is not b._n
        assert a.tolist() != b.tolist()

    def test_with_grad_users_results_are_their_own_and_computed_once(self):
        w = tg.tensor([1.0, 2.0], requires_grad=True)
        a, b = w.exp(), w.exp()
        assert a._n is not b._n
        seen = []
        a.register_hook(lambda g: seen.append(g.tolist()))
        (a * 2 + b * 3).sum().backward()
        assert seen == [[2.0, 2.0]]

        @tg.trace
        def f(x):
            return x.exp() + x.exp() * 2

        f(w.detach())
        assert sum(n.name == "exp" for n in tg_compile.executable_graph(f.graph)) == 1

    def test_nothing_is_kept_by_the_table(self):
        x = tg.tensor([1.0, 2.0])
        y = x * 12.25
        node = weakref.ref(y._n)
        del y
        gc.collect()
        assert node() is None


@pytest.mark.usefixtures("device")
class TestViews:
    """Against numpy, whose views behave alike."""

    @pytest.mark.parametrize("view", [
        lambda x: x[1], lambda x: x[:, 1:], lambda x: x[::2, ::-1], lambda x: x.T, lambda x: x.reshape(2, 6),
        lambda x: x.reshape(12)[3:10:3], lambda x: x.T[1:3].reshape(6), lambda x: x[1:][:, 2:][0],
        lambda x: x[..., None][2, :, 0], lambda x: x.transpose(1, 0)[2],
    ])
    def test_write_through_and_read_after(self, view):
        values = np.arange(12.0, dtype=np.float32).reshape(3, 4)
        x, a = tg.tensor(values), values.copy()
        v, av = view(x), view(a)
        shares = np.shares_memory(a, av)
        v.mul_(10)
        av *= 10
        if shares:
            np.testing.assert_array_equal(x.numpy(), a)
        x.add_(1)
        a += 1
        if shares:
            np.testing.assert_array_equal(v.numpy(), av)
        v[...] = -1.0
        av[...] = -1.0
        if shares:
            np.testing.assert_array_equal(x.numpy(), a)

    def test_writing_before_anything_ran(self):
        x = tg.zeros(4) + 1
        x[1:3] += 5
        y = x * 1
        x[0] = 9
        assert y.tolist() == [1, 6, 6, 1]
        assert x.tolist() == [9, 6, 6, 1]

    def test_versions(self):
        x = tg.zeros(4)
        v = x[1:]
        assert (x._version, v._version) == (0, 0)
        v.add_(1)
        x.mul_(2)
        assert (x._version, v._version) == (2, 2)
        assert (x * 2)._version == 0

    def test_an_expanded_tensor_cannot_be_written(self):
        x = tg.zeros(3, 1)
        with pytest.raises(tg.ArgumentError, match="clone"):
            x.expand(3, 4).add_(1)
        assert x.tolist() == [[0], [0], [0]]

    def test_in_place_keeps_the_dtype(self):
        x = tg.tensor([1, 2, 3])
        with pytest.raises(tg.DTypeError, match=r"mul_: .*not in place"):
            x.mul_(0.5)
        y = tg.tensor([1.0, 2.0])
        y.add_(tg.tensor([1, 2]))
        y.mul_(tg.tensor([2.0, 2.0], dtype=tg.float64))
        assert y.dtype == tg.float32
        assert y.tolist() == [4, 8]
        assert x.tolist() == [1, 2, 3]

    def test_masks(self):
        x = tg.tensor([-1.0, 2.0, -3.0])
        x[x < 0] = 0.0
        assert x.tolist() == [0, 2, 0]
        x[x > 0] += 1.5
        assert x.tolist() == [0, 3.5, 0]
        assert x[x > 0].tolist() == [3.5]


def _train_and_forget(x, w, y):
    F.cross_entropy(F.linear(x, w), y).backward()
    w.grad = None


@one_of(2, "use", [
    _train_and_forget,
    lambda x, w, y: (x * 2).mean().item(),
    lambda x, w, y: x[0, 1:3].sum().item(),
    lambda x, w, y: tg.grad(lambda a: (a**3).sum())(x).numpy(),
    lambda x, w, y: tg.vmap(lambda a: a.sin())(x).numpy(),
    lambda x, w, y: tg.cat([x, x]).var().item(),
    lambda x, w, y: x.sort()[0].numpy(),
], ids=["training", "mean", "index", "grad", "vmap", "cat", "sort"])
def test_no_reference_cycles(device, use):
    """A cycle would keep tensors, and so device memory, until Python happens to collect it."""
    x, y = tg.ones(4, 5), tg.tensor([0, 1, 2, 0])
    w = tg.ones(3, 5, requires_grad=True)
    for _ in range(3):                    # compiling may leave cycles (networkx's graphs do),
        use(x, w, y)
    in_background(int)._future.result()    # in a thread, too, of what another test used often
    gc.collect()
    gc.disable()
    try:
        use(x, w, y)
        assert gc.collect() == 0
    finally:
        gc.enable()
