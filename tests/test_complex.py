"""Complex numbers: values against numpy on the interpreter and through kernels, derivatives in torch's convention, errors, exchange.

The registry-driven tests (test_registry.py, test_registry_device.py) take every op that takes complex numbers; test_complex_torch.py
compares with torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg

SIZES = (1, 2, 3, 7, 8, 13, 16, 31, 33, 64, 65, 100, 129, 257, 300)
DTYPES = (np.complex64, np.complex128)


def draw(*shape: int, seed: int = 0, dtype: Any = np.complex128) -> Any:
    rng = np.random.default_rng((seed, *shape))
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def close(found: Any, expected: Any, what: str = "", scale: float = 1.0) -> None:
    """Equal dtype and shape, and values within what the precision allows of the largest."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
    tolerance = (1e-5 if found.dtype in (np.float32, np.complex64) else 1e-12) * scale
    most = np.max(np.abs(expected), initial=1.0, where=np.isfinite(expected))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * most, err_msg=what)


UNARY = {
    **{name: getattr(np, name) for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "log2", "log10", "log1p",
                                            "expm1", "exp2", "square", "reciprocal", "abs", "angle", "conj")},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "neg": np.negative, "sgn": np.sign, "isfinite": np.isfinite, "isnan": np.isnan, "isinf": np.isinf, "isreal": np.isreal,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "real": np.real, "imag": np.imag,
    "view_as_real": lambda x: np.stack([x.real, x.imag], -1), "logical_not": np.logical_not, "nan_to_num": np.nan_to_num,
}
BINARY = {
    "add": lambda t, x, y: x + y, "sub": lambda t, x, y: x - y, "mul": lambda t, x, y: x * y, "div": lambda t, x, y: x / y,
    "pow": lambda t, x, y: x ** y, "squared": lambda t, x, y: x ** 2, "cubed": lambda t, x, y: x ** 3, "inverse": lambda t, x, y: x ** -2,
    "root": lambda t, x, y: x ** 0.5, "eq": lambda t, x, y: x == y, "ne": lambda t, x, y: x != y,
    "scalars": lambda t, x, y: (2 * x - 1.5) / (1 - 2j) + 3j, "reflected": lambda t, x, y: (1 + 2j) / x - (2 - 1j),
    "where": lambda t, x, y: t.where(x.real > 0, x, y), "mixed": lambda t, x, y: x * y.real - y.imag / x,
    "complex": lambda t, x, y: x.real + 1j * y.imag, "broadcast": lambda t, x, y: x * y[:, :1] + x[:1],
}
REDUCED = {
    "sum": lambda t, x: x.sum(), "sum0": lambda t, x: x.sum(0), "sum1": lambda t, x: x.sum(1), "mean": lambda t, x: x.mean(1),
    "prod": lambda t, x: (x / abs(x)).prod(1), "cumsum": lambda t, x: x.cumsum(1), "cumprod": lambda t, x: (x / abs(x)).cumprod(1),
    "var": lambda t, x: x.var(0, **{"correction" if t is tg else "ddof": 1}),
    "any": lambda t, x: (x == 0).any(1), "all": lambda t, x: (x != 0).all(),
}
MOVED = {
    "T": lambda t, x: x.T * 1, "reshape": lambda t, x: x.reshape(-1) * 2, "slice": lambda t, x: x[:, ::2] + x[:, :1],
    "flip": lambda t, x: t.flip(x, (1,)) - x, "roll": lambda t, x: t.roll(x, 1, 1), "take": lambda t, x: x[[2, 0, 0]],
    "stack": lambda t, x: t.stack([x, 2 * x], 0), "tril": lambda t, x: t.tril(x), "tile": lambda t, x: t.tile(x, (2, 1)),
    "none": lambda t, x: x[None, :, None] * 1j,
}
PRODUCTS = {
    "matmul": lambda t, x, y: x @ y.T, "adjoint": lambda t, x, y: x @ y.conj().T, "vector": lambda t, x, y: x @ y[0],
    "real": lambda t, x, y: x @ y.real.T.astype(y.dtype) if t is np else x @ y.real.T.to(dtype=y.dtype),
    "outer": lambda t, x, y: t.outer(x[0], y[0]), "vdot": lambda t, x, y: t.vdot(x[0], y[0]), "inner": lambda t, x, y: t.inner(x, y),
    "einsum": lambda t, x, y: t.einsum("ij,ij->i", x, y.conj()), "tensordot": lambda t, x, y: t.tensordot(x, y, ([1], [1])),
    "batched": lambda t, x, y: t.stack([x, y], 0) @ t.stack([y.T, x.T], 0), "kron": lambda t, x, y: t.kron(x[:2, :2], y[:2, :2]),
}


def results(x: Any, y: Any, t: Any) -> dict[str, Any]:
    """All of the above, of tracegrad tensors or (t is np) of numpy arrays."""
    out = {f"unary {n}": f(x) if t is np else getattr(t, n)(x) for n, f in UNARY.items()}
    out |= {f"binary {n}": f(t, x, y) for n, f in BINARY.items()}
    for group, table in (("reduced", REDUCED), ("moved", MOVED)):
        out |= {f"{group} {n}": f(t, x) for n, f in table.items()}
    return out | {f"products {n}": f(t, x, y) for n, f in PRODUCTS.items()}


def wanted(x: Any, y: Any) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        return results(x, y, np)


def check_all(found: dict[str, Any], x: Any, y: Any, scale: float) -> None:
    for name, value in wanted(x, y).items():
        close(found[name], value, f"{name} {x.shape}", scale)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_numpys(n: int, dtype: Any) -> None:
    x, y = draw(5, n, dtype=dtype), draw(5, n, seed=1, dtype=dtype)
    a, b = tg.tensor(x, device="numpy"), tg.tensor(y, device="numpy")
    check_all(results(a, b, tg), x, y, 10 + n / 3)


@pytest.mark.parametrize(("n", "dtype"), [(33, np.complex64), (129, np.complex128)])
def test_kernels_give_what_numpy_gives(n: int, dtype: Any) -> None:
    if dtype == np.complex128 and tg.device().kind != "numpy" and not tg.device().fp64:
        dtype = np.complex64
    x, y = draw(5, n, dtype=dtype), draw(5, n, seed=1, dtype=dtype)

    @tg.trace
    def everything(a, b):
        return results(a, b, tg)

    check_all(everything(tg.tensor(x), tg.tensor(y)), x, y, 20 + n / 3)
