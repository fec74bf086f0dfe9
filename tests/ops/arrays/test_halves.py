"""float16 and bfloat16 mean one thing: what an operation returns is rounded before anything reads it, in kernels as by numpy."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked, random_target, random_tuning
from tests.helpers.marks import DEVICES, RUNS, one_of
from tests.helpers.values import plain
from tests.random_programs.half_programs import AFTER, INEXACT, arrays, compiled, half_program
from tests.runtime.test_matrix import on  # noqa: F401  (a fixture: the default device by its own schedule, and by that of GPUs)
from tracegrad.nn import functional as F
from tracegrad.support.dtypes import finfo

SIZES = [1, 8, 1003]
HALF = np.float16
HALVES = {"float16": np.float16, "bfloat16": tg.bfloat16.type}
BOTH = pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)


def half(n, value, dtype=tg.float16):
    return tg.full((n,), value, dtype=dtype)


def equal(found, wanted):
    np.testing.assert_array_equal(plain(found), plain(np.asarray(wanted)))


@BOTH
@pytest.mark.parametrize("n", SIZES)
def test_a_result_is_what_is_compared(device, run, n, dtype):
    z, same = run(lambda x, e: (lambda z: (z, z == x))(x + e))(half(n, 1.0, dtype), half(n, 2.0**-12, dtype))
    assert (z.numpy() == 1).all()
    assert same.numpy().all()


LOOKS = {
    "nan_to_num": (lambda y: tg.nan_to_num(y * y), 65504.0),
    "isfinite": (lambda y: tg.isfinite(y * y).all(), False),
    "where": (lambda y: (lambda z: tg.where(tg.isfinite(z), z, 0))(y * y), 0.0),
    "isinf": (lambda y: (y * y).isinf(), True),
    "clamp": (lambda y: (y * y).clamp(max=30000.0), 30000.0),
    "maximum": (lambda y: tg.maximum(y * y, -y), np.inf),
    "difference": (lambda y: (y * y) - (y * y), np.nan),
    "comparison": (lambda y: y * y > 65504, True),
    "quotient": (lambda y: 1 / (y * y), 0.0),
    "square and back": (lambda y: (y * y) * 0.0001, np.inf),
    "to float": (lambda y: (y * y).float(), np.inf),
    "argmax": (lambda y: tg.stack((y, y * y, y * y * 2)).argmax(0), 1),
    "sort": (lambda y: tg.stack((y * y, y)).sort(0)[0][1], np.inf),
    "gather": (lambda y: (y * y)[tg.zeros(3, dtype=tg.int64)], np.inf),
    "power": (lambda y: y ** -2, HALF(4e-8)),
    "sum": (lambda y: (y * y).sum(), np.inf),
    "reciprocal": (lambda y: (y * 20).reciprocal(), HALF(0.0)),
}


def test_large_numbers_are_rounded_to_decimals(device, run):
    x = np.array([60000.0, 1234.0, 0.12347, -65504.0], np.float16)
    wanted = np.round(x.astype(np.float64), 2).astype(np.float16)
    equal(run(lambda x: x.round(decimals=2))(tg.tensor(x)), wanted)


def test_what_overflows_is_infinite(device, run):
    for name, found in run(lambda y: {key: fn(y) for key, (fn, _) in LOOKS.items()})(half(1003, 5000.0)).items():
        np.testing.assert_array_equal(found.numpy(), np.full(found.shape, LOOKS[name][1], found.numpy().dtype), err_msg=name)


@pytest.mark.parametrize("n", [8, pytest.param(1003, marks=pytest.mark.long)])
@one_of(6, "name", LOOKS)
def test_what_overflows_is_infinite_in_kernels_of_its_own(kernels, name, n):
    fn, wanted = LOOKS[name]
    found = tg.trace(fn)(half(n, 5000.0)).numpy()
    np.testing.assert_array_equal(found, np.full(found.shape, wanted, found.dtype))


def test_a_guard_of_scaled_gradients_sees_that_they_overflow(device, run):
    """Loss scaling halves the scale, and leaves the parameters alone, where a gradient is not finite."""
    def step(w, x, scale):
        (g,) = tg.autograd.grad(((w * x).sum() * scale), w)
        fine = tg.isfinite(g).all()
        return tg.where(fine, w - g / scale, w).detach(), tg.where(fine, scale * 2, scale * 0.5), fine

    w, x = half(100, 0.5).requires_grad_(), half(100, 700.0)
    for scale, fine in ((64.0, True), (128.0, False)):
        new, after, seen = run(step)(w, x, tg.tensor(scale, dtype=tg.float16))
        assert bool(seen) is fine
        assert after.item() == (scale * 2 if fine else scale * 0.5)
        assert ((new == w).all().item()) is not fine


def test_subnormal_results_are_rounded(device, run):
    a = np.array([2.0**-13, 3 * 2.0**-14, 2.0**-24, 5 * 2.0**-24, 1.0], HALF)
    b = np.array([2.0**-12, 2.0**-11, 0.5, 0.5, 2.0**-24], HALF)
    product, zero, back = run(lambda a, b: (lambda z: (z, z == 0, z * 2.0**10))(a * b))(tg.tensor(a), tg.tensor(b))
    wanted = a * b
    np.testing.assert_array_equal(product.numpy(), wanted)
    np.testing.assert_array_equal(zero.numpy(), wanted == 0)
    np.testing.assert_array_equal(back.numpy(), wanted * HALF(2.0**10))


@BOTH
def test_what_is_stored_and_used_is_one_value(device, run, dtype):
    """A result, also one that a second kernel computes anew, and what is made of it."""
    x = np.random.default_rng(0).standard_normal((70, 130)).astype(dtype)

    def fn(x):
        y = x * 1.7 + 0.3
        top = (y * y).amax(-1, keepdim=True)
        return y, y - x, top, (y * y == top).sum(-1), (y * y).sum(0) * 0 + (y * y)[0]

    y, rest, top, hits, first = (t.numpy() for t in run(fn)(tg.tensor(x)))
    with tg.no_grad():
        wanted = (x * np.float32(1.7)).astype(dtype) + dtype(0.3)
    equal(y, wanted)
    equal(rest, y - x)
    equal(top, (y * y).max(-1, keepdims=True))
    equal(hits, (y * y == top).sum(-1))
    equal(first, (y * y)[0])


@BOTH
@pytest.mark.parametrize("steps", [3, 40])
def test_what_a_loop_carries_is_rounded(device, run, steps, dtype):
    def body(c, row):
        z = c * 1.001 + row
        return z, (z, z == c)

    rows = np.full((steps, 33), 2.0**-10, dtype)
    start = np.linspace(1, 3, 33).astype(dtype)
    last, (each, same) = run(lambda c, rows: tg.scan(body, c, rows))(tg.tensor(start), tg.tensor(rows))
    c = start
    for k in range(steps):
        z = (c * np.float32(1.001)).astype(dtype) + rows[k]
        equal(each.numpy()[k], z)
        equal(same.numpy()[k], z == c)
        c = z
    equal(last.numpy(), c)


@one_of(3, ("device", "run", "name"), product(DEVICES, RUNS, HALVES), 1, indirect=["device", "run"])
def test_products_are_rounded_before_what_follows(device, run, name):
    """In the kernel of the product, and where another reads it. The bias of a layer is a part of its product: it is rounded with that."""
    dtype = HALVES[name]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-20, 20, shape).astype(dtype) for shape in ((33, 65), (65, 70)))
    bias = rng.standard_normal(70).astype(dtype)

    def fn(a, b, bias):
        y = a @ b
        return y + bias, (y + bias) == y, F.linear(a, b.T, bias), (a * 1.1) @ b, tg.isfinite(y * 40).sum()

    added, same, linear, fused, finite = (t.numpy() for t in run(fn)(tg.tensor(a), tg.tensor(b), tg.tensor(bias)))
    y = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    equal(added, y + bias)
    equal(same, y + bias == y)
    equal(linear, (a.astype(np.float32) @ b.astype(np.float32) + bias.astype(np.float32)).astype(dtype))
    scaled = (a * np.float32(1.1)).astype(dtype).astype(np.float32)
    np.testing.assert_allclose(plain(fused), scaled @ b.astype(np.float32), rtol=eps(dtype), atol=2048 * eps(dtype))
    with np.errstate(over="ignore"):
        assert finite == np.isfinite(y * dtype(40)).sum()


@one_of(3, ("device", "run", "name"), product(DEVICES, RUNS, HALVES), indirect=["device", "run"])
def test_convolutions_are_rounded_before_what_follows(device, run, name):
    dtype = HALVES[name]
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (2, 3, 12, 17)).astype(dtype), rng.integers(-9, 9, (4, 3, 3, 3)).astype(dtype)

    def fn(x, w):
        y = F.conv2d(x, w, padding=1)
        return y, y + 0.3 == y, F.relu(y * 300)

    y, same, large = (t.numpy() for t in run(fn)(tg.tensor(x), tg.tensor(w)))
    equal(same, y + dtype(0.3) == y)
    with np.errstate(over="ignore"):
        equal(large, np.maximum(y * dtype(300), 0))


# ----------------------------------------------------------------------------------------------------- one operation, rounded once


BIASED = {  # float32 numbers (x, weight, bias) -> what is rounded
    "linear": (F.linear, lambda x, w, b: x @ w.T + b, ((9, 33), (20, 33), (20,))),
    "linear of batches": (F.linear, lambda x, w, b: x @ w.T + b, ((3, 5, 17), (8, 17), (8,))),
    "linear of one feature": (F.linear, lambda x, w, b: x @ w.T + b, ((9, 1), (20, 1), (20,))),
    "addmm": (lambda x, w, b: tg.addmm(b, x, w, beta=0.5, alpha=3.0), lambda x, w, b: 0.5 * b + 3.0 * (x @ w), ((9, 33), (33, 20), (20,))),
    "baddbmm": (lambda x, w, b: tg.baddbmm(b, x, w), lambda x, w, b: b + x @ w, ((4, 9, 33), (4, 33, 20), (20,))),
    "addmv": (lambda x, w, b: tg.addmv(b, x, w), lambda x, w, b: b + x @ w, ((9, 33), (33,), (9,))),
    "conv1d": (F.conv1d, lambda x, w, b: _windows(x, w) + b[:, None], ((2, 3, 20), (5, 3, 3), (5,))),
    "conv2d": (F.conv2d, lambda x, w, b: _windows(x, w) + b[:, None, None], ((2, 3, 9, 8), (5, 3, 3, 2), (5,))),
    "conv3d": (F.conv3d, lambda x, w, b: _windows(x, w) + b[:, None, None, None], ((2, 3, 5, 6, 5), (4, 3, 3, 2, 3), (4,))),
}  # fmt: skip


def _windows(x, w):
    seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], tuple(range(2, x.ndim)))
    d = x.ndim - 2
    y = np.tensordot(seen, w, ([1, *range(2 + d, 2 + 2 * d)], range(1, w.ndim)))
    return np.moveaxis(y, -1, 1)


@one_of(3, ("device", "run", "case", "name"), product(DEVICES, RUNS, BIASED, HALVES), 1, indirect=["device", "run"])
def test_a_bias_is_added_before_the_product_is_rounded(device, run, case, name):
    """As in torch. Sums of few bits, so that they are exact in any order: results are those bits. Gradients are of 16 bits as ever."""
    dtype, (fn, meaning, shapes) = HALVES[name], BIASED[case]
    rng = np.random.default_rng(0)
    given = [rng.integers(-20, 20, s).astype(np.float32) / np.float32(1 if k < 2 else 128) for k, s in enumerate(shapes)]

    def step(*leaves):
        y = fn(*leaves)
        (y * tg.arange(y.numel()).reshape(y.shape).remainder(3).to(y.dtype)).sum().backward()
        return y.detach()

    leaves = [tg.tensor(a.astype(dtype), requires_grad=True) for a in given]
    exact = [tg.tensor(a, requires_grad=True) for a in given]
    equal(run(step)(*leaves).numpy(), meaning(*given).astype(dtype))
    step(*exact)
    for a, b in zip(leaves, exact, strict=True):
        assert a.grad.dtype == dtype
        wanted = b.grad.numpy()
        np.testing.assert_allclose(plain(a.grad.numpy()), wanted, rtol=3 * eps(dtype), atol=3 * eps(dtype) * abs(wanted).max())


@pytest.mark.parametrize("n", [100_000, pytest.param(1 << 25, marks=pytest.mark.long)])
def test_a_mean_divides_before_it_is_rounded(device, run, n):
    if tg.device().kind == "numpy" and n > 1 << 20:
        pytest.skip("numpy takes seconds for as many halves")
    assert run(lambda x: x.half().mean())(tg.ones(n)).item() == 1
    x = tg.full((n,), 300.0, dtype=tg.float16)
    found = run(lambda x: (x.mean(), x.var(), x.std(), (x - 299.0).norm() / n**0.5))(x)
    np.testing.assert_allclose([float(v) for v in found], [300.0, 0.0, 0.0, 1.0], rtol=2**-9)


ONCE = {
    "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, -1), "logsumexp": lambda x: x.logsumexp(-1),
    "mean": lambda x: x.mean(-1), "var": lambda x: x.var(-1), "std": lambda x: x.std(0), "norm": lambda x: x.norm(dim=-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "gelu": lambda x: F.gelu(x.abs()), "silu": F.silu, "mish": F.mish, "elu": F.elu,
    "softplus": F.softplus, "tanhshrink": F.tanhshrink, "hardswish": F.hardswish, "sigmoid": tg.sigmoid,
    "rsqrt": lambda x: (x.abs() + 1).rsqrt(), "mse_loss": lambda x: F.mse_loss(x, x.flip(-1)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x.flip(-1)), "cross_entropy": lambda x: F.cross_entropy(x, x.argmin(-1)),
    "binary": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).to(x.dtype)), "lerp": lambda x: x.lerp(x.flip(0), 0.3),
    "addcmul": lambda x: tg.addcmul(x, x, x.flip(0), value=0.3), "power": lambda x: x.clamp(-30, 30)**3,
    "avg_pool": lambda x: F.avg_pool1d(x, 3), "sums": lambda x: x.abs().sum(-1), "products": lambda x: (x.clamp(-2, 2)).prod(-1),
    "normalize": F.normalize, "cosine": lambda x: F.cosine_similarity(x, x.flip(0)), "logsigmoid": F.logsigmoid,
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None].flip(1), x[None]),
}


def eps(dtype):
    return float(finfo(np.dtype(dtype)).eps)


def once(run, functions, dtype):
    """One rounding of each: within the last place of what float32 gives (which may lie between two halves)."""
    x = (np.random.default_rng(1).standard_normal((20, 66)) * 8).astype(dtype)

    def all_of(x):
        return {name: fn(x) for name, fn in functions.items()}

    found, wide = run(all_of)(tg.tensor(x)), run(all_of)(tg.tensor(x.astype(np.float32)))
    for name in functions:
        assert found[name].dtype == dtype
        with np.errstate(over="ignore"):
            wanted = plain(wide[name].numpy().astype(dtype))
        np.testing.assert_allclose(plain(found[name].numpy()), wanted, rtol=eps(dtype), atol=2.0**-24, err_msg=name)


@one_of(3, ("device", "run", "name"), product(DEVICES, RUNS, HALVES), indirect=["device", "run"])
def test_an_operation_is_computed_in_float32_and_rounded_once(device, run, name):
    once(run, ONCE, HALVES[name])


@one_of(7, ("name", "dtype"), [(name, dtype) for name in ONCE for dtype in (tg.float16, tg.bfloat16)], 6)
def test_a_kernel_of_one_operation_rounds_once(kernels, name, dtype):
    once(tg.trace, {name: ONCE[name]}, dtype)


@BOTH
def test_gradients_of_operations_are_rounded_once(device, run, dtype):
    """1 - tanh(x)**2, where tanh(x) is rounded to 1, is 0; where it is next to it, it has 10 digits."""
    x = np.linspace(-4, 4, 300).astype(dtype)
    for fn, slope in ((tg.tanh, lambda y: 1 - y * y), (tg.sigmoid, lambda y: y * (1 - y)), (tg.sqrt, lambda y: 0.5 / y)):
        at = np.abs(x) + dtype(0.1) if fn is tg.sqrt else x
        y, g = run(lambda x, fn=fn: (fn(x), tg.autograd.grad(fn(x).sum(), x)[0]))(tg.tensor(at).requires_grad_())
        wanted = slope(y.detach().numpy().astype(np.float32)).astype(dtype)
        np.testing.assert_allclose(plain(g.numpy()), plain(wanted), rtol=eps(dtype), atol=2.0**-24)


# --------------------------------------------------------------------------------------------------------------- random programs


def check(seed, dtype, targets, tuning=None, lines=9, control=False):
    text, program, given = half_program(Random(seed), dtype, lines=lines, control=control)
    before = tg.device()
    tg.set_device("numpy")
    try:
        with np.errstate(all="ignore"), Checked(targets, tuning=tuning, slack=0.0) as checked:
            tg.trace(program)(*map(tg.tensor, given))
        assert checked.count
    except AssertionError as error:
        error.add_note(f"seed {seed}\n{text}")
        raise
    finally:
        tg.set_device(before)


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_kernels_of_random_programs_give_the_bits_of_numpy(seed, default_device, dtype):
    check(seed, np.dtype(dtype), TARGETS, control=seed > 1)


@pytest.mark.long
@BOTH
def test_kernels_of_many_random_programs_give_the_bits_of_numpy(default_device, dtype):
    for seed in range(1000, 1200):
        rng = Random(seed)
        check(seed, np.dtype(dtype), {"any": random_target(rng)}, random_tuning(rng), rng.choice([4, 9, 20]), control=True)


def both(seed, device, dtype):
    """A program by the device's kernels, and by numpy untraced."""
    text, program, given = half_program(Random(seed), dtype, quotients=False)
    results = []
    for where, run in ((device, tg.trace), ("numpy", lambda fn: fn)):
        tg.set_device(where)
        with np.errstate(all="ignore"):
            results.append([np.asarray(t.numpy()) for t in run(program)(*map(tg.tensor, given))])
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(plain(found), plain(wanted), err_msg=text)


