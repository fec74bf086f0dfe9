"""Storage of temporaries: buffers that are not alive at the same time share a block. Start at `assign`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def assign(sizes: dict[Hashable, int], uses: Sequence[Sequence[Hashable]]) -> tuple[dict[Hashable, int], list[int]]:
    """A block for each temporary, and the blocks' sizes in bytes.

    sizes: bytes of each; uses: the temporaries that each launch touches, in launch order. A linear scan: a temporary takes the
    freed block that fits best (the smallest that is large enough, else the largest, which grows), or a new one.
    """
    first: dict[Hashable, int] = {}
    last: dict[Hashable, int] = {}
    for step, touched in enumerate(uses):
        for t in touched:
            first.setdefault(t, step)
            last[t] = step
    ends: dict[int, list[Hashable]] = {}
    for t, step in last.items():
        ends.setdefault(step, []).append(t)
    block_of: dict[Hashable, int] = {}
    blocks: list[int] = []
    free: list[int] = []
    for step, touched in enumerate(uses):
        for t in dict.fromkeys(touched):
            if first[t] != step:
                continue
            size = -(-sizes[t] // 64) * 64
            fitting = [b for b in free if blocks[b] >= size]
            if fitting:
                found = min(fitting, key=lambda b: (blocks[b], b))
                if blocks[found] > 4 * size + 4096 and size < blocks[found]:      # do not spend a large block on a small value
                    found = -1
            else:
                found = max(free, key=lambda b: (blocks[b], b)) if free and max(blocks[b] for b in free) * 2 >= size else -1
            if found < 0:
                blocks.append(size)
                found = len(blocks) - 1
            else:
                free.remove(found)
                blocks[found] = max(blocks[found], size)
            block_of[t] = found
        free += sorted(block_of[t] for t in ends.get(step, ()))
    return block_of, blocks
