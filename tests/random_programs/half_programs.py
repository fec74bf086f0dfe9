"""Random programs of float16 or bfloat16 as Python text, of operations that have one right result. Start at `half_program`.

Products, sums, quotients and roots of halves in float32, rounded to a half, are the exact result rounded. So a program of these, and of
whatever reads their results (comparisons, roundings, conversions), gives the same bits in whatever kernels it is computed.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad.nn import functional as F

ROWS, COLUMNS = 5, 37
ARITHMETIC = ["{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} + 0.1", "{a} * 2.5", "{a} * 0.001", "{a} - {c}", "{a} * {c}", "-{a}", "{a}.abs()",
              "{a} * {a}", "1.5 - {a}"]
QUOTIENTS = ["{a} / {b}", "{a}.abs().sqrt()", "{a}.reciprocal()"]
LOOKS = [
    "tg.where({a} > {b}, {a}, {b})", "tg.where(tg.isfinite({a}), {a}, 0.0)", "tg.nan_to_num({a})", "{a}.clamp(-2.0, 3.0)", "{a}.floor()",
    "{a}.sign()", "{a}.round()", "tg.maximum({a}, {b})", "({a} == {b}).half()", "({a} < {b}).half() + {a}", "{a}.float().half()",
    "(tg.nan_to_num({a}).clamp(-9000.0, 9000.0)).to(tg.int32).half()", "({a}.float() * 3.0 + {b}.float()).half()", "tg.fmod({a}, 1.5)",
    "tg.copysign({a}, {b})", "({a} - {a}.trunc())", "F.relu({a})", "({a} != {a}).half()", "{a}.isinf().half() + {b}",
    "{a}.float().floor().half()",
]
MOVES = [
    "{a}.flip(-1)", "{a}.roll(3, -1)", "F.pad({a}, (1, 0))[:, :-1]", "tg.cat(({a}[:, 9:], {b}[:, :9]), 1)",
    "{a}.amax(-1, keepdim=True) - {b}", "({a} == {a}.amax(-1, keepdim=True)).half()", "{a}.sort(-1)[0]",
    "{a}.argmax(-1, keepdim=True).half() * {b}", "{a}.amin(0) + {b}", "{a}.argsort(-1).half()",
    "(({a} * {b}).amax(0) == {a} * {b}).half()", "{a}.cummax(-1)[0]",
]
CONTROL = [
    "tg.scan(lambda c, r: (lambda z: (tg.where(tg.isfinite(z), z, c), (z + 0.001 == z).half()))(c * 1.5 - r), {a}[0], {b})[1]",
    "tg.scan(lambda c, r: (tg.nan_to_num(c * r).floor(), c * r), {a}[0], {b})[0] + {b}",
    "tg.while_loop(lambda s: (s[0] < 3) & tg.isfinite(s[1] * s[1]).any(), lambda s: (s[0] + 1, s[1] * 2.5 - {b}), "
    "(tg.zeros((), dtype=tg.int32), {a}))[1]",
    "tg.cond(tg.isfinite({a} * {b}).all(), lambda a, b: a * b - a, lambda a, b: tg.nan_to_num(a * 300.0) + b, {a}, {b})",
    "Guarded.apply({a}, {b})",
]
# What rounds in some order: what is returned of these is what was compared, whatever the order. And what may look at the result.
INEXACT = [
    "x.sum(-1, keepdim=True) * y", "x.mean(-1)", "x @ y.T", "(x * 1.1) @ (y.T + 0.3)", "F.linear(x, y, y[:, 0])", "x.softmax(-1)",
    "x.cumsum(-1)", "x.cumprod(0)", "x.cumsum(0) * y", "x.var(-1)", "x.norm(dim=-1)", "x.exp()", "(x * y).tanh()",
    "F.layer_norm(x, x.shape[-1:])", "x / y", "x.logsumexp(-1)", "x.logcumsumexp(-1)", "x.prod(-1)", "F.gelu(x)", "x.abs().sqrt()",
    "x.abs() ** 1.7", "F.avg_pool1d(x[None], 3)", "F.mse_loss(x, y)", "F.cross_entropy(x, y.argmax(-1))", "tg.einsum('ij,ij->i', x, y)",
    "F.scaled_dot_product_attention(x[None], y[None], x[None])", "tg.zeros_like(x).scatter_add(1, y.argsort(-1, stable=True) // 2, x)",
    "F.batch_norm(x, None, None, training=True)", "F.conv1d(x[None], y[None, :, :3].permute(1, 0, 2).expand(5, 5, 3) * 0.3)",
    "tg.addmm(x @ y.T, x, y.T, beta=0.3, alpha=1.7)", "tg.scan(lambda c, r: (c * 0.9 + r, (c * r).sum()), x[0], y)[1]",
    "tg.scan(lambda c, r: ((c * 0.9).exp() - r, c), x[0], y)[0]",
    "tg.while_loop(lambda s: (s[0] < 3) & tg.isfinite(s[1]).any(), lambda s: (s[0] + 1, s[1] / 3 + y.sum(0)), "
    "(tg.zeros((), dtype=tg.int32), x))[1]",
]
AFTER = [
    "tg.isfinite(z)", "z == z.amax()", "z.floor()", "z.sign()", "tg.where(z > 0.5, z, 1.0)", "tg.nan_to_num(z)", "z.clamp(-1, 1)",
    "z.float()", "z.argmax()", "z.flatten().sort()[0]", "z * 1.5", "(z + 0.001) == z", "z - z.round()", "(z * z).isfinite().all()",
    "z.float() * 3", "z.flatten().argsort(stable=True)", "z * z - z", "z.reshape(-1)[0] == z", "z.flatten().cummax(0)[0]",
    "z.trunc() == z", "z.ceil() - z",
]
LAST = ["{a} == {b}", "{a} > {b}", "tg.isfinite({a})", "{a}.isfinite().all()", "({a} <= 1).any(-1)", "{a}.argmax(-1)", "{a}.isinf()"]
SPECIAL = {tg.float16: np.array([0.0, -0.0, 1.0, 1 + 2.0**-10, 2.0**-12, 2.0**-11, 3 * 2.0**-12, 2048.0, 2049.0, 5000.0, 65504.0, -65504.0,
                                 255.9, 2.0**-24, 3e-7, 6.1e-5, 2.0**-14, np.inf, -np.inf, np.nan, 0.1, 0.3333], np.float16),
           tg.bfloat16: np.array([0.0, -0.0, 1.0, 1 + 2.0**-7, 2.0**-9, 2.0**-8, 3 * 2.0**-9, 256.0, 257.0, 1e20, 3.39e38, -3.39e38, 127.8,
                                  2.0**-126, 1e-38, 1.5e-19, 2.0**-63, np.inf, -np.inf, np.nan, 0.1, 0.3333], tg.bfloat16)}


class Guarded(tg.autograd.Function):
    """A product, where it is finite; the derivatives look at what they scale."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        z = a * b
        ctx.save_for_backward(a, z)
        return tg.where(tg.isfinite(z), z, a)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        a, z = ctx.saved_tensors
        scaled = g * 300.0
        return tg.where(tg.isfinite(scaled * scaled), scaled, g), tg.where(z == a, g, tg.nan_to_num(g * a))


