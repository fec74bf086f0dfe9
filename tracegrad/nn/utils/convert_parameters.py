"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.tensors.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters, one after the other: (total,). Raises ArgumentError for no parameters."""
    parts = [p.reshape(-1) for p in parameters]
    if not parts:
        raise ArgumentError("parameters_to_vector: got no parameters; was model.parameters() consumed before?")
    return PUBLIC["cat"](parts, 0)  # type: ignore[no-any-return]


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give the parameters the elements of `vec`, in place, in the order of `parameters_to_vector`.

    Raises ShapeError (and changes nothing) unless vec has as many elements as they have together.
    """
    given = list(parameters)
    if vec.ndim != 1 or vec.shape[0] != sum(p.numel() for p in given):
        raise ShapeError(f"vector_to_parameters: vec must be ({sum(p.numel() for p in given)},), one element for each of the parameters', "
                         f"got {vec.shape}")
    start = 0
    for p in given:
        p.data = vec.detach()[start:start + p.numel()].reshape(p.shape)
        start += p.numel()
