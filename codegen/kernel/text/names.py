"""What variables of kernels may be called. Start at `possible` and `means_something`.

Users' variables keep their names in kernels, so a name that means something there has to be known: words of OpenCL C and of what all
kernels begin with. What kernels call their own gives way to users' names (kernel/statement_passes.py).
"""

from __future__ import annotations

import re
from unicodedata import category, normalize
from unicodedata import name as unicode_name

from tracegrad.support.cache import memoize

_RESERVED = frozenset("""
    auto break case char const continue default do double else enum extern float for goto half if inline int long register restrict
    return short signed sizeof static struct switch typedef union unsigned void volatile while bool size_t ptrdiff_t global local
    constant private kernel image event_t true false NULL NAN INFINITY LOAD STORE LOCAL KEPT PREFETCH TG M_PI M_E complex imaginary uniform
    pipe main bfloat uchar ushort uint ulong
    generic read_only write_only read_write asm typeof quad event_t sampler_t queue_t clk_event_t reserve_id_t ndrange_t intptr_t uintptr_t
    block_t wchar_t cl_mem_fence_flags memory_order memory_scope kernel_enqueue_flags_t clk_profiling_info kernel_exec unix linux i386 arm
    mips sparc vax IN_RANGE IMPOSSIBLE GATHER STRIDED ZIP MAXFLOAT HUGE_VALF HUGE_VAL CHAR_BIT MAX_WORK_DIM INTTYPE EMULATED DISPATCH
""".split())  # noqa: SIM905 - a list of words reads as words
# Families: of functions, of types, of our macros, and of the macros of OpenCL C (limits, mathematics, extensions) and of drivers' headers.
_BUILTIN = re.compile(r"""^(
    tg_ | get_ | vload | vstore | convert_ | as_ | native_ | half_ | atomic | work_group_ | sub_group_ | image\d\w*_t$ | intel_ | __
    | (uchar|char|ushort|short|uint|int|ulong|long|float|double|half|bfloat|bool|quad)\d+(x\d+)?(_u)?$ | c\d+$
    | (LOAD|STORE|IN_RANGE|IMPOSSIBLE|GATHER|FAR_GATHER|STRIDED|ZIP)(_|\d)
    | (CLK|CL|M|FLT|DBL|HALF|INT|UINT|LONG|ULONG|S?CHAR|UCHAR|U?SHRT|FP|ATOMIC|POCL|LLVM|CLANG|OPENCL|OCL|SPIR|IMG|NVIDIA|INTEL|AMD)_
    | (cl|cles|cl_khr|pocl|spir)_
)""", re.VERBOSE)
_LONGEST = 60                                                # characters of a user's name; C99 tells 63 apart
_FUNCTIONS = frozenset("""
    abs acos acosh all any asin asinh atan atan2 atanh barrier bitselect cbrt ceil clamp copysign cos cosh cross degrees distance
    dot erf erfc exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod fract frexp gamma hypot ilogb isequal isfinite isinf isnan
    isnormal ldexp length lgamma log log10 log1p log2 logb mad mad24 max min mix modf mul24 mul_hi nan nextafter normalize pow pown
    powr prefetch radians remainder remquo rhadd rint rootn rotate round rsqrt select shuffle sign signbit sin sincos sinh sinpi
    smoothstep sqrt step sub_sat add_sat tan tanh tgamma trunc upsample vec_step printf popcount clz ctz y0 y1 yn j0 j1 jn index
""".split())  # noqa: SIM905 - as above


@memoize(4096)
def spelled(name: str) -> str:
    """`name` in ASCII, which is what every C compiler takes: without accents, letters of other scripts by what Unicode calls them."""
    if name.isascii():
        return name
    pieces: list[str] = []
    for letter in normalize("NFKD", name):
        if letter.isascii():
            pieces.append(letter)
        elif category(letter)[0] != "M":
            words = unicode_name(letter, "").partition(" WITH ")[0].split()          # GREEK CAPITAL LETTER DELTA
            known = "LETTER" in words and words[-1].isalpha()
            called = words[-1] if known else f"u{ord(letter):x}"
            pieces.append(called.capitalize() if known and "CAPITAL" in words else called.lower())
    return "".join([f"_{piece}" if k and piece[0].isalpha() and pieces[k - 1][-1].isalpha() and len(piece + pieces[k - 1]) > 2 else piece
                    for k, piece in enumerate(pieces)])                              # dα: d_alpha


@memoize(4096)
def possible(base: str) -> str:
    """What a variable may be called, from what it is to be called."""
    base = re.sub(r"\W+", "_", spelled(base), flags=re.ASCII).strip("_")[:_LONGEST] or "t"
    if base[0].isdigit():
        base = "t" + base
    return "t_" + base if _BUILTIN.match(base) or _BUILTIN.match(f"{base}1") else base     # half_life, half: no number behind it would help


@memoize(4096)
def entry_of(base: str) -> str:
    """What the name of a kernel may begin with (a number follows, so it is no word of the language), from what it computes."""
    base = re.sub(r"\W", "_", spelled(base), flags=re.ASCII)[:_LONGEST] or "kernel"
    return "t" + base if base[0].isdigit() else base


@memoize(4096)
def means_something(name: str) -> bool:
    return name in _RESERVED or name in _FUNCTIONS or _BUILTIN.match(name) is not None
