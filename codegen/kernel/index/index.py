"""Symbolic integer index expressions. Start at `Var` and `Index`; `unravel` and `ravel` turn flat indices into tuples and back.

An Index is a linear combination of atoms (loop variables, floor quotients, remainders) with a known range, kept in a normal
form: quotients and remainders vanish where the ranges allow, and `x // k * k + x % k` is x again. So the index arithmetic of
a chain of reshapes, permutes and slices of contiguous data collapses to what one would write by hand. Variables are objects: two
loops that call theirs `col` have two, and what is known of one is not known of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from math import gcd
from typing import Union
from weakref import ref

from tracegrad.codegen.kernel.text.markup import marked, offset, plain
from tracegrad.support.cache import memoize

IndexLike = Union["Index", int]
_serials = count()


class Var:
    """An integer variable of a kernel, lo <= value <= hi: of a loop, a work-item's number, or one that was computed, such as a row read.

    It is itself and no other, whatever it is called: `name` is for the text. Where a loop goes in steps of vectors, the range is that
    of all lanes, and `multiple` what all vectors begin at a multiple of; aligned: so they do in memory, too, as buffers are the device's
    own. of: what it was computed of. fixed: the one number that it can be, if it never is another.

    It refers to nothing that depends on it: kernels have no cycles, go when nobody needs them, and leave nothing for the search for cycles.
    """

    __slots__ = ("_index", "aligned", "fixed", "hi", "key", "lo", "marked", "multiple", "name", "of")

    def __init__(
        self, name: str, size: int, lo: int = 0, multiple: int = 1, aligned: bool = False,
        of: frozenset[Var] = frozenset(),
    ) -> None:
        self.of = of
        self.name, self.lo, self.hi, self.multiple, self.aligned = name, lo, lo + max(size, 1) - 1, multiple, aligned
        self.key = f"{self}#{next(_serials)}"                # terms are put in order by name
        self.marked = marked(name)
        self.fixed: Index | None = constant(lo) if size <= 1 else None
        self._index: ref[Index] | None = None

    @property
    def index(self) -> Index:
        """It as an index."""
        if self.fixed is not None:
            return self.fixed
        found = self._index() if self._index is not None else None
        if found is None:
            found = Index(((Atom("var", self.key, self.lo, self.hi, frozenset((self,)), None, 0, self), 1),), 0)
            self._index = ref(found)
        return found

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{self.name} in {self.lo}..{self.hi}"


class Mutable(Var):
    """One that is assigned to more than once: of a range of one number, too, it is no constant. It is in its range where something is
    read or written at it.
    """

    __slots__ = ()

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self.fixed = None


class Atom(str):
    """What an Index is a combination of. `key` orders and identifies it: it is that string, so tables hash and compare it as one.

    `vars` are the variables it depends on, `var` the one it is. opens: whether `Index.opened` makes something else of it.
    """

    __slots__ = ("base", "divisor", "hi", "key", "kind", "lo", "opens", "var", "vars")

    def __new__(cls, kind: str, key: str, *_: object) -> Atom:
        return super().__new__(cls, key)

    def __init__(
        self, kind: str, key: str, lo: int, hi: int, vars: frozenset[Var], base: Index | None, divisor: int, var: Var | None = None
    ) -> None:
        self.kind, self.key, self.lo, self.hi = kind, key, lo, hi
        self.vars, self.base, self.divisor, self.var = vars, base, divisor, var
        self.opens: bool = base is not None and (kind == "bounded" or base.opens)

    @property
    def multiple(self) -> int:
        """See `Index.multiple`."""
        if self.base is None:
            return 1 if self.var is None else self.var.multiple
        whole = self.base.multiple
        if self.kind == "div":
            return whole // self.divisor if whole % self.divisor == 0 else 1
        return gcd(whole, self.divisor) if self.kind == "mod" else whole


class Index:
    """sum of coefficient * atom + constant, with lo <= value <= hi. Immutable; equal expressions have equal `key`s.

    opens: whether `opened` makes something else of it.
    """

    __slots__ = ("__weakref__", "_key", "_opened", "constant", "hi", "lo", "opens", "terms", "vars")

    def __init__(self, terms: tuple[tuple[Atom, int], ...], constant: int) -> None:
        self.terms, self.constant, self._key = terms, constant, ""
        self._opened: Index | None = None
        if len(terms) == 1:                                  # as most
            (atom, c), = terms
            self.vars, self.opens, self.lo, self.hi = atom.vars, atom.opens, constant + c * atom.lo, constant + c * atom.hi
            if c < 0:
                self.lo, self.hi = self.hi, self.lo
            return
        lo = hi = constant
        vars: frozenset[Var] = frozenset()
        opens = False
        for atom, c in terms:
            lo += c * (atom.lo if c > 0 else atom.hi)
            hi += c * (atom.hi if c > 0 else atom.lo)
            vars = vars | atom.vars if vars else atom.vars
            opens = opens or atom.opens
        self.lo, self.hi, self.vars, self.opens = lo, hi, vars, opens

    @property
    def key(self) -> str:
        if not self._key:                                    # of most, nobody asks
            parts = [f"{c}*{atom.key}" if c != 1 else atom.key for atom, c in self.terms]
            if self.constant or not parts:
                parts.append(str(self.constant))
            self._key = "+".join(parts)
        return self._key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self.key == (other.key if isinstance(other, Index) else str(other))

    def __repr__(self) -> str:
        return self.key

    # -- arithmetic

    def __add__(self, other: IndexLike) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, self.constant + other) if other else self
        if not other.terms:
            return Index(self.terms, self.constant + other.constant) if other.constant else self
        if not self.terms:
            return Index(other.terms, self.constant + other.constant) if self.constant else other
        sums = dict(self.terms)
        for atom, c in other.terms:
            sums[atom] = sums.get(atom, 0) + c
        return _normal(sums, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: IndexLike) -> Index:
        if not isinstance(other, Index) or not other.terms or not self.terms:
            return self + -other
        sums = dict(self.terms)
        for atom, c in other.terms:
            sums[atom] = sums.get(atom, 0) - c
        return _normal(sums, self.constant - other.constant)

    def __rsub__(self, other: IndexLike) -> Index:
        return (-self) + other

    def __mul__(self, k: IndexLike) -> Index:
        if isinstance(k, Index):
            if k.terms and self.terms:
                raise TypeError("an index is linear: it cannot be multiplied by another")
            return k * self.constant if not self.terms else self * k.constant
        if k == 0:
            return ZERO
        return self if k == 1 else Index(tuple([(a, c * k) for a, c in self.terms]), self.constant * k)

    __rmul__ = __mul__

    def __floordiv__(self, k: int) -> Index:
        if k == 1:
            return self
        if (least := self.lo // k) == self.hi // k:
            return constant(least)
        out: list[tuple[Atom, int]] = []
        rest: list[tuple[Atom, int]] = []
        for atom, c in self.terms:                       # multiples of k come out whole
            if c % k:
                rest.append((atom, c))
            else:
                out.append((atom, c // k))
        whole, left = divmod(self.constant, k)
        outside = Index(tuple(out), whole) if out else constant(whole)
        if not rest:
            return outside
        r = Index(tuple(rest), left) if out or whole else self
        if (least := r.lo // k) == r.hi // k:
            return outside + least
        high, _, g = _split(r, k)
        if g > 1:                                        # r = g * high + low with 0 <= low < g, and g divides k
            return outside + high // (k // g)
        if len(r.terms) == 1 and r.constant == 0:
            (atom, c), = r.terms
            if c == 1 and atom.kind == "div" and atom.base is not None:
                return outside + atom.base // (atom.divisor * k)
            if c == 1 and atom.kind == "mod" and atom.base is not None and atom.divisor % k == 0:
                return outside + (atom.base // k) % (atom.divisor // k)
        return outside + _atom("div", r, k)

    def __mod__(self, k: int) -> Index:
        if k == 1:
            return ZERO
        if (least := self.lo // k) == self.hi // k:
            return self - least * k
        signed = Index(tuple([(a, c) for a, c in self.terms if c % k]), self.constant)
        r = Index(tuple([(a, c % k) for a, c in signed.terms]), self.constant % k)
        for x in (signed, r):                            # 1 - i may be in a range where 1 + 7 i is not
            if x.lo // k == x.hi // k:
                return x - x.lo // k * k
        high, low, g = _split(r, k)
        if g > 1:
            return high % (k // g) * g + low
        if len(r.terms) == 1 and r.constant == 0:
            (atom, c), = r.terms
            if c == 1 and atom.kind == "mod" and atom.base is not None and atom.divisor % k == 0:
                return atom.base % k
        return _atom("mod", r, k)

    # -- questions

    def stride(self, var: Var) -> int | None:
        """The coefficient of `var`; None if it is not linear in it."""
        found = 0
        for atom, c in self.terms:
            if var in atom.vars:
                if atom.kind != "var":
                    return None
                found = c
        return found

    def stride_of(self, lane: Var, width: int) -> int | None:
        """By how much it grows from one of `width` lanes to the next; None if not by the same everywhere.

        A quotient is the same in all lanes, and a remainder grows as what it is of, where lane 0 begins a whole number of vectors: i // 64
        and i % 64, where i is a multiple of 16 and vectors have 16 lanes. Of what is the same in all lanes (i // 64 % 8) both are.
        """
        found = 0
        for atom, c in self.terms:
            if lane not in atom.vars:
                continue
            if atom.kind == "var":
                found += c
            elif atom.kind in ("div", "mod") and atom.base is not None and atom.divisor % width == 0 and atom.base.starts(lane, width):
                found += c if atom.kind == "mod" else 0
            elif atom.kind not in ("div", "mod") or atom.base is None or atom.base.stride_of(lane, width) != 0:
                return None
        return found

    @property
    def alone(self) -> Var | None:
        """The variable that it is, if it is one."""
        return self.terms[0][0].var if len(self.terms) == 1 and self.terms[0][1] == 1 and not self.constant else None

    @property
    def multiple(self) -> int:
        """What it is a multiple of, for certain, where loops in steps of vectors are at the first lane of one; 0 is one of anything."""
        found = self.constant
        for atom, c in self.terms:
            found = gcd(found, c * atom.multiple)
        return found

    def starts(self, lane: Var, width: int) -> bool:
        """Whether it grows by one from lane to lane, and is a multiple of `width` in lane 0."""
        factor = self.stride(lane)
        return factor == 1 and lane.multiple % width == 0 and self.constant % width == 0 and all(
            c % width == 0 for atom, c in self.terms if atom.var is not lane)

    def atoms(self) -> Iterable[Atom]:
        """All atoms, nested ones too."""
        todo = [a for a, _ in self.terms]
        while todo:
            atom = todo.pop()
            yield atom
            if atom.base is not None:
                todo += [a for a, _ in atom.base.terms]

    def reached(self) -> frozenset[Var]:
        """The variables that it depends on, also by those that were computed of them."""
        todo, found = list(self.vars), set(self.vars)
        while todo:
            new = todo.pop().of - found
            found |= new
            todo += new
        return frozenset(found)

    def directly(self, var: Var) -> bool:
        """Whether no variable that was computed of `var` is a part of it."""
        return not any(var in v.index.reached() for v in self.vars if v.of)

    def opened(self) -> Index:
        """The same with `bounded` wrappers taken off."""
        if not self.opens:
            return self
        out = self._opened
        if out is None:
            out = constant(self.constant)
            for atom, c in self.terms:
                out = out + _reopen(atom) * c
            self._opened = out
        return out

    def given(self, values: Mapping[Var, int]) -> Index:
        """The same where these variables have these values."""
        if self.vars.isdisjoint(values):
            return self
        out: Index = constant(self.constant)
        for atom, c in self.terms:
            out = out + _given(atom, values) * c
        return out

    def c(self, names: Mapping[Var, str] | None = None) -> str:
        """C text; `names` maps variables to other texts (a vector of lanes, say)."""
        return plain(self.marked(names))

    def marked(self, names: Mapping[Var, str] | None = None, over: str = "/", number: Callable[[int], str] = str) -> str:
        """The same, with the names of variables and what is added to them marked (see `markup`). over: the sign of a quotient; number: how
        factors and divisors are written.
        """
        parts = [f"-{_atom_text(atom, names, True, over, number)}" if c == -1
                 else f"{_atom_text(atom, names, True, over, number)} * {number(c)}" if c != 1
                 else _atom_text(atom, names, False, over, number) for atom, c in self.terms]
        if self.constant and parts:
            parts.append(f"{'-' * (self.constant < 0)}{offset(abs(self.constant))}")
        elif not parts:
            parts.append(number(self.constant))
        if len(parts) > 1 and self.terms[0][1] == -1:
            parts.append(parts.pop(0))                   # 3 - i, rather than -i + 3
        return " + ".join(parts).replace("+ -", "- ")


def _normal(sums: dict[Atom, int], const: int) -> Index:
    """Sort the terms; put quotients and remainders of the same thing together again."""
    for atom, c in sums.items():
        base, k = atom.base, atom.divisor
        if atom.kind != "mod" or not c or base is None:
            continue
        quotient = base // k
        if len(quotient.terms) == 1 and quotient.constant == 0 and quotient.terms[0][1] == 1:
            partner = quotient.terms[0][0]
            if sums.get(partner, 0) == c * k:            # c * k * (x // k) + c * (x % k) = c * x
                del sums[partner], sums[atom]
                whole = base * c
                for a, n in whole.terms:
                    sums[a] = sums.get(a, 0) + n
                return _normal(sums, const + whole.constant)
    terms = [term for term in sums.items() if term[1]]
    if len(terms) > 1:
        terms.sort(key=_place)
    return Index(tuple(terms), const)


def _place(term: tuple[Atom, int]) -> tuple[int, str]:
    """By which terms are put in order."""
    return -abs(term[1]), term[0].key


def _split(r: Index, k: int) -> tuple[Index, Index, int]:
    """(high, low, g) with r = g * high + low, 0 <= low < g and g a divisor of k, g as small as it can be; g = 1 if there is none."""
    terms = sorted(r.terms, key=_place) if len(r.terms) > 1 else r.terms
    if terms and abs(terms[0][1]) == 1:                      # as of most; no factor is larger
        return r, ZERO, 1
    for n in range(len(terms), 0, -1):
        g = k
        for _, c in terms[:n]:
            g = gcd(g, c)
        if g == 1:
            continue
        low = Index(tuple(terms[n:]), r.constant % g) if n < len(terms) else constant(r.constant % g)
        if low.lo >= 0 and low.hi < g:
            return Index(tuple((a, c // g) for a, c in terms[:n]), r.constant // g), low, g
    return r, ZERO, 1


def _atom(kind: str, base: Index, k: int) -> Index:
    lo, hi, sign = (base.lo // k, base.hi // k, "/") if kind == "div" else (0, k - 1, "%")
    return Index(((Atom(kind, f"({base.key}){sign}{k}", lo, hi, base.vars, base, k), 1),), 0)


def _reopen(atom: Atom) -> Index:
    if atom.base is None:
        return Index(((atom, 1),), 0)
    base = atom.base.opened()
    return base if atom.kind == "bounded" else base // atom.divisor if atom.kind == "div" else base % atom.divisor


def _given(atom: Atom, values: Mapping[Var, int]) -> Index:
    if atom.var is not None and atom.var in values:
        return constant(values[atom.var])
    if atom.base is None:
        return Index(((atom, 1),), 0)
    base = atom.base.given(values)
    if atom.kind == "bounded":
        return bounded(base, atom.lo, atom.hi - atom.lo + 1)
    return base // atom.divisor if atom.kind == "div" else base % atom.divisor


def _atom_text(atom: Atom, names: Mapping[Var, str] | None, factor: bool, over: str, number: Callable[[int], str]) -> str:
    """An atom as C; factor: it is multiplied, or subtracted."""
    if atom.var is not None:
        if names is not None and atom.var in names:
            return names[atom.var]
        return atom.var.marked
    base, k = atom.base, atom.divisor
    assert base is not None
    if atom.kind == "bounded":
        text = base.marked(names, over, number)
    else:
        shift = -(base.lo // k) if base.lo < 0 else 0    # C truncates: make the dividend non-negative first
        if shift:
            base = base + shift * k
        while len(base.terms) == 1 and base.terms[0][0].kind == "bounded" and base.terms[0][1] == 1 and not base.constant:
            base = base.terms[0][0].base or base             # what is known of it is nothing to print
        (term, c), *more = base.terms
        text = base.marked(names, over, number)
        alone = term.var is not None and c == 1 and not more and not base.constant
        text = text if alone else f"({text})"
        divisor = number(k)
        text = (f"{text} % {divisor}" if atom.kind == "mod" else f"{text} {over} {divisor} - {offset(shift)}" if shift
                else f"{text} {over} {divisor}")
    return f"({text})" if factor else text


def constant(value: int) -> Index:
    return _SMALL[value] if 0 <= value < len(_SMALL) else Index((), value)


def bounded(x: Index, lo: int, size: int) -> Index:
    """x, known (from a guard) to satisfy lo <= x < lo + size."""
    if x.lo >= lo and x.hi < lo + size:
        return x
    if size <= 1:
        return constant(lo)
    return Index(((Atom("bounded", f"[{x.key}|{lo}:{lo + size}]", max(lo, x.lo), min(lo + size - 1, x.hi), x.vars, x, 0), 1),), 0)


_SMALL = tuple([Index((), n) for n in range(256)])           # as most numbers are
ZERO = constant(0)


@memoize(4096)
def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))


def unravel(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The index tuple of element `flat` of an array of `shape`."""
    return _unraveled(flat, tuple(shape))


@memoize(512)                                              # several results are at one element
def _unraveled(flat: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    out = []
    for n, step in zip(shape, strides(shape), strict=True):
        at = ZERO if n == 1 else flat // step
        out.append(at % n if n > 1 and (flat.hi // step >= n or flat.lo < 0) else at)
    return tuple(out)


def ravel(index: Sequence[IndexLike], shape: Sequence[int]) -> Index:
    """The flat index of element `index`."""
    sums: dict[Atom, int] = {}
    rest = 0
    for i, n, step in zip(index, shape, strides(tuple(shape)), strict=True):
        if n == 1:
            continue
        if isinstance(i, Index):
            for atom, c in i.terms:
                sums[atom] = sums.get(atom, 0) + c * step
            rest += i.constant * step
        else:
            rest += i * step
    return _normal(sums, rest)
