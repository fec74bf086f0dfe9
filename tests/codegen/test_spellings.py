"""What was slow in one spelling and quick in another: what both are made of, without a device."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import CPU, TARGETS, Checked
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.index.index import Var, bounded, unravel
from tracegrad.execute.compile import executable_graph
from tracegrad.support.plan import Launch, Loop, Plan, Target
from tracegrad.support.tuning import Tuning, tuned

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(0)
AVX512 = replace(CPU, simd_bytes=64, registers=32)


def numbers(*shape: int, dtype: str = "float64") -> Any:
    return tg.tensor(RNG.standard_normal(shape).astype(dtype))


def plan_of(fn: Any, *given: Any, target: Target = AVX512) -> Plan:
    traced = tg.trace(fn)
    traced(*given)
    return compile_graph(executable_graph(traced.graph), target)


def loops_of(text: str) -> list[str]:
    """The bodies of the innermost loops."""
    return re.findall(r"for \([^{}]*\) \{([^{}]*)\}", text)


# ------------------------------------------------------------------------------------------------------------ elements in other places


def test_a_remainder_keeps_the_signs_of_what_it_is_of() -> None:
    """Of rows of 8, mirrored: where it is known that j < 8, 7 - j needs no remainder (as 7 + 7 j it would)."""
    row, j = Var("row", 5), Var("j", 100)
    flat = row.index * 8 + (7 - bounded(j.index, 0, 8))
    assert unravel(flat, (5, 8)) == (row.index, 7 - bounded(j.index, 0, 8))
    assert (flat - 80) % 8 == 7 - bounded(j.index, 0, 8)
    assert str(((row.index * 3 - j.index) % 8).hi) == "7"    # (one that is needed)


@pytest.mark.parametrize(("shape", "width"), [((64, 60), 2), ((64, 48), 8), ((50, 67), 3)])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_with_the_edges_reads_the_inside_as_vectors(mode: str, shape: tuple[int, int], width: int) -> None:
    plan = plan_of(lambda x: tg.nn.functional.pad(x[None, None], (width,) * 4, mode=mode)[0, 0], numbers(*shape, dtype="float32"))
    assert "%" not in plan.source                            # rows are rows, not pieces as wide as the padding
    loops = loops_of(plan.source)
    assert any("STORE(" in body and "GATHER" not in body for body in loops)
    assert "STORE_STRIDED" not in plan.source


@pytest.mark.parametrize("right", [False, True])
def test_a_search_and_what_is_read_there_are_one_kernel(right: bool) -> None:
    """A gather reads its own element of the index, so one is in the kernel of the gather before."""
    def between(places: Any, heights: Any, at: Any) -> Any:
        i = (tg.searchsorted(places, at, right=right) - 1).clamp(0, 298)
        return heights[i] + (at - places[i]) / (places[i + 1] - places[i]) * (heights[i + 1] - heights[i])

    plan = plan_of(between, numbers(300).sort()[0], numbers(300), numbers(5000))
    assert len(plan.launches) == 1
    assert not re.search(r"long\d* where", plan.source)         # places are of 32 bits


def test_computed_indices_are_of_32_bits_where_those_tell_all_rows() -> None:
    def between(image: Any, y: Any, x: Any) -> Any:
        return image[y, x + 1] * 2 - image[y * 2 - 3, x]

    image, y, x = numbers(9, 8), tg.tensor(RNG.integers(0, 6, 50)), tg.tensor(RNG.integers(-8, 7, 50))
    text = plan_of(between, image, y, x).source
    assert re.search(r"int8 \w+ = as_int8\(as_uint8\(", text)
    assert not re.search(r"as_ulong8\(in_range|long8 at", text)
    with Checked() as checked:
        tg.trace(between)(image, y, x)
        tg.trace(tg.grad(lambda image: (between(image, y, x) ** 2).sum()))(image)
    assert checked.count == 2 * len(TARGETS)


# ----------------------------------------------------------------------------------------------------- scans with elementwise bodies


def horner(places: Any, coefficients: Any) -> Any:
    return tg.scan(lambda y, c: (y * places + c, None), tg.zeros_like(places), coefficients)[0]


@pytest.mark.parametrize("n", [5_000, 100_000])
def test_a_block_of_elements_goes_through_all_iterations(n: int) -> None:
    """However many elements there are: one launch, whose items have blocks for a core's first cache, and nothing is copied."""
    plan = plan_of(horner, numbers(n), numbers(12))
    loop = plan.steps[-1]
    assert isinstance(loop, Launch)
    assert "a loop of 12 iterations in one launch" in loop.note
    assert len(plan.launches) == 2                           # zeros, and the loop
    items, = loop.global_size
    assert n > 50_000 or items % AVX512.cores == 0           # so that all cores end together
    assert -(-n // items) * 16 <= Tuning().looped_bytes
    assert not any("both" in p or "ring" in p for p in re.findall(r"\w+", plan.source))


def test_large_rows_are_still_launched_one_by_one() -> None:
    """What an iteration stacks would be written far apart, block by block."""
    plan = plan_of(lambda x: tg.scan(lambda y, _: (y * 0.5, y), x, None, 12)[1], numbers(100_001))
    assert any(isinstance(step, Loop) for step in plan.steps)


def bodies(rng: np.random.Generator, n: int) -> tuple[Any, tuple[Any, ...]]:
    """A scan whose body is random elementwise work: carries that change places, begin at one value, or follow another."""
    count, length = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    kinds = [str(rng.choice(["own", "swap", "follow", "row", "scalar"])) for _ in range(count)]
    turned, stacks, shared = (bool(rng.integers(2)) for _ in range(3))

    def f(x: Any, w: Any, rows: Any, few: Any) -> Any:
        def body(carries: Any, row: Any) -> Any:
            new = []
            for k, kind in enumerate(kinds):
                c, other = carries[k], carries[(k + 1) % count]
                new.append({"own": c * 0.5 + w * 0.1, "swap": other * 1.0, "follow": other, "row": (c * row[0]).sin() + w,
                            "scalar": c * row[1] + other * 0.25}[kind])
            return tuple(new), (new[0] * row[1] if stacks else None)

        init = tuple(x if shared else x * (k + 1.0) for k in range(count))
        last, ys = tg.scan(body, init, (rows, few), reverse=turned)
        return sum((c * (k + 1.0)).sin().sum() for k, c in enumerate(last)) + (0.0 if ys is None else (ys * ys).sum())

    return f, (numbers(n), numbers(n), numbers(length, n), numbers(length))


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(s, marks=pytest.mark.long) for s in range(6, 60))])
def test_random_bodies_of_elements(seed: int) -> None:
    """Values, gradients of both orders, and vmapped, as kernels for every target, in blocks as small as they come."""
    rng = np.random.default_rng(seed)
    f, given = bodies(rng, int(rng.choice([1, 3, 8, 65, 130])))
    tuning = Tuning(looped_bytes=int(rng.choice([1, 512, 1 << 14])), launch_work=int(rng.choice([0, 3 << 16])),
                    item=int(rng.choice([16, 4096])))
    names = list(TARGETS) if seed >= 6 else [list(TARGETS)[seed], "gpu"]
    with Checked({name: TARGETS[name] for name in names}, tuning=tuning, slack=30.0) as checked:
        tg.trace(f)(*given)
        tg.trace(tg.grad(f, (0, 1, 2, 3)))(*given)
        tg.trace(tg.grad(lambda *a: (tg.grad(f)(*a) ** 2).sum(), (0, 1)))(*given)
        tg.trace(lambda x, *rest: tg.vmap(lambda v: f(v, *rest))(tg.stack([x, x * 0.5])))(*given)
    assert checked.count >= 4 * len(set(names))


