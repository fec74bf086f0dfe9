"""Jacobians and Hessians of which most entries are zero: sparse_jacobian, sparse_hessian, hessian_diagonal.

The pattern comes from the function's graph (`autodiff/sparsity.py`). Columns that share no row get one colour and are computed in one
product (`autodiff/coloring.py`), all colours in one batch; each entry is then found in the product of its column's colour.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
import optree

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.coloring import color_apart, color_columns, color_star
from tracegrad.autodiff.known_values import contents, digest, is_leaf
from tracegrad.autodiff.sparsity import pattern
from tracegrad.autograd.jacobians import JacobianCall, at_seeds, only_real
from tracegrad.autograd.transforms import grad, pushed_forward, release
from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.execute.devices import upload
from tracegrad.graph.canonical import Key
from tracegrad.graph.ir import Aval, Node, Size, topological
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.operators import PUBLIC, named
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, data, iota, placeholder
from tracegrad.ops.arrays.indexing import take_rows
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.movement import expand, narrow, reshape
from tracegrad.ops.primitives.reduction import total
from tracegrad.support.cache import Cache
from tracegrad.support.dtypes import dtype_kind, int64
from tracegrad.support.modes import enable_grad, state
from tracegrad.tensors.scopes import Examples
from tracegrad.tensors.tensor import Tensor

_VARIABLE = REGISTRY["variable"]


@dataclass(frozen=True, eq=False, repr=False)
class SparseCOO:
    """A tensor of `shape` of which only some entries are stored: values[k] is the one at indices[:, k], and all others are zero.

    indices: int64 (dimensions, entries), sorted, each once. values: (entries,); an entry that is stored may be zero as well.
    `to_dense()` raises ShapeError where they do not fit. `values` and it are differentiable. A SparseCOO passes
    through `trace`, `vmap` and other transforms as a container of the two tensors.

    >>> j = tg.func.sparse_jacobian(lambda x: x[1:] * x[:-1])(tg.tensor([1.0, 2.0, 3.0]))
    >>> j
    SparseCOO(shape=(2, 3), 4 entries, float32)
    >>> j.indices.tolist(), j.values.tolist()
    ([[0, 0, 1, 1], [0, 1, 1, 2]], [2.0, 1.0, 3.0, 2.0])
    >>> j.to_dense()
    Tensor([[2., 1., 0.],
            [0., 3., 2.]], device='cpu')
    """

    indices: Tensor
    values: Tensor
    shape: Size

    def to_dense(self) -> Tensor:
        """The whole tensor. ShapeError unless indices are (dimensions of shape, entries) and values (entries,)."""
        wanted = (len(self.shape), *self.values.shape)
        if self.values.ndim != 1 or self.indices.shape != wanted:
            raise ShapeError(f"SparseCOO.to_dense: of shape {tuple(self.shape)} and values {self.values.shape}, indices must be {wanted}, "
                             f"got {self.indices.shape}; values are (entries,)")
        strides = np.cumprod([1, *self.shape[:0:-1]])[::-1] if self.shape else np.zeros(0, np.int64)
        steps = PUBLIC["tensor"](strides.tolist(), dtype=np.int64, device=self.values.device)
        place = (self.indices * steps[:, None]).sum(0)
        empty = PUBLIC["zeros"](prod(self.shape), dtype=self.values.dtype, device=self.values.device)
        return empty.scatter(0, place, self.values).reshape(self.shape)  # type: ignore[no-any-return]

    def to_scipy(self) -> Any:
        """A `scipy.sparse.coo_array` with the values as they are now. ArgumentError if scipy cannot be imported.

        >>> tg.func.sparse_hessian(lambda x: (x ** 3).sum())(tg.ones(4)).to_scipy().tocsr().nnz
        4
        """
        try:
            library = import_module("scipy.sparse")
        except ImportError:
            raise ArgumentError("to_scipy: scipy is not installed; install it, or use `indices` and `values`") from None
        return library.coo_array((self.values.detach().numpy(), tuple(self.indices.numpy())), shape=tuple(self.shape))

    def __repr__(self) -> str:
        count = self.values.shape[-1]
        return f"SparseCOO(shape={tuple(self.shape)}, {count} {'entry' if count == 1 else 'entries'}, {self.values.dtype})"


optree.register_pytree_node(SparseCOO, lambda x: ((x.indices, x.values), x.shape, None),  # type: ignore[arg-type, attr-defined]
                            lambda shape, parts: SparseCOO(*parts, shape),  # type: ignore[arg-type, call-arg, return-value]
                            namespace=optree.registry.__GLOBAL_NAMESPACE)


# ---------------------------------------------------------------------------------------------------------------- pattern and colours


class _Plan:
    """How the entries are computed: their rows and columns, and the colours of columns (or of rows, by reverse mode)."""

    def __init__(self, rows: Any, columns: Any, forward: bool, colors: Any) -> None:
        self.rows, self.columns, self.forward, self.colors = rows, columns, forward, colors
        self.count = int(colors.max(initial=-1)) + 1
        self._arrays: dict[Any, Tensor] = {}
        self._blocks: dict[tuple[int, int], tuple[Any, Any]] = {}

    def block(self, row: int, node: Node, column: int, v: Node, width: int) -> tuple[Any, Any]:
        """Of the block of outputs from `row` on and variables from `column` on: the places of its entries in it, and in the products, whose
        rows have `width` elements.
        """
        if (row, column) not in self._blocks:
            color, place = self.places
            here = np.flatnonzero(_within(self.rows, row, node) & _within(self.columns, column, v))
            number = (self.rows[here] - row) * v.aval.size + self.columns[here] - column
            self._blocks[row, column] = number, (color * width + place)[here]
        return self._blocks[row, column]

    def array(self, name: Any, device: Any, made: Callable[[], Any]) -> Tensor:
        """The array made(), on a device. Calls inside and outside of traces share the tensor; to a trace it is a constant of its body."""
        if (name, device) not in self._arrays:
            array = np.ascontiguousarray(made())
            self._arrays[name, device] = Tensor(data(Aval(array.shape, array.dtype), upload(device, array, own=True)), device)
        found = self._arrays[name, device]
        if state.trace is not None:
            state.trace.adopt(found)
        return found

    @property
    def places(self) -> tuple[Any, Any]:
        """(colour, row or column) of each entry in the products."""
        return (self.colors[self.columns], self.rows) if self.forward else (self.colors[self.rows], self.columns)


class _Symmetric(_Plan):
    """The same of a symmetric matrix: an entry may be read in the place of its mirror image."""

    @property
    def places(self) -> tuple[Any, Any]:
        _, back, times = np.unique(self.rows * self.count + self.colors[self.columns], return_inverse=True, return_counts=True)
        alone = times[back.reshape(-1)] == 1
        color = np.where(alone, self.colors[self.columns], self.colors[self.rows])
        return color, np.where(alone, self.rows, self.columns)


def _jacobian_plan(call: str, outputs: Sequence[Node], variables: Sequence[Node], told: Mapping[Node, Any]) -> tuple[_Plan, list[Node]]:
    rows, columns, read = pattern(call, outputs, variables, told)
    by_column = color_columns(rows, columns, sum(v.aval.size for v in variables))
    by_row = color_columns(columns, rows, sum(o.aval.size for o in outputs))
    forward = by_column.max(initial=-1) <= by_row.max(initial=-1)
    return _Plan(rows, columns, forward, by_column if forward else by_row), read


def _symmetric_plan(colored: Callable[..., Any]) -> Callable[..., tuple[_Plan, list[Node]]]:
    def made(call: str, outputs: Sequence[Node], variables: Sequence[Node], told: Mapping[Node, Any]) -> tuple[_Plan, list[Node]]:
        rows, columns, read = pattern(call, outputs, variables, told)
        size = sum(v.aval.size for v in variables)
        both = np.intersect1d(rows * size + columns, columns * size + rows)       # the matrix is symmetric
        rows, columns = both // max(1, size), both % max(1, size)
        return _Symmetric(rows, columns, True, colored(rows, columns, size)), read

    return made


_KINDS = {"sparse_jacobian": _jacobian_plan, "sparse_hessian": _symmetric_plan(color_star),
          "hessian_diagonal": _symmetric_plan(color_apart)}
_plans = Cache("sparsity patterns", 1 << 22, weigh=lambda key, value: len(value[0].rows) if isinstance(value, tuple) else 100)


def _plan(call: JacobianCall, known: Sequence[_Known]) -> _Plan:
    """The plan of a program; the one that is known of an equal program, if the indices and masks that it was made from are the same."""
    name, outputs, variables, told = call.name, call.nodes, call.variables, {k.node: k.values for k in known}
    program, order = _program(outputs, variables)
    if program is None:
        return _KINDS[name](name, outputs, variables, told)[0]
    number = {node: k for k, node in enumerate(order)}
    key = name, program, tuple((number[node], digest(x)) for node, x in told.items() if node in number)
    places = _plans[key]
    if places is not None:
        found = _plans[*key, tuple(contents(order[k]) for k in places)]
        if found is not None:
            _plans.hits += 1
            return found[0]  # type: ignore[no-any-return]
    plan, read = _KINDS[name](name, outputs, variables, told)
    _plans[key] = [number[leaf] for leaf in read]
    _plans[*key, tuple(contents(leaf) for leaf in read)] = (plan,)
    return plan


def _program(outputs: Sequence[Node], variables: Sequence[Node]) -> tuple[Key | None, list[Node]]:
    """(what tells the program from `variables` to `outputs` from others, its nodes); None of one that is another at every call."""
    number = {v: k for k, v in enumerate(variables)}
    order = [*variables, *(n for n in topological(outputs, number.__contains__) if n not in number)]
    parts: list[Any] = [v.aval for v in variables]
    for node in order[len(variables):]:
        number[node] = len(number)
        fn = node.fn
        if isinstance(fn, CustomCall) and not fn.structural:
            return None, order
        told = () if fn is _VARIABLE or not (fn.constant or fn.number or node.operands) or is_leaf(node) else tuple(node.attrs.items())
        parts.append((fn, node.aval, node.needs_grad, is_leaf(node), told, tuple([number[o] for o in node.operands])))
    return Key((*parts, *[number[o] for o in outputs])), order


# ------------------------------------------------------------------------------------------------------------- what is told of values


@dataclass(frozen=True, eq=False)
class _Known:
    """What a call was told that a tensor holds: `what` calls it in errors."""

    what: str
    node: Node
    values: Any


def _told(call: str, known: Sequence[Any]) -> list[_Known]:
    found = []
    for k, pair in enumerate(known):
        what = f"known[{k}]"
        tensor, given = pair if isinstance(pair, Sequence) and len(pair) == 2 else (None, pair)
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{call}: {what} must be a pair of a tensor and the values that it will hold, got {pair!r}")
        array = given.detach().numpy() if isinstance(given, Tensor) else np.asarray(given)
        if array.shape != tuple(tensor.shape):
            raise ShapeError(f"{call}: {what} has a tensor of shape {tuple(tensor.shape)} and values of shape {array.shape}; "
                             "give one for each element")
        with np.errstate(invalid="ignore"):
            values = array.astype(tensor.dtype)
        if dtype_kind(tensor.dtype) in "iub" and not np.array_equal(values, array):
            raise DTypeError(f"{call}: {what} has a tensor of {tensor.dtype} and values of {array.dtype} that it cannot hold; "
                             f"give {tensor.dtype}")
        found.append(_Known(what, tensor._node(), values))
    return found


def _as_known(call: JacobianCall, plan: _Plan, known: Sequence[_Known], nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with a check that tensors hold what was told of them: else they are NaN, and an error for whoever reads them."""
    differ: Node | None = None
    for k in known:
        node, count = reshape(k.node, (k.node.aval.size,)), k.node.aval.size
        name = "known", k.values.dtype, count, digest(k.values)
        given = plan.array(name, call.inputs[0]._device, functools.partial(k.values.reshape, -1))._node()
        wrong = node.ne(0) & given.eq(0) if dtype_kind(node.dtype) in "fc" else node.ne(given)
        attrs = dict(size=1, wrap=False, ignore=None, call=call.name, what=k.what, of="", position=-1)
        found = bind(REGISTRY["as_known"], (total(cast(wrong, int64), (0,)),), attrs) if count else None
        differ = found if differ is None else differ if found is None else differ + found
    if differ is None:
        return list(nodes)
    return [where(differ.eq(0), x, const(np.nan, x.dtype)) for x in nodes]


