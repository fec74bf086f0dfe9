"""Random tensors: rand, randn, randint, bernoulli, multinomial. They draw from the stream of `random_state`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import nan, prod
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.execute.backend_interfaces import numpy_rules
from tracegrad.execute.devices import find_device
from tracegrad.execute.eager_executor import arrays_of, made_eagerly, nodes_of
from tracegrad.execute.realize import held_view
from tracegrad.graph.cached_calls import calls, learn
from tracegrad.graph.ir import Aval, Graph, Node, own_nodes
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import PUBLIC
from tracegrad.graph.primitive import REGISTRY, Shape, bind, cast, data, placeholder, scalar
from tracegrad.ops.arguments import integer, on_nodes
from tracegrad.ops.arrays import random_bits
from tracegrad.ops.arrays.index_checks import in_domain, must_hold
from tracegrad.ops.arrays.logical import logical_not
from tracegrad.ops.arrays.pointwise import lt, where
from tracegrad.ops.arrays.shaping.repeating import expanded
from tracegrad.support import dtypes, random_state
from tracegrad.support.blas import silent
from tracegrad.support.cache import Cache
from tracegrad.support.modes import state
from tracegrad.tensors.attributes import memory_order
from tracegrad.tensors.creation.arguments import create, float_dtype, like_function, shape_of
from tracegrad.tensors.tensor import Tensor, from_own, holding, new_tensor


def seed_and_offset(shape: Shape, numbers: int) -> tuple[Node, Node]:
    """Seed and offset for `numbers` draws per element of `shape`; of every example of a vmap whose randomness is "different"."""
    own = [(scope.number, scope.size) for scope in state.scopes if scope.randomness == "different"]
    if any(scope.randomness == "error" for scope in state.scopes):
        raise ArgumentError("vmap: a random function was called inside; pass randomness='different' for numbers of each example's own or "
                            "'same' for equal ones, or draw outside and map over what is drawn")
    step = Aval((*shape, numbers), dtypes.int64).size        # (it refuses what no index reaches, before anything is drawn)
    count = step * prod(size for _, size in own)
    if state.trace is not None:
        seed, offset = state.trace.random(count)
    else:
        seed = data(Aval((), dtypes.int64, True), random_state.seed())
        offset = data(Aval((), dtypes.int64, True), random_state.offset())
        random_state.advance(count)
    for index, size in reversed(own):           # the numbers of an inner vmap's examples stand side by side
        offset = cast(offset, dtypes.int64) + index * step
        step *= size
    return seed, offset


def of_parameters(drawn: Tensor, *parameters: Tensor) -> Tensor:
    """What was drawn, which requires grad where one of its parameters does: as in torch the gradient of these is 0."""
    behind = [node for p in parameters if (node := p._node()).needs_grad] if state.grad else []
    if not behind:
        return drawn
    node = drawn._node()
    with own_nodes():
        for of in behind:
            node = bind(REGISTRY["refilled"], (node, expanded("random numbers", cast(of, node.dtype), node.shape)), {})
    return new_tensor(node, drawn.device)


_draws = calls()                    # by what draws how many numbers, and of which dtype


def _drawn(draw: Any, shape: Shape, dtype: Any, device: Any, *more: Any) -> Tensor:
    """A tensor of numbers that `draw`, one of random_bits', makes."""
    numbers, how = seed_and_offset(shape, 1), (draw, *more, shape, dtype)
    if state.trace is not None:
        return new_tensor(draw(*numbers, *how[1:]), device)
    where = find_device(device)
    recalled = config.recall and all(type(n.value) is int for n in numbers)
    call = _draws[how] if recalled else None
    if call is not None:
        return new_tensor(nodes_of(call, numbers, where, arrays_of(call, numbers, where))[call.result], where)
    made = draw(*numbers, *how[1:])
    if recalled:
        learn(_draws, how, numbers, made)
    return new_tensor(made, where)


