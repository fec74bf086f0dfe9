"""More programs as in user_programs.py: graphs, boxes, lattices, meshes, chains, experts. They go into its PROGRAMS and TRAININGS."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.user_programs import filled, normal, program, results, rng, training


@program(normal(2, 260))
def overlap_add(T: Any, x: Any) -> Any:
    """A spectrogram by unfold, damped, and put together again by index_add and scatter_add."""
    window = T.hann_window(16, dtype=x.dtype)
    frames = x.unfold(-1, 16, 8) * window
    spectrum = T.fft.rfft(frames) * T.exp(-T.arange(9, dtype=x.dtype) * 0.1)
    pieces = T.fft.irfft(spectrum, n=16) * window
    places = (T.arange(frames.shape[1])[:, None] * 8 + T.arange(16)).reshape(-1)
    total = T.zeros_like(x).index_add(1, places, pieces.reshape(2, -1))
    weight = T.zeros(x.shape[1], dtype=x.dtype).scatter_add(0, places, (window * window).repeat(frames.shape[1]))
    back = total / weight.clamp_min(1e-3)
    return (back - x).square().mean() + spectrum.abs().sum(), back


@program(normal(34, 5), normal(130, 3), rng.integers(0, 34, 130), rng.integers(0, 34, 130),
         normal(5, 5, scale=0.3), normal(13, 1, scale=0.3))
def graph_attention(T: Any, x: Any, edges: Any, source: Any, target: Any, w: Any, a: Any) -> Any:
    """A softmax over the edges that enter a node, as they come and sorted; means, deviations and extrema of neighbours."""
    n, h = x.shape[0], x @ w
    score = T.nn.functional.leaky_relu(T.cat([h[source], h[target], edges], -1) @ a, 0.2).squeeze(-1)
    highest = T.full((n,), -1e30, dtype=x.dtype).scatter_reduce(0, target, score, "amax")
    e = T.exp(score - highest[target].detach())
    weight = e / T.zeros(n, dtype=x.dtype).index_add(0, target, e)[target]
    out = T.zeros_like(h).index_add(0, target, weight[:, None] * h[source])
    order = T.argsort(target, stable=True)
    ends = T.zeros(n, dtype=T.int64).index_add(0, target, T.ones_like(target)).cumsum(0)
    sums = T.cat([T.zeros(1, 5, dtype=x.dtype), x[source[order]].cumsum(0)])
    by_rows = sums[ends] - sums[T.cat([ends.new_zeros(1), ends[:-1]])]
    rows = target[:, None].expand(-1, 5)
    mean = T.zeros_like(h).scatter_reduce(0, rows, h[source], "mean", include_self=False)
    spread = (T.zeros_like(h).scatter_reduce(0, rows, h[source] ** 2, "mean", include_self=False) - mean ** 2).clamp_min(1e-3).sqrt()
    best = T.full_like(x, -5.0).index_reduce(0, target, x[source], "amax")
    return out.square().sum() + (by_rows * spread).sum() + best.sum() + mean.sin().sum(), out, by_rows, best


@program(rng.uniform(0, 10, (65, 2)), rng.uniform(0.5, 4, (65, 2)), normal(65))
def boxes(T: Any, corner: Any, size: Any, score: Any) -> Any:
    """How far boxes overlap, soft and hard suppression of the worse ones (Bodla et al. 2017)."""
    ends = corner + size
    inside = (T.minimum(ends[:, None], ends) - T.maximum(corner[:, None], corner)).clamp(min=0).prod(-1)
    area = size.prod(-1)
    shared = inside / (area[:, None] + area - inside)
    order = score.argsort(descending=True)
    above = shared[order][:, order].triu(1)
    kept = above.max(0).values < 0.5
    decayed = score[order] * T.exp(-(above ** 2) / 0.5).min(0).values
    return decayed.sum() + shared.log1p().mean(), shared, decayed, order, kept


@program(normal(9, 33, 31, scale=0.05))
def lattice_boltzmann(T: Any, f: Any) -> Any:
    """Flow past a wall: streaming by rolls, collisions, a row that is copied."""
    x, y = [0, 1, 0, -1, 0, 1, -1, -1, 1], [0, 0, 1, 0, -1, 1, 1, -1, -1]
    w = T.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, dtype=f.dtype)
    ex, ey = (T.tensor(e, dtype=f.dtype) for e in (x, y))
    f = f + w[:, None, None]
    for _ in range(3):
        f = T.stack([f[i].roll((x[i], y[i]), (0, 1)) for i in range(9)])
        density = f.sum(0)
        u, v = T.tensordot(ex, f, 1) / density, T.einsum("i,ixy->xy", ey, f) / density
        along = 3 * (ex[:, None, None] * u + ey[:, None, None] * v)
        f = f + (density * w[:, None, None] * (1 + along + 0.5 * along ** 2 - 1.5 * (u ** 2 + v ** 2)) - f) / 0.8
        f[:, 0, :] = f[:, 1, :].clone()
    return (u * u + v * v).sum() + density[3:7].std(), density, u, v


@program(normal(34, 2), np.stack([rng.permutation(34)[:3] for _ in range(68)]), normal(34))
def finite_elements(T: Any, points: Any, triangles: Any, u: Any) -> Any:
    """A stiffness matrix, put together by index_put and by scatter_add; what it solves."""
    n, corners = points.shape[0], points[triangles]
    side = corners[:, [2, 0, 1]] - corners[:, [1, 2, 0]]
    area = 0.5 * (side[:, 0, 0] * side[:, 1, 1] - side[:, 0, 1] * side[:, 1, 0]).abs() + 0.05
    local = T.einsum("eia,eja->eij", side, side) / (4 * area)[:, None, None]
    rows, columns = triangles[:, :, None].expand(-1, 3, 3), triangles[:, None, :].expand(-1, 3, 3)
    stiff = T.zeros(n, n, dtype=u.dtype).index_put((rows, columns), local, accumulate=True)
    flat = T.zeros(n * n, dtype=u.dtype).scatter_add(0, (rows * n + columns).reshape(-1), local.reshape(-1))
    solved = T.linalg.solve(stiff + T.eye(n, dtype=u.dtype), u)
    return 0.5 * u @ stiff @ u * 1e-3 + solved.square().sum(), flat.view(n, n), solved


@program(normal(129))
def multigrid(T: Any, f: Any) -> Any:
    """A V-cycle of Poisson's equation: grids by steps of two, written into by slices."""
    def smooth(u: Any, f: Any, count: int) -> Any:
        for _ in range(count):
            around = T.nn.functional.pad(u, (1, 1))
            u = u + 0.6 * (0.5 * (around[2:] + around[:-2] + f) - u)
        return u

    def cycle(u: Any, f: Any) -> Any:
        u = smooth(u, f, 2)
        if len(f) < 5:
            return smooth(u, f, 4)
        around = T.nn.functional.pad(u, (1, 1))
        rest = f - (2 * u - around[2:] - around[:-2])
        coarse = rest[:-2:2] + 2 * rest[1:-1:2] + rest[2::2]
        error = cycle(T.zeros_like(coarse), coarse)
        fine = T.zeros_like(u)
        fine[1:1 + 2 * len(error):2] = error
        ends = T.nn.functional.pad(error, (1, 1))
        fine[0::2] += 0.5 * (ends[1:] + ends[:-1])[:len(fine[0::2])]
        return smooth(u + fine, f, 2)

    u = cycle(T.zeros_like(f), f)
    return u.square().sum(), u


