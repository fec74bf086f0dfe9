"""Vectors whose elements are read at the indices of another vector, or only some of which are read. Start at `gathers`.

In C each element is a load of its own, and putting 16 of them together is 15 insertions, which all wait for one unit of a core. The
processors that have an instruction for it, and a fast one (`Target.gathers`), get that for 32-bit elements, where the compiler has it:
bilinear samples of an image take 0.55 of the time. (For 64-bit elements and for constant distances it gains nothing.)

A vector at the edge of what is there, of elements that lie one behind the other, is a load with a mask: one instruction of AVX-512,
where C has a branch for each lane.
"""

from __future__ import annotations

from collections.abc import Collection

from tracegrad.codegen.kernel.ir.vectors import LANES
from tracegrad.support.plan import Target

# What the compiler calls it, and what it gives it for "all lanes", by the vector's type. (Sources: Intel's intrinsics guide, clang's.)
_INSTRUCTIONS = {
    "float16": ("__AVX512F__", "__builtin_ia32_gathersiv16sf", "void", "(ushort)0xffff"),
    "int16": ("__AVX512F__", "__builtin_ia32_gathersiv16si", "void", "(ushort)0xffff"),
    "float8": ("__AVX2__", "__builtin_ia32_gatherd_ps256", "float", "as_float8((int8)(-1))"),
    "int8": ("__AVX2__", "__builtin_ia32_gatherd_d256", "int", "(int8)(-1)"),
}

# Loads with a mask, and what makes its bits of a vector's lanes.
_MASKED = {
    "float16": ("__builtin_ia32_loadups512_mask", "__builtin_ia32_cvtd2mask512", "float"),
    "int16": ("__builtin_ia32_loaddqusi512_mask", "__builtin_ia32_cvtd2mask512", "int"),
    "double8": ("__builtin_ia32_loadupd512_mask", "__builtin_ia32_cvtd2mask256", "double"),
    "long8": ("__builtin_ia32_loaddqudi512_mask", "__builtin_ia32_cvtd2mask256", "long"),
    "float8": ("__builtin_ia32_loadups256_mask", "__builtin_ia32_cvtd2mask256", "float"),
    "int8": ("__builtin_ia32_loaddqusi256_mask", "__builtin_ia32_cvtd2mask256", "int"),
}


def gathers(name: str, width: int, types: Collection[str], target: Target) -> list[str]:
    """The macro `name` (GATHER8: of `width` lanes) for the vector types that are read by it."""
    elements = ", ".join(f"(p)[(i).s{lane}]" for lane in LANES[:width])
    if not target.gathers:
        return [f"#define {name}(V, p, i) ((V)({elements}))"]
    lines = [f"#define {name}(V, p, i) {name}_##V(p, i)"]            # whatever the types are: programs of several kernels have it once
    for type_ in sorted(types):
        each = f"#define {name}_{type_}(p, i) (({type_})({elements}))"
        if type_ not in _INSTRUCTIONS:
            lines.append(each)
            continue
        feature, function, of, everywhere = _INSTRUCTIONS[type_]
        lines.append(f"""\
#if defined({feature}) && __has_builtin({function})
#define {name}_{type_}(p, i) {function}(({type_})(0), (const {of} *)(size_t)(p), i, {everywhere}, 4)
#else
{each}
#endif""")
    return lines


def masked_loads(name: str, width: int, types: Collection[str], target: Target) -> list[str]:
    """The macro `name` (LOAD8_IF) for the vector types that are read by it: elements i.s0, i.s0 + 1, ... where m is, else 0."""
    each = ", ".join(f"((m).s{lane} ? (p)[(i).s{lane}] : 0)" for lane in LANES[:width])
    if not target.clang_builtins:
        return [f"#define {name}(V, p, i, m) ((V)({each}))"]
    lines = [f"#define {name}(V, p, i, m) {name}_##V(p, i, m)"]
    for type_ in sorted(types):
        plain = f"#define {name}_{type_}(p, i, m) (({type_})({each}))"
        if type_ not in _MASKED:
            lines.append(plain)
            continue
        function, bits, of = _MASKED[type_]
        mask = f"{bits}(__builtin_convertvector(m, int{width}))"
        lines.append(f"""\
#if defined(__AVX512DQ__) && defined(__AVX512VL__) && __has_builtin({function}) && __has_builtin({bits})
#define {name}_{type_}(p, i, m) {function}((const {of} *)(size_t)((p) + (i).s0), ({type_})(0), {mask})
#else
{plain}
#endif""")
    return lines
