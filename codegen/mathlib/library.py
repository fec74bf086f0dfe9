"""The math functions of a kernel: OpenCL names in, each target's best spelling out. Start at `translate`.

Ops write OpenCL names (`exp(x)`, `fmin(a, b)`). A call to a builtin stops PoCL's vectoriser; there (`Target.plain_math`) the
names become `tg_exp` and so on: functions of plain operators that `source` writes out, one overload per type. Elsewhere the
builtins stay. The `tg_` names of `HELPERS` have numpy's meaning where OpenCL's differs, and may be used on every target.

Measured on PoCL 3.0 (4 cores of Zen 3), a million floats / half a million doubles, one element per work-item. First the time
over a copy kernel's (launch included in both), then how many times faster than the builtin.

    float   exp 1.8, 9    log 2.4, 22   tanh 2.6, 13  pow 8.3, 62   erf 6.9, 10   atan 2.1, 53   sqrt 1.2, 4   floor 1.0, 5
    double  exp 1.6, 5    log 2.0, 8    tanh 3.2, 5   pow 6.6, 19   erf 5.7, 6    atan 1.6, 19   sqrt 1.1, 3   floor 0.8, 3
    float   sin 6.4, 11   cos 6.2, 11   tan 7.0, 12   atan2 2.8, 32     double  sin 8.3, 2.4   tan 7.4, 2.4  atan2 3.0, 18

fmod (and so the float tg_remainder, tg_floordiv) stays a builtin, 20-58 copies: it is exact only as a loop. What stops the vectoriser
is not always visible in the C text (see tg_sin, tg_atan2): look for ymm registers in the machine code after a change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce

from tracegrad.codegen.mathlib import explog, integers, pairs, special, tables, trig
from tracegrad.codegen.mathlib.builtins import BUILTINS, builtin
from tracegrad.support.cache import memoize
from tracegrad.support.plan import Target

_PAIRS = {**explog.TEXTS, **trig.TEXTS}
_OWNER = {
    name: key
    for key, text in _PAIRS.items()
    for name in re.findall(r"^TG \w+ (tg_\w+)\(", text if isinstance(text, str) else text[0] + text[1], re.MULTILINE)
}
_INTERNAL = {"tg_as_float", "tg_scale", "tg_add", "tg_turn", "tg_turn_narrow"}
_PLAIN = {name[3:] for name in _OWNER if not re.search(r"_(parts?|ends|split|small|reduced)$", name) and name not in _INTERNAL}

# Names that mean the same on every target; the first group is for floats, all but the last three also for integers.
HELPERS = frozenset(integers.FLOAT_TEXTS) | frozenset(integers.TEXTS) | frozenset(pairs.TEXTS) | {
    "tg_philox", *(f"tg_philox{word}" for word in range(4))}
# Polynomials of floats whose last steps go by Horner's scheme, and how many: else erfc would lose an ulp, and erf half of one.
_CHAINS = {"erf": 16, "erfc": 16, "erfwhole": 3}

_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\s*\()")
_TYPE = re.compile(r"(half|float|double|u?(?:char|short|int|long))(\d*)$")
_UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}


def translate(expression: str, target: Target, ctype: str = "float") -> tuple[str, frozenset[str]]:
    """`expression` in `target`'s spelling, and the library functions it needs as keys for `source` ("tg_exp:float8").

    `ctype` is the OpenCL type of the operands: a scalar or a vector. Half operands are computed as float.
    """
    scalar, lanes = _split(ctype)
    is_float = scalar in ("float", "double")
    needed = set()

    def spell(match: re.Match[str]) -> str:
        name = match[1]
        if is_float and builtin(name).floats in BUILTINS:        # C's name for floats: fabs
            name = builtin(name).floats
        known = builtin(name)
        found = (known.floats if is_float else known.integers) or (name if _everywhere(name) else "")
        if is_float and not found:
            if (name, scalar) == ("erfc", "float"):
                found = "tg_erfc"               # within 2.2 ulp; OpenCL promises 16, and Mesa's needs 10
            elif name == "fmod" and target.plain_math and ctype in ("double8", "double16"):
                found = "tg_fmod"
            elif target.plain_math and name in _PLAIN and (target.fp64 or scalar != "float" or not known.wide):
                found = f"tg_{name}"
        if found.startswith("tg_"):
            needed.add(f"{found}:{scalar}{lanes}")
        return (found or known.weaker or name) + match[2]

    return _CALL.sub(spell, expression), frozenset(needed)


def source(names: Iterable[str], target: Target) -> str:
    """C text of the functions that the keys `names` ask for and of those they call: the same every time."""
    return "".join(f"{part}\n" for part in parts(names, target))


def parts(names: Iterable[str], target: Target) -> list[str]:
    """The same in parts, callees first: what all functions need, tables, functions."""
    return list(_parts(frozenset(names), target))


@memoize(256)                                              # many kernels call the same
def _parts(names: frozenset[str], target: Target) -> tuple[str, ...]:
    order: dict[str, str] = {}
    tables: dict[str, str] = {}
    pending = [(key, False) for key in sorted(names, reverse=True)]
    while pending:
        key, expanded = pending.pop()
        if key in order:
            continue
        text, needs, _ = _render(key, target)
        if expanded:
            order[key] = text
            tables.update({name: table for name, table in (trig.TABLES | pairs.TABLES).items() if name in text})
        else:
            pending.append((key, True))
            pending += [(need, False) for need in reversed(needs) if need not in order]
    if not order:
        return ()
    head = ["#pragma OPENCL FP_CONTRACT ON", "#define TG static inline __attribute__((overloadable, always_inline))"]
    return (*head, *tables.values(), *order.values())


def types(names: Iterable[str], target: Target) -> frozenset[tuple[str, int]]:
    """The C types of what those functions compute: of one lane, and how many."""
    return _types(frozenset(names), target)


@memoize(256)
def _types(names: frozenset[str], target: Target) -> frozenset[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    seen, todo = set(names), list(names)
    while todo:
        _, needs, own = _render(todo.pop(), target)
        found |= own
        todo += [need for need in needs if need not in seen]
        seen.update(needs)
    return frozenset(found)


def _split(ctype: str) -> tuple[str, str]:
    match = _TYPE.match(ctype)
    if match is None:
        raise ValueError(f"mathlib: {ctype!r} is not an OpenCL scalar or vector type")
    return ("float" if match[1] == "half" else match[1]), match[2]


@memoize(None)
def _render(key: str, target: Target) -> tuple[str, tuple[str, ...], frozenset[tuple[str, int]]]:
    """The text of one key, the keys it calls, in the order of first use, and its types."""
    name, _, ctype = key.partition(":")
    scalar, lanes = _split(ctype)
    width = int(lanes or 1)
    types = frozenset(((scalar, width),))
    if name == "tg_philox":
        return _render_philox(scalar, lanes), (), types | {("ulong", width)}
    if name.startswith("tg_philox"):
        return _render_philox_word(int(name[-1]), scalar, lanes), (f"tg_philox:{scalar}{lanes}",), types
    if scalar not in ("float", "double"):
        text = _render_int(integers.TEXTS[name], scalar, lanes)
    else:
        if name in integers.FLOAT_TEXTS:
            template = integers.FLOAT_TEXTS[name]
            if name != "tg_fmod":
                template, _ = translate(template, target, ctype)
        elif name in pairs.TEXTS:
            template, _ = translate(pairs.text(name, target.clang_builtins), target, ctype)
        elif special.known(name):
            template, _ = translate(special.text(name, scalar == "double", target.fp64), target, ctype)
        else:
            pair = _PAIRS[_OWNER.get(name, name)]
            template = pair if isinstance(pair, str) else pair[scalar == "double"]
        text, doubles = _render_float(template, scalar, lanes, target)
        types |= {("double", width)} if doubles else frozenset()
    wide = [f"{_key(n)}:double{lanes}" for n in re.findall(r"\bD\.(tg_\w+)\(", text)]
    text = re.sub(r"\bD\.(?=tg_)", "", text)
    calls = [_key(n) for n in re.findall(r"(?<!TG )\b(tg_\w+)\(", text)]
    own = set(re.findall(r"^TG \w+ (tg_\w+)\(", text, re.MULTILINE))
    wide_names = {w.split(":")[0] for w in wide}
    narrow = [f"{n}:{ctype}" for n in calls if n not in own and n != _key(name) and n not in wide_names]
    return text.strip("\n"), tuple(dict.fromkeys(wide + narrow)), types


def _everywhere(name: str) -> bool:
    return name in HELPERS or special.known(name)


def _key(name: str) -> str:
    return name if _everywhere(name) else _OWNER.get(name, name)


def _swizzles(lanes: str) -> list[str]:
    """What names the elements of a vector (or the scalar itself)."""
    return [f".s{i:x}" for i in range(int(lanes))] if lanes else [""]


def _lanes(text: str, lanes: str, ctype: str) -> str:
    """`text` with its # replaced by .s0, .s1, ...: a vector built lane by lane (or the scalar itself)."""
    each = [text.replace("#", lane) for lane in _swizzles(lanes)]
    return f"({ctype})({', '.join(each)})" if lanes else each[0]


