"""Programs as torch's users and scientists write them, for `test_programs.py`: each returns tensors, and runs in torch as well.

m: tracegrad, or torch to get the values to expect. c: what steps are decorated with (tg.trace, or nothing).
"""

from __future__ import annotations

import numpy as np

PROGRAMS = {}


def p(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


def arr(m, seed, *shape, dtype=None):
    a = np.random.RandomState(seed).normal(size=shape)
    return m.tensor(a.astype(dtype or np.float32))


def ints(m, seed, hi, *shape):
    return m.tensor(np.random.RandomState(seed).randint(0, hi, shape))


def fill(m, *mods, seed=3, s=0.3):
    r = np.random.RandomState(seed)
    with m.no_grad():
        for mod in mods:
            for q in mod.parameters():
                q.copy_(m.tensor(r.uniform(-s, s, tuple(q.shape)).astype(np.float32)))


def params(mods):
    return [q for mod in mods for q in mod.parameters()]


@p
def mlp_closure_sgd(m, c):
    nn, F = m.nn, m.nn.functional
    net = nn.Sequential(nn.Linear(13, 33), nn.Tanh(), nn.Linear(33, 7))
    fill(m, net)
    opt = m.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
    x, y = arr(m, 0, 65, 13), ints(m, 1, 7, 65)

    def step(x, y):
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
            loss.backward()
            return loss

        return opt.step(closure).detach()

    step = c(step)
    return [step(x, y) for _ in range(5)] + params([net])


@p
def weight_sharing(m, c):
    nn, F = m.nn, m.nn.functional
    emb = nn.Embedding(31, 16)
    dec = nn.Linear(16, 31, bias=False)
    dec.weight = emb.weight
    mid = nn.Linear(16, 16)
    fill(m, emb, mid)
    opt = m.optim.Adam(list(emb.parameters()) + list(mid.parameters()), lr=1e-2)
    idx, tgt = ints(m, 0, 31, 5, 13), ints(m, 1, 31, 5, 13)

    def step(i, t):
        opt.zero_grad()
        h = F.gelu(mid(emb(i)))
        loss = F.cross_entropy(dec(h).reshape(-1, 31), t.reshape(-1))
        loss.backward()
        opt.step()
        return loss.detach()

    step = c(step)
    return [step(idx, tgt) for _ in range(4)] + params([emb, mid])


@p
def grad_accumulation_clipping(m, c):
    nn, F = m.nn, m.nn.functional
    net = nn.Sequential(nn.Linear(7, 31), nn.ReLU(), nn.Linear(31, 3))
    fill(m, net)
    opt = m.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)

    def step(xs, ys):
        opt.zero_grad()
        tot = 0.0
        for k in range(4):
            loss = F.mse_loss(net(xs[k]), ys[k]) / 4
            loss.backward()
            tot = tot + loss.detach()
        n = nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        opt.step()
        return tot, n

    step = c(step)
    out = []
    for i in range(3):
        out += step(arr(m, i, 4, 16, 7), arr(m, 9 + i, 4, 16, 3))
    return out + params([net])


@p
def maml(m, c):
    def net(w1, b1, w2, x):
        return m.tanh(x @ w1 + b1) @ w2

    w = [arr(m, i, *s).mul(0.5).requires_grad_() for i, s in enumerate([(1, 33), (33,), (33, 1)])]

    def step(xs, ys, xq, yq, *w):
        total = 0
        for k in range(3):
            fast = w
            for _ in range(2):
                loss = ((net(*fast, xs[k]) - ys[k]) ** 2).mean()
                g = m.autograd.grad(loss, fast, create_graph=True)
                fast = [a - 0.1 * b for a, b in zip(fast, g, strict=False)]
            total = total + ((net(*fast, xq[k]) - yq[k]) ** 2).mean()
        return (total.detach(), *m.autograd.grad(total, w))

    return list(c(step)(arr(m, 5, 3, 16, 1), arr(m, 6, 3, 16, 1), arr(m, 7, 3, 16, 1), arr(m, 8, 3, 16, 1), *w))


