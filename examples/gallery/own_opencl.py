"""An operation of your own in OpenCL C: soft circles, drawn by a kernel that is written by hand.

Forward and backward are two kernels in OpenCL C; `numpy=` is what they mean on the device "numpy". tracegrad launches them between
its own kernels, and gradcheck compares them. 40 circles then move until they look like a letter.

In its kernels: the two hand-written ones stand between generated ones, as they were written.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

SIZE, CIRCLES = 48, 40

BACKWARD = """
__kernel void circles_grad(__global const float *g, __global const float *at, __global float *out, float soft, float size) {
  int c = get_global_id(0);                              // one work-item for each circle
  float x = at[3 * c], y = at[3 * c + 1], r = at[3 * c + 2], sx = 0, sy = 0, sr = 0;
  for (int p = 0; p < (int)(size * size); p++) {
    float dx = (p % (int)size) / size - x, dy = (p / (int)size) / size - y, d = sqrt(dx * dx + dy * dy + 1e-6f);
    float s = 1 / (1 + exp((d - r) * soft)), slope = g[p] * s * (1 - s) * soft;
    sx += slope * dx / d;
    sy += slope * dy / d;
    sr += slope;
  }
  out[3 * c] = sx; out[3 * c + 1] = sy; out[3 * c + 2] = sr;
}"""

FORWARD = """
__kernel void circles(__global const float *at, __global float *image, float soft, float size, float count) {
  int p = get_global_id(0);                              // one work-item for each pixel
  float total = 0;
  for (int c = 0; c < (int)count; c++) {
    float dx = (p % (int)size) / size - at[3 * c], dy = (p / (int)size) / size - at[3 * c + 1];
    total += 1 / (1 + exp((sqrt(dx * dx + dy * dy + 1e-6f) - at[3 * c + 2]) * soft));
  }
  image[p] = total;
}"""


def in_numpy(at, soft, size, count):
    del count
    y, x = np.indices((int(size), int(size)), np.float32).reshape(2, -1, 1) / np.float32(size)
    d = np.sqrt((x - at[:, 0]) ** 2 + (y - at[:, 1]) ** 2 + 1e-6)
    return (1 / (1 + np.exp((d - at[:, 2]) * soft))).sum(1).astype(np.float32)


def grad_in_numpy(g, at, soft, size):
    y, x = np.indices((int(size), int(size)), np.float32).reshape(2, -1, 1) / np.float32(size)
    dx, dy = x - at[:, 0], y - at[:, 1]
    d = np.sqrt(dx**2 + dy**2 + 1e-6)
    s = 1 / (1 + np.exp((d - at[:, 2]) * soft))
    slope = g[:, None] * s * (1 - s) * soft
    return np.stack([(slope * dx / d).sum(0), (slope * dy / d).sum(0), slope.sum(0)], 1).astype(np.float32)


circles_grad = tg.opencl_function(source=BACKWARD, entry="circles_grad", shape=(CIRCLES, 3), global_size=CIRCLES, numpy=grad_in_numpy)
circles = tg.opencl_function(source=FORWARD, entry="circles", shape=(SIZE**2,), numpy=in_numpy,
                             backward=lambda g, at, soft, size, count: circles_grad(g, at, soft, size))


@tg.trace
def step(at, target):
    def loss(at):
        image = 1 - tg.exp(-circles(at, 40.0, float(SIZE), float(CIRCLES)))
        return ((image - target) ** 2).mean()

    return tg.value_and_grad(loss)(at)


def run():
    letter = np.zeros((SIZE, SIZE), np.float32)
    letter[8:14, 10:38] = letter[8:40, 21:27] = 1                     # a T
    at = tg.cat([tg.rand(CIRCLES, 2) * 0.6 + 0.2, tg.full((CIRCLES, 1), 0.05)], 1)
    target = tg.from_numpy(letter.reshape(-1))
    first = in_numpy(at.numpy(), 40.0, SIZE, CIRCLES)
    wrong = (circles(at, 40.0, float(SIZE), float(CIRCLES)).numpy() - first).max()
    optimizer = tg.optim.Adam([at], lr=0.005)
    losses = []
    for _ in range(300):
        loss, at.grad = step(at, target)
        optimizer.step()
        losses.append(loss.item())
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.3))
    last = in_numpy(at.numpy(), 40.0, SIZE, CIRCLES)
    for axis, image, title in zip(axes, (letter, 1 - np.exp(-first), 1 - np.exp(-last)), ("target", "first", "last"), strict=True):
        axis.imshow(image.reshape(SIZE, SIZE), cmap="gray_r")
        axis.set_title(title)
    return {"first loss": losses[0], "last loss": losses[-1], "kernel beside NumPy": float(wrong)}, figure, step


if __name__ == "__main__":
    show.main(run)
