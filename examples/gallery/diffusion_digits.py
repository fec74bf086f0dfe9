"""Diffusion on digits: pictures of the digit that is asked for, out of noise.

A network sees a noisy picture, how noisy it is, and which digit it was, and says what the noise is. Sampling takes the noise away in 50
steps. A classifier that was trained on real digits reads what comes out.

In its kernels: the step draws its pictures, times and noise on the device. A layer's bias, SiLU and residual are in the kernel of its
product.
"""

import matplotlib.pyplot as plt
import numpy as np
import show
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import tracegrad as tg
from tracegrad import nn

TIMES, WIDTH = 50, 256
kept = np.cos(0.5 * np.pi * (np.arange(TIMES) + 1) / (TIMES + 1)) ** 2          # how much of the picture's variance is left
KEPT = tg.from_numpy(kept.astype(np.float32))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture, self.time, self.digit = nn.Linear(64, WIDTH), nn.Embedding(TIMES, WIDTH), nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU()) for _ in range(3))
        self.noise = nn.Linear(WIDTH, 64)

    def forward(self, x, time, digit):
        told = self.time(time) + self.digit(digit)
        h = self.picture(x) + told
        for layer in self.layers:
            h = h + layer(h + told)
        return self.noise(h)


def run():
    pictures, labels = load_digits().data.astype(np.float32) / 8 - 1, load_digits().target
    data, digits = tg.from_numpy(pictures), tg.from_numpy(labels)
    model = Denoiser()
    optimizer = tg.optim.AdamW(model.parameters(), lr=2e-3)

    @tg.trace
    def step():
        chosen, time, noise = tg.randint(0, len(pictures), (256,)), tg.randint(0, TIMES, (256,)), tg.randn(256, 64)
        left = KEPT[time][:, None]
        found = model(tg.sqrt(left) * data[chosen] + tg.sqrt(1 - left) * noise, time, digits[chosen])
        loss = ((found - noise) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    @tg.trace
    def sample(x, digit):
        def back(x, at):
            time, left, after = at
            noise = model(x, time.expand(len(x)), digit)
            clean = ((x - tg.sqrt(1 - left) * noise) / tg.sqrt(left)).clamp(-1, 1)
            spread = tg.sqrt((1 - after) / (1 - left) * (1 - left / after))
            direction = (x - tg.sqrt(left) * clean) / tg.sqrt(1 - left)
            x = tg.sqrt(after) * clean + tg.sqrt((1 - after - spread**2).clamp(min=0)) * direction + spread * tg.randn_like(x)
            return x, x

        times = tg.arange(TIMES).flip(0)
        return tg.scan(back, x, (times, KEPT.flip(0), tg.cat([tg.ones(1), KEPT[:-1]]).flip(0)))[1]

    losses = []
    for k in range(2000):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - k / 2000)
        losses.append(step().item())
    asked = np.arange(200) % 10
    with tg.no_grad():
        steps = sample(tg.randn(200, 64), tg.from_numpy(asked)).numpy()
    reader = LogisticRegression(max_iter=2000).fit(pictures, labels)
    said = reader.predict(steps[-1])
    away = np.sqrt(((steps[-1][:, None] - pictures) ** 2).mean(-1)).min(1)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8))
    for axis, k in zip(axes, (0, TIMES // 2, TIMES - 1), strict=True):
        axis.imshow(steps[k][:100].reshape(10, 10, 8, 8).transpose(0, 2, 1, 3).reshape(80, 80), cmap="gray_r", vmin=-1, vmax=1)
        axis.set_title(f"after {k + 1} steps")
        axis.axis("off")
    return {"first loss": losses[0], "last loss": np.mean(losses[-200:]), "read as what was asked for": (said == asked).mean(),
            "nearest real digit": np.median(away), "of the pixels' spread": pictures.std()}, figure, step


if __name__ == "__main__":
    show.main(run)
