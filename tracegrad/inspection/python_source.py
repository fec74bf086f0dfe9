"""A graph as readable Python that runs: what `f.source()` shows. Start at `python_source`.

A `_Writer` decides for every node how it reads (`expression`), whether it stands inside its user's expression or on a line of its own,
and what it is called. Everything is iterative: graphs are deep.
"""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tracegrad.execute.compile import executable_graph
from tracegrad.graph.canonical import resolve
from tracegrad.graph.families import Elementwise, broadcast_shapes
from tracegrad.graph.ir import Graph, Location, Node
from tracegrad.graph.leaves import Shared
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, SPECIAL
from tracegrad.graph.printing import assigned_name, aval_text, file_line, identifier, source_line, unique_names
from tracegrad.support.dtypes import dtype_kind

ATOM, POWER, UNARY = 10, 9, 8                # how tightly the outermost operator of an expression binds, as in Python
_RESERVED = ("tg", "primitive", "float", "complex")      # names that the text itself needs
_WIDTH = 100                                 # longer expressions are cut into several statements


@dataclass(frozen=True)
class _Text:
    """A piece of Python and how tightly it binds; `node`: it is this node's value, computed in place."""

    text: str
    binds: int = ATOM
    node: Node | None = None

    def within(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"


@dataclass(frozen=True)
class _Scalar:
    """An operand that stands as a Python number: a literal, or a run-time number."""

    node: Node


class _Writer:
    """Turns a graph into the text of one function. `parts` decides how a node reads; `write` what gets a line of its own."""

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
        self.variables: set[Node] = set()                   # and what other turns of a loop gave it
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
        for node in written:                                # the turns of a loop all give the variable its value
            root = self.roots[place[node].filename, place[node].line]
            if node in elsewhere and root in elsewhere and (node.fn, node.shape) == (root.fn, root.shape):
                self.variables.add(node)

    # ------------------------------------------------------------------------------------------------- what a node reads

    def _operands(self, node: Node) -> list[Node | _Scalar]:
        """The operands as the text shows them: without what broadcasting and weak scalars say anyway."""
        operands = [resolve(o) for o in node.operands]
        relu_of = _relu_operand(node)
        if relu_of is not None:
            return [relu_of]
        kept = _keepdim(node)
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

        for i in sorted(range(len(operands)), key=lambda i: _bottom(operands[i]).fn.name != "const"):    # literals first
            operand = operands[i]
            plain = _bottom(operand)
            scalar = plain if plain.fn.name == "const" else _number_in(plain)
            for simpler in ([_Scalar(scalar)] if scalar is not None and i in carriers else []) + [plain]:
                trial = [*shown[:i], simpler, *shown[i + 1:]]
                if says_the_same(trial):
                    shown = trial
                    break
        return shown

    def expression(self, node: Node, args: list[_Text]) -> _Text:
        """The Python for a node, given that of its parts."""
        text = self._expression(node, args)
        return text if isinstance(text, _Text) else _Text(text)

    def _expression(self, node: Node, args: list[_Text]) -> _Text | str:
        name, attrs, a = node.fn.name, node.attrs, args[0].within(ATOM) if args else ""
        if _relu_operand(node) is not None:
            return f"tg.relu({args[0].text})"
        kept = _keepdim(node)
        if kept is not None:
            return f"{a}.{kept.fn.name}({_dims(kept)}, keepdim=True)"
        sign, binds = node.fn.operator
        if sign and len(args) == 2:
            left, right = args
            return _Text(f"{left.within(binds + (binds in (1, POWER)))} {sign} {right.within(binds + (binds != POWER))}", binds)
        if sign:
            return _Text(f"{sign}{args[0].within(UNARY)}", UNARY)
        if name == "const":
            return f"tg.tensor({_literal(node)}, dtype={_dtype(node.dtype)})"
        if name == "data":
            return f"tg.tensor({_data_values(node)}, dtype={_dtype(node.dtype)})"
        if name == "cast" and _first(node).aval.weak:
            return f"tg.tensor({args[0].text}, dtype={_dtype(attrs['dtype'])})"
        if name == "cast":
            return f"{a}.to({_dtype(attrs['dtype'])})"
        if name == "iota":
            return _iota(node)
        if node.fn.python is not None:
            return str(node.fn.python(self.define, [t.text for t in args], **attrs))
        if name in _WRITTEN and (written := _WRITTEN[name](node, args)) is not None:
            return str(written)
        if name in ("sum", "prod", "amax", "amin"):
            dtype = f"dtype={_dtype(node.dtype)}" if name in ("sum", "prod") and dtype_kind(node.dtype) not in "fc" else ""
            dims = "" if node.shape == () and name != "cumsum" else _dims(node)
            return f"{a}.{name}({', '.join(filter(None, (dims, dtype)))})"
        if name in ("running_max", "running_min"):
            return f"{a}.cum{name[-3:]}({attrs['dim']})[0]"
        if name in ("argmax", "argmin") or (name in ("cumsum", "cumprod") and node.dtype == _first(node).dtype):
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
        return f"primitive.{name}({', '.join([*(t.text for t in args), *(f'{k}={_attribute(v)}' for k, v in attrs.items())])})"

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
        text: dict[Node, _Text] = {n: _Text(names[n]) for n in inputs}
        consumer = self._only_consumers()

        def assign(node: Node, value: _Text, called: str = "") -> _Text:
            nonlocal at
            comment = _comment(self.place[node])
            if at != comment:
                at = comment
                body.append(comment)
            chosen = self._free(called) if called else self._name(node)
            body.append(f"    {chosen} = {value.text}")
            return _Text(chosen)

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
                value = _Text(f"{self.calls[value.text]}[{node.attrs['index']}]")
            follower = consumer.get(node)
            inline = follower is not None and self.place[follower] == self.place[node]
            inline = inline or node.fn.name == "const"
            text[node] = _Text(value.text, value.binds, node) if inline else assign(node, value)
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

    def _piece(self, part: Node | _Scalar, text: dict[Node, _Text]) -> _Text:
        if isinstance(part, _Scalar):
            if part.node.fn.name == "const":
                literal = _literal(part.node)
                return _Text(literal, UNARY if literal.startswith("-") else ATOM)
            return text[part.node]
        if part.aval.weak and part.fn.name != "const":
            return _Text(f"tg.tensor({text[part].text}, dtype={_dtype(part.dtype)})")     # a Python number where a tensor is needed
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

    return simplify(executable_graph(graph))


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


def _bottom(node: Node) -> Node:
    """What is below an explicit broadcast."""
    while node.fn.name == "expand":
        node = resolve(node.operands[0])
    return node


def _first(node: Node) -> Node:
    return resolve(node.operands[0])


def _number_in(node: Node) -> Node | None:
    """The run-time Python number behind a cast, if that is what this is."""
    if node.fn.name == "cast" and node.operands[0].aval.weak and node.operands[0].fn.name != "const":
        return node.operands[0]
    return None


def _relu_operand(node: Node) -> Node | None:
    """x, where the node is tg.relu(x)."""
    if node.fn.name != "where":
        return None
    condition, low, x = (resolve(o) for o in node.operands)
    if condition.fn.name != "le" or resolve(condition.operands[0]) is not x:
        return None
    zeros = (resolve(condition.operands[1]), low)
    return x if x.shape == node.shape and all(z.fn.name == "const" and z.attrs["value"] == 0 for z in zeros) else None


def _keepdim(node: Node) -> Node | None:
    """The reduction whose result this reshape gives its dimensions back."""
    if node.fn.name != "reshape":
        return None
    inner = node.operands[0]
    if inner.fn.name not in ("sum", "amax", "amin", "prod") or dtype_kind(inner.dtype) != "f":
        return None
    shape = inner.operands[0].shape
    return inner if node.shape == tuple(1 if i in inner.attrs["dim"] else n for i, n in enumerate(shape)) else None


def _dims(node: Node) -> str:
    dim = node.attrs["dim"]
    return str(dim[0]) if isinstance(dim, tuple) and len(dim) == 1 else str(dim)


def _dtype(dtype: Any) -> str:
    return "tg.bool_" if dtype == np.bool_ else f"tg.{dtype}"


def _literal(node: Node) -> str:
    """A constant as a Python literal: the shortest that its dtype reads back exactly."""
    value = node.attrs["value"]
    if node.dtype.kind == "c":
        return _complex(value.item())
    if dtype_kind(node.dtype) != "f":
        return repr(value.item())
    if not np.isfinite(value):
        return f'float("{value.item()}")'
    text = str(value) if not node.aval.weak else repr(value.item())
    return text if node.dtype.type(text) == value else repr(value.item())


def _complex(value: complex) -> str:
    """A complex number as Python reads it back: signs of zeros, infinities and NaN need a call."""
    text = repr(value)
    try:
        exact = repr(complex(eval(text, {}))) == text and "-0" not in text
    except NameError:
        exact = False
    return text if exact else f"complex({_attribute(value.real)}, {_attribute(value.imag)})"


def _data_values(node: Node) -> str:
    value = node.value
    values = value.download(node.shape, node.dtype) if hasattr(value, "download") else np.asarray(value)
    if values.dtype.kind == "c":
        def text(part: Any) -> str:
            return f"[{', '.join(map(text, part))}]" if isinstance(part, list) else _complex(part)

        return text(values.tolist())
    return repr(values.tolist()).replace("-inf", 'float("-inf")').replace(" inf", ' float("inf")').replace("nan", 'float("nan")')


def _attribute(value: Any) -> str:
    if isinstance(value, np.dtype):
        return _dtype(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return _complex(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_attribute, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _iota(node: Node) -> str:
    shape, dim = node.shape, node.attrs["dim"]
    text = f"tg.arange({shape[dim]}, dtype={_dtype(node.dtype)})"
    if len(shape) == 1:
        return text
    line = tuple(n if i == dim else 1 for i, n in enumerate(shape))
    text += f".reshape({', '.join(map(str, line))})" if dim != len(shape) - 1 else ""
    return text if prod(shape) == shape[dim] and dim != len(shape) - 1 else f"{text}.expand({', '.join(map(str, shape))})"


def _reshape(node: Node, args: list[_Text]) -> str:
    shape = node.shape
    return f"{args[0].within(ATOM)}.reshape({', '.join(map(str, shape)) if shape else '()'})"


def _permute(node: Node, args: list[_Text]) -> str:
    dims = node.attrs["dims"]
    a = args[0].within(ATOM)
    if dims == (1, 0):
        return f"{a}.t()"
    swapped = [i for i, d in enumerate(dims) if i != d]
    if len(swapped) == 2:
        return f"{a}.transpose({swapped[0] - len(dims)}, {swapped[1] - len(dims)})"
    return f"{a}.permute({', '.join(map(str, dims)) or '()'})"


def _expand(node: Node, args: list[_Text]) -> str:
    operand = _first(node)
    if operand.fn.name == "const":
        return f"tg.full({node.shape}, {_literal(operand)}, dtype={_dtype(node.dtype)})"
    return f"{args[0].within(ATOM)}.expand({', '.join(map(str, node.shape)) or '()'})"


def _slice(node: Node, args: list[_Text]) -> str:
    parts = []
    for a, b, s, n in zip(node.attrs["start"], node.attrs["stop"], node.attrs["step"], _first(node).shape, strict=True):
        parts.append(f"{a or ''}:{b if b != n else ''}{f':{s}' if s != 1 else ''}")
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return f"{args[0].within(ATOM)}[{', '.join(parts)}]"


def _pad(node: Node, args: list[_Text]) -> str | None:
    if any(node.attrs["interior"]) or "pad" not in FUNCTIONAL or min(*node.attrs["low"], *node.attrs["high"], 0) < 0:
        return None
    sizes = [n for pair in zip(reversed(node.attrs["low"]), reversed(node.attrs["high"]), strict=True) for n in pair]
    while len(sizes) > 2 and sizes[-2:] == [0, 0]:
        del sizes[-2:]
    value = node.attrs["value"]
    return f"tg.nn.functional.pad({args[0].text}, {sizes}{'' if value == 0 else f', value={_attribute(value)}'})"


def _concat(node: Node, args: list[_Text]) -> str:
    return f"tg.cat([{', '.join(t.text for t in args)}], dim={node.attrs['dim']})"


def _flip(node: Node, args: list[_Text]) -> str:
    return f"{args[0].within(ATOM)}.flip({', '.join(map(str, node.attrs['dims']))})"


def _roll(node: Node, args: list[_Text]) -> str:
    return f"{args[0].within(ATOM)}.roll({node.attrs['shift']}, {node.attrs['dim']})"


def _take(node: Node, args: list[_Text]) -> str:
    return f"{args[0].within(ATOM)}[{args[1].text}]"


def _scatter(method: str) -> Callable[[Node, list[_Text]], str | None]:
    def written(node: Node, args: list[_Text]) -> str | None:
        x, index, source = args
        return f"{x.within(ATOM)}.{method}(0, {index.text}, {source.text})" if len(node.operands[1].shape) == 1 else None

    return written


def _argsort(node: Node, args: list[_Text]) -> str:
    return f"{args[0].within(ATOM)}.argsort({'descending=True' if node.attrs['descending'] else ''})"


def _topk(node: Node, args: list[_Text]) -> str | None:
    k, largest = node.attrs["k"], node.attrs["descending"]
    return f"{args[0].within(ATOM)}.topk({k}{'' if largest else ', largest=False'})[1]"


def _bits(node: Node, args: list[_Text]) -> str:
    return f"{args[0].within(ATOM)}.view({_dtype(node.dtype)})"


def _xor(node: Node, args: list[_Text]) -> str:
    return f"tg.hash_tensor({args[0].text}, -1)"


def _unfold(node: Node, args: list[_Text]) -> str | None:
    dim, size, step, gap = (node.attrs[k] for k in ("dim", "size", "step", "gap"))
    return f"{args[0].within(ATOM)}.unfold({dim}, {size}, {step})" if gap == 1 and size != step else None


def _first_best(node: Node, args: list[_Text]) -> str:
    return f"{args[0].within(ATOM)}.{'amax' if node.fn.name == 'first_max' else 'amin'}({_dims(node)})"


def _conv(node: Node, args: list[_Text]) -> str | None:
    """conv2d, or its transpose where this is the derivative; padding that differs between the sides has no public spelling."""
    attrs = node.attrs
    stride, dilation, padding = attrs["stride"], attrs["dilation"], tuple(low for low, _ in attrs["padding"])
    if attrs["padding"] != tuple((p, p) for p in padding):
        return None
    options: list[tuple[str, Any, Any]] = [("stride", stride, 1), ("padding", padding, 0)]
    if node.fn.name == "conv2d_input_grad":
        kernel, given = node.operands[1].shape[2:], node.operands[0].shape[2:]
        smallest = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(given, stride, padding, dilation, kernel, strict=True)]
        more = tuple(n - least for n, least in zip(attrs["size"], smallest, strict=True))
        if any(not 0 <= m < max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)):
            return None
        options.append(("output_padding", more, 0))
    options += [("dilation", dilation, 1), ("groups", attrs["groups"], 1)]
    shown = [f", {k}={v[0] if isinstance(v, tuple) and v[0] == v[1] else v}" for k, v, usual in options if v not in (usual, (usual, usual))]
    call = "conv2d" if node.fn.name == "conv2d" else "conv_transpose2d"
    return f"tg.nn.functional.{call}({args[0].text}, {args[1].text}{''.join(shown)})"


_WRITTEN: dict[str, Callable[[Node, list[_Text]], str | None]] = {
    "reshape": _reshape, "permute": _permute, "expand": _expand, "slice": _slice, "pad": _pad, "concat": _concat, "flip": _flip,
    "roll": _roll,
    "take": _take, "scatter_add": _scatter("index_add"), "scatter_set": _scatter("index_copy"), "argsort": _argsort, "topk": _topk,
    "unfold": _unfold, "first_max": _first_best, "first_min": _first_best, "conv2d": _conv, "conv2d_input_grad": _conv,
    "bits": _bits, "xor": _xor,
}


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


