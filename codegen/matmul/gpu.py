"""GPU kernels of matrix products, as tile programs: blocks of C through local memory, a register tile per work-item. Start at `kernels`.

Fused loads run where the blocks are brought to local memory (or, without real local memory, in the inner loop), so nothing is packed.
Few rows or few columns are `_thin`: a work-group adds up along k (of a `_short` k, an item). If C has too few elements to fill the device
and k is long, k is split into partial results that `_total` adds up in order. All of these are one program with other layouts (`Layout`).
Convolutions are products, too (conv/gpu.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.kernel.ir.expressions import Expression
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.vectors import bit_ceil, bit_floor, ceil_div, index_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.fused import Fused
from tracegrad.codegen.matmul.problem import Operand, Product, partial, total
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.gpu import VECTOR, staged_bytes
from tracegrad.codegen.tile.instructions import MatrixInstruction, instruction_for
from tracegrad.codegen.tile.matrix import Blocks, lines
from tracegrad.codegen.tile.program import Axis, Digit, Dot, ElementAt, Held, Load, Loop, Program, Tile, summed
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning

REGISTERS = 224                                 # 32-bit ones, of 255, that tiles take of a work-item at most
_MATRIX = 8.0                                   # ordinary multiply-adds in whose time matrix instructions do one, about
_WAVES = 8                                      # work-groups a core, at most, into which k is cut
_ITEMS = 432.0                                  # work-items with tiles in registers that keep a core busy
_BALANCE = 16.0                                 # flops of a product while a byte is moved, about
_LAUNCH = 1 << 20                               # bytes that are moved while one more kernel is launched, about
_READ = 1.5                                     # multiply-adds in whose time one element is read from local memory
_CACHED = 3.0                                   # bytes that caches move while memory moves one


class Layout(Plain):
    """How the work-groups and their items share the axes of a product; staged: its operands come through local memory; unrolled: the loop
    over k is. by: the matrix instruction that multiplies, and how its blocks are shared.
    """

    batch: Axis
    rows: Axis
    columns: Axis
    k: Axis
    local: tuple[int, ...]
    staged: bool
    about: str
    note: str
    unrolled: bool = False
    by: MatrixInstruction | None = None
    blocks: Blocks | None = None

    def operands(self, dtype: DType) -> tuple[Tile, Tile]:
        """The tiles of A and B."""
        return (Tile("a", (self.batch, self.rows, self.k), dtype, self.staged),
                Tile("b", (self.batch, self.columns, self.k), dtype, self.staged))

    @property
    def groups(self) -> int:
        """How many work-groups there are."""
        return prod(Program((self.batch, self.rows, self.columns), self.local, ()).launched) // prod(self.local)


@lowering("contraction", on="gpu")
def lower_product(group: Group, context: Context) -> list[Kernel]:
    return kernels(Product.of(group, context))


def kernels(p: Product) -> list[Kernel]:
    """The kernels, in launch order."""
    layout = layout_of(p)
    # A work-item adds up at most what two levels of accumulators take. (Matrix instructions round as they do.)
    most = tuning().product_steps * tuning().product_blocks * layout.k.held(Held.ITEM) if layout.by is None else p.k
    parts = max(_parts(p, layout), ceil_div(p.k, most))
    parts = ceil_div(p.k, _length(p, layout, parts))                         # none of them is empty
    return [_product(p, layout, parts), *([_total(p, parts)] if parts > 1 else [])]


def _parts(p: Product, layout: Layout) -> int:
    """Into how many parts k is cut: 1, unless there are too few work-groups to fill the device."""
    flops, busy = p.flops if layout.by is None else p.flops / _MATRIX, _ITEMS
    if _is_thin(p):                                          # it waits for memory, for which half of the items that a core holds are enough
        flops, busy = p.batch * (p.m + p.n) * p.k * p.dtype.itemsize * _BALANCE, p.target.resident / 2
    return split(p, layout.groups, prod(layout.local), flops, busy)[0]


def split(p: Product, groups: int, items: int, flops: float, busy: float = _ITEMS) -> tuple[int, float]:
    """Into how many parts k is cut, and the time that it takes then, in bytes that are moved meanwhile.

    The core that has most work-groups is the last to end, few items do not keep a core busy, and partial results are written and read
    again. (144 groups on 132 cores: 21 Tflop/s, 1024 of them: 35.) busy: items that keep a core busy.
    """
    cores, size = p.target.cores, 2 * p.batch * p.m * p.n * p.dtype.itemsize
    most = max(1, min(ceil_div(_WAVES * cores, groups), p.k // tuning().split_k)) if p.flops >= tuning().split_flops else 1
    found = {1: _core_time(ceil_div(groups, cores), groups, cores, items / busy, flops)}
    for each in range(ceil_div(groups, cores), ceil_div(groups * most, cores) + 1):
        least, last = cores * (each - 1) // groups + 1, min(most, cores * each // groups)
        if least <= last:                                    # the busiest core has `each` groups: its time is in proportion to 1 / parts
            share = _core_time(each, groups, cores, items / busy, flops)
            best = isqrt(int(share / size))                  # where more partial results cost as much as is gained
            for parts in (min(max(parts, least), last) for parts in (best, best + 1)):
                if parts > 1:
                    found[parts] = share / parts + parts * size + _LAUNCH
    return min(found.items(), key=lambda x: (x[1], x[0]))


def _core_time(each: int, groups: int, cores: int, items: float, flops: float) -> float:
    """The time of the core that has most work-groups, `each`, times the number of parts that k is in. items: those of a work-group, of
    those that keep a core busy.
    """
    return flops * cores * each / groups / min(1.0, each * items) / _BALANCE


def _length(p: Product, layout: Layout, parts: int) -> int:
    """Of a part of k."""
    return p.length(parts, layout.k.block if layout.staged else tuning().gemm_step)


def _product(p: Product, layout: Layout, parts: int) -> Kernel:
    """The kernel that computes C, or (in several parts of k) partial results."""
    f = Fused(p.group, p.context, index_type(parts * p.batch * p.m * p.n))
    part = Axis("part", parts, (Digit(Held.GROUP, parts, 2),)) if parts > 1 else None
    root = partial(f, p.name, p.dtype, (parts, p.batch, p.m, p.n)) if parts > 1 else f.result(p.result, p.where)
    a, b = (_load(p, f, layout, tile, x) for tile, x in zip(layout.operands(p.dtype), (p.a, p.b), strict=True))
    return multiplied(p, f, layout, a, b, root, part)


def multiplied(p: Product, f: Fused, layout: Layout, a: Load, b: Load, root: ElementAt, part: Axis | None = None) -> Kernel:
    """The kernel of a product. a, b: how the operands are read; part: the parts of k."""
    outer = () if part is None else (part,)
    c = Tile("c", (*outer, layout.batch, layout.rows, layout.columns), p.dtype)
    begin, blocks = p.begin, layout.blocks
    loop = Loop(
        layout.k, (a, b, Dot(c, a.tile, b.tile, layout.by)), part, 0 if part is None else _length(p, layout, part.size),
        None if begin is None else lambda at: begin(f, at), (layout.batch,), layout.unrolled and begin is None,
        *((2, False) if blocks is None else (blocks.stages, blocks.ahead)))
    program = Program((*outer, layout.batch, layout.rows, layout.columns, layout.k), layout.local, summed(loop, root))
    return f.kernel(program, p.name, layout.about, p.flops, p.bytes, layout.note)


def _load(p: Product, f: Fused, layout: Layout, tile: Tile, x: Operand) -> Load:
    """How an operand is read; copied, where 16 bytes can be."""
    source = f.operand(x.node, x.where)
    if x.strided is None or not _is_copied(p, x) or (
            layout.by is None and (not layout.staged or x.node.dtype != p.dtype or p.target.host_memory)):
        return Load(tile, source, x.across)             # (the host's arrays may begin anywhere)
    return Load(tile, source, x.across, f.copied(x.strided, 16 // x.node.dtype.itemsize))


def _is_copied(p: Product, x: Operand) -> bool:
    """Whether 16 bytes of it lie together wherever they are copied, and all of them are there, or none."""
    if x.strided is None or p.begin is not None:
        return False
    each, along = 16 // x.node.dtype.itemsize, 1 if x.across else 2
    others = [*x.strided.strides[:along], *x.strided.strides[along + 1:], x.strided.first, x.count if x.across else p.k]
    return x.strided.strides[along] == 1 and all(n % each == 0 for n in others)


def _total(p: Product, parts: int) -> Kernel:
    """The kernel that adds the partial results: an item an element, or several a share of the parts."""
    size = p.m * p.n
    room = min(tuning().group, p.target.max_work_group)
    shared = parts >= 16 and p.target.local_memory > 0
    lines = min(bit_floor(room), 32 if shared else 64)
    lanes = min(bit_floor(room) // lines, 8) if shared else 1
    f = Fused(p.group, p.context, index_type(parts * p.batch * size))
    batch = Axis("b", p.batch, (Digit(Held.GROUP, p.batch, 2),))
    at = Axis("at", size, _lines(size, lines, 0, lanes > 1))
    part = Axis("part", parts, (Digit(Held.ITEM, lanes, 1),) if lanes > 1 else ())

    def where(f: Fused, given: Sequence[Index]) -> tuple[Index, Sequence[Expression]]:
        b, flat = given
        return p.where(f, (b, f.writer.indexed("i", flat // p.n), f.writer.indexed("j", flat % p.n)))

    return total(f, p.name, (batch, at), (lines, lanes, 1), p.dtype, part, f.result(p.result, where), "an element a work-item")


# ---- layouts -----------------------------------------------------------------------------------------------------------------


def _lines(size: int, items: int, dim: int, grouped: bool = True) -> tuple[Digit, ...]:
    """An element an item; grouped: the items of a group have to do with each other."""
    groups = ceil_div(size, items)
    return (Digit(Held.GROUP, groups, dim), Digit(Held.ITEM, items, dim)) if grouped else (Digit(Held.GLOBAL, groups * items, dim),)


def layout_of(p: Product, exact: bool = False) -> Layout:
    """How a product is shared. exact: by no instruction that rounds its operands first."""
    if _is_thin(p):
        return _thin(p)
    if min(p.m, p.n) <= tuning().thin and p.k < _least_k():
        return _short(p)
    by = instruction_for(p.target, p.a.node.dtype, p.b.node.dtype, p.dtype)
    by = None if exact and by is not None and by.precision else by
    blocks = None if by is None else _shares(p, by)
    return _blocks(p) if by is None or blocks is None else _matrix(p, by, blocks)


def _matrix(p: Product, by: MatrixInstruction, blocks: Blocks) -> Layout:
    """Blocks of C by matrix instructions, a part of each of which is a warp's."""
    rows = lines(by, blocks, True, ceil_div(p.m, blocks.rows(by)), p.a.across)
    columns = lines(by, blocks, False, ceil_div(p.n, blocks.columns(by)), p.b.across)
    shape = f"{blocks.rows(by)}x{blocks.columns(by)} blocks, {blocks.depth} of k and {blocks.stages} stages"
    return Layout(_of_groups(p), Axis("i", p.m, rows), Axis("j", p.n, columns), Axis("k", p.k, (Digit(Held.REGISTER, blocks.depth),)),
                  blocks.local, True, f"{p.m}x{p.n}x{p.k} product by matrix instructions ({by.name}), {shape}.", f"{by.name}, {shape}",
                  by=by, blocks=blocks)


