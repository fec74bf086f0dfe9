"""A character model of two blocks, trained, and asked for 20 characters greedily in every step: each of them has another length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TEXT = "the quick brown fox jumps over the lazy dog. " * 8
LETTERS = sorted(set(TEXT))


def make(f: Any, width: int = 32, heads: int = 4, length: int = 24) -> Callable[[], float]:
    """A step of training, and 20 characters drawn; the loss."""
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)
    data = T.tensor([LETTERS.index(c) for c in TEXT])

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            q, k, v = (p.reshape(b, t, heads, width // heads).transpose(1, 2) for p in self.qkv(self.first(x)).split(width, dim=2))
            mask = T.ones(t, t).tril() == 0
            weights = T.softmax((q @ k.transpose(2, 3) * (width // heads) ** -0.5).masked_fill(mask, float("-inf")), -1)
            x = x + self.out((weights @ v).transpose(1, 2).reshape(b, t, width))
            return x + self.down(F.gelu(self.up(self.second(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(Block(), Block())
            self.head = nn.Linear(width, len(LETTERS))

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.letters(x) + self.places(T.arange(x.shape[1]))))

    model = Model()
    optimizer = T.optim.AdamW(model.parameters(), lr=3e-3)
    count = 0

    def step() -> float:
        nonlocal count
        starts = [(count * 37 + 41 * b) % (len(TEXT) - length - 1) for b in range(8)]
        count += 1
        x = T.stack([data[s:s + length] for s in starts])
        y = T.stack([data[s + 1:s + length + 1] for s in starts])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, len(LETTERS)), y.reshape(-1))
        loss.backward()
        optimizer.step()
        with T.no_grad():
            drawn = [0]
            for _ in range(20):
                drawn.append(int(model(T.tensor([drawn[-length:]]))[0, -1].argmax().item()))
        return float(loss.item())

    return step
