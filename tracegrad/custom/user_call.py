"""A call of a custom Function as a node of the graph, and its `ctx`. Start at `UserCall`.

The node's operands are the raw outputs, the tensor arguments and the saved tensors. To differentiation it is the only way from outputs to
inputs, so the user's backward is used at every order, in forward mode, and inside @trace.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optree

from tracegrad.autodiff.derivatives import zeros_like
from tracegrad.errors import ArgumentError, AutogradError, DeviceError, ShapeError, TracegradError, printable, type_name
from tracegrad.execute.devices import Device
from tracegrad.execute.realize import realize
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.locations import on_behalf_of
from tracegrad.graph.primitive import REGISTRY, bind, cast, data
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state
from tracegrad.tensors.bases.history import leaves
from tracegrad.tensors.tensor import Tensor

_OUTPUT, _DETACH, _VARIABLE = REGISTRY["output"], REGISTRY["detach"], REGISTRY["variable"]
_PLACEHOLDER = REGISTRY["placeholder"]


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
    """What `forward` leaves for `backward`. Any attribute may be set; tensors among them are restored like saved ones, but unchecked.

    Raises AutogradError where a method for forward is called outside of it, or twice.

    >>> class Scale(tg.Function):
    ...     @staticmethod
    ...     def forward(ctx, x, factor):
    ...         ctx.factor = factor
    ...         return x * factor
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return grad * ctx.factor, None
    >>> tg.grad(lambda x: Scale.apply(x, 3.0).sum())(tg.ones(2))
    Tensor([3., 3.], device='cpu')
    """

    __slots__ = ("__dict__", "__weakref__", "_arguments", "_called", "_constant", "_dirty", "_function", "_materialize", "_names", "_needs",
                 "_phase", "_restored", "_saved", "_saved_for_forward", "_watched")            # `__dict__` has what the user sets

    def __init__(self, function: type[Any], names: list[str], values: list[Any], needs: list[bool]) -> None:
        self._function, self._names, self._arguments = function, names, values
        self._phase: str = "forward"
        self._saved: list[tuple[str | None, Any]] | None = None
        self._saved_for_forward: tuple[Any, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._constant: tuple[Tensor, ...] = ()
        self._called: set[str] = set()
        self._materialize = True
        self._restored: list[Any] | None = None
        self._watched: list[tuple[int, weakref.ref[Tensor], int]] = []       # saved object, the tensor to watch, its version when saved
        self._needs = ByName(needs, {n: i for i, n in enumerate(names)}, "needs_input_grad")

    def _only_in_forward(self, call: str, once: bool = True) -> None:
        if self._phase != "forward":
            raise AutogradError(f"{self._function.__name__}: ctx.{call} was called outside forward; it records what forward did, so call "
                                "it there, or in setup_context")
        if once and call in self._called:
            raise AutogradError(f"{self._function.__name__}: ctx.{call} was called twice; call it once with everything")
        self._called.add(call)

    def save_for_backward(self, *objects: Any, **named: Any) -> None:
        """Keep any Python objects (tensors, containers of them, numbers, None, ...) for backward; at most once, inside forward."""
        self._only_in_forward("save_for_backward")
        self._saved = [(None, o) for o in objects] + list(named.items())

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep tensors for `jvp`, where they are `ctx.saved_tensors`; without it, those are what save_for_backward kept."""
        self._only_in_forward("save_for_forward")
        self._saved_for_forward = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Tell which arguments forward modified in place; they must be among its outputs."""
        self._only_in_forward("mark_dirty")
        for t in tensors:
            if not any(t is a for a in self._arguments):
                seen = f"{t.dtype}{list(t.shape)} that is none of them" if isinstance(t, Tensor) else type(t).__name__
                raise AutogradError(f"{self._function.__name__}: ctx.mark_dirty takes tensors that are arguments of forward, got a {seen}")
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Tell which outputs have no derivative: they don't require grad, and backward gets zeros for them."""
        self._only_in_forward("mark_non_differentiable")
        for t in tensors:
            if not isinstance(t, Tensor):
                raise AutogradError(
                    f"{self._function.__name__}: ctx.mark_non_differentiable takes output tensors, got {type(t).__name__}")
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """False: backward gets None instead of zeros for outputs that nothing used."""
        self._only_in_forward("set_materialize_grads")
        self._materialize = bool(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"{self._function.__name__}: ctx has no {name!r}; forward (or setup_context) has to set it, as ctx.{name} = "
                             f"..., or to save it: ctx.save_for_backward({name}=...) for ctx.saved_variables.{name}")

    @property
    def needs_input_grad(self) -> ByName:
        """Whether each argument's gradient is wanted, by position, attribute or key."""
        return self._needs

    @property
    def saved_variables(self) -> ByName:
        """What save_for_backward kept, by position and, where given by name, as attribute and key.

        Raises AutogradError if a saved tensor was modified in place since.
        """
        saved = self._saved or []
        for k, reference, version in self._watched if self._phase == "checked" else ():
            tensor = reference()
            if tensor is not None and tensor._writes != version:
                raise AutogradError(
                    f"{self._function.__name__}: the saved tensor {saved[k][0] or k!r} ({tensor.dtype}{list(tensor.shape)}) was modified "
                    f"in place after it was saved (version {version}, now {tensor._writes}); save a clone(), or do not modify it before "
                    "backward")
        values = self._restored if self._restored is not None else [o for _, o in saved]
        return ByName(values, {n: i for i, (n, _) in enumerate(saved) if n is not None}, "saved_variables")

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What save_for_backward kept, as a tuple (torch's name)."""
        return tuple(self.saved_variables)


def place(cls: type[Any], rule: str) -> tuple[str, int]:
    """The file and the line where a Function's forward, backward, ... is defined; ("", 0) for what is not Python."""
    code = getattr(inspect.unwrap(getattr(cls, rule)), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)


def misuse(cls: type[Any], rule: str, text: str, error: type[TracegradError] = AutogradError) -> TracegradError:
    """An error about what the user's `rule` did: it begins with the rule, and ends with where that is defined."""
    file, line = place(cls, rule)
    return error(f"{cls.__name__}.{rule}: {text}" + (f"; {rule} is defined at {printable(file)}:{line}" if file else ""))


def called(cls: type[Any], rule: str, ctx: Context, arguments: Sequence[Any]) -> Any:
    """What the user's backward or jvp returns. Python's own errors of its parameters, and of what it unpacks, are told of that."""
    fn: Callable[..., Any] = getattr(cls, rule)
    try:
        return fn(ctx, *arguments)
    except TypeError:
        signature = inspect.signature(fn)
        try:
            signature.bind(ctx, *arguments)
        except TypeError as wrong:
            kind = {"backward": "gradient", "jvp": "tangent"}[rule]
            raise misuse(cls, rule, f"{wrong}; it is a static method that is called with ctx and {len(arguments)} {kind}"
                                    f"{'s' * (len(arguments) != 1)}, and its signature is {rule}{signature}") from None
        raise
    except ValueError as error:
        if "to unpack" in str(error):
            saved = len(ctx._restored or ())
            error.add_note(f"{cls.__name__}: ctx.save_for_backward kept {saved} objects" if saved else
                           f"{cls.__name__}: nothing was saved; call ctx.save_for_backward(...) in forward, once, for all of {rule}")
        raise


_NUMBERS = frozenset((int, float, bool, str, type(None)))


def holds_tensors(value: Any) -> bool:
    """Whether it is a tensor, or there is one in a nested container."""
    if isinstance(value, Tensor):
        return True
    cls = value.__class__
    if cls is list or cls is tuple:
        return any(map(holds_tensors, value))
    if cls is dict:
        return any(map(holds_tensors, value.values()))
    if cls in _NUMBERS:
        return False
    return any(isinstance(x, Tensor) for x in optree.tree_leaves(value, none_is_leaf=True))


def is_wrapper(value: Any) -> bool:
    """Whether it is a tensor of a program's class that has no values of its own, for which its class computes."""
    return isinstance(value, Tensor) and hasattr(type(value), "__torch_dispatch__") and value._n.fn is _PLACEHOLDER


class UserCall(CustomCall):
    """One call of a custom Function, as a node: operands are raw outputs, tensor arguments, saved tensors.

    What forward saved is kept as a tree whose tensors are operands of the node, so that a derivative of the derivative finds them
    in the graph, whichever copy of the graph that is.
    """

    def __init__(self, cls: type[Any], ctx: Context, outputs: list[Any], values: list[Any], originals: dict[int, Tensor], given: int,
                 opaque: bool, own_jvp: bool) -> None:
        tensors = [o for o in outputs if isinstance(o, Tensor)]
        self.name = printable(cls.__name__)  # type: ignore[misc]
        self.cls, self.ctx, self.given, self.own_jvp = cls, ctx, given, own_jvp
        self.devices = [t._device for t in (*tensors, *(v for v in values if isinstance(v, Tensor)))]       # of results and arguments
        self.outputs = [isinstance(o, Tensor) for o in outputs]
        self.count, places = len(tensors), {id(t): i for i, t in reversed([*enumerate(tensors)])}
        self.output_avals = avals = tuple([o._node().aval for o in tensors])
        constant = {id(o) for o in ctx._constant}
        self.silent = [id(o) in constant or not dtypes.differentiable(aval.dtype) for o, aval in zip(tensors, avals, strict=True)]
        self.arguments = [(n, isinstance(v, Tensor)) for n, v in zip(ctx._names, values, strict=True)]
        self.node: weakref.ref[Node] | None = None
        self.answer: list[Node | None] | None = None       # what backward gave already, for a derivative that begins anew
        self.saved_nodes: list[Node] = []
        saved = [o for _, o in ctx._saved or ()]
        self.saves = holds_tensors(saved) or holds_tensors(ctx._saved_for_forward)  # type: ignore[misc]
        self.leaves: list[tuple[str, Any]] = []            # how to restore each leaf of the saved tree; `tree` is None if they are a list
        attributes = {k: v for k, v in vars(ctx).items() if k[0] != "_" and holds_tensors(v)}
        leaves, self.tree = saved, None
        if attributes or ctx._saved_for_forward or not all(isinstance(o, Tensor) or not holds_tensors(o) for o in saved):
            tree: Any = (saved, list(ctx._saved_for_forward), attributes)
            leaves, self.tree = optree.tree_flatten(tree, is_leaf=lambda o: not holds_tensors(o), none_is_leaf=True)
        for leaf in leaves:
            self.leaves.append(self._kept(leaf, places, originals, opaque))
        self.saved_outputs = [(k, i) for k, o in enumerate(saved) for i, t in enumerate(tensors) if o is t]
        for k, o in enumerate(saved):
            if isinstance(o, Tensor) and id(o) not in places:
                watched = originals.get(id(o), o)
                ctx._watched.append((k, weakref.ref(watched), watched._writes))
        for name in attributes:                             # what is a graph value must not be kept alive by the context
            delattr(ctx, name)
        ctx._saved = None if ctx._saved is None else [(n, None) for n, _ in ctx._saved]
        ctx._saved_for_forward = ()

    def _kept(self, leaf: Any, places: dict[int, int], originals: dict[int, Tensor], opaque: bool) -> tuple[str, Any]:
        """("object", it), ("output", its number) or ("operand", its number among the saved nodes). places: of outputs, by identity."""
        if not isinstance(leaf, Tensor) or is_wrapper(leaf):
            return "object", leaf
        place = places.get(id(leaf))
        if place is not None and not state.watch:           # (which may be there to pack what is saved: each is an operand then)
            return "output", place
        original = originals.get(id(leaf))
        node = (leaf if original is None or leaf._versions else original)._node()
        self.devices.append(leaf._device)
        if opaque and original is None and not node.needs_grad and node.fn is not _DETACH and dtypes.differentiable(node.dtype):
            inputs = [t._node() for t in originals.values()]
            node = opaque_value(node, inputs, f"{self.name}: its second derivative needs the derivative of a tensor that forward saved "
                                "and computed outside tracegrad (numpy(), item(), host_call); save only arguments and outputs, and return "
                                "such a value as an output that backward handles")
        self.saved_nodes.append(node)
        return "operand", len(self.saved_nodes) - 1

    def watch(self, results: list[Tensor]) -> None:
        """From now on, saved outputs are checked for modification through the tensors that the caller got."""
        for k, i in self.saved_outputs:
            self.ctx._watched.append((k, weakref.ref(results[i]), results[i]._writes))

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return self.output_avals

    def tracked(self, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        return operands[self.count:len(operands) - len(self.saved_nodes)]

    @property
    def pushes(self) -> bool:
        return self.own_jvp

    @property
    def around(self) -> Any:
        return (weakref.ref(self.cls), self.output_avals, *self.arguments, *self.silent, self.saves, self.ctx._materialize)

    @contextmanager
    def _restored(self, y: Node, operands: tuple[Node, ...], forward: bool, symbolic: bool = True) -> Iterator[Context]:
        """The ctx with what forward left in it, as tensors of these operands: for backward, or jvp. symbolic: nodes have no values yet."""
        saved = operands[len(operands) - len(self.saved_nodes):]

        def restored_leaf(kind: str, what: Any) -> Any:
            if kind == "object":
                return what
            if kind == "operand":
                return self._saved(saved[what], self.devices[len(operands) - len(saved) + what])
            return self._tensor(bind(_OUTPUT, (y,), {"index": what, "aval": self.output_avals[what]}), self.devices[what])

        leaves: Any = [restored_leaf(*leaf) for leaf in self.leaves]
        tree: Any = (leaves, [], {}) if self.tree is None else optree.tree_unflatten(self.tree, leaves)
        restored, for_forward, attributes = tree
        ctx, hidden = self.ctx, state.hidden
        before = ctx._restored, ctx._phase
        # A copy of the call (a replayed trace's history) has values of its own, which nobody can have modified.
        ctx._phase = "checked" if self.node is not None and self.node() is y else "backward"
        ctx._restored = for_forward if forward and for_forward else restored
        vars(ctx).update(attributes)
        pulling, state.hidden, state.pulling = state.pulling, False, symbolic
        try:
            yield ctx
        finally:
            state.hidden, state.pulling = hidden, pulling
            ctx._restored, ctx._phase = before
            for name, value in attributes.items():
                if vars(ctx).get(name) is value:
                    delattr(ctx, name)

    def push(self, y: Node, operands: tuple[Node, ...], tangents: Sequence[Node | None]) -> dict[int, Node] | None:
        """The outputs' tangents by the user's jvp, by number; those without one are left out."""
        inputs = self.tracked(operands)
        pairs = iter(zip(inputs, tangents[self.count:], self.devices[self.count:], strict=False))
        given: list[Tensor | None] = []
        for _, is_tensor in self.arguments:
            node, tangent, device = next(pairs) if is_tensor else (None, None, None)
            if node is None or (tangent is None and not (self.ctx._materialize and dtype_kind(node.dtype) in "fc")):
                given.append(None)
            else:
                given.append(self._tensor(zeros_like(node) if tangent is None else tangent, device))
        with self._restored(y, operands, True) as ctx:
            returned = called(self.cls, "jvp", ctx, given)
        several = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(several) != len(self.outputs):
            raise misuse(self.cls, "jvp", f"returned {len(several)} tangents, expected {len(self.outputs)}, one for each output "
                                          "(None where there is none)")
        found: dict[int, Node] = {}
        for k, t in enumerate(t for t, is_tensor in zip(several, self.outputs, strict=True) if is_tensor):
            if t is None or self.silent[k]:
                continue
            if not isinstance(t, Tensor) or t.shape != operands[k].shape:
                seen = f"{t.dtype}{list(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
                raise misuse(self.cls, "jvp", f"the tangent of output {k} is a {seen}, expected a tensor of {list(operands[k].shape)}")
            self._check_device("jvp", f"the tangent of output {k}", t, self.devices[k])
            found[k] = cast(t._node(), operands[k].dtype)
        return found or None

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        if state.asking is not None:
            return tuple(state.asking(y, ct))
        return self._pulled(ct, y, operands) if self.answer is None else tuple(self.answered(ct, y))

    def answered(self, ct: Sequence[Node | None], y: Node) -> Sequence[Node | None]:
        """What `vjp` gives, as leaves that have values, of cotangents that have: backward runs as a program of its own. (What nobody will
        differentiate needs no history, so its operations are done when they are called.)"""
        found, self.answer = self.answer, None
        if found is None:
            before = state.grad, state.own, state.asking
            state.grad, state.own, state.asking = False, None, None
            try:
                with on_behalf_of(y.loc):
                    given = [g.twin() if g is not None and g.constant else g for g in self._pulled(ct, y, y.operands, False)]
                realize([g for g in given if g is not None], self.devices[0])
            finally:
                state.grad, state.own, state.asking = before
            found = [g if g is None else data(g.aval, resolve(g).value) for g in given]
        return found

    def _pulled(self, ct: Sequence[Node | None], y: Node, operands: tuple[Node, ...], symbolic: bool = True) -> tuple[Node | None, ...]:
        inputs = self.tracked(operands)
        grads = iter([self._grad(c, operands[i], self.silent[i], self.devices[i]) for i, c in enumerate(ct)])
        given = [next(grads) if is_tensor else None for is_tensor in self.outputs]
        with self._restored(y, operands, False, symbolic) as ctx:
            returned = called(self.cls, "backward", ctx, given)
        found = self._by_name(returned)
        if returned is None and any(g is not None for g in given):
            self._warn_of_no_return()
        tensors = iter(zip(inputs, self.devices[self.count:], strict=False))
        result: list[Any] = []
        for name, is_tensor in self.arguments:
            g = found.get(name)
            if not is_tensor:
                if g is not None:
                    raise misuse(self.cls, "backward", f"returned a gradient for {name!r}, which is not a tensor; return None for it")
                continue
            result.append(self._checked(name, g, *next(tensors)))
        return (*(None for _ in range(self.count)), *result, *(None for _ in self.saved_nodes))

    def _tensor(self, node: Node, device: Device) -> Tensor:
        """What backward gets for a node; without history where the gradients shall have none."""
        return Tensor(bind(_DETACH, (node,), {}) if node.needs_grad and not state.grad else node, device, state.trace)

    def _saved(self, node: Node, device: Device) -> Tensor:
        """A saved tensor, with the history that it had, whatever the gradients shall have: backward may differentiate again. A leaf is
        the tensor that it was, and an opaque value a constant: its history says no more than that there is no second derivative."""
        if node.fn is _OUTPUT and isinstance(node.operands[0].fn, OpaqueValue):
            return self._tensor(node, device)
        if node.fn is not _VARIABLE or state.trace is not None:
            return Tensor(node, device, state.trace)
        leaf = leaves.get(node.attrs["uid"])
        return leaf if isinstance(leaf, Tensor) and leaf._node() is node else Tensor(node, device)

    def _grad(self, ct: Node | None, output: Node, constant: bool, device: Device) -> Tensor | None:
        if ct is None or constant:
            return self._tensor(zeros_like(output), device) if self.ctx._materialize else None
        return self._tensor(ct, device)

    def _check_device(self, rule: str, what: str, given: Tensor, device: Device) -> None:
        if given.device is not device:
            raise DeviceError(f"{self.name}.{rule}: {what} is on {given.device}, expected on {device}; move it with x.to(device)")

    def _warn_of_no_return(self) -> None:
        """A lone None is what a backward without `return` gives."""
        file, line = place(self.cls, "backward")
        warnings.warn_explicit(f"{self.name}.backward: returned None, so no argument gets a gradient; is its `return` missing? "
                               "(`return (None,)` says that there is none)", RuntimeWarning, file, line,
                               registry=getattr(self.cls.backward, "__globals__", {}).setdefault("__warningregistry__", {}))

    def _by_name(self, returned: Any) -> dict[str, Any]:
        names = [n for n, _ in self.arguments]
        if isinstance(returned, dict):
            for name in returned:
                if name not in names:
                    raise misuse(self.cls, "backward", f"returned a gradient for {name!r}; forward's arguments are {', '.join(names)}")
            return returned
        grads = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        extra = grads[len(names):]
        if len(grads) < self.given or any(g is not None for g in extra):
            raise misuse(self.cls, "backward", f"returned {len(grads)} gradient{'s' * (len(grads) != 1)}, expected {len(names)}, "
                                               f"one for each of {', '.join(names)} (None where there is none), or a dict by name")
        return dict(zip(names, grads, strict=False))

    def _checked(self, name: str, g: Any, primal: Node, device: Device) -> Node | None:
        if g is None:
            return None
        if not isinstance(g, Tensor):
            raise misuse(self.cls, "backward", f"the gradient for {name!r} is a {type_name(g)}, expected a tensor or None")
        if not g.ndim:                                  # a number, in effect: torch, too, moves it
            g = g.to(device=device)
        self._check_device("backward", f"the gradient for {name!r}", g, device)
        node = g._node()
        if not dtypes.differentiable(primal.dtype):
            raise misuse(self.cls, "backward", f"returned a gradient for {name!r}, which is {primal.dtype} and has none; return None")
        lead = len(node.shape) - len(primal.shape)
        fits = lead >= 0 and all(p in (1, n) for p, n in zip(primal.shape, node.shape[lead:], strict=True))
        if node.shape != primal.shape and not fits and not node.aval.size == primal.aval.size == 1:
            raise misuse(self.cls, "backward", f"the gradient for {name!r} has shape {node.shape}, expected {primal.shape}, as {name!r} "
                                               "has", ShapeError)
        return cast(node, primal.dtype)


class OpaqueValue(CustomCall):
    """A value made in a way that cannot be differentiated (NumPy on values): says so when a derivative asks."""

    def __init__(self, aval: Aval, message: str) -> None:
        self.name, self.message, self.output_avals = "opaque", message, (aval,)  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return self.output_avals

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        raise AutogradError(self.message)


def opaque_value(node: Node, sources: Sequence[Node], message: str) -> Node:
    """`node`, which depends on `sources` though the graph does not say how: a derivative through it raises AutogradError(message)."""
    call = bind(OpaqueValue(node.aval, message), (node, *sources), {})
    call.needs_grad = True
    return bind(_OUTPUT, (call,), {"index": 0, "aval": node.aval})
