"""Attention that users write out, found in traced programs: which spellings are, which are not and why, that values and derivatives of all
orders stay; masks as operands of the kernels, for every target; rows that see nothing."""


import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.ops.attention.test_attention import TINY, drawn, same
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.graph.attention import story
from tracegrad.execute.compile import executable_graph
from tracegrad.nn import functional as F
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning, tuned

NEVER = Tuning(attention_scores=1 << 40)
INF = float("-inf")
CPU = Target(cores=2)


def causal(rows, keys):
    return tg.ones(rows, keys, dtype=tg.bool_).tril()


def nano(q, k, v):
    rows, keys = q.shape[-2], k.shape[-2]
    att = (q @ k.transpose(-2, -1)) * (1.0 / q.shape[-1] ** 0.5)
    mask = tg.tril(tg.ones(rows + 3, keys + 3)).view(1, 1, rows + 3, keys + 3)
    att = F.softmax(att.masked_fill(mask[:, :, :rows, :keys] == 0, INF), dim=-1)
    return F.dropout(att, 0.1, training=False) @ v


def einsum(q, k, v):
    scores = tg.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return tg.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def heads_behind(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))                # (B, T, H, E)
    weights = tg.softmax(tg.einsum("blhe,bshe->bhls", q, k) * 0.3, -1)
    return tg.einsum("bhls,bshd->blhd", weights, v).transpose(1, 2)


def other_way_round(q, k, v):
    weights = tg.softmax(tg.einsum("bhjd,bhid->bhij", k, q), -1)
    return tg.einsum("bhjd,bhij->bhid", v, weights)


def batched(q, k, v):
    b, h, rows, size = q.shape
    keys, width = v.shape[-2:]
    scores = tg.bmm(q.reshape(b * h, rows, size) / size ** 0.5, k.reshape(b * h, keys, size).transpose(1, 2))
    scores = scores.view(b, h, rows, keys) + tg.full((rows, keys), INF).triu(1)
    return tg.bmm(tg.softmax(scores.view(b * h, rows, keys), -1), v.reshape(b * h, keys, width)).view(b, h, rows, width)


def by_hand(q, k, v):
    scores = (q @ k.mT).where(causal(q.shape[-2], k.shape[-2]), INF)
    e = tg.exp(scores - scores.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)) @ v


def transposed(q, k, v):
    return (v.mT @ tg.softmax(q @ k.mT, -1).mT).mT


def of_matrices(q, k, v):
    return tg.softmax(q[0, 0] @ k[0, 0].T * 0.5, -1) @ v[0, 0]


def in_a_row(q, k, v):
    return nano(q, k, v) @ v.mT @ v + einsum(q + 1, k, v)


SPELLINGS = [nano, einsum, heads_behind, other_way_round, batched, by_hand, transposed, of_matrices, in_a_row]


def whole(attend, given, order=1):
    """Value and gradients, of order 2 with those of a function of the gradients."""
    def loss(q, k, v, *rest):
        return (attend(q, k, v, *rest) ** 2).sum()

    first = tg.value_and_grad(loss, (0, 1, 2))

    def slopes(*x):
        return sum(((g * (0.3 + i)).sin().sum() for i, g in enumerate(first(*x)[1])), tg.zeros((), dtype=x[0].dtype))

    traced = tg.trace((lambda *x: (first(*x), tg.grad(slopes, (0, 1, 2))(*x))) if order == 2 else first)
    return traced, flat(traced(*given))


def flat(found):
    return [x for part in found for x in flat(part)] if isinstance(found, tuple) else [found.numpy()]


def told(traced, target=CPU, numbers=None):
    with tuned(numbers or Tuning()):
        return story(executable_graph(traced._seen().program.graph), target)


def largest(traced, target=CPU):
    return max(s.nbytes for s in compile_graph(executable_graph(traced._seen().program.graph), target).slots)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("attend", SPELLINGS, ids=lambda f: f.__name__)
