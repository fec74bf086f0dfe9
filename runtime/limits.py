"""What a device can do at most, measured: bytes and floating-point operations a second. Start at `limits`.

Bandwidth is that of reading, and of reading two arrays and writing a third, whichever is more, on arrays that no cache holds. The
arithmetic is multiplications with additions (two operations each) on values that stay in registers. What others do on the machine
counts: the best of a few runs is taken.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from tracegrad.errors import DeviceError
from tracegrad.runtime.buffer import empty, upload
from tracegrad.runtime.device import Device
from tracegrad.runtime.programs.build import build
from tracegrad.support.cache import listed

_FLOATS = 16 << 20              # elements of each array: 64 MiB of float32
_CHAINS = 10                    # sums that do not wait for each other: latency times width of the units that multiply and add
_TURNS = 1 << 15
_ROUNDS = 21
_LEAST = 1000                   # nanoseconds: nothing here is quicker (16 us on a device that reads 4 TB a second)


@dataclass(frozen=True)
class Limits:
    """bandwidth: bytes a second. float32, float64: operations a second (0.0 where the device has no float64)."""

    bandwidth: float
    float32: float
    float64: float

    def flops(self, itemsize: int) -> float:
        """Operations a second on floats of `itemsize` bytes (float16 is computed in float32)."""
        return self.float64 if itemsize == 8 and self.float64 else self.float32


_known: weakref.WeakKeyDictionary[Device, Limits] = listed("limits of devices", weakref.WeakKeyDictionary())
_lock = threading.Lock()


def limits(device: Device) -> Limits:
    """The limits of `device`, measured when first asked for (a second or two, most of it the driver's compiler).

    Raises DeviceError where the driver's events have no times (rusticl on llvmpipe: each takes 1 ns).
    """
    with _lock:
        if device not in _known:
            _known[device] = _measure(device)
        return _known[device]


def _measure(device: Device) -> Limits:
    target, fp64 = device.target, device.fp64
    lanes = max(4, target.simd_bytes // 4) if target.traits.vectors else 1
    long = target.traits.long_items
    items, group = (target.parts, (1,)) if long else (2048 * target.cores, (64,))
    program = build(device, _source(lanes, items, long, fp64))
    x, y, z = (upload(device, np.ones(_FLOATS, np.float32)) if i < 2 else empty(device, 4 * _FLOATS) for i in range(3))
    sums = empty(device, 8 * lanes * items)
    read = 4 * _FLOATS / _time(device, program, "sum_up", (x.mem, sums.mem), items, group)
    triad = 12 * _FLOATS / _time(device, program, "triad", (x.mem, y.mem, z.mem), items, group)
    work = 2 * _CHAINS * _TURNS * items
    single = work * lanes / _time(device, program, "multiply_add_float", (sums.mem,), items, group)
    double = work * max(1, lanes // 2) / _time(device, program, "multiply_add_double", (sums.mem,), items, group) if fp64 else 0.0
    return Limits(max(read, triad), single, double)


def _source(lanes: int, items: int, long: bool, fp64: bool) -> str:
    """A long work-item has a range of its own; of many, those next to each other read next to each other."""
    vector = f"float{lanes}" if lanes > 1 else "float"
    count = _FLOATS // lanes
    loop = (f"for (int i = get_global_id(0) * {count // items}; i < (get_global_id(0) + 1) * {count // items}; i++)" if long
            else f"for (int i = get_global_id(0); i < {count}; i += {items})")
    text = f"""
__kernel void sum_up(__global const {vector} *restrict x, __global {vector} *restrict sums) {{
  {vector} sum = 0;
  {loop} sum += x[i];
  sums[get_global_id(0)] = sum;
}}
__kernel void triad(__global const {vector} *restrict x, __global const {vector} *restrict y, __global {vector} *restrict z) {{
  {loop} z[i] = x[i] * 0.5f + y[i];
}}
"""
    for scalar, wide in [("float", lanes), ("double", max(1, lanes // 2))][: 1 + fp64]:
        name = f"{scalar}{wide}" if wide > 1 else scalar
        chains = range(_CHAINS)
        text += f"""
__kernel void multiply_add_{scalar}(__global {name} *restrict sums) {{
  const {name} factor = ({scalar})0.999 + ({scalar})get_global_id(0) * 0;
  {name} {', '.join(f'c{i} = {i}' for i in chains)};
  for (int k = 0; k < {_TURNS}; k++) {{
    {' '.join(f'c{i} = c{i} * factor + factor;' for i in chains)}
  }}
  sums[get_global_id(0)] = {' + '.join(f'c{i}' for i in chains)};
}}
"""
    return ("#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" if fp64 else "") + text


def _time(device: Device, program: cl.Program, entry: str, args: tuple[Any, ...], items: int, group: tuple[int, ...]) -> float:
    """Seconds of the quickest of some runs."""
    kernel = cl.Kernel(program, entry)
    kernel.set_args(*args)
    with device.lock:
        queue = cl.CommandQueue(device.context, device.cl_device, cl.command_queue_properties.PROFILING_ENABLE)
        device.use(queue)
        events = [cl.enqueue_nd_range_kernel(queue, kernel, (items,), group) for _ in range(_ROUNDS)]
        device.use(device.queue)                            # waits for the other
    taken = min(event.profile.end - event.profile.start for event in events)
    if taken < _LEAST:
        raise DeviceError(f"what {device.name} can do cannot be measured: its driver ({device.driver}) tells that {entry} took {taken} ns; "
                          "its events have no times. Choose another driver: `python -m tracegrad devices` lists them")
    return 1e-9 * taken
