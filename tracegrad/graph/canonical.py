"""What tells one structure of nodes from another. Start at `canonical`: the key, the order and the places of nodes.

Pending work, a backward, the body of a loop, a program that is compiled, a kernel: each is looked up by what it computes, and what a node
adds to such a key is said here, once (`contribution`). Attributes that are equal mean the same, since nodes are shared by them
(`primitive.bind`), so they stand in keys as they are.

A number is an operand of the structure (`is_number`): work that differs in numbers only has one key, and gets them by value. What is made
for it may know some of them all the same: `Numbers` says which, those that were never seen to change. Where code looks at numbers
(derivatives fold 0 and 1, powers become products), their bits stand in the key: `contribution`, and `canonical` of a whole program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tracegrad.graph.ir import Node

Places = tuple[int, ...]
MOST = 1e38                                  # a float from there on may be too large for float32
EXACT = 1 << 24             # integers below it are floats of 32 bits


class Key:
    """What tells one structure from another, hashed once: a look-up asks for the hash of its key several times."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._hash == other._hash and self.parts == other.parts


class Canonical(NamedTuple):
    """Nodes in a canonical order: operands first, from the first root to the last.

    Node i of `order` has the place i, leaf k the place ~k: its index in a list of values that ends with the leaves, the last one first.
    number: the places of all nodes that were met. parts: what the key is made of, without the places of the roots. places: of each node's
    operands. starts: of work, the nodes that it cannot start with, unless they are indices: those without operands, and transfers.
    """

    number: dict[Node, int]
    order: list[Node]
    leaves: list[Node]
    parts: list[Any]
    places: list[Places]
    starts: list[Node]

    def key(self, roots: Sequence[Node], *more: Any) -> Key:
        """The key of `roots`, and of whatever else tells two of them apart."""
        number = self.number
        return Key((*more, *self.parts, None, *[number[root] for root in roots]))


def canonical(roots: Sequence[Node], inputs: Sequence[Node] = (), leaf: Callable[[Node], Any] | None = None) -> Canonical:
    """What `roots` are computed by. (Iterative, deterministic, and the hot path of untraced work.)

    inputs: leaves that come first. leaf(node): what a leaf adds to the key, None for a node that is none.

    Without `leaf` it is the work that gives the roots values: leaves are what has a value, it sees through what differentiation alone cares
    about, and numbers are operands. With it, it is the whole program: whatever a derivative or a kernel may depend on is a part of the key.
    """
    whole = leaf is not None
    number: dict[Node, int] = {n: ~k for k, n in enumerate(inputs)}
    order: list[Node] = []
    leaves: list[Node] = list(inputs)
    parts: list[Any] = [n.aval for n in inputs]
    places: list[Places] = []
    starts: list[Node] = []
    get = number.get
    for root in roots:
        if leaf is not None and root not in number and (told := leaf(root)) is not None:
            number[root] = ~len(leaves)
            leaves.append(root)
            parts.append(told)
        if root in number:
            continue
        if root.fn.boundary:
            starts.append(root)
        stack = [root]
        while stack:
            node = stack[-1]
            depth = len(stack)
            place = []
            for o in node.operands:
                at = get(o)
                if at is None:
                    found = o
                    if o.fn.boundary and not whole:
                        found = resolve(o)
                        at = get(found)
                        if found.fn.boundary and found.value is None:
                            starts.append(found)
                    if at is None:
                        told = leaf(found) if leaf is not None else None if found.value is None else found.aval
                        if told is None:
                            stack.append(found)
                            continue
                        at = number[found] = ~len(leaves)
                        leaves.append(found)
                        parts.append(told)
                    number[o] = at
                place.append(at)
            if len(stack) > depth:
                continue
            stack.pop()
            if node in number:
                continue
            number[node] = len(order)
            order.append(node)
            places.append(tuple(place))
            if whole:
                parts += contribution(node)
                parts += place
                continue
            fn = node.fn                                    # of `contribution` what values depend on, in few steps
            parts.append(fn)
            if fn.number and not node.aval.weak:
                parts.append(node.aval)
                continue
            if node.attrs:
                parts += node.attrs.items()
            if place:
                parts += place
            else:
                starts.append(node)
    return Canonical(number, order, leaves, parts, places, starts)


