"""Random programs: every way to run one gives the same values, and every way to differentiate one the same derivatives.

A failure on a device is written to `fuzz-failures/` as a standalone script with its kernels (tests/helpers/standalone.py), the smallest
that hypothesis found last. `HYPOTHESIS_PROFILE=long` runs many more examples.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tracegrad as tg
from tests.helpers import standalone
from tests.random_programs.random_programs import FLOATS, Program, programs
from tracegrad.execute import compile as tg_compile
from tracegrad.execute import program as tg_program
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.runtime.device import Device
from tracegrad.support.dtypes import dtype_kind

FAILURES = Path(__file__).parents[2] / "fuzz-failures"
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}
LONG = settings.default is not None and settings.default.max_examples > 100
CALLS = (0, 1, 0)                       # which inputs, call after call
GPU = dict(kind="gpu", local_memory=32768, plain_math=False, clang_builtins=False, max_work_group=256)
TARGETS: dict[str, Any] = {             # what a program is planned for: the device as it is, or as if it were another
    "own": {}, "no float64": dict(fp64=False), "gpu": GPU, "simd 16": dict(simd_bytes=16), "simd 32": dict(simd_bytes=32),
    "simd 64": dict(simd_bytes=64), "1 core": dict(cores=1), "16 cores": dict(cores=16), "gpu, 16 cores": {**GPU, "cores": 16},
    "no clang": dict(clang_builtins=False, simd_bytes=32),
}
targets = st.sampled_from(list(TARGETS))


def examples(quick: int, long: int) -> Any:
    """So many examples in the profile that runs."""
    return settings(max_examples=long if LONG else quick, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def _default_device():
    before = tg.device()
    yield
    tg.set_device(before)


@pytest.fixture
def on():
    """The default device, which is to be an OpenCL device with every dtype."""
    found = tg.device()
    if found.kind == "numpy" or not found.target.fp64:
        pytest.skip("needs an OpenCL device with float64")
    return found


_planned: dict[tuple[Any, str], Any] = {}


def planned(on: Any, target: str, program: Program, derivative: bool = False) -> Any:
    """The device, planned for as TARGETS says; as it is, if the program needs float64 and the target has none (arguments count)."""
    double = derivative or "float64" in program.text() or any(a.dtype in (np.float64, np.complex128) for a in program.arrays(0))
    if target == "own" or (target == "no float64" and double):
        return on
    key = (on, target)
    if key not in _planned:
        _planned[key] = Device(on.cl_device, on.cl_basic)
        _planned[key].target = replace(on.target, **TARGETS[target])
    return _planned[key]


def arguments(program: Program, which: int, device: Any, grad: bool = False) -> list[Any]:
    tensors = [tg.tensor(a, device=device) for a in program.arrays(which)]
    return [t.requires_grad_() if grad and t.is_floating_point() else t for t in tensors]


def called(program: Program, fn: Any, which: int, device: Any) -> list[Any]:
    """The results of one call and what became of the inputs, as arrays."""
    args = arguments(program, which, device)
    results = fn(*args, FLOATS[which])
    return [t.detach().numpy() for t in (*results, *args)]


def agree(found: Any, wanted: Any, program: Program, what: str) -> None:
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        assert (f.shape, f.dtype) == (w.shape, w.dtype), f"{what}: result {k} of\n{program!r}"
        if dtype_kind(w.dtype) != "f":
            np.testing.assert_array_equal(f, w, err_msg=f"{what}: result {k} of\n{program!r}")
        else:
            floats = [a for a in (*program.arrays(0), w) if dtype_kind(a.dtype) == "f"]
            tolerance = max(TOLERANCE[str(a.dtype)] for a in floats) * (1 + len(program.lines))
            scale = np.max(np.abs(w), initial=1.0)
            np.testing.assert_allclose(f, w, rtol=0, atol=tolerance * scale, err_msg=f"{what}: result {k} of\n{program!r}")


class Watched:
    """Every program that runs inside the block, checked against the interpreter; the first that differs is written as a script."""

    def __enter__(self) -> Watched:
        self.script: Path | None = None
        self._real = real = tg_program.Program.__call__

        def call(program: Any, values: Any, lines: Any = None) -> Any:
            given = [v if weak else v.download(n.shape, n.dtype) for v, weak, n in
                     zip(values, program.weak, program.graph.inputs, strict=True)]
            out = real(program, values, lines)
            if program.plan is not None and self.script is None:
                wanted = interpret(tg_compile.executable_graph(program.graph), given)
                found = [b.download(n.shape, n.dtype) for b, n in zip(out, program.graph.outputs, strict=True)]
                pairs = zip(found, wanted, strict=True)
                if any(not np.allclose(f, w, rtol=1e-4, atol=1e-4 * np.max(np.abs(w), initial=1)) for f, w in pairs):
                    buffers = [g for g, weak in zip(given, program.weak, strict=True) if not weak]
                    numbers = [g for g, weak in zip(given, program.weak, strict=True) if weak]
                    self.script = standalone.write(FAILURES, "failure", program.plan, buffers, numbers, wanted, 1e-4)
            return out

        tg_program.Program.__call__ = call  # type: ignore[method-assign]
        return self

    def __exit__(self, *exc: object) -> None:
        tg_program.Program.__call__ = self._real  # type: ignore[method-assign]


def compare(program: Program, what: str, run: Any, wanted: Any) -> None:
    """run() gives what is wanted; if not, find the plan at fault."""
    try:
        agree(run(), wanted, program, what)
    except BaseException as error:
        FAILURES.mkdir(exist_ok=True)
        (FAILURES / "program.txt").write_text(f"{what}\n{program!r}\n{error}")
        with Watched() as watched:
            tg_program.programs.clear()
            try:
                run()
            except Exception as again:
                error.add_note(f"again: {again}")
        error.add_note(f"{what}; standalone: {watched.script or 'no single program is at fault'}")
        raise


# -------------------------------------------------------------------------------------------------------------------- values


@examples(18, 400)
@given(programs(), targets, st.sampled_from(["traced", "deferred", "reads", "varying"]))
def test_every_way_to_run_a_program(on: Any, program: Program, target: str, way: str) -> None:
    """In a long run every way, else the one that is drawn: each has to be built."""
    on = planned(on, target, program)
    wanted = {which: called(program, program.function(), which, "numpy") for which in set(CALLS)}
    if LONG or way == "deferred":
        compare(program, "deferred", lambda: called(program, program.function(), 0, on), wanted[0])
    if LONG or way == "reads":
        compare(program, "deferred with reads", lambda: called(program, program.function(reads=True), 0, on), wanted[0])
    if LONG or way == "traced":
        traced = tg.trace(program.function())
        for which in CALLS:
            compare(program, "traced", lambda which=which: called(program, traced, which, on), wanted[which])
    if LONG or way == "varying":                             # kernels that other programs have with other numbers are theirs, too
        varying = tg.trace(program.function(), dynamic=True)
        for which in CALLS:
            compare(program, "varying", lambda which=which: called(program, varying, which, on), wanted[which])
    if LONG:
        compare(program, "unfused", lambda: unfused(program, on), wanted[0])


def unfused(program: Program, on: Any) -> Any:
    before, tg.config.fuse = tg.config.fuse, False
    try:
        return called(program, tg.trace(program.function()), 0, on)
    finally:
        tg.config.fuse = before


@examples(60, 3000)
@given(programs())
def test_recording_changes_nothing(program: Program) -> None:
    """Deferred, with reads between, and traced on the interpreter: what has to do with handles, effects and guards, not with kernels."""
    wanted = {which: called(program, program.function(), which, "numpy") for which in set(CALLS)}
    agree(called(program, program.function(reads=True), 0, "numpy"), wanted[0], program, "reads")
    traced = tg.trace(program.function())
    for which in CALLS:
        agree(called(program, traced, which, "numpy"), wanted[which], program, "traced")
    assert len(traced.compilations) == 1


@examples(40, 2000)
@given(programs())
def test_small_work_done_with_numpy_gives_the_same(on: Any, program: Program) -> None:
    """The two backends of execute/policy.py: here numpy's, on values that the device could hold."""
    if not on.in_host_memory:
        pytest.skip("the device has memory of its own")
    before, tg.config.eager = tg.config.eager, True
    try:
        agree(called(program, program.function(reads=True), 0, on), called(program, program.function(), 0, "numpy"), program, "eager")
        if not program.in_place_on_inputs:
            agree(backward(program, 0, on), backward(program, 0, "numpy"), program, "eager backward")
    finally:
        tg.config.eager = before


