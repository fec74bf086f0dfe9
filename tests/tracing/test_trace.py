"""@trace: recording, replay, guards, effects, errors. Each runs on the default device and on the interpreter (fixture `device`)."""

from __future__ import annotations

import gc
import math
import sys
import threading
from itertools import product

import networkx as nx
import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tests.helpers import values
from tests.helpers.marks import DEVICES, one_of
from tracegrad.graph.ir import Node
from tracegrad.runtime import launch
from tracegrad.runtime.programs import short_run

SCALE = 2.0
TABLE: dict[str, float] = {"factor": 3.0}


def close(actual, expected, tolerance=1e-5):
    values.close(actual, expected, tolerance)


def as_untraced(name, f, device):
    """A traced f(x, number) gives at every number what it gives untraced, value and gradient."""
    for dtype in (tg.float64, tg.float32):
        traced, slope = tg.trace(f), tg.trace(tg.grad(lambda x, c: (f(x, c) * 1.0).sum()))
        for c in (0.3, 0.7, 0.45):
            x = tg.linspace(-1.1, 1.3, 10, dtype=dtype) * c
            tolerance = 1e-12 if dtype == tg.float64 and device.fp64 else 2e-6
            found, wanted = traced(x, c), f(x, c)
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
            close(found, wanted, tolerance)
            close(slope(x, c), tg.grad(lambda x, c: (f(x, c) * 1.0).sum())(x, c), tolerance)


@one_of(8, "name", ["lerp", "quantile", "xlog1py", "xlogy"])
def test_a_python_float_is_of_the_tensors_dtype(device, name):
    """A choice between two numbers of run time made float32 of them; of float32 tensors quantile refused one."""
    as_untraced(name, {
        "lerp": lambda x, c: tg.lerp(x, x * x, c), "quantile": tg.quantile,
        "xlog1py": tg.special.xlog1py, "xlogy": tg.xlogy,
    }[name], device)


@one_of(4, "name", ["pad", "full_like", "hardtanh", "celu", "softshrink", "smooth_l1_loss", "nan_to_num",
                                  "triplet_margin_loss", "isclose"])
def test_functions_of_numbers_take_a_python_float_that_changes(device, name):
    F = tg.nn.functional
    as_untraced(name, {
        "pad": lambda x, c: F.pad(x, (2, -1), value=c) * tg.arange(11.0).to(x.dtype), "full_like": lambda x, c: tg.full_like(x, c) * x,
        "hardtanh": lambda x, c: F.hardtanh(x, -c, c), "celu": F.celu, "softshrink": F.softshrink,
        "smooth_l1_loss": lambda x, c: F.smooth_l1_loss(x, x * x, beta=c),
        "nan_to_num": lambda x, c: tg.nan_to_num(tg.where(x > 0, x, np.nan) / (x > 0.5), c, 2 * c, -c),
        "triplet_margin_loss": lambda x, c: F.triplet_margin_loss(x[None], 2 * x[None], 3 * x[None], margin=c),
        "isclose": lambda x, c: x * tg.isclose(x, x.abs() * 0.5, rtol=c, atol=c),
    }[name], device)


def test_replay_gives_what_the_body_gives(device):
    @tg.trace
    def f(x, y):
        return (x @ y).relu() + 1.0

    for seed in range(3):
        rng = np.random.default_rng(seed)
        a, b = rng.standard_normal((4, 3)), rng.standard_normal((3, 5))
        close(f(tg.tensor(a), tg.tensor(b)), np.maximum(a @ b, 0) + 1)
    assert len(f.compilations) == 1


def test_a_new_shape_is_a_new_recording_and_the_old_one_stays(device):
    @tg.trace
    def f(x):
        return x.sum()

    for n in (3, 4, 3, 4, 5):
        assert f(tg.ones(n)).item() == n
    assert len(f.compilations) == 3


def test_python_floats_are_run_time_and_ints_are_static(device):
    @tg.trace
    def f(x, lr, n):
        for _ in range(n):
            x = x - lr
        return x

    for lr in (0.5, 0.25, 1.0, -3.5):
        assert f(tg.ones(()), lr, 2).item() == 1 - 2 * lr
    assert len(f.compilations) == 1
    assert f(tg.ones(()), 1.0, 3).item() == -2
    assert len(f.compilations) == 2


