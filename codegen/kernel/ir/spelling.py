"""How ops are written for a target: their C, once for each type, and what expression that is. Start at `spelling` and `formula`.

An op gives its C as a function of its operands' text. That is asked once, with marks in place of operands; the math library says which of
its functions stand for the names in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.codegen.kernel.ir.expressions import Call, Cast, Expression, Infix, Literal, Prefix, Select, Spelling
from tracegrad.codegen.mathlib import library as mathlib
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import OPENCL, DType, float32, float64, int32, int64, uint32, uint64
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
    found = [piece for piece in (int(piece) if i % 2 else piece for i, piece in enumerate(pieces)) if piece != ""]
    ends = [str(piece).strip() for piece in ("", *found, "")]
    arguments = [k for k, piece in enumerate(found)
                 if isinstance(piece, int) and ends[k][-1:] in ("(", ",") and ends[k + 2][:1] in (")", ",")]
    return Spelling(tuple(found), open_, helpers, frozenset(arguments))


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


# --------------------------------------------------------------------------------------------------------------- C that is read

_TOKEN = re.compile(r"\s*(0x[0-9a-fA-F]+[uUlL]*|\d+\.?\d*(?:[eE][-+]?\d+)?[fFuUlL]*|\.\d+[fF]?|[A-Za-z_]\w*|<<|>>|&&|\|\||[<>=!]=|\S)")
_BINARY = [("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%")]
_PRECEDENCE = {sign: depth for depth, signs in enumerate(_BINARY) for sign in signs}
_NAMED = {"INFINITY": float("inf"), "NAN": float("nan")}
_TYPES = {name: dtype for dtype, name in OPENCL.items() if dtype.kind != "b"}
_WHOLE: dict[str, DType] = {"": int32, "u": uint32, "l": int64, "ul": uint64}


class Unreadable(Exception):
    """What `formula` cannot read."""


def formula(spelling: Spelling, operands: Sequence[Expression]) -> Expression:
    """The expression that an op is of its operands, users' among them (`tg.elementwise`): operators, `?:`, calls, casts, numbers."""
    return _Reader(spelling, operands).whole()


class _Reader:
    """tokens: words of C, and operands."""

    def __init__(self, spelling: Spelling, operands: Sequence[Expression]) -> None:
        self.spelling = spelling
        self.tokens: list[str | Expression] = []
        for piece in spelling.pieces:
            if isinstance(piece, int):
                self.tokens.append(operands[piece])
            else:
                self.tokens += _TOKEN.findall(piece)
        self.at = 0

    def error(self) -> Unreadable:
        text = "".join([f"operand {p}" if isinstance(p, int) else p for p in self.spelling.pieces])
        return Unreadable(f"`{text}` is no expression that is run without a driver")

    @property
    def here(self) -> str | Expression:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str | Expression:
        token = self.here
        if wanted and token != wanted:
            raise self.error()
        self.at += 1
        return token

    def taken(self, word: str) -> bool:
        found = isinstance(self.here, str) and self.here == word
        self.at += found
        return found

    def whole(self) -> Expression:
        found = self.ternary()
        if self.at < len(self.tokens):
            raise self.error()
        return found

    def ternary(self) -> Expression:
        test = self.operation()
        if not self.taken("?"):
            return test
        yes = self.ternary()
        self.take(":")
        return Select(test, yes, self.ternary())

    def operation(self, least: int = 0) -> Expression:
        """Operands with operators between them that bind as closely as `least`, or closer."""
        left = self.unary()
        while isinstance(sign := self.here, str) and (closeness := _PRECEDENCE.get(sign, -1)) >= least:
            self.take()
            left = Infix(sign, left, self.operation(closeness + 1))
        return left

    def unary(self) -> Expression:
        sign = self.take()
        if isinstance(sign, Expression):
            return sign
        if sign in ("-", "~", "!", "+"):
            return self.unary() if sign == "+" else Prefix(sign, self.unary())
        if sign == "(":
            type_ = self.here
            if isinstance(type_, str) and type_ in _TYPES and self.tokens[self.at + 1] == ")":
                self.at += 2
                return Cast(self.unary(), _TYPES[type_])
            inner = self.ternary()
            self.take(")")
            return inner
        if sign[:1].isdigit() or sign[:1] == ".":
            return _number(sign)
        if sign in _NAMED:
            return Literal(_NAMED[sign], float32)
        if not self.taken("("):
            raise self.error()
        given = [self.ternary()]
        while self.taken(","):
            given.append(self.ternary())
        self.take(")")
        return Call(sign, *given)


def _number(text: str) -> Literal:
    body = text.rstrip("uUlL") if text[:2] == "0x" else text.rstrip("uUlLfF")
    suffix = "".join(sorted(text[len(body):].lower(), reverse=True))
    if suffix == "f" or (text[:2] != "0x" and not body.isdigit()):
        return Literal(float(body), float32 if suffix == "f" else float64)
    value = int(body, 0) if text[:2] == "0x" else int(body)
    return Literal(value, int64 if not suffix and value >> 31 else _WHOLE[suffix])
