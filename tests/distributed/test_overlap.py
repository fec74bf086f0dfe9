"""Messages that go on while kernels run: where a plan begins them and waits for them, and that no bit depends on it."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import numpy as np
import pytest

import tracegrad as tg
from benchmarks.scale.programs import planned
from tests.helpers.kernels import Checked
from tracegrad.codegen import compiler
from tracegrad.distributed import functional
from tracegrad.support.plan import HostStart, HostStep, HostWait, Launch


@pytest.fixture
def alone(monkeypatch):
    """A world of one rank, whose messages take the same way as those of many."""
    monkeypatch.setattr(tg.distributed.world.importlib.util, "find_spec", lambda *_: None)
    tg.distributed.init_process_group()
    yield
    tg.distributed.destroy_process_group()


def layers(n, device=None):
    """Four layers' weights, and a traced function of them that sums each one's gradient over the ranks, the last one's first."""
    rng = np.random.default_rng(0)
    weights = [tg.tensor(rng.normal(size=(n, n)) / n**0.5, dtype=tg.float32, device=device).requires_grad_() for _ in range(4)]

    def summed(x):
        h = x
        for w in weights:
            h = tg.tanh(h @ w)
        return [functional.all_reduce(g) for g in tg.autograd.grad((h * h).sum(), weights[::-1])]

    return weights, summed, tg.tensor(rng.normal(size=(8, n)), dtype=tg.float32, device=device)


def letters(plan):
    """The plan's steps: k a kernel, s the beginning of a message, w what waits for it, h another step of the host."""
    kinds = {Launch: "k", HostStart: "s", HostWait: "w", HostStep: "h"}
    return "".join(kinds[type(step)] for step, _ in plan.each())


