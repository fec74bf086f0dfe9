"""Programs as torch users and scientists write them: each is a function of a library (torch or tracegrad) and of arrays.

`PROGRAMS` is where to start reading: name -> (function(T, *tensors) -> tensors, arrays). Floats among the arrays get a gradient, of the
first result.
TRAININGS: name -> function(T, step) -> numbers, where `step` is what the library does to a training step (tg.trace, or nothing).
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

import numpy as np

rng = np.random.default_rng(2024)
PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {}
TRAININGS: dict[str, Callable[..., Any]] = {}


def program(*arrays: Any) -> Any:
    def add(fn: Any) -> Any:
        PROGRAMS[fn.__name__] = (fn, [np.asarray(a) for a in arrays])
        return fn
    return add


def training(fn: Any) -> Any:
    TRAININGS[fn.__name__] = fn
    return fn


def normal(*shape: int, scale: float = 1.0) -> Any:
    return rng.normal(size=shape) * scale


# ------------------------------------------------------------------------------------------------------------------ signals


@program(normal(2, 1031), normal(2, 1031))
def spectral_loss(T: Any, x: Any, y: Any) -> Any:
    """Multi-resolution STFT loss (Yamamoto et al. 2020), and the signal back from a masked spectrum."""
    loss = 0
    for n, hop, win in ((64, 16, 64), (129, 33, 100), (257, 31, 257)):
        window = T.hann_window(win, dtype=x.dtype)
        a, b = (T.stft(v, n, hop, win, window, return_complex=True).abs().clamp_min(1e-7) for v in (x, y))
        loss = loss + T.linalg.norm(b - a) / T.linalg.norm(b) + T.nn.functional.l1_loss(a.log(), b.log())
    window = T.hamming_window(100, periodic=False, dtype=x.dtype)
    z = T.stft(x, 100, 25, window=window, return_complex=True)
    magnitude, phase = z.abs(), z.angle()
    gate = T.sigmoid((magnitude - magnitude.mean(dim=(-2, -1), keepdim=True)) / magnitude.std(dim=(-2, -1), keepdim=True))
    back = T.istft(T.polar(magnitude * gate, phase), 100, 25, window=window, length=x.shape[-1])
    return loss + (back - y).square().mean(), back


@program(normal(3, 257), normal(31))
def filters(T: Any, x: Any, taps: Any) -> Any:
    """Convolution by FFT, an autocorrelation, a Hilbert envelope, a power spectral density."""
    n = x.size(-1) + taps.numel() - 1
    smooth = T.fft.irfft(T.fft.rfft(x, n=n) * T.fft.rfft(taps, n=n), n=n)[..., taps.numel() // 2:][..., :x.size(-1)]
    spectrum = T.fft.fft(x)
    h = T.zeros(x.size(-1), dtype=x.dtype)
    h[0] = 1
    h[1:(x.size(-1) + 1) // 2] = 2
    envelope = T.fft.ifft(spectrum * h).abs()
    correlation = T.fft.ifft(spectrum * spectrum.conj()).real / x.size(-1)
    frames = x.unfold(-1, 64, 32) * T.signal.windows.hann(64, dtype=x.dtype)
    psd = T.fft.rfft(frames).abs().pow(2).mean(dim=-2)
    total = smooth.square().sum() + envelope.log1p().sum() + correlation[:, 1:40].abs().mean() + psd.clamp(min=1e-12).log10().mean()
    return total, smooth, envelope, correlation, psd


@program(normal(65), normal(65, 65, scale=0.1))
def spectral_solvers(T: Any, u: Any, f: Any) -> Any:
    """Burgers' equation by pseudo-spectral RK4, and a Poisson equation by the two-dimensional FFT."""
    n = u.shape[0]
    k = T.fft.fftfreq(n, d=1.0 / n, dtype=u.dtype)
    keep = (k.abs() < n / 3).to(u.dtype)

    def rate(v: Any) -> Any:
        spectrum = T.fft.fft(v)
        slope = T.fft.ifft(1j * k * spectrum * keep).real
        curvature = T.fft.ifft(-(k**2) * spectrum).real
        return -v * slope + 0.05 * curvature

    v, h = u, 1e-3
    for _ in range(6):
        a = rate(v)
        b = rate(v + h / 2 * a)
        c = rate(v + h / 2 * b)
        d = rate(v + h * c)
        v = v + h / 6 * (a + 2 * b + 2 * c + d)
    kx, ky = T.meshgrid(k, k, indexing="ij")
    k2 = kx**2 + ky**2
    k2[0, 0] = 1.0
    p = T.fft.ifft2(-T.fft.fft2(f) / k2).real
    return (v**2).sum() + (p * f).sum(), v, p


