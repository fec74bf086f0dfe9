"""A variational autoencoder: handwritten digits as points in a plane.

The encoder gives a mean and a spread, a random point near it is decoded, and the gradient goes through the random number. A grid over
the plane, decoded, shows how one digit becomes another.

In its kernels: the random numbers are drawn on the device, in the first launch. What the encoder says, the random point and the decoder's
first layer are one launch.
"""

import matplotlib.pyplot as plt
import numpy as np
import show
from sklearn.datasets import load_digits

import tracegrad as tg
from tracegrad import nn
from tracegrad.nn import functional as F


def run():
    pixels = load_digits().data.astype(np.float32) / 16
    labels = load_digits().target
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
    decoder = nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = tg.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)

    @tg.trace
    def step(x):
        mean, log_spread = encoder(x).chunk(2, 1)
        z = mean + tg.randn_like(mean) * tg.exp(log_spread)
        likelihood = F.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum") / len(x)
        divergence = 0.5 * (mean**2 + tg.exp(2 * log_spread) - 2 * log_spread - 1).sum(1).mean()
        loss = likelihood + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, divergence

    rng = np.random.default_rng(0)
    losses = []
    for _ in range(40):
        order = rng.permutation(len(pixels))[:1792].reshape(-1, 128)
        losses.append(np.mean([step(tg.from_numpy(pixels[batch]))[0].item() for batch in order]))

    with tg.no_grad():
        places = encoder(tg.from_numpy(pixels))[:, :2].numpy()
        line = np.linspace(-2, 2, 12, dtype=np.float32)
        grid = tg.sigmoid(decoder(tg.from_numpy(np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)))).numpy()
        again = tg.sigmoid(decoder(tg.from_numpy(places))).numpy()
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.5))
    axes[0].scatter(*places.T, c=labels, cmap="tab10", s=5)
    axes[1].imshow(grid.reshape(12, 12, 8, 8).transpose(0, 2, 1, 3).reshape(96, 96), cmap="gray_r")
    axes[1].axis("off")
    return {"first loss": losses[0], "last loss": losses[-1], "error of a pixel": np.sqrt(((again - pixels) ** 2).mean()),
            "of the mean digit": pixels.std(0).mean()}, figure, step


if __name__ == "__main__":
    show.main(run)
