"""Vectors of halves at addresses of any half: what PoCL's own functions crash on (runtime/drivers/pocl_halves.py)."""

from itertools import product

import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.nn import functional as F
from tracegrad.runtime.drivers.pocl_halves import any_address
from tracegrad.runtime.programs.build import _build, _given

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
    program = _build(device.context, device.cl_device, source, _given(device.cl_device, source))
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


@one_of(3, "columns", [15, 33, 65, 195, 390])
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


def test_a_cast_to_half_rounds_in_the_middle_of_a_kernel():
    """Every half, what lies between two, and what lies next to that; ends, denormals, and what is too large."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        between = (halves[:-1] + halves[1:]) / 2
        near = [np.nextafter(between, np.float32(end)) for end in (-np.inf, np.inf)]
        a = np.concatenate([halves, between, *near, np.float32([65519.99, 65520, 1e38, 1e-45, -1e-45, 2.0**-25, -(2.0**-25)])])
        wanted = a.astype(np.float16).astype(np.float32)
    found = tg.trace(lambda x: x.half().float())(tg.tensor(a)).numpy()
    same = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
    assert same.all(), (a[~same][:5], found[~same][:5], wanted[~same][:5])


@one_of(4, ("name", "size"), product(["eq", "lt", "isinf", "error", "remainder", "floor", "integers", "doubles", "scan"], [12, 65, 300]))
def test_what_is_asked_of_a_half_is_of_a_rounded_one(name, size, monkeypatch):
    functions = {
        "eq": lambda x, y: x.half() == y.half(), "lt": lambda x, y: x.half() < y.half(), "isinf": lambda x, y: (y * 60000).half().isinf(),
        "error": lambda x, y: (x - x.half().float()).abs().max(), "remainder": lambda x, y: (x * 1000).half() % 1,
        "floor": lambda x, y: (x * 3000).half().floor(), "integers": lambda x, y: (x * 60000).to(tg.int32).half().float(),
        "doubles": lambda x, y: x.double().half().float(), "scan": lambda x, y: tg.scan(lambda c, t: (t.half().float(), c + t), y[0], x)[1],
    }
    if name == "doubles" and not tg.device().fp64:
        pytest.skip("the device has no float64")
    a = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    x, y = tg.tensor(a), tg.tensor(a * np.float32(1.00001))
    monkeypatch.setattr(tg.config, "eager", True)
    wanted = functions[name](x, y).numpy()
    found = tg.trace(functions[name])(x, y).numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
