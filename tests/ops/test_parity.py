"""Small things that torch does, and so do we: integer convolutions and pools, grids of any size, negative pads, counts in tensors, ...

Untraced and traced, values and gradients, against values of torch 2.15 or numpy loops.
"""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.errors import ArgumentError, AutogradError, DTypeError, IndexOutOfRange, ShapeError, TraceError
from tracegrad.nn import functional as F
from tracegrad.testing import gradcheck

pytestmark = pytest.mark.usefixtures("on_numpy")


def whole(*shape):
    """Integers of both signs, as torch.arange(...) - k."""
    return tg.tensor(np.random.RandomState(1).randint(-9, 10, shape))


def same(found, expected, dtype=None):
    assert found.dtype == (dtype or np.asarray(expected).dtype)
    np.testing.assert_array_equal(found.numpy(), expected)


# --------------------------------------------------------------------------------------------------- convolutions and pools


@pytest.mark.parametrize("dtype", [tg.int64, tg.int32])
def test_convolutions_of_integers_are_exact(run, dtype):
    x, w, b = whole(2, 6, 13, 16).to(dtype), whole(4, 3, 3, 2).to(dtype), whole(4).to(dtype)
    t, line, taps = whole(4, 3, 3, 2).to(dtype), whole(2, 6, 31).to(dtype), whole(3, 6, 5).to(dtype)
    cases = [
        (F.conv2d, (x, w, b), dict(stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)),
        (F.conv2d, (x, w), dict(padding="same", groups=2)),
        (F.conv_transpose2d, (whole(2, 4, 7, 5).to(dtype), t), dict(stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2)),
        (F.conv_transpose2d, (whole(2, 4, 7, 5).to(dtype), t), dict(padding=2, dilation=2)),
        (F.conv1d, (line, taps), dict(stride=3, padding=4)),
        (F.conv_transpose1d, (line, whole(6, 2, 4).to(dtype)), dict(stride=2, padding=3)),
    ]
    for fn, arrays, options in cases:
        found = run(lambda *a, fn=fn, options=options: fn(*a, **options))(*arrays)
        assert found.dtype == dtype
        same(found.double(), fn(*(a.double() for a in arrays), **options).numpy())


def test_an_integer_convolution_is_beyond_what_floats_hold(run):
    x, w = tg.full((1, 1, 3, 3), 2**31), tg.full((1, 1, 3, 3), 2**28 + 1)
    assert run(F.conv2d)(x, w).item() == 9 * 2**31 * (2**28 + 1)
    with pytest.raises(DTypeError, match="conv2d: takes an input and a weight of numbers, got bool and bool"):
        F.conv2d(x > 0, w > 0)
    with pytest.raises(DTypeError, match="conv2d: the bias is float32, the result int64"):
        F.conv2d(x, w, tg.ones(1))


def test_pools_of_int64(run):
    x = tg.arange(50).reshape(1, 2, 5, 5)
    same(run(lambda x: F.avg_pool2d(x, 2))(x), [[[[3, 5], [13, 15]], [[28, 30], [38, 40]]]])
    expected = [[[[0, 0, -1], [-3, -9, -11], [-8, -19, -21]], [[-6, -13, -14], [-16, -34, -36], [-21, -44, -46]]]]
    same(run(lambda x: F.avg_pool2d(-x, 2, padding=1))(x), expected)
    same(run(lambda x: F.avg_pool1d(x[0, :, 0], 2))(x), [[0, 2], [25, 27]])
    same(run(lambda x: F.avg_pool2d(-x, 2, divisor_override=7))(x), [[[[-1, -2], [-7, -8]], [[-16, -17], [-21, -22]]]])
    same(run(lambda x: F.max_pool2d(-1 - x, 3, padding=1))(x), [[[[-1, -3], [-11, -13]], [[-26, -28], [-36, -38]]]])
    with pytest.raises(DTypeError, match="avg_pool2d: takes floats or int64, got int32"):
        F.avg_pool2d(x.int(), 2)


