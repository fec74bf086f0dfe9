"""Networks with contention: a fat tree and a torus, and how long messages that start together take. Start at `Network.seconds`.

A message of n bytes takes `latency`, `hop` for each switch that it passes, and n over its rate. Links are full duplex. Messages share each
link by max-min fairness: the rates are raised together, and stay where a link of theirs is full; when a message ends, its share is given to
the others. (Bertsekas and Gallager, Data Networks, 2nd edition, 6.5.2. For one message alone it is Hockney's alpha + n / bandwidth.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Link:
    """The numbers of a network. latency, hop: seconds of a message, and more of them for each switch; bandwidth: bytes a second of a link.

    A link of 100 Gbit/s by default. latency: runs of OSU's benchmark that people published show 0.9 us (Open MPI over InfiniBand,
    https://gist.github.com/jfgrimm/3af692a5475bdd4ed836b5a18197a209) and 1.2 us (a Cray XC of Los Alamos,
    https://gist.github.com/hppritcha/6a3acd0c192fcfd082bd543fc98e6fe6); 1.5 us leaves room for a thread of its own. bandwidth: the first
    run has 11.6 GB/s with 64 KiB, one over Omni-Path 11.7, and 12.4 with 4 MiB (https://gist.github.com/hppritcha/
    8da4436a216c9d96bf10ad9d403da03f), of the line's 12.5. hop: an assumption, of the size that makers of switches name: no measurement
    was found. Ten times as much changes no efficiency of the three programs by more than 0.2 points, at up to 4,096 ranks.
    """

    latency: float = 1.5e-6
    hop: float = 90e-9
    bandwidth: float = 11.6e9


class Network:
    """`ranks` hosts. A kind of network says in `routes` which links a message takes."""

    def __init__(self, ranks: int, link: Link = Link()) -> None:
        if ranks < 1:
            raise ValueError(f"ranks is 1 or more, got {ranks}")
        self.ranks, self.link, self.links = ranks, link, 0

    def routes(self, src: Array, dst: Array) -> Array:
        """(messages, longest path): the numbers of the links that each takes, -1 where it takes no more."""
        raise NotImplementedError

    def order(self) -> Array:
        """The ranks in the order in which a ring had better go through them: neighbours there are near to each other."""
        return np.arange(self.ranks)

    def seconds(self, src: Array, dst: Array, nbytes: Array | float) -> Array:
        """When each message src[i] -> dst[i] has arrived, if all start at 0. A message to oneself takes no time."""
        src, dst = np.atleast_1d(src), np.atleast_1d(dst)
        left = np.broadcast_to(np.asarray(nbytes, float), src.shape).copy()
        paths = self.routes(src, dst)
        hops = np.maximum((paths >= 0).sum(1) - 1, 0)                 # n links join n - 1 switches
        start = np.where(src == dst, 0.0, self.link.latency + hops * self.link.hop)
        done, now = np.zeros(len(src)), 0.0
        active = (left > 0) & (src != dst)
        while active.any():
            rates = self._rates(paths, active)
            wait = float((left[active] / rates[active]).min())
            left[active] -= wait * rates[active]
            now += wait
            ended = active & (left <= 1e-9 * (1 + rates * wait))
            done[ended] = now
            active &= ~ended
        return done + start

    def _rates(self, paths: Array, active: Array) -> Array:
        """Bytes a second of each active message."""
        rates, open_ = np.zeros(len(active)), active.copy()
        spare = np.full(self.links, self.link.bandwidth)
        used = paths >= 0
        while open_.any():
            crossed = paths[open_][used[open_]]
            count = np.bincount(crossed, minlength=self.links)
            share = np.where(count > 0, spare / np.maximum(count, 1), np.inf)
            least = float(share.min())
            rates[open_] += least
            spare = spare - least * count
            full = (count > 0) & (share <= least * (1 + 1e-9))
            open_ &= ~(full[paths] & used).any(1)
        return rates


class FatTree(Network):
    """Three levels of switches of `radix` ports, with radix / 2 hosts a switch; a message's way up is chosen by its destination (d mod k).

    oversubscription: how many hosts share a link up from their switch. radix: of a 36-port switch by default, which joins up to 11,664.
    Al-Fares, Loukissas and Vahdat, A scalable, commodity data center network architecture (SIGCOMM 2008); Zahavi, Fat-tree routing and node
    ordering providing contention free traffic for MPI global collectives (2012).
    """

    name = "fat tree"

    def __init__(self, ranks: int, link: Link = Link(), radix: int = 36, oversubscription: int = 1) -> None:
        super().__init__(ranks, link)
        half = radix // 2
        if radix % 2 or ranks > radix * half * half:
            raise ValueError(f"a fat tree of switches with {radix} ports joins up to {radix * half * half} ranks, got {ranks}; "
                             "radix has to be even")
        if half % oversubscription:
            raise ValueError(f"oversubscription divides {half}, the hosts of a switch, got {oversubscription}")
        self.half, self.up = half, half // oversubscription
        leaves = -(-ranks // half)
        self.pods = -(-leaves // half)
        self.sizes = (ranks, self.pods * half * self.up, self.pods * self.up * half)      # hosts; leaf to aggregation; that to core
        self.links = 2 * sum(self.sizes)

    def routes(self, src: Array, dst: Array) -> Array:
        half, up, (hosts, lower, upper) = self.half, self.up, self.sizes
        leaf, other = src // half, dst // half
        pod, there = leaf // half, other // half
        middle, core = dst % up, dst // up % half
        far, distant = leaf != other, pod != there
        down = hosts + lower + upper
        return np.stack([
            np.where(src != dst, src, -1),
            np.where(far, hosts + leaf * up + middle, -1),
            np.where(distant, hosts + lower + (pod * up + middle) * half + core, -1),
            np.where(distant, down + hosts + lower + (there * up + middle) * half + core, -1),
            np.where(far, down + hosts + other * up + middle, -1),
            np.where(src != dst, down + dst, -1)], 1)


class Torus(Network):
    """A torus of a router a rank: row-major numbers, dimension after dimension, the shorter way round.

    A rank enters its router by one link. dims: ranks along each dimension; without it, three that are as equal as they can be.
    Dally and Towles, Principles and practices of interconnection networks (2004), chapters 5 and 8.
    """

    name = "torus"

    def __init__(self, ranks: int, link: Link = Link(), dims: Sequence[int] | None = None) -> None:
        super().__init__(ranks, link)
        self.dims = tuple(dims) if dims is not None else cube(ranks)
        if prod(self.dims) != ranks:
            raise ValueError(f"dims {self.dims} are {prod(self.dims)} ranks, not {ranks}")
        self.links = ranks * (2 + 2 * len(self.dims))

    def order(self) -> Array:
        """To and fro along the last dimension, then the one before: but for the way back, each is a neighbour of the next."""
        found = np.zeros(1, int)
        for size in reversed(self.dims):
            rows = found + np.arange(size)[:, None] * len(found)
            rows[1::2] = rows[1::2, ::-1]
            found = rows.reshape(-1)
        return found

    def routes(self, src: Array, dst: Array) -> Array:
        ranks, at = self.ranks, list(np.unravel_index(src, self.dims))
        goal = np.unravel_index(dst, self.dims)
        columns = [np.where(src != dst, src, -1)]
        for axis, size in enumerate(self.dims):
            ahead = (goal[axis] - at[axis]) % size
            forward = ahead <= size // 2
            steps = np.where(forward, ahead, size - ahead)
            for step in range(int(steps.max(initial=0))):
                moving = step < steps
                here = np.ravel_multi_index(at, self.dims)
                columns.append(np.where(moving, ranks * (2 + 2 * axis + np.where(forward, 0, 1)) + here, -1))
                at[axis] = np.where(moving, at[axis] + np.where(forward, 1, -1), at[axis]) % size
        columns.append(np.where(src != dst, ranks + dst, -1))
        return np.stack(columns, 1)


def cube(ranks: int) -> tuple[int, int, int]:
    """Three factors of a number, in rising order, that are as equal as they can be."""
    a = next(n for n in range(round(ranks ** (1 / 3)), 0, -1) if ranks % n == 0)
    b = next(n for n in range(isqrt(ranks // a), 0, -1) if ranks // a % n == 0)
    return tuple(sorted((a, b, ranks // a // b)))  # type: ignore[return-value]


NETWORKS: dict[str, type[FatTree] | type[Torus]] = {"fat tree": FatTree, "torus": Torus}
