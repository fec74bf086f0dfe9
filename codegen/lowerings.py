"""Imports every lowering, so that the table `LOWERINGS` is full. One module a kind of kernel."""

from __future__ import annotations

from tracegrad.codegen import lower_columns, lower_contraction, lower_conv, lower_loops
from tracegrad.codegen.lower import LOWERINGS

__all__ = ["LOWERINGS", "lower_columns", "lower_contraction", "lower_conv", "lower_loops"]