F = tg.nn.functional
# A float that a schedule changes: what these functions check it for, they cannot check in a trace.
OF_A_FLOAT = {
    "smooth_l1_loss": lambda x, s: F.smooth_l1_loss(x, x * 0, beta=s), "huber_loss": lambda x, s: F.huber_loss(x, x * 0, delta=s + 0.1),
    "hardtanh": lambda x, s: F.hardtanh(x, -s, s), "hardtanh of integers": lambda x, s: F.hardtanh(tg.arange(-3, 4), -s, s),
    "softshrink": F.softshrink, "celu": lambda x, s: F.celu(x, s + 0.5),
    "rrelu": lambda x, s: F.rrelu(x, s, s), "isclose": lambda x, s: tg.isclose(x, x + 0.3, atol=s),
    "renorm": lambda x, s: x.renorm(2, 0, s),
    "triplet_margin_loss": lambda x, s: F.triplet_margin_loss(x, x * 2, x * 3, margin=s + 0.1),
    "pad": lambda x, s: F.pad(x, (1, 2, -1, 0), value=s), "nan_to_num": lambda x, s: tg.nan_to_num(x / x.round(), nan=s, posinf=-s),
    "fill_diagonal_": lambda x, s: x.clone().fill_diagonal_(s), "full_like": tg.full_like,
    "tensor": lambda _, s: tg.tensor(s), "as_tensor": lambda _, s: tg.as_tensor(s),
    "as_tensor of a list": lambda _, s: tg.as_tensor([s, 2 * s, 1], dtype=tg.float64), "asarray": lambda _, s: tg.asarray((s, 1.0)),
    "tensor of a list": lambda _, s: tg.tensor([[s, 1], [0, 2 * s]]),
    "linspace": lambda x, s: tg.linspace(s, 2.0, 7), "gumbel_softmax": lambda x, s: F.gumbel_softmax(x, s + 0.1),
    "normal_": lambda x, s: x.clone().normal_(1.0, s), "uniform_": lambda x, s: x.clone().uniform_(-s, s),
}  # fmt: skip


@one_of(3, "name", OF_A_FLOAT)
def test_functions_take_run_time_floats_as_they_take_floats(name, device):
    plain, traced = OF_A_FLOAT[name], tg.trace(OF_A_FLOAT[name])
    x = tg.tensor(np.random.default_rng(0).normal(size=(5, 7)).astype("float32"))
    for s in (0.3, 0.0, 1.5, 0.3, 2.5):
        found = []
        for f in (plain, traced):
            tg.manual_seed(3)
            found.append(f(x, s))
        assert found[0].dtype == found[1].dtype
        np.testing.assert_allclose(found[1].numpy(), found[0].numpy(), rtol=1e-5, atol=1e-6)
    assert len(traced.compilations) == 1


def test_the_gradient_of_a_smooth_loss_whose_width_is_a_run_time_zero(device):
    x = tg.tensor([-1.5, 0.0, 0.2], requires_grad=True)
    f = tg.trace(lambda x, s: tg.grad(lambda v: F.smooth_l1_loss(v, v.detach() * 0, "sum", s))(x))
    assert f(x, 0.0).tolist() == [-1, 0, 1]


def test_who_reads_a_float_of_a_trace_is_told_what_it_is(on_numpy):
    for read in (lambda x, s: x if s > 0.5 else -x, lambda x, s: x * math.exp(-s), lambda x, s: x * max(0.0, 1 - s), F.dropout):
        with pytest.raises(tg.TraceError, match=r"a float that was given to the traced function.*keep it in an attribute"):
            tg.trace(read)(tg.ones(3), 0.3)
    with pytest.raises(tg.TraceError, match="tensors have no values yet"):
        tg.trace(lambda x, s: x if x.sum() > s else -x)(tg.ones(3), 0.3)


def test_numpys_numbers_and_dtypes_are_arguments(device):
    @tg.trace
    def f(x, number, dtype):
        return (x * number).to(dtype)

    for number in (2, np.int64(3), np.float64(0.5), True, np.bool_(True)):
        for dtype in (tg.float32, tg.int32):
            found = f(tg.tensor([2.0, 4.0]), number, dtype)
            assert found.dtype == dtype
            assert found.tolist() == [2 * number, 4 * number]


def test_a_float_argument_keeps_float64_precision(device):
    @tg.trace
    def f(x, lr):
        return x * lr

    if device.kind != "numpy" and not device.target.fp64:
        pytest.skip("no float64")
    assert f(tg.ones((), dtype=tg.float64), 0.1).item() == 0.1
    assert f(tg.ones((), dtype=tg.float64), 1 / 3).item() == 1 / 3