def test_messages_begin_behind_what_they_need_and_are_awaited_last(alone, tmp_path):
    weights, summed, x = layers(48)
    traced = tg.trace(summed)
    expected = tg.autograd.grad((tg.tanh(tg.tanh(tg.tanh(tg.tanh(x @ weights[0]) @ weights[1]) @ weights[2]) @ weights[3]) ** 2).sum(),
                                weights[::-1])
    for _ in range(2):
        for ours, theirs in zip(traced(x), expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    order = letters(traced.plan)
    assert order.count("s") == order.count("w") == 4, order
    assert order.rindex("s") < order.index("w"), order                  # all are on their way before one is waited for
    starts = [i for i, c in enumerate(order) if c == "s"]
    assert all("k" in order[a:b] for a, b in pairwise(starts)), order
    needed = {i for step, _ in traced.plan.each() if isinstance(step, HostWait) for i in step.inputs[1:]}
    blocks = [traced.plan.slots[i].block for i in needed if traced.plan.slots[i].kind == "temp"]
    assert len(set(blocks)) == len(blocks)                              # nothing is kept in the memory of what is being sent
    text = traced.explain()
    found = re.findall(r"all_reduce: host code that begins here and overlaps with (\w+) launch", text)
    assert len(found) == 4, text
    assert found[-1] == "no", text                                      # the first layer's gradient is the last one
    assert "no" not in found[:-1], text
    assert "all_reduce_wait: the results of what the host began" in text, text
    traced.timeline(tmp_path / "trace.json", runs=1)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    beside = [e for e in events if e.get("tid") == 3 and e["ph"] == "X"]
    assert [e["name"] for e in beside] == ["all_reduce"] * 4
    assert all(e["args"]["beside_kernels_us"] >= 0 for e in beside)
    assert traced.profile(runs=1)[-1].name in ("all_reduce_wait", "all_reduce")


def test_plans_for_other_devices_do_the_same(alone):
    """Run without a driver, and compared with the interpreter of graphs."""
    with Checked() as checked:
        _, summed, x = layers(16, "numpy")
        tg.trace(summed)(x)
        tg.trace(star)(tg.arange(600.0, device="numpy").reshape(30, 20) / 100, (0, 1), 1)
    assert checked.count > 2


def test_the_order_does_not_change_a_bit(alone, monkeypatch):
    """Of results, also where calls of the host, loops and updates in place stand between."""
    def step(x, total):
        y = functional.all_reduce(x * 2.0)
        z = tg.host_call(lambda a: a + 1, y)
        total.add_(functional.all_reduce(z.sum()))
        carry, rows = tg.scan(lambda h, r: (tg.tanh(functional.all_reduce(h + r)), h), x[0], x)
        return functional.all_reduce(carry) + rows.sum(0), y

    found = []
    for order in (compiler.overlapped, list):
        monkeypatch.setattr(compiler, "overlapped", order)
        x, total = tg.arange(12.0).reshape(4, 3) / 7, tg.zeros(())
        traced = tg.trace(step)
        results = [t.numpy().tobytes() for _ in range(3) for t in (*traced(x, total), total)]
        found.append(results)
        assert letters(traced.plan).count("s") >= 3
    assert found[0] == found[1]


def test_an_index_out_of_range_is_told_though_messages_are_on_their_way(alone):
    table = tg.arange(10.0).reshape(5, 2).requires_grad_()

    @tg.trace
    def step(i):
        return functional.all_reduce(tg.autograd.grad((table[i] ** 2).sum(), table)[0])

    good, bad = tg.tensor([1, 2]), tg.tensor([1, 7])
    first = step(good).numpy()
    for _ in range(2):
        with pytest.raises(tg.errors.IndexOutOfRange, match="holds 7"):
            step(bad)
        np.testing.assert_array_equal(step(good).numpy(), first)


TRAINING = """
    from tracegrad.codegen import compiler
    from tracegrad.runtime.launch import Executable
    from tracegrad.support.plan import HostWait
    tg.config.cache = False
    log, real = [], compiler.overlapped
    def logged(name, of):
        method = getattr(Executable, name)
        def call(self, item, *args):
            log.append(of(item))
            return method(self, item, *args)
        setattr(Executable, name, call)
    logged("begin", lambda step: "s")
    logged("_enqueue", lambda items: "k")
    logged("call_host", lambda step: "w" if isinstance(step, HostWait) else "h")
    def train(width, order):
        compiler.overlapped = order
        tg.manual_seed(0)
        net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.Tanh())))
        model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=width * (width + 1) * 4 / (1 << 20))       # a weight, a bucket
        optimizer = tg.optim.Adam(model.parameters(), lr=0.01)
        @tg.trace
        def step(x, y):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss
        rng, losses = np.random.default_rng(rank), []
        for _ in range(4):
            log.clear()
            losses.append(step(*(tg.from_numpy(rng.normal(size=(16, width)).astype(np.float32)) for _ in range(2))).item())
        return losses, b"".join(p.detach().numpy().tobytes() for p in net.parameters()), "".join(log)
    for width in (24, 256):                                 # kernels in the thread that launches them, and beside it
        losses, values, order = train(width, real)
        assert (losses, values) == train(width, list)[:2]
        if size > 1:
            begun = [i for i, c in enumerate(order) if c == "s"]
            assert len(begun) == 5 and order.count("w") == 5, order
            assert "k" in order[begun[0]:order.index("w")], order        # the first began before the last kernel of backward
            assert "sw" in "".join(log) and log.count("s") == 5, log     # (without the pass, each is waited for at once)
        everybody = [None] * size
        dist.all_gather_object(everybody, values)
        assert everybody.count(everybody[0]) == size
"""


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_gradients_are_sent_while_backward_goes_on(ranks, count):
    """A traced step of four layers: its messages begin between backward's kernels, and it has the bits of one that waits for each."""
    ranks(count, TRAINING)


def edges_of_others(u, dims, depth):
    """u with what a world of one rank sends itself around it, along these dimensions: the other end's values."""
    ends = [(u.narrow(d, u.shape[d] - depth, depth), u.narrow(d, 0, depth)) for d in dims]
    flat = functional.all_reduce(tg.cat([x.reshape(-1) for pair in ends for x in pair]))
    pieces = iter(flat.split([x.numel() for pair in ends for x in pair]))
    for d, pair in zip(dims, ends, strict=True):
        before, after = (next(pieces).reshape(x.shape) for x in pair)
        if d != dims[0]:                                                # corners are nobody's
            zeros = [n for k in reversed(range(u.ndim)) for n in [depth * (k in dims and k < d)] * 2]
            before, after = (tg.nn.functional.pad(x, zeros) for x in (before, after))
        u = tg.cat([before, u, after], d)
    return u


def star(u, dims, depth):
    """A stencil along dimensions, of u and all that is around it."""
    v = edges_of_others(u, dims, depth)
    inner = tuple(slice(depth, -depth) if d in dims else slice(None) for d in range(u.ndim))
    found = -2.0 * u * u
    for d in dims:
        for k in (-depth, depth):
            at = list(inner)
            at[d] = slice(depth + k, v.shape[d] - depth + k)
            found = found + (1.0 + 0.1 * d + 0.01 * k) * v[tuple(at)]
    return found


STARS = [((20, 18), (0, 1), 1), ((40, 24), (0,), 1), ((24, 40), (1,), 2), ((12, 13, 14), (0, 1, 2), 1), ((3, 16, 17), (1, 2), 2)]


@pytest.mark.parametrize(("shape", "dims", "depth"), [STARS[0], *(pytest.param(*star, marks=pytest.mark.long) for star in STARS[1:])])
def test_the_inside_of_a_stencil_is_launched_before_the_wait(alone, monkeypatch, shape, dims, depth):
    """Steps one after the other, the second one in the memory of an input, and their gradient: with the bits of kernels that wait."""
    def steps(u, old):
        first = star(u, dims, depth)
        old.copy_(2.0 * star(star(first.detach() / 8, dims, depth), dims, depth) - old)        # (what is sent is an edge of a result)
        return first, tg.autograd.grad((star(u, dims, depth) ** 2).sum(), u)[0]

    found, orders = [], []
    for cut in (compiler.cut, lambda plan, scalars: plan.groups):
        monkeypatch.setattr(compiler, "cut", cut)
        rng = np.random.default_rng(0)
        u = tg.from_numpy(rng.normal(size=shape)).requires_grad_()
        old, traced = tg.from_numpy(rng.normal(size=shape)), tg.trace(steps)
        found.append([t.detach().numpy().tobytes() for _ in range(2) for t in (*traced(u, old), old)])
        orders.append(letters(traced.plan))
    assert found[0] == found[1]
    assert orders[0].count("k") >= orders[1].count("k") + 2, orders


def test_the_inside_of_a_grid_reads_nothing_of_its_neighbours():
    """The plan of a rank in the middle of nine: what is sent is put together, the inside is launched, and the edges come last."""
    from tracegrad.distributed.world import ProcessGroup  # noqa: PLC0415
    group = ProcessGroup(None, range(9), 4, "nine")

    def step(u):
        v = tg.distributed.halo(u, 1, (3, 3), False, group)
        return u + 0.1 * (v[2:, 1:-1] + v[:-2, 1:-1] + v[1:-1, 2:] + v[1:-1, :-2] - 4 * u)

    plan = planned(step, tg.zeros(64, 96, device="numpy"), messages=True)
    order = letters(plan)
    assert re.fullmatch("k+sk+wk+", order), order
    steps = [step for step, _ in plan.each()]
    wait = next(s for s in steps if isinstance(s, HostWait))
    inside = steps[order.index("s") + 1]
    assert not set(wait.outputs) & set(inside.args), inside
    assert inside.bytes > 0.9 * 2 * 4 * 64 * 96 * 0.9


@pytest.mark.long
def test_a_halo_goes_beside_kernels_that_need_none_of_it(ranks):
    ranks(2, """
        import re
        def step(u, w):
            v = dist.halo(u, 1)
            return v[2:] + v[:-2], tg.tanh(w @ w)
        traced = tg.trace(step)
        u, w = tg.arange(600.0).reshape(30, 20) + rank, tg.ones(300, 300) / 256
        for _ in range(3):
            for a, b in zip(traced(u, w), step(u, w)):
                same(a, b.numpy())
        found = re.findall("halo: host code that begins here and overlaps with (\\\\w+) launch", traced.explain())
        assert len(found) == 1 and "no" not in found, traced.explain()
    """)


UNTRACED = """
    from tracegrad.nn.parallel import DistributedDataParallel, _Underway
    from tracegrad.runtime.launch import Executable
    tg.config.eager = False                                 # kernels for small work, too
    log, enqueue, ready = [], Executable._enqueue, _Underway.ready
    def enqueued(self, items):
        log.extend("k" * len(items))
        enqueue(self, items)
    def heard(self, leaf, arrival):
        before = len(self.sent)
        log.append("g")
        ready(self, leaf, arrival)
        log.extend("s" * (len(self.sent) - before))
    Executable._enqueue, _Underway.ready = enqueued, heard
    def train(width, steps=6, accumulated=1):
        tg.manual_seed(0)
        net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.Tanh())))
        model = DistributedDataParallel(net, bucket_cap_mb=width * (width + 1) * 4 / (1 << 20))       # a weight, a bucket
        optimizer = tg.optim.Adam(model.parameters(), lr=0.01)
        rng = np.random.default_rng(rank)
        for k in range(steps):
            if k % accumulated == 0:
                optimizer.zero_grad()
            log.clear()
            x, y = (tg.from_numpy(rng.normal(size=(16, width)).astype(np.float32)) for _ in range(2))
            ((model(x) - y) ** 2).mean().backward()
            order = "".join(log)
            optimizer.step()
        return order, b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    for width, accumulated in ((24, 1), (200, 1), (24, 2)):
        order, values = train(width, accumulated=accumulated)
        begun = order.index("s")
        assert order.count("g") == 8 and order.count("s") == 5, order
        assert "g" in order[begun:] and "k" in order[begun:order.rindex("g")], order      # neither gradients nor kernels are all there
        before, DistributedDataParallel.before_backward = DistributedDataParallel.before_backward, lambda self, reached: None
        after, same_values = train(width, accumulated=accumulated)
        DistributedDataParallel.before_backward = before
        assert "g" not in after and values == same_values
        everybody = [None] * size
        dist.all_gather_object(everybody, values)
        assert everybody.count(everybody[0]) == size
    both = [DistributedDataParallel(nn.Linear(24, 2)) for _ in range(2)]
    for _ in range(5):
        log.clear()
        for model in both:
            model.zero_grad()
        (both[0](tg.ones(2, 24) + rank) + both[1](tg.ones(2, 24))).sum().backward()
        same(both[0].module.weight.grad, np.full((2, 24), size + 1))
    assert "g" not in log and "k" in log                    # two models: an order for each would not be one for both
"""


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_untraced_the_first_bucket_is_sent_before_the_last_gradient_is_there(ranks, count):
    """From the third backward of a structure on, and with the bits of one that sends when it has ended; also of gradients added up."""
    ranks(count, UNTRACED)


ORDER = """
    shown = []
    agree = dist.exchange.Exchange.agree
    def noted(self):
        shown.append((self.who, self.shown))
        agree(self)
    dist.exchange.Exchange.agree = noted
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 1, bias=False), nn.Linear(2, 4, bias=False)
        def forward(self, x):
            return self.last(self.first(x))
    for traced in (False, True):
        model = nn.parallel.DistributedDataParallel(Backwards(), bucket_cap_mb=1e-5)
        def step(x):
            model(x).sum().backward()
        run = tg.trace(step) if traced else step
        for _ in range(4):                                  # also one that is recalled
            shown.clear()
            model.zero_grad()
            run(tg.ones(3, 2))
            found = [s for who, s in shown if who == "all_reduce"]
            assert found == ["float32[4], avg, last.weight", "float32[8], avg, first.weight"], shown
"""


def test_buckets_go_in_the_order_in_which_backward_has_the_gradients(ranks):
    """Whatever the order in which the module has its layers; ranks that differ in it hear of it."""
    ranks(2, ORDER)


@pytest.mark.long
def test_ranks_that_use_layers_in_another_order_hear_of_it(ranks):
    told = ranks(2, """
        class Swapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            def forward(self, x):
                return self.b(self.a(x)) if rank else self.a(self.b(x))
        model = nn.parallel.DistributedDataParallel(Swapped())
        model(tg.ones(1, 2)).sum().backward()
    """, code=1)
    assert "the ranks do not do the same" in told
    assert "all_reduce(float32[12], avg, a.weight, b.weight, a.bias, b.bias)" in told
    assert "all_reduce(float32[12], avg, b.weight, a.weight, b.bias, a.bias)" in told


def test_the_first_bucket_is_small():
    """1 MiB, then 25, as torch has them; with bucket_cap_mb all are of one size."""
    from tracegrad.nn.parallel import _buckets  # noqa: PLC0415

    tensors = [tg.zeros(1 << 16) for _ in range(10)]                     # 256 KiB each
    assert [len(b) for b in _buckets(tensors, 25 << 20, 1 << 20)] == [4, 6]
    assert [len(b) for b in _buckets(tensors, 1 << 19)] == [2] * 5


@pytest.mark.long
@pytest.mark.parametrize("wrap", ["tg.trace", "lambda f: f"])
def test_a_rank_that_fails_with_messages_on_their_way_ends_the_others(ranks, wrap):
    told = ranks(2, f"""
        tg.config.eager = False
        table = nn.Embedding(5, 4)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(table, nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), bucket_cap_mb=1e-5)
        def step(i):
            model(i).sum().backward()
        step = ({wrap})(step)
        for _ in range(5):
            model.zero_grad()
            step(tg.tensor([1, 2]))
        model.zero_grad()
        step(tg.tensor([1, 2 + 5 * rank]))
    """, code=1)
    assert "rank 1 failed with IndexOutOfRange" in told
    assert "rank 0 waited for it at <string>:" in told
