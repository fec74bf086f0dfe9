"""The process group: which ranks there are, who waits for whom, and how a rank that fails ends the others. Start at `init_process_group`.

All MPI calls are non-blocking and polled, so that a rank that waits hears of one that failed, and of its time limit.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

import numpy as np

from tracegrad.distributed.watch import Watched, start
from tracegrad.errors import INTERNAL, ArgumentError, DistributedError, user_line
from tracegrad.execute.devices import find_device, list_devices, set_device

# What launchers tell a process of the number of ranks, for a process that has no mpi4py.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MV2_COMM_WORLD_SIZE")
_INSTALL = "pip install 'tracegrad[mpi]', which brings mpi4py and an MPI"
_GONE, _ASK, _REPLY = 0, 1, 2           # tags of what ranks say of themselves
_EAGER = 0.02                               # seconds that a rank asks for its message as often as it can
_LISTEN = 0.2           # seconds: how often a rank listens that waits for nobody
_ANSWER = 2.0           # seconds that a rank has to say where it is
_GRACE = 5.0            # seconds that a failed rank gives the others to say so, and a rank that left to have its last messages delivered


class ProcessGroup:
    """Some ranks, numbered from 0: what `new_group` returns. `ranks` are their numbers in the world."""

    def __init__(self, comm: Any, ranks: Sequence[int], rank: int, name: str) -> None:
        self.comm, self.ranks, self._rank, self.name, self.count = comm, tuple(ranks), rank, name, 0

    def rank(self) -> int:
        """This process's number in the group."""
        return self._rank

    def size(self) -> int:
        """How many ranks are in it."""
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"ProcessGroup({self.name}, rank {self._rank} of {self.size()})"


class _Outside:
    """A group that this rank is not in."""

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


class GroupMember:
    """NON_GROUP_MEMBER: what `new_group` returns to ranks that are not in it. Operations with it are an ArgumentError."""

    NON_GROUP_MEMBER = _Outside()


