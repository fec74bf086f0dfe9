"""A small vision transformer on 32 x 32 images: patches by a convolution, two encoder layers; one step of AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH, SIZE, PATCH, WIDTH, HEADS, CLASSES = 16, 32, 8, 64, 4, 10


def program(f: Any) -> Callable[[], float]:
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)
    count = (SIZE // PATCH) ** 2

    class ViT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
            self.token, self.places = nn.Parameter(T.zeros(1, 1, WIDTH)), nn.Parameter(0.02 * T.randn(1, count + 1, WIDTH))
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = T.cat([self.token.expand(x.shape[0], 1, WIDTH), x], 1) + self.places
            return self.head(self.norm(self.encoder(x)[:, 0]))

    model = ViT()
    optimizer = T.optim.AdamW(model.parameters(), lr=3e-4)

    @f.trace
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = T.randn(BATCH, 3, SIZE, SIZE), T.arange(BATCH) % CLASSES
    return lambda: float(step(x, y))
