"""What tests/ops/test_sizes.py computes: functions as text, what stands before and behind them, and how they are run and compared.

A function is an expression in the letters of `Case.arrays`. A `Case` puts it between a movement of its operand (`BEFORE`) and something
that reads its result (`AFTER`), for rows of `n` elements. `disagreements` computes value, gradient and second derivative of many cases
in one traced function, on a device in float32 and float64, and on the interpreter. What float32 and float64 differ by on the
interpreter says how exact the device's result can be. Start at `Case`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

import tracegrad as tg
from tests.ops.test_registry import OPS
from tests.random_programs.random_programs import fit
from tracegrad.execute.devices import NUMPY
from tracegrad.graph.operation_families import Elementwise
from tracegrad.nn import functional as F
from tracegrad.support.dtypes import dtype_kind

SIZES = (7, 13, 16, 24, 31, 32, 33, 40, 64, 65, 100, 127, 128, 129, 257, 300, 1000)
LAYOUTS: dict[str, Any] = {         # the shape whose last dimension is a row of n
    "row": lambda n: (n,), "rows": lambda n: (3, n), "many": lambda n: (max(2, 600 // n), n), "block": lambda n: (2, 3, n),
}

# ------------------------------------------------------------------------------------------------------------------ functions
# x: the operand, moved by BEFORE; y, z: others of its shape; p: positive; r: a row; m: a mask; i: indices into a row, in x's shape;
# k: indices into rows, of one dimension; l: a class for each row; n: the row's size; X: x as a matrix (n, 7); W: (7, n).

ELEMENTWISE = [op for op in OPS if isinstance(op, Elementwise) and "f" in op.kinds and not op.cases
               and op.name not in ("copy", "detach", "variable", "elementwise", "in_range", "complex")
               and not getattr(op, "constants", ())]       # those with operands that have no derivative: tests/ops/special/test_special.py


def domain(x: str, op: Any) -> str:
    """The text of an operand in the op's domain."""
    low, high = op.domain
    if low <= -2 and high >= 2:
        return x
    middle, half = (low + high) / 2, (high - low) / 2
    return f"({x} * {half / 2:.6g} + {middle:.6g})"


POINTWISE = ["op.{}({})".format(op.name, ", ".join(("x > 0" if op.name == "where" and a == 0 else domain(letter, op))
                                                   for a, letter in enumerate(("x", "y", "z")[:op.nin]))) for op in ELEMENTWISE]
