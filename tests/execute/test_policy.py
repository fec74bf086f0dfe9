"""The two backends of untraced work (execute/policy.py): the same results, errors and effects by both, and a switch that depends on counts
alone."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.codegen import compiler
from tracegrad.execute import eager_executor, policy
from tracegrad.execute import program as tg_program
from tracegrad.execute.realize import Work
from tracegrad.graph.primitive import REGISTRY
from tracegrad.nn import functional as F
from tracegrad.runtime.buffer import host_buffer
from tracegrad.runtime.programs.background import in_background
from tracegrad.runtime.staging import View
from tracegrad.support import cache

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(tg.device().kind == "numpy" or not tg.device().in_host_memory, reason="one way only on this device")


def forget():
    """Nothing is known of work that came before, nor counted."""
    cache.clear(["programs", "recipes"])
    policy.counts.clear()
    policy.reasons.clear()


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Eager, and nothing known from other tests."""
    tg.flush()
    monkeypatch.setattr(tg.config, "eager", True)
    forget()
    policy.eager_calls[0] = 0


@pytest.fixture
def impatient(monkeypatch):
    """As if a build took no time: a structure is numpy's for `impatient(uses)` uses, the thread compiles from a quarter of them on.

    All work is deferred, small operations, too.
    """
    monkeypatch.setattr(eager_executor.EagerCall, "arrays", lambda *given: None)

    def set_patience(uses):
        monkeypatch.setattr(policy, "_tier_up", lambda order, device: (uses, ""))
    return set_patience


def with_kernels(fn):
    """What fn returns if kernels do everything."""
    tg.flush()
    tg.config.eager = False
    try:
        result = fn()
        tg.flush()
        return result
    finally:
        tg.config.eager = True


def values(results):
    return [r.detach().numpy() for r in results]


def functions(dtype):
    """Many results, of ordinary sizes: values, gradients and second derivatives."""
    rng = np.random.default_rng(3)

    def given(*shape):
        return tg.tensor(rng.standard_normal(shape).astype(dtype))

    x, w, square, image, kernel = given(33, 65), given(65, 7), given(31, 31), given(2, 4, 13, 16), given(6, 2, 3, 3)
    index = tg.tensor(rng.integers(0, 33, 100))
    mask = x > 0.3
    half = x.to(tg.float16)
    results = [
        x * 2 + 1, x[:, 3:60:2].flip(0), (x @ w).softmax(1), x.logsumexp(0), x.sum((0, 1)), x.mean(1), x.var(0), x.std(), x.amax(0),
        x.argmin(1), x.sort(0)[0], x.topk(5, 1)[1], x.cumsum(1), tg.cumprod(x[:, :5], 0), x.median(1)[0], x[index], tg.where(mask, x, -x),
        x.masked_fill(mask, float("-inf")), mask.sum(0), x.gather(1, (index[:33] % 65).unsqueeze(1)), tg.cat([x, x * 2], 1),
        tg.stack([w, w]), tg.zeros(33, 5).index_add(0, index, given(100, 5).to(tg.float32)),
        F.conv2d(image, kernel, padding=1, groups=2, stride=2),
        F.max_pool2d(image, 3, 2), F.avg_pool2d(image, 2), F.layer_norm(x, (65,)), F.gelu(x), tg.einsum("ij,kj->ik", x, x), square.tril(1),
        F.cross_entropy(x, index[:33]), half.sum(0), half @ half.T, (half * 100).cumsum(0), x.to(tg.int32) // 2, tg.log(x),
        tg.sqrt(x), 1 / (x - x), x.prod(1), x.roll(3, 1), F.pad(x, (1, 2), value=4.0), x.round(), x.to(tg.bool_),
        tg.ones(70000, 2, dtype=tg.float32).sum(0), tg.ones(5000).to(tg.float16).sum(),
    ]
    a, b = x.clone().requires_grad_(), kernel.clone().requires_grad_()
    loss = (F.gelu(a @ w) ** 2).mean() + F.conv2d(image, b, groups=2).tanh().sum() + a.sort(1)[0][:, 3].sum() + a[index].exp().mean()
    loss.backward()
    results += [loss, a.grad, b.grad]
    results.append(tg.grad(lambda v: (tg.grad(lambda u: (u.tanh() ** 3).sum())(v) ** 2).sum())(x))
    return results


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_both_backends_compute_the_same(dtype):
    found = values(functions(dtype))
    assert tg.report()["compiled"] == 0
    wanted = with_kernels(lambda: values(functions(dtype)))
    assert tg.report()["compiled"] > 0
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), k
        tolerance = {"float16": 4e-3, "float32": 3e-5, "float64": 1e-11}.get(str(a.dtype), 0)
        largest = max(1.0, np.abs(b[np.isfinite(b)]).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest, err_msg=str(k))


