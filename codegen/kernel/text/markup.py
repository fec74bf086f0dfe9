"""What the text of kernels is made of, marked while it is written: nobody looks for it in C. Start at `marked`.

A printed kernel has a mark before and after each name of a variable (`marked`), each use of a function that `plan.source` has to define
(`used`), each number that is added to an index (`offset`) or says where a work-item's elements begin or end (`extent`), and before what is
said beside a line (`with_comment`). Where the printer is asked to, every other number that compilers do not want as a constant is marked,
too (`number`). `plain` takes the marks out; the other functions find and replace what is between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tracegrad.errors import printable
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType, dtype_kind, float32, float64, int32, int64, uint32, uint64

_BEGIN, _END = "\x01", "\x02"
_MARKS = bytes([*range(1, 9), 14, *range(16, 25)])
_USED = re.compile(r"\x03(\w+)(?:\((\w+))?\x04")
_MARKED = re.compile(r"\x01(\w+)\x02")
_NOT_INDEXED = re.compile(r"\x01(\w+)\x02(?!\[)")
_WORD = re.compile(r"(?<![\w.\x01\x03])[A-Za-z_]\w*")
_NUMBER = re.compile(r"([\x05\x07\x18])(\d+)[\x06\x08]")
_DTYPES: dict[str, DType] = {"\x05": int32, "\x07": int32, "\x10": int32, "\x11": uint32, "\x12": int64, "\x13": uint64, "\x14": float32,
                             "\x15": float64, "\x17": int32, "\x18": int32}
_OF_DTYPE = {dtype: mark for mark, dtype in _DTYPES.items() if mark in "\x10\x11\x12\x13\x14\x15"}
_CONSTANT = re.compile(r"([\x05\x07\x10-\x15\x17\x18])([^\x06\x08\x16]*)([\x06\x08\x16])")
_AS_EXTENT = {"\x05": "\x18", "\x10": "\x17"}                # of an offset, and of a number
_NUMBERS, _OFFSETS = bytes([*range(16, 24)]), bytes.maketrans(b"\x18", b"\x05")
_COMMENT, _BETWEEN = "\x0e", "\x00"
PLACE = "@"                            # stands for a number in a form of a text; C has none
COLUMN = 70                                                  # from which on comments stand beside lines


def marked(name: str) -> str:
    return f"{_BEGIN}{name}{_END}"


def plain(text: str) -> str:
    return text.encode().translate(None, _MARKS).decode()    # (the text's own `translate` takes 20 times as long where it is not ASCII)


def plain_each(texts: Iterable[str]) -> list[str]:
    """`plain` of each. (At once: of lines one by one it takes ten times as long.)"""
    return plain(_BETWEEN.join(texts)).split(_BETWEEN)


def width(text: str) -> int:
    """Characters without the marks."""
    return len(plain(text))


# ---------------------------------------------------------------------------------------------------------------------- variables


def called(text: str, name: Callable[[str], str]) -> str:
    """The text with its variables called name(what they are called); each is asked for once, in order."""
    parts = _MARKED.split(text)
    names = {old: name(old) for old in dict.fromkeys(parts[1::2])}
    parts[1::2] = [names[old] for old in parts[1::2]]
    return "".join(parts)


def called_each(texts: Iterable[str], name: Callable[[str], str]) -> list[str]:
    """`called` of each text."""
    return called(_BETWEEN.join(texts), name).split(_BETWEEN)


def names_in(text: str) -> list[str]:
    """The marked names."""
    return _MARKED.findall(text)


def whole_in(text: str) -> set[str]:
    """The marked names that stand somewhere without an index behind them: of an array, its address is taken there."""
    return set(_NOT_INDEXED.findall(text))


def unmarked_in(text: str) -> list[str]:
    """The words that are no marked names: of the language, and of functions."""
    return _WORD.findall(without_comment(text))


# ---------------------------------------------------------------------------------------------------------------------- functions


def used(function: str, type_: str = "") -> str:
    """The beginning of a use of `function`, with the type that is its first argument."""
    return f"\x03{function}({type_}\x04" if type_ else f"\x03{function}\x04"


def uses_in(text: str) -> frozenset[tuple[str, str]]:
    """The functions that are used, with the types."""
    return frozenset(_USED.findall(text))


# ------------------------------------------------------------------------------------------------------------------------ numbers


class Offset(NamedTuple):
    """A number that `offset` or `extent` (then `ends`) marked."""

    value: int
    ends: bool


def offset(number: int) -> str:
    """A whole number, 0 or more, that is added to an index, or subtracted."""
    return f"\x05{number}\x06"


def extent(number: int) -> str:
    """One that says where the elements of a work-item begin, or where they end."""
    return f"\x07{number}\x08"


def offsets_in(text: str) -> list[Offset]:
    return [Offset(int(number), kind == "\x07") for kind, number in _NUMBER.findall(text)]


def with_offsets(text: str, instead: Callable[[], str | None]) -> str:
    """The text with instead() in place of each of them, in order (None: it stays)."""
    return _NUMBER.sub(lambda match: found if (found := instead()) is not None else match[0], text)


def with_numbers(text: str, numbers: Iterator[int]) -> str:
    """The text with these numbers in place of them."""
    return _NUMBER.sub(lambda match: f"{match[1]}{next(numbers)}{match[0][-1]}", text)


def number(text: str, dtype: DType) -> str:
    """A number, 0 or more, of one of the dtypes that have literals in C: int32, uint32, int64, uint64, float32 or float64."""
    return f"{_OF_DTYPE[dtype]}{text}\x16"


class Constant(NamedTuple):
    """A number that `number`, `offset` or `extent` (then `ends`) marked."""

    value: int | float
    dtype: DType
    ends: bool


def with_constants(text: str, instead: Callable[[Constant], str | None]) -> str:
    """The text with instead(number) in place of each marked one, in order (None: it stays)."""
    parts = _CONSTANT.split(text)                            # text, and mark, number and mark, and text, ...
    for k in range(1, len(parts), 4):
        if given := instead(_constant(parts[k], parts[k + 1])):
            parts[k], parts[k + 1], parts[k + 2] = given, "", ""
    return "".join(parts)


def with_constants_each(texts: Iterable[str], instead: Callable[[Constant], str | None]) -> list[str]:
    """`with_constants` of each text, one after the other."""
    return with_constants(_BETWEEN.join(texts), instead).split(_BETWEEN)


@memoize(4096)
def _constant(mark: str, text: str) -> Constant:
    dtype = _DTYPES[mark]
    return Constant(float(text.rstrip("f")) if dtype_kind(dtype) == "f" else int(text.rstrip("UuL")), dtype, mark in "\x07\x17\x18")


def before_places(form: str) -> list[str]:
    """The two characters before each `PLACE` of a number: they tell a stride from an offset and from a step."""
    return [text[-2:] for text in form.split(PLACE)]


def as_extents(text: str) -> str:
    """The text with its ints marked as extents; `without_numbers` tells what they were."""
    return _CONSTANT.sub(lambda match: _AS_EXTENT.get(match[1], match[1]) + match[0][1:], text)


def without_numbers(texts: Iterable[str]) -> list[str]:
    """The texts as they are printed without numbers marked."""
    return _BETWEEN.join(texts).encode().translate(_OFFSETS, _NUMBERS).decode().split(_BETWEEN)


def renamed(text: str, old: str, new: str) -> str:
    """A name that begins with another kernel's, or a note that ends with it, with the new one there."""
    return new + text.removeprefix(old) if text.startswith(old) else text.removesuffix(old) + new if text.endswith(old) else text


# ----------------------------------------------------------------------------------------------------------------------- comments


def beside(text: str) -> str:
    """Text of the user's as a comment of C: one that ends with the line, also where `??/` is a backslash, which would go on."""
    return printable(text).replace("\\", "/").replace("??/", "? ?/")


def with_comment(text: str, comment: str, column: int = COLUMN) -> str:
    """A line, and what is said beside it, from a column on."""
    return f"{text}{' ' * (column - width(text))}{_COMMENT}  // {comment}" if comment else text


def without_comment(text: str) -> str:
    """A line without what is said beside it."""
    return text.partition(_COMMENT)[0].rstrip() if _COMMENT in text else text