# --------------------------------------------------------------------------------------------------------------- derivatives


def losses(program: Program) -> Any:
    """The program as a function to a scalar, of its inputs and the Python float."""
    fn = program.function()

    def loss(*args: Any) -> Any:
        total = tg.zeros((), dtype=tg.float64, device=args[0].device)
        for result in fn(*args):
            if result.is_floating_point():
                total = total + (result * result).mean().double() * 0.25
        return total

    return loss


def floats(program: Program) -> list[int]:
    return [i for i, a in enumerate(program.arrays(0)) if dtype_kind(a.dtype) == "f"]


def backward(program: Program, which: int, device: Any, wrap: Any = lambda f: f) -> list[Any]:
    """The loss and the gradients that backward() leaves on the inputs."""
    args = arguments(program, which, device, grad=True)
    value = wrap(losses(program))(*args, FLOATS[which])
    if value.requires_grad:
        value.backward()
    return [value.detach().numpy(), *(np.zeros(args[i].shape, args[i].dtype) if args[i].grad is None else args[i].grad.numpy()
                                      for i in floats(program))]


def functional(program: Program, which: int, device: Any, wrap: Any = lambda f: f) -> list[Any]:
    """The same by tg.value_and_grad."""
    args = arguments(program, which, device)
    value, grads = wrap(tg.value_and_grad(losses(program), argnums=tuple(floats(program))))(*args, FLOATS[which])
    return [value.numpy(), *(g.numpy() for g in grads)]


