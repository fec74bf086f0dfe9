"""Special functions, and elementwise functions composed of others."""

from tracegrad.ops.special import arithmetic, bessel, functions, polynomials

__all__ = ["arithmetic", "bessel", "functions", "polynomials"]
