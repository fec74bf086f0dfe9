"""For Sphinx: `{traced-page} f` shows the page of f, which the blocks of the document trace; the links of the site are checked."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import tracegrad as tg
from docs.extensions.blocks import run, same

LOG = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "programs"                   # the folder of the site that has the functions' pages


class TracedPage(SphinxDirective):
    """The page of a traced function (`f.page()`) in a frame, and a link to it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        document, name = self.env.docname, self.arguments[0]
        folder = Path(self.env.app.outdir) / PROGRAMS
        folder.mkdir(exist_ok=True)
        file = f"{document.replace('/', '-')}-{name}.html"
        # A process of its own: a program shows what a reader who runs this document alone sees.
        command = [sys.executable, "-m", "docs.extensions.programs", str(self.env.doc2path(document)), name, str(folder / file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            LOG.warning("the page of %s: %s", name, done.stderr, location=self.get_location())
        address = f"{'../' * document.count('/')}{PROGRAMS}/{file}"
        style = "width: 100%; height: 36em; border: 1px solid #8888"
        frame = (f'<iframe src="{address}" title="The page of {name}" loading="lazy" style="{style}"></iframe>'
                 f'<p><a href="{address}">The page of <code>{name}</code> in a window of its own</a></p>')
        return [nodes.raw("", frame, format="html")]


def write(document: Path, name: str, file: str) -> None:
    """Run a document's blocks, and write the page of the function `name` that they trace."""
    namespace: dict[str, Any] = {"__name__": document.stem}
    tg.manual_seed(0)
    for place, printed, said in run(document, namespace):
        if not same(printed, said):
            sys.exit(f"{place} printed something else than the page says:\n{printed}")
    namespace[name].page(file)


class _Links(HTMLParser):
    """What a file of the site leads to, what it loads, and the places in it that have names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.names.add(value)
            elif key == "src" or (key == "href" and tag == "link"):
                self.loaded.add(value or "")
            elif key == "href":
                self.targets.add(value or "")


def broken(site: Path) -> list[str]:
    """What is wrong with the links of a site: files and places that do not exist, and what would be loaded from the network."""
    files = {path.resolve(): _Links(path.read_text()) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, links in files.items():
        remote = [link for link in links.loaded if re.match(r"(https?:)?//", link)]
        wrong += [f"{path.name} loads {link}" for link in remote]
        for link in sorted((links.targets | links.loaded) - {*remote}):
            file, _, place = unquote(link).partition("#")
            if re.match(r"\w+:", file):
                continue
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not target.exists():
                wrong.append(f"{path.name} leads to {link}: there is no such file")
            elif place and target in files and place not in files[target].names:
                wrong.append(f"{path.name} leads to {link}: there is no such place")
    return wrong


def check(app: Sphinx, error: Exception | None) -> None:
    """Links that lead nowhere are warnings, which `make docs` takes as errors."""
    if error is None and app.builder.name == "html":
        for line in broken(Path(app.outdir)):
            LOG.warning(line)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("traced-page", TracedPage)
    app.connect("build-finished", check)
    return {"version": "1", "parallel_read_safe": False}


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sys.argv[2:])