@examples(8, 250)
@given(programs(), targets)
def test_gradients_on_the_device(on: Any, program: Program, target: str) -> None:
    on = planned(on, target, program, derivative=True)
    if program.in_place_on_inputs:
        return
    wanted = backward(program, 0, "numpy")
    if LONG:
        compare(program, "backward", lambda: backward(program, 0, on), wanted)
    compare(program, "traced value_and_grad", lambda: functional(program, 0, on, tg.trace), wanted)
    if LONG:
        compare(program, "backward through a traced call", lambda: backward(program, 0, on, tg.trace), wanted)


@examples(40, 2000)
@given(programs())
def test_modes_of_differentiation_agree(program: Program) -> None:
    """backward, tg.grad, inside and through @trace, jvp against vjp, second derivatives, all on the interpreter."""
    if program.in_place_on_inputs:
        return
    wanted = backward(program, 1, "numpy")
    for what, found in (
        ("value_and_grad", functional(program, 1, "numpy")),
        ("traced value_and_grad", functional(program, 1, "numpy", tg.trace)),
        ("value_and_grad of traced", value_and_grad_of_traced(program, 1)),
        ("backward through a traced call", backward(program, 1, "numpy", tg.trace)),
        ("a traced backward", traced_backward(program, 1)),
    ):
        agree(found, wanted, program, what)
    forward(program, wanted)
    second(program)


def value_and_grad_of_traced(program: Program, which: int) -> list[Any]:
    args = arguments(program, which, "numpy")
    value, grads = tg.value_and_grad(tg.trace(losses(program)), argnums=tuple(floats(program)))(*args, FLOATS[which])
    return [value.numpy(), *(g.numpy() for g in grads)]


def traced_backward(program: Program, which: int) -> list[Any]:
    loss = losses(program)

    @tg.trace
    def step(*args: Any) -> Any:
        value = loss(*args)
        if value.requires_grad:
            value.backward()
        return value

    for _ in range(2):
        args = arguments(program, which, "numpy", grad=True)
        value = step(*args, FLOATS[which])
    return [value.detach().numpy(), *(np.zeros(args[i].shape, args[i].dtype) if args[i].grad is None else args[i].grad.numpy()
                                      for i in floats(program))]


def forward(program: Program, wanted: list[Any]) -> None:
    """The derivative in a direction, forward, is that of the gradient."""
    rng = np.random.default_rng(2)
    args = arguments(program, 1, "numpy")
    primals = [args[i] for i in floats(program)]
    tangents = [tg.tensor(rng.choice([-1.0, 0.5, 1.0], p.shape).astype(p.dtype), device="numpy") for p in primals]

    def loss(*given: Any) -> Any:
        full = list(args)
        for i, x in zip(floats(program), given, strict=True):
            full[i] = x
        return losses(program)(*full, FLOATS[1])

    _, pushed = tg.jvp(loss, tuple(primals), tuple(tangents))
    pulled = np.asarray(sum(float(np.sum(g.astype("float64") * t.numpy())) for g, t in zip(wanted[1:], tangents, strict=True)))
    size = sum(float(np.sum(np.abs(g))) for g in wanted[1:])
    np.testing.assert_allclose(pushed.numpy(), pulled, rtol=0, atol=2e-4 * (1 + size), err_msg=repr(program))


