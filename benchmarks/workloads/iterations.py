"""Loops of small steps that end by a condition: as minimisers and root finders are (GradBench's particle and saddle)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.workloads.derived import Derived

STEPS, ROWS = 20_000, 512


class WhileLoop(Derived):
    """The condition is read at every step; torch's loop would be Python's."""

    name = "while-loop"
    title = f"gradient descent in 4 dimensions until it has converged, some {STEPS:,} steps, float64"
    tolerance = 1e-9
    torch = torch_compile = None

    def data(self, rng):
        a = rng.standard_normal((4, 4))
        return {"a": np.eye(4) + 0.02 * (a + a.T), "b": rng.standard_normal(4)}

    def _functions(self):
        def goes_on(v):
            return ((v[1] * v[1]).sum() > 1e-20) & (v[2] < STEPS)

        def step(a, b):
            def of(v):
                x = v[0] - 0.001 * v[1]
                return x, a @ x - b, v[2] + 1
            return of

        return goes_on, step

    def function(self, t, F, a, b):
        goes_on, step = self._functions()
        return t.while_loop(goes_on, step(a, b), (b, a @ b - b, t.tensor(0)))[0]

    def jax_function(self, a, b):
        import jax

        goes_on, step = self._functions()
        return jax.lax.while_loop(goes_on, step(a, b), (b, a @ b - b, 0))[0]


class WhileLoopGradient(Derived):
    """In JAX a scan of masked steps, since its while_loop has no reverse."""

    name = "while-loop-gradient"
    title = f"damped Newton's method for 4 roots, a while_loop of some 460 of at most {ROWS} steps: value and gradient, float64"
    wrt = ("x",)
    tolerance = 1e-9
    torch = torch_compile = None

    def data(self, rng):
        return {"x": 1.0 + rng.random(4)}

    def _functions(self, exp, x):
        return lambda y: abs(exp(y) - x * x - 2).max() > 1e-11, lambda y: y - 0.05 * (exp(y) - x * x - 2) / exp(y)

    def function(self, t, F, x):
        goes_on, step = self._functions(t.exp, x)
        return t.while_loop(goes_on, step, x, max_iterations=ROWS).sum()

    def jax_function(self, x):
        import jax
        import jax.numpy as jnp

        goes_on, step = self._functions(jnp.exp, x)
        return jax.lax.scan(lambda y, _: (jnp.where(goes_on(y), step(y), y), None), x, None, length=ROWS)[0].sum()


class ScanUntil(Derived):
    """In JAX a scan of masked steps, since its while_loop has no reverse."""

    name = "scan-until"
    title = f"Newton's method for 8 roots, ended by their residuals after some 40 of at most {ROWS} steps: value and gradient, float64"
    wrt = ("x",)
    tolerance = 1e-9
    torch = torch_compile = None

    def data(self, rng):
        return {"x": 1.0 + rng.random(8)}

    def function(self, t, F, x):
        def step(y, _):
            return y - 0.5 * (y.exp() - x * x - 2) / y.exp(), None

        return t.scan(step, x, None, ROWS, until=lambda y: (y.exp() - x * x - 2).abs().amax() < 1e-11)[0].sum()

    def jax_function(self, x):
        import jax
        import jax.numpy as jnp

        def step(y, _):
            over = jnp.abs(jnp.exp(y) - x * x - 2).max() < 1e-11
            return jnp.where(over, y, y - 0.5 * (jnp.exp(y) - x * x - 2) / jnp.exp(y)), None

        return jax.lax.scan(step, x, None, length=ROWS)[0].sum()


def descent(m: Any, objective: Callable[..., Any], gradient: Callable[..., Any], start: Any) -> Any:
    """Where `objective` is least, by steps whose width doubles after ten that went down and halves after one that went up."""
    length = lambda v: m.sqrt((v * v).sum())  # noqa: E731

    def step(v: Any) -> Any:
        x, fx, gx, width, count, over = v

        def move(_: Any) -> Any:
            new = x - width * gx

            def compare(_: Any) -> Any:
                f_new = objective(new)
                return m.cond(f_new < fx, lambda _: (new, f_new, gradient(new), width, count + 1, over),
                              lambda _: (x, fx, gx, width / 2, count * 0, over), x)

            return m.cond(length(new - x) <= 1e-5, end, compare, x)

        def end(_: Any) -> Any:
            return x, fx, gx, width, count, ~over

        def widen(_: Any) -> Any:
            return x, fx, gx, width * 2, count * 0, over

        return m.cond(length(gx) <= 1e-5, end, lambda _: m.cond(count == 10, widen, move, x), x)

    first = start, objective(start), gradient(start), m.array(1e-5), m.array(0), m.array(False)
    return m.while_loop(lambda v: ~v[5], step, first, 8 * ROWS)[0]


class Minimiser(Derived):
    """GradBench's evals of derivatives within derivatives: the outer and the inner one forward ("f") or in reverse ("r").

    JAX's while_loop has no reverse: there the outer one is forward in any case.
    """

    torch = torch_compile = None
    tolerance = 1e-8

    def __init__(self, modes: str) -> None:
        self.outer, self.inner = modes
        self.name = f"{self.of}-{modes}"
        words = {"f": "forward", "r": "reverse"}
        self.title = f"{self.about}: {words[self.outer]} over {words[self.inner]}, float64"

    of: str
    about: str

    def _found(self, m: Any, outer: Callable[..., Any], inner: Callable[..., Any], start: Any) -> Any:
        raise NotImplementedError

    def function(self, t, F, start):
        by = {"f": t.func.jacfwd, "r": t.func.grad}
        m = SimpleNamespace(sqrt=t.sqrt, cat=t.cat, cond=lambda p, yes, no, x: t.cond(p, yes, no, (x,)),
                            array=lambda x: t.tensor(x, dtype=t.float64 if isinstance(x, (float, list)) else None),
                            while_loop=lambda goes_on, step, v, most: t.while_loop(goes_on, step, v, max_iterations=most))
        return self._found(m, by[self.outer], by[self.inner], start)

    def jax_function(self, start):
        import jax
        import jax.numpy as jnp

        m = SimpleNamespace(sqrt=jnp.sqrt, cat=jnp.concatenate, cond=jax.lax.cond, array=jnp.asarray,
                            while_loop=lambda goes_on, step, v, most: jax.lax.while_loop(goes_on, step, v))
        return self._found(m, jax.jacfwd, {"f": jax.jacfwd, "r": jax.grad}[self.inner], start)


class Saddle(Minimiser):
    of, about = "saddle", "the saddle point of a quadratic form, by a descent in whose objective a descent is"

    def data(self, rng):
        return {"start": np.array([1.0, 1.0])}

    def _found(self, m, outer, inner, start):
        def form(a, b):
            return (a * a).sum() - (b * b).sum()

        def cost(a):
            return form(a, descent(m, lambda b: -form(a, b), inner(lambda b: -form(a, b)), start))

        a = descent(m, cost, outer(cost), start)
        return m.cat([a, descent(m, lambda b: -form(a, b), outer(lambda b: -form(a, b)), start)])


class Particle(Minimiser):
    of, about = "particle", "where a charge has to be for a particle to land at 0, by a descent over trajectories"

    def data(self, rng):
        return {"start": np.array([0.0])}

    def _found(self, m, outer, inner, start):
        def squared_landing(w):
            def potential(x):
                near = [x - m.cat([m.array([10.0]), 10 - w]), x - m.array([10.0, 0.0])]
                return sum(1 / m.sqrt((d * d).sum()) for d in near)

            def step(v):
                x, speed, _ = v
                new = x + 0.1 * speed
                above = new[1] > 0
                return m.cond(above, lambda _: (new, speed - 0.1 * inner(potential)(x), above), lambda _: (x, speed, above), x)

            x, speed, _ = m.while_loop(lambda v: v[2], step, (m.array([0.0, 8.0]), m.array([0.75, 0.0]), m.array(True)), ROWS)
            landed = x[0] - x[1] / speed[1] * speed[0]
            return landed * landed

        return descent(m, squared_landing, outer(squared_landing), start)


MINIMISERS = [kind(modes) for kind in (Saddle, Particle) for modes in ("ff", "fr", "rf", "rr")]
