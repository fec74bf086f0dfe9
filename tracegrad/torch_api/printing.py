"""How tensors, parameters and sizes print under torch's names: as they do with torch. Start at `shown`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from tracegrad.autograd.hooks import GradFn
from tracegrad.graph.ir import Size
from tracegrad.nn.parameter import Parameter
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.tensor import Tensor

_DEFAULTS: dict[str, Any] = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}
_PROFILES = {"default": _DEFAULTS, "short": _DEFAULTS | {"precision": 2}, "full": _DEFAULTS | {"threshold": inf}}
_options = dict(_DEFAULTS)


def set_printoptions(precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
                     linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None) -> None:
    """torch.set_printoptions: how many digits, elements and letters in a line are printed; profile: "default", "short" or "full"."""
    if profile is not None:
        _options.update(_PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _options.update({k: v for k, v in given.items() if v is not None}, sci_mode=sci_mode)


class _Numbers:
    """How the numbers of an array are printed: all alike."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.floats, self.width, self.whole, self.powers = dtype_kind(array.dtype) == "f", 1, True, False
        if not self.floats:
            self.width = max([self.width, *(len(str(v)) for v in array.reshape(-1).tolist())])
            return
        with np.errstate(invalid="ignore"):
            values = array[np.isfinite(array) & (array != 0)].astype(np.float64)
        if not values.size:
            return
        least, most = np.abs(values).min(), np.abs(values).max()
        self.whole = bool((values == np.ceil(values)).all())
        self.powers = bool(most / least > 1000.0 or most > 1e8 or (not self.whole and least < 1e-4))
        if _options["sci_mode"] is not None:
            self.powers = _options["sci_mode"]
        self.width = max([self.width, *(len(self.text(v)) for v in values.tolist())])

    def text(self, value: Any) -> str:
        if not self.floats:
            return str(value)
        if self.powers:
            return f"{value:.{_options['precision']}e}"
        if self.whole:
            return f"{value:.0f}" + ("." if np.isfinite(value) else "")
        return f"{value:.{_options['precision']}f}"

    def __call__(self, value: Any) -> str:
        return self.text(value).rjust(self.width)


class _Complex:
    """The same of complex numbers."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.real, self.imag = _Numbers(array.real), _Numbers(array.imag)
        self.width = self.real.width + self.imag.width + 1

    def __call__(self, value: complex) -> str:
        imag = self.imag(value.imag).lstrip() + "j"
        return self.real(value.real) + ("" if imag[0] in "+-" else "+") + imag


def _ends(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements that are printed of a large array."""
    edge = _options["edgeitems"]
    for d in range(array.ndim):
        if array.shape[d] > 2 * edge:
            array = np.take(array, [*range(edge), *range(array.shape[d] - edge, array.shape[d])], d)
    return array


def _nested(array: np.ndarray[Any, Any], indent: int, part: bool, number: Any) -> str:
    """The elements in brackets. part: only the first and last of long dimensions."""
    if not array.ndim:
        return number(array.item())  # type: ignore[no-any-return]
    edge = _options["edgeitems"]
    cut = part and len(array) > 2 * edge
    rows = [*array[:edge], *array[len(array) - edge:]] if cut else list(array)
    if array.ndim == 1:
        texts = [number(v.item()) for v in rows]
        texts = [*texts[:edge], " ...", *texts[edge:]] if cut else texts
        count = max(1, (_options["linewidth"] - indent) // (number.width + 2))
        lines = [", ".join(texts[at:at + count]) for at in range(0, len(texts), count)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    texts = [_nested(row, indent + 1, part, number) for row in rows]
    texts = [*texts[:edge], "...", *texts[edge:]] if cut else texts
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(texts) + "]"


def shown(tensor: Tensor) -> str:
    """What print shows of a tensor."""
    own = type(tensor) in (Tensor, Parameter) or type(tensor).__module__.startswith("tracegrad.")
    prefix = "tensor(" if own else f"{type(tensor).__name__}("
    meta = not tensor.device.has_values
    default = dtypes.get_default_dtype()
    kind = [] if tensor.dtype in (default, dtypes.complex_of(default), np.int64, np.bool_) else [f"dtype=torch.{tensor.dtype.name}"]
    after = [f"device='{tensor.device}'"] if tensor.device.type != "cpu" else []
    if meta:
        text, after = "...", [*after, f"size={tuple(tensor.shape)}", *kind]
    elif not tensor.numel():
        text, after = "[]", [*after, *([f"size={tuple(tensor.shape)}"] if tensor.ndim != 1 else []),
                             *([f"dtype=torch.{tensor.dtype.name}"] if tensor.dtype != default else [])]
    else:
        text, after = _tensor_str(tensor, len(prefix)), [*after, *kind]
    if tensor.grad_fn is not None:
        after.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        after.append("requires_grad=True")
    return _add_suffixes(prefix + text, after, len(prefix))


def _tensor_str(tensor: Tensor, indent: int) -> str:
    """The elements in brackets, as `shown` has them behind a prefix of `indent` characters."""
    if not tensor.numel():
        return "[]"
    array = tensor.detach().numpy()
    array = array.astype(np.float32) if dtypes.is_half(tensor.dtype) else array
    part = array.size > _options["threshold"]
    number: Any = (_Complex if array.dtype.kind == "c" else _Numbers)(_ends(array) if part else array)
    return _nested(array, indent, part, number)


def _add_suffixes(out: str, after: Sequence[str], indent: int, force_newline: bool = False) -> str:
    """The text with what comes behind its elements, on lines of its own where there is no room; and the last bracket."""
    length = len(out) - out.rfind("\n") + 1
    for word in after:
        if force_newline or length + len(word) + 2 > _options["linewidth"]:
            out, length, force_newline = f"{out},\n{' ' * indent}{word}", indent + len(word), False
        else:
            out, length = f"{out}, {word}", length + len(word) + 2
    return out + ")"


def _step_name(before: Callable[[GradFn], str]) -> Callable[[GradFn], str]:
    def name(self: GradFn) -> str:
        """The operation's name as torch writes it, "AddBackward0"."""
        own = before(self)
        return f"torch::autograd::{own}" if self.variable is not None else f"{''.join(word.title() for word in own.split('_'))}Backward0"

    return name


def install(untraced: Any) -> None:
    """Let tensors and sizes print so. untraced: whether a tensor has values to print; others print as they did."""
    before = Tensor.__repr__

    def text(self: Tensor) -> str:
        return shown(self) if untraced(self) else before(self)

    def text_of_parameter(self: Parameter) -> str:
        return f"Parameter containing:\n{text(self)}"

    cls: Any = Tensor
    cls.__repr__ = cls.__str__ = text
    parameter: Any = Parameter
    parameter.__repr__ = parameter.__str__ = text_of_parameter
    step: Any = GradFn
    step.name = _step_name(GradFn.name)
    step.__repr__ = lambda self: f"<{self.name().rpartition(':')[2]} object at {id(self):#x}>"
    size: Any = Size
    size.__repr__ = size.__str__ = lambda self: f"torch.Size({list(self)})"
    size.__module__ = "torch"                               # under this name torch.save writes it