class _Ahead:
    """Numbers of a stream from one place on, made at once: NumPy takes as long for 64 as for 256. A draw of few takes its own from these.

    program: what draws so many. array: the numbers `start`, `start` + 1, ... of the stream `seed`. used: how many draws took some.
    """

    __slots__ = "array", "program", "seed", "start", "used"

    def __init__(self) -> None:
        self.program: Any = None
        self.array, self.seed, self.start, self.used = np.zeros(0), 0, 0, 0

    def taken(self, draw: Any, more: Sequence[Any], shape: Shape, dtype: Any) -> Any:
        """An array of its own for the next numbers of the present stream, which goes on behind them."""
        seed, start, count = random_state.seed(), random_state.offset(), prod(shape)
        array, at = self.array, start - self.start
        if seed != self.seed or at < 0 or at + count > len(array):
            follows = self.used > 0 and seed == self.seed and 0 <= at < 2 * len(array)
            size = max(count, min(2 * len(array), _MOST) if follows else _LEAST)
            if self.program is None or len(array) != size:
                given = [placeholder(Aval((), dtypes.int64), "") for _ in range(2)]
                self.program = Graph.capture(given, [draw(*given, *more, (size,), dtype)])
            array = numpy_rules().interpret(self.program, [seed, start])[0]
            self.array, self.seed, self.start, self.used, at = array, seed, start, 0, 0
        self.used += 1
        random_state.advance(count)
        return array[at:at + count].reshape(shape).copy()


_LEAST, _MOST = 256, 1 << 13                # how many numbers are made ahead: twice as many each time, where draws follow each other
_ahead = Cache("numbers made ahead", 64)    # by what draws which dtype
_taking = threading.Lock()


def _few(draw: Any, shape: Shape, dtype: Any, device: Any, *more: Any, **known: Any) -> Tensor | None:
    """A tensor of few numbers, as `_drawn` gives; None of others, and where NumPy does not make it now. known: what is of the numbers.

    Each number depends on its place in the stream alone, so it does not matter which were made with it.
    """
    where, aval = find_device(device), Aval(shape, dtype)
    if aval.size > _MOST // 2 or not made_eagerly(where, aval):
        return None
    with _taking:
        ahead = _ahead[draw, more, dtype]
        if ahead is None:
            ahead = _ahead[draw, more, dtype] = _Ahead()
        found = ahead.taken(draw, more, shape, dtype)
    return holding(where, aval, {"aval": aval, **known}, None, found)


def torchs_stream(count: int, device: Any) -> Any:
    """torch's generator (`random_state.torchs`), for a device that has values."""
    return random_state.torchs(count) if find_device(device).has_values else None


def _are(given: Any, number: float) -> bool:
    """Whether an argument is that number. (In a trace it may be a number that is known at run time.)"""
    return type(given) in (int, float) and given == number


def _of_parts(parts: Tensor) -> Any:
    """Complex numbers that share no memory with their parts."""
    z = PUBLIC["view_as_complex"](parts)
    return new_tensor(z._node(), z.device)


def draw_uniform(shape: Shape, dtype: Any, device: Any, low: Any = 0.0, high: Any = 1.0) -> Any:
    """Uniform in [low, high); of a complex dtype, both parts."""
    dtype = dtypes.as_dtype(dtype)
    kind = dtypes.dtype_kind(dtype)
    if kind == "c":
        return _of_parts(draw_uniform((*shape, 2), dtypes.real_of(dtype), device, low, high))
    host = torchs_stream(prod(shape), device) if kind == "f" else None
    if host is not None:
        return from_own(host.uniform(shape, dtype, float(low), float(high)), device)
    drawn = _few(random_bits.uniform, shape, dtype, device)
    drawn = _drawn(random_bits.uniform, shape, dtype, device) if drawn is None else drawn
    return drawn if _are(low, 0.0) and _are(high, 1.0) else drawn * (high - low) + low


def draw_normal(shape: Shape, dtype: Any, device: Any, mean: Any = 0.0, std: Any = 1.0) -> Any:
    """Normal; of a complex dtype circular: both parts have half the variance, and (as in torch) the mean."""
    dtype = dtypes.as_dtype(dtype)
    kind = dtypes.dtype_kind(dtype)
    if kind == "c":
        return _of_parts(draw_normal((*shape, 2), dtypes.real_of(dtype), device, mean, std * 0.5**0.5))
    host = torchs_stream(prod(shape), device) if kind == "f" else None
    if host is not None:
        return from_own(host.normal(shape, dtype, float(mean), float(std)), device)
    drawn = _few(random_bits.normal, shape, dtype, device)
    drawn = _drawn(random_bits.normal, shape, dtype, device) if drawn is None else drawn
    return drawn if _are(mean, 0.0) and _are(std, 1.0) else drawn * std + mean