# ------------------------------------------------------------------------------------------------------- states and kernels


@program(normal(33, 2), normal(4, 4, scale=0.2), normal(2, 4), normal(4), np.array([-1.0, 0.3]))
def kalman_filter(T: Any, ys: Any, a: Any, c: Any, q: Any, r: Any) -> Any:
    """The log-likelihood of a linear Gaussian model, and the smoothed means (Rauch, Tung, Striebel)."""
    A, Q, R = T.eye(4, dtype=ys.dtype) + a, T.diag(T.exp(q)), T.diag_embed(T.nn.functional.softplus(r))
    m, P, loglik = T.zeros(4, dtype=ys.dtype), T.eye(4, dtype=ys.dtype), 0.0
    kept = []
    for y in ys:
        mp, Pp = A @ m, A @ P @ A.T + Q
        S = c @ Pp @ c.T + R
        e = y - c @ mp
        L = T.linalg.cholesky(S)
        w = T.linalg.solve_triangular(L, e.unsqueeze(-1), upper=False).squeeze(-1)
        loglik = loglik - 0.5 * (w @ w) - L.diagonal().log().sum() - np.log(2 * pi)
        K = T.cholesky_solve(c @ Pp, L).mT
        m, P = mp + K @ e, (T.eye(4, dtype=ys.dtype) - K @ c) @ Pp
        kept.append((m, P, mp, Pp))
    smooth = [kept[-1][0]]
    for (m, P, _, _), (_, _, mp, Pp) in zip(kept[-2::-1], kept[:0:-1], strict=True):
        G = T.linalg.solve(Pp, A @ P).mT
        smooth.insert(0, m + G @ (smooth[0] - mp))
    return loglik + T.stack(smooth).pow(2).mean(), T.stack(smooth)


@program(normal(65, 3), normal(65), normal(13, 3), normal(3, scale=0.3), np.array(0.2), np.array(-2.0))
def gaussian_process(T: Any, x: Any, y: Any, new: Any, scales: Any, amplitude: Any, noise: Any) -> Any:
    """GP regression: log marginal likelihood, predictive mean and variance, a Matern 5/2 kernel."""
    def kernel(a: Any, b: Any) -> Any:
        d = T.cdist(a / scales.exp(), b / scales.exp())
        s = 5**0.5 * d
        return amplitude.exp() * (1 + s + s**2 / 3) * T.exp(-s)

    K = kernel(x, x) + noise.exp() * T.eye(len(x), dtype=x.dtype)
    L = T.linalg.cholesky(K)
    alpha = T.cholesky_solve(y[:, None], L)
    mll = -0.5 * y @ alpha[:, 0] - T.log(T.diagonal(L)).sum() - 0.5 * len(x) * np.log(2 * pi)
    cross = kernel(new, x)
    mean = (cross @ alpha).squeeze(1)
    v = T.linalg.solve_triangular(L, cross.t(), upper=False)
    var = T.diagonal(kernel(new, new)) - v.pow(2).sum(0)
    sample = mean + var.clamp_min(1e-9).sqrt() * T.linspace(-1, 1, len(new), dtype=x.dtype)
    return -mll / len(x) + sample.sum(), mean, var


@program(normal(100, 7), normal(7, 7))
def whitening(T: Any, x: Any, mixing: Any) -> Any:
    """PCA and ZCA by SVD, reconstruction from three components, correlation after whitening, a low-rank nuclear norm."""
    data = x @ mixing
    centred = data - data.mean(0, keepdim=True)
    U, S, Vh = T.linalg.svd(centred, full_matrices=False)
    explained = S.square() / S.square().sum()
    cov = T.cov(data.T)
    w, v = T.linalg.eigh(cov)
    zca = v @ T.diag(w.rsqrt()) @ v.mH
    white = centred @ zca
    low = (U[:, :3] * S[:3]) @ Vh[:3]
    loss = (low - centred).norm() + (explained * explained.log()).sum() + (white**4).mean() + T.linalg.matrix_norm(data, "nuc") * 0.01
    return loss, explained, white @ white.new_ones(7), T.corrcoef(white.T), low


@program(normal(129, 5), normal(129), normal(5))
def implicit_differentiation(T: Any, x: Any, y: Any, penalty: Any) -> Any:
    """Ridge regression solved in closed form, a least-squares solution, and a fixed point's gradient by a linear solve."""
    A = x.mT @ x + T.diag(penalty.exp())
    w = T.linalg.solve(A, x.mT @ y)
    w2 = T.linalg.lstsq(x, y.unsqueeze(1)).solution.squeeze(1)
    M = T.tanh(A / A.norm())
    z = T.zeros_like(w)
    for _ in range(40):
        z = T.tanh(M @ z * 0.5 + w)
    residual = z - T.tanh(M @ z * 0.5 + w)
    inverse = T.linalg.inv(T.eye(5, dtype=x.dtype) - 0.5 * M)
    total = ((x @ w - y) ** 2).mean() + (inverse @ z).sum() + w2.norm() + T.linalg.cond(A).log() + T.trace(T.linalg.matrix_exp(-M))
    return total, w, w2, residual


