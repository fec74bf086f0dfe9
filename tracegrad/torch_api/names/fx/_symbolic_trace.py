"""torch.fx.symbolic_trace: a function or module is called with proxies, and what it does with them becomes a graph."""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from tracegrad.nn.containers import Sequential
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import overrides
from tracegrad.torch_api.modules import placeholder
from tracegrad.torch_api.names.fx._code import TreeCodeGen
from tracegrad.torch_api.names.fx._compatibility import compatibility
from tracegrad.torch_api.names.fx.graph import Graph
from tracegrad.torch_api.names.fx.graph_module import GraphModule
from tracegrad.torch_api.names.fx.node import base_types, map_aggregate
from tracegrad.torch_api.names.fx.proxy import ParameterProxy, Proxy, TracerBase
from tracegrad.torch_api.names.utils import _pytree as pytree

__all__ = ["PH", "PHBase", "ProxyableClassMeta", "Tracer", "compatibility", "is_fx_tracing", "symbolic_trace", "wrap"]


class PHBase:
    """An argument of `concrete_args` that stays an argument."""

    def __repr__(self) -> str:
        return "PH"


PH = PHBase()
_orig_module_call, _orig_module_getattr = Module.__call__, Module.__getattr__
_wrapped: dict[tuple[int, str], dict[str, Any]] = {}        # functions that stay calls: the globals that have them, and their names
_tracing: list[Any] = []
ScriptObject: Any = placeholder("torch", "ScriptObject")


def is_fx_tracing() -> bool:
    """Whether a function is being traced."""
    return bool(_tracing)


def wrap(fn_or_name: Any) -> Any:
    """Let a function of this module stay one call in graphs: as a decorator, or by its name. Returns what it is given.

    Raises RuntimeError for anything else, NotImplementedError where it is not called at the top level of a module.
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError("Unsupported type for global function! Must be either a callable or string name")
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    frame = sys._getframe(1)
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    _wrapped[id(frame.f_globals), name] = frame.f_globals
    return fn_or_name


def _proxies(values: Any) -> list[Proxy]:
    """The proxies among values."""
    found: list[Proxy] = []
    map_aggregate(values, lambda x: found.append(x) if isinstance(x, Proxy) else None)
    return found


def _recorded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose calls with proxies are nodes."""
    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not (found := _proxies((args, kwargs))):
            return fn(*args, **kwargs)
        proxy = found[-1].tracer.create_proxy("call_function", fn, args, kwargs)
        proxy.node.meta["is_wrapped"] = True
        return proxy

    called._fx_recorded = True  # type: ignore[attr-defined]
    return called


