"""Programs of models as in user_programs.py: light, phases, transducers, caches, routing, wavelets, beams, hashed grids; a policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.user_programs import filled, normal, program, results, rng, training


@program(normal(12, 3), normal(12, 3, scale=0.3), normal(39, 33, scale=0.2), normal(33, 4, scale=0.3), rng.uniform(size=(12, 17)),
         rng.uniform(size=(12, 9)))
def radiance(T: Any, origin: Any, along: Any, w1: Any, w2: Any, u: Any, v: Any) -> Any:
    """Rays through a field of light: products of what is left of it, samples where it was found, all of them in order."""
    along = along / along.norm(dim=-1, keepdim=True)

    def render(t: Any) -> Any:
        x = origin[:, None] + t[..., None] * along[:, None]
        waves = (x[..., None, :] * 2.0 ** T.arange(6, dtype=x.dtype)[:, None]).flatten(-2)
        out = T.nn.functional.elu(T.cat([x, waves.sin(), waves.cos()], -1) @ w1) @ w2
        gaps = T.cat([t[:, 1:] - t[:, :-1], T.full_like(t[:, :1], 1e10)], -1)
        alpha = 1 - T.exp(-T.nn.functional.softplus(out[..., 3] - 1) * gaps)
        left = T.cumprod(T.cat([T.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        w = alpha * left
        return (w[..., None] * out[..., :3].sigmoid()).sum(-2) + (1 - w.sum(-1, keepdim=True)), w, (w * t).sum(-1)

    edges = T.linspace(1, 4, 18, dtype=origin.dtype)
    t = edges[:-1] + (edges[1:] - edges[:-1]) * u
    coarse, w, depth = render(t)
    middle = 0.5 * (t[:, 1:] + t[:, :-1])
    share = w[:, 1:-1] + 1e-5
    share = share / share.sum(-1, keepdim=True)
    upto = T.cat([T.zeros_like(share[:, :1]), share.cumsum(-1)], -1)
    k = T.searchsorted(upto.detach().contiguous(), v.detach().contiguous(), right=True)
    low, high = (k - 1).clamp(min=0), k.clamp(max=upto.shape[-1] - 1)
    c0, c1, b0, b1 = (a.gather(1, i) for a, i in ((upto, low), (upto, high), (middle, low), (middle, high)))
    gap = T.where(c1 - c0 < 1e-5, T.ones_like(c0), c1 - c0)
    both, _ = T.sort(T.cat([t, b0 + (v - c0) / gap * (b1 - b0)], -1), -1)
    fine, w, there = render(both)
    spread = (w[:, :, None] * w[:, None] * (both[:, :, None] - both[:, None]).abs()).sum()
    return (fine - 0.3).square().mean() + (coarse - 0.3).square().mean() + 0.01 * spread + there.var(), fine, there, depth


@program(rng.uniform(-0.1, 0.1, (12, 15)), np.array(0.8), normal(12, 15, scale=0.01))
def cahn_hilliard(T: Any, c: Any, kappa: Any, noise: Any) -> Any:
    """Phases that part, by half-implicit steps of a transform of 12 by 15; their energies, the shells of their waves."""
    kx = T.fft.fftfreq(12, 1 / 12, dtype=c.dtype)[:, None]
    ky = T.fft.rfftfreq(15, 1 / 15, dtype=c.dtype)
    k2 = kx ** 2 + ky ** 2
    keep = (kx.abs() < 4) & (ky < 5)
    energies, h = [], T.fft.rfft2(c)
    for _ in range(5):
        potential = T.fft.rfft2(c ** 3 - c + noise)
        h = (h - 0.01 * k2 * T.where(keep, potential, 0)) / (1 + 0.0005 * kappa * k2 ** 2)
        c, gx, gy = (T.fft.irfft2(z, s=(12, 15)) for z in (h, 1j * kx * h, 1j * ky * h))
        energies.append((0.25 * (c ** 2 - 1) ** 2 + 0.025 * kappa * (gx ** 2 + gy ** 2)).mean())
    e = T.stack(energies)
    shells = T.zeros(9, dtype=c.dtype).index_add(0, k2.sqrt().round().long().clamp(max=8).flatten(), h.abs().square().flatten())
    return e.sum() + (c ** 3).sum() + shells.log1p().sum(), c, e, shells


@program(normal(2, 7, 5, 9), np.array([[3, 1, 8, 2], [5, 5, 1, 1]]), np.array([7, 5]), np.array([4, 2]))
def transducer(T: Any, logits: Any, labels: Any, frames: Any, lengths: Any) -> Any:
    """RNN-T's loss, its lattice written cell by cell; sequences of several lengths."""
    scores = logits.log_softmax(-1)
    count, steps, places, _ = scores.shape
    blank, emit = scores[..., 0], scores[:, :, :-1].gather(-1, labels[:, None, :, None].expand(-1, steps, -1, -1)).squeeze(-1)
    alpha = T.full((count, steps, places), -float("inf"), dtype=scores.dtype)
    alpha[:, 0, 0] = 0
    for u in range(1, places):
        alpha[:, 0, u] = alpha[:, 0, u - 1] + emit[:, 0, u - 1]
    for t in range(1, steps):
        alpha[:, t, 0] = alpha[:, t - 1, 0] + blank[:, t - 1, 0]
        for u in range(1, places):
            alpha[:, t, u] = T.logaddexp(alpha[:, t - 1, u] + blank[:, t - 1, u], alpha[:, t, u - 1] + emit[:, t, u - 1])
    each = T.arange(count)
    likely = alpha[each, frames - 1, lengths] + blank[each, frames - 1, lengths]
    return -likely.mean(), alpha, likely


