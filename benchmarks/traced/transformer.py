"""A character model of two transformer blocks: one step of AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH, LENGTH, WIDTH, HEADS, LETTERS = 8, 32, 64, 4, 27


def program(f: Any) -> Callable[[], float]:
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            q, k, v = (p.reshape(b, t, HEADS, WIDTH // HEADS).transpose(1, 2) for p in self.qkv(self.first(x)).split(WIDTH, dim=2))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(b, t, WIDTH))
            return x + self.down(F.gelu(self.up(self.second(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, LETTERS)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.blocks(self.letters(x) + self.places(T.arange(x.shape[1])))))

    model = Model()
    optimizer = T.optim.AdamW(model.parameters(), lr=3e-4)

    @f.trace
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, LETTERS), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    text = (T.arange(BATCH * (LENGTH + 1)) * 7 % LETTERS).reshape(BATCH, LENGTH + 1)
    x, y = text[:, :-1].clone(), text[:, 1:].clone()
    return lambda: float(step(x, y))
