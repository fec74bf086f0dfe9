"""argsort and topk on GPUs: bitonic sorting in local memory; of longer rows by digits, or chunk by chunk. Start at `sorts`, `selections`.

Elements become unsigned numbers in their order (radix.py) with their places behind them, so no two are equal and any sorting network is
stable. A row too long for local memory is sorted by its digits. For topk a work-group keeps the best of a chunk; launches follow until one
chunk is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.codegen.kernel.index.index import Index, Mutable, Var, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import Cast, Expression, Infix, Literal, Local, Select, element, place, value, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Bound, bound
from tracegrad.codegen.kernel.ir.types import register_dtype
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.search.radix import Keys, by_digits, in_order
from tracegrad.codegen.lower.workgroup import WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import int32, uint64
from tracegrad.support.tuning import tuning


def fitting(node: Node, context: Context) -> int:
    """Elements that local memory holds while they are sorted, a power of two; 0 where work-items cannot work together."""
    if room(context) < 2:
        return 0
    bytes_ = max(8, register_dtype(node.operands[0].dtype).itemsize + 4)
    most = min(tuning().sort_local, context.target.local_memory // bytes_ * 128 // 145)            # see _gap
    return 1 << (most.bit_length() - 1) if most >= _OWN else 0


@lowering("sort", on="gpu")
def sorts(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of argsort; None where they are those of parts' owners."""
    node = group.anchor
    n, most = node.shape[-1], fitting(node, context)
    if n <= most:
        return [_bitonic(group, context, n, n, None, None)]
    x = node.operands[0]
    if not most or n >= 1 << 31:
        return None
    found = by_digits(group, context, node.aval.size // n, n, in_order(x, node.attrs["descending"]), True)
    return None if found is None else found.kernels


@lowering("selection", on="gpu")
def selections(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of topk; None where they are those of parts' owners."""
    node = group.anchor
    k, n = node.shape[-1], node.operands[0].shape[-1]
    most = fitting(node, context)
    if most < 4 * k and n > most:
        return None
    rows, left, source = node.aval.size // k, n, None
    kernels: list[Kernel] = []
    while True:
        length = left
        if left > most:
            length = most
            while length > max(tuning().select_chunk, 8 * k) and rows * -(-left // length) < context.target.groups(room(context)):
                length //= 2
        chunks = -(-left // length)
        last = left - (chunks - 1) * length
        kept = chunks * k if last >= k else (chunks - 1) * k + last
        into = None if chunks == 1 else Temp(f"kept_{len(kernels)}", node, rows * kept, int32)
        kernels.append(_bitonic(group, context, left, length, source, into))
        if into is None:
            return kernels
        left, source = kept, into


_OWN = 8                 # elements that an item has in registers while it does up to three steps of the network


class _Memory:
    """What is sorted in local memory: keys with the elements' numbers behind them, in one number where the keys have 32 bits."""

    def __init__(self, o: WorkGroup, keys: Keys, size: int) -> None:
        self.o, self.wide = o, keys.wide
        self.arrays = [o.shared("keys", "ulong", size)] + ([o.shared("order", "int", size)] if keys.wide else [])

    def behind(self) -> list[Local]:
        """What stands behind all elements, in variables."""
        parts = [("value", (1 << 64) - 1, uint64)] + [("from", (1 << 31) - 1, int32)] * self.wide
        return [self.o.writer.let(name, Literal(n, dtype), self.o.node, changes=True) for name, n, dtype in parts]

    def set(self, to: list[Local], key: Expression, number: Expression) -> None:
        """An element becomes this one."""
        w = self.o.writer
        if self.wide:
            w.assign(to[0], key)
            w.assign(to[1], number)
        else:
            w.assign(to[0], Infix("|", Infix("<<", Cast(key, uint64), whole(32)), Cast(number, uint64)))

    def read(self, at: Index) -> list[Local]:
        """An element, in variables."""
        return [self.o.writer.declare("value", element(array, at), self.o.node) for array in self.arrays]

    def write(self, at: Index, values: Sequence[Expression]) -> None:
        for array, x in zip(self.arrays, values, strict=True):
            self.o.writer.store(place(array, at), x, self.o.node)

    def number(self, at: Index) -> Expression:
        """The number of the element there."""
        if self.wide:
            return element(self.arrays[1], at)
        return Cast(Infix("&", element(self.arrays[0], at), Literal((1 << 31) - 1, uint64)), int32)

    def above(self, a: Sequence[Expression], b: Sequence[Expression]) -> Expression:
        """Whether a must stand behind b."""
        greater: Expression = Infix(">", a[0], b[0])
        if self.wide:
            greater = Infix("||", greater, Infix("&&", Infix("==", a[0], b[0]), Infix(">", a[1], b[1])))
        return greater

    def ordered(self, own: list[list[Local]], i: int, j: int, up: Expression | bool) -> None:
        """Elements i and j of an item's own, in order; up: the less one first."""
        w = self.o.writer
        a, b = own[i], own[j]
        if isinstance(up, bool):
            swap = w.declare("swap", self.above(a, b) if up else self.above(b, a))
        else:
            swap = w.declare("swap", Infix("==", self.above(a, b), up))
        own[i] = [w.declare("value", Select(swap, y, x)) for x, y in zip(a, b, strict=True)]
        own[j] = [w.declare("value", Select(swap, x, y)) for x, y in zip(a, b, strict=True)]


class _Network:
    """Bitonic sorting (Batcher 1968) of a line of `width` elements by `items` work-items, of which `keep` are wanted in the end.

    An item does three steps of the network before others see what it has. Runs are sorted up and down in turn. Of two runs of as many as
    are wanted the better halves are kept, until there is one.
    """

    def __init__(self, o: WorkGroup, memory: _Memory, width: int, items: int, item: Index, line: Index, keep: int) -> None:
        self.o, self.memory, self.width, self.items, self.item, self.line = o, memory, width, items, item, line
        self.levels = (width - 1).bit_length()
        self.run = min(self.levels, max(_OWN, 1 << (keep - 1).bit_length()).bit_length() - 1)         # of 2 ** run elements

    def place(self, at: Index) -> Index:
        return self.line + _gap(at)

    def sort(self) -> None:
        w, o = self.o.writer, self.o
        self.runs()
        level = Mutable("level", self.levels + 2)
        if self.run > 3:
            with w.counting(level, 4, Infix("<=", level, self.run), "+", 1):
                self.merge(level, bound(self.width), None)
        if self.run == self.levels:
            return
        apart = Mutable("step", self.levels + 2)             # runs are so many powers of two apart
        with w.counting(apart, self.run, Infix("<", apart, self.levels), "+", 1):
            count = Infix(">>", whole(self.width >> 1), Infix("-", apart, self.run))
            e = Var("e", self.width // 2)
            with w.loop(e, self.item, Bound(count, None, None), self.items):
                at = self.at(e, Infix("+", apart, 1))
                other = w.known("other", self.width, Infix("+", at, Infix("<<", whole(1), apart)))
                a, b = self.memory.read(self.place(at.index)), self.memory.read(self.place(other.index))
                with w.branch(self.memory.above(a, b)):
                    self.memory.write(self.place(at.index), b)
            o.barrier()
            self.merge(self.run, Bound(count, None, None), Infix("+", apart, 1))

    def at(self, low: Var, apart: Expression) -> Var:
        """Where element `low` of the runs is, which are so far apart."""
        number = self.o.writer.at(low)
        place = Infix("+", Infix("<<", Infix(">>", number, whole(self.run)), apart), Infix("&", number, whole((1 << self.run) - 1)))
        return self.o.writer.known("place", self.width, place)

    def runs(self) -> None:
        """Runs of 8, each of which is an item's."""
        w, e = self.o.writer, Var("e", self.width // _OWN)
        with w.loop(e, self.item, self.width // _OWN, self.items):
            own = [self.memory.read(self.place(e.index * _OWN + j)) for j in range(_OWN)]
            up = w.let("up", Infix("==", Infix("&", e, 1), 0))
            for size in (2, 4, 8):
                for step in (4, 2, 1):
                    for j in range(_OWN) if 2 * step <= size else ():
                        if not j & step:
                            self.memory.ordered(own, j, j + step, up if size == _OWN else not j & size)
            for j, values in enumerate(own):
                self.memory.write(self.place(e.index * _OWN + j), values)
        self.o.barrier()

    def merge(self, level: Mutable | int, count: Bound, apart: Expression | None) -> None:
        """Bitonic runs of 2 ** level of `count` elements are sorted: three steps at a time, and those that are left."""
        w, bit = self.o.writer, Mutable("bit", self.levels + 1)
        with w.counting(bit, Infix("-", value(level), 3), Infix(">=", bit, 0), "-", 3):
            self.steps(3, bit, level, count, apart)
        for left in (2, 1):
            if isinstance(level, int):
                if level % 3 == left:
                    self.steps(left, 0, level, count, apart)
            else:
                with w.branch(Infix("==", Infix("%", level, 3), left)):
                    self.steps(left, 0, level, count, apart)

    def steps(self, many: int, bit: Mutable | int, level: Mutable | int, count: Bound, apart: Expression | None) -> None:
        """Some steps of the network, the last of which compares elements that are 2 ** bit apart."""
        w, e = self.o.writer, Var("e", self.width)
        shift = value(bit)
        with w.loop(e, self.item, Bound(Infix(">>", count.value, whole(many)), None, None), self.items):
            part = Infix("<<", Infix(">>", w.at(e), shift), Infix("+", shift, many))
            rest = Infix("&", w.at(e), Infix("-", Infix("<<", whole(1), shift), 1))
            low = w.known("low", self.width, Infix("+", part, rest) if not isinstance(bit, int) else Infix("<<", w.at(e), whole(many)))
            up = w.let("up", Infix("==", Infix("&", Infix(">>", w.at(low), value(level)), 1), 0))
            first = low if apart is None else self.at(low, apart)
            places = [w.known(f"place_{j}", self.width, Infix("+", first, Infix("<<", whole(j), shift))).index for j in range(1 << many)]
            own = [self.memory.read(self.place(at)) for at in places]
            for k in reversed(range(many)):
                for j in range(1 << many):
                    if not j >> k & 1:
                        self.memory.ordered(own, j, j + (1 << k), up)
            for at, values in zip(places, own, strict=True):
                self.memory.write(self.place(at), values)
        self.o.barrier()


def _gap(at: Index) -> Index:
    """Gaps after every 8 and every 128: items lie apart, and so do the first elements of runs that are any power of two apart."""
    return at + at // 8 + at // 128


def _bitonic(group: Group, context: Context, n: int, length: int, source: Temp | None, into: Temp | None) -> Kernel:
    """Sorts chunks of `length` of the n elements of each row (or of those whose numbers are in `source`), and writes the best of each."""
    o = WorkGroup(group, context)
    node = o.node
    x, keep = node.operands[0], node.shape[-1]
    all_ = x.shape[-1]
    rows = node.aval.size // keep
    keys = in_order(x, node.attrs["descending"])
    width = max(_OWN, 1 << (length - 1).bit_length())
    chunks = -(-n // length)
    most = room(context)
    items = min(most, width // _OWN)
    lines = 1
    if chunks == 1:                                          # short rows: several a group
        while 2 * lines * items <= most and 2 * lines * width <= fitting(node, context) and lines < rows:
            lines *= 2
    memory = _Memory(o, keys, lines * _gap(constant(width)).constant)
    spot = o.spot(rows, 1, items, lines, chunks)
    item, there = spot.item, spot.there
    first, base, at_line = spot.chunk * length, spot.row, spot.lane * _gap(constant(width)).constant
    pointer = o.temp(source, "kept", "const") if source is not None else None
    w, e = o.writer, Var("e", width)
    with w.loop(e, item, width, items):
        i = first + e.index
        own = memory.behind()
        with o.where(*[(e.index, length)] * (width > length), *[(i, n)] * (n % length > 0), *there):
            number = bounded(i, 0, n) if pointer is None else w.known("number", all_, element(pointer, base * n + i)).index
            memory.set(own, keys.of(o, base * all_ + number), w.at(number))
        memory.write(at_line + _gap(e.index), own)
    o.barrier()
    best = min(keep, length)
    _Network(o, memory, width, items, item, at_line, best).sort()
    out = o.temp(into, "kept_here", "out") if into is not None else o.output()
    per_row = keep if into is None else into.size // rows
    left = n - (chunks - 1) * length
    stop = bound(best)
    if chunks > 1 and left < best:
        stop = Bound(Select(Infix("<", spot.chunk, chunks - 1), best, min(best, left)), None, constant(best))
    e = Var("e", best)
    to = base * per_row + spot.chunk * best + e.index
    with w.loop(e, item, stop, items), o.where(*there):      # the last chunk may keep fewer
        w.store(place(out, to if left >= best else w.at(to)), memory.number(at_line + _gap(e.index)), node)
    return o.done(0 if source is None else source.size, 8)
