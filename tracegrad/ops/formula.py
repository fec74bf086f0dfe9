"""Functions that OpenCL lacks, each written once: a `Formula` is run on numpy arrays for its meaning, and on `_C` for its text in a kernel.

`formula(m, *x)` gets a mathematics `m` and operands that know + - * / and comparisons. `m.double` says whether they are float64; numpy's
are always (so the interpreter is the accurate one), and so are a kernel's where the device has float64, also for float32 operands: next to
zeros, and where an exponent is large, float32 would leave tens to hundreds of ulps. `c_text` is what the code generator's mathlib takes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.ops.elementwise import Float, erf_of, erfc_of, lgamma_of

FUNCTIONS = ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "floor", "rint", "fabs", "pow", "lgamma", "erf", "erfc")
INF, NAN = float("inf"), float("nan")


class Numpy:
    """The mathematics of numpy arrays of float64."""

    double = True
    exp, expm1, log, log1p, sqrt = np.exp, np.expm1, np.log, np.log1p, np.sqrt
    sin, cos, tan, floor, rint, fabs, pow = np.sin, np.cos, np.tan, np.floor, np.rint, np.abs, np.power
    where, erf, erfc, lgamma = staticmethod(np.where), staticmethod(erf_of), staticmethod(erfc_of), staticmethod(lgamma_of)

    def loop(self, count: int, state: Sequence[Any], body: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        """state after `count` times state = body(*state)."""
        for _ in range(count):
            state = body(*state)
        return state


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

    def loop(self, count: int, state: Sequence[Any], body: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        variables = [self.let(self.text(s)) for s in state]
        self.line(f"for (int i = 0; i < {count}; i++) {{")
        self.depth += 1
        after = body(*variables)
        for variable, value in zip(variables, after, strict=True):
            if value is not variable:
                self.line(f"{variable.name} = {self.text(value)};")
        self.depth -= 1
        self.line("}")
        return variables


def _function(name: str) -> Any:
    return lambda self, *x: self.let(f"{name}({', '.join(map(self.text, x))})")


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


class Formula(Float):
    """Base of the functions that are given by `formula(m, *x)`."""
    flops = 60

    def formula(self, m: Any, *x: Any) -> Any:
        """The value, by the mathematics m."""
        raise NotImplementedError

    def numpy(self, *x: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(self.formula(Numpy(), *(np.asarray(a, np.float64) for a in x))).astype(np.asarray(x[0]).dtype)

    def opencl(self, *x: str) -> str:
        return f"tg_{self.name}({', '.join(x)})"

    def c_text(self, double: bool, fp64: bool) -> str:
        """The C function that `opencl` calls, as a template of codegen.mathlib, for a device that has float64 or not."""
        m = _C(double)
        names = [f"x{i}" for i in range(self.nin)]
        head = f"TG T tg_{self.name}({', '.join(f'T {n}' for n in names)}) {{"
        if fp64 and not double:
            wide = ", ".join(f"$wide({n})" for n in names)
            return f"{head}\n    return $narrow(D.tg_{self.name}({wide}));\n}}"
        result = m.text(self.formula(m, *(_Value(m, n) for n in names)))
        return "\n".join([head, *m.lines, f"    return {result};", "}"])


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """coefficients[0] + coefficients[1] x + ..., by Horner's rule."""
    out: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        out = out * x + c
    return out


def chebyshev(m: Any, coefficients: Sequence[float], x: Any) -> Any:
    """The sum of coefficients[k] T_k(x), |x| <= 1, by Clenshaw's recurrence. For floats, only as many as they can hold."""
    kept = [c for c in coefficients if m.double or abs(c) > 1e-9 * abs(coefficients[0])]
    twice = x + x
    b1: Any = kept[-1]
    b2: Any = 0.0
    for c in reversed(kept[1:-1]):
        b1, b2 = twice * b1 + (c - b2), b1
    return x * b1 + (kept[0] - b2)
