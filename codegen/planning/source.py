"""The text of a plan's program: for people, whole (`source`), and for drivers, kernel by kernel (`functions`).

A driver builds what it has not built before. So that kernels of different programs are the same text where they compute the same, a driver
gets them without comments and without the user's names, and each says which parts of what stands in front of kernels it uses. Kernels that
users wrote are a program of their own (`foreign`): what they define means nothing in ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tracegrad.codegen.kernel.ir.bfloats import bfloats
from tracegrad.codegen.kernel.ir.gathers import gathers, masked_loads
from tracegrad.codegen.kernel.ir.instructions import INSTRUCTIONS
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.vectors import ACCESS, LANES, WIDTHS, ctype, prelude
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.mathlib import library as mathlib
from tracegrad.codegen.planning.arguments.generic import Built, Template
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import OPENCL
from tracegrad.support.plan import Function, Target

_SIZE = {ctype(dtype, lanes): dtype.itemsize for dtype in OPENCL for lanes in (1, *WIDTHS)}       # of one lane
# The functions that are defined for so many lanes: of which kind, and how many.
_OF_LANES = {f"{kind}{width}{masked}": (kind, width, masked) for width in WIDTHS
             for kind, masked in (("IN_RANGE", ""), ("IMPOSSIBLE", ""), ("ZIP", ""), ("STRIDED", ""), ("GATHER", ""), ("GATHER", "_IF"),
                                  ("LOAD", "_IF"), ("FAR_GATHER", ""), ("STORE_STRIDED", ""))}


def source(kernels: Sequence[Kernel], context: Context, extensions: Sequence[str]) -> str:
    """The program's text: extensions, vector access, math functions, kernels."""
    body = "\n".join(k.text for k in kernels)
    access, helpers = called(kernels, context)
    parts = list(extensions)
    if access:
        parts += ["// Access to vectors at any element's address, and to elements by index.", *access]
    if helpers and context.target.plain_math:
        parts.append("// Math functions in plain operators: a call of the driver's own would keep it from using vectors.")
    text = "\n".join([*parts, *helpers]).rstrip()
    return (f"{text}\n\n" if text else "") + body.rstrip() + "\n"


def called(kernels: Sequence[Kernel], context: Context) -> tuple[list[str], list[str]]:
    """What kernels use: vector access, and the functions that they call with all that these call."""
    helpers = frozenset().union(*(k.helpers for k in kernels))
    return (list(vector_access(frozenset().union(*(k.uses for k in kernels)), context.target)), mathlib.parts(helpers, context.target))


WIDE_VECTORS = '#pragma clang diagnostic ignored "-Wpsabi"'                   # how vectors wider than a register would be passed to others
DOUBLES = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"
ATOMICS = "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable"


def extensions_of(kernel: Kernel, context: Context) -> list[str]:
    """The extensions that a kernel needs."""
    types = {(ctype(dtype), lanes) for dtype, lanes in kernel.types} | mathlib.types(kernel.helpers, context.target)
    wide = context.target.clang_builtins and any(lanes > 1 and lanes * _SIZE[scalar] > context.target.simd_bytes for scalar, lanes in types)
    doubles = context.target.fp64 and any(scalar == "double" for scalar, _ in types)
    return [text for text, needed in ((WIDE_VECTORS, wide), (DOUBLES, doubles), (ATOMICS, kernel.wide_atomics)) if needed]


def together(extensions: Iterable[str]) -> list[str]:
    """Each of them once, in the order in which they stand above kernels."""
    given = frozenset(extensions)
    return [text for text in (WIDE_VECTORS, DOUBLES, ATOMICS) if text in given]


def functions(kernels: Sequence[Kernel], context: Context, known: Mapping[str, Template]
              ) -> tuple[tuple[Function, ...], tuple[str, ...], list[str]]:
    """The kernels for drivers, users' left out, the parts of what stands in front of them, and the extensions of all.

    known: the templates of some, by name.
    """

    def made(kernel: Kernel) -> Built:
        groups = tuple([tuple(group) for group in (extensions_of(kernel, context), *called([kernel], context))])
        function = replace(kernel.function(()), entry="")
        text = "\n".join([*(part for group in groups for part in group), function.text("@")])
        return replace(function, key=hashlib.sha256(text.encode()).hexdigest()[:32]), groups

    found: list[Function] = []
    number: dict[str, int] = {}
    extensions: set[str] = set()
    for kernel in kernels:
        if kernel.foreign:
            extensions.update(extensions_of(kernel, context))
            continue
        template = known.get(kernel.entry)
        function, groups = made(kernel) if template is None else template.function(kernel, made)
        extensions.update(groups[0])
        places = tuple([tuple([number.setdefault(part, len(number)) for part in group]) for group in groups])
        found.append(replace(function, entry=kernel.entry, above=places))
    return tuple(found), tuple(number), together(extensions)


