"""How ops are written for a target: their C, once for each type. Start at `spelling`.

An op gives its C as a function of its operands' text. That is asked once, with marks in place of operands; the math library says which of
its functions stand for the names in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tracegrad.codegen.kernel.ir.expressions import Spelling
from tracegrad.codegen.mathlib import library as mathlib
from tracegrad.support.cache import memoize
from tracegrad.support.plan import Target

_MARK = re.compile(r"operand__(\d+)_")


def spelling(spell: Callable[..., str], operands: int, attrs: dict[str, Any], type_: str, target: Target) -> Spelling:
    """`spell` with the target's functions for operands of the C type `type_`."""
    if not attrs:
        return _plain(spell, operands, type_, target)
    return _spelled(spell(*_marks(operands), **attrs), type_, target)


@memoize(4096)
def _plain(spell: Callable[..., str], operands: int, type_: str, target: Target) -> Spelling:
    return _spelled(spell(*_marks(operands)), type_, target)


def _marks(count: int) -> list[str]:
    return [f"operand__{i}_" for i in range(count)]


def _spelled(text: str, type_: str, target: Target) -> Spelling:
    text, helpers = mathlib.translate(text, target, type_)
    open_ = _enclosed(text)
    if open_:
        text = text[1:-1]
    pieces = _MARK.split(text)
    found = [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)]
    return Spelling(tuple(piece for piece in found if piece != ""), open_, helpers)


def _enclosed(text: str) -> bool:
    """Whether the first parenthesis is closed at the end."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    level = 0
    for ch in text[:-1]:
        level += (ch == "(") - (ch == ")")
        if level == 0:
            return False
    return True
