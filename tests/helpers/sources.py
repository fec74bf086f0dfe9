"""The source files of the library, and their syntax trees, each parsed once for all tests about how the source is written."""

from __future__ import annotations

import ast
import gc
import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ("tracegrad", "codegen", "runtime")


def paths(*folders: str) -> list[Path]:
    """The Python files below folders of the root, each once: the symlinks in tracegrad/ are left out."""
    return [Path(top) / name for folder in folders for top, _, names in os.walk(ROOT / folder) for name in sorted(names)
            if name.endswith(".py")]


@cache
def parsed(path: Path) -> ast.Module:
    gc.disable()                        # of a million nodes, none of which is garbage
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))
