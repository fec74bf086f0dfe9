"""Several users' OpenCL C in one program. Start at `UserSources.add`.

Two sources may define different functions of one name, or the same one: what is equal, with all that it uses, stands in the program
once, and what is not gets a name of its own. Macros end with the source that defines them.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_PART = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|^[ \t]*\#(?:\\\n|[^\n])*|[{};]""", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)\s*(?=[^)])", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
Identity = tuple[tuple[str, tuple[str, ...]], ...]


class UserSources:
    """The sources that a program has so far."""

    def __init__(self) -> None:
        self.named: dict[tuple[str, Identity], str] = {}     # what is defined, under the name the user gave -> its name in the program
        self.names: set[str] = set()                         # the latter

    def add(self, source: str, entry: str, taken: Collection[str] = ()) -> tuple[str, str]:
        """The name of the kernel `entry` in the program, and the text to add for it ("" if it is there already).

        taken: names that the program has given to something else.
        """
        parts = [(names_of(text), text) for text in split(source)]
        macros = {name for names, text in parts if _plain(text).startswith("#") for name in names}
        if not any(entry in names for names, _ in parts):              # behind macros: all or nothing
            parts = [((entry,), source)]
        texts: dict[str, list[str]] = {}
        for names, text in parts:
            for name in names:
                texts.setdefault(name, []).append(" ".join(_plain(text).split()))
        uses = {name: {w for text in found for w in _WORD.findall(text) if w in texts} for name, found in texts.items()}
        new, renamed = set(), {}
        for name in texts:
            if name in macros:
                continue
            key = name, tuple((n, tuple(texts[n])) for n in sorted(_reachable(name, uses)))
            if key not in self.named:
                number, free = 1, name
                while free in self.names or free in taken:
                    number += 1
                    free = f"{name}_{number}"
                self.named[key] = free
                self.names.add(free)
                new.add(name)
            renamed[name] = self.named[key]
        if not new:
            return renamed[entry], ""
        kept = [text for names, text in parts if not names or names[0] in macros or not new.isdisjoint(names)]
        kept += [f"\n#undef {name}" for name in sorted(macros)]
        return renamed[entry], _WORD.sub(lambda word: renamed.get(word[0], word[0]), "".join(kept)).strip("\n").rstrip() + "\n"


def _reachable(name: str, uses: dict[str, set[str]]) -> set[str]:
    found, todo = {name}, [name]
    while todo:
        more = uses[todo.pop()] - found
        found |= more
        todo += more
    return found


def split(source: str) -> list[str]:
    """The source cut after each definition, declaration and directive that stands outside of all braces; joined, it is the source."""
    parts = []
    start = depth = 0
    for token in _PART.finditer(source):
        text = token[0]
        if text == "{":
            depth += 1
        elif text == "}":
            depth -= 1
        ends = text == ";" or text.lstrip().startswith("#") or (text == "}" and _is_function(source[start:token.start()]))
        if ends and depth == 0:
            parts.append(source[start:token.end()])
            start = token.end()
    return [*parts, source[start:]]


def _plain(text: str) -> str:
    return _COMMENT.sub(" ", text).strip()


def _is_function(text: str) -> bool:
    """Whether the braces in `text` are a function's body, which no semicolon follows."""
    head = _plain(text).partition("{")[0].strip()
    return head.endswith(")") and re.match(r"(typedef|struct|union|enum)\b", head) is None


def names_of(text: str) -> tuple[str, ...]:
    """What a part of `split` defines or declares."""
    code = _ATTRIBUTE.sub(" ", _plain(text)).strip()
    if code.startswith("#"):
        return tuple(re.findall(r"^#\s*define\s+(\w+)", code))
    head = code.partition("{")[0]
    if re.match(r"(typedef|struct|union|enum)\b", code):
        tags = re.findall(r"\b(?:struct|union|enum)\s+(\w+)", head)
        last = re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*;$", code)
        return tuple(dict.fromkeys(tags + last)) if "{" in code or code.startswith("typedef") else tuple(last)
    function = re.search(r"([A-Za-z_]\w*)\s*\(", head.partition("=")[0])
    if function is not None:
        return (function[1],)
    return tuple(re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", head.partition("=")[0].rstrip(";").strip())[-1:])
