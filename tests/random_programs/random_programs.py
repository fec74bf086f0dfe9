"""Random programs as Python text: `random_program` draws one, `programs()` is hypothesis' strategy, `Program.function` makes it callable.

A program takes tensors and one Python float and returns some of what it computed. Its lines are drawn one by one and tried on the
interpreter at once, for two sets of inputs, so that every program is a valid one whose results can be compared: rows have up to 300
elements, values stay below 1e3, and an operation with jumps or kinks (a comparison, amax, floor, sort) reads exact values only. Exact
are small multiples of 1/64, which addition and multiplication of any order keep; every function of floats alone is followed by a factor
that leaves no such number.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tracegrad as tg
from tests.ops.test_registry import OPS, cases
from tracegrad.graph.operation_families import Elementwise
from tracegrad.nn import functional as F

SETS = 2                                # sets of inputs that a program is valid for
FLOATS = (1.0, 0.75)                    # the Python float of each
SIZE, BOUND = 6000, 1e3                 # elements of a value, and how large they are at most
FEW = (1, 2, 3, 4, 5, 8)                # elements of a dimension: fewer than a vector has, and
ORDINARY = (7, 13, 16, 17, 24, 31, 33, 40, 64, 65, 100, 127, 128, 129, 257, 300)     # of rows with an inside, edges and a rest
BOUNDARIES = ("copy", "detach", "variable", "elementwise", "overwritten", "refilled")
POINTWISE = [op for op in OPS if isinstance(op, Elementwise) and op.name not in BOUNDARIES and not op.cases
             and not getattr(op, "constants", ())]       # these have operands without a derivative
SHAPED = [op for op in OPS if op.cases and op.name not in BOUNDARIES and op.family not in ("leaf", "host_call")]


def fit(x: Any, shape: tuple[int, ...]) -> Any:
    """The elements of x, in order and over again, in another shape."""
    count = int(np.prod(shape))
    flat = x.reshape(-1)
    return flat.repeat(-(-count // x.numel()))[:count].reshape(shape)


def stencil(x: Any, steps: int) -> Any:
    """Neighbours of a row whose ends are padded, several times."""
    for _ in range(steps):
        p = F.pad(x, (1, 1))
        x = x * 0.5 + (p[..., 2:] + p[..., :-2]) * 0.25
    return x


def ring(x: Any, steps: int) -> Any:
    """The same on a ring."""
    for _ in range(steps):
        x = x * 0.5 + (x.roll(1, -1) + x.roll(-2, -1)) * 0.25
    return x


WORLD = {"tg": tg, "F": F, "fit": fit, "stencil": stencil, "ring": ring, "op": SimpleNamespace(**{op.name: op for op in OPS})}


@dataclass
class Program:
    """lines: the body. inputs: the sets of arrays, by parameter name. outputs: the names that it returns."""

    lines: list[str]
    inputs: list[dict[str, Any]]
    outputs: list[str] = field(default_factory=list)
    in_place_on_inputs: bool = False
    reads: tuple[int, ...] = ()         # after which lines to look at the last value

    def text(self, reads: bool = False) -> str:
        body = []
        for i, line in enumerate(self.lines):
            body.append(f"    {line}")
            if reads and i in self.reads and (target := re.match(r"(v\d+) = ", line)):
                body.append(f"    {target[1]}.reshape(-1)[-1:].sum().item()")      # of all, terms may cancel
        return "\n".join([f"def program({', '.join(self.inputs[0])}, c):", *body, f"    return {', '.join(self.outputs)},"]) + "\n"

    def function(self, reads: bool = False) -> Callable[..., Any]:
        """The program as a function of its own."""
        text = self.text(reads)
        filename = f"<program {hash(text):x}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        world = dict(WORLD)
        exec(compile(text, filename, "exec"), world)
        found: Callable[..., Any] = world["program"]
        return found

    def arrays(self, which: int) -> list[Any]:
        return list(self.inputs[which].values())

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {a.dtype}{list(a.shape)}" for name, a in self.inputs[0].items())
        return f"Program({shapes})\n{self.text()}"


class Trial:
    """The program so far, executed on the interpreter for every set of inputs."""

    def __init__(self, inputs: list[dict[str, Any]]) -> None:
        self.inputs = inputs
        self.lines: list[str] = []
        self.count = 0
        self.writes_inputs = False
        self.worlds = [{**WORLD, "c": c, **{k: tensor(a) for k, a in arrays.items()}} for c, arrays in zip(FLOATS, inputs, strict=True)]

    def names(self, kinds: str = "f", rank: int = 0) -> list[str]:
        world = self.worlds[0]
        return [n for n in world if re.fullmatch(r"[akv]\d+", n) and world[n].dtype.kind in kinds and world[n].ndim >= rank and n[0] != "k"]

    def value(self, name: str, which: int = 0) -> Any:
        return self.worlds[which][name].numpy()

    def is_input(self, name: str) -> bool:
        """Whether writing `name` writes an input: it is one, or a view of one."""
        tensor = self.worlds[0][name]
        while tensor._base is not None:
            tensor = tensor._base
        return any(tensor is self.worlds[0][n] for n in self.inputs[0])

    def bound(self, name: str) -> float:
        return max((float(np.max(np.abs(self.value(name, i)), initial=0)) for i in range(SETS)), default=0.0)

    def exact(self, name: str) -> bool:
        return all(exact(self.value(name, i)) for i in range(SETS))

    def constant(self, array: Any) -> str:
        """A further input that holds `array`."""
        name = f"k{len(self.inputs[0])}"
        for arrays, world in zip(self.inputs, self.worlds, strict=True):
            arrays[name] = array
            world[name] = tensor(array)
        return name

    def add(self, expression: str, in_place: str = "") -> bool:
        """Append `v = expression`, or the statement `expression` that changes `in_place`, if it keeps to the rules."""
        new = in_place or f"v{self.count}"
        line = expression if in_place else f"{new} = {expression}"
        used = [n for n in self.names("biuf") if re.search(rf"\b{n}\b", line) and n in self.worlds[0]]
        if not all(map(self.exact, used)) and not self.smooth(line, new, used):
            return False
        tried = []
        for world in self.worlds:
            copy = detached(world) if in_place else dict(world)
            exec(line, copy)
            if not ordinary(copy[new]) or (in_place and not all(ordinary(copy[n]) for n in self.names())):
                return False
            tried.append(copy)
        if in_place:
            for world in self.worlds:
                exec(line, world)
            self.writes_inputs |= self.is_input(in_place)
        else:
            self.worlds = tried
            self.count += 1
        self.lines.append(line)
        return True

    def smooth(self, line: str, new: str, used: list[str]) -> bool:
        """Whether `line` has neither jumps nor kinks nor large slopes near the present values, by differences."""
        for world in self.worlds:
            rng = np.random.default_rng(5)
            values = {n: world[n].numpy() for n in used}
            h = {n: 1e-3 * rng.choice([-1.0, 1.0], a.shape) if a.dtype.kind == "f" else 0 for n, a in values.items()}
            found = []
            for sign in (0, 1, -1):
                shifted = {n: (a + sign * h[n]).astype("float64") if a.dtype.kind == "f" else a for n, a in values.items()}
                moved = {**world, **{n: tensor(a) for n, a in shifted.items()}}
                exec(line, moved)
                if moved[new].dtype.kind == "c":             # complex numbers have tests of their own
                    return False
                found.append(np.asarray(moved[new].numpy(), "float64"))
            middle, up, down = found
            if not np.all(np.abs(up - down) < 0.1) or not np.all(np.abs(up + down - 2 * middle) < 1e-4):
                return False
        return True


def tensor(array: Any) -> tg.Tensor:
    return tg.tensor(array, device="numpy")


def detached(world: dict[str, Any]) -> dict[str, Any]:
    """The same world with tensors of its own (aliasing is lost)."""
    return {n: v.clone() if isinstance(v, tg.Tensor) else v for n, v in world.items()}


def exact(value: Any) -> bool:
    return value.dtype.kind != "f" or bool(np.all(value * 64 == np.round(value * 64)) and np.all(np.abs(value) < 4096))


def ordinary(result: Any) -> bool:
    """Whether a result is something to go on with: a small tensor of moderate finite values."""
    if not isinstance(result, tg.Tensor) or result.dtype.kind == "c" or not 0 < result.numel() <= SIZE or result.ndim > 5:
        return False
    return bool(np.all(np.abs(result.numpy().astype("float64")) < BOUND))


# ------------------------------------------------------------------------------------------------------------------ one line


UNARY = [       # x: a value of one dimension or more, d: one of them, n: its size, i: an index into it, s: a slice
    "x.sum(d)", "x.sum()", "x.mean(d, keepdim=True)", "x.amax(d)", "x.amin(d, keepdim=True)", "x.prod(d) * 0.0731", "x.cumsum(d)",
    "x.max(d)[0]", "x.softmax(d) * 1.37", "x.log_softmax(d) * 0.731", "x.logsumexp(d) * 0.731", "(x * x + 1.0).norm(dim=d) * 0.731",
    "x.argmax(d)", "x.sort(d)[0]", "x.sort(d, descending=True)[1]", "x.topk(1 + n // 2, d)[0]", "x.reshape(-1)", "x.flatten()",
    "x.transpose(0, d)", "x.flip(d)", "x.unsqueeze(d)", "x.roll(1, d)", "x.select(d, i)", "x[i0]", "x[::2]", "x[..., s]", "x[..., None]",
    "x[None].expand(2, *x.shape)", "x.narrow(d, 0, 1 + n // 2)", "tg.cat([x, x * c], d)", "tg.stack([x, x + 1.0], d)", "x.relu()",
    "x.clamp(-1.0, 0.5)", "F.leaky_relu(x, 0.25)", "F.gelu(x * 0.1) * 0.731", "F.silu(x * 0.1) * 0.731", "(x > 0).sum(d)",
    "tg.where(x > 0, x, x * 0.5)", "x.to(tg.int32)", "x.to(tg.float64)", "x.to(tg.float32)", "(x + 0.5).floor()", "x.detach().clone()",
    "x.clone()", "F.pad(x, (1, 2), value=0.5)", "x.index_select(d, fit(k, (3,)) % n)", "x[fit(k, (4,)) % n0]",
    "x.masked_fill(x < 0, 2.0)", "x.tril()", "x.triu()", "x.unbind(d)[i]", "x.chunk(2, d)[0]", "x.squeeze()", "x.T", "x.diagonal()",
    "x.var(d, correction=0) * 0.0731", "x * c", "x - c * 0.5", "x.square()", "F.one_hot(fit(k, (3,)) % 4, 4)",
    "x.repeat_interleave(2, d)", "F.layer_norm(x, x.shape[-1:]) * 0.0731", "x.count_nonzero(d)",
]
ROWS = [        # what moves or combines the elements of a row: the same letters
    "x.roll(i, d)", "x.roll(-2, d) - x.roll(1, d)", "x.flip(d)[..., ::2]", "F.pad(x, (2, 1)).roll(1, -1)", "F.pad(x, (0, 3), value=1.5)",
    "F.pad(x, (3, -1))", "F.pad(x, (1, 1), mode='replicate')", "F.pad(x, (1, 2), mode='circular')", "x[..., 1:] - x[..., :-1]",
    "x[..., n // 3:]", "x[..., 1::3]", "x.cumsum(d).flip(d)", "x.flip(d).cumsum(d)", "(x * 0.01 + 1.0).cumprod(-1) * 0.731",
    "(x * 0.01 + 1.0).prod(d) * 0.731", "stencil(x, 3) * 0.731", "stencil(x, 1)", "ring(x, 2) * 0.731", "ring(x.flip(-1), 1)",
    "tg.cat([x.narrow(d, n // 2, n - n // 2), x.narrow(d, 0, n // 2)], d)", "tg.cat([x[..., 1:], x[..., :1] * 0.5], -1)",
    "x.gather(d, fit(k, x.shape) % n)", "x.index_select(d, fit(k, (n,)) % n)", "x.index_add(d, fit(k, (n,)) % n, x)",
    "x.scatter_add(d, fit(k, x.shape) % n, x)", "x - x.mean(d, keepdim=True)", "x.sum(d, keepdim=True) * x * 0.0078125",
    "tg.tanh(x).flip(d).softmax(d) * 1.37", "F.layer_norm(tg.tanh(x), x.shape[-1:]) * 0.0731", "x.unfold(d, 3, 2)",
    "x.unfold(d, 2, 1).sum(-1)",
    "(x - x.amax(d, keepdim=True)).exp().sum(d, keepdim=True) * 0.0731", "x.transpose(0, d).cumsum(0)",
    "x.amax(d, keepdim=True) - x.roll(1, d)",
    "F.rms_norm(x + 2.5, x.shape[-1:]) * 0.0731", "x.flip(d).argmax(d)", "x.roll(2, d).sort(d)[0]", "(x.roll(1, d) > x).sum(d)",
    "(x - 5.0).amax(d)", "(x + 5.0).amin(d, keepdim=True)", "(x - 5.0).amax()", "(x - 5.0).max(d)[1]",
    "(tg.tanh(x) - tg.tanh(x).amax(-1, keepdim=True) + tg.tanh(x).flip(-1)) * 0.731",
    "(tg.tanh(x).softmax(-1) * tg.tanh(x).roll(1, -1)) * 0.731", "x.argmax(0)", "(x - 5.0).amax(0)",
    "fit(x, (n, 3)).sum(0)", "fit(x, (2, n, 3)).amax(1) * fit(x, (2, 1)).sum()", "fit(x, (n, 4)).mean((0,), keepdim=True) * x.sum()",
    "(fit(x, (n, 3)) / (1.0 + fit(x, (n, 3)).square().sum(-1, keepdim=True))).sum(0)", "fit(x, (n, 2)).flip(-1).sum(0)",
    "(x.sum(0, keepdim=True) + x.sum(-1, keepdim=True)) * 0.0731", "x.amax(0, keepdim=True) * x.sum(-1, keepdim=True) * 0.0731",
    "x.reshape(-1).roll(3).reshape(*x.shape)", "x.expand(3, *x.shape).sum(0)", "x.reshape(*x.shape[::-1]).transpose(0, -1)",
]
BINARY = [      # y: any other value of the same kind
    "x + y", "x * y", "x - y", "tg.maximum(x, y)", "tg.where(x > y, x, y)", "x @ y", "x @ y.T", "x.T @ y",
    "tg.outer(x.reshape(-1), y.reshape(-1))", "fit(x, (2, 3, 4)) @ fit(y, (2, 4, 5))",
    "tg.einsum('ij,kj->ki', fit(x, (3, 4)), fit(y, (5, 4)))", "x / (y * y + 1.0) * 0.731",
    "F.conv2d(fit(x, (1, 2, 5, 4)), fit(y, (3, 2, 3, 2)), padding=1) * 0.125",
    "F.conv1d(fit(x, (2, 4, 9)), fit(y, (4, 2, 3)), stride=2, groups=2)", "F.max_pool2d(fit(x, (1, 2, 4, 6)), 2)",
    "F.avg_pool2d(fit(x, (1, 2, 6, 4)), 2)", "fit(x, (5, 3)).index_add(0, fit(k, (4,)) % 5, fit(y, (4, 3)))",
    "fit(x, (5, 3)).scatter_add(0, fit(k, (4, 3)) % 5, fit(y, (4, 3)))", "fit(x, (5, 3)).gather(1, fit(k, (5, 2)) % 3)",
    "x + fit(y, x.shape)", "x * fit(y, x.shape)", "F.linear(fit(x, (2, 5)), fit(y, (3, 5)), fit(x, (3,)))",
    "tg.take_along_dim(fit(x, (3, 4)), fit(k, (3, 2)) % 4, 1)",
    "F.scaled_dot_product_attention(fit(x, (1, 2, 3, 4)), fit(y, (1, 2, 5, 4)), fit(y, (1, 2, 5, 4))) * 0.731",
    "x.lerp(fit(y, x.shape), 0.25)", "F.embedding(fit(k, (3, 2)) % 4, fit(x, (4, 3)))", "tg.dot(x.reshape(-1), fit(y, (x.numel(),)))",
    "F.mse_loss(x, fit(y, x.shape)) * 0.0731", "F.cross_entropy(fit(x, (4, 3)), fit(k, (4,)) % 3) * 0.731",
    "F.conv_transpose2d(fit(x, (1, 2, 3, 3)), fit(y, (2, 3, 2, 2)), stride=2)",
    "tg.cat([x, fit(y, x.shape)], d)", "tg.stack([x, fit(y, x.shape)], -1).sum(-1)", "x.roll(1, d) * fit(y, x.shape).flip(d)",
    "tg.where(x > fit(y, x.shape), x.roll(1, d), x.flip(d))", "fit(x, (7, 33)) @ fit(y, (33, 13)) * 0.0625",
    "(fit(x, (7, 1, 3)) - fit(y, (1, 17, 3))).square().sum(-1) * 0.0731", "(fit(x, (5, 1, 4)) * fit(y, (1, 33, 4))).sum(1) * 0.0731",
    "((fit(x, (17, 1, 3)) - fit(y, (1, 7, 3))) * fit(x, (17, 7, 1))).sum(0) * 0.0731",
    "(tg.tanh(fit(x, (9, 1, 2)) - fit(y, (9, 2))) * (fit(x, (9, 1, 2)) - fit(y, (9, 2))).square().sum(-1, keepdim=True)).amax(0)",
    "((fit(x, (17, 1, 3)) - fit(y, (17, 3))) * fit(y, (17, 1))).sum((0, 1)) * 0.0731",
    "F.conv1d(fit(x, (1, 2, 65)), fit(y, (3, 2, 3)), padding=1) * 0.125", "F.cross_entropy(fit(x, (7, 33)), fit(k, (7,)) % 33) * 0.731",
    "F.layer_norm(x, x.shape[-1:], fit(y, x.shape[-1:])) * 0.0731", "x.cumsum(d) - fit(y, x.shape).cumsum(d)",
]
IN_PLACE = [    # z: the value that is changed
    "z.add_(fit(y, z.shape))", "z *= 0.5", "z += c", "z[i0] = 1.5", "z[..., s] = 0.25", "z[..., s] *= 2.0",
    "z[i0] += fit(y, z[i0].shape)", "z.reshape(-1)[1:].mul_(0.5)", "z.T.add_(1.0)", "z.zero_()", "z.copy_(fit(y, z.shape))",
    "z.sub_(fit(y, z.shape), alpha=0.5)", "z[fit(k, (2,)) % n0] = 0.75", "z.flip(0)[0].fill_(0.5)", "z.clamp_(-1.0, 1.0)",
    "z[::2].copy_(fit(y, z[::2].shape))", "z.relu_()", "z.masked_fill_(z > 0.5, 0.25)", "z.unsqueeze(0).transpose(0, 1)[i0] -= c",
    "z.copy_(z.roll(1, -1))", "z.copy_(z.flip(0))", "z.add_(z.flip(-1))", "z[..., 1:-1].mul_(0.5)",
    "z[..., 1:].sub_(z[..., :-1], alpha=0.5)",
    "z.cumsum_(-1)", "z.sub_(z.mean(-1, keepdim=True))", "z.mul_(z.sum(0) * 0.0078125)",
]


def scaled(trial: Trial, name: str, domain: tuple[float, float]) -> str:
    """`name` as an operand whose values lie in `domain`."""
    low, high = domain
    bound = trial.bound(name)
    if low <= -bound and bound <= high:
        return name
    half, middle = (high - low) / 2, (high + low) / 2
    factor = half / bound if bound else 1.0
    return f"({name} * {2.0 ** np.floor(np.log2(factor)) if trial.exact(name) else factor:.6g} + {middle:.6g})"


def pointwise(rng: Random, trial: Trial) -> str | None:
    op = rng.choice(POINTWISE)
    kinds = [k for k in op.kinds if trial.names(k)]
    if not kinds:
        return None
    kind = "f" if "f" in kinds and (op.kinds == "f" or rng.randint(0, 3)) else rng.choice(kinds)
    operands = [rng.choice(trial.names(kind)) for _ in range(op.nin)]
    if kind == "f":
        operands = [scaled(trial, x, op.domain) for x in operands]
    elif op.domain != Elementwise.domain or kind == "u":
        operands = [f"({x}.abs() % 3 + 1)" if kind != "b" else x for x in operands]
    if op.name == "where":
        operands[0] = f"({operands[0]} > 0)"
    text = f"op.{op.name}({', '.join(operands)})"
    return f"{text} * 0.7310585" if op.kinds == "f" and op.result != "bool" else text


def shaped(rng: Random, trial: Trial) -> str | None:
    op = rng.choice(SHAPED)
    shapes, attrs = rng.choice(cases(op))
    if "dtype" in attrs or not all(isinstance(v, (int, float, tuple, str)) for v in attrs.values()):
        return None
    operands = []
    for shape in shapes:
        if isinstance(shape, np.ndarray):
            operands.append(trial.constant(shape))
        else:
            if 0 in shape:
                return None
            x = rng.choice(trial.names())
            operands.append(f"fit({scaled(trial, x, getattr(op, 'domain', (-2.0, 2.0)))}, {tuple(shape)})")
    if not operands:
        return None
    return f"op.{op.name}({', '.join([*operands, *(f'{k}={v!r}' for k, v in attrs.items())])})"


def filled(rng: Random, trial: Trial, template: str, x: str) -> str:
    """A template with its letters replaced by values of the program and numbers that fit them."""
    shape = trial.worlds[0][x].shape
    d = rng.randint(-1, len(shape) - 1) if shape else 0
    n, n0 = (shape[d], shape[0]) if shape else (1, 1)
    parts = {
        "x": x, "z": x, "d": str(d % max(1, len(shape))), "n": str(n), "n0": str(n0), "i": str(rng.randint(0, n - 1)),
        "i0": str(rng.randint(0, n0 - 1)), "s": rng.choice(["0:1", "-1:", "::2", ":1"]),
        "y": rng.choice(trial.names()), "k": "k0",
    }
    return re.sub(r"\b(x|y|z|d|n|n0|i|i0|s|k)\b", lambda m: parts[m[0]], template)


def random_program(rng: Random, in_place: bool = True, most: int = 10) -> Program:
    """A program of up to `most` lines. in_place: whether it may change values, also those of inputs, also through views."""
    a, b = rng.choice(FEW), rng.choice((*FEW, *ORDINARY, *ORDINARY))
    dtypes = rng.choice([("float32", "float32"), ("float64", "float64"), ("float32", "float64")])
    shapes = [rng.choice([(a, b), (b,), (a, 1), (b, a), (2, a, b), ()]) for _ in range(rng.randint(1, 3))]
    draws = np.random.default_rng(rng.randint(0, 99))
    inputs = []
    for _ in range(SETS):
        arrays: dict[str, Any] = {f"a{i}": (draws.integers(-16, 17, s) / 8).astype(dtypes[i % 2]) for i, s in enumerate(shapes)}
        inputs.append(arrays)
    integers = [draws.integers(0, 12, (a, b)) for _ in range(SETS)]
    for arrays, values in zip(inputs, integers, strict=True):
        arrays["k0"] = values
        if len(shapes) > 2:
            arrays["a9"] = values.astype("int32") - 5
    trial = Trial(inputs)
    on_inputs = in_place and rng.randint(0, 3) == 0
    for _ in range(rng.randint(1, most)):
        kinds = ["pointwise", "pointwise", "shaped", "unary", "unary", "rows", "rows", "binary", "binary"]
        kind = rng.choice(kinds + ["in place", "in place"] * in_place)
        target = ""
        if kind == "pointwise":
            text = pointwise(rng, trial)
        elif kind == "shaped":
            text = shaped(rng, trial)
        elif kind == "in place":
            names = [n for n in trial.names("f", 1) if on_inputs or not trial.is_input(n)]
            if not names:
                continue
            target = rng.choice(names)
            text = filled(rng, trial, rng.choice(IN_PLACE), target)
        else:
            names = trial.names("f" if rng.randint(0, 4) else "if", 1)
            if not names:
                continue
            template = rng.choice({"unary": UNARY, "rows": ROWS, "binary": BINARY}[kind])
            text = filled(rng, trial, template, rng.choice(names))
        try:
            if text is not None:
                trial.add(text, target)
        except tg.TracegradError:                # shapes that do not fit, a write to an expanded tensor: another line
            continue
    values = [n for n in trial.names("biuf") if n[0] == "v"]
    if not values:
        trial.add("a0.reshape(-1)[:8] * c")
        values = ["v0"]
    chosen = [rng.choice(values) for _ in range(rng.randint(0, 3))]
    outputs = list(dict.fromkeys([*chosen, values[-1]]))
    reads = tuple(rng.randint(0, most) for _ in range(rng.randint(0, 3)))
    return Program(trial.lines, inputs, outputs, trial.writes_inputs, reads)


def programs(in_place: bool = True, most: int = 10) -> st.SearchStrategy[Program]:
    """Programs as `random_program` draws them, of choices that hypothesis makes, and shrinks."""
    return st.builds(random_program, st.randoms(use_true_random=False), st.just(in_place), st.just(most))
