"""torch.fx.graph_module: a module whose `forward` is a graph."""

from __future__ import annotations

import copy
import itertools
import linecache
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tracegrad.nn.module import Module
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.names.fx._code import PythonCode, TreeCodeGen
from tracegrad.torch_api.names.fx._naming import is_from_torch, module_globals
from tracegrad.torch_api.names.fx.graph import Graph

__all__ = ["GraphModule", "reduce_graph_module"]
_count = itertools.count()
_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"         # of a graph module's meta


def _function(src: str, names: dict[str, Any], called: str = "forward") -> Callable[..., Any]:
    """The function of generated code, whose lines tracebacks show."""
    file, scope = f"<eval_with_key>.{next(_count)}", dict(names)
    linecache.cache[file] = len(src), None, src.splitlines(keepends=True), file
    exec(compile(src, file, "exec", dont_inherit=True), scope)
    return scope[called]  # type: ignore[no-any-return]


def _copy_attr(source: Any, to: Any, target: str) -> None:
    """Give `to` what `source` has at a path, making modules on the way."""
    *path, name = target.split(".")
    for item in path:
        found, there = getattr(source, item), getattr(to, item, None)
        if found is there:
            return                                          # a parent was copied already
        if there is None:
            setattr(to, item, there := Module())
        source, to = found, there
    _assign(to, name, getattr(source, name))


def _assign(owner: Any, name: str, value: Any) -> None:
    if isinstance(value, Tensor) and type(value) is Tensor and name not in owner._buffers:
        owner.register_buffer(name, value)
    else:
        setattr(owner, name, value)


