"""What the kernels of a loop's body are bound to outside, which differs from iteration to iteration. Start at `bound`.

A `LoopBinding` is where an iteration finds one of its inputs, or leaves one of its outputs: all of something, a row, a carry.
Kernels are told the number of the iteration, and begin with statements that make their pointers of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Var
from tracegrad.codegen.kernel.ir.expressions import Address, Cast, Expression, Infix, combined, value
from tracegrad.codegen.kernel.ir.expressions import whole as whole_number
from tracegrad.codegen.kernel.ir.kernel import Iteration, Kernel, LoweredLoop, Temp, bound_to
from tracegrad.codegen.kernel.ir.statements import Assign, Block, Buffer, Declare, If, Number, Parameter, Statement
from tracegrad.errors import CompilerBug
from tracegrad.support.dtypes import int32, int64
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
        iterations, low = {t for t, _ in self.elsewhere}, 0
        while low in iterations:
            low += 1
        return low, min((t for t in iterations if t > low), default=self.length)


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


LoopBinding = Whole | Row | Carry | InPlace | After | Own


def bound(step: Any, places: Mapping[Any, LoopBinding], iteration: Iteration) -> Any:
    """A step of the body as a step of the loop."""
    if isinstance(step, Kernel):
        return placed(step, places, iteration)
    if isinstance(step, LoweredLoop):
        return replace(step, steps=tuple(bound(s, places, iteration) for s in step.steps))
    return replace(step, inputs=tuple(whole(i, places) for i in step.inputs))


def whole(ref: Any, places: Mapping[Any, LoopBinding]) -> Any:
    """What a step that is given whole buffers gets for `ref`."""
    place = places.get(ref)
    if not isinstance(place, Whole | None):
        raise CompilerBug(f"a step of a loop is given all of {ref!r}, which lies somewhere else in every iteration")
    return ref if place is None else place.ref


def placed(kernel: Kernel, places: Mapping[Any, LoopBinding], iteration: Iteration) -> Kernel:
    """The kernel with its parameters bound to what they are in the iteration that it is told the number of."""
    if not any(r in places for r in kernel.refs):
        return kernel
    if kernel.foreign:
        return kernel.bound(whole(r, places) for r in kernel.refs)
    head, declarations = bind_parameters(kernel, places, iteration)
    body = Block("")
    body.items = [*declarations, *kernel.body.items]
    return replace(kernel, parameters=tuple(head.values()), body=body)


def bind_parameters(
    kernel: Kernel, places: Mapping[Any, LoopBinding], iteration: Iteration | Var, parts: Parts | None = None
) -> tuple[dict[Any, Parameter], list[Statement | Block]]:
    """The parameters of the kernel outside, by what they bind to, and the statements that make those of the body from them.

    iteration: the number of the iteration, which is a parameter, too, if it is not a loop's variable.
    """
    binding = _Binding(kernel, iteration, parts)
    for p in sorted(kernel.parameters, key=lambda p: p.ref in places):         # what stays keeps its name
        binding.bind(p, places.get(p.ref))
    return binding.head, binding.statements


class _Binding:
    """The parameters outside, and the statements, while they are made."""

    def __init__(self, kernel: Kernel, iteration: Iteration | Var, parts: Parts | None) -> None:
        self.kernel, self.iteration, self.parts = kernel, iteration, parts
        self.head: dict[Any, Parameter] = {}
        self.statements: list[Statement | Block] = []
        self._taken = {iteration.name} if isinstance(iteration, Var) else set[str]()

    def bind(self, p: Parameter, place: LoopBinding | None) -> None:
        """A parameter of the body."""
        if place is None or (isinstance(place, Whole) and place.ref not in self.head):
            found = p.ref if place is None else place.ref
            if found in self.head:
                self.begin(p, self.head[found])
            else:
                self.head[found] = bound_to(p, found)
            return
        assert isinstance(p, Buffer)
        if isinstance(place, Whole):
            self.begin(p, self.parameter(place.ref, p, p.name))
        elif isinstance(place, Row):
            row: Expression = self.number()
            if place.reverse:
                row = Infix("-", whole_number(place.length - 1), row)
            self.begin(p, self.parameter(place.ref, p, p.name + "_rows"), self.row(row, place.size))
        elif isinstance(place, After):
            first, rest = self.parameter(place.first, p, p.name + "_first"), self.parameter(place.rest, p, p.name + "_last")
            self.begin(p, first)
            self.instead(p, Infix(">", self.number(), 0), rest)
        elif isinstance(place, Own):
            self.begin(p, self.parameter(place.ref, p, p.name), self.share(place.size))
        elif isinstance(place, InPlace):
            for k, ref in enumerate(place.refs):
                end = self.parameter(ref, p, p.name if k == 0 else f"{p.name}_{k}")
                if k:
                    self.instead(p, Infix("==", self.which(place.shift, len(place.refs)), k), end)
                else:
                    self.begin(p, end)
        else:
            self.carry(p, place)

    def carry(self, p: Buffer, place: Carry) -> None:
        low, high = place.between()
        for k, (at, ref) in enumerate(place.elsewhere):
            end = self.parameter(ref, p, p.name + ("_first" if at < low else "_last"))
            if k:
                self.instead(p, Infix("==", self.number(), at), end, self.share(place.size))
            else:
                self.begin(p, end, self.share(place.size))
        if low < high:
            ring = self.parameter(place.ring, p, f"{place.ring.name}_{'both' if place.count == 2 else 'ring'}")
            tests = [Infix(">", self.number(), low - 1)] * (low > 0) + [Infix("<", self.number(), high)] * (high < place.length)
            inside, row = combined("&&", tests), self.row(self.which(place.shift % place.count, place.count), place.size)
            assert inside is not None                        # the first iteration reads, or the last one writes, elsewhere
            self.instead(p, inside, ring, row)

    # -- statements

    def begin(self, p: Parameter, value: Parameter, more: Expression | None = None) -> None:
        """A variable that is called as the parameter of the body: `value`, or `more` elements behind where it points."""
        self.statements.append(Declare(p, type_of(p), value if isinstance(value, Number) else Address(value, ZERO, more)))

    def instead(self, p: Buffer, condition: Expression, to: Parameter, more: Expression | None = None) -> None:
        """It points elsewhere where the condition holds."""
        assert isinstance(to, Buffer)
        branch = If(condition)
        branch.items = [Assign(p, Address(to, ZERO, more))]
        self.statements.append(branch)

    # -- the parameters outside

    def fresh(self, base: str) -> str:
        name, number = base, 0
        while name in self._taken or self.kernel.takes(name):
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def parameter(self, ref: Any, like: Buffer, base: str) -> Parameter:
        """The parameter that is bound to `ref`, of the type and access of `like`."""
        old = self.head.get(ref)
        if old is None:
            old = self.head[ref] = Buffer(ref, self.fresh(base), like.dtype, None, like.access)
            old.restrict = like.restrict
        elif isinstance(old, Buffer) and old.access == "const" and like.access != "const":
            old.access, old.restrict = like.access, like.restrict
        return old

    # -- numbers

    def number(self) -> Expression:
        """The iteration's."""
        if isinstance(self.iteration, Var):
            return value(self.iteration)
        found = self.head.get(self.iteration)
        if found is None:
            found = self.head[self.iteration] = Number(self.iteration, self.fresh("iteration"), int32)
        assert isinstance(found, Number)
        return found

    def which(self, shift: int, count: int) -> Expression:
        """Whose turn it is, of `count`."""
        return Infix("%", Infix("+", self.number(), shift) if shift else self.number(), count)

    def row(self, number: Expression, size: int) -> Expression:
        """Where the part's share, of `size` elements, of a row begins; number: the row's."""
        if self.parts is not None:
            number = Infix("+", Infix("*", number, self.parts.count), self.parts.item)
        return Infix("*", Cast(number, int64), size)

    def share(self, size: int) -> Expression | None:
        """Where the part's share of what is one row begins."""
        return None if self.parts is None else Infix("*", Cast(value(self.parts.item), int64), size)


def type_of(parameter: Parameter) -> str:
    """The C type of a variable that is what the parameter was."""
    plain = parameter.plain(parameter.name)
    return plain.whole_type if plain.pointer else f"const {plain.type}"
