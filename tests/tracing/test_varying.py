"""Sizes that vary: another size of an argument is recorded, and builds no kernel. `tg.trace(dynamic=)`, `tg.mark_dynamic`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.index.varying import any_vary
from tracegrad.codegen.lower import group_kernels
from tracegrad.codegen.planning.arguments import generic
from tracegrad.errors import ArgumentError, CompilerBug
from tracegrad.execute import plan_files, program
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.support import cache
from tracegrad.support.plan import Offset, Target
from tracegrad.tracing import varying
from tracegrad.tracing.reachable_names import tensor_names


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of other tests or processes is known, in memory or on the disk: what is built does not depend on them."""
    cache.clear(["kernels whose sizes vary"])
    monkeypatch.setattr(plan_files, "TEMPLATES", None)


def rows(n: int, width: int = 24) -> Any:
    return tg.tensor(np.random.default_rng(n).standard_normal((n, width)).astype(np.float32))


def keys(traced: Any) -> set[str]:
    """What is built for the kernels of the latest call."""
    return {function.key for function in traced.plan.functions}


def layer(x: Any) -> Any:
    w = tg.linspace(-1, 1, 24 * 16).reshape(24, 16)
    return (x @ w).relu()


def normalized(x: Any) -> Any:
    return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()


def squared(x: Any) -> Any:
    return (layer(x) ** 2).mean()


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: (x * 2 + 1).sin(),
    "mean": lambda x: x.mean(),
    "rows": lambda x: x.softmax(1),
    "columns": normalized,
    "product": layer,
    "outer": lambda x: x.T @ x,
    "flipped": lambda x: tg.cat([x.flip(0), x[1:] - x[:-1]]),
    "gather": lambda x: x[tg.arange(x.shape[0]).flip(0)] * x.shape[0],
    "transposed": lambda x: x.T.contiguous().cumsum(1),
    "convolution": lambda x: nn.functional.conv2d(x.reshape(-1, 1, 4, 6), tg.linspace(-1, 1, 27).reshape(3, 1, 3, 3), padding=1),
    "gradient": tg.func.grad(squared),
}
def scanned(x: Any) -> Any:
    return tg.scan(lambda carry, row: ((carry * 0.5 + row).tanh(), carry), x[0] * 0, x)


def until_small(x: Any) -> Any:
    return tg.while_loop(lambda v: v.abs().sum() > 1, lambda v: tg.cond(v.sum() > 0, lambda v: v * 0.5, lambda v: v * 0.25, v), x)


def recurrent(x: Any, w: Any) -> Any:
    """A sequence's last state, and what a product of all of them with a weight is."""
    last, states = tg.scan(lambda h, row: ((h @ w + row).tanh(),) * 2, x[0] * 0, x)
    return last, (states * 2) @ w


LOOPS: dict[str, Callable[[Any], Any]] = {
    "scan": scanned, "gradient of a scan": tg.func.grad(lambda x: scanned(x)[1].square().mean()), "while loop": until_small,
    "recurrent": lambda x: recurrent(x, tg.linspace(-1, 1, 24 * 24).reshape(24, 24))}
SIZES = 32, 48, 64, 33, 40, 17, 96, 31, 5, 1, 80


