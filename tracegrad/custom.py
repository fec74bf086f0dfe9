"""Custom Functions: the user's own forward and backward as an operation of the graph. Start at `Function.apply`.

`forward` runs once, on tensors that report no requires_grad but keep their place in the graph, so a saved intermediate is
still a function of the inputs when backward is differentiated again. The call becomes one node (`UserCall`) whose operands
are the raw outputs, the tensor arguments and the saved tensors; to differentiation it is the only way from outputs to inputs,
so the user's backward is used at every order, in forward mode, and inside @trace.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tracegrad import dtypes
from tracegrad.autodiff import zeros_like
from tracegrad.errors import ArgumentError, AutogradError, ShapeError
from tracegrad.function import REGISTRY, CustomCall, bind, cast
from tracegrad.ir import Aval, Node
from tracegrad.tensor import Tensor, state

_OUTPUT, _DETACH = REGISTRY["output"], REGISTRY["detach"]


class ByName(Sequence[Any]):
    """Values that can be had by position, as an attribute, and as a key."""

    def __init__(self, values: Sequence[Any], names: dict[str, int], what: str) -> None:
        self._values, self._names, self._what = tuple(values), names, what

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._names:
                raise ArgumentError(f"{self._what}: there is no {key!r}; known are {', '.join(self._names) or 'none'}")
            return self._values[self._names[key]]
        return self._values[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except ArgumentError as error:
            raise AttributeError(str(error)) from None

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def keys(self) -> Any:
        return self._names.keys()

    def __repr__(self) -> str:
        return f"{self._what}{self._values}"


class Context:
    """What `forward` leaves for `backward`. Any attribute may be set; tensors belong into `save_for_backward`."""

    def __init__(self, function: type[Function], names: list[str], values: list[Any], needs: list[bool]) -> None:
        self._function, self._names, self._arguments = function, names, values
        self._phase = "forward"
        self._saved: list[tuple[str | None, Any]] | None = None
        self._dirty: tuple[Tensor, ...] = ()
        self._constant: tuple[Tensor, ...] = ()
        self._called: set[str] = set()
        self._materialize = True
        self._restored: list[Any] | None = None
        self._needs = ByName(needs, {n: i for i, n in enumerate(names)}, "needs_input_grad")

    def _only_in_forward(self, call: str, once: bool = True) -> None:
        if self._phase != "forward":
            raise AutogradError(f"{self._function.__name__}: ctx.{call} was called outside forward; it records what forward did, so call it there")
        if once and call in self._called:
            raise AutogradError(f"{self._function.__name__}: ctx.{call} was called twice; call it once with everything")
        self._called.add(call)

    def save_for_backward(self, *objects: Any, **named: Any) -> None:
        """Keep any Python objects (tensors, numbers, None, ...) for backward; at most once, inside forward."""
        self._only_in_forward("save_for_backward")
        self._saved = [(None, o) for o in objects] + list(named.items())
        self._versions = [(weakref.ref(o), o._version) if isinstance(o, Tensor) else None for _, o in self._saved]

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Tell which arguments forward modified in place; they must be among its outputs."""
        self._only_in_forward("mark_dirty")
        for t in tensors:
            if not any(t is a for a in self._arguments):
                raise AutogradError(f"{self._function.__name__}: ctx.mark_dirty takes tensors that are arguments of forward")
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Tell which outputs have no derivative: they don't require grad, and backward gets zeros for them."""
        self._only_in_forward("mark_non_differentiable")
        for t in tensors:
            if not isinstance(t, Tensor):
                raise AutogradError(f"{self._function.__name__}: ctx.mark_non_differentiable takes output tensors, got {type(t).__name__}")
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """False: backward gets None instead of zeros for outputs that nothing used."""
        self._only_in_forward("set_materialize_grads")
        self._materialize = bool(value)

    @property
    def needs_input_grad(self) -> ByName:
        """Whether each argument's gradient is wanted, by position, attribute or key."""
        return self._needs

    @property
    def saved_variables(self) -> ByName:
        """What save_for_backward kept, by position and, where given by name, as attribute and key.

        Raises AutogradError if a saved tensor was modified in place since.
        """
        if self._saved is None:
            return ByName((), {}, "saved_variables")
        for (name, _), version, position in zip(self._saved, self._versions, range(len(self._saved)), strict=True):
            tensor = version[0]() if version is not None else None
            if version is not None and tensor is not None and tensor._version != version[1]:
                raise AutogradError(
                    f"{self._function.__name__}: the saved tensor {name or position!r} ({tensor.dtype}{list(tensor.shape)}) was modified in place "
                    f"after it was saved (version {version[1]}, now {tensor._version}); save a clone(), or do not modify it before backward")
        values = self._restored if self._restored is not None else [o for _, o in self._saved]
        return ByName(values, {n: i for i, (n, _) in enumerate(self._saved) if n is not None}, "saved_variables")

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What save_for_backward kept, as a tuple (torch's name)."""
        return tuple(self.saved_variables)


class Function:
    """Base of custom differentiable operations. Give static `forward(ctx, ...)` and `backward(ctx, *grads)`.

    Use it as `MyFunction.apply(x)` or `MyFunction()(x)`. forward takes anything; arguments that are Tensors are tracked
    (containers are not looked into). backward returns a dict of gradients by argument name, or a tuple in order; None means no
    gradient. Raises AutogradError for misuse, naming the Function, the argument, what was expected and what it got.

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
        raise NotImplementedError("a Function needs a static forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("this Function has no backward(ctx, *grads): it cannot be differentiated")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self).apply(*args, **kwargs)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and record the call if an argument requires grad."""
        names, values, positional, keyword = _bind_arguments(cls, args, kwargs)
        needs = [isinstance(v, Tensor) and state.grad and v.requires_grad for v in values]
        handles = [_untracked(v) if isinstance(v, Tensor) else v for v in values]
        ctx = Context(cls, names, handles, needs)
        replaced = dict(zip(names, handles, strict=True))
        previous, state.hidden = state.hidden, True
        try:
            raw = cls.forward(ctx, *(replaced[n] for n in positional), **{k: replaced[n] for k, n in keyword.items()})
        finally:
            state.hidden = previous
            ctx._phase = "between"
        return _record(cls, ctx, values, handles, raw, any(needs))


def autograd_function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A differentiable function from `forward(ctx, ...)` and `backward(ctx, *grads)`; see Function."""
    name = getattr(forward, "__name__", "forward")
    made = type(name, (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward), "__doc__": forward.__doc__})
    made.__module__ = forward.__module__
    return made.apply  # type: ignore[attr-defined, no-any-return]


@lru_cache(maxsize=1024)
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


def _bind_arguments(cls: type[Function], args: Any, kwargs: Any) -> tuple[list[str], list[Any], list[str], dict[str, str]]:
    """Names and values of forward's arguments (defaults included), and which name goes where in the call."""
    try:
        bound = _signature(cls.forward).bind(None, *args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"{cls.__name__}.apply: {error}; its signature is forward{_signature(cls.forward)}") from None
    bound.apply_defaults()
    names: list[str] = []
    values: list[Any] = []
    positional: list[str] = []
    keyword: dict[str, str] = {}
    for i, (name, value) in enumerate(bound.arguments.items()):
        kind = bound.signature.parameters[name].kind
        if i == 0 and kind is not inspect.Parameter.VAR_POSITIONAL:
            continue                                              # ctx
        if kind is inspect.Parameter.VAR_POSITIONAL:
            for k, v in enumerate(value[1:] if i == 0 else value):
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
    return names, values, positional, keyword


def _untracked(tensor: Tensor) -> Tensor:
    """A handle of forward's own on the same node: in-place changes of it don't reach the caller unless marked dirty."""
    node = tensor._node()
    return Tensor(bind(_DETACH, (node,), {}) if node.needs_grad and not state.grad else node, tensor._device, state.trace)


def _record(cls: type[Function], ctx: Context, values: list[Any], handles: list[Any], raw: Any, needed: bool) -> Any:
    """Check what forward did, and turn its raw outputs into outputs of a graph node."""
    several = isinstance(raw, (tuple, list))
    outputs = list(raw) if several else [raw]
    tensors = [o for o in outputs if isinstance(o, Tensor)]
    if not tensors:
        raise AutogradError(f"{cls.__name__}.forward: returned no tensor (got {type(raw).__name__}); outputs are one tensor or a tuple with tensors")
    for t in ctx._dirty:
        if not any(t is o for o in tensors):
            raise AutogradError(f"{cls.__name__}.forward: a tensor marked dirty must be returned as an output")
    for t in ctx._constant:
        if not any(t is o for o in tensors):
            raise AutogradError(f"{cls.__name__}.forward: a tensor marked non-differentiable is not one of the outputs")
    for name, value, handle in zip(ctx._names, values, handles, strict=True):
        if isinstance(handle, Tensor) and handle._versions and not any(handle is d for d in ctx._dirty):
            raise AutogradError(f"{cls.__name__}.forward: modified its argument {name!r} in place without ctx.mark_dirty({name})")
        if isinstance(handle, Tensor) and any(handle is d for d in ctx._dirty) and needed and value.is_leaf and value.requires_grad:
            raise AutogradError(f"{cls.__name__}: a leaf tensor that requires grad ({name!r}) was modified in place")
    originals = {id(h): v for v, h in zip(values, handles, strict=True) if isinstance(h, Tensor)}
    dirty = {id(d): originals[id(d)] for d in ctx._dirty}
    if not needed:
        ctx._phase = "backward"
        results = [_finish_plain(o, dirty) if isinstance(o, Tensor) else o for o in outputs]
        return type(raw)(results) if several else results[0]
    call = UserCall(cls, ctx, tensors, [(n, v) for n, v in zip(ctx._names, values, strict=True)], originals)
    inputs = tuple(v._node() for v in values if isinstance(v, Tensor))
    node = bind(call, (*(t._node() for t in tensors), *inputs, *call.saved_nodes), {})
    node.needs_grad = True
    results, k = [], 0
    for o in outputs:
        if not isinstance(o, Tensor):
            results.append(o)
            continue
        out = bind(_OUTPUT, (node,), {"index": k, "aval": o._node().aval})
        if any(o is c for c in ctx._constant):
            out = bind(_DETACH, (out,), {}) if out.needs_grad else out
        k += 1
        if id(o) in dirty:
            results.append(dirty[id(o)]._rebind(out, cls.__name__))
        else:
            results.append(Tensor(out, o._device, state.trace))
    ctx._phase = "backward"
    call.watch(ctx, results)
    return type(raw)(results) if several else results[0]


def _finish_plain(output: Tensor, dirty: dict[int, Tensor]) -> Tensor:
    if id(output) in dirty:
        return dirty[id(output)]._rebind(output._node(), "mark_dirty")
    return output


class UserCall(CustomCall):
    """One call of a custom Function, as a node: operands are raw outputs, tensor arguments, saved tensors."""

    def __init__(self, cls: type[Function], ctx: Context, outputs: list[Tensor], arguments: list[tuple[str, Any]], originals: dict[int, Tensor]) -> None:
        self.name = cls.__name__  # type: ignore[misc]
        self.cls, self.ctx, self.device = cls, ctx, outputs[0]._device
        self.count = len(outputs)
        self.arguments = [(n, isinstance(v, Tensor)) for n, v in arguments]
        self.output_avals = tuple(o._node().aval for o in outputs)
        self.saved_nodes: list[Node] = []
        self.plan: list[tuple[str, Any]] = []           # how to restore each saved object
        for i, (_, o) in enumerate(ctx._saved or ()):
            if not isinstance(o, Tensor):
                self.plan.append(("object", o))
                continue
            place = next((k for k, out in enumerate(outputs) if out is o), None)
            if place is not None:
                self.plan.append(("output", place))
                continue
            original = originals.get(id(o))
            if original is not None and not o._versions:
                ctx._versions[i] = (weakref.ref(original), original._version)
            self.plan.append(("operand", len(self.saved_nodes)))
            self.saved_nodes.append(original._node() if original is not None and not o._versions else o._node())
        if ctx._saved is not None:                      # what is a graph value must not be kept alive by the context
            ctx._saved = [(n, None if isinstance(o, Tensor) else o) for n, o in ctx._saved]
        ctx._arguments = []

    def watch(self, ctx: Context, results: list[Any]) -> None:
        """From now on, saved outputs are checked for modification through the tensors that the caller got."""
        tensors = [r for r in results if isinstance(r, Tensor)]
        for i, (kind, what) in enumerate(self.plan):
            if kind == "output":
                ctx._versions[i] = (weakref.ref(tensors[what]), tensors[what]._version)

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return self.output_avals

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        inputs = operands[self.count:len(operands) - len(self.saved_nodes)]
        saved = operands[len(operands) - len(self.saved_nodes):]
        ctx = self.ctx
        restore = {"object": lambda o: o, "operand": lambda k: self._tensor(saved[k]),
                   "output": lambda k: self._tensor(bind(_OUTPUT, (y,), {"index": k, "aval": self.output_avals[k]}))}
        ctx._restored = [restore[kind](what) for kind, what in self.plan]
        grads = [self._grad(c, operands[i]) for i, c in enumerate(ct)]
        hidden, state.hidden = state.hidden, False
        try:
            returned = self.cls.backward(ctx, *grads)
        finally:
            ctx._restored = None
            state.hidden = hidden
        found = self._by_name(returned)
        tensors = iter(inputs)
        result: list[Any] = []
        for name, is_tensor in self.arguments:
            g = found.get(name)
            if not is_tensor:
                if g is not None:
                    raise AutogradError(f"{self.name}.backward: returned a gradient for {name!r}, which is not a tensor; return None for it")
                continue
            result.append(self._checked(name, g, next(tensors)))
        return (*(None for _ in range(self.count)), *result, *(None for _ in saved))

    def _tensor(self, node: Node) -> Tensor:
        return Tensor(node, self.device, state.trace)

    def _grad(self, ct: Node | None, output: Node) -> Tensor | None:
        if ct is None:
            return self._tensor(zeros_like(output)) if self.ctx._materialize else None
        return self._tensor(ct)

    def _by_name(self, returned: Any) -> dict[str, Any]:
        names = [n for n, _ in self.arguments]
        if isinstance(returned, dict):
            for name in returned:
                if name not in names:
                    raise AutogradError(f"{self.name}.backward: returned a gradient for {name!r}; forward's arguments are {', '.join(names)}")
            return returned
        given = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        extra = given[len(names):]
        if len(given) < len(names) or any(g is not None for g in extra):
            raise AutogradError(f"{self.name}.backward: returned {len(given)} gradients, expected {len(names)}, one for each of {', '.join(names)} "
                                "(None where there is none), or a dict by name")
        return dict(zip(names, given, strict=False))

    def _checked(self, name: str, g: Any, primal: Node) -> Node | None:
        if g is None:
            return None
        if not isinstance(g, Tensor):
            raise AutogradError(f"{self.name}.backward: the gradient for {name!r} is a {type(g).__name__}, expected a tensor or None")
        node = g._node()
        if not dtypes.is_float(primal.dtype):
            raise AutogradError(f"{self.name}.backward: returned a gradient for {name!r}, which is {primal.dtype} and has none; return None for it")
        lead = len(node.shape) - len(primal.shape)
        fits = lead >= 0 and all(p in (1, n) for p, n in zip(primal.shape, node.shape[lead:], strict=True))
        if node.shape != primal.shape and not fits and node.aval.size != 1:
            raise ShapeError(f"{self.name}.backward: the gradient for {name!r} has shape {node.shape}, expected {primal.shape}")
        return cast(node, primal.dtype)


