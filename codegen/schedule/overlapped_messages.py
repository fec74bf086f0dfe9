"""Elementwise groups that read a message of other ranks at their edges only, cut: the inside is computed while it comes. Start at `cut`.

A stencil on a rank's block of a grid reads its neighbours' values for the points at the edges. In one kernel all points would wait for
them; so the inside is a kernel of its own, and the edges, dimension after dimension, are others, which write into the same buffer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

from tracegrad.codegen.kernel.index.guards import Reads
from tracegrad.codegen.kernel.index.index import Var, ravel
from tracegrad.codegen.schedule.access_maps import ONLY_UNKNOWN
from tracegrad.codegen.schedule.grouping import Flat, Granularity, Group, Schedule, TemplateGroup
from tracegrad.graph.ir import Node
from tracegrad.graph.locations import located
from tracegrad.ops.primitives.movement import slice_
from tracegrad.support.dtypes import is_half


class Box(NamedTuple):
    """The elements from `low` to before `high` along each dimension."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(b - a for a, b in zip(self.low, self.high, strict=True))

    def along(self, dim: int, low: int, high: int) -> Box:
        """The same with another range of one dimension."""
        return Box((*self.low[:dim], low, *self.low[dim + 1:]), (*self.high[:dim], high, *self.high[dim + 1:]))


def cut(schedule: Schedule, scalars: Collection[Node]) -> list[Group]:
    """The groups in their order, with those cut of which at least a half waits for one message less than the rest."""
    waits: dict[Node, int] = {}                  # for how many messages, one after the other, what is stored has to wait
    out: list[Group] = []
    for group in schedule.groups:
        own = max((waits.get(d, 0) for d in group.reads), default=0)
        last = {d for d in group.reads if own and waits.get(d, 0) == own}
        waits.update(dict.fromkeys(group.stored, own + _is_message(group)))
        out += (_parts(group, schedule, scalars, last) if last else None) or [group]
    return out


def _is_message(group: Group) -> bool:
    """Whether the host begins it, and the device goes on (`HostStart`)."""
    return isinstance(group.kind, TemplateGroup) and getattr(group.anchor.fn, "begin", None) is not None


def _parts(group: Group, schedule: Schedule, scalars: Collection[Node], last: set[Node]) -> list[Group] | None:
    """The inside, which reads nothing of `last`, and the edges. None if there is no such inside, or it is small."""
    shape = group.stored[0].shape
    plain = group.kind == Flat(group.size) and all(
        s.shape == shape and s.fn.family != "pair" and not is_half(s.dtype) and group.place[s] is Granularity.ELEMENT for s in group.stored)
    if not plain:
        return None
    inside = _inside(lambda box: last.isdisjoint(_read(group, schedule, scalars, box)), shape)
    if inside is None or 2 * inside.size < group.size or inside.size == group.size:
        return None
    found: list[tuple[Box, ...]] = [(inside,)]
    for low, high in _edges(inside, shape):
        found += [(low, high)] if low.size == high.size else [(box,) for box in (low, high) if box.size]
    return [_part(group, schedule, boxes, frozenset().union(*[_read(group, schedule, scalars, box) for box in boxes]))
            for boxes in found if boxes[0].size]


def _read(group: Group, schedule: Schedule, scalars: Collection[Node], box: Box) -> frozenset[Node]:
    """What the elements of a box read of what is stored."""
    found: set[Node] = set()

    def stored(node: Node) -> bool | None:
        if schedule.group_of.get(node) is group or not (node in schedule.stored or node.fn.name in ("placeholder", "data")):
            return None
        found.add(node)
        return True

    at = ravel([Var("at", b - a).index + a for a, b in zip(box.low, box.high, strict=True)], group.stored[0].shape)
    reads = Reads(stored, scalars)
    for root in group.stored:
        reads.add(root, at)
    return frozenset(found)


def _inside(free: Callable[[Box], bool], shape: Sequence[int]) -> Box | None:
    """The largest box around the middle that is `free`; None if the middle is not, or boxes along each dimension do not make one."""
    middle = tuple([n // 2 for n in shape])
    point = Box(middle, tuple([m + 1 for m in middle]))
    if not shape or not free(point):
        return None
    found = point
    for d, (m, n) in enumerate(zip(middle, shape, strict=True)):
        before, behind = partial(_reached, free, point, d, -1), partial(_reached, free, point, d, 1)
        found = found.along(d, m - bisect_left(range(1, m + 1), True, key=before), m + 1 + bisect_left(range(1, n - m), True, key=behind))
    return found if free(found) else None


def _reached(free: Callable[[Box], bool], point: Box, dim: int, way: int, steps: int) -> bool:
    """Whether the line from a point along a dimension, so many steps one way or the other, is no longer free."""
    low, high = point.low[dim], point.high[dim]
    return not free(point.along(dim, low - steps * (way < 0), high + steps * (way > 0)))


def _edges(inside: Box, shape: Sequence[int]) -> Iterator[tuple[Box, Box]]:
    """What lies before and behind the inside along each dimension: along those before it between these edges, along others the whole."""
    box = Box((0,) * len(shape), tuple(shape))
    for d, (low, high, n) in enumerate(zip(*inside, shape, strict=True)):
        yield box.along(d, 0, low), box.along(d, high, n)
        box = box.along(d, low, high)


def _part(group: Group, schedule: Schedule, boxes: Sequence[Box], reads: Collection[Node]) -> Group:
    """The group of some boxes of equal size. Its results are slices of the whole ones, written where these lie."""
    into: dict[Node, Node] = {}
    for low, high in boxes:
        for root in group.stored:
            with located(root.loc):
                into[slice_(root, low, high, (1,) * len(low))] = root
    roots, size = list(into), boxes[0].size
    for node, whole in into.items():
        schedule.deps.setdefault(node, {})
        schedule.costs.setdefault(node, schedule.costs.get(whole, 0))
    return Group(Flat(size), group.number, roots, dict.fromkeys(roots, Granularity.ELEMENT), roots,
                 {d: ONLY_UNKNOWN for d in group.reads if d in reads}, len(boxes) * group.statements, group.ancestors, group.users,
                 len(boxes) * group.work * size // group.size, True, why=group.why, part_of=group, into=into)
