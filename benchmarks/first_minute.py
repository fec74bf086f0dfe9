"""How tracegrad feels in the first minute, beside torch: `make bench-first-minute`, `python -m benchmarks.first_minute --help`.

Two things are measured, each in fresh processes, with every cache on disk empty (cold) and with those that a first process left (warm):

- LINES, typed one after the other as in an interactive session: the time of each until its result is there; nothing is traced.
- PROGRAMS: small untraced programs as whole processes, from the start of Python to the end.

Then come the training programs of benchmarks/programs: as whole processes, and in the steady state, by turns with torch.

Lines and programs are written once: `T` is the framework's namespace, `F` its nn.functional, `grad` its functional gradient.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.programs import NAMES
from benchmarks.programs.timing import show

ROOT = Path(__file__).resolve().parent.parent

LINES = """
x = T.randn(64, 32); print(x)
print(x * 2)
y = T.linspace(0.0, 1.0, 100); print(y)
print(T.arange(12).reshape(3, 4))
z = T.rand(32, 16); print(z.mean())
print((x @ z).shape, (x @ z)[0])
print(x.sum(0))
print(x.mean(1)[:5])
print(x.var().item())
print(x.max(), x.argmax().item())
print(T.softmax(x, 1).sum(1)[:3])
print(T.exp(-y ** 2)[::10])
print((x > 0).sum())
print(x[3, 4:9])
print(x[T.tensor([1, 5, 2])].shape)
print(x.sort(1)[0][0])
print(x.topk(3, 1)[0][:2])
print(T.cumsum(y, 0)[-1])
print(T.where(x > 0, x, 0.1 * x)[0])
print(T.cat([x, x], 0).shape)
print(T.stack([y, y]).T[:2])
w = T.randn(32, 10, requires_grad=True); loss = (x @ w).tanh().sum(); print(loss)
loss.backward(); print(w.grad[0])
print(grad(lambda a: (a ** 3).sum())(y)[:4])
print(grad(lambda a: grad(lambda b: (b ** 3).sum())(a).sum())(y)[:4])
print(F.relu(x)[0])
print(F.gelu(x)[0])
print(F.layer_norm(x, (32,)).std())
k = T.randn(4, 3, 3, 3); i = T.randn(2, 3, 16, 16); print(F.conv2d(i, k, padding=1).shape)
print(F.conv2d(i, k, padding=1).mean())
print(F.max_pool2d(i, 2).sum())
print(F.cross_entropy(x @ w, T.arange(64) % 10))
i.add_(1.0); print(i.mean())
x[0] = 0.0; print(x[0].sum())
print(T.einsum('ij,jk->ik', x, z)[0, :3])
print(T.outer(y[:3], y[:4]))
m = T.nn.Linear(32, 8); print(m(x)[0])
F.mse_loss(m(x), T.zeros(64, 8)).backward(); print(m.weight.grad.abs().max())
print(T.linspace(-1.0, 1.0, 5).double().sigmoid())
print((x.T @ x).diagonal().sum())
""".strip().splitlines()


def mlp(f: Any) -> float:
    """100 steps of a two-layer network with AdamW; the loss is looked at in every step."""
    T, F = f.T, f.F
    T.manual_seed(0)
    model = T.nn.Sequential(T.nn.Linear(16, 32), T.nn.ReLU(), T.nn.Linear(32, 4))
    optimizer = T.optim.AdamW(model.parameters(), lr=1e-2)
    x = T.randn(64, 16)
    y = (x[:, :4]).argmax(1)
    loss = 0.0
    for _ in range(100):
        optimizer.zero_grad()
        error = F.cross_entropy(model(x), y)
        error.backward()
        optimizer.step()
        loss = error.item()
    return loss


def transformer(f: Any) -> float:
    """20 steps of a character model of two blocks, then 40 characters drawn greedily: every one has another length."""
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)
    text = "the quick brown fox jumps over the lazy dog. " * 8
    letters = sorted(set(text))
    data = T.tensor([letters.index(c) for c in text])
    width, heads, length = 32, 4, 16

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            q, k, v = (p.reshape(b, t, heads, width // heads).transpose(1, 2) for p in self.qkv(self.first(x)).split(width, dim=2))
            mask = T.ones(t, t).tril() == 0
            weights = T.softmax((q @ k.transpose(2, 3) * (width // heads) ** -0.5).masked_fill(mask, float("-inf")), -1)
            x = x + self.out((weights @ v).transpose(1, 2).reshape(b, t, width))
            return x + self.down(F.gelu(self.up(self.second(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.places = nn.Embedding(len(letters), width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(Block(), Block())
            self.head = nn.Linear(width, len(letters))

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.letters(x) + self.places(T.arange(x.shape[1]))))

    model = Model()
    optimizer = T.optim.AdamW(model.parameters(), lr=3e-3)
    loss = 0.0
    for step in range(20):
        starts = [(step * 37 + 41 * b) % (len(text) - length - 1) for b in range(8)]
        x = T.stack([data[s:s + length] for s in starts])
        y = T.stack([data[s + 1:s + length + 1] for s in starts])
        optimizer.zero_grad()
        error = F.cross_entropy(model(x).reshape(-1, len(letters)), y.reshape(-1))
        error.backward()
        optimizer.step()
        loss = error.item()
    with T.no_grad():
        drawn = [0]
        for _ in range(40):
            x = T.tensor([drawn[-length:]])
            drawn.append(int(model(x)[0, -1].argmax().item()))
    return loss


def reinforce(f: Any) -> float:
    """20 episodes of a walk that a policy learns to end soon; each has a length of its own."""
    T = f.T
    T.manual_seed(0)
    policy = T.nn.Sequential(T.nn.Linear(2, 16), T.nn.Tanh(), T.nn.Linear(16, 2))
    optimizer = T.optim.Adam(policy.parameters(), lr=1e-2)
    state, total = 12345, 0.0
    for _ in range(20):
        place, chances = 0, []
        while abs(place) < 4 and len(chances) < 60:
            logits = policy(T.tensor([place / 4.0, 1.0]))
            state = (1103515245 * state + 12345) % 2**31            # the same walk for every framework
            right = state / 2**31 < T.softmax(logits, -1)[1].item()
            chances.append(T.log_softmax(logits, -1)[int(right)])
            place += 1 if right else -1
        gain = 1.0 if place > 0 else -1.0
        loss = -gain * T.stack(chances).sum() / len(chances)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += gain
    return total


PROGRAMS: dict[str, Callable[[Any], float]] = {"mlp": mlp, "transformer": transformer, "reinforce": reinforce}


def framework(name: str) -> Any:
    """T, F and grad of the framework."""
    if name == "torch":
        import torch

        return SimpleNamespace(T=torch, F=torch.nn.functional, grad=torch.func.grad)
    import tracegrad

    return SimpleNamespace(T=tracegrad, F=tracegrad.nn.functional, grad=tracegrad.grad)


def work(what: str, name: str) -> None:
    """In a process of its own: do it, and print what was measured as JSON."""
    f = framework(name)
    if what != "lines":
        print(json.dumps(PROGRAMS[what](f)))
        return
    f.T.manual_seed(0)
    names, times = dict(vars(f)), []
    for line in LINES:
        with contextlib.redirect_stdout(io.StringIO()):
            start = time.perf_counter()
            exec(line, names)
            times.append(time.perf_counter() - start)
    print(json.dumps(times))


def measure(python: str, name: str, what: str, caches: str) -> tuple[float, Any]:
    """Seconds of the whole process, and what it printed."""
    environment = {**os.environ, "XDG_CACHE_HOME": caches, "POCL_CACHE_DIR": f"{caches}/pocl", "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run([python, "-m", "benchmarks.first_minute", "--work", what, "--framework", name], cwd=ROOT, env=environment,
                          capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{name}: {what} failed: {done.stderr.strip().splitlines()[-1]}")
    return seconds, json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default="", help="an interpreter that has torch; without it, its columns are empty")
    parser.add_argument("--slowest", type=int, default=5, help="how many of the slowest lines to show")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--framework", default="tracegrad", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.framework)
        return
    contenders = {"tracegrad": sys.executable, **({"torch": options.peer_python} if options.peer_python else {})}
    found: dict[tuple[str, str], str] = {}
    slow: list[str] = []
    for name, python in contenders.items():
        for what in ("lines", *PROGRAMS):
            with tempfile.TemporaryDirectory() as caches:
                for state in ("cold", "warm"):
                    seconds, result = measure(python, name, what, caches)
                    if what == "lines":
                        found[f"{len(LINES)} lines, {state}: median", name] = f"{1e3 * statistics.median(result):.2f} ms"
                        found[f"{len(LINES)} lines, {state}: longest", name] = f"{1e3 * max(result):.1f} ms"
                        found[f"{len(LINES)} lines, {state}: process", name] = f"{seconds:.2f} s"
                        if (name, state) == ("tracegrad", "cold"):
                            slow = [f"{1e3 * t:7.1f} ms  {line}" for t, line in sorted(zip(result, LINES, strict=True), reverse=True)]
                    else:
                        found[f"{what}, {state}: process", name] = f"{seconds:.2f} s"
                        found[f"{what}: result", name] = f"{result:.4f}"
    print(f"{'':32}{'tracegrad':>12}{'torch':>12}")
    for row in dict.fromkeys(row for row, _ in found):
        print(f"{row:32}{found.get((row, 'tracegrad'), ''):>12}{found.get((row, 'torch'), ''):>12}")
    print("\nslowest lines, cold:\n" + "\n".join(slow[: options.slowest]) + "\n")
    show(NAMES, contenders)


if __name__ == "__main__":
    main()
