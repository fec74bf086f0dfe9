"""The classes of kernels that are written for GPUs, at odd sizes on several of them, run without a driver. Start at `TARGETS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.kernels import Checked
from tests.helpers.plan_audit import GPU, audit, planned
from tests.helpers.plan_audit import TARGETS as AUDITED
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning, tuned

TARGETS = {
    "waves of 32": replace(GPU, cores=4),
    "waves of 64": replace(GPU, cores=4, lanes=64, resident=2560, max_work_group=1024, local_memory=65536),
    "groups of 64": replace(GPU, cores=2, max_work_group=64, local_memory=16384),
    "little local memory": replace(GPU, cores=4, max_work_group=128, local_memory=4096),
    "no float64": replace(GPU, cores=4, max_work_group=512, lanes=16, local_memory=65536, fp64=False),
    "no local memory": replace(GPU, cores=2, local_memory=0),
    "groups of 1": replace(GPU, cores=2, max_work_group=1),
}
pytestmark = [pytest.mark.usefixtures("on_numpy"), pytest.mark.long]
RNG = np.random.default_rng(0)


def checked(fn: Callable[..., Any], *arrays: Any, targets: dict[str, Target] = TARGETS, tuning: Tuning | None = None) -> None:
    """Traced `fn`, its kernels for each target run and compared; float64 where the target has it."""
    wide = any(np.asarray(a).dtype == np.float64 for a in arrays)
    given = {name: target for name, target in targets.items() if target.fp64 or not wide}
    with Checked(given, tuning=tuning, slack=4.0) as ran:
        tg.trace(fn)(*[tg.tensor(a) for a in arrays])
    assert ran.count == len(given)


def kernels(fn: Callable[..., Any], *arrays: Any, target: Target = GPU, tuning: Tuning | None = None) -> list[Any]:
    """The launches of traced `fn`."""
    with tuned(tuning or Tuning()):
        return list(planned(fn, arrays, target)[0].launches)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------------------------------------------------------------- short rows


@pytest.mark.parametrize(("rows", "cols", "dtype"), [(7, 4, np.float32), (33, 5, np.float64), (65, 13, np.float32), (2, 16, np.float64),
                                                     (100, 7, np.float32), (57, 2, np.float32), (20, 17, np.float32)])
def test_short_rows(rows: int, cols: int, dtype: Any) -> None:
    x, w = normal(rows, cols, dtype=dtype), normal(rows, cols, dtype=dtype)
    w[0, 0], w[1] = np.nan, np.inf
    checked(lambda x, w: (x.softmax(-1), x.amax(-1) + w.sum(-1), (x * w).amin(-1), x.prod(-1)), x, w)
    checked(tg.grad(lambda x, y: ((x.softmax(-1) * y).sum(-1) ** 2).sum(), argnums=(0, 1)), x, normal(rows, cols, dtype=dtype))


def test_short_rows_of_integers_and_bools() -> None:
    x = RNG.integers(-5, 5, (77, 9))
    checked(lambda x: (x.sum(-1), x.amax(-1), (x > 0).all(-1), (x > 3).any(-1)), x)
    checked(lambda x, b: (x.t().softmax(-1), (x + b).sum(0), x[:, 1:].sum(-1)), normal(9, 77), normal(77))


def test_short_rows_are_one_kernel() -> None:
    x = np.zeros((1000, 10), np.float32)
    assert len(kernels(lambda x: x.softmax(-1), x)) == 1
    assert len(kernels(F.cross_entropy, x, np.zeros(1000, np.int64))) == 3


def test_sums_over_short_broadcasts_stay_written_out() -> None:
    """Squares of distances: what is summed up is nowhere, and each of the operands is small."""
    launch, = kernels(lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1), np.zeros((64, 8), np.float32), np.zeros((48, 8), np.float32))
    assert launch.local_size == (256,)


def test_updates_in_place_of_short_rows() -> None:
    def normalized(x: Any) -> Any:
        x.div_(x.sum(-1, keepdim=True))
        return x

    checked(normalized, np.abs(normal(101, 11)) + 1)


# ---------------------------------------------------------------------------------------------------- equal kernels in one launch


SIZES = [64, 7, 300, 256, 1, 257, 33, 513]


def adam(lr: float, *tensors: Any) -> Any:
    """An update in place of parameters and both moments."""
    out = []
    for p, g, m, v in zip(tensors[::4], tensors[1::4], tensors[2::4], tensors[3::4], strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.sub_(lr * m / (v.sqrt() + 1e-8))
        out += [p, m, v]
    return tuple(out)


def test_equal_updates_are_one_launch() -> None:
    arrays = [np.abs(normal(n)) for n in SIZES for _ in range(4)]
    checked(adam, 0.25, *arrays)
    one, launch = kernels(adam, 0.25, *[np.zeros(n, np.float32) for n in SIZES for _ in range(4)])
    assert (one.global_size, launch.global_size) == ((1,), (256 * 11,))       # of one element it is another kernel
    assert len(kernels(adam, 0.25, *[np.zeros(9 + n, np.float32) for n in range(40) for _ in range(4)])) == 4     # 280 buffers


def test_equal_kernels_of_one_item() -> None:
    """An item's number is no variable where there is one item, but the launch of several such kernels has it."""
    def squares(x: Any, m: Any, u: Any) -> Any:
        return ((m @ x)[:6] ** 2).sum(), ((u @ x)[:6] ** 2).sum()

    checked(squares, normal(6), normal(6, 6), normal(7, 6))
    assert "2 kernels side by side" in planned(squares, [normal(6), normal(6, 6), normal(7, 6)], GPU)[0].source


