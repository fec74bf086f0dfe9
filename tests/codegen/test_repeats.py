"""Repeated steps of an unrolled program: they are lowered once and share few kernels, which compute what each step's own would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.kernels import TARGETS, Checked, random_tuning
from tests.helpers.marks import one_of
from tracegrad.codegen import compiler
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions import Access, Array, At, Expression, Infix, Literal, Load
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.render import PLAIN
from tracegrad.codegen.kernel.ir.statements import Allocate, Block, Buffer, Declare, Item, Store, clipped, product
from tracegrad.codegen.kernel.text.markup import Offset as Marked
from tracegrad.codegen.kernel.text.markup import offsets_in
from tracegrad.codegen.planning import lowering_cache
from tracegrad.codegen.planning.arguments.parameterize import share
from tracegrad.config import config
from tracegrad.errors import CompilerBug
from tracegrad.execute.compile import executable_graph
from tracegrad.support.plan import Offset, Plan
from tracegrad.support.tuning import Tuning, tuned


@pytest.fixture
def on_numpy() -> Any:
    previous = tg.device()
    tg.set_device("numpy")
    yield
    tg.set_device(previous)


SOME = {name: TARGETS[name] for name in ("avx2", "gpu")}


def plan_of(fn: Any, *args: Any, target: str = "avx2") -> Plan:
    traced = tg.trace(fn)
    traced(*args)
    return compile_graph(executable_graph(traced._seen().program.graph), TARGETS[target])


def wave(steps: int) -> Any:
    def loss(u: Any) -> Any:
        before, now = u, u
        for _ in range(steps):
            near = tg.roll(now, 1, 0) + tg.roll(now, -1, 0) + tg.roll(now, 1, 1) + tg.roll(now, -1, 1)
            before, now = now, 1.6 * now - before + 0.1 * near
        return (now**2).sum()

    return tg.value_and_grad(loss)


def recurrence(steps: int) -> Any:
    """Reads a row of x after the other: the steps differ in offsets."""
    def loss(x: Any, w: Any) -> Any:
        h = tg.zeros(x.shape[0], w.shape[0], dtype=x.dtype)
        for t in range(steps):
            h = tg.tanh(h @ w + x[:, t])
        return (h**2).sum()

    return tg.value_and_grad(loss, argnums=(0, 1))


def test_steps_of_a_wave_share_kernels_which_are_right(on_numpy: Any) -> None:
    u = tg.tensor(np.random.default_rng(0).standard_normal((5, 17)))
    with Checked(SOME, tuning=Tuning(launch_work=0, repeats=1)) as checked:
        tg.trace(wave(6))(u)
    assert checked.count == len(SOME)
    with tuned(Tuning(launch_work=0)):                         # nothing is merged
        few, many = (plan_of(wave(steps), u) for steps in (12, 24))
    assert len(many.launches) > len(few.launches) + 20
    assert many.source.count("__kernel") == few.source.count("__kernel") < 10


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_that_differ_in_offsets_share_kernels_which_are_right(on_numpy: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (tg.tensor(rng.standard_normal(s).astype(dtype) * 0.3) for s in ((3, 12, 17), (17, 17)))
    with Checked(SOME, tuning=Tuning(launch_work=0)) as checked:
        tg.trace(recurrence(7))(x, w)
    assert checked.count == len(SOME)
    with tuned(Tuning(launch_work=0)):
        few, many = (plan_of(recurrence(steps), x, w) for steps in (8, 12))
    assert many.source.count("__kernel") == few.source.count("__kernel")
    assert any(isinstance(a, Offset) for launch in many.launches for a in launch.args)


def test_equal_groups_are_lowered_once(on_numpy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = []
    lower = lowering_cache.lower
    monkeypatch.setattr(lowering_cache, "lower", lambda group, context: lowered.append(group) or lower(group, context))
    monkeypatch.setattr(config, "check", False)
    u = tg.tensor(np.random.default_rng(0).standard_normal((40, 33)))
    plan_of(wave(12), u)
    few = len(lowered)
    plan_of(wave(24), u)
    assert len(lowered) == 2 * few                             # no more than for half as many steps


def stack(rows: int, width: int) -> Any:
    """A function and its arguments: a recurrent network that multiplies row after row of x, which is as its derivative reads it, too."""
    def loss(x: Any, w: Any, r: Any) -> Any:
        h = tg.zeros(x.shape[1], r.shape[0], dtype=x.dtype)
        for row in x:
            h = tg.tanh(row @ w + h @ r)
        return (h**2).sum()

    rng = np.random.default_rng(0)
    return tg.value_and_grad(loss, argnums=(0, 1)), *(tg.tensor(rng.standard_normal(shape).astype(np.float32))
                                                      for shape in ((rows, 16, width), (width, 12), (12, 12)))


@one_of(2, "target", ["avx2", "gpu"])
def test_products_of_row_after_row_are_lowered_twice(on_numpy: Any, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    program, *args = stack(24, 12)
    plan_of(program, *args, target=target)                     # checked: each is also lowered by itself, and compared
    lowered = []
    lower = lowering_cache.lower
    monkeypatch.setattr(lowering_cache, "lower", lambda group, context: lowered.append(group) or lower(group, context))
    monkeypatch.setattr(config, "check", False)
    plan = plan_of(program, *args, target=target)
    few = len(lowered)
    assert few < len(plan.launches) / 2
    program, *args = stack(40, 12)
    plan_of(program, *args, target=target)
    assert len(lowered) < 2 * few + 4                          # about as many as for fewer rows
    lowered.clear()
    monkeypatch.setattr(lowering_cache, "rows_of", lambda *_: None)
    program, *args = stack(24, 12)
    other = plan_of(program, *args, target=target)
    assert replace(other, kernels=()) == replace(plan, kernels=())           # not even a name differs
    assert len(lowered) > few + 30


@one_of(4, "width", [3, 65])
def test_rows_where_a_vector_may_not_begin_are_lowered_each(on_numpy: Any, width: int) -> None:
    with Checked(SOME) as checked:
        program, *args = stack(6, width)
        tg.trace(program)(*args)
    assert checked.count == len(SOME)


@pytest.mark.parametrize(("rows", "width"), [(7, 4), (9, 12)])
def test_rows_of_a_stack_compute_what_they_should(on_numpy: Any, rows: int, width: int) -> None:
    with Checked(SOME, tuning=Tuning(repeats=1)) as checked:
        program, *args = stack(rows, width)
        tg.trace(program)(*args)
    assert checked.count == len(SOME)


def kernel(entry: str, *reads: Callable[[Index], Index], of: float = 1.0) -> Kernel:
    """c[i] = of * (a[at(i)] + ...) of as many elements as there are `reads`, for 100 of i; its comment has numbers, too."""
    single, i = np.dtype("float32"), Var("i", 100)
    a, c = Buffer("a", "a", single, None, "const"), Buffer("c", "c", single, None, "out")
    block, found = Block(""), [Load(Access(a, at(i.index)), single) for at in reads]
    total: Expression = found[0]
    for x in found[1:]:
        total = Infix("+", total, x)
    block.comment = f"{entry}: 3 + 4"
    block.items = [Item(i, "int", 0, "global"), Store(Access(c, i.index), Infix("*", total, Literal(of, single)))]
    body = Block("")
    body.items = [block]
    return Kernel(entry, (a, c), body, (100,), (1,))


def test_the_lines_of_a_kernel_are_counted_without_its_text(on_numpy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def batched(steps: Any) -> Any:
        counted.extend((k.head.count("\n") + k.height + 1, k.text.count("\n")) for k in steps if isinstance(k, Kernel))
        return real(steps)

    real = compiler.batched
    monkeypatch.setattr(compiler, "batched", batched)
    x, w = tg.tensor(np.ones((65, 12), np.float32)), tg.tensor(np.ones((12, 12), np.float32))
    traced = tg.trace(tg.grad(lambda w: steps_of(x, w, 5).sum()))
    traced(w)
    compile_graph(executable_graph(traced._seen().program.graph), TARGETS["avx2"])
    assert len(counted) > 5
    assert all(a == b for a, b in counted)


def steps_of(x: Any, w: Any, iterations: int) -> Any:
    for _ in range(iterations):
        x = tg.softmax((x @ w).tanh(), 1)
    return x


def test_only_numbers_that_are_added_are_offsets() -> None:
    i, memory = Var("i", 100), Buffer("a", "a", np.dtype("float32"), None, "const")
    for index, offsets in ((i.index * 4 + 5, [5]), (i.index - 7, [7]), (7 - i.index, [7]), (i.index // 8 % 3, []), (constant(9), [])):
        assert [found.value for found in offsets_in(PLAIN.top(At(index)))] == offsets
    assert [found.value for found in offsets_in(PLAIN.address(Access(memory, constant(9))))] == [9]
    assert offsets_in(PLAIN.top(Infix("+", At(i.index), Literal(3, np.dtype("int32"))))) == []
    assert offsets_in(Allocate(Array("kept", "float", 12, False)).c(PLAIN)) == []
    part, size = Var("part", 4), 90
    for end, ends in ((product(part, 32), [32]), (clipped(part.index + 32, size, 32), [32, 90, 32, 90])):
        assert offsets_in(Declare(Var("last", 91), "const int", end.value, bound=end).c(PLAIN)) == [Marked(n, True) for n in ends]


def test_shared_kernels_get_their_own_numbers() -> None:
    def read(n: int) -> tuple[Callable[[Index], Index], ...]:
        return lambda i: i + 8 + 10 * n, lambda i: i * 2 + 8 + 10 * n, lambda i: i + 5

    kept, instead = share([kernel(f"k{n}", *read(n)) for n in range(5)])
    assert [k.entry for k in kept] == ["k0"]
    assert instead == {f"k{n}": ("k0", (8 + 10 * n,)) for n in range(5)}
    assert "c[i] = (a[i + offset] + a[i * 2 + offset] + a[i + 5]) * 1.0f;\n" in kept[0].text
    assert "*restrict c, const int offset) {\n" in kept[0].text
    assert "k0: 3 + 4" in kept[0].text


@pytest.mark.parametrize("read", [
    lambda n: (lambda i: i * n,), lambda n: (lambda i: i // (n + 1),), lambda n: (lambda i: i + (n << 31),),
    lambda n: tuple(lambda i, k=k: i + k * n for k in range(1, 10)),
])
def test_other_numbers_stay(read: Any) -> None:
    """Strides, divisors, large numbers; and more than eight arguments there are not."""
    kernels = [kernel(f"k{n}", *read(n)) for n in range(1, 6)]
    assert share(kernels) == (kernels, {})


def test_numbers_that_are_the_same_distance_apart_are_one_argument() -> None:
    """Of elements that all items read, too; a long kernel is shared by two, a short one by more than three."""
    def read(n: int, count: int) -> list[Callable[[Index], Index]]:
        return [lambda i, k=k: constant(20 * n + 9 - k) for k in range(count)] + [lambda i: 3 * n - i + 500, lambda i: i + 3 * n]

    kept, instead = share([kernel(f"k{n}", *read(n, 10)) for n in range(1, 5)])
    assert instead == {f"k{n}": ("k1", (20 * n + 9, 3 * n + 500)) for n in range(1, 5)}
    assert "c[i] = (a[offset] + a[(offset - 1)] + a[(offset - 2)] + " in kept[0].text
    assert " + a[(offset - 9)] + a[offset1 - i] + a[i + (offset1 - 500)]) * 1.0f;\n" in kept[0].text
    two = [kernel(f"k{n}", *read(n, 10)) for n in range(1, 3)]
    assert share(two) == (two, {})
    with tuned(Tuning(shared_lines=3)):
        assert len(share(two)[0]) == 1


def test_numbers_that_are_values_stay() -> None:
    kernels = [kernel(f"k{n}", lambda i: i + 3, of=float(n)) for n in range(1, 6)]
    assert share(kernels) == (kernels, {})


def test_a_product_that_is_stored_lane_by_lane_has_no_epilogue(on_numpy: Any) -> None:
    rng = np.random.default_rng(0)
    x, w, b = (tg.tensor(rng.standard_normal(s).astype("float32")) for s in ((65, 40), (40, 3), (3,)))
    plan = plan_of(lambda x, w, b: tg.tanh(x @ w + b), x, w, b)
    assert sum("tg_tanh(" in kernel for kernel in plan.source.split("__kernel void ")[1:]) == 1
    assert plan.source.count("tg_tanh(") == 2 + 2 * 3            # two functions; of each coordinate, as a vector and alone
    with Checked(SOME):
        tg.trace(lambda x, w, b: tg.tanh(x @ w + b))(x, w, b)


def test_sums_in_sums_are_not_written_out(on_numpy: Any) -> None:
    """The gradient of a batch norm over 4 x 4 pixels of 16 images: 256 terms, for each element of the result."""
    x = tg.tensor(np.random.default_rng(0).standard_normal((16, 13, 4, 4)).astype("float32"))

    def loss(x: Any) -> Any:
        return (F.batch_norm(x, None, None, training=True) ** 3).sum()

    with tuned(Tuning(launch_work=0)):
        plan = plan_of(tg.grad(loss), x)
    assert max(len(k.splitlines()) for k in plan.source.split("__kernel void ")[1:]) < 200
    x = tg.tensor(x.numpy()[:, :2])
    with Checked(SOME) as checked:
        tg.trace(tg.grad(loss))(x)
    assert checked.count == len(SOME)


@pytest.mark.parametrize("iterations", [(1, 2), (1, 1, 2, 2), (1, 1, 1, 2, 2)])
def test_equal_updates_with_other_numbers_keep_theirs(on_numpy: Any, iterations: tuple[int, ...]) -> None:
    """A number may be in a buffer as well as in the kernel's text: groups that are alike but for it are not equal."""
    x, k = tg.tensor(np.linspace(-1, 1, 31)), tg.tensor([0, 0, 6])
    with Checked(SOME):
        for t in iterations:
            x[k[t]] = t
        assert x[0].item() == 1
        assert x[6].item() == 2


