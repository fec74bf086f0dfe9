"""Dropout, of elements and of channels, and alpha dropout."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, ShapeError, warn
from tracegrad.graph.operators import functional
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.arrays.pointwise import into
from tracegrad.ops.arrays.pointwise import where as select
from tracegrad.ops.arrays.random_bits import kept

Array = Any      # a Node or a Tensor


@functional
def dropout(input: Array, p: float = 0.5, training: bool = True, inplace: bool = False) -> Array:
    """Each element 0 with probability p, else divided by 1 - p (Srivastava et al. 2014); input itself unless training.

    Shape stays; any dtype, integers while training as the default float one. Raises ArgumentError unless p is from 0 to 1.

    >>> nn.functional.dropout(tg.ones(4), 0.5)
    """
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout: p must be from 0 to 1, got {p}")
    if not training or p == 0.0:
        return input
    if p == 1.0:
        out = input * 0.0
    else:
        out = _dropped(input, kept(input, p), p)
    return input.copy_(out) if inplace else out


@on_nodes
def _dropped(input: Array, keep: Array, p: float) -> Array:
    """What is kept over 1 - p, else 0."""
    return select(keep, input * (1.0 / (1.0 - p)), 0.0)


def _check_p(name: str, p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"{name}: p must be from 0 to 1, got {p}")


def _of_channels(name: str, spatial: int, input: Array) -> tuple[int, ...]:
    """The shape of one number a channel. Dimensions mean what they do in torch: three of dropout2d are (N, C, L)."""
    n = input.ndim
    if spatial + 1 <= n <= spatial + 2 and (spatial, n) != (2, 3):
        lead = n - spatial
    elif spatial == 1 or n < 4 - spatial:
        raise ShapeError(f"{name}: takes an input (N, C, {spatial} sizes) or (C, {spatial} sizes), got {input.shape}")
    else:
        lead = 2 if spatial == 2 else 1
        warn(f"{name}: an input of {n} dimensions is taken for ({'N, C' if lead == 2 else 'C'}, ...), as torch takes it; use "
             f"{'dropout1d, or unsqueeze(0) for (1, C, H, W)' if n == 3 and spatial == 2 else 'dropout, or reshape it'}")
    return (*input.shape[:lead], *[1] * (n - lead))


def _channel_dropout(name: str, spatial: int) -> Any:
    def fn(input: Array, p: float = 0.5, training: bool = True, inplace: bool = False) -> Array:
        _check_p(name, p)
        shape = _of_channels(name, spatial, input)
        if not training or p == 0.0:
            return input
        out = input * 0.0 if p == 1.0 else _dropped(input, kept(input, p, shape), p)
        return into(input, out, inplace)

    fn.__name__ = fn.__qualname__ = name
    alone = "as torch takes it, each row of (N, C, L)" if spatial == 2 else "(C, ...)"
    fn.__doc__ = (f"Each channel of (N, C, {spatial} sizes) or {alone} 0 with probability p, else divided by 1 - p (Tompson et al. 2015)."
                  f"\n    {'' if spatial == 1 else 'Warns of other shapes, of which torch warns. '}dtype: any; integers as floats."
                  "\n    Raises ShapeError for others, ArgumentError unless p is from 0 to 1."
                  f"\n\n    >>> nn.functional.{name}(tg.ones(1, 2{', 3' * spatial}), training=False).shape"
                  f"\n    (1, 2{', 3' * spatial})\n    ")
    return functional(fn)


dropout1d, dropout2d, dropout3d = (_channel_dropout(f"dropout{n}d", n) for n in (1, 2, 3))
_ALPHA = -1.7580993408473766            # selu's limit for x -> -inf


def _alpha_dropped(name: str, input: Array, p: float, training: bool, inplace: bool, shape: Any) -> Array:
    _check_p(name, p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return into(input, input * 0.0, inplace)
    scale = ((1.0 - p) * (1.0 + p * _ALPHA * _ALPHA)) ** -0.5
    keep = kept(input, p, None if shape == input.shape else shape)
    out = select(keep, input, _ALPHA) * scale - scale * p * _ALPHA
    return into(input, out, inplace)


@functional
def alpha_dropout(input: Array, p: float = 0.5, training: bool = False, inplace: bool = False) -> Array:
    """dropout that keeps mean 0 and variance 1, for selu: dropped elements become selu's lower limit (Klambauer et al. 2017).
    dtype: any; of integers and bools the default float one. ArgumentError unless p is from 0 to 1.

    >>> nn.functional.alpha_dropout(tg.ones(2), training=False)
    Tensor([1., 1.], device='cpu')
    """
    return _alpha_dropped("alpha_dropout", input, p, training, inplace, input.shape)


@functional
def feature_alpha_dropout(input: Array, p: float = 0.5, training: bool = False, inplace: bool = False) -> Array:
    """alpha_dropout of whole channels of (N, C, *).
    dtype: any; of integers and bools the default float one. Raises ShapeError for other shapes.

    >>> nn.functional.feature_alpha_dropout(tg.ones(1, 2, 3), training=True).shape
    (1, 2, 3)
    """
    if input.ndim < 2 and training:
        raise ShapeError(f"feature_alpha_dropout: takes an input (N, C, *), got {input.shape}")
    return _alpha_dropped("feature_alpha_dropout", input, p, training, inplace, (*input.shape[:2], *[1] * (input.ndim - 2)))
