"""stft and istft, segment_reduce, linalg.ldl_*, hash_tensor, x.view(dtype), resize_, and the names of tg.ops.aten, against NumPy and SciPy.

tests/ops/beside_torch/test_op_db_torch.py compares each with torch, on torch's own samples (slow).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.signal

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.nodes import check_gradient
from tracegrad.errors import ArgumentError, AutogradError, DTypeError, LinAlgError, ShapeError, TraceError
from tracegrad.nn import functional as F
from tracegrad.ops.linalg import ldl

rng = np.random.default_rng(3)


def close(found: Any, wanted: Any, rtol: float = 1e-10) -> None:
    a = found.detach().numpy() if isinstance(found, tg.Tensor) else found
    assert a.shape == wanted.shape
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
    np.testing.assert_allclose(a, wanted, rtol=rtol, atol=rtol * float(largest))


def differentiated(fn: Any, x: Any) -> None:
    """First and second derivatives against finite differences."""
    t = tg.tensor(x, requires_grad=True)
    assert tg.testing.gradcheck(fn, [t])
    assert tg.testing.gradgradcheck(fn, [t])


# ------------------------------------------------------------------------------------------------------------- spectrograms


def frames(x: Any, n: int, hop: int, window: Any, inverse_root: bool = False) -> Any:
    """The transform as its definition has it."""
    starts = range(0, x.shape[-1] - n + 1, hop)
    y = np.stack([np.fft.fft(x[..., s:s + n] * window, norm="ortho" if inverse_root else None) for s in starts], -1)
    return y if np.iscomplexobj(x) or np.iscomplexobj(window) else y[..., :n // 2 + 1, :]


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(("length", "n", "hop"), [(100, 16, None), (129, 33, 7), (257, 64, 16), (65, 13, 13), (300, 31, 1)])
def test_stft_is_its_definition(length: int, n: int, hop: int | None) -> None:
    step = n // 4 if hop is None else hop
    for batch, is_complex, normalized, center in itertools.product(((), (3,)), (False, True), (False, True), (False, True)):
        x = rng.normal(size=(*batch, length)) + (1j * rng.normal(size=(*batch, length)) if is_complex else 0)
        long = n - 3
        window = rng.uniform(0.2, 1, long)
        whole = np.pad(window, ((n - long) // 2, n - long - (n - long) // 2))
        padded = np.pad(x, [(0, 0)] * len(batch) + [(n // 2, n // 2)], mode="reflect") if center else x
        found = tg.stft(tg.tensor(x), n, hop, long, tg.tensor(window), center, normalized=normalized, return_complex=True)
        close(found, frames(padded, n, step, whole, normalized))


@pytest.mark.usefixtures("on_numpy")
def test_istft_is_the_inverse_and_the_least_squares_solution() -> None:
    for length, n, hop in ((100, 16, 4), (129, 33, 7), (300, 64, 16)):
        x, window = rng.normal(size=(2, length)), tg.tensor(scipy.signal.get_window("hann", n))
        spectrum = tg.stft(tg.tensor(x), n, hop, window=window, return_complex=True)
        back = tg.istft(spectrum, n, hop, window=window, length=length)
        covered = (spectrum.shape[-1] - 1) * hop
        np.testing.assert_allclose(back.numpy()[:, :covered], x[:, :covered], atol=1e-12)
        # of numbers that are no spectrum: no change of the signal brings its spectrum nearer
        anything = rng.normal(size=(n // 2 + 1, 9)) + 1j * rng.normal(size=(n // 2 + 1, 9))
        wanted = np.fft.irfft(anything, n, axis=0)
        best = tg.istft(tg.tensor(anything), n, hop, window=window + 0.1, center=False).numpy()
        taper = window.numpy() + 0.1
        error = np.stack([best[t * hop:t * hop + n] * taper - wanted[:, t] for t in range(9)], -1) * taper[:, None]
        gradient = np.zeros_like(best)
        for t in range(9):
            gradient[t * hop:t * hop + n] += error[:, t]
        assert np.abs(gradient).max() < 1e-12


@pytest.mark.usefixtures("on_numpy")
def test_derivatives_of_spectrograms() -> None:
    x, window = rng.normal(size=(2, 23)), rng.uniform(0.3, 1, 6)
    check_gradient(lambda a, w: tg.stft(a, 7, 3, 6, w, return_complex=True), x, window)
    z = rng.normal(size=(4, 5)) + 1j * rng.normal(size=(4, 5))
    check_gradient(lambda a, w: tg.istft(a, 7, 3, 6, w), z, window)
    check_gradient(lambda a: tg.istft(a, 4, 2, onesided=False, return_complex=True), z)


def test_spectrograms_in_kernels_and_traces(device: Any) -> None:
    x, window = rng.normal(size=(2, 129)), scipy.signal.get_window("hann", 32)
    wanted = frames(np.pad(x, ((0, 0), (16, 16)), mode="reflect"), 32, 8, window)

    def fn(a: Any, w: Any) -> Any:
        s = tg.stft(a, 32, 8, window=w, return_complex=True)
        return s, tg.istft(s, 32, 8, window=w, length=128)

    for run in (fn, tg.trace(fn)):
        spectrum, back = run(tg.tensor(x), tg.tensor(window))
        close(spectrum, wanted)
        close(back, x[:, :128], 1e-9)
    halves = tg.vmap(lambda a: tg.stft(a, 32, 8, window=tg.tensor(window), return_complex=True))(tg.tensor(x))
    close(halves, wanted)


@pytest.mark.usefixtures("on_numpy")
def test_errors_of_spectrograms() -> None:
    x, z = tg.ones(64), tg.ones(9, 5).to(tg.complex64)
    for error, words, call in [
        (ArgumentError, "return_complex must be given", lambda: tg.stft(x, 16)),
        (ArgumentError, "onesided=True", lambda: tg.stft(x.to(tg.complex64), 16, onesided=True)),
        (ArgumentError, "length of the signal", lambda: tg.stft(x, 100, center=False, return_complex=True)),
        (ArgumentError, "hop_length must be positive", lambda: tg.stft(x, 16, 0, return_complex=True)),
        (ArgumentError, "give it", lambda: tg.stft(x, 3, return_complex=True)),
        (ArgumentError, "win_length must be from 1", lambda: tg.stft(x, 16, win_length=17, return_complex=True)),
        (ShapeError, "window must have the shape", lambda: tg.stft(x, 16, window=tg.ones(9), return_complex=True)),
        (ShapeError, "takes signals", lambda: tg.stft(tg.ones(2, 2, 9), 4, return_complex=True)),
        (DTypeError, "got int64", lambda: tg.stft(tg.arange(64), 16, return_complex=True)),
        (ArgumentError, "align_to_window", lambda: tg.stft(x, 16, return_complex=True, align_to_window=True)),
        (DTypeError, "complex tensors", lambda: tg.istft(tg.ones(9, 5), 16)),
        (ShapeError, "must have 9 frequencies", lambda: tg.istft(z, 16, onesided=False) if False else tg.istft(z[:8], 16)),
        (ArgumentError, "all frequencies", lambda: tg.istft(z, 16, return_complex=True)),
        (ArgumentError, "not determined", lambda: tg.istft(z, 16, window=tg.hann_window(16), center=False)),
        (ArgumentError, "not determined", lambda: tg.istft(z, 16, 16, window=tg.hann_window(16))),
        (ArgumentError, "nothing is left", lambda: tg.istft(z[:, :1], 16)),
    ]:
        with pytest.raises(error, match=f"stft: .*{words}"):
            call()
    with pytest.warns(UserWarning, match="length 200"):
        assert tg.istft(z, 16, length=200).shape == (200,)


# --------------------------------------------------------------------------------------------------------------- segments


@pytest.mark.usefixtures("on_numpy")
@one_of(4, "reduce", ["sum", "mean", "prod", "max", "min"])
def test_segment_reduce(reduce: str) -> None:
    how = {"max": "max", "min": "min"}.get(reduce, reduce)
    for counts in ((0, 3, 5, 0, 8, 1), (17,), (1,) * 17):
        x = rng.normal(size=(17, 3))
        lengths = tg.tensor(np.array(counts))
        parts = np.split(x, np.cumsum(counts)[:-1])
        empty = {"sum": 0.0, "mean": np.nan, "prod": 1.0, "max": -np.inf, "min": np.inf}[reduce]
        wanted = np.stack([getattr(p, how)(0) if len(p) else np.full(3, empty) for p in parts])
        close(tg.segment_reduce(tg.tensor(x), reduce, lengths=lengths), wanted)
        offsets = tg.tensor(np.concatenate([[0], np.cumsum(counts)]))
        close(tg.segment_reduce(tg.tensor(x), reduce, offsets=offsets), wanted)
        close(tg.trace(lambda a, n: tg.segment_reduce(a, reduce, lengths=n))(tg.tensor(x), lengths), wanted)
        differentiated(lambda a, n=lengths: tg.segment_reduce(a, reduce, lengths=n, initial=1.0), x)
    rows = tg.tensor(np.array([[2, 3], [4, 1]]))
    x = rng.uniform(1, 2, (2, 5))
    wanted = np.array([[getattr(x[0, :2], how)(), getattr(x[0, 2:], how)()], [getattr(x[1, :4], how)(), getattr(x[1, 4:], how)()]])
    close(tg.segment_reduce(tg.tensor(x), reduce, lengths=rows, axis=1), wanted)


@pytest.mark.usefixtures("on_numpy")
def test_errors_of_segment_reduce() -> None:
    x = tg.ones(5)
    for words, kwargs in [("must add up to 5", {"lengths": tg.tensor([1, 2])}), ("must not be negative", {"lengths": tg.tensor([6, -1])}),
                          ("lengths or offsets", {}), ("must be integers", {"lengths": tg.ones(2), "unsafe": True})]:
        with pytest.raises(ArgumentError if "integers" not in words else ShapeError, match=words):
            tg.segment_reduce(x, "sum", **kwargs)
    with pytest.raises(ArgumentError, match="one of sum"):
        tg.segment_reduce(x, "median", lengths=tg.tensor([5]))


# -------------------------------------------------------------------------------------------------------------------- LDL


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_ldl(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By SciPy's LAPACK and without it: the same pivots, and A = L D L^T."""
    for n, hermitian in itertools.product((1, 2, 7, 33, 65), (False, True)):
        a = rng.normal(size=(3, n, n)) + (1j * rng.normal(size=(3, n, n)) if dtype == "complex128" else 0)
        a = (a + (a.conj() if hermitian else a).swapaxes(-1, -2)).astype(dtype)
        b = rng.normal(size=(3, n, 2)).astype(dtype)
        given = tg.linalg.ldl_factor(tg.tensor(a), hermitian=hermitian)
        with monkeypatch.context() as patched:
            patched.setattr(ldl, "_library", lambda: None)
            own = tg.linalg.ldl_factor(tg.tensor(a + 0), hermitian=hermitian)
        np.testing.assert_array_equal(own.pivots.numpy(), given.pivots.numpy())
        for LD in (given.LD, own.LD):
            for i in range(3):
                order, low, inverse = ldl.unpacked(LD[i].numpy(), given.pivots[i].numpy(), hermitian)
                rebuilt = low @ np.linalg.inv(inverse) @ (low.conj() if hermitian else low).T
                close(rebuilt, a[i][order][:, order], 2e-3 if dtype == "float32" else 1e-9)
        if dtype != "float32":
            close(tg.linalg.ldl_solve(given.LD, given.pivots, tg.tensor(b), hermitian=hermitian), np.linalg.solve(a, b), 1e-7)


