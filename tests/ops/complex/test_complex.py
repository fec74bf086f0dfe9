"""Complex numbers: values against numpy on the interpreter and through kernels, derivatives in torch's convention, errors, exchange.

The registry-driven tests (tests/ops/test_registry.py, tests/ops/test_registry_device.py) take every op that takes complex numbers;
test_complex_torch.py compares with torch.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.functions import square
from tests.helpers.kernels import Checked
from tests.helpers.marks import one_of
from tests.helpers.nodes import check_gradient
from tests.ops.test_registry import OPS, cases
from tracegrad.codegen.compiler import compile_graph
from tracegrad.errors import AutogradError, DTypeError
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

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


@one_of(2, ("n", "dtype"), [(33, np.complex64), (129, np.complex128)])
def test_kernels_give_what_numpy_gives(n: int, dtype: Any) -> None:
    if dtype == np.complex128 and tg.device().kind != "numpy" and not tg.device().fp64:
        dtype = np.complex64
    x, y = draw(5, n, dtype=dtype), draw(5, n, seed=1, dtype=dtype)

    @tg.trace
    def everything(a, b):
        return results(a, b, tg)

    check_all(everything(tg.tensor(x), tg.tensor(y)), x, y, 20 + n / 3)


# ------------------------------------------------------------------------------------------------------------ what takes them


@pytest.mark.parametrize("op", [op for op in OPS if op.name not in ("in_range", "as_known", "in_domain", "philox")], ids=lambda op: op.name)
def test_every_op_takes_complex_numbers_or_refuses_them(op: Any) -> None:
    """No op computes anything else: it has a `pair` rule (LAPACK and the transforms get numpy's arrays), or it is a DTypeError.

    (in_range, as_known and philox get integers of their own making.)
    """
    if op.pair is not None or op.family in ("host_call", "index"):
        return
    for shapes, attrs in cases(op):
        given = [s if isinstance(s, np.ndarray) and s.dtype.kind != "f" else draw(*np.shape(np.empty(s) if isinstance(s, tuple) else s))
                 for s in shapes]
        with pytest.raises(DTypeError, match="complex128"):
            op.aval(*[Aval(g.shape, g.dtype) for g in given], **attrs)


SPECIALS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 1e30, -1e-30]


def test_special_values(device: Any) -> None:
    """Sums, products and comparisons of zeros with signs, infinities and NaN; roots and logarithms on both sides of their cuts."""
    z = np.array([complex(a, b) for a in SPECIALS for b in SPECIALS], np.complex64)
    w = np.roll(z, 7)
    ordinary = np.array([complex(a, b) for a in SPECIALS for b in SPECIALS if np.isfinite(a) and np.isfinite(b)], np.complex64)

    @tg.trace
    def f(z, w, x):
        return (z + w, z - w, -z, z.conj(), z == w, z != z, z.isnan(), z.isinf(), z.isfinite(), abs(z), z.angle(), x.sqrt(), x.log(),
                x.sqrt() * 2, x.nan_to_num(), z.real, z.imag)

    with np.errstate(all="ignore"):
        expected = (z + w, z - w, -z, z.conj(), z == w, z != z, np.isnan(z), np.isinf(z), np.isfinite(z), np.abs(z), np.angle(z),
                    np.sqrt(ordinary), np.log(ordinary), np.sqrt(ordinary) * 2, ordinary, z.real, z.imag)
    for k, (found, wanted_) in enumerate(zip(f(tg.tensor(z), tg.tensor(w), tg.tensor(ordinary)), expected, strict=True)):
        found = np.asarray(found)
        parts = [(found.real, wanted_.real), (found.imag, wanted_.imag)] if wanted_.dtype.kind == "c" else [(found, wanted_)]
        for a, b in parts:
            if a.dtype == np.bool_:
                np.testing.assert_array_equal(a, b, err_msg=str(k))
            else:
                np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-37, err_msg=str(k))
                if k in (11, 12, 15, 16):
                    np.testing.assert_array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)]), err_msg=f"signs of {k}")


def test_branch_cuts_in_kernels(kernels: Any) -> None:
    """On the axes, and at the ends of the cuts, where the signs of zeros tell the side; tiny and huge numbers."""
    ends = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 3.0, -3.0, 1e-20, 1e20]
    z = np.array([complex(a, b) for a in ends for b in ends], np.complex64)
    functions = {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
                 "tan": np.tan, "tanh": np.tanh, "exp": np.exp, "expm1": np.expm1, "sinh": np.sinh, "cos": np.cos}

    @tg.trace
    def f(x):
        return tuple(getattr(tg, name)(x) for name in functions)

    for found, (name, function) in zip(f(tg.tensor(z)), functions.items(), strict=True):
        with np.errstate(all="ignore"):
            expected = function(z)
        got = np.asarray(found)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isfinite(got), finite, err_msg=name)
        np.testing.assert_allclose(got[finite], expected[finite], rtol=3e-6, atol=0, err_msg=name)


@pytest.mark.parametrize(("call", "words"), [
    (lambda x: x < x, "lt: does not take complex64; use .*x.real"), (lambda x: x.max(), "max: .*complex64"),
    (lambda x: x.sort(), "sort: .*complex64"), (tg.relu, "relu: .*complex64"), (lambda x: x.floor(), "floor: .*complex64"),
    (lambda x: x % 2, "remainder: .*complex64"), (lambda x: x.clamp(0, 1), "clamp: .*complex64"),
    (lambda x: x.argmin(), "argmin: .*complex64"), (lambda x: x.topk(1), "topk: .*complex64"),
    (lambda x: x & x, "bitwise_and: .*complex64"), (lambda x: x.softmax(0), "softmax: .*complex64.*x.real"),
    (lambda x: tg.nn.functional.max_pool1d(x[None], 1), "max_pool1d: .*complex64"), (tg.sign, "sign: .*complex64"),
    (lambda x: x.sum(dtype=tg.float32), "sum: .*lose its imaginary"), (lambda x: x.real.imag, "imag: .*float32"),
    (lambda x: x.real.add_(x), "add_: .*complex64.*float32"),
    (lambda x: tg.full((2,), 1j, dtype=tg.float32), "full: .*1j does not fit float32"),
    (lambda x: tg.tensor(1j, dtype=tg.int64), "tensor: complex numbers do not fit int64"),
    (lambda x: float(x[0]), "float: .*imaginary part"),
    (lambda x: tg.complex(x.real, x.real.double()), "complex: real float32 and imag float64"),
    (lambda x: tg.view_as_complex(x.real), None),
    (lambda x: tg.view_as_real(x.real), "view_as_real: takes complex"),
    (lambda x: tg.linspace(1j, 1, 3, dtype=tg.float32), "linspace: .*float32 does not hold"),
    (tg.jacobian(lambda a: a * a), "jacobian: .*complex64.*view_as_real"), (lambda x: x.median(), "median: .*complex64"),
])
def test_errors(call: Any, words: Any) -> None:
    x = tg.tensor([1 + 2j, 3 - 1j, 2j])
    with pytest.raises(DTypeError if words else tg.ShapeError, match=words):
        call(x)


def test_a_cast_to_reals_warns() -> None:
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        assert tg.tensor([1 + 2j]).float().tolist() == [1.0]
    with pytest.warns(UserWarning, match=r"copy_.*discards"):
        tg.zeros(1).copy_(tg.tensor([1j]))
    assert tg.tensor([1j, 0j]).bool().tolist() == [True, False]


# ----------------------------------------------------------------------------------------------------------- views, in place


def test_parts_are_views(device: Any) -> None:
    z = draw(3, 5, dtype=np.complex64)
    x, a = tg.tensor(z), z.copy()
    x.real.mul_(2)
    a.real *= 2
    x.imag = tg.ones(5)
    a.imag = 1
    tg.view_as_real(x)[1, 2:, 0] = 7
    a.view(np.float32).reshape(3, 5, 2)[1, 2:, 0] = 7
    x[0] = 1j
    a[0] = 1j
    x[:, 1] += x.conj()[:, 2]
    a[:, 1] += a.conj()[:, 2]
    close(x, a)
    r = tg.zeros(4, 2)
    tg.view_as_complex(r).copy_(tg.tensor(z[0, :4]))
    close(r, z[0, :4].copy().view(np.float32).reshape(4, 2))
    assert x.real._base is x
    assert tg.ones(2).real.tolist() == [1.0, 1.0]


def test_in_place_with_history(device: Any) -> None:
    x = tg.tensor(draw(6), requires_grad=True)
    y = x * 2
    y.real *= 3
    y.imag[2] = 0
    (y * y.conj()).real.sum().backward()
    weight = np.full(6, 1.0)
    weight[2] = 0
    close(x.grad, 8 * (9 * x.detach().numpy().real + 1j * weight * x.detach().numpy().imag))


def test_backward_wants_a_real_root() -> None:
    x = tg.tensor([1 + 1j, 2 - 1j], requires_grad=True)
    with pytest.raises(AutogradError, match=r"complex64.*only a real root"):
        (x * x).sum().backward()
    (x * x).sum().backward(tg.tensor(1j))
    close(x.grad, 1j * np.conj(2 * np.array([1 + 1j, 2 - 1j])).astype(np.complex64))


def test_gradcheck_of_complex_functions() -> None:
    x, y = (tg.tensor(draw(2, 3, seed=k), requires_grad=True, device="numpy") for k in (1, 2))
    for fn in (lambda x, y: x * y.conj() + abs(x), lambda x, y: (x @ y.mH).exp(), lambda x, y: tg.where(x.real > 0, x, y) / y.real):
        assert tg.testing.gradcheck(fn, (x, y))
        assert tg.testing.gradgradcheck(fn, (x, y))

    with pytest.raises(tg.testing.GradcheckError):
        tg.testing.gradcheck(square(), (x,))                # the slope is not conjugated
    with pytest.raises(DTypeError, match=r"complex64.*complex128"):
        tg.testing.gradcheck(lambda x: x * x, tg.tensor([1j], requires_grad=True))


# --------------------------------------------------------------------------------------------------------- traces and programs


def test_run_time_numbers(device: Any) -> None:
    """A Python complex number is a run-time value of a trace; zeros of both signs are told apart."""
    @tg.trace
    def f(x, s):
        return x * s + (s * 2 - 1), (x + s).abs()

    z = draw(7, dtype=np.complex64)
    x = tg.tensor(z)
    for s in (1j, 2 - 1j, complex(0.0, -0.0), 3 + 0j):
        found = f(x, s)
        close(found[0], (z * np.complex64(s) + np.complex64(2 * s - 1)), scale=3)
        close(found[1], np.abs(z + np.complex64(s)), scale=3)
    assert len(f.compilations) == 1
    scale = [complex(1.0, 0.0)]

    @tg.trace
    def g(x):
        return x * scale[0]

    first = np.asarray(g(x))
    scale[0] = complex(1.0, -0.0)
    g(x)
    assert len(g.compilations) == 2
    close(first, z)


def test_a_loop_with_a_changing_factor(device: Any) -> None:
    """Untraced: constants that change become run-time scalars."""
    z = draw(9, dtype=np.complex64)
    x = tg.tensor(z)
    for k in range(5):
        close(x * complex(k, 1) - 1j, z * np.complex64(complex(k, 1)) - np.complex64(1j), scale=3)


def test_a_training_step(device: Any) -> None:
    """Forward, backward and Adam on complex parameters, traced and not, give the same; parameters are views of reals, as in torch."""
    target = draw(8, dtype=np.complex64)

    def trained(traced: bool) -> Any:
        w = tg.nn.Parameter(tg.tensor(draw(8, seed=4, dtype=np.complex64)))
        bias = tg.nn.Parameter(tg.ones(8))
        optimizer = tg.optim.Adam([w, bias], lr=0.05)
        t = tg.tensor(target)

        def step():
            loss = (w * bias - t).abs().square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = tg.trace(step) if traced else step
        losses = [run().item() for _ in range(6)]
        return losses, w.detach().numpy(), bias.detach().numpy()

    (losses, w, b), (others, v, c) = trained(True), trained(False)
    np.testing.assert_allclose(losses, others, rtol=1e-4)
    close(w, v, scale=10)
    close(b, c, scale=10)
    assert losses[-1] < losses[0]


def test_transforms(device: Any) -> None:
    x, y = draw(4, 5, dtype=np.complex64), draw(4, 5, seed=1, dtype=np.complex64)
    a, b = tg.tensor(x), tg.tensor(y)
    close(tg.vmap(tg.vdot)(a, b), (x.conj() * y).sum(1), scale=5)
    close(tg.vmap(lambda a: tg.view_as_real(a * 1j), in_dims=1, out_dims=1)(a), np.stack([-x.imag, x.real], -1))
    close(tg.grad(lambda a: (a * b).sum().abs())(a), np.conj(y) * ((x * y).sum() / abs((x * y).sum())), scale=5)
    close(tg.vmap(tg.grad(lambda a: abs(a).square().sum()))(a), 2 * x, scale=5)
    close(tg.jvp(lambda a: a * a * b, (a,), (b,))[1], 2 * x * y * y, scale=5)
    real = tg.tensor(x.real.copy())
    close(tg.grad(lambda r: (r * b).sum().abs().square())(real), 2 * ((x.real * y).sum() * y.conj()).real, scale=10)
    jacobian = tg.jacobian(lambda a: tg.view_as_real(a.sum()))(a)
    close(jacobian, np.stack([np.full((4, 5), 1, np.complex64), np.full((4, 5), 1j, np.complex64)]))


def test_control_flow(device: Any) -> None:
    x = tg.tensor([1 + 1j, -2j])

    @tg.trace
    def f(x):
        y = tg.cond(x.real.sum() > 0, lambda x: x * 1j, lambda x: x.conj(), x)
        return y, tg.while_loop(lambda z: z[0].abs().sum() < 100, lambda z: (z[0] * 2j,), (x,))

    y, looped = f(x)
    close(y, np.array([-1 + 1j, 2 + 0j], np.complex64))
    z = np.array([1 + 1j, -2j])
    while np.abs(z).sum() < 100:
        z = z * 2j
    close(looped[0], z.astype(np.complex64))


def test_source_runs_and_shows_numbers() -> None:
    @tg.trace
    def f(x, y):
        z = x * (1 + 2j) + complex(0.0, -0.0) + complex("inf")
        return z.conj() @ y, tg.view_as_real(x).sum(0), (x * complex("nan")).isnan(), tg.complex(x.real, x.imag) * 2

    x, y = tg.tensor(draw(3, 4)), tg.tensor(draw(4, 2))
    results_ = f(x, y)
    world: dict[str, Any] = {}
    exec(f.source(), world)
    for found, value in zip(world["f"](x, y), results_, strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(value))


# ----------------------------------------------------------------------------------------------------------- ways in and out


def test_exchange(device: Any, tmp_path: Any) -> None:
    z = draw(3, 4, dtype=np.complex64)
    x = tg.tensor(z)
    close(np.asarray(x), z)
    close(np.from_dlpack(x), z)
    close(tg.from_dlpack(z), z)
    close(tg.from_numpy(draw(5)), draw(5))
    close(pickle.loads(pickle.dumps(x)), z)
    close(copy.deepcopy(x), z)
    tg.save({"x": x, "w": x.cdouble()}, tmp_path / "z")
    loaded = tg.load(tmp_path / "z")
    close(loaded["x"], z)
    assert loaded["w"].dtype == tg.complex128
    assert x.tolist() == z.tolist()
    assert x[0, 0].item() == z[0, 0].item() == complex(x[0, 0])
    assert repr(tg.tensor([1 + 2j])).startswith("Tensor([1.+2.j], device=")
    assert "dtype=complex128" in repr(tg.tensor([1 + 2j]).cdouble())
    if tg.device().in_host_memory:
        assert np.shares_memory(np.asarray(x), np.asarray(x))


def test_creation() -> None:
    assert tg.tensor(1j).dtype == tg.tensor([1, 2j]).dtype == tg.full((2,), 1j).dtype == tg.complex64
    assert tg.tensor(np.array([1j])).dtype == tg.complex128
    previous = tg.get_default_dtype()
    try:
        tg.set_default_dtype(tg.float64)
        assert tg.tensor(1j).dtype == (tg.arange(2) * 1j).dtype == tg.complex128
    finally:
        tg.set_default_dtype(previous)
    assert tg.eye(2, dtype=tg.cfloat).tolist() == [[1, 0], [0, 1]]
    assert tg.zeros_like(tg.tensor([1j])).dtype == tg.complex64
    tg.manual_seed(0)
    drawn = tg.randn(40000, dtype=tg.complex64)
    assert abs(drawn.var().item() - 1) < 0.02
    assert abs(drawn.real.var().item() - 0.5) < 0.02
    assert 0 <= tg.rand(100, dtype=tg.complex128).imag.min().item() < 1
    assert tg.is_complex(drawn)
    assert not tg.is_complex(drawn.real)
    assert not drawn.is_floating_point()


def test_promotion() -> None:
    x = tg.ones(2)
    assert (x * 1j).dtype == (x * tg.tensor(1j, dtype=tg.complex128)).dtype == tg.complex64
    assert (x.double() * tg.ones(2, dtype=tg.complex64)).dtype == (x.double() * 1j).dtype == tg.complex128
    assert (tg.arange(2) * 1j).dtype == (tg.ones(2, dtype=tg.complex64) * tg.arange(2)).dtype == tg.complex64
    assert tg.where(x > 0, 1j, 2).dtype == tg.complex64


@pytest.mark.parametrize("value", [1j, [], [1 - 2j], [[1j, 2.0]]])
def test_constants_are_results_of_a_trace(value: Any) -> None:
    """Of any shape, one without dimensions among them."""
    x = tg.ones(2, dtype=tg.float64)

    @tg.trace
    def f(x: tg.Tensor) -> Any:
        z = tg.tensor(value, dtype=tg.complex128)
        return z, z.sum() * x

    for _ in range(2):
        z, y = f(x)
        assert np.array_equal(z.numpy(), np.array(value, complex))
        assert np.array_equal(y.numpy(), np.full(2, np.sum(value)))


def test_constants_are_told_apart(device: Any) -> None:
    """0 and -0 in a part are equal and hash alike, and are different constants."""
    x = tg.tensor([complex(-0.0, -0.0)])
    for re_, im in ((0.0, 0.0), (-0.0, 0.0), (0.0, -0.0), (-0.0, -0.0)):
        found = np.asarray(x + complex(re_, im))[0]
        expected = np.complex64(complex(-0.0, -0.0)) + np.complex64(complex(re_, im))
        assert (np.signbit(found.real), np.signbit(found.imag)) == (np.signbit(expected.real), np.signbit(expected.imag)), (re_, im)


def test_linspace_logspace_and_logaddexp(device: Any) -> None:
    for dtype in (None, "complex128"):
        wanted = np.linspace(1 + 2j, 3 - 1j, 31)
        found = tg.linspace(1 + 2j, 3 - 1j, 31, dtype=dtype)
        assert str(found.dtype) == (dtype or "complex64")
        close(found, wanted.astype(found.dtype))
        close(tg.logspace(0.1j, 1 - 1j, 13, 2.0, dtype="complex128"), 2.0 ** np.linspace(0.1j, 1 - 1j, 13))
    a, b = draw(3, 33, seed=1), draw(33, seed=2)
    close(tg.logaddexp(tg.tensor(a), tg.tensor(b)), np.log(np.exp(a) + np.exp(b)))
    far = tg.logaddexp(tg.tensor(a + 800), tg.tensor(b))
    close(far, a + 800)
    inf = float("inf")
    ends = tg.logaddexp(tg.tensor([complex(-inf, 0), complex(inf, 0)]), tg.tensor([complex(-inf, 1), 1 + 0j]))
    np.testing.assert_array_equal(ends.numpy(), np.array([complex(-inf, 1), complex(inf, 0)], np.complex64))


def test_exp_of_infinities_in_kernels(device: Any) -> None:
    inf, nan = float("inf"), float("nan")
    z = np.array([complex(x, y) for x in (inf, -inf, 1.0) for y in (0.0, 2.0, inf, -inf, nan)])
    with np.errstate(all="ignore"):
        wanted = np.exp(z)
    np.testing.assert_allclose(tg.trace(tg.exp)(tg.tensor(z)).numpy(), wanted, rtol=1e-15)


def test_derivatives_of_complex_logaddexp_and_orthogonal_factors() -> None:
    a, b = draw(3, 4, seed=4), draw(4, seed=5)
    check_gradient(tg.logaddexp, a, b)
    tall = draw(5, 3, seed=6)
    check_gradient(lambda x: tg.linalg.polar(x)[0], tall)
    check_gradient(lambda x: tg.linalg.polar(x)[1], tall)
    check_gradient(lambda x: tg.linalg.matrix_sqrth(tg.matmul(x.mH, x)), tall)
    packed, tau = np.linalg.qr(tall, "raw")
    check_gradient(tg.linalg.householder_product, packed.T.copy(), tau)


def _many(x: Any, y: Any, r: Any) -> Any:
    z = x * y + 1j
    return (z, z.sum(-1), z.sum(0), abs(z), z.real, (z * x.conj()).mean(), x.T.contiguous() * 2, x[:, ::2] * 1j, x[::2].sum(),
            x[1:] * y[:-1],
            tg.view_as_real(z) * 2, tg.view_as_real(x)[..., 1] + 1, r[:, ::2] * 2, r[:, 1::2].sum(0), tg.cat([x, y], 1) * 2, x @ y.T,
            tg.where(r > 0, x, y), tg.view_as_complex(tg.stack([r, -r], -1)), x.exp(), z / (y + 3), x.cumsum(1), x.flip(1) + y,
            tg.roll(x, 1, 1) - y, x.reshape(-1)[1:] * 2, x.mean(1, keepdim=True) + x)


@pytest.mark.long
@pytest.mark.parametrize(("n", "m", "dtype"), [(3, 7, "complex64"), (5, 16, "complex64"), (4, 33, "complex128"), (2, 129, "complex64"),
                                               (17, 17, "complex128"), (1, 1, "complex64"), (33, 8, "complex64")])
def test_kernels_read_and_write_numbers_as_vectors(n: int, m: int, dtype: str) -> None:
    """Both parts of several numbers at once, at every size and on every target; and every second element of real arrays."""
    rng = np.random.default_rng(100 * n + m)
    x, y = ((rng.standard_normal((n, m)) + 1j * rng.standard_normal((n, m))).astype(dtype) for _ in range(2))
    r = rng.standard_normal((n, m)).astype("float32" if dtype == "complex64" else "float64")
    previous = tg.device()
    tg.set_device("numpy")
    try:
        with Checked(tuning=Tuning(item=16, most_items=64, long_row=16, row_chunk=8) if n % 2 else None, slack=4.0) as checked:
            for value in tg.trace(_many)(*map(tg.tensor, (x, y, r))):
                value.numpy()
        assert checked.count >= 6
    finally:
        tg.set_device(previous)


def test_a_kernel_of_complex_numbers_has_no_lanes_by_themselves() -> None:
    """One domain element is one number: its parts are read once, by vectors, and written in one piece."""
    shape = (1000,)
    z = placeholder(Aval(shape, np.dtype("complex64")), "z")
    text = compile_graph(Graph.capture([z], [bind(REGISTRY["mul"], (z, z), {})]), Target()).source
    assert "ZIP16(float16" in text
    assert "float16 z_pairs = LOAD(float16, z + i * 2)" in text
    assert "GATHER" not in text
    assert "STRIDED" not in text


@pytest.mark.parametrize("weights", [{"fweights": [1, 2, 3]}, {"aweights": [0.1, 0.2, 0.3]}], ids="".join)
def test_weighted_covariance(weights: Any, on_numpy: None) -> None:
    """It has the conjugates, too: variances are real."""
    x = draw(2, 3)
    found = tg.cov(tg.tensor(x), **{name: tg.tensor(np.array(w)) for name, w in weights.items()})
    close(found, np.cov(x, **{name: np.array(w) for name, w in weights.items()}))
