"""Programs about derivative histories, written as torch's users write them; `test_history.py` runs them untraced and traced.

Each takes the library (tracegrad, or torch to get the values to expect), x (3 numbers) and w (3 x 2), both leaves that require grad, and
returns tensors. In most of them an expression is written twice, so that equal nodes could be mistaken for one history.
"""

from __future__ import annotations

import numpy as np

from tests.helpers.functions import double, square

PROGRAMS = {}
REFUSED = {}


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


def refused(fn):
    """One in which a backward goes through a history that an earlier one freed."""
    REFUSED[fn.__name__] = fn
    return fn


# ------------------------------------------------------------------------------------------------------- a backward for each loss


@program
def one_view_for_two_losses(m, x, w):
    v = w.reshape(1, 6)
    (v * 2).sum().backward()
    (v * v).sum().backward()
    return w.grad


@program
def a_view_built_for_each_loss(m, x, w):
    (w.reshape(1, 6) * 2).sum().backward()
    (w.reshape(1, 6) * w.reshape(1, 6)).sum().backward()
    return w.grad


@program
def equal_losses_built_first(m, x, w):
    a, b = (x @ w).sum(), (x @ w).sum()
    a.backward()
    b.backward()
    return x.grad, w.grad


@program
def composed_functions_twice(m, x, w):
    f = m.nn.functional
    for y in [f.softmax(x, 0), f.softmax(x, 0), f.log_softmax(x, 0), f.log_softmax(x, 0)]:
        (y * y).sum().backward()
    for y in [x.std(), x.std(), f.gelu(x).mean(), f.gelu(x).mean(), x.norm(), x.norm(), f.layer_norm(x, (3,))[0], f.layer_norm(x, (3,))[0]]:
        y.backward()
    return x.grad


@program
def indexing_twice(m, x, w):
    i = m.tensor([2, 0, 2])
    for y in [x[1:], x[1:], x[i], x[i], w[:, 0], w[:, 0], w.T[0], w.T[0], x.flip(0), x.flip(0)]:
        (y * y).sum().backward()
    return x.grad, w.grad


@program
def casts_and_clones_twice(m, x, w):
    for y in [x.float(), x.float(), x.clone(), x.clone(), x.float().double(), x.float().double()]:
        (y * y).sum().backward()
    return x.grad


@program
def functions_of_torchs_own_that_save_nothing(m, x, w):
    line, table = x[:2], w
    for y in [w.mean(0), w.mean(), w - w.mean(0), m.add(table, table, alpha=2), m.sub(table, 2, alpha=0.5), m.rsub(table, table, alpha=2),
              m.lerp(table, table.flip(0), 0.3), m.lerp(table, table.flip(0), 0.8), w.tril(), w.triu(1), m.diag_embed(w),
              m.trapezoid(w, dx=0.5), m.cumulative_trapezoid(w), m.gradient(x)[0], w.select_scatter(line.detach(), 0, 1),
              w.slice_scatter(w[:2] + 1, 0, 1), w.diagonal_scatter(line), w.sign(), m.deg2rad(w), w % 0.7, m.fmod(w, 0.3),
              w.unfold(0, 2, 1).mean(-1), w.reshape(3, 2, 1).mean((1, 2), keepdim=True)]:
        for scale in (1.0, 3.0):
            (y.sum() * scale).backward()
    return x.grad, w.grad


@program
def steps_that_save_nothing_are_never_freed(m, x, w):
    for y in [x + x, x - 1, 1 - x, -x, x.sum(), x.clone(), x.float(), x.cumsum(0), m.cat([x, x]), m.stack([x, x]), x.flip(0), x[1:],
              x.expand(2, 3), x.repeat(2), m.nn.functional.pad(x, (1, 2)), x.unsqueeze(0), m.round(x), w.T.reshape(6), double(m)(x)]:
        y.sum().backward()
        y.sum().backward()
    return x.grad, w.grad


