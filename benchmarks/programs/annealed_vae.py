"""A variational autoencoder whose second term counts more at every step: a Python float in the loss that is never the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make(f: Any) -> Callable[[], float]:
    """One step of Adam on one batch; the loss."""
    T, F = f.T, f.F
    T.manual_seed(0)
    encoder, mean, spread = T.nn.Linear(64, 32), T.nn.Linear(32, 8), T.nn.Linear(32, 8)
    decoder = T.nn.Sequential(T.nn.Linear(8, 32), T.nn.ReLU(), T.nn.Linear(32, 64))
    optimizer = T.optim.Adam([p for layer in (encoder, mean, spread, decoder) for p in layer.parameters()], lr=1e-3)
    x = T.rand(64, 64)
    count = 0

    def step() -> float:
        nonlocal count
        count += 1
        optimizer.zero_grad()
        hidden = F.relu(encoder(x))
        mu, log_variance = mean(hidden), spread(hidden)
        z = mu + T.randn_like(mu) * T.exp(0.5 * log_variance)
        divergence = -0.5 * (1 + log_variance - mu ** 2 - log_variance.exp()).sum(1).mean()
        loss = F.binary_cross_entropy_with_logits(decoder(z), x) + count / (count + 1000) * divergence
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step
