"""The kinds of groups: what each accepts, where it stands then, and for every reason why not a program that `explain()` gives it for."""

import re
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad import ops  # noqa: F401
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.ir.expressions import Access, Infix, Literal
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.run import run_plan
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.serial import KernelBuilder
from tracegrad.codegen.lowering_table import LOWERINGS, lowering
from tracegrad.codegen.schedule.grouping import (
    Accepted,
    Chunks,
    Columns,
    Flat,
    Fusion,
    Granularity,
    Group,
    Kind,
    NotFused,
    Rows,
    TemplateGroup,
    kind_of,
)
from tracegrad.config import config
from tracegrad.errors import CompilerBug
from tracegrad.execute.compile import executable_graph
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, placeholder
from tracegrad.support.plan import Plan, Target
from tracegrad.support.tuning import Tuning, tuned

ROW, CHUNK, ELEMENT = Granularity.ROW, Granularity.CHUNK, Granularity.ELEMENT


def leaf(*shape: int) -> Node:
    return placeholder(Aval(shape, np.dtype("float32")))


def op(name: str, *operands: Any, **attrs: Any) -> Node:
    return bind(REGISTRY[name], operands, attrs)


PRODUCT = kind_of(op("matmul", leaf(30, 40), leaf(40, 20)), Target())
SCAN = kind_of(op("cumsum", leaf(30, 20), dim=1), Target())
FLAT, ROWS, CHUNKS, COLUMNS = Flat(600), Rows(30, 20), Chunks(30, 20, 8), Columns(2, 30, 10, 8)


@pytest.mark.parametrize(("group", "other", "wanted"), [
    (FLAT, Flat(600), (FLAT, ELEMENT)), (FLAT, Flat(30), NotFused.SHAPE), (FLAT, ROWS, (ROWS, ROW)), (FLAT, Rows(30, 21), NotFused.SHAPE),
    (FLAT, CHUNKS, (CHUNKS, CHUNK)), (FLAT, COLUMNS, NotFused.SHAPE), (FLAT, PRODUCT, NotFused.OPERAND),
    (ROWS, Flat(600), (ROWS, ELEMENT)), (ROWS, Flat(30), NotFused.SHAPE), (ROWS, ROWS, (ROWS, ROW)), (ROWS, Rows(20, 30), NotFused.SHAPE),
    (ROWS, CHUNKS, NotFused.SHAPE), (ROWS, COLUMNS, NotFused.SHAPE), (ROWS, SCAN, NotFused.OPERAND),
    (CHUNKS, Flat(600), (CHUNKS, ELEMENT)), (CHUNKS, Flat(30), NotFused.SHAPE), (CHUNKS, ROWS, NotFused.SHAPE),
    (CHUNKS, CHUNKS, (CHUNKS, CHUNK)),
    (CHUNKS, Chunks(30, 20, 9), NotFused.SHAPE), (CHUNKS, COLUMNS, NotFused.SHAPE), (CHUNKS, PRODUCT, NotFused.OPERAND),
    (COLUMNS, Flat(600), (COLUMNS, ELEMENT)), (COLUMNS, Flat(20), NotFused.SHAPE), (COLUMNS, ROWS, NotFused.SHAPE),
    (COLUMNS, CHUNKS, NotFused.SHAPE), (COLUMNS, COLUMNS, (COLUMNS, CHUNK)),
    (COLUMNS, Columns(1, 30, 20, 8), NotFused.SHAPE), (COLUMNS, PRODUCT, NotFused.OPERAND),
    (PRODUCT, Flat(600), (PRODUCT, ELEMENT)), (PRODUCT, Flat(30), NotFused.SHAPE), (PRODUCT, ROWS, NotFused.SHAPE),
    (PRODUCT, CHUNKS, NotFused.SHAPE), (PRODUCT, SCAN, NotFused.OPERAND),
    (SCAN, Flat(600), NotFused.CLOSED), (SCAN, ROWS, NotFused.CLOSED), (SCAN, PRODUCT, NotFused.OPERAND),
])
def test_what_a_kind_accepts(group: Kind, other: Kind, wanted: Any) -> None:
    found = group.accept(other)
    assert found == (Accepted(*wanted) if isinstance(wanted, tuple) else wanted)
    if isinstance(found, Accepted):
        assert found.kind.size == group.size                # a group keeps its domain
        assert found.kind.accept(other) == found            # and takes more of the same


