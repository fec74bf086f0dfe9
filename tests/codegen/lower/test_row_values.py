"""What passes over a row keep for later ones is there when it is read: values that a pass reads first where nobody looks for them."""

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.support.tuning import Tuning


def written_in_place(a, b):
    """A softmax of what is written in place: its first pass reads `b` behind a write, which is no elementwise operation."""
    v = (a - b * 0.3) * 0.5 + b
    w = v[..., ::2].repeat_interleave(2, -1)[..., :b.shape[-1]]
    w.sub_(b, alpha=0.25)
    s = w.softmax(-1) * b
    return (s * b).sum(-1, keepdim=True) + s


@pytest.mark.parametrize("costly", [1, 12])
@pytest.mark.parametrize("size", [24, 257, 1000])
def test_a_value_read_behind_a_write_is_not_taken_from_a_later_pass(size, costly):
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal((2, size)).astype(np.float32) for _ in range(2))
    previous = tg.device()
    tg.set_device("numpy")
    try:
        with Checked(tuning=Tuning(costly=costly)) as checked:
            tg.trace(written_in_place)(*map(tg.tensor, (a, b))).numpy()
        assert checked.count >= len(TARGETS)
    finally:
        tg.set_device(previous)
