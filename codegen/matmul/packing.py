"""Lines of an operand copied into panels, on CPUs. Start at `pack`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var
from tracegrad.codegen.kernel.index.varying import uneven, varies
from tracegrad.codegen.kernel.ir.expressions import Expression, Joined, Lanes, Local
from tracegrad.codegen.kernel.ir.expressions import Load as Read
from tracegrad.codegen.kernel.ir.statements import Access
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.program import ElementAt
from tracegrad.codegen.tile.registers import rest, start_of


def pack(
    w: Writer, source: ElementAt, to: ElementAt, where: tuple[Index, Index], lines: tuple[int, int], k: tuple[Index, Index, int], block: int
) -> None:
    """Copies a panel of lines: `source` has them at (batch, line, k), `to` at (batch, panel, k, place in it). where: batch and panel.

    lines: how many there are, and of a panel; k: where it begins and ends, and how much there is in all. block: so many of as many lines
    are read as vectors, and transposed.
    """
    (b, number), (count, panel), (first, last, size) = where, lines, k
    line0 = start_of(w, "line0", count, panel, number)
    if block > 1:
        at = Var("k", size)
        with w.loop(at, first, last, block, whole=True), ExitStack() as inside:
            line = _counted(w, inside, "line", panel, block)
            rows = [found.access for n in range(block) if (found := source(b, line0 + (line + n), at.index)).access is not None]
            for n, value in enumerate(transposed(w, [Read(Access(x.memory, x.at, each=block), x.memory.dtype, block) for x in rows])):
                to(b, number, at.index + n, line).write(value)
        first, last = rest(last, block)
    if uneven(size, block) or block == 1:
        with w.scope():
            at = Var("k", size)
            with w.loop(at, first, last, kept=varies(size)), ExitStack() as inside:
                line = _counted(w, inside, "line", panel, 1)
                to(b, number, at.index, line).write(source(b, line0 + line, at.index).read())


def _counted(w: Writer, inside: ExitStack, name: str, count: int, step: int) -> Index:
    """A loop over 0..count-1 in steps, the last one early; if there is one step, 0."""
    if count == step:
        return ZERO
    var = Var(name, count)
    inside.enter_context(w.loop(var, 0, count, step))
    return var.index if count % step == 0 else w.at_most("at", var.index, count - step)


def transposed(w: Writer, rows: Sequence[Expression]) -> list[Local]:
    """The transpose of a square of vectors, as many as each has lanes (a power of two).

    A stage puts the even lanes of neighbouring rows into one of the first half, and the odd ones into one of the second: of row and lane
    number, the lowest bits trade places.
    """
    half = len(rows) // 2
    values = [w.let(f"c0_{n}", row) for n, row in enumerate(rows)]
    for stage in range(1, len(rows).bit_length()):
        made = {}
        for n in range(half):
            a, b = values[2 * n:2 * n + 2]
            for place, which in ((n, "even"), (n + half, "odd")):
                made[place] = w.let(f"c{stage}_{place}", Joined(Lanes(a, which), Lanes(b, which)))
        values = [made[n] for n in range(len(rows))]
    return values
