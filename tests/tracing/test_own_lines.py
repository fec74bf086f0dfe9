"""What a program shows of itself names its own lines, also where another program made the same constants before."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import tracegrad as tg
from tests.helpers.modules import imported

PROGRAMS = {
    "constants": """
        def NAME(x):
            def loss(x):
                h = tg.where(x > 0, x, tg.zeros(6, 8))
                q = h * (tg.arange(8) * 2.0) + tg.nn.functional.gelu(h)
                q = q.cumsum(1) + tg.sort(q, 1)[0] + q.prod(1, keepdim=True)
                return tg.nn.functional.cross_entropy(q, tg.zeros(6, dtype=tg.int64)) * q.std()
            return tg.value_and_grad(loss)(x)
    """,
    "loops": """
        def NAME(x):
            def step(carry, row):
                carry = tg.tanh(carry * 0.5 + row + tg.arange(8) / 8)
                return carry, carry.sum()
            last, sums = tg.scan(step, tg.ones(8), x)
            last = tg.cond(sums.sum() > 3.0, lambda v: v * tg.arange(8), lambda v: v - 7.0, last)
            return tg.while_loop(lambda v: v.sum() < 3.0, lambda v: v + 1.0, last).sum()
    """,
    "vmap": """
        def NAME(x):
            def one(row):
                return (row * tg.arange(8)).softmax(0)[tg.arange(4)].sum() ** 3
            return tg.vmap(tg.grad(one))(x), tg.hessian(one)(x[0])
    """,
    "function": """
        def NAME(x):
            x = x.detach().requires_grad_()
            y = tg.nn.functional.layer_norm(x @ tg.eye(8) + tg.tril(tg.ones(6, 8)), (8,))
            y.pow(2).mean().backward()
            return x.grad * 2.0
    """,
}


def _module(path: Path, body: str) -> ModuleType:
    """Two traced functions of one text, `first` on lines 3 to 20, `second` from line 21 on."""
    body = "@tg.trace" + textwrap.dedent(body).rstrip()
    first = ("import tracegrad as tg\n\n" + body.replace("NAME", "first")).split("\n")
    path.write_text("\n".join(first + [""] * (20 - len(first))) + "\n" + body.replace("NAME", "second") + "\n")
    return imported(path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_functions_of_one_text_have_their_own_lines(name: str, tmp_path: Path) -> None:
    both = _module(tmp_path / "program.py", PROGRAMS[name])
    tg.manual_seed(0)
    x = tg.randn(6, 8)
    both.first(x), both.second(x)
    for f, lines in ((both.first, range(3, 21)), (both.second, range(21, 50))):
        shown = {"kernels": str(f.kernels()), "page": f._page(1), "explain": f.explain(), "source": f.source(), "memory": str(f.memory()),
                 "profile": str(f.profile(1))}
        nodes = [n for n in f.graph.nodes if n.loc.filename.endswith("program.py")]
        assert nodes
        assert {n.loc.line for n in nodes} <= set(lines), f"graph of {name}"
        for what, text in shown.items():
            found = {int(k) for k in re.findall(r"\bprogram\.py:(\d+)", text)}
            found |= {int(k) for ks in re.findall(r"\blines? (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)", text) for k in re.split(r"\D+", ks)}
            assert found <= set(lines), f"{what} of {f.__name__}, {name}: {sorted(found - set(lines))}"
        assert re.search(r"program\.py:\d+|lines? \d+", shown["kernels"])


def test_an_error_names_the_line_of_its_own_program(tmp_path: Path) -> None:
    both = _module(tmp_path / "program.py", """
        def NAME(x):
            return x[tg.arange(6) + tg.arange(6) * 2]
    """)
    for f, line in ((both.first, 5), (both.second, 23)):
        with pytest.raises(IndexError, match=rf"program\.py:{line}"):
            f(tg.randn(6, 8)).tolist()


def test_constants_of_one_program_are_one_node() -> None:
    @tg.trace
    def f(x: tg.Tensor) -> tg.Tensor:
        a = x * 2.0 + tg.arange(8)
        return a + x * 2.0 + tg.arange(8)

    f(tg.ones(8))
    nodes = list(f.graph.nodes)
    assert sum(n.fn.name == "iota" for n in nodes) == 1
    assert sum(n.fn.name == "mul" and n.operands[0].fn.name == "placeholder" for n in nodes) == 1
