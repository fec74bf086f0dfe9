"""Attention: torch's functions, the fused operation, and the pattern that is replaced by it."""

from tracegrad.ops.attention import functions, fused, pattern

__all__ = ["functions", "fused", "pattern"]