@create(draws=True, sized=True)
def rand(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform in [0, 1); of a complex dtype, both parts.

    size: ints, or one sequence of them. dtype: float or complex, else DTypeError. Raises ArgumentError for negative sizes.

    >>> tg.rand(2, 3)
    """
    shape = shape_of("rand", size)
    out: Tensor = draw_uniform(shape, float_dtype(dtype), device)
    return out.requires_grad_() if requires_grad else out


@create(draws=True, sized=True)
def randn(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal; of a complex dtype circular, of variance 1: both parts have variance 1/2.

    size: ints, or one sequence of them. dtype: float or complex, else DTypeError. Raises ArgumentError for negative sizes.

    >>> tg.randn(2, 3)
    """
    shape = shape_of("randn", size)
    out: Tensor = draw_normal(shape, float_dtype(dtype), device)
    return out.requires_grad_() if requires_grad else out


def _leaf(drawn: Tensor, requires_grad: bool) -> Tensor:
    return drawn.requires_grad_() if requires_grad else drawn


def _as_laid(numbers: Callable[[Any, Shape, Any], Any]) -> Callable[[Tensor, Any, Any], Tensor | None]:
    """Numbers of torch's stream like a view whose dimensions lie in memory in another order: torch draws them in that order."""

    def draw(input: Tensor, dtype: Any, device: Any) -> Tensor | None:
        order = memory_order(input) if input._base is not None and dtypes.is_float(dtype) and random_state.is_torchs() else None
        host = None if order is None else torchs_stream(prod(input.shape), device)
        if order is None or host is None:
            return None
        return from_own(random_bits.drawn_in_order(order, input.shape, lambda shape: numbers(host, shape, dtype)), device)

    return draw


rand_like = like_function("rand", lambda s, d, v, g: _leaf(draw_uniform(s, d, v), g),
                          _as_laid(lambda host, shape, dtype: host.uniform(shape, dtype)))
randn_like = like_function("randn", lambda s, d, v, g: _leaf(draw_normal(s, d, v), g),
                           _as_laid(lambda host, shape, dtype: host.normals(prod(shape)).astype(dtype).reshape(shape)))


@create(draws=True)
def randint(low: Any = 0, high: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None,
            requires_grad: bool = False) -> Tensor:
    """Integers from low (inclusive) to high (exclusive): randint(low, high, size), or randint(high, size) from 0 on.

    Raises ArgumentError if there is no integer between them, DTypeError if one does not fit dtype.

    >>> tg.randint(0, 10, (2, 3))
    """
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    out = draw_integers("randint", low, high, (size,), dtypes.int64 if dtype is None else dtype, device)
    return out.requires_grad_() if requires_grad else out


def draw_integers(call: str, low: Any, high: Any, size: Sequence[Any], dtype: Any, device: Any) -> Tensor:
    low, high = integer(call, "low", low), integer(call, "high", high)
    if not low < high:
        raise ArgumentError(f"{call}: low must be below high, got {low} and {high}")
    found, shape = dtypes.as_dtype(dtype), shape_of(call, size)
    if found != dtypes.int64 or not -2**63 <= low < high <= 2**63:
        for bound in (low, high - 1):
            scalar(call, bound, found)
    host = torchs_stream(prod(shape), device)
    if host is not None:
        return from_own(host.integers(shape, low, high).astype(found, copy=False), device)
    few = _few(random_bits.randint, shape, found, device, low, high, range=(low, high - 1))
    return _drawn(random_bits.randint, shape, found, device, low, high) if few is None else few


@create(draws=True)
def randint_like(input: Tensor, low: Any = 0, high: Any = None, *, dtype: Any = None, device: Any = None,
                 requires_grad: bool = False) -> Tensor:
    """Like `randint`, with the shape, dtype and device of `input` unless given: randint_like(x, high) or randint_like(x, low, high).

    Raises DTypeError unless input is a tensor.

    >>> tg.randint_like(tg.zeros(3), 10)
    """
    if not isinstance(input, Tensor):
        raise DTypeError(f"randint_like: expected a Tensor, got {type(input).__name__}; use tg.tensor(...) for arrays, lists and numbers")
    low, high = (0, low) if high is None else (low, high)
    drawn = draw_integers("randint_like", low, high, input.shape, dtype or input.dtype, device or input.device)
    return drawn.requires_grad_() if requires_grad else drawn


@create(draws=True)
def randperm(n: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A random order of 0 ... n - 1 (int64). Shape (n,). Raises ArgumentError for n < 0, DTypeError if dtype does not hold n.

    >>> tg.randperm(5)
    """
    found = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    n, = shape_of("randperm", (n,))
    if found is not dtypes.int64:
        scalar("randperm", n, found)                        # whether the dtype holds them
    host = torchs_stream(n, device)
    if host is not None:
        out = from_own(host.permutation(n).astype(found, copy=False), device)
    else:
        out = rand((n,), device=device).argsort().to(dtype=found)
    return out.requires_grad_() if requires_grad else out


@create(draws=True)
def bernoulli(input: Tensor, p: Any = None) -> Tensor:
    """1 with probability `input` (or with probability p, if given), else 0; its shape and dtype.

    A tensor's elements that are no probabilities give NaN (torch: an error); a number outside [0, 1] is an ArgumentError.

    >>> tg.bernoulli(tg.tensor([0.1, 0.9]))
    """
    if p is None and not dtypes.is_float(input.dtype):
        raise DTypeError(f"bernoulli: takes probabilities in a float tensor, got {input.dtype}; use x.float(), or give p")
    return draw_bernoulli("bernoulli", input, input if p is None else p)


def draw_bernoulli(call: str, x: Tensor, p: Any) -> Tensor:
    if not isinstance(p, Tensor) and not 0.0 <= p <= 1.0:
        raise ArgumentError(f"{call}: p must be from 0 to 1, got {p}")
    dtype = x._n.aval.dtype
    if not isinstance(p, Tensor) and (host := torchs_stream(x.numel(), x.device)) is not None:
        return from_own(host.bernoulli(x.shape, float(p)).astype(dtype), x.device)
    if isinstance(p, Tensor) and (found := _torchs_events(x, p, dtype)) is not None:
        return found
    wide = p.dtype if isinstance(p, Tensor) and p.dtype == dtypes.float64 else dtypes.float32
    drawn: Tensor = (rand(x.shape, dtype=wide, device=x.device) < p).to(dtype=dtype)
    if not isinstance(p, Tensor) or not dtypes.is_float(x.dtype):
        return drawn
    return of_parameters(where((p >= 0.0) & (p <= 1.0), drawn, nan), p)


def _torchs_events(x: Tensor, p: Tensor, dtype: Any) -> Tensor | None:
    """What `draw_bernoulli` draws by torch's generator with probabilities that NumPy holds, at once; None, and nothing drawn, of others."""
    held = p._held() if state.plain and config.eager and config.recall and p._device is x._device and not p._node().needs_grad else None
    if held is None or held.dtype.char not in "fd" or held.shape != x.shape or not ((held >= 0.0) & (held <= 1.0)).all():
        return None
    host = torchs_stream(held.size, x._device)
    return None if host is None else from_own((host.uniform(held.shape, held.dtype) < held).astype(dtype), x._device)


@create(draws=True)
def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normal, with the given means and standard deviations: tensors that broadcast, or numbers; two numbers need a size.

    Raises ArgumentError for a negative std (among a tensor's when the result is looked at) and for numbers without a size. dtype: float
    or complex.

    >>> tg.normal(0.0, 2.0, (2, 3))
    """
    if not isinstance(std, Tensor) and not std >= 0:
        raise ArgumentError(f"normal: std must not be negative, got {std}")
    given = [v for v in (mean, std) if isinstance(v, Tensor)]
    if not given:
        if size is None:
            raise ArgumentError("normal: two numbers need a size; or give mean or std as a tensor")
        drawn = draw_normal(shape_of("normal", (size,)), float_dtype(dtype), device, mean, std)
        return drawn.requires_grad_() if requires_grad else drawn  # type: ignore[no-any-return]
    if size is not None:
        raise ArgumentError("normal: a size is for two numbers; tensors have their own")
    for v in given:
        if not dtypes.is_float(v.dtype):
            raise DTypeError(f"normal: mean and std must be float tensors, got {v.dtype}; use x.float()")
    shape = broadcast_shapes("normal", [v.shape for v in given])
    found = given[0].dtype if len(given) == 1 else dtypes.promote(given[0].dtype, given[1].dtype)
    scale = _not_negative("normal", std) if isinstance(std, Tensor) else std
    bare = [v.detach() if isinstance(v, Tensor) and v._node().needs_grad else v for v in (scale, mean)]
    return of_parameters(_moved(draw_normal(shape, found, given[0].device), *bare), *given)


@on_nodes
def _moved(drawn: Any, std: Any, mean: Any) -> Any:
    return drawn * std + mean


@on_nodes
def _not_negative(name: str, std: Any) -> Any:
    """std, standard deviations that must not be negative, as in torch."""
    fine = must_hold(logical_not(lt(std, 0.0)), name, "all elements of std must be 0 or larger; use std.abs()")
    return where(fine, std, float("nan"))


@create(draws=True)
def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """num_samples indices (int64) drawn with probabilities proportional to a vector, or to each row of a matrix.

    Without replacement, an index is drawn once at most: by the order of p / e, with e exponential (Efraimidis & Spirakis 2006). Negative
    probabilities, or too few positive ones, are an ArgumentError when the result is looked at. Raises DTypeError unless input is float.

    >>> tg.multinomial(tg.tensor([0.2, 0.8]), 5, replacement=True)
    """
    if input.ndim not in (1, 2) or not dtypes.is_float(input.dtype) or not input.shape[-1]:
        raise DTypeError(f"multinomial: takes a vector or matrix of float probabilities, got {input.dtype} {input.shape}")
    n, k = input.shape[-1], integer("multinomial", "num_samples", num_samples)
    if k < 1 or (k > n and not replacement):
        raise ArgumentError(f"multinomial: num_samples must be from 1 to {n} (any number with replacement), got {k}")
    host = random_state.torchs(0)
    if host is not None and (found := _torchs_choices(host, input, k, replacement)) is not None:
        return found
    p = input.detach().to(dtype=dtypes.float32) if dtypes.is_half(input.dtype) else input.detach()
    valid = ((p >= 0) & (p < float("inf"))).all(-1, True) & ((p > 0).sum(-1, True) >= (1 if replacement else k))
    if replacement and k > 1 and host is not None:
        found = from_own(host.choices(p.numpy(), k), input.device)
    elif replacement and host is None:
        total = p.cumsum(-1)
        most = total.narrow(-1, n - 1, 1)
        drawn = (rand((*p.shape[:-1], k), dtype=p.dtype, device=p.device) * most).minimum(most.nextafter(most * 0.0))
        found = PUBLIC["searchsorted"](total, drawn, right=True)
    else:
        found = (p / draw_exponential(p)).topk(k, -1)[1]
    return _choices(where(valid, found, -1), n, 1 if replacement else k)  # type: ignore[no-any-return]


def _torchs_choices(host: Any, input: Tensor, k: int, replacement: bool) -> Tensor | None:
    """What `multinomial` draws by torch's generator of probabilities that NumPy holds, in few steps; None, and nothing drawn, of others."""
    p = held_view(input.detach()._node()) if state.plain and config.eager and config.recall else None
    if p is None or p.dtype.char not in "fd":
        return None
    few = (p > 0).sum(-1) < (1 if replacement else k)
    if few.any() or not ((p >= 0) & (p < float("inf"))).all():          # an error of whoever looks at it
        return None
    if replacement and k > 1:
        found = host.choices(p, k)
    else:
        random_state.advance(p.size)
        found = silent.call(np.divide, p, _exponential(host, input, 1.0).astype(p.dtype))
        found = REGISTRY["topk"].numpy(found, k=k, descending=True)
    aval = Aval(found.shape, dtypes.int64)
    return holding(input.device, aval, {"aval": aval, "range": (0, p.shape[-1] - 1)} if p.shape[-1] > 1 else {"aval": aval}, None, found)


@on_nodes
def _choices(index: Any, n: int, positive: int) -> Any:
    """The indices that multinomial drew of n, -1 where fewer than `positive` probabilities are."""
    few = "the sum of a distribution" if positive == 1 else f"at least {positive} of a distribution"
    return in_domain(index, n, "multinomial", f"probabilities must be 0 or larger and finite, and {few} positive")


def _exponential(host: Any, like: Tensor, lambd: float) -> Any:
    """Exponential numbers of torch's stream, in the order in which the elements of `like` lie in memory."""
    return random_bits.drawn_in_order(memory_order(like), like.shape, lambda shape: host.exponential(shape, lambd))


def draw_exponential(x: Tensor, lambd: float = 1.0) -> Tensor:
    check_positive("exponential_", "lambd", lambd)
    host = torchs_stream(x.numel(), x.device)
    if host is not None:
        return from_own(_exponential(host, x, float(lambd)).astype(computed_dtype("exponential_", x)), x.device)
    u = rand(x.shape, dtype=computed_dtype("exponential_", x), device=x.device)
    least = float(dtypes.finfo(u.dtype).eps) / 2                    # never 0, as in torch: logarithms are taken of these
    return where(u == 0.0, least, -(-u).log1p()) * (1.0 / lambd)  # type: ignore[no-any-return]


def check_positive(call: str, what: str, value: float) -> None:
    if not value > 0:
        raise ArgumentError(f"{call}: {what} must be positive, got {value}")


def computed_dtype(call: str, x: Tensor) -> Any:
    """The dtype that a distribution is computed in: float32 for those of 16 bits."""
    dtype = x._n.aval.dtype
    if dtypes.dtype_kind(dtype) != "f":
        raise DTypeError(f"{call}: makes floats, not {x.dtype}")
    return dtypes.float32 if dtype.itemsize == 2 else dtype
