"""SparseTensor: what is stored of a sparse tensor, and what it tells of itself. torch's functions find their rules in `SPARSE_RULES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from textwrap import indent
from typing import Any

import numpy as np
import optree

from tracegrad.errors import ArgumentError, UnsupportedError
from tracegrad.graph.ir import Size
from tracegrad.support.layouts import layout
from tracegrad.tensors.bases.handle import Count
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import printing
from tracegrad.torch_api.names import _utils

tg: Any = import_module("tracegrad")        # the public functions, as programs have them
Rule = Callable[..., Any]
SPARSE_RULES: dict[str, Rule] = {}                 # by the name of torch's function or method


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: what functions and methods of these names do where an argument is sparse."""
    def noted(fn: Rule) -> Rule:
        SPARSE_RULES.update(dict.fromkeys(names, fn))
        return fn

    return noted


class SparseTensor(Tensor):
    """A tensor of which only some entries are stored, and all others are zero: torch's layouts sparse_coo, sparse_csr and sparse_csc.

    Whatever the layout, its place is stored with each entry: `_places` (sparse dimensions, entries) of int64 and `_entries` (entries,
    *dense dimensions); entries of equal places add up. In CSR and CSC they are in order of rows or of columns, each place once. The
    history of a sparse tensor is that of its entries, and its gradient has the same places.
    """

    _places: Tensor
    _entries: Tensor
    _sizes: Size
    _kind: layout
    _once: bool                             # whether each place is there once, and in order
    stored_in_parts = True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        owner = getattr(func, "__self__", None)                             # of a property
        name = getattr(getattr(owner, "fget", None) or func, "__name__", str(func))
        found = SPARSE_RULES.get(name)
        if found is None:
            kind = next(a.layout for a in _flat((*args, *(kwargs or {}).values())) if isinstance(a, SparseTensor))
            raise UnsupportedError(f"{name}: is not there for tensors of layout torch.{kind.value}; use x.to_dense(), or x.values()")
        return found(*args, **kwargs or {})

    # ------------------------------------------------------------------------------------------------------- what it is

    shape = property(lambda self: self._sizes)
    size = property(lambda self: Count.of(self._sizes))
    ndim = property(lambda self: len(self._sizes))
    layout = property(lambda self: self._kind)
    is_sparse = property(lambda self: self._kind is layout.sparse_coo)
    is_sparse_csr = property(lambda self: self._kind is layout.sparse_csr)
    data = property(lambda self: self.detach(), lambda self, value: self._become(value.detach()))
    T = property(lambda self: SPARSE_RULES["transpose"](self, 0, 1) if len(self._sizes) == 2 else self)
    mT = property(lambda self: SPARSE_RULES["transpose"](self, -2, -1))

    @property
    def requires_grad(self) -> bool:
        return self._entries.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._entries.requires_grad = value

    @property
    def grad(self) -> Any:
        found = self._entries.grad
        return None if found is None else like(self, found)

    @grad.setter
    def grad(self, value: Any) -> None:
        self._entries.grad = None if value is None else value._entries

    @property
    def _n(self) -> Any:  # type: ignore[override]
        raise UnsupportedError(f"a tensor of layout torch.{self._kind.value} has no dense values here; use x.to_dense(), or x.values()")

    def _node(self) -> Any:
        return self._n

    _operand = _node

    def _become(self, value: Any) -> None:
        """Take over another sparse tensor; a leaf that requires grad remains one."""
        entries = value._entries
        if self.requires_grad and self.is_leaf and not entries.requires_grad:
            entries = entries.detach().requires_grad_()
        self._places, self._entries, self._sizes, self._once, self._kind = value._places, entries, value._sizes, value._once, value._kind
        self._device = entries._device

    # ------------------------------------------------------------------------------------------------------- its parts

    def _indices(self) -> Tensor:
        return self._places

    def _values(self) -> Tensor:
        return self._entries.detach()

    def _nnz(self) -> int:
        return self._entries.shape[0]

    def sparse_dim(self) -> int:
        return self._places.shape[0]

    def dense_dim(self) -> int:
        return self._entries.ndim - 1

    _dimI, _dimV = sparse_dim, dense_dim

    def is_coalesced(self) -> bool:
        """Whether each place is there once, and all are in order."""
        return self._once

    def _coalesced_(self, coalesced: bool) -> SparseTensor:
        self._once = coalesced
        return self

    def indices(self) -> Tensor:
        """The places of the entries (dimensions, entries). Raises ArgumentError before `coalesce`."""
        self._must_be("indices", layout.sparse_coo)
        return self._places

    def values(self) -> Tensor:
        """The entries. Raises ArgumentError before `coalesce`."""
        self._must_be("values", self._kind)
        return self._entries

    def crow_indices(self) -> Tensor:
        """Where each row's entries begin, and where the last one's end: (rows + 1)."""
        self._must_be("crow_indices", layout.sparse_csr)
        return _begins(self._places[0], self._sizes[0])

    def col_indices(self) -> Tensor:
        """The column of each entry."""
        self._must_be("col_indices", layout.sparse_csr)
        return self._places[1]  # type: ignore[no-any-return]

    def ccol_indices(self) -> Tensor:
        """Where each column's entries begin, and where the last one's end: (columns + 1)."""
        self._must_be("ccol_indices", layout.sparse_csc)
        return _begins(self._places[1], self._sizes[1])

    def row_indices(self) -> Tensor:
        """The row of each entry."""
        self._must_be("row_indices", layout.sparse_csc)
        return self._places[0]  # type: ignore[no-any-return]

    def _compressed(self) -> tuple[Tensor, Tensor]:
        """Where each row (in CSC each column) begins, and the column (row) of each entry."""
        by, other = (0, 1) if self.is_sparse_csr else (1, 0)
        return _begins(self._places[by], self._sizes[by]), self._places[other]

    def _must_be(self, call: str, kind: Any) -> None:
        if self._kind is not kind:
            raise ArgumentError(f"{call}: the tensor's layout is torch.{self._kind.value}, expected torch.{kind.value}")
        if not self._once:
            raise ArgumentError(f"{call}: the tensor may have entries of equal places; use x.coalesce() first, or x._{call}()")

    def coalesce(self) -> SparseTensor:
        """The tensor with each place once, and all in order; itself if it is so."""
        return coalesced(self)

    def to_sparse(self, sparse_dim: int | None = None, *, layout: Any = None, **_: Any) -> Any:
        """The tensor in another sparse layout (default: COO)."""
        if sparse_dim not in (None, self.sparse_dim()):
            raise ArgumentError(f"to_sparse: the tensor has {self.sparse_dim()} sparse dimensions, got sparse_dim {sparse_dim}; use "
                                "x.to_dense().to_sparse(sparse_dim)")
        return in_layout(self, _COO if layout is None else layout)

    def to_sparse_coo(self) -> Any:
        return in_layout(self, _COO)

    def to_sparse_csr(self, dense_dim: int | None = None) -> Any:
        return in_layout(self, layout.sparse_csr)

    def to_sparse_csc(self, dense_dim: int | None = None) -> Any:
        return in_layout(self, layout.sparse_csc)

    def __repr__(self) -> str:
        names = ("crow_indices", "col_indices") if self.is_sparse_csr else ("ccol_indices", "row_indices")
        parts = {"indices": self._places} if self._kind is _COO else dict(zip(names, self._compressed(), strict=True))
        with tg.no_grad():
            texts = [_part(name, part) for name, part in (*parts.items(), ("values", self._entries.detach()))]
        kind = [] if self.dtype in (tg.get_default_dtype(), np.int64, np.bool_) else [f"dtype=torch.{self.dtype.name}"]
        where = [f"device='{self.device}'"] if self.device.type != "cpu" else []
        history = ["requires_grad=True"] if self.requires_grad and self.is_leaf else ["grad_fn=<Sparse>"] if self.requires_grad else []
        rest = ", ".join([f"size={tuple(self._sizes)}", f"nnz={self._nnz()}", *where, *kind, f"layout=torch.{self._kind.value}", *history])
        return "tensor(" + ",\n       ".join([*texts, rest]) + ")"

    __str__ = __repr__

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        entries, sizes = self._entries.detach(), tuple(self._sizes)
        if self._kind is _COO:
            return _utils._rebuild_sparse_tensor, (self._kind, (self._places, entries, sizes, self._once))
        return _utils._rebuild_sparse_tensor, (self._kind, (*self._compressed(), entries, sizes))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __deepcopy__(self, memo: Any) -> SparseTensor:
        made = memo[id(self)] = sparse(self._places.clone(), self._entries.detach().clone(), self._sizes, self._once, self._kind)
        return made.requires_grad_() if self.requires_grad else made