# ---------------------------------------------------------------------------------------------------------------- products


def _seeds(plan: _Plan, nodes: Sequence[Node], device: Any) -> list[Node]:
    """For each node (colours, *shape): ones where its elements have the colour."""
    colors = plan.array("colors", device, lambda: plan.colors.astype(np.int32))._node()
    out, first = [], 0
    for node in nodes:
        size = node.aval.size
        own = expand(reshape(narrow(colors, 0, first, size), (1, size)), (plan.count, size))
        hit = own.eq(iota((plan.count, size), 0, colors.dtype))
        out.append(reshape(cast(hit, node.dtype), (plan.count, *node.shape)))
        first += size
    return out


def _products(call: JacobianCall, plan: _Plan, chunk_size: int | None) -> Node:
    """Along each colour, the tangents of all outputs, or the cotangents of all variables, one after the other: (colours, elements)."""
    starts, ends = (call.variables, call.nodes) if plan.forward else (call.nodes, call.variables)
    probes = [placeholder(n.aval, "tangent" if plan.forward else "cotangent") for n in starts]
    with Examples(probes):
        if plan.forward:
            found = pushed_forward(ends, starts, probes)
        else:
            with enable_grad():
                found = derivatives.dense(derivatives.vjp(starts, ends, probes), ends)
    seeds = dict(zip(probes, _seeds(plan, starts, call.inputs[0]._device), strict=True))
    made = at_seeds(call.name, found, seeds, plan.count, chunk_size)
    joined: Node = PUBLIC["cat"]([reshape(x, (plan.count, n.aval.size)) for x, n in zip(made, ends, strict=True)], 1)
    return joined


