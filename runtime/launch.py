"""Binding and replaying a plan. Start at `Executable.run`.

An Executable makes everything once: the program, one kernel object per launch, the constants, the storage of temps. A run
then sets the arguments that changed and enqueues the launches, without waiting. OpenCL keeps no reference to a kernel's
arguments; here every launch finds its arguments alive, because inputs belong to the caller, outputs are made by the run, and
temps and constants belong to the Executable. What is dropped after the enqueue is safe (see `buffer`).
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from math import prod
from operator import is_
from typing import Any

import numpy as np
import pyopencl as cl
from pyopencl import enqueue_nd_range_kernel as enqueue

from tracegrad.config import config
from tracegrad.errors import ArgumentError, DeviceError, OutOfMemoryError, UnsupportedError
from tracegrad.runtime.bindings import ArgumentSlot, BoundLoop, ScalarBinding, bind_buffer, bound_items, is_host, loops, sources_of
from tracegrad.runtime.buffer import Buffer, empty, upload
from tracegrad.runtime.device import Device
from tracegrad.runtime.faults import ROWS, Notes, Run, mark, verify
from tracegrad.runtime.programs.build import Kernels, kernels
from tracegrad.runtime.programs.short_run import Run as RunOfValues
from tracegrad.runtime.programs.short_run import is_short, parts_of, short_run
from tracegrad.runtime.staging import Arrival, write_over
from tracegrad.support.cache import listed
from tracegrad.support.plan import Fault, HostStart, HostStep, HostWait, Iteration, Launch, Line, Plan, Slot, each

Ready = Callable[[int, Callable[[], Any]], None]        # of a result's number, and of what waits for its values, in any thread
_clock = count()                           # ticks at every run of any Executable
_loading = threading.Lock()                # guards the next
_loaded: weakref.WeakSet[Executable] = listed("loaded programs", weakref.WeakSet())       # those that have kernels
_EVENTS = 4096                             # profiled launches kept before they are summed up


@dataclass
class LaunchTime:
    """What profiling knows of one kernel: how often it ran and the device's seconds in total."""

    entry: str
    calls: int = 0
    seconds: float = 0.0


