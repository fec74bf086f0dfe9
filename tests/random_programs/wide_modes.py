"""Ways to run and to differentiate the programs of tests/random_programs/wide_programs.py that have to agree. Start at `WAYS`.

A way takes a random.Random and gives the program, as text, and a call that compares. What the call does on the interpreter is checked
by kernels, too (tests/kernels.Checked); what says how well a program is conditioned is done before it. Programs whose results change a
lot with the last places of what they are computed of are `Sensitive`: they say little.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import tracegrad as tg
from tests.helpers.values import plain as exactly
from tests.random_programs.random_programs import FLOATS, Program
from tests.random_programs.test_fuzz import backward, floats, functional, losses
from tests.random_programs.wide_programs import (
    ATTENTION,
    CONVOLUTIONS,
    EQUAL,
    LIMIT,
    SCANS,
    SCATTERED,
    STENCILS,
    TURNED,
    Iteration,
    Loop,
    drawn,
    equal,
    looping,
    sliding,
)
from tracegrad.execute import policy
from tracegrad.execute.program import programs
from tracegrad.graph import primitive
from tracegrad.ops import arguments
from tracegrad.support.dtypes import dtype_kind

Way = tuple[str, Callable[[], None]]


class Sensitive(Exception):
    """A program says little: its results change a lot when what they are computed of changes in its last places."""


def allowed(wanted: Any, coarsest: float, slack: float) -> float:
    return slack * max(coarsest, LIMIT[str(wanted.dtype)]) * float(np.max(np.abs(wanted), initial=1.0))


def coarsest(program: Program) -> float:
    """The limit of the coarsest dtype that a program may compute in."""
    text = program.text()
    dtypes = {str(a.dtype) for a in program.arrays(0)}
    if "bfloat16" in dtypes or ".bfloat16()" in text:
        return LIMIT["bfloat16"]
    if "float16" in dtypes or ".half()" in text:
        return LIMIT["float16"]
    single = {"float32", "complex64"} & dtypes or re.search(r"float32|\.float\(\)|\bk[12]\b", text)       # of integers come float32
    return LIMIT["float32" if single else "float64"]


def steady(found: list[Any], off: list[Any], program: Program, slack: float = 1.0) -> None:
    """Sensitive where two runs, one with noise, do not agree."""
    for f, o in zip(found, off, strict=True):
        if f.shape != o.shape or f.dtype != o.dtype:
            raise Sensitive
        if dtype_kind(f.dtype) in "fc":
            if not np.all(np.isfinite(f)) or not np.all(np.isfinite(o)) or np.max(np.abs(f), initial=0) > 1e4:
                raise Sensitive
            if np.max(np.abs(f.astype("complex128") - o), initial=0) > allowed(f, coarsest(program), slack):
                raise Sensitive
        elif not np.array_equal(f, o):
            raise Sensitive


def same(found: list[Any], wanted: list[Any], program: Program, what: str, slack: float = 1.0) -> None:
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        assert (f.shape, f.dtype) == (w.shape, w.dtype), f"{what}: result {k} is {f.dtype}{f.shape}, not {w.dtype}{w.shape}"
        if dtype_kind(w.dtype) in "fc":
            most = allowed(w, coarsest(program), 10 * slack)
            np.testing.assert_allclose(exactly(f), exactly(w), rtol=0, atol=most, err_msg=f"{what}: result {k}")
        else:
            np.testing.assert_array_equal(f, w, err_msg=f"{what}: result {k}")


@contextmanager
def forgetful() -> Iterator[None]:
    """Calls are made at length, none from what an earlier one made (graph/cached_calls.py)."""
    kept = primitive.describe, arguments.describe
    primitive.describe = arguments.describe = lambda *_: None
    try:
        yield
    finally:
        primitive.describe, arguments.describe = kept


def results(program: Program, way: Any = lambda f: f, reads: bool = False, device: Any = "numpy") -> list[Any]:
    """What a program gives, and what became of its inputs; untraced unless `way` is tg.trace."""
    before = tg.device()
    tg.set_device(device)
    try:
        args = [tg.tensor(a) for a in program.arrays(0)]
        found = way(program.function(reads))(*args, FLOATS[0])
        return [t.detach().numpy() for t in (*found, *args)]
    finally:
        tg.set_device(before)


def plain(rng: random.Random, in_place: bool = True, groups: Any = None) -> tuple[Program, Program, list[Any]]:
    """A program, the same with noise, and its results."""
    number = rng.randrange(1 << 40)
    if groups is EQUAL:
        program, noisy = equal(number, in_place)
    else:
        program, noisy = drawn(number, 3 if groups else rng.choice([3, 5, 8]), in_place, groups)
    if not in_place and not floats(program):
        raise Sensitive
    return program, noisy, results(program)


def value(rng: random.Random, groups: Any = None) -> Way:
    program, noisy, wanted = plain(rng, groups is None or groups is EQUAL, groups)
    steady(wanted[:len(program.outputs)], results(noisy)[:len(program.outputs)], program)
    return repr(program), lambda: same(results(program, tg.trace), wanted, program, "traced")


def untraced(rng: random.Random) -> Way:
    program, noisy, wanted = plain(rng)
    steady(wanted[:len(program.outputs)], results(noisy)[:len(program.outputs)], program)
    return repr(program) + f"reads: {program.reads}", lambda: same(results(program, reads=True), wanted, program, "untraced")


def stencil(rng: random.Random) -> Way:
    """Steps on neighbours, of what was moved about: the value, or the gradient."""
    return rng.choice([value, value, gradient])(rng, [(1, STENCILS)])


def equals(rng: random.Random) -> Way:
    """The same done to several arrays: the value, or the gradient."""
    return rng.choice([value, value, gradient])(rng, EQUAL)


def special(rng: random.Random) -> Way:
    """What has kernels of its own: the value, or the gradient."""
    lines = rng.choice([SCANS, SCANS, *[ATTENTION] * 3, CONVOLUTIONS, TURNED, SCATTERED])
    return rng.choice([value, value, gradient])(rng, [(1, lines)])


def gradient(rng: random.Random, groups: Any = None) -> Way:
    program, noisy, _ = plain(rng, False, groups)
    if coarsest(program) >= LIMIT["float16"]:
        raise Sensitive
    wanted = functional(program, 0, "numpy")
    steady(wanted, functional(noisy, 0, "numpy"), program, 3)
    return repr(program), lambda: same(functional(program, 0, "numpy", tg.trace), wanted, program, "traced gradient", 3)


def direction(rng: random.Random) -> Way:
    """jvp is the gradient times the direction."""
    program, noisy, _ = plain(rng, in_place=False)
    grads = functional(program, 0, "numpy")[1:]
    steady(grads, functional(noisy, 0, "numpy")[1:], program)
    tangents = [rng.choice([0.5, 1.0]) * np.resize([1.0, -1.0, 0.5, 1.0, -0.5], g.shape).astype(g.dtype) for g in grads]

    def pushed(which: Program, way: Any = lambda f: f) -> Any:
        args: Any = [tg.tensor(a, device="numpy") for a in which.arrays(0)]

        def loss(*given: Any) -> Any:
            full = list(args)
            for i, x in zip(floats(which), given, strict=True):
                full[i] = x
            return losses(which)(*full, FLOATS[0])

        primals = tuple(args[i] for i in floats(which))
        turned = tuple(tg.tensor(t, device="numpy") for t in tangents)
        return way(lambda p, t: tg.jvp(loss, p, t)[1])(primals, turned).numpy()

    pulled = sum(float(np.sum(g.astype("float64") * t)) for g, t in zip(grads, tangents, strict=True))
    size = sum(float(np.sum(np.abs(g.astype("float64")))) for g in grads)
    steady([pushed(program)], [pushed(noisy)], program, 3)

    def run() -> None:
        np.testing.assert_allclose(pushed(program, tg.trace), pulled, rtol=0, atol=20 * max(coarsest(program), 1e-12) * (1 + size))

    return repr(program), run


def second(rng: random.Random) -> Way:
    """The gradient of the gradient's norm, by two ways."""
    program, noisy, _ = plain(rng, in_place=False)

    def nested(which: Program, way: Any = lambda f: f) -> list[Any]:
        def size(*given: Any) -> Any:
            found = tg.grad(losses(which), argnums=tuple(floats(which)))(*given)
            return sum((g * g).sum().double() for g in found)

        args = [tg.tensor(a, device="numpy") for a in which.arrays(0)]
        return [g.numpy() for g in way(tg.grad(size, argnums=tuple(floats(which))))(*args, FLOATS[0])]

    def by_graph() -> list[Any]:
        args: Any = [tg.tensor(a, device="numpy") for a in program.arrays(0)]
        inputs = [args[i].requires_grad_() for i in floats(program)]
        loss = losses(program)(*args, FLOATS[0])
        grads = tg.autograd.grad(loss, inputs, create_graph=True, allow_unused=True) if loss.requires_grad else []
        grads = [g for g in grads if g is not None and g.requires_grad]
        found = tg.autograd.grad(sum((g * g).sum().double() for g in grads), inputs, allow_unused=True) if grads else [None] * len(inputs)
        return [np.zeros(x.shape, str(x.dtype)) if g is None else g.detach().numpy() for g, x in zip(found, inputs, strict=True)]

    wanted = nested(program)
    steady(wanted, nested(noisy), program, 3)
    same(by_graph(), wanted, program, "create_graph", 10)
    return repr(program), lambda: same(nested(program, tg.trace), wanted, program, "traced second derivative", 10)