def test_spellings_become_the_operation(attend):
    """Value, gradient and second derivative are those of the operations that were written; nothing is as large as the scores."""
    given = drawn("float64", (2, 2, 65, 5), (2, 2, 70, 5), (2, 2, 70, 6))
    traced, found = whole(attend, given)
    lines = told(traced)
    assert lines
    assert all(line.endswith("kernels of its own") for line in lines)
    if attend is not in_a_row:
        heads = 1 if attend is of_matrices else 4
        for target in (CPU, TARGETS["gpu"]):
            assert largest(traced, target) < heads * 65 * 70 * 8
    with tuned(NEVER):
        _, wanted = whole(attend, given)
        _, twice_wanted = whole(attend, given, 2)
    same(found, wanted, 1e-10)
    same(flat(whole(attend, given, 2)[0](*given)), twice_wanted, 1e-8)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("size", [7, 63, 64, 129])
def test_thresholds(size):
    """Too few scores, and rows that are too long, have products and a softmax, as they were recorded; explain says so."""
    given = drawn("float32", *[(1, 2, size, 4)] * 3)
    traced, found = whole(nano, given)
    lines = told(traced)
    assert lines[0].endswith("kernels of its own") == (size >= 64)
    assert size >= 64 or f"{size} x {size} scores are fewer than 4096" in lines[0]
    assert ("attention_gradient" in {n.fn.name for n in traced._seen().program.graph}) == (size >= 64)
    with tuned(NEVER):
        same(found, whole(nano, given)[1], 2e-5)
    assert "longer than 3" in told(traced, numbers=Tuning(attention_scores=0, attention_width=3))[0]


def in_dropout(q, k, v):
    return F.dropout(tg.softmax(q @ k.mT, -1), 0.1) @ v


def twice_used(q, k, v):
    weights = tg.softmax(q @ k.mT, -1)
    return weights @ v * weights.mean()


def learned_bias(q, k, v):
    return tg.softmax(q @ k.mT + q.sum(-1, keepdim=True) * k.sum(-1).unsqueeze(-2), -1) @ v


def other_dim(q, k, v):
    return tg.softmax(q @ k.mT, -2) @ v


