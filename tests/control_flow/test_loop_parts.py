"""Loops whose batch is cut into parts that go through all iterations by themselves: what is cut and what is not, and no value changes."""

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import Checked
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.planning.loop_parts import of_part, parts_of
from tracegrad.control_flow.loop import Loop
from tracegrad.execute.compile import executable_graph
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning, tuned

TARGETS = {"two": Target(cores=2), "four, avx512": Target(simd_bytes=64, registers=32, cores=4)}
LAUNCHED = Tuning(launch_work=0, iteration_work=0, looped_work=0, parted_iterations=0)     # no loop is too small for many cores


def close(a, b, scale=1.0):
    tolerance = 1e-10 if a.dtype == np.float64 else 2e-5 * scale
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def loops(traced):
    """The loops of the latest call's program."""
    graph = executable_graph(traced._seen().program.graph)
    return list({n.fn: None for n in graph if isinstance(n.fn, Loop)})


def notes(traced, target=TARGETS["two"], tuning=LAUNCHED):
    with tuned(tuning):
        plan = compile_graph(executable_graph(traced._seen().program.graph), target)
    return [launch.note for launch in plan.launches if "parts of the batch" in launch.note]


# ------------------------------------------------------------------------------------------------------------------- one iteration

B, H = 6, 5
W = np.linspace(-1, 1, H * H).reshape(H, H)
V = np.linspace(-1, 1, H)

APART = {
    "elements": lambda h, x, w, v: (h * x + 1).tanh(),
    "product": lambda h, x, w, v: h @ w + x,
    "product from the left": lambda h, x, w, v: (w @ h.T).T + x,
    "batched product": lambda h, x, w, v: (h.reshape(B, 1, H) @ x.reshape(B, H, 1)).reshape(B, 1) * h,
    "outer products": lambda h, x, w, v: (h.reshape(B, H, 1) @ x.reshape(B, 1, H)).sum(2),
    "bias": lambda h, x, w, v: h + v.expand(B, H) * x,
    "parts": lambda h, x, w, v: tg.cat([x[:, 2:], h[:, :2]], 1) * tg.cat([h[:, :1], v[None, 1:].expand(B, H - 1)], 1),
    "padding": lambda h, x, w, v: h + nn.functional.pad(x[:, 1:], (0, 1)),
    "sums of samples": lambda h, x, w, v: h - h.mean(1, keepdim=True) + x.amax(1, keepdim=True),
    "softmax": lambda h, x, w, v: (h @ w).softmax(1) * x,
    "reshaped": lambda h, x, w, v: (h.reshape(1, B, H) * 2).squeeze(0) + x.reshape(B, H, 1)[:, :, 0],
    "masks": lambda h, x, w, v: tg.where(x > 0, h, v),
    "a constant of the batch's size": lambda h, x, w, v: h + tg.ones(B, H, dtype=h.dtype) * x,
}
TOGETHER = {
    "sum of the batch": lambda h, x, w, v: h - h.mean(0) + x,
    "neighbours": lambda h, x, w, v: h.roll(1, 0) + x,
    "upside down": lambda h, x, w, v: h.flip(0) + x,
    "product with itself": lambda h, x, w, v: h @ (x.T @ h),
    "slices of the batch": lambda h, x, w, v: tg.cat([h[1:], x[:1]], 0),
    "rows and columns": lambda h, x, w, v: (h.reshape(H, B).T + x),
    "running sum over the batch": lambda h, x, w, v: h.cumsum(0) + x,
    "normalized over the batch": lambda h, x, w, v: h.softmax(0) + x,
}


def body_of(step):
    def run(h, xs, w, v):
        last, ys = tg.scan(lambda h, x: (step(h, x, w, v), step(h, x, w, v) * 2), h, xs)
        return last, ys

    return tg.trace(run)


def call(traced, dtype=np.float64, length=3):
    rng = np.random.default_rng(3)
    given = [rng.normal(size=(B, H)), rng.normal(size=(length, B, H)), W, V]
    traced(*[tg.tensor(a.astype(dtype)) for a in given])
    return loops(traced)


