"""Loops of a known length (`tg.scan`): the groups of family "loop". Start at `lower_iterations`.

The body is a graph of its own, scheduled and written as kernels like any other; `placed` then binds what an iteration reads and writes. A
row of what is scanned, or of a stacked result, is a place in the whole that depends on the number of the iteration, which kernels get by
value. A carry has two places, which the iterations use in turn; the first iteration reads it where the loop's operand is, the last one
writes the loop's result. So nothing is copied, and the host has nothing to do between iterations but to count. Of a carry that other
carries follow (`now`, the next iteration's `before`) the values of so many iterations are wanted: it has a place more for each.

A carry of which an iteration changes elements (a scatter) is copied once, to the loop's result, and changed there. So is a large one whose
old value nobody reads any more where the new one is written: an iteration then touches less memory. Of a carry that others follow it is
the oldest value that the new one replaces: the places are the results, which the iterations use in turn.

Where one work-item does the whole body (see `batch_launches`), or elements do not depend on each other, the loop over iterations is in the
kernel: one launch instead of `length`. In the latter case a work-item does all iterations of a block of elements that stays in its first
cache, and a carry lies in the result from the first iteration on. So it is where the batch can be cut in parts, one for each core, that go
through all iterations (`loop_parts`): nobody waits, and no thread is woken between iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cache
from math import prod
from operator import itemgetter
from typing import Any

from tracegrad.codegen.graph.branches import outlined
from tracegrad.codegen.graph.rewrite import op
from tracegrad.codegen.kernel.index.index import Var
from tracegrad.codegen.kernel.ir.kernel import FAULTS, Iteration, Kernel, LoweredLoop, RuntimeScalar, Temp
from tracegrad.codegen.kernel.ir.statements import Block, Buffer, Item, Loop
from tracegrad.codegen.kernel.ir.statements import bound as bound_of
from tracegrad.codegen.lower.context import Context, flops, lowering, traffic
from tracegrad.codegen.lower.group_kernels import lower
from tracegrad.codegen.lower.host_call import siblings
from tracegrad.codegen.planning.batch_launches import NotAlone, batched, can_be_serial, effects, together
from tracegrad.codegen.planning.loop_binding import After, Carry, InPlace, LoopBinding, Own, Parts, Row, Whole, bind_parameters, bound
from tracegrad.codegen.planning.loop_parts import of_part, parts_of
from tracegrad.codegen.schedule.access_maps import ONLY_IDENTITY
from tracegrad.codegen.schedule.donation import Donations, arrange, is_scatter
from tracegrad.codegen.schedule.fusion import schedule
from tracegrad.codegen.schedule.grouping import Chunks, Flat, Group, Rows, Schedule, strip
from tracegrad.config import config
from tracegrad.graph.ir import ON_HOST, Graph, Node
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import unique
from tracegrad.graph.substitution import rebound
from tracegrad.support.plan import Target, by_one
from tracegrad.support.tuning import Tuning, tuned, tuning

Lines = list[list[int]]                     # numbers of carries; see `_lines`


@lowering("loop")
def lower_iterations(group: Group, context: Context) -> list[Any]:
    anchor = group.anchor
    results = siblings(group, context)
    if results is None:
        return []
    fn: Any = anchor.fn
    graph, lines = _body(fn, context)
    known = set(context.faults)
    operands = [context.ref(strip(o)) for o in anchor.operands]
    key = (fn, anchor.operands)
    branched = outlined(graph) if config.fuse else graph
    try:
        steps = _iterations(branched, lines, fn, operands, results, context, key, branched is not graph)
    except NotAlone:
        for node in context.faults.keys() - known:
            del context.faults[node]
        steps = _iterations(graph, lines, fn, operands, results, context, key)
    for node in context.faults:                            # what an iteration reports is for all results
        if node not in known:
            context.reporters[node] = tuple(r for r in results if isinstance(r, Node))
    return steps


def _body(fn: Any, context: Context) -> tuple[Graph, Lines]:
    """The graph of an iteration through the passes, as kernels are made of it; see `_lines`."""
    own = fn.body.carries + fn.body.rows
    return _with_own_outputs(_with_copies(context.prepared(fn.graph), own, context), fn, context)


def _iterations(graph: Graph, lines: Lines, fn: Any, operands: list[Any], results: list[Any], context: Context, key: Any,
           branches: bool = False) -> list[Any]:
    """The steps of a loop. branches: some are in its graph, which is for one work-item, then; NotAlone if that is not to be had."""
    length, n, rows = fn.length, fn.body.carries, fn.body.rows
    plan, stored = _scheduled(graph, context)
    if config.fuse and not branches and (by_blocks := _by_blocks(plan, graph, lines, fn, operands, results, context, key)):
        return by_blocks
    steps, changed = _lowered(plan, stored, graph, context, n + rows, _in_place(graph, lines, length))
    before, steps, kept = hoisted_steps(steps, graph.inputs[n + rows:])
    places = _places(graph, fn, lines, operands, results, key, 1)
    iteration = Iteration()
    before = [bound(k, places, iteration) for k in before]
    for line in lines:
        if graph.inputs[line[-1]] in changed:
            del places[strip(graph.outputs[line[0]])]
            count = len(line)
            refs = tuple(results[line[(length - j) % count]] for j in range(count))        # where the value after so many iterations lies
            for k, i in enumerate(line):
                p = graph.inputs[i]
                places[p] = InPlace(refs, -k % count) if count > 1 else Whole(*refs)
                graph_of_copy = Graph.capture([p], [copied(p)])
                ends = {p: Whole(operands[i]), graph_of_copy.outputs[0]: Whole(refs[-k % count])}
                before += [bound(step, ends, iteration) for step in _kernels(graph_of_copy, context, 1)]
    if config.fuse:
        steps = batched(steps)
    kernels = [s for s in steps if isinstance(s, Kernel)]
    if steps and config.fuse and len(kernels) == len(steps):
        one = kernels[0]
        if not branches and (found := _in_parts(fn, operands, results, key, context, kernels)):
            return found
        few = by_one(context.target.cores, tuning().iteration_work)
        if all(can_be_serial(k) and k.work < few for k in kernels) and sum(k.text.count("\n") for k in kernels) <= tuning().looped_lines:
            # One core does an iteration in less time than its launches take all of them.
            merged = one if len(kernels) == 1 and prod(one.global_size) == 1 else together(kernels)
            return [*before, _in_one(merged, places, length)]
    if branches:
        raise NotAlone
    own = (p.ring if isinstance(p, Carry) else p.ref for p in places.values() if isinstance(p, Whole | Row | Carry))
    held = [*kept, *operands, *results, *own]
    return [*before, LoweredLoop(tuple(bound(s, places, iteration) for s in steps), length, iteration, tuple(held))] if steps else before


def _places(graph: Graph, fn: Any, lines: Lines, operands: list[Any], results: list[Any], key: Any, parts: int,
            alone: int = 0) -> dict[Any, LoopBinding]:
    """What an iteration's inputs and outputs are outside.

    alone: of carries of so many elements each depends on no others, so a new one may replace the old one.
    """
    n, rows, length, reverse = fn.body.carries, fn.body.rows, fn.length, fn.reverse
    places: dict[Any, LoopBinding] = {}
    for line in lines:
        p, count = graph.inputs[line[0]], len(line) + 1
        if p.aval.size == alone and count == 2:
            out, = (results[i] for i in line)
            places[strip(graph.outputs[line[0]])] = Whole(out)
            places[p] = After(operands[line[0]], out)
            continue
        ring = Temp(p.attrs["label"] or "carry", (key, line[0]), count * parts * p.aval.size, p.dtype)
        ends = [(-k, operands[i]) for k, i in enumerate(line)] + [(length - k, results[i]) for k, i in enumerate(line)]
        values = [(strip(graph.outputs[line[0]]), 1), *((graph.inputs[i], -k) for k, i in enumerate(line))]
        for node, shift in values:
            elsewhere = sorted(((iteration - shift, ref) for iteration, ref in ends if 0 <= iteration - shift < length), key=itemgetter(0))
            places[node] = Carry(ring, count, shift, p.aval.size, length, tuple(elsewhere))
    for i, (p, o) in enumerate(zip(graph.inputs[n:], operands[n:], strict=True)):
        places[p] = Row(o, p.aval.size, length, reverse) if i < rows else Whole(o)
    for result, out in zip(results[n:], graph.outputs[n:], strict=True):
        places[strip(out)] = Row(result, out.aval.size, length, reverse)
    return places


def _in_parts(fn: Any, operands: list[Any], results: list[Any], key: Any, context: Context, whole: list[Kernel]) -> list[Any]:
    """The loop as a kernel of which each work-item takes a part of the batch through all iterations; nothing if that is not to be had, or
    not worth it: what every core reads in every iteration, the constants, has to be in its second cache.
    """
    target, own = context.target, fn.body.carries + fn.body.rows
    parts = parts_of(fn.graph, own, target.cores) if target.traits.long_items else 1
    if parts == 1 or sum(p.aval.nbytes for p in fn.graph.inputs[own:]) > target.l2_bytes:
        return []
    if sum(k.flops + k.bytes for k in whole) > tuning().parted_work or sum(k.work for k in whole) * fn.length < tuning().parted_iterations:
        return []
    smaller = of_part(fn.graph, own, parts)
    if smaller is None:
        return []
    graph, lines = _with_own_outputs(context.prepared(smaller), fn, context)
    inner = copy(context)
    inner.target = replace(target, cores=1)
    before, steps, _ = hoisted_steps(_kernels(graph, inner, own), graph.inputs[own:])
    if not steps or not all(isinstance(s, Kernel) and not s.foreign and not s.cooperates for s in (*before, *steps)):
        return []
    if sum(k.text.count("\n") for k in steps) > tuning().looped_lines:
        return []
    places = _places(graph, fn, lines, operands, results, key, parts)
    iteration = Iteration()
    before = [bound(k, places, iteration) for k in before]
    for k in steps:
        for p in k.parameters:
            if isinstance(p, Buffer) and p.access != "const" and p.ref not in places:
                size, dtype = (p.ref.size, p.ref.dtype) if isinstance(p.ref, Temp) else (p.ref.aval.size, p.ref.dtype)
                places[p.ref] = Own(Temp(p.name, (key, p.ref), parts * size, dtype), size)
    return [*before, _in_one(together(steps), places, fn.length, parts)]


def _in_place(graph: Graph, lines: Lines, length: int) -> Donations:
    """Results of an iteration, each with the old value that it is to replace, if that can be."""
    found: Donations = {}
    for line in lines:
        out = strip(graph.outputs[line[0]])
        large = length >= tuning().kept_iterations and out.aval.nbytes >= tuning().kept_bytes
        if is_scatter(out) or (large and out not in graph.inputs):
            found[out] = graph.inputs[line[-1]]
    return found


def _scheduled(graph: Graph, context: Context) -> tuple[Schedule, list[Node]]:
    """The groups of one iteration, and what they store."""
    stored = [s for s in dict.fromkeys(map(strip, graph.outputs)) if s.aval.size and s not in graph.inputs]
    return schedule(graph, stored, context.scalars, context.target, config.fuse), stored


def _lowered(
    plan: Schedule, stored: list[Node], graph: Graph, context: Context, own: int, into: Donations
) -> tuple[list[Any], set[Node]]:
    """The steps of one iteration, and which carries it replaces in place, of those that it is asked to.

    own: how many of the inputs are carries and rows.
    """
    alias, _ = arrange(plan, stored, into, context.target.traits.row_groups, must=False)
    inner = context.inside(plan, graph.inputs[own:], alias)
    return [step for group in plan.groups for step in lower(group, inner)], {p for s, p in into.items() if s in alias}


def _kernels(graph: Graph, context: Context, own: int) -> list[Any]:
    """The steps of one iteration, which replaces nothing in place."""
    return _lowered(*_scheduled(graph, context), graph, context, own, {})[0]


def _by_element(plan: Schedule, graph: Graph, carries: int, rows: int, target: Target) -> Group | None:
    """The group that makes carries whose elements depend on no other elements of the old ones, so that work-items need not wait for others.

    It is all of the iteration; or, of a row, it adds elements up, and needs no sum itself. Not by long work-items where an iteration reads
    or writes large rows: block by block they are far apart.
    """
    group = max(plan.groups, key=lambda g: g.size, default=None)
    if group is None:
        return None
    sums = isinstance(group.kind, Rows | Chunks) and group.kind.rows == 1
    own = [c for c in graph.inputs[:carries] if c in group.reads or c.aval.size == group.size or not sums]
    if not sums and not (isinstance(group.kind, Flat) and len(plan.groups) == 1):
        return None
    if (sums and not own) or any(group.reads.get(c, ONLY_IDENTITY) != ONLY_IDENTITY or c.aval.size != group.size for c in own):
        return None
    moving = [*graph.inputs[carries:carries + rows], *graph.outputs[carries:]]
    streams = any(x.aval.size >= group.size > 1 for x in moving)
    return group if not target.traits.long_items or not streams or flops(group) + traffic(group) < tuning().looped_work else None


def _by_blocks(plan: Schedule, graph: Graph, lines: Lines, fn: Any, operands: list[Any], results: list[Any], context: Context,
               key: Any) -> list[Any]:
    """The loop as a kernel whose work-items take a block of elements each through all iterations; nothing if that is not to be had.

    Of sums over the elements each block leaves its part at every iteration. Another loop goes on with these, in one work-item.
    """
    n, rows, length = fn.body.carries, fn.body.rows, fn.length
    group = _by_element(plan, graph, n, rows, context.target)
    if group is None:
        return []
    size, noted = group.size, context.noted()
    with tuned(_in_blocks(group, length, context.target)):
        if not isinstance(group.kind, Flat):
            if size <= tuning().row_chunk or (flops(group) + traffic(group)) * length < tuning().launch_work:
                return []
            graph, lines = _body(fn, context)                # whose sums are cut in these blocks
            plan, _ = _scheduled(graph, context)
            if _by_element(plan, graph, n, rows, context.target) is None:
                return []
        steps = _kernels(graph, context, n + rows)
    places = _places(graph, fn, lines, operands, results, key, 1, size)
    mine = {x for p, o in zip(graph.inputs[:n], graph.outputs, strict=False) if p.aval.size == size for x in (p, strip(o))}
    blocks = [s for s in steps if not mine.isdisjoint(r for refs in effects(s) for r in refs)]
    before, rest, _ = hoisted_steps([s for s in steps if s not in blocks], graph.inputs[n + rows:])
    if len(blocks) == 1 and _goes_on(blocks[0], rest, places, size, length, key, context.target):
        iteration = Iteration()
        loops = [_in_one(k, places, length) for k in (blocks[0], *([together(rest)] if rest else ()))]
        return [*(bound(k, places, iteration) for k in before), *loops]
    context.forget_but(noted)
    return []


def _goes_on(blocks: Any, rest: list[Any], places: dict[Any, LoopBinding], size: int, length: int, key: Any, target: Target) -> bool:
    """Whether a loop after that of the blocks may go on with what they leave at every iteration, for which `places` gets rows."""
    steps = [blocks, *rest]
    if not all(isinstance(k, Kernel) and not k.foreign and not k.cooperates for k in steps):
        return False
    few = by_one(target.cores, tuning().iteration_work)
    if not all(can_be_serial(k) and k.work < few for k in rest) or sum(k.text.count("\n") for k in rest) > tuning().looped_lines:
        return False
    reads, writes = effects(blocks)
    if not {w for k in rest for w in effects(k)[1]}.isdisjoint(reads):
        return False
    left = {r: (r.size if isinstance(r, Temp) else r.aval.size) for r in writes if r not in places}
    if any(count >= size for count in left.values()) or sum(r.dtype.itemsize * n for r, n in left.items()) * length > tuning().looped_sums:
        return False
    places |= {r: Row(Temp("part", (key, r), length * count, r.dtype), count, length, False) for r, count in left.items()}
    return True


def _in_blocks(group: Group, length: int, target: Target) -> Tuning:
    """Work-items of a block of elements, as many as stay in a core's first cache through all iterations; as many blocks for each core."""
    numbers, whole = tuning(), 64
    each = sum(n.dtype.itemsize for n in dict.fromkeys((*group.reads, *group.stored)) if n.aval.size == group.size)
    blocks = -(-group.size // max(whole, numbers.looped_bytes // max(1, each)))
    if (flops(group) + traffic(group)) * length >= numbers.launch_work:
        blocks = -(-blocks // target.cores) * target.cores
    block = min(-(-group.size // blocks // whole) * whole, numbers.item)
    return numbers._replace(item=block, most_items=block, long_row=block, row_chunk=block, row_chunks=-(-group.size // block))


def hoisted_steps(steps: list[Any], constants: list[Node]) -> tuple[list[Any], list[Any], list[Any]]:
    """What does the same in every iteration (such as packing a factor), the other steps, and the buffers that the former leave those.

    A buffer that a step of the iteration writes is written anew in every iteration, so all that write it stay: lower/search/radix.py
    counts digits, and another launch adds the counts up in place.
    """
    iterations: set[Any] = set()                                # what the steps that stay write
    while True:
        same: set[Any] = {strip(c) for c in constants}
        before, rest, kept = [], [], []
        for step in steps:
            reads, writes = effects(step)
            if isinstance(step, Kernel) and not step.foreign and all(isinstance(r, Temp) for r in writes) and FAULTS not in step.refs and \
                    iterations.isdisjoint(writes) and \
                    same.issuperset(r for r in reads if r not in writes and not isinstance(r, RuntimeScalar)):
                before.append(step)
                kept += writes
                same.update(writes)
            else:
                rest.append(step)
        written = {r for step in rest for r in effects(step)[1]}
        if written == iterations:
            return before, rest, kept
        iterations = written


def copied(node: Node) -> Node:
    """A copy of a value, which is stored by itself."""
    with located(node.loc):
        return op("variable", node, uid=unique())


def _whole(node: Node, context: Context) -> tuple[Node, ...]:
    """The operands of which a host step or a user's kernel is given the buffer: its own, or the constants of a loop around it."""
    if node.fn.family in (*ON_HOST, "opencl_call"):
        return node.operands
    if node.fn.family != "loop":
        return ()
    fn: Any = node.fn
    graph, own = context.prepared(fn.graph), fn.body.carries + fn.body.rows
    read = {strip(o) for n in graph for o in _whole(n, context)}
    return tuple(o for p, o in zip(graph.inputs[own:], node.operands[own:], strict=True) if p in read)


def _with_copies(graph: Graph, own: int, context: Context) -> Graph:
    """Carries and rows whose buffers a host step or a user's kernel is given are copied first: it is given whole ones."""
    moving = set(graph.inputs[:own])
    copy_of = cache(copied)                                 # the results of one call have the same operands

    def replaced(node: Node, operands: tuple[Node, ...]) -> Node:
        whole = {o for o in _whole(node, context) if strip(o) in moving}
        made = tuple(copy_of(new) if old in whole else new for old, new in zip(node.operands, operands, strict=True))
        return rebound(node, made)

    return graph.rebuilt(replaced)


def _lines(graph: Graph, carries: int, length: int) -> Lines:
    """The carries, each with those behind it: of which the first is next what it was, the second what the first was, ..."""
    numbers = {p: i for i, p in enumerate(graph.inputs[:carries]) if p.aval.size}
    behind: dict[int, int] = {}
    for i, o in enumerate(graph.outputs[:carries]):
        if strip(o) in numbers:
            behind.setdefault(numbers[strip(o)], i)
    lines: Lines = []
    for i, o in enumerate(graph.outputs[:carries]):
        line = [i]
        while strip(o) not in graph.inputs and not is_scatter(strip(o)) and line[-1] in behind and len(line) < length:
            line.append(behind[line[-1]])
        lines.append(line)
    followers = {i for line in lines for i in line[1:]}
    return [line for line in lines if line[0] not in followers]


def _with_own_outputs(graph: Graph, fn: Any, context: Context) -> tuple[Graph, Lines]:
    """The graph with every output a node whose buffer can be its own, and which only kernels of ours write and read; see `_lines`.

    (But the outputs of carries behind others, which nothing has to write.)
    """
    lines = _lines(graph, fn.body.carries, fn.length)
    followers = {i for line in lines for i in line[1:]}
    outputs, taken = list(graph.outputs), {strip(o) for node in graph for o in _whole(node, context)}
    for i, o in enumerate(outputs):
        if i in followers:
            continue
        if strip(o) in taken or strip(o).fn.family in ("leaf", *ON_HOST, "opencl_call") or strip(o) in graph.inputs:
            outputs[i] = copied(o)
        taken.add(strip(outputs[i]))
    return Graph.capture(graph.inputs, outputs), lines


def _in_one(kernel: Kernel, places: Mapping[Any, LoopBinding], length: int, parts: int = 1) -> Kernel:
    """The whole loop as a kernel, in which each work-item does all iterations (of its part of the batch)."""
    item = None
    if parts > 1:
        name = "part"
        while kernel.takes(name):
            name += "_"
        item = Parts(parts, Var(name, parts))
    name, number = "iteration", 0
    while kernel.takes(name):
        number += 1
        name = f"iteration_{number}"
    iteration = Var(name, length)
    head, declarations = bind_parameters(kernel, places, iteration, item)
    loop = Loop(iteration, "int", bound_of(0), bound_of(length))
    own = [s for s in kernel.body.items if isinstance(s, Item)]        # these stay outside, where `together` finds them
    loop.items = [*declarations, *(s for s in kernel.body.items if not isinstance(s, Item))]
    body = Block("")
    body.items = [*own, loop]
    note = f"a loop of {length} iterations in one launch" + (f": {kernel.note}" if kernel.note else "")
    if item is not None:
        body.items.insert(0, Item(item.item, "int", 0, "global"))
        note = f"a loop of {length} iterations in one launch, {parts} parts of the batch side by side: {kernel.note}"
        kernel = replace(kernel, global_size=(parts,), local_size=(1,), group=(1,))
    iterations = length * parts
    return replace(kernel, parameters=tuple(head.values()), body=body, note=note,
                   flops=kernel.flops * iterations, bytes=kernel.bytes * iterations,
                   slow=kernel.slow * iterations)