def contribution(node: Node) -> tuple[Any, ...]:
    """What a node adds to a key, beside the places of its operands: whatever a derivative, a kernel or NumPy's rule may ask of it.

    A number adds its bits, which tell NaN from NaN and 0.0 from -0.0.
    """
    attrs = node.attrs
    if node.fn.number:
        return node.fn, node.aval, node.needs_grad, attrs["bits"]
    return (node.fn, node.aval, node.needs_grad, *attrs.items()) if attrs else (node.fn, node.aval, node.needs_grad)


def resolve(node: Node) -> Node:
    """The node that computes `node`'s value: sees through what only differentiation cares about."""
    while node.fn.boundary:
        family = node.fn.family
        if family == "elementwise":
            node = node.operands[0]
        elif family == "output" and node.operands and node.operands[0].fn.family == "custom":
            call = node.operands[0]
            node = (call.operands or call.value)[node.attrs["index"]]
        else:
            break                                           # a transfer, or an output that stands by itself
    return node


# ---------------------------------------------------------------------------------------------------------------- numbers
#
# Which numbers are operands, and when something is made for one of them all the same:
# - of work: constants and starts of slices. Programs have them as literals until they are seen to change (`Numbers`), NumPy never.
# - of a call: a Python float beside one tensor (`without_number`). One that recurs gets nodes of its own.
# - of a derivative: none at first, since its rules look at them (0 and 1 fold, powers become products). A float that only operations with
#   `Primitive.scalar_polymorphic` read is one, once two backwards with different ones differ in nothing else
#   (backward_cache._Gradients.generalize).


def is_number(node: Node) -> bool:
    """Whether a node is a number that two pieces of work of one structure need not share: a constant, or where a slice begins."""
    return node.fn.number and not node.aval.weak


class Numbers:
    """The numbers of one structure, each time it came: those that were seen to change are operands, the others are known.

    last: the bits of the latest. varying: the positions of those that change. Bools never do: what they choose is another program.
    """

    __slots__ = ("last", "varying")

    def __init__(self) -> None:
        self.last: tuple[bytes, ...] = ()
        self.varying: frozenset[int] = frozenset()

    def seen(self, bits: tuple[bytes, ...], nodes: Sequence[Node]) -> frozenset[int]:
        """The positions of those that change, once these, which `nodes` are, have come."""
        if self.last == bits or not self.last:
            return self.varying
        pairs = enumerate(zip(self.last, bits, strict=True))
        return self.varying | {i for i, (a, b) in pairs if a != b and nodes[i].dtype.kind != "b"}

    def note(self, bits: tuple[bytes, ...], nodes: Sequence[Node]) -> None:
        """These have come."""
        self.varying = self.seen(bits, nodes)
        self.last = bits


def fixed(bits: Sequence[bytes], varying: frozenset[int]) -> tuple[bytes, ...]:
    """Of numbers those that do not change."""
    return tuple([b for i, b in enumerate(bits) if i not in varying])


def number_of(args: Sequence[Any]) -> float:
    """The Python number of a call with one tensor and one such number."""
    number: float = args[0] if args[0].__class__ in (float, int) else args[1]
    return number


def without_number(key: tuple[Any, ...], args: Sequence[Any]) -> tuple[Any, ...] | None:
    """The key of a call with one tensor and one Python number, whatever that is; None of others."""
    if len(args) == 2:
        first, second = args
        if second.__class__ is float:
            return key[:-1] if -MOST < second < MOST else None
        if first.__class__ is float:
            return (*key[:2], *key[3:]) if -MOST < first < MOST else None
        if second.__class__ is int:
            return (*key[:-1], int) if -EXACT < second < EXACT else None
        if first.__class__ is int:
            return (key[0], int, *key[2:]) if -EXACT < first < EXACT else None
    return None
