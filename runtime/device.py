"""Devices: discovery, capabilities, queues. Start at `find`; `Device` is what the rest of the runtime works with.

No question is ever asked: `find("")` takes `config.device`, else the best device present. Drivers are listed in
docs/devices.md.

PoCL, the CPU driver from pip, offers two devices that can share one context: `pthread` (all cores, 50-110 us for an
enqueue and a finish) and `basic` (runs in the calling thread while it enqueues: 1.3 us). tracegrad shows them as one
`Device` with two queues; `Device.queue_for` picks one by the size of a plan, and `Device.use` keeps the two in order.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import pyopencl as cl
from pyopencl.tools import ImmediateAllocator, MemoryPool

from tracegrad.config import config
from tracegrad.errors import DeviceError, NoDriverError
from tracegrad.runtime.capabilities import Capabilities, capabilities, host_alignment, host_writes, plain_name
from tracegrad.runtime.drivers.icd import driver_name, platforms
from tracegrad.runtime.drivers.pocl_cpu import is_pocl, name_cpu
from tracegrad.runtime.drivers.trial import contenders, faster, rank, remembered
from tracegrad.runtime.faults import Record
from tracegrad.runtime.queries import ask, kind_of, memory_of, target_of
from tracegrad.runtime.staging import Pinned, Ring, Uploads, ring_of
from tracegrad.support.device_kinds import KINDS, OfKind
from tracegrad.support.html import table
from tracegrad.support.plan import Launch, Plan, Target, by_one

# What `Device.small_work` goes by: a plan whose estimated work stays below it runs on PoCL's `basic` device. Measured on 4 Zen 3 cores,
# where the two tie (enqueue + finish; flops + bytes): c = a * b at 4-14 M, row sums at 5-10 M, an unvectorised serial recurrence
# of 32 steps at 0.4 M. At 1 M either choice loses little: 17 us against 65, or 400 against 230. On 2 cores (a Xeon, in a virtual
# machine), where no choice loses more than half, 168 calls of up to 16 M take 0.2 to 1.1 of what they take on pthread.
# In a plan of many launches, one on pthread takes as long more as a core needs for work of this size (5-8 us): those of 0.2 M
# flops + bytes each are no faster there (100 of them: 410 us against 278), those of 0.8 M tie; on 2 cores stencils tie at 2 M,
# sines at 0.6 M.
SMALL_WORK = 1 << 20
SMALL_WORK_PER_LAUNCH = 1 << 18
# No thread can help with a launch of one work-item, which counts so much less. But not nothing: meanwhile no other thread of
# Python's runs (3 to 50 ms, on 2 cores).
HELD = 16

NO_DRIVER = "no OpenCL driver was found; install one with `pip install pocl-binary-distribution`, or see `python -m tracegrad doctor`"


_OTHER_NAMES = ("cuda", "hip", "mps", "rocm", "xpu")         # what GPUs are called elsewhere

chosen: list[Any] = []          # the device of new tensors, once it was asked for or set


def choose(found: Sequence[Any]) -> list[Any]:
    """Make this, one device or none, that of new tensors; returns what it was before."""
    before, chosen[:] = chosen[:], found
    return before


class Placed:
    """What all devices have: `with device:` makes it that of new tensors, in all threads.

    >>> with tg.device("cpu"):
    ...     x = tg.ones(3)
    """

    _before: ClassVar[list[list[Any]]] = []         # what was chosen outside of each block
    has_values = True                               # False of "meta", on which nothing is computed
    index: int | None = None                        # torch's number of a device among those of its type; None: the only one
    peers: Sequence[Device] = ()                    # itself and others, where they share a context

    def __enter__(self) -> Any:
        self._before.append(choose([self]))
        return self

    def __exit__(self, *_: object) -> None:
        choose(self._before.pop())

    def facts(self) -> list[tuple[str, str]]:
        """What there is to know of it, as names and values for people."""
        return [(name, str(getattr(self, name))) for name in ("name", "kind", "driver")]

    def _repr_html_(self) -> str:
        return table(("device", ""), self.facts())


class Device(Placed, OfKind):
    """An OpenCL device (or PoCL's pair of them), with the context, queues and memory pool that live on it.

    `target` is what the code generator may know; it is found out when first asked for. `lock` guards everything that enqueues.
    Hold it and call `use(queue)` before enqueuing: all commands of a Device form one sequence, whichever queue they go to.
    """

    def __init__(self, cl_device: cl.Device, basic: cl.Device | None = None) -> None:
        self.cl_device = cl_device
        self.cl_basic = basic
        self.kind = kind_of(cl_device)
        self.driver = driver_name(cl_device.platform)
        self.name = plain_name(cl_device)
        self.platform = cl_device.platform.name.strip()
        self.memory = memory_of(cl_device, self.kind)
        self.max_buffer = int(cl_device.max_mem_alloc_size)
        named = [name_cpu(side) for side in (cl_device, basic) if side is not None and is_pocl(side)]
        self.compiled_for = named[0] if named else ""            # the CPU that PoCL was told to compile for; "" where it knows its own
        self.lock = threading.RLock()
        self.caches: weakref.WeakSet[Any] = weakref.WeakSet()    # objects with release(): asked for memory when it runs out
        self.record = Record()                                   # of the runs that check indices
        self._active: cl.CommandQueue | None = None
        self.last: cl.Event | None = None                        # of the last command that may use uploaded memory
        self._let_go: deque[Any] = deque()                       # mapped arrays that nobody needs, to be unmapped by who has the lock
        self.mapped: dict[int, tuple[int, Any]] = {}             # the pool's blocks that are, by the driver's number (staging.address)
        self.profiling = self._warned = self._begins_large = False
        self.matrix: tuple[str, ...] | None = None               # its matrix instructions, once they were tried (see matrix_trial)
        self.undecided: Sequence[Device] = ()                    # the default, before a trial tells which of these drivers is the faster
        self._pid = os.getpid()

    def __deepcopy__(self, memo: Any) -> Device:
        """Itself: a copy of a model that knows its devices is on the same."""
        return self

    def __repr__(self) -> str:
        return f"<Device {self.name!r} ({self.kind}, {self.driver})>"

    def facts(self) -> list[tuple[str, str]]:
        """What there is to know of it, as names and values for people."""
        target = self.target
        local = f"{target.local_memory >> 10} KiB" if target.local_memory else "-"
        return [*super().facts(), ("cores", str(target.cores)), ("vector", f"{target.simd_bytes} B"), ("local memory", local),
                ("float64", "yes" if target.fp64 else "no"), ("memory", f"{self.memory / (1 << 30):.1f} GiB")]

    @property
    def type(self) -> str:
        """The kind: torch's name of it."""
        return self.kind

    @cached_property
    def context(self) -> cl.Context:
        with _choice:
            known = [peer.__dict__["context"] for peer in self.peers if "context" in peer.__dict__]
            sides = [side for device in self.peers or [self] for side in (device.cl_basic, device.cl_device) if side is not None]
            return known[0] if known else cl.Context([*dict.fromkeys(sides)])

    def share_context(self, *others: Any) -> None:
        """Have one context with other devices of the same driver: what goes from one to another then does not pass the host. (Else each
        has its own: one for all would take memory on each GPU of a machine, also in a process that uses one.) Call it before anything is
        computed on them. Raises DeviceError, and changes nothing, where something was, where they are of several drivers, and where the
        driver makes no such context.

        >>> gpus = [device for device in tg.devices() if device.kind == "gpu"]
        >>> if gpus[1:]: gpus[0].share_context(*gpus[1:])
        """
        shared = list(dict.fromkeys((self, *others)))
        text = " and ".join(str(device) for device in shared)
        if any(not isinstance(device, Device) or device.cl_device.platform != self.cl_device.platform for device in shared):
            raise DeviceError(f"share_context: {text} are not of one driver; what goes between them passes the host's memory")
        with _choice:
            if any(device.cl_basic is not None for device in shared):            # small work runs in the calling thread, and may not wait
                raise DeviceError(f"share_context: one of {text} is PoCL's pair of devices; set POCL_DEVICES='pthread pthread' to have two")
            if any(device.peers or "context" in device.__dict__ for device in shared):
                raise DeviceError(f"share_context: one of {text} has a context; call it before anything is computed on them")
            for device in shared:
                device.peers = shared
            try:
                _ = self.context
            except cl.Error as error:
                for device in shared:
                    device.peers = ()
                raise DeviceError(f"share_context: {self.driver} makes no context of {text}: {error}") from error
            for device in (d for d in (self, *_devices) if not set(shared).isdisjoint(d.undecided)):
                device.undecided = ()                                            # these were asked for

    def split(self, count: int) -> list[Device]:
        """Its cores as `count` devices, each with as many. They share a context: what goes from one to another does not pass the host.

        Raises DeviceError where there are fewer cores, or the driver cannot.

        >>> one, other = tg.device("cpu").split(2)
        """
        driver: Any = self.cl_device
        cores, equally = driver.max_compute_units, cl.device_partition_property.EQUALLY
        able = equally in driver.partition_properties and isinstance(count, int)         # asked first: some drivers end the process
        if not able or not 0 < count <= min(cores, driver.partition_max_sub_devices):
            raise DeviceError(f"split: {self.name} ({self.driver}, {cores} cores) cannot be {count!r} devices")
        parts = [Device(part) for part in driver.create_sub_devices([equally, cores // count])[:count]]
        for part in parts:
            part.peers = parts
        return parts

    def decide(self) -> None:
        """Where nobody knows which of several drivers is the fastest: find out, and be the device of that one from now on.

        This is done for who looks at devices before anything is computed. If something is in the driver's memory (large arrays), this
        process stays with the driver, and the next one knows.
        """
        with _choice:
            tried, self.undecided = self.undecided, ()
            if tried:
                unused = "context" not in self.__dict__          # by anybody but the trial
                best = faster(tried)
                _decided[:] = [self]
                if best is not self and unused:
                    self.__dict__, best.__dict__ = best.__dict__, self.__dict__

    def stay(self) -> None:
        """Where nobody knows, and a program is about to be compiled: this process stays with this driver, and finds out when it ends.

        The trial before the first result took as long again as that (PoCL and Intel's), and would have the cores while others compile.
        """
        with _choice:
            tried, self.undecided = self.undecided, ()
            if tried:
                _decided[:] = [self]
                atexit.register(_try, tried)

    def expect(self, work: float, launches: int) -> None:
        """Tell about how much a program computes in how many launches, before `target` or `first_side` is asked for."""
        self._begins_large = work >= self.small_work(launches)

    @property
    def first_side(self) -> cl.Device:
        """That of PoCL's two devices where the first program will run, it seems: the compiler takes 0.3 s to load, on each."""
        return self.cl_device if self.cl_basic is None or self._begins_large else self.cl_basic

    @cached_property
    def capabilities(self) -> Capabilities:
        """What its compiler can do. Kernels without vectors are in C without extensions: nothing to ask."""
        self._check_process()
        with self.lock:                                              # a thread may ask
            return capabilities(self.context, self.first_side, self.compiled_for) if self.traits.vectors else Capabilities()

    @cached_property
    def target(self) -> Target:
        """What the code generator may know. A CPU whose driver cannot do long loops gets many small work-items, as a GPU does."""
        found = self.capabilities
        target = target_of(self.cl_device, self.kind if found.long_loops else "gpu", found.clang_builtins and found.long_loops)
        return replace(target, host_memory=self.in_host_memory)

    def warn(self) -> None:
        """Tell, once, what this device will compute wrongly."""
        if self._warned:
            return
        self._warned = True
        for doubt in self.capabilities.doubts():
            warnings.warn(f"results of {self.name} ({self.driver}) may be wrong: {doubt}. `python -m tracegrad doctor` names other drivers",
                          RuntimeWarning, stacklevel=2)

    @cached_property
    def extensions(self) -> frozenset[str]:
        """Those of OpenCL that its driver has."""
        return frozenset(self.cl_device.extensions.split())

    @cached_property
    def fp64(self) -> bool:
        """Whether it computes in float64."""
        return "cl_khr_fp64" in self.cl_device.extensions.split() or bool(ask(self.cl_device, "double_fp_config", 0))

    @cached_property
    def queue(self) -> cl.CommandQueue:
        """The queue for large plans."""
        return self._queue(self.cl_device)

    @cached_property
    def host_queue(self) -> cl.CommandQueue:
        """The queue for copies and small plans: it runs in the calling thread where the driver has such a device."""
        return self.queue if self.cl_basic is None else self._queue(self.cl_basic)

    @cached_property
    def downloads(self) -> cl.CommandQueue:
        """The queue of copies that another thread makes while kernels run. Not one of those that `use` keeps in a sequence."""
        return self._queue(self.cl_device)

    @property
    def active(self) -> cl.CommandQueue:
        """The queue that the latest commands went to."""
        return self._active or self.host_queue

    @property
    def in_host_memory(self) -> bool:
        """Whether buffers are host memory, so that arrays can leave without a copy; `host_alignment` tells which can enter so."""
        return self.traits.host_memory and self.host_alignment > 0

    @cached_property
    def host_alignment(self) -> int:
        """The alignment in bytes, beside that of its elements, at which a host array can be a buffer; 0 if none can."""
        self._check_process()
        with self.lock:
            return host_alignment(self.cl_device)

    @cached_property
    def host_writes(self) -> bool:
        """Whether the host may write buffers that stay mapped, between commands."""
        return self.in_host_memory and host_writes(self.cl_device)

    @cached_property
    def pool(self) -> MemoryPool:
        # PoCL allocates a plain buffer at its first use, and crashes if it cannot; ALLOC_HOST_PTR makes it allocate, or fail, at once.
        flags = cl.mem_flags.READ_WRITE | (cl.mem_flags.ALLOC_HOST_PTR if self.traits.host_memory else 0)
        return MemoryPool(ImmediateAllocator(self.host_queue, flags))

    def is_small(self, plan: Plan) -> bool:
        """Whether `plan` is too small for threads."""
        launches = [(step, times) for step, times in plan.each() if isinstance(step, Launch)]
        work = sum((step.work if prod(step.global_size) > 1 else step.work // HELD) * times for step, times in launches)
        return self.cl_basic is not None and work < self.small_work(sum(times for _, times in launches))

    def small_work(self, launches: int = 1) -> int:
        """The work from which on threads pay for a plan of so many launches."""
        cores = self.cl_device.max_compute_units
        return max(SMALL_WORK, 16 * SMALL_WORK // max(1, cores - 1) ** 2) + max(0, launches - 1) * by_one(cores, SMALL_WORK_PER_LAUNCH)

    def use(self, queue: cl.CommandQueue) -> cl.CommandQueue:
        """Make `queue` the one that commands go to: whatever another queue still runs is finished first. Hold `lock`.

        Raises DeviceError in a child process made by fork, where drivers do not work.
        """
        if self._let_go:
            self._unmap()
        if queue is not self._active:
            self._switch(queue)
        return queue

    def unmap(self, mapped: Any) -> None:
        """Let go of a mapped array, which enqueues a command: now if nobody else is at it, else when the next one is."""
        self._let_go.append(mapped)
        del mapped
        self._unmap()

    def _unmap(self) -> None:
        while self._let_go and self.lock.acquire(blocking=False):
            try:
                with contextlib.suppress(IndexError):            # another thread may have been quicker
                    self._let_go.popleft()                       # pyopencl unmaps what is dropped
            finally:
                self.lock.release()

    def _switch(self, queue: cl.CommandQueue) -> None:
        self._check_process()
        if self._active is not None:
            self.drain(self._active)
        self._active = queue

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise DeviceError(f"{self.name}: an OpenCL driver does not survive fork; start workers with the 'spawn' method")

    def drain(self, queue: cl.CommandQueue) -> None:
        """Wait until the commands of one queue have run."""
        if not self.capabilities.finish_waits:
            cl.enqueue_marker(queue)             # the last, and not flushed yet
        queue.finish()

    def finish(self) -> None:
        """Wait until everything enqueued so far has run."""
        if self._active is None:           # nothing was
            return
        self.lock.acquire()                # (a `with` takes 80 ns more)
        try:
            uploads: Uploads | None = self.__dict__.get("uploads")
            if uploads is not None:
                self.drain(uploads.queue)
            if self._active is not None:
                self.drain(self._active)   # the others were when it took over
        finally:
            self.lock.release()

    def set_profiling(self, mode: bool) -> None:
        """Give the device queues that record times, or such that do not, unless it has them (config.profile says which)."""
        with self.lock:
            if self.profiling != mode:
                self.finish()
                self.profiling, self._active = mode, None
                for name in ("queue", "host_queue", "downloads"):
                    self.__dict__.pop(name, None)

    @cached_property
    def ring(self) -> Ring | None:
        """The way of writes, where the host's memory is not the device's; None if it is, or cannot be pinned."""
        if self.traits.host_memory or ask(self.cl_device, "host_unified_memory", False):
            return None
        return ring_of(self.context, self.host_queue)

    @cached_property
    def pinned(self) -> Pinned:
        """Host memory for what is read from a device with memory of its own."""
        return Pinned(self.context, self.downloads)

    @cached_property
    def uploads(self) -> Uploads | None:
        """The queue of new arrays' transfers, where writes go through a ring, and memory for what peers send."""
        apart = self.cl_basic is None and (self.peers or self.ring is not None)
        return Uploads(cl.CommandQueue(self.context, self.cl_device)) if apart else None

    def _queue(self, cl_device: cl.Device) -> cl.CommandQueue:
        if self.profiling:
            return cl.CommandQueue(self.context, cl_device, cl.command_queue_properties.PROFILING_ENABLE)
        return cl.CommandQueue(self.context, cl_device)


_devices: list[Device] = []
_lock = threading.Lock()
_decided: list[Device] = []                # the default, once it was found out in this process
_choice = threading.RLock()                # held while a device gets a context, or becomes that of another driver


def devices() -> list[Device]:
    """Every device present, the best first; empty where there is no driver."""
    with _lock:
        if not _devices:
            _devices.extend(sorted(_discover(), key=rank))
        return list(_devices)


def found() -> Sequence[Device]:
    """The devices that `devices` has found; none if nobody asked yet."""
    return _devices


def find(spec: str | int | Device = "") -> Device:
    """The device that `spec` names: an index into `devices()`, a kind ("cpu", "gpu:1"), part of a name, or "" for the default.

    A driver's name comes before a device's: "intel" is Intel's driver, where both it and PoCL on a CPU of theirs are present.
    Raises NoDriverError where nothing is installed, or nothing that matches.
    """
    if isinstance(spec, Device):
        return spec
    found = devices()
    if not found:
        raise NoDriverError(f"device: {NO_DRIVER}")
    text = str(spec if spec != "" else config.device).strip().lower()
    if not text:
        matches = [_default(found)]
    elif text.isdigit():
        matches = found[int(text):][:1]
    elif (kind := text.partition(":"))[0] in KINDS and (text == kind[0] or kind[2].isdigit()):
        matches = [device for device in found if device.kind == kind[0]][int(kind[2] or 0):][:1]
    else:
        matches = sorted((device for device in found if text in f"{device.name} {device.driver} {device.platform}".lower()),
                         key=lambda device: text not in f"{device.driver} {device.platform}".lower())
    if not matches:
        listing = "; ".join(f"{i}: {device.name} ({device.kind}, {device.driver})" for i, device in enumerate(found))
        gpu = "; a GPU of any vendor is called 'gpu' here" if text.partition(":")[0] in _OTHER_NAMES else ""
        raise NoDriverError(f"device: none matches {text!r}{gpu}; present are {listing}; `python -m tracegrad doctor` "
                            "shows what is missing")
    if text:
        matches[0].undecided = ()                                # this driver was asked for
    return matches[0]


def _default(found: list[Device]) -> Device:
    tried = contenders(found)
    if _decided or not tried:
        return (_decided or found)[0]
    known = remembered(tried)
    if known is None and not any(d.undecided for d in tried):
        tried[0].undecided = tried
    return known or tried[0]


def _try(tried: Sequence[Device]) -> None:
    """The trial at the end of a process (not of one that was forked); the next one knows its outcome."""
    if all(device._pid == os.getpid() for device in tried):
        with contextlib.suppress(KeyboardInterrupt):
            faster(tried)


def _discover() -> list[Device]:
    found = []
    for platform in platforms():
        try:
            present = platform.get_devices()
        except cl.Error:                                         # a platform without devices
            continue
        pocl = {device.name.split("-")[0]: device for device in present if is_pocl(device)}
        if {"basic", "pthread"} <= set(pocl):
            found.append(Device(pocl["pthread"], pocl["basic"]))
            present = [device for device in present if device not in (pocl["pthread"], pocl["basic"])]
        found += [Device(device) for device in present]
    return found


def _after_fork() -> None:
    for device in _devices:
        device._active = None              # so that the next command reaches _switch, which refuses


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
