"""tg.fft beside torch.fft: value, gradient, second derivative and forward mode of every function, for all arguments; what is an error."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.ops.complex.test_complex import draw

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
NORMS = (None, "backward", "ortho", "forward")


def array(x: Any) -> Any:
    return x.detach().resolve_conj().numpy() if isinstance(x, torch.Tensor) else x.detach().numpy()


def compare(name: str, x: Any, **named: Any) -> None:
    """Both refuse, or both give the same."""
    label = f"{name} {named} of {x.dtype}{x.shape}"
    theirs, ours = torch.tensor(x, requires_grad=True), tg.tensor(x, requires_grad=True, device="numpy")
    try:
        wanted = getattr(torch.fft, name)(theirs, **named)
    except (RuntimeError, IndexError, TypeError):
        with pytest.raises((tg.TracegradError, IndexError)):
            getattr(tg.fft, name)(ours, **named)
        return
    found = getattr(tg.fft, name)(ours, **named)

    def same(a: Any, b: Any, what: str) -> None:
        a, b = array(a), array(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{what} of {label}"
        tolerance = 1e-4 if a.dtype in (np.float32, np.complex64) else 1e-9
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, np.abs(b).max(initial=0)), err_msg=f"{what} of {label}")

    same(found, wanted, "value")
    ct = draw(*wanted.shape, seed=9).astype(array(wanted).dtype) if wanted.is_complex() else draw(*wanted.shape).real.astype(x.real.dtype)
    ours_ct, theirs_ct = tg.tensor(ct, requires_grad=True, device="numpy"), torch.tensor(ct, requires_grad=True)
    g, = tg.autograd.grad(found, [ours], ours_ct, create_graph=True)
    h, = torch.autograd.grad(wanted, [theirs], theirs_ct, create_graph=True)
    same(g, h, "gradient")
    same(tg.autograd.grad((abs(g) ** 2).sum(), [ours_ct])[0], torch.autograd.grad((abs(h) ** 2).sum(), [theirs_ct])[0], "second derivative")
    t = x[..., ::-1].copy()
    same(tg.jvp(lambda a: getattr(tg.fft, name)(a, **named), (ours.detach(),), (tg.tensor(t, device="numpy"),))[1],
         torch.func.jvp(lambda a: getattr(torch.fft, name)(a, **named), (theirs.detach(),), (torch.tensor(t),))[1], "jvp")


@pytest.mark.parametrize("stem", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_as_in_torch(stem: str) -> None:
    real = stem in ("rfft", "ihfft")
    for k, (m, norm, n, dim) in enumerate(product((1, 2, 7, 8, 13), NORMS, (None, 1, 4, 9, 0, -3), (-1, 0, 3))):
        x = draw(3, m).astype(np.complex64 if k % 5 == 0 else np.complex128)
        compare(stem, x.real.copy() if real or k % 3 == 0 else x, n=n, dim=dim, norm=norm)
    x = draw(3, 4, 5).real.copy() if real else draw(3, 4, 5)
    sizes = (None, (2,), (4, 3), (-1, 5), (3, 4, 5), (2, 2, 2, 2), (0, 3))
    for k, (s, dim) in enumerate(product(sizes, (None, (-2, -1), (0,), (0, 2), (1, 1), (2, 0, 1), (5,)))):
        compare(f"{stem}n", x, s=s, dim=dim, norm=NORMS[k % 4])
        if dim is not None:
            compare(f"{stem}2", x, s=s, dim=dim, norm=NORMS[k % 4])
    for odd in (np.ones((0, 3)), np.ones((3, 0)), np.ones(()), draw(3, 4)):
        compare(stem, odd)
