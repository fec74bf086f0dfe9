"""What torch's functions do with sparse tensors, products apart: each is a rule under its name, made of functions of dense tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.autograd import grad as dense_grad
from tracegrad.errors import ArgumentError, ShapeError, UnsupportedError
from tracegrad.graph.ir import Size
from tracegrad.ops.arguments import one_dim, some_dims
from tracegrad.support.layouts import layout
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.sparse.making import sparse_coo_tensor
from tracegrad.torch_api.sparse.tensor import (
    SPARSE_RULES,
    SparseTensor,
    added_up,
    coalesced,
    host_places,
    in_layout,
    like,
    numbers,
    on_device,
    rule,
    sparse,
    tg,
)

# ------------------------------------------------------------------------------------------------------------ entry by entry

# Functions that give 0 for 0. What is linear is done with entries as they are, of others those of one place are added up first.
_LINEAR = "neg negative real conj clone detach positive deg2rad rad2deg"
_OTHERS = ("abs absolute sqrt square sin sinh tan tanh asin arcsin asinh arcsinh atan arctan atanh arctanh expm1 log1p ceil floor round "
           "trunc sign sgn signbit relu erf erfinv isnan isinf isposinf isneginf nan_to_num leaky_relu gelu silu hardtanh")
_CONVERSIONS = "to type type_as float double half bfloat16 int long short bool cfloat cdouble cpu cuda"


def _each(name: str, apply: Callable[..., Any], linear: bool) -> None:
    @rule(name)
    def function(input: SparseTensor, *args: Any, **kwargs: Any) -> Any:
        x = input if linear else coalesced(input)
        return like(x, apply(x._entries, *args, **kwargs))


def _method(name: str) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


for _name in f"{_LINEAR} {_OTHERS}".split():
    _each(_name, getattr(tg, _name, None) or getattr(tg.nn.functional, _name, None) or _method(_name), _name in _LINEAR.split())


def _converted(name: str) -> None:
    @rule(name)
    def convert(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, SparseTensor):                              # dense.type_as(sparse)
            return getattr(self, name)(*(a._entries if isinstance(a, SparseTensor) else a for a in args), **kwargs)
        kwargs.pop("memory_format", None)
        entries = getattr(self._entries, name)(*(a._entries if isinstance(a, SparseTensor) else a for a in args), **kwargs)
        if name == "type" and isinstance(entries, str):
            return entries.replace("torch.", "torch.sparse.")
        if entries is self._entries:
            return self
        made = like(self, entries)
        made._places = self._places.to(device=entries.device)
        return made


for _name in _CONVERSIONS.split():
    _converted(_name)


@rule("pow")
def _pow(input: SparseTensor, exponent: Any) -> SparseTensor:
    if isinstance(exponent, Tensor) or exponent <= 0:
        raise ArgumentError(f"pow: of a sparse tensor takes a number above 0, got {exponent!r}; use x.to_dense()")
    x = coalesced(input)
    return like(x, x._entries ** exponent)


@rule("requires_grad_")
def _requires_grad_(self: SparseTensor, requires_grad: bool = True) -> SparseTensor:
    self._entries.requires_grad_(requires_grad)
    return self


@rule("retain_grad")
def _retain_grad(self: SparseTensor) -> None:
    self._entries.retain_grad()


@rule("grad")
def _grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """torch.autograd.grad: of what a sparse tensor's entries have as gradient, a sparse tensor."""
    alone = isinstance(inputs, Tensor)
    given = [inputs] if alone else list(inputs)
    found = dense_grad(outputs, [x._entries if isinstance(x, SparseTensor) else x for x in given], *args, **kwargs)
    return tuple(like(x, g) if isinstance(x, SparseTensor) and g is not None else g for x, g in zip(given, found, strict=True))


# ------------------------------------------------------------------------------------------------------------ whole tensors


@rule("to_dense")
def to_dense(self: SparseTensor, dtype: Any = None, *, masked_grad: Any = None) -> Tensor:
    """The dense tensor."""
    sizes = self._sizes[:self.sparse_dim()]
    steps = on_device(np.cumprod([1, *sizes[:0:-1]])[::-1] if sizes else np.zeros(0), self)
    flat = added_up(self._entries, (self._places * steps[:, None]).sum(0), int(np.prod(sizes, dtype=np.int64)))
    found = flat.reshape(self._sizes)
    return found if dtype is None else found.to(dtype=dtype)  # type: ignore[no-any-return]


