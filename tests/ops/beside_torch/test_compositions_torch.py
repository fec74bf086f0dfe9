"""Random small functions, with updates in place, views, scatters and products, under random nests of transforms, beside torch.func.

torch's vmap is a loop here: in place it refuses much of what is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

# {t}: what the line makes; {a}, {b}, {c}: vectors of n that there are; {m}: one that the function made; {i}, {j}: places
LINES = [
    "{t} = ({a} * {b}).sin()", "{t} = {a}.cumsum(0) * 0.3 + {b}", "{t} = T.where({a} > {b} * 0.5, {a} * {b}, {b}.cos())",
    "{t} = ({a}[:, None] * {b}[None, :]) @ {c} / n", "{t} = T.outer({a}, {b}).sum(1) / n", "{t} = {a}.flip(0) + {b}.roll({i}, 0)",
    "{t} = {a}.softmax(0) * {b}", "{t} = {a}.clone(); {t}[{i}] = {b}[{j}] * 2", "{t} = {a} * 1.5; {t}[1:].mul_({b}[:-1])",
    "{t} = {a} + 0.1; {t}.view(-1, 1)[::2].add_({b}[::2, None])", "{t} = {a} / (1 + {b} * {b})",
    "{t} = {a}.index_put((T.tensor([{i}, {j}]),), {b}[:2], accumulate=True)", "{t} = {a}[T.tensor([{i}, {j}] * n)[:n]] * {b}",
    "{t} = {a} * 1; {t}.index_add_(0, T.tensor([{i}, {j}]), {b}[-2:])", "{t} = T.cat([{a}[n // 2:], {b}[:n // 2]]).tanh()",
    "{t} = T.stack([{a}, {b}]).reshape(-1)[::2] * 0.7", "{t} = {a}.max() * {b}", "{t} = {a}.logsumexp(0) + {b}.cumprod(0).clamp(-2, 2)",
    "{t} = {a} - 0.2; q = {t}[1:]; {t}.mul_({b}); {t} = {t} + q.sum()",
    "{t} = T.zeros_like({a}); {t}.copy_({b}); {t}[:1] = {a}[-1:].detach()", "{m}.add_({a}); {t} = {m} * {b}",
    "{m}[{i}:] = {a}[:1]; {t} = {m} * {b}", "{t} = {a} * {b} + {a}.mean()",
]
INSIDE = [
    "F.grad(lambda x: {f}(x, {b}).sum())({a})", "F.jvp(lambda x: {f}(x, {b}), ({a},), ({b},))[1]",
    "F.vjp(lambda x: {f}(x, {b}), {a})[1]({b})[0]", "F.jvp(F.grad(lambda x: {f}(x, {b}).sum()), ({a},), ({b},))[1]",
    "F.vmap(lambda y, z: {f}(y, z))(T.stack([{a}, {b}, {a} * {b}]), T.stack([{b}, {b}, {a}])).sum(0)",
    "F.vmap({f}, (1, None), 1)(T.stack([{a}, {b}], 1), {b}).mean(1)",
    "F.vmap(F.grad(lambda y, z: {f}(y, z).sum(), argnums=1))(T.stack([{a}, {b}]), T.stack([{b}, {a}])).sum(0)",
    "F.jacrev(lambda x: {f}(x, {b}))({a}).sum(0)", "F.jacfwd(lambda x: {f}(x, {b}))({a}) @ {b}",        # small n only
]
OUTSIDE: list[Callable[..., Any]] = [
    lambda F, f, x, xs, w: F.grad(lambda x: f(x, w).sum())(x), lambda F, f, x, xs, w: F.vmap(f, (0, None))(xs, w),
    lambda F, f, x, xs, w: F.jvp(lambda x: f(x, w), (x,), (xs[1],)), lambda F, f, x, xs, w: f(x, w),
    lambda F, f, x, xs, w: F.vmap(F.grad(lambda x, w: f(x, w).sum(), argnums=(0, 1)), (0, None))(xs, w),
    lambda F, f, x, xs, w: F.grad(lambda w: F.vmap(f, (0, None))(xs, w).sum())(w),
    lambda F, f, x, xs, w: F.jacrev(f, argnums=(0, 1))(x, w), lambda F, f, x, xs, w: F.jacfwd(f)(x, w),
]


def source(draw: random.Random, n: int) -> str:
    """Functions f0, f1, ... of two vectors of n, the last of which calls the others."""
    texts = []
    for depth in range(draw.choice([1, 2, 2, 3, 3])):
        names, made, lines = ["x", "w"], [], []
        for k in range(draw.randint(3, 8)):
            line = draw.choice([x for x in LINES if made or "{m}" not in x])
            a, b, c = (draw.choice(names) for _ in range(3))
            at = {"t": f"v{k}", "a": a, "b": b, "c": c, "m": draw.choice(made or [""]), "i": draw.randrange(n), "j": draw.randrange(n)}
            lines.append(line.format(**at))
            made += [f"v{k}"] if "_(" in line or "] =" in line else []
            names.append(f"v{k}")
        if depth:
            inside = draw.choice(INSIDE[:None if n < 14 else -2])
            lines.append(f"r = {inside.format(f=f'f{depth - 1}', a=draw.choice(names), b=draw.choice(names))}.clamp(-5, 5) * 0.5")
            lines.append(f"r = r * 1; r[1:].sub_({draw.choice(names)}[1:])")
        lines.append(f"return ({names[-1]}{' + r' * bool(depth)}).clamp(-8, 8)")
        texts.append(f"def f{depth}(x, w):\n" + "".join(f"    {line}\n" for line in lines))
    return "\n".join(texts)


def looped(fn: Any, in_dims: Any = 0, out_dims: int = 0) -> Any:
    """vmap as a loop."""
    def run(*args: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        outs = [fn(*(a if d is None else a.select(d, i).clone() for a, d in zip(args, dims, strict=True))) for i in range(size)]
        if isinstance(outs[0], tuple):
            return tuple(torch.stack(o, out_dims) for o in zip(*outs, strict=True))
        return torch.stack(outs, out_dims)

    return run


def jacrev(fn: Any, argnums: Any = 0) -> Any:
    """Without vmap."""
    def run(*args: Any) -> Any:
        out, pull = torch.func.vjp(fn, *args)
        rows = [pull(e) for e in torch.eye(out.shape[0], dtype=out.dtype)]
        blocks = tuple(torch.stack([row[k] for row in rows]) for k in ((argnums,) if isinstance(argnums, int) else argnums))
        return blocks[0] if isinstance(argnums, int) else blocks

    return run


def jacfwd(fn: Any) -> Any:
    """Without vmap."""
    return lambda x, *rest: torch.stack(
        [torch.func.jvp(lambda x: fn(x, *rest), (x,), (e,))[1] for e in torch.eye(x.shape[0], dtype=x.dtype)], 1)


TORCH = SimpleNamespace(grad=torch.func.grad, vjp=torch.func.vjp, jvp=torch.func.jvp, vmap=looped, jacrev=jacrev, jacfwd=jacfwd)


def results(T: Any, F: Any, wrap: Any, text: str, outside: Any, rows: Any, w: Any) -> list[Any]:
    """What a case gives, with the arguments untouched."""
    space: dict[str, Any] = {"T": T, "F": F, "n": len(w)}
    exec(text, space)
    f = space[f"f{text.count('def f') - 1}"]
    arrays = rows[0], rows, w
    tensors = [T.tensor(a) for a in arrays]
    found = wrap(lambda x, xs, w: outside(F, f, x, xs, w))(*tensors)
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array, err_msg=text)
    return [t.detach().numpy() for t in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("seed", range(8))
def test_compositions(seed: int) -> None:
    before, compared = tg.device(), 0
    tg.set_device("numpy")
    try:
        for case in range(40):
            draw = random.Random(seed * 1009 + case)
            n = draw.choice([3, 4, 5, 7, 8, 12, 13, 17, 33, 64, 65, 70])
            text, outside = source(draw, n), draw.choice(OUTSIDE[:None if n < 14 else -2])
            *rows, w = np.random.default_rng(seed * 1009 + case).standard_normal((4, n))
            try:
                expected = results(torch, TORCH, lambda f: f, text, outside, np.stack(rows), w)
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error):        # what torch saved was overwritten: no error here
                    raise
                continue
            if not all(np.isfinite(e).all() for e in expected):
                continue
            compared += 1
            for wrap in (lambda f: f, tg.trace):
                for found, wanted in zip(results(tg, tg.func, wrap, text, outside, np.stack(rows), w), expected, strict=True):
                    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8 * max(1.0, np.abs(wanted).max()), err_msg=text)
    finally:
        tg.set_device(before)
    assert compared > 25
