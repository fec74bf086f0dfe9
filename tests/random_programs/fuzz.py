"""Many random programs, counted: `python -m tests.random_programs.fuzz --count 100000` (or `make fuzz COUNT=... SEED=...`). Start at
`batch`.

Each program is planned for a random device with random thresholds, its kernels are run without a driver (`tests/helpers/kernels.py`) and
compared with the interpreter. What is drawn: random programs (`tests/random_programs/random_programs.py`) as they are, their gradients,
their derivatives in a direction and their second derivatives; functions of ordinary rows in context, with gradients
(`tests/helpers/size_cases.py`: quicker to draw, and most errors show there); updates of arguments. Batches of 250 have a seed each, and a
program is drawn of the batch's seed and its place there, so that it can be run by itself: what failed is printed with both, for `--seed N
--only PLACE`.
"""

from __future__ import annotations

import gc
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click
import numpy as np

import tracegrad as tg
from tests.helpers.kernels import Checked, random_target, random_tuning
from tests.helpers.size_cases import AFTER, BEFORE, FUNCTIONS, LAYOUTS, POINTWISE, SIZES, WORLD, Case, compute, fitting
from tests.ops.test_sizes import CORE, UPDATES
from tests.random_programs import wide_modes
from tests.random_programs.random_moves import moved, random_moves
from tests.random_programs.random_programs import FLOATS, Program, random_program
from tests.random_programs.test_fuzz import backward, called, floats, forward, functional, second
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

BATCH = 250
FIRST = 200                         # of the quick programs, which `make test` runs


def value(program: Program) -> None:
    called(program, tg.trace(program.function()), 0, "numpy")


def gradient(program: Program) -> None:
    functional(program, 0, "numpy", tg.trace)


def direction(program: Program) -> None:
    forward(program, backward(program, 1, "numpy"))


EXTREMA = [          # of numbers of one sign, and their places
    "(x - 5.0).amax(-1)", "(x + 5.0).amin(-1)", "(x - 5.0).amax(0)", "(x + 5.0).amin(0)", "(x - 5.0).amax()", "x.argmax(0)", "x.argmin(0)",
    "x.argmax(-1)", "(x - 5.0).max(0)[1]", "x.sort(0)[1]", "(x + 5.0).min(-1)[0]",
]


MASKS = [            # truths of a row with those of its elements
    "tg.where((x.sum(-1, keepdim=True) > 0) & (x > 0.25), x, x * 0.5)", "x.masked_fill((x.amax(-1, keepdim=True) > 1.5) | (x < -0.5), 2.0)",
    "tg.where((x.mean(-1, keepdim=True) > 0) ^ (x > 0), x * 2, -x).sum(-1)",
]


def drawn(rng: random.Random) -> Case:
    """A function of rows between movements and a reader."""
    text = rng.choice(rng.choice([CORE, CORE, EXTREMA, FUNCTIONS, POINTWISE]))
    before = ", ".join(rng.choice(list(BEFORE)) for _ in range(rng.choice([1, 1, 2])))
    n = rng.choice(SIZES[1:-2])                             # two movements may leave out ten elements
    layout, after, how = rng.choice(list(LAYOUTS)), rng.choice(list(AFTER)), rng.choice([0, 0, 1])
    return fitting(Case(rng.choice(MASKS) if rng.random() < 0.08 else text, n, layout, before, after, how))


def case(found: Case) -> None:
    """Its value, and perhaps its gradient."""
    compute([found], "float64", "numpy")                    # sums that cancel say nothing in float32


TOTALS = [           # what is written in place of a number for each row, or column: s or r
    "s.add_(x.sum(-1, keepdim=True) + s.sum())", "s.add_((x * s).sum(-1, keepdim=True))", "s.copy_(x.amax(-1, keepdim=True) * s)",
    "r.add_(x.sum(0))", "s.add_(tg.stack([x, x], -1).sum(-1).amax(1, keepdim=True) + s.sum())", "r.mul_((x * r).amax(0))",
    "r.copy_(x.mean(0) - r.mean())", "s.sub_((x - s).mean(-1, keepdim=True) * s.amax())",
]


def update(rng: random.Random) -> None:
    """Arguments that are changed, and what is computed of their old values before and after."""
    texts, n = [rng.choice(rng.choice([UPDATES, TOTALS])) for _ in range(rng.choice([1, 2]))], rng.choice(SIZES[:-3])
    draws = np.random.default_rng(rng.randrange(1 << 30))
    rows = rng.choice([1, 3, 3, 33])
    x, y, s, r = (tg.tensor(draws.uniform(-2, 2, shape), dtype=tg.float64) for shape in ((rows, n), (rows, n), (rows, 1), (n,)))

    def program(x: Any, y: Any, s: Any, r: Any, k: Any) -> Any:
        out = []
        for text in texts:
            out.append(read(x, y))
            old = x.clone()
            exec(text, {**WORLD, "x": x, "y": y, "s": s, "r": r, "k": k, "n": n})
            out += [x.flip(-1) + y, read(old, y)]
        return tuple(out)

    read = rng.choice([lambda x, y: x.roll(2, -1) - y, lambda x, y: x.softmax(-1) * y.amax(), lambda x, y: x.t().cumsum(0)])
    try:
        tg.trace(program)(x, y, s, r, tg.tensor(np.arange(n)[::-1].copy()))
    except BaseException as error:
        error.add_note(f"{texts} of {n} columns")
        raise


