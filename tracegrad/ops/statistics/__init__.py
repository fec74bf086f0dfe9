"""Moments, quantiles, counts."""

from tracegrad.ops.statistics import moments, order_statistics

__all__ = ["moments", "order_statistics"]
