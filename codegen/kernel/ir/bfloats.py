"""bfloat16 in memory, for OpenCL, which has no such type: what it has for halves, as functions of ours. Start at `bfloats`.

A bfloat16 is the upper half of a float's bits. So a load is a shift, and a store rounds to the nearest one, ties to even, and shifts.
"""

from __future__ import annotations

from collections.abc import Collection

from tracegrad.codegen.kernel.ir.vectors import WIDTHS
from tracegrad.support.plan import Target


def bfloats(names: Collection[str], target: Target) -> list[str]:
    """The type `bfloat`, and those of the functions `vload_bfloat8`, `vstorea_bfloat4`, ... that are in use: as OpenCL's for halves."""
    lines: list[str] = []
    for lanes in ("", *map(str, WIDTHS)):
        hows = [(how, aligned) for how in ("load", "store") for aligned in ("", "a") if f"v{how}{aligned}_bfloat{lanes}" in names]
        lines += ["typedef ushort bfloat;"] * (bool(hows) and not lines)
        anywhere = bool(lanes) and target.clang_builtins and any(not aligned for _, aligned in hows)
        lines += [f"typedef ushort{lanes} __attribute__((aligned(2))) bfloat{lanes}_u;"] * anywhere
        lines += [_CONVERSIONS[how](lanes, target.clang_builtins) for how in sorted({how for how, _ in hows})]
        for how, aligned in hows:
            of = "const " * (how == "load")
            if not lanes:
                place = "(p)[i]"
            elif aligned or anywhere:
                place = f"((__global {of}{f'ushort{lanes}' if aligned else f'bfloat{lanes}_u'} *)(p))[i]"
            else:
                place = ""                                      # OpenCL's own function knows
            if how == "load":
                lines.append(f"#define vload{aligned}_bfloat{lanes}(i, p) tg_of_bfloat({place or f'vload{lanes}(i, p)'})")
            else:
                store = f"({place} = tg_bfloat(v))" if place else f"vstore{lanes}(tg_bfloat(v), i, p)"
                lines.append(f"#define vstore{aligned}_bfloat{lanes}(v, i, p) {store}")
    return lines


def _of_bfloat(lanes: str, clang: bool) -> str:
    bits = _converted("x", "uint", lanes, clang)
    return f"{_FUNCTION} float{lanes} tg_of_bfloat(ushort{lanes} x) {{ return as_float{lanes}({bits} << 16); }}"


def _bfloat(lanes: str, clang: bool) -> str:
    uint = f"uint{lanes}"
    return f"""\
{_FUNCTION} ushort{lanes} tg_bfloat(float{lanes} x) {{
  {uint} bits = as_{uint}(x);
  {uint} near = bits + (0x7fffu + ((bits >> 16) & 1u));
  near = (bits & 0x7fffffffu) > 0x7f800000u ? (bits & 0x80000000u) | 0x7fc00000u : near;
  return {_converted("near >> 16", "ushort", lanes, clang)};
}}"""


def _converted(x: str, type_: str, lanes: str, clang: bool) -> str:
    if not lanes:
        return f"({type_})({x})"
    return f"__builtin_convertvector({x}, {type_}{lanes})" if clang else f"convert_{type_}{lanes}({x})"


_FUNCTION = "static inline __attribute__((overloadable, always_inline))"
_CONVERSIONS = {"load": _of_bfloat, "store": _bfloat}
