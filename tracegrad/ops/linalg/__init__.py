"""Products of matrices, factorizations, and `tg.linalg`."""

from tracegrad.ops.linalg import factorizations, ldl, lu, norms, orthogonal, products, systems

__all__ = ["factorizations", "ldl", "lu", "norms", "orthogonal", "products", "systems"]
