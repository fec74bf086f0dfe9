"""tracegrad.nn.functional beyond the layers: activations, losses, pools, 3-d convolutions, resampling, embeddings. By definition in numpy.

torch_gradient=False: torch has no derivative in a target or weight there, or a NaN.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import signal, spatial, special

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.names import Case, checks
from tracegrad.nn import functional as F_

inf, nan = np.inf, np.nan
RNG = np.random.default_rng(8)


def u(*shape: int) -> Any:
    return RNG.uniform(-2, 2, shape)


def i(low: int, high: int, *shape: int) -> Any:
    return RNG.integers(low, high, shape)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def cells(n: int, k: int) -> list[slice]:
    return [slice(j * n // k, -(-(j + 1) * n // k)) for j in range(k)]


def adaptive(x: Any, sizes: Any, fn: Any) -> Any:
    spatial_ = x.shape[-len(sizes) :]
    out = np.empty((*x.shape[: -len(sizes)], *sizes))
    for place in np.ndindex(*sizes):
        part = x[(..., *(cells(n, k)[j] for n, k, j in zip(spatial_, sizes, place, strict=True)))]
        out[(..., *place)] = fn(part, axis=tuple(range(-len(sizes), 0)))
    return out


def pools(x: Any, k: int, s: int, fn: Any, n: int) -> Any:
    view = np.lib.stride_tricks.sliding_window_view(x, (k,) * n, tuple(range(-n, 0)))
    return fn(view[(..., *[slice(None, None, s)] * n, *[slice(None)] * n)], axis=tuple(range(-n, 0)))


def conv3d(x: Any, w: Any, pad: int, stride: int) -> Any:
    x = np.pad(x, ((0, 0), (0, 0), *[(pad, pad)] * 3))
    return np.stack(
        [
            np.stack([sum(signal.correlate(x[n, c], w[o, c], "valid") for c in range(x.shape[1])) for o in range(len(w))])
            for n in range(len(x))
        ]
    )[:, :, ::stride, ::stride, ::stride]


def linear1d(x: Any, out: int, align: bool) -> Any:
    n = x.shape[-1]
    at = np.arange(out) * ((n - 1) / max(1, out - 1)) if align else np.clip((np.arange(out) + 0.5) * n / out - 0.5, 0, None)
    low = np.floor(at).astype(int)
    t = at - low
    return x[..., low] * (1 - t) + x[..., np.minimum(low + 1, n - 1)] * t


def linear(x: Any, sizes: Any, align: bool) -> Any:
    for k, out in enumerate(sizes):
        d = x.ndim - len(sizes) + k
        x = np.moveaxis(linear1d(np.moveaxis(x, d, -1), out, align), -1, d)
    return x


def ctc(logs: Any, labels: Any, steps: int, blank: int = 0) -> Any:
    """By going through all alignments."""
    total = -inf
    for path in product(range(logs.shape[1]), repeat=steps):
        kept = [c for k, c in enumerate(path) if (k == 0 or c != path[k - 1]) and c != blank]
        if kept == list(labels):
            total = np.logaddexp(total, sum(logs[k, c] for k, c in enumerate(path)))
    return -total


X, IMAGE, VOLUME = u(3, 13), u(2, 3, 7, 8), u(2, 3, 5, 6, 4)
SIGNS = np.where(i(0, 2, 3, 13) == 0, -1.0, 1.0)
LABELS = i(0, 13, 3)
LOGS = np.log(special.softmax(u(5, 2, 4), -1))
ACTIVATIONS = {
    "celu": Case(
        lambda t, F, x: (F.celu(x), F.celu(x, 0.5)),
        X,
        expected=lambda x: (np.where(x > 0, x, np.expm1(x)), np.where(x > 0, x, 0.5 * np.expm1(x * 2))),
    ),
    "hardsigmoid": Case(lambda t, F, x: F.hardsigmoid(x * 3), X, expected=lambda x: np.clip(x / 2 + 0.5, 0, 1), torch_tolerance=1e-7),
    "hardswish": Case(lambda t, F, x: F.hardswish(x * 3), X, expected=lambda x: 3 * x * np.clip(x / 2 + 0.5, 0, 1)),
    "mish": Case(lambda t, F, x: F.mish(x), X, expected=lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "prelu": Case(
        lambda t, F, x, w: (F.prelu(x, w), t.prelu(x, w[:1])),
        X,
        u(13),
        expected=lambda x, w: (np.where(x > 0, x, x * w), np.where(x > 0, x, x * w[0])),
    ),
    "rrelu": Case(
        lambda t, F, x: (F.rrelu(x), t.rrelu(x, 0.2, 0.4)),
        X,
        expected=lambda x: (np.where(x > 0, x, x * (1 / 8 + 1 / 3) / 2), np.where(x > 0, x, x * 0.3)),
    ),
    "softsign, tanhshrink": Case(
        lambda t, F, x: (F.softsign(x), F.tanhshrink(x)), X, expected=lambda x: (x / (1 + abs(x)), x - np.tanh(x))
    ),
    "shrinks": Case(
        lambda t, F, x: (F.softshrink(x), F.hardshrink(x), F.hardshrink(x, 1.1)),
        X,
        expected=lambda x: (np.sign(x) * np.maximum(abs(x) - 0.5, 0), np.where(abs(x) > 0.5, x, 0), np.where(abs(x) > 1.1, x, 0)),
    ),
    "activations at edges": Case(
        lambda t, F, x: (F.hardshrink(x), F.hardswish(x), F.hardsigmoid(x), F.threshold(x, 1, 9.0), F.celu(x), F.softsign(x * 0)),
        [nan, -0.5, 0.5, -3.0, 3.0, 1.0, 0.0],
        torch_gradient=False,
        gradient=0,
        expected=lambda x: (
            np.where(abs(x) <= 0.5, 0, x),
            x * np.clip(x / 6 + 0.5, 0, 1),
            np.clip(x / 6 + 0.5, 0, 1),
            np.where(x <= 1, 9.0, x),
            np.where(x <= 0, np.expm1(x), x),
            x * 0,
        ),
    ),
    "threshold": Case(
        lambda t, F, x: (F.threshold(x, 0.1, 20.0), t.threshold(x, -1.0, -0.5)),
        X,
        expected=lambda x: (np.where(x > 0.1, x, 20), np.where(x > -1, x, -0.5)),
    ),
    "softmin": Case(lambda t, F, x: F.softmin(x, 1), X, expected=lambda x: special.softmax(-x, 1)),
    "instance_norm": Case(
        lambda t, F, x, w: F.instance_norm(x, weight=w, bias=w * 2),
        IMAGE,
        u(3) + 3,
        torch_tolerance=1e-9,
        expected=lambda x, w: (
            (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5) * w[:, None, None] + 2 * w[:, None, None]
        ),
    ),
    "local_response_norm": Case(
        lambda t, F, x: (F.local_response_norm(x, 3, 0.5), F.local_response_norm(x, 2, 0.5, 0.6, 2.0)),
        u(2, 5, 7),
        expected=lambda x: tuple(
            x / (k + 0.5 / s * sum(np.pad(x * x, ((0, 0), (s // 2, (s - 1) // 2), (0, 0)))[:, j : j + 5] for j in range(s))) ** b
            for s, b, k in ((3, 0.75, 1.0), (2, 0.6, 2.0))
        ),
    ),
    "pixel_shuffle": Case(
        lambda t, F, x: (F.pixel_shuffle(x, 2), t.pixel_unshuffle(F.pixel_shuffle(x, 2), 2)),
        u(2, 8, 3, 5),
        expected=lambda x: (x.reshape(2, 2, 2, 2, 3, 5).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 10), x),
    ),
    "channel_shuffle": Case(
        lambda t, F, x: t.channel_shuffle(x, 3),
        u(2, 6, 4, 4),
        expected=lambda x: x.reshape(2, 3, 2, 4, 4).swapaxes(1, 2).reshape(2, 6, 4, 4),
    ),
    "distances": Case(
        lambda t, F, x, y: (
            F.pairwise_distance(x, y),
            F.pairwise_distance(x, y, 1, keepdim=True),
            t.cdist(x, y),
            t.cdist(x, y, 1.0),
            t.cdist(x, y, inf),
        ),
        u(5, 7),
        u(5, 7),
        expected=lambda x, y: (
            np.linalg.norm(x - y + 1e-6, axis=1),
            abs(x - y + 1e-6).sum(1, keepdims=True),
            spatial.distance.cdist(x, y),
            spatial.distance.cdist(x, y, "cityblock"),
            spatial.distance.cdist(x, y, "chebyshev"),
        ),
    ),
    "pdist": Case(
        lambda t, F, x: (F.pdist(x), t.pdist(x, 3.0)),
        u(7, 4),
        expected=lambda x: (spatial.distance.pdist(x), spatial.distance.pdist(x, "minkowski", p=3)),
    ),
    "bilinear": Case(
        lambda t, F, x, y, w, b: F.bilinear(x, y, w, b),
        u(2, 3, 4),
        u(2, 3, 5),
        u(6, 4, 5),
        u(6),
        expected=lambda x, y, w, b: np.einsum("...a,oab,...b->...o", x, w, y) + b,
    ),
    "embedding_bag": Case(
        lambda t, F, k, w: (
            F.embedding_bag(k, w),
            F.embedding_bag(k, w, mode="sum"),
            F.embedding_bag(k, w, mode="max"),
            F.embedding_bag(k, w, padding_idx=2),
        ),
        i(0, 7, 4, 5),
        u(7, 3),
        gradient=1,
        expected=lambda k, w: (
            w[k].mean(1),
            w[k].sum(1),
            w[k].max(1),
            np.stack([w[r[r != 2]].mean(0) if (r != 2).any() else w[0] * 0 for r in k]),
        ),
    ),
    "embedding_bag with offsets": Case(
        lambda t, F, k, o, w: tuple(F.embedding_bag(k, w, o, mode=m) for m in ("mean", "sum", "max")),
        i(0, 7, 13),
        np.array([0, 3, 3, 8]),
        u(7, 3),
        gradient=1,
        expected=lambda k, o, w: tuple(
            np.stack([f(w[k[a:b]], axis=0) if b > a else w[0] * 0 for a, b in ((0, 3), (3, 3), (3, 8), (8, 13))])
            for f in (np.mean, np.sum, np.max)
        ),
    ),
    "embedding_bag, weighted": Case(
        lambda t, F, k, o, w, p: F.embedding_bag(k, w, o, mode="sum", per_sample_weights=p, include_last_offset=True),
        i(0, 7, 13),
        np.array([0, 3, 8, 13]),
        u(7, 3),
        u(13),
        gradient=1,
        expected=lambda k, o, w, p: np.stack([(w[k[a:b]] * p[a:b, None]).sum(0) for a, b in ((0, 3), (3, 8), (8, 13))]),
    ),
    "dropouts not training": Case(
        lambda t, F, x: (
            F.dropout2d(x, 0.5, False),
            F.alpha_dropout(x),
            F.feature_alpha_dropout(x),
            F.dropout1d(x[0], 0.3, training=False),
        ),
        IMAGE,
        expected=lambda x: (x, x, x, x[0]),
        gradient=0,
    ),
}
T = i(0, 5, 3, 13).astype(float)
LOSSES = {
    "poisson_nll_loss": Case(
        lambda t, F, x, y: (F.poisson_nll_loss(x, y), F.poisson_nll_loss(x.exp(), y, False, full=True, reduction="sum")),
        X,
        T,
        gradient=1,
        differences=False,
        expected=lambda x, y: (
            (np.exp(x) - y * x).mean(),
            (
                np.exp(x)
                - y * np.log(np.exp(x) + 1e-8)
                + np.where(y > 1, y * np.log(np.maximum(y, 1)) - y + 0.5 * np.log(2 * np.pi * np.maximum(y, 1)), 0)
            ).sum(),
        ),
        torch_gradient=False,
    ),
    "gaussian_nll_loss": Case(
        lambda t, F, x, y, v: (F.gaussian_nll_loss(x, y, v), F.gaussian_nll_loss(x, y, v[:, :1], full=True, reduction="none")),
        X,
        u(3, 13),
        u(3, 13) + 3,
        expected=lambda x, y, v: (
            0.5 * (np.log(v) + (x - y) ** 2 / v).mean(),
            0.5 * (np.log(v[:, :1]) + (x - y) ** 2 / v[:, :1]) + 0.5 * np.log(2 * np.pi),
        ),
    ),
    "gaussian_nll_loss, limited": Case(
        lambda t, F, x, y, v: F.gaussian_nll_loss(x, y, v * 1e-9), X, u(3, 13), u(3, 13) ** 2, gradient=1, differences=False
    ),
    "margin_ranking_loss": Case(
        lambda t, F, x, y, s: (F.margin_ranking_loss(x, y, s), F.margin_ranking_loss(x, y, s, 0.3, reduction="none")),
        X,
        u(3, 13),
        SIGNS,
        expected=lambda x, y, s: (np.maximum(0, -s * (x - y)).mean(), np.maximum(0, -s * (x - y) + 0.3)),
    ),
    "hinge_embedding_loss": Case(
        lambda t, F, x, s: (F.hinge_embedding_loss(x, s), F.hinge_embedding_loss(x, s, 0.5, reduction="sum")),
        X,
        SIGNS,
        expected=lambda x, s: (np.where(s == 1, x, np.maximum(0, 1 - x)).mean(), np.where(s == 1, x, np.maximum(0, 0.5 - x)).sum()),
        gradient=1,
        differences=False,
    ),
    "cosine_embedding_loss": Case(
        lambda t, F, x, y, s: (F.cosine_embedding_loss(x, y, s[:, 0]), F.cosine_embedding_loss(x[0], y[0], s[0, 0], 0.1)),
        X,
        u(3, 13),
        SIGNS,
        gradient=1,
        differences=False,
        tolerance=1e-10,
    ),
    "triplet_margin_loss": Case(
        lambda t, F, a, p, n: (
            F.triplet_margin_loss(a, p, n, 5.0),
            F.triplet_margin_loss(a, p, n, 4.0, 1, swap=True, reduction="none"),
            F.triplet_margin_with_distance_loss(a, p, n, margin=4.0),
        ),
        X,
        u(3, 13),
        u(3, 13),
        expected=lambda a, p, n: (
            np.maximum(0, np.linalg.norm(a - p + 1e-6, axis=1) - np.linalg.norm(a - n + 1e-6, axis=1) + 5).mean(),
            np.maximum(0, abs(a - p + 1e-6).sum(1) - np.minimum(abs(a - n + 1e-6).sum(1), abs(p - n + 1e-6).sum(1)) + 4),
            np.maximum(0, np.linalg.norm(a - p + 1e-6, axis=1) - np.linalg.norm(a - n + 1e-6, axis=1) + 4).mean(),
        ),
    ),
    "soft_margin_loss": Case(
        lambda t, F, x, s: F.soft_margin_loss(x, s), X, SIGNS, expected=lambda x, s: np.log1p(np.exp(-s * x)).mean(), torch_gradient=False
    ),
    "multilabel_soft_margin_loss": Case(
        lambda t, F, x, y, w: (F.multilabel_soft_margin_loss(x, y), F.multilabel_soft_margin_loss(x, y, w, reduction="none")),
        X,
        (SIGNS + 1) / 2,
        u(13) + 3,
        expected=lambda x, y, w: (np.logaddexp(0, -x * (2 * y - 1)).mean(), (np.logaddexp(0, -x * (2 * y - 1)) * w).mean(1)),
    ),
    "multi_margin_loss": Case(
        lambda t, F, x, y, w: (
            F.multi_margin_loss(x, y),
            F.multi_margin_loss(x, y, 2, 0.5, w, reduction="none"),
            F.multi_margin_loss(x[0], y[0]),
        ),
        X,
        LABELS,
        u(13) + 3,
        expected=lambda x, y, w: (
            np.mean([(np.maximum(0, 1 - r[k] + r).sum() - 1) / 13 for r, k in zip(x, y, strict=True)]),
            np.array([w[k] * ((np.maximum(0, 0.5 - r[k] + r) ** 2).sum() - 0.25) / 13 for r, k in zip(x, y, strict=True)]),
            (np.maximum(0, 1 - x[0, y[0]] + x[0]).sum() - 1) / 13,
        ),
        gradient=1,
        torch_gradient=False,
    ),
    "multilabel_margin_loss": Case(
        lambda t, F, x, y: (F.multilabel_margin_loss(x, y), F.multilabel_margin_loss(x[0], y[0])),
        u(2, 4),
        np.array([[3, 0, -1, 1], [2, 1, 0, -1]]),
        gradient=1,
        expected=lambda x, y: tuple(
            np.mean([sum(max(0, 1 - r[k] + r[j]) for k in ks for j in range(4) if j not in ks) / 4 for r, ks in rows])
            for rows in ([(x[0], [3, 0]), (x[1], [2, 1, 0])], [(x[0], [3, 0])])
        ),
    ),
    "ctc_loss": Case(
        lambda t, F, x, y, n, m: tuple(F.ctc_loss(x, y, n, m, reduction=r) for r in ("none", "sum", "mean")),
        LOGS,
        np.array([[1, 2], [3, 3]]),
        np.array([5, 4]),
        np.array([2, 2]),
        gradient=0,
        tolerance=1e-10,
        expected=lambda x, y, n, m: (
            np.array([ctc(x[:, 0], (1, 2), 5), ctc(x[:, 1], (3, 3), 4)]),
            ctc(x[:, 0], (1, 2), 5) + ctc(x[:, 1], (3, 3), 4),
            (ctc(x[:, 0], (1, 2), 5) + ctc(x[:, 1], (3, 3), 4)) / 4,
        ),
    ),
    "ctc_loss, targets one after the other": Case(
        lambda t, F, x, y, n, m: tuple(F.ctc_loss(x, y, *given, reduction="none") for given in ((n, m), ([5, 4], [2, 1]))),
        LOGS,
        np.array([1, 2, 3]),
        np.array([5, 4]),
        np.array([2, 1]),
        gradient=0,
        tolerance=1e-10,
        expected=lambda x, y, n, m: (np.array([ctc(x[:, 0], (1, 2), 5), ctc(x[:, 1], (3,), 4)]),) * 2,
    ),
    "ctc_loss of scores": Case(
        lambda t, F, x, y: F.ctc_loss(x.log_softmax(-1), y, [5, 3], [2, 1], blank=3),
        u(5, 2, 4),
        np.array([1, 2, 0]),
        gradient=0,
        torch_tolerance=1e-8,
    ),
    "ctc_loss of the impossible": Case(
        lambda t, F, x, y, n, m: (F.ctc_loss(x, y, n, m, reduction="none"), F.ctc_loss(x, y, n, m, zero_infinity=True)),
        LOGS,
        np.array([[1, 1], [3, 2]]),
        np.array([2, 4]),
        np.array([2, 2]),
        gradient=0,
        expected=lambda x, y, n, m: (np.array([inf, ctc(x[:, 1], (3, 2), 4)]), ctc(x[:, 1], (3, 2), 4) / 4),
    ),
}
SPATIAL = {
    "conv3d": Case(
        lambda t, F, x, w, b: F.conv3d(x, w, b, padding=1, stride=2),
        VOLUME,
        u(2, 3, 3, 3, 3),
        u(2),
        gradient=1,
        expected=lambda x, w, b: conv3d(x, w, 1, 2) + b[:, None, None, None],
    ),
    "conv3d, uneven": Case(
        lambda t, F, x, w: (
            F.conv3d(x, w, stride=(1, 2, 1), padding=(2, 0, 1), dilation=(2, 1, 2), groups=2),
            F.conv3d(x[0], w, padding="same", groups=2),
        ),
        u(2, 4, 5, 6, 4),
        u(6, 2, 2, 3, 2),
        differences=False,
    ),
    "conv_transpose3d": Case(
        lambda t, F, x, w, b: (
            F.conv_transpose3d(x, w, b, stride=2, padding=1, output_padding=1),
            F.conv_transpose3d(x[0], w, stride=(2, 1, 3), padding=(0, 1, 1), dilation=(2, 1, 2), output_padding=(1, 0, 2)),
        ),
        u(2, 3, 3, 4, 2),
        u(3, 2, 3, 2, 3),
        u(2),
        differences=False,
    ),
    "conv_transpose3d, grouped": Case(
        lambda t, F, x, w: F.conv_transpose3d(x, w, stride=3, groups=2, padding=(0, 1, 0), output_padding=2),
        u(1, 4, 2, 3, 2),
        u(4, 3, 2, 2, 2),
    ),
    "max_pool3d": Case(
        lambda t, F, x: (
            F.max_pool3d(x, 2),
            *F.max_pool3d(x, 3, 2, 1, return_indices=True),
            F.max_pool3d(x, (2, 3, 1), 1, dilation=(2, 1, 1)),
        ),
        VOLUME,
        gradient=1,
        expected=None,
    ),
    "avg_pool3d": Case(
        lambda t, F, x: (
            F.avg_pool3d(x, 2, 1),
            F.avg_pool3d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool3d(x, 3, 2, 1, True, False),
            F.avg_pool3d(x, 2, divisor_override=3),
        ),
        VOLUME,
        gradient=1,
    ),
    "pools by definition": Case(
        lambda t, F, x, y: (
            F.max_pool3d(x, 2, 1),
            F.avg_pool3d(x, 2),
            F.lp_pool1d(y[0, 0], 3, 2),
            F.lp_pool2d(y, 2, 3, 2),
            F.lp_pool3d(x, 2, 2),
        ),
        VOLUME,
        u(2, 3, 7, 8) + 3,
        gradient=0,
        expected=lambda x, y: (
            pools(x, 2, 1, np.max, 3),
            pools(x, 2, 2, np.mean, 3),
            pools(y[0, 0] ** 3, 2, 2, np.sum, 1) ** (1 / 3),
            pools(y * y, 3, 2, np.sum, 2) ** 0.5,
            pools(x * x, 2, 2, np.sum, 3) ** 0.5,
        ),
    ),
    "lp_pool": Case(lambda t, F, x: (F.lp_pool1d(x[0], 2, 3, 2, True), F.lp_pool2d(x, 3, 2, 1)), u(2, 3, 5, 6) + 3, gradient=1),
    "adaptive_avg_pool": Case(
        lambda t, F, x, y: (
            F.adaptive_avg_pool1d(x[0], 3),
            F.adaptive_avg_pool2d(x, (5, None)),
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool3d(y, (2, 4, 3)),
            F.adaptive_avg_pool1d(x[0], 11),
        ),
        IMAGE,
        VOLUME,
        gradient=1,
        expected=lambda x, y: (
            adaptive(x[0], (3,), np.mean),
            adaptive(x, (5, 8), np.mean),
            adaptive(x, (1, 1), np.mean),
            adaptive(y, (2, 4, 3), np.mean),
            adaptive(x[0], (11,), np.mean),
        ),
    ),
    "adaptive_max_pool": Case(
        lambda t, F, x, y: (
            F.adaptive_max_pool1d(x[0], 3),
            F.adaptive_max_pool2d(x, (5, None)),
            F.adaptive_max_pool3d(y, (2, 4, 3)),
            F.adaptive_max_pool2d(x, 2),
        ),
        IMAGE,
        VOLUME,
        gradient=1,
        expected=lambda x, y: (
            adaptive(x[0], (3,), np.max),
            adaptive(x, (5, 8), np.max),
            adaptive(y, (2, 4, 3), np.max),
            adaptive(x, (2, 2), np.max),
        ),
    ),
    "adaptive_max_pool with places": Case(
        lambda t, F, x, y: (
            *F.adaptive_max_pool1d(x[0], 3, return_indices=True),
            *F.adaptive_max_pool2d(x, (5, 3), return_indices=True),
            *F.adaptive_max_pool3d(y, (2, 4, 3), return_indices=True),
        ),
        IMAGE,
        VOLUME,
        gradient=0,
    ),
    "max_unpool": Case(
        lambda t, F, x, y: (
            F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 8)),
            F.max_unpool1d(*F.max_pool1d(x[0], 2, return_indices=True), 2),
            F.max_unpool3d(*F.max_pool3d(y, 2, return_indices=True), 2),
        ),
        IMAGE,
        VOLUME,
        gradient=1,
        expected=None,
    ),
    "unfold and fold": Case(
        lambda t, F, x: (
            F.unfold(x, 3, padding=1),
            F.unfold(x[0], (2, 3), 2, 1, (1, 2)),
            F.fold(F.unfold(x, (2, 3), stride=(1, 2)), (7, 8), (2, 3), stride=(1, 2)),
            F.fold(F.unfold(x, 3, 2, 2), (7, 8), 3, 2, 2),
        ),
        IMAGE,
        gradient=1,
    ),
    "interpolate: nearest": Case(
        lambda t, F, x, y: (
            F.interpolate(x, 14),
            F.interpolate(x, (3, 13)),
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, scale_factor=(0.6, 1.7)),
            F.interpolate(y[:, :, 0, 0], 7),
            F.interpolate(y, (3, 7, 8)),
            F.interpolate(x, (5, 16), mode="nearest-exact"),
            F.interpolate(x, scale_factor=1.3, mode="nearest-exact"),
        ),
        IMAGE,
        VOLUME,
        gradient=1,
    ),
    "interpolate: linear": Case(
        lambda t, F, x, y: (
            *(F.interpolate(x[0], 13, mode="linear", align_corners=a) for a in (True, False)),
            *(F.interpolate(x, (5, 16), mode="bilinear", align_corners=a) for a in (True, False)),
            *(F.interpolate(y, (7, 3, 8), mode="trilinear", align_corners=a) for a in (True, False)),
        ),
        IMAGE,
        VOLUME,
        gradient=1,
        expected=lambda x, y: (
            *(linear(x[0], (13,), a) for a in (True, False)),
            *(linear(x, (5, 16), a) for a in (True, False)),
            *(linear(y, (7, 3, 8), a) for a in (True, False)),
        ),
    ),
    "interpolate: by factors": Case(
        lambda t, F, x: (
            F.interpolate(x, scale_factor=1.7, mode="bilinear"),
            F.interpolate(x, scale_factor=(0.4, 1.3), mode="bicubic"),
            F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
            F.interpolate(x, scale_factor=1.01, mode="bilinear"),
        ),
        IMAGE,
        gradient=1,
    ),
    "interpolate: bicubic and area": Case(
        lambda t, F, x: (
            F.interpolate(x, (5, 16), mode="bicubic"),
            F.interpolate(x, (14, 3), mode="bicubic", align_corners=True),
            F.interpolate(x, (3, 5), mode="area"),
            F.interpolate(x, (1, 1), mode="bicubic", align_corners=True),
        ),
        IMAGE,
        gradient=1,
    ),
    "interpolate: lanczos": Case(
        lambda t, F, x: (
            F.interpolate(x, (3, 16), mode="lanczos", antialias=True),
            F.interpolate(x, scale_factor=0.4, mode="lanczos", antialias=True),
        ),
        IMAGE,
        gradient=1,
    ),
    "upsample": Case(
        lambda t, F, x: (F.upsample(x, scale_factor=2), F.upsample_bilinear(x, size=(9, 9)), F.upsample_nearest(x, size=9)),
        IMAGE,
        gradient=0,
    ),
    "affine_grid": Case(
        lambda t, F, a, b: (
            F.affine_grid(a, (2, 3, 5, 7), True),
            F.affine_grid(a, (2, 3, 5, 7), False),
            F.affine_grid(b, (2, 1, 3, 4, 5), False),
        ),
        u(2, 2, 3),
        u(2, 3, 4),
    ),
    **{
        f"grid_sample: {m}, {p}, {a}": Case(
            lambda t, F, x, g, m=m, p=p, a=a: F.grid_sample(x, g, m, p, a),
            u(2, 2, 5, 6),
            u(2, 3, 4, 2) * 0.7,
            gradient=1,
            torch_tolerance=1e-9,
        )
        for m, p, a in product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (True, False))
    },
    **{
        f"grid_sample 3-d: {m}": Case(
            lambda t, F, x, g, m=m: F.grid_sample(x, g, m, align_corners=False),
            u(1, 2, 3, 4, 5),
            u(1, 2, 3, 2, 3) * 0.6,
            gradient=1,
            torch_tolerance=1e-9,
        )
        for m in ("bilinear", "nearest")
    },
}
CASES = {**ACTIVATIONS, **LOSSES, **SPATIAL}
test_values, test_gradients, test_as_in_torch = checks(CASES)


def test_grid_sample_of_the_identity_is_interpolation(on_numpy: Any) -> None:
    x = tg.tensor(IMAGE)
    theta = tg.tensor([[[1.0, 0, 0], [0, 1, 0]]] * 2, dtype=tg.float64)
    np.testing.assert_allclose(F_.grid_sample(x, F_.affine_grid(theta, x.shape, False), align_corners=False).numpy(), IMAGE, atol=1e-12)
    larger = F_.grid_sample(x, F_.affine_grid(theta, (2, 3, 13, 16), True), align_corners=True)
    np.testing.assert_allclose(larger.numpy(), linear(IMAGE, (13, 16), True), atol=1e-12)


def test_instance_norm_keeps_averages(on_numpy: Any) -> None:
    mean, var = tg.zeros(3, dtype=tg.float64), tg.ones(3, dtype=tg.float64)
    F_.instance_norm(tg.tensor(IMAGE), mean, var, momentum=0.1)
    np.testing.assert_allclose(mean.numpy(), 0.1 * IMAGE.mean((0, 2, 3)))
    np.testing.assert_allclose(var.numpy(), 0.9 + 0.1 * IMAGE.var((2, 3), ddof=1).mean(0))
    y = F_.instance_norm(tg.tensor(IMAGE), mean, var, use_input_stats=False)
    np.testing.assert_allclose(y.numpy(), (IMAGE - mean.numpy()[:, None, None]) / np.sqrt(var.numpy()[:, None, None] + 1e-5))


def test_dropouts_draw_whole_channels_and_keep_moments(on_numpy: Any) -> None:
    tg.manual_seed(0)
    y = F_.dropout2d(tg.ones(64, 33, 3, 3), 0.25).numpy()
    assert (y == y[:, :, :1, :1]).all()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y[:, :, 0, 0] == 0).mean() - 0.25) < 0.03
    x = tg.randn(100, 257)
    z = F_.alpha_dropout(x, 0.3, True).numpy()
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.03
    w = F_.feature_alpha_dropout(tg.randn(100, 65, 7), 0.3, True).numpy()
    dropped = (w == w[:, :, :1]).all(2)
    assert abs(dropped.mean() - 0.3) < 0.03
    for fn, p in ((F_.dropout3d, 1.0), (F_.alpha_dropout, 1.0)):
        assert not fn(tg.ones(2, 2, 2, 2, 2), p, True).numpy().any()
    r = F_.rrelu(tg.full((100, 100), -1.0), 0.2, 0.4, training=True).numpy()
    assert -0.4 <= r.min() < -0.39
    assert -0.21 < r.max() <= -0.2


def test_binary_cross_entropy_of_what_is_no_probability_is_no_number(on_numpy: Any) -> None:
    p = tg.tensor([0.0, 1.0, 0.5, -0.1, 1.5, 7.0, -0.0, float("nan")])
    for target in (0.0, 1.0, 0.3):
        found = F_.binary_cross_entropy(p, tg.full((8,), target), reduction="none").numpy()
        np.testing.assert_array_equal(np.isnan(found), [False, False, False, True, True, True, False, True])
        np.testing.assert_allclose(found[[0, 1, 6]], [100 * target, 100 * (1 - target), 100 * target], rtol=1e-6)
    x = tg.tensor([0.0, 1.0, 0.25], requires_grad=True)
    F_.binary_cross_entropy(x, tg.tensor([1.0, 0.0, 1.0]), reduction="sum").backward()
    assert x.grad.tolist() == [0.0, 0.0, -4.0]


def test_binary_cross_entropy_of_complex_numbers_is_refused(on_numpy: Any) -> None:
    p, t = tg.full((3,), 0.5), tg.ones(3)
    for given in ((p.cfloat(), t), (p, t.cfloat())):
        with pytest.raises(tg.DTypeError, match="binary_cross_entropy"):
            F_.binary_cross_entropy(*given)


def test_gumbel_softmax(on_numpy: Any) -> None:
    tg.manual_seed(0)
    logits = tg.tensor(np.log([[0.1, 0.2, 0.7]] * 4000), requires_grad=True)
    hard = F_.gumbel_softmax(logits, hard=True)
    np.testing.assert_allclose(hard.detach().numpy().mean(0), [0.1, 0.2, 0.7], atol=0.03)
    np.testing.assert_allclose(np.sort(hard.detach().numpy(), 1), [[0, 0, 1]] * 4000, atol=1e-12)
    (hard * tg.tensor([1.0, 2.0, 3.0], dtype=tg.float64)).sum().backward()
    assert abs(logits.grad.numpy()).max() > 0.1
    soft = F_.gumbel_softmax(logits, tau=0.5)
    np.testing.assert_allclose(soft.detach().numpy().sum(1), 1.0)


def test_the_device_agrees(device: Any) -> None:
    x, v, g = (a.astype(np.float32) for a in (u(2, 3, 13, 16), u(1, 2, 5, 6, 7), u(2, 7, 5, 2) * 0.7))

    @tg.trace
    def all_of(x: Any, v: Any, g: Any, w: Any) -> Any:
        return (
            F_.interpolate(x, (31, 33), mode="bilinear"),
            F_.grid_sample(x, g, align_corners=False),
            F_.adaptive_avg_pool2d(x, (5, 7)),
            F_.adaptive_max_pool2d(x, (5, 7)),
            F_.conv3d(v, w, padding=1),
            F_.max_pool3d(v, 2),
            F_.fold(F_.unfold(x, 3), (13, 16), 3),
            F_.mish(x),
        )

    w = u(4, 2, 3, 3, 3).astype(np.float32)
    found = [r.numpy() for r in all_of(*map(tg.tensor, (x, v, g, w)))]
    tg.set_device("numpy")
    try:
        wanted = [r.numpy() for r in all_of(*map(tg.tensor, (x, v, g, w)))]
    finally:
        tg.set_device(device)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found[4], conv3d(v, w, 1, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x: F_.celu(x, 0), tg.ArgumentError, "celu: alpha"),
        (lambda x: F_.prelu(x, tg.ones(2)), tg.ShapeError, "prelu: weight"),
        (lambda x: F_.rrelu(x, 1.0, 0.5), tg.ArgumentError, "rrelu: lower"),
        (lambda x: F_.softshrink(x, -1.0), tg.ArgumentError, "softshrink: lambd"),
        (lambda x: F_.instance_norm(x[0]), tg.ShapeError, "instance_norm: takes"),
        (lambda x: F_.local_response_norm(x, 0), tg.ArgumentError, "local_response_norm: size"),
        (lambda x: F_.pixel_shuffle(x, 2), tg.ShapeError, "pixel_shuffle: the channels"),
        (lambda x: F_.embedding_bag(tg.zeros(2, 2).long(), x[0], sparse=True), tg.ArgumentError, "embedding_bag: sparse"),
        (lambda x: F_.embedding_bag(tg.zeros(2).long(), x[0]), tg.ShapeError, "embedding_bag: takes"),
        (lambda x: F_.dropout2d(x, 1.5), tg.ArgumentError, "dropout2d: p"),
        (lambda x: F_.gumbel_softmax(x, 0), tg.ArgumentError, "gumbel_softmax: tau"),
        (lambda x: tg.cdist(x, tg.ones(2)), tg.ShapeError, "cdist: takes"),
        (lambda x: F_.gaussian_nll_loss(x, x, -1.0), tg.ArgumentError, "gaussian_nll_loss: var"),
        (lambda x: F_.triplet_margin_loss(x, x, x, 0.0), tg.ArgumentError, "triplet_margin_loss: margin"),
        (lambda x: F_.multi_margin_loss(x[0], tg.tensor([0, 9, 0])).numpy(), tg.IndexOutOfRange, "multi_margin_loss"),
        (lambda x: F_.multi_margin_loss(x[0], x[0]), tg.DTypeError, "multi_margin_loss: target"),
        (lambda x: F_.multilabel_margin_loss(x[0], tg.tensor([0])), tg.ShapeError, "multilabel_margin_loss: target"),
        (lambda x: F_.ctc_loss(x, tg.tensor([[1]] * 3), [3, 3], [1, 1, 1]), tg.ShapeError, "ctc_loss: input_lengths"),
        (lambda x: F_.ctc_loss(x, tg.tensor([1, 1]), [3, 3, 3], [1, 1, 1]), tg.ShapeError, "ctc_loss: targets"),
        (lambda x: F_.ctc_loss(x, tg.tensor([[1]] * x.shape[1]), [99] * x.shape[1], [1] * x.shape[1]), tg.IndexOutOfRange,
         "ctc_loss.*: input_lengths holds 99"),
        (lambda x: F_.ctc_loss(x, tg.tensor([[1]] * x.shape[1]), [1] * x.shape[1], tg.tensor([2] * x.shape[1])).item(), tg.IndexOutOfRange,
         "ctc_loss.*: target_lengths holds 2, out of range for 1 labels"),
        (lambda x: F_.poisson_nll_loss(x, x[0]), tg.ShapeError, "poisson_nll_loss"),
        (lambda x: F_.interpolate(x, 5, 2.0), tg.ArgumentError, "interpolate: give size or scale_factor"),
        (lambda x: F_.interpolate(x, 5, mode="bilinear"), tg.ArgumentError, "interpolate: mode 'bilinear'"),
        (lambda x: F_.interpolate(x, 5, align_corners=True), tg.ArgumentError, "interpolate: align_corners"),
        (lambda x: F_.interpolate(x[None], 5, antialias=True), tg.ArgumentError, "interpolate: antialias"),
        (lambda x: F_.grid_sample(x, x), tg.ShapeError, "grid_sample: takes"),
        (lambda x: F_.affine_grid(x, (3, 1, 2, 2)), tg.ShapeError, "affine_grid: takes"),
        (lambda x: F_.conv3d(x, tg.ones(1, 3, 2, 2, 2)), tg.ShapeError, "conv3d: takes"),
        (lambda x: F_.conv3d(x[None], tg.ones(1, 2, 2, 2, 2)), tg.ShapeError, "conv3d: input"),
        (lambda x: F_.max_unpool2d(x, x.long(), 2, output_size=(20, 20)), tg.ShapeError, "max_unpool2d: output_size"),
        (lambda x: F_.adaptive_avg_pool2d(x, (1, 2, 3)), tg.ArgumentError, "adaptive_avg_pool2d: output_size"),
        (lambda x: F_.fold(x, (4, 4), 2), tg.ShapeError, "fold: takes"),
        (lambda x: F_.unfold(x, 5), tg.ShapeError, "unfold: a kernel"),
    ],
)
def test_errors(fn: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fn(tg.ones(3, 3, 3))


def test_binary_cross_entropy_of_what_is_no_probability():
    """NaN, of the input and of the target; the ends of [0, 1] are probabilities."""
    p, t = tg.tensor([0.5, 0.0, 1.0, 1.5, 0.5, 0.5]), tg.tensor([1.0, 0.0, 1.0, 1.0, 1.25, -0.25])
    loss = F_.binary_cross_entropy(p, t, reduction="none").numpy()
    np.testing.assert_allclose(loss, [np.log(2), 0.0, 0.0, np.nan, np.nan, np.nan], rtol=1e-6)


def forward_backward(scores: Any, labels: Any) -> tuple[float, Any]:
    """ctc_loss of a sequence and its gradient with respect to log_softmax's result (Graves et al. 2006), term by term; the blank is 0."""
    states = [0] + [s for label in labels for s in (int(label), 0)]
    steps, width = len(scores), len(states)
    ahead, behind = np.full((steps, width), -inf), np.full((steps, width), -inf)
    ahead[0, :2], behind[-1, -2:] = scores[0, states[:2]], scores[-1, states[-2:]]
    for t in range(1, steps):
        for s in range(width):
            skips = 2 if s > 1 and states[s] not in (0, states[s - 2]) else 1
            ahead[t, s] = np.logaddexp.reduce(ahead[t - 1, max(0, s - skips) : s + 1]) + scores[t, states[s]]
            skips = 2 if s + 2 < width and states[s] not in (0, states[s + 2]) else 1
            behind[-1 - t, s] = np.logaddexp.reduce(behind[-t, s : s + skips + 1]) + scores[-1 - t, states[s]]
    total = np.logaddexp.reduce(ahead[-1, -2:])
    gradient = np.zeros_like(scores)
    for s, label in enumerate(states):
        gradient[:, label] -= np.exp(ahead[:, s] + behind[:, s] - scores[:, label] - total)
    return -total, gradient