@BOTH
@pytest.mark.parametrize("seed", range(20, 22))
def test_random_programs_on_the_device(seed, default_device, dtype):
    both(seed, default_device, np.dtype(dtype))


@pytest.mark.long
@pytest.mark.matrix
@BOTH
@pytest.mark.parametrize("seed", range(40, 52))
def test_random_programs_on_every_schedule(seed, on, default_device, dtype):  # noqa: F811
    both(seed, on, np.dtype(dtype))


def returned_is_compared(device, dtype, some, rng):
    """What looks at a result sees the bits that are returned of it: computed again from these by numpy, untraced, it is the same."""
    before = tg.device()
    looks = {expression: rng.sample(AFTER, 3) for expression in some}
    lines = [f"        (lambda z: [{', '.join(['z', *after])}])({expression})," for expression, after in looks.items()]
    text = "\n".join(["def program(x, y, c):", "    return [", *lines, "    ]"]) + "\n"
    given = arrays(rng, dtype)
    try:
        tg.set_device(device)
        with np.errstate(all="ignore"):
            found = [[np.asarray(t.numpy()) for t in each] for each in tg.trace(compiled(text, dtype))(*map(tg.tensor, given))]
            tg.set_device("numpy")
            for (expression, after), (z, *rest) in zip(looks.items(), found, strict=True):
                again = compiled(f"def program(z):\n    return [{', '.join(after)}]\n")(tg.tensor(z))
                for look, seen, wanted in zip(after, rest, again, strict=True):
                    np.testing.assert_array_equal(plain(seen), plain(np.asarray(wanted.numpy())), err_msg=f"{look} of {expression}")
    finally:
        tg.set_device(before)


