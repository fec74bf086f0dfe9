"""Matrix products: a group of the schedule, put into the callbacks of `gemm`. Start at `lower_contraction`.

What is fused with a product are its operands' casts, transposes and broadcasts, and its epilogue: see `lower/epilogue.py`.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.names import is_reserved, is_reserved_by_product
from tracegrad.codegen.kernel.vectors import computed_in
from tracegrad.codegen.lower.context import Context, flops, lowering, traffic
from tracegrad.codegen.lower.epilogue import Operands
from tracegrad.codegen.matmul.schedules import Matrix, Store, gemm
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.ir import Node


@lowering("contraction")
def lower_contraction(group: Group, context: Context) -> list[Kernel]:
    product = group.anchor
    x, y = product.operands
    operands = Operands(group, context, is_reserved if context.target.kind == "gpu" else is_reserved_by_product)
    a, b = (_matrix(operands, node) for node in (x, y))
    batch, (m, k), n = prod(product.shape[:-2]), x.shape[-2:], y.shape[-1]
    store = operands.epilogue(product, (batch, m, n), "bij")
    kernels = gemm(context.entry(group), batch, m, n, k, computed_in(product.dtype), a, b, Store(store.write, store.params), context.target,
                   product)
    work, moved = 2 * product.aval.size * k + flops(group), traffic(group)
    kernels[-1] = replace(kernels[-1], flops=kernels[-1].flops or work, bytes=kernels[-1].bytes or moved)
    return operands.finish(kernels)


def _matrix(operands: Operands, node: Node) -> Matrix:
    """`node`, (*B, rows, columns), as gemm reads it."""
    found = operands.operand(node, (prod(node.shape[:-2]), *node.shape[-2:]), "bij")
    strided = found.strided and (found.strided[0], *found.strided[1])
    return Matrix(found.load, found.params, strided, found.depends[:1] == (True,), found.side_by_side or (False,) * 3,  # type: ignore[arg-type]
                  operands.context.steady(node))
