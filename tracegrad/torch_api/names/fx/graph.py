"""torch.fx.graph: the operations of a function, in their order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tracegrad.nn.module import Module
from tracegrad.torch_api.names.fx._code import CodeGen, PythonCode
from tracegrad.torch_api.names.fx._naming import Namespace as _Namespace
from tracegrad.torch_api.names.fx._naming import node_name
from tracegrad.torch_api.names.fx.node import OPS, Node, Target, map_arg

__all__ = ["CodeGen", "Graph", "PythonCode", "_Namespace"]
_NOTHING: Any = object()


class _Nodes:
    """A graph's nodes in their order. They may be inserted and erased while they are walked."""

    def __init__(self, graph: Graph, backwards: bool = False) -> None:
        self._graph, self._backwards = graph, backwards

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Node]:
        root = node = self._graph._root
        while (node := node._prev if self._backwards else node._next) is not root:
            if not node._erased:
                yield node

    def __reversed__(self) -> _Nodes:
        return _Nodes(self._graph, not self._backwards)


class _Insertion:
    """A place for new nodes; as a block, until its end."""

    def __init__(self, graph: Graph, insert: Callable[[Node], None]) -> None:
        self._graph, self._before = graph, graph._insert
        graph._insert = insert

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        self._graph._insert = self._before