def _polynomial(terms: list[str], x: str, chain: int) -> str:
    """By Estrin's scheme, which takes a few multiplications more than Horner's, but not every step of it waits for the one before.

    chain: how many steps, the last ones, go by Horner's, which rounds less. On a core of Zen 5 a long kernel waits for its longest chain:
    exp and tanh of doubles take 83 % of the time, Black and Scholes's formula 90 %.
    """
    last, terms = terms[:chain], terms[chain:]
    power = x
    while len(terms) > 1:
        pairs = [f"({b} * {power} + {a})" for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs):]
        power = f"({power} * {power})"
    return reduce(lambda value, term: f"({value} * {x} + {term})", reversed(last), terms[0])


def _render_float(template: str, scalar: str, lanes: str, target: Target) -> tuple[str, bool]:
    """A template's text, and whether doubles are in it."""
    double = scalar == "double"
    ctype = scalar + lanes
    text = template

    def poly(match: re.Match[str]) -> str:
        wide, name, x = match[1] == "D", match[2], match[3]
        terms = [f"(D)({c!r})" if wide else f"(T)({c!r})" for c in tables.POLY[name][1 if wide or double else 0]]
        chain = len(terms) if len(terms) < 4 else 0 if double else _CHAINS.get(name, 0)
        return _polynomial(terms, x, min(chain, len(terms) - 1))

    def each(match: re.Match[str]) -> str:
        arguments = [a.strip() for a in match[2].split(",")]
        if not target.clang_builtins:
            return f"{match[1]}({', '.join(arguments)})"
        return _lanes(f"__builtin_{match[1]}{'' if double else 'f'}({', '.join(a + '#' for a in arguments)})", lanes, ctype)

    def quads(match: re.Match[str]) -> str:
        """A builtin on four lanes at a time."""
        parts = ["0123456789abcdef"[i:i + 4] for i in range(0, int(lanes), 4)]
        return f"({ctype})(" + ", ".join(f"{match[1]}({match[2]}.s{p}, {match[3]}.s{p})" for p in parts) + ")"

    macros: dict[str, tuple[str, Callable[[re.Match[str]], str]]] = {
        "$quads": (r"\((\w+), (\w+), (\w+)\)", quads),
        "$poly": (r"(D?)\((\w+), (\w+)\)", poly),
        "$each": (r"\((\w+), ([^)]*)\)", each),
        "$most": (r"\((\w+)\)", lambda m: reduce("max({}, {})".format, [f"(int)({m[1]}{s})" for s in _swizzles(lanes)])),
        "$table": (r"\((\w+), ([^)]*)\)", lambda m: _lanes(f"{m[1]}[({m[2]})#]", lanes, ctype)),
        "$words": (r"\((\w+), ([^)]*)\)", lambda m: _lanes(f"{m[1]}[({m[2]})#]", lanes, f"uint{lanes}")),
    }
    text = text.replace("$HALVES", f"ushort{lanes}").replace("$MOVE_HALVES", f"a_half{lanes}" if lanes else "_half")
    for macro, (arguments, put_in) in macros.items():
        if macro in text:
            text = re.sub(re.escape(macro) + arguments, put_in, text)
    text = re.sub(r"\$(ulong|uint|float)\(", lambda m: f"convert_{m[1]}{lanes}(" if lanes else f"({m[1]})(", text)
    text = re.sub(r"\$([A-Z][A-Z0-9_]*)", lambda m: tables.CONSTANTS[m[1]][double], text)
    if lanes:
        text = text.replace("$wide(", f"convert_double{lanes}(").replace("$narrow(", f"convert_float{lanes}(")
    else:
        text = text.replace("$wide(", "(double)(").replace("$narrow(", "(float)(")
    if not double:                                          # an f after each literal that is not a D's
        number = r"(0x[0-9a-f.]+p[-+]?\d+|\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)(?![\w.])"
        text = re.sub(r"(?<!\(D\)\()(?<!\(D\)\(-)(?<![\w.])" + number, r"\1f", text)
    integer, wide = ("long" if double else "int"), f"double{lanes}"
    types = {
        "T": ctype, "I": integer + lanes, "U": _UNSIGNED[integer] + lanes, "M": integer + lanes if lanes else "int",
        "D": wide, "ID": f"long{lanes}", "UD": f"ulong{lanes}",
    }
    put: set[str] = set()

    def type_(match: re.Match[str]) -> str:
        put.add(match[2])
        return (match[1] or "") + types[match[2]]

    text = re.sub(r"\b(as_)?(T|I|U|M|D|ID|UD)\b(?!\.tg_)", type_, text)
    number = r"-?(?:0x[0-9a-f.]+p[-+]?\d+|\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)"       # what needs no cast: no vector is made of it
    text = re.sub(rf"\(float\)\(({number}f)\)|\(double\)\(({number})\)", lambda m: m[1] or m[2], text)
    return text, not put.isdisjoint(("D", "ID", "UD"))


