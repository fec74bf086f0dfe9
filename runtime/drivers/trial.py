"""Which of several CPU drivers is the default: the one that is faster on this machine. Start at `faster`.

Each builds and runs a small program of the kind that tracegrad writes: arithmetic and a product, in vectors. What counts is the build
and some thousand runs together: a driver that builds slowly has to run faster. The outcome is kept on disk, by driver and version, so
only the first process after an installation tries (a second or two), when it ends (see `Device.stay`), or when it is asked for its devices
before it computes (`Device.decide`); nobody does where there is one driver, or one was asked for.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from tracegrad.config import config
from tracegrad.errors import DeviceError
from tracegrad.runtime.disk import Folder
from tracegrad.support.plan import Plain

if TYPE_CHECKING:
    from tracegrad.runtime.device import Device

OUTCOMES = Folder("trials")
RUNS = 2000                    # of the trial's program that count beside its build
_ROUNDS = 15                   # that are timed; the median counts
_ITEMS, _LENGTH = 64, 4096     # work-items of the arithmetic, and the floats of each
_N = 128                       # rows and columns of the product's matrices

_TRIED = (1, 3)                 # ranks of the drivers that are made to be fast: which is faster depends on the machine

# Plain OpenCL C, so that every driver takes it. {salt}: a text that no driver's cache knows.
_SOURCE = """// {salt}
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void arithmetic(__global const float *restrict x, __global float *restrict y) {{
  const int first = get_global_id(0) * {length};
  for (int i = first; i < first + {length}; i += 8) {{
    float8 t = vload8(0, x + i);
    float8 p = t * 0.0083333f + 0.0416667f;
    p = p * t + 0.1666667f;
    p = p * t + 0.5f;
    p = p * t + 1.0f;
    p = p * t + 1.0f;
    vstore8(p / (1.0f + t * t), 0, y + i);
  }}
}}
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void product(__global const float *restrict a, __global const float *restrict b, __global float *restrict c) {{
  const int i = get_global_id(0) * 4;
  for (int j = 0; j < {n}; j += 16) {{
    float8 s00 = 0, s01 = 0, s10 = 0, s11 = 0, s20 = 0, s21 = 0, s30 = 0, s31 = 0;
    for (int k = 0; k < {n}; k++) {{
      const float8 v = vload8(0, b + k * {n} + j), w = vload8(0, b + k * {n} + j + 8);
      s00 += a[i * {n} + k] * v;        s01 += a[i * {n} + k] * w;
      s10 += a[(i + 1) * {n} + k] * v;  s11 += a[(i + 1) * {n} + k] * w;
      s20 += a[(i + 2) * {n} + k] * v;  s21 += a[(i + 2) * {n} + k] * w;
      s30 += a[(i + 3) * {n} + k] * v;  s31 += a[(i + 3) * {n} + k] * w;
    }}
    vstore8(s00, 0, c + i * {n} + j);        vstore8(s01, 0, c + i * {n} + j + 8);
    vstore8(s10, 0, c + (i + 1) * {n} + j);  vstore8(s11, 0, c + (i + 1) * {n} + j + 8);
    vstore8(s20, 0, c + (i + 2) * {n} + j);  vstore8(s21, 0, c + (i + 2) * {n} + j + 8);
    vstore8(s30, 0, c + (i + 3) * {n} + j);  vstore8(s31, 0, c + (i + 3) * {n} + j + 8);
  }}
}}
"""


class Score(Plain):
    """Seconds: of the build with the first run, and of a later run. Infinite for what fails."""

    build: float
    run: float

    @property
    def total(self) -> float:
        return self.build + RUNS * self.run


def rank(device: Device) -> tuple[int, int]:
    """Sort key: GPUs by size, then the CPU drivers by speed; simulators last. Equal ones keep the loader's order."""
    version = device.cl_device.platform.version
    if "oclgrind" in device.platform.lower():
        return 9, 0
    if device.traits.first:
        return 0, -device.cl_device.max_compute_units * device.cl_device.max_clock_frequency
    if "PoCL" in device.driver:
        return (2 if "Asserts" in version else 1), 0             # a distribution's debug build comes second
    return (3 if "intel" in device.platform.lower() else 4), 0


