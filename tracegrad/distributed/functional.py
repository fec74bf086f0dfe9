"""Operations on the tensors of several ranks that return new tensors, differentiate at every order, and trace.

    from tracegrad.distributed import functional as dist

The derivative of a sum over the ranks is a sum over the ranks, of a gather a reduce_scatter, of a send a recv. So all ranks run backward
through the same operations. In a trace each is a step of the plan on the host, in the order of the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from tracegrad.custom.custom_function import Function
from tracegrad.custom.host_call import HostCall, called
from tracegrad.distributed.exchange import Exchange, ReduceOp, checked_op
from tracegrad.distributed.world import ProcessGroup, World, member, world
from tracegrad.errors import ArgumentError, DistributedError, DTypeError, ShapeError, user_line
from tracegrad.graph.ir import Aval
from tracegrad.support.dtypes import int32
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor, from_array

__all__ = ["all_gather", "all_reduce", "all_to_all_single", "broadcast", "recv", "reduce_scatter", "send", "sendrecv"]

Move = Callable[..., Any]            # of an Exchange and an array: an array
Pieces = Sequence[tuple[int, int]]   # ranks of a group, each with how many rows (or elements) are its


class Pending:
    """What `job` makes of the value that `arrival` waits for, on the thread of the messages.

    began, ended: when it had that value, and when the result was there, in nanoseconds of perf_counter_ns.
    """

    def __init__(self, own: World, who: str, arrival: Callable[[], Any], job: Callable[[Any], Any]) -> None:
        self.error: BaseException | None = None
        self.value: Any = None
        self.done = threading.Event()
        self.own, self.epoch = own, own.epoch
        self.began = self.ended = 0

        def run() -> None:
            try:
                if own.failed == self.epoch:            # other ranks would take it for the one that failed
                    raise DistributedError(f"{who}: an operation of this rank failed that began before it")
                given = arrival()
                self.began = perf_counter_ns()
                self.value = job(given)
            except BaseException as error:              # the caller's to raise
                self.error, own.failed = error, self.epoch
            self.ended = perf_counter_ns()
            self.done.set()

        own.submit(run)

    def get(self) -> Any:
        """The result, when it is there. Raises what the operation raised."""
        self.done.wait()
        if self.error is not None:
            self.own.epoch = max(self.own.epoch, self.epoch + 1)     # the caller knows: what he begins from now on is made
            raise self.error
        return self.value


def start(who: str, group: ProcessGroup | None, shown: str, move: Move, array: Any) -> Pending:
    """Begin `move` of an array, after the operations before it."""
    return start_when(lambda: array, who, member(who, group), shown, move, user_line())


def start_when(arrival: Callable[[], Any], who: str, group: ProcessGroup, shown: str, move: Move, line: str) -> Pending:
    """The same, of an array that is there when `arrival` returns it. line: the user's, for errors."""
    exchange = Exchange(who, group, line, shown)

    def job(array: Any) -> Any:
        exchange.agree()
        return move(exchange, array)

    return Pending(world(who), who, arrival, job)


class Message(HostCall):
    """An operation of ranks in a trace, of x and its place in the order. It goes on while the device computes (see Shared.begin)."""

    def __init__(self, begin: Callable[[Callable[[], Any]], Pending], avals: tuple[Aval, ...]) -> None:
        super().__init__(begin, avals)
        self.begin = begin

    def finish(self, begun: Pending) -> list[Any]:
        """Its result, when it is there."""
        return [self._checked(0, begun.get(), self.output_avals[0])]

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        """The same at once."""
        x, number = arrays
        return [*self.finish(self.begin(lambda: np.array(x, order="C"))), number]


# By device, a number that every traced operation reads and writes: so a plan has them all, in the program's order.
_order: dict[Any, Tensor] = {}