def test_sums_at_every_iteration_are_parts_of_blocks() -> None:
    """A polynomial's gradient in its coefficients: a block of cotangents goes through all iterations, and then its parts are added up."""
    plan = plan_of(tg.grad(lambda p, c: horner(p, c).square().sum(), 1), numbers(20_000), numbers(12))
    loops = [step for step in plan.launches if step.note.startswith("a loop of 12 iterations in one launch")]
    assert all(isinstance(step, Launch) for step in plan.steps)
    values, cotangents, sums = (prod(step.global_size) for step in loops)
    assert values == cotangents > 1
    assert -(-20_000 // cotangents) * 16 <= Tuning().looped_bytes
    assert sums == 1
    few = plan_of(tg.grad(lambda p, c: horner(p, c).square().sum(), 1), numbers(500), numbers(12))
    assert all(prod(step.global_size) == 1 for step in few.launches)             # one core is done before it has woken another


def sums_of(rng: np.random.Generator, n: int) -> tuple[Any, tuple[Any, ...]]:
    """A scan whose body adds all elements up, for results and for carries of one number, which elements do not read."""
    length, turned, own, carried = int(rng.integers(1, 6)), bool(rng.integers(2)), bool(rng.integers(2)), bool(rng.integers(2))

    def f(x: Any, w: Any, few: Any) -> Any:
        def body(carries: Any, row: Any) -> Any:
            c, other, total = carries
            new, more = c * w * 0.5 + row, (c * row if own else other)
            made = ((new * other).sum(), new.amax(), total * row) if carried else (new.sum() * row, (c - other).square().mean())
            return (new, more, total * 0.5 + c.sum() if carried else total), made

        (c, other, total), ys = tg.scan(body, (x, x * 0.5, few.sum()), few, reverse=turned)
        return (c * other).sin().sum() + total + sum((y * few).sum() for y in ys)

    return f, (numbers(n), numbers(n), numbers(length))


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(s, marks=pytest.mark.long) for s in range(4, 40))])
def test_random_sums_over_elements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f, given = sums_of(rng, int(rng.choice([8, 65, 130, 200])) if seed else 200)
    tuning = Tuning(looped_bytes=int(rng.choice([1, 1 << 11])), launch_work=0, looped_sums=int(rng.choice([0, 1 << 24, 1 << 24])))
    names = list(TARGETS) if seed >= 6 else [list(TARGETS)[seed], "gpu"]
    with Checked({name: TARGETS[name] for name in names}, tuning=tuning, slack=30.0) as checked:
        tg.trace(f)(*given)
        tg.trace(tg.grad(f, (0, 1, 2)))(*given)
        tg.trace(lambda x, *rest: tg.vmap(lambda v: f(v, *rest))(tg.stack([x, x * 0.5])))(*given)
    assert checked.count >= 3 * len(set(names))