class ProxyableClassMeta(type):
    """The class of classes whose instances are made by a node where an argument is a proxy."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if _tracing and (found := _proxies((args, kwargs))):
            return found[-1].tracer.create_proxy("call_function", cls, args, kwargs)
        return super().__call__(*args, **kwargs)


class _Patcher:
    """A block at whose end all is as before: functions in modules' globals, and methods of classes, such as calls of modules.

    Tracers of programs (torch_geometric's) enter one themselves, and call the two functions below.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._seen: set[Any] = set()

    def patch(self, frame_dict: dict[str, Any], name: str, new_fn: Callable[..., Any], deduplicate: bool = True) -> None:
        """Put a function in the place of a global, or of a builtin that its module sees. deduplicate: only if none was put there before."""
        if (id(frame_dict), name) in self._seen and deduplicate:
            return
        self._seen.add((id(frame_dict), name))
        if name in frame_dict:
            before = frame_dict[name]
            self._undo.append(lambda: frame_dict.__setitem__(name, before))
        else:
            self._undo.append(lambda: frame_dict.__delitem__(name))
        frame_dict[name] = new_fn

    def patch_method(self, cls: type, name: str, new_fn: Callable[..., Any], deduplicate: bool = True) -> None:
        """Put a function in the place of a method."""
        if (cls, name) in self._seen and deduplicate:
            return
        self._seen.add((cls, name))
        before = getattr(cls, name)
        setattr(cls, name, new_fn)
        self._undo.append(lambda: setattr(cls, name, before))

    def visit_once(self, thing: Any) -> bool:
        """Whether it is asked of this object for the first time."""
        first = id(thing) not in self._seen
        self._seen.add(id(thing))
        return first

    def __enter__(self) -> _Patcher:
        overrides.see_methods()
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()


def _autowrap_check(patcher: _Patcher, frame_dict: dict[str, Any], function_ids: set[int]) -> None:
    """Record calls of those of a module's globals that are among these."""
    if patcher.visit_once(frame_dict):
        for name in [n for n, v in frame_dict.items() if not n.startswith("_") and callable(v) and id(v) in function_ids]:
            if not hasattr(frame_dict[name], "_fx_recorded"):
                patcher.patch(frame_dict, name, _recorded(frame_dict[name]))


def _patch_wrapped_functions(patcher: _Patcher) -> None:
    """Record calls of what `wrap` was given."""
    for (_, name), scope in list(_wrapped.items()):
        fn = scope[name] if name in scope else getattr(builtins, name)
        if not hasattr(fn, "_fx_recorded"):
            patcher.patch(scope, name, _recorded(fn))


class Tracer(TracerBase):
    """What traces a module or function. A derived class says what stays one node (`is_leaf_module`), and may change nodes as they are made.

    autowrap_modules: modules whose functions stay calls. autowrap_functions: functions that do. param_shapes_constant: shapes of parameters
    are numbers, not nodes.
    """

    def __init__(self, autowrap_modules: tuple[ModuleType, ...] = (math,), autowrap_functions: tuple[Callable[..., Any], ...] = (),
                 param_shapes_constant: bool = False) -> None:
        self._autowrap_function_ids = {
            id(fn) for m in autowrap_modules for n, fn in vars(m).items() if not n.startswith("_") and callable(fn)}
        self._autowrap_function_ids |= {id(fn) for fn in autowrap_functions}
        self._autowrap_search = list(autowrap_modules)
        self.param_shapes_constant = param_shapes_constant
        self.submodule_paths: dict[Module, str] | None = None
        self.module_stack: dict[str, Any] = {}
        self.num_calls: dict[str, int] = {}
        self.root: Any = None
        self.tensor_attrs: dict[Any, str] = {}

    # ---------------------------------------------------------------------------------------------- what derived classes change

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """Whether a module stays one node: those of torch.nn do, but for Sequential."""
        return m.__module__.startswith(("torch.nn", "tracegrad.nn")) and not isinstance(m, Sequential)

    def path_of_module(self, mod: Module) -> str:
        """The path of a submodule. Raises NameError for another module."""
        paths = self.submodule_paths or {m: name for name, m in self.root.named_modules()}
        if mod not in paths:
            raise NameError("module is not installed as a submodule")
        return paths[mod]

    def call_module(self, m: Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call of a module is: a node of a leaf, of others what `forward` gives."""
        path = self.path_of_module(m)
        calls = self.num_calls.get(path, 0)
        self.num_calls[path] = calls + 1
        key = f"{path}@{calls}" if calls else path
        self.module_stack[key] = path, type(m)
        try:
            return self.create_proxy("call_module", path, args, kwargs) if self.is_leaf_module(m, path) else forward(*args, **kwargs)
        finally:
            del self.module_stack[key]

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """What an attribute of a module is: of a parameter what stands for it, of others the value."""
        if isinstance(attr_val, Parameter):
            named = self.root.named_parameters()
        elif self.proxy_buffer_attributes and isinstance(attr_val, Tensor):
            named = self.root.named_buffers()
        else:
            return attr_val
        path = next((name for name, value in named if value is attr_val), None)
        if path is None:
            return attr_val
        if path not in parameter_proxy_cache:
            factory = {"proxy_factory_fn": lambda node: ParameterProxy(self, node, path, attr_val)} if self.param_shapes_constant else {}
            create: Any = self.create_proxy                 # a derived class's may not take a factory
            parameter_proxy_cache[path] = create("get_attr", path, (), {}, **factory)
        return parameter_proxy_cache[path]

    def create_arg(self, a: Any) -> Any:
        """An argument as a node has it: of tensors and submodules, nodes that get them from the module."""
        if isinstance(a, (Parameter, Tensor, Module)):
            return self.create_node("get_attr", self._path_of(a), (), {})
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            return self.create_node("call_function", type(a), tuple(self.create_arg(x) for x in a), {})
        if isinstance(type(a), ProxyableClassMeta):
            path = self.get_fresh_qualname(f"_{type(a).__name__}_constant_")
            setattr(self.root, path, a)
            return self.create_node("get_attr", path, (), {})
        return super().create_arg(a)

    def _path_of(self, a: Any) -> str:
        kind = "parameters" if isinstance(a, Parameter) else "buffers" if isinstance(a, Tensor) else "modules"
        for name, value in getattr(self.root, f"named_{kind}")():
            if value is a:
                return str(name)
        if not isinstance(a, Tensor) or kind == "parameters":
            raise NameError(f"{kind[:-1]} is not a member of this module")
        if a not in self.tensor_attrs:
            self.tensor_attrs[a] = self.get_fresh_qualname("_tensor_constant")
            setattr(self.root, self.tensor_attrs[a], a)
        return self.tensor_attrs[a]

    def get_fresh_qualname(self, prefix: str) -> str:
        """A name that begins with `prefix` and is no attribute of the module."""
        return next(name for i in range(sys.maxsize) if not hasattr(self.root, name := f"{prefix}{i}"))

    # ------------------------------------------------------------------------------------------------------------ tracing

    def trace(self, root: Module | Callable[..., Any], concrete_args: dict[str, Any] | tuple[Any, ...] | None = None) -> Graph:
        """The graph of a module's forward or of a function.

        concrete_args: values of arguments that the graph is made for, by name; `PH` in them stays an argument.
        """
        if isinstance(root, Module):
            self.root, fn = root, getattr(type(root), self.traced_func_name)
            self.submodule_paths = {m: name for name, m in root.named_modules()}
        else:
            self.root, fn = Module(), root
        if not isinstance(fn, FunctionType):
            raise AssertionError(f"Expected FunctionType, got {type(fn)}")
        self.graph = Graph(tracer_cls=type(self))
        self.tensor_attrs = {value: f"{path}.{name}".lstrip(".") for path, m in self.root.named_modules() for name, value in vars(m).items()
                             if isinstance(value, Tensor)}
        _tracing.append(self)
        try:
            called, args = self.create_args_for_root(fn, isinstance(root, Module), concrete_args)
            with self._patched(fn):
                result = self.create_arg(called(*args))
                self.create_node("output", "output", (result,), {}, type_expr=_annotations(fn).get("return"))
        finally:
            _tracing.remove(self)
            self.submodule_paths = None
        return self.graph

    @contextmanager
    def _patched(self, fn: FunctionType) -> Iterator[None]:
        """A block in which calls and attributes of modules, and functions that stay calls, come to this tracer."""
        cache: dict[str, Any] = {}
        call, get = Module.__call__, Module.__getattr__

        def called(module: Module, *args: Any, **kwargs: Any) -> Any:
            _autowrap_check(patcher, getattr(getattr(module, "forward", module), "__globals__", {}), self._autowrap_function_ids)
            return self.call_module(module, lambda *a, **k: call(module, *a, **k), args, kwargs)

        with _Patcher() as patcher:
            patcher.patch_method(Module, "__getattr__", lambda module, name: self.getattr(name, get(module, name), cache))
            patcher.patch_method(Module, "__call__", called)
            _patch_wrapped_functions(patcher)
            for scope in (fn.__globals__, *map(vars, self._autowrap_search)):
                _autowrap_check(patcher, scope, self._autowrap_function_ids)
            yield

    def create_args_for_root(self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Placeholders for a function's arguments: the function as it is called with them, and what stands for them."""
        signature = inspect.signature(inspect.unwrap(root_fn))
        names = list(signature.parameters)[is_module:]
        if is_module and not signature.parameters:
            raise RuntimeError("``self`` argument cannot be part of *args expansion!")
        if isinstance(concrete_args, tuple):
            if len(names) != len(concrete_args):
                raise RuntimeError(f"Tracing expected {len(names)} arguments but got {len(concrete_args)} concrete arguments")
            concrete_args = dict(zip(names, concrete_args, strict=True))
        first = [self.root] if is_module else []
        kinds = [signature.parameters[n].kind for n in names]
        given = [self._argument(signature.parameters[n], inspect.unwrap(root_fn), concrete_args or {}) for n in names]
        leaves, spec = pytree.tree_flatten((*first, *given))

        def called(*args: Any) -> Any:
            own, rest = args[:len(first)], args[len(first):]
            positional = [a for a, kind in zip(rest, kinds, strict=True) if kind is not inspect.Parameter.KEYWORD_ONLY]
            return _with_stars(root_fn, kinds)(*own, *positional, **{n: a for n, a, kind in zip(names, rest, kinds, strict=True)
                                                                     if kind is inspect.Parameter.KEYWORD_ONLY})

        if all(child.is_leaf() for child in spec.children()):
            return called, [*first, *given]
        codegen = TreeCodeGen(list(signature.parameters), spec)
        self.graph.set_codegen(codegen)

        def flat(*args: Any) -> Any:
            found, codegen.out_spec = pytree.tree_flatten(called(*pytree.tree_unflatten(list(args), spec)))
            return found

        return flat, leaves

    def _argument(self, parameter: inspect.Parameter, fn: Callable[..., Any], concrete_args: dict[str, Any]) -> Any:
        name, count = parameter.name, 0
        stars = "*" * ((parameter.kind is parameter.VAR_POSITIONAL) + 2 * (parameter.kind is parameter.VAR_KEYWORD))
        default = () if parameter.default is parameter.empty else (parameter.default,)
        if name not in concrete_args:
            return self.create_proxy("placeholder", stars + name, default, {}, type_expr=_annotations(fn).get(name))

        def leaf(value: Any) -> Any:
            nonlocal count
            count += 1
            proxy = self.create_proxy("placeholder", f"{name}_{count}", default, {})
            if isinstance(value, PHBase):
                return proxy
            if value is None:
                said = f"{name} has been specialized to have value None but got another value"
                self.create_proxy("call_function", _assert_is_none, (proxy, said), {})
            elif isinstance(value, base_types):
                same = operator.eq(proxy, value)
                said = f"{name} has been specialized to have value {value} but got another value"
                self.create_proxy("call_function", import_module("torch")._assert, (same, said), {})
            return value

        return pytree.tree_map(leaf, concrete_args[name])


def _annotations(fn: Any) -> dict[str, Any]:
    """A function's annotations. Those of tracegrad's modules are its own matter: torch's have none."""
    fn = inspect.unwrap(fn)
    return {} if (fn.__module__ or "").startswith("tracegrad.") else fn.__annotations__


def _with_stars(fn: Any, kinds: list[Any]) -> Callable[..., Any]:
    """A function as one whose *args and **kwargs are plain arguments: what it is given for them, a proxy, it finds under their names."""
    if not {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} & set(kinds):
        return fn  # type: ignore[no-any-return]
    code = fn.__code__
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    plain = code.replace(co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS), co_kwonlyargcount=0, co_posonlyargcount=0,
                         co_argcount=code.co_argcount + code.co_kwonlyargcount + more)
    made = FunctionType(plain, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)

    def called(*args: Any, **kwargs: Any) -> Any:
        own = args[:code.co_argcount]
        return made(*own, *(kwargs[n] for n in code.co_varnames[code.co_argcount:][:code.co_kwonlyargcount]), *args[code.co_argcount:])

    return called


def symbolic_trace(root: Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None) -> GraphModule:
    """A module that does what a module or function does, by a graph of its operations.

    concrete_args: values of arguments that the graph is made for, by name; `PH` in them stays an argument.

    Raises TraceError where the function asks a value of its arguments: an `if` or a loop over them.

    >>> traced = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    >>> traced.graph.print_tabular()
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    return GraphModule(tracer.root, graph, type(root).__name__ if isinstance(root, Module) else root.__name__)


def _assert_is_none(value: Any, msg: str) -> None:
    assert value is None, msg


wrap("_assert_is_none")

