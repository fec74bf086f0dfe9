"""Operands and epilogues of kernels that are generated as text: products and convolutions. Start at `Operands`.

An operand is read through the casts, transposes and broadcasts that lie between it and what is stored; a plain buffer also tells its
strides, so that the generator can read it directly. The epilogue is the group's other sinks (bias, activation, masks of the backward
pass), which are computed where the result is stored. Generators ask for both by callback, with indices as C text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tracegrad.codegen.kernel.evaluator import Evaluator
from tracegrad.codegen.kernel.expressions import Expression, Verbatim, types_of
from tracegrad.codegen.kernel.index import ZERO, Index, Var, constant, ravel
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.markup import marked, with_comment
from tracegrad.codegen.kernel.render import Printer, line_comment
from tracegrad.codegen.kernel.statements import Block, Declare, Parameter, Statement
from tracegrad.codegen.kernel.vectors import Compound, Emit, Term, computed_in
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import is_half
from tracegrad.support.plan import Plain

Reserved = Callable[[str], bool]


class Operand(Plain):
    """What a generator reads. load: (emit, *indices) -> the C expression of an element in the dtype of arithmetic.

    strided: (pointer, strides) if it is a plain buffer of that dtype; of a dimension of one element the stride is 0. depends: for each
    dimension whether elements differ along it.
    """

    load: Callable[..., str]
    params: tuple[Parameter, ...]
    strided: tuple[str, tuple[int, ...]] | None = None
    depends: tuple[bool, ...] = ()


class Epilogue(Plain):
    """What becomes of the result. write: (emit, *indices, value, width) emits what stores `width` elements along the last dimension."""

    write: Callable[..., None]
    params: tuple[Parameter, ...]


class Operands:
    """Operands and epilogue of one kernel. reserved: the names that its generator uses itself."""

    def __init__(self, group: Group, context: Context, reserved: Reserved) -> None:
        self.group, self.context, self.reserved = group, context, reserved
        self.used: set[str] = set()                          # names: the parameters of all stand in one list
        self.calls: list[Callback] = []

    def callback(self) -> Callback:
        self.calls.append(Callback(self.group, self.context, self.used, self.reserved))
        return self.calls[-1]

    def operand(self, node: Node, shape: Sequence[int], names: Sequence[str]) -> Operand:
        """`node` as an array of `shape`. names: what the generator may call the indices."""
        if not node.aval.size:
            return Operand(lambda emit, *at: "0", ())
        call = self.callback()

        def load(emit: Emit, *at: Term) -> str:
            return call.read(emit, node, ravel([call.position(i, n) for i, n in zip(at, shape, strict=True)], shape))

        load(lambda line: None, *names)                      # finds the parameters
        vars = [call.positions[name, n] for name, n in zip(names, shape, strict=True)]
        reached = frozenset().union(*(index.reached() for index in call.ev.indices))
        depends = tuple(n > 1 and v in reached for v, n in zip(vars, shape, strict=True))
        return Operand(load, call.params, _strided(node, call, vars), depends)

    def epilogue(self, result: Node, shape: Sequence[int], names: Sequence[str]) -> Epilogue:
        """What becomes of the elements of `result`, an array of `shape`: every stored sink of the group."""
        call, stored = self.callback(), self.group.stored

        def write(emit: Emit, *given: Any) -> None:
            *at, value, width = given
            last = call.lanes_from(at[-1], shape[-1], width, emit)
            call.begin(next(iter(last.vars), None) if width > 1 else None, width)
            names = set(self.used)
            known: Expression = Verbatim(value, result.dtype, width)
            if stored != [result]:
                if is_half(result.dtype):                        # what is made of it is made of what would be stored
                    known = call.ev.rounded(known, result.dtype)
                if isinstance(value, Compound) or is_half(result.dtype):
                    known = call.writer.declare(call.writer.base(result), known, result)
            call.ev.given = lambda node, _: known if node is result else None
            flat = ravel([*(call.position(i, n) for i, n in zip(at[:-1], shape, strict=False)), last], shape)
            self.context.store(call.ev, self.group, stored, flat)
            call.writer.round_once()
            several = len(call.statements) > 1
            if several:                                      # a block, so that the next element's variables are called the same
                emit("{")
            call.flush(emit)
            if several:
                emit("}")
                call.writer.rewind(names)

        write(lambda line: None, *names, "value", 1)         # finds the parameters
        return Epilogue(write, call.params)

    def finish(self, kernels: list[Kernel]) -> list[Kernel]:
        """The generator's kernels, with what operands and epilogue need in a program."""
        helpers = frozenset().union(*(call.writer.helpers for call in self.calls))
        types = frozenset().union(*(call.types for call in self.calls))
        return [replace(k, helpers=k.helpers | helpers, held=k.held | types) for k in kernels]


