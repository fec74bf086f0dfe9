"""Constants that a kernel chooses where nothing wants them: their page is in memory all the same (runtime/drivers/pocl_constants.py)."""

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


@pytest.mark.parametrize("more", [2.0, 0.0, -2.0])
def test_choices_of_none_some_and_all(more):
    """(How long they take is in docs/measurements.md: no test asserts a time.)"""
    x = np.random.default_rng(0).uniform(0, 1, 1000).astype(np.float32)
    y = (x[::-1] + np.float32(more)).astype(np.float32)
    found = tg.trace(lambda x, y: tg.where(x > y, 3.75, x))(tg.tensor(x), tg.tensor(y))
    np.testing.assert_array_equal(found.numpy(), np.where(x > y, np.float32(3.75), x))
