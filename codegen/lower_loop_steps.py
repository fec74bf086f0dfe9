"""Loops of a known length (`tg.scan`): the groups of family "loop". Start at `lower_turns`.

The body is a graph of its own, scheduled and written as kernels like any other; `placed` then binds what a turn reads and writes. A row of
what is scanned, or of a stacked result, is a place in the whole that depends on the number of the turn, which kernels get by value.
A carry has two places, which the turns use in turn; the first turn reads it where the loop's operand is, the last one writes the loop's
result. So nothing is copied, and the host has nothing to do between turns but to count.

Where one work-item does the whole body (see merge.py), or elements do not depend on each other, the loop over turns is in the kernel: one
launch instead of `length`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tracegrad.codegen.kernel import FAULTS, Kernel, RuntimeScalar, Temp, Turn, Turns
from tracegrad.codegen.lower import Context, lower, lowering
from tracegrad.codegen.lower_host import siblings
from tracegrad.codegen.merge import comment, effects, is_serial, merge, parameters, together
from tracegrad.codegen.rewrite import op
from tracegrad.codegen.schedule import SAME, Group, schedule, strip
from tracegrad.codegen.tuning import tuning
from tracegrad.config import config
from tracegrad.function import bind, unique
from tracegrad.ir import Graph, Node, located

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


@dataclass(frozen=True)
class Whole:
    """What a parameter of the body is outside: all of `ref`."""

    ref: Any


@dataclass(frozen=True)
class Row:
    """One row, of `size` elements, of `ref`: the turn's, counted from the last of `length` if `reverse`."""

    ref: Any
    size: int
    length: int
    reverse: bool


@dataclass(frozen=True)
class Carry:
    """A carry of `size` elements: `end` in the first turn where it is read, in the last one where it is written; else one of two places."""

    end: Any
    both: Temp
    size: int
    length: int
    written: bool


Place = Whole | Row | Carry
_SAME = frozenset((SAME,))


@lowering("loop")
def lower_turns(group: Group, context: Context) -> list[Any]:
    anchor = group.anchor
    assert anchor is not None
    results = siblings(group, context)
    if results is None:
        return []
    fn: Any = anchor.fn
    body, length, reverse = fn.body, fn.length, fn.reverse
    n, rows = body.carries, body.rows
    graph = _with_own_outputs(_with_copies(context.prepared(fn.graph), n + rows))
    known = set(context.faults)
    groups, steps = _kernels(graph, context)
    alone = len(groups) == len(steps) == 1 and _by_element(groups[0], graph.inputs[:n])
    before, steps, kept = _hoisted(steps, graph.inputs[n + rows:])
    for node in context.faults:                            # what a turn reports is for all results
        if node not in known:
            context.reporters[node] = tuple(r for r in results if isinstance(r, Node))
    operands = [strip(o) for o in anchor.operands]
    key = (fn, anchor.operands)
    places: dict[Any, Place] = {}
    for i, (p, o) in enumerate(zip(graph.inputs, operands, strict=True)):
        if i < n:
            both = Temp(p.attrs["label"] or "carry", (key, i), 2 * p.aval.size, p.dtype)
            places[p] = Carry(o, both, p.aval.size, length, written=False)
            places[strip(graph.outputs[i])] = Carry(results[i], both, p.aval.size, length, written=True)
        else:
            places[p] = Row(o, p.aval.size, length, reverse) if i < n + rows else Whole(o)
    for result, out in zip(results[n:], graph.outputs[n:], strict=True):
        places[strip(out)] = Row(result, out.aval.size, length, reverse)
    turn = Turn()
    before = [bound(k, places, turn) for k in before]
    if config.fuse:
        steps = merge(steps)
    kernels = [s for s in steps if isinstance(s, Kernel)]
    if steps and config.fuse and len(kernels) == len(steps):
        one = kernels[0]
        small = context.target.kind == "gpu" or one.flops + one.bytes < tuning().looped_work
        if alone and len(kernels) == 1 and small:
            return [*before, _in_one(one, places, turn, length)]
        if all(map(is_serial, kernels)) and sum(k.text.count("\n") for k in kernels) <= tuning().looped_lines:
            # One core does a turn in less time than its launches take.
            merged = one if len(kernels) == 1 and prod(one.global_size) == 1 else together(kernels)
            return [*before, _in_one(merged, places, turn, length)]
    held = kept + [r for p in places.values() for r in ((p.end, p.both) if isinstance(p, Carry) else (p.ref,))]
    return [*before, Turns(tuple(bound(s, places, turn) for s in steps), length, turn, tuple(held))] if steps else before


