"""Random chains of movements (permutations, reshapes, slices, ...) with reductions and scans between them. Start at `random_moves`.

What a permutation, a reshape and a reduction mean together is decided by passes that look at each of them alone: rows may become columns.
"""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

SIZES = (1, 2, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 64, 100, 130)      # of a dimension: fewer than a vector has, whole vectors, and a rest
MOST, RANK = 6000, 5                                                # elements and dimensions of a value


def random_moves(rng: Random) -> tuple[tuple[int, ...], list[str]]:
    """The shape of x, and expressions of it, each of which is the next x."""
    shape = _shape(rng)
    found: list[str] = []
    first = shape
    for _ in range(rng.randint(2, 7)):
        if (step := _step(rng, shape)) is not None:
            text, shape = step
            found.append(text)
    return first, found


def _shape(rng: Random) -> tuple[int, ...]:
    while True:
        shape = tuple(rng.choice(SIZES) for _ in range(rng.randint(1, 3)))
        if prod(shape) <= MOST:
            return shape


def _step(rng: Random, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    """An expression of x, which has that shape, and its own shape; None where what was drawn does not fit."""
    n = len(shape)
    d = rng.randrange(n) if n else 0
    kind = rng.choice(["permute", "permute", "unsqueeze", "reshape", "reshape", "flip", "slice", "expand", "scale", "reduce", "reduce",
                       "reduce", "cumsum"])
    if kind == "permute":
        order = rng.sample(range(n), n)
        return f"x.permute({order})", tuple(shape[i] for i in order)
    if kind == "unsqueeze" and n < RANK:
        at = rng.randint(0, n)
        return f"x.unsqueeze({at})", (*shape[:at], 1, *shape[at:])
    if kind == "reshape":
        other = _split(rng, prod(shape))
        return f"x.reshape({other})", other
    if kind == "scale":
        return "x * 0.5", shape
    if kind == "expand" and n < RANK and prod(shape) * 3 <= MOST:
        at, count = rng.randint(0, n), rng.choice([2, 3])
        wide = (*shape[:at], count, *shape[at:])
        return f"x.unsqueeze({at}).expand({wide})", wide
    if not n:
        return None
    if kind == "flip":
        return f"x.flip({d})", shape
    if kind == "slice":
        begin, step = rng.randrange(shape[d]), rng.choice([1, 1, 2])
        return f"x[{':, ' * d}{begin}::{step}]", (*shape[:d], len(range(begin, shape[d], step)), *shape[d + 1:])
    if kind == "cumsum":
        return f"x.cumsum({d})", shape
    if kind == "reduce":
        dims, kept = sorted(rng.sample(range(n), rng.randint(1, n))), rng.random() < 0.4
        name = rng.choice(["sum", "sum", "mean", "amax", "amin"])
        return f"x.{name}({dims}, {kept})", tuple(1 if i in dims else m for i, m in enumerate(shape) if kept or i not in dims)
    return None


def _split(rng: Random, size: int) -> tuple[int, ...]:
    """A shape with so many elements."""
    found: list[int] = []
    while size > 1 and len(found) < 3:
        found.append(rng.choice([m for m in range(1, min(size, 200) + 1) if size % m == 0]))
        size //= found[-1]
    found.insert(rng.randint(0, len(found)), size)
    return tuple(found)


def moved(texts: list[str]) -> Any:
    """The function of x that the expressions make."""
    def program(x: Any) -> Any:
        for text in texts:
            x = eval(text, {"x": x})
        return x

    return program
