"""The Python array API standard, version 2024.12: tracegrad as a namespace that array-agnostic libraries can use.

    xp = x.__array_namespace__()            # or: import tracegrad.array_api as xp

Arrays are Tensors; functions are tracegrad's own under the standard's names, arguments and dtype rules. Where PyTorch and the standard
differ, these functions follow the standard, and Tensor's methods and operators follow PyTorch: docs/array_api.md lists where.
"""

from tracegrad.array_api import fft, linalg
from tracegrad.array_api._creation import *
from tracegrad.array_api._data_types import *
from tracegrad.array_api._elementwise import *
from tracegrad.array_api._info import __array_namespace_info__
from tracegrad.array_api._manipulation import *
from tracegrad.array_api._statistics import *
from tracegrad.array_api.linalg import matmul, matrix_transpose, tensordot, vecdot
from tracegrad.support.dtypes import bool_ as bool
from tracegrad.support.dtypes import complex64, complex128, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64

__array_api_version__ = "2024.12"
e, inf, nan, pi, newaxis = 2.718281828459045, float("inf"), float("nan"), 3.141592653589793, None
