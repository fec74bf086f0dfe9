"""Small operations on values that numpy holds are done when they are called. Start at `EagerCall`.

To defer an operation costs: nodes for all that it is made of, a walk over them, a key, a look-up. It pays where kernels fuse what was
deferred, and where whole steps are known (see autograd/backward_cache.py); few elements numpy has done before. So a call whose template is
known (see graph/cached_calls.py), and whose operands' values numpy holds, is computed eagerly, by a NumpyProgram that the cached call
keeps. What has no value yet, or lies in a kernel's memory, is deferred as ever, and so is what is to be differentiated.

Whether a call is computed eagerly depends on its structure and on what made its operands, never on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.execute.backend_interfaces import numpy_rules
from tracegrad.execute.policy import eager_calls
from tracegrad.execute.program import contents, host_part
from tracegrad.execute.realize import PART, computed_early
from tracegrad.graph.cached_calls import CachedCall
from tracegrad.graph.canonical import resolve
from tracegrad.graph.intervals import all_of, interval
from tracegrad.graph.ir import Aval, Node, forget_operands
from tracegrad.graph.operation import EAGER_FAMILIES
from tracegrad.graph.operation_families import Movement
from tracegrad.graph.primitive import NOWHERE, REGISTRY, data, numpy_time
from tracegrad.runtime.buffer import HostBuffer, host_buffer
from tracegrad.support.blas import quiet, shared_among_threads, silent
from tracegrad.support.modes import state, unusual
from tracegrad.support.tuning import tuning

LIMIT = 60_000.0            # nanoseconds that numpy takes for a call, by the operations' costs: some times what it takes to record one
RECORDED = 5_000.0          # and for each of its operations what it takes to record, order and look up that
DEPTH = 8                   # of what constants are made of
CONSTANT = 1 << 12          # bytes of what is made of numbers alone that are remembered
_CONST, _COPY, _OFFSET = REGISTRY["const"], REGISTRY["copy"], REGISTRY["offset"]
_VIEWS = frozenset(REGISTRY[name] for name in ("reshape", "permute", "expand", "slice", "flip"))       # which NumPy moves nothing for


class EagerCall:
    """A known call, done by numpy.

    moves: whether elements move only. views: whether the results are views, too, which need nodes that tell their way from the base; those
    of other calls are leaves. history: they are parts of one, and have all their nodes. results: for each, its place in the call, aval,
    and what leaves know of themselves. leaf: that of a single one that is a leaf; leaves: those of several.
    """

    __slots__ = ("constants", "device", "history", "leaf", "leaves", "moves", "products", "results", "routine", "views", "wide")

    def __init__(self, call: CachedCall, made: Sequence[Node], order: Sequence[Node], array: Any = None) -> None:
        """made: its nodes by place, of leaves without values. order: the operations among them. array: the result, the same each time."""
        self.device: Any = None                         # one that it was seen to be fit for
        self.history = call.is_read
        leaves = [*made[:call.made], *(n for n in made[call.made:] if n.fn is _OFFSET)]
        self.constants = [constant_value(n) for n in leaves[call.made - len(call.constants):]]
        at = {n: ~k for k, n in enumerate(leaves)} | {n: i for i, n in enumerate(order)}
        ends = list(dict.fromkeys(call.ends))
        places = [tuple([at[o] for o in n.operands]) for n in order]
        self.routine: Any = (numpy_rules().prepared(order, places, [at[made[k]] for k in ends]) if array is None
                             else SimpleNamespace(written=lambda *given: [array]))
        placed = [n.fn.family == "dynamic_slice" for n in order]
        self.moves = all(isinstance(n.fn, Movement) or n.fn.part or at for n, at in zip(order, placed, strict=True))
        self.views = array is None and self.moves and all(len(n.operands) == 1 or at for n, at in zip(order, placed, strict=True))
        self.products = any(n.fn.family == "attention" or (
            n.fn.family == "contraction" and shared_among_threads(*[o.aval for o in n.operands])) for n in order)
        self.wide = any(n.dtype in (np.float64, np.complex128) for n in order)
        self.results = [(k, made[k].aval, _lasting(made[k])) for k in ends]
        own = self.results if not (self.views or self.history) and len(ends) == len(call.ends) else []
        self.leaf: Any = own[0] if own and call.result is not None else None
        self.leaves = own if self.leaf is None else []

    def arrays(self, nodes: Sequence[Node], device: Any) -> Any:
        """The results' arrays; None where they cannot be had now. (A hot path.)"""
        if (unusual[0] and not state.plain) or not config.eager:
            return None
        if device is not self.device:
            if not device.in_host_memory or device.kind == "numpy" or (self.wide and not device.fp64):
                return None
            self.device = device
        arrays = []
        for node in nodes:
            value = node.value
            if type(value) is not HostBuffer and type(value := value_of(node, device)) is not HostBuffer:
                return None
            if (array := value.array) is None or value.deferred_checks:
                return None
            arrays.append(array if value.fits is (aval := node.aval) else contents(value, aval))
        if self.constants:
            arrays += self.constants
        notes: list[int] = []
        routine = self.routine.written or self.routine
        try:
            if self.moves:                                                  # numpy has nothing to warn of
                found = routine(arrays, (), notes)
            elif self.products:
                with quiet():
                    found = routine(arrays, (), notes)
            else:
                found = silent.call(routine, arrays, (), notes)
        except Exception:               # deferred, it raises where somebody reads it
            return None
        if notes and any(notes):
            return None
        eager_calls[0] += 1
        return found


