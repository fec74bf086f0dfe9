"""Elementwise work and reductions over rows and columns."""
