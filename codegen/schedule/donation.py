"""Results that are written into an input's buffer. Start at `arrange`; `separate` runs before scheduling.

An output that was given an input's buffer is written in place if its kernel reads the old value only at the element that it is
about to write, and every other reader of the old value can run before. Else it is computed elsewhere and copied at the end.

A scatter changes few elements of its base: where that is another scatter's result which nothing reads later, it is written in place, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tracegrad.codegen.graph.rewrite import at, op
from tracegrad.codegen.schedule.access_maps import IDENTITY, ONLY_IDENTITY
from tracegrad.codegen.schedule.grouping import Flat, Granularity, Group, NotFused, Schedule, TemplateGroup, strip
from tracegrad.codegen.schedule.order import in_order, reaches, reading
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import unique

Donations = dict[Node, Node]           # result node -> the input whose buffer it is for


def separate(graph: Graph, donate: dict[int, int]) -> tuple[Graph, list[Node], Donations]:
    """The graph with every output a node whose buffer can be its own, the nodes to store, and the donations.

    A donated output that is another input, a constant or some other output, too, becomes a copy; so does an input that is
    returned as it was, though its buffer is overwritten.
    """
    outputs = list(graph.outputs)
    taken = {strip(o) for i, o in enumerate(outputs) if i not in donate}
    overwritten = {graph.inputs[j] for i, j in donate.items() if strip(outputs[i]) is not graph.inputs[j]}
    donations: Donations = {}
    for i, o in enumerate(outputs):
        base = strip(o)
        if i in donate:
            into = graph.inputs[donate[i]]
            if base is into or not base.aval.size:
                continue
            if base in taken or base.fn.family == "leaf":
                outputs[i] = base = _copy(o)
            taken.add(base)
            donations[base] = into
        elif base in overwritten:
            outputs[i] = _copy(o)
    if outputs != graph.outputs:
        graph = Graph.capture(graph.inputs, outputs)
    stored = [strip(o) for o in outputs]
    return graph, [s for s in dict.fromkeys(stored) if s.aval.size], donations


def _copy(node: Node) -> Node:
    with at(node.loc):
        return op("variable", node, uid=unique())


def arrange(schedule: Schedule, outputs: Collection[Node], donations: Donations, shared: bool = False,
            must: bool = True) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """Which stored node is written into the buffer of which other (an input), and the copies (result -> its copy) where that had to wait.

    outputs: what is not to be overwritten. shared: the items of a work-group have a row in common (on GPUs): what they all read, one of
    them may have written already. must: a donated result that has to wait is copied; else it keeps a buffer of its own.

    Puts the groups in an order that allows it; copies come last.
    """
    alias: dict[Node, Node] = {}
    copies: dict[Node, Node] = {}
    scatters = [g for g in schedule.groups if is_scatter(g.roots[0])]
    if not donations and len(scatters) < 2:
        return alias, copies
    order = reading(schedule.groups, schedule.group_of, schedule.stored)
    readers: dict[Node, list[Group]] = {}
    for group in schedule.groups:
        for node in group.reads:
            readers.setdefault(node, []).append(group)

    def waits(group: Group, result: Node, old: Node) -> dict[Group, list[Group]] | None:
        """What has to be before what if `group` writes its result where `old` is; None if that cannot be."""
        before = [g for g in readers.get(old, ()) if g is not group]
        fits = result.aval.nbytes == old.aval.nbytes and _aligned(group, result, old, shared)
        return {group: before} if fits and not (before and reaches(order, group, before)) else None

    def put(before: Mapping[Group, list[Group]], result: Node, into: Node) -> None:
        for group, others in before.items():
            order.add_edges_from((other, group) for other in others)
        alias[result] = into

    for result, into in donations.items():
        before = waits(schedule.group_of[result], result, into)
        if before is not None:
            put(before, result, into)
        elif must:
            group = _copy_group(schedule, result)
            order.add_edges_from((earlier, group) for earlier in (schedule.group_of[result], *readers.get(into, ())))
            copies[result] = group.roots[0]
            alias[group.roots[0]] = into
    for group in reversed(scatters):
        result = group.roots[0]
        base, into = strip(result.operands[0]), alias.get(result, result)
        made = schedule.group_of.get(base)
        if made is not None and is_scatter(made.roots[0]) and base not in outputs and base not in alias:
            mine = waits(group, result, base)
            its = {} if into in schedule.group_of else waits(made, base, into)      # an input has an old value, which others may read
            if mine is not None and its is not None:
                put({**mine, **its}, base, into)
    schedule.groups = in_order(order)
    return alias, copies


def is_scatter(node: Node) -> bool:
    return node.fn.family == "scatter"


def _aligned(group: Group, result: Node, into: Node, shared: bool) -> bool:
    if isinstance(group.kind, TemplateGroup) and group.kind.is_call:     # it writes results of other groups, too
        return False
    if into not in group.reads:
        return True
    if shared and not isinstance(group.kind, Flat) and group.place[result] is not Granularity.ELEMENT:
        return False
    allowed = {IDENTITY} if group.place[result] is Granularity.ELEMENT else {IDENTITY, group.cols}
    return group.reads[into] <= allowed


def _copy_group(schedule: Schedule, result: Node) -> Group:
    """A group that copies a stored result; it runs last."""
    copy = _copy(result)
    group = Group(Flat(result.aval.size), 1 + max(g.number for g in schedule.groups), roots=[copy], place={copy: Granularity.ELEMENT},
                  stored=[copy], reads={result: ONLY_IDENTITY}, why=(NotFused.COPY.text(),))
    schedule.groups.append(group)
    schedule.group_of[copy] = group
    schedule.stored.add(copy)
    schedule.deps[copy] = {result: ONLY_IDENTITY}
    schedule.costs[copy] = 0
    return group
