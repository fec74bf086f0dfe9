"""codegen.kernel.verify: it finds what is wrong with a kernel, and nothing wrong with one that is right.

Each kernel here is right but for one thing, and most are also shown without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.checks.proof import Proof
from tracegrad.codegen.kernel.index.index import ZERO, Index, Mutable, Var, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import (
    At,
    Expression,
    Infix,
    Literal,
    Load,
    Op,
    Prefix,
    Select,
    Spelling,
    Splat,
    Spread,
    element,
    nodes,
    place,
)
from tracegrad.codegen.kernel.ir.expressions import whole as number
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import (
    Access,
    Allocate,
    Array,
    Barrier,
    Block,
    Bound,
    Declare,
    If,
    Local,
    Statement,
    Store,
    clipped,
    product,
)
from tracegrad.codegen.kernel.statement_passes import name_own
from tracegrad.codegen.kernel.verify import verify_kernel
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower import context
from tracegrad.errors import CompilerBug
from tracegrad.execute.compile import executable_graph
from tracegrad.support.plan import Target

F32 = np.dtype("float32")
GPU = Target("gpu", 16, 16, 4, 256, 32768, plain_math=False, clang_builtins=False)


class Bench:
    """A kernel that is written by hand: buffers x (read) and y (written) of `size` floats."""

    def __init__(self, size: int = 100, access: str = "out") -> None:
        self.w = Writer(Target(), lambda node: "")
        self.x = self.w.buffer(Temp("x", 0, size, F32), "x", F32, "const")
        self.y = self.w.buffer(Temp("y", 0, size, F32), "y", F32, access)

    def load(self, at: Index, lanes: int = 1, lane: Var | None = None, guards: tuple[Any, ...] = ()) -> Local:
        return self.w.declare("v", Load(Access(self.x, at, lanes, lane, guards), F32, lanes))

    def store(self, at: Index, value: Expression, lanes: int = 1, lane: Var | None = None, to: Any = None) -> None:
        self.w.store(Access(to or self.y, at, lanes, lane), value)

    def given(self, *symbols: Local) -> None:
        """Variables that are vectors."""
        for v in symbols:
            zero = Literal(0, v.dtype)
            self.w.define(v, Spread(zero, v.lanes, v.mask) if v.mask else Splat(zero, v.lanes))

    def kernel(self, items: tuple[int, ...] = (1,), local: tuple[int, ...] | None = None) -> Kernel:
        return Kernel("k", tuple(self.w.params.values()), self.w.blocks[0], items, local or (1,) * len(items))


def wrong(kernel: Kernel, message: str) -> None:
    with pytest.raises(CompilerBug, match=message):
        verify_kernel(kernel)


# --------------------------------------------------------------------------------------------------------- variables, types, lanes


@pytest.mark.parametrize("where", ["before", "never", "after its loop"])
def test_what_is_not_declared(where: str) -> None:
    b = Bench()
    i, j = Var("i", 100), Var("i", 100)
    with b.w.loop(i, 0, 100):
        value = b.load(i.index)
        b.store(i.index, value)
    verify_kernel(b.kernel())
    if where == "never":
        value = Local("v9", F32)
    if where == "before":
        loop = b.w.blocks[0].items[0]
        assert isinstance(loop, Block)
        loop.items.reverse()
    else:
        with b.w.loop(j, 0, 100):
            b.store(j.index, value)
    wrong(b.kernel(), "used before it is declared")


def test_a_proof_that_holds_prints_no_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a statement is in C is for the message of a proof that fails."""
    b = Bench()
    i = b.w.item("i", 100, 0)
    b.store(i.index, b.load(i.index))
    with monkeypatch.context() as never:
        never.setattr(Store, "c", lambda *_: pytest.fail("a statement is printed"))
        verify_kernel(b.kernel((100,)))
    b.store(ZERO, b.load(i.index))
    wrong(b.kernel((100,)), r"`y\[0\] = v\w*;`: several work-items write the same element")


def test_a_name_that_another_variable_has_there() -> None:
    b = Bench()
    i, j = Var("i", 100), Var("i", 100)
    with b.w.loop(i, 0, 100), b.w.loop(j, 0, 100):
        b.store(j.index, b.load(i.index))
    wrong(b.kernel(), "i is used where another variable is called so")
    name_own(b.w)
    assert (i.name, j.name) == ("i", "i1")
    assert b.kernel().lines[1].strip() == "for (int i1 = 0; i1 < 100; i1++) {"
    verify_kernel(b.kernel())


