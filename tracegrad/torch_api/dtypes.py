"""What torch's dtypes have and NumPy's have not, for programs written for torch: `dtype.is_floating_point` and its like."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np

from tracegrad.support import dtypes


def add_properties() -> None:
    """Give numpy.dtype the properties of torch.dtype.

    tracegrad's dtypes are NumPy's, whose class cannot be derived from and takes no attributes by assignment. So they are put into the
    class's own dict, in this process only, and only where a program runs under torch's names.
    """
    properties = {
        "is_floating_point": property(dtypes.is_float),
        "is_complex": property(lambda self: self.kind == "c"),
        "is_signed": property(lambda self: self.kind not in "ub"),
        "to_real": dtypes.real_of,
        "to_complex": dtypes.complex_of,
    }
    own: dict[str, Any] = gc.get_referents(np.dtype.__dict__)[0]
    own.update(properties)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(np.dtype))
