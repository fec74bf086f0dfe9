"""Complex numbers beside torch: value, gradient, second derivative and forward mode of functions and of tg.linalg; what is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.ops.complex.test_complex import draw

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_numpy")]
Fn = Callable[[Any, Any, Any], Any]         # (torch or tracegrad, x, y) -> result

FUNCTIONS: dict[str, Fn] = {
    **{name: (lambda t, x, y, name=name: getattr(t, name)(x)) for name in (
        "abs", "angle", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "sin", "cos",
        "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "sgn", "neg", "isfinite", "isinf",
        "isnan", "isreal", "logical_not", "count_nonzero", "nan_to_num", "cov", "corrcoef", "tril", "diff", "trapezoid", "conj", "real",
        "imag", "view_as_real", "mean", "var", "std", "norm", "sum", "logit")},
    "mul": lambda t, x, y: x * y, "div": lambda t, x, y: x / y, "pow": lambda t, x, y: x ** y, "power of real": lambda t, x, y: x ** 2.5,
    "cube": lambda t, x, y: x ** 3, "of number": lambda t, x, y: 2 ** x, "of complex": lambda t, x, y: (1 + 2j) ** x / x,
    "mixed": lambda t, x, y: x * y.real - y.imag, "float_power": lambda t, x, y: t.float_power(x, 2),
    "addcmul": lambda t, x, y: t.addcmul(x, x, y, value=0.5), "addcdiv": lambda t, x, y: t.addcdiv(x, x, y),
    "lerp": lambda t, x, y: t.lerp(x, y, 0.3), "polar": lambda t, x, y: t.polar(abs(x), y.angle()),
    "complex": lambda t, x, y: t.complex(x.real, y.imag), "as complex": lambda t, x, y: t.view_as_complex(t.view_as_real(x) * 2),
    "where": lambda t, x, y: t.where(x.real > 0, x, y), "masked_fill": lambda t, x, y: x.masked_fill(x.real > 0, 1 + 2j),
    "eq": lambda t, x, y: x == y, "ne": lambda t, x, y: x != y.real, "isclose": lambda t, x, y: t.isclose(x, x * (1 + 1e-9)),
    "and": lambda t, x, y: t.logical_and(x, y), "any": lambda t, x, y: x.any(), "all": lambda t, x, y: x.all(1),
    "prod": lambda t, x, y: x.prod(1), "cumprod": lambda t, x, y: x.cumprod(1), "cumsum": lambda t, x, y: x.cumsum(1),
    "vector norm": lambda t, x, y: t.linalg.vector_norm(x, 3, dim=1), "normalize": lambda t, x, y: t.nn.functional.normalize(x),
    "matmul": lambda t, x, y: x @ y.mH, "H": lambda t, x, y: x.H @ y, "einsum": lambda t, x, y: t.einsum("ij,kj->ik", x, y.conj()),
    "vdot": lambda t, x, y: t.vdot(x[0], y[0]), "dot": lambda t, x, y: t.dot(x[0], y[0]), "outer": lambda t, x, y: t.outer(x[0], y[0]),
    "kron": lambda t, x, y: t.kron(x, y), "cross": lambda t, x, y: t.linalg.cross(x[:, :3], y[:, :3]),
    "trace": lambda t, x, y: x[:4, :4].trace(),
    "conv1d": lambda t, x, y: t.nn.functional.conv1d(x[None, :2], y[None, :2, :3]), "linear": lambda t, x, y: t.nn.functional.linear(x, y),
    "conv2d": lambda t, x, y: t.nn.functional.conv2d(x[None, None], y[None, None, :2, :3], padding=1, stride=2),
    "take": lambda t, x, y: x[t.tensor([0, 2, 0])], "index_add": lambda t, x, y: x.index_add(0, t.tensor([0, 1, 0, 2]), y),
    "sinc": lambda t, x, y: t.sinc(x), "logsumexp": lambda t, x, y: t.logsumexp(x, 1),
    "slice": lambda t, x, y: x[:, 1:] * y[0, 1:], "roll": lambda t, x, y: x.roll(1, 0), "unfold": lambda t, x, y: x.unfold(1, 2, 1),
    "l1_loss": lambda t, x, y: t.nn.functional.l1_loss(x, y), "dist": lambda t, x, y: t.dist(x, y),
    "renorm": lambda t, x, y: t.renorm(x, 2, 0, 1.0),
    # what torch refuses
    "lt": lambda t, x, y: x < y, "max": lambda t, x, y: x.max(), "sort": lambda t, x, y: x.sort(), "relu": lambda t, x, y: t.relu(x),
    "floor": lambda t, x, y: x.floor(), "remainder": lambda t, x, y: x % y, "sign": lambda t, x, y: t.sign(x),
    "amax": lambda t, x, y: x.amax(),
    "argmin": lambda t, x, y: x.argmin(), "clamp": lambda t, x, y: x.clamp(0, 1), "atan2": lambda t, x, y: t.atan2(x, y),
    "softmax": lambda t, x, y: x.softmax(1), "erf": lambda t, x, y: t.erf(x), "round": lambda t, x, y: t.round(x),
    "floor_divide": lambda t, x, y: x // y, "mse_loss": lambda t, x, y: t.nn.functional.mse_loss(x, y), "topk": lambda t, x, y: x.topk(2),
    "median": lambda t, x, y: x.median(), "imag of real": lambda t, x, y: x.real.imag, "bitwise": lambda t, x, y: x & y,
    "real into": lambda t, x, y: x.real.detach().add_(y), "cummax": lambda t, x, y: x.cummax(0),
    "copysign": lambda t, x, y: t.copysign(x, y),
}


def hermitian(x: Any) -> Any:
    return x + x.mH


def positive(t: Any, x: Any) -> Any:
    return x @ x.mH + 3 * t.eye(x.shape[-1], dtype=x.dtype)


def outer(left: Any, right: Any) -> Any:
    """Of singular vectors or eigenvectors: does not depend on their factors of size 1."""
    return left[..., :, :1] @ right[..., :1, :]


LINALG: dict[str, Fn] = {
    "solve": lambda t, x, y: t.linalg.solve(x, y), "solve right": lambda t, x, y: t.linalg.solve(x, y.mT, left=False),
    "inv": lambda t, x, y: t.linalg.inv(x), "det": lambda t, x, y: t.linalg.det(x), "sign": lambda t, x, y: t.linalg.slogdet(x)[0],
    "slogdet": lambda t, x, y: t.linalg.slogdet(x)[1], "logdet": lambda t, x, y: t.logdet(x),
    "cholesky": lambda t, x, y: t.linalg.cholesky(positive(t, x)), "upper": lambda t, x, y: t.linalg.cholesky(positive(t, x), upper=True),
    "cholesky_solve": lambda t, x, y: t.cholesky_solve(y, t.linalg.cholesky(positive(t, x))),
    "cholesky_inverse": lambda t, x, y: t.cholesky_inverse(t.linalg.cholesky(positive(t, x))),
    "eigh": lambda t, x, y: t.linalg.eigh(hermitian(x))[0], "eigvalsh": lambda t, x, y: t.linalg.eigvalsh(hermitian(x), UPLO="U"),
    "eigh vectors": lambda t, x, y: abs(t.linalg.eigh(hermitian(x))[1]) ** 2,
    "eigh projector": lambda t, x, y: (lambda v: outer(v, v.mH))(t.linalg.eigh(hermitian(x))[1]),
    "eigvals": lambda t, x, y: t.linalg.eigvals(x), "eig vectors": lambda t, x, y: abs(t.linalg.eig(x)[1]) ** 2,
    "eig function": lambda t, x, y: (lambda w, v: v @ (t.diag_embed(w ** 2) @ t.linalg.inv(v)))(*t.linalg.eig(x)),
    "qr Q": lambda t, x, y: t.linalg.qr(y)[0], "qr R": lambda t, x, y: t.linalg.qr(x)[1], "qr wide": lambda t, x, y: t.linalg.qr(y.mT)[1],
    "svdvals": lambda t, x, y: t.linalg.svdvals(y), "svd U": lambda t, x, y: abs(t.linalg.svd(y, full_matrices=False)[0]),
    "svd V": lambda t, x, y: abs(t.linalg.svd(y.mT, full_matrices=False)[2]),
    "svd both": lambda t, x, y: (lambda u, s, vh: outer(u, vh))(*t.linalg.svd(y, full_matrices=False)),
    "pinv": lambda t, x, y: t.linalg.pinv(y), "matrix_exp": lambda t, x, y: t.linalg.matrix_exp(x * 0.3),
    "triangle": lambda t, x, y: t.linalg.solve_triangular(x, y, upper=True), "norm": lambda t, x, y: t.linalg.matrix_norm(x),
    "nuclear norm": lambda t, x, y: t.linalg.matrix_norm(x, "nuc"), "norm 2": lambda t, x, y: t.linalg.matrix_norm(x, 2),
    "lu L": lambda t, x, y: t.linalg.lu(x)[1], "lu U": lambda t, x, y: t.linalg.lu(x)[2],
    "lu_solve": lambda t, x, y: t.linalg.lu_solve(*t.linalg.lu_factor(x), y),
    "lu_solve adjoint": lambda t, x, y: t.linalg.lu_solve(*t.linalg.lu_factor(x), y, adjoint=True),
    "lstsq": lambda t, x, y: t.linalg.lstsq(x, y)[0], "power": lambda t, x, y: t.linalg.matrix_power(x, -2),
    "cond": lambda t, x, y: t.linalg.cond(x), "vecdot": lambda t, x, y: t.linalg.vecdot(x, x.mT),
    "vander": lambda t, x, y: t.linalg.vander(x[..., 0], N=3), "rank": lambda t, x, y: t.linalg.matrix_rank(x),
}


def array(x: Any) -> Any:
    return x.detach().resolve_conj().numpy() if isinstance(x, torch.Tensor) else x.detach().numpy()


def same(a: Any, b: Any, what: str, tolerance: float = 1e-8) -> None:
    a, b = array(a), array(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype), what
    most = np.max(np.abs(b), initial=1.0, where=np.isfinite(b))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * most, err_msg=what)


def compare(fn: Fn, arrays: Any) -> None:
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    ours = [tg.tensor(a, requires_grad=True, device="numpy") for a in arrays]
    try:
        wanted = fn(torch, *theirs)
    except (RuntimeError, TypeError):
        with pytest.raises(tg.TracegradError):
            fn(tg, *ours)
        return
    found = fn(tg, *ours)
    same(found, wanted, "value")
    if not wanted.requires_grad:
        return
    ct = draw(*wanted.shape, seed=9) if wanted.is_complex() else draw(*wanted.shape, seed=9).real.copy()
    g = tg.autograd.grad(found, ours, tg.tensor(ct, device="numpy"), create_graph=True, allow_unused=True)
    h = torch.autograd.grad(wanted, theirs, torch.tensor(ct), create_graph=True, allow_unused=True)
    pairs = [(a, b) for a, b in zip(g, h, strict=True) if b is not None]
    for a, b in pairs:
        same(a, b, "gradient")
    squares, wanted_squares = (sum((abs(p[k]) ** 2).sum() for p in pairs) for k in (0, 1))
    if wanted_squares.requires_grad:
        second = tg.autograd.grad(squares, ours, allow_unused=True)
        for a, b in zip(second, torch.autograd.grad(wanted_squares, theirs, allow_unused=True), strict=True):
            if b is not None:
                same(a if a is not None else tg.zeros_like(ours[0]), b, "second derivative", 1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_as_in_torch(name: str) -> None:
    compare(FUNCTIONS[name], (draw(4, 5), draw(4, 5, seed=1)))


@pytest.mark.parametrize("name", LINALG)
def test_linalg_as_in_torch(name: str) -> None:
    for batch in ((), (2,)):
        compare(LINALG[name], (draw(*batch, 4, 4), draw(*batch, 4, 3, seed=1)))
    if name.startswith("eig") and not name.startswith("eigh"):      # complex results of real matrices
        compare(LINALG[name], (draw(4, 4).real.copy(), draw(4, 3, seed=1).real.copy()))


def test_forward_mode_as_in_torch() -> None:
    """Tangents are not conjugated."""
    for name in ("mul", "div", "exp", "abs", "angle", "polar", "matmul", "prod", "as complex", "mixed", "pow", "sgn", "vdot", "conv1d"):
        x, y, s, u = (draw(4, 5, seed=k) for k in range(4))
        fn = FUNCTIONS[name]
        wanted = torch.func.jvp(lambda x, y, fn=fn: fn(torch, x, y), (torch.tensor(x), torch.tensor(y)), (torch.tensor(s), torch.tensor(u)))
        with tg.no_grad():
            given = [tg.tensor(a, device="numpy") for a in (x, y, s, u)]
        found = tg.jvp(lambda x, y, fn=fn: fn(tg, x, y), given[:2], given[2:])
        same(found[1], wanted[1], name)


def test_promotion_as_in_torch() -> None:
    names = ("bool", "uint8", "int64", "float32", "float64", "complex64", "complex128")
    values = [("tensor", name, shape) for name in names for shape in ((), (2,))] + [("number", v, None) for v in (True, 2, 2.5, 1j)]

    def operand(t: Any, kind: str, value: Any, shape: Any) -> Any:
        return value if kind == "number" else t.ones(shape, dtype=getattr(t, value.replace("bool", "bool" if t is torch else "bool_")))

    for a in values:
        for b in values:
            if "tensor" in (a[0], b[0]):
                wanted = operand(torch, *a) * operand(torch, *b)
                assert str((operand(tg, *a) * operand(tg, *b)).dtype) == str(wanted.dtype).removeprefix("torch."), (a, b)


@pytest.mark.parametrize("name", ["sqrt", "log", "asin", "acos", "atan", "asinh", "acosh", "atanh"])
def test_branch_cuts_as_in_torch(name: str) -> None:
    """On the axes the signs of zeros tell the side."""
    ends = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 3.0, -3.0]
    z = np.array([complex(a, b) for a in ends for b in ends])
    same(getattr(tg, name)(tg.tensor(z, device="numpy")), getattr(torch, name)(torch.tensor(z)), name, 1e-7)
