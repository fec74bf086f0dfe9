"""Check derivatives against finite differences: `gradcheck` and `gradgradcheck`, as in torch.autograd. Also `assert_close`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad import autograd
from tracegrad.errors import ArgumentError, AutogradError, DTypeError
from tracegrad.ops.arrays.complex_numbers import view_as_complex, view_as_real
from tracegrad.support import dtypes
from tracegrad.support.dtypes import complex128, differentiable, float64
from tracegrad.tensors.creation.from_data import tensor
from tracegrad.tensors.creation.random_numbers import randn
from tracegrad.tensors.tensor import Tensor


class GradcheckError(AutogradError):
    """A derivative differs from its finite difference."""


def gradcheck(
    fn: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
) -> bool:
    """Whether the gradients of `fn` at `inputs` equal central finite differences (f(x + eps) - f(x - eps)) / (2 eps).

    inputs: tensors that require grad must be float64 or complex128; others are constants. fn returns one or several float or complex
    tensors. Complex numbers are looked at as pairs of real ones (`view_as_real`), so the derivative need not be a complex one.
    check_forward_ad: whether forward mode (`jvp`) gives them; check_backward_ad: whether the backward does.
    Raises GradcheckError (or returns False, without raise_exception) that shows the worst element, both values and the input.

    >>> tg.testing.gradcheck(lambda x: x.sin(), tg.randn(3, dtype=tg.float64, requires_grad=True))
    """
    if not (check_backward_ad or check_forward_ad):
        raise ArgumentError("gradcheck: one of check_backward_ad and check_forward_ad has to be True, else nothing is checked")
    arguments = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    try:
        if check_backward_ad:
            _check(fn, arguments, eps, atol, rtol, "gradcheck", "output")
        if check_forward_ad:
            _check(fn, arguments, eps, atol, rtol, "gradcheck in forward mode", "output", _by_columns)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    fn: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    grad_outputs: Sequence[Tensor] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Whether the second derivatives of `fn` are right: gradcheck of its vjp with random (or the given) cotangents.

    Raises GradcheckError as gradcheck does.
    """
    arguments = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    outputs = [o for o in _outputs(fn, arguments) if o.requires_grad]
    cotangents = list(grad_outputs) if grad_outputs is not None else [randn(*o.shape, dtype=o.dtype, device=o.device) for o in outputs]
    cotangents = [c.detach().clone().requires_grad_() for c in cotangents]
    count = len(arguments)

    def first_order(*values: Any) -> tuple[Tensor, ...]:
        primals, given = values[:count], values[count:]
        wanted = [p for p in primals if isinstance(p, Tensor) and p.requires_grad]
        results = [o for o in _outputs(fn, list(primals)) if o.requires_grad]
        found = autograd.grad(results, wanted, list(given), create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None and g.requires_grad)

    try:
        _check(first_order, [*arguments, *cotangents], eps, atol, rtol, "gradgradcheck", "gradient")
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _outputs(fn: Callable[..., Any], arguments: list[Any]) -> list[Tensor]:
    out = fn(*arguments)
    found = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(o, Tensor) and differentiable(o.dtype)]
    if not found:
        raise DTypeError("gradcheck: the function returned no float tensor")
    return found


