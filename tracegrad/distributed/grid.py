"""A grid that lies on several ranks, each with a block of it: `halo`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tracegrad.distributed import functional
from tracegrad.distributed.functional import checked
from tracegrad.distributed.world import ProcessGroup, member
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.ops.arrays.joining import cat
from tracegrad.tensors.tensor import Tensor


def halo(u: Tensor, depth: int | Sequence[int], mesh: Sequence[int] | None = None, periodic: bool | Sequence[bool] = False,
         group: ProcessGroup | None = None) -> Tensor:
    """A rank's block of a grid, with the neighbours' values around it: `depth` more at both ends of each dimension that is split.

    u: (n0, n1, ...). mesh: the numbers of ranks along the first dimensions; their product is the group's size, and the last counts fastest,
    as in np.unravel_index(rank, mesh). Default: all along the first dimension. depth, periodic: one for all dimensions of the mesh, or one
    for each. At an end of the grid there are zeros, or, where it is periodic, the values of the other end. Corners are those of the grid.
    Blocks may differ in length along a dimension. Differentiable at every order; all ranks of the group call it.
    Returns (n0 + 2 depth, ...). Raises ArgumentError, and ShapeError for a block that is shorter than depth.

        v = tg.distributed.halo(u, 1, mesh=(2, 2))
        laplace = v[2:, 1:-1] + v[:-2, 1:-1] + v[1:-1, 2:] + v[1:-1, :-2] - 4 * u
    """
    own = member("halo", group)
    mesh = (own.size(),) if mesh is None else tuple(mesh)
    if prod(mesh) != own.size() or not mesh or len(mesh) > checked("halo", u).ndim or min(mesh) < 1:
        raise ArgumentError(f"halo: a mesh {mesh} for {own.size()} ranks and a block of shape {tuple(u.shape)}; give a number of ranks for "
                            "each of its first dimensions, whose product is the number of ranks")
    depths = _each("depth", depth, len(mesh))
    around = _each("periodic", periodic, len(mesh))
    for dim, (length, d, wraps) in enumerate(zip(mesh, depths, around, strict=True)):
        if d < 0 or u.shape[dim] < d:
            raise ShapeError(f"halo: a depth of {d} in dimension {dim} of a block of shape {tuple(u.shape)}; it is from 0 to the length "
                             "there: use fewer ranks, or a smaller depth")
        if d:
            u = _along(u, dim, d, _neighbours(own, mesh, dim, bool(wraps)) if length > 1 else None, bool(wraps), own)
    return u


def _each(name: str, value: int | Sequence[int], count: int) -> list[int]:
    values = list(value) if isinstance(value, Sequence) else [value] * count
    if len(values) != count:
        raise ArgumentError(f"halo: {name} is one value, or one for each of {count} dimensions of the mesh, got {value!r}")
    return values


def _neighbours(group: ProcessGroup, mesh: tuple[int, ...], dim: int, wraps: bool) -> tuple[int | None, int | None]:
    """The ranks (of the world) before and after this one along a dimension of the mesh; None beyond the grid."""
    step = prod(mesh[dim + 1:])
    at = group.rank() // step % mesh[dim]

    def other(there: int) -> int | None:
        if not wraps and not 0 <= there < mesh[dim]:
            return None
        return group.ranks[group.rank() + (there % mesh[dim] - at) * step]

    return other(at - 1), other(at + 1)


def _along(u: Tensor, dim: int, depth: int, neighbours: tuple[int | None, int | None] | None, wraps: bool, group: ProcessGroup) -> Tensor:
    first, last = u.narrow(dim, 0, depth), u.narrow(dim, u.shape[dim] - depth, depth)
    if neighbours is None:
        before, after = (last, first) if wraps else (last.new_zeros(last.shape), first.new_zeros(first.shape))
    else:
        lower, upper = neighbours
        before = functional.sendrecv(last, upper, lower, group)
        after = functional.sendrecv(first, lower, upper, group)
    return cat([before, u, after], dim)  # type: ignore[no-any-return]
