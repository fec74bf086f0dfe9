"""Initial values, torch.nn.init's names: functions that overwrite a tensor in place, without a derivative, and return it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.operators import LINALG, PUBLIC, F, entered, named
from tracegrad.support.modes import no_grad
from tracegrad.support.random_state import torchs, using
from tracegrad.tensors.creation.random_numbers import draw_normal, draw_uniform, rand, randn
from tracegrad.tensors.tensor import Tensor, from_array

_GAINS = {"linear": 1.0, "sigmoid": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
          "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 0.75}


@named
def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By what number, a float, a layer's weights make up for its nonlinearity.

    param: the negative slope of "leaky_relu" (default 0.01).

    Raises ArgumentError for another nonlinearity.

    >>> nn.init.calculate_gain("relu")
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(f"calculate_gain: {nonlinearity!r} is not known; known are leaky_relu, {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


def fan(tensor: Tensor) -> tuple[int, int]:
    """fan_in and fan_out of a weight (out, in, *kernel)."""
    if tensor.ndim < 2:
        raise ShapeError(f"init: fan_in and fan_out need a weight of at least two dimensions, got {tensor.shape}")
    kernel = math.prod(tensor.shape[2:])
    return tensor.shape[1] * kernel, tensor.shape[0] * kernel


_calculate_fan_in_and_fan_out = fan                         # under this name layers written for torch use it


def _initializes(fn: F) -> F:
    return entered(fn, fn.__name__)


def _overwrite(tensor: Tensor, values: Any) -> Tensor:
    if values.dtype.kind == "c" != tensor.dtype.kind:
        raise DTypeError(f"init: {tensor.dtype} cannot hold {values.dtype}; give real numbers, or make the tensor complex")
    with no_grad():
        return tensor.copy_(values)


def _uniform(tensor: Tensor, a: float, b: float, generator: Any) -> Any:
    with using("init", generator):
        return draw_uniform(tensor.shape, tensor.dtype, tensor.device, a, b)


@_initializes
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Uniform in [a, b). generator, here and below: the stream to draw from, in place of the default one.

    Any shape; dtype: float or complex, else DTypeError. Raises ArgumentError for an a above b.

    >>> nn.init.uniform_(tg.empty(2, 3))
    """
    if not a <= b:
        raise ArgumentError(f"uniform_: a must not be above b, got {a} and {b}")
    return _overwrite(tensor, _uniform(tensor, a, b, generator))


