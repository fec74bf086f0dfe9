"""How a node is written as a call of tracegrad's functions: `x.reshape(2, 3)`, `tg.pad(x, ...)`. Start at `CALLS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import FUNCTIONAL
from tracegrad.support.dtypes import dtype_kind

ATOM, POWER, UNARY = 10, 9, 8                # how tightly the outermost operator of an expression binds, as in Python


@dataclass(frozen=True)
class Text:
    """A piece of Python and how tightly it binds; `node`: it is this node's value, computed in place."""

    text: str
    binds: int = ATOM
    node: Node | None = None

    def within(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"


def bottom(node: Node) -> Node:
    """What is below an explicit broadcast."""
    while node.fn.name == "expand":
        node = resolve(node.operands[0])
    return node


def operand_of(node: Node) -> Node:
    return resolve(node.operands[0])


def number_in(node: Node) -> Node | None:
    """The run-time Python number behind a cast, if that is what this is."""
    if node.fn.name == "cast" and node.operands[0].aval.weak and node.operands[0].fn.name != "const":
        return node.operands[0]
    return None


def relu_operand(node: Node) -> Node | None:
    """x, where the node is tg.relu(x)."""
    if node.fn.name != "where":
        return None
    condition, low, x = (resolve(o) for o in node.operands)
    if condition.fn.name != "le" or resolve(condition.operands[0]) is not x:
        return None
    zeros = (resolve(condition.operands[1]), low)
    return x if x.shape == node.shape and all(z.fn.name == "const" and z.attrs["value"] == 0 for z in zeros) else None


def keepdim_base(node: Node) -> Node | None:
    """The reduction whose result this reshape gives its dimensions back."""
    if node.fn.name != "reshape":
        return None
    inner = node.operands[0]
    if inner.fn.name not in ("sum", "amax", "amin", "prod") or dtype_kind(inner.dtype) != "f":
        return None
    shape = inner.operands[0].shape
    return inner if node.shape == tuple(1 if i in inner.attrs["dim"] else n for i, n in enumerate(shape)) else None


def dims_text(node: Node) -> str:
    dim = node.attrs["dim"]
    return str(dim[0]) if isinstance(dim, tuple) and len(dim) == 1 else str(dim)


def dtype_text(dtype: Any) -> str:
    return "tg.bool_" if dtype == np.bool_ else f"tg.{dtype}"


def literal_text(node: Node) -> str:
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
    return text if exact else f"complex({attribute_text(value.real)}, {attribute_text(value.imag)})"


def values_text(node: Node) -> str:
    value = node.value
    values = value.download(node.shape, node.dtype) if hasattr(value, "download") else np.asarray(value)
    if values.dtype.kind == "c":
        def text(part: Any) -> str:
            return f"[{', '.join(map(text, part))}]" if isinstance(part, list) else _complex(part)

        return text(values.tolist())
    return repr(values.tolist()).replace("-inf", 'float("-inf")').replace(" inf", ' float("inf")').replace("nan", 'float("nan")')


def attribute_text(value: Any) -> str:
    if isinstance(value, np.dtype):
        return dtype_text(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return _complex(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(attribute_text, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def iota_text(node: Node) -> str:
    shape, dim = node.shape, node.attrs["dim"]
    text = f"tg.arange({shape[dim]}, dtype={dtype_text(node.dtype)})"
    if len(shape) == 1:
        return text
    line = tuple(n if i == dim else 1 for i, n in enumerate(shape))
    text += f".reshape({', '.join(map(str, line))})" if dim != len(shape) - 1 else ""
    return text if prod(shape) == shape[dim] and dim != len(shape) - 1 else f"{text}.expand({', '.join(map(str, shape))})"


def _reshape(node: Node, args: list[Text]) -> str:
    shape = node.shape
    return f"{args[0].within(ATOM)}.reshape({', '.join(map(str, shape)) if shape else '()'})"


def _permute(node: Node, args: list[Text]) -> str:
    dims = node.attrs["dims"]
    a = args[0].within(ATOM)
    if dims == (1, 0):
        return f"{a}.t()"
    swapped = [i for i, d in enumerate(dims) if i != d]
    if len(swapped) == 2:
        return f"{a}.transpose({swapped[0] - len(dims)}, {swapped[1] - len(dims)})"
    return f"{a}.permute({', '.join(map(str, dims)) or '()'})"


def _expand(node: Node, args: list[Text]) -> str:
    operand = operand_of(node)
    if operand.fn.name == "const":
        return f"tg.full({node.shape}, {literal_text(operand)}, dtype={dtype_text(node.dtype)})"
    return f"{args[0].within(ATOM)}.expand({', '.join(map(str, node.shape)) or '()'})"


def _slice(node: Node, args: list[Text]) -> str:
    parts = []
    for a, b, s, n in zip(node.attrs["start"], node.attrs["stop"], node.attrs["step"], operand_of(node).shape, strict=True):
        parts.append(f"{a or ''}:{b if b != n else ''}{f':{s}' if s != 1 else ''}")
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return f"{args[0].within(ATOM)}[{', '.join(parts)}]"


def _pad(node: Node, args: list[Text]) -> str | None:
    if any(node.attrs["interior"]) or "pad" not in FUNCTIONAL or min(*node.attrs["low"], *node.attrs["high"], 0) < 0:
        return None
    sizes = [n for pair in zip(reversed(node.attrs["low"]), reversed(node.attrs["high"]), strict=True) for n in pair]
    while len(sizes) > 2 and sizes[-2:] == [0, 0]:
        del sizes[-2:]
    value = node.attrs["value"]
    return f"tg.nn.functional.pad({args[0].text}, {sizes}{'' if value == 0 else f', value={attribute_text(value)}'})"


def _concat(node: Node, args: list[Text]) -> str:
    return f"tg.cat([{', '.join(t.text for t in args)}], dim={node.attrs['dim']})"


def _flip(node: Node, args: list[Text]) -> str:
    return f"{args[0].within(ATOM)}.flip({', '.join(map(str, node.attrs['dims']))})"


def _roll(node: Node, args: list[Text]) -> str:
    return f"{args[0].within(ATOM)}.roll({node.attrs['shift']}, {node.attrs['dim']})"


def _take(node: Node, args: list[Text]) -> str:
    return f"{args[0].within(ATOM)}[{args[1].text}]"


def _scatter(method: str) -> Callable[[Node, list[Text]], str | None]:
    def written(node: Node, args: list[Text]) -> str | None:
        x, index, source = args
        return f"{x.within(ATOM)}.{method}(0, {index.text}, {source.text})" if len(node.operands[1].shape) == 1 else None

    return written


def _argsort(node: Node, args: list[Text]) -> str:
    return f"{args[0].within(ATOM)}.argsort({'descending=True' if node.attrs['descending'] else ''})"


def _topk(node: Node, args: list[Text]) -> str | None:
    k, largest = node.attrs["k"], node.attrs["descending"]
    return f"{args[0].within(ATOM)}.topk({k}{'' if largest else ', largest=False'})[1]"


def _bits(node: Node, args: list[Text]) -> str:
    return f"{args[0].within(ATOM)}.view({dtype_text(node.dtype)})"


def _xor(node: Node, args: list[Text]) -> str:
    return f"tg.hash_tensor({args[0].text}, -1)"


def _unfold(node: Node, args: list[Text]) -> str | None:
    dim, size, step, gap = (node.attrs[k] for k in ("dim", "size", "step", "gap"))
    return f"{args[0].within(ATOM)}.unfold({dim}, {size}, {step})" if gap == 1 and size != step else None


def _first_best(node: Node, args: list[Text]) -> str:
    return f"{args[0].within(ATOM)}.{'amax' if node.fn.name == 'first_max' else 'amin'}({dims_text(node)})"


def _conv(node: Node, args: list[Text]) -> str | None:
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


def _transfer(node: Node, args: list[Text]) -> str:
    return f"{args[0].within(ATOM)}.to(tg.device({node.attrs['target'].name!r}))"


def _extremum(name: str) -> Callable[[Node, list[Text]], str]:
    return lambda node, args: f"{args[0].within(ATOM)}.{f'{name}()' if node.shape == () else f'a{name}({dims_text(node)})'}"


CALLS: dict[str, Callable[[Node, list[Text]], str | None]] = {
    "reshape": _reshape, "permute": _permute, "expand": _expand, "slice": _slice, "pad": _pad, "concat": _concat, "flip": _flip,
    "roll": _roll,
    "take": _take, "scatter_add": _scatter("index_add"), "scatter_set": _scatter("index_copy"), "argsort": _argsort, "topk": _topk,
    "unfold": _unfold, "first_max": _first_best, "first_min": _first_best,
    "max_of_all": _extremum("max"), "min_of_all": _extremum("min"),
    "conv2d": _conv, "conv2d_input_grad": _conv,
    "bits": _bits, "xor": _xor, "transfer": _transfer,
}
