"""What torch's tensors tell of themselves, as methods and attributes: strides, layout, which kind of device; and `apply_` and `map_`.

Every tensor here has its elements row by row: a view is index arithmetic on its base, and is computed where somebody needs its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, AutogradError, ShapeError
from tracegrad.execute.backend_interfaces import Provided
from tracegrad.execute.devices import list_devices
from tracegrad.graph.ir import Aval
from tracegrad.ops.arguments import one_dim
from tracegrad.ops.arrays.subscripts import Subscript
from tracegrad.support.cache import Cache, memoize
from tracegrad.support.layouts import accept_format, channels_last, channels_last_3d, strided
from tracegrad.tensors.bases.view_steps import plain_steps
from tracegrad.tensors.scopes import is_inference
from tracegrad.tensors.tensor import Tensor, from_array

KNOWN = 10_000                  # steps from a view to the next that are remembered


def stride(self: Tensor, dim: int | None = None) -> Any:
    """How far apart, in elements, the neighbours along each dimension are (or along one): row by row, for views, too.

    >>> tg.zeros(2, 3, 4).stride()
    """
    steps = _steps(self.shape)
    return steps if dim is None else steps[one_dim("stride", dim, len(steps))]


def storage_offset(self: Tensor) -> int:
    """0: no tensor has its elements in another's memory."""
    return 0


def dim_order(self: Tensor) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest one in memory: their order."""
    return tuple(range(self.ndim))


def is_contiguous(self: Tensor, memory_format: Any = None) -> bool:
    """True (of channels_last formats False): views are index arithmetic here, and every computed tensor is contiguous."""
    accept_format("is_contiguous", memory_format)
    return memory_format not in (channels_last, channels_last_3d)


def memory_order(x: Tensor) -> list[int] | None:
    """The dimensions of a view from the slowest to the fastest in its base's memory; None where they are in order, or that is not known."""
    steps = None if x._base is None else _strides_in_memory(x)
    if steps is None or 0 in steps:
        return None
    order = sorted(range(len(steps)), key=lambda d: -steps[d])
    return None if order == [*range(len(steps))] or _row_by_row(x.shape, steps) else order


def lies_row_by_row(x: Tensor) -> bool:
    """Whether the elements lie one behind the other in memory; those of a view in its base's."""
    steps = None if x._base is None else _strides_in_memory(x)
    return x._base is None or (steps is not None and _row_by_row(x.shape, steps))