@_initializes
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Normal. Any shape; dtype: float or complex, else DTypeError. Raises ArgumentError for a negative std.

    >>> nn.init.normal_(tg.empty(2, 3), std=0.02)
    """
    if not std >= 0:
        raise ArgumentError(f"normal_: std must not be negative, got {std}")
    with using("init", generator):
        return _overwrite(tensor, draw_normal(tensor.shape, tensor.dtype, tensor.device, mean, std))


@_initializes
def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None) -> Tensor:
    """The part of a normal distribution that lies in [a, b], by the inverse of its distribution function. ArgumentError unless a < b.

    Any shape; dtype: float.

    >>> nn.init.trunc_normal_(tg.empty(2, 3))
    """
    if not (a < b and std > 0):
        raise ArgumentError(f"trunc_normal_: a must be below b and std positive, got {a}, {b} and {std}")
    with using("init", generator):
        host = torchs(tensor.numel()) if tensor.device.has_values else None
    if host is not None and math.erf((b - mean) / (std * math.sqrt(2.0))) - math.erf((a - mean) / (std * math.sqrt(2.0))) > 0.6:
        return _overwrite(tensor, from_array(host.truncated(tensor.shape, tensor.dtype, mean, std, a, b), tensor.device))
    low, high = (math.erf((v - mean) / (std * math.sqrt(2.0))) for v in (a, b))
    return _overwrite(tensor, (_uniform(tensor, low, high, generator).erfinv() * (std * math.sqrt(2.0)) + mean).clamp(a, b))


@_initializes
def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """A random (semi-)orthogonal matrix, the dimensions behind the first made one, times gain (Saxe et al. 2013).

    dtype: float32 or float64. Raises ShapeError for fewer than two dimensions.

    >>> nn.init.orthogonal_(tg.empty(3, 2))
    """
    if tensor.ndim < 2:
        raise ShapeError(f"orthogonal_: takes at least two dimensions, got {tensor.shape}")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    if not rows * columns:
        return tensor
    flat: Any = randn((rows, columns), dtype=tensor.dtype, device=tensor.device, generator=generator)
    q, r = LINALG["qr"](flat.mT if rows < columns else flat)
    q = q * r.diagonal().sign()                     # else it would not be uniformly distributed (F. Mezzadri, 2007)
    return _overwrite(tensor, (q.mT if rows < columns else q).reshape(tensor.shape) * gain)


@_initializes
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution's weight (out, in, *kernel) of 3 to 5 dimensions that keeps as many channels of each group as it can.

    Any dtype. Raises ShapeError for other dimensions.

    >>> nn.init.dirac_(tg.empty(2, 2, 3))
    """
    if tensor.ndim not in (3, 4, 5):
        raise ShapeError(f"dirac_: takes 3 to 5 dimensions, got {tensor.shape}")
    if groups < 1 or tensor.shape[0] % groups:
        raise ArgumentError(f"dirac_: dimension 0 of {tensor.shape} must be a multiple of groups {groups}")
    per_group = tensor.shape[0] // groups
    values = np.zeros(tensor.shape, tensor.dtype)
    for group in range(groups):
        for k in range(min(per_group, tensor.shape[1])):
            values[(group * per_group + k, k, *(n // 2 for n in tensor.shape[2:]))] = 1
    return _overwrite(tensor, from_array(values, tensor.device))


@_initializes
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Normal, with the given share of the elements of each column of a matrix 0 (Martens 2010).

    dtype: float. Raises ShapeError for other shapes.

    >>> nn.init.sparse_(tg.empty(4, 2), 0.5)
    """
    if tensor.ndim != 2:
        raise ShapeError(f"sparse_: takes a matrix, got {tensor.shape}")
    rows, columns = tensor.shape
    with using("init", generator):
        host = torchs(tensor.numel()) if tensor.device.has_values else None
    if host is not None:
        drawn = host.normal(tensor.shape, tensor.dtype, 0.0, std)
        for column in range(columns):
            drawn[host.permutation(rows)[:math.ceil(sparsity * rows)], column] = 0
        return _overwrite(tensor, from_array(drawn, tensor.device))
    place: Any = rand(tensor.shape, device=tensor.device, generator=generator).argsort(0).argsort(0)
    values: Any = randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator) * std
    return _overwrite(tensor, values.masked_fill(place < math.ceil(sparsity * rows), 0.0))


@_initializes
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Every element `val`. Any shape and dtype. Raises DTypeError unless val is a number.

    >>> nn.init.constant_(tg.empty(2), 0.5)
    """
    with no_grad():
        return tensor.fill_(val)


@_initializes
def zeros_(tensor: Tensor) -> Tensor:
    """Zeros. Any shape and dtype. Raises DTypeError for what is no tensor.

    >>> nn.init.zeros_(tg.empty(2))
    """
    return constant_(tensor, 0.0)


@_initializes
def ones_(tensor: Tensor) -> Tensor:
    """Ones. Any shape and dtype. Raises DTypeError for what is no tensor.

    >>> nn.init.ones_(tg.empty(2))
    """
    return constant_(tensor, 1.0)


@_initializes
def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix. Any dtype. Raises ShapeError for other shapes than (m, n).

    >>> nn.init.eye_(tg.empty(2, 3))
    """
    if tensor.ndim != 2:
        raise ShapeError(f"eye_: takes a matrix, got {tensor.shape}")
    return _overwrite(tensor, PUBLIC["eye"](*tensor.shape, dtype=tensor.dtype, device=tensor.device))


@_initializes
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Uniform in ±gain sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010). dtype: float. Raises ShapeError for fewer than two dimensions.

    >>> nn.init.xavier_uniform_(tg.empty(2, 3))
    """
    bound = gain * math.sqrt(6.0 / sum(fan(tensor)))
    return uniform_(tensor, -bound, bound, generator)


@_initializes
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Normal with standard deviation gain sqrt(2 / (fan_in + fan_out)). dtype: float. Raises ShapeError for fewer than two dimensions.

    >>> nn.init.xavier_normal_(tg.empty(2, 3))
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fan(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"init: mode must be 'fan_in' or 'fan_out', got {mode!r}")
    size = fan(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(size) if size else 0.0


@_initializes
def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                     generator: Any = None) -> Tensor:
    """Uniform with the variance gain² / fan (He et al. 2015); `a` is the slope of the leaky relu that follows.

    dtype: float. Raises ShapeError for fewer than two dimensions.

    >>> nn.init.kaiming_uniform_(tg.empty(2, 3))
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


@_initializes
def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                    generator: Any = None) -> Tensor:
    """Normal with the variance gain² / fan (He et al. 2015). dtype: float. Raises ShapeError for fewer than two dimensions.

    >>> nn.init.kaiming_normal_(tg.empty(2, 3))
    """
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


__all__ = ["calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "orthogonal_",
           "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_"]
