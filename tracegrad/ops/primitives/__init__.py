"""Primitives that all families are made of, one class per operation."""

from tracegrad.ops.primitives import (
           bits,
           complex_parts,
           contraction,
           dynamic_slice,
           elementwise,
           float_functions,
           formula,
           movement,
           reduction,
           scans,
           transfer,
           windows,
)

__all__ = ["bits", "complex_parts", "contraction", "dynamic_slice", "elementwise", "float_functions", "formula", "movement", "reduction",
           "scans", "transfer", "windows"]
