"""For Sphinx: `{gallery}` shows the programs of examples/gallery by their docstrings, with the pictures and pages of `make gallery`.

Without these (a site that is built alone) it shows the text.
"""

from __future__ import annotations

import ast
import shutil
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "examples" / "gallery"
MADE = ROOT / "build" / "gallery"
FOLDER = "gallery-programs"                   # of the site
GRID = "display: grid; grid-template-columns: repeat(auto-fill, minmax(20em, 1fr)); gap: 1.5em"


class Gallery(SphinxDirective):
    """A thumbnail for each program, with what it shows and what to look at."""

    def run(self) -> list[nodes.Node]:
        folder = Path(self.env.app.outdir) / FOLDER
        folder.mkdir(exist_ok=True)
        cards = []
        for path in sorted(PROGRAMS.glob("*.py")):
            if path.stem == "show":
                continue
            self.env.note_dependency(str(path))
            title, *paragraphs = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")
            shutil.copy(path, folder)
            card = [f'<h3 id="{path.stem}">{escape(title)}</h3>']
            made = [MADE / f"{path.stem}.{ending}" for ending in ("png", "html")]
            links = [f'<a href="{FOLDER}/{path.name}">{path.name}</a>']
            if all(file.exists() for file in made):
                for file in made:
                    shutil.copy(file, folder)
                page = f"{FOLDER}/{path.stem}.html"
                picture = f'<img src="{FOLDER}/{path.stem}.png" alt="{escape(title)}" loading="lazy" style="width: 100%">'
                card.append(f'<a href="{page}">{picture}</a>')
                links.append(f'<a href="{page}">source, graph and kernels</a>')
            card += [f"<p>{escape(text)}</p>" for text in paragraphs]
            cards.append(f"<div>{''.join(card)}<p>{' · '.join(links)}</p></div>")
        return [nodes.raw("", f'<div style="{GRID}">{"".join(cards)}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("gallery", Gallery)
    return {"version": "1", "parallel_read_safe": False}
