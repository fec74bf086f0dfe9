"""What a lowering is given, and the table of them by kind of group. Start at `Context` and `LOWERINGS`.

A lowering is a function (group, context) -> kernels in launch order. The context says where nodes are stored, makes writers
and evaluators for a kernel, and gives out entry names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import cache
from typing import Any

from tracegrad.codegen.kernel.elements import Storage
from tracegrad.codegen.kernel.evaluator import Evaluator
from tracegrad.codegen.kernel.index.index import Index, ravel, unravel
from tracegrad.codegen.kernel.ir.kernel import Kernel, LoweredLoop, RuntimeScalar
from tracegrad.codegen.kernel.ir.vectors import index_type
from tracegrad.codegen.kernel.statement_passes import finish
from tracegrad.codegen.kernel.text.names import entry_of
from tracegrad.codegen.kernel.writer import Namer, Writer
from tracegrad.codegen.lower.user_sources import UserSources
from tracegrad.codegen.schedule.grouping import Flat, Granularity, Group, Schedule
from tracegrad.graph.ir import Graph, Node, topological
from tracegrad.graph.primitive import numpy_time
from tracegrad.support.plan import Computed, Fault, HostStep, Target


class Context:
    """What lowerings need to know of the plan that is being made.

    alias: nodes that are written into the buffer of an input or of another node, with that. varying: sizes that vary.
    """

    def __init__(
        self, schedule: Schedule, target: Target, namer: Namer, scalars: dict[Node, RuntimeScalar], alias: Mapping[Node, Node],
        varying: frozenset[int] = frozenset()
    ) -> None:
        self.schedule, self.target, self.namer, self.scalars, self.alias = schedule, target, namer, scalars, alias
        self.varying = varying
        self.for_one_size: list[str] = []                    # kernels in forms that sizes which vary do not share
        self.entries: dict[str, str] = {}                    # kernels, each with what it is called after
        self.numbers: dict[str, int] = {}
        self.places: dict[Node, int] = {}
        self.called: set[Any] = set()                # calls with several results that were lowered already
        self.user_sources = UserSources()
        self.constants: list[Any] = []               # values of by-value arguments that are known now
        self.faults: dict[Node, Fault] = {}          # ops that report -> the place in FAULTS
        self.reporters: dict[Node, tuple[Node, ...]] = {}      # those of them in a loop's body -> the loop's results
        self.prepared: Callable[[Graph], Graph] = lambda graph: graph      # the passes, for the bodies of loops
        self.fixed: frozenset[Node] = frozenset()    # the inputs that are the same in all iterations of the loop
        self.found: dict[Group, Callable[[Node], Storage | None]] = {}        # see `storage`
        self.computed: dict[Group, list[Node]] = {}                           # see `computed`

    def inside(self, plan: Schedule, fixed: Iterable[Node], alias: Mapping[Node, Node]) -> Context:
        """The context of a loop's body, whose kernels are of the same program; fixed: the constants of the loop."""
        inner = copy(self)
        inner.schedule, inner.alias, inner.called, inner.fixed = plan, alias, set(), frozenset(fixed)
        inner.found, inner.computed = {}, {}
        return inner

    def noted(self) -> list[Any]:
        """What lowerings have noted so far: see `forget_but`."""
        return [copy(each) for each in self._notes]

    def forget_but(self, noted: list[Any]) -> None:
        """Have noted no more than that. (The tables stay the same ones, since the contexts of loops' bodies share them.)"""
        for own, before in zip(self._notes, noted, strict=True):
            own.clear()
            if isinstance(own, list):
                own += before
            else:
                own.update(before)

    @property
    def _notes(self) -> list[Any]:
        sources = self.user_sources
        return [self.entries, self.numbers, self.called, self.constants, self.faults, self.reporters, self.for_one_size,
                sources.named, sources.names]

    def steady(self, node: Node) -> bool:
        """Whether a value is the same in all iterations of the loop whose body this is."""
        if not self.fixed:
            return False
        leaves = [n for n in topological([node], self.fixed.__contains__) if not n.operands or n in self.fixed]
        return any(n in self.fixed for n in leaves) and all(n in self.fixed or n.constant for n in leaves)

    def place(self, node: Node) -> int:
        """The node's number in the program, as `plan.Computed` has it."""
        return self.places.setdefault(node, len(self.places))

    def constant(self, value: Any, dtype: Any) -> RuntimeScalar:
        """A by-value argument with a value that is known now: a run-time scalar that always gets it."""
        self.constants.append(value)
        return RuntimeScalar(len(self.scalars) + len(self.constants) - 1, dtype)

    def fault(self, node: Node) -> Fault:
        """The place in FAULTS where kernels report what is wrong with `node`."""
        return self.faults.setdefault(node, Fault(len(self.faults)))

    def entry(self, group: Group) -> str:
        """A fresh kernel name, after the value it computes, or the input that it updates."""
        stored = [group.into.get(s, s) for s in group.stored]
        last = stored[-1]
        updated = self.alias.get(last)
        given = "" if updated is None else self.namer(updated) or updated.attrs.get("label", "")
        base = given or self.namer(last) or next((b for s in reversed(stored) if (b := self.namer(s))), "") or last.fn.name
        if base == "partial":
            base = f"{self.namer(last) or last.attrs['op'].name}{'_partial' * (group.place[last] is Granularity.CHUNK)}"
        return self.fresh(entry_of(base))

    def fresh(self, base: str) -> str:
        """A kernel name that no other has."""
        while True:
            n = self.numbers[base] = self.numbers.get(base, -1) + 1
            entry = f"{base}_k{n}"
            if entry not in self.entries and entry not in self.user_sources.names:
                self.entries[entry] = base
                return entry

    def another(self, entry: str) -> str:
        """A name like that of another kernel."""
        return self.fresh(self.entries.get(entry, entry))

    def ref(self, node: Node) -> Node:
        """What a parameter that holds `node`'s buffer binds to."""
        return self.alias.get(node, node)

    def storage(self, group: Group) -> Callable[[Node], Storage | None]:
        """Where the kernel of `group` finds what it does not compute."""
        known = self.found.get(group)
        if known is not None:
            return known
        whole, schedule, scalars, alias = group.part_of or group, self.schedule, self.scalars, self.alias
        written = {self.ref(s) for s in whole.stored}

        @cache
        def find(node: Node) -> Storage | None:
            own = schedule.group_of.get(node)
            if own is whole or node in group.into:            # (another kernel may store the same slice)
                return None
            if (node.fn.name in ("placeholder", "data") and node not in scalars) or node in schedule.stored:
                ref = alias.get(node, node)
                return Storage(ref, "inout" if ref in written else "const")
            return None

        self.found[group] = find
        return find

    def output(self, group: Group, node: Node) -> Storage:
        """Where `group` writes `node`."""
        whole = group.into.get(node, node)
        ref = self.ref(whole)
        return Storage(ref, "inout" if ref is not whole else "out")

    def at(self, group: Group, node: Node, flat: Index) -> Index:
        """Where there element `flat` of `node` is: of a slice, at its place in the whole."""
        if node not in group.into:
            return flat
        places = zip(unravel(flat, node.shape), node.attrs["start"], strict=True)
        return ravel([i + start for i, start in places], group.into[node].shape)

    def store(self, ev: Evaluator, group: Group, roots: Iterable[Node], at: Index) -> None:
        """Element `at` of each of these results. All are computed, then all written: one may lie where another's operand was."""
        values = {root: [ev.value(x, at) for x in (root.operands if root.fn.family == "pair" else (root,))] for root in roots}
        for root, found in values.items():
            write: Callable[..., None] = ev.store_pair if root.fn.family == "pair" else ev.store
            write(self.output(group, root), group.into.get(root, root), self.at(group, root, at), *found)

    def writer(self, group: Group, index: str = "int") -> Writer:
        """The writer of a kernel of the group. index: the type that indices need at least."""
        storage = self.storage(group)
        computed = topological(group.roots, lambda n: storage(n) is not None)      # an element of one that is larger may be picked
        sizes = [group.size, *(n.aval.size for n in (*group.reads, *computed, *group.into.values()))]
        writer = Writer(self.target, self.namer, index if index == "long" else index_type(*sizes))
        writer.held = frozenset(writer.base(n) for n in (*group.reads, *group.stored))
        return writer

    def evaluator(self, group: Group, writer: Writer) -> Evaluator:
        evaluator = Evaluator(writer, self.storage(group), self.scalars)
        evaluator.stored, evaluator.fault = frozenset(group.stored), self.fault
        return evaluator

    def finish(
        self, group: Group, writer: Writer, global_size: tuple[int, ...], local_size: tuple[int, ...] | None, required: bool = False,
        entry: str = ""
    ) -> Kernel:
        """The kernel of what `writer` holds; required: it is right for work-groups of that size only; entry: its name, if it has one."""
        entry = entry or self.entry(group)
        finish(writer)
        writer.blocks[0].memo = {}                           # what was only needed to write it
        return Kernel(entry, tuple(writer.params.values()), writer.blocks[0], global_size, local_size, flops(group), traffic(group),
                      helpers=frozenset(writer.helpers), why=group.why, group=local_size if required else None,
                      clang=writer.target.clang_builtins)