@program(normal(2, 12, 24, scale=0.4), normal(24, 24, scale=0.3), normal(24, 12, scale=0.3), normal(24, 12, scale=0.3))
def cached_attention(T: Any, x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    """Tokens that come by 7, 1, 1, 3: keys that are turned and written into a cache, heads in groups, a sliding window, two ways."""
    keys, values = (T.zeros(2, 2, 16, 6, dtype=x.dtype) for _ in range(2))
    rates = 100.0 ** (-T.arange(0, 6, 2, dtype=x.dtype) / 6)

    def turned(v: Any, at: Any) -> Any:
        angle = (at[:, None] * rates).repeat_interleave(2, -1)
        return v * angle.cos() + T.stack([-v[..., 1::2], v[..., ::2]], -1).flatten(-2) * angle.sin()

    found = []
    for start, count in ((0, 7), (7, 1), (8, 1), (9, 3)):
        part, at, end = x[:, start:start + count], T.arange(start, start + count), start + count
        q = turned((part @ wq).view(2, count, 4, 6).transpose(1, 2), at)
        keys[:, :, start:end] = turned((part @ wk).view(2, count, 2, 6).transpose(1, 2), at)
        values[:, :, at] = (part @ wv).view(2, count, 2, 6).transpose(1, 2)
        k, v = (c[:, :, :end].repeat_interleave(2, 1) for c in (keys, values))
        mask = (T.arange(end) <= at[:, None]) & (T.arange(end) > at[:, None] - 5)
        written = (q @ k.transpose(-1, -2) / 6 ** 0.5).masked_fill(~mask, float("-inf")).softmax(-1) @ v
        found.append((T.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask) + written).transpose(1, 2).flatten(-2))
    y = T.cat(found, 1)
    return y.square().mean() + keys.abs().sum() * 1e-3, y, keys


@program(normal(34, 8), normal(8, 5), normal(5, 8, 9, scale=0.4), normal(5, 9, 8, scale=0.4))
def capacity_routing(T: Any, x: Any, gate: Any, w1: Any, w2: Any) -> Any:
    """Experts that take nine tokens and no more: places by running counts, what is dropped, two losses of balance."""
    share = (x @ gate).softmax(-1)
    weight, chosen = share.topk(2, -1)
    weight = (weight / weight.sum(-1, keepdim=True)).T.reshape(-1)
    expert, token = chosen.T.reshape(-1), T.arange(34).repeat(2)
    hot = T.nn.functional.one_hot(expert, 5)
    place = hot.cumsum(0) * hot - 1
    fits = (place < 9) & (place >= 0)
    kept = fits.any(1)
    where = T.where(kept, expert * 9 + (place * fits).sum(1), 45)
    boxes = T.zeros(46, 8, dtype=x.dtype).index_add(0, where, x[token] * kept[:, None])
    y = T.bmm(T.nn.functional.gelu(T.bmm(boxes[:-1].view(5, 9, 8), w1)), w2).reshape(45, 8)
    out = (T.cat([y, T.zeros(1, 8, dtype=x.dtype)])[where] * (weight * kept)[:, None]).view(2, 34, 8).sum(0)
    first = T.nn.functional.one_hot(chosen[:, 0], 5).to(x.dtype).mean(0)
    balance = 5 * (first * share.mean(0)).sum() + 0.1 * T.logsumexp(x @ gate, -1).square().mean()
    return (out - x).square().mean() + balance, out, kept, where


