"""Backwards that were made before, without their nodes: `Backward`. Start at `Backward.run`.

A training loop records the same operations in every iteration. The forward pass is walked over once more at every backward (shapes and
values that the user may ask for hang on it), but the derivative, twice as many nodes, is the same function of it each time. So from the
third backward of one structure on, the Program that the second one made is run on this iteration's values, and no node of the derivative
exists. `autograd.grad` of a loss by leaves is remembered likewise (`Backward.grads`). A Python float that changes, such as a weight that is
annealed, does not make another structure where it is only added, subtracted, multiplied or divided (`scalar_polymorphic`): see
`_ScalarGeneric`. What is never recalled is said in history_key.py, what backwards share with optimizers' steps in execute/program.py.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.autograd.history_key import History
from tracegrad.autograd.hooks import Listener, Underway, expect_backward, listeners
from tracegrad.config import config
from tracegrad.errors import TracegradError
from tracegrad.execute.deferred import no_longer_pending, pending_nodes
from tracegrad.execute.program import Program, Recipe, recipes
from tracegrad.execute.realize import cut, free_saved, lock, parted, without_freed
from tracegrad.graph.canonical import Key, fixed, resolve
from tracegrad.graph.ir import ON_HOST, Node, forget_operands
from tracegrad.graph.locations import Location, derivative_of
from tracegrad.graph.primitive import REGISTRY, data
from tracegrad.runtime.launch import Ready
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor, holding

_VARIABLE, _OFFSET = REGISTRY["variable"], REGISTRY["offset"]


class _Gradients(Recipe):
    """How to make the backward of one structure, and where its results go.

    Nodes of the forward pass have numbers, in the order in which `History` finds them. values: of the results that are a node's, (its
    number, position); grads: of gradients, (number of the variable, position), of `grad`'s in the order of its inputs. saving: the numbers
    of the nodes that give up what they saved; staying: of those that go on without them. lines: for operations that report, or run on the
    host, the number of a node of its line, and whether it is derived.
    """

    __slots__ = ("grads", "lines", "saving", "staying", "values")

    def __init__(self, work: Any, walk: History, order: Sequence[Node], grads: Sequence[tuple[Node, Node]]) -> None:
        """Raises KeyError if the backward is not a function of what was walked over."""
        number = walk.number
        super().__init__(work.program, [number[leaf] for leaf in work.leaves], work.constants)
        if not walk.valued.issuperset(self.inputs):
            raise KeyError
        self.varying = [(k, number[n]) for k, n in enumerate(work.constants) if n.fn is _OFFSET]
        position = {t: k for k, t in enumerate(work.targets)}
        self.values = [(number[t], k) for t, k in position.items() if t in number]
        self.grads = [(number[n], position[g]) for n, g in grads]
        outside, calls = [n for n in order if n not in walk.inside], {walk.nodes[i] for i in walk.calls}
        self.saving, self.staying = ([number[n] for n in part] for part in parted(outside, calls))
        self.lines = {i: (number[n], False) for i, n in enumerate(work.order) if n.fn.reports}
        on_host = [(i, n) for i, n in enumerate(work.order) if n.fn.family in ON_HOST]
        stands = {(n.loc[:3], n.loc.call): k for n, k in number.items()} if on_host else {}
        self.lines |= {i: (stands[n.loc[:3], n.loc.call], n.loc.derived) for i, n in on_host}

    def gradients(self, nodes: Sequence[Node], ready: Ready | None = None) -> list[Any]:
        """The program's results; an error in it names the line of this time's forward pass."""
        def line(position: int) -> Location:
            number, derived = self.lines[position]
            return derivative_of(nodes[number].loc) if derived else nodes[number].loc

        return self.run([nodes[i].value for i in self.inputs], nodes, line, ready)


def _bits(numbers: Sequence[Node]) -> list[bytes]:
    return [n.attrs["bits"] for n in numbers]


class _ScalarGeneric:
    """What is known of a structure whatever its floats are. Its key has None where theirs have bits.

    bits, values: those of the floats and of the work's numbers when it was made last. free: which floats were seen to change. places: of
    the constants that these are, their numbers. recipe: how to make it with others for these; None before there were two.
    """

    __slots__ = ("bits", "free", "places", "program", "recipe", "values")

    def __init__(self, work: Any, walk: History) -> None:
        self.program: Program = work.program
        self.bits, self.values = walk.bits(), _bits(work.constants)
        self.places: dict[int, int] = {}
        self.free: frozenset[int] = frozenset()
        self.recipe: _Gradients | None = None

    @property
    def weight(self) -> int:
        return 10 * len(self.program.order) if self.free else 0      # (with no varied float, that of the key with floats)

    def fits(self, walk: History) -> bool:
        """Whether the recipe is that of `walk`."""
        if self.recipe is None:
            return False
        return fixed(walk.bits(), self.free) == fixed(self.bits, self.free)

    def learn(self, work: Any, walk: History, recipe: _Gradients) -> None:
        """Compare with how it was made this time: a float may vary if all that became of it are the places in the work where it stands.

        (It may be another constant as well, one that the rules make, where the values of both are equal by chance: that does not change.)
        """
        bits, values, number = walk.bits(), _bits(work.constants), walk.number
        fresh = {i for i, (a, b) in enumerate(zip(bits, self.bits, strict=True)) if a != b}
        at = {walk.floats[i][1] for i in fresh}
        places = {k: number[n] for k, n in enumerate(work.constants) if number.get(n) in at}
        fits = work.program is self.program and places.keys() == {
            k for k, (n, a, b) in enumerate(zip(work.constants, values, self.values, strict=True)) if a != b and n.fn is not _OFFSET}
        if fits and all(n.fn.scalar_polymorphic for n in walk.nodes if n.operands and any(number.get(o) in at for o in n.operands)):
            self.places, self.free, self.recipe = self.places | places, self.free | fresh, recipe
            recipe.varying += self.places.items()
        else:
            self.places, self.free, self.recipe = {}, frozenset(), None
        self.bits, self.values, self.program = bits, values, work.program


class Backward:
    """One call of backward from `root`, or of grad by `inputs`, whose structure may be known.

    Where `run` or `grads` cannot make it, `learn` is told how it was made. Hold `realize.lock` from here to the end of either, or another
    thread computes, and frees, some of what was walked over.
    """

    def __init__(self, root: Tensor, inputs: Sequence[Node] | None = None) -> None:
        self.walk: History | None = None
        self.tells = inputs is None                                 # listeners of backwards of its gradients, one by one
        self.told: tuple[Listener, Underway] | None = None          # who wanted to hear of them
        if inputs is not None and not all(n.fn is _VARIABLE for n in inputs):
            return
        if not (state.plain and config.recall):
            return
        pending, self.count = pending_nodes()
        if pending.keys() <= {root._device}:
            walk = History(root._device, pending.get(root._device, []))
            if walk.follow(root._node(), inputs):
                self.walk = walk

    def run(self) -> list[Tensor] | None:
        """Make the backward of a structure that is remembered: gradients go to the leaves, pending work is computed, the history freed.

        Returns the leaves; None where the structure is not remembered.
        """
        found = self._gradients()
        if found is None:
            return None
        walk, recipe, results = found
        reached = []
        for i, k in recipe.grads:
            variable = walk.nodes[i]
            tensor = walk.leaves.get(variable)
            if tensor is not None:
                if tensor._grad is None:
                    tensor._grad = holding(walk.device, variable.aval, {"aval": variable.aval}, results[k])
                else:
                    tensor._grad._n = data(variable.aval, results[k])
                    tensor._grad._versions += 1
                reached.append(tensor)
        self._end(walk, recipe)
        return reached

    def grads(self) -> tuple[Tensor, ...] | None:
        """The gradients by the inputs where the structure is remembered, as in `run`, else None."""
        found = self._gradients()
        if found is None:
            return None
        walk, recipe, results = found
        avals = [walk.nodes[i].aval for i, _ in recipe.grads]
        result = tuple([holding(walk.device, aval, {"aval": aval}, results[k]) for aval, (_, k) in zip(avals, recipe.grads, strict=True)])
        self._end(walk, recipe)
        return result

    def _gradients(self) -> tuple[History, _Gradients, list[Any]] | None:
        """Compute what is pending, and the gradients: the recipe's results. None where this has to be done at length."""
        walk = self.walk
        if walk is None or walk.key is None:
            return None
        nodes = walk.nodes
        recipe = _known(walk, walk.key)
        if recipe is None:
            walk.unfold()
            return None
        try:
            results = recipe.gradients(nodes, self._expected(walk, recipe) if self.tells and listeners else None)
        except TracegradError:                      # at length, what can be computed is
            walk.unfold()
            return None
        for i, k in recipe.values:
            nodes[i].value = results[k]
        for i, _ in recipe.values:
            if not nodes[i].needs_grad:
                forget_operands(nodes[i])
        cut(walk.pending)
        return walk, recipe, results

    def _expected(self, walk: History, recipe: _Gradients) -> Ready | None:
        """What tells a listener of gradients, by their positions among the results, if one wants to hear of them."""
        at = {k: tensor for i, k in recipe.grads if (tensor := walk.leaves.get(walk.nodes[i])) is not None}
        if len(at) == len(recipe.grads):                # (else one is gone, or two have one gradient)
            self.told = expect_backward([*at.values()])
        if self.told is None:
            return None
        underway = self.told[1]

        def ready(k: int, arrival: Callable[[], Any]) -> None:
            if k in at:
                underway.ready(at[k], arrival)

        return ready

    def _end(self, walk: History, recipe: _Gradients) -> None:
        """Free the history."""
        nodes = walk.nodes
        no_longer_pending(self.count)
        self.walk = None
        free_saved([nodes[i] for i in recipe.saving])
        staying = [weakref.ref(nodes[i]) for i in recipe.staying]
        for part in (walk.number, walk.pending, walk.leaves, nodes):
            part.clear()
        without_freed(staying)

    def learn(self, works: Sequence[Any], order: Sequence[Node], grads: Sequence[tuple[Node, Node]], beside: Sequence[Node] = ()) -> None:
        """Remember how the backward was made. works: what was computed in it. order: the nodes that it went through. grads: variables of
        leaves (grad's inputs), and what gives the values of the leaves' gradients. beside: the nodes of the history that it did not go
        through. (A call is freed as a whole: what goes through a part of one is made at length each time.)
        """
        walk, self.walk = self.walk, None
        if walk is None or walk.key is None:
            return
        key, work = walk.key, works[0] if len(works) == 1 and works[0].device is walk.device else None
        with lock:
            if work is not None and not _computed_all(work, walk.pending):
                work = None
            recipe = None
            generic_key = walk.without_floats()
            varied, seen = None if generic_key is None else recipes[generic_key], recipes[key] is not None or key in recipes
            # Most structures are never seen again; but of one with calls that were made before, the next is expected to come.
            if work is not None and (seen or varied is not None or walk.calls) and walk.inside.isdisjoint(beside):
                with contextlib.suppress(KeyError):
                    recipe = _Gradients(work, walk, order, grads)
            if work is not None and generic_key is not None and varied is None:
                recipes[generic_key] = _ScalarGeneric(work, walk)
            elif generic_key is not None and isinstance(varied, _ScalarGeneric) and recipe is not None:
                varied.learn(work, walk, recipe)
                recipes[generic_key] = varied
            recipes[key] = recipe or recipes[key]


def _computed_all(work: Any, pending: Sequence[Node]) -> bool:
    """Whether the work computed all that was pending. (Another thread may have computed some of it since the walk.)"""
    made = {id(target.value) for target in work.targets}
    return all(id(resolve(node).value) in made for node in pending)


def _known(walk: History, key: Key) -> _Gradients | None:
    """The recipe of what was walked over, whatever its floats are, if need be."""
    recipe: _Gradients | None = recipes[key]
    if recipe is None:
        generic_key = walk.without_floats()
        varied = None if generic_key is None else recipes[generic_key]
        if not isinstance(varied, _ScalarGeneric) or not varied.fits(walk):
            return None
        recipe = varied.recipe
    recipes.hits += 1
    return recipe