class Executable:
    """`plan`, ready to run on `device`. `run` may be called from any thread; the runs follow one another.

    Raises BuildError, OutOfMemoryError, UnsupportedError where the plan needs a dtype the device lacks, and ArgumentError
    for a malformed plan.
    """

    def __init__(self, plan: Plan, device: Device) -> None:
        _check(plan, device)
        device.warn()
        self.plan, self.device = plan, device
        self.small = device.is_small(plan)
        self._flushed = device.traits.flushed                              # asked in every run
        self._host = any(isinstance(step, HostStep) for step, _ in plan.each())
        self._lock = threading.RLock() if self._host else device.lock      # a host step may use the device, in any thread
        self._busy = False                                                 # between host steps
        self.begun: dict[int, Any] = {}                                    # by slot of the token: what a HostWait waits for
        self._arriving: dict[int, list[Arrival]] = {}                      # and its operands
        self._events: list[tuple[int, cl.Event]] = []
        self._times = [LaunchTime(step.entry) for step in plan.launches]
        self._constants = {i: upload(device, _array(slot)) for i, slot in enumerate(plan.slots) if slot.kind == "constant"}
        self._blocks: list[Buffer] | None = None
        self._computed: tuple[tuple[Any, ...], list[Any]] | None = None    # scalars, and those with what the plan computes of them
        self._used = next(_clock)
        self._items: list[Any] | None = None                               # what a run enqueues; None without kernels
        self._parts: list[Any] = []                                        # of it, for a short run; empty without kernels
        self._load()
        device.caches.add(self)

    def _load(self) -> None:
        """Have kernels; others, that were not used for the longest time, may lose theirs for it."""
        self._bind_plan()
        with _loading:
            _loaded.add(self)
            over = len(_loaded) - max(1, config.programs)
            oldest = sorted(_loaded, key=lambda e: e._used)[:over + config.programs // 8] if over > 0 else []
        for executable in oldest:
            if executable is not self:
                executable.unload()

    def _bind_plan(self) -> None:
        """Create the kernels; note the places where each slot and scalar goes; bind the constants."""
        plan = self.plan
        built: Kernels = kernels(self.device, plan, self.small) if plan.launches else {}
        self._built = built                                # others may have them, too
        places: list[list[ArgumentSlot]] = [[] for _ in plan.slots]
        scalars: list[dict[np.dtype[Any], ScalarBinding]] = [{} for _ in range(plan.scalars + len(plan.scalar_program))]
        self._faults = [ScalarBinding(np.dtype(np.int32)) for _ in plan.checks]
        to: dict[Any, list[ArgumentSlot]] = {Iteration(step.number): [] for step in loops(plan.steps)}  # where arguments by value go
        to |= {Fault(i): binding.places for i, binding in enumerate(self._faults)}
        numbers = count()
        self._items = bound_items(plan.steps, built, numbers, places, scalars, to)
        for i, slot in enumerate(plan.slots):
            if slot.alias is not None:                  # an in-place output is its input's buffer
                places[slot.alias] += places[i]
        self._inputs = [(plan.slots[i].nbytes, places[i]) for i in plan.inputs]
        self._bound: list[int] = [-1] * len(plan.inputs)
        self._given: list[weakref.ref[Buffer] | None] = [None] * len(plan.inputs)       # for the profiler: whose serials those are
        aliased = {slot.alias for slot in plan.slots}
        self.written = {k for k, i in enumerate(plan.inputs) if i in aliased}           # the inputs that are updated in place
        fresh = dict.fromkeys(i for i, slot in enumerate(plan.slots) if slot.kind == "output" and slot.alias is None)
        self._fresh = [(plan.slots[i].nbytes, places[i]) for i in fresh]
        self._temps = [(slot.block, places[i]) for i, slot in enumerate(plan.slots) if slot.kind == "temp"]
        sources = sources_of(plan, list(fresh))
        self.results = [sources[i] for i in plan.outputs]
        self._plain = self.results == [("fresh", i) for i in range(len(fresh))]
        self._slot_sources = sources
        self._scalars = [list(by_dtype.values()) for by_dtype in scalars]
        self._parts[:] = parts_of(self._items, self._bound, self._fresh, self._scalars)
        for i, buffer in self._constants.items():
            bind_buffer(places[i], buffer)
        self._notes: Notes | None = None
        if plan.checks:
            rows = upload(self.device, np.zeros(ROWS * 2 * len(plan.checks), np.int32))
            bind_buffer([place for i, slot in enumerate(plan.slots) if slot.kind == "faults" for place in places[i]], rows)
            self._notes = Notes(rows, len(plan.checks), self.device.record)
            self._lines = [check.line for check in plan.checks]
        self._made = [i for i, slot in enumerate(plan.outputs) if plan.slots[slot].kind == "output"]     # not handed through
        tokens = {step.inputs[-1] for step, _ in plan.each() if isinstance(step, HostStart)}        # have no values that may be wrong
        counted = [plan.slots[plan.outputs[i]].alias not in tokens for i in self._made]
        self._reads, self._checked = ([masks[i] if masks and counts else 0 for i, counts in zip(self._made, counted, strict=True)]
                                      for masks in (plan.reads, plan.checked))

    def unload(self) -> None:
        """Give up kernels, the driver's program, unless somebody else has it, and storage, until the next run. Nothing while it runs."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._busy or self._items is None:
                return
            self._items, self._built, self._blocks, self._temps = None, {}, None, []
            self._parts.clear()
            for _, places in (*self._inputs, *self._fresh):
                places.clear()
            for binding in (*self._faults, *(b for by_dtype in self._scalars for b in by_dtype)):
                binding.places.clear()                                     # what is bound is known, should a profiler ask
            with _loading:
                _loaded.discard(self)
        finally:
            self._lock.release()

    def run(self, inputs: Sequence[Buffer], scalars: Sequence[float | int] = (), lines: Sequence[Line] | None = None,
            ready: Ready | None = None) -> list[Buffer]:
        """Enqueue the plan and return its outputs; nothing is waited for (except by a host step).

        lines: the user's lines of the plan's checks, where they are not those that the plan was made for. ready: is told of each output
        when the launches that it needs are enqueued, before those behind them; not by a plan with host steps.

        An aliased output and a passed-through input are the very Buffers given (the latter a copy if the memory is an array's that
        may change). Raises OutOfMemoryError before anything is written, ArgumentError for inputs that do not fit the plan,
        DeviceError for what the driver reports.
        """
        if len(inputs) != len(self._inputs) or len(scalars) != self.plan.scalars:
            raise ArgumentError(
                f"run: the plan takes {len(self._inputs)} buffers and {self.plan.scalars} scalars, got {len(inputs)} and {len(scalars)}"
            )
        if self.plan.scalar_program:
            scalars = self.all_scalars(scalars)
        self._lock.acquire()                               # (a `with` takes 80 ns more)
        try:
            if self._busy:
                raise DeviceError("run: a host step called the plan it is a step of")
            self._used = next(_clock)
            if self._items is None:
                self._load()
            device, fresh = self.device, []
            for nbytes, places in self._fresh:
                buffer = empty(device, nbytes)
                fresh.append(buffer)
                mem = buffer.mem
                for set_arg, index in places:
                    set_arg(index, mem)
            if self._blocks is None:                       # (after what may have asked for them: see buffer.make_room)
                self._bind_blocks()
            bound, inherits = self._bound, False
            for i, buffer in enumerate(inputs):
                if buffer.serial != bound[i]:
                    self._bind_input(i, buffer)
                if buffer.deferred_checks:
                    inherits = True
            for i in self.written:                         # another handle each time, of memory that may be bound
                self._given[i] = weakref.ref(inputs[i])
            if scalars:
                for value, bindings in zip(scalars, self._scalars, strict=True):
                    for binding in bindings:
                        binding.bind(value)
            run = self._mark(inputs, fresh, inherits, lines) if inherits or self._notes is not None else None
            if self._host:
                self._run_with_host_steps(inputs, fresh, run)
            elif ready is not None:
                self._enqueue_telling(ready, inputs, fresh, run)
            else:
                self._enqueue(self._items or ())
        finally:
            self._lock.release()
        if self._plain:
            return fresh
        results = (self._pick(source, inputs, fresh) for source in self.results)
        return [result.copy() if result.may_change else result for result in results]

    def all_scalars(self, scalars: Sequence[float | int]) -> list[Any]:
        """Those of a run, and those that the plan computes of them."""
        known = self._computed                             # the very same objects as in the latest run give the same again
        if known is None or not all(map(is_, known[0], scalars)):
            known = self._computed = tuple(scalars), self.plan.all_scalars(scalars)
        return known[1]

    def short_run(self) -> RunOfValues:
        """`run`, written out if the plan has few launches in the host's memory and makes new results (see programs/short_run.py)."""
        items, device = self._items or (), self.device
        plain = self._plain and not (self._host or self.written or self.plan.checks) and device.traits.host_memory
        if plain and device.uploads is None and is_short(items, self._inputs, self._fresh):
            return short_run(self, self._parts, self._inputs, self._fresh, self._scalars, len(items), _clock)
        return self.run

    def refused(self, error: cl.Error, number: int) -> DeviceError:
        """What a launch of this number is refused with; -1: none was tried."""
        return _launch_error(error, self._times[number].entry if number >= 0 else "?", self.device)

    def profile(self) -> list[LaunchTime]:
        """Calls and device seconds of each launch so far, in the plan's order; zeros unless config.profile was set during runs."""
        with self._lock:
            self.device.finish()
            for index, event in self._events:
                self._times[index].calls += 1
                self._times[index].seconds += 1e-9 * (event.profile.end - event.profile.start)
            self._events.clear()
            return [LaunchTime(t.entry, t.calls, t.seconds) for t in self._times]

    def release(self) -> None:
        """Give the storage of temps back to the pool, unless a run is using it; the next run allocates it again."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._busy:
                    self._blocks = None
            finally:
                self._lock.release()

    # -- for the profiler, which runs the plan on a queue of its own

    def latest(self) -> list[Buffer | None]:
        """The inputs of the latest run, as far as somebody holds them."""
        return [None if given is None else given() for given in self._given]

    def take_scalars(self, other: Executable) -> None:
        """Bind the scalars that `other`, an Executable of the same plan, was run with."""
        for mine, theirs in zip(self._scalars, other._scalars, strict=True):
            for binding, bound in zip(mine, theirs, strict=True):
                for set_arg, index in binding.places if bound.bound else ():
                    set_arg(index, bound.bound)

    def bind(self, inputs: Sequence[Buffer]) -> tuple[list[Any], list[Buffer]]:
        """Bind inputs, outputs of its own and storage; checks report to nobody. What a run enqueues, and the buffer of each slot."""
        if self._items is None:
            self._load()
        assert self._items is not None
        fresh = [empty(self.device, nbytes) for nbytes, _ in self._fresh]
        for i, buffer in enumerate(inputs):
            self._bind_input(i, buffer)
        for buffer, (_, places) in zip(fresh, self._fresh, strict=True):
            bind_buffer(places, buffer)
        for k, binding in enumerate(self._faults):
            binding.bind(2 * k)
        self._bind_blocks()
        return self._items, [self._pick(source, inputs, fresh) for source in self._slot_sources]

    # -- one run, step by step

    def _enqueue(self, items: Sequence[Any]) -> None:
        """Enqueue launches, and all iterations of loops, without waiting. Hold the device's lock."""
        device, profiling = self.device, config.profile
        if device.profiling != profiling:
            device.set_profiling(profiling)
        self._last = -1
        try:
            queue = device.use(device.host_queue if self.small else device.queue)
            plain = not profiling and device.__dict__.get("uploads") is None
            for item in items:
                if plain and type(item) is tuple:
                    kernel, size, local, self._last = item
                    enqueue(queue, kernel, size, local)
                else:
                    self._enqueue_all((item,), queue)
            if self._flushed:
                queue.flush()                                    # else a driver may wait for more, or for somebody who waits
        except cl.Error as error:
            raise self.refused(error, self._last) from error
        if profiling and len(self._events) > _EVENTS:
            self.profile()

    @cached_property
    def _ends(self) -> list[tuple[int, list[int]]]:
        """Behind how many items of a run which results are whole: the last that has a result's memory among its arguments."""
        plan = self.plan
        last: dict[int, int] = {}
        count = 0
        for step in plan.steps:
            count += not (isinstance(step, Launch) and 0 in step.global_size)           # (that is no item: see bound_items)
            for launch, _ in each((step,), 1):
                last |= {_memory(plan, a): count for a in getattr(launch, "args", ()) if isinstance(a, int)}
        found: dict[int, list[int]] = {}
        for i, slot in enumerate(plan.outputs):
            found.setdefault(last.get(_memory(plan, slot), 0), []).append(i)
        return sorted(found.items())

    def _enqueue_telling(self, ready: Ready, inputs: Sequence[Buffer], fresh: list[Buffer], run: Run | None) -> None:
        """Enqueue the launches, and tell of each result behind the last one that it needs."""
        plan, start = self.plan, 0
        queue = self.device.host_queue if self.small else self.device.queue
        for end, results in self._ends:
            self._enqueue((self._items or ())[start:end])
            start = end
            for i in results:
                slot = plan.slots[plan.outputs[i]]
                arrival: Callable[[], Any] = self._pick(self.results[i], inputs, fresh).arriving(slot.shape, slot.dtype, queue)
                if run is not None and run.notes is not None:
                    arrival = run.notes.before(run, arrival, queue)
                ready(i, arrival)
        self._enqueue((self._items or ())[start:])

    def _enqueue_all(self, items: Sequence[Any], queue: cl.CommandQueue) -> None:
        profiling, device = config.profile, self.device
        tracked = device.__dict__.get("uploads") is not None     # transfers in another queue wait for the last command here
        for item in items:
            if type(item) is tuple:
                kernel, size, local, number = item
                self._last = number
                event = enqueue(queue, kernel, size, local)
                if tracked:
                    device.last = event
                if profiling:
                    self._events.append((number, event))
            else:
                for _ in item.iterations():
                    self._enqueue_all(item.items, queue)

    def _run_with_host_steps(self, inputs: Sequence[Buffer], fresh: list[Buffer], run: Run | None) -> None:
        buffers = [self._pick(source, inputs, fresh) for source in self._slot_sources]
        self._busy = True
        try:
            self._walk(self._items or (), buffers, run)
        finally:
            for arrival in chain(*self._arriving.values()):                # after an error, nobody waited for what is being sent
                with contextlib.suppress(cl.Error):
                    arrival()
            self.begun.clear()
            self._arriving.clear()
            self._busy = False
            if run is not None:
                run.running = False

    def _walk(self, items: Sequence[Any], buffers: list[Buffer], run: Run | None) -> None:
        """Run items of which some are host steps, or have some in them."""
        waiting: list[Any] = []
        for item in (*items, None):
            if item is not None and not is_host(item):
                waiting.append(item)
                continue
            if waiting:
                with self.device.lock:
                    self._enqueue(waiting)
                waiting.clear()
            if isinstance(item, BoundLoop):
                for _ in item.iterations():
                    self._walk(item.items, buffers, run)
            elif item is not None:
                if isinstance(item, HostStart):
                    self.begin(item, buffers, self.device.host_queue if self.small else self.device.queue, run)
                    continue
                if run is not None and run.notes is not None and not isinstance(item, HostWait):
                    run.notes.raise_early(run)
                self.call_host(item, buffers)

    def begin(self, step: HostStart, buffers: list[Buffer], queue: cl.CommandQueue, run: Run | None = None) -> None:
        """Begin a call, whose inputs are copied to the host while further launches are enqueued. queue: the one that is used."""
        slots, given = self.plan.slots, step.inputs[:-1]
        for i in given:
            if any(other is not run for other, _ in buffers[i].deferred_checks):
                verify(buffers[i])
        arrivals: list[Any] = [buffers[i].arriving(slots[i].shape, slots[i].dtype, queue) for i in given]
        self._arriving[step.outputs[0]] = arrivals[:]
        if run is not None and run.notes is not None:
            arrivals[0] = run.notes.before(run, arrivals[0], queue)
        self.begun[step.outputs[0]] = step.fn(*arrivals)

    def call_host(self, step: HostStep, buffers: list[Buffer]) -> None:
        """Download, call, upload. The device's lock is not held during the call, so that it may compute on its own.

        Of a call that began before (a HostWait): wait for it, and upload.
        """
        slots = self.plan.slots
        if (into := step.into) is not None and self.device.in_host_memory:
            arrays = [buffers[i].contents(*layout) for i, layout in zip(step.inputs, into.operands, strict=True)]
            write_over(self.device, [buffers[i] for i in step.outputs], into.results, lambda outs: into(outs, *arrays))
            return
        if isinstance(step, HostWait):
            result = step.fn(self.begun.pop(step.inputs[0]))
            self._arriving.pop(step.inputs[0])
        else:
            result = step.fn(*(buffers[i].download(slots[i].shape, slots[i].dtype) for i in step.inputs))
        results = (result,) if len(step.outputs) == 1 and not isinstance(result, (tuple, list)) else tuple(result or ())
        if len(results) != len(step.outputs):
            raise ArgumentError(f"{step.name}: returned {len(results)} arrays, {len(step.outputs)} were declared")
        for i, value in zip(step.outputs, results, strict=True):
            array = np.asarray(value, slots[i].dtype)
            if array.size != prod(slots[i].shape):           # (of another shape: the slot is that of a reshape of the result)
                raise ArgumentError(f"{step.name}: returned an array of shape {array.shape}, {slots[i].shape} was declared")
            buffers[i].write(array.reshape(slots[i].shape))

    def _bind_input(self, i: int, buffer: Buffer) -> None:
        nbytes, places = self._inputs[i]
        if buffer.nbytes != nbytes or buffer.device is not self.device:
            raise ArgumentError(f"run: input {i} must have {nbytes} bytes on {self.device.name}, got {buffer!r}")
        if buffer.borrowed and i in self.written:
            raise ArgumentError(f"run: input {i} is updated in place, and {buffer!r} is an array's own memory")
        self._bound[i] = -1
        bind_buffer(places, buffer)
        self._bound[i] = buffer.serial
        self._given[i] = weakref.ref(buffer)

    def _mark(self, inputs: Sequence[Buffer], fresh: list[Buffer], inherits: bool, lines: Sequence[Line] | None) -> Run | None:
        """Give this run its row of notes, and make the outputs suspect for what it may find and for what the inputs are suspected of."""
        run, notes = None, self._notes
        if notes is not None:
            run = Run(self.plan.checks, lines or self._lines, notes, running=self._host)
            place = notes.row(run)
            for k, binding in enumerate(self._faults):
                binding.bind(place + 2 * k)
        outputs = fresh if self._plain else [self._pick(self.results[i], inputs, fresh) for i in self._made]
        mark(outputs, inputs if inherits else (), self._reads, run, self._checked)
        return run

    def _bind_blocks(self) -> None:
        blocks = [empty(self.device, nbytes) for nbytes in self.plan.blocks]
        for block, places in self._temps:
            assert block is not None       # _check saw to it
            bind_buffer(places, blocks[block])
        self._blocks = blocks

    def _pick(self, source: tuple[str, int], inputs: Sequence[Buffer], fresh: list[Buffer]) -> Buffer:
        kind, i = source
        if kind == "fresh":
            return fresh[i]
        if kind == "input":
            return inputs[i]
        if kind == "constant":             # a copy: the caller may update its result in place
            return upload(self.device, _array(self.plan.slots[i]))
        if kind == "faults":
            assert self._notes is not None
            return self._notes.buffer  # type: ignore[no-any-return]
        assert self._blocks is not None
        return self._blocks[i]


def _memory(plan: Plan, i: int) -> int:
    alias = plan.slots[i].alias
    return i if alias is None else alias


def _array(slot: Slot) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(slot.data, slot.dtype), slot.shape))