# ----------------------------------------------------------------------------------------------------------- neighbours, in long rows


@pytest.mark.parametrize("by", ["cat", "roll"])
def test_long_rows_are_cut_where_guards_change(by: str) -> None:
    """Inside, the neighbour is a vector: nothing is tested or gathered lane by lane, in a scan or out of it."""
    def step(y: Any, first: Any) -> Any:
        return 0.5 * (tg.cat([first, y[:-1]]) if by == "cat" else y.roll(1)) + y

    y, first = numbers(100_000), numbers(1)
    for f in (step, lambda y, first: tg.scan(lambda y, _: (step(y, first), None), y, None, 3)[0]):
        inner = loops_of(plan_of(f, y, first).source)
        assert inner
        assert not any("GATHER" in body or "?" in body for body in inner)


def test_what_is_cut_is_right() -> None:
    tuning = Tuning(item=64, most_items=64)
    with Checked({name: TARGETS[name] for name in ("avx2", "avx512", "sse, 16 cores")}, tuning=tuning) as checked:
        for n in (300, 517, 1024):
            y, few = numbers(n), numbers(5)
            tg.trace(lambda y, few: tg.cat([few, y[:-5]]) * 2 + y)(y, few)
            tg.trace(lambda y, few: (y.roll(3) - y.roll(-2), tg.cat([y[7:], few[:2], few]) + y))(y, few)
            tg.trace(tg.grad(lambda y, few: ((tg.cat([few, y[:-5]]) * y).sin() * y.roll(1)).sum(), (0, 1)))(y, few)
    assert checked.count >= 27


