"""Collectives as rounds of messages: who sends how many bytes to whom. Start at `ALL_REDUCE` and `seconds`.

The messages of a round start together, and the next round starts when all have arrived: with equal messages on equal links that is
what happens, elsewhere it is later than in truth. The algorithms and their costs without contention: Thakur, Rabenseifner and Gropp,
Optimization of collective communication operations in MPICH (Int. J. High Performance Computing Applications 19, 2005).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from benchmarks.scale.network import Network, cube
from tracegrad.distributed.exchange import factors

Array = np.ndarray[Any, Any]
_SAMPLES = 16         # of the shifts within a group: contention is found for so many of them


class Round(NamedTuple):
    """Messages src[i] -> dst[i] of `nbytes` each, `times` times one after the other; `added`: bytes that a rank adds up after each."""

    src: Array
    dst: Array
    nbytes: float
    times: float = 1
    added: float = 0.0


def ring(network: Network, nbytes: float) -> Iterator[Round]:
    """All-reduce: a piece of n / ranks goes round, and is added to; then the sums go round."""
    order, others = network.order(), network.ranks - 1
    piece = nbytes / network.ranks
    yield Round(order, np.roll(order, -1), piece, others, piece)
    yield Round(order, np.roll(order, -1), piece, others)


def levels(network: Network, nbytes: float) -> Iterator[Round]:
    """What tracegrad.distributed does: for each prime factor f of the ranks, f neighbours (then groups of them) swap pieces and add them;

    then back, with the sums. For powers of two it is recursive halving and doubling (Rabenseifner). The f - 1 messages of a rank at a level
    are followed one after the other, which is later than in truth.
    """
    me, stride = np.arange(network.ranks), 1
    rounds: list[Round] = []
    for f in factors(network.ranks):
        own, piece = me // stride % f, nbytes / (stride * f)
        shifts = np.unique(np.linspace(1, f - 1, min(_SAMPLES, f - 1)).round().astype(int)).tolist()
        rounds += [Round(me, me + ((own + shift) % f - own) * stride, piece, (f - 1) / len(shifts), piece) for shift in shifts]
        stride *= f
    yield from rounds
    yield from (r._replace(added=0.0) for r in reversed(rounds))


def grid(network: Network, nbytes: float) -> Iterator[Round]:
    """All-reduce by rings along the dimensions of a grid, each on what the last one left to this rank, and back.

    On a torus no link is shared. Chan, Heimlich, Purkayastha and van de Geijn, Collective communication (2007), on meshes.
    """
    dims = cube(network.ranks)
    pieces = [nbytes / prod(dims[: axis + 1]) for axis in range(len(dims))]
    for axis, size in enumerate(dims):
        yield Round(np.arange(network.ranks), moved(dims, axis, 1), pieces[axis], size - 1, pieces[axis])
    for axis in reversed(range(len(dims))):
        yield Round(np.arange(network.ranks), moved(dims, axis, 1), pieces[axis], dims[axis] - 1)


def broadcast(network: Network, nbytes: float) -> Iterator[Round]:
    """Broadcast from rank 0 by a binomial tree: ceil(log2(ranks)) rounds."""
    have, ranks = 1, network.ranks
    while have < ranks:
        src = np.arange(min(have, ranks - have))
        yield Round(src, src + have, nbytes)
        have *= 2


def tree(network: Network, nbytes: float) -> Iterator[Round]:
    """All-reduce: sums to rank 0 by a binomial tree, and a broadcast."""
    down = list(broadcast(network, nbytes))
    yield from (Round(r.dst, r.src, nbytes, 1, nbytes) for r in reversed(down))
    yield from down


def halo(dims: tuple[int, ...], side: int, item: float = 1.0) -> Iterator[Round]:
    """Messages between neighbours on a periodic grid of ranks: both neighbours along a dimension, and then along the next one.

    `tg.distributed.halo` sends to all 3^d - 1 neighbours at once. Here the bytes of edges and corners go along with the faces, which
    are as many, and no dimension begins before the one before it has ended, so this is later than in truth.
    side: points along each dimension of a rank's block, of `item` bytes. A dimension with one rank has no neighbours.
    """
    me, face = np.arange(prod(dims)), item * float(side) ** (len(dims) - 1)
    for axis, n in enumerate(dims):
        if n > 1:
            yield Round(np.concatenate([me, me]), np.concatenate([moved(dims, axis, 1), moved(dims, axis, -1)]), face)
            face *= (side + 2) / side


def halo_bytes(dims: tuple[int, ...], side: int, item: float = 1.0) -> float:
    """What a rank sends in all of that."""
    return item * (prod(float(side + 2 * (n > 1)) for n in dims) - float(side) ** len(dims))


def moved(dims: tuple[int, ...], axis: int, by: int) -> Array:
    """Each rank's neighbour on a periodic grid, row-major."""
    at = list(np.unravel_index(np.arange(prod(dims)), dims))
    at[axis] = (at[axis] + by) % dims[axis]
    return np.ravel_multi_index(at, dims)


ALL_REDUCE: dict[str, Callable[[Network, float], Iterator[Round]]] = {
    "ring": ring, "levels": levels, "grid": grid, "tree": tree}


def seconds(network: Network, rounds: Iterator[Round], adds: float = np.inf) -> float:
    """How long a collective takes that has the network for itself. adds: bytes that a rank adds up in a second."""
    total = 0.0
    for r in rounds:
        if r.times and len(r.src):
            total += r.times * (float(network.seconds(r.src, r.dst, r.nbytes).max()) + r.added / adds)
    return total
