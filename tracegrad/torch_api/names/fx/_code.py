"""The Python function that a graph is: `CodeGen` writes it."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.names.fx._naming import Namespace, is_from_torch, module_globals, qualified_name, type_text
from tracegrad.torch_api.names.fx.node import Node, _sequence_text

REFLECTABLE = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "floordiv": "{} // {}", "truediv": "{} / {}", "mod": "{} % {}",
    "pow": "{} ** {}", "lshift": "{} << {}", "rshift": "{} >> {}", "and_": "{} & {}", "or_": "{} | {}", "xor": "{} ^ {}",
    "getitem": "{}[{}]", "matmul": "{} @ {}"}
MAGIC = {"eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "gt": "{} > {}", "le": "{} <= {}", "ge": "{} >= {}", "pos": "+{}",
         "neg": "-{}", "invert": "~{}", **REFLECTABLE}
INPLACE = {f"i{name.strip('_')}": template.replace(" ", " ", 1).replace(f" {template.split()[1]} ", f" {template.split()[1]}= ")
           for name, template in REFLECTABLE.items() if name != "getitem"} | {"setitem": "{}[{}] = {}"}


@dataclass
class PythonCode:
    """src: the function's text. globals: what its names mean."""

    src: str
    globals: dict[str, Any]


def attribute(base: str, target: str) -> str:
    """The text of an attribute of an attribute, whose names may be numbers, as those of a Sequential are."""
    for name in target.split("."):
        base = f"{base}.{name}" if name.isidentifier() else f'getattr({base}, "{name}")'
    return base


class CodeGen:
    """How a graph becomes a function. A class derived from this one may say otherwise how it begins and returns."""

    def __init__(self) -> None:
        self._body_transformer: Callable[[list[str]], list[str]] | None = None
        self._func_name = "forward"

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str) -> str:
        """The line that begins the function, of its arguments."""
        names = free_vars if free_vars and free_vars[0] == "self" else ["self", *free_vars]
        return f"def {self._func_name}({', '.join(names)}){maybe_return_annotation}:"

    def generate_output(self, output_args: Any, *, repr_fn: Callable[[Any], str] = repr) -> str:
        """The line that returns."""
        return f"return {repr_fn(output_args)}"

    def process_inputs(self, *args: Any) -> Any:
        """The placeholders' values, of what the function is called with."""
        return args

    def process_outputs(self, outputs: Any) -> Any:
        """What the function returns, of the output node's value."""
        return outputs

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Further names and what they mean."""
        return []

    def python_code(self, nodes: list[Node], root_module: str, namespace: Namespace) -> PythonCode:
        """The function of a graph's nodes. root_module: what it calls the module."""
        return _Writer(self, nodes, root_module, namespace).code()


class TreeCodeGen(CodeGen):
    """Of a function whose arguments are trees: they are taken apart at the beginning, and results are put together at the end."""

    def __init__(self, names: list[str], in_spec: Any) -> None:
        super().__init__()
        self.names, self.in_spec, self.out_spec = names, in_spec, None

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str) -> str:
        names = [n for n in self.names if n != "self"]
        head = super().gen_fn_def(list(self.names), maybe_return_annotation)
        leaves = ["self"] * (self.names[:1] == ["self"]) + [v.split(":")[0].strip() for v in free_vars]
        given = ", ".join(self.names if self.names[:1] == ["self"] else names)
        return f"{head}\n    {', '.join(leaves)}, = fx_pytree.tree_flatten_spec([{given}], self._in_spec)" if free_vars else head

    def generate_output(self, output_args: Any, *, repr_fn: Callable[[Any], str] = repr) -> str:
        return f"return pytree.tree_unflatten({repr_fn(output_args)}, self._out_spec)"

    def process_inputs(self, *args: Any) -> Any:
        from tracegrad.torch_api.names.fx._pytree import tree_flatten_spec  # noqa: PLC0415  (it imports torch's names)

        return tree_flatten_spec(args, self.in_spec)

    def process_outputs(self, outputs: Any) -> Any:
        from tracegrad.torch_api.names.utils._pytree import tree_unflatten  # noqa: PLC0415

        return tree_unflatten(list(outputs), self.out_spec)


