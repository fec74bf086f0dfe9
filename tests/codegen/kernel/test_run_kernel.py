"""The interpreter of kernels: all kernels, of every target, pass it with the interpreter's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.kernels import DEVICES, TARGETS, TUNINGS, Checked
from tests.helpers.marks import one_of
from tests.random_programs.fuzz import BATCH, FIRST, batch
from tests.random_programs.random_programs import FLOATS, Program, fit, programs
from tests.random_programs.test_fuzz import LONG, arguments, called, examples
from tracegrad.codegen.kernel.run.memory import KernelFault, Memory, Pointer, State
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

SIZES = (7, 13, 16, 24, 31, 32, 33, 40, 64, 65, 100, 127, 128, 129, 257, 300)


def some(number: int, gpu: bool = True) -> dict[str, Any]:
    """A CPU and, if `gpu`, a GPU to check for, other ones for other numbers; all are tried in the long run."""
    cpus, gpus = ({k: t for k, t in TARGETS.items() if t.kind == kind} for kind in ("cpu", "gpu"))
    if LONG:
        return TARGETS
    chosen = list(cpus.items())[number % len(cpus)], list(gpus.items())[number % len(gpus)]
    return dict(chosen if gpu else chosen[:1])


@pytest.fixture
def on_numpy() -> Any:
    previous = tg.device()
    yield tg.set_device("numpy")
    tg.set_device(previous)


def shifted(x: Any, y: Any, n: int) -> list[Any]:
    """A program of each kind of row kernel, before and after pads, rolls, flips, slices and cats."""
    wide = F.pad(x, (n // 3, 2))
    rolled = tg.roll(x, 1, 1) + tg.roll(x, -2, 1) * y
    stencil = x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2]
    both = tg.cat([x.flip(1), y[:, ::2], x * y], 1)
    return [
        wide.sum(1), wide.amax(0), wide - wide.amax(1, keepdim=True), tg.softmax(wide, 1), rolled.sum(0),
        tg.softmax(rolled, 1).cumsum(1),
        stencil.abs().mean(1), F.layer_norm(both, both.shape[1:]), both.argmax(1), (both > 0.5).sum(0),
        tg.logsumexp(tg.roll(both, 3, 1), 1), x.cumprod(1), tg.sort(x, 1)[0], tg.topk(x, 3)[1], x.var(1),
        tg.where(x > y, tg.roll(x, n // 2, 1), y).sum(),
        (-1 - x * x).amax(1), (1 + y * y).amin(0), (-1 - x * x).amax(0) + (1 + y * y).argmin(0),      # of one sign: what they start from
        F.pad(x, (40, 0)).sum(1) - F.pad(y, (0, 40)).amin(1), x.half().sum(0), x.transpose(0, 1) @ y,
    ]


@one_of(8, ("n", "dtype"), [(n, dtype) for k, n in enumerate(SIZES) for dtype in (("float32", "float64"), ("float64", "float32"))[k % 2]])
def test_kernels_of_ordinary_rows(on_numpy: Any, n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    x, y = (tg.tensor(rng.standard_normal((3, n)).astype(dtype)) for _ in range(2))
    with Checked(some(SIZES.index(n) + (dtype == "float64"), n < 65)) as checked:
        tg.trace(lambda x, y: tuple(shifted(x, y, n)))(x, y)
    assert checked.count == len(checked.targets)


@one_of(4, "n", [13, 40, 65, 129])
def test_derivatives_of_ordinary_rows(on_numpy: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = (tg.tensor(rng.standard_normal((3, n))) for _ in range(2))

    def loss(x: Any, y: Any) -> Any:
        floats = [r for r in shifted(x, y, n) if r.dtype == tg.float64]
        return sum(((r * (k + 1)).sin().sum() for k, r in enumerate(floats)), x.sum() * 0)

    def second(x: Any, y: Any) -> Any:
        return tg.grad(lambda x: (tg.grad(loss)(x, y) * y).sum())(x)

    with Checked(some(n, n < 40)) as checked:
        tg.trace(lambda x, y: (tg.value_and_grad(loss, argnums=(0, 1))(x, y), second(x, y)))(x, y)
    assert checked.count == len(checked.targets)


@pytest.mark.parametrize("shape", [(1, 2, 5, 7), (2, 3, 9, 13), (1, 2, 17, 33)])
def test_kernels_of_convolutions(on_numpy: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = tg.tensor(rng.standard_normal(shape).astype("float32"))
    w = tg.tensor(rng.standard_normal((3, shape[1], 3, 3)).astype("float32"))
    with Checked(some(shape[2], shape[2] < 9)) as checked:
        for kwargs in ({}, {"padding": 1}, {"stride": 2, "padding": 1}, {"dilation": 2}):
            loss = partial(lambda k, x, w: F.relu(F.conv2d(x, w, **k)).square().sum(), kwargs)
            tg.trace(tg.value_and_grad(loss, argnums=(0, 1)))(x, w)
    assert checked.count == 4 * len(checked.targets)


@pytest.mark.parametrize("sizes", [(7, 13, 9), (16, 33, 40), (33, 65, 31), (1, 300, 3), (130, 5, 17)])
def test_kernels_of_products(on_numpy: Any, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        a, b, c = (tg.tensor(rng.standard_normal(s).astype(dtype)) for s in ((m, k), (k, n), (n, k)))
        with Checked(some(k, k < 16)) as checked:
            tg.trace(lambda a, b, c: (tg.relu(a @ b + 1), a @ c.t(), (a.t() @ a).sum(0), (a * 2) @ b.exp(), a @ b[:, 0]))(a, b, c)
        assert checked.count == len(checked.targets)


@pytest.mark.long
@pytest.mark.parametrize("n", [7, 33, 65])
def test_products_of_what_is_rolled_from_matrix_to_matrix(on_numpy: Any, n: int) -> None:
    """An operand that differs from one matrix to the next only in where a roll, or an index that is computed, reads it."""
    rng = np.random.default_rng(n)
    x, y = (tg.tensor(rng.standard_normal((6, n))) for _ in range(2))

    @tg.trace
    def step(x: Any, y: Any) -> Any:
        rows, turned = fit(x.roll(1, 0), (3, 5, n)), fit(x, (6, n, 2)).roll(1, 0).transpose(1, 2)
        taken = x[(tg.arange(15) * 3 + 1) % 6].reshape(3, 5, n)
        right = fit(y, (6, n, 4))
        return (tg.bmm(rows, right[:3]), tg.bmm(turned, right.roll(2, 0)), tg.bmm(taken, right[3:]), tg.bmm(rows, right[0].expand(3, n, 4)),
                F.conv2d(fit(x, (3, 6, 7, 9)).roll(1, 0), fit(y, (4, 6, 3, 3)).roll(1, 0)),
                tg.grad(lambda x: (tg.bmm(fit(x.roll(1, 0), (3, 5, n)), right[:3]) ** 2).sum())(x))

    with Checked(slack=16.0) as checked:
        step(x, y)
    assert checked.count


@examples(40, 20_000)
@given(programs())
def test_random_programs(program: Program) -> None:
    """Random programs, forward, as kernels for every target."""
    previous = tg.device()
    tg.set_device("numpy")
    try:
        with Checked():
            called(program, tg.trace(program.function()), 0, "numpy")
    finally:
        tg.set_device(previous)


@pytest.mark.long
def test_many_programs() -> None:
    """The quick fuzz: what tests/helpers/mutations.py puts in is found by these."""
    assert not batch(0, range(FIRST), Counter(), "quick")


@pytest.mark.parametrize(("number", "places"), [(0, range(40)), (10, [173]), (12, [208]), (18, [51]), (26, [155]), (29, [138])])
def test_reductions_between_movements(number: int, places: Iterable[int]) -> None:
    """Also those that were found to add up rows for columns, or not to be proved: one in a thousand."""
    assert not batch(number, places, Counter(), "moves")


@pytest.mark.long
def test_many_reductions_between_movements() -> None:
    for number in range(30, 38):
        assert not batch(number, range(BATCH), Counter(), "moves")


@examples(30, 20_000)
@given(programs(), DEVICES, TUNINGS)
def test_random_programs_for_random_devices_and_thresholds(program: Program, target: Target, tuning: Tuning) -> None:
    previous = tg.device()
    tg.set_device("numpy")
    try:
        with Checked({"drawn": target}, tuning=tuning):
            called(program, tg.trace(program.function()), 0, "numpy")
    finally:
        tg.set_device(previous)


@examples(8, 5_000)
@given(programs())
def test_derivatives_of_random_programs(program: Program) -> None:
    if program.in_place_on_inputs:
        return
    previous = tg.device()
    tg.set_device("numpy")
    try:
        fn = program.function()
        floats = [i for i, a in enumerate(program.arrays(0)) if a.dtype.kind == "f"]

        def loss(*args: Any) -> Any:
            return sum(((r * r).mean().double() for r in fn(*args) if r.is_floating_point()), tg.zeros((), dtype=tg.float64))

        with Checked():
            tg.trace(tg.value_and_grad(loss, argnums=tuple(floats)))(*arguments(program, 0, "numpy"), FLOATS[0])
    finally:
        tg.set_device(previous)


def test_a_gpu_whose_groups_have_one_item(on_numpy: Any) -> None:
    """A row is a group's, though it is one item: such kernels do not become loops of one launch, where every group is the first."""
    one = Target("gpu", 16, 16, 1, 1, 4096, plain_math=False, clang_builtins=False)
    rng = np.random.default_rng(0)
    x, y = (tg.tensor(rng.standard_normal((7, 40)).astype("float32")) for _ in range(2))
    with Checked({"one item": one}) as checked:
        tg.trace(lambda x, y: (F.cross_entropy(x, (y[:, 0] > 0).long()), tg.softmax(x, 1).sum(0), x @ y.t()))(x, y)
    assert checked.count == 1


