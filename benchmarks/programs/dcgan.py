"""A generator of 16 x 16 images and a discriminator, trained against each other: two optimizers, batch norm, noise in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make(f: Any, width: int = 8, noise: int = 16, batch: int = 8) -> Callable[[], float]:
    """A step of the discriminator and one of the generator; the sum of their losses."""
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)
    generator = nn.Sequential(
        nn.ConvTranspose2d(noise, 2 * width, 4, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1), nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 4), nn.Flatten(0),
    )
    of_generator = T.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_discriminator = T.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    line = T.linspace(-1.0, 1.0, 16)
    real = T.stack([T.sin(3.0 * line * (1 + 0.1 * b))[:, None] * T.cos(2.0 * line)[None, :] for b in range(batch)])[:, None]
    ones, zeros = T.ones(batch), T.zeros(batch)

    def step() -> float:
        made = generator(T.randn(batch, noise, 1, 1))
        of_discriminator.zero_grad()
        error = F.binary_cross_entropy_with_logits(discriminator(real), ones)
        error = error + F.binary_cross_entropy_with_logits(discriminator(made.detach()), zeros)
        error.backward()
        of_discriminator.step()
        of_generator.zero_grad()
        other = F.binary_cross_entropy_with_logits(discriminator(made), ones)
        other.backward()
        of_generator.step()
        return float(error.item() + other.item())

    return step