def _blocks(call: JacobianCall, known: Sequence[tuple[Tensor, Any]], chunk_size: int | None) -> Any:
    """The entries, block by block (outputs x variables), in the structures of outputs and arguments."""
    told = _told(call.name, known)
    plan = _plan(call, told)
    flat, width, device = None, 0, call.inputs[0]._device
    if plan.count:
        products = _products(call, plan, chunk_size)
        flat, width = reshape(products, (prod(products.shape),)), products.shape[1]
    blocks, indices, shapes, row = [], [], [], 0
    for i, node in enumerate(call.nodes):
        column = 0
        for j, v in enumerate(call.variables):
            shape = Size((*node.shape, *v.shape))
            number, places = plan.block(row, node, column, v, width)
            if told and not len(number) and v.aval.size and node.aval.size:
                number = np.zeros(1, np.int64)              # so that there is a value which tells when the pattern is another one
            indices.append(plan.array(("indices", i, j, bool(told)), device, functools.partial(_unraveled, number, shape)))
            if flat is None or not len(places):
                blocks.append(expand(const(0, node.dtype), (len(number),)))
            else:
                index = plan.array(("places", i, j), device, functools.partial(np.asarray, places))
                blocks.append(cast(take_rows(flat, index._node()), node.dtype))
            shapes.append(shape)
            column += v.aval.size
        row += node.aval.size
    blocks = _as_known(call, plan, told, blocks)
    return call.result(blocks, call.inputs * len(call.nodes), lambda k, values: SparseCOO(indices[k], values, shapes[k]))


