"""What a call of the user's made before, made again without the rules: `CachedCall`. Start at `describe`.

A composed function takes shapes, dtypes and Python values apart, and applies a handful of primitives; a loop calls it with the same ones
at every iteration. What it makes is a function of its operands' avals, of whether derivatives go through them, and of the static
arguments. So the second call of one signature is remembered, and the later ones make its nodes from there: no argument is checked again,
no shape rule asked. Not so where a function may look behind its operands, at constants. Of integers it may see the range (see
intervals.py), which is a part of the signature.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from types import EllipsisType, NoneType
from typing import Any

import numpy as np
import optree

from tracegrad.config import config
from tracegrad.graph.canonical import Key, canonical, contribution
from tracegrad.graph.intervals import has_range, interval
from tracegrad.graph.ir import INTERN, ON_HOST, LazyNode, Node, Size, enter
from tracegrad.graph.locations import Location, user_location
from tracegrad.graph.operators import Operators
from tracegrad.support.cache import Cache, listed
from tracegrad.support.dtypes import default_float
from tracegrad.support.modes import state, unusual

READ_EVERY = 4                                   # a value is read in every so many iterations at least, if it is computed when called
KEPT = 1000                                  # signatures of one function
ARRAY, BOOL, FLOAT, PLAIN, LIST, SLICE, OTHER = range(7)


ARGUMENT_KINDS: dict[type, int] = listed("classes of arguments", {
    bool: BOOL, float: FLOAT, str: PLAIN, NoneType: PLAIN, EllipsisType: PLAIN, tuple: LIST, list: LIST, Size: LIST, slice: SLICE,
    Node: OTHER, LazyNode: OTHER})


def kind_of(cls: type) -> int:
    """The kind of arguments of a class, which `ARGUMENT_KINDS` has from now on."""
    kind = ARGUMENT_KINDS[cls] = ARRAY if issubclass(cls, Operators) else PLAIN if issubclass(cls, np.dtype) else OTHER
    return kind


class _Unknown(Exception):
    """An argument that a signature cannot describe."""


class CachedCall:
    """The nodes that a call made. Places: of the nodes behind its tensors, of constants, then of the nodes, in order.

    steps: (primitive, attributes, these as items, aval, whether a derivative goes through it, places of its operands, what takes these from
    the values). ends: the places of the results. result: that of a single one, else None; tree: then how they are nested. made: the first
    place of a node. shared: the result is the same node for the same operands, as long as it is alive and was not computed (compare
    ir.INTERN). prepared: what does calls eagerly (see execute/eager_executor.py); None: not asked for yet, False: nothing does. is_read:
    somebody reads values that depend on these before their derivative is taken, so they are computed eagerly, too. calls: how many made
    nodes. uses: how many there were. structure: of calls whose result is made without the nodes behind it (ir.LazyNode), what two share
    that differ in offsets only; else None. offsets: these then, and at which places. kept: the places of what a freed one keeps.
    """

    __slots__ = ("__weakref__", "call", "calls", "constants", "ends", "is_read", "kept", "made", "offsets", "prepared", "result", "shared",
                 "steps", "structure", "tree", "uses")

    def __init__(self, nodes: Sequence[Node], result: Any) -> None:
        """nodes: those behind the tensors of the call. Raises _Unknown where what was made is not a function of them."""
        self.prepared: Any = None
        self.is_read, self.calls, self.uses = False, 0, 0
        ends, self.tree = optree.tree_flatten(result, none_is_leaf=True)
        if not all(isinstance(n, Node) for n in ends):
            raise _Unknown
        inputs = list(dict.fromkeys(nodes))
        found = canonical(ends, inputs, lambda node: node if node.constant else None)
        order, given, made = found.order, len(inputs), len(found.leaves)
        if any(not n.operands and n.fn.family != "index" and n.fn.name != "offset" for n in order):
            raise _Unknown
        self.constants, self.made = found.leaves[given:], made
        self.call = order[-1].loc.call if order else ""
        places = [tuple([made + p if p >= 0 else ~p for p in at]) for at in found.places]
        self.steps = [(n.fn, n.attrs, tuple(n.attrs.items()), n.aval, n.needs_grad, at, _taker(at))
                      for n, at in zip(order, places, strict=True)]
        self.ends = [made + p if (p := found.number[n]) >= 0 else ~p for n in ends]
        self.result: Any = self.ends[0] if isinstance(result, Node) else None
        one = self.result is not None and self.result >= made                   # of the nodes, not an operand
        self.shared = one and not ends[0].needs_grad and all(n.fn.family not in ON_HOST for n in order)       # its error is the line's
        for n in order:                                                                                     # (see lapack.run)
            _owners[id(n.attrs)] = self
        self.structure: Key | None = None
        self.offsets: list[tuple[int, Node]] = []
        self.kept: set[int] = set()
        last = one and self.result == made + len(order) - 1 and len(order) > 1 and ends[0].needs_grad
        if last and given <= len({p for at in places for p in at if p < given}) and all(n.fn.recallable for n in order):
            steps = [((n.fn, n.aval) if n.fn.name == "offset" else contribution(n), at) for n, at in zip(order, places, strict=True)]
            self.structure = Key((given, *self.constants, *steps))
            self.offsets = [(k, n) for k, n in enumerate(order, made) if n.fn.name == "offset"]
            self.kept = self._left()

    def make(self, nodes: Sequence[Node]) -> Sequence[Node] | dict[int, Node]:
        """The nodes by place, of the results at least, for other operands of the same signature. They carry the user's line.

        A result that is folded has its operands made when somebody asks for them; one that is shared and there already is that.
        """
        self.calls += 1
        if self.structure is not None:
            node = Node.__new__(LazyNode)
            node.fn, node.attrs, _, node.aval, node.needs_grad, _, _ = self.steps[-1]
            node.loc, node.constant, node.value, node.behind = user_location(4, self.call), False, None, (self, nodes, False)
            return {self.result: node}
        key: Any = None
        if self.shared:
            fn, _, items, _, _, _, operands_of = self.steps[-1]
            single = len(self.steps) == 1
            key = (fn, operands_of([*nodes, *self.constants]), *items) if single else (self, *nodes)
            entry = INTERN.get(key)
            found = None if entry is None else entry()
            if found is not None and (single or (found.value is None and found.operands)):
                return {self.result: found}
        values = self.fresh(nodes, user_location(4, self.call), self.steps)      # behind make and what calls it: never the user
        if key is not None:
            enter(key, values[self.result])
        return values

    def fold(self, nodes: Sequence[Node], result: Any) -> None:
        """Of the call that this was learned from: fold its result, as `make` does. Nobody else has the nodes behind it."""
        if self.structure is not None and type(result) is Node:
            result.__class__ = LazyNode
            result.behind = self, nodes, False
            del result.operands

    def unfolded(self, node: Node, nodes: Sequence[Node], freed: bool) -> list[Any]:
        """The nodes behind the result `node` by place; of a call that was freed, those that save something have no operands."""
        values = self.fresh(nodes, node.loc, self.steps[:-1])
        for made in values[self.made:] if freed else ():
            if made.needs_grad and made.fn.saves:
                made.operands = ()
        return values

    def _left(self) -> set[int]:
        """The places of what the result still depends on once a backward has freed the nodes that save something. (It does not itself.)"""
        found = {*self.ends}
        for k, (fn, _, _, _, needs_grad, places, _) in reversed([*enumerate(self.steps, self.made)]):
            if k in found and not (needs_grad and fn.saves):
                found.update(places)
        return found

    def fresh(self, nodes: Sequence[Node], line: Location, steps: Sequence[Any]) -> list[Any]:
        """New nodes of these of the call's steps by place, which nobody shares. line: the user's."""
        values = [*nodes, *self.constants]
        new, add = Node.__new__, values.append
        for fn, attrs, _, aval, needs_grad, _, operands_of in steps:
            node = new(Node)
            node.fn, node.operands, node.attrs, node.aval, node.loc = fn, operands_of(values), attrs, aval, line
            node.needs_grad, node.constant, node.value = needs_grad, False, None
            add(node)
        return values


def _taker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes the items at `places` as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda values: ()
    place, = places
    return lambda values: (values[place],)


# Of attributes, by id, that templates give to nodes: the template.
_owners: weakref.WeakValueDictionary[int, CachedCall] = listed("templates by attributes", weakref.WeakValueDictionary())


def compute_when_called(order: Sequence[Node], reads: int) -> None:
    """Somebody read so often what these nodes, parts of a history, made, and nearly as often as they were made: from now on it is

    computed when it is called.
    """
    owners = Counter([_owners.get(id(n.attrs)) for n in order if n.needs_grad])
    for template, count in owners.items():
        if template is None or template.is_read or template.calls * len(template.steps) > READ_EVERY * reads * count:
            continue
        if all(k >= template.made and template.steps[k - template.made][4] for k in template.ends):     # parts of a history
            template.is_read, template.prepared = True, None


def describe(args: Sequence[Any], kwargs: dict[str, Any], tensors: bool = True) -> tuple[Any, list[Node], Any] | None:
    """What tells a call from others (hashable), the nodes behind its tensors, each once, and the first of these tensors.

    None where that is not enough to know what the call makes, or where no tensor is given (tensors=False: where one is). (A hot path: every
    call of an operation.)
    """
    if (unusual[0] and state.anew) or not config.recall:
        return None                     # (not `plain`: nodes are recalled where values wait, as in custom functions)
    nodes: dict[Node, int] = {}
    parts: list[Any] = [default_float[0]]
    try:
        first = _add(args, parts, nodes, None)
        if kwargs:
            parts.append(tuple(kwargs))
            first = _add(kwargs.values(), parts, nodes, first)
    except _Unknown:
        return None
    return None if (first is None) is tensors else (tuple(parts), [*nodes], first)


def _add(args: Iterable[Any], parts: list[Any], nodes: dict[Node, int], first: Any) -> Any:
    """What tells the arguments `args` from others, appended to `parts`; the first tensor, if it was not found before.

    nodes: gets those behind tensors, with their numbers.
    """
    grad = None
    for a in args:
        cls = a.__class__
        if cls is int:
            parts.append(a)
            continue
        kind = ARGUMENT_KINDS[cls] if cls in ARGUMENT_KINDS else kind_of(cls)
        if kind == ARRAY:
            if first is None:
                first = a
            elif a._device is not first._device:
                raise _Unknown
            node: Node = a._n if a._trace is None and (a._base is None or a._is_current()) else a._node()     # as a._operand() would
            if node.needs_grad:
                if grad is None:
                    grad = state.grad
                if not grad:
                    behind = node.operands[0] if node.fn.name == "variable" else node        # of a parameter, in few steps
                    node = behind if not (behind.needs_grad or (unusual[0] and state.hidden)) else a._operand()
                if node.needs_grad:
                    parts.append(Operators)
            if node.constant:
                raise _Unknown
            if node in nodes:
                parts += (Node, nodes[node])
                continue
            nodes[node] = len(nodes)
            aval = node.aval
            parts.append(aval)
            if aval.bounded and has_range(node.fn):
                parts.append((interval(node),))                           # checks of indices depend on it
        elif kind == FLOAT:
            parts += (cls, a if a and a == a else repr(a))                # NaN is not itself, and 0.0 equals -0.0
        elif kind == PLAIN:
            parts.append(a)
        elif kind == BOOL:
            parts += (cls, a)                                             # True is not 1, nor 1.0
        elif kind == LIST:
            parts += (cls, len(a))
            first = _add(a, parts, nodes, first)
        elif kind == SLICE:
            parts.append(cls)
            for end in (a.start, a.stop, a.step):
                if end is not None and end.__class__ is not int:
                    raise _Unknown                                        # a tensor's value decides on the result's shape
                parts.append(end)
        else:
            raise _Unknown
    return first


def calls() -> Cache:
    """A cache of the calls of one function: by signature the CachedCall, or None of one that was seen once."""
    return Cache("calls", KEPT, uses=lambda template: template.uses)


def came_before(memo: Cache, key: Any) -> bool:
    """Whether a call of this key, which was looked up in `memo`, is not the first: then it is worth to note how it was made."""
    if key in memo:
        return True
    memo[key] = None
    return False


def learn(memo: Cache, key: Any, nodes: Sequence[Node], result: Any) -> None:
    """Note in `memo`, where `key` was looked up, that a call made `result`; from the second time on, how."""
    if came_before(memo, key):
        with contextlib.suppress(_Unknown):
            template = memo[key] = CachedCall(nodes, result)
            template.fold(nodes, result)
