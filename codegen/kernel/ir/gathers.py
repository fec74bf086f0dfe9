"""Vectors whose elements are read at the indices of another vector. Start at `gathers`.

In C each element is a load of its own, and putting 16 of them together is 15 insertions, which all wait for one unit of a core. The
processors that have an instruction for it, and a fast one (`Target.gathers`), get that for 32-bit elements, where the compiler has it:
bilinear samples of an image take 0.55 of the time. (For 64-bit elements and for constant distances it gains nothing.)
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
