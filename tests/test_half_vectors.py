"""Vectors of halves at addresses of any half: what PoCL's own functions crash on (runtime/pocl_halves.py)."""

import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tracegrad.nn import functional as F
from tracegrad.runtime.pocl_halves import any_address
from tracegrad.runtime.program import _build

pytestmark = pytest.mark.skipif(tg.device().kind == "numpy", reason="no kernels")

SOURCE = """
__kernel void fill(__global half *p, int at, float value) {
  float%d values = (float%d)(value);
  for (int i = 0; i < 4; i++) vstore_half%d(values, i, p + at);
}
__kernel void move(__global const half *p, __global half *q, int from, int to) {
  for (int i = 0; i < 4; i++) vstore_half%d(vload_half%d(i, p + from), 0, q + to + i * %d);
}
"""


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_any_address(width):
    device = tg.device()
    source = SOURCE.replace("%d", str(width))
    program = _build(device.context, device.cl_device, source)
    queue = cl.CommandQueue(device.context, device.cl_device)
    rng = np.random.default_rng(0)
    given = rng.standard_normal(100).astype(np.float16)
    for at in range(1, 20):
        a, b = (cl.Buffer(device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=x) for x in (given, given))
        cl.Kernel(program, "fill")(queue, (1,), (1,), a, np.int32(at), np.float32(1.5))
        cl.Kernel(program, "move")(queue, (1,), (1,), a, b, np.int32(at + 3), np.int32(at))
        filled, moved = np.empty_like(given), np.empty_like(given)
        cl.enqueue_copy(queue, filled, a)
        cl.enqueue_copy(queue, moved, b)
        wanted = given.copy()
        wanted[at:at + 4 * width] = 1.5
        np.testing.assert_array_equal(filled, wanted)
        copied = given.copy()
        copied[at:at + 4 * width] = wanted[at + 3:at + 3 + 4 * width]
        np.testing.assert_array_equal(moved, copied)


def test_lines_are_counted_as_they_were():
    source = "kernel void f(global half *p) {\n  vstore_half8((float8)(0), 0, p);\n}\n"
    text = any_address(source)
    assert text.split("#line 1\n")[1] == source.replace("vstore_half8(", "tg_store_half8(")
    assert any_address("kernel void f() {}") == "kernel void f() {}"


@pytest.mark.parametrize("columns", [15, 33, 65, 195, 390])
def test_zeros_and_constants_in_rows(columns):
    """Cleared bases of scatters and pools, pads and constants, in rows that begin anywhere."""
    rng = np.random.default_rng(1)
    a = rng.integers(-4, 5, (6, columns)).astype(np.float16)
    x, index = tg.tensor(a), tg.tensor(np.array([4, 0, 4, 1, 0, 2]))

    @tg.trace
    def fn(x, index):
        y = x.clone().requires_grad_()
        pooled = F.max_pool1d(y[None], 2, 2)
        (g,) = tg.autograd.grad(pooled.sum(), y)
        added = tg.zeros(7, columns, dtype=tg.float16).index_add(0, index, x)
        return added, F.pad(x, (37, 18), value=0.5), g, tg.cat((x, tg.full_like(x, 2.0)), 1)

    added, padded, g, joined = (t.numpy() for t in fn(x, index))
    wanted = np.zeros((7, columns), np.float16)
    np.add.at(wanted, index.numpy(), a)
    np.testing.assert_array_equal(added, wanted)
    np.testing.assert_array_equal(padded, np.pad(a, ((0, 0), (37, 18)), constant_values=0.5))
    np.testing.assert_array_equal(joined, np.concatenate((a, np.full_like(a, 2)), 1))
    pairs = a[:, :columns // 2 * 2].reshape(6, -1, 2)
    hit = np.zeros_like(pairs)
    np.put_along_axis(hit, pairs.argmax(-1)[..., None], 1, -1)
    np.testing.assert_array_equal(g[:, :columns // 2 * 2], hit.reshape(6, -1))
