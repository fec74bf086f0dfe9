"""Sums over all iterations of a loop that are made after it, in the derivative of a scan. Start at `terms_of`.

The gradient of a constant is a sum over the iterations. Where it is a sum of products, one product of what the iterations stack takes less
time than a product and an addition in each iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import bind
from tracegrad.ops.primitives.movement import permute, reshape

Term = tuple[Node, list[Node]]                                # a node, and the reshapes and permutes that come after it


def terms_of(g: Node) -> tuple[list[Term], Node | None]:
    """A sum as terms that may be made after the loop (see `after_loop`), and the rest.

    Products those where it costs less to stack the factors than to add up the product in every iteration; and sums over some dimensions.
    """
    terms: list[Term] = []
    rest = None
    todo: list[Term] = [(g, [])]
    while todo:
        node, moves = todo.pop()
        if node.fn.name == "add" and all(o.shape == node.shape for o in node.operands):
            todo += [(o, moves) for o in node.operands]
        elif node.fn.name in ("reshape", "permute"):
            todo.append((node.operands[0], [node, *moves]))
        elif node.fn.name == "sum" or (
                node.fn.name == "matmul" and len(node.shape) == 2 and sum(o.aval.size for o in node.operands) <= 2 * node.aval.size):
            terms.append((node, moves))
        else:
            rest = _plus(rest, _moved(node, moves))
    return terms, rest


def after_loop(terms: list[Term], rest: Node | None, factors: Collection[Node]) -> tuple[list[Term], Node | None]:
    """The terms that are made after the loop, and the rest. A sum is, where it is one of what is stacked for a product in any case."""
    late = []
    for node, moves in terms:
        if node.fn.name == "matmul" or base_of(node.operands[0]) in factors:
            late.append((node, moves))
        else:
            rest = _plus(rest, _moved(node, moves))
    return late, rest


def _plus(a: Node | None, b: Node) -> Node:
    return b if a is None else a + b


def _moved(x: Node, moves: Sequence[Node]) -> Node:
    for move in moves:
        x = bind(move.fn, (x,), move.attrs)
    return x


def base_of(x: Node, rows: Collection[Node] = ()) -> Node:
    """What x is when it was moved about: one of `rows`, else the first that is no larger than it."""
    found = base = x
    while base not in rows and base.fn.family == "movement" and len(base.operands) == 1:
        base = base.operands[0]
        if base.aval.size <= found.aval.size:
            found = base
    return base if base in rows else found


def whole_sum(term: Node, moves: Sequence[Node], stacked: Sequence[Node]) -> Node:
    """The sum of a term over the iterations, from its stacked operands."""
    if term.fn.name == "sum":
        whole = bind(term.fn, tuple(stacked), {"dim": (0, *(d + 1 for d in term.attrs["dim"]))})
    else:
        a, b = stacked
        iterations, m, k = a.shape
        whole = bind(term.fn, (reshape(permute(a, (1, 0, 2)), (m, iterations * k)), reshape(b, (iterations * k, b.shape[2]))), term.attrs)
    return _moved(whole, moves)