def _in_reals(fn: Callable[..., Any], arguments: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """The same function of real numbers: with (*, 2) in place of complex arguments that require grad, and of complex results."""
    turned = {i for i, a in enumerate(arguments) if isinstance(a, Tensor) and a.requires_grad and a.is_complex()}

    def real_fn(*given: Any) -> list[Tensor]:
        out = _outputs(fn, [view_as_complex(a) if i in turned else a for i, a in enumerate(given)])
        return [view_as_real(o) if o.is_complex() else o for o in out]

    return real_fn, [view_as_real(a.detach()).clone().requires_grad_() if i in turned else a for i, a in enumerate(arguments)]


def _by_rows(fn: Callable[..., Any], arguments: list[Any], wanted: list[int], k: int) -> list[np.ndarray[Any, Any]]:
    """The derivatives of output k by each wanted argument, of the backward: a row at a time."""
    found: list[list[np.ndarray[Any, Any]]] = [[] for _ in wanted]
    for j in range(_outputs(fn, arguments)[k].numel()):
        again = _outputs(fn, arguments)[k]
        row = autograd.grad(again, [arguments[i] for i in wanted], _unit(again, j), allow_unused=True)
        for i, g, column in zip(wanted, row, found, strict=True):
            column.append(np.zeros(arguments[i].numel()) if g is None else g.detach().numpy().reshape(-1))
    return [np.array(rows).reshape(len(rows), arguments[i].numel()) for i, rows in zip(wanted, found, strict=True)]


def _by_columns(fn: Callable[..., Any], arguments: list[Any], wanted: list[int], k: int) -> list[np.ndarray[Any, Any]]:
    """The derivatives of output k by each wanted argument, of forward mode: a column at a time."""
    found, size = [], _outputs(fn, arguments)[k].numel()
    for i in wanted:
        def of_one(x: Any, i: int = i) -> Tensor:
            return _outputs(fn, [x if n == i else a for n, a in enumerate(arguments)])[k]

        x = arguments[i].detach()
        columns = [autograd.transforms.jvp(of_one, (x,), (_unit(x, c),))[1] for c in range(x.numel())]
        found.append(np.array([c.detach().numpy().reshape(-1) for c in columns]).reshape(x.numel(), size).T)
    return found


def _unit(like: Tensor, place: int) -> Tensor:
    """A tensor of zeros with a one at a flat place."""
    basis = np.zeros(like.numel())
    basis[place] = 1.0
    return tensor(basis.reshape(like.shape), device=like.device)


_Derivatives = Callable[[Callable[..., Any], list[Any], list[int], int], list[np.ndarray[Any, Any]]]


def _check(fn: Callable[..., Any], arguments: list[Any], eps: float, atol: float, rtol: float, call: str, what: str,
           derivatives: _Derivatives = _by_rows) -> None:
    wanted = [i for i, a in enumerate(arguments) if isinstance(a, Tensor) and a.requires_grad]
    if not wanted:
        raise AutogradError("gradcheck: no input requires grad; call requires_grad_() on those to check")
    for i in wanted:
        if arguments[i].dtype not in (float64, complex128):
            raise DTypeError(f"gradcheck: input {i} is {arguments[i].dtype}; finite differences need float64 (x.double()) or complex128")
    fn, arguments = _in_reals(fn, arguments)
    outputs = _outputs(fn, arguments)
    if not any(o.requires_grad for o in outputs):
        raise AutogradError("gradcheck: no output requires grad; does the function use its inputs?")
    base = [a.detach().numpy() if isinstance(a, Tensor) else a for a in arguments]

    def values(i: int, flat: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        moved = [
            tensor(flat.reshape(base[i].shape), device=a.device, requires_grad=True)
            if k == i
            else a.detach().requires_grad_(a.requires_grad)
            if isinstance(a, Tensor)
            else a
            for k, a in enumerate(arguments)
        ]
        return [o.detach().numpy() for o in _outputs(fn, moved)]

    for k, output in enumerate(outputs):
        if not output.requires_grad:
            continue
        for i, analytic in zip(wanted, derivatives(fn, arguments, wanted, k), strict=True):
            n = base[i].size
            numeric = np.zeros((output.numel(), n))
            for c in range(n):
                step = np.zeros(n)
                step[c] = eps
                flat = base[i].reshape(-1)
                high, low = values(i, flat + step)[k], values(i, flat - step)[k]
                numeric[:, c] = (high - low).reshape(-1) / (2 * eps)
            _compare(analytic, numeric, base[i], f"{call}: d {what} {k}", f"input {i}", output.shape, atol, rtol)


def _compare(analytic: Any, numeric: Any, value: Any, head: str, argument: str, shape: tuple[int, ...], atol: float, rtol: float) -> None:
    with np.errstate(invalid="ignore"):
        excess = np.abs(analytic - numeric) - (atol + rtol * np.abs(numeric))
    excess = np.where(np.isnan(excess), np.inf, excess)
    if excess.size and excess.max() > 0:
        j, c = np.unravel_index(int(excess.argmax()), excess.shape)
        at = tuple(int(v) for v in np.unravel_index(int(c), value.shape)) if value.shape else ()
        of = tuple(int(v) for v in np.unravel_index(int(j), shape)) if shape else ()
        raise GradcheckError(
            f"{head}{list(of)} / d {argument}{list(at)} is {analytic[j, c]:.10g}, finite differences give {numeric[j, c]:.10g} "
            f"(the worst of {int((excess > 0).sum())} wrong elements of {excess.size}); the input there is {value[at]:.10g}, in\n{value}"
        )


def assert_close(actual: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None) -> None:
    """Raise AssertionError unless shapes and dtypes are equal and values agree within tolerances that suit the dtype (torch.testing)."""
    a = actual.detach().numpy() if isinstance(actual, Tensor) else np.asarray(actual)
    b = expected.detach().numpy() if isinstance(expected, Tensor) else np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise AssertionError(f"assert_close: {a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}")
    defaults = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5),
                "complex128": (1e-7, 1e-7), "complex64": (1.3e-6, 1e-5)}.get(str(a.dtype), (0.0, 0.0))
    a, b = (x.astype(np.float32) if x.dtype == dtypes.bfloat16 else x for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=defaults[0] if rtol is None else rtol, atol=defaults[1] if atol is None else atol)