@program(normal(21, 6), normal(6, 6))
def hidden_markov(T: Any, emission: Any, transition: Any) -> Any:
    """Forward and backward, posteriors, the best path with its way back."""
    moves, seen = transition.log_softmax(-1), emission.log_softmax(-1)
    alphas, betas, best, back = [seen[0]], [T.zeros_like(seen[0])], seen[0], []
    for t in range(1, len(seen)):
        alphas.append(T.logsumexp(alphas[-1][:, None] + moves, 0) + seen[t])
        best, from_ = (best[:, None] + moves).max(0)
        best = best + seen[t]
        back.append(from_)
    for t in range(len(seen) - 1, 0, -1):
        betas.append(T.logsumexp(moves + seen[t] + betas[-1], -1))
    path = [best.argmax()]
    for from_ in reversed(back):
        path.append(from_[path[-1]])
    posterior = (T.stack(alphas) + T.stack(betas[::-1])).softmax(-1)
    return alphas[-1].logsumexp(-1) + best.max() + (posterior ** 2).sum(), posterior, T.stack(path[::-1])


@program(np.sort(rng.random(66)), normal(12))
def b_splines(T: Any, x: Any, c: Any) -> Any:
    """De Boor's recursion with knots that coincide: quotients of zeros are kept out by where."""
    degree, count = 3, len(c)
    knots = T.cat([T.zeros(degree, dtype=x.dtype), T.linspace(0, 1.0001, count - degree + 1, dtype=x.dtype),
                   T.full((degree,), 1.0001, dtype=x.dtype)])
    basis = ((x[:, None] >= knots[:-1]) & (x[:, None] < knots[1:])).to(x.dtype)
    for d in range(1, degree + 1):
        left, right = knots[d:-1] - knots[:-d - 1], knots[d + 1:] - knots[1:-d]
        up = T.where(left > 0, (x[:, None] - knots[:-d - 1]) / T.where(left > 0, left, 1), 0)
        down = T.where(right > 0, (knots[d + 1:] - x[:, None]) / T.where(right > 0, right, 1), 0)
        basis = up * basis[:, :-1] + down * basis[:, 1:]
    y = basis @ c
    return y.square().sum(), y, basis.sum(1), T.searchsorted(knots, x.detach(), right=True)


