"""Matrix products: what the schedule knows, put into the callbacks of `gemm`. Start at `lower_contraction`.

Operands are read through transposes, casts and broadcasts (a plain buffer tells its strides, so that the generator can read it
directly); the group's other sinks (bias, activation, masks of the backward pass) are computed where the product is stored.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tracegrad.codegen.kernel.evaluator import Evaluator
from tracegrad.codegen.kernel.expressions import Expression, Verbatim
from tracegrad.codegen.kernel.index import Index, Var, constant
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.names import is_reserved, is_reserved_by_product
from tracegrad.codegen.kernel.render import Printer, line_comment, with_comment
from tracegrad.codegen.kernel.statements import Block, Declare, Parameter, Statement
from tracegrad.codegen.kernel.vectors import Emit, computed_in
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.context import Context, flops, lowering, traffic
from tracegrad.codegen.matmul.schedules import Matrix, Store, gemm
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.ir import Node


class Callback:
    """Evaluates nodes inside kernels that another generator writes: statements go out through its `emit`."""

    def __init__(self, group: Group, context: Context, used: set[str]) -> None:
        """used: the names of the kernel so far; operands and epilogue share it, their parameters stand in one list."""
        self.group, self.context = group, context
        self.writer: Writer = context.writer(group)
        self.writer.used = used
        self.writer.reserved = is_reserved if context.target.kind == "gpu" else is_reserved_by_product
        self.ev: Evaluator = context.evaluator(group, self.writer)
        self.positions: dict[tuple[str, int], Var] = {}
        self.printer = Printer(context.target.clang_builtins)
        self.shown: tuple[Emit | None, Any] = (None, None)                     # the kernel written to, and its last comment

    def begin(self, lane: Var | None = None, width: int = 1) -> None:
        self.writer.blocks = [Block("")]
        self.ev.lane, self.ev.width = lane, width

    def flush(self, emit: Emit) -> None:
        previous = self.shown[1] if self.shown[0] is emit else None
        for statement in self.statements:
            comment, previous = line_comment(statement.node, previous)
            emit(with_comment(self.printer.statement(statement), comment))
        self.shown = emit, previous

    def read(self, emit: Emit, node: Node, at: Index) -> str:
        """Element `at` of `node` as C: after statements that compute it, or by itself where it is only loaded."""
        self.begin()
        value = self.ev.value(node, at)
        found = self.statements
        if len(found) == 1 and isinstance(found[0], Declare) and found[0].symbol is value:
            self.writer.used.discard(found[0].symbol.name)
            return self.printer.top(found[0].value)
        self.flush(emit)
        return self.printer.operand(value)

    def position(self, text: str, size: int) -> Index:
        """An index that another generator gives as C text, known to be in range: one variable for each text."""
        if text.isdigit():
            return constant(int(text))
        return self.positions.setdefault((text, size), Var(text, size, sum=not text.isidentifier())).index

    @property
    def params(self) -> tuple[Parameter, ...]:
        return tuple(self.writer.params.values())

    @property
    def statements(self) -> list[Statement]:
        return [s for s in self.writer.blocks[0].items if isinstance(s, Statement)]


def lanes_from(text: str, size: int, width: int, emit: Emit, call: Callback) -> Index:
    """The position of the first of `width` lanes. A vector's is a variable, also where it is known: along it the evaluator sees lanes."""
    if width > 1 and text.isdigit():
        name = call.writer.unique("at")
        emit(f"const {call.writer.index} {name} = {text};")
        text = name
    return call.position(text, size)


def operand(node: Node, group: Group, context: Context, used: set[str]) -> tuple[Matrix, Callback]:
    """`node` (*B, rows, cols) as gemm reads it."""
    rows, cols = node.shape[-2:]
    batch = prod(node.shape[:-2])
    call = Callback(group, context, used)

    def flat(b: str, i: str, j: str) -> Index:
        return (call.position(b, batch) * rows + call.position(i, rows)) * cols + call.position(j, cols)

    def load(emit: Emit, b: str, i: str, j: str) -> str:
        return call.read(emit, node, flat(b, i, j))

    load(lambda line: None, "b", "i", "j")                  # finds the parameters
    strided = None
    params = call.params
    vars = {name: call.positions[name, n] for name, n in (("b", batch), ("i", rows), ("j", cols))}
    b, i, j = (var.index for var in vars.values())
    index = call.ev.indices[-1] if call.ev.indices else None
    plain = len(params) == 1 and len(call.ev.indices) == 1 and len(call.statements) == 1
    if plain and index is not None and index.constant == 0 and params[0].ref.dtype == node.dtype == computed_in(node.dtype):
        found = [index.stride(vars[v]) if n > 1 else 0 for v, n in (("b", batch), ("i", rows), ("j", cols))]
        if None not in found and index == b * (found[0] or 0) + i * (found[1] or 0) + j * (found[2] or 0):
            strided = (params[0].name, *[f or 0 for f in found])
    batched = batch > 1 and any(vars["b"] in x.vars for x in call.ev.indices)
    return Matrix(load, params, strided, batched), call  # type: ignore[arg-type]


def epilogue(product: Node, group: Group, context: Context, used: set[str]) -> tuple[Store, Callback]:
    """What becomes of the elements of `product`: every stored sink of the group."""
    m, n = product.shape[-2:]
    batch = prod(product.shape[:-2])
    call = Callback(group, context, used)
    stored = group.stored

    def write(emit: Emit, b: str, i: str, j: str, value: str, width: int) -> None:
        at = lanes_from(j, n, width, emit, call)
        call.begin(next(iter(at.vars), None) if width > 1 else None, width)
        flat = (call.position(b, batch) * m + call.position(i, m)) * n + at
        kind: Expression = Verbatim(value, product.dtype, width)
        if not value.isidentifier() and (len(stored) > 1 or stored[0] is not product):
            kind = call.writer.declare(call.writer.base(product), kind, product)
        call.ev.given = lambda node, _: kind if node is product else None
        context.store(call.ev, group, stored, flat)
        call.flush(emit)

    write(lambda line: None, "b", "i", "j", "value", 1)
    return Store(write, call.params), call


@lowering("contraction")
def lower_contraction(group: Group, context: Context) -> list[Kernel]:
    product = group.anchor
    x, y = product.operands
    used: set[str] = set()
    a, call_a = operand(x, group, context, used)
    b, call_b = operand(y, group, context, used)
    store, call_c = epilogue(product, group, context, used)
    entry, dtype = context.entry(group), computed_in(product.dtype)
    batch, (m, k), n = prod(product.shape[:-2]), x.shape[-2:], y.shape[-1]
    kernels = gemm(entry, batch, m, n, k, dtype, a, b, store, context.target, product)
    helpers = frozenset(call_a.writer.helpers | call_b.writer.helpers | call_c.writer.helpers)
    context.dtypes |= {dtype, *(n.dtype for n in (*group.reads, *group.sinks))}
    work, moved = 2 * product.aval.size * x.shape[-1] + flops(group), traffic(group)
    kernels[-1] = replace(kernels[-1], flops=kernels[-1].flops or work, bytes=kernels[-1].bytes or moved)
    return [replace(k, helpers=k.helpers | helpers) for k in kernels]