def test_run_time_numbers_are_passed_as_bools_and_halves_too(device):
    @tg.trace
    def f(x, s):
        return tg.where(s > 1.0, x * s, -x)

    for dtype in (tg.float16, tg.float32):
        x = tg.ones(20, dtype=dtype)
        for s in (0.5, 2.0):
            result = f(x, s)
            assert result.dtype == dtype
            close(result, np.full(20, s if s > 1 else -1))
    assert len(f.compilations) == 2


def test_one_program_calls_functions_of_several_dtypes_with_constants(device):
    @tg.trace
    def f(a, b, c, d):
        return a.pow(float("inf")), b.pow(float("inf")), 3 ** c, 3 ** d

    got = f(tg.full((3,), 0.5), tg.full((3,), 0.5, dtype=tg.float64), tg.arange(3, dtype=tg.int8), tg.arange(3, dtype=tg.int16))
    for value, expected in zip(got, ([0, 0, 0], [0, 0, 0], [1, 3, 9], [1, 3, 9]), strict=True):
        close(value, expected)


def test_containers_go_in_and_out(device):
    @tg.trace
    def f(batch, *, scale=1.0):
        return {"sum": batch["a"] + batch["b"][0], "flag": True, "list": [batch["a"] * scale, None]}

    out = f({"a": tg.ones(2), "b": (tg.full((2,), 4.0),)}, scale=3.0)
    close(out["sum"], [5, 5])
    close(out["list"][0], [3, 3])
    assert out["flag"] is True
    assert out["list"][1] is None


def test_a_changed_global_makes_a_new_recording(device):
    global SCALE

    @tg.trace
    def f(x):
        return x * SCALE

    SCALE = 2.0
    assert f(tg.ones(())).item() == 2
    SCALE = 5.0
    try:
        assert f(tg.ones(())).item() == 5
    finally:
        SCALE = 2.0
    assert f(tg.ones(())).item() == 2
    assert len(f.compilations) == 2, "the first recording fits again"


def test_a_changed_dictionary_entry_closure_and_attribute_are_seen(device):
    class Settings:
        power = 2

    settings = Settings()
    settings.power = 2
    offset = 1.0

    @tg.trace
    def f(x):
        return x**settings.power * TABLE["factor"] + offset

    assert f(tg.full((), 3.0)).item() == 28
    settings.power = 3
    assert f(tg.full((), 3.0)).item() == 82
    TABLE["factor"] = 1.0
    try:
        assert f(tg.full((), 3.0)).item() == 28
    finally:
        TABLE["factor"] = 3.0
    offset = 0.0
    assert f(tg.full((), 3.0)).item() == 81


def test_a_rebound_closure_tensor_is_seen(device):
    w = tg.ones(3)

    @tg.trace
    def f(x):
        return (x * w).sum()

    assert f(tg.ones(3)).item() == 3
    w = tg.full((3,), 2.0)
    assert f(tg.ones(3)).item() == 6


def test_a_closure_tensor_is_read_at_every_call(device):
    w = tg.ones(3)

    @tg.trace
    def f(x):
        return (x * w).sum()

    assert f(tg.ones(3)).item() == 3
    w.mul_(4)
    assert f(tg.ones(3)).item() == 12
    assert len(f.compilations) == 1


def test_a_tensor_reached_out_of_sight_is_an_error(device):
    hidden = iter([tg.ones(3)] * 9)

    @tg.trace
    def f(x):
        return x + next(hidden)

    with pytest.raises(tg.TraceError, match=r"test_trace.py.*pass it as an argument"):
        f(tg.ones(3))