# What becomes of a table of rows: one scatter is the base of the next, and may be written where that one's result is.
SCATTERS = [
    "t.index_add_(0, i, v)", "t.index_add_(0, j, v * 0.5)", "t[i] = v", "t[j] = v + t[i]", "t.index_copy_(0, j, v)",
    "t.index_add_(0, i, t[j])", "t.index_put_((j,), v, accumulate=True)", "t.mul_(0.5)", "t.add_(t.flip(0))",
    "t = t.index_add(0, i, v)", "t = t.index_copy(0, j, v) * 2",
    "t = t.reshape(-1, *t.shape).index_add(0, k, t[None]).reshape(t.shape)", "t = t.clone().index_add_(0, j, v)",
    "u = t.index_add(0, j, v)", "t = t + u", "t, u = u.index_add(0, i, v), t.index_add(0, i, u[j])", "out.append(t[j])",
    "out.append(t.sum(0))", "out.append(u.clone())", "t.index_add_(0, i, v * out[-1].sum())",
    "t = tg.zeros_like(t).index_add(0, i, v).index_add(0, j, v)", "old = t.clone()", "out.append(old + t)",
]


def scattered(rng: random.Random) -> None:
    """Scatters one after the other, and what is read between them."""
    texts = [rng.choice(SCATTERS) for _ in range(rng.randint(2, 6))]
    draws = np.random.default_rng(rng.randrange(1 << 30))
    rows, width, count = rng.choice([1, 2, 12, 65, 300]), rng.choice([(), (1,), (3,), (17,), (40, 2)]), rng.choice([1, 3, 12, 40, 130])
    t, u, v = (tg.tensor(draws.uniform(-2, 2, (n, *width))) for n in (rows, rows, count))
    i, j = (tg.tensor(draws.integers(0, rows, count)) for _ in range(2))
    k = tg.zeros(1, dtype=tg.int64)

    def program(t: Any, u: Any, v: Any, i: Any, j: Any) -> Any:
        world = {"tg": tg, "t": t, "u": u, "v": v, "i": i, "j": j, "k": k, "old": u, "out": [t.sum()]}
        for text in texts:
            exec(text, world)
        return (*world["out"], world["t"], world["u"])

    def loop(t: Any, u: Any, v: Any, i: Any, j: Any) -> Any:
        def body(carries: Any, row: Any) -> Any:
            *out, t, u = program(*(c.clone() for c in carries), v, i, (j + row) % rows)
            return (t, u), sum(x.sum() for x in out)

        return tg.scan(body, (t, u), i[:3])

    try:
        tg.trace(rng.choice([program, program, loop]))(t, u, v, i, j)
    except BaseException as error:
        error.add_note(f"{texts} of {rows} rows of {width}, {count} indices")
        raise


def moves(rng: random.Random) -> None:
    """Movements, and reductions between them."""
    shape, texts = random_moves(rng)
    values = np.random.default_rng(rng.randrange(1 << 30)).integers(-16, 17, shape) / 8
    try:
        tg.trace(moved(texts))(tg.tensor(values, dtype=rng.choice([tg.float32, tg.float64])))
    except BaseException as error:
        error.add_note(f"{texts} of {list(shape)}")
        raise


ORDINARY = (case,) * 8 + (value, gradient, value, direction, second, update, update, scattered)

WIDE = (wide_modes.value, wide_modes.stencil) * 6 + (wide_modes.equals,) * 4 + (wide_modes.loop, wide_modes.slide) * 3 + (
    wide_modes.special,) * 2 + (wide_modes.gradient, wide_modes.eager_loop) * 2 + (
    wide_modes.second, wide_modes.direction, wide_modes.mapped, wide_modes.untraced)
# What `make test` runs: in the order of what finds errors in the least time. Derivatives of derivatives take five times as long as values.
QUICK = (case, update, wide_modes.stencil, case, wide_modes.value, wide_modes.special, update, wide_modes.equals, case, wide_modes.slide,
         wide_modes.loop, case, wide_modes.special, wide_modes.stencil, update, wide_modes.value, gradient, case, wide_modes.special,
         wide_modes.gradient, update, wide_modes.eager_loop, value, scattered)
SLOW = (direction, second, wide_modes.direction, wide_modes.second, wide_modes.mapped, wide_modes.untraced)
SETS = {"slide": (wide_modes.slide,), "ordinary": ORDINARY, "wide": WIDE, "all": ORDINARY + WIDE, "built": (wide_modes.quick_loop,),
         "scattered": (scattered,), "moves": (moves,), "quick": QUICK * 5 + (*QUICK, *SLOW) * 4}

