"""Routines that are written as Python (tracegrad/numpy_backend/numpy_program.py) compute, bit for bit, what their steps do one by one."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import LinAlgError
from tracegrad.execute.program import Program
from tracegrad.execute.realize import Work
from tracegrad.graph.canonical import resolve
from tracegrad.graph.primitive import REGISTRY, placeholder
from tracegrad.nn import functional as F
from tracegrad.numpy_backend import generated, numpy_program
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.numpy_backend.numpy_program import NumpyProgram
from tracegrad.ops.primitives.float_functions import erf32
from tracegrad.support import cache
from tracegrad.tensors.tensor import Tensor


def work_of(fn, *arrays):
    """The Work of `fn` on tensors like these."""
    nodes = [placeholder(tg.from_numpy(a)._n.aval) for a in arrays]
    device = tg.device()
    results = fn(*[Tensor(n, device) for n in nodes])
    found = [resolve(r._n) for r in (results if isinstance(results, tuple) else (results,))]
    return Work(found, device, inputs=nodes)


def recorded(work):
    """The Program of a Work, whether or not there is one of that structure already."""
    return Program.recorded(work.key, work.order, work.leaves, work.places, work.ends, work.device)


def made_of(fn, *arrays):
    """The NumpyProgram of `fn` on tensors like these, and its constants."""
    program = recorded(work_of(fn, *arrays))
    return NumpyProgram(program.order, program.places, program.ends), [n.attrs["value"] for n in program.numbers]


def normalized(x, w, b):
    return F.gelu(F.layer_norm(x, (x.shape[-1],), w, b)) @ w[:, None] + b[:, None].T.sum()


def with_columns(x, w, b):
    y = (x * w[None, :]) * (x.sum(1, keepdim=True) + b[0])
    return y, y.T.contiguous(), (y - x).amax(0), (y.T - x.T).mean(0), (x.T + x.T * 2.0 - 1.0).sum(0)


def compared(x, w, b):
    low, high = tg.minimum(x, w), tg.maximum(x, b)
    return tg.where(low < high, low, 0.0), (low == x) & (high == x), tg.softmax(x + b, 1), (low - high).exp().log1p().sum()


def with_numbers(x, w, b):
    s = x.mean()
    return s * w + s, (s - 1.0) / 3.0, (x - s).pow(2).mean(), (x[2] * s)[1:5:2], tg.cat([x, x * s])[:, 3]


def with_views(x, w, b):
    y = x * 2.0
    part, transposed = y[1:4], y.T                       # they share y's memory: nothing may be written over y
    z = y + 1.0
    return (part * 3.0).sum(0), transposed.sum(0), z * y, y.reshape(-1)[::7], tg.stack([z, z]).sum(0)


def with_slices(x, w, b):
    ends = x[:, ::2]                                            # a result, and read by exact arithmetic: a copy
    return ends, ends * 2.0 - x[:, :1], (x[1:, 1:] / x[:-1, :-1]).exp(), x[1:3, ::3].exp() @ w[:len(range(0, x.shape[1], 3))]


def with_reductions(x, w, b):
    y = x * w
    products = x @ y.T, y.T @ x, (x + b) @ w[:, None]
    sums = x.sum(0), y.sum(0), y.T.sum(1), y.sum((0, 1)), x.sum(1), (y.sum(1) * 2.0).sum(0)
    return *products, *sums, x.amax(0), y.amin((0, 1)), y.T.amax(1)


PROGRAMS = [with_reductions, normalized, with_columns, compared, with_numbers, with_views, with_slices]


@pytest.mark.recall
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape", [(7, 13), (33, 65), (1, 16), (129, 100), (300, 5)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_written_computes_the_same_bits(program, shape, dtype, on_numpy):
    random = np.random.default_rng(0)
    given = [random.standard_normal(s).astype(dtype) for s in (shape, shape[1:], shape[1:])]
    if shape[0] < 4 and program in (with_numbers, with_views, with_slices):
        shape = (5, *shape[1:])
        given[0] = random.standard_normal(shape).astype(dtype)
    made, constants = made_of(program, *given)
    for step in range(6):
        arrays = [np.asarray(random.standard_normal(a.shape).astype(dtype)) for a in given]
        before = [a.copy() for a in arrays]
        with np.errstate(all="ignore"):
            found = made(arrays, constants, [])
            wanted = made.run(arrays, constants, [], None)
        assert (made.written is not None) == (step + 1 >= numpy_program.WRITTEN)
        for a, b in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(a, b)                  # what comes in is nobody's to write
        for f, w in zip(found, wanted, strict=True):
            assert (f.dtype, f.shape) == (w.dtype, w.shape)
            assert f.tobytes() == w.tobytes()


@pytest.mark.recall
def test_a_long_routine_is_written_later_and_its_code_is_not_kept(on_numpy, monkeypatch):
    monkeypatch.setattr(numpy_program, "LINES", 10)
    monkeypatch.setattr(generated, "LINES", 10)
    random = np.random.default_rng(0)
    x = random.standard_normal((7, 12)).astype(np.float32)

    def long(x):
        y = x
        for k in range(24):
            y = (y * 0.9 + x).tanh() if k % 2 else y - x
        return y

    made, constants = made_of(long, x)
    expected = numpy_program.WRITTEN * (1 + len(made.steps) // 10)
    assert expected > 3 * numpy_program.WRITTEN
    kept = cache.code_of.cache_info().currsize
    for step in range(expected + 3):
        x = random.standard_normal((7, 12)).astype(np.float32)
        found, = made([x], constants, [])
        assert (made.written is not None) == (step + 1 >= expected)
        wanted = x
        for k in range(24):
            wanted = np.tanh(wanted * np.float32(0.9) + x) if k % 2 else wanted - x
        np.testing.assert_array_equal(found, wanted)
    assert cache.code_of.cache_info().currsize == kept


@pytest.mark.recall
def test_steps_of_thousands_of_operations(monkeypatch):
    """A simulation of 12 numbers in 500 iterations, fitted: what numpy does is written after some steps."""
    if tg.device().kind == "numpy" or not tg.device().in_host_memory:
        pytest.skip("kernels or the interpreter")
    monkeypatch.setattr(tg.config, "eager", True)
    written = []
    real = numpy_program.Writer.__init__
    monkeypatch.setattr(numpy_program.Writer, "__init__", lambda self, routine, *given: (written.append(len(routine.steps)),
                                                                                         real(self, routine, *given))[1])
    start = np.random.default_rng(0).standard_normal(12)
    p = 0.5
    for _ in range(numpy_program.WRITTEN * 4 + 6):
        w = tg.tensor(p, dtype=tg.float64, requires_grad=True)
        z = x = tg.tensor(start)
        for _ in range(500):
            z = z + 0.01 * (w * x - z * z * 0.1).sin()
        loss = (z * z).mean()
        slope, = tg.autograd.grad(loss, w)

        values, tangent = start.copy(), np.zeros(12)               # forward mode by hand
        for _ in range(500):
            inner = p * start - values * values * 0.1
            values, tangent = (values + 0.01 * np.sin(inner),
                               tangent + 0.01 * np.cos(inner) * (start - 0.2 * values * tangent))
        assert abs(loss.item() - (values * values).mean()) < 1e-10
        assert abs(slope.item() - (2 * values * tangent).mean()) < 1e-10
        p -= 0.1 * slope.item()
    assert max(written) > numpy_program.LINES


@pytest.mark.recall
def test_arrays_are_written_over_where_nobody_reads_them_again(on_numpy):
    x = np.ones((64, 65), np.float32)
    made, constants = made_of(lambda x: ((x * 2.0 + 1.0) - x).exp() * x, x)
    kept, kept_constants = made_of(lambda x: (((y := x * 2.0) + 1.0) - x, y), x)
    for _ in range(numpy_program.WRITTEN):
        made([x], constants, [])
        kept([x], kept_constants, [])
    variables = [r.written.__code__.co_nlocals - r.written.__code__.co_argcount for r in (made, kept)]
    assert variables[0] < variables[1]
    results = [made([x], constants, []), kept([x], kept_constants, [])]
    again = [made([x], constants, []), kept([x], kept_constants, [])]
    for first, second in zip(results, again, strict=True):
        for a, b in zip(first, second, strict=True):
            assert not np.may_share_memory(a, b)


def test_errors_come_with_the_users_line(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter has no routines")
    good = tg.eye(3) * 2.0
    for step in range(8):
        found = tg.linalg.inv((good if step < 7 else tg.zeros(3, 3)) + 0.0 * good).sum()
        if step < 7:
            assert found.item() == 1.5
        else:
            with pytest.raises(LinAlgError, match=r"test_numpy_program.py"):
                found.item()


def test_indices_out_of_range_are_reported_by_what_is_written(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter has no routines")
    table = nn.Embedding(7, 5)
    for step in range(8):
        index = tg.tensor([step, 1, step])
        loss = table(index).square().sum()
        loss.backward()
        if step < 7:
            assert np.isfinite(loss.item())
        else:
            with pytest.raises(IndexError, match="7"):
                loss.item()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_paddings_that_do_not_overlap_are_put_together(dtype, on_numpy):
    def split(x):
        parts = [nn.functional.pad(p, (a, 12 - a - p.shape[1])) for p, a in zip(x.split((3, 4, 5), 1), (0, 3, 7), strict=True)]
        return (parts[0] + parts[1]) + parts[2], parts[2]

    def left_out(x):
        return nn.functional.pad(x[:, :3], (0, 9)) + nn.functional.pad(x[:, 7:], (7, 0))

    def overlapping(x):
        return nn.functional.pad(x[:, :8], (0, 4)) + nn.functional.pad(x[:, 7:], (7, 0))

    def of_ones(x):
        return nn.functional.pad(x[:, :3], (0, 9), value=1.0) + nn.functional.pad(x[:, 7:], (7, 0))

    def of_negative_zeros(x):
        return nn.functional.pad(x[:, :3], (0, 9), value=-0.0) + nn.functional.pad(x[:, 7:], (7, 0), value=-0.0)

    def on_top(x):
        return nn.functional.pad(x[:, :3], (0, 9)) + nn.functional.pad(x[:, 3:6], (0, 9))

    x = np.random.default_rng(0).standard_normal((7, 12)).astype(dtype)
    x[2, 5], x[1, 8] = -0.0, np.nan
    for fn, together in ((split, 1), (left_out, 1), (overlapping, 0), (of_ones, 0), (of_negative_zeros, 0), (on_top, 1),
                         (lambda x: split(x)[0], 1)):
        made, constants = made_of(fn, x)
        work = work_of(fn, x)
        assert sum(s.node.fn.name == "concat" for s in made.steps) == together
        found = [made([x], constants, []) for _ in range(numpy_program.WRITTEN + 2)]
        values = {}
        for node in work.order:                                  # one by one
            values[node] = node.fn.numpy(*[values.get(o, x) for o in node.operands], **node.attrs)
        wanted = [values[work.order[i]] for i in work.ends]
        for results in found:
            for f, w in zip(results, wanted, strict=True):
                assert f.tobytes() == w.tobytes()


def test_a_history_that_was_freed_has_paddings_put_together(monkeypatch):
    """The routine of a backward is prepared when the nodes that it was recorded from have let go of their operands."""
    if tg.device().kind == "numpy" or not tg.device().in_host_memory:
        pytest.skip("kernels or the interpreter")
    monkeypatch.setattr(tg.config, "eager", True)
    w = tg.tensor(np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32), requires_grad=True)

    def normal(w):
        return F.gelu(F.layer_norm(w, (12,)))

    def loss(w):
        a, b, c = normal(w).split((3, 4, 5), 1)
        return a.sum() * 2.0 + (b * b).sum() + c.sin().sum()

    wanted = tg.trace(tg.grad(loss))(w.detach()).numpy()
    for _ in range(3):
        normal(w).sum().backward()                              # the calls are known then, so what they are part of is prepared at once
    for _ in range(numpy_program.WRITTEN + 3):
        w.grad = None
        loss(w).backward()
        np.testing.assert_allclose(w.grad.numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_what_passes_change_reports_as_before(on_numpy):
    """Two gathers, one of what the paddings make: what they report comes in the order of the operations, of whoever's they are."""
    def several(x, i, j):
        parts = [nn.functional.pad(p, (a, 6 - a)) for p, a in zip(x.split(6, 1), (0, 6), strict=True)]
        return x[j] * 2.0, (parts[0] + parts[1])[i], x[i].sum()

    random = np.random.default_rng(0)
    x = random.standard_normal((7, 12)).astype(np.float32)
    program = recorded(work_of(several, x, np.array([0, 1]), np.array([2, 3])))
    made = NumpyProgram(program.order, program.places, program.ends)
    assert not any(step.node.fn.name == "pad" for step in made.steps)
    for low, high in ((0, 6), (-9, 6), (3, 8), (-8, 11)):
        inputs = [x, np.array([low, 1]), np.array([1, high])]
        notes, wanted = [], []
        found = made(inputs, [n.attrs["value"] for n in program.numbers], notes)
        values = interpret(program.graph, inputs, wanted)
        assert notes == wanted
        assert any(notes) == (low < -7 or high > 6)
        for f, w in zip(found, values, strict=True):
            assert f.tobytes() == w.tobytes()