def test_only_rows_take_values_of_rows_and_only_if_they_are_read() -> None:
    assert ROWS.accept(Flat(30), reads_row=True) == Accepted(ROWS, ROW)
    for kind in (FLAT, CHUNKS, COLUMNS, PRODUCT):
        assert kind.accept(Flat(30), reads_row=True) is NotFused.SHAPE
    assert Rows(1, 600).accept(Flat(1), reads_row=True) == Accepted(Rows(1, 600), ROW)
    assert Rows(30, 1).accept(Flat(30), reads_row=True).place is ELEMENT                # as many rows as elements


def test_kinds_of_nodes_alone() -> None:
    x = leaf(30, 40)
    small = leaf(40, 3)
    cases = [
        (op("exp", x), Flat(1200)), (x, Flat(1200)), (op("sum", x, dim=(1,)), Rows(30, 40)),
        (op("sum", small, dim=(1,)), Flat(40)),                  # so few that they are written out
    ]
    for node, kind in cases:
        assert kind_of(node, Target()) == kind
    thin = op("matmul", leaf(64, 40), leaf(40, 3))                                      # three columns do not fill a vector
    assert kind_of(thin, Target()) == TemplateGroup(thin, NotFused.LANES)
    assert kind_of(thin, replace(Target(), kind="gpu")) == TemplateGroup(thin, None)
    assert isinstance(SCAN, TemplateGroup)
    assert SCAN.refuses is NotFused.CLOSED


def test_every_kind_has_a_lowering() -> None:
    assert set(get_args(Kind)) - {TemplateGroup} == {key for key in LOWERINGS if isinstance(key, type)}