@pytest.mark.usefixtures("on_numpy")
def test_ldl_derivatives_transforms_and_errors() -> None:
    for hermitian in (False, True):
        a = rng.normal(size=(2, 5, 5)) + 1j * rng.normal(size=(2, 5, 5))
        a = a + (a.conj() if hermitian else a).swapaxes(-1, -2)
        b = rng.normal(size=(2, 5, 3)) + 1j * rng.normal(size=(2, 5, 3))
        factors = tg.linalg.ldl_factor(tg.tensor(a), hermitian=hermitian)
        differentiated(lambda x, f=factors, h=hermitian: tg.linalg.ldl_solve(*f, x, hermitian=h), b)

        def both(x: Any, y: Any, h: bool = hermitian) -> Any:
            return tg.linalg.ldl_solve(*tg.linalg.ldl_factor(x, hermitian=h), y, hermitian=h)

        close(tg.trace(both)(tg.tensor(a), tg.tensor(b)), np.linalg.solve(a, b), 1e-9)
        close(tg.vmap(both)(tg.tensor(a), tg.tensor(b)), np.linalg.solve(a, b), 1e-9)
    close(tg.linalg.ldl_factor_ex(tg.zeros(2, 3, 3)).info, np.array([1, 1]))
    with pytest.raises(LinAlgError, match="ldl_factor: matrix 1 of the batch"):
        tg.linalg.ldl_factor(tg.stack([tg.eye(3), tg.zeros(3, 3)])).LD.numpy()
    with pytest.raises(AutogradError, match="no derivative with respect to its matrix"):
        tg.linalg.ldl_factor(tg.eye(3).requires_grad_())
    with pytest.raises(ShapeError, match="B must have 3 rows"):
        tg.linalg.ldl_solve(*tg.linalg.ldl_factor(tg.eye(3)), tg.ones(4, 1))
    with pytest.raises(LinAlgError, match="pivots must be what ldl_factor gives"):
        tg.linalg.ldl_solve(tg.eye(3), tg.tensor([1, 2, 9], dtype=tg.int32), tg.ones(3, 1)).numpy()