def _strided(node: Node, call: Callback, vars: list[Var]) -> tuple[str, tuple[int, ...]] | None:
    """(pointer, strides) if the one load that `call` has just seen is all there is to reading `node`."""
    pointers, indices = call.params, call.ev.indices
    if len(pointers) != 1 or len(indices) != 1 or len(call.statements) != 1:
        return None
    if not pointers[0].ref.dtype == node.dtype == computed_in(node.dtype):
        return None
    strides = [indices[0].stride(v) if v.hi > v.lo else 0 for v in vars]
    linear = ZERO
    for v, stride in zip(vars, strides, strict=True):
        linear = linear + v.index * (stride or 0)
    return (pointers[0].name, tuple(s or 0 for s in strides)) if None not in strides and linear == indices[0] else None


class Callback:
    """Evaluates nodes inside kernels that another generator writes: statements go out through its `emit`."""

    def __init__(self, group: Group, context: Context, used: set[str], reserved: Reserved) -> None:
        self.group, self.context = group, context
        self.writer: Writer = context.writer(group)
        self.writer.used, self.writer.reserved = used, reserved
        self.ev: Evaluator = context.evaluator(group, self.writer)
        self.types: set[tuple[Any, int]] = set()             # of what it computes
        self.positions: dict[tuple[str, int], Var] = {}
        self.fixed: dict[Node, bool] = {}                    # see render.line_comment
        self.printer = Printer(context.target.clang_builtins)
        self.shown: tuple[Emit | None, Any] = (None, None)                     # the kernel written to, and its last comment

    def begin(self, lane: Var | None = None, width: int = 1) -> None:
        self.writer.blocks = [Block("")]
        self.ev.lane, self.ev.width = lane, width

    def flush(self, emit: Emit) -> None:
        previous = self.shown[1] if self.shown[0] is emit else None
        for statement in self.statements:
            self.types |= types_of(statement.parts)
            comment, previous = line_comment(statement.node, previous, self.fixed)
            emit(with_comment(self.printer.statement(statement), comment))
        self.shown = emit, previous

    def read(self, emit: Emit, node: Node, at: Index) -> str:
        """Element `at` of `node` as C: after statements that compute it, or by itself where it is only loaded."""
        self.begin()
        value = self.ev.value(node, at)
        found = self.statements
        if len(found) == 1 and isinstance(found[0], Declare) and found[0].symbol is value:
            self.writer.used.discard(found[0].symbol.name)
            self.types |= types_of(found[0].parts)
            return self.printer.top(found[0].value)
        self.flush(emit)
        return self.printer.operand(value)

    def position(self, at: Term, size: int) -> Index:
        """An index that another generator gives, known to be in range: one variable for each text."""
        if isinstance(at, int):
            return constant(at)
        return self.positions.setdefault((at, size), Var(at, size, sum=isinstance(at, Compound))).index

    def lanes_from(self, at: Term, size: int, width: int, emit: Emit) -> Index:
        """The position of the first of `width` lanes. That of a vector is a variable, also where it is known: lanes are along it."""
        if width > 1 and isinstance(at, int):
            name = self.writer.unique("at")
            emit(f"const {self.writer.index} {marked(name)} = {at};")
            at = name
        return self.position(at, size)

    @property
    def params(self) -> tuple[Parameter, ...]:
        return tuple(self.writer.params.values())

    @property
    def statements(self) -> list[Statement]:
        return [s for s in self.writer.blocks[0].items if isinstance(s, Statement)]
