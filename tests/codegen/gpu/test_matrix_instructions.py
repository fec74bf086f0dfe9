"""Products by matrix instructions: the table, the kernels that use it, run without a driver, and when a device has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.codegen.gpu.test_tile_programs import lowered
from tests.helpers.marks import one_of
from tests.helpers.plan_audit import planned
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.ir.expressions import Access, whole
from tracegrad.codegen.kernel.ir.instructions import INSTRUCTIONS
from tracegrad.codegen.kernel.ir.statements import Barrier, Block, Instruct, statements_in
from tracegrad.codegen.kernel.run import KernelFault, run_plan
from tracegrad.codegen.kernel.run.memory import Pointer
from tracegrad.codegen.kernel.verify import verify_kernel
from tracegrad.codegen.tile.instructions import LDMATRIX, LDMATRIX_ACROSS, TABLE, WARP, candidates, instruction_for, towards_zero
from tracegrad.errors import CompilerBug
from tracegrad.execute import matrix_trial
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning, tuned

GPU = Target("gpu", 16, 16, 4, 1024, 48 << 10, plain_math=False, clang_builtins=False, matrix=tuple(TABLE), float32_precision="high")
SMALL = Tuning(split_k=8, split_flops=1, thin=1, matrix_blocks=(
    (2, ((1, 1), (1, 4), 32, 3, False)), (4, ((1, 1), (2, 4), 16, 3, True)), (8, ((1, 2), (1, 2), 16, 2, False))))
LIMIT = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 2e-3, "float64": 1e-14}
RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("on_numpy")


def numbers(*shape: int, dtype: Any) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def of_size(size: int) -> Any:
    """The library's blocks for elements of so many bytes."""
    return tuple(blocks for blocks in Tuning().matrix_blocks if blocks[0] == size)


def ran(fn: Callable[..., Any], *arrays: Any, target: Target = GPU, tuning: Tuning = SMALL, uses: bool | None = True) -> Any:
    """The result of traced `fn` by kernels for the target, in float64. uses: whether one of them is by matrix instructions (None: any)."""
    with tuned(tuning):
        plan, given, scalars = planned(fn, arrays, target)
    if uses is not None:
        assert any("MMA_" in step.note for step in plan.launches) == uses, [step.note for step in plan.launches]
    return run_plan(plan, given, scalars)[0].astype(np.float64)


def near(found: Any, wanted: Any, dtype: Any) -> None:
    assert np.abs(found - wanted).max() <= LIMIT[np.dtype(dtype).name] * np.abs(wanted).max()


# ------------------------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("name", TABLE)
def test_each_element_of_a_matrix_is_one_items(name: str) -> None:
    entry = TABLE[name]
    for layout, shape in ((entry.a, (entry.m, entry.k)), (entry.b, (entry.k, entry.n)), (entry.c, (entry.m, entry.n))):
        found = Counter(place for lane in range(WARP) for r in range(layout.registers) for place in layout.at(lane, r))
        assert found == Counter(np.ndindex(*shape))


