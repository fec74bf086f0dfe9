"""How a tensor is given another value: `InPlace._rebind`, through which all writing goes; copy_, fill_ and their kind.

`InPlace` is a base of Tensor: what it reads of the handle is Tensor's.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tracegrad.autodiff.derivatives import variable
from tracegrad.config import config
from tracegrad.errors import AutogradError, DeviceError, DTypeError, ShapeError, warn
from tracegrad.execute.eager_executor import made_eagerly
from tracegrad.execute.program import host_part
from tracegrad.execute.realize import without_history
from tracegrad.graph.ir import Node, own_nodes
from tracegrad.graph.operators import PUBLIC
from tracegrad.graph.primitive import REGISTRY, bind, cast, data, exact_number, iota, scalar
from tracegrad.ops.arrays.shaping.repeating import expanded
from tracegrad.ops.primitives.movement import expand
from tracegrad.support import dtypes
from tracegrad.support.modes import set_grad_enabled, state
from tracegrad.tensors.bases.handle import Handle
from tracegrad.tensors.bases.view_steps import Steps, overlap, own_copy, put_back

DEEP = 100              # views of views, from where on a write goes to what has the memory at once
_VARIABLE, _OVERWRITTEN, _REFILLED = REGISTRY["variable"], REGISTRY["overwritten"], REGISTRY["refilled"]


class InPlace(Handle):
    """The methods of a tensor that write it."""

    __slots__ = ()

    if TYPE_CHECKING:
        def _stand_alone(self, node: Node) -> None: ...
        def _alias(self, found: Any) -> Any: ...

    def _rebind(self, node: Node, call: str) -> Self:
        """Give the tensor a new value, in place. `call` is the method's name, for errors."""
        old = self._node()
        if node.fn is _VARIABLE:
            node = own_copy(node)  # another tensor's leaf stays that tensor's
        if node.shape != old.shape:
            raise ShapeError(
                f"{call}: the result has shape {node.shape}, the tensor {old.shape}; an in-place operation cannot change the shape"
            )
        if node.dtype != old.dtype:
            if dtypes.category(node.dtype) > dtypes.category(old.dtype):
                raise DTypeError(f"{call}: the result is {node.dtype} and can't be cast to the tensor's {old.dtype}; use the operation "
                                 "that is not in place")
            node = cast(node, old.dtype)
        if state.scopes:
            self._guard(node, call)
        if self._base is not None and self._detached and self._is_last():
            self._stand_alone(old)
        if self._base is not None and not self._stands_alone():
            owner, history = self._own_history_after(node, call)
            base, chains, detached = self._base, [self._chain], self._detached
            deep = self._is_deep()
            while base._base is not None and (deep or base._has_windows()) and not base._stands_alone():    # one of the elements may be
                chains.append(base._chain)                                                              # written, not all
                base, detached = base._base, detached or base._detached
            steps = tuple(step for chain in reversed(chains) for step in chain)
            root = self._through_data()
            told = 0 if root is None else root._writes
            with set_grad_enabled(state.grad and not detached):  # detach() shares its memory but no history
                with own_nodes():
                    put = put_back(base._node(), steps, node, call)
                base._rebind(put, call)
            if root is not None:
                root._untold = root._versions - told
            if owner is not None:
                under = owner._base
                owner._n, owner._source = history, (weakref.ref(under._node()), under._version)
            return self
        leaf = old.needs_grad and self._is_leaf()
        if old.needs_grad:
            if state.grad and leaf:
                raise _leaf_written(call)
            if not state.grad and not leaf and old.fn is _VARIABLE:
                raise AutogradError(
                    f"{call}: what a transform differentiates was modified in place where no history is recorded (in no_grad, or through "
                    "detach()); clone() it first"
                )
        if not state.grad:
            node = without_history(node, self._device)
            if old.needs_grad and not leaf:
                with own_nodes():
                    node = bind(_OVERWRITTEN, (node, old), {})
            elif old.needs_grad:        # a constant that others have, too, holds no value of this tensor's: see __init__
                node = variable(node.twin() if node.constant and state.trace is None else node)
        elif old.needs_grad and not node.needs_grad:            # as torch's: the tensor still requires grad, which is 0 from here on back
            with own_nodes():
                node = bind(_REFILLED, (node, old), {})
        self._set_node(node)
        self._versions += 1
        return self

    def _own_history_after(self, node: Node, call: str) -> tuple[Any, Any]:
        """What detach() made, which this tensor is or is a view of, and its node once `node` is written here: a history of its own.

        As in torch its base gets the values only. (None, None) if what is written has no history, and there was none.
        """
        owner: Any = self
        chains: list[Steps] = []
        while owner._base is not None and not owner._detached:
            chains.append(owner._chain)
            owner = owner._base
        if owner._base is None:
            return None, None
        before = owner._node()
        if before.fn is _VARIABLE:
            if state.grad:
                raise _leaf_written(call)
            return None, None                           # its base gives it the value
        if not before.needs_grad and not (state.grad and node.needs_grad):
            return None, None
        if owner._chain:
            raise AutogradError(f"{call}: a view that was made under no_grad is written with a history, which the tensor that it is a view "
                                "of would not get; take the view anew, or write under no_grad")
        if state.trace is not None and owner._trace is not state.trace:
            raise AutogradError(f"{call}: inside @trace ({state.trace.name}) what detach() made outside is written with a history; call "
                                "detach() or clone() inside")
        with own_nodes():
            after = put_back(before, tuple(step for chain in reversed(chains) for step in chain), node, call)
            if not state.grad:
                after = bind(_OVERWRITTEN, (without_history(after, self._device), before), {})
            elif before.needs_grad and not after.needs_grad:            # as in _rebind
                after = bind(_REFILLED, (after, before), {})
            return owner, after

    def _guard(self, node: Node | None, call: str) -> None:
        """Raise an error if the code around must not give this tensor the value `node`; see scopes.py."""
        own = getattr(self, "_within", ())
        for scope in state.scopes:
            if scope not in own:
                scope.refuse(self, node, call)

    def _is_last(self) -> bool:
        """Of what detach() made: whether nobody else holds the tensor with a history that it shares memory with: x.clone().detach().

        Nobody then sees what is written to it but through it, so it lets go of the history.
        """
        root = self
        while root._base is not None:
            root = root._base
        if self._n.fn is not _VARIABLE and (not root._n.needs_grad or root._is_leaf()):
            return False
        view, root, base = self, self, None
        while view._base is not None:
            last, under = weakref.ref(view._base), view._base._base
            noted = under is not None and any(ref() is view._base for ref in getattr(under, "_aliases", ()))
            view._base = view._base._double()
            base = last()
            if base is not None:
                view._base = base
                return False
            view = view._base
            if noted and under is not None:
                under._alias(view)
            under = None
        return True

    def _double(self) -> Any:
        """Another handle, with all that this one has."""
        made: Any = type(self).__new__(type(self))
        made._n, made._device, made._trace, made._versions, made._moved = self._n, self._device, self._trace, self._versions, self._moved
        made._base, made._grad, made._hooks, made._source = self._base, self._grad, self._hooks, self._source
        if self._base is not None:
            made._steps, made._layout, made._detached = self._steps, self._layout, self._detached
        for name in ("_aliases", "_untold", "_within"):
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        if hasattr(self, "__dict__"):
            vars(made).update(vars(self))
        return made

    def _receive(self, call: str, result: Any) -> Self:
        """Take over a result, as torch's functions write theirs into out=...; an empty tensor gets its shape."""
        if not isinstance(result, InPlace):
            result = PUBLIC["tensor"](np.asarray(result), device=self._device)
        if state.grad and (result._has_history() or self._has_history()):
            raise AutogradError(f"{call}: what is written into out=... has no derivative, and an argument requires grad; use the result "
                                "instead, or write inside `with tg.no_grad():`")
        if result.device is not self._device:
            raise DeviceError(f"{call}: the result is on {result.device}, out on {self._device}; make out on the operands' device")
        if self.shape != result.shape and not self.numel():
            self.resize_(result.shape)
        return self._rebind(result._node(), f"{call}: out")

    def _stands_alone(self) -> bool:
        """Of a view: whether what is written to it does not reach its base."""
        return state.trace is not None and bool(state.trace.stands_alone(self))

    def _has_windows(self) -> bool:
        """Whether this is a view in which an element of the base may have several places."""
        view: Any = self
        while view._base is not None:
            if overlap(view._chain):
                return True
            view = view._base
        return False

    def _is_deep(self) -> bool:
        """Whether this is a view of a view ... so often that its base is not written view by view."""
        view, left = self, DEEP
        while left and view._base is not None:
            view, left = view._base, left - 1
        return not left

    def copy_(self, other: Any, non_blocking: bool = False) -> Self:
        """Take over the values of `other` (broadcast to this shape, converted to this dtype). non_blocking: nothing waits anyway."""
        if isinstance(other, InPlace) and other._device is not self._device:
            other = other.to(device=self._device)
        node = other._node() if isinstance(other, InPlace) else scalar("copy_", other, self.dtype)
        warn_of_real("copy_", node.dtype, self.dtype)
        if node.aval is self._n.aval and not node.needs_grad and self.shape == node.shape and (
                state.plain and config.eager and config.recall):
            array = other._held() if isinstance(other, InPlace) else None
            if array is not None:                               # which nobody writes: as clone() it is another handle on it
                return self._rebind(data(node.aval, host_part(self._device, array)), "copy_")
        with own_nodes():
            value = expanded("copy_", cast(node, self.dtype), self.shape)
            old = self._node()
            if state.grad and value.needs_grad and old.needs_grad and self._base is None and self._trace is state.trace:
                value = bind(_REFILLED, (value, old), {})           # as in `_rebind`: what was there has a gradient, which is 0
        return self._rebind(own_copy(value) if value is node else value, "copy_")

    def zero_(self) -> Self:
        """Set every element to 0. Any dtype. Raises AutogradError for a leaf that requires grad.

        >>> tg.zero_(tg.ones(2))
        """
        aval = (self._n if self._base is None else self._node()).aval
        return self._filled("zero_", 0, np.zeros(aval.shape, aval.dtype) if made_eagerly(self._device, aval) else None)

    def fill_(self, value: Any) -> Self:
        """Set every element to `value`, a number or a 0-d tensor. Any dtype. Raises ShapeError for a tensor with dimensions.

        >>> tg.fill_(tg.zeros(2), 0.5)
        """
        if isinstance(value, InPlace):
            if value.shape:
                raise ShapeError(f"fill_: value must be a number or a 0-d tensor, got shape {value.shape}; use copy_")
            return self.copy_(value)
        return self._filled("fill_", value)

    def _filled(self, call: str, value: Any, array: Any = None) -> Self:
        """array: what it gets then, where that was made already."""
        aval = (self._n if self._base is None else self._node()).aval
        if array is None and made_eagerly(self._device, aval):
            array = np.empty(aval.shape, aval.dtype)
            array.fill(exact_number(call, value, aval.dtype))
        if array is not None:                               # nobody else has the array: it is the tensor's value
            return self._rebind(data(aval, host_part(self._device, array)), call)
        return self._rebind(expand(scalar(call, value, aval.dtype), aval.shape), call)

    def fill_diagonal_(self, fill_value: Any, wrap: bool = False) -> Self:
        """Set the main diagonal to `fill_value`; wrap: of a tall matrix, again after each row that it leaves out, as in numpy."""
        shape = self.shape
        if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
            raise ShapeError(f"fill_diagonal_: takes a matrix, or dimensions of one size, got {shape}")
        row = iota(shape, 0) % (shape[1] + 1) if wrap and len(shape) == 2 else iota(shape, 0)
        on = row.eq(iota(shape, 1))
        for d in range(2, len(shape)):
            on = on & row.eq(iota(shape, d))
        value = scalar("fill_diagonal_", fill_value.detach()._node() if isinstance(fill_value, InPlace) else fill_value, self.dtype)
        return self._rebind(self._node().where(on.logical_not(), value), "fill_diagonal_")


def _leaf_written(call: str) -> AutogradError:
    return AutogradError(f"{call}: a leaf tensor that requires grad was modified in place; do it inside `with tg.no_grad():`")


def warn_of_real(call: str, dtype: Any, wanted: Any) -> None:
    """A warning, as torch's, where complex numbers become real ones."""
    if dtype.kind == "c" and wanted.kind not in "cb":
        warn(f"{call}: casting {dtype} to {wanted} discards the imaginary part; use x.real or x.abs()")