def _within(numbers: Any, first: int, node: Node) -> Any:
    return (numbers >= first) & (numbers < first + node.aval.size)


def _unraveled(number: Any, shape: tuple[int, ...]) -> Any:
    return np.stack(np.unravel_index(number, shape)) if shape else np.zeros((0, len(number)), np.int64)


# ---------------------------------------------------------------------------------------------------------------- transforms


def sparse_jacobian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *,
                    known: Sequence[tuple[Tensor, Any]] = (), chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns d fn / d argument as a `SparseCOO` of shape (*output.shape, *argument.shape).

    Stored is every entry that the operations of fn let differ from zero, whatever values the argument has. That is exact for elementwise
    operations, slices, rolls, gathers, stencils, convolutions, reductions and products with constants; what has no rule counts as dense.
    Indices and masks that do not depend on the argument count by value; in a trace, those of its arguments and of tensors from outside
    have none, and an index may be any: tell them by `known`. Forward or reverse mode, whichever takes fewer products: a tridiagonal
    Jacobian takes three, that of a batch of functions as many as one of them has arguments. Later calls of the same operations reuse
    pattern and colours.

    Of nested outputs and arguments: as `jacobian`, a SparseCOO for each matrix. has_aux: fn returns a pair, of which the second is passed
    through. chunk_size: how many products are computed at once, where memory is short.
    known: pairs of a tensor that fn uses (an index, a mask, a matrix of constants) and the values that it will hold, of which the pattern
    is made; of floats it counts which are zero. If the tensor holds others (of floats: one that is not zero where that was told) when the
    program runs, the result is NaN, and whoever reads it gets an ArgumentError. Each matrix then stores one entry at least.
    Raises DTypeError where arguments or results are not real floats, ArgumentError where too much is not zero to be stored.

    >>> j = tg.func.sparse_jacobian(lambda x: (x[1:] - x[:-1]) ** 2)(tg.arange(5.0))
    >>> j
    SparseCOO(shape=(4, 5), 8 entries, float32)
    >>> j.to_dense()[0]
    Tensor([-2.,  2.,  0.,  0.,  0.], device='cpu')
    >>> taken = tg.trace(lambda x, index: tg.func.sparse_jacobian(lambda x: x[index] ** 2, known=[(index, [3, 0])])(x))
    >>> taken(tg.arange(5.0), tg.tensor([3, 0])).indices.tolist()
    [[0, 1], [3, 0]]
    """

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = _call("sparse_jacobian", fn, argnums, has_aux, args, kwargs)
        return _blocks(call, known, chunk_size)

    return wrapped


@named
def sparse_hessian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, known: Sequence[tuple[Tensor, Any]] = (),
                   chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns the second derivatives of a scalar function as a `SparseCOO` of shape (*argument.shape, *argument.shape).

    As `sparse_jacobian` of the gradient, but an entry of a symmetric matrix is read in either of two places, which takes fewer products.
    Nested as `hessian`: of a dict argument, h["a"]["b"] is d2 fn / da db. known: as of `sparse_jacobian`.
    Raises ShapeError unless fn returns one real float.

    >>> h = tg.func.sparse_hessian(lambda x: ((x[1:] - x[:-1] ** 2) ** 2).sum())(tg.ones(4))
    >>> h
    SparseCOO(shape=(4, 4), 10 entries, float32)
    """
    gradient = grad(fn, argnums)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = _call("sparse_hessian", gradient, argnums, False, args, kwargs)
        return _blocks(call, known, chunk_size)

    return wrapped


