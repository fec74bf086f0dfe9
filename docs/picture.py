"""The picture of the README: code, graph, kernel, speed. It traces the program that it shows, so all four are what tracegrad made.

    python docs/picture.py           # writes docs/picture.svg
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import tracegrad as tg
from tracegrad.config import config

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "RESULTS.md"
ROW = "12-op elementwise chain, 16M floats: gradient of the sum"             # what the bars show
NAMES = {"tracegrad": "tracegrad", "torch": "torch", "torch_compile": "torch.compile", "jax": "jax.jit"}

CODE = """@tg.trace
def gradient(w, x):
    def loss(w):
        return tg.tanh(x * w).sum()
    return tg.grad(loss)(w)"""


def traced():
    """The program that the picture shows, called once."""
    space = {"tg": tg}
    exec(CODE, space)
    f = space["gradient"]
    before, config.eager = config.eager, False
    try:
        f(tg.ones(1024), tg.ones(1024))
    finally:
        config.eager = before
    return f


def operations(f):
    """The names of the graph's operations, in order."""
    return [n.fn.name for n in f.graph.nodes if n.fn.family == "elementwise" and n.fn.name not in ("variable", "detach")]


def statements(f):
    """The lines of the kernel that compute, without what stands around them."""
    lines = [re.sub(r"\s*//.*", "", line).strip() for line in next(iter(f.kernels())).splitlines()]
    return [line for line in lines if " = " in line and "size_t" not in line and "for (" not in line]


def times():
    """Milliseconds of each framework in the benchmark's row."""
    head, row = (next(line for line in RESULTS.read_text().splitlines() if line.startswith(f"| {name} |")) for name in ("workload", ROW))
    cells = dict(zip(*([cell.strip() for cell in line.split("|")] for line in (head, row)), strict=True))
    unit = {"ms": 1.0, "µs": 1e-3, "s": 1e3}
    found = {}
    for key, name in NAMES.items():
        value, what = cells[key].split()[:2]
        found[name] = float(value) * unit[what]
    return found


def box(x, width, title, body):
    frame = f'<rect x="{x}" y="30" width="{width}" height="190" rx="6" fill="none" stroke="#888"/>'
    return f'<text x="{x + 8}" y="20" class="title">{title}</text>{frame}{body}'


def text(x, y, lines, step=17):
    return "".join(f'<text x="{x}" y="{y + step * k}" xml:space="preserve">{escape(line)}</text>' for k, line in enumerate(lines))


def svg():
    f = traced()
    ops = operations(f)
    graph = "".join(f'<rect x="352" y="{42 + 24 * k}" width="96" height="18" rx="4" fill="#4a90d922" stroke="#4a90d9"/>'
                    f'<text x="360" y="{55 + 24 * k}">{escape(name)}</text>' for k, name in enumerate(ops[:7]))
    found = times()
    most = max(found.values())
    bars = "".join(f'<text x="832" y="{60 + 44 * k}">{name}: {value:.0f} ms</text>'
                   f'<rect x="832" y="{66 + 44 * k}" width="{max(3, 180 * value / most):.0f}" height="10" fill="#4a90d9"/>'
                   for k, (name, value) in enumerate(found.items()))
    parts = [box(10, 310, "your code", text(20, 56, CODE.splitlines())),
             box(342, 118, "its graph, backward too", graph),
             box(482, 320, "one kernel", text(492, 56, statements(f)[:9])),
             box(824, 206, "a chain of 12, 16M floats", bars)]
    style = "text{font:12px monospace;fill:#555}.title{font:bold 13px sans-serif}"
    title = "A traced function, its graph with the backward, the kernel that it became, and how long one takes"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1040 230" role="img"><title>{title}</title><style>{style}</style>'
            + "".join(parts) + "</svg>\n")


if __name__ == "__main__":
    (HERE / "picture.svg").write_text(svg())
