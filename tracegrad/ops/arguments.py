"""How composed functions take their arguments: `on_nodes`, and the checks of dims and sizes that they share.

A composed function is written over Nodes. `on_nodes` lets it be called with Tensors: it hands their nodes to the function and wraps
what comes back, so that one composed function costs one wrapping however many primitives it is made of. It also accepts numpy's
names of some arguments (`axis` for `dim`, `keepdims` for `keepdim`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import CO_VARARGS, unwrap
from math import prod
from operator import index
from typing import Any, TypeVar

import optree

from tracegrad.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    IndexOutOfRange,
    OutOfMemoryError,
    ShapeError,
    TraceError,
    TracegradError,
    type_name,
)
from tracegrad.graph.cached_calls import CachedCall, calls, describe, learn
from tracegrad.graph.ir import Node, own_nodes, tell
from tracegrad.graph.locations import LINE, user_location
from tracegrad.graph.operators import BARE, Operators, by_itself, check_switches, is_function, misused, switches_of, write
from tracegrad.graph.primitive import REGISTRY, bind, cast, different_devices
from tracegrad.support.dtypes import DType, dtype_kind, float32, is_half
from tracegrad.support.modes import state, unusual

F = TypeVar("F", bound=Callable[..., Any])
# numpy's names of arguments, and those that one of torch's functions has and its method, or another of the same meaning, has not
_OTHER_NAMES = {"axis": ("dim",), "axis0": ("dim0",), "axis1": ("dim1",), "keepdims": ("keepdim",),
                "split_size": ("split_size_or_sections",), "tensor": ("other", "input"), "A": ("input",), "input": ("A", "L"),
                "B": ("input",), "input2": ("L", "tau"), "size": ("shape",),
                "sections": ("indices_or_sections",), "indices": ("indices_or_sections",)}


def on_nodes(fn: F) -> F:
    """Decorator: `fn`, written over Nodes, also takes Tensors (alone or in lists and tuples) and then returns Tensors.

    An error of something that `fn` is made of is given `fn`'s name, which is what the user called. What it takes as *sizes may also be
    given by name: f(x, sizes=(2, 3)).
    """
    name = fn.__qualname__ = fn.__name__.strip("_")             # Python's own TypeErrors name it
    inner = fn.__name__.startswith("_")                         # a part of what the user called, whose name errors bear
    call = "" if inner else name
    places, rest, arrays = _parameters(fn)
    switches, memo = switches_of(fn), calls()

    @wraps(fn)
    def entry(*args: Any, **kwargs: Any) -> Any:
        if kwargs and "out" in kwargs:
            out = kwargs.pop("out")
            result = entry(*args, **kwargs)
            return result if out is None else write(name, out, result)
        if unusual[0] and state.autocast is not None:
            args, kwargs = state.autocast.cast(name, args, kwargs)
        known = describe(args, kwargs)
        if known is not None:
            key, nodes, like = known
            template = memo[key]
            if template is not None:
                return like._recalled(template, nodes)
        found: list[Any] = []
        if kwargs and rest is not None:
            named = next((k for k in kwargs if k == rest or rest in _OTHER_NAMES.get(k, ())), None)
            if named is not None:
                args = (*(args or (kwargs.pop("input", None),)), kwargs.pop(named))
        plain_args = [_plain(name, a, found) for a in args]
        given = kwargs
        if kwargs:
            kwargs = {k if k in places else _own_name(k, places, len(args)): _plain(name, v, found) for k, v in kwargs.items()}
        if not found:
            first = args[0] if args else None
            if isinstance(first, (list, tuple)) and not first:
                raise ArgumentError(f"{name}: needs at least one tensor, got an empty {type(first).__name__}")
            raise DTypeError(f"{name}: expected a Tensor, got {type_name(first)}; use tg.tensor(...) for arrays, lists and numbers")
        for i, parameter in arrays:
            a = plain_args[i] if i < len(plain_args) else kwargs.get(parameter, found[0])
            if not isinstance(a, Node):
                raise DTypeError(f"{name}: {parameter} must be a Tensor, got {type_name(a)}; use tg.tensor(...) for arrays and lists")
        like = next((a for a in found if not isinstance(a, Node)), None)
        if switches:
            check_switches(name, switches, plain_args, kwargs)
        before, own = state.own, dict[Any, Node]()
        if like is not None:
            state.own = own
        outer = LINE.location
        if outer is None:                       # found once for all the nodes that fn makes
            LINE.location = user_location(1, call)
        try:
            result = fn(*plain_args, **kwargs)
            if known is not None:
                learn(memo, key, nodes, result)
            if outer is None and state.watch:
                tell(name, (plain_args, kwargs), result)
            return result if like is None else _wrapped(like, result, {*own.values()})
        except TracegradError as error:
            again = _read(error, args, given)
            if again is None:
                if not inner:
                    error.called_instead(name, is_function)
                    error.called(name)
                    if isinstance(error, OutOfMemoryError) and like is not None:
                        error.on(like._device)
                raise
        except BARE as error:
            if inner or (better := misused(name, fn, args, kwargs, error)) is None:
                raise
            raise better from error
        finally:
            state.own = before
            LINE.location = outer
        return entry(*again[0], **again[1])

    by_itself(entry)
    return entry  # type: ignore[return-value]


def rounded_once(fn: F) -> F:
    """Decorator: what `fn` is made of is computed in float32 where its operands have 16 bits, and only its results are rounded, as torch's
    kernels do it. (Not where the call names a dtype, nor where other operands make the results float32 anyway.)
    """
    place = _parameters(fn)[0].get("dtype")

    @wraps(fn)
    def entry(*args: Any, **kwargs: Any) -> Any:
        given = list(_arrays((*args, *kwargs.values())))
        half = next((a.dtype for a in given if is_half(a.dtype)), None)
        if half is None:
            return fn(*args, **kwargs)
        named = kwargs.get("dtype", args[place] if place is not None and place < len(args) else None)
        if named is not None or not _same(given, half):
            return fn(*args, **kwargs)
        return _in_dtype(fn(*[_in_dtype(a, half, float32) for a in args],
                            **{k: _in_dtype(v, half, float32) for k, v in kwargs.items()}), float32, half)

    return entry  # type: ignore[return-value]


def _arrays(args: Any) -> Iterator[Node]:
    """The nodes among arguments, also in lists and tuples."""
    for a in args:
        if isinstance(a, Node):
            yield a
        elif type(a) in (list, tuple):
            yield from _arrays(a)


def _same(given: Sequence[Node], half: DType) -> bool:
    """Whether what is made of these, some of them of the dtype `half`, has it: other floats are numbers beside what has dimensions."""
    most = max(a.ndim for a in given if a.dtype == half)
    return all(a.dtype == half or dtype_kind(a.dtype) not in "fc" or a.aval.weak or a.ndim == 0 < most for a in given)


def _in_dtype(x: Any, old: DType, new: DType) -> Any:
    """x with its nodes of one dtype cast to another, also in lists and tuples."""
    if isinstance(x, Node):
        return cast(x, new) if x.dtype == old and not x.aval.weak else x
    if isinstance(x, (list, tuple)):
        parts = [_in_dtype(a, old, new) for a in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


def _parameters(fn: Any) -> tuple[dict[str, int], str | None, list[tuple[int, str]]]:
    """The places of fn's parameters by name, the name of *rest, and the arrays that have to be given.

    (What inspect.signature tells, which for all operations took a twentieth of the time of `import tracegrad`.)
    """
    fn = unwrap(fn)
    code, names = fn.__code__, fn.__code__.co_varnames
    count, every = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    rest = names[every] if code.co_flags & CO_VARARGS else None
    places = {name: i for i, name in enumerate((*names[:count], *([rest] if rest else ()), *names[count:every]))}
    given = {*names[count - len(fn.__defaults__ or ()):count], *(fn.__kwdefaults__ or ())}
    return places, rest, [(i, name) for name, i in places.items()
                          if fn.__annotations__.get(name) == "Array" and name not in given and name != rest]


def _own_name(other: str, places: dict[str, int], given: int) -> str:
    """The argument that has the name `other` elsewhere, and is not among the first `given` ones; `other` itself if there is none."""
    return next((name for name in _OTHER_NAMES.get(other, ()) if places.get(name, -1) >= given), other)


def _plain(name: str, a: Any, found: list[Any]) -> Any:
    """`a` with Tensors turned into Nodes, also in lists and tuples; both are added to `found`.

    (No closure of `entry`: one that calls itself is a reference cycle, and would keep its tensors alive until the next collection.)
    """
    if isinstance(a, Node):
        found.append(a)
        return a
    if isinstance(a, Operators):
        for other in found:
            if not isinstance(other, Node) and other._device is not a._device:
                raise different_devices(name, other, a)
        found.append(a)
        return a._operand()
    if isinstance(a, (list, tuple)):                                # (a named tuple is made of its fields: it becomes a tuple)
        plain = [_plain(name, b, found) for b in a]
        return plain if isinstance(a, list) else tuple(plain)
    return a


def _read(error: TracegradError, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments of a call that failed, with an integer for the tensor that stood where one is needed; None if none did."""
    node, found = getattr(error, "unread", None), []

    def read(a: Any) -> Any:
        if isinstance(a, Operators) and not isinstance(a, Node) and a._operand() is node:
            found.append(a)
            return index(a)
        return type(a)([read(b) for b in a]) if type(a) in (list, tuple) else a

    if node is None:
        return None
    again = [*args[:1], *map(read, args[1:])], {k: read(v) for k, v in kwargs.items()}
    return again if found else None


