"""Collectives, their derivatives and traces, and data-parallel training, on several ranks (`ranks` of conftest.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

import tracegrad as tg
from tests.helpers.ranks import BEGIN, ROOT
from tracegrad.autograd.hooks import listeners
from tracegrad.utils.data import DistributedSampler

COLLECTIVES = """
    x = tg.arange(3.0) + rank
    dist.all_reduce(x)
    same(x, np.arange(3) * size + size * (size - 1) / 2)
    for op, expected in (("min", 1), ("max", size), ("product", np.prod(range(1, size + 1))), ("avg", (size + 1) / 2)):
        for n in (3, 10007):                                     # in one round, and in two
            y = tg.ones(n) * (rank + 1)
            work = dist.all_reduce(y, op=op, async_op=True)
            assert work.wait() and work.is_completed()
            same(y, np.full(n, expected))
    one = tg.tensor(rank + 1.0)                                      # a loss has no dimensions
    for op, expected in (("sum", size * (size + 1) / 2), ("avg", (size + 1) / 2), ("max", size)):
        y = one.clone()
        dist.all_reduce(y, op=op)
        assert y.item() == expected and F.all_reduce(one, op).item() == expected
    half = tg.ones(3, dtype=tg.bfloat16) * (rank + 1)
    dist.all_reduce(half)
    assert half.tolist() == [size * (size + 1) / 2] * 3
    out = [tg.zeros(2) for _ in range(size)]
    dist.all_gather(out, tg.ones(2) * rank)
    assert [t.tolist() for t in out] == [[i, i] for i in range(size)]
    joined = tg.zeros(2 * size)
    dist.all_gather_into_tensor(joined, tg.ones(2) * rank)
    same(joined, np.repeat(range(size), 2))
    piece = tg.zeros(2)
    dist.reduce_scatter_tensor(piece, tg.arange(2.0 * size))
    same(piece, size * np.arange(2 * size)[2 * rank:2 * rank + 2])
    dist.reduce_scatter(piece, [tg.ones(2) * i for i in range(size)])
    same(piece, [size * rank] * 2)
    dist.all_to_all(out, [tg.ones(2) * (10 * rank + i) for i in range(size)])
    assert [t.tolist() for t in out] == [[10 * i + rank] * 2 for i in range(size)]
    rows = tg.zeros(sum(i + 1 for i in range(size)))              # rank i sends i + 1 to each
    dist.all_to_all_single(rows, tg.ones((rank + 1) * size) * rank, [i + 1 for i in range(size)], [rank + 1] * size)
    same(rows, np.repeat(range(size), range(1, size + 1)))
    b = tg.ones(2) * rank
    dist.broadcast(b, src=size - 1)
    same(b, [size - 1] * 2)
    dist.reduce(b, dst=0)
    same(b, [size * (size - 1) if rank == 0 else size - 1] * 2)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": "r" * rank})
    assert objects == [{"rank": "r" * i} for i in range(size)]
    everybody = [None] * size if rank == size - 1 else None
    dist.gather_object(rank * "a", everybody, dst=size - 1)
    assert everybody == (["a" * i for i in range(size)] if rank == size - 1 else None)
    own = ["?", "!"]
    dist.scatter_object_list(own, [{i} for i in range(size)] if rank == 0 else None)
    assert own == [{rank}, "!"]
    for wrap in (lambda f: f, tg.trace):
        rows = [tg.zeros(2, 3, dtype=tg.int64) for _ in range(size)] if rank == 0 else None
        wrap(lambda x: dist.gather(x, rows))(tg.full((2, 3), rank))
        assert rank or [r.tolist() for r in rows] == [[[i] * 3] * 2 for i in range(size)]
        one = tg.zeros(4)
        wrap(lambda x: dist.scatter(one, [x + i for i in range(size)] if rank == size - 1 else None, src=size - 1))(tg.arange(4.0))
        same(one, np.arange(4) + rank)
    some = [rank, {}] if rank == 0 else [None, None]
    dist.broadcast_object_list(some)
    assert some == [0, {}]
    dist.barrier()