def _kernels(graph: Graph, context: Context) -> tuple[list[Group], list[Any]]:
    """The groups and the steps of one turn."""
    stored = [s for s in dict.fromkeys(map(strip, graph.outputs)) if s.aval.size]
    plan = schedule(graph, stored, context.scalars, context.target, config.fuse)
    inner = context.inside(plan)
    return plan.groups, [step for group in plan.groups for step in lower(group, inner)]


def _by_element(group: Group, carries: list[Node]) -> bool:
    """Whether elements of the new carries depend on no other elements of the old ones, so that work-items need not wait for others."""
    full = group.kind == "loops" and group.length is None and all(p == "full" for p in group.place.values())
    return full and all(group.reads.get(c, _SAME) == _SAME and c.aval.size == group.size for c in carries)


def _hoisted(steps: list[Any], constants: list[Node]) -> tuple[list[Any], list[Any], list[Any]]:
    """What does the same in every turn (a factor of a product is packed), the other steps, and the buffers that the former leave those."""
    same: set[Any] = {strip(c) for c in constants}
    before, rest, kept = [], [], []
    for step in steps:
        reads, writes = effects(step)
        if isinstance(step, Kernel) and not step.foreign and all(isinstance(r, Temp) for r in writes) and FAULTS not in step.refs and \
                same.issuperset(r for r in reads if r not in writes and not isinstance(r, RuntimeScalar)):
            before.append(step)
            kept += writes
            same.update(writes)
        else:
            rest.append(step)
    return before, rest, kept


def _copy(node: Node) -> Node:
    with located(node.loc):
        return op("variable", node, uid=unique())


def _with_copies(graph: Graph, own: int) -> Graph:
    """Carries and rows that a host step or a user's kernel reads are copied first: it is given whole buffers."""
    moving = set(graph.inputs[:own])

    def replaced(node: Node, operands: tuple[Node, ...]) -> Node:
        if node.fn.family in ("host_call", "opencl_call"):
            operands = tuple(_copy(o) if strip(o) in moving else o for o in operands)
        if operands == node.operands:
            return node
        with located(node.loc):
            return bind(node.fn, operands, node.attrs)

    return graph.rebuilt(replaced)


def _with_own_outputs(graph: Graph) -> Graph:
    """The graph with every output a node whose buffer can be its own, and which a kernel of ours writes."""
    outputs, taken = list(graph.outputs), set()
    for i, o in enumerate(outputs):
        if strip(o) in taken or strip(o).fn.family in ("leaf", "host_call", "opencl_call") or strip(o) in graph.inputs:
            outputs[i] = _copy(o)
        taken.add(strip(outputs[i]))
    return Graph.capture(graph.inputs, outputs)


# -------------------------------------------------------------------------------------------------------------- binding


def bound(step: Any, places: Mapping[Any, Place], turn: Turn) -> Any:
    """A step of the body as a step of the loop."""
    if isinstance(step, Kernel):
        return placed(step, places, turn)
    if isinstance(step, Turns):
        return replace(step, steps=tuple(bound(s, places, turn) for s in step.steps))
    outside = {ref: place.ref for ref, place in places.items() if isinstance(place, Whole)}
    return replace(step, inputs=tuple(outside.get(i, i) for i in step.inputs))


def placed(kernel: Kernel, places: Mapping[Any, Place], turn: Turn) -> Kernel:
    """The kernel with its parameters bound to what they are in the turn that it is told the number of."""
    if not any(r in places for r in kernel.refs):
        return kernel
    if kernel.foreign:
        return replace(kernel, refs=tuple(p.ref if isinstance(p := places.get(r), Whole) else r for r in kernel.refs))
    head, declarations, refs = _bind(kernel, places, turn)
    above, _, body = kernel.text.partition(f" {kernel.entry}(")
    body = body.partition(") {\n")[2]
    return replace(kernel, text=f"{above} {kernel.entry}({_listed(head)}) {{\n{_lines(declarations, 1)}{body}", refs=refs)