_COO = layout.sparse_coo
def _of_entries(name: str) -> Any:
    return property(lambda self: getattr(self._entries, name))


for _name in ("device", "dtype", "is_cpu", "is_cuda", "is_leaf", "is_meta", "grad_fn", "retains_grad", "itemsize", "_version"):
    setattr(SparseTensor, _name, _of_entries(_name))
for _name in ("is_quantized", "is_nested", "is_mkldnn", "is_xla", "is_mps", "is_xpu"):
    setattr(SparseTensor, _name, property(lambda self: False))


def sparse(places: Tensor, entries: Tensor, shape: Sequence[int], once: bool = False, kind: layout = _COO) -> SparseTensor:
    """A sparse tensor of its parts."""
    made = object.__new__(SparseTensor)
    made._places, made._entries, made._sizes, made._once, made._kind = places, entries, Size(shape), once, kind
    made._device, made._trace, made._base, made._hooks, made._versions, made._moved = entries._device, entries._trace, None, None, 0, ()
    return made


def _flattened(x: Any) -> Any:
    return (x._places, x._entries), (x._sizes, x._once, x._kind), None


def _unflattened(told: Any, parts: Any) -> Any:
    return sparse(*parts, *told)


# To traced functions, and to what custom Functions save, it is a container of its two parts.
optree.register_pytree_node(SparseTensor, _flattened, _unflattened, namespace=optree.registry.__GLOBAL_NAMESPACE)