def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself; of a view whose elements do not lie row by row in its base's memory (transposed, every second, ...) a copy.

    So what is written to the result reaches the base where it does so in torch.
    """
    accept_format("contiguous", memory_format)
    return self if lies_row_by_row(self) else self.clone()


@memoize(1000)
def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """How far apart neighbours along each dimension are, row by row."""
    return tuple(accumulate((max(1, n) for n in (*shape[:0:-1],)), mul, initial=1))[::-1] if shape else ()


def _row_by_row(shape: Sequence[int], steps: Sequence[int]) -> bool:
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, steps, _steps(shape), strict=True))


_Layout = tuple[tuple[int, ...] | None, Aval]     # how far apart neighbours are in memory (None: torch has a copy there), and the aval
_known = Cache("layouts of views", KNOWN)       # by what is viewed, how it lies and the step: what `_viewed` found


def _strides_in_memory(x: Tensor) -> tuple[int, ...] | None:
    """How far apart neighbours would be in the memory of what x is a view of, as in torch; None: torch has a copy there."""
    return _layout(x)[0]


def _layout(x: Tensor, but: int = 0) -> _Layout:
    """How x lies in the memory of what it is a view of. but: without so many steps, the last ones of the way from the base."""
    views = []
    while x._base is not None:
        views.append(x)
        x = x._base
    aval = x._n.aval
    layout: _Layout = _steps(aval.shape), aval
    for view in reversed(views):
        layout = _laid(view, layout, but if view is views[0] else 0)
    return layout


def _laid(x: Tensor, layout: _Layout, but: int) -> _Layout:
    """How x, a view of what lies like that, lies."""
    base, steps = x._base, x._steps
    assert base is not None
    key = None
    if not but and type(steps) is Subscript and x._layout == len(base._moved):      # where a part begins does not matter, and is another
        key = layout, x._n.aval, *[k.step or 1 if type(k) is slice else int if type(k) is int else k for k in steps.key]     # each time
        found: _Layout | None = _known[key]
        if found is not None:
            return found
    chain = plain_steps(x._chain)
    at, end = 0, len(chain) - but
    while at < end:
        diagonal = _on_diagonal(layout, chain[at:min(at + 2, end)])
        layout, at = (diagonal, at + 2) if diagonal is not None else (_viewed(layout, *chain[at]), at + 1)
    if key is not None:
        _known[key] = layout
    return layout


def _on_diagonal(layout: _Layout, pair: Sequence[Any]) -> _Layout | None:
    """How a diagonal lies in memory, if this pair of steps makes one: the last two dimensions as one, and each (width + 1)th of that."""
    steps, before = layout
    if steps is None or [fn.name for fn, _ in pair] != ["reshape", "slice"] or len(before.shape) < 2:
        return None
    (flat, to), (part, cut) = pair
    *lead, height, width = before.shape
    if to["shape"] != (*lead, height * width) or cut["step"] != (*(1,) * len(lead), width + 1):
        return None
    return (*steps[:-2], steps[-2] + steps[-1]), part.aval(flat.aval(before, **to), **cut)


def _viewed(layout: _Layout, fn: Any, attrs: dict[str, Any]) -> _Layout:
    """How what a step of movement makes of an array lies in its memory."""
    key = (layout, fn, *attrs.items())
    found: _Layout | None = _known[key]
    if found is None:
        found = _known[key] = _stepped(*layout, fn, attrs)
    return found


def _stepped(steps: tuple[int, ...] | None, before: Aval, fn: Any, attrs: dict[str, Any]) -> _Layout:
    shape, aval = before.shape, fn.aval(before, **attrs)
    if steps is None:
        return None, aval
    if fn.name == "slice":
        return tuple(a * b for a, b in zip(steps, attrs["step"], strict=True)), aval
    if fn.name == "permute":
        return tuple(steps[d] for d in attrs["dims"]), aval
    if fn.name == "unfold":
        d = attrs["dim"]
        return (*steps[:d], steps[d] * attrs["step"], *steps[d + 1:], steps[d] * attrs["gap"]), aval
    if fn.name == "expand":
        new = len(aval.shape) - len(shape)
        return (0,) * new + tuple(a if m == n else 0 for a, m, n in zip(steps, shape, aval.shape[new:], strict=True)), aval
    if fn.name == "bits" and (shape == aval.shape or _row_by_row(shape, steps)):
        return steps if shape == aval.shape else _steps(aval.shape), aval
    return _reshaped(shape, steps, aval.shape) if fn.name == "reshape" else None, aval


def _reshaped(shape: Sequence[int], steps: Sequence[int], new: Sequence[int]) -> tuple[int, ...] | None:
    """The steps of an array of these when it is reshaped; None if its elements would have to be moved.

    Dimensions that lie in memory one within the other are one run of equal steps, and a run may be cut anywhere: the new dimensions, from
    the last one on, have to fill run after run.
    """
    if 0 in shape or not shape:
        return _steps(new)
    runs: list[tuple[int, int]] = []                    # (how many, the step), the innermost first
    for n, step in zip(reversed(shape), reversed(steps), strict=True):
        if n == 1:
            continue
        if runs and step == runs[-1][0] * runs[-1][1]:
            runs[-1] = runs[-1][0] * n, runs[-1][1]
        else:
            runs.append((n, step))
    found: list[int] = []
    room, step = 1, 1
    for n in reversed(new):
        if room == 1 and n > 1:
            room, step = runs.pop(0)
        if room % n:
            return None
        found.append(step)
        room, step = room // n, step * n
    return tuple(reversed(found))


def moved(x: Tensor) -> bool:
    """Whether torch has a copy here, as the last step to x, a reshape, cannot be told by steps in the base's memory."""
    base = x._base
    if base is None:
        return False
    chain = plain_steps(x._chain)
    if not chain or chain[-1][0].name != "reshape" or (len(chain) == 1 and base._base is None):
        return False
    before = _layout(x, 1)
    return before[0] is not None and _viewed(before, *chain[-1])[0] is None


