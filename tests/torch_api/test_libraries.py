"""What packages have compiled for torch, and is written here: torchvision's regions and image files, beside plain loops over pixels."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.torch_api.libraries import operations
from tracegrad.torch_api.names import ops

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((2, 8, 9, 11))
CORNERS = RNG.uniform(0, 8, (7, 2))
REGIONS = np.concatenate([np.arange(7)[:, None] % 2, CORNERS, CORNERS + RNG.uniform(0.1, 9, (7, 2))], 1)


@pytest.fixture(scope="module")
def vision():
    ops.load_library("/somewhere/torchvision/_C.so")
    return ops.Namespace("torchvision")


def between(image, y, x):
    """Of a map (C, H, W) the values at y and x: 0 more than a pixel outside, and the edge's to there."""
    h, w = image.shape[1:]
    if y < -1 or y > h or x < -1 or x > w:
        return np.zeros(len(image))
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    i, j = min(int(y), h - 2), min(int(x), w - 2)
    (a, b), (c, d) = image[:, i, j:j + 2].T, image[:, i + 1, j:j + 2].T
    return (1 - y + i) * ((1 - x + j) * a + (x - j) * b) + (y - i) * ((1 - x + j) * c + (x - j) * d)


def aligned_regions(scale, height, width, ratio, aligned):
    out = np.zeros((len(REGIONS), 8, height, width))
    for k, (n, *corners) in enumerate(REGIONS):
        left, top, right, bottom = (c * scale - 0.5 * aligned for c in corners)
        h, w = ((e - s) if aligned else max(e - s, 1.0) for s, e in ((top, bottom), (left, right)))
        rows, columns = (ratio or math.ceil(s / bins) for s, bins in ((h, height), (w, width)))
        for i, j in np.ndindex(height, width):
            samples = [between(IMAGES[int(n)], top + (i + (a + 0.5) / rows) * h / height, left + (j + (b + 0.5) / columns) * w / width)
                       for a in range(rows) for b in range(columns)]
            out[k, :, i, j] = sum(samples) / len(samples)
    return out


@pytest.mark.parametrize("arguments", [(1.0, 3, 2, 2, False), (0.5, 2, 2, -1, True), (1.0, 2, 3, 0, False)])
def test_aligned_regions(vision, arguments):
    want = aligned_regions(*(max(a, 0) if k == 3 else a for k, a in enumerate(arguments)))
    np.testing.assert_allclose(vision.roi_align(tg.tensor(IMAGES), tg.tensor(REGIONS), *arguments).numpy(), want, atol=1e-12)


def own_channels(pooled, height, width):
    out = pooled.reshape(len(pooled), -1, height, width, height, width)
    return np.stack([np.stack([out[:, :, i, j, i, j] for j in range(width)], -1) for i in range(height)], -2)


def test_regions_whose_bins_have_channels_of_their_own(vision):
    got, mapping = vision.ps_roi_align(tg.tensor(IMAGES), tg.tensor(REGIONS), 1.0, 2, 2, 2)
    np.testing.assert_allclose(got.numpy(), own_channels(aligned_regions(1.0, 2, 2, 2, True), 2, 2), atol=1e-12)
    assert mapping.numpy()[0].tolist() == np.arange(8).reshape(2, 2, 2).tolist()
    got, _ = vision.ps_roi_pool(tg.tensor(IMAGES), tg.tensor(REGIONS), 1.0, 2, 2)
    np.testing.assert_allclose(got.numpy(), own_channels(pooled_regions(np.mean, 2, 2, 0), 2, 2), atol=1e-12)
    with pytest.raises(tg.ArgumentError, match="8 channels are no multiple of 9 bins"):
        vision.ps_roi_align(tg.tensor(IMAGES), tg.tensor(REGIONS), 1.0, 3, 3, 2)


def pooled_regions(reduce, height, width, more):
    out = np.zeros((len(REGIONS), 8, height, width))
    for k, (n, *corners) in enumerate(REGIONS):
        left, top, right, bottom = (math.floor(c + 0.5) for c in corners)
        h, w = max(bottom - top + more, 1) / height, max(right - left + more, 1) / width
        for i, j in np.ndindex(height, width):
            (a, b), (c, d) = ([min(max(v + start, 0), size - 1 + more) for v in (math.floor(m * step), math.ceil((m + 1) * step))]
                              for m, step, start, size in ((i, h, top, 9), (j, w, left, 11)))
            if a < b and c < d:
                out[k, :, i, j] = reduce(IMAGES[int(n), :, a:b, c:d], axis=(1, 2))
    return out


def test_largest_values_of_regions(vision):
    x = tg.tensor(IMAGES, requires_grad=True)
    got, places = vision.roi_pool(x, tg.tensor(REGIONS), 1.0, 3, 2)
    np.testing.assert_array_equal(got.detach().numpy(), pooled_regions(np.max, 3, 2, 1))
    got.sum().backward()
    counts = np.zeros((2, 8, 99))
    for k, c, i, j in np.ndindex(*places.shape):
        if places.numpy()[k, c, i, j] >= 0:
            counts[int(REGIONS[k, 0]), c, places.numpy()[k, c, i, j]] += 1
    np.testing.assert_array_equal(x.grad.numpy().reshape(counts.shape), counts)


