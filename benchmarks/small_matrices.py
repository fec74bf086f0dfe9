"""Many small matrices, and complex numbers: traced tracegrad beside its own host steps, NumPy, and torch where it is installed.

Start at `main`.

    python -m benchmarks.small_matrices                      # all of them
    python -m benchmarks.small_matrices solve qr --n 4 16 --batch 1 1000 --dtype float32 complex64
    python -m benchmarks.small_matrices --complex --size 1000000

Calls are interleaved; each figure is the median, and the ratio of medians is what counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad.support.tuning import Tuning, tuned

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

Call = Callable[..., Any]
# of (a, b, p) and a namespace's linalg: A, right sides, positive definite matrices
MATRICES: dict[str, Call] = {
    "solve": lambda l, a, b, p: l.solve(a, b), "inv": lambda l, a, b, p: l.inv(a), "det": lambda l, a, b, p: l.det(a),
    "slogdet": lambda l, a, b, p: tuple(l.slogdet(a)),
    "cholesky": lambda l, a, b, p: l.cholesky(p), "qr": lambda l, a, b, p: tuple(l.qr(a)),
    "eigh": lambda l, a, b, p: tuple(l.eigh(p)), "eigvalsh": lambda l, a, b, p: l.eigvalsh(p),
    "eig": lambda l, a, b, p: tuple(l.eig(a)), "eigvals": lambda l, a, b, p: l.eigvals(a),
    "svd": lambda l, a, b, p: tuple(l.svd(a, full_matrices=False)),
    "svdvals": lambda l, a, b, p: getattr(l, "svdvals", lambda a: l.svd(a, compute_uv=False))(a),
    "matrix_exp": lambda l, a, b, p: l.matrix_exp(a), "pinv": lambda l, a, b, p: l.pinv(a),
    "lstsq": lambda l, a, b, p: tuple(l.lstsq(a, b)), "lu_solve": lambda l, a, b, p: l.lu_solve(*l.lu_factor(a), b),
}
NUMBERS: dict[str, Call] = {
    "x + y": lambda m, x, y: x + y, "x * y": lambda m, x, y: x * y, "x * x + 1j": lambda m, x, y: x * x + 1j,
    "x / y": lambda m, x, y: x / y,
    "conj(x)": lambda m, x, y: x.conj(), "abs(x)": lambda m, x, y: m.abs(x), "sum(x * y)": lambda m, x, y: (x * y).sum(),
    "(x * y + x) * (y - x) + 2 * x": lambda m, x, y: (x * y + x) * (y - x) + x * 2,
}


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Normal random numbers."""
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def medians(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """The median time of each call in seconds, one after the other in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            kept = call()
            if name in ("tracegrad", "host step"):
                tg.synchronize()
            if turn > 1:
                times[name].append(time.perf_counter() - start)
            del kept
    return {name: statistics.median(found) for name, found in times.items()}


def compared(what: str, fn: Call, arrays: tuple[Any, ...], ours: Any, numpys: Any, torchs: Any, repeats: int) -> None:
    """One line: the medians, and ours over the others'."""
    traced, tensors = tg.trace(lambda *x: fn(ours, *x)), [tg.tensor(a) for a in arrays]
    calls = {"tracegrad": lambda: traced(*tensors)}
    with tuned(Tuning(matrix_size=0)):
        hosts = tg.trace(lambda *x: fn(ours, *x))
        hosts(*tensors)
    if "host code" in hosts.explain():
        calls["host step"] = lambda: hosts(*tensors)
    try:
        fn(numpys, *arrays)
        calls["numpy"] = lambda: fn(numpys, *arrays)
    except (AttributeError, np.linalg.LinAlgError):
        pass                                                           # which numpy does not have, or not of batches
    if torch is not None:
        others = [torch.tensor(a) for a in arrays]
        calls["torch"] = lambda: fn(torchs, *others)
    found = medians(calls, repeats)
    ratios = ", ".join(f"{name} {1e6 * t:.0f} us ({found['tracegrad'] / t:.2f})" for name, t in found.items() if name != "tracegrad")
    print(f"{what:<48} {1e6 * found['tracegrad']:8.0f} us   {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="operation")
    parser.add_argument("--n", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 33, 1000, 100_000])
    parser.add_argument("--dtype", nargs="+", default=["float32", "float64", "complex64", "complex128"])
    parser.add_argument("--complex", action="store_true", help="arithmetic of complex numbers instead of matrices")
    parser.add_argument("--size", type=int, nargs="+", default=[1000, 1_000_000], help="how many complex numbers")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    if given.complex:
        for dtype in ("complex64", "complex128"):
            for size in given.size:
                x, y = (drawn(rng, (size,), dtype) for _ in range(2))
                for name, fn in NUMBERS.items():
                    compared(f"{name}, {dtype}[{size}]", fn, (x, y), tg, np, torch, given.repeats)
        return
    for name in given.names or MATRICES:
        for dtype in given.dtype:
            for n in given.n:
                for batch in given.batch:
                    a, b = (drawn(rng, (batch, n, columns), dtype) for columns in (n, 1))
                    arrays = tuple(x.astype(dtype) for x in (a, b, a @ a.conj().swapaxes(-1, -2) + n * np.eye(n)))
                    compared(f"{name}, {batch} of {n} x {n}, {dtype}", MATRICES[name], arrays, tg.linalg, np.linalg,
                             torch and torch.linalg, given.repeats)


if __name__ == "__main__":
    main()
