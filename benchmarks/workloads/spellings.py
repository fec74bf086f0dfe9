"""What is slow in one spelling where another is quick: a row for each, so that both can be seen. And small calls, where a call is all."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.derived import Derived

NUMBERS, POWERS, CELLS, STEPS, BONES = 10_000, 128, 100_000, 100, 22


class MixtureProductInFront(Derived):
    name = "einsum-front"
    title = "the same with the batch in front: kij,knj->kni"
    tolerance = 1e-10

    def data(self, rng):
        return {"matrices": rng.standard_normal((200, 20, 20)), "points": rng.standard_normal((200, 1000, 20))}

    def function(self, t, F, matrices, points):
        return t.einsum("kij,knj->kni", matrices, points)

    def jax_function(self, matrices, points):
        import jax.numpy as jnp

        return jnp.einsum("kij,knj->kni", matrices, points)


class SquaresAndProduct(Derived):
    tolerance = 1e-10

    def __init__(self, coordinates: int) -> None:
        self.coordinates, self.name = coordinates, f"squares-{coordinates}"
        self.title = f"squares of 10,000 rows of {coordinates}, summed, less the product with 100 centres, float64"

    def data(self, rng):
        return {"points": rng.standard_normal((10_000, self.coordinates)), "centres": rng.standard_normal((100, self.coordinates))}

    def function(self, t, F, points, centres):
        return (points**2).sum(1)[:, None] - points @ centres.T

    jax_function = lambda self, points, centres: self.function(None, None, points, centres)  # noqa: E731 (the names are the same)


class Shift(Derived):
    """A neighbour's value in each step: `by` is how it is written. (In torch a Python loop.)"""

    tolerance = 1e-10
    torch = torch_compile = None

    def __init__(self, by: str) -> None:
        self.by, self.name = by, f"shift-{by}"
        self.title = f"{STEPS} steps in which {CELLS:,} cells are moved on by {by}, float64"

    def data(self, rng):
        return {"inflow": rng.standard_normal(1), "y": rng.standard_normal(CELLS)}

    def _step(self, cat: Any, roll: Any, inflow: Any) -> Any:
        return lambda y, _: (0.5 * (cat([inflow, y[:-1]]) if self.by == "cat" else roll(y, 1)) + 0.5 * y, None)

    def function(self, t, F, inflow, y):
        return t.scan(self._step(t.cat, t.roll, inflow), y, None, STEPS)[0]

    def jax_function(self, inflow, y):
        import jax
        import jax.numpy as jnp

        return jax.lax.scan(self._step(jnp.concatenate, jnp.roll, inflow), y, None, length=STEPS)[0]


class Decay(Derived):
    """A step that depends on a counter, which is carried beside the elements. (In torch a Python loop.)"""

    name = "scan-counter"
    title = f"{STEPS} steps of {CELLS:,} elements and a counter, float64"
    tolerance = 1e-10
    torch = torch_compile = None

    def data(self, rng):
        return {"y": rng.standard_normal(CELLS), "first": rng.random(())}

    def _step(self, v: Any, _: Any) -> Any:
        return (0.99 * v[0] + 0.001 / (1 + v[1]), v[1] + 1.0), None

    def function(self, t, F, y, first):
        return t.scan(self._step, (y, first), None, STEPS)[0][0]

    def jax_function(self, y, first):
        import jax

        return jax.lax.scan(self._step, (y, first), None, length=STEPS)[0][0]


