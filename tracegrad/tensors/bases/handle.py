"""What a tensor is: a handle on a node. Start at `Handle._node`, through which all reading goes.

A view (basic indexing, reshape, transpose, ...) keeps its base and the chain of movement ops that leads from it: reading a view replays
the chain on the base's present node, writing a view writes the base. A leaf that requires grad holds a `variable` node.
While a trace runs, tensors from outside it are never touched: the trace keeps what they became in an overlay of its own.
"""

from __future__ import annotations

import weakref
from math import prod
from typing import TYPE_CHECKING, Any, Self

from tracegrad.errors import TraceError
from tracegrad.execute.devices import Device
from tracegrad.execute.program import contents
from tracegrad.execute.realize import without_history
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import LazyNode, Node, Size, own_nodes
from tracegrad.graph.operators import Operators
from tracegrad.graph.primitive import REGISTRY, bind
from tracegrad.ops.arguments import one_dim
from tracegrad.runtime.buffer import HostBuffer
from tracegrad.support import dtypes
from tracegrad.support.modes import Recorder, state, unusual
from tracegrad.tensors.bases.view_steps import Steps, Unmade, is_placed, stepped

NEAR = 8        # views behind one that are asked whether they are current
_VARIABLE, _OVERWRITTEN = REGISTRY["variable"], REGISTRY["overwritten"]


class Count(int):
    """What `x.size` is: the number of elements, which called as torch's method gives the shape or the size of one dimension."""

    shape: Size

    @classmethod
    def of(cls, shape: Size, count: int | None = None) -> Count:
        """The Count of a tensor of that shape. count: its elements, where they are known."""
        size = cls(prod(shape) if count is None else count)
        size.shape = shape
        return size

    def __call__(self, dim: int | None = None) -> Any:
        shape = self.shape
        if dim.__class__ is int and -len(shape) <= dim < len(shape):
            return tuple.__getitem__(shape, dim)
        return shape if dim is None else shape[one_dim("size", dim, len(shape))]