def arrays_of(call: CachedCall, nodes: Sequence[Node], device: Any) -> Any:
    """The arrays of a known call's results, which NumPy computes now; None where it is deferred."""
    call.uses += 1
    prepared = call.prepared
    if prepared is None:
        prepared = prepare(call, nodes)
    found = prepared.arrays(nodes, device) if prepared else None
    return arrays_behind(call, nodes, device) if found is None and prepared else found


def arrays_behind(call: CachedCall, nodes: Sequence[Node], device: Any) -> Any:
    """The same of a call that the EagerCall it has could not do at once: it can where what waits behind `nodes` is computed first."""
    early = state.plain and config.eager and device is call.prepared.device and call.uses <= tuning().early_uses
    return call.prepared.arrays(nodes, device) if early and all(computed_early(n, device) for n in nodes) else None


def nodes_of(call: CachedCall, nodes: Sequence[Node], device: Any, found: Any) -> Sequence[Node] | dict[int, Node]:
    """The nodes of a known call by place, of the results at least, for these operands. found: what `arrays_of` gave."""
    if found is None:
        return call.make(nodes)
    prepared = call.prepared
    if prepared.views or prepared.history:
        values: Any = call.make(nodes) if prepared.history else call.fresh(nodes, NOWHERE, call.steps)
        for (k, _, _), array in zip(prepared.results, found, strict=True):
            values[k].value = host_part(device, array)
        return values  # type: ignore[no-any-return]
    return {k: data(aval, host_part(device, array), attrs) for (k, aval, attrs), array in zip(prepared.results, found, strict=True)}


def made_eagerly(device: Any, aval: Aval) -> bool:
    """Whether NumPy makes what is made of numbers alone when it is asked for, for this device."""
    return (state.plain and config.eager and config.recall and aval.nbytes <= PART and device.in_host_memory and device.kind != "numpy"
            and (device.fp64 or aval.dtype not in (np.float64, np.complex128)))


def known_of(node: Node) -> dict[str, Any]:
    """Those of a leaf with the node's value: between which integers that lies is still known."""
    aval = node.aval
    known = interval(node) if aval.dtype.kind in "iu" else None
    return {"aval": aval} if known is None or known == all_of(aval.dtype) else {"aval": aval, "range": known}


def _lasting(node: Node) -> dict[str, Any]:
    """`known_of` a call's result, but which number it is: a counter would have another range at each step, so no call of it be known."""
    low, high = (known := known_of(node)).get("range", (0, 1))
    return {"aval": node.aval} if low == high and not node.aval.shape else known


def value_of(node: Node, device: Any) -> Any:
    """What holds the value of a node that has none itself, or a number: that of what is made of constants alone it keeps. Else None."""
    if node.fn is _CONST or type(node.value) is int:                   # a number in the place of any other; of a random stream
        return host_buffer(device, np.asarray(node.attrs["value"] if node.fn is _CONST else node.value, node.aval.dtype))
    found = resolve(node)
    if found.value is None and found.fn is _COPY and not found.needs_grad:
        value = resolve(found.operands[0]).value
        if type(value) is HostBuffer and value.array is not None and not value.deferred_checks:
            found.value = host_buffer(device, contents(value, found.aval))      # which nobody writes
            forget_operands(found)
    elif found.value is None and not found.needs_grad and found.aval.nbytes <= PART and found.fn.constant and not found.aval.weak:
        array = constant_value(found) if all(o.constant for o in found.operands) else None
        if array is not None and (device.fp64 or found.dtype not in (np.float64, np.complex128)):
            found.value = host_buffer(device, array if array.base is None else np.array(array, order="C"))
            forget_operands(found)
    return found.value


def constant_value(node: Node, depth: int = 0) -> Any:
    """The value of what is made of constants; None where that is not done here."""
    if node.fn.family not in EAGER_FAMILIES and node.fn.family not in ("leaf", "index"):
        return None
    operands = [constant_value(o, depth + 1) for o in node.operands] if depth < DEPTH else [None]
    if any(o is None for o in operands) or (not operands and node.fn.family not in ("leaf", "index")):
        return None
    with quiet():
        return np.asarray(node.fn.computed(operands, node.attrs, node.dtype), node.dtype)


def prepare(call: CachedCall, nodes: Sequence[Node]) -> Any:
    """The EagerCall of a known call, for operands like `nodes`, which it keeps; False where its calls are always deferred."""
    call.prepared = _prepared(call, nodes)
    return call.prepared


def _prepared(call: CachedCall, nodes: Sequence[Node]) -> Any:
    made = call.fresh([data(n.aval, None, known_of(n)) for n in nodes], NOWHERE, call.steps)            # they hold no values
    order = [n for n in made[call.made:] if n.fn is not _OFFSET]
    if not nodes:                                                       # of numbers alone
        array = constant_value(made[call.result]) if made[call.result].aval.nbytes <= CONSTANT else None
        return array is not None and not made[call.result].aval.weak and EagerCall(call, made, order, np.array(array, order="C"))
    if not (order and all((call.is_read or not n.needs_grad) and n.fn.registered and n.fn.family in EAGER_FAMILIES and not n.aval.weak
                          for n in order)):
        return False
    cheap = sum([numpy_time(n) for n in order if n.fn not in _VIEWS]) <= LIMIT + RECORDED * len(order)      # else constants may be large
    return (cheap and all(k >= call.made for k in call.ends) and all(constant_value(n) is not None for n in call.constants)
            and EagerCall(call, made, order))
