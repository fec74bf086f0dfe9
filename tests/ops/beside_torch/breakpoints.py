"""Functions at their breakpoints and beside them, for tracegrad and for torch: values, first and second derivatives, directions.

`found` is where to start reading: every public function that torch has, too, and that takes one to three vectors is called with POINTS;
CALLS are the calls that take more than that. DEVIATIONS are the differences that stay, with the reason.
tests/ops/beside_torch/test_breakpoints_torch.py compares; `python -m tests.ops.beside_torch.breakpoints [part of a name ...]` prints what
differs.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, SPECIAL
from tracegrad.nn import functional as F

NAN, INF, E = float("nan"), float("inf"), 1e-6
NEAR = [s * (b + d) for b in (0, 0.5, 1, 2, 3, 6, 20) for d in (-E, 0, E) for s in (1, -1)]
LINE = [*NEAR, INF, -INF, NAN]
PAIRS = [*product([-INF, -2, -1, -0.0, 0.0, 0.5, 1, 2, INF, NAN], repeat=2)]
TRIPLES = [*product([-INF, -1, -0.0, 1, 2, NAN], repeat=3)]
POINTS: dict[str, list[list[float]]] = {
    "line": [LINE], "ties": [[-2, -1, 1, 2, 2, 1]], "zeros": [[0, 0, 0]], "a zero": [[1, 0, 3]], "two zeros": [[1, 0, 0, 3]],
    "one": [[2]], "-inf": [[-INF, -INF]], "inf": [[INF, 1]], "a NaN": [[1, NAN, 2]],
    "pairs": [*map(list, zip(*PAIRS, strict=True))], "equal": [[1, 2, 3], [1, 2, 3]], "both zeros": [[0, 0, 0], [0, 0, 0]],
    "triples": [*map(list, zip(*TRIPLES, strict=True))],
}  # fmt: skip
GRID = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]
IMAGE = (1, 1, 2, 2)


def _image(x: Any) -> Any:
    return x.reshape(1, 1, 3, 3)


# name: (function of a namespace, its nn.functional, and vectors; the vectors)
CALLS: dict[str, tuple[Callable[..., Any], list[list[float]]]] = {
    **{f"clamp {low} {high}": (lambda t, F, x, a=low, b=high: x.clamp(a, b), [LINE])
       for low, high in [(0, None), (None, 0), (-1, 1), (0.5, 0.5), (1, -1), (-INF, INF), (0.0, 6)]},
    "clip to numbers": (lambda t, F, x: t.clip(x, -1, 2), [LINE]), "clamp_min": (lambda t, F, x: x.clamp_min(1), [LINE]),
    "clamp_max": (lambda t, F, x: t.clamp_max(x, -0.5), [LINE]), "clamp_": (lambda t, F, x: (x * 1).clamp_(-1, 1), [LINE]),
    "clamp to a tensor from below": (lambda t, F, x, y: t.clamp(x, min=y), POINTS["pairs"]),
    "clamp to a tensor from above": (lambda t, F, x, y: t.clamp(x, max=y), POINTS["pairs"]),
    "hardtanh": (lambda t, F, x: F.hardtanh(x, -0.5, 2.0), [LINE]), "threshold": (lambda t, F, x: F.threshold(x, 1.0, 20.0), [LINE]),
    "hardshrink": (lambda t, F, x: F.hardshrink(x, 1.0), [LINE]), "softshrink": (lambda t, F, x: F.softshrink(x, 0.0), [LINE]),
    "leaky_relu": (lambda t, F, x: F.leaky_relu(x, 0.25), [LINE]), "rrelu": (lambda t, F, x: F.rrelu(x, training=False), [LINE]),
    "prelu": (lambda t, F, x: F.prelu(x, x[:1] * 0 + 0.25), [LINE]), "elu": (lambda t, F, x: F.elu(x, 0.5), [LINE]),
    "celu": (lambda t, F, x: F.celu(x, 2.0), [LINE]), "softplus": (lambda t, F, x: F.softplus(x, 2.0, 1.0), [LINE]),
    "gelu": (lambda t, F, x: F.gelu(x, approximate="tanh"), [LINE]),
    "logit": (lambda t, F, x: t.logit(x, 0.25), [[0.0, 0.25, 0.5, 0.75, 1.0]]),
    **{f"pow {p}": (lambda t, F, x, p=p: x**p, [LINE]) for p in (0, 0.5, 1, 1.5, 2, 3, -1, -0.5)},
    "pow of 0": (lambda t, F, x: t.pow(0.0, x), [LINE]), "pow of 2": (lambda t, F, x: 2.0**x, [LINE]),
    "remainder": (lambda t, F, x: x % 2, [LINE]), "fmod": (lambda t, F, x: t.fmod(x, -2), [LINE]),
    "div floor": (lambda t, F, x, y: t.div(x, y, rounding_mode="floor"), POINTS["pairs"]),
    "div trunc": (lambda t, F, x, y: t.div(x, y, rounding_mode="trunc"), POINTS["pairs"]),
    "round": (lambda t, F, x: t.round(x, decimals=1), [LINE]), "nan_to_num": (lambda t, F, x: t.nan_to_num(x, 1.0, 2.0, -3.0), [LINE]),
    "where": (lambda t, F, x: t.where(x > 0, x, x * x), [LINE]), "masked_fill": (lambda t, F, x: x.masked_fill(x <= 0, 3.0), [LINE]),
    "lerp": (lambda t, F, x, y: t.lerp(x, y, 0.5), POINTS["pairs"]),
    **{f"{name} dim": (lambda t, F, x, n=name: getattr(t, n)(x.reshape(3, 2), 1), [[1, 1, 0, 2, -3, -3]])
       for name in ("amax", "amin", "max", "min", "median", "nanmedian", "cummax", "cummin", "prod", "logsumexp", "cumprod",
                    "logcumsumexp")},
    **{f"{name} zeros": (lambda t, F, x, n=name: getattr(t, n)(x.reshape(3, 2), 0), [[0, 1, 0, 2, 0, 3]])
       for name in ("prod", "cumprod", "std", "amax", "cummax")},
    "logsumexp -inf": (lambda t, F, x: t.logsumexp(x.reshape(2, 2), 1), [[-INF, -INF, -INF, 1]]),
    "std of one": (lambda t, F, x: x.std(correction=0), [[2]]), "var of one": (lambda t, F, x: x.var(correction=0), [[2]]),
    **{f"norm {p} {what}": (lambda t, F, x, p=p: t.linalg.vector_norm(x, p), [x])
       for p in (0, 0.5, 1, 1.5, 2, 3, INF, -INF) for what, x in (("zeros", [0, 0]), ("a zero", [0, 3]), ("ties", [1, -2, 2]))},
    **{f"cdist {p}": (lambda t, F, x, y, p=p: t.cdist(x.reshape(2, 2), y.reshape(2, 2), p), [[0, 0, 1, 2], [0, 0, 1, 0]])
       for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF)},
    **{f"pairwise {p}": (lambda t, F, x, y, p=p: F.pairwise_distance(x.reshape(2, 2), y.reshape(2, 2), p, 0.0),
                         [[0, 0, 1, 2], [0, 0, 1, 0]])
       for p in (1.0, 2.0, 3.0)},
    "pdist": (lambda t, F, x: F.pdist(x.reshape(3, 2)), [[0, 0, 0, 0, 1, 0]]),
    "renorm": (lambda t, F, x: t.renorm(x.reshape(3, 2), 2, 0, 5.0), [[3, 4, 0, 0, 6, 8]]),
    "normalize": (lambda t, F, x: F.normalize(x, dim=0, eps=5.0), [[3, 4]]),
    "normalize zeros": (lambda t, F, x: F.normalize(x, dim=0), [[0, 0]]),
    "cosine_similarity": (lambda t, F, x, y: F.cosine_similarity(x, y, dim=0), [[0, 0], [1, 2]]),
    "cosine_embedding_loss": (lambda t, F, x, y: F.cosine_embedding_loss(x.reshape(2, 2), y.reshape(2, 2), t.tensor([1, -1]), 0.0),
                              [[1, 0, 1, 0], [0, 1, 0, 1]]),
    "hinge_embedding_loss": (lambda t, F, x: F.hinge_embedding_loss(x, t.tensor([-1, -1, -1, 1, 1]), reduction="none"),
                             [[0, 1, 2, 1, NAN]]),
    "margin_ranking_loss": (lambda t, F, x, y: F.margin_ranking_loss(x, y, t.tensor([1, 1, 1, -1]), 1.0, reduction="none"),
                            [[0, 1, 2, 3], [-1, 0, 0, 4]]),
    "multi_margin_loss": (lambda t, F, x: F.multi_margin_loss(x.reshape(2, 3), t.tensor([0, 2])), [[1, 0, 1, 2, 1, 3]]),
    "multilabel_margin_loss": (lambda t, F, x: F.multilabel_margin_loss(x.reshape(1, 4), t.tensor([[3, 0, -1, 1]])), [[1, 2, 2, 3]]),
    "soft_margin_loss": (lambda t, F, x: F.soft_margin_loss(x, t.tensor([1.0, -1.0, 1.0], dtype=t.float64)), [[0, 1, -INF]]),
    "triplet_margin_loss": (lambda t, F, x, y, z: F.triplet_margin_loss(*(v.reshape(1, 2) for v in (x, y, z)), eps=0.0),
                            [[0, 0], [1, 0], [2, 0]]),
    "huber_loss": (lambda t, F, x: F.huber_loss(x, x * 0, reduction="none", delta=0.5), [NEAR]),
    "smooth_l1_loss": (lambda t, F, x: F.smooth_l1_loss(x, t.zeros(len(LINE), dtype=t.float64), reduction="none", beta=2.0), [LINE]),
    "l1_loss": (lambda t, F, x: F.l1_loss(x, t.zeros(len(LINE), dtype=t.float64), reduction="none"), [LINE]),
    "binary_cross_entropy": (lambda t, F, x: F.binary_cross_entropy(x, t.tensor([0.0, 1.0, 0.5, 0.5], dtype=t.float64)),
                             [[0.5, 0.5, 0.25, E]]),
    "max_pool1d": (lambda t, F, x: F.max_pool1d(x.reshape(1, 1, -1), 2, 1), [[1, 1, 0, 2, 2]]),
    "max_pool2d": (lambda t, F, x: F.max_pool2d(_image(x), 2, 1), [[1, 1, 0, 2, 2, 2, 0, 0, 0]]),
    "adaptive_max_pool1d": (lambda t, F, x: F.adaptive_max_pool1d(x.reshape(1, 1, -1), 2), [[1, 1, 0, 2, 2]]),
    "lp_pool1d": (lambda t, F, x: F.lp_pool1d(x.reshape(1, 1, -1), 2.0, 2), [[0, 0, 3, 4]]),
    "topk": (lambda t, F, x: t.topk(x, 2), [[3, 1, 2]]), "sort": (lambda t, F, x: t.sort(x), [[3, 1, 2]]),
    "kthvalue": (lambda t, F, x: t.kthvalue(x, 2), [[3, 1, 2]]), "quantile": (lambda t, F, x: t.quantile(x, 0.5), [[3, 1, 2, 2]]),
    "scatter_reduce": (lambda t, F, x: t.zeros(2, dtype=t.float64).scatter_reduce(0, t.tensor([0, 0, 1]), x, "amax"), [[1, 1, 0]]),
    "index_reduce": (lambda t, F, x: t.ones(2, dtype=t.float64).index_reduce(0, t.tensor([0, 0, 1]), x, "prod"), [[0, 0, 2]]),
    **{f"interpolate {mode}": (lambda t, F, x, m=mode: F.interpolate(_image(x), size=(5, 2), mode=m), [[1, 2, 3, 4, 5, 6, 7, 8, 9]])
       for mode in ("nearest", "bilinear", "bicubic", "area")},
    **{f"grid_sample {mode} {padding} {corners}": (
        lambda t, F, x, y, m=mode, p=padding, c=corners: F.grid_sample(
            t.arange(9, dtype=t.float64).reshape(1, 1, 3, 3), t.stack([x, y], -1).reshape(1, 1, -1, 2), m, p, c),
        [[a for a in GRID for _ in GRID], [b for _ in GRID for b in GRID]])
       for mode in ("bilinear", "bicubic") for padding in ("zeros", "border", "reflection") for corners in (False, True)},
    "heaviside": (lambda t, F, x: t.heaviside(x.detach(), t.tensor([0.5], dtype=t.float64)) * x, [LINE]),
    "frexp": (lambda t, F, x: t.frexp(x)[0], [[0, 1, -2, 0.5]]), "diff": (lambda t, F, x: t.diff(x).abs(), [[1, 1, 2]]),
    "gradient": (lambda t, F, x: t.gradient(x)[0].abs(), [[1, 1, 1]]),
    "log_softmax": (lambda t, F, x: F.log_softmax(x, 0), [[-INF, 1, 1]]), "softmax": (lambda t, F, x: t.softmax(x, 0), [[-INF, 1, 1]]),
    "nll": (lambda t, F, x: F.cross_entropy(x.reshape(1, 3), t.tensor([1])), [[-INF, 1, 1]]),
    "dist": (lambda t, F, x, y: t.dist(x, y, 1), [[1, 2], [1, 3]]), "hypot": (lambda t, F, x, y: t.hypot(x, y), [[0, 3, 0], [0, 4, 1]]),
    "xlogy": (lambda t, F, x: t.xlogy(2.0, x), [LINE]), "float_power": (lambda t, F, x: t.float_power(x, 2), [LINE]),
}  # fmt: skip
# How often they are, what they read or draw, or how much they make, is of no interest here.
LEFT_OUT = re.compile(
    r".*(Tensor|rand|dropout|empty|window|multinomial|binomial|poisson|normal|bernoulli|lowrank|gumbel|fractional).*|full.*|zeros.*|ones.*|arange|range"
    r"|eye|linspace|logspace|rrelu|vander|one_hot|bincount|histc|histogram.*|as_strided.*|cartesian_prod|combinations|block_diag|kron|meshgrid"
    r"|chain_matmul|tensordot|tril_indices|triu_indices|blackman|bartlett|hann|mode|outer|ger|cov|corrcoef|.*polynomial.*|gradient|set_.*"
)

DEVIATIONS: list[tuple[str, str, str]] = [  # (names, words of what differs, why: a row of the table in docs/differences.md)
    (r"a(rc)?cosh", "gradient|second|direction", "below 1, where there is no value, there is no derivative either"),
    (r"(special\.)?(digamma|psi|lgamma|gammaln)", "gradient|second|direction", "infinite at a pole, where torch's sin(pi x) is not 0"),
    (r"clamp|clip", "triples: (gradient|second|direction) [12]( 0)? at",
     "of equal limits that x is below `min` has the gradient (torch: neither); of a NaN nothing has"),
    (r"(call )?(clamp|clip|fmax|fmin).*|(F\.|call )((cosine|hinge)_embedding|(margin_ranking|triplet_margin))_loss|call normalize",
     "gradient|second|direction", "at a limit and of equal ones the gradient is that of torch 2.13, so that a weight at a limit learns"),
    (r"logaddexp2?", r"at \((-inf, -inf|inf, inf)\)", "equal infinities share the gradient; torch subtracts them"),
    (r"(special\.)?(xlogy|xlog1py)|F\.kl_div", "gradient|second|direction",
     "where the factor is 0 the product stays 0; torch divides 0 by 0"),
    (r"F\.binary_cross_entropy", "both zeros: ", "its derivative is that of its value, also where the logarithm is limited"),
    (r"(F\.|call )?(elu|selu)", "second 0 at", "at 0 both derivatives are those from the left; torch's second one is from the right"),
    (r"(pow|float_power)", "pairs: second 1 at", "x^y differentiated by both at y = 0 is 1 / x; torch has 0"),
    (r"(special\.)?sinc|call binary_cross_entropy", "second 0 at", "near 0 torch's second derivative has few digits"),
    (r"prod", "(inf|a NaN): gradient 0 at", "the product of the other elements; torch divides the whole by one"),
    (r"std_mean|var_mean|trapz|trapezoid", "inf: value", "the mean of equal infinities is that infinity"),
    (r"F\.hardswish|special\.(airy_ai|bessel_..)", r"value 0 at \(-?inf\)", "the limit, where torch has NaN"),
    (r"special\.log_ndtr|call soft_margin_loss", "(gradient|direction)", "the derivative's limit at infinity, where torch has NaN"),
    (r"call softplus", "second 0 at", "at the threshold, the smooth side's"),
    (r"(arg|m)?sort|bucketize", "", "the order of equal elements, and what unsorted boundaries mean, is not defined in torch"),
]


def leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, (tuple, list)):
        for v in x:
            yield from leaves(v)
    elif hasattr(x, "requires_grad"):
        yield x


def outcome(lib: Any, fn: Callable[..., Any], arrays: Sequence[Sequence[float]]) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Results of fn, the gradient of their weighted sum, the gradient of its weighted sum, and the derivative along each vector of ones."""

    def tensor(a: Any, grad: bool = False) -> Any:
        return lib.tensor(np.asarray(a, np.float64), requires_grad=True) if grad else lib.tensor(np.asarray(a, np.float64))

    def floats(results: Any) -> list[Any]:
        return [r for r in leaves(results) if r.dtype == lib.float64]

    def weighed(results: Any, period: int) -> Any:
        return sum((r * tensor(0.5 + np.arange(r.numel()).reshape(tuple(r.shape)) % period)).sum() for r in results)

    def derivative(of: Any, by: Any, again: bool) -> list[Any]:
        found = lib.autograd.grad(of, by, create_graph=again, allow_unused=True)
        return [tensor(np.zeros(tuple(x.shape))) if g is None else g for g, x in zip(found, by, strict=True)]

    xs = [tensor(a, True) for a in arrays]
    results = [*leaves(fn(*xs))]
    out = {"value": [r.detach().numpy() for r in results]}
    smooth = [r for r in floats(results) if r.requires_grad]
    if not smooth:
        return out
    first = derivative(weighed(smooth, 7), xs, True)
    out["gradient"] = [g.detach().numpy() for g in first]
    known = [g for g in first if g.requires_grad]
    try:
        second = derivative(weighed(known, 5), xs, False) if known else []
        out["second"] = [g.detach().numpy() for g in second]
    except (RuntimeError, NotImplementedError, tg.TracegradError):
        pass
    for k, a in enumerate(arrays):
        def along(x: Any, k: int = k) -> Any:
            return tuple(floats(fn(*(x if i == k else tensor(b) for i, b in enumerate(arrays)))))
        try:
            slope = lib.func.jvp(along, (tensor(a),), (tensor(np.ones(len(a))),))[1]
        except (RuntimeError, NotImplementedError):
            continue
        out[f"direction {k}"] = [s.detach().numpy() for s in slope]
    return out


