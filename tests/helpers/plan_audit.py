"""What a plan would do on a GPU, found without one. Start at `audit`; `Finding` is what it says of one launch.

A sample of each launch is run as Python (codegen/kernel/run): all items of a first work-group up to their barriers, or its first 32 items
where there are none, with every access to memory written down, lane by lane. So it sees what kernels of any kind really touch, text
included. The inputs are the program's own; what earlier launches of the plan would have written is zeros.

What is asked of a launch, with the reasons, stands in `LIMITS` and `problems`.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.ir.statements import Barrier, Instruct
from tracegrad.codegen.kernel.run import memory, run
from tracegrad.codegen.kernel.run.memory import Memory, Pointer, State
from tracegrad.execute import program as tg_program
from tracegrad.support.plan import Fault, Iteration, Launch, Offset, Plan, Scalar, Slot, Target

GPU = Target("gpu", 16, 16, 64, 256, 32768, plain_math=False, clang_builtins=False,
             host_memory=False)      # 64 cores: of a middling one
# As devices of several vendors describe themselves; where the memory is the host's nothing is known of alignment.
TARGETS = {
    "middling": GPU,
    "NVIDIA": replace(GPU, cores=132, max_work_group=1024, local_memory=49152, resident=2048),
    "AMD, waves of 64": replace(GPU, cores=60, lanes=64, resident=2560, local_memory=65536),
    "AMD, waves of 32": replace(GPU, cores=80, max_work_group=1024, local_memory=65536, resident=1280),
    "Intel": replace(GPU, cores=12, lanes=16, max_work_group=512, local_memory=65536, host_memory=True, fp64=False),
    "Qualcomm": replace(GPU, cores=4, lanes=64, max_work_group=1024, host_memory=True, fp64=False),
    "ARM": replace(GPU, cores=8, lanes=16, max_work_group=128, host_memory=True, fp64=False),
    "groups of 64, 16 KiB": replace(GPU, cores=16, max_work_group=64, local_memory=16384, fp64=False),
}
WARP = 32                     # work-items whose accesses are looked at together
SECTOR = 32                   # bytes that come from memory together
BANKS = 32                    # of local memory, a word of 4 bytes each
LOOKED_AT = 60_000            # accesses of a launch that are looked at


@dataclass(frozen=True)
class Limits:
    """What a launch may be."""

    little: int = 1 << 17     # flops + bytes that take no longer than the launch itself: only its local size is asked for
    share: int = 64           # flops + bytes of an item, at most, as long as the device is not full,
    full: int = 256           # which takes so many items a core: 8 warps hide the latency of memory
    slack: int = 8            # accesses of an item: so many times what each would have if all that can run shared the work evenly
    trips: int = 256          # accesses of an item that are never too many: 256 take some 50 us
    sectors: float = 3.0      # times the sectors that the bytes fit in: windows of stride 2 have 2.5, transposed reads 8,
    cached: int = 1 << 17     # where a buffer has more bytes than this: less stays close to the cores
    conflicts: float = 2.0    # times the cycles of local memory; two-way conflicts of a tree's last steps are below
    registers: int = 255      # words of an item: what NVIDIA's compiler can give at all


LIMITS = Limits()


@dataclass(frozen=True)
class Finding:
    """One launch: its sizes, and what its sample showed."""

    entry: str
    items: int
    local: tuple[int, ...] | None
    work: int
    trips: int                # accesses of the busiest item
    sectors: float            # of the worst buffer: sectors that came, in the least that could have held the bytes
    worst: str                # the line of C that this was found at
    conflicts: float          # of the worst local array: cycles, in those without conflicts
    registers: int            # an estimate from the text: it counts what is declared, not what lives at the same time
    local_bytes: int          # of local memory, of a work-group
    spilled: str              # an array of the item's own that has to be in memory (see `spilled`)

    def problems(self, target: Target) -> list[str]:
        """What is wrong with it."""
        limits, found = LIMITS, []
        full = limits.full * target.cores
        if self.local is None:
            found.append("local size left to the driver")
        elif math.prod(self.local) > target.max_work_group:
            found.append(f"groups of {math.prod(self.local)} where there are none of more than {target.max_work_group}")
        if self.local_bytes > target.local_memory:
            found.append(f"{self.local_bytes} bytes of local memory")
        if self.work < limits.little:
            return found
        if self.local is not None and math.prod(self.local) % target.lanes:
            found.append(f"groups of {math.prod(self.local)} are no multiple of {target.lanes}")
        wanted = min(self.work // limits.share, full)
        if self.items < wanted:
            found.append(f"{self.items} work-items, {wanted} wanted")
        share = limits.slack * self.work // 4 // full + limits.trips
        if self.trips > share:
            found.append(f"an item has at least {self.trips} accesses, {share} wanted")
        if self.sectors > limits.sectors:
            found.append(f"{self.sectors:.1f} times the sectors at `{self.worst}`")
        if self.conflicts > limits.conflicts:
            found.append(f"bank conflicts: {self.conflicts:.1f} times the cycles")
        if self.spilled:
            found.append(f"`{self.spilled}` is indexed by what is not known beforehand")
        if self.registers > limits.registers:
            found.append(f"{self.registers} registers")
        return found


class _Captured(Exception):
    def __init__(self, program: Any, values: Sequence[Any]) -> None:
        super().__init__()
        self.program, self.values = program, values


def planned(fn: Callable[..., Any], arrays: Sequence[Any], target: Target) -> tuple[Plan, list[Any], list[Any]]:
    """The plan of traced `fn` for a target, its inputs and its run-time numbers. Nothing is computed."""

    def capture(program: Any, values: Any, lines: Any) -> Any:
        raise _Captured(program, values)

    before, kept = tg.device(), tg_program.Program._interpreted
    tg.set_device("numpy")
    given = [tg.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    tg_program.Program._interpreted = capture  # type: ignore[method-assign]
    try:
        tg.trace(fn)(*given)
    except _Captured as found:
        program, values = found.program, found.values
    finally:
        tg_program.Program._interpreted = kept  # type: ignore[method-assign]
        tg.set_device(before)
    plan = compile_graph(program._graph, target)
    inputs = [v.array for v, weak in zip(values, program.weak, strict=True) if not weak]
    return plan, inputs, [v for v, weak in zip(values, program.weak, strict=True) if weak]


def audit(fn: Callable[..., Any], arrays: Sequence[Any], target: Target = GPU) -> list[Finding]:
    """What each launch of the plan of `fn` would do, in order."""
    plan, inputs, numbers = planned(fn, arrays, target)
    return audited(plan, inputs, numbers)


def audited(plan: Plan, inputs: Sequence[Any], numbers: Sequence[Any]) -> list[Finding]:
    state = State()
    memories: list[Any] = [None] * len(plan.slots)
    for slot, array in zip(plan.inputs, inputs, strict=True):
        memories[slot] = _memory(plan.slots[slot].name or f"input{slot}", np.asarray(array, plan.slots[slot].dtype).reshape(-1), state)
    for i, slot in enumerate(plan.slots):
        if memories[i] is None:
            alias = None if slot.alias is None else memories[slot.alias]
            data = None if slot.data is None else np.array(slot.data, slot.dtype).reshape(-1)
            memories[i] = alias or _memory(slot.name or slot.kind, _fresh(slot) if data is None else data, state)
    given = plan.all_scalars([float(n) for n in numbers])
    kernels = run.kernels_of(plan)
    meeting = {kernel.entry for kernel in plan.kernels if any(map(_meets, kernel.statements()))}
    texts = _texts(plan.source)
    found = []
    for step, _ in plan.each():
        if isinstance(step, Launch):
            sample = _Sample(kernels[step.entry], step, memories, given, state, step.entry in meeting)
            sample.run()
            found.append(sample.finding(texts[step.entry]))
            for arg in step.args:                                      # a part of what it writes would mean nothing
                if isinstance(arg, int) and plan.slots[arg].kind == "temp" and memories[arg].array.size <= 1 << 16:
                    memories[arg].array[:] = _fresh(plan.slots[arg])
    return found


def _fresh(slot: Slot) -> Any:
    """What an earlier launch would have written: zeros, and of integers 0, 1, 2, ..., as most are sorted, or places."""
    size = 64 if slot.kind == "faults" else max(1, math.prod(slot.shape))
    return np.arange(size).astype(slot.dtype) if slot.kind == "temp" and slot.dtype.kind in "iu" else np.zeros(size, slot.dtype)


def _memory(name: str, array: Any, state: State) -> Memory:
    """A buffer of which nobody notes who wrote what."""
    made: Memory = Memory.__new__(Memory)
    made.name, made.array, made.state = name, array, state
    return made


def _meets(statement: Any) -> bool:
    """Whether work-items wait for each other there."""
    return isinstance(statement, Barrier) or (isinstance(statement, Instruct) and statement.of.lanes > 1)


class _Enough(Exception):
    pass


class _Sample:
    """A sample of a launch while it runs."""

    def __init__(self, kernel: Any, step: Launch, memories: Sequence[Any], numbers: Sequence[Any], state: State, meets: bool) -> None:
        self.kernel, self.step, self.state, self.meets = kernel, step, state, meets
        self.args: list[Any] = []
        self.buffers: set[int] = set()
        for arg in step.args:
            if isinstance(arg, Scalar):
                self.args.append(arg.dtype.type(numbers[arg.index]) if arg.dtype.kind == "f" else int(numbers[arg.index]))
            elif isinstance(arg, (Fault, Iteration, Offset)):
                self.args.append(arg.value if isinstance(arg, Offset) else 0)
            else:
                self.args.append(Pointer(memories[arg], 0))
                self.buffers.add(id(memories[arg]))
        # (line, memory, writes) -> (warp, turn) -> the bytes of each lane
        self.touched: dict[Any, dict[Any, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        self.turns: dict[Any, int] = defaultdict(int)
        self.bytes: dict[int, int] = {}
        self.count: dict[int, int] = defaultdict(int)
        self.item = self.total = self.barriers = 0

    def run(self) -> None:
        sizes = tuple((*self.step.global_size, 1, 1)[:3])
        local = tuple((*(self.step.local_size or (min(WARP, sizes[0]),)), 1, 1)[:3])
        state = self.state
        state.local_size, state.global_size = local, sizes
        memory.group_arrays.clear()
        places = [(p[2], p[1], p[0]) for p in product(*map(range, reversed(local)))]
        if self.step.local_size is None or not self.meets:       # the first warp; of groups of one item, of so many groups
            places = [(p[2], p[1], p[0]) for p in product(*map(range, reversed(sizes if math.prod(local) == 1 else local)))][:WARP] \
                if math.prod(local) < WARP or not self.meets else places
        runs = [(n, p, self.kernel.run(state, *self.args)) for n, p in enumerate(places)]
        with self.watched(), np.errstate(all="ignore"):
            try:
                while runs:
                    left = []
                    for n, place, items in runs:
                        self.item = n
                        group = (0, 0, 0) if math.prod(local) > 1 else place
                        state.item, state.group_id, state.global_id = n + 1, group, place
                        state.local_id = place if math.prod(local) > 1 else (0, 0, 0)
                        try:
                            next(items)
                            left.append((n, place, items))
                        except StopIteration:
                            pass
                    runs = left
                    self.barriers += 1
            except _Enough:
                pass

    def note(self, m: Memory, at: int, lanes: int, writes: bool) -> None:
        shared = id(m) not in self.buffers
        if shared and m.name not in memory.group_arrays:
            return                                                      # an array of the item's own
        size = m.array.dtype.itemsize
        self.bytes[id(m)] = m.array.nbytes
        key = (sys._getframe(2).f_lineno, id(m), writes, shared)
        turn = self.barriers, self.turns[self.item, key, self.barriers]          # items that skipped a branch meet again at a barrier
        self.turns[self.item, key, self.barriers] += 1
        self.touched[key][self.item // WARP, turn].append((at * size, lanes * size))
        self.count[self.item] += not shared
        self.total += 1
        if self.total > LOOKED_AT:
            raise _Enough

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Pointers that write down what they touch, and check nothing."""
        kept = {name: getattr(Pointer, name) for name in ("load", "store", "atomic", "vector", "put_vector", "picked")}
        sample = self

        def load(self: Any, index: int) -> Any:
            sample.note(self.memory, self.at + index, 1, False)
            return self.memory.array[(self.at + index) % self.memory.array.size]         # places may be made up

        def store(self: Any, index: int, value: Any) -> None:
            sample.note(self.memory, self.at + index, 1, True)
            self.memory.array[(self.at + index) % self.memory.array.size] = value

        def atomic(self: Any, sign: str, value: Any) -> None:
            sample.note(self.memory, self.at, 1, True)

        def vector(self: Any, lanes: int) -> Any:
            sample.note(self.memory, self.at, lanes, False)
            return self.memory.array[self.at : self.at + lanes].copy()

        def put_vector(self: Any, value: Any) -> None:
            sample.note(self.memory, self.at, len(value), True)
            self.memory.array[self.at : self.at + len(value)] = value

        for name, fn in (("load", load), ("store", store), ("atomic", atomic), ("vector", vector), ("put_vector", put_vector)):
            setattr(Pointer, name, fn)
        try:
            yield
        finally:
            for name, fn in kept.items():
                setattr(Pointer, name, fn)

    def finding(self, text: str) -> Finding:
        by_buffer: dict[Any, list[Any]] = defaultdict(lambda: [0, 0, "", 0.0])
        for (line, m, _, shared), warps in self.touched.items():
            used = least = 0
            for lanes in warps.values():
                if len(lanes) < WARP // 2:                             # what a part of a warp does at an end
                    continue
                used += _cycles(lanes) if shared else _sectors(lanes)
                least += _fewest(lanes, shared)
            if not shared and self.bytes[m] <= LIMITS.cached:
                continue
            entry = by_buffer[shared, m]
            entry[0], entry[1] = entry[0] + used, entry[1] + least
            if least and used / least > entry[3]:
                entry[2], entry[3] = self.kernel.line(line), used / least
        ratios = [(e[0] / e[1], shared, e[2]) for (shared, _), e in by_buffer.items() if e[1]]
        sectors = max(((r, text) for r, shared, text in ratios if not shared), default=(1.0, ""))
        conflicts = max((r for r, shared, _ in ratios if shared), default=1.0)
        step = self.step
        return Finding(step.entry, math.prod(step.global_size), step.local_size, step.flops + step.bytes,
                       max(self.count.values(), default=0), sectors[0], sectors[1], conflicts, registers(text),
                       local_bytes(text), spilled(text))