def test_updates_that_wait_for_each_other_are_launched_in_turn() -> None:
    def chain(*xs: Any) -> Any:
        made = [x * 2 + 1 for x in xs]
        for i in range(1, len(xs)):
            made[i] = made[i] * made[i - 1].sum()
        return tuple(made)

    checked(chain, *[normal(n) for n in SIZES])


def test_equal_kernels_of_several_launches() -> None:
    """More than a launch may have buffers, and some that wait for others: each launch has a kernel of its own."""
    def steps(*xs: Any) -> Any:
        return tuple(x.cumsum(0) for x in (*xs, xs[0].cumsum(0), xs[1].cumsum(0), xs[2].cumsum(0).sin()))

    for buffers in (4, 7, 96):
        checked(steps, *[normal(6, 40) for _ in range(7)], targets={"one": TARGETS["no local memory"]},
                tuning=Tuning(merged_parameters=buffers))


def test_equal_kernels_of_different_types_and_numbers() -> None:
    def mixed(a: float, *xs: Any) -> Any:
        return tuple((x * a + i // 2).tanh() if i % 3 else x + 1 for i, x in enumerate(xs))

    checked(mixed, 1.5, *[normal(n, dtype=d) for n, d in zip(SIZES, [np.float32, np.float16] * 4, strict=True)])
    table = [normal(n, 3) for n in SIZES]
    checked(lambda i, *xs: tuple(x[i] for x in xs), np.zeros(11, np.int64), *table)


# -------------------------------------------------------------------------------------------------------------- transposed reads


TILED = Tuning(tiled=1)


@pytest.mark.parametrize(("rows", "cols", "dtype"), [(33, 65, np.float32), (64, 32, np.float64), (100, 17, np.float16),
                                                     (16, 300, np.int32)])
def test_transposed_reads(rows: int, cols: int, dtype: Any) -> None:
    x, y = (RNG.integers(-9, 9, shape).astype(dtype) for shape in ((rows, cols), (cols, rows)))
    checked(lambda x, y: (x.t() + y, x.t() * 2 - x.t()[:, :1]), x, y, tuning=TILED)


def test_transposed_reads_of_many_dimensions() -> None:
    x = normal(3, 17, 5, 33)
    checked(lambda x: (x.permute(0, 2, 3, 1) * 2, x.permute(3, 1, 2, 0) + 1, x.permute(0, 3, 2, 1).reshape(3, 33, -1) - 1), x, tuning=TILED)
    checked(lambda x, y: (x.transpose(0, 1)[::2] + y, x.flip(0).transpose(0, 1) * y[:1]), normal(40, 34), normal(17, 40), tuning=TILED)
    checked(lambda line, lane, other: (line.t() + lane.t() * other, (line * other.t()).sum(0)), normal(33, 70), normal(33, 70),
            normal(70, 33), tuning=TILED)


def test_updates_in_place_of_what_is_read_transposed() -> None:
    def symmetric(x: Any, y: Any) -> Any:
        y.add_(x.t())
        x.copy_((x + x.t()) / 2)
        return x, y

    checked(symmetric, normal(65, 65), normal(65, 65), tuning=TILED)


def test_a_transposed_read_is_coalesced() -> None:
    found, = audit(lambda x: x.transpose(1, 2) * 2, [np.zeros((8, 100, 300), np.float32)], GPU)
    assert (found.sectors < 1.5, found.conflicts, found.local) == (True, 1.0, (32, 8, 1))


# ----------------------------------------------------------------------------------------- phases of a strided convolution's gradient


@pytest.mark.parametrize(("x", "w", "options"), [
    ((2, 3, 9, 13), (4, 3, 3, 3), dict(stride=2, padding=1)),
    ((1, 2, 8, 16), (3, 2, 4, 4), dict(stride=2, padding=1)),
    ((2, 4, 8, 10), (6, 2, 2, 2), dict(stride=2, groups=2)),
    ((1, 3, 17, 14), (5, 3, 7, 7), dict(stride=2, padding=3)),
    ((2, 5, 7, 9), (3, 5, 1, 1), dict(stride=2)),
    ((1, 2, 13, 12), (2, 2, 3, 3), dict(stride=4, dilation=2, padding=1)),
    ((1, 2, 15, 16), (2, 2, 3, 2), dict(stride=(3, 4), dilation=(2, 6), padding=(2, 3))),
    ((1, 4, 9, 16), (4, 1, 3, 5), dict(stride=(1, 3), padding=(1, 2), groups=4)),
    ((3, 1, 1, 33), (9, 1, 1, 5), dict(stride=(2, 2), padding=(0, 2))),
    ((1, 3, 12, 12), (7, 3, 4, 4), dict(stride=4)),
])
def test_gradients_of_strided_convolutions(x: Any, w: Any, options: Any) -> None:
    def loss(x: Any, w: Any) -> Any:
        return (F.conv2d(x, w, **options).tanh() ** 2).sum()

    x, w = normal(*x, dtype=np.float64), normal(*w, dtype=np.float64)
    small = replace(GPU, cores=2, max_work_group=16)          # their kernels are the same, and sooner run
    checked(tg.grad(loss), x, w, targets={"small": small, "groups of 1": TARGETS["groups of 1"]})
    checked(tg.grad(loss), x, w, targets={"small": small}, tuning=Tuning(split_k=2, split_flops=1, thin=1))


def test_strided_convolutions_transposed() -> None:
    x, w, b = normal(2, 4, 5, 7), normal(4, 3, 3, 3), normal(3)
    checked(lambda x, w, b: F.relu(F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1)) * 2, x, w, b,
            targets={name: TARGETS[name] for name in ("groups of 64", "no float64", "no local memory")})
    x, w, b = np.zeros((8, 64, 16, 16), np.float32), np.zeros((64, 32, 3, 3), np.float32), np.zeros(32, np.float32)
    one, = kernels(lambda x, w, b: F.relu(F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1)) * 2, x, w, b,
                   tuning=Tuning(split_k=1 << 20))            # (cut along k it would be two)
    assert one.global_size[2] == 4
    assert len(kernels(tg.grad(lambda x, w: F.conv2d(x, w, stride=16).sum()), normal(1, 3, 64, 64), normal(8, 3, 16, 16))) <= 2


