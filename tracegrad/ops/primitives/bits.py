"""The bits of tensors: `view_dtype` (x.view(dtype)) and `hash_tensor`. Steps on the host, as factorisations are."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Aval
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import REGISTRY, bind
from tracegrad.ops.arguments import on_nodes, some_dims
from tracegrad.ops.primitives import movement as mv
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


class Bits(Shared):
    """The same bytes as elements of another dtype: the last dimension has as many more or fewer of them."""
    name, family, batches, part = "bits", "host_call", True, True
    cases = [((np.array([[1.5, -2.0]], np.float64),), dict(dtype=dtypes.int32, index=0))]

    def avals(self, *operands, **attrs):
        x, dtype = operands[0], attrs["dtype"]
        if x.dtype.itemsize == dtype.itemsize:
            return (Aval(x.shape, dtype),)
        return (Aval((*x.shape[:-1], x.shape[-1] * x.dtype.itemsize // dtype.itemsize), dtype),)

    def rule(self, attrs, dtype, given): return self.numpy_with(**attrs)             # of bfloat16, too: its bits, not its numbers

    def results(self, x, dtype):
        shape = self.avals(Aval(x.shape, x.dtype), dtype=dtype)[0].shape
        return [np.ascontiguousarray(x).reshape(-1).view(dtype).reshape(shape)]


class Xor(Shared):
    """The exclusive or of the bits of the last dimension, as uint64: of floats as float64, of others as int64."""
    name, family, batches = "xor", "host_call", True
    cases = [((np.array([[1.5, -2.0, 3.0], [0.0, 1.0, 2.0]]),), dict(index=0))]

    def avals(self, *operands, **attrs): return (Aval(operands[0].shape[:-1], dtypes.uint64),)

    def results(self, x):
        wide = x.astype(np.float64).view(np.uint64) if dtype_kind(x.dtype) == "f" else x.astype(np.uint64)
        return [np.bitwise_xor.reduce(wide, axis=-1)]


def view_dtype(input: Array, dtype: Any) -> Array:
    """x.view(dtype): the bytes of input as elements of dtype; of larger or smaller ones the last dimension has fewer or more.

    A view: what is written into it is written to input, whose derivative knows nothing of it. ShapeError where they do not fit; no
    derivative. Not to be mixed up with `input.to(dtype)`, which converts numbers.
    """
    wanted = dtypes.as_dtype(dtype)
    have, want = input.dtype.itemsize, wanted.itemsize
    if wanted == input.dtype:
        return input
    if wanted == dtypes.bool_:
        raise DTypeError(f"view: {input.dtype} cannot be seen as bools, of which other bytes than 0 and 1 are none; use x != 0")
    if have != want and (not input.ndim or input.shape[-1] * have % want):
        raise ShapeError(f"view: the last dimension of {input.aval} does not hold a whole number of {wanted}")
    return bind(REGISTRY["bits"], (input,), {"dtype": wanted, "index": 0})


@public("hash_tensor")
@on_nodes
def hash_tensor(input: Array, dim: Any = (), *, keepdim: bool = False, mode: int = 0) -> Array:
    """A checksum (uint64) over dim (default: all): the exclusive or of the bits, of floats as float64, of integers and bools as int64.

    mode: 0, the only one. It does not depend on the order of the elements. DTypeError for complex numbers (view_as_real them).

    >>> tg.hash_tensor(tg.tensor([1.0, 2.0]))
    """
    if mode != 0:
        raise ArgumentError(f"hash_tensor: mode must be 0 (exclusive or), got {mode!r}")
    if input.dtype.kind == "c":
        raise DTypeError(f"hash_tensor: takes no complex numbers, got {input.dtype}; use tg.view_as_real(x)")
    dims = some_dims("hash_tensor", dim, input.ndim)
    rest = tuple(d for d in range(input.ndim) if d not in dims)
    kept = tuple(input.shape[d] for d in rest)
    x = mv.reshape(mv.permute(input, (*rest, *dims)), (*kept, prod(input.shape[d] for d in dims)))
    y = bind(REGISTRY["xor"], (x,), {"index": 0})
    return mv.reshape(y, tuple(1 if d in dims else n for d, n in enumerate(input.shape))) if keepdim else y