class World:
    """What one process knows of the others: made by init_process_group."""

    def __init__(self, mpi: Any, timeout: float) -> None:
        self.mpi, self.timeout = mpi, timeout
        self.lock = threading.Lock()                # MPI may allow one thread at a time only
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self.epoch, self.failed = 0, -1             # of operations: one ends when its caller hears of an error; and the last one with one
        self.gone: dict[int, str] = {}              # ranks that failed or left, and what they said
        self.said = False
        self.doing, self.done = "", ""              # the operation that waits now, and the last one
        self.replies: dict[int, str] = {}           # where ranks are that were asked
        self.sent: list[Any] = []
        self.watched = Watched("", 0, 0)
        if mpi is None:
            self.group, self.local_rank = ProcessGroup(None, (0,), 0, "world"), 0
            return
        comm = mpi.COMM_WORLD.Dup()
        self.news = mpi.COMM_WORLD.Dup()
        self.group = ProcessGroup(comm, range(comm.size), comm.rank, "world")
        shared = comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank = int(shared.rank)
        if comm.size > 1:
            folder = shared.bcast(start(shared.size) if shared.rank == 0 else "")
            self.watched = Watched(folder, self.local_rank, comm.rank)
            self._begin()
        shared.Free()

    # ------------------------------------------------------------------------------------------ waiting
    def submit(self, job: Callable[[], None]) -> None:
        """Run the job on the thread of the messages, after those before it."""
        if self.thread is None:
            self._begin()
        self.jobs.put(job)

    def _begin(self) -> None:
        self.thread = threading.Thread(target=self._serve, name="tracegrad messages", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=_LISTEN)
            except queue.Empty:                     # a rank that computes answers others that wait for it
                self.listen()
                continue
            if job is None:
                return
            job()

    def stop(self) -> None:
        if self.thread is not None:
            self.jobs.put(None)
            self.thread.join(_GRACE)
            self.thread = None

    def wait(self, requests: list[Any], what: str, line: str) -> None:
        """Until the requests are done. Raises DistributedError if a rank is gone or the time is up."""
        start, noticed = time.monotonic(), 0.0
        self.doing = f"{what} at {line}"
        self.watched.at(f"waited in {self.doing}")
        try:
            while True:
                with self.lock:
                    if self.mpi.Request.Testall(requests):
                        return
                now = time.monotonic()
                self.listen()
                if self.gone:
                    noticed = noticed or now            # what it sent before may still be on its way
                    if now - noticed > 1.0:
                        raise DistributedError(f"{what}: {'; '.join(self.gone.values())}; rank {self.group.rank()} waited for it at {line}",
                                               line)
                if now - start > self.timeout:
                    raise DistributedError(f"{what}: rank {self.group.rank()} waited for {self.timeout:g} s at {line}. {self._ask()}. Give "
                                           "init_process_group a longer timeout, or look at what is slow there", line)
                # A long message moves on only when it is asked for: at first in every slice of time, later less and less often.
                time.sleep(0 if now - start < _EAGER else min(0.001, (now - start) / 100))
        finally:
            self.doing, self.done = "", self.doing
            self.watched.at(f"was after {self.done}")

    def listen(self) -> None:
        """Hear what ranks said that failed or left, and answer those that ask where this one is."""
        if self.mpi is None:
            return
        self.gone |= self.watched.heard()
        with self.lock:
            for tag in (_GONE, _ASK, _REPLY):
                status = self.mpi.Status()
                while self.news.Iprobe(self.mpi.ANY_SOURCE, tag, status):
                    text = bytearray(status.Get_count(self.mpi.BYTE))
                    self.news.Recv([text, self.mpi.BYTE], status.source, tag)
                    if tag == _ASK:
                        self._send(self._where(), status.source, _REPLY)
                    else:
                        (self.gone if tag == _GONE else self.replies)[status.source] = text.decode()

    def _send(self, text: str, rank: int, tag: int) -> None:
        data = text.encode()[:2000]
        self.sent = [(request, d) for request, d in self.sent if not request.Test()]        # MPI reads the data until then
        self.sent.append((self.news.Isend([data, self.mpi.BYTE], rank, tag), data))

    def _where(self) -> str:
        if self.doing:
            return f"waits in {self.doing}"
        now = user_line(sys._current_frames().get(threading.main_thread().ident or 0))
        return f"is at {now}, after {self.done}" if self.done else f"is at {now}, and has called no operation"

    def _ask(self) -> str:
        """Where the other ranks are: those that are not in the operation of this one."""
        others = [r for r in self.group.ranks if r != self.group.rank()]
        with self.lock:
            for rank in others:
                self._send("", rank, _ASK)
        until = time.monotonic() + _ANSWER
        while len(self.replies) < len(others) and time.monotonic() < until:
            self.listen()
            time.sleep(0.01)
        found = {r: self.replies.get(r, "does not answer: it has ended, or computes outside Python") for r in others}
        late = [f"rank {r} {text}" for r, text in found.items() if text != f"waits in {self.doing}"]
        return "; ".join(late[:8]) + (f"; and {len(late) - 8} others" if len(late) > 8 else "") or "All ranks wait in it"

    def say(self, text: str) -> None:
        """Tell all other ranks that this one is gone."""
        if self.mpi is None or self.said:
            return
        self.said = True
        with self.lock:
            for other in self.group.ranks:
                if other != self.group.rank():
                    self._send(text, other, _GONE)

    def fail(self, error: BaseException) -> None:
        """End this rank and all others, when they have had the time to say where they were."""
        sys.stdout.flush()
        sys.stderr.flush()
        place = getattr(error, "line", "") or _line(error.__traceback__)
        self.say(f"rank {self.group.rank()} failed with {type(error).__name__}: {error} (at {place})"
                 if place not in str(error) else f"rank {self.group.rank()} failed with {type(error).__name__}: {error}")
        until = time.monotonic() + _GRACE
        while len(self.gone) < self.group.size() - 1 and time.monotonic() < until:
            self.listen()
            time.sleep(0.01)
        self.watched.leave(failing=True)
        time.sleep(0.5)                             # mpiexec drops what it has not read of the ranks' output
        self.mpi.COMM_WORLD.Abort(1)


_world: World | None = None


def world(who: str) -> World:
    """The world of this process. Raises DistributedError before init_process_group."""
    if _world is None:
        raise DistributedError(f"{who}: there is no process group; call tg.distributed.init_process_group() first")
    return _world


def member(who: str, group: ProcessGroup | None) -> ProcessGroup:
    """The group; None is the world."""
    own = world(who).group if group is None else group
    if isinstance(own, _Outside):
        raise ArgumentError(f"{who}: this rank, {world(who).group.rank()}, is not in the group; call it on the ranks that are, where "
                            "get_rank(group) is not -1")
    if not isinstance(own, ProcessGroup):
        raise ArgumentError(f"{who}: group is a ProcessGroup (of new_group) or None for all ranks, got {own!r}")
    return own


def is_available() -> bool:
    """Whether mpi4py is installed. Without it there is a world of one rank."""
    return importlib.util.find_spec("mpi4py") is not None


is_mpi_available = is_available


def is_initialized() -> bool:
    """Whether init_process_group was called."""
    return _world is not None


