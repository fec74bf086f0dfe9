"""Data parallelism over the devices of one process: `split_batch`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import isfinite, sqrt
from typing import Any

import optree

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.execute.devices import NUMPY, Device, find_device
from tracegrad.graph.operators import named
from tracegrad.nn.module import Module
from tracegrad.nn.utils.stateless import replaced
from tracegrad.ops.arrays.joining import cat
from tracegrad.runtime.limits import limits
from tracegrad.tensors.tensor import Tensor


@named
def split_batch(fn: Callable[..., Any], devices: Sequence[Any], batch_dims: Any = 0, out_dims: Any = 0, *,
                shares: Sequence[float] | None = None, module: Module | None = None) -> Callable[..., Any]:
    """`fn` over several devices: each computes a part of the batch, with a copy of what all parts need.

    fn: a module, or a function of tensors; module: the one whose parameters and buffers a function uses. devices: as `tg.device` takes
    them. batch_dims: the dimension along which each positional argument is cut (None: all devices get all of it; one value for all
    arguments, or a tuple with one for each, which holds for every tensor in a nested argument). Keyword arguments are not cut.
    out_dims: the dimension along which results are put together, on the first device; or "sum"; or "mean", the mean over the samples of
    what fn returns as the mean over its part. One value for all results, or a tuple with one for each of a tuple of results.
    shares: how much of a batch each device gets, in proportion. Default: as much, of devices that are alike; else by what they were
    measured to do (`f.profile()` shows that), arithmetic and memory alike. They are fixed from then on, and are `shares` of the result;
    a later process gets the same by `shares=`. Sizes are rounded by the largest remainder; a device without samples is not used.

    The copies are made at each call by `x.to(device)`, whose derivative is the transfer back: so gradients of all parts are added up,
    always in the same order, where the parameters lie, in every transform, traced or not. What fn changes in place (a batch
    norm's statistics) is kept of the part that is computed where it lies, and lost of others. Random numbers are drawn part by part.
    (torch's `DataParallel` copies likewise, from the first device and in equal parts; jax's `pmap` needs an axis of the number of devices
    and `shard_map` a mesh of equal ones, and both leave the sum of gradients to the user or the compiler.)

    Tensors of any dtype. Raises ArgumentError for what does not fit, ShapeError where batches are not of one size.

    >>> model, one = nn.Linear(3, 2), tg.device()
    >>> loss = lambda x, y: nn.functional.mse_loss(model(x), y)
    >>> f = tg.parallel.split_batch(loss, [one, "numpy"], out_dims="mean", shares=[3, 1], module=model)
    >>> f(tg.ones(8, 3), tg.ones(8, 2)).backward()
    """
    found = [find_device(device) for device in devices]
    if not found:
        raise ArgumentError("split_batch: no devices are given; tg.devices() lists those at hand")
    used = tuple(float(share) for share in (_measured(found) if shares is None else shares))
    if len(used) != len(found) or not all(isfinite(share) and share >= 0 for share in used) or not sum(used):
        raise ArgumentError(f"split_batch: shares must be {len(found)} numbers, one a device, none negative and not all 0; got {shares}")
    whose = fn if module is None and isinstance(fn, Module) else module

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if isinstance(batch_dims, (tuple, list)) and len(batch_dims) != len(args):
            raise ArgumentError(f"split_batch: batch_dims has {len(batch_dims)} entries for {len(args)} arguments")
        given: Any = (args, kwargs)
        cut = tuple(batch_dims) if isinstance(batch_dims, (tuple, list)) else (batch_dims,) * len(args)
        dims = _each("batch_dims", (cut, dict.fromkeys(kwargs)), given)
        leaves, tree = optree.tree_flatten(given, none_is_leaf=True)
        size, start, parts = _size(leaves, dims), 0, []
        for device, count in zip(found, _counts(size, used), strict=True):
            if not count and (size or device is not found[0]):
                continue
            own = [x if not isinstance(x, Tensor) else x.to(device) if dim is None else x.narrow(dim, start, count).to(device)
                   for x, dim in zip(leaves, dims, strict=True)]
            copies = {name: t.to(device) for name, t in _tensors(whose)}
            here, named = optree.tree_unflatten(tree, own)
            with replaced(whose, copies, True, False) if whose is not None else nullcontext():
                parts.append((count / max(1, size), fn(*here, **named)))
            start += count
        return _joined(parts, out_dims, found[0])

    wrapped.shares = used  # type: ignore[attr-defined]
    return wrapped


def _measured(devices: Sequence[Device]) -> list[float]:
    """Shares by what devices were measured to do; equal ones where they are alike."""
    if len({(d.name, d.driver, d is not NUMPY and d.cl_device.max_compute_units) for d in devices}) == 1:
        return [1.0] * len(devices)
    if any(device is NUMPY for device in devices):
        raise ArgumentError("split_batch: the interpreter, the device \"numpy\", has no speed to be measured; give shares=")
    return [sqrt(most.bandwidth * most.float32) for most in map(limits, devices)]


def _counts(size: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers that are `size` in all, in proportion to shares: those with the largest remainders are rounded up."""
    exact = [size * share / sum(shares) for share in shares]
    counts = [int(x) for x in exact]
    order = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in order[:size - sum(counts)]:
        counts[i] += 1
    return counts


def _size(leaves: Sequence[Any], dims: Sequence[Any]) -> int:
    """The samples in a batch."""
    sizes = []
    for x, dim in zip(leaves, dims, strict=True):
        if isinstance(x, Tensor) and dim is not None:
            if isinstance(dim, bool) or not isinstance(dim, int):
                raise ArgumentError(f"split_batch: batch_dims holds dimensions (int) or None, got {dim!r}")
            if not -x.ndim <= dim < x.ndim:
                raise ShapeError(f"split_batch: batch_dims {dim} is out of range for a tensor of shape {x.shape}")
            sizes.append(x.shape[dim])
    if not sizes:
        raise ArgumentError("split_batch: no tensor is cut; give one at least a batch_dims that is not None")
    if len(set(sizes)) > 1:
        raise ShapeError(f"split_batch: the batches have different sizes {sizes}; give what is no batch a batch_dims of None")
    return int(sizes[0])


def _tensors(module: Module | None) -> list[tuple[str, Tensor]]:
    return [] if module is None else [*module.named_parameters(), *module.named_buffers()]


def _each(name: str, prefix: Any, whole: Any) -> list[Any]:
    """A value for each leaf of `whole`, from a tree of which each leaf stands for all that `whole` has there."""
    try:
        shape: Any = optree.tree_map(lambda _: 0, whole, none_is_leaf=True)         # optree prints what does not fit: no values
        return list(optree.broadcast_prefix(prefix, shape, none_is_leaf=True))
    except ValueError as error:
        what = "arguments" if name == "batch_dims" else "results"
        raise ArgumentError(f"split_batch: {name} {prefix} does not fit the structure of the {what}: "
                            f"{str(error).splitlines()[0]}") from None


def _joined(parts: Sequence[tuple[float, Any]], out_dims: Any, device: Device) -> Any:
    """One result of those of all parts, each with its share of the samples."""
    weights, trees = [weight for weight, _ in parts], {optree.tree_structure(result, none_is_leaf=True) for _, result in parts}
    if len(trees) > 1:
        raise ArgumentError(f"split_batch: the parts return different structures, {' and '.join(map(str, trees))}")
    hows = _each("out_dims", tuple(out_dims) if isinstance(out_dims, list) else out_dims, parts[0][1])
    joined = [_one(values, how, weights, device)
              for *values, how in zip(*(optree.tree_leaves(result, none_is_leaf=True) for _, result in parts), hows, strict=True)]
    return optree.tree_unflatten(trees.pop(), joined)


def _one(values: Sequence[Any], how: Any, weights: Sequence[float], device: Device) -> Any:
    if all(value is None for value in values):
        return None
    if not all(isinstance(value, Tensor) for value in values):
        raise ArgumentError(f"split_batch: fn must return tensors, got a {type(values[0]).__name__}")
    there = [value.to(device) for value in values]
    if how in ("sum", "mean"):
        terms = there if how == "sum" else [value * weight for value, weight in zip(there, weights, strict=True)]
        return functools.reduce(lambda a, b: a + b, terms)
    if isinstance(how, bool) or not isinstance(how, int):
        raise ArgumentError(f'split_batch: out_dims holds dimensions (int), "sum" or "mean", got {how!r}')
    if not -there[0].ndim <= how < there[0].ndim:
        raise ShapeError(f"split_batch: out_dims {how} is out of range for a result of shape {there[0].shape}; "
                         'results without a batch are put together by out_dims="sum" or "mean"')
    return there[0] if len(there) == 1 else cat(there, how)
