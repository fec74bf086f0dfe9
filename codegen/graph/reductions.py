"""Reductions in the few forms that kernels have. Start at `canonical`.

Every reduction becomes steps over a view of the data as (rows, cols) or (outer, middle, inner), innermost dims first:

- rows: (rows, cols) -> (rows,), the contiguous last dimension; a row is one work-item's loop, so what needs the result in the
  same row (softmax) stays in the kernel;
- columns: (outer, middle, inner) -> (outer, inner), always by way of partial results (`Partial`), the middle cut in chunks;
- few elements (up to 16): written out inside whatever kernel needs the result. But rows that lie in memory as they are reduced are
  rows on GPUs, if they are not very short: a `Partial` of one chunk, which nothing writes out;
- on CPUs results with a last dimension of 2 to 4 that is not reduced (coordinates, colours) are as many results, put side by side: a vector
  is of what lies along the dimension before, and what the components share is computed once (see `components`).

A row too long for one work-item is cut in chunks, too: a `Partial`, and a reduction of the partial results. Chunks depend on the
shape and the target's core count only, and are combined in order: the same program gives the same bits.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tracegrad.codegen.graph.components import Components
from tracegrad.codegen.graph.rewrite import at
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.operation import Operation
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, cast
from tracegrad.support.dtypes import float32, float64
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning


class Partial(Primitive):
    """Reduction by chunks: (outer, middle, inner) -> (outer, chunks, inner), `length` elements of the middle a chunk.

    Internal to the code generator (it has no name in the registry). `op` is the reduction it is a part of.
    """

    family, differentiable, expensive = "partial", False, True

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        x, length = operands[0], attrs["length"]
        outer, middle, inner = x.shape
        return Aval((outer, -(-middle // length), inner), x.dtype)

    def numpy(self, *operands: Any, **attrs: Any) -> Any:
        x, op, length = operands[0], attrs["op"], attrs["length"]
        return np.stack([op.numpy(x[:, i:i + length], dim=(1,)) for i in range(0, x.shape[1], length)], axis=1)


PARTIAL = Partial("partial")


def canonical(graph: Graph, target: Target) -> Graph:
    """Each reduction of the graph in the forms above."""
    if not any(n.fn.family == "reduction" for n in graph):
        return graph
    whole, components = _rows_of_others(graph, target), Components(graph, target)

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        with at(node.loc):
            if node.fn.family != "reduction":
                new = node if operands == node.operands else rebind(node, operands)
                components.make(node, new)
                return new
            x, dims = operands[0], node.attrs["dim"]
            if node in components.reduced:
                return _by_components(node.fn, components.of(x), dims, node.shape, target)
            if (folded := components.folds(node, x)) is not None:
                return folded
            if (cols := whole.get(node)) is not None:
                rows = x.aval.size // cols
                x, dims = reduce(node.fn, view(x, (rows, cols)), (1,), (rows,), target), (0,)
            return reduce(node.fn, x, dims, node.shape, target)

    return graph.rebuilt(replace)


def _rows_of_others(graph: Graph, target: Target) -> dict[Node, int]:
    """The columns of the rows in which a CPU had better reduce all of an array, as a kernel is there that reduces such rows.

    (An energy, and the forces on each of the particles.)
    """
    found = [n for n in graph if n.fn.family == "reduction" and target.kind == "cpu"]
    shapes = {_matrix(n.operands[0], n.attrs["dim"]) for n in found}
    out: dict[Node, int] = {}
    for n in found:
        x = n.operands[0]
        if n.aval.size == 1 and x.aval.size > tuning().long_row:
            lead = [prod(x.shape[:i]) for i in range(1, len(x.shape))]
            split = [k for k in lead if (k, x.aval.size // k) in shapes and k >= 4 * target.cores]
            if split:
                out[n] = x.aval.size // split[0]
    return out


def _matrix(x: Node, dims: tuple[int, ...]) -> tuple[int, int] | None:
    """(rows, columns) of a reduction over rows that are worth a kernel's loop, of one number or of a few components each."""
    last = max((i for i, n in enumerate(x.shape) if n > 1), default=0)
    end = last + 1
    if last not in dims and last and x.shape[last] <= tuning().components:
        end = last
    kept = [i for i in range(end) if i not in dims and x.shape[i] > 1]
    if not kept or any(i in dims and x.shape[i] > 1 for i in range(kept[-1])):
        return None
    rows, cols = prod(x.shape[:kept[-1] + 1]), prod(x.shape[kept[-1] + 1:end])
    return (rows, cols) if cols > 16 * tuning().unrolled else None


def rebind(node: Node, operands: tuple[Node, ...]) -> Node:
    with at(node.loc):
        return bind(node.fn, operands, node.attrs)


def view(x: Node, shape: tuple[int, ...]) -> Node:
    """x reshaped; a reshape of a reshape is one reshape."""
    while x.fn.name == "reshape":
        x = x.operands[0]
    return x if x.shape == shape else bind(REGISTRY["reshape"], (x,), {"shape": shape})


