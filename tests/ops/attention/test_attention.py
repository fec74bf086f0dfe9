"""Attention in one operation: values, gradients and second derivatives beside the written-out form, on both sides of its thresholds, on all
targets; what its kernels leave out; special values."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import tracegrad as tg
from tests.codegen.kernel.test_run_kernel import some
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.lower import group_kernels
from tracegrad.codegen.tile.group_blocks import GroupBlocks
from tracegrad.codegen.tile.item_blocks import ItemBlocks
from tracegrad.execute.compile import executable_graph
from tracegrad.nn import functional as F
from tracegrad.ops import aten
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning, tuned

TINY = Tuning(attention_scores=0, attention_keys=4, attention_groups=((8, 8, 2), (4, 4, 1)))
SHAPES = [        # heads, rows, keys, size of a key, of a value
    (2, 7, 13, 3, 4), (1, 17, 17, 5, 2), (1, 16, 9, 2, 17), (1, 5, 33, 3, 5), (1, 33, 6, 1, 1), (2, 1, 1, 2, 3),
]


def drawn(dtype, *shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [tg.tensor(rng.standard_normal(shape).astype(dtype)) for shape in shapes]


def sizes(heads, rows, keys, size, width):
    return (heads, rows, size), (heads, keys, size), (heads, keys, width), (heads, rows, width)


def written_out(q, k, v, causal, scale=None):
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        allowed = tg.ones(*scores.shape[-2:], dtype=tg.bool_).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    return tg.softmax(scores, -1) @ v


def fused(q, k, v, causal, scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def derivatives(attend, causal):
    """Value, gradients, and derivatives of a function of the gradients."""
    def loss(q, k, v, g):
        return (attend(q, k, v, causal).sin() * g).sum()

    def slopes(q, k, v, g):
        return sum((d * d * (i + 1)).sum() for i, d in enumerate(tg.grad(loss, (0, 1, 2))(q, k, v, g)))

    return tg.trace(lambda *given: (tg.value_and_grad(loss, (0, 1, 2))(*given), tg.grad(slopes, (0, 1, 2, 3))(*given)))


def flat(tree):
    return [t.numpy() for t in (tree[0][0], *tree[0][1], *tree[1])]


def same(got, wanted, tolerance):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(b).max())))


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("number", "shape"), list(enumerate(SHAPES)))
def test_kernels_without_a_driver(number, shape, causal):
    """On a CPU and a GPU (all of them in the long run), float32 and float64, kernels give what the operation's numpy rule gives."""
    for dtype in ("float32", "float64"):
        given = drawn(dtype, *sizes(*shape), seed=number)

        def loss(q, k, v, g):
            return (fused(q, k, v, causal) * g).sum()

        tuning = TINY._replace(attention_keys=(4, 64)[number % 2], attention_long=(0, 1 << 12)[(number + causal) % 2])
        with Checked(some(number + causal, number < 2), tuning=tuning, slack=8) as checked:
            tg.trace(lambda *given, f=loss: tg.value_and_grad(f, (0, 1, 2))(*given))(*given)
        assert checked.count >= 1


def of_kept_sums(q, k, v, g, causal):
    """The result, the rows' sums, and the gradients that are derived from the two."""
    shape, attrs = (1, *q.shape), (causal, 0.5)
    q, k, v, g = (x.reshape(1, *x.shape) for x in (q, k, v, g))
    y, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=attrs[1])
    assert sums.shape == shape[:-1]
    return y[0], sums[0], *(x[0] for x in aten.attention_gradients(g, q, k, v, y.clone(), sums.clone(), *attrs))


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("number", "shape"), list(enumerate(SHAPES)))
def test_gradients_of_sums_that_were_kept(number, shape, causal):
    """By NumPy, in products, and by kernels of a CPU and a GPU."""
    given = drawn("float64", *sizes(*shape))
    q, k, v, g = given
    scores = np.where(np.tri(*shape[1:3]) > 0 if causal else True, q.numpy() @ k.numpy().swapaxes(1, 2) / 2, -np.inf)
    slopes = tg.grad(lambda *x: (written_out(*x, causal, 0.5) * g).sum(), (0, 1, 2))(q, k, v)
    wanted = [written_out(q, k, v, causal, 0.5).numpy(), np.log(np.exp(scores).sum(-1)), *(x.numpy() for x in slopes)]
    traced = tg.trace(lambda *given: of_kept_sums(*given, causal))
    for found in (of_kept_sums(*given, causal), traced(*given)):
        same([x.numpy() for x in found], wanted, 1e-9)
    with Checked(some(number + causal, number < 2), tuning=TINY, slack=8) as checked:
        tg.trace(lambda *given: of_kept_sums(*given, causal))(*given)
    assert checked.count >= 1


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("target", ["avx2", "gpu"])
def test_kernels_are_statements(target, monkeypatch):
    """Of a gradient with a mask, keys in ranges, all come from the statements that the verifier looks at."""
    found = []
    monkeypatch.setattr(group_kernels, "verify_kernel", found.append)
    q, k, v, g = drawn("float32", *sizes(1, 65, 257, 16, 33))
    kept = tg.tensor(np.ones((65, 257), bool))

    def loss(q, k, v, g, kept):
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=kept) * g).sum()

    traced = tg.trace(tg.grad(loss, (0, 1, 2)))
    traced(q, k, v, g, kept)
    with tuned(Tuning()):
        compile_graph(executable_graph(traced._seen().program.graph), TARGETS[target])
    kernels = [kernel for kernel in found if kernel.entry.startswith("attention")]
    assert len(kernels) == {"avx2": 2, "gpu": 4}[target]