@pytest.mark.parametrize("name", APART)
@pytest.mark.usefixtures("on_numpy")
def test_what_stays_apart_is_cut(name):
    traced = body_of(APART[name])
    loop, = call(traced)
    own = loop.body.carries + loop.body.rows
    rng = np.random.default_rng(5)
    inputs = [rng.normal(size=p.shape).astype(p.dtype) for p in loop.graph.inputs]
    whole = interpret(loop.graph, inputs)
    for parts in (2, 3, 6):
        graph = of_part(loop.graph, own, parts)
        assert graph is not None
        size = B // parts
        for k in range(parts):
            share = slice(k * size, (k + 1) * size)
            found = interpret(graph, [a[share] if i < own else a for i, a in enumerate(inputs)])
            for f, w in zip(found, whole, strict=True):
                close(f, w[share])
    assert notes(traced)


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.usefixtures("on_numpy")
def test_what_mixes_the_batch_is_not_cut(name):
    traced = body_of(TOGETHER[name])
    loop, = call(traced)
    assert of_part(loop.graph, loop.body.carries + loop.body.rows, 2) is None
    assert not notes(traced)


@pytest.mark.parametrize("name", [*APART, *TOGETHER])
@pytest.mark.usefixtures("on_numpy")
def test_kernels(name):
    with Checked(TARGETS, tuning=LAUNCHED) as checked:
        call(body_of((APART | TOGETHER)[name]), np.float32, 1)
        call(body_of((APART | TOGETHER)[name]), np.float32, 4)
    assert checked.count


@pytest.mark.parametrize("dtype", ["complex64", "float16", "float64"])
@pytest.mark.usefixtures("on_numpy")
def test_dtypes(dtype):
    for name in ("elements", "product", "bias", "parts"):
        traced = body_of(APART[name])
        with Checked({"two": TARGETS["two"]}, tuning=LAUNCHED) as checked:
            call(traced, np.dtype(dtype))
        assert checked.count
        assert notes(traced)


@pytest.mark.usefixtures("on_numpy")
def test_iterations_that_take_nothing_in():
    """What every iteration makes of constants, or of nothing, has no batch."""
    same = tg.trace(lambda x: tg.scan(lambda c, _: (c, tg.ones(64, 100)), x, None, length=3))
    given = tg.trace(lambda x, v: tg.scan(lambda c, _: (c, (v * 2).exp() + tg.ones(4, 1)), x, None, length=3))
    with Checked(TARGETS, tuning=LAUNCHED) as checked:
        same(tg.ones(3))
        given(tg.ones(3), tg.ones(4, 5))
    assert checked.count


@pytest.mark.usefixtures("on_numpy")
def test_how_many_parts():
    traced = body_of(APART["product"])
    loop, = call(traced)
    own = loop.body.carries + loop.body.rows
    assert [parts_of(loop.graph, own, cores) for cores in (1, 2, 3, 4, 5, 6, 8, 16)] == [1, 2, 3, 3, 3, 6, 6, 1]
    assert not notes(traced, Target(cores=1))
    assert not notes(traced, Target(cores=2, l2_bytes=64))                  # every core would read the weights from afar
    assert not notes(traced, tuning=LAUNCHED._replace(parted_work=0))


# --------------------------------------------------------------------------------------------------------------------- layers


def trained(layer, x, *rest):
    """A layer's outputs and gradients, traced."""
    parameters = list(layer.parameters())

    @tg.trace
    def step(x, *rest):
        x = x.detach().requires_grad_()
        out, last = layer(x, *rest)
        loss = (out * out).mean() + sum(s.sin().sum() for s in (last if isinstance(last, tuple) else (last,)))
        return out, loss, *tg.autograd.grad(loss, [x, *parameters])

    return step(x, *rest), step


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@one_of(6, ("hidden", "batch", "length"), [(7, 4, 1), (16, 2, 2), (31, 6, 3), (32, 8, 4), (33, 4, 3), (65, 4, 2), (99, 2, 2)])
@pytest.mark.usefixtures("on_numpy")
def test_layers(kind, hidden, batch, length):
    tg.manual_seed(hidden)
    name = sorted(TARGETS)[batch % 4 != 0]                  # four parts, or two
    layer = getattr(nn, kind)(9, hidden)
    x = tg.tensor(np.random.default_rng(hidden).normal(size=(length, batch, 9)).astype(np.float32))
    with Checked({name: TARGETS[name]}, tuning=LAUNCHED, slack=4) as checked:
        _, traced = trained(layer, x)
    assert checked.count
    assert len(notes(traced)) == 2 * (length > 1)            # the loop and its derivative's; one iteration is no loop