def init_process_group(backend: str | None = None, init_method: str | None = None, timeout: timedelta | float | None = None,
                       world_size: int = -1, rank: int = -1, store: Any = None, group_name: str = "", pg_options: Any = None,
                       device_id: Any = None) -> None:
    """Make all ranks that mpiexec started one world; without mpi4py, or without mpiexec, a world of one rank.

    backend, init_method, store, group_name and pg_options are torch's, and change nothing: messages go by MPI. timeout: how long an
    operation waits for the other ranks (default 30 minutes), a timedelta or seconds. world_size and rank, where given, must be MPI's.
    device_id: the default device from here on; default: of several devices like the default one, the one of this rank's number on its
    machine.
    An exception that nobody catches ends the other ranks, too, with an error that names this rank.
    Raises ArgumentError, and DistributedError for a second call or where several ranks have no mpi4py.

        tg.distributed.init_process_group()
    """
    global _world
    if _world is not None:
        raise DistributedError("init_process_group: there is a process group already; call destroy_process_group() first")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 1800.0 if timeout is None else float(timeout)
    mpi = importlib.import_module("mpi4py.MPI") if is_available() else None
    told = max((int(os.environ.get(name, "1")) for name in _SIZES if os.environ.get(name, "1").isdigit()), default=1)
    if mpi is None and told > 1:
        raise DistributedError(f"init_process_group: mpiexec started {told} ranks, and mpi4py is not installed: {_INSTALL}")
    made = World(mpi, seconds)
    for name, given, found in (("world_size", world_size, made.group.size()), ("rank", rank, made.group.rank())):
        if given not in (-1, found):
            raise ArgumentError(f"init_process_group: {name} is {given}, and MPI says {found}; start the program with mpiexec -n "
                                "(number of ranks), and leave world_size and rank out")
    if device_id is not None:
        set_device(device_id)
    else:
        default = find_device()
        alike = [d for d in list_devices() if d.name == default.name]
        if len(alike) > 1:
            set_device(alike[made.local_rank % len(alike)])
    _world = made
    if made.group.size() > 1:
        sys.excepthook = _Hook(sys.excepthook)
        atexit.register(_leave, made)


class _Hook:
    """sys.excepthook of a rank among several: prints as before, then ends the others."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self.before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.before(kind, error, trace)
        if _world is not None:
            _world.fail(error)


def _line(trace: TracebackType | None) -> str:
    """The last line on the way to the error that is neither tracegrad's nor NumPy's."""
    found = ""
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((*INTERNAL, os.path.dirname(np.__file__))):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _leave(own: World) -> None:
    """At the end of a program that has not called destroy_process_group: others may wait for this rank."""
    if _world is own:
        own.say(f"rank {own.group.rank()} has ended its program")
        destroy_process_group()


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """End the world (or forget one group). Raises DistributedError if there is none."""
    global _world
    own = world("destroy_process_group")
    if group is not None and group is not own.group:
        return
    own.stop()
    own.listen()
    own.watched.leave()
    if isinstance(sys.excepthook, _Hook):
        sys.excepthook = sys.excepthook.before
    _world = None


def get_rank(group: Any = None) -> int:
    """This process's number in the group (default: in the world); -1 if it is not in it."""
    return -1 if isinstance(group, _Outside) else member("get_rank", group).rank()


def get_world_size(group: Any = None) -> int:
    """How many ranks the group (default: the world) has; -1 if this process is not in it."""
    return -1 if isinstance(group, _Outside) else member("get_world_size", group).size()


def get_process_group_ranks(group: ProcessGroup | None) -> list[int]:
    """The numbers in the world of the group's ranks."""
    return list(member("get_process_group_ranks", group).ranks)


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The number in the world of a rank of the group. Raises ArgumentError if there is none with this number."""
    ranks = member("get_global_rank", group).ranks
    if not 0 <= group_rank < len(ranks):
        raise ArgumentError(f"get_global_rank: group_rank is from 0 to {len(ranks) - 1} in {group.name}, got {group_rank!r}")
    return ranks[group_rank]


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The number in the group of a rank of the world. Raises ArgumentError if it is not in the group."""
    ranks = member("get_group_rank", group).ranks
    if global_rank not in ranks:
        raise ArgumentError(f"get_group_rank: global_rank is one of {list(ranks)}, the ranks of {group.name}, got {global_rank!r}")
    return ranks.index(global_rank)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's number among those of its machine."""
    if _world is None and fallback_rank is not None:
        return fallback_rank
    return world("get_node_local_rank").local_rank


def get_backend(group: ProcessGroup | None = None) -> str:
    """"mpi"."""
    member("get_backend", group)
    return "mpi"


def new_group(ranks: Sequence[int] | None = None, timeout: Any = None, backend: Any = None, pg_options: Any = None) -> Any:
    """A group of these ranks (default: all). All ranks of the world call it; those that are not in it get NON_GROUP_MEMBER.

    timeout, backend and pg_options are torch's, and change nothing. Raises ArgumentError for a number that is no rank, or is there twice.
    """
    own = world("new_group")
    chosen = sorted(own.group.ranks if ranks is None else ranks)
    if not chosen or len({*chosen}) < len(chosen) or not {*chosen} <= {*own.group.ranks}:
        raise ArgumentError(f"new_group: ranks are different numbers from 0 to {own.group.size() - 1}, got {chosen}")
    mine = own.group.rank() in chosen
    if own.mpi is None:
        return ProcessGroup(None, (0,), 0, "group (0,)")
    comm = own.group.comm.Split(0 if mine else own.mpi.UNDEFINED, own.group.rank())
    return ProcessGroup(comm, chosen, chosen.index(own.group.rank()), f"group {tuple(chosen)}") if mine else GroupMember.NON_GROUP_MEMBER


class group:
    """torch's `group.WORLD`: None, which all functions take for all ranks."""

    WORLD: ProcessGroup | None = None
