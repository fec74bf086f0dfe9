"""Remedies in `explain()` and `profile()`: each slow program is told its own, at the user's line; what it proposes is better by a count."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.inspection.profiling import KernelTime, Profile, slow_float64
from tracegrad.runtime.limits import Limits
from tracegrad.support.plan import HostStep, Launch

pytestmark = pytest.mark.usefixtures("kernels")
RNG = np.random.default_rng(0)


def random(*shape):
    return tg.tensor(RNG.normal(size=shape).astype(np.float32))


A, B, V = random(120, 120), random(120, 120), random(120)
INDEX = tg.tensor(RNG.integers(0, 500, 60))
STEPS = tg.arange(1.0, 21.0)


def irregular(a, v, steps):
    for k in range(20):
        v = (a @ v).tanh() * (k + 1)
    return v


def chained(a, v):
    for _ in range(20):
        v = (a @ v).tanh()
    return v


def each(a, b):
    return [a[k] @ b[k] for k in range(20)]


# name: (slow, fast, arguments, what is told, what is smaller)
SLOW = {
    "product of product": (lambda a, b, v: (a @ b) @ v, lambda a, b, v: a @ (b @ v), (A, B, V), "a @ (b @ c)", "flops"),
    "and from the left": (lambda a, b, v: v[None] @ (a @ b), lambda a, b, v: (v[None] @ a) @ b, (A, B, V), "(a @ b) @ c", "flops"),
    "one-hot": (lambda i, w: tg.nn.functional.one_hot(i, 500).float() @ w, lambda i, w: w[i], (INDEX, random(500, 32)), "weight[index]",
                "flops"),
    "diagonal matrix": (lambda v, a: tg.diag(v) @ a, lambda v, a: v[:, None] * a, (V, A), "v[:, None] * a", "flops"),
    "and from the right": (lambda v, a: a @ tg.diag(v), lambda v, a: a * v, (V, A), "a * v", "flops"),
    "inverse": (lambda a, v: tg.linalg.inv(a) @ v, tg.linalg.solve, (A, V), "tg.linalg.solve(a, b)", "steps"),
    "diagonal": (lambda a, b: (a @ b).diagonal(), lambda a, b: (a * b.T).sum(1), (A, B), "(a * b.T).sum(1)", "flops"),
    "trace": (lambda a, b: (a @ b).trace(), lambda a, b: (a * b.T).sum(), (A, B), "(a * b.T).sum(1)", "flops"),
    "sort": (lambda x: x.sort(descending=True)[0][:5], lambda x: x.topk(5)[0], (random(3000),), "tg.topk(x, 5)", "flops"),
    "sorted rows": (lambda x: x.sort(1)[0][:, :5], lambda x: x.topk(5, 1, largest=False)[0], (random(30, 200),), "tg.topk(x, 5)", "flops"),
    "broadcast sum": (lambda a, b: (a[:, None, :] * b[None]).sum(-1), lambda a, b: a @ b.T, (A, B), "tg.einsum", "loads"),
    "in the middle": (lambda a, b: (a[:, :, None] * b).sum(1), lambda a, b: a @ b, (A, B), "tg.einsum", "loads"),
    "chain": (chained, lambda a, v: tg.scan(lambda c, _: ((a @ c).tanh(), None), v, None, length=20)[0], (A, V), "tg.scan", "launches"),
    "irregular chain": (irregular, lambda a, v, s: tg.scan(lambda c, k: ((a @ c).tanh() * k, None), v, s)[0],
                        (random(300, 300), random(300), STEPS), "tg.scan", "launches"),
    "batch": (each, lambda a, b: a @ b, (random(20, 64, 64), random(20, 64, 64)), "stack their operands", "launches"),
}
FAST = {f"{name}, applied": (fast, given) for name, (_, fast, given, _, _) in SLOW.items()} | {
    "the product is used again": (lambda a, b, v: (lambda p: (p @ v, p.sum()))(a @ b), (A, B, V)),
    "as dear either way": (lambda a, b: (a @ b) @ a, (A, B)),
    "a small product of products": (lambda a, b, v: (a @ b) @ v, (A[:20, :20], B[:20, :20], V[:20])),
    "a mask that is no one-hot": (lambda a, b: (a > 0).float() @ b, (A, B)),
    "a diagonal that is added": (lambda v, a: tg.diag(v) + a, (V, A)),
    "two uses of an inverse": (lambda a, v: (lambda i: (i @ v, i.sum()))(tg.linalg.inv(a)), (A, V)),
    "a diagonal beside the product": (lambda a, b: (lambda p: (p.diagonal(), p))(a @ b), (A, B)),
    "most of a sort": (lambda x: x.sort()[0][:2000], (random(3000),)),
    "the middle of a sort": (lambda x: x.sort()[0][1000:1010], (random(3000),)),
    "ranks": (lambda x: x.argsort()[:5] + x.argsort().argsort()[7], (random(3000),)),
    "a short broadcast sum": (lambda a, b: (a[:, None, :3] * b[None, :, :3]).sum(-1), (A, B)),
    "a weighted sum": (lambda a, v: (a * v).sum(1), (A, V)),
    "a sum over what is not broadcast": (lambda a, b: (a * b).sum(1), (A, B)),
    "a broadcast product that is used": (lambda a, b: (lambda p: (p.sum(1), p))(a[:, :, None] * b), (A, B)),
    "large steps": (lambda a: [a := (a @ a).tanh() for _ in range(20)][-1], (random(200, 200),)),
    "a few steps": (lambda a, v: [v := (a @ v).tanh() for _ in range(5)][-1], (A, V)),
    "a gradient": (tg.grad(lambda a, b, v: ((a @ (b @ v)) ** 2).sum()), (A, B, V)),
}


def traced(fn, args):
    def program(*args):
        return fn(*args)

    f = tg.trace(program)
    return f, f(*args)


def counts(f):
    """loads: of a product that is not in register tiles, each number is loaded once for each result."""
    steps = list(f.plan.each())
    launches = [(s, n) for s, n in steps if isinstance(s, Launch)]
    hosts = sum(n for s, n in steps if isinstance(s, HostStep))
    count = sum(n for _, n in launches)
    tiled = any("register tiles" in s.note or "products of blocks" in s.note for s, _ in launches)
    return {"flops": sum(s.flops * n for s, n in launches), "launches": count, "steps": count + hosts, "loads": 0 if tiled else 1}


def told(text):
    return [line.strip() for line in text.splitlines() if "remedy" in line]


LONG = ("irregular chain", "irregular chain, applied", "large steps", "chain, applied")             # which a driver builds for long
SLOW_NAMES, FAST_NAMES = ([pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in names] for names in (SLOW, FAST))


@pytest.mark.parametrize("name", SLOW_NAMES)
def test_is_told_and_better(name):
    slow, fast, given, text, what = SLOW[name]
    f, expected = traced(slow, given)
    remedy, = told(f.explain())
    first, last = slow.__code__.co_firstlineno, max(line for *_, line in slow.__code__.co_lines() if line)
    line = int(remedy.partition("(line ")[2].partition(")")[0])
    assert first <= line <= last
    assert text in remedy
    other, found = traced(fast, given)
    expected = tg.stack(expected) if isinstance(expected, list) else expected
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-2, atol=2e-2)
    assert counts(other)[what] < counts(f)[what]


@pytest.mark.parametrize("name", FAST_NAMES)
def test_is_not_told(name):
    fn, given = FAST[name]
    assert told(traced(fn, given)[0].explain()) == []


def test_a_profile_has_them():
    f, _ = traced(SLOW["product of product"][0], (A, B, V))
    found = f.profile(2)
    assert found.remedies == told(f.explain())
    assert told(str(found)) == found.remedies


def test_float64_where_it_is_slow():
    """Of kernels that its arithmetic bounds, on devices that compute it in a fraction of float32's rate; float32 is not bound by it."""
    most = Limits(bandwidth=1e11, float32=3.2e12, float64=1e11)

    def row(limit, itemsize):
        return KernelTime("y_k0", 1, 1e-3, 1000, 10**8, 0.9, limit, "line 7", itemsize)

    remedy, = slow_float64([row("arithmetic", 8)], most)
    assert remedy.startswith("remedy (line 7): y_k0 is bound by float64's arithmetic, which takes 32 times as long")
    assert "x.float()" in remedy
    assert slow_float64([row("memory", 8), row("arithmetic", 4)], most) == []
    assert slow_float64([row("arithmetic", 8)], Limits(bandwidth=1e11, float32=2e11, float64=1e11)) == []
    assert slow_float64([row("arithmetic", 8)], Limits(bandwidth=1e11, float32=2e11, float64=0.0)) == []
    assert remedy in str(Profile("f", "d", [row("arithmetic", 8)], 1e-3, 1, most, [remedy]))
