"""Names in the text of kernels, marked while it is written: nobody looks for them in C. Start at `marked`.

A printed kernel has a mark before and after each name of a variable, and each use of a function that `plan.assemble` has to define.
`plain` takes the marks out; `called` gives the variables other names; `uses_in` says which functions are used, of which types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

_BEGIN, _END = "\x01", "\x02"
_PLAIN = dict.fromkeys(range(1, 5))
_USED = re.compile(r"\x03(\w+)(?:\((\w+))?\x04")
_MARKED = re.compile(r"\x01(\w+)\x02")
_WORD = re.compile(r"(?<![\w.\x01\x03])[A-Za-z_]\w*")


def marked(name: str) -> str:
    return f"{_BEGIN}{name}{_END}"


def marked_in(text: str, names: Collection[str]) -> str:
    """Text of another generator, which says what it reads and writes: those words are marked."""
    return _WORD.sub(lambda match: marked(match[0]) if match[0] in names else match[0], text) if names else text


def plain(text: str) -> str:
    return text.translate(_PLAIN)


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
    return len(plain(text))


def used(function: str, type_: str = "") -> str:
    """The beginning of a use of `function`, with the type that is its first argument."""
    return f"\x03{function}({type_}\x04" if type_ else f"\x03{function}\x04"


def uses_in(text: str) -> frozenset[tuple[str, str]]:
    """The functions that are used, with the types."""
    return frozenset(_USED.findall(text))
