"""The code blocks of docs/*.md run, one namespace a page, and print what the ```text block behind them says."""

import contextlib
import io
import linecache
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
PAGES = [page for page in sorted(DOCS.glob("*.md")) if _BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, device):
    text = page.read_text()
    namespace = {"__name__": f"docs_{page.stem}"}
    for number, block in enumerate(_BLOCK.finditer(text)):
        source, expected = block[1], block[2]
        line = text.count("\n", 0, block.start()) + 2
        name = f"{page.name}, line {line}"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)     # for the user's lines in messages
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, name, "exec"), namespace)
        seen = re.sub(rf" \(at {re.escape(page.name)}, line [\d:]+\)", "", printed.getvalue())     # the user's line in an error
        assert seen == (expected or ""), f"{name} (block {number}) printed something else"