@program
def a_sum_of_losses_after_their_own(m, x, w):
    a, b = x.sum(), w.sum()
    (a + b).backward()
    (a + b).backward()
    a.backward()
    return x.grad, w.grad


@program
def retained_then_freed(m, x, w):
    y = (x @ w).tanh()
    y[0].backward(retain_graph=True)
    y[1].backward(retain_graph=True)
    y.sum().backward()
    return x.grad, w.grad


@program
def a_shared_trunk_and_two_heads(m, x, w):
    h = x @ w
    (h * h).sum().backward(retain_graph=True)
    h.tanh().sum().backward()
    return x.grad, w.grad


@program
def a_trunk_cut_by_detach(m, x, w):
    h = (x @ w).tanh()
    d = h.detach()
    (d * x.sum()).sum().backward()
    first = x.grad.clone()
    (h * d).sum().backward()
    return first, x.grad, w.grad


@program
def backward_by_hand_in_two_halves(m, x, w):
    h = (x @ w).tanh()
    (g,) = m.autograd.grad((h * h).sum(), h)
    h.backward(g)
    return g, x.grad, w.grad


@program
def grad_then_backward_of_equal_losses(m, x, w):
    a, b = (x * x).sum(), (x * x).sum()
    (g,) = m.autograd.grad(a, x)
    b.backward()
    return g, x.grad


@program
def custom_functions_twice(m, x, w):
    f = square(m)
    a, b = f(x), f(x)
    a.sum().backward()
    (b * b).sum().backward()
    return x.grad


# ------------------------------------------------------------------------------------------------------------ hooks, retain_grad


@program
def hooks_on_equal_views(m, x, w):
    a, b = w.reshape(6), w.reshape(6)
    a.register_hook(lambda g: g * 10)
    (a + b).sum().backward()
    return w.grad


@program
def hooks_on_equal_results(m, x, w):
    f = m.nn.functional
    pairs = [(x.clone(), x.clone()), (x.float(), x.float()), (x.sum(0), x.sum(0)), (f.softmax(x, 0), f.softmax(x, 0)), (x[1:], x[1:]),
             (x.T, x.T), (double(m)(x), double(m)(x)), (x.detach() + x, x.detach() + x), (m.cat([x]), m.cat([x]))]
    total = 0
    for k, (a, b) in enumerate(pairs):
        a.register_hook(lambda g: g * 10)
        total = total + ((a * a).sum() + (b * b * 3).sum()) * (k + 1)
    total.backward()
    return x.grad


@program
def a_hook_on_a_view_of_the_same_shape(m, x, w):
    y = x * 1
    a, b, c = y.reshape(3), y.view(3), y.expand(3)
    for v, k in ((a, 2), (b, 3), (c, 5)):
        v.register_hook(lambda g, k=k: g * k)
    (a + b + c + y).sum().backward()
    return x.grad


@program
def a_hook_on_what_was_copied(m, x, w):
    y = x * 1
    a = m.zeros(3, dtype=x.dtype)
    a.copy_(y)
    a.register_hook(lambda g: g * 10)
    (a * 2 + y * 3).sum().backward()
    return x.grad


@program
def a_hook_on_a_view_that_is_used_later(m, x, w):
    v = w.view(6)
    v.register_hook(lambda g: g * 10)
    (v * v).sum().backward()
    (w.view(6) * 3).sum().backward()
    (v * 2).sum().backward()
    return w.grad


@program
def retained_gradients_of_equal_results(m, x, w):
    a, b, c = x.sum(), x.sum(), x.view(3)
    a.retain_grad()
    b.retain_grad()
    c.retain_grad()
    (2 * a + 3 * b + (x.view(3) * 5 + c * 7).sum()).backward()
    return a.grad, b.grad, c.grad, x.grad


@program
def retained_gradients_after_a_change_in_place(m, x, w):
    a, b = x * 2, x * 2
    a.retain_grad()
    b.retain_grad()
    a.mul_(3)
    (a * a + b).sum().backward()
    return a.grad, b.grad, x.grad


