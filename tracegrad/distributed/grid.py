"""A grid that lies on several ranks, each with a block of it: `halo`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from tracegrad.distributed.functional import Collective, checked
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
    for dim, d in enumerate(depths):
        if d < 0 or u.shape[dim] < d:
            raise ShapeError(f"halo: a depth of {d} in dimension {dim} of a block of shape {tuple(u.shape)}; it is from 0 to the length "
                             "there: use fewer ranks, or a smaller depth")
    u = _exchanged(u, [dim for dim, n in enumerate(mesh) if n > 1 and depths[dim]], depths, mesh, around, own)
    for dim, (length, d) in enumerate(zip(mesh, depths, strict=True)):
        if length == 1 and d:
            first, last = _end(u, dim, -1, d), _end(u, dim, 1, d)
            u = cat([last, u, first] if around[dim] else [last.new_zeros(last.shape), u, first.new_zeros(first.shape)], dim)
    return u


def _each(name: str, value: int | Sequence[int], count: int) -> list[int]:
    values = list(value) if isinstance(value, Sequence) else [value] * count
    if len(values) != count:
        raise ArgumentError(f"halo: {name} is one value, or one for each of {count} dimensions of the mesh, got {value!r}")
    return values


def _exchanged(u: Tensor, dims: Sequence[int], depths: Sequence[int], mesh: tuple[int, ...], around: Sequence[int],
               group: ProcessGroup) -> Tensor:
    """The block with its neighbours' values along `dims`. It has 3^d - 1 neighbours, those at its corners, too, and one message for each.

    All send in the same order of directions: where two ranks are neighbours twice, their messages are not mixed up.
    """
    if not dims:
        return u
    directions = [way for way in product((-1, 0, 1), repeat=len(dims)) if any(way)]
    goals = {way: _neighbour(group, mesh, dict(zip(dims, way, strict=True)), around) for way in directions}
    own = {way: _corner(u, dims, way, depths) for way in directions}
    behind = {way: tuple([-w for w in way]) for way in directions}
    sent = [way for way in directions if goals[way] is not None]
    come = [behind[way] for way in directions if goals[behind[way]] is not None]
    flat = Collective.apply(cat([own[way].reshape(-1) for way in sent]), "neighbours", group,
                            *[tuple([(goals[way], own[way].numel()) for way in some]) for some in (sent, come)])
    pieces = {way: x.reshape(own[way].shape) for way, x in zip(come, flat.split([own[way].numel() for way in come]), strict=True)}

    def joined(start: tuple[int, ...]) -> Tensor:
        """The parts in the directions that begin so, along the dimensions that are left."""
        if len(start) < len(dims):
            return cat([joined((*start, step)) for step in (-1, 0, 1)], dims[len(start)])  # type: ignore[no-any-return]
        return pieces[start] if start in pieces else u.new_zeros(own[start].shape) if any(start) else u

    return joined(())


def _neighbour(group: ProcessGroup, mesh: tuple[int, ...], steps: dict[int, int], around: Sequence[int]) -> int | None:
    """The rank (of the group) that is so many steps away along dimensions of the mesh; None beyond the grid."""
    found, step = group.rank(), 1
    for dim in reversed(range(len(mesh))):
        at = group.rank() // step % mesh[dim]
        there = at + steps.get(dim, 0)
        if not around[dim] and not 0 <= there < mesh[dim]:
            return None
        found += (there % mesh[dim] - at) * step
        step *= mesh[dim]
    return found


def _corner(u: Tensor, dims: Sequence[int], way: Sequence[int], depths: Sequence[int]) -> Tensor:
    """The elements at a face, an edge or a corner of the block."""
    for dim, step in zip(dims, way, strict=True):
        u = _end(u, dim, step, depths[dim]) if step else u
    return u


def _end(u: Tensor, dim: int, step: int, depth: int) -> Tensor:
    return u.narrow(dim, 0 if step < 0 else u.shape[dim] - depth, depth)  # type: ignore[no-any-return]
