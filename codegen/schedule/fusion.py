"""Which nodes become which kernels. Start at `schedule`.

Nodes are either *inlined* into the kernels that use them (movement, elementwise) or *roots* that a kernel computes: results,
expensive nodes, and elementwise nodes with several users. Sinks are put into groups, one group a kernel, in topological order: a
root joins a group whose kind accepts it (see `grouping`) if everything it reads of that group it reads at its own position (its
own element, or its own row's reduction). Nothing else that it reads may depend on the group: each group keeps the set of its
ancestors (a bit mask), so merging never makes a cycle. Then each root that other groups read is stored, or, where that moves
fewer bytes, computed again by its readers: a minimum cut (see `rematerialization`). What kept a root out of the groups that it reads
is remembered: `explain()` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import islice
from operator import or_

from tracegrad.codegen.schedule.access_maps import ONLY_IDENTITY, ONLY_UNKNOWN, UNKNOWN, Reads, add, compose
from tracegrad.codegen.schedule.grouping import (
    Accepted,
    Flat,
    Fusion,
    Granularity,
    Group,
    Kind,
    NotFused,
    Rows,
    Schedule,
    TemplateGroup,
    is_inline,
    kind_of,
    strip,
)
from tracegrad.codegen.schedule.inlined_reads import ONLY_HERE, Paths, Reading, joined
from tracegrad.codegen.schedule.order import in_order, reading
from tracegrad.codegen.schedule.rematerialization import rematerialized
from tracegrad.graph.ir import Graph, Node
from tracegrad.support.plan import Plain, Target


class Sink(Plain):
    """A node that a kernel is to compute. kind: that of a group of it alone; reads: what it reads (a reduction: to compute an element of
    its operand); of: what of that other groups compute, each."""

    node: Node
    kind: Kind
    reads: Reads
    cost: int
    of: dict[Group, Reads]


class Scheduler(Reading):
    """One scheduling run; see `schedule`."""

    def __init__(self, graph: Graph, outputs: Iterable[Node], scalars: Mapping[Node, object], target: Target, fuse: bool) -> None:
        super().__init__(graph, outputs, scalars, target, fuse)
        self.groups: list[Group] = []
        self.by_size: dict[int, list[Group]] = {}
        self.breaks: dict[tuple[Group, Node], NotFused] = {}      # why a root is not in a group that it reads from

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
                    self.deps[node] = {node: ONLY_IDENTITY}
                continue
            if is_inline(node):
                deps, flops = self.inline_deps(node)
                if self.in_many_parts(node, flops) and self.parts_stored(node):
                    deps, flops = self.inline_deps(node)
                inherited = self.once.intersection(node.operands)
                if not inherited <= self.group_of.keys() or (node.fn.expensive and node.fn.family != "reduction"):
                    self.once.add(node)
                large = len(deps) > self.tuning.max_reads // 2 or flops > 4 * self.tuning.max_statements
                root = node in self.candidates or node in self.forced or large
                root = root and node.fn.name != "reshape"
                self.deps[node], self.costs[node] = deps, flops
                if root:
                    self.place_sink(node)
                continue
            self.deps[node], self.costs[node] = self.sink_deps(node)
            self.place_sink(node)
        self.choose_stored()
        return self.finish()

    def parts_stored(self, node: Node) -> bool:
        """Store what takes some computation of what a node in many parts is put together of; whether there is any."""
        moved: set[Node] = set()                             # between them and the node
        found: set[Node] = set()
        todo = list(node.operands)
        while todo:
            o = todo.pop()
            if o in moved or o in self.group_of or o not in self.deps or self.is_leaf(o):
                continue
            if o.fn.family == "movement":
                moved.add(o)
                todo += o.operands
            elif self.costs[o] > self.tuning.max_again:
                found.add(o)
        for o in sorted(found, key=self.numbers.__getitem__):
            self.forced.add(o)
            self.place_sink(o)
        for o in sorted(moved, key=self.numbers.__getitem__) if found else ():
            self.deps[o], self.costs[o] = self.inline_deps(o)
        return bool(found)

    # -- grouping

    def place_sink(self, node: Node) -> None:
        root = Sink(node, self.lists.get(node) or kind_of(node, self.target), self.deps[node], self.costs.get(node, 0), {})
        for dep, maps in root.reads.items():
            other = self.group_of.get(dep)
            if other is not None:
                root.of.setdefault(other, {})[dep] = maps
        near = sorted(root.of, key=lambda g: -g.number)
        group, found = self.best(root, near)
        if group is None:
            group = Group(root.kind, len(self.groups))
            found = Accepted(root.kind, root.kind.place)
            self.groups.append(group)
            self.by_size.setdefault(group.size, []).append(group)
        for before in near:
            if before is not group:
                self.breaks.setdefault((before, node), NotFused.FUSED)
        self.join(group, root, found)

    def best(self, root: Sink, near: list[Group]) -> tuple[Group | None, Accepted]:
        """The group that takes a root in: one that it reads from, the latest first, else one of the last of the same size."""
        if not self.fuse or self.is_leaf(root.node):
            self.breaks.update({(g, root.node): NotFused.OFF for g in near})
        elif not isinstance(root.kind, TemplateGroup):
            siblings = islice((g for g in reversed(self.by_size.get(root.kind.size, ())) if g not in root.of), 8)
            for group in (*near, *siblings):
                found = self.accept(group, root)
                if isinstance(found, Accepted):
                    return group, found
                if group in root.of:
                    self.breaks[group, root.node] = found
        else:
            self.breaks.update({(g, root.node): NotFused.OPERAND for g in near})
        return None, Accepted(root.kind, root.kind.place)

    def accept(self, group: Group, root: Sink) -> Accepted | NotFused:
        """How `group` would take a root in, or why it does not."""
        if group.statements + root.cost * self.times(root.node, group.kind) > self.tuning.max_statements:
            return NotFused.LENGTH
        own = root.of.get(group, {})
        places = {group.place[dep] for dep in own}
        if Granularity.CHUNK in places:
            return NotFused.CHUNKS
        found = group.kind.accept(root.kind, Granularity.ROW in places)
        if isinstance(found, NotFused):
            return NotFused.POSITION if found is NotFused.SHAPE and any(UNKNOWN in maps for maps in own.values()) else found
        if self.target.traits.row_groups and isinstance(found.kind, Rows) and found.kind.length:
            return NotFused.SHAPE                               # columns are other work-items' than rows then
        elements = found.place is not Granularity.ROW or isinstance(root.kind, Rows)          # what it reads is read of elements
        row = frozenset((found.kind.cols,)) if elements and isinstance(found.kind, Rows) else ONLY_IDENTITY
        moved = self.moved(group, root)
        if not moved and len({group.moved.get(dep) for dep in own}) > 1:
            return NotFused.POSITION
        for dep, maps in own.items() if not moved else ():
            element = group.place[dep] is Granularity.ELEMENT
            if maps != (ONLY_IDENTITY if element else row) or (element and not elements):
                return NotFused.POSITION
        for other in root.of:
            if other is not group and other.ancestors >> group.number & 1:
                return NotFused.WAITS
        if all(map(is_inline, own)) and not self.timely(group, root):
            return NotFused.WAITS
        if len(group.reads.keys() | (root.reads.keys() - own.keys())) > self.tuning.max_reads:
            return NotFused.BUFFERS
        return found

    def moved(self, group: Group, root: Sink) -> Node | None:
        """The permutation through which alone a root reads a product, if that puts rows where those of the first operand lie in memory.

        (Elsewhere pieces of rows would be written far from each other: a kernel of its own does that block by block, in half of the time.)
        """
        of = root.of.get(group, {}).keys()
        if not isinstance(group.kind, TemplateGroup) or group.lowered_by != "contraction" or of != {group.anchor}:
            return None
        found: Node | None = None
        todo, seen = [root.node], {root.node}
        while todo:
            node = todo.pop()
            if node.fn.name == "permute" and strip(node.operands[0]) is group.anchor:
                if found not in (None, node) or not _like_first_operand(node):
                    return None
                found = node
            elif node is not root.node and (node in self.group_of or group.anchor not in self.deps.get(node, {})):
                if node is group.anchor:
                    return None
            elif node.fn.family == "elementwise" or node.fn.name == "reshape":
                fresh = [o for o in dict.fromkeys(node.operands) if o not in seen]
                if any(o.aval.size != group.size and group.anchor in self.deps.get(o, {}) for o in fresh):
                    return None
                seen.update(fresh)
                todo += fresh
            else:
                return None
        return found

    def timely(self, group: Group, root: Sink) -> bool:
        """Whether a root may share a kernel with what it does not have to: neither then waits for what only the other needs."""
        mask = 0
        for other in root.of:
            if other is not group:
                mask |= other.ancestors | 1 << other.number
        related = group in root.of
        return not mask & ~group.ancestors and (related or not group.ancestors & ~mask or not self.graph.out_degree(root.node))

    def join(self, group: Group, root: Sink, found: Accepted) -> None:
        node = root.node
        if moved := self.moved(group, root) or next((group.moved[d] for d in root.of.get(group, ()) if d in group.moved), None):
            group.moved[node] = moved
        if group.roots:
            group.fused[node] = Fusion.PRODUCER if group in root.of else Fusion.SIBLING
        group.kind, group.place[node] = found.kind, found.place
        of_operand = found.place is not Granularity.ELEMENT and not self.positional.isdisjoint(node.operands)
        group.positional |= node in self.positional or of_operand
        group.roots.append(node)
        group.work += self.costs.get(node, 1) * (node.aval.size if is_inline(node) else group.size)
        group.statements += max(1, root.cost // 4) * self.times(node, found.kind)
        for dep, maps in root.reads.items():
            add(group.reads, dep, maps)
        for other in root.of:
            if other is not group:
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
        fixed = {n for n in order if n in self.forced or n in self.once or not is_inline(n)}
        again = rematerialized(order, self.group_of, self.deps, self.costs, fixed, readers)
        paths: dict[Node, dict[Group, Paths]] = {}          # by which a reader's element would compute the node, were it not stored
        branches: dict[Node, dict[Group, frozenset[object]]] = {}         # and in which branches
        listed = any(self.apart.values())
        for node in reversed(order):
            outside = {g for g in readers.get(node, ()) if g is not self.group_of[node]}
            if node in self.forced:
                self.stored.add(node)
            elif outside:
                longer = max(1, self.costs.get(node, 0) // 4)
                if node not in again or self.repeats(node, paths, branches) or (
                    any(g.statements + longer > self.tuning.max_statements * 5 // 4 for g in outside)
                ):
                    self.stored.add(node)
                else:
                    for g in outside:
                        g.statements += longer
                    for dep in self.deps[node]:
                        readers.setdefault(dep, set()).update(outside)
            computing = {self.group_of[node]: ONLY_HERE} if node in self.stored else paths.get(node, {})
            own = self.paths.get(node, {})
            for dep in self.deps[node]:
                if dep in self.group_of:
                    inner, found = own.get(dep, ONLY_HERE), paths.setdefault(dep, {})
                    for group, outer in computing.items():
                        found[group] = joined(found.get(group), outer, inner)
            if not listed:
                continue
            here = {self.group_of[node]: frozenset[object]((None,))} | (branches.get(node, {}) if node not in self.stored else {})
            for dep in self.deps[node]:
                known = branches.setdefault(dep, {})
                for group, at in here.items():
                    if dep in self.apart.get(node, ()):
                        at = frozenset((node, dep, a) for a in at) if len(at) <= self.tuning.max_again else at
                    known[group] = known.get(group, frozenset()) | at

    def repeats(
        self, node: Node, paths: Mapping[Node, Mapping[Group, Paths]], branches: Mapping[Node, Mapping[Group, frozenset[object]]]
    ) -> bool:
        """Whether a kernel that computes a value again would do so too often, or in too many lines.

        The terms of a sum that is written out are different elements: each is computed once if the kernel has an element for each sum.
        (A single element is the same at all places.)
        """
        if node.aval.size == 1:
            return False
        read = [*paths.get(node, {}).items(), *branches.get(node, {}).items()]
        times = max((len(places) * min(1, group.size / node.aval.size) for group, places in read), default=1)
        lines = max((len(places) for _, places in read), default=1)
        again, small = self.costs.get(node, 0), node.aval.nbytes < self.tuning.fetch_bytes         # a cache has what is small
        return again * (times - 1) > self.tuning.max_again or again * (lines - 1) > self.tuning.max_again * (1 if small else 4)

    def finish(self) -> Schedule:
        """Drop groups that store nothing, find out what the others read."""
        resolved: dict[Node, Reads] = {}

        def reads_of(node: Node) -> Reads:
            """What evaluating an unstored root reads: its own deps, with those of unstored roots put in."""
            stack = [node]
            while stack:
                top = stack[-1]
                pending = [d for d in self.deps[top] if d in self.group_of and d not in self.stored and d not in resolved and d is not top]
                if pending:
                    stack.extend(pending)
                    continue
                stack.pop()
                out: Reads = {}
                for dep, outer in self.deps[top].items():
                    inner = {dep: ONLY_IDENTITY} if dep not in resolved or dep in self.stored or dep is top else resolved[dep]
                    for d, maps in inner.items():
                        add(out, d, frozenset(x for k in outer for x in compose(k, maps)))
                resolved[top] = out
            return resolved[node]

        groups = []
        for group in self.groups:
            group.stored = [s for s in group.roots if s in self.stored]
            if not group.stored:
                continue
            group.reads = {}
            for root in group.roots:
                for dep, maps in reads_of(root).items():
                    if self.group_of.get(dep) is not group:
                        add(group.reads, dep, maps if not group.moved else ONLY_UNKNOWN)
            groups.append(group)
        groups = self.rejoined(groups)
        self.explain(groups)
        return Schedule(in_order(reading(groups, self.group_of, self.stored)), self.group_of, self.stored, self.deps, self.costs)

    def rejoined(self, groups: list[Group]) -> list[Group]:
        """The groups, with those of elements together that only a value kept apart which, as it turned out, is not stored.

        They read some of the same, and wait for the same, so neither waits for the other.
        """
        left = dict.fromkeys(groups)
        earlier_than: dict[Group, int] = {}                  # a bit mask of numbers, as `ancestors`
        for (earlier, reader), why in list(self.breaks.items()):
            pair = {self.group_of[earlier.roots[0]], self.group_of[reader]}
            if why is not NotFused.POSITION or len(pair) < 2 or not pair <= left.keys():
                continue
            first, second = sorted(pair, key=lambda g: g.number)
            if not isinstance(first.kind, Flat) or first.kind != second.kind or first.reads.keys().isdisjoint(second.reads):
                continue
            if first.statements + second.statements > self.tuning.max_statements or len(first.reads | second.reads) > self.tuning.max_reads:
                continue
            if not earlier_than:
                before = reading(groups, self.group_of, self.stored)
                for group in in_order(before):
                    earlier_than[group] = reduce(or_, [earlier_than[g] | 1 << g.number for g in before.predecessors(group)], 0)
            if earlier_than[first] == earlier_than[second]:
                self.merge(first, second)
                del left[second]
                both = 1 << first.number | 1 << second.number
                for group, mask in earlier_than.items():     # what comes after one of them comes after both
                    if mask & both:
                        earlier_than[group] = mask | both
        if len(left) < len(groups):
            self.breaks = {(self.group_of[g.roots[0]], user): why for (g, user), why in self.breaks.items()}
        return list(left)

    def merge(self, group: Group, other: Group) -> None:
        """All of `other` becomes `group`'s."""
        group.fused.update(dict.fromkeys(other.stored, Fusion.SIBLING))
        group.roots += other.roots
        group.stored += other.stored
        group.place.update(other.place)
        group.work += other.work
        group.statements += other.statements
        group.positional |= other.positional
        for dep, maps in other.reads.items():
            add(group.reads, dep, maps)
        for node in other.roots:
            self.group_of[node] = group

    def explain(self, groups: list[Group]) -> None:
        """Note for each group what it is, why its values are one kernel's, and why it does not go on."""
        readers: dict[Node, list[Node]] = {}
        for node in self.group_of:
            for dep in self.deps[node]:
                if dep is not node:
                    readers.setdefault(dep, []).append(node)
        for group in groups:
            fused: dict[Fusion, list[Node]] = {}
            for node, why in group.fused.items():
                fused.setdefault(why, []).append(node)
            asked = dict.fromkeys(f"stores what materialize asks for (line {n.loc.line})" for n in group.stored if n.fn.stored)
            found = [f"over {group.kind}", *asked, *(why.text(nodes) for why, nodes in fused.items())]
            ends = []
            for value in group.stored:
                todo, seen = [value], {value}
                while todo:                                  # down to where another kernel reads it, or what was computed of it again
                    at = todo.pop()
                    for user in readers.get(at, ()):
                        if self.group_of[user] is not group:
                            ends.append(self.breaks[group, user].text(value, user))
                        elif user not in self.stored and user not in seen:
                            seen.add(user)
                            todo.append(user)
            group.why = tuple(dict.fromkeys((*found, *(ends or [NotFused.RESULT.text()]))))


def _like_first_operand(permute: Node) -> bool:
    """Whether the rows of a product's permuted result are in the order in which those of its first operand lie in memory."""
    product, dims = permute.operands[0], permute.attrs["dims"]
    x = strip(product).operands[0]
    order = tuple(sorted(range(len(dims)), key=dims.__getitem__))
    return dims[-1] == len(dims) - 1 and x.fn.name == "permute" and x.attrs["dims"] == order and x.shape[:-1] == product.shape[:-1]


def schedule(graph: Graph, outputs: Iterable[Node], scalars: Mapping[Node, object], target: Target, fuse: bool = True) -> Schedule:
    """The kernels of `graph`. outputs: the nodes that must be stored; scalars: 0-d nodes that are computed on the host."""
    return Scheduler(graph, outputs, scalars, target, fuse).run()
