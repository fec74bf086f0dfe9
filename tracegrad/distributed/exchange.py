"""Arrays between ranks: the operations on NumPy arrays, made of MPI's moves of bytes. Start at `Exchange`.

Sums are made here, in an order that the number of ranks alone decides (`levels`), so that they have the same bits on all ranks, at every
run, and however values are packed.
Every operation first compares what it is on all ranks: two that differ are an error in place of a hang.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tracegrad.distributed.world import ProcessGroup, world
from tracegrad.errors import ArgumentError, DistributedError, DTypeError
from tracegrad.support.cache import memoize

Array = np.ndarray[Any, Any]
_SMALL = 1 << 15        # bytes of all ranks: up to here every rank gets all values in one round
_LEVELS = 0             # the tag of messages of a reduction; those of `post` have others


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


def factors(n: int) -> list[int]:
    """The prime factors of a number of ranks, rising."""
    found, f = [], 2
    while n > 1:
        while n % f:
            f = f + 1 if f * f < n else n
        found.append(f)
        n //= f
    return found


class Level(NamedTuple):
    """A round of a reduction: `peers` are the ranks that swap pieces, this one is peers[own], and peers[k] goes on with the pieces from

    cuts[k] to cuts[k + 1], of as many as there are ranks.
    """

    peers: list[int]
    own: int
    cuts: list[int]


def levels(rank: int, size: int) -> list[Level]:
    """The rounds of a reduction, one for each prime factor f of `size`: groups of f neighbours, then f neighbouring groups, ...

    In a round each rank keeps one f-th of what it has, so all that it sends in all of them is less than the vector; and it has f - 1
    messages. With a power of two of ranks this is recursive halving, and back, doubling: Thakur, Rabenseifner and Gropp, Optimization of
    collective communication operations in MPICH (2005); with a prime number of them each sends to each.
    """
    found, low, width, stride = [], 0, size, 1
    for f in factors(size):
        own, width = rank // stride % f, width // f
        found.append(Level([rank + (k - own) * stride for k in range(f)], own, [low + k * width for k in range(f + 1)]))
        low, stride = low + own * width, stride * f
    return found


@memoize(16)
def owners(size: int) -> list[int]:
    """To which rank `levels` leave the first piece, the second, ..."""
    ends = [levels(r, size)[-1] for r in range(size)]
    return sorted(range(size), key=lambda r: ends[r].cuts[ends[r].own])


def _put_together(parts: Sequence[Array], op: str) -> Array:
    """The parts, first to last; halves as float32. Of one part, itself."""
    dtype = parts[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "biu" else dtype
    total = parts[0].astype(wide, copy=False)
    with np.errstate(all="ignore"):
        for k, part in enumerate(parts[1:]):
            total = _UFUNCS[op](total, part.astype(wide, copy=False), out=total if k else None)
    return total


def _ended(total: Array, count: int, op: str, dtype: Any) -> Array:
    """Of a sum of `count` ranks, what the op makes of it, rounded once to the dtype."""
    with np.errstate(all="ignore"):
        return (total / count if op == "avg" else total).astype(dtype, copy=False)


def reduced(parts: Sequence[Array], op: str) -> Array:
    """All ranks' vectors put together in the order of `levels`: neighbours first. Halves are added in float32 and rounded once."""
    found = list(parts)
    for f in factors(len(parts)):
        found = [_put_together(found[i:i + f], op) for i in range(0, len(found), f)]
    return _ended(found[0], len(parts), op, parts[0].dtype)


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
        self.world.wait([request], self.who, self.line)

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

    def _swap(self, level: Level, given: Sequence[Array], got: Sequence[Array]) -> None:
        """Send given[k] to the level's peer k, and receive got[k] of it."""
        requests = []
        with self.world.lock:
            for k, peer in enumerate(level.peers):
                if k != level.own:
                    requests.append(self.comm.Irecv([_bytes(got[k]), self.byte], peer, _LEVELS))
            for k, peer in enumerate(level.peers):
                if k != level.own:
                    requests.append(self.comm.Isend([_bytes(given[k]), self.byte], peer, _LEVELS))
        self.world.wait(requests, self.who, self.line)

    def _scatter(self, flat: Array, bounds: Sequence[int], op: str) -> Array:
        """The piece that `levels` leave to this rank, of all ranks' vectors put together. bounds: where the pieces begin, and the end."""
        total, start = flat, 0
        for level in levels(self.rank, self.size):
            ends = [bounds[c] for c in level.cuts]
            given = [total[a - start:b - start] for a, b in pairwise(ends)]
            parts = [given[k] if k == level.own else np.empty(given[level.own].size, flat.dtype if total is flat else total.dtype)
                     for k in range(len(given))]
            self._swap(level, given, parts)
            total, start = _put_together(parts, op), ends[level.own]
        return total

    def reduce_scatter(self, flat: Array, counts: Sequence[int], op: str) -> Array:
        """This rank's piece of the vectors of all ranks put together."""
        if self.size == 1:
            return _ended(flat.copy(), 1, op, flat.dtype)
        starts = np.cumsum([0, *counts])
        order = owners(self.size)
        if order != sorted(order):
            flat = np.concatenate([flat[starts[r]:starts[r + 1]] for r in order])
        return _ended(self._scatter(flat, np.cumsum([0, *(counts[r] for r in order)]).tolist(), op), self.size, op, flat.dtype)

    def all_reduce(self, array: Array, op: str) -> Array:
        """The arrays of all ranks put together."""
        flat = array.reshape(-1)
        if flat.nbytes * self.size <= _SMALL or self.size == 1:
            return reduced(list(self.gather(flat)), op).reshape(array.shape)
        bounds = [flat.size * i // self.size for i in range(self.size + 1)]
        mine, out = _ended(self._scatter(flat, bounds, op), self.size, op, flat.dtype), np.empty_like(flat)
        rounds = levels(self.rank, self.size)
        own = rounds[-1].cuts[rounds[-1].own]
        out[bounds[own]:bounds[own + 1]] = mine
        for level in reversed(rounds):
            pieces = [out[bounds[a]:bounds[b]] for a, b in pairwise(level.cuts)]
            self._swap(level, [pieces[level.own]] * len(pieces), pieces)
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