@program
def hooks_on_equal_gradients(m, x, w):
    loss = (x ** 3).sum()
    (a,) = m.autograd.grad(loss, x, create_graph=True)
    (b,) = m.autograd.grad(loss, x, create_graph=True)
    a.register_hook(lambda g: g * 10)
    (a + b).sum().backward()
    return x.grad


@program
def two_leaves_with_one_gradient(m, x, w):
    y = x.detach().clone().requires_grad_()
    ((x + y) ** 3).sum().backward(create_graph=True)
    first, second = x.grad, y.grad
    first.register_hook(lambda g: g * 10)
    gx, gy = m.autograd.grad((first + second).sum(), (x, y))
    return first, second, gx, gy


@program
def a_removed_hook(m, x, w):
    a = x * 2
    handle = a.register_hook(lambda g: g * 10)
    a.sum().backward(retain_graph=True)
    handle.remove()
    a.sum().backward()
    return x.grad


# ------------------------------------------------------------------------------------- modes, detach, changes in place, accumulation


@program
def no_grad_in_between(m, x, w):
    a = x * x
    with m.no_grad():
        b = x * x
        c = x.reshape(3)
    d = x * x
    (a * b + d * c).sum().backward()
    return b, x.grad


@program
def detached_and_attached(m, x, w):
    a, b = (x * x).detach(), x * x
    c = (x * x).detach().requires_grad_()
    (a * b * c).sum().backward()
    return x.grad, c.grad


@program
def a_new_leaf_of_an_old_value(m, x, w):
    h = (x @ w).tanh()
    leaf = h.detach().requires_grad_()
    (leaf * leaf).sum().backward()
    h.backward(leaf.grad)
    return leaf.grad, x.grad, w.grad


@program
def accumulated_gradients(m, x, w):
    for k in range(3):
        ((x @ w) * (k + 1)).sum().backward()
    first = x.grad.clone()
    x.grad.zero_()
    (x @ w).sum().backward()
    return first, x.grad, w.grad


@program
def updates_between_equal_losses(m, x, w):
    losses = []
    for _ in range(3):
        loss = ((x @ w) ** 2).sum()
        loss.backward()
        losses.append(loss.detach())
        with m.no_grad():
            w -= 0.1 * w.grad
            w.grad.zero_()
    return *losses, w


@program
def changes_in_place_of_a_history(m, x, w):
    a, b = x * 1, x * 1
    a[0] = 5.0
    a.mul_(2)
    b.view(3)[1:] *= x[:2]
    (a + b).sum().backward()
    return a, b, x.grad


@program
def a_view_after_its_base_changed(m, x, w):
    a = x * 1
    v = a[1:]
    a.mul_(3)
    v.add_(x[:2])
    (v * v).sum().backward()
    return v, a, x.grad


@program
def gradients_of_gradients_by_backward(m, x, w):
    y = ((x @ w).tanh() ** 2).sum()
    (g,) = m.autograd.grad(y, x, create_graph=True)
    (g * g).sum().backward()
    first = x.grad.clone()
    y = ((x @ w).tanh() ** 2).sum()
    y.backward(create_graph=True)
    return g, first, x.grad, w.grad


@program
def a_gradient_penalty_with_its_own_backward(m, x, w):
    score = ((x @ w).tanh() ** 2).sum()
    (g,) = m.autograd.grad(score, x, create_graph=True)
    penalty = (g.norm() - 1) ** 2
    score.backward(retain_graph=True)
    penalty.backward()
    return x.grad, w.grad


# ------------------------------------------------------------------------------------------------------ what was freed stays freed


@refused
def twice(m, x, w):
    loss = (x * x).sum()
    loss.backward()
    loss.backward()


@refused
def by_a_number(m, x, w):
    y = x * 2
    y.sum().backward()
    y.sum().backward()


@refused
def through_a_composed_function(m, x, w):
    y = m.nn.functional.softmax(x, 0)
    (y * 2).sum().backward()
    (y * 3).sum().backward()


