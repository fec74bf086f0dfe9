"""tg.fft: values against numpy, derivatives of every order, forward mode, vmap, traces and kernels, arguments and their errors.

test_fft_torch.py compares with torch (slow).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.nodes import check_gradient
from tests.ops.complex.test_complex import SIZES, close, draw
from tracegrad.codegen.graph.fourier.transforms import in_kernels
from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.operators import FOURIER
from tracegrad.graph.primitive import placeholder
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.ops.fourier import transforms
from tracegrad.support.plan import Target

STEMS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
NORMS = (None, "backward", "ortho", "forward")
REAL = ("rfft", "ihfft", "rfft2", "ihfft2", "rfftn", "ihfftn")
JITTER = 8.0                                # of the two FFTs' rounding


def operand(name: str, *shape: int, dtype: Any = np.complex128) -> Any:
    x = draw(*shape, seed=3, dtype=dtype)
    return x.real.copy() if name in REAL else x


def numpys(name: str, x: Any, s: Any = None, dim: Any = None, norm: Any = None) -> Any:
    """The same by numpy, which lacks hfft and ihfft of several dimensions."""
    if name in ("hfft2", "hfftn"):
        swapped = {"forward": "backward", "ortho": "ortho"}.get(norm, "forward")
        return np.fft.irfftn(np.conj(x), s, dim, swapped)
    if name in ("ihfft2", "ihfftn"):
        swapped = {"forward": "backward", "ortho": "ortho"}.get(norm, "forward")
        return np.conj(np.fft.rfftn(x, s, dim, swapped))
    return getattr(np.fft, name)(x, s, dim, norm)


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_one_dimension_at_every_size(stem: str, dtype: Any) -> None:
    for k, n in enumerate(SIZES):
        m = n // 2 + 1 if stem in ("irfft", "hfft") else n
        x, norm = operand(stem, 3, m, dtype=dtype), NORMS[k % 4]
        found = getattr(tg.fft, stem)(tg.tensor(x, device="numpy"), n, norm=norm)
        close(found, numpys(stem, x, n, -1, norm), f"{stem} {n} {norm}", JITTER)


@pytest.mark.parametrize("stem", STEMS)
def test_points_dims_and_norms(stem: str) -> None:
    for n in (None, 1, 4, 6, 7, 13):
        for dim in (0, 1, -1):
            for norm in NORMS:
                x = operand(stem, 5, 6)
                found = getattr(tg.fft, stem)(tg.tensor(x, device="numpy"), n=n, dim=dim, norm=norm)
                close(found, numpys(stem, x, n, dim, norm), f"{stem} {n} {dim} {norm}", JITTER)


@pytest.mark.parametrize("stem", STEMS)
def test_several_dimensions(stem: str) -> None:
    x = operand(stem, 3, 4, 5)
    t = tg.tensor(x, device="numpy")
    for k, (s, dim) in enumerate([(None, None), (None, (0, 2)), ((4, 3), (-2, -1)), ((2, 7), (2, 0)), ((6,), (1,)), (None, (1, 2, 0))]):
        norm = NORMS[k % 4]
        close(getattr(tg.fft, f"{stem}n")(t, s=s, dim=dim, norm=norm), numpys(f"{stem}n", x, s, dim, norm), f"{stem}n {s} {dim}", JITTER)
    close(getattr(tg.fft, f"{stem}2")(t), numpys(f"{stem}2", x, None, (-2, -1)), f"{stem}2", JITTER)
    close(getattr(tg.fft, f"{stem}n")(t, s=(-1, 6)), numpys(f"{stem}n", x, (4, 6), (-2, -1)), "s=-1: as it is; the last dimensions", JITTER)


@pytest.mark.parametrize("stem", STEMS)
def test_derivatives(stem: str) -> None:
    """First and second order, and forward mode, against finite differences; odd and even numbers of points, cut off and filled up."""
    for n, m, norm in ((None, 4, None), (7, 5, "ortho"), (6, 3, "forward"), (3, 6, "backward")):
        check_gradient(lambda x, n=n, norm=norm: getattr(tg.fft, stem)(x, n, norm=norm), operand(stem, 2, m))
    check_gradient(lambda x: getattr(tg.fft, f"{stem}n")(x, s=(3, 4), dim=(2, 0)), operand(stem, 2, 2, 3), order=1)


def test_gradcheck_of_products_of_spectra() -> None:
    x, y = (tg.tensor(operand("rfft", 9), requires_grad=True, device="numpy") for _ in range(2))
    assert tg.testing.gradcheck(lambda x, y: tg.fft.irfft(tg.fft.rfft(x) * tg.fft.rfft(y).conj(), 9), (x, y))
    assert tg.testing.gradgradcheck(lambda x: tg.fft.fft(x).abs().square().sum(), x)


def test_the_inverse_undoes_it(device: Any) -> None:
    for n in (7, 64, 129):
        x = tg.tensor(operand("rfft", 3, n).astype(np.float32))
        close(tg.fft.irfft(tg.fft.rfft(x), n), x, "irfft", JITTER)
        close(tg.fft.ifft(tg.fft.fft(x)).real, x, "ifft", JITTER)
        close(tg.fft.ihfft(tg.fft.hfft(tg.fft.ihfft(x), n)), tg.fft.ihfft(x), "hfft", JITTER)


def test_in_a_trace_with_kernels_on_both_sides(device: Any) -> None:
    """Value, gradient and the gradient's derivative of a convolution by spectra, against the sum that it is."""
    n = 33
    x, w = (draw(2, n, seed=k).real.astype(np.float32) for k in (1, 2))

    @tg.trace
    def by_spectra(x, w):
        def loss(x, w):
            y = tg.fft.irfft(tg.fft.rfft(x * 2) * tg.fft.rfft(w.sin()), n)
            return (y * y * y).sum() / n

        value, (gx, gw) = tg.value_and_grad(loss, (0, 1))(x, w)
        return value, gx, gw, tg.hvp(lambda w: loss(x, w), (w,), (x,))[1]

    @tg.trace
    def by_sums(x, w):
        def loss(x, w):
            places = (tg.arange(n)[:, None] - tg.arange(n)[None]) % n
            y = ((x * 2)[:, places] * w.sin()[:, None]).sum(-1)
            return (y * y * y).sum() / n

        value, (gx, gw) = tg.value_and_grad(loss, (0, 1))(x, w)
        return value, gx, gw, tg.hvp(lambda w: loss(x, w), (w,), (x,))[1]

    a, b = tg.tensor(x), tg.tensor(w)
    for k, (found, wanted) in enumerate(zip(by_spectra(a, b), by_sums(a, b), strict=True)):
        close(found, wanted, str(k), 50)