@pytest.mark.parametrize(("shape", "cells"), [((2, 3, 13, 16), (7, 5)), ((3, 31, 33), (4, None)), ((1, 2, 5, 3), 8), ((2, 2, 16, 9),
                                             (12, 6)), ((1, 3, 64, 65), (8, 13)), ((2, 1, 7, 7), (7, 1))])
def test_adaptive_average_pools_of_any_size(run, shape, cells):
    x = tg.tensor(np.random.RandomState(2).normal(size=shape), requires_grad=True)
    rows, columns = (cells, cells) if isinstance(cells, int) else (shape[-2] if cells[0] is None else cells[0], cells[1] or shape[-1])
    expected, gradient = np.zeros((*shape[:-2], rows, columns)), np.zeros(shape)
    for i in range(rows):
        for j in range(columns):
            top, bottom = floor(i * shape[-2] / rows), ceil((i + 1) * shape[-2] / rows)
            left, right = floor(j * shape[-1] / columns), ceil((j + 1) * shape[-1] / columns)
            expected[..., i, j] = x.detach().numpy()[..., top:bottom, left:right].mean((-2, -1))
            gradient[..., top:bottom, left:right] += (i + 2 * j) / ((bottom - top) * (right - left))
    weights = tg.arange(rows, dtype=tg.float64).reshape(-1, 1) + 2 * tg.arange(columns, dtype=tg.float64)

    def pooled(x):
        y = F.adaptive_avg_pool2d(x, cells)
        (y * weights).sum().backward()
        return y.detach(), x.grad

    y, g = run(pooled)(x)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(g.numpy(), gradient, rtol=1e-12)


def test_adaptive_pools_see_only_their_cell():
    x = tg.ones(1, 1, 5, 5)
    x[0, 0, 0, 0] = float("inf")
    x[0, 0, 4, 4] = float("nan")
    y = F.adaptive_avg_pool2d(x, 3).numpy()[0, 0]
    assert y[0, 0] == np.inf
    assert np.isnan(y[2, 2])
    assert (y[:2, 1:] == 1.0).all()
    assert F.adaptive_avg_pool2d(x, 0).shape == (1, 1, 0, 0)
    with pytest.raises(ShapeError, match=r"adaptive_avg_pool2d: takes an input of 4 dimensions .* got \(5, 5\)"):
        F.adaptive_avg_pool2d(x[0, 0], 3)


# --------------------------------------------------------------------------------------------------------------------- pads


def padded(row, low, high, mode):
    """One row, by numpy: torch cuts before "circular" goes round, and after the others have padded."""
    cut = slice(max(0, -low), len(row) - max(0, -high))
    widths = max(0, low), max(0, high)
    if mode == "circular":
        return np.pad(row[cut], widths, mode="wrap")
    full = np.pad(row, widths, mode={"replicate": "edge", "reflect": "reflect"}[mode])
    return full[max(0, -low):len(full) - max(0, -high)]


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_negative_pads_cut_off(run, mode):
    widths = [(-1, 1), (1, -1), (-1, -1), (-2, 3), (2, -2), (-2, 2), (-3, 4), (6, -1), (-6, 5), (3, 2)]
    row = np.random.RandomState(3).normal(size=7)
    x = tg.tensor(np.stack([row, row * 2])[None], requires_grad=True)

    def all_of_them(x):
        found = [F.pad(x, w, mode=mode) for w in widths]
        sum((y * tg.arange(y.shape[2], dtype=y.dtype)).sum() * (k + 1) for k, y in enumerate(found)).backward()
        return [y.detach() for y in found], x.grad

    found, gradient = run(all_of_them)(x)
    expected = np.zeros(7)
    for k, (y, (low, high)) in enumerate(zip(found, widths, strict=True)):
        np.testing.assert_array_equal(y.numpy()[0, 0], padded(row, low, high, mode))
        for j, source in enumerate(padded(np.arange(7), low, high, mode)):
            expected[source] += j * (k + 1)
    np.testing.assert_allclose(gradient.numpy()[0, 1], expected)


