"""One model on several ranks, each with a part of the batch: DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tracegrad.autograd.hooks import after_backward
from tracegrad.distributed import ReduceOp, all_reduce, broadcast
from tracegrad.distributed.collectives import reduced
from tracegrad.distributed.world import ProcessGroup, member
from tracegrad.errors import ArgumentError, AutogradError
from tracegrad.nn.module import Module
from tracegrad.ops.arrays.joining import cat
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(Module):
    """A module with the same parameters on all ranks: they begin so, and every backward ends with the gradients' mean over the ranks.

    Traced or not. Gradients are sent together up to bucket_cap_mb MiB (default: 25, and the first time 1), in the order in which backward
    has them: that of the layers' calls, backwards. In a trace they are sent while backward goes on. broadcast_buffers: in training, every
    call begins with rank 0's buffers. find_unused_parameters: parameters without a gradient on this rank take part as zeros (and the order
    is that of `parameters()`, backwards); else they are an AutogradError.
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
        self._send_out([*module.parameters(), *module.buffers()])
        after_backward.add(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if state.grad:
            self._forward_synced = self.require_backward_grad_sync
            if self.broadcast_buffers and self.training and self._forward_synced:
                self._send_out(list(self.module.buffers()))
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward of what is computed in here adds to the gradients of this rank alone; the next one outside averages the sums."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def after_backward(self, reached: Sequence[Tensor]) -> None:
        """Average the gradients, if a backward reached one of the parameters."""
        known = {id(t) for t in reached}
        if not self._forward_synced or self.process_group.size() == 1 or not any(id(p) in known for p in self.module.parameters()):
            return                                      # (nothing was asked of tensors that a trace of another model does not know)
        named = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        missing = [name for name, p in named if p.grad is None]
        if missing and not self.find_unused_parameters:
            raise AutogradError(f"DistributedDataParallel: backward gave no gradient to {', '.join(missing[:8])}, and other "
                                "ranks may wait for it; give find_unused_parameters=True")
        used: list[bool] = [True] * len(named)
        with no_grad():
            if self.find_unused_parameters:
                flags = named[0][1].new_tensor([float(p.grad is not None) for _, p in named])
                all_reduce(flags, ReduceOp.MAX, self.process_group)
                used = [True] * len(named) if state.trace is not None else [bool(u) for u in flags.tolist()]
            wanted = [(name, p) for (name, p), u in zip(named, used, strict=True) if u][::-1]
            if not self.find_unused_parameters:             # else another rank may go through the layers in another order
                place = {id(t): i for i, t in enumerate(reached)}
                wanted.sort(key=lambda pair: -place.get(id(pair[1]), -1))
            for _, p in wanted:
                if p.grad is None:
                    p.grad = p.new_zeros(p.shape)
            self._average(wanted)

    def _average(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Their gradients' mean over the ranks, bucket by bucket: all are on their way before the first one is waited for."""
        names, grads = [name for name, _ in named], [p.grad for _, p in named if p.grad is not None]
        sent, start = [], 0
        for bucket in _buckets(grads, self.bucket_bytes, self.first_bucket_bytes):
            flat = cat([g.reshape(-1) for g in bucket])
            own = names[start:start + len(bucket)]          # ranks that have another order hear of it
            sent.append((reduced(flat, ReduceOp.AVG, self.process_group, own), flat, bucket))
            start += len(bucket)
        for work, flat, bucket in sent:
            work.wait()
            _spread(flat, bucket)

    def _send_out(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's values, on all ranks."""
        if self.process_group.size() == 1:
            return
        with no_grad():
            for bucket in _buckets(tensors, self.bucket_bytes):
                flat = cat([t.detach().reshape(-1) for t in bucket])
                broadcast(flat, self.process_group.ranks[0], self.process_group)
                _spread(flat, bucket)


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
