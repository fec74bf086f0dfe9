"""torch's variants of functions, tg.masked against numpy.ma, tg.signal.windows against scipy, and what else torch's list of names has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import signal, special

import tracegrad as tg
from tests.helpers.names import Case, checks, leaves
from tracegrad import nn
from tracegrad.nn import functional

RNG = np.random.default_rng(21)


def u(*shape: int) -> Any:
    return RNG.uniform(-2, 2, shape)


def same(variant: Any, plain: Any, *arrays: Any, **options: Any) -> Case:
    """variant(t, F, *arrays), which is to give what plain gives."""
    return Case(variant, *arrays, expected=lambda *xs: leaves(plain(tg, functional, *map(tg.tensor, xs))), **options)


X, ROWS, IMAGES, VOLUMES = u(7, 13), u(3, 33), u(2, 3, 9, 8), u(2, 2, 5, 6, 4)
GRID = RNG.uniform(-1.1, 1.1, (2, 4, 5, 2))
DRAWS2, DRAWS3 = RNG.uniform(0, 1, (2, 3, 2)), RNG.uniform(0, 1, (2, 2, 3))
W, B = u(3), u(3)
CASES = {
    "alias_copy": same(lambda t, F, x: t.alias_copy(x), lambda t, F, x: x, X),
    "as_strided_copy": same(lambda t, F, x: t.as_strided_copy(x, (3, 4), (2, 5), 1), lambda t, F, x: x.as_strided((3, 4), (2, 5), 1), X),
    "as_strided_scatter": same(
        lambda t, F, x, y: t.as_strided_scatter(x, y, (3, 4), (20, 5), 1),
        lambda t, F, x, y: x.reshape(-1).scatter(
            0, t.as_strided(t.arange(91), (3, 4), (20, 5), 1).reshape(-1), y.reshape(-1)).reshape(7, 13),
        X, u(3, 4), torch_gradient=False),
    "detach_copy": same(lambda t, F, x: t.detach_copy(x) * x, lambda t, F, x: x.detach() * x, X, gradient=0),
    "copies of parts": same(
        lambda t, F, x: (t.diagonal_copy(x, 1), t.narrow_copy(x, 1, 2, 5), t.select_copy(x, 0, 3), *t.unbind_copy(x)[:2],
                         *t.split_copy(x, 5, 1), *t.split_with_sizes_copy(x, (3, 4)), t.unfold_copy(x, 1, 4, 3)),
        lambda t, F, x: (x.diagonal(1), x.narrow(1, 2, 5), x.select(0, 3), *x.unbind()[:2], *x.split(5, 1), *x.split((3, 4)),
                         x.unfold(1, 4, 3)), X),
    "copies of moves": same(
        lambda t, F, x: (t.expand_copy(x, (2, 7, 13)), t.permute_copy(x, (1, 0)), t.squeeze_copy(x.unsqueeze(1)), t.t_copy(x),
                         t.transpose_copy(x, 0, 1), t.unsqueeze_copy(x, 1), t.view_copy(x, (13, 7))),
        lambda t, F, x: (x.expand(2, 7, 13), x.permute(1, 0), x, x.t(), x.transpose(0, 1), x.unsqueeze(1), x.view(13, 7)), X),
    "unsafe": same(lambda t, F, x: (*t.unsafe_chunk(x, 3), *t.unsafe_split(x, 2, 1), *t.unsafe_split_with_sizes(x, (3, 4))),
                   lambda t, F, x: (*x.chunk(3), *x.split(2, 1), *x.split((3, 4))), X),
    "native_layer_norm": same(
        lambda t, F, x, w, b: t.native_layer_norm(x, (8,), w, b, 1e-5)[0], lambda t, F, x, w, b: F.layer_norm(x, (8,), w, b),
        IMAGES, u(8), u(8)),
    "native_layer_norm, its statistics": Case(
        lambda t, F, x: t.native_layer_norm(x, (9, 8), None, None, 0.1)[1:], IMAGES, gradient=0,
        expected=lambda x: (x.mean((2, 3), keepdims=True), (x.var((2, 3), keepdims=True) + 0.1) ** -0.5)),
    "native_group_norm": Case(
        lambda t, F, x, w, b: t.native_group_norm(x, w, b, 2, 3, 72, 3, 0.1), IMAGES, W, B,
        expected=lambda x, w, b: (((x - x.mean((2, 3), keepdims=True)) * (x.var((2, 3), keepdims=True) + 0.1) ** -0.5
                                   * w[:, None, None] + b[:, None, None]), x.mean((2, 3)), (x.var((2, 3)) + 0.1) ** -0.5)),
    "native_batch_norm": Case(
        lambda t, F, x, w, b: t.native_batch_norm(x, w, b, None, None, True, 0.1, 0.1), IMAGES, W, B, gradient=0,
        expected=lambda x, w, b: (
            (x - x.mean((0, 2, 3), keepdims=True)) * (x.var((0, 2, 3), keepdims=True) + 0.1) ** -0.5 * w[:, None, None] + b[:, None, None],
            x.mean((0, 2, 3)), (x.var((0, 2, 3)) + 0.1) ** -0.5)),
    "native_dropout_backward": Case(lambda t, F, x, m: t.native_dropout_backward(x, m, 2.0), X, u(7, 13) > 0, torch=False,
                                    expected=lambda x, m: x * m * 2),
    "grid samplers": same(
        lambda t, F, x, g: (t.grid_sampler(x, g, 0, 1, True), t.grid_sampler_2d(x, g, 2, 0, False)),
        lambda t, F, x, g: (F.grid_sample(x, g, padding_mode="border", align_corners=True),
                            F.grid_sample(x, g, "bicubic", align_corners=False)),
        IMAGES, GRID, gradient=1),
    "grid_sampler_3d": same(
        lambda t, F, x, g: t.grid_sampler_3d(x, g, 1, 2, False),
        lambda t, F, x, g: F.grid_sample(x, g, "nearest", "reflection", False), VOLUMES, RNG.uniform(-1, 1, (2, 3, 2, 4, 3)), gradient=0),
    "indices of pools": same(
        lambda t, F, x: (*F.max_pool2d_with_indices(x, 3, 2), *F.adaptive_max_pool2d_with_indices(x, (2, 3)),
                         *F.max_pool1d_with_indices(x[0], 3), *F.adaptive_max_pool1d_with_indices(x[1], 2)),
        lambda t, F, x: (*F.max_pool2d(x, 3, 2, return_indices=True), *F.adaptive_max_pool2d(x, (2, 3), True),
                         *F.max_pool1d(x[0], 3, return_indices=True), *F.adaptive_max_pool1d(x[1], 2, True)), IMAGES, gradient=0),
    "indices of pools in 3-d": same(
        lambda t, F, x: (*F.max_pool3d_with_indices(x, 2), *F.adaptive_max_pool3d_with_indices(x, (2, 3, 2))),
        lambda t, F, x: (*F.max_pool3d(x, 2, return_indices=True), *F.adaptive_max_pool3d(x, (2, 3, 2), True)), VOLUMES, gradient=0),
    "fractional_max_pool2d": Case(
        lambda t, F, x, r: F.fractional_max_pool2d_with_indices(x, (2, 3), (4, 3), _random_samples=r), IMAGES, DRAWS2, gradient=0,
        singles=False),
    "fractional_max_pool2d, a ratio": Case(
        lambda t, F, x, r: F.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.7), _random_samples=r.detach()), IMAGES, DRAWS2,
        singles=False,
        differences=False),
    "fractional_max_pool3d": Case(
        lambda t, F, x, r: F.fractional_max_pool3d_with_indices(x, (2, 3, 1), (3, 2, 3), _random_samples=r), VOLUMES, DRAWS3, gradient=0,
        singles=False),
    "fractional_max_pool3d, differentiated": Case(
        lambda t, F, x, r: F.fractional_max_pool3d(x, 2, (3, 2, 2), _random_samples=r.detach()), VOLUMES, DRAWS3, singles=False,
        differences=False),
    "linear_cross_entropy": same(
        lambda t, F, x, w, b, y: F.linear_cross_entropy(x, w, y, linear_bias=b, label_smoothing=0.1),
        lambda t, F, x, w, b, y: F.cross_entropy(F.linear(x, w, b), y, label_smoothing=0.1),
        u(16, 7), u(5, 7), u(5), RNG.integers(0, 5, 16)),
    "linear_cross_entropy of images": same(
        lambda t, F, x, w, y: F.linear_cross_entropy(x, w, y, reduction="sum"),
        lambda t, F, x, w, y: F.cross_entropy((x @ w.reshape(20, 7).mT).reshape(16, 5, 4), y, reduction="sum"),
        u(16, 7), u(5, 4, 7), RNG.integers(0, 5, (16, 4))),
    "in place": same(
        lambda t, F, x: (F.elu_(x * 1.0, 0.5), F.selu_(x * 1.0), F.hardtanh_(x * 1.0, -0.5, 0.7), F.celu_(x * 1.0), F.relu_(x * 1.0),
                         F.leaky_relu_(x * 1.0, 0.2), F.rrelu_(x * 1.0), F.threshold_(x * 1.0, 0.1, 3.0)),
        lambda t, F, x: (F.elu(x, 0.5), F.selu(x), F.hardtanh(x, -0.5, 0.7), F.celu(x), F.relu(x), F.leaky_relu(x, 0.2), F.rrelu(x),
                         F.threshold(x, 0.1, 3.0)), X, gradient=0),
    "chain_matmul": Case(lambda t, F, x, y, z: t.chain_matmul(x, y, z), u(7, 13), u(13, 5), u(5, 16),
                         expected=lambda x, y, z: x @ y @ z, torch=False),
    "torch's own": same(
        lambda t, F, x, w: (t.conv2d(x, w, padding=1), t.max_pool2d(x, 2), t.layer_norm(x, (8,)), t.selu(x), t.celu(x), t.hardshrink(x),
                            t.group_norm(x, 3), t.cosine_similarity(x, x * x), t.dropout(x, 0.5, False)),
        lambda t, F, x, w: (F.conv2d(x, w, padding=1), F.max_pool2d(x, 2), F.layer_norm(x, (8,)), F.selu(x), F.celu(x), F.hardshrink(x),
                            F.group_norm(x, 3), F.cosine_similarity(x, x * x), x), IMAGES, u(4, 3, 3, 2), gradient=1),
    "interpolate, antialias": Case(
        lambda t, F, x: (F.interpolate(x, (4, 5), mode="bilinear", antialias=True),
                         F.interpolate(x, (4, 3), mode="bicubic", antialias=True),
                         F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True),
                         F.interpolate(x, (5, 11), mode="bilinear", antialias=True, align_corners=True)), IMAGES),
    "grid_sample, bicubic, 3-d": Case(
        lambda t, F, x, g: F.grid_sample(x, g, "bicubic", align_corners=True), u(1, 2, 4, 5, 3), RNG.uniform(-1, 1, (1, 2, 2, 3, 3)),
        gradient=0, torch=False),
    "enable_gqa": same(
        lambda t, F, q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        lambda t, F, q, k, v: F.scaled_dot_product_attention(q, k.repeat_interleave(3, -3), v.repeat_interleave(3, -3)),
        u(2, 6, 7, 5), u(2, 2, 9, 5), u(2, 2, 9, 4)),
    "quantile, differentiated in q": Case(lambda t, F, x, q: t.quantile(x, q, 1), ROWS, np.array([0.13, 0.47, 0.77]), gradient=1,
                                          expected=lambda x, q: np.quantile(x, q, 1)),
    "angle": Case(lambda t, F, x: t.angle(x) * x, X, expected=lambda x: np.angle(x) * x, gradient=1),
    "div, rounded": Case(lambda t, F, x, y: t.div(x, y, rounding_mode="floor") * x, X, u(7, 13) + 3, gradient=1,
                         expected=lambda x, y: np.floor(x / y) * x),
    "tensordot, a size of 1": Case(lambda t, F, x, y: t.tensordot(x, y, dims=([0, 1], [1, 0])), u(1, 7, 3), u(7, 4, 5),
                                   expected=lambda x, y: np.einsum("abc,bad->cd", np.repeat(x, 4, 0), y)),
    "norm, nuclear": Case(lambda t, F, x: t.norm(x, "nuc"), X, gradient=0, torch_gradient=False,
                          expected=lambda x: np.linalg.norm(x, "nuc")),
    "logit with eps above a half": Case(lambda t, F, x: t.logit(x, 0.6), RNG.uniform(0, 1, 33), gradient=0),
    "degrees in a tensor": Case(
        lambda t, F, x, n: (t.special.chebyshev_polynomial_t(x, n), t.special.legendre_polynomial_p(x, n),
                            t.special.hermite_polynomial_h(x, n)),
        RNG.uniform(-0.9, 0.9, (7, 13)), RNG.integers(-1, 6, 13), traced=False, differences=False, torch=False,
        expected=lambda x, n: tuple(np.where(n < 0, 0.0, f(np.maximum(n, 0), x)) for f in
                                    (special.eval_chebyt, special.eval_legendre, special.eval_hermite))),
    "bessel functions": Case(
        lambda t, F, x: (t.special.bessel_j0(x), t.special.bessel_j1(x), t.special.bessel_y0(x.abs()), t.special.bessel_y1(x.abs())),
        RNG.uniform(-25, 25, (7, 33)), torch=False, tolerance=1e-11,
        expected=lambda x: (special.j0(x), special.j1(x), special.y0(np.abs(x)), special.y1(np.abs(x)))),
    "modified bessel functions": Case(
        lambda t, F, x: (t.special.modified_bessel_k0(x), t.special.modified_bessel_k1(x), t.special.scaled_modified_bessel_k0(x),
                         t.special.scaled_modified_bessel_k1(x)),
        RNG.uniform(0.1, 30, (7, 33)), torch=False,
        expected=lambda x: (special.k0(x), special.k1(x), special.k0e(x), special.k1e(x))),
    "airy_ai": Case(lambda t, F, x: t.special.airy_ai(x), np.linspace(-40, 110, 999), torch=False, tolerance=1e-11,
                    expected=lambda x: special.airy(x)[0]),
    "bessel functions at the edges": Case(
        lambda t, F, x: (t.special.bessel_j0(x), t.special.bessel_j1(x), t.special.bessel_y0(x), t.special.modified_bessel_k1(x),
                         t.special.airy_ai(x)),
        [0.0, np.inf, -np.inf, np.nan], gradient=0, torch=False,
        expected=lambda x: ([1, 0, 0, np.nan], [0, 0, 0, np.nan], [-np.inf, 0, np.nan, np.nan], [np.inf, 0, np.nan, np.nan],
                            [special.airy(0)[0], 0, np.nan, np.nan])),
}  # fmt: skip
test_values, test_gradients, test_as_in_torch = checks(CASES)


# ---------------------------------------------------------------------------------------------------------------- masked


MASK = RNG.uniform(0, 1, (7, 13)) < 0.6
MASK[2] = False
MASK[:, 5] = True
REDUCED: dict[str, Any] = {
    "sum": lambda a, axis: a.sum(axis).filled(0), "prod": lambda a, axis: a.prod(axis).filled(1),
    "amax": lambda a, axis: a.max(axis).filled(-np.inf), "amin": lambda a, axis: a.min(axis).filled(np.inf),
    "mean": lambda a, axis: a.mean(axis).filled(np.nan), "argmax": lambda a, axis: a.argmax(axis), "argmin": lambda a, axis: a.argmin(axis),
    "var": lambda a, axis: a.var(axis, ddof=1).filled(np.nan), "std": lambda a, axis: a.std(axis, ddof=1).filled(np.nan),
    "norm": lambda a, axis: np.sqrt((a**2).sum(axis)).filled(0), "logsumexp": lambda a, axis: np.log(np.exp(a).sum(axis)).filled(-np.inf),
}  # fmt: skip


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("axis", [0, 1])
def test_masked_reductions(name: str, axis: int) -> None:
    mask = MASK if name not in ("var", "std", "argmax", "argmin") else MASK | (np.arange(7)[:, None] == 2)
    fn, x, m = getattr(tg.masked, name), tg.tensor(X), tg.tensor(mask)
    wanted = REDUCED[name](np.ma.masked_array(X, ~mask), axis)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(fn(x, dim=axis, mask=m).numpy(), wanted, rtol=1e-12)
        np.testing.assert_allclose(tg.trace(lambda x, m: fn(x, dim=axis, mask=m, keepdim=True))(x, m).numpy(),
                                   np.expand_dims(wanted, axis), rtol=1e-12)
        whole = REDUCED[name](np.ma.masked_array(X.reshape(-1), ~mask.reshape(-1)), 0) if name.startswith("arg") else None
        np.testing.assert_allclose(fn(x).numpy(), REDUCED[name](np.ma.masked_array(X.reshape(-1), np.zeros(91, bool)).reshape(91, 1), 0)[0]
                                   if whole is None else fn(x.flatten(), dim=0).numpy(), rtol=1e-12)
    with pytest.raises(tg.DTypeError, match=rf"masked\.{name}: the mask must be bool"):
        fn(x, dim=axis, mask=x)
    with pytest.raises(tg.ShapeError, match="does not broadcast"):
        fn(x, dim=axis, mask=tg.ones(2, 7, 13) > 0)


@pytest.mark.usefixtures("on_numpy")
def test_masked_complex_numbers() -> None:
    z = X[:, :5] + 1j * X[:, 5:10]
    x, m, zero = tg.tensor(z, requires_grad=True), tg.tensor(MASK[:, :5]), np.where(MASK[:, :5], z, 0)
    exps = np.where(MASK[:, :5], np.exp(z), 0)
    with np.errstate(all="ignore"):
        for found, wanted in (
            (tg.masked.sum(x, 1, mask=m), zero.sum(1)), (tg.masked.logsumexp(x, 1, mask=m), np.log(exps.sum(1))),
            (tg.masked.logsumexp(x), np.log(np.exp(z).sum())), (tg.masked.mean(x, 0, mask=m), zero.sum(0) / MASK[:, :5].sum(0)),
        ):
            assert found.dtype == np.complex128
            np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-12)
    tg.masked.logsumexp(x[0], 0, mask=m[0]).real.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy()[0], np.conj(exps[0] / exps[0].sum()), rtol=1e-12)
    for name in ("softmax", "log_softmax", "amax", "amin"):
        with pytest.raises(tg.DTypeError, match=f"{name}: does not take complex128"):
            getattr(tg.masked, name)(x, 0)


@pytest.mark.usefixtures("on_numpy")
def test_masked_maps() -> None:
    x, m, held = tg.tensor(X), tg.tensor(MASK), np.ma.masked_array(X, ~MASK)
    e = np.exp(np.where(MASK, X, -np.inf))
    with np.errstate(all="ignore"):
        for axis in (0, 1):
            share = e / e.sum(axis, keepdims=True)
            np.testing.assert_allclose(tg.masked.softmax(x, axis, mask=m).numpy(), share, rtol=1e-12)
            np.testing.assert_allclose(tg.masked.log_softmax(x, axis, mask=m).numpy(), np.log(share), rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(tg.masked.softmin(-x, axis, mask=m).numpy(), share, rtol=1e-12)
            np.testing.assert_allclose(tg.masked.cumsum(x, axis, mask=m).numpy(), held.filled(0).cumsum(axis), rtol=1e-12)
            np.testing.assert_allclose(tg.masked.cumprod(x, axis, mask=m).numpy(), held.filled(1).cumprod(axis), rtol=1e-12)
            size = np.abs(held.filled(0)).sum(axis, keepdims=True)
            shares = held.filled(0) / np.maximum(size, 1e-12)
            np.testing.assert_allclose(tg.masked.normalize(x, 1.0, axis, mask=m).numpy(), shares, rtol=1e-12)
        rows = [np.sort(row[keep])[(keep.sum() - 1) // 2] if keep.any() else np.nan for row, keep in zip(X, MASK, strict=True)]
        np.testing.assert_array_equal(tg.masked.median(x, mask=m).numpy(), rows)
        wanted = np.logaddexp(np.where(MASK, X, -np.inf), np.where(MASK[::-1], X, -np.inf))
        np.testing.assert_allclose(tg.masked.logaddexp(x, x, input_mask=m, other_mask=m.flip(0)).numpy(), wanted, rtol=1e-12)
    assert tg.masked.var(x, 1, False, mask=m).shape == (7,)
    assert tg.testing.gradcheck(lambda x: tg.masked.std(x, 0, mask=m) + tg.masked.mean(x, 0, mask=m), (x.requires_grad_(),))


# --------------------------------------------------------------------------------------------------------------- windows


WINDOWS: dict[str, Any] = {
    "bartlett": ({}, signal.windows.bartlett), "blackman": ({}, signal.windows.blackman), "cosine": ({}, signal.windows.cosine),
    "exponential": ({"tau": 2.5}, lambda n, sym: signal.windows.exponential(n, tau=2.5, sym=sym)),
    "gaussian": ({"std": 3.0}, lambda n, sym: signal.windows.gaussian(n, 3.0, sym=sym)),
    "general_cosine": ({"a": (0.3, 0.5, 0.2)}, lambda n, sym: signal.windows.general_cosine(n, (0.3, 0.5, 0.2), sym=sym)),
    "general_hamming": ({"alpha": 0.6}, lambda n, sym: signal.windows.general_hamming(n, 0.6, sym=sym)),
    "hamming": ({}, signal.windows.hamming), "hann": ({}, signal.windows.hann),
    "kaiser": ({"beta": 7.0}, lambda n, sym: signal.windows.kaiser(n, 7.0, sym=sym)), "nuttall": ({}, signal.windows.nuttall),
}  # fmt: skip
PERIODIC: dict[str, Any] = {"bartlett": tg.bartlett_window, "blackman": tg.blackman_window, "hamming": tg.hamming_window,
                            "hann": tg.hann_window, "kaiser": lambda n, **more: tg.kaiser_window(n, beta=7.0, **more)}


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    options, wanted = WINDOWS[name]
    fn = getattr(tg.signal.windows, name)
    for n in (0, 1, 2, 7, 16, 33, 100):
        for sym in (True, False):
            found = fn(n, sym=sym, dtype=tg.float64, **options)
            np.testing.assert_allclose(found.numpy(), wanted(n, sym=sym), rtol=1e-12, atol=1e-14)
        assert fn(n, **options).dtype == np.float32
        if name in PERIODIC:
            periodic = fn(n, sym=False, dtype=tg.float64, **options)
            np.testing.assert_allclose(PERIODIC[name](n, dtype=tg.float64).numpy(), periodic.numpy(), rtol=1e-12, atol=1e-15)
    with pytest.raises(tg.ArgumentError, match="M must not be negative"):
        fn(-1, **options)
    with pytest.raises(tg.DTypeError, match="float dtype"):
        fn(3, dtype=tg.int64, **options)


# ------------------------------------------------------------------------------------------------------------ the rest


@pytest.mark.usefixtures("on_numpy")
def test_histogramdd() -> None:
    points, weight = u(100, 2), RNG.uniform(0, 1, 100)
    edges = [np.array([-2.0, -0.5, 1.0, 2.0]), np.linspace(-2, 2, 6)]
    for bins, options in ((4, {}), ((3, 5), {}), ((3, 5), {"range": (-1.0, 1.0, -2.0, 1.5)}), (edges, {})):
        for density in (False, True):
            span = options.get("range")
            wanted = np.histogramdd(points, bins, None if span is None else [span[:2], span[2:]], weights=weight, density=density)
            given = bins if bins is not edges else tuple(map(tg.tensor, edges))
            found = tg.histogramdd(tg.tensor(points), given, weight=tg.tensor(weight), density=density, **options)
            np.testing.assert_allclose(found.hist.numpy(), wanted[0], rtol=1e-12)
            for mine, theirs in zip(found.bin_edges, wanted[1], strict=True):
                np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-12)
    with pytest.raises(tg.ArgumentError, match="histogramdd: bins and range"):
        tg.histogramdd(tg.tensor(points), (3, 4, 5))


@pytest.mark.usefixtures("on_numpy")
def test_small_things() -> None:
    x = tg.tensor(X)
    assert (x.is_same_size(x * 1), tg.is_same_size(x, x.T), x.ndimension()) == (True, False, 2)
    assert (tg.is_signed(x), tg.is_signed(x.to(tg.uint8))) == (True, False)
    assert (tg.is_nonzero(x[0, 0]), tg.is_nonzero(x[0, 0] * 0)) == (True, False)
    y, kept = tg.native_dropout(x, 0.5, True)
    np.testing.assert_array_equal(y.numpy(), np.where(kept.numpy(), X * 2, 0))
    with pytest.raises(tg.DTypeError, match="expected a Tensor, got int, int"):
        tg.mul(2, 3)
    assert x.to("numpy", tg.float32, True, True).dtype == np.float32
    assert x.to(tg.float64, False, True) is not x
    assert tg.arange(0.1, -7.9, -4.0, dtype=tg.int64).tolist() == [0, -4]
    assert tg.logspace(0, 4.3, 5, 2, dtype=tg.int64).tolist() == [1, 2, 4, 8, 16]
    parts = x.tensor_split(tg.tensor([2, 5]), 1)
    assert [p.shape[1] for p in parts] == [2, 3, 8]
    with pytest.raises(tg.TraceError, match=r"tensor_split: .* give integers"):
        tg.trace(lambda x, i: x.tensor_split(i))(x, tg.tensor([2]))
    flags = tg.tensor([True, False] * 3 + [True])
    added = x.index_put((flags,), tg.ones(13, dtype=tg.float64), accumulate=True)
    np.testing.assert_array_equal(added.numpy(), X + flags.numpy()[:, None])
    for name, values in (("normal_", (0, -1)), ("uniform_", (3, -1))):
        with pytest.raises(tg.ArgumentError, match=rf"^{name}"):
            getattr(x.clone(), name)(*values)
    for name in ("isnan_", "gather_", "to_dtype_", "where_"):
        assert not hasattr(x, name)


@pytest.mark.usefixtures("on_numpy")
def test_updates_in_place_of_products() -> None:
    a, m, v = u(7, 5), u(7, 13), u(13, 5)
    x = tg.tensor(a)
    assert x.addmm_(tg.tensor(m), tg.tensor(v), beta=0.5, alpha=2.0) is x
    np.testing.assert_allclose(x.numpy(), a * 0.5 + 2 * m @ v, rtol=1e-12)
    np.testing.assert_allclose(tg.tensor(a).addr_(tg.tensor(m[:, 0]), tg.tensor(v[0])).numpy(), a + np.outer(m[:, 0], v[0]), rtol=1e-12)
    np.testing.assert_allclose(tg.tensor(a[:, 0]).addmv_(tg.tensor(m), tg.tensor(v[:, 0])).numpy(), a[:, 0] + m @ v[:, 0], rtol=1e-12)
    np.testing.assert_allclose(tg.tensor(a[None]).baddbmm_(tg.tensor(m[None]), tg.tensor(v[None])).numpy()[0], a + m @ v, rtol=1e-12)


@pytest.mark.usefixtures("on_numpy")
def test_multi_head_attention_forward_takes_keys_and_values_as_they_are() -> None:
    tg.manual_seed(0)
    layer = nn.MultiheadAttention(6, 3).double()
    q, k = tg.tensor(u(4, 2, 6)), tg.tensor(u(5, 2, 6))
    w, b = layer.in_proj_weight, layer.in_proj_bias
    heads = [functional.linear(k, w[i:i + 6], b[i:i + 6]).reshape(5, 6, 2).transpose(0, 1) for i in (6, 12)]
    arguments = (q, k, k, 6, 3, w, b, None, None, False, 0.0, layer.out_proj.weight, layer.out_proj.bias)
    found = functional.multi_head_attention_forward(*arguments, static_k=heads[0], static_v=heads[1])
    for mine, wanted in zip(found, layer(q, k, k), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), wanted.detach().numpy(), rtol=1e-12)
    with pytest.raises(tg.ShapeError, match=r"^multi_head_attention_forward: query"):
        functional.multi_head_attention_forward(q, k, k, 8, *arguments[4:])


@pytest.mark.usefixtures("on_numpy")
def test_diagonals_are_filled_in_place() -> None:
    for shape, wrap in (((7, 13), False), ((13, 3), False), ((13, 3), True), ((4, 4, 4), False)):
        a, x = np.ones(shape), tg.ones(*shape, dtype=tg.float64)
        np.fill_diagonal(a, 5, wrap=wrap)
        assert x.fill_diagonal_(5, wrap) is x
        np.testing.assert_array_equal(x.numpy(), a)
    with pytest.raises(tg.ShapeError, match=r"^fill_diagonal_"):
        tg.ones(2, 3, 2).fill_diagonal_(1)
    x = tg.tensor(X)
    assert x.swapaxes_(0, 1) is x
    assert (x.shape, x.swapdims_(0, 1).shape, x.itemsize) == ((13, 7), (7, 13), 8)
    assert (tg.ones(3, 4).bernoulli(0.0).sum().item(), tg.ones(4).multinomial(2).shape) == (0, (2,))
    for made in (x.new_empty_strided((2, 3), (3, 1)), tg.empty_strided((2, 3), (1, 2)), tg.empty_permuted((2, 3), (1, 0))):
        assert made.shape == (2, 3)
    with pytest.raises(tg.ArgumentError, match=r"^empty_permuted"):
        tg.empty_permuted((2, 3), (1, 1))


@pytest.mark.usefixtures("on_numpy")
def test_places_of_a_tensor_without_dimensions() -> None:
    for fn in (tg.unique, tg.unique_consecutive):
        values, inverse = fn(tg.tensor(3.0), return_inverse=True)
        assert (values.shape, inverse.shape) == ((1,), ())


@pytest.mark.usefixtures("on_numpy")
def test_dtypes_that_are_wider_inside() -> None:
    half = tg.tensor(np.array([[300.0, 400.0], [3.0, 0.1]], np.float16))
    for p, wanted in ((2, 500.0), (6, (300.0**6 + 400.0**6) ** (1 / 6)), (3, (300.0**3 + 400.0**3) ** (1 / 3))):
        found = tg.norm(half, p, 1)
        assert found.dtype == np.float16
        np.testing.assert_allclose(found.numpy()[0], wanted, rtol=1e-3)
    assert tg.tensor([[1, 2], [3, 4]], dtype=tg.int32).trace().dtype == np.int64
    picture = tg.tensor(RNG.integers(0, 255, (1, 2, 4, 5)), dtype=tg.uint8)
    np.testing.assert_array_equal(functional.interpolate(picture, scale_factor=2).numpy(), picture.numpy().repeat(2, 2).repeat(2, 3))
    assert functional.interpolate(picture, (3, 7), mode="nearest-exact").dtype == np.uint8
    with pytest.raises(tg.DTypeError, match="interpolate: mode 'bilinear' takes a float tensor"):
        functional.interpolate(picture.to(tg.int32), 3, mode="bilinear")


def test_bytes_are_resampled_with_whole_weights() -> None:
    """What torch gives for these bytes: sums rounded to bytes along W, then along H."""
    x = tg.tensor((np.arange(2 * 5 * 6, dtype=np.uint32) ** 2 * 37 % 256).astype(np.uint8).reshape(1, 2, 5, 6))
    wanted = {
        ("bilinear", False): [[39, 31, 48, 94, 146, 125, 117, 133], [175, 100, 110, 197, 169, 189, 173, 123]],
        ("bilinear", True): [[78, 59, 68, 106, 133, 104, 109, 151], [157, 103, 106, 162, 148, 136, 135, 143]],
        ("bicubic", False): [[25, 11, 32, 95, 158, 140, 117, 125], [188, 76, 96, 222, 175, 221, 196, 106]],
        ("bicubic", True): [[78, 54, 60, 104, 137, 96, 104, 156], [166, 100, 100, 169, 149, 133, 134, 144]],
        ("lanczos", True): [[82, 55, 55, 107, 141, 93, 103, 160], [174, 101, 95, 171, 153, 130, 133, 146]],
    }
    for (mode, antialias), values in wanted.items():
        for call in (functional.interpolate, tg.trace(functional.interpolate)):
            found = call(x, (2, 8), mode=mode, antialias=antialias)
            assert found.dtype == np.uint8
            assert found[0, 0].tolist() == values


@pytest.mark.usefixtures("on_numpy")
def test_bags_start_at_the_first_index() -> None:
    weight, index = tg.tensor(X), tg.tensor([1, 2, 4, 5, 4])
    good = functional.embedding_bag(index, weight, tg.tensor([0, 2, 5]), mode="sum").numpy()
    np.testing.assert_allclose(good, [X[[1, 2]].sum(0), X[[4, 5, 4]].sum(0), np.zeros(13)], rtol=1e-12)
    for offsets in ([1, 2], [0, 6]):
        with pytest.raises(tg.IndexOutOfRange, match=r"embedding_bag .*offsets"):
            functional.embedding_bag(index, weight, tg.tensor(offsets)).numpy()


@pytest.mark.usefixtures("on_numpy")
def test_pretrained_rows_and_inference() -> None:
    table = tg.tensor(X)
    for kind, index in ((nn.Embedding, [1, 4]), (nn.EmbeddingBag, [[1, 4]])):
        layer = kind.from_pretrained(table)
        wanted = X[[1, 4]] if kind is nn.Embedding else X[[1, 4]].mean(0, keepdims=True)
        np.testing.assert_allclose(layer(tg.tensor(index)).numpy(), wanted, rtol=1e-12)
        assert not layer.weight.requires_grad
        assert kind.from_pretrained(table, freeze=False, padding_idx=-1).weight.requires_grad
        with pytest.raises(tg.ShapeError, match=r"from_pretrained: embeddings"):
            kind.from_pretrained(table[0])
    x = tg.ones(3, requires_grad=True)
    with tg.inference_mode():
        assert not (x * 2).requires_grad
        with tg.inference_mode(False):
            assert (x * 2).requires_grad
    assert not tg.inference_mode(lambda: x * 2)().requires_grad
    assert not tg.inference_mode()(lambda: x * 2)().requires_grad