@one_of(3, ("steps", "count"), [(1, 1), (1, 0), (12, 5), (65, 20), (130, 0), (257, 37)])
@pytest.mark.parametrize("traced", [False, True])
def test_ctc_loss_of_long_sequences(steps: int, count: int, traced: bool) -> None:
    """Its gradient is the forward-backward algorithm's, for every length of the input, equal neighbours and no labels included."""
    labels, scores = i(1, 4, 3, count), np.log(special.softmax(u(steps, 3, 7), -1))
    into, out = np.array([steps, steps, max(1, steps - 3)]), np.array([count, count // 3, count // 2])

    def loss(x: Any, y: Any, into: Any, out: Any) -> Any:
        return F_.ctc_loss(x, y, into, out, reduction="none", zero_infinity=True).sum()

    step = tg.trace(tg.value_and_grad(loss)) if traced else tg.value_and_grad(loss)
    found, slope = step(*map(tg.tensor, (scores, labels, into, out)))
    total, gradient = 0.0, np.zeros_like(scores)
    for k, (n, m) in enumerate(zip(into, out, strict=True)):
        value, own = forward_backward(scores[:n, k], labels[k, :m])
        if value < inf:
            total, gradient[:n, k] = total + value, own
    np.testing.assert_allclose(found.numpy(), total, rtol=1e-10)
    np.testing.assert_allclose(slope.numpy(), gradient, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("pool", [F_.max_pool2d, F_.avg_pool2d, F_.adaptive_max_pool2d, F_.adaptive_avg_pool2d], ids=lambda f: f.__name__)
def test_pools_of_no_images_have_gradients(pool: Any) -> None:
    for _ in range(3):
        x = tg.ones(0, 2, 3, 3, requires_grad=True)
        y = pool(x, 2)
        y.sum().backward()
        assert y.shape[:2] == (0, 2)
        assert x.grad is not None
        assert x.grad.shape == (0, 2, 3, 3)


def test_ctc_loss_of_no_steps() -> None:
    """The empty sequence is certain, any other impossible; torch has the same."""
    x = tg.tensor(np.log(special.softmax(u(2, 4, 3), -1)), requires_grad=True)
    labels, into, out = tg.tensor([[1, 2], [1, 2], [1, 2], [2, 2]]), tg.tensor([0, 0, 1, 2]), tg.tensor([0, 1, 0, 1])
    loss = F_.ctc_loss(x, labels, into, out, reduction="none")
    assert loss.tolist()[:2] == [0, inf]
    np.testing.assert_allclose(loss[2].item(), -x[0, 2, 0].item())
    F_.ctc_loss(x, labels, into, out, reduction="sum", zero_infinity=True).backward()
    assert x.grad is not None
    assert x.grad.abs().sum((0, 2))[:2].tolist() == [0, 0]
    assert x.grad[:, 2].tolist() == [[-1, 0, 0], [0, 0, 0]]


@pytest.mark.long
def test_derivatives_of_ctc_loss() -> None:
    x = tg.tensor(u(3, 1, 2), requires_grad=True)

    def loss(x: Any) -> Any:
        return F_.ctc_loss(x.log_softmax(-1), tg.tensor([[1, 1]]), [3], [2])

    assert tg.testing.gradcheck(loss, (x,))
    assert tg.testing.gradgradcheck(loss, (x,))