def _shares(p: Product, by: MatrixInstruction) -> Blocks | None:
    """How blocks of C are shared: what takes the least time, of what there is room for, if there is any."""
    def time(blocks: Blocks) -> float:
        groups = ceil_div(p.m, blocks.rows(by)) * ceil_div(p.n, blocks.columns(by)) * p.batch
        size = blocks.rows(by) * blocks.columns(by)
        return ceil_div(groups, p.target.cores) * size * (1.0 + 32.0 * (blocks.rows(by) + blocks.columns(by)) / size)

    choices = [Blocks(*blocks) for size, blocks in tuning().matrix_blocks if size == by.of.itemsize]
    through = [x for x in (p.a, p.b) if not _is_copied(p, x)]
    fitting = [blocks for blocks in choices if blocks.bytes(by) <= p.target.local_memory and prod(blocks.local) <= p.target.max_work_group
               and blocks.registers(by, p.a in through, p.b in through) <= REGISTERS]
    return min(fitting, key=time, default=None)


def _least_k() -> int:
    """From how many elements of k on a group shares the sums of few rows or columns: of one element no other work-item has a part."""
    return max(2, tuning().group // 8)


def _is_thin(p: Product) -> bool:
    few = min(p.m, p.n) <= tuning().thin and p.k >= _least_k()
    return few and p.target.local_memory >= 4 * tuning().group * 2 * p.dtype.itemsize


def _of_groups(p: Product) -> Axis:
    """The batch, one a work-group."""
    return Axis("b", p.batch, (Digit(Held.GROUP, p.batch, 2),))


class Squares(Plain):
    """How a block of C is shared: so many items along its rows and its columns, of which each has a rectangle of so many elements."""

    items: tuple[int, int]
    tile: tuple[int, int]

    @property
    def block(self) -> tuple[int, int]:
        return self.items[0] * self.tile[0], self.items[1] * self.tile[1]

    def axis(self, name: str, size: int, along: bool) -> Axis:
        """Rows or columns. An item's rows are neighbours, four at a time; its columns lie apart, so that items side by side store what lies
        side by side.
        """
        items, tile = self.items[along], self.tile[along]
        near = 1 if along else min(tile, VECTOR)
        return Axis(name, size, (
            Digit(Held.GROUP, ceil_div(size, items * tile), 1 - along), Digit(Held.REGISTER, tile // near),
            Digit(Held.ITEM, items, 1 - along), *([] if along else [Digit(Held.REGISTER, near)])))


def _blocks(p: Product) -> Layout:
    """Blocks of C, a rectangle of which is an item's."""
    found = _squares(p)
    (rows, columns), depth = found.block, tuning().gemm_step
    staged = _is_staged(p, found)
    through = f"through {depth} of k at a time in local memory" if staged else "straight from global memory"
    tile = "x".join(map(str, found.tile))
    return Layout(
        _of_groups(p), found.axis("i", p.m, False), found.axis("j", p.n, True),
        Axis("k", p.k, (Digit(Held.REGISTER, depth),) * staged), (*found.items[::-1], 1), staged,
        f"{p.m}x{p.n}x{p.k} product, {tile} elements a work-item, {through}.", f"{rows}x{columns} blocks {through}")


def _is_staged(p: Product, squares: Squares) -> bool:
    """Whether blocks of the operands have room in local memory."""
    return p.target.local_memory >= sum(staged_bytes(lines, tuning().gemm_step, p.dtype) for lines in squares.block)


def _squares(p: Product) -> Squares:
    """What takes the least time: larger tiles read less of local memory for each multiply-add, and k may be split."""
    side = min(16, bit_floor(isqrt(p.target.max_work_group)))
    choices = [Squares((side, side), (tile, tile)) for tile in (8, 4, 2, 1)]
    if p.target.local_memory:
        choices += [Squares((side, side), tile) for tile in ((8, 4), (4, 8))]
        for part in (2, 4):
            if part <= side:
                choices += [Squares(items, (4, 4)) for items in ((side // part, side * part), (side * part, side // part))]
    else:
        choices = [x for x in choices if x.tile[0] <= 4]       # every element would be read again and again
    fitting = [x for x in choices if x.tile == (1, 1) or not p.target.local_memory or _is_staged(p, x)]
    return min(fitting, key=lambda x: _time(p, x))


def _time(p: Product, squares: Squares) -> float:
    """About how long it takes, in bytes that are moved meanwhile."""
    rows, columns = squares.block
    groups = ceil_div(p.m, rows) * ceil_div(p.n, columns) * p.batch
    down, along = squares.tile
    cost = 1.0 + _READ * max(0.0, 1 / down + 1 / along - 1 / 4)
    again = groups * p.k * (rows + columns) * p.dtype.itemsize / _CACHED
    return split(p, groups, prod(squares.items), max(2.0 * groups * rows * columns * p.k * cost, again * _BALANCE))[1]


def _ordered(p: Product, line: tuple[Digit, ...]) -> tuple[Axis, Axis]:
    """The rows and the columns, of which there are a few, an item's."""
    few = (Digit(Held.REGISTER, min(p.m, p.n)),)
    return Axis("i", p.m, line if p.m >= p.n else few), Axis("j", p.n, few if p.m >= p.n else line)


def _short(p: Product) -> Layout:
    """Few rows or few columns, and a short k (depthwise convolutions): an item adds up what there is along the others, line by line."""
    few, lines, size = min(p.m, p.n), max(p.m, p.n), p.target.group(tuning().group)
    width = size
    if p.batch > 1:                                          # several of the batch in a group, where lines are few
        powers = [1 << n for n in range(size.bit_length())]
        least = min(p.target.lanes, bit_ceil(lines))
        width = min((n for n in powers if n >= min(least, powers[-1])), key=lambda n: (ceil_div(lines, n) * n, -n))
    high = min(size // width, bit_ceil(p.batch))
    rows, columns = _ordered(p, _lines(lines, width, 0, False))
    return Layout(Axis("b", p.batch, _lines(p.batch, high, 1, False)), rows, columns, Axis("k", p.k), (width, high, 1), False,
                  f"{p.m}x{p.n}x{p.k} product, {few} elements a work-item.", f"{few} elements a work-item", True)


def _thin(p: Product) -> Layout:
    """Few rows or few columns: the other operand is read once, by neighbours as it lies, and a work-group adds up along k."""
    many, across = max(p.m, p.n), (p.a if p.m >= p.n else p.b).across
    size = bit_floor(min(tuning().group, p.target.max_work_group))
    lines = min(bit_ceil(min(many, 32 if across else 8)), size)
    lanes, (along, down) = size // lines, (1, 0) if across else (0, 1)
    rows, columns = _ordered(p, _lines(many, lines, down))
    return Layout(_of_groups(p), rows, columns, Axis("k", p.k, (Digit(Held.ITEM, lanes, along),)),
                  (lines, lanes, 1) if across else (lanes, lines, 1), False,
                  f"{p.m}x{p.n}x{p.k} product, {lanes} work-items along k for each of {lines} {'rows' if p.m >= p.n else 'columns'}.",
                  f"{lanes} work-items along k")
