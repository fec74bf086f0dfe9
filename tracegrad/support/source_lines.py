"""The text of the user's program, for what is shown beside its operations: `line_of`, `lines_of`, `parsed`. It may be empty.

Text is what `linecache` has: of files, of cells of notebooks, of the interactive prompt, of `exec` where the program put it there. Beside
that a module's own loader is asked (a module in a zip archive has no file). Files that are no regular ones are not opened: to read
/dev/stdin again would wait for the user to type.
"""

from __future__ import annotations

import ast
import io
import linecache
import re
from collections.abc import Callable
from os import stat
from stat import S_ISREG
from types import FrameType
from typing import Any

_ESCAPE = re.compile(r"\\.")


def notice(frame: FrameType) -> None:
    """Code of this frame's file is recorded. It may be newer than the text that was read of the file: after a reload, for example."""
    name = frame.f_code.co_filename
    try:
        linecache.checkcache(name)
    except (ValueError, KeyError):                  # a name that no file can have; another thread took the entry out
        return
    linecache.lazycache(name, frame.f_globals)      # the module's loader, which is asked when the text is wanted


def line_of(filename: str, number: int) -> str:
    """A line without what surrounds it."""
    lines = lines_of(filename)
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def lines_of(filename: str) -> list[str]:
    """The lines of a file, each with its end."""
    known = linecache.cache.get(filename)
    if known is not None and len(known) > 1:
        return known[2]
    try:
        regular = S_ISREG(stat(filename).st_mode)
    except (OSError, ValueError):
        if known is None:
            return _read(filename)                  # linecache looks for a relative name on Python's path
        lines = _asked(known[0])
        linecache.cache[filename] = sum(map(len, lines)), None, lines, filename
        return lines
    return _read(filename) if regular else []


def _read(filename: str) -> list[str]:
    try:
        return linecache.getlines(filename)
    except ValueError:
        return []


def _asked(loader: Callable[[], Any]) -> list[str]:
    """The lines that a module's loader gives. (As linecache, which ends lines at form feeds, too, and lets errors through.)"""
    try:
        text = loader()
    except Exception:                               # a loader of the user's may raise anything
        return []
    return list(io.StringIO(text, newline=None)) if isinstance(text, str) else []


def parsed(text: str) -> list[ast.stmt]:
    """The statements of a text, for the names in it; none where it does not stand alone: a part of a statement, or no Python at all.

    Escapes in strings are taken out first, since Python warns about those that it does not know.
    """
    try:
        return ast.parse(_ESCAPE.sub("__", text)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
