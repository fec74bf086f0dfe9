"""Functions that OpenCL lacks, each written once: a `Formula` is run on numpy arrays for its meaning, and on `_C` for its text in a kernel.

`formula(m, *x)` gets a mathematics `m` and operands that know + - * / and comparisons. `m.double` says whether they are float64; numpy's
are always (so the interpreter is the accurate one), and so are a kernel's where the device has float64, also for float32 operands: next to
zeros, and where an exponent is large, float32 would leave tens to hundreds of ulps. `c_text` is what the code generator's mathlib takes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.graph.operation_families import Float

FUNCTIONS = ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "floor", "rint", "fabs", "pow", "lgamma", "erf", "erfc")
INF, NAN = float("inf"), float("nan")
PAIR_FORMULAS: dict[str, Callable[..., Any]] = {}         # by builtin: it of pairs of floats (ops/special/double_float.py)
DOUBLE_FORMULAS: dict[str, Callable[..., Any]] = {}       # by builtin: it of float64 in vectors, for those that drivers call lane by lane


def _vectorized(fn: Any) -> Any:
    return np.vectorize(fn, otypes=[np.float64])


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):         # a pole, or too large
        return math.inf


erf_of, erfc_of, lgamma_of = _vectorized(math.erf), _vectorized(math.erfc), _vectorized(_lgamma)      # numpy has none of these


def of_pairs(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function is what the builtin `name` is where the device has no float64."""
    def attach(formula: Callable[..., Any]) -> Callable[..., Any]:
        PAIR_FORMULAS[name] = formula
        return formula

    return attach