class _Writer:
    def __init__(self, codegen: CodeGen, nodes: list[Node], root_module: str, namespace: Namespace) -> None:
        self._codegen, self._nodes, self._root, self._namespace = codegen, nodes, root_module, namespace
        self.globals: dict[str, Any] = {}
        self._arguments: list[str] = []
        self._wrapped: dict[str, None] = {}
        self._returns = ""
        for name, _, obj in module_globals():
            self.globals[namespace.create_name(name, obj)] = obj
        self._done_with: dict[Node, list[Node]] = {}        # a node -> the nodes whose last user it is
        seen: set[Node] = set()
        for user in reversed(nodes):
            last = [n for n in user.all_input_nodes if n not in seen]
            self._done_with[user] = last
            seen.update(last)

    def _name(self, hint: str, obj: Any) -> str:
        """By which name the text finds an object."""
        if is_from_torch(obj):
            return qualified_name(obj)
        name = self._namespace.create_name(hint, obj)
        self.globals[name] = obj
        return name

    def _type(self, kind: Any) -> str:
        if isinstance(kind, types.UnionType):
            return "|".join(map(self._type, typing.get_args(kind)))
        origin = typing.get_origin(kind)
        if origin is None:
            return "()" if kind == () else self._name(type_text(kind), kind)
        if isinstance(kind, typing._GenericAlias) and hasattr(typing, origin.__name__.capitalize()):  # type: ignore[attr-defined]
            origin = getattr(typing, origin.__name__.capitalize())
        base, args = self._name(type_text(origin), origin), typing.get_args(kind)
        return f"{base}[{','.join(map(self._type, args))}]" if args else base

    def _value(self, arg: Any) -> str:
        if isinstance(arg, tuple) and hasattr(arg, "_fields"):
            return f"{self._name(qualified_name(type(arg)), type(arg))}{tuple(arg)!r}"
        if isinstance(arg, enum.Enum):
            return f"{self._name(type(arg).__name__, type(arg))}.{arg.name}"
        if isinstance(arg, Tensor):
            return f"torch.Tensor(size={list(arg.shape)}, dtype={str(arg.dtype).rpartition('.')[2]})"
        if isinstance(arg, (list, tuple)):
            return _sequence_text(arg, self._value)
        if isinstance(arg, slice):
            return f"slice({self._value(arg.start)}, {self._value(arg.stop)}, {self._value(arg.step)})"
        return repr(arg)

    def _call(self, args: Any, kwargs: Any) -> str:
        return ", ".join([*map(self._value, args), *(f"{k} = {self._value(v)}" for k, v in kwargs.items())])

    def _line(self, node: Node) -> str:
        """The statement of a node, without its end; "" for an argument of the same name."""
        kind = "" if node.type is None else f" : {self._type(node.type)}"
        if node.op == "placeholder":
            name = str(node.target)
            self._arguments.append(f"{name}{kind}{f' = {self._value(node.args[0])}' if node.args else ''}")
            bare = name.lstrip("*")
            return "" if bare == node.name else f"{node.name} = {bare}"
        if node.op == "output":
            self._returns = f" -> {self._type(node.type)}" if node.type is not None else ""
            return self._codegen.generate_output(node.args[0], repr_fn=self._value)
        head = f"{node.name}{kind} = "
        if node.op == "get_attr":
            return head + attribute(self._root, str(node.target))
        if node.op == "call_module":
            return f"{head}{attribute(self._root, str(node.target))}({self._call(node.args, node.kwargs)})"
        if node.op == "call_method":
            return f"{head}{attribute(self._value(node.args[0]), str(node.target))}({self._call(node.args[1:], node.kwargs)})"
        return self._function(node, node.target, head)

    def _function(self, node: Node, target: Any, head: str) -> str:
        name = target.__name__
        if getattr(target, "__module__", "") == "_operator":
            if name in MAGIC:
                return head + MAGIC[name].format(*map(self._value, node.args))
            if name in INPLACE:
                return f"{INPLACE[name].format(*map(self._value, node.args))};  {head}{self._value(node.args[0])}"
        called = self._name(qualified_name(target), target)
        if target is getattr and len(node.args) == 2 and isinstance(node.args[1], str) and node.args[1].isidentifier():
            return head + attribute(self._value(node.args[0]), node.args[1])
        if node.meta.get("is_wrapped"):
            self._wrapped[called] = None
        return f"{head}{called}({self._call(node.args, node.kwargs)})"

    def _end(self, node: Node) -> str:
        """What lets go of values that are not used any more."""
        done = [*self._done_with[node], *([] if node.users else [node])]
        return f";  {' = '.join([n.name for n in done] + ['None'])}" if done and node.op not in ("placeholder", "output") else ""

    def code(self) -> PythonCode:
        lines = [f"{line}{self._end(node)}\n" for node in self._nodes if (line := self._line(node))] or ["pass\n"]
        wraps = ""
        if self._wrapped:
            wraps = "\n".join(f'torch.fx._symbolic_trace.wrap("{name}")' for name in self._wrapped)
        if self._codegen._body_transformer:
            lines = self._codegen._body_transformer(lines)
        for name, value in self._codegen.additional_globals():
            self._name(name, value)
        head = self._codegen.gen_fn_def(self._arguments, self._returns)
        body = "".join(lines).lstrip("\n").split("\n")
        return PythonCode(f"\n{wraps}\n\n{head}\n" + "\n".join(f"    {line}" for line in body), self.globals)