# ------------------------------------------------------------------------------------------------- single columns, and small products


def test_powers_times_coefficients_are_a_sum_of_terms() -> None:
    """No matrix is stored, none is packed; and few powers wait for their turn."""
    plan = plan_of(lambda t, c: tg.vander(t, 16) @ c, numbers(1000), numbers(16))
    assert len(plan.launches) == 1
    assert {name for name, *_ in plan.launches[0].fused} == {"mul", "add"}
    plan = plan_of(lambda t, c: tg.vander(t, 128) @ c, numbers(1000), numbers(128))
    assert len(plan.launches) <= 4
    assert not any(name in ("matmul", "concat") for step in plan.launches for name, *_ in step.fused)
    both = plan_of(lambda t, c: (tg.vander(t, 16), tg.vander(t, 16) @ c), numbers(1000), numbers(16))
    assert any(name == "matmul" for step in both.launches for name, *_ in step.fused)          # it is stored anyway


def test_products_of_single_columns_are_right() -> None:
    with Checked(slack=3.0) as checked:
        for n, k, dtype in ((13, 5, "float64"), (40, 33, "float32"), (1, 2, "float64"), (7, 1, "float32")):
            t, c, w = numbers(n, dtype=dtype), numbers(k, dtype=dtype), numbers(n, dtype=dtype)
            tg.trace(lambda t, c: tg.vander(t.sin(), len(c)) @ c)(t, c)
            tg.trace(lambda t, c, w: tg.stack([t.sin(), w, t * w, t.sin() + 1], -1) @ tg.cat([c, c, c, c])[:4])(t, c, w)
            tg.trace(lambda t, c: tg.vander(t, len(c), increasing=True) @ c[:, None] * 2)(t, c)
            tg.trace(tg.grad(lambda t, c: ((tg.vander(t, len(c)) @ c) ** 2).sum(), (0, 1)))(t, c)
    assert checked.count >= 16 * len(TARGETS)


def test_a_chain_of_small_products_under_jacfwd_packs_nothing_that_lies_well() -> None:
    """22 bones: rows of a stack are read where they lie, an item does all 66 directions, and what is alike is launched together."""
    def bone(a: Any) -> Any:
        zero = a[0] * 0
        c, s, one = a[0].cos(), a[0].sin(), zero + 1
        rows = (c, -s, zero, a[1]), (s, c, zero, a[2]), (zero, zero, one, zero), (zero, zero, zero, one)
        return tg.stack([tg.stack(row) for row in rows])

    def positions(angles: Any, base: Any) -> Any:
        found: list[Any] = []
        for i in range(22):
            own = base[i] @ bone(angles[i])
            found.append(found[(i - 1) // 2] @ own if i else own)
        return tg.stack(found)[:, :3, 3]

    given = numbers(22, 3), numbers(22, 4, 4)
    plan = plan_of(lambda a, b: tg.func.jacfwd(lambda a: positions(a, b))(a), *given)
    assert len(plan.launches) <= 60
    assert not any(step.note.startswith("packs") for step in plan.launches)


def test_what_is_the_same_in_all_iterations_of_a_while_loop_is_packed_before_it() -> None:
    def f(a: Any, b: Any) -> Any:
        return tg.while_loop(lambda x: (x * x).sum() > 1e-3, lambda x: (a @ x) * 0.5 + b * 0, b)

    plan = plan_of(f, tg.eye(4, dtype=tg.float64), numbers(4))
    before, _, inside = plan.source.partition("while (")
    assert "pack" in before
    assert "packed" in inside
    assert "Packs" not in inside
    assert inside.startswith("condition[0])")
    assert "iteration_0" in inside


def test_small_kernels_that_are_alike_come_one_after_the_other() -> None:
    """Rows of a stack, each multiplied and then summed: the products stand together, though each sum was ready before the next product."""
    def f(x: Any, w: Any) -> Any:
        return tg.stack([(x[i] @ w).sin() @ w for i in range(24)])

    with tuned(Tuning()):
        plan = plan_of(f, numbers(24, 4, 4), numbers(4, 4))
    assert len(plan.launches) <= 24
