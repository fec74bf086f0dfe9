"""Which values that several kernels need are stored, and which those kernels compute again: minimum cuts. Start at `rematerialized`.

For the values between a forward pass and its backward pass this is the choice of residuals. For a kernel g, every value v that it
needs of other kernels has two nodes in a flow network: n(v), "g needs v", and c(v), "g computes v itself". On the sink's side of a cut
is what is so. A cut pays

    source -> c(v)   v's arithmetic
    c(v) -> n(v)     the traffic of v: g's read, and a share of the write
    n(d) -> c(v)     without end, for what v is computed from: who computes v needs d
    n(v) -> sink     without end, where g reads v already

and the least cut is g's cheapest choice (as in the min-cut partitioner of PyTorch's AOTAutograd, 2022, where arithmetic is free). What may
not be done twice (products, reductions, gathers, random draws, long arithmetic) has only the traffic edge, from the source. A value is
stored if one kernel had better read it; then all do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from tracegrad.codegen.schedule.access_maps import Maps, Reads, add, compose
from tracegrad.codegen.schedule.grouping import cost
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import float64
from tracegrad.support.tuning import tuning

SOURCE, SINK = -1, -2                              # n(v) is 2 v, and c(v) is 2 v + 1, for value number v
Edge = tuple[int, int, int | None]                 # from, to, capacity (None: no limit)


class Reader(Protocol):
    """A kernel to be (grouping.Group): `reads` holds what it reads directly, and by which access maps; `roots` what it computes."""

    roots: list[Node]
    reads: Reads

    @property
    def size(self) -> int: ...

    def repeats(self, maps: Maps) -> bool: ...


G = TypeVar("G", bound=Reader)
# Of a value: its traffic, flops an element, arithmetic (0 if it is too few bytes for a buffer), elements; and what it is computed from,
# each with the access maps, its number among the values, or the traffic of an input, which has none.
Value = tuple[int, int, int, int, list[tuple[Node, Maps, int | None, int]]]


def rematerialized(
    order: Iterable[Node], group_of: Mapping[Node, G], deps: Mapping[Node, Reads], costs: Mapping[Node, int],
    fixed: set[Node], readers: Mapping[Node, set[G]],
) -> set[Node]:
    """The values that kernels other than their own had better compute again.

    order: all values that kernels compute, operands first; deps: what each is computed from; costs: flops an element; fixed: those
    that must be stored if another kernel needs them; readers: the kernels that read each value or input.
    """
    choice = Choice(list(order), group_of, deps, costs, fixed, readers)
    loaded: set[Node] = set()
    for g in dict.fromkeys(group_of[v] for v in choice.order):
        wanted = [v for v in g.reads if v in choice.free and group_of[v] is not g]
        if wanted:
            loaded |= choice.loads(g, wanted)
    return choice.free - loaded


class Choice:
    """What the networks of all kernels have in common; see `rematerialized`. Costs are ints, twice the flops: where both are equal,
    arithmetic wins."""

    def __init__(
        self, order: list[Node], group_of: Mapping[Node, Any], deps: Mapping[Node, Reads], costs: Mapping[Node, int],
        fixed: set[Node], readers: Mapping[Node, set[G]],
    ) -> None:
        self.order, self.group_of, self.deps, self.costs, self.fixed, self.readers = order, group_of, deps, costs, fixed, readers
        self.number = {v: i for i, v in enumerate(order)}
        self.free = {v for v in order if v not in fixed and costs.get(v, 0) <= tuning().max_flops}
        self.cuts: dict[tuple[int, ...], frozenset[int]] = {} # of networks seen before: steps of an unrolled program have equal ones
        self.values: dict[Node, Value] = {}

    def traffic(self, v: Node) -> int:
        """What a kernel's read of a value costs."""
        outside = sum([g is not self.group_of[v] for g in self.readers.get(v, ())])
        share = 0.0 if v in self.fixed and outside else 1 / max(1, outside)        # of the write; it may be written in any case
        traffic = v.aval.nbytes * (1 + share)
        if self.group_of[v].roots == [v]:                    # a kernel that would not be there at all
            traffic += sum([d.aval.nbytes for d in self.deps[v]]) * share
        return int(2 * tuning().flops_per_byte * traffic)

    def again(self, v: Node) -> int:
        """Flops an element, as of float32: half as many of float64 are done at a time, and a function's polynomial has twice the terms."""
        flops, last = self.costs.get(v, 0), cost(v)
        return flops if v.dtype != float64 else 2 * (flops + (last if last >= tuning().costly else 0))

    def value(self, v: Node) -> Value:
        """What the networks have of a value."""
        flops, few = self.costs.get(v, 0), v.aval.nbytes <= tuning().few_bytes
        operands = [(d, maps, self.number.get(d), -1 if d in self.number else 2 * tuning().flops_per_byte * d.aval.nbytes)
                    for d, maps in self.deps[v].items()]
        made = self.values[v] = self.traffic(v), flops, 0 if few else max(0, 2 * self.again(v) * v.aval.size - 1), v.aval.size, operands
        return made

    def loads(self, g: Reader, wanted: list[Node]) -> set[Node]:
        """What the kernel g had better read of the free values that it needs (`wanted`) or would need to compute those."""
        network = [len(wanted)]                              # see `edges`
        numbers, number, order, group_of, reads, free = tuning(), self.number, self.order, self.group_of, g.reads, self.free
        place = {v: i for i, v in enumerate(wanted)}         # of the values and inputs, in the order in which they turn up
        computed = {v: reads[v] for v in wanted}             # by which maps an element of g computes a value
        spent = dict.fromkeys(wanted, 0)                     # flops of the chain from what g reads to a value
        queue = [-number[v] for v in wanted]
        heapify(queue)
        while queue:                                         # users before what they are computed from
            v = order[-heappop(queue)]
            paid, flops, own, size, operands = self.values.get(v) or self.value(v)
            spent_here = spent[v] + max(5, flops)
            network += (place[v], paid)
            if v not in free or spent_here > numbers.max_chain or len(spent) > numbers.max_values:
                network.append(-1)
                continue
            if own and g.size > size and g.repeats(computed[v]):
                own = (own + 1) * g.size // size - 1
            network.append(own)
            for d, maps, at, price in operands:
                if at is not None:
                    for outer in computed[v]:
                        add(computed, d, compose(outer, maps))
                m = place.get(d)
                if m is None:
                    if d in reads or group_of.get(d) is g:
                        continue                             # g has it
                    m = place[d] = len(place)
                    if at is not None:
                        spent[d] = spent_here
                        heappush(queue, -at)
                    network += (m, price)
                    continue
                if spent_here < spent.get(d, 0):
                    spent[d] = spent_here
                network += (m, -1)
            network.append(-1)
        key = tuple(network)
        found = self.cuts.get(key)
        if found is None:
            found = self.cuts[key] = cut(key)
        return {v for v in spent if place[v] in found}


