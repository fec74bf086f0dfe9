"""A graph as readable Python that runs: what `f.source()` shows. Start at `python_source`.

A `_Writer` decides for every node how it reads (`expression`), whether it stands inside its user's expression or on a line of its own,
and what it is called. Everything is iterative: graphs are deep.
"""

from __future__ import annotations

import keyword
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tracegrad.execute.compile import executable_graph
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.locations import Location
from tracegrad.graph.operation_families import Elementwise, broadcast_shapes
from tracegrad.graph.operators import PUBLIC, SPECIAL
from tracegrad.graph.printing import assigned_name, aval_text, file_line, identifier, source_line, unique_names
from tracegrad.inspection.python_calls import (
    ATOM,
    CALLS,
    POWER,
    UNARY,
    Text,
    attribute_text,
    bottom,
    dims_text,
    dtype_text,
    iota_text,
    keepdim_base,
    literal_text,
    number_in,
    operand_of,
    relu_operand,
    values_text,
)
from tracegrad.support.dtypes import dtype_kind

_RESERVED = ("tg", "primitive", "float", "complex")      # names that the text itself needs
_WIDTH = 100                                 # longer expressions are cut into several statements


@dataclass(frozen=True)
class _Scalar:
    """An operand that stands as a Python number: a literal, or a run-time number."""

    node: Node


