"""Every function at ordinary sizes, in context: value, gradient, second derivative, on the device and on the interpreter.

Rows of 1 to 5 elements fill no vector and have no inside; what is wrong only there needs rows of 7, 33, 129, 300 elements, and sizes on
both sides of every threshold of the code generator. `tests/helpers/size_cases.py` has the functions and what stands before and behind
them. Many cases share one traced function, since building is what takes the time; each has inputs of its own. The quick part takes each
function once and goes around sizes, shapes and contexts; the slow part, all sizes. docs/robustness.md tells what this has found.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.size_cases import AFTER, BEFORE, FUNCTIONS, LAYOUTS, POINTWISE, SIZES, WORLD, Case, disagreements, fitting
from tracegrad.execute.devices import NUMPY
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC
from tracegrad.runtime.device import Device
from tracegrad.support.tuning import tuning

TEXTS = [*POINTWISE, *FUNCTIONS]
BATCH = 16                          # cases of a traced function


@pytest.fixture
def on() -> Iterator[Any]:
    """The default device, which is to be an OpenCL device with every dtype."""
    found = tg.device()
    if found.kind == "numpy" or not found.target.fp64:
        pytest.skip("needs an OpenCL device with float64")
    checked, tg.config.check = tg.config.check, False        # verifying graphs takes as long as making kernels of them
    yield found
    tg.config.check = checked
    tg.set_device(found)


def planned(on: Any, **changes: Any) -> Any:
    """The device, planned for as if it were another."""
    other = Device(on.cl_device, on.cl_basic)
    other.target = replace(on.target, **changes)
    return other


GPU = dict(kind="gpu", local_memory=32768, plain_math=False, clang_builtins=False, max_work_group=256)
OTHERS: dict[str, Any] = {          # devices to plan for
    "gpu": GPU, "simd 16": dict(simd_bytes=16), "simd 32": dict(simd_bytes=32), "simd 64": dict(simd_bytes=64), "1 core": dict(cores=1),
    "4 cores": dict(cores=4), "16 cores": dict(cores=16), "gpu, 16 cores": {**GPU, "cores": 16}, "no clang": dict(clang_builtins=False),
}


def check(device: Any, cases: list[Case], *dtypes: str) -> None:
    """All the cases, some in a traced function; every one that differs is in the message."""
    found = []
    for first in range(0, len(cases), BATCH):
        found += disagreements([fitting(c) for c in cases[first:first + BATCH]], [device], dtypes or ("float32", "float64"))
    assert not found, "\n".join([f"{len(found)} results differ:", *found])


def drawn(seed: int, texts: list[str], order: int = 1, sizes: tuple[int, ...] = SIZES, chained: bool = True) -> list[Case]:
    """A case of each text: every size, shape, movement and reader comes equally often, and meets others with another seed."""
    rng = random.Random(seed)
    movements, readers, layouts = (rng.sample(list(x), len(x)) for x in (BEFORE, AFTER, LAYOUTS))
    shuffled = rng.sample(sizes, len(sizes))
    out = []
    for k, text in enumerate(texts):
        before = movements[k % len(movements)]
        if chained and k % 3 == 0 and before != "gather":
            before = f"{movements[(k + 5) % len(movements)].replace('gather', 'flip')}, {before}"
        out.append(Case(text, shuffled[k % len(shuffled)], layouts[k // 2 % len(layouts)], before, readers[k % len(readers)], order))
    return out


# ------------------------------------------------------------------------------------------------------------ every function once


@one_of(12, "part", range(12))
def test_every_function(on: Any, part: int) -> None:
    """Value and gradient, in float32 and float64 by turns; of most elementwise functions, which are rendered alike, the value."""
    cases = [replace(c, order=0) if k < len(POINTWISE) and k % 3 else c for k, c in enumerate(drawn(1, TEXTS))][part::12]
    check(on, cases[::2], "float32")
    check(on, cases[1::2], "float64")


CORE = ["x", "x * y", "x.sum(-1)", "x.sum(0)", "x.amax(-1, keepdim=True) * x", "x.cumsum(-1)", "(0.7 + x * 0.15).cumprod(-1)",
    "x.softmax(-1)",
        "F.layer_norm(x, (n,), r, r)", "x.roll(1, -1)", "F.pad(x, (2, 3))", "tg.cat([x[..., 1:], y[..., :1] * 2], -1)",
        "padded_stencil(x, 3)", "stencil(x, 2)", "x.gather(-1, i)", "x.flip(-1)[..., ::2]"]


@pytest.mark.long
def test_second_derivatives_in_context(on: Any) -> None:
    """The functions that most others are made of, each with another movement and another reader."""
    cases = drawn(1, CORE, order=2)
    check(on, cases[::2], "float32")
    check(on, cases[1::2], "float64")


@one_of(9, "which", OTHERS)
def test_other_devices(on: Any, which: str) -> None:
    """The same, planned for other devices: work-groups, other SIMD widths, fewer and more cores."""
    seed = list(OTHERS).index(which)
    rng = random.Random(seed)
    check(planned(on, **OTHERS[which]), drawn(seed + 10, rng.sample(CORE, 5) + rng.sample(FUNCTIONS, 2)), "float32")


def test_every_public_function_is_here() -> None:
    """No function without a case: a new one gets its line in `size_cases.FUNCTIONS`, or its reason here."""
    others = [path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")]
    # these have cases of rows as well
    text = " ".join([*TEXTS, *(other for other in others if "from tests.helpers.names import" in other)])
    named = set(re.findall(r"\.([a-z_0-9]+)\(", text)) | set(re.findall(r"\.([TtmM]+)\b", text))
    same: dict[Any, set[str]] = {}
    for name, fn in [*PUBLIC.items(), *FUNCTIONAL.items()]:
        same.setdefault(inspect.unwrap(fn), set()).add(name)
    for names in same.values():                              # other names of the same function
        if names & named:
            named |= names
    made = {                                                 # have no operand
        "arange", "as_tensor", "asarray", "empty", "empty_like", "eye", "from_dlpack", "from_numpy", "full", "full_like", "linspace",
        "ones", "ones_like", "tensor", "zeros", "zeros_like", "bartlett_window", "blackman_window", "hamming_window", "hann_window",
        "kaiser_window", "empty_strided", "empty_permuted", "frombuffer",
        *(f"{kind}Tensor" for kind in ("Half", "Float", "Double", "Bool", "Byte", "Char", "Short", "Int", "Long", "BFloat16")),
    }
    random_ = {"bernoulli", "binomial", "dropout3d", "multinomial", "normal", "rand", "rand_like", "randint", "randint_like", "randn",
               "randn_like", "randperm", "poisson"}                         # see test_matrix
    other = {                                                # no functions of an array, or with results that no kernel makes
        "cond", "scan", "while_loop", "elementwise", "opencl_function", "host_call", "is_complex", "is_conj", "is_floating_point",
        "is_neg", "masked_select", "numel", "report", "resolve_conj", "resolve_neg", "get_device", "is_distributed", "is_inference",
        "resize_as_", "zero_",
        "to_dtype", "grad", "value_and_grad", "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jvp", "vjp", "vmap",
    }
    on_the_host = {                                          # LAPACK's: see test_linalg
        "cholesky", "cholesky_inverse", "cholesky_solve", "det", "inverse", "logdet", "matrix_exp", "matrix_power", "pinverse", "slogdet",
        "geqrf", "lu", "lu_solve", "lu_unpack", "orgqr", "ormqr", "pca_lowrank", "qr", "svd", "svd_lowrank", "triangular_solve",
    }
    elsewhere = {                                            # at sizes of their own: see test_torch_variants, and test_func for linearize
        "_batch_norm_with_update", "_chunk_cat", "_native_batch_norm_legit", "_softmax_backward_data", "_unsafe_masked_index",
        "_unsafe_masked_index_put_accumulate", "_upsample_bilinear2d_aa", "conv_tbc", "hash_tensor", "istft", "linearize",
        "max_pool2d_with_indices_backward", "segment_reduce", "stft",
    }
    in_place = {f"{name}_" for name in named | other}         # tg.abs_(x): x.abs_(), of which see test_mutation
    missing = sorted({*PUBLIC, *FUNCTIONAL} - named - in_place - made - random_ - other - on_the_host - elsewhere)
    assert not missing


# ------------------------------------------------------------------------------------------------------------------- thresholds


def around(*sizes: int) -> list[int]:
    """Both sides of each size."""
    return [n + d for n in sizes for d in (-1, 0, 1)]


def test_lanes_and_unrolling(on: Any) -> None:
    """Vectors of 4, 8 and 16 lanes, 2 and 4 accumulators, and a rest of every kind."""
    sums = [Case(text, n, "rows", "roll", order=1) for n in around(8, 32, 64, 128, 256) for text in ("x.sum(-1)",)]
    rows = [Case("F.pad(x, (1, 2)) * 0.5", n, "row", "shifts", "sum", order=1) for n in around(16, 48)]
    check(on, [*sums, *rows], "float32")
    check(on, sums[:9], "float64")


def test_few_elements(on: Any) -> None:
    """Reductions that are written out and those that are loops, of rows and of columns."""
    n = tuning().unrolled
    check(on, [Case(text, k, layout, "flip", order=1) for k in around(n, 2 * n) for text, layout in (
        ("x.softmax(-1)", "many"), ("x.transpose(0, -1).sum(0)", "rows"), ("x.movedim(-1, 0).amax(0)", "block"))], "float32")


@pytest.mark.long
def test_long_rows(on: Any) -> None:
    """Rows that are cut in chunks: of elementwise kernels, reductions, scans, searches, selections; kept rows that fit no array."""
    item = tuning().item
    cases = [Case("x * y + r", n, "row", "roll", "sum", 1) for n in around(2 * item)]
    cases += [Case(text, n, "row", "shift", order=1) for n in around(tuning().long_row) for text in ("x.sum(-1)", "x.logsumexp(-1)")]
    cases += [Case("x.transpose(0, -1).sum(0)", n, "rows", "flip", order=0) for n in around(tuning().small_columns // 3 + 1)]
    cases += [Case("x.cumsum(-1)", n, "row", "flip", order=1) for n in around(2 * tuning().scan_chunk)]
    cases += [Case("x.argmax(-1)", n, "row", "stride", order=0) for n in around(2 * tuning().arg_chunk)]
    cases += [Case("x.topk(3, -1)[0]", n, "row", "roll", order=0) for n in around(2 * tuning().select_chunk)]
    cases += [Case("F.gelu(x).softmax(-1)", n, "row", "pad", order=0) for n in around(tuning().private_bytes // 4)]
    check(on, cases, "float32")


def test_sorting(on: Any) -> None:
    """Short rows, runs, blocks, and parts of merges."""
    sizes = [*around(16 * tuning().sort_vectors, tuning().sort_run, 2 * tuning().sort_run, tuning().sort_block), 3 * tuning().sort_part + 5]
    check(on, [Case(text, n, "row", order=0) for n in sizes for text in ("x.sort(-1)[0]", "x.round().argsort(-1)")], "float32")


def test_scattered_rows(on: Any) -> None:
    """Rows that one owner adds, and those that several share, by rows and by columns."""
    check(on, [Case("tg.zeros_like(X).index_add(0, k, X)", n, "row", order=1) for n in (16, 33, 300)]
          + [Case("fit(x, (9, n)).index_add(0, fit(k, (20,)) % 9, fit(y, (20, n)))", n, "rows", order=1) for n in (
              *around(tuning().scatter_skip, 2 * tuning().scatter_columns), 1000)], "float32")


def test_lines_and_prefetch(on: Any) -> None:
    """What is read transposed, for blocks of rows; rows that are fetched ahead."""
    side = 182                                               # more than 8 * ITEM elements
    assert (side - 1)**2 < 8 * tuning().item < side**2
    check(on, [Case("fit(x, (n, n)).t() * 2 + fit(y, (n, n))", n, "many", order=0) for n in around(side)]
          + [Case("fit(x, (rows_ahead(n), n)).softmax(-1).amax(-1)", n, "row", order=0) for n in (300, 512)], "float32")


@pytest.mark.long
def test_groups(on: Any) -> None:
    """Work-items' and work-groups' rows, the rest of a group, blocks of a product."""
    gpu = planned(on, **GPU)
    cases = [Case("x.softmax(-1)", n, "rows", "roll", order=1) for n in around(tuning().short_row, tuning().group)]
    cases += [Case("x.sum(0) * 2", n, "rows", "pad", order=1) for n in around(tuning().group)]
    cases += [Case("fit(x, (n, 9)) @ fit(y, (9, n))", n, "rows", order=1) for n in around(tuning().gemm_step)]
    check(gpu, cases, "float32")


# -------------------------------------------------------------------------------------------------------------- updates in place

UPDATES = [         # statements that change the arguments x, y: where a result is written must not be read any more
    "x.copy_(x.roll(1, -1))", "x.copy_(x.flip(-1))", "x.add_(x.roll(3, -1))", "x.sub_(x.mean(-1, keepdim=True))", "x.mul_(x.sum(0))",
    "x[..., 1:].sub_(x[..., :-1], alpha=0.5)", "x.copy_(x.cumsum(-1))", "x.copy_(x.softmax(-1))", "x.copy_(x.sort(-1)[0])",
    "x.copy_(x[:, k])", "x.copy_(F.pad(x, (1, 0))[..., :-1])", "x.copy_(padded_stencil(x, 2))", "x.copy_(x.flip(0) * x)",
    "x[:, k[:3]] = y[:, :3]",
    "y.copy_(x.flip(-1)); x.add_(y)", "t = x * 1; x.copy_(y.roll(1, -1)); y.copy_(t.flip(-1))", "x.copy_(x @ x.t() @ x * 0.1)",
    "x.copy_(y); y.copy_(x.roll(2, -1))", "y.mul_(0.9).add_(x); x.sub_(y.flip(0), alpha=0.1)",
    "x.copy_(F.layer_norm(x.tanh().flip(-1), (n,)))",
]


@one_of(4, "n", [33, 129])
def test_updates_of_arguments(on: Any, n: int) -> None:
    """In a traced function, twice, one after the other: what the arguments hold, and what was computed from their old values."""
    rng = np.random.default_rng(n)
    arrays = [rng.uniform(-2, 2, (3, n)).astype(np.float32) for _ in range(2 * len(UPDATES))]

    def program(k: Any, *args: Any) -> Any:
        out = []
        for text, x, y in zip(UPDATES, args[::2], args[1::2], strict=True):
            before = x.roll(2, -1) - y
            exec(text, {**WORLD, "x": x, "y": y, "k": k, "n": n})
            out += [before, x.flip(-1) + y]
        return tuple(out)

    def run(device: Any, call: Any) -> list[Any]:
        tg.set_device(device)
        args = [tg.tensor(a) for a in (np.arange(n)[::-1].copy(), *arrays)]
        results = [r.numpy() for _ in range(2) for r in call(*args)]
        return [*results, *(a.numpy() for a in args[1:])]

    wanted, found = run(NUMPY, program), run(on, tg.trace(program))
    texts = [t for t in UPDATES for _ in (0, 1)]
    for text, f, w in zip(3 * texts, found, wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5 * np.max(np.abs(w)), err_msg=text)


# ---------------------------------------------------------------------------------------------------------------- found here


def test_rows_kept_between_passes_and_read_elsewhere(on: Any) -> None:
    """A costly value that later passes need is kept for its own element: flipped, transposed or gathered ones are other elements."""
    spread = "(x - x.mean(-1, keepdim=True)).square().sum(-1)"
    check(on, [Case(spread, n, "rows", "exp, flip", order=1) for n in (20, 33, 40, 129)]
          + [Case(text, 40, "rows", order=1) for text in (
              "(tg.tanh(x) + tg.tanh(x).flip(-1)).softmax(-1)", "tg.tanh(x)[l % 3].softmax(-1)", "tg.tanh(x).t().softmax(-1)",
              "(tg.tanh(x) * tg.tanh(x).flip(0)).softmax(-1)", "tg.tanh(x).gather(-1, i).softmax(-1) * tg.tanh(x)",
              "tg.tanh(x).reshape(3, 8, 5).transpose(1, 2).softmax(-1)")], "float32")


# ------------------------------------------------------------------------------------------------------------------ all of it


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
def test_every_function_at_every_size(on: Any, n: int) -> None:
    """In float32 at every other size and in float64 at the rest."""
    cases, odd = drawn(n, TEXTS, order=2, sizes=(n,)), SIZES.index(n) % 2
    check(on, cases[odd::2], "float32")
    check(on, cases[1 - odd::2], "float64")


@pytest.mark.slow
@pytest.mark.parametrize("which", OTHERS)
def test_every_function_on_other_devices(on: Any, which: str) -> None:
    check(planned(on, **OTHERS[which]), drawn(100 + list(OTHERS).index(which), TEXTS, order=2), "float32")


@pytest.mark.slow
@pytest.mark.parametrize("text", CORE)
def test_every_movement_and_reader(on: Any, text: str) -> None:
    rng = random.Random(text)
    check(on, [Case(text, rng.choice(SIZES), rng.choice(list(LAYOUTS)), before, after) for before in BEFORE for after in AFTER], "float32")
