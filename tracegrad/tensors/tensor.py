"""Tensor: a handle on a node of the graph. All reading goes through `Handle._node` (parts/handle.py), all writing through `InPlace._rebind`

(parts/in_place.py). History, indexing, and what takes values out are bases there, too. Here is how tensors
are made: of results, as views, in another dtype, on another device.

Outside @trace, work is deferred: an operation records a node, and `flush` computes everything that is pending when somebody
reads a value, at backward(), or when too much has gathered. In-place operations rebind the handle to a new node.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from tracegrad.config import config
from tracegrad.errors import INTERNAL, ArgumentError, ArgumentTypeError, DeviceError, TraceError
from tracegrad.execute.deferred import flush, waiting
from tracegrad.execute.devices import Device, find_device, stays_numpys, upload
from tracegrad.execute.eager_executor import arrays_behind, nodes_of, prepare
from tracegrad.execute.program import host_part
from tracegrad.execute.realize import held_view, is_view, realize
from tracegrad.graph.cached_calls import CachedCall
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Aval, Node, Size, own_nodes
from tracegrad.graph.locations import user_location
from tracegrad.graph.operators import PUBLIC, shown
from tracegrad.graph.primitive import NOWHERE, REGISTRY, call, cast, detached
from tracegrad.ops.arguments import results_of
from tracegrad.ops.arrays.pointwise import acceptable
from tracegrad.ops.primitives.dynamic_slice import as_slice
from tracegrad.ops.primitives.movement import compact
from tracegrad.ops.primitives.transfer import computes, transfer
from tracegrad.runtime.buffer import HostBuffer
from tracegrad.support import dtypes
from tracegrad.support.layouts import accept_format
from tracegrad.support.modes import state, unusual
from tracegrad.tensors.bases.conversion import Conversion
from tracegrad.tensors.bases.history import History, become_leaf, leaves
from tracegrad.tensors.bases.in_place import InPlace, warn_of_real
from tracegrad.tensors.bases.subscripts import Subscripts
from tracegrad.tensors.bases.view_steps import Step
from tracegrad.tensors.scopes import Recorded

_DATA, _VARIABLE, _DETACH = REGISTRY["data"], REGISTRY["variable"], REGISTRY["detach"]
_new = object.__new__
_SLICE, _SLICE_AT, _CAST = REGISTRY["slice"], REGISTRY["slice_at"], REGISTRY["cast"]


class Tensor(History, InPlace, Subscripts, Conversion):
    """An n-dimensional array on a device, in PyTorch's idiom. Make one with `tg.tensor`, `tg.zeros`, `tg.from_numpy`, ...

    As in torch, Tensor(2, 3) and Tensor([1, 2, 3]) are tensors of the default dtype, too. Raises what `tg.tensor` and `tg.empty` raise.

    shape: sizes. dtype: a numpy dtype (`tg.float32`, ...). device: where its values live. requires_grad: whether
    operations on it are recorded for `backward`. grad: the gradient that backward accumulated, or None.

    >>> x = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    Tensor([[2., 4.],
            [6., 8.]], device='cpu')
    """

    __slots__ = ("__dict__",)               # attributes of the user's own; none is made before there is one

    def __init__(self, node: Any = None, device: Any = None, trace: Any = None, *more: Any) -> None:
        if device is None or type(device) is int:
            made: Tensor = older((node, device, trace, *more), dtypes.get_default_dtype())
            node, device, trace = made._n, made.device, made._trace
            if trace is None and state.trace is not None:
                state.trace.adopt(self)
        scopes = state.scopes if unusual[0] else ()
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

    def _tensor_of(self, node: Node) -> Tensor:
        """A tensor for the result of an operation on this one."""
        if node.needs_grad and not state.grad:
            node = detached(node)
        return Tensor(node, self._device, state.trace if unusual[0] else None)

    def _handle(self, node: Node, device: Any, trace: Any = None) -> Tensor:
        """Another handle, for those of the bases that make one."""
        return Tensor(node, device, trace)

    def _recalled(self, call: CachedCall, nodes: Sequence[Node]) -> Any:
        """What a known call with this tensor gives: the way to go on is the call's (execute/eager_executor.py)."""
        device, result = self._device, call.result
        call.uses += 1
        prepared = call.prepared
        if prepared is None:
            prepared = prepare(call, nodes)
        if prepared is False:                           # always deferred
            values = call.make(nodes)
            return self._tensor_of(values[result]) if result is not None and result >= call.made else results_of(self, call, values)
        found = prepared.arrays(nodes, device)          # (as `arrays_of` does: a call less)
        if found is None:
            found = arrays_behind(call, nodes, device)
        if found is not None and (leaf := prepared.leaf) is not None:
            _, aval, attrs = leaf
            return holding(device, aval, attrs, None, found[0])
        if found is not None and (leaves := prepared.leaves):
            made = [holding(device, aval, attrs, None, array) for (_, aval, attrs), array in zip(leaves, found, strict=True)]
            return optree.tree_unflatten(call.tree, made)
        values = nodes_of(call, nodes, device, found)
        return self._tensor_of(values[result]) if result is not None and result >= call.made else results_of(self, call, values)

    def _of_own(self, array: np.ndarray[Any, Any]) -> Tensor:
        """A tensor where this one is, of an array that nobody else has."""
        return from_own(array, self._device)

    def _set_node(self, node: Node) -> None:
        held = node
        if node.fn is _VARIABLE:
            become_leaf(self, node)
            held = node.operands[0]                             # has the value, if there is one
        if unusual[0] and state.trace is not None and self._trace is not state.trace:
            state.trace.rebind(self, node)
        else:
            self._n = node = node.twin() if node.constant and self._trace is None else node
            if self._trace is None and held.fn is not _DATA and held.value is None and not (unusual[0] and state.examples):
                waiting.append(weakref.ref(self))

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
            result._detached |= not node.fn.differentiable      # bytes as another dtype
            node = node.operands[0]
        result._base, result._chain = self, tuple(reversed(chain))
        if (not source.needs_grad or result._detached) and state.trace is None and result._trace is None:
            result._source = weakref.ref(source), self._version
            if sliced:                          # else where a batch starts would be an operand of all that is made of it
                for view in (result, self) if self._source is not None else (result,):
                    if view._n.value is None and (array := held_view(view._n)) is not None:
                        view._n.value = host_part(self._device, array)
        return result

    # ----------------------------------------------------------------------------------------------------- description


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

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> Any:
        return PUBLIC["eq"](self, other) if acceptable(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return PUBLIC["ne"](self, other) if acceptable(other) else NotImplemented

    def __reduce__(self) -> Any:
        """For pickle and copy: the values, requires_grad and attributes of one's own, without history. Restored on the default device."""
        return _restored, (type(self), self.detach().numpy(), self.requires_grad), *([vars(self)] if vars(self) else [])


    # --------------------------------------------------------------------------------------------------- dtype, device

    def to(self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, copy: bool = False,
           memory_format: Any = None) -> Tensor:
        """The tensor in another dtype and/or on another device; itself if nothing changes, unless copy. Accepts torch's forms

        (non_blocking and memory_format are hints that have no effect). Raises NoDriverError for a device that is not there.
        """
        if dtype is not None and device is None and not (args or copy or memory_format):        # what float() and its like ask for
            wanted, own = dtypes.as_dtype(dtype), self._n.aval.dtype
            if wanted == own:
                return self
            warn_of_real("to", own, wanted)
            return self._cast(wanted)
        accept_format("to", memory_format)
        flags = [a for a in args if isinstance(a, bool)]  # torch's non_blocking and copy, by place
        copy = flags[1] if len(flags) > 1 else copy
        for a in args:
            if a is None or isinstance(a, bool):
                continue
            is_tensor = isinstance(a, Tensor)
            is_dtype = not is_tensor and names_dtype(a)
            if (dtype if is_dtype else device) is not None or (is_tensor and dtype is not None) or len(flags) > 2:
                raise ArgumentTypeError("to: takes one dtype and one device, or one tensor that has both, then non_blocking and copy, got "
                                        f"({', '.join(map(shown, args))})")
            if is_tensor:
                dtype, device = a.dtype, a.device
            elif is_dtype:
                dtype = a
            else:
                device = a
        target = self._device if device is None else find_device(device)
        own = self._n.aval.dtype
        wanted = own if dtype is None else dtypes.as_dtype(dtype)
        if wanted == own and self._device is target and not copy:
            return self
        if wanted != own:
            warn_of_real("to", own, wanted)
        # The fewer bytes are sent, but what a device cannot compute in is converted by the other one.
        here = self._device is target or (wanted.itemsize <= own.itemsize and computes(self._device, own, wanted))
        out = self._cast(wanted) if here else self
        out = out if target is self._device else out._sent(target)
        out = out if here else out._cast(wanted)
        return out.clone() if copy and out is self else out

    def _cast(self, dtype: Any) -> Tensor:
        """The tensor in another dtype; itself if it has it."""
        if dtype == self._n.aval.dtype:
            return self
        if state.plain:
            return call(_CAST, (self,), {"dtype": dtype, "weak": False})  # type: ignore[no-any-return]
        with own_nodes():
            return self._tensor_of(cast(self._node(), dtype))

    def _sent(self, target: Device) -> Tensor:
        """The tensor on another device. Without a history its value is sent at once: what is made of it then looks like any other work."""
        if not self._device.has_values:
            raise DeviceError(f"to: a tensor on 'meta' ({self.dtype}{list(self.shape)}) has no values to move; use "
                              "model.to_empty(device=...), and load them")
        if not target.has_values and not (state.grad and self._node().needs_grad):
            return PUBLIC["empty"](self.shape, dtype=self.dtype, device=target)  # type: ignore[no-any-return]
        recorded = next((scope.call for scope in state.scopes if isinstance(scope, Recorded)), "")
        if recorded:
            what = f"what {recorded} records{'' if state.trace is not None else ' in a vmap'}"
            raise TraceError(f"to at {user_location()}: {what} runs on one device; move tensors between devices outside it")
        node = self._operand()
        with own_nodes():
            sent = transfer(node, self._device, target)
        out = Tensor(sent if state.grad or not sent.needs_grad else detached(sent), target, state.trace)
        if not (sent.needs_grad or state.symbolic or state.hidden or state.pulling):
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


    # ----------------------------------------------------------------------------------------------------------- in place

def names_dtype(a: Any) -> bool:
    """Whether an argument of `to` is a dtype, or the name of one."""
    return dtypes.is_dtype(a) or (isinstance(a, str) and a in _DTYPE_NAMES)


_DTYPE_NAMES = {str(d) for d in dtypes.SUPPORTED} | {"float", "double", "half", "long", "int", "bool", "cfloat", "cdouble"}


class RunTimeNumber(Tensor):
    """A float or complex number that a traced function was given. To `isinstance` in the user's code it is one, as untraced."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "abc":         # isinstance(x, numbers.Number)
            frame = frame.f_back
        if frame.f_code.co_filename.startswith((*INTERNAL, "<a routine of tracegrad>")):
            return type(self)
        return float if dtypes.dtype_kind(self._n.aval.dtype) == "f" else complex


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor.

    >>> tg.is_tensor(tg.ones(2)), tg.is_tensor(1.0)
    """
    return isinstance(obj, Tensor)


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


def holding(device: Device, aval: Aval, attrs: dict[str, Any], value: Any, array: Any = None, whole: bool = False) -> Tensor:
    """A tensor that has a value, outside of traces: as Tensor(data(aval, value, attrs), device), in few steps.

    array, whole: the value is host_part(device, array, whole) then, and the array of this aval. (A hot path: every small result.)
    """
    if array is not None:
        value = _new(HostBuffer)
        value.device = device
        value.array = array if whole or array.base is None else compact(array)
        value.deferred_checks = ()
        value.fits = aval
    made, node = _new(Tensor), _new(Node)
    node.fn = _DATA
    node.operands = ()
    node.attrs = attrs
    node.aval = aval
    node.loc = NOWHERE
    node.needs_grad = node.constant = False
    node.value = value
    made._n = node
    made._device = device
    made._versions = 0
    made._moved = ()
    made._base = made._grad = made._hooks = made._source = made._trace = None
    if unusual[0] and (scopes := state.scopes):
        made._within = scopes
    return made


def from_array(array: np.ndarray[Any, Any], device: Any = None, requires_grad: bool = False, copy: bool | None = True) -> Tensor:
    """A tensor with the contents of a numpy array of a supported dtype. copy: as in `compile.upload`."""
    found = find_device(device)
    aval = Aval(array.shape, dtypes.as_dtype(array.dtype))
    if copy is not False and stays_numpys(found, array.nbytes):
        out = holding(found, aval, {"aval": aval}, None, np.array(array, order="C"), True)
    else:
        out = holding(found, aval, {"aval": aval}, upload(found, array, copy))
    if unusual[0] and state.trace is not None:
        state.trace.adopt(out)
    return out.requires_grad_() if requires_grad else out


def from_own(array: np.ndarray[Any, Any], device: Any = None) -> Tensor:
    """The same of an array that nobody else has, row by row in memory."""
    found = find_device(device)
    aval = Aval(array.shape, array.dtype)
    if stays_numpys(found, array.nbytes):
        out = holding(found, aval, {"aval": aval}, None, array, True)
    else:
        out = holding(found, aval, {"aval": aval}, upload(found, array, own=True))
    if unusual[0] and state.trace is not None:
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
