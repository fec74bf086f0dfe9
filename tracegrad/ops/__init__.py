"""The operations. Primitives (one class per op): elementwise, movement, reduction, contraction, indexing, convolution,
sorting, random bits. Functions composed of them: pointwise, shaping, statistics, linalg, neural, losses."""

from tracegrad.ops import contraction, elementwise, movement, pointwise, reduction

__all__ = ["contraction", "elementwise", "movement", "pointwise", "reduction"]