# ---------------------------------------------------------------------------------------------------------------- physics


def cubic(n: int) -> Any:
    grid = np.stack(np.meshgrid(*[np.arange(3.0)] * 3, indexing="ij"), -1).reshape(-1, 3)[:n]
    return grid * 1.2 + rng.normal(size=(n, 3)) * 0.05


@program(cubic(17), normal(17, 3, scale=0.1), np.array(1.1))
def molecular_dynamics(T: Any, r: Any, v: Any, sigma: Any) -> Any:
    """Lennard-Jones atoms in a periodic box by velocity Verlet; a radial histogram and the temperature."""
    n, box, h = r.shape[0], 4.0, 2e-3
    i, j = T.triu_indices(n, n, offset=1)

    def energy_and_forces(r: Any) -> Any:
        d = r[i] - r[j]
        d = d - box * T.round(d / box)
        r2 = d.pow(2).sum(-1)
        s6 = (sigma**2 / r2) ** 3
        inside = r2 < 1.9**2
        e = T.where(inside, 4 * (s6**2 - s6), T.zeros_like(s6)).sum()
        pair = T.where(inside, 24 * (2 * s6**2 - s6) / r2, T.zeros_like(s6))[:, None] * d
        return e, T.zeros_like(r).index_add(0, i, pair).index_add(0, j, -pair), r2

    e, f, r2 = energy_and_forces(r)
    for _ in range(5):
        v = v + 0.5 * h * f
        r = T.remainder(r + h * v, box)
        e, f, r2 = energy_and_forces(r)
        v = v + 0.5 * h * f
    temperature = v.square().sum() / (3 * n - 3)
    return e + temperature, r, v, T.histc(r2.detach().sqrt(), bins=13, min=0.0, max=4.0)


@program(normal(3, 7), normal(7))
def quantum_dynamics(T: Any, couplings: Any, fields: Any) -> Any:
    """Evolution under a Hermitian matrix by eigh and by matrix_exp; fidelity, purity, entropy, expectation values."""
    n = fields.numel()
    H = T.zeros(n, n, dtype=T.complex128) + T.diag(fields).to(T.complex128)
    off = T.complex(couplings[0], couplings[1])[:-1]
    H = H + T.diag(off, 1) + T.diag(off.conj(), -1)
    w, v = T.linalg.eigh(H)
    psi0 = T.ones(n, dtype=T.complex128) / n**0.5
    psi = v @ (T.exp(-1j * w * 0.7) * (v.mH @ psi0))
    other = T.matrix_exp(-0.7j * H) @ psi0
    rho = T.outer(psi, psi.conj()) * 0.9 + T.eye(n, dtype=T.complex128) * (0.1 / n)
    p = T.linalg.eigvalsh(rho)
    entropy = -(p * p.log()).sum()
    position = T.vdot(psi, T.arange(n, dtype=T.float64) * psi).real
    fidelity = T.abs(T.vdot(psi, psi0)) ** 2
    purity = T.trace(rho @ rho).real
    return fidelity + entropy + position + purity + T.linalg.norm(T.kron(H, H[:2, :2])) * 0.01, w, psi.abs(), other.angle(), rho.real


@program(np.sort(rng.uniform(0, 1, 13)), normal(13, 2), rng.uniform(0.05, 0.95, 101))
def splines(T: Any, knots: Any, values: Any, at: Any) -> Any:
    """Natural cubic splines from a tridiagonal solve, evaluated by searchsorted and gather; arc length; B-spline bases."""
    h = knots[1:] - knots[:-1]
    slope = (values[1:] - values[:-1]) / h[:, None]
    A = T.diag(2 * (h[:-1] + h[1:])) + T.diag(h[1:-1], 1) + T.diag(h[1:-1], -1)
    m = T.linalg.solve(A, 6 * (slope[1:] - slope[:-1]))
    m = T.nn.functional.pad(m, (0, 0, 1, 1))
    k = (T.searchsorted(knots.detach(), at.detach()) - 1).clamp(0, len(knots) - 2)
    t, hk = (at - knots[k])[:, None], h[k][:, None]
    y = values[k] + t * (slope[k] - hk * (2 * m[k] + m[k + 1]) / 6) + t**2 * m[k] / 2 + t**3 * (m[k + 1] - m[k]) / (6 * hk)
    length = T.diff(y, dim=0).norm(dim=1).sum()
    x = T.linspace(0, 1, 33, dtype=at.dtype)
    uniform = T.linspace(-0.3, 1.3, 17, dtype=at.dtype)
    basis = ((x[:, None] >= uniform[:-1]) & (x[:, None] < uniform[1:])).to(x.dtype)
    for d in range(1, 4):
        left = (x[:, None] - uniform[:-(d + 1)]) / (uniform[d:-1] - uniform[:-(d + 1)]) * basis[:, :-1]
        right = (uniform[d + 1:] - x[:, None]) / (uniform[d + 1:] - uniform[1:-d]) * basis[:, 1:]
        basis = left + right
    return length + T.trapezoid(y[:, 0], at) + T.cumulative_trapezoid(y[:, 1], dx=0.01).mean(), y, basis, T.gradient(y[:, 0])[0]


