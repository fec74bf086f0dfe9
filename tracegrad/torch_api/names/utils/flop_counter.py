"""torch.utils.flop_counter: the floating-point operations of products and convolutions, by modules. Start at `FlopCounterMode`."""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

from tracegrad.autograd.hooks import steps_back
from tracegrad.errors import warn
from tracegrad.graph.ir import Node, topological
from tracegrad.nn.hooks import register
from tracegrad.support.html import columns
from tracegrad.support.modes import every_module, state
from tracegrad.torch_api.names import ops

__all__ = ["FlopCounterMode", "register_flop_formula"]

_SUFFIXES = "", "K", "M", "B", "T"
_OF_BIAS = {"linear": (2, "addmm"), "addmm": (0, "addmm"), "baddbmm": (0, "baddbmm")}          # calls that torch has other operators for


def register_flop_formula(targets: Any, get_raw: bool = False) -> Callable[[Any], Any]:
    """A decorator that leaves the function as it is, with a warning: what users' operations are made of is counted, as of any function."""
    warn(f"register_flop_formula: {targets} is counted as what it is made of, not by this formula")
    return lambda formula: formula


def _product(a: Sequence[int], b: Sequence[int]) -> int:
    return 2 * prod(a) * b[-1]


def _convolution(pixels: Sequence[int], w: Sequence[int], images: int) -> int:
    """Of weights w (O, C / groups, *kernel) at each of `pixels` of so many images."""
    return 2 * images * prod(pixels) * prod(w)


def _weights(x: Sequence[int], y: Sequence[int], w: Sequence[int]) -> int:
    """Of the gradient by weights w of a convolution of x that made y: torch counts all pairs of channels, whatever the groups."""
    return 2 * x[0] * prod(y[2:]) * prod(w[2:]) * x[1] * y[1]


