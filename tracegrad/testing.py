"""Check derivatives against finite differences: `gradcheck` and `gradgradcheck`, as in torch.autograd. Also `assert_close`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracegrad import autograd
from tracegrad.errors import ArgumentError, AutogradError, DTypeError
from tracegrad.ops.arrays.complex_numbers import view_as_complex, view_as_real
from tracegrad.support import dtypes
from tracegrad.support.dtypes import complex128, differentiable, float64
from tracegrad.support.layouts import layout
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
    fast_mode: bool = False,
) -> bool:
    """Whether the gradients of `fn` at `inputs` equal central finite differences (f(x + eps) - f(x - eps)) / (2 eps).

    inputs: tensors that require grad must be float64 or complex128; others are constants. fn returns one or several float or complex
    tensors. Complex numbers are looked at as pairs of real ones (`view_as_real`), so the derivative need not be a complex one.
    check_forward_ad: whether forward mode (`jvp`) gives them; check_backward_ad: whether the backward does.
    fast_mode: look at each derivative along one direction first, and at its elements only if that differs.
    Raises GradcheckError (or returns False, without raise_exception) that shows the worst element, both values and the input.

    >>> tg.testing.gradcheck(lambda x: x.sin(), tg.randn(3, dtype=tg.float64, requires_grad=True))
    """
    if not (check_backward_ad or check_forward_ad):
        raise ArgumentError("gradcheck: one of check_backward_ad and check_forward_ad has to be True, else nothing is checked")
    arguments = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    try:
        if check_backward_ad:
            _check(fn, arguments, eps, atol, rtol, "gradcheck", "output", fast=fast_mode)
        if check_forward_ad:
            _check(fn, arguments, eps, atol, rtol, "gradcheck in forward mode", "output", _by_columns, fast=fast_mode)
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
    fast_mode: bool = False,
) -> bool:
    """Whether the second derivatives of `fn` are right: gradcheck of its vjp with random (or the given) cotangents.

    fast_mode as in gradcheck. Raises GradcheckError as gradcheck does.
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
        _check(first_order, [*arguments, *cotangents], eps, atol, rtol, "gradgradcheck", "gradient", fast=fast_mode)
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
        columns = [_tangent(fn, arguments, i, k, _unit(arguments[i], c)) for c in range(arguments[i].numel())]
        found.append(np.array(columns).reshape(arguments[i].numel(), size).T)
    return found


def _tangent(fn: Callable[..., Any], arguments: list[Any], i: int, k: int, direction: Tensor) -> np.ndarray[Any, Any]:
    """The derivative of output k along a direction of argument i, by forward mode."""
    def of_one(x: Any) -> Tensor:
        return _outputs(fn, [x if n == i else a for n, a in enumerate(arguments)])[k]

    tangent: Tensor = autograd.transforms.jvp(of_one, (arguments[i].detach(),), (direction,))[1]
    return tangent.detach().numpy().reshape(-1)


def _unit(like: Tensor, place: int) -> Tensor:
    """A tensor of zeros with a one at a flat place."""
    basis = np.zeros(like.numel())
    basis[place] = 1.0
    return tensor(basis.reshape(like.shape), device=like.device)


_Derivatives = Callable[[Callable[..., Any], list[Any], list[int], int], list[np.ndarray[Any, Any]]]


def _check(fn: Callable[..., Any], arguments: list[Any], eps: float, atol: float, rtol: float, call: str, what: str,
           derivatives: _Derivatives = _by_rows, fast: bool = False) -> None:
    wanted = [i for i, a in enumerate(arguments) if isinstance(a, Tensor) and a.requires_grad]
    if not wanted:
        raise AutogradError("gradcheck: no input requires grad; call requires_grad_() on those to check")
    for i in wanted:
        if arguments[i].dtype not in (float64, complex128):
            raise DTypeError(f"gradcheck: input {i} is {arguments[i].dtype}; finite differences need float64 (x.double()) or complex128")
    fn, arguments = _in_reals(fn, arguments)
    outputs = _outputs(fn, arguments)
    none = not any(o.requires_grad for o in outputs)            # a function of steps, as x > 0 is: all finite differences have to be 0
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
        if not (output.requires_grad or none):
            continue
        if fast and not none and _agrees_along(fn, arguments, wanted, k, values, eps, atol, rtol, derivatives):
            continue
        zeros = [np.zeros((output.numel(), base[i].size)) for i in wanted]
        for i, analytic in zip(wanted, zeros if none else derivatives(fn, arguments, wanted, k), strict=True):
            n = base[i].size
            numeric = np.zeros((output.numel(), n))
            for c in range(n):
                step = np.zeros(n)
                step[c] = eps
                flat = base[i].reshape(-1)
                high, low = values(i, flat + step)[k], values(i, flat - step)[k]
                numeric[:, c] = (high - low).reshape(-1) / (2 * eps)
            _compare(analytic, numeric, base[i], f"{call}: d {what} {k}", f"input {i}", output.shape, atol, rtol)


