"""Random programs of views and of writes through them, of a list t of tensors. Start at `statements`.

A program is lines of Python over t and a library's namespace T, so that torch can run it, too. A line appends a tensor (a view, a copy,
a result) or writes one in place: whole, in part, through a view, under no_grad, through what `detach` made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SHAPES = ((3,), (2, 3), (3, 2), (2, 2, 2), (4,), (1, 3), ())
RESULTS = ("{x} * {y}", "{x} + {y}", "{x} - {y}", "T.sin({x})", "{x} ** 2", "T.exp({x} * 0.1)", "{x}.sum()", "{x}.clone()", "{x}.detach()",
           "T.stack([{x}, {y}])", "T.where({x} > 0, {x}, {y})")
VIEWS = ("{x}.reshape(-1)", "{x}.unsqueeze(0).expand(2, *{x}.shape)", "{x}.squeeze()", "{x}.view({x}.shape)", "{x}.unsqueeze({d})",
         "{x}.transpose(0, -1)", "{x}.movedim(0, -1)", "{x}.select({d}, {i})", "{x}.unbind({d})[0]", "{x}.split(1, {d})[-1]",
         "{x}.chunk(2, {d})[-1]", "{x}.narrow({d}, {i}, 1)", "{x}.unfold({d}, {k}, 1)", "{x}.flatten(0, 1)", "{x}.diagonal()",
         "{x}[{i}:]", "{x}[::2]", "{x}[..., -1]", "{x}.permute({p})", "{x}[T.tensor({i})]", "{x}[..., T.tensor(-1)]")
WRITES = ("mul_(1.5)", "add_(0.25)", "sin_()", "tanh_()", "zero_()", "fill_(0.7)", "clamp_(-{c}, {c})", "neg_()", "pow_(2)", "relu_()",
          "masked_fill_({x}.detach() > 0.3, 0.5)", "unsqueeze_(0)", "squeeze_()", "copy_({y})")
PARTS = ("{x}[{i}] = {y}", "{x}[{i}:] = 0.3", "{x}[-1] = 0.3", "{x}[...] = {y}", "{x}[{x}.detach() > 0] = 0.3", "{x}[{i}:] = {y}",
         "{x}[T.tensor({i})] += 0.3")


def statements(seed: int, tensors: list[Any], run: Callable[[str, list[Any]], None], most: int) -> list[str]:
    """Up to `most` lines, of which `run` makes each on `tensors`, which tell the shapes; it raises an error at one that is no program."""
    rnd, lines = random.Random(seed), list[str]()
    while len(lines) < most:
        x = rnd.randrange(len(tensors))
        shape = tuple(tensors[x].shape)
        d = rnd.randrange(max(1, len(shape)))
        size = shape[d] if shape else 1
        values = {"x": f"t[{x}]", "y": f"t[{rnd.randrange(len(tensors))}]", "d": d, "i": rnd.randrange(max(1, size)), "k": min(2, size),
                  "c": round(rnd.uniform(0.5, 1.5), 6),         # no limit twice: a second clamp would meet values at its limit
                  "p": ", ".join(map(str, rnd.sample(range(len(shape)), len(shape)))) or "()"}
        kind = rnd.choice(("result", "result", "view", "view", "write", "part", "through", "silent"))
        form = {"result": "t.append(" + rnd.choice(RESULTS) + ")", "view": "t.append(" + rnd.choice(VIEWS) + ")",
                "write": "{x}." + rnd.choice(WRITES), "part": rnd.choice(PARTS),
                "through": rnd.choice(VIEWS) + "." + rnd.choice(WRITES[:10]),
                "silent": "with T.no_grad(): {x}." + rnd.choice((*WRITES[:10], WRITES[-1]))}[kind]
        line = form.format(**values)
        try:
            run(line, tensors)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return lines                # the tensors may be half written
        lines.append(line)
    return lines


def given(seed: int) -> list[Any]:
    """The arrays that a program begins with."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(SHAPES[k]) for k in rng.integers(len(SHAPES), size=2)]


def run(T: Any, lines: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
    """What a program makes of copies of these tensors."""
    t = [x * 1.0 for x in tensors]
    for line in lines:
        exec(line, {"T": T, "t": t})
    return t
