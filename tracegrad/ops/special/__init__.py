"""Special functions, and elementwise functions composed of others."""

from tracegrad.ops.special import arithmetic, bessel, double_float, exports, functions, gamma, modified_bessel, normal, polynomials

__all__ = ["arithmetic", "bessel", "double_float", "exports", "functions", "gamma", "modified_bessel", "normal", "polynomials"]
