"""The GPU kernels of matrix products: blocks of C through local memory, a register tile per work-item. Start at `gemm`.

Fused loads run where the blocks are brought to local memory (or, without real local memory, in the inner loop), so nothing
is packed. The next blocks are fetched to registers while these are multiplied, and there are two places for them: one barrier a step.
Few rows or few columns are `thin`: a work-group adds up along k (of a `short` k, an item). If C has too few elements to fill the device
and k is long, k is split into partial results that `total` adds up in order. Convolutions are products, too (conv/gpu.py).
"""

from __future__ import annotations

from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import item, used
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import Compound, Term, ceil_div, ctype, load, plus
from tracegrad.codegen.matmul.problem import Operand, Product
from tracegrad.codegen.tuning import tuning
from tracegrad.plan import Target

_COST = {8: 1.0, 4: 1.35, 2: 2.5, 1: 5.0}       # of a multiply-add by the side of the tile: reads of local memory for each


def product(p: Product, parts: int) -> list[Kernel]:
    """The kernel for `p`, with k in `parts` parts."""
    if parts == 1 and min(p.m, p.n) <= tuning().thin and p.k < tuning().group // 8:
        return [short(p)]
    return [thin(p, parts) if _is_thin(p) else gemm(p, parts)]


def _is_thin(p: Product) -> bool:
    few = min(p.m, p.n) <= tuning().thin and p.k >= tuning().group // 8
    return few and p.target.local_memory >= 4 * tuning().group * 2 * p.dtype.itemsize