@rule("sparse_mask")
def sparse_mask(self: Any, mask: SparseTensor) -> SparseTensor:
    """The elements at mask's places."""
    if tuple(self.shape) != tuple(mask.shape):
        raise ShapeError(f"sparse_mask: the tensor has shape {tuple(self.shape)}, the mask {tuple(mask.shape)}")
    dense = to_dense(self) if isinstance(self, SparseTensor) else self
    return like(mask, dense[tuple(mask._places)])


@rule("zeros_like", "empty_like")
def _empty(input: SparseTensor, **options: Any) -> SparseTensor:
    return sparse(input._places[:, :0], input._entries.detach()[:0], input._sizes, True, input._kind)


@rule("numel", "nelement")
def _numel(self: SparseTensor) -> int:
    return int(np.prod(self._sizes, dtype=np.int64))


rule("dim", "ndimension")(lambda self: len(self._sizes))
rule("__len__")(lambda self: self._sizes[0])
for _name in ("is_floating_point", "is_complex", "element_size", "get_device"):
    rule(_name)(lambda input, name=_name: getattr(input._entries, name)())
rule("is_contiguous", "is_pinned", "is_shared")(lambda self, *_, **__: False)
rule("pin_memory", "share_memory_", "contiguous", "resolve_conj")(lambda self, *_, **__: self)
rule("is_same_size")(lambda self, other: tuple(self.shape) == tuple(other.shape))


@rule("norm")
def _norm(input: SparseTensor, p: Any = "fro", **options: Any) -> Tensor:
    if any(v not in (None, False) for v in options.values()):
        raise UnsupportedError("norm: of a sparse tensor is that of all entries; use x.to_dense() for dim, keepdim and dtype")
    return coalesced(input)._entries.norm(p)  # type: ignore[no-any-return]


@rule("any")
def _any(input: SparseTensor) -> Tensor:
    return coalesced(input)._entries.any()  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------ arithmetic


