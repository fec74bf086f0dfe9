"""Equal groups are lowered once: what the first was lowered to is bound to the buffers of the others. Start at `lower_all`.

The steps of a program that was written as a loop are groups of the same form on other values. What a group's kernels look like depends
on nothing but its `form`: its operations and their places, with everything that it is given numbered. So the kernels of the first of
several equal groups are those of the others, with other buffers; `assemble.distinct` then makes one function of them.
Products that are alike but for the rows of a stack which they read differ in what is added to that buffer's index: two are lowered, which
tell where such a number is, and the kernels of the others are those of the first, with other numbers there (`Stack`).
With `config.check` (always in the tests) each is lowered as well, and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracegrad.codegen.kernel.elements import Storage
from tracegrad.codegen.kernel.index.facts import DIVIDES, MAY_WRAP, NARROW_ANGLE, NEVER_POSITIVE, Fact, only, picked
from tracegrad.codegen.kernel.index.index import Var
from tracegrad.codegen.kernel.ir.kernel import Kernel, LoweredLoop, RuntimeScalar, Temp
from tracegrad.codegen.kernel.ir.vectors import WIDTHS
from tracegrad.codegen.kernel.text.markup import offsets_in, renamed, with_offsets
from tracegrad.codegen.lower.context import Context, operations
from tracegrad.codegen.lower.group_kernels import lower
from tracegrad.codegen.planning.batch_launches import is_serial
from tracegrad.codegen.schedule.grouping import Group, Rows, TemplateGroup, is_reduction, small_reduction
from tracegrad.config import config
from tracegrad.errors import CompilerBug
from tracegrad.graph.canonical import contribution
from tracegrad.graph.ir import Node, topological
from tracegrad.support.plan import Fault, HostStep
from tracegrad.support.tuning import tuning


@dataclass
class Form:
    """What the kernels of a group depend on (`key`), the nodes that it counts, and those of them that are computed, in order.

    carried: the facts that the key tells, and of which nodes.
    row: the key without where the rows begin that it reads of one stack, and where that is, in elements; None if it reads no such rows.
    """

    key: Hashable
    nodes: list[Node]
    computed: list[Node]
    carried: set[tuple[Fact, Node]]
    row: tuple[Hashable, int] | None = None


FACTS = (NEVER_POSITIVE, NARROW_ANGLE, DIVIDES, MAY_WRAP, small_reduction)           # what kernels may depend on beyond a group


def lower_all(groups: Sequence[Group], context: Context) -> list[Kernel | HostStep | LoweredLoop]:
    """The kernels of all groups, in order."""
    forms = [form_of(group, context) for group in groups] if config.fuse else [None] * len(groups)
    count = Counter(form.key for form in forms if form is not None)
    stacks = Counter(form.row[0] for form in forms if form is not None and form.row is not None and count[form.key] == 1)
    known: dict[Hashable, tuple[Form, list[Kernel]]] = {}
    stacked: dict[Hashable, Stack] = {}
    steps: list[Kernel | HostStep | LoweredLoop] = []
    for group, form in zip(groups, forms, strict=True):
        if form is not None and form.row is not None and count[form.key] == 1 and stacks[form.row[0]] > tuning().repeats:
            steps += stacked.setdefault(form.row[0], Stack(context)).kernels(group, form, form.row[1])
        elif form is None or count[form.key] == 1:
            steps += lowered(group, form, context)
        elif form.key in known:
            steps += again(*known[form.key], group, form, context)
        else:
            made = lowered(group, form, context)
            steps += made
            kernels = [k for k in made if isinstance(k, Kernel)]
            # A few small kernels are better merged than shared, and each then shows its own names.
            if count[form.key] > tuning().repeats or not all(map(is_serial, kernels)):
                known[form.key] = form, kernels
    return steps


def lowered(group: Group, form: Form | None, context: Context) -> list[Kernel | HostStep | LoweredLoop]:
    """The kernels of a group by itself. With `config.check`, they may depend on no fact that its form does not tell."""
    with only(None if form is None or not config.check else form.carried):
        return lower(group, context)


def again(form: Form, kernels: list[Kernel], group: Group, own: Form, context: Context) -> list[Kernel]:
    """The kernels of a group whose form is that of an earlier one, which has `kernels`."""
    out = []
    for kernel, changes in zip(kernels, rebound(form, kernels, group, own, context), strict=True):
        if is_serial(kernel) or context.target.traits.idle_launches:         # it may be merged, and one of a merged kernel lends its name
            changes["entry"] = context.entry(group)
        out.append(kernel.bound(**changes))
    if config.check:
        compare(out, lowered(group, own, context))
    return out


def rebound(form: Form, kernels: list[Kernel], group: Group, own: Form, context: Context) -> list[dict[str, Any]]:
    """What the kernels of `form`, each, are to be bound to, and what else becomes of them, to be those of `own`."""
    new = dict(zip(form.nodes, own.nodes, strict=True))
    numbers = {scalar.index: context.scalars[new[n]].index for n in form.nodes if (scalar := context.scalars.get(n)) is not None}
    faults = {context.faults[n].index: new[n] for n in form.nodes if n in context.faults}

    def bound(ref: Any) -> Any:
        if isinstance(ref, Node):
            return new[ref]
        if isinstance(ref, RuntimeScalar):
            return replace(ref, index=numbers.get(ref.index, ref.index))         # (of a value that is known now, it is the same)
        if isinstance(ref, Fault):
            return context.fault(faults[ref.index])
        assert isinstance(ref, Temp)
        return replace(ref, owner=new[ref.owner]) if isinstance(ref.owner, Node) else ref      # else FAULTS

    out = [{"refs": tuple(map(bound, kernel.refs)), **({"why": group.why} if kernel.why else {})} for kernel in kernels]
    if out:
        out[-1]["fused"] = operations(own.computed, context)
    return out


class Stack:
    """Products that read row after row of a stack, and are alike but for that."""

    def __init__(self, context: Context) -> None:
        self.context = context
        # Of the first two: where their rows begin, what they were lowered to, and which names were given to that.
        self.seen: list[tuple[Form, int, list[Any], list[str]]] = []
        self.moves: list[list[bool]] | None = None           # for each kernel of the first, which of its numbers the rows' beginning is in

    def kernels(self, group: Group, form: Form, start: int) -> list[Any]:
        """The kernels of the next one, whose rows begin there."""
        context = self.context
        if len(self.seen) < 2 or self.moves is None:
            before = len(context.entries)
            self.seen.append((form, start, lowered(group, form, context), list(context.entries)[before:]))
            if len(self.seen) == 2:
                self.moves = self.compared()
            return self.seen[-1][2]
        first, begin, kernels, (called,) = self.seen[0]
        name, out = context.entry(group), []
        for kernel, moves, changes in zip(kernels, self.moves, rebound(first, kernels, group, form, context), strict=True):
            refs = [replace(r, name=renamed(r.name, called, name)) if isinstance(r, Temp) else r for r in changes.pop("refs")]
            made = kernel.bound(refs, **changes, entry=renamed(kernel.entry, called, name), note=renamed(kernel.note, called, name))
            numbers = [n.value + (start - begin) * moved for n, moved in zip(offsets_in(kernel.form), moves, strict=True)]
            out.append(made.with_offsets(numbers))
        if config.check:
            compare(out, lowered(group, form, context))
        return out

    def compared(self) -> list[list[bool]] | None:
        """`moves`; None if the kernels of the first two differ in more than where the rows begin."""
        (_, begin, kernels, names), (_, start, others, _) = self.seen
        if len(names) != 1 or len(kernels) != len(others):
            return None
        found = []
        for a, b in zip(kernels, others, strict=True):
            if type(a) is not Kernel or type(b) is not Kernel:
                return None
            if any(getattr(a, what) != getattr(b, what) for what in ("global_size", "local_size", "flops", "bytes", "slow", "helpers")):
                return None
            if with_offsets(a.form, lambda: "#") != with_offsets(b.form, lambda: "#"):
                return None
            numbers = list(zip(offsets_in(a.form), offsets_in(b.form), strict=True))
            if any(x != y and (x.ends or y.value - x.value != start - begin) for x, y in numbers):
                return None
            found.append([x != y for x, y in numbers])
        return found


def compare(given: Sequence[Kernel], wanted: Sequence[Any]) -> None:
    """Raise if kernels that were taken from another group are not what their own would have."""
    for a, b in zip(given, wanted, strict=True):
        for what in ("outline", "bound", "global_size", "local_size", "flops", "bytes", "slow", "helpers", "fused", "why"):
            x, y = ([_unnamed(r) for r in k.refs] if what == "bound" else getattr(k, what) for k in (a, b))
            if x != y:
                raise CompilerBug(f"lowering_cache: equal groups differ ({what} of {a.entry}):\n{x}\n{y}\n{a.text}\n{b.text}")


def _unnamed(ref: Any) -> Any:
    """A Temp without its name, which is made of that of its kernel."""
    return (ref.owner, ref.size, ref.dtype) if isinstance(ref, Temp) else ref


def form_of(group: Group, context: Context) -> Form | None:
    """The form of a group; None where its kernels may depend on more."""
    kind = group.kind
    if isinstance(kind, TemplateGroup) and kind.is_call:
        return None
    schedule, find = context.schedule, context.storage(group)
    given: dict[Node, Storage | None] = {}

    def stops(node: Node) -> bool:
        if node in context.scalars:
            return True
        given[node] = found = find(node)
        return found is not None

    nodes = topological(group.roots, stops)
    number = {n: i for i, n in enumerate(nodes)}

    def at(node: Node) -> int:
        """The number of a node, a new one for a buffer that a value is in."""
        if node not in number:
            number[node] = len(nodes)
            nodes.append(node)
        return number[node]

    own = set(group.roots)
    rows = rows_of(group, nodes, given)
    parts: list[Any] = []
    computed: list[Node] = []
    carried: set[tuple[Fact, Node]] = set()
    for node in list(nodes):
        fn, family = node.fn, node.fn.family
        if node in context.scalars:
            parts.append(("scalar", node.aval, context.scalars[node].dtype))
            continue
        stored = given[node]
        if stored is not None:
            value = contribution(node) if fn.name == "const" else ()     # is written out, though it is in a buffer, too
            parts.append(("stored", node.aval, at(stored.ref), stored.access, value))
            continue
        if family not in ("leaf", "index"):
            computed.append(node)
        facts = [fact for fact in FACTS if fact.concerns(node)]
        carried.update((fact, node) for fact in facts)
        if isinstance(kind, Rows) and node in own and is_reduction(node) and _picks(node, kind):
            return None
        place = (group.place[node], node in schedule.stored, schedule.costs.get(node)) if node in own else node in schedule.group_of
        own_part = (fn, node.aval) if node is rows else contribution(node)       # where its rows begin is an operand
        parts.append((own_part, tuple([number[o] for o in node.operands]), place, *[fact(node) for fact in facts]))
    into = [(at(s), at(context.alias[s])) if s in context.alias else at(s) for s in (group.into.get(s, s) for s in group.stored)]
    reads = sorted((at(d), tuple(sorted(relations)), d.aval) for d, relations in group.reads.items())
    key = (number[kind.node] if isinstance(kind, TemplateGroup) else kind, tuple([number[s] for s in group.roots]), tuple(into),
           tuple([r[:2] for r in reads]), tuple([r[2] for r in reads]), group.work, group.positional, tuple(parts))
    if rows is None:
        return Form(key, nodes, computed, carried)
    start = rows.attrs["start"][0] * (rows.operands[0].aval.size // rows.operands[0].shape[0])
    return Form((key, start), nodes, computed, carried, (key, start))


def rows_of(group: Group, nodes: list[Node], given: Mapping[Node, Storage | None]) -> Node | None:
    """The slice by which a product reads rows of a stack that it reads nothing else of. None if it begins there, or where a vector may not.

    (What is lowered depends on where an index begins by whether vectors do, too.)
    """
    if not isinstance(group.kind, TemplateGroup) or group.lowered_by != "contraction":
        return None
    found = [n for n in nodes if n.fn.name == "slice" and given.get(n) is None and given.get(n.operands[0]) is not None
             and n.attrs["start"][0] and n.shape[1:] == n.operands[0].shape[1:] and n.attrs["step"][0] == 1]
    if len(found) != 1:
        return None
    node, = found
    stack = node.operands[0]
    stored = given[stack]
    alone = stored is not None and stored.access == "const" and sum(s is not None and s.ref is stored.ref for s in given.values()) == 1
    alone = alone and sum(stack in n.operands for n in nodes if given.get(n) is None) == 1
    begins = node.attrs["start"][0] * (stack.aval.size // stack.shape[0])
    return node if alone and begins % (4 * max(WIDTHS)) == 0 else None


def _picks(node: Node, kind: Rows) -> bool:
    return picked(node, Var("row", kind.rows).index, Var("col", kind.cols).index) is not None