@one_of(3, "kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.usefixtures("on_numpy")
def test_layers_of_all_sorts(kind):
    more = {"proj_size": 3} if kind == "LSTM" else {}
    tg.manual_seed(1)
    layer = getattr(nn, kind)(5, 13, num_layers=2, bidirectional=True, **more).double()
    x = tg.tensor(np.random.default_rng(1).normal(size=(4, 6, 5)))
    with Checked({"two": TARGETS["two"]}, tuning=LAUNCHED) as checked:
        trained(layer, x[:3])
        packed = nn.utils.rnn.pack_padded_sequence(x, [4, 4, 3, 2, 2, 1])
        tg.trace(lambda: layer(packed)[0].data)()
    assert checked.count


@pytest.mark.usefixtures("on_numpy")
def test_second_derivatives():
    tg.manual_seed(2)
    layer = nn.LSTM(3, 8).double()
    weights = [layer.weight_hh_l0, layer.bias_hh_l0, layer.bias_ih_l0]

    @tg.trace
    def step(x):
        first = tg.autograd.grad((layer(x)[0] ** 2).sum(), weights, create_graph=True)
        return tg.autograd.grad(sum((g * g).sum() for g in first), weights)

    x = tg.tensor(np.random.default_rng(2).normal(size=(3, 4, 3)))
    with Checked(TARGETS, tuning=LAUNCHED) as checked:
        found = step(x)
    assert checked.count
    for w, second in zip(weights, found, strict=True):        # against differences of the first derivative's square
        at, small = (1,) * w.ndim, 1e-5
        values = []
        for sign in (1, -1):
            with tg.no_grad():
                w[at] += sign * small
            first = tg.autograd.grad((layer(x)[0] ** 2).sum(), weights)
            values.append(sum(float((g * g).sum()) for g in first))
            with tg.no_grad():
                w[at] -= sign * small
        np.testing.assert_allclose(second.numpy()[at], (values[0] - values[1]) / (2 * small), rtol=1e-4, atol=1e-7)


# --------------------------------------------------------------------------------------------- sums that are made after the loop


@pytest.mark.usefixtures("on_numpy")
def test_sums_of_what_is_stacked_are_made_after_the_loop():
    """A bias has the gradient that a weight's product stacks: its sum is no carry, and nothing is stacked twice."""
    layer = nn.LSTM(4, 6)
    _, traced = trained(layer, tg.ones(5, 4, 4))
    backward = loops(traced)[-1]
    assert backward.reverse
    assert [o.shape for o in backward.body.outs] == [(4, 6), (4, 6), (4, 24)]          # cotangents of h and c, and of the gates


@pytest.mark.parametrize(("kind", "kept"), [("LSTM", [6, 6, 6, 6]), ("RNN", [6]), ("GRU", [6, 6, 6])])
@pytest.mark.usefixtures("on_numpy")
def test_what_a_derivative_reads_is_kept(kind, kept):
    """The values of gates, and of a product only the part that a GRU multiplies with one of them."""
    _, traced = trained(getattr(nn, kind)(4, 6), tg.ones(5, 4, 4))
    forward = loops(traced)[0]
    assert not forward.reverse
    carries = forward.body.carries
    assert sorted(o.shape[1] for o in forward.body.outs[2 * carries + 1:]) == kept


@pytest.mark.usefixtures("on_numpy")
def test_sums_of_what_is_not_stacked_are_carried():
    def run(h, v):
        last, _ = tg.scan(lambda h, _: ((h * v).tanh(), None), h, None, length=4)
        return tg.autograd.grad(last.sum(), [h, v])

    h, v = (tg.tensor(np.random.default_rng(4).normal(size=s), requires_grad=True) for s in ((6, 5), (5,)))
    for a, b in zip(tg.trace(run)(h, v), run(h, v), strict=True):
        close(a.numpy(), b.numpy())


# --------------------------------------------------------------------------------------------------------------------- the device


@one_of(2, "kind", ["LSTM", "GRU"])
def test_on_the_device(kind):
    tg.manual_seed(3)
    layer = getattr(nn, kind)(16, 33)
    x = np.random.default_rng(6).normal(size=(5, 12, 16)).astype(np.float32)
    with tuned(LAUNCHED):
        found, _ = trained(layer, tg.tensor(x))
        found = [f.numpy() for f in found]
    same = getattr(nn, kind)(16, 33, device="numpy")
    same.load_state_dict({k: v.detach().numpy() for k, v in layer.state_dict().items()})
    wanted, _ = trained(same, tg.tensor(x, device="numpy"))
    for f, w in zip(found, wanted, strict=True):
        close(f, w.numpy(), scale=4)