def test_branching_on_a_value_names_the_line_and_the_way_out(device):
    @tg.trace
    def f(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(tg.TraceError, match=r"bool\(\) at .*test_trace.py:\d+.*tg.where"):
        f(tg.ones(3))


@pytest.mark.parametrize(
    "read", [lambda x: x.item(), lambda x: x.numpy(), float, lambda x: x.tolist(), np.asarray]
)
def test_reading_a_value_is_an_error(device, read):
    @tg.trace
    def f(x):
        read(x.sum())
        return x

    with pytest.raises(tg.TraceError, match="host_call"):
        f(tg.ones(3))


def test_a_leaked_tracer_says_so(device):
    leaked = []

    @tg.trace
    def f(x):
        leaked.append(x * 2)
        return x

    f(tg.ones(3))
    with pytest.raises(tg.TraceError, match="used after the call ended"):
        leaked[0] + 1


def test_a_failed_recording_changes_nothing(device):
    w = tg.ones(3, requires_grad=True)

    @tg.trace
    def f(x):
        (x * w).sum().backward()
        with tg.no_grad():
            w.mul_(2)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        f(tg.ones(3))
    assert w.grad is None
    close(w.detach(), [1, 1, 1])
    close((w * 2).detach(), [2, 2, 2])


def test_in_place_changes_of_outside_tensors_are_written_back(device):
    count = tg.zeros(2)
    view = count[0:1]

    @tg.trace
    def f(x):
        count.add_(x)
        return count * 10

    for n in range(1, 4):
        close(f(tg.ones(2)), [10 * n, 10 * n])
        close(count, [n, n])
        close(view, [n])
    assert len(f.compilations) == 1


def test_arguments_can_be_changed_in_place(device):
    @tg.trace
    def f(x):
        x.mul_(3)

    a, b = tg.ones(2), tg.full((2,), 5.0)
    f(a)
    f(b)
    close(a, [3, 3])
    close(b, [15, 15])


@one_of(2, ("changes", "device"), product([False, True], DEVICES), indirect=["device"])
def test_a_view_of_another_argument_is_returned_as_that_of_this_call(device, changes):
    def f(x, y, z):
        if changes:
            y.mul_(2)
        return x, x[1:], y, z

    traced = tg.trace(f)
    for k in range(4):
        bases = [tg.arange(20.0).reshape(4, 5) + k for _ in range(2)]
        found, wanted = [fn(b[1], b, b.T[2:]) for fn, b in zip((traced, f), bases, strict=True)]
        for one, other in zip(found, wanted, strict=True):
            close(one, other.numpy())
            one.add_(1)
            other.add_(1)
        close(*[b.numpy() for b in bases])                  # they are views of it
    assert len(traced.compilations) == 1


@pytest.mark.parametrize("fn", [
    lambda x: x.detach(), lambda x: (x, x.detach(), x * 1), lambda x: (x.view(2, 1), x.detach().view(2, 1)), lambda x: x.data,
    lambda x: (lambda y: (y, y.detach(), y[1:].detach()))(x.sin()),
])
def test_what_is_returned_detached_requires_no_grad(fn):
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    traced = tg.trace(fn)
    for _ in range(2):
        found, wanted = traced(x), fn(x)
        for one, other in zip(*[r if isinstance(r, tuple) else (r,) for r in (found, wanted)], strict=True):
            assert one.requires_grad is other.requires_grad
            close(one.detach(), other.detach().numpy())


def test_the_default_dtype_is_a_part_of_the_signature(device):
    if not device.fp64:
        pytest.skip("the device has no float64")

    def f(x):
        return x / 2, tg.zeros(3), x.sqrt(), x * 0.5

    traced = tg.trace(f)
    try:
        for dtype in (tg.float32, tg.float64, tg.float32, tg.float64):
            tg.set_default_dtype(dtype)
            for x in (tg.arange(12), tg.ones(12, dtype=tg.int64)):
                for one, other in zip(traced(x), f(x), strict=True):
                    assert one.dtype == other.dtype == dtype
                    close(one, other.numpy())
    finally:
        tg.set_default_dtype(tg.float32)
    assert len(traced.compilations) == 2
    assert traced.compilations[1] == "the default dtype is float64 now"


def test_an_old_value_that_somebody_holds_survives_in_place_updates(device):
    w = tg.ones(3)
    before = w.clone()
    doubled = w * 2

    @tg.trace
    def f():
        w.add_(1)

    f()
    kept = w.clone()
    f()
    close(before, [1, 1, 1])
    close(doubled, [2, 2, 2])
    close(kept, [2, 2, 2])
    close(w, [3, 3, 3])


def test_a_whole_step_is_one_program(device):
    rng = np.random.default_rng(0)
    w = tg.tensor(rng.standard_normal((4, 2)), requires_grad=True)
    reference = w.detach().numpy().copy()
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 2))

    @tg.trace
    def step(x, y, lr):
        loss = ((x @ w - y) ** 2).sum()
        loss.backward()
        with tg.no_grad():
            w.sub_(lr * w.grad)
        w.grad = None
        return loss

    tx, ty = tg.tensor(x), tg.tensor(y)
    for k in range(6):
        lr = 0.01 / (k + 1)
        error = x @ reference - y
        close(step(tx, ty, lr), (error**2).sum(), 1e-9)
        reference -= lr * 2 * x.T @ error
        close(w.detach(), reference, 1e-9)
    assert len(step.compilations) == 1
    assert w.grad is None
    assert w.requires_grad
    assert w.is_leaf