@program(normal(2, 65) + 1j * normal(2, 65), normal(65), normal(2))
def split_steps(T: Any, psi: Any, potential: Any, g: Any) -> Any:
    """Schroedinger's nonlinear equation by split steps; density, current; parts of complex numbers written in place."""
    moved = T.exp(-0.01j * (2 * np.pi * T.fft.fftfreq(65, 0.2, dtype=potential.dtype)) ** 2)
    for _ in range(3):
        psi = T.fft.ifft(T.fft.fft(psi * T.exp(-0.02j * (potential + g[:, None] * psi.abs() ** 2))) * moved)
    density = psi.real ** 2 + psi.imag ** 2
    current = (psi.conj() * T.gradient(psi, spacing=0.2, dim=1)[0]).imag
    z = psi.clone()
    z.imag.mul_(-1)
    z[:, 1::2] *= 1j
    z.real[0] += 1
    levels = T.linalg.eigvalsh(T.outer(psi[0], psi[1].conj())[:4, :4] + T.outer(psi[1], psi[0].conj())[:4, :4])
    return density.mean() + (current ** 2).mean() + T.angle(T.vdot(psi[0], z[1])) + levels[0] + z.abs().sum(), density, current, z, levels


@program(normal(33, 33), rng.uniform(0, 3, 12))
def tomography(T: Any, image: Any, angles: Any) -> Any:
    """Projections of a picture by scatter_add_ of rows that are expanded, and back by gather."""
    c = T.arange(33, dtype=image.dtype) - 16
    y, x = T.meshgrid(c, c, indexing="ij")
    at = (x * T.cos(angles)[:, None, None] + y * T.sin(angles)[:, None, None] + 30).reshape(12, -1)
    bins = at.detach().floor().long()
    rest, values = at - bins, image.reshape(-1).expand(12, -1)
    rays = T.zeros(12, 64, dtype=image.dtype)
    rays.scatter_add_(1, bins, values * (1 - rest))
    rays = rays.scatter_add(1, bins + 1, values * rest)
    back = rays.gather(1, bins).view(12, 33, 33).mean(0)
    return ((back - image) ** 2).mean() + rays.var(), rays, back


def iterations(T: Any, f: Any, carry: Any, rows: Any) -> Any:
    """tg.scan, or what it means."""
    if hasattr(T, "scan"):
        return T.scan(f, carry, rows)
    found = []
    for row in rows:
        carry, y = f(carry, row)
        found.append(y)
    return carry, tuple(map(T.stack, zip(*found, strict=True)))


@program(normal(127), normal(12))
def korteweg_de_vries(T: Any, u: Any, force: Any) -> Any:
    """A spectral method with an integrating factor: transforms of what an iteration hands on."""
    n = len(u)
    k = T.fft.fftfreq(n, 1 / n, dtype=u.dtype)
    factor = T.exp(1e-4j * k ** 3)

    def body(spectrum: Any, force: Any) -> Any:
        now = T.fft.ifft(spectrum).real
        spectrum = factor * (spectrum - 3e-3j * k * T.fft.fft(now * now + force * now.cos()))
        return spectrum, (T.fft.ifft(spectrum).real, spectrum.abs()[3])

    last, (path, mode) = iterations(T, body, T.fft.fft(u), force)
    return path.square().mean() + (path[-1] ** 3).sum() + mode.sum(), path, mode, last