@program(normal(3, 130), normal(4, scale=0.4))
def wavelets(T: Any, x: Any, taps: Any) -> Any:
    """Lifting, written in place to every second element, a threshold, and the way back; two filters that are learned."""
    def forth(v: Any) -> Any:
        even, odd = v[:, ::2], v[:, 1::2]
        odd -= 0.5 * (even + even.roll(-1, 1))
        even += 0.25 * (odd + odd.roll(1, 1))
        return T.cat([even * 2 ** 0.5, odd / 2 ** 0.5], 1)

    def back(v: Any) -> Any:
        even, odd = v.chunk(2, 1)[0] / 2 ** 0.5, v.chunk(2, 1)[1] * 2 ** 0.5
        even -= 0.25 * (odd + odd.roll(1, 1))
        odd += 0.5 * (even + even.roll(-1, 1))
        return T.stack([even, odd], -1).flatten(1)

    c, sizes = x[:, :128].clone(), (128, 64, 32, 16)
    for n in sizes:
        c = T.cat([forth(c[:, :n].clone()), c[:, n:]], 1)
    z = c.sign() * (c.abs() - 0.5 * c.abs().median(1, keepdim=True).values).relu()
    for n in reversed(sizes):
        z = T.cat([back(z[:, :n].clone()), z[:, n:]], 1)
    bank = T.stack([taps, taps.flip(0) * T.tensor([1.0, -1, 1, -1], dtype=x.dtype)])[:, None]
    bands = T.nn.functional.conv1d(T.nn.functional.pad(x[:, None], (3, 0), mode="circular"), bank, stride=2)
    again = T.nn.functional.conv_transpose1d(bands, bank, stride=2)
    return (z - x[:, :128]).square().mean() + bands.abs().log1p().mean() + again.square().mean(), c, z, bands


@program(normal(3, 31, scale=2.0), normal(5, 31, 31))
def beams(T: Any, start: Any, table: Any) -> Any:
    """Beam search whose states go with their beams and whose beams end; the score of the best is differentiated."""
    score, token = start.log_softmax(-1).topk(4, -1)
    words, state, done = token[..., None], T.zeros(3, 4, 31, dtype=start.dtype) + start[:, None], T.zeros(3, 4, dtype=T.bool)
    for t in range(1, 5):
        state = 0.5 * state + table[t][words[..., -1]]
        new = state.log_softmax(-1)
        stay = T.full_like(new, -1e9)
        stay[..., 0] = 0
        score, flat = (score[..., None] + T.where(done[..., None], stay, new)).view(3, -1).topk(4, -1)
        parent, token = flat // 31, flat % 31
        words = T.cat([words.gather(1, parent[..., None].expand(-1, -1, t)), token[..., None]], -1)
        state = state.gather(1, parent[..., None].expand(-1, -1, 31))
        done = done.gather(1, parent) | (token < 3)
    best = (score / (words >= 3).sum(-1).clamp(min=1).to(start.dtype) ** 0.6).max(1)         # (a float32 power's last bit is the CPU's)
    return best.values.sum() + state.square().mean() + score.logsumexp(1).sum(), words, done, best.indices


