"""GPU products and convolutions, which are tile programs: run without a driver for several devices, and made of statements only.

Sizes lie on both sides of blocks, of tiles and of a step of k; thresholds are small in some, so that small programs take every layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.kernels import Checked
from tests.helpers.plan_audit import planned
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Barrier
from tracegrad.codegen.lower import context, fused, group_kernels
from tracegrad.codegen.tile.program import Fold, Loop, Program, Tile
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning, tuned

GPU = Target("gpu", 16, 16, 4, 256, 32768, plain_math=False, clang_builtins=False)
TARGETS = {
    "gpu": GPU, "groups of 64": replace(GPU, max_work_group=64), "groups of one": replace(GPU, max_work_group=1),
    "little local memory": replace(GPU, local_memory=2048, cores=1), "no local memory": replace(GPU, local_memory=0, fp64=False),
    "waves of 64": replace(GPU, cores=1, lanes=64, resident=128, max_work_group=1024, local_memory=65536),
    "its own memory": replace(GPU, host_memory=False), "small groups, own memory": replace(GPU, host_memory=False, max_work_group=16),
}
SMALL = Tuning(group=16, gemm_step=2, split_k=4, split_flops=1, thin=2)
pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(0)


def checked(fn: Callable[..., Any], *arrays: Any, targets: dict[str, Target] = TARGETS, tuning: Tuning | None = None, slack: float = 4.0
            ) -> None:
    """The kernels of traced `fn`, for each target that has the dtypes, compute what the interpreter does."""
    wide = any(np.asarray(a).dtype == np.float64 for a in arrays)
    given = {name: target for name, target in targets.items() if target.fp64 or not wide}
    with Checked(given, tuning=tuning, slack=slack) as ran:
        tg.trace(fn)(*[tg.tensor(a) for a in arrays])
    assert ran.count == len(given)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    dtype = np.dtype(dtype)
    return RNG.standard_normal(shape).astype(dtype) if dtype.kind == "f" else RNG.integers(0, 4, shape).astype(dtype)


def lowered(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], *arrays: Any, target: Target = GPU, tuning: Tuning | None = None
            ) -> list[Kernel]:
    """The kernels of traced `fn`, each verified."""
    found: list[Kernel] = []
    check = group_kernels.verify_kernel

    def noted(kernel: Kernel) -> None:
        check(kernel)
        found.append(kernel)

    monkeypatch.setattr(group_kernels, "verify_kernel", noted)
    with tuned(tuning or Tuning()):
        planned(fn, arrays, target)
    return found


# ------------------------------------------------------------------------------------------------------------------- what they are


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "blocks": (lambda a, b, c: F.relu(a @ b.t() + c), [(40, 19), (33, 19), (33,)]),
    "parts of k": (lambda a, b: a @ b, [(20, 64), (64, 20)]),
    "few rows": (lambda a, b: a @ b.t(), [(2, 48), (20, 48)]),
    "few of both": (lambda a, b: a @ b, [(2, 48), (48, 3)]),
    "a short k": (lambda a, b: a @ b, [(5, 70, 7), (5, 7, 2)]),
    "no k": (lambda a, b: a @ b + 1, [(4, 0), (0, 5)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), [(2, 2, 6, 5), (5, 2, 3, 3)]),
    "gradients": (tg.grad(lambda x, w: (F.conv2d(x, w, stride=2, padding=1) ** 2).sum(), argnums=(0, 1)), [(2, 2, 6, 5), (5, 2, 3, 3)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_statements_that_are_verified(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, shapes = PROGRAMS[name]
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    for target, tuning in product(TARGETS.values(), (Tuning(), SMALL)):
        found = lowered(monkeypatch, fn, *arrays, target=target, tuning=tuning)
        assert found
        monkeypatch.undo()


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_they_compute(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    checked(fn, *[numbers(*shape) for shape in shapes], targets={n: TARGETS[n] for n in ("gpu", "no local memory")}, tuning=SMALL,
            slack=20.0)


def test_the_next_blocks_are_fetched_while_these_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """One barrier in front of the loop over k and one a step; what one step holds has none."""
    def barriers(k: int) -> int:
        kernel, = lowered(monkeypatch, lambda a, b: a @ b, np.zeros((64, k), np.float32), np.zeros((k, 64), np.float32))
        monkeypatch.undo()
        return sum(isinstance(s, Barrier) for s in kernel.statements())

    assert [barriers(k) for k in (8, 16, 100)] == [1, 2, 2]


def test_names_of_users_are_kept() -> None:
    """What a product calls its own is no name that an operand or an epilogue has."""
    def step(x: Any, y: Any, i: Any, a: Any, step: Any) -> Any:
        value = x @ y
        k = value * i + a
        return k * step

    checked(step, numbers(33, 9), numbers(9, 17), numbers(33, 17), numbers(17), numbers(33, 1))


@pytest.mark.parametrize("name", ["parts of k", "gradients"])
def test_long_indices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, shapes = PROGRAMS[name]
    monkeypatch.setattr(context, "index_type", lambda *sizes: "long")
    checked(fn, *[numbers(*shape) for shape in shapes], targets={"groups of 64": TARGETS["groups of 64"]}, tuning=SMALL, slack=20.0)


# -------------------------------------------------------------------------------------------------------------------- what they compute


SHAPES = [
    (1, 1, 1, 1), (1, 7, 3, 5), (1, 13, 37, 41), (1, 33, 10, 60), (1, 1, 50, 40), (1, 50, 1, 33), (3, 9, 11, 13), (2, 33, 2, 17),
    (1, 5, 40, 70), (1, 60, 19, 3), (40, 1, 1, 9), (1, 8, 8, 150), (2, 20, 24, 16), (3, 2, 35, 31),
]


@pytest.mark.long
@pytest.mark.parametrize("tuning", [Tuning(), SMALL], ids=["own", "small"])
@pytest.mark.parametrize("target", TARGETS)
def test_products_of_every_shape_and_layout(target: str, tuning: Tuning) -> None:
    """Dtypes, transposed and broadcast operands, fused producers and epilogues take turns."""
    ways: list[Callable[[Any, Any], Any]] = [
        lambda a, b: a @ b, lambda a, b: (a.mT @ b.mT if a.shape[-2] == b.shape[-1] else a @ b), lambda a, b: (a * 2) @ (b + b),
        lambda a, b: a[:1] @ b, lambda a, b: a @ b[:1].expand(b.shape), lambda a, b: (a @ b) * 2 + a[..., :1],
        lambda a, b: (b.mT.contiguous() @ a.mT.contiguous()).mT, lambda a, b: a.flip(-1) @ b.flip(-2),
    ]
    dtypes = (np.float32, np.float16, np.float64, np.int32, np.int64)
    first = 2 * list(TARGETS).index(target) + (tuning is SMALL)
    for number, (batch, m, n, k) in enumerate(SHAPES):
        dtype = dtypes[(number + first) % 5]
        if dtype == np.float64 and not TARGETS[target].fp64:
            dtype = np.float32
        checked(ways[(number + first) % len(ways)], numbers(batch, m, k, dtype=dtype), numbers(batch, k, n, dtype=dtype),
                targets={target: TARGETS[target]}, tuning=tuning, slack=30.0)


WINDOWS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 1, 8, 8), (16, 1, 3, 3), dict(padding=1)), ((2, 3, 9, 11), (5, 3, 3, 3), {}),
    ((1, 2, 9, 11), (3, 2, 5, 2), dict(stride=2, padding=(2, 1))), ((2, 4, 7, 8), (6, 2, 3, 3), dict(padding=2, dilation=2, groups=2)),
    ((1, 6, 7, 7), (6, 1, 3, 3), dict(stride=(2, 1), padding=1, groups=6)), ((2, 3, 5, 6), (4, 3, 1, 1), {}),
    ((2, 4, 6, 5), (4, 4, 1, 1), dict(stride=2)), ((1, 2, 8, 11), (3, 2, 3, 3), dict(stride=3, padding=(1, 2), dilation=2)),
    ((2, 2, 3, 2), (3, 2, 2, 2), dict(padding=3)), ((3, 2, 6, 3), (2, 2, 2, 2), dict(stride=2, padding=1)),
    ((1, 2, 11, 12), (3, 2, 4, 3), dict(stride=4, dilation=2)),
]


@pytest.mark.long
@pytest.mark.parametrize("tuning", [Tuning(), SMALL], ids=["own", "small"])
@pytest.mark.parametrize("target", TARGETS)
def test_convolutions_and_their_gradients(target: str, tuning: Tuning) -> None:
    for number, (x, w, options) in enumerate(WINDOWS):
        if number % 2 != (tuning is SMALL):
            continue

        def loss(x: Any, w: Any, options: dict[str, Any] = options) -> Any:
            return (F.conv2d(x * 2, w, **options).tanh() ** 2).sum()

        dtype = np.float64 if number % 3 == 0 and TARGETS[target].fp64 else np.float32
        checked(tg.value_and_grad(loss, (0, 1)), numbers(*x, dtype=dtype), numbers(*w, dtype=dtype), targets={target: TARGETS[target]},
                tuning=tuning, slack=30.0)


@pytest.mark.long
@pytest.mark.parametrize(("rows", "columns"), list(product((1, 5, 31, 65), (4, 33, 66))))
def test_the_sizes_of_tiles(rows: int, columns: int) -> None:
    """From one element an item to 8 x 8, with and without whole blocks."""
    one = replace(GPU, cores=1)
    checked(lambda a, b, c: (a @ b + c).relu(), numbers(rows, 9), numbers(9, columns), numbers(columns), targets={"one": one}, slack=8.0)


# ---------------------------------------------------------------------------------------------------------- how blocks are shared


@pytest.mark.parametrize("sizes", [(36, 52, 20), pytest.param((20, 24, 68), marks=pytest.mark.long)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.long)])
def test_sixteen_bytes_are_fetched_together(sizes: tuple[int, int, int], turned: tuple[bool, bool], dtype: Any) -> None:
    """Of operands stored along k, and across; at the edges of blocks, too."""
    m, k, n = sizes
    a, b = numbers(*((k, m) if turned[0] else (m, k)), dtype=dtype), numbers(*((n, k) if turned[1] else (k, n)), dtype=dtype)

    def product(a: Any, b: Any) -> Any:
        return (a.t() if turned[0] else a) @ (b.t() if turned[1] else b)

    target = replace(GPU, host_memory=False)
    checked(product, a, b, targets={"own memory": target})
    plan, _, _ = planned(product, (a, b), target)
    each = 16 // np.dtype(dtype).itemsize
    scalar = "float" if dtype == np.float32 else "double"
    assert plan.source.count(f"LOAD_ALIGNED({scalar}{each}, ") == 4                     # of each operand, before the loop and in it


@pytest.mark.parametrize("case", ["odd", "host", "steps", "halves"])
def test_what_cannot_be_fetched_together(case: str) -> None:
    """Lines of an odd length, arrays of the host's, every second element, and what is converted."""
    a, b = numbers(33, 35), numbers(35, 34)
    if case == "halves":
        a, b = numbers(32, 64).astype(np.float16), numbers(64, 32).astype(np.float16)
    if case in ("steps", "host"):
        a, b = numbers(32, 64), numbers(64 if case == "host" else 32, 32)
    fn = (lambda a, b: a[:, ::2] @ b[:, ::2]) if case == "steps" else lambda a, b: a @ b
    target = replace(GPU, host_memory=case == "host")
    checked(fn, a, b, targets={case: target})
    assert "LOAD_ALIGNED" not in planned(fn, (a, b), target)[0].source