@BOTH
def test_what_reads_a_result_sees_what_is_returned(default_device, dtype):
    rng = Random(0)
    returned_is_compared(default_device, np.dtype(dtype), rng.sample(INEXACT, 6), rng)


@pytest.mark.long
@pytest.mark.matrix
@BOTH
@pytest.mark.parametrize("first", range(0, len(INEXACT), 6))
def test_what_reads_any_result_sees_what_is_returned(first, on, default_device, dtype):  # noqa: F811
    returned_is_compared(on, np.dtype(dtype), INEXACT[first:first + 6], Random(first + 1))


@pytest.fixture
def default_device():
    before = tg.device()
    yield before
    tg.set_device(before)


def _shifted(*shape):
    """Numbers of both signs that 16 bits hold, as float64."""
    return np.round(np.sin(np.arange(float(np.prod(shape))) * 1.7 + 0.3) * 192.0).reshape(shape) / 64.0


STEPS = {    # function, shapes of its operands; composed of steps, of which none is rounded
    "conv_transpose3d": (lambda x, w, b: F.conv_transpose3d(x, w, b, stride=2, padding=1), (1, 3, 4, 4, 4), (3, 2, 3, 3, 3), (2,)),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v.abs() + 0.125, m, v), (3, 4, 5), (4,), (4,)),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (3, 2, 7), (2,), (2,)),
    "instance_norm by averages": (lambda x, w, b: F.instance_norm(x, w, b.abs() + 0.125, w, b, False), (3, 2, 7), (2,), (2,)),
    "bilinear": (F.bilinear, (6, 3), (6, 4), (5, 3, 4), (5,)),
    "embedding_bag": (lambda w, f: F.embedding_bag(tg.tensor([[0, 2, 5, 1], [3, 4, 4, 0]]), w, mode="sum", per_sample_weights=f),
                      (6, 5), (2, 4)),
    "embedding_bag of means": (lambda w: F.embedding_bag(tg.tensor([0, 2, 5, 1, 1]), w, tg.tensor([0, 2])), (6, 5)),
    "sinc": (tg.sinc, (40,)),
    "mvlgamma": (lambda x: tg.mvlgamma(x.abs().clamp(min=1.75), 4), (40,)),
    "dot": (lambda x: tg.stack([tg.dot(x[i], x[i + 1]) for i in range(7)]), (8, 5)),
    "inner": (lambda x: tg.stack([tg.inner(x[i], x[i + 1]) for i in range(7)]), (8, 5)),
}


