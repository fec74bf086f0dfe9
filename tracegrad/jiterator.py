"""torch.cuda.jiterator's functions, on any device: an elementwise operation from the text of a C++ template function.

`create_jit_fn` and `create_multi_output_jit_fn` are where to start reading. The text is not compiled but read: its statements become
operations of tracegrad, which fuse into kernels as others do, run on the numpy device, take complex numbers, and have derivatives. What is
understood: declarations, assignments, if and else, return, C's operators and functions of <math.h>; a loop is an ArgumentError
(tg.opencl_function takes one).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import e, inf, log, nan, pi
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import PUBLIC
from tracegrad.support import dtypes
from tracegrad.support.dtypes import promote
from tracegrad.tensors.tensor import Tensor

_TOKEN = re.compile(r"""\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFlLuU]*)|(?P<name>(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)
                         |(?P<sign><<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\+\+|--|[-+*/%<>=!&|^~?:;,(){}\[\].]))""", re.VERBOSE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TYPES = {"bool": "bool", "char": "int8", "short": "int16", "int": "int32", "int32_t": "int32", "long": "int64", "int64_t": "int64",
          "unsigned": "uint32", "uint8_t": "uint8", "half": "float16", "float": "float32", "double": "float64"}
_CONSTANTS = {"M_PI": pi, "M_E": e, "M_LN2": log(2.0), "M_SQRT2": 2.0**0.5, "INFINITY": inf, "NAN": nan, "true": True, "false": False}
_QUALIFIERS = {"const", "static", "inline", "__device__", "__host__", "__forceinline__", "constexpr"}
# C's name of a function: tracegrad's, if that is another
_FUNCTIONS = {"fabs": "abs", "pow": "pow", "fmax": "fmax", "fmin": "fmin", "max": "maximum", "min": "minimum", "rint": "round",
              "arg": "angle", "isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite"}
_SAME = {
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "conj", "copysign", "cos", "cosh", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "imag", "lgamma", "log", "log10", "log1p", "log2",
    "real", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "polar",
}
_BINARY = [("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%")]
Env = dict[str, Any]


def create_jit_fn(code_string: str, **kwargs: Any) -> JittedFunction:
    """A function of tensors from C++: "template <typename T> T name(T x, T y, T alpha) { return x + alpha * y; }".

    The last function of the text is the one; it may call those before it. kwargs: the default values of its last parameters, which
    are numbers; the others are tensors, up to 8, which broadcast and are cast to their common dtype, T. The result is a T.
    Raises ArgumentError for text that is not understood; the function raises DTypeError for what is no tensor.

    >>> f = tg.jiterator.create_jit_fn("template <typename T> T f(T x, T y, T a) { return -x + a * y; }", a=1.0)
    >>> f(tg.ones(3), tg.ones(3), a=3.0)
    """
    return JittedFunction("create_jit_fn", code_string, False, 1, kwargs)


def create_multi_output_jit_fn(code_string: str, num_outputs: int, **kwargs: Any) -> JittedFunction:
    """`create_jit_fn` of a function that returns nothing and writes its results into parameters T&, which come last.

    >>> text = "template <typename T> void f(T x, T y, T& total, T& difference) { total = x + y; difference = x - y; }"
    >>> tg.jiterator.create_multi_output_jit_fn(text, num_outputs=2)(tg.ones(3), tg.ones(3))
    """
    return JittedFunction("create_multi_output_jit_fn", code_string, True, num_outputs, kwargs)


_create_jit_fn, _create_multi_output_jit_fn = create_jit_fn, create_multi_output_jit_fn      # torch's spelling


class JittedFunction:
    """What the two return: call it with tensors, and numbers by name."""

    def __init__(self, maker: str, text: str, by_reference: bool, outputs: int, numbers: Env) -> None:
        self.code_string, self.numbers = text, numbers
        self.functions = _Parser(maker, text).functions()
        self.main = list(self.functions.values())[-1]
        self.__name__ = self.main.name
        self.outputs = [p for p, is_output in self.main.parameters if is_output]
        self.inputs = [p for p, is_output in self.main.parameters if not is_output]
        if len(self.outputs) != (outputs if by_reference else 0):
            raise ArgumentError(f"{maker}: {self.main.name} has {len(self.outputs)} parameters T&, expected "
                                f"{outputs if by_reference else 0}")
        unknown = [name for name in numbers if name not in self.inputs]
        if unknown:
            raise ArgumentError(f"{maker}: {self.main.name} has no parameter {', '.join(unknown)}, for which a value was given; it has "
                                f"{', '.join(self.inputs)}")
        self.tensors = [p for p in self.inputs if p not in numbers]

    def __repr__(self) -> str:
        return f"<jitted function {self.__name__}>"

    def __call__(self, *tensors: Any, **kwargs: Any) -> Any:
        name = self.__name__
        if len(tensors) != len(self.tensors) or len(tensors) > 8:
            raise ArgumentError(f"{name}: takes {len(self.tensors)} tensors ({', '.join(self.tensors)}; 8 at most), got {len(tensors)}")
        for p, x in zip(self.tensors, tensors, strict=True):
            if not isinstance(x, Tensor):
                raise DTypeError(f"{name}: {p} must be a Tensor, got {type(x).__name__}; use tg.tensor(...), or a number by name")
        unknown = [k for k in kwargs if k not in self.numbers]
        if unknown:
            raise ArgumentError(f"{name}: takes the numbers {', '.join(self.numbers) or '(none)'}, got {', '.join(unknown)}")
        dtype = tensors[0].dtype
        for x in tensors[1:]:
            dtype = promote(dtype, x.dtype)
        shape = broadcast_shapes(name, [tuple(x.shape) for x in tensors])
        given = dict(zip(self.tensors, (x.to(dtype=dtype) for x in tensors), strict=True))
        zero = PUBLIC["zeros"]((), dtype=dtype, device=tensors[0].device)
        for k, v in {**self.numbers, **kwargs}.items():
            given[k] = (zero + v).to(dtype=dtype)
        run = _Run(self.functions, dtype, zero)
        result, env = run.call(self.main, [given.get(p, zero) for p, _ in self.main.parameters])
        found = [env[p] for p in self.outputs] if self.outputs else [result]
        made = [run.value(x).to(dtype=dtype).broadcast_to(shape) for x in found]
        return made[0] if len(made) == 1 else tuple(made)


# ------------------------------------------------------------------------------------------------------------ what was read


class _Function:
    """A function of the text: its name, its parameters (name, whether it is T&), and its statements."""

    def __init__(self, name: str, parameters: list[tuple[str, bool]], body: list[Any]) -> None:
        self.name, self.parameters, self.body = name, parameters, body


class _Parser:
    """Statements and expressions as tuples that begin with what they are."""

    def __init__(self, maker: str, text: str) -> None:
        self.maker, self.tokens, self.at, self.templates = maker, list[tuple[str, str]](), 0, set[str]()
        text, place = _COMMENT.sub(" ", text), 0
        while text[place:].strip():
            m = _TOKEN.match(text, place)
            if m is None:
                raise self.error(f"{text[place:place + 20].strip()!r} is not understood")
            self.tokens.append((m.lastgroup or "", m[m.lastgroup or 0]))
            place = m.end()

    def error(self, what: str) -> ArgumentError:
        return ArgumentError(f"{self.maker}: {what}; it takes functions \"template <typename T> T name(T x, ...) {{ ... }}\" of "
                             "declarations, assignments, if, else and return; for loops write a kernel (tg.opencl_function)")

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def next(self) -> str:
        self.at += 1
        return self.peek(-1)

    def take(self, *words: str) -> bool:
        if self.peek() in words:
            self.at += 1
            return True
        return False

    def expect(self, word: str) -> None:
        if not self.take(word):
            raise self.error(f"expected {word!r} before {self.peek() or 'the end'!r}")

    def functions(self) -> dict[str, _Function]:
        found: dict[str, _Function] = {}
        while self.peek():
            self.templates = set()
            if self.take("template"):
                self.expect("<")
                while not self.take(">"):
                    self.take("typename", "class")
                    self.templates.add(self.next())
                    self.take(",")
            while self.take(*_QUALIFIERS):
                pass
            if not self.take("void") and not self.type():
                raise self.error(f"expected a function before {self.peek()!r}")
            name = self.next()
            self.expect("(")
            parameters = []
            while not self.take(")"):
                if not self.type():
                    raise self.error(f"{name}: expected the type of a parameter before {self.peek()!r}")
                is_output = self.take("&")
                parameters.append((self.next(), is_output))
                self.take(",")
            found[name] = _Function(name, parameters, self.block())
        if not found:
            raise self.error("there is no function in the text")
        return found

    def type(self) -> str:
        """A type that comes next, or ""."""
        start = self.at
        while self.take(*_QUALIFIERS):
            pass
        word = self.peek().split("::")[-1]
        if word in self.templates or word in ("T", "auto", *_TYPES):
            self.at += 1
            while self.take(*_QUALIFIERS):
                pass
            return "" if word == "auto" else word
        self.at = start
        return ""

    def block(self) -> list[Any]:
        if not self.take("{"):
            return self.statement()
        out: list[Any] = []
        while not self.take("}"):
            if not self.peek():
                raise self.error("a { is not closed")
            out += self.statement()
        return out

    def statement(self) -> list[Any]:
        if self.peek() == "{":
            return self.block()
        if self.take(";"):
            return []
        if self.take("if"):
            self.expect("(")
            condition = self.expression()
            self.expect(")")
            then = self.block()
            return [("if", condition, then, self.block() if self.take("else") else [])]
        if self.take("return"):
            value = None if self.peek() == ";" else self.expression()
            self.expect(";")
            return [("return", value)]
        if self.peek() in ("for", "while", "do", "switch", "goto"):
            raise self.error(f"{self.peek()} is not understood")
        start = self.at
        kind = self.type()
        declares = kind or (self.at > start)
        if not declares and self.peek() == "auto":
            declares = bool(self.next())
        if declares and self.tokens[self.at][0] == "name":
            out = []
            while True:
                name = self.next()
                out.append(("declare", kind, name, self.expression() if self.take("=") else ("number", 0)))
                if not self.take(","):
                    break
            self.expect(";")
            return out
        self.at = start
        name, sign = self.next(), self.next()
        if sign not in ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^="):
            raise self.error(f"expected a statement before {name!r}")
        value = self.expression()
        self.expect(";")
        return [("assign", name, value if sign == "=" else ("binary", sign[:-1], ("name", name), value))]

    def expression(self) -> Any:
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        first = self.expression()
        self.expect(":")
        return "select", condition, first, self.expression()

    def binary(self, level: int) -> Any:
        if level == len(_BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _BINARY[level]:
            left = ("binary", self.next(), left, self.binary(level + 1))
        return left

    def unary(self) -> Any:
        if self.peek() in ("-", "+", "!", "~"):
            return "unary", self.next(), self.unary()
        if self.peek() == "(":
            start = self.at
            self.at += 1
            kind = self.type()
            if kind and self.take(")"):
                return "cast", kind, self.unary()
            self.at = start + 1
            inner = self.expression()
            self.expect(")")
            return inner
        kind_of, word = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind_of == "number":
            self.at += 1
            digits = word.rstrip("fFlLuU")
            return "number", float(digits) if re.search(r"[.eE]", digits) or word[-1] in "fF" else int(digits)
        if kind_of != "name":
            raise self.error(f"expected an expression before {word or 'the end'!r}")
        if self.take("static_cast"):
            self.expect("<")
            kind = self.type()
            self.expect(">")
            return "cast", kind, self.unary()
        kind = self.type()
        if kind:
            self.expect("(")
            inner = self.expression()
            self.expect(")")
            return "cast", kind, inner
        self.at += 1
        word = word.split("::")[-1]
        if not self.take("("):
            return "name", word
        args = []
        while not self.take(")"):
            args.append(self.expression())
            if not self.take(",") and self.peek() != ")":
                raise self.error(f"{word}: expected , or ) before {self.peek()!r}")
        return "call", word, args


# ------------------------------------------------------------------------------------------------------------- its meaning


class _Run:
    """The statements carried out on tensors. In a branch, a variable gets its new value where the condition holds."""

    def __init__(self, functions: dict[str, _Function], dtype: Any, zero: Tensor) -> None:
        self.functions, self.dtype, self.zero = functions, dtype, zero

    def value(self, x: Any) -> Tensor:
        return x if isinstance(x, Tensor) else self.zero.to(dtype=dtypes.as_dtype(type(x))) + x

    def cast(self, x: Any, kind: str) -> Any:
        return self.value(x).to(dtype=dtypes.as_dtype(_TYPES[kind]) if kind in _TYPES else self.dtype) if kind else x

    def call(self, fn: _Function, args: list[Any]) -> tuple[Any, Env]:
        """(what it returns, its variables at the end)."""
        if len(args) != len(fn.parameters):
            raise ArgumentError(f"{fn.name}: takes {len(fn.parameters)} arguments, got {len(args)}")
        env: Env = dict(zip((p for p, _ in fn.parameters), args, strict=True))
        env["return"] = []
        self.block(fn, fn.body, env, None)
        result: Any = None
        for where_, x in reversed(env["return"]):       # the first return that is reached counts
            result = x if where_ is None or result is None else PUBLIC["where"](where_, self.value(x), self.value(result))
        if result is None and not any(is_output for _, is_output in fn.parameters):
            raise ArgumentError(f"{fn.name}: returns nothing, and has no parameter T& to write into")
        return result, env

    def block(self, fn: _Function, body: list[Any], env: Env, where_: Any) -> None:
        for what, *rest in body:
            if what == "declare":
                kind, name, value = rest
                env[name] = self.cast(self.of(value, env), kind)
            elif what == "assign":
                name, value = rest
                if name not in env:
                    raise ArgumentError(f"{fn.name}: {name} is assigned to and was not declared")
                new, old = self.of(value, env), env[name]
                kind_of_old = self.value(old).dtype
                new = self.value(new).to(dtype=kind_of_old)
                active = self.active(env, where_)
                env[name] = new if active is None else PUBLIC["where"](active, new, old)
            elif what == "return":
                if rest[0] is not None:
                    env["return"].append((where_, self.cast(self.of(rest[0], env), "T")))
                    if where_ is None:
                        return
            else:
                condition, then, other = rest
                holds = self.value(self.of(condition, env)).to(dtype=dtypes.bool_)
                for branch, mask in ((then, holds), (other, ~holds)):
                    self.block(fn, branch, env, mask if where_ is None else where_ & mask)

    def active(self, env: Env, where_: Any) -> Any:
        """Where a statement is reached: in its branch, and where no return was before."""
        for before, _ in env["return"]:
            if before is not None:
                where_ = ~before if where_ is None else where_ & ~before
        return where_

    def of(self, x: Any, env: Env) -> Any:
        what, *rest = x
        if what == "number":
            return rest[0]
        if what == "name":
            if rest[0] in env:
                return env[rest[0]]
            if rest[0] in _CONSTANTS:
                return _CONSTANTS[rest[0]]
            raise ArgumentError(f"{self.main_name()}: {rest[0]} was not declared")
        if what == "cast":
            return self.cast(self.of(rest[1], env), rest[0])
        if what == "select":
            condition, a, b = (self.of(v, env) for v in rest)
            return PUBLIC["where"](self.value(condition).to(dtype=dtypes.bool_), self.value(a), self.value(b))
        if what == "unary":
            sign, value = rest[0], self.of(rest[1], env)
            if sign == "!":
                return ~self.value(value).to(dtype=dtypes.bool_)
            return -value if sign == "-" else ~value if sign == "~" else value
        if what == "call":
            return self.function(rest[0], [self.of(v, env) for v in rest[1]])
        sign, a, b = rest[0], self.of(rest[1], env), self.of(rest[2], env)
        return self.operator(sign, a, b)

    def main_name(self) -> str:
        return list(self.functions)[-1]

    def function(self, name: str, args: list[Any]) -> Any:
        if name in self.functions:
            return self.call(self.functions[name], args)[0]
        known = _FUNCTIONS.get(name, name if name in _SAME else None)
        if known is None:
            there = ", ".join(sorted({*_SAME, *_FUNCTIONS}))
            raise ArgumentError(f"{self.main_name()}: the function {name} is not known; there are {there}")
        values = [self.value(a) for a in args]
        return PUBLIC[known](*values)

    def operator(self, sign: str, a: Any, b: Any) -> Any:
        if sign in ("&&", "||"):
            a, b = (self.value(v).to(dtype=dtypes.bool_) for v in (a, b))
            return a & b if sign == "&&" else a | b
        whole = all((v.dtype if isinstance(v, Tensor) else dtypes.as_dtype(type(v))).kind in "biu" for v in (a, b))
        if sign == "/":
            return PUBLIC["div"](self.value(a), self.value(b), rounding_mode="trunc") if whole else a / b
        if sign == "%":
            return PUBLIC["fmod"](self.value(a), self.value(b))
        return _PYTHON[sign](a, b)


_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b, ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}
