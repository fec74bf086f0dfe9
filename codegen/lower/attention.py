"""Attention on CPUs: tiles of scores that never leave a core's cache, with a running softmax. Start at `lower_on_cpu`.

Forward (Milakov & Gimelshein 2018; Dao et al. 2022): a work-item does a block of rows. It keeps the rows' maxima, sums and results, goes
over blocks of keys, and where a maximum grows shrinks what it has so far. Backward: a work-item does a range of a head's keys; the
weights are computed again from the scores and the logarithms of the rows' sums. With the causal mask, blocks that no row sees are left out.

All arrays of a block have the rows as their last dimension, so that vectors lie along rows: no vector is added up across its lanes.
Products are tiles of accumulators: a scalar of one operand (a key's, a value's) times vectors of the other (`_Tiles.tile`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.markup import item, used
from tracegrad.codegen.kernel.names import ATTENTION
from tracegrad.codegen.kernel.render import literal
from tracegrad.codegen.kernel.statements import Buffer
from tracegrad.codegen.kernel.text import Text
from tracegrad.codegen.kernel.vectors import ceil_div, ctype, lanes, load, pieces, write
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.mathlib.library import translate
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.graph.ir import Node
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning


def lower_on_cpu(group: Group, context: Context) -> list[Kernel]:
    assert group.anchor is not None
    tiles = _Tiles(group, context)
    return [tiles.forward() if group.anchor.fn.name == "attention_forward" else tiles.backward()]


class _Piece(Plain):
    """Lanes of an accumulator: `width` columns from `start` on."""

    start: int
    width: int


class Mask(Plain):
    """A mask operand: bools that keep a score or make it `fill`, or (None) numbers that are added; see ops/attention/fused.py."""

    buffer: Buffer
    fill: float | None
    inner: int
    shape: tuple[int, ...]

    def at(self, heads: int, row: str, key: str) -> str:
        """The element of a head's row and key."""
        count, lines, columns = self.shape
        parts = []
        if count > 1:
            matrix = f"head / {self.inner}" if self.inner > 1 else "head"
            matrix = matrix if count * self.inner == heads else f"{matrix} % {count}"
            parts.append(f"({matrix}) * {lines * columns}")
        parts += [f"({row}) * {columns}"] * (lines > 1) + [f"({key})"] * (columns > 1)
        return f"{self.buffer}[{' + '.join(parts) or '0'}]"