def _sectors(lanes: Sequence[tuple[int, int]]) -> int:
    return len({s for at, size in lanes for s in range(at // SECTOR, (at + size - 1) // SECTOR + 1)})


def _cycles(lanes: Sequence[tuple[int, int]]) -> int:
    """How often local memory must be asked: different words of one bank come one after the other."""
    words = {w for at, size in lanes for w in range(at // 4, (at + size - 1) // 4 + 1)}
    banks: dict[int, int] = defaultdict(int)
    for w in words:
        banks[w % BANKS] += 1
    return max(banks.values())


def _fewest(lanes: Sequence[tuple[int, int]], shared: bool) -> int:
    unit = 4 * BANKS if shared else SECTOR
    covered = {b for at, size in lanes for b in range(at // 4, (at + size - 1) // 4 + 1)} if shared else \
        {b for at, size in lanes for b in range(at, at + size)}
    return -(-len(covered) * (4 if shared else 1) // unit)


# ---------------------------------------------------------------------------------------------------------------- registers

_WORDS = {"char": 1, "short": 1, "int": 1, "float": 1, "half": 1, "long": 2, "double": 2}
_DECLARED = re.compile(r"^\s*(?:for \()?(__local |__global )?(?:const )?u?(char|short|int|long|float|double|half)(\d*) (\*?\w.*)")


_HEAD = re.compile(r"^(?:__attribute__\(\(reqd_work_group_size\([\d, ]+\)\)\)\s*)?__kernel void (\w+)\(", re.MULTILINE)


def _texts(source: str) -> dict[str, str]:
    heads = list(_HEAD.finditer(source))
    ends = [*(h.start() for h in heads[1:]), len(source)]
    return {h[1]: source[h.end() : end] for h, end in zip(heads, ends, strict=False)}            # there may be none


_TOKEN = re.compile(r"\.?[A-Za-z_]\w*|\d[\w.]*|\S")    # no variable: what follows a point (`v.even`), letters of a number (`1e9`)


def misnamed(plan: Plan) -> str:
    """A word of a kernel that the text drivers get, which has other names for variables, calls here so and there otherwise, or as another
    one; "" if none."""
    texts = _texts(re.sub(r"//.*", "", plan.source)) if plan.functions else {}
    for function in plan.functions:
        whole = texts[function.entry].partition(") {\n")[2]
        theirs = _TOKEN.findall(function.body)
        ours = _TOKEN.findall(whole)[:len(theirs)]
        called: dict[str, str] = {}
        for a, b in zip(ours, theirs, strict=True):
            if called.setdefault(a, b) != b:
                return f"{function.entry}: {a} is {called[a]} and {b}"
        if twice := [b for b, n in Counter(called.values()).items() if n > 1]:
            return f"{function.entry}: {twice[0]} is {[a for a, b in called.items() if b == twice[0]]}"
    return ""


def registers(text: str) -> int:
    """Words that the variables in scope at the same time take, at most."""
    most = now = 0
    scopes: list[int] = []
    for line in text.partition(") {\n")[2].split("\n"):                 # parameters are not in registers
        line = line.partition("//")[0].rstrip()
        if line.lstrip().startswith("}"):
            now = scopes.pop() if scopes else 0
        if line.endswith("{"):
            scopes.append(now)
        found = _DECLARED.match(line)
        if found and found[1] != "__local ":
            each = 2 if found[1] or found[4].startswith("*") else _WORDS[found[2]] * int(found[3] or 1)
            for name in re.split(r",(?![^({]*[)}])", found[4].partition("=")[0]):
                now += each * math.prod(int(n) for n in re.findall(r"\[(\d+)\]", name))
        most = max(most, now)
    return most


_LOCAL = re.compile(r"__local u?(char|short|int|long|float|double)(\d*) \w+((?:\[\d+\])+)")
_BYTES = {"char": 1, "short": 2, "int": 4, "long": 8, "float": 4, "double": 8}


def local_bytes(text: str) -> int:
    """Bytes of a kernel's arrays in local memory."""
    found = ((_BYTES[t] * int(lanes or 1), map(int, re.findall(r"\d+", sizes))) for t, lanes, sizes in _LOCAL.findall(text))
    return sum(size * math.prod(dims) for size, dims in found)


def most_local_bytes(plan: Plan) -> int:
    """Of the kernel of a plan that has most."""
    return max(map(local_bytes, _texts(plan.source).values()), default=0)


_OWN = re.compile(r"^\s*(?:const )?u?(?:char|short|int|long|float|double)\d* (\w+\[.*);", re.MULTILINE)
_FOR = re.compile(r"\s*for \(\w+ (\w+) = ")


def spilled(text: str) -> str:
    """An element of an array of the item's own that is found by the variable of a loop that nobody asked to unroll; "" if there is none."""
    own = [name for line in _OWN.findall(text) for name in re.findall(r"(\w+)\[", line.partition("=")[0])]
    loops: list[tuple[str, int]] = []
    lines = text.split("\n") if own else []
    for above, line in zip(["", *lines], lines, strict=False):
        depth = len(line) - len(line.lstrip())
        while loops and depth <= loops[-1][1] and line.strip() != "}":
            loops.pop()
        if (head := _FOR.match(line)) and "#pragma unroll" not in above:
            loops.append((head[1], depth))
        for name in own:
            for use in re.findall(rf"\b{name}(?:\[[^\]]+\])+", line):
                if any(re.search(rf"\b{var}\b", use) for var, _ in loops):
                    return str(use)
    return ""