def wanted(p: Product, size: int) -> int:
    """Work-groups of `size` items with which the device is full."""
    return max(1, p.target.groups(size) // 2) if _is_thin(p) else held(p.target, size)


def gemm(p: Product, parts: int) -> Kernel:
    """The kernel for `p`, with k in `parts` parts (the store then gets partial results and can use the variable `part`)."""
    side, tile = _sizes(p)
    block, depth = side * tile, tuning().gemm_step
    params = merge(p.a.params, p.b.params, p.store.params)
    index, t = p.index, ctype(p.dtype)
    local = p.target.local_memory >= _local_bytes(p, side)
    through = f"through {block}x{depth} blocks in local memory" if local else "straight from global memory"
    emit = Text(p.name, f"{p.m}x{p.n}x{p.k} product, {tile}x{tile} elements a work-item, {through}.", params, group=(side, side, 1),
                cooperates=True)
    if local:
        for name in "ab":
            emit(f"__local {t} block_{name}[2][{depth}][{block + 4}] __attribute__((aligned(32)));")
    emit("const int x = get_local_id(0), y = get_local_id(1);")
    emit(f"const {index} i0 = get_group_id(1) * {block}, j0 = get_group_id(0) * {block};")
    batch = "b" if p.batch > 1 else 0
    k0, k1 = _range_of_k(emit, p, parts)
    emit(f"{t} c[{tile}][{tile}] = {{{{0}}}};")
    if local:
        each = ceil_div(depth * block, side * side)
        emit(f"{t} pa[{each}], pb[{each}];")
        _fetch(emit, p, side, block, batch, k0, k1)
        _put(emit, p, side, block, "0")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        emit("int panel = 0;")
        emit(f"for ({index} kb = {k0}; kb < {k1}; kb += {depth}) {{")
        emit(f"if (kb + {depth} < {k1}) {{")
        _fetch(emit, p, side, block, batch, f"kb + {depth}", k1)
        emit("}")
        emit(f"for (int k = 0; k < {depth}; k++) {{")
    else:
        emit(f"for ({index} k = {k0}; k < {k1}; k++) {{")
    emit(f"{t} a[{tile}], b_[{tile}];")
    if local:
        for first in range(0, tile, 4):                       # rows are neighbours, four at a time; columns lie apart, as they are stored
            line = plus(("y", min(4, tile)), first * side)
            if tile >= 4:
                emit(f"const {t}4 a{first} = {used('LOAD_LOCAL', f'{t}4')}, block_a[panel][k] + {line});")
            for lane in range(min(4, tile)):
                emit(f"a[{first + lane}] = {f'a{first}.s{lane}' if tile >= 4 else f'block_a[panel][k][{plus(line, lane)}]'};")
        _unrolled(emit, tile)
        with emit.counting("q", tile) as q:
            emit(f"b_[{q}] = block_b[panel][k][{plus('x', (q, side))}];")
    else:
        for operand, name in ((p.a, "a"), (p.b, "b_")):
            with emit.counting("r", tile) as r:
                line = _row(r, side, tile) if operand is p.a else plus("x", (r, side))
                number = f"{operand.name}_line"
                emit("{")
                emit(f"const {index} {number} = min({_start(operand)} + {line}, ({index}){operand.lines - 1});")
                emit(f"{name}[{r}] = {operand.load(emit, batch, number, 'k')};")
                emit("}")
    _unrolled(emit, tile)
    with emit.counting("r", tile) as r:
        _unrolled(emit, tile)
        with emit.counting("q", tile) as q:
            emit(f"c[{r}][{q}] += a[{r}] * b_[{q}];")
    emit("}")
    if local:
        emit(f"if (kb + {depth} < {k1}) {{")
        _put(emit, p, side, block, "1 - panel")
        emit("}")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        emit("panel = 1 - panel;")
        emit("}")
    _unrolled(emit, tile)
    with emit.counting("r", tile) as r:
        _unrolled(emit, tile)
        with emit.counting("q", tile) as q:
            emit(f"const {index} i = i0 + {_row(r, side, tile)}, j = {plus('j0', 'x', (q, side))};")
            inside = [f"{v} < {n}" for v, n in (("i", p.m), ("j", p.n)) if n % block]
            emit(f"if ({' && '.join(inside)}) {{" if inside else "{")
            p.store.write(emit, batch, "i", "j", Compound(f"c[{r}][{q}]"), 1)
            emit("}")
    size = (ceil_div(p.n, block) * side, ceil_div(p.m, block) * side, p.batch * parts)
    return emit.kernel(size, (side, side, 1), p.flops, p.bytes, f"{block}x{block} blocks {through}")


def _unrolled(emit: Text, n: int) -> None:
    """Asks for a loop without a counter: what is indexed by it then stays in registers."""
    if n > 1:
        emit("#pragma unroll")


def _range_of_k(emit: Text, p: Product, parts: int) -> tuple[Term, Term]:
    """Emits the batch and the part that a work-group is in; from where to where its k goes."""
    index = p.index
    if p.batch > 1:
        emit(f"const {index} b = get_group_id(2)" + (f" / {parts};" if parts > 1 else ";"))
    total: Term = p.k
    if p.extent:
        emit(f"const {index} count = {p.extent(emit, 'b' if p.batch > 1 else 0)};")
        total = "count"
    if parts == 1:
        return 0, total
    step = ceil_div(ceil_div(p.k, parts), tuning().gemm_step) * tuning().gemm_step
    emit(f"const {index} part = get_group_id(2)" + (f" % {parts};" if p.batch > 1 else ";"))
    emit.part(index, "k0", "k1", step, total)
    return "k0", "k1"


def _start(x: Operand) -> str:
    """The name of the variable that holds the first line of the work-group's block."""
    return "i0" if x.name == "a" else "j0"


def _row(r: Term, side: int, tile: int) -> Term:
    """Which row of its block a work-item's row `r` is."""
    if tile <= 4:
        return plus(("y", tile), r)
    return plus((Compound(f"{r} / 4"), 4 * side), ("y", 4), Compound(f"{r} % 4"))


def _along_k(x: Operand) -> bool:
    return not x.across and (x.pointer is None or x.strides[2] == 1)


def _places(emit: Text, x: Operand, side: int, block: int) -> tuple[int, bool]:
    """Emits where in the block element number `at` of a work-item stands, `dk` and `line`: neighbours along the unit stride."""
    depth = tuning().gemm_step
    inner = depth if _along_k(x) else block
    each = ceil_div(depth * block, side * side)
    some = depth * block % (side * side) != 0
    emit(f"const int unit = {plus(('at', side * side) if each > 1 else 0, ('y', side), 'x')};")
    if some:
        emit(f"if (unit < {depth * block}) {{")
    emit(f"const int {'dk' if _along_k(x) else 'line'} = unit % {inner}, {'line' if _along_k(x) else 'dk'} = unit / {inner};")
    return each, some


def _fetch(emit: Text, p: Product, side: int, block: int, batch: Term, kb: Term, k1: Term) -> None:
    """Emits what fetches the work-item's share of the blocks at `kb` to its registers; zeros beyond the edges."""
    depth = tuning().gemm_step
    for x in (p.a, p.b):
        each = ceil_div(depth * block, side * side)
        _unrolled(emit, each)
        with emit.counting("at", each) as at:
            emit("{")
            _, some = _places(emit, x, side, block)
            emit(f"const {p.index} {x.name}_line = {plus(_start(x), 'line')}, k = {plus(kb, 'dk')};")
            whole = isinstance(k1, int) and k1 % depth == 0
            inside = [*([f"{x.name}_line < {x.lines}"] if x.lines % block else []), *([] if whole else [f"k < {k1}"])]
            emit(f"{ctype(p.dtype)} value = 0;")
            emit(f"if ({' && '.join(inside)}) {{" if inside else "{")
            emit(f"value = {x.load(emit, batch, f'{x.name}_line', 'k')};")
            emit("}")
            emit(f"p{x.name}[{at}] = value;")
            if some:
                emit("}")
            emit("}")


def _put(emit: Text, p: Product, side: int, block: int, panel: str) -> None:
    """Emits what puts the work-item's share into local memory."""
    for x in (p.a, p.b):
        each = ceil_div(tuning().gemm_step * block, side * side)
        _unrolled(emit, each)
        with emit.counting("at", each) as at:
            emit("{")
            _, some = _places(emit, x, side, block)
            emit(f"block_{x.name}[{panel}][dk][line] = p{x.name}[{at}];")
            if some:
                emit("}")
            emit("}")


def _local_bytes(p: Product, block: int) -> int:
    return 4 * tuning().gemm_step * (block + 4) * p.dtype.itemsize


def held(target: Target, size: int) -> int:
    """Work-groups of `size` items, with tiles in registers, that a device has at a time: two of 256 a core."""
    return target.cores * max(2, 512 // size)


def parts_of_k(p: Product, groups: int, full: int) -> int:
    """Into how many parts k is cut for `groups` work-groups to become about the `full` that a device has at a time.

    With fewer some of it has nothing to do, with more a second wave follows the first: whichever costs less.
    """
    most = max(1, min(ceil_div(full, groups), p.k // tuning().split_k))
    return min(range(max(1, min(full // groups, most)), most + 1), key=lambda parts: ceil_div(groups * parts, full) / parts)


def _sizes(p: Product) -> tuple[int, int]:
    """(work-items along one side of the work-group, elements along one side of a work-item's tile): what takes the least time.

    Larger tiles read less of local memory for each multiply-add, and k may be split.
    """
    side = 16
    while side > 1 and side * side > p.target.max_work_group:
        side //= 2
    best, found = 0.0, 1
    for tile in (8, 4, 2, 1):
        block = side * tile
        if p.target.local_memory and _local_bytes(p, block) > p.target.local_memory and tile > 1:
            continue
        if tile > 4 and not p.target.local_memory:             # every element would be read again and again
            continue
        groups = ceil_div(p.m, block) * ceil_div(p.n, block) * p.batch
        parts = 1
        full = held(p.target, side * side)
        if 2 * groups < full and p.flops >= tuning().split_flops:
            parts = parts_of_k(p, groups, full)
        time = ceil_div(groups * parts, full) * block * block * _COST[tile] / parts
        if not best or time < best:
            best, found = time, tile
    return side, found


def _add(emit: Text, p: Product, large: Operand, small: Operand, batch: Term) -> None:
    """Emits what adds one k of a line of `large`, times that of each of the few lines of `small`, to `c`."""
    emit(f"const {ctype(p.dtype)} value = {large.load(emit, batch, 'line0', 'k')};")
    for n in range(small.lines):
        emit("{")
        emit(f"c[{n}] += value * {small.load(emit, batch, n, 'k')};")
        emit("}")


def short(p: Product) -> Kernel:
    """Few rows or few columns, and a short k (depthwise convolutions): an item adds up what there is along the others, line by line."""
    large, small = (p.a, p.b) if p.m >= p.n else (p.b, p.a)
    few, t, index, count = small.lines, ctype(p.dtype), p.index, p.batch * large.lines
    size = p.target.group(tuning().group)
    about = f"{p.m}x{p.n}x{p.k} product, {few} elements a work-item."
    emit = Text(p.name, about, merge(p.a.params, p.b.params, p.store.params), group=None)
    emit(f"const {index} at = {item(0)};")
    if count % size:
        emit(f"if (at < {count}) {{")
    batch = "b" if p.batch > 1 else 0
    if p.batch == 1 or large.lines == 1:
        emit(f"const {index} line0 = {'at' if p.batch == 1 else '0, b = at'};")
    else:
        emit(f"const {index} line0 = at % {large.lines}, b = at / {large.lines};")
    stop = p.extent(emit, batch) if p.extent else str(p.k)
    emit.array(t, "c", few, "{0}")
    if not p.extent:
        _unrolled(emit, p.k)
    emit(f"for (int k = 0; k < {stop}; k++) {{")
    _add(emit, p, large, small, batch)
    emit("}")
    for n in range(few):
        emit("{")
        emit(f"const {t} value = c[{n}];")
        i, j = ("line0", n) if large is p.a else (n, "line0")
        p.store.write(emit, batch, i, j, "value", 1)
        emit("}")
    if count % size:
        emit("}")
    return emit.kernel((ceil_div(count, size) * size,), (size,), p.flops, p.bytes, f"{few} elements a work-item")


def thin(p: Product, parts: int) -> Kernel:
    """Few rows or few columns: the other operand is read once, by neighbours as it lies, and a work-group adds up along k."""
    large, small = (p.a, p.b) if p.m >= p.n else (p.b, p.a)
    few, t, index = small.lines, ctype(p.dtype), p.index
    size = 1
    while 2 * size <= min(tuning().group, p.target.max_work_group):
        size *= 2
    along = _along_k(large)
    lines = 1
    while lines < min(large.lines, 8 if along else 32, size):
        lines *= 2
    lanes = size // lines
    params = merge(p.a.params, p.b.params, p.store.params)
    group = (lanes, lines, 1) if along else (lines, lanes, 1)
    what = f"{lines} {'rows' if large is p.a else 'columns'}"
    emit = Text(p.name, f"{p.m}x{p.n}x{p.k} product, {lanes} work-items along k for each of {what}.", params, group=group, cooperates=True)
    emit(f"__local {t} block_a[{few}][{size}];")
    emit("const int x = get_local_id(0), y = get_local_id(1);")
    lane, line = ("x", "y") if along else ("y", "x")
    emit(f"const int unit = {plus((line, lanes), lane) if along else plus((lane, lines), line)};")
    emit(f"const {index} line0 = {plus((Compound(f'get_group_id({1 if along else 0})'), lines), line)};")
    batch = "b" if p.batch > 1 else 0
    k0, k1 = _range_of_k(emit, p, parts)
    emit.array(t, "c", few, "{0}")
    if large.lines % lines:
        emit(f"if (line0 < {large.lines}) {{")
    emit(f"for ({index} k = {plus(k0, lane)}; k < {k1}; k += {lanes}) {{")
    _add(emit, p, large, small, batch)
    emit("}")
    if large.lines % lines:
        emit("}")
    for n in range(few):
        emit(f"block_a[{n}][unit] = c[{n}];")
    emit("barrier(CLK_LOCAL_MEM_FENCE);")
    half = lanes // 2
    while half:
        emit(f"if ({lane} < {half}) {{")
        for n in range(few):
            emit(f"block_a[{n}][unit] += block_a[{n}][unit + {half if along else half * lines}];")
        emit("}")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        half //= 2
    emit(f"if ({lane} == 0" + (f" && line0 < {large.lines}) {{" if large.lines % lines else ") {"))
    with emit.counting("r", few) as r:
        emit(f"const {t} value = block_a[{r}][unit];")
        i, j = ("line0", r) if large is p.a else (r, "line0")
        p.store.write(emit, batch, i, j, "value", 1)
    emit("}")
    groups = ceil_div(large.lines, lines)
    sizes = (group[0], groups * group[1]) if along else (groups * group[0], group[1])
    return emit.kernel((*sizes, p.batch * parts), group, p.flops, p.bytes, f"{lanes} work-items along k")


def total(p: Product, parts: int, partial: Temp | None) -> Kernel:
    """The kernel that adds the partial results in order and runs the epilogue; with no parts it stores zeros."""
    size, t, index = p.m * p.n, ctype(p.dtype), p.index
    room = min(tuning().group, p.target.max_work_group)
    lanes, lines = 1, 1
    while 2 * lines <= min(room, 32 if parts >= 16 and p.target.local_memory else 64):
        lines *= 2
    while parts >= 16 and p.target.local_memory and 2 * lanes * lines <= room and lanes < 8:
        lanes *= 2
    params = merge((partial.buffer("partial", "const"),) if partial else (), p.store.params)
    about = f"Adds up {parts} partial results, an element a work-item." if parts else "An empty sum: all zeros."
    emit = Text(f"{p.name}_total" if parts else p.name, about, params, group=(lines, lanes, 1), cooperates=True)
    batch = "b" if p.batch > 1 else 0
    emit("const int x = get_local_id(0), y = get_local_id(1);")
    emit(f"const {index} at = get_global_id(0);")
    if p.batch > 1:
        emit(f"const {index} b = get_global_id(2);")
    emit(f"{t} c = 0;")
    if parts:
        emit(f"if (at < {size}) {{")
        emit(f"for ({index} part = y; part < {parts}; part += {lanes}) {{")
        where = plus((Compound(f"part * {p.batch} + {batch}") if p.batch > 1 else "part", size), "at")
        emit(f"c += {load(p.dtype, 1, f'partial + {where}')};")
        emit("}")
        emit("}")
    if lanes > 1:
        emit(f"__local {t} block_a[{lanes}][{lines}];")
        emit("block_a[y][x] = c;")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        emit("c = block_a[0][x];")
        emit(f"for (int r = 1; r < {lanes}; r++) {{")
        emit("c += block_a[r][x];")
        emit("}")
    emit(f"if (y == 0 && at < {size}) {{")
    emit(f"const {index} i = at / {p.n}, j = at % {p.n};")
    p.store.write(emit, batch, "i", "j", "c", 1)
    emit("}")
    moved = (parts + 1) * p.batch * size
    return emit.kernel((ceil_div(size, lines) * lines, lanes, p.batch), (lines, lanes, 1), moved, moved * p.dtype.itemsize,
                       f"adds up {parts} parts of k")