def test_gradients_accumulate_across_calls(device):
    w = tg.ones(2, requires_grad=True)

    @tg.trace
    def f(x):
        (w * x).sum().backward()

    for n in range(1, 4):
        f(tg.full((2,), 2.0))
        close(w.grad, [2 * n, 2 * n])


def test_traced_and_untraced_loops_agree(device):
    def run(wrap):
        w = tg.full((3,), 0.5, requires_grad=True)

        def step(x):
            loss = (w.exp() * x).sum()
            loss.backward()
            with tg.no_grad():
                w.sub_(0.1 * w.grad)
                w.grad.zero_()
            return loss

        step = wrap(step)
        return [step(tg.tensor([1.0, 2.0, 3.0])).item() for _ in range(5)], w.detach().numpy()

    (a, wa), (b, wb) = run(lambda f: f), run(tg.trace)
    close(a, b, 1e-6)
    close(wa, wb, 1e-6)


def test_backward_goes_through_a_traced_call(device):
    w = tg.full((3,), 2.0, requires_grad=True)

    @tg.trace
    def f(x):
        return (x * w).sin(), x.sum()

    x = tg.tensor([0.1, 0.2, 0.3], requires_grad=True)
    y, s = f(x * 1.5)
    (y.sum() + s).backward()
    inner = np.array([0.1, 0.2, 0.3]) * 1.5
    close(x.grad, 1.5 * (2 * np.cos(2 * inner) + 1))
    close(w.grad, inner * np.cos(2 * inner))


def test_dependent_arguments_of_a_traced_call_are_not_counted_twice(device):
    @tg.trace
    def f(a, b):
        return a * b

    x = tg.tensor(3.0, requires_grad=True)
    y = x * 2
    f(x, y).backward()
    assert x.grad.item() == 12


@pytest.mark.parametrize("order", ["grad of trace", "trace of grad", "trace of grad of trace"])
def test_transforms_nest_with_trace(device, order):
    def f(x):
        return (x**3).sum()

    g = {
        "grad of trace": lambda: tg.grad(tg.trace(f)),
        "trace of grad": lambda: tg.trace(tg.grad(f)),
        "trace of grad of trace": lambda: tg.trace(tg.grad(tg.trace(f))),
    }[order]()
    for _ in range(2):
        close(g(tg.tensor([1.0, 2.0])), [3, 12])


def test_second_order_in_and_through_a_trace(device):
    f = tg.trace(lambda x: (x**3).sum())
    close(tg.grad(lambda x: tg.grad(f)(x).sum())(tg.tensor([1.0, 2.0])), [6, 12])
    close(tg.trace(tg.hessian(lambda x: (x**3).sum()))(tg.tensor([1.0, 2.0])), [[6, 0], [0, 12]])
    close(tg.jvp(f, (tg.tensor([1.0, 2.0]),), (tg.ones(2),))[1], 15)


def test_random_numbers_are_fresh_at_every_replay(device):
    @tg.trace
    def f():
        return tg.rand(4), tg.rand(4)

    tg.manual_seed(7)
    first = [f() for _ in range(3)]
    tg.manual_seed(7)
    eager = [(tg.rand(4), tg.rand(4)) for _ in range(3)]
    for (a, b), (c, d) in zip(first, eager, strict=True):
        close(a, c)
        close(b, d)
        assert not np.allclose(a.numpy(), b.numpy())
    assert not np.allclose(first[0][0].numpy(), first[1][0].numpy())


def test_the_graph_is_a_networkx_multidigraph_of_nodes(device):
    @tg.trace
    def f(x):
        return x * x

    f(tg.ones(3))
    graph = f.graph
    assert isinstance(graph, nx.MultiDiGraph)
    assert nx.is_directed_acyclic_graph(graph)
    assert all(isinstance(n, Node) for n in graph)
    assert [n.fn.name for n in nx.topological_sort(graph)] == ["placeholder", "mul"]
    assert graph.number_of_edges() == 2, "x * x reads x twice"