@pytest.mark.parametrize("options", [dict(padding=1), dict(stride=2), dict(padding=2, dilation=2)])
def test_depthwise_convolutions(options: Any) -> None:
    def loss(x: Any, w: Any) -> Any:
        return (F.conv2d(x, w, groups=5, **options).tanh() ** 2).sum()

    checked(tg.value_and_grad(loss, (0, 1)), normal(1, 5, 7, 9), normal(10, 1, 3, 3), targets={"small": replace(GPU, max_work_group=32)})
    x, w = np.zeros((4, 64, 32, 32), np.float32), np.zeros((64, 1, 3, 3), np.float32)
    first, = kernels(lambda x, w: F.conv2d(x, w, padding=1, groups=64), x, w)
    assert np.prod(first.global_size) == 4 * 64 * 32 * 32


def test_few_rows_and_a_short_k() -> None:
    checked(lambda a, b: (a @ b, b.mT @ a.mT, (a * 2) @ b.exp(), a[0] @ b[:, :, :1]), normal(7, 3, 9), normal(7, 9, 33))


@pytest.mark.parametrize("way", ["ab", "aT", "bT"])
def test_neighbours_of_halves_are_read_side_by_side(way: str) -> None:
    """Operands that are computed as they are read, or stored in another dtype, lie as what is read does."""
    def product(a: Any, b: Any) -> Any:
        return (a.t() if way == "aT" else a) @ (b.t() if way == "bT" else b)

    def fused(a: Any, b: Any) -> Any:
        return product(a * 2, b.exp() + b)

    a, b = normal(*((13, 33) if way == "aT" else (33, 13))), normal(*((17, 13) if way == "bT" else (13, 17)))
    small = replace(GPU, max_work_group=16)
    checked(product, a.astype(np.float16), b.astype(np.float16), targets={"one": small})
    checked(fused, a, b, targets={"one": small})
    for fn, dtype in ((product, np.float16), (fused, np.float32)):
        assert max(f.sectors for f in audit(fn, [np.zeros((512, 512), dtype)] * 2, replace(GPU, max_work_group=64))) <= 2


