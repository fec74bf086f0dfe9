"""Instructions of a device that C has no word for, as functions of registers and places in memory. Start at `Instruction`.

A statement `Instruct` is one of them: `verify` checks it by its parameters, `render` prints it as a call of the macro that `text` defines,
and `kernel.run` runs its meaning. `INSTRUCTIONS` has all by name; `tile/instructions` fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from tracegrad.support.plan import Plain

Array = np.ndarray[Any, Any]


class Given(Plain):
    """A parameter: `count` elements of the C type `type` from a place on ("": 16 bytes of any type); a number where count is 0.

    writes, reads: what the instruction does with them.
    """

    type: str
    count: int = 0
    reads: bool = True
    writes: bool = False


class Instruction(Plain):
    """One instruction. text: the macro that spells it. lanes: how many work-items do it together (1: each by itself).

    kind: "value" has a meaning: from what each of the `lanes` work-items gives, a tuple of arrays and numbers, to what is written for each;
    "copy" copies 16 bytes from the second place to the first, later; "commit" makes one group of a work-item's copies since the last;
    "wait" waits for all groups but the last so many.
    """

    name: str
    text: str
    given: tuple[Given, ...]
    lanes: int = 1
    kind: Literal["value", "copy", "commit", "wait"] = "value"
    meaning: Callable[[Sequence[tuple[Any, ...]]], Sequence[Sequence[Array]]] | None = None


INSTRUCTIONS: dict[str, Instruction] = {}


def instruction(
    name: str, text: str, given: tuple[Given, ...], lanes: int = 1, kind: Literal["value", "copy", "commit", "wait"] = "value",
    meaning: Callable[[Sequence[tuple[Any, ...]]], Sequence[Sequence[Array]]] | None = None,
) -> Instruction:
    """A new one, which kernels may use."""
    made = INSTRUCTIONS[name] = Instruction(name, text, given, lanes, kind, meaning)
    return made