def test_methods_can_be_traced(device):
    class Model:
        def __init__(self):
            self.w = tg.full((2,), 3.0)
            self.training = True

        @tg.trace
        def forward(self, x):
            return x * self.w if self.training else x

    m = Model()
    close(m.forward(tg.ones(2)), [3, 3])
    m.training = False
    close(m.forward(tg.ones(2)), [1, 1])
    m.training, m.w = True, tg.full((2,), 4.0)
    close(m.forward(tg.ones(2)), [4, 4])


def test_a_numpy_array_inside_a_trace_is_refused(device):
    values = np.ones(3)

    @tg.trace
    def f(x):
        return x + tg.tensor(values)

    with pytest.raises(tg.TraceError, match="frozen"):
        f(tg.ones(3))


def rss_mb():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


@one_of(4, "wrap", [lambda f: f, tg.trace], ids=["untraced", "traced"])
def test_a_thousand_steps_do_not_grow(device, wrap):
    w = tg.full((100, 20), 0.01, requires_grad=True)
    x = tg.ones(16, 100)

    def step(lr):
        loss = ((x @ w).tanh() ** 2).sum()
        loss.backward()
        with tg.no_grad():
            w.sub_(lr * w.grad)
            w.grad = None
        return loss

    step = wrap(step)
    for k in range(50):
        step(1e-4 + k * 1e-7)
    tg.synchronize()
    gc.collect()
    before = rss_mb()
    for k in range(1000):
        step(1e-4 + k * 1e-7)
    tg.synchronize()
    gc.collect()
    assert rss_mb() - before < 10


def test_a_loop_that_never_reads_does_not_grow(device):
    x = tg.ones(1000)
    for _ in range(50):
        x = x * 0.999 + 0.001
    for _ in range(8_000):
        x = x * 0.999 + 0.001
    close(x, np.ones(1000))


def test_twenty_thousand_nodes_pass_without_recursion(device):
    @tg.trace
    def f(x):
        for _ in range(10_000):
            x = x * 0.5 + 1.0
        return x

    if device.kind != "numpy":
        pytest.skip("compiling them is a benchmark row")
    g = tg.trace(tg.grad(lambda x: f(x).sum()))
    close(f(tg.zeros(3)), [2, 2, 2])
    close(g(tg.zeros(3)), [0, 0, 0])


def test_explain_says_why_it_recorded_again(device):
    global SCALE

    @tg.trace
    def f(x, n):
        return x * SCALE * n

    f(tg.ones(3), 1)
    f(tg.ones(4), 1)
    f(tg.ones(4), 2)
    SCALE = 7.0
    try:
        f(tg.ones(4), 2)
    finally:
        SCALE = 2.0
    first, shape, static, changed = f.compilations
    assert first == "first call"
    assert shape == "x was float32[3] and is float32[4]"
    assert static == "n was 1 and is 2"
    assert changed == "something that the function reaches changed: SCALE was 2.0 and is 7.0"
    assert changed in f.explain()


def test_explain_names_hooks(device):
    w = tg.ones(3, requires_grad=True)
    f = tg.trace(lambda x: (x * w).sum())
    f(tg.ones(3))
    handle = w.register_hook(lambda g: g * 2.0)
    f(tg.ones(3))
    handle.remove()
    f(tg.ones(3))
    assert f.compilations == ["first call", "something that the function reaches changed: a tensor has other hooks now"]


def test_debug_tells_of_every_program(capfd, monkeypatch):
    monkeypatch.setattr(tg.config, "debug", 2)
    tg.trace(lambda x: x.exp() + 0.125)(tg.ones(7)).numpy()
    told = capfd.readouterr().err
    assert "nodes -> 1 kernels for" in told
    assert "__kernel void" in told


def test_a_constant_made_by_the_body_is_a_result_like_others(device):
    @tg.trace
    def f(x):
        made = tg.tensor([1, 2, 3])
        return made, x * 2, tg.tensor([4.0, 5.0])[1:], made

    first, second = f(tg.ones(2)), f(tg.ones(2))
    assert first[0] is first[3]
    first[0].mul_(10)
    assert [t.tolist() for t in first] == [[10, 20, 30], [2.0, 2.0], [5.0], [10, 20, 30]]
    assert [t.tolist() for t in second] == [[1, 2, 3], [2.0, 2.0], [5.0], [1, 2, 3]]
    assert f(tg.ones(2))[0].tolist() == [1, 2, 3]


