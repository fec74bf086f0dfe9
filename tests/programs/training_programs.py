"""Trainings as repositories have them, as in user_programs.py: what they do to parameters, optimizers and models in and between steps.

Batches of several sizes, numbers that a schedule changes, state of an optimizer that is cut and grown, layers that come and go.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tests.programs.user_programs import filled, results, training


def layers(T: Any, *sizes: int, act: str = "Tanh", seed: int = 0) -> Any:
    parts: list[Any] = []
    for a, b in pairwise(sizes):
        parts += [T.nn.Linear(a, b), getattr(T.nn, act)()]
    return filled(T, T.nn.Sequential(*parts[:-1]), seed)


def batches(T: Any, count: int, seed: int = 1, classes: int = 3) -> Any:
    """(number, inputs, classes), the sixth of every six smaller than the others."""
    draw = np.random.default_rng(seed)
    for k in range(count):
        size = 12 if k % 6 != 5 else 7
        yield k, T.tensor(draw.normal(size=(size, 10))), T.tensor(draw.integers(0, classes, size))


@training
def densified(T: Any, step: Any) -> Any:
    """Splats that are cloned and pruned: parameters and the optimizer's moments are cut and put together, one group after the other."""
    nn, F = T.nn, T.nn.functional
    draw = np.random.default_rng(0)
    splats = {n: nn.Parameter(T.tensor(draw.normal(size=(20, d)))) for n, d in (("at", 2), ("colour", 3), ("opacity", 1), ("size", 2))}
    groups = [{"params": [p], "lr": 1e-2 * (i + 1), "name": n} for i, (n, p) in enumerate(splats.items())]
    optimizer = T.optim.Adam(groups, lr=0.0, eps=1e-3)
    ends = [T.linspace(-2, 2, n, dtype=T.float64) for n in (9, 8)]
    grid = T.stack(T.meshgrid(*ends, indexing="ij"), -1).reshape(-1, 2)
    image = T.tensor(draw.uniform(size=(72, 3)))
    seen = [T.zeros(20, 1, dtype=T.float64), T.zeros(20, 1, dtype=T.float64)]

    def train() -> Any:
        off = (grid[:, None] - splats["at"][None]) / F.softplus(splats["size"])[None]
        weight = T.sigmoid(splats["opacity"])[:, 0] * T.exp(-0.5 * off.pow(2).sum(-1))
        loss = F.l1_loss(weight @ T.sigmoid(splats["colour"]) / (weight.sum(1, keepdim=True) + 1), image)
        loss.backward()
        with T.no_grad():
            seen[0] += T.norm(splats["at"].grad, dim=-1, keepdim=True)
            seen[1] += 1
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss

    def changed(name: str, new: Any) -> None:
        """Every row of a parameter and of its moments as `new` makes it; a new parameter."""
        group = next(g for g in optimizer.param_groups if g["name"] == name)
        old = group["params"][0]
        state = optimizer.state.pop(old)
        splats[name] = group["params"][0] = nn.Parameter(new(old, False).detach().requires_grad_(True))
        for moment in ("exp_avg", "exp_avg_sq"):
            state[moment] = new(state[moment], True)
        optimizer.state[splats[name]] = state

    run, losses = step(train), []
    for k in range(20):
        losses.append(run().item())
        optimizer.param_groups[0]["lr"] = 1e-2 * 0.98 ** k
        if k % 6 == 5:
            with T.no_grad():
                slope = (seen[0] / seen[1]).nan_to_num(0.0)
                chosen = (slope >= slope.median()).squeeze(1)
                for name in splats:
                    changed(name, lambda x, state, at=chosen: T.cat((x, T.zeros_like(x[at]) if state else x[at] * 1.01)))
                keep = ~(T.sigmoid(splats["opacity"]) < 0.4).squeeze(1)
                for name in splats:
                    changed(name, lambda x, _, at=keep: x[at])
                seen = [T.zeros(len(splats["at"]), 1, dtype=T.float64) for _ in seen]
    return [np.array(losses), *(p.detach().numpy() for p in splats.values())]