@pytest.mark.recall
def test_routines_that_differ_in_sizes_share_their_text(on_numpy):
    written = []
    for n in (7, 13):
        x = np.ones((n, 5), np.float32)
        made, constants = made_of(lambda x: (x.reshape(-1) * 2.0).exp().reshape(5, -1), x)
        for _ in range(numpy_program.WRITTEN + 1):
            found, = made([x], constants, [])
        assert found.shape == (5, n)
        written.append(made.written)
    assert written[0].__code__ is written[1].__code__


@pytest.mark.parametrize(("batch", "channels", "out", "size", "kernel", "stride", "padding", "dilation"), [
    (3, 6, 4, (9, 7), (3, 2), (1, 1), ((1, 1), (0, 1)), (1, 1)),            # the gradient of the image as a convolution
    (3, 6, 4, (9, 7), (3, 2), (1, 1), ((2, 3), (0, 0)), (1, 2)),            # padded by more than the kernel reaches
    (3, 2, 6, (9, 7), (3, 3), (2, 1), ((1, 1), (1, 1)), (1, 1)),
    (4, 8, 12, (3, 3), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),           # few pixels: one product of all images
    (4, 3, 5, (5, 4), (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    (1, 5, 5, (6, 6), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1))])
def test_convolutions_of_numpy_and_their_adjoints(batch, channels, out, size, kernel, stride, padding, dilation):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((batch, channels, *size)), rng.standard_normal((out, channels, *kernel))
    conv, by_image, by_weight = (REGISTRY[name] for name in ("conv2d", "conv2d_input_grad", "conv2d_weight_grad"))
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": 1}
    y = conv.numpy(x, w, **attrs)
    padded = np.pad(x, ((0, 0), (0, 0), *padding))
    wanted = np.zeros_like(y)
    for i, j in np.ndindex(*kernel):
        rows, columns = (slice(t * d, t * d + s * (n - 1) + 1, s)
                         for t, d, s, n in zip((i, j), dilation, stride, y.shape[2:], strict=True))
        wanted += np.einsum("nchw,oc->nohw", padded[:, :, rows, columns], w[:, :, i, j])
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)
    g = rng.standard_normal(y.shape)
    dx, dw = by_image.numpy(g, w, size=size, **attrs), by_weight.numpy(x, g, size=kernel, **attrs)
    assert (dx.shape, dw.shape) == (x.shape, w.shape)
    np.testing.assert_allclose([(dx * x).sum(), (dw * w).sum()], [(y * g).sum()] * 2, rtol=1e-12)
    for other in rng.standard_normal((2, *x.shape)):
        np.testing.assert_allclose((dx * other).sum(), (conv.numpy(other, w, **attrs) * g).sum(), rtol=1e-10, atol=1e-10)
    for other in rng.standard_normal((2, *w.shape)):
        np.testing.assert_allclose((dw * other).sum(), (conv.numpy(x, other, **attrs) * g).sum(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
def test_floats_are_masked_to_the_bit(dtype):
    rng, rule = np.random.default_rng(0), REGISTRY["where"].numpy
    c, x = rng.random((64, 80)) > 0.5, (rng.standard_normal((64, 80)) * 9).astype(dtype)
    if x.dtype.kind == "f":
        x[0, :4] = np.inf, np.nan, -0.0, np.finfo(dtype).smallest_subnormal
    zero = np.zeros((), dtype)
    for other in (zero, -zero, np.broadcast_to(zero, c.shape), np.zeros_like(x), np.ones((), dtype), x[::-1]):
        for a, b in ((x, other), (other, x)):
            assert rule(c, a, b).tobytes() == np.where(c, a, b).tobytes()
            assert rule(c.T, a.T, b.T).tobytes() == np.where(c.T, a.T, b.T).tobytes()


def test_the_error_function_of_many_is_that_of_few():
    x = np.random.default_rng(0).standard_normal((37, 1000)).astype(np.float32)
    found = erf32(x)
    assert found.tobytes() == np.stack([erf32(row) for row in x]).tobytes()
    assert erf32(x.T).tobytes() == found.T.tobytes()


def test_images_whose_channels_come_last_are_cast_row_by_row():
    """Few channels side by side would be NumPy's innermost loop afterwards."""
    image, rows = np.arange(24, dtype=np.uint8).reshape(2, 4, 3).transpose(2, 0, 1), np.ones((2, 20, 30), np.uint8).transpose(1, 0, 2)
    attrs = {"dtype": np.dtype(np.float32), "weak": False}
    for rule in (lambda x: REGISTRY["cast"].numpy(x, **attrs), REGISTRY["cast"].numpy_with(**attrs)):
        assert rule(image).flags.c_contiguous
        assert (rule(image) == image).all()
        assert rule(rows).strides == tuple(4 * s for s in rows.strides)


@pytest.mark.parametrize(("shape", "dim", "sums"), [((8, 17, 3), (0, 1), (8,)), ((33, 2), (0,), (3,)), ((3, 300, 4), (1,), (15,)),
                                                    ((37, 5), (0,), (3,)), ((2, 1009, 3), (1,), (64, 8)), ((31, 3), (0,), ())])
def test_sums_are_made_of_few_numbers_each(shape, dim, sums):
    """Written, step by step and by hand, number after number: to the same bits. (Of 37 and of 1009 numbers some are left over.)"""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    routine, constants = made_of(lambda x: x.sum(dim), x)
    moved = np.moveaxis(x, dim, range(len(dim))).reshape(-1, *[n for d, n in enumerate(shape) if d not in dim])
    for count in (*sums, 1):
        found = moved[:count].copy()
        for k in range(count, len(moved) - len(moved) % count, count):
            found += moved[k:k + count]
        found[:len(moved) % count] += moved[len(moved) - len(moved) % count:]
        moved = found
    for _ in range(numpy_program.WRITTEN + 2):
        assert routine([x], constants, [])[0].tobytes() == moved[0].tobytes()


def test_a_sum_of_many_numbers_keeps_its_digits():
    """Along dimensions in front of others, alone and together: NumPy alone adds up one after the other, and loses three digits."""
    x = np.random.default_rng(0).random((500, 400, 3)).astype(np.float32)
    for dim in ((0,), (0, 1), (1,)):
        wanted = x.sum(dim, dtype=np.float64)
        assert np.max(np.abs(REGISTRY["sum"].numpy(x, dim=dim) - wanted) / wanted) < 3e-7