def _attention(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> tuple[int, int]:
    """Of the scores and of the weighted sum: one product of q's and k's, one with v's."""
    pairs = 2 * prod(q[:-1]) * k[-2]
    return pairs * q[-1], pairs * v[-1]


def _forward(node: Node) -> tuple[str, int] | None:
    """torch's operator for what a node computes, and its count; None for what is not counted."""
    shapes = [o.shape for o in node.operands]
    match node.fn.name:
        case "matmul":
            return "mm" if len(node.shape) == 2 else "bmm", _product(*shapes)
        case "conv2d":
            return "convolution", _convolution(node.shape[2:], shapes[1], node.shape[0])
        case "conv2d_input_grad":
            return "convolution", _convolution(shapes[0][2:], shapes[1], node.shape[0])
        case "conv2d_weight_grad":
            return "convolution", _weights(shapes[0], shapes[1], node.shape)
        case "dot_product_attention":
            return "_scaled_dot_product_flash_attention", sum(_attention(*shapes[:3]))
    return None


def _backward(node: Node, wanted: Sequence[bool]) -> tuple[str, int] | None:
    """The same of the gradients of those of its operands that are wanted."""
    made = _forward(node)
    if made is None:
        return None
    name, count = made
    shapes = [o.shape for o in node.operands]
    match node.fn.name:
        case "matmul":
            return name, count * sum(wanted[:2])
        case "conv2d":
            return "convolution_backward", count * wanted[0] + _weights(shapes[0], node.shape, shapes[1]) * wanted[1]
        case "conv2d_input_grad":
            return "convolution_backward", count * wanted[0] + _weights(node.shape, shapes[0], shapes[1]) * wanted[1]
        case "dot_product_attention":
            scores, sums = _attention(*shapes[:3])
            return "_scaled_dot_product_flash_attention_backward", 3 * scores + 2 * sums
    return "convolution_backward", count * sum(wanted[:2])


class FlopCounterMode:
    """A block that counts multiplications and additions of products, convolutions and attention, forward and backward, as torch does.

    `get_total_flops()` is their number, `get_flop_counts()` has them by module ("Global" is all) and by torch's operator, and unless
    `display` is False a table with modules down to `depth` is printed at the end. Counted are calls, computed or not: twice the terms of
    sums, without biases. The attention that is one operation here is counted by torch's formula for it on GPUs (torch has none on CPUs),
    a product with a vector as one with a matrix (torch: not at all). What a custom Function's backward computes is not counted (so neither
    is what a checkpoint computes again); traced functions run untraced. mods and custom_mapping mean nothing here.
    """

    def __init__(self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: dict[Any, Any] | None = None) -> None:
        if mods is not None:
            warn("FlopCounterMode: mods argument is not needed anymore, you can stop passing it")
        self.depth, self.display = depth, display
        self.flop_counts: dict[str, dict[Any, int]] = defaultdict(lambda: defaultdict(int))
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._inside: list[str] = []
        self._within: weakref.WeakKeyDictionary[Node, tuple[str, ...]] = weakref.WeakKeyDictionary()        # of the nodes of forward passes

    # ------------------------------------------------------------------------------------------------- what is counted

    def __enter__(self) -> FlopCounterMode:
        self.flop_counts.clear()
        self._hooks = [register(every_module, "forward_pre", (self._begins, False)),
                       register(every_module, "forward", (self._ends, False, True))]
        self._before = state.watch, state.anomaly
        state.watch, state.anomaly = (*state.watch, self._called), _Steps(self, state.anomaly)
        return self

    def __exit__(self, *_: Any) -> None:
        state.watch, state.anomaly = self._before
        for hook in self._hooks:
            hook.remove()
        self._inside.clear()
        if self.display:
            sys.stdout.write(f"{self.get_table(self.depth)}\n")

    def _begins(self, module: Any, *_: Any) -> None:
        if module not in self._names:
            for name, part in module.named_modules(prefix=type(module).__name__):
                self._names.setdefault(part, name)
        self._inside.append(self._names[module])

    def _ends(self, module: Any, *_: Any) -> None:
        if self._inside and self._inside[-1] == self._names.get(module):
            self._inside.pop()

    def _called(self, call: str, operands: Iterable[Node], results: Iterable[Node]) -> None:
        given, within = set(operands), ("Global", *self._inside)
        biased = _OF_BIAS.get(call)
        for node in topological(results, lambda n: n in given, steps_back):
            made = None if node in given else _forward(node)
            if made is not None:
                self._within[node] = within
                more = biased is not None and len(given) > 2
                self._add(within, biased[1] if more and biased is not None else made[0], made[1])

    def step(self, node: Node, wanted: Sequence[bool]) -> None:
        """A backward goes through a node, to these of its operands."""
        made = _backward(node, wanted)
        if made is not None and made[1]:
            self._add(self._within.get(node, ("Global",)), *made)

    def _add(self, within: Iterable[str], operator: str, count: int) -> None:
        for name in set(within):
            self.flop_counts[name][getattr(ops.aten, operator)] += count

    # --------------------------------------------------------------------------------------------------------- results

    def get_total_flops(self) -> int:
        """All that was counted."""
        return sum(self.flop_counts["Global"].values())

    def get_flop_counts(self) -> dict[str, dict[Any, int]]:
        """By the module, whose name begins with the outermost one's class, or "Global": by operator, what was counted."""
        return {name: dict(counts) for name, counts in self.flop_counts.items()}

    def get_table(self, depth: int | None = None) -> str:
        """A row for each module down to `depth`, and under it one for each operator."""
        depth = self.depth if depth is None else depth
        total = self.get_total_flops()
        unit = max(0, min(len(_SUFFIXES) - 1, (len(str(total)) - 2) // 3))

        def row(label: str, count: int) -> list[str]:
            return [label, f"{count / 1000 ** unit:.3f}{_SUFFIXES[unit]}", f"{count / total:.2%}" if total else "0%"]

        def rows(name: str, indent: int) -> list[list[str]]:
            counts = self.flop_counts[name]
            return [row(" " * indent + name, sum(counts.values())), *(row(f"{' ' * indent} - {k}", n) for k, n in counts.items())]

        names = sorted(n for n in self.flop_counts if n != "Global" and n.count(".") < depth)
        whole = any(sum(self.flop_counts[n].values()) >= total for n in names)
        body = [r for n in names for r in rows(n, n.count(".") + (not whole))]
        body = body if whole else [*rows("Global", 0), *body]
        return "\n".join(columns([["Module", "FLOP", "% Total"], *(body or [["Global", "0", "0%"]])], (1, 2)))


class _Steps:
    """What a backward calls with each step: it is counted, and shown to whoever looked before."""

    def __init__(self, counter: FlopCounterMode, before: Any) -> None:
        self._counter, self._before = counter, before
        self.nan = before is not None and before.nan

    def __call__(self, node: Node, gradients: Sequence[Any]) -> None:
        self._counter.step(node, [g is not None for g in gradients])
        if self._before is not None:
            self._before(node, gradients)