def perform(who: str, group: ProcessGroup | None, shown: str, move: Move, x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """What `move` gives of x's values, of this shape (default: x's); untraced now, in a trace at every call."""
    checked(who, x)
    own = member(who, group)
    shape = tuple(x.shape if shape is None else shape)
    if state.trace is None:
        return from_array(start(who, own, shown, move, values(who, x)).get(), x.device)
    line = user_line()

    def begin(arrival: Callable[[], Any]) -> Pending:
        return start_when(arrival, who, own, shown, move, line)

    begin.__name__ = who
    return _in_order(partial(Message, begin), x, shape)


def _in_order(make: Callable[[tuple[Aval, ...]], HostCall], x: Tensor, shape: Sequence[int]) -> Tensor:
    """A step of the plan, after those before it, that is made also if nobody uses its result."""
    assert state.trace is not None
    order = _order[x.device]
    state.trace.lasting[id(order)] = order
    result, number = called(make((Aval(tuple(shape), x.dtype), Aval((), int32))), (x, order))
    with no_grad():
        order.copy_(number)
    return result


def checked(who: str, x: Any) -> Tensor:
    """x. Raises DTypeError unless it is a Tensor; before a trace uses its device, the device's order of operations is made."""
    if not isinstance(x, Tensor):
        raise DTypeError(f"{who}: expected a Tensor, got {type(x).__name__}; make one with tg.tensor")
    if x.device not in _order:
        inside, state.trace = state.trace, None
        try:
            _order[x.device] = from_array(np.zeros((), np.int32), x.device)
        finally:
            state.trace = inside
    return x


def values(who: str, x: Tensor) -> Any:
    """A copy of the tensor's values."""
    state.values_read |= x._node().needs_grad
    return np.array(x.detach()._value(who), order="C")


def described(x: Tensor | Aval, *more: Any) -> str:
    return ", ".join([f"{x.dtype}{list(x.shape)}".replace("tracegrad.", ""), *map(str, more)])


# ---------------------------------------------------------------------------------------------- linear operations
def _sum(x: Tensor, group: ProcessGroup, op: str) -> Tensor:
    return perform("all_reduce", group, described(x, op), lambda e, a: e.all_reduce(a, op), x)


def _gather(x: Tensor, group: ProcessGroup) -> Tensor:
    return perform("all_gather", group, described(x), lambda e, a: e.gather(a), x, (group.size(), *x.shape))


def _scatter(x: Tensor, group: ProcessGroup, op: str) -> Tensor:
    shape = x.shape[1:]
    size = int(np.prod(shape))

    def move(e: Exchange, a: Any) -> Any:
        return e.reduce_scatter(a.reshape(-1), [size] * e.size, op).reshape(shape)

    return perform("reduce_scatter", group, described(x, op), move, x, shape)


def _all_to_all(x: Tensor, group: ProcessGroup, sent: tuple[int, ...], received: tuple[int, ...]) -> Tensor:
    row = int(np.prod(x.shape[1:]))
    shape = (sum(received), *x.shape[1:])

    def move(e: Exchange, a: Any) -> Any:
        return e.exchange(a.reshape(-1), [n * row for n in sent], [n * row for n in received]).reshape(shape)

    return perform("all_to_all", group, f"{x.dtype}, rows of {list(x.shape[1:])}", move, x, shape)


def _broadcast(x: Tensor, group: ProcessGroup, src: int) -> Tensor:
    return perform("broadcast", group, described(x, f"src={group.ranks[src]}"), lambda e, a: e.broadcast(a, src), x)


def _reduce(x: Tensor, group: ProcessGroup, dst: int) -> Tensor:
    def move(e: Exchange, a: Any) -> Any:
        total = e.all_reduce(a, "sum")
        return total if e.rank == dst else np.zeros_like(a)

    return perform("reduce", group, described(x, f"dst={group.ranks[dst]}"), move, x)


def _permute(x: Tensor, group: ProcessGroup, dst: int | None, src: int | None) -> Tensor:
    return messages("send" if src is None else "recv" if dst is None else "sendrecv", group, x, dst, src)


def messages(who: str, group: ProcessGroup, x: Tensor, dst: int | None, src: int | None, tag: int = 1) -> Tensor:
    """Send x to a rank, receive of one what has x's shape (zeros where src is None)."""
    return _posted(who, group, x, x.shape, [] if dst is None else [(dst, x.numel())], [] if src is None else [(src, x.numel())], tag)


def _neighbours(x: Tensor, group: ProcessGroup, sent: Pieces, received: Pieces) -> Tensor:
    row = int(np.prod(x.shape[1:]))
    shape = (sum(n for _, n in received), *x.shape[1:])
    return _posted("halo", group, x, shape, [(r, n * row) for r, n in sent], [(r, n * row) for r, n in received])


def _posted(who: str, group: ProcessGroup, x: Tensor, shape: Sequence[int], sent: Pieces, received: Pieces, tag: int = 1) -> Tensor:
    """Pieces of x, one behind the other, to ranks, and pieces of a tensor of this shape of ranks: all at once. 0 where nothing comes."""
    def move(array: Any) -> Any:
        out = np.zeros(tuple(shape), array.dtype)
        post(who, group, _cut(array, sent), _cut(out, received), tag, line)()
        return out

    line = user_line()
    checked(who, x)
    if state.trace is None:
        return from_array(move(values(who, x)), x.device)

    def begin(arrival: Callable[[], Any]) -> Pending:
        return Pending(world(who), who, arrival, move)

    begin.__name__ = who
    return _in_order(partial(Message, begin), x, shape)


def _cut(array: Any, pieces: Pieces) -> list[tuple[int, Any]]:
    """The ranks, each with its elements of the array."""
    flat, ends = array.reshape(-1), np.cumsum([n for _, n in pieces])
    return [(rank, flat[end - n:end]) for (rank, n), end in zip(pieces, ends, strict=True)]


def post(who: str, group: ProcessGroup, sent: Sequence[tuple[int, Any]], received: Sequence[tuple[int, Any]], tag: int,
         line: str) -> Callable[[], None]:
    """Begin to send arrays to ranks and to receive arrays of ranks; what is returned waits for all of that."""
    own = world(who)
    if own.mpi is None or group.size() == 1:
        raise DistributedError(f"{who}: there is no other rank; start the program with mpiexec -n 2 (or more)")
    requests = []
    with own.lock:
        for rank, array in received:
            request = group.comm.Irecv([array.reshape(-1).view(np.uint8), own.mpi.BYTE], rank, tag)
            requests.append((request, f"recv from rank {group.ranks[rank]}"))
        for rank, array in sent:
            request = group.comm.Isend([array.reshape(-1).view(np.uint8), own.mpi.BYTE], rank, tag)
            requests.append((request, f"send to rank {group.ranks[rank]}"))

    def finish() -> None:
        for request, what in requests:
            own.wait([request], what if who in ("send", "recv") else f"{who}: {what}", line)

    return finish


_RULES: dict[str, Callable[..., Tensor]] = {
    "sum": _sum, "gather": _gather, "scatter": _scatter, "all_to_all": _all_to_all, "broadcast": _broadcast, "reduce": _reduce,
    "permute": _permute, "neighbours": _neighbours,
}


class Collective(Function):
    """A linear operation of all ranks, and its adjoint."""

    @staticmethod
    def forward(x: Tensor, name: str, group: ProcessGroup, *options: Any) -> Tensor:
        return _RULES[name](x, group, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, name, group, *options = inputs
        ctx.call = name, group, options

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, name: str, group: ProcessGroup, *options: Any) -> tuple[Tensor, int]:
        """One message for all examples: the batch stands beside the dimension that is the operation's, or where it was."""
        batch = in_dims[0] or 0
        if name == "gather":
            return Collective.apply(x.movedim(batch, 0), name, group, *options), 1
        if name == "scatter":
            return Collective.apply(x.movedim(batch, 1), name, group, *options), 0
        if name in ("all_to_all", "neighbours"):
            return Collective.apply(x.movedim(batch, 1), name, group, *options), 1
        return Collective.apply(x, name, group, *options), batch

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        name, group, options = ctx.call
        if name == "gather":
            back = Collective.apply(grad, "scatter", group, "sum")
        elif name == "scatter":
            (op,) = options
            back = Collective.apply(grad if op == "sum" else grad / group.size(), "gather", group)
        elif name in ("all_to_all", "permute", "neighbours"):
            back = Collective.apply(grad, name, group, *reversed(options))
        else:
            back = Collective.apply(grad, {"broadcast": "reduce", "reduce": "broadcast"}.get(name, name), group, *options)
        return (back, None, None, *(None for _ in options))

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        name, group, options = ctx.call
        return Collective.apply(tangent, name, group, *options)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------- public
def place(who: str, group: ProcessGroup, rank: int, name: str) -> int:
    """The number in the group of a rank of the world. Raises ArgumentError."""
    if rank not in group.ranks:
        raise ArgumentError(f"{who}: {name} is one of the ranks {list(group.ranks)} of the group, got {rank!r}")
    return group.ranks.index(rank)


def all_reduce(tensor: Tensor, op: str = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """The tensors of all ranks put together. Raises DTypeError for an op that its numbers do not have.

        tg.distributed.functional.all_reduce(tg.ones(3))            # of two ranks
    """
    own = member("all_reduce", group)
    checked_op("all_reduce", op, checked("all_reduce", tensor).dtype)
    if op in (ReduceOp.SUM, ReduceOp.AVG) or not tensor.requires_grad:
        return Collective.apply(tensor, "sum", own, op)  # type: ignore[no-any-return]
    parts = Collective.apply(tensor, "gather", own)         # their derivatives need all values
    return {"product": parts.prod, "min": parts.amin, "max": parts.amax}[op](0)  # type: ignore[no-any-return]


def all_gather(tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """(ranks, *shape): the tensors of all ranks, which have equal shapes. Its derivative is reduce_scatter."""
    return Collective.apply(checked("all_gather", tensor), "gather", member("all_gather", group))  # type: ignore[no-any-return]


def reduce_scatter(tensor: Tensor, op: str = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Of tensors (ranks, *shape): row `rank` of what they are, put together; op: SUM or AVG. Raises ShapeError."""
    own = member("reduce_scatter", group)
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ArgumentError(f"reduce_scatter: op is SUM or AVG here, got {op!r}; use tg.distributed.reduce_scatter, which has no "
                            "derivative")
    if not checked("reduce_scatter", tensor).ndim or tensor.shape[0] != own.size():
        raise ShapeError(f"reduce_scatter: the first dimension has one row for each of {own.size()} ranks, got the shape "
                         f"{tuple(tensor.shape)}; reshape it")
    return Collective.apply(tensor, "scatter", own, checked_op("reduce_scatter", op, tensor.dtype))  # type: ignore[no-any-return]


def all_to_all_single(tensor: Tensor, output_split_sizes: Sequence[int] | None = None, input_split_sizes: Sequence[int] | None = None,
                      group: ProcessGroup | None = None) -> Tensor:
    """Rows of the tensor to each rank (input_split_sizes; default: equally many), and what they sent to this one. Raises ShapeError."""
    own = member("all_to_all", group)
    rows = checked("all_to_all", tensor).shape[0] if tensor.ndim else 0
    equal = [rows // own.size()] * own.size()
    sent, received = tuple(input_split_sizes or equal), tuple(output_split_sizes or equal)
    if sum(sent) != rows or len(sent) != own.size() or len(received) != own.size():
        raise ShapeError(f"all_to_all: {own.size()} ranks get {list(sent)} of {rows} rows; give split sizes, one for each rank, whose sum "
                         "is the number of rows")
    return Collective.apply(tensor, "all_to_all", own, sent, received)  # type: ignore[no-any-return]


def broadcast(tensor: Tensor, src: int, group: ProcessGroup | None = None) -> Tensor:
    """Rank src's tensor, on all ranks; the others give one of that shape. The derivative is the sum, on src, and 0 elsewhere."""
    own = member("broadcast", group)
    there = place("broadcast", own, src, "src")
    return Collective.apply(checked("broadcast", tensor), "broadcast", own, there)  # type: ignore[no-any-return]


def sendrecv(tensor: Tensor, dst: int | None, src: int | None, group: ProcessGroup | None = None) -> Tensor:
    """Send to one rank and receive of another what has the same shape. None: to nobody, or zeros of nobody. The derivative goes back.

        y = dist.sendrecv(x, dst=(rank + 1) % size, src=(rank - 1) % size)          # a ring
    """
    own = member("sendrecv", group)
    ends = [None if r is None else place("sendrecv", own, r, name) for r, name in ((dst, "dst"), (src, "src"))]
    return Collective.apply(checked("sendrecv", tensor), "permute", own, *ends)  # type: ignore[no-any-return]


def send(tensor: Tensor, dst: int, group: ProcessGroup | None = None) -> Tensor:
    """Send to a rank that calls `recv`. Returns 0., which the loss adds, so that backward waits for the gradient that comes back."""
    own = member("send", group)
    there = place("send", own, dst, "dst")
    return Collective.apply(checked("send", tensor), "permute", own, there, None).sum()  # type: ignore[no-any-return]


def recv(like: Tensor, src: int, group: ProcessGroup | None = None) -> Tensor:
    """What a rank sends, of like's shape and dtype. It requires grad if these are floats: backward sends the gradient to src."""
    own = member("recv", group)
    place_of = place("recv", own, src, "src")
    start_of = checked("recv", like).detach()
    if np.dtype(like.dtype).kind not in "biu" and state.grad:
        start_of = start_of.clone().requires_grad_()
    return Collective.apply(start_of, "permute", own, None, place_of)  # type: ignore[no-any-return]
