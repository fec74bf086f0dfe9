"""What ties a tensor to derivatives: whether it requires grad, its gradient, `data`, detaching. Start at `History.requires_grad_`.

`History` is a base of Tensor: what it reads of the handle is Tensor's.
"""

from __future__ import annotations

import weakref
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

from tracegrad.autodiff.derivatives import variable
from tracegrad.config import config
from tracegrad.errors import ArgumentTypeError, AutogradError, DeviceError, DTypeError, ShapeError, TraceError, type_name
from tracegrad.execute.eager_executor import known_of
from tracegrad.execute.program import host_part
from tracegrad.execute.realize import without_history
from tracegrad.graph.ir import Node
from tracegrad.graph.locations import user_location
from tracegrad.graph.operators import check_switch
from tracegrad.graph.primitive import REGISTRY, call, data
from tracegrad.graph.substitution import HOOKS
from tracegrad.ops.primitives.transfer import transfer
from tracegrad.support import dtypes
from tracegrad.support.cache import listed
from tracegrad.support.layouts import accept_format
from tracegrad.support.modes import no_grad, state, unseen, unusual
from tracegrad.tensors.bases.handle import Handle

if TYPE_CHECKING:
    from tracegrad.tensors.tensor import Tensor

_COPY, _DATA, _VARIABLE = REGISTRY["copy"], REGISTRY["data"], REGISTRY["variable"]
leaves: weakref.WeakValueDictionary[int, Tensor] = listed("leaves", weakref.WeakValueDictionary())  # uid of a variable node -> its tensor