@pytest.mark.parametrize("n", [7, 33, 100])
def test_updates_in_place(on_numpy: Any, n: int) -> None:
    """Buffers of arguments that are written while others still read the old value at other places."""
    def step(x: Any, y: Any) -> Any:
        before = tg.roll(x, 1, 1) + x.flip(0)
        x.mul_(0.9).add_(y)
        y.copy_(before * x.sum(1, keepdim=True))
        x.sub_(tg.roll(y, 2, 1))
        return before.sum(0), (x * y).amax(1)

    x, y = (tg.tensor(np.random.default_rng(n).standard_normal((3, n))) for _ in range(2))
    with Checked() as checked:
        tg.trace(step)(x, y)
    assert checked.count == len(TARGETS)


@pytest.mark.parametrize("n", [9, 17, 33, 63])
def test_a_chunk_that_is_longer_than_its_row(on_numpy: Any, n: int) -> None:
    """Chunks are multiples of 64 elements: where a row has fewer, nothing behind its end is read ahead of a loop that has no iteration."""
    x = tg.tensor(np.random.default_rng(n).standard_normal(n).astype("float32"))
    with Checked(tuning=Tuning(long_row=4, row_chunk=4)) as checked:
        tg.trace(lambda x: (x.sum(0), x.exp().amax(0)))(x)
    assert checked.count == len(TARGETS)


