"""What is slow in a program, and how to write it: sentences that `explain()` and `profile()` show. Start at `remedies`.

A rule stands here only if what it proposes is better by a count (operations, launches, what is loaded again), and a test applies it.
It speaks of the lines that the user wrote, not of their derivatives, and where it would gain something: not of small work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

from tracegrad.graph.ir import Graph, Node
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.plan import Launch, Plan

LARGE = 1 << 19              # operations from which on a product is worth a sentence
SMALL = 1 << 20              # operations of a launch that is over before the next is there
MANY = 16                    # launches of one line
Found = Iterator[tuple[Node, str]]


def remedies(graph: Graph, plan: Plan | None) -> list[str]:
    """The sentences for an executable graph and its plan, in the order of the lines; each begins with its line."""
    found = {(node.loc.line, text): None for rule in RULES for node, text in rule(graph) if not node.loc.derived}
    if plan is not None:
        found |= {(node.loc.line, text): None for node, text in _launched_apart(graph, plan)}
    return [f"remedy (line {line}): {text}" for line, text in sorted(found)]


# ------------------------------------------------------------------------------------------------------------------ helpers


def _behind(x: Node, *names: str) -> Node:
    """The node of which x is a reshape, a cast, or another of these."""
    while x.fn.name in names:
        x = x.operands[0]
    return x


def _of_name(graph: Graph, name: str) -> Iterable[Node]:
    return (n for n in graph if n.fn.name == name)


def _products(graph: Graph) -> Iterable[Node]:
    return (n for n in graph if n.fn.family == "contraction")


def _cost(m: int, k: int, n: int) -> int:
    return 2 * m * k * n


def _alone(graph: Graph, x: Node, until: Node) -> bool:
    """Whether nothing but `until`, and what lies between, reads x."""
    while x is not until:
        users = graph.users(x)
        if len(users) != 1 or x in graph.outputs:
            return False
        x = users[0]
    return True


# -------------------------------------------------------------------------------------------------------------------- rules


def product_of_product(graph: Graph) -> Found:
    """(a @ b) @ c where a @ (b @ c) takes less than half of it, or the other way round."""
    for node in _products(graph):
        m, k, n = *node.operands[0].shape[-2:], node.shape[-1]
        times = prod(node.shape[:-2])
        for side, operand in enumerate(node.operands):
            inner = _behind(operand, "reshape")
            if inner.fn.family != "contraction" or inner.shape[-2:] != operand.shape[-2:] or not _alone(graph, inner, node):
                continue
            middle = inner.operands[0].shape[-1]
            now = times * (_cost(inner.shape[-2], middle, inner.shape[-1]) + _cost(m, k, n))
            other = times * (_cost(middle, k, n) + _cost(m, middle, n) if side == 0 else _cost(m, k, middle) + _cost(m, middle, n))
            if now > LARGE and 2 * other <= now:
                written = ("(a @ b) @ c", "a @ (b @ c)")
                yield node, f"{written[side]} takes {now} operations here, {written[1 - side]} {other}"


def product_with_one_hot(graph: Graph) -> Found:
    """one_hot(index) @ weight."""
    for node in _products(graph):
        hot = _behind(node.operands[0], "reshape", "cast", "expand")
        if hot.fn.name == "eq" and sum(o.constant for o in hot.operands) == 1:
            if any(_behind(o, "reshape", "expand", "cast").fn.family == "index" for o in hot.operands):
                yield node, "a product with one-hot rows reads all of the other operand: weight[index] takes its rows"


def product_with_diagonal(graph: Graph) -> Found:
    """diag(v) @ a, a @ diag(v)."""
    for node in _products(graph):
        for side, operand in enumerate(node.operands):
            x = _behind(operand, "reshape", "cast", "permute", "expand")
            if x.fn.name == "where" and _is_diagonal(x) and prod(node.shape) * node.operands[0].shape[-1] > LARGE // 2:
                slow, fast = (("diag(v) @ a", "v[:, None] * a"), ("a @ diag(v)", "a * v"))[side]
                yield node, f"{slow} multiplies mostly by zeros: {fast} is the same"


def _is_diagonal(x: Node) -> bool:
    condition, _, other = x.operands
    numbers = [_behind(o, "add", "reshape", "expand") for o in condition.operands]
    return (condition.fn.name == "eq" and all(n.fn.family == "index" for n in numbers) and len({n.attrs["dim"] for n in numbers}) == 2
            and other.fn.name == "const" and not other.attrs["value"])


def inverse_times(graph: Graph) -> Found:
    """inv(a) @ b."""
    for node in _products(graph):
        inverse = _behind(node.operands[0], "reshape")
        if inverse.fn.name == "inv" and _alone(graph, inverse, node):
            yield node, "the inverse is used once: tg.linalg.solve(a, b) for inv(a) @ b takes fewer operations, and keeps more digits"


def diagonal_of_product(graph: Graph) -> Found:
    """(a @ b).diagonal()."""
    for node in _of_name(graph, "slice"):
        product = _behind(node.operands[0], "reshape")
        if product.fn.family != "contraction" or len(node.shape) != 1 or len(product.shape) != 2:
            continue
        if node.shape[0] == min(product.shape) and node.attrs["step"] == (product.shape[1] + 1,) and _alone(graph, product, node):
            if product.aval.size * product.operands[0].shape[-1] > LARGE // 2:
                yield node, "only the diagonal of a product is used: (a * b.T).sum(1) computes nothing else"


def sorted_for_few(graph: Graph) -> Found:
    """x.sort()[0][:k]."""
    for node in _of_name(graph, "argsort"):
        n, ends, todo = node.shape[-1], list[Node](), [node]
        seen = set(todo)
        while todo:
            x = todo.pop()
            users = [u for u in graph.users(x) if u not in seen]
            if x in graph.outputs or not graph.users(x):
                ends.append(x)
            for user in users:
                seen.add(user)
                if user.fn.name == "slice":
                    ends.append(user)
                elif user.aval.size == node.aval.size and user.fn.family in ("elementwise", "movement", "gather"):
                    todo.append(user)
                else:
                    ends.append(user)
        sizes = [_kept(e, node) for e in ends]
        most = max(sizes, default=n)
        if 4 * most <= n and most <= 512 and n >= 64:
            yield node, f"only {most} of {n} sorted elements are used: tg.topk(x, {most}) sorts no others (the smallest: largest=False)"


def _kept(end: Node, order: Node) -> int:
    """How many of the sorted elements `end` keeps, of the first or of the last; all, if it is no such slice."""
    n = order.shape[-1]
    if end.fn.name != "slice" or end.aval.size * n % max(1, order.aval.size):
        return n
    x = end.operands[0]
    for a, b, s, size in zip(end.attrs["start"], end.attrs["stop"], end.attrs["step"], x.shape, strict=True):
        if s != 1 or (a > 0 and b < size):
            return n
    return end.aval.size * n // order.aval.size


def sum_of_broadcast_product(graph: Graph) -> Found:
    """(a[:, :, None] * b).sum(1)."""
    for node in _of_name(graph, "sum"):
        x = node.operands[0]
        if x.fn.name != "mul" or dtype_kind(node.dtype) not in "fc" or not _alone(graph, x, node):
            continue
        own = [_repeated(o, x.shape) for o in x.operands]
        dim = node.attrs["dim"]
        summed = prod(x.shape[d] for d in dim)
        only = [prod(n for d, n in enumerate(x.shape) if own[1 - k][d] and not own[k][d]) for k in (0, 1)]         # rows and columns
        if not any(o[d] for o in own for d in dim) and summed >= 8 and min(only) >= 8 and _cost(summed, *only) > LARGE:
            yield node, ("a sum over a product that is broadcast loads each number again for each result: as a @ b, or by tg.einsum, "
                         "each is used for many")


def _repeated(x: Node, shape: tuple[int, ...]) -> list[bool]:
    """Along which dimensions of `shape` a node is broadcast."""
    lead = len(shape) - len(x.shape)
    own: list[bool] = [True] * lead + [n == 1 < m for n, m in zip(x.shape, shape[lead:], strict=True)]
    if x.fn.name == "expand":
        inner = _repeated(x.operands[0], x.shape)
        own = [a or (d >= lead and inner[d - lead]) for d, a in enumerate(own)]
    return own


RULES: list[Callable[[Graph], Found]] = [
    product_of_product, product_with_one_hot, product_with_diagonal, inverse_times, diagonal_of_product, sorted_for_few,
    sum_of_broadcast_product,
]


# ----------------------------------------------------------------------------------------------------------------- launches


def _launched_apart(graph: Graph, plan: Plan) -> Found:
    """Small products of one line, in many launches: each of the one before it (a chain), or none of another (a batch)."""
    launches: dict[tuple[str, int], int] = defaultdict(int)
    for step in plan.steps:
        if isinstance(step, Launch) and step.flops < SMALL:
            for key in {(name, line) for name, line, derived, *_ in step.fused if not derived}:
                launches[key] += 1
    alike: dict[Any, list[Node]] = defaultdict(list)
    for node in graph:
        if node.fn.family == "contraction" and not node.loc.derived and launches[node.fn.name, node.loc.line] >= MANY:
            alike[node.loc.filename, node.loc.line, *(o.shape for o in node.operands)].append(node)
    for nodes in alike.values():
        depth = _depth(graph, set(nodes))
        if len(nodes) < MANY:
            continue
        if depth == len(nodes):
            yield nodes[0], (f"{len(nodes)} small products, each of the one before, are launched one by one: as the body of tg.scan they "
                             "are one loop in a kernel, compiled once")
        elif depth == 1:
            yield nodes[0], (f"{len(nodes)} small products of one shape are launched one by one: stack their operands, and one product (or "
                             "tg.vmap of the function) is one launch")


def _depth(graph: Graph, nodes: set[Node]) -> int:
    """How many of the nodes are on one path, at most."""
    found: dict[Node, int] = {}
    for node in graph:
        found[node] = max((found.get(o, 0) for o in node.operands), default=0) + (node in nodes)
    return max((found[n] for n in nodes), default=0)
