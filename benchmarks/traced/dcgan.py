"""A DCGAN's step on 32 x 32 images: the discriminator's update on real and made images, then the generator's; Adam twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH, NOISE, WIDTH = 16, 32, 16


def program(f: Any) -> Callable[[], float]:
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)
    maker = nn.Sequential(
        nn.ConvTranspose2d(NOISE, 4 * WIDTH, 4, 1, 0, bias=False), nn.BatchNorm2d(4 * WIDTH), nn.ReLU(),
        nn.ConvTranspose2d(4 * WIDTH, 2 * WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * WIDTH), nn.ReLU(),
        nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(),
        nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1, bias=False), nn.Tanh())
    judge = nn.Sequential(
        nn.Conv2d(1, WIDTH, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
        nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * WIDTH), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * WIDTH, 4 * WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(4 * WIDTH), nn.LeakyReLU(0.2),
        nn.Conv2d(4 * WIDTH, 1, 4, 1, 0, bias=False))
    makers = T.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judges = T.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    bce = F.binary_cross_entropy_with_logits

    @f.trace
    def step(real: Any, noise: Any) -> Any:
        made = maker(noise)
        judges.zero_grad()
        yes, no = judge(real).flatten(), judge(made.detach()).flatten()
        judged = bce(yes, T.ones_like(yes)) + bce(no, T.zeros_like(no))
        judged.backward()
        judges.step()
        makers.zero_grad()
        again = judge(made).flatten()
        fooled = bce(again, T.ones_like(again))
        fooled.backward()
        makers.step()
        return judged, fooled

    real, noise = T.randn(BATCH, 1, 32, 32), T.randn(BATCH, NOISE, 1, 1)

    def call() -> float:
        judged, fooled = step(real, noise)
        return float(judged) + float(fooled)

    return call
