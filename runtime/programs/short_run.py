"""The usual run of a small plan as one function, without loops over one argument and questions that have one answer. Start at `short_run`.

What a run takes beside the driver is Python's time: as long as the driver's own, where a plan is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyopencl as cl
from pyopencl import enqueue_nd_range_kernel as enqueue

from tracegrad.config import config
from tracegrad.runtime.buffer import LARGE_BLOCK, Buffer, numbered
from tracegrad.support.cache import written

if TYPE_CHECKING:
    from tracegrad.runtime.bindings import ArgumentSlot, ScalarBinding

    Fresh = tuple[int, list[ArgumentSlot]]  # a result: its bytes and places

Run = Callable[[Sequence[Buffer], Sequence[float | int]], list[Buffer]]
MOST = 64                                  # inputs, results and launches; the text is some lines for each


def parts_of(items: Sequence[Any], bound: list[int], fresh: Sequence[Fresh], scalars: Sequence[Sequence[ScalarBinding]]) -> list[Any]:
    """What `short_run` takes of what a program is loaded with: the serials that are bound, the parts of launches, what sets arguments."""
    launches = [part for item in items if type(item) is tuple for part in item]
    setters = [set_arg for _, places in fresh for set_arg, _ in places]
    return [bound, *launches, *setters, *(binding.bind for by_dtype in scalars for binding in by_dtype)]


def short_run(executable: Any, parts: list[Any], inputs: Sequence[Any], fresh: Sequence[Fresh], scalars: Sequence[Sequence[ScalarBinding]],
              launches: int, ticks: Iterator[int]) -> Run:
    """`executable.run` of given inputs and numbers, written out for a plan of few launches that makes new results: without loops.

    parts: see `parts_of`; there are none while the executable has no kernels, and others when it has them again. inputs, fresh: the bytes
    of each, and its places. scalars: where each goes, those that the plan computes, too. ticks: what `run` notes its runs by. What is not
    as in the run before (another queue, a profiler, storage that was given up, inputs that are suspect, no memory) is left to `run`.
    """
    device, n, m = executable.device, len(inputs), len(fresh)
    names: dict[str, Any] = {"executable": executable, "device": device, "parts": parts, "config": config, "bind": executable._bind_input,
                             "allocate": device.pool.allocate, "new": object.__new__, "Buffer": Buffer, "numbered": numbered,
                             "ticks": ticks, "Error": cl.Error, "enqueue": enqueue, "lock": device.lock}
    names |= {f"nbytes{i}": nbytes for i, (nbytes, _) in enumerate(fresh)}           # names, so that plans of one form have one text
    setters = [(i, k, index) for i, (_, places) in enumerate(fresh) for k, (_, index) in enumerate(places)]
    bound = [(i, k) for i, by_dtype in enumerate(scalars) for k in range(len(by_dtype))]
    computed = "executable.all_scalars(scalars)" if executable.plan.scalar_program else "scalars"
    taken = ["bound, "] + [f"kernel{i}, size{i}, local{i}, number{i}, " for i in range(launches)]
    taken += [*(f"set{i}_{k}, " for i, k, _ in setters), *(f"bind{i}_{k}, " for i, k in bound)]
    unusual = ["device._active is not queue", "device._let_go", "config.profile", "device.profiling",
               "not parts", "executable._blocks is None", *(f"a{i}.deferred_checks" for i in range(n))]
    lines = [*[f"{''.join(f'a{i}, ' for i in range(n))} = values"] * (n > 0),
             *[f"{''.join(f's{i}, ' for i in range(len(scalars)))} = {computed}"] * (len(scalars) > 0), "lock.acquire()", "try:",
             f" queue = device.{'host_queue' if executable.small else 'queue'}",
             f" if {' or '.join(unusual)}:", "  return executable.run(values, scalars)",
             f" {''.join(taken)} = parts", " executable._used = next(ticks)",
             " try:", *(f"  m{i} = allocate(nbytes{i})" for i in range(m)), " except (Error, MemoryError):",
             "  return executable.run(values, scalars)"]
    for i in range(m):
        lines += [f" r{i} = new(Buffer)", f" r{i}.mem, r{i}.device, r{i}.nbytes = m{i}, device, nbytes{i}",
                  f" r{i}.serial, r{i}.deferred_checks = next(numbered), ()"]
    lines += [f" set{i}_{k}({index}, m{i})" for i, k, index in setters]
    lines += [line for i in range(n) for line in (f" if a{i}.serial != bound[{i}]:", f"  bind({i}, a{i})")]
    lines += [f" bind{i}_{k}(s{i})" for i, k in bound]
    lines += [" try:", *(f"  number = number{i}; enqueue(queue, kernel{i}, size{i}, local{i})" for i in range(launches)),
              " except Error as error:", "  raise executable.refused(error, number) from error", "finally:", " lock.release()"]
    return written("values, scalars", [*lines, f"return [{', '.join(f'r{i}' for i in range(m))}]"], names)


def is_short(items: Sequence[Any], inputs: Sequence[Any], fresh: Sequence[Fresh]) -> bool:
    """Whether `short_run` can write it: launches alone, and results whose memory is not held against the device's."""
    return (0 < len(items) and 0 < len(fresh) and len(items) + len(inputs) + len(fresh) <= MOST
            and all(type(item) is tuple for item in items) and all(0 < nbytes < LARGE_BLOCK for nbytes, _ in fresh))