class _Writer:
    """Iterations a graph into the text of one function. `parts` decides how a node reads; `write` what gets a line of its own."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.primitives = False                            # whether the text needs `primitive`
        self.definitions: dict[Any, tuple[str, str]] = {}   # what operations of the user's are made of -> (name, text)
        self.calls: dict[str, str] = {}                     # calls with several results -> the name of their tuple
        self.place = _places(graph)
        self.order = _by_phase(graph, self.place)
        self.parts: dict[Node, list[Node | _Scalar]] = {}
        self.uses: Counter[Node] = Counter()
        self.roots: dict[tuple[str, int], Node] = {}        # the value of each of the user's lines: it has the variable's name
        self.variables: set[Node] = set()                   # and what other iterations of a loop gave it
        self._find_needed()

    def _find_needed(self) -> None:
        outputs = [resolve(o) for o in self.graph.outputs]
        self.outputs = outputs
        needed = set(outputs)
        for o in outputs:
            self.uses[o] += 2                               # results have names
        for node in reversed(self.order):
            if node in needed and node not in self.graph.inputs:
                self.parts[node] = parts = self._operands(node)
                for p in parts:
                    operand = p.node if isinstance(p, _Scalar) else p
                    if operand.fn.name == "const" and isinstance(p, _Scalar):
                        continue
                    needed.add(operand)
                    self.uses[operand] += 1
        self._find_variables()

    def _find_variables(self) -> None:
        """The value of each of the user's lines: the last that the program as it was written uses elsewhere, or just the last."""
        place = self.place
        elsewhere = set(self.outputs)
        for node, parts in self.parts.items():
            for p in parts:
                operand = p.node if isinstance(p, _Scalar) else p
                if not place[node].derived and place[operand].line != place[node].line:
                    elsewhere.add(operand)
        written = [n for n in self.order if n in self.parts and not place[n].derived]
        for node in [*written, *(n for n in written if n in elsewhere)]:
            self.roots[place[node].filename, place[node].line] = node
        for node in written:                                # the iterations of a loop all give the variable its value
            root = self.roots[place[node].filename, place[node].line]
            if node in elsewhere and root in elsewhere and (node.fn, node.shape) == (root.fn, root.shape):
                self.variables.add(node)

    # ------------------------------------------------------------------------------------------------- what a node reads

    def _operands(self, node: Node) -> list[Node | _Scalar]:
        """The operands as the text shows them: without what broadcasting and weak scalars say anyway."""
        operands = [resolve(o) for o in node.operands]
        relu_of = relu_operand(node)
        if relu_of is not None:
            return [relu_of]
        kept = keepdim_base(node)
        if kept is not None:
            return [resolve(kept.operands[0])]
        if node.fn.name == "take" and operands[1].fn.name == "in_range" and operands[1].attrs["wrap"]:
            return [operands[0], resolve(operands[1].operands[0])]         # x[index] checks it, too
        if node.aval.weak:
            return [_Scalar(o) if node.fn.operator[0] else o for o in operands]
        if node.fn.name == "cast" and operands[0].aval.weak and operands[0].fn.name != "const":
            return [_Scalar(operands[0])]
        if node.fn.python is not None and not isinstance(node.fn, Elementwise):
            return [_Scalar(o) if o.aval.weak else o for o in operands]
        if not isinstance(node.fn, Elementwise):
            return list(operands)
        shown: list[Node | _Scalar] = list(operands)
        carriers = [i for i in range(len(operands)) if i or node.fn.name != "where"]      # the operands that decide the dtype

        def says_the_same(trial: list[Node | _Scalar]) -> bool:
            shapes = [() if isinstance(t, _Scalar) else t.shape for t in trial]
            return not all(isinstance(trial[i], _Scalar) for i in carriers) and broadcast_shapes(node.fn.name, shapes) == node.shape

        for i in sorted(range(len(operands)), key=lambda i: bottom(operands[i]).fn.name != "const"):    # literals first
            operand = operands[i]
            plain = bottom(operand)
            scalar = plain if plain.fn.name == "const" else number_in(plain)
            for simpler in ([_Scalar(scalar)] if scalar is not None and i in carriers else []) + [plain]:
                trial = [*shown[:i], simpler, *shown[i + 1:]]
                if says_the_same(trial):
                    shown = trial
                    break
        return shown

    def expression(self, node: Node, args: list[Text]) -> Text:
        """The Python for a node, given that of its parts."""
        text = self._expression(node, args)
        return text if isinstance(text, Text) else Text(text)

    def _expression(self, node: Node, args: list[Text]) -> Text | str:
        name, attrs, a = node.fn.name, node.attrs, args[0].within(ATOM) if args else ""
        if relu_operand(node) is not None:
            return f"tg.relu({args[0].text})"
        kept = keepdim_base(node)
        if kept is not None:
            return f"{a}.{kept.fn.name}({dims_text(kept)}, keepdim=True)"
        sign, binds = node.fn.operator
        if sign and len(args) == 2:
            left, right = args
            return Text(f"{left.within(binds + (binds in (1, POWER)))} {sign} {right.within(binds + (binds != POWER))}", binds)
        if sign:
            return Text(f"{sign}{args[0].within(UNARY)}", UNARY)
        if name == "const":
            return f"tg.tensor({literal_text(node)}, dtype={dtype_text(node.dtype)})"
        if name == "data":
            return f"tg.tensor({values_text(node)}, dtype={dtype_text(node.dtype)})"
        if name == "cast" and operand_of(node).aval.weak:
            return f"tg.tensor({args[0].text}, dtype={dtype_text(attrs['dtype'])})"
        if name == "cast":
            return f"{a}.to({dtype_text(attrs['dtype'])})"
        if name == "iota":
            return iota_text(node)
        if node.fn.python is not None:
            return str(node.fn.python(self.define, [t.text for t in args], **attrs))
        if name in CALLS and (written := CALLS[name](node, args)) is not None:
            return str(written)
        if name in ("sum", "prod", "amax", "amin"):
            dtype = f"dtype={dtype_text(node.dtype)}" if name in ("sum", "prod") and dtype_kind(node.dtype) not in "fc" else ""
            dims = "" if node.shape == () and name != "cumsum" else dims_text(node)
            return f"{a}.{name}({', '.join(filter(None, (dims, dtype)))})"
        if name in ("running_max", "running_min"):
            return f"{a}.cum{name[-3:]}({attrs['dim']})[0]"
        if name in ("argmax", "argmin") or (name in ("cumsum", "cumprod") and node.dtype == operand_of(node).dtype):
            return f"{a}.{name}({attrs['dim']})"
        if not attrs and (name in PUBLIC or name in SPECIAL) and isinstance(node.fn, Elementwise):
            return f"tg.{'' if name in PUBLIC else 'special.'}{name}({', '.join(t.text for t in args)})"
        if name == "trunc_divide":
            return f"tg.div({args[0].text}, {args[1].text}, rounding_mode='trunc')"
        if name == "copy":
            return f"{a}.clone()"
        if name in ("view_as_real", "view_as_complex"):
            return f"tg.{name}({args[0].text})"
        self.primitives = True
        return f"primitive.{name}({', '.join([*(t.text for t in args), *(f'{k}={attribute_text(v)}' for k, v in attrs.items())])})"

    def define(self, base: str, what: str | Graph) -> str:
        """The name under which the text has `what` in front of the function: an expression, or a graph as a function."""
        key = what if isinstance(what, str) else id(what)
        if key not in self.definitions:
            name = self._free(f"{base}_1" if identifier(base) == self.name else base)        # its own call is another function's
            if isinstance(what, Graph):
                inner = _Writer(_simplified(what))
                inner.definitions = self.definitions
                text = inner.function(name)
                self.primitives |= inner.primitives
            else:
                text = f"{name} = {what}"
            self.definitions[key] = name, text
        return self.definitions[key][0]

    # ---------------------------------------------------------------------------------------------------------- writing

    def write(self, name: str) -> str:
        """The whole text: imports, what the user's operations are, the function."""
        function = self.function(name)
        head = ["import tracegrad as tg"]
        if self.primitives:
            head.append("from tracegrad.graph.primitive import primitive      # operations that have no name in the public interface")
        made = [text for _, text in self.definitions.values() if not text.startswith("def ")]
        functions = [text for _, text in self.definitions.values() if text.startswith("def ")]
        return "\n\n\n".join(["\n".join([*head, *[""][:len(made)], *made]), *functions, function]) + "\n"

    def function(self, name: str) -> str:
        """The text of the function, definition and body."""
        graph = self.graph
        inputs = dict.fromkeys(graph.inputs)
        defined = [name for name, _ in self.definitions.values()]
        names = unique_names(inputs, taken=(*_RESERVED, *defined))
        self.name = identifier(name)
        if self.name in _RESERVED:
            self.name += "_"
        self.updated = set(names.values())                  # what an input becomes is `name_new`
        self.taken = {*_RESERVED, *defined, *names.values()}
        self.called = {resolve(o): identifier(called) for o, called in zip(graph.outputs, graph.output_names, strict=False)
                       if called}
        body: list[str] = []
        at = ""
        text: dict[Node, Text] = {n: Text(names[n]) for n in inputs}
        consumer = self._only_consumers()

        def assign(node: Node, value: Text, called: str = "") -> Text:
            nonlocal at
            comment = _comment(self.place[node])
            if at != comment:
                at = comment
                body.append(comment)
            chosen = self._free(called) if called else self._name(node)
            body.append(f"    {chosen} = {value.text}")
            return Text(chosen)

        for node in self.order:
            if node not in self.parts:
                continue
            args = [self._piece(p, text) for p in self.parts[node]]
            value = self.expression(node, args)
            while len(value.text) > _WIDTH and any(t.node is not None for t in args):
                longest = max((t for t in args if t.node is not None), key=lambda t: len(t.text))
                assert longest.node is not None
                text[longest.node] = assign(longest.node, longest)
                args = [text[longest.node] if t is longest else t for t in args]
                value = self.expression(node, args)
            if isinstance(node.fn, Shared) and node.fn.python and len(node.fn.avals(*[o.aval for o in node.operands], **node.attrs)) > 1:
                if value.text not in self.calls:
                    self.calls[value.text] = assign(node, value, node.fn.name).text
                value = Text(f"{self.calls[value.text]}[{node.attrs['index']}]")
            follower = consumer.get(node)
            inline = follower is not None and self.place[follower] == self.place[node]
            inline = inline or node.fn.name == "const"
            text[node] = Text(value.text, value.binds, node) if inline else assign(node, value)
        types = "; ".join(f"{names[n]}: {aval_text(n.aval)}" for n in inputs)
        doc = [f"    # {line}" for line in _wrapped(types, "; ", 110)]
        signature = _listed(f"def {self.name}(", [names[n] for n in inputs], "):", "")
        results = _listed("    return (", [text[o].text for o in self.outputs], ")", "    ")
        return "\n".join([*signature, *doc, *body, *results])

    def _only_consumers(self) -> dict[Node, Node]:
        """The one user of each node that has just one use."""
        found = {}
        for node, parts in self.parts.items():
            for p in parts:
                operand = p.node if isinstance(p, _Scalar) else p
                if self.uses[operand] == 1 and operand in self.parts:
                    found[operand] = node
        return found

    def _piece(self, part: Node | _Scalar, text: dict[Node, Text]) -> Text:
        if isinstance(part, _Scalar):
            if part.node.fn.name == "const":
                literal = literal_text(part.node)
                return Text(literal, UNARY if literal.startswith("-") else ATOM)
            return text[part.node]
        if part.aval.weak and part.fn.name != "const":
            return Text(f"tg.tensor({text[part].text}, dtype={dtype_text(part.dtype)})")     # a Python number where a tensor is needed
        return text[part]

    def _name(self, node: Node) -> str:
        """A free name: the line's variable for the last value of the line, the op's name for what leads to it."""
        place = self.place[node]
        variable = assigned_name(place.filename, place.line)
        if node in self.called or node in self.variables or self.roots.get((place.filename, place.line)) is node:
            base = self.called.get(node) or variable or node.fn.name
            base = f"{base}_new" if base in self.updated else base
        else:
            base = f"d_{variable or node.fn.name}" if place.derived else node.fn.name
        return self._free(base)

    def _free(self, base: str) -> str:
        """A name that is not taken, and is from now on."""
        name = base = identifier(base)
        number = 0
        while name in self.taken or keyword.iskeyword(name):
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

