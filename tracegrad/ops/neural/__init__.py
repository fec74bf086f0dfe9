"""Activations, normalization, dropout, distances and losses as functions (`tracegrad.nn.functional`)."""

from tracegrad.ops.neural import activations, channels, distances, dropout, embedding_bag, losses, more_losses, normalization, softmax

__all__ = ["activations", "channels", "distances", "dropout", "embedding_bag", "losses", "more_losses", "normalization", "softmax"]
