"""Transforms of the host that take the permutations around them into themselves: codegen/graph/fourier/turned.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import ops  # noqa: F401
from tracegrad.codegen.graph.fourier.turned import turned
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, placeholder


def permuted(x: Any, *dims: int) -> Any:
    return x.transpose(dims) if isinstance(x, np.ndarray) else x.permute(dims)


# Programs of tracegrad or numpy, and how many transforms are turned in them.
PROGRAMS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "result": (lambda fft, x: permuted(fft.rfft(x), 0, 2, 1), 1),
    "result, further": (lambda fft, x: abs(permuted(fft.rfft(x), 2, 0, 1)) * 2.0, 1),
    "operand": (lambda fft, x: fft.rfft(permuted(x, 1, 2, 0)), 1),
    "inverse": (lambda fft, x: fft.irfft(permuted(x * 1j, 2, 0, 1)), 1),
    "both": (lambda fft, x: permuted(fft.rfft(permuted(x, 1, 2, 0)), 1, 0, 2), 1),
    "one after the other": (lambda fft, x: permuted(fft.fft(permuted(fft.fft(x), 0, 2, 1)), 2, 0, 1), 2),
    "there and back": (lambda fft, x: permuted(abs(permuted(fft.rfft(x), 0, 2, 1)), 0, 2, 1), 0),
    "back before": (lambda fft, x: fft.rfft(permuted(permuted(x, 0, 2, 1) * 2.0, 0, 2, 1)), 0),
    "two orders": (lambda fft, x: abs(permuted((y := fft.rfft(x)), 0, 2, 1)).sum() + abs(permuted(y, 2, 1, 0)), 0),
    "read as it is": (lambda fft, x: abs(permuted((y := fft.rfft(x)), 0, 2, 1)).sum() + abs(y), 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_which_transforms_are_turned(name: str) -> None:
    f, count = PROGRAMS[name]
    x: Any = placeholder(Aval((3, 4, 8), np.dtype("float32")))
    found = turned(Graph.capture([x], [_node(f(tg.fft, x))]), [REGISTRY[name] for name in ("dft", "real_dft", "half_dft")])
    assert [node.fn.name for node in found].count("turned_dft") == count


def _node(x: Any) -> Node:
    return x if isinstance(x, Node) else x._node  # type: ignore[no-any-return]


@one_of(3, "name", PROGRAMS)
def test_turned_transforms_are_right(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 6, 16)).astype(np.float32)
    f, _ = PROGRAMS[name]
    exact = f(np.fft, x.astype(np.float64))
    np.testing.assert_allclose(tg.trace(lambda x: f(tg.fft, x))(tg.tensor(x)).numpy(), exact, rtol=1e-5, atol=1e-5 * abs(exact).max())


def test_a_spectrogram_has_no_kernel_of_its_own_for_the_transposition() -> None:
    f = tg.trace(lambda x: tg.stft(x, 64, 16, window=tg.hann_window(64), return_complex=True))
    x = tg.tensor(np.random.default_rng(0).standard_normal(2000).astype(np.float32))
    whole = f(x).numpy()
    assert "real_dft" not in f.kernels()                         # none reads the spectrum
    exact = tg.stft(x.double(), 64, 16, window=tg.hann_window(64).double(), return_complex=True)
    np.testing.assert_allclose(whole, exact.numpy(), atol=1e-4)


def test_transposed_complex_numbers_take_several_rows_at_once() -> None:
    """Where a kernel does it all the same: a line of memory holds both parts of half as many."""
    x = np.random.default_rng(0).standard_normal((300, 264, 2)).astype(np.float32).view(np.complex64)[..., 0]
    programs: list[Callable[[Any], Any]] = [lambda x: abs(x.T), lambda x: x.T * 2.0]
    for g in programs:
        f = tg.trace(g)
        np.testing.assert_allclose(f(tg.tensor(x)).numpy(), g(x), rtol=1e-6)
        text = str(f.kernels())
        assert text.index("for (int col = 0") < text.index("for (int row = part * 8")
