"""State dicts in files, in the safetensors format, which torch and JAX read too."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, TracegradError
from tracegrad.tensor import Tensor, from_array

_files: Any
try:
    _files = import_module("safetensors.numpy")
except ImportError:                             # an extra
    _files = None


class MissingExtraError(TracegradError, ImportError):
    """A package that only an extra installs is not there."""


def _required(call: str) -> Any:
    if _files is None:
        raise MissingExtraError(f"{call}: needs the package safetensors; pip install 'tracegrad[safetensors]'")
    return _files


def save_file(tensors: Mapping[str, Any], path: str | PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors (a `state_dict()`) to a safetensors file. metadata: short texts to store beside them.

    >>> nn.save_file(model.state_dict(), "model.safetensors")
    """
    wrong = [name for name, t in tensors.items() if not isinstance(t, Tensor)]
    if wrong:
        raise ArgumentError(f"save_file: {wrong[0]!r} is not a Tensor; an optimizer's state_dict is nested, save its tensors by name")
    arrays = {name: np.asarray(t.detach(), order="C") for name, t in tensors.items()}
    _required("save_file").save_file(arrays, path, dict(metadata) if metadata else None)


def load_file(path: str | PathLike[str], device: Any = None) -> dict[str, Tensor]:
    """The named tensors of a safetensors file, on `device` (default: the current one).

    >>> model.load_state_dict(nn.load_file("model.safetensors"))
    """
    return {name: from_array(array, device) for name, array in _required("load_file").load_file(path).items()}


__all__ = ["load_file", "save_file"]
