"""Products of matrices, factorizations, and `tg.linalg`."""

from tracegrad.ops.linalg import (
           decompositions,
           eigen,
           factorizations,
           inverses,
           lapack,
           ldl,
           lu,
           matrix_exponential,
           norms,
           orthogonal,
           products,
           systems,
)

__all__ = ["decompositions", "eigen", "factorizations", "inverses", "lapack", "ldl", "lu", "matrix_exponential", "norms", "orthogonal",
           "products", "systems"]
