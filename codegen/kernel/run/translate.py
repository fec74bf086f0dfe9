"""Kernels from C to Python, statement by statement. Start at `Translator`: `statement` and `expression` are the grammar.

C's types are checked on the way: lanes, masks, const, names. What is left for the run are values, places and races (see memory.py).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir.instructions import INSTRUCTIONS, Instruction
from tracegrad.codegen.kernel.run import memory
from tracegrad.codegen.kernel.run.functions import functions
from tracegrad.codegen.kernel.run.instructed import alone, together
from tracegrad.codegen.kernel.run.memory import KernelFault
from tracegrad.codegen.kernel.run.syntax import (
    DTYPES,
    FLOATS,
    HALVES,
    INT,
    LETTERS,
    MASKS,
    PRECEDENCE,
    RANK,
    TYPE_NAME,
    Compiled,
    Term,
    Type,
    tokens_of,
)


class Translator:
    """One kernel's tokens turned into Python. `statement` and `expression` are the grammar."""

    def __init__(self, text: str, name: str, local_size: tuple[int, ...] | None) -> None:
        self.source = text.split("\n")
        self.tokens = tokens_of(text)
        self.texts = [*(text for _, text, _ in self.tokens), *[""] * 9]       # and nothing behind them, as far as is looked ahead
        self.at = 0
        self.name, self.local_size = name, local_size
        self.scopes: list[dict[str, tuple[str, Type]]] = [{}]
        self.out: list[tuple[str, int]] = []
        self.depth = 1
        self.numbers = itertools.count()
        self.barriers = False
        self.written: set[str] = set()
        self.increments: list[list[str]] = []

    # -- tokens

    @property
    def here(self) -> str:
        return self.texts[self.at]

    def take(self, wanted: str = "") -> str:
        text = self.texts[self.at]
        if wanted and text != wanted:
            raise self.error(f"expected {wanted!r}, found {text!r}")
        self.at += 1
        return text

    def taken(self, text: str) -> bool:
        if self.texts[self.at] == text:
            self.at += 1
            return True
        return False

    def peek(self, ahead: int = 1) -> str:
        return self.texts[self.at + ahead]

    def error(self, text: str) -> KernelFault:
        line = self.tokens[min(self.at, len(self.tokens) - 1)][2]
        return KernelFault(f"{self.name}: {text}: `{self.source[line].strip()}`")

    def emit(self, code: str) -> None:
        line = self.tokens[min(max(self.at - 1, 0), len(self.tokens) - 1)][2]
        self.out.append(("    " * self.depth + code, line))

    # -- declarations

    def is_type(self, ahead: int = 0) -> bool:
        text = self.peek(ahead)
        return text in ("const", "volatile", "__global", "__local", "__private", "size_t") or TYPE_NAME.fullmatch(text) is not None

    def type_name(self) -> Type:
        """Qualifiers, a type's name, stars."""
        space, const = "", False
        while self.here in ("const", "volatile", "__global", "__local", "__private"):
            word = self.take()
            const |= word == "const"
            space = word[2:] if word.startswith("__") else space
        match = TYPE_NAME.fullmatch(self.here.replace("size_t", "ulong"))
        if match is None:
            raise self.error(f"{self.here!r} is no type")
        self.take()
        while self.here == "const":
            self.take()
            const = True
        self.space, self.constant = space, const
        return Type(match[1], int(match[2] or 1))

    def declare(self, name: str, type_: Type) -> str:
        if name in self.scopes[-1]:
            raise self.error(f"{name} is declared twice")
        python = f"{name}_{next(self.numbers)}"
        self.scopes[-1][name] = python, type_
        return python

    def declaration(self) -> None:
        base = self.type_name()
        space, const = self.space, self.constant
        while True:
            pointer = self.taken("*")
            self.taken("restrict")
            name = self.take()
            dims: list[int] = []
            while self.taken("["):
                dims.append(int(self.take()))
                self.take("]")
            if self.taken("__attribute__"):                          # an alignment
                while self.here not in (";", ","):
                    self.take()
            if dims:
                self.array(name, base, space or "private", tuple(dims))
            else:
                type_ = Type(base.kind, base.lanes, space or "private", const) if pointer else base
                value = "None"
                if self.taken("="):
                    value = self.initial(self.assignment(), type_)
                python = self.declare(name, type_)
                self.emit(f"{python} = {value}")
            if not self.taken(","):
                break
        self.take(";")

    def initial(self, value: Term, type_: Type) -> str:
        if type_.space:
            if not value.type.space or value.type.kind != type_.kind or (value.type.const and not type_.const):
                raise self.error(f"a {value.type} is no {type_}")
            return value.code
        return self.converted(value, type_)

    def array(self, name: str, base: Type, space: str, dims: tuple[int, ...]) -> None:
        zeros = False
        if self.taken("="):
            while self.here in ("{", "}", "0"):
                self.take()
            zeros = True
        python = self.declare(name, Type(base.kind, base.lanes, space, False, dims))
        size = math.prod(dims) * base.lanes
        make = "_group_array" if space == "local" else "_array"
        code = f"{make}(S, {name!r}, {size}, D[{base.kind!r}], {zeros})"
        self.emit(f"{python} = {code}" if len(dims) == 1 else f"{python} = Rows({code}, {dims})")

    # -- statements

    def statement(self) -> None:
        text = self.here
        if text == "{":
            self.block()
        elif text == "for":
            self.loop()
        elif text == "while":
            self.take()
            self.take("(")
            condition = self.condition()
            self.take(")")
            self.body(f"while {condition}:")
        elif text == "if":
            self.choice()
        elif text in ("break", "continue"):
            self.take()
            self.take(";")
            if text == "continue":
                for line in self.increments[-1]:
                    self.emit(line)
            self.emit(text)
        elif text == ";":
            self.take()
        elif text == "barrier":
            self.take()
            self.take("(")
            while not self.taken(")"):
                self.take()
            self.take(";")
            self.barriers = True
            self.emit("yield")
        elif self.is_type():
            self.declaration()
        else:
            for line in self.effect():
                self.emit(line)
            self.take(";")

    def block(self) -> None:
        self.take("{")
        self.scopes.append({})
        while not self.taken("}"):
            self.statement()
        self.scopes.pop()

    def body(self, head: str, after: Sequence[str] = ()) -> None:
        self.emit(head)
        self.depth += 1
        loops = head.startswith("while")                     # `continue` in a branch is of the loop around it
        if loops:
            self.increments.append(list(after))
        before = len(self.out)
        self.scopes.append({})
        self.statement()
        self.scopes.pop()
        if loops:
            self.increments.pop()
        for line in after:
            self.emit(line)
        if len(self.out) == before:
            self.emit("pass")
        self.depth -= 1

    def loop(self) -> None:
        self.take("for")
        self.take("(")
        self.scopes.append({})
        if self.is_type():
            self.declaration()
        elif not self.taken(";"):
            for line in self.effect():
                self.emit(line)
            self.take(";")
        condition = "True" if self.here == ";" else self.condition()
        self.take(";")
        after = [] if self.here == ")" else self.effect()
        self.take(")")
        self.body(f"while {condition}:", after)
        self.scopes.pop()

    def choice(self) -> None:
        self.take("if")
        self.take("(")
        condition = self.condition()
        self.take(")")
        self.body(f"if {condition}:")
        if self.taken("else"):
            self.body("else:")

    def condition(self) -> str:
        term = self.expression()
        if term.type.lanes > 1 or term.type.space:
            raise self.error(f"a condition is a {term.type}")
        return term.code

    def effect(self) -> list[str]:
        """Expressions for their effects: assignments, increments, stores, calls."""
        lines = []
        while True:
            lines.append(self.one_effect())
            if not self.taken(","):
                return lines

    def one_effect(self) -> str:
        text = self.here
        if text in ("++", "--"):
            self.take()
            place = self.unary()
            return self.assigned(place, self.binary(text[0], place, Term("1", INT)))
        if self.tokens[self.at][0] == "name" and self.peek() == "(":
            if text in ("STORE", "STORE_ALIGNED"):
                return self.stored(text == "STORE_ALIGNED")
            if match := re.fullmatch(r"STORE_STRIDED(\d+)", text):
                pointer, stride, value = self.arguments()
                self.write(pointer)
                if value.type.lanes != int(match[1]) or value.type.kind != pointer.type.kind:
                    raise self.error(f"{text} of a {value.type} to a {pointer.type}")
                return f"{pointer.code}.put_apart({stride.code}, {value.code})"
            if match := re.fullmatch(r"vstore(a?)_(half|bfloat)(2|4|8|16)?", text):
                return self.stored_half(match[2], int(match[3] or 1), bool(match[1]))
            if text.startswith("IN_RANGE"):
                return self.reported()
            if text.startswith("IMPOSSIBLE"):
                info, first, step, place = self.arguments()
                return f"_note({info.code}, {first.code}, {step.code}, {place.code})"
            if text == "PREFETCH":
                self.arguments()
                return "pass"
            if text in INSTRUCTIONS:
                return self.instructed(INSTRUCTIONS[text])
        place = self.unary()
        operator = self.here
        if operator == "=":
            self.take()
            return self.assigned(place, self.assignment())
        if len(operator) in (2, 3) and operator.endswith("="):
            self.take()
            return self.assigned(place, self.binary(operator[:-1], place, self.assignment()))
        return place.code

    def instructed(self, of: Instruction) -> str:
        """An instruction of the device's; together with other work-items, which wait for each other there."""
        args = self.arguments()
        if len(args) != len(of.given):
            raise self.error(f"{of.name} is given {len(args)} arguments, and takes {len(of.given)}")
        for x, wanted in zip(args, of.given, strict=True):
            if bool(wanted.count) != bool(x.type.space) or x.type.kind != (wanted.type or x.type.kind) or x.type.lanes > 1:
                raise self.error(f"a {x.type} is given to {of.name}")
            if wanted.writes:
                self.write(x)
        self.barriers |= of.lanes > 1
        call = f"(S, I[{of.name!r}], {', '.join(x.code for x in args)})"
        return f"yield from _together{call}" if of.lanes > 1 else f"_alone{call}"

    def assigned(self, place: Term, value: Term) -> str:
        if place.assign is None:
            raise self.error("what is assigned to is no place")
        return place.assign(self.initial(value, place.type))

    def arguments(self) -> list[Term]:
        """name(a, b, ...)"""
        self.take()
        self.take("(")
        found: list[Term] = []
        while not self.taken(")"):
            found.append(self.assignment())
            self.taken(",")
        return found

    def typed_arguments(self) -> tuple[Type, list[Term]]:
        """MACRO(type, a, b, ...)"""
        self.take()
        self.take("(")
        type_ = self.type_name()
        found: list[Term] = []
        while self.taken(","):
            found.append(self.assignment())
        self.take(")")
        return type_, found

    def stored(self, aligned: bool) -> str:
        type_, (pointer, value) = self.typed_arguments()
        self.through(pointer, type_, write=True)
        if value.type != type_ and not (value.type.lanes == 1 and value.type.kind == type_.kind):
            raise self.error(f"a {value.type} is stored as a {type_}")
        return f"{pointer.code}{f'.aligned({type_.lanes})' * aligned}.put_vector({self.converted(value, type_)})"

    def stored_half(self, kind: str, lanes: int, aligned: bool) -> str:
        value, offset, pointer = self.arguments()
        if pointer.type.kind != kind or value.type.kind not in ("float", "double") or value.type.lanes != lanes:
            raise self.error(f"vstore_{kind} of a {value.type} to a {pointer.type}")
        self.write(pointer)
        if lanes == 1:
            return f"{pointer.code}.store({offset.code}, {value.code})"
        place = f"{pointer.code}.moved({offset.code} * {lanes}){f'.aligned({lanes})' * aligned}"
        return f"{place}.put_vector(np.asarray({value.code}, D[{kind!r}]))"

    def reported(self) -> str:
        """IN_RANGE(x, low, high, ignore, place): the excess of an index, by an atomic maximum, which races do not concern."""
        wide = self.here != "IN_RANGE"
        args = self.arguments()
        x, low, high, ignore, place = args[1:] if wide else args
        outside = args[0].code if wide else "None"
        return f"_report({outside}, {x.code}, {low.code}, {high.code}, {ignore.code}, {place.code})"

    def through(self, pointer: Term, type_: Type, write: bool = False) -> None:
        """Whether vectors of `type_` may be read (written) at `pointer`."""
        if not pointer.type.space or pointer.type.kind != type_.kind or pointer.type.lanes != 1:
            raise self.error(f"{type_} at a {pointer.type}")
        if write:
            self.write(pointer)

    def write(self, pointer: Term) -> None:
        if pointer.type.const:
            raise self.error("writes through a const pointer")
        self.written |= set(re.findall(r"\bp_(\w+)\b", pointer.code))

    # -- expressions

    def expression(self) -> Term:
        return self.assignment()

    def assignment(self) -> Term:
        return self.ternary()

    def ternary(self) -> Term:
        condition = self.operation()
        if not self.taken("?"):
            return condition
        a = self.assignment()
        self.take(":")
        b = self.assignment()
        type_ = self.common(a, b)
        lanes = condition.type.lanes
        if lanes == 1:
            return Term(f"({self.converted(a, type_)} if {condition.code} else {self.converted(b, type_)})", type_)
        if type_.lanes != lanes:
            type_ = Type(type_.kind, lanes) if type_.lanes == 1 else type_
        if type_.lanes != lanes or type_.dtype.itemsize != condition.type.dtype.itemsize or condition.type.dtype.kind != "i":
            raise self.error(f"a {condition.type} selects between {a.type} and {b.type}")
        return Term(f"_selected({condition.code}, {self.converted(a, type_)}, {self.converted(b, type_)})", type_)

    def operation(self, least: int = 0) -> Term:
        """Operands with binary operators between them that bind as closely as `least`, or closer."""
        left = self.unary()
        while (closeness := PRECEDENCE.get(self.here, -1)) >= least:
            operator = self.take()
            left = self.binary(operator, left, self.operation(closeness + 1))
        return left

    def common(self, a: Term, b: Term) -> Type:
        """The type in which C computes with a and b."""
        if a.type.space or b.type.space:
            raise self.error(f"{a.type} with {b.type}")
        if a.type.lanes > 1 or b.type.lanes > 1:
            if a.type.lanes > 1 and b.type.lanes > 1:
                if a.type != b.type:
                    raise self.error(f"{a.type} with {b.type}")
                return a.type
            vector, scalar = (a, b) if a.type.lanes > 1 else (b, a)
            literal = re.fullmatch(r"\(?-?\d+\)?", scalar.code) is not None
            if scalar.type.kind != vector.type.kind and not literal and not self.fits(scalar.type, vector.type):
                raise self.error(f"{a.type} with {b.type}")
            return vector.type
        kinds = [self.promoted(t.type.kind) for t in (a, b)]
        return Type(max(kinds, key=RANK.index))

    @staticmethod
    def fits(scalar: Type, vector: Type) -> bool:
        """Whether a scalar becomes a vector's lanes without a loss of rank (OpenCL C, 6.2.6)."""
        if scalar.kind in FLOATS:
            return vector.kind in FLOATS and scalar.dtype.itemsize <= vector.dtype.itemsize
        return vector.kind in FLOATS or scalar.dtype.itemsize <= vector.dtype.itemsize

    @staticmethod
    def promoted(kind: str) -> str:
        return "float" if kind in HALVES else kind if kind in RANK else "int"

    def binary(self, operator: str, a: Term, b: Term) -> Term:
        if a.type.space and operator in "+-" and not b.type.space and b.type.lanes == 1 and b.type.kind not in FLOATS:
            return Term(f"{a.code}.moved({'-' if operator == '-' else ''}({b.code}))", a.type)
        if operator in ("&&", "||"):
            if a.type.lanes > 1 or b.type.lanes > 1:
                raise self.error(f"{operator} of vectors")
            return Term(f"int(bool({a.code}) {'and' if operator == '&&' else 'or'} bool({b.code}))", INT)
        type_ = self.common(a, b)
        if operator in ("<<", ">>") and type_.lanes == 1:
            type_ = Type(self.promoted(a.type.kind))
        x, y = (t.code if operator in ("<<", ">>") and type_.lanes == 1 else self.converted(t, type_) for t in (a, b))
        whole = type_.kind not in FLOATS
        if operator in ("==", "!=", "<", ">", "<=", ">="):
            if type_.lanes == 1:
                return Term(f"int({x} {operator} {y})", INT)
            mask = Type(MASKS[type_.dtype.itemsize], type_.lanes)
            return Term(f"(-({x} {operator} {y}).astype(D[{mask.kind!r}]))", mask)
        if operator in ("&", "|", "^", "<<", ">>", "%") and not whole:
            raise self.error(f"{operator} of {type_}")
        if type_.lanes > 1:
            code = f"({x} {operator} {y})"
            if whole and operator == "/":
                code = f"_vector_divided({x}, {y})"
            if operator == "%":
                code = f"({x} - _vector_divided({x}, {y}) * {y})"
            return Term(code, type_)
        if not whole:
            return Term(f"({x} {operator} {y})", type_)
        code = f"({x} {operator} {y})"
        if operator == "/":
            code = f"_divided({x}, {y})"
        elif operator == "%":
            code = f"_rest({x}, {y})"
        if operator == "<<":                                # OpenCL C drops the bits that do not fit, of signed numbers, too
            code = f"_whole({code}, D[{type_.kind!r}])"
        elif operator in ("+", "-", "*"):
            code = self.wrapped(code, type_)
        return Term(code, type_)

    @staticmethod
    def wrapped(code: str, type_: Type) -> str:
        if type_.kind in ("uint", "ulong"):
            return f"({code} & {0xFFFFFFFF if type_.kind == 'uint' else 0xFFFFFFFFFFFFFFFF})"
        return f"_int({code})" if type_.kind == "int" else f"_checked({code})"

    def converted(self, term: Term, type_: Type) -> str:
        """The Python text of `term` as a `type_`, where C converts by itself."""
        if term.type == type_:
            return term.code
        if term.type.space or type_.space:
            raise self.error(f"a {term.type} is no {type_}")
        if term.type.lanes > 1:
            raise self.error(f"a {term.type} is no {type_}")
        if type_.lanes > 1:
            return f"_lanes_of({term.code}, {type_.lanes}, D[{type_.kind!r}])"
        return self.scalar(term, type_.kind)

    @staticmethod
    def scalar(term: Term, kind: str) -> str:
        if kind in FLOATS:
            return f"{'f32' if kind != 'double' else 'f64'}({term.code})"
        source = term.type.kind
        wider = source not in FLOATS and (
            (DTYPES[source].kind == DTYPES[kind].kind and DTYPES[source].itemsize <= DTYPES[kind].itemsize)
            or (DTYPES[source].kind == "u" and DTYPES[source].itemsize < DTYPES[kind].itemsize))
        return term.code if wider else f"_whole({term.code}, D[{kind!r}])"

    def unary(self) -> Term:
        text = self.here
        if text in ("-", "!", "~", "+"):
            self.take()
            x = self.unary()
            type_ = x.type if x.type.lanes > 1 else Type(self.promoted(x.type.kind))
            if text == "!":
                if x.type.lanes > 1:
                    raise self.error("! of a vector")
                return Term(f"int(not {x.code})", INT)
            code = f"({text}{self.converted(x, type_)})"
            if text == "-" and type_.lanes == 1 and type_.kind not in FLOATS:
                code = self.wrapped(code, type_)
            if text == "~" and type_.kind.startswith("u") and type_.lanes == 1:
                code = self.wrapped(code, type_)
            return Term(code, type_)
        if text == "*":
            self.take()
            return self.element(self.unary(), Term("0", INT))
        if text == "(" and self.is_type(1):
            self.take()
            type_ = self.type_name()
            if self.here == "*":
                raise self.error("a cast of a pointer")
            self.take(")")
            return self.cast(type_)
        return self.postfix(self.primary())

    def cast(self, type_: Type) -> Term:
        if type_.lanes == 1:
            x = self.unary()
            if x.type.lanes > 1 or x.type.space:
                raise self.error(f"a cast of a {x.type} to {type_}")
            return Term(self.scalar(x, type_.kind) if x.type != type_ else x.code, type_)
        if self.here == "(":                                        # a vector literal, perhaps with members behind it
            self.take("(")
            parts = [self.assignment()]
            while self.taken(","):
                parts.append(self.assignment())
            self.take(")")
            if len(parts) == 1 and parts[0].type.lanes == 1:
                term = Term(f"_lanes_of({self.scalar(parts[0], type_.kind)}, {type_.lanes}, D[{type_.kind!r}])", type_)
            elif len(parts) == 1:
                if parts[0].type != type_:
                    raise self.error(f"a cast of a {parts[0].type} to {type_}")
                term = parts[0]
            else:
                if sum(p.type.lanes for p in parts) != type_.lanes or any(p.type.lanes > 1 and p.type.kind != type_.kind for p in parts):
                    raise self.error(f"{[str(p.type) for p in parts]} make no {type_}")
                inner = ", ".join(p.code if p.type.lanes > 1 else self.scalar(p, type_.kind) for p in parts)
                term = Term(f"_joined([{inner}], {type_.lanes}, D[{type_.kind!r}])", type_)
            return self.postfix(term)
        x = self.unary()
        if x.type.lanes > 1:
            raise self.error(f"a cast of a {x.type} to {type_}")
        return Term(f"_lanes_of({self.scalar(x, type_.kind)}, {type_.lanes}, D[{type_.kind!r}])", type_)

    def postfix(self, term: Term) -> Term:
        while True:
            if self.here == "[":
                self.take()
                index = self.expression()
                self.take("]")
                if index.type.lanes > 1 or index.type.space or index.type.kind in FLOATS:
                    raise self.error(f"an index is a {index.type}")
                term = self.element(term, index)
            elif self.here == ".":
                self.take()
                term = self.member(term, self.take())
            elif self.here in ("++", "--") and term.assign is not None and term.code.isidentifier():
                step = 1 if self.take() == "++" else -1
                if term.type.space:                                  # a pointer's is only ever a statement
                    term = Term(f"({term.code} := {term.code}.moved({step}))", term.type)
                    continue
                term = Term(f"(({term.code} := {term.code} + {step}) - {step})", term.type)
            else:
                return term

    def element(self, pointer: Term, index: Term) -> Term:
        type_ = pointer.type
        if not type_.space:
            raise self.error(f"an element of a {type_}")
        if len(type_.dims) > 1:
            return Term(f"{pointer.code}.row({index.code})", Type(type_.kind, type_.lanes, type_.space, type_.const, type_.dims[1:]))
        result = Type(type_.kind, type_.lanes)
        if type_.lanes > 1 and type_.space != "private":
            raise self.error(f"an array of {type_}")
        if type_.lanes > 1:
            place = f"{pointer.code}.moved(({index.code}) * {type_.lanes})"
            return Term(f"{place}.vector({type_.lanes})", result, lambda value: f"{place}.put_vector({value})")
        code = f"{pointer.code}.load({index.code})"
        if type_.kind not in FLOATS:
            code = f"int({code})"

        def assign(value: str) -> str:
            self.write(pointer)
            return f"{pointer.code}.store({index.code}, {value})"

        if type_.kind in HALVES:
            raise self.error(f"an element of a {type_.kind} buffer is loaded without vload_{type_.kind}")
        return Term(code, result, assign)

    def member(self, term: Term, name: str) -> Term:
        lanes = term.type.lanes
        if lanes == 1 or term.type.space:
            raise self.error(f".{name} of a {term.type}")
        picks = {"lo": range(lanes // 2), "hi": range(lanes // 2, lanes), "even": range(0, lanes, 2), "odd": range(1, lanes, 2)}.get(name)
        if picks is None:
            if not re.fullmatch(r"s[0-9a-f]+", name):
                raise self.error(f".{name} of a {term.type}")
            picks = [LETTERS.index(c) for c in name[1:]]           # type: ignore[assignment]
        chosen = list(picks or ())
        if max(chosen) >= lanes:
            raise self.error(f".{name} of a {term.type}")
        type_ = Type(term.type.kind, len(chosen))
        if len(chosen) == 1:
            code = f"{term.code}[{chosen[0]}]"
            return Term(code if type_.kind in FLOATS else f"int({code})", type_)
        return Term(f"{term.code}[{chosen}]", type_)

    def primary(self) -> Term:
        kind, text, _ = self.tokens[self.at] if self.at < len(self.tokens) else ("", "", 0)
        if text == "(":
            self.take()
            inner = self.expression()
            self.take(")")
            return Term(f"({inner.code})", inner.type, inner.assign)
        if kind == "number":
            self.take()
            return self.number(text)
        if kind != "name":
            raise self.error(f"unexpected {text!r}")
        if text in ("INFINITY", "NAN"):
            self.take()
            return Term(f"f32({'np.inf' if text == 'INFINITY' else 'np.nan'})", Type("float"))
        if self.peek() == "(":
            return self.call()
        self.take()
        for scope in reversed(self.scopes):
            if text in scope:
                python, type_ = scope[text]
                return Term(python, type_, partial("{0} = {1}".format, python))
        raise self.error(f"{text} is not declared")

    def number(self, text: str) -> Term:
        body = text.rstrip("uUlLfF") if not text.startswith("0x") else text.rstrip("uUlL")
        suffix = text[len(body):].lower()
        if suffix == "f" or "." in body or ("e" in body.lower() and not text.startswith("0x")):
            return Term(f"f32({body})", Type("float")) if suffix == "f" else Term(f"f64({body})", Type("double"))
        value = int(body, 0)
        kind = {"": "int", "u": "uint", "l": "long", "ul": "ulong"}[suffix]
        if kind == "int" and value >= 1 << 31:
            kind = "long"
        return Term(str(value), Type(kind))

    def call(self) -> Term:
        name = self.here
        if match := re.fullmatch(r"get_(global_id|local_id|group_id|local_size|global_size)", name):
            dimension, = self.arguments()
            return Term(f"S.{match[1]}[{dimension.code}]", INT)
        if name in ("LOAD", "LOAD_ALIGNED", "LOAD_LOCAL", "KEPT"):
            type_, (pointer,) = self.typed_arguments()
            self.through(pointer, type_)

            def keep(value: str) -> str:
                return f"{pointer.code}.put_vector({value})"

            place = f"{pointer.code}.aligned({type_.lanes})" if name in ("LOAD_ALIGNED", "LOAD_LOCAL") else pointer.code
            return self.postfix(Term(f"{place}.vector({type_.lanes})", type_, keep if name == "KEPT" else None))
        if re.fullmatch(r"(STRIDED|GATHER)\d+(_IF)?", name):
            type_, args = self.typed_arguments()
            pointer, at = args[:2]
            self.through(pointer, type_)
            if name.startswith("STRIDED"):
                return Term(f"{pointer.code}.picked(np.arange({type_.lanes}) * {at.code})", type_)
            if at.type.lanes != type_.lanes or any(m.type.lanes != type_.lanes for m in args[2:]):
                raise self.error(f"a gather of {type_} at {at.type}")
            mask = f", {args[2].code}" if len(args) == 3 else ""
            return Term(f"{pointer.code}.picked({at.code}{mask})", type_)
        if re.fullmatch(r"ZIP\d+", name):
            type_, (a, b) = self.typed_arguments()
            if a.type != b.type or a.type != Type(type_.kind, type_.lanes // 2):
                raise self.error(f"a {a.type} and a {b.type} are zipped to a {type_}")
            return Term(f"np.stack([{a.code}, {b.code}], -1).reshape(-1)", type_)
        if match := re.fullmatch(r"vload(a?)_(half|bfloat)(2|4|8|16)?", name):
            offset, pointer = self.arguments()
            if pointer.type.kind != match[2]:
                raise self.error(f"{name} at a {pointer.type}")
            lanes = int(match[3] or 1)
            if lanes == 1:
                return Term(f"f32({pointer.code}.load({offset.code}))", Type("float"))
            place = f"{pointer.code}.moved({offset.code} * {lanes}){f'.aligned({lanes})' * bool(match[1])}"
            return Term(f"{place}.vector({lanes}).astype(np.float32)", Type("float", lanes))
        if name == "__builtin_convertvector":
            self.take()
            self.take("(")
            x = self.assignment()
            self.take(",")
            type_ = self.type_name()
            self.take(")")
            return self.conversion(x, type_)
        if match := re.fullmatch(r"convert_(\w+)", name):
            type_ = self.named(match[1])
            x, = self.arguments()
            return self.conversion(x, type_)
        if match := re.fullmatch(r"as_(\w+)", name):
            type_ = self.named(match[1])
            x, = self.arguments()
            if x.type.lanes * x.type.dtype.itemsize != type_.lanes * type_.dtype.itemsize:
                raise self.error(f"{name} of a {x.type}")
            code = f"np.asarray({x.code}, D[{x.type.kind!r}]).view(D[{type_.kind!r}])"
            return self.postfix(Term(code if type_.lanes > 1 else f"{'f32' if type_.kind in FLOATS else 'int'}({code})", type_))
        return self.postfix(self.function(name, self.arguments()))

    def named(self, text: str) -> Type:
        match = TYPE_NAME.fullmatch(text)
        if match is None:
            raise self.error(f"{text} is no type")
        return Type(match[1], int(match[2] or 1))

    def conversion(self, x: Term, type_: Type) -> Term:
        if x.type.lanes != type_.lanes:
            raise self.error(f"a conversion of a {x.type} to {type_}")
        if type_.lanes == 1:
            return Term(self.scalar(x, type_.kind), type_)
        return Term(f"{x.code}.astype(D[{type_.kind!r}])", type_)

    def function(self, name: str, args: list[Term]) -> Term:
        known = functions()
        if name not in known:
            raise self.error(f"{name} is not declared")
        type_ = args[0].type
        for other in args[1:]:
            type_ = self.common(Term("x", type_), other)
        if type_.lanes == 1 and type_.kind not in RANK:
            type_ = Type(self.promoted(type_.kind)) if name in ("min", "max") else type_
        codes = [self.converted(a, type_) for a in args]
        if type_.kind in FLOATS or type_.lanes > 1:
            call = f"F[{name!r}]({', '.join(codes)})"
        else:
            call = f"F[{name!r}]({', '.join(f'np.asarray({c}, D[{type_.kind!r}])' for c in codes)})"
        if type_.lanes > 1:
            return Term(f"np.asarray({call}, D[{type_.kind!r}])", type_)
        return Term(self.scalar(Term(call, Type("double")), type_.kind) if type_.kind in FLOATS else f"int({call})", type_)

    # -- the whole kernel

    def kernel(self) -> Compiled:
        """The whole of it, from the parenthesis of its parameters on."""
        parameters: list[tuple[str, Type, bool]] = []
        self.take("(")
        while not self.taken(")"):
            base = self.type_name()
            space, const = self.space, self.constant
            pointer = self.taken("*")
            restrict = self.taken("restrict")
            name = self.take()
            type_ = Type(base.kind, base.lanes, space, const) if pointer else base
            parameters.append((name, type_, restrict))
            self.scopes[0][name] = f"p_{name}", type_
            self.taken(",")
        self.block()
        if self.at != len(self.tokens):
            raise self.error("text after the kernel")
        self.emit("return")
        self.emit("yield")                                          # a generator also without barriers
        head = f"def kernel(S, {', '.join(f'p_{n}' for n, _, _ in parameters)}):"
        text = "\n".join([head, *(code for code, _ in self.out)])
        space_: dict[str, Any] = dict(_GLOBALS)
        exec(compile(text, f"<{self.name}>", "exec"), space_)
        lines = {i + 2: self.source[line].strip() for i, (_, line) in enumerate(self.out)}
        return Compiled(self.name, parameters, self.local_size, space_["kernel"], lines, self.barriers, frozenset(self.written))


_GLOBALS: dict[str, Any] = {
    **vars(memory), "_together": together, "_alone": alone, "I": INSTRUCTIONS, "np": np, "f32": np.float32, "f64": np.float64, "D": DTYPES,
    "F": functions(),
}
