"""Convolutions on CPUs as tile programs: shapes, layouts, fused loads and epilogues, for several targets, run without a driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tests.helpers.plan_audit import planned
from tracegrad.codegen.kernel.ir.expressions import Buffer, Load
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Declare, Store, statements_in
from tracegrad.codegen.kernel.verify import verify_kernel
from tracegrad.codegen.lower import group_kernels
from tracegrad.errors import CompilerBug
from tracegrad.nn import functional as F
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

AVX2, AVX512 = TARGETS["avx2"], Target(simd_bytes=64, registers=32)
CPUS = {"avx2": AVX2, "avx512": AVX512, "padded by a kernel": replace(AVX2, l2_bytes=64),
        "16 cores": Target(simd_bytes=16, cores=16, clang_builtins=False)}
RNG = np.random.default_rng(2)
WINDOWS = [                                                  # the image, the kernels, and what torch calls the rest
    ((2, 1, 8, 8), (16, 1, 3, 3), dict(padding=1)),
    ((5, 3, 8, 8), (7, 3, 3, 3), dict(padding=1)),           # several rows are a vector
    ((2, 3, 28, 28), (5, 3, 3, 3), {}),                      # read in place
    ((2, 4, 4, 4), (6, 4, 3, 3), dict(padding=1)),
    ((1, 2, 9, 11), (3, 2, 5, 2), dict(stride=2, padding=(2, 1))),
    ((2, 4, 12, 13), (6, 2, 3, 3), dict(padding=2, dilation=2, groups=2)),
    ((3, 6, 7, 7), (6, 1, 3, 3), dict(stride=(2, 1), padding=1, groups=6)),
    ((2, 3, 5, 6), (4, 3, 1, 1), {}),
    ((2, 4, 6, 5), (4, 4, 1, 1), dict(stride=2)),
    ((10, 3, 3, 3), (5, 3, 3, 3), {}),                       # one pixel
    ((1, 2, 20, 40), (3, 2, 2, 9), dict(padding=(0, 4))),    # more taps than are written out
    ((2, 2, 10, 17), (3, 2, 3, 3), dict(stride=3, padding=(1, 2), dilation=2)),
    ((2, 2, 3, 2), (3, 2, 2, 2), dict(padding=3)),           # more padding than image
    ((9, 2, 6, 3), (2, 2, 2, 2), dict(stride=2, padding=1)),
    ((2, 2, 7, 5), (13, 2, 3, 3), dict(padding=1)),          # rows and columns that are no whole vectors
    ((2, 2, 21, 1), (3, 2, 3, 1), dict(padding=(1, 0))),     # one column
]


def normal(*shape: int, dtype: Any = np.float64) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def checked(fn: Any, *arrays: Any, targets: dict[str, Target] = CPUS, tuning: Tuning | None = None) -> None:
    """Traced `fn` as kernels for each of the targets, beside the interpreter."""
    with Checked(targets, tuning=tuning, slack=4.0) as ran:
        tg.trace(fn)(*map(tg.tensor, arrays))
    assert ran.count >= len(targets)


@pytest.mark.usefixtures("on_numpy")
@one_of(8, ("x", "w", "options"), WINDOWS)
def test_convolutions_and_their_gradients(x: Any, w: Any, options: Any) -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        y = F.relu(F.conv2d(x, w, b, **options)) + 1
        return y, *tg.grad(lambda x, w: (F.conv2d(x, w, b, **options) ** 2).sum(), argnums=(0, 1))(x, w)

    arrays = normal(*x), normal(*w), normal(w[0])
    checked(fn, *arrays)
    checked(fn, *(a.astype(np.float32) for a in arrays), tuning=Tuning(conv_unrolled=1, written_out=0, conv_steps=3, product_blocks=2))


@pytest.mark.usefixtures("on_numpy")
@one_of(3, ("x", "w", "options"), [(x, w, options) for x, w, options in WINDOWS if w[1] == x[1]])
def test_convolutions_and_their_gradients_as_products(x: Any, w: Any, options: Any) -> None:
    """Of images of few pixels, with every target whose vectors hold them."""
    def fn(x: Any, w: Any) -> Any:
        return F.conv2d(x, w, **options).exp(), *tg.grad(lambda x, w: (F.conv2d(x, w, **options) ** 2).sum(), argnums=(0, 1))(x, w)

    few = (*x[:2], *(min(n, k * options.get("dilation", 1) + 1) for n, k in zip(x[2:], w[2:], strict=True)))
    checked(fn, normal(*few), 0.1 * normal(*w), targets={"avx512": AVX512, "avx2": AVX2}, tuning=Tuning(conv_weights=0))


@pytest.mark.usefixtures("on_numpy")
def test_few_pixels_of_many_channels_are_a_product() -> None:
    def loss(x: Any, w: Any) -> Any:
        return (F.conv2d(x, w, padding=1) ** 2).sum()

    w = normal(64, 64, 3, 3, dtype=np.float32)
    for pixels, dtype, product in [(2, np.float32, True), (6, np.float32, False), (2, np.float16, False)]:
        x = normal(2, 64, pixels, pixels, dtype=dtype)
        source = planned(lambda x, w: (loss(x, w), *tg.grad(loss, argnums=(0, 1))(x, w)), (x, w.astype(dtype)), AVX512)[0].source
        assert ("x64x576 product" in source or "64x8x576 product" in source) == product, source
        assert ("Gradient by 3x3 weights" in source or "3x3 taps" in source) != product, source


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(("x", "w", "options"), [WINDOWS[4], WINDOWS[2], WINDOWS[7], ((2, 2, 19, 9), (2, 2, 3, 3), {})])
def test_infinite_pixels_count_once_in_gradients_by_weights(x: Any, w: Any, options: Any) -> None:
    """Also where a vector begins early, and where it reaches beyond a row: 0 times infinity would be NaN."""
    image = normal(*x, dtype=np.float32)
    image[0, 0, 0, -1], image[-1, -1, -1, -2], image[0, -1, x[2] // 2, x[3] // 2] = np.inf, -np.inf, np.inf
    ct = np.abs(normal(*F.conv2d(tg.tensor(image), tg.zeros(w), **options).shape, dtype=np.float32)) + 1
    ct[-1, 0, 0, -1] = np.inf
    checked(lambda x, w, ct: tg.grad(lambda w: (F.conv2d(x, w, **options) * ct).sum())(w), image, normal(*w, dtype=np.float32), ct)


@pytest.mark.usefixtures("on_numpy")
@one_of(10, ("x", "w", "options"), WINDOWS)
def test_each_element_is_stored_once(x: Any, w: Any, options: Any) -> None:
    """What is added to an array in its place would be added twice where tiles overlap."""
    def fn(x: Any, w: Any, y: Any, gx: Any, gw: Any) -> Any:
        dx, dw = tg.grad(lambda x, w: (F.conv2d(x, w, **options) ** 2).sum(), argnums=(0, 1))(x, w)
        y += F.conv2d(x, w, **options)
        gx += dx
        gw += dw

    a, b = normal(*x, dtype=np.float32), normal(*w, dtype=np.float32)
    y = F.conv2d(tg.tensor(a), tg.tensor(b), **options)
    checked(fn, a, b, normal(*y.shape, dtype=np.float32), normal(*x, dtype=np.float32), normal(*w, dtype=np.float32))


@pytest.mark.usefixtures("on_numpy")
def test_operands_are_read_through_what_lies_before_them() -> None:
    """Casts, transposes, slices and arithmetic; halves are added up as floats."""
    def fn(x: Any, w: Any) -> Any:
        image = (x * 2.0).transpose(1, 3)[:, :, ::2]
        loss = lambda w: (F.conv2d(image, w.exp(), padding=1) * x.sum()).sum()
        return F.conv2d(image, w.flip(2), padding=1), tg.grad(loss)(w)

    for dtype in (np.float32, np.float16):
        checked(fn, normal(3, 9, 12, 4, dtype=dtype) / 8, normal(5, 4, 3, 3, dtype=dtype) / 8)


def kernels(monkeypatch: pytest.MonkeyPatch, fn: Any, *arrays: Any) -> list[Kernel]:
    """The kernels of a plan, as they were lowered."""
    found: list[Kernel] = []
    monkeypatch.setattr(group_kernels, "verify_kernel", found.append)
    planned(fn, arrays, AVX2)
    return found


GRADIENTS = {
    "forward": lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
    "by the image": lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
    "by the weights": lambda x, w: tg.grad(lambda w: F.conv2d(x, w, padding=1).square().sum())(w),
}


@pytest.mark.parametrize("kind", GRADIENTS)
def test_kernels_are_statements_that_are_proved(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read or a store that is moved out of its buffer is found."""
    x, w = np.zeros((9, 6, 9, 11), np.float32), np.zeros((6, 6, 3, 3), np.float32)
    found = kernels(monkeypatch, GRADIENTS[kind], x, w)
    assert found
    moved = 0
    for kernel in found:
        verify_kernel(kernel)
        for s in statements_in(kernel.body):
            for where in (s.access,) if isinstance(s, Store) else (s.value.access,) if isinstance(s, Declare) and isinstance(
                    s.value, Load) else ():
                if not isinstance(where.memory, Buffer) or where.at is None or where.guards:
                    continue
                before, size = where.at, where.memory.size
                assert size is not None
                where.at = before + size
                with pytest.raises(CompilerBug):
                    verify_kernel(kernel)
                where.at, moved = before, moved + 1
    assert moved >= 3


