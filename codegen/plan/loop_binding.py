"""What the kernels of a loop's body are bound to outside, which differs from iteration to iteration. Start at `bound`.

A `Place` is where an iteration finds one of its inputs, or leaves one of its outputs: all of something, a row, a carry's place in turn.
Kernels are told the number of the iteration, and begin with statements that make their pointers of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracegrad.codegen.kernel.index.index import Var
from tracegrad.codegen.kernel.ir.kernel import Iteration, Kernel, LoweredLoop, Temp, bound_to
from tracegrad.codegen.kernel.ir.statements import Block, Buffer, Number, Parameter, Raw, Statement
from tracegrad.errors import CompilerBug
from tracegrad.support.dtypes import int32
from tracegrad.support.plan import Plain


class Whole(Plain):
    """What a parameter of the body is outside: all of `ref`."""

    ref: Any


class Row(Plain):
    """An iteration's row, of `size` elements, of `ref`, counted from the last of `length` if `reverse`. (A part has `size` of each.)"""

    ref: Any
    size: int
    length: int
    reverse: bool


class Carry(Plain):
    """A value of `size` elements that one iteration of `length` writes, and later ones read: that of the iteration's number plus `shift`.

    It lies in the one of `count` places of `ring` whose turn it is, but in some iterations at the ends of the loop `elsewhere`: in
    operands and results of the loop.
    """

    ring: Temp
    count: int
    shift: int
    size: int
    length: int
    elsewhere: tuple[tuple[int, Any], ...]          # iterations, and what they have instead

    def between(self) -> tuple[int, int]:
        """The iterations, from and to, in which it lies in the ring."""
        turns, low = {t for t, _ in self.elsewhere}, 0
        while low in turns:
            low += 1
        return low, min((t for t in turns if t > low), default=self.length)


class InPlace(Plain):
    """A value of a carry that is written over the oldest: it lies in one of `refs`, the loop's results, whose turn it is: that of the
    iteration's number plus `shift`.
    """

    refs: tuple[Any, ...]
    shift: int


class After(Plain):
    """A value of a carry that the first iteration reads in `first`, and later ones in `rest`, where they find what was written there."""

    first: Any
    rest: Any


class Own(Plain):
    """What an iteration keeps for itself: `size` elements of `ref` for each part."""

    ref: Temp
    size: int


class Parts(Plain):
    """The parts of a batch: how many there are, and which one a work-item does."""

    count: int
    item: Var


Place = Whole | Row | Carry | InPlace | After | Own


def bound(step: Any, places: Mapping[Any, Place], turn: Iteration) -> Any:
    """A step of the body as a step of the loop."""
    if isinstance(step, Kernel):
        return placed(step, places, turn)
    if isinstance(step, LoweredLoop):
        return replace(step, steps=tuple(bound(s, places, turn) for s in step.steps))
    return replace(step, inputs=tuple(whole(i, places) for i in step.inputs))


def whole(ref: Any, places: Mapping[Any, Place]) -> Any:
    """What a step that is given whole buffers gets for `ref`."""
    place = places.get(ref)
    if not isinstance(place, Whole | None):
        raise CompilerBug(f"a step of a loop is given all of {ref!r}, which lies somewhere else in every turn")
    return ref if place is None else place.ref


def placed(kernel: Kernel, places: Mapping[Any, Place], turn: Iteration) -> Kernel:
    """The kernel with its parameters bound to what they are in the iteration that it is told the number of."""
    if not any(r in places for r in kernel.refs):
        return kernel
    if kernel.foreign:
        return kernel.bound(whole(r, places) for r in kernel.refs)
    head, declarations = bind_parameters(kernel, places, turn)
    body = Block("")
    body.items = [*declarations, *kernel.body.items]
    return replace(kernel, parameters=tuple(head.values()), body=body)