def reduce(fn: Operation, x: Node, dims: tuple[int, ...], result: tuple[int, ...], target: Target) -> Node:
    runs: list[list[int]] = []             # [size, reduced?] of maximal runs of dims of one kind
    for i, n in enumerate(x.shape):
        if n == 1:
            continue
        if runs and runs[-1][1] == (i in dims):
            runs[-1][0] *= n
        else:
            runs.append([n, int(i in dims)])
    if not any(reduced for _, reduced in runs):
        return view(x, result)
    if fn is REGISTRY["prod"] and x.dtype == float32 and target.fp64 and prod(n for n, reduced in runs if reduced) > tuning().unrolled:
        return cast(reduce(fn, cast(x, float64), dims, result, target), float32)     # each factor loses digits, and no pair gets them back
    if prod(n for n, reduced in runs if reduced) <= tuning().unrolled and len(runs) > 2:
        y = view(x, tuple(n for n, _ in runs))
        return view(bind(fn, (y,), {"dim": tuple(i for i, (_, reduced) in enumerate(runs) if reduced)}), result)
    while any(reduced for _, reduced in runs):
        sizes = [n for n, _ in runs]
        if runs[-1][1]:
            n = sizes[-1]
            x = _rows(fn, view(x, (prod(sizes[:-1]), n)), target)
            runs.pop()
        else:
            x = _columns(fn, view(x, (prod(sizes[:-2]), sizes[-2], sizes[-1])), target)
            last = runs.pop()
            runs.pop()
            if runs:
                runs[-1][0] *= last[0]
            else:
                runs.append(last)
    return view(x, result)


def _by_components(fn: Operation, parts: tuple[Node, ...], dims: tuple[int, ...], result: tuple[int, ...], target: Target) -> Node:
    """A reduction of elements of several components, given these: each by itself, then side by side."""
    kept = prod(result) // len(parts)
    found = [view(reduce(fn, part, dims, (kept,), target), (kept, 1)) for part in parts]
    return view(bind(REGISTRY["concat"], tuple(found), {"dim": 1}), result)


def _rows(fn: Operation, x: Node, target: Target) -> Node:
    rows, cols = x.shape
    if target.kind == "gpu" and tuning().short_row <= cols <= tuning().unrolled and rows > 1 and _lies(x):
        return view(bind(PARTIAL, (view(x, (rows, cols, 1)),), {"op": fn, "length": cols}), (rows,))
    full = 4 * target.cores if target.kind == "cpu" else target.groups(tuning().group)
    if cols > tuning().long_row and 0 < rows < full:
        chunks = min(-(-cols // tuning().row_chunk), -(-2 * full // rows))
        length = -(-cols // chunks)
        length = -(-length // 64) * 64
        x = view(bind(PARTIAL, (view(x, (rows, cols, 1)),), {"op": fn, "length": length}), (rows, -(-cols // length)))
    return bind(fn, (x,), {"dim": (1,)})


def _lies(x: Node) -> bool:
    """Whether some value of these elements is there, or is made by a kernel of its own: not if all of it is broadcast, or moved."""
    todo, seen = [x], {x}
    while todo:
        node = todo.pop()
        if node.fn.family == "elementwise" or node.fn.name == "reshape":
            fresh = [o for o in node.operands if o.aval.size == x.aval.size and o not in seen]
            seen.update(fresh)
            todo += fresh
        elif node.fn.family not in ("movement", "index", "gather"):
            return True
    return False


def _columns(fn: Operation, x: Node, target: Target) -> Node:
    outer, middle, inner = x.shape
    if middle <= tuning().unrolled or not x.aval.size:
        return bind(fn, (x,), {"dim": (1,)})
    if target.kind == "gpu" and target.local_memory:         # as many work-groups as fill the device (lower/rows/rows_gpu.py)
        across = min(32, 1 << (inner - 1).bit_length())
        most = max(tuning().unrolled, tuning().small_columns // inner)       # then the second kernel has next to nothing to do
        chunks = max(1, min(-(-target.groups(tuning().group) // (outer * -(-inner // across))), middle // tuning().column_chunk, most))
        while chunks > 1:
            x = bind(PARTIAL, (x,), {"op": fn, "length": -(-x.shape[1] // chunks)})
            if x.shape[1] <= tuning().unrolled:
                return bind(fn, (x,), {"dim": (1,)})
            chunks = 1
        return bind(PARTIAL, (x,), {"op": fn, "length": x.shape[1]})
    if target.kind == "gpu":
        wanted = -(-target.items // (outer * inner))
    else:
        wanted = 1 if outer * middle * inner <= tuning().small_columns else -(-4 * target.cores // outer)
    chunks = max(1, min(wanted, tuning().unrolled, middle // 4))
    x = bind(PARTIAL, (x,), {"op": fn, "length": -(-middle // chunks)})
    return _columns(fn, x, target) if x.shape[1] > 1 else x
