"""Deferred work: the tensors without values, and `flush`, which computes what they need. See docs/design.md, "Deferral"."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tracegrad.errors import DeviceError, TracegradError
from tracegrad.execute.devices import Device, used_devices
from tracegrad.execute.realize import cut_histories, lock, realize, realize_all, small_detached
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import REGISTRY

_VARIABLE = REGISTRY["variable"]
waiting: list[weakref.ref[Any]] = []        # tensors without values, in the order in which they were made; some may be gone, or done
flushes = [0]                               # how many there were


def flush(keep_history: bool = True, works: list[Any] | None = None) -> None:
    """Compute everything that is pending; what cannot be says why when it is read.

    keep_history: also keep what a later backward would need and be slow to recompute. works: gets what was computed (realize.Work).

    >>> tg.flush()
    """
    _flush(keep_history, works)


def _flush(keep_history: bool = True, works: list[Any] | None = None) -> TracegradError | None:
    """`flush`; returns the error if a device refused something."""
    refused: TracegradError | None = None
    flushes[0] += 1
    lock.acquire()              # what another thread took is computed when this returns: its history may be freed then
    try:
        if not waiting:
            return None
        handles = waiting.copy()
        del waiting[:len(handles)]
        try:
            alive, fresh = _gather(handles)
            # New values of leaves by themselves, so that the rest has one structure at every step.
            refused = _realize_possible(fresh, None) or _realize_possible(alive, _worth_keeping if keep_history else None, works)
            cut_histories()
        except BaseException:
            waiting[:0] = handles
            raise
    finally:
        lock.release()
    return refused


Pending = dict[Device, list[Node]]


def _gather(handles: list[weakref.ref[Any]]) -> tuple[Pending, Pending]:
    """By device: the nodes of pending tensors that are still alive, with small ones that were detached on the way; new values of leaves."""
    alive: Pending = {}
    fresh: Pending = {}
    for ref in handles:
        tensor = ref()
        if tensor is None or tensor._base is not None or not tensor._device.has_values:
            continue
        node = tensor._n
        if node.value is None and resolve(node).value is None:
            alive.setdefault(tensor._device, []).append(node)
            if node.fn is _VARIABLE and not node.operands[0].needs_grad:
                fresh.setdefault(tensor._device, []).append(node)
    for device, nodes in alive.items():
        nodes += small_detached(device)
    return alive, fresh


def pending_nodes() -> tuple[Pending, int]:
    """The nodes of pending tensors that are still alive, by device; new values of leaves are computed first, as in `flush`.

    And how many tensors were noted as pending: what `no_longer_pending` takes once all is computed.
    """
    count = len(waiting)
    alive, fresh = _gather(waiting)
    _realize_possible(fresh, None)
    for device in fresh:
        alive[device] = [n for n in alive[device] if resolve(n).value is None]
    return {device: nodes for device, nodes in alive.items() if nodes}, count


def no_longer_pending(count: int) -> None:
    """Forget the first `count` tensors that were noted as pending: they have values."""
    cut_histories()
    del waiting[:count]


def _realize_possible(pending: Pending, keep: Callable[[Node], bool] | None, works: list[Any] | None = None) -> TracegradError | None:
    """Compute `pending`, but what cannot be (a rejected kernel, a freed history, a transform's inside): reading one says why.

    Returns the first error that is a device's.
    """
    refused: TracegradError | None = None
    try:
        if len(pending) == 1:
            ((device, nodes),) = pending.items()
            realize(nodes, device, keep, works)
        elif pending:
            realize_all(pending, keep, works)
    except TracegradError:
        for device, nodes in pending.items():
            for node in nodes:
                try:
                    realize([node], device, keep)
                except DeviceError as error:
                    refused = refused or error
                except TracegradError:
                    pass
    return refused


def _worth_keeping(node: Node) -> bool:
    return node.needs_grad and node.fn.expensive


def synchronize() -> None:
    """Wait until everything that was asked for is computed.

    Raises what a device refuses to compute (OutOfMemoryError, BuildError, ...; it stays pending), and IndexOutOfRange for an index out
    of range that nobody was told of (values computed with one raise it when they are read).

    >>> y = tg.ones(1000).exp()
    >>> tg.synchronize()
    """
    refused = _flush()
    for device in used_devices():
        device.finish()
        device.record.raise_first()
    if refused is not None:
        raise refused
