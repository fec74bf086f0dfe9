"""Vectors that are made of values or of lanes of other vectors. Start at `Splat` and `Lanes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir.expressions.base import At, Expression, Literal, Made, other_types
from tracegrad.codegen.kernel.ir.expressions.printing import Printer, Python
from tracegrad.codegen.kernel.ir.expressions.terms import Term
from tracegrad.codegen.kernel.ir.vectors import LANES
from tracegrad.codegen.kernel.text.literals import ATOM
from tracegrad.codegen.kernel.text.markup import used


class Steps(Expression):
    """0, 1, 2, ... in a vector."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        return self.dtype, self.lanes

    def c(self, p: Printer) -> tuple[str, int]:
        return f"({self.type})({', '.join(map(str, range(self.lanes)))})", ATOM

    def python(self, v: Python) -> Term:
        return Term(v.constant(np.arange(self.lanes, dtype=self.dtype)), self.dtype, self.lanes)


class _OfValues(Made):
    """A vector of single values."""

    __slots__ = ()

    def misfit(self) -> str:
        return f"{self} is made of vectors" if any(part.lanes > 1 for part in self.parts) else ""


class Splat(_OfValues):
    """The vector whose lanes are all `x`."""

    __slots__ = ()

    def __init__(self, x: Expression, lanes: int) -> None:
        super().__init__((x,), x.dtype, lanes)

    def c(self, p: Printer) -> tuple[str, int]:
        return f"({self.type})({p.top(self.parts[0])})", ATOM

    def python(self, v: Python) -> Term:
        x, dtype = self.parts[0], self.held
        if isinstance(x, Literal) or (isinstance(x, At) and not x.index.terms):
            known = x.value if isinstance(x, Literal) else x.index.constant
            return Term(v.constant(np.full(self.lanes, known, dtype)), dtype, self.lanes)
        return Term(f"_lanes_of({x.python(v).one(dtype)}, {self.lanes}, d_{dtype.name})", dtype, self.lanes)


class Spread(_OfValues):
    """The mask whose lanes are all the bool `x`."""

    __slots__ = ()

    def __init__(self, x: Expression, lanes: int, mask: int) -> None:
        super().__init__((x,), x.dtype, lanes, mask)

    def c(self, p: Printer) -> tuple[str, int]:
        return f"({self.type})(-{p.operand(self.parts[0])})", ATOM

    def python(self, v: Python) -> Term:
        return Term(f"_lanes_of(-{self.parts[0].python(v).code}, {self.lanes}, d_{self.held.name})", self.held, self.lanes)


class Vector(_OfValues):
    """The vector of its operands."""

    __slots__ = ()

    def __init__(self, parts: tuple[Expression, ...], mask: int = 0) -> None:
        super().__init__(parts, parts[0].dtype, len(parts), mask)

    def c(self, p: Printer) -> tuple[str, int]:
        return f"({self.type})({', '.join(map(p.operand, self.parts))})", ATOM

    def python(self, v: Python) -> Term:
        parts = ", ".join([part.python(v).one(self.held) for part in self.parts])
        return Term(f"np.array([{parts}], d_{self.held.name})", self.held, self.lanes)