def test_operands_behind_a_reshape_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a 1-D convolution's gradient are not copied: it is a 2-D one of reshaped operands.

    Nor are a product's operands packed whose rows are others than those of what was reshaped.
    """
    found = kernels(monkeypatch, tg.grad(lambda x, w: F.conv1d(x, w, padding=2).square().sum(), (0, 1)), normal(2, 3, 30), normal(4, 3, 5))
    assert not any(kernel.entry.endswith("_weights") for kernel in found)
    found = kernels(monkeypatch, lambda x, y: x.reshape(2, 6, 64) @ y.reshape(2, 6, 64).mT, normal(3, 256), normal(3, 256))
    assert [kernel.entry for kernel in found] == ["matmul_k0"]


def test_sums_over_all_pixels_keep_their_digits() -> None:
    """Equal terms, where every rounding errs to the same side: no accumulator takes more than some of them."""
    image, gradient = tg.full((1, 1, 600, 600), 0.1), tg.full((1, 1, 600, 600), 0.1)

    def fn(x: Any, g: Any) -> Any:
        return tg.grad(lambda w: (F.conv2d(x, w) * g).sum())(tg.zeros((1, 1, 1, 1)))

    found = tg.trace(fn)(image, gradient).item()
    wanted = float(np.float32(0.1)) ** 2 * 600 * 600
    assert abs(found - wanted) < 2e-5 * wanted