@p
def implicit_diff(m, c):
    A = arr(m, 0, 16, 16, dtype=np.float64) * 0.05
    b = arr(m, 1, 16, dtype=np.float64)

    class Fix(m.autograd.Function):
        @staticmethod
        def forward(ctx, A, b):
            x = m.zeros_like(b)
            for _ in range(30):
                x = m.tanh(A @ x + b)
            ctx.save_for_backward(A, b, x)
            return x

        @staticmethod
        def backward(ctx, g):
            A, _b, x = ctx.saved_tensors
            d = 1 - x * x
            v = g
            for _ in range(30):
                v = A.t() @ (d * v) + g
            v = v * d
            return m.outer(v, x), v

    def f(A, b):
        A, b = A.clone().requires_grad_(), b.clone().requires_grad_()
        x = Fix.apply(A, b)
        (x * x).sum().backward()
        return x.detach(), A.grad, b.grad

    return list(c(f)(A, b))


@p
def newton(m, c):
    def f(x):
        return ((x[1:] - x[:-1] ** 2) ** 2 * 10 + (1 - x[:-1]) ** 2).sum()

    x = arr(m, 2, 7, dtype=np.float64) * 0.2

    def step(x):
        x = x.detach().clone().requires_grad_()
        (g,) = m.autograd.grad(f(x), x, create_graph=True)
        H = m.stack([m.autograd.grad(g[i], x, retain_graph=True)[0] for i in range(7)])
        d = m.zeros(7, dtype=m.float64)
        r = g.detach()
        q = r
        for _ in range(7):  # CG
            hq = H @ q
            a = (r @ r) / (q @ hq)
            d = d + a * q
            r2 = r - a * hq
            q = r2 + (r2 @ r2) / (r @ r) * q
            r = r2
        return (x - 0.1 * d).detach(), g.detach(), H

    step = c(step)
    out = []
    for _ in range(3):
        x, g, H = step(x)
        out += [x, g, H]
    return out


@p
def adjoint_heat_roll(m, c):
    u0 = arr(m, 0, 33, 65, dtype=np.float64)

    def solve(u, k):
        for _ in range(6):
            u = u + k * (m.roll(u, 1, 0) + m.roll(u, -1, 0) + m.roll(u, 1, 1) + m.roll(u, -1, 1) - 4 * u)
        return u

    def g(u, k):
        u, k = u.clone().requires_grad_(), k.clone().requires_grad_()
        v = solve(u, k)
        (v[::2, 1::3] ** 2).sum().backward()
        return v.detach(), u.grad, k.grad

    return list(c(g)(u0, m.full((33, 65), 0.1, dtype=m.float64)))


@p
def advection_pad(m, c):
    F = m.nn.functional

    def g(u):
        u = u.clone().requires_grad_()
        v = u
        for _ in range(4):
            e = F.pad(v[None, None], (2, 2), mode="circular")[0, 0]
            flux = 0.5 * e[1:-1] ** 2
            v = v - 0.05 * (flux[1:-1] - flux[:-2]) + 0.01 * (e[3:-1] - 2 * e[2:-2] + e[1:-3])
        w = F.pad(v[None, None], (3, 5), mode="reflect")[0, 0]
        z = F.pad(v[None], (1, 2), mode="constant", value=2.0)[0]
        ((w * m.arange(w.shape[0])).sum() + z.pow(3).sum()).backward()
        return v.detach(), w.detach(), z.detach(), u.grad

    return list(c(g)(arr(m, 0, 100)))


@p
def wave_leapfrog_inplace(m, c):
    def g(u):
        u = u.clone().requires_grad_()
        a, b = u * 1, u * 0.9
        for _k in range(5):
            n = 2 * a - b
            n[1:-1, 1:-1] += 0.2 * (a[2:, 1:-1] + a[:-2, 1:-1] + a[1:-1, 2:] + a[1:-1, :-2] - 4 * a[1:-1, 1:-1])
            n[0] = 0
            n[-1] = 0
            n[:, 0] = n[:, 1]
            n[:, -1] = n[:, -2]
            a, b = n, a
        (a * a).sum().backward()
        return a.detach(), u.grad

    return list(c(g)(arr(m, 0, 31, 33)))