@program(normal(40, 2), normal(40))
def epidemic(T: Any, noise: Any, seen: Any) -> Any:
    """Compartments by Runge and Kutta, of which one is looked at; the best three fits by a threshold."""
    def rates(y: Any) -> Any:
        s, e, i, _ = y.unbind(0)
        return T.stack([-0.8 * s * i, 0.8 * s * i - 0.2 * e, 0.2 * e - 0.1 * i, 0.1 * i])

    def body(y: Any, noise: Any) -> Any:
        middle = rates(y + 0.25 * rates(y))
        y = y + 0.5 * middle + 0.001 * T.cat([noise, -noise])
        return y, (y[2], y)

    start = T.stack([1 - 0.1 * seen[0].sigmoid(), 0.1 * seen[0].sigmoid(), 0.1 * seen[1].sigmoid(), 0 * seen[0]])
    last, (ill, path) = iterations(T, body, start, noise)
    off = (ill - 0.1 * seen.sigmoid()).square().log1p().exp()
    bound = T.topk(off, 3, largest=False).values[-1:]
    return T.where(off <= bound, off, 0).sum() + path[:, 1].square().sum() + last.prod(), ill, off


@program(normal(31, 2), normal(37, 2), normal(31), normal(37), normal(8))
def sinkhorn(T: Any, x: Any, y: Any, a: Any, b: Any, width: Any) -> Any:
    """Optimal transport in logarithms, with a width that changes."""
    costs, a, b = (x[:, None] - y).square().sum(-1), a.log_softmax(0), b.log_softmax(0)

    def body(found: Any, width: Any) -> Any:
        width = 0.5 + width.sigmoid()
        f = -width * T.logsumexp((found[1] - costs) / width + b, 1)
        g = -width * T.logsumexp((f[:, None] - costs) / width + a[:, None], 0)
        return (f, g), ((f * a.exp()).sum(), g.amax())

    (f, g), (trail, top) = iterations(T, body, (T.zeros_like(a), T.zeros_like(b)), width)
    plan = T.exp(f[:, None] + g - costs + a[:, None] + b)
    return (plan * costs).sum() + trail.sum() + top.sum(), plan, trail


@program(normal(12, 3), normal(4, 4, scale=0.3), normal(3, 4), normal(4))
def kalman_smoother(T: Any, seen: Any, move: Any, look: Any, start: Any) -> Any:
    """A filter and the way back over what it stacked, by solved systems of three and four rows."""
    one = T.eye(4, dtype=seen.dtype)

    def forth(state: Any, y: Any) -> Any:
        m, p = move @ state[0], move @ state[1] @ move.T + 0.1 * one
        s = look @ p @ look.T + 0.2 * T.eye(3, dtype=seen.dtype)
        gain, e = T.linalg.solve(s, look @ p).T, y - look @ m
        fit = -0.5 * (e @ T.linalg.solve(s, e) + T.linalg.slogdet(s)[1])
        new = m + gain @ e, (one - gain @ look) @ p
        return new, (fit, *new, m, p)

    last, (fit, m, p, m_before, p_before) = iterations(T, forth, (start, one), seen)
    smooth, wide, means = last[0], last[1], []
    for t in range(len(seen) - 2, -1, -1):
        gain = T.linalg.solve(p_before[t + 1], move @ p[t]).T
        smooth, wide = m[t] + gain @ (smooth - m_before[t + 1]), p[t] + gain @ (wide - p_before[t + 1]) @ gain.T
        means.append(smooth)
    return fit.sum() + 0.1 * T.stack(means).square().sum() + wide.sum(), T.stack(means), wide, fit


@training
def frozen_while_it_learns(T: Any, step: Any) -> Any:
    """A discriminator that is frozen between its scores and the generator's backward, and clipped before its penalty's."""
    nn = T.nn
    G, D = filled(T, nn.Linear(5, 33)), filled(T, nn.Sequential(nn.Linear(33, 12), nn.Tanh(), nn.Linear(12, 1)), 1)
    og, od = T.optim.Adam(G.parameters(), lr=1e-2), T.optim.RMSprop(D.parameters(), lr=1e-2)
    draw, losses = np.random.default_rng(2), []
    for _ in range(8):
        z, real = T.tensor(draw.normal(size=(7, 5))), T.tensor(draw.normal(size=(7, 33)))
        scores = D(G(z))
        for p in D.parameters():
            p.requires_grad_(False)
        og.zero_grad()
        (-scores.mean()).backward()
        og.step()
        assert all(p.grad is None for p in D.parameters())
        for p in D.parameters():
            p.requires_grad_()
        penalty = sum((p * 0.1).sum() for p in D.parameters())
        with T.no_grad():
            for p in D.parameters():
                p.clamp_(-0.4, 0.4)
        slopes = T.autograd.grad(penalty, list(D.parameters()))
        critic = D(G(z).detach()).mean() - D(real).mean()
        critic.backward()
        for p, slope in zip(D.parameters(), slopes, strict=True):
            p.grad += slope
        od.step()
        od.zero_grad()
        losses.append(critic.item())
    return results(G, losses) + results(D, [])


