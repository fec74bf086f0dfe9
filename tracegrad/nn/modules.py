"""Layers, with torch's names, arguments, defaults and initial values. Each is its arguments plus a call of the functional interface."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from tracegrad import dtypes
from tracegrad.creation import empty, ones, zeros
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.modes import no_grad
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.operators import PUBLIC
from tracegrad.tensor import Tensor

Size = int | tuple[int, ...]


def _tuple(value: Any, n: int) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


# ------------------------------------------------------------------------------------------------------------ linear maps


class Identity(Module):
    """The input as it is; takes and ignores any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """y = x Wᵀ + b: (*, in_features) -> (*, out_features). weight (out, in) and bias (out) start uniform in ±1/sqrt(in_features)."""

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, dtype=dtype, device=device))
        self.register_parameter("bias", Parameter(empty(out_features, dtype=dtype, device=device)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        _uniform_by_fan_in(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def _uniform_by_fan_in(weight: Parameter, bias: Parameter | None) -> None:
    """torch's default for linear and convolution layers."""
    init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan_in = init.fan(weight)[0]
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(bias, -bound, bound)


class Embedding(Module):
    """A table (num_embeddings, embedding_dim) of rows looked up by integer index: (*) -> (*, embedding_dim). Rows start standard normal.

    padding_idx: a row that starts as zeros and gets no gradient.
    """

    weight: Parameter

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(f"Embedding: padding_idx {padding_idx} is not among the {num_embeddings} rows")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(empty(num_embeddings, embedding_dim, dtype=dtype, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


# ------------------------------------------------------------------------------------------------------------ convolution


class _Conv(Module):
    """Base of convolutions: a weight (out, in / groups, *kernel), or (in, out / groups, *kernel) if transposed, and a bias (out)."""

    dims: ClassVar[int] = 2
    transposed: ClassVar[bool] = False
    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int,
                 bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(f"{type(self).__name__}: in_channels {in_channels} and out_channels {out_channels} must be multiples "
                                f"of groups {groups}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        n = self.dims
        self.kernel_size, self.stride, self.dilation = _tuple(kernel_size, n), _tuple(stride, n), _tuple(dilation, n)
        self.padding = padding if isinstance(padding, str) else _tuple(padding, n)
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(empty(*channels, *self.kernel_size, dtype=dtype, device=device))
        self.register_parameter("bias", Parameter(empty(out_channels, dtype=dtype, device=device)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        _uniform_by_fan_in(self.weight, self.bias)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        n = self.dims
        for name, default in (("padding", (0,) * n), ("dilation", (1,) * n), ("output_padding", (0,) * n), ("groups", 1)):
            value = getattr(self, name, default)
            text += f", {name}={value}" if value != default else ""
        return text + (", bias=False" if self.bias is None else "")


class Conv1d(_Conv):
    """Convolution of (N, C, L) with a learned kernel: -> (N, out_channels, L'). padding: a number, "same" or "valid"."""

    dims = 1

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv1d(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv2d(_Conv):
    """Convolution of (N, C, H, W) with a learned kernel: -> (N, out_channels, H', W'). padding: numbers, "same" or "valid"."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class _ConvTranspose(_Conv):
    transposed = True

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
                 output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype)
        self.output_padding = _tuple(output_padding, self.dims)


class ConvTranspose1d(_ConvTranspose):
    """The adjoint of Conv1d: (N, C, L) -> (N, out_channels, (L - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1)."""

    dims = 1

    def forward(self, input: Tensor) -> Tensor:
        return F.conv_transpose1d(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)


class ConvTranspose2d(_ConvTranspose):
    """The adjoint of Conv2d: (N, C, H, W) -> (N, out_channels, H', W')."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv_transpose2d(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)


# ---------------------------------------------------------------------------------------------------------- normalization


class LayerNorm(Module):
    """The last dimensions (`normalized_shape`) brought to mean 0 and variance 1, times a weight (from 1) plus a bias (from 0)."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(self, normalized_shape: Size, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        self.normalized_shape = _tuple(normalized_shape, 1)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        shape = self.normalized_shape
        self.register_parameter("weight", Parameter(ones(shape, dtype=dtype, device=device)) if elementwise_affine else None)
        self.register_parameter("bias", Parameter(zeros(shape, dtype=dtype, device=device)) if elementwise_affine and bias else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Each of num_groups groups of channels of (N, C, *) brought to mean 0 and variance 1, times a weight plus a bias (C)."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ArgumentError(f"GroupNorm: num_channels {num_channels} must be a multiple of num_groups {num_groups}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", Parameter(ones(num_channels, dtype=dtype, device=device)) if affine else None)
        self.register_parameter("bias", Parameter(zeros(num_channels, dtype=dtype, device=device)) if affine else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _BatchNorm(Module):
    """Base of batch normalizations. While training, by the batch's statistics, which also move the running ones; else by the running ones.

    momentum: the weight of the new batch in the running statistics; None for their plain average.
    """

    ranks: ClassVar[tuple[int, ...]] = ()
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.register_parameter("weight", Parameter(ones(num_features, dtype=dtype, device=device)) if affine else None)
        self.register_parameter("bias", Parameter(zeros(num_features, dtype=dtype, device=device)) if affine else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, dtype=dtype, device=device) if tracked else None)
        self.register_buffer("running_var", ones(num_features, dtype=dtype, device=device) if tracked else None)
        self.register_buffer("num_batches_tracked", zeros((), dtype=dtypes.int64, device=device) if tracked else None)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in self.ranks:
            raise ShapeError(f"{type(self).__name__}: takes {' or '.join(map(str, self.ranks))} dimensions, got {input.shape}")
        if input.shape[1] != self.num_features:
            raise ShapeError(f"{type(self).__name__}: made for {self.num_features} channels, the input {input.shape} has {input.shape[1]}")
        momentum: Any = self.momentum
        if self.training and self.num_batches_tracked is not None:
            with no_grad():
                self.num_batches_tracked.add_(1)
                if momentum is None:
                    momentum = 1.0 / self.num_batches_tracked.to(dtype=input.dtype)
        use_batch = self.training or self.running_mean is None
        track = self.training and self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if track or not use_batch else (None, None)
        return F.batch_norm(  # type: ignore[no-any-return]
            input, mean, var, self.weight, self.bias, use_batch, 0.0 if momentum is None else momentum, self.eps)

    def extra_repr(self) -> str:
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
                f"track_running_stats={self.track_running_stats}")


class BatchNorm1d(_BatchNorm):
    """Batch normalization of (N, C) or (N, C, L) (Ioffe & Szegedy 2015)."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalization of (N, C, H, W) (Ioffe & Szegedy 2015)."""

    ranks = (4,)


class Dropout(Module):
    """While training, each element 0 with probability p and else divided by 1 - p; otherwise the input as it is."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentError(f"Dropout: p must be from 0 to 1, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training, self.inplace)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


# ------------------------------------------------------------------------------------------------------------ activations


class _Activation(Module):
    """Base of modules that are one function and its arguments: `options` names them, with their defaults."""

    function: ClassVar[str] = ""
    options: ClassVar[dict[str, Any]] = {}
    shown: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        names = list(self.options)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        unknown = [name for name in given if name not in self.options and name != "inplace"]
        if unknown or len(args) > len(names) + 1:
            raise TypeError(f"{type(self).__name__}: takes {', '.join(names) or 'no arguments'}, got {unknown or args}")
        for name, default in self.options.items():
            setattr(self, name, given.get(name, default))

    def forward(self, input: Tensor) -> Tensor:
        return getattr(F, self.function)(input, **{name: getattr(self, name) for name in self.options})  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in (self.options if self.shown is None else self.shown))


class ReLU(_Activation):
    """max(x, 0). `inplace` is accepted and means nothing: fused code has no temporary to save."""

    function = "relu"


class LeakyReLU(_Activation):
    """x where positive, else negative_slope * x."""

    function, options = "leaky_relu", {"negative_slope": 0.01}


class GELU(_Activation):
    """x times the normal distribution function of x; approximate="tanh" for the tanh formula."""

    function, options = "gelu", {"approximate": "none"}


class SiLU(_Activation):
    """x * sigmoid(x)."""

    function = "silu"


class ELU(_Activation):
    """x where positive, else alpha * (exp(x) - 1)."""

    function, options = "elu", {"alpha": 1.0}


class Softplus(_Activation):
    """log(1 + exp(beta x)) / beta, x itself where beta x is above the threshold."""

    function, options = "softplus", {"beta": 1.0, "threshold": 20.0}


class Tanh(Module):
    """tanh x."""

    def forward(self, input: Tensor) -> Tensor:
        return PUBLIC["tanh"](input)  # type: ignore[no-any-return]


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    function = "sigmoid"


class Softmax(_Activation):
    """Exponentials along dim divided by their sum. `dim` has to be given: torch's guess is deprecated there and absent here."""

    function, options = "softmax", {"dim": None}

    def __init__(self, dim: int) -> None:
        super().__init__(dim)


class LogSoftmax(_Activation):
    """The logarithm of the softmax along dim."""

    function, options = "log_softmax", {"dim": None}

    def __init__(self, dim: int) -> None:
        super().__init__(dim)


class Flatten(Module):
    """Dimensions start_dim to end_dim made one; the batch stays by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


# ---------------------------------------------------------------------------------------------------------------- pooling


class _MaxPool(Module):
    function: ClassVar[str] = ""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1, return_indices: bool = False,
                 ceil_mode: bool = False) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return getattr(F, self.function)(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)

    def extra_repr(self) -> str:
        return (f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
                f"ceil_mode={self.ceil_mode}")


class MaxPool1d(_MaxPool):
    """The largest of each window of (N, C, L); stride: kernel_size unless given."""

    function = "max_pool1d"


class MaxPool2d(_MaxPool):
    """The largest of each window of (N, C, H, W); stride: kernel_size unless given."""

    function = "max_pool2d"


class _AvgPool(Module):
    function: ClassVar[str] = ""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return getattr(F, self.function)(  # type: ignore[no-any-return]
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """The mean of each window of (N, C, L); stride: kernel_size unless given."""

    function = "avg_pool1d"


class AvgPool2d(_AvgPool):
    """The mean of each window of (N, C, H, W); stride: kernel_size unless given. divisor_override: what sums are divided by instead."""

    function = "avg_pool2d"

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(  # type: ignore[no-any-return]
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)


class AdaptiveAvgPool2d(Module):
    """Means over a grid of output_size cells of (N, C, H, W); the sizes must be multiples of it."""

    def __init__(self, output_size: Size) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


# -------------------------------------------------------------------------------------------------------------- attention


class MultiheadAttention(Module):
    """Scaled dot-product attention of several heads (Vaswani et al. 2017), with learned maps of query, key, value and result.

    embed_dim: E, a multiple of num_heads. Inputs are (L, N, E), or (N, L, E) with batch_first, or without N; the parameters are named
    as in torch (in_proj_weight (3E, E), in_proj_bias, out_proj). Not here: kdim, vdim, bias_kv, zero_attn.
    """

    in_proj_weight: Parameter
    in_proj_bias: Parameter | None

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, batch_first: bool = False,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ArgumentError(f"MultiheadAttention: embed_dim {embed_dim} must be a multiple of num_heads {num_heads}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.in_proj_weight = Parameter(empty(3 * embed_dim, embed_dim, dtype=dtype, device=device))
        self.register_parameter("in_proj_bias", Parameter(zeros(3 * embed_dim, dtype=dtype, device=device)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        init.xavier_uniform_(self.in_proj_weight)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, need_weights: bool = False,
                is_causal: bool = False) -> tuple[Tensor, None]:
        """The result of the query's shape, and None for the weights.

        attn_mask: as in torch.nn.MultiheadAttention, bool (True may NOT be attended to) or numbers that are added; (L, S).
        Raises ArgumentError for need_weights=True: the weights are never held in memory.
        """
        if need_weights:
            raise ArgumentError("MultiheadAttention: need_weights is not supported; the weights are an intermediate of the fused kernel")
        if attn_mask is not None and attn_mask.dtype == dtypes.bool_:
            attn_mask = ~attn_mask
        e = self.embed_dim
        biases = [None] * 3 if self.in_proj_bias is None else [self.in_proj_bias[i * e:(i + 1) * e] for i in range(3)]
        q, k, v = (self._heads(F.linear(x, self.in_proj_weight[i * e:(i + 1) * e], biases[i])) for i, x in enumerate((query, key, value)))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, self.dropout if self.training else 0.0, is_causal)
        return self.out_proj(self._joined(out)), None

    def _heads(self, x: Tensor) -> Tensor:
        """(L, N, E) or (N, L, E) or (L, E) -> (N, heads, L, E / heads) or (heads, L, E / heads)."""
        x = x.reshape(*x.shape[:-1], self.num_heads, self.embed_dim // self.num_heads)
        if x.ndim == 3:
            return x.permute(1, 0, 2)  # type: ignore[no-any-return]
        return x.permute(0, 2, 1, 3) if self.batch_first else x.permute(1, 2, 0, 3)  # type: ignore[no-any-return]

    def _joined(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            x = x.permute(1, 0, 2)
        else:
            x = x.permute(0, 2, 1, 3) if self.batch_first else x.permute(2, 0, 1, 3)
        return x.reshape(*x.shape[:-2], self.embed_dim)  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------------------------------------------- losses


class _Loss(Module):
    """Base of losses: `reduction` is "mean", "sum" or "none"."""

    function: ClassVar[str] = ""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(f"{type(self).__name__}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return getattr(F, self.function)(input, target, reduction=self.reduction)  # type: ignore[no-any-return]


class MSELoss(_Loss):
    """(input - target)²."""

    function = "mse_loss"


class L1Loss(_Loss):
    """|input - target|."""

    function = "l1_loss"


class NLLLoss(_Loss):
    """Minus the log-probability of the target class; input: log-probabilities (N, C, *). weight: (C), a factor per class, a buffer."""

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)  # type: ignore[no-any-return]


class CrossEntropyLoss(_Loss):
    """Minus the log of the softmax probability of the target; input: logits (N, C, *), target: class numbers (N, *) or probabilities.

    weight: (C), a factor per class, kept as a buffer.
    """

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(  # type: ignore[no-any-return]
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of sigmoid(input), without overflow. weight, pos_weight: factors of each element, of the positive ones."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(  # type: ignore[no-any-return]
            input, target, weight=self.weight, reduction=self.reduction, pos_weight=self.pos_weight)
