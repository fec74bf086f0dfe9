"""A plan as a program of its own: `write` makes a .cl file with its kernels and a script that runs them with numpy and pyopencl only.

The script holds the inputs and the results expected; it exits with 1 if a result differs. For bug reports to drivers, and for failures
of the random programs (tests/random_programs/test_fuzz.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracegrad.support.plan import HostStep, Iteration, Loop, Offset, Plan

SCRIPT = '''"""Builds {name}.cl beside this file, runs its kernels and compares the results. {title}"""

import pathlib
import sys

import numpy as np
import pyopencl as cl


def array(text, dtype, *shape):
    return np.frombuffer(bytes.fromhex(text), dtype).reshape(shape)


# Buffer -> its bytes, or its contents. Several names of one storage have one number.
SIZES = {sizes}
CONTENTS = {{
{contents}
}}
# Kernel, global size, local size, arguments: numbers of buffers, and scalars.
LAUNCHES = [
{launches}
]
# Buffer, expected contents.
EXPECTED = [
{expected}
]
TOLERANCE = {tolerance}

context = cl.create_some_context(interactive=False)
queue = cl.CommandQueue(context)
print("on", context.devices[0].name, context.devices[0].version)
program = cl.Program(context, (pathlib.Path(__file__).parent / "{name}.cl").read_text()).build()
flags = cl.mem_flags.READ_WRITE
buffers = {{i: cl.Buffer(context, flags, max(1, size)) for i, size in SIZES.items()}}
for i, value in CONTENTS.items():
    if value.size:
        cl.enqueue_copy(queue, buffers[i], np.ascontiguousarray(value))
for entry, size, local, args in LAUNCHES:
    kernel = cl.Kernel(program, entry)
    kernel.set_args(*[buffers[a] if isinstance(a, int) else a for a in args])
    cl.enqueue_nd_range_kernel(queue, kernel, size, local)
wrong = 0
for i, wanted in EXPECTED:
    found = np.empty_like(wanted)
    if wanted.size:
        cl.enqueue_copy(queue, found, buffers[i])
    scale = float(np.max(np.abs(np.where(np.isfinite(wanted), wanted, 0)), initial=0)) if wanted.dtype.kind == "f" else 0.0
    same = np.isclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)
    if not np.all(same):
        wrong += 1
        print(f"buffer {{i}}: {{np.sum(~same)}} of {{same.size}} elements differ; found\\n{{found}}\\nexpected\\n{{wanted}}")
print("wrong" if wrong else "all results as expected")
sys.exit(wrong > 0)
'''


def write(
    folder: Path, name: str, plan: Plan, inputs: Sequence[Any], scalars: Sequence[Any], expected: Sequence[Any], tolerance: float,
    title: str = "",
) -> Path:
    """Write name.cl and name.py into `folder`; returns the script. inputs: one array per input of the plan; scalars: its run-time numbers.

    Raises ValueError for a plan with host steps, which only Python can run.
    """
    if any(isinstance(step, HostStep) for step, _ in plan.each()):
        raise ValueError("write: the plan has a host step")
    storage = [i if s.alias is None else s.alias for i, s in enumerate(plan.slots)]
    storage = [len(plan.slots) + s.block if s.block is not None else storage[i] for i, s in enumerate(plan.slots)]
    sizes = {storage[i]: s.nbytes for i, s in enumerate(plan.slots) if s.block is None}
    sizes |= {len(plan.slots) + i: size for i, size in enumerate(plan.blocks)}
    contents = {storage[i]: s.data for i, s in enumerate(plan.slots) if s.data is not None}
    contents |= {storage[slot]: np.asarray(a, plan.slots[slot].dtype) for slot, a in zip(plan.inputs, inputs, strict=True)}
    numbers = plan.all_scalars(scalars)

    iterations: dict[int, int] = {}

    def argument(a: Any) -> str:
        if isinstance(a, Iteration):
            return _scalar(iterations[a.loop], np.dtype(np.int32))
        if isinstance(a, Offset):
            return _scalar(a.value, a.dtype)
        return str(storage[a]) if isinstance(a, int) else _scalar(numbers[a.index], a.dtype)

    def launches(steps: Sequence[Any]) -> list[str]:
        lines = []
        for step in steps:
            if isinstance(step, Loop):
                for repeat in range(step.length):          # written out
                    iterations[step.number] = repeat
                    lines += launches(step.steps)
            elif 0 not in step.global_size:
                lines.append(f"    ({step.entry!r}, {step.global_size}, {step.local_size}, [{', '.join(map(argument, step.args))}]),")
        return lines

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.cl").write_text(plan.source)
    script = folder / f"{name}.py"
    script.write_text(SCRIPT.format(
        name=name, title=title.replace('"""', "'''"), sizes=sizes, tolerance=tolerance,
        contents="\n".join(f"    {i}: {_array(a)}," for i, a in contents.items()),
        launches="\n".join(launches(plan.steps)),
        expected="\n".join(f"    ({storage[slot]}, {_array(np.asarray(a))})," for slot, a in zip(plan.outputs, expected, strict=True)),
    ))
    return script


def _array(a: Any) -> str:
    return f"array({np.ascontiguousarray(a).tobytes().hex()!r}, {a.dtype.str!r}, {', '.join(map(str, a.shape))})".replace(", )", ")")


def _scalar(value: Any, dtype: Any) -> str:
    dtype = np.dtype("u1") if dtype.kind == "b" else dtype          # a bool is a byte to OpenCL
    return f"array({np.asarray(value).astype(dtype).tobytes().hex()!r}, {dtype.str!r})[()]"
