"""Most calls of a graph are a run of one executable: `Run` makes them without tensors of tracegrad's, which cost as much as many kernels.

Start at `Run.__call__`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.execute.devices import find_device
from tracegrad.graph.ir import Aval
from tracegrad.runtime.buffer import Buffer
from tracegrad.runtime.device import Device
from tracegrad.runtime.faults import verify
from tracegrad.runtime.launch import Executable
from tracegrad.runtime.staging import Placed, addresses
from tracegrad.support import dtypes
from tracegrad.support.modes import float32_matmul, state
from tracegrad.torch_backend.tensor_layouts import Argument, Layout, Number, results
from tracegrad.tracing.replay import Replay


def run_of(replay: Replay, arguments: Sequence[Argument | Number], layouts: Sequence[Layout]) -> Run | None:
    """What calls like one that was replayed are; None where there is more to do, or the results are not in the host's memory."""
    program = replay.program
    if not replay.on_values or type(program.device) is not Device or not program.device.in_host_memory:
        return None
    executable, avals = program.executable, [aval for _, aval, _ in replay.holders]
    if executable is None or not program.buffers_only or program.left or not all(aval.nbytes for aval in avals):
        return None
    of = [k if kind == "fresh" else -1 for kind, k in executable.results]            # others are arguments or constants
    made = {k: _Result(layout, aval) for k, layout, aval in zip(of, layouts, avals, strict=True)}
    alike = all((made[k].shape, made[k].stride) == (layout.shape, _stride(layout)) for k, layout in zip(of, layouts, strict=True))
    if -1 in made or not alike:
        return None
    return Run(executable, arguments, [*made.values()], [[*made].index(k) for k in of])


def _mode() -> Any:
    """What programs are made for, beside a device."""
    return dtypes.get_default_dtype(), float32_matmul[0]


class Run:
    """Runs of an executable on the values of arguments."""

    def __init__(self, executable: Executable, arguments: Sequence[Argument | Number], made: Sequence[_Result], of: Sequence[int]) -> None:
        """made: what is computed. of: which of these each result is; torch gets a copy of what is there twice."""
        self._executable, self._arguments, self._results, self._mode, self._of = executable, arguments, made, _mode(), of
        self._firsts = [of.index(i) for i in range(len(made))]

    def __call__(self, args: Sequence[Any]) -> list[Any] | None:
        """Torch's tensors of the results, of torch's tensors. Waits for the values. None where there is more to do.

        (Python values that the graph's function reads never change, so nothing else is asked.)
        """
        executable = self._executable
        device = executable.device
        if not (state.plain and config.recall) or config.hold or self._mode != _mode() or find_device(None) is not device:
            return None
        given = [argument.value(x, device) for argument, x in zip(self._arguments, args, strict=True)]
        if any(value is None for value in given):
            return None
        found = executable.run(given)
        buffers = [found[k] for k in self._firsts]
        places = addresses(device, [buffer.mem for buffer in buffers])             # from here on the arguments may be written
        for buffer in buffers:
            if buffer.deferred_checks:
                verify(buffer)
        made = [result.tensor(buffer, at) for result, buffer, at in zip(self._results, buffers, places, strict=True)]
        return [made[i] if k == self._firsts[i] else made[i].clone() for k, i in enumerate(self._of)]


def _stride(layout: Layout) -> tuple[int, ...]:
    """Of a result: what the graph promised, or its dimensions in that order without holes."""
    stride, room = [0] * len(layout.shape), 1
    for d in reversed(layout.order):
        stride[d], room = room, room * layout.shape[d]
    return layout.stride if layout.dense else tuple(stride)


class _Result:
    """How torch's tensor is made of a result's memory."""

    def __init__(self, layout: Layout, aval: Aval) -> None:
        import torch  # noqa: PLC0415

        self.nbytes, self.shape, self.stride = aval.nbytes, layout.shape, _stride(layout)
        self._as = torch.bfloat16 if aval.dtype == dtypes.bfloat16 else None             # which numpy does not have
        self._dtype: np.dtype[Any] = np.dtype(aval.dtype if self._as is None else np.int16)
        self._strides = tuple([n * self._dtype.itemsize for n in self.stride])
        self._from_numpy = torch.from_numpy

    def tensor(self, buffer: Buffer, at: int) -> Any:
        results[at] = buffer
        x = self._from_numpy(np.asarray(Placed(buffer, at, self.shape, self._dtype, self._strides)))
        if self._as is not None:
            x = x.view(self._as)
        return x if x.stride() == self.stride else x.as_strided_(self.shape, self.stride)