def mapped(rng: random.Random) -> Way:
    """vmap is a loop: here over the inputs and the same in another order."""
    program, noisy, first = plain(rng, in_place=False)
    if program.in_place_on_inputs:
        raise Sensitive
    others = {k: a if k == "k0" else np.ascontiguousarray(a.reshape(-1)[::-1].reshape(a.shape)) for k, a in program.inputs[0].items()}
    for which in (program, noisy):
        which.inputs = [which.inputs[0], others]
    turned, off = (Program(p.lines, [others, others], p.outputs) for p in (program, noisy))
    count = len(program.outputs)
    wanted = results(turned)[:count]
    steady(wanted, results(off)[:count], program)
    stacked: Any = [tg.tensor(np.stack([program.inputs[0][k], others[k]]), device="numpy") for k in others]

    def run() -> None:
        fn = program.function()
        found = tg.trace(tg.vmap(lambda *args: fn(*args, FLOATS[0])))(*stacked)
        same([f.numpy() for f in found], [np.stack(pair) for pair in zip(first[:count], wanted, strict=True)], program, "vmap", 3)

    return repr(program), run


# ------------------------------------------------------------------------------------------------------------------ untraced loops


def body(rng: random.Random) -> tuple[Loop, Loop, list[Any]]:
    """A loop, the same with noise, and its results, each call of it made at length."""
    loop, noisy = looping(rng.randrange(1 << 40))
    with forgetful():
        try:
            wanted = results(loop)
        except (tg.TracegradError, ZeroDivisionError):      # of a later iteration: what was tried is the second
            raise Sensitive from None
        steady(wanted, results(noisy), loop)
    return loop, noisy, wanted