FUNCTIONS = [
    # public names of elementwise functions that are not the op's
    "tg.reciprocal(p + x * 0.1)", "x.square()", "tg.relu(x)", "F.leaky_relu(x, 0.2)", "F.gelu(x)", "F.gelu(x, approximate='tanh')",
    "F.silu(x)", "F.softplus(x)", "F.logsigmoid(x)", "F.elu(x)", "F.selu(x)", "F.hardtanh(x)", "F.relu6(x * 4)", "x.clamp(-0.5, 0.7)",
    "tg.clamp(x, y - 1, y + 1)", "x.lerp(y, 0.3)", "x.isinf()", "x.isfinite()", "tg.logical_and(x, y > 0)", "tg.logical_or(x > 0, y > 0)",
    "tg.logical_xor(x > 0, y > 0)", "tg.logical_not(x)", "x.detach() * y", "x.to(tg.int32)", "x.to(tg.float64) * 0.5",
    "tg.div(x, p, rounding_mode='floor')", "tg.add(x, y, alpha=0.3)", "tg.sub(x, y, alpha=0.3)", "x.double().float()",
    "tg.where(m, x, y)", "tg.round(x, decimals=1)", "p ** x", "p ** 2.5", "x ** 3", "x.half().float()", "x.bfloat16().float()",
    "x % 0.7", "x // 0.7",
    "(x * 30).to(tg.int32) // 7 % 5", "(x * 30).long() << 2 & 12 | 1", "~(x * 30).int() ^ 3 >> 1",
    *[f"tg.bitwise_{name}((x * 30).int(), (y * 30).int())" for name in ("and", "or", "xor")], "tg.bitwise_not(x > 0)",
    *[f"tg.bitwise_{name}_shift((x * 30).int(), (y + 2).int())" for name in ("left", "right")], "(x * 30).to(tg.uint8)", "x * 2.5 + r",
    "tg.positive(x)", "F.glu(tg.cat([x, y], -1))", "F.tanh(x)", "tg.gelu(x)",
    # complex numbers: results are real, as the readers are
    "tg.view_as_real(tg.complex(x, y) * tg.polar(p, y))", "tg.real((tg.complex(x, y) * 0.5).exp())",
    "(tg.complex(x, y) / tg.complex(p, x)).abs()",
    "tg.imag(tg.conj(tg.complex(x, p)) * tg.sgn(tg.complex(p, y)))", "tg.angle(tg.complex(x, p))", "tg.real(tg.complex(x, y).sum(-1))",
    "tg.view_as_complex(tg.stack([x, p], -1)).sqrt().abs()", "tg.real(tg.complex(X, X * 0.5).adjoint() @ tg.complex(X, X - 1))",
    "tg.real(tg.complex(x, p).cumsum(-1))", "tg.isreal(tg.complex(x, x * 0))",
    "tg.imag(tg.complex(x, y)[..., k] * tg.complex(y, x).roll(1, -1))",
    # reductions
    *[f"x.{name}({args})" for name in ("sum", "mean", "amax", "amin", "prod") for args in ("-1", "0", "")],
    *[f"x.{name}({args})" for name in ("var", "std", "norm") for args in ("", "dim=-1")], "x.var(0, correction=0)",
    "(x - 3).amax(-1)", "(x - 3).amax(0)", "(x + 3).amin(-1)", "(x + 3).amin()", "(x - 3).max(-1)[1]",
    "(x + 3).argmin(-1)",    # of one sign
    "x.max(-1)[0]", "x.min(-1)[1]", "x.max(0)[1]", "x.argmax(-1)", "x.argmin(0)", "fit(x, (5, n)).argmax(0)",
    "fit(x, (n, 5)).argmin(0)", "x.argmax()", "x.median(-1)[0]", "x.median()",
    "x.logsumexp(-1)", "x.logsumexp(0)", "x.norm(1, dim=-1)", "x.norm(3, dim=-1)", "x.norm(tg.inf, dim=-1)", "x.nansum(-1)",
    "(x > 0).any(-1)", "(x > -3).all(0)", "x.count_nonzero(-1)", "(x > 1).sum(-1)", "(x * 9).int().sum(0)", "(x * 9).long().amax(-1)",
    "tg.var_mean(x, -1)[0]", "x.sum(-1, keepdim=True) * y", "x - x.mean(-1, keepdim=True)", "(x * y).sum(-1)",
    "(x - x.mean(-1, keepdim=True)).square().sum(-1, keepdim=True) * y", "x.mean(0) + x.sum(0) * x.amax(0)", "x.reshape(-1).sum() * x",
    # scans and sorting
    "x.cumsum(-1)", "x.cumsum(0)", "x.flip(-1).cumsum(-1).flip(-1)", "(x > 0).cumsum(-1)", "(x * 9).int().cumsum(0)",
    "x.cummax(-1)[0]", "x.cummin(0)[0]", "(x * 9).int().cummax(-1)[1]", "(x > 1).cummax(-1)[0]", "x.flip(-1).cummin(-1)[1]",
    "tg.cross(x[..., :3], y[..., 1:4], -1)", "(0.7 + x * 0.15).cumprod(-1)",
    "(0.9 + x * 0.2).cumprod(0)", "x.cumsum(-1) - y.cumsum(-1)", "x.sort(-1)[0]", "x.sort(-1)[1]",
    "x.sort(0, descending=True)[0]", "x.argsort(-1, descending=True)", "(x - 3).topk(3, -1)[0]", "x.topk(5, -1, largest=False)[1]",
    "x.topk(n // 2, -1)[0]",
    # movement
    "x.roll(1, -1)", "x.roll(-n // 3, -1)", "x.roll((1, 2), (0, -1))", "x.flip(-1)", "x.flip(0).flip(-1)", "x[..., ::2]", "x[..., 1::3]",
    "x[..., n // 3:]", "x[..., :n // 2 + 1]", "x.flip(-1)[..., ::2]", "F.pad(x, (2, 3))", "F.pad(x, (3, 0), value=0.5)",
    "F.pad(x, (-2, 1))", "F.pad(x, (2, 3), mode='reflect')", "F.pad(x, (2, 3), mode='replicate')", "F.pad(x, (2, 3), mode='circular')",
    "tg.cat([x, y], -1)", "tg.cat([x[..., 1:], y[..., :1] * 2], -1)", "tg.cat([x, y[..., :5], x[..., -3:]], -1)", "tg.stack([x, y], -1)",
    "tg.stack([x, y]).sum(0)", "tg.cat([x, y], 0)", "x.split(5, -1)[1]", "x.chunk(3, -1)[2]", "x.unbind(-1)[n // 2]", "x.narrow(-1, 3, 4)",
    "x.repeat_interleave(2, -1)", "tg.repeat(x, 2, *[1] * x.ndim)", "x.tile(2)", "x.tril() if x.ndim > 1 else x[None].tril()",
    "fit(x, (n, n + 3)).triu(2)", "fit(x, (n, n)).diagonal()", "tg.diag_embed(x[..., :9])", "tg.diag(x.reshape(-1)[:20])",
    "x.unfold(-1, 5, 2)", "x.unfold(-1, 3, 1).sum(-1)", "x.transpose(0, -1)", "x.movedim(-1, 0) * 2", "x[None].expand(4, *x.shape).sum(0)",
    "x.reshape(-1).reshape(*x.shape[::-1])", "x.unflatten(-1, (1, n))", "x[..., None, :] - y[..., :4, None]", "tg.meshgrid(r, r[:3])[0]",
    "x.permute(*range(x.ndim))[..., n - 1]", "x.swapaxes(0, -1).flip(0)", "x.select(-1, 2)", "x.squeeze().unsqueeze(0)", "tg.fliplr(X)",
    "tg.flipud(X).roll(1, 0)", "X.t() + W", "tg.outer(r, r[:9])", "x.broadcast_to(2, *x.shape)", "tg.broadcast_tensors(x, y)[0]",
    "tg.linspace(0, 1, n) * x", "tg.arange(n) * x", "tg.eye(n)[0] * x", "tg.full((n,), 0.5) * x", "x.view_as(y)", "x.flatten()",
    "x.ravel()",
    "x.expand_as(y)", "x.expand_dims(0)", "x.reshape_as(y)", "x.T", "x.clone()", "x.view(-1, n)",
    # indices
    "x.gather(-1, i)", "x.gather(-1, i[..., :5])", "x.take(i)", "x.take_along_dim(i, -1)", "x.index_select(-1, k)", "x[..., k]",
    "x[..., k].roll(1, -1)", "x.index_add(-1, k, y[..., :len(k)])", "x.index_copy(-1, kk, y[..., :len(kk)])",
    "x.scatter(-1, i[..., :1], y)",
    "x.scatter_reduce(-1, i, y, 'amax')", "x.scatter_reduce(-1, i, y, 'amin', include_self=False)",
    "x.scatter_add(-1, i, y)", "tg.zeros_like(x).scatter_add(-1, i, x)", "x.masked_fill(m, 0.5)", "F.embedding(i, X)",
    "F.one_hot(k, n) * x.sum()", "put(x, (Ellipsis, slice(1, None, 3)), 0.5)", "put(x, (Ellipsis, slice(2, 6)), y[..., 2:6])",
    "put(x, m, 0.25)", "put(x, (Ellipsis, kk), 1.5)", "tg.where(m, x, 0.0)", "x.gather(-1, i).gather(-1, i)",
    "x.reshape(-1)[k]", "tg.zeros_like(x).index_add(-1, k, x[..., :len(k)])",
    # neural
    "x.softmax(-1)", "x.softmax(0)", "x.log_softmax(-1)", "F.layer_norm(x, (n,), r, r)", "F.rms_norm(x, (n,), r)", "F.normalize(x, dim=-1)",
    "F.cosine_similarity(x, y, dim=-1)", "F.group_norm(fit(x, (2, 6, n)), 3)", "F.batch_norm(fit(x, (5, 4, n)), None, None, training=True)",
    "F.cross_entropy(fit(x, (len(l), n)), l)", "F.nll_loss(fit(x, (len(l), n)), l)", "F.cross_entropy(fit(x, (4, n)), fit(p, (4, n)))",
    "F.cross_entropy(fit(x, (len(l), n)), l, label_smoothing=0.1, reduction='none')", "F.mse_loss(x, y)", "F.l1_loss(x, y)",
    "F.smooth_l1_loss(x, y)", "F.huber_loss(x, y, delta=0.4)", "F.binary_cross_entropy(x.sigmoid(), m.to(x.dtype))",
    "F.binary_cross_entropy_with_logits(x, m.to(x.dtype))", "F.kl_div(x, p)", "F.dropout(x, 0.5, training=False)",
    # windows, convolutions, products
    "F.max_pool1d(fit(x - 3, (2, 2, n)), 3, 2, 1)", "F.avg_pool1d(fit(x, (2, 2, n)), 3, 2)", "F.max_pool2d(fit(x - 3, (1, 2, 7, n)), 2)",
    "F.avg_pool2d(fit(x, (1, 2, 7, n)), 3, 1, 1)", "F.adaptive_avg_pool2d(fit(x, (1, 2, 8, n)), (2, 1))",
    "F.conv1d(fit(x, (2, 2, n)), fit(y, (3, 2, 3)), padding=1)",
    "F.conv2d(fit(x, (1, 2, 5, n)), fit(y, (3, 2, 3, 3)), padding=1)",
    "F.conv2d(fit(x, (1, 2, 9, n)), fit(y, (4, 1, 3, 3)), stride=2, groups=2)",
    "F.conv_transpose1d(fit(x, (1, 2, n)), fit(y, (2, 3, 4)), stride=2)", "F.conv_transpose2d(fit(x, (1, 2, 3, n)), fit(y, (2, 3, 2, 2)))",
    "tg.matmul(X.t(), fit(y, (n, 5)))", "W @ X", "fit(x, (n, 9)) @ fit(y, (9, n))", "fit(x, (n, n)) @ r", "tg.mv(fit(x, (9, n)), r)",
    "tg.mm(W, X)",
    "tg.bmm(fit(x, (3, 5, n)), fit(y, (3, n, 4)))", "tg.dot(x.reshape(-1), y.reshape(-1))", "tg.inner(W, fit(y, (3, n)))",
    "tg.addmm(fit(y, (7, 7)), W, X, beta=0.5)", "tg.baddbmm(fit(y, (3, 2, 4)), fit(x, (3, 2, n)), fit(x, (3, n, 4)))",
    "F.linear(x, W, r[:7])",
    "tg.einsum('ij,kj->ik', fit(x, (6, n)), W)", "tg.einsum('ii->i', fit(x, (n, n)))", "tg.tensordot(fit(x, (4, n)), X, 1)",
    "F.scaled_dot_product_attention(fit(x, (1, 2, 5, n)), fit(y, (1, 2, 6, n)), fit(z, (1, 2, 6, n)))",
    "F.scaled_dot_product_attention(fit(x, (2, n, 3)), fit(y, (2, 6, 3)), fit(z, (2, 6, 5)), is_causal=True)",
    "F.scaled_dot_product_attention(fit(x, (2, 5, 3)), fit(y, (2, n, 3)), fit(z, (2, n, 2)), is_causal=True)", "fit(x, (n, n)).trace()",
    # several steps, loops
    "stencil(x, 3)", "padded_stencil(x, 3)", "waves(x, 2)", "(x.roll(1, -1) - x.roll(-3, -1)).roll(2, -1)",
    "x.softmax(-1).cumsum(-1).softmax(-1)",
    "tg.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)", "tg.scan(lambda c, v: (c * 0.5 + v, c), r * 0, fit(x, (5, n)))[1]",
    "tg.while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * 0.5 + r), (tg.tensor(0), r * 1))[1]", "in_place(x, y)",
    "tg.vmap(lambda a: a.softmax(-1).sum(0))(fit(x, (3, 2, n)))", "tg.jvp(lambda a: a.cumsum(-1) ** 2, (x,), (y,))[1]",
]