def traffic(group: Group) -> int:
    """Bytes a group reads and writes: of what is much larger than all that it computes, only elements (a few for each)."""
    flat = isinstance(group.kind, Flat)
    read = sum(n.dtype.itemsize * (min(n.aval.size, 8 * group.size) if flat else n.aval.size) for n in group.reads)
    return read + sum(n.aval.nbytes for n in group.stored)


def flops(group: Group) -> int:
    """Arithmetic of a group, roughly: what each root costs an element, over the elements it is computed for."""
    return group.work


_FORMULA = 100.0                            # ns of numpy's for an element of what has branches, or loops until it converges: lgamma & co


def slow(group: Group, nodes: list[Node]) -> int:
    """Nanoseconds that a CPU's core takes, about, where that is not flops and bytes (lower/search/sort.py tells its own). nodes:
    `computed`."""
    if group.lowered_by == "selection":
        return 2 * group.anchor.operands[0].aval.size
    if group.lowered_by == "small_matrices":
        return int(numpy_time(group.anchor))
    formulas = (n for n in nodes if n.fn.family == "elementwise" and n.fn.cost >= _FORMULA)
    return 8 * sum(n.aval.size for n in formulas)


Steps = list[Kernel | HostStep | LoweredLoop]
Lowering = Callable[[Group, Context], Steps]
LOWERINGS: dict[type | str, Lowering] = {}
TARGET_LOWERINGS: dict[tuple[type | str, str], Callable[[Group, Context], Steps | None]] = {}    # and `DeviceKind.kernels`: tried first