@pytest.mark.parametrize("sizes", [(7, 33, 13), (3, 40, 22), (6, 65, 31)])
def test_totals_of_split_products(on_numpy: Any, sizes: tuple[int, int, int]) -> None:
    """k in parts, added up by a second kernel, whose last columns are vectors at a known place."""
    m, k, n = sizes
    rng = np.random.default_rng(0)
    a, b = (tg.tensor(rng.standard_normal(s).astype("float32")) for s in ((m, k), (k, n)))
    with Checked(some(0, gpu=False) | {"16 cores": Target(cores=16)}, tuning=Tuning(split_k=4, split_flops=1)) as checked:
        tg.trace(lambda a, b: (a @ b, tg.relu(a @ b + 1.0), (a.half() @ b.half()).sum(0)))(a, b)
    assert checked.count == 2


def test_a_test_that_is_found_again_holds_where_it_is_found() -> None:
    """What a pad's guard lets through only is no part of a test: found again without that guard, a row's first element was wrong."""
    x, y = (tg.tensor(np.random.default_rng(seed).standard_normal((2, 7)), device="numpy") for seed in (0, 1))

    def program(x, y):
        turned = tg.roll(y, 1, 1).flip(1)
        shifted = F.pad(F.pad(turned[:, 1:], (0, 1))[:, :-1], (1, 0))
        return (x + shifted) * turned

    def product(x):
        return tg.roll(x, 1, 1) * x.flip(1)

    with Checked() as checked:
        tg.trace(program)(x, y)
        tg.trace(tg.grad(lambda x: (tg.grad(lambda x: (product(product(x)) ** 2).sum())(x) ** 2).sum()))(x)
    assert checked.count >= 2


def test_a_test_that_is_the_same_in_all_lanes_is_no_mask_of_ones():
    """What is known inside of a pad names the column, and the row's test does not: (t / 3) < 1 was 1 in each lane, where true is -1."""
    def waves(x):
        before = x * 0.9
        for _ in range(2):
            p = F.pad(x, (2, 2), mode="replicate")
            x, before = 2 * x - before + 0.1 * (p[..., 4:] + p[..., :-4] - 2 * x), x
        return x.sum()

    for n in (32, 33, 65):
        x = tg.tensor(np.random.default_rng(0).uniform(-2, 2, (2, 3, n)).astype(np.float32), device="numpy")
        with Checked({"cpu": Target("cpu", 64, 32, 2)}) as found:
            tg.trace(tg.value_and_grad(lambda x: waves(x.roll(1, 0)) ** 2))(x)
        assert found.count