def test_pads_with_zeros_of_either_sign(run):
    """Attributes that are equal and not the same: -0.0 equals 0.0, so the nodes, and what is remembered of them, were one."""
    values = [0.0, -0.0, complex(0.0, -0.0), complex(-0.0, 0.0), complex(-0.0, -0.0), complex(1.0, -0.0), complex(-0.0, 2.0), 0.0, 1.0 + 0j]
    x = tg.arange(1.0, 34.0)
    f = run(lambda x: [F.pad(x if isinstance(v, float) else x.to(tg.complex64), (1, 2), value=v) for v in values])
    for _ in range(3):
        for v, y in zip(values, f(x), strict=True):
            edge = np.array(v, y.numpy().dtype)
            assert y.numpy().tobytes() == np.pad(x.numpy().astype(edge.dtype), (1, 2), constant_values=edge).tobytes(), v


def test_pads_of_two_dimensions_and_their_limits():
    x = tg.arange(40.0).reshape(1, 2, 4, 5)
    image = x.numpy()[0, 0]
    for mode in ("reflect", "replicate", "circular"):
        expected = np.apply_along_axis(padded, 1, np.apply_along_axis(padded, 0, image, 1, -2, mode), -1, 2, mode)
        np.testing.assert_array_equal(F.pad(x, (-1, 2, 1, -2), mode=mode).numpy()[0, 0], expected)
        with pytest.raises(ShapeError, match="pad: -3 and -3 cut off all of dimension 3 of"):
            F.pad(x, (-3, -3), mode=mode)
    assert F.pad(x, (-3, -2), mode="circular").shape == (1, 2, 4, 0)
    with pytest.raises(ShapeError, match=r"pad: mode 'reflect' takes at most 4 in dimension 3 of .* got 5 and -1"):
        F.pad(x, (5, -1), mode="reflect")
    with pytest.raises(ShapeError, match="pad: mode 'circular' takes at most 5 in dimension 3"):
        F.pad(x, (6, 0), mode="circular")
    with pytest.raises(ShapeError, match="pad: -5 and 2 cut off all that mode 'circular' could repeat"):
        F.pad(x, (-5, 2), mode="circular")


# ------------------------------------------------------------------------------------- what depends on values, and small dtypes


def test_repeat_interleave_with_counts():
    x = tg.arange(12.0).reshape(3, 4).requires_grad_()
    for counts, dim in (([2, 0, 1], 0), ([2, 0, 1, 3], 1), ([2], 1), (2, 0), ([0, 0, 0], 0)):
        for repeats in (tg.tensor(counts), tg.tensor(counts).int(), counts):
            expected = np.repeat(x.detach().numpy(), counts, axis=dim)
            y = x.repeat_interleave(repeats, dim=dim)
            np.testing.assert_array_equal(y.detach().numpy(), expected)
            (g,) = tg.autograd.grad((y * y).sum(), x)
            each = np.broadcast_to(counts, (x.shape[dim],)).reshape((-1, 1) if dim == 0 else (1, -1))
            np.testing.assert_allclose(g.numpy(), 2 * x.detach().numpy() * each)
    same(tg.repeat_interleave(tg.tensor([2, 0, 3])), [0, 0, 2, 2, 2])
    same(tg.repeat_interleave(tg.tensor([[1, 2], [3, 4]]), tg.tensor([1, 0, 2, 1])), [1, 3, 3, 4])
    same(tg.repeat_interleave(tg.tensor([1, 2, 3]), tg.tensor([2, 0, 1]), output_size=3), [1, 1, 3])
    same(tg.trace(lambda x: x.repeat_interleave([2, 0, 1]))(tg.tensor([1, 2, 3])), [1, 1, 3])
    y = tg.tensor([1.0, 2.0, 3.0])
    for error, message, arguments in [
        (ShapeError, "output_size is 4, but the repeats add up to 3", (tg.tensor([2, 0, 1]), 0, 4)),
        (ArgumentError, "repeats must be 0 or more, got -1", (tg.tensor([2, -1, 1]), 0, None)),
        (ShapeError, r"one for each of the 3 elements along dimension 0 of \(3,\), got int64\[2\]", (tg.tensor([2, 1]), 0, None)),
        (DTypeError, "repeats must hold integers, got float32", (y, 0, None)),
    ]:
        with pytest.raises(error, match=f"repeat_interleave: .*{message}"):
            y.repeat_interleave(arguments[0], dim=arguments[1], output_size=arguments[2])
    with pytest.raises(TraceError, match=r"repeat_interleave: .* not known inside @trace; give the counts as a list, which is static"):
        tg.trace(lambda x, n: x.repeat_interleave(n))(y, tg.tensor([1, 2, 3]))


