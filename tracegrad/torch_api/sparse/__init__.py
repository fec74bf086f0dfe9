"""Sparse tensors for programs written for torch: COO, CSR and CSC, with gradients. Start at `tensor.SparseTensor`.

`tensor.py` has the class, `making.py` makes them, `functions.py` has what torch's functions do with them, and `products.py` the products.
It is imported when a program first asks for one of its names. (Jacobians of which most entries are zero are `tg.func.SparseCOO`.)
"""

from __future__ import annotations

from tracegrad.torch_api.sparse import functions, products
from tracegrad.torch_api.sparse.functions import log_softmax, softmax, sum_
from tracegrad.torch_api.sparse.making import (
    sparse_compressed_tensor,
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
    spdiags,
    to_sparse,
)
from tracegrad.torch_api.sparse.products import addmm, matmul, sampled_addmm
from tracegrad.torch_api.sparse.tensor import SPARSE_RULES, SparseTensor

__all__ = ["SPARSE_RULES", "SparseTensor", "addmm", "functions", "log_softmax", "matmul", "products", "sampled_addmm", "softmax",
           "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor", "spdiags", "sum_", "to_sparse"]