def test_random_streams_are_the_same():
    def draw():
        tg.manual_seed(7)
        drawn = [tg.rand(100), tg.randint(0, 1000, (65,)), tg.randperm(33), F.dropout(tg.ones(257), 0.3), tg.rand(3, dtype=tg.float64)]
        drawn[0].numpy()
        return values([*drawn, tg.randint(-5, 5, (7,)), tg.bernoulli(tg.full((100,), 0.3)), tg.randn(100)])

    found, wanted = draw(), with_kernels(draw)
    for a, b in zip(found[:-1], wanted[:-1], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(found[-1], wanted[-1], rtol=1e-5, atol=1e-6)


def test_hooks_and_updates_in_place_are_the_same():
    def run():
        seen = []
        base = tg.arange(12.0).reshape(3, 4)
        view = base[1:, ::2]
        view += 10
        base.T[0] = -1.0
        leaf = tg.ones(3, requires_grad=True)
        inner = leaf * base.sum(1)
        inner.register_hook(lambda g: seen.append(g.tolist()) or g * 2)
        inner.sum().backward()
        with tg.no_grad():
            leaf.sub_(leaf.grad, alpha=0.5)
        return [base.tolist(), view.tolist(), seen, leaf.tolist(), leaf.grad.tolist()]

    assert run() == with_kernels(run)


# ---------------------------------------------------------------------------------------------------------------- switching


def step(w, x, lr):
    """A training step of a structure of its own; returns the loss's bits."""
    loss = ((x @ w).tanh() - 0.25).square().mean()
    loss.backward()
    with tg.no_grad():
        w -= lr * w.grad
        w.grad = None
    return loss.detach().numpy().tobytes()


def train(steps):
    tg.manual_seed(0)
    w, x = tg.randn(13, 1).requires_grad_(), tg.randn(65, 13)
    return [step(w, x, 0.1 / (1 + k)) for k in range(steps)], w.detach().numpy()


def test_the_same_run_gives_the_same_bits_and_switches_at_the_same_use(impatient):
    impatient(6)
    losses, w = train(16)
    first = tg.report()
    assert first["interpreted"] > 0
    assert first["compiled"] > 0
    forget()
    again, v = train(16)
    second = tg.report()
    assert losses == again
    np.testing.assert_array_equal(w, v)
    assert (first["interpreted"], first["compiled"]) == (second["interpreted"], second["compiled"])
    exact = with_kernels(lambda: train(16))[1]
    np.testing.assert_allclose(w, exact, rtol=1e-4, atol=1e-6)


def test_counts(impatient):
    impatient(5)
    x = tg.tensor(np.arange(7.0))
    ways = []
    for k in range(9):
        before = tg.report()
        np.testing.assert_array_equal((x * (k + 1) + 0.5).numpy(), np.arange(7.0) * (k + 1) + 0.5)     # whatever the constants
        after = tg.report()
        ways.append("".join(what[0] for what in ("interpreted", "compiled") if after[what] > before[what]))
    assert ways == ["i"] * 5 + ["c"] * 4
    assert (tg.report()["background"], tg.report()["programs"]) == (1, 0)
    assert tg.report()["reasons"] == {"used often": 4}
    (x * 2 + tg.ones(7)).numpy()                                                                           # another one starts anew
    assert tg.report()["interpreted"] == 6


def test_what_the_thread_compiled_is_what_is_used(impatient, monkeypatch):
    impatient(3)
    where = []
    real = tg_program.Program.compile
    monkeypatch.setattr(tg_program.Program, "compile", lambda *args: (where.append(threading.current_thread().name), real(*args))[1])
    for _ in range(4):
        (tg.arange(7.0, requires_grad=True) * 3).detach().numpy()
        time.sleep(0.3)                      # the thread has time to begin
    assert where == ["tracegrad-compile_0"]


def test_an_error_of_the_thread_is_raised_where_the_kernels_are_first_needed(impatient, monkeypatch):
    impatient(3)

    def refuse(*args, **options):
        raise tg.BuildError("no kernels today", "", "")

    x = tg.tensor(np.arange(5.0))
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "compile_graph", refuse)
        for _ in range(3):
            assert (x - 3).tolist() == [-3, -2, -1, 0, 1]
        y = x - 3
        with pytest.raises(tg.BuildError, match=r"no kernels today.*test_policy\.py"):             # it ends with the user's line
            y.tolist()
    assert y.tolist() == [-3, -2, -1, 0, 1]                    # it stayed pending, and the next try is a new one
    assert (x - 3).tolist() == [-3, -2, -1, 0, 1]


