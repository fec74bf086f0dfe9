"""Products: matmul and its relatives, einsum, linear, tensordot. All lower to permute, reshape, matmul and sum.
Dtypes are promoted; ShapeError tells which sizes do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import broadcast_shapes, common_dtype
from tracegrad.graph.operators import Operators, functional, linalg, method, public
from tracegrad.graph.primitive import cast
from tracegrad.ops.arguments import on_nodes, one_dim, rounded_once
from tracegrad.ops.arrays.complex_numbers import conj
from tracegrad.ops.arrays.shaping.diagonals import diagonal
from tracegrad.ops.arrays.shaping.reshaping import unsqueeze
from tracegrad.ops.primitives import contraction
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.reduction import total
from tracegrad.support import dtypes

Array = Any      # a Node or a Tensor


def _operands(name: str, *xs: Any) -> list[Node]:
    """Tensors of numbers, of the dtype that they promote to."""
    for x in xs:
        if not isinstance(x, Node):
            raise DTypeError(f"{name}: expected Tensors, got {type(x).__name__}; use tg.tensor(...) for arrays and lists")
    out = common_dtype(xs, name=name)
    if out[0].dtype == dtypes.bool_:
        raise DTypeError(f"{name}: does not take bools; cast first, for example x.to(tg.float32)")
    return out


# --------------------------------------------------------------------------------------------------------------- products


@public("matmul")
@on_nodes
def matmul(input: Array, other: Array) -> Array:
    """The matrix product, by the ranks: vector·vector is a dot product, matrix·vector and vector·matrix drop the missing dimension,

    and leading (batch) dimensions broadcast together. dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> tg.matmul(tg.ones(2, 3), tg.ones(3))
    """
    a, b = _operands("matmul", input, other)
    if not a.ndim or not b.ndim:
        raise ShapeError(f"matmul: takes at least 1-d tensors, got {input.shape} and {other.shape}; use * for scalars")
    left, right = a.ndim == 1, b.ndim == 1
    a = mv.reshape(a, (1, *a.shape)) if left else a
    b = mv.reshape(b, (*b.shape, 1)) if right else b
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"matmul: {tuple(input.shape)} and {tuple(other.shape)} do not fit: the last size of the first ({a.shape[-1]}) "
                         f"must equal the {'only' if right else 'last but one'} size of the second ({b.shape[-2]}); transpose one of them")
    y = _batched(a, b)
    shape = y.shape
    if left:
        shape = (*shape[:-2], shape[-1])
    if right:
        shape = shape[:-1]
    return mv.reshape(y, shape)


def _batched(a: Node, b: Node) -> Node:
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.ndim == 2 and a.ndim > 2:                          # one large product of all rows
        y = contraction.matmul(mv.reshape(a, (prod(a.shape[:-1]), k)), b)
        return mv.reshape(y, (*a.shape[:-1], n))
    batch = broadcast_shapes("matmul", [a.shape[:-2], b.shape[:-2]])
    return contraction.matmul(mv.expand(a, (*batch, m, k)), mv.expand(b, (*batch, k, n)))


@public("mm")
@on_nodes
def mm(input: Array, mat2: Array) -> Array:
    """(M, K) times (K, N). dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> tg.mm(tg.ones(2, 3), tg.ones(3, 2))
    """
    _ranks("mm", (input, 2), (mat2, 2))
    if input.shape[1] != mat2.shape[0]:
        raise ShapeError(f"mm: {input.shape} and {mat2.shape} do not fit: the last size of the first must equal the first of the second")
    return matmul(input, mat2)


@public("bmm")
@on_nodes
def bmm(input: Array, mat2: Array) -> Array:
    """(B, M, K) times (B, K, N). dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> tg.bmm(tg.ones(3, 2, 4), tg.ones(3, 4, 5)).shape
    (3, 2, 5)
    """
    _ranks("bmm", (input, 3), (mat2, 3))
    if input.shape[0] != mat2.shape[0]:
        raise ShapeError(f"bmm: {input.shape} and {mat2.shape} differ in the batch size; use matmul to broadcast")
    if input.shape[2] != mat2.shape[1]:
        raise ShapeError(f"bmm: {input.shape} and {mat2.shape} do not fit: the last size of the first must equal the second of the second")
    return matmul(input, mat2)


@public("mv")
@on_nodes
def mv_(input: Array, vec: Array) -> Array:
    """(M, K) times (K,). dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> tg.mv(tg.ones(2, 3), tg.arange(3.0))
    Tensor([3., 3.], device='cpu')
    """
    _ranks("mv", (input, 2), (vec, 1))
    return matmul(input, vec)


@public("dot")
@on_nodes
@rounded_once
def dot(input: Array, other: Array) -> Array:
    """The sum of products of two vectors. (N,), (N,) -> (). dtype: any but bool, promoted. Raises ShapeError for other shapes.

    >>> tg.dot(tg.tensor([1.0, 2.0]), tg.tensor([3.0, 4.0]))
    """
    _ranks("dot", (input, 1), (other, 1))
    if input.shape != other.shape:
        raise ShapeError(f"dot: vectors of {input.shape[0]} and {other.shape[0]} elements do not fit")
    x, y = _operands("dot", input, other)
    return total(x * y, (0,))


@public("inner")
@on_nodes
def inner(input: Array, other: Array) -> Array:
    """Products summed over the last dimensions, which are equal: (*A, K) and (*B, K) to (*A, *B); for a 0-d tensor the plain product.
    dtype: any but bool, promoted. Raises ShapeError where sizes differ.

    >>> tg.inner(tg.ones(2, 3), tg.ones(4, 3)).shape
    (2, 4)
    """
    x, y = _operands("inner", input, other)
    if not x.ndim or not y.ndim:
        return x * y
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"inner: the last sizes of {x.shape} and {y.shape} differ; transpose one of them")
    return dot(x, y) if x.ndim == y.ndim == 1 else tensordot(x, y, ([-1], [-1]))


@public("outer", "ger")
@on_nodes
def outer(input: Array, vec2: Array) -> Array:
    """All products of the elements of two vectors, (M,) and (N,) to (M, N). dtype: any, promoted. Raises ShapeError for other shapes.

    >>> tg.outer(tg.tensor([1.0, 2.0]), tg.tensor([3.0, 4.0]))
    """
    _ranks("outer", (input, 1), (vec2, 1))
    return mv.reshape(input, (*input.shape, 1)) * vec2


@method("trace")                     # only a method: tg.trace is the decorator
@on_nodes
def trace(input: Array) -> Array:
    """The sum of a matrix's diagonal; of integers int64, as sum."""
    _ranks("trace", (input, 2))
    along = diagonal(input)
    return total(cast(along, dtypes.int64) if along.dtype.kind in "biu" else along, (0,))


