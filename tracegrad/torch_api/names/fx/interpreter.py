"""torch.fx.interpreter: a graph run node by node, and made anew node by node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracegrad.nn.module import Module
from tracegrad.torch_api.names.fx._symbolic_trace import Tracer
from tracegrad.torch_api.names.fx.graph import Graph
from tracegrad.torch_api.names.fx.graph_module import GraphModule
from tracegrad.torch_api.names.fx.node import Node, map_aggregate, map_arg
from tracegrad.torch_api.names.fx.proxy import Proxy

__all__ = ["Interpreter", "Transformer"]


class Interpreter:
    """Runs a graph node by node. A derived class changes what an op does (`call_function`, ...) or sees every node (`run_node`).

    module: whose graph it is. garbage_collect_values: let go of values after their last use. graph: another one that the module serves.

    >>> torch.fx.Interpreter(torch.fx.symbolic_trace(torch.nn.Linear(2, 3))).run(torch.ones(1, 2))
    """

    def __init__(self, module: Module, garbage_collect_values: bool = True, graph: Graph | None = None) -> None:
        self.module = module
        self.graph: Graph = graph if graph is not None else module.graph
        self.submodules = dict(module.named_modules())
        self.env: dict[Node, Any] = {}
        self.name = "Interpreter"
        self.garbage_collect_values = garbage_collect_values
        self.extra_traceback = True
        self.user_to_last_uses: dict[Node, list[Node]] = {}
        seen: set[Node] = set()
        for user in reversed(self.graph.nodes):
            self.user_to_last_uses[user] = [n for n in user.all_input_nodes if n not in seen]
            seen.update(user.all_input_nodes)

    def run(self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True) -> Any:
        """What the graph gives for arguments. initial_env: values of nodes that are known. An error tells the node in which it arose."""
        self.env = dict(initial_env or {})
        self.args_iter: Iterator[Any] = iter(self.graph.process_inputs(*args) if enable_io_processing else args)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                if self.extra_traceback:
                    where = f"While executing {node.format_node()}\nOriginal traceback:\n{node.stack_trace}"
                    error.args = (f"{error.args[0]}\n\n{where}" if error.args else where, *error.args[1:])
                raise
            if self.garbage_collect_values:
                for done in self.user_to_last_uses.get(node, ()):
                    self.env.pop(done, None)
            if node.op == "output":
                found = self.env[node]
                return self.graph.process_outputs(found) if enable_io_processing else found
        return None

    def boxed_run(self, args_list: list[Any]) -> Any:
        """`run` of a list of arguments, which is emptied."""
        names = [n for n in self.graph.nodes if n.op == "placeholder"]
        if len(args_list) != len(names):
            raise RuntimeError(f"Interpreter.boxed_run expected {len(names)} arguments for placeholders but received {len(args_list)}")
        env = dict(zip(names, args_list, strict=True))
        args_list.clear()
        return self.run(initial_env=env)

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The next argument, or its default. Raises RuntimeError where there is neither."""
        if target.startswith("*"):
            return list(self.args_iter)
        for value in self.args_iter:
            return value
        if args:
            return args[0]
        raise RuntimeError(f"Expected positional argument for parameter {target}, but one was not passed in!")

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An attribute of the module."""
        return self.fetch_attr(target)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function gives."""
        return target(*args, **kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a method of args[0] gives."""
        return getattr(args[0], target)(*args[1:], **kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a submodule gives."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the graph returns."""
        return args[0]

    def fetch_attr(self, target: str) -> Any:
        """The attribute of the module at a path. Raises RuntimeError where there is none."""
        found: Any = self.module
        for i, name in enumerate(path := target.split(".")):
            if not hasattr(found, name):
                raise RuntimeError(f"Node referenced nonexistent target {'.'.join(path[:i + 1])}")
            found = getattr(found, name)
        return found

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A node's arguments with values in the place of nodes."""
        return self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)

    def map_nodes_to_values(self, args: Any, n: Node) -> Any:
        """`args` with values in the place of nodes."""
        def value(node: Node) -> Any:
            if node not in self.env:
                raise RuntimeError(f"Node {n} referenced nonexistent value {node}! Run Graph.lint() to diagnose such issues")
            return self.env[node]

        return map_arg(args, value)


class _Keeps(Tracer):
    """Of a graph that is made anew: modules stay calls."""

    def __init__(self, graph: Graph, root: Module) -> None:
        super().__init__()
        self.graph, self.root = graph, root

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return True


class Transformer(Interpreter):
    """Makes a graph anew: as an `Interpreter` whose values are proxies. `transform` gives the new module."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.new_graph = Graph()
        self.new_graph.set_codegen(module.graph._codegen)
        self.tracer: Tracer = _Keeps(self.new_graph, module)

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return Proxy(self.new_graph.placeholder(target, None, *args[:1]), self.tracer)

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(target)
        return self.tracer.call_module(module, module.forward, args, kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def transform(self) -> GraphModule:
        """The new module."""
        result = self.run(enable_io_processing=False)
        if result is not None:
            old = self.graph.output_node()
            made = self.new_graph.output(map_aggregate(result, lambda a: a.node if isinstance(a, Proxy) else a), old.type)
            made.meta = dict(old.meta)
        return GraphModule(self.module, self.new_graph)