@BOTH
@pytest.mark.parametrize("name", STEPS)
def test_a_composed_function_rounds_once(name, dtype):
    fn, *shapes = STEPS[name]
    given = [_shifted(*shape) for shape in shapes]
    found = fn(*[tg.tensor(x.astype(dtype)) for x in given])
    assert found.dtype == np.dtype(dtype)
    wanted = fn(*[tg.tensor(x) for x in given]).numpy()
    away = np.abs(plain(found.numpy()).astype(np.float64) - wanted)
    with np.errstate(divide="ignore"):
        unit = float(finfo(np.dtype(dtype)).eps) * 2.0 ** np.floor(np.log2(np.maximum(np.abs(wanted), 2.0**-14)))
    assert (away <= 0.51 * unit + 2e-6 * np.abs(wanted).max()).all(), (away / unit).max()


OVERLAPPING = {    # what several windows take of one element is added up before it is rounded
    "conv3d": (F.conv3d, (2, 3, 5, 5, 4), (4, 3, 3, 3, 2)),
    "conv3d, strided": (lambda x, w: F.conv3d(x, w, stride=2, padding=1), (1, 2, 7, 5, 5), (3, 2, 3, 3, 3)),
    "unfold": (lambda x: x.unfold(0, 5, 1), (40,)),
}


