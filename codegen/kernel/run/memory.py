"""What kernels see of memory while they are run. Start at `Memory`: it knows who wrote what."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir.expressions.terms import whole

Array = np.ndarray[Any, Any]
_MANY = -1
_TOGETHER = -2                       # who changes it does so atomically


class KernelFault(Exception):
    """What a kernel does that it must not."""


class State:
    """Who runs: the number of the work-item (from 1 on), of which races are told."""

    __slots__ = ("copies", "global_id", "global_size", "group_id", "item", "local_id", "local_size", "results", "together")

    def __init__(self) -> None:
        self.item = 0
        self.local_id: tuple[int, ...] = (0, 0, 0)
        self.group_id: tuple[int, ...] = (0, 0, 0)
        self.global_id: tuple[int, ...] = (0, 0, 0)
        self.local_size: tuple[int, ...] = (1, 1, 1)
        self.global_size: tuple[int, ...] = (1, 1, 1)
        self.new_group()

    def new_group(self) -> None:
        """The work-items of another group: nobody waits for anybody."""
        self.copies: dict[int, list[list[tuple[Pointer, Array]]]] = {}       # of each work-item, in groups, that are not there yet
        self.together: dict[int, Any] = {}                   # what is given to an instruction that several do together, by their number
        self.results: dict[int, Any] = {}                    # and what it has made, of which each takes its own


class Memory:
    """A buffer, or an array of a work-item or a group: its elements, which of them are written, and by whom in this launch.

    What is asked of a few elements at a time is in Python's bytes and lists: numpy's arrays took four times as long.
    """

    __slots__ = ("array", "known", "name", "readers", "state", "writers")

    def __init__(self, name: str, array: Array, state: State, known: bool) -> None:
        self.name, self.array, self.state = name, array, state
        self.known = bytearray(b"\1" * len(array) if known else len(array))
        self.writers = [0] * len(array)
        self.readers = [0] * len(array)

    def fresh(self) -> None:
        """A new launch, or a barrier: what was done before is done."""
        self.writers = [0] * len(self.array)
        self.readers = [0] * len(self.array)


class Pointer:
    """An element of a memory, and the view of its elements as `dtype`."""

    __slots__ = ("at", "memory")

    def __init__(self, memory: Memory, at: int) -> None:
        self.memory, self.at = memory, at

    def moved(self, by: Any) -> Pointer:
        return Pointer(self.memory, self.at + int(by))

    def load(self, index: int) -> Any:
        m, i = self.memory, self.at + index
        if not 0 <= i < len(m.array):
            raise KernelFault(f"reads {m.name}[{i}] of {len(m.array)}")
        if not m.known[i]:
            raise KernelFault(f"reads {m.name}[{i}], which nothing has written")
        item = m.state.item
        if m.writers[i] != item:
            if m.writers[i]:
                who = f"work-item {m.writers[i] - 1} writes" if m.writers[i] > 0 else "several work-items change"
                raise KernelFault(f"reads {m.name}[{i}], which {who} in the same launch")
            reader = m.readers[i]
            if reader != item:
                m.readers[i] = _MANY if reader else item
        return m.array[i]

    def store(self, index: int, value: Any) -> None:
        m, i = self.memory, self.at + index
        if not 0 <= i < len(m.array):
            raise KernelFault(f"writes {m.name}[{i}] of {len(m.array)}")
        item = m.state.item
        if m.writers[i] not in (0, item) or m.readers[i] not in (0, item):
            other = m.writers[i] if m.writers[i] not in (0, item) else m.readers[i]
            who = f"work-item {other - 1}" if other > 0 else "others"
            raise KernelFault(f"writes {m.name}[{i}], which {who} access in the same launch")
        m.writers[i], m.known[i] = item, 1
        m.array[i] = value

    def atomic(self, sign: str, value: Any) -> None:
        """What work-items do together in any order: add, or take the least or the largest."""
        m, i = self.memory, self.at
        if not 0 <= i < len(m.array):
            raise KernelFault(f"changes {m.name}[{i}] of {len(m.array)}")
        if not m.known[i]:
            raise KernelFault(f"changes {m.name}[{i}], which nothing has written")
        who = m.state.item if m.state.global_size == (1, 1, 1) else _TOGETHER
        if m.writers[i] not in (0, who) or m.readers[i] not in (0, who):
            raise KernelFault(f"changes {m.name}[{i}] atomically, which others access otherwise in the same launch")
        m.writers[i] = who
        here, value = int(m.array[i]), int(value)
        m.array[i] = whole(here + value, m.array.dtype) if sign == "add" else min(here, value) if sign == "min" else max(here, value)

    def aligned(self, lanes: int) -> Pointer:
        """It, where a vector of so many begins at a multiple of its size. (Buffers and arrays do.)"""
        if self.at % lanes:
            raise KernelFault(f"a vector of {lanes} at {self.memory.name}[{self.at}] is not aligned")
        return self

    def vector(self, lanes: int) -> Array:
        """The next `lanes` elements."""
        m, i = self.memory, self.at
        if not 0 <= i <= len(m.array) - lanes:
            raise KernelFault(f"reads {m.name}[{i}:{i + lanes}] of {len(m.array)}")
        part, nobody = slice(i, i + lanes), [0] * lanes
        item, writers, readers = m.state.item, m.writers[part], m.readers[part]
        written = writers != nobody
        if 0 in m.known[part] or (written and any(w and w != item for w in writers)):
            for k in range(lanes):
                self.load(k)
        if not written and readers == nobody:
            m.readers[part] = [item] * lanes
        else:
            m.readers[part] = [r if w == item else _MANY if r and r != item else item for w, r in zip(writers, readers, strict=True)]
        return m.array[part].copy()

    def put_vector(self, value: Array) -> None:
        m, i, lanes = self.memory, self.at, len(value)
        if not 0 <= i <= len(m.array) - lanes:
            raise KernelFault(f"writes {m.name}[{i}:{i + lanes}] of {len(m.array)}")
        part, item = slice(i, i + lanes), m.state.item
        before = {*m.writers[part], *m.readers[part]}
        if not before <= {0, item}:
            for k in range(lanes):
                self.store(k, value[k])
        m.writers[part], m.known[part] = [item] * lanes, b"\1" * lanes
        m.array[part] = value

    def put_apart(self, stride: int, value: Array) -> None:
        """Write the lanes of a vector `stride` elements apart."""
        for k, x in enumerate(value):
            self.store(k * stride, x)

    def picked(self, at: Array, mask: Array | None = None) -> Array:
        """The elements at `at` (where `mask` holds, else 0)."""
        return np.array([self.load(int(k)) if mask is None or mask[lane] else 0 for lane, k in enumerate(at)], self.memory.array.dtype)


def _array(state: State, name: str, size: int, dtype: np.dtype[Any], zeros: bool) -> Pointer:
    return Pointer(Memory(name, np.zeros(size, dtype), state, zeros), 0)


group_arrays: dict[str, Memory] = {}                                       # of the group that runs


def _group_array(state: State, name: str, size: int, dtype: np.dtype[Any], zeros: bool) -> Pointer:
    if name not in group_arrays:
        group_arrays[name] = Memory(name, np.zeros(size, dtype), state, zeros)
    return Pointer(group_arrays[name], 0)


def _report(outside: Any, x: Any, low: int, high: int, ignore: int, place: Pointer) -> None:
    m = place.memory
    if not 0 <= place.at < len(m.array) - 1:
        raise KernelFault(f"reports to {m.name}[{place.at}] of {len(m.array)}")
    values = np.atleast_1d(np.asarray(x))
    if outside is not None and ((values < low) | (values > high)).tolist() != (np.asarray(outside) != 0).tolist():
        raise KernelFault("a report's mask is not that of its values")
    for value in values.tolist():
        if value != ignore and not low <= value <= high:
            below = value < low
            excess = min(low - value if below else value - high, 0x7FFFFFFF)
            m.array[place.at + below] = max(m.array[place.at + below], excess)


def _note(info: Any, first: int, step: int, place: Pointer) -> None:
    m = place.memory
    if not 0 <= place.at < len(m.array) - 1:
        raise KernelFault(f"notes in {m.name}[{place.at}] of {len(m.array)}")
    for lane, pivot in enumerate(np.atleast_1d(np.asarray(info)).tolist()):
        if pivot:
            m.array[place.at] = max(m.array[place.at], first - lane * step + pivot)
