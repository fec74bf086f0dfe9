"""Which matrix instructions a device has: found out by products that are run on it and compared with numpy's. Start at `target_of`.

No OpenCL query tells, so each instruction of the code generator's table that the device may have, by an extension, is tried: a program
that uses it is built and run, with sizes inside and beyond its blocks. What does not build, or computes something else, is not there. The
answers are kept on disk, by device and driver version, so only the first process that compiles for a GPU tries (about a second).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracegrad.errors import TracegradError
from tracegrad.execute.backend_interfaces import code_generator
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.runtime import buffer as buffers
from tracegrad.runtime.device import Device, devices
from tracegrad.runtime.disk import LIBRARY, Folder
from tracegrad.runtime.doctor import Finding
from tracegrad.runtime.launch import Executable
from tracegrad.support.modes import float32_matmul
from tracegrad.support.plan import Target

Array = np.ndarray[Any, Any]
ANSWERS = Folder("matrix")
# (rows, k, columns): whole blocks, and parts of them.
SIZES = ((128, 96, 128), (72, 104, 88), (33, 19, 70))


def target_of(device: Device) -> Target:
    """The device, with its matrix instructions, and what float32 products may be computed with now."""
    found: Target = device.target
    if not found.traits.matrix:
        return found
    return replace(found, matrix=instructions(device), float32_precision=float32_matmul[0])


def instructions(device: Device) -> tuple[str, ...]:
    """The names of those that the device has."""
    known: tuple[str, ...] | None = device.matrix
    if known is None:
        known = device.matrix = _remembered(device)
    return known


def _remembered(device: Device) -> tuple[str, ...]:
    """Those that a trial has shown; from the disk, if it was made before."""
    names = code_generator().candidates(device.target, device.extensions)
    asked = [LIBRARY, device.platform, device.cl_device.platform.version, device.name, device.cl_device.driver_version, names]
    return tuple(ANSWERS.answer(asked, lambda: tried(device, names))) if names else ()


def findings() -> list[Finding]:
    """What the doctor tells of each device that may have some."""
    found = []
    for device in devices():
        if device.traits.matrix:
            names = instructions(device)
            text = f"matrix instructions that are right in a trial: {', '.join(names)}" if names else (
                "none of the matrix instructions that tracegrad knows is right in a trial, so products are made without")
            found.append(Finding("ok", f"{device.name} ({device.driver}): {text}"))
    return found


def tried(device: Device, names: Sequence[str]) -> tuple[str, ...]:
    """Those of `names` that compute what they should."""
    return tuple([name for name in names if passes(device, name)])


def passes(device: Device, name: str) -> bool:
    """Whether products by this instruction are right on the device."""
    codegen = code_generator()
    # (Of one core, so that small matrices have large blocks, too.)
    target = replace(device.target, cores=1, matrix=(name,), float32_precision="medium")
    for number, sizes in enumerate(SIZES):
        arrays, graph, wanted = product(codegen.MATRIX_INSTRUCTIONS[name].of, *sizes, across=(number % 2 == 1, number > 0))
        try:
            executable = Executable(codegen.compile_graph(graph, target), device)
            result, = executable.run([buffers.upload(device, a) for a in arrays], ())
            found = result.download(wanted.shape, wanted.dtype)
        except (TracegradError, RuntimeError):               # pyopencl's are RuntimeErrors
            return False
        if not np.array_equal(found, wanted):
            return False
    return True


def product(dtype: Any, m: int, k: int, n: int, across: tuple[bool, bool]) -> tuple[list[Array], Graph, Array]:
    """Matrices of small whole numbers, whose product is exact in any dtype; the program of it; what it computes. across: transposed."""
    rng = np.random.default_rng(m + n)
    shapes = [shape[::-1] if turned else shape for shape, turned in zip(((m, k), (k, n)), across, strict=True)]
    arrays = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]
    inputs = [placeholder(Aval(a.shape, a.dtype)) for a in arrays]
    operands = [bind(REGISTRY["permute"], (x,), {"dims": (1, 0)}) if turned else x for x, turned in zip(inputs, across, strict=True)]
    graph = Graph.capture(inputs, [bind(REGISTRY["matmul"], tuple(operands), {})])
    left, right = (a.T if turned else a for a, turned in zip(arrays, across, strict=True))
    return arrays, graph, (left.astype(np.float64) @ right.astype(np.float64)).astype(dtype)