def of_doubles(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function is what the builtin `name` is in a kernel, where the device has float64."""
    def attach(formula: Callable[..., Any]) -> Callable[..., Any]:
        DOUBLE_FORMULAS[name] = formula
        return formula

    return attach


class Numpy:
    """The mathematics of numpy arrays of float64."""

    double = True
    rough = staticmethod(lambda x: x)
    exp, expm1, log, log1p, sqrt = np.exp, np.expm1, np.log, np.log1p, np.sqrt
    sin, cos, tan, floor, rint, fabs, pow = np.sin, np.cos, np.tan, np.floor, np.rint, np.abs, np.power
    where, erf, erfc, lgamma = staticmethod(np.where), staticmethod(erf_of), staticmethod(erfc_of), staticmethod(lgamma_of)

    def loop(self, count: int, state: Sequence[Any], body: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        """state after `count` times state = body(*state)."""
        for _ in range(count):
            state = body(*state)
        return state

    def times(self, iterations: Any, state: Sequence[Any], body: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        """state after `iterations`, of each element its own, times state = body(k, *state), k = 1, 2, ..."""
        least, most = iterations.min(initial=2.0 ** 24), iterations.max(initial=0.0)
        for k in range(1, int(most) + 1):
            after = body(float(k), *state)
            state = after if k <= least else [np.where(k <= iterations, new, old) for new, old in zip(after, state, strict=True)]
        return state

    def over(self, y: Any, k: float) -> Any:
        """y / k, rounded twice."""
        return y * (1.0 / k)


class _C:
    """The mathematics of C text: every operation is a statement of `lines`, in a template of codegen.mathlib (T, M: its types)."""

    def __init__(self, double: bool) -> None:
        self.double, self.lines, self.count, self.depth = double, [], 0, 1  # type: ignore[var-annotated]

    def let(self, text: str, kind: str = "T") -> _Value:
        """A new variable of that type."""
        self.count += 1
        self.line(f"{kind} v{self.count} = {text};")
        return _Value(self, f"v{self.count}")

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def text(self, x: Any) -> str:
        """x as an operand: a variable or a literal."""
        if isinstance(x, _Value):
            return x.name
        if x != x or x in (INF, -INF):
            return "(T)(NAN)" if x != x else "(T)(INFINITY)" if x > 0 else "(T)(-INFINITY)"
        return f"(T)({float(x)!r})"

    def where(self, condition: _Value, a: Any, b: Any) -> _Value:
        return self.let(f"{condition.name} ? {self.text(a)} : {self.text(b)}")

    def rough(self, x: _Value) -> _Value:
        """x for what needs no more digits than a float has: only pairs have more."""
        return x

    def number(self, text: str) -> _Value:
        """A new variable that is exactly `text`."""
        return self.let(text)

    def loop(self, count: int, state: Sequence[Any], body: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        return self.repeat(f"i < {count}", state, body)

    def times(self, iterations: _Value, state: Sequence[Any], body: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        def iteration(*state: Any) -> Sequence[Any]:
            k: Any = self.number("(T)(i + 1)")
            return [self.where(k <= iterations, new, old) for new, old in zip(body(k, *state), state, strict=True)]

        self.count += 1
        most = f"most{self.count}"
        self.line(f"int {most} = $most({iterations.name});")
        return self.repeat(f"i < {most}", state, iteration)

    def over(self, y: Any, k: Any) -> Any:
        """y / k for the k of `times`."""
        return y * self.number("(T)(1.0 / (i + 1))")

    def repeat(self, condition: str, state: Sequence[Any], body: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        variables = [self.let(self.text(s)) for s in state]
        self.line(f"for (int i = 0; {condition}; i++) {{")
        self.depth += 1
        after = body(*variables)
        for variable, value in zip(variables, after, strict=True):
            if value is not variable:
                self.line(f"{variable.name} = {self.text(value)};")
        self.depth -= 1
        self.line("}")
        return variables


def _function(name: str) -> Any:
    def call(self: _C, *x: Any) -> _Value:
        written = DOUBLE_FORMULAS.get(name)
        found: _Value = self.let(f"{name}({', '.join(map(self.text, x))})") if written is None else written(self, *x)
        return found

    return call


for _name in FUNCTIONS:
    setattr(_C, _name, _function(_name))


class _Value:
    """A variable of the C text that is being written."""

    def __init__(self, m: _C, name: str) -> None:
        self.m, self.name = m, name

    def __neg__(self) -> _Value: return self.m.let(f"-{self.name}")


def _operator(sign: str, kind: str, reflected: bool) -> Any:
    def apply(self: _Value, other: Any) -> _Value:
        a, b = self.name, other.name if isinstance(other, _Value) else self.m.text(other)
        return self.m.let(f"{b} {sign} {a}" if reflected else f"{a} {sign} {b}", kind)
    return apply


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}.items():
    setattr(_Value, f"__{_name}__", _operator(_sign, "T", False))
    setattr(_Value, f"__r{_name}__", _operator(_sign, "T", True))
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|"}.items():
    setattr(_Value, f"__{_name}__", _operator(_sign, "M", False))


class _Pairs(_C):
    """The mathematics of pairs of floats, whose sum has 48 bits, for devices without float64: `codegen.mathlib.pairs` has the functions.

    A value with one part is one float. Comparisons look at the greatest parts, `floor` and `rint` are of what is one float.
    """
    kind, size = "pair", 2

    def __init__(self) -> None:
        super().__init__(False)

    def pair(self, x: Any) -> _Pair:
        """x, a value or a number, as a value."""
        if isinstance(x, _Value):
            return x if isinstance(x, _Pair) else _Pair(self, x.name)
        if not abs(x) < INF:
            return _Pair(self, self.text(x))
        high = np.float32(x)
        low = np.float32(x - float(high))
        return _Pair(self, *(f"(T)({part!s})" for part in (high, low)[:1 + (low != 0)]), value=float(x))

    def rough(self, x: Any) -> _Value:
        return _Value(self, x.name)

    def names(self, count: int) -> list[str]:
        """Names of the parts of a new variable."""
        self.count += 1
        return [f"{letter}{self.count}" for letter in "vlt"[:count]]

    def declare(self, *parts: str) -> _Pair:
        """A new variable of these parts."""
        names = self.names(len(parts))
        self.line(f"T {', '.join(f'{name} = {part}' for name, part in zip(names, parts, strict=True))};")
        return _Pair(self, *names)

    def call(self, name: str, *operands: _Pair, lows: bool = True) -> _Pair:
        """A function's result: `lows` says whether all operands are given with all parts, or single floats as such."""
        given = [part for x in operands for part in (x.padded(self.size) if lows or x.low else x.parts)]
        first, *others = self.names(self.size)
        results = ", ".join(f"&{name}" for name in others)
        self.line(f"T {', '.join(others)}, {first} = tg_{self.kind}_{name}({', '.join(given)}, {results});")
        return _Pair(self, first, *others)

    def scaled(self, name: str, a: _Pair, b: _Pair) -> _Pair:
        """A product or a quotient."""
        return self.call(name, a, b, lows=name == "div")

    def both(self, text: Callable[[str], str], x: _Pair) -> _Pair:
        """text(x) of every part, which it does not round."""
        return self.declare(*map(text, x.parts))

    def where(self, condition: _Value, a: Any, b: Any) -> _Pair:
        a, b = self.pair(a), self.pair(b)
        size = max(len(a.parts), len(b.parts))
        return self.declare(*(f"{condition.name} ? {p} : {q}" for p, q in zip(a.padded(size), b.padded(size), strict=True)))

    def number(self, text: str) -> _Pair:
        return _Pair(self, self.let(text).name)

    def repeat(self, condition: str, state: Sequence[Any], body: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        variables = [self.declare(*self.pair(x).padded(self.size)) for x in state]
        self.line(f"for (int i = 0; {condition}; i++) {{")
        self.depth += 1
        after = body(*variables)
        for variable, value in zip(variables, map(self.pair, after), strict=True):
            if value is not variable:
                for to, part in zip(variable.parts, value.padded(self.size), strict=True):
                    self.line(f"{to} = {part};")
        self.depth -= 1
        self.line("}")
        return variables

    def floor(self, x: Any) -> _Pair: return self.number(f"floor({x.name})")
    def rint(self, x: Any) -> _Pair: return self.number(f"rint({x.name})")
    def fabs(self, x: Any) -> _Pair: return self.both(lambda half: f"{x.name} < 0.0 ? -{half} : {half}" if x.low else f"fabs({half})", x)
    def tan(self, x: Any) -> Any: return self.sin(x) / self.cos(x)  # type: ignore[attr-defined]

    def pow(self, x: Any, y: Any) -> Any:
        logarithm = self.log(x)  # type: ignore[attr-defined]
        return self.where(logarithm == 0.0, 1.0, self.exp(y * logarithm))  # type: ignore[attr-defined]



for _name in ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "lgamma", "erfc"):
    setattr(_Pairs, _name, lambda self, x, _name=_name: self.call(_name, self.pair(x)))


class Triples(_Pairs):
    """That of sums of three floats, of 70 bits, which are multiplied and divided by single floats only."""
    kind, size = "triple", 3

    def scaled(self, name: str, a: _Pair, b: _Pair) -> _Pair:
        assert len(b.parts) == 1
        return self.call(name, _Pair(self, *a.padded(3)), b, lows=False)

    def over(self, y: Any, k: Any) -> Any: return y / k


class _Pair(_Value):
    """Variables or literals of the C text that is being written, the greatest first, whose sum the value is. value: of literals."""

    def __init__(self, m: _Pairs, *parts: str, value: float | None = None) -> None:
        super().__init__(m, parts[0])
        self.m: _Pairs = m
        self.parts, self.value = parts, value
        self.low = parts[1] if len(parts) > 1 else None

    def padded(self, size: int) -> list[str]:
        """The parts, and zeros."""
        return [*self.parts, *["(T)(0.0)"] * (size - len(self.parts))]

    def __neg__(self) -> _Pair: return self.m.both(lambda half: f"-{half}", self)


def _sum(a: _Pair, b: _Pair, sign: float) -> _Pair:
    if a is b and sign > 0:
        return _product(a, a.m.pair(2.0))
    b = b if sign > 0 else b.m.pair(-b.value) if b.value is not None else -b
    a, b = (a, b) if a.low else (b, a)
    return a.m.call("add", a, b, lows=a.m.size > 2)


def _product(a: _Pair, b: _Pair) -> _Pair:
    a, b = (a, b) if a.low else (b, a)
    for x, y in ((a, b), (b, a)):
        if y.value and abs(math.frexp(y.value)[0]) == 0.5:               # a power of two
            return x.m.both(lambda half: f"{half} * {y.name}", x)  # noqa: B023 - used at once
    return a.m.scaled("mul", a, b)


def _quotient(a: _Pair, b: _Pair) -> _Pair:
    if b.value and abs(math.frexp(b.value)[0]) == 0.5:
        return _product(a, a.m.pair(1.0 / b.value))
    return a.m.scaled("div", a, b)


_ARITHMETIC = {"add": lambda a, b: _sum(a, b, 1.0), "sub": lambda a, b: _sum(a, b, -1.0), "mul": _product, "truediv": _quotient}
for _name, _apply in _ARITHMETIC.items():
    setattr(_Pair, f"__{_name}__", lambda self, other, _apply=_apply: _apply(self, self.m.pair(other)))
    setattr(_Pair, f"__r{_name}__", lambda self, other, _apply=_apply: _apply(self.m.pair(other), self))


def pair_text(name: str, formula: Callable[..., Any]) -> str:
    """`formula` as the C function `name` of a pair."""
    m = _Pairs()
    result = m.pair(formula(m, _Pair(m, "x", "x_low")))
    return "\n".join([f"TG T {name}(T x, T x_low, T *low) {{", *m.lines, f"    *low = {result.low or '(T)(0.0)'};",
                      f"    return {result.name};", "}"])


class Formula(Float):
    """Base of the functions that are given by `formula(m, *x)`."""
    flops, cost = 60, 150.0
    many: Any = _Pairs                      # the mathematics on a device without float64

    def formula(self, m: Any, *x: Any) -> Any:
        """The value, by the mathematics m."""
        raise NotImplementedError

    def numpy(self, *x: Any, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            value = self.formula(Numpy(), *(np.asarray(a, np.float64) for a in x), **attrs)
            return np.asarray(value).astype(np.asarray(x[0]).dtype)

    def opencl(self, *x: str, order: int = 0) -> str:
        return f"tg_{f'd{order}_' if order else ''}{self.name}({', '.join(x)})"

    def c_text(self, double: bool, fp64: bool, **attrs: Any) -> str:
        """The C function that `opencl` calls, as a template of codegen.mathlib, for a device that has float64 or not."""
        m: Any = _C(True) if double else self.many()
        names = [f"x{i}" for i in range(self.nin)]
        name = self.opencl(**attrs).partition("(")[0]
        head = f"TG T {name}({', '.join(f'T {n}' for n in names)}) {{"
        if fp64 and not double:
            wide = ", ".join(f"$wide({n})" for n in names)
            return f"{head}\n    return $narrow(D.{name}({wide}));\n}}"
        operands = [_Value(m, n) if double else _Pair(m, n) for n in names]
        result = m.text(self.formula(m, *operands, **attrs))
        return "\n".join([head, *m.lines, f"    return {result};", "}"])


def polynomial(coefficients: Sequence[float], x: Any, m: Any = None, full: int = 0) -> Any:
    """coefficients[0] + coefficients[1] x + ..., by Horner's rule. With m, pairs from the first `full` terms on only."""
    z = x if m is None else m.rough(x)
    out: Any = coefficients[-1]
    for k in reversed(range(len(coefficients) - 1)):
        out = out * (z if k >= full else x) + coefficients[k]
    return out


def chebyshev(m: Any, coefficients: Sequence[float], x: Any, zeros: bool = False) -> Any:
    """The sum of coefficients[k] T_k(x), |x| <= 1, by Clenshaw's recurrence.

    In pairs: as many terms as they can hold, and those that are small in floats; `zeros`: what is small counts next to zeros of the result.
    """
    limit = max(map(abs, coefficients)) * (0.0 if m.double else 2.0 ** (-24 if zeros else -6))
    kept = [c for c in coefficients if abs(c) >= limit * 2.0 ** -26]
    full = max(k for k, c in enumerate(kept) if abs(c) >= limit)
    z = m.rough(x) if full < len(kept) - 1 else x
    twice = z + z
    b1: Any = kept[-1]
    b2: Any = 0.0
    for k in reversed(range(1, len(kept) - 1)):
        if k == full:
            twice, b1, b2 = x + x, m.pair(b1), m.pair(b2)
        b1, b2 = twice * b1 + (kept[k] - b2), b1
    if full == 0:
        b1, b2 = m.pair(b1), m.pair(b2)
    return x * b1 + (kept[0] - b2)


def next_to_zero(m: Any, x: Any, value: Any, zero: tuple[float, float], derivatives: Sequence[float]) -> Any:
    """value; in pairs, next to a zero (a float and what it lacks), the Taylor series there: pairs alone are an ulp or two too far off."""
    if m.double:
        return value
    away = x - zero[0]                                              # no digit is lost
    close = m.fabs(away) < 2.0 ** -14
    return m.where(close, (away - zero[1]) * polynomial(derivatives, away), value)
