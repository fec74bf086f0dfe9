"""Matrix products on CPUs as tile programs: shapes, layouts, fused loads and epilogues, for several targets, run without a driver."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import CPU, Checked
from tests.helpers.marks import one_of
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.evaluator import Evaluator
from tracegrad.codegen.kernel.index.index import ZERO, Var, constant
from tracegrad.codegen.kernel.ir.expressions import Infix, Load, Local
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import (
    Access,
    Assign,
    Block,
    Bound,
    Declare,
    Repeat,
    Store,
    statements_in,
)
from tracegrad.codegen.kernel.run import run_plan
from tracegrad.codegen.kernel.statement_passes import round_once
from tracegrad.codegen.kernel.verify import verify_kernel
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.matmul import cpu
from tracegrad.codegen.planning import assemble
from tracegrad.errors import CompilerBug
from tracegrad.execute.compile import executable_graph
from tracegrad.support.dtypes import float16, float32
from tracegrad.support.plan import Plan, Target
from tracegrad.support.tuning import Tuning, tuned

AVX512 = replace(CPU, simd_bytes=64, registers=32)
SSE = replace(CPU, simd_bytes=16, cores=16, clang_builtins=False)
RNG = np.random.default_rng(0)
SHAPES = [
    (1, 1, 1, 1), (1, 7, 3, 5), (1, 6, 16, 8), (1, 13, 37, 41), (1, 64, 10, 100), (1, 1, 50, 70), (1, 50, 1, 70), (1, 3, 4, 0),
    (3, 9, 11, 13), (2, 33, 2, 40), (1, 5, 40, 300), (1, 100, 70, 3), (4, 1, 1, 33), (1, 8, 8, 700), (2, 20, 24, 300), (0, 3, 4, 5),
]
LAYOUTS = [("a", "b"), ("a", "t"), ("t", "b"), ("t", "t"), ("f", "f"), ("a", "1t"), ("f", "1")]


def operand(how: str, *shape: int, dtype: str = "float32") -> tuple[Any, Any]:
    """A (batch, rows, columns) matrix, and what a program makes of it: transposed, broadcast over the batch, or computed."""
    batch, rows, columns = shape
    shape = (1 if "1" in how else batch, *((columns, rows) if "t" in how else (rows, columns)))
    x = tg.tensor((RNG.integers(-9, 9, shape) + (RNG.random(shape) if "float" in dtype else 0)).astype(dtype))

    def read(x: Any) -> Any:
        x = x.mT if "t" in how else x
        x = x * 2 + 1 if "f" in how else x
        return x.expand(batch, rows, columns) if "1" in how else x

    return x, read


def plan_of(fn: Any, *given: Any, target: Target = CPU) -> Plan:
    traced = tg.trace(fn)
    traced(*given)
    return compile_graph(executable_graph(traced._seen().program.graph), target)


@one_of(
    3, ("target", "dtype", "every"),
    [(CPU, "float32", 1), (CPU, "float64", 3), (CPU, "int32", 3), (CPU, "float16", 3), (AVX512, "float32", 2), (SSE, "float32", 3)],
    ids=["avx2", "avx2_double", "avx2_int", "avx2_half", "avx512", "sse"],
)
@pytest.mark.usefixtures("on_numpy")
def test_products_of_every_shape_and_layout(target: Target, dtype: str, every: int) -> None:
    with Checked({"cpu": target}, slack=3.0) as checked:
        for number, (batch, m, n, k) in list(enumerate(SHAPES))[::every]:
            for how in (LAYOUTS[number % 7], LAYOUTS[(number + 2) % 7]):
                (a, read_a), (b, read_b) = operand(how[0], batch, m, k, dtype=dtype), operand(how[1], batch, k, n, dtype=dtype)
                tg.trace(lambda a, b, x=read_a, y=read_b: x(a) @ y(b))(a, b)
    assert checked.count > len(SHAPES) // every


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("target", [CPU, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("written_out", [0, 48])
def test_what_becomes_of_a_product(target: Target, written_out: int) -> None:
    """Each element once, tiles that begin early included: an update in place would show it. Several results; results of other layouts."""
    epilogues: list[Any] = [
        lambda y, w, v: w.add_(y), lambda y, w, v: tg.relu(y + v) * w, lambda y, w, v: (y * 2, y.mT.contiguous()),
        lambda y, w, v: (y, y.half() + w.half()), lambda y, w, v: y > w, lambda y, w, v: tg.nn.functional.pad(y, (0, 3)),
    ]
    with Checked({"cpu": target}, slack=3.0, tuning=Tuning(written_out=written_out)) as checked:
        for m, n, k in [(13, 37, 20), (50, 3, 9), (9, 6, 70), (1, 40, 5)]:
            for epilogue in epilogues:
                (a, read_a), (b, read_b) = operand("a", 1, m, k), operand("t" if k == 70 else "f", 1, k, n)
                w, v = operand("a", 1, m, n)[0], tg.tensor(RNG.random(n).astype(np.float32))
                tg.trace(lambda a, b, w, v, f=epilogue, x=read_a, y=read_b: f(x(a) @ y(b), w, v))(a, b, w, v)
    assert checked.count == 24


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(("target", "dtype"), [(CPU, "float32"), (AVX512, "float64")], ids=["avx2", "avx512_double"])
def test_lines_along_k_are_transposed_into_panels(target: Target, dtype: str) -> None:
    """Lines and k below, at and above a block that is transposed, and several, with a rest and without; k in one part, and in many."""
    target = replace(target, l2_bytes=1 << 10)
    for batch, m, n, k in [(1, 150, 7, 13), (3, 129, 33, 65), (2, 130, 16, 16)]:
        (a, _), (b, read) = operand("a", batch, m, k, dtype=dtype), operand("t", batch, k, n, dtype=dtype)
        with Checked({"cpu": target}, slack=3.0, tuning=Tuning(pack_items=64)):
            tg.trace(lambda a, b, y=read: a @ y(b))(a, b)
        with tuned(Tuning(pack_items=64)):
            assert "transposed at a time" in plan_of(lambda a, b, y=read: a @ y(b), a, b, target=target).source


@pytest.mark.usefixtures("on_numpy")
def test_long_rows_of_a_short_k_are_written_row_by_row() -> None:
    """Down a column each row is another page: so tiles lie along rows where the result is most of the traffic."""
    def inner(n: int, k: int) -> str:
        (a, _), (b, read) = operand("a", 1, 300, k), operand("t", 1, k, n)
        kernel = plan_of(lambda a, b: a @ read(b), a, b, target=replace(CPU, cores=1)).source.rpartition("__kernel")[2]
        return "ij"[kernel.index("for (int j_tile") > kernel.index("for (int i_tile")]

    assert [inner(n, k) for n, k in ((900, 8), (900, 3), (900, 20), (400, 8))] == ["j", "j", "i", "i"]
    for batch, m, n, k in [(1, 40, 70, 5), (2, 33, 17, 9), (1, 50, 3, 9)]:
        (a, read_a), (b, read_b) = operand("f", batch, m, k), operand("t", batch, k, n)
        with Checked({"cpu": replace(CPU, cores=1)}, slack=3.0, tuning=Tuning(written_along=0)):
            tg.trace(lambda a, b, x=read_a, y=read_b: tg.tanh(x(a) @ y(b)))(a, b)


@pytest.mark.usefixtures("on_numpy")
@one_of(2, "dtype", ["float32", "float64"])
def test_a_product_beyond_the_second_cache_has_its_k_in_blocks(dtype: str) -> None:
    """k below, at and above a block and two, whole and with a rest, in all layouts."""
    target, tuning, blocked = replace(CPU, l2_bytes=8 << 10), Tuning(panel_bytes=4 << 10), []
    for number, (batch, m, n, k) in enumerate([(1, 97, 300, 20), (1, 97, 90, 65), (2, 100, 64, 129), (1, 96, 33, 200), (1, 129, 7, 100)]):
        (a, x), (b, y) = (operand(how, batch, *shape, dtype=dtype) for how, shape in zip(LAYOUTS[number], ((m, k), (k, n)), strict=True))
        with Checked({"cpu": target}, slack=3.0, tuning=tuning):
            tg.trace(lambda a, b, x=x, y=y: tg.tanh(x(a) @ y(b) * 0.01))(a, b)
        with tuned(tuning):
            plan = plan_of(lambda a, b, x=x, y=y: x(a) @ y(b), a, b, target=target)
        blocked.append(" of k after " in plan.source)
    assert {True, False} <= set(blocked), blocked


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("target", [CPU, pytest.param(AVX512, marks=pytest.mark.long), pytest.param(SSE, marks=pytest.mark.long)])
def test_long_sums_are_cut_so_that_a_part_of_all_rows_is_in_the_cache(target: Target) -> None:
    """k on both sides of four parts, m and n on both sides of many tiles; vectors (None: cut where the matrix lies across k)."""
    target = replace(target, l2_bytes=1 << 10, cores=1)
    shapes = {(1, 32, 48, 511): False, (1, 32, 48, 512): True, (1, 13, 37, 1000): True, (1, 12, 12, 515): True, (1, 11, 12, 515): False,
              (1, 1, 90, 600): None, (1, 90, 1, 600): None, (2, 7, 65, 777): True}
    for number, ((batch, m, n, k), cut) in enumerate(shapes.items()):
        for how in {("t", "b"), [("a", "b"), ("a", "t"), ("f", "f"), ("t", "t"), ("f", "1")][number % 5]}:
            (a, x), (b, y) = operand(how[0], batch, m, k), operand(how[1], batch, k, n)
            with Checked({"cpu": target}, slack=5.0):
                tg.trace(lambda a, b, x=x, y=y: x(a) @ y(b))(a, b)
            across = how[1] == "b" if m == 1 else how[0] == "t"
            text = plan_of(lambda a, b, x=x, y=y: x(a) @ y(b), a, b, target=target).source
            assert ("_total(" in text) == (across if cut is None else cut), (number, how)


@pytest.mark.usefixtures("on_numpy")
def test_partial_results_of_few_columns_are_vectors_too() -> None:
    """What turned products leave lies as it is computed. A long row of it is several work-items' to add up; of a short one one does all."""
    target, pieces = replace(CPU, l2_bytes=1 << 10, cores=1), []
    with Checked({"cpu": target}, slack=5.0) as checked:
        for m, n, items in [(90, 1, 4096), (90, 1, 64), (300, 1, 64), (130, 3, 64)]:
            (a, x), (b, y) = operand("t", 1, m, 600), operand("a", 1, 600, n)
            with tuned(Tuning(pack_items=items)):
                tg.trace(lambda a, b, x=x, y=y: x(a) @ y(b))(a, b)
                plan = plan_of(lambda a, b, x=x, y=y: x(a) @ y(b), a, b, target=target)
            product, total = plan.source.split("__kernel")[1:3]
            assert product.count("STORE(float8, partial") > product.count("partial[part"), product
            assert "LOAD(float8, partial" in total, total
            pieces.append(plan.launches[-1].global_size[2])
    assert checked.count == 8
    assert pieces == [1, 12, 38, 17]


