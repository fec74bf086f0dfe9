"""The intermediate representation: `Aval`, `Node` and `Graph`. Start at `Node`.

A Node is one application of a Primitive to operand nodes: function, operands, static attributes, aval, and the user's
source location. Nodes are hash-consed through a weak table: the same primitive on the same operands with the same
attributes *is* the same node, so common subexpressions are shared for free. (Nodes of a derivative history are shared within one call
of the user only: see `own_nodes`. A recorded program has leaves of its own: see `own_leaves`.) Operands and attributes never
change; the one thing a node may learn later is its `value` (the buffer that holds its result once it was computed), upon which a node
that needs no derivative forgets its operands.

A Graph is a captured program: a networkx graph of Nodes, behind a typed facade. It is built at capture, not per operation.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, overload

import numpy as np
import optree

from tracegrad.errors import OutOfMemoryError, TraceError
from tracegrad.graph.operators import Operators
from tracegrad.support.cache import listed
from tracegrad.support.dtypes import DType, dtype_kind, users
from tracegrad.support.modes import state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from networkx import MultiDiGraph

    from tracegrad.graph.operation import Operation
from tracegrad.graph.locations import Location, user_location

ON_HOST = ("host_call", "while_loop")          # families of operations that are, or (loops) may be, steps of the host


class Size(tuple[int, ...]):
    """The sizes of a tensor: a tuple of ints that knows how many elements they make. Raises TypeError for what are no integers.

    >>> tg.zeros(2, 3, 4).shape[:2].numel()
    6
    """

    __slots__ = ()

    def __new__(cls, sizes: Iterable[Any] = ()) -> Size:
        return super().__new__(cls, map(index, sizes))

    def numel(self) -> int:
        """The product of the sizes."""
        return prod(self)

    def __reduce__(self) -> Any:
        return Size, (tuple(self),)

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> Size: ...

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Size(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> Any:
        return Size(super().__add__(other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Size((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: Any) -> Any:
        return Size(super().__mul__(times))

    __rmul__ = __mul__


def _sizes_or_what_stands_for_them(_: Any, parts: Iterable[Any]) -> Any:
    parts = tuple(parts)
    return Size(parts) if all(type(n) is int for n in parts) else parts


optree.register_pytree_node(Size, lambda sizes: (tuple(sizes), None, None), _sizes_or_what_stands_for_them,  # as tuples are
                            namespace=optree.registry.__GLOBAL_NAMESPACE)
# Where optree has the containers of transforms: its own, and those that a program registers with torch.utils._pytree. Traces take those as
# objects, which may change in them.
NODES = "tracegrad.transforms"


ADDRESSED = (1 << 63) - 1        # bytes of a tensor, and elements along a dimension: what a signed number of 64 bits counts


class Aval:
    """Abstract value: shape and dtype. `weak`: a run-time Python scalar (it does not promote tensors). `bounded`: of integers.

    Interned: equal avals are the same object, so that comparing and hashing them is cheap.
    Raises OutOfMemoryError for a shape that no index reaches the end of: whatever makes a tensor of it is refused when it is called.
    """

    __slots__ = ("bounded", "dtype", "nbytes", "shape", "size", "sizes", "users_dtype", "weak")
    _interned: ClassVar[dict[tuple[tuple[int, ...], DType, bool], Aval]] = {}
    shape: tuple[int, ...]
    sizes: Size  # the shape as users see it
    dtype: DType
    users_dtype: Any         # the dtype as users see it
    weak: bool
    size: int     # elements
    nbytes: int
    bounded: bool

    def __new__(cls, shape: tuple[int, ...], dtype: DType, weak: bool = False) -> Aval:
        key = (shape, dtype, weak)
        self = cls._interned.get(key)
        if self is None:
            self = super().__new__(cls)
            dtype = np.dtype(dtype)                     # a program's may have come here: see `users`
            key = (shape, dtype, weak)
            self.shape, self.dtype, self.weak = tuple(shape), dtype, weak
            self.users_dtype = users.get(dtype, dtype)
            self.sizes, self.size = Size(shape), prod(shape)
            self.nbytes = self.size * dtype.itemsize
            if max(self.nbytes, *shape, 0) > ADDRESSED:
                raise OutOfMemoryError(f"a {dtype} tensor of shape {self.shape} has {self.size} elements and {self.nbytes} bytes; indices "
                                       "have 64 bits, so neither may be 2**63 or more: make it smaller, or compute it in parts")
            self.bounded = dtype.kind in "iu"
            cls._interned[key] = self
        return self

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" + ("~" if self.weak else "")


class Node(Operators):
    """One application of a primitive. Make nodes with `primitive.bind`, never directly."""

    __slots__ = ("__weakref__", "attrs", "aval", "behind", "constant", "fn", "hooks", "loc", "needs_grad", "operands", "value")

    fn: Operation
    operands: tuple[Node, ...]
    attrs: dict[str, Any]
    aval: Aval
    loc: Location
    constant: bool        # made of constants alone, so the same whoever asks for it, on whatever device
    needs_grad: bool      # a differentiable path leads from a Variable to this node
    value: Any            # the Buffer that holds the result, once known
    behind: Any           # of a LazyNode one only
    hooks: dict[int, Any]                                       # of substitution.HOOKS only

    def __init__(self, fn: Operation, operands: tuple[Node, ...], attrs: dict[str, Any], aval: Aval, needs_grad: bool) -> None:
        self.fn, self.operands, self.attrs, self.aval = fn, operands, attrs, aval
        self.loc = user_location()
        self.needs_grad = needs_grad and dtype_kind(aval.dtype) in "fc"
        self.value = None
        self.constant = fn.constant
        for o in operands:
            if not o.constant:
                self.constant = False
                break

    def twin(self, location: Location | None = None) -> Node:
        """The same application as a node of its own, which no other user's equal expression shares; of another line of his, if given."""
        node = Node(self.fn, self.operands, self.attrs, self.aval, self.needs_grad)
        node.loc, node.constant = location or self.loc, False
        return node

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.aval.shape

    @property
    def dtype(self) -> DType:
        return self.aval.dtype

    @property
    def given(self) -> tuple[DType, ...]:
        """The dtypes of the operands."""
        return tuple([o.aval.dtype for o in self.operands])

    @property
    def name(self) -> str:
        return self.fn.name

    def __bool__(self) -> bool:
        """True, as of any object; but what a test of a number that a @trace function was given says is not known while it is recorded."""
        if state.trace is not None and self.aval.dtype.kind == "b" and not self.aval.shape and any(o.aval.weak for o in self.operands):
            raise TraceError(
                f"{self.loc.call or 'if'} at {self.loc}: a number decides what is done, and has no value yet: a Python float that is "
                "given to a @trace function is a run-time number. Keep it in an attribute or variable that the function reads: then it is "
                "recorded anew for each value"
            )
        return True

    def __repr__(self) -> str:
        attrs = "".join(f", {k}={v}" for k, v in self.attrs.items())
        return f"<{self.fn.name}({', '.join(str(o.aval) for o in self.operands)}{attrs}) -> {self.aval}>"