@pytest.mark.parametrize("options", [
    dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=2), dict(kernel_size=(2, 3), stride=(1, 2), padding=(0, 1)),
    dict(kernel_size=3, stride=2, dilation=2, padding=1), dict(kernel_size=4, stride=3, padding=2, ceil_mode=True),
])
def test_gradients_of_max_pooling(options: Any) -> None:
    x = RNG.integers(0, 4, (2, 3, 9, 13)).astype(np.float32)      # with equals
    x[0, 0, 2, 3] = np.nan
    w = normal(*F.max_pool2d(tg.tensor(x), **options).shape)
    checked(tg.grad(lambda x, w: (F.max_pool2d(x, **options) * w).sum()), x, w, targets={"one": GPU})
    plan = kernels(tg.grad(lambda x: F.max_pool2d(x, **options).square().sum()), np.zeros((2, 64, 56, 56), np.float32))
    assert len(plan) <= 3


def test_chunks_of_rows_are_scanned_together() -> None:
    x = normal(3, 1100)
    targets = {name: TARGETS[name] for name in ("waves of 32", "groups of 64")}
    checked(lambda x: (x.cumsum(1), x.cumprod(1), (x > 0).cumsum(1)), x, targets=targets, tuning=Tuning(scan_chunk=64))


# ------------------------------------------------------------------------------------------------------------------- attention


def attention_loss(causal: bool) -> Callable[..., Any]:
    return lambda q, k, v, g: (F.scaled_dot_product_attention(q, k, v, is_causal=causal) * g).sum()


@pytest.mark.parametrize(("group", "shape", "dtype", "causal"), [
    ((8, 8, 2), (2, 7, 13, 3, 4), np.float32, True),          # heads, rows, keys, size of a key, of a value
    ((8, 8, 2), (1, 16, 16, 8, 8), np.float64, False),
    ((4, 8, 1), (1, 13, 7, 9, 5), np.float32, False),
    ((4, 4, 1), (1, 9, 10, 4, 17), np.float64, True),
    ((8, 16, 4), (1, 17, 5, 16, 3), np.float32, True),
])
def test_attention(group: tuple[int, int, int], shape: tuple[int, ...], dtype: Any, causal: bool) -> None:
    heads, rows, keys, size, width = shape
    q, k, v, g = (normal(heads, *s, dtype=dtype) for s in ((rows, size), (keys, size), (keys, width), (rows, width)))
    tuning = Tuning(attention_scores=0, attention_groups=(group,))
    targets = {name: TARGETS[name] for name in ("waves of 32", "groups of 64" if dtype == np.float64 else "no float64")}
    checked(tg.value_and_grad(attention_loss(causal), (0, 1, 2)), q, k, v, g, targets=targets, tuning=tuning)


