"""Tomography: a slice through a head, from its shadows at 40 angles.

A shadow is a sum along lines through a turned picture. The picture that explains noisy shadows best is found by the gradient, with a
penalty on edges that keeps areas smooth.

In its kernels: turning reads four pixels around each point and sums in the same kernel; its derivative adds to them, a corner after the
other.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

SIZE, ANGLES = 64, 40
angles = np.linspace(0, np.pi, ANGLES, endpoint=False)
turned = np.zeros((ANGLES, 2, 3), np.float32)
turned[:, 0, 0], turned[:, 0, 1], turned[:, 1, 0], turned[:, 1, 1] = np.cos(angles), -np.sin(angles), np.sin(angles), np.cos(angles)
GRID = tg.nn.functional.affine_grid(tg.from_numpy(turned), (ANGLES, 1, SIZE, SIZE), align_corners=False)


def shadows(picture):
    """(angle, place) of a square picture."""
    pictures = picture.expand(ANGLES, 1, SIZE, SIZE)
    return tg.nn.functional.grid_sample(pictures, GRID, align_corners=False)[:, 0].sum(1)


@tg.trace
def loss(picture, measured, edges):
    def total(picture):
        steps = tg.sqrt((picture[1:, :-1] - picture[:-1, :-1]) ** 2 + (picture[:-1, 1:] - picture[:-1, :-1]) ** 2 + 1e-4)
        return 0.5 * ((shadows(picture) - measured) ** 2).sum() + edges * steps.sum()

    return tg.value_and_grad(total)(picture)


def phantom():
    """Ellipses, after Shepp and Logan: (brightness, half axes, centre, angle)."""
    y, x = np.meshgrid(np.linspace(-1, 1, SIZE), np.linspace(-1, 1, SIZE), indexing="ij")
    picture = np.zeros((SIZE, SIZE), np.float32)
    for value, a, b, cx, cy, turn in ((1, 0.69, 0.92, 0, 0, 0), (-0.7, 0.62, 0.85, 0, 0.02, 0), (-0.2, 0.13, 0.33, 0.22, 0, -0.3),
                                      (-0.2, 0.17, 0.42, -0.22, 0, 0.3), (0.3, 0.22, 0.25, 0, -0.4, 0), (0.3, 0.1, 0.08, 0, 0.5, 0)):
        u, v = (x - cx) * np.cos(turn) + (y - cy) * np.sin(turn), (y - cy) * np.cos(turn) - (x - cx) * np.sin(turn)
        picture[(u / a) ** 2 + (v / b) ** 2 <= 1] += value
    return picture


def run():
    true = phantom()
    with tg.no_grad():
        clean = shadows(tg.from_numpy(true))
    measured = clean + 0.3 * tg.randn_like(clean)
    back = tg.grad(lambda p: (shadows(p) * measured).sum())(tg.zeros(SIZE, SIZE)).numpy()         # the shadows, smeared back
    picture = tg.zeros(SIZE, SIZE)
    optimizer = tg.optim.Adam([picture], lr=0.03)
    losses = []
    for _ in range(200):
        value, picture.grad = loss(picture, measured, 0.3)
        optimizer.step()
        losses.append(value.item())
    found = picture.numpy()
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.3))
    for axis, image, title in zip(axes, (true, clean.numpy(), back, found), ("true", "shadows", "smeared back", "found"), strict=True):
        axis.imshow(image, cmap="gray")
        axis.set_title(title)
        axis.axis("off")
    return {"loss at first": losses[0], "loss at last": losses[-1], "error of a pixel": np.sqrt(((found - true) ** 2).mean()),
            "correlation": np.corrcoef(found.ravel(), true.ravel())[0, 1]}, figure, loss


if __name__ == "__main__":
    show.main(run)