class LazyNode(Node):
    """The result of a call whose nodes are known (see cached_calls.py): a part of a history whose operands are made when somebody asks.

    From then on it is an ordinary Node. Nobody asks where the derivative is known, too. behind: (the CachedCall, the nodes that the call
    was given, whether a backward has freed it).
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name == "operands":
            self.unfold()
            return self.operands
        raise AttributeError(f"Node has no attribute {name!r}")

    def unfold(self) -> Sequence[Any]:
        """Make the operands. The call's nodes by place, where they were not made before."""
        with _unfolding:
            if type(self) is not LazyNode:
                return ()
            template, nodes, freed = self.behind
            values: Sequence[Any] = template.unfolded(self, nodes, freed)
            self.operands = template.steps[-1][-1](values)
            self.__class__ = Node  # type: ignore[assignment]
            del self.behind
            return values


_unfolding = threading.RLock()


def call_behind(node: Node) -> Any:
    """What is behind a call's result; None where somebody (another thread, even) has asked for its nodes."""
    return getattr(node, "behind", None)


class Entry(weakref.ref[Node]):
    """A place in the weak table `INTERN`. (A WeakValueDictionary does the same in 1.2 us more, a fifth of what a node takes.)"""

    __slots__ = ("key",)
    key: Hashable


INTERN: dict[Hashable, Entry] = listed("interned nodes", {})  # what a node applies to what -> the node, while it is alive


def enter(key: Hashable, node: Node) -> None:
    """Make `node` the one for `key`."""
    entry = INTERN[key] = Entry(node, _leave)
    entry.key = key


def _leave(entry: Entry, table: dict[Hashable, Entry] = INTERN) -> None:        # bound: when Python ends, modules lose their names
    if table.get(entry.key) is entry:
        del table[entry.key]


@contextmanager
def own_nodes() -> Iterator[None]:
    """Nodes of a derivative history that are made inside are shared with each other, and with no other call's.

    Two equal expressions of a user are two histories: a hook on one, or a backward that frees it, must not reach the other.
    """
    previous, state.own = state.own, {}
    try:
        yield
    finally:
        state.own = previous


def tell(name: str, given: Any, result: Any) -> None:
    """Tell whoever watches the calls of the user's about one: its name, and the nodes of its arguments and its results."""
    operands, results = ([n for n in optree.tree_leaves(x) if isinstance(n, Node)] for x in (given, result))
    for watcher in state.watch:
        watcher(name, operands, results)


