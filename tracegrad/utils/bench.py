"""This machine against its own limits: `python -m tracegrad bench`. Start at `PROGRAMS`.

Each program is traced, compared with the interpreter, and profiled by kernel. What its kernels move and compute, beside what the device
was measured to do, is the share of the limit. The whole takes less than a minute, and people can paste it into an issue; `bench --row`
gives a row of the table in docs/devices.md.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from tracegrad.autograd.transforms import grad, value_and_grad
from tracegrad.errors import DeviceError, TracegradError
from tracegrad.execute.devices import NUMPY, find_device
from tracegrad.inspection.profiling import profile
from tracegrad.ops.attention.functions import scaled_dot_product_attention
from tracegrad.ops.convolution.convolution import conv2d
from tracegrad.ops.neural.normalization import layer_norm
from tracegrad.runtime.limits import limits
from tracegrad.support.html import columns
from tracegrad.tensors.creation.from_data import from_numpy
from tracegrad.tensors.tensor import Tensor
from tracegrad.tracing.trace import Traced

RUNS = 5
TOLERANCE = 1e-3                    # a result's largest error, beside the largest number in it


def _chain(x: Tensor) -> Any:
    y = x
    for _ in range(4):
        y = (y * 1.01 + x).tanh() * x
    return y.sum()


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()


def _pairs(x: Tensor) -> Any:
    inverse = 1.0 / (((x[:, None] - x[None]) ** 2).sum(-1) + 0.1) ** 3
    return (inverse * inverse - inverse).sum()


# What is measured: a name, the function, and the shapes of its arguments.
PROGRAMS: list[tuple[str, Callable[..., Any], list[tuple[int, ...]]]] = [
    ("sum of 16M numbers", lambda x: x.sum(), [(1 << 24,)]),
    ("elementwise chain of 4M: gradient", grad(_chain), [(1 << 22,)]),
    ("product 1024 x 1024", lambda a, b: a @ b, [(1024, 1024), (1024, 1024)]),
    ("softmax of 4096 x 1024: gradient", grad(lambda x: x.log_softmax(1).square().sum()), [(4096, 1024)]),
    ("layer norm of 4096 x 1024: gradient", grad(lambda x: layer_norm(x, x.shape[-1:]).pow(3).sum()), [(4096, 1024)]),
    ("causal attention 8 x 512 x 64: gradients", value_and_grad(_attention, (0, 1, 2)), [(1, 8, 512, 64)] * 3),
    ("convolution 16 x 32 x 32 x 32: gradients", grad(lambda x, w: conv2d(x, w, padding=1).square().sum(), (0, 1)),
     [(16, 32, 32, 32), (32, 32, 3, 3)]),
    ("pairs of 1000 particles: forces", grad(_pairs), [(1000, 3)]),
]


# The head of the table of devices in docs/devices.md, of which `row` gives a row.
HEAD = ["device", "driver", "GB/s", "Gflop/s in float32, float64", *(name for name, _, _ in PROGRAMS), "version, date"]


def measure(name: str, fn: Callable[..., Any], shapes: list[tuple[int, ...]]) -> list[str]:
    """The row of one program: name, kernels, time of a call, share of the limit, which limit that is for most of the time.

    Raises DeviceError where the results are not those of the interpreter.
    """
    rng = np.random.default_rng(0)
    traced = Traced(fn)
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    arguments = [from_numpy(array) for array in arrays]                           # held: the profile runs the call again
    wrong = _error(traced(*arguments), fn(*(from_numpy(array).to(NUMPY) for array in arrays)))
    if not wrong <= TOLERANCE:
        raise DeviceError(f"what {traced._seen().program.device.name} computes is off by {wrong:.1e} of the largest number, beside NumPy")
    rows = [row for row in profile(traced._seen().program, name, RUNS) if row.limit]
    seconds = sum(row.seconds for row in rows) or 1.0
    share = sum(row.share * row.seconds for row in rows) / seconds
    by = {limit: sum(row.seconds for row in rows if row.limit == limit) for limit in ("memory", "arithmetic")}
    return [name, str(len(rows)), f"{1e3 * seconds:.2f} ms", f"{share:.0%}", max(by, key=by.__getitem__)]


def _error(found: Any, expected: Any) -> float:
    """The largest difference of two results, which are Tensors or tuples of them, beside the largest number."""
    if isinstance(found, tuple):
        return max(map(_error, found, expected))
    mine, theirs = (np.asarray(result.detach().to(NUMPY).numpy()) for result in (found, expected))
    return float(np.abs(mine - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def _measured() -> list[list[str]]:
    rows = []
    for program in PROGRAMS:
        try:
            rows.append(measure(*program))
        except TracegradError as error:                       # the others are still worth knowing
            rows.append([program[0], "", "", "", f"failed: {str(error).splitlines()[0]}"])
    return rows


def _release() -> str:
    try:
        return version("tracegrad")
    except PackageNotFoundError:                              # a checkout that is not installed
        return "from a checkout"


def report() -> str:
    """What was measured, as text. Raises DeviceError where the device is the interpreter, which has no kernels."""
    device = find_device()
    most = limits(device)
    double = f", {1e-9 * most.float64:.0f} in float64" if most.float64 else ", no float64"
    head = [f"tracegrad {_release()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}", f"device: {device}",
            f"limits, measured: {1e-9 * most.bandwidth:.1f} GB/s, {1e-9 * most.float32:.0f} Gflop/s in float32{double}"]
    return "\n".join([*head, *columns([["program, float32", "kernels", "time", "of the limit", "which"], *_measured()], range(1, 4))])


def row() -> str:
    """The same as one row of a Markdown table, below `HEAD`."""
    device = find_device()
    most = limits(device)
    programs = [f"{time}, {share}" if time else "failed" for _, _, time, share, _ in _measured()]
    flops = ", ".join([f"{1e-9 * most.float32:.0f}", f"{1e-9 * most.float64:.0f}" if most.float64 else "none"])
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    cells = [device.name, device.driver, f"{1e-9 * most.bandwidth:.1f}", flops, *programs, f"{_release()}, {today}"]
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