H100 = Target("gpu", cores=132, lanes=32, resident=2048, max_work_group=1024, local_memory=49152, plain_math=False, clang_builtins=False,
              host_memory=False)


@pytest.mark.parametrize(("sizes", "blocks", "parts"), [
    ((4096, 4096, 4096), "128x128 blocks", False), ((768, 8192, 3072), "128x128 blocks", True), ((16, 4096, 4096), "16x256 blocks", True),
    ((4096, 4096, 16), "256x16 blocks", True), ((512, 512, 512), "64x64 blocks", True)])
def test_blocks_and_parts_by_time(sizes: tuple[int, int, int], blocks: str, parts: bool) -> None:
    """Few rows take wide blocks; k is cut where the last work-groups would leave most of the cores with nothing to do."""
    m, k, n = sizes
    plan, _, _ = planned(lambda a, b: a @ b, (np.empty((m, k), np.float32), np.empty((k, n), np.float32)), H100)
    assert blocks in plan.launches[0].note
    assert len(plan.launches) == 1 + parts


def test_levels_of_sums_are_loops_around_the_blocks() -> None:
    """What an accumulator has is added to another after 512 terms: no block tests whether it is the last one."""
    source = planned(lambda a, b: a @ b, (np.empty((4096, 4096), np.float32),) * 2, H100)[0].source
    assert "for (int k_sum = 0; k_sum < 512; k_sum += 64)" in source
    assert "step % 64" not in source


