"""A recorded step, replayed on many ranks: kernels on a device, buckets and halos on a network, by discrete events. Start at `replay`.

All ranks do the same at the same time, so one is followed, and a collective takes what its slowest message takes. What this leaves out:
ranks that are slower than others, other users of the network, reading the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.scale.collectives import ALL_REDUCE, halo, halo_bytes, seconds
from benchmarks.scale.events import Clock, Worker
from benchmarks.scale.network import Network, cube
from benchmarks.scale.programs import Grid, Kernel, Recorded

BUCKET, FIRST = 25 << 20, 1 << 20           # bytes: DistributedDataParallel's bucket_cap_mb; its first bucket, of which there is less
_UPDATE = 7                 # Adam reads four numbers a parameter and writes three


@dataclass(frozen=True)
class Device:
    """What a kernel takes: the longest of its arithmetic, its memory, and a launch. Every number but `launch` is a second's.

    adds: bytes added up in a collective. staged: bytes between the device and the host, where messages go through the host's memory.
    By default the H200 of benchmarks/RESULTS-gpu.md: 65.5 Tflop/s in float32, of which its product of 4096² reaches 66%; copies of
    3754 GB/s; two tiny kernels in 14 us.
    """

    flops: float = 0.66 * 65.5e12
    bandwidth: float = 3754e9
    launch: float = 7e-6
    adds: float = 3754e9 / 3
    staged: float = float("inf")

    def seconds(self, kernel: Kernel) -> float:
        return max(kernel.flops / self.flops, kernel.bytes / self.bandwidth, self.launch)


@dataclass(frozen=True)
class Step:
    """What a step takes, in seconds. alone: the kernels; network: the collectives; after: of these, what comes after the last kernel."""

    seconds: float
    alone: float
    network: float
    after: float
    reason: str

    @property
    def efficiency(self) -> float:
        """Weak scaling: one rank's time over this."""
        return self.alone / self.seconds


@dataclass
class Bucket:
    """Gradients that are sent together. Seconds: when they were ready, and when their sums were there."""

    nbytes: int
    ready: float
    end: float = 0.0
    seconds: float = 0.0

    def arrived(self, clock: Clock) -> None:
        self.end = clock.now


def buckets(program: Recorded, size: int) -> list[tuple[int, int]]:
    """Gradients in the order in which they come, up to `size` bytes together, the first ones up to FIRST: the kernel after which all are

    there, and their bytes.
    """
    found: list[tuple[int, int]] = []
    for i, kernel in enumerate(program.kernels):
        for nbytes in kernel.gradients:
            if found and found[-1][1] + nbytes <= (size if len(found) > 1 else min(size, FIRST)):
                found[-1] = i, found[-1][1] + nbytes
            else:
                found.append((i, nbytes))
    return found


def all_reduce(network: Network, nbytes: float, device: Device, algorithm: str) -> float:
    """Seconds of an all-reduce between ranks. algorithm: a name of ALL_REDUCE, or "best" of them."""
    if network.ranks == 1:
        return 0.0
    names = ALL_REDUCE if algorithm == "best" else [algorithm]
    return min(seconds(network, ALL_REDUCE[name](network, nbytes), device.adds) for name in names)


def replay(program: Recorded, network: Network, device: Device = Device(), overlap: bool = True, algorithm: str = "best",
           bucket: int = BUCKET) -> Step:
    """A step on all ranks of a network. overlap: messages go while kernels run; without it they wait for backward's end, or the reverse.

    Messages that are staged are copied to the host as a part of the message, and back (with overlap) on the queue of the kernels.

    bucket: gradients are sent together up to so many bytes, in the order in which they come.
    """
    if program.grid is not None:
        return _grid(program, program.grid, network, device, overlap)
    clock, memo = Clock(), dict[int, float]()
    queue, wires = Worker(clock), Worker(clock)
    sent: list[Bucket] = []
    last = len(program.kernels) - 1
    due: list[list[int]] = [[] for _ in program.kernels]
    for whole, nbytes in buckets(program, bucket):
        due[whole if overlap else last].append(nbytes)

    def ran(number: int) -> None:
        for nbytes in due[number]:
            if nbytes not in memo:
                memo[nbytes] = all_reduce(network, nbytes, device, algorithm)
            own = Bucket(nbytes, clock.now, seconds=memo[nbytes] + (1 if overlap else 2) * copied(nbytes))
            sent.append(own)
            wires.submit(own.seconds, partial(came, own))

    def copied(nbytes: float) -> float:
        return nbytes / device.staged if network.ranks > 1 else 0.0

    def came(own: Bucket) -> None:
        if overlap and copied(own.nbytes):
            queue.submit(copied(own.nbytes), partial(own.arrived, clock))
        else:
            own.arrived(clock)

    for i, kernel in enumerate(program.kernels):
        queue.submit(device.seconds(kernel), partial(ran, i))
    clock.run()
    end = sum(device.seconds(kernel) for kernel in program.kernels)
    update = max(_UPDATE * program.parameters / device.bandwidth, device.launch) if program.parameters else 0.0
    after = max([0.0, *(b.end - end for b in sent)])
    return Step(end + after + update, end + update, wires.busy, after, _reason(sent, end, overlap))


def _reason(sent: list[Bucket], end: float, overlap: bool) -> str:
    """Why a step waits for the network."""
    late = [b for b in sent if b.end > end]
    if not late:
        return ""
    largest = max(late, key=lambda b: b.nbytes)
    total = f"{sum(b.nbytes for b in sent) / 1e6:.0f} MB take {1e3 * sum(b.seconds for b in sent):.1f} ms"
    if not overlap:
        return f"{total}, all after backward"
    return (f"{total}; when backward ends {sum(b.nbytes for b in late) / 1e6:.0f} MB are not there: of these "
            f"{largest.nbytes / 1e6:.0f} came {1e3 * (end - largest.ready):.1f} ms before")


def _grid(program: Recorded, grid: Grid, network: Network, device: Device, overlap: bool) -> Step:
    """A step of a stencil: what is sent is put together, the inside is computed while it goes (or afterwards), and then the edges."""
    clock = Clock()
    queue, wires = Worker(clock), Worker(clock)
    dims = cube(network.ranks)
    alone, before, inside, edges = (
        sum(map(device.seconds, kernels)) for kernels in (program.kernels, grid.before, grid.inside, grid.edges))
    if network.ranks == 1:
        return Step(alone, alone, 0.0, 0.0, "")
    sent = halo_bytes(dims, grid.side, grid.item)
    messages = sent / device.staged + seconds(network, halo(dims, grid.side, grid.item))
    waiting = {"inside", "messages"}

    def ready(what: str) -> None:
        waiting.discard(what)
        if not waiting:
            queue.submit(sent / device.staged + edges + (0.0 if overlap else inside))

    def begun() -> None:
        wires.submit(messages, lambda: ready("messages"))
        queue.submit(inside if overlap else 0.0, lambda: ready("inside"))

    queue.submit(before, begun)
    total = clock.run()
    after = max(0.0, messages - inside * overlap)
    reason = f"{sent / 1e6:.1f} MB of halos take {1e3 * messages:.2f} ms, the kernels inside {1e3 * inside:.2f}" if after else ""
    return Step(total, alone, wires.busy, after, reason)
