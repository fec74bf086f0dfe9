"""torch.sparse: products, sums and softmax of sparse tensors, and the older constructors. What they do is in `torch_api/sparse`."""

from __future__ import annotations

from typing import Any

from tracegrad.support import dtypes
from tracegrad.torch_api.dispatch import Operator, dispatching
from tracegrad.torch_api.sparse import SparseTensor, addmm, log_softmax, sampled_addmm, softmax, sparse_coo_tensor, spdiags
from tracegrad.torch_api.sparse import matmul as _matmul
from tracegrad.torch_api.sparse import sum_ as sum

__all__ = ["addmm", "log_softmax", "mm", "sampled_addmm", "softmax", "spdiags", "sum"]


def mm(mat1: Any, mat2: Any, reduce: str = "sum") -> Any:
    """The product of two matrices, one of them sparse, or a tensor whose class computes it: that is asked as torch's operator.

    reduce: how the products of a row are joined: "sum", "mean", "max" ("amax") or "min" ("amin").
    """
    if dispatching((mat1, mat2)):
        return Operator("_sparse_mm_reduce_impl.default")(mat1, mat2, reduce)[0]
    return _matmul(mat1, mat2, reduce)


class _Typed(type):
    """The class of torch.sparse.FloatTensor and its like: `isinstance` asks the dtype, a call makes a COO tensor."""

    dtype: Any

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, SparseTensor) and value.dtype == cls.dtype

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        sizes = args if args and all(isinstance(a, int) for a in args) else None
        return sparse_coo_tensor(*((sizes,) if sizes else args), dtype=cls.dtype, device=device)


globals().update({f"{name}Tensor": _Typed(f"{name}Tensor", (), {"dtype": dtype}) for name, dtype in dtypes.OLDER.items() if name != "Bool"})


class check_sparse_tensor_invariants:
    """A block, or a decorator, in which sparse tensors are checked when they are made: they always are."""

    def __init__(self, enable: bool = True) -> None:
        """enable: torch asks for it, and means nothing here."""

    @staticmethod
    def is_enabled() -> bool:
        return True

    @staticmethod
    def enable() -> None:
        """Nothing: they are checked."""

    @staticmethod
    def disable() -> None:
        """Nothing: they are checked all the same."""

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, *_: Any) -> None:
        """Nothing."""

    def __call__(self, fn: Any) -> Any:
        return fn
