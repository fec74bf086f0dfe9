"""Jacobians of which most entries are zero: of a stencil, and of bundle adjustment's residuals (GradBench's).

tracegrad finds the pattern in the function; JAX has no such function. Of the stencil, JAX computes the dense Jacobian and takes the same
entries of it. Of bundle adjustment it is told what tracegrad finds: that a residual depends on one camera and one point.
"""

from __future__ import annotations

from benchmarks.workloads.derived import Derived

SIDE = 48
CAMERAS, POINTS, OBSERVATIONS = 49, 2_000, 10_000


class StencilJacobian(Derived):
    name = "sparse-stencil"
    title = f"the Jacobian of a nonlinear stencil of 5 points, {SIDE} x {SIDE}, float64: its entries that are not zero"
    tolerance = 1e-10

    def data(self, rng):
        return {"field": rng.standard_normal((SIDE, SIDE))}

    def function(self, t, F, field):
        def residual(u):
            return u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u + u.exp()

        return t.func.sparse_jacobian(residual)(field).values

    torch = torch_compile = None

    def jax_function(self, field):
        import jax
        import jax.numpy as jnp
        import numpy as np

        def residual(u):
            return jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u + jnp.exp(u)

        number = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
        near = [number, *(np.roll(number, by, d) for d in (0, 1) for by in (1, -1))]
        columns = np.sort(np.stack(near, -1).reshape(-1, 5), -1).reshape(-1)
        dense = jax.jacfwd(residual)(field).reshape(SIDE * SIDE, SIDE * SIDE)
        return dense[np.repeat(np.arange(SIDE * SIDE), 5), columns]


def projected(cos, stack, norm, cross, camera, point):
    """Where cameras (..., 11) see points (..., 3): rotated, moved, with radial distortion."""
    rotation, centre, focal, middle, radial = camera[..., :3], camera[..., 3:6], camera[..., 6:7], camera[..., 7:9], camera[..., 9:11]
    angle = norm(rotation) + 1e-9
    axis = rotation / angle
    away = point - centre
    along = (axis * away).sum(-1)[..., None] * axis
    sine = cos(angle - 1.5707963267948966)
    turned = away * cos(angle) + cross(axis, away) * sine + along * (1 - cos(angle))
    flat = turned[..., :2] / turned[..., 2:]
    far = (flat * flat).sum(-1)[..., None]
    return flat * (1 + radial[..., :1] * far + radial[..., 1:] * far * far) * focal + middle


class BundleAdjustment(Derived):
    name = "sparse-bundle"
    title = f"Jacobian of bundle adjustment's residuals, {OBSERVATIONS:,} observations by {CAMERAS} cameras of {POINTS:,} points, float64"
    tolerance = 1e-9

    def data(self, rng):
        points = rng.standard_normal((POINTS, 3)) + [0, 0, 10.0]
        return {"cameras": rng.standard_normal((CAMERAS, 11)) * 0.1, "points": points,
                "camera": rng.integers(0, CAMERAS, OBSERVATIONS), "point": rng.integers(0, POINTS, OBSERVATIONS)}

    def tracegrad(self, **inputs):
        """The pattern is that of these indices, which the program compares with those that it gets."""
        self.told = inputs["camera"].numpy(), inputs["point"].numpy()
        return super().tracegrad(**inputs)

    def function(self, t, F, cameras, points, camera, point):
        def residuals(cameras, points):
            return projected(t.cos, t.stack, lambda x: x.norm(dim=-1, keepdim=True), t.linalg.cross, cameras[camera], points[point])

        known = list(zip((camera, point), self.told, strict=True))
        by_camera, by_point = t.func.sparse_jacobian(residuals, argnums=(0, 1), known=known)(cameras, points)
        return by_camera.values, by_point.values

    torch = torch_compile = None

    def jax_function(self, cameras, points, camera, point):
        import jax
        import jax.numpy as jnp
        import numpy as np

        def residual(c, p):
            return projected(jnp.cos, jnp.stack, lambda x: jnp.linalg.norm(x, axis=-1, keepdims=True), jnp.cross, c, p)

        by_camera, by_point = jax.vmap(jax.jacfwd(residual, argnums=(0, 1)))(cameras[camera], points[point])
        own = np.flatnonzero([j != 8 - i for i in (0, 1) for j in range(11)])      # the other coordinate's middle is no entry
        return by_camera.reshape(-1, 22)[:, own].ravel(), by_point.ravel()