def python_source(graph: Graph, name: str) -> str:
    """The graph as the text of a Python function of its inputs that returns the tuple of its outputs.

    It is the simplified program, the one that is cut into kernels. Forward comes first, then what was derived, each line of the
    user's program as a comment above what it became. The text runs: executed with tracegrad, it computes the same values (run-time
    scalars are passed as Python numbers).

    >>> f = tg.trace(lambda x: (x * 2).sin())
    >>> y = f(tg.ones(3))
    >>> print(f.source())
    """
    simplified = _simplified(graph)
    simplified.output_names = graph.output_names
    return _Writer(simplified).write(name)


def _simplified(graph: Graph) -> Graph:
    """What is cut into kernels."""
    from tracegrad.codegen.graph.simplify import simplify  # noqa: PLC0415  (as in execute/compile.py)

    return simplify(executable_graph(graph, transfers=True))


def _places(graph: Graph) -> dict[Node, Location]:
    """The user's line of each node. One that depends on no input may be shared with other programs: its line is that of its first user."""
    inputs = set(graph.inputs)
    fixed: set[Node] = set()
    for node in graph:
        if node not in inputs and node.fn.name != "data" and all(o in fixed for o in node.operands):
            fixed.add(node)
    order = {n: i for i, n in enumerate(graph)}
    place = {n: n.loc for n in graph}
    for node in reversed(list(graph)):
        if node in fixed and graph.out_degree(node):
            place[node] = place[min(graph.users(node), key=order.__getitem__)]
    return place


