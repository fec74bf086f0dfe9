"""Products by a GPU's matrix instructions: whether they are right, how fast they are, and which shares of blocks are best.

    python -m benchmarks.matrix_instructions [--sweep] [--quick] [--size 4096]

Each row tells Tflop/s of bursts of calls (medians), and the greatest error over the greatest element of what numpy has in float64; torch's
own, on the same card in the same run, stand beside it where torch sees the card.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.tile.instructions import TABLE, candidates
from tracegrad.execute import matrix_trial
from tracegrad.support.tuning import Tuning, tuned, tuning

Blocks = tuple[tuple[int, int], tuple[int, int], int, int, bool]
DTYPES: dict[str, tuple[Any, str]] = {"float16": (np.float16, "highest"), "TF32": (np.float32, "high"), "float64": (np.float64, "highest"),
                                      "float32": (np.float32, "highest")}
SHARES: dict[str, list[Blocks]] = {          # (warps, tiles of each, k of a block, stages, read ahead): see tile/matrix.Blocks
    "float16": [((2, 2), (4, 8), 32, 3, False), ((2, 2), (4, 8), 32, 3, True), ((4, 2), (2, 8), 32, 3, False)],
    "TF32": [((2, 2), (4, 8), 16, 3, True), ((2, 2), (4, 8), 16, 3, False), ((2, 4), (4, 8), 16, 2, True)],
    "float64": [((2, 2), (4, 4), 16, 2, False), ((2, 2), (4, 4), 8, 4, False), ((2, 2), (2, 4), 16, 3, True)],
}


SIZES = ((1, 256, 64, 256), (1, 257, 65, 130), (3, 100, 40, 72), (1, 64, 4096, 64))


def timed(call: Callable[[], Any], finish: Callable[[], None], rounds: int = 5, calls: int = 12) -> float:
    """Seconds of a call in a burst."""
    call()
    finish()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        finish()
        found.append((time.perf_counter() - start) / calls)
    return median(found)


@cache
def matrices(dtype: Any, m: int, k: int, n: int) -> tuple[Any, Any]:
    """Operands, the same every time."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k), dtype=np.float32).astype(dtype), rng.standard_normal((k, n), dtype=np.float32).astype(dtype)


def error(found: Any, a: Any, b: Any) -> float:
    """Of 64 rows."""
    rows = np.random.default_rng(1).choice(len(a), min(64, len(a)), replace=False)
    wanted = a[rows].astype(np.float64) @ b.astype(np.float64)
    return float(np.abs(found[rows].astype(np.float64) - wanted).max() / np.abs(wanted).max())


def check(device: Any) -> None:
    """Sizes, transposes, batches and epilogues against numpy."""
    ways: dict[str, Callable[[Any, Any, Any], Any]] = {
        "a b": lambda a, b, c: a @ b, "aT b": lambda a, b, c: a.mT.contiguous().mT @ b, "a bT": lambda a, b, c: a @ b.mT.contiguous().mT,
        "relu(a b + c)": lambda a, b, c: tg.relu(a @ b + c),
    }
    for name, (dtype, precision) in DTYPES.items():
        tg.set_float32_matmul_precision(precision)
        bad, count = [], 0
        for (batch, m, k, n), (way, fn) in itertools.product(SIZES, ways.items()):
            rng = np.random.default_rng(m)
            a, b, c = (rng.standard_normal(s).astype(dtype) for s in ((batch, m, k), (batch, k, n), (n,)))
            if way == "aT b":
                traced, given = tg.trace(lambda at, b, c: at.mT @ b), (np.ascontiguousarray(a.swapaxes(1, 2)), b, c)
            elif way == "a bT":
                traced, given = tg.trace(lambda a, bt, c: a @ bt.mT), (a, np.ascontiguousarray(b.swapaxes(1, 2)), c)
            else:
                traced, given = tg.trace(fn), (a, b, c)
            found = traced(*[tg.tensor(x) for x in given]).numpy().astype(np.float64)
            wanted = a.astype(np.float64) @ b.astype(np.float64)
            wanted = np.maximum(wanted + c.astype(np.float64), 0) if way.startswith("relu") else wanted
            off = np.abs(found - wanted).max() / np.abs(wanted).max()
            count += 1
            if not off < {"float16": 2e-3, "TF32": 2e-3, "float64": 1e-13, "float32": 1e-5}[name]:
                bad.append(f"{way} {(batch, m, k, n)}: {off:.1e}")
        print(f"check {name}: {count} products, {len(bad)} wrong {bad[:4]}", flush=True)
    tg.set_float32_matmul_precision("highest")