def like(x: SparseTensor, entries: Tensor) -> SparseTensor:
    """Other entries at the places of x."""
    return sparse(x._places, entries, (*x._sizes[:x.sparse_dim()], *entries.shape[1:]), x._once, x._kind)


def host_places(x: SparseTensor) -> Any:
    """The places as an array: which of them are equal, and in which order they are, is decided on the host."""
    return x._places._value("a sparse tensor's indices", shared=True)


def on_device(array: Any, x: SparseTensor) -> Tensor:
    """An array of integers beside x."""
    return tg.tensor(np.ascontiguousarray(array, np.int64), device=x.device)  # type: ignore[no-any-return]


def numbers(places: Any, sizes: Sequence[int]) -> Any:
    """The number of each place, row by row."""
    return np.ravel_multi_index(tuple(places), tuple(sizes)) if len(places) else np.zeros(places.shape[1], np.int64)


def coalesced(x: SparseTensor) -> SparseTensor:
    """x with each place once, in order: rows first, in CSC columns first."""
    if x._once:
        return x
    order = slice(None, None, -1 if x._kind is layout.sparse_csc else 1)
    sizes = x._sizes[:x.sparse_dim()][order]
    found, inverse = np.unique(numbers(host_places(x)[order], sizes), return_inverse=True)
    places = np.stack(np.unravel_index(found, sizes)) if sizes else np.zeros((0, len(found)), np.int64)
    inverse = inverse.reshape(-1)
    if len(found) == len(inverse):                                          # each place is there once, in another order
        entries = x._entries[on_device(np.argsort(inverse), x)]
    else:
        entries = added_up(x._entries, on_device(inverse, x), len(found))
    return sparse(on_device(places[order], x), entries, x._sizes, True, x._kind)


def added_up(entries: Tensor, at: Tensor, count: int) -> Tensor:
    """The sums (count, ...) of the entries that go to the same place."""
    summed = entries.to(tg.int64) if entries.dtype == np.bool_ else entries
    total = tg.zeros(count, *entries.shape[1:], dtype=summed.dtype, device=entries.device).index_add(0, at, summed)
    return total.to(entries.dtype)  # type: ignore[no-any-return]


def in_layout(x: SparseTensor, kind: Any) -> Any:
    """x in another layout; itself if it has it."""
    if kind is layout.strided:
        return SPARSE_RULES["to_dense"](x)
    if kind is x._kind:
        return x
    if kind is _COO:
        return sparse(x._places, x._entries, x._sizes, x._kind is layout.sparse_csr)
    if kind not in (layout.sparse_csr, layout.sparse_csc):
        raise UnsupportedError(f"to_sparse: torch.{getattr(kind, 'value', kind)} is not there; use torch.sparse_coo, torch.sparse_csr or "
                               "torch.sparse_csc")
    if x.sparse_dim() != 2:
        raise UnsupportedError(f"to_sparse: torch.{kind.value} is for matrices, got {tuple(x._sizes)}, {x.sparse_dim()} of it sparse")
    return coalesced(sparse(x._places, x._entries, x._sizes, x._once and kind is layout.sparse_csr and x._kind is _COO, kind))


def _begins(rows: Tensor, count: int) -> Tensor:
    return tg.searchsorted(rows.contiguous(), tg.arange(count + 1, device=rows.device))  # type: ignore[no-any-return]


def _part(name: str, part: Tensor) -> str:
    """A dense part as torch prints it within a sparse tensor: without its dtype."""
    text = printing.shown(part.to(tg.get_default_dtype()) if part.dtype in (np.float32, np.float64) else part)
    before = f"{name}="
    return (before + indent(text, " " * len(f"tensor({before}"))).replace(before + " " * len(f"tensor({before}"), before, 1)


def _flat(args: Any) -> Any:
    for a in args:
        if isinstance(a, (list, tuple)):
            yield from _flat(a)
        else:
            yield a
