"""Custom Functions: the user's own forward and backward as an operation of the graph. Start at `Function.apply`.

`forward` runs once. Its arguments tell of requires_grad what the caller's tensors do, and what it makes of them has none, as in torch; but
all keep their place in the graph, so a saved intermediate is still a function of the inputs when backward is differentiated again. The
call becomes one node, a `UserCall` (`user_call.py`).
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import optree

from tracegrad.autodiff.batching import batch
from tracegrad.custom.user_call import Context, UserCall, is_wrapper, misuse
from tracegrad.errors import ArgumentError, ArgumentTypeError, AutogradError, ShapeError, UnsupportedError, type_name
from tracegrad.graph.ir import Aval, Node, tell, topological
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.support.cache import memoize
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.scopes import Examples
from tracegrad.tensors.tensor import Tensor

_OUTPUT, _DETACH = REGISTRY["output"], REGISTRY["detach"]


class Function:
    """Base of custom differentiable operations. Give static `forward(ctx, ...)` and `backward(ctx, *grads)`.

    Use it as `MyFunction.apply(x)` or `MyFunction()(x)`. forward takes anything; arguments that are Tensors, of any dtype, are tracked
    (containers are not looked into). backward returns a dict of gradients by argument name, or a tuple in order; None means no
    gradient. Raises AutogradError for misuse, naming the Function, the argument, what was expected and what it got.

    As in torch, forward may leave ctx to a static `setup_context(ctx, inputs, output)`, which is called with what `forward(...)` took
    and returned. A static `jvp(ctx, *tangents)` gives the tangents of the outputs from those of the arguments; without one,
    forward mode is derived from backward. vmap maps what forward and backward recorded; where there is a `setup_context` and a static
    `vmap(info, in_dims, *inputs)`, which returns what forward does of the whole batch and its out_dims, that stands for forward. (The
    in_dims of a list or dict of tensors are one.)

    >>> class Exp2(tg.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         y = 2.0 ** x
    ...         ctx.save_for_backward(y=y)
    ...         return y
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return {"x": grad * ctx.saved_variables.y * 0.6931471805599453}
    """

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        raise AutogradError(f"{ctx._function.__name__} has no forward(ctx, ...): a Function needs a static forward")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise AutogradError(f"{ctx._function.__name__} has no backward(ctx, *grads): it cannot be differentiated")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Where a subclass defines it, `forward` takes no ctx."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Where a subclass defines it, forward mode calls it; else forward mode is derived from `backward`."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        """Where a subclass defines it, vmap calls it in the place of forward; info: batch_size and randomness."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            name = type(self).__name__
            raise ArgumentTypeError(f"{name}: the class itself takes no arguments; call {name}.apply(...), or {name}()(...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self).apply(*args, **kwargs)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and record the call if an argument requires grad."""
        names, values, positional, keyword, given = _bind_arguments(cls, args, kwargs)
        values = [_Whole(v) if is_wrapper(v) or _in_parts(cls, v) else v for v in values]
        needs = [isinstance(v, Tensor) and state.grad and v._node().needs_grad for v in values]
        handles = [_untracked(v) if isinstance(v, Tensor) else v.tensor if isinstance(v, _Whole) else v for v in values]
        ctx = Context(cls, names, handles, needs)
        replaced = dict(zip(names, handles, strict=True))
        hidden, shown, read = state.hidden, state.shown, state.values_read
        state.hidden, state.shown, state.values_read = True, False, False
        separate = _has(cls, "setup_context")
        try:
            context = () if separate else (ctx,)
            scope = _mapping(values) if separate and state.examples and not keyword and _has(cls, "vmap") else None
            if scope is None:
                raw = cls.forward(*context, *(replaced[n] for n in positional), **{k: replaced[n] for k, n in keyword.items()})
            else:
                raw = _mapped(cls, scope, values)
            if separate:
                cls.setup_context(ctx, tuple(handles[:given]), raw)
            opaque = state.values_read or scope is not None
        finally:
            state.hidden, state.shown, state.values_read = hidden, shown, read or state.values_read
            ctx._phase = "between"
        return _record(cls, ctx, values, handles, raw, any(needs), given, opaque)


def autograd_function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A differentiable function from `forward(ctx, ...)` and `backward(ctx, *grads)`; see Function.

    Any dtype. Raises ArgumentTypeError for what is no function.

    >>> square = tg.autograd_function(lambda ctx, x: (ctx.save_for_backward(x), x * x)[1], lambda ctx, g: 2 * ctx.saved_tensors[0] * g)
    >>> tg.grad(lambda x: square(x).sum())(tg.tensor([3.0]))
    Tensor([6.], device='cpu')
    """
    for rule, given in (("forward", forward), ("backward", backward)):
        if not callable(given):
            raise ArgumentTypeError(f"autograd_function: {rule} must be a function, got {type(given).__name__}")
    name = getattr(forward, "__name__", "forward")
    made = type(name, (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward), "__doc__": forward.__doc__})
    made.__module__ = forward.__module__
    return made.apply  # type: ignore[attr-defined, no-any-return]


def _has(cls: type[Function], name: str) -> bool:
    """Whether a subclass defines what `Function` has for documentation only."""
    return getattr(cls, name) is not getattr(Function, name)


@memoize(1024)
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


@memoize(1024)
def _plain_names(forward: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names of forward's parameters where each takes one argument, by position or by name; else None."""
    parameters = _signature(forward).parameters
    return tuple(parameters) if all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values()) else None


def _bind_arguments(cls: type[Function], args: Any, kwargs: Any) -> tuple[list[str], list[Any], list[str], dict[str, str], int]:
    """Names and values of forward's arguments (defaults included), which name goes where in the call, and how many were given."""
    context = () if _has(cls, "setup_context") else (None,)
    plain = None if kwargs else _plain_names(cls.forward)
    if plain is not None and len(plain) == len(args) + len(context):
        names = [*plain[len(context):]]
        return names, [*args], names, {}, len(names)
    try:
        bound = _signature(cls.forward).bind(*context, *args, **kwargs)
    except TypeError as error:
        leading = next(iter(_signature(cls.forward).parameters), "")
        way = "; forward is a static method, whose first parameter is ctx" if context and leading != "ctx" else ""
        way += "; write @staticmethod above it, and no self" if leading == "self" else ""
        raise ArgumentError(f"{cls.__name__}.apply: {error}; its signature is forward{_signature(cls.forward)}{way}") from None
    given = set(bound.arguments)
    bound.apply_defaults()
    names = []
    values: list[Any] = []
    positional: list[str] = []
    keyword: dict[str, str] = {}
    for i, (name, value) in enumerate(bound.arguments.items()):
        kind = bound.signature.parameters[name].kind
        first = i == 0 and context                                # ctx, or what starts with it
        if first and kind is not inspect.Parameter.VAR_POSITIONAL:
            continue
        if kind is inspect.Parameter.VAR_POSITIONAL:
            for k, v in enumerate(value[1:] if first else value):
                names.append(f"{name}_{k}")
                values.append(v)
                positional.append(names[-1])
        elif kind is inspect.Parameter.VAR_KEYWORD:
            for k, v in value.items():
                names.append(k)
                values.append(v)
                keyword[k] = k
        else:
            names.append(name)
            values.append(value)
            if kind is inspect.Parameter.KEYWORD_ONLY:
                keyword[name] = name
            else:
                positional.append(name)
    if not context:                                               # as in torch, which completes them for setup_context and backward
        given |= {*positional}
    last = max((i for i, n in enumerate(names) if n in given or n not in bound.signature.parameters), default=-1)
    return names, values, positional, keyword, last + 1


def _untracked(tensor: Tensor) -> Tensor:
    """A handle of forward's own on the same node: in-place changes of it don't reach the caller unless marked dirty."""
    node = tensor._node()
    handle = Tensor(bind(_DETACH, (node,), {}) if node.needs_grad and not state.grad else node, tensor._device, state.trace)
    if node.needs_grad:
        handle._callers = tensor
    return handle


class _Whole(NamedTuple):
    """An argument that forward gets as it is, an object of its class: of a tensor without values of its own nothing can be recorded."""

    tensor: Tensor


def _in_parts(cls: type[Function], value: Any) -> bool:
    """Whether it is a tensor that is stored in parts, a sparse one. Its gradient would be that of its parts: it must not require grad."""
    if not getattr(type(value), "stored_in_parts", False):
        return False
    if state.grad and value.requires_grad:
        raise UnsupportedError(f"{cls.__name__}.apply: an argument of layout torch.{value.layout.value} requires grad; give its values() "
                               "as an argument, and make the sparse tensor of them in forward")
    return True


class VmapInfo(NamedTuple):
    """What a custom `vmap` is told of the map around it."""

    batch_size: int
    randomness: str


def _mapping(values: Sequence[Any]) -> Examples | None:
    """The innermost vmap that maps one of the values, if one does."""
    given: Any = [*values]
    nodes = [v._node() for v in optree.tree_leaves(given, none_is_leaf=True) if isinstance(v, Tensor)]
    for scope in reversed(state.scopes):
        if isinstance(scope, Examples) and isinstance(scope.mapped, dict) and any(n in scope.mapped for n in topological(nodes)):
            return scope
    return None


def _mapped(cls: type[Function], scope: Examples, values: Sequence[Any]) -> Any:
    """What cls.vmap makes of the batch, as forward's results for one example of it. It has no history: the call that is recorded is it."""
    if getattr(cls, "generate_vmap_rule", False):
        raise AutogradError(f"{cls.__name__}: generate_vmap_rule is True and there is a vmap; take away one of them")
    known = scope.mapped
    assert isinstance(known, dict)
    inputs: list[Any] = []
    dims: list[int | None] = []
    given: Any = [*values]
    leaves, tree = optree.tree_flatten(given, none_is_leaf=True)                # of lists, tuples and dicts, too
    for v in leaves:
        node = v._node() if isinstance(v, Tensor) else None
        mapped = node is not None and any(n in known for n in topological([node]))
        dims.append(0 if mapped else None)
        if node is not None:
            node = batch([node], known, scope.size)[0] if mapped else node
            v = Tensor(bind(_DETACH, (node,), {}) if node.needs_grad else node, v._device, state.trace)
        inputs.append(v)
    inside, examples = state.scopes, state.examples
    state.scopes = scope.before
    state.examples -= sum(isinstance(s, Examples) and isinstance(s.mapped, dict) for s in inside[len(scope.before):])
    try:
        with no_grad():
            in_dims: Any = optree.tree_unflatten(tree, dims)
            given = optree.tree_unflatten(tree, inputs)
            returned = cls.vmap(VmapInfo(scope.size, scope.randomness or "error"), tuple(in_dims), *given)
    finally:
        state.scopes, state.examples = inside, examples
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise AutogradError(f"{cls.__name__}.vmap: must return a pair, the results and their out_dims, got {type(returned).__name__}")
    results, places = returned
    several = isinstance(results, (tuple, list))
    outs = list(results) if several else [results]
    places = list(places) if isinstance(places, (tuple, list)) else [places] * len(outs)
    if len(places) != len(outs):
        raise AutogradError(f"{cls.__name__}.vmap: returned {len(outs)} results and {len(places)} out_dims")
    ones: list[Any] = []
    for out, place in zip(outs, places, strict=True):
        if place is None or not isinstance(out, Tensor):
            ones.append(out)
            continue
        if not -out.ndim <= place < out.ndim or out.shape[place] != scope.size:
            raise ShapeError(f"{cls.__name__}.vmap: out_dims {place} of a result of shape {out.shape} is no batch of {scope.size}")
        front = out.movedim(place, 0)._node()
        example = placeholder(Aval(front.shape[1:], front.dtype), "example")
        known[example] = front
        ones.append(Tensor(example, out._device, state.trace))
    return type(results)(ones) if several and type(results) in (tuple, list) else tuple(ones) if several else ones[0]


def _record(cls: type[Function], ctx: Context, values: list[Any], handles: list[Any], raw: Any, needed: bool, given: int,
            opaque: bool) -> Any:
    """Check what forward did, and turn its raw outputs into outputs of a graph node."""
    several = isinstance(raw, (tuple, list))
    outputs = list(raw) if several else [raw]
    tensors = [o for o in outputs if isinstance(o, Tensor)]
    if not tensors:
        way = {"NoneType": "; it may lack a `return`", "ndarray": "; compute with tg's functions, or call NumPy's by tg.host_call"}
        raise misuse(cls, "forward", f"returned no tensor (got {type_name(raw)}); outputs are one tensor or a tuple with tensors"
                                     + way.get(type_name(raw), ""))
    if ctx._dirty or ctx._constant or any(isinstance(handle, Tensor) and handle._versions for handle in handles):
        _check_marks(cls, ctx, values, handles, tensors, needed)
    originals = {id(h): v for v, h in zip(values, handles, strict=True) if isinstance(v, Tensor)}
    dirty = {id(d): originals[id(d)] for d in ctx._dirty}
    results: list[Any] = []
    if needed:
        call = UserCall(cls, ctx, outputs, values, originals, given, opaque, _has(cls, "jvp"))
        inputs = [v._node() for v in values if isinstance(v, Tensor)]
        operands = (*(t._node() for t in tensors), *inputs, *call.saved_nodes)
        node = Node(call, operands, {}, call.aval(), True)              # (nobody else has a node of this call)
        call.node = weakref.ref(node)
        if state.watch and not state.hidden:
            tell(call.name, inputs, node)
    k = 0
    for o in outputs:
        if not isinstance(o, Tensor):
            results.append(o)
            continue
        out = o._node()
        if needed:
            out = bind(_OUTPUT, (node,), {"index": k, "aval": out.aval})
        if out.needs_grad and (not needed or any(o is c for c in ctx._constant)):
            out = bind(_DETACH, (out,), {})
        k += 1
        results.append(dirty[id(o)]._rebind(out, cls.__name__) if id(o) in dirty else Tensor(out, o._device, state.trace))
    ctx._phase = "backward"
    ctx._arguments, ctx._dirty, ctx._constant = [], (), ()
    if needed:
        call.watch([r for r in results if isinstance(r, Tensor)])
    return type(raw)(results) if several and type(raw) in (tuple, list) else tuple(results) if several else results[0]


def _check_marks(cls: type[Function], ctx: Context, values: list[Any], handles: list[Any], tensors: list[Tensor], needed: bool) -> None:
    """Raise AutogradError where forward changed what it did not mark, or marked what it did not return. What it changed and returned is

    marked dirty from now on: torch takes it without a mark, too.
    """
    for handle in handles:
        changed = isinstance(handle, Tensor) and handle._versions and any(handle is t for t in tensors)
        if changed and not any(handle is d for d in ctx._dirty):
            ctx._dirty = (*ctx._dirty, handle)
    for t in ctx._dirty:
        if not any(t is o for o in tensors):
            raise misuse(cls, "forward", "a tensor marked dirty must be returned as an output")
    for t in ctx._constant:
        if not any(t is o for o in tensors):
            raise misuse(cls, "forward", "a tensor marked non-differentiable is not one of the outputs")
    for name, value, handle in zip(ctx._names, values, handles, strict=True):
        if isinstance(handle, Tensor) and handle._versions and not any(handle is d for d in ctx._dirty):
            raise misuse(cls, "forward", f"modified its argument {name!r} in place without ctx.mark_dirty({name}); compute a new tensor, "
                                         "or mark it and return it")
        if isinstance(handle, Tensor) and any(handle is d for d in ctx._dirty) and needed and value._node().needs_grad and value._is_leaf():
            raise misuse(cls, "forward", f"a leaf tensor that requires grad ({name!r}) was modified in place; compute a new tensor "
                                         "(x.exp() for x.exp_()), or apply it to what is no leaf: x.clone()")
