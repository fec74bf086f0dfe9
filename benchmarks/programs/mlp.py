"""A network of four layers trained with AdamW: about 1,000 operations a step, nearly all of them the optimizer's and the derivative's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make(f: Any) -> Callable[[], float]:
    """A step of training on one batch; its loss."""
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)
    layers: list[Any] = []
    for _ in range(12):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *layers, nn.Linear(32, 4))
    optimizer = T.optim.AdamW(model.parameters(), lr=1e-3)
    x = T.randn(64, 16)
    y = x[:, :4].argmax(1)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step
