"""Names of the code that stand in documents. `found` is what a dotted name means, `unknown` what a page names though it does not exist."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tracegrad", "codegen", "runtime", "tests", "examples", "benchmarks", "docs", ".ci")
_QUOTED = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(rf"(?:(?:{'|'.join(re.escape(f) for f in FOLDERS)})/)?[\w/-]*\w\.(?:py|md|toml|txt)|(?:{'|'.join(FOLDERS)})/[\w/]*")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_DOTTED = re.compile(r"(?:tracegrad|tg)(?:\.\w+)+")
_CONSTANT = re.compile(r"_[A-Z][A-Z\d_]+")
_CLASS = re.compile(r"_?[A-Z][a-z]\w*(?:\.\w+)?")
_INSIDE = re.compile(r"`([\w/]+\.py)` ?\n? *\(((?:`\w+`(?:, | and )?)+)\)")        # `file.py` (`name`, `name`)
GENERATED = {"benchmarks/RESULTS-gpu.md"}


def found(name: str) -> Any:
    """What the dotted `name` (`tracegrad.module.Class.method`) means; AttributeError if nothing."""
    parts = ["tracegrad" if part == "tg" and not i else part for i, part in enumerate(name.split("."))]
    for end in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            thing = getattr(thing, part)
        return thing
    raise AttributeError(name)


@cache
def classes() -> dict[str, set[str]]:
    """The classes of the library and of Python, with the names in their bodies and their bases'. (Two of one name are one.)"""
    known: dict[str, set[str]] = defaultdict(set, {name: set(dir(builtin)) for name, builtin in vars(builtins).items()})
    bases: dict[str, set[str]] = defaultdict(set)
    for folder in ("tracegrad", "codegen", "runtime"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    known[node.name] |= {*_names(node)}
                    bases[node.name].update(base.id for base in node.bases if isinstance(base, ast.Name) and base.id != node.name)
    for name in TopologicalSorter(bases).static_order():
        known[name].update(*(known[base] for base in bases[name]))
    return known


def _names(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
            yield inner.name
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.isidentifier():
            yield inner.value                   # a slot


@cache
def constants() -> set[str]:
    """The names like _THIS in the code."""
    texts = [path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {name for text in texts for name in re.findall(rf"\b{_CONSTANT.pattern}\b", text)}


def unknown(text: str) -> list[str]:
    """What stands in backticks and looks like a file, a dotted name or a class of the library, but is none."""
    return [name for name in sorted(set(_QUOTED.findall(_LINK.sub("", text)))) if not _known(name)]


def misplaced(text: str) -> list[str]:
    """Names that a page says are in a file, `file.py` (`name`), and are not."""
    pairs = [(file, name) for file, names in _INSIDE.findall(text) for name in re.findall(r"\w+", names.replace(" and ", " "))]
    return [f"{name} in {file}" for file, name in pairs if not re.search(rf"\b{name}\b", (ROOT / file).read_text())]


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file."""
    targets = [target.partition("#")[0] for target in _LINK.findall(page.read_text()) if "://" not in target]
    return [target for target in targets if target and not (page.parent / target).exists()]


def _elsewhere(name: str, thing: Any) -> bool:
    """Whether `name` says a module (not a package, which may export what others hold) in which a function or class is not defined."""
    module = name.rpartition(".")[0]
    home = getattr(thing, "__module__", None)
    if not isinstance(thing, (type, types.FunctionType)) or module not in sys.modules or hasattr(sys.modules[module], "__path__"):
        return False
    return home != module


def _known(name: str) -> bool:
    if _FILE.fullmatch(name):
        return name in GENERATED or (ROOT / name).exists()
    if _DOTTED.fullmatch(name):
        try:
            thing = found(name)
        except AttributeError:
            owner, _, attribute = name.rpartition(".")
            return attribute in classes().get(owner.rpartition(".")[2], ())
        return not _elsewhere(name, thing)
    if _CONSTANT.fullmatch(name):
        return name in constants()
    if _CLASS.fullmatch(name):
        owner, _, attribute = name.partition(".")
        return owner in classes() and (not attribute or attribute in classes()[owner])
    return True