def _agrees_along(fn: Callable[..., Any], arguments: list[Any], wanted: list[int], k: int, values: Callable[..., Any], eps: float,
                  atol: float, rtol: float, derivatives: _Derivatives) -> bool:
    """Whether v @ J @ u is right for the Jacobian J of output k by each wanted input, and one pair of positive vectors of length 1."""
    rng = np.random.default_rng(0)
    out = _outputs(fn, arguments)[k]
    sizes = [out.numel(), *(arguments[i].numel() for i in wanted)]
    v, *us = (direction / max(float(np.linalg.norm(direction)), 1e-300) for direction in (rng.random(size) for size in sizes))
    if derivatives is _by_rows:
        row = autograd.grad(out, [arguments[i] for i in wanted], tensor(v.reshape(out.shape), device=out.device), allow_unused=True)
        analytic = [0.0 if g is None else float(g.detach().numpy().reshape(-1) @ u) for g, u in zip(row, us, strict=True)]
    else:
        analytic = [float(_tangent(fn, arguments, i, k, tensor(u.reshape(arguments[i].shape), device=out.device)) @ v)
                    for i, u in zip(wanted, us, strict=True)]
    for i, u, a in zip(wanted, us, analytic, strict=True):
        flat = arguments[i].detach().numpy().reshape(-1)
        numeric = float((values(i, flat + eps * u)[k] - values(i, flat - eps * u)[k]).reshape(-1) @ v) / (2 * eps)
        if not abs(a - numeric) <= atol * float(u.sum() * v.sum()) + rtol * abs(numeric):
            return False
    return True


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


_TOLERANCES = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5),
               "complex128": (1e-7, 1e-7), "complex64": (1.3e-6, 1e-5)}           # torch's rtol and atol; others are compared exactly
_NUMBERS = (int, float, complex, np.number)


class _Asked(NamedTuple):
    """What `assert_close` was asked to look at."""

    rtol: float | None
    atol: float | None
    equal_nan: bool
    allow_subclasses: bool
    check_device: bool
    check_dtype: bool
    check_layout: bool
    check_stride: bool


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """Raise AssertionError unless |actual - expected| <= atol + rtol |expected| everywhere, with torch.testing's messages.

    Tensors, arrays (also beside tensors), numbers, booleans and None are compared; of sequences and mappings, their items. NaN is
    equal to NaN with equal_nan only. rtol and atol are both given, or those of the dtype are used: 1.3e-6 and 1e-5 of float32.
    check_*: what has to be equal beside values (strides here are always those of the shape). allow_subclasses: whether a Parameter may
    be compared with a Tensor.
    msg: the message, or a function of it. Raises TypeError for pairs of other types, ArgumentError for one tolerance alone.

    >>> tg.testing.assert_close(tg.ones(2), tg.ones(2) + 1e-7)
    """
    for name, missing, other in (("rtol", rtol, atol), ("atol", atol, rtol)):
        if missing is None and other is not None:
            raise ArgumentError(f"assert_close: Both 'rtol' and 'atol' must be either specified or omitted, but got no {name}.")
    asked = _Asked(rtol, atol, equal_nan, allow_subclasses, check_device, check_dtype, check_layout, check_stride)
    try:
        _same(actual, expected, asked, "")
    except _Unlike as error:
        if msg is None or error.structure:
            raise AssertionError(str(error)) from None
        raise AssertionError(msg(str(error)) if callable(msg) else msg) from None


class _Unlike(AssertionError):
    """What differs; `structure`: of containers, which the caller's message is not said of."""

    def __init__(self, text: str, item: str, structure: bool = False) -> None:
        super().__init__(text + (f"\n\nThe failure occurred for item {item}" if item else ""))
        self.structure = structure