def differences(name: str, fn: Callable[..., Any], arrays: Sequence[Sequence[float]], torch: Any, functional: Any) -> Iterator[str]:
    """Lines "kind at point: ours, not torch's" for a call; nothing where torch does not take it."""
    try:
        wanted = outcome(torch, lambda *xs: fn(torch, functional, *xs), arrays)
    except Exception:
        return
    mine = outcome(tg, lambda *xs: fn(tg, F, *xs), arrays)
    for kind, theirs in wanted.items():
        if not mine.get(kind) and (kind == "second" or not any(np.any(b) for b in theirs)):
            continue
        if kind == "second" and not theirs:
            continue
        if kind not in mine or len(mine[kind]) != len(theirs):
            yield f"{kind}: {mine.get(kind)}, not {theirs}"
            continue
        for number, (a, b) in enumerate(zip(mine[kind], theirs, strict=True)):
            if a.shape != b.shape:
                yield f"{kind} {number}: shape {a.shape}, not {b.shape}"
            elif b.dtype.kind in "fiub":
                wrong = ~np.isclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True)
                wrong &= ~_beyond_question(kind, number, a, b, wanted, arrays)
                for at in np.argwhere(wrong):
                    point = ", ".join(f"{v[at[0]]:g}" for v in arrays) if a.ndim == 1 and {*map(len, arrays)} == {len(a)} else str([*at])
                    yield f"{kind} {number} at ({point}): {a[tuple(at)]:.6g}, not {b[tuple(at)]:.6g}"