def test_vmap_and_backward(device: Any) -> None:
    x = draw(4, 3, 8).astype(np.complex64)
    t = tg.tensor(x)
    close(tg.vmap(lambda a: tg.fft.fft(a, dim=0))(t), np.fft.fft(x, axis=1), "fft", JITTER)
    wanted = np.moveaxis(np.fft.irfft(np.moveaxis(x, 2, 0), 5), 0, 1)
    close(tg.vmap(lambda a: tg.fft.irfft(a, 5), in_dims=2, out_dims=1)(t), wanted, "irfft", JITTER)
    each = tg.vmap(tg.grad(lambda a: tg.fft.rfft2(a).abs().square().sum()))(tg.tensor(x.real.copy()))
    real = tg.tensor(x.real.copy(), requires_grad=True)
    tg.fft.rfft2(real).abs().square().sum().backward()
    close(each, real.grad, "grad", JITTER)


SMOOTH_AND_OTHERS = (*SIZES, 37, 74, 331, 360, 1024, 1031, 2401)      # primes, twice a prime, products of small ones


@pytest.mark.parametrize("n", SMOOTH_AND_OTHERS)
def test_as_kernels_at_every_size(n: int) -> None:
    """Composed of products, for devices with memory of their own: the graph by the interpreter against pocketfft."""
    target = Target(host_memory=False)
    z = draw(3, n)
    x = placeholder(Aval(z.shape, z.dtype))
    r = placeholder(Aval(z.shape, z.real.dtype))
    plain = [transforms.dft(x, (-1,), inverse, scale) for inverse, scale in ((False, "one"), (True, "whole"), (False, "root"))]
    plain += [transforms.dft(x, (-2, -1), True), transforms.half_dft(x, -1, 2 * n - 1, "whole"), transforms.real_dft(r, -1),
              transforms.half_dft(x, -1, max(1, 2 * n - 2), "root"), transforms.real_dft(r, -2, "root")]
    graph = Graph.capture([x, r], plain)
    composed = in_kernels(graph, target)
    assert not any(node.fn.name.endswith("dft") for node in composed)
    given = [z, z.real.copy()]
    for k, (found, value) in enumerate(zip(interpret(composed, given), interpret(graph, given), strict=True)):
        close(found, value, f"{k} {n}", 10)


