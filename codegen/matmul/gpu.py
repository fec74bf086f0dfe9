"""The GPU kernels of matrix products: blocks of C through local memory, a small register tile per work-item. Start at `gemm`.

Fused loads run where the blocks are brought to local memory (or, without real local memory, in the inner loop), so nothing
is packed. If C has too few elements to fill the device and k is long, k is split into partial results added up in order.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import ceil_div, ctype, plus
from tracegrad.codegen.matmul.problem import Operand, Product
from tracegrad.codegen.tuning import tuning


def gemm(p: Product, parts: int) -> Kernel:
    """The kernel for `p`, with k in `parts` parts (the store then gets partial results and can use the variable `part`)."""
    side, tile = _sizes(p)
    block = side * tile
    params = merge(p.a.params, p.b.params, p.store.params)
    index, t = p.index, ctype(p.dtype)
    local = p.target.local_memory >= 2 * tuning().gemm_step * (block + 1) * p.dtype.itemsize
    through = f"through {block}x{tuning().gemm_step} blocks in local memory" if local else "straight from global memory"
    emit = Text(p.name, f"{p.m}x{p.n}x{p.k} product, {tile}x{tile} elements a work-item, {through}.", params, (side, side, 1), True)
    if local:
        emit(f"__local {t} block_a[{tuning().gemm_step}][{block + 1}], block_b[{tuning().gemm_step}][{block + 1}];")
    emit("const int x = get_local_id(0), y = get_local_id(1);")
    emit(f"const {index} i0 = get_group_id(1) * {block}, j0 = get_group_id(0) * {block};")
    batch = "b" if p.batch > 1 else "0"
    if p.batch > 1:
        emit(f"const {index} b = get_global_id(2)" + (f" / {parts};" if parts > 1 else ";"))
    k0, k1 = "0", str(p.k)
    if parts > 1:
        step = ceil_div(ceil_div(p.k, parts), tuning().gemm_step) * tuning().gemm_step
        emit(f"const {index} part = get_global_id(2)" + (f" % {parts};" if p.batch > 1 else ";"))
        emit(f"const {index} k0 = min(part * {step}, {p.k}), k1 = min(k0 + {step}, {p.k});")
        k0, k1 = "k0", "k1"
    emit(f"{t} c[{tile}][{tile}] = {{{{0}}}};")
    if local:
        emit(f"for ({index} kb = {k0}; kb < {k1}; kb += {tuning().gemm_step}) {{")
        _fill(emit, p, p.a, side, block, batch, k1)
        _fill(emit, p, p.b, side, block, batch, k1)
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        emit(f"for (int k = 0; k < {tuning().gemm_step}; k++) {{")
    else:
        emit(f"for ({index} k = {k0}; k < {k1}; k++) {{")
    emit(f"{t} a[{tile}], b_[{tile}];")
    for operand, name, lane in ((p.a, "a", "y"), (p.b, "b_", "x")):
        with emit.counting("r", tile) as r:
            line, number = plus(lane, (r, side)), f"{operand.name}_line"
            if local:
                emit(f"{name}[{r}] = block_{operand.name}[k][{line}];")
            else:
                emit(f"const {index} {number} = min({_start(operand)} + {line}, ({index}){operand.lines - 1});")
                emit(f"{name}[{r}] = {operand.load(emit, batch, number, 'k')};")
    with emit.counting("r", tile) as r, emit.counting("q", tile) as q:
        emit(f"c[{r}][{q}] += a[{r}] * b_[{q}];")
    emit("}")
    if local:
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        emit("}")
    with emit.counting("r", tile) as r, emit.counting("q", tile) as q:
        emit(f"const {index} i = {plus('i0', 'y', (r, side))}, j = {plus('j0', 'x', (q, side))};")
        emit(f"if (i < {p.m} && j < {p.n}) {{")
        p.store.write(emit, batch, "i", "j", f"c[{r}][{q}]", 1)
        emit("}")
    size = (ceil_div(p.n, block) * side, ceil_div(p.m, block) * side, p.batch * parts)
    return emit.kernel(size, (side, side, 1), p.flops, p.bytes, f"{block}x{block} blocks {through}")


def _start(x: Operand) -> str:
    """The name of the variable that holds the first line of the work-group's block."""
    return "i0" if x.name == "a" else "j0"


def _fill(emit: Text, p: Product, x: Operand, side: int, block: int, batch: str, k1: str) -> None:
    """Emits the loop in which the work-group brings one block to local memory, neighbours reading along the unit stride."""
    along_k = x.pointer is None or x.strides[2] == 1
    inner = tuning().gemm_step if along_k else block
    emit(f"for (int at = y * {side} + x; at < {tuning().gemm_step * block}; at += {side * side}) {{")
    emit(f"const int {'dk' if along_k else 'line'} = at % {inner}, {'line' if along_k else 'dk'} = at / {inner};")
    emit(f"const {p.index} {x.name}_line = {plus(_start(x), 'line')}, k = kb + dk;")
    emit(f"{ctype(p.dtype)} value = 0;")
    emit(f"if ({x.name}_line < {x.lines} && k < {k1}) {{")
    emit(f"value = {x.load(emit, batch, f'{x.name}_line', 'k')};")
    emit("}")
    emit(f"block_{x.name}[dk][line] = value;")
    emit("}")


def _sizes(p: Product) -> tuple[int, int]:
    """(work-items along one side of the work-group, elements along one side of a work-item's tile)."""
    side = 16
    while side > 1 and side * side > p.target.max_work_group:
        side //= 2
    tile = 4
    column = 2 * tuning().gemm_step * p.dtype.itemsize
    while tile > 1 and (tile // 2 * side >= max(p.m, p.n) or column * (side * tile + 1) > p.target.local_memory > 0):
        tile //= 2
    return side, tile
