"""The text of a plan's program: for people, whole (`source`), and for drivers, kernel by kernel (`functions`).

A driver builds what it has not built before. So that kernels of different programs are the same text where they compute the same, a driver
gets them without comments and without the user's names, and each says which parts of what stands in front of kernels it uses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.statements import Allocate, Block, Declare, Item
from tracegrad.codegen.kernel.vectors import LANES, WIDTHS, ctype, prelude
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.mathlib import library as mathlib
from tracegrad.plan import Function

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_SIZE = {"char": 1, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}
_CALLED = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?=\s*\()")


def source(kernels: Sequence[Kernel], context: Context) -> str:
    """The program's text: extensions, vector access, math functions, kernels."""
    body = "\n".join(k.text for k in kernels)
    extensions, access, helpers = above(body, kernels, context)
    parts = extensions
    if access:
        parts += ["// Access to vectors at any element's address, and to elements by index.", *access]
    if helpers and context.target.plain_math:
        parts.append("// Math functions in plain operators: a call of the driver's own would keep it from using vectors.")
    text = "\n".join([*parts, *helpers]).rstrip()
    return (f"{text}\n\n" if text else "") + body.rstrip() + "\n"


def above(body: str, kernels: Sequence[Kernel], context: Context) -> tuple[list[str], list[str], list[str]]:
    """What stands in front of kernels: extensions, vector access, the functions that they call with all that these call."""
    functions = mathlib.parts(set().union(*(k.helpers for k in kernels)), context.target)
    text = "\n".join([*functions, body])
    extensions = []
    if context.target.clang_builtins and wider(text, context.target.simd_bytes):
        extensions.append('#pragma clang diagnostic ignored "-Wpsabi"')      # how vectors wider than a register would be passed to others
    if context.target.fp64 and re.search(r"\bdouble\d*\b", text):
        extensions.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
    return extensions, vector_access(frozenset().union(*(k.uses for k in kernels)), context), functions


def functions(kernels: Sequence[Kernel], context: Context) -> tuple[tuple[Function, ...], tuple[str, ...]]:
    """The kernels for drivers, and the parts of what stands in front of them; none if some are users', which may have to do with others."""
    found: list[Function] = []
    number: dict[str, int] = {}
    for kernel in () if any(k.foreign for k in kernels) else kernels:
        text, groups = canonical(kernel), above(kernel.text, [kernel], context)
        key = hashlib.sha256("\n".join([*(part for group in groups for part in group), text]).encode()).hexdigest()[:32]
        needs = tuple(tuple([number.setdefault(part, len(number)) for part in group]) for group in groups)
        found.append(Function(kernel.entry, key, text, needs))
    return tuple(found), tuple(number)


def canonical(kernel: Kernel) -> str:
    """The text of a kernel that is called "@", its variables numbered in order, without comments."""
    code = "\n".join(line for whole in kernel.text.split("\n") if (line := whole.partition("//")[0].rstrip()))
    head, brace, body = code.partition(") {\n")
    code = re.sub(r"\n\s+", " ", head).replace("( ", "(") + brace + body    # its parameters stand in one line, whatever they are called
    names = declared(kernel) - set(_CALLED.findall(code)) | {kernel.entry}
    numbers = {kernel.entry: "@"}
    return _WORD.sub(lambda m: numbers.setdefault(m[0], f"_{len(numbers)}") if m[0] in names else m[0], code)


def declared(kernel: Kernel) -> set[str]:
    """The names of its parameters, and of what its statements say that they declare."""
    found = {p.name for p in kernel.parameters}
    todo = [kernel.body]
    while todo:
        block = todo.pop()
        found |= {v.name for v in block.vars}
        for item in block.items:
            if isinstance(item, Block):
                todo.append(item)
            elif isinstance(item, Declare):
                found.add(item.symbol.name)
            elif isinstance(item, Item):
                found.add(item.var.name)
            elif isinstance(item, Allocate):
                found.add(item.array.name)
    return found


def wider(text: str, simd_bytes: int) -> bool:
    """Whether the text has vector types that are wider than a register."""
    found = set(re.findall(r"\b(u?(?:char|short|int|long)|float|double)(2|4|8|16)\b", text))
    return any(int(width) * _SIZE[scalar.removeprefix("u")] > simd_bytes for scalar, width in found)


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