def test_one_hot_finds_its_classes():
    same(F.one_hot(tg.tensor([0, 2, 1])), np.eye(3, dtype=np.int64)[[0, 2, 1]])
    same(F.one_hot(tg.tensor(3)), [0, 0, 0, 1])
    same(F.one_hot(tg.tensor([[0, 1], [2, 0]]), -1), np.eye(3, dtype=np.int64)[[[0, 1], [2, 0]]])
    same(tg.trace(lambda i: F.one_hot(i, 4))(tg.tensor([3, 0])), [[0, 0, 0, 1], [1, 0, 0, 0]])
    with pytest.raises(ArgumentError, match=r"one_hot: an input of shape \(0,\) has no largest class; give num_classes"):
        F.one_hot(tg.zeros(0, dtype=tg.int64))
    with pytest.raises(IndexOutOfRange, match=r"one_hot .*input holds -2"):
        F.one_hot(tg.tensor([0, -2, 1])).numpy()
    with pytest.raises(ArgumentError, match=r"one_hot: num_classes must be positive, or -1 .* got 0"):
        F.one_hot(tg.tensor([0]), 0)
    with pytest.raises(DTypeError, match=r"one_hot: input must hold integers, got float32"):
        F.one_hot(tg.ones(3))
    with pytest.raises(TraceError, match=r"one_hot: the result depends on the values of input, .* give num_classes"):
        tg.trace(F.one_hot)(tg.tensor([1, 2]))


def test_narrow_takes_a_start_in_a_tensor():
    x = tg.arange(12.0).reshape(3, 4)
    v = x.narrow(1, tg.tensor(-2), 2)
    np.testing.assert_array_equal(v.numpy(), x.numpy()[:, 2:])
    v.zero_()                                        # a view
    assert x.sum().item() == 0 + 1 + 4 + 5 + 8 + 9
    with pytest.raises(IndexOutOfRange, match=r"narrow: start 3 and length 2 exceed dimension 1 of \(3, 4\)"):
        tg.narrow(x, 1, tg.tensor(3), 2)
    with pytest.raises(DTypeError, match="narrow: start must hold integers, got float32"):
        tg.narrow(x, 1, tg.tensor(1.0), 2)
    with pytest.raises(ShapeError, match=r"narrow: a start that is a tensor must be 0-d, got shape \(1,\)"):
        tg.narrow(x, 1, tg.tensor([1]), 2)
    with pytest.raises(TraceError, match=r"narrow: .* not known inside @trace; use x.index_select\(1, start \+ tg.arange\(2\)\)"):
        tg.trace(lambda x, i: tg.narrow(x, 1, i, 2))(x, tg.tensor(1))
    found = tg.trace(lambda x, i: x.index_select(1, i + tg.arange(2)))(tg.arange(12.0).reshape(3, 4), tg.tensor(1))
    np.testing.assert_array_equal(found.numpy(), np.arange(12.0).reshape(3, 4)[:, 1:3])


def test_gather_takes_a_smaller_index(run):
    x = tg.arange(12.0).reshape(3, 4).requires_grad_()

    def gathered(x):
        y, z = x.gather(1, tg.tensor([[0, 1], [3, 2]])), x.gather(0, tg.tensor([[0, 1, 2]]))
        ((y * y).sum() + (z * 3).sum()).backward()
        return y.detach(), z.detach(), x.grad

    y, z, g = run(gathered)(x)
    same(y, np.array([[0, 1], [7, 6]], np.float32))
    same(z, np.array([[0, 5, 10]], np.float32))
    same(g, np.array([[3, 2, 0, 0], [0, 3, 12, 14], [0, 0, 3, 0]], np.float32))