@p
def masked_updates(m, c):
    def g(x, mask):
        x = x.clone().requires_grad_()
        y = x * 2
        y[mask] = 0.5
        y[:, 3] *= 2
        y.masked_fill_(y > 2, -1.0)
        z = m.where(mask, y, x**2)
        z[2:5].clamp_(min=-0.5)
        v = z.view(-1)
        v[::3] += x.reshape(-1)[::3]
        (z * z * m.arange(z.numel(), dtype=z.dtype).view_as(z)).mean().backward()
        return z.detach(), x.grad

    x = arr(m, 0, 16, 13)
    return list(c(g)(x, x > 0.3))


@p
def onehot_einsum(m, c):
    F = m.nn.functional

    def g(i, w, v):
        w, v = w.clone().requires_grad_(), v.clone().requires_grad_()
        h = F.one_hot(i, 13).to(w.dtype)
        a = m.einsum("bsk,kd->bsd", h, w)
        s = m.einsum("bsd,btd->bst", a, a)
        p_ = s.softmax(-1)
        o = m.einsum("bst,btd,de->bse", p_, a, v)
        (o**2).mean().backward()
        return o.detach(), w.grad, v.grad

    return list(c(g)(ints(m, 0, 13, 5, 7), arr(m, 1, 13, 16), arr(m, 2, 16, 9)))


@p
def index_put_accumulate(m, c):
    def g(x, i, j, v):
        x, v = x.clone().requires_grad_(), v.clone().requires_grad_()
        y = x * 1
        y = (y.view(-1).scatter_add(0, i * 16 + j, v)).view(13, 16)
        y[i[:1], j[:1]] = v[:1] * 2
        z = y.index_add(0, i[:7], x[:7] * 2, alpha=0.5)
        w = m.zeros(13, 16).scatter_add(1, j.reshape(1, -1).expand(13, -1) % 16, v.expand(13, -1))
        (z.sin().sum() + (w * z).sum()).backward()
        return z.detach(), w.detach(), x.grad, v.grad

    return list(c(g)(arr(m, 0, 13, 16), ints(m, 1, 13, 33), ints(m, 2, 16, 33), arr(m, 3, 33)))


@p
def cumulative(m, c):
    def g(x):
        x = x.clone().requires_grad_()
        a = x.cumsum(1)
        b = (x.abs() + 0.5).cumprod(0)
        d = m.log(m.exp(x).cumsum(1))
        ((a * b).mean() + d.flip(1).cumsum(1).mean()).backward()
        return a.detach(), b.detach(), d.detach(), x.grad

    return list(c(g)(arr(m, 0, 7, 65)))


@p
def sort_gather_topk(m, c):
    def g(x, w):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        s, i = x.sort(1, descending=True)
        t = w.gather(1, i)
        v, k = (x * w).topk(5, dim=1)
        q = m.take_along_dim(w, k, 1)
        r = x.argsort(1)
        inv = r.argsort(1)
        ((s * t.cumsum(1)).sum() + (v * q).sum() + (x.gather(1, r) * inv).sum()).backward()
        return s.detach(), i, v.detach(), k, inv, x.grad, w.grad

    return list(c(g)(arr(m, 0, 13, 33), arr(m, 1, 13, 33)))


@p
def rnn_loop(m, c):
    nn, F = m.nn, m.nn.functional
    wx, wh, out = nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 3)
    fill(m, wx, wh, out)
    opt = m.optim.Adam(params([wx, wh, out]), lr=1e-2)

    def step(x, y, h):
        h = h.detach()
        opt.zero_grad()
        loss = 0
        for t in range(x.shape[1]):
            h = m.tanh(wx(x[:, t]) + wh(h))
            loss = loss + F.smooth_l1_loss(out(h), y[:, t])
        loss.backward()
        opt.step()
        return loss.detach(), h.detach()

    step = c(step)
    h = m.zeros(7, 16)
    o = []
    for i in range(3):
        l, h = step(arr(m, i, 7, 13, 5), arr(m, 10 + i, 7, 13, 3), h)
        o += [l, h]
    return o + params([wx, wh, out])


