"""Matrix products: a group of the schedule, as what `gpu.kernels` and `schedules.gemm` are given. Start at `lower_contraction`.

What is fused with a product are its operands' casts, transposes and broadcasts, and its epilogue: see `lower/fused.py` (tile programs) and
`lower/epilogue.py` (text).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tracegrad.codegen.kernel.index import Index, ravel
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.names import is_reserved_by_product
from tracegrad.codegen.kernel.vectors import computed_in
from tracegrad.codegen.lower.context import Context, flops, lowering, traffic
from tracegrad.codegen.lower.epilogue import Operands
from tracegrad.codegen.lower.fused import as_it_lies, lies_across
from tracegrad.codegen.matmul import gpu
from tracegrad.codegen.matmul.schedules import Matrix, Store, gemm
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.ir import Node


@lowering("contraction")
def lower_contraction(group: Group, context: Context) -> list[Kernel]:
    kernels = (_on_gpu if context.target.kind == "gpu" else _on_cpu)(group, context)
    product = group.anchor
    work, moved = 2 * product.aval.size * product.operands[0].shape[-1] + flops(group), traffic(group)
    kernels[-1] = replace(kernels[-1], flops=kernels[-1].flops or work, bytes=kernels[-1].bytes or moved)
    return kernels


def _sizes(product: Node) -> tuple[int, int, int, int]:
    """(batch, m, n, k)"""
    x, y = product.operands
    return prod(product.shape[:-2]), x.shape[-2], y.shape[-1], x.shape[-1]


def _on_cpu(group: Group, context: Context) -> list[Kernel]:
    product = group.anchor
    operands = Operands(group, context, is_reserved_by_product)
    a, b = (_matrix(operands, node) for node in product.operands)
    batch, m, n, k = _sizes(product)
    store = operands.epilogue(product, (batch, m, n), "bij")
    kernels = gemm(context.entry(group), batch, m, n, k, computed_in(product.dtype), a, b, Store(store.write, store.params), context.target,
                   product)
    return operands.finish(kernels)


def _matrix(operands: Operands, node: Node) -> Matrix:
    """`node`, (*B, rows, columns), as gemm reads it."""
    found = operands.operand(node, (prod(node.shape[:-2]), *node.shape[-2:]), "bij")
    strided = found.strided and (found.strided[0], *found.strided[1])
    return Matrix(found.load, found.params, strided, found.depends[:1] == (True,),  # type: ignore[arg-type]
                  operands.context.steady(node))


def _on_gpu(group: Group, context: Context) -> list[Kernel]:
    product = group.anchor
    (x, y), (batch, m, n, k) = product.operands, _sizes(product)

    def rows(b: Index, line: Index, at: Index) -> Index:
        return ravel((b, line, at), (batch, m, k))

    def columns(b: Index, line: Index, at: Index) -> Index:
        return ravel((b, at, line), (batch, k, n))

    def operand(node: Node, lines: int, flat: Callable[[Index, Index, Index], Index]) -> gpu.Operand:
        across = bool(node.aval.size) and lies_across(group, context, node, (batch, lines, k), flat, 1, 2)
        strided = as_it_lies(group, context, node, (batch, lines, k), flat) if node.aval.size else None
        return gpu.Operand(node, lambda f, at: (flat(*at), ()), across, strided)

    dtype = computed_in(product.dtype)
    return gpu.kernels(gpu.Product(
        group, context, context.entry(group), batch, m, n, k, dtype, operand(x, m, rows), operand(y, n, columns), product,
        lambda f, at: (ravel(at, (batch, m, n)), ()), batch * (m * k + k * n + m * n) * dtype.itemsize))