BEFORE = {          # name: (elements of the operand's row for n, text that makes x of x0)
    "plain": ("n", "x0"),
    "pad": ("n - 3", "F.pad(x0, (1, 2), value=0.25)"),
    "zeros": ("n - 5", "F.pad(x0, (5, 0))"),
    "roll": ("n", "x0.roll(n // 3, -1)"),
    "roll rows": ("n", "x0.roll(1, 0)"),
    "flip": ("n", "x0.flip(-1)"),
    "stride": ("2 * n", "x0[..., ::2]"),
    "stride 3": ("3 * n + 1", "x0[..., 2::3]"),
    "shift": ("n + 5", "x0[..., 5:]"),
    "cat": ("n", "tg.cat([x0[..., n // 3:], x0[..., :n // 3] * 0.5], -1)"),
    "shifts": ("n", "(x0.roll(1, -1) + x0.roll(-3, -1)) * 0.5"),
    "neighbours": ("n + 2", "(x0[..., 2:] - x0[..., :-2]) * 0.5"),
    "repeat": ("n // 2 + 1", "x0.repeat_interleave(2, -1)[..., :n]"),
    "gather": ("n", "x0.gather(-1, i)"),
    "exp": ("n", "tg.tanh(x0)"),
}
AFTER = {           # text that reads the result v
    "plain": "v", "sum": "v.sum(-1)", "sum rows": "v.sum(0)", "total": "v.sum()", "softmax": "v.softmax(-1)",
    "softmax rows": "v.softmax(0)",
    "compare": "tg.where(m0(v) > 0, v, v * 0.5)", "roll": "v.roll(2, -1)", "pad": "F.pad(v, (1, 1))", "flip": "v.flip(0)",
    "cumsum": "v.cumsum(-1)",
    "differences": "v[..., 1:] - v[..., :-1]", "shifts": "v.roll(1, -1) * v.roll(-2, -1)", "mean": "v - v.mean(-1, keepdim=True)",
    "amax": "v.amax(-1)", "transpose": "v.transpose(0, -1).exp()", "layer norm": "F.layer_norm(v, v.shape[-1:])",
    "costly": "(v.tanh() * v.tanh().flip(-1)).softmax(-1)", "spread": "v.sigmoid().flip(0).var(-1, correction=0)",
}


