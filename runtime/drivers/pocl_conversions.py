"""Conversions between vectors of 32 and of 64 bits with PoCL, by halves. Start at `by_halves`.

A choice among two int8 that were read, by what a long8 says, made long8: of that the LLVM in PoCL 3.0 and 3.1 makes machine code for AVX2
that it cannot print ("Cannot emit physreg copy instruction"), and ends the process. (`tg.where(labels == 3, x, y).sum()`, where labels are
int64, x and y int32.) Not if what is wider than a register is converted by halves, as the machine has to do in any case. Unsigned ones
become double by way of long.
"""

from __future__ import annotations

_CALL = "__builtin_convertvector("
_TYPES = frozenset(("int4", "uint4", *(f"{kind}{width}" for kind in ("int", "uint", "long", "ulong", "double") for width in (8, 16))))
_SOURCES = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double")


def by_halves(source: str) -> str:
    """The text with functions for such conversions declared in front, on one line that is not counted."""
    if _CALL not in source or not any(f"long{width}" in source for width in "12348"):          # (no regex: it takes 50 times as long)
        return source
    found: set[str] = set()
    at = source.rfind(_CALL)
    while at >= 0:
        start = at + len(_CALL)
        value, _, type_ = source[start:(end := _closing(source, start))].rpartition(", ")
        if type_ in _TYPES:                                # (four that are widened are one instruction)
            found.add(type_)
            source = f"{source[:at]}tg_to_{type_}({value}{source[end:]}"
        at = source.rfind(_CALL, 0, at)
    if not found:
        return source
    found |= {type_.replace("16", "8") for type_ in found}                         # the halves of those
    lines = [_function(type_, of) for type_ in sorted(found, key=lambda type_: ("16" in type_, type_)) for of in _SOURCES]
    return f"{' '.join(lines)}\n#line 1\n{source}"


def _closing(text: str, at: int) -> int:
    """Where the bracket closes in which `at` is."""
    depth = 1
    while depth and at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1


def _function(type_: str, of: str) -> str:
    """One that converts a vector of `of` as long as type_ to that."""
    kind = type_.rstrip("0123456789")
    width = int(type_.removeprefix(kind))
    half = f"{kind}{width // 2}"
    other = of.lstrip("u") in ("int", "long") and of.endswith("int") != kind.endswith("int")
    part = f"tg_to_{half}(x.%s)" if width == 16 else f"__builtin_convertvector(x.%s, {half})"
    value = f"({type_})({part % 'lo'}, {part % 'hi'})" if other else f"__builtin_convertvector(x, {type_})"
    return f"static inline __attribute__((overloadable)) {type_} tg_to_{type_}({of}{width} x) {{ return {value}; }}"