def _not_integers(text: str, *values: Any) -> ArgumentTypeError:
    """An error for values that are no integers. Of an integer tensor of one element among them, what was called finds the value."""
    error = ArgumentTypeError(text)
    error.unread = next((v for v in values if isinstance(v, Node) and dtype_kind(v.dtype) in "iu" and v.aval.size == 1), None)
    return error


def _wrapped(like: Any, result: Any, own: Any) -> Any:
    """`result` as Tensors. What is part of a history, but none of the nodes `own` that this call made, is an operand, and gets a node."""
    if isinstance(result, Node):
        if result.needs_grad and result not in own:
            result = bind(REGISTRY["reshape"], (result,), {"shape": result.shape})
        return like._tensor_of(result)
    if isinstance(result, (tuple, list)):
        parts = [_wrapped(like, r, own) for r in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


def results_of(like: Any, call: CachedCall, values: Any) -> Any:
    """As `_wrapped`, of the nodes that a known call made, by place."""
    if min(call.ends, default=0) >= call.made:
        made = [like._tensor_of(values[k]) for k in call.ends]
    else:
        with own_nodes():
            made = [like._tensor_of(values[k]) if k >= call.made else _wrapped(like, values[k], ()) for k in call.ends]
    return optree.tree_unflatten(call.tree, made)


def known_values(name: str, argument: str, x: Any, way_out: str) -> Any:
    """The values of the integer Tensor `x`, on which the result's shape or place depends; a TraceError tells the way out in a trace."""
    if x.dtype.kind not in "iu":
        raise DTypeError(f"{name}: {argument} must hold integers, got {x.dtype}")
    if isinstance(x, Node) or (state.trace is not None and state.trace.known(x) is None):
        raise TraceError(f"{name}: the result depends on the values of {argument}, which are not known inside @trace; {way_out}")
    return x._value(name)


def held(x: Any) -> Any:
    """The array of a Tensor's value, which nobody writes, if NumPy holds it and reading it tells nobody anything; else None."""
    return x._held() if (not unusual[0] or state.plain) and hasattr(x, "_held") else None


def integer(name: str, argument: str, value: Any) -> int:
    """`value` as an int; an ArgumentTypeError names the argument if it is none (bools are none)."""
    try:
        found = index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        got = f"a tensor of {value.aval}" if isinstance(value, Node) else repr(value)
        raise _not_integers(f"{name}: {argument} must be an integer, got {got}", value)
    return found


def no_tensor(argument: str, value: Any) -> None:
    """A TypeError if a number that decides what is computed is a tensor or a run-time number; the error that leaves names the call."""
    if isinstance(value, Node):
        raise TypeError(f"{argument} must be a Python number")


def only_tensors(name: str, **given: Any) -> None:
    """A DTypeError names the first argument that is none: for layers, which ask for shapes before an operation is called."""
    for argument, x in given.items():
        if not hasattr(x, "ndim"):
            raise DTypeError(f"{name}: {argument} must be a Tensor, got {type_name(x)}; use tg.tensor(...) for arrays and lists")


def one_dim(name: str, dim: Any, ndim: int) -> int:
    """`dim` counted from the front; dims 0 and -1 of a 0-d tensor are allowed, as in torch."""
    d = integer(name, "dim", dim)
    n = ndim or 1
    if not -n <= d < n:
        raise IndexOutOfRange(f"{name}: dim {d} is out of range for a tensor of {ndim} dimensions; use {-n} to {n - 1}")
    return d % n


def some_dims(name: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """The sorted dims that `dim` (None or empty: all; an integer; a sequence) names; none for a 0-d tensor."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return tuple(range(ndim))
    dims = [one_dim(name, d, ndim) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))]
    if len(set(dims)) != len(dims):
        raise ArgumentError(f"{name}: dim {dim} names a dimension twice")
    return tuple(sorted(dims)) if ndim else ()


def sizes_of(name: str, sizes: Sequence[Any]) -> tuple[int, ...]:
    """The integers of f(2, 3) and of f((2, 3)) alike."""
    if len(sizes) == 1 and not hasattr(sizes[0], "__index__") and not isinstance(sizes[0], Node):       # (whose value is not known)
        sizes = sizes[0]
    try:
        return tuple(index(n) for n in sizes)
    except TypeError:
        given = sizes if isinstance(sizes, (tuple, list)) else ()
        raise _not_integers(f"{name}: sizes and dims must be integers, got {sizes!r}", *given) from None


def inferred(name: str, shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """`sizes` with its one -1 replaced so that it holds as many elements as `shape`."""
    total = prod(shape)
    if -1 in sizes:
        known = prod(n for n in sizes if n != -1)
        if sizes.count(-1) > 1:
            raise ShapeError(f"{name}: only one size can be -1, got {sizes}")
        if known <= 0 or total % known:
            raise ShapeError(f"{name}: {shape} has {total} elements, which {sizes} cannot hold for any size in place of -1")
        sizes = tuple(total // known if n == -1 else n for n in sizes)
    if prod(sizes) != total or any(n < 0 for n in sizes):
        raise ShapeError(f"{name}: {shape} has {total} elements, {sizes} has {prod(sizes)}")
    return sizes


def documented(op: Any, name: str) -> str:
    """The docstring of the elementwise `op` that is exported as `name`: its own, then shapes, dtypes, errors and an example."""
    floats = op.result == "float"
    taken = [word for kind, word in (("f", "floats"), ("i", "integers"), ("b", "bools"), ("c", "complex numbers"))
             if kind in op.kinds or (floats and kind in "ib")]
    kinds = "any" if len(taken) == 4 else " or ".join(filter(None, (", ".join(taken[:-1]), taken[-1])))
    result = {"same": "the result has it", "bool": "the result is bool", "real": "the result is real",
              "float": "the result has it, of integers and bools the default float dtype"}[op.result]
    shapes = ("input: tensor of any shape, which the result has." if op.nin == 1 else
              "input, other: tensors that broadcast together, one of which may be a number; dtypes are promoted.")
    errors = "ShapeError if shapes do not broadcast, DTypeError for" if op.nin == 2 else "DTypeError for"
    low, high = op.domain
    values = [round(low + share * (high - low), 2) for share in (0.25, 0.75)] if "f" in op.kinds else [1, 2]
    operands = ", ".join(f"tg.tensor({values[::step]})" for step in (1, -1)[:op.nin])
    return f"""{type(op).__doc__}

    {shapes} dtype: {kinds}; {result}.
    Raises {errors} {"" if len(taken) == 4 else "other dtypes and "}{"what is no tensor" if op.nin == 1 else "other Python objects"}.

    >>> tg.{name}({operands})
    """
