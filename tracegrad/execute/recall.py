"""What was done before is done again by its Program: `Recipe`, and the one store of them, `recipes`. Start at `Recipe.run`.

A backward, `autograd.grad` and a step of an optimizer are recalled alike. Something walks over all that they depend on: a history and the
pending work (autograd/history_key.py), or parameters, gradients, state and options (optim/update.py). The walk gives a key of structure
only, and the nodes with values in the order in which they were met. A recipe holds numbers of nodes, no node and no tensor, so it is
everyone's whose key is the same: of a second model, or of a second optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.config import config
from tracegrad.execute.program import Program
from tracegrad.graph.canonical import Key
from tracegrad.graph.ir import Node
from tracegrad.graph.locations import Location
from tracegrad.runtime.launch import Ready
from tracegrad.support.cache import Cache
from tracegrad.support.modes import state

REMEMBERED = 1_000_000                              # parts of the keys (10 an operation)


def allowed() -> bool:
    """Whether what was done before may be done again in the short way."""
    return state.plain and config.recall


class Recipe:
    """How to do again what was done before: a Program, and where the values of its inputs are found.

    inputs: the numbers of the nodes whose values are the program's first inputs. kept: the values of its other inputs, the same each time.
    constants: the nodes that are the program's numbers, the same each time but for `varying`: (position among them, the number of the node
    that is it this time).
    """

    __slots__ = ("constants", "inputs", "kept", "program", "varying")

    def __init__(self, program: Program, inputs: Sequence[int], constants: Sequence[Node], kept: Sequence[Any] = ()) -> None:
        self.program, self.inputs, self.constants, self.kept = program, inputs, constants, kept
        self.varying: list[tuple[int, int]] = []

    @property
    def weight(self) -> int:
        """What it counts as in a cache, beside its key: a key may name calls of many operations each, which are told by the program."""
        return 10 * len(self.program.order)

    def run(self, nodes: Sequence[Node], line: Callable[[int], Location] | None = None, ready: Ready | None = None) -> list[Any]:
        """The program's results, for the nodes of this time's walk; ready: see Program.run. Hold realize.lock."""
        constants = self.constants
        if self.varying:
            constants = list(constants)
            for k, i in self.varying:
                constants[k] = nodes[i]
        return self.program.run([*[nodes[i].value for i in self.inputs], *self.kept], constants, line, ready)


def _weight(key: Key, recipe: Any) -> int:
    return len(key.parts) + (recipe.weight if recipe else 0)


recipes = Cache("recipes", REMEMBERED, _weight)     # by Key: a Recipe; None or False of what was seen and has none