class Attention:
    """A kernel of attention while it is written. length, keys, size, width: L, S, E, V."""

    def __init__(self, group: Group, context: Context) -> None:
        node = group.anchor
        assert node is not None
        self.group, self.context, self.node, self.target = group, context, node, context.target
        q, k, v = node.operands[:3]
        self.heads, self.length, self.size = q.shape
        self.keys, self.width = k.shape[1], v.shape[2]
        times = self.heads // k.shape[0]
        self.key_head = f"head / {times}" if times > 1 else "head"      # of keys and values
        self.dtype = node.dtype
        self.scale, self.causal, self.nothing_is_zero = float(node.attrs["scale"]), node.attrs["causal"], node.attrs["zeros"]
        self.masks: list[Mask] = []
        self.scalar = ctype(self.dtype)
        self.writer = context.writer(group)
        self.helpers: set[str] = set()

    # -- buffers and functions

    def operand(self, node: Node) -> Buffer:
        found = self.context.storage(self.group)(strip(node))
        assert found is not None                                 # the schedule stores what it reads
        return self.writer.buffer(found.ref, self.writer.base(strip(node)), node.dtype, found.access)

    def operands(self) -> list[Buffer]:
        """Those of the operation, without masks, which become `masks`."""
        described = self.node.attrs["masks"]
        count = len(self.node.operands) - len(described)
        self.masks = [Mask(self.operand(m), fill, inner, m.shape)
                      for m, (fill, inner) in zip(self.node.operands[count:], described, strict=True)]
        return [self.operand(x) for x in self.node.operands[:count]]

    @property
    def kinds(self) -> str:
        """What a comment says of masks."""
        return ", causal" * bool(self.causal) + ", masked" * bool(self.masks)

    def result(self) -> Buffer:
        stored = self.context.output(self.group, self.node)
        return self.writer.buffer(stored.ref, self.writer.base(self.node), self.dtype, stored.access)

    def spelled(self, expression: str, type_: str) -> str:
        """An expression of values of a type in the target's spelling."""
        text, needed = translate(expression, self.target, type_)
        self.helpers |= needed
        return text

    def number(self, value: float) -> str:
        return literal(value, self.dtype)[0]

    def kernel(self, emit: Text, size: tuple[int, ...], flops: int, local: tuple[int, ...] = ()) -> Kernel:
        moved = sum(n.aval.nbytes for n in (*self.group.reads, *self.group.stored))
        emit.parameters = tuple(self.writer.params.values())
        return replace(emit.kernel(size, local or (1,) * len(size), flops, moved), helpers=frozenset(self.helpers))

    def work(self, products: int) -> int:
        """Arithmetic of `products` products of the scores' size, and 12 for each exponential."""
        seen = self.heads * self.length * self.keys
        return (seen // 2 if self.causal and self.length == self.keys else seen) * (products * (self.size + self.width) + 12)


class _Tiles(Attention):
    """One kernel for a CPU while it is written."""

    def __init__(self, group: Group, context: Context) -> None:
        super().__init__(group, context)
        self.lanes = lanes(self.dtype, self.target)
        self.vectors = 2
        self.block = self.vectors * self.lanes                   # rows of a block
        self.step = tuning().attention_keys                      # keys of a block
        self.tall = max(1, min(12, (self.target.registers - self.vectors - 1) // self.vectors))      # rows of a tile of accumulators
        self.vector = ctype(self.dtype, self.lanes)
        self.mask = f"{'int' if self.dtype.itemsize == 4 else 'long'}{self.lanes if self.lanes > 1 else ''}"
        self.writer.reserve(ATTENTION)

    def call(self, expression: str) -> str:
        """An expression of vectors in the target's spelling."""
        return self.spelled(expression, self.vector)

    # -- what is emitted

    def vec(self, array: str, line: str, p: int) -> str:
        """Vector `p` of a line of an array of the block."""
        if self.lanes == 1:
            return f"{array}[{line} * {self.block} + {p}]"
        return f"{used('KEPT', self.vector)}, {array} + {line} * {self.block} + {p * self.lanes})"

    def splat(self, text: str) -> str:
        return f"({self.vector})({text})"

    def each(self) -> range:
        return range(self.vectors)

    def tile(self, emit: Text, rows: int, inner: str, stop: str, scalars: list[str], others: list[tuple[str, str]]) -> None:
        """Accumulators c{r}_{p} += scalar r times vector p, for `inner` from 0 to `stop`. others: the vectors' types and texts."""
        emit(f"for (int {inner} = 0; {inner} < {stop}; {inner}++) {{")
        for p, (type_, text) in enumerate(others):
            emit(f"const {type_} b{p} = {text};")
        for r in range(rows):
            emit(f"const {self.scalar} a{r} = {scalars[r]};")
            for p in range(len(others)):
                emit(f"c{r}_{p} += a{r} * b{p};")
        emit("}")

    def lines(self, emit: Text, name: str, stop: str) -> Any:
        """Yields the numbers of rows of tiles, each inside a loop over `name` from 0 to `stop`, which only the program knows."""
        emit(f"int {name} = 0;")
        for rows in dict.fromkeys((self.tall, 1)):
            emit(f"for (; {name} + {rows} <= {stop}; {name} += {rows}) {{")
            yield rows
            emit("}")

    def known_lines(self, emit: Text, name: str, count: int) -> Any:
        """The same for a count that is known: whole tiles, and one for the rest."""
        whole = count // self.tall
        if whole:
            emit(f"for (int {name} = 0; {name} < {whole * self.tall}; {name} += {self.tall}) {{")
            yield self.tall
            emit("}")
        if count % self.tall:
            emit("{")
            emit(f"const int {name} = {whole * self.tall};")
            yield count % self.tall
            emit("}")

    def transposed(self, emit: Text, array: str, source: str, size: int, factor: str = "") -> None:
        """The block's rows of `source`, as columns. Rows beyond the last are it once more: nobody stores what comes of them."""
        emit(f"for (int i = 0; i < {self.block}; i++) {{")
        emit("const int row = min(i, rows - 1);")
        emit(f"for (int e = 0; e < {size}; e++) {array}[e * {self.block} + i] = {source}[row * {size} + e]{factor};")
        emit("}")

    def back(self, emit: Text, array: str, target: str, size: int, factor: str = "") -> None:
        """Columns of an array of the block, as rows of `target`."""
        emit("for (int i = 0; i < rows; i++) {")
        emit(f"for (int e = 0; e < {size}; e++) {target}[i * {size} + e] = {array}[e * {self.block} + i]{factor};")
        emit("}")

    def scores(self, emit: Text, rows: int) -> None:
        """The tile of scores of keys j0 + j ... and the block's rows; what the mask leaves out is -inf."""
        for r in range(rows):
            emit(f"{self.vector} " + ", ".join(f"c{r}_{p} = 0" for p in self.each()) + ";")
        keys = [f"kk[(j + {r}) * {self.size} + e]" if r else f"kk[j * {self.size} + e]" for r in range(rows)]
        self.tile(emit, rows, "e", str(self.size), keys, [(self.vector, self.vec("qt", "e", p)) for p in self.each()])
        for number, mask in enumerate(self.masks):
            for r in range(rows):
                for p in self.each():
                    line = f"(j + {r})"
                    if mask.fill is None:
                        emit(f"c{r}_{p} += {self.vec(f'mt{number}', line, p)};")
                    else:
                        emit(f"c{r}_{p} = {self.kept(number, line, p)} ? c{r}_{p} : {self.splat(self.number(mask.fill))};")
        if self.causal:
            emit(f"if (j0 + j + {rows - 1} > i0) {{")
            for r in range(rows):
                for p in self.each():
                    emit(f"c{r}_{p} = row{p} >= ({self.mask})(j0 + j + {r}) ? c{r}_{p} : {self.splat(self.number(float('-inf')))};")
            emit("}")

    def kept(self, number: int, line: str, p: int) -> str:
        """Whether a bool mask keeps scores."""
        return f"{self.vec(f'mt{number}', line, p)} != {self.splat(self.number(0.0))}"

    def mask_arrays(self, emit: Text) -> None:
        for number in range(len(self.masks)):
            self.array(emit, f"mt{number}", self.step)

    def fetch_masks(self, emit: Text) -> None:
        """Of the block of keys j0 ... and rows i0 ..., keys first, as the scores."""
        for number, mask in enumerate(self.masks):
            emit(f"for (int i = 0; i < {self.block}; i++) {{")
            if mask.shape[1] > 1:
                emit("const int row = i0 + min(i, rows - 1);")
            value = mask.at(self.heads, "row", "j0 + j")
            value = value if mask.fill is None else f"{value} ? {self.number(1.0)} : {self.number(0.0)}"
            emit(f"for (int j = 0; j < n; j++) mt{number}[j * {self.block} + i] = {value};")
            emit("}")

    def row_numbers(self, emit: Text) -> None:
        if self.causal:
            for p in self.each():
                numbers = ", ".join(f"i0 + {p * self.lanes + i}" for i in range(self.lanes))
                emit(f"const {self.mask} row{p} = ({self.mask})({numbers});")

    def array(self, emit: Text, name: str, lines: int) -> None:
        emit.array(self.scalar, name, lines * self.block)

    def start(self, comment: str) -> Text:
        return Text(self.context.entry(self.group), comment, (), ATTENTION.__contains__, [(self.dtype, self.lanes)])

    # -- the kernels

    def forward(self) -> Kernel:
        q, k, v = self.operands()
        out, index = self.result(), self.writer.index
        statistics = self.node.attrs["statistics"]
        L, S, E, V, B = self.length, self.keys, self.size, self.width, self.block
        emit = self.start(f"Attention of {L} rows to {S} keys{self.kinds}; "
                          f"a work-item does {B} rows, {self.step} keys at a time.")
        zero, least = self.number(0.0), self.number(float("-inf"))
        emit(f"const int row_block = {item(0)};")
        emit(f"const {index} head = {item(1)};")
        emit(f"const int i0 = row_block * {B}, rows = min({B}, {L} - i0);")
        emit(f"__global const {self.scalar} *qq = {q} + (head * {L} + i0) * {E};")
        for name, lines in (("qt", E), ("st", self.step), ("ot", V)):
            self.array(emit, name, lines)
        self.mask_arrays(emit)
        self.transposed(emit, "qt", "qq", E, f" * {self.number(self.scale)}")
        emit(f"for (int e = 0; e < {V * B}; e++) ot[e] = {zero};")
        for p in self.each():
            emit(f"{self.vector} top{p} = {self.splat(least)}, sum{p} = {self.splat(zero)}, base{p} = {self.splat(zero)};")
        self.row_numbers(emit)
        emit(f"const int stop = {f'min({S}, i0 + rows)' if self.causal else S};")
        emit(f"for (int j0 = 0; j0 < stop; j0 += {self.step}) {{")
        emit(f"const int n = min({self.step}, stop - j0);")
        emit(f"__global const {self.scalar} *kk = {k} + ({self.key_head} * {S} + j0) * {E};")
        emit(f"__global const {self.scalar} *vv = {v} + ({self.key_head} * {S} + j0) * {V};")
        self.fetch_masks(emit)
        emit(f"{self.vector} " + ", ".join(f"high{p} = top{p}" for p in self.each()) + ";")
        for rows in self.lines(emit, "j", "n"):
            self.scores(emit, rows)
            for r in range(rows):
                for p in self.each():
                    emit(f"{self.vec('st', f'(j + {r})', p)} = c{r}_{p};")
                    emit(f"high{p} = c{r}_{p} > high{p} ? c{r}_{p} : high{p};")
        for p in self.each():                                    # where all scores so far are -inf, nothing is subtracted from them
            emit(f"base{p} = high{p} == {self.splat(least)} ? {self.splat(zero)} : high{p};")
            emit(f"const {self.vector} shrink{p} = {self.call(f'exp_nonpositive(top{p} - base{p})')};")
            emit(f"sum{p} *= shrink{p};")
            emit(f"top{p} = high{p};")
        emit("for (j = 0; j < n; j++) {")
        for p in self.each():
            score = self.vec("st", "j", p)
            emit(f"const {self.vector} x{p} = {self.call(f'exp_nonpositive({score} - base{p})')};")
            emit(f"{self.vec('st', 'j', p)} = x{p};")
            emit(f"sum{p} += x{p};")
        emit("}")
        for rows in self.known_lines(emit, "e", V):
            for r in range(rows):
                emit(f"{self.vector} " + ", ".join(f"c{r}_{p} = {self.vec('ot', f'(e + {r})', p)} * shrink{p}" for p in self.each()) + ";")
            self.tile(emit, rows, "i", "n", [f"vv[i * {V} + e + {r}]" for r in range(rows)],
                      [(self.vector, self.vec("st", "i", p)) for p in self.each()])
            for r in range(rows):
                for p in self.each():
                    emit(f"{self.vec('ot', f'(e + {r})', p)} = c{r}_{p};")
        emit("}")
        for p in self.each() if self.nothing_is_zero else ():    # the logarithm makes weights of 0, in the gradient
            emit(f"base{p} = sum{p} == {self.splat(zero)} ? {self.splat(self.number(float('inf')))} : base{p};")
            emit(f"sum{p} = sum{p} == {self.splat(zero)} ? {self.splat(self.number(1.0))} : sum{p};")
        emit(f"for (int e = 0; e < {V}; e++) {{")
        for p in self.each():
            emit(f"{self.vec('ot', 'e', p)} = {self.vec('ot', 'e', p)} / sum{p};")
        emit("}")
        emit(f"__global {self.scalar} *place = {out} + (head * {L} + i0) * {V};")
        self.back(emit, "ot", "place", V)
        for number, text in enumerate(("base{p} + {log}",) if statistics == 1 else ("base{p}", "{log}") if statistics else ()):
            for p in self.each():
                emit(f"{self.vec('st', '0', p)} = {text.format(p=p, log=self.call(f'log(sum{p})'))};")
            emit(f"for (int i = 0; i < rows; i++) {out}[{self.heads * L * (V + number)} + head * {L} + i0 + i] = st[i];")
        return self.kernel(emit, (ceil_div(L, B), self.heads), self.work(2))

    def backward(self) -> Kernel:
        q, k, v, flat, g = self.operands()
        out, index, parts = self.result(), self.writer.index, self.node.attrs["parts"]
        L, S, E, V, B, H = self.length, self.keys, self.size, self.width, self.block, self.heads
        share = "a head" if parts == 1 else f"one of {parts} ranges of a head's keys"
        emit = self.start(f"The gradient of attention of {L} rows to {S} keys{self.kinds}; a work-item does {share}, "
                          f"{B} rows and {self.step} keys at a time.")
        zero = self.number(0.0)
        emit(f"const {index} head = {item(0)};")
        length = ceil_div(S, parts)
        if parts > 1:
            emit(f"const int part = {item(1)};")
            emit(f"const int first = part * {length}, last = min(first + {length}, {S});")
        first, last = ("first", "last") if parts > 1 else ("0", str(S))
        start = f"{parts * H * L * E}"
        emit(f"__global {self.scalar} *dk = {out} + {start} + head * {S * E};")
        emit(f"__global {self.scalar} *dv = {out} + {start} + {H * S * E} + head * {S * V};")
        emit(f"for (int e = {first} * {E}; e < {last} * {E}; e++) dk[e] = {zero};")
        emit(f"for (int e = {first} * {V}; e < {last} * {V}; e++) dv[e] = {zero};")
        for name, lines in (("qt", E), ("gt", V), ("dqt", E), ("st", self.step), ("dt", self.step), ("logs", 1), ("deltas", 1),
                            *[("tops", 1)] * bool(self.masks)):
            self.array(emit, name, lines)
        self.mask_arrays(emit)
        emit(f"for (int i0 = 0; i0 < {L}; i0 += {B}) {{")
        emit(f"const int rows = min({B}, {L} - i0);")
        emit(f"__global const {self.scalar} *qq = {q} + (head * {L} + i0) * {E};")
        emit(f"__global const {self.scalar} *gg = {g} + (head * {L} + i0) * {V};")
        emit(f"__global const {self.scalar} *place = {flat} + (head * {L} + i0) * {V};")
        self.transposed(emit, "qt", "qq", E, f" * {self.number(self.scale)}")
        self.transposed(emit, "gt", "gg", V)
        emit(f"for (int i = 0; i < {B}; i++) {{")
        emit("const int row = min(i, rows - 1);")
        for number, name in enumerate(("tops", "logs") if self.masks else ("logs",)):
            emit(f"{name}[i] = {flat}[{H * L * (V + number)} + head * {L} + i0 + row];")
        emit(f"{self.scalar} delta = {zero};")
        emit(f"for (int e = 0; e < {V}; e++) delta += gg[row * {V} + e] * place[row * {V} + e];")
        emit("deltas[i] = delta;")
        emit("}")
        emit(f"for (int e = 0; e < {E * B}; e++) dqt[e] = {zero};")
        self.row_numbers(emit)
        for p in self.each():
            emit(f"const {self.vector} log{p} = {self.vec('logs', '0', p)}, d{p} = {self.vec('deltas', '0', p)};")
            if self.masks:
                emit(f"const {self.vector} base{p} = {self.vec('tops', '0', p)};")
        emit(f"const int stop = {f'min({last}, i0 + rows)' if self.causal else last};")
        emit(f"for (int j0 = {first}; j0 < stop; j0 += {self.step}) {{")
        emit(f"const int n = min({self.step}, stop - j0);")
        emit(f"__global const {self.scalar} *kk = {k} + ({self.key_head} * {S} + j0) * {E};")
        emit(f"__global const {self.scalar} *vv = {v} + ({self.key_head} * {S} + j0) * {V};")
        self.fetch_masks(emit)
        for rows in self.lines(emit, "j", "n"):
            self.scores(emit, rows)
            for r in range(rows):
                for p in self.each():
                    shift = f"base{p} - log{p}" if self.masks else f"log{p}"
                    emit(f"{self.vec('st', f'(j + {r})', p)} = {self.call(f'exp(c{r}_{p} - {shift})')};")
        emit("j = 0;")
        for rows in dict.fromkeys((self.tall, 1)):
            emit(f"for (; j + {rows} <= n; j += {rows}) {{")
            for r in range(rows):
                emit(f"{self.vector} " + ", ".join(f"c{r}_{p} = 0" for p in self.each()) + ";")
            self.tile(emit, rows, "e", str(V), [f"vv[(j + {r}) * {V} + e]" for r in range(rows)],
                      [(self.vector, self.vec("gt", "e", p)) for p in self.each()])
            for r in range(rows):
                for p in self.each():
                    line = f"(j + {r})"
                    emit(f"{self.vec('dt', line, p)} = {self.vec('st', line, p)} * (c{r}_{p} - d{p}) * {self.number(self.scale)};")
                    for number, mask in enumerate(self.masks):
                        if mask.fill is not None:
                            change = self.vec("dt", line, p)
                            emit(f"{change} = {self.kept(number, line, p)} ? {change} : {self.splat(zero)};")
            emit("}")
        for rows in self.known_lines(emit, "e", E):
            for r in range(rows):
                emit(f"{self.vector} " + ", ".join(f"c{r}_{p} = {self.vec('dqt', f'(e + {r})', p)}" for p in self.each()) + ";")
            self.tile(emit, rows, "i", "n", [f"kk[i * {E} + e + {r}]" for r in range(rows)],
                      [(self.vector, self.vec("dt", "i", p)) for p in self.each()])
            for r in range(rows):
                for p in self.each():
                    emit(f"{self.vec('dqt', f'(e + {r})', p)} = c{r}_{p};")
        self.columns(emit, "dv", "gg", "st", V)
        self.columns(emit, "dk", "qq", "dt", E)
        emit("}")
        place = f"(part * {H} + head)" if parts > 1 else "head"
        emit(f"__global {self.scalar} *dq = {out} + ({place} * {L} + i0) * {E};")
        self.back(emit, "dqt", "dq", E)
        emit("}")
        return self.kernel(emit, (H, parts) if parts > 1 else (H,), self.work(5))

    def columns(self, emit: Text, target: str, source: str, weights: str, size: int) -> None:
        """target (keys, size) += weights (keys, rows) source (rows, size): vectors along `size`, from and to global memory."""
        w = self.lanes
        found = [_Piece(start + at, width) for start in range(0, size, w) for at, width in pieces(0, min(w, size - start))]
        emit("j = 0;")
        for rows in dict.fromkeys((self.tall, 1)):
            emit(f"for (; j + {rows} <= n; j += {rows}) {{")
            for chosen in (found[i:i + self.vectors] for i in range(0, len(found), self.vectors)):
                emit("{")
                for p, piece in enumerate(chosen):
                    places = [f"{target} + (j0 + j + {r}) * {size} + {piece.start}" for r in range(rows)]
                    loaded = ", ".join(f"c{r}_{p} = {load(self.dtype, piece.width, at)}" for r, at in enumerate(places))
                    emit(f"{ctype(self.dtype, piece.width)} {loaded};")
                self.tile(emit, rows, "i", "rows", [f"{weights}[(j + {r}) * {self.block} + i]" for r in range(rows)],
                          [(ctype(self.dtype, piece.width), load(self.dtype, piece.width, f"{source} + i * {size} + {piece.start}"))
                           for piece in chosen])
                for r in range(rows):
                    for p, piece in enumerate(chosen):
                        write(emit, self.dtype, piece.width, f"{target} + (j0 + j + {r}) * {size} + {piece.start}", f"c{r}_{p}")
                emit("}")
            emit("}")