def test_long_rows_of_an_array_without_rows(on_numpy: Any) -> None:
    """No rows are no reason to cut rows in chunks: it was a division by zero."""
    x = tg.tensor(np.zeros((0, 10_000), np.float32))
    with Checked() as checked:
        tg.trace(lambda x: (x.sum(1), x.amin(1), x.expand(3, 0, 10_000).sum((1, 2)), x[:, 1:].mean(1)))(x)
    assert checked.count == len(TARGETS)


def test_kernels_that_read_in_another_order_are_others(on_numpy: Any) -> None:
    """Packing a matrix and its transpose differ in the order of two loops' names only, which the product's text declares."""
    def products(y: Any, x: Any) -> Any:
        a = y.repeat(4)[:50].reshape(2, 5, 5)
        return [m @ (x + k) for k in range(4) for m in (a, a.transpose(-2, -1))]

    rng = np.random.default_rng(0)
    y, x = (tg.tensor(rng.standard_normal(s)) for s in ((14,), (2, 5, 3)))
    with Checked() as checked:
        tg.trace(products)(y, x)
    assert checked.count == len(TARGETS)


def test_an_equal_kernel_that_is_merged_is_another(on_numpy: Any) -> None:
    """On GPUs the first of equal kernels was done side by side with another, under the name that the later ones were launched by."""
    def chain(x: Any, y: Any) -> Any:
        for k in range(6):
            x = (x.roll(1, 0) * 2).sort(1)[0]
            y = (y.roll(1, 0) * 2).sort(1)[0] if k < 1 else y
        return x, y

    x, y = (tg.tensor(np.random.default_rng(seed).standard_normal((7, 13))) for seed in (0, 1))
    with Checked() as checked:
        tg.trace(chain)(x, y)
    assert checked.count == len(TARGETS)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_shifts_drop_what_does_not_fit(on_numpy: Any, dtype: str) -> None:
    """A generator of random numbers: of vectors, and of the elements that are left."""
    x = tg.tensor(np.arange(1, 14) * (2**31 - 1) // 13, dtype=getattr(tg, dtype))
    with Checked({"avx2": TARGETS["avx2"]}) as found:
        tg.trace(lambda x: (x ^ (x << 17)) ^ ((x ^ (x << 17)) << 13))(x)
    assert found.count == 1



@pytest.mark.parametrize("dtype", ["int64", "int8"])
def test_products_of_integers_wrap(on_numpy: Any, dtype: str) -> None:
    """A product of forty numbers leaves 64 bits, which C leaves undefined for signed types: it is made of unsigned ones."""
    x = tg.tensor(np.random.default_rng(0).integers(-100, 100, (9, 40)).astype(dtype))
    with Checked() as checked:
        tg.trace(lambda x: (x.prod(0), x.prod(1), x.prod(), x.cumprod(0), x.cumprod(1), x.roll(1, 1).prod(1)))(x)
    assert checked.count == len(TARGETS)


@pytest.mark.long
@pytest.mark.parametrize("shape", [(5, 127), (37, 16), (300, 7), (1, 65), (4, 3, 33)])
def test_maxima_of_half_precision_find_their_elements(shape: tuple[int, ...], on_numpy: None) -> None:
    """What is computed in float32 and stored as float16 is rounded before it is compared with itself (the gradient was NaN)."""
    x = tg.tensor(np.random.default_rng(0).normal(size=shape).astype("float16"))
    programs: list[Any] = [
        tg.grad(lambda a: ((a - 5.0).amax(0) * 1.5).sum()),
        tg.grad(lambda a: (a * 1.7).amax(-1).sum()),
        tg.grad(lambda a: ((a / 3.0).amin(-1, keepdim=True) * a).sum()),
        tg.grad(lambda a: (a.exp().flip(0).amax(0) + (a * 0.3).amax()).sum()),
        lambda a: ((a * 1.3).amax(-1, keepdim=True) == a * 1.3).sum(-1),
    ]
    for program in programs:
        with Checked(slack=2.0) as checked:
            found = tg.trace(program)(x)
        assert checked.count
        assert np.isfinite(found.numpy()).all()


def test_the_only_work_item_reads_what_it_changed_atomically():
    """A launch of one work-item is in order: small scatters on GPUs, whose launches are put together, are of one."""
    state = State()
    counts = Memory("counts", np.zeros(2, np.int64), state, known=True)
    at, state.item = Pointer(counts, 0), 1
    at.atomic("add", 3)
    assert at.load(0) == 3
    at.atomic("add", 4)
    assert at.load(0) == 7
    counts.fresh()
    state.global_size = (2, 1, 1)
    at.atomic("add", 1)
    with pytest.raises(KernelFault, match="several work-items change in the same launch"):
        at.load(0)