def test_bools_and_integers_keep_what_torch_keeps(run):
    flags, numbers = tg.tensor([True, False]), tg.tensor([-3, 0, 9])

    def f(flags, numbers):
        return [tg.sign(flags), tg.square(flags), tg.square(numbers), F.hardtanh(numbers), F.hardtanh(numbers, -2.9, 2.9), F.relu6(numbers),
                F.hardtanh(numbers.to(tg.uint8) % 5, -2, 300)]

    found = run(f)(flags, numbers)
    expected = [[True, False], [1, 0], [9, 0, 81], [-1, 0, 1], [-2, 0, 2], [0, 0, 6], np.array([3, 0, 4], np.uint8)]
    for a, b in zip(found, expected, strict=True):
        same(a, b)
    with pytest.raises(DTypeError, match="hardtanh: does not take bool"):
        F.hardtanh(flags)


def test_linspace_of_integers(run):
    for (start, end, steps), expected in {
        (0, 10, 5): [0, 2, 5, 7, 10], (0, 10, 4): [0, 3, 6, 10], (10, 0, 4): [10, 6, 3, 0], (0.5, 10.7, 4): [0, 3, 6, 10], (3, 10, 1): [3],
        (-7, 7, 5): [-7, -3, 0, 3, 7], (0, 2**40, 6): [0, 219902325555, 439804651110, 659706976665, 879609302220, 1099511627776],
        (-100, 3, 8): [-100, -85, -70, -55, -41, -26, -11, 3], (4, 5, 0): [],
    }.items():
        same(run(lambda a=start, b=end, n=steps: tg.linspace(a, b, n, dtype=tg.int64))(), np.array(expected, np.int64))
    same(tg.linspace(0, 255, 6, dtype=tg.uint8), np.array([0, 51, 102, 153, 204, 255], np.uint8))
    with pytest.raises(DTypeError, match="linspace: the number 300 does not fit uint8"):
        tg.linspace(0, 300, 4, dtype=tg.uint8)
    with pytest.raises(DTypeError, match="linspace: does not make bools"):
        tg.linspace(0, 1, 4, dtype=tg.bool_)


def test_attention_of_matrices(run):
    q, k, v = (tg.tensor(np.random.RandomState(i).normal(size=s)) for i, s in enumerate([(7, 5), (13, 5), (13, 3)]))
    attend = run(F.scaled_dot_product_attention)
    found = attend(q, k, v)
    batched = F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])
    np.testing.assert_allclose(found.numpy(), batched.numpy()[0, 0], rtol=1e-12)
    assert gradcheck(F.scaled_dot_product_attention, [t[:4].clone().requires_grad_() for t in (q, k, v)])


# ------------------------------------------------------------------------------------------------- t_, squeeze_, unsqueeze_, ...


