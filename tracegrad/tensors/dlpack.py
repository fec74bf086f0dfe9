"""Arrays through DLPack, bfloat16 among them, which numpy does not exchange. Start at `exported`, `imported`.

numpy sends and takes the 16 bits as integers, and the capsule between it and the other library is told what they are.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tracegrad.support.dtypes import bfloat16

_INTEGER, _BFLOAT = 1, 4                         # DLDataTypeCode: of unsigned integers, and of bfloat
# Where the code of the dtype is, followed by its bits: in a DLTensor behind pointer, device and ndim, and that is what a
# DLManagedTensor begins with; a versioned one has version, context, deleter and flags before.
_PLACES = {b"dltensor": 20, b"dltensor_versioned": 52}

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def exported(array: np.ndarray[Any, Any], **how: Any) -> Any:
    """`array.__dlpack__(**how)`; a copy of what is stored backwards, which torch refuses."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    if array.dtype != bfloat16:
        return array.__dlpack__(**how)
    capsule = array.view(np.uint16).__dlpack__(**how)
    _recode(capsule, _INTEGER, _BFLOAT)
    return capsule


def imported(x: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """`np.from_dlpack(x, copy=copy)`."""
    exporter = _Exporter(x)
    array = np.from_dlpack(exporter, copy=copy)
    return array.view(bfloat16) if exporter.recoded else array


class _Exporter:
    """What exports `x`, bfloat16 as integers."""

    def __init__(self, x: Any) -> None:
        self.x, self.recoded = x, False

    def __dlpack__(self, **how: Any) -> Any:
        capsule = self.x.__dlpack__(**how)
        self.recoded = _recode(capsule, _BFLOAT, _INTEGER)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def _recode(capsule: Any, old: int, new: int) -> bool:
    """Write another code of the dtype into a capsule of 16 bits an element that has the code `old`; whether it has."""
    name = _name(capsule)
    place = _PLACES.get(name or b"")
    if name is None or place is None:
        return False
    code = (ctypes.c_uint8 * 2).from_address(_pointer(capsule, name) + place)
    if (code[0], code[1]) != (old, 16):
        return False
    code[0] = new
    return True