# --------------------------------------------------------------------------------------------------------- bits and shapes


def test_bits(device: Any) -> None:
    x = rng.normal(size=(3, 5)).astype(np.float32)
    t = tg.tensor(x)
    np.testing.assert_array_equal(t.view(tg.int32).numpy(), x.view(np.int32))
    np.testing.assert_array_equal(t.view(tg.uint8).numpy(), x.view(np.uint8))
    np.testing.assert_array_equal(t.view(tg.uint8).view(tg.float32).numpy(), x)
    np.testing.assert_array_equal(tg.trace(lambda a: a.view(tg.int32) + 1)(t).numpy(), x.view(np.int32) + 1)
    wide = x.astype(np.float64).view(np.uint64)
    for dim, keep in ((None, False), (0, False), (-1, True), ((0, 1), True)):
        found = tg.hash_tensor(t, () if dim is None else dim, keepdim=keep)
        np.testing.assert_array_equal(found.numpy(), np.bitwise_xor.reduce(wide, axis=dim, keepdims=keep))
    numbers = np.array([-3, 7, 129])
    assert tg.hash_tensor(tg.tensor(numbers)).numpy() == np.bitwise_xor.reduce(numbers.astype(np.uint64))
    with pytest.raises(ShapeError, match="view: the last dimension"):
        t.view(tg.float64)
    with pytest.raises(DTypeError, match="x != 0"):
        t.view(tg.bool_)
    with pytest.raises(DTypeError, match="view_as_real"):
        tg.hash_tensor(t.to(tg.complex64))