def second(program: Program) -> None:
    """The gradient of the gradient's norm: by create_graph, by nested tg.grad, by forward over reverse."""
    args = arguments(program, 1, "numpy", grad=True)
    wanted = [args[i] for i in floats(program)]
    value = losses(program)(*args, FLOATS[1])
    if not value.requires_grad:
        return
    grads = [g for g in tg.autograd.grad(value, wanted, create_graph=True, allow_unused=True) if g is not None and g.requires_grad]
    if not grads:
        return
    norm = sum((g * g).sum().double() for g in grads)
    by_graph = tg.autograd.grad(norm, wanted, allow_unused=True)

    def size(*given: Any) -> Any:
        found = tg.grad(losses(program), argnums=tuple(floats(program)))(*given)
        return sum((g * g).sum().double() for g in found)

    plain = arguments(program, 1, "numpy")
    nested = tg.grad(size, argnums=tuple(floats(program)))(*plain, FLOATS[1])
    limit = max(float(np.max(np.abs(n.numpy()), initial=0)) for n in nested)
    for a, b in zip(by_graph, nested, strict=True):
        first = np.zeros(b.shape) if a is None else a.detach().numpy()
        np.testing.assert_allclose(first, b.numpy(), rtol=0, atol=1e-3 * (1 + limit), err_msg=repr(program))


@examples(15, 1000)
@given(programs(in_place=False, most=6))
def test_sparse_jacobians_have_every_entry(program: Program) -> None:
    """What is not zero in the dense Jacobian is stored, and what is stored is the same."""
    args = arguments(program, 1, "numpy")
    fn, wanted = program.function(), [i for i in floats(program) if args[i].numel() <= 400]

    def given_all(*some: Any) -> list[Any]:
        full = list(args)
        for i, x in zip(wanted, some, strict=True):
            full[i] = x
        return full

    def results(*some: Any) -> list[Any]:
        return [r for r in fn(*given_all(*some), FLOATS[1]) if r.is_floating_point() and r.numel() <= 400]

    primals = [args[i] for i in wanted]
    if not primals or not results(*primals):
        return
    numbers = tuple(range(len(primals)))
    for row, dense in zip(tg.func.sparse_jacobian(results, numbers)(*primals), tg.jacrev(results, numbers)(*primals), strict=True):
        for found, whole in zip(row, dense, strict=True):
            a, b = found.to_dense().numpy(), whole.numpy()
            missing = np.array((b != 0) & np.isfinite(b))
            missing[tuple(found.indices.numpy())] = False
            assert not missing.any(), f"{program!r}\nhas entries at {np.argwhere(missing)[:5]} that are not stored"
            size = np.max(np.abs(b), initial=0, where=np.isfinite(b))
            np.testing.assert_allclose(a, np.where(np.isfinite(a), b, a), rtol=0, atol=2e-4 * (1 + size), err_msg=repr(program))


@examples(30, 1500)
@given(programs(in_place=False))
def test_vmap_is_a_loop(program: Program) -> None:
    fn = program.function()
    sets = [arguments(program, which, "numpy") for which in (0, 1)]
    stacked = [tg.stack(list(pair)) for pair in zip(*sets, strict=True)]
    batched = tg.vmap(lambda *args: fn(*args, 1.0))(*stacked)
    rows = [fn(*args, 1.0) for args in sets]
    assume(all(np.all(np.isfinite(r.numpy())) for row in rows for r in row))        # the second inputs were tried with another float
    agree([b.numpy() for b in batched], [np.stack([r[k].numpy() for r in rows]) for k in range(len(program.outputs))], program, "vmap")


# ------------------------------------------------------------------------------------------------------------------ reproducers


def test_a_plan_runs_without_tracegrad(on: Any, tmp_path: Path) -> None:
    if on.compiled_for:
        pytest.skip(f"{on.driver} builds nothing for this CPU unless it is told another's name (runtime/drivers/pocl_cpu.py)")
    f = tg.trace(lambda x, w, c: ((x @ w * c).softmax(1), w.cumsum(0), (x > 0).any()))
    x, w = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((5, 8), (8, 3)))
    wanted = [t.numpy() for t in f(tg.tensor(x), tg.tensor(w), 0.5)]
    for name, expected, code in (("right", wanted, 0), ("wrong", [wanted[0] + 1, *wanted[1:]], 1)):
        script = standalone.write(tmp_path, name, f.plan, [x, w], [0.5], expected, 1e-6)
        assert "tracegrad" not in script.read_text()
        assert f"void {f.plan.launches[0].entry}(" in (tmp_path / f"{name}.cl").read_text()
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("5 of 15" in done.stdout or "15 of 15" in done.stdout) == bool(code)
