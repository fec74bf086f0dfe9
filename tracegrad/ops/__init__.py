"""The operations. Primitives (one class per op): elementwise, movement, reduction, contraction, indexing, ranges, convolution, windows,
sorting, random bits. Functions composed of them: pointwise, shaping, statistics, linalg, neural, losses."""

from tracegrad.ops import (
    arithmetic,
    contraction,
    convolution,
    elementwise,
    indexing,
    linalg,
    losses,
    moments,
    movement,
    neural,
    order_statistics,
    pointwise,
    random_bits,
    ranges,
    reduction,
    scattering,
    shaping,
    sorting,
    special,
    stacking,
    statistics,
    windows,
)

__all__ = ["arithmetic", "contraction", "convolution", "elementwise", "indexing", "linalg", "losses", "moments", "movement", "neural",
           "order_statistics", "pointwise",
           "random_bits", "ranges", "reduction", "scattering", "shaping", "sorting", "special", "stacking", "statistics", "windows"]