"""
GROUPS = """
    group = dist.new_group([0, size - 1])
    assert dist.get_process_group_ranks(None) == list(range(size))
    if rank in (0, size - 1):
        assert dist.get_process_group_ranks(group) == [0, size - 1] and dist.get_global_rank(group, 1) == size - 1
        assert dist.get_group_rank(group, size - 1) == 1
        assert "group_rank is from 0 to 1" in raises(tg.errors.ArgumentError, lambda: dist.get_global_rank(group, 2))
        assert "global_rank is one of" in raises(tg.errors.ArgumentError, lambda: dist.get_group_rank(group, 9))
        z = tg.ones(2) * (rank + 1)
        dist.all_reduce(z, group=group)
        same(z, [size + 1] * 2)
    else:
        assert group is dist.GroupMember.NON_GROUP_MEMBER and dist.get_rank(group) == dist.get_world_size(group) == -1
        told = raises(tg.errors.ArgumentError, lambda: dist.all_reduce(tg.ones(2), group=group))
        assert told.startswith(f"all_reduce: this rank, {rank}, is not in the group"), told
    big = tg.ones(100000) * rank                                    # both send before either receives
    got = tg.zeros(100000)
    works = [dist.isend(big, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
    for work in works:
        work.wait()
    same(got, np.full(100000, (rank - 1) % size))
    if rank == 0:
        dist.send(big, 1, tag=3)
    elif rank == 1:
        assert dist.recv(got, 0, tag=3) == 0 and got.sum().item() == 0
"""


def test_one_rank_needs_no_mpi():
    """Also with mpi4py hidden; sums, gathers and DDP are those of one rank."""
    hidden = "import importlib.util as u; find = u.find_spec; u.find_spec = lambda n, *a: None if n == 'mpi4py' else find(n, *a)\n"
    env = {k: v for k, v in os.environ.items() if "PMI" not in k} | {"PYTHONPATH": str(ROOT)}
    more = """
    assert size == 1 and not dist.is_available() and dist.is_initialized()
    p = tg.ones(2).requires_grad_()
    (F.all_reduce(p) * F.all_gather(p)[0]).sum().backward()
    same(p.grad, [2, 2])
    same(dist.halo(tg.arange(3.0), 1, periodic=True), [2, 0, 1, 2, 0])
    same(dist.halo(tg.ones(1, 2), (1, 2), mesh=(1, 1)), [[0] * 6, [0, 0, 1, 1, 0, 0], [0] * 6])
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    model(tg.ones(3, 2)).sum().backward()
    same(model.module.weight.grad, [[3, 3]])
    dist.destroy_process_group()
    assert not dist.is_initialized()
    try:
        dist.barrier()
    except tg.errors.DistributedError as error:
        assert "barrier" in str(error) and "init_process_group" in str(error)
    else:
        raise AssertionError
    """
    text = hidden + BEGIN + textwrap.dedent(COLLECTIVES) + textwrap.dedent(more)
    done = subprocess.run([sys.executable, "-c", text], env=env, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_several_ranks_without_mpi4py_say_so():
    text = "import importlib.util as u; u.find_spec = lambda n, *a: None\nimport tracegrad as tg; tg.distributed.init_process_group()"
    done = subprocess.run([sys.executable, "-c", text], env=os.environ | {"PYTHONPATH": str(ROOT), "PMI_SIZE": "2"}, cwd=ROOT,
                          capture_output=True, text=True, timeout=100, check=False)
    assert "init_process_group: mpiexec started 2 ranks, and mpi4py is not installed" in done.stderr


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_collectives_groups_and_messages(ranks, count):
    ranks(count, COLLECTIVES + GROUPS)


@pytest.mark.long
def test_what_differentiates(ranks):
    """First and second order, untraced and traced, forward mode; adjoints go through the other ranks."""
    ranks(3, """
        total = sum(range(1, size + 1))
        x = (tg.tensor([1.0, 2.0, 3.0], dtype=tg.float64) * (rank + 1)).requires_grad_()
        for wrap in (lambda f: f, tg.trace):
            cube = wrap(lambda x: tg.autograd.grad((F.all_reduce(x) ** 3).sum(), x, create_graph=True)[0])
            for _ in range(3):
                g = cube(x)
                same(g, size * 3 * (np.array([1, 2, 3]) * total) ** 2)
            second = wrap(lambda x: tg.autograd.grad(tg.autograd.grad((F.all_reduce(x) ** 3).sum(), x, create_graph=True)[0].sum(), x)[0])
            same(second(x), size * size * 6 * np.array([1, 2, 3]) * total)
            def d(f):
                return wrap(lambda x: tg.autograd.grad(f(x).sum(), x)[0])(x)
            w = tg.arange(float(size), dtype=tg.float64).reshape(-1, 1) + rank
            same(d(lambda x: F.all_gather(x) * w), [sum(rank + i for i in range(size))] * 3)
            same(d(lambda x: F.reduce_scatter(x.unsqueeze(1)) * (rank + 1)), [[1, 2, 3]][0])
            same(d(lambda x: F.all_to_all_single(x) * (rank + 1)), [1, 2, 3])
            same(d(lambda x: F.broadcast(x, 1) * (rank + 1)), [total * (rank == 1)] * 3)
            same(d(lambda x: F.sendrecv(x, (rank + 1) % size, (rank - 1) % size) * (rank + 1)), [(rank + 1) % size + 1] * 3)
            same(d(lambda x: F.all_reduce(x, "max")), [size * (rank == size - 1)] * 3)
            same(d(lambda x: F.all_reduce(x, "avg")), [1] * 3)
        y, t = tg.func.jvp(F.all_reduce, (x.detach(),), (tg.ones(3, dtype=tg.float64) * rank,))
        same(t, [sum(range(size))] * 3)
        if rank == 0:                                               # a pipeline of two: the loss is rank 1's
            F.send(x * 2, 1).backward()
            same(x.grad, [6, 6, 6])
        elif rank == 1:
            (F.recv(x, 0) * 3).sum().backward()
        kept = x * 1                                                # in place, with a history
        dist.all_reduce(kept)
        same(tg.autograd.grad(kept.sum(), x)[0], [size] * 3)
    """)


@pytest.mark.long
def test_vmap_sends_one_message_for_all_examples(ranks):
    """The operation of each example, with its derivatives; untraced and traced. In place there is no map."""
    ranks(2, """
        batch = tg.from_numpy(np.random.default_rng(rank).normal(size=(4, 4, 5)))
        other = (rank + 1) % size
        sent = []
        from tracegrad.distributed.exchange import Exchange
        agree = Exchange.agree
        Exchange.agree = lambda self: (sent.append(self.who), agree(self))
        for f in (F.all_reduce, lambda x: F.all_reduce(x, "avg"), F.all_gather, lambda x: F.reduce_scatter(x.reshape(size, 2, 5)),
                  F.all_to_all_single, lambda x: F.broadcast(x, 1), lambda x: F.sendrecv(x, other, other), lambda x: dist.halo(x, 1)):
            for wrap in (lambda f: f, tg.trace):
                for dim in (0, 1):
                    rows = [batch.select(dim, k) for k in range(batch.shape[dim])]
                    want = tg.stack([f(r) for r in rows])
                    del sent[:]
                    same(wrap(lambda x: tg.func.vmap(f, in_dims=dim)(x))(batch), want.numpy())
                    assert len(sent) <= 1, sent
                    slope = lambda r: tg.func.grad(lambda r: (f(r) ** 3).sum())(r)
                    same(wrap(lambda x: tg.func.vmap(slope, in_dims=dim)(x))(batch), tg.stack([slope(r) for r in rows]).numpy())
        for call in (lambda r: dist.all_reduce(r), lambda r: dist.isend(r, other), lambda r: dist.broadcast(r, 0)):
            for wrap in (lambda f: f, tg.trace):
                told = raises(tg.errors.DistributedError, lambda: wrap(lambda x: tg.func.vmap(lambda r: (call(r), r)[1])(x))(batch))
                assert "vmap" in told and "tg.distributed.functional" in told, told
    """)


@pytest.mark.long
def test_operations_in_scan(ranks):
    """Step by step in the order of the program, with gradients, untraced and traced: a recurrence whose state is that of all ranks."""
    ranks(2, """
        xs = np.random.default_rng(0).normal(size=(2, 6, 3))
        def f(w, xs):
            step = lambda h, x: (tg.tanh(F.all_reduce(w * h + x)), h)
            h, hs = tg.scan(step, tg.zeros(3, dtype=tg.float64), xs)
            loss = (h * h).sum() + hs.sum()
            return loss, tg.autograd.grad(loss, w)[0]
        h, hs, w = np.zeros(3), [], np.array([0.3, 0.5, 0.2])
        for k in range(6):
            hs.append(h)
            h = np.tanh(2 * w * h + xs[0, k] + xs[1, k])
        same_loss = (h * h).sum() + np.sum(hs)
        t = tg.tensor(w, dtype=tg.float64).requires_grad_()
        whole = tg.zeros(3, dtype=tg.float64)
        total = tg.zeros((), dtype=tg.float64)
        for k in range(6):
            total = total + whole.sum()
            whole = tg.tanh(2 * t * whole + tg.from_numpy(xs[0, k] + xs[1, k]))
        (total + (whole * whole).sum()).backward()
        for wrap in (lambda f: f, tg.trace):
            loss, slope = wrap(f)(t.detach().requires_grad_(), tg.from_numpy(xs[rank]))
            same(loss, same_loss)
            same(slope, t.grad.numpy())             # the loss is on both ranks, and each w is half of what the sum reads
    """)


@pytest.mark.long
def test_a_trace_keeps_the_order_and_what_nobody_uses(ranks):
    """A send has no result; a replay makes it, and every operation in the program's order."""
    ranks(2, """
        @tg.trace
        def step(x):
            if rank == 0:
                dist.send(x, 1)
            else:
                got = tg.zeros(3)
                dist.recv(got, 0)
                x.add_(got)
            y = F.all_reduce(x)
            dist.broadcast(x, 1)
            if rank == 0:
                dist.send(x, 1)
            else:
                dist.recv(x, 0)
            return y
        for k in range(4):
            x = tg.ones(3) * (rank + 1 + k)
            same(step(x), [4 + 3 * k] * 3)
            same(x, [3 + 2 * k] * 3)
        assert len(step.compilations) == 1, step.compilations
        try:
            tg.trace(lambda x: (dist.barrier(), x)[1])(x)
        except tg.errors.DistributedError as error:
            assert str(error).startswith("barrier: a trace records values")
        else:
            raise AssertionError
    """)


TRAINING = """
    def parameters(traced, parallel):
        tg.manual_seed(3 + rank * parallel)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval(), nn.Tanh(), nn.Linear(8, 1)).to(tg.float64)
        tg.manual_seed(3)
        whole = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval(), nn.Tanh(), nn.Linear(8, 1)).to(tg.float64)
        if rank == 0:
            model.load_state_dict(whole.state_dict())
        net = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4) if parallel else whole
        optimizer = tg.optim.Adam(net.parameters(), lr=0.05)
        def step(x, y):
            optimizer.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            optimizer.step()
        run = tg.trace(step) if traced else step
        rng = np.random.default_rng(0)
        for _ in range(5):
            x, y = rng.normal(size=(840, 4)), rng.normal(size=(840, 1))      # any number of ranks up to 8 has equal parts
            if parallel:
                x, y = x[rank::size], y[rank::size]
            run(tg.from_numpy(x), tg.from_numpy(y))
        return [p.detach().numpy() for p in net.parameters()]
    alone = parameters(False, False)
    for traced in (False, True):
        found = parameters(traced, True)
        for a, b in zip(alone, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        for a, b in zip(found, parameters(traced, True), strict=True):
            assert a.tobytes() == b.tobytes()                       # equal bits from run to run
        everybody = [None] * size
        dist.all_gather_object(everybody, [p.tobytes() for p in found])
        assert everybody.count(everybody[0]) == size                # and on all ranks
"""


@pytest.mark.parametrize("count", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3, 4, 5, 6, 7, 8))])
def test_data_parallel_training_is_that_of_one_rank(ranks, count):
    ranks(count, TRAINING)


