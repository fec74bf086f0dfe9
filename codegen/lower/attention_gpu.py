"""Attention on GPUs: tiles of scores in registers, their operands in local memory. Start at `lower_on_gpu`.

A work-group has a block of lines of its own and goes over blocks of the others (Dao et al. 2022). Forward: rows, over keys, with a running
softmax. Backward, without atomics: a kernel of rows, over keys, for the gradient of q, which leaves each row's sum of weights times their
gradients behind; and one of keys, over rows, for those of k and v. Both compute the weights again from the logarithms of the rows' sums.

Where these are too few work-groups, the others are cut in ranges (flash-decoding, Dao et al. 2023): a work-group does one of them, and
what it leaves is put together in order, by a kernel of `joined` forward and by a sum of the graph's backward.

Work-item (x, y) has the scores of its own lines y, y + Y, ... and of the others x, x + X, ..., X * Y items in all: neighbours in local
memory, in lines of four elements more than a multiple of 32 banks, so that vectors of four come without conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tracegrad.codegen.graph.attention import Blocks, blocks, full, ranges
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import used
from tracegrad.codegen.kernel.names import ATTENTION_ON_GPU
from tracegrad.codegen.kernel.text import Text
from tracegrad.codegen.kernel.vectors import Term, ceil_div, write
from tracegrad.codegen.lower.attention import Attention
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.errors import CompilerBug
from tracegrad.support.tuning import tuning


def lower_on_gpu(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    assert node is not None
    if node.fn.name == "attention_forward":
        return _Groups(group, context, False).forward()
    found = _Groups(group, context, False), _Groups(group, context, True)
    deltas = Temp("deltas", node, found[0].heads * found[0].length, node.dtype)
    return [found[0].backward(deltas), found[1].backward(deltas)]


class _Groups(Attention):
    """One kernel while it is written. by_keys: its own lines are keys, the others rows; else the other way."""

    def __init__(self, group: Group, context: Context, by_keys: bool) -> None:
        super().__init__(group, context)
        self.by_keys = by_keys
        found = blocks(self.node, self.target)
        if found is None:
            raise CompilerBug(f"codegen: {self.node!r}, computed at {self.node.loc}, does not fit into local memory")
        self.found: Blocks = found
        self.own, self.other, self.rows = found.own, found.other, found.rows
        self.X, self.Y = found.across, found.down
        attrs = self.node.attrs
        given = attrs["row_parts" if by_keys else "parts"] if "parts" in attrs else ranges(self.node, self.target, by_keys)
        self.parts: int = given                                 # that the others are cut in
        self.vector = f"{self.scalar}4"
        self.weights_pitch = self.other + 4
        self.writer.reserve(ATTENTION_ON_GPU)

    # -- what is emitted

    def exp(self, text: str) -> str:
        return self.spelled(f"exp({text})", self.scalar)

    def pitch(self, size: int) -> int:
        return self.found.padded(size) + 4

    def local(self, emit: Text, name: str, size: int) -> None:
        emit(f"__local {self.scalar} {name}[{size}] __attribute__((aligned(32)));")

    @contextmanager
    def counting(self, emit: Text, name: str, n: int) -> Iterator[Term]:
        """An unrolled loop."""
        if n > 1:
            emit("#pragma unroll")
        with emit.counting(name, n) as counter:
            yield counter

    def line(self, r: Term) -> str:
        """The own line number `r` of an item, in the block."""
        return "y" if r == 0 else f"(y + {self.Y} * {r})"

    def column(self, n: Term) -> str:
        """The other line number `n` of an item, in the block."""
        return "x" if n == 0 else f"(x + {self.X} * {n})"

    def fetch(self, emit: Text, name: str, source: str, lines: int, first: str, total: int, size: int, factor: str = "", head: str = "head"
              ) -> None:
        """The block of lines from `first` on of a head's `total`, each of `size`; zeros where there is nothing."""
        padded = self.found.padded(size)
        emit(f"for (int unit = item; unit < {lines * padded}; unit += {self.X * self.Y}) {{")
        emit(f"const int line = unit / {padded}, e = unit % {padded};")
        tests = [*([f"{first} + line < {total}"] if total % lines else []), *([f"e < {size}"] if size < padded else [])]
        value = f"{source}[({head} * {total} + {first} + line) * {size} + e]{factor}"
        value = f"{' && '.join(tests)} ? {value} : {self.number(0.0)}" if tests else value
        emit(f"{name}[line * {padded + 4} + e] = {value};")
        emit("}")

    def zeros(self, emit: Text, type_: str, name: str, n: int) -> None:
        emit(f"{type_} {name}[{n}];")
        with self.counting(emit, "n", n) as at:
            emit(f"{name}[{at}] = {self.number(0.0) if type_ == self.scalar else f'({type_})({self.number(0.0)})'};")

    def loaded(self, address: str) -> str:
        return f"{used('LOAD_LOCAL', self.vector)}, {address})"

    def dots(self, emit: Text, to: str, own: str, other: str, size: int) -> None:
        """to[r * 4 + n]: the products of own lines and the others."""
        pitch, lanes = self.pitch(size), 4
        self.zeros(emit, self.scalar, to, self.rows * 4)
        emit(f"for (int e = 0; e < {ceil_div(size, lanes) * lanes}; e += 4) {{")
        emit(f"{self.vector} a[{self.rows}], b[4];")
        with self.counting(emit, "r", self.rows) as r:
            emit(f"a[{r}] = {self.loaded(f'{own} + {self.line(r)} * {pitch} + e')};")
        with self.counting(emit, "n", 4) as n:
            emit(f"b[{n}] = {self.loaded(f'{other} + {self.column(n)} * {pitch} + e')};")
        with self.counting(emit, "r", self.rows) as r, self.counting(emit, "n", 4) as n:
            for lane in range(4):
                emit(f"{to}[{r} * 4 + {n}] += a[{r}].s{lane} * b[{n}].s{lane};")
        emit("}")

    def add(self, emit: Text, to: str, values: str, size: int) -> None:
        """to[r * chunks + n] += weights values, of the own lines and of the columns (x + X n) * 4 and the three behind."""
        chunks, pitch = self.chunks(size), self.pitch(size)
        emit(f"for (int j = 0; j < {self.other}; j += 4) {{")
        emit(f"{self.vector} a[{self.rows}];")
        with self.counting(emit, "r", self.rows) as r:
            emit(f"a[{r}] = {self.loaded(f'weights + {self.line(r)} * {self.weights_pitch} + j')};")
        with self.counting(emit, "n", chunks) as n:
            for lane in range(4):
                emit("{")
                emit(f"const {self.vector} b = {self.loaded(f'{values} + (j + {lane}) * {pitch} + {self.column(n)} * 4')};")
                with self.counting(emit, "r", self.rows) as r:
                    emit(f"{to}[{r} * {chunks} + {n}] += a[{r}].s{lane} * b;")
                emit("}")
        emit("}")

    def chunks(self, size: int) -> int:
        """Of four columns, that are one item's."""
        return self.found.padded(size) // (4 * self.X)

    def outside(self, row: str, key: str) -> list[str]:
        """Tests of which one holds where there is no such row or key, or the row does not see the key."""
        other, total, block = (row, self.length, self.other) if self.by_keys else (key, self.keys, self.other)
        return [*([f"{other} >= {total}"] if total % block else []), *([f"{key} > {row}"] if self.causal else [])]

    def mask(self, emit: Text, at: str, row: str, key: str, gradient: str = "") -> None:
        """The scores `at` a row and a key with their masks; gradient: what becomes 0 where a score is filled in."""
        row = f"min({row}, {self.length - 1})" if self.length % (self.other if self.by_keys else self.own) else row
        key = f"min({key}, {self.keys - 1})" if self.keys % (self.own if self.by_keys else self.other) else key
        for mask in self.masks:
            value = mask.at(self.heads, row, key)
            if mask.fill is None:
                emit(f"{at} += {value};")
            elif not gradient:
                emit(f"if (!{value}) {at} = {self.number(mask.fill)};")
            else:
                emit(f"if (!{value}) {{")
                emit(f"{at} = {self.number(mask.fill)};")
                emit(f"{gradient} = {self.number(0.0)};")
                emit("}")

    @contextmanager
    def blocks(self, emit: Text, name: str, begin: str, stop: str) -> Iterator[None]:
        """The loop over the blocks of the others, of which `name` is the first: those from `begin` on, or the group's part of them."""
        if self.parts > 1:
            emit(f"const int share = ({stop} - {begin} + {self.other * self.parts - 1}) / {self.other * self.parts} * {self.other};")
            emit(f"const int start = {begin} + part * share, end = min({stop}, start + share);")
            begin, stop = "start", "end"
        emit(f"for (int {name} = {begin}; {name} < {stop}; {name} += {self.other}) {{")
        yield
        emit("}")

    def out(self, emit: Text, result: str, start: int, first: str, total: int, size: int, value: str) -> None:
        """Own lines of a result that begins at `start`, of a part: value(r * chunks + n), columns as in `add`."""
        chunks = self.chunks(size)
        with self.counting(emit, "r", self.rows) as r:
            emit("{")
            emit(f"const {self.writer.index} line = {first} + {self.line(r)};")
            if total % self.own:
                emit(f"if (line < {total}) {{")
            with self.counting(emit, "n", chunks) as n:
                emit("{")
                emit(f"const int e = {self.column(n)} * 4;")
                emit(f"const {self.vector} some = {value.format(r=r, at=f'{r} * {chunks} + {n}')};")
                where = f"{result} + {f'{start} + ' if start else ''}({self.place} * {total} + line) * {size} + e"
                if size % 4 == 0:
                    if size < self.found.padded(size):
                        emit(f"if (e < {size}) {{")
                    write(emit, self.dtype, 4, where, "some")
                    if size < self.found.padded(size):
                        emit("}")
                for lane in range(4) if size % 4 else ():
                    emit(f"if (e + {lane} < {size}) *({where} + {lane}) = some.s{lane};")
                emit("}")
            if total % self.own:
                emit("}")
            emit("}")

    @property
    def place(self) -> str:
        """The number of a head, among those of all parts."""
        return f"(part * {self.heads} + head)" if self.parts > 1 else "head"

    def begin(self, emit: Text) -> None:
        emit("const int x = get_local_id(0), y = get_local_id(1);")
        emit(f"const int item = y * {self.X} + x;")
        emit(f"const {self.writer.index} head = get_group_id(1);")
        emit(f"const int {'j0' if self.by_keys else 'i0'} = get_group_id(0) * {self.own};")
        if self.parts > 1:
            emit(f"const {self.writer.index} part = get_group_id(2);")

    def written(self, comment: str) -> Text:
        return Text(self.context.entry(self.group), comment, (), ATTENTION_ON_GPU.__contains__, [(self.dtype, 4)], self.local_size, True)

    def done(self, emit: Text, flops: int) -> Kernel:
        lines = self.keys if self.by_keys else self.length
        size = (ceil_div(lines, self.own) * self.X, self.heads * self.Y)
        return self.kernel(emit, (*size, self.parts) if self.parts > 1 else size, flops, self.local_size)

    @property
    def local_size(self) -> tuple[int, ...]:
        return (self.X, self.Y, 1) if self.parts > 1 else (self.X, self.Y)

    # -- the kernels

    def forward(self) -> list[Kernel]:
        q, k, v = self.operands()
        L, S, E, V = self.length, self.keys, self.size, self.width
        given = Temp("parts", self.node, self.parts * self.heads * L * (V + 2), self.dtype)
        if self.parts > 1:
            self.writer.params[given] = given.buffer("in_parts", "out")
        out = "in_parts" if self.parts > 1 else str(self.result())
        emit = self.written(f"Attention of {L} rows to {S} keys{self.kinds}; a work-group does {self.own} rows, "
                            f"{self.other} keys at a time.")
        least, zero, chunks = self.number(float("-inf")), self.number(0.0), self.chunks(V)
        self.local(emit, "own", self.own * self.pitch(E))
        self.local(emit, "others", self.other * self.pitch(E))
        self.local(emit, "others2", self.other * self.pitch(V))
        self.local(emit, "weights", self.own * self.weights_pitch)
        self.local(emit, "tops", self.own * self.X)
        self.begin(emit)
        self.fetch(emit, "own", str(q), self.own, "i0", L, E, f" * {self.number(self.scale)}")
        self.zeros(emit, self.vector, "o", self.rows * chunks)
        emit(f"{self.scalar} top[{self.rows}], sum[{self.rows}];")
        with self.counting(emit, "r", self.rows) as r:
            emit(f"top[{r}] = {least};")
            emit(f"sum[{r}] = {zero};")
        stop = f"min({S}, i0 + {self.own})" if self.causal else str(S)
        with self.blocks(emit, "j0", "0", stop):
            self.weighted(emit, str(k), str(v))
        with self.counting(emit, "r", self.rows) as r:
            emit(f"weights[{self.line(r)} * {self.weights_pitch} + x] = sum[{r}];")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        with self.counting(emit, "r", self.rows) as r:
            emit(f"sum[{r}] = {zero};")
            with self.counting(emit, "n", self.X) as n:
                emit(f"sum[{r}] += weights[{self.line(r)} * {self.weights_pitch} + {n}];")
        if self.parts == 1:
            if self.nothing_is_zero:
                with self.counting(emit, "r", self.rows) as r:
                    self.nothing(emit, f"top[{r}]", f"sum[{r}]")
            self.out(emit, out, 0, "i0", L, V, "o[{at}] / sum[{r}]")
            with self.counting(emit, "r", self.rows) as r:
                emit("{")
                emit(f"const int row = i0 + {self.line(r)};")
                self.rows_numbers(emit, out, f"x == 0 && row < {L}", f"head * {L} + row", f"top[{r}]", f"sum[{r}]")
                emit("}")
            return [self.done(emit, self.work(2))]
        self.out(emit, out, 0, "i0", L, V, "o[{at}]")
        with self.counting(emit, "r", self.rows) as r:
            emit("{")
            emit(f"const int row = i0 + {self.line(r)};")
            emit(f"if (x == 0 && row < {L}) {{")
            for number, name in enumerate(("top", "sum")):
                emit(f"{out}[{self.parts * self.heads * L * V} + ({self.parts * number} + part) * {self.heads * L} + head * {L} + row] = "
                     f"{name}[{r}];")
            emit("}")
            emit("}")
        return [self.done(emit, self.work(2)), self.joined(given)]

    def weighted(self, emit: Text, k: str, v: str) -> None:
        """A block of keys, added to what the rows have so far: `top`, `sum` and `o`."""
        S, E, V = self.keys, self.size, self.width
        least, zero, chunks = self.number(float("-inf")), self.number(0.0), self.chunks(V)
        self.fetch(emit, "others", k, self.other, "j0", S, E, head=self.key_head)
        self.fetch(emit, "others2", v, self.other, "j0", S, V, head=self.key_head)
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        self.dots(emit, "s", "own", "others", E)
        with self.counting(emit, "r", self.rows) as r:
            emit("{")
            emit(f"{self.scalar} high = {least};")
            with self.counting(emit, "n", 4) as n:
                row, key = f"i0 + {self.line(r)}", f"j0 + {self.column(n)}"
                self.mask(emit, f"s[{r} * 4 + {n}]", row, key)
                tests = self.outside(row, key)
                if tests:
                    emit(f"if ({' || '.join(tests)}) s[{r} * 4 + {n}] = {least};")
                emit(f"high = s[{r} * 4 + {n}] > high ? s[{r} * 4 + {n}] : high;")
            emit(f"tops[{self.line(r)} * {self.X} + x] = high;")
            emit("}")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        emit(f"{self.scalar} highs[{self.rows}];")
        with self.counting(emit, "r", self.rows) as r:
            emit(f"highs[{r}] = top[{r}];")
            with self.counting(emit, "n", self.X) as n:
                high = f"tops[{self.line(r)} * {self.X} + {n}]"
                emit(f"highs[{r}] = {high} > highs[{r}] ? {high} : highs[{r}];")
        with self.counting(emit, "r", self.rows) as r:        # where all scores so far are -inf, nothing is subtracted from them
            emit("{")
            emit(f"const {self.scalar} base = highs[{r}] == {least} ? {zero} : highs[{r}];")
            emit(f"const {self.scalar} shrink = {self.exp(f'top[{r}] - base')};")
            emit(f"top[{r}] = highs[{r}];")
            emit(f"sum[{r}] *= shrink;")
            with self.counting(emit, "n", chunks) as n:
                emit(f"o[{r} * {chunks} + {n}] *= shrink;")
            with self.counting(emit, "n", 4) as n:
                emit("{")
                emit(f"const {self.scalar} p = {self.exp(f's[{r} * 4 + {n}] - base')};")
                emit(f"sum[{r}] += p;")
                emit(f"weights[{self.line(r)} * {self.weights_pitch} + {self.column(n)}] = p;")
                emit("}")
            emit("}")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        self.add(emit, "o", "others2", V)
        emit("barrier(CLK_LOCAL_MEM_FENCE);")

    def nothing(self, emit: Text, top: str, sum_: str) -> None:
        """Where rows that see nothing are 0: the logarithm of such a row's sum makes weights of 0, in the gradient."""
        if self.nothing_is_zero:
            emit(f"{top} = {sum_} == {self.number(0.0)} ? {self.number(float('inf'))} : {top};")
            emit(f"{sum_} = {sum_} == {self.number(0.0)} ? {self.number(1.0)} : {sum_};")

    def rows_numbers(self, emit: Text, out: str, test: str, row: str, top: str, sum_: str) -> None:
        """What the gradient wants to know of a row, behind the result."""
        statistics = self.node.attrs["statistics"]
        if statistics:
            emit(f"const {self.scalar} base = {top} == {self.number(float('-inf'))} ? {self.number(0.0)} : {top};")
            logarithm = self.spelled(f"log({sum_})", self.scalar)
            for number, value in enumerate((f"base + {logarithm}",) if statistics == 1 else ("base", logarithm)):
                emit(f"if ({test}) {out}[{self.heads * self.length * (self.width + number)} + {row}] = {value};")

    def joined(self, given: Temp) -> Kernel:
        """What the parts of the keys left, put together in order: (x, y) items do element x, and where these are few every Yth part."""
        elements, rows, parts = self.heads * self.length * self.width, self.heads * self.length, self.parts
        index, scalar, zero, least = self.writer.index, self.scalar, self.number(0.0), self.number(float("-inf"))
        size, down = self.target.group(tuning().group), 8
        if elements >= full(self.target) or parts < down or size < 4 * down:
            down = 1
        across = size // down
        result = self.result()
        emit = Text(self.context.entry(self.group), f"Puts {parts} ranges of the keys together.", (), ATTENTION_ON_GPU.__contains__,
                    group=(across, down), cooperates=True)
        for name in ("tops", "weights") if down > 1 else ():
            self.local(emit, name, across * down)
        emit("const int x = get_local_id(0), y = get_local_id(1);")
        emit(f"const {index} unit = get_global_id(0), at = {f'min(unit, ({index}){elements - 1})' if elements % across else 'unit'};")
        emit(f"const {index} row = at / {self.width};")
        emit(f"__global const {scalar} *highs = in_parts + {parts * elements} + row, *sums = highs + {parts * rows};")
        emit(f"{scalar} top = {least}, sum = {zero}, o = {zero};")
        emit(f"for (int part = 0; part < {parts}; part++) top = highs[part * {rows}] > top ? highs[part * {rows}] : top;")
        emit(f"const {scalar} high = top == {least} ? {zero} : top;")
        emit(f"for (int part = {'y' if down > 1 else '0'}; part < {parts}; part += {down}) {{")
        emit(f"const {scalar} p = {self.exp(f'highs[part * {rows}] - high')};")
        emit(f"sum += p * sums[part * {rows}];")
        emit(f"o += p * in_parts[part * {elements} + at];")
        emit("}")
        if down > 1:
            emit(f"tops[y * {across} + x] = sum;")
            emit(f"weights[y * {across} + x] = o;")
            emit("barrier(CLK_LOCAL_MEM_FENCE);")
            emit("sum = tops[x];")
            emit("o = weights[x];")
            emit(f"for (int r = 1; r < {down}; r++) {{")
            emit(f"sum += tops[r * {across} + x];")
            emit(f"o += weights[r * {across} + x];")
            emit("}")
        self.nothing(emit, "top", "sum")
        emit(f"if ({' && '.join(['y == 0'] * (down > 1) + [f'unit < {elements}'])}) {{")
        emit(f"{result}[at] = o / sum;")
        self.rows_numbers(emit, str(result), f"at % {self.width} == 0", "row", "top", "sum")
        emit("}")
        moved = (parts + 1) * (elements + 2 * rows) * self.dtype.itemsize
        emit.parameters = given.buffer("in_parts", "const"), result
        kernel = emit.kernel((ceil_div(elements, across) * across, down), (across, down), 4 * parts * elements, moved)
        return replace(kernel, helpers=frozenset(self.helpers))

    def backward(self, temp: Temp) -> Kernel:
        q, k, v, flat, g = self.operands()
        out, L, S, E, V, H = self.result(), self.length, self.keys, self.size, self.width, self.heads
        what = f"k and v by {self.own} keys, {self.other} rows" if self.by_keys else f"q by {self.own} rows, {self.other} keys"
        emit = self.written(f"The gradient of attention of {L} rows to {S} keys{self.kinds}: that of {what} at a time.")
        zero = self.number(0.0)
        given = temp.buffer("row_deltas", "const" if self.by_keys else "out")
        self.writer.params[temp] = given
        for name, lines, size in (("own", self.own, E), ("own2", self.own, V), ("others", self.other, E), ("others2", self.other, V)):
            self.local(emit, name, lines * self.pitch(size))
        self.local(emit, "weights", self.own * self.weights_pitch)
        rows = self.statistics
        for name in (*rows, "deltas") if self.by_keys else rows:
            self.local(emit, name, self.other if self.by_keys else self.own)       # of rows, which all items of a row read
        self.begin(emit)
        first, total, other_first, other_total = ("j0", S, "i0", L) if self.by_keys else ("i0", L, "j0", S)
        own_head, other_head = (self.key_head, "head") if self.by_keys else ("head", self.key_head)
        for name, source, size in (("own", k if self.by_keys else q, E), ("own2", v if self.by_keys else g, V)):
            self.fetch(emit, name, str(source), self.own, first, total, size, head=own_head)
        if not self.by_keys:
            self.row_values(emit, str(flat), str(g), str(given))
        self.zeros(emit, self.vector, "o", self.rows * self.chunks(E))
        if self.by_keys:
            self.zeros(emit, self.vector, "o2", self.rows * self.chunks(V))
        begin = f"j0 / {self.other} * {self.other}" if self.by_keys and self.causal else "0"
        stop = f"min({S}, i0 + {self.own})" if self.causal and not self.by_keys else str(other_total)
        with self.blocks(emit, other_first, begin, stop):
            for name, source, size in (("others", q if self.by_keys else k, E), ("others2", g if self.by_keys else v, V)):
                self.fetch(emit, name, str(source), self.other, other_first, other_total, size, head=other_head)
            if self.by_keys:
                emit(f"for (int unit = item; unit < {self.other}; unit += {self.X * self.Y}) {{")
                emit(f"const int row = min(i0 + unit, {L - 1});")
                for number, name in enumerate(rows):
                    emit(f"{name}[unit] = {flat}[{H * L * (V + number)} + head * {L} + row];")
                emit(f"deltas[unit] = {given}[head * {L} + row];")
                emit("}")
            emit("barrier(CLK_LOCAL_MEM_FENCE);")
            self.dots(emit, "s", "own", "others", E)
            self.dots(emit, "d", "own2", "others2", V)
            with self.counting(emit, "r", self.rows) as r, self.counting(emit, "n", 4) as n:
                at = f"{r} * 4 + {n}"
                row, key = f"i0 + {self.line(r)}", f"j0 + {self.column(n)}"
                if self.by_keys:
                    row, key = f"i0 + {self.column(n)}", f"j0 + {self.line(r)}"
                logs = " - ".join(f"{name}[{self.column(n) if self.by_keys else self.line(r)}]" for name in rows)
                deltas = f"deltas[{self.column(n)}]" if self.by_keys else f"delta[{r}]"
                factor = f" * {self.number(self.scale)}"
                slope = "slope" if any(mask.fill is not None for mask in self.masks) else ""
                if self.masks:
                    emit(f"s[{at}] *= {self.number(self.scale)};")
                    if slope:
                        emit(f"{self.scalar} slope = {self.number(self.scale)};")
                    self.mask(emit, f"s[{at}]", row, key, slope)
                emit(f"s[{at}] = {self.exp(f's[{at}]{factor * (not self.masks)} - {logs}')};")
                tests = self.outside(row, key)
                if tests:
                    emit(f"if ({' || '.join(tests)}) s[{at}] = {zero};")
                if slope:                                          # (weights may be NaN, where a row sees nothing)
                    emit(f"d[{at}] = slope == {zero} ? {zero} : s[{at}] * (d[{at}] - {deltas}) * slope;")
                else:
                    emit(f"d[{at}] = s[{at}] * (d[{at}] - {deltas}){factor};")
            if self.by_keys:
                self.put(emit, "s")
                self.add(emit, "o2", "others2", V)
                emit("barrier(CLK_LOCAL_MEM_FENCE);")
            self.put(emit, "d")
            self.add(emit, "o", "others", E)
            emit("barrier(CLK_LOCAL_MEM_FENCE);")
        start = self.node.attrs["parts"] * H * L * E
        self.out(emit, str(out), start if self.by_keys else 0, first, total, E, "o[{at}]")
        if self.by_keys:
            self.out(emit, str(out), start + self.parts * H * S * E, first, total, V, "o2[{at}]")
        return self.done(emit, self.work(4 if self.by_keys else 3))

    @property
    def statistics(self) -> tuple[str, ...]:
        """The rows' numbers that the forward kernel left: what is subtracted from scores."""
        return ("tops", "logs") if self.masks else ("logs",)

    def put(self, emit: Text, name: str) -> None:
        """An item's share into `weights`, for all to see."""
        with self.counting(emit, "r", self.rows) as r, self.counting(emit, "n", 4) as n:
            emit(f"weights[{self.line(r)} * {self.weights_pitch} + {self.column(n)}] = {name}[{r} * 4 + {n}];")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")

    def row_values(self, emit: Text, flat: str, g: str, given: str) -> None:
        """`statistics` of lines, and delta[r]: what a row's weights times their gradients add up to, products of result and cotangent."""
        L, V = self.length, self.width
        emit(f"{self.scalar} delta[{self.rows}];")
        with self.counting(emit, "r", self.rows) as r:
            emit("{")
            emit(f"const {self.writer.index} row = head * {L} + min(i0 + {self.line(r)}, {L - 1});")
            emit(f"{self.scalar} p = {self.number(0.0)};")
            emit(f"for (int e = x; e < {V}; e += {self.X}) p += {flat}[row * {V} + e] * {g}[row * {V} + e];")
            emit(f"weights[{self.line(r)} * {self.weights_pitch} + x] = p;")
            for number, name in enumerate(self.statistics):
                emit(f"if (x == 0) {name}[{self.line(r)}] = {flat}[{self.heads * L * (V + number)} + row];")
            emit("}")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
        with self.counting(emit, "r", self.rows) as r:
            emit(f"delta[{r}] = {self.number(0.0)};")
            with self.counting(emit, "n", self.X) as n:
                emit(f"delta[{r}] += weights[{self.line(r)} * {self.weights_pitch} + {n}];")
            test = " && ".join(["x == 0", *[f"i0 + {self.line(r)} < {L}"] * (L % self.own > 0), *["part == 0"] * (self.parts > 1)])
            emit(f"if ({test}) {given}[head * {L} + i0 + {self.line(r)}] = delta[{r}];")
        emit("barrier(CLK_LOCAL_MEM_FENCE);")
