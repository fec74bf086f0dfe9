"""What a program can ask of an array (its namespace) and of the namespace: capabilities, devices, dtypes."""

from __future__ import annotations

from typing import Any

from tracegrad.array_api._data_types import isdtype
from tracegrad.execute.devices import find_device, list_devices
from tracegrad.support import dtypes

_DOUBLE = ("float64", "complex128")


class Info:
    """What `__array_namespace_info__()` returns."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean indexing and shapes that depend on values are there (not inside @trace); any number of dimensions up to numpy's 64."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Any:
        """The device of new arrays."""
        return find_device()

    def devices(self) -> list[Any]:
        """Every device: those of OpenCL, the best first, and the interpreter."""
        return [*list_devices(), find_device("numpy")]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes that creation functions and indices have unless given."""
        real = dtypes.get_default_dtype()
        return {"real floating": real, "complex floating": dtypes.complex_of(real), "integral": dtypes.int64, "indexing": dtypes.int64}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """The standard's dtypes of a kind (as in isdtype; None: all) that the device has, by name."""
        has_double = find_device(device).fp64
        names = {"bool": dtypes.bool_} | {str(d): d for d in dtypes.SUPPORTED if d not in (dtypes.bool_, *dtypes.HALVES)}
        return {name: d for name, d in names.items() if (kind is None or isdtype(d, kind)) and (has_double or name not in _DOUBLE)}


def __array_namespace_info__() -> Info:
    """The inspection utilities of the namespace."""
    return Info()