@pytest.mark.usefixtures("on_numpy")
@one_of(2, ("target", "dtype"), [(AVX512, "float32"), (CPU, "float64"), (SSE, "float32"), (AVX512, "float64")])
def test_rows_times_a_vector_are_vectors_of_sums(target: Target, dtype: str) -> None:
    """Rows below, at and above a vector of them; k with a rest, added once, beside infinities too; what lies well is not packed."""
    with Checked({"cpu": target}, slack=3.0) as checked:
        for m, k in [(1000, 20), (3, 16), (16, 17), (37, 31), (40, 300), (1, 50)]:
            for how in ("a", "f"):
                (a, _), (b, y) = operand("a", 1, m, k, dtype=dtype), operand(how, 1, k, 1, dtype=dtype)
                tg.trace(lambda a, b, y=y: tg.tanh(a @ y(b)) * 2)(a, b)
    assert checked.count == 12
    a, b = (operand("a", 1, *shape, dtype=dtype)[0] for shape in ((1000, 20), (20, 1)))
    plan = plan_of(lambda a, b: tg.tanh(a @ b), a, b, target=target)
    assert len(plan.launches) == 1
    assert re.search(r"STORE\((float|double)\d+, ", plan.source)
    a[0, 5, 4], a[0, 6, 19] = np.inf, -np.inf
    found = run_plan(plan_of(lambda a, b: a @ b, a, b + 10, target=target), [a.numpy(), (b + 10).numpy()])[0]
    np.testing.assert_allclose(found, a.numpy() @ (b + 10).numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("on_numpy")
@one_of(2, ("target", "dtype"), [(AVX512, "float32"), (CPU, "float32"), (AVX512, "float64")])
def test_rows_times_few_columns_are_vectors_of_sums(target: Target, dtype: str) -> None:
    """The columns are packed, as lines along k; the rows are read where they lie."""
    width = target.simd_bytes // np.dtype(dtype).itemsize
    with Checked({"cpu": target}, slack=3.0) as checked:
        for batch, m, n, k in [(1, 40, 2, 64), (1, 50, width - 1, 97), (3, 37, 2, 66), (2, width, width // 2, 400)]:
            for how in ("b", "f"):
                (a, _), (b, y) = operand("a", batch, m, k, dtype=dtype), operand(how, batch, k, n, dtype=dtype)
                tg.trace(lambda a, b, y=y: tg.relu(a @ y(b)) * 2)(a, b)
    assert checked.count == 8
    a, b = (operand("a", 1, *shape, dtype=dtype)[0] for shape in ((100, 128), (128, width - 1)))
    source = plan_of(lambda a, b: a @ b, a, b, target=target).source
    assert "pack_b(" in source
    assert "pack_a(" not in source
    assert "dot products at a time" in source
    a[0, 5, 4] = np.inf
    found = run_plan(plan_of(lambda a, b: a @ b, a, b, target=target), [a.numpy(), b.numpy()])[0]
    with np.errstate(invalid="ignore"):                      # some of OpenBLAS's kernels multiply what pads a row
        want = a.numpy() @ b.numpy()
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("on_numpy")
def test_a_product_is_statements_that_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store beyond the end is found, and one of what the neighbouring tile stores."""
    seen: list[Kernel] = []
    finish = assemble.assemble

    def look(graph: Any, steps: Any, *rest: Any) -> Any:
        seen.extend(step for step in steps if isinstance(step, Kernel))
        return finish(graph, steps, *rest)

    monkeypatch.setattr("tracegrad.codegen.compiler.assemble", look)
    (a, x), (b, y) = operand("a", 1, 131, 100), operand("f", 1, 100, 37)
    plan_of(lambda a, b: tg.relu(x(a) @ y(b)), a, b, target=replace(CPU, cores=64))
    kernel = next(k for k in seen if not k.entry.endswith("_pack_b") and "product" in k.comment)
    found = list(statements_in(kernel.body))
    verify_kernel(kernel)
    store = next(s for s in found if isinstance(s, Store) and s.access.memory in kernel.parameters)
    right = store.access.at
    assert right is not None
    store.access.at = right + 131 * 37
    with pytest.raises(CompilerBug, match="that it has"):
        verify_kernel(kernel)
    store.access.at = right
    start = next(s for s in found if isinstance(s, Declare) and re.fullmatch("i", s.symbol.name))
    assert start.bound is not None
    start.bound = Bound(start.bound.value, start.bound.low, start.bound.high, start.bound.limit - 3 if start.bound.limit else None)
    with pytest.raises(CompilerBug, match="two work-items may meet"):      # the last tile begins so early that it stores the neighbour's
        verify_kernel(kernel)


def test_a_branch_is_not_parted_from_the_one_before_it() -> None:
    """What does not depend on the second branch is computed in front of both."""
    w = Writer(CPU, lambda node: "")
    out = w.buffer(Temp("out", 0, 4, float32), "out", float32, "out")
    n = w.item("n", 4, 0)
    with w.branch(Infix("<", n, 2)):
        w.store(Access(out, n.index), Local("x", float32))
    with w.otherwise():
        x = w.declare("x", Load(Access(out, constant(0)), float32), depth=0)
        w.store(Access(out, n.index), x)
    assert [type(item).__name__ for item in w.blocks[0].items] == ["Item", "Declare", "If", "If"]


def test_what_is_rounded_in_the_head_of_a_loop_is_read_there() -> None:
    """A half that a `Repeat` reads in its head and that is stored, too: it is rounded, as the loop reads it. Nobody else: it is not."""
    def written(read: bool) -> str:
        w = Writer(CPU, lambda node: "")
        out = w.buffer(Temp("out", 0, 4, float16), "out", float16, "out")
        n = w.item("n", 4, 0)
        x = w.declare("x", cpu_rounded(w))
        with w.repeat(Infix("<", x, 2)) if read else w.block(Block("{")):
            y = w.declare("y", cpu_rounded(w))
            w.store(Access(out, n.index), y)
            w.leave() if read else None
        w.store(Access(out, n.index), x)
        round_once(w)
        return Kernel("k", tuple(w.params.values()), w.blocks[0], (4,), None).text

    assert written(True).count("tg_to_half") == 1
    assert written(False).count("tg_to_half") == 0


def cpu_rounded(w: Writer) -> Any:
    return Evaluator(w, lambda node: None, {}).rounded(Local("given", float32), float16)


def test_one_walk_finds_the_statements_of_heads_too() -> None:
    w = Writer(CPU, lambda node: "")
    var = Var("i", 8)
    with w.block(Repeat(Infix("<", var, 8), Declare(var, "int", w.at(ZERO)), Assign(var, w.at(var.index + 1)))):
        w.leave()
    assert [type(s).__name__ for s in statements_in(w.blocks[0])] == ["Declare", "Break", "Assign"]


def test_an_early_tile_is_apart_from_its_neighbour_only_where_it_says_so() -> None:
    """Tiles of 4 of 10 elements, the last at 6: all four stored by each is an error; its first two only where it does not begin early is
    none."""
    def kernel(skip: bool) -> Kernel:
        w = Writer(CPU, lambda node: "")
        out = w.buffer(Temp("out", 0, 10, float32), "out", float32, "out")
        tile = w.item("tile", 3, 0)
        right, start = tile.index * 4, Var("i", 7)
        w.add(Declare(start, "const int", w.least(right, 6), bound=Bound(w.at(right), ZERO, right, 6)))
        w.bind(start)
        for n in range(4):
            if skip and n < 2:
                with w.branch(Infix("==", w.at(start), w.at(right))):
                    w.store(Access(out, start.index + n), Local("x", float32))
            else:
                w.store(Access(out, start.index + n), Local("x", float32))
        for s in list(statements_in(w.blocks[0])):
            if isinstance(s, Store):
                s.value = w.at(ZERO)
        return Kernel("k", tuple(w.params.values()), w.blocks[0], (3,), None)

    verify_kernel(kernel(True))
    with pytest.raises(CompilerBug, match="may meet"):
        verify_kernel(kernel(False))


def test_a_direct_product_is_one_kernel() -> None:
    (a, x), (b, y) = operand("a", 1, 64, 64), operand("a", 1, 64, 64)
    plan = plan_of(lambda a, b: x(a) @ y(b), a, b)
    assert len(plan.launches) == 1
    assert cpu.ALONE == plan.launches[0].local_size


GPU = Target("gpu", 16, 16, 4, 256, 32768, plain_math=False, clang_builtins=False)


def middle(spec: str, sizes: dict[str, int], dtype: str = "float64") -> tuple[Any, list[Any]]:
    """An einsum, and tensors for it."""
    given = [tg.tensor(RNG.standard_normal([sizes[c] for c in names]).astype(dtype)) for names in spec.split("->")[0].split(",")]
    return lambda *a: tg.einsum(spec, *a), given


def test_a_batch_in_the_middle_is_a_stride() -> None:
    """No kernel but the product moves anything; only matrices whose vectors lie the other way are packed."""
    sizes = dict(k=30, n=100, i=20, j=20)
    for spec, count in (("kij,nkj->nki", 2), ("kij,nki->nkj", 1), ("nki,nkj->kij", 1)):
        f, given = middle(spec, sizes)
        plan = plan_of(f, *given)
        assert len(plan.launches) == count
        assert not any("copies" in step.note or step.entry == "permute" for step in plan.launches)
        assert all("packs b" in step.note for step in plan.launches[:-1])
    f, given = middle("kij,nkj->nki", sizes)
    product = plan_of(lambda *a: f(*a) * 2 + 1, *given).launches[-1]
    assert {name for name, *_ in product.fused} >= {"matmul", "mul", "add"}           # what follows is at the permuted place
    assert product.global_size[2] == 1                       # an item does all products of its rows, in the order in which they lie


@pytest.mark.long
@pytest.mark.parametrize("target", [CPU, SSE, GPU], ids=["avx2", "sse", "gpu"])
@pytest.mark.usefixtures("on_numpy")
def test_products_whose_batch_lies_in_the_middle(target: Target) -> None:
    with Checked({target.kind: target}, slack=3.0) as checked:
        for n, sizes in enumerate((dict(k=5, n=13, i=4, j=6, l=2), dict(k=3, n=20, i=9, j=8, l=3), dict(k=7, n=2, i=1, j=3, l=2))):
            for dtype in ("float32", "float64", "int64")[n:n + 1]:
                for spec in ("kij,nkj->nki", "kij,nki->nkj", "kij,nkj->kni", "kij,knj->nki", "kij,nkj->kin", "lkij,nlkj->nlki",
                             "lkij,nlkj->lnki", "lkij,nlkj->nkli"):
                    f, given = middle(spec, sizes, dtype)
                    beside = tg.tensor(RNG.integers(0, 9, f(*given).shape).astype(dtype))
                    run_all(f, beside, given)
    assert checked.count >= 80


def run_all(f: Any, beside: Any, given: list[Any]) -> None:
    """What may become of a product: nothing, a computation beside it, a reduction, a turned copy, a gradient."""
    tg.trace(f)(*given)
    tg.trace(lambda *a: (f(*a) * beside + 1, f(*a)))(*given)
    tg.trace(lambda *a: (f(*a) + f(*a).sum(0), (f(*a) + 1).flip(0)))(*given)
    if beside.dtype.kind == "f":
        tg.trace(tg.grad(lambda *a: (f(*a) ** 2 * beside).sum(), (0, 1)))(*given)


@pytest.mark.usefixtures("on_numpy")
def test_a_permuted_product_in_place_of_what_it_reads() -> None:
    """A result that lies elsewhere than the product's does not replace what another item still reads."""
    f, given = middle("kij,nkj->nki", dict(k=5, n=13, i=8, j=8))
    with Checked({"cpu": CPU, "gpu": GPU}, slack=3.0) as checked:
        @tg.trace
        def step(x: Any, m: Any, p: Any) -> Any:
            x += f(m, p)
            return x.sum()

        step(tg.zeros(13, 5, 8, dtype=tg.float64), *given)
    assert checked.count
