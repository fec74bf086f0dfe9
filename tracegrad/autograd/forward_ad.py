"""Forward mode on tensors that carry a tangent, under torch.autograd.forward_ad's names. Start at `dual_level`.

In a level `make_dual` makes one tensor of a tensor and a tangent, and `unpack_dual` tells the tangent of what was computed with it. A dual
is a variable of the history, through which its tangent is pushed when that is asked for (`derivatives.jvp`). `tg.jvp` is the transform of
a function, which needs no level.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

from tracegrad.autodiff import derivatives
from tracegrad.autograd.transforms import matching
from tracegrad.errors import ArgumentError, AutogradError
from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import REGISTRY, bind
from tracegrad.support.dtypes import differentiable
from tracegrad.support.modes import enable_grad, set_grad_enabled, state
from tracegrad.tensors.tensor import Tensor

_VARIABLE, _DETACH = REGISTRY["variable"], REGISTRY["detach"]
_levels: list[_Level] = []


class UnpackedDualTensor(NamedTuple):
    """What `unpack_dual` returns. tangent: None where the tensor does not depend on a dual."""

    primal: Tensor
    tangent: Tensor | None


class _Level:
    """The duals of a level, and their tangents."""

    def __init__(self) -> None:
        self.duals: dict[Node, Node] = {}
        self.given: dict[Node, Tensor] = {}               # the tangents as they were handed over
        self.recorded = state.grad


def active() -> bool:
    """Whether a level was entered."""
    return bool(_levels)


def enter_dual_level() -> int:
    """Begin a level, and return its number, which is 0. Raises AutogradError in another level."""
    if _levels:
        raise AutogradError("enter_dual_level: nested levels are not supported, as in torch; tg.jvp nests")
    _levels.append(_Level())
    set_grad_enabled(True)
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """End the level: tangents are forgotten. Raises AutogradError if there is none."""
    ended = _level("exit_dual_level", level)
    _levels.remove(ended)
    derivatives.awaited.difference_update(ended.duals)
    set_grad_enabled(ended.recorded)


def _level(call: str, level: int | None) -> _Level:
    if not _levels:
        raise AutogradError(f"{call}: no level was entered; write `with dual_level():` around it")
    if level not in (None, 0):
        raise ArgumentError(f"{call}: level {level} was not entered, the present one is 0")
    return _levels[0]


class dual_level:
    """Context manager: a level. Operations are recorded in it, also where it stands in no_grad; those of a no_grad inside carry no tangent.

    >>> with tg.autograd.forward_ad.dual_level():
    ...     x = tg.autograd.forward_ad.make_dual(tg.tensor(3.0), tg.tensor(1.0))
    ...     tg.autograd.forward_ad.unpack_dual(x * x).tangent
    Tensor(6., device='cpu')
    """

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        exit_dual_level()


def make_dual(tensor: Any, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """A tensor of the values of `tensor` that carries `tangent`, of its shape and in its dtype, through what is computed with it.

    Raises AutogradError outside of levels and under no_grad, ArgumentError for integers, ShapeError and DeviceError where the two do
    not fit.
    """
    present = _level("make_dual", level)
    if not isinstance(tensor, Tensor) or not differentiable(tensor.dtype):
        seen = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ArgumentError(f"make_dual: tensor must be a Tensor of floats or complex numbers, got {seen}")
    moved = matching("make_dual", "the tangent", tangent, "tensor", tensor)
    if not state.grad:
        raise AutogradError("make_dual: under no_grad nothing carries a tangent; enter the level inside no_grad, not the other way round")
    node = derivatives.variable(tensor._node())
    present.duals[node] = moved
    if moved is tangent._node():
        present.given[node] = tangent
    derivatives.awaited.add(node)
    return Tensor(node, tensor._device, state.trace)


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """(the tensor without its tangent, the tangent that was carried to it). Outside of levels the tensor and None, as in torch."""
    if not _levels:
        return UnpackedDualTensor(tensor, None)
    present = _level("unpack_dual", level)
    duals, node = present.duals, tensor._node()
    given = present.given.get(node)
    if given is not None and given._node() is duals[node]:                                 # not written into since
        return UnpackedDualTensor(_without_duals(node, tensor, duals), given)
    with enable_grad():
        (moved,) = derivatives.jvp([node], list(duals), list(duals.values()))
    return UnpackedDualTensor(_without_duals(node, tensor, duals), None if moved is None else _without_duals(moved, tensor, duals))


def _without_duals(node: Node, like: Tensor, duals: dict[Node, Node]) -> Tensor:
    """A tensor with the history of `node` if there is one beside that of the duals."""
    kept = derivatives.recorded([node], duals) or not node.needs_grad
    return Tensor(node if kept else bind(_DETACH, (node,), {}), like._device, state.trace)


__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual"]