@training
def mixture_of_experts(T: Any, step: Any) -> Any:
    """The two best of five experts, by topk, where and index_add_; the loss of their balance."""
    draw, losses = np.random.default_rng(3), []
    w, router = (T.tensor(draw.normal(size=s), requires_grad=True) for s in ((5, 6, 8), (6, 5)))
    optimizer = T.optim.SGD([w, router], lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(6):
        x = T.tensor(draw.normal(size=(65, 6)))
        scores = x @ router
        gate, chosen = scores.topk(2, -1)
        gate, y = gate.softmax(-1), T.zeros(65, 8, dtype=x.dtype)
        for expert in range(5):
            rows, place = T.where(chosen == expert)
            if rows.numel():
                y.index_add_(0, rows, (x[rows] @ w[expert]).tanh() * gate[rows, place, None])
        load = T.zeros(5, dtype=x.dtype).scatter_add(0, chosen[:, 0], T.ones(65, dtype=x.dtype)) / 65
        loss = (y - x.sum(1, keepdim=True)).square().mean() + 0.05 * (scores.softmax(-1).mean(0) * load).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [np.array(losses), *(v.detach().numpy() for v in (w, router, y))]


@training
def thawed_by_turns(T: Any, step: Any) -> Any:
    """Layers that are frozen and thawed in every iteration, biases that began as numbers and were looked at, Adam's counts that part."""
    nn, draw, losses = T.nn, np.random.default_rng(4), []
    model = filled(T, nn.Sequential(nn.Linear(12, 33), nn.Tanh(), nn.Linear(33, 20), nn.Tanh(), nn.Linear(20, 3)), 2)
    for layer in model[::2]:
        nn.init.constant_(layer.bias, 0.25)
    optimizer = T.optim.Adam(model.parameters(), lr=0.01)

    @step
    def learn(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = T.nn.functional.smooth_l1_loss(model(x), y, beta=0.5)
        loss.backward()
        optimizer.step()
        return loss

    for k in range(12):
        losses.append(sum(p.detach().sum().item() for p in model.parameters()))
        for p in model[0].parameters():
            p.requires_grad_(k % 4 < 2)
        model[2].weight.requires_grad = k % 3 != 1
        rows = 20 if k % 5 else 7
        losses.append(learn(T.tensor(draw.normal(size=(rows, 12))), T.tensor(draw.normal(size=(rows, 3)))).item())
    return results(model, losses)


@training
def watched_and_parametrized(T: Any, step: Any) -> Any:
    """A symmetric weight whose parameter the optimizer had before, hooks of every kind around a layer, gradients kept on the way."""
    nn, draw, seen = T.nn, np.random.default_rng(5), []
    model = filled(T, nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3)), 3)
    optimizer = T.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Symmetric(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

    nn.utils.parametrize.register_parametrization(model[2], "weight", Symmetric())
    model[2].register_forward_hook(lambda module, args, y: y * 1.5)
    model[2].register_full_backward_hook(lambda module, into, out: seen.append((into[0].sum().item(), out[0].sum().item())))
    model[4].register_forward_pre_hook(lambda module, args: (args[0].clamp(max=2.0),))
    for k in range(8):
        x = T.tensor(draw.normal(size=(20 if k % 3 else 7, 12)), requires_grad=True)
        y = model(x)
        y.retain_grad()
        (slope,) = T.autograd.grad(y.logsumexp(1).sum(), x, create_graph=True)
        optimizer.zero_grad()
        (y.square().mean() + slope.square().sum()).backward()
        optimizer.step()
        seen.append((y.grad.sum().item(), x.grad.sum().item()))
        if k == 5:
            nn.utils.parametrize.remove_parametrizations(model[2], "weight")
    return results(model, np.array(seen).ravel().tolist())