def scaled_later(q, k, v):
    return tg.softmax((q @ k.mT).masked_fill(~causal(q.shape[-2], k.shape[-2]), -1e4) * 0.5, -1) @ v


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(("attend", "why"), [
    (in_dropout, "dropout"), (twice_used, "div, a step of it, is used elsewhere"), (learned_bias, "used elsewhere"),
    (other_dim, None), (scaled_later, "scaled after a mask")], ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_not_the_operation(attend, why):
    given = drawn("float64", *[(1, 2, 65, 4)] * 3)
    tg.manual_seed(3)
    traced, found = whole(attend, given)
    lines = told(traced)
    if why is None:
        assert lines == []
    else:
        assert all("products and a softmax, because" in line for line in lines)
        assert why in lines[0]
    tg.manual_seed(3)
    with tuned(NEVER):
        same(found, whole(attend, given)[1], 1e-12)


@pytest.mark.usefixtures("on_numpy")
def test_weights_that_are_returned_too():
    """Without a gradient there is one set of weights; with one, they are computed beside."""
    def both(q, k, v):
        weights = tg.softmax(q @ k.mT, -1)
        return weights @ v, weights

    given = drawn("float64", *[(1, 2, 65, 4)] * 3)
    traced = tg.trace(both)
    out, weights = traced(*given)
    assert "by what is returned" in told(traced)[0]
    same([out.numpy()], [(weights @ given[2]).numpy()], 1e-12)
    slopes = tg.trace(lambda q, k, v: (tg.grad(lambda q: both(q, k, v)[0].sum())(q), both(q, k, v)[1]))
    found = slopes(*given)
    with tuned(NEVER):
        wanted = tg.trace(lambda q, k, v: (tg.grad(lambda q: both(q, k, v)[0].sum())(q), both(q, k, v)[1]))(*given)
    same([x.numpy() for x in found], [x.numpy() for x in wanted], 1e-11)


@pytest.mark.usefixtures("on_numpy")
def test_what_lies_between_may_be_looked_at():
    """Hooks on scores and weights are called with their gradients, and their gradients can be asked for."""
    given = drawn("float64", *[(1, 1, 65, 4)] * 3)

    def gradients(look):
        q, k, v = (x.clone().requires_grad_() for x in given)
        scores = q @ k.mT
        weights = tg.softmax(scores, -1)
        seen = []
        look(scores, weights, seen)
        ((weights @ v) ** 2).sum().backward()
        return [x.grad.numpy() for x in (q, k, v)], seen

    plain, _ = gradients(lambda scores, weights, seen: None)
    for which in (0, 1):
        hooked, seen = gradients(lambda *x: x[which].register_hook(lambda g: x[2].append(g) or g * 2))  # noqa: B023 - called at once
        assert [g.shape for g in seen] == [(1, 1, 65, 65)]
        same(hooked[:2], [2 * g for g in plain[:2]], 1e-10)
    q, k, v = (x.clone().requires_grad_() for x in given)
    scores = q @ k.mT
    by_scores, = tg.autograd.grad(((tg.softmax(scores, -1) @ v) ** 2).sum(), [scores])
    same([(by_scores @ k).detach().numpy()], [plain[0]], 1e-10)


# ------------------------------------------------------------------------------------------------------------------- masks


def filled(q, k, v, m, n=None):
    scores = (q @ k.mT / 2).masked_fill(~m, INF)
    return tg.softmax(scores if n is None else scores + n, -1) @ v


def finite(q, k, v, m):
    return tg.softmax((q @ k.mT / 2).masked_fill(~m, -1e9), -1) @ v


def added(q, k, v, m):
    return tg.softmax(q @ k.mT / 2 + m, -1) @ v


def added_causal(q, k, v, m):
    return tg.softmax((q @ k.mT / 2 + m).masked_fill(~causal(q.shape[-2], k.shape[-2]), INF), -1) @ v


def added_to_flat(q, k, v, m):
    b, h, rows, size = q.shape
    scores = q.reshape(b * h, rows, size) @ k.reshape(b * h, -1, size).mT
    weights = tg.softmax((scores.view(b, h, rows, -1) + m).view(b * h, rows, -1), -1)
    return (weights @ v.reshape(b * h, *v.shape[-2:])).view(b, h, rows, -1)


def given_mask(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, m)


def bools(*shape, empty=False):
    def mask(rng, dtype):
        found = rng.random(shape) < 0.6
        found[..., 0] = True
        if empty:
            found[..., 1, :] = False
        return found
    return mask


def numbers(*shape, empty=False):
    def mask(rng, dtype):
        found = rng.standard_normal(shape).astype(dtype)
        if empty:
            found[..., 1, :] = -np.inf
        return found
    return mask


B, H, L, S = 2, 3, 13, 10
MASKS = [
    (filled, bools(L, S)), (filled, bools(B, 1, L, S)), (filled, bools(B, 1, 1, S)), (filled, bools(H, 1, S)), (filled, bools(1, H, L, 1)),
    (filled, bools(B, H, L, S, empty=True)), (finite, bools(L, S, empty=True)), (added, numbers(L, S)), (added, numbers(B, 1, 1, S)),
    (added, numbers(H, L, S, empty=True)), (added_causal, numbers(1, H, 1, S)), (added_to_flat, numbers(1, H, L, S)),
    (added_to_flat, numbers(B, 1, 1, S)), (given_mask, bools(B, 1, L, S, empty=True)), (given_mask, numbers(L, S, empty=True)),
    (filled, bools(B, 1, 1, S), numbers(H, L, S)),
]


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.long
@pytest.mark.parametrize(("number", "attend", "masks"), [(i, f, masks) for i, (f, *masks) in enumerate(MASKS)])
def test_masks_without_a_driver(number, attend, masks):
    """As operands of the kernels of a CPU or of a GPU: as the operation's numpy rule has them, which is as they were written."""
    dtype = ("float32", "float64")[number % 2]
    rng = np.random.default_rng(number)
    given = drawn(dtype, (B, H, L, 5), (B, H, S, 5), (B, H, S, 6), seed=number) + [tg.tensor(m(rng, dtype)) for m in masks]
    name = "gpu" if number // 2 % 2 else list(TARGETS)[number % 4]
    targets = {name: TARGETS[name]}
    numbers_ = TINY._replace(attention_keys=(4, 64)[number % 2], attention_groups=TINY.attention_groups[number % 2:])
    with np.errstate(all="ignore"):
        with tuned(numbers_), Checked(targets, tuning=numbers_, slack=8) as checked:
            traced, found = whole(attend, given)
        assert checked.count == 1
        assert told(traced, numbers=numbers_)[0].endswith("kernels of its own")
        with tuned(NEVER):
            wanted = whole(attend, given)[1]
        same(found, wanted, {"float32": 5e-5, "float64": 1e-10}[dtype])
        with tuned(numbers_):
            twice = whole(attend, given, 2)[1]
        with tuned(NEVER):
            same(twice, whole(attend, given, 2)[1], {"float32": 5e-3, "float64": 1e-8}[dtype])


@pytest.mark.usefixtures("on_numpy")
def test_masks_in_vmap():
    """Masks that examples share, and masks of their own."""
    q, k, v = drawn("float64", (3, B, H, L, 5), (3, B, H, S, 5), (3, B, H, S, 6))
    rng = np.random.default_rng(0)
    for mask in (bools(B, 1, L, S), bools(1, H, 1, S), bools(L, S)):
        shared, own = tg.tensor(mask(rng, "float64")), tg.tensor(np.stack([mask(rng, "float64") for _ in range(3)]))

        def slope(q, k, v, m):
            return tg.grad(lambda q: (filled(q, k, v, m) ** 2).sum())(q)

        for m, dim in ((shared, None), (own, 0)):
            with tuned(TINY):
                found = tg.vmap(slope, in_dims=(0, 0, 0, dim))(q, k, v, m)
            with tuned(NEVER):
                wanted = [slope(q[i], k[i], v[i], m if dim is None else m[i]).numpy() for i in range(3)]
            same([found.numpy()], [np.stack(wanted)], 1e-10)


@pytest.mark.long
def test_on_the_device(monkeypatch):
    """Written out with the causal mask, and with masks that are arguments, large enough for kernels: as the interpreter has them."""
    monkeypatch.setattr(tg.config, "eager", False)
    given = drawn("float32", (2, 2, 65, 16), (2, 2, 129, 16), (2, 2, 129, 33))
    rng = np.random.default_rng(1)
    seen, bias = bools(2, 1, 1, 129)(rng, "float32"), numbers(2, 65, 129)(rng, "float32")
    seen[0, 0, 0, 70:] = False

    def attend(q, k, v, seen, bias):
        return nano(q, k, v) + filled(q, k, v, seen, bias) * 0.5 + given_mask(k, k, v, seen)[:, :, :65]

    traced, found = whole(attend, [*given, tg.tensor(seen), tg.tensor(bias)])
    if tg.device().kind in ("cpu", "gpu"):
        assert sum("kernels of its own" in line for line in traced.explain().splitlines()) == 3
    previous = tg.device()
    try:
        tg.set_device("numpy")
        with tuned(NEVER):
            _, wanted = whole(attend, [*[tg.tensor(x.numpy()) for x in given], tg.tensor(seen), tg.tensor(bias)])
    finally:
        tg.set_device(previous)
    same(found, wanted, 5e-5)


def test_constants_beside_it_stay_as_they_are(device):
    """Integers whose range is known, as an index of numbers is: written-out attention made leaves of a program anew, too."""
    @tg.trace
    def f(q, i):
        return tg.softmax(q @ q.transpose(-1, -2) * 0.25, -1) @ q, i[tg.tensor([2, 0, 1])] * tg.tensor([3, 4, 5])

    q = tg.randn(2, 4, 100, 16)
    found, numbers = f(q, tg.arange(4))
    np.testing.assert_allclose(found.numpy(), F.scaled_dot_product_attention(q, q, q).numpy(), rtol=1e-4, atol=1e-5)
    assert numbers.tolist() == [6, 0, 5]