# ---------------------------------------------------------------------------------------------------------------- learning


@program(normal(13, 16), normal(13, 16), np.array(0.07))
def contrastive(T: Any, a: Any, b: Any, temperature: Any) -> Any:
    """InfoNCE, CLIP's symmetric loss, triplets with the hardest negative, supervised contrast, Barlow twins."""
    F = T.nn.functional
    za, zb = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = za @ zb.T / temperature
    labels = T.arange(len(a))
    clip = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    masked = logits.masked_fill(T.eye(len(a), dtype=T.bool), float("-inf"))
    hardest = masked.max(dim=1).values
    triplet = F.relu(hardest - logits.diagonal() + 0.2).mean() + F.triplet_margin_loss(a, b, b.roll(1, 0), margin=0.5)
    group = T.arange(len(a)) % 3
    same = (group[:, None] == group[None]).to(a.dtype) - T.eye(len(a), dtype=a.dtype)
    logp = logits - T.logsumexp(masked, dim=1, keepdim=True)
    supervised = -((same * logp).sum(1) / same.sum(1)).mean()
    c = T.einsum("bi,bj->ij", (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0, unbiased=False)) / len(a)
    barlow = (T.diagonal(c) - 1).pow(2).sum() + 0.005 * (c.flatten()[:-1].view(15, 17)[:, 1:] ** 2).sum()
    cosine = F.cosine_embedding_loss(a, b, T.tensor([1, -1] * 6 + [1]), margin=0.1)
    return clip + triplet + supervised + barlow * 0.01 + cosine, hardest, c, F.cosine_similarity(a, b)


@program(normal(7, 31), normal(7, 31))
def ranking(T: Any, scores: Any, gains: Any) -> Any:
    """Losses of sorting and top-k: NDCG, ListMLE, a soft rank, the lambda of pairs, quantiles and the median, sparsemax."""
    F = T.nn.functional
    order = gains.argsort(dim=1, descending=True)
    ranked = scores.gather(1, order)
    listmle = (T.logcumsumexp(ranked.flip(1), dim=1).flip(1) - ranked).sum(1).mean()
    top, where = scores.topk(5, dim=1)
    discount = 1 / T.log2(T.arange(5, dtype=scores.dtype) + 2)
    ndcg = (gains.gather(1, where).clamp(0) * discount * top.softmax(1)).sum(1)
    soft = T.sigmoid((scores[:, :, None] - scores[:, None]) / 0.3).sum(2)
    pairs = F.softplus(-(scores[:, :, None] - scores[:, None, :])) * (gains[:, :, None] > gains[:, None, :])
    z = T.sort(scores, dim=1, descending=True)[0]
    k = T.arange(1, 32, dtype=scores.dtype)
    total = z.cumsum(1)
    support = (1 + k * z > total).sum(1, keepdim=True)
    tau = (total.gather(1, support - 1) - 1) / support
    sparsemax = T.clamp(scores - tau, min=0)
    spread = T.quantile(scores, T.tensor([0.1, 0.5, 0.9], dtype=scores.dtype), dim=1).sum() + scores.median(dim=1).values.sum()
    best, at = scores.kthvalue(3, dim=1)
    total = listmle - ndcg.mean() + soft.std() + pairs.mean() + (sparsemax * gains).sum() + spread + best.sum()
    return total + scores.cummax(1)[0].mean(), sparsemax, where, at


