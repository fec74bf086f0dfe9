"""Names in the text of kernels, marked while it is written: nobody looks for them in C. Start at `marked`.

A printed kernel has a mark before and after each name of a variable. `plain` takes the marks out; `called` gives the variables other names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

_BEGIN, _END = "\x01", "\x02"
_MARKED = re.compile(r"\x01(\w+)\x02")
_WORD = re.compile(r"(?<![\w.\x01])[A-Za-z_]\w*")


def marked(name: str) -> str:
    return f"\x01{name}\x02"


def marked_in(text: str, names: Collection[str]) -> str:
    """Text of another generator, which says what it reads and writes: those words are marked."""
    return _WORD.sub(lambda match: f"\x01{match[0]}\x02" if match[0] in names else match[0], text) if names else text


def plain(text: str) -> str:
    return text.replace(_BEGIN, "").replace(_END, "")


def called(text: str, name: Callable[[str], str]) -> str:
    """The text with its variables called name(what they are called)."""
    return _MARKED.sub(lambda match: name(match[1]), text)


def names_in(text: str) -> list[str]:
    """The marked names."""
    return _MARKED.findall(text)


def words_in(text: str) -> list[str]:
    """All words of a line that nobody looks into, without its comment: what no variable beside it may be called."""
    return _WORD.findall(text.partition("//")[0])


def width(text: str) -> int:
    """Characters without the marks."""
    return len(text) - 2 * text.count(_BEGIN)