def lowering(*kinds: type | str, on: str = "") -> Callable[[Any], Any]:
    """Decorator: the function lowers groups of these kinds (classes of `grouping.Kind`), or those that ops of these families anchor.

    on: for devices that take these kernels only (`DeviceKind.kernels`); where it returns None, the function for any device does.
    """

    def attach(fn: Any) -> Any:
        for kind in kinds:
            if on:
                TARGET_LOWERINGS[kind, on] = fn
            else:
                LOWERINGS[kind] = fn
        return fn

    return attach


def computed(group: Group, context: Context) -> list[Node]:
    """What a group computes: the nodes of its results, down to what is stored."""
    known = context.computed.get(group)
    if known is not None:
        return known
    find, stops = context.storage(group), dict[Node, bool]()

    def given(node: Node) -> bool:
        stops[node] = found = node in context.scalars or node.fn.family in ("leaf", "index") or find(node) is not None
        return found

    found = context.computed[group] = [n for n in topological(group.roots, given) if not stops[n]]
    return found


def operations(nodes: list[Node], context: Context) -> tuple[Computed, ...]:
    """What `plan.Launch.fused` tells of these."""
    shown = [n for n in nodes if n.fn.family != "movement"] or nodes
    return tuple([(n.fn.name, n.loc.line, n.loc.derived, n.loc.filename, context.place(n)) for n in shown])