@program(normal(9, 3, 6), normal(6, 6), normal(6), normal(6))
def conditional_random_field(T: Any, emissions: Any, transitions: Any, start: Any, end: Any) -> Any:
    """A CRF's log-likelihood with lengths, its Viterbi path, and a CTC loss of the same scores."""
    length, batch, _ = emissions.shape
    lengths = T.tensor([9, 6, 4])
    tags = (T.arange(length)[:, None] * 5 + T.arange(batch)) % 6
    mask = T.arange(length)[:, None] < lengths
    alpha = start + emissions[0]
    path = alpha.detach()
    back = []
    for t in range(1, length):
        alpha_new = T.logsumexp(alpha.unsqueeze(2) + transitions, dim=1) + emissions[t]
        alpha = T.where(mask[t].unsqueeze(1), alpha_new, alpha)
        best, index = (path.unsqueeze(2) + transitions.detach()).max(dim=1)
        back.append(index)
        path = T.where(mask[t][:, None], best + emissions[t].detach(), path)
    normalizer = T.logsumexp(alpha + end, dim=1)
    rows = T.arange(batch)
    score = start[tags[0]] + emissions[0, rows, tags[0]]
    for t in range(1, length):
        score = score + T.where(mask[t], transitions[tags[t - 1], tags[t]] + emissions[t, rows, tags[t]], T.zeros(batch, dtype=score.dtype))
    score = score + end[tags[lengths - 1, rows]]
    ctc = T.nn.functional.ctc_loss(emissions.log_softmax(2), T.tensor([[1, 2, 2], [3, 1, 0], [5, 0, 0]]), lengths, T.tensor([3, 2, 1]),
                                   zero_infinity=True)
    return (normalizer - score).mean() + ctc, normalizer, path.argmax(1), T.stack(back)


@program(normal(33, 5), normal(5, 5), normal(5), normal(5, 3), normal(3, 5))
def normalizing_flow(T: Any, x: Any, w: Any, scale: Any, u: Any, v: Any) -> Any:
    """An invertible linear map (slogdet), ActNorm, a planar layer by the determinant lemma, a rational-quadratic bin, a coupling."""
    z = x * scale.exp()
    logdet = scale.sum() + T.slogdet(w)[1]
    z = z @ w.T
    small = T.eye(3, dtype=x.dtype) + (v * (1 - T.tanh(z @ v.T).mean(0)[:, None] ** 2)) @ u * 0.1
    logdet = logdet + T.logdet(small @ small.T + 0.1 * T.eye(3, dtype=x.dtype))
    z = z + 0.1 * T.tanh(z @ v.T) @ u.T
    a, b = z.chunk(2, dim=1)
    s = T.tanh(a[:, :2].sum(1, keepdim=True))
    z = T.cat([a, b * s.exp() + a.mean(1, keepdim=True)], 1)
    logdet = logdet + s.squeeze(1) * b.size(1)
    logp = -0.5 * (z**2 + np.log(2 * pi)).sum(1) + logdet
    L, pivots = T.linalg.lu_factor(w)
    inverse = T.linalg.lu_solve(L, pivots, T.eye(5, dtype=x.dtype))
    return -logp.mean() + inverse.abs().mean(), logp, T.linalg.det(w)


@program(normal(7, 3), normal(3, 13, scale=0.5), normal(13, 2, scale=0.5), normal(13))
def tangent_kernel(T: Any, x: Any, w1: Any, w2: Any, b: Any) -> Any:
    """The neural tangent kernel by vmap of jacrev, a Hessian's trace, per-sample gradients, a Jacobian-vector product."""
    func = T.func

    def f(p: Any, x: Any) -> Any:
        return T.tanh(x @ p[0] + p[2]) @ p[1]

    p = (w1, w2, b)
    jac = func.vmap(func.jacrev(f), in_dims=(None, 0))(p, x)
    flat = T.cat([j.flatten(2) for j in jac], dim=2)
    ntk = T.einsum("iaf,jbf->ijab", flat, flat)
    H = func.hessian(lambda v: f(p, v).pow(2).sum())(x[0])
    forward = func.jacfwd(lambda v: f(p, v))(x[1])
    each = func.vmap(func.grad(lambda p, v: f(p, v).pow(2).sum()), in_dims=(None, 0))(p, x)
    _, tangent = func.jvp(lambda v: f(p, v), (x,), (T.ones_like(x),))
    out, pull = func.vjp(lambda v: f(p, v), x)
    return ntk.square().mean() + T.trace(H) + each[0].norm() + pull(out)[0].sum(), ntk, H, forward, tangent


