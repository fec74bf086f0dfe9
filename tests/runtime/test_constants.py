"""Constants that a kernel chooses where nothing wants them: their page is in memory all the same (runtime/drivers/pocl_constants.py)."""

from time import process_time

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.runtime.drivers.pocl_constants import present

ONE = "__attribute__((reqd_work_group_size(1, 1, 1)))\n"


def test_kernels_of_one_item_load_a_constant_first():
    source = f"{ONE}__kernel void k(__global float *p,\n    int n) {{\n  p[n] = n > 3 ? 7.0f : 8.0f;\n}}\n"
    head, _, body = present(source).partition("\n#line 1\n")
    assert "tg_constants[1]" in head
    assert body == source.replace("int n) {", "int n) { (void)*(volatile __constant int *)tg_constants;")


@pytest.mark.parametrize("source", [
    f"{ONE}__kernel void k(__global float *p) {{\n  p[0] = 7.0f;\n}}\n",                                      # chooses nothing
    "__kernel void k(__global float *p, int n) {\n  p[get_global_id(0)] = n ? 7.0f : 8.0f;\n}\n",               # of many items: a user's
])
def test_others_stay_as_they_are(source):
    assert present(source) == source


@pytest.mark.skipif(tg.device().kind == "numpy", reason="no kernels")
def test_what_nobody_chooses_takes_no_longer():
    """With AVX-512, a choice that was never made took 40 times as long as one that was made once."""
    x = tg.from_numpy(np.random.default_rng(0).uniform(0, 1, 100_000).astype(np.float32))
    never, once = x + 2, tg.cat([x[:1] - 1, x[1:] + 2])

    def least(f, y):
        taken = []
        for _ in range(12):
            start = process_time()
            for _ in range(5):
                f(x, y)
            tg.synchronize()
            taken.append(process_time() - start)
        return min(taken)

    first = least(tg.trace(lambda x, y: tg.where(x > y, 3.75, x)), never)
    assert first < 8 * least(tg.trace(lambda x, y: tg.where(x > y, 4.75, x)), once)
