"""Two networks against each other: one makes points, the other tells them from real ones.

The real points lie in eight heaps on a circle. A generator that finds only some of them is what GANs are known for; so the numbers
count the heaps.

In its kernels: both updates are in one traced step, and the generator's forward is computed once for both.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg
from tracegrad import nn
from tracegrad.nn import functional as F

BATCH = 256
CENTRES = tg.tensor([[np.cos(a), np.sin(a)] for a in np.arange(8) * np.pi / 4], dtype=tg.float32)


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))


def run():
    generator, critic = network(8, 2), network(2, 1)
    make = tg.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    judge = tg.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))

    @tg.trace
    def step():
        real = CENTRES[tg.randint(0, 8, (BATCH,))] + 0.05 * tg.randn(BATCH, 2)
        fake = generator(tg.randn(BATCH, 8))
        right = critic(real.requires_grad_())
        slope, = tg.autograd.grad(right.sum(), real, create_graph=True)
        loss = F.softplus(-right).mean() + F.softplus(critic(fake.detach())).mean() + 0.05 * (slope**2).sum(1).mean()
        judge.zero_grad()
        loss.backward()
        judge.step()
        fooled = F.softplus(-critic(fake)).mean()
        make.zero_grad()
        fooled.backward()
        make.step()
        return loss, fooled

    losses = np.array([[v.item() for v in step()] for _ in range(2000)])
    with tg.no_grad():
        points = generator(tg.randn(2000, 8)).numpy()
    distance = np.linalg.norm(points[:, None] - CENTRES.numpy(), axis=-1)
    good = distance.min(1) < 0.2
    share = np.bincount(distance.argmin(1)[good], minlength=8) / len(points)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    axes[0].plot(*points.T, ".", ms=2)
    axes[0].plot(*CENTRES.numpy().T, "+", ms=15)
    axes[0].set_aspect("equal")
    axes[1].plot(losses, lw=0.5, label=["critic", "generator"])
    axes[1].legend()
    return {"points near a heap": good.mean(), "heaps found (8)": float((share > 0.03).sum()), "smallest heap": share.min()}, figure, step


if __name__ == "__main__":
    show.main(run)
