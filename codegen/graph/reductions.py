"""Reductions in the few forms that kernels have. Start at `canonical`; `stacked_terms` runs before it.

Every reduction becomes steps over a view of the data as (rows, cols) or (outer, middle, inner), innermost dims first:

- rows: (rows, cols) -> (rows,), the contiguous last dimension; a row is one work-item's loop, so what needs the result in the
  same row (softmax) stays in the kernel;
- columns: (outer, middle, inner) -> (outer, inner), always by way of partial results (`Partial`), the middle cut in chunks;
- a long row whose elements are read in shorter ones (`_run`), where there are vectors: these first, then what they give;
- few elements (up to 16): written out inside whatever kernel needs the result. But rows that lie in memory as they are reduced are
  rows on GPUs, if they are not very short: a `Partial` of one chunk, which nothing writes out;
- on CPUs results with a last dimension of 2 to 4 that is not reduced (coordinates, colours) are as many results, put side by side: a vector
  is of what lies along the dimension before, and what the components share is computed once (see `components`).

A row too long for one work-item is cut in chunks, too: a `Partial`, and a reduction of the partial results. Chunks depend on the
shape and the target's core count only, and are combined in order: the same program gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tracegrad.codegen.graph.components import Components
from tracegrad.codegen.graph.rewrite import at, op, uses
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.operation import Operation
from tracegrad.graph.operation_families import Elementwise
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, cast, filled
from tracegrad.graph.substitution import rebound, replaced
from tracegrad.ops.primitives.movement import narrow, pad
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
                new = rebound(node, operands)
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
    """The columns of the rows in which work-items with rows of their own had better reduce all of an array, as a kernel is there that
    reduces such rows.

    (An energy, and the forces on each of the particles.) Short rows only where what is reduced is made of what they reduce to: then one
    kernel has it all at hand. (The loss of normalized rows of 24 numbers.)
    """
    found = [n for n in graph if n.fn.family == "reduction" and not target.traits.row_groups]
    rows = {n: _matrix(n.operands[0], n.attrs["dim"]) for n in found}
    shapes = set(rows.values())
    out: dict[Node, int] = {}
    for n in found:
        x = n.operands[0]
        if n.aval.size == 1 and x.aval.size > tuning().long_row:
            lead = [prod(x.shape[:i]) for i in range(1, len(x.shape))]
            for k in lead:
                cols = x.aval.size // k
                if (k, cols) in shapes and k >= target.parts and (cols > 16 * tuning().unrolled or _made_of(x, (k, cols), rows)):
                    out[n] = cols
                    break
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
    return (rows, cols) if cols > tuning().unrolled else None


def _made_of(x: Node, matrix: tuple[int, int], rows: Mapping[Node, tuple[int, int] | None]) -> bool:
    """Whether elementwise operations and movements make x of what a reduction of such rows gives."""
    todo, seen = [x], {x}
    while todo:
        node = todo.pop()
        if rows.get(node) == matrix:
            return True
        if node.fn.family in ("elementwise", "movement"):
            fresh = [o for o in node.operands if o not in seen]
            seen.update(fresh)
            todo += fresh
    return False


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
        return cast(reduce(fn, cast(x, float64), dims, result, target), float32)     # each factor loses digits
    if _needs_pairs(fn, x, prod(n for n, reduced in runs if reduced), target):
        return view(_product(view(x, tuple(n for n, _ in runs)), [i for i, (_, reduced) in enumerate(runs) if reduced]), result)
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
    if x.fn.name == "permute":                               # as `simplify` would do it, which leaves a reduction that is none of rows
        return reduce(fn, x.operands[0], (0,), (rows,), target)
    if target.traits.row_groups and tuning().short_row <= cols <= tuning().unrolled and rows > 1 and _lies(x):
        return view(bind(PARTIAL, (view(x, (rows, cols, 1)),), {"op": fn, "length": cols}), (rows,))
    full = target.groups(tuning().group) if target.traits.row_groups else target.parts
    if cols > tuning().long_row and 0 < rows < full:
        run = _run(x) if target.traits.vectors else cols
        if run < cols and cols % run == 0 and run > tuning().components:
            if run > tuning().unrolled:
                return _rows(fn, view(bind(fn, (view(x, (rows * cols // run, run)),), {"dim": (1,)}), (rows, cols // run)), target)
            return _rows(fn, view(_columns(fn, view(x, (rows, cols // run, run)), target), (rows, run)), target)
        chunks = min(-(-cols // tuning().row_chunk), -(-tuning().row_chunks * full // rows))
        length = -(-cols // chunks)
        length = -(-length // 64) * 64
        x = view(bind(PARTIAL, (view(x, (rows, cols, 1)),), {"op": fn, "length": length}), (rows, -(-cols // length)))
    return bind(fn, (x,), {"dim": (1,)})


def _run(x: Node) -> int:
    """How many elements of x, one after the other, are made of such as lie one after the other, or are one: the least of all that is read.

    In loops over more, vectors would be read lane by lane: of `(a[:, None] - b)`, of what is shifted along rows, of a transposed matrix.
    (`((a[:, None] - b) ** 2).mean()` of 1000 and 900 numbers: a twentieth of the time.) An element of x may be a sum of a few, that is
    written out: of distances, the squares of coordinates.
    """
    size = least = x.aval.size
    todo, seen = [(x, 1)], {x}                                              # nodes, with their elements for each one of x
    while todo:
        node, each = todo.pop()
        many = size * each
        if node.fn.family == "elementwise" or node.fn.name == "reshape":
            fresh = [o for o in node.operands if o.aval.size == many and o not in seen]
            seen.update(fresh)
            todo += [(o, each) for o in fresh]
            runs = [_repeated(o.shape, node.shape, each) for o in node.operands if 1 < o.aval.size < many]
        elif node.fn.name == "expand":
            runs = [_repeated(node.operands[0].shape, node.shape, each)]
        elif node.fn.family == "reduction" and (few := _last_reduced(node)):
            todo.append((node.operands[0], each * few))
            runs = []
        else:
            runs = [_moved(node)] if node.fn.family == "movement" and each == 1 else []
        least = min(least, *runs, size)
    return least


def _last_reduced(node: Node) -> int:
    """How many elements each of a reduction's is of, if they are few (and written out), and one behind the other; else 0."""
    shape, dims = node.operands[0].shape, node.attrs["dim"]
    first = len(shape) - len(dims)
    few = prod(shape[first:])
    return few if min(dims, default=0) == first and few <= tuning().unrolled else 0