def registers(device: Any, source: str) -> str:
    """What the compiler tells of a program."""
    import pyopencl as cl
    try:
        built = cl.Program(device.context, source).build(["-cl-nv-verbose"])
        log = built.get_build_info(device.cl_device, cl.program_build_info.LOG)
        numbers = (",".join(re.findall(rf"{what}", log)) for what in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
        return "registers {} spills {}".format(*numbers)
    except Exception as found:
        return f"? {str(found)[:1200]}"


def measure(device: Any, name: str, n: int, shares: Blocks | None = None, way: str = "nn", tell: bool = True) -> None:
    """One row of the table."""
    dtype, precision = DTYPES[name]
    tg.set_float32_matmul_precision(precision)
    a, b = matrices(dtype, n, n, n)
    own = tuning() if shares is None else Tuning(matrix_blocks=((np.dtype(dtype).itemsize, shares),))
    try:
        with tuned(own):
            traced = tg.trace({"nn": lambda a, b: a @ b, "nt": lambda a, b: a @ b.mT, "tn": lambda a, b: a.mT @ b}[way])
            x, y = tg.tensor(a), tg.tensor(b)
            result = traced(x, y)
            seconds = timed(lambda: traced(x, y), device.finish)
            off = error(result.numpy(), a.T if way == "tn" else a, b.T if way == "nt" else b)
            plan = traced.plan
        about = f" {registers(device, plan.source)}; {plan.launches[0].note.split(';')[0]}" if tell else ""
        rate = f"{1e3 * seconds:8.3f} ms {2e-12 * n ** 3 / seconds:7.1f} Tflop/s"
        print(f"{name:8s} {n} {way}: {rate}, error {off:.1e}{about} {shares or ''}", flush=True)
    except Exception:
        print(f"{name} {n} {shares} fails: {traceback.format_exc()[-700:]}", flush=True)
    tg.set_float32_matmul_precision("highest")


def torchs(name: str, n: int) -> None:
    """The same by torch."""
    try:
        import torch
        assert torch.cuda.is_available()
    except (ImportError, AssertionError):
        return
    dtype, precision = DTYPES[name]
    torch.backends.cuda.matmul.allow_tf32 = precision == "high"
    a, b = matrices(dtype, n, n, n)
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    seconds = timed(lambda: x @ y, torch.cuda.synchronize)
    off = error((x @ y).cpu().numpy(), a, b)
    print(f"{name:8s} {n} torch: {1e3 * seconds:6.3f} ms {2e-12 * n ** 3 / seconds:7.1f} Tflop/s, error {off:.1e}", flush=True)


def trial(device: Any, name: str) -> None:
    """Tell whether an instruction is there; what the compiler says, if not."""
    start = time.perf_counter()
    try:
        right = matrix_trial.passes(device, name)
        text = "right" if right else "not there"
        if not right:
            target = replace(device.target, matrix=(name,), float32_precision="medium")
            _, graph, _ = matrix_trial.product(TABLE[name].of, *matrix_trial.SIZES[0], across=(False, False))
            text += " " + registers(device, compile_graph(graph, target).source)
    except Exception:
        text = traceback.format_exc()[-1500:]
    print(f"trial {name}: {text} ({time.perf_counter() - start:.2f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--device", default="gpu")
    given = parser.parse_args()
    device = tg.set_device(given.device)
    print(device, device.cl_device.driver_version, device.target, flush=True)
    for name in candidates(device.target, device.extensions):
        trial(device, name)
    print("instructions:", matrix_trial.instructions(device), flush=True)
    check(device)
    sizes = {} if given.quick else {"float64": (given.size // 2, given.size)}
    for name in DTYPES:
        for n in sizes.get(name, (given.size,)):
            torchs(name, n)
            measure(device, name, n)
            if name in SHARES and n == given.size:
                for way in () if given.quick else ("nt", "tn"):
                    measure(device, name, n, None, way)
    if given.sweep:
        for name, choices in SHARES.items():
            for shares in choices:
                measure(device, name, given.size, shares)


if __name__ == "__main__":
    sys.exit(main())