class History(Handle):
    """The methods of a tensor that have to do with its gradient and its history."""

    __slots__ = ()

    if TYPE_CHECKING:
        def _double(self) -> Any: ...
        def _is_last(self) -> bool: ...

    @property
    def requires_grad(self) -> bool:
        if not unseen():
            return self._node().needs_grad
        argument = self._argument()
        return argument is not None and argument._node().needs_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def _has_history(self) -> bool:
        """Whether what is done with it has to be recorded: not in a custom forward, whose backward the user writes."""
        return self._node().needs_grad and not unseen()

    @property
    def is_leaf(self) -> bool:
        if not unseen():
            return self._is_leaf()
        argument = self._argument()
        return argument is None or argument._is_leaf()

    def _argument(self) -> Any:
        """In a custom forward, of one of its arguments that have a history, the caller's tensor: it tells of that. Else None."""
        return getattr(self, "_callers", None)

    def _is_leaf(self) -> bool:
        node = self._node()
        if not node.needs_grad:
            return True
        outside = state.trace is not None and self._trace is not state.trace  # there, too: in the trace anything from outside is a variable
        return node.fn is _VARIABLE and leaves.get(node.attrs["uid"]) is self and (not outside or self._node_outside().fn is _VARIABLE)

    @property
    def grad(self) -> Tensor | None:
        trace = state.trace if unusual[0] else None
        if trace is not None and self._trace is not trace:
            return trace.grad_of(self)  # type: ignore[no-any-return]
        found: Tensor | None = self._grad
        return found

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            if not isinstance(value, History):
                raise DTypeError(f"grad: expected a Tensor or None, got {type(value).__name__}")
            if value._device is not self._device:
                raise DeviceError(f"grad: the tensor is on {self._device}, its gradient on {value._device}; move it with x.to(device)")
            if value.shape != self.shape or value.dtype != self.dtype:
                raise ShapeError(f"grad: {value.dtype}{list(value.shape)} does not fit a tensor of {self.dtype}{list(self.shape)}")
        if unusual[0] and state.scopes:
            self._guard(None if value is None else value._node(), "grad")
        trace = state.trace if unusual[0] else None
        if trace is not None and self._trace is not trace:
            trace.set_grad(self, value)
        else:
            self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def data(self) -> Tensor:
        """What detach() gives. Set, the tensor has that value from now on, of another shape or dtype, even, and stays what it is: a leaf,

        a parameter of an optimizer's. What x.data, a leaf's detach() and state_dict gave before keeps the old value: it can be given back.
        """
        found = self.detach() if self._n.fn is _VARIABLE else self._alias(self.detach())
        found._untold = 0
        return found

    @data.setter
    def data(self, value: Any) -> None:
        if not isinstance(value, History):
            raise ArgumentTypeError(f"data: must be a Tensor, got {type_name(value)}; make one with tg.tensor(...), or fill this one with "
                                    "fill_ or copy_ inside `with tg.no_grad():`")
        outside = self._trace is None and state.trace is None and isinstance(value, History)
        if outside and self._is_where(value):       # `x.data += y` gives back what was written in place: all that shares it goes on
            return
        if self._base is not None and self._n.fn is _VARIABLE and state.trace is None:
            self._leave()
        own = self._base is None or not self._has_history()          # what has no history is no view from here on
        told = self._writes
        if own and outside:
            self._become(value.detach())
        else:
            with no_grad():
                self.copy_(value)
        if self._base is None and self._trace is state.trace:
            self._untold = self._versions - told

    def _alias(self, found: Tensor) -> Tensor:
        """`found`, noted for the setter of data."""
        own = self._base is None or self._n.fn is _VARIABLE
        if own and self._trace is None and not (unusual[0] and state.trace is not None):
            self._aliases = [*[ref for ref in getattr(self, "_aliases", ()) if ref() is not None], weakref.ref(found)]
        return found

    def _is_where(self, other: Handle) -> bool:
        """Whether both are the same elements of the same memory."""
        (mine, by), (theirs, steps) = _place(self), _place(other)
        return mine is theirs and by == steps

    def _become(self, value: Any) -> None:
        """Take over the value of a tensor without history, on whatever device and of whatever shape and dtype."""
        aliases = [alias for ref in getattr(self, "_aliases", ()) if (alias := ref()) is not None]
        alike = self._base is None and value.shape == self.shape and value.dtype == self.dtype and value._device is self._device
        new = value._node()
        if not alike and self._node().needs_grad and not self._is_leaf():
            raise AutogradError(
                f"data: a tensor with a derivative history ({self.dtype}{list(self.shape)}) was given another shape, dtype or device "
                f"({value.dtype}{list(value.shape)}); use a tensor of its own for that"
            )
        if not alike:
            self._guard(new, "data")
        if aliases:
            old = self._handle(aliases[0]._node(), self._device)
            old._versions = self._versions
            for alias in aliases:
                alias._base, alias._source = old, None
                alias._chain = ()
            self._aliases = []
        if alike:
            with no_grad():
                self.copy_(self._handle(new, value._device))
            return
        needs_grad, grad = self._has_history(), self._grad
        if value._device is not self._device:
            self._sends_gradients_on()
        self._device, self._base, self._grad = value._device, None, None
        self._steps, self._detached, self._source = (), False, None
        self._set_node(new)
        if needs_grad:
            self.requires_grad_()
        if grad is not None and grad.shape == self.shape:
            self.grad = grad.detach().to(dtype=self.dtype, device=self._device)

    def _sends_gradients_on(self) -> None:
        """Of a leaf that is about to move: gradients of what was computed with it before go to where it lies when they come."""
        node = self._node()
        if node.fn is not _VARIABLE:
            return
        before, leaf = self._device, weakref.ref(self)

        def sent(ct: Node) -> Node:
            moved = leaf()
            if moved is not None:
                ct = transfer(ct, before, moved._device)
                for hook in list(moved._hooks.values()) if moved._hooks is not None else ():
                    ct = hook(ct)
            return ct

        HOOKS[node] = {0: sent}

    def __copy__(self) -> Tensor:
        """Another tensor on the same memory, as in torch; of one that requires grad a copy, which is a leaf."""
        if not self._has_history():
            return self.detach()
        reduced: Any = self.__reduce__()
        restore, given, *own = reduced
        copied: Tensor = restore(*given)
        for attributes in own:
            vars(copied).update(attributes)
        return copied

    def __deepcopy__(self, memo: Any) -> Tensor:
        copied = self.detach().clone()
        copied.grad = None if self.grad is None else self.grad.detach().clone()
        if own := getattr(self, "__dict__", None):
            vars(copied).update(deepcopy(own, memo))
        memo[id(self)] = copied
        return copied.requires_grad_() if self.requires_grad else copied

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Start (or stop) recording operations on this tensor, in place. Only floats and complex numbers can require grad; only leaves can

        stop.
        """
        check_switch("requires_grad_", "requires_grad", requires_grad)
        requires_grad = bool(requires_grad)
        node = self._node()
        if requires_grad != node.needs_grad:
            self._own_history("requires_grad_")
        if requires_grad and not node.needs_grad:
            if not dtypes.differentiable(node.dtype):
                raise DTypeError(f"requires_grad_: only float and complex tensors have gradients, this one is {node.dtype}")
            if self._shares_as_leaf():
                self._detached = True
            else:
                self._base = None
            self._set_node(variable(node))
        elif not requires_grad and node.needs_grad:
            if not self.is_leaf:
                raise AutogradError("requires_grad_: only a leaf can stop requiring grad; use detach()")
            self._set_node(node.operands[0])
        return self

    def _shares_as_leaf(self) -> bool:
        """Whether a leaf made of this tensor, which is a view, goes on sharing memory with its base: not where that has a history."""
        root, made = self._base, self._trace is not None
        while root is not None and root._base is not None:
            root, made = root._base, made or root._trace is not None
        if root is None or made or root._trace is not None or state.trace is not None or state.scopes:
            return False
        return not root._n.needs_grad or root._is_leaf()

    def _share(self, source: Any) -> None:
        """Share memory with `source`, as its detach() would: this tensor was just made of its value.

        What is no view and has no history becomes a view of this one, which then is as any other tensor; else this one is a view.
        """
        own = source._base is None and not source._n.needs_grad and source._trace is None
        if own and state.trace is None and not state.scopes and not hasattr(source, "_within"):
            self._versions = source._versions
            if hasattr(source, "_untold"):
                self._untold = source._untold
                del source._untold
            source._base, source._steps, source._layout, source._detached = self, (), 0, True
            source._source = weakref.ref(self._n), self._versions
            self._alias(source)
            return
        self._base, self._steps, self._layout, self._detached = source, (), len(source._moved), True
        self._source = weakref.ref(source._node()), self._version
        if not self._shares_as_leaf():
            self._stand_alone(self._n)

    def _as_leaf(self, node: Node) -> Node:
        """What stands for a leaf that is a view, once its base gives it the value `node`."""
        leaf: Node = variable(node)
        become_leaf(self, leaf)  # type: ignore[arg-type]
        if state.trace is not None:
            state.trace.leaves.append((self, leaf))
        return leaf

    def _stand_alone(self, node: Node) -> None:
        """Of a view, whose node is `node`: keep that value, and share memory with its base no more."""
        self._n, self._versions = node, self._version
        self._base, self._steps, self._detached, self._source = None, (), False, None

    def _settle(self) -> None:
        """Of a leaf that is a view of what nobody else has: share memory with it no more."""
        if self._base is not None and self._detached and self._is_last():
            self._stand_alone(self._node())

    def _leave(self) -> None:
        """Of a leaf that is a view: `_stand_alone`; what x.data and detach() gave stays in its place."""
        node = self._node()
        old = self._double()
        old._n, old._hooks, old._grad = node.operands[0], None, None
        for ref in getattr(self, "_aliases", ()):
            if (alias := ref()) is not None:
                alias._base, alias._source, alias._chain = old, None, ()
        self._aliases = []
        self._stand_alone(node)

    def detach(self) -> Tensor:
        """The same values without history; shares memory with this tensor, as in torch."""
        node = self._node()
        bare = without_history(node, self._device)
        result = self._handle(bare, self._device, state.trace if unusual[0] else None)
        result._base, result._steps, result._layout, result._detached = self, (), len(self._moved), True
        if result._trace is None:
            result._source = weakref.ref(node), self._versions if self._base is None else self._version
        return self._alias(result) if node.fn is _VARIABLE else result

    def detach_(self) -> Self:
        """Forget the history, in place; shape and dtype stay. Raises AutogradError for a view: its base has it.

        >>> x = tg.ones(2, requires_grad=True) * 2
        >>> x.detach_().requires_grad
        False
        """
        if self._base is not None and not self._detached:
            raise AutogradError("detach_: a view shares the history of the tensor that it is a view of; use detach()")
        node = self._node()
        if node.needs_grad:
            self._own_history("detach_")
            if self._base is not None:
                self._n = without_history(node, self._device)
            else:
                self._set_node(without_history(node, self._device))
        return self

    def _own_history(self, call: str) -> None:
        """Refuse to change in a trace whether a tensor from outside requires grad: a replay writes values only."""
        self._guard(None, call)
        if state.trace is not None and self._trace is not state.trace:
            raise TraceError(
                f"{call} at {user_location()}: inside @trace ({state.trace.name}) a tensor from outside cannot start or stop "
                "requiring grad; do it before the call, or use x.detach() in its place"
            )

    def clone(self, *, memory_format: Any = None) -> Tensor:
        """A copy of its own, with history. memory_format: see support/layouts.py.

        Any shape and dtype. Raises DTypeError for what is no tensor.

        >>> tg.clone(tg.ones(2))
        """
        accept_format("clone", memory_format)
        node = self._node()
        array = self._held() if not node.needs_grad and state.plain and config.eager and config.recall else None
        if array is None:
            copied: Tensor = call(_COPY, (self,), {})
        else:                                               # which nobody writes: another handle on it
            known = node.attrs if node.fn is _DATA else known_of(node)
            copied = self._handle(data(node.aval, host_part(self._device, array), known), self._device)
        return copied


def become_leaf(tensor: Tensor, node: Node) -> None:
    """From now on, gradients of the variable `node` belong to `tensor`, and its hooks see them.

    The numbers of leaves are negative: `derivatives.recorded` knows them by that when nobody holds the tensor any more.
    """
    if node.attrs["uid"] > 0:
        node.attrs = {"uid": -node.attrs["uid"]}
    if leaves.get(node.attrs["uid"]) is not tensor:         # (to set it takes three times as long)
        leaves[node.attrs["uid"]] = tensor
    if tensor._hooks is not None:
        HOOKS[node] = tensor._hooks


def _place(view: Handle) -> tuple[Handle, tuple[Any, ...]]:
    """The tensor whose memory a tensor lies in, and the steps of views from there."""
    steps: tuple[Any, ...] = ()
    while view._base is not None:
        view, steps = view._base, (*view._chain, *steps)
    return view, steps
