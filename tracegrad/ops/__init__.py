"""The operations, by families. Start at `primitives/elementwise.py`.

`primitives` has what all others are made of, one class per operation. What cannot be composed of those is a primitive in the folder of its
family: factorizations, Fourier transforms, convolutions, attention, sorting. All else is functions of them, under torch's names.
"""

from tracegrad.graph.operators import FOURIER, FUNCTIONAL, LINALG, PUBLIC, SPECIAL
from tracegrad.ops import arrays, aten, attention, convolution, fourier, linalg, neural, primitives, special, statistics, torch_variants

# The tables are full once the families above are loaded.
__all__ = ["FOURIER", "FUNCTIONAL", "LINALG", "PUBLIC", "SPECIAL", "arrays", "aten", "attention", "convolution", "fourier", "linalg",
           "neural", "primitives", "special", "statistics", "torch_variants"]
