"""The interpreter of kernels on statements that are written by hand: what it finds, what it computes, what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.codegen.kernel.index.index import Var, constant
from tracegrad.codegen.kernel.ir.expressions import (
    Access,
    Array,
    Buffer,
    Call,
    Cast,
    Expression,
    Infix,
    Lanes,
    Literal,
    Load,
    Local,
    Op,
    Select,
    Spelling,
    Splat,
    element,
    place,
    value,
    whole,
)
from tracegrad.codegen.kernel.ir.expressions.base import Made
from tracegrad.codegen.kernel.ir.expressions.terms import Term, binary
from tracegrad.codegen.kernel.ir.kernel import Foreign, Kernel
from tracegrad.codegen.kernel.ir.spelling import spelling
from tracegrad.codegen.kernel.ir.statements import (
    Allocate,
    Assign,
    Barrier,
    Block,
    Break,
    Declare,
    If,
    Item,
    Loop,
    Statement,
    Store,
    Update,
    bound,
)
from tracegrad.codegen.kernel.run import KernelFault, run_plan
from tracegrad.codegen.kernel.text.literals import PREFIX, PRODUCT
from tracegrad.codegen.kernel.verify import verify_kernel
from tracegrad.codegen.mathlib import builtins
from tracegrad.errors import CompilerBug
from tracegrad.support.dtypes import int32, uint8, uint32
from tracegrad.support.plan import Launch, Plan, Slot

F4 = np.dtype("float32")


def plan(statements: Sequence[Statement | Block], *parameters: Buffer, items: int = 1) -> Plan:
    """A plan of one kernel `k`, of one group; the last of its buffers is the result."""
    body = Block("")
    body.items = list(statements)
    kernel = Kernel("k", parameters, body, (items,), (items,), group=(items,))
    count = len(parameters)
    slots = tuple(Slot("output" if i == count - 1 else "input", (p.size or 1,), p.dtype, f"b{i}") for i, p in enumerate(parameters))
    launch = Launch("k", (items,), (items,), tuple(range(count)))
    return Plan(kernel.text, (launch,), slots, tuple(range(count - 1)), (count - 1,), kernels=(kernel,))


def buffers(size: int = 8, access: str = "const") -> tuple[Buffer, Buffer]:
    """Floats that are read, and floats that are written."""
    return Buffer("a", "a", F4, size, access), Buffer("c", "c", F4, size, "out")


def loop(var: Var, stop: int, *inside: Statement | Block) -> Loop:
    made = Loop(var, "int", bound(0), bound(stop))
    made.items = list(inside)
    return made


def branch(condition: Expression, *inside: Statement | Block) -> If:
    made = If(condition)
    made.items = list(inside)
    return made


def vector(memory: Buffer, at: int, lanes: int) -> Access:
    return Access(memory, constant(at), lanes, LANE)


A, C = buffers()
LANE, I, ONE, TWO = Var("lane", 16), Var("i", 9), Literal(1, F4), Literal(2, F4)
X, N, KEPT = Local("x", F4), Local("n", int32), Array("x", "float", 8, False)
ZEROS = Splat(Literal(0, F4), 8)

# what is wrong with a kernel, and how it is told
FAULTS: dict[str, tuple[list[Statement | Block], str]] = {
    "out of bounds": ([loop(I, 9, Store(place(C, I), element(A, I)))], r"reads b0\[8\] of 8, in `c\[i\] = a\[i\];`"),
    "a vector out of bounds": ([Store(vector(C, 0, 4), Load(vector(A, 5, 4), F4, 4))], r"reads b0\[5:9\] of 8"),
    "written out of bounds": ([loop(I, 8, Store(place(C, I.index + 1), element(A, I)))], r"writes b1\[8\] of 8"),
    "a vector written out of bounds": ([Store(vector(C, 1, 8), ZEROS)], r"writes b1\[1:9\] of 8"),
    "negative": ([Store(place(C, 0), element(A, -1))], r"reads b0\[-1\]"),
    "not written": ([loop(I, 7, Store(place(C, I), element(A, I)))], "element 7 was never written"),
    "read before written": ([loop(I, 8, Store(place(C, I), element(C, 7 - I.index)))], r"reads b1\[7\], which nothing has written"),
    "uninitialised array": ([Allocate(KEPT), Store(place(KEPT, 0), ONE), loop(I, 8, Store(place(C, I), element(KEPT, I)))],
                            r"reads x\[1\], which nothing has written"),
    "undeclared": ([Store(place(C, 0), X)], "x is not declared"),
    "undeclared function": ([Store(place(C, 0), Call("gamma_of", element(A, 0)))], "gamma_of is not declared"),
    "declared twice": ([Declare(X, "float", ONE), Declare(X, "float", ONE)], "x is declared twice"),
    "out of scope": ([branch(whole(1), Declare(X, "float", ONE)), Store(place(C, 0), X)], "x is not declared"),
    "a lane that is not there": ([Store(place(C, 0), Lanes(Load(vector(A, 0, 4), F4, 4), 4))], "index 4 is out of bounds"),
    "overflow": ([Declare(N, "int", whole(2147483647)), Update(N, "+", whole(1))], "signed overflow"),
    "division": ([Declare(N, "int", whole(0)), Assign(N, Infix("/", whole(5), N))], "division by zero"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    statements, message = FAULTS[name]
    with pytest.raises(KernelFault, match=message):
        run_plan(plan(statements, A, C), [np.arange(8, dtype=F4)])


SHARED, ITEM, BACK = Array("s", "float", 8, True), Item(I, "int", 0, "local"), 7 - I.index
GROUP_FAULTS: dict[str, tuple[list[Statement | Block], str]] = {
    "two write one": ([Store(place(C, I.index // 2), element(A, I))], r"writes b1\[0\], which work-item 0 access"),
    "one reads what another writes": (
        [Store(place(C, I), element(A, I)), branch(Infix(">", value(I), 0), Store(place(C, I), element(C, I.index - 1)))],
        r"reads b1\[0\], which work-item 0 writes"),
    "one writes what another read": (
        [Store(place(A, I), Select(Infix("<", value(I), 7), element(A, I.index + 1), element(A, I))), Store(place(C, I), ONE)],
        r"writes b0\[1\], which work-item 0 access"),
    "no barrier": ([Allocate(SHARED), Store(place(SHARED, I), element(A, I)), Store(place(C, I), element(SHARED, BACK))],
                   r"reads s\[7\], which nothing has written"),
    "a race after a barrier": (
        [Allocate(SHARED), Store(place(SHARED, I), element(A, I)), Barrier(), Store(place(SHARED, I), element(SHARED, BACK)),
         Store(place(C, I), element(SHARED, I))], r"reads s\[3\], which work-item 3 writes in the same launch"),
    "divergence": ([branch(Infix("<", value(I), 4), Barrier()), Store(place(C, I), element(A, I))], "a barrier that 4 of the 8 items"),
}


@pytest.mark.parametrize("name", GROUP_FAULTS)
def test_faults_between_work_items_are_found(name: str) -> None:
    statements, message = GROUP_FAULTS[name]
    with pytest.raises(KernelFault, match=message):
        run_plan(plan([ITEM, *statements], *buffers(access="inout"), items=8), [np.arange(8, dtype=F4)])


def test_a_buffer_behind_two_pointers_is_found() -> None:
    found = plan([Store(place(C, 0), element(A, 0))], *buffers(1))
    aliased = replace(found, slots=(found.slots[0], Slot("output", (1,), F4, "b1", alias=0)))
    with pytest.raises(KernelFault, match="a, c are one buffer, which is written, and one of them is restrict"):
        run_plan(aliased, [np.zeros(1, F4)])


def test_what_it_computes_is_cs() -> None:
    """Integers truncate and wrap as in C, floats stay single, masks select, a small integer is an int."""
    third = Infix("*", Infix("/", ONE, Literal(3, F4)), Literal(3, F4))
    four = Load(vector(A, 0, 4), F4, 4)
    wrapped = Infix("+", Cast(whole(2147483647), uint32), Literal(1, uint32))
    values: list[Expression] = [
        Infix("/", whole(-7), whole(2)), Infix("%", whole(-7), whole(2)), Cast(whole(300), uint8), Infix("<", Cast(wrapped, int32), 0),
        Infix("==", third, ONE), Infix("*", Cast(whole(200), uint8), Cast(whole(200), uint8)),
        Lanes(Select(Infix(">", four, Splat(ONE, 4)), four, Splat(Literal(-1, F4), 4)), 0),
        Lanes(Infix("+", Lanes(four, "hi"), Lanes(four, "lo")), 1)]
    found, = run_plan(plan([Store(place(C, i), x) for i, x in enumerate(values)], A, C), [np.arange(8, dtype=F4)])
    single = np.float32(1) / np.float32(3) * np.float32(3) == 1
    assert found.tolist() == [-3, -1, 44, 1, float(single), 40000, -1, 4]


def test_a_loop_is_left_and_an_inner_variable_hides_an_outer_one() -> None:
    inner = Local("n", int32)
    statements: list[Statement | Block] = [
        Declare(N, "int", whole(5)),
        loop(I, 9, Declare(inner, "int", value(I)), branch(Infix("==", inner, 4), Break()), Store(place(C, I), inner)),
        *[Store(place(C, k), N) for k in range(4, 8)]]
    found, = run_plan(plan(statements, A, C), [np.zeros(8, F4)])
    assert found.tolist() == [0, 1, 2, 3, 5, 5, 5, 5]


@pytest.mark.parametrize("base", [Expression, Statement, Block])
def test_each_kind_says_how_it_is_printed_and_run(base: type) -> None:
    """In its own class: there is no other list of kinds."""
    todo, found = [base], 0
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if kind.__subclasses__() == []:
            found += 1
            assert all(getattr(kind, rule) is not getattr(base, rule) for rule in ("c", "python")), kind
    assert found > 2


class Doubled(Made):
    """An expression that there is not: all that anybody has to know of it."""

    def __init__(self, x: Expression) -> None:
        super().__init__((x,), x.dtype, x.lanes)

    def c(self, p: Any) -> tuple[str, int]:
        return f"2 * {p.operand(self.parts[0], PREFIX)}", PRODUCT

    def python(self, v: Any) -> Term:
        return binary("*", Term("2", int32), self.parts[0].python(v))

    def misfit(self) -> str:
        return super().misfit() or ("not of 2 lanes" if self.lanes == 2 else "")


def test_a_new_expression_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printed, verified and run by what it says of itself; a new function that ops call is a line of the table of builtins."""
    x = Doubled(Infix("+", element(A, 0), Literal(1, F4)))
    made = plan([Store(place(C, 0), x), Store(vector(C, 4, 4), Doubled(Load(vector(A, 4, 4), F4, 4)))], A, C)
    kernel = made.kernels[0]
    assert "c[0] = 2 * (a[0] + 1.0f);" in kernel.text
    verify_kernel(kernel)
    wrong = plan([Store(vector(C, 0, 2), Doubled(Load(vector(A, 0, 2), F4, 2)))], A, C).kernels[0]
    with pytest.raises(CompilerBug, match="not of 2 lanes"):
        verify_kernel(wrong)
    monkeypatch.setitem(builtins.BUILTINS, "nudged", builtins.Builtin("nudged", lambda x: x + 0.5, floats="native_nudged"))
    builtins._meanings.cache_clear()
    spelled = spelling("nudged({})".format, 1, {}, "float", TARGETS["avx2"])
    assert spelled.pieces == ("native_nudged(", 0, ")")
    found, = run_plan(plan([loop(I, 8, Store(place(C, I), Op(spelled, (Doubled(element(A, I)),), F4, 1)))], A, C), [np.arange(8, dtype=F4)])
    assert found.tolist() == [2 * k + 0.5 for k in range(8)]
    monkeypatch.undo()
    builtins._meanings.cache_clear()