@p
def python_while(m, c):
    def power(A, n):
        v = m.ones(A.shape[0], dtype=A.dtype)
        k = 0
        while k < n:
            v = A @ v
            if k % 2:
                v = v / v.norm()
            k += 1
        return v

    def g(A):
        A = A.clone().requires_grad_()
        v = power(A, 7)
        lam = v @ (A @ v) / (v @ v)
        lam.backward()
        return lam.detach(), A.grad

    B = arr(m, 0, 16, 16, dtype=np.float64)
    return list(c(g)(B @ B.t()))


@p
def convnet_bn_dropoutless(m, c):
    nn, F = m.nn, m.nn.functional
    net = nn.Sequential(
        nn.Conv2d(3, 7, 3, padding=1, stride=2),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(7, 13, 3, bias=False),
        nn.GroupNorm(1, 13),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(52, 5),
    )
    fill(m, net)
    opt = m.optim.SGD(net.parameters(), lr=0.05)

    def step(x, y):
        net.train()
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    step = c(step)
    o = [step(arr(m, i, 4, 3, 31, 33), ints(m, i, 5, 4)) for i in range(3)]
    net.eval()
    return o + [net(arr(m, 9, 2, 3, 31, 33))] + params([net]) + [net[1].running_mean, net[1].running_var]


