"""A vision transformer: digits as words of 2 x 2 pixels.

Sixteen patches of a picture are a sentence, and a learned word before them collects what they say.

In its kernels: the patches are read where they lie, in the kernel of the convolution and its bias. 17 x 17 scores are so few that attention
is two products with a softmax between them.
"""

import matplotlib.pyplot as plt
import numpy as np
import show
from sklearn.datasets import load_digits

import tracegrad as tg
from tracegrad import nn
from tracegrad.nn import functional as F


class VisionTransformer(nn.Module):
    def __init__(self, width=32, layers=2):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.summary = nn.Parameter(0.02 * tg.randn(1, 1, width))
        self.place = nn.Parameter(0.02 * tg.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        words = self.patch(x).flatten(2).transpose(1, 2)
        words = tg.cat([self.summary.expand(len(x), 1, -1), words], 1) + self.place
        return self.head(self.layers(words)[:, 0])


def run():
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32)[:, None], digits.target
    test = tg.from_numpy(images[1437:])
    model = VisionTransformer()
    optimizer = tg.optim.AdamW(model.parameters(), lr=3e-3)

    @tg.trace
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    rng, losses = np.random.default_rng(0), []
    for epoch in range(15):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - epoch / 15)
        batches = rng.permutation(1437)[:1408].reshape(-1, 64)
        losses += [step(tg.from_numpy(images[batch]), tg.from_numpy(labels[batch])).item() for batch in batches]
    with tg.no_grad():
        found = model(test).argmax(1).numpy()
    right = found == labels[1437:]
    figure, axes = plt.subplots(2, 6, figsize=(10, 3.6))
    for axis, k in zip(axes.flat, [*np.flatnonzero(~right), *np.flatnonzero(right)][:12], strict=True):
        axis.imshow(images[1437 + k, 0], cmap="gray_r")
        axis.set_title(f"{labels[1437 + k]}, said {found[k]}", size=8)
        axis.axis("off")
    return {"first loss": losses[0], "last loss": np.mean(losses[-22:]), "right of 360 others": right.mean()}, figure, step


if __name__ == "__main__":
    show.main(run)