def put(x: Any, key: Any, value: Any) -> Any:
    y = x.clone()
    y[key] = value
    return y


def in_place(x: Any, y: Any) -> Any:
    z = x * 2
    z += y
    z[..., 1:] *= 0.5
    z[..., ::2].sub_(x[..., ::2], alpha=0.25)
    return z.relu_() + z.roll(1, -1)


def stencil(x: Any, steps: int) -> Any:
    for _ in range(steps):
        x = x + 0.1 * (x.roll(1, -1) + x.roll(-1, -1) - 2 * x)
    return x


def padded_stencil(x: Any, steps: int) -> Any:
    for _ in range(steps):
        p = F.pad(x, (1, 1))
        x = x + 0.1 * (p[..., 2:] + p[..., :-2] - 2 * x)
    return x


def waves(x: Any, steps: int) -> Any:
    before = x * 0.9
    for _ in range(steps):
        p = F.pad(x, (2, 2), mode="replicate")
        x, before = 2 * x - before + 0.1 * (p[..., 4:] + p[..., :-4] - 2 * x), x
    return x


def m0(v: Any) -> Any:
    """A pattern of exact numbers in the shape of v, for comparisons."""
    return (tg.arange(v.numel(), device=v.device) * 7 % 5 - 2).reshape(v.shape)


