"""Wider random programs, drawn quickly: `drawn` gives one, `looping` one whose lines are the body of a loop. Start at `drawn`.

`tests/random_programs/random_programs.py` lets hypothesis draw every choice, and keeps operations with kinks to exact values. Here a line
is a template whose letters a random.Random fills in (a tenth of the time), and what is ill-conditioned is found out: a line is kept if its
value stays what it is when each inexact value before it changes by some units of the last place (`N`). So any operation may read anything.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tracegrad as tg
from tests.helpers.functions import square
from tests.random_programs.random_programs import ORDINARY, WORLD, Program, exact, fit
from tracegrad.nn import functional as F
from tracegrad.support.dtypes import dtype_kind, is_half

LARGEST, BOUND = 4000, 1e3                  # elements of a value, and how large they are at most
NOISE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21, "float64": 2.0**-50, "complex64": 2.0**-21, "complex128": 2.0**-50}
LIMIT = {                                   # by which that may change a 1
    "float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-12, "complex64": 2e-6, "complex128": 1e-12}
MODES = ("constant", "replicate", "reflect", "circular")


# --------------------------------------------------------------------------------------------------------- what programs may call


def N(value: Any, number: int) -> Any:
    """The value, a few units of the last place away; a view stays one, what is exactly zero stays so."""
    if value._base is not None or dtype_kind(value.dtype) not in "fc":
        return value
    rng = np.random.default_rng(number)
    factor = 1 + NOISE[str(value.dtype)] * rng.choice([-1.0, 1.0], value.shape)
    return value * tg.tensor(factor.astype(str(value.dtype)), device=value.device)


def padded(x: Any, pad: tuple[int, ...], mode: str) -> Any:
    """F.pad of the last dimensions of a value of any rank."""
    if mode == "constant":
        return F.pad(x, pad, value=0.25)
    held = x.reshape(1, -1, *x.shape[x.ndim - len(pad) // 2:])
    out = F.pad(held, pad, mode=mode)
    return out.reshape(*x.shape[:x.ndim - len(pad) // 2], *out.shape[2:])


def shifted(p: Any, shape: Sequence[int], width: int, dims: int, at: int, by: int) -> Any:
    """Of a value padded by `width` in its last dimensions, the part of `shape`; moved by `by` in the one that is `at` from the end."""
    for d in range(1, dims + 1):
        p = p.narrow(-d, width + (by if d == at else 0), shape[-d])
    return p


def relax(x: Any, count: int, mode: str, width: int = 1, dims: int = 1) -> Any:
    """Neighbours in `dims` dimensions, `count` times."""
    for _ in range(count):
        p = padded(x, (width, width) * dims, mode)
        x = x * 0.5 + sum(shifted(p, x.shape, width, dims, d, s * width) for d in range(1, dims + 1) for s in (-1, 1)) * (0.25 / dims)
    return x


def waves(x: Any, count: int, mode: str, width: int = 1) -> Any:
    before = x * 0.875
    for _ in range(count):
        p = padded(x, (width, width), mode)
        x, before = 2 * x - before + 0.125 * (p[..., 2 * width:] + p[..., :-2 * width] - 2 * x), x
    return x


def upwind(x: Any, v: Any, count: int, mode: str) -> Any:
    for _ in range(count):
        p = padded(x, (1, 1), mode)
        x = x - 0.25 * tg.where(v > 0, x - p[..., :-2], p[..., 2:] - x) * v
    return x


def life(x: Any, count: int) -> Any:
    """Integers and masks on a torus."""
    alive = x > 0
    for _ in range(count):
        n = sum(alive.roll(s, -1).long() for s in (-2, -1, 1, 2)) + alive.roll(1, 0)
        alive = (n == 3) | (alive & (n == 2))
    return alive


def spd(x: Any, n: int) -> Any:
    """Two matrices with large diagonals."""
    a = tg.tanh(fit(x, (2, n, n)))
    return a @ a.transpose(-1, -2) * (0.5 / n) + tg.eye(n, dtype=a.dtype, device=a.device) * 1.5


def pulled(f: Any, x: Any) -> Any:
    y, back = tg.vjp(f, x)
    found = back(tg.tanh(y) + 0.5)
    return found[0] if isinstance(found, tuple) else found


def slope(f: Any, x: Any) -> Any:
    return tg.grad(lambda r: (f(r) * 0.5).square().sum())(x)


def curve(f: Any, x: Any) -> Any:
    return tg.grad(lambda r: (slope(f, r) * 0.25).square().sum())(x)


def count_down(x: Any, r: Any, n: int) -> Any:
    return tg.while_loop(lambda v: v[0] > 0, lambda v: (v[0] - 1, v[1] * 0.5 + r.roll(1, -1)), (tg.tensor(n, device=x.device), x))[1]


def keep(x: Any, v: Any) -> Any:
    """What a loop carries on: a value in the shape and dtype of x that stays bounded."""
    return x * 0.5 + fit(v, x.shape).to(x.dtype).clamp(-4.0, 4.0) * 0.25 if v.numel() else x


HELPERS: dict[str, Any] = {
    f.__name__: f for f in (N, relax, waves, upwind, life, spd, pulled, slope, curve, count_down, keep, padded)
} | {"custom": square()}
WORLD.update(HELPERS)

# --------------------------------------------------------------------------------------------------------------------- templates
# x: a value of one dimension or more, y: another; Y: another in x's shape; w: a complex one; q: of integers; G: another in q's shape; b: of
# truths; B: one in x's shape; z: what is changed. d, D: dimensions of x; n: the first's size; n0: that of dimension 0; i: an index into d;
# i0: into 0; j: 0 to 3; J: 1 to 3; h: -4 to 4; e: 1 to 16; S: an ordinary size; s: a slice; o: a mode of padding; u: integers from 0;
# M: x, moved about (MOVES); R: r, moved about; T: another template, of r; t: the number of a loop's iteration

ROWS = [
    "relax(x, J + 1, 'o', 1)", "relax(x, J + 1, 'o', J)", "relax(x, 2, 'o', 1, 2)", "relax(x, 1, 'o', 1, 3)", "waves(x, J + 1, 'o', J)",
    "upwind(x, Y * 0.25, J + 1, 'o')", "life(x, J)", "padded(x, (j, J), 'o')", "F.pad(x, (h, h))", "F.pad(x, (h, 3, -j, j), value=0.5)",
    *["tg.bmm(fit(x.roll(J, 0), (3, 5, n)), fit(Y, (3, n, 4)))", "fit(x, (3, n, 4)).roll(1, 0).mT @ fit(Y.roll(J, 0), (3, n, 5))"] * 2,
    "x.roll(h, d) - x.roll(1, d)", "x.flip(d).roll(J, d)", "x.flip(d)[..., ::J]", "x[..., j::J]", "x[..., s] * x[..., :1]",
    "tg.cat([x, x.flip(d), Y], d)", "tg.cat([x[..., J:], Y[..., :J]], -1)", "tg.stack([x, Y, x.roll(h, d)], D)",
    "tg.where(x > Y, x.roll(J, d), Y.flip(d))", "tg.where(B, x, Y)", "tg.where(B, x.roll(1, d), 0.0)", "x.gather(d, fit(u, x.shape) % n)",
    "x.index_add(d, fit(u, (n,)) % n, Y, alpha=0.5)", "x.scatter(d, fit(u, (n,)) % n, 0.5) if x.ndim == 1 else x",
    "x.scatter_reduce(d, fit(u, x.shape) % n, Y, 'amax')",
    "x.scatter_add(d, fit(u, x.shape) % n, Y)", "x.index_copy(d, (tg.arange(n) * 1).flip(0), Y)", "x.index_select(d, fit(u, (S,)) % n)",
    "x.cumsum(d)", "x.flip(d).cumsum(d).roll(h, d)", "x.cummax(d)[0]", "x.cummin(d)[1]", "x.logcumsumexp(d)",
    "(x * 0.125 + 1.0).cumprod(d)", "x.sort(d)[0] * Y", "x.sort(d, descending=True)[1]", "x.topk(1 + n // 2, d)[0]",
    "x.topk(1 + n // 3, d, largest=False)[1]", "x.argmax(d)", "x.argmin(d, keepdim=True)", "x.flip(d).argmax(d)", "x.kthvalue(1 + i, d)[0]",
    "x.median(d)[0]", "x.diff(dim=d)", "x.unfold(d, J, J)", "x.unfold(d, 3, 1).amax(-1)", "x.movedim(d, D).cumsum(-1)", "x.softmax(d)",
    "x.log_softmax(d).roll(h, d)", "x.logsumexp(d, keepdim=True) - x", "F.layer_norm(x, x.shape[-1:])", "F.normalize(x, dim=d)",
    "tg.tanh(x).flip(d).softmax(d)", "(x - x.amax(d, keepdim=True)).exp().sum(d)", "x.repeat_interleave(J, d)", "x.tile(J)",
    "x.tril(h) if x.ndim > 1 else x", "x.triu(h).sum(d) if x.ndim > 1 else x", "x.diagonal(h, d, D) if d != D else x",
    "x.renorm(2, d, 1.0)", "tg.searchsorted(x.sort(-1)[0], Y)", "tg.bucketize(x, tg.linspace(-2, 2, 5, dtype=x.dtype))",
    "x.masked_fill(B, 1.5)", "x.take_along_dim(fit(u, x.shape) % n, d)", "x.chunk(J, d)[0]", "x.transpose(d, D)", "x.reshape(-1)[h:]",
    "x.reshape(*x.shape[::-1])", "x.reshape(-1).roll(h).reshape(x.shape)", "x.select(d, i)", "x[i0]", "x.clamp(-0.5, 1.0)", "x.relu() - Y",
    "F.silu(x) * Y", "(x * 0.25).exp()", "x.abs().sqrt()", "x / (Y.abs() + 1.0)", "x % 0.75", "x // 0.75", "tg.round(x)", "x.sign() * Y",
    "x ** 2 - Y", "tg.atan2(x, Y + 5.0)", "tg.hypot(x, Y)", "x.lerp(Y, 0.25)", "tg.fmod(x, 0.75)", "custom(x)", "x * c", "tg.maximum(x, Y)",
    "tg.copysign(x, Y)", "x.sin() + Y.cos()", "x - Y", "x * Y + x.roll(1, -1)", "x.nan_to_num()", "x + 1",
]
MOVED = [
    "M * M", "M * M", "(M - M) * x", "M + Y * M", "(M * M).sum(d)", "M - x.amax(d, keepdim=True)", "tg.where(M > M, M, x)",
    "M.cumsum(d) * M", "relax(M, J + 1, 'o', J) * M", "relax(M, J, 'o') - M", "waves(M, J + 1, 'o', J)", "waves(M, 2, 'o', 2) * M",
    "M.softmax(d) * M", "M.amax(d)", "M.sum(d, keepdim=True) * M", "tg.tanh(M) * M", "(M * M).reshape(-1).roll(J)", "M.argmax(d)",
    "tg.stack([M, M], D).sum(d)", "M @ M.T * 0.25", "upwind(M, M * 0.25, J, 'o')", "tg.maximum(M, M)", "M - M.mean(d, keepdim=True)",
    "F.pad(M, (h, j)) * 0.5", "M.gather(d, fit(u, x.shape) % n)",
]
STENCILS = [
    "(lambda r: (Y + R) * r)(x.roll(J, -1).flip(-1))", "(lambda r: R * R * r)(x.roll(J, -1).flip(-1))",
    "(lambda r: (R - x) * r)(x.flip(-1).roll(J, -1))", "waves(x.roll(J, 0), 2, 'replicate', J)",
    *["waves(x.roll(1, 0), 2, 'replicate', J)"] * 4, "waves(x.flip(0).roll(1, 0), J + 1, 'replicate', 2)", "waves(M, J + 1, 'o', J)",
    "waves(x, J + 2, 'o', 2)", "waves(M, 2, 'replicate', 2)", "relax(M, J + 1, 'o', J)", "relax(x, J + 3, 'o')", "relax(M, 2, 'o', 1, 2)",
    "relax(x, J, 'o', 1, 3)", "upwind(M, M * 0.25, J + 1, 'o')", "upwind(x, Y * 0.25, J + 3, 'o')", "(Y + M) * x", "(Y + M) * M",
    "(M - M) * (M + x)", "waves(x.roll(J, 0), J + 1, 'replicate', 2)", "relax(x.flip(0).roll(1, 0), 2, 'o')", "(lambda r: (Y + R) * r)(M)",
    "(lambda r: (Y + R) * r)(x.roll(J, -1).flip(-1))", "(lambda r: (R - x) * r)(x.roll(1, -1).flip(-1))",
    "(lambda r: (R - r) * R)(x.roll(1, -1).flip(-1))", "(lambda r: R * R + r)(M)",
    *["(lambda r: (Y + F.pad(F.pad(r[..., J:], (0, J))[..., :-J], (J, 0))) * r)(x.roll(h, d).flip(d))"] * 3,
    "relax(x, 4 * J, 'o')", "waves(x, 4 * J, 'o')", "upwind(x, Y * 0.25, 4 * J, 'o')",
]
EQUAL = [           # of r and another of its shape: kernels that are alike but for their sizes
    "r * 0.5 + p", "tg.tanh(r) - p", "r.roll(1, -1) * p", "F.pad(r, (1, 1))[..., 2:] + p", "tg.where(r > p, r, p * 0.5)", "r - p * c",
    "(r * p).sum(-1, keepdim=True) + r", "r.softmax(-1) * p", "r.cumsum(-1)", "r.flip(-1) + p", "r.T + p.T", "(r + p).amax(-1)",
    "r * r.mean() + p", "r @ p.T", "F.pad(p, (2, 0), value=0.5)[..., 1:-1] * r", "r[..., ::2].repeat_interleave(2, -1)[..., :p.shape[-1]]",
]
EQUAL_IN_PLACE = ["r.mul_(0.5).add_(p)", "r.sub_(p, alpha=0.25)", "r[..., 1:] += p[..., 1:] * 0.5", "r.copy_(r.flip(-1) * p)"]
MOVES = [           # which give x's shape
    "F.pad(F.pad(x[..., 1:], (0, 1))[..., :-1], (1, 0))", "F.pad(F.pad(x, (1, 0))[..., :-1], (0, 1))[..., 1:]", "x.roll(h, d)",
    "x.roll(J, -1)", "x.flip(d)", "x.flip(-1)", "F.pad(F.pad(x[..., J:], (0, J))[..., :-J], (J, 0))",
    "F.pad(F.pad(x[..., 1:], (0, 1))[..., :-1], (1, 0))", "F.pad(x[..., 1:], (0, 1))", "F.pad(x, (1, 0))[..., :-1]",
    "padded(x, (J, J), 'o')[..., :-2 * J]", "padded(x, (J, 1), 'o')[..., 1 + J:]", "tg.cat([x[..., J:], x[..., :J]], -1)", "(x * 0.5)",
    "padded(x, (1, 1, J, J), 'o')[..., J:-J, :-2]", "x.transpose(0, -1).flip(0).transpose(0, -1)", "x.index_select(d, fit(u, (n,)) % n)",
    "x.repeat_interleave(2, -1)[..., ::2]", "F.pad(x, (0, n))[..., n // 2:n // 2 + x.shape[-1]]",
]
REDUCED = [
    "x.sum(d)", "x.sum((d, D)) if d != D else x.sum()", "x.sum(tuple(range(x.ndim)), keepdim=True)", "x.mean(d, keepdim=True)",
    "x.prod(d) * 0.0625", "x.amax((d, D)) if d != D else x.amax(d)", "x.amin(d, keepdim=True)", "(x - 5.0).amax(d)", "(x + 5.0).amin(d)",
    "(x - 5.0).max(d)[1]", "x.var(d, correction=0)", "x.std((d, D), correction=0, keepdim=True) if d != D else x", "x.norm(dim=d)",
    "x.count_nonzero(d)", "(x > 0).any(d)", "(x > -1).all(d)", "B.sum(d)", "x.logsumexp((d, D)) if d != D else x.logsumexp(d)", "x.sum()",
    "x.amax()", "x.nansum(d)", "x.half().sum(d)", "x.bfloat16().sum(d)",
    "x.aminmax(dim=d)[0]", "(x * Y).sum(d, keepdim=True) * x", "x.roll(1, d).sum(D)",
    "F.pad(x, (h, J)).sum(d)", "F.pad(x, (J, h), value=-6.0).amax(d)",
]
BROADCAST = [
    "x[..., :1] * Y", "x.unsqueeze(d) - y.reshape(-1)[:1]", "x.sum(d, keepdim=True) + Y", "x[..., None] * fit(y, (J,))",
    "x.expand(J, *x.shape).sum(0)", "x[..., :0]", "x[..., :0].sum(-1)", "tg.cat([x[..., :0], x], -1)",
    "F.pad(x[..., :0], (2, 3), value=0.5)", "x.narrow(d, i, 0).sum(D)", "x[:0].cumsum(-1)", "x[None].broadcast_to(2, *x.shape) * Y",
    "x.narrow(d, i, 0).prod(d)", "fit(x, (1, S)) - fit(y, (J, 1))", "fit(x, (S, 1)).expand(S, e).sum(0)",
    "(fit(x, (3, 0)) @ fit(y, (0, 4))) + 1.0", "x[..., :0].softmax(-1)",
]
MATRICES = [
    "tg.linalg.solve(spd(x, e), fit(y, (2, e, J)))", "tg.linalg.cholesky(spd(x, e))", "tg.linalg.inv(spd(x, e))",
    "tg.linalg.det(spd(x, e) * 0.5)", "tg.linalg.solve_triangular(spd(x, e).tril(), fit(y, (2, e, J)), upper=False)",
    "tg.linalg.qr(spd(x, e))[1]", "tg.linalg.eigvalsh(spd(x.detach(), e))", "tg.linalg.svdvals(fit(x.detach(), (2, e, 3)))",
    "tg.linalg.slogdet(spd(x, e))[1]", "fit(x, (S, e)) @ fit(y, (e, J))", "fit(x, (e, S)) @ fit(y, (S, J))",
    "fit(x, (J, e, 7)) @ fit(y, (7, 13))", "fit(x, (S,)) @ fit(y, (S, e))", "fit(x, (e, S)).T @ fit(y, (e, J))",
    "tg.einsum('ak,lk->la', fit(x, (e, S)), fit(y, (J, S)))", "tg.einsum('pak,pkl->pal', fit(x, (2, e, 5)), fit(y, (2, 5, J)))",
    "tg.einsum('kk->k', fit(x, (e, e)))", "tg.einsum('ak,ak->k', fit(x, (e, S)), fit(y, (e, S)))",
    "tg.einsum('a,k,l->lak', fit(x, (e,)), fit(y, (J,)), fit(x, (4,)))",
    "F.scaled_dot_product_attention(fit(x, (1, 2, e, 4)), fit(y, (1, 2, e + 20, 4)), fit(y, (1, 2, e + 20, J)))",
    "F.scaled_dot_product_attention(*[fit(x, (2, 3 * e, 5))] * 2, fit(y, (2, 3 * e, 3)), is_causal=True)",
    "F.scaled_dot_product_attention(fit(x, (1, e + 9, 8)), fit(y, (1, e + 9, 8)), fit(y, (1, e + 9, 7)), is_causal=True)",
    "F.scaled_dot_product_attention(fit(x, (2, 17, e)), fit(y, (2, 17, e)), fit(x, (2, 17, 4)), is_causal=True)",
    "F.scaled_dot_product_attention(fit(x, (2, e, 4)), *[fit(y, (2, 33, 4))] * 2, attn_mask=fit(b, (e, 33)) | (tg.arange(33) == 5))",
    "F.scaled_dot_product_attention(fit(x, (2, e, 4)), fit(y, (2, 9, 4)), fit(x, (2, 9, 4)), attn_mask=fit(y, (e, 9)))",
    "tg.softmax((fit(x, (2, S, 4)) @ fit(y, (2, S, 4)).mT * J).masked_fill(tg.tril(tg.ones(S, S)) == 0, -tg.inf), -1) @ fit(x, (2, S, 3))",
    "tg.einsum('hij,hjd->hid', (tg.einsum('hjd,hid->hij', fit(y, (2, S, 5)), fit(x, (2, e, 5))) + fit(y, (e, S)).detach()).softmax(-1), "
    "fit(x, (2, S, 3)))",
    "tg.softmax((fit(x, (2, 2, e, 4)) @ fit(y, (2, 2, 33, 4)).mT).masked_fill(fit(b, (2, 1, 1, 33)) & (tg.arange(33) != 5), -1e9), -1) "
    "@ fit(y, (2, 2, 33, J))",
    "F.conv1d(fit(x, (2, 2, S)), fit(y, (3, 2, J)), stride=J, dilation=J, padding=j)",
    "F.conv1d(fit(x, (1, 4, S)), fit(y, (4, 2, 3)), groups=2, padding=j, stride=J)",
    "F.conv2d(fit(x, (1, 2, e + 4, 13)), fit(y, (3, 2, J, 3)), stride=(J, 2), dilation=(1, J), padding=(j, 1)) * 0.25",
    "F.conv2d(fit(x, (2, 3, 7, 9)), fit(y, (3, 1, 3, J)), groups=3, padding='same') * 0.25",
    "F.conv_transpose1d(fit(x, (1, 2, e)), fit(y, (2, 3, J)), stride=J, padding=0)",
    "F.conv_transpose2d(fit(x, (1, 2, 3, e)), fit(y, (2, 3, J, 2)), stride=(1, J), dilation=(J, 1)) * 0.25",
    "F.max_pool1d(fit(x, (2, 2, S)), 3, J, 1)", "F.max_pool2d(fit(x, (1, 2, 9, e + 3)), (2, 3), (J, 2), dilation=(J, 1))",
    "F.avg_pool1d(fit(x, (2, 2, S)), 4, J, 2)", "F.avg_pool2d(fit(x, (1, 2, 9, e + 3)), 3, J, 1, ceil_mode=True)",
    "F.adaptive_avg_pool1d(fit(x, (1, 2, S)), J)", "F.max_pool1d(fit(x - 5.0, (1, 2, S)), 2, J, dilation=J)",
    "F.embedding(fit(u, (J, 5)) % e, fit(x, (e, 7)))", "F.cross_entropy(fit(x, (e, S)), fit(u, (e,)) % S)",
    "F.linear(fit(x, (J, S)), fit(y, (e, S)))", "fit(x, (e, S)).index_add(0, fit(u, (J,)) % e, fit(y, (J, S)))",
    "fit(x, (e, 7)).scatter_add(0, fit(u, (J, 7)) % e, fit(y, (J, 7)))", "fit(x, (e, 33))[fit(u, (5,)) % e]",
    "fit(x, (S, 3))[:, fit(u, (5,)) % 3].cumsum(0)", "fit(x, (e, e)).trace() * Y", "tg.cdist(fit(x, (e, 3)), fit(y, (5, 3)) + 3.0)",
    "F.interpolate(fit(x, (1, 2, S)), scale_factor=J, mode='nearest')", "F.interpolate(fit(x, (1, 2, e + 1)), size=S, mode='linear')",
    "F.unfold(fit(x, (1, 2, 7, e + 3)), (3, 2), padding=1)",
]
LOOPS = [           # (the sum of what was centred is a rounding error more or less than 0: nothing is decided by that)
    "tg.scan(lambda a, v: (a * 0.5 + v.roll(1, -1), a.flip(-1)), fit(y, x.shape[1:]), x)[1] if x.ndim > 1 else x",
    "tg.scan(lambda a, v: (tg.tanh(a + v), a * v), fit(y, x.shape[1:]), x)[0] if x.ndim > 1 else x",
    "tg.scan(lambda a, v: (a + v.cumsum(-1) * 0.25, (a - v).amax(-1)), fit(y, x.shape[1:]), x, reverse=True)[1] if x.ndim > 1 else x",
    "count_down(x, Y, J)", "tg.cond(x.sum() > 0.3, lambda v: v.roll(1, -1), lambda v: v * 0.5, x)", "tg.vmap(lambda r: T)(fit(x, (J, S)))",
    "tg.vmap(lambda r: T, in_dims=1)(fit(x, (S, J)))", "tg.vmap(lambda r: T)(x) if x.ndim > 1 else x", "tg.jvp(lambda r: T, (x,), (Y,))[1]",
    "pulled(lambda r: T, x)", "slope(lambda r: T, x)", "curve(lambda r: T, x)",
    "slope(lambda r: tg.jvp(lambda r: T, (r,), (r * 0.5,))[1], x)", "tg.vmap(lambda r: slope(lambda r: T, r))(fit(x, (J, S)))",
    "slope(lambda r: tg.vmap(lambda r: T)(r), fit(x, (J, S)))", "tg.jvp(lambda r: pulled(lambda r: T, r), (x,), (Y,))[1]",
]
WHOLE = [           # integers, truths and conversions
    "q + G", "q - G", "q * G", "q * 37 - 11", "q << 1", "q << j", "q >> J", "q // 3", "q // -2", "q % 5", "q % -3",
    "q // (G.abs() % 5 + 1)", "q % (G.abs() % 5 + 1)", "q & 12", "q | G", "q ^ G", "~q", "-q", "q.abs()", "q * q", "q.sum(d)",
    "q.cumsum(d)", "q.prod(d)", "q.amax(d)", "q.argmin(d)", "q.sort(d)[0]", "q.flip(d)", "q.roll(h, d)", "q.bool()",
    "tg.where(q > 3, q, G)", "q == G", "q < 2", "q.to(tg.uint8) * 7", "q.to(tg.int8) + 100", "q.to(tg.int16) * 300",
    "q.to(tg.int32) * 65537", "q.to(tg.int64) << 20", "q.float() * 0.125", "q.double() * 0.5", "(q % 16).half() * 0.25",
    "q.clamp(-3, 3) * 0.5", "q.to(tg.uint8) >> 2", "q.to(tg.int8) << 3", "F.pad(q, (J, h), value=3)", "tg.maximum(q, G)", "b & (q > 1)",
    "b ^ True", "~b", "b.cumsum(-1)", "b.sum(-1)", "b.any(-1)", "b.roll(1, -1) | b", "b.int() * 3 - 1", "b.float() * 0.5", "x.int()",
    "(x * 4).long()", "(x.abs() * 16).to(tg.uint8)", "x.half() * 0.5", "x.bfloat16() * 0.5", "x.double() - 1.0", "x.float() + 0.5", "x > Y",
    "x.to(tg.float32) == Y", "F.one_hot(fit(u, (S,)) % 4, 4)", "x * fit(q % 5, x.shape)", "q / 4", "q * 0.5", "B * x", "x + B",
    "q.index_add(d, fit(u, (n,)) % n, G)", "q.gather(d, fit(u, q.shape) % n)", "q.bincount(minlength=3) if 0 else q", "tg.cat([q, G], d)",
    "q.cummax(d)[0]", "q.unique_consecutive() if 0 else q", "q.diff(dim=d)", "tg.bitwise_right_shift(q, G.abs() % 7)",
    "tg.bitwise_left_shift(q, G.abs() % 7)", "q.to(tg.uint8) - q.to(tg.uint8).flip(d)", "q.mean(d, dtype=tg.float64)", "tg.gcd(q, G)",
]
COMPLEX = [
    "tg.complex(x, Y)", "w * w.roll(1, -1)", "w + c", "w.real", "w.imag * 0.5", "w.abs()", "w.conj() * w", "(w * 0.25).exp()", "w.sum(-1)",
    "w.cumsum(-1)", "w.flip(-1)", "w / (w.abs() + 1.0)", "tg.view_as_real(w)", "F.pad(w, (1, 2))", "tg.fft.fft(w)", "tg.fft.rfft(x)",
    "tg.fft.ifft(w).real", "tg.where(w.real > 0, w, w.conj())", "w.prod(-1) * 0.25", "w.mean(0)", "fit(w, (e, 5)) @ fit(w, (5, J))",
    "w.angle().cos()", "(w + 5.0).sqrt()", "w * x.reshape(-1)[:1]", "tg.polar(x.abs(), Y)", "w[..., ::J] * 1j",
]
IN_PLACE = [
    "z[..., 1:-1] += z[..., 2:] * 0.25", "z[..., 1:] += z[..., :-1]", "z[::2].mul_(0.5)", "z[..., ::2].sub_(0.25)",
    "z.flip(-1)[..., J:].add_(0.5)", "z.T.mul_(0.5)", "z.reshape(-1)[::3].add_(1.0)", "z.select(d, i).add_(z.select(d, 0))",
    "z.narrow(d, i, 1).zero_()", "z.index_add_(d, fit(u, (n,)) % n, fit(y, z.shape))", "z.scatter_(d, fit(u, z.shape) % n, 0.5)",
    "z[fit(b, z.shape)] = 0.75", "z[i0] = 1.5", "z[..., s] = 0.25", "z[..., s] *= c", "z.add_(fit(y, z.shape))", "z.copy_(z.roll(h, d))",
    "z.copy_(z.flip(d))", "z.sub_(z.mean(d, keepdim=True))", "z.cumsum_(d)", "z.clamp_(-1.0, 1.0)",
    "z.mul_(z.sum(d, keepdim=True) * 0.125)", "z[fit(u, (3,)) % n0] = 0.5", "z[fit(u, (3,)) % n0] += 0.5", "z.transpose(d, D)[0].sub_(c)",
    "z[..., 1:][..., ::2][..., :3].mul_(-0.5)", "z.masked_fill_(fit(b, z.shape), 0.25)", "z.unsqueeze(0)[0][..., -1:].copy_(z[..., :1])",
    "z[..., :-1] -= z[..., 1:].flip(-1)", "z.relu_()", "z.addcmul_(fit(y, z.shape), z, value=0.5)",
    "z.diagonal(0, d, D).add_(1.0) if d != D else z.neg_()", "z.lerp_(fit(y, z.shape), 0.5)",
    "z.fill_diagonal_(0.5) if z.ndim == 2 else z.zero_()",
]
TURNS = [           # what a loop's number decides
    "x[:k0.reshape(-1)[t] + 1]", "x[..., k0.reshape(-1)[t] % n:]", "x[..., :k0.reshape(-1)[t % n0] % n]",
    "x.reshape(-1)[k0.reshape(-1)[t]:]", "x[s]", "x[..., s]", "x[..., s].sum(-1)", "x[:k0.reshape(-1)[t] + 1]",
    "x[..., :k0.amin() + t + 1] * 0.5", "x[..., k0.reshape(-1)[t] % n:]", "x[k0.reshape(-1)[t] % n0]", "x.narrow(d, 0, 1 + t % n)",
    "x.select(d, t % n)", "x.roll(t, d)", "x.roll(-t, d) * x", "F.pad(x, (t, 1))", "F.pad(x, (-t, t))", "x * t", "x + t * 0.5",
    "x ** (t % 4)", "x * (t == 2)", "x.clamp(max=0.25 * t)", "x.topk(1 + t % n, d)[0]", "x.cumsum(d)[..., t % n0:]",
    "tg.full((t + 1,), 0.5) * x.reshape(-1)[:1]", "tg.arange(t, t + 5) * x.reshape(-1)[:1]", "x.tril(t) if x.ndim > 1 else x",
    "x.unfold(d, 1 + t % 3, 1)", "tg.where(Y > t * 0.25, x, Y)", "x.softmax(t % x.ndim)", "x.sum(t % x.ndim)", "x.flip(t % x.ndim)",
    "x[t % n0] - Y[0]", "x.gather(d, (fit(u, x.shape) + t) % n)", "x.index_select(d, tg.tensor([0, t % n]))", "relax(x, 1 + t % 3, 'o')",
    "x.reshape(-1)[t::2]", "x.repeat_interleave(1 + t % 2, d)", "tg.cat([x] * (1 + t % 2), d)", "x.unsqueeze(t % 2)",
    "F.one_hot(k0.reshape(-1)[:4] % (t + 1), t + 1)",
    "tg.scan(lambda a, v: (a + v, a * t), fit(y, x.shape[1:]), x)[1] if x.ndim > 1 else x",
    "F.conv1d(fit(x, (1, 2, S)), fit(y, (2, 2, 3)), padding=t)", "x - tg.tensor(t)", "x * tg.tensor(float(t), dtype=x.dtype)",
    "x + (x.sum() > t + 0.3)", "x[..., ::1 + t % 3]", "x.masked_fill(Y > t, t)",
]
SET = [
    "z[t % n0] += 0.5", "z[..., s] *= 0.5", "z[s] = 0.25", "z.select(d, t % n).copy_(z.select(d, 0))", "z[k0.reshape(-1)[t] % n0] = t",
    "z.roll(t, d)[..., :1].add_(1.0)", "z.copy_(z.roll(t, d))", "z.narrow(d, t % n, 1).mul_(0.5)", "z[..., t % n0:] += 1", "z.add_(t)",
    "z.mul_(1 / (t + 1))",
]
SLIDING = [         # slices of one size that begin elsewhere in each iteration: read, written, scanned
    "x.narrow(d, t % (n - n // 2 + 1), n // 2)", "x.narrow(d, t % (n - n // 2 + 1), n // 2)", "x.select(d, t % n)", "x[t % n0]",
    "x[t % n0] * Y[(t + 1) % n0]", "x.narrow(d, t % n, 1) * Y", "x.narrow(d, (t * J) % n, 1).sum(D)",
    "x.narrow(-1, t % 2, x.shape[-1] - 1) * Y.narrow(-1, (t + 1) % 2, x.shape[-1] - 1)", "x[..., n - 1 - t % n if d == x.ndim - 1 else 0]",
    "x.reshape(-1)[t % J:t % J + (x.numel() - J) // 2 * 2:2]", "x.reshape(-1)[t % J:t % J + (x.numel() - J) // 3 * 3:3] * 0.5",
    "x[t % n0:t % n0 + 1, ..., t % 2:x.shape[-1] - 1 + t % 2] if x.ndim > 1 else x", "x.narrow(d, t % n, 1).expand_as(x) - x",
    "x.roll(h, d).narrow(d, t % (n - n // 2 + 1), n // 2).cumsum(D)", "F.pad(x, (2, 2)).narrow(-1, t % 5, x.shape[-1])",
    "x.narrow(d, t % n, 1).sum() * x", "tg.cat([x.narrow(d, t % n, 1), Y], d)", "x.softmax(-1).narrow(d, t % (n - n // 2 + 1), n // 2)",
    "(lambda r: (r.narrow(d, t % (n - n // 2 + 1), n // 2).mul_(0.5), r)[1])(x * c)", "(lambda r: (r[t % n0].copy_(Y[0]), r)[1])(x * c)",
    "(lambda r: (r.select(d, t % n).add_(1.0), r)[1])(x * c)", "(lambda r: (r.reshape(-1)[t % 2::2].mul_(0.5), r)[1])(x * 1.0)",
    "(lambda r: (r.narrow(-1, t % 2, x.shape[-1] - 1).mul_(Y.narrow(-1, 1 - t % 2, x.shape[-1] - 1)), r)[1])(x * c)",
    "(lambda r: (r.reshape(-1)[t % J:t % J + (x.numel() - J) // 2 * 2:2].fill_(0.25), r * Y)[1])(x * c)",
    "tg.scan(lambda a, v: (tg.tanh(a + x[(v + t) % n0]), a), x[0], fit(u, (5,)))[1]",
    "tg.scan(lambda a, v: (a * 0.5 + x.index_select(d, (v + t + tg.arange(3)) % n).sum(d), a), x.select(d, 0), fit(u, (4,)))[1]",
    "tg.scan(lambda a, v: (a.index_copy(d, v % n + tg.arange(1), a.index_select(d, (v + tg.arange(1)) % n) * 0.5), a.sum(d)), x, "
    "fit(u, (4,)))[t % 2]",
]
TURNED = [          # what lies across is read by tiles on GPUs
    "fit(x, (e + 25, 47)).T * fit(y, (47, e + 25))", "fit(x, (33, e + 16)).T + 0.5", "tg.tanh(fit(x, (2, 40, e + 17)).transpose(1, 2))",
    "fit(x, (e + 16, 2, 33)).permute(2, 1, 0) - fit(y, (33, 2, e + 16))", "fit(x, (65, 31)).T - fit(x, (31, 65)) * fit(y, (65, 31)).T",
]
SCANS = [           # loops of several kernels, some of which read only what an iteration is given
    "tg.scan(lambda a, v: (tg.tanh(a + v.cumsum(-1) * 0.25), (a - v).amax(-1)), fit(y, x.shape[1:]), x)[1]",
    "tg.scan(lambda a, v: (a * 0.5 + v.softmax(-1) * a.sum(-1, keepdim=True), a), fit(y, x.shape[1:]), x)[1]",
    "tg.scan(lambda a, v: (a.softmax(-1) + v.flip(-1), a.roll(1, -1) * v), fit(y, x.shape[1:]), x, reverse=True)[1]",
    *["tg.scan(lambda c, v: ((c[1], c[1] * 0.5 - c[0].roll(1, -1) * 0.2 + v, c[0]), c[2].flip(-1)), "
      "(fit(y, (S,)), fit(Y, (S,)), fit(x, (S,))), fit(x, (9, S)))[1]",
      "tg.add(*tg.scan(lambda c, v: ((-c[1], c[1].roll(1, -1) * 0.5 + c[0] * 0.3 - v), None), "
      "(fit(y, (S,)), fit(x, (S,))), fit(x, (9, S)))[0])"] * 3,
    *["tg.scan(lambda a, v: (tg.tanh(fit(a, (e,)) @ fit(y, (e, e)) + fit(v, (e,)) @ fit(y, (e, e))), a.sum()), fit(y, (e,)), x)[0]"] * 4,
]
ATTENTION = [t for t in MATRICES if "attention" in t]
SCATTERED = [
    "fit(x, (e + 20, 17)).index_add(0, fit(u, (9,)) % (e + 20), fit(y, (9, 17)))", "x.index_copy(d, (tg.arange(n) * 1).flip(0), Y)",
    "fit(x, (33, e + 4)).scatter_add(0, fit(u, (20, e + 4)) % 33, fit(y, (20, e + 4)))",
    "fit(x, (e, S)).index_add(0, fit(u, (J,)) % e, fit(y, (J, S)))",
]
CONVOLUTIONS = [t for t in MATRICES if "F.conv" in t]
GROUPS: list[tuple[int, list[str]]] = [
    (8, ROWS), (3, TURNED), (6, MOVED), (3, REDUCED), (2, BROADCAST), (3, MATRICES), (2, LOOPS), (4, WHOLE), (1, COMPLEX), (2, IN_PLACE),
]
_NOT_INNER = re.compile(r"\b[YybBqGwuc]\b|arg|life|sign|//|%|\bd, D\b|searchsorted|bucketize|round|\[1\]|> |nonzero")
INNER = [t for t in ROWS + MOVED * 2 + REDUCED if not _NOT_INNER.search(t)]                # what has a derivative and needs no other value
SIZES = (*ORDINARY, 1, 2, 3, 5, 8)
LETTERS = re.compile(r"(?<!\.)\b([xyYwqGbBzdDnijJheSsouTMR]|n0|i0)\b(?!=)")


class Drawing:
    """The program so far: its values on the interpreter, as they are and a little off. step: the variable of the loop around it."""

    def __init__(self, rng: random.Random, step: str = "", rows: bool = False) -> None:
        """rows: inputs have several, of ordinary size."""
        self.rng, self.step = rng, step
        a, b = rng.choice([2, 3] if rows else [1, 2, 3, 4, 5, 8, 13]), rng.choice(ORDINARY[:10] if rows else SIZES)
        if rng.random() < 0.5 and not rows:
            b = rng.randint(1, 300)
        draws = np.random.default_rng(rng.randrange(1 << 30))
        pairs = [("float32", "float32"), ("float64", "float64"), ("float64", "float64"), ("float32", "float64"), ("float16", "float32"),
                 ("bfloat16", "float32")]
        first, second = rng.choice(pairs if not rows else [pairs[0], pairs[0], pairs[1], *pairs[4:]])
        whole = rng.choice(["int64", "int32", "int32", "uint8", "int8", "int16"])
        self.inputs: dict[str, Any] = {}
        for i in range(rng.randint(1, 3)):
            shape = rng.choice([(a, b), (2, a, b), (2, a, b)] if rows else [(a, b), (a, b), (b,), (a, 1), (b, a), (2, a, b), (2, 3, a, 5)])
            drawn = draws.integers(-16, 17, shape) / 8 if rng.random() < 0.4 else draws.uniform(-2, 2, shape)
            self.inputs[f"a{i}"] = drawn.astype(second if i % 2 else first)
        self.inputs["k0"] = draws.integers(0, 12, (a, b))
        if rng.random() < 0.5:
            self.inputs["k1"] = draws.integers(0 if whole == "uint8" else -100, 100, (a, b)).astype(whole)
        self.inputs["k2"] = draws.random((a, b)) < 0.5
        if rng.random() < 0.15:
            parts = draws.uniform(-1, 1, (2, a, b))
            self.inputs["k3"] = (parts[0] + 1j * parts[1]).astype(rng.choice(["complex64", "complex128"]))
        self.lines: list[str] = []
        self.noisy: list[str] = []
        self.writes_inputs = False
        self.count, self.coarse = 0, 0.0
        self.worlds = self.run()

    def run(self) -> list[dict[str, Any]]:
        """All lines, as they are and with noise."""
        out = []
        for lines in (self.lines, self.noisy):
            given = {k: tg.tensor(v, device="numpy") for k, v in self.inputs.items()}
            if lines is self.noisy:
                given = {k: v if exact_(v.numpy()) else N(v, i) for i, (k, v) in enumerate(given.items())}
            world = {**WORLD, **given, "c": 1.0, self.step or "t": 1}
            for line in lines:
                exec(line, world)
            out.append(world)
        return out

    def names(self, kinds: str, rank: int = 0) -> list[str]:
        world = self.worlds[0]
        named = [n for n in world if re.fullmatch(r"[akv]\d+", n) and n != "k0"]
        return [n for n in named if dtype_kind(world[n].dtype) in kinds and world[n].ndim >= rank]

    def is_input(self, name: str) -> bool:
        found = self.worlds[0][name]
        while found._base is not None:
            found = found._base
        return any(found is self.worlds[0][n] for n in self.inputs)

    def fill(self, template: str, own: str = "", shape: tuple[int, ...] | None = None) -> str | None:
        """The template with its letters filled in; own: what stands for x, or z, if that is given, and is of `shape`."""
        rng, world = self.rng, self.worlds[0]

        def some(kinds: str, rank: int = 0) -> str:
            names = self.names(kinds, rank)
            if not names:
                raise LookupError
            return rng.choice(names[-4:] if rng.random() < 0.7 else names)

        letters = set(LETTERS.findall(template))
        try:
            main = "q" if letters & {"q", "G"} else "x"
            x = own or some("iu" if main == "q" else "f", 1)
            inner = own.startswith("r")
            if shape is None:
                shape = (7,) if inner else world[x].shape
            if not shape:
                return None
            d, D = rng.randrange(len(shape)), rng.randrange(len(shape))
            t = self.step if self.step and rng.random() < 0.6 else ""
            n = shape[d]
            parts: dict[str, Any] = {
                main: x, "z": x, "d": d, "D": D, "n": "r.shape[0]" if inner else n, "n0": shape[0],
                "i": rng.randrange(max(1, n)), "i0": rng.randrange(max(1, shape[0])), "j": rng.randint(0, 3), "J": rng.randint(1, 3),
                "h": rng.randint(-4, 4), "e": rng.randint(1, 16), "S": rng.choice(SIZES), "o": rng.choice(MODES), "u": "k0",
                "s": rng.choice(["0:1", "-1:", "::2", ":1", "2:-1", "1::3"]),
            }
            if t:
                parts |= {"i": f"({t} % {n})", "i0": f"({t} % {shape[0]})", "j": f"({t} % 4)", "J": f"(1 + {t} % 3)", "h": f"({t} - 2)",
                          "s": rng.choice([f"0:{t} + 1", f":{t}", f"{t}:", f":k0.amin() + {t}"])}
                if rng.random() < 0.3:
                    parts["e"] = f"({t} + 2)"
            if "x" in letters and main == "q":
                parts["x"] = some("f", 1)
            for letter, kinds in (("y", "f"), ("w", "c"), ("b", "b")):
                if letter in letters:
                    parts[letter] = some(kinds, int(letter == "w"))
            if "Y" in letters:
                parts["Y"] = f"fit({some('f')}, {parts['x']}.shape)"
            if "B" in letters:
                parts["B"] = f"fit({some('b')}, {parts['x']}.shape)"
            if "G" in letters:
                parts["G"] = f"fit({some('iu')}, {parts['q']}.shape)"
            if "T" in letters:
                parts["T"] = self.fill(rng.choice(INNER), "r")
        except LookupError:
            return None
        moved = {"M": str(parts.get("x")), "R": "r"}
        return LETTERS.sub(lambda m: self.moved(moved[m[0]], shape) if m[0] in moved else str(parts[m[0]]), template)

    def moved(self, x: str, shape: tuple[int, ...]) -> str:
        """x in another order, or a part of it, in the same shape."""
        for _ in range(self.rng.randint(1, 3)):
            x = self.fill(self.rng.choice(MOVES), x, shape) or x
        return x

    def limit(self, expression: str) -> float:
        """What a value may change by: the coarsest dtype that it may be computed of decides."""
        names = re.findall(r"\b[akv]\d+\b", expression)
        own = max((LIMIT["float16"] * (".half()" in expression), LIMIT["bfloat16"] * (".bfloat16()" in expression),
                   LIMIT["float32"] * ("float32" in expression or ".float()" in expression)))
        self.coarse = max(self.coarse, own, *(LIMIT.get(str(self.worlds[0][n].dtype), 0.0) for n in names if n in self.worlds[0]), 0.0)
        return self.coarse

    def add(self, expression: str, target: str = "") -> bool:
        """Append the line if its value is ordinary and says the same when what it reads is a little off."""
        new = target or f"v{self.count}"
        line = expression if target else f"{new} = {expression}"
        kept = len(self.lines)
        if target:
            self.lines.append(line)
            self.noisy.append(line)
            try:
                worlds = self.run()
                good = all(alike(worlds[0][n], worlds[1][n], self.limit(expression)) for n in [*self.names("fbiuc"), "k0"])
            except (tg.TracegradError, ZeroDivisionError):
                good = False
            except BaseException:
                del self.lines[kept:], self.noisy[kept:]
                raise
            if not good:
                del self.lines[kept:], self.noisy[kept:]
                self.worlds = self.run()
                return False
            self.writes_inputs |= self.is_input(target)
            self.worlds = worlds
            return True
        clean, noisy = self.worlds
        exec(line, clean)
        good = isinstance(clean[new], tg.Tensor) and ordinary(clean[new])
        if good:
            exec(line, noisy)
            good = alike(clean[new], noisy[new], self.limit(expression))
        if not good:
            clean.pop(new), noisy.pop(new, None)
            return False
        off = f"{new} = {expression}" if exact_(clean[new].numpy()) else f"{new} = N({expression}, {self.count})"
        exec(off, noisy)
        self.count += 1
        self.lines.append(line)
        self.noisy.append(off)
        return True

    def draw(self, most: int, in_place: bool = True, groups: list[tuple[int, list[str]]] | None = None) -> None:
        rng = self.rng
        every = groups or [*GROUPS, *[(40, TURNS), (6, SET)] * bool(self.step)]
        weights, groups = zip(*[(w, g) for w, g in every if in_place or g not in (IN_PLACE, SET)], strict=True)
        on_inputs = rng.random() < 0.25
        for _ in range(rng.randint(1, most)):
            group = rng.choices(groups, weights)[0]
            target = ""
            if group in (IN_PLACE, SET):
                names = [n for n in self.names("f", 1) if on_inputs or not self.is_input(n)]
                if not names:
                    continue
                target = rng.choice(names)
            text = self.fill(rng.choice(group), target)
            if text is None:
                continue
            with np.errstate(all="ignore"):
                try:
                    self.add(text, target)
                except (tg.TracegradError, ZeroDivisionError):  # shapes that do not fit, nothing to fit: another line
                    for world in self.worlds:
                        world.pop(f"v{self.count}", None)


def exact_(value: Any) -> bool:
    if is_half(value.dtype):
        return exact(value) and bool(np.all(np.abs(value) < 32))
    return value.dtype.kind != "c" and exact(value)


def ordinary(value: Any) -> bool:
    if value.numel() > LARGEST or value.ndim > 5:
        return False
    array = value.numpy()
    return dtype_kind(array.dtype) not in "fc" or bool(np.all(np.abs(array) < BOUND))


def alike(value: Any, noisy: Any, tolerance: float) -> bool:
    """Whether a value changes by less than `tolerance` when what it was computed of is a little off."""
    if not ordinary(value):
        return False
    a, b = value.numpy(), noisy.numpy()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if dtype_kind(a.dtype) not in "fc":
        return bool(np.array_equal(a, b))
    scale = max(1.0, float(np.max(np.abs(a), initial=0)))
    wide = a.astype("complex128") - b.astype("complex128")
    return bool(np.max(np.abs(wide), initial=0) <= max(tolerance, LIMIT[str(a.dtype)]) * scale)


def drawn(number: int, most: int = 8, in_place: bool = True, groups: list[tuple[int, list[str]]] | None = None) -> tuple[Program, Program]:
    """A random program, and the same with noise after each inexact line. groups: of templates, with weights, if not all."""
    drawing = Drawing(random.Random(number), rows=groups is not None)
    drawing.draw(most, in_place, groups)
    last = f"v{drawing.count - 1}"
    if groups and drawing.rng.random() < 0.6 and last in drawing.names("f", 1) and drawing.add(f"{last}.sum() * 0.125"):
        return finished(drawing, [f"v{drawing.count - 1}"])             # its derivative is one number, everywhere
    return finished(drawing)


def equal(number: int, in_place: bool = True) -> tuple[Program, Program]:
    """A program that does the same to several arrays, of one size or of several, once or more often; and the same with noise."""
    rng = random.Random(number)
    drawing, draws = Drawing(rng), np.random.default_rng(number)
    count, dtype = rng.randint(4, 12), rng.choice(["float32", "float32", "float64"])
    sizes = rng.sample(ORDINARY, count) if rng.random() < 0.7 else [rng.choice(SIZES)] * count
    lines = rng.choice([(), (), (rng.choice([1, 2, 5]),)])
    drawing.inputs = {f"a{i}": draws.uniform(-2, 2, (*lines, sizes[i % count])).astype(dtype) for i in range(2 * count)}
    drawing.inputs["k0"] = draws.integers(0, 12, 3)
    drawing.worlds = drawing.run()
    now = [f"a{i}" for i in range(count)]
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        template = rng.choice([*EQUAL, *EQUAL_IN_PLACE * in_place])
        for i, name in enumerate(now):
            world = drawing.worlds[0]
            if world[name].shape != world[f"a{count + i}"].shape:
                break
            text = re.sub(r"\bp\b", f"a{count + i}", re.sub(r"\br\b", name, template))
            with np.errstate(all="ignore"):
                if drawing.add(text, name if template in EQUAL_IN_PLACE else "") and template in EQUAL:
                    now[i] = f"v{drawing.count - 1}"
    if not drawing.count:
        assert drawing.add("a0.reshape(-1)[:8] * c")
    return finished(drawing, list(dict.fromkeys([*now, f"v{drawing.count - 1}"])))


def finished(drawing: Drawing, outputs: Sequence[str] = ()) -> tuple[Program, Program]:
    rng = drawing.rng
    values = [n for n in drawing.names("biufc") if n[0] == "v"]
    if not values:
        assert drawing.add("a0.reshape(-1)[:8] * c")
        values = ["v0"]
    outputs = list(outputs) or list(dict.fromkeys([*rng.sample(values, min(len(values), rng.randint(0, 3))), values[-1]]))
    reads = tuple(rng.sample(range(9), rng.randint(0, 3)))
    program = Program(drawing.lines, [drawing.inputs, drawing.inputs], outputs, drawing.writes_inputs, reads)
    return program, replace(program, lines=drawing.noisy)


# ------------------------------------------------------------------------------------------------------------- the body of a loop


@dataclass(repr=False)
class Loop(Program):
    """The lines, made again for each t of `iterations`. What an iteration computes is a result; a0 is carried on."""

    iterations: tuple[int, ...] = ()
    noisy: bool = False

    def text(self, reads: bool = False) -> str:
        body = []
        for i, line in enumerate(self.lines):
            body.append(f"        {line}")
            if reads and i in self.reads and (target := re.match(r"(v\d+) = ", line)):
                body.append(f"        if t % 2: {target[1]}.reshape(-1)[-1:].sum().item()")
        body += [f"        out.append({name})" for name in self.outputs]
        last = [n for n in self.outputs if n[0] == "v"][-1:]
        body += [f"        a0 = N(keep(a0, {n}), t)" if self.noisy else f"        a0 = keep(a0, {n})" for n in last]
        return "\n".join([f"def program({', '.join(self.inputs[0])}, c):", "    out = []", f"    for t in {self.iterations}:", *body,
                          "    return (*out, a0)"]) + "\n"


@dataclass(repr=False)
class Iteration(Program):
    """The lines, to which t is an argument: one after the other, what is in `iterations`."""

    iterations: tuple[int, ...] = ()

    def text(self, reads: bool = False) -> str:
        return super().text(reads).replace("c):", "c, t):", 1)


def sliding(number: int) -> tuple[Iteration, Iteration]:
    """An iteration of a loop, in each of which slices begin elsewhere, and the same with noise."""
    rng = random.Random(number)
    drawing = Drawing(rng, step="t", rows=rng.random() < 0.5)
    drawing.draw(3, False, [(4, SLIDING), (1, ROWS), (1, REDUCED)])
    program, noisy = finished(drawing)
    own = (program.inputs, program.outputs, program.in_place_on_inputs, (), tuple(rng.sample(range(7), 4)))
    return Iteration(program.lines, *own), Iteration(noisy.lines, *own)


def looping(number: int, most: int = 4) -> tuple[Loop, Loop]:
    """A loop, whose numbers change between its iterations, and the same with noise."""
    rng = random.Random(number)
    drawing = Drawing(rng, step="t")
    drawing.draw(most, in_place=rng.random() < 0.3)
    program, noisy = finished(drawing)
    iterations = tuple(rng.choice([range(1, 5), [1] * 3 + [2] * 2, [1, 2] * 2, [rng.randint(0, 6) for _ in range(5)]]))
    outputs = [n for n in program.outputs if dtype_kind(drawing.worlds[0][n].dtype) in "biuf"] or ["a0"]
    own = (program.inputs, outputs, program.in_place_on_inputs, program.reads, iterations)
    return Loop(program.lines, *own), Loop(noisy.lines, *own, noisy=True)
