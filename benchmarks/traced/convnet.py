"""A convnet on 28 x 28 images: two convolutions, two linear layers; one step of SGD with momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH, CLASSES = 32, 10


def program(f: Any) -> Callable[[], float]:
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                          nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = T.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    @f.trace
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = T.randn(BATCH, 1, 28, 28), T.arange(BATCH) % CLASSES
    return lambda: float(step(x, y))
