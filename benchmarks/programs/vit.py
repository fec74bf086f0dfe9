"""A vision transformer: patches of 16 x 16 images by a convolution, a class token, two blocks with nn.MultiheadAttention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make(f: Any, width: int = 32, heads: int = 4, batch: int = 8) -> Callable[[], float]:
    """A step of training; the loss."""
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
            self.rest = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.rest(self.second(x))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, width, 4, stride=4)
            self.token, self.places = nn.Parameter(T.zeros(1, 1, width)), nn.Parameter(0.02 * T.randn(1, 17, width))
            self.blocks = nn.Sequential(Block(), Block())
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, images: Any) -> Any:
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = T.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
            return self.head(self.norm(self.blocks(x))[:, 0])

    model = Model()
    optimizer = T.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = T.randn(batch, 1, 16, 16), T.arange(batch) % 10

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step