@training
def grown(T: Any, step: Any) -> Any:
    """Layers are appended, an embedding gets more rows, what was tied is untied, the head is replaced; the optimizer learns of it."""
    nn, F = T.nn, T.nn.functional

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.parts, self.head = nn.Embedding(17, 12), nn.ModuleList([nn.Linear(12, 12)]), nn.Linear(12, 17, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Any) -> Any:
            h = self.table(x).mean(1)
            for i, part in enumerate(self.parts):
                h = h + F.gelu(part(h)) / (i + 1)
            return self.head(h)

    def anew() -> Any:
        return T.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)

    model = filled(T, Net())
    optimizer = anew()

    def train(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run, losses, draw = step(train), [], np.random.default_rng(3)
    for k in range(22):
        words = model.table.num_embeddings
        losses.append(run(T.tensor(draw.integers(0, words, (10, 5 if k % 3 else 7))), T.tensor(draw.integers(0, words, 10))).item())
        if k in (3, 6):
            model.parts.append(filled(T, nn.Linear(12, 12), k))
            optimizer.add_param_group({"params": model.parts[-1].parameters(), "lr": 3e-3})
        if k == 9:
            more = nn.Embedding(23, 12).double()
            more.weight.data[:17], more.weight.data[17:] = model.table.weight.data, model.table.weight.data.mean(0)
            model.table, model.head.weight = more, more.weight
            optimizer = anew()
        if k == 13:
            model.head.weight = nn.Parameter(model.table.weight.detach().clone())
            model.parts = nn.ModuleList([model.parts[0], model.parts[2]])
            optimizer = anew()
        if k == 17:
            model.head, model.table.weight.requires_grad = filled(T, nn.Linear(12, 23), 99), False
            optimizer = anew()
    return results(model, losses)


@training
def queued(T: Any, step: Any) -> Any:
    """MoCo: a momentum encoder whose data is replaced at every step, and a queue in a buffer that is written where a pointer points."""
    nn, F = T.nn, T.nn.functional
    online, momentum = layers(T, 10, 33, 12, act="ReLU"), layers(T, 10, 33, 12, act="ReLU")
    for p in momentum.parameters():
        p.requires_grad = False
    keeper = nn.Module()
    keeper.register_buffer("queue", F.normalize(T.tensor(np.random.default_rng(5).normal(size=(12, 65))), dim=0))
    keeper.register_buffer("pointer", T.zeros(1, dtype=T.long))
    optimizer = T.optim.SGD(online.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def train(a: Any, b: Any) -> Any:
        with T.no_grad():
            for p, q in zip(online.parameters(), momentum.parameters(), strict=True):
                q.data = q.data * 0.9 + p.data * 0.1
            key = F.normalize(momentum(b), dim=1)
        query = F.normalize(online(a), dim=1)
        logits = T.cat([T.einsum("nc,nc->n", query, key).unsqueeze(-1), query @ keeper.queue.clone().detach()], dim=1) / 0.2
        loss = F.cross_entropy(logits, T.zeros(logits.shape[0], dtype=T.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, key

    run, losses, draw = step(train), [], np.random.default_rng(4)
    for _, x, _ in batches(T, 20):
        loss, key = run(x, x + 0.1 * T.tensor(draw.normal(size=tuple(x.shape))))
        losses.append(loss.item())
        at = int(keeper.pointer)
        count = min(len(x), 65 - at)
        keeper.queue[:, at:at + count] = key.T[:, :count]
        keeper.pointer[0] = (at + count) % 65
    return [*results(online, losses), *results(momentum, []), *results(keeper, [])]


@training
def binarized(T: Any, step: Any) -> Any:
    """Weights that are their signs forward and backward, and numbers for the optimizer; an average that is put in place and taken out."""
    F = T.nn.functional
    model = layers(T, 10, 37, 12, 3, act="Hardtanh")
    optimizer = T.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    signed = [p for p in model.parameters() if p.dim() == 2]
    kept = [p.data.clone() for p in signed]
    average = {n: p.data.clone() for n, p in model.named_parameters()}

    def train(x: Any, y: Any) -> Any:
        for s, p in zip(kept, signed, strict=True):
            s.copy_(p.data)
        for p in signed:
            p.data = p.data.sign() * p.data.abs().mean(1, keepdim=True)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for s, p in zip(kept, signed, strict=True):
            p.data.copy_(s)
        optimizer.step()
        for p in signed:
            p.data.clamp_(-0.6, 0.6)
        return loss

    run, losses, found = step(train), [], []
    for k, x, y in batches(T, 20):
        losses.append(run(x, y).item())
        for n, p in model.named_parameters():
            average[n] = (0.1 * p.data + 0.9 * average[n]).clone()
        if k % 6 == 4:
            before = {n: p.data for n, p in model.named_parameters()}
            for n, p in model.named_parameters():
                p.data = average[n]
            with T.no_grad():
                found.append(model.eval()(x).numpy())
            for n, p in model.train().named_parameters():
                p.data = before[n]
    return [*results(model, losses), *found]


@training
def projected(T: Any, step: Any) -> Any:
    """Gradients of two tasks that are projected and given to parameters, after a backward of weighted losses that keeps the graph."""
    nn, F = T.nn, T.nn.functional
    body, heads = layers(T, 10, 37), nn.ModuleList([layers(T, 37, 2, seed=1), layers(T, 37, 3, seed=2)])
    doubt = nn.Parameter(T.zeros(2, dtype=T.float64))
    optimizer = T.optim.Adam([*body.parameters(), *heads.parameters(), doubt], lr=1e-2, eps=1e-3)
    shared = list(body.parameters())

    def train(x: Any, y: Any) -> Any:
        first, second = (head(T.relu(body(x))) for head in heads)
        losses = [F.mse_loss(first, x[:, :2]), F.cross_entropy(second, y)]
        optimizer.zero_grad()
        sum(T.exp(-doubt[i]) * loss + doubt[i] for i, loss in enumerate(losses)).backward(retain_graph=True)
        slopes = [T.cat([g.flatten() for g in T.autograd.grad(loss, shared, retain_graph=i == 0)]) for i, loss in enumerate(losses)]
        along = T.clamp(T.dot(*slopes), max=0)
        total = sum(g - along / (other.pow(2).sum() + 1e-12) * other for g, other in zip(slopes, slopes[::-1], strict=True))
        for p, part in zip(shared, total.split([p.numel() for p in shared]), strict=True):
            p.grad = part.view_as(p).clone()
        optimizer.step()
        return losses[0] + losses[1]

    run = step(train)
    losses = [run(x, y).item() for _, x, y in batches(T, 20)]
    return [*results(body, losses), *results(heads, []), doubt.detach().numpy()]


@training
def searched(T: Any, step: Any) -> Any:
    """DARTS of the second order: weights are moved, looked at, moved to both sides and put back, all within one step of two optimizers."""
    nn, F = T.nn, T.nn.functional

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Parameter(T.zeros(2, 3))
            self.ways = nn.ModuleList([nn.ModuleList([nn.Linear(10, 10), nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 10)),
                                                      nn.Identity()]) for _ in range(2)])
            self.head = nn.Linear(10, 3)

        def forward(self, x: Any) -> Any:
            for mix, ways in zip(self.mix, self.ways, strict=True):
                x = sum(share * way(x) for share, way in zip(F.softmax(mix, -1), ways, strict=True))
            return self.head(x)

    model = filled(T, Net())
    weights = [p for n, p in model.named_parameters() if n != "mix"]
    inner = T.optim.SGD(weights, lr=0.05, momentum=0.9)
    outer = T.optim.Adam([model.mix], lr=3e-2, betas=(0.5, 0.999), eps=1e-3)

    def train(x: Any, y: Any, xv: Any, yv: Any, rate: float) -> Any:
        slopes = T.autograd.grad(F.cross_entropy(model(x), y), weights)
        before = [p.data.clone() for p in weights]
        with T.no_grad():
            for p, g in zip(weights, slopes, strict=True):
                p.sub_(rate * g)
        here, *there = T.autograd.grad(F.cross_entropy(model(xv), yv), [model.mix, *weights])
        far = 0.01 / T.cat([g.view(-1) for g in there]).norm()
        sides = []
        for side in (1.0, -1.0):
            with T.no_grad():
                for p, b, g in zip(weights, before, there, strict=True):
                    p.copy_(b + side * far * g)
            sides.append(T.autograd.grad(F.cross_entropy(model(x), y), [model.mix])[0])
        with T.no_grad():
            for p, b in zip(weights, before, strict=True):
                p.copy_(b)
        model.mix.grad = here - rate * (sides[0] - sides[1]) / (2.0 * far)
        outer.step()
        inner.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 5.0)
        inner.step()
        return loss

    run = step(train)
    pairs = zip(batches(T, 12), batches(T, 12, seed=2), strict=True)
    return results(model, [run(x, y, xv, yv, 0.05 if k < 8 else 0.02).item() for (k, x, y), (_, xv, yv) in pairs])


@training
def annealed(T: Any, step: Any) -> Any:
    """Numbers that a schedule changes at every step: a width, a margin, a limit, a bias, a temperature; zero among them."""
    F = T.nn.functional
    model = layers(T, 10, 33, 3)
    optimizer = T.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train(x: Any, y: Any, width: float, temperature: float) -> Any:
        z = model(F.pad(x[:, 1:], (1, 0), value=width))
        centre = T.full_like(z, 0.1 * temperature)
        loss = F.smooth_l1_loss(z, centre, beta=width) + F.cross_entropy(z / T.tensor(temperature), y)
        loss = loss + F.triplet_margin_loss(z, z.roll(1, 0).detach(), F.hardtanh(z, -temperature, temperature), margin=temperature)
        loss = loss + (F.softshrink(z, width) * T.linspace(width, 1.0, 3, dtype=z.dtype)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = step(train)
    return results(model, [run(x, y, max(0.0, 0.6 - 0.05 * k), 2.0 * 0.9 ** k + 0.1).item() for k, x, y in batches(T, 20)])