class Handle(Operators):
    """The fields of a Tensor, and how its node is found."""

    __slots__ = ("__weakref__", "_aliases", "_bare", "_base", "_callers", "_detached", "_device", "_grad", "_hooks", "_layout", "_moved",
                 "_n", "_post_hooks", "_source", "_steps", "_trace", "_untold", "_versions", "_within")  # fmt: skip

    _n: Node
    _base: Self | None
    # Of a view: how it is reached from its base, as that was laid out when its first _layout moves had been made.
    _steps: Steps | Unmade
    _source: tuple[weakref.ref[Node], int] | None  # of a view: its base's node and version that _n was made from
    _layout: int
    _versions: int  # how often it was written
    _moved: Steps  # what undoes each step of t_(), squeeze_(), ... so far, the latest last; see inplace_views.py
    _detached: bool
    _device: Device
    _grad: Any  # a tensor or None
    _aliases: list[weakref.ref[Any]]  # what `data` and detach gave; not set before that
    _bare: tuple[weakref.ref[Node], Node]  # a node with a value and a history, and what `_operand` gave for it: one call asks several times
    _callers: Self  # of an argument of a custom forward that has a history: the caller's tensor; not set for others
    _hooks: dict[int, Any] | None
    _post_hooks: dict[int, Any]  # called when a gradient has been added to `grad`; not set before there was one
    _trace: Recorder | None
    _untold: int  # how often it was written through what `data` gave, which has 0; not set before that
    _within: tuple[Any, ...]  # the scopes that it was made in (scopes.py); not set where there was none

    if TYPE_CHECKING:
        def _tensor_of(self, node: Node) -> Any: ...
        def _handle(self, node: Node, device: Any, trace: Any = None) -> Any: ...
        def _as_leaf(self, node: Node) -> Node: ...

    def _node(self) -> Node:
        """The node that stands for this tensor's present value."""
        trace = state.trace if unusual[0] else None
        if trace is not None:
            if self._trace is not trace:
                return trace.node_of(self)  # type: ignore[no-any-return]
        elif self._trace is not None:
            raise TraceError(
                f"a tensor made inside @trace ({self._trace.name}) was used after the call ended; return it from the traced "
                f"function, or assign to a tensor that lives outside with copy_()"
            )
        if self._base is None or self._is_current():
            return self._n
        views: list[Any] = [self]
        view: Any = self._base
        while view._base is not None and view._trace is trace:          # no recursion: there may be thousands of them,
            if len(views) < NEAR and view._is_current():                # each of which would ask all that are behind it
                break
            views.append(view)
            view = view._base
        node = view._n if view._trace is trace else view._node()
        for view in reversed(views):
            node = view._replay(node)
        return node  # type: ignore[no-any-return]

    def _is_current(self) -> bool:
        """Whether the node of this view, which has no history, is that of its base's present node, and this of its base's, and so on."""
        known = self._source
        if known is None:
            return False
        version, view, base = known[1], self, self._base
        while base is not None:
            known = view._source
            if known is None or known[0]() is not base._n:
                return False
            view, base = base, base._base
        return version == view._versions            # which t_(), squeeze_(), ... of any of them count, too

    def _held(self) -> Any:
        """The array of this tensor's present value, which nobody writes, if NumPy holds it; else None."""
        if self._trace is not None or (unusual[0] and state.trace is not None):
            return None
        node = self._n if self._base is None else self._node()
        value, aval = node.value, node.aval
        if type(value) is not HostBuffer or value.deferred_checks or (array := value.array) is None:
            return None
        return array if value.fits is aval else contents(value, aval)

    def _operand(self) -> Node:
        """`_node`, as an operation takes it: under no_grad without the history, which the result would not have anyway."""
        node = self._node()
        if node.needs_grad and not state.grad and state.trace is None and not (state.examples or state.hidden):
            while node.fn is _VARIABLE:
                node = node.operands[0]
            known: tuple[weakref.ref[Node], Node] | None = getattr(self, "_bare", None)
            if known is not None and known[0]() is node:
                return known[1]
            bare = without_history(node, self._device)
            if bare is not node and state.plain and resolve(bare).value is not None:
                self._bare = weakref.ref(node), bare
            return bare
        return node

    def _node_outside(self) -> Node:
        """The node of a tensor that belongs to no trace, whether or not one is being recorded."""
        views, view = [], self
        while view._base is not None:
            views.append(view)
            view = view._base
        node = view._n
        for view in reversed(views):
            node = view._replay(node)
        return node

    def _replay(self, node: Node) -> Node:
        """The node of this view, once its base's is `node`: a view that is part of a history keeps one of its own for each."""
        if state.symbolic and self._chain and is_placed(self._chain[-1][0]):
            return self._replay_placed(node)
        if not node.needs_grad or self._detached:
            viewed = self._base
            assert viewed is not None
            known = self._source
            if known is not None and known[0]() is node and known[1] == viewed._version and self._layout == len(viewed._moved):
                return self._n
            source = node
            for fn, attrs in self._chain:
                node = stepped(node, fn, attrs)
            if self._detached:
                node = without_history(node, self._device)
                if self._n.fn is _VARIABLE:
                    node = self._as_leaf(node)
                elif self._n.needs_grad:    # written with a history, before its base was: see InPlace._own_history_after
                    node = bind(_OVERWRITTEN, (node, self._n), {})
            if state.trace is None and self._trace is None:
                self._n, self._source = node, (weakref.ref(source), viewed._version)
            return node
        base = self._n
        behind = getattr(base, "behind", None) if type(base) is LazyNode else None
        if behind is not None and not behind[2] and behind[1][0] is node and len(behind[1]) == 1:
            return base
        for _ in self._chain:
            base = base.operands[0] if base.operands else base
        if base is not node:
            with own_nodes():
                for fn, attrs in self._chain:
                    node = stepped(node, fn, attrs)
            if self._trace is not state.trace:
                return node
            self._n = node
        return self._n

    def _replay_placed(self, node: Node) -> Node:
        """`_replay` where a place is a node: no other view of that base has the nodes in between."""
        viewed, known = self._base, self._source
        assert viewed is not None
        if known is not None and known[0]() is node and known[1] == viewed._version and self._trace is state.trace:
            return self._n
        source = node
        with own_nodes():
            for fn, attrs in self._chain:
                node = stepped(node, fn, attrs)
        if self._detached:
            node = without_history(node, self._device)
            if self._n.needs_grad:
                node = bind(_OVERWRITTEN, (node, self._n), {})
        if self._trace is state.trace:
            self._n, self._source = node, (weakref.ref(source), viewed._version)
        return node

    @property
    def _chain(self) -> Steps:
        """How this view is reached from its base as it is now."""
        moved, steps = self._base._moved if self._base is not None else (), self._steps
        if not isinstance(steps, tuple):
            steps = self._steps = steps.steps()
        if len(moved) != self._layout:
            steps = self._steps = (*reversed(moved[self._layout:]), *steps)
            self._layout = len(moved)
        return steps

    @_chain.setter
    def _chain(self, steps: Steps) -> None:
        assert self._base is not None
        self._steps, self._layout = steps, len(self._base._moved)

    @property
    def shape(self) -> Size:  # type: ignore[override]
        return self._node().aval.sizes if self._base is not None else self._n.aval.sizes

    @property
    def dtype(self) -> Any:
        return self._n.aval.users_dtype

    @property
    def device(self) -> Device:
        return self._device

    @property
    def _version(self) -> int:
        root = self
        while root._base is not None:
            root = root._base
        return root._versions

    def _through_data(self) -> Any:
        """The tensor whose memory this is, if it is, or is a view of, what `data` gave; else None. (In a trace, of what is made there.)"""
        root, found = self, False
        while root._base is not None:
            found = found or (root._detached and hasattr(root, "_untold"))
            root = root._base
        return root if found and root._trace is state.trace else None

    @property
    def _writes(self) -> int:
        """How often it was written, but for what went through `data`, as torch counts for what was saved."""
        root = self
        while root._base is not None:
            root = root._base
        return root._versions - (getattr(root, "_untold", 0) if self._through_data() is None else 0)

    @property
    def size(self) -> Count:
        """The number of elements, as in numpy; called, the shape or the size of one dimension, as in torch: x.size(), x.size(dim)."""
        aval = (self._n if self._base is None else self._node()).aval
        return Count.of(aval.sizes, aval.size)

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements. Any dtype. Raises DTypeError for what is no tensor.

        >>> tg.numel(tg.ones(2, 3))
        """
        return (self._n if self._base is None else self._node()).aval.size

    def element_size(self) -> int:
        """Bytes per element."""
        return int(self.dtype.itemsize)

    @property
    def itemsize(self) -> int:
        return self.element_size()

    @property
    def nbytes(self) -> int:
        return self.numel() * self.element_size()

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float (complex ones are not, as in torch). Any shape. Raises DTypeError for what is no tensor.

        >>> tg.is_floating_point(tg.ones(2))
        """
        return dtypes.is_float(self.dtype)

    nelement = numel