def _by_phase(graph: Graph, place: dict[Node, Location]) -> list[Node]:
    """Topological order with what the user wrote, what was derived from it, and what was written on top of that, kept together."""
    phase: dict[Node, int] = {}
    for node in graph:
        at = max((phase[o] for o in node.operands), default=0)
        phase[node] = 0 if node.fn.family == "leaf" else at + (at % 2 != place[node].derived)
    return sorted(graph, key=phase.__getitem__)


def _comment(location: Location) -> str:
    line = source_line(location)
    if location.derived:
        return f"    # backward of line {location.line}" + (f": {line}" if line else "")
    return f"    # {file_line(location)}" + (f": {line}" if line else "")


def _wrapped(text: str, separator: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(separator):
        if lines[-1] and len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += (separator if lines[-1] else "") + word
    return [line for line in lines if line]


def _listed(start: str, items: list[str], end: str, indent: str) -> list[str]:
    """`start a, b, c end` on one line, or on several if it is long. One item keeps a comma where it is a tuple."""
    comma = "," if len(items) == 1 and end == ")" else ""
    line = f"{start}{', '.join(items)}{comma}{end}"
    if len(line) <= 120:
        return [line]
    return [start, *(f"{indent}    {part}," for part in _wrapped(", ".join(items), ", ", 110)), f"{indent}{end}"]
