"""A neural field: a photograph in the weights of a network.

The network maps a place to a color, as in NeRF. With the plain coordinates it learns a blur. With sines and cosines of random
frequencies it learns the edges (Tancik 2020). Half of the pixels are never shown to it.

In its kernels: sine and cosine are computed in the kernel of the product with the frequencies, the ReLUs in those of the layers.
"""

import matplotlib.pyplot as plt
import numpy as np
import show
from sklearn.datasets import load_sample_image

import tracegrad as tg

SIZE = 64


def train(features, places, colors, seen, steps=600):
    model = tg.nn.Sequential(tg.nn.Linear(features(places).shape[1], 64), tg.nn.ReLU(), tg.nn.Linear(64, 64), tg.nn.ReLU(),
                             tg.nn.Linear(64, 3), tg.nn.Sigmoid())
    optimizer = tg.optim.Adam(model.parameters(), lr=5e-3)

    @tg.trace
    def step(places, colors):
        loss = ((model(features(places)) - colors) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(steps):
        step(places[seen], colors[seen])
    with tg.no_grad():
        return model(features(places)).numpy(), step


def run():
    photo = load_sample_image("flower.jpg")[20:404, 120:504].reshape(SIZE, 6, SIZE, 6, 3).mean((1, 3)) / 255
    colors = tg.from_numpy(photo.reshape(-1, 3).astype(np.float32))
    places = tg.from_numpy((np.stack(np.meshgrid(*[np.arange(SIZE)] * 2, indexing="ij"), -1).reshape(-1, 2) / SIZE).astype(np.float32))
    seen = tg.from_numpy(np.random.default_rng(0).permutation(SIZE**2)[: SIZE**2 // 2])
    frequencies = 2 * np.pi * 4 * tg.randn(2, 64)

    def waves(x):
        return tg.cat([tg.sin(x @ frequencies), tg.cos(x @ frequencies)], 1)

    plain, _ = train(lambda x: x, places, colors, seen)
    fine, step = train(waves, places, colors, seen)
    hidden = np.setdiff1d(np.arange(SIZE**2), seen.numpy())

    def psnr(image):
        return -10 * np.log10(((image - colors.numpy()) ** 2)[hidden].mean())

    figure, axes = plt.subplots(1, 3, figsize=(10, 3.5))
    for axis, image, title in zip(axes, (photo, plain, fine), ("photograph", "coordinates", "waves"), strict=True):
        axis.imshow(image.reshape(SIZE, SIZE, 3))
        axis.set_title(title)
        axis.axis("off")
    return {"dB on hidden pixels, coordinates": psnr(plain), "dB on hidden pixels, waves": psnr(fine)}, figure, step


if __name__ == "__main__":
    show.main(run)