@pytest.mark.long
def test_no_sync_and_unused_parameters(ranks):
    ranks(2, """
        net = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
        with net.no_sync():
            net(tg.ones(1, 1) * (rank + 1)).sum().backward()
        same(net.module.weight.grad, [[rank + 1]])
        net(tg.ones(1, 1) * 10 * (rank + 1)).sum().backward()
        same(net.module.weight.grad, [[16.5]])                      # the mean of 11 and 22
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
            def forward(self, x):
                return self.a(x) if rank == 0 else self.b(x)
        net = nn.parallel.DistributedDataParallel(Two(), find_unused_parameters=True)
        net(tg.ones(1, 1)).sum().backward()
        same(net.module.a.weight.grad, [[0.5]])
        same(net.module.b.weight.grad, [[0.5]])
    """)


JOIN = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b, self.c = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Linear(4, 2)
        def forward(self, x):
            h = self.norm(self.a(x))
            return self.b(h) if self.find else self.b(h) + self.c(h)
    batches = lambda r: [np.random.default_rng((r, k)).normal(size=(4, 3)) for k in range(1 + r)]       # rank r has 1 + r batches
    for find in (False, True):
        tg.manual_seed(0)
        Net.find = find
        net = Net().double()
        alone = [Net().double() for _ in range(size)]                  # each rank's, with the gradients that all have together
        for copy in alone:
            copy.load_state_dict(net.state_dict())
        model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=find, bucket_cap_mb=1e-5)
        optimizer = tg.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for x in batches(rank):
                optimizer.zero_grad()
                (model(tg.from_numpy(x)) ** 2).mean().backward()
                optimizer.step()
        for step in range(size):
            active = [r for r in range(size) if step < 1 + r]
            sums = [0.0] * len(list(net.parameters()))
            for r in active:
                for b, source in zip(alone[r].buffers(), alone[active[-1]].buffers()):
                    if r != active[-1]:
                        b.copy_(source)
            for r in active:
                loss = (alone[r](tg.from_numpy(batches(r)[step])) ** 2).mean()
                for k, g in enumerate(tg.autograd.grad(loss, list(alone[r].parameters()), allow_unused=True)):
                    sums[k] = sums[k] + (0.0 if g is None else g.numpy())
            for r in active:
                with tg.no_grad():
                    for p, g in zip(alone[r].parameters(), sums):
                        p -= tg.from_numpy(np.broadcast_to(0.1 * g / size, tuple(p.shape)).copy())
        for key, value in alone[size - 1].state_dict().items():
            same(net.state_dict()[key], value.numpy(), 1e-9)
    assert "join: only" in raises(tg.errors.ArgumentError, lambda: model.join(throw_on_early_termination=True).__enter__())
    if size > 1:
        with model.join(enable=False):
            assert not model._joining
