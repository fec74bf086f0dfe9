"""Colours for the columns of a sparse matrix, so that all columns of one colour are computed in one product.

A. H. Gebremedhin, F. Manne, A. Pothen, "What color is your Jacobian? Graph coloring for computing derivatives" (2005). All are greedy: a
column gets the first colour that is free. What is taken is kept as the bits of an integer, so no intersection graph is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

PATHS = 3_000_000            # paths of three edges, up to which a star colouring is tried


def color_columns(rows: Any, columns: Any, count: int) -> Any:
    """A colour for each of `count` columns: two that have an entry in one row differ. By number or by degree, whichever takes fewer."""
    return _fewer(count, columns, lambda order: _by_rows(_lists(columns, rows, count), order, int(rows.max(initial=-1)) + 1))


def color_star(rows: Any, columns: Any, count: int) -> Any:
    """The same of a symmetric pattern, each of whose entries is found in one of two places: a star colouring, or `color_columns`.

    Neighbours differ, and every path of four has three colours.
    """
    plain = color_columns(rows, columns, count)
    degree = np.bincount(columns, minlength=count)
    if float((degree.astype(float) ** 3).sum()) > PATHS:
        return plain
    near = _neighbours(rows, columns, count)
    star = _fewer(count, columns, lambda order: _star(near, order))
    return star if star.max(initial=0) < plain.max(initial=0) else plain


def color_apart(rows: Any, columns: Any, count: int) -> Any:
    """The same, so that the diagonal can be told: neighbours in a symmetric pattern differ."""
    near = _neighbours(rows, columns, count)
    return _fewer(count, columns, lambda order: _apart(near, order))


def _fewer(count: int, columns: Any, colored: Callable[[Iterable[int]], list[int]]) -> Any:
    degree = np.bincount(columns, minlength=count)
    found = np.asarray(colored(range(count)), np.int64)
    if found.max(initial=0) + 1 <= 2 or degree.max(initial=0) == degree.min(initial=0):
        return found
    other = np.asarray(colored(np.argsort(-degree, kind="stable").tolist()), np.int64)
    return other if other.max(initial=0) < found.max(initial=0) else found


def _lists(keys: Any, values: Any, count: int) -> list[list[int]]:
    """values by key."""
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum(np.bincount(keys, minlength=count))[:-1]
    return [part.tolist() for part in np.split(values[order], ends)] if count else []


def _neighbours(rows: Any, columns: Any, count: int) -> list[list[int]]:
    off = rows != columns
    return _lists(columns[off], rows[off], count)


def _first_free(taken: int) -> int:
    return (~taken & (taken + 1)).bit_length() - 1


def _by_rows(rows_of: list[list[int]], order: Iterable[int], rows: int) -> list[int]:
    used, colors = [0] * rows, [0] * len(rows_of)           # the colours that each row has
    for j in order:
        taken = 0
        for r in rows_of[j]:
            taken |= used[r]
        colors[j] = color = _first_free(taken)
        for r in rows_of[j]:
            used[r] |= 1 << color
    return colors


def _apart(near: list[list[int]], order: Iterable[int]) -> list[int]:
    colors = [-1] * len(near)
    for v in order:
        taken = 0
        for w in near[v]:
            if colors[w] >= 0:
                taken |= 1 << colors[w]
        colors[v] = _first_free(taken)
    return colors


def _star(near: list[list[int]], order: Iterable[int]) -> list[int]:
    colors = [-1] * len(near)
    once, twice = [0] * len(near), [0] * len(near)          # the colours that a neighbour has, and that several have
    for v in order:
        taken = once[v]
        for w in near[v]:
            color = colors[w]
            if color < 0 or twice[v] >> color & 1:          # v would be the second of its colour beside w, or beside both of w's
                taken |= once[w]
                continue
            for x in near[w]:
                if colors[x] >= 0 and twice[x] >> color & 1:
                    taken |= 1 << colors[x]
        colors[v] = color = _first_free(taken)
        for w in near[v]:
            twice[w] |= once[w] & 1 << color
            once[w] |= 1 << color
    return colors
