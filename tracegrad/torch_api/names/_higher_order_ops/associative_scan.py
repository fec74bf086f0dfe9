"""torch's associative scan: running results of an associative function. Start at `associative_scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from tracegrad.graph.operators import PUBLIC


def associative_scan(combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False,
                     combine_mode: str = "pointwise") -> Any:
    """Element i along `dim` is combine_fn of all elements up to i, in a number of steps that grows as log n (Hillis & Steele 1986).

    xs: a tensor, or a container of tensors of one size along dim, which combine_fn takes and gives as a whole. reverse: from the last on.
    """
    leaves, tree = optree.tree_flatten(xs)
    if reverse:
        leaves = [leaf.flip(dim) for leaf in leaves]
    size, step = leaves[0].shape[dim], 1
    while step < size:
        before = [leaf.narrow(dim, 0, size - step) for leaf in leaves]
        after = [leaf.narrow(dim, step, size - step) for leaf in leaves]
        both = optree.tree_leaves(combine_fn(optree.tree_unflatten(tree, before), optree.tree_unflatten(tree, after)))
        leaves = [PUBLIC["cat"]([leaf.narrow(dim, 0, step), new], dim) for leaf, new in zip(leaves, both, strict=True)]
        step *= 2
    if reverse:
        leaves = [leaf.flip(dim) for leaf in leaves]
    return optree.tree_unflatten(tree, leaves)
