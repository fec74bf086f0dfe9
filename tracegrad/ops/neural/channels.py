"""What rearranges channels: pixel_shuffle, pixel_unshuffle, channel_shuffle."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ShapeError
from tracegrad.graph.operators import public
from tracegrad.ops.arguments import integer, on_nodes
from tracegrad.ops.primitives import movement as mv

Array = Any      # a Node or a Tensor


@public("pixel_shuffle", method=False, functional=True)
@on_nodes
def pixel_shuffle(input: Array, upscale_factor: int) -> Array:
    """(*, C r², H, W) -> (*, C, H r, W r): groups of r² channels become r x r pixels (Shi et al. 2016).
    Any dtype. Raises ShapeError for other channels.

    >>> nn.functional.pixel_shuffle(tg.arange(4).reshape(1, 4, 1, 1), 2)
    Tensor([[[[0, 1],
              [2, 3]]]], device='cpu')
    """
    r = integer("pixel_shuffle", "upscale_factor", upscale_factor)
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: the channels of (*, C, H, W) must be a multiple of upscale_factor² = {r * r}, got {input.shape}")
    *lead, c, h, w = input.shape
    n = len(lead)
    x = mv.reshape(input, (*lead, c // (r * r), r, r, h, w))
    return mv.reshape(mv.permute(x, (*range(n + 1), n + 3, n + 1, n + 4, n + 2)), (*lead, c // (r * r), h * r, w * r))


@public("pixel_unshuffle", method=False, functional=True)
@on_nodes
def pixel_unshuffle(input: Array, downscale_factor: int) -> Array:
    """(*, C, H r, W r) -> (*, C r², H, W): the inverse of pixel_shuffle. Any dtype. Raises ShapeError for other sizes.

    >>> nn.functional.pixel_unshuffle(tg.rand(1, 1, 4, 6), 2).shape
    (1, 4, 2, 3)
    """
    r = integer("pixel_unshuffle", "downscale_factor", downscale_factor)
    if input.ndim < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        raise ShapeError(f"pixel_unshuffle: height and width must be multiples of downscale_factor {r}, got {input.shape}")
    *lead, c, h, w = input.shape
    n = len(lead)
    x = mv.reshape(input, (*lead, c, h // r, r, w // r, r))
    return mv.reshape(mv.permute(x, (*range(n + 1), n + 2, n + 4, n + 1, n + 3)), (*lead, c * r * r, h // r, w // r))


@public("channel_shuffle", method=False, functional=True)
@on_nodes
def channel_shuffle(input: Array, groups: int) -> Array:
    """The channels (dim 1) of `groups` groups taken in turn (Zhang et al. 2018). Any dtype. Raises ShapeError for other channels.

    >>> nn.functional.channel_shuffle(tg.arange(4).reshape(1, 4, 1), 2).flatten()
    Tensor([0, 2, 1, 3], device='cpu')
    """
    g = integer("channel_shuffle", "groups", groups)
    if input.ndim < 3 or g < 1 or input.shape[1] % g:
        raise ShapeError(f"channel_shuffle: the channels of (N, C, *) must be a multiple of groups {g}, got {input.shape}")
    n, c, *rest = input.shape
    x = mv.reshape(input, (n, g, c // g, *rest))
    return mv.reshape(mv.permute(x, (0, 2, 1, *range(3, x.ndim))), input.shape)