def slopes(loop: Loop, device: Any) -> list[Any]:
    before = tg.device()
    tg.set_device(device)
    try:
        return [np.asarray(g) for g in backward(loop, 0, device)]
    finally:
        tg.set_device(before)


def loop(rng: random.Random) -> Way:
    """Deferred, on the interpreter, with reads."""
    found, _, wanted = body(rng)
    reads = rng.random() < 0.5
    return repr(found) + f"reads: {found.reads}", lambda: same(results(found, reads=reads), wanted, found, "loop")


def slide(rng: random.Random) -> Way:
    """The derivative of each iteration of a loop: untraced slices have moving starts, those of a trace are where they are."""
    iteration, noisy = sliding(rng.randrange(1 << 40))
    order, alone = rng.choice([1, 1, 1, 2]), rng.random() < 0.5
    if not floats(iteration) or coarsest(iteration) >= LIMIT["float16"]:
        raise Sensitive

    def each(which: Iteration, wrap: Any) -> list[Any]:
        args, loss, wanted = [tg.tensor(a, device="numpy") for a in which.arrays(0)], losses(which), tuple(floats(which))
        if order == 2:
            once = tg.grad(loss, argnums=wanted)
            loss = lambda *given: sum((g * g).sum().double() for g in once(*given))
        slope, out = tg.value_and_grad(loss, argnums=wanted), []
        for t in which.iterations:
            value, grads = wrap(lambda *given, t=t: slope(*given, FLOATS[0], t))(*args)
            out += [value.numpy(), *(g.numpy() for g in grads)]
        return out

    def backward_each() -> list[Any]:
        loss, out = losses(iteration), []
        for t in iteration.iterations:
            args = [tg.tensor(a, device="numpy") for a in iteration.arrays(0)]
            inputs: Any = [args[i].requires_grad_() for i in floats(iteration)]
            value = loss(*args, FLOATS[0], t)
            if value.requires_grad:
                value.backward()
            out += [value.detach().numpy(), *(np.zeros(x.shape, str(x.dtype)) if x.grad is None else x.grad.numpy() for x in inputs)]
        return out

    try:
        wanted = each(iteration, tg.trace)
    except (tg.TracegradError, ZeroDivisionError):          # of another iteration than was tried
        raise Sensitive from None
    steady(wanted, each(noisy, lambda f: f), iteration, 3 ** order)
    found = backward_each if order == 1 and alone else lambda: each(iteration, lambda f: f)
    what = f"{iteration!r}iterations {iteration.iterations}, order {order}"
    return what, lambda: same(found(), wanted, iteration, "one by one", 3 ** order)


