"""What NumPy's users know: pointwise functions, shapes, reductions, indexing, sorting, random numbers."""

from tracegrad.ops.arrays import (
           complex_numbers,
           index_checks,
           indexing,
           joining,
           logical,
           pointwise,
           random_bits,
           reductions,
           scattering,
           shaping,
           sorting,
           stacking,
           subscripts,
)

__all__ = ["complex_numbers", "index_checks", "indexing", "joining", "logical", "pointwise", "random_bits", "reductions", "scattering",
           "shaping", "sorting", "stacking", "subscripts"]