@named
def hessian_diagonal(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, known: Sequence[tuple[Tensor, Any]] = (),
                     chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that returns the diagonal of a scalar function's Hessian, exactly: of the structure and shapes of the argument.

    It takes as many Hessian-vector products, in one batch, as there are colours that tell neighbours in the Hessian's pattern apart: one
    for sums of elementwise functions, two for a stencil of a line or a grid, one for each element where the Hessian is dense (chunk_size:
    how many at once). known: as of `sparse_jacobian`. Raises ShapeError unless fn returns one real float.

    >>> tg.func.hessian_diagonal(lambda x: (x ** 3).sum())(tg.tensor([1.0, 2.0]))
    Tensor([ 6., 12.], device='cpu')
    """
    gradient = grad(fn, argnums)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = _call("hessian_diagonal", gradient, argnums, False, args, kwargs)
        told = _told(call.name, known)
        plan = _plan(call, told)
        diagonal = _as_known(call, plan, told, _diagonal(call, plan, chunk_size))
        tensors = iter(release(diagonal, call.flat, call.inputs, call.outer))
        found = tuple(optree.tree_unflatten(t, [next(tensors) for _ in group]) for group, t in zip(call.flat, call.trees, strict=True))
        return found[0] if call.single else found

    return wrapped


def _diagonal(call: JacobianCall, plan: _Plan, chunk_size: int | None) -> list[Node]:
    """The sum over the colours of seed * (Hessian @ seed): in the places of a colour, no neighbour adds to it."""
    if plan.count <= 1:
        pushed = pushed_forward(call.nodes, call.variables, [derivatives.ones_like(v) for v in call.variables])
        diagonal = plan.columns[plan.rows == plan.columns]
        return pushed if len(diagonal) else [derivatives.zeros_like(v) for v in call.variables]
    probes = [placeholder(v.aval, "tangent") for v in call.variables]
    with Examples(probes):
        found = [h * p for h, p in zip(pushed_forward(call.nodes, call.variables, probes), probes, strict=True)]
    seeds = dict(zip(probes, _seeds(plan, call.variables, call.inputs[0]._device), strict=True))
    return [total(x, (0,)) for x in at_seeds(call.name, found, seeds, plan.count, chunk_size)]


def _call(name: str, fn: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, args: Any, kwargs: Any) -> JacobianCall:
    call = JacobianCall(name, fn, argnums, has_aux, args, kwargs)
    for what, nodes in (("argument", call.variables), ("result", call.nodes)):
        for node in nodes:
            only_real(name, what, node)
    return call