class Lanes(Made):
    """Some lanes of a vector: `which` is "lo", "hi", "even", "odd", the number of one, or 2, 4, 8 or 16 numbers, in any order."""

    __slots__ = ("which",)

    def __init__(self, x: Expression, which: str | int | Sequence[int]) -> None:
        lanes = 1 if isinstance(which, int) else x.lanes // 2 if isinstance(which, str) else len(which)
        super().__init__((x,), x.dtype, lanes, x.mask if lanes > 1 else 0)
        self.which = which if isinstance(which, (str, int)) else tuple(which)

    @property
    def key(self) -> Any:
        return self.which, self.parts

    def c(self, p: Printer) -> tuple[str, int]:
        which = self.which
        if not isinstance(which, str):
            which = "s" + "".join(LANES[lane] for lane in ((which,) if isinstance(which, int) else which))
        return f"{p.atom(self.parts[0])}.{which}", ATOM

    def python(self, v: Python) -> Term:
        t = self.parts[0].python(v)
        lanes = range(t.lanes)
        halves = {"lo": lanes[:t.lanes // 2], "hi": lanes[t.lanes // 2:], "even": lanes[::2], "odd": lanes[1::2]}
        which = halves[self.which] if isinstance(self.which, str) else self.which
        if isinstance(which, range) and len(which) > 1:
            return Term(f"{t.code}[{which.start}:{which.stop}:{which.step}]", t.dtype, self.lanes)
        if isinstance(which, tuple) and len(which) > 1:
            return Term(f"{t.code}[{list(which)}]", t.dtype, self.lanes)
        one = f"{t.code}[{which if isinstance(which, int) else which[0]}]"
        return Term(f"int({one})" if t.whole else one, t.dtype)

    def misfit(self) -> str:
        return ""


class _OfTwo(Made):
    """A vector of the lanes of two."""

    __slots__ = ()

    def __init__(self, a: Expression, b: Expression) -> None:
        super().__init__((a, b), a.dtype, 2 * a.lanes)

    def misfit(self) -> str:
        a, b = self.parts
        wrong = next((x for x in self.parts if x.lanes > 1 and 2 * x.lanes != self.lanes), None)
        return f"{wrong.lanes} lanes of {wrong} make {self.lanes}" if wrong is not None else other_types(a, b) if b.lanes > 1 else ""


class Zip(_OfTwo):
    """The lanes of two vectors in turn."""

    __slots__ = ()

    def c(self, p: Printer) -> tuple[str, int]:
        return f"{used(f'ZIP{self.lanes}', self.type)}, {', '.join(map(p.top, self.parts))})", ATOM

    def python(self, v: Python) -> Term:
        a, b = (part.python(v) for part in self.parts)
        return Term(f"np.stack([{a.code}, {b.code}], -1).reshape(-1)", a.dtype, self.lanes)


class Joined(_OfTwo):
    """The lanes of a vector, then those of another."""

    __slots__ = ()

    def c(self, p: Printer) -> tuple[str, int]:
        return f"({self.type})({', '.join(map(p.operand, self.parts))})", ATOM

    def python(self, v: Python) -> Term:
        a, b = (part.python(v) for part in self.parts)
        return Term(f"np.concatenate([{a.code}, {b.code}])", a.dtype, self.lanes)


class _EndToEnd(Made):
    """Some lanes of vectors laid end to end, as many as one has. first: which is the first of them."""

    __slots__ = ("first",)

    def __init__(self, parts: tuple[Expression, ...], first: int) -> None:
        super().__init__(parts, parts[0].dtype, parts[0].lanes)
        self.first = first

    @property
    def key(self) -> Any:
        return self.first, self.parts

    @property
    def chosen(self) -> Sequence[int]:
        """Which lanes of all these."""
        raise NotImplementedError

    def c(self, p: Printer) -> tuple[str, int]:
        which = [divmod(lane, self.lanes) for lane in self.chosen]             # (part, lane of it)
        if p.clang and len(self.parts) > 2:                                    # (of two clang makes one instruction anyway)
            return self._by_twos(p, which), ATOM
        pieces, left = [], which
        while left:
            k = left[0][0]
            run = next((i for i, (part, _) in enumerate(left) if part != k), len(left))
            n = next(n for n in (16, 8, 4, 2, 1) if n <= run)                  # what a vector of a vector's lanes may have
            pieces.append(f"{p.atom(self.parts[k])}.s{''.join(LANES[lane] for _, lane in left[:n])}")
            left = left[n:]
        return f"({self.type})({', '.join(pieces)})", ATOM

    def _by_twos(self, p: Printer, which: list[tuple[int, int]]) -> str:
        """Two vectors at a time: an instruction each with AVX-512. (Clang makes more of a vector that is written lane by lane.)"""
        wanted = sorted({part for part, _ in which})
        text, there = p.top(self.parts[wanted[0]]), {i: lane for i, (part, lane) in enumerate(which) if part == wanted[0]}
        for k in wanted[1:] or wanted:
            there |= {i: self.lanes + lane for i, (part, lane) in enumerate(which) if part == k and i not in there}
            lanes = ", ".join([str(there.get(i, -1)) for i in range(self.lanes)])
            text = f"__builtin_shufflevector({text}, {p.top(self.parts[k])}, {lanes})"
            there = {i: i for i in there}
        return text

    def python(self, v: Python) -> Term:
        terms, at = [part.python(v) for part in self.parts], self.chosen
        which = f"{at.start}:{at.stop}:{at.step}" if isinstance(at, range) else str(list(at))
        return Term(f"np.concatenate([{', '.join([t.code for t in terms])}])[{which}]", terms[0].dtype, self.lanes)

    def misfit(self) -> str:
        types = list(dict.fromkeys(part.type for part in self.parts))
        return super().misfit() or (f"{self} is made of {', '.join(types)}" if len(types) > 1 else "")


class StridedLoad(_EndToEnd):
    """Of vectors laid end to end, as many lanes as one has: each that is `first` more than a multiple of their number."""

    __slots__ = ()

    @property
    def chosen(self) -> range:
        return range(self.first, self.lanes * len(self.parts), len(self.parts))


class Interleaved(_EndToEnd):
    """The lanes of several vectors in turn, as many as one has, from the `first` on: what `StridedLoad` takes apart."""

    __slots__ = ()

    @property
    def chosen(self) -> list[int]:
        n = len(self.parts)
        return [at % n * self.lanes + at // n for at in range(self.first, self.first + self.lanes)]


class Transposed(_EndToEnd):
    """Of two vectors laid end to end, as many lanes as one has, from lane `first` on."""

    __slots__ = ()

    def __init__(self, a: Expression, b: Expression, first: int) -> None:
        super().__init__((a, b), first)

    @property
    def chosen(self) -> range:
        return range(self.first, self.first + self.lanes)
