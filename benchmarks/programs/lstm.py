"""A language model with an LSTM, its state carried from one piece of the text to the next, detached; SGD with clipped gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.programs.transformer import LETTERS, TEXT


def make(f: Any, width: int = 32, length: int = 12, batch: int = 8) -> Callable[[], float]:
    """A step of training; the loss."""
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)
    data = T.tensor([LETTERS.index(c) for c in TEXT])

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.lstm = nn.Embedding(len(LETTERS), width), nn.LSTM(width, width, batch_first=True)
            self.head = nn.Linear(width, len(LETTERS))

        def forward(self, x: Any, state: Any) -> Any:
            y, state = self.lstm(self.letters(x), state)
            return self.head(y), state

    model = Model()
    optimizer = T.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = (T.zeros(1, batch, width), T.zeros(1, batch, width))
    part, count = len(TEXT) // batch, 0
    rows = data[:part * batch].reshape(batch, part)

    def step() -> float:
        nonlocal state, count
        start = (count * length) % (part - length - 1)
        count += 1
        x, y = rows[:, start:start + length], rows[:, start + 1:start + length + 1]
        guess, (h, c) = model(x, state)
        state = (h.detach(), c.detach())
        loss = F.cross_entropy(guess.reshape(-1, len(LETTERS)), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    return step
