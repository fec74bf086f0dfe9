"""An LSTM: it learns to add, digit by digit.

Two binary numbers come in, lowest digits first, and the sum goes out. The network has to keep the carry. It is trained on 12 digits
and asked for 40.

In its kernels: the twelve time steps are a loop in one kernel, with the products of the gates and what follows them.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg
from tracegrad import nn
from tracegrad.nn import functional as F


def sums(rng, batch, digits):
    """Digits of two random numbers (batch, digits, 2), and of their sum (batch, digits)."""
    a, b = (rng.integers(0, 2, (batch, digits)) for _ in range(2))
    total, carry = np.zeros((batch, digits), np.float32), 0
    for k in range(digits):
        s = a[:, k] + b[:, k] + carry
        total[:, k], carry = s % 2, s // 2
    return tg.from_numpy(np.stack([a, b], -1).astype(np.float32)), tg.from_numpy(total)


class Adder(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0])[..., 0]


def run():
    model = Adder()
    optimizer = tg.optim.Adam(model.parameters(), lr=0.02)

    @tg.trace
    def step(x, y):
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    rng = np.random.default_rng(0)
    losses = [step(*sums(rng, 64, 12)).item() for _ in range(500)]
    x, y = sums(rng, 256, 40)
    with tg.no_grad():
        states = model.lstm(x)[0]
        right = ((model(x) > 0) == (y > 0.5)).numpy()
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.5))
    axes[0].semilogy(losses)
    axes[0].set_title("loss")
    axes[1].imshow(states[0].numpy().T, cmap="coolwarm", vmin=-1, vmax=1, aspect="auto")
    axes[1].set_title("what its cells hold, over 40 digits")
    return {"first loss": losses[0], "last loss": losses[-1], "digits right (40)": right.mean(),
            "sums right (40)": right.all(1).mean()}, figure, step


if __name__ == "__main__":
    show.main(run)
