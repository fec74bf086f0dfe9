"""What was computed in a kernel is not computed again, and stands in front of the loops it does not change in. Start at `Numbering`.

A value has a number, its `key`: what it is of (a node and an index, a test), or its expression. It is remembered in the block that binds
the innermost variable it depends on, so it is found again in that block and in the ones inside, and forgotten when the block is closed.
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from typing import Any

from tracegrad.codegen.kernel.ir.expressions import Buffer, Expression, Load, Local
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.graph.ir import Node


class Numbering:
    """The values of the kernel that `writer` holds, by their keys."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def recall(self, key: Hashable) -> Any:
        """What was remembered by that key where the writer is; None if nothing was."""
        for block in reversed(self.writer.blocks):
            found = block.memo.get(key)
            if found is not None:
                return found
        return None

    def remember(self, key: Hashable, value: Any, vars: Set[Any]) -> None:
        """Remember a value that depends on `vars`, as long as they mean the same."""
        self.writer.blocks[self.writer.depth_of(vars)].memo[key] = value

    def let(self, base: str, value: Expression, node: Node | None = None, depth: int = 0, only_if: Expression | None = None) -> Local:
        """A variable with that value, in the outermost block (but not outside of the one at `depth`) that binds what it depends on.

        What is read of a buffer that the kernel writes stays where it is read: in front of an `if`, another work-item may write it.
        """
        changes = self.writer.updates and _reads_what_changes(value)
        least = self.writer.depth if changes else self.writer.depth_of(value.vars)
        return self.writer.declare(base, value, node, max(depth, least), only_if)


def _reads_what_changes(value: Expression) -> bool:
    if isinstance(value, Load) and isinstance(value.access.memory, Buffer) and value.access.memory.access == "inout":
        return True
    return any(_reads_what_changes(x) for x in value.operands)