@pytest.mark.usefixtures("on_numpy")
def test_one_program_is_lowered_for_cpus_and_gpus(monkeypatch):
    """The forward kernels of both do the same operations in the same order; gradients of a GPU are two kernels that share one CPU's."""
    calls = []
    for lowering in (ItemBlocks, GroupBlocks):
        for name in [n for n in (vars(ItemBlocks).keys() & vars(GroupBlocks).keys()) - {"number", "who"} if not n.startswith("_")]:
            lowered = getattr(lowering, name)

            def called(self, *args, f=lowered, name=name, **named):
                if calls[-1][0] is not self:
                    calls.append((self, []))
                if sys._getframe(1).f_code.co_filename.endswith("attention.py"):
                    calls[-1][1].append(name)
                return f(self, *args, **named)

            monkeypatch.setattr(lowering, name, called)
    q, k, v, g = drawn("float32", *sizes(64, 64, 64, 4, 4))       # no ranges
    traced = tg.trace(tg.grad(lambda q, k, v, g: (fused(q, k, v, True) * g).sum(), (0, 1, 2)))
    traced(q, k, v, g)
    found = {}
    for target in ("avx2", "gpu"):
        calls[:] = [(None, [])]
        with tuned(TINY):
            compile_graph(executable_graph(traced._seen().program.graph), TARGETS[target])
        found[target] = [names for _, names in calls if names]
    (forward, gradient), (forward_gpu, of_rows, of_keys) = found["avx2"], found["gpu"]
    assert forward == forward_gpu
    assert {"load", "dot", "compute", "add", "store"} <= set(forward)
    assert (gradient.count("add"), of_rows.count("add"), of_keys.count("add")) == (3, 1, 2)
    assert gradient.count("dot") == of_rows.count("dot") == of_keys.count("dot") == 2


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [True, False])
def test_derivatives_are_those_of_the_written_out_form(shape, causal):
    given = drawn("float64", *sizes(*shape))
    same(flat(derivatives(fused, causal)(*given)), flat(derivatives(written_out, causal)(*given)), 1e-9)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((1, 65, 257, 16, 33), "float32"), pytest.param((3, 257, 64, 8, 7), "float64", marks=pytest.mark.slow)],
)
def test_on_the_device(shape, dtype):
    """Large enough for kernels of their own; the first with its keys in several ranges."""
    given = drawn(dtype, *sizes(*shape))

    def both(attend):
        return tg.trace(tg.value_and_grad(lambda q, k, v, g: (attend(q, k, v, True) * g).sum(), (0, 1, 2)))

    traced = both(fused)
    value, gradients = traced(*given)
    if tg.device().kind in ("cpu", "gpu"):
        assert {launch.entry.rpartition("_")[0] for launch in traced.plan.launches} >= {"attention_forward", "attention_backward"}
    wanted = both(written_out)
    previous = tg.device()
    try:
        tg.set_device("numpy")
        wanted = wanted(*[tg.tensor(x.numpy()) for x in given])
    finally:
        tg.set_device(previous)
    same([value.numpy(), *(x.numpy() for x in gradients)], [wanted[0].numpy(), *(x.numpy() for x in wanted[1])],
         2e-5 if dtype == "float32" else 1e-12)


