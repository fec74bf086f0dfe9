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
           orthogonal,
           products,
           properties,
           systems,
)

__all__ = ["decompositions", "eigen", "factorizations", "inverses", "lapack", "ldl", "lu", "matrix_exponential", "orthogonal",
           "products", "properties", "systems"]