def test_literals_have_values(device):
    """What the body makes of numbers is the same at every replay: masks and sizes may depend on it (more: test_trace_constants.py)."""
    keep = [True, False, True]

    @tg.trace
    def f(x):
        y = x.clone()
        y[tg.tensor(keep)] = tg.tensor([7.0, 8.0])
        return x[tg.tensor(keep)], x[:, None][tg.tensor(keep)], y, x.repeat(tg.tensor([2]).item()), tg.func.grad(
            lambda x: (x[tg.tensor(keep)] ** 2).sum())(x)

    for _ in range(3):
        found = f(tg.arange(3.0))
        assert [y.tolist() for y in found] == [[0, 2], [[0], [2]], [7, 1, 8], [0, 1, 2, 0, 1, 2], [0, 0, 4]]
    keep[:] = [False, True, True]
    assert f(tg.arange(3.0))[0].tolist() == [1, 2]

    outside = tg.tensor(keep)

    def changed(x):
        mask = tg.tensor(keep)
        mask[0] = True
        return x[mask]

    def changed_by_a_view(x):
        mask = tg.tensor(keep)
        mask[1:].fill_(False)
        return x[mask]

    assert [tg.trace(body)(tg.arange(3.0)).tolist() for body in (changed, changed_by_a_view)] == [[0, 1, 2], []]
    for body in (lambda x: x[outside], lambda x: x[x > 1]):
        with pytest.raises(tg.TraceError, match="depends on values"):
            tg.trace(body)(tg.arange(3.0))


@pytest.mark.parametrize("kind", ["argument", "captured", "written", "parameter"])
def test_hooks_of_leaves_and_a_backward_outside(kind):
    """A leaf that has hooks gets its gradient, through them and once, also of a loss that a traced function computed."""
    results = []
    for traced in (False, True):
        x, w = tg.tensor(np.arange(1.0, 8.0), requires_grad=True), tg.tensor(np.ones(7), requires_grad=True)
        if kind == "parameter":
            x = tg.nn.Parameter(x.detach())
        seen = []
        x.register_hook(lambda g: g * 2)
        x.register_hook(lambda g, seen=seen: seen.append(g.tolist()))

        def loss(a, b, x=x):
            if kind == "written":
                with tg.no_grad():
                    a.mul_(2.0)
            return ((x if kind == "captured" else a) ** 3 * b).sum()

        fn = tg.trace(loss) if traced else loss
        for _ in range(3):
            fn(x, w).backward()
        gradient, = tg.autograd.grad(fn(x, w), x, create_graph=True)
        second, = tg.autograd.grad((gradient * w).sum(), w if kind == "written" else x)
        results.append([x.grad.tolist(), w.grad.tolist(), gradient.tolist(), second.tolist(), seen])
    assert results[0] == results[1]
    assert len(results[0][4]) == 4 + (kind != "written")


def test_a_number_of_run_time_that_decides_is_an_error_that_says_so():
    """Not silently what holds for True: functions that read a number which nobody thought of as one of run time."""
    traced = tg.trace(lambda x, s: tg.nn.functional.cross_entropy(x, tg.arange(7), label_smoothing=s))
    with pytest.raises(tg.TraceError, match=r"cross_entropy at .*test_trace\.py:\d+: a number decides .* run-time number"):
        traced(tg.ones(7, 10), 0.25)


@pytest.mark.parametrize("shape", [(37, 37), (100, 100)])
def test_a_truth_that_another_kernel_reads_decides_nothing(shape):
    """Of the code generator: a kernel ends at `any`, whose value the next one reads, and neither was asked whether it holds."""
    x = tg.tensor(np.random.default_rng(0).normal(size=shape))

    def chosen(x, bound):
        found = (x > bound).any()
        return found, tg.where(found, x @ x, x)

    traced = tg.trace(chosen)
    for bound in (9.0, 0.5, 9.0):
        found, y = traced(x, tg.tensor(bound, dtype=tg.float64))
        assert found.item() == (bound < 1)
        np.testing.assert_allclose(y.numpy(), x.numpy() @ x.numpy() if bound < 1 else x.numpy(), atol=1e-12)


