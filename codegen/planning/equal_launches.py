"""Equal small kernels of a GPU in one launch, each of them some of its work-groups. Start at `side_by_side`.

The updates of twenty parameters are kernels that differ in their buffers and in how many elements there are, and none waits for another.
A launch takes longer than most of them. In one launch a work-group finds out by its number which of them it belongs to, takes that one's
buffers, and goes on as it would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate

from tracegrad.codegen.kernel.index.index import ZERO, Var
from tracegrad.codegen.kernel.ir.expressions import Address, At, Expression, Infix, value, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Assign, Block, Buffer, Declare, If, Item, Local, Number, Parameter, Statement
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.planning.batch_launches import Step, dependencies
from tracegrad.support.dtypes import int32
from tracegrad.support.plan import HostStep, Plain
from tracegrad.support.tuning import tuning


class Part(Plain):
    """A kernel that may be one of several: what its items do, each for its element `var`, of `size`. alike: those of its equals."""

    kernel: Kernel
    var: Var
    type: str
    inside: list[Statement | Block]
    size: int
    alike: Hashable


def side_by_side(steps: Sequence[Step], context: Context) -> list[Step]:
    """The steps, with equal kernels that do not wait for each other in one launch."""
    if not context.target.traits.idle_launches or any(isinstance(s, HostStep) for s in steps):
        return list(steps)
    parts = [part_of(s) if isinstance(s, Kernel) else None for s in steps]
    count = Counter(p.alike for p in parts if p is not None)
    waits, users = dependencies(steps)
    plain: list[int] = []
    waiting: dict[Hashable, list[int]] = {}
    out: list[Step] = []

    def is_ready(i: int) -> None:
        part = parts[i]
        if part is None or count[part.alike] == 1:
            heappush(plain, i)
        else:
            waiting.setdefault(part.alike, []).append(i)

    for i, n in enumerate(waits):
        if not n:
            is_ready(i)
    while plain or waiting:
        if plain:
            done = [heappop(plain)]
            out.append(steps[done[0]])
        else:
            done = waiting.pop(max(waiting, key=lambda alike: (len(waiting[alike]), -waiting[alike][0])))
            out += together([p for i in done if (p := parts[i]) is not None], context)
        for user in sorted(u for i in done for u in users[i]):
            waits[user] -= 1
            if not waits[user]:
                is_ready(user)
    return out


def part_of(kernel: Kernel) -> Part | None:
    """The kernel as a part, if it is an element an item, and little."""
    if kernel.foreign or kernel.group is not None or len(kernel.global_size) > 1 or kernel.global_size[0] > tuning().merged_elements:
        return None
    items = kernel.body.items
    if not items or not isinstance(items[0], Item) or kernel.cooperates or any(isinstance(i, Item) for i in items[1:]):
        return None
    var, size, last = items[0].var, kernel.global_size[0], items[-1]
    inside = items[1:]
    if isinstance(last, If) and last.known and not any(isinstance(i, Block) for i in inside[:-1]):
        kind, at, low, high = last.known[0]
        if (kind, at.key, low) != ("range", var.index.key, 0) or len(last.known) > 1 or size - high >= (kernel.local_size or (1,))[0]:
            return None
        inside, size = [*inside[:-1], *last.items], high
    body = Block("")
    body.items = [items[0], *inside]
    given = [p.dtype if isinstance(p, Number) else (p.dtype, p.access) for p in kernel.parameters]
    return Part(kernel, var, items[0].type, inside, size, (replace(kernel, body=body).form, tuple(given), kernel.helpers))


def together(parts: Sequence[Part], context: Context) -> list[Kernel]:
    """Kernels of equal parts, as many in each as it may have buffers."""
    out: list[Kernel] = []
    some: list[Part] = []
    for part in parts:
        if some and len({(i, p.ref) for each in (*some, part) for i, p in enumerate(each.kernel.parameters)}) > tuning().merged_parameters:
            out.append(_merged(some, context))
            some = []
        some.append(part)
    return [*out, _merged(some, context)]


def _merged(parts: Sequence[Part], context: Context) -> Kernel:
    if len(parts) == 1:
        return parts[0].kernel
    first = parts[0]
    taken: set[str] = set()

    def unique(name: str) -> str:
        while name in taken or first.kernel.takes(name):
            name += "_"
        taken.add(name)
        return name

    local = 1 << (min(tuning().group, context.target.max_work_group).bit_length() - 1)
    begins = [0, *accumulate(-(-part.size // local) for part in parts)]
    groups, var = begins[-1], first.var
    group, item = Var(unique("group"), groups), Var(unique("item"), local)
    start, size = (Local(unique(name), int32) for name in ("first", "size"))
    body, given = Block(""), list[Parameter]()
    body.items = [Item(group, "int", 0, "group"), Item(item, "int", 0, "local")]
    takes: list[list[tuple[Local | Parameter, Expression]]] = [[] for _ in parts]
    for place, parameter in enumerate(first.kernel.parameters):
        each = [p.kernel.parameters[place] for p in parts]
        if len({p.ref for p in each}) == 1:
            given.append(parameter)
            continue
        for i, own in enumerate(each):
            given.append(_called(own, unique(f"{parameter.name}_{i}")))
            takes[i].append((parameter, _value(given[-1])))
    for i, part in enumerate(parts):
        takes[i] += [(start, whole(begins[i])), (size, whole(part.size))]
    body.items += [Declare(symbol, _type(symbol), first_value) for symbol, first_value in takes[0]]
    for i in reversed(range(1, len(parts))):                 # the last ones first: no test but one is needed
        branch = If(Infix(">=", value(group), begins[i]), otherwise=i < len(parts) - 1)
        branch.items = [Assign(symbol, own_value) for symbol, own_value in takes[i]]
        body.items.append(branch)
    number = Infix("+", Infix("*", Infix("-", value(group), start), local), value(item))
    wide = Var(var.name, groups * local)                     # what was 0 in a kernel of one item is not here
    body.items.append(Declare(wide, f"const {first.type}", number))
    guarded = If(Infix("<", At(wide.index), size))
    guarded.items = first.inside
    body.items.append(guarded)
    kernels = [p.kernel for p in parts]
    note = "; ".join([f"{len(parts)} equal kernels in one launch", *dict.fromkeys(k.note for k in kernels if k.note)])
    entry = context.another(first.kernel.entry)          # equal kernels in other launches may be called as the first
    return replace(first.kernel, entry=entry, parameters=tuple(given), body=body, global_size=(groups * local,), local_size=(local,),
                   group=(local,), note=note,
                   flops=sum(k.flops for k in kernels), bytes=sum(k.bytes for k in kernels), slow=sum(k.slow for k in kernels),
                   comment=f"{len(parts)} kernels side by side; names and lines are the first's",
                   fused=tuple(x for k in kernels for x in k.fused), why=tuple(dict.fromkeys(x for k in kernels for x in k.why)))


def _called(parameter: Parameter, name: str) -> Parameter:
    if isinstance(parameter, Number):
        return Number(parameter.ref, name, parameter.dtype)
    made = Buffer(parameter.ref, name, parameter.dtype, parameter.size, parameter.access)
    made.restrict = parameter.restrict
    return made


def _type(symbol: Local | Parameter) -> str:
    """That of a variable which is given the parameters of one part after the other."""
    return symbol.plain(symbol.name).whole_type if isinstance(symbol, Buffer) else symbol.type


def _value(parameter: Parameter) -> Expression:
    return Address(parameter, ZERO) if isinstance(parameter, Buffer) else parameter