def test_what_is_compiled_once_it_came_often_is_worth_it():
    """Not where calling numpy takes longer than what it computes; but long loops, each of which is one kernel."""
    def tier_up(x):
        return policy._tier_up(Work([x._n], x.device).order, x.device)[0]

    small, medium = tg.ones(33, 7) * 1.0, tg.ones(300, 257) * 1.0
    tg.flush()
    assert tier_up((small.exp() * 2.0 + small).sum()) == policy.NEVER
    assert 1 < tier_up((medium.exp() * 2.0 + medium).sum()) < 10_000
    for length in (5, 500):
        state = tg.nn.RNN(7, 7)(tg.ones(length, 7))[1]                # one loop
        assert any(n.fn.family == "loop" for n in Work([state._n], state.device).order)
        assert (tier_up(state) == policy.NEVER) == (length == 5)


def test_large_work_and_the_users_kernels_are_compiled_the_first_time():
    assert policy._tier_up([(tg.zeros(3) + 1)._n], tg.device())[0] > 100
    n = 5000
    a = tg.zeros(n, n)._n
    assert policy._tier_up([(a @ a)], tg.device())[0] == 0
    twice = tg.elementwise("2 * x", args=["x"])
    np.testing.assert_array_equal((twice(tg.tensor([1.0, 1.0])) + 1).numpy(), 3)
    report = tg.report()
    assert (report["interpreted"], report["compiled"], report["programs"]) == (0, 1, 1)
    assert "user's" in next(iter(report["reasons"]))
    assert tg.host_call(np.sort, tg.tensor([3.0, 1.0]) * 2).tolist() == [2, 6]


