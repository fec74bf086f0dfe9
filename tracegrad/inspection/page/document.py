"""The page of a traced function: one HTML file with all that is known of its programs, linked. Start at `page`.

The data is JSON (see model.py); page.js draws it, page.css says how it looks. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from tracegrad.errors import printable

# What a browser may do with the file: show it. No script, picture or font comes from elsewhere, and nothing is sent.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def page(name: str, programs: Sequence[dict[str, Any]], compilations: Sequence[str]) -> str:
    """The page's text. programs: what `model` says of each, the one to show first in front. compilations: a reason for each."""
    data = {"programs": list(programs), "compilations": list(compilations)}
    folder = files("tracegrad.inspection.page")
    css, js = ((folder / file).read_text(encoding="utf-8") for file in ("page.css", "page.js"))
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(printable(name))}</title>\n'
            f"<style>\n{css}</style>\n</head>\n<body>\n"
            f'<div id="app"><noscript>This page needs JavaScript, which is in the file.</noscript></div>\n'
            f'<script type="application/json" id="data">{embedded(data)}</script>\n<script>\n{js}</script>\n</body>\n</html>\n')


def embedded(data: Any) -> str:
    """Data as JSON that ends no script element and opens no comment, whatever text is in it: `<`, `>` and `&` are escapes."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def framed(text: str, height: int = 700) -> str:
    """A page within a notebook's."""
    return f'<iframe srcdoc="{escape(text)}" style="width:100%;height:{height}px;border:1px solid #ccc" sandbox="allow-scripts"></iframe>'
