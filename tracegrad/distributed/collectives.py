"""torch.distributed's operations, which write into tensors: all_reduce, broadcast, all_gather, send, ... Start at `_written`.

`functional.py` has the same as operations that return new tensors; these keep the history of a tensor that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.distributed import functional
from tracegrad.distributed.exchange import Exchange, ReduceOp, checked_op
from tracegrad.distributed.functional import Pending, checked, described, perform, place, post, start, start_when, values
from tracegrad.distributed.world import ProcessGroup, member
from tracegrad.errors import ArgumentError, AutogradError, DistributedError, ShapeError, user_line
from tracegrad.graph.ir import Aval
from tracegrad.ops.arrays.joining import stack
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor, from_array


class Work:
    """An operation on its way: `wait()` until its tensors are written. Before that, do not read or change them."""

    def __init__(self, finish: Callable[[], Any] | None = None) -> None:
        self._finish = finish

    def wait(self, timeout: Any = None) -> bool:
        """Wait, write the results, and return True. Raises DistributedError. timeout is torch's: the group's holds."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Whether `wait` has written the results."""
        return self._finish is None


def _written(who: str, group: ProcessGroup, shown: str, move: Callable[..., Any], x: Tensor, outs: Sequence[Tensor],
             async_op: bool) -> Work | None:
    """Move x's values, and write what `move` returns (one array for each of `outs`, stacked or one alone) into outs."""
    _unmapped(who)
    for out in outs:
        checked(who, out)
        if out.requires_grad and not out.is_leaf and state.grad:
            raise AutogradError(f"{who}: a tensor with a history is written over; use tg.distributed.functional.{who}, which "
                                "differentiates, or detach()")
    if state.trace is not None:
        shape = outs[0].shape if len(outs) == 1 else (len(outs), *(outs[0].shape if outs else ()))
        with no_grad():
            result = perform(who, group, shown, move, x.detach(), shape)
            for k, out in enumerate(outs):
                out.copy_(result if len(outs) == 1 else result[k])
        return Work() if async_op else None
    pending = start(who, group, shown, move, values(who, x))

    def finish() -> None:
        arrays = pending.get()
        with no_grad():
            for k, out in enumerate(outs):
                out.copy_(from_array(arrays if len(outs) == 1 else arrays[k], out.device))

    if async_op:
        return Work(finish)
    finish()
    return None


def _unmapped(who: str) -> None:
    if state.examples:
        raise DistributedError(f"{who}: inside a vmap, which has a tensor for each example, it cannot write into one; use the form of "
                               "tg.distributed.functional, which returns a new tensor, or call it outside the vmap")


