"""A plan's steps as they are enqueued, and the kernel arguments that are set before each run. Start at `bound_items`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from tracegrad.errors import ArgumentError
from tracegrad.runtime.buffer import Buffer
from tracegrad.runtime.programs.build import Kernels
from tracegrad.support.plan import HostStep, Iteration, Launch, Loop, Offset, Plan, Scalar, Step

ArgumentSlot = tuple[Callable[[int, Any], None], int]                                 # a kernel's set_arg, and the argument's index
Enqueue = tuple[cl.Kernel, tuple[int, ...], tuple[int, ...] | None, int]       # kernel, global size, local size, number of the launch

_PACK = {"f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "b1": "?"}
_INT = struct.Struct("=i").pack


@dataclass
class BoundLoop:
    """A loop as it is run: what to enqueue (or do) in each iteration, and where the iteration's number goes."""

    items: list[Any]                       # Enqueue | HostStep | BoundLoop
    length: int
    places: list[ArgumentSlot]
    host: bool                             # whether there is a host step in it

    def iterations(self) -> Iterator[None]:
        """One iteration after the other; the kernels are told its number."""
        for iteration in range(self.length):
            data = _INT(iteration)
            for set_arg, index in self.places:
                set_arg(index, data)
            yield


class ScalarBinding:
    """A run-time scalar as one dtype: the places it goes to and the bytes they hold now."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.pack = struct.Struct("=" + _PACK[dtype.str[1:]]).pack
        self.places: list[ArgumentSlot] = []
        self.bound = b""

    def bind(self, value: Any) -> None:
        try:
            data = self.pack(value)
        except (struct.error, OverflowError, TypeError):
            data = _convert(value, self.dtype)
        if data != self.bound:             # as bytes: -0.0 is not 0.0, and a NaN is itself
            for set_arg, index in self.places:
                set_arg(index, data)
            self.bound = data


def bound_items(steps: Sequence[Step], built: Kernels, numbers: Iterator[int], places: list[list[ArgumentSlot]],
           scalars: list[dict[np.dtype[Any], ScalarBinding]], to: dict[Any, list[ArgumentSlot]]) -> list[Any]:
    """The steps as they are run; notes the places where each slot, scalar and other argument goes."""
    found: list[Any] = []
    for step in steps:
        if isinstance(step, HostStep):
            found.append(step)
            continue
        if isinstance(step, Loop):
            inner = bound_items(step.steps, built, numbers, places, scalars, to)
            found.append(BoundLoop(inner, step.length, to[Iteration(step.number)], any(map(is_host, inner))))
            continue
        number = next(numbers)
        if 0 in step.global_size:                           # nothing to do, and OpenCL before 2.1 calls it an error
            continue
        kernel, indices = _kernel(built, step)
        set_bytes = _byte_setter(kernel)
        for index, arg in zip(indices, step.args, strict=True):
            if isinstance(arg, Scalar):
                scalars[arg.index].setdefault(arg.dtype, ScalarBinding(arg.dtype)).places.append((set_bytes, index))
            elif isinstance(arg, Offset):
                set_bytes(index, arg.dtype.type(arg.value).tobytes())
            elif isinstance(arg, int):
                places[arg].append((kernel.set_arg, index))
            else:
                to[arg].append((set_bytes, index))
        found.append((kernel, step.global_size, step.local_size, number))
    return found


def loops(steps: Sequence[Step]) -> Iterator[Loop]:
    """The loops among the steps, those in loops included."""
    for step in steps:
        if isinstance(step, Loop):
            yield step
            yield from loops(step.steps)


def sources_of(plan: Plan, fresh: list[int]) -> list[tuple[str, int]]:
    """Where the buffer of each slot is found during a run: ("input" | "fresh" | "constant" | "faults" | "block", index there)."""
    known = {slot: ("fresh", i) for i, slot in enumerate(fresh)} | {slot: ("input", i) for i, slot in enumerate(plan.inputs)}
    sources = []
    for i, slot in enumerate(plan.slots):
        elsewhere = (slot.kind, i) if slot.kind in ("constant", "faults") else ("block", slot.block or 0)
        sources.append(known.get(i if slot.alias is None else slot.alias, elsewhere))
    return sources


def is_host(item: Any) -> bool:
    return isinstance(item, HostStep) or (isinstance(item, BoundLoop) and item.host)


def bind_buffer(places: list[ArgumentSlot], buffer: Buffer) -> None:
    for set_arg, index in places:
        set_arg(index, buffer.mem)


def _byte_setter(kernel: cl.Kernel) -> Callable[[int, Any], None]:
    """How to set a by-value argument from its bytes. The documented way takes 12 us, the one pyopencl itself uses 0.2."""
    multi = getattr(kernel, "_set_arg_buf_multi", None)
    return kernel.set_arg if multi is None else lambda index, data: multi((index, data))


def _kernel(built: Kernels, step: Launch) -> tuple[cl.Kernel, Sequence[int]]:
    """The kernel of a launch, and which of its arguments those of the launch are."""
    try:
        made, name = built[step.entry]
        kernel, places = made.kernel(name)
    except (cl.Error, KeyError):
        raise ArgumentError(f"Executable: the plan's source has no kernel {step.entry}") from None
    count = kernel.num_args if places is None else len(places)
    if count != len(step.args):
        raise ArgumentError(f"Executable: {step.entry} takes {count} arguments, the plan gives {len(step.args)}")
    return kernel, range(count) if places is None else places


def _convert(value: Any, dtype: np.dtype[Any]) -> bytes:
    """The bytes of `value` as `dtype` where struct refuses it: a float for an int, 1e300 as a float32 (inf)."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(value).astype(dtype).reshape(1).tobytes()
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"run: the scalar {value!r} is not one {dtype}") from None