@contextmanager
def own_leaves(nodes: Iterable[Node] = ()) -> Iterator[None]:
    """Constants and index numbers that are made inside belong to one program: they are shared with each other, and with those of `nodes`

    that are shared already, only. They depend on nothing, so without this any two programs would share them, and what is made of them,
    with the line of the first.
    """
    previous = state.leaves
    keys = [((n.fn, (), *n.attrs.items()), n) for n in nodes if not n.operands]
    found = {key: node for key, node in keys if (entry := INTERN.get(key)) is not None and entry() is node}
    state.leaves = found if previous is None else previous | found
    try:
        yield
    finally:
        state.leaves = previous


def forget_operands(node: Node, instead: tuple[Node, ...] = ()) -> None:
    """Cut a computed node off from its operands, so that they can be freed: it is a leaf that holds `value` from now on.

    instead: what is left in their place, for the derivative's way through a node that is part of a history.
    """
    if type(node) is LazyNode:
        node.operands = instead
        node.__class__ = Node  # type: ignore[assignment]
        del node.behind
    elif node.operands:
        key = (node.fn, node.operands, *node.attrs.items())
        entry = INTERN.get(key)
        if entry is not None and entry() is node:
            del INTERN[key]
        node.operands = instead


def topological(outputs: Iterable[Node], stop: Callable[[Node], bool] | None = None,
                operands_of: Callable[[Node], tuple[Node, ...]] | None = None) -> list[Node]:
    """All nodes that `outputs` depend on, operands first (iterative; deterministic).

    stop(node): do not go beyond it. operands_of(node): what it depends on, in place of all its operands.
    """
    order: list[Node] = []
    done: dict[Node, bool] = {}                              # whether what was met has its place
    stack = [*outputs][::-1]
    while stack:
        node = stack[-1]
        known = done.get(node)
        if known is None:
            done[node] = False
            if stop is None or not stop(node):
                stack += (node.operands if operands_of is None else operands_of(node))[::-1]
        else:
            stack.pop()
            if not known:
                done[node] = True
                order.append(node)
    return order


class Graph:
    """A captured program. It iterates over its `Node`s in topological order.

    inputs: the leaves whose values a call supplies, in call order. outputs: the results, in order (a node may appear more than
    once). output_names: what the user calls them, "" where that is not known. network: its nodes and edges, for networkx's algorithms.
    """

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node], order: Iterable[Node]) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.output_names: list[str] = []
        self._order = dict.fromkeys([*inputs, *order])

    @classmethod
    def capture(cls, inputs: Sequence[Node], outputs: Sequence[Node]) -> Graph:
        """The graph from `inputs` (not looked behind) to `outputs`."""
        return cls(inputs, outputs, topological(outputs, set(inputs).__contains__))

    def __iter__(self) -> Iterator[Node]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, node: object) -> bool:
        return node in self._order

    def users(self, node: Node) -> list[Node]:
        """The nodes that have `node` as an operand, in order; one that has it twice is there twice."""
        return self._users[node]

    def out_degree(self, node: Node) -> int:
        """How often `node` is an operand."""
        return len(self._users[node])

    @cached_property
    def _users(self) -> dict[Node, list[Node]]:
        found: dict[Node, list[Node]] = {n: [] for n in self._order}
        inputs = set(self.inputs)
        for node in self._order:
            for o in node.operands if node not in inputs else ():
                found[o].append(node)
        return found

    @cached_property
    def network(self) -> MultiDiGraph[Node]:
        """The nodes in the same order; an edge (u, v, i) says that u is operand i of v. It has the attributes `inputs` and `outputs`, too.

        It is made when it is first asked for: most of the graphs that a rewriting pass returns are only iterated over.
        """
        from networkx import MultiDiGraph  # noqa: PLC0415  (untraced work that NumPy does needs no graph: 70 ms of its first call)

        graph: MultiDiGraph[Node] = MultiDiGraph(output_names=self.output_names)
        graph.inputs, graph.outputs = self.inputs, self.outputs
        inputs = set(self.inputs)
        graph.add_nodes_from(self._order)
        graph.add_edges_from((o, n, i) for n in self._order if n not in inputs for i, o in enumerate(n.operands))
        return graph

    def masks(self, sources: Iterable[Node | tuple[Node, ...]]) -> list[int]:
        """For each output, which of `sources` it depends on: bit i is the i-th (or, of several nodes, one of them)."""
        found: dict[Node, int] = {}
        for i, source in enumerate(sources):
            for node in source if isinstance(source, tuple) else (source,):
                found[node] = found.get(node, 0) | 1 << i
        for node in self:
            mask = found.get(node, 0)
            for o in node.operands:
                mask |= found.get(o, 0)
            if mask:
                found[node] = mask
        return [found.get(o, 0) for o in self.outputs]

    def rebuilt(self, replace: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
        """The graph in which each node n became replace(n, its new operands); inputs stay. The way passes are written."""
        new: dict[Node, Node] = {n: n for n in self.inputs}
        for node in self:
            if node not in new:
                new[node] = replace(node, tuple(new[o] for o in node.operands))
        return Graph.capture(self.inputs, [new[o] for o in self.outputs])
