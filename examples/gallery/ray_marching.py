"""Ray marching, and back: a scene of spheres is drawn, and found again from its picture.

A ray goes forward by the distance to the nearest surface until it is there. The picture is soft at edges, so it has a derivative in
the places and sizes of the spheres, which the gradient moves until the pictures agree.

In its kernels: all 24 steps of all rays are a loop in one kernel, and its derivative in another.
"""

import matplotlib.pyplot as plt
import show

import tracegrad as tg

SIZE, STEPS = 48, 24
LIGHT = tg.tensor([-0.5, 0.6, -0.62])
line = tg.linspace(-1, 1, SIZE)
PLANE = tg.stack([line.expand(SIZE, SIZE), -line[:, None].expand(SIZE, SIZE), tg.full((SIZE, SIZE), 1.8)], -1)
RAYS = tg.nn.functional.normalize(PLANE, dim=-1)
EYE = tg.tensor([0.0, 0.0, -3.0])


def distance(p, spheres):
    """To the surface of soft spheres (x, y, z, radius) that melt where they touch. p: (..., 3)."""
    each = ((p[..., None, :] - spheres[:, :3]) ** 2).sum(-1).sqrt() - spheres[:, 3]
    return -0.1 * tg.logsumexp(-each / 0.1, -1)


def draw(spheres):
    def march(state, _):
        along, nearest = state
        d = distance(EYE + along[..., None] * RAYS, spheres)
        return (along + 0.9 * d.clamp(min=0), tg.minimum(nearest, d)), None

    far = tg.full((SIZE, SIZE), 1.2)
    (along, nearest), _ = tg.scan(march, (far, tg.ones(SIZE, SIZE)), tg.arange(STEPS))
    p = EYE + along.clamp(max=6.0)[..., None] * RAYS
    normal = tg.nn.functional.normalize(tg.grad(lambda p: distance(p, spheres).sum())(p), dim=-1)
    shade = 0.15 + 0.85 * (normal @ LIGHT).clamp(min=0)
    return shade * tg.sigmoid((0.03 - nearest) * 40)


@tg.trace
def loss(spheres, target):
    return tg.value_and_grad(lambda s: ((draw(s) - target) ** 2).mean())(spheres)


def run():
    true = tg.tensor([[-0.6, 0.3, 0.0, 0.5], [0.5, 0.4, 0.3, 0.4], [0.1, -0.5, -0.2, 0.45]])
    with tg.no_grad():
        target = draw(true)
    spheres = tg.tensor([[-0.3, 0.1, 0.0, 0.35], [0.3, 0.2, 0.0, 0.35], [0.0, -0.3, 0.0, 0.35]])
    with tg.no_grad():
        first = draw(spheres)
    optimizer = tg.optim.Adam([spheres], lr=0.01)
    losses = []
    for _ in range(200):
        value, spheres.grad = loss(spheres, target)
        optimizer.step()
        losses.append(value.item())
    with tg.no_grad():
        last = draw(spheres)
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2))
    for axis, image, title in zip(axes, (target, first, last), ("target", "guess", "found"), strict=False):
        axis.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
        axis.set_title(title)
        axis.axis("off")
    axes[3].semilogy(losses)
    axes[3].set_title("loss")
    return {"first loss": losses[0], "last loss": losses[-1], "error of the spheres": (spheres - true).abs().max().item()}, figure, loss


if __name__ == "__main__":
    show.main(run)