def contenders(found: list[Device]) -> list[Device]:
    """The CPU devices among which a trial decides on the default, one a driver: where the best device is a CPU's."""
    ranks = {rank(d)[0]: d for d in reversed(found)}
    return [ranks[r] for r in _TRIED if r in ranks] if found and rank(found[0])[0] in _TRIED else []


def faster(devices: Sequence[Device]) -> Device:
    """The fastest of some devices of one kind; the first where nothing can be kept on disk (`config.cache`)."""
    if len(devices) < 2 or not config.cache:
        return devices[0]
    return _fastest(devices, scores(devices))


def remembered(devices: Sequence[Device]) -> Device | None:
    """The fastest of some devices, if that is known without a trial."""
    if len(devices) < 2 or not config.cache:
        return devices[0]
    found = OUTCOMES.known(_asked(devices))
    return None if found is None else _fastest(devices, _scores(found))


def _fastest(devices: Sequence[Device], found: Sequence[Score]) -> Device:
    return min(zip(devices, found, strict=True), key=lambda pair: pair[1].total)[0]


def _asked(devices: Sequence[Device]) -> Any:
    """What the outcome of the devices' trial depends on."""
    return [[[d.driver, d.platform, d.cl_device.platform.version, d.cl_device.driver_version, d.name, os.cpu_count()] for d in devices],
            _SOURCE, RUNS]


def _scores(found: Any) -> list[Score]:
    return [Score(float(build), float(run)) for build, run in found]


def scores(devices: Sequence[Device]) -> list[Score]:
    """What the trials of the devices took; from the disk where they were made before."""
    return _scores(OUTCOMES.answer(_asked(devices), lambda: [(s.build, s.run) for s in map(score, devices)]))


def score(device: Device) -> Score:
    """Try the device; what fails, or computes something else, takes for ever."""
    never = Score(float("inf"), float("inf"))
    x = np.linspace(0.0, 1.0, _ITEMS * _LENGTH, dtype=np.float32)
    a = np.random.default_rng(0).standard_normal((_N, _N)).astype(np.float32)
    flags = cl.mem_flags
    try:
        with device.lock, warnings.catch_warnings(), tempfile.TemporaryDirectory() as nowhere:
            warnings.simplefilter("ignore", cl.CompilerWarning)
            queue = device.use(device.queue)
            given = [cl.Buffer(device.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=v) for v in (x, a)]
            results = [cl.Buffer(device.context, flags.READ_WRITE, v.nbytes) for v in (x, a)]

            def build(salt: str) -> tuple[cl.Kernel, cl.Kernel]:
                program = cl.Program(device.context, _SOURCE.format(salt=salt, length=_LENGTH, n=_N))
                program.build([], devices=[device.cl_device], cache_dir=nowhere)
                arithmetic, product = cl.Kernel(program, "arithmetic"), cl.Kernel(program, "product")
                arithmetic.set_args(given[0], results[0])
                product.set_args(given[1], given[1], results[1])
                return arithmetic, product

            def run(kernels: tuple[cl.Kernel, cl.Kernel]) -> float:
                start = time.perf_counter()
                cl.enqueue_nd_range_kernel(queue, kernels[0], (_ITEMS,), (1,))
                cl.enqueue_nd_range_kernel(queue, kernels[1], (_N // 4,), (1,))
                queue.finish()
                return time.perf_counter() - start

            salt = os.urandom(8).hex()
            run(build(salt))                               # loads the driver's compiler
            start = time.perf_counter()
            kernels = build(salt + " again")
            run(kernels)
            built = time.perf_counter() - start
            found = Score(built, float(np.median([run(kernels) for _ in range(_ROUNDS)])))
            y, c = np.empty_like(x), np.empty_like(a)
            cl.enqueue_copy(queue, y, results[0])
            cl.enqueue_copy(queue, c, results[1])
    except (cl.Error, DeviceError):
        return never
    t = x.astype(np.float64)
    wanted = (((((t * 0.0083333 + 0.0416667) * t + 0.1666667) * t + 0.5) * t + 1.0) * t + 1.0) / (1.0 + t * t)
    square = a.astype(np.float64) @ a
    return found if np.allclose(y, wanted, rtol=1e-5) and np.allclose(c, square, rtol=1e-4, atol=1e-4) else never