@program(normal(3, 4, 13), normal(2, 13, 8, scale=0.3), normal(8, 8, scale=0.3), rng.integers(0, 11, (3, 9)), normal(11, 8))
def attention(T: Any, memory: Any, heads: Any, out: Any, tokens: Any, table: Any) -> Any:
    """Attention written by hand: einsum, rotary positions, a causal mask, ALiBi, label smoothing, beam scores, a top-p filter."""
    F = T.nn.functional
    k, v = T.einsum("bsd,hdk->bhsk", memory, heads), T.einsum("bsd,hdk->bhsk", memory.flip(1), heads)
    q = F.embedding(tokens, table)[:, None].expand(-1, 2, -1, -1)
    n = q.shape[-2]
    angle = T.outer(T.arange(n, dtype=q.dtype), 1.0 / 100 ** (T.arange(0, 8, 2, dtype=q.dtype) / 8))
    even, odd = q[..., ::2], q[..., 1::2]
    q = T.stack((even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), -1).flatten(-2)
    slopes = T.tensor([0.5, 0.25], dtype=q.dtype).view(2, 1, 1)
    bias = -slopes * (T.arange(n)[:, None] - T.arange(4)[None]).abs().to(q.dtype)
    mask = T.ones(n, 4, dtype=T.bool).tril(diagonal=2)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(~mask, float("-inf")))
    y = y.transpose(1, 2).mean(2) @ out
    logits = y @ table.T
    loss = F.cross_entropy(logits.view(-1, 11), tokens.roll(-1, 1).reshape(-1), label_smoothing=0.1, ignore_index=3)
    p, order = logits.detach().softmax(-1).sort(-1, descending=True)
    kept = T.zeros_like(p, dtype=T.bool).scatter(-1, order, p.cumsum(-1) - p < 0.7)
    beam = T.log_softmax(logits, -1).amax(-1).sum(1)
    return loss + beam.mean() * 0.1, y, kept, order


# ------------------------------------------------------------------------------------------------------------ with modules


def filled(T: Any, module: Any, seed: int = 0) -> Any:
    """The module in float64, its parameters drawn."""
    draw = np.random.default_rng(seed)
    module = module.double()
    with T.no_grad():
        for p in module.parameters():
            p.copy_(T.tensor(draw.normal(size=tuple(p.shape)) * (0.5 / max(1, p.shape[-1]) ** 0.5)))
    return module


def results(module: Any, losses: list[Any]) -> list[Any]:
    return [np.array(losses), *(v.detach().numpy() for v in module.state_dict().values())]


@training
def variational_autoencoder(T: Any, step: Any) -> Any:
    nn, F = T.nn, T.nn.functional

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 6))
            self.decoder = nn.Sequential(nn.Linear(3, 4 * 7 * 7), nn.SiLU(), nn.Unflatten(1, (4, 7, 7)),
                                         nn.ConvTranspose2d(4, 1, 3, stride=2, padding=1, output_padding=0))

        def forward(self, x: Any, noise: Any) -> Any:
            mean, logvar = self.encoder(x).chunk(2, dim=1)
            return self.decoder(mean + noise * (0.5 * logvar).exp()), mean, logvar

    draw = np.random.default_rng(1)
    model = filled(T, VAE())
    optimizer = T.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    x = T.tensor(draw.uniform(size=(5, 1, 13, 13)))

    def train(x: Any, noise: Any) -> Any:
        optimizer.zero_grad()
        y, mean, logvar = model(x, noise)
        kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(1).mean()
        loss = F.binary_cross_entropy_with_logits(y, x, reduction="sum") / len(x) + kl
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss

    run = step(train)
    return results(model, [run(x, T.tensor(draw.normal(size=(5, 3)))).item() for _ in range(5)])


@training
def adversarial(T: Any, step: Any) -> Any:
    """A GAN with spectral norm and a gradient penalty (a second derivative in the loss)."""
    nn = T.nn
    G = filled(T, nn.Sequential(nn.Linear(3, 17), nn.BatchNorm1d(17), nn.LeakyReLU(0.2), nn.Linear(17, 2)))
    D = filled(T, nn.Sequential(nn.Linear(2, 19), nn.Softplus(), nn.Linear(19, 1)), 1)
    og = T.optim.Adam(G.parameters(), lr=1e-2, betas=(0.5, 0.9))
    od = T.optim.RMSprop(D.parameters(), lr=1e-2, momentum=0.3, centered=True)
    draw = np.random.default_rng(2)

    def train(real: Any, z: Any, mix: Any) -> Any:
        fake = G(z).detach()
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        (slope,) = T.autograd.grad(D(between).sum(), between, create_graph=True)
        critic = D(fake).mean() - D(real).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
        od.zero_grad()
        critic.backward()
        od.step()
        og.zero_grad(set_to_none=True)
        generator = -D(G(z)).mean()
        generator.backward()
        og.step()
        return critic + generator

    run = step(train)
    losses = [run(*(T.tensor(a) for a in (draw.normal(size=(13, 2)), draw.normal(size=(13, 3)), draw.uniform(size=(13, 1))))).item()
              for _ in range(5)]
    return results(G, losses) + results(D, [])