def _beyond_question(kind: str, number: int, a: Any, b: Any, wanted: Any, arrays: Any) -> Any:
    """Where nothing is to be asked of a derivative: a NaN where the value is one, second ones at singularities, and directions in which
    torch's slope is not the one that its own gradient has (ours is: tests/autodiff/test_forward_ad.py)."""
    allowed = np.zeros(a.shape, bool)
    value = wanted["value"][0]
    if kind != "value" and value.shape in ((), a.shape):
        allowed |= np.isnan(value) & np.isnan(a)
    if kind == "second":                                    # products of zeros and infinities, in both
        allowed |= ~np.isfinite(b)
        for gradient in wanted["gradient"]:
            allowed |= ~np.isfinite(gradient) if gradient.shape == b.shape else not np.isfinite(gradient).all()
    if kind.startswith("direction"):
        gradient = wanted["gradient"][int(kind[10:])]
        slope = b * (0.5 + np.arange(b.size).reshape(b.shape) % 7)
        if len(wanted["value"]) == 1 and b.shape == gradient.shape:
            allowed |= ~np.isclose(slope, gradient, rtol=1e-6, equal_nan=True)
        elif len(wanted["value"]) == 1 and not np.isclose(slope.sum(), gradient.sum(), rtol=1e-6):
            allowed |= True
    return allowed