@pytest.mark.usefixtures("on_numpy")
def test_resize() -> None:
    x = tg.arange(6)
    assert x.resize_(2, 2) is x
    np.testing.assert_array_equal(x.numpy(), [[0, 1], [2, 3]])
    np.testing.assert_array_equal(x.resize_((3, 2)).add_(1).numpy(), [[1, 2], [3, 4], [1, 1]])
    part = x[0]
    x.resize_(6)                                                    # as many elements: views stay what they are
    part.fill_(9)
    np.testing.assert_array_equal(x.numpy(), [9, 9, 3, 4, 1, 1])
    with pytest.raises(ArgumentError, match="it is a view"):
        part.resize_(1)
    x.resize_(2, 4)                                                 # more: views are those of the first ones
    part.add_(1)
    x.add_(x)
    np.testing.assert_array_equal(x.numpy(), [[20, 20, 6, 8], [2, 2, 0, 0]])
    np.testing.assert_array_equal(part.numpy(), [20, 20])
    new = x[1]
    x.resize_(2)                                                    # fewer: a view of what was cut off cannot be used
    np.testing.assert_array_equal(x.numpy(), [20, 20])
    for view in (part, new):
        with pytest.raises(ArgumentError, match=r"resize_: the tensor that this view was taken of has the shape \(2,\) now"):
            view.numpy()
    np.testing.assert_array_equal(x[1:].numpy(), [20])
    with pytest.raises(AutogradError, match="requires grad"):
        tg.ones(3).requires_grad_().resize_(2)
    with pytest.raises(TraceError, match="resize_"):
        tg.trace(lambda a: a.resize_(2))(x)
    assert tg.zeros(3).resize_as_(tg.ones(2, 4)).shape == (2, 4)


