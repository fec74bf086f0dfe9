"""The site that `make docs` builds: without a warning, with the pages of its programs, and with every public name in its reference."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from docs.extensions.blocks import BLOCK, same

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = sorted((DOCS / "book" / "api").glob("*.md"))


def _sphinx() -> None:
    for name in ("sphinx", "myst_parser"):
        pytest.importorskip(name, reason=f"{name} is not installed (pip install '.[docs]')")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _sphinx()
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(out / "doctrees")]
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, str(DOCS), str(out / "html")], cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out / "html"


@pytest.mark.long
def test_the_site_has_every_page_and_those_of_its_programs(site):
    """Sphinx warns of pages that no list leads to, and the extension of links that lead nowhere: both are errors."""
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).exists(), page
        for name in re.findall(r"^```\{traced-page\} (\w+)$", page.read_text(), re.MULTILINE):
            document = str(page.relative_to(DOCS).with_suffix("")).replace("/", "-")
            text = (site / "programs" / f"{document}-{name}.html").read_text()
            assert "__kernel" in text
            assert set(re.findall(r"(\w+\.md), line \d", text)) == {page.name}                     # its own lines alone
            assert "src=" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)      # nothing is loaded


@pytest.mark.long
@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_the_reference_has_every_public_function_and_class(page, site):
    name = re.findall(r"automodule:: ([\w.]+)", page.read_text())[0]
    left_out = re.findall(r":exclude-members: (\w+)", page.read_text())
    module = importlib.import_module(name)
    text = (site / page.relative_to(DOCS).with_suffix(".html")).read_text()
    public = [n for n in module.__all__ if isinstance(getattr(module, n), (types.FunctionType, type)) and n not in left_out]
    assert public
    undocumented = [n for n in public if not inspect.getdoc(getattr(module, n))]
    assert undocumented == []
    assert [n for n in public if f'id="{name}.{n}"' not in text and f">{n}<" not in text] == []


@pytest.mark.parametrize("chapter", sorted((DOCS / "book" / "autograd").glob("*.md")), ids=lambda page: page.stem)
def test_every_chapter_has_a_page_and_exercises_with_solutions(chapter):
    text = chapter.read_text()
    assert "```{traced-page} " in text
    title = text.partition("\n")[0].removeprefix("# ")
    exercises = re.findall(r"(?m)^(\d+)\. ", text.partition("\n## Exercises\n")[2])
    solutions = (DOCS / "book" / "solutions.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert exercises
    assert re.findall(r"(?m)^\*\*(\d+)\.\*\* ", solutions) == exercises
    assert text.rstrip().endswith(f"[Solutions](../solutions.md#{re.sub(r'[^a-z0-9 ]', '', title.lower()).replace(' ', '-')})")


def test_ten_minutes_as_a_new_user_spends_them(tmp_path):
    """The chapter's blocks as one file, away from the checkout, by the command that writes a page: from an own Function to its page."""
    blocks = BLOCK.findall((DOCS / "book" / "start.md").read_text())
    (tmp_path / "start.py").write_text("\n".join(block for block, _ in blocks))
    command = [sys.executable, "-m", "tracegrad", "page", "start.py:slope", "-o", "again.html"]
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    said = "".join(said for _, said in blocks)
    said = re.sub(r"\bline \d+", "line ...", re.sub(r"start\.md:\d+", "start.py:...", said))                # lines are the file's
    assert same(done.stdout, f"{said}wrote again.html\n"), done.stdout
    for file in ("slope.html", "again.html"):                           # what the chapter writes, and what the command does
        text = (tmp_path / file).read_text()
        assert "__kernel void x_grad_k0(" in text
        assert "return tg.maximum(x, tg.zeros_like(x))" in text
        assert "src=" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_links_that_lead_nowhere_or_to_the_network_are_found(tmp_path):
    _sphinx()
    from docs.extensions.programs import broken  # noqa: PLC0415  sphinx may not be there

    (tmp_path / "a.html").write_text('<p id="here"></p><a href="b.html#there"></a><a href="#here"></a><a href="https://example.org"></a>')
    (tmp_path / "b.html").write_text('<a href="c.html"></a><a href="a.html#here"></a><script src="https://example.org/x.js"></script>')
    assert broken(tmp_path) == [
        "a.html leads to b.html#there: there is no such place",
        "b.html loads https://example.org/x.js",
        "b.html leads to c.html: there is no such file",
    ]


def test_docstrings_keep_their_text_and_examples():
    _sphinx()
    from docs.extensions.docstrings import formatted  # noqa: PLC0415

    lines = ["The sum of *all* x_i, as `f(x)", "+ 1` has it.", "dim: which one.", "    deeper", "",
             ">>> f(1)", "[1,", " 2]", "", "- an item"]
    assert formatted(lines) == [
        "The sum of \\*all\\* x\\_i, as ``f(x) + 1`` has it.", "", "dim: which one.", "", "| deeper", "",
        ">>> f(1)", "[1,", " 2]", "", "| - an item", ""]


def test_three_dots_stand_for_times_and_nothing_else():
    assert same("f on a CPU: 1 us\n", "f on ...\n")
    assert same("", "")
    assert not same("1\n", "2\n")
    assert not same("1\n", "")
    assert not same("f: 1\n", "g: ...\n")
