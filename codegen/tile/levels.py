"""Levels of accumulators: what one has of a block of a loop is added to one of the level above, and it starts anew. Start at `levels`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.statements import BoundLike
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.program import Axis
from tracegrad.support.dtypes import DType, dtype_kind
from tracegrad.support.tuning import tuning


def levels(steps: int, dtype: DType) -> list[int]:
    """The lengths of the blocks of a loop of so many steps, the longest first: no accumulator takes many terms. None of a short one."""
    found, length = list[int](), tuning().product_steps
    while dtype_kind(dtype) == "f" and steps > length:
        found.insert(0, length)
        length *= tuning().product_blocks
    return found


def in_blocks(
    w: Writer, inside: ExitStack, axis: Axis, name: str, blocks: Sequence[tuple[int, Callable[[], None]]], first: Index, last: Index,
    size: int,
) -> tuple[Index, BoundLike]:
    """Loops over blocks, one in the other: of so many each, and what is done where it ends. Returns where the innermost begins and ends."""
    begin: Index = first
    stop: BoundLike = last
    for many, ended in blocks:
        block = Var(f"{axis.name}_{name}", size)
        inside.enter_context(w.loop(block, begin, stop, many))
        inside.callback(ended)
        stop = w.block_end(f"{axis.name}_end", block, many, begin, stop, size)
        begin = block.index
    return begin, stop