def all_reduce(tensor: Tensor, op: str = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Write into the tensor what those of all ranks are, put together. A tensor with a history keeps it: see functional.all_reduce.

    Raises DTypeError for an op that its numbers do not have, and DistributedError if another rank fails, is too slow or does another thing.

        tg.distributed.all_reduce(loss, op=tg.distributed.ReduceOp.AVG)
    """
    own = member("all_reduce", group)
    checked_op("all_reduce", op, checked("all_reduce", tensor).dtype)
    if tensor.requires_grad and not tensor.is_leaf and state.grad and not async_op:
        tensor.copy_(functional.all_reduce(tensor, op, own))
        return None
    return _written("all_reduce", own, described(tensor, op), lambda e, a: e.all_reduce(a, op), tensor, [tensor], async_op)


def reduced(tensor: Tensor, op: str, group: ProcessGroup, names: Sequence[str]) -> Work:
    """all_reduce(async_op=True) of what has these names, which have to be the same on all ranks."""
    found = _written("all_reduce", group, described(tensor, op, *names), lambda e, a: e.all_reduce(a, op), tensor, [tensor], True)
    assert found is not None
    return found


def reduced_when(arrival: Callable[[], Any], like: Aval, op: str, group: ProcessGroup, names: Sequence[str], line: str) -> Pending:
    """The same of an array that is there when `arrival` returns it. like: its shape and dtype; line: the user's."""
    return start_when(arrival, "all_reduce", group, described(like, op, *names), lambda e, a: e.all_reduce(a, op), line)


def reduce(tensor: Tensor, dst: int, op: str = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """As all_reduce, for rank dst; the tensors of other ranks stay as they are."""
    own = member("reduce", group)
    there = place("reduce", own, dst, "dst")
    checked_op("reduce", op, checked("reduce", tensor).dtype)

    def move(e: Exchange, a: Any) -> Any:
        total = e.all_reduce(a, op)
        return total if e.rank == there else a

    return _written("reduce", own, described(tensor, op, dst), move, tensor, [tensor], async_op)


def broadcast(tensor: Tensor, src: int, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Write rank src's tensor into those of the others."""
    own = member("broadcast", group)
    there = place("broadcast", own, src, "src")
    return _written("broadcast", own, described(checked("broadcast", tensor), f"src={src}"), lambda e, a: e.broadcast(a, there), tensor,
                    [tensor], async_op)


def all_gather(tensor_list: list[Tensor], tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Write the tensors of all ranks, which have equal shapes, into those of the list."""
    own = member("all_gather", group)
    _count("all_gather", "tensor_list", tensor_list, own)
    _like("all_gather", tensor_list, tensor)

    def move(e: Exchange, a: Any) -> Any:
        return e.gather(a) if e.size > 1 else a

    return _written("all_gather", own, described(tensor), move, tensor, tensor_list, async_op)


def gather(tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, group: ProcessGroup | None = None,
           async_op: bool = False) -> Work | None:
    """As all_gather, into the list of rank dst; other ranks give none."""
    own = member("gather", group)
    outs, there = _root_list("gather", "gather_list", gather_list, tensor, own, dst, "dst")
    n, shape = tensor.numel(), tuple(tensor.shape)

    def move(e: Exchange, a: Any) -> Any:
        got = e.exchange(a.reshape(-1), [n * (r == there) for r in range(e.size)], [n * (e.rank == there)] * e.size)
        return got.reshape(shape if len(outs) == 1 else (len(outs), *shape) if outs else (0,))

    return _written("gather", own, described(tensor, f"dst={dst}"), move, tensor, outs, async_op)


def scatter(tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0, group: ProcessGroup | None = None,
            async_op: bool = False) -> Work | None:
    """Write tensor i of rank src's list into the tensor of rank i; other ranks give no list."""
    own = member("scatter", group)
    given, there = _root_list("scatter", "scatter_list", scatter_list, tensor, own, src, "src")
    n, shape = tensor.numel(), tuple(tensor.shape)

    def move(e: Exchange, a: Any) -> Any:
        sent = a.reshape(-1) if e.rank == there else a.reshape(-1)[:0]
        return e.exchange(sent, [n * (e.rank == there)] * e.size, [n * (r == there) for r in range(e.size)]).reshape(shape)

    return _written("scatter", own, described(tensor, f"src={src}"), move, _stacked(given) if given else tensor, [tensor], async_op)


def _root_list(who: str, name: str, given: list[Tensor] | None, tensor: Tensor, group: ProcessGroup, rank: int,
               called: str) -> tuple[list[Tensor], int]:
    """The list, which one rank has to give and no other one may; and that rank's number in the group."""
    there = place(who, group, rank, called)
    checked(who, tensor)
    if group.rank() == there:
        _count(who, name, given or (), group)
        _like(who, given or (), tensor)
    elif given:
        raise ArgumentError(f"{who}: {name} is {called}'s, which is rank {rank}; leave it out on rank {group.ranks[group.rank()]}")
    return list(given or ()), there


def all_gather_into_tensor(output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup | None = None,
                           async_op: bool = False) -> Work | None:
    """Write the tensors of all ranks into one: joined along the first dimension, or stacked, by its shape. Raises ShapeError."""
    own, n = member("all_gather_into_tensor", group), checked("all_gather_into_tensor", input_tensor).numel()
    shape = tuple(checked("all_gather_into_tensor", output_tensor).shape)
    if output_tensor.numel() != n * own.size():
        raise ShapeError(f"all_gather_into_tensor: {own.size()} tensors of shape {tuple(input_tensor.shape)} do not fill {shape}")
    return _written("all_gather_into_tensor", own, described(input_tensor), lambda e, a: e.gather(a).reshape(shape), input_tensor,
                    [output_tensor], async_op)


def reduce_scatter_tensor(output: Tensor, input: Tensor, op: str = ReduceOp.SUM, group: ProcessGroup | None = None,
                          async_op: bool = False) -> Work | None:
    """Put the inputs of all ranks together, and write this rank's piece of the first dimension into output. Raises ShapeError."""
    own = member("reduce_scatter_tensor", group)
    n, shape = checked("reduce_scatter_tensor", output).numel(), tuple(output.shape)
    checked_op("reduce_scatter_tensor", op, checked("reduce_scatter_tensor", input).dtype)
    if input.numel() != n * own.size():
        raise ShapeError(f"reduce_scatter_tensor: an input of shape {tuple(input.shape)} is not {own.size()} pieces of the shape {shape}")
    return _written("reduce_scatter_tensor", own, described(input, op),
                    lambda e, a: e.reduce_scatter(a.reshape(-1), [n] * e.size, op).reshape(shape), input, [output], async_op)


def reduce_scatter(output: Tensor, input_list: list[Tensor], op: str = ReduceOp.SUM, group: ProcessGroup | None = None,
                   async_op: bool = False) -> Work | None:
    """reduce_scatter_tensor of a list: tensor i is for rank i."""
    _count("reduce_scatter", "input_list", input_list, member("reduce_scatter", group))
    _like("reduce_scatter", input_list, output)
    stacked = _stacked(input_list)
    return reduce_scatter_tensor(output, stacked, op, group, async_op)


def all_to_all_single(output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
                      input_split_sizes: Sequence[int] | None = None, group: ProcessGroup | None = None,
                      async_op: bool = False) -> Work | None:
    """Rows of input to each rank (input_split_sizes; default: equally many); write what they sent into output. Raises ShapeError."""
    own = member("all_to_all_single", group)
    rows, row = checked("all_to_all_single", input).shape, int(np.prod(input.shape[1:]))
    sent = list(input_split_sizes or [rows[0] // own.size()] * own.size())
    received = list(output_split_sizes or [checked("all_to_all_single", output).shape[0] // own.size()] * own.size())
    if sum(sent) != rows[0] or sum(received) != output.shape[0] or not len(sent) == len(received) == own.size():
        raise ShapeError(f"all_to_all_single: {own.size()} ranks get {sent} of {rows[0]} rows and give {received} of {output.shape[0]}; "
                         "give split sizes, one for each rank, whose sums are the numbers of rows")
    shape = tuple(output.shape)
    return _written("all_to_all_single", own, f"{input.dtype}, rows of {list(rows[1:])}",
                    lambda e, a: e.exchange(a.reshape(-1), [n * row for n in sent], [n * row for n in received]).reshape(shape),
                    input, [output], async_op)


def all_to_all(output_tensor_list: list[Tensor], input_tensor_list: list[Tensor], group: ProcessGroup | None = None,
               async_op: bool = False) -> Work | None:
    """Tensor i of the inputs to rank i; what rank i sent goes into tensor i of the outputs. All have one shape. Raises ShapeError."""
    own = member("all_to_all", group)
    _count("all_to_all", "output_tensor_list", output_tensor_list, own)
    _count("all_to_all", "input_tensor_list", input_tensor_list, own)
    _like("all_to_all", [*output_tensor_list, *input_tensor_list], input_tensor_list[0])
    n, shape = input_tensor_list[0].numel(), tuple(input_tensor_list[0].shape)

    def move(e: Exchange, a: Any) -> Any:
        return e.exchange(a.reshape(-1), [n] * e.size, [n] * e.size).reshape(shape if e.size == 1 else (e.size, *shape))

    stacked = _stacked(input_tensor_list)
    return _written("all_to_all", own, described(stacked), move, stacked, output_tensor_list, async_op)


def barrier(group: ProcessGroup | None = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Wait until all ranks are here. In a trace it is no step: raises DistributedError."""
    own = member("barrier", group)
    if state.trace is not None:
        raise DistributedError("barrier: a trace records values, and a barrier has none; call it outside the traced function")
    pending = start("barrier", own, "", lambda e, a: e.gather(a), np.zeros(1, np.uint8))
    if async_op:
        return Work(pending.get)
    pending.get()
    return None


# ---------------------------------------------------------------------------------------------- one rank to another
def _message(who: str, tensor: Tensor, dst: int | None, src: int | None, group: ProcessGroup | None, tag: int) -> Work:
    own = member(who, group)
    ends = [None if r is None else place(who, own, r, name) for r, name in ((dst, "dst"), (src, "src"))]
    if tag < 0:
        raise ArgumentError(f"{who}: tag is an integer from 0 on, got {tag!r}")
    checked(who, tensor)
    _unmapped(who)
    if state.trace is not None:
        with no_grad():
            got = functional.messages(who, own, tensor.detach(), ends[0], ends[1], tag + 2)
            if src is not None:
                tensor.copy_(got)
        return Work()
    array, (there, origin) = values(who, tensor), ends
    done = post(who, own, [] if there is None else [(there, array)], [] if origin is None else [(origin, array)], tag + 2, user_line())

    def finish() -> None:
        done()
        if src is not None:
            with no_grad():
                tensor.copy_(from_array(array, tensor.device))

    return Work(finish)


def isend(tensor: Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """Begin to send the tensor to a rank, which receives it with the same tag."""
    return _message("send", tensor, dst, None, group, tag)


def irecv(tensor: Tensor, src: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """Begin to receive; `wait()` writes into the tensor, which has the shape and dtype of the one that rank src sends."""
    return _message("recv", tensor, None, src, group, tag)


def send(tensor: Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Send the tensor to a rank, which receives it with the same tag."""
    isend(tensor, dst, group, tag).wait()


def recv(tensor: Tensor, src: int, group: ProcessGroup | None = None, tag: int = 0) -> int:
    """Write into the tensor what rank src sends; returns src."""
    irecv(tensor, src, group, tag).wait()
    return src


# ---------------------------------------------------------------------------------------------- objects
def all_gather_object(object_list: list[Any], obj: Any, group: ProcessGroup | None = None) -> None:
    """Put every rank's object, pickled on the way, into the list. Only between ranks that trust each other."""
    own = member("all_gather_object", group)
    _count("all_gather_object", "object_list", object_list, own)
    object_list[:] = start("all_gather_object", own, "", lambda e, a: e.objects(a), obj).get()


def broadcast_object_list(object_list: list[Any], src: int = 0, group: ProcessGroup | None = None) -> None:
    """Put rank src's objects, pickled on the way, into the lists of all ranks."""
    own = member("broadcast_object_list", group)
    there = place("broadcast_object_list", own, src, "src")
    pending = start("broadcast_object_list", own, f"src={src}", lambda e, a: e.objects(a), object_list if own.rank() == there else None)
    object_list[:] = pending.get()[there]


def gather_object(obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: ProcessGroup | None = None) -> None:
    """Put every rank's object, pickled on the way, into the list of rank dst; other ranks give none."""
    own = member("gather_object", group)
    here = own.rank() == place("gather_object", own, dst, "dst")
    if here:
        _count("gather_object", "object_gather_list", object_gather_list or (), own)
    found = start("gather_object", own, f"dst={dst}", lambda e, a: e.objects(a), obj).get()
    if here and object_gather_list is not None:
        object_gather_list[:] = found


def scatter_object_list(scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, src: int = 0,
                        group: ProcessGroup | None = None) -> None:
    """Put object i of rank src's list, pickled on the way, into the first place of rank i's output list."""
    own = member("scatter_object_list", group)
    there = place("scatter_object_list", own, src, "src")
    here = own.rank() == there
    if here:
        _count("scatter_object_list", "scatter_object_input_list", scatter_object_input_list or (), own)
    if not scatter_object_output_list:
        raise ArgumentError("scatter_object_list: scatter_object_output_list is empty; give a list with a place for the object")
    pending = start("scatter_object_list", own, f"src={src}", lambda e, a: e.objects(a), scatter_object_input_list if here else None)
    scatter_object_output_list[0] = pending.get()[there][own.rank()]


def _count(who: str, name: str, given: Sequence[Any], group: ProcessGroup) -> None:
    if len(given) != group.size():
        raise ArgumentError(f"{who}: {name} has {len(given)} items, expected {group.size()}, one for each rank")


def _like(who: str, tensors: Sequence[Tensor], one: Tensor) -> None:
    for t in tensors:
        if checked(who, t).shape != checked(who, one).shape or t.dtype != one.dtype:
            raise ShapeError(f"{who}: all tensors have one shape and dtype, got {t.dtype}{list(t.shape)} and {one.dtype}{list(one.shape)}")


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    with no_grad():
        return stack([t.detach() for t in tensors])  # type: ignore[no-any-return]
