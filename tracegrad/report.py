"""A compiled program shown to people: its kernels (`Kernels`), its Python (`python_source`), and its story (`explain`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from os.path import basename
from typing import Any

import numpy as np

from tracegrad.codegen.simplify import simplify
from tracegrad.compile import executable_graph
from tracegrad.errors import ArgumentError
from tracegrad.function import CustomCall, Elementwise, broadcast_shapes
from tracegrad.ir import Graph, Location, Node
from tracegrad.operators import FUNCTIONAL, PUBLIC
from tracegrad.plan import HostStep, Launch, Plan
from tracegrad.printing import assigned_name, aval_text, identifier, source_line, unique_names

# ---------------------------------------------------------------------------------------------------------------- kernels

_NO_KERNELS = "no kernels: this program ran on the device \"numpy\", which interprets the graph; choose an OpenCL device with tg.set_device"


class Kernels:
    """The OpenCL C of a plan. str() is the whole text; index it by number (launch order) or by name; len and iteration as usual.

    >>> print(f.kernels())
    >>> print(f.kernels()[0])
    """

    def __init__(self, plan: Plan | None) -> None:
        self.source = "" if plan is None else plan.source
        self.names = [] if plan is None else list(dict.fromkeys(launch.entry for launch in plan.launches))

    def __str__(self) -> str:
        return self.source or (f"// {_NO_KERNELS}\n" if not self.names else "")

    def __repr__(self) -> str:
        return f"<{len(self)} kernels: {', '.join(self.names)}>" if self.names else f"<{_NO_KERNELS}>"

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return (self[name] for name in self.names)

    def __getitem__(self, key: int | str) -> str:
        """The text of one kernel, with the comments above it. Raises IndexError for a number and ArgumentError for a name there is not."""
        if isinstance(key, str):
            if key not in self.names:
                raise ArgumentError(f"kernels: there is no kernel {key!r}; there are {', '.join(self.names) or 'none'}")
            return kernel_text(self.source, key)
        return kernel_text(self.source, self.names[key])


def kernel_text(source: str, entry: str) -> str:
    """The definition of the kernel `entry` in an OpenCL C text: from the comment above it to its closing brace."""
    found = next((m for m in re.finditer(rf"\b{re.escape(entry)}\s*\(", source) if _is_definition(source, m.start())), None)
    if found is None:
        raise ArgumentError(f"kernels: the text defines no kernel {entry!r}")
    start = source.rfind("kernel", 0, found.start())
    start = source.rfind("\n", 0, start) + 1
    while start > 0:                                        # comments and attributes directly above belong to it
        above = source.rfind("\n", 0, start - 1) + 1
        line = source[above:start].strip()
        if not line.startswith(("//", "/*", "*", "__attribute__")):
            break
        start = above
    depth = 0
    for token in re.finditer(r"//[^\n]*|/\*.*?\*/|[{}]", source[found.end():], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if token.group() == "}" and depth == 0:
            return source[start:found.end() + token.end()] + "\n"
    return source[start:]


def _is_definition(source: str, at: int) -> bool:
    line = source.rfind("\n", 0, at) + 1
    head = source[max(0, source.rfind(";", 0, at), source.rfind("}", 0, at)):at]
    return "//" not in source[line:at] and re.search(r"\b(__)?kernel\b[^{]*$", head) is not None


# ---------------------------------------------------------------------------------------------------------------- explain


def explain(program: Any, name: str, compilations: Sequence[str] = ()) -> str:
    """What became of a compiled program: its kernels and why each ended, what was fused, memory, and why compilations happened.

    program: a compile.Program. compilations: one reason per compilation so far.
    """
    graph, plan = program.graph, program.plan
    work = [n for n in graph if n.fn.family not in ("leaf", "custom", "output") and not _transparent(n)]
    derived = sum(n.loc.derived for n in work)
    lines = [f"{name} on {program.device}",
             f"  {len(work)} operations ({len(work) - derived} written, {derived} derived), "
             f"{len(graph.inputs)} inputs, {len(graph.outputs)} outputs: {_families(work)}"]
    if plan is None:
        lines.append(f"  {_NO_KERNELS}")
    else:
        kernels = len({launch.entry for launch in plan.launches})
        host = sum(isinstance(step, HostStep) for step in plan.steps)
        lines.append(f"  fused into {_count(kernels, 'kernel')}, {_count(len(plan.launches), 'launch', 'launches')}"
                     + (f", {_count(host, 'call', 'calls')} of host code" if host else ""))
        lines += [f"  {note}" for note in plan.notes]
        lines += _memory(plan)
        for i, step in enumerate(plan.steps):
            lines += _step(i, step, plan)
    lines.append(f"compiled {_count(len(compilations), 'time', 'times')}" + (":" if compilations else ""))
    lines += [f"  {i + 1}. {reason}" for i, reason in enumerate(compilations)]
    return "\n".join(lines)


def _families(nodes: Sequence[Node]) -> str:
    counts = Counter(n.fn.family or n.fn.name for n in nodes)
    return ", ".join(f"{k} {family}" for family, k in counts.most_common()) or "nothing to compute"


def _memory(plan: Plan) -> list[str]:
    temps = [s for s in plan.slots if s.kind == "temp"]
    in_place = [plan.slots[s.alias].name or "?" for s in plan.slots if s.kind == "output" and s.alias is not None]
    lines = []
    if temps:
        lines.append(f"  temporary memory: {_bytes(sum(plan.blocks))} in {_count(len(plan.blocks), 'block')} "
                     f"for {_count(len(temps), 'intermediate')} of {_bytes(sum(s.nbytes for s in temps))}")
    if in_place:
        lines.append(f"  updated in place: {', '.join(in_place)}")
    return lines


def _step(i: int, step: Launch | HostStep, plan: Plan) -> list[str]:
    if isinstance(step, HostStep):
        return [f"  [{i}] {step.name}: host code; everything before it has to be finished first"]
    items = "x".join(map(str, step.global_size)) + (f" in groups of {'x'.join(map(str, step.local_size))}" if step.local_size else "")
    lines = [f"  [{i}] {step.entry}: {_flops(step.flops)}, {_bytes(step.bytes)} moved, {items} work-items"]
    slots = [plan.slots[a] for a in step.args if isinstance(a, int)]
    if slots:
        lines.append("      touches " + ", ".join(f"{s.name or s.kind} {s.dtype}[{', '.join(map(str, s.shape))}]" for s in slots))
    if step.note:
        lines.append(f"      {step.note}")
    return lines


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def _flops(n: float) -> str:
    for unit in ("flop", "kflop", "Mflop"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "flop" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} Gflop"


# ----------------------------------------------------------------------------------------------------------------- python

ATOM, POWER, UNARY = 10, 9, 8                # how tightly the outermost operator of an expression binds, as in Python
_INFIX = {
    "add": ("+", 6), "sub": ("-", 6), "mul": ("*", 7), "div": ("/", 7), "matmul": ("@", 7),
    "floor_divide": ("//", 7), "remainder": ("%", 7), "pow": ("**", POWER),
    "bitwise_and": ("&", 4), "bitwise_xor": ("^", 3), "bitwise_or": ("|", 2), "bitwise_left_shift": ("<<", 5),
    "bitwise_right_shift": (">>", 5),
    "eq": ("==", 1), "ne": ("!=", 1), "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1),
}
_PREFIX = {"neg": "-", "bitwise_not": "~"}
_RESERVED = ("tg", "primitive", "float")     # names that the text itself needs
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
        self.primitives = False                            # whether the text needs `primitive[...]`
        self.place = _places(graph)
        self.order = _by_phase(graph, self.place)
        self.parts: dict[Node, list[Node | _Scalar]] = {}
        self.uses: Counter[Node] = Counter()
        self.roots: dict[tuple[str, int], Node] = {}        # the last value of each of the user's lines: it has the variable's name
        self._find_needed()

    def _find_needed(self) -> None:
        outputs = [_behind(o) for o in self.graph.outputs]
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
        place = self.place
        self.roots = {(place[n].filename, place[n].line): n for n in self.order if n in self.parts and not place[n].derived}

    # ------------------------------------------------------------------------------------------------- what a node reads

    def _operands(self, node: Node) -> list[Node | _Scalar]:
        """The operands as the text shows them: without what broadcasting and weak scalars say anyway."""
        operands = [_behind(o) for o in node.operands]
        relu_of = _relu_operand(node)
        if relu_of is not None:
            return [relu_of]
        kept = _keepdim(node)
        if kept is not None:
            return [_behind(kept.operands[0])]
        if node.aval.weak:
            return [_Scalar(o) if node.fn.name in _INFIX or node.fn.name == "neg" else o for o in operands]
        if node.fn.name == "cast" and operands[0].aval.weak and operands[0].fn.name != "const":
            return [_Scalar(operands[0])]
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
        if name in _INFIX and len(args) == 2:
            sign, binds = _INFIX[name]
            left, right = args
            return _Text(f"{left.within(binds + (binds in (1, POWER)))} {sign} {right.within(binds + (binds != POWER))}", binds)
        if name in _PREFIX:
            return _Text(f"{_PREFIX[name]}{args[0].within(UNARY)}", UNARY)
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
        if name in _MOVEMENT and (written := _MOVEMENT[name](node, args)) is not None:
            return str(written)
        if name in ("sum", "prod", "amax", "amin"):
            dtype = f"dtype={_dtype(node.dtype)}" if name in ("sum", "prod") and node.dtype.kind != "f" else ""
            dims = "" if node.shape == () and name != "cumsum" else _dims(node)
            return f"{a}.{name}({', '.join(filter(None, (dims, dtype)))})"
        if name in ("argmax", "argmin", "cumsum") and node.dtype == (_first(node).dtype if name == "cumsum" else node.dtype):
            return f"{a}.{name}({attrs['dim']})"
        if not attrs and name in PUBLIC and isinstance(node.fn, Elementwise):
            return f"tg.{name}({', '.join(t.text for t in args)})"
        if name == "copy":
            return f"{a}.clone()"
        self.primitives = True
        return f'primitive["{name}"]({", ".join([*(t.text for t in args), *(f"{k}={_attribute(v)}" for k, v in attrs.items())])})'

    # ---------------------------------------------------------------------------------------------------------- writing

    def write(self, name: str) -> str:
        graph = self.graph
        inputs = dict.fromkeys(graph.inputs)
        names = unique_names(inputs, taken=_RESERVED)
        self.taken = {*_RESERVED, *names.values()}
        self.called = {_behind(o): identifier(called) for o, called in zip(graph.outputs, graph.graph.get("output_names", ()), strict=False)
                       if called}
        body: list[str] = []
        at: Location | None = None
        text: dict[Node, _Text] = {n: _Text(names[n]) for n in inputs}
        consumer = self._only_consumers()

        def assign(node: Node, value: _Text) -> _Text:
            nonlocal at
            if at != self.place[node]:
                at = self.place[node]
                body.append(_comment(at))
            chosen = self._name(node)
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
            follower = consumer.get(node)
            inline = follower is not None and self.place[follower] == self.place[node]
            inline = inline or node.fn.name == "const"
            text[node] = _Text(value.text, value.binds, node) if inline else assign(node, value)
        types = "; ".join(f"{names[n]}: {aval_text(n.aval)}" for n in inputs)
        head = ["import tracegrad as tg"]
        if self.primitives:
            head.append("from tracegrad.function import REGISTRY as primitive      # what has no name in the public interface")
        doc = [f"    # {line}" for line in _wrapped(types, "; ", 110)]
        signature = _listed(f"def {identifier(name)}(", [names[n] for n in inputs], "):", "")
        results = _listed("    return (", [text[o].text for o in self.outputs], ")", "    ")
        return "\n".join([*head, "", "", *signature, *doc, *body, *results, ""])

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
        if node in self.called or self.roots.get((place.filename, place.line)) is node:
            base = self.called.get(node) or variable or node.fn.name
            base = f"{base}_new" if base in self.taken else base
        else:
            base = f"d_{variable or node.fn.name}" if place.derived else node.fn.name
        name = unique_names([node], lambda _: base, self.taken)[node]
        self.taken.add(name)
        return name


def python_source(graph: Graph, name: str) -> str:
    """The graph as the text of a Python function of its inputs that returns the tuple of its outputs.

    It is the simplified program, the one that is cut into kernels. Forward comes first, then what was derived, each line of the
    user's program as a comment above what it became. The text runs: executed with tracegrad, it computes the same values (run-time
    scalars are passed as Python numbers).

    >>> print(f.source())
    """
    simplified = simplify(executable_graph(graph))
    simplified.graph.update(graph.graph)
    return _Writer(simplified).write(name)


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
            place[node] = place[min(graph.successors(node), key=order.__getitem__)]
    return place


def _by_phase(graph: Graph, place: dict[Node, Location]) -> list[Node]:
    """Topological order with what the user wrote, what was derived from it, and what was written on top of that, kept together."""
    phase: dict[Node, int] = {}
    for node in graph:
        at = max((phase[o] for o in node.operands), default=0)
        phase[node] = 0 if node.fn.family == "leaf" else at + (at % 2 != place[node].derived)
    return sorted(graph, key=phase.__getitem__)


def _transparent(node: Node) -> bool:
    return node.fn.name in ("variable", "detach") or (node.fn.name == "output" and isinstance(node.operands[0].fn, CustomCall))


def _behind(node: Node) -> Node:
    """The node whose value this is: boundaries of differentiation do not show."""
    while node.operands and _transparent(node):
        node = node.operands[0].operands[node.attrs["index"]] if node.fn.name == "output" else node.operands[0]
    return node


def _bottom(node: Node) -> Node:
    """What is below an explicit broadcast."""
    while node.fn.name == "expand":
        node = _behind(node.operands[0])
    return node


def _first(node: Node) -> Node:
    return _behind(node.operands[0])


def _number_in(node: Node) -> Node | None:
    """The run-time Python number behind a cast, if that is what this is."""
    if node.fn.name == "cast" and node.operands[0].aval.weak and node.operands[0].fn.name != "const":
        return node.operands[0]
    return None


def _relu_operand(node: Node) -> Node | None:
    """x, where the node is tg.relu(x)."""
    if node.fn.name != "where":
        return None
    condition, low, x = (_behind(o) for o in node.operands)
    if condition.fn.name != "le" or _behind(condition.operands[0]) is not x:
        return None
    zeros = (_behind(condition.operands[1]), low)
    return x if x.shape == node.shape and all(z.fn.name == "const" and z.attrs["value"] == 0 for z in zeros) else None


def _keepdim(node: Node) -> Node | None:
    """The reduction whose result this reshape gives its dimensions back."""
    if node.fn.name != "reshape":
        return None
    inner = node.operands[0]
    if inner.fn.name not in ("sum", "amax", "amin", "prod") or inner.dtype.kind != "f":
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
    if node.dtype.kind != "f":
        return repr(value.item())
    if not np.isfinite(value):
        return f'float("{value.item()}")'
    text = str(value) if not node.aval.weak else repr(value.item())
    return text if node.dtype.type(text) == value else repr(value.item())


def _data_values(node: Node) -> str:
    value = node.value
    values = value.download(node.shape, node.dtype) if hasattr(value, "download") else np.asarray(value)
    return repr(values.tolist()).replace("-inf", 'float("-inf")').replace(" inf", ' float("inf")').replace("nan", 'float("nan")')


def _attribute(value: Any) -> str:
    if isinstance(value, np.dtype):
        return _dtype(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
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


_MOVEMENT: dict[str, Any] = {
    "reshape": _reshape, "permute": _permute, "expand": _expand, "slice": _slice, "pad": _pad, "concat": _concat, "flip": _flip,
}


def _comment(location: Location) -> str:
    line = source_line(location)
    if location.derived:
        return f"    # backward of line {location.line}" + (f": {line}" if line else "")
    return f"    # {basename(location.filename)}:{location.line}" + (f": {line}" if line else "")


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


