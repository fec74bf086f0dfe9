"""Moments, quantiles, counts."""

from tracegrad.ops.statistics import bins, moments, order_statistics, unique

__all__ = ["bins", "moments", "order_statistics", "unique"]