@training
def sequence_to_sequence(T: Any, step: Any) -> Any:
    nn, F = T.nn, T.nn.functional

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(13, 6, padding_idx=0)
            self.encoder = nn.GRU(6, 7, batch_first=True, bidirectional=True)
            self.decoder = nn.LSTM(6, 14, num_layers=2, batch_first=True)
            self.attend = nn.MultiheadAttention(14, 2, batch_first=True)
            self.norm, self.out = nn.LayerNorm(14), nn.Linear(14, 13)

        def forward(self, source: Any, target: Any) -> Any:
            memory, _ = self.encoder(self.embed(source))
            y, _ = self.decoder(self.embed(target))
            found, weights = self.attend(y, memory, memory, key_padding_mask=source == 0)
            return self.out(self.norm(y + found)), weights

    draw = np.random.default_rng(3)
    model = filled(T, Model())
    optimizer = T.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    schedule = T.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    source, target = draw.integers(1, 13, (5, 9)), draw.integers(1, 13, (5, 7))
    source[2, 5:] = 0
    source, target = T.tensor(source), T.tensor(target)

    def train(source: Any, target: Any) -> Any:
        logits, weights = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), target[:, 1:]) + 0.1 * (weights * (weights + 1e-9).log()).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run, losses = step(train), []
    for _ in range(4):
        losses.append(run(source, target).item())
        schedule.step()
    return results(model, losses)


@training
def u_net(T: Any, step: Any) -> Any:
    nn, F = T.nn, T.nn.functional

    def double(i: int, o: int) -> Any:
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.GroupNorm(2, o), nn.ReLU(inplace=True),
                             nn.Conv2d(o, o, 3, padding="same", padding_mode="reflect"), nn.BatchNorm2d(o), nn.Hardswish())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.ModuleList([double(3, 4), double(4, 6)]), nn.ModuleList([double(10, 4)])
            self.pool, self.raise_ = nn.MaxPool2d(2, ceil_mode=True), nn.ConvTranspose2d(6, 6, 2, 2)
            self.last = nn.Conv2d(4, 5, 1)

        def forward(self, x: Any) -> Any:
            a = self.down[0](x)
            b = self.raise_(self.down[1](self.pool(a)))
            b = F.interpolate(b, size=a.shape[-2:], mode="bilinear", align_corners=False)
            return self.last(self.up[0](T.cat([a, b], dim=1)))

    draw = np.random.default_rng(4)
    model = filled(T, UNet())
    optimizer = T.optim.NAdam(model.parameters(), lr=1e-2)
    x, labels = T.tensor(draw.normal(size=(2, 3, 17, 13))), T.tensor(draw.integers(0, 5, (2, 17, 13)))

    def train(x: Any, labels: Any) -> Any:
        model.train()
        logits = model(x)
        p, one = logits.softmax(1), F.one_hot(labels, 5).permute(0, 3, 1, 2).to(logits.dtype)
        dice = 1 - (2 * (p * one).sum((0, 2, 3)) + 1) / (p.sum((0, 2, 3)) + one.sum((0, 2, 3)) + 1)
        loss = F.cross_entropy(logits, labels, weight=T.tensor([1.0, 2.0, 1.0, 0.5, 1.0], dtype=logits.dtype)) + dice.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = step(train)
    losses = [run(x, labels).item() for _ in range(3)]
    model.eval()
    with T.no_grad():
        losses.append(model(x).argmax(1).eq(labels).double().mean().item())
    return results(model, losses)


@training
def fourier_neural_operator(T: Any, step: Any) -> Any:
    nn, F = T.nn, T.nn.functional

    class Spectral(nn.Module):
        def __init__(self, width: int, modes: int) -> None:
            super().__init__()
            self.modes = modes
            self.weight = nn.Parameter(T.zeros(width, width, modes, 2))

        def forward(self, x: Any) -> Any:
            z = T.fft.rfft(x, norm="ortho")
            kept = T.einsum("bim,iom->bom", z[..., :self.modes], T.view_as_complex(self.weight))
            out = T.zeros(*kept.shape[:2], z.size(-1), dtype=z.dtype)
            out[..., :self.modes] = kept
            return T.fft.irfft(out, n=x.size(-1), norm="ortho")

    class FNO(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.project = nn.Conv1d(2, 6, 1), nn.Conv1d(6, 1, 1)
            self.spectral = nn.ModuleList([Spectral(6, 5) for _ in range(2)])
            self.skip = nn.ModuleList([nn.Conv1d(6, 6, 1) for _ in range(2)])

        def forward(self, u: Any) -> Any:
            grid = T.linspace(0, 1, u.size(-1), dtype=u.dtype).expand(u.size(0), 1, -1)
            x = self.lift(T.cat([u.unsqueeze(1), grid], 1))
            for s, w in zip(self.spectral, self.skip, strict=True):
                x = F.gelu(s(x) + w(x), approximate="tanh")
            return self.project(x).squeeze(1)

    draw = np.random.default_rng(5)
    model = filled(T, FNO())
    optimizer = T.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
    scheduler = T.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=5)
    u, v = T.tensor(draw.normal(size=(4, 33))), T.tensor(draw.normal(size=(4, 33)))

    def train(u: Any, v: Any) -> Any:
        optimizer.zero_grad()
        loss = (T.linalg.vector_norm(model(u) - v, dim=1) / T.linalg.vector_norm(v, dim=1)).mean()
        loss.backward()
        optimizer.step()
        return loss

    run, losses = step(train), []
    for _ in range(4):
        losses.append(run(u, v).item())
        scheduler.step()
    return results(model, losses)