def foreign(kernels: Sequence[Kernel], context: Context) -> str:
    """The program of the kernels that users wrote, "" if there are none."""
    theirs = [k for k in kernels if k.foreign]
    return source(theirs, context, together(e for k in theirs for e in extensions_of(k, context))) if theirs else ""


# What an index out of range leaves: by how much it is above (below: in the next int) its range, the largest of all. It is compared as
# what it is: Mesa 22.3 takes an int that became a long to be greater than every constant.
_IN_RANGE = """\
#define IN_RANGE(x, low, high, ignore, fault) if ((x) < (low) | (x) > (high)) tg_fault((x) < (low), x, low, high, ignore, fault)
static void tg_fault(int below, long x, long low, long high, long ignore, __global int *fault) {
  ulong excess = below ? (ulong)low - (ulong)x : (ulong)x - (ulong)high;
  if (x != ignore)
    atomic_max(fault + below, (int)min(excess, (ulong)0x7fffffff));
}"""

# What the first matrix leaves that has no result: the number of the pivot, and how many matrices there are from that one on.
_IMPOSSIBLE = "#define IMPOSSIBLE(info, first, step, fault) if (info) atomic_max(fault, (first) + (int)(info))"


@memoize(256)                                              # many kernels use the same
def vector_access(uses: frozenset[tuple[str, str]], target: Target) -> tuple[str, ...]:
    """The functions that kernels use to read and write vectors, and to report, with their types."""
    names = {name for name, _ in uses}
    lines = prelude(uses, target) + bfloats(names, target)
    if "KEPT" in names:
        known = {type_ for name, type_ in uses if name in ACCESS} if target.clang_builtins else set()
        for type_ in sorted(type_ for name, type_ in uses if name == "KEPT" and type_ not in known):
            lines.append(f"typedef {type_} __attribute__((aligned({_SIZE[type_]}))) {type_}_u;")
        lines.append("#define KEPT(V, p) (*(V##_u *)(p))")
    if "PREFETCH" in names:
        lines.append("#define PREFETCH(p) __builtin_prefetch((__global const void *)(p))")
    wide = {name: _OF_LANES[name] for name in sorted(names) if name in _OF_LANES}
    reports = names | {kind for kind, _, _ in wide.values()}
    lines += [text for name, text in (("IN_RANGE", _IN_RANGE), ("IMPOSSIBLE", _IMPOSSIBLE)) if name in reports]
    lines += [INSTRUCTIONS[name].text for name in sorted(names) if name in INSTRUCTIONS]
    if "LOAD_ALIGNED" in names:
        lines.append("#define LOAD_ALIGNED(V, p) (*(__global const V *)(p))")
    if "STORE_ALIGNED" in names:
        lines.append("#define STORE_ALIGNED(V, p, v) (*(__global V *)(p) = (v))")
    for name, (kind, width, masked) in wide.items():
        lanes = LANES[:width]
        if kind == "IN_RANGE":
            each = " ".join(f"IN_RANGE((x).s{lane}, low, high, ignore, fault);" for lane in lanes)
            anywhere = " | ".join(f"(outside).s{lane}" for lane in lanes)             # any() would be a call, with wide vectors
            lines.append(f"#define {name}(outside, x, low, high, ignore, fault) if ({anywhere}) {{ {each} }}")
        elif kind == "IMPOSSIBLE":
            each = " ".join(f"IMPOSSIBLE((info).s{lane}, (first) - {i} * (step), step, fault);" for i, lane in enumerate(lanes))
            anywhere = " | ".join(f"(info).s{lane}" for lane in lanes)
            lines.append(f"#define {name}(info, first, step, fault) if ({anywhere}) {{ {each} }}")
        elif kind == "ZIP":
            pairs = ", ".join(f"(a).s{lane}, (b).s{lane}" for lane in lanes[:width // 2])
            lines.append(f"#define {name}(V, a, b) ((V)({pairs}))")
        elif kind == "GATHER" and not masked:
            lines += gathers(name, width, {type_ for used, type_ in uses if used == name}, target)
        elif kind == "LOAD":
            lines += masked_loads(name, width, {type_ for used, type_ in uses if used == name}, target)
        elif kind == "STORE_STRIDED":
            each = ", ".join(f"(p)[{i} * (s)] = (v).s{lane}" for i, lane in enumerate(lanes))
            lines.append(f"#define {name}(p, s, v) ({each})")
        else:
            params, parts = {
                "STRIDED": ("V, p, s", [f"(p)[{i} * (s)]" for i in range(width)]),
                "FAR_GATHER": ("V, p, i", [f"(p)[(i).s{lane}]" for lane in lanes]),
                "GATHER_IF": ("V, p, i, m", [f"((m).s{lane} ? (p)[(i).s{lane}] : 0)" for lane in lanes]),
            }[kind + masked]
            lines.append(f"#define {name}({params}) ((V)({', '.join(parts)}))")
    return tuple(lines)
