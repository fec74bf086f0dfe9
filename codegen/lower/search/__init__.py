"""Sorts, selections, arg-reductions, scans and scatters."""