def test_what_is_known_of_a_kernel_is_not_looked_for_on_the_disk(nothing_known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of its file is a hash of its text and of all that is known of the device: as long in the making as the kernel's lines."""
    traced = tg.trace(PROGRAMS["rows"], dynamic=True)
    for n in (40, 56, 72):
        traced(rows(n))
    monkeypatch.setattr(generic, "file_of", lambda *_: pytest.fail("a kernel that is known is looked for"))
    np.testing.assert_allclose(traced(rows(88)).numpy(), tg.softmax(rows(88), 1).numpy(), rtol=1e-5)


@one_of(4, "program", PROGRAMS)
def test_generic_kernels_compute_what_those_for_the_size_do(program: str) -> None:
    fixed, any_size = tg.trace(PROGRAMS[program]), tg.trace(PROGRAMS[program], dynamic=None)
    for n in SIZES:
        x = rows(n)
        want, got = fixed(x).numpy(), any_size(x).numpy()
        assert want.tobytes() == got.tobytes(), n


@one_of(2, "program", LOOPS)
def test_loops_compute_what_those_for_the_size_do(program: str) -> None:
    """Their steps are there, though kernels of loops are not proved as a whole."""
    fixed, any_size = tg.trace(LOOPS[program]), tg.trace(LOOPS[program], dynamic=True)
    for n in (24, 33):
        want, got = (optree.tree_leaves(f(rows(n))) for f in (fixed, any_size))
        assert [w.numpy().tobytes() for w in want] == [g.numpy().tobytes() for g in got], n


@pytest.mark.parametrize("fails", [1, 2])
def test_a_loop_is_not_lost_where_a_form_is_not_proved(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its body, or of what stands around it."""
    count, verified = [0], group_kernels.verify_kernel

    def verify(kernel: Any) -> None:
        count[0] += any_vary()
        if any_vary() and count[0] == fails:
            raise CompilerBug("not proved")
        verified(kernel)

    monkeypatch.setattr(group_kernels, "verify_kernel", verify)
    monkeypatch.setattr(tg.config, "check", False)           # which would ask it again,
    monkeypatch.setattr(tg.config, "cache", False)           # and keep plans from other runs away
    fixed, any_size = tg.trace(scanned), tg.trace(scanned, dynamic=True)
    x = rows(26)
    got = any_size(x)
    assert count[0] >= fails
    for a, b in zip(got, fixed(x), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


@one_of(3, "program", ["elementwise", "mean", "rows", "convolution", "outer"])
def test_a_third_size_builds_nothing(program: str, nothing_known: None) -> None:
    traced = tg.trace(PROGRAMS[program], dynamic=None)
    traced(rows(64))
    traced(rows(96))
    built = keys(traced)
    for n in (160, 224, 288):
        traced(rows(n))
        assert keys(traced) <= built, n
        assert "any: x.shape[0]" in traced.explain()


def test_products_with_few_columns_share_a_form(nothing_known: None) -> None:
    """Also where columns are whole vectors (48, 64), and tiles of as many vectors as there are would be another form at each."""

    def scores(x: Any) -> Any:
        return tg.linspace(-1, 1, 24).reshape(1, 24) @ x.T

    fixed, any_size = tg.trace(scores), tg.trace(scores, dynamic=True)
    for n in (35, 42):
        any_size(rows(n))
    built = keys(any_size)
    for n in (48, 49, 64):
        assert fixed(rows(n)).numpy().tobytes() == any_size(rows(n)).numpy().tobytes(), n
        assert keys(any_size) <= built, n


def test_static_programs_keep_their_numbers() -> None:
    texts = []
    for dynamic in (False, None):
        traced = tg.trace(PROGRAMS["mean"], dynamic=dynamic)
        traced(rows(64))
        texts.append(traced.plan.source)
        assert not any(isinstance(a, Offset) and a.dtype == np.float32 for launch in traced.plan.launches for a in launch.args)
    assert texts[0] == texts[1]


def test_dynamic_true_is_generic_from_the_first_size_on() -> None:
    traced = tg.trace(lambda x: (x * 3).cos(), dynamic=True)
    traced(rows(64))
    built = keys(traced)
    traced(rows(96))
    assert keys(traced) == built
    assert "kernels take numbers as arguments" in traced.explain()


def test_dynamic_false_has_a_kernel_for_each_size() -> None:
    traced = tg.trace(lambda x: (x * 3).tan(), dynamic=False)
    x = rows(64)
    tg.mark_dynamic(x, 0)
    traced(x)
    built = keys(traced)
    traced(rows(96))
    assert keys(traced) != built
    assert "sizes vary" not in traced.explain()


def test_a_mark_makes_a_dimension_vary_from_the_first_size_on() -> None:
    traced = tg.trace(lambda x: (x * 5).cos(), dynamic=None)
    x = rows(64)
    tg.mark_dynamic(x, 0, min=2, max=512)
    traced(x)
    built = keys(traced)
    traced(rows(96))
    assert keys(traced) == built
    with pytest.raises(ArgumentError, match=r"x of shape \[600, 24\] has the size 600 in .* 2 to 512 at .*test_varying.py:\d+"):
        traced(rows(600))


def test_marks_are_checked() -> None:
    x = rows(8)
    with pytest.raises(ArgumentError, match=r"mark_dynamic: the tensor of shape \[8, 24\] has the size 8 .* 9 to any"):
        tg.mark_dynamic(x, 0, min=9)
    with pytest.raises(ArgumentError, match="has no dimension 2"):
        tg.mark_dynamic(x, 2)
    with pytest.raises(ArgumentError, match="takes a tensor, not int"):
        tg.mark_dynamic(3, 0)  # type: ignore[arg-type]
    tg.mark_dynamic(x, [0, -1], max=64)
    tg.mark_dynamic(x, 0, max=64)
    with pytest.raises(ArgumentError, match=r"dimension 0 has the range any to 64 since .*test_varying.py:\d+, and is given 1 to 64"):
        tg.mark_dynamic(x, 0, min=1, max=64)


def test_marks_go_with_their_tensor() -> None:
    x = rows(8)
    tg.mark_dynamic(x, 0)
    key = id(x)
    assert key in varying._marks
    del x
    gc.collect()
    assert key not in varying._marks


def test_reused_kernels_are_counted() -> None:
    traced = tg.trace(lambda x: (x * 7).exp(), dynamic=True)
    traced(rows(64))
    before = generic.templates.hits
    traced(rows(96))
    assert generic.templates.hits > before
    assert "kernels whose sizes vary" in str(tg.report())


def test_a_size_that_keeps_coming_gets_kernels_of_its_own(nothing_known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fixed count, and others keep those for any size. An update in place goes on in the same buffer."""
    monkeypatch.setattr(program, "OWN_SIZE_AFTER", 6)
    total = tg.zeros(64, 24)

    @tg.trace(dynamic=True)
    def step(x: Any) -> Any:
        total.add_(x[:1])
        return (x * 3).sin(), total.sum()

    x, want = rows(64), []
    for n in range(9):
        want.append([r.numpy().tobytes() for r in step(x)])
        generic = any(isinstance(a, Offset) for launch in step.plan.launches for a in launch.args)
        assert generic == (n < 5), n
    assert "made for this size, since it came often" in step.explain()
    assert len({first for first, _ in want}) == 1
    np.testing.assert_allclose(total.numpy(), np.broadcast_to(9 * rows(64).numpy()[:1], (64, 24)), rtol=1e-5)
    step(rows(96))
    assert any(isinstance(a, Offset) for launch in step.plan.launches for a in launch.args)
    assert "made for this size, since it came often" not in step.explain()


@pytest.mark.recall
def test_calls_like_the_latest_one_are_counted(nothing_known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast replay of what changes nothing went past the count."""
    monkeypatch.setattr(program, "OWN_SIZE_AFTER", 6)
    step, x = tg.trace(lambda x: (x * 13).sin(), dynamic=True), rows(64)
    assert len({step(x).numpy().tobytes() for _ in range(9)}) == 1
    assert step._latest.short
    assert "made for this size, since it came often" in step.explain()


def test_kernels_for_a_size_that_cannot_be_built_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there goes on."""
    monkeypatch.setattr(program, "OWN_SIZE_AFTER", 4)
    step, x = tg.trace(lambda x: (x * 11).sin(), dynamic=True), rows(64)
    want = step(x).numpy()
    monkeypatch.setattr(program, "compiled", lambda *args: 1 / 0)
    for _ in range(3):
        assert step(x).numpy().tobytes() == want.tobytes()
    assert "sizes vary" in step.explain()
    assert "came often" not in step.explain()


def test_kernels_of_one_template_share_what_drivers_get(nothing_known: None) -> None:
    """Which is what each would have made for itself."""
    traced, calls = tg.trace(PROGRAMS["rows"], dynamic=True), [0]
    traced(rows(64))
    traced(rows(96))
    for n in (160, 33, 224):
        traced(rows(n))
        shared = traced.plan
        for _, template in generic.templates.entries():
            calls[0] += template.built is not None
            template.built = None
        again = tg.trace(PROGRAMS["rows"], dynamic=True)
        again(rows(n))
        assert (again.plan.functions, again.plan.parts) == (shared.functions, shared.parts)
        assert [(step.entry, step.args) for step in again.plan.launches] == [(step.entry, step.args) for step in shared.launches]
    assert calls[0]


SCRIPT = """
import sys, numpy as np, tracegrad as tg
step, built = tg.trace(lambda x: (x.softmax(1) * 2).relu(), dynamic=True), set()
for n in map(int, sys.argv[1:]):
    step(tg.tensor(np.ones((n, 24), np.float32))).numpy()
    built.update(f.key for f in step.plan.functions)
print("\\n".join(built))
"""


def test_a_second_process_asks_for_kernels_that_the_first_one_built(tmp_path: Path) -> None:
    """Also for sizes that the first one never saw."""

    def built(*sizes: int) -> set[str]:
        done = subprocess.run([sys.executable, "-c", SCRIPT, *map(str, sizes)], env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
                              capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    first = built(64, 96, 200)
    assert first
    assert built(224, 130) <= first


@pytest.mark.parametrize("contents", [b"", b"[]", b"{}", b"[1, 2]", b'[["<i4"], [0], ["x"]]', b'[["<i4"], [0], [1, 2]]', b"\xff"])
def test_a_damaged_file_of_a_template_is_as_good_as_none(contents: bytes) -> None:
    class Damaged:
        def get(self, name: str) -> bytes:
            return contents

        def put(self, name: str, contents: bytes) -> None: ...

    assert generic.Template.known("form", "name", Damaged()).seen == []


def test_a_form_that_is_not_proved_is_made_for_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """And explain() says so."""

    def verify(kernel: Any) -> None:
        if any_vary():
            raise CompilerBug("not proved")

    monkeypatch.setattr(group_kernels, "verify_kernel", verify)
    monkeypatch.setattr(tg.config, "check", False)           # which would ask it of all kernels
    fixed, any_size = tg.trace(layer), tg.trace(layer, dynamic=True)
    x = rows(53)
    assert fixed(x).numpy().tobytes() == any_size(x).numpy().tobytes()
    assert len(fixed.plan.launches) == len(any_size.plan.launches)
    assert "not proved for it" in any_size.explain()


def test_a_size_whose_indices_need_64_bits_has_kernels_of_its_own(nothing_known: None) -> None:
    """Kernels that sizes share count in 32 bits where all of these sizes do. (Nothing is computed: no memory is asked for.)"""
    built: list[set[str]] = []
    for n in (1000, 2000, 1 << 27, 1 << 28):
        x = placeholder(Aval((n, 24), np.dtype(np.float32)))
        plan = compile_graph(Graph.capture([x], [bind(REGISTRY["sin"], (x,), {})]), Target(), varying=frozenset([n]))
        assert all(("long" in function.text("k")) is (24 * n >= 1 << 31) for function in plan.functions), plan.source
        built.append({function.key for function in plan.functions})
    small, other, large, larger = built
    assert small == other
    assert large == larger
    assert not small & large


def step_of(dynamic: bool) -> Any:
    """A training step of a small convnet."""
    tg.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 10))
    opt = tg.optim.SGD(net.parameters(), lr=0.1)

    @tg.trace(dynamic=dynamic)
    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return step


@pytest.mark.long
def test_a_convnet_at_other_batch_sizes_builds_few_kernels_and_trains_the_same(nothing_known: None) -> None:
    fixed, any_size, built, new = step_of(False), step_of(True), set[str](), []
    for n in (64, 96, 160, 75, 101, 83, 90):
        rng = np.random.default_rng(n)
        x, y = tg.tensor(rng.standard_normal((n, 1, 8, 8)).astype(np.float32)), tg.tensor(rng.integers(0, 10, n))
        assert fixed(x, y).item() == any_size(x, y).item(), n
        new.append(len(keys(any_size) - built))
        built |= keys(any_size)
    assert sum(new[5:]) <= 2, new


@pytest.mark.long
def test_a_growing_cache_builds_few_kernels(nothing_known: None) -> None:
    def step(q: Any, k: Any, v: Any, more: Any) -> Any:
        k, v = tg.cat([k, more], 2), tg.cat([v, more], 2)
        return nn.functional.scaled_dot_product_attention(q, k, v), k, v

    fixed, any_size = tg.trace(step), tg.trace(step, dynamic=True)
    q, more = tg.full((1, 2, 1, 8), 0.1), tg.linspace(0, 1, 16).reshape(1, 2, 1, 8)
    k = v = tg.linspace(-1, 1, 17 * 16).reshape(1, 2, 17, 8)
    new, built = [], set[str]()
    for _ in range(12):
        want, (out, k_next, v_next) = fixed(q, k, v, more)[0], any_size(q, k, v, more)
        assert want.numpy().tobytes() == out.numpy().tobytes()
        k, v = k_next, v_next
        new.append(len(keys(any_size) - built))
        built |= keys(any_size)
    assert sum(new[4:]) == 0, new


def training(dynamic: bool | None) -> tuple[Any, Any]:
    """A training step, and its model."""
    tg.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16))
    opt = tg.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @tg.trace(dynamic=dynamic)
    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = ((net(x) - x[:, :16]) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    return step, net


@pytest.mark.long
def test_a_training_step_trains_as_for_one_size_and_builds_less(nothing_known: None) -> None:
    losses, built, models = [], [], []
    for dynamic in (False, None):
        step, net = training(dynamic)
        losses.append([])
        built.append([])
        for n in (64, 96, 128, 160, 192, 256, 320, 384):
            losses[-1].append(step(rows(n)).item())
            built[-1].append(keys(step))
        models.append([p.detach().numpy() for p in net.parameters()])
    assert losses[0] == losses[1]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*models, strict=True))
    fixed, generic_ = [len(set().union(*b[4:]) - set().union(*b[:4])) for b in built]
    assert generic_ < fixed, (generic_, fixed)


@pytest.mark.parametrize("program", [p if n % 4 == 0 else pytest.param(p, marks=pytest.mark.long) for n, p in enumerate(PROGRAMS)])
def test_any_number_may_be_an_argument(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic, "depends", lambda number, varying: True)
    monkeypatch.setattr(generic, "MOST", 10_000)
    generic.templates.clear()
    fixed, any_size = tg.trace(PROGRAMS[program]), tg.trace(PROGRAMS[program], dynamic=True)
    x = rows(29)
    assert fixed(x).numpy().tobytes() == any_size(x).numpy().tobytes()
    assert any(isinstance(a, Offset) for launch in any_size.plan.launches for a in launch.args)
    generic.templates.clear()


def test_what_was_recorded_is_not_looked_through_for_names() -> None:
    """A recording takes as long as the first, however many there are, where a function's name is that of a method it calls (`opt.step`)."""
    w, held = tg.ones(3), tg.ones(3)
    traced = tg.trace(lambda x: x * w, dynamic=True)
    traced._held = [held]
    assert tensor_names(traced) == {id(w): "w"}