"""


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_batch_norm_over_all_ranks_is_that_of_the_whole_batch(ranks, count):
    """Values, gradients and running statistics; ranks have parts of different lengths. Untraced and traced."""
    ranks(count, """
        rng = np.random.default_rng(0)
        whole, cts = rng.normal(size=(5 * size, 3, 4)), rng.normal(size=(5 * size, 3, 4))
        ends = [2 * r + r * r for r in range(size)] + [5 * size]
        own = slice(ends[rank], ends[rank + 1])
        def run(net, x, ct, traced):
            def step(x, ct):
                y = net(x)
                return y, *tg.autograd.grad((y * ct).sum(), [x, *net.parameters()])
            step = tg.trace(step) if traced else step
            for _ in range(2):
                found = step(tg.from_numpy(x).requires_grad_(), tg.from_numpy(ct))
            return [t.detach() for t in found]
        for traced in (False, True):
            for momentum in (0.1, None):
                alone = nn.Sequential(nn.BatchNorm1d(3, momentum=momentum)).double()
                with tg.no_grad():
                    alone[0].weight.copy_(tg.tensor([1.0, 2.0, 3.0]))
                import copy
                net = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone))
                assert type(net[0]) is nn.SyncBatchNorm and sorted(net.state_dict()) == sorted(alone.state_dict())
                expected, found = run(alone, whole, cts, False), run(net, whole[own].copy(), cts[own].copy(), traced)
                same(found[0], expected[0].numpy()[own], 1e-9)
                np.testing.assert_allclose(found[1].numpy(), expected[1].numpy()[own], rtol=1e-7, atol=1e-10)
                for a, b in zip(found[2:], expected[2:]):
                    same(F.all_reduce(a), b.numpy(), 1e-9)
                for a, b in zip(net.buffers(), alone.buffers()):
                    same(a, b.numpy(), 1e-9)
                same(net.eval()(tg.from_numpy(whole)), alone.eval()(tg.from_numpy(whole)).detach().numpy(), 1e-9)
    """)


@pytest.mark.long
def test_buffers_come_from_rank_0_as_in_torch(ranks):
    """At the beginning of every call in training, unless the call before was in no_sync."""
    ranks(2, """
        model = nn.parallel.DistributedDataParallel(nn.BatchNorm1d(1, momentum=1.0))
        batch = lambda k: tg.tensor([[k + rank], [k + rank]], dtype=tg.float32)
        mean = lambda: model.module.running_mean.item()
        with model.no_sync():
            model(batch(3.0)).sum().backward()
            assert mean() == 3 + rank
        sent = []
        broadcast = nn.parallel.broadcast
        nn.parallel.broadcast = lambda *args: (sent.append(1), broadcast(*args))
        model(batch(5.0)).sum().backward()
        assert not sent and mean() == 5 + rank
        with model.no_sync():
            model(batch(7.0)).sum().backward()
        assert sent
        model(batch(9.0)).sum().backward()
        found = len(sent)
        model(batch(1.0)).sum().backward()
        assert len(sent) == 2 * found
        own = nn.BatchNorm1d(1, momentum=1.0)
        own.running_mean.fill_(5.0 + rank)
        model = nn.parallel.DistributedDataParallel(own, broadcast_buffers=False)
        assert mean() == 5 + rank
        model(batch(3.0)).sum().backward()
        assert mean() == 3 + rank
    """)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_ranks_that_have_ended_join_in_the_steps_of_others(ranks, count):
    """With the weights and statistics of a calculation by hand: zeros for who has ended, and the last one's weights at the end."""
    ranks(count, JOIN)


