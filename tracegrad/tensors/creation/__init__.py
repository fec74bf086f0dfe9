"""Tensors from nothing, from host data and from random numbers."""

from tracegrad.tensors.creation import filled, from_data, methods, random_numbers

__all__ = ["filled", "from_data", "methods", "random_numbers"]
