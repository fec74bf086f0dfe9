"""Tensor: a handle on a node of the graph. Start at `Tensor._node` and `Tensor._rebind`: all reading and writing goes through them.

Outside @trace, work is deferred: an operation records a node, and `flush` computes everything that is pending when somebody
looks at a value, at backward(), or when too much has gathered. In-place operations rebind the handle to a new node.

A view (basic indexing, reshape, transpose, ...) keeps its base and the chain of movement ops that leads from it: reading a view replays
the chain on the base's present node, writing a view writes the base. A leaf that requires grad holds a `variable` node.
While a trace runs, tensors from outside it are never touched: the trace keeps what they became in an overlay of its own.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegrad.autodiff.derivatives import HOOKS, variable
from tracegrad.config import config
from tracegrad.errors import ArgumentError, AutogradError, DeviceError, DLPackError, DTypeError, ShapeError, TraceError, TracegradError
from tracegrad.execute.deferred import flush, waiting
from tracegrad.execute.devices import Device, find_device, upload
from tracegrad.execute.eager_executor import arrays_of, held_part, nodes_of
from tracegrad.execute.realize import PART, is_view, part, read, realize, without_history
from tracegrad.graph.cached_subgraphs import Template
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Aval, Folded, Node, Size, own_nodes, user_location
from tracegrad.graph.operators import PUBLIC, Operators
from tracegrad.graph.primitive import NOWHERE, REGISTRY, bind, cast, const, data, detached, iota, scalar
from tracegrad.ops.arguments import one_dim, results_of
from tracegrad.ops.arrays import indexing
from tracegrad.ops.arrays.pointwise import acceptable
from tracegrad.ops.arrays.shaping import expanded
from tracegrad.ops.primitives.dynamic_slice import as_slice, parts, slice_at
from tracegrad.ops.primitives.movement import expand, flip, inverse, permute, reshape
from tracegrad.ops.primitives.reduction import sum_to
from tracegrad.ops.primitives.transfer import computes, transfer
from tracegrad.runtime.buffer import Held, held, hold
from tracegrad.support import dtypes
from tracegrad.support.cache import listed
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.layouts import accept_format
from tracegrad.support.modes import no_grad, set_grad_enabled, state
from tracegrad.tensors.dlpack import exported
from tracegrad.tensors.scopes import Recorded

if TYPE_CHECKING:
    from tracegrad.tracing.recording import Recording

_DATA, _VARIABLE, _DETACH = REGISTRY["data"], REGISTRY["variable"], REGISTRY["detach"]
_new = object.__new__
_SLICE, _SLICE_AT = REGISTRY["slice"], REGISTRY["slice_at"]


Step = tuple[Any, dict[str, Any]]  # a movement op and its attributes
Steps = tuple[Step, ...]
leaves: weakref.WeakValueDictionary[int, Tensor] = listed("leaves", weakref.WeakValueDictionary())  # uid of a variable node -> its tensor


class Count(int):
    """What `x.size` is: the number of elements, which called as torch's method gives the shape or the size of one dimension."""

    shape: Size

    @classmethod
    def of(cls, shape: Size) -> Count:
        """The Count of a tensor of that shape."""
        size = cls(prod(shape))
        size.shape = shape
        return size

    def __call__(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[one_dim("size", dim, len(self.shape))]


class Tensor(Operators):
    """An n-dimensional array on a device, in PyTorch's idiom. Make one with `tg.tensor`, `tg.zeros`, `tg.from_numpy`, ...

    As in torch, Tensor(2, 3) and Tensor([1, 2, 3]) are tensors of the default dtype, too.

    shape: sizes. dtype: a numpy dtype (`tg.float32`, ...). device: where its values live. requires_grad: whether
    operations on it are recorded for `backward`. grad: the gradient that backward accumulated, or None.
    """

    __slots__ = ("__weakref__", "_aliases", "_base", "_detached", "_device", "_grad", "_hooks", "_layout", "_moved", "_n", "_source",
                 "_steps", "_trace", "_versions", "_within")  # fmt: skip

    _n: Node
    _base: Tensor | None
    _steps: Steps  # of a view: how it is reached from its base, as that was laid out when its first _layout moves had been made
    _source: tuple[weakref.ref[Node], int] | None  # of a view: its base's node and version that _n was made from
    _layout: int
    _moved: Steps  # what undoes each step of t_(), squeeze_(), ... so far, the latest last; see inplace_views.py
    _detached: bool
    _grad: Tensor | None
    _aliases: list[weakref.ref[Tensor]]  # what `data` and detach gave; not set before that
    _hooks: dict[int, Any] | None
    _trace: Recording | None
    _within: tuple[Any, ...]  # the scopes that it was made in (scopes.py); not set where there was none

    def __init__(self, node: Any = None, device: Any = None, trace: Any = None, *more: Any) -> None:
        if device is None or type(device) is int:
            made: Tensor = older((node, device, trace, *more), dtypes.get_default_dtype())
            node, device, trace = made._n, made.device, made._trace
            if trace is None and state.trace is not None:
                state.trace.adopt(self)
        scopes = state.scopes
        valued = trace is None and not (scopes and state.examples)
        if scopes:
            self._within = scopes
        if valued and node.constant:
            node = node.twin()  # it will hold a value, and that lives on this device
        self._n, self._device, self._trace = node, device, trace
        self._base = self._grad = self._hooks = self._source = None
        self._versions, self._moved = 0, ()
        if valued and node.fn is not _DATA and node.value is None:        # (what has no operands has a value)
            if len(waiting) >= config.pending and not state.holds:
                flush()                         # of what was made before: of a view nobody knows the base yet
            waiting.append(weakref.ref(self))

    # ---------------------------------------------------------------------------------------------- reading and writing

    def _node(self) -> Node:
        """The node that stands for this tensor's present value."""
        trace = state.trace
        if trace is not None:
            if self._trace is not trace:
                return trace.node_of(self)
        elif self._trace is not None:
            raise TraceError(
                f"a tensor made inside @trace ({self._trace.name}) was used after the call ended; return it from the traced "
                f"function, or assign to a tensor that lives outside with copy_()"
            )
        base = self._base
        return self._n if base is None or self._is_current() else self._replay(base._node())

    def _is_current(self) -> bool:
        """Whether the node of this view, which has no history, is that of its base's present node, and this of its base's, and so on."""
        known = self._source
        if known is None:
            return False
        version, view, base = known[1], self, self._base
        while base is not None:
            known = view._source
            if known is None or known[0]() is not base._n or view._layout != len(base._moved):
                return False
            view, base = base, base._base
        return version == view._versions

    def _operand(self) -> Node:
        """`_node`, as an operation takes it: under no_grad without the history, which the result would not have anyway."""
        node = self._node()
        if node.needs_grad and not state.grad and state.trace is None and not (state.examples or state.hidden):
            while node.fn is _VARIABLE:
                node = node.operands[0]
            return without_history(node, self._device)
        return node

    def _node_outside(self) -> Node:
        """The node of a tensor that belongs to no trace, whether or not one is being recorded."""
        return self._n if self._base is None else self._replay(self._base._node_outside())

    def _replay(self, node: Node) -> Node:
        """The node of this view, once its base's is `node`: a view that is part of a history keeps one of its own for each."""
        if not node.needs_grad or self._detached:
            viewed = self._base
            assert viewed is not None
            known = self._source
            if known is not None and known[0]() is node and known[1] == viewed._version and self._layout == len(viewed._moved):
                return self._n
            source = node
            for fn, attrs in self._chain:
                node = _moved(node, fn, attrs)
            node = without_history(node, self._device) if self._detached else node
            if state.trace is None and self._trace is None:
                self._n, self._source = node, (weakref.ref(source), viewed._version)
            return node
        base = self._n
        behind = getattr(base, "behind", None) if type(base) is Folded else None
        if behind is not None and not behind[2] and behind[1][0] is node and len(behind[1]) == 1:
            return base
        for _ in self._chain:
            base = base.operands[0] if base.operands else base
        if base is not node:
            with own_nodes():
                for fn, attrs in self._chain:
                    node = _moved(node, fn, attrs)
            if self._trace is not state.trace:
                return node
            self._n = node
        return self._n

    @property
    def _chain(self) -> Steps:
        """How this view is reached from its base as it is now."""
        moved = self._base._moved if self._base is not None else ()
        if len(moved) != self._layout:
            self._steps = (*reversed(moved[self._layout:]), *self._steps)
            self._layout = len(moved)
        return self._steps

    @_chain.setter
    def _chain(self, steps: Steps) -> None:
        assert self._base is not None
        self._steps, self._layout = steps, len(self._base._moved)

    def _wrap(self, node: Node) -> Tensor:
        """A tensor for the result of an operation on this one."""
        if node.needs_grad and not state.grad:
            node = detached(node)
        return Tensor(node, self._device, state.trace)

    def _recalled(self, call: Template, nodes: Sequence[Node]) -> Any:
        """What a known call with this tensor gives: the way to go on is the call's (execute/eager_executor.py)."""
        device = self._device
        found, result = arrays_of(call, nodes, device), call.result
        if found is not None and (leaf := call.prepared.leaf) is not None:
            array, = found
            return holding(device, leaf[1], leaf[2], Held(device, array) if array.base is None else held_part(device, array))
        values = nodes_of(call, nodes, device, found)
        if type(result) is int and result >= call.made:
            return self._wrap(values[result])
        return results_of(self, result, values, call.made)

    def _rebind(self, node: Node, call: str) -> Tensor:
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
                raise DTypeError(f"{call}: the result is {node.dtype}, the tensor {old.dtype}; use the operation that is not in place")
            node = cast(node, old.dtype)
        if state.scopes:
            self._guard(node, call)
        if self._base is not None and self._detached and self._is_last():
            self._base, self._steps, self._detached, self._source, self._n = None, (), False, None, old
        if self._base is not None and not self._stands_alone():
            base, steps, detached = self._base, self._chain, self._detached
            while base._base is not None and base._has_windows() and not base._stands_alone():  # one of them may be written, not all
                base, steps, detached = base._base, (*base._chain, *steps), detached or base._detached
            with set_grad_enabled(state.grad and not detached):  # detach() shares its memory but no history
                with own_nodes():
                    put = _put(base._node(), steps, node, call)
                base._rebind(put, call)
            return self
        if old.needs_grad:
            leaf = self._is_leaf()
            if state.grad and leaf:
                raise AutogradError(f"{call}: a leaf tensor that requires grad was modified in place; do it inside `with tg.no_grad():`")
            if not state.grad and not leaf:
                raise AutogradError(
                    f"{call}: a tensor with a derivative history was modified in place where none is recorded (in no_grad, or through "
                    "detach()); clone() it first"
                )
        if not state.grad:
            node = without_history(node, self._device)
            if old.needs_grad:          # a constant that others have, too, holds no value of this tensor's: see __init__
                node = variable(node.twin() if node.constant and state.trace is None else node)
        self._set_node(node)
        self._versions += 1
        return self

    def _guard(self, node: Node | None, call: str) -> None:
        """Raise an error if the code around must not give this tensor the value `node`; see scopes.py."""
        own = getattr(self, "_within", ())
        for scope in state.scopes:
            if scope not in own:
                scope.refuse(self, node, call)

    def _is_last(self) -> bool:
        """Of what detach() made: whether nobody else holds the tensor with a history that it shares memory with: x.clone().detach().

        Nobody then sees what is written to it but through it, and the history need not know.
        """
        root = self
        while root._base is not None:
            root = root._base
        if not root._n.needs_grad or root._is_leaf():
            return False
        view, root, base = self, self, None
        while view._base is not None:
            last = weakref.ref(view._base)
            view._base = view._base._double()
            if last() is not None:                          # held by young garbage, it may be, where that is not collected at once
                gc.collect(0)
            base = last()
            if base is not None:
                view._base = base
                return False
            view = view._base
        return True

    def _double(self) -> Tensor:
        """Another handle, with all that this one has."""
        made: Tensor = type(self).__new__(type(self))
        made._n, made._device, made._trace, made._versions, made._moved = self._n, self._device, self._trace, self._versions, self._moved
        made._base, made._grad, made._hooks, made._source = self._base, self._grad, self._hooks, self._source
        if self._base is not None:
            made._steps, made._layout, made._detached = self._steps, self._layout, self._detached
        for name in ("_aliases", "_within"):
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        if hasattr(self, "__dict__"):
            vars(made).update(vars(self))
        return made

    def _set_node(self, node: Node) -> None:
        if node.fn is _VARIABLE:
            become_leaf(self, node)
        if state.trace is not None and self._trace is not state.trace:
            state.trace.rebind(self, node)
        else:
            self._n = node = node.twin() if node.constant and self._trace is None else node
            if self._trace is None and node.fn is not _DATA and node.value is None and not state.examples:
                waiting.append(weakref.ref(self))

    def _receive(self, call: str, result: Any) -> Tensor:
        """Take over a result, as torch's functions write theirs into out=...; an empty tensor gets its shape."""
        if not isinstance(result, Tensor):
            result = from_array(np.asarray(result), self._device)
        if state.grad and (result.requires_grad or self.requires_grad):
            raise AutogradError(f"{call}: what is written into out=... has no derivative, and an argument requires grad; use the result "
                                "instead, or write inside `with tg.no_grad():`")
        if self.shape != result.shape and not self.numel():
            self.resize_(result.shape)
        if result.device is not self._device:
            raise DeviceError(f"{call}: the result is on {result.device}, out on {self._device}; make out on the operands' device")
        return self._rebind(result._node(), f"{call}: out")

    def _stands_alone(self) -> bool:
        """Of a view: whether what is written to it does not reach its base."""
        return state.trace is not None and bool(state.trace.stands_alone(self))

    def _has_windows(self) -> bool:
        """Whether this is a view in which an element of the base may have several places."""
        return self._base is not None and (_overlap(self._chain) or self._base._has_windows())

    def _view(self, result: Tensor) -> Tensor:
        """Mark `result`, which an op of pure movement made from this tensor, as a view of it."""
        if result is self:
            result = Tensor(self._node(), self._device, state.trace)
        source = self._node()
        given = self._operand() if source.needs_grad and not state.grad else source
        chain: list[Step] = []
        node, sliced = result._n, False
        result._detached, result._source = given is not source, None
        if node.fn is _DETACH and node is not source and node is not given:
            result._detached, node = True, node.operands[0]
            node = node if given is source or is_view(node) else source
        while node is not source and node is not given:
            if node.fn is _SLICE_AT:
                chain.append((_SLICE, as_slice(node)))
                node, sliced = node.operands[0], True
                continue
            if node.fn is _DETACH and given is not source:
                break  # this tensor, without its history
            if not is_view(node):
                return result  # not pure movement after all: a tensor of its own
            chain.append((node.fn, node.attrs))
            sliced |= node.fn is _SLICE
            node = node.operands[0]
        result._base, result._chain = self, tuple(reversed(chain))
        if not source.needs_grad and state.trace is None and result._trace is None:
            result._source = weakref.ref(source), self._version
            if sliced and result._n.value is None:
                _take_part(result)
        return result

    # ----------------------------------------------------------------------------------------------------- description

    @property
    def shape(self) -> Size:  # type: ignore[override]
        return self._node().aval.sizes if self._base is not None else self._n.aval.sizes

    @property
    def dtype(self) -> Any:
        return self._n.aval.dtype

    @property
    def device(self) -> Device:
        return self._device

    @property
    def requires_grad(self) -> bool:
        return self._node().needs_grad and not state.hidden

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    @property
    def is_leaf(self) -> bool:
        return state.hidden or self._is_leaf()

    def _is_leaf(self) -> bool:
        node = self._node()
        if not node.needs_grad:
            return True
        outside = state.trace is not None and self._trace is not state.trace  # there, too: in the trace anything from outside is a variable
        return node.fn is _VARIABLE and leaves.get(node.attrs["uid"]) is self and (not outside or self._node_outside().fn is _VARIABLE)

    @property
    def grad(self) -> Tensor | None:
        trace = state.trace
        if trace is not None and self._trace is not trace:
            return trace.grad_of(self)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise DTypeError(f"grad: expected a Tensor or None, got {type(value).__name__}")
            if value._device is not self._device:
                raise DeviceError(f"grad: the tensor is on {self._device}, its gradient on {value._device}; move it with x.to(device)")
            if value.shape != self.shape or value.dtype != self.dtype:
                raise ShapeError(f"grad: {value.dtype}{list(value.shape)} does not fit a tensor of {self.dtype}{list(self.shape)}")
        if state.scopes:
            self._guard(None if value is None else value._node(), "grad")
        trace = state.trace
        if trace is not None and self._trace is not trace:
            trace.set_grad(self, value)
        else:
            self._grad = value

    @property
    def _version(self) -> int:
        root = self
        while root._base is not None:
            root = root._base
        return root._versions

    @property
    def data(self) -> Tensor:
        """What detach() gives. Set, the tensor has that value from now on, of another shape or dtype, even, and stays what it is: a leaf,

        a parameter of an optimizer's. What x.data, a leaf's detach() and state_dict gave before keeps the old value: it can be given back.
        """
        return self.detach() if self._n.fn is _VARIABLE else self._alias(self.detach())

    @data.setter
    def data(self, value: Tensor) -> None:
        if self._base is None and self._trace is None and state.trace is None and isinstance(value, Tensor):
            self._become(value.detach())
        else:
            with no_grad():
                self.copy_(value)

    def _alias(self, found: Tensor) -> Tensor:
        """`found`, noted for the setter of data."""
        if self._base is None and self._trace is None and state.trace is None:
            self._aliases = [*(ref for ref in getattr(self, "_aliases", ()) if ref() is not None), weakref.ref(found)]
        return found

    def _become(self, value: Tensor) -> None:
        """Take over the value of a tensor without history, on whatever device and of whatever shape and dtype."""
        aliases = [alias for ref in getattr(self, "_aliases", ()) if (alias := ref()) is not None]
        alike = value.shape == self.shape and value.dtype == self.dtype and value._device is self._device
        new = value._node()
        if not alike and self._node().needs_grad and not self._is_leaf():
            raise AutogradError(
                f"data: a tensor with a derivative history ({self.dtype}{list(self.shape)}) was given another shape, dtype or device "
                f"({value.dtype}{list(value.shape)}); use a tensor of its own for that"
            )
        if not alike:
            self._guard(new, "data")
        if aliases:
            old = Tensor(aliases[0]._node(), self._device)
            old._versions = self._versions
            for alias in aliases:
                alias._base, alias._source = old, None
                alias._chain = ()
            self._aliases = []
        if alike:
            with no_grad():
                self.copy_(Tensor(new, value._device))
            return
        needs_grad, grad = self.requires_grad, self._grad
        if value._device is not self._device:
            self._sends_gradients_on()
        self._device, self._base, self._grad = value._device, None, None
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

    @property
    def size(self) -> Count:
        """The number of elements, as in numpy; called, the shape or the size of one dimension, as in torch: x.size(), x.size(dim)."""
        return Count.of(self.shape)

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements."""
        return (self._n if self._base is None else self._node()).aval.size

    def element_size(self) -> int:
        """Bytes per element."""
        return int(self.dtype.itemsize)

    nelement = numel

    @property
    def itemsize(self) -> int:
        return self.element_size()

    @property
    def nbytes(self) -> int:
        return self.numel() * self.element_size()

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float (complex ones are not, as in torch)."""
        return dtypes.is_float(self.dtype)

    @property
    def real(self) -> Tensor:
        return PUBLIC["real"](self)  # type: ignore[no-any-return]

    @real.setter
    def real(self, value: Any) -> None:
        self.real.copy_(value)

    @property
    def imag(self) -> Tensor:
        return PUBLIC["imag"](self)  # type: ignore[no-any-return]

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag.copy_(value)

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError("len: a 0-d tensor has no length")
        return self.shape[0]

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> Any:
        return PUBLIC["eq"](self, other) if acceptable(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return PUBLIC["ne"](self, other) if acceptable(other) else NotImplemented

    # ---------------------------------------------------------------------------------------------------------- values

    def _value(self, call: str, shared: bool = False) -> np.ndarray[Any, Any]:
        """The values, waiting for them: a fresh array or (shared) a read-only view. Inside a trace there are none (TraceError), except of

        what the traced function computed of constants: Python numbers, arrays, `arange` and its kind.
        """
        if state.trace is not None:
            known = state.trace.known(self)
            if known is not None:
                return known if shared else known.copy()
            if _of_run_time_numbers(self._n):
                raise TraceError(
                    f"{call} at {user_location()}: inside @trace ({state.trace.name}) Python cannot look at a float that was given to the "
                    "traced function, nor at what was computed of it: it is a run-time number, which may change without compiling anew. "
                    "Use tg.exp, tg.maximum, tg.where and so on in the place of math and if, compute what depends on it before the call, "
                    "or keep it in an attribute or variable that the function reads: then it is recorded anew for each value"
                )
            raise TraceError(
                f"{call} at {user_location()}: inside @trace ({state.trace.name}) tensors have no values yet; Python cannot look at one. "
                "Use tg.where for a choice between values, pass what decides as a Python (static) argument, "
                "return the tensor and look at it outside, or call host code through tg.host_call"
            )
        node = self._node()
        state.looked |= node.needs_grad or node.fn is _DETACH
        if resolve(node).value is None:
            values = None if shared else part(node)
            if values is not None:
                return values
            flush()
        return read(node, self._device, shared)

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """A numpy array with a copy of the values, to be kept and changed at will. Waits for them. `np.asarray(x)` makes no copy.

        Raises AutogradError if the tensor requires grad, unless force: detach() first.
        """
        if not force:
            self._forbid_grad("numpy", AutogradError)
        return self._value("numpy()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """What `np.asarray(x)` gives: a read-only array that is the values' own memory, on devices that compute in the host's (CPUs).

        It keeps the memory, and never changes: later in-place operations on the tensor go elsewhere. Waits for the values. copy=True,
        another dtype, and devices with memory of their own give a copy, which can be written. Raises ArgumentError (a ValueError) if
        copy=False asks for what needs one, AutogradError if the tensor requires grad.

        >>> np.asarray(tg.ones(3))
        """
        self._forbid_grad("numpy.asarray", AutogradError)
        other = dtype is not None and np.dtype(dtype) != self.dtype
        if copy is False and (other or not self._device.in_host_memory):
            why = f"it is {self.dtype}, not {np.dtype(dtype)}" if other else f"{self._device.name} has memory of its own"
            raise ArgumentError(f"numpy.asarray: copy=False, but the tensor cannot be shared: {why}; leave copy out to allow a copy")
        values = self._value("numpy.asarray()", shared=other or not copy)
        return values.astype(dtype) if other else values

    def _forbid_grad(self, call: str, error: type[TracegradError]) -> None:
        if self.requires_grad and state.trace is None:
            raise error(f"{call}: the tensor requires grad, and what is done to the array would not be recorded; use x.detach()")

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number. Waits for it."""
        if self.numel() != 1:
            raise ShapeError(f"item: the tensor has shape {self.shape}; only a tensor of one element is one number")
        node = self._n if self._base is None or self._trace is not None or state.trace is not None else self._node()
        array = held(node.value) if self._trace is None and state.trace is None else None
        if array is not None and array.dtype is node.aval.dtype and not node.value.suspicions:
            state.looked |= node.needs_grad
            return array.item()
        return self._value("item()").reshape(-1)[0].item()

    def tolist(self) -> Any:
        """The values as nested Python lists."""
        return self._value("tolist()", shared=True).tolist()

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ShapeError(f"bool: a tensor of shape {self.shape} is neither true nor false; use any() or all()")
        return bool(self._value("bool()").reshape(-1)[0])

    def __float__(self) -> float:
        return float(self._real_item("float"))

    def __int__(self) -> int:
        return int(self._real_item("int"))

    def __complex__(self) -> complex:
        return complex(self.item())

    def _real_item(self, call: str) -> Any:
        value = self.item()
        if isinstance(value, complex):
            if value.imag != 0:
                raise DTypeError(f"{call}: the complex number {value} has an imaginary part; use complex(x), x.real or x.abs()")
            value = value.real
        return value

    def __index__(self) -> int:
        if not dtypes.is_int(self.dtype):
            raise DTypeError(f"index: a tensor of {self.dtype} is not an index; only integer tensors of one element are")
        return int(self.item())

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise DTypeError("iter: a 0-d tensor has nothing to iterate over")
        return (self[i] for i in range(self.shape[0]))

    def __reversed__(self) -> Tensor:
        """The tensor with its first dimension the other way round, as torch has it: no iterator."""
        return self.flip(0) if self.shape else self

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """A DLPack capsule of the values on the CPU, for `from_dlpack` of other libraries. Waits for the values.

        Like `np.asarray(x)` it shares memory that must not be written, and says so where the consumer takes a flag for that
        (max_version of 1.0 or later); else, and with copy=True, it is a copy. (PyTorch does not heed the flag: clone() there before
        writing.) Raises DLPackError (a BufferError) if copy=False asks for what needs a copy, for another device and
        for a tensor that requires grad.
        """
        self._forbid_grad("__dlpack__", DLPackError)
        here = self.__dlpack_device__()
        if stream is not None or dl_device not in (None, here):
            raise DLPackError(f"__dlpack__: exports to the CPU, {here}, without a stream; got {dl_device}, stream {stream}")
        flagged = max_version is not None and max_version[0] >= 1
        if copy is False and not (flagged and self._device.in_host_memory):
            why = f"{self._device.name} has memory of its own" if flagged else "the consumer knows no flag for read-only memory"
            raise DLPackError(f"__dlpack__: copy=False, but the tensor cannot be shared: {why}; leave copy out to allow a copy")
        values = self._value("__dlpack__()", shared=flagged and self._device.in_host_memory)
        return exported(values, max_version=max_version, copy=copy) if flagged else exported(values)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __repr__(self) -> str:
        if self._trace is not None or state.trace is not None:
            return f"Tensor({self._n.aval}, traced)"
        text = _text(self.detach()._value("repr", shared=True))
        extra = f", size={self.shape}" if self.numel() == 0 and self.ndim != 1 else ""
        plain = self.dtype in (dtypes.float32, dtypes.complex64) or (self.dtype in (dtypes.int64, dtypes.bool_) and self.numel() > 0)
        extra += "" if plain else f", dtype={self.dtype}"
        extra += f", device={getattr(self._device, 'kind', self._device)!r}"
        if self.requires_grad:
            extra += ", requires_grad=True" if self.is_leaf else f", grad_fn={self.grad_fn}"
        return f"Tensor({text}{extra})"

    def __format__(self, spec: str) -> str:
        if not self.ndim:
            return format(self.item(), spec)
        if spec:
            raise DTypeError(f"format: {spec!r} is for one number, the tensor has shape {self.shape}; use x.tolist(), or x.item()")
        return repr(self)

    def __copy__(self) -> Tensor:
        """Another tensor on the same memory, as in torch; of one that requires grad a copy, which is a leaf."""
        if not self.requires_grad:
            return self.detach()
        restore, given, *own = self.__reduce__()
        copied: Tensor = restore(*given)
        for attributes in own:
            vars(copied).update(attributes)
        return copied

    def __deepcopy__(self, memo: Any) -> Tensor:
        copied = self.detach().clone()
        copied.grad = None if self.grad is None else self.grad.detach().clone()
        return copied.requires_grad_() if self.requires_grad else copied

    def __reduce__(self) -> Any:
        """For pickle and copy: the values and requires_grad, without history. Restored on the default device."""
        return _restored, (type(self), self.detach().numpy(), self.requires_grad)

    # ------------------------------------------------------------------------------------------- gradients and history

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Start (or stop) recording operations on this tensor, in place. Only floats and complex numbers can require grad; only leaves can

        stop.
        """
        node = self._node()
        if requires_grad != node.needs_grad:
            self._own_history("requires_grad_")
        if requires_grad and not node.needs_grad:
            if not dtypes.differentiable(node.dtype):
                raise DTypeError(f"requires_grad_: only float and complex tensors have gradients, this one is {node.dtype}")
            self._base = None
            self._set_node(variable(node))
        elif not requires_grad and node.needs_grad:
            if not self.is_leaf:
                raise AutogradError("requires_grad_: only a leaf can stop requiring grad; use detach()")
            self._set_node(node.operands[0])
        return self

    def detach(self) -> Tensor:
        """The same values without history; shares memory with this tensor, as in torch."""
        node = self._node()
        result = Tensor(without_history(node, self._device), self._device, state.trace)
        result._base, result._chain, result._detached = self, (), True
        if result._trace is None:
            result._source = weakref.ref(node), self._version
        return self._alias(result) if node.fn is _VARIABLE else result

    def detach_(self) -> Tensor:
        """Forget the history, in place. A view cannot: its base has it."""
        if self._base is not None:
            raise AutogradError("detach_: a view shares the history of the tensor that it is a view of; use detach()")
        node = self._node()
        if node.needs_grad:
            self._own_history("detach_")
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
        """A copy of its own, with history. memory_format: see support/layouts.py."""
        accept_format("clone", memory_format)
        return self._wrap(own_copy(self._node()))

    # --------------------------------------------------------------------------------------------------- dtype, device

    def to(self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, copy: bool = False,
           memory_format: Any = None) -> Tensor:
        """The tensor in another dtype and/or on another device; itself if nothing changes, unless copy. Accepts torch's forms

        (non_blocking and memory_format are hints that have no effect). Raises NoDriverError for a device that is not there.
        """
        accept_format("to", memory_format)
        flags = [a for a in args if isinstance(a, bool)]  # torch's non_blocking and copy, by place
        copy = flags[1] if len(flags) > 1 else copy
        for a in args:
            if isinstance(a, bool):
                continue
            if isinstance(a, Tensor):
                dtype, device = a.dtype, a.device
            elif isinstance(a, (np.dtype, type)) or (isinstance(a, str) and a in _DTYPE_NAMES):
                dtype = a
            else:
                device = a
        target = self._device if device is None else find_device(device)
        wanted = self.dtype if dtype is None else dtypes.as_dtype(dtype)
        if wanted != self.dtype:
            _warn_of_real("to", self.dtype, wanted)
        # The fewer bytes are sent, but what a device cannot compute in is converted by the other one.
        here = self._device is target or (wanted.itemsize <= self.dtype.itemsize and computes(self._device, self.dtype, wanted))
        out = self._cast(wanted) if here else self
        out = out if target is self._device else out._sent(target)
        out = out if here else out._cast(wanted)
        return out.clone() if copy and out is self else out

    def _cast(self, dtype: Any) -> Tensor:
        """The tensor in another dtype; itself if it has it."""
        if dtype == self.dtype:
            return self
        with own_nodes():
            return self._wrap(cast(self._node(), dtype))

    def _sent(self, target: Device) -> Tensor:
        """The tensor on another device. Without a history its value is sent at once: what is made of it then looks like any other work."""
        recorded = next((scope.call for scope in state.scopes if isinstance(scope, Recorded)), "")
        if state.trace is not None or recorded:
            what = "a trace" if state.trace is not None else f"what {recorded} records in a vmap"
            raise TraceError(f"to at {user_location()}: {what} runs on one device; move tensors between devices outside it")
        node = self._operand()
        with own_nodes():
            sent = transfer(node, self._device, target)
        out = Tensor(sent if state.grad or not sent.needs_grad else detached(sent), target)
        if not (sent.needs_grad or state.examples or state.hidden or state.pulling):
            if resolve(node).value is None:
                flush()
            realize([out._n], target)
        return out

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """The tensor as `dtype`, which may be one of torch's older types, too: "torch.DoubleTensor", tg.DoubleTensor. Without it, the name

        of the tensor's own.
        """
        if dtype is None:
            return next((f"torch.{name}Tensor" for name, own in dtypes.OLDER.items() if own == self.dtype), str(self.dtype))
        named = getattr(dtype, "__name__", dtype)
        older = dtypes.OLDER.get(named.removeprefix("torch.").removesuffix("Tensor")) if str(named).endswith("Tensor") else None
        return self.to(dtype=dtype if older is None else older)

    def type_as(self, other: Tensor) -> Tensor:
        """The tensor in other's dtype."""
        return self.to(dtype=other.dtype)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The tensor on another device: the array API standard's `to(device=...)`. Raises ArgumentError for a stream: there are none."""
        if stream is not None:
            raise ArgumentError(f"to_device: stream must be None, since a device has one queue, got {stream!r}")
        return self.to(device=device)

    def cpu(self) -> Tensor:
        """The tensor on the CPU device."""
        return self.to(device="cpu")

    def pin_memory(self, device: Any = None) -> Tensor:
        """The tensor itself: OpenCL's drivers copy from any memory, and what is sent goes through pinned memory where that is faster."""
        return self

    # ------------------------------------------------------------------------------------------------------- indexing

    def __getitem__(self, key: Any) -> Tensor:
        if indexing.is_basic(key):
            return self._view(indexing.getitem(self, key, True, _apart()))
        return indexing.getitem(self, self._known_masks(_masks_of_bytes("getitem", key)), False, _apart())  # type: ignore[no-any-return]

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(value, Operators) and not np.isscalar(value):
            array = np.asarray(value)
            if dtype_kind(array.dtype) not in "biufc":
                raise DTypeError(f"setitem: cannot assign {type(value).__name__}; give a tensor, a number, or lists or arrays of numbers")
            value = from_array(array, self._device)
        if isinstance(value, Tensor) and value._device is not self._device and (not value.ndim or indexing.is_basic(key)):
            value = value.to(device=self._device)           # as copy_ does; by other indices torch, too, takes one device's only
        key = _masks_of_bytes("setitem", key)
        if state.trace is None and not state.examples and _masks(key) and not indexing.selects(self, key, value):
            key = self._known_masks(key)
        place, at = (self[key], ...) if self._has_windows() and indexing.is_basic(key) else (self, key)
        place._rebind(indexing.setitem(place, at, value, _apart())._node(), "setitem")

    def _known_masks(self, key: Any) -> Any:
        """The key with boolean masks read and turned into index arrays (their number of hits is a shape: it must be known)."""
        if not _masks(key):
            return key
        return tuple(
            k._value("indexing with a boolean mask (its result's shape depends on values)")
            if isinstance(k, Tensor) and k.dtype == dtypes.bool_
            else k
            for k in (key if isinstance(key, tuple) else (key,))
        )

    # ----------------------------------------------------------------------------------------------------------- in place

    def copy_(self, other: Any, non_blocking: bool = False) -> Tensor:
        """Take over the values of `other` (broadcast to this shape, converted to this dtype). non_blocking: nothing waits anyway."""
        if isinstance(other, Tensor) and other._device is not self._device:
            other = other.to(device=self._device)
        node = other._node() if isinstance(other, Tensor) else scalar("copy_", other, self.dtype)
        _warn_of_real("copy_", node.dtype, self.dtype)
        with own_nodes():
            value = expanded("copy_", cast(node, self.dtype), self.shape)
        return self._rebind(own_copy(value) if value is node else value, "copy_")

    def zero_(self) -> Tensor:
        """Set every element to 0."""
        return self._rebind(expand(const(0, self.dtype), self.shape), "zero_")

    def fill_(self, value: Any) -> Tensor:
        """Set every element to `value`, a number or a 0-d tensor."""
        if isinstance(value, Tensor):
            if value.shape:
                raise ShapeError(f"fill_: value must be a number or a 0-d tensor, got shape {value.shape}; use copy_")
            return self.copy_(value)
        return self._rebind(expand(scalar("fill_", value, self.dtype), self.shape), "fill_")


    def fill_diagonal_(self, fill_value: Any, wrap: bool = False) -> Tensor:
        """Set the main diagonal to `fill_value`; wrap: of a tall matrix, again after each row that it leaves out, as in numpy."""
        shape = self.shape
        if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
            raise ShapeError(f"fill_diagonal_: takes a matrix, or dimensions of one size, got {shape}")
        row = iota(shape, 0) % (shape[1] + 1) if wrap and len(shape) == 2 else iota(shape, 0)
        on = row.eq(iota(shape, 1))
        for d in range(2, len(shape)):
            on = on & row.eq(iota(shape, d))
        value = scalar("fill_diagonal_", fill_value.detach()._node() if isinstance(fill_value, Tensor) else fill_value, self.dtype)
        return self._rebind(self._node().where(on.logical_not(), value), "fill_diagonal_")


def _of_run_time_numbers(node: Node) -> bool:
    """Whether a node of a trace is computed of Python floats that were given to the traced function, and of nothing else but constants."""
    found, waiting, seen = False, [node], {node}
    while waiting:
        n = waiting.pop()
        if n.shape or (not n.operands and n.fn is not REGISTRY["const"] and not n.aval.weak):
            return False
        found |= not n.operands and n.aval.weak and n.fn is not REGISTRY["const"]
        waiting += [o for o in n.operands if o not in seen]
        seen.update(n.operands)
    return found


PRINTING: dict[str, Any] = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "sci_mode": None}  # settings.py


def _text(values: np.ndarray[Any, Any]) -> str:
    """The elements of a tensor as it prints them."""
    options = dict(PRINTING)
    powers, digits = options.pop("sci_mode"), options["precision"]
    formatter: Any = {"float_kind": lambda v: f"{v:.{digits}e}"} if powers else None
    values = values.astype(np.float32) if values.dtype == dtypes.bfloat16 else values
    return np.array2string(values, separator=", ", prefix="Tensor(", max_line_width=options.pop("linewidth"),
                           suppress_small=True if powers is False else None, formatter=formatter, **options)


def _warn_of_real(call: str, dtype: Any, wanted: Any) -> None:
    """A warning, as torch's, where complex numbers become real ones."""
    if dtype.kind == "c" and wanted.kind not in "cb":
        warnings.warn(f"{call}: casting {dtype} to {wanted} discards the imaginary part; use x.real or x.abs()", stacklevel=3)


def _apart() -> bool:
    """Whether where slices start is no part of the structure: in what is done untraced, by nobody's rule (see
    ops/primitives/dynamic_slice.py)."""
    return state.plain


def _moved(node: Node, fn: Any, attrs: dict[str, Any]) -> Node:
    """A step of a view's chain."""
    if fn is _SLICE and _apart():
        size = fn.aval(node.aval, **attrs).shape
        dims = parts(size, node.shape)
        if dims:
            return slice_at(node, attrs["start"], size, attrs["step"], dims)
    return bind(fn, (node,), attrs)


# The parts of complex tensors are views: (value, source) -> what the source becomes when its part is given a value.
_PARTS: dict[str, Callable[[Node, Node], Node]] = {
    "real": lambda value, source: REGISTRY["complex"](value, REGISTRY["imag"](source)),
    "imag": lambda value, source: REGISTRY["complex"](REGISTRY["real"](source), value),
    "view_as_real": lambda value, source: bind(REGISTRY["view_as_complex"], (value,), {}),
    "view_as_complex": lambda value, source: bind(REGISTRY["view_as_real"], (value,), {}),
}
def _take_part(view: Tensor, as_it_lies: bool = False) -> None:
    """Compute a small view of what numpy holds at once: where a batch starts would make another structure of each.

    as_it_lies: only what has its elements in order already, so that numpy adds them up as it would have.
    """
    base = view._base
    if base is None or view._n.aval.nbytes > PART:
        return
    source = base._node()
    if source.value is None and base._source is not None:
        _take_part(base, as_it_lies=True)
    array = None if source.value is None else held(source.value)
    if array is not None:
        array = array.reshape(base.shape)
        for fn, attrs in view._steps:
            array = fn.numpy(array, **attrs)
        if array.flags.c_contiguous or not as_it_lies:
            view._n.value = part = hold(view._device, np.array(array, order="C"))
            part.suspicions = source.value.suspicions


def _held_view(view: Tensor) -> tuple[Any, Any]:
    """The elements of a view where numpy has them, and what is suspect of them; (None, None) if it has not, or a base is large.

    The base gets no value: what is computed of it later is computed as if nobody had taken a part.
    """
    base = view._base
    if base is None:
        return None, None
    source = base._node()
    if source.value is not None:
        array, suspicions = held(source.value), source.value.suspicions
    else:
        array, suspicions = _held_view(base) if base._source is not None and source.aval.nbytes <= PART else (None, None)
    if array is not None:
        array = array.reshape(base.shape)
        for fn, attrs in view._steps:
            array = fn.numpy(array, **attrs)
    return array, suspicions


def _overlap(steps: Steps) -> bool:
    """Whether an element may have several places once these steps were made."""
    return any(fn.name in ("expand", "unfold") for fn, _ in steps)


def _are_apart(shape: tuple[int, ...], steps: Steps) -> bool:
    """Whether the elements of such a view of a base of that shape are memory locations of their own."""
    places: Any = np.arange(prod(shape)).reshape(shape)
    for fn, attrs in steps:
        if fn.name in _PARTS:
            return False
        places = fn.numpy(places, **attrs)
    return bool(len(np.unique(places)) == places.size)


def _put(base: Node, steps: Steps, value: Node, call: str) -> Node:
    """The base's new node once the view of it that `steps` make holds `value`: they are undone from their end."""
    stages = [base]
    for fn, attrs in steps:
        stages.append(bind(fn, (stages[-1],), attrs))
    back = list(zip(reversed(steps), reversed(stages[:-1]), strict=True))
    if _overlap(steps):
        if not _are_apart(base.shape, steps):
            raise ArgumentError(f"{call}: several elements of an expanded tensor, or of windows that overlap, are one memory location; "
                                "clone() it first")
        covered: Any = expand(const(1, dtypes.int32), value.shape)
        value = cast(value, dtypes.int32) if value.dtype == dtypes.bool_ else value
        for (fn, attrs), source in back:  # each element of the base gets one of the view's, or none
            covered, value = (sum_to(fn.vjp(v, v, source, **attrs)[0], source.shape) for v in (covered, value))
        written: Node = REGISTRY["where"](covered > 0, cast(value, base.dtype), base)
        return written
    for (fn, attrs), source in back:
        if fn.name == "reshape":
            value = reshape(value, source.shape)
        elif fn.name == "permute":
            value = permute(value, inverse(attrs["dims"]))
        elif fn.name == "flip":
            value = flip(value, attrs["dims"])
        elif fn.name == "slice":
            dims = parts(value.shape, source.shape) if _apart() else ()
            value = indexing.put_slice(source, value, attrs["start"], attrs["step"], dims)
        elif fn.name in _PARTS:
            value = _PARTS[fn.name](value, source)
        else:  # the padding of a diagonal: what it holds is seen by nobody
            value = fn.vjp(value, value, source, **attrs)[0]
    return value


def own_copy(node: Node) -> Node:
    """The same value as a step of a history of its own."""
    return bind(REGISTRY["copy"], (node,), {}) if not node.needs_grad else Node(REGISTRY["copy"], (node,), {}, node.aval, True)


def _masks_of_bytes(call: str, key: Any) -> Any:
    """The key with tensors of uint8 as the masks that torch takes them for."""
    items = key if isinstance(key, tuple) else (key,)
    if not any(isinstance(k, Tensor) and k.dtype == dtypes.uint8 for k in items):
        return key
    warnings.warn(f"{call}: an index of uint8 is a mask, as in torch; say so with .bool(), or use .long() for places", stacklevel=3)
    return tuple([k != 0 if isinstance(k, Tensor) and k.dtype == dtypes.uint8 else k for k in items])


def _masks(key: Any) -> bool:
    """Whether an index holds a tensor of bools."""
    return any(isinstance(k, Tensor) and k.dtype == dtypes.bool_ for k in (key if isinstance(key, tuple) else (key,)))


_DTYPE_NAMES = {str(d) for d in dtypes.SUPPORTED} | {"float", "double", "half", "long", "int", "bool", "cfloat", "cdouble"}


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor."""
    return isinstance(obj, Tensor)


def become_leaf(tensor: Tensor, node: Node) -> None:
    """From now on, gradients of the variable `node` belong to `tensor`, and its hooks see them.

    The numbers of leaves are negative: `derivatives.recorded` knows them by that when nobody holds the tensor any more.
    """
    if node.attrs["uid"] > 0:
        node.attrs = {"uid": -node.attrs["uid"]}
    leaves[node.attrs["uid"]] = tensor
    if tensor._hooks is not None:
        HOOKS[node] = tensor._hooks


def held_elsewhere(*lists: list[Tensor]) -> bool:
    """Whether anybody but `lists` holds one of the tensors in them, which nobody else may be about to use.

    They let go of the tensors to see which of them are still there. In the place of those that are gone, which nobody else has, there
    are others afterwards that are the same.
    """
    doubles = {id(x): x._double() for found in lists for x in found}
    refs = {key: weakref.ref(x) for found in lists for key, x in zip(map(id, found), found, strict=True)}
    for found in lists:
        found[:] = [doubles[id(x)] for x in found]
    originals = {id(doubles[key]): tensor for key, ref in refs.items() if (tensor := ref()) is not None}
    for found in lists:
        found[:] = [originals.get(id(x), x) for x in found]
    for double in doubles.values():
        if double._n.fn is _VARIABLE and leaves.get(double._n.attrs["uid"]) is None:
            leaves[double._n.attrs["uid"]] = double
    return bool(originals)


# ---------------------------------------------------------------------------------------------------------------- making


def holding(device: Device, aval: Aval, attrs: dict[str, Any], value: Any) -> Tensor:
    """A tensor that has a value, outside of traces: as Tensor(data(aval, value, attrs), device), in few steps."""
    made, node = _new(Tensor), _new(Node)
    node.fn, node.operands, node.attrs, node.aval, node.loc = _DATA, (), attrs, aval, NOWHERE
    node.needs_grad, node.constant, node.value = False, False, value
    made._n, made._device, made._versions, made._moved = node, device, 0, ()
    made._base = made._grad = made._hooks = made._source = made._trace = None
    if state.scopes:
        made._within = state.scopes
    return made


def from_array(array: np.ndarray[Any, Any], device: Any = None, requires_grad: bool = False, copy: bool | None = True) -> Tensor:
    """A tensor with the contents of a numpy array of a supported dtype. copy: as in `compile.upload`."""
    found = find_device(device)
    dtype = dtypes.as_dtype(array.dtype)
    node = data(Aval(tuple(array.shape), dtype), upload(found, array, copy))
    out = Tensor(node, found, None)
    if state.trace is not None:
        state.trace.adopt(out)
    return out.requires_grad_() if requires_grad else out


def from_own(array: np.ndarray[Any, Any], device: Any = None) -> Tensor:
    """The same of an array that nobody else has, row by row in memory."""
    found = find_device(device)
    out = Tensor(data(Aval(array.shape, array.dtype), upload(found, array, own=True)), found)
    if state.trace is not None:
        state.trace.adopt(out)
    return out


def older(given: Sequence[Any], dtype: dtypes.DType, **options: Any) -> Tensor:
    """What torch's older constructors make: of sizes zeros, else a copy of what `tensor` takes."""
    given = [x for x in given if x is not None]
    if len(given) == 1 and not isinstance(given[0], (int, np.integer, Size)):
        return PUBLIC["tensor"](given[0], dtype=dtype, **options)  # type: ignore[no-any-return]
    return PUBLIC["empty"](*given or (0,), dtype=dtype, **options)  # type: ignore[no-any-return]


def new_tensor(node: Node, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor for a node that has no tensor operand (zeros, arange, random numbers)."""
    found = state.trace.device if state.trace is not None and device is None else find_device(device)
    out = Tensor(node, found, state.trace)
    return out.requires_grad_() if requires_grad else out


def _restored(cls: Any, array: np.ndarray[Any, Any], requires_grad: bool) -> Tensor:
    """A tensor (or Parameter) that was pickled."""
    return from_array(array, requires_grad=requires_grad) if cls is Tensor else cls(array, requires_grad)