class Graph:
    """The operations of a function, each a `Node`: its arguments first, the output last.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> graph.output(graph.call_function(torch.relu, (x,)))
    """

    def __init__(self, owning_module: Any = None, tracer_cls: type | None = None, tracer_extras: Any = None) -> None:
        self._root = Node(self, "", "placeholder", "", (), {})
        self._insert: Callable[[Node], None] = self._root.prepend
        self._graph_namespace = _Namespace()
        self.owning_module = owning_module
        self._tracer_cls, self._tracer_extras = tracer_cls, tracer_extras
        self._codegen = CodeGen()

    @property
    def nodes(self) -> _Nodes:
        """Its nodes, in order; `reversed` walks them from the end."""
        return _Nodes(self)

    def output_node(self) -> Node:
        """Its output."""
        return next(n for n in reversed(self.nodes) if n.op == "output")

    def find_nodes(self, *, op: str, target: Target | None = None, sort: bool = True) -> list[Node]:
        """The nodes of an op and, if it is given, a target, in order."""
        return [n for n in self.nodes if n.op == op and (target is None or n.target == target)]

    # ------------------------------------------------------------------------------------------------------- new nodes

    def create_node(self, op: str, target: Target, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None,
                    name: str | None = None, type_expr: Any = None) -> Node:
        """Insert a node at the place where new ones go: the end, unless `inserting_before` or `inserting_after` say another."""
        if op not in OPS:
            raise AssertionError(f"op {op!r} is none of {', '.join(OPS)}")
        unique = self._graph_namespace.create_name(node_name(target) if name is None else name, None)
        node = Node(self, unique, op, target, args or (), kwargs or {}, type_expr)
        self._graph_namespace.rename(node, unique)
        self._insert(node)
        return node

    def placeholder(self, name: str, type_expr: Any = None, default_value: Any = _NOTHING) -> Node:
        """An argument of the function: "*name" and "**name" take the rest."""
        args = () if default_value is _NOTHING or repr(default_value) == "<class 'inspect._empty'>" else (default_value,)
        return self.create_node("placeholder", name, args, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: Any = None) -> Node:
        """A parameter, buffer or other attribute of the module, by its path."""
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(self, module_name: str, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None,
                    type_expr: Any = None) -> Node:
        """A call of a submodule, by its path."""
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(self, method_name: str, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None,
                    type_expr: Any = None) -> Node:
        """A call of a method of args[0]."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(self, the_function: Callable[..., Any], args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None,
                      type_expr: Any = None, name: str | None = None) -> Node:
        """A call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def output(self, result: Any, type_expr: Any = None) -> Node:
        """What the function returns."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Any] = lambda x: x) -> Node:
        """Insert a copy of another graph's node. arg_transform: the node here that stands for one of its arguments there."""
        args, kwargs = map_arg(node.args, arg_transform), map_arg(node.kwargs, arg_transform)
        made = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        made.meta = copy.copy(node.meta)
        return made

    def graph_copy(self, g: Graph, val_map: dict[Node, Node], return_output_node: bool = False) -> Any:
        """Insert copies of all of a graph's nodes but for those in `val_map`, which gets the others; returns what stands for its output."""
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                result = map_arg(node.args[0], lambda n: val_map[n])
                return (result, node) if return_output_node else result
            val_map[node] = self.node_copy(node, lambda n: val_map[n])
        return None

    def __deepcopy__(self, memo: Any = None) -> Graph:
        made, values = Graph(tracer_cls=self._tracer_cls), {}  # type: ignore[var-annotated]
        found = made.graph_copy(self, values, return_output_node=True)
        made._codegen = copy.deepcopy(self._codegen)
        if found is not None:
            result, old = found
            made.output(result, old.type).meta = copy.copy(old.meta)
        if memo is not None:
            memo[id(self)] = made
        return made

    def inserting_before(self, n: Node | None = None) -> _Insertion:
        """New nodes go before a node (None: before all): inside a `with` block, or from now on."""
        if n is None:
            return self.inserting_after(self._root)
        if n.graph is not self:
            raise AssertionError("Node to insert before is not in graph.")
        return _Insertion(self, n.prepend)

    def inserting_after(self, n: Node | None = None) -> _Insertion:
        """New nodes go after a node (None: after all): inside a `with` block, or from now on."""
        if n is None:
            return self.inserting_before(self._root)
        if n.graph is not self:
            raise AssertionError("Node to insert after is not in graph.")
        return _Insertion(self, n.append)

    def erase_node(self, to_erase: Node) -> None:
        """Remove a node. Raises RuntimeError where another uses it."""
        if to_erase.users:
            raise RuntimeError(f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in the graph: "
                               f"{to_erase.users}!")
        if to_erase.graph is not self:
            raise RuntimeError(f"Attempting to remove {to_erase} from wrong graph!")
        if not to_erase._erased:
            to_erase._unlink()
            to_erase._erased = True
            to_erase._update((), {})

    # ------------------------------------------------------------------------------------------------------- the whole

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Erase what nobody uses and what has no effect (`Node.is_impure`, unless `is_impure_node` says); whether there was any."""
        self.lint()
        dead = False
        for node in reversed(self.nodes):
            if not node.users and not (is_impure_node or Node.is_impure)(node):
                self.erase_node(node)
                dead = True
        return dead

    def lint(self) -> None:
        """Check the graph. Raises RuntimeError where a node uses one that is elsewhere or later, or what its module does not have."""
        seen: dict[Node, str] = {}
        for node in self.nodes:
            for arg in node.all_input_nodes:
                if arg.graph is not self:
                    raise RuntimeError(f"Argument '{arg}' of Node '{node}' does not belong to this Graph, but was used as an argument! If "
                                       f"you are copying nodes from another graph, make sure to use ``arg_transform`` on node_copy() to "
                                       f"remap values\n{self}")
                if arg not in seen:
                    raise RuntimeError(f"Argument '{arg}' of Node '{node}' was used before it has been defined! Please check that Nodes in "
                                       f"the graph are topologically ordered\n{self}")
            if node.name in seen.values():
                raise RuntimeError(f"Node redefined name {node.name}!")
            seen[node] = node.name
            if self.owning_module is not None and node.op in ("get_attr", "call_module"):
                self._check_target(node)

    def _check_target(self, node: Node) -> None:
        owner, path = self.owning_module, str(node.target).split(".")
        for i, name in enumerate(path):
            before = ".".join(path[:i])
            owner = getattr(owner, name, None)
            if owner is None:
                raise RuntimeError(f"Node {node} target {node.target} references nonexistent attribute {name} of {before}")
            if node.op == "call_module" and not isinstance(owner, Module):
                raise RuntimeError(f"Node {node} target {node.target} {name} of {before} does not reference an nn.Module")

    def process_inputs(self, *args: Any) -> Any:
        """The placeholders' values, of what the function is called with."""
        return self._codegen.process_inputs(*args)

    def process_outputs(self, out: Any) -> Any:
        """What the function returns, of the output node's value."""
        return self._codegen.process_outputs(out)

    def set_codegen(self, codegen: CodeGen) -> None:
        """Have the code written by another class derived from `CodeGen`."""
        self._codegen = codegen

    def on_generate_code(self, make_transformer: Callable[[Any], Any]) -> Any:
        """Have the lines of the code changed: make_transformer(the present change or None) gives a function from lines to lines.

        Returns a block at whose end the change is undone.
        """
        before = self._codegen._body_transformer
        self._codegen._body_transformer = make_transformer(before)

        @contextmanager
        def block() -> Iterator[None]:
            try:
                yield
            finally:
                self._codegen._body_transformer = before

        return block()

    def python_code(self, root_module: str, **_: Any) -> PythonCode:
        """The graph as a Python function. root_module: what the code calls the module, "self"."""
        namespace = _Namespace()
        for node in self.nodes:
            node.name = namespace.create_name(node.name, node)
        return self._codegen.python_code(list(self.nodes), root_module, namespace)

    def _target_to_str(self, target: Target) -> str:
        return node_name(target)

    def __str__(self) -> str:
        return "\n    ".join(["graph():", *(str(node.format_node()) for node in self.nodes)])

    def print_tabular(self) -> None:
        """Print the nodes as a table."""
        heads = ["opcode", "name", "target", "args", "kwargs"]
        rows = [[str(cell) for cell in (n.op, n.name, n.target, n.args, n.kwargs)] for n in self.nodes]
        widths = [max(len(head) + 2, *map(len, column)) for head, *column in zip(heads, *rows, strict=True)]
        for row in (heads, ["-" * w for w in widths], *rows):
            line = "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            print(line)  # noqa: T201  (what it is called for)
