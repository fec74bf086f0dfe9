"""Arrays between ranks: the operations on NumPy arrays, made of MPI's moves of bytes. Start at `Exchange`.

Sums are made here, in the order of the ranks, so that they have the same bits on all ranks, at every run, and however values are packed.
Every operation first compares what it is on all ranks: two that differ are an error in place of a hang.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tracegrad.distributed.world import ProcessGroup, world
from tracegrad.errors import ArgumentError, DistributedError, DTypeError

Array = np.ndarray[Any, Any]
_SMALL = 8192           # bytes: below, every rank gets all values in one round


class ReduceOp:
    """How values of several ranks are put together. AVG is for floats."""

    SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR, AVG = "sum", "product", "min", "max", "band", "bor", "bxor", "avg"


_UFUNCS = {"sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
           "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def checked_op(who: str, op: str, dtype: Any) -> str:
    """The op. Raises ArgumentError, or DTypeError where numbers of this dtype have no such op."""
    if op not in _UFUNCS:
        raise ArgumentError(f"{who}: op is one of ReduceOp.SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR, got {op!r}")
    kind = np.dtype(dtype).kind
    bits = op in ("band", "bor", "bxor")
    if (kind == "b" and not bits and op not in ("min", "max")) or (bits and kind not in "biu") or (op == "avg" and kind in "iu") or (
            kind == "c" and op in ("min", "max")):
        raise DTypeError(f"{who}: {dtype} has no {op!r}; convert the tensor with .to(dtype)")
    return op


def reduced(parts: Sequence[Array], op: str) -> Array:
    """The parts put together, first to last; halves are added in float32 and rounded once."""
    dtype = parts[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "biu" else dtype
    total = np.array(parts[0], wide)                # (the parts of arrays without dimensions are numbers)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            _UFUNCS[op](total, part.astype(wide, copy=False), out=total)
        if op == "avg":
            total /= len(parts)
    return total.astype(dtype, copy=False)


class Exchange:
    """One operation of a group. It is made by the caller, and run on the thread of the messages."""

    def __init__(self, who: str, group: ProcessGroup, line: str, shown: str) -> None:
        self.who, self.group, self.line, self.shown = who, group, line, shown
        self.world = world(who)
        self.comm, self.size, self.rank = group.comm, group.size(), group.rank()
        self.byte = self.world.mpi.BYTE if self.world.mpi is not None else None

    def _wait(self, name: str, *args: Any) -> None:
        with self.world.lock:
            request = getattr(self.comm, name)(*args)
        self.world.wait(request, self.who, self.line)

    def _gathered(self, data: bytes) -> list[bytes]:
        """One text of each rank, all of the same length."""
        if self.size == 1:
            return [data]
        everything = bytearray(len(data) * self.size)
        self._wait("Iallgather", [data, self.byte], [everything, self.byte])
        return [bytes(everything[i * len(data):(i + 1) * len(data)]) for i in range(self.size)]

    def agree(self) -> None:
        """Raises DistributedError, on all ranks, if they do not all do the same."""
        self.group.count += 1
        what = f"{self.who}({self.shown})"
        digests = self._gathered(hashlib.blake2b(what.encode(), digest_size=8).digest())
        if len({*digests}) > 1:
            texts = [t.rstrip(b" ").decode(errors="replace") for t in self._gathered(f"{what} at {self.line}".encode()[:400].ljust(400))]
            other = next(i for i, d in enumerate(digests) if d != digests[0])
            raise DistributedError(f"{self.who}: the ranks do not do the same: operation {self.group.count} of {self.group.name} is "
                                   f"{texts[0]} on rank {self.group.ranks[0]}, and {texts[other]} on rank "
                                   f"{self.group.ranks[other]}; every rank has to call the same operations in the same order", self.line)

    def gather(self, array: Array) -> Array:
        """(size, *shape): every rank's array."""
        out = np.empty((self.size, *array.shape), array.dtype)
        if self.size == 1:
            out[0] = array
        else:
            self._wait("Iallgather", [_bytes(array), self.byte], [_bytes(out), self.byte])
        return out

    def exchange(self, flat: Array, sent: Sequence[int], received: Sequence[int]) -> Array:
        """A vector's pieces of `sent` elements to the ranks, and what they sent to this one, of `received` elements."""
        if self.size == 1:
            return flat.copy()
        out = np.empty(sum(received), flat.dtype)
        item = flat.dtype.itemsize
        given, got = [n * item for n in sent], [n * item for n in received]
        self._wait("Ialltoallv", [_bytes(flat), given, self.byte], [_bytes(out), got, self.byte])
        return out

    def reduce_scatter(self, flat: Array, counts: Sequence[int], op: str) -> Array:
        """This rank's piece of the vectors of all ranks put together."""
        mine = counts[self.rank]
        return reduced(list(self.exchange(flat, counts, [mine] * self.size).reshape(self.size, mine)), op)

    def all_reduce(self, array: Array, op: str) -> Array:
        """The arrays of all ranks put together."""
        if array.nbytes <= _SMALL or self.size == 1:
            return reduced(list(self.gather(array)), op)
        flat = array.reshape(-1)
        bounds = [flat.size * i // self.size for i in range(self.size + 1)]
        counts = [b - a for a, b in pairwise(bounds)]
        mine, out, item = self.reduce_scatter(flat, counts, op), np.empty_like(flat), flat.dtype.itemsize
        self._wait("Iallgatherv", [_bytes(mine), self.byte], [_bytes(out), [n * item for n in counts], self.byte])
        return out.reshape(array.shape)

    def broadcast(self, array: Array, src: int) -> Array:
        """Rank src's array."""
        out = array.copy()
        if self.size > 1:
            self._wait("Ibcast", [_bytes(out), self.byte], src)
        return out

    def objects(self, value: Any) -> list[Any]:
        """Every rank's object, pickled."""
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        lengths = [int(n) for n in self.gather(np.array([data.size], np.int64))[:, 0]]
        out = self.exchange(np.tile(data, self.size), [data.size] * self.size, lengths)
        ends = np.cumsum(lengths)
        return [pickle.loads(out[end - n:end].tobytes()) for n, end in zip(lengths, ends, strict=True)]


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
