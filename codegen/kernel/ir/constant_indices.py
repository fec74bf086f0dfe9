"""Indices that are numbers: declared as one, or of a loop with one iteration. Kernels print the numbers. See `constants_in`."""

from __future__ import annotations

from tracegrad.codegen.kernel.index.index import Mutable, Var
from tracegrad.codegen.kernel.ir.expressions import At
from tracegrad.codegen.kernel.ir.statements import Block, Break, Declare, Item, Loop, statements_in


def _only_iteration(loop: Loop) -> int | None:
    """The index of a loop that has one iteration, whatever the program's numbers are."""
    start, stop = loop.start.value, loop.stop.value
    if loop.kept or not isinstance(start, At) or not isinstance(stop, At) or start.index.terms or stop.index.terms:
        return None
    first, end = start.index.constant, stop.index.constant - (loop.step - 1) * loop.whole
    once = first < end <= first + loop.step
    return first if once and not any(isinstance(s, Break) for s in statements_in(loop)) else None


def constants_in(body: Block) -> dict[Var, int]:
    """The indices of a kernel that are declared as a number, and never as another."""
    found: dict[Var, set[int]] = {}
    others: set[Var] = set()
    todo = [body]
    while todo:
        for item in todo.pop().items:
            if isinstance(item, Block):
                todo.append(item)
            if isinstance(item, Loop) and (only := _only_iteration(item)) is not None:
                found.setdefault(item.var, set()).add(only)
            elif isinstance(item, (Loop, Item)):
                others.add(item.var)
            elif isinstance(item, Declare) and isinstance(item.symbol, Var) and not isinstance(item.symbol, Mutable):
                value = item.value
                if isinstance(value, At) and value.each is None and not value.index.terms:
                    found.setdefault(item.symbol, set()).add(value.index.constant)
                else:
                    others.add(item.symbol)
    return {var: next(iter(values)) for var, values in found.items() if len(values) == 1 and var not in others}
