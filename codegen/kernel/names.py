"""What variables of kernels may be called: every reserved name, by whom it is reserved. Start at `possible` and `means_something`.

Users' variables keep their names in kernels, so a name that means something there has to be known: words of OpenCL C and what all kernels
call themselves (`means_something`), the loops of owners of parts (`OWNERS`), and products and convolutions (`is_reserved`).
"""

from __future__ import annotations

import re
from functools import lru_cache

WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")             # in C text: what may be a name

# -------------------------------------------------------------------------------------------------- OpenCL C, and every kernel

_RESERVED = frozenset("""
    auto break case char const continue default do double else enum extern float for goto half if inline int long register restrict
    return short signed sizeof static struct switch typedef union unsigned void volatile while bool size_t ptrdiff_t global local
    constant private kernel image event_t true false NULL NAN INFINITY LOAD STORE KEPT PREFETCH TG M_PI M_E complex imaginary uniform pipe
    main i r row col part chunk item first last uchar ushort uint ulong
""".split())  # noqa: SIM905 - a list of words reads as words
_BUILTIN = re.compile(
    r"^(tg_|get_|vload|vstore|convert_|as_|native_|half_|atomic|__|LOAD_|STORE_|c\d+$|(uchar|char|ushort|short|uint|int|ulong|long|float|double|half)\d+$)"
)
_FUNCTIONS = frozenset("""
    abs acos acosh all any asin asinh atan atan2 atanh barrier bitselect cbrt ceil clamp copysign cos cosh cross degrees distance
    dot erf erfc exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod fract frexp gamma hypot ilogb isequal isfinite isinf isnan
    isnormal ldexp length lgamma log log10 log1p log2 logb mad mad24 max min mix modf mul24 mul_hi nan nextafter normalize pow pown
    powr prefetch radians remainder remquo rhadd rint rootn rotate round rsqrt select shuffle sign signbit sin sincos sinh sinpi
    smoothstep sqrt step sub_sat add_sat tan tanh tgamma trunc upsample vec_step printf popcount clz ctz y0 y1 yn j0 j1 jn index
""".split())  # noqa: SIM905 - as above


@lru_cache(4096)
def possible(base: str) -> str:
    """What a variable may be called, from what it is to be called."""
    base = re.sub(r"\W+", "_", base).strip("_") or "t"
    if base[0].isdigit():
        base = "t" + base
    return "t_" + base if _BUILTIN.match(base) or _BUILTIN.match(f"{base}1") else base     # half_life, half: no number behind it would help


@lru_cache(4096)
def means_something(name: str) -> bool:
    return name in _RESERVED or name in _FUNCTIONS or _BUILTIN.match(name) is not None


# ------------------------------------------------------------------------------------------ kernels of owners (lower/serial.py)

OWNERS = frozenset("""
    row column result chunk run part k i j before keys order place length first last start middle stop done low high probe mine other
    left right to from_right at key child from key_a key_b from_a from_b part_part part_first part_last row_part row_first row_last
    column_part column_first column_last result_part result_first result_last
""".split())  # noqa: SIM905 - as above


# -------------------------------------------------------------------------------------------------- products and convolutions

_SHARED = (
    r"[abcijk]|[abc]\d+|pa|pb|pg|px|wk|iy|ix|kb|kx|ky|dk|at|b_|to|k[01]|i0|j0|last\d+|[cs]\d+_\d+h*"
    r"|(block|packed)_[ab]|[ab]_line|line0?|panel|part|partial|plane|image|sums|padded|weights|rows|right|sum|value|channel|column|tile|unit"
    r"|(first_|last_)?(row|column|channel|unit)_tile"
)
_ALL = re.compile(rf"{_SHARED}|[dgnopqrstvwxy]|[gpvwxy]\d+|n[01]")
_PRODUCT_ON_CPU = re.compile(_SHARED)                      # its kernels leave the rest to users


def is_reserved(name: str) -> bool:
    """Whether a kernel of a product or a convolution uses `name` itself: nothing of an operand or epilogue may be called so."""
    return _ALL.fullmatch(name) is not None


def is_reserved_by_product(name: str) -> bool:
    """Whether a product's kernel on a CPU does."""
    return _PRODUCT_ON_CPU.fullmatch(name) is not None