@rule("add")
def add(input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """Of two sparse tensors a sparse one, of a dense and a sparse one a dense one."""
    if not isinstance(input, SparseTensor):
        return input + alpha * to_dense(other)
    if not isinstance(other, SparseTensor):
        raise UnsupportedError("add: a sparse tensor and a dense one or a number have a dense sum; use add(dense, sparse) or x.to_dense()")
    if input._sizes != other._sizes or input.sparse_dim() != other.sparse_dim():
        raise ShapeError(f"add: sparse tensors must have the same shape and sparse dimensions, got {tuple(input.shape)} with "
                         f"{input.sparse_dim()} and {tuple(other.shape)} with {other.sparse_dim()}")
    entries = other._entries if alpha == 1 else other._entries * alpha
    both = sparse(tg.cat([input._places, other._places], 1), tg.cat([input._entries, entries]), input._sizes, kind=input._kind)
    return coalesced(both) if input._once and other._once else both


@rule("sub", "subtract")
def sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """add of -alpha."""
    return add(input, other, alpha=-alpha)


@rule("mul", "multiply")
def mul(input: Any, other: Any) -> SparseTensor:
    """The product with a number, a dense tensor that broadcasts to the sparse one, or another sparse one: at the places of both."""
    x, y = (input, other) if isinstance(input, SparseTensor) else (other, input)
    if isinstance(y, SparseTensor):
        if x._sizes != y._sizes:
            raise ShapeError(f"mul: sparse tensors must have the same shape, got {tuple(x.shape)} and {tuple(y.shape)}")
        x, y = coalesced(x), coalesced(y)
        sizes = x._sizes[:x.sparse_dim()]
        _, first, second = np.intersect1d(numbers(host_places(x), sizes), numbers(host_places(y), sizes), True, True)
        entries = x._entries[on_device(first, x)] * y._entries[on_device(second, x)]
        return sparse(x._places[:, on_device(first, x)], entries, x._sizes, x._kind is not layout.sparse_csc, x._kind).coalesce()
    return _by(x, y, lambda entries, factor: entries * factor)


@rule("div", "true_divide")
def div(input: Any, other: Any, *, rounding_mode: Any = None) -> SparseTensor:
    """The quotient by a number or a dense tensor."""
    if not isinstance(input, SparseTensor) or isinstance(other, SparseTensor):
        raise UnsupportedError("div: by a sparse tensor would divide by zeros; use x.to_dense(), or x.values()")
    return _by(input, other, lambda entries, divisor: tg.div(entries, divisor, rounding_mode=rounding_mode))


def _by(x: SparseTensor, y: Any, combine: Callable[[Any, Any], Any]) -> SparseTensor:
    if isinstance(y, Tensor) and y.ndim:
        y = y.broadcast_to(x._sizes)[tuple(x._places)]
    return like(x, combine(x._entries, y))


def _resized(x: SparseTensor, source: Any) -> SparseTensor:
    """The entries of x in the sizes of another sparse tensor, whose dimensions may not be fewer, more or smaller if there are entries."""
    if not isinstance(source, SparseTensor):
        raise UnsupportedError("resize_as_: a sparse tensor is resized as another one; use source.to_sparse()")
    if not x._entries.shape[0]:
        return sparse(source._places[:, :0], source._entries[:0].detach().to(dtype=x.dtype), source._sizes, True)
    if len(x._sizes) != len(source._sizes) or any(n < m for n, m in zip(source._sizes, x._sizes, strict=True)):
        raise ShapeError(f"resize_as_: {tuple(x._sizes)} with entries cannot become {tuple(source._sizes)}; make a new sparse tensor")
    return sparse(x._places, x._entries, source._sizes, x._once)


def _in_place(name: str, of: Any) -> None:
    @rule(f"{name}_", f"__i{name}__")
    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Of a sparse tensor, other parts; of a dense one to which a sparse one is added, other elements."""
        if not isinstance(self, SparseTensor):
            return getattr(self, f"{name}_")(*(to_dense(a) if isinstance(a, SparseTensor) else a for a in args), **kwargs)
        if tg.is_grad_enabled() and self.is_leaf and self.requires_grad:
            raise ArgumentError(f"{name}_: a leaf that requires grad is changed in place; do it in `with torch.no_grad()`")
        self._become(of(self, *args, **kwargs))
        return self


for _name, _fn in {"add": add, "sub": sub, "mul": mul, "div": div, "zero": _empty, "t": lambda x: _permuted(x, (1, 0)),
                   "resize_as": _resized,
                   "detach": lambda x: like(x, x._entries.detach()), "copy": lambda x, source, non_blocking=False: source,
                   **{n: SPARSE_RULES[n] for n in ("abs", "sqrt", "relu", "neg")}}.items():
    _in_place(_name, _fn)


# ------------------------------------------------------------------------------------------------------------ sums


@rule("sum")
def sum_(input: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum of all (dense), or over dims: sparse as long as a sparse dimension is left."""
    x = input if dtype is None else like(input, input._entries.to(dtype=dtype))
    if dim is None:
        return x._entries.sum()
    dims, count = some_dims("sum", dim, len(x._sizes)), x.sparse_dim()
    kept = [d for d in range(count) if d not in dims]
    over = [d - count + 1 for d in dims if d >= count]
    entries = x._entries.sum(over) if over else x._entries
    if not kept:
        found: Any = entries.sum(0)
    else:
        sizes = [n for d, n in enumerate(x._sizes) if d not in dims]
        found = coalesced(sparse(x._places[kept], entries, sizes))
    for d in dims if keepdim else ():
        found = _unsqueezed(found, d) if isinstance(found, SparseTensor) else found.unsqueeze(d)
    return found


def _normalized(x: SparseTensor, dim: int, dtype: Any, log: bool) -> SparseTensor:
    x = coalesced(x)
    d, count = one_dim("softmax", dim, len(x._sizes)), x.sparse_dim()
    entries = x._entries if dtype is None else x._entries.to(dtype=dtype)
    if d >= count:
        return like(x, (tg.log_softmax if log else tg.softmax)(entries, d - count + 1))
    rest = [k for k in range(count) if k != d]
    rows, at = np.unique(numbers(host_places(x)[rest], [x._sizes[k] for k in rest]), return_inverse=True)
    row = on_device(at.reshape(-1), x)
    wide = row.reshape(-1, *[1] * (entries.ndim - 1)).expand(entries.shape)
    low = tg.full((len(rows), *entries.shape[1:]), -np.inf, dtype=entries.dtype, device=entries.device)
    centred = entries - low.scatter_reduce(0, wide, entries.detach(), "amax")[row]
    total = added_up(centred.exp(), row, len(rows))[row]
    return like(x, centred - total.log() if log else centred.exp() / total)


@rule("softmax")
def softmax(input: SparseTensor, dim: int, *, dtype: Any = None, **_: Any) -> SparseTensor:
    """softmax over dim of the entries that are stored; all others count as minus infinity."""
    return _normalized(input, dim, dtype, False)


@rule("log_softmax")
def log_softmax(input: SparseTensor, dim: int, *, dtype: Any = None, **_: Any) -> SparseTensor:
    """The logarithm of `softmax`."""
    return _normalized(input, dim, dtype, True)


# ------------------------------------------------------------------------------------------------------------ movement


def _permuted(x: SparseTensor, dims: Sequence[int]) -> SparseTensor:
    count = x.sparse_dim()
    if sorted(dims[:count]) != list(range(count)):
        raise UnsupportedError(f"permute: the {count} sparse dimensions stay before the {x.dense_dim()} dense ones, got {tuple(dims)}")
    kinds = {layout.sparse_csr: layout.sparse_csc, layout.sparse_csc: layout.sparse_csr}
    moved = list(dims[:count]) != list(range(count))
    kind = kinds.get(x._kind, x._kind) if moved else x._kind
    entries = x._entries.permute(0, *(d - count + 1 for d in dims[count:]))
    return sparse(x._places[list(dims[:count])], entries, [x._sizes[d] for d in dims], x._once and (not moved or kind in kinds), kind)


@rule("permute")
def _permute(input: SparseTensor, *dims: Any) -> SparseTensor:
    given = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    return _permuted(input, [one_dim("permute", d, len(input._sizes)) for d in given])


@rule("transpose", "swapaxes", "swapdims")
def _transpose(input: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    a, b = (one_dim("transpose", d, len(input._sizes)) for d in (dim0, dim1))
    dims = list(range(len(input._sizes)))
    dims[a], dims[b] = b, a
    return _permuted(input, dims)


@rule("t", "adjoint")
def _t(input: SparseTensor) -> SparseTensor:
    return _transpose(input, 0, 1) if len(input._sizes) == 2 else input


@rule("unsqueeze")
def _unsqueezed(input: SparseTensor, dim: int) -> SparseTensor:
    d, count = one_dim("unsqueeze", dim, len(input._sizes) + 1), input.sparse_dim()
    sizes = (*input._sizes[:d], 1, *input._sizes[d:])
    if d > count:
        return sparse(input._places, input._entries.unsqueeze(d - count + 1), sizes, input._once)
    new = tg.zeros_like(input._places[:1]) if count else tg.zeros(1, input._nnz(), dtype=tg.int64, device=input.device)
    return sparse(tg.cat([input._places[:d], new, input._places[d:]]), input._entries, sizes, input._once)


@rule("cat", "concat", "concatenate")
def cat(tensors: Sequence[SparseTensor], dim: int = 0) -> SparseTensor:
    """The tensors one after the other along dim."""
    if not all(isinstance(x, SparseTensor) for x in tensors):
        raise ArgumentError("cat: of sparse and dense tensors together is not there; use to_sparse() or to_dense() first")
    first, at = tensors[0], 0
    d, count = one_dim("cat", dim, len(first._sizes)), first.sparse_dim()
    if any(x.sparse_dim() != count or [n for k, n in enumerate(x._sizes) if k != d] != [n for k, n in enumerate(first._sizes) if k != d]
           for x in tensors):
        raise ShapeError(f"cat: sizes must be equal but along dim {d}, got {', '.join(str(tuple(x.shape)) for x in tensors)}")
    places, entries = [], []
    for x in tensors:
        step = on_device([[at if k == d else 0] for k in range(count)], first)
        places.append(x._places + step)
        around = [0, 0] * (len(first._sizes) - 1 - d) + [at, sum(y._sizes[d] for y in tensors) - at - x._sizes[d]]
        entries.append(tg.nn.functional.pad(x._entries, around) if d >= count else x._entries)
        at += x._sizes[d]
    sizes = [at if k == d else n for k, n in enumerate(first._sizes)]
    return in_layout(sparse(tg.cat(places, 1), tg.cat(entries), sizes), first._kind)  # type: ignore[no-any-return]


@rule("stack")
def _stack(tensors: Sequence[SparseTensor], dim: int = 0) -> SparseTensor:
    d = one_dim("stack", dim, len(tensors[0]._sizes) + 1)
    return cat([_unsqueezed(in_layout(x, layout.sparse_coo), d) for x in tensors], d)  # type: ignore[no-any-return]


def _chosen(x: SparseTensor, which: Any, places: Any, sizes: Any) -> SparseTensor:
    """Some entries at other places, in a tensor of other sizes."""
    made = sparse(on_device(places, x), x._entries[on_device(which, x)], sizes, False, x._kind)
    return coalesced(made) if x._kind is not layout.sparse_coo else made


@rule("select")
def select(input: SparseTensor, dim: int, index: int) -> Any:
    """What is at one index of dim: dense if no sparse dimension is left."""
    d, count = one_dim("select", dim, len(input._sizes)), input.sparse_dim()
    n = input._sizes[d]
    if not -n <= index < n:
        raise IndexError(f"select: index {index} is out of range for dim {d} of size {n}")
    sizes = [s for k, s in enumerate(input._sizes) if k != d]
    if d >= count:
        return sparse(input._places, input._entries.select(d - count + 1, index), sizes, input._once)
    places = host_places(input)
    which = np.flatnonzero(places[d] == index % n)
    if count == 1:
        return input._entries[on_device(which, input)].sum(0)
    return _chosen(in_layout(input, layout.sparse_coo), which, np.delete(places[:, which], d, 0), sizes)


@rule("narrow", "narrow_copy")
def narrow(input: SparseTensor, dim: int, start: int, length: int) -> SparseTensor:
    """The part from start of dim, of `length`."""
    d, count = one_dim("narrow", dim, len(input._sizes)), input.sparse_dim()
    sizes = [length if k == d else s for k, s in enumerate(input._sizes)]
    if not 0 <= start <= start + length <= input._sizes[d]:
        raise IndexError(f"narrow: {start} to {start + length} is out of range for dim {d} of size {input._sizes[d]}")
    if d >= count:
        return sparse(input._places, input._entries.narrow(d - count + 1, start, length), sizes, input._once)
    places = host_places(input)
    which = np.flatnonzero((places[d] >= start) & (places[d] < start + length))
    moved = places[:, which] - np.array([start if k == d else 0 for k in range(count)])[:, None]
    return _chosen(input, which, moved, sizes)


@rule("index_select")
def index_select(input: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    """What is at the indices of dim, one after the other."""
    d, count = one_dim("index_select", dim, len(input._sizes)), input.sparse_dim()
    sizes = [index.numel() if k == d else s for k, s in enumerate(input._sizes)]
    if d >= count:
        return sparse(input._places, input._entries.index_select(d - count + 1, index), sizes, input._once)
    places, wanted = host_places(input), index.reshape(-1).numpy()
    if wanted.size and not 0 <= wanted.min() <= wanted.max() < input._sizes[d]:
        raise IndexError(f"index_select: an index is out of range for dim {d} of size {input._sizes[d]}")
    order = np.argsort(places[d], kind="stable")
    first, end = (np.searchsorted(places[d][order], wanted, side) for side in ("left", "right"))
    counts = end - first
    new = np.repeat(np.arange(len(wanted)), counts)
    which = order[np.arange(len(new)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)]
    chosen = places[:, which]
    chosen[d] = new
    return _chosen(input, which, chosen, sizes)


@rule("__getitem__")
def _getitem(self: SparseTensor, key: Any) -> Any:
    found: Any = self
    d = 0
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if item is Ellipsis:
            d = len(found._sizes) - (len(items) - 1 - items.index(Ellipsis))
        elif isinstance(item, slice) and item.step in (None, 1):
            start, stop, _ = item.indices(found._sizes[d])
            found, d = found if (start, stop) == (0, found._sizes[d]) else narrow(found, d, start, max(0, stop - start)), d + 1
        elif isinstance(item, (int, np.integer)):
            found = select(found, d, int(item))
        elif isinstance(item, Tensor) and item.ndim == 1 and item.dtype != np.bool_:
            found, d = index_select(found, d, item), d + 1
        else:
            raise UnsupportedError(f"a sparse tensor is indexed by integers, slices of step 1 and a tensor of indices, got {item!r}; use "
                                   "index_select, or x.to_dense()")
        if not isinstance(found, SparseTensor) and item is not items[-1]:
            return found[items[items.index(item) + 1:]]
    return found


@rule("new_zeros", "new_empty")
def _new_zeros(self: SparseTensor, *sizes: Any, dtype: Any = None, device: Any = None, **_: Any) -> SparseTensor:
    shape = Size(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
    entries = tg.zeros(0, dtype=dtype or self.dtype, device=device or self.device)
    return sparse(tg.zeros(len(shape), 0, dtype=tg.int64, device=entries.device), entries, shape, True)


@rule("new")
def _new(self: SparseTensor, *args: Any, device: Any = None) -> SparseTensor:
    """Of sizes: without entries; of indices, values and perhaps sizes: with these."""
    if args and isinstance(args[0], Tensor):
        return sparse_coo_tensor(*args, device=device or self.device)           # (of the values' dtype, as in torch)
    found: SparseTensor = _new_zeros(self, *(args or (0,)), device=device)
    return found
