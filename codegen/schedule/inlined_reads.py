"""What one element of a node reads of other nodes, where what lies between is computed in place. Start at `Reading.inline_deps`.

The scheduler (`fusion.py`) asks this before it puts nodes into groups, and says which nodes have a group by then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from itertools import islice
from math import prod

from tracegrad.codegen.schedule.access_maps import IDENTITY, ONLY_IDENTITY, ONLY_UNKNOWN, UNKNOWN, Reads, access_map, add, compose
from tracegrad.codegen.schedule.grouping import Flat, Group, Kind, cost, is_inline, small_reduction, strip
from tracegrad.graph.ir import Graph, Node
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning

# A path from an element to one of another value that is read for it: the moves (slices, rolls, ...) in between, by number. Different paths
# end at different elements, as far as is known. No more are kept than it takes to see that a value should be stored.
Path = tuple[int, ...]
Paths = frozenset[Path]
NO_MOVE: Path = ()
ONLY_HERE: Paths = frozenset((NO_MOVE,))


def joined(known: Paths | None, outer: Paths, inner: Paths) -> Paths:
    """The paths that are known, and those which go on by `inner` where `outer` ends."""
    new = inner if outer is ONLY_HERE else outer if inner is ONLY_HERE else frozenset([a + b for a in outer for b in inner])
    found = new if known is None else known | new
    most = tuning().max_again + 2
    return found if len(found) <= most else frozenset(islice(found, most))


class Reading:
    """The reads of a graph's nodes, and which nodes must be stored or are worth it."""

    def __init__(self, graph: Graph, outputs: Iterable[Node], scalars: Mapping[Node, object], target: Target, fuse: bool) -> None:
        self.graph, self.target, self.fuse = graph, target, fuse
        self.scalars, self.tuning = scalars, tuning()
        self.outputs = {o for o in outputs if not self.is_leaf(o) or o in scalars or o.fn.name == "const"}
        self.group_of: dict[Node, Group] = {}
        self.deps: dict[Node, Reads] = {}          # of inlined nodes and of roots: what they read, and how
        self.costs: dict[Node, int] = {}
        self.paths: dict[Node, dict[Node, Paths]] = {}      # by which paths one element of a node reads each of its deps
        self.moves: dict[Hashable, int] = {}              # what a path consists of, numbered
        self.apart: dict[Node, set[Node]] = {}            # deps that a node reads in branches which share no arithmetic: of a list, stacked
        self.forced: set[Node] = self.outputs | {n for n in graph if n.fn.stored and n not in scalars}
        self.lists: dict[Node, Flat] = {}         # put together of many parts, each of which has lines of its own
        self.candidates: set[Node] = set()
        self.once: set[Node] = set()              # what takes a random draw or a gather, which are never done twice
        self.positional: set[Node] = set()        # nodes computed with index arithmetic, unless something stored is in between

    # -- kinds of nodes

    def is_leaf(self, node: Node) -> bool:
        return node.fn.family == "leaf" or node in self.scalars

    @cached_property
    def numbers(self) -> dict[Node, int]:
        """The places of nodes in the graph."""
        return {node: i for i, node in enumerate(self.graph)}

    def choose_candidates(self) -> None:
        users: dict[Node, int] = {}
        terms: dict[Node, int] = {}               # how many elements of a node an element of what uses it takes, written out
        for node in reversed(list(self.graph)):
            if self.is_leaf(node) or node.aval.size == 0:
                continue
            count = users.get(node, 0)
            computed = sum(strip(o).fn.family not in ("leaf", "movement") for o in node.operands) if node.fn.name == "concat" else 0
            parts = self.parts(node) if node.fn.name == "concat" else None
            of_many = computed > self.tuning.max_reads // 2
            if of_many or (parts and (not parts.alike or len(parts.parts) > self.tuning.max_reads // 2)):
                self.forced.add(node)                        # put together once, and its parts computed there, once each
            if parts and node in self.forced:
                self.lists[node] = parts
                of_many |= parts.alike
            if node.fn.name in ("pad", "concat") and self.read_around(node):
                self.forced.add(node)
            self.limit_terms(node, terms)
            through = node.fn.family == "movement" and node not in self.forced
            if not self.fuse and node.fn.name != "reshape":
                self.forced.add(node)
            elif is_inline(node) and node.fn.family not in ("movement", "index") and count > 1:
                self.candidates.add(node)
            for o in dict.fromkeys(node.operands):
                repeats = node.aval.size > o.aval.size and is_inline(node) and node.fn.family != "pair" and not of_many
                repeats = repeats and (access_map(o, node.shape, node.aval.size) == UNKNOWN or small_reduction(strip(o)))
                reads = (count if through else 1) * node.fn.read_places
                users[o] = users.get(o, 0) + reads + (1 if repeats and node.fn.family != "reduction" else 0)
            if node.fn.family == "contraction":
                for o in node.operands:
                    self.force_base(o)
            elif node.fn.family == "gather" and in_many_places(node):
                self.forced.add(strip(node.operands[0]))
            elif node.fn.family == "fourier":                # reads each element once: what takes little is computed there
                for o in node.operands:
                    if not self.is_leaf(strip(o)) and self.takes(o) > self.tuning.max_again:
                        self.forced.add(strip(o))
            elif not is_inline(node) and node.fn.family not in ("reduction", "partial", "arg_reduction"):
                for o in node.operands:
                    if node.fn.family in ("scan", "recurrence") and self.in_turn(o):
                        continue                             # likewise
                    if node.fn.family == "opencl_call" and o in self.scalars:
                        continue                             # passed by value
                    if self.target.traits.long_items and node.fn.family == "scatter" and read_once(node, o):
                        continue
                    if (not self.is_leaf(strip(o)) and o.aval.size) or strip(o) in self.scalars or strip(o).fn.name == "const":
                        self.forced.add(strip(o))

    def read_around(self, node: Node) -> bool:
        """Whether rows with something at their ends are read where no loop can be cut so that tests are certain (`peeled`): from several
        columns on by a kernel that is long, or has lines for each part of a list, or as windows that are too large to be written out.
        There each vector would be read lane by lane; of rows that are stored it is a vector.
        """
        if node.fn.name == "pad":
            ends = any(any(node.attrs[what][-1:]) for what in ("low", "high", "interior"))
        else:
            ends = node.attrs["dim"] == len(node.shape) - 1
        if not ends or not self.target.traits.vectors:
            return False
        most = 4 * self.tuning.max_statements // 3           # of three loops: the inside and both ends
        flops, starts, windows, todo = 0, set[int](), {node: 1}, [node]
        while todo and len(windows) <= 4 * most and (flops <= most or len(starts) < 3):
            reads = todo.pop()
            for user in self.graph.users(reads):
                if user in self.lists and self.lists[user].alike:
                    flops += most + 1
                if user in windows or user in self.forced or not is_inline(user):
                    continue
                windows[user] = windows[reads] * (user.attrs["size"] if user.fn.name == "unfold" else 1)
                if windows[user] > self.tuning.unrolled:
                    return True
                if user.fn.name == "slice":
                    starts.add(user.attrs["start"][-1])
                flops += cost(user)
                todo.append(user)
        return flops > most and len(starts) > 2

    def parts(self, node: Node) -> Flat | None:
        """What a list of many parts is computed as by long work-items, and one of long parts that are made of others in own rows."""
        dim = node.attrs["dim"]
        sizes = tuple([prod(o.shape[dim:]) for o in node.operands if o.aval.size])
        own_rows = prod(node.shape[:dim]) == 1 and min(sizes, default=0) >= self.tuning.item and any(
            strip(o).fn.name in ("concat", "pad") and o is not strip(o) for o in node.operands)
        return Flat(node.aval.size, sizes) if self.target.traits.long_items and (len(sizes) > self.tuning.ranges or own_rows) else None

    def times(self, node: Node, kind: Kind) -> int:
        """How often a kernel of that kind has the lines that compute a root: of a list, each part has its own."""
        return max(1, len(kind.parts)) if isinstance(kind, Flat) and node not in self.lists else 1

    def limit_terms(self, node: Node, terms: dict[Node, int]) -> None:
        """Store a reduction that is written out if what it is a term of is written out, too, and they are too many together."""
        if not is_inline(node):
            return
        each = node.operands[0].aval.size // node.aval.size if node.fn.family == "reduction" else 1
        if terms.get(node, 1) > 1 and each > 1 and terms[node] * each > self.tuning.unrolled:
            self.forced.add(node)
        count = each * (1 if node in self.forced else terms.get(node, 1))
        for o in node.operands if count > 1 else ():
            terms[o] = max(terms.get(o, 1), count)

    def force_base(self, node: Node) -> None:
        """A contraction reads its operands through transposes and casts; anything more is stored first."""
        while True:
            if self.is_leaf(node) or not is_inline(node) or node.aval.size == 0 or node.fn.family == "index":
                return
            single = node.fn.family == "movement" and len(node.operands) == 1
            if not (single or (node.fn.name == "cast" and node.operands[0].dtype.itemsize <= node.dtype.itemsize)):
                self.forced.add(node)
                return
            node = node.operands[0]

    def takes(self, node: Node) -> int:
        """What an element costs, down to what is stored for certain, if not much more than what may be done again."""
        total, seen, todo = 0, {node}, [node]
        while todo and total <= self.tuning.max_again:
            node = todo.pop()
            if self.is_leaf(node) or not is_inline(node) or node in self.forced:
                continue
            total += cost(node) + (node.fn.family == "movement")
            fresh = [o for o in node.operands if o not in seen]
            seen.update(fresh)
            todo += fresh
        return total

    def in_turn(self, node: Node) -> bool:
        """Whether a scan on a CPU computes an operand itself: it takes little, and vectors of it are vectors of what is stored.

        (Of a transposed matrix each lane is a read of its own: its scan took 1.3 of the time. Of rows with something at their ends, 2.)
        """
        if not self.target.traits.long_items or strip(node).fn.family == "leaf" or self.takes(node) > self.tuning.max_again:
            return False
        seen, todo = {node}, [node]
        while todo:
            node = todo.pop()
            if self.is_leaf(node) or node in self.forced:
                continue
            in_place = node.fn.family in ("elementwise", "index") or node.fn.name in ("slice", "reshape", "expand")
            if not in_place:
                return False
            fresh = [o for o in node.operands if o not in seen]
            seen.update(fresh)
            todo += fresh
        return True

    def external(self, node: Node) -> tuple[Reads, int]:
        """What a user of `node` reads, and the arithmetic it repeats."""
        if node in self.group_of:
            return {node: ONLY_IDENTITY}, 0
        return self.deps.get(node, {}), self.costs.get(node, 0)

    def inline_deps(self, node: Node) -> tuple[Reads, int]:
        size, flops = node.aval.size, cost(node)
        each = flops if node.fn.family == "reduction" else 1     # elements of an operand that one of `node` takes
        out: Reads = {}
        paths: dict[Node, Paths] = {}
        apart: set[Node] = set()
        side_by_side = node in self.lists and self.lists[node].alike         # in one loop: each part finds what another has computed
        if node.fn.family == "index" or not self.positional.isdisjoint(node.operands):
            self.positional.add(node)
        for number, o in enumerate(dict.fromkeys(node.operands)):
            if o.aval.size == 0:
                continue
            deps, inner = self.external(o)
            flops += each * inner
            if node.fn.family == "elementwise" or node.fn.name == "expand":
                how = access_map(o, node.shape, size)
            else:
                here = node.fn.name == "reshape" or node.fn.family == "pair" or is_own_index(node, o)
                how = IDENTITY if here else UNKNOWN
            if how == UNKNOWN:
                self.positional.add(node)
            moves = ONLY_HERE
            if how == UNKNOWN:
                move: Hashable = (node.fn, *node.attrs.items()) if side_by_side else (o.aval.size, each) if each > 1 else (
                    node.fn, *node.attrs.items(), number, o.shape, node.shape)
                several = min(each * node.fn.read_places, self.tuning.max_again + 2)
                moves = frozenset([(self.moves.setdefault((move, i), len(self.moves)),) for i in range(several)])
            inside = {} if o in self.group_of else self.paths.get(o, {})
            if not out and how == IDENTITY:
                out, paths = dict(deps), {dep: inside.get(dep, ONLY_HERE) for dep in deps}
            else:
                for dep, maps in deps.items():
                    paths[dep] = joined(paths.get(dep), moves, inside.get(dep, ONLY_HERE))
                    add(out, dep, compose(how, maps))
            if node.fn.name == "concat" and len(node.operands) > 3 and not side_by_side:
                apart.update(deps)
            elif o not in self.group_of:
                apart |= self.apart.get(o, set())
        self.paths[node], self.apart[node] = paths, apart
        return out, flops

    def in_many_parts(self, node: Node, flops: int) -> bool:
        """Whether the items of a list, or the terms of a sum that is written out, are too much for one kernel.

        Each may be as long as a kernel may be, and all are written one below the other: drivers would take minutes to compile that. (What
        is computed of two or three values is no longer than they are together.) And for each element all items are computed.
        """
        if node.fn.name != "concat" and node.fn.family != "reduction":
            return False
        several = node.fn.name == "concat" and node not in self.lists and len(node.operands) > self.tuning.ranges
        wasted = several and flops * node.aval.size > self.tuning.list_work
        return wasted or flops > 4 * self.tuning.max_statements

    def sink_deps(self, node: Node) -> tuple[Reads, int]:
        """Of a reduction: relative to its operand's elements. Of a scatter's base: of the result's. Of anything else: anyhow."""
        out: Reads = {}
        flops = 1
        for o in dict.fromkeys(node.operands):
            deps, inner = self.external(o)
            flops += inner
            keep = node.fn.family in ("reduction", "partial") or (node.fn.family == "scatter" and o not in node.operands[1:])
            for dep, maps in deps.items():
                add(out, dep, maps if keep else ONLY_UNKNOWN)
        return out, flops


def is_own_index(gather: Node, operand: Node) -> bool:
    """Whether a gather reads in an operand where each of its own elements lies: so a search, gather after gather, is one kernel."""
    return gather.fn.family == "gather" and operand is not gather.operands[0] and operand.aval.size == gather.aval.size


def in_many_places(gather: Node) -> bool:
    """Whether what a gather reads is put together of several parts, each of which it would look at for every element.

    And for every lane: the kernel of a median of 9 neighbours took 0.7 s to build. Of many more elements than it reads nothing is copied.
    """
    table = strip(gather.operands[0])
    parts = len(table.operands)
    return table.fn.name == "concat" and parts > 2 and parts * gather.aval.size >= table.aval.size


def read_once(scatter: Node, operand: Node) -> bool:
    """Whether a scatter on a CPU (lower/search/scatter.py) computes an operand itself: the constant it begins with, or adds, rows that
    take little; and, where one owner reads each index once, the check of indices that are in memory."""
    base, index, source = scatter.operands
    alone = base.aval.size < base.shape[0] * tuning().scatter_skip
    if operand is index:
        return alone and operand is not source and operand.fn.name == "in_range" and strip(operand.operands[0]).fn.family == "leaf"
    if _is_constant(operand):
        return operand is not source or operand is not base
    return operand is source and operand is not base and not alone and cost(strip(operand)) < tuning().costly


def _is_constant(node: Node) -> bool:
    return node.fn.name == "expand" and node.operands[0].fn.name == "const"
