"""torchvision's library: regions of images, as detectors cut them out, and convolutions whose taps move. Start at `roi_align`.

Regions ("rois") are rows of (K, 5): the image's number in the batch, then x and y of two corners; no gradient goes to them, as in
torchvision. All are made of gathers and sums, so they have derivatives and are fused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, UnsupportedError
from tracegrad.tensors.tensor import Tensor, from_array


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The numbers of the boxes (N, 4) that stay, by falling scores (N,): whoever overlaps one before it by more than the threshold goes."""
    if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise ArgumentError(f"nms: takes boxes (N, 4) and scores (N,), got {boxes.shape} and {scores.shape}")
    corners = boxes.detach().numpy()
    order = np.argsort(-scores.detach().numpy(), kind="stable")
    low, high = corners[:, :2], corners[:, 2:]
    area = (high - low).prod(1)
    gone, kept = np.zeros(len(corners), bool), []
    for rank, i in enumerate(order):
        if gone[i]:
            continue
        kept.append(i)
        rest = order[rank + 1:]
        shared = np.maximum(np.minimum(high[i], high[rest]) - np.maximum(low[i], low[rest]), 0).prod(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            gone[rest] |= shared / (area[i] + area[rest] - shared) > iou_threshold
    return from_array(np.array(kept, np.int64), boxes.device)


def _sampled(images: Tensor, batch: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Values (K, C, P, Q) of images (N, C, H, W), of the batch's (K,), between pixels at y (K, P, 1 or Q) and x (K, 1 or P, Q).

    As torchvision has it: what is more than a pixel outside is 0, the rest comes from the edge.
    """
    n, c, h, w = images.shape
    flat = images.permute(0, 2, 3, 1).reshape(n * h * w, c)
    held = (y >= -1.0) & (y <= h) & (x >= -1.0) & (x <= w)
    parts = []
    for v, size in ((y, h), (x, w)):
        at = v.clamp(0.0, size - 1.0)
        low = at.detach().floor().clamp(max=max(size - 2, 0))
        share = at - low
        first = low.long()
        parts.append(((first, 1.0 - share), ((first + 1).clamp(max=size - 1), share)))
    image = batch.long().reshape(-1, 1, 1) * h
    out: Any = None
    for row, row_share in parts[0]:
        for column, column_share in parts[1]:
            share = (row_share * column_share * held).unsqueeze(-1)
            part = flat[(image + row) * w + column] * share
            out = part if out is None else out + part
    return out.permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def roi_align(input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
              aligned: bool) -> Tensor:
    """Each region (K, 5) of images (N, C, H, W) as (K, C, pooled_height, pooled_width): means of sampling_ratio^2 samples of each bin.

    They lie between pixels. Without a ratio there are as many as a bin is pixels long. aligned: pixels' middles are at halves.
    """
    rois = rois.detach()
    shift = 0.5 if aligned else 0.0
    corners = rois[:, 1:] * spatial_scale - shift
    sizes = corners[:, 2:] - corners[:, :2]
    if not aligned:
        sizes = sizes.clamp(min=1.0)
    places, shares = [], []
    for d, bins in ((1, pooled_height), (0, pooled_width)):
        step = sizes[:, d] / bins
        counts = step.ceil() if sampling_ratio <= 0 else step * 0.0 + sampling_ratio
        most = sampling_ratio if sampling_ratio > 0 else max(1, int(counts.max())) if len(rois) else 1
        sample = _numbers(most, rois)
        inside = (sample + 0.5) / counts.clamp(min=1.0)[:, None]                             # (K, most)
        at = corners[:, d][:, None, None] + (_numbers(bins, rois)[:, None] + inside[:, None, :]) * step[:, None, None]
        places.append(at.reshape(len(rois), bins * most))
        shares.append(((sample < counts[:, None]) / counts.clamp(min=1.0)[:, None], most))
    values = _sampled(input, rois[:, 0], places[0][:, :, None], places[1][:, None, :])
    (rows, high), (columns, wide) = shares
    values = values.reshape(*values.shape[:2], pooled_height, high, pooled_width, wide)
    pooled: Tensor = (values * rows[:, None, None, :, None, None] * columns[:, None, None, None, None, :]).sum((3, 5))
    return pooled


def _numbers(count: int, like: Tensor) -> Tensor:
    return from_array(np.arange(count), like.device).to(like.dtype)


def _own_channels(x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Of (K, C * height * width, height, width) for each bin its own channels: (K, C, height, width), and which those are."""
    k, channels = x.shape[:2]
    c = channels // (height * width)
    x = x.reshape(k, c, height * width, height * width).diagonal(0, 2, 3)
    mapping = np.broadcast_to(np.arange(channels, dtype=np.int32).reshape(c, height, width), (k, c, height, width))
    return x.reshape(k, c, height, width), from_array(mapping.copy(), x.device)


def _divides(name: str, input: Tensor, bins: int) -> None:
    if input.shape[1] % bins:
        raise ArgumentError(f"{name}: {input.shape[1]} channels are no multiple of {bins} bins")


def ps_roi_align(input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
                 sampling_ratio: int) -> tuple[Tensor, Tensor]:
    """`roi_align` where each bin has channels of its own: (K, C / bins, pooled_height, pooled_width), and which channels those are."""
    _divides("ps_roi_align", input, pooled_height * pooled_width)
    pooled = roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, True)
    return _own_channels(pooled, pooled_height, pooled_width)


def _bins(rois: Tensor, scale: float, d: int, bins: int, size: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """The first pixel of each bin (K, bins) along d, and the one behind it, as whole numbers; `last` pixels more belong to a region."""
    array = rois.detach().numpy()
    corners = array * array.dtype.type(scale)
    corners = np.where(corners < 0, np.ceil(corners - 0.5), np.floor(corners + 0.5))                      # C's round
    start, stop = corners[:, 1 + d, None].astype(np.int64), corners[:, 3 + d, None].astype(np.int64)
    step = np.maximum(stop - start + last, 1).astype(array.dtype) / array.dtype.type(bins)
    k = np.arange(bins, dtype=array.dtype)
    most = size if last else size - 1                                   # (torchvision's ps_roi_pool leaves out one)
    first, end = (v.astype(np.int64) + start for v in (np.floor(k * step), np.ceil((k + 1) * step)))
    return np.clip(first, 0, most), np.clip(end, 0, most)


def roi_pool(input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int) -> tuple[Tensor, Tensor]:
    """The largest value of each bin of each region (K, 5): (K, C, pooled_height, pooled_width), 0 of an empty bin, and its place (-1)."""
    n, c, h, w = input.shape
    values, batch = input.detach().numpy(), rois.detach().numpy()[:, 0].astype(np.int64)
    rows, columns = _bins(rois, spatial_scale, 1, pooled_height, h, 1), _bins(rois, spatial_scale, 0, pooled_width, w, 1)
    place = np.full((len(batch), c, pooled_height, pooled_width), -1, np.int64)
    for k, i, j in np.ndindex(len(batch), pooled_height, pooled_width):
        top, bottom, left, right = rows[0][k, i], rows[1][k, i], columns[0][k, j], columns[1][k, j]
        if top < bottom and left < right:
            found = values[batch[k], :, top:bottom, left:right].reshape(c, -1).argmax(1)
            place[k, :, i, j] = (top + found // (right - left)) * w + left + found % (right - left)
    at = from_array(place, input.device)
    flat = input.reshape(n, c, h * w)[from_array(batch, input.device)]
    picked = flat.gather(2, at.clamp(min=0).reshape(len(batch), c, -1)).reshape(at.shape)
    return picked * (at >= 0), at.to("int32")


def ps_roi_pool(input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int) -> tuple[Tensor, Tensor]:
    """The mean of each bin, which has channels of its own: (K, C / bins, pooled_height, pooled_width), and which channels those are.

    (The derivative is that of the result. torchvision's has the last row and column, too, which the result leaves out.)
    """
    _divides("ps_roi_pool", input, pooled_height * pooled_width)
    shares = []
    for d, bins, size in ((1, pooled_height, input.shape[2]), (0, pooled_width, input.shape[3])):
        start, end = _bins(rois, spatial_scale, d, bins, size, 0)
        k = np.arange(size)
        mean = ((k >= start[..., None]) & (k < end[..., None])) / np.maximum(end - start, 1)[..., None]
        shares.append(from_array(mean, input.device).to(input.dtype))
    pooled = shares[0].unsqueeze(1) @ input[rois[:, 0].detach().long()] @ shares[1].unsqueeze(1).mT
    return _own_channels(pooled, pooled_height, pooled_width)


def deform_conv2d(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int, pad_h: int,
                  pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool) -> Tensor:
    """A convolution of (N, C, H, W) with weight (O, C / groups, kh, kw) whose taps are moved by offset (N, 2 * offset_groups * kh * kw,
    out_h, out_w), y before x, and multiplied with the mask (N, offset_groups * kh * kw, out_h, out_w). Result: (N, O, out_h, out_w)."""
    n, c, h, w = input.shape
    out, _, kh, kw = weight.shape
    g, taps = offset_groups, kh * kw
    oh, ow = offset.shape[2:]
    moved = offset.reshape(n, g, taps, 2, oh, ow)
    i, j = np.divmod(np.arange(taps), kw)
    top = i[:, None, None] * dilation_h - pad_h + np.arange(oh)[None, :, None] * stride_h
    left = j[:, None, None] * dilation_w - pad_w + np.arange(ow)[None, None, :] * stride_w
    y, x = (moved[:, :, :, d] + from_array(at, input.device).to(offset.dtype) for d, at in enumerate((top, left)))  # (N, g, taps, oh, ow)
    images = input.reshape(n * g, c // g, h, w)
    columns = _between(images, y.reshape(n * g, -1), x.reshape(n * g, -1)).reshape(n, g, c // g, taps, oh, ow)
    if use_mask:
        columns = columns * mask.reshape(n, g, 1, taps, oh, ow)
    columns = columns.reshape(n, groups, c // groups * taps, oh * ow)
    product = weight.reshape(groups, out // groups, -1) @ columns
    result: Tensor = product.reshape(n, out, oh, ow) + bias.reshape(1, out, 1, 1)
    return result


def _between(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Values (N, C, P) of images (N, C, H, W) between pixels at y and x (N, P); pixels outside are 0."""
    n, c, h, w = images.shape
    flat = images.reshape(n, c, h * w)
    low_y, low_x = y.detach().floor(), x.detach().floor()
    out: Any = None
    for row, row_share in ((low_y, 1.0 - (y - low_y)), (low_y + 1.0, y - low_y)):
        for column, column_share in ((low_x, 1.0 - (x - low_x)), (low_x + 1.0, x - low_x)):
            held = (row >= 0.0) & (row < h) & (column >= 0.0) & (column < w)
            place = (row.clamp(0, h - 1).long() * w + column.clamp(0, w - 1).long()).unsqueeze(1).expand(n, c, -1)
            part = flat.gather(2, place) * (row_share * column_share * held).unsqueeze(1)
            out = part if out is None else out + part
    return out  # type: ignore[no-any-return]


def _refused(name: str) -> Any:
    def call(*args: Any) -> Any:
        raise UnsupportedError(f"torch.ops.torchvision.{name}: is not here; derivatives come from the operation itself")
    return call


_HERE = {f.__name__: f for f in (nms, roi_align, roi_pool, ps_roi_align, ps_roi_pool, deform_conv2d)}
_NOT_HERE = "qnms", "qroi_align", "box_iou_rotated", *(f"_{name}_backward" for name in _HERE if name != "nms")
_ALL = {**_HERE, **{name: _refused(name) for name in _NOT_HERE}, "_cuda_version": lambda: -1}
OPERATIONS: dict[str, Callable[..., Any]] = {f"torchvision::{name}": op for name, op in _ALL.items()}