def _check(plan: Plan, device: Device) -> None:
    """Refuse a plan that the device cannot run, or that is malformed where a mistake would crash the driver."""
    inputs = set(plan.inputs)
    for i, slot in enumerate(plan.slots):
        if (slot.kind == "input") != (i in inputs):
            raise ArgumentError(f"Executable: slot {i} ({slot.kind}) {'is' if i in inputs else 'is no'} input of the plan")
        if slot.dtype == np.float64 and not device.target.fp64:
            raise UnsupportedError(f"Executable: {device.name} has no float64; use float32, or another device")
        if slot.kind == "temp" and not (slot.block is not None and slot.nbytes <= plan.blocks[slot.block]):
            raise ArgumentError(f"Executable: the temp {slot.name!r} does not fit its block {slot.block}")
        if slot.alias is not None and (slot.alias not in inputs or plan.slots[slot.alias].nbytes < slot.nbytes):
            raise ArgumentError(f"Executable: the output {slot.name!r} aliases slot {slot.alias}, which is no input of its size")
    for i in plan.outputs:
        if plan.slots[i].kind == "temp":
            raise ArgumentError(f"Executable: the temp {plan.slots[i].name!r} is an output; temps are overwritten by the next run")


def _launch_error(error: cl.Error, name: str, device: Device) -> DeviceError:
    if any(word in str(error) for word in ("OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "MEM_OBJECT_ALLOCATION_FAILURE")):
        return OutOfMemoryError(f"run: {device.name} ran out of memory at kernel {name}: {error}; use smaller batches")
    return DeviceError(f"run: {device.name} refused kernel {name}: {error}")
