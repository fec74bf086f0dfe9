"""Graphs as text: names from the user's program (`suggest_name`), one line per node (`to_text`), and Graphviz (`to_dot`)."""

from __future__ import annotations

import ast
import inspect
import keyword
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable
from os.path import basename
from types import CodeType
from typing import Any

import numpy as np

from tracegrad.errors import printable
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.locations import Location
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.source_lines import line_of, lines_of, parsed


def source_line(location: Location) -> str:
    """The text of a user's line, stripped; empty if it is not to be had."""
    return printable(line_of(location.filename, location.line))


def file_line(location: Location) -> str:
    """`program.py:12`."""
    return f"{printable(basename(location.filename))}:{location.line}"


def assigned_name(filename: str, line: int) -> str:
    """The variable that a line assigns to, or an empty string."""
    return _assigned(line_of(filename, line))


@memoize(4096)
def _assigned(text: str) -> str:
    statement = next(iter(parsed(text)), None)
    if statement is None or any(isinstance(part, ast.Lambda) for part in ast.walk(statement)):
        return ""                                # the name is the function's, not the value's
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)) and isinstance(statement.target, ast.Name):
        return statement.target.id
    return ""


def _definition(fn: Callable[..., Any]) -> ast.stmt | None:
    """A function's statement, None if its text is not there or does not stand alone. (`inspect.getsource` takes 8 ms at its first use.)"""
    fn = inspect.unwrap(fn)
    code = getattr(fn, "__code__", None)
    if code is None:
        return None
    lines = lines_of(code.co_filename)
    first, last, codes = code.co_firstlineno - 1, 0, [code]
    for part in codes:                               # those of the functions inside it, too
        last = max([last, *(end or 0 for _, end, *_ in part.co_positions())])
        codes += [constant for constant in part.co_consts if isinstance(constant, CodeType)]
    for end in range(last, min(last + 8, len(lines)) + 1):       # brackets may be closed on lines that have no code
        for statement in parsed(textwrap.dedent("".join(lines[first:end]))):
            return statement
    return None


def returned_names(fn: Callable[..., Any]) -> list[str]:
    """The variables in a function's return statement: one a result, "" for what is no variable; empty if there is no one such statement."""
    definition = _definition(fn)
    if not isinstance(definition, ast.FunctionDef):
        return []
    found = []
    todo: list[ast.AST] = list(definition.body)
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Return) and part.value is not None:
            results = part.value.elts if isinstance(part.value, ast.Tuple) else [part.value]
            found.append([r.id if isinstance(r, ast.Name) else r.attr if isinstance(r, ast.Attribute) else "" for r in results])
        elif not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            todo += ast.iter_child_nodes(part)
    return found[0] if found and all(names == found[0] for names in found) else []


def namer(graph: Graph) -> Callable[[Node], str]:
    """What to call the values of `graph`: labels and assigned variables; of the several nodes of a line, the last is the variable.

    Works for nodes that passes made of the graph's, too: they keep the location.
    """
    last: dict[Location, tuple[str, tuple[int, ...]]] = {}
    for node in graph:
        if node.operands:
            last[node.loc] = (node.fn.name, node.shape)

    def name(node: Node) -> str:
        if node.attrs.get("label"):
            return str(node.attrs["label"])
        if node.operands and not node.loc.derived and last.get(node.loc, (node.fn.name, node.shape)) != (node.fn.name, node.shape):
            return node.loc.role or node.fn.name
        return suggest_name(node)

    return name


def suggest_name(node: Node) -> str:
    """A base name for a node's value: its label, the variable it was assigned to, or the op's name.

    An input without a label was not made by the line that first used it, so that line's variable is not its name.
    """
    label = node.attrs.get("label", "")
    if label:
        return identifier(str(label))
    if node.fn.family == "leaf":
        return "input" if node.fn.name == "placeholder" else node.fn.name
    name = assigned_name(node.loc.filename, node.loc.line)
    if name:
        return f"d_{name}" if node.loc.derived else name
    return node.fn.name


def unique_names(nodes: Iterable[Node], suggest: Callable[[Node], str] = suggest_name, taken: Iterable[str] = ()) -> dict[Node, str]:
    """A Python identifier for each node, none twice: its suggestion, numbered from the second time on. Stable for one graph."""
    used = set(taken)
    names: dict[Node, str] = {}
    counts: dict[str, int] = {}
    for node in nodes:
        base = identifier(suggest(node))
        name = base
        while name in used or keyword.iskeyword(name):
            counts[base] = counts.get(base, 0) + 1
            name = f"{base}_{counts[base]}"
        used.add(name)
        names[node] = name
    return names