def get_device(self: Tensor) -> int:
    """The number of a GPU among `tg.devices()`; -1 on a CPU, as in torch. Any dtype. Raises DTypeError for what is no tensor.

    >>> tg.get_device(tg.ones(2))
    """
    return -1 if self.is_cpu or getattr(self.device, "type", "") == "meta" else list_devices().index(self.device)


def apply_(self: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Put callable(element) in place of every element, in Python, and slowly: for tries. Not for tensors that require grad.

    >>> tg.arange(3).apply_(lambda v: v * v)
    """
    return _elementwise("apply_", callable, self)


def map_(self: Tensor, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
    """Put callable(element, element of `tensor`) in place of every element, in Python; `tensor` has the same shape."""
    return _elementwise("map_", callable, self, tensor)


def map2_(self: Tensor, x: Tensor, y: Tensor, callable: Callable[[Any, Any, Any], Any]) -> Tensor:
    """Put callable(element, element of x, element of y) in place of every element, in Python; all have one shape."""
    return _elementwise("map2_", callable, self, x, y)


def _elementwise(call: str, fn: Callable[..., Any], *tensors: Tensor) -> Tensor:
    target = tensors[0]
    if any(t._has_history() for t in tensors):
        raise AutogradError(f"{call}: Python functions have no derivative, and a tensor requires grad; use x.detach()")
    for other in tensors[1:]:
        if other.shape != target.shape:
            raise ShapeError(f"{call}: the shapes {target.shape} and {other.shape} must be equal; expand one of them")
    columns = [np.ravel(t._value(call, shared=True)).tolist() for t in tensors]
    values = np.array([fn(*row) for row in zip(*columns, strict=True)]).reshape(target.shape)
    return target.copy_(from_array(values.astype(target.dtype), target.device))


array_namespace = Provided[Any]("no namespace of the array API standard")
_VERSIONS = (None, "2021.12", "2022.12", "2023.12", "2024.12")


def __array_namespace__(self: Tensor, /, *, api_version: str | None = None) -> Any:
    """The namespace `tracegrad.array_api`. Raises ArgumentError for a version of the standard that is not there.

    >>> xp = tg.ones(3).__array_namespace__()
    """
    if api_version not in _VERSIONS:
        known = ", ".join(f"{v!r}" for v in _VERSIONS)
        raise ArgumentError(f"__array_namespace__: api_version must be one of {known}, got {api_version!r}")
    return array_namespace()


def _never(name: str) -> Callable[[Tensor], bool]:
    def method(self: Tensor) -> bool:
        return False

    method.__name__, method.__doc__ = name, f"""False, of any shape and dtype: no tensor is so here. DTypeError for what is no tensor.

    >>> tg.ones(2).{name}()
    False
    """
    return method


for _fn in (stride, storage_offset, dim_order, is_contiguous, contiguous, get_device, is_inference, apply_, map_, map2_,
            __array_namespace__):
    setattr(Tensor, _fn.__name__, _fn)
Tensor.is_cpu = property(lambda self: getattr(self.device, "type", "cpu") == "cpu")  # type: ignore[attr-defined]
Tensor._memory_order = memory_order  # type: ignore[attr-defined]
Tensor.layout = property(lambda self: strided)  # type: ignore[attr-defined]
for _name in ("cuda", "ipu", "maia", "meta", "mkldnn", "mps", "mtia", "nested", "quantized", "sparse", "sparse_csr", "vulkan", "xla",
              "xpu"):
    setattr(Tensor, f"is_{_name}", property(lambda self: False))           # kinds of tensors that are not here
for _name in ("is_pinned", "is_shared", "is_distributed"):
    setattr(Tensor, _name, _never(_name))


def base_of(tensor: Tensor) -> Tensor:
    """The tensor that a view is a view of in the end; others themselves."""
    while tensor._base is not None:
        tensor = tensor._base
    return tensor