def test_a_new_family_of_kernels_is_an_operation_and_a_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule, both targets' lowerings, `explain()`'s reasons and the interpreter of kernels ask for nothing else."""
    class Spread(Primitive):
        """Each element, less the one in front."""
        family, differentiable = "spread", False

        def aval(self, x: Aval) -> Aval: return x
        def numpy(self, x: Any) -> Any: return np.diff(x, prepend=x.dtype.type(0))

    @lowering("spread")
    def lower_spread(group: Group, context: Context) -> list[Kernel]:
        o = KernelBuilder(group, context)
        node, n = o.node, o.node.shape[0]
        last = o.writer.let("last", Literal(0.0, node.dtype), changes=True)
        with o.loop("i", n) as i:
            value = o.writer.let("value", o.ev.value(node.operands[0], i))
            o.writer.store(Access(o.output(), i), Infix("-", value, last), node)
            o.writer.assign(last, value)
        return [o.finish()]

    assert LOWERINGS["spread"] is lower_spread
    try:
        fn = Spread()
        monkeypatch.setattr(Spread, "name", "spread")
        x = leaf(9)
        y = bind(fn, (op("exp", x),), {})
        graph, given = Graph.capture([x], [op("exp", y), op("neg", y)]), np.linspace(-1, 1, 9, dtype=np.float32)
        wanted = np.diff(np.exp(given), prepend=np.float32(0))
        for name in ("avx2", "gpu"):
            plan = compile_graph(graph, TARGETS[name])
            found = run_plan(plan, [given])
            np.testing.assert_allclose(found[0], np.exp(wanted), rtol=1e-5)
            np.testing.assert_allclose(found[1], -wanted, rtol=1e-5, atol=1e-6)
    finally:
        del LOWERINGS["spread"]


# --------------------------------------------------------------------------------------------------------- reasons, in programs


def compiled(fn: Any, shapes: tuple[tuple[int, ...], ...], target: Target) -> Plan:
    traced = tg.trace(fn)
    traced(*(tg.ones(*shape) for shape in shapes))
    return compile_graph(executable_graph(traced._seen().program.graph), target)


def matches(reason: NotFused | Fusion) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", r"[\\w, ]+", re.escape(reason.value)))


M = (30, 40)
PROGRAMS = {
    NotFused.OPERAND: (lambda x: x.exp() @ x.t(), (M,), Tuning()),
    NotFused.CLOSED: (lambda x: x.cumsum(1) * 2, (M,), Tuning()),
    NotFused.LANES: (lambda x, y: (x @ y).exp(), ((64, 40), (40, 3)), Tuning()),
    NotFused.SHAPE: (lambda x: (x.exp(), x.exp().sum(0)), ((300, 40),), Tuning()),
    NotFused.CHUNKS: (lambda x: x.sum(), ((300, 400),), Tuning()),
    NotFused.POSITION: (lambda x: x.exp().t() * x.exp().reshape(40, 30), (M,), Tuning(max_flops=0)),
    NotFused.WAITS: (lambda x: (x.exp(), x.exp() * x.exp().cumsum(1)), (M,), Tuning()),
    NotFused.FUSED: (lambda x, y: (x.exp(), x.exp() + x @ y), (M, (40, 40)), Tuning()),
    NotFused.LENGTH: (lambda x: (x.exp(), (x.exp() + x.sin()).tanh() * 2), (M,), Tuning(max_statements=4, max_flops=0)),
    NotFused.BUFFERS: (lambda x, y, z: (x.exp() * y, x.exp() * z), (M, M, M), Tuning(max_reads=1, max_flops=0)),
    NotFused.RESULT: (lambda x: x.exp(), (M,), Tuning()),
    Fusion.PRODUCER: (lambda x: tg.softmax(x, 1), (M,), Tuning()),
    Fusion.SIBLING: (lambda x: (x.sum(1), x.amax(1)), (M,), Tuning()),
}


@pytest.mark.parametrize("reason", PROGRAMS, ids=lambda r: r.name)
@pytest.mark.parametrize("target", [Target(cores=2), Target("gpu", 16, 16, 4, 256, 32768)], ids=["cpu", "gpu"])
def test_every_reason_is_given(reason: NotFused | Fusion, target: Target, on_numpy: None) -> None:
    if target.kind == "gpu" and reason is NotFused.LANES:
        return                                               # there is no lane: a work-item stores one element
    fn, shapes, tuning = PROGRAMS[reason]
    with tuned(tuning):
        plan = compiled(fn, shapes, target)
    notes = [launch.note for launch in plan.launches]
    assert any(matches(reason).search(note) for note in notes), notes
    known = [matches(r) for r in (*NotFused, *Fusion)]
    for note in notes:                                       # and nothing else is said of where a kernel ends
        said = note.partition("over ")[2].split("; ")[1:]
        assert said
        assert all(any(k.fullmatch(part) for k in known) for part in said if not part.startswith("over ")), note


def test_without_fusion_it_is_that(on_numpy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "fuse", False)
    plan = compiled(lambda x: x.exp() + 1, (M,), Target())
    assert [NotFused.OFF.value in launch.note for launch in plan.launches] == [True, False]


def test_a_group_without_an_anchor_says_so() -> None:
    with pytest.raises(CompilerBug, match=r"exp.*no anchor"):
        Group(FLAT, 0, [op("exp", leaf(3))]).anchor


def test_groups_that_differ_in_a_number_that_is_a_result_are_not_one():
    """A ring buffer whose place wraps: each iteration's place is a constant and returned, and is a number in the kernel of the next."""
    @tg.trace
    def filled(*rows):
        buffer, place, seen = tg.zeros(50, 3), tg.zeros(1, dtype=tg.int64), []
        for row in rows:
            buffer[(place + tg.arange(17)) % 50] = row
            place.copy_((place + 17) % 50)
            seen += [buffer.sum(), place.clone()]
        return buffer, seen

    wanted = np.zeros((50, 3))
    for k in range(5):
        wanted[(17 * k + np.arange(17)) % 50] = k + 1
    buffer, seen = filled(*(tg.full((17, 3), k + 1.0) for k in range(5)))
    np.testing.assert_array_equal(buffer.numpy(), wanted)
    assert [p.item() for p in seen[1::2]] == [17, 34, 1, 18, 35]


def chained(n: int) -> Any:
    """The logarithm of a product of n matrices, each of its own parameter: in the Hessian, a list of n sums of 16 terms."""
    basis = tg.tensor(np.random.default_rng(0).standard_normal((n, 4, 4)) * 0.1)

    def f(h: Any) -> Any:
        m = tg.eye(4, dtype=tg.float64)
        total = tg.zeros((), dtype=tg.float64)
        for i in range(n):
            m = m @ tg.exp(h[i] * basis[i])
            total, m = total + tg.log(m.norm()), m / m.norm()
        return total

    return tg.hessian(f)


@one_of(6, "n", [7, 12, 20], first=1)
def test_a_list_of_long_parts_is_no_long_kernel(n: int, on_numpy: None) -> None:
    """Drivers took minutes to compile one of 2,300 lines: each of its 12 parts was short enough."""
    h = tg.linspace(-0.5, 0.5, n, dtype=tg.float64)
    f = tg.trace(chained(n))
    with Checked({"avx2": TARGETS["avx2"]}, slack=50.0) as checked:
        f(h)
    assert checked.count
    plan = compile_graph(executable_graph(f._seen().program.graph), Target(cores=2))
    assert max(part.count("\n") for part in plan.source.split("__kernel void")) < 4 * Tuning().max_statements