def edges(network: Sequence[int]) -> Iterator[Edge]:
    """The edges of a network as `Choice.loads` notes it, in few numbers: how many values g reads, which are the first; then for each value

    its number, its traffic and its arithmetic, -1 where it cannot be computed again. Else its operands follow, each with its traffic (-1:
    it is no input, or was met before), and -1.

    What has an edge without end to the sink is the sink. Where arithmetic alone costs more than the traffic, c(v) is on the source's side.
    """
    parts = iter(network)
    count = next(parts)
    for v in parts:
        needed = SINK if v < count else 2 * v
        traffic, work = next(parts), next(parts)
        again = 0 <= work <= traffic
        yield 2 * v + 1 if again else SOURCE, needed, traffic
        if again:
            yield SOURCE, 2 * v + 1, work
        while work >= 0 and (d := next(parts)) >= 0:
            if again and d >= count:
                yield 2 * d, 2 * v + 1, None
            if (price := next(parts)) >= 0:
                yield SOURCE, 2 * d, price


def cut(network: Sequence[int]) -> frozenset[int]:
    """The values (by number) that had better be read: whose traffic the least cut of the network goes through."""
    there = sinks_side(edges(network)).union(range(0, 2 * network[0], 2))
    return frozenset(n // 2 for n in there if n >= 0 and not n % 2 and n + 1 not in there)


def sinks_side(edges: Iterable[Edge]) -> set[int]:
    """The sink's side of a least cut between SOURCE and SINK, the smallest if there are several.

    Of edges between the same nodes the last counts. Flow goes by shortest paths (Edmonds and Karp's), looked for from the sink, so those
    that reach it in the end are its side. (A network has some ten edges; networkx's graphs of one take ten times as long to make.)
    """
    found = {(a, b): capacity for a, b, capacity in edges}
    endless = 1 + sum([capacity for capacity in found.values() if capacity is not None])
    left: dict[int, dict[int, int]] = {SOURCE: {}, SINK: {}}           # how much may still flow from a node to another
    for (a, b), capacity in found.items():
        left.setdefault(a, {})[b] = left.get(a, {}).get(b, 0) + (endless if capacity is None else capacity)
        left.setdefault(b, {}).setdefault(a, 0)
    while True:
        onward = {SINK: SINK}                                # from what reaches the sink, the next node on the way there
        reached = [SINK]
        for b in reached:
            if SOURCE in onward:
                break
            for a in left[b]:
                if a not in onward and left[a][b]:
                    onward[a] = b
                    reached.append(a)
        if SOURCE not in onward:
            return set(onward)
        path = [SOURCE]
        while path[-1] != SINK:
            path.append(onward[path[-1]])
        flow = min([left[a][b] for a, b in pairwise(path)])
        for a, b in pairwise(path):
            left[a][b] -= flow
            left[b][a] += flow
