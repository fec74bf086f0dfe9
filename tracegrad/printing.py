"""Graphs as text: names from the user's program, and (later on) dot and Python source."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

from tracegrad.ir import Location, Node


def source_line(location: Location) -> str:
    """The text of a user's line, stripped; empty if it is not to be had."""
    return linecache.getline(location.filename, location.line).strip()


@lru_cache(maxsize=4096)
def assigned_name(filename: str, line: int) -> str:
    """The variable that a line assigns to, or an empty string."""
    try:
        statement = ast.parse(linecache.getline(filename, line).strip()).body[0]
    except (SyntaxError, IndexError, ValueError):
        return ""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)) and isinstance(statement.target, ast.Name):
        return statement.target.id
    return ""


def suggest_name(node: Node) -> str:
    """A base name for a node's value: its label, the variable it was assigned to, or the op's name."""
    label = node.attrs.get("label", "")
    if label:
        return str(label)
    name = assigned_name(node.loc.filename, node.loc.line)
    if name:
        return f"d_{name}" if node.loc.derived else name
    return node.fn.name