@pytest.mark.parametrize("call", [lambda v, x: v.roi_align(x, tg.tensor(REGIONS), 1.0, 2, 2, -1, False),
                                  lambda v, x: v.ps_roi_align(x, tg.tensor(REGIONS), 1.0, 2, 2, 2)[0],
                                  lambda v, x: v.ps_roi_pool(x, tg.tensor(REGIONS), 1.0, 2, 2)[0]])
def test_gradients_of_regions(vision, call):
    """They are linear: the gradient in a direction is what the function makes of it."""
    x, along = tg.tensor(IMAGES, requires_grad=True), tg.tensor(RNG.standard_normal(IMAGES.shape))
    y = call(vision, x)
    weights = tg.tensor(RNG.standard_normal(tuple(y.shape)))
    (y * weights).sum().backward()
    assert (x.grad * along).sum().item() == pytest.approx((call(vision, along) * weights).sum().item(), rel=1e-9)


def test_boxes_that_stay(vision):
    boxes = np.array([[0, 0, 4, 4], [1, 1, 5, 5], [0, 0, 4, 3.9], [6, 6, 8, 8], [2, 2, 2, 2]], "f4")
    scores = np.array([0.5, 0.9, 0.7, 0.1, 0.7], "f4")
    assert vision.nms(tg.tensor(boxes), tg.tensor(scores), 0.3).tolist() == [1, 4, 3]
    assert vision.nms(tg.tensor(boxes), tg.tensor(scores), 0.5).tolist() == [1, 2, 4, 3]      # of equal scores the first is the first
    assert vision.nms(tg.zeros(0, 4), tg.zeros(0), 0.5).shape == (0,)
    with pytest.raises(tg.ArgumentError, match=r"takes boxes \(N, 4\)"):
        vision.nms(tg.zeros(2, 3), tg.zeros(2), 0.5)


def test_convolutions_whose_taps_move(vision):
    images, weight, bias = RNG.standard_normal((2, 4, 5, 4)), RNG.standard_normal((2, 2, 3, 2)), RNG.standard_normal(2)
    offset, mask = RNG.uniform(-3, 3, (2, 2 * 2 * 6, 3, 4)), RNG.uniform(0, 1, (2, 2 * 6, 3, 4))
    numbers = 2, 1, 1, 1, 1, 2, 2, 2
    got = vision.deform_conv2d(*map(tg.tensor, (images, weight, offset, mask, bias)), *numbers, True)
    want = np.zeros((2, 2, 3, 4))
    padded = np.zeros((2, 4, 30, 30))
    padded[:, :, 12:17, 12:16] = images
    for n, o, i, j, c, a, b in np.ndindex(2, 2, 3, 4, 2, 3, 2):
        channel, tap = c + 2 * o, 2 * a + b
        g = channel // 2
        y, x = (start + offset[n, (g * 6 + tap) * 2 + d, i, j] for d, start in enumerate((i * 2 - 1 + a, j - 1 + b * 2)))
        want[n, o, i, j] += weight[o, c, a, b] * mask[n, g * 6 + tap, i, j] * between(padded[n, channel:channel + 1], y + 12, x + 12)[0]
    np.testing.assert_allclose(got.numpy(), want + bias[:, None, None], atol=1e-10)


def test_gradients_of_convolutions_whose_taps_move(vision):
    shapes = (1, 1, 3, 3), (1, 1, 2, 1), (1, 4, 2, 3), (1, 2, 2, 3), (1,)
    given = [tg.tensor(RNG.uniform(0.1, 0.9, shape), requires_grad=True) for shape in shapes]
    tg.testing.gradcheck(lambda *xs: vision.deform_conv2d(*xs, 1, 1, 0, 0, 1, 1, 1, 1, True), given)


def test_image_files(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    ops.load_library("/somewhere/torchvision/image.so")
    image = ops.Namespace("image")
    pixels = RNG.integers(0, 256, (3, 5, 6), np.uint8)
    png = image.encode_png(tg.tensor(pixels), 6)
    image.write_file(str(tmp_path / "x.png"), png)
    read = image.read_file(str(tmp_path / "x.png"))
    assert read.tolist() == png.tolist()
    np.testing.assert_array_equal(image.decode_image(read, 0, False).numpy(), pixels)
    assert image.decode_png(read, 1, False).shape == (1, 5, 6)
    assert image.decode_png(read, 4, False).shape == (4, 5, 6)
    jpeg = image.encode_jpeg(tg.tensor(pixels), 90)
    want = np.asarray(pillow.open(io.BytesIO(jpeg.numpy().tobytes()))).transpose(2, 0, 1)
    np.testing.assert_array_equal(image.decode_jpeg(jpeg, 0, False).numpy(), want)
    with pytest.raises(RuntimeError, match="unsupported image file"):
        image.decode_image(tg.zeros(5, dtype="uint8"), 0, False)
    with pytest.raises(RuntimeError, match="takes uint8"):
        image.encode_png(tg.zeros(3, 2, 2), 6)


def test_other_libraries_are_refused():
    with pytest.raises(OSError, match="compiled for torch"):
        operations("/somewhere/other/_C.so")
    with pytest.raises(tg.UnsupportedError, match="qnms"):
        operations("/somewhere/torchvision/_C_stable.so")["torchvision::qnms"]()
