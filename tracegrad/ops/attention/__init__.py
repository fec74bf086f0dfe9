"""Attention: torch's functions, the fused operation, and the pattern that is replaced by it."""

from tracegrad.ops.attention import functions, fused, written_out

__all__ = ["functions", "fused", "written_out"]
