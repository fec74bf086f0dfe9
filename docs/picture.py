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


def nodes(f):
    """The graph's operations on elements, in order."""
    return [n for n in f.graph.nodes if n.fn.family == "elementwise" and n.fn.name not in ("variable", "detach")]


def operations(f):
    """Their names."""
    return [n.fn.name for n in nodes(f)]


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
    frame = f'<rect x="{x}" y="30" width="{width}" height="190" rx="6" class="frame"/>'
    return f'<text x="{x + 8}" y="20" class="title">{title}</text>{frame}{body}'


def arrow(x, y, u, v, name="edge"):
    return f'<path class="{name}" d="M{x} {y}L{u} {v}" marker-end="url(#head)"/>'


def text(x, y, lines, step=17):
    return "".join(f'<text x="{x}" y="{y + step * k}" xml:space="preserve">{escape(line)}</text>' for k, line in enumerate(lines))


def graph(f, x):
    """What was written leads downwards on the left, what was derived upwards on the right."""
    found = nodes(f)
    sides = [[n for n in found if n.loc.derived == derived] for derived in (False, True)]
    last = len(sides[1]) - 1
    place = {n: (x + 14 + 78 * side, 44 + 44 * (last - k if side else k)) for side in (0, 1) for k, n in enumerate(sides[side])}
    drawn = []
    for n, (left, top) in place.items():
        drawn.append(f'<rect x="{left}" y="{top}" width="56" height="22" rx="4" class="{"derived" if n.loc.derived else "written"}"/>'
                     f'<text x="{left + 28}" y="{top + 15}" text-anchor="middle">{escape(n.fn.name)}</text>')
        for o in dict.fromkeys(n.operands):
            if o in place:
                u, v = place[o]
                ends = ((u + 56, v + 11, left, top + 11) if u < left else
                        (left + 28, v + (22 if v < top else 0), left + 28, top + (0 if v < top else 22)))
                drawn.append(arrow(*ends))
    return "".join(drawn)


def svg():
    f = traced()
    found = times()
    most = max(found.values())
    bars = "".join(f'<text x="892" y="{60 + 44 * k}">{name}: {value:.0f} ms</text>'
                   f'<rect x="892" y="{66 + 44 * k}" width="{max(3, 180 * value / most):.0f}" height="10" class="bar"/>'
                   for k, (name, value) in enumerate(found.items()))
    parts = [box(10, 300, "your code", text(20, 56, CODE.splitlines())),
             box(342, 162, "its graph, derivative too", graph(f, 342)),
             box(536, 316, "one kernel", text(546, 56, statements(f)[:9])),
             box(884, 206, "a chain of 12, 16M floats", bars),
             *(arrow(x, 125, x + 26, 125, "step") for x in (312, 506, 854))]
    style = ("text{font:12px monospace;fill:#444}.title{font:bold 13px sans-serif}.frame{fill:none;stroke:#888}.bar{fill:#4a90d9}"
             ".written{fill:#4a90d933;stroke:#4a90d9}.derived{fill:#d98a3a33;stroke:#d98a3a}"
             ".edge,.step{fill:none;stroke:#888}.step{stroke-width:2}"
             "@media(prefers-color-scheme:dark){text{fill:#ccc}}")
    title = "A traced function, its graph with the derivative, the kernel that it became, and how long one takes"
    head = ('<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" '
            'orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#888"/></marker></defs>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1100 230" role="img"><title>{title}</title><style>{style}</style>{head}'
            + "".join(parts) + "</svg>\n")


if __name__ == "__main__":
    (HERE / "picture.svg").write_text(svg())