def test_ldmatrix_transposes_pairs() -> None:
    halves = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    given = [(row.view(np.uint32),) for row in halves.reshape(32, 8)]
    for of, matrices in ((LDMATRIX, halves), (LDMATRIX_ACROSS, halves.transpose(0, 2, 1))):
        assert of.meaning is not None
        for lane, (found,) in enumerate(of.meaning(given)):
            pairs = np.ascontiguousarray(found).view(np.uint16).reshape(4, 2)
            assert pairs.tolist() == matrices[:, lane // 4, 2 * (lane % 4):2 * (lane % 4) + 2].tolist()


def test_sums_are_cut_off() -> None:
    """Tensor cores round towards zero; what a float32 can hold stays as it is."""
    x = np.array([1 + 2.0 ** -24, -1 - 2.0 ** -24, 1 + 2.0 ** -23, np.inf, 3.0])
    assert towards_zero(x, np.dtype(np.float32)).tolist() == [1.0, -1.0, 1 + 2.0 ** -23, np.inf, 3.0]


def test_a_target_has_what_a_trial_has_shown() -> None:
    f32, f16 = np.dtype(np.float32), np.dtype(np.float16)
    assert instruction_for(GPU, f16, f16, f32) is TABLE["MMA_F16"]
    assert instruction_for(replace(GPU, matrix=()), f16, f16, f32) is None
    assert instruction_for(GPU, f16, f32, f32) is None
    assert instruction_for(GPU, f32, f32, f32) is TABLE["MMA_TF32"]
    assert instruction_for(replace(GPU, float32_precision="highest"), f32, f32, f32) is None
    assert "MMA_F64" not in candidates(replace(GPU, fp64=False), ["cl_nv_device_attribute_query"])
    assert candidates(GPU, ["cl_khr_fp64"]) == ()
    assert candidates(replace(GPU, local_memory=0), ["cl_nv_device_attribute_query"]) == ()


def test_without_room_for_blocks_there_are_others() -> None:
    a, b = numbers(20, 24, dtype=np.float64), numbers(24, 18, dtype=np.float64)
    for less in (dict(local_memory=1024), dict(max_work_group=16), dict(local_memory=0)):
        near(ran(lambda a, b: a @ b, a, b, target=replace(GPU, **less), uses=False), a @ b, np.float64)


# ---------------------------------------------------------------------------------------------------------------- what they compute

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "nn": lambda a, b: a @ b, "tn": lambda a, b: a.mT @ b, "nt": lambda a, b: a @ b.mT, "tt": lambda a, b: a.mT @ b.mT,
}
SHAPES = [(1, 16, 16, 16), (1, 40, 48, 64), (1, 19, 33, 70), (2, 33, 24, 18), (3, 17, 64, 40)]


@one_of(3, ("way", "dtype"), product(WAYS, [np.float16, tg.bfloat16.type, np.float32, np.float64]))
def test_products_of_every_layout(way: str, dtype: Any) -> None:
    for batch, m, n, k in SHAPES[1:4:2] if way == "nn" else SHAPES[3:4]:
        a, b = numbers(batch, m, k, dtype=dtype), numbers(batch, k, n, dtype=dtype)
        given = [np.ascontiguousarray(x.swapaxes(1, 2)) if w == "t" else x for x, w in zip((a, b), way, strict=True)]
        near(ran(WAYS[way], *given), a.astype(np.float64) @ b.astype(np.float64), dtype)


