"""What no OpenCL query tells about a driver's compiler, found out by trying. Start at `has_clang_builtins`.

A small program in the C of clang-based drivers (vectors at any element's address, __builtin functions) is built and run on the device.
The answer is kept on disk, by device and driver version, so only the first process after an installation asks (about a second with
PoCL, a tenth elsewhere).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from typing import Any

import numpy as np
import pyopencl as cl

from tracegrad.config import config
from tracegrad.runtime.icd import cache_folder

# Everything that `Target.clang_builtins` lets the code generator write; out = 3 * (int)(in + 0.5) + 4, for in = 1.25, 2.25, ...
_PROBE = """
typedef float4 __attribute__((aligned(4))) float4_u;
static inline __attribute__((overloadable, always_inline)) float4 thrice(float4 x) {
  float4 y = (float4)(__builtin_fmaf(3.0f, x.s0, 0.0f), __builtin_fmaf(3.0f, x.s1, 0.0f), 3.0f * x.s2, 3.0f * x.s3);
  return (float4)(y.s0, __builtin_rintf(y.s1), __builtin_floorf(y.s2), __builtin_truncf(y.s3));
}
__kernel void probe(__global const float *in, __global float *out) {
  float kept[5];
  *(float4_u *)(kept + 1) = *(__global const float4_u *)(in + 1) + 0.5f;
  int4 whole = __builtin_convertvector(*(const float4_u *)(kept + 1), int4);
  float4 x = thrice(__builtin_convertvector(whole, float4));
  *(__global float4_u *)(out + 1) = x + __builtin_sqrtf(9.0f) + __builtin_ceilf(in[1] - 1.0f);
}
"""
_IN = np.array([0.0, 1.25, 2.25, 3.25, 4.25], np.float32)
_OUT = np.array([0.0, 7.0, 10.0, 13.0, 16.0], np.float32)


def has_clang_builtins(context: cl.Context, device: cl.Device) -> bool:
    """Whether the C of clang-based drivers builds and computes what it should; from the disk where it was asked before."""
    if not config.cache:
        return probe(context, device)
    asked = [device.platform.name, device.platform.version, device.name, device.driver_version, _PROBE]
    path = cache_folder("capabilities") / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}.json"
    try:
        return bool(json.loads(path.read_text())["clang_builtins"])
    except (OSError, ValueError, TypeError, KeyError):     # not there yet, or damaged
        found = probe(context, device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as draft:
            json.dump({"clang_builtins": found}, draft)
        os.replace(draft.name, path)                       # at once: another process reads all of it or nothing
    except OSError:                                        # no place to keep it: asked again next time
        pass
    return found


def probe(context: cl.Context, device: cl.Device) -> bool:
    """Try it. What fails, in whatever way the driver has, is not there."""
    flags = cl.mem_flags
    out: np.ndarray[Any, Any] = np.zeros_like(_OUT)
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as nowhere:
            warnings.simplefilter("ignore", cl.CompilerWarning)
            program = cl.Program(context, _PROBE).build([], devices=[device], cache_dir=nowhere)
        queue = cl.CommandQueue(context, device)
        given = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=_IN)
        result = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=out)
        cl.Kernel(program, "probe")(queue, (1,), (1,), given, result)
        cl.enqueue_copy(queue, out, result)
        queue.finish()
    except cl.Error:
        return False
    return np.array_equal(out, _OUT)
