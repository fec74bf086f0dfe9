"""The gradient by the image of a convolution with strides, and the transposed convolution: one kernel for all phases of the stride.

Kernels for CPUs are run without a driver (tests/helpers/kernels.py) and compared with numpy's rules: value, gradient and second
derivative. Those for GPUs are tested in tests/codegen/gpu/test_gpu_shapes.py, the generators by themselves in
tests/codegen/lower/test_cpu_convolutions.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tests.helpers.plan_audit import planned
from tracegrad.nn import functional as F
from tracegrad.support.tuning import Tuning

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(0)
CPUS = {"avx2": TARGETS["avx2"], "padded by a kernel": replace(TARGETS["avx512"], l2_bytes=256), "16 cores": TARGETS["sse, 16 cores"]}


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def checked(fn: Any, *arrays: Any, tuning: Tuning | None = None) -> None:
    """Traced `fn` as kernels for each of CPUS, beside the interpreter."""
    with Checked(CPUS, tuning=tuning, slack=4.0) as ran:
        tg.trace(fn)(*map(tg.tensor, arrays))
    assert ran.count == len(CPUS)


WINDOWS = [          # the image, the kernels, and what torch calls the rest
    ((8, 3, 8, 8), (5, 3, 4, 4), dict(stride=2, padding=1)),                    # all phases alike
    ((2, 3, 9, 13), (4, 3, 3, 3), dict(stride=2, padding=1)),                   # of 2 and of 1 tap, and sizes that differ
    ((9, 2, 8, 17), (3, 2, 3, 3), dict(stride=2)),
    ((1, 2, 31, 32), (3, 2, 5, 5), dict(stride=2, padding=2)),
    ((1, 3, 17, 14), (5, 3, 7, 7), dict(stride=2, padding=3)),
    ((1, 1, 5, 65), (2, 1, 3, 9), dict(stride=(1, 2), padding=(1, 4))),         # no stride along one axis
    ((2, 2, 16, 7), (3, 2, 5, 1), dict(stride=(3, 1), padding=(2, 0))),
    ((9, 5, 7, 9), (3, 5, 1, 1), dict(stride=2)),                               # phases without taps
    ((1, 2, 10, 11), (3, 2, 2, 3), dict(stride=4)),
    ((1, 2, 13, 12), (2, 2, 3, 3), dict(stride=4, dilation=2, padding=1)),      # taps that a phase sees lie apart
    ((1, 2, 15, 16), (2, 2, 3, 2), dict(stride=(3, 4), dilation=(2, 6), padding=(2, 3))),
    ((1, 2, 16, 13), (3, 2, 3, 4), dict(stride=2, dilation=3, padding=(3, 4))),
    ((8, 4, 8, 10), (6, 2, 2, 2), dict(stride=2, groups=2)),                    # in place
    ((1, 4, 9, 16), (4, 1, 3, 5), dict(stride=(1, 3), padding=(1, 2), groups=4)),
    ((4, 6, 7, 7), (12, 1, 3, 3), dict(stride=2, padding=1, groups=6)),
    ((3, 1, 1, 33), (9, 1, 1, 5), dict(stride=(2, 2), padding=(0, 2))),         # one row
    ((1, 2, 1, 6), (2, 2, 1, 3), dict(stride=(2, 2), padding=(1, 0))),          # that nobody sees
    ((1, 2, 2, 2), (2, 2, 2, 2), dict(stride=3, padding=3)),                    # more padding than image
    ((1, 1, 4, 4), (1, 1, 4, 4), dict(stride=2, padding=3)),
]


@one_of(4, ("x", "w", "options"), WINDOWS)
def test_gradients_of_strided_convolutions(x: Any, w: Any, options: Any) -> None:
    def loss(x: Any, w: Any) -> Any:
        return (F.conv2d(x, w, **options).tanh() ** 2).sum()

    def curved(x: Any, w: Any) -> Any:
        return tg.grad(lambda x: (tg.grad(loss)(x, w) ** 2).sum())(x)

    a, b = normal(*x, dtype=np.float64), normal(*w, dtype=np.float64)
    checked(tg.grad(loss), a, b)
    checked(curved, a.astype(np.float32), b.astype(np.float32), tuning=Tuning(conv_unrolled=1, written_out=0))


@pytest.mark.parametrize(("stride", "dilation", "output_padding"), [(2, 1, 1), ((1, 3), (2, 1), (1, 2)), (4, 3, (3, 2))])
def test_transposed_convolutions_with_what_stands_around_them(stride: Any, dilation: Any, output_padding: Any) -> None:
    """Weights that are computed, halves, a bias and an activation: a copy of the weights for all phases, an epilogue at each pixel."""
    options = dict(stride=stride, padding=1, dilation=dilation, output_padding=output_padding)

    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.relu(F.conv_transpose2d(x, w.exp() * 0.1, b, **options)) * 2

    for dtype in (np.float16, np.float32):
        checked(fn, normal(2, 4, 5, 17, dtype=dtype), normal(4, 3, 3, 3, dtype=dtype), normal(3, dtype=dtype))


def test_the_phases_of_a_stride_are_one_kernel() -> None:
    x, w = np.zeros((16, 32, 16, 16), np.float32), np.zeros((32, 8, 4, 4), np.float32)
    for stride in (1, 2, 3, 4):
        plan = planned(lambda x, w, s=stride: F.conv_transpose2d(x, w, stride=s), (x, w), CPUS["avx2"])[0]
        assert len(plan.launches) == 1
    plan = planned(lambda x, w: F.conv_transpose2d(x, w * 2, stride=2), (x[:1], w), CPUS["avx2"])[0]
    assert len(plan.launches) == 2                            # weights and a padded image, once for all phases, which are work-items here
    assert plan.launches[-1].global_size[2] == 4