class TestViewsInPlace:
    def test_values(self, run):
        def f(x):
            a, b, c, d = (x * 1 for _ in range(4))
            assert a.squeeze_(0) is a
            return a.t_(), b.unsqueeze_(-1), c.transpose_(0, 2), d.squeeze_(), (x * 1).unsqueeze_(0).squeeze_((0, 1))

        x = np.arange(21.0).reshape(1, 7, 3)
        for found, expected in zip(run(f)(tg.tensor(x)), (x[0].T, x[..., None], x.transpose(2, 1, 0), x[0], x[0]), strict=True):
            same(found, expected)

    def test_memory_is_shared_with_views_made_before_and_after(self, run):
        def f(x):
            a = x * 1
            flat, row = a.view(6), a[1]
            a.t_()
            after = a[0]
            a[0, 1] = 10.0
            flat[0] = 5.0
            row.unsqueeze_(1)
            row.mul_(2)
            after.unsqueeze_(0).t_()
            after[0, 0] = 7.0
            return a, flat, row, after

        expected = [[7.0, 20.0], [1.0, 8.0], [2.0, 10.0]], [7.0, 1.0, 2.0, 20.0, 8.0, 10.0], [[20.0], [8.0], [10.0]], [[7.0], [20.0]]
        for found, value in zip(run(f)(tg.arange(6.0).reshape(2, 3)), expected, strict=True):
            same(found, np.array(value, np.float32))

    def test_a_view_moved_in_place_writes_its_base(self):
        a = tg.arange(6.0).reshape(2, 3)
        v = a[:, 1:]
        v.t_()
        v[0, 0] = 10.0
        v.mul_(2)
        same(a, np.array([[0, 20, 4], [3, 8, 10]], np.float32))
        same(v, np.array([[20, 8], [4, 10]], np.float32))
        d = a.detach()
        d.t_()
        d[0, 1] = 9.0
        assert a[1, 0].item() == 9.0
        assert a.shape == (2, 3)

    def test_gradients(self, run):
        def f(a):
            b = a * 2
            v = b[0]
            b.t_()
            b[0] = 0.0
            v.unsqueeze_(1)
            (b * b).sum().backward(retain_graph=True)
            first = a.grad.clone()
            (v * v).sum().backward()
            return first, a.grad

        first, both = run(f)(tg.arange(6.0).reshape(2, 3).requires_grad_())
        same(first, np.array([[0, 8, 16], [0, 32, 40]], np.float32))
        same(both, np.array([[0, 16, 32], [0, 32, 40]], np.float32))

    def test_leaves(self):
        a = tg.arange(6.0).reshape(2, 3).requires_grad_()
        for call in (a.t_, lambda: a[0].unsqueeze_(0)):
            with pytest.raises(AutogradError, match="a leaf tensor that requires grad, or a view of one, was modified in place"):
                call()
        assert a.shape == (2, 3)
        with tg.no_grad():
            a.t_()
        (a * a).sum().backward()
        assert a.is_leaf
        same(a.grad, np.array([[0, 6], [2, 8], [4, 10]], np.float32))
        b = a * 2
        with tg.no_grad(), pytest.raises(AutogradError, match="t_: a tensor with a derivative history was modified in place"):
            b.t_()

    def test_a_tensor_from_outside_keeps_its_shape_in_a_trace(self):
        x = tg.ones(2, 3)
        with pytest.raises(TraceError, match=r"t_ at .* a tensor from outside cannot get another shape.* use the result of t()"):
            tg.trace(lambda: x.t_() * 1)()
        assert x.shape == (2, 3)
        assert tg.trace(lambda: x.t() * 1)().shape == (3, 2)


def test_on_the_default_device(device):
    """Once through the kernels: what is composed here has no kernels of its own."""
    x, w = tg.tensor(np.arange(2 * 6 * 13 * 16).reshape(2, 6, 13, 16) % 19 - 9), whole(4, 3, 3, 2)
    image = tg.randn(2, 3, 13, 16, dtype=tg.float32)
    row = tg.arange(33.0)

    @tg.trace
    def f(x, w, image, row):
        y = F.conv2d(x, w, stride=(2, 1), padding=1, groups=2)
        means = F.avg_pool2d(x, 3, padding=1)
        a = row * 1
        a.unsqueeze_(0)
        pads = [F.pad(a, p, mode=m) for m in ("reflect", "replicate", "circular") for p in ((-3, 20), (7, -9))]
        return y, means, F.adaptive_avg_pool2d(image, (5, 7)), pads

    previous = tg.device()
    y, means, cells, pads = f(x, w, image, row)
    tg.set_device("numpy")
    try:
        x, w, image, row = (t.to(device="numpy") for t in (x, w, image, row))
        expected = f(x, w, image, row)
    finally:
        tg.set_device(previous)
    for a, b in zip([y, means, *pads], [*expected[:2], *expected[3]], strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    np.testing.assert_allclose(cells.numpy(), expected[2].numpy(), rtol=1e-5, atol=1e-6)
