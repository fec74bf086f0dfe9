"""torch.fx.proxy: what stands for a value while a function is traced, and records what is done with it."""

from __future__ import annotations

import dataclasses
import dis
import enum
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tracegrad.torch_api.names.fx._code import MAGIC, REFLECTABLE
from tracegrad.torch_api.names.fx._naming import is_method, node_name
from tracegrad.torch_api.names.fx.graph import Graph
from tracegrad.torch_api.names.fx.node import Node, Target, base_types, map_aggregate, map_arg

__all__ = ["Attribute", "GraphAppendingTracer", "ParameterProxy", "Proxy", "TraceError", "TracerBase"]


class TraceError(ValueError):
    """A function asks a value of its arguments while it is traced."""


class TracerBase:
    """What makes nodes of operations."""

    graph: Graph
    record_stack_traces = False
    proxy_buffer_attributes = False
    traced_func_name = "forward"
    module_stack: dict[str, Any]

    def create_node(self, kind: str, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None = None,
                    type_expr: Any = None) -> Node:
        """Insert a node. A derived class may check or change it here."""
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        if stack := getattr(self, "module_stack", None):
            node.meta["nn_module_stack"] = dict(stack)
        return node

    def proxy(self, node: Node) -> Proxy:
        """What stands for a node's value."""
        return Proxy(node, self)

    def create_proxy(self, kind: str, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None = None,
                     type_expr: Any = None, proxy_factory_fn: Callable[[Node], Proxy] | None = None) -> Proxy:
        """Insert a node of arguments among which are proxies; what stands for its value."""
        node = self.create_node(kind, target, self.create_arg(args), self.create_arg(kwargs), name, type_expr)
        return (proxy_factory_fn or self.proxy)(node)

    def create_arg(self, a: Any) -> Any:
        """An argument as a node has it: with nodes for proxies. Raises NotImplementedError where a graph cannot hold it."""
        if isinstance(a, Proxy):
            return a.node
        if hasattr(a, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            return type(a)(*(self.create_arg(x) for x in a))
        if isinstance(a, (tuple, list)):
            return type(a)([self.create_arg(x) for x in a])
        if isinstance(a, dict):
            return {self._key(k): self.create_arg(v) for k, v in a.items()}
        if isinstance(a, slice):
            return slice(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        if isinstance(a, range):
            return range(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            fields = {f.name: self.create_arg(getattr(a, f.name)) for f in dataclasses.fields(a)}
            return self.create_node("call_function", type(a), (), fields)
        if isinstance(a, (*base_types, enum.Enum, Node)) or a is None or a is ... or _is_setting(a):
            return a
        raise NotImplementedError(f"argument of type: {type(a)}")

    def _key(self, key: Any) -> Any:
        def refuse(node: Node) -> None:
            raise RuntimeError(f"Keys for dictionaries used as an argument cannot contain a Node. Got key: {node}")

        if not isinstance(key, str):
            map_arg(key := self.create_arg(key), refuse)
        return key

    def to_bool(self, obj: Proxy) -> bool:
        """Whether a proxy is true: asked by `if` and its like. Raises TraceError; a derived class may know."""
        raise TraceError("symbolically traced variables cannot be used as inputs to control flow")

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """What a loop over a proxy walks. Raises TraceError; a derived class may know."""
        raise TraceError("Proxy object cannot be iterated. This can be attempted when the Proxy is used in a loop or as a *args or "
                         "**kwargs function argument. See the torch.fx docs on pytorch.org for a more detailed explanation of what types "
                         "of control flow can be traced, and check out the Proxy docstring for help troubleshooting Proxy iteration "
                         "errors")

    def keys(self, obj: Proxy) -> Any:
        """What `**proxy` walks."""
        return Attribute(obj, "keys")()


def _is_setting(a: Any) -> bool:
    """Whether it is a dtype, a device or the like."""
    return type(a).__name__ in ("dtype", "device", "memory_format", "layout")


class GraphAppendingTracer(TracerBase):
    """What makes nodes of operations on proxies of a graph that is there already."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph


class Proxy:
    """What stands for a node's value while a function is traced: operators, methods, attributes and torch's functions of it make nodes.

    Its truth, its length and a loop over it are not known: they raise an error.
    """

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        self.tracer = tracer or GraphAppendingTracer(node.graph)
        self.node = node

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, k: str) -> Any:
        if k in _NOT_RECORDED:
            raise AttributeError(k)
        return Attribute(self, k)

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        asks = next((i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti), None)
        if asks is not None and asks.opname == "UNPACK_SEQUENCE":         # a, b = proxy: as many items as there are names
            return (self[i] for i in range(asks.argval))  # type: ignore[index]
        return self.tracer.iter(self)

    def __abs__(self) -> Proxy:
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    def __bool__(self) -> bool:
        return self.tracer.to_bool(self)

    def keys(self) -> Any:
        return self.tracer.keys(self)

    def __len__(self) -> int:
        raise RuntimeError("'len' is not supported in symbolic tracing by default. If you want this call to be recorded, please call "
                           "torch.fx.wrap('len') at module scope")

    @classmethod
    def __torch_function__(cls, orig_method: Any, types: Any, args: Any = None, kwargs: Any = None) -> Any:
        args, kwargs = args or (), kwargs or {}
        tracers: dict[int, TracerBase] = {}
        map_aggregate((args, kwargs), lambda x: tracers.setdefault(id(x.tracer), x.tracer) if isinstance(x, Proxy) else None)
        if len(tracers) > 1:
            raise RuntimeError(f"Found multiple different tracers {list(tracers.values())} while trying to trace operations {orig_method}")
        tracer, = tracers.values()
        if is_method(orig_method):
            return tracer.create_proxy("call_method", orig_method.__name__, args, kwargs)
        return tracer.create_proxy("call_function", orig_method, args, kwargs, name=node_name(orig_method))


_NOT_RECORDED = {"__fx_create_arg__", "__deepcopy__", "__getstate__", "__setstate__", "__array__", "__array_interface__",
                 "__array_struct__", "__dlpack__"}


class Attribute(Proxy):
    """An attribute of a proxy: a call of it is a method, any other use of it a node that gets it."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root, self.attr, self.tracer = root, attr, root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        if self._node is None:                              # most attributes are called
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """What stands for a parameter whose shape is a constant of the function."""

    def __init__(self, tracer: TracerBase, node: Node, name: str, param: Any) -> None:
        super().__init__(node, tracer)
        self.param, self.name = param, name

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    @property
    def shape(self) -> Any:
        return self.param.shape

    @property
    def ndim(self) -> Any:
        return self.param.ndim

    def size(self) -> Any:
        return self.param.size()

    def dim(self) -> int:
        return int(self.param.dim())

    def numel(self) -> int:
        return int(self.param.numel())

    nelement = numel


def _operator(name: str, reflected: bool) -> Callable[..., Proxy]:
    target = getattr(operator, name)

    def recorded(self: Proxy, *rest: Any) -> Proxy:
        return self.tracer.create_proxy("call_function", target, (*rest, self) if reflected else (self, *rest), {})

    return recorded


for _name in MAGIC:
    setattr(Proxy, f"__{_name.strip('_')}__", _operator(_name, False))
for _name in REFLECTABLE:
    setattr(Proxy, f"__r{_name.strip('_')}__", _operator(_name, True))
Proxy.__hash__ = object.__hash__  # type: ignore[method-assign]