def test_kernels_of_transforms(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through kernels, fused with what stands around them: values and gradients; no call of the host is left."""
    if tg.device().kind == "numpy":
        pytest.skip("kernels need an OpenCL device")
    monkeypatch.setattr(tg.config, "fourier", "kernels")

    @tg.trace
    def f(x, r):
        return tg.fft.fft(x * 2), tg.grad(lambda r: tg.fft.rfft(r * r, norm="ortho").abs().square().sum())(r)

    for n in (13, 48):
        z = draw(3, n, dtype=np.complex64)
        y, gradient = f(tg.tensor(z), tg.tensor(z.real.copy()))
        close(y, np.fft.fft(z * 2), f"fft {n}", 30)
        square = np.fft.rfft(z.real ** 2, norm="ortho")
        square[:, 1:(n + 1) // 2] *= 0.5
        close(gradient, np.fft.irfft(square, n, norm="ortho").astype(np.float32) * 4 * z.real * n / n, f"gradient {n}", 100)
    assert "host code" not in f.explain()


def test_frequencies_and_shifts() -> None:
    for n in (1, 2, 5, 8, 13):
        for d in (1.0, 0.25):
            close(tg.fft.fftfreq(n, d), np.fft.fftfreq(n, d).astype(np.float32))
            close(tg.fft.rfftfreq(n, d, dtype=tg.float64), np.fft.rfftfreq(n, d))
        x = operand("rfft", n, n + 1)
        for dim in (None, 0, (0, 1)):
            close(tg.fft.fftshift(tg.tensor(x), dim), np.fft.fftshift(x, dim))
            close(tg.fft.ifftshift(tg.tensor(x), dim), np.fft.ifftshift(x, dim))
    assert tg.fft.fftfreq(4, requires_grad=True).requires_grad


def test_dtypes() -> None:
    for x in (np.arange(6).reshape(2, 3), np.ones((2, 3), bool)):
        assert tg.fft.fft(tg.tensor(x)).dtype == tg.fft.rfft(tg.tensor(x)).dtype == tg.complex64
        assert tg.fft.irfft(tg.tensor(x)).dtype == tg.float32
    assert tg.fft.fft(tg.ones(3, dtype=tg.float64)).dtype == tg.complex128
    assert tg.fft.hfft(tg.ones(3, dtype=tg.complex128)).dtype == tg.float64
    assert tg.fft.fft(tg.ones(0, 3)).shape == (0, 3)
    assert tg.fft.rfft(tg.ones(0, 5)).shape == (0, 3)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: tg.fft.fft(tg.ones(3, 0)), ArgumentError, r"^fft: .*positive, got 0"),
    (lambda: tg.fft.fft(tg.ones(3), 0), ArgumentError, r"^fft: .*positive, got 0"),
    (lambda: tg.fft.irfft(tg.ones(3, 1)), ArgumentError, r"^irfft: .*positive, got 0.*give it"),
    (lambda: tg.fft.fft(tg.ones(3), norm="half"), ArgumentError, r"^fft: norm must be .*'half'"),
    (lambda: tg.fft.fft2(tg.ones(3, 3), dim=(0, 0)), ArgumentError, r"^fft2: dim \(0, 0\) names a dimension twice"),
    (lambda: tg.fft.fftn(tg.ones(3, 3), s=(2, 2, 2)), ArgumentError, r"^fftn: s=\(2, 2, 2\) has more sizes"),
    (lambda: tg.fft.fftn(tg.ones(3, 3), s=(2,), dim=(0, 1)), ArgumentError, r"^fftn: s .* same length"),
    (lambda: tg.fft.fft(tg.ones(3), dim=1), IndexOutOfRange, r"^fft: "),
    (lambda: tg.fft.fft(tg.ones(3), dim=(0,)), ArgumentError, r"^fft: dim must be an integer.*fftn"),
    (lambda: tg.fft.fft(tg.tensor(1.0)), IndexOutOfRange, r"^fft: .*0-d"),
    (lambda: tg.fft.rfft(tg.ones(3, dtype=tg.complex64)), DTypeError, r"^rfft: takes real tensors, got complex64"),
    (lambda: tg.fft.rfftn(tg.ones(3), dim=()), ArgumentError, r"^rfftn: must transform at least one dimension"),
    (lambda: tg.fft.fft(tg.ones(3).half()), DTypeError, r"^fft: does not take float16"),
    (lambda: tg.fft.fftfreq(0), ArgumentError, r"^fftfreq: n must be positive, got 0"),
    (lambda: tg.fft.fftfreq(3, dtype=tg.int64), DTypeError, r"^fftfreq: makes floats, not int64"),
    (lambda: tg.fft.fft([1.0]), DTypeError, r"^fft: "),
])
def test_errors(call: Callable[[], Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_every_function_has_an_example_that_runs() -> None:
    for name, fn in FOURIER.items():
        assert f">>> tg.fft.{name}(" in (fn.__doc__ or "") or name == "ifftshift", name


def test_source_runs() -> None:
    """What f.source() shows gives the program's values."""
    @tg.trace
    def f(x):
        return tg.fft.ifft2(tg.fft.fftn(x, norm="ortho"), s=(2, 4)), tg.fft.irfft(tg.fft.rfft(x.real, norm="forward"), 5)

    x = tg.tensor(draw(3, 6))
    wanted = f(x)
    world: dict[str, Any] = {}
    exec(f.source(), world)
    for found, value in zip(world["f"](x), wanted, strict=True):
        close(found, value)


@pytest.mark.parametrize("library", ["scipy.fft", "numpy.fft"])
def test_of_any_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """pocketfft is called without scipy around it; scipy.fft or numpy.fft is where that is not there, or would write over what it reads."""
    z = np.random.default_rng(0).normal(size=(3, 4, 6, 2)).astype(np.float32).view(np.complex64)[..., 0]
    calls: list[tuple[str, np.ndarray, tuple[int, ...], bool, str, int]] = [
        ("c2c", z, (-1,), False, "one", 0), ("c2c", z, (-3, -1), True, "whole", 0), ("c2c", z, (-2,), True, "root", 0),
        ("r2c", z.real.copy(), (-2,), False, "root", 0), ("c2r", z, (-1,), True, "whole", 10), ("c2r", z, (-2,), True, "one", 7)]

    def computed(into: bool) -> list[np.ndarray]:
        found = []
        for function, x, dims, inverse, scale, n in calls:
            y = transforms._computed(function, x, dims, inverse, scale, None, *[n] * (n > 0))
            out = np.empty_like(y) if into else None
            again = transforms._computed(function, x, dims, inverse, scale, out, *[n] * (n > 0))
            found.append(again if out is None else out)
        return found

    same = z.copy()
    transforms._computed("c2c", same, (-1,), False, "one", same)         # in place
    close(same, np.fft.fft(z), "in place", 30)
    plain = computed(False)
    monkeypatch.setattr(transforms, "_pocketfft", lambda: None)
    monkeypatch.setattr(transforms, "_library", lambda: importlib.import_module(library))
    for into in (False, True):
        for a, b in zip(plain, computed(into), strict=True):
            close(a, b, library, 30)
