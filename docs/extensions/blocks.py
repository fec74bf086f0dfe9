"""The ```python blocks of a page: the tests run them, and so does the build of the site, which shows the functions that they trace."""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def same(printed: str, said: str) -> bool:
    """Whether a block printed what the page says, where `...` stands for anything: for a time, or a device."""
    return printed == said or doctest.OutputChecker().check_output(said, printed, doctest.ELLIPSIS)


def run(page: Path, namespace: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Run a page's blocks one after the other in `namespace`: for each its place, what it printed, and what the page says that it prints.

    A line of a block is told as page.md:3 (the third of its block) in what is printed, so that text added above changes nothing. Files that
    a block writes are in a folder of the page's own, which goes away.
    """
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for block in BLOCK.finditer(text):
            source = block[1]
            name = f"{page.name}, line {text.count(chr(10), 0, block.start()) + 2}"
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)     # for the user's lines in messages
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
                exec(compile(source, name, "exec"), namespace)
            place = rf"{re.escape(page.name)}, line \d+"
            seen = re.sub(rf" \(at {place}[\d:]*\)", "", printed.getvalue())      # the user's line at the end of an error
            yield name, re.sub(rf"{place}:", f"{page.name}:", seen), block[2] or ""