def _render_int(template: str, scalar: str, lanes: str) -> str:
    never_or_equal = r"(\1 < (T)(0))" if scalar.startswith("u") else r"(\1 == (T)(-1))"
    text = re.sub(r"\$MINUS_ONE\((\w+)\)", never_or_equal, template)
    text = text.replace("$SCALAR", scalar)
    types = {"T": scalar + lanes, "U": _UNSIGNED.get(scalar, scalar) + lanes}
    return re.sub(r"\b(as_)?([TU])\b", lambda m: (m[1] or "") + types[m[2]], text)


def _render_philox_word(word: int, scalar: str, lanes: str) -> str:
    """One word as an expression: key and counter are 64 bits each, low half first. Unused words cost nothing once it is inlined."""
    u = scalar + lanes
    return f"""TG {u} tg_philox{word}({u} k0, {u} k1, {u} c0, {u} c1) {{
    {u} r0, r1, r2, r3;
    tg_philox(k0, k1, c0, c1, ({u})(0), ({u})(0), &r0, &r1, &r2, &r3);
    return r{word};
}}"""


def _render_philox(scalar: str, lanes: str) -> str:
    if scalar != "uint":
        raise ValueError(f"mathlib: tg_philox works on uint, not {scalar}{lanes}")
    text, wide, narrow = integers.PHILOX, f"ulong{lanes}", f"uint{lanes}"
    to_wide, to_narrow = (f"convert_{wide}", f"convert_{narrow}") if lanes else (f"({wide})", f"({narrow})")
    text = text.replace("$long(", f"{to_wide}(")
    text = re.sub(r"\$low\((\w)\)", rf"{to_narrow}(\1 & 0xffffffffUL)", text)
    return re.sub(r"\b(U|L)\b", lambda m: narrow if m[1] == "U" else wide, text).strip("\n")