def _same(actual: Any, expected: Any, asked: _Asked, item: str) -> None:
    """Compare what stands at `item` of the arguments, as torch pairs it: containers, then None, booleans, numbers and tensors."""
    both = (actual, expected)
    if all(isinstance(x, Sequence) and not isinstance(x, str) for x in both):
        if len(actual) != len(expected):
            raise _Unlike(f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", item, structure=True)
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            _same(a, b, asked, f"{item}[{i}]")
    elif all(isinstance(x, Mapping) for x in both):
        if set(actual) != set(expected):
            raise _Unlike("The keys of the mappings do not match:\n"
                          f"Missing keys in the actual mapping: {sorted(set(expected) - set(actual), key=str)}\n"
                          f"Additional keys in the actual mapping: {sorted(set(actual) - set(expected), key=str)}", item, structure=True)
        for key in actual:
            _same(actual[key], expected[key], asked, f"{item}[{key!r}]")
    elif actual is None or expected is None:
        if actual is not expected:
            raise _Unlike(f"None mismatch: {actual} is not {expected}", item)
    elif all(isinstance(x, (bool, np.bool_)) for x in both):
        if bool(actual) is not bool(expected):
            raise _Unlike(f"Booleans mismatch: {bool(actual)} is not {bool(expected)}", item)
    elif all(isinstance(x, _NUMBERS) for x in both):
        a, b = (x.item() if isinstance(x, np.number) else x for x in both)
        if asked.check_dtype and type(a) is not type(b):
            raise _Unlike(f"The (d)types do not match: {type(a)} != {type(b)}.", item)
        kinds = ["complex128" if isinstance(x, complex) else "float64" if isinstance(x, float) else "int64" for x in (a, b)]
        _close(np.asarray(a), np.asarray(b), kinds, asked, item, "Scalars")
    else:
        _same_tensors(actual, expected, asked, item)


def _same_tensors(actual: Any, expected: Any, asked: _Asked, item: str) -> None:
    arrays = isinstance(actual, np.ndarray) or isinstance(expected, np.ndarray)
    related = arrays or isinstance(actual, type(expected)) or isinstance(expected, type(actual))
    known = all(isinstance(x, (Tensor, np.ndarray)) for x in (actual, expected))
    if not (known and related) or (type(actual) is not type(expected) and not asked.allow_subclasses):
        raise TypeError(f"assert_close: No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}.")
    a, b = (tensor(x) if isinstance(x, np.ndarray) else x.detach() for x in (actual, expected))
    looks: list[tuple[str, bool, Callable[[Any], Any]]] = [
        ("shape", True, lambda x: x.shape), ("layout", asked.check_layout, lambda x: x.layout),
        ("device", asked.check_device and not arrays, lambda x: x.device), ("dtype", asked.check_dtype, lambda x: x.dtype),
        ("stride()", asked.check_stride, lambda x: x.stride())]
    for name, wanted, of in looks:
        if wanted and of(a) != of(b):
            raise _Unlike(f"The values for attribute {name!r} do not match: {of(a)} != {of(b)}.", item)
    dense = [(x if x.layout is layout.strided else x.to_dense()).numpy() for x in (a, b)]
    _close(dense[0], dense[1], [x.dtype.name for x in dense], asked, item, "Tensor-likes" if a.ndim else "Scalars")


def _close(a: Any, b: Any, kinds: list[str], asked: _Asked, item: str, what: str) -> None:
    """Compare the values of two arrays of equal shape; `kinds` names the dtypes whose tolerances they have."""
    defaults = [_TOLERANCES.get(kind, (0.0, 0.0)) for kind in kinds]
    rtol, atol = (max(d[i] for d in defaults) if given is None else given for i, given in enumerate((asked.rtol, asked.atol)))
    short = a.dtype == b.dtype == dtypes.bfloat16
    a, b = (x.astype(np.float32) if x.dtype == dtypes.bfloat16 else x for x in (a, b))
    common = np.result_type(a, b)
    a, b = (x.astype(common if dtypes.dtype_kind(common) in "fc" else np.int64) for x in (a, b))
    with np.errstate(all="ignore"):
        distance, size = np.abs(a - b), np.abs(b)
        close = (a == b) | (np.isfinite(distance) & (distance <= atol + rtol * size))
        if asked.equal_nan:
            close |= np.isnan(a) & np.isnan(b)
        if close.all():
            return
        distances, shares = np.where(close, 0, distance), np.where(close, 0, distance / size)
        shares = shares.astype(dtypes.bfloat16).astype(np.float32) if short else shares
    allowed = ["" if rtol == atol == 0 else f" (up to {t} allowed)" for t in (atol, rtol)]
    text = f"{what} are not {'close' if allowed[0] else 'equal'}!\n\n"
    if what == "Scalars":
        text += (f"Expected {b.item()} but got {a.item()}.\nAbsolute difference: {distances.item()}{allowed[0]}\n"
                 f"Relative difference: {shares.item()}{allowed[1]}")
    else:
        wrong = int((~close).sum())
        text += f"Mismatched elements: {wrong} / {close.size} ({wrong / close.size:.1%})"
        for name, values, up_to in (("absolute", distances, allowed[0]), ("relative", shares, allowed[1])):
            at = np.unravel_index(int(values.argmax()), values.shape)
            text += f"\nGreatest {name} difference: {values[at].item()} at index {tuple(int(i) for i in at)}{up_to}"
    raise _Unlike(text, item)
