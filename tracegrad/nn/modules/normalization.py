"""Normalizations: of the last dimensions, of groups of channels, of batches, of single channels, of neighbouring channels."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.distributed import ProcessGroup, get_world_size, is_initialized
from tracegrad.distributed.functional import all_reduce
from tracegrad.errors import ArgumentError, ShapeError, warn
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.modules.sizes import Size, as_tuple
from tracegrad.nn.parameter import Parameter
from tracegrad.ops.arguments import only_tensors
from tracegrad.ops.arrays.joining import cat
from tracegrad.support import dtypes
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.filled import empty, ones, zeros
from tracegrad.tensors.tensor import Tensor


def _reset(weight: Parameter | None, bias: Parameter | None) -> None:
    if weight is not None:
        init.ones_(weight)
    if bias is not None:
        init.zeros_(bias)


class LayerNorm(Module):
    """The last dimensions (`normalized_shape`) brought to mean 0 and variance 1, times a weight (from 1) plus a bias (from 0).

    Of the shapes and dtypes of nn.functional.layer_norm; raises what that raises.

    >>> nn.LayerNorm(3)(tg.rand(2, 3)).shape
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(self, normalized_shape: Size, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        self.normalized_shape = as_tuple(normalized_shape, 1)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        shape = self.normalized_shape
        self.register_parameter("weight", Parameter(empty(shape, dtype=dtype, device=device)) if elementwise_affine else None)
        self.register_parameter("bias", Parameter(empty(shape, dtype=dtype, device=device)) if elementwise_affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
                f"bias={self.bias is not None}")


class RMSNorm(Module):
    """The last dimensions (`normalized_shape`) divided by their root mean square, times a weight (from 1) (Zhang & Sennrich 2019).

    eps: added to the mean square; None for the dtype's epsilon. Of the shapes and dtypes of nn.functional.rms_norm; raises what that
    raises.

    >>> nn.RMSNorm(3)(tg.rand(2, 3)).shape
    """

    weight: Parameter | None

    def __init__(self, normalized_shape: Size, eps: float | None = None, elementwise_affine: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        self.normalized_shape = shape = as_tuple(normalized_shape, 1)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter("weight", Parameter(empty(shape, dtype=dtype, device=device)) if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1."""
        _reset(self.weight, None)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LocalResponseNorm(Module):
    """Each element of (N, C, *) over (k + alpha times the mean square of `size` neighbouring channels)^beta (Krizhevsky et al. 2012).

    Of the shapes and dtypes of nn.functional.local_response_norm; raises what that raises.

    >>> nn.LocalResponseNorm(2)(tg.rand(1, 4, 3)).shape
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        if size < 1:
            raise ArgumentError(f"LocalResponseNorm: size must be at least 1, got {size}")
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class GroupNorm(Module):
    """Each of num_groups groups of channels of (N, C, *) brought to mean 0 and variance 1, times a weight plus a bias (C).

    Of the shapes and dtypes of nn.functional.group_norm; raises what that raises.

    >>> nn.GroupNorm(2, 4)(tg.rand(1, 4, 3)).shape
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
                 dtype: Any = None, *, bias: bool = True) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ArgumentError(f"GroupNorm: num_channels {num_channels} must be a multiple of num_groups {num_groups}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", Parameter(empty(num_channels, dtype=dtype, device=device)) if affine else None)
        self.register_parameter("bias", Parameter(empty(num_channels, dtype=dtype, device=device)) if affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"


class _Tracking(Module):
    """Base of normalizations of channels: weight, bias, and running statistics."""

    ranks: ClassVar[tuple[int, ...]] = ()
    _version, _tg_optional = 2, {"num_batches_tracked": 2}                 # checkpoints from before torch had it lack it
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, num_features: int, eps: float, momentum: float | None, affine: bool, track_running_stats: bool, device: Any,
                 dtype: Any, bias: bool) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.register_parameter("weight", Parameter(ones(num_features, dtype=dtype, device=device)) if affine else None)
        self.register_parameter("bias", Parameter(zeros(num_features, dtype=dtype, device=device)) if affine and bias else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, dtype=dtype, device=device) if tracked else None)
        self.register_buffer("running_var", ones(num_features, dtype=dtype, device=device) if tracked else None)
        self.register_buffer("num_batches_tracked", zeros((), dtype=dtypes.int64, device=device) if tracked else None)

    def reset_running_stats(self) -> None:
        """Forget what was measured: mean 0, variance 1, no batches. Nothing without track_running_stats, as in torch."""
        if not self.track_running_stats:
            return
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0, and no batches measured."""
        self.reset_running_stats()
        _reset(self.weight, self.bias)

    def _check_input_dim(self, input: Tensor) -> None:
        """Raises ShapeError unless the input has as many dimensions as it may have. (Packages override it.)"""
        only_tensors(type(self).__name__, input=input)
        if not self.ranks:
            raise NotImplementedError(f"{type(self).__name__} defines no _check_input_dim")
        if input.ndim not in self.ranks:
            raise ShapeError(f"{type(self).__name__}: takes {' or '.join(map(str, self.ranks))} dimensions, got {input.shape}")

    def extra_repr(self) -> str:
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
                f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}")


class _BatchNorm(_Tracking):
    """Base of batch normalizations. While training, by the batch's statistics, which also move the running ones; else by the running ones.

    momentum: the weight of the new batch in the running statistics; None for their plain average.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, device: Any = None, dtype: Any = None, *,
                 bias: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ShapeError(f"{type(self).__name__}: made for {self.num_features} channels, the input {input.shape} has {input.shape[1]}")
        momentum: Any = self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            with no_grad():
                self.num_batches_tracked.add_(1)
                if momentum is None:
                    momentum = 1.0 / self.num_batches_tracked.to(dtype=input.dtype)
        use_batch = self.training or self.running_mean is None
        track = self.training and self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if track or not use_batch else (None, None)
        return self._normalized(input, mean, var, use_batch, 0.0 if momentum is None else momentum)

    def _normalized(self, input: Tensor, mean: Tensor | None, var: Tensor | None, use_batch: bool, momentum: Any) -> Tensor:
        """The input by its own statistics (`use_batch`), which move the running ones that are given, or by these."""
        return F.batch_norm(input, mean, var, self.weight, self.bias, use_batch, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """Batch normalization of (N, C) or (N, C, L) (Ioffe & Szegedy 2015).

    Of the shapes and dtypes of nn.functional.batch_norm; raises what that raises.

    >>> nn.BatchNorm1d(2)(tg.rand(1, 2, 4)).shape
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalization of (N, C, H, W) (Ioffe & Szegedy 2015).

    Of the shapes and dtypes of nn.functional.batch_norm; raises what that raises.

    >>> nn.BatchNorm2d(2)(tg.rand(1, 2, 4, 4)).shape
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalization of (N, C, D, H, W) (Ioffe & Szegedy 2015).

    Of the shapes and dtypes of nn.functional.batch_norm; raises what that raises.

    >>> nn.BatchNorm3d(2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm of any number of dimensions from 2 on whose batch is that of all ranks of `tg.distributed`, long or short.

    While training all ranks call it. process_group: the ranks (default: all); without init_process_group, or with one rank, it is a
    BatchNorm. `convert_sync_batchnorm(module)` puts one in the place of every BatchNorm, with its parameters and buffers.
    Of the shapes and dtypes of nn.functional.batch_norm; raises what that and functional.all_reduce raise.

    >>> nn.SyncBatchNorm(2)(tg.rand(3, 2)).shape
    """

    ranks = (2, 3, 4, 5)

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, process_group: ProcessGroup | None = None, device: Any = None, dtype: Any = None, *,
                 bias: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _normalized(self, input: Tensor, mean: Tensor | None, var: Tensor | None, use_batch: bool, momentum: Any) -> Tensor:
        if not use_batch or not is_initialized() or get_world_size(self.process_group) == 1:
            return super()._normalized(input, mean, var, use_batch, momentum)
        dims, x = [d for d in range(input.ndim) if d != 1], input.float() if dtypes.is_half(input.dtype) else input
        wide, ends = (1, -1, *[1] * (x.ndim - 2)), x.new_tensor([x.numel() // x.shape[1]])
        total = all_reduce(cat([x.sum(dims), ends]), group=self.process_group)
        n, own_mean = total[-1], total[:-1] / total[-1]
        centered = x - own_mean.reshape(wide)
        own_var = all_reduce((centered * centered).sum(dims), group=self.process_group) / n
        if mean is not None and var is not None:
            with no_grad():
                mean.copy_((1 - momentum) * mean + momentum * own_mean)
                var.copy_((1 - momentum) * var + momentum * (own_var * (n / (n - 1))))
        y = centered * (own_var + self.eps).rsqrt().reshape(wide)
        y = y if self.weight is None else y * self.weight.reshape(wide)
        y = y if self.bias is None else y + self.bias.reshape(wide)
        return y.to(input.dtype)  # type: ignore[no-any-return]

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: ProcessGroup | None = None) -> Module:
        """The module, with a SyncBatchNorm in the place of every BatchNorm in it; of a BatchNorm, a SyncBatchNorm."""
        made = module
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            made = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group)
            for name in ("weight", "bias"):
                made.register_parameter(name, getattr(module, name))
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                made.register_buffer(name, getattr(module, name))
            made.training = module.training
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made


class _InstanceNorm(_Tracking):
    """Base of instance normalizations (Ulyanov et al. 2016): every channel of every sample brought to mean 0 and variance 1 by itself.

    track_running_stats: averages over the batch are kept while training, and used instead of the sample's own otherwise. Inputs may lack N.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = False,
                 track_running_stats: bool = False, device: Any = None, dtype: Any = None, *,
                 bias: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        x: Any = input.unsqueeze(0) if input.ndim == self.ranks[0] else input
        channels = x.shape[1]
        if channels != self.num_features:
            message = f"{type(self).__name__}: made for {self.num_features} channels, the input {input.shape} has {channels}"
            if self.affine:
                raise ShapeError(message)
            warn(f"{message} (without a weight their number is of no use)")
        use_input = self.training or self.running_mean is None
        momentum = 0.0 if self.momentum is None else self.momentum           # as in torch, which does not count batches here
        y = F.instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias, use_input, momentum, self.eps)
        return y.squeeze(0) if input.ndim == self.ranks[0] else y


class InstanceNorm1d(_InstanceNorm):
    """Instance normalization of (N, C, L) or (C, L). Of the shapes and dtypes of nn.functional.instance_norm; raises what that raises.

    >>> nn.InstanceNorm1d(2)(tg.rand(1, 2, 4)).shape
    """

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalization of (N, C, H, W) or (C, H, W).

    Of the shapes and dtypes of nn.functional.instance_norm; raises what that raises.

    >>> nn.InstanceNorm2d(2)(tg.rand(1, 2, 4, 4)).shape
    """

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalization of (N, C, D, H, W) or (C, D, H, W).

    Of the shapes and dtypes of nn.functional.instance_norm; raises what that raises.

    >>> nn.InstanceNorm3d(2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    ranks = (4, 5)
