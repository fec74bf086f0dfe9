"""The user's lines beside the statements that they are computed by. See `line_comment`."""

from __future__ import annotations

from os.path import basename
from typing import Any

from tracegrad.codegen.kernel.text.markup import beside
from tracegrad.graph.ir import Node
from tracegrad.support.source_lines import line_of


def is_fixed(node: Node) -> bool:
    """Whether a value depends on no input, as far as a short look shows: such a node may be another program's, too, with its line."""
    todo, seen = [node], {node}
    while todo and len(seen) < 16:
        node = todo.pop()
        if node.fn.name in ("placeholder", "data") or (not node.operands and node.fn.family not in ("leaf", "index")):
            return False
        fresh = [o for o in node.operands if o not in seen]
        seen.update(fresh)
        todo += fresh
    return not todo


def line_comment(node: Node | None, previous: Any, fixed: dict[Node, bool]) -> tuple[str, Any]:
    """The Python line that `node` came from if it is another than `previous`, and what to compare the next with.

    fixed: of which nodes it is known whether they are (see `is_fixed`).
    """
    if node is None or node.fn.family == "leaf":
        return "", previous
    if node not in fixed:
        fixed[node] = all(fixed.get(o, True) for o in node.operands) and is_fixed(node)
    if fixed[node]:
        return "", previous
    loc = node.loc
    key = (loc.filename, loc.line, loc.derived)
    if key == previous:
        return "", previous
    source = line_of(loc.filename, loc.line)
    if len(source) > 80:
        source = source[:77] + "..."
    return beside(f"{basename(loc.filename)}:{loc.line}{' ∂' if loc.derived else ''}  {source}".rstrip()), key