@pytest.mark.usefixtures("on_numpy")
def test_nothing_is_as_large_as_the_scores():
    """Neither forward nor backward store rows x keys, with the written-out form they do; few scores, and a GPU without local memory,
    have that one's kernels."""
    q, k, v, g = drawn("float32", *sizes(4, 300, 300, 16, 16))
    traced = tg.trace(lambda q, k, v, g: tg.grad(lambda *x: (fused(*x, True) * g).sum(), (0, 1, 2))(q, k, v))
    traced(q, k, v, g)
    graph = executable_graph(traced._seen().program.graph)

    def largest(target, tuning=None):
        with tuned(tuning or Tuning()):
            return max(s.nbytes for s in compile_graph(graph, target).slots)

    scores = 4 * 300 * 300 * 4
    assert largest(Target(cores=2)) < scores / 2
    assert largest(TARGETS["gpu"]) < scores / 2
    assert largest(TARGETS["gpu, no local memory"]) >= scores
    assert largest(replace(TARGETS["gpu"], local_memory=4096)) >= scores
    assert largest(Target(cores=2), Tuning(attention_scores=300 * 300 + 1)) >= scores
    assert largest(Target(cores=2), Tuning(attention_width=15)) >= scores


def test_special_values(monkeypatch):
    """Scores of -inf before others, rows of nothing but -inf, NaN and inf: as the written-out form has them."""
    q, k, v, _ = (x.numpy() for x in drawn("float32", *sizes(1, 70, 70, 4, 4)))
    q[0, :, 0] = 1.0
    k[0, :66, 0] = -np.inf                                   # the first block of keys, and more, has weight 0
    k[0, 69, 1] = np.nan
    q[0, 3] = 0.0                                            # 0 * -inf
    given = [tg.tensor(x) for x in (q, k, v)]
    monkeypatch.setattr(tg.config, "eager", False)
    for causal in (True, False):
        got, wanted = (tg.trace(lambda *x, f=f, c=causal: f(*x, c))(*given).numpy() for f in (fused, written_out))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    large = [tg.tensor(x * 1e3) for x in (np.abs(k[:, :65, 1:]), np.abs(k[:, :65, 1:]), v[:, :65])]       # exp of the scores overflows
    got, wanted = (tg.trace(lambda *x, f=f: f(*x, True))(*large).numpy() for f in (fused, written_out))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-2)


@pytest.mark.usefixtures("on_numpy")
def test_vmap_batches_and_scale():
    """Heads in several dimensions that broadcast, a scale of one's own, an example in vmap; integers are refused."""
    q, k, v = drawn("float64", (2, 3, 7, 5), (3, 6, 5), (1, 3, 6, 4))
    wanted = written_out(q, k.expand(2, 3, 6, 5), v.expand(2, 3, 6, 4), True, 0.3)
    same([fused(q, k, v, True, 0.3).numpy()], [wanted.numpy()], 1e-12)
    mapped = tg.vmap(lambda q, v: fused(q, k, v, True, 0.3), in_dims=(0, None))(q, v[0])
    same([mapped.numpy()], [wanted.numpy()], 1e-12)
    slopes = tg.vmap(tg.grad(lambda q: (fused(q, k, v[0], True, 0.3) ** 2).sum()))(q)
    same([slopes.numpy()], [tg.grad(lambda q: (written_out(q, k, v[0], True, 0.3) ** 2).sum())(q).numpy()], 1e-10)


def test_long_sums_are_sums_of_blocks():
    """Sums over 100,000 keys, and over as many rows in the gradient, are as exact as sums of sums: no accumulator adds up all of them."""
    many, draw = 100_000, np.random.default_rng(0)
    values = draw.uniform(0.5, 1.5, (1, many, 1)).astype("float32")
    q, k, v = tg.zeros(1, 1, 1), tg.zeros(1, many, 1), tg.tensor(values)
    got = tg.trace(lambda q, k, v: fused(q, k, v, False))(q, k, v).numpy()
    np.testing.assert_allclose(got, values.mean(dtype="float64"), rtol=4e-6)
    slope = tg.trace(tg.grad(lambda v, q, k, g: (fused(q, k, v, False) * g).sum()))
    np.testing.assert_allclose(slope(q, k, q, v).numpy(), values.sum(dtype="float64"), rtol=4e-6)