@refused
def through_a_view_of_it(m, x, w):
    v = (x * x).reshape(3, 1)
    v.sum().backward()
    v.sum().backward()


@refused
def through_the_trunk(m, x, w):
    h = x @ w
    h.sum().backward()
    h.tanh().sum().backward()


@refused
def a_sum_of_which_one_part_is_gone(m, x, w):
    a, b = (x * x).sum(), (w * w).sum()
    a.backward()
    (a + b).backward()


@refused
def through_a_custom_function(m, x, w):
    y = square(m)(x)
    y.sum().backward()
    y.sum().backward()


@refused
def grad_after_grad(m, x, w):
    loss = (x ** 3).sum()
    m.autograd.grad(loss, x)
    m.autograd.grad(loss, x)


@refused
def backward_after_grad(m, x, w):
    loss = (x ** 3).sum()
    m.autograd.grad(loss, x)
    loss.backward()


@refused
def grad_after_backward(m, x, w):
    loss = (x ** 3).sum()
    loss.backward()
    m.autograd.grad(loss, x)


@refused
def second_order_without_its_history(m, x, w):
    loss = (x ** 3).sum()
    (g,) = m.autograd.grad(loss, x, create_graph=True)
    (g * g).sum().backward()
    (g * g).sum().backward()


# -------------------------------------------------------------------------------------------------------- whole training steps


def filled(m, modules, seed):
    """Parameters that are the same in every library."""
    random = np.random.RandomState(seed)
    with m.no_grad():
        for module in modules:
            for p in module.parameters():
                p.copy_(m.tensor(random.uniform(-0.5, 0.5, tuple(p.shape)).astype(np.float32)))


def batches(m, count, *shape):
    random = np.random.RandomState(7)
    return [m.tensor(random.normal(size=shape).astype(np.float32)) for _ in range(count)]


def gan(m, compiled, kind):
    """The losses of five steps of a small GAN, as its tutorials write it, and the norms of the parameters after them."""
    nn, f = m.nn, m.nn.functional
    generator = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    discriminator = nn.Sequential(nn.Linear(3, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    filled(m, (generator, discriminator), 3)
    make = {"adam": lambda p: m.optim.Adam(p, lr=1e-2, betas=(0.5, 0.999)), "sgd": lambda p: m.optim.SGD(p, lr=0.1, momentum=0.5)}
    to_g, to_d = (make["sgd" if kind == "sgd" else "adam"](net.parameters()) for net in (generator, discriminator))

    def step(real, noise):
        fake = generator(noise)
        ones, zeros = m.ones(real.shape[0], 1), m.zeros(real.shape[0], 1)
        to_d.zero_grad()
        if kind == "penalty":
            mixed = (0.3 * real + 0.7 * fake.detach()).requires_grad_()
            (slope,) = m.autograd.grad(discriminator(mixed).sum(), mixed, create_graph=True)
            d_loss = discriminator(fake.detach()).mean() - discriminator(real).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
            d_loss.backward()
        elif kind == "split":        # a backward for each half, as in DCGAN's example
            d_real = f.binary_cross_entropy_with_logits(discriminator(real), ones)
            d_real.backward()
            d_fake = f.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
            d_fake.backward()
            d_loss = d_real + d_fake
        else:
            d_loss = f.binary_cross_entropy_with_logits(discriminator(real), ones) + f.binary_cross_entropy_with_logits(
                discriminator(fake.detach()), zeros)
            d_loss.backward()
        to_d.step()
        to_g.zero_grad()
        if kind == "penalty":
            g_loss = -discriminator(fake).mean()
        else:
            g_loss = f.binary_cross_entropy_with_logits(discriminator(fake), ones)
        g_loss.backward()
        to_g.step()
        return d_loss.detach(), g_loss.detach()

    step = compiled(step)
    losses = []
    for real, noise in zip(batches(m, 5, 31, 3), batches(m, 5, 31, 5), strict=True):
        losses += step(real * 0.5 + 1, noise)
    return *losses, *(p.norm() for net in (generator, discriminator) for p in net.parameters())