def bind_parameters(
    kernel: Kernel, places: Mapping[Any, Place], turn: Iteration, parts: Parts | None = None
) -> tuple[dict[Any, Parameter], list[Statement]]:
    """The parameters of the kernel outside, by what they bind to, and the statements that make those of the body from them."""
    taken: set[str] = set()
    head: dict[Any, Parameter] = {}

    def fresh(base: str) -> str:
        name, number = base, 0
        while name in taken or kernel.takes(name):
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        return name

    def parameter(ref: Any, like: Buffer, base: str) -> Parameter:
        """The parameter that is bound to `ref`, of the type and access of `like`."""
        old = head.get(ref)
        if old is None:
            old = head[ref] = Buffer(ref, fresh(base), like.dtype, None, like.access)
            old.restrict = like.restrict
        elif isinstance(old, Buffer) and old.access == "const" and like.access != "const":
            old.access, old.restrict = like.access, like.restrict
        return old

    def number() -> Parameter:
        if turn not in head:
            head[turn] = Number(turn, fresh("iteration"), int32)
        return head[turn]

    def row_of(number: str, size: int) -> str:
        """Where the part's share, of `size` elements, of a row begins; number: the row's."""
        return f"(long){number} * {size}" if parts is None else f"(long)({number} * {parts.count} + {parts.item.name}) * {size}"

    def share(size: int) -> str:
        """Where the part's share of what is one row begins."""
        return "" if parts is None else f" + (long){parts.item.name} * {size}"

    statements: list[Statement] = []

    item = () if parts is None else (parts.item,)

    def state(text: str, *given: Parameter | Var, defines: tuple[Parameter, ...] = ()) -> None:
        statements.append(Raw(text, None, given, defines))

    for p in sorted(kernel.parameters, key=lambda p: p.ref in places):         # what stays keeps its name
        place = places.get(p.ref)
        own = pointer(p)
        if place is None or (isinstance(place, Whole) and place.ref not in head):
            found = p.ref if place is None else place.ref
            if found in head:
                state(f"{own} = {head[found].name};", head[found], defines=(p,))
            else:
                head[found] = bound_to(p, found)
            continue
        assert isinstance(p, Buffer)
        if isinstance(place, Whole):
            whole = parameter(place.ref, p, p.name)
            state(f"{own} = {whole.name};", whole, defines=(p,))
        elif isinstance(place, Row):
            row = f"({place.length - 1} - {number().name})" if place.reverse else number().name
            rows = parameter(place.ref, p, p.name + "_rows")
            state(f"{own} = {rows.name} + {row_of(row, place.size)};", rows, number(), *item, defines=(p,))
        elif isinstance(place, After):
            first = parameter(place.first, p, p.name + "_first")
            rest = parameter(place.rest, p, p.name + "_last")
            state(f"{own} = {first.name};", first, defines=(p,))
            state(f"if ({number().name} > 0)", number())
            state(f"  {p.name} = {rest.name};", p, rest)
        elif isinstance(place, Own):
            all_of_it = parameter(place.ref, p, p.name)
            state(f"{own} = {all_of_it.name}{share(place.size)};", all_of_it, *item, defines=(p,))
        elif isinstance(place, InPlace):
            count = len(place.refs)
            for k, ref in enumerate(place.refs):
                end = parameter(ref, p, p.name if k == 0 else f"{p.name}_{k}")
                if k:
                    which = f"({number().name} + {place.shift}) % {count}" if place.shift else f"{number().name} % {count}"
                    state(f"if ({which} == {k})", number())
                    state(f"  {p.name} = {end.name};", p, end)
                else:
                    state(f"{own} = {end.name};", end, defines=(p,))
        else:
            low, high = place.between()
            for k, (at, ref) in enumerate(place.elsewhere):
                end = parameter(ref, p, p.name + ("_first" if at < low else "_last"))
                if k:
                    state(f"if ({number().name} == {at})", number())
                    state(f"  {p.name} = {end.name}{share(place.size)};", p, end, *item)
                else:
                    state(f"{own} = {end.name}{share(place.size)};", end, *item, defines=(p,))
            if low < high:
                n, shift = number().name, place.shift % place.count
                ring = parameter(place.ring, p, f"{place.ring.name}_{'both' if place.count == 2 else 'ring'}")
                inside = [f"{n} > {low - 1}"] * (low > 0) + [f"{n} < {high}"] * (high < place.length)
                state(f"if ({' && '.join(inside)})", number())
                which = f"(({n} + {shift}) % {place.count})" if shift else f"({n} % {place.count})"
                state(f"  {p.name} = {ring.name} + {row_of(which, place.size)};", p, ring, number(), *item)
    return head, statements


def pointer(parameter: Parameter) -> str:
    """The declaration of a variable of a parameter's type and name."""
    variable = bound_to(parameter, parameter.ref)
    if isinstance(variable, Buffer):
        variable.restrict = False
    return variable.declaration
