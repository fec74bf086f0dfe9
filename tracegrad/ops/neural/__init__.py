"""Activations, normalization, dropout, distances and losses as functions (`tracegrad.nn.functional`)."""

from tracegrad.ops.neural import (
    activations,
    channels,
    ctc_loss,
    distances,
    dropout,
    embedding_bag,
    losses,
    margin_losses,
    normalization,
    softmax,
)

__all__ = [
    "activations",
    "channels",
    "ctc_loss",
    "distances",
    "dropout",
    "embedding_bag",
    "losses",
    "margin_losses",
    "normalization",
    "softmax",
]
