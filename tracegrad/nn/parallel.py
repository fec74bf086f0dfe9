"""One model on several ranks, each with a part of the batch: DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tracegrad.autograd.hooks import listeners
from tracegrad.distributed import ReduceOp, all_reduce, broadcast
from tracegrad.distributed.collectives import Work, reduced, reduced_when
from tracegrad.distributed.functional import Pending
from tracegrad.distributed.world import ProcessGroup, member
from tracegrad.errors import ArgumentError, AutogradError, user_line
from tracegrad.graph.ir import Aval
from tracegrad.nn.module import Module
from tracegrad.ops.arrays.joining import cat
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor, from_array

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(Module):
    """A module with the same parameters on all ranks: they begin so, and every backward ends with the gradients' mean over the ranks.

    Traced or not. Gradients are sent together up to bucket_cap_mb MiB (default: 25, and the first time 1), in the order in which backward
    has them: that of the layers' calls, backwards. In a trace they are sent while backward goes on. broadcast_buffers: rank 0's are all
    ranks' first ones, and every call in training begins with them, unless the call before was in `no_sync`. find_unused_parameters:
    parameters without a gradient on this rank take part as zeros (and the order is that of `parameters()`, backwards); else they are an
    AutogradError.
    device_ids, output_device, dim, check_reduction, gradient_as_bucket_view and static_graph are torch's, and change nothing.
    Raises ArgumentError if no parameter requires grad, and DistributedError before init_process_group.

        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    """

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0, broadcast_buffers: bool = True,
                 process_group: ProcessGroup | None = None, bucket_cap_mb: float | None = None, find_unused_parameters: bool = False,
                 check_reduction: bool = False, gradient_as_bucket_view: bool = False, static_graph: bool = False) -> None:
        super().__init__()
        self.module, self.process_group = module, member("DistributedDataParallel", process_group)
        self.broadcast_buffers, self.find_unused_parameters = broadcast_buffers, find_unused_parameters
        self.require_backward_grad_sync = self._forward_synced = True
        self.bucket_bytes = int((25 if bucket_cap_mb is None else bucket_cap_mb) * (1 << 20))
        self.first_bucket_bytes = 1 << 20 if bucket_cap_mb is None else self.bucket_bytes
        if not any(p.requires_grad for p in module.parameters()):
            raise ArgumentError("DistributedDataParallel: no parameter of the module requires grad; use the module as it is")
        self._alone = self.process_group.size() == 1            # then there is nothing to do
        self._joining = False                                   # in `join`
        if not self._alone:
            self._send_out([*module.parameters(), *(module.buffers() if broadcast_buffers else ())])
            listeners[self] = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._alone and state.grad:
            due, self._forward_synced = self._forward_synced, self.require_backward_grad_sync         # as torch has it: of the call before
            source = self._last_active(True) if self._joining and self._forward_synced else 0
            if self.broadcast_buffers and self.training and (self._forward_synced if self._joining else due):
                self._send_out(list(self.module.buffers()), source)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward of what is computed in here adds to the gradients of this rank alone; the next one outside averages the sums."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True,
             throw_on_early_termination: bool = False) -> Iterator[None]:
        """For ranks with different numbers of batches: one that has ended takes part in the others' steps, with zeros, until all have.

        Gradients are still divided by the number of all ranks. Each step is one forward and one backward, untraced. At the end all ranks
        have the weights of the last one. Raises ArgumentError for divide_by_initial_world_size=False and throw_on_early_termination=True,
        which are not there, and AutogradError for a traced forward.

            with model.join():
                for x, y in batches:
                    optimizer.zero_grad()
                    loss_of(model(x), y).backward()
                    optimizer.step()
        """
        if not divide_by_initial_world_size or throw_on_early_termination:
            raise ArgumentError("join: only divide_by_initial_world_size=True and throw_on_early_termination=False are there; leave "
                                "them out")
        before, self._joining = self._joining, enable and not self._alone
        try:
            yield
            if self._joining:
                self._shadow()
        finally:
            self._joining = before

    def _shadow(self) -> None:
        """What this rank does in the steps of others, until there are none; then the weights of a rank that was among the last."""
        last = True
        while (source := self._last_active(False)) >= 0:
            last = False
            if self.broadcast_buffers and self.training:
                self._send_out(list(self.module.buffers()), source)
            with no_grad():
                for parameters, names in self._in_buckets(self._used(self._in_order([]), False)):
                    nothing = cat([p.new_zeros((p.numel(),)) for p in parameters])
                    reduced(nothing, ReduceOp.AVG, self.process_group, names).wait()
        self._send_out([*self.module.parameters(), *self.module.buffers()], self._last_active(last))

    def _last_active(self, active: bool) -> int:
        """The highest rank of the group for which `active` is true; -1 if there is none."""
        if state.trace is not None:
            raise AutogradError("DistributedDataParallel: in join() ranks ask each other who is left, which a trace cannot; leave out "
                                "tg.trace")
        with no_grad():
            own = next(self.module.parameters()).new_tensor([float(self.process_group.rank() if active else -1)])
            all_reduce(own, ReduceOp.MAX, self.process_group)
        return int(own.item())

    def before_backward(self, reached: Sequence[Tensor]) -> _Underway | None:
        """What sends the buckets as their gradients come, of a backward that reaches all parameters.

        Not with find_unused_parameters: ranks first ask each other which are used.
        """
        named = None if self.find_unused_parameters else self._averaged(reached)
        if named is None or not {id(p) for _, p in named} <= {id(t) for t in reached}:
            return None
        return _Underway(self._in_buckets(named), self.process_group, user_line())

    def after_backward(self, reached: Sequence[Tensor], underway: _Underway | None) -> None:
        """Average the gradients, if a backward reached one of the parameters."""
        named = self._averaged(reached)
        if named is None:
            return
        missing = [name for name, p in named if p.grad is None]
        if missing and not self.find_unused_parameters:
            raise AutogradError(f"DistributedDataParallel: backward gave no gradient to {', '.join(missing[:8])}, and other "
                                "ranks may wait for it; give find_unused_parameters=True")
        with no_grad():
            if self.find_unused_parameters:
                named = self._used(named, True)
                for _, p in named:
                    if p.grad is None:
                        p.grad = p.new_zeros(p.shape)
            self._average(self._in_buckets(named) if underway is None else underway.buckets, underway)

    def _used(self, named: list[tuple[str, Tensor]], here: bool) -> list[tuple[str, Tensor]]:
        """Those that a rank has a gradient of, or all, if they are not asked for. here: whether this rank's gradients count."""
        if not self.find_unused_parameters:
            return named
        flags = named[0][1].new_tensor([float(here and p.grad is not None) for _, p in named])
        all_reduce(flags, ReduceOp.MAX, self.process_group)
        used = [True] * len(named) if state.trace is not None else [bool(u) for u in flags.tolist()]
        return [pair for pair, u in zip(named, used, strict=True) if u]

    def _averaged(self, reached: Sequence[Tensor]) -> list[tuple[str, Tensor]] | None:
        """The parameters in the order in which a backward that reached these leaves has their gradients; None where nothing is averaged."""
        at = {id(t) for t in reached}
        if not self._forward_synced or not any(id(p) in at for p in self.module.parameters()):
            return None                                     # (nothing is asked of tensors that a trace of another model does not know)
        return self._in_order(reached)

    def _in_order(self, reached: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        """The same of any backward. Vectors are last: one launch may add up the gradients of several layers' biases."""
        place = {id(t): i for i, t in enumerate(reached)}
        named: list[tuple[str, Tensor]] = [(name, p) for name, p in reversed([*self.module.named_parameters()]) if p.requires_grad]
        if not self.find_unused_parameters and not self._joining:     # else another rank may go through the layers in another order
            named.sort(key=lambda pair: (pair[1].ndim < 2, -place.get(id(pair[1]), -1)))
        return named

    def _in_buckets(self, named: Sequence[tuple[str, Tensor]]) -> list[_Bucket]:
        """The parameters whose gradients are sent together, with their names: ranks that have another order hear of it."""
        names = iter([name for name, _ in named])
        together = _buckets([p for _, p in named], self.bucket_bytes, self.first_bucket_bytes)
        return [_Bucket(tensors, [next(names) for _ in tensors]) for tensors in together]

    def _average(self, buckets: Sequence[_Bucket], underway: _Underway | None) -> None:
        """Their gradients' mean over the ranks: all are on their way before the first one is waited for."""
        sent: list[Callable[[], Tensor]] = [] if underway is None else [*underway.sent]
        for bucket in buckets[len(sent):]:
            flat = cat([g.reshape(-1) for g in bucket.grads()])
            sent.append(partial(_awaited, reduced(flat, ReduceOp.AVG, self.process_group, bucket.names), flat))
        for bucket, come in zip(buckets, sent, strict=True):
            _spread(come(), bucket.grads())

    def _send_out(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """The values of a rank of the group, on all ranks."""
        with no_grad():
            for bucket in _buckets(tensors, self.bucket_bytes):
                flat = cat([t.detach().reshape(-1) for t in bucket])
                broadcast(flat, self.process_group.ranks[source], self.process_group)
                _spread(flat, bucket)


class _Bucket(NamedTuple):
    """Parameters whose gradients are sent together."""

    parameters: list[Tensor]
    names: list[str]

    def grads(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]


class _Underway:
    """The buckets of a backward that goes on: each is sent when its last gradient is there, and those before it were sent."""

    def __init__(self, buckets: Sequence[_Bucket], group: ProcessGroup, line: str) -> None:
        self.buckets, self.group, self.line = buckets, group, line
        self.arrivals: dict[int, Callable[[], Any]] = {}            # by id of the parameter
        self.missing = [len(bucket.parameters) for bucket in buckets]
        self.place = {id(p): k for k, bucket in enumerate(buckets) for p in bucket.parameters}
        self.sent: list[Callable[[], Tensor]] = []

    def ready(self, leaf: Tensor, arrival: Callable[[], Any]) -> None:
        """Note what waits for the leaf's gradient, if it is in a bucket, and send what can be sent."""
        if id(leaf) not in self.place:
            return
        self.arrivals[id(leaf)] = arrival
        self.missing[self.place[id(leaf)]] -= 1
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            parameters, names = self.buckets[len(self.sent)]
            flat = Aval((sum(p.numel() for p in parameters),), parameters[0].dtype)
            joined = partial(_joined, [self.arrivals[id(p)] for p in parameters])
            pending = reduced_when(joined, flat, ReduceOp.AVG, self.group, names, self.line)
            self.sent.append(partial(_arrived, pending, parameters[0].device))


def _joined(arrivals: Sequence[Callable[[], Any]]) -> Any:
    return np.concatenate([arrival().reshape(-1) for arrival in arrivals])


def _arrived(pending: Pending, device: Any) -> Tensor:
    return from_array(pending.get(), device)


def _awaited(work: Work, flat: Tensor) -> Tensor:
    work.wait()
    return flat


def _buckets(tensors: Sequence[Tensor], size: int, first: int | None = None) -> list[list[Tensor]]:
    """Tensors one after the other, of one dtype and device, up to `size` bytes together; the first ones up to `first`, if that is given."""
    found: list[list[Tensor]] = []
    filled = 0
    for t in tensors:
        nbytes = t.numel() * t.element_size()
        last = found[-1][0] if found else None
        most = size if first is None or len(found) > 1 else first
        if last is None or last.dtype != t.dtype or last.device != t.device or filled + nbytes > most:
            found.append([])
            filled = 0
        found[-1].append(t)
        filled += nbytes
    return found


def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    start = 0
    for t in tensors:
        t.copy_(flat[start:start + t.numel()].reshape(t.shape))
        start += t.numel()