def test_slices_whose_ends_are_tensors(device: Any) -> None:
    """Of many calls alike, each takes its own ends: they are values, not operands."""
    x = tg.arange(12)
    for k in range(12):
        np.testing.assert_array_equal(x[:tg.tensor(k)].numpy(), np.arange(k))
        np.testing.assert_array_equal(x[tg.tensor(k):tg.tensor(11)].numpy(), np.arange(k, 11))
        y = tg.zeros(12)
        y[:tg.tensor(k)] = 1.0
        assert y.sum().item() == k


# --------------------------------------------------------------------------------------------------------------- tg.ops.aten


@pytest.mark.usefixtures("on_numpy")
def test_atens_names() -> None:
    aten = tg.ops.aten
    x = rng.normal(size=(5, 7))
    t = tg.tensor(x, requires_grad=True)
    y = tg.softmax(t, 1)
    g = tg.tensor(rng.normal(size=(5, 7)))
    (wanted,) = tg.autograd.grad(y, t, g)
    close(aten._softmax_backward_data(g, y.detach(), 1, tg.float64), wanted.numpy())
    masked = np.where(np.arange(5)[:, None] == 2, -np.inf, x)
    e = np.exp(masked)
    close(aten._safe_softmax(tg.tensor(masked), 1), e / np.where(e.any(1, keepdims=True), e.sum(1, keepdims=True), 1))
    check_gradient(lambda a: aten._safe_softmax(a, 0), x)
    q, k, v = (tg.tensor(rng.normal(size=(2, 3, n, 4))) for n in (5, 6, 6))
    out, rows = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True)
    scores = np.where(np.tri(5, 6, dtype=bool), q.numpy() @ k.numpy().swapaxes(-1, -2) / 2, -np.inf)
    close(rows, np.log(np.exp(scores).sum(-1)))
    close(out, np.exp(scores - rows.numpy()[..., None]) @ v.numpy())
    image = tg.tensor(rng.normal(size=(2, 3, 9, 13)))
    close(aten._upsample_bilinear2d_aa(image, (4, 5), False), F.interpolate(image, (4, 5), mode="bilinear", antialias=True).numpy())
    pooled, indices = F.max_pool2d(image, 3, 2, 1, return_indices=True)
    image.requires_grad_()
    F.max_pool2d(image, 3, 2, 1).sum().backward()
    close(aten.max_pool2d_with_indices_backward(tg.ones_like(pooled), image.detach(), 3, 2, 1, 1, False, indices), image.grad.numpy())
    close(aten._chunk_cat([tg.tensor(x), tg.tensor(x[:, :3])], 0, 2),
          np.concatenate([np.pad(v, ((0, 1), (0, 0))).reshape(2, -1) for v in (x, x[:, :3])], 1))
    i, j = np.array([[-1], [9], [2]]), np.array([[0, 3, 6]])
    mask = np.array([[True] * 3, [False] * 3, [True] * 3])
    key = (tg.tensor(i), tg.tensor(j))
    close(aten._unsafe_masked_index(tg.tensor(x), tg.tensor(mask), key, 4.0), np.where(mask, x[np.where(i > 4, 0, i), j], 4.0))
    added = x.copy()
    np.add.at(added, (np.where(i > 4, 0, i), j), mask * 2.0)
    close(aten._unsafe_masked_index_put_accumulate(tg.tensor(x), tg.tensor(mask), key, tg.full((3, 3), 2.0).double()), added)
    close(aten.slice(tg.tensor(x), 1, -5, None, 2), x[:, -5::2])
    mean, var = tg.zeros(7).double(), tg.ones(7).double()
    found = aten._batch_norm_with_update(tg.tensor(x), None, None, mean, var, 0.1, 1e-5)
    close(found[0], (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5))
    close(mean, 0.1 * x.mean(0))
    assert found[3].dtype == tg.uint8
    close(aten._native_batch_norm_legit(tg.tensor(x), None, None, True, 0.1, 1e-5)[0], found[0].numpy())


