"""Single operations: sums, extrema, running sums, sorting, selection, random numbers, pooling, convolution, filters, interpolation."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.derived import Derived, normal


class Matrix(Derived):
    """Of a matrix of 4096 x 4096 floats."""

    shape: tuple[int, ...] = (4096, 4096)

    def data(self, rng):
        return {"x": normal(rng, *self.shape)}


class Sums(Matrix):
    name, title = "sums", "sums of 4096x4096: all, of rows, of columns"
    tolerance = 1e-4

    def function(self, t, F, x):
        return x.sum(), x.sum(1), x.sum(0)

    def jax_function(self, x):
        return x.sum(), x.sum(1), x.sum(0)

    def pytensor_function(self, pt, x):
        return x.sum(), x.sum(1), x.sum(0)

    def drjit(self, x):
        import drjit as dr
        from drjit.llvm.ad import TensorXf

        matrix = TensorXf(x, self.shape)
        return lambda: (dr.sum(x), dr.block_sum(x, self.shape[1]), dr.sum(matrix, axis=0).array)


class ArgMax(Matrix):
    name, title = "argmax", "argmax of the rows of 4096x4096"

    def function(self, t, F, x):
        return x.argmax(1)

    def jax_function(self, x):
        return x.argmax(1)

    def pytensor_function(self, pt, x):
        return pt.argmax(x, axis=1)


class RunningSum(Matrix):
    name, title = "cumsum", "running sums of the rows of 4096x4096"
    tolerance = 1e-4

    def function(self, t, F, x):
        return x.cumsum(1)

    def jax_function(self, x):
        return x.cumsum(1)

    def pytensor_function(self, pt, x):
        return pt.cumsum(x, axis=1)

    def drjit(self, x):
        import drjit as dr

        return lambda: (dr.block_prefix_sum(x, self.shape[1], exclusive=False),)


class Sort(Matrix):
    name, title, shape = "sort", "sort of the rows of 1024x4096", (1024, 4096)

    def function(self, t, F, x):
        return x.sort(1)[0]

    def jax_function(self, x):
        import jax.numpy as jnp

        return jnp.sort(x, 1)

    def pytensor_function(self, pt, x):
        return pt.sort(x, axis=1)


class TopK(Matrix):
    name, title, shape = "topk", "the 10 largest of each row of 1024x4096", (1024, 4096)

    def function(self, t, F, x):
        return x.topk(10, 1)[0]

    def jax_function(self, x):
        import jax

        return jax.lax.top_k(x, 10)[0]


class Normal(Derived):
    """Compared is what the numbers have in common: the mean, the mean square and the part below zero."""

    name, title = "randn", "16M normal random numbers"
    tolerance = 1e-2
    size = 1 << 24

    def data(self, rng):
        return {}

    def view(self, results):
        x = results[0].astype(np.float64)
        return (np.array([1.0 + x.mean(), (x * x).mean(), (x < 0.0).mean()]),)

    def reference(self, **inputs):
        return (np.array([1.0, 1.0, 0.5]),)

    def function(self, t, F):
        return t.randn(self.size)

    def jax(self):
        import jax

        @jax.jit
        def draw(key):
            key, used = jax.random.split(key)
            return key, jax.random.normal(used, (self.size,), jax.numpy.float32)

        key = jax.random.key(0)

        def run():
            nonlocal key
            key, x = draw(key)
            return (x,)

        return run

    def drjit(self):
        import drjit as dr
        from drjit.llvm.ad import Float

        generator = dr.rng(seed=0)
        return lambda: (generator.normal(Float, self.size),)


class Pooling(Derived):
    name, title = "max-pool", "max pooling 3x3 by 2 of 32x64x56x56: value and gradient"
    wrt = ("x",)
    tolerance = 1e-4

    def data(self, rng):
        return {"x": normal(rng, 32, 64, 56, 56), "factor": normal(rng, 32, 64, 28, 28)}

    def function(self, t, F, x, factor):
        return (F.max_pool2d(x, 3, 2, 1) * factor).sum()

    def jax_function(self, x, factor):
        import jax

        pooled = jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))
        return (pooled * factor).sum()


class Conv1d(Derived):
    name, title = "conv1d", "conv1d 16x64x1024, 64 kernels of 5: value and gradients"
    wrt = ("x", "weight")
    tolerance = 1e-3

    def data(self, rng):
        return {"x": normal(rng, 16, 64, 1024), "weight": normal(rng, 64, 64, 5, scale=0.05), "factor": normal(rng, 16, 64, 1024)}

    def function(self, t, F, x, weight, factor):
        return (F.conv1d(x, weight, padding=2) * factor).sum()

    def jax_function(self, x, weight, factor):
        import jax

        return (jax.lax.conv_general_dilated(x, weight, (1,), ((2, 2),)) * factor).sum()


class ImageEdges(Derived):
    name, title = "image-edges", "edges of a smoothed 1024x1024 image of bytes, mirrored around it"
    tolerance = 1e-4

    def data(self, rng):
        return {"image": rng.integers(0, 256, (1024, 1024)).astype(np.uint8), "weights": np.array([1, 4, 6, 4, 1], np.float32) / 16}

    def function(self, t, F, image, weights):
        x = F.pad((image.to(weights.dtype) / 255)[None, None], (2, 2, 2, 2), mode="reflect")
        smooth = F.conv2d(F.conv2d(x, weights.reshape(1, 1, 5, 1)), weights.reshape(1, 1, 1, 5))[0, 0]
        return self._length(t, smooth)

    def _length(self, t, smooth):
        across, down = smooth[1:-1, 2:] - smooth[1:-1, :-2], smooth[2:, 1:-1] - smooth[:-2, 1:-1]
        return t.sqrt(across * across + down * down)

    def jax_function(self, image, weights):
        import jax.numpy as jnp

        x = jnp.pad(image.astype(weights.dtype) / 255, 2, mode="reflect")
        smooth = sum(weights[i] * x[i:i + 1024] for i in range(5))
        smooth = sum(weights[i] * smooth[:, i:i + 1024] for i in range(5))
        return self._length(jnp, smooth)


class Interpolation(Derived):
    name, title = "interpolation", "200,000 values between 1,000 sorted places: a search, and a line, float64"
    tolerance = 1e-10

    def data(self, rng):
        return {"places": np.sort(rng.random(1000)), "heights": rng.standard_normal(1000), "at": rng.random(200_000)}

    def _between(self, i, places, heights, at):
        return heights[i] + (at - places[i]) / (places[i + 1] - places[i]) * (heights[i + 1] - heights[i])

    def function(self, t, F, places, heights, at):
        return self._between(t.clamp(t.searchsorted(places, at) - 1, 0, len(places) - 2), places, heights, at)

    def jax_function(self, places, heights, at):
        import jax.numpy as jnp

        return self._between(jnp.clip(jnp.searchsorted(places, at) - 1, 0, len(places) - 2), places, heights, at)


class Bilinear(Derived):
    name, title = "bilinear", "a million points of a 512x512 image, each between four pixels"

    def data(self, rng):
        return {"image": normal(rng, 512, 512), "at": (rng.random((2, 1 << 20)) * 510).astype(np.float32)}

    def _between(self, image, low, near, place):
        y, x = low
        (b, a), (down, right) = place - near, (y + 1, x + 1)
        return (1 - b) * ((1 - a) * image[y, x] + a * image[y, right]) + b * ((1 - a) * image[down, x] + a * image[down, right])

    def function(self, t, F, image, at):
        near = t.floor(at)
        return self._between(image, near.to(t.int64), near, at)

    def jax_function(self, image, at):
        import jax.numpy as jnp

        near = jnp.floor(at)
        return self._between(image, near.astype(np.int64), near, at)