OF_DRAWS = update, scattered, moves                              # which draw their programs themselves
WIDER = {wide_modes.gradient: 3.0, wide_modes.second: 10.0, wide_modes.direction: 10.0, wide_modes.mapped: 3.0, wide_modes.slide: 10.0}
SLACK = {gradient: 10.0, direction: 30.0, second: 100.0, case: 10.0}


def wide(way: Any, rng: random.Random, target: Target, tuning: Tuning, kind: str) -> bool:
    """Run a program of tests/random_programs/wide_modes.py; False if it says little."""
    try:
        with np.errstate(all="ignore"):
            what, run = way(rng)
    except wide_modes.Sensitive:
        return False
    if way is wide_modes.stencil and rng.random() < 0.5:      # most of what is special about them is so in long vectors
        target = Target(simd_bytes=64, registers=32, cores=2)
    if way is wide_modes.special and target.kind == "gpu":   # and here, on GPUs whose items work together: half of them are for CPUs
        target = Target("gpu", 16, 16, 4, 64, 32768, plain_math=False, clang_builtins=False)
    if way is wide_modes.equals and kind != "cpu" and rng.random() < 0.5:
        target = Target("gpu", 16, 16, 4, rng.choice([8, 64, 256]), 32768, plain_math=False, clang_builtins=False)
    with Checked({"drawn": target}, tuning=tuning, slack=WIDER.get(way, 1.0)):
        try:
            run()
        except BaseException as error:
            error.add_note(what)
            raise
    return True


def program(rng: random.Random, way: Any, kind: str) -> str:
    """Run a program of that way for a device of that kind; what it is counted as."""
    device = random.Random(rng.random())                     # its own: with a threshold more, programs stay what they are
    target, tuning = random_target(device, kind), random_tuning(device)
    if rng.random() < 0.4 and way is not wide_modes.special:
        tuning = Tuning()
    if way.__module__ == wide_modes.__name__:
        return f"wide {way.__name__}" if wide(way, rng, target, tuning, kind) else "ill-conditioned"
    what: Any = drawn(rng) if way is case else rng if way in OF_DRAWS else random_program(rng)
    if way not in (case, value, *OF_DRAWS) and (what.in_place_on_inputs or not floats(what)):
        way = value
    with Checked({"drawn": target}, tuning=tuning, slack=SLACK.get(way, 1.0)):
        try:
            way(what)
        except BaseException as error:
            error.add_note(f"{way.__name__} of {what!r} with {FLOATS}")
            raise
    return str(way.__name__)


def batch(number: int, places: Iterable[int], totals: Counter[str], chosen: str = "all", kind: str = "any", stop: bool = False) -> str:
    """Run the programs at these places of batch `number`; what failed, "" if nothing did. `totals` counts those that did not."""
    before, checks, failed = tg.device(), SETS[chosen], []
    wide_modes.DEVICE[0] = before
    tg.set_device("numpy")
    try:
        for place in places:
            check = checks[place % len(checks)]
            try:
                totals[program(random.Random(f"{number} {place}"), check, kind)] += 1
            except Exception:
                failed.append(f"--seed {number} --only {place} ({check.__name__}):\n{traceback.format_exc()}")
                gc.collect()                                # what a failure held is still to be computed, by whoever comes next
                if stop:
                    break
    finally:
        tg.set_device(before)
    return "\n".join(failed)


@click.command()
@click.option("--count", default=1000, show_default=True, help="How many programs.")
@click.option("--seed", "first", default=0, show_default=True, help="The seed of the first batch.")
@click.option("--set", "chosen", default="all", show_default=True, type=click.Choice(list(SETS)), help="Which kinds of programs.")
@click.option("--kind", type=click.Choice(["cpu", "gpu", "any"]), default="any", show_default=True, help="Of devices to plan for.")
@click.option("--stop", is_flag=True, help="Stop at the first failure.")
@click.option("--only", type=int, default=-1, help="Only the program at this place of the first batch.")
def main(count: int, first: int, chosen: str, kind: str, stop: bool, only: int) -> None:
    """Run COUNT random programs and say what failed."""
    tg.config.check = True          # graphs and kernels are verified, and equal groups compared, as in the tests
    totals: Counter[str] = Counter()
    start, failed = time.time(), 0
    told = start
    for number in range(first, first + 1 if only >= 0 else first + -(-count // BATCH)):
        places = [only] if only >= 0 else range(min(BATCH, count - (number - first) * BATCH))
        found = batch(number, places, totals, chosen, kind, stop)
        if found:
            failed += 1
            print(found, flush=True)
        done = totals.total()
        if found and stop:
            print(f"program {done + 1} failed after {time.time() - start:.0f} s")
            raise SystemExit(1)
        if found or time.time() - told > 60:
            told = time.time()
            print(f"{done} programs {dict(totals)}, {time.time() - start:.0f} s, to seed {number}; failed batches: {failed}", flush=True)
    print(f"done: {totals.total()} programs {dict(totals)} in {time.time() - start:.0f} s; batches that failed: {failed}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