class GraphModule(Module):
    """A module whose `forward` is the code of a graph.

    root: the module whose parameters and submodules the graph names, or a dictionary of them by their paths. graph: what it computes; after
    changing it in place, call `recompile`. Raises RuntimeError where a dictionary lacks a name.

    >>> traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))
    >>> print(traced.code)
    """

    _graph: Graph
    _code: str

    def __new__(cls, *_: Any, **__: Any) -> Any:
        base = next(c for c in cls.__mro__ if "_made_for_one" not in vars(c))
        named = {"__module__": base.__module__, "__qualname__": "GraphModule.__new__.<locals>.GraphModuleImpl"}     # programs look for it
        return object.__new__(type(base.__name__, (base,), {"_made_for_one": True, **named}))

    def __init__(self, root: Module | dict[str, Any], graph: Graph, class_name: str = "GraphModule") -> None:
        super().__init__()
        type(self).__name__ = class_name
        targets = [str(n.target) for n in graph.nodes if n.op in ("get_attr", "call_module")]
        if isinstance(root, Module):
            self.training = root.training
            for target in targets:
                _copy_attr(root, self, target)
        elif isinstance(root, dict):
            for node in graph.nodes:
                if node.op in ("get_attr", "call_module") and node.target not in root:
                    raise RuntimeError(f"Node {node} referenced target {node.target} but that target was not provided in ``root``!")
            for target in sorted(targets, key=lambda t: t.count(".")):
                *path, name = target.split(".")
                owner: Any = self
                for item in path:
                    if getattr(owner, item, None) is None:
                        setattr(owner, item, Module())
                    owner = getattr(owner, item)
                _assign(owner, name, root[target])
        else:
            raise RuntimeError(f"Unsupported type {root} passed for root!")
        self.meta: dict[str, Any] = {}
        self.graph = graph

    @property
    def graph(self) -> Graph:
        """What it computes. Another graph that is assigned is compiled."""
        return self._graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        self._graph = graph
        graph.owning_module = self
        self.recompile()

    @property
    def code(self) -> str:
        """The Python code of `forward`."""
        return self._code

    def recompile(self) -> PythonCode:
        """Make `forward` what the graph is now."""
        if isinstance(codegen := self._graph._codegen, TreeCodeGen):
            self._in_spec, self._out_spec = codegen.in_spec, codegen.out_spec
        code = self._graph.python_code("self")
        self._code = code.src
        type(self).forward = _function(code.src, code.globals, codegen._func_name)  # type: ignore[method-assign]
        return code

    # ------------------------------------------------------------------------------------------------------ submodules

    def add_submodule(self, target: str, m: Module) -> bool:
        """Put a module at a path, making modules on the way; False where something else stands there."""
        *path, name = target.split(".")
        owner: Any = self
        for item in path:
            if getattr(owner, item, None) is None:
                setattr(owner, item, Module())
            owner = getattr(owner, item)
            if not isinstance(owner, Module):
                return False
        owner.add_module(name, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Remove the module at a path; False where there is none."""
        path, _, name = target.rpartition(".")
        try:
            owner = self.get_submodule(path)
        except AttributeError:
            return False
        if not isinstance(getattr(owner, name, None), Module):
            return False
        delattr(owner, name)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Remove the submodules that no node names, neither themselves nor what they hold."""
        used: set[str] = set()
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                used.update(itertools.accumulate(str(node.target).split("."), "{}.{}".format))
                if node.op == "call_module":
                    used.update(f"{node.target}.{name}" for name, _ in self.get_submodule(str(node.target)).named_modules() if name)
        for name in [n for n, _ in self.named_modules() if n and n not in used]:
            self.delete_submodule(name)

    # ------------------------------------------------------------------------------------------------------------ copies

    def __deepcopy__(self, memo: Any) -> GraphModule:
        made: GraphModule = GraphModule.__new__(type(self))
        memo[id(self)] = made
        vars(made).update(copy.deepcopy({k: v for k, v in vars(self).items() if k != "_graph"}, memo))
        type(made).__name__ = type(self).__name__
        made.graph = copy.deepcopy(self._graph)
        return made

    def __reduce__(self) -> Any:
        code = self.recompile()
        imports = {name: statement for name, statement, _ in module_globals()}
        lines = [imports.get(name) or f"from {obj.__module__} import {obj.__qualname__} as {name}" for name, obj in code.globals.items()
                 if not is_from_torch(obj) or name in imports]
        state = {k: v for k, v in vars(self).items() if k != "_graph"} | {"_graphmodule_cls_name": type(self).__name__}
        return reduce_graph_module, (state, "\n".join(sorted(lines)))

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self._code}\n# To see more debug info, please use `graph_module.print_readable()`"

    def print_readable(self, print_output: bool = True, **_: Any) -> str:
        """The code as that of a class, with those of graphs among its submodules; printed, too, unless `print_output` is False."""
        body = "".join(f"    {line}\n" if line.strip() else "\n" for line in self._code.strip("\n").split("\n"))
        inner = "".join("\n" + "".join(f"    {line}\n" for line in m.print_readable(False).split("\n")) for m in self.children()
                        if isinstance(m, GraphModule))
        text = f"class {type(self).__name__}(torch.nn.Module):\n{body}{inner}"
        if print_output:
            print(text)  # noqa: T201  (what it is asked for)
        return text


class _CodeOnlyModule(Module):
    """What a saved or copied module is before its code is traced again: the attributes, as they are."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__ = body


def reduce_graph_module(body: dict[str, Any], import_block: str) -> GraphModule:
    """A module that was pickled, by tracing its code."""
    tracer: Any = import_module("torch.fx").Tracer          # it makes modules

    class KeepsModules(tracer):  # type: ignore[misc]
        def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
            return True

    owner = type("_CodeOnlyModule", (_CodeOnlyModule,), {"forward": _function(f"{import_block}\n{body['_code']}", {})})(dict(body))
    graph = KeepsModules().trace(owner)
    graph._tracer_cls = tracer
    made = GraphModule(owner, graph, body["_graphmodule_cls_name"])
    for name, value in body.items():
        if name not in vars(made):
            object.__setattr__(made, name, value)
    for table in ("_parameters", "_buffers", "_modules"):
        for name, value in body[table].items():
            vars(made)[table].setdefault(name, value)
    return made