def _listed(head: list[str]) -> str:
    one = ", ".join(head)
    return one if len(one) < 110 else "\n    " + ",\n    ".join(head)


def _lines(lines: list[str], depth: int) -> str:
    return "".join("  " * depth + line + "\n" for line in lines)


def _bind(kernel: Kernel, places: Mapping[Any, Place], turn: Turn) -> tuple[list[str], list[str], tuple[Any, ...]]:
    """The parameters of the kernel outside, the statements that make those of the body from them, and what they bind to."""
    taken = set(_WORD.findall(kernel.text))
    names: dict[Any, str] = {}
    head: dict[Any, str] = {}

    def fresh(base: str) -> str:
        name, number = base, 0
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        return name

    def parameter(ref: Any, like: str, base: str) -> str:
        """The parameter that is bound to `ref`, declared as the text `like` is."""
        before, old = like[:like.rindex(_WORD.findall(like)[-1])], head.get(ref)
        if old is None:
            names[ref] = fresh(base)
            head[ref] = before + names[ref]
        elif "const " in old.partition("*")[0] and "const " not in before.partition("*")[0]:
            head[ref] = before + names[ref]
        return names[ref]

    statements: list[str] = []
    declared = list(zip(kernel.refs, parameters(kernel), strict=True))
    for ref, text in sorted(declared, key=lambda pair: pair[0] in places):         # what stays keeps its name
        name = _WORD.findall(text)[-1]
        place = places.get(ref)
        own = text.replace("restrict ", "")
        if place is None or (isinstance(place, Whole) and place.ref not in head):
            found = ref if place is None else place.ref
            if found in head:
                statements.append(f"{own} = {names[found]};")
            else:
                names[found], head[found] = name, text
            continue
        if isinstance(place, Whole):
            statements.append(f"{own} = {parameter(place.ref, text, name)};")
        elif isinstance(place, Row):
            row = _number(turn, head, names, fresh)
            row = f"({place.length - 1} - {row})" if place.reverse else row
            statements.append(f"{own} = {parameter(place.ref, text, name + '_rows')} + (long){row} * {place.size};")
        else:
            end = parameter(place.end, text, name + ("_last" if place.written else "_first"))
            if place.length == 1:
                statements.append(f"{own} = {end};")
                continue
            number = _number(turn, head, names, fresh)
            both = parameter(place.both, text, f"{place.both.name}_both")
            which = f"({number} + 1 & 1)" if place.written else f"({number} & 1)"
            statements += [f"{own} = {end};", f"if ({number} {'< ' + str(place.length - 1) if place.written else '> 0'})",
                           f"  {name} = {both} + {which} * (long){place.size};"]
    return list(head.values()), statements, tuple(head)


def _number(turn: Turn, head: dict[Any, str], names: dict[Any, str], fresh: Any) -> str:
    if turn not in head:
        names[turn] = fresh("turn")
        head[turn] = f"const int {names[turn]}"
    return names[turn]


def _in_one(kernel: Kernel, places: Mapping[Any, Place], turn: Turn, length: int) -> Kernel:
    """The whole loop as a kernel, in which each work-item does all turns."""
    head, declarations, refs = _bind(kernel, places, turn)
    name = "turn"
    if turn in refs:
        at = refs.index(turn)
        name = _WORD.findall(head.pop(at))[-1]
        refs = (*refs[:at], *refs[at + 1:])
    else:
        words = set(_WORD.findall(kernel.text))
        while name in words:
            name += "_"
    body = kernel.text.partition(") {\n")[2].removesuffix("}\n")
    inner = "".join(f"  {line}\n" for line in body.rstrip("\n").split("\n"))
    attribute = kernel.text.removeprefix(comment(kernel)).partition("__kernel void ")[0]
    text = (f"{comment(kernel)}{attribute}__kernel void {kernel.entry}({_listed(head)}) {{\n"
            f"  for (int {name} = 0; {name} < {length}; {name}++) {{\n"
            f"{_lines(declarations, 2)}{inner}  }}\n}}\n")
    note = f"a loop of {length} turns in one launch" + (f": {kernel.note}" if kernel.note else "")
    return replace(kernel, text=text, refs=refs, flops=kernel.flops * length, bytes=kernel.bytes * length, note=note)