@pytest.mark.recall
def test_a_call_on_arrays_takes_the_short_way(monkeypatch):
    """As one on tensors does, with the values that the arrays have then; one array given twice is two tensors."""
    f = tg.trace(lambda x, y: x * y + 1.0)
    a, b, longer, found = np.arange(3.0), np.full(3, 2.0), [], tg.tracing.trace.Traced._found
    close(f(a, b), [1, 3, 5])
    monkeypatch.setattr(tg.tracing.trace.Traced, "_found", lambda self, *given: (longer.append(given), found(self, *given))[1])
    close(f(a, b), [1, 3, 5])
    a[0] = 4.0
    close(f(a, b), [9, 3, 5])
    close(f(a, a), [17, 2, 5])
    close(f(tg.tensor(a), b), [9, 3, 5])
    assert (len(longer), len(f.compilations)) == (0, 1)
    assert f(a.astype(np.float32), b.astype(np.float32)).dtype == tg.float32
    close(f(a[:2], b[:2]), [9, 3])
    assert (len(longer), len(f.compilations)) == (2, 3)


@pytest.mark.recall
def test_a_fast_replay_under_threads_a_profiler_and_errors(device, monkeypatch):
    """Each result is its own, whoever calls; a call that failed leaves nothing, and the next one is fast again."""
    f = tg.trace(lambda x, y: (tg.sin(x) * y, x + y))
    xs, y = [tg.full((5,), float(i)) for i in range(4)], tg.ones(5)
    tg.synchronize()
    f(xs[0], y)
    fast = f._latest.fast_replay
    found = {}

    def call(i):
        found[i] = [fast((xs[i], y)) for _ in range(50)]

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, results in found.items():
        for a, b in results:
            close(a, np.sin(float(i)) * np.ones(5))
            close(b, np.full(5, i + 1.0))
    with monkeypatch.context() as patch:
        patch.setattr(tg.config, "profile", True)
        close(fast((xs[2], y))[1], np.full(5, 3.0))
    close(fast((xs[3], y))[1], np.full(5, 4.0))
    if device.kind == "numpy":
        return
    tg.synchronize()
    versions = [x._version for x in (*xs, y)]
    with monkeypatch.context() as patch:
        patch.setattr(launch, "enqueue", _refuse)
        patch.setattr(short_run, "enqueue", _refuse)
        del f._latest.fast_replay                           # one that is written now refuses
        with pytest.raises(tg.DeviceError, match="refused kernel"):
            f(xs[1], y)
        del f._latest.fast_replay
    assert [x._version for x in (*xs, y)] == versions
    close(f(xs[1], y)[1], np.full(5, 2.0))


def _refuse(*args):
    raise cl.RuntimeError("no")


def test_what_the_body_computes_in_enable_grad_has_a_history_under_no_grad():
    """As untraced (it had none, without a word); what it computes elsewhere has none."""
    p = tg.ones(3, requires_grad=True)

    def fn(x):
        with tg.enable_grad():
            y = p * x
        return y, p * x, p[1:], x[0]

    for f in (fn, tg.trace(fn)):
        for k in (1.0, 2.0):
            with tg.no_grad():
                found = f(tg.full((3,), k))
            assert [t.requires_grad for t in found] == [True, False, False, False]
            found[0].sum().backward()
            assert p.grad.tolist() == [k] * 3
            p.grad = None


def test_slices_as_arguments():
    """Python before 3.12 has no hash of them. Ends that are tensors are arguments, whose numbers a trace cannot know."""
    @tg.trace
    def part(x, where, more=None):
        return x[where] * 2, x[more["rows"]] if more else x

    x = tg.arange(12.0).reshape(4, 3)
    for where in (slice(1, 3), slice(None), slice(0, None, 2), (slice(1, 3), slice(0, 2)), (slice(1, 3), slice(0, 1)), [slice(0, 2), 1]):
        more = {"rows": slice(2)} if isinstance(where, tuple) else None
        index = tuple(where) if isinstance(where, list) else where
        twice, rest = part(x, where, more)
        close(twice, x.numpy()[index] * 2)
        close(rest, x.numpy()[:2] if more else x.numpy())


def test_what_several_threads_add_is_all_added():
    before = sys.getswitchinterval()
    p = tg.nn.Parameter(tg.zeros(3))

    @tg.trace
    def add():
        with tg.no_grad():
            p.add_(1)

    add()
    threads = [threading.Thread(target=lambda: [add() for _ in range(100)]) for _ in range(4)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    close(p, [401, 401, 401])
