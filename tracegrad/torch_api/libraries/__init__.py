"""What packages have compiled for torch, written here: tables of operations by their names in `torch.ops`. Start at `operations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracegrad.torch_api.libraries import audio, images, regions

_LIBRARIES: dict[tuple[str, str], Mapping[str, Callable[..., Any]]] = {
    ("torchaudio", "_torchaudio"): audio.OPERATIONS, ("torchaudio", "libtorchaudio"): audio.OPERATIONS,
    ("torchvision", "_C"): regions.OPERATIONS, ("torchvision", "image"): images.OPERATIONS}


def operations(path: Any) -> Mapping[str, Callable[..., Any]]:
    """The operations ("library::op") of the compiled library at path. Raises OSError for one that nothing here stands for."""
    file = Path(path)
    for (package, start), found in _LIBRARIES.items():
        if file.name.startswith(start) and (package in file.parts or package in start):
            return found
    raise OSError(f"torch.ops.load_library: {path} has operations that are compiled for torch")