def identifier(text: str) -> str:
    """`text` made into a Python identifier (not necessarily a free one)."""
    normal = unicodedata.normalize("NFKC", text)             # as Python reads a name
    cleaned = re.sub(r"_+", "_", "".join([c if f"_{c}".isidentifier() else "_" for c in normal])).strip("_") or "value"
    if not (cleaned.isidentifier() or (f"_{cleaned}".isidentifier() and cleaned[0].isdigit())):        # it begins with an accent
        cleaned = cleaned.encode("ascii", "ignore").decode().strip("_") or "value"
    return f"_{cleaned}" if cleaned[0].isdigit() else f"{cleaned}_" if keyword.iskeyword(cleaned) else cleaned


def attribute_text(value: Any) -> str:
    """A static attribute, short."""
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    return repr(value) if not callable(value) else getattr(value, "__name__", type(value).__name__)


_SILENT = {"bits", "uid", "aval", "label", "weak"}       # bookkeeping that tells a reader nothing


def to_text(graph: Graph) -> str:
    """One line per node: `name: dtype[shape] = op(operands, attribute=value)  # file:line`; outputs last.

    >>> f = tg.trace(lambda x: (x * 2).sin())
    >>> y = f(tg.ones(3))
    >>> print(to_text(f.graph))
    """
    names = unique_names(graph)
    bodies: dict[Any, str] = {}
    rows = []
    for node in graph:
        attrs = [f"{k}={attribute_text(v)}" for k, v in node.attrs.items() if k not in _SILENT]
        if node.fn.family == "loop":
            bodies[node.fn] = bodies.get(node.fn, f"iteration_{len(bodies)}" if bodies else "iteration")
            attrs = [bodies[node.fn], *(f"{k}={v}" for k, v in node.fn.shown), *attrs]  # type: ignore[attr-defined]
        call = f"{node.fn.name}({', '.join([*(names[o] for o in node.operands if o in names), *attrs])})"
        place = file_line(node.loc) + (" (derived)" if node.loc.derived else "")
        rows.append((f"{names[node]}: {node.aval} = {call}", place))
    width = min(100, max((len(left) for left, _ in rows), default=0))
    lines = [f"{left:<{width}}  # {place}" for left, place in rows]
    iterations = [f"{name}: one of scan\n{textwrap.indent(to_text(fn.graph), '  ')}" for fn, name in bodies.items()]
    return "\n".join([*lines, f"return {', '.join(names[o] for o in graph.outputs)}", *iterations])


def to_dot(graph: Graph) -> str:
    """The graph in Graphviz's language: inputs as boxes, derived nodes dashed, outputs doubly ringed, operand numbers on edges.

    >>> f = tg.trace(lambda x: (x * 2).sin())
    >>> y = f(tg.ones(3))
    >>> from pathlib import Path
    >>> count = Path("graph.dot").write_text(to_dot(f.graph))        # then: dot -Tsvg graph.dot
    """
    names = unique_names(graph)
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    lines = ["digraph tracegrad {", '  node [fontname="monospace", fontsize=10];']
    for node in graph:
        value = f" {attribute_text(node.attrs['value'])}" if node.fn.name == "const" else ""
        style = ["shape=box" if node in inputs else "shape=ellipse"]
        style += ["style=dashed"] * node.loc.derived + ["peripheries=2"] * (node in outputs)
        title = f"{names[node]}\\n{node.fn.name}{value} {node.aval}"
        lines.append(f'  "{names[node]}" [label="{title}", {", ".join(style)}];')
    for node in graph:
        if node not in inputs:
            for index, operand in enumerate(node.operands):
                label = f' [label="{index}"]' if len(node.operands) > 1 else ""
                lines.append(f'  "{names[operand]}" -> "{names[node]}"{label};')
    return "\n".join([*lines, "}"])


def aval_text(aval: Aval) -> str:
    """The shape and dtype for people: `float32[64, 10]`, `float` for a run-time Python number."""
    if aval.weak:
        return {"f": "float", "i": "int", "b": "bool", "c": "complex"}.get(dtype_kind(aval.dtype), str(aval.dtype))
    return f"{aval.dtype}[{', '.join(map(str, aval.shape))}]"
