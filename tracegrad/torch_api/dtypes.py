"""torch.dtype for programs written for torch: a class whose text, attributes and pickles are torch's. Start at `dtype`.

tracegrad's dtypes are NumPy's, which print as "float32", and whose class cannot be derived from. So tensors show programs one of these
in place of NumPy's (`Aval.users_dtype`). It stands for NumPy's everywhere else: NumPy takes it, it is equal to it, and has its attributes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from tracegrad.graph.ir import Aval
from tracegrad.support import dtypes

_OTHER_NAMES = {"float16": "half", "float32": "float", "float64": "double", "int16": "short", "int32": "int", "int64": "long",
                "complex32": "chalf", "complex64": "cfloat", "complex128": "cdouble"}
# Dtypes that no tensor has here; programs compare with them.
_FLOATS = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
_NAMED = ("float4_e2m1fn_x2 quint8 qint8 qint32 quint4x2 quint2x4 bits8 bits16 bits1x8 bits2x4 bits4x2 complex32 bcomplex32 "
          "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7")

_ITEMSIZES = {"qint32": 4, "complex32": 4, "bcomplex32": 4, "bits16": 2}          # of those; of others 1


class dtype:
    """torch.dtype: torch.float32 and the others. Equal to NumPy's dtype of the same name.

    A dtype that no tensor has here (torch.qint8) has a name only.
    """

    __module__ = "torch"
    _all: ClassVar[dict[str, dtype]] = {}
    __slots__ = ("_name", "_numpy", "kind")         # kind: NumPy's, which is asked for most; of a name only, not set

    def __init__(self, name: str, numpy: dtypes.DType | None) -> None:
        self._name, self._numpy = name, numpy
        if numpy is not None:
            self.kind = numpy.kind
        self._all[name] = self

    def __init_subclass__(cls) -> None:
        raise TypeError("type 'torch.dtype' is not an acceptable base type")

    @property
    def dtype(self) -> dtypes.DType:
        """NumPy's dtype; NumPy's own functions read it."""
        if self._numpy is None:
            raise AttributeError("dtype")
        return self._numpy

    __numpy_dtype__ = dtype                                 # asked for first from NumPy 2.4 on, each time it compares with its own

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._numpy is None:
            raise AttributeError(f"{self} has no attribute {name!r}: no tensor has this dtype in tracegrad")
        return getattr(self._numpy, name)

    @property
    def is_floating_point(self) -> bool:
        return self._name.startswith(("float", "bfloat"))

    @property
    def is_complex(self) -> bool:
        return self._name.startswith(("complex", "bcomplex"))

    @property
    def is_signed(self) -> bool:
        if self._name.startswith(("q", "bits")):
            raise RuntimeError(f"is_signed: {self} has no sign of its own")
        return self._name not in ("bool", "float8_e8m0fnu") and not self._name.startswith("uint")

    @property
    def itemsize(self) -> int:
        return _ITEMSIZES.get(self._name, 1) if self._numpy is None else self._numpy.itemsize

    def to_real(self) -> Any:
        """The dtype of a complex number's parts; of another, itself."""
        if self._numpy is None and self.is_complex:
            return self._all["float16" if self._name == "complex32" else "bfloat16"]
        return self if self._numpy is None else users(dtypes.real_of(self.dtype))

    def to_complex(self) -> Any:
        """The complex dtype whose parts are of this one. Raises RuntimeError if there is none."""
        if self.is_complex:
            return self
        if not self.is_floating_point or self.itemsize < 2:
            raise RuntimeError(f"to_complex: there are no complex numbers of {self}; use torch.float32, float64 or one of 16 bits")
        return self._all[{"float64": "complex128", "float16": "complex32", "bfloat16": "bcomplex32"}.get(self._name, "complex64")]

    def __eq__(self, other: object) -> bool:
        if type(other) is dtype:
            return self is other
        if isinstance(other, (np.dtype, type)) and self._numpy is not None:
            return bool(self._numpy == other)
        return False

    def __hash__(self) -> int:
        return hash(self._name if self._numpy is None else self._numpy)

    def __repr__(self) -> str:
        return f"torch.{self._name}"

    def __reduce__(self) -> str:
        return self._name

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


for _own in dtypes.SUPPORTED:
    dtype(_own.name, _own)
for _name in _FLOATS.split():
    dtype(_name, np.dtype(getattr(ml_dtypes, _name)))
for _name in _NAMED.split():
    dtype(_name, None)
NAMES: dict[str, dtype] = {**dtype._all, **{other: dtype._all[name] for name, other in _OTHER_NAMES.items()}}


def users(found: Any) -> Any:
    """torch's dtype for NumPy's."""
    return dtypes.users.get(found, found)


def install() -> None:
    """From now on tensors have torch's dtypes."""
    dtypes.show({d._numpy: d for d in dtype._all.values() if d._numpy is not None}, dtype)
    for aval in Aval._interned.values():
        aval.users_dtype = users(aval.dtype)