def test_a_traced_step_beside_another_parallel_model(monkeypatch):
    """One rank, without MPI: the other model hears of the backward, and the trace need not know its parameters."""
    monkeypatch.setattr(tg.distributed.world.importlib.util, "find_spec", lambda *_: None)
    tg.distributed.init_process_group()
    try:
        models = [tg.nn.parallel.DistributedDataParallel(tg.nn.Linear(2, 1)) for _ in range(2)]
        assert not {*models} & {*listeners}                 # one rank has nothing to average, so its steps take no longer
        listeners[models[0]] = None                         # as if there were others

        def step_of(model):
            @tg.trace
            def step(x):
                model(x).sum().backward()

            return step

        step_of(models[1])(tg.ones(3, 2))
        assert models[0].module.weight.grad is None
        assert models[1].module.weight.grad.tolist() == [[3, 3]]
    finally:
        tg.distributed.destroy_process_group()


def test_a_listener_hears_of_backwards_that_are_recalled(recalled):
    """DistributedDataParallel is one; that it lives keeps no backward from being recalled, of its parameters or others."""

    class Listener:
        def before_backward(self, reached):
            return None

        def after_backward(self, reached, underway):
            assert underway is None
            heard.append([id(t) for t in reached])

    heard, listener, w = [], Listener(), tg.ones(3, requires_grad=True)
    listeners[listener] = None
    try:
        for _ in range(5):
            (w * 2).sum().backward()
    finally:
        listeners.pop(listener)
    assert recalled() >= 2
    assert heard == [[id(w)]] * 5
    assert w.grad.tolist() == [10, 10, 10]


