"""Equal groups are lowered once: what the first was lowered to is bound to the buffers of the others. Start at `lower_all`.

The steps of a program that was written as a loop are groups of the same form on other values. What a group's kernels look like depends
on nothing but its `form`: its operations and their places, with everything that it is given numbered. So the kernels of the first of
several equal groups are those of the others, with other buffers; `assemble.distinct` then makes one function of them.
With `config.check` (always in the tests) each is lowered as well, and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.elements import Storage
from tracegrad.codegen.kernel.facts import NARROW, divides, largest, never_positive, picked
from tracegrad.codegen.kernel.index import Var
from tracegrad.codegen.kernel.ir import Kernel, RuntimeScalar, Temp, Turns
from tracegrad.codegen.lower.context import Context, lower, operations
from tracegrad.codegen.plan.batch_launches import is_serial
from tracegrad.codegen.schedule.grouping import Anchored, Group, Rows, is_reduction, small_reduction
from tracegrad.codegen.tuning import tuning
from tracegrad.config import config
from tracegrad.errors import CompilerBug
from tracegrad.ir import Node, topological
from tracegrad.ops.ranges import may_wrap
from tracegrad.plan import Fault, HostStep


@dataclass
class Form:
    """What the kernels of a group depend on (`key`), the nodes that it counts, and those of them that are computed, in order."""

    key: Hashable
    nodes: list[Node]
    computed: list[Node]


def lower_all(groups: Sequence[Group], context: Context) -> list[Kernel | HostStep | Turns]:
    """The kernels of all groups, in order."""
    forms = [form_of(group, context) for group in groups] if config.fuse else [None] * len(groups)
    count = Counter(form.key for form in forms if form is not None)
    known: dict[Hashable, tuple[Form, list[Kernel]]] = {}
    steps: list[Kernel | HostStep | Turns] = []
    for group, form in zip(groups, forms, strict=True):
        if form is None or count[form.key] == 1:
            steps += lower(group, context)
        elif form.key in known:
            steps += again(*known[form.key], group, form, context)
        else:
            made = lower(group, context)
            steps += made
            kernels = [k for k in made if isinstance(k, Kernel)]
            # A few small kernels are better merged than shared, and each then shows its own names.
            if count[form.key] > tuning().repeats or not all(map(is_serial, kernels)):
                known[form.key] = form, kernels
    return steps


def again(form: Form, kernels: list[Kernel], group: Group, own: Form, context: Context) -> list[Kernel]:
    """The kernels of a group whose form is that of an earlier one, which has `kernels`."""
    new = dict(zip(form.nodes, own.nodes, strict=True))
    numbers = {scalar.index: context.scalars[new[n]].index for n in form.nodes if (scalar := context.scalars.get(n)) is not None}
    faults = {context.faults[n].index: new[n] for n in form.nodes if n in context.faults}

    def bound(ref: Any) -> Any:
        if isinstance(ref, Node):
            return new[ref]
        if isinstance(ref, RuntimeScalar):
            return replace(ref, index=numbers[ref.index])
        if isinstance(ref, Fault):
            return context.fault(faults[ref.index])
        assert isinstance(ref, Temp)
        return replace(ref, owner=new[ref.owner]) if isinstance(ref.owner, Node) else ref      # else FAULTS

    out = []
    for kernel in kernels:
        changes: dict[str, Any] = {"why": group.why} if kernel.why else {}
        if is_serial(kernel) or context.target.kind == "gpu":           # it may be merged, and one of a merged kernel lends its name
            changes["entry"] = context.entry(group)
        if kernel is kernels[-1]:
            changes["fused"] = operations(own.computed)
        out.append(kernel.bound(map(bound, kernel.refs), **changes))
    if config.check:
        compare(out, lower(group, context))
    return out


def compare(given: Sequence[Kernel], wanted: Sequence[Any]) -> None:
    """Raise if kernels that were taken from another group are not what their own would have."""
    for a, b in zip(given, wanted, strict=True):
        for what in ("form", "bound", "global_size", "local_size", "flops", "bytes", "helpers", "fused", "why"):
            x, y = ([_unnamed(r) for r in k.refs] if what == "bound" else getattr(k, what) for k in (a, b))
            if x != y:
                raise CompilerBug(f"lowering_cache: equal groups differ ({what} of {a.entry}):\n{x}\n{y}\n{a.text}\n{b.text}")


def _unnamed(ref: Any) -> Any:
    """A Temp without its name, which is made of that of its kernel."""
    return (ref.owner, ref.size, ref.dtype) if isinstance(ref, Temp) else ref


def form_of(group: Group, context: Context) -> Form | None:
    """The form of a group; None where its kernels may depend on more."""
    kind = group.kind
    if isinstance(kind, Anchored) and kind.is_call:
        return None
    schedule, find = context.schedule, context.storage(group)
    given: dict[Node, Storage | None] = {}

    def stops(node: Node) -> bool:
        if node in context.scalars:
            return True
        given[node] = found = find(node)
        return found is not None

    nodes = topological(group.sinks, stops)
    number = {n: i for i, n in enumerate(nodes)}

    def at(node: Node) -> int:
        """The number of a node, a new one for a buffer that a value is in."""
        if node not in number:
            number[node] = len(nodes)
            nodes.append(node)
        return number[node]

    own = set(group.sinks)
    parts: list[Any] = []
    computed: list[Node] = []
    for node in list(nodes):
        fn, family = node.fn, node.fn.family
        if node in context.scalars:
            parts.append(("scalar", node.aval, context.scalars[node].dtype))
            continue
        stored = given[node]
        if stored is not None:
            value = _attributes(node) if fn.name == "const" else ()      # is written out, though it is in a buffer, too
            parts.append(("stored", node.aval, at(stored.ref), stored.access, value))
            continue
        if family not in ("leaf", "index"):
            computed.append(node)
        facts: list[Any] = []                  # what lowering asks that may depend on what is beyond
        if family == "elementwise":
            if fn.name == "exp":
                facts.append(never_positive(node.operands[0]))
            elif fn.name == "cos":
                facts.append(largest(node.operands[0]) <= NARROW)
            elif fn.name in ("remainder", "floor_divide") and node.dtype.kind in "iu":
                facts.append(divides(node))
            elif fn.wraps and node.dtype.kind == "i":
                facts.append(may_wrap(node))
        elif family in ("reduction", "partial"):
            facts.append(small_reduction(node))
            if isinstance(kind, Rows) and node in own and is_reduction(node) and _picks(node, kind):
                return None
        place = (group.place[node], node in schedule.stored, schedule.costs.get(node)) if node in own else node in schedule.group_of
        parts.append((fn, _attributes(node), node.aval, tuple([number[o] for o in node.operands]), place, *facts))
    into = [(at(s), at(context.alias[s])) if s in context.alias else at(s) for s in group.stored]
    reads = sorted((at(d), tuple(sorted(relations)), d.aval) for d, relations in group.reads.items())
    key = (number[kind.node] if isinstance(kind, Anchored) else kind, tuple([number[s] for s in group.sinks]), tuple(into),
           tuple([r[:2] for r in reads]), tuple([r[2] for r in reads]), group.work, group.positional, tuple(parts))
    return Form(key, nodes, computed)


def _picks(node: Node, kind: Rows) -> bool:
    return picked(node, Var("row", kind.rows).index, Var("col", kind.cols).index) is not None


def _attributes(node: Node) -> Hashable:
    return tuple([(name, _exact(value)) for name, value in node.attrs.items()])


def _exact(value: Any) -> Hashable:
    """An attribute such that equal ones are the same: 0.0 is not -0.0, True is not 1."""
    if type(value) is int:
        return value
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    if isinstance(value, (bool, float, complex, np.generic)):
        return type(value), repr(value)
    return value  # type: ignore[no-any-return]