@BOTH
@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_gradient_of_windows_rounds_once(name, dtype):
    fn, *shapes = OVERLAPPING[name]
    given = [_shifted(*shape) for shape in shapes]
    found, wanted = ([tg.tensor(x.astype(d), requires_grad=True) for x in given] for d in (dtype, np.float64))
    weights = _shifted(*fn(*wanted).shape)
    for operands in (found, wanted):
        (fn(*operands) * tg.tensor(weights.astype(operands[0].dtype))).sum().backward()
    f, w = (plain(operands[0].grad.numpy()).astype(np.float64) for operands in (found, wanted))
    unit = float(finfo(np.dtype(dtype)).eps) * 2.0 ** np.floor(np.log2(np.maximum(np.abs(w), 2.0**-10)))
    assert (np.abs(f - w) <= 0.51 * unit + 2e-6 * np.abs(w).max()).all(), (np.abs(f - w) / unit).max()


@BOTH
@pytest.mark.parametrize("causal", [False, True])
def test_attention_does_not_round_scores(causal, dtype):
    """A score of 60 that is rounded to 16 bits has an error of a few percent in the weights."""
    q, k, v = np.abs(_shifted(4, 5, 8)) * 4, 2 + np.round(_shifted(4, 6, 8) * 4) / 64, _shifted(4, 6, 8)
    found = F.scaled_dot_product_attention(*[tg.tensor(x.astype(dtype)) for x in (q, k, v)], is_causal=causal)
    wanted = F.scaled_dot_product_attention(*[tg.tensor(x) for x in (q, k, v)], is_causal=causal).numpy()
    assert np.abs(plain(found.numpy()).astype(np.float64) - wanted).max() <= float(finfo(np.dtype(dtype)).eps) * np.abs(v).max()