@public("addmm")
@on_nodes
def addmm(input: Array, mat1: Array, mat2: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """beta * input + alpha * (mat1 @ mat2); input broadcasts to the product, and counts for nothing (NaNs either) if beta is 0.
    (n, p), (n, m), (m, p). dtype: any but bool. Raises ShapeError where sizes do not fit.

    >>> tg.addmm(tg.ones(2), tg.ones(2, 3), tg.ones(3, 2), alpha=0.5)
    Tensor([[2.5, 2.5],
            [2.5, 2.5]], device='cpu')
    """
    return _added("addmm", mm(mat1, mat2), input, beta, alpha)


@public("baddbmm")
@on_nodes
def baddbmm(input: Array, batch1: Array, batch2: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """beta * input + alpha * (batch1 @ batch2), batch by batch; as addmm.
    (b, n, p), (b, n, m), (b, m, p). dtype: any but bool. Raises ShapeError where sizes do not fit.

    >>> tg.baddbmm(tg.zeros(3, 2, 5), tg.ones(3, 2, 4), tg.ones(3, 4, 5)).shape
    (3, 2, 5)
    """
    return _added("baddbmm", bmm(batch1, batch2), input, beta, alpha)


@public("addbmm")
@on_nodes
def addbmm(input: Array, batch1: Array, batch2: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """beta * input + alpha * the sum over b of batch1[b] @ batch2[b]: (n, p), (b, n, m), (b, m, p) -> (n, p).
    dtype: any but bool. Raises ShapeError where sizes do not fit.

    >>> tg.addbmm(tg.zeros(2, 5), tg.ones(3, 2, 4), tg.ones(3, 4, 5)).shape
    (2, 5)
    """
    _ranks("addbmm", (batch1, 3), (batch2, 3))
    b, n, m = batch1.shape
    if batch2.shape[:2] != (b, m):
        raise ShapeError(f"addbmm: batch1 {batch1.shape} and batch2 {batch2.shape} do not fit: they are (b, n, m) and (b, m, p)")
    rows = mv.reshape(mv.permute(batch1, (1, 0, 2)), (n, b * m))
    return _added("addbmm", matmul(rows, mv.reshape(batch2, (b * m, batch2.shape[2]))), input, beta, alpha)


@public("addmv")
@on_nodes
def addmv(input: Array, mat: Array, vec: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """beta * input + alpha * mat @ vec: (n), (n, m), (m) -> (n). dtype: any but bool. Raises ShapeError where sizes do not fit.

    >>> tg.addmv(tg.ones(2), tg.ones(2, 3), tg.ones(3))
    Tensor([4., 4.], device='cpu')
    """
    _ranks("addmv", (mat, 2), (vec, 1))
    return _added("addmv", matmul(mat, vec), input, beta, alpha)


@public("addr")
@on_nodes
def addr(input: Array, vec1: Array, vec2: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """beta * input + alpha * the outer product of vec1 and vec2: (n, m), (n), (m) -> (n, m).
    dtype: any. Raises ShapeError where sizes do not fit.

    >>> tg.addr(tg.zeros(2, 2), tg.tensor([1.0, 2.0]), tg.tensor([3.0, 4.0]))
    Tensor([[3., 4.],
            [6., 8.]], device='cpu')
    """
    _ranks("addr", (vec1, 1), (vec2, 1))
    return _added("addr", outer(vec1, vec2), input, beta, alpha)


@public("vdot")
@on_nodes
def vdot(input: Array, other: Array) -> Array:
    """The dot product of two vectors, the first one conjugated.
    (N,), (N,) -> (). dtype: any but bool, promoted. Raises ShapeError for other shapes.

    >>> tg.vdot(tg.tensor([1j, 2.0]), tg.tensor([1j, 1.0]))
    Tensor(3.+0.j, device='cpu')
    """
    return dot(conj(input), other)


@linalg()
@on_nodes
def vecdot(x: Array, y: Array, *, dim: int = -1) -> Array:
    """Products summed along dim, those of x conjugated; x and y broadcast.
    dtype: any, promoted. Raises ShapeError where shapes do not broadcast.

    >>> tg.linalg.vecdot(tg.tensor([[1.0, 2.0], [3.0, 4.0]]), tg.tensor([1.0, 1.0]))
    Tensor([3., 7.], device='cpu')
    """
    a, b = common_dtype([x, y], name="vecdot")
    z = conj(a) * b
    return total(z, (one_dim("vecdot", dim, z.ndim),)) if z.ndim else z


def _added(name: str, product: Node, input: Node, beta: float, alpha: float) -> Node:
    if broadcast_shapes(name, [input.shape, product.shape]) != product.shape:
        raise ShapeError(f"{name}: input {input.shape} does not broadcast to the product, {product.shape}")
    dtype = common_dtype([product, input])[0].dtype
    if dtypes.is_half(dtype):                               # rounded once, at the end
        product, input = contraction.unrounded(product), cast(input, dtypes.float32)
    y = product if alpha == 1 else product * alpha
    y = y if beta == 0 else y + (input if beta == 1 else input * beta)
    return cast(y, dtype) if dtypes.is_half(dtype) else y


@functional
@on_nodes
def linear(input: Array, weight: Array, bias: Array = None) -> Array:
    """input (*, in) times weight (out, in) transposed, plus bias (out): (*, out).
    dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> nn.functional.linear(tg.ones(2, 3), tg.ones(4, 3), tg.zeros(4))
    """
    x, w = _operands("linear", input, weight)
    if w.ndim not in (1, 2) or not x.ndim or x.shape[-1] != w.shape[-1]:
        flat = x.ndim > 2 and prod(x.shape[1:]) == w.shape[-1]
        way = "use input.flatten(1)" if flat else f"Linear{(*x.shape[-1:], *w.shape[:-1])} takes this input"
        raise ShapeError(f"linear: input {input.shape} and weight {weight.shape} do not fit: their last sizes must be equal; {way}")
    y = matmul(x, mv.permute(w, tuple(reversed(range(w.ndim)))))
    if bias is not None and broadcast_shapes("linear", [bias.shape, y.shape]) != y.shape:
        raise ShapeError(f"linear: bias {bias.shape} does not broadcast to the product {y.shape}; it must be ({w.shape[0]},)")
    return y if bias is None else contraction.plus(y, bias)


def _ranks(name: str, *wanted: tuple[Any, int]) -> None:
    if any(not isinstance(x, Node) or x.ndim != n for x, n in wanted):
        raise ShapeError(f"{name}: takes {' and '.join(f'{n}-d' for _, n in wanted)} tensors, got "
                         f"{' and '.join(str(getattr(x, 'shape', type(x).__name__)) for x, _ in wanted)}; matmul and einsum take others")


@public("tensordot", method=False)
@on_nodes
def tensordot(a: Array, b: Array, dims: Any = 2) -> Array:
    """Products summed over pairs of dimensions: the last `dims` of a with the first of b, or dims = (dims of a, dims of b).
    dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> tg.tensordot(tg.ones(2, 3), tg.ones(3, 4), 1)
    """
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError(f"tensordot: dims must be from 0 to {min(a.ndim, b.ndim)} for {a.shape} and {b.shape}, got {dims}")
        da, db = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        da, db = ([one_dim("tensordot", d, x.ndim) for d in (g if isinstance(g, (list, tuple)) else [g])]
                  for g, x in zip(dims, (a, b), strict=True))
    names_a, names_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    if len(da) != len(db):
        raise ArgumentError(f"tensordot: {len(da)} dims of the first tensor, {len(db)} of the second; they go in pairs")
    for i, j in zip(da, db, strict=True):
        if a.shape[i] != b.shape[j] and 1 not in (a.shape[i], b.shape[j]):
            raise ShapeError(f"tensordot: dimension {i} of {a.shape} and dimension {j} of {b.shape} differ")
        names_b[j] = names_a[i]
    paired = {names_a[i] for i in da}
    x, y = _operands("tensordot", a, b)
    for i, j in zip(da, db, strict=True):                   # a size of 1 broadcasts: the other one is summed
        if x.shape[i] != y.shape[j]:
            x, y = (v if v.shape[d] == 1 else unsqueeze(total(v, (d,)), d) for v, d in ((x, i), (y, j)))
    return _contract(x, names_a, y, names_b, [n for n in names_a + names_b if n not in paired])


_FACTORS = Operators, np.ndarray                 # an array is refused: NumPy's own product would leave the graph without a word
Operators.__matmul__ = lambda self, other: matmul(self, other) if isinstance(other, _FACTORS) else NotImplemented  # type: ignore[method-assign]
Operators.__rmatmul__ = lambda self, other: matmul(other, self) if isinstance(other, _FACTORS) else NotImplemented  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------------------ einsum


@public("einsum", method=False)
@on_nodes
def einsum(equation: Any, *operands: Any) -> Array:
    """Einstein's summation: "ij,jk->ik". Repeated letters take diagonals, "..." stands for any dimensions, which broadcast, and without

    "->" the letters that occur once are the result's, in alphabetical order. Operands may also be one list. Instead of an equation each
    operand may be followed by the list of its dimensions (0 to 51 and ...), and all by the result's: einsum(x, [0, 1], y, [1, 2], [0, 2]).
    dtype: any but bool, promoted. Raises ArgumentError for an equation that does not fit, ShapeError for sizes that do not.

    >>> tg.einsum("ij,jk->ik", tg.ones(2, 3), tg.ones(3, 4))
    """
    if isinstance(equation, Operators):
        equation, operands = _of_lists((equation, *operands))
    if not isinstance(equation, str):
        raise ArgumentError(f"einsum: the equation must be a string such as 'ij,jk->ik', got {type(equation).__name__}")
    xs = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    xs = _operands("einsum", *xs)
    inputs, output = _parse(equation, [x.shape for x in xs])
    sizes: dict[Any, int] = {}
    for i, (names, x) in enumerate(zip(inputs, xs, strict=True)):
        own: dict[Any, int] = {}
        for name, n in zip(names, x.shape, strict=True):
            if sizes.setdefault(name, n) != n or own.setdefault(name, n) != n:
                if 1 not in (sizes[name], n) or own.setdefault(name, n) != n:       # a diagonal does not broadcast
                    raise ShapeError(f"einsum: {_shown(name)} of {equation!r} is {sizes[name]} in one place, and {n} "
                                     f"in operand {i} of shape {x.shape}")
                sizes[name] = max(sizes[name], n) if n else 0
    terms = [_diagonals(x, list(names), sizes) for x, names in zip(xs, inputs, strict=True)]
    for pair in _path(terms, output, sizes):
        chosen = [terms[i] for i in pair]
        terms = [t for i, t in enumerate(terms) if i not in pair]
        needed = set(output).union(*[names for _, names in terms])
        (x, a), (y, b) = chosen
        keep = [n for n in dict.fromkeys(a + b if terms else [*output, *a, *b]) if n in needed and n in (*a, *b)]
        terms.append((_contract(x, a, y, b, keep), keep))
    x, names = terms[0]
    gone = [i for i, n in enumerate(names) if n not in output]
    x, names = total(x, tuple(gone)), [n for n in names if n in output]
    x = mv.permute(x, tuple(names.index(n) for n in output))
    return mv.expand(x, tuple(sizes[n] for n in output))


def _of_lists(given: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The equation and the operands of x, [0, 1], y, [1, 2], perhaps with the result's dimensions behind."""

    def letters(dims: Any) -> str:
        if not isinstance(dims, (list, tuple)) or any(d is not ... and not (isinstance(d, int) and 0 <= d < 52) for d in dims):
            raise ArgumentError(f"einsum: an operand is followed by the list of its dimensions, numbers from 0 to 51 and ..., got {dims!r}")
        return "".join("..." if d is ... else ascii_letters[(d + 26) % 52] for d in dims)          # in torch 0 is "A", 26 is "a"

    equation = ",".join(letters(dims) for dims in given[1::2])
    return equation if len(given) % 2 == 0 else f"{equation}->{letters(given[-1])}", tuple(given[:len(given) // 2 * 2:2])


def _shown(name: Any) -> str:
    return f"the letter {name!r}" if isinstance(name, str) else "a dimension of '...'"


def _parse(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[list[Any]], list[Any]]:
    """The names of each operand's dimensions, and of the result's: letters, and numbers (counted from the right, negative) for '...'."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(shapes):
        raise ArgumentError(f"einsum: {equation!r} names {len(parts)} operands, {len(shapes)} were given")
    widest = 0
    inputs: list[list[Any]] = []
    for i, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        head, dots, tail = part.partition("...")
        if not (head + tail).replace(".", "!").isalpha() and head + tail:
            raise ArgumentError(f"einsum: {part!r} in {equation!r} must hold letters and at most one '...'")
        rest = len(shape) - len(head) - len(tail)
        if rest < 0 or (rest and not dots):
            raise ShapeError(f"einsum: operand {i} of shape {shape} does not have the dimensions of {part!r} in {equation!r}")
        widest = max(widest, rest)
        inputs.append([*head, *range(-rest, 0), *tail])
    every = [n for names in inputs for n in names if isinstance(n, str)]
    if arrow:
        head, dots, tail = right.partition("...")
        output: list[Any] = [*head, *(range(-widest, 0) if dots else ()), *tail]
        wrong = [n for n in head + tail if n not in every or (head + tail).count(n) > 1]
        if wrong:
            raise ArgumentError(f"einsum: {wrong[0]!r} in the result of {equation!r} must occur there once, and in an operand")
    else:
        output = [*range(-widest, 0), *sorted(n for n in set(every) if every.count(n) == 1)]
    return inputs, output


def _diagonals(x: Node, names: list[Any], sizes: dict[Any, int]) -> tuple[Node, list[Any]]:
    """x with each name once; dimensions of size 1 that stand for larger ones are dropped (they broadcast)."""
    gone = [i for i, n in enumerate(names) if x.shape[i] == 1 and sizes[n] != 1]
    x = mv.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))
    dropped = [names[i] for i in gone]
    names = [n for i, n in enumerate(names) if i not in gone]
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            i = names.index(name)
            j = names.index(name, i + 1)
            x = diagonal(x, 0, i, j)
            names = [n for k, n in enumerate(names) if k not in (i, j)] + [name]
    for name in dict.fromkeys(dropped):                     # a sum over a broadcast dimension counts each element so many times
        if name not in names:
            x = mv.expand(mv.reshape(x, (*x.shape, 1)), (*x.shape, sizes[name]))
            names = [*names, name]
    return x, names


def _path(terms: list[tuple[Node, list[Any]]], output: list[Any], sizes: dict[Any, int]) -> list[tuple[int, int]]:
    """Which pairs to contract, in order: numpy's greedy choice."""
    if len(terms) < 3:
        return [(0, 1)] * (len(terms) - 1)
    numbers = {n: i for i, n in enumerate(sizes)}
    args: list[Any] = []
    for x, names in terms:
        args += [np.broadcast_to(np.float32(0), x.shape), [numbers[n] for n in names]]
    steps = np.einsum_path(*args, [numbers[n] for n in output], optimize="greedy")[0][1:]
    pairs: list[tuple[int, int]] = []
    count = len(terms)
    for step in steps:                                      # a step of several operands becomes a chain of pairs
        group = sorted(step)
        while len(group) > 1:
            i, j = group[0], group[1]
            pairs.append((i, j))
            count -= 1
            group = [g - (g > i) - (g > j) for g in group[2:]] + [count - 1]
    return pairs


def _contract(x: Node, a: list[Any], y: Node, b: list[Any], keep: list[Any]) -> Node:
    """The product of x (dims named a) and y (dims named b), summed over the names that are not kept; dims in the order of `keep`."""
    kept = set(keep)
    if keep and keep[-1] not in b:                          # the last dimension is the product's columns: its rows are the result's
        x, a, y, b = y, b, x, a
    lone = tuple(i for i, n in enumerate(a) if n not in kept and n not in b)
    x, a = total(x, lone), [n for n in a if n in kept or n in b]
    lone = tuple(i for i, n in enumerate(b) if n not in kept and n not in a)
    y, b = total(y, lone), [n for n in b if n in kept or n in a]
    batch = [n for n in a if n in b and n in kept]
    summed = [n for n in a if n in b and n not in kept]
    rows, columns = [n for n in a if n not in b], [n for n in b if n not in a]
    size = {**dict(zip(a, x.shape, strict=True)), **dict(zip(b, y.shape, strict=True))}

    def arranged(z: Node, names: list[Any], order: list[Any]) -> Node:
        return mv.permute(z, tuple(names.index(n) for n in order))

    def lengths(names: list[Any]) -> tuple[int, ...]:
        return tuple(size[n] for n in names)

    x, y = arranged(x, a, batch + rows + summed), arranged(y, b, batch + summed + columns)
    if not summed:
        x = mv.reshape(x, (*lengths(batch + rows), *[1] * len(columns)))
        z = x * mv.reshape(y, (*lengths(batch), *[1] * len(rows), *lengths(columns)))
    elif not rows and not columns:                          # products along the rows: no matrices in sight
        z = total(x * y, tuple(range(len(batch), len(batch) + len(summed))))
    else:
        m, k, n = prod(lengths(rows)), prod(lengths(summed)), prod(lengths(columns))
        one = (prod(lengths(batch)),) if batch else ()
        z = contraction.matmul(mv.reshape(x, (*one, m, k)), mv.reshape(y, (*one, k, n)))
        z = mv.reshape(z, lengths(batch + rows + columns))
    return arranged(z, batch + rows + columns, keep)