def test_istft_in_vmap_takes_windows_of_a_batch() -> None:
    """The window's values, which are looked at elsewhere, are not known there."""
    x, window = tg.randn(3, 16), tg.rand(3, 8) + 0.5
    spectra = tg.stack([tg.stft(a, 8, 2, window=w, return_complex=True) for a, w in zip(x, window, strict=True)])
    back = tg.vmap(lambda s, w: tg.istft(s, 8, 2, window=w))(spectra, window)
    np.testing.assert_allclose(back.numpy(), x.numpy(), atol=1e-5)


@pytest.mark.parametrize("traced", [False, True])
def test_bytes_as_another_dtype_are_a_view(traced: bool) -> None:
    """As in torch: what is written reaches the tensor, and its derivative knows nothing of it."""
    values, others = np.float32([[1.5, -2.0, 3.0, 4.0]] * 2), np.arange(8, dtype=np.float32).reshape(2, 4)

    def exchanged(x: Any, y: Any) -> tuple[Any, ...]:
        x, y = x.clone(), y.clone()
        a, b = x.view(tg.uint8), y.view(tg.uint8)
        a.bitwise_xor_(b)
        b.bitwise_xor_(a)
        a.bitwise_xor_(b)
        x.view(tg.float64)[1] = 0.0
        x[0].view(tg.int32).view(2, 2)[0, 1] = 7
        return x, y, a.view(tg.float32)

    expected = others.copy()
    expected[1], expected.view(np.int32)[0, 1] = 0, 7
    call = tg.trace(exchanged) if traced else exchanged
    for _ in range(3):
        found, other, seen = call(tg.tensor(values), tg.tensor(others))
        for made, right in ((found, expected), (seen, expected), (other, values)):
            assert made.numpy().tobytes() == right.tobytes()
    flags = tg.tensor([True, False, True])
    flags.view(tg.uint8)[1] = 1
    assert flags.tolist() == [True, True, True]
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    y.view(tg.int32).add_(1)
    x.view(tg.int32).sub_(1)
    y.sum().backward()
    assert y.detach().view(tg.int32).tolist() == (np.float32([2, 4]).view(np.int32) + 1).tolist()
    assert x.detach().view(tg.int32).tolist() == (np.float32([1, 2]).view(np.int32) - 1).tolist()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
