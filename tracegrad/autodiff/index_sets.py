"""Sets of input elements, by number: what a pattern of sparsity is made of. Start at `IndexSets`.

A pattern is an array of set numbers, in the shape of a tensor: the set of an element holds the input elements that it may depend on. Equal
sets share a number where that is seen, so what a sum gives a thousand elements is stored once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Ids = Any                    # an array of set numbers
EMPTY, FULL = 0, 1
CHUNK = 1 << 22              # members that one step of `merged` sorts
MOST = 1 << 26               # members of all sets: what comes later is taken to be full, which is always right


def distinct(keys: Any) -> Any:
    """The different integers, ascending. (np.unique puts them into a hash table first, which takes ten times as long.)"""
    ordered = np.sort(keys)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


class IndexSets:
    """The sets of one analysis, over `count` input elements. Set 0 is empty, set 1 has all of them, and set 2 + i is {i}."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._members = np.arange(count, dtype=np.int64)
        self._used = count
        self._starts = np.concatenate([[0, 0], np.arange(count)]).astype(np.int64)
        self._sizes = np.concatenate([[0, count], np.ones(count)]).astype(np.int64)
        self._sets = count + 2

    def singles(self, shape: tuple[int, ...], first: int) -> Ids:
        """The pattern of inputs: element i is input number first + i."""
        size = int(np.prod(shape, dtype=np.int64))
        if self.count == 1:
            return np.full(shape, FULL)
        return np.arange(first + 2, first + 2 + size).reshape(shape)

    def sizes(self, ids: Ids) -> Any:
        """How many members sets have."""
        return self._sizes[ids]

    def members(self, ids: Ids) -> tuple[Any, Any]:
        """(position in `ids`, member), for each member of each, ascending."""
        ids = np.asarray(ids).reshape(-1)
        sizes = self._sizes[ids]
        position = np.repeat(np.arange(len(ids)), sizes)
        within = np.arange(len(position)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        at = self._starts[ids][position] + within
        return position, np.where(ids[position] == FULL, within, self._members[np.minimum(at, max(0, self._used - 1))])

    def union(self, *patterns: Ids) -> Ids:
        """The union of patterns, element by element; they broadcast."""
        found = np.asarray(patterns[0])
        for other in patterns[1:]:
            found = self._both(found, np.asarray(other))
        return found

    def _both(self, a: Ids, b: Ids) -> Ids:
        a, b = np.broadcast_arrays(a, b)
        out: Any = np.where((a == EMPTY) | (b == FULL), b, a)
        rest = (a != b) & (a > FULL) & (b > FULL)
        if rest.any():
            low, high = np.minimum(a[rest], b[rest]), np.maximum(a[rest], b[rest])
            keys = low * self._sets + high
            pairs = distinct(keys)
            back = np.searchsorted(pairs, keys)
            both = np.stack([pairs // self._sets, pairs % self._sets], 1)
            made = self.merged(np.repeat(np.arange(len(pairs)), 2), both.reshape(-1), len(pairs))
            out[rest] = made[back]
        return out

    def over(self, ids: Ids, dims: tuple[int, ...]) -> Ids:
        """The union over some dimensions, which vanish."""
        rest = tuple(d for d in range(ids.ndim) if d not in dims)
        kept = tuple(ids.shape[d] for d in rest)
        flat = ids.transpose((*rest, *dims)).reshape(int(np.prod(kept, dtype=np.int64)), -1)
        return self.merged(np.repeat(np.arange(len(flat)), flat.shape[1]), flat.reshape(-1), len(flat)).reshape(kept)

    def all_of(self, *patterns: Ids) -> int:
        """The union of all elements of all patterns."""
        ids = np.unique(np.concatenate([np.asarray(p).reshape(-1) for p in patterns])) if patterns else np.zeros(0, np.int64)
        return int(self.merged(np.zeros(len(ids), np.int64), ids, 1)[0])

    def merged(self, groups: Any, ids: Ids, count: int) -> Ids:
        """For each of `count` groups the union of the sets in it: set ids[i] is in group groups[i]."""
        out = np.zeros(count, np.int64)
        present = ids != EMPTY
        groups, ids = groups[present], ids[present]
        out[groups[ids == FULL]] = FULL
        left = out[groups] != FULL
        keys = distinct(groups[left] * self._sets + ids[left])
        groups, ids = keys // self._sets, keys % self._sets
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        sizes = np.diff(starts, append=len(groups))
        out[groups[starts]] = ids[starts]
        several = np.repeat(sizes > 1, sizes)
        groups, ids = groups[several], ids[several]
        if len(groups):
            starts = np.flatnonzero(np.diff(groups, prepend=-1))
            step = np.cumsum(np.add.reduceat(self._sizes[ids], starts)) // CHUNK       # whole groups
            ends = [*starts[1:][np.diff(step) > 0], len(groups)]
            for begin, end in zip([0, *ends], ends, strict=False):
                self._merge(groups[begin:end], ids[begin:end], out)
        return out

    def _merge(self, groups: Any, ids: Ids, out: Ids) -> None:
        """`merged` for groups of several sets each, which are neither empty nor full. `out` has one of each group's sets."""
        position, member = self.members(ids)
        keys = distinct(groups[position] * self.count + member)
        of, members = keys // self.count, keys % self.count
        starts = np.flatnonzero(np.diff(of, prepend=-1))
        sizes = np.diff(starts, append=len(of))
        found = of[starts]
        # A union as large as one of its sets is that set.
        largest = np.zeros(len(out), np.int64)
        order = np.argsort(self._sizes[ids], kind="stable")
        largest[groups[order]] = ids[order]
        same = self._sizes[largest[found]] == sizes
        out[found[same]] = largest[found[same]]
        full = sizes == self.count
        out[found[full]] = FULL
        new = ~same & ~full
        if self._used + int(sizes[new].sum()) > MOST:
            out[found[new]] = FULL
            return
        out[found[new]] = self._add(members[np.repeat(new, sizes)], sizes[new])

    def _add(self, members: Any, sizes: Any) -> Ids:
        """The numbers of new sets, whose members come one after the other."""
        need, count = self._used + len(members), self._sets + len(sizes)
        if need > len(self._members):
            self._members = np.resize(self._members, max(need, 2 * len(self._members)))
        if count > len(self._sizes):
            self._starts, self._sizes = (np.resize(a, max(count, 2 * len(a))) for a in (self._starts, self._sizes))
        self._members[self._used:need] = members
        self._starts[self._sets:count] = self._used + np.cumsum(sizes) - sizes
        self._sizes[self._sets:count] = sizes
        made = np.arange(self._sets, count)
        self._used, self._sets = need, count
        return made
