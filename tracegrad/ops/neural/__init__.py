"""Layers, activations and losses as functions (`tracegrad.nn.functional`)."""

from tracegrad.ops.neural import activations, layers, losses, more_losses

__all__ = ["activations", "layers", "losses", "more_losses"]