def described(program: Program) -> list[Any]:
    """The steps of a program, without how it is laid out: of each its kind, and the names of its tiles and of their axes."""
    def axes(tile: Tile) -> set[str]:
        return {name for axis in tile.axes for name in {"at": "ij", "part": ""}.get(axis.name, axis.name)}

    def one(step: Any) -> Any:
        tiles = {x.name: axes(x) for x in vars(step).values() if isinstance(x, Tile)}
        return type(step).__name__, tiles, [one(s) for s in step.body] if isinstance(step, Loop) else []

    return [one(step) for step in program.steps if not isinstance(step, Fold)]


@pytest.mark.parametrize(("k", "kernels"), [(50, 1), (4096, 2)])
def test_a_product_is_one_program_for_cpus_and_gpus(monkeypatch, k, kernels):
    """What is done with tiles is the same, also for the sum of parts of k: layouts differ, and whether lanes or items have shares of it."""
    found: dict[str, list[Any]] = {}
    for kind, written in fused.LOWERED.items():
        def noted(w: Any, program: Program, kind: str = kind, written: Any = written) -> None:
            found.setdefault(kind, []).append(described(program))
            written(w, program)

        monkeypatch.setitem(fused.LOWERED, kind, noted)
    arrays = np.zeros((70, k), np.float32), np.zeros((k, 90), np.float32)
    for target in (Target(cores=16), H100):
        planned(lambda a, b: a @ b, arrays, target)
    assert found["cpu"] == found["gpu"]
    assert len(found["cpu"]) == kernels
