"""torchvision's library of image files, by Pillow, which torchvision itself requires. Start at `_decoded`."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tracegrad.tensors.tensor import Tensor, from_array

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}         # of torchvision's ImageReadMode; 0 leaves the file's own


def _read_file(path: str) -> Tensor:
    return from_array(np.frombuffer(Path(path).read_bytes(), np.uint8).copy())


def _write_file(path: str, data: Tensor) -> None:
    Path(path).write_bytes(data.numpy().tobytes())


def _decoded(data: Tensor, mode: int = 0, apply_exif_orientation: bool = False) -> Tensor:
    """The image of a file's bytes (uint8): (channels, height, width), uint8, or uint16 of a PNG file with 16 bits of grey.

    A GIF file of several images gives (images, channels, height, width). Raises RuntimeError for bytes of no image.
    """
    pillow, turned, frames = (importlib.import_module(f"PIL.{name}") for name in ("Image", "ImageOps", "ImageSequence"))
    try:
        file = pillow.open(io.BytesIO(data.numpy().tobytes()))
    except OSError as error:
        raise RuntimeError(f"decode_image: unsupported image file: {error}") from error
    pictures = []
    for frame in frames.Iterator(file) if file.format == "GIF" else [file]:
        picture = turned.exif_transpose(frame) if apply_exif_orientation else frame
        if mode or picture.mode in ("P", "1"):
            picture = picture.convert(_MODES.get(mode) or ("L" if picture.mode == "1" else "RGBA" if "transparency" in picture.info
                                                           and file.format != "GIF" else "RGB"))
        array = np.asarray(picture)
        array = array.astype(np.uint16) if array.dtype.itemsize > 1 else array
        pictures.append(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    return from_array(np.ascontiguousarray(pictures[0] if len(pictures) == 1 else np.stack(pictures)))


def _encoded(image: Tensor, kind: str, **options: Any) -> Tensor:
    if str(image.dtype) not in ("uint8", "torch.uint8") or image.ndim != 3 or image.shape[0] not in (1, 3):
        raise RuntimeError(f"encode_{kind.lower()}: takes uint8 of (1 or 3, height, width), got {image.dtype} of {image.shape}")
    array = image.numpy()
    written = io.BytesIO()
    pillow = importlib.import_module("PIL.Image")
    picture = pillow.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))
    picture.save(written, kind, **options)
    return from_array(np.frombuffer(written.getvalue(), np.uint8).copy())


_ALL: dict[str, Callable[..., Any]] = {
    "read_file": _read_file, "write_file": _write_file, "decode_image": _decoded, "decode_png": _decoded, "decode_jpeg": _decoded,
    "decode_gif": _decoded, "decode_webp": _decoded, "_is_compiled_against_turbo": lambda: True, "_jpeg_version": lambda: -1,
    "encode_png": lambda image, level=6: _encoded(image, "PNG", compress_level=level),
    "encode_jpeg": lambda image, quality=75: _encoded(image, "JPEG", quality=quality)}
OPERATIONS = {f"image::{name}": op for name, op in _ALL.items()}