@p
def attention_causal_train(m, c):
    nn, F = m.nn, m.nn.functional
    emb, qkv, out, ln = nn.Embedding(29, 32), nn.Linear(32, 96), nn.Linear(32, 29), nn.LayerNorm(32)
    fill(m, emb, qkv, out)
    opt = m.optim.SGD(params([emb, qkv, out, ln]), lr=0.3)

    def step(t):
        opt.zero_grad()
        x = emb(t[:, :-1])
        B, T, C = x.shape
        q, k, v = qkv(ln(x)).split(32, dim=2)
        q, k, v = (a.view(B, T, 4, 8).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(B, T, C)
        loss = F.cross_entropy(out(x + y).transpose(1, 2), t[:, 1:])
        loss.backward()
        opt.step()
        return loss.detach()

    step = c(step)
    return [step(ints(m, i, 29, 5, 17)) for i in range(3)] + params([emb, qkv, out, ln])


@p
def dqn_target(m, c):
    nn, F = m.nn, m.nn.functional
    q, t = nn.Sequential(nn.Linear(4, 33), nn.ReLU(), nn.Linear(33, 3)), nn.Sequential(nn.Linear(4, 33), nn.ReLU(), nn.Linear(33, 3))
    fill(m, q)
    t.load_state_dict(q.state_dict())
    opt = m.optim.Adam(q.parameters(), lr=1e-2)

    def step(s, a, r, s2, done):
        v = q(s).gather(1, a.unsqueeze(1)).squeeze(1)
        with m.no_grad():
            tgt = r + 0.9 * t(s2).max(1)[0] * (1 - done)
        loss = F.huber_loss(v, tgt)
        opt.zero_grad()
        loss.backward()
        for pp in q.parameters():
            pp.grad.data.clamp_(-0.01, 0.01)
        opt.step()
        return loss.detach()

    step = c(step)
    o = []
    for i in range(4):
        o.append(step(arr(m, i, 31, 4), ints(m, i, 3, 31), arr(m, i + 20, 31), arr(m, i + 40, 31, 4), ints(m, i, 2, 31).float()))
        if i == 1:
            t.load_state_dict(q.state_dict())
    return o + params([q, t])


@p
def hvp_and_double_backward(m, c):
    def g(x, v):
        x = x.clone().requires_grad_()
        y = (m.sin(x) * m.exp(-(x**2)) + m.sqrt(x**2 + 1).log()).sum() + (x[None] * x[:, None]).tril().pow(2).sum()
        (g1,) = m.autograd.grad(y, x, create_graph=True)
        (h,) = m.autograd.grad(g1, x, v, create_graph=True)
        (t,) = m.autograd.grad((h * v).sum(), x)
        return g1.detach(), h.detach(), t

    return list(c(g)(arr(m, 0, 31, dtype=np.float64), arr(m, 1, 31, dtype=np.float64)))


@p
def soft_dtw(m, c):
    def g(x, y):
        x = x.clone().requires_grad_()
        D = (x[:, None] - y[None]) ** 2
        n, k = D.shape
        inf = m.full((), 1e9)
        prev = [m.zeros(())] + [inf] * k
        for i in range(n):
            cur = [inf]
            for j in range(k):
                cur.append(D[i, j] - m.logsumexp(-m.stack([prev[j], prev[j + 1], cur[j]]), 0))
            prev = cur
        prev[-1].backward()
        return prev[-1].detach(), x.grad

    return list(c(g)(arr(m, 0, 7), arr(m, 1, 9)))


@p
def pinn_laplacian(m, c):
    w1, b1, w2 = arr(m, 0, 2, 31).requires_grad_(), arr(m, 1, 31).requires_grad_(), arr(m, 2, 31).requires_grad_()

    def loss(xy, w1, b1, w2):
        xy = xy.clone().requires_grad_()
        u = m.tanh(xy @ w1 + b1) @ w2
        (g,) = m.autograd.grad(u.sum(), xy, create_graph=True)
        lap = 0
        for k in range(2):
            lap = lap + m.autograd.grad(g[:, k].sum(), xy, create_graph=True)[0][:, k]
        l = ((lap + u) ** 2).mean()
        l.backward()
        o = [l.detach(), lap.detach(), w1.grad.clone(), b1.grad.clone(), w2.grad.clone()]
        for q in (w1, b1, w2):
            q.grad = None
        return o

    f = c(loss)
    return list(f(arr(m, 3, 65, 2), w1, b1, w2)) + list(f(arr(m, 4, 65, 2), w1, b1, w2))


@p
def triangular_views_inplace(m, c):
    def g(x):
        x = x.clone().requires_grad_()
        a = x * 1
        d = a.diagonal()
        d *= 3
        a.t()[0] += x[:, 1]
        b = a.unfold(1, 3, 2).sum(-1)
        a[1::2, ::3] = b[1::2, :1]
        r = a.reshape(13, 4, 4).permute(2, 0, 1)
        r[1] -= 1.0
        q = a.flip(0)[:5]
        e = a[[0, 2, 2]]
        s = a.narrow(0, 2, 3).clone()
        s.zero_()
        (a.square().sum() + (q * 2).sum() + e.exp().mean() + b.sum()).backward()
        return a.detach(), b.detach(), x.grad

    return list(c(g)(arr(m, 0, 13, 16)))


@p
def multi_task_retain(m, c):
    nn, F = m.nn, m.nn.functional
    t, a, b = nn.Linear(13, 31), nn.Linear(31, 3), nn.Linear(31, 5)
    fill(m, t, a, b)

    def step(x, y, z):
        for q in params([t, a, b]):
            q.grad = None
        h = F.elu(t(x))
        l1, l2 = F.cross_entropy(a(h), y), F.nll_loss(F.log_softmax(b(h), 1), z)
        g1 = m.autograd.grad(l1, t.weight, retain_graph=True)[0]
        g2 = m.autograd.grad(l2, t.weight, retain_graph=True)[0]
        w = g2.norm() / (g1.norm() + g2.norm())
        (w * l1 + (1 - w) * l2).backward()
        with m.no_grad():
            for q in params([t, a, b]):
                q -= 0.1 * q.grad
        return l1.detach(), l2.detach(), w

    step = c(step)
    o = []
    for i in range(3):
        o += step(arr(m, i, 33, 13), ints(m, i, 3, 33), ints(m, i + 9, 5, 33))
    return o + params([t, a, b])


@p
def traced_pieces(m, c):
    """Separately compiled forward pieces, joined untraced, one backward outside."""
    nn, F = m.nn, m.nn.functional
    a, b = nn.Linear(13, 31), nn.Linear(31, 5)
    fill(m, a, b)
    f = c(lambda x: F.gelu(a(x)))
    g = c(lambda h, y: F.cross_entropy(b(h), y))
    reg = c(lambda h: (h * h).mean())
    opt = m.optim.SGD(params([a, b]), lr=0.2)
    o = []
    for i in range(3):
        h = f(arr(m, i, 33, 13))
        h2 = f(arr(m, i, 33, 13))
        l = g(h, ints(m, i, 5, 33)) + 0.1 * reg(h) + 0.05 * reg(h2[:7])
        opt.zero_grad()
        l.backward()
        opt.step()
        o.append(l.detach())
    return o + params([a, b])


@p
def double_backward_through_pieces(m, c):
    f = c(lambda x, w: m.tanh(x @ w).sum(1))
    x, w = arr(m, 0, 13, 7).requires_grad_(), arr(m, 1, 7, 16).requires_grad_()
    s = f(x, w)
    (g,) = m.autograd.grad(s.sum(), x, create_graph=True)
    pen = ((g.norm(dim=1) - 1) ** 2).mean()
    (pen + s.mean()).backward()
    return [s.detach(), g.detach(), x.grad, w.grad]


@p
def wgan_nested_module_state(m, c):
    nn = m.nn

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(7, 7)
            s.register_buffer("u", arr(m, 4, 7))

        def forward(s, x):
            with m.no_grad():
                v = s.l.weight.t() @ s.u
                v = v / v.norm()
                u = s.l.weight @ v
                s.u.copy_(u / u.norm())
            sigma = s.u.clone() @ (s.l.weight @ v)
            return x @ (s.l.weight / sigma).t() + s.l.bias

    net = Net()
    fill(m, net)
    opt = m.optim.Adam(net.parameters(), lr=0.01, betas=(0.0, 0.9))

    def step(x):
        opt.zero_grad()
        l = (net(x) ** 2).mean() - net(x * 0.5).mean()
        l.backward()
        opt.step()
        return l.detach()

    step = c(step)
    return [step(arr(m, i, 16, 7)) for i in range(4)] + params([net]) + [net.u]


@p
def lr_schedule_and_groups(m, c):
    nn = m.nn
    a, b = nn.Linear(7, 7), nn.Linear(7, 3)
    fill(m, a, b)
    opt = m.optim.SGD([{"params": a.parameters(), "lr": 0.1}, {"params": b.parameters(), "weight_decay": 0.01}], lr=0.05, momentum=0.9)

    def step(x):
        opt.zero_grad()
        l = (b(m.relu(a(x))) ** 2).mean()
        l.backward()
        opt.step()
        return l.detach()

    step = c(step)
    o = []
    for i in range(5):
        for k, g in enumerate(opt.param_groups):
            g["lr"] = 0.1 / (1 + i + k)
        o.append(step(arr(m, i, 33, 7)))
    return o + params([a, b])


@p
def frozen_layers_toggle(m, c):
    nn = m.nn
    a, b = nn.Linear(7, 16), nn.Linear(16, 3)
    fill(m, a, b)
    opt = m.optim.SGD(params([a, b]), lr=0.1)
    o = []

    def step(x):
        opt.zero_grad()
        l = (b(m.tanh(a(x))) ** 2).mean()
        l.backward()
        opt.step()
        return l.detach()

    step = c(step)
    for i in range(6):
        for q in a.parameters():
            q.requires_grad_(i % 2 == 0)
        o.append(step(arr(m, i, 33, 7)))
    return o + params([a, b])


@p
def inplace_state_views(m, c):
    buf = m.zeros(4, 16)
    head = buf[1]
    ptr = m.zeros(1, dtype=m.int64)

    def push(x):
        buf[2:].mul_(0.5)
        head.add_(x)
        buf[:, ::3] += 1
        buf[3].copy_(head * 2)
        ptr.add_(1)
        return buf.sum(), head * 1

    push = c(push)
    o = []
    for i in range(4):
        o += push(arr(m, i, 16))
    return o + [buf, head, ptr]


@p
def kv_cache_decode(m, c):
    F = m.nn.functional
    w = arr(m, 0, 16, 48) * 0.3
    K, V = m.zeros(13, 16), m.zeros(13, 16)

    def step(x, t):
        q, k, v = (x @ w).chunk(3, -1)
        K[t] = k
        V[t] = v
        mask = m.arange(13) <= t
        s = (K @ q) / 4.0
        s = s.masked_fill(~mask, float("-inf"))
        return F.softmax(s, 0) @ V

    step = c(step)
    x = arr(m, 1, 16)
    o = []
    for t in range(9):
        x = step(x, m.tensor(t))
        o.append(x)
    return o + [K, V]
