"""What the translation of kernels is made of: C's types, tokens, translated expressions and kernels. Start at `Type` and `Term`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.run.memory import KernelFault
from tracegrad.support.dtypes import bfloat16
from tracegrad.support.plan import Plain

_SCALARS: dict[str, Any] = {
    "char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16, "int": np.int32, "uint": np.uint32, "long": np.int64,
    "ulong": np.uint64, "float": np.float32, "double": np.float64, "half": np.float16,
    "bfloat": bfloat16,
}
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(kind) for name, kind in _SCALARS.items()}
RANK = ("int", "uint", "long", "ulong", "float", "double")
FLOATS = ("float", "double", "half", "bfloat")
HALVES = ("half", "bfloat")                # loaded and stored by functions that convert
MASKS = {1: "char", 2: "short", 4: "int", 8: "long"}


class Type(Plain):
    """A C type: a scalar or vector (`lanes`), or a pointer to, or an array of, such (`space` is then where it points)."""

    kind: str
    lanes: int = 1
    space: str = ""                     # "", "global", "local" or "private"
    const: bool = False
    dims: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}{self.lanes if self.lanes > 1 else ''}{' *' if self.space else ''}"

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.kind]

    @property
    def element(self) -> Type:
        return Type(self.kind, self.lanes)


INT = Type("int")


_TOKEN = re.compile(r"""\s*(?:
    (?P<number>(?:\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+|\d+[eE][-+]?\d+|0x[0-9a-fA-F]+|\d+)(?:f|F|UL|ul|u|U|L|l)?)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<op><<=|>>=|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^<>=!]=|[-+*/%&|^<>=!~?:;,.(){}\[\]])
)""", re.VERBOSE)
BINARY = [("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%")]
PRECEDENCE = {operator: depth for depth, operators in enumerate(BINARY) for operator in operators}
TYPE_NAME = re.compile(r"(char|uchar|short|ushort|int|uint|long|ulong|float|double|half|bfloat)(2|3|4|8|16)?$")
LETTERS = "0123456789abcdef"


def tokens_of(text: str) -> list[tuple[str, str, int]]:
    """(kind, text, line) of each token; comments and preprocessor lines are left out."""
    out = []
    for number, line in enumerate(text.split("\n")):
        line = line.partition("//")[0].rstrip()
        if line.lstrip().startswith("#"):
            continue
        at = 0
        while at < len(line):
            match = _TOKEN.match(line, at)
            if match is None:
                raise KernelFault(f"not C that this reads: {line[at:]!r}")
            kind = match.lastgroup or ""
            out.append((kind, match[kind], number))
            at = match.end()
    return out


@dataclass
class Term:
    """A translated expression: Python text, its C type, and how to assign to it (None: it is no place)."""

    code: str
    type: Type
    assign: Callable[[str], str] | None = None


@dataclass
class Compiled:
    """A kernel as a Python function of (state, arguments), a generator that yields at barriers."""

    name: str
    parameters: list[tuple[str, Type, bool]]           # name, type, restrict
    local_size: tuple[int, ...] | None
    run: Callable[..., Any]
    lines: dict[int, str] = field(default_factory=dict)         # Python line -> C line
    barriers: bool = False
    written: frozenset[str] = frozenset()
