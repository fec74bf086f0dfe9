"""What no OpenCL query tells about a driver, found out by trying. Start at `capabilities`.

Small programs are built and run on the device, beside what they have to compute. The answers are kept on disk, by device and driver
version, so only the first process after an installation asks (a tenth of a second). Nobody asks before the first program is compiled,
and nobody at all where the driver is of a version whose answers came with tracegrad: `KNOWN`.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import pyopencl as cl

from tracegrad.runtime.disk import Folder
from tracegrad.runtime.drivers.pocl_header import GUARD, applies
from tracegrad.support.plan import Plain

ANSWERS = Folder("capabilities")


class Capabilities(Plain):
    """What a driver can do; each field is a trial of that name. Where nothing is asked, kernels and queues are written for all."""

    clang_builtins: bool = False          # the C of clang-based drivers: vectors at any element's address, __builtin functions
    long_loops: bool = True               # a work-item's loops run to their ends (llvmpipe leaves all of them after 65,535 iterations)
    wide_comparisons: bool = True         # an int that became a long compares with constants as it should (Mesa 22.3: always greater)
    finish_waits: bool = False            # clFinish waits for what clFlush has begun, too (Mesa 22.3's: for all else): `Device.drain`

    def doubts(self) -> list[str]:
        """What will be wrong without an error."""
        return [text for fine, text in (
            (self.long_loops, "it leaves the loops of a work-item after some number of iterations, so kernels with long ones (running sums "
                              "and scatters of many elements, above all) compute something else"),
            (self.wide_comparisons, "it compares integers that were widened to 64 bits with constants as if all were greater"),
        ) if not fine]


class Trial(Plain):
    """A program with a kernel probe_<name>(in, out); it is passed if `out`, zeros at first, is as given afterwards."""

    source: str
    given: np.ndarray[Any, Any]
    wanted: np.ndarray[Any, Any]


# Everything that `Target.clang_builtins` lets the code generator write; out = 3 * (int)(in + 0.5) + 4, for in = 1.25, 2.25, ...
_CLANG = """
typedef float4 __attribute__((aligned(4))) float4_u;
static inline __attribute__((overloadable, always_inline)) float4 thrice(float4 x) {
  float4 y = (float4)(__builtin_fmaf(3.0f, x.s0, 0.0f), __builtin_fmaf(3.0f, x.s1, 0.0f), 3.0f * x.s2, 3.0f * x.s3);
  return (float4)(y.s0, __builtin_rintf(y.s1), __builtin_floorf(y.s2), __builtin_truncf(y.s3));
}
__kernel void probe_clang_builtins(__global const float *in, __global float *out) {
  float kept[5];
  *(float4_u *)(kept + 1) = *(__global const float4_u *)(in + 1) + 0.5f;
  int4 whole = __builtin_convertvector(*(const float4_u *)(kept + 1), int4);
  float4 x = thrice(__builtin_convertvector(whole, float4));
  *(__global float4_u *)(out + 1) = x + __builtin_sqrtf(9.0f) + __builtin_ceilf(in[1] - 1.0f);
}
"""

# The sum depends on every iteration: no compiler may do it in another way.
_LOOP = """
__kernel void probe_long_loops(__global const int *in, __global int *out) {
  float x = 0.0f;
  for (int i = 0; i < in[0]; i++) x += 1.0f;
  out[0] = x;
}
"""

_WIDE = """
__kernel void probe_wide_comparisons(__global const int *in, __global int *out) {
  const long x = in[0], y = in[1];
  out[0] = x < 0; out[1] = x > 19; out[2] = y < 19; out[3] = y >= 20;
}
"""

TRIALS = {
    "clang_builtins": Trial(_CLANG, np.array([0, 1.25, 2.25, 3.25, 4.25], np.float32), np.array([0, 7, 10, 13, 16], np.float32)),
    "long_loops": Trial(_LOOP, np.array([1 << 17], np.int32), np.array([1 << 17], np.int32)),
    "wide_comparisons": Trial(_WIDE, np.array([-40, 5], np.int32), np.array([1, 0, 1, 0], np.int32)),
}


# What the trials showed, by what is in the platform's version, or in its name with the driver's version.
KNOWN = dict.fromkeys(("PoCL 3.0", "PoCL 3.1", "Intel(R) OpenCL 2025.20.", "Intel(R) OpenCL 2026.22."),
                      Capabilities(clang_builtins=True, long_loops=True, wide_comparisons=True, finish_waits=True))


def capabilities(context: cl.Context, device: cl.Device, compiled_for: str = "") -> Capabilities:
    """What the trials show; known, or from the disk, where they were made before. compiled_for: see `Device`; the answers depend on it."""
    version = f"{device.platform.version} {device.platform.name} {device.driver_version}"
    known = next((answers for part, answers in KNOWN.items() if part in version), None)
    if known is not None:
        return known
    asked = [device.platform.name, device.platform.version, plain_name(device), device.driver_version, compiled_for,
             *(trial.source for trial in TRIALS.values()), "finish_waits"]
    return Capabilities(**ANSWERS.answer(asked, lambda: asdict(probe(context, device))))


def plain_name(device: cl.Device) -> str:
    """What a device is called, without PoCL's word for how it runs kernels: one compiler makes both kinds' code."""
    return device.name.strip().removeprefix("pthread-").removeprefix("basic-")


def probe(context: cl.Context, device: cl.Device) -> Capabilities:
    """Make the trials: as one program (PoCL: 0.6 of the time of three), or each by itself if that does not build."""
    program = _built("".join(trial.source for trial in TRIALS.values()), context, device)
    found = {name: passes(name, trial, context, device, program) for name, trial in TRIALS.items()}
    return Capabilities(**found, finish_waits=finish_waits(context, device))


def passes(name: str, trial: Trial, context: cl.Context, device: cl.Device, program: cl.Program | None = None) -> bool:
    """Whether the device builds and runs it, and the results are right. What fails, in whatever way the driver has, is not there.

    program: one that holds its kernel; without it, it is built.
    """
    flags = cl.mem_flags
    out = np.zeros_like(trial.wanted)
    if program is None:
        program = _built(trial.source, context, device)
    if program is None:
        return False
    try:
        queue = cl.CommandQueue(context, device)
        given = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=trial.given)
        result = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=out)
        cl.Kernel(program, f"probe_{name}")(queue, (1,), (1,), given, result)
        cl.enqueue_copy(queue, out, result)
        queue.finish()
    except cl.Error:
        return False
    return np.array_equal(out, trial.wanted)


def finish_waits(context: cl.Context, device: cl.Device) -> bool:
    """Whether kernels that were flushed have run when the queue is finished. One that has not tells; several times, since all may have."""
    program = _built(_LOOP, context, device)
    if program is None:
        return False
    flags = cl.mem_flags
    try:
        queue, kernel = cl.CommandQueue(context, device), cl.Kernel(program, "probe_long_loops")
        given = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=TRIALS["long_loops"].given)
        result = cl.Buffer(context, flags.READ_WRITE, given.size)
        for _ in range(_TRIES):
            for _ in range(_LAUNCHES):
                event = kernel(queue, (1,), (1,), given, result)
            queue.flush()
            queue.finish()
            if event.command_execution_status != cl.command_execution_status.COMPLETE:
                event.wait()
                return False
    except cl.Error:
        return False
    return True


def _built(source: str, context: cl.Context, device: cl.Device) -> cl.Program | None:
    """The program of `source`; None if the driver does not take it."""
    for options in ([GUARD], []) if applies(device) else ([],):
        try:
            with warnings.catch_warnings(), tempfile.TemporaryDirectory() as nowhere:
                warnings.simplefilter("ignore", cl.CompilerWarning)
                program: cl.Program = cl.Program(context, source).build(options, devices=[device], cache_dir=nowhere)
                return program
        except cl.Error:
            pass
    return None


_TRIES, _LAUNCHES = 16, 8      # of `finish_waits`: a thread would have to lose its core in each, for as long as eight launches take
_PROBE = 1 << 16               # bytes: drivers treat small buffers otherwise


def host_alignment(device: cl.Device) -> int:
    """The alignment in bytes, beside that of its elements, at which a host array can be a buffer; 0 if none can.

    Kernels rely on the elements' alignment only (kernel/ir/vectors.py). A driver, though, may work on a copy of what USE_HOST_PTR
    names, and OpenCL has no query for that: so see whether it reads the memory itself, at an odd address, and at a multiple of
    CL_DEVICE_MEM_BASE_ADDR_ALIGN (which Intel's wants from some KB on; the others take any).
    """
    base = max(2, device.mem_base_addr_align // 8)
    block = np.zeros(_PROBE + 2 * base, np.uint8)
    start = -block.ctypes.data % base
    return next((alignment for alignment in (1, base) if _reads(device, block[start + alignment :][:_PROBE])), 0)


def host_writes(device: cl.Device) -> bool:
    """Whether commands see what the host writes to a buffer that stays mapped, and the host what they write, one after the other."""
    array, seen = np.zeros(_PROBE, np.uint8), np.empty(_PROBE, np.uint8)
    both: Any = cl.map_flags.READ | cl.map_flags.WRITE
    try:
        context = cl.Context([device])
        mem = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, _PROBE)
        queue = cl.CommandQueue(context, device)
        mapped, _ = cl.enqueue_map_buffer(queue, mem, both, 0, seen.shape, seen.dtype)
        for value in (1, 3):
            mapped[:] = value
            cl.enqueue_copy(queue, seen, mem, is_blocking=True)
            array[:] = value + 1
            cl.enqueue_copy(queue, mem, array, is_blocking=True)
            if not ((seen == value).all() and (mapped == value + 1).all()):
                return False
    except cl.Error:
        return False
    return True


def _reads(device: cl.Device, array: np.ndarray[Any, Any]) -> bool:
    """Whether a buffer made of `array` shows what is written to the array afterwards, and one that is mapped what commands write."""
    seen = np.empty_like(array)
    try:
        context = cl.Context([device])                       # not the device's own: there may never be one (see `Device.decide`)
        mem = cl.Buffer(context, cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR, hostbuf=array)
        other = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, array.nbytes)
        queue = cl.CommandQueue(context, device)
        mapped, _ = cl.enqueue_map_buffer(queue, other, cl.map_flags.READ, 0, seen.shape, seen.dtype)
        for value in (1, 2):
            array[:] = value
            cl.enqueue_copy(queue, other, mem, byte_count=array.nbytes)
            cl.enqueue_copy(queue, seen, other, is_blocking=True)
            if not ((seen == value).all() and (mapped == value).all()):
                return False
    except cl.Error:
        return False
    return True
