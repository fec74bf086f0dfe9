"""Ways of training, for the lists of user_programs.py: derivatives of training steps, adjoints, curvature by hooks, queues and averages."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from tests.programs.user_programs import filled, results, training


@training
def meta_learning(T: Any, step: Any) -> Any:
    """MAML through functional_call with second derivatives, and learning rates learned through unrolled steps with momentum."""
    nn, F, call = T.nn, T.nn.functional, T.func.functional_call
    draw = np.random.default_rng(11)
    model = filled(T, nn.Sequential(nn.Linear(2, 37), nn.Tanh(), nn.Linear(37, 1)))
    rates = {k: T.tensor(-3.0, dtype=T.float64, requires_grad=True) for k, _ in model.named_parameters()}
    optimizer = T.optim.Adam([*model.parameters(), *rates.values()], lr=1e-2)

    def train(x: Any, y: Any, new_x: Any, new_y: Any) -> Any:
        optimizer.zero_grad()
        total = 0.0
        for task in range(x.shape[0]):
            weights, speed = dict(model.named_parameters()), {k: T.zeros_like(p) for k, p in model.named_parameters()}
            for _ in range(2):
                grads = T.autograd.grad(F.mse_loss(call(model, weights, (x[task],)), y[task]), tuple(weights.values()), create_graph=True)
                speed = {k: 0.9 * speed[k] + g for k, g in zip(weights, grads, strict=True)}
                weights = {k: p - rates[k].exp() * speed[k] for k, p in weights.items()}
            total = total + F.mse_loss(call(model, weights, (new_x[task],)), new_y[task])
        total.backward()
        optimizer.step()
        return total

    run = step(train)
    losses = [run(*(T.tensor(draw.normal(size=(3, 12, k))) for k in (2, 1, 2, 1))).item() for _ in range(4)]
    return [*results(model, losses), *(r.detach().numpy() for r in rates.values())]


@training
def adjoint(T: Any, step: Any) -> Any:
    """A neural ODE whose backward, a custom Function, solves the adjoint equation with autograd.grad of the network."""
    nn = T.nn
    draw = np.random.default_rng(12)
    field = filled(T, nn.Sequential(nn.Linear(5, 65), nn.Tanh(), nn.Linear(65, 5)))
    weights = tuple(field.parameters())

    class Solve(T.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Any, h: float, iterations: int, *weights: Any) -> Any:
            for _ in range(iterations):
                z = z + h * field(z)
            ctx.h, ctx.iterations = h, iterations
            ctx.save_for_backward(z)
            return z

        @staticmethod
        def backward(ctx: Any, adjoint: Any) -> Any:
            z, = ctx.saved_tensors
            totals = [T.zeros_like(w) for w in weights]
            for _ in range(ctx.iterations):
                with T.enable_grad():
                    here = z.detach().requires_grad_()
                    slope = field(here)
                    grads = T.autograd.grad(slope, (here, *weights), adjoint)
                z = z - ctx.h * slope.detach()
                adjoint = adjoint + ctx.h * grads[0]
                totals = [t + ctx.h * g for t, g in zip(totals, grads[1:], strict=True)]
            return adjoint, None, None, *totals

    optimizer = T.optim.RMSprop(weights, lr=1e-2, centered=True)

    def train(z: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = (Solve.apply(z, 0.1, 6, *weights) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = step(train)
    return results(field, [run(*(T.tensor(draw.normal(size=(12, 5))) for _ in range(2))).item() for _ in range(5)])


@training
def curvature(T: Any, step: Any) -> Any:
    """K-FAC: hooks keep averages of what goes through each layer both ways; steps along their eigenvectors. Untraced."""
    nn, F = T.nn, T.nn.functional
    draw = np.random.default_rng(13)
    model = filled(T, nn.Sequential(nn.Linear(7, 37), nn.ReLU(), nn.Linear(37, 3)))
    inputs, slopes = {}, {}

    def forward(layer: Any, args: Any, y: Any) -> None:
        a = T.cat([args[0], args[0].new_ones(args[0].shape[0], 1)], 1).detach()
        inputs[layer] = 0.9 * inputs.get(layer, 0) + a.T @ a / len(a)

    def backward(layer: Any, into: Any, out: Any) -> None:
        slopes[layer] = 0.9 * slopes.get(layer, 0) + out[0].T @ out[0] * len(out[0])

    for layer in (model[0], model[2]):
        layer.register_forward_hook(forward)
        layer.register_full_backward_hook(backward)
    losses = []
    for _ in range(5):
        model.zero_grad()
        loss = F.cross_entropy(model(T.tensor(draw.normal(size=(31, 7)))), T.tensor(draw.integers(0, 3, 31)))
        loss.backward()
        losses.append(loss.item())
        with T.no_grad():
            for layer, a in inputs.items():
                (left, u), (right, v) = T.linalg.eigh(slopes[layer]), T.linalg.eigh(a)
                g = T.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
                g = u @ ((u.T @ g @ v) / (left[:, None] * right + 1e-2)) @ v.T
                layer.weight -= 0.02 * g[:, :-1]
                layer.bias -= 0.02 * g[:, -1]
    return results(model, losses)


@training
def self_supervised(T: Any, step: Any) -> Any:
    """MoCo's queue, BYOL's averaged network, DINO's centre, SwAV's Sinkhorn iterations in place, VICReg's and Barlow Twins' losses."""
    nn, F = T.nn, T.nn.functional
    draw = np.random.default_rng(14)
    net = filled(T, nn.Sequential(nn.Linear(6, 37), nn.BatchNorm1d(37), nn.ReLU(inplace=True), nn.Linear(37, 8, bias=False)))
    slow = copy.deepcopy(net).requires_grad_(False)
    head = filled(T, nn.Linear(8, 8))
    optimizer = T.optim.SGD([*net.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    queue, center = F.normalize(T.tensor(draw.normal(size=(8, 36))), dim=0), T.zeros(1, 8, dtype=T.float64)

    def off_diagonal(x: Any) -> Any:
        n = len(x)
        return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()

    def train(a: Any, b: Any) -> Any:
        optimizer.zero_grad()
        x, y = net(a), net(b)
        with T.no_grad():
            for p, q in zip(net.parameters(), slow.parameters(), strict=True):
                q.data = q.data * 0.9 + p.data * 0.1
            keys, teacher = F.normalize(slow(b), dim=1), slow(a)
        query = F.normalize(x, dim=1)
        scores = T.cat([T.einsum("nc,nc->n", query, keys)[:, None], query @ queue.clone()], 1)
        loss = F.cross_entropy(scores / 0.2, T.zeros(len(a), dtype=T.long)) - F.cosine_similarity(head(x), y.detach(), dim=-1).mean()
        loss = loss - (F.softmax((teacher - center) / 0.5, -1) * F.log_softmax(y / 0.7, -1)).sum(-1).mean()
        spread = x - x.mean(0)
        loss = loss + off_diagonal(spread.T @ spread / (len(a) - 1)).pow(2).sum() / 8 + F.relu(1 - (x.var(0) + 1e-4).sqrt()).mean()
        twins = x.T @ y / len(a)
        loss = loss + 0.1 * (twins.diagonal().add(-1).pow(2).sum() + 0.01 * off_diagonal(twins).pow_(2).sum())
        with T.no_grad():
            codes = (x / 2).exp().t()
            codes /= codes.sum()
            for _ in range(3):
                codes /= codes.sum(1, keepdim=True) * 8
                codes /= codes.sum(0, keepdim=True) * len(a)
            codes *= len(a)
        loss = loss - (codes.t() * F.log_softmax(y, 1)).sum(1).mean()
        loss.backward()
        optimizer.step()
        with T.no_grad():
            center.mul_(0.9).add_(teacher.mean(0, keepdim=True), alpha=0.1)
        return loss, keys

    losses = []
    for k in range(5):                  # untraced: what p.data is replaced by is no tensor's change that a replay could make
        loss, keys = train(*(T.tensor(draw.normal(size=(12, 6))) for _ in range(2)))
        queue[:, 12 * k % 36:12 * k % 36 + 12] = keys.T
        losses.append(loss.item())
    return [*results(net, losses), *results(slow, losses), queue.numpy(), center.numpy()]


@training
def selective_state_space(T: Any, step: Any) -> Any:
    """A Mamba block by its recurrence; Adafactor with a group of weights and one of biases, whose norms are each one's own."""
    nn, F = T.nn, T.nn.functional
    draw = np.random.default_rng(15)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.conv = nn.Linear(6, 12), nn.Conv1d(6, 6, 4, groups=6, padding=3)
            self.select, self.rate, self.out = nn.Linear(6, 10), nn.Linear(2, 6), nn.Linear(6, 6)
            self.decay, self.skip = nn.Parameter(T.zeros(6, 4)), nn.Parameter(T.ones(6))

        def forward(self, u: Any) -> Any:
            x, gate = self.inside(u).chunk(2, -1)
            x = F.silu(self.conv(x.transpose(1, 2))[..., :u.shape[1]].transpose(1, 2))
            d, b, c = self.select(x).split([2, 4, 4], -1)
            d = F.softplus(self.rate(d))
            keep, write = T.exp(T.einsum("bld,dn->bldn", d, -self.decay.exp())), T.einsum("bld,bln,bld->bldn", d, b, x)
            h, found = T.zeros(len(u), 6, 4, dtype=u.dtype), []
            for t in range(u.shape[1]):
                h = keep[:, t] * h + write[:, t]
                found.append(T.einsum("bdn,bn->bd", h, c[:, t]))
            return self.out((T.stack(found, 1) + x * self.skip) * F.silu(gate))

    model = filled(T, Block())
    optimizer = T.optim.Adafactor([{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
                                   {"params": [p for p in model.parameters() if p.ndim == 1]}], lr=0.05)

    def train(u: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(u[:, :-1]), u[:, 1:])
        loss.backward()
        optimizer.step()
        return loss

    run = step(train)
    return results(model, [run(T.tensor(draw.normal(size=(2, 13, 6)))).item() for _ in range(6)])