class Polynomial(Derived):
    """A polynomial of degree 127 at many places: `by` powers, or by Horner's rule. (In torch that is a Python loop.)"""

    tolerance = 1e-9
    torch = torch_compile = None

    def __init__(self, by: str, gradient: bool = False, numbers: int = NUMBERS) -> None:
        self.by, self.gradient, self.numbers = by, gradient, numbers
        self.name = f"polynomial-{by}{'-gradient' * gradient}{f'-{numbers}' * (numbers != NUMBERS)}"
        how = "vander(t) @ c" if by == "vander" else "a Horner scan"
        self.title = f"polynomial of {POWERS} coefficients at {numbers:,} places by {how}, float64{': value and gradient' * gradient}"
        self.wrt = ("coefficients",) if gradient else ()

    def data(self, rng):
        return {"places": rng.uniform(-1, 1, self.numbers), "coefficients": rng.standard_normal(POWERS)}

    def function(self, t, F, places, coefficients):
        if self.by == "vander":
            y = t.vander(places, POWERS) @ coefficients
        else:
            y = t.scan(lambda y, c: (y * places + c, None), t.zeros_like(places), coefficients)[0]
        return (y * y).sum() if self.gradient else y

    def jax_function(self, places, coefficients):
        import jax
        import jax.numpy as jnp

        if self.by == "vander":
            y = jnp.vander(places, POWERS) @ coefficients
        else:
            y = jax.lax.scan(lambda y, c: (y * places + c, None), jnp.zeros_like(places), coefficients)[0]
        return (y * y).sum() if self.gradient else y


class SmallIndex(Derived):
    """What an index costs a call: made in the traced body of a tensor, or of a list."""

    burst = 100
    tolerance = 1e-6

    def __init__(self, of: str) -> None:
        self.of, self.name = of, f"index-{of}"
        self.title = f"3 of 10 numbers by an index that is a {of}, doubled and summed, per call"

    def data(self, rng):
        return {"x": rng.standard_normal(10, dtype=np.float32)}

    def function(self, t, F, x):
        return (x[t.tensor([1, 3, 5]) if self.of == "tensor" else [1, 3, 5]] * 2).sum()

    def jax_function(self, x):
        import jax.numpy as jnp

        return (x[jnp.array([1, 3, 5])] * 2).sum()


class Scalar(Derived):
    name = "scalar"
    title = "a function of one number, waited for at every call"
    tolerance = 1e-6

    def data(self, rng):
        return {"x": np.float32(1.5) + rng.random((), dtype=np.float32)}

    def function(self, t, F, x):
        return t.sin(x) * x + 1

    def jax_function(self, x):
        import jax.numpy as jnp

        return jnp.sin(x) * x + 1


class Bones(Derived):
    name = "bones"
    title = f"positions of {BONES} bones, products of 4 x 4 along a tree, and their forward Jacobian by all angles, float64"
    tolerance = 1e-9
    torch = torch_compile = None

    def data(self, rng):
        return {"angles": rng.standard_normal((BONES, 3)), "base": np.eye(4) + 0.1 * rng.standard_normal((BONES, 4, 4))}

    def _positions(self, t: Any, base: Any) -> Any:
        def bone(a: Any) -> Any:
            zero = a[0] * 0
            c, s, one = t.cos(a[0]), t.sin(a[0]), zero + 1
            rows = (c, -s, zero, a[1]), (s, c, zero, a[2]), (zero, zero, one, zero), (zero, zero, zero, one)
            return t.stack([t.stack(row) for row in rows])

        def positions(angles: Any) -> Any:
            found: list[Any] = []
            for i in range(BONES):
                own = base[i] @ bone(angles[i])
                found.append(found[(i - 1) // 2] @ own if i else own)
            return t.stack(found)[:, :3, 3]

        return positions

    def function(self, t, F, angles, base):
        return t.func.jacfwd(self._positions(t, base))(angles)

    def jax_function(self, angles, base):
        import jax
        import jax.numpy as jnp

        return jax.jacfwd(self._positions(jnp, base))(angles)


SPELLINGS = [
    MixtureProductInFront(),
    SquaresAndProduct(16),
    SquaresAndProduct(17),
    Shift("cat"),
    Shift("roll"),
    Decay(),
    Polynomial("vander"),
    Polynomial("horner"),
    Polynomial("horner", numbers=100_000),
    Polynomial("horner", gradient=True),
    Polynomial("horner", gradient=True, numbers=100_000),
    Polynomial("horner", gradient=True, numbers=1_000_000),
    SmallIndex("tensor"),
    SmallIndex("list"),
    Scalar(),
    Bones(),
]