@pytest.mark.parametrize("inside", [False, True])
def test_what_is_the_kernels_own_gives_way(inside: bool) -> None:
    """To what is declared by the name of a user's variable, wherever that is; but loops side by side may have one name."""
    b = Bench()
    loops = [Var("v", 100), Var("v", 100)]
    for var in loops:
        with b.w.loop(var, 0, 100):
            value = b.load(var.index) if inside else b.w.declare("u", Literal(1.0, F32))
            b.store(var.index, value)
    name_own(b.w)
    assert [var.name for var in loops] == (["v2", "v2"] if inside else ["v", "v"])
    verify_kernel(b.kernel())


def test_another_loops_variable_of_the_same_name() -> None:
    b = Bench()
    i, j = Var("i", 100), Var("i", 100)
    with b.w.loop(i, 0, 50):
        b.store(j.index, b.load(i.index))
    wrong(b.kernel(), "i is used before it is declared")


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_lanes(lanes: int) -> None:
    b = Bench(96)
    i = Var("i", 96)
    with b.w.loop(i, 0, 96, 8):
        v = b.load(i.index, lanes, i) if lanes > 1 else b.load(i.index)
        op = Spelling((0, " * 2.0f"), True)
        b.store(i.index, b.w.declare("w", Op(op, (v,), F32, 8)), 8, i)
    if lanes == 4:
        wrong(b.kernel(), "4 lanes of v make 8")
    else:
        verify_kernel(b.kernel())


def test_lanes_of_a_store_and_of_a_mask_and_the_type_of_a_name() -> None:
    b = Bench(96)
    i = Var("i", 96)
    with b.w.loop(i, 0, 96, 8):
        b.store(i.index, b.load(i.index, 8, i), 4, i)
    wrong(b.kernel(), "8 lanes are stored as 4")
    for size, message in ((4, ""), (8, "lanes of 8 bytes, what it is for of 4")):
        b = Bench(96)
        with b.w.loop(i, 0, 96, 8):
            v = b.load(i.index, 8, i)
            mask = Local("m", np.dtype(bool), 8, size)
            b.given(mask)
            b.w.declare("w", Select(mask, v, v))
        if message:
            wrong(b.kernel(), message)
        else:
            verify_kernel(b.kernel())