ASKING: dict[str, Callable[[Any], Any]] = {                   # programs that ask each of the facts
    "never_positive": lambda x: tg.exp(x - x.amax(1, keepdim=True)),
    "narrow_angle": lambda x: tg.cos(x * 2.0),
    "divides": lambda x: x.long() % 3,
    "may_wrap": lambda x: x.int() * 3,
    "small_reduction": lambda x: x.reshape(-1, 2, 3).sum(1),
}


@pytest.mark.parametrize("fact", lowering_cache.FACTS, ids=repr)
def test_kernels_depend_on_no_fact_that_their_key_does_not_tell(on_numpy: Any, monkeypatch: pytest.MonkeyPatch, fact: Any) -> None:
    x = tg.tensor(np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32))
    program = ASKING[fact.name]
    plan_of(program, x)
    monkeypatch.setattr(lowering_cache, "FACTS", [f for f in lowering_cache.FACTS if f is not fact])
    with pytest.raises(CompilerBug, match=f"depends on {fact.name} of .* which the key of equal kernels does not carry"):
        plan_of(program, x)


@pytest.mark.parametrize("seed", range(4))
def test_kernels_ask_nothing_of_what_is_stored_before(on_numpy: Any, seed: int) -> None:
    """Whether a sum that another kernel has made was a short one, say."""
    def sums(x: Any, s: Any) -> Any:
        a = s + (x * s).sum(-1, keepdim=True)
        return a + (x.sum(-1, keepdim=True) + a.sum())

    with tuned(random_tuning(Random(seed))):
        for target in TARGETS:
            plan_of(sums, tg.ones(3, 65), tg.ones(3, 1), target=target)
