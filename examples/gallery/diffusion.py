"""Diffusion: two moons out of noise.

A network learns the noise that was added to a point. Sampling begins with noise alone and takes away what the network says, 100
times.

In its kernels: the step draws its points, times and noise on the device. `sample` is one `scan`, in whose loop the network's kernels
stand once.
"""

import matplotlib.pyplot as plt
import numpy as np
import show
from sklearn.datasets import make_moons

import tracegrad as tg
from tracegrad import nn

TIMES = 100
beta = np.linspace(1e-3, 0.12, TIMES)
KEPT = tg.from_numpy(np.cumprod(1 - beta).astype(np.float32))          # how much of the point's variance is left
BETA = tg.from_numpy(beta.astype(np.float32))
WAVES = 2.0 ** tg.arange(6)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 + 12, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(),
                                  nn.Linear(128, 2))

    def forward(self, x, time):
        angle = (time / TIMES)[:, None] * WAVES
        return self.body(tg.cat([x, tg.sin(angle), tg.cos(angle)], 1))


def run():
    points = make_moons(4000, noise=0.05, random_state=0)[0].astype(np.float32)
    centre, spread = points.mean(0), points.std(0)
    data = tg.from_numpy((points - centre) / spread)
    model = Denoiser()
    optimizer = tg.optim.Adam(model.parameters(), lr=2e-3)

    @tg.trace
    def step():
        x = data[tg.randint(0, len(points), (256,))]
        time = tg.randint(0, TIMES, (256,))
        noise, kept = tg.randn(256, 2), KEPT[time][:, None]
        found = model(tg.sqrt(kept) * x + tg.sqrt(1 - kept) * noise, time.to(tg.float32))
        loss = ((found - noise) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    @tg.trace
    def sample(x):
        def back(x, at):
            time, kept, beta = at
            noise = model(x, time.expand(x.shape[0]))
            mean = (x - beta / tg.sqrt(1 - kept) * noise) / tg.sqrt(1 - beta)
            x = mean + tg.where(time > 0, tg.sqrt(beta), 0.0) * tg.randn_like(x)
            return x, x

        return tg.scan(back, x, (tg.arange(TIMES).flip(0).to(tg.float32), KEPT.flip(0), BETA.flip(0)))[1]

    losses = []
    for k in range(3000):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - k / 3000)
        losses.append(step().item())
    with tg.no_grad():
        steps = sample(tg.randn(1000, 2)).numpy() * spread + centre
    nearest = np.sqrt(((steps[-1][:, None] - points[None, :1000]) ** 2).sum(-1)).min(1)
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), sharex=True, sharey=True)
    for axis, k in zip(axes, (0, 60, 85, TIMES - 1), strict=True):
        axis.plot(*steps[k].T, ".", ms=2)
        axis.set_title(f"after {k + 1} steps")
    return {"first loss": losses[0], "last loss": np.mean(losses[-200:]), "distance from the moons": np.median(nearest),
            "in the upper moon": (steps[-1][:, 1] > 0.25).mean()}, figure, step


if __name__ == "__main__":
    show.main(run)
