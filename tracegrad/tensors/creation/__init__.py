"""Tensors from nothing, from host data and from random numbers."""

from tracegrad.graph.operators import PUBLIC
from tracegrad.tensors.creation import filled, from_data, methods, random_numbers

# PUBLIC has their functions, beside those of ops.
__all__ = ["PUBLIC", "filled", "from_data", "methods", "random_numbers"]
