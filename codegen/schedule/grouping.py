"""Which nodes become which kernels. Start at `schedule`.

Nodes are either *inlined* into the kernels that use them (movement, elementwise) or *sinks* that a kernel computes: results,
expensive nodes, and elementwise nodes with several users. Sinks are put into groups, one group a kernel, in topological order: a
sink joins a group if it has the same iteration domain and everything it reads of that group it reads at its own position (its
own element, or its own row's reduction). Nothing else that it reads may depend on the group: each group keeps the set of its
ancestors (a bit mask), so merging never makes a cycle. Then each sink that other groups read is stored, or, where that moves
fewer bytes, recomputed by its readers: a minimum cut (see `recompute`).

How a node reads another is a *relation* of flat indices: 1 is the same index, k > 1 is index // k (a row's value, k columns),
0 is anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import networkx as nx

from tracegrad.codegen.schedule.recompute import computed_again
from tracegrad.codegen.tuning import tuning
from tracegrad.ir import Graph, Node
from tracegrad.plan import Target

SAME, OTHER = 1, 0
Deps = dict[Node, frozenset[int]]
_SAME = frozenset((SAME,))
_OTHER = frozenset((OTHER,))


@dataclass(eq=False)
class Group:
    """One kernel to be: what it computes and over which domain.

    kind: "loops" (elementwise over `size` elements; with `cols`, reductions over rows of so many; with `length`, only chunks of
    them), "columns" (`view` = (outer, middle, inner), chunks of `length` of the middle), or the family of its one anchor.
    """

    kind: str
    size: int
    number: int
    cols: int | None = None
    length: int | None = None
    view: tuple[int, int, int] | None = None
    anchor: Node | None = None
    sinks: list[Node] = field(default_factory=list)
    place: dict[Node, str] = field(default_factory=dict)     # "full", "row" or "partial", for each sink
    stored: list[Node] = field(default_factory=list)
    reads: Deps = field(default_factory=dict)                # stored nodes and inputs it reads, and how
    statements: int = 0
    ancestors: int = 0                                       # bit n: depends on group number n
    users: dict[int, Group] = field(default_factory=dict)    # groups that read from it
    work: int = 0                                            # its arithmetic, roughly, in operations
    positional: bool = False                                 # something in it depends on the index by more than the flat position
    note: str = ""


@dataclass
class Schedule:
    """The groups in launch order, and for each stored node its group."""

    groups: list[Group]
    group_of: dict[Node, Group]
    stored: set[Node]
    deps: dict[Node, Deps]
    costs: dict[Node, int]


def strip(node: Node) -> Node:
    """The node whose buffer holds `node`: reshapes share it."""
    while node.fn.name == "reshape":
        node = node.operands[0]
    return node


def cost(node: Node) -> int:
    """Flops an element."""
    if node.fn.family == "elementwise":
        return node.fn.flops
    if node.fn.family == "reduction":
        return max(1, node.operands[0].aval.size // max(1, node.aval.size))
    return 8 if node.fn.family == "gather" else 0


def small_reduction(node: Node) -> bool:
    """Whether a reduction is written out inside the kernels that need it: over few elements that are there or are cheap to compute.

    One number from values that take a computation is a row's, though: it is accumulated where those are computed anyway.
    """
    if node.fn.family != "reduction" or node.operands[0].aval.size > tuning().unrolled * node.aval.size:
        return False
    return node.aval.size > 1 or node.operands[0].shape[-1] != node.operands[0].aval.size or not takes_work(node.operands[0])


def takes_work(node: Node) -> bool:
    """Whether an element costs some arithmetic, counted up to what is stored for certain."""
    total, seen, todo = 0, {node}, [node]
    while todo and total < tuning().reduced_work:
        node = todo.pop()
        if node.fn.family == "elementwise" or node.fn.name == "reshape":
            total += cost(node) if node.fn.family == "elementwise" else 0
            fresh = [o for o in node.operands if o not in seen]
            seen.update(fresh)
            todo += fresh
    return total >= tuning().reduced_work


def relation(operand: Node, shape: tuple[int, ...], size: int) -> int:
    """How an elementwise op (or an expand) over `shape` reads an operand that is broadcast to it."""
    if operand.aval.size == size:
        return SAME
    if operand.aval.size == 1:
        return size
    lead = len(shape) - len(operand.shape)
    tail, i = 1, len(shape) - 1
    while i >= lead and operand.shape[i - lead] == 1:
        tail *= shape[i]
        i -= 1
    while i >= 0 and ((i >= lead and operand.shape[i - lead] == shape[i]) or shape[i] == 1):
        i -= 1
    return tail if i < 0 else OTHER


def compose(outer: int, inner: frozenset[int]) -> frozenset[int]:
    if outer == SAME:
        return inner
    return frozenset(outer * r for r in inner) if outer else _OTHER


class Scheduler:
    """State of one scheduling run; see `schedule`."""

    def __init__(self, graph: Graph, outputs: Iterable[Node], scalars: Mapping[Node, object], target: Target, fuse: bool) -> None:
        self.graph, self.target, self.fuse = graph, target, fuse
        self.scalars = scalars
        self.outputs = {o for o in outputs if not self.is_leaf(o) or o in scalars or o.fn.name == "const"}
        self.groups: list[Group] = []
        self.group_of: dict[Node, Group] = {}
        self.deps: dict[Node, Deps] = {}          # of inlined nodes and of sinks: what they read, and how
        self.costs: dict[Node, int] = {}
        self.times: dict[Node, dict[Node, int]] = {}      # at how many places one element of a node reads each of its deps
        self.by_size: dict[int, list[Group]] = {}
        self.forced: set[Node] = set(self.outputs)
        self.candidates: set[Node] = set()
        self.once: set[Node] = set()              # what takes a random draw or a gather, which are never done twice
        self.positional: set[Node] = set()        # nodes computed with index arithmetic, unless something stored is in between

    # -- kinds of nodes

    def is_leaf(self, node: Node) -> bool:
        return node.fn.family == "leaf" or node in self.scalars

    def is_inline(self, node: Node) -> bool:
        family = node.fn.family
        return family in ("elementwise", "movement", "index", "gather") or small_reduction(node)

    # -- the steps

    def run(self) -> Schedule:
        self.choose_candidates()
        for node in self.graph:
            if node.aval.size == 0:
                continue
            if self.is_leaf(node):
                if node in self.forced:
                    self.deps[node] = {}
                    self.place_sink(node)
                elif node.fn.name != "const" and node not in self.scalars:
                    self.deps[node] = {node: _SAME}
                continue
            if self.is_inline(node):
                deps, flops = self.inline_deps(node)
                inherited = any(o in self.once and o not in self.group_of for o in node.operands)
                if inherited or (node.fn.expensive and node.fn.family != "reduction"):
                    self.once.add(node)
                large = len(deps) > tuning().max_reads // 2 or flops > 4 * tuning().max_statements
                sink = node in self.candidates or node in self.forced or large
                sink = sink and node.fn.name != "reshape"
                self.deps[node], self.costs[node] = deps, flops
                if sink:
                    self.place_sink(node)
                continue
            self.deps[node], self.costs[node] = self.sink_deps(node)
            self.place_sink(node)
        self.choose_stored()
        return self.finish()

    def choose_candidates(self) -> None:
        users: dict[Node, int] = {}
        for node in reversed(list(self.graph)):
            if self.is_leaf(node) or node.aval.size == 0:
                continue
            count = users.get(node, 0)
            through = node.fn.family == "movement" and node not in self.forced
            if not self.fuse and node.fn.name != "reshape":
                self.forced.add(node)
            elif self.is_inline(node) and node.fn.family not in ("movement", "index") and count > 1:
                self.candidates.add(node)
            for i, o in enumerate(node.operands):
                if o not in node.operands[:i]:
                    repeats = node.aval.size > o.aval.size and self.is_inline(node) and relation(o, node.shape, node.aval.size) == OTHER
                    users[o] = users.get(o, 0) + (count if through else 1) + (1 if repeats and node.fn.family != "reduction" else 0)
            if node.fn.family == "contraction":
                for o in node.operands:
                    self.force_base(o)
            elif not self.is_inline(node) and node.fn.family not in ("reduction", "partial", "arg_reduction"):
                for o in node.operands:
                    if node.fn.family == "opencl_call" and o in self.scalars:
                        continue                             # passed by value
                    if (not self.is_leaf(strip(o)) and o.aval.size) or strip(o) in self.scalars or strip(o).fn.name == "const":
                        self.forced.add(strip(o))

    def force_base(self, node: Node) -> None:
        """A contraction reads its operands through transposes and casts; anything more is stored first."""
        while True:
            if self.is_leaf(node) or not self.is_inline(node) or node.aval.size == 0 or node.fn.family == "index":
                return
            single = node.fn.family == "movement" and len(node.operands) == 1
            if not (single or (node.fn.name == "cast" and node.operands[0].dtype.itemsize <= node.dtype.itemsize)):
                self.forced.add(node)
                return
            node = node.operands[0]

    def external(self, node: Node) -> tuple[Deps, int]:
        """What a user of `node` reads, and the arithmetic it repeats."""
        if node in self.group_of:
            return {node: _SAME}, 0
        return self.deps.get(node, {}), self.costs.get(node, 0)

    def inline_deps(self, node: Node) -> tuple[Deps, int]:
        size, flops = node.aval.size, cost(node)
        out: Deps = {}
        times: dict[Node, int] = {}
        if node.fn.family == "index" or any(o in self.positional for o in node.operands):
            self.positional.add(node)
        for o in dict.fromkeys(node.operands):
            if o.aval.size == 0:
                continue
            deps, inner = self.external(o)
            flops += inner
            if node.fn.family == "elementwise" or node.fn.name == "expand":
                how = relation(o, node.shape, size)
            else:
                how = SAME if node.fn.name == "reshape" else OTHER
            if how == OTHER:
                self.positional.add(node)
            for dep, relations in deps.items():
                found = compose(how, relations)
                again = 1 if o in self.group_of else self.times.get(o, {}).get(dep, 1)
                if dep in out:
                    again = again + times[dep] if found != out[dep] or OTHER in found else max(again, times[dep])
                times[dep] = again
                out[dep] = out[dep] | found if dep in out else found
        self.times[node] = times
        return out, flops

    def sink_deps(self, node: Node) -> tuple[Deps, int]:
        """Of a reduction: relative to its operand's elements. Of anything else: anyhow."""
        out: Deps = {}
        flops = 1
        for o in dict.fromkeys(node.operands):
            deps, inner = self.external(o)
            flops += inner
            keep = node.fn.family in ("reduction", "partial")
            for dep, relations in deps.items():
                found = relations if keep else _OTHER
                out[dep] = out[dep] | found if dep in out else found
        return out, flops

    # -- grouping

    def place_sink(self, node: Node) -> None:
        if not self.is_leaf(node) and self.fuse:
            for group in self.choices(node):
                place = self.fits(group, node)
                if place:
                    self.join(group, node, place)
                    return
        self.join(self.new_group(node), node, "")

    def choices(self, node: Node) -> list[Group]:
        """Groups to try: those it reads from, then recent ones of the same size."""
        near = {self.group_of[d] for d in self.deps[node] if d in self.group_of}
        out = sorted(near, key=lambda g: -g.number)
        size = self.domain(node)
        return out + [g for g in reversed(self.by_size.get(size, ())) if g not in near][:8]

    def domain(self, node: Node) -> int:
        return node.operands[0].aval.size if node.fn.family in ("reduction", "partial") and not small_reduction(node) else node.aval.size

    def fits(self, group: Group, node: Node) -> str:
        """Where in `group` the node would stand: "full", "row", "partial"; "" if nowhere."""
        if group.statements + self.costs.get(node, 0) > tuning().max_statements:
            return ""
        if group.kind not in ("loops", "columns", "contraction", "conv"):
            return ""
        deps, size = self.deps[node], node.aval.size
        family = node.fn.family
        if family in ("contraction", "arg_reduction") or not (self.is_inline(node) or family in ("reduction", "partial")):
            return ""
        place = "full"
        cols, length = group.cols, group.length
        if family == "partial":
            _, middle, inner = node.operands[0].shape
            place = "partial"
            if node.operands[0].aval.size != group.size:
                return ""
            if inner > 1:
                if group.kind != "columns" or group.view != node.operands[0].shape or group.length != node.attrs["length"]:
                    return ""
            else:
                if group.kind != "loops" or (cols is not None and (cols, length) != (middle, node.attrs["length"])):
                    return ""
                if any(p == "row" for p in group.place.values()):
                    return ""
                cols, length = middle, node.attrs["length"]
        elif family == "reduction" and not small_reduction(node):
            if group.kind != "loops" or node.operands[0].aval.size != group.size or length is not None:
                return ""
            if cols is not None and cols != node.operands[0].shape[-1]:
                return ""
            cols, place = node.operands[0].shape[-1], "row"
        elif size != group.size:
            if group.kind != "loops" or cols is None or length is not None or size * cols != group.size:
                return ""
            if not any(group.place.get(d) == "row" for d in deps):
                return ""
            place = "row"
        for dep, relations in deps.items():
            other = self.group_of.get(dep)
            if other is None:
                continue
            if other is not group:
                if other.ancestors >> group.number & 1:
                    return ""
                continue
            there = group.place[dep]
            reads_full = place in ("full", "partial") or (family == "reduction" and place == "row" and not small_reduction(node))
            if there == "partial":
                return ""
            if there == "full" and not (reads_full and relations == _SAME):
                return ""
            if there == "row" and relations != (frozenset((cols,)) if reads_full else _SAME):
                return ""
        own = [dep for dep in deps if self.group_of.get(dep) is group]
        if all(self.is_inline(dep) for dep in own) and not self.timely(group, node, bool(own)):
            return ""
        if len(group.reads.keys() | {d for d in deps if self.group_of.get(d) is not group}) > tuning().max_reads:
            return ""
        return place

    def timely(self, group: Group, node: Node, related: bool) -> bool:
        """Whether `node` may share a kernel with what it does not have to: neither then waits for what only the other needs."""
        mask = 0
        for dep in self.deps[node]:
            other = self.group_of.get(dep)
            if other is not None and other is not group:
                mask |= other.ancestors | 1 << other.number
        return not mask & ~group.ancestors and (related or not group.ancestors & ~mask or not self.graph.out_degree(node))

    def new_group(self, node: Node) -> Group:
        family = node.fn.family
        kind = "loops" if self.is_inline(node) or self.is_leaf(node) or family == "reduction" else family
        group = Group(kind, self.domain(node), len(self.groups))
        if family == "partial":
            if node.operands[0].shape[2] > 1:
                outer, middle, inner = node.operands[0].shape
                group.kind, group.view = "columns", (outer, middle, inner)
            else:
                group.kind = "loops"
        elif kind not in ("loops", "columns"):
            group.anchor = node
        self.groups.append(group)
        self.by_size.setdefault(group.size, []).append(group)
        return group

    def join(self, group: Group, node: Node, place: str) -> None:
        family = node.fn.family
        if family == "partial":
            place = place or "partial"
            group.length = node.attrs["length"]
            if group.kind == "loops":
                group.cols = node.operands[0].shape[1]
        elif family == "reduction" and not small_reduction(node):
            place = place or "row"
            group.cols = node.operands[0].shape[-1]
        group.place[node] = place or "full"
        group.positional |= node in self.positional or (place in ("row", "partial") and any(o in self.positional for o in node.operands))
        group.sinks.append(node)
        group.work += self.costs.get(node, 1) * (node.aval.size if self.is_inline(node) else group.size)
        group.statements += max(1, self.costs.get(node, 0) // 4)
        for dep, relations in self.deps[node].items():
            group.reads[dep] = group.reads.get(dep, frozenset()) | relations
            other = self.group_of.get(dep)
            if other is not None and other is not group:
                other.users[group.number] = group
                self.add_ancestors(group, other.ancestors | 1 << other.number)
        self.group_of[node] = group

    def add_ancestors(self, group: Group, mask: int) -> None:
        """Tell a group and all that depend on it of more groups they depend on."""
        todo = [group]
        while todo:
            g = todo.pop()
            if mask & ~g.ancestors:
                g.ancestors |= mask
                todo += g.users.values()

    # -- what is stored

    def choose_stored(self) -> None:
        self.stored: set[Node] = set()
        readers: dict[Node, set[Group]] = {}
        for group in self.groups:
            for dep in group.reads:
                readers.setdefault(dep, set()).add(group)
        order = [n for n in self.graph if n in self.group_of]
        fixed = {n for n in order if n in self.forced or n in self.once or not self.is_inline(n)}
        again = computed_again(order, self.group_of, self.deps, self.costs, fixed, readers)
        places: dict[Node, int] = {}              # at how many places a reader's element would compute the node, were it not stored
        for node in reversed(order):
            outside = {g for g in readers.get(node, ()) if g is not self.group_of[node]}
            if node in self.forced:
                self.stored.add(node)
            elif outside:
                longer = max(1, self.costs.get(node, 0) // 4)
                if node not in again or self.costs.get(node, 0) * (places.get(node, 1) - 1) > tuning().max_again or (
                    any(g.statements + longer > tuning().max_statements * 5 // 4 for g in outside)
                ):
                    self.stored.add(node)
                else:
                    for g in outside:
                        g.statements += longer
                    for dep in self.deps[node]:
                        readers.setdefault(dep, set()).update(outside)
            for dep in self.deps[node]:
                found = self.times.get(node, {}).get(dep, 1) * (1 if node in self.stored else places.get(node, 1))
                places[dep] = max(places.get(dep, 1), found)

    def finish(self) -> Schedule:
        """Drop groups that store nothing, find out what the others read."""
        resolved: dict[Node, Deps] = {}

        def reads_of(node: Node) -> Deps:
            """What evaluating an unstored sink reads: its own deps, with those of unstored sinks put in."""
            stack = [node]
            while stack:
                top = stack[-1]
                pending = [d for d in self.deps[top] if d in self.group_of and d not in self.stored and d not in resolved and d is not top]
                if pending:
                    stack.extend(pending)
                    continue
                stack.pop()
                out: Deps = {}
                for dep, relations in self.deps[top].items():
                    inner = {dep: _SAME} if dep not in resolved or dep in self.stored or dep is top else resolved[dep]
                    for d, r in inner.items():
                        found = frozenset(x for outer in relations for x in compose(outer, r))
                        out[d] = out[d] | found if d in out else found
                resolved[top] = out
            return resolved[node]

        groups = []
        for group in self.groups:
            group.stored = [s for s in group.sinks if s in self.stored]
            if not group.stored:
                continue
            group.reads = {}
            for sink in group.sinks:
                for dep, relations in reads_of(sink).items():
                    if self.group_of.get(dep) is not group:
                        group.reads[dep] = group.reads.get(dep, frozenset()) | relations
            groups.append(group)
        for group in groups:
            group.note = self.reason(group, groups)
        return Schedule(in_order(groups, self.group_of, self.stored), self.group_of, self.stored, self.deps, self.costs)


    def reason(self, group: Group, groups: list[Group]) -> str:
        """Why this kernel does not go on, for `explain()`."""
        found: list[str] = []
        for sink in group.stored:
            if sink.fn.family == "partial":
                found.append(f"the {sink.attrs['op'].name} over its chunks is finished by the next kernel, when all are done")
                continue
            for user in (g for g in group.users.values() if sink in g.reads):
                name = sink.fn.name
                if user.anchor is not None:
                    found.append(f"{name} is an operand of {user.anchor.fn.name}")
                elif group.place[sink] == "row" and (group.cols or 0) * user.size != group.size:
                    found.append(f"{name} is needed by a kernel over another shape")
                elif OTHER in user.reads[sink]:
                    found.append(f"{name} is read at other positions (transposed, sliced, broadcast or by another row)")
                elif user.size != group.size:
                    found.append(f"{name} is needed by a kernel over another shape")
                elif group.statements + user.statements > tuning().max_statements:
                    found.append("the kernel is as long as a driver compiles well")
                else:
                    found.append(f"the user of {name} also waits for other kernels")
        return "; ".join(dict.fromkeys(found)) or "its results are results of the program"


def in_order(groups: list[Group], group_of: dict[Node, Group], stored: set[Node]) -> list[Group]:
    """The groups, each after those it reads from, else by number."""
    order = nx.DiGraph()
    order.add_nodes_from(groups)
    for group in groups:
        for node in group.reads:
            if node in stored and group_of[node] is not group:
                order.add_edge(group_of[node], group)
    return list(nx.lexicographical_topological_sort(order, key=lambda g: g.number))


def schedule(graph: Graph, outputs: Iterable[Node], scalars: Mapping[Node, object], target: Target, fuse: bool = True) -> Schedule:
    """The kernels of `graph`. outputs: the nodes that must be stored; scalars: 0-d nodes that are computed on the host."""
    return Scheduler(graph, outputs, scalars, target, fuse).run()