def test_the_switch(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", False)
    (tg.arange(5) * 7).numpy()
    assert tg.report()["reasons"] == {"config.eager is off": 1}


@pytest.mark.recall
def test_report_reads_well():
    x = tg.tensor([0.25] * 23)                      # of a shape that no other test has: what they did is known
    for _ in range(5):
        (x - 123.0).numpy()
    report = tg.report()
    assert (report["interpreted"], report["eager"]) == (2, 3)         # the third call of a kind is known
    assert "2 times that pending work was done with numpy" in str(report)
    assert "3 small operations" in str(report)
    names = [line.partition("in the cache of ")[2].split(" (")[0] for line in str(report).splitlines() if "in the cache of " in line]
    assert names == [name for name in report["caches"] if "." not in name], "functions of ours are no names for a user"
    report["caches"]["tracegrad.a"] = report["caches"]["tracegrad.b"] = dict(entries=4, size=4)
    assert str(report).splitlines()[-1].endswith("functions (tg.report()['caches'])")
    assert set(report) == {"eager", "interpreted", "compiled", "programs", "background", "reasons", "lowered", "read", "built", "loaded",
                           "shared", "caches"}


def test_few_structures_are_remembered(monkeypatch):
    known = tg_program.programs
    monkeypatch.setattr(known, "budget", 50)
    for n in range(1, 40):
        (tg.ones(n) * 2 + 1).numpy()
    assert known.size() <= 50
    assert len(known.entries()) < 39
    assert known.size() == sum(program.size for _, program in known.entries())


def test_memory_that_numpy_does_not_get_is_the_error_that_kernels_raise(monkeypatch):
    def refuse(self, x):
        raise MemoryError

    x = tg.tensor([1.0, 4.0])
    with monkeypatch.context() as patched:
        patched.setattr(type(REGISTRY["sqrt"]), "numpy", refuse)
        y = x.sqrt() + 1
        with pytest.raises(tg.OutOfMemoryError, match="sqrt"):
            y.tolist()
    assert y.tolist() == [2, 3]                                # it stayed pending


# ------------------------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("first", ["numpy", "kernels"])
@pytest.mark.parametrize("then", ["numpy", "kernels"])
def test_a_wrong_index_is_told_of_whichever_way_it_was_used(first, then):
    def way(name, fn):
        return with_kernels(fn) if name == "kernels" else fn()

    x = tg.tensor(np.arange(10.0).reshape(5, 2))
    index = tg.tensor([1, 7])

    def gather():
        y, fine = x[index], x * 2                              # the line that the error names
        tg.flush()
        return y, fine

    bad, fine = way(first, gather)
    after = way(then, lambda: bad.sum(0) + 1)
    way(then, tg.flush)
    assert fine.tolist() == (np.arange(10.0).reshape(5, 2) * 2).tolist()
    with pytest.raises(tg.IndexOutOfRange, match=r"test_policy\.py:\d+: index holds 7, out of range .* valid are -5 to 4"):
        after.numpy()
    with pytest.raises(tg.IndexOutOfRange):
        bad.numpy()
    tg.synchronize()
    index.copy_(tg.tensor([1, 4]))
    assert x[index].tolist() == [[2, 3], [8, 9]]


def test_an_error_that_nobody_read_is_raised_by_synchronize():
    y = tg.ones(3)[tg.tensor([5])]
    tg.flush()
    with pytest.raises(tg.IndexOutOfRange, match="holds 5"):
        tg.synchronize()
    tg.synchronize()
    assert y.shape == (1,)


# ----------------------------------------------------------------------------------------------------------------- buffers


def test_traced_functions_take_and_update_what_numpy_made():
    @tg.trace
    def update(state, x):
        state.add_(x * 2)
        return state.sum()

    state, x = tg.zeros(300) + 1, tg.arange(300.0)
    state.numpy()
    kept = np.asarray(state)                                   # a view of the value: it must not change
    for k in range(1, 4):
        assert update(state, x).item() == pytest.approx(300 + 2 * k * 300 * 299 / 2)
    np.testing.assert_array_equal(kept, 1)
    np.testing.assert_array_equal((state * 1).numpy(), 1 + 6 * np.arange(300.0))
    assert tg.report()["compiled"] == 0


def test_values_go_to_the_device_and_back():
    device = tg.device()
    array = np.arange(33, dtype=np.float32)
    buffer = host_buffer(device, array)
    np.testing.assert_array_equal(buffer.view((33,), np.float32), array)
    twin = buffer.copy()
    seen = buffer.view((33,), np.float32)
    assert np.shares_memory(seen, array)
    assert buffer.mem is buffer.mem                            # now it is the device's
    np.testing.assert_array_equal(buffer.download((3, 11), np.float32), array.reshape(3, 11))
    np.testing.assert_array_equal(buffer.contents((33,), np.float32), array)
    assert not np.shares_memory(buffer.view((33,), np.float32), array)
    buffer.write(array * 2)
    np.testing.assert_array_equal(twin.download((33,), np.float32), array)
    np.testing.assert_array_equal(seen, array)


def test_an_array_that_others_write_is_not_kept():
    block = np.zeros(1 << 14, np.uint8)
    array = block[-block.ctypes.data % 4096:][:40].view(np.float32)
    x = tg.asarray(array, copy=False)
    y, part = x.clone(), x[2:5].clone()
    tg.flush()
    array[:] = 5
    assert y.tolist() == [0] * 10
    assert part.tolist() == [0] * 3
    assert (x + 0).tolist() == [5] * 10


def test_a_part_does_not_keep_the_whole():
    x = tg.zeros(1000, 100) + 1
    x.numpy()
    part = x[5].clone()
    array = np.asarray(part)
    del x
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base.mapped if isinstance(array.base, View) else array.base
    assert array.nbytes == 400


# ----------------------------------------------------------------------------------------------------------------- threads


def test_threads(impatient):
    impatient(4)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for k in range(12):
            a = rng.standard_normal((7, 5)).astype(np.float32)
            w = tg.tensor(a, requires_grad=True)
            (w.exp() * float(seed)).sum().backward()
            if not np.allclose(w.grad.numpy(), seed * np.exp(a), rtol=1e-5):
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert tg.report()["compiled"] > 0


def test_jobs():
    gate = threading.Event()
    slow = in_background(lambda: gate.wait(10))
    waiting = in_background(threading.current_thread)
    assert waiting.result() is threading.current_thread()      # it had not begun: made here, without waiting for the other
    gate.set()
    assert slow.result() is True
    assert slow.result() is True
    assert in_background(lambda: 1 / 0).result() is None


# --------------------------------------------------------------------------------------------------------------- processes


def test_small_work_asks_nothing_of_the_compiler():
    """In a process of its own: neither the code generator nor networkx is loaded, no kernel is tried or built."""
    program = "\n".join([
        "import sys, contextlib, io", "import tracegrad as tg",
        "from benchmarks.frameworks import namespace", "from benchmarks.first_minute import LINES",
        "names = vars(namespace('tracegrad')).copy()", "tg.manual_seed(0)",
        "with contextlib.redirect_stdout(io.StringIO()):", "    for line in LINES: exec(line, names)",
        "assert tg.report()['compiled'] == 0, tg.report()", "assert 'target' not in vars(tg.device()), 'trial kernels'",
        "assert not {'networkx', 'tracegrad.codegen.compiler'} & set(sys.modules)", "print('fine')"])
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr


def test_a_process_ends_while_a_program_is_compiled():
    program = "\n".join([
        "import tracegrad as tg", "from tracegrad.execute import policy as eager", "eager._tier_up = lambda order, device: (2, '')",
        "for k in range(2): (tg.randn(33, 5) @ tg.randn(5, 7)).softmax(1).numpy()", "print('fine')"])
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr
    assert time.perf_counter() - start < 60