def vector_access(uses: frozenset[tuple[str, str]], context: Context) -> list[str]:
    """The functions that kernels use to read and write vectors, and to report, with their types."""
    lines = []
    given = {(name, type_) for name, type_ in uses if name in ("LOAD", "LOAD_PRIVATE", "LOAD_LOCAL", "STORE")}
    names = {name for name, _ in uses}
    if given:
        types = {type_ for _, type_ in given}
        dtypes = {d for d in context.dtypes if any(ctype(d, width) in types for width in WIDTHS)}
        keep = {f"{name}_{type_}(" for name, type_ in given} | {f" {type_}_u;" for type_ in types}
        heads = tuple(f"#define {name}(" for name, _ in given)
        lines += [line for line in prelude(dtypes, context.target).splitlines() if line.startswith(heads) or any(k in line for k in keep)]
    if "KEPT" in names:
        for type_ in sorted(type_ for name, type_ in uses if name == "KEPT"):
            if f" {type_}_u;" not in "".join(lines):
                size = _SIZE[type_.rstrip("0123456789").removeprefix("u")]
                lines.append(f"typedef {type_} __attribute__((aligned({size}))) {type_}_u;")
        lines.append("#define KEPT(V, p) (*(V##_u *)(p))")
    if "PREFETCH" in names:
        lines.append("#define PREFETCH(p) __builtin_prefetch((__global const void *)(p))")
    if any(name.startswith("IN_RANGE") for name in names):
        lines.append(_IN_RANGE)
    if any(name.startswith("IMPOSSIBLE") for name in names):
        lines.append(_IMPOSSIBLE)
    if "LOAD_ALIGNED" in names:
        lines.append("#define LOAD_ALIGNED(V, p) (*(__global const V *)(p))")
    if "STORE_ALIGNED" in names:
        lines.append("#define STORE_ALIGNED(V, p, v) (*(__global V *)(p) = (v))")
    for name in sorted(names - {"LOAD", "LOAD_ALIGNED", "LOAD_PRIVATE", "LOAD_LOCAL", "STORE", "STORE_ALIGNED", "KEPT", "PREFETCH",
                                "IN_RANGE", "IMPOSSIBLE"}):
        width = int(re.findall(r"\d+", name)[0])
        if name.startswith("IN_RANGE"):
            each = " ".join(f"IN_RANGE((x).s{LANES[i]}, low, high, ignore, fault);" for i in range(width))
            anywhere = " | ".join(f"(outside).s{LANES[i]}" for i in range(width))      # any() would be a call, with wide vectors
            lines.append(f"#define {name}(outside, x, low, high, ignore, fault) if ({anywhere}) {{ {each} }}")
            continue
        if name.startswith("IMPOSSIBLE"):
            each = " ".join(f"IMPOSSIBLE((info).s{LANES[i]}, (first) - {i} * (step), step, fault);" for i in range(width))
            anywhere = " | ".join(f"(info).s{LANES[i]}" for i in range(width))
            lines.append(f"#define {name}(info, first, step, fault) if ({anywhere}) {{ {each} }}")
            continue
        if name.startswith("ZIP"):
            pairs = ", ".join(f"(a).s{LANES[i]}, (b).s{LANES[i]}" for i in range(width // 2))
            lines.append(f"#define {name}(V, a, b) ((V)({pairs}))")
            continue
        parts = {
            "STRIDED": [f"(p)[{i} * (s)]" for i in range(width)],
            "GATHER": [f"(p)[(i).s{LANES[i]}]" for i in range(width)],
            "IF": [f"((m).s{LANES[i]} ? (p)[(i).s{LANES[i]}] : 0)" for i in range(width)],
        }["IF" if name.endswith("_IF") else name.rstrip("0123456789")]
        params = "V, p, i, m" if name.endswith("_IF") else "V, p, s" if name.startswith("STRIDED") else "V, p, i"
        lines.append(f"#define {name}({params}) ((V)({', '.join(parts)}))")
    return lines
