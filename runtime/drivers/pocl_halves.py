"""Vectors of halves at any address with PoCL. Start at `any_address`.

OpenCL's vload_halfN and vstore_halfN take any address of a half. PoCL (3.0, 3.1) goes through a vector type there, which clang takes to lie
on a multiple of its size: a store of what does not change in a loop (zeros, a constant) becomes an aligned one, and crashes elsewhere.
So in programs for PoCL other functions stand in their place, which convert in a variable of a work-item, which becomes a
register, and move bits by a type that may lie anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_CALL = re.compile(r"\bv(load|store)_half(2|4|8|16)\(")


def any_address(source: str) -> str:
    """The text with what it uses declared in front, on one line that is not counted."""
    if "_half" not in source:
        return source
    found = sorted(set(_CALL.findall(source)), key=lambda call: (int(call[1]), call[0]))
    if not found:
        return source
    spaces = ["__global", *(space for space in ("__local", "__constant", "__private") if space in source)]
    lines = [f"typedef ushort{width} __attribute__((aligned(2))) tg_halves{width};" for width in dict.fromkeys(width for _, width in found)]
    lines += [line for kind, width in found for space in spaces for line in _function(kind, width, space)]
    text = _CALL.sub(r"tg_\1_half\2(", source)
    return f"{' '.join(lines)}\n#line 1\n{text}"


def _function(kind: str, width: str, space: str) -> Iterator[str]:
    bits, pointer, place = f"ushort{width} bits", "(__private half *)&bits", f"tg_halves{width} *)(p + at * {width})"
    if kind == "load":
        given = space if space == "__constant" else f"const {space}"
        yield (f"static float{width} __attribute__((overloadable)) tg_load_half{width}(size_t at, {given} half *p) "
               f"{{ {bits} = *({given} {place}; return vloada_half{width}(0, {pointer}); }}")
    elif space != "__constant":
        yield (f"static void __attribute__((overloadable)) tg_store_half{width}(float{width} value, size_t at, {space} half *p) "
               f"{{ {bits}; vstorea_half{width}(value, 0, {pointer}); *({space} {place} = bits; }}")