class Eagerly:
    """Work of the device is done as users have it; patient: how long numpy does it before a kernel is built."""

    def __init__(self, patient: bool) -> None:
        self.patient = patient

    def __enter__(self) -> None:
        self.kept = tg.config.eager, policy.BUILD, policy.BUILD_NODE
        tg.config.eager = True
        programs.clear()
        if not self.patient:
            policy.BUILD, policy.BUILD_NODE = 1e4, 1e3

    def __exit__(self, *exc: object) -> None:
        tg.config.eager, policy.BUILD, policy.BUILD_NODE = self.kept
        programs.clear()


def eager_loop(rng: random.Random, patient: bool = True) -> Way:
    """On the device: by numpy's rules, with reads of values and without, and its gradient; twice, since recurring work is recalled."""
    found, noisy, wanted = body(rng)
    gradients = None
    if not found.in_place_on_inputs and floats(found) and rng.random() < 0.5:
        with forgetful():
            gradients = slopes(found, "numpy")
            steady(gradients, slopes(noisy, "numpy"), found, 3)

    def run() -> None:
        with Eagerly(patient):
            for reads in (False, True, False):
                same(results(found, reads=reads, device=DEVICE[0]), wanted, found, "eager loop")
            for _ in range(2 * (gradients is not None)):
                same(slopes(found, DEVICE[0]), gradients or [], found, "eager loop's gradient", 3)

    return repr(found), run


def quick_loop(rng: random.Random) -> Way:
    """The same, with kernels after a few uses: a driver builds them, which takes its time."""
    return eager_loop(rng, patient=False)


DEVICE: list[Any] = ["numpy"]               # the device that `eager_loop` is for
WAYS = (value, stencil, equals, special, untraced, gradient, direction, second, mapped, loop, slide, eager_loop, quick_loop)
