"""`halo`: blocks of a grid and their neighbours, its derivatives, and a wave in two dimensions that is the same on any number of ranks."""

from __future__ import annotations

import pytest

HALO = """
    from itertools import product
    def split(whole, mesh):
        for dim, (p, at) in enumerate(zip(mesh, np.unravel_index(rank, mesh))):
            whole = np.array_split(whole, p, dim)[at]
        return whole
    def expected(whole, mesh, depth, periodic):
        for dim, (d, wraps) in enumerate(zip(depth, periodic)):
            pad = [(0, 0)] * whole.ndim
            pad[dim] = (d, d)
            whole = np.pad(whole, pad, "wrap" if wraps else "constant")
        lengths = [[len(a) for a in np.array_split(np.arange(n - 2 * d), p)] for n, d, p in zip(whole.shape, depth, mesh)]
        for dim, (own, d, at) in enumerate(zip(lengths, depth, np.unravel_index(rank, mesh))):
            start = sum(own[:at])
            whole = np.take(whole, range(start, start + own[at] + 2 * d), dim)
        return whole
    grid = np.random.default_rng(0).normal(size=(9, 7, 3))
    meshes = [(size,), (1, size), (size, 1)] + ([(2, 2), (1, 2, 2)] if size == 4 else [])
    for mesh in meshes:
        for depth, periodic in (((1,) * len(mesh), (False,) * len(mesh)), ((2, 1, 1)[:len(mesh)], (True, False, True)[:len(mesh)]),
                                ((1, 0, 1)[:len(mesh)], (True,) * len(mesh))):
            if len(mesh) == 3 and depth[2] > 1:
                continue
            block = np.ascontiguousarray(split(grid, mesh))
            want = expected(grid, mesh, depth, periodic)
            for wrap in (lambda f: f, tg.trace)[:depth[0]]:
                found = wrap(lambda u: dist.halo(u, depth, mesh, periodic))(tg.from_numpy(block))
                same(found, want)
"""
DERIVATIVES = """
    u = tg.from_numpy(np.random.default_rng(rank).normal(size=(3, 4))).requires_grad_()
    v = tg.from_numpy(np.random.default_rng(rank + 10).normal(size=(3, 4)))
    for mesh, periodic in (((size,), False), ((size,), True), ((1, size), (True, True))):
        f = lambda u: dist.halo(u, 1, mesh, periodic)
        y = f(u)
        w = tg.from_numpy(np.random.default_rng(rank + 20).normal(size=tuple(y.shape)))
        total = lambda x: F.all_reduce(x.sum()).item()
        back = tg.autograd.grad((y * w).sum(), u)[0]
        _, ahead = tg.func.jvp(f, (u.detach(),), (v,))
        np.testing.assert_allclose(total(back * v), total(ahead * w), rtol=1e-12)           # <Jt w, v> = <w, J v> over all ranks
        for wrap in (lambda f: f, tg.trace):                    # the energy of differences: its Hessian is a symmetric stencil
            gradient = lambda x: tg.autograd.grad((f(x) ** 4).sum(), x, create_graph=True)[0]
            product = wrap(lambda x, v: tg.autograd.grad((gradient(x) * v).sum(), x)[0])
            x = u.detach().requires_grad_()
            h, z = product(x, v), tg.from_numpy(np.random.default_rng(rank + 30).normal(size=(3, 4)))
            np.testing.assert_allclose(total(h * z), total(product(x, z) * v), rtol=1e-12)
            eps = 1e-5
            g = [gradient((u.detach() + s * eps * v).requires_grad_()).detach() for s in (1, -1)]
            np.testing.assert_allclose(h.detach().numpy(), ((g[0] - g[1]) / (2 * eps)).numpy(), rtol=1e-5, atol=1e-6)
"""
ERRORS = """
    u = tg.ones(3, 2)
    assert raises(tg.errors.ArgumentError, lambda: dist.halo(u, 1, mesh=(size, 2))).startswith("halo: a mesh (")
    assert raises(tg.errors.ArgumentError, lambda: dist.halo(u, [1, 1])).startswith("halo: depth is one value")
    assert raises(tg.errors.ShapeError, lambda: dist.halo(u, 4)).startswith("halo: a depth of 4 in dimension 0 of a block of shape (3, 2)")
"""
WAVE = """
    n, steps = 24, 10
    rng = np.random.default_rng(1)
    start, speed = rng.normal(size=(n, n)), 1 + 0.2 * rng.random((n, n))
    def laplace(v):
        return v[2:, 1:-1] + v[:-2, 1:-1] + v[1:-1, 2:] + v[1:-1, :-2] - 4 * v[1:-1, 1:-1]
    def wave(u, c, around, add):
        before = u
        for _ in range(steps):
            before, u = u, 2 * u - before + 0.1 * c * c * laplace(around(u))
        return add((u * u).sum())
    def gradient(u, c, around, add, traced):
        def f(u, c):
            loss = wave(u, c, around, add)
            return loss, *tg.autograd.grad(loss, [u, c])
        loss, du, dc = (tg.trace(f) if traced else f)(tg.from_numpy(u).requires_grad_(), tg.from_numpy(c).requires_grad_())
        return loss.item(), du.numpy(), dc.numpy()
    for periodic in (False, True):
        def whole(u):
            u = tg.cat([u[-1:], u, u[:1]], 0) if periodic else nn.functional.pad(u, (0, 0, 1, 1))
            return tg.cat([u[:, -1:], u, u[:, :1]], 1) if periodic else nn.functional.pad(u, (1, 1))
        alone = gradient(start, speed, whole, lambda x: x, False)
        for mesh in {(size, 1), (2, size // 2) if size % 2 == 0 else (1, size)}:
            own = lambda a: np.ascontiguousarray(np.split(np.split(a, mesh[0])[rank // mesh[1]], mesh[1], 1)[rank % mesh[1]])
            for traced in (False, True):
                found = gradient(own(start), own(speed), lambda u: dist.halo(u, 1, mesh, periodic), F.all_reduce, traced)
                same(found[0], alone[0], 1e-12)
                # the loss is on all ranks: each of them differentiates the sum of all, so the gradients are `size` times those of one
                same(found[1], own(alone[1]) * size, 1e-9)
                same(found[2], own(alone[2]) * size, 1e-9)
"""


@pytest.mark.long
def test_two_ranks(ranks):
    ranks(2, HALO + ERRORS)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 3, 4])
def test_blocks_of_a_grid(ranks, count):
    ranks(count, HALO)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 3])
def test_derivatives(ranks, count):
    ranks(count, DERIVATIVES)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_a_wave_is_that_of_one_rank(ranks, count):
    ranks(count, WAVE)
