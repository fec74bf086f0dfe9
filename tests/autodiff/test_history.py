"""A derivative history means the same untraced, traced, and in torch, however equal its expressions are. The programs: `histories.py`.

EXPECTED is what torch 2.15 gives for each, for the x and w below (float64).
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import tracegrad as tg
from tests.autodiff.histories import PROGRAMS, REFUSED, gan
from tests.helpers.functions import double
from tests.helpers.marks import one_of
from tracegrad.errors import AutogradError, TraceError

X = [0.5, -1.0, 2.0]
W = [[0.3, -0.2], [1.0, 0.7], [-0.4, 0.1]]
EXPECTED = {
    "one_view_for_two_losses": [[2.6, 1.6, 4.0, 3.4, 1.2, 2.2]],
    "a_view_built_for_each_loss": [[2.6, 1.6, 4.0, 3.4, 1.2, 2.2]],
    "equal_losses_built_first": [[0.2, 3.4, -0.6], [1.0, 1.0, -2.0, -2.0, 4.0, 4.0]],
    "composed_functions_twice": [[-1.53144, -14.71619, 18.80321]],
    "indexing_twice": [[4.0, -8.0, 32.0], [2.4, 0.0, 8.0, 0.0, -3.2, 0.0]],
    "casts_and_clones_twice": [[6.0, -12.0, 24.0]],
    "functions_of_torchs_own_that_save_nothing": [[-2.0, 4.0, 6.0], [57.06981, 61.06981, 55.06981, 51.06981, 53.06981, 53.06981]],
    "steps_that_save_nothing_are_never_freed": [[40.0, 40.0, 38.0], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]],
    "a_sum_of_losses_after_their_own": [[3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]],
    "retained_then_freed": [[-0.202297, 1.270656, 0.03253674], [0.1372235, 0.7115778, -0.274447, -1.423156, 0.5488941, 2.846311]],
    "a_shared_trunk_and_two_heads": [
        [-0.8511485, -3.504672, 1.216268], [-1.581388, -0.2442111, 3.162776, 0.4884222, -6.325553, -0.9768445],
    ],
    "a_trunk_cut_by_detach": [
        [-1.465907, -1.465907, -1.465907], [-1.427715, -1.860875, -1.453138],
        [-0.06373056, -0.1910763, 0.1274611, 0.3821525, -0.2549222, -0.7643051],
    ],
    "backward_by_hand_in_two_halves": [
        [-1.857715, -1.074099], [0.07638434, -0.7899358, 0.02553838],
        [-0.1274611, -0.3821525, 0.2549222, 0.7643051, -0.5098444, -1.52861],
    ],
    "grad_then_backward_of_equal_losses": [[1.0, -2.0, 4.0], [1.0, -2.0, 4.0]],
    "custom_functions_twice": [[1.5, -6.0, 36.0]],
    "hooks_on_equal_views": [[11.0, 11.0, 11.0, 11.0, 11.0, 11.0]],
    "hooks_on_equal_results": [[914.3565, -1627.483, 3612.126]],
    "a_hook_on_a_view_of_the_same_shape": [[11.0, 11.0, 11.0]],
    "a_hook_on_what_was_copied": [[23.0, 23.0, 23.0]],
    "a_hook_on_a_view_that_is_used_later": [[29.0, 19.0, 43.0, 37.0, 15.0, 25.0]],
    "retained_gradients_of_equal_results": [[2.0], [3.0], [7.0, 7.0, 7.0], [17.0, 17.0, 17.0]],
    "retained_gradients_after_a_change_in_place": [[6.0, -12.0, 24.0], [1.0, 1.0, 1.0], [38.0, -70.0, 146.0]],
    "hooks_on_equal_gradients": [[33.0, -66.0, 132.0]],
    "two_leaves_with_one_gradient": [[3.0, 12.0, 48.0], [3.0, 12.0, 48.0], [66.0, -132.0, 264.0], [66.0, -132.0, 264.0]],
    "a_removed_hook": [[22.0, 22.0, 22.0]],
    "no_grad_in_between": [[0.25, 1.0, 4.0], [0.75, 0.0, 24.0]],
    "detached_and_attached": [[0.0625, -2.0, 64.0], [0.0625, 1.0, 16.0]],
    "a_new_leaf_of_an_old_value": [
        [-1.857715, -1.074099], [0.07638434, -0.7899358, 0.02553838],
        [-0.1274611, -0.3821525, 0.2549222, 0.7643051, -0.5098444, -1.52861],
    ],
    "accumulated_gradients": [[0.6, 10.2, -1.8], [0.1, 1.7, -0.3], [3.5, 3.5, -7.0, -7.0, 14.0, 14.0]],
    "updates_between_equal_losses": [[3.0825], [0.00770625], [1.926562e-05], [0.4571625, -0.14285, 0.685675, 0.5857, 0.22865, 0.3286]],
    "changes_in_place_of_a_history": [[10.0, -2.0, 4.0], [0.5, -0.5, -2.0], [0.0, 4.5, 1.0]],
    "a_view_after_its_base_changed": [[-2.5, 5.0], [1.5, -2.5, 5.0], [-5.0, -5.0, 30.0]],
    "gradients_of_gradients_by_backward": [
        [0.07638434, -0.7899358, 0.02553838], [0.2466707, 0.5257599, -0.2927387], [0.323055, -0.2641759, -0.2672003],
        [0.1724014, -0.6073812, -0.01994673, 2.188742, 0.8323616, -2.001515],
    ],
    "a_gradient_penalty_with_its_own_backward": [
        [0.0123988, -0.9263161, 0.1014738], [-0.2052444, -0.323729, 0.3262223, 0.3948108, -0.8580081, -1.40594],
    ],
}
LOSSES_AND_NORMS = {  # of five steps of a GAN
    "adam": [1.48263, 0.937393, 1.39947, 0.908029, 1.3534, 0.838982, 1.35257, 0.783031, 1.34038, 0.754365,
             2.27976, 1.17522, 2.0523, 0.542342, 2.11473, 1.14462, 1.14686, 0.413182],
    "sgd": [1.48263, 0.907494, 1.34021, 0.830484, 1.23667, 0.735801, 1.25146, 0.650255, 1.24163, 0.623598,
             2.28608, 1.19965, 2.08412, 0.608908, 2.14479, 1.09778, 1.20953, 0.39597],
    "split": [1.48263, 0.937393, 1.39947, 0.908029, 1.3534, 0.838982, 1.35257, 0.783031, 1.34038, 0.754365,
             2.27976, 1.17522, 2.0523, 0.542342, 2.11473, 1.14462, 1.14686, 0.413182],
    "penalty": [5.75907, 0.482304, 4.75389, 0.492389, 4.64247, 0.376338, 4.60175, 0.29723, 4.29533, 0.250231,
             2.33554, 1.14157, 2.08536, 0.465612, 2.14929, 1.11569, 1.20285, 0.453704],
}


def leaves():
    return [tg.tensor(v, dtype=tg.float64, requires_grad=True) for v in (X, W)]


def values(result):
    return [t.detach().double().reshape(-1).numpy() for t in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_what_torch_gives(name, run):
    found = values(run(lambda x, w: PROGRAMS[name](tg, x, w))(*leaves()))
    assert len(found) == len(EXPECTED[name])
    for ours, theirs in zip(found, EXPECTED[name], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", REFUSED)
def test_a_history_that_was_freed_is_refused(name, run):
    with pytest.raises(AutogradError, match=r"(grad|backward): the history of .* was freed by an earlier backward; pass retain_graph=True"):
        run(lambda x, w: REFUSED[name](tg, x, w))(*leaves())


def test_programs_on_the_default_device(run):
    names = ["one_view_for_two_losses", "composed_functions_twice", "hooks_on_equal_results", "a_gradient_penalty_with_its_own_backward"]
    for name in names:
        for ours, theirs in zip(values(run(lambda x, w, name=name: PROGRAMS[name](tg, x, w))(*leaves())), EXPECTED[name], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("kind", LOSSES_AND_NORMS)
def test_a_gan_trains_as_in_torch(kind, run):
    np.testing.assert_allclose([t.item() for t in gan(tg, run, kind)], LOSSES_AND_NORMS[kind], rtol=1e-5)


def test_a_gan_trains_on_the_default_device():
    np.testing.assert_allclose([t.item() for t in gan(tg, tg.trace, "split")], LOSSES_AND_NORMS["split"], rtol=1e-5)


# ---------------------------------------------------------------------------------------------- traced functions, seen from outside


@pytest.mark.usefixtures("on_numpy")
class TestCallsOfTracedFunctions:
    def test_two_equal_calls_are_two_histories(self):
        x, w = leaves()
        f = tg.trace(lambda x, w: (x @ w).tanh())
        a, b = f(x, w), f(x, w)
        a.register_hook(lambda g: g * 10)
        a.sum().backward()
        b.sum().backward()
        with pytest.raises(AutogradError, match="was freed"):
            (b * 2).sum().backward()
        expected, other = leaves()
        ((expected @ other).tanh().sum() * 11).backward()
        np.testing.assert_allclose(x.grad.numpy(), expected.grad.numpy())
        np.testing.assert_allclose(w.grad.numpy(), other.grad.numpy())

    def test_one_that_saves_nothing_can_be_gone_through_again(self):
        x, w = leaves()
        y = tg.trace(lambda x, w: x.sum() + w.T.reshape(6)[1:])(x, w)
        y.sum().backward()
        y.sum().backward()
        assert x.grad.tolist() == [10.0] * 3
        assert w.grad.tolist() == [[0.0, 2.0], [2.0, 2.0], [2.0, 2.0]]

    def test_a_result_of_which_a_part_was_freed_has_no_history(self):
        x, w = leaves()

        @tg.trace
        def f(x, w):
            a, b = (x * x).sum(), (w * w).sum()
            a.backward()
            return a, b, a + b, x.sum()

        a, b, both, linear = f(x, w)
        assert (a.requires_grad, b.requires_grad, both.requires_grad, linear.requires_grad) == (False, True, False, True)
        (b + linear).backward()
        np.testing.assert_allclose(w.grad.numpy(), 2 * np.array(W))
        np.testing.assert_allclose(x.grad.numpy(), 2 * np.array(X) + 1)

    def test_a_view_from_outside_keeps_its_hooks_inside(self):
        _, w = leaves()
        flat = w.view(6)

        @tg.trace
        def f(w, flat):
            flat.retain_grad()
            (flat * flat).sum().backward()
            return flat.grad

        np.testing.assert_allclose(f(w, flat).numpy(), 2 * np.array(W).reshape(6))


# ------------------------------------------------------------------------------------------------- leaves that nobody holds any more


def fails():
    raise ValueError("its own error")


@pytest.mark.usefixtures("on_numpy")
def test_backward_calls_every_function_on_the_way_to_a_leaf_that_is_gone(run):
    calls = []

    counted = double(called=lambda: calls.append(1))

    def f(x):
        gone = counted(tg.ones(3, requires_grad=True))
        gone = counted(gone)
        (gone.sum() + x.sum()).backward()
        return x.grad

    x = tg.ones(3, requires_grad=True)
    f(x)
    assert len(calls) == 2
    assert x.grad.tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="its own error"):
        run(lambda: double(called=fails)(tg.ones(3, requires_grad=True)).sum().backward())()


@pytest.mark.usefixtures("on_numpy")
def test_beside_a_leaf_that_is_gone_others_get_their_gradients(run):
    def f(x):
        y = (tg.ones(3, requires_grad=True) * 2).sum() * x.sum()
        y.backward()
        return x.grad, y

    gradient, y = run(f)(tg.ones(3, requires_grad=True))
    assert gradient.tolist() == [6.0] * 3
    assert y.item() == 18.0


@pytest.mark.usefixtures("on_numpy")
def test_what_stays_of_a_freed_history_keeps_no_values():
    x = tg.ones(300, requires_grad=True)
    h = (x * x).tanh()
    total = h.sum() + h.reshape(3, 100).sum()
    h.sum().item()                               # computed, and kept for the backward
    value = weakref.ref(h._node())
    total.backward()
    view = h.reshape(300)
    del h
    assert view.sum().item() == pytest.approx(300 * np.tanh(1.0), rel=1e-5)
    assert value() is not None
    del view
    gc.collect()
    assert value() is None
    with pytest.raises(AutogradError, match="was freed"):
        total.backward()
    assert total.item() == pytest.approx(600 * np.tanh(1.0), rel=1e-5)


# ------------------------------------------------------------------------------------------- tensors from outside that are no leaves


@pytest.mark.usefixtures("on_numpy")
class TestHistoriesThatBeganOutside:
    def test_a_backward_inside_that_would_have_to_go_on_outside_is_refused(self):
        x, w = leaves()
        h, row = x * 2, w[0]
        for f, given in ((lambda h: (h * h).sum().backward(), (h,)), (lambda: (h * h).sum().backward(), ()),
                         (lambda r: (r * r).sum().backward(), (row,))):
            with pytest.raises(TraceError, match=r"backward at .* reaches a float64\[[23]\] tensor from outside that has a history there"):
                tg.trace(f)(*given)
        assert h.grad is None
        assert x.grad is None
        tg.trace(lambda w, r: (r * r * w).sum().backward())(w, row)         # the view is one of w in there, too
        expected = np.array(W)[0] ** 2 + np.array([2 * np.array(W)[0] * np.array(W).sum(0), [0, 0], [0, 0]])
        np.testing.assert_allclose(w.grad.numpy(), expected)
        tg.trace(lambda h: (h * h).sum())(h).backward()
        assert x.grad.tolist() == [4.0, -8.0, 16.0]

    def test_a_recording_for_a_leaf_is_not_replayed_for_others(self):
        @tg.trace
        def f(x):
            (x * x).sum().backward()

        x, _ = leaves()
        f(x)
        with pytest.raises(TraceError, match="has a history there"):
            f(x * 2)
        assert x.grad.tolist() == [1.0, -2.0, 4.0]
        f(x)
        assert x.grad.tolist() == [2.0, -4.0, 8.0]

    def test_whether_a_tensor_is_a_leaf_is_the_same_inside(self):
        x, _ = leaves()
        h = x * 2
        assert tg.trace(lambda x, h: (x.is_leaf, h.is_leaf, (x * 2).is_leaf, h.detach().is_leaf))(x, h) == (True, False, False, True)

    def test_gradients_with_respect_to_them_are_had_by_grad(self):
        x, _ = leaves()
        h = x * 2
        (g,) = tg.trace(lambda h: tg.autograd.grad((h * h).sum(), h))(h)
        assert g.tolist() == [2.0, -4.0, 8.0]

    def test_gradients_that_would_miss_a_way_outside_are_refused(self):
        x, w = leaves()
        h = x * 2
        with pytest.raises(TraceError, match=r"grad at .* reaches a float64\[3\] tensor from outside that has a history there"):
            tg.trace(lambda x, h: tg.autograd.grad((x * h).sum(), x))(x, h)
        with pytest.raises(TraceError, match="grad at"):
            tg.trace(lambda x, h: tg.autograd.grad((x * h).sum(), [h, x]))(x, h)
        gw, gh = tg.trace(lambda h, w: tg.autograd.grad((h @ w).sum(), (w, h)))(h, w)
        np.testing.assert_allclose(gw.numpy(), np.outer(2 * np.array(X), [1, 1]))
        np.testing.assert_allclose(gh.numpy(), np.array(W).sum(1))


# ---------------------------------------------------------------------------------------------- results that a backward did not come from


class SquareAndSine(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x, x.sin()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return 2 * x * g + x.cos() * h


TWO_RESULTS = {
    "custom": SquareAndSine.apply,
    "traced": tg.trace(lambda x: ((x.sin() ** 2).sum(), x.exp() * x)),
    "scan": lambda x: tg.scan(lambda c, row: (c * row + row.sin(), c * c), x[0], x),
    "while_loop": lambda x: tg.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * s[2], s[2].sin() * s[2]), (0, x, x + 1))[1:],
    "cond": lambda x: tg.cond(x.sum() > 0, lambda x: (x * x, x.sin() * x), lambda x: (x.cos() * x, x * x * x), x),
    "unbind": lambda x: (x * x).unbind(0)[:2],
    "hooked": lambda x: _hooked(*SquareAndSine.apply(x)),
}


def _hooked(a, b):
    b.register_hook(lambda g: g * 2)
    return a, b


@one_of(2, ("name", "device"), [(name, ("numpy", "default")[(k + j) % 2]) for k, name in enumerate(TWO_RESULTS) for j in range(2)])
def test_the_other_result_is_still_there_after_a_backward(name, device, request):
    """`loss, logits = step(x); loss.backward(); logits.argmax(1)`: three times, since the third is done as the first two were."""
    if device == "numpy":
        request.getfixturevalue("on_numpy")
    array = np.random.default_rng(0).normal(size=(3, 33))
    function = TWO_RESULTS[name]
    expected = function(tg.tensor(array, requires_grad=True))[1].detach().numpy()
    for _ in range(3):
        x = tg.tensor(array, requires_grad=True)
        first, other = function(x)
        pending = other * 2
        first.sum().backward()
        np.testing.assert_allclose(other.detach().numpy(), expected)
        np.testing.assert_allclose((other + pending).detach().numpy(), 3 * expected)
        np.testing.assert_array_equal(tg.trace(lambda t: t.argmax(-1))(other.detach()).numpy(), expected.argmax(-1))
        assert x.grad is not None
        assert x.grad.isfinite().all()


def _dual(f, x, v):
    with tg.autograd.forward_ad.dual_level():
        return tuple(tg.autograd.forward_ad.unpack_dual(f(tg.autograd.forward_ad.make_dual(x, v))))


def graph(f, x, v):                                         # whose results require gradients anyway, as torch's
    return tg.autograd.functional.jacobian(f, x, create_graph=True),


@one_of(2, ("way", "held"), [(way, held != bool(k % 2)) for k, way in enumerate([
    lambda f, x, v: (tg.func.grad(lambda x: f(x).sum())(x),),
    lambda f, x, v: tg.func.grad_and_value(lambda x: f(x).sum())(x),
    lambda f, x, v: tg.func.vjp(f, x)[1](v),
    lambda f, x, v: tg.func.jvp(f, (x,), (v,)),
    lambda f, x, v: (tg.func.jacrev(f)(x), tg.func.jacfwd(f)(x)),
    lambda f, x, v: (tg.func.hessian(lambda x: f(x).sum())(x),),
    lambda f, x, v: (tg.func.linearize(f, x)[1](v),),
    graph,
    _dual,
]) for held in (True, False)])
def test_what_a_transform_gives_has_the_history_of_what_its_function_reaches(way, held):
    """Also where nobody holds the leaf any more, as in torch: what was computed of it may be differentiated with respect to."""
    def made():
        leaf = tg.tensor(np.linspace(-1, 1, 12), requires_grad=True)
        return (leaf * 2).sin() + 2, leaf if held else None

    c, leaf = made()
    x, v = tg.tensor(np.linspace(1, 2, 12)), tg.tensor(np.cos(np.arange(12)))
    for given in (c, c.detach()):
        results = way(lambda x, given=given: (x * given).sin(), x, v)
        assert all(r.requires_grad is (given is c or way is graph) for r in results)
        if given is c:
            got, = tg.autograd.grad(sum((r * r).sum() for r in results), c, retain_graph=True)
    fresh = c.detach().requires_grad_()
    wanted, = tg.autograd.grad(sum((r * r).sum() for r in way(lambda x: (x * fresh).sin(), x, v)), fresh)
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-12)
    del leaf