@pytest.mark.long
def test_data_parallel_backwards_are_recalled(ranks):
    """With the bits of those that are not, also where gradients are accumulated."""
    ranks(2, """
        from tracegrad.autograd import backward_cache
        from tracegrad.support import cache
        real, count = backward_cache.Backward.run, []
        def gradients(self):
            found = real(self)
            count.append(found is not None)
            return found
        backward_cache.Backward.run = gradients
        def train():
            tg.manual_seed(0)
            net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
            optimizer = tg.optim.SGD(net.parameters(), lr=0.1)
            for k in range(16):
                ((net(tg.from_numpy(np.full((2, 3), rank + k, np.float32))) - 1) ** 2).mean().backward()
                if k % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            return b"".join(p.detach().numpy().tobytes() for p in net.parameters())
        found = train()
        assert sum(count) >= 3, count
        tg.config.recall = False
        assert train() == found
    """)


def test_sampler():
    Torchs = pytest.importorskip("torch", reason="torch is the reference here, and is not installed").utils.data.DistributedSampler
    for n, drop_last in ((10, False), (10, True), (1, False)):
        for rank in range(3):
            ours = DistributedSampler(range(n), 3, rank, shuffle=False, drop_last=drop_last)
            theirs = Torchs(range(n), 3, rank, shuffle=False, drop_last=drop_last)
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs)
    parts = [DistributedSampler(range(9), 3, rank) for rank in range(3)]
    first = [list(p) for p in parts]
    assert sorted(n for part in first for n in part) == list(range(9))
    for p in parts:
        p.set_epoch(1)
    assert [list(p) for p in parts] != first


@pytest.mark.long
def test_a_trace_of_several_devices_has_collectives_on_each(ranks):
    ranks(2, """
        @tg.trace
        def f(x):
            total = F.all_reduce((x * 2).sum())
            return F.all_reduce(x.to("numpy").exp().sum()).to(x.device) + total
        x = (tg.arange(4.0) + rank).requires_grad_()
        for _ in range(2):
            y = f(x)
            same(y, 32 + np.exp(np.arange(4.0)).sum() + np.exp(np.arange(1.0, 5.0)).sum())
        y.backward()
        same(x.grad, 4 + 2 * np.exp(x.detach().numpy()))
    """)
