"""Matrix products: a group of the schedule, as what `gpu.kernels` and `cpu.kernels` are given. Start at `lower_contraction`.

What is fused with a product are its operands' casts, transposes and broadcasts, and its epilogue: see `lower/fused.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from tracegrad.codegen.kernel.index.index import Index, ravel
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.vectors import computed_in
from tracegrad.codegen.lower.context import Context, flops, lowering, traffic
from tracegrad.codegen.lower.fused import Fused, as_it_lies, lies_across, read_for
from tracegrad.codegen.matmul import cpu, gpu
from tracegrad.codegen.matmul.problem import Operand, Product
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node

_KERNELS = {"cpu": cpu.kernels, "gpu": gpu.kernels}


@lowering("contraction")
def lower_contraction(group: Group, context: Context) -> list[Kernel]:
    kernels = _KERNELS[context.target.kind](problem(group, context))
    product = group.anchor
    work, moved = 2 * product.aval.size * product.operands[0].shape[-1] + flops(group), traffic(group)
    kernels[-1] = replace(kernels[-1], flops=kernels[-1].flops or work, bytes=kernels[-1].bytes or moved)
    return kernels


def _sizes(product: Node) -> tuple[int, int, int, int]:
    """(batch, m, n, k)"""
    x, y = product.operands
    return prod(product.shape[:-2]), x.shape[-2], y.shape[-1], x.shape[-1]


def problem(group: Group, context: Context) -> Product:
    """The product that the group's anchor is."""
    product = group.anchor
    (x, y), (batch, m, n, k) = product.operands, _sizes(product)

    def rows(b: Index, line: Index, at: Index) -> Index:
        return ravel((b, line, at), (batch, m, k))

    def columns(b: Index, line: Index, at: Index) -> Index:
        return ravel((b, at, line), (batch, k, n))

    def operand(node: Node, lines: int, flat: Callable[[Index, Index, Index], Index]) -> Operand:
        def where(f: Fused, at: Sequence[Index]) -> tuple[Index, tuple[()]]:
            return flat(*at), ()

        if node.aval.size == 0:
            return Operand(node, where, False)
        vars, read = read_for(group, context, node, (batch, lines, k), flat)
        batched = batch > 1 and any(vars[0] in x.reached() for x in read)
        return Operand(node, where, lies_across(vars, read, 1, 2), as_it_lies(group, context, node, (batch, lines, k), flat), batched)

    dtype = computed_in(product.dtype)
    return Product(
        group, context, context.entry(group), batch, m, n, k, dtype, operand(x, m, rows), operand(y, n, columns), product,
        lambda f, at: (ravel(at, (batch, m, n)), ()), batch * (m * k + k * n + m * n) * dtype.itemsize)