class _Ops:
    def __getattr__(self, name: str) -> Any:
        return next(op for op in OPS if op.name == name)


WORLD = {"tg": tg, "F": F, "fit": fit, "op": _Ops(), "put": put, "in_place": in_place, "stencil": stencil, "padded_stencil": padded_stencil,
         "waves": waves, "m0": m0, "rows_ahead": lambda n: (1 << 20) // (4 * n) + 3}


# ----------------------------------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A function of rows of n elements; before: movements of its operand, by name; after: what reads its result; order: of derivatives."""

    text: str
    n: int
    layout: str = "rows"
    before: str = "plain"
    after: str = "plain"
    order: int = 2

    def __str__(self) -> str:
        return f"{self.text} | n={self.n} {self.layout} before={self.before} after={self.after}"

    def steps(self) -> list[tuple[str, int, int]]:
        """What is done before: (name, elements of a row before it, and after it) of each step."""
        out: list[tuple[str, int, int]] = []
        n = self.n
        for name in reversed(self.before.split(", ")):
            needed = eval(BEFORE[name][0], {"n": n})
            out.append((name, needed, n))
            n = needed
        return out[::-1]

    def arrays(self) -> dict[str, Any]:
        """The inputs that the texts use, by letter. Numbers that float32 holds, the same in both dtypes."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        n, shape = self.n, LAYOUTS[self.layout](self.n)
        own = (*shape[:-1], self.steps()[0][1])
        every: dict[str, Any] = {
            "x0": rng.uniform(-2, 2, own), "y": rng.uniform(-2, 2, shape), "z": rng.uniform(-2, 2, shape), "p": rng.uniform(0.5, 2, shape),
            "r": rng.uniform(0.5, 2, n), "W": rng.uniform(-1, 1, (7, n)), "m": rng.random(shape) < 0.4, "i": rng.integers(0, n, shape),
            "k": rng.integers(0, n, n), "kk": rng.permutation(n)[:n // 2], "l": rng.integers(0, n, 5),
            "u": rng.uniform(-1, 1, own),
        }
        text = " ".join([self.text, *(BEFORE[name][1] for name, *_ in self.steps()), "x0 u"])
        return {k: v.astype(np.float32) if dtype_kind(v.dtype) == "f" else v for k, v in every.items() if re.search(rf"\b{k}\b", text)}

    def results(self, **given: Any) -> list[Any]:
        """Value, gradient, and the derivative of the gradient in direction u; only what exists."""
        body, after = code(self.text), code(AFTER[self.after])
        world = {**WORLD, **given, "n": self.n}
        u = given["u"]

        def value(x0: Any) -> Any:
            here = {**world, "x0": x0}
            for name, _, n in self.steps():
                here["n"] = n
                here["x"] = here["x0"] = eval(code(BEFORE[name][1]), here)
            here["X"] = fit(here["x"], (self.n, 7))
            here["v"] = eval(body, here)
            if self.after == "plain" or not here["v"].is_floating_point() or here["v"].ndim == 0:
                return here["v"]
            return eval(after, here)

        def loss(x0: Any) -> Any:
            v = value(x0)
            return (v * v).sum()

        x0 = given["x0"]
        out = [value(x0)]
        if self.order and out[0].is_floating_point():
            slope = tg.grad(loss)
            out.append(slope(x0))
            if self.order > 1:
                out.append(tg.grad(lambda x: (slope(x) * u).sum())(x0))
        return out


@cache
def code(text: str) -> Any:
    return compile(text.strip(), f"<{text}>", "eval")


# -------------------------------------------------------------------------------------------------------------------- running


def typed(arrays: dict[str, Any], dtype: str) -> dict[str, Any]:
    return {k: v.astype(dtype) if dtype_kind(v.dtype) == "f" else v for k, v in arrays.items()}


def compute(cases: Sequence[Case], dtype: str, device: Any, trace: bool = True) -> list[list[Any]]:
    """The results of each case, computed by one traced function, with separate inputs for each."""
    before = tg.device()
    tg.set_device(device)
    try:
        given = [typed(case.arrays(), dtype) for case in cases]
        counts: list[int] = []

        def all_of_them(*args: Any) -> Any:
            counts.clear()
            rest, out = list(args), []
            for case, arrays in zip(cases, given, strict=True):
                found = case.results(**{k: rest.pop(0) for k in arrays})
                counts.append(len(found))
                out += found
            return tuple(out)

        fn = tg.trace(all_of_them) if trace else all_of_them
        flat = [t.detach().numpy() for t in fn(*[tg.tensor(a) for arrays in given for a in arrays.values()])]
    finally:
        tg.set_device(before)
    out = []
    for count in counts:
        out.append(flat[:count])
        del flat[:count]
    return out


WHAT = ("value", "gradient", "second derivative")
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def wrong(found: Any, wanted: Any, single: Any, double: Any, least: str = "float64") -> str:
    """What differs, "" if nothing. single and double: the interpreter's results, whose difference says how exact one can be.

    least: the narrowest dtype that the function computes in.
    """
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return f"{found.dtype}{list(found.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if dtype_kind(wanted.dtype) != "f":
        count = int(np.sum(found != wanted))
        return f"{count} of {wanted.size} differ" if count else ""
    finite = np.isfinite(wanted)
    if not np.array_equal(np.isfinite(found), finite) or not np.array_equal(found[~finite], wanted[~finite], equal_nan=True):
        return f"not finite in other places: {np.sum(~np.isfinite(found))} instead of {np.sum(~finite)}"
    scale = float(np.max(np.abs(wanted), initial=0, where=finite)) or 1e-6
    both = finite & np.isfinite(single) & np.isfinite(double)
    noise = float(np.max(np.abs(np.where(both, single, 0).astype("float64") - np.where(both, double, 0)), initial=0))
    unit = EPS["float32"] * scale
    eps = max(EPS[wanted.dtype.name], EPS[least])
    limit = (30 * noise + 60 * unit) * eps / EPS["float32"]
    error = np.abs(np.where(finite, found.astype("float64"), 0) - np.where(finite, wanted, 0))
    worst = float(np.max(error, initial=0))
    # A derivative that is 0 is what roundings leave of terms near one that cancel: float64 tells.
    nothing = float(np.max(np.abs(np.where(both, double, 1)), initial=0)) < 500 * EPS["float64"]
    if worst <= limit or (nothing and worst < 500 * eps):
        return ""
    bad = error > limit
    at = [int(i) for i in np.argwhere(bad)[0]]
    return (f"{np.sum(bad)} of {wanted.size} differ by up to {worst:.3g} (allowed {limit:.3g}, largest {scale:.3g}), first at {at}: "
            f"{found[tuple(at)]} instead of {wanted[tuple(at)]}")


def disagreements(cases: Sequence[Case], devices: Iterable[Any], dtypes: Sequence[str] = ("float32", "float64")) -> list[str]:
    """What the devices get wrong: a line for each result that is not the interpreter's, or cannot be built."""
    wanted = {dtype: compute(cases, dtype, NUMPY, trace=False) for dtype in ("float32", "float64")}
    out: list[str] = []
    for device in devices:
        for dtype in dtypes:
            try:
                found = compute(cases, dtype, device)
            except Exception as error:
                if len(cases) == 1:
                    out.append(f"{cases[0]} {dtype}: {type(error).__name__}: {str(error)[:600]}")
                else:
                    half = len(cases) // 2
                    parts = disagreements(cases[:half], [device], [dtype]) + disagreements(cases[half:], [device], [dtype])
                    out += parts or [f"all of {len(cases)} cases together, {dtype}: {type(error).__name__}: {str(error)[:600]}"]
                continue
            for k, case in enumerate(cases):
                written = {"bfloat16()": "bfloat16", "half()": "float16", "float()": "float32"}
                given = dtype if case.before == "exp" else "float64"           # tanh of the operand, whatever the function makes of it
                least = next((d for word, d in written.items() if word in case.text), given)
                for what, f, w, s, d in zip(WHAT, found[k], wanted[dtype][k], wanted["float32"][k], wanted["float64"][k], strict=False):
                    problem = wrong(f, w, s, d, least)
                    if problem:
                        out.append(f"{case} {dtype} {what}: {problem}")
    return out


def fitting(case: Case) -> Case:
    """The case, or, where its reader or its movement does not go with the function's shapes, the same without that."""
    for changes in ({}, {"after": "plain"}, {"before": "plain"}):
        tried = replace(case, **changes)
        try:
            compute([replace(tried, order=min(tried.order, 1))], "float32", NUMPY, trace=False)
            return tried
        except tg.TracegradError:
            continue
    return replace(case, before="plain", after="plain")       # if this is refused, too, the test fails and says so