@program(rng.uniform(size=(130, 2)), normal(3, 64, 2), normal(6, 3))
def hash_grid(T: Any, x: Any, table: Any, w: Any) -> Any:
    """Features of hashed corners of three grids, along a curve of interleaved bits."""
    found = []
    for level, size in enumerate((7, 13, 30)):
        corner = (x * size).floor().long()
        f, total = x * size - corner, 0
        for dx in (0, 1):
            for dy in (0, 1):
                place = corner + T.tensor([dx, dy])
                share = (f[:, 0] if dx else 1 - f[:, 0]) * (f[:, 1] if dy else 1 - f[:, 1])
                total = total + share[:, None] * table[level][(place[:, 0] ^ (place[:, 1] * 2654435761)) & 63]
        found.append(total)
    h, m = T.cat(found, -1), (x * 1023).long()
    code = T.zeros_like(m[:, 0])
    for b in range(10):
        code |= ((m[:, 0] >> b) & 1) << (2 * b) | ((m[:, 1] >> b) & 1) << (2 * b + 1)
    order = code.argsort()
    return (h @ w).sin().square().mean() + 1e-2 * h[order].diff(dim=0).square().sum(), code, order, h


@training
def proximal_policy(T: Any, step: Any) -> Any:
    """PPO: a buffer that is written step by step, advantages from its end, ratios and values that are clipped."""
    nn, F = T.nn, T.nn.functional
    draw = np.random.default_rng(21)
    actor = filled(T, nn.Sequential(nn.Linear(5, 31), nn.Tanh(), nn.Linear(31, 4)), 1)
    critic = filled(T, nn.Sequential(nn.Linear(5, 31), nn.Tanh(), nn.Linear(31, 1)), 2)
    optimizer = T.optim.Adam([{"params": actor.parameters()}, {"params": critic.parameters(), "lr": 1e-2}], lr=3e-3, eps=1e-5)
    seen = T.zeros(13, 3, 5, dtype=T.float64)
    scores, values, gains = (T.zeros(13, 3, dtype=T.float64) for _ in range(3))
    actions, ended = T.zeros(13, 3, dtype=T.int64), T.zeros(13, 3, dtype=T.bool)

    def collect(look: Any, u: Any, gain: Any, end: Any) -> None:
        with T.no_grad():
            for t in range(13):
                logits = actor(look[t])
                a = (logits.softmax(-1).cumsum(-1) < u[t][:, None]).sum(-1).clamp(max=3)
                seen[t], actions[t], scores[t] = look[t], a, T.distributions.Categorical(logits=logits).log_prob(a)
                values[t], gains[t], ended[t] = critic(look[t]).squeeze(-1), gain[t] + (a == 2), end[t] > 1.2

    def learn(mine: Any) -> Any:
        with T.no_grad():
            ahead, last, after = T.zeros_like(gains), T.zeros(3, dtype=T.float64), T.zeros(3, dtype=T.float64)
            for t in reversed(range(13)):
                live = 1.0 - ended[t].double()
                ahead[t] = last = gains[t] + 0.99 * after * live - values[t] + 0.95 * 0.99 * live * last
                after = values[t]
        a, score, old, more, wanted = (x.reshape(-1)[mine] for x in (actions, scores, values, ahead, ahead + values))
        more = (more - more.mean()) / (more.std() + 1e-8)
        chances = T.distributions.Categorical(logits=actor(seen.flatten(0, 1)[mine]))
        ratio = (chances.log_prob(a) - score).exp()
        v = critic(seen.flatten(0, 1)[mine]).view(-1)
        error = T.max((v - wanted) ** 2, (old + T.clamp(v - old, -0.2, 0.2) - wanted) ** 2).mean()
        gain = T.max(-more * ratio, -more * T.clamp(ratio, 0.8, 1.2)).mean()
        loss = gain - 0.01 * chances.entropy().mean() + 0.25 * error + 0.01 * F.softplus(v).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        nn.utils.clip_grad_value_(critic.parameters(), 0.1)
        optimizer.step()
        return loss

    collecting, learning, losses = step(collect), step(learn), []
    for _ in range(2):
        drawn = draw.normal(size=(13, 3, 5)), draw.uniform(size=(13, 3)), *draw.normal(size=(2, 13, 3))
        collecting(*map(T.tensor, drawn))
        order = draw.permutation(39)
        losses += [learning(T.tensor(part)).item() for part in (order[:20], order[19:])]
    return [*results(actor, losses), *results(critic, []), actions.numpy(), scores.numpy(), values.numpy()]