@pytest.mark.parametrize(("group", "shape", "causal", "mask"), [
    ((4, 4, 1), (2, 13, 33, 3, 4), False, None),
    ((8, 8, 2), (1, 33, 40, 5, 3), True, "float"),
    ((4, 8, 1), (2, 1, 65, 4, 4), False, "bool"),
    ((4, 4, 1), (1, 3, 257, 3, 5), False, None),
])
def test_attention_in_ranges(group: tuple[int, int, int], shape: tuple[int, ...], causal: bool, mask: str | None) -> None:
    """Too few rows and keys for a device: keys are cut in ranges, and rows for the gradients of keys; some rows see nothing."""
    heads, rows, keys, size, width = shape
    q, k, v, g = (normal(heads, *s) for s in ((rows, size), (keys, size), (keys, width), (rows, width)))
    m = RNG.integers(0, 3, (rows, keys)) > 0
    m[rows // 2] = False
    m = m if mask == "bool" else np.where(m, normal(rows, keys), -np.inf).astype(np.float32)
    tuning = Tuning(attention_scores=0, attention_groups=(group,))
    large = replace(GPU, cores=64)

    def loss(q: Any, k: Any, v: Any, g: Any, m: Any) -> Any:
        if causal and mask:
            m = tg.where(tg.ones(rows, keys).tril() > 0, m, -tg.inf)
        return (F.scaled_dot_product_attention(q, k, v, m if mask else None, is_causal=causal and not mask) * g).sum()

    checked(tg.value_and_grad(loss, (0, 1, 2)), q, k, v, g, m, targets={"large": large, "groups of 64": replace(large, max_work_group=64)},
            tuning=tuning)


def test_grouped_queries() -> None:
    """Keys and values of several heads are read where they are: no array of them repeated."""
    times = 3
    q, k, v = normal(2, 2 * times, 9, 4), normal(2, 2, 13, 4), normal(2, 2, 13, 5)
    tuning = Tuning(attention_scores=0, attention_groups=((4, 8, 1),))

    def grouped(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def repeated(q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(times, 1) for x in (k, v))
        return tg.softmax(q @ k.mT * 0.5, -1) @ v

    checked(tg.value_and_grad(lambda *qkv: (grouped(*qkv) ** 2).sum(), (0, 1, 2)), q, k, v,
            targets={"one": replace(GPU, max_work_group=64), "cpu": Target()}, tuning=tuning)

    def shared(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k.expand(-1, 2 * times, -1, -1), v.expand(-1, 2 * times, -1, -1))

    for fn, heads in ((grouped, 2), (repeated, 2), (shared, 1)):
        large = [np.zeros((2, h, 512, 64), np.float32) for h in (2 * times, heads, heads)]
        for target in (replace(GPU, cores=8), Target()):
            assert len(kernels(fn, *large, target=target)) == 1


def test_attention_with_rows_of_minus_infinity_and_nan() -> None:
    q, k, v = normal(1, 6, 2), normal(1, 9, 2), normal(1, 9, 3)
    q[0, 1], q[0, 2] = np.nan, np.inf
    k[0, 3] = -np.inf
    with np.errstate(all="ignore"):
        checked(F.scaled_dot_product_attention, q, k, v, targets={"one": GPU},
                tuning=Tuning(attention_scores=0, attention_groups=((4, 8, 1),)))


def test_what_attention_takes_on_gpus() -> None:
    """The blocks that fit, the largest that fill the device; no array of all scores, forward or backward."""
    given = [np.zeros((2, 8, 256, 64), np.float32)] * 4
    gradient = tg.grad(attention_loss(True), (0, 1, 2))
    large = replace(GPU, local_memory=65536, cores=8)
    assert kernels(F.scaled_dot_product_attention, *given[:3], target=large)[0].local_size == (8, 16)
    for target in (replace(GPU, cores=16), large, replace(GPU, max_work_group=64, cores=16)):
        plan, _, _ = planned(gradient, given, target)
        assert max(slot.nbytes for slot in plan.slots) < 16 * 256 * 256 * 4
    assert len(kernels(F.scaled_dot_product_attention, *given[:3], target=replace(GPU, local_memory=4096))) > 1


# ------------------------------------------------------------------------------------------------------- four elements an item


WIDE = Tuning(wide_items=0)
DTYPES = [np.float32, np.float64, np.float16, np.int8, np.int32, np.int64, np.uint8, np.bool_]


@pytest.mark.parametrize("n", [4, 100, 1036, 33])
def test_elements_four_by_four(n: int) -> None:
    def mixed(k: Any, *xs: Any) -> Any:
        x, *_ = xs
        return (*(y * 2 for y in xs), *(y.to(x.dtype) + x.exp() for y in xs[1:]), tg.where(x > k, x, -1.5), (x > 0) & xs[-1], x.half())

    arrays = [(RNG.integers(-3, 4, n) > 0) if d is np.bool_ else RNG.integers(0, 4, n).astype(d) for d in DTYPES]
    targets = {name: TARGETS[name] for name in ("waves of 32", "groups of 64")}
    checked(mixed, 0.5, *arrays, targets=targets, tuning=WIDE)


def test_updates_and_functions_four_by_four() -> None:
    def update(x: Any, y: Any, s: Any) -> Any:
        x.mul_(0.5).add_(y * s)
        return x, x.erf() + tg.special.digamma(y.abs() + 1), x.atan2(y), x.round(), tg.logaddexp(x, y)

    checked(update, normal(264), normal(264), normal(), targets={"one": GPU}, tuning=WIDE)


def test_four_elements_an_item_where_that_is_right() -> None:
    large = np.zeros((1 << 10, 1 << 11), np.float32)

    def doubled(x: Any) -> Any:
        return x * 2

    def items(fn: Callable[..., Any], x: Any) -> int:
        launch, = kernels(fn, x)
        return int(launch.global_size[0])

    assert [items(doubled, large.astype(d)) * 4 // large.size for d in (np.float32, np.float16, np.int64, np.float64)] == [1, 1, 2, 2]
    for fn in (lambda x: x[1:] * 2, lambda x: x.flip(0) + x, lambda x: x + x[0]):
        assert items(fn, large) <= large.size // 4
    for fn in (lambda x: x[:, 1:] * 2, lambda x: x.flip(1) + x, lambda x: tg.rand(*x.shape) + x, lambda x: x + x.roll(1, 1)):
        assert items(fn, large) >= large.size - large.shape[0]
    assert items(doubled, large[:16]) == 16 * large.shape[1]
    for dtype, macro in ((np.float32, "LOAD_ALIGNED(float4, x + i)"), (np.float16, "vloada_half4(0, x + i)")):
        assert macro in planned(doubled, [large.astype(dtype)], GPU)[0].source


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32, np.bool_])
@pytest.mark.parametrize("width", [4, 6, 33, 64])
def test_rows_that_are_gathered_four_by_four(width: int, dtype: Any) -> None:
    """Rows that begin at multiples of four elements, of two, and anywhere; indices that repeat, and count from the end."""
    def gathered(x: Any, i: Any, j: Any) -> Any:
        return (x[i], F.embedding(j, x), x.index_select(0, j), x[None].index_select(1, j), x[i].logical_or(x[0]), x[1:][j % 3],
                tg.stack([x, x], 1)[j], x[i].unsqueeze(1).expand(-1, 3, -1).contiguous())

    x = RNG.integers(0, 2, (13, width)).astype(dtype)
    i, j = RNG.integers(-13, 13, 28), RNG.integers(0, 13, (7, 4))
    targets = {name: TARGETS[name] for name in ("waves of 32", "groups of 64")}
    checked(gathered, x, i, j.reshape(-1), targets=targets, tuning=WIDE)
    checked(lambda x, j: tg.where(x[:1] > 0, F.embedding(j, x), F.embedding(j.t(), x).transpose(0, 1)), x, j, targets=targets, tuning=WIDE)


def test_rows_four_by_four_are_read_in_one_piece() -> None:
    """Halves as halves; where a row has no multiple of four elements, in twos; of few elements, and of single ones, one by one.

    The kernel's own index gives way to the user's `i`.
    """
    i = np.zeros(60_000, np.int64)

    def text(dtype: Any, width: int, i: Any = i) -> str:
        return str(planned(lambda x, i: x[i], [np.zeros((1000, width), dtype), i], GPU)[0].source)

    assert "LOAD_ALIGNED(float4, x + at * 64 + i1 % 64)" in text(np.float32, 64)
    assert "vloada_half4(0, x + at * 64 + i1 % 64)" in text(np.float16, 64)
    assert "LOAD_ALIGNED(double2, x + at * 64 + i1 % 64)" in text(np.float64, 64)
    assert "LOAD_ALIGNED(float2, x + at * 66 + i1 % 66)" in text(np.float32, 66)
    assert "ALIGNED" not in text(np.float32, 63) + text(np.float32, 64, i[:100]) + text(np.float32, 1)


def test_what_lies_in_rows_four_by_four() -> None:
    """Biases, slices, permutations of all dimensions but the last, several arrays one behind the other, every second element."""
    def lying(x: Any, b: Any) -> Any:
        return (x + b, x[1:] * 2, x.flip(0) + x, x.permute(1, 0, 2) + b, x.reshape(5, 2, 4, 16).permute(2, 0, 1, 3) * 2,
                tg.cat([x, x * 2], 1), x[:, :, ::2] + 1, x[:, :, 1::2] * x[:, :, ::2], F.pad(x, (0, 0, 1, 1)) - 1, x[:, 0] + b,
                x[::3] + b, x.roll(1, 0) - x, x[:, :, 4:12] * 2, x[:, :, 3:11] * 2, F.pad(x, (4, 4)) + 1)

    for dtype in (np.float32, np.float64, np.float16):
        checked(lying, normal(5, 8, 16, dtype=dtype), normal(16, dtype=dtype), targets={"one": GPU}, tuning=WIDE)


def test_gradients_of_what_is_gathered_four_by_four() -> None:
    """Value, gradient and second derivative."""
    def loss(x: Any, i: Any) -> Any:
        return (F.embedding(i, x).tanh() ** 3).sum()

    x, i = normal(7, 12, dtype=np.float64), RNG.integers(0, 7, (5, 3))
    checked(lambda x, i: (loss(x, i), tg.grad(loss)(x, i), tg.grad(lambda x: (tg.grad(loss)(x, i) ** 2).sum())(x)), x, i,
            targets={"one": GPU}, tuning=WIDE)


# --------------------------------------------------------------------------------------------------- what a device says of itself


def test_groups_are_of_whole_waves() -> None:
    for name, target in AUDITED.items():
        launch, = kernels(lambda x: x * 2 + 1, np.zeros(100_000, np.float32), target=target)
        assert (launch.local_size[0] % target.lanes, launch.local_size[0] <= target.max_work_group) == (0, True), name
    odd, small = replace(GPU, max_work_group=100), replace(GPU, max_work_group=20)
    assert [t.group(256) for t in (GPU, odd, small)] == [256, 96, 20]
    assert (GPU.items, GPU.groups(256), replace(GPU, cores=1, resident=64).groups(256)) == (65536, 256, 1)
    checked(lambda x: (x * 2, x.sum(-1), x.cumsum(-1)), normal(7, 300), targets={"odd": odd, "small": small})


def test_larger_devices_get_more_work_groups() -> None:
    """Of what can be cut: chunks of a sum, of a scan, parts of k."""
    large = replace(GPU, cores=4 * GPU.cores)
    held = replace(GPU, resident=4 * GPU.resident)
    for fn, array in ((lambda x: x.sum(), np.zeros(1 << 24, np.float32)), (lambda x: x.argmax(), np.zeros(1 << 24, np.float32)),
                      (lambda x: x.sum(0), np.zeros((1 << 18, 64), np.float32))):
        first, more, same = (kernels(fn, array, target=t)[0].global_size for t in (GPU, large, held))
        assert np.prod(more) >= 2 * np.prod(first)
        assert more == same
    a, b = np.zeros((64, 1 << 15), np.float32), np.zeros((1 << 15, 64), np.float32)
    groups = [launch.global_size for t in (GPU, large) for launch in kernels(lambda a, b: a @ b, a, b, target=t)[:1]]
    assert np.prod(groups[1]) > np.prod(groups[0])
