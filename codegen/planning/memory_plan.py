"""Storage of temporaries: buffers that are not alive at the same time share a block. Start at `assign`."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence

from tracegrad.passes.liveness import last_uses


def assign(sizes: dict[Hashable, int], uses: Sequence[Sequence[Hashable]]) -> tuple[dict[Hashable, int], list[int]]:
    """A block for each temporary, and the blocks' sizes in bytes.

    sizes: bytes of each; uses: the temporaries that each launch touches, in launch order. A linear scan: a temporary takes the
    freed block that fits best (the smallest that is large enough, else the largest, which grows), or a new one.
    """
    block_of: dict[Hashable, int] = {}
    blocks: list[int] = []
    free: list[tuple[int, int]] = []                        # those that nothing is in: their sizes and numbers, in order
    for touched, ends in zip(uses, last_uses(uses), strict=True):
        for t in dict.fromkeys(touched):
            if t in block_of:
                continue
            size = -(-sizes[t] // 64) * 64
            i = bisect_left(free, (size, 0))
            if i < len(free):
                reused = free[i][0] <= 4 * size + 4096 or free[i][0] == size      # do not spend a large block on a small value
            else:
                i, reused = i - 1, bool(free) and 2 * free[-1][0] >= size
            if reused:
                _, found = free.pop(i)
                blocks[found] = max(blocks[found], size)
            else:
                blocks.append(size)
                found = len(blocks) - 1
            block_of[t] = found
        for t in ends:
            insort(free, (blocks[block_of[t]], block_of[t]))
    return block_of, blocks