def names() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function that could be called with vectors, by its name, as CALLS have it."""
    for prefix, table in (("", PUBLIC), ("F.", FUNCTIONAL), ("special.", SPECIAL)):
        for name in sorted(table):
            if LEFT_OUT.fullmatch(name):
                continue
            if prefix == "F.":
                yield prefix + name, lambda t, F, *xs, n=name: getattr(F, n)(*xs)
            elif prefix:
                yield prefix + name, lambda t, F, *xs, n=name: getattr(t.special, n)(*xs)
            else:
                yield name, lambda t, F, *xs, n=name: getattr(t, n, None)(*xs)
    for name, (fn, _) in CALLS.items():
        yield f"call {name}", fn


def found(name: str, fn: Callable[..., Any]) -> Iterator[str]:
    """What differs of a function, but for DEVIATIONS."""
    import torch  # noqa: PLC0415  (where it is not installed this file is read for its cases)

    points = {"": CALLS[name.removeprefix("call ")][1]} if name.startswith("call ") else POINTS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for what, arrays in points.items():
            for line in differences(name, fn, arrays, torch, torch.nn.functional):
                text = f"{what}: {line}" if what else line
                if not any(re.fullmatch(pattern, name) and re.search(words, text) for pattern, words, _ in DEVIATIONS):
                    yield text


if __name__ == "__main__":
    for case, function in names():
        if len(sys.argv) == 1 or any(word in case for word in sys.argv[1:]):
            for number, line in enumerate(found(case, function)):
                if number < 6:
                    print(f"{case}: {line}", flush=True)