@training
def lbfgs(T: Any, step: Any) -> Any:
    """Logistic regression and Rosenbrock's function by LBFGS with a strong Wolfe line search."""
    draw = np.random.default_rng(6)
    x, y = T.tensor(draw.normal(size=(65, 5))), T.tensor((draw.uniform(size=65) < 0.4).astype(np.float64))
    w = T.zeros(5, dtype=T.float64, requires_grad=True)
    p = T.tensor(np.array([-1.2, 1.0, 0.5, -0.3]), requires_grad=True)
    optimizer = T.optim.LBFGS([w, p], lr=1.0, max_iter=30, history_size=7, line_search_fn="strong_wolfe")

    def loss() -> Any:
        rosenbrock = (100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2).sum()
        return T.nn.functional.binary_cross_entropy_with_logits(x @ w, y) + 1e-2 * w.dot(w) + 1e-2 * rosenbrock

    def closure() -> Any:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    first = optimizer.step(closure)
    return [np.array([float(first)]), w.detach().numpy(), p.detach().numpy()]


@training
def transformer(T: Any, step: Any) -> Any:
    """A small language model: TransformerEncoder with a mask, weight tying, parameter groups, gradient accumulation, EMA."""
    nn, F = T.nn, T.nn.functional

    class LM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.position = nn.Embedding(17, 12), nn.Parameter(T.zeros(1, 11, 12))
            layer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(12), enable_nested_tensor=False)
            self.head = nn.Linear(12, 17, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Any) -> Any:
            n = tokens.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(n, dtype=T.float64)
            x = self.embed(tokens) * 12**0.5 + self.position[:, :n]
            return self.head(self.blocks(x, mask=mask, is_causal=True))

    draw = np.random.default_rng(7)
    model = filled(T, LM())
    decay = [p for n, p in model.named_parameters() if p.dim() > 1]
    rest = [p for n, p in model.named_parameters() if p.dim() <= 1]
    optimizer = T.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 3e-3}], lr=1e-2)
    warm = T.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 3))
    average = T.optim.swa_utils.AveragedModel(model, multi_avg_fn=T.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    batches = [T.tensor(draw.integers(0, 17, (3, 10))) for _ in range(6)]

    def accumulate(tokens: Any) -> Any:
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / 2
        loss.backward()
        return loss

    run, losses = step(accumulate), []
    for a, b in zip(batches[::2], batches[1::2], strict=True):
        optimizer.zero_grad()
        losses += [run(a).item(), run(b).item()]
        optimizer.step()
        warm.step()
        average.update_parameters(model)
    return results(model, losses) + results(average, [])


@training
def physics_informed(T: Any, step: Any) -> Any:
    """A PINN of the heat equation: derivatives of the network in the loss, by autograd.grad twice."""
    nn = T.nn
    model = filled(T, nn.Sequential(nn.Linear(2, 13), nn.Tanh(), nn.Linear(13, 13), nn.Tanh(), nn.Linear(13, 1)))
    optimizer = T.optim.RAdam(model.parameters(), lr=1e-2)
    draw = np.random.default_rng(8)

    def train(points: Any, edge: Any) -> Any:
        points = points.clone().requires_grad_(True)
        u = model(points)
        (first,) = T.autograd.grad(u, points, T.ones_like(u), create_graph=True)
        (second,) = T.autograd.grad(first[:, 0], points, T.ones_like(first[:, 0]), create_graph=True)
        residual = first[:, 1] - 0.1 * second[:, 0]
        loss = residual.square().mean() + (model(edge).squeeze(-1) - T.sin(pi * edge[:, 0])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = step(train)
    return results(model, [run(T.tensor(draw.uniform(size=(31, 2))), T.tensor(draw.uniform(size=(7, 2)))).item() for _ in range(4)])
