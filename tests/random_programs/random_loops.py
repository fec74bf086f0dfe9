"""Random training loops as people write them: carried state, parameters written by hand, views, blocks of no_grad. Start at `loop`.

A loop is text, of a library's namespace T and of arrays, so that torch can run it, too. All iterations have one structure: what is recalled
of the first iterations is used in the later ones. Between them it keeps vectors a, b, a matrix m (none requires grad), a view `tail` of
a vector that is written in place, and the parameters p, q (vectors) and W.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

TURNS = 9
SIZES = (12, 31, 65, 130)
EXPRESSIONS = (                 # of vectors x, y; n: their length, c: a small number
    "({x} + {y}) * 0.5", "{x} * {y}", "{x}.sin()", "{x} - {x}.mean()", "T.where({x} > {y}, {x}, {y} * 0.5)", "{x}.tanh() + {y}[{c}]",
    "T.cat([{x}[{c}:], {y}[:{c}]])", "{x}.clamp(-1, 1)", "{x} / (1 + {y}.abs())", "{x}.cumsum(0) / {n}", "{x}.roll({c})",
    "(m @ W).mean(1) * {x}", "{x}.softmax(0) * {n}", "({x} - {y}) * 0.1 + 0.9 * {x}", "{x}.flip(0)", "{x}.detach().sort()[0]",
    "m[:, {d}] * 0.5 + {x}", "T.exp(-{x} * {x})", "{x}.reshape(1, -1).expand(3, -1).sum(0) / 4", "{x}.relu() - 0.1 * {y}", "{x}[order]",
    "{x}.masked_fill({y} > 0.5, 0.3)", "T.stack([{x}, {y}])[{d} % 2]", "T.nn.functional.linear(m, W, {x}[:4])[:, {d}] + {y}",
    "{x} * float({c}) / 8", "{x}.view(-1, 1).squeeze(1)",
)  # fmt: skip
LOOKS = (                       # statements that need the values
    "out.append(float(({e}).sum().item()))", "out.append({v}.tolist()[3])",
    "out.append(float(({e}).detach().numpy().max()))", "if float(({e}).mean()) > 0.1: b = b * 0.8",
)  # fmt: skip
WRITES = (                      # statements inside no_grad
    "{w}.mul_(0.99).add_({e}, alpha=0.01)", "{w}[{c}:{c} + 4] = ({e})[:4] * 0.5", "{v}.lerp_({e}, 0.2)", "m[:, {d}] = {e}",
    "m = m * 0.9 + ({e})[:, None] * 0.1", "W -= 0.01 * W.clamp(-1, 1)", "i = int(({e}).argmax()); a[i] = a[i] * 0.5",
    "a[t % 5] = b[(t + 1) % 7] + {v}.max()", "part = a[2:9]; part.mul_(0.5); b[1:8] += part", "tail.add_(0.1)", "ring += ({e}) * 0.1",
    "{v}.copy_({e})", "{w}[{w} > 1.2] = 0.25", "{w}.data = {w}.data * 0.95", "out.append(float({w}.norm()))",
)  # fmt: skip
CARRIES = (
    "{v} = ({e}).detach()", "{v} = {v}.detach() * 0.9 + ({e}).detach() * 0.1", "{v} = ({e}).clone().detach()",
    "m = m.detach() + 0.1 * ({e})[:, None].detach()",
)  # fmt: skip
STEPS = {                       # how the parameters are brought forward
    "SGD": "T.optim.SGD([p, q, W], lr=0.05, momentum=0.9)",
    "Adam": "T.optim.Adam([{{'params': [p, q]}}, {{'params': [W], 'lr': 0.01}}], lr=0.02)",
    "for w in (p, q, W): w.sub_(0.05 * w.grad)": "None",
    "for w in (p, q, W): w -= 0.05 * w.grad / (w.grad.norm() + 1)": "None",
}  # fmt: skip


def loop(seed: int) -> str:
    """The text of a function run(T, R, res): R(*shape) makes a tensor of normal numbers, res gets arrays of every iteration."""
    rnd = random.Random(seed)
    n, made, lines = rnd.choice(SIZES), list[str](), list[str]()

    def fill(text: str, depth: int = 2) -> str:
        names = ["a", "b", "p", "q", *made[-6:]]
        e = fill(rnd.choice(EXPRESSIONS), depth - 1) if depth else ""
        numbers = {"c": rnd.randrange(1, 7), "d": rnd.randrange(4), "n": n}
        return text.format(x=rnd.choice(names), y=rnd.choice(names), v=rnd.choice("ab"), w=rnd.choice("abpq"), e=e, **numbers)

    def statements(count: int, indent: str, writes: bool) -> None:
        for _ in range(count):
            kind = rnd.random()
            if kind < 0.5:
                lines.append(f"{indent}t{len(made)} = {fill(rnd.choice(EXPRESSIONS))}")
                made.append(f"t{len(made)}")
            elif kind < 0.6:
                lines.append(indent + fill(rnd.choice(LOOKS)))
            elif kind < 0.7 or not writes:
                lines.append(indent + fill(rnd.choice(CARRIES)))
            else:
                lines.append(indent + fill(rnd.choice(WRITES)))

    indent, block = " " * 8, " " * 12
    statements(rnd.randrange(1, 5), indent, False)
    if rnd.random() < 0.5:
        lines.append(f"{indent}with T.no_grad():")
        statements(rnd.randrange(2, 6), block, True)
    statements(rnd.randrange(4), indent, False)
    lines.append(f"{indent}loss = (({fill('{e}')}) * ({fill('{e}')})).sum() * 0.1 + (W * W).sum() * 0.01 + (p * q).sum() * 0.01")
    step, optimizer = rnd.choice(list(STEPS.items()))
    lines.append(f"{indent}for w in (p, q, W): w.grad = None")
    by_hand = "for w, g in zip((p, q, W), T.autograd.grad(loss, (p, q, W))): w.grad = g"
    lines.append(indent + rnd.choice(["loss.backward()", "loss.backward()", by_hand]))
    if rnd.random() < 0.3:
        lines.append(f"{indent}T.nn.utils.clip_grad_norm_([p, q, W], 1.0)")
    if not step.startswith("for"):
        lines.append(f"{indent}optimizer.step()")
    lines.append(f"{indent}with T.no_grad():")
    if step.startswith("for"):
        lines.append(block + step)
    statements(rnd.randrange(5), block, True)
    lines.append(f"{block}a, b, m = a.tanh() * 2, b.tanh() * 2, m.tanh() * 2")                # nothing grows
    lines.append(f"{block}p.tanh_().mul_(2); q.tanh_().mul_(2); ring.tanh_()")
    if rnd.random() < 0.5:
        lines.append(f"{indent}out.append(loss.item())")
    return "\n".join([
        "def run(T, R, res):",
        f"    a, b, p, q, ring, m, W = R({n}), R({n}), R({n}), R({n}), R({n}), R({n}, 4), R(4, 4)",
        f"    tail, order = ring[3:], T.arange({n}) * 5 % {n}",
        "    for w in (p, q, W): w.requires_grad_()",
        f"    optimizer, out = {optimizer.format()}, []",
        f"    for t in range({TURNS}):",
        *lines,
        "        res.append([x.detach().numpy().copy() for x in (a, b, m, p, q, W, ring, tail)] + [np.array(out)]); out = []",
    ])


def run(text: str, T: Any, dtype: Any = np.float64) -> list[list[Any]]:
    """The state after each iteration, as arrays."""
    rng = np.random.default_rng(5)
    names: dict[str, Any] = {"np": np}
    found: list[list[Any]] = []
    exec(compile(text, "<a random loop>", "exec"), names)
    names["run"](T, lambda *shape: T.from_numpy(rng.standard_normal(shape).astype(dtype)), found)
    return found


def difference(found: list[list[Any]], expected: list[list[Any]], rtol: float = 1e-6, atol: float = 1e-8) -> str:
    """Where two runs differ; "" if they do not."""
    for repeat, (mine, others) in enumerate(zip(found, expected, strict=True)):
        for name, x, y in zip(("a", "b", "m", "p", "q", "W", "ring", "tail", "out"), mine, others, strict=True):
            if x.dtype != y.dtype or x.shape != y.shape or not np.allclose(x, y, rtol, atol, equal_nan=True):
                return f"{name} after iteration {repeat}: {x!r} instead of {y!r}"
    return ""