F64, I32, MASK = np.dtype("float64"), np.dtype("int32"), np.dtype(bool)
V, D, M4, M8 = Local("v", F32, 8), Local("d", F64, 8), Local("m", MASK, 8, 4), Local("l", MASK, 8, 8)
PLUS = Spelling((0, " + ", 1), True)
TYPES: dict[str, tuple[Expression, str]] = {           # a value, and what is wrong with it
    "sum": (Infix("+", V, V), ""), "sum of two types": (Infix("+", V, D), "v is float8, and d is double8"),
    "comparison": (Infix("<", V, V), ""), "masks": (Infix("&", M4, M4), ""),
    "masks of two sizes": (Infix("&", M4, M8), "m is int8, and l is long8"),
    "op": (Op(PLUS, (V, V), F32, 8), ""), "op of two types": (Op(PLUS, (V, D), F32, 8), "made of lanes of 4, 8 bytes"),
    "result of an op": (Op(PLUS, (V, V), MASK, 8, 8), "is long8, made of lanes of 4 bytes"), "select": (Select(M8, D, D), ""),
    "select of two types": (Select(M4, V, D), "v is float8, and d is double8"),
    "one of many": (Op(PLUS, (V, V), F32, 1), "is one value, of vectors"),
    "minus": (Prefix("-", V), ""),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_of_expressions(name: str) -> None:
    value, message = TYPES[name]
    b = Bench()
    b.given(V, D, M4, M8)
    b.w.declare("w", value)
    if message:
        wrong(b.kernel(), message)
    else:
        verify_kernel(b.kernel())


def test_a_variable_of_another_type_than_its_value() -> None:
    b = Bench()
    b.given(V)
    b.w.define(Local("w", F64, 8), V)
    wrong(b.kernel(), "w is double8, and its value is float8")


# ------------------------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(("stop", "shift", "fails"), [(100, 0, False), (99, 1, False), (100, 1, True), (101, 0, True), (100, -1, True)])
def test_one_beyond_the_end(stop: int, shift: int, fails: bool) -> None:
    for stores in (False, True):
        b = Bench()
        i = Var("i", stop)
        with b.w.loop(i, 0, stop):
            value = b.load(i.index * 0 + 5 if stores else i.index + shift)
            b.store(i.index + shift if stores else i.index * 0 + 5, value)
        if fails:
            wrong(b.kernel(), "elements (-1..98|1..100|0..100) of [xy] are (read|written), of 100 that it has")
        else:
            verify_kernel(b.kernel())


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_difference_of_sums_has_the_range_that_its_index_has(times: int) -> None:
    i, j, k = Var("i", 40, -7), Var("j", 9), Var("k", 100)
    proof = Proof(Bench().kernel())
    proof.ranges |= {i: (-3, 21), j: (2, 5)}
    sums = [i.index, 8 * i.index + j.index - 3, j.index - 2 * k.index, 4 * k.index + j.index * 2 + i.index, ZERO + 5]
    for x, y in ((x, y) for x in sums for y in sums):
        assert proof.difference(x, y, times) == proof.interval(x - y * times)


@pytest.mark.parametrize("enough", [(0, 99), (0, 30), (-8, 200), (12, 20)])
def test_a_range_that_is_enough_is_found_where_all_guards_tell_it(enough: tuple[int, int]) -> None:
    """Whoever asks whether an index is in a range learns it by as many guards as it takes, and no other answer."""
    i, j, k = Var("i", 100), Var("j", 8), Var("k", 50)
    proof = Proof(Bench().kernel())
    guards = (("range", k.index, 3, 9), ("range", 8 * i.index + j.index, 0, 100), ("range", i.index, 1, 3), ("multiple", i.index, 2))
    inside = {tuple(proof.interval(x, guards, enough)): proof.interval(x, guards)
              for x in (i.index, 8 * i.index, 8 * i.index + j.index, 8 * i.index + j.index + k.index, k.index + 4)}
    for (low, high), (least, most) in inside.items():
        assert low <= least <= most <= high
        assert (enough[0] <= low and high <= enough[1]) == (enough[0] <= least and most <= enough[1])


@pytest.mark.parametrize(("size", "stop", "whole", "fails"), [(96, 96, False, False), (100, 96, False, False), (100, 100, False, True),
                                                              (100, 100, True, False)])
def test_vectors_at_the_end(size: int, stop: int, whole: bool, fails: bool) -> None:
    b = Bench(size)
    i = Var("i", 104)
    with b.w.loop(i, 0, stop, 8, whole):
        b.store(i.index, b.load(i.index, 8, i), 8, i)
    if fails:
        wrong(b.kernel(), "elements 0..103 of x are read")
    else:
        verify_kernel(b.kernel())


@pytest.mark.parametrize(("step", "behind", "fails"), [(8, 0, False), (16, 8, False), (32, 24, False), (8, 8, True), (16, 9, True)])
def test_vectors_at_remainders_of_steps(step: int, behind: int, fails: bool) -> None:
    """A loop in steps of 16 is never at 49..63 of 64 elements."""
    b = Bench(64)
    i = Var("i", 192)
    with b.w.loop(i, 0, 192, step):
        at = i.index % 64 + behind
        b.store(Index((), 0), b.load(at, 8, i), 8)
    if fails:
        wrong(b.kernel(), "of x are read, of 64 that it has")
    else:
        verify_kernel(b.kernel())


@pytest.mark.parametrize(("block", "fits"), [(12, True), (16, True), (13, False)])
def test_a_block_is_as_long_wherever_it_begins(block: int, fits: bool) -> None:
    """Blocks of a row that begin where another loop is: the last one ends where the row does, if they are of one length."""
    b = Bench()
    outer, first, i = Var("outer", 5, 4), Var("first", 96, 4), Var("i", 100)
    with b.w.loop(outer, 4, 100, 96), b.w.loop(first, outer, outer.index + 96, block), b.w.loop(i, first, first.index + block):
        b.store(i.index, number(1))
    if fits:
        verify_kernel(b.kernel())
    else:
        wrong(b.kernel(), "is taken to be in")



def test_a_loop_that_leaves_the_range_its_variable_is_taken_to_be_in() -> None:
    b = Bench(1000)
    with b.w.loop(Var("i", 100), 0, 101):
        b.store(Index((), 3), b.load(Index((), 3)))
    wrong(b.kernel(), "i is taken to be in 0..99, and is in 0..100")


@pytest.mark.parametrize("guarded", [False, True])
def test_a_guard_that_is_lost(guarded: bool) -> None:
    b = Bench()
    i = Var("i", 120)
    with b.w.loop(i, 0, 120):
        x = i.index - 10
        b.store(Index((), 3), b.load(bounded(x, 0, 100), guards=(("range", x, 0, 100),) if guarded else ()))
    if guarded:
        verify_kernel(b.kernel())
    else:
        wrong(b.kernel(), "elements -10..109 of x are read")


@pytest.mark.parametrize("guarded", [False, True])
def test_items_beyond_the_last_element(guarded: bool) -> None:
    b = Bench()
    i = b.w.item("i", 100, 0)
    if guarded:
        with b.w.branch(Infix("<", b.w.at(i), number(100)), (("range", i.index, 0, 100),)):
            b.store(i.index, b.load(i.index))
        verify_kernel(b.kernel((128,), (64,)))
    else:
        b.store(i.index, b.load(i.index))
        verify_kernel(b.kernel((100,), (50,)))
        wrong(b.kernel((128,), (64,)), "elements 0..127")


def loads(statement: Statement) -> list[Access]:
    return [x.access for p in statement.parts if isinstance(p, Expression) for x in nodes(p) if isinstance(x, Load)]


@pytest.mark.usefixtures("on_numpy")
def test_guards_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards of a padded stencil are taken out of its kernel."""
    kernels: list[Kernel] = []
    finish = context.Context.finish
    monkeypatch.setattr(context.Context, "finish", lambda *a: kernels.append(finish(*a)) or kernels[-1])
    traced = tg.trace(lambda x: F.pad(x, (1, 1))[:, 2:] - x)
    traced(tg.zeros(3, 40))
    compile_graph(executable_graph(traced._seen().program.graph), Target())
    guarded = 0
    for kernel in kernels:
        for part in [access for s in kernel.statements() for access in loads(s) if access.guards]:
            held, part.guards = part.guards, ()
            wrong(kernel, "are read, of 120 that it has")
            part.guards = held
            verify_kernel(kernel)
            guarded += 1
    assert guarded


# ---------------------------------------------------------------------------------------------------------- const, barriers, races


def test_const() -> None:
    b = Bench()
    b.store(Index((), 3), b.load(Index((), 3)), to=b.x)
    wrong(b.kernel(), "x is const")


def barrier(place: str) -> Kernel:
    b = Bench()
    group, item = b.w.item("group", 4, 0, "group"), b.w.item("item", 8, 0, "local")
    scratch = b.w.array("scratch", "float", 8, shared=True)
    b.w.store(Access(scratch, item.index), Literal(0, F32))
    value: Expression = b.w.at(item)
    if place == "a value of the item's":
        value = b.w.declare("n", b.w.at(item.index + 1))
    if place == "the group's":
        value = b.w.at(group)
    inside: dict[str, Callable[[], Any]] = {
        "a loop of its own": lambda: b.w.loop(Var("i", 100), item, 100, 8), "everywhere": lambda: b.w.loop(Var("i", 100), 0, 100, 8),
    }
    with inside.get(place, lambda: b.w.branch(Infix("<", value, number(3))))():
        b.w.barrier()
    return b.kernel((32,), (8,))


@pytest.mark.parametrize("place", ["everywhere", "the group's", "the item's", "a value of the item's", "a loop of its own"])
def test_barriers(place: str) -> None:
    if place in ("everywhere", "the group's"):
        verify_kernel(barrier(place))
    else:
        wrong(barrier(place), "not all items of the work-group come to this barrier")


RACES: dict[str, tuple[bool, Callable[[Var, Var], Index]]] = {      # (right, element of row number `part` and column k of 10)
    "rows": (True, lambda part, k: part.index * 10 + k.index),
    "columns": (True, lambda part, k: k.index * 10 + part.index),
    "apart": (True, lambda part, k: part.index * 10 + k.index // 2),
    "the same": (False, lambda part, k: k.index),
    "overlapping": (False, lambda part, k: part.index * 9 + k.index),
    "a step too short": (False, lambda part, k: k.index * 9 + part.index),
    "one too many": (False, lambda part, k: part.index * 5 + k.index // 5 * 5),
}


@pytest.mark.parametrize("name", RACES)
def test_two_items_that_write_one_element(name: str) -> None:
    right, at = RACES[name]
    b = Bench()
    part, k = b.w.item("part", 10, 0), Var("k", 10)
    with b.w.loop(k, 0, 10):
        b.store(at(part, k), b.load(k.index))
    if right:
        verify_kernel(b.kernel((10,)))
    else:
        wrong(b.kernel((10,)), "two work-items may meet|several work-items write")


@pytest.mark.parametrize(("apart", "step", "fails"), [(33, 66, False), (32, 66, True), (33, 65, True), (40, 73, False)])
def test_elements_that_a_constant_keeps_apart(apart: int, step: int, fails: bool) -> None:
    """`y[row * step + column]` and `y[row * step + column + apart]`, of 33 columns: the iterations of a loop over two, written out."""
    b = Bench(300)
    row, column = b.w.item("row", 4, 0), b.w.item("column", 33, 1)
    for more in (0, apart):
        b.store(row.index * step + column.index + more, b.load(column.index))
    if fails:
        wrong(b.kernel((4, 33)), "two work-items may meet")
    else:
        verify_kernel(b.kernel((4, 33)))


@pytest.mark.parametrize(("apart", "fails"), [(20, False), (19, True), (40, False)])
def test_what_larger_steps_keep_apart_is_apart(apart: int, fails: bool) -> None:
    """`y[row * 40 + lane * 3 + fx]` below 20 in each row, and the same `apart`, which is no multiple of 3: fx tells the work-items."""
    b = Bench(300)
    fx, row, lane = b.w.item("fx", 3, 0), Var("row", 3), Var("lane", 7)
    with b.w.loop(row, 0, 3), b.w.loop(lane, 0, 7):
        place = lane.index * 3 + fx.index
        for more in (0, apart):
            guard = ("range", place, 0, 20)
            with b.w.branch(Infix("<", b.w.at(fx), number(20)), (guard,)):
                b.store(row.index * 40 + bounded(place, 0, 20) + more, number(1))
    if fails:
        wrong(b.kernel((3,)), "two work-items may meet")
    else:
        verify_kernel(b.kernel((3,)))


@pytest.mark.parametrize("wanted", [7, 8])
def test_nobody_meets_behind_a_test_that_fails(wanted: int) -> None:
    """`if (7 == 8)`: the last of some vectors is where it has to begin early, so what is done for a whole one is not."""
    b = Bench(300)
    row, i = b.w.item("row", 4, 0), Var("i", 8, 7)
    with b.w.loop(i, 7, 8):
        b.store(row.index * 10 + i.index, number(1))
        with b.w.branch(Infix("==", b.w.at(i), number(wanted)), (("range", i.index - wanted, 0, 1),)):
            b.store(row.index * 10 + i.index + 10, number(1))
    if wanted == 7:
        wrong(b.kernel((4,)), "two work-items may meet")
    else:
        verify_kernel(b.kernel((4,)))


@pytest.mark.parametrize(("block", "step", "fails"), [(10, 10, False), (9, 10, False), (11, 10, True)])
def test_parts_of_a_loop(block: int, step: int, fails: bool) -> None:
    """`for (i = part * step; i < min(part * step + block, 95); i++)`"""
    b = Bench()
    part, i = b.w.item("part", 10, 0), Var("i", 95)
    with b.w.loop(i, product(part, step), clipped(product(part, step, block), 95, block)):
        b.store(i.index, b.load(i.index))
    if fails:
        wrong(b.kernel((10,)), "two work-items may meet")
    else:
        verify_kernel(b.kernel((10,)))


@pytest.mark.parametrize("shift", [0, 1])
def test_reading_what_another_item_writes(shift: int) -> None:
    b = Bench(access="inout")
    i = b.w.item("i", 99, 0)
    b.store(i.index, b.w.declare("v", Load(Access(b.y, i.index + shift), F32)))
    if shift:
        wrong(b.kernel((99,)), "two work-items may meet at an element of y")
    else:
        verify_kernel(b.kernel((99,)))


def test_one_item_of_a_group_writes() -> None:
    for alone in (True, False):
        b = Bench()
        row, item = b.w.item("row", 10, 0, "group"), b.w.item("item", 8, 0, "local")
        value = b.load(row.index)
        if alone:
            with b.w.branch(Infix("==", b.w.at(item), number(0))):
                b.store(row.index, value)
            verify_kernel(b.kernel((80,), (8,)))
        else:
            b.store(row.index, value)
            wrong(b.kernel((80,), (8,)), "several work-items write the same element of y")


def test_a_dimension_that_nobody_asks_for() -> None:
    b = Bench()
    i = b.w.item("i", 10, 0)
    b.store(i.index, b.load(i.index))
    verify_kernel(b.kernel((10, 1), (1, 1)))
    wrong(b.kernel((10, 2), (1, 1)), "2 work-items along dimension 1")


def test_what_is_bounded_when_it_runs_is_believed() -> None:
    """The end of a loop that nobody knows: its variable's range holds, which the array has."""
    b = Bench()
    keys, length, i = Array("keys", "float", 10, False), Local("length", I32), Var("i", 10)
    b.w.add(Allocate(keys))
    b.w.define(length, number(4))
    with b.w.loop(i, 0, Bound(length, Index((), 0), None, 10)):
        b.w.store(Access(keys, i.index), Literal(0, F32))
    verify_kernel(b.kernel())
    with b.w.loop(Var("j", 11), 0, Bound(length, Index((), 0), None, 11)) as loop:
        b.w.store(Access(keys, loop.var.index), Literal(0, F32))
    wrong(b.kernel(), "elements 0..10 of keys are written, of 10 that it has")


def test_the_message_names_the_statement_and_asks_for_a_report() -> None:
    b = Bench()
    b.store(Index((), 100), b.load(Index((), 3)))
    with pytest.raises(CompilerBug) as error:
        verify_kernel(b.kernel())
    assert "in k, `y[100] = v;`" in str(error.value)
    assert "please report it" in str(error.value)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("target", [Target(), GPU])
def test_kernels_are_verified_when_checks_are_on(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Kernel] = []
    monkeypatch.setattr("tracegrad.codegen.lower.group_kernels.verify_kernel", seen.append)
    traced = tg.trace(lambda x: (x.exp().sum(1), x.cumsum(0)))
    traced(tg.zeros(30, 40))
    compile_graph(executable_graph(traced._seen().program.graph), target)
    assert len(seen) >= 2


@pytest.mark.usefixtures("on_numpy")
def test_lanes_stay_within_the_multiple_that_a_vector_begins_at() -> None:
    """Of x[1::2], twice: `(i % 16) * 2 + 16` where i is 0 or 16, and 8 lanes of pairs go on from there, is no element behind the last."""
    traced = tg.trace(lambda x: x * 0.5 + x[1::2].repeat(2))
    traced(tg.arange(32, dtype=tg.float32))
    for aligned in (True, False):
        compile_graph(executable_graph(traced._seen().program.graph), Target(simd_bytes=64, registers=32, clang_builtins=aligned))


# -------------------------------------------------------------------------------- a product that is right but for one of its statements


def blocks(kernel: Kernel) -> list[Block]:
    """All blocks of a kernel, outer ones first."""
    found = [kernel.body]
    for block in found:
        found += [item for item in block.items if isinstance(item, Block)]
    return found


def without_test(kernel: Kernel, about: str) -> None:
    """What is done only where `about` holds is always done."""
    for block in blocks(kernel):
        if isinstance(block, If) and about in str(block.condition):
            block.condition, block.parts = None, ()


def index_changed(kernel: Kernel, name: str, change: Callable[[Index], Index]) -> None:
    """The variables called so have other values."""
    for s in kernel.statements():
        if isinstance(s, Declare) and isinstance(s.symbol, Var) and s.symbol.name == name and s.bound is not None:
            assert s.bound.high is not None
            new = change(s.bound.high)
            s.symbol.hi, s.value, s.bound = max(s.symbol.hi, new.hi), At(new), Bound(At(new), new, new)


def moved(access: Access, by: int) -> None:
    access.at = None if access.at is None else access.at + by


def one_row_of_the_block_less(kernel: Kernel) -> None:
    array = next(s.array for s in kernel.statements() if isinstance(s, Allocate) and s.array.name == "a_block")
    array.size -= 5                                          # four are behind the last line


def a_barrier_where_few_come(kernel: Kernel) -> None:
    next(b for b in blocks(kernel) if isinstance(b, If) and "y == 0" in str(b.condition)).items.append(Barrier())


def a_row_too_far(kernel: Kernel) -> None:
    for s in kernel.statements():
        if isinstance(s, Store) and s.access.memory.name == "matmul":
            moved(s.access, 1)


BLOCKS: tuple[tuple[int, ...], tuple[int, ...]] = ((40, 20), (20, 36))
FEW: tuple[tuple[int, ...], tuple[int, ...]] = ((3, 64), (64, 32))


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(("shapes", "mutate", "message"), [
    (BLOCKS, lambda k: without_test(k, "i1 < 40 && k < 20"), "of a are read|elements .* of a"),
    (BLOCKS, lambda k: without_test(k, "i < 40 && j < 36"), "of matmul are written|two work-items may meet"),
    (BLOCKS, lambda k: without_test(k, "step + 1 <"), "is taken to be in|are read"),
    (BLOCKS, one_row_of_the_block_less, "of a_block are"),
    (BLOCKS, lambda k: index_changed(k, "i", lambda x: Index(x.terms[1:], 0)), "several work-items write the same|may meet"),
    (BLOCKS, lambda k: index_changed(k, "j", lambda x: Index(tuple((a, min(c, 8)) for a, c in x.terms), 0)), "two work-items may meet"),
    (BLOCKS, a_row_too_far, "of matmul are written"),
    (FEW, lambda k: without_test(k, "y == 0"), "several work-items write the same"),
    (((3, 64), (64, 50)), lambda k: without_test(k, "j < 50"), "are read|are written"),
    (FEW, a_barrier_where_few_come, "not all items of the work-group come to this barrier"),
])
def test_what_is_wrong_with_a_product(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], mutate: Callable[[Kernel], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of a tile program with one thing changed: what it reads and writes, who does, and who comes to a barrier, is proved."""
    seen: list[Kernel] = []
    monkeypatch.setattr("tracegrad.codegen.lower.group_kernels.verify_kernel", seen.append)
    traced = tg.trace(lambda a, b: a @ b)
    traced(*[tg.zeros(*shape) for shape in shapes])
    compile_graph(executable_graph(traced._seen().program.graph), GPU)
    kernel, = seen
    verify_kernel(kernel)
    mutate(kernel)
    wrong(kernel, message)


@pytest.mark.parametrize("sign", ["<", "<="])
def test_a_condition_tells_which_items_come_in(sign: str) -> None:
    """One item where `i < 1` of an index that is a sum; two where `i <= 1`."""
    b = Bench()
    row, item = b.w.item("row", 10, 0, "group"), b.w.item("item", 8, 0, "local")
    trip = Var("iteration", 3)
    with b.w.loop(trip, 0, 3):
        at = b.w.indexed("at", trip.index * 8 + item.index)
        with b.w.branch(Infix(sign, b.w.at(at), 1)):
            b.store(row.index, Literal(1.0, F32))
    if sign == "<":
        verify_kernel(b.kernel((80,), (8,)))
    else:
        wrong(b.kernel((80,), (8,)), "several work-items write the same element of y")


# --------------------------------------------------------------------------------- loops whose ends only the running program knows


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_condition_says_holds_until_the_variable_changes(when: str) -> None:
    b = Bench()
    at = b.w.variable("at", 200, 0)
    with b.w.repeat(Infix("<", at, 100)):
        if when == "before":
            b.w.update(at, "+", 1)
        b.store(at.index, b.load(constant(3)))
        if when == "after":
            b.w.update(at, "+", 1)
    if when == "before":
        wrong(b.kernel(), "elements 0..199 of y are written")
    else:
        verify_kernel(b.kernel())


@pytest.mark.parametrize("inside", [False, True])
def test_what_is_known_in_front_of_a_loop_is_not_known_in_its_second_iteration(inside: bool) -> None:
    b = Bench()
    at, n = b.w.variable("at", 200, 0), b.w.variable("n", 10, 9)
    with b.w.branch(Infix("<", at, 100)), b.w.repeat(Infix(">", n, 0)):
        b.store(at.index, b.load(constant(3)))
        b.w.update(at if inside else n, "-", 1)
    if inside:
        wrong(b.kernel(), "elements 0..199 of y are written")
    else:
        verify_kernel(b.kernel())


@pytest.mark.parametrize(("sign", "fails"), [("&&", False), ("||", True)])
def test_c_looks_at_the_second_condition_only_where_the_first_holds(sign: str, fails: bool) -> None:
    b = Bench()
    at = b.w.variable("at", 200, 0)
    above = Infix(">", element(b.x, at), Literal(0.5, F32))
    with b.w.repeat(Infix(sign, Infix("<", at, 100), above)):
        b.w.update(at, "+", 1)
    if fails:
        wrong(b.kernel(), "elements 100..199 of x are read")
    else:
        verify_kernel(b.kernel())
    chosen = Select(Infix(">=" if fails else "<", at, 100), element(b.x, at), Literal(0.0, F32))
    b = Bench()
    b.w.add(Declare(at, "int", number(7)))
    b.w.declare("v", Select(chosen.parts[0], Load(Access(b.x, at.index), F32), chosen.parts[2]))
    if fails:
        wrong(b.kernel(), "elements 100..199 of x are read")
    else:
        verify_kernel(b.kernel())


def test_elements_that_only_the_running_program_knows() -> None:
    """Nothing is proved of them but what computes their place: that is declared."""
    b = Bench()
    at = b.w.variable("at", 200, 0)
    b.w.store(place(b.y, b.w.at(at)), element(b.x, Infix("*", at, 2)))
    verify_kernel(b.kernel())
    b.w.store(place(b.y, Infix("+", Mutable("other", 5), 1)), Literal(1.0, F32))
    wrong(b.kernel(), "other is used before it is declared")
    b = Bench()
    b.w.store(place(b.x, b.w.at(constant(0))), Literal(1.0, F32))
    wrong(b.kernel(), "x is const")


@pytest.mark.parametrize(("base", "size", "at", "message"), [
    (10, 20, 19, ""), (10, 20, 20, "elements 20..20 of p are written, of 20"), (90, 20, 19, "elements 109..109 of y are written, of 100"),
])
def test_pointers(base: int, size: int, at: int, message: str) -> None:
    b = Bench()
    pointer = b.w.pointer("p", b.y, (), constant(base), size)
    b.w.store(place(pointer, at), Literal(1.0, F32))
    if message:
        wrong(b.kernel(), message)
    else:
        verify_kernel(b.kernel())


def test_a_pointer_to_something_else() -> None:
    b = Bench()
    z = b.w.buffer(Temp("z", 0, 100, F32), "z", F32, "out")
    p, q = b.w.pointer("p", b.y, (z,), constant(0), 100), b.w.pointer("q", b.y, (), constant(0), 100)
    b.w.assign(p, q)
    verify_kernel(b.kernel())
    b.w.assign(q, p)
    wrong(b.kernel(), "p is not what q may point to")


def test_leaving_a_loop() -> None:
    b = Bench()
    with b.w.repeat(Infix("<", number(0), 1)):
        b.w.leave()
    verify_kernel(b.kernel())
    b.w.leave()
    wrong(b.kernel(), "no loop is around it")


@pytest.mark.parametrize("what", ["a condition that differs", "what differs in the iteration before", "left from the middle", "all alike"])
def test_barriers_in_loops(what: str) -> None:
    b = Bench()
    item = b.w.item("item", 64, 0, "local")
    b.w.item("i", 64, 0)
    n, more = b.w.variable("n", 100, 9), b.w.variable("more", 100, 1)
    with b.w.repeat(Infix("<", item if what == "a condition that differs" else n, 50)):
        b.w.barrier()
        b.w.update(n, "+", more)
        if what == "what differs in the iteration before":
            b.w.update(more, "+", item)
        if what == "left from the middle":
            with b.w.branch(Infix("<", item, 5)):
                b.w.leave()
    if what == "all alike":
        verify_kernel(b.kernel((64,), (64,)))
    else:
        wrong(b.kernel((64,), (64,)), "is left from the middle" if "middle" in what else "not all items of the work-group come to this")


def test_updates_are_of_what_is_there() -> None:
    b = Bench(access="inout")
    b.w.update(place(b.y, 99), "+", Literal(1.0, F32))
    verify_kernel(b.kernel())
    b.w.update(place(b.y, 100), "+", Literal(1.0, F32))
    wrong(b.kernel(), "elements 100..100 of y are")
    b = Bench()
    b.w.update(place(b.x, 0), "+", Literal(1.0, F32))
    wrong(b.kernel(), "x is const")


def test_the_text_of_loops() -> None:
    b = Bench(access="inout")
    size, n = Mutable("size", 65), b.w.variable("n", 9, 0)
    with b.w.counting(size, 2, Infix("<=", size, 64), "*", 2):
        with b.w.branch(Infix("==", size, 8)):
            b.w.leave()
        with b.w.otherwise():
            b.w.update(n, "+", 1)
        b.w.update(place(b.y, n), "+", element(b.x, n))
    with b.w.repeat(Infix(">", n, 0)):
        b.w.assign(n, n.index - 2)
    assert b.kernel().lines == [
        "  int n = 0;", "  for (int size = 2; size <= 64; size *= 2) {", "    if (size == 8)", "      break;", "    else", "      n++;",
        "    y[n] += x[n];", "  }", "  while (n > 0)", "    n = n - 2;"]


# ------------------------------------------------------------------------------------------------------------------------- atomics


def counted(dtype: str = "int32", read: bool = False, at: int = 7) -> Kernel:
    """Work-items that count together in one element of a buffer."""
    b, dtype_ = Bench(), np.dtype(dtype)
    counts = b.w.buffer(Temp("counts", 0, 8, dtype_), "counts", dtype_, "inout")
    b.w.item("i", 100, 0)
    b.w.atomic(place(counts, constant(at)), "add", Literal(1, dtype_))
    if read:
        b.w.declare("v", element(counts, constant(0)))
    return b.kernel((100,), (10,))


def test_items_may_meet_at_what_atomics_change():
    verify_kernel(counted())
    verify_kernel(counted("uint64"))
    wrong(counted(read=True), "counts is changed by atomics, and read or written otherwise")
    wrong(counted(at=8), "elements 8..8 of counts are written, of 8 that it has")
    wrong(counted("float32"), "counts does not have integers of 32 or 64 bits")
    b = Bench()
    b.w.item("i", 100, 0)
    b.w.atomic(place(b.w.buffer(Temp("counts", 0, 8, np.dtype(np.int64)), "counts", np.dtype(np.int64), "inout"), ZERO), "add", number(1))
    wrong(b.kernel((100,), (10,)), "1 is int, not long")