def _repeated(of: tuple[int, ...], shape: tuple[int, ...], each: int) -> int:
    """The run of what is broadcast: the last dimensions that are all repeated, or none of them. In parts of `each` elements."""
    of = (1,) * (len(shape) - len(of)) + of
    while each > 1 and shape and each % shape[-1] == 0:
        each //= shape[-1]
        of, shape = of[:-1], shape[:-1]
    if each > 1:
        return prod(shape)
    run, first = 1, None
    for n, repeated in ((n, m != n) for m, n in zip(reversed(of), reversed(shape), strict=True) if n > 1):
        if first not in (None, repeated):
            break
        run, first = run * n, repeated
    return run


def _moved(node: Node) -> int:
    """The run of what is moved: from the last dimension on in which elements are elsewhere."""
    fn: Any = node.fn
    places = tuple(range(-1, -1 - len(node.shape), -1))                         # any numbers, all different
    found = [(node.operands[k].shape, index) for k, index, _ in fn.locate(places, *node.operands, **node.attrs)]
    if any(len(shape) != len(places) for shape, _ in found):                 # windows
        return node.aval.size
    last = max((d for d, n in enumerate(node.shape) for shape, index in found if shape[d] != n or index[d] != places[d]), default=0)
    return prod(node.shape[last:])


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
    if target.traits.row_groups and target.local_memory:         # as many work-groups as fill the device (lower/rows/rows_gpu.py)
        across = min(32, 1 << (inner - 1).bit_length())
        most = max(tuning().unrolled, tuning().small_columns // inner)       # then the second kernel has next to nothing to do
        chunks = max(1, min(-(-target.groups(tuning().group) // (outer * -(-inner // across))), middle // tuning().column_chunk, most))
        while chunks > 1:
            x = bind(PARTIAL, (x,), {"op": fn, "length": -(-x.shape[1] // chunks)})
            if x.shape[1] <= tuning().unrolled:
                return bind(fn, (x,), {"dim": (1,)})
            chunks = 1
        return bind(PARTIAL, (x,), {"op": fn, "length": x.shape[1]})
    if not target.traits.long_items:
        wanted = -(-target.parts // (outer * inner))
    else:
        wanted = 1 if outer * middle * inner <= tuning().small_columns else -(-target.parts // outer)
    chunks = max(1, min(wanted, tuning().unrolled, middle // 4))
    x = bind(PARTIAL, (x,), {"op": fn, "length": -(-middle // chunks)})
    return _columns(fn, x, target) if x.shape[1] > 1 else x


# ------------------------------------------------------------------------------------------- products of single columns with a vector

_MOST = 256                                  # terms that are added up one after the other


def stacked_terms(graph: Graph) -> Graph:
    """The graph in which products of single columns, put side by side, with a vector are sums of terms.

    `stack([f(t), g(t), ...], -1) @ weights` and `vander(t, n) @ weights` are functions of t: in one loop over its elements, and the matrix
    is never stored. (The powers of 10,000 numbers, 128 of each: 0.1 of the time.)
    """
    products = [node for node in graph if node.fn.name == "matmul" and _suits(node)]
    if not products:
        return graph
    used = uses(graph)
    numbers = {node: n for n, node in enumerate(graph)}
    found = {node for node in products if all(used[n] == 1 for n in _moves(node.operands[0]))}

    def made(node: Node, x: Node, y: Node) -> Node:
        return _sum(x, y, sorted(range(x.shape[-1]), key=_number_of(node, numbers)))

    return replaced(graph, found.__contains__, made)


def few_terms(graph: Graph, target: Target) -> Graph:
    """The graph in which products of many rows of few numbers with a small matrix, or of many small matrices with such a row each, are
    sums of terms: points that are turned, colours.

    Tiles of so few columns leave most lanes empty. As sums each lane is a row, what lies in turn is read and written as whole vectors, and
    what is computed before and behind is fused. (300,000 points by a 3 x 3 matrix: 0.35 of the time; 20,000 by one each: 0.46.)
    """
    if not target.traits.vectors:
        return graph

    def made(node: Node, x: Node, y: Node) -> Node:
        last, total = len(node.shape) - 1, None
        for k in range(x.shape[-1]):
            term = op("mul", *(op("expand", narrow(z, d, k, 1), shape=node.shape) for z, d in ((x, last), (y, last - 1))))
            total = term if total is None else op("add", total, term)
        assert total is not None
        return total

    return replaced(graph, lambda node: node.fn.name == "matmul" and _of_few(node), made)


def _of_few(product: Node) -> bool:
    x, y = product.operands
    most, (rows, k), columns = tuning().components, x.shape[-2:], y.shape[-1]
    if columns == 1 and rows <= most and k < most:           # (rows of four are vectors, and what is made of the sum would be scalar)
        rows = prod(product.shape)
    few = 0 < k <= most and 0 < columns <= most
    return few and x.dtype == product.dtype and x.dtype in (np.float32, np.float64) and rows >= tuning().few_components


def _suits(product: Node) -> bool:
    x, y = product.operands
    columns = _moves(x)[-1]
    if columns.fn.name != "concat" or y.shape[-1] != 1 or x.dtype not in (np.float32, np.float64):
        return False
    single = columns.attrs["dim"] == len(columns.shape) - 1 and all(o.shape[-1] == 1 for o in columns.operands)
    return single and columns.shape[-1] == x.shape[-1] <= _MOST


def _moves(x: Node) -> list[Node]:
    """The reshapes down to what is put together, and that."""
    found = [x]
    while found[-1].fn.name == "reshape":
        found += found[-1].operands
    return found


def _number_of(product: Node, numbers: Mapping[Node, int]) -> Callable[[int], int]:
    """For each column when it is computed: added up in that order, few of those that are made of each other wait for their turn."""
    columns = _moves(product.operands[0])[-1].operands
    return lambda n: numbers[_moves(columns[n])[-1]]


def _sum(x: Node, y: Node, order: Sequence[int]) -> Node:
    columns, shape = _moves(x)[-1].operands, (*x.shape[:-1], 1)
    total: Node | None = None
    for n in order:
        weight = op("expand", narrow(y, len(y.shape) - 2, n, 1), shape=shape)
        term = op("mul", op("reshape", columns[n], shape=shape), weight)
        total = term if total is None else op("add", total, term)
    assert total is not None
    return total


# ----------------------------------------------------------------------------------------- products where there is no float64
#
# Each multiplication rounds, and what it loses the product has lost, in whatever order they are done. So they are done with pairs: a
# number, and what rounding lost of it (see mathlib/pairs.py). Sixteen parts of the factors are multiplied element by element, and so
# is what they make, until one is left. An element of all the parts is one work-item's, so neighbours read neighbours.


class _Times(Elementwise):
    """A pair (a, a_low) times a number b or a pair (b, b_low): the number of the result, or what it lacks.

    Internal to the code generator (it has no name in the registry).
    """

    differentiable, flops = False, 8
    of: Callable[[Any, Any], Any]

    def __init__(self, name: str, of: Callable[[Any, Any], Any]) -> None:
        self.__dict__.update(name=name, of=of)

    def numpy(self, *operands: Any) -> Any:
        a, a_low, b, *b_low = (np.asarray(x, np.float64) for x in operands)
        exact = (a + a_low) * (b + b_low[0] if b_low else b)
        return self.of(exact.astype(np.float32), exact)

    def opencl(self, *operands: str) -> str:
        return f"tg_pair_{self.name}({', '.join(operands)})"


_NUMBER = _Times("times", lambda number, exact: number)
_LOW = _Times("times_low", lambda number, exact: np.where(np.isfinite(number), exact - number, 0).astype(np.float32))


def _needs_pairs(fn: Operation, x: Node, factors: int, target: Target) -> bool:
    """Whether a reduction is a product that loses digits in the numbers that the device has."""
    return fn.name == "prod" and x.dtype == float32 and not target.fp64 and factors > tuning().unrolled


def _product(x: Node, dims: list[int]) -> Node:
    """The product of x over dims, which have one element then."""
    factors: tuple[Node, ...] = (x,)                          # numbers, or pairs
    for dim in dims:
        while factors[0].shape[dim] > 1:
            factors = _multiplied(factors, dim)
    return factors[0]


def _multiplied(factors: tuple[Node, ...], dim: int) -> tuple[Node, ...]:
    """Up to sixteen parts of the factors along dim, multiplied element by element."""
    n = factors[0].shape[dim]
    length = -(-n // tuning().unrolled)
    first, *others = (tuple(_part(x, dim, start, length, float(x is factors[0])) for x in factors) for start in range(0, n, length))
    number, low = first if len(first) == 2 else (first[0], filled(0, first[0]))
    for other in others:
        number, low = (bind(fn, (number, low, *other), {}) for fn in (_NUMBER, _LOW))
    return number, low


def _part(x: Node, dim: int, start: int, length: int, missing: float) -> Node:
    """`length` elements from `start` along dim; those that are not there are `missing`."""
    there = min(length, x.shape[dim] - start)
    none = (0,) * len(x.shape)
    return pad(narrow(x, dim, start, there), none, tuple((length - there) * (d == dim) for d in range(len(x.shape))), None, missing)
