"""For Sphinx: the docstrings of tracegrad are plain text, so they become paragraphs in which nothing is markup but code and examples."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_ARGUMENT = re.compile(r"\*{0,2}\w+(?:(?:, | and | \()[\w*, ]+\)?)?: ")
_CODE = re.compile(r"`([^`]+)`")


def escaped(line: str) -> str:
    """A line of plain text in reStructuredText; what stands in backticks is code."""
    parts = _CODE.split(line)
    return "".join(f"``{part}``" if k % 2 else re.sub(r"([\\*`|_])", r"\\\1", part) for k, part in enumerate(parts))


def _paragraph(lines: list[str]) -> list[str]:
    """Lines of prose as one, which begins with nothing that would make it a list, a field or a comment."""
    text = escaped(" ".join(line.strip() for line in lines))
    return ["", "\\" + text if re.match(r"[-+:.>=~^\"'#(\d]", text) else text]


def formatted(lines: list[str]) -> list[str]:
    """A docstring in reStructuredText: an example is a block, an argument begins a paragraph, deeper lines stay lines."""
    out: list[str] = []
    prose: list[str] = []
    kind = ""
    for line in [*lines, ""]:
        if not line.strip():
            now = ""
        elif line.lstrip().startswith(">>>") or kind == "example":
            now = "example"
        elif line.startswith("    ") or re.match(r"\s*[-*] ", line):
            now = "line"
        else:
            now = "prose"
        if prose and (now != "prose" or _ARGUMENT.match(line)):
            out += _paragraph(prose)
            prose = []
        if now != kind:
            out.append("")
        kind = now
        if now == "example":
            out.append(line.rstrip())
        elif now == "line":
            out.append(f"| {escaped(line.strip())}")
        elif now == "prose":
            prose.append(line)
    return [line for k, line in enumerate(out) if line or (k and out[k - 1])]       # one empty line is enough


def process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = formatted(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    return {"version": "1", "parallel_read_safe": True}