USERS: dict[str, Any] = {
    "x + 2.5f * y - -1": lambda x, y: x + F4.type(2.5) * y + 1,
    "(x > 0 && y < x) ? x : y / 4": lambda x, y: np.where((x > 0) & (y < x), x, y / 4),
    "fabs(x) < .5f || !(y > 1e0f) ? exp(-x) : (float)(int)y": lambda x, y: np.where((np.abs(x) < 0.5) | ~(y > 1), np.exp(-x), np.trunc(y)),
    "(int)fabs(x) << 2 | 0x3u & (uint)1": lambda x, y: np.abs(x).astype(int) << 2 | 1,
}


@pytest.mark.parametrize("text", USERS)
def test_users_expressions_are_run(on_numpy: Any, text: str) -> None:
    own = tg.elementwise(text, args=["x", "y"], numpy=lambda x, y: USERS[text](x, y).astype(x.dtype))
    x, y = (tg.tensor((np.linspace(-3, 3, 13) * s).astype("float32")) for s in (1, -0.7))
    with Checked() as checked:
        tg.trace(lambda x, y: own(x, y) * 2)(x, y)
    assert checked.count == len(TARGETS)


def test_what_cannot_be_run_says_why() -> None:
    found = plan([Store(place(C, 0), Op(Spelling(("vec_step(", 0, ").x"), False), (element(A, 0),), F4, 1))], A, C)
    with pytest.raises(KernelFault, match=r"`vec_step\(operand 0\).x` is no expression"):
        run_plan(found, [np.zeros(8, F4)])
    with pytest.raises(KernelFault, match=r"run_plan: the plan has no statements of k; set tg.config.check = True"):
        run_plan(replace(found, kernels=()), [np.zeros(8, F4)])
    users = Foreign("k", (A, C), Block(""), (1,), (1,), source="__kernel void k() {}")
    with pytest.raises(KernelFault, match=r"run_plan: a user wrote k; only a driver runs that"):
        run_plan(replace(found, kernels=(users,)), [np.zeros(8, F4)])
