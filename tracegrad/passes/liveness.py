"""What is alive when: the last use of each value of an ordered program. Both backends reuse memory by it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

H = TypeVar("H", bound=Hashable)


def last_uses(uses: Sequence[Iterable[H]], kept: Iterable[H] = ()) -> list[tuple[H, ...]]:
    """For each step, the values that no later step uses.

    uses: the values that each step uses, in order. kept: those that are needed after the last step.
    """
    done = set(kept)
    found = []
    for values in reversed(uses):
        last = tuple([v for v in dict.fromkeys(values) if v not in done])
        done.update(last)
        found.append(last)
    return found[::-1]
