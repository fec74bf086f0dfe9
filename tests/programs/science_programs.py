"""More programs as in user_programs.py: of scientists, with derivatives inside. They go into its PROGRAMS."""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

from tests.programs.field_programs import iterations
from tests.programs.user_programs import normal, program, rng


def choice(T: Any, test: Any, yes: Any, no: Any, x: Any) -> Any:
    """tg.cond, or what it means."""
    return T.cond(test, yes, no, x) if hasattr(T, "scan") else (yes if bool(test) else no)(x)


@program(normal(41), normal(3))
def weighted_fluxes(T: Any, u: Any, rows: Any) -> Any:
    """WENO5 for Burgers' equation: weights of smoothness, fluxes that are split by the largest speed (Jiang and Shu 1996)."""
    def reconstructed(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        ways = T.stack([2 * a - 7 * b + 11 * c, -b + 5 * c + 2 * d, 2 * c + 5 * d - e]) / 6
        rough = T.stack([13 / 12 * (a - 2 * b + c) ** 2 + 0.25 * (a - 4 * b + 3 * c) ** 2,
                         13 / 12 * (b - 2 * c + d) ** 2 + 0.25 * (b - d) ** 2,
                         13 / 12 * (c - 2 * d + e) ** 2 + 0.25 * (3 * c - 4 * d + e) ** 2])
        weights = T.tensor([0.1, 0.6, 0.3], dtype=u.dtype)[:, None] / (1e-6 + rough) ** 2
        return (weights / weights.sum(0) * ways).sum(0)

    def rate(u: Any) -> Any:
        speed = u.abs().max().detach()
        right, left = 0.5 * (0.5 * u * u + speed * u), 0.5 * (0.5 * u * u - speed * u)
        flux = reconstructed(*[right.roll(k) for k in (2, 1, 0, -1, -2)]) + reconstructed(*[left.roll(k) for k in (-3, -2, -1, 0, 1)])
        return -8 * (flux - flux.roll(1))

    def body(u: Any, row: Any) -> Any:
        first = u + 0.01 * rate(u)
        u = 0.5 * u + 0.5 * (first + 0.01 * rate(first)) + 0.01 * row
        return u, (u.max(), u)

    u, (top, path) = iterations(T, body, u, rows)
    return (u * u).sum() + top.sum(), path


@program(rng.uniform(0, 16, 50), normal(50), normal(5))
def particles_in_cells(T: Any, x: Any, v: Any, rows: Any) -> Any:
    """Charges are added to a grid, the field is solved by transforms and gathered."""
    n = 16
    k = T.fft.rfftfreq(n, 1 / n, dtype=x.dtype) * (2 * pi / n)

    def body(state: Any, row: Any) -> Any:
        x, v = state
        f = x - T.floor(x)
        i = T.floor(x).long() % n
        rho = T.zeros(n, dtype=x.dtype).index_add(0, i, 1 - f).scatter_add(0, (i + 1) % n, f) - len(x) / n
        potential = T.fft.rfft(rho)[1:] / k[1:] ** 2
        field = T.fft.irfft(T.cat([T.zeros(1, dtype=potential.dtype), -1j * k[1:] * potential]), n=n)
        v = v - (0.05 + 0.01 * row) * (field[i] * (1 - f) + T.take(field, (i + 1) % n) * f)
        x = T.remainder(x + 0.1 * v, n)
        return (x, v), ((field * field).sum(), (v * v).sum())

    (x, v), (of_field, of_motion) = iterations(T, body, (x, v), rows)
    return of_field.sum() + of_motion.log().sum() + x.cos().sum(), x, v


@program(normal(9, 8), normal(9, 8), normal(9, 8), normal(4))
def semi_lagrangian(T: Any, u: Any, v: Any, c: Any, rows: Any) -> Any:
    """Values are carried from where they were: gathers at places that a derivative goes through."""
    high, wide = u.shape
    y, x = T.meshgrid(T.arange(high, dtype=u.dtype), T.arange(wide, dtype=u.dtype), indexing="ij")

    def at(a: Any, y: Any, x: Any) -> Any:
        y, x = T.remainder(y, high), x % wide
        i, j = T.floor(y).long() % high, x.floor().long() % wide
        f, g, down, right = y - T.floor(y), x - T.floor(x), (i + 1) % high, (j + 1) % wide
        return (a[i, j] * (1 - f) + a[down, j] * f) * (1 - g) + (a[i, right] * (1 - f) + a[down, right] * f) * g

    def body(state: Any, row: Any) -> Any:
        back = y - (0.7 + 0.1 * row) * state[1], x - 0.7 * state[0]
        state = tuple(at(a, *back) for a in state)
        return state, (state[2].std(), state[0])

    (u, v, c), (spread, path) = iterations(T, body, (u, v, c), rows)
    return (c * c).sum() + (u * v).sum() + spread.sum(), path, c


@program(normal(12, 12), normal(6))
def by_its_state(T: Any, x: Any, rows: Any) -> Any:
    """What an iteration does depends on a counter and on values; the branches read rows and counts."""
    def body(carry: Any, row: Any) -> Any:
        state, x = carry
        x = choice(T, state == 0, lambda x: x.sin() + row,
                   lambda x: choice(T, x.sum() > 0, lambda x: x * row * state, lambda x: 0.1 * x.cumsum(0) - state, x), x)
        return ((state + 1) % 3, x), (x.std(), x[:, 3])

    (state, x), (spread, path) = iterations(T, body, (T.tensor(0), x), rows)
    return (x * x).mean() + spread.sum(), path, state


@program(normal(10, 1), np.array([0.5, 0.0, 0.1, 0.0]))
def differential_programming(T: Any, controls: Any, start: Any) -> Any:
    """iLQR for a cart and a pendulum: Jacobians and Hessians of all times by vmap, gains by a recursion, and the way that they give."""
    def move(x: Any, u: Any) -> Any:
        angle, turning, _, speed = x.unbind(0)
        push = u[0]
        rate = [turning, T.sin(angle) + push * T.cos(angle), speed, push - 0.2 * T.sin(angle)]
        return x + 0.1 * T.stack(rate)

    def cost(x: Any, u: Any) -> Any:
        return 0.5 * (x * x).sum() + 0.05 * (u * u).sum() + T.cos(x[0]) * u.cosh().sum()

    way = [start]
    for u in controls:
        way.append(move(way[-1], u))
    states = T.stack(way)
    by_x, by_u = T.func.vmap(T.func.jacrev(move, argnums=(0, 1)))(states[:-1], controls)
    slope_x, slope_u = T.func.vmap(T.func.grad(cost, argnums=(0, 1)))(states[:-1], controls)
    (curve_xx, _), (curve_ux, curve_uu) = T.func.vmap(T.func.hessian(cost, argnums=(0, 1)))(states[:-1], controls)
    slope, curve, gains = states[-1], T.eye(4, dtype=start.dtype), []
    for t in range(9, -1, -1):
        q_x, q_u = slope_x[t] + by_x[t].T @ slope, slope_u[t] + by_u[t].T @ slope
        q_xx, q_uu = curve_xx[t] + by_x[t].T @ curve @ by_x[t], curve_uu[t] + by_u[t].T @ curve @ by_u[t]
        q_ux = curve_ux[t] + by_u[t].T @ curve @ by_x[t]
        gain = -T.linalg.solve(q_uu, T.cat([q_u[:, None], q_ux], 1))
        slope, curve = q_x + q_ux.T @ gain[:, 0], q_xx + q_ux.T @ gain[:, 1:]
        gains.append(gain)
    x, total = start, 0.0
    for t in range(10):
        u = controls[t] + 0.7 * gains[9 - t][:, 0] + gains[9 - t][:, 1:] @ (x - states[t])
        total, x = total + cost(x, u), move(x, u)
    return total + (x * x).sum(), T.stack(gains), x


@program(rng.uniform(-1, 1, (3, 5)))
def quantum_circuit(T: Any, angles: Any) -> Any:
    """Gates on five quantum bits, the mean of each, and how entangled one is with the others."""
    n = angles.shape[1]
    state = T.zeros(2 ** n, dtype=T.complex128)
    state[0] = 1
    state = state.reshape((2,) * n)
    mixing = T.tensor([[1, 1], [1, -1]], dtype=T.complex128) / 2 ** 0.5

    def through(state: Any, gate: Any, bit: int) -> Any:
        return T.tensordot(gate, state, dims=([1], [bit])).movedim(0, bit)

    def turned(angle: Any) -> Any:
        c, s = T.cos(angle / 2), T.sin(angle / 2)
        return T.stack([T.stack([c, -s]), T.stack([s, c])]).to(T.complex128) @ T.diag(T.exp(T.stack([-0.35j * angle, 0.35j * angle])))

    for bit in range(n):
        state = through(state, mixing, bit)
    for layer in angles:
        for bit in range(n):
            state = through(state, turned(layer[bit]), bit)
        for bit in range(n - 1):
            sign = T.ones(2, 2, dtype=state.dtype)
            sign[1, 1] = -1
            state = state * sign.reshape([2 if d in (bit, bit + 1) else 1 for d in range(n)])
        state = T.stack([state[0], state[1].flip(0)])
    chances = state.abs() ** 2
    means = T.stack([chances.sum([d for d in range(n) if d != bit]) @ T.tensor([1.0, -1.0], dtype=chances.dtype) for bit in range(n)])
    shares = T.linalg.eigvalsh(T.einsum("abcde,fbcde->af", state, state.conj()))
    return (means * T.arange(1, 6)).sum() - (shares * shares.log()).sum(), means, chances


@program(rng.uniform(0.5, 2, 4), rng.uniform(0, 2, (4, 3)), normal(4))
def self_consistent_field(T: Any, widths: Any, centres: Any, rows: Any) -> Any:
    """Hartree and Fock's equations of four Gaussians around two nuclei: integrals, and orbitals of the density that they make."""
    def boys(t: Any) -> Any:
        t_ = T.where(t < 1e-8, 1.0, t)
        return T.where(t < 1e-8, 1 - t / 3, 0.5 * (pi / t_) ** 0.5 * T.erf(t_.sqrt()))

    far = (centres[:, None] - centres).square().sum(-1)
    p = widths[:, None] + widths
    mu = widths[:, None] * widths / p
    overlap = (pi / p) ** 1.5 * T.exp(-mu * far)
    between = (widths[:, None, None] * centres[:, None] + widths[None, :, None] * centres) / p[..., None]
    drawn = sum(-2.4 * pi / p * T.exp(-mu * far) * boys(p * (between - centres[k]).square().sum(-1)) for k in range(2))
    core = mu * (3 - 2 * mu * far) * overlap + drawn
    both, product = p[:, :, None, None] + p, p[:, :, None, None] * p
    apart = (between[:, :, None, None] - between).square().sum(-1)
    pairs = 2 * pi ** 2.5 / (product * both.sqrt()) * T.exp(-(mu * far)[:, :, None, None] - mu * far) * boys(product / both * apart)
    sizes, vectors = T.linalg.eigh(overlap)
    even = vectors @ T.diag(sizes ** -0.5) @ vectors.T

    def body(density: Any, row: Any) -> Any:
        fock = core + 2 * T.einsum("ijkl,kl->ij", pairs, density) - T.einsum("ikjl,kl->ij", pairs, density)
        orbitals = even @ T.linalg.eigh(even.T @ fock @ even)[1]
        share = 0.5 + 0.1 * row.tanh()
        density = share * density + (1 - share) * orbitals[:, :1] @ orbitals[:, :1].T
        return density, ((density * (core + fock)).sum(), density.diagonal())

    density, (energy, charges) = iterations(T, body, T.zeros(4, 4, dtype=widths.dtype), rows)
    return energy[-1] + energy.mean(), energy, charges, density


@program(normal(4, 5), np.array(0.44))
def transfer_matrices(T: Any, couplings: Any, inverse_temperature: Any) -> Any:
    """An Ising model on a ring times a line: its free energy, and the mean and the spread of the energy as derivatives of that."""
    spins = T.tensor([1.0, -1.0], dtype=couplings.dtype)
    rings = T.cartesian_prod(spins, spins, spins, spins)

    def log_z(couplings: Any, beta: Any) -> Any:
        v = T.zeros(16, dtype=couplings.dtype)
        for column in couplings.unbind(1):
            v = T.logsumexp(v[:, None] + beta * (rings @ rings.T + (rings * rings.roll(-1, 1) * column).sum(1)), 0)
        return T.logsumexp(v, 0)

    mean = T.func.grad(log_z, argnums=1)(couplings, inverse_temperature)
    spread = T.func.hessian(log_z, argnums=1)(couplings, inverse_temperature)
    aligned = T.func.grad(log_z)(couplings, inverse_temperature)
    return log_z(couplings, inverse_temperature) + mean + spread + aligned.square().sum(), mean, spread, aligned


@program(normal(6, 2), normal(12, 6, 3))
def langevin(T: Any, x: Any, noise: Any) -> Any:
    """Chains that follow a gradient and noise, and take a step or leave it; the Laplacian at their ends."""
    def energy(x: Any) -> Any:
        return (x[..., 0] ** 2 - 1) ** 2 + 0.5 * (x[..., 1] - x[..., 0] ** 2) ** 2

    def drift(x: Any) -> Any:
        return x - 0.08 * T.func.grad(lambda x: energy(x).sum())(x)

    def body(x: Any, z: Any) -> Any:
        y = drift(x) + 0.4 * z[:, :2]
        ratio = energy(x) - energy(y) - ((x - drift(y)) ** 2 - (y - drift(x)) ** 2).sum(-1) / 0.32
        taken = T.nn.functional.logsigmoid(z[:, 2]) < ratio
        x = T.where(taken[:, None], y, x)
        return x, (taken, energy(x), T.clamp(ratio, max=0.0).exp())

    x, (taken, levels, chances) = iterations(T, body, x, noise)
    bent = T.func.vmap(lambda x: T.trace(T.func.hessian(energy)(x)))(x)
    return levels.mean() + chances.mean() + bent.log1p().sum(), x, taken, levels


@program(normal(10, 10), normal(10))
def krylov(T: Any, a: Any, b: Any) -> Any:
    """Arnoldi's basis, written row by row into what it reads, and the exponential of its matrix."""
    basis, h = T.zeros(6, 10, dtype=a.dtype), T.zeros(6, 5, dtype=a.dtype)
    basis[0] = b / b.norm()
    for j in range(5):
        w = a @ basis[j].clone()
        for i in range(j + 1):
            part = basis[i].clone() @ w
            h[i, j] = part
            w = w - part * basis[i].clone()
        h[j + 1, j] = w.norm()
        basis[j + 1] = w / w.norm()
    grown = b.norm() * basis[:5].T @ T.linalg.matrix_exp(0.1 * h[:5])[:, 0]
    least = T.linalg.lstsq(h[:4, :3], T.nn.functional.pad(b.norm()[None], (0, 3))[:, None]).solution
    return grown.square().sum() + least.abs().sum(), grown, h, least