def half_program(
    rng: Random, dtype: Any = tg.float16, quotients: bool = True, lines: int = 9, control: bool = False
) -> tuple[str, Callable[..., Any], list[Any]]:
    """(its text, the function, its arguments as arrays). quotients: division and roots, too, which drivers may not compute exactly.

    control: loops, branches and a custom function, too.
    """
    pool = [*ARITHMETIC * 2, *(QUOTIENTS if quotients else []), *LOOKS, *MOVES, *(CONTROL if control else [])]
    names, body = ["x", "y"], []
    for number in range(lines):
        a, b = (rng.choice(names[-4:]) if rng.random() < 0.7 else rng.choice(names) for _ in range(2))
        body.append(f"    v{number} = " + rng.choice(pool).format(a=a, b=b, c="c"))
        names.append(f"v{number}")
    results = [rng.choice(names) for _ in range(3)] + [names[-1]]
    reads = [rng.choice(LAST).format(a=rng.choice(names), b=rng.choice(names)) for _ in range(3)]
    text = "\n".join(["def program(x, y, c):", *body, f"    return {', '.join([*results, *reads])}"]) + "\n"
    return text, compiled(text, dtype), arrays(rng, dtype)


def compiled(text: str, dtype: Any = tg.float16) -> Callable[..., Any]:
    """The function `program` of the text, whose halves are of that dtype."""
    text = text.replace(".half()", ".bfloat16()") if dtype == tg.bfloat16 else text
    filename = f"<half program {hash(text):x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    world: dict[str, Any] = {"tg": tg, "F": F, "Guarded": Guarded}
    exec(compile(text, filename, "exec"), world)
    return world["program"]  # type: ignore[no-any-return]


def arrays(rng: Random, dtype: Any) -> list[Any]:
    """Two matrices and a row of numbers of every size, special ones among them."""
    draw = np.random.default_rng(rng.randrange(1 << 30))
    found = []
    for shape in ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,)):
        values = (draw.standard_normal(shape) * 10.0 ** draw.uniform(-3, 3, shape)).astype(dtype)
        found.append(np.where(draw.random(shape) < 0.4, draw.choice(SPECIAL[dtype], shape), values))
    return found
