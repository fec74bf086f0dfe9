"""Kernels as OpenCL C: blocks as indented lines, with the line of the user's program that a statement came from. Start at `lines`."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from os.path import basename
from typing import Any

from tracegrad.codegen.kernel.statements import Block, Parameter, Statement
from tracegrad.ir import Node

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def lines(body: Block) -> list[str]:
    """The lines of a kernel's body, indented, with comments."""
    out: list[str] = []
    previous: Any = None
    names: dict[str, str] = {}                               # of a merged kernel's parts: what their parameters are called now
    outer: list[dict[str, str]] = []                         # the same, in the blocks around

    def add(pad: str, statement: Statement) -> None:
        nonlocal previous
        comment, previous = line_comment(statement.node, previous)
        out.append(with_comment(pad + (renamed(statement.text, names) if names else statement.text), comment))

    stack: list[tuple[Block, int]] = [(body, 0)]
    while stack:
        block, at = stack.pop()
        pad = "  " * (1 + len(stack))
        while at < len(block.items):
            item = block.items[at]
            at += 1
            if isinstance(item, Block):
                if not item.items:
                    continue
                outer.append(names)
                names = names | {old: names.get(new, new) for old, new in item.renamed.items()} if item.renamed else names
                previous = None if item.comment else previous
                head = renamed(item.head, names) if names else item.head
                head = head.replace("\n", f"\n{pad}")
                inner = item.items[0]
                if len(item.items) == 1 and isinstance(inner, Statement) and not item.comment and head != "{":
                    out.append(pad + head[:-2])
                    add(pad + "  ", inner)
                    names = outer.pop()
                    continue
                out.append(f"{pad}{head}  // {item.comment}" if item.comment else pad + head)
                stack.append((block, at))
                stack.append((item, 0))
                break
            add(pad, item)
        else:
            if stack:
                names = outer.pop()
                out.append(pad[:-2] + "}")
    return out


def function(
    entry: str, parameters: Sequence[Parameter], body: Sequence[str], comments: Sequence[str], attribute: str, wide: int
) -> str:
    """The text of a kernel. wide: from which length on its parameters stand on a line each."""
    declared = [p.declaration for p in parameters]
    one = ", ".join(declared)
    joined = one if len(one) + len(entry) < wide else "\n    " + ",\n    ".join(declared)
    above = "".join([*(f"// {comment}\n" for comment in comments if comment), attribute and f"{attribute}\n"])
    return f"{above}__kernel void {entry}({joined}) {{\n" + "".join(f"{line}\n" for line in body) + "}\n"


def renamed(code: str, names: dict[str, str]) -> str:
    return _WORD.sub(lambda match: names.get(match[0], match[0]), code)


def with_comment(text: str, comment: str) -> str:
    return f"{text:<70}  // {comment}" if comment else text


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


def line_comment(node: Node | None, previous: Any) -> tuple[str, Any]:
    """The Python line that `node` came from if it is another than `previous`, and what to compare the next with."""
    if node is None or node.fn.family == "leaf" or is_fixed(node):
        return "", previous
    loc = node.loc
    key = (loc.filename, loc.line, loc.derived)
    if key == previous:
        return "", previous
    source = linecache.getline(loc.filename, loc.line).strip()
    if len(source) > 80:
        source = source[:77] + "..."
    return f"{basename(loc.filename)}:{loc.line}{' ∂' if loc.derived else ''}  {source}".rstrip().replace("\\", "/"), key