@pytest.mark.long
@pytest.mark.parametrize("blocks", [None, 0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_products_of_every_shape(dtype: Any, blocks: Any) -> None:
    """With small blocks, and with each that the library has."""
    size = np.dtype(dtype).itemsize
    own = SMALL if blocks is None else Tuning(matrix_blocks=of_size(size)[blocks:blocks + 1])
    if blocks is None and dtype != np.float32:               # read ahead, too
        own = own._replace(matrix_blocks=tuple((n, (*shares[:4], True)) for n, shares in own.matrix_blocks))
    for number, (batch, m, n, k) in enumerate([*SHAPES, (1, 130, 140, 72)]):
        way = list(WAYS)[(number + size) % 4]
        a, b = numbers(batch, m, k, dtype=dtype), numbers(batch, k, n, dtype=dtype)
        given = [np.ascontiguousarray(x.swapaxes(1, 2)) if w == "t" else x for x, w in zip((a, b), way, strict=True)]
        found = ran(WAYS[way], *given, tuning=own, uses=None if blocks == 0 else True)       # (0: not where both go through registers)
        near(found, a.astype(np.float64) @ b.astype(np.float64), dtype)


@pytest.mark.parametrize("dtype", [np.float16, tg.bfloat16.type, np.float32, np.float64])
def test_what_is_fused_with_them(dtype: Any) -> None:
    """Producers, bias, activation; what an epilogue reads is what would be stored."""
    a, b, c = numbers(20, 24, dtype=dtype), numbers(24, 24, dtype=dtype), numbers(24, dtype=dtype)
    found = ran(lambda a, b, c: F.relu((a * 2) @ b + c) + 1, a, b, c)
    wanted = np.maximum((2 * a).astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64), 0) + 1
    near(found, wanted, dtype)
    turned = ran(lambda a, b: a.flip(-1) @ b[:, ::3].expand(24, 8), a, b[:, :24])
    near(turned, a[:, ::-1].astype(np.float64) @ b[:, ::3].astype(np.float64), dtype)


def test_an_epilogue_reads_rounded_halves() -> None:
    """On GPUs without matrix instructions, too."""
    a, b = np.full((8, 8), 1 + 2.0 ** -10, np.float16), np.full((8, 8), 1 + 2.0 ** -9, np.float16)
    product = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    for target in (GPU, replace(GPU, matrix=())):
        found = ran(lambda a, b: (a @ b) - 8, a, b, target=target, uses=bool(target.matrix))
        assert found.tolist() == (product - np.float16(8)).astype(np.float64).tolist()


def test_a_bias_is_added_before_the_product_is_rounded() -> None:
    """The product is still one of halves, by the instruction for them."""
    a, b = np.full((8, 8), 1 + 2.0 ** -10, np.float16), np.full((8, 8), 1 + 2.0 ** -9, np.float16)
    wanted = (a.astype(np.float64) @ b.T.astype(np.float64) - 8).astype(np.float16).astype(np.float64)
    for target in (GPU, replace(GPU, matrix=())):
        found = ran(F.linear, a, b, np.full(8, -8, np.float16), target=target, uses=bool(target.matrix))
        assert found.tolist() == wanted.tolist()
    image = ran(F.conv2d, a[:4].reshape(1, 4, 2, 4), b.reshape(8, 4, 2, 1), np.full(8, -8, np.float16))
    np.testing.assert_array_equal(image, np.full((1, 8, 1, 4), wanted[0, 0]))


def test_halves_are_added_in_float32() -> None:
    """A sum of float16 numbers would stay 2048."""
    a, b = np.ones((16, 63), np.float16), np.ones((63, 16), np.float16)
    a[:, 0] = 2048
    for target in (GPU, replace(GPU, matrix=()), Target(cores=2)):
        assert (ran(lambda a, b: a @ b, a, b, target=target, uses=bool(target.matrix)) == 2110).all()


def test_parts_of_k_and_gradients() -> None:
    a, b = numbers(18, 64, dtype=np.float64), numbers(64, 20, dtype=np.float64)
    near(ran(lambda a, b: a @ b, a, b, target=replace(GPU, cores=64)), a @ b, np.float64)
    near(ran(tg.grad(lambda a, b: ((a @ b) ** 2).sum()), a, b), 2 * (a @ b) @ b.T, np.float64)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_convolutions_are_products(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    x, w = numbers(1, 4, 6, 7, dtype=dtype), numbers(6, 4, 3, 3, dtype=dtype)
    wanted = torch.nn.functional.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1).numpy()
    near(ran(lambda x, w: F.conv2d(x, w, padding=1), x, w), wanted, dtype)


def test_infinities_and_nans_go_through() -> None:
    a, b = numbers(16, 16, dtype=np.float32), numbers(16, 16, dtype=np.float32)
    a[1, 2], a[3, 4] = np.inf, np.uint32(0x7FFFFFFF).view(np.float32)
    found = ran(lambda a, b: a @ b, a, b)
    assert np.isinf(found[1]).all()
    assert np.isnan(found[3]).all()
    assert np.isfinite(np.delete(found, (1, 3), 0)).all()


def test_numbers_that_tf32_has_are_exact() -> None:
    """They are not made longer: 11 binary digits each."""
    a, b = (RNG.integers(-2047, 2048, (16, 16)).astype(np.float32) for _ in range(2))
    assert (ran(lambda a, b: a @ b, a, b) == a.astype(np.float64) @ b.astype(np.float64)).mean() > 0.9       # (sums of 2^26 are cut off)


# ------------------------------------------------------------------------------------------------------------------- how they are made


def test_they_are_statements_that_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lowered(monkeypatch, lambda a, b: a @ b, np.zeros((40, 48), np.float16), np.zeros((48, 33), np.float16), target=GPU)
    kernel = found[0]
    instructs = [s for s in kernel.statements() if isinstance(s, Instruct)]
    multiply = next(s for s in instructs if s.of is TABLE["MMA_F16"].multiply)
    right = multiply.given
    outside = Access(right[0].memory, right[0].at + 1, each=4)  # type: ignore[union-attr, operator]
    for wrong, why in (((outside, *right[1:]), "of 32"), ((right[1], *right[1:]), "a uint"), ((right[0], right[2], right[1]), "elements")):
        multiply.given = wrong  # type: ignore[assignment]
        with pytest.raises(CompilerBug, match=why):
            verify_kernel(kernel)
    multiply.given = right


def test_copies_are_there_only_when_they_are_waited_for() -> None:
    a, b = numbers(16, 128, dtype=np.float16), numbers(128, 16, dtype=np.float16)
    with tuned(SMALL._replace(split_flops=1 << 30)):
        plan, given, _ = planned(lambda a, b: a @ b, (a, b), GPU)
    kernel = plan.kernels[0]
    waits = [s for s in statements_in(kernel.body) if isinstance(s, Instruct) and s.of.kind == "wait" and str(s.given[0]) == "1"]
    assert waits
    for wrong in (2, 9):
        for s in waits:
            s.given = (whole(wrong),)
        with pytest.raises(KernelFault, match=r"nothing has written"):
            run_plan(plan, given)
    for s in waits:
        s.given = (whole(1),)
    run_plan(plan, given)
    loop, at = next((block, i) for block in blocks_in(kernel.body) for i, s in enumerate(block.items) if isinstance(s, Barrier))
    del loop.items[at]
    with pytest.raises(KernelFault, match=r"in the same launch|which nothing has written"):
        run_plan(plan, given)


def blocks_in(block: Block) -> Iterator[Block]:
    """A block, and those in it."""
    for item in block.items:
        if isinstance(item, Block):
            yield from blocks_in(item)
    yield block


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("way", ["nn", "tt"])
def test_no_two_items_read_one_bank(dtype: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight items at a time read 16 bytes each, of 32 banks of 4 bytes: all of them once."""
    own = Tuning(matrix_blocks=of_size(np.dtype(dtype).itemsize)[:1])
    with tuned(own):
        plan, given, _ = planned(WAYS[way], [np.ones((128, 128), dtype)] * 2, GPU)
    lines: dict[Any, list[int]] = {}
    vector = Pointer.vector

    def noted(self: Pointer, lanes: int) -> Any:
        m = self.memory
        if m.name == "blocks":
            assert (self.at * m.array.itemsize % 16, lanes * m.array.itemsize) == (0, 16)
            reads = lines.setdefault(m.state.item, [])
            reads.append(self.at * m.array.itemsize // 16)
            if len(reads) > 16 and m.state.item == 32:       # the last of the warp
                raise KernelFault("enough")
        return vector(self, lanes)

    monkeypatch.setattr(Pointer, "vector", noted)
    with pytest.raises(KernelFault, match="enough"):
        run_plan(plan, given)
    warp = [lines[item] for item in sorted(lines)[:32]]
    for n in range(min(map(len, warp))):
        for eight in range(0, 32, 8):
            assert len({chunks[n] % 8 for chunks in warp[eight:eight + 8]}) == 8


# ----------------------------------------------------------------------------------------------------------------------- the trial


class Fake:
    """What a device answers in a trial: its kernels are run without a driver, and may be wrong."""

    def __init__(self, wrong: str = "") -> None:
        self.target, self.extensions, self.matrix, self.wrong = replace(GPU, matrix=()), {"cl_nv_device_attribute_query"}, None, wrong


@pytest.mark.parametrize("name", TABLE)
def test_the_trial_is_passed_by_what_the_table_says(name: str) -> None:
    for number, sizes in enumerate(matrix_trial.SIZES[-1:]):
        arrays, graph, wanted = matrix_trial.product(TABLE[name].of, *sizes, across=(number % 2 == 1, number > 0))
        with tuned(SMALL):
            plan = compile_graph(graph, replace(GPU, matrix=(name,)))
        assert name in plan.source
        assert np.array_equal(run_plan(plan, arrays)[0], wanted)


def test_every_instruction_is_spelled() -> None:
    for name, of in INSTRUCTIONS.items():
        assert of.text.startswith(f"#define {name}(")


# -------------------------------------------------------------------------------------------------------------------- the setting


def test_a_changed_precision_is_a_new_recording() -> None:
    f = tg.trace(lambda a, b: a @ b)
    x = tg.ones(4, 4)
    f(x, x)
    f(x, x)
    tg.set_float32_matmul_precision("high")
    try:
        f(x, x)
        assert f.compilations == ["first call", "the precision of float32 products is 'high' now"]
    finally:
        tg.set_float32_matmul_precision("highest")
    f(x, x)
    assert len(f.compilations) == 2


def test_torchs_older_name() -> None:
    assert not tg.backends.cuda.matmul.allow_tf32
    tg.backends.cuda.matmul.allow_tf32 = True
    try:
        assert tg.get_float32_matmul_precision() == "high"
    finally:
        tg.backends.cuda.matmul.allow_tf32 = False
    assert tg.get_float32_matmul_precision() == "highest"
