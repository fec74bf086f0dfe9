"""Backwards that were made before, without their nodes: `Backward`. Start at `Backward.run`.

A training loop records the same operations in every iteration. The forward pass is walked over once more at every backward (shapes and
values that the user may ask for hang on it), but the derivative, twice as many nodes, is the same function of it each time. So from the
third backward of one structure on, the Program that the second one made is run on this iteration's values, and no node of the derivative
exists. `autograd.grad` of a loss by leaves is remembered likewise. A Python float that changes, such as a weight that is
annealed, does not make another structure where it is only added, subtracted, multiplied or divided (`scalar_polymorphic`): see
`_Gradients.generalize`. What is never recalled is said in history_key.py, what backwards and optimizers' steps share in execute/program.py.
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
from tracegrad.execute.eager_executor import LIMIT
from tracegrad.execute.policy import NEVER
from tracegrad.execute.program import Recipe, recipes
from tracegrad.execute.realize import Work, cut, free_saved, lock, parted, realize, without_freed
from tracegrad.graph.canonical import fixed, resolve
from tracegrad.graph.ir import ON_HOST, Aval, Node, forget_operands
from tracegrad.graph.locations import Location, derivative_of
from tracegrad.graph.primitive import REGISTRY, data, numpy_time
from tracegrad.runtime.launch import Ready
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor, holding

_VARIABLE, _OFFSET = REGISTRY["variable"], REGISTRY["offset"]


class _Part(Recipe):
    """What is computed of a backward up to a custom call, or to the end.

    Nodes of the forward pass have numbers, in the order in which `History` finds them; behind those come others, which custom calls are
    given, and give. values: of the results that are a numbered node's, (its number, position). made: of the others before a custom call,
    (aval, position). lines: for operations that report, or run on the host, the number of a node of its line, and whether it is derived.
    """

    __slots__ = ("lines", "made", "values")

    def __init__(self, work: Work, walk: History) -> None:
        """Raises KeyError if it is not a function of what was walked over."""
        number = walk.number
        super().__init__(work.program, [number[leaf] for leaf in work.leaves], work.constants)
        if not walk.valued.issuperset(self.inputs):
            raise KeyError
        self.varying = [(k, number[n]) for k, n in enumerate(work.constants) if n.fn is _OFFSET]
        self.values, self.made = [(number[t], k) for k, t in enumerate(work.targets) if t in number], list[tuple[Aval, int]]()
        self.lines = {i: (number[n], False) for i, n in enumerate(work.order) if n.fn.reports}
        on_host = [(i, n) for i, n in enumerate(work.order) if n.fn.family in ON_HOST]
        stands = {(n.loc[:3], n.loc.call): k for n, k in number.items()} if on_host else {}
        self.lines |= {i: (stands[n.loc[:3], n.loc.call], n.loc.derived) for i, n in on_host}

    def results(self, nodes: Sequence[Node], ready: Ready | None = None) -> list[Any] | None:
        """The program's results; None where they cannot be computed. An error in it names the line of this time's forward pass."""
        def line(position: int) -> Location:
            number, derived = self.lines[position]
            return derivative_of(nodes[number].loc) if derived else nodes[number].loc

        with contextlib.suppress(TracegradError):
            return self.run([nodes[i].value for i in self.inputs], nodes, line, ready) if self.program.order else []
        return None


class _Gradients(_Part):
    """How to make the backward of one structure, and where its results go.

    asked: the custom calls on the way: what is computed before, the call's number, those of its cotangents, the avals of what it gives.
    grads: of gradients, (number of the variable, position among the last results, or ~number), of `grad`'s in the order of its inputs.
    saving: the numbers of the nodes that give up what they saved; staying: of those that go on without them. bits: those of the history's
    floats; free: which of these may be others than they were when this was made.
    """

    __slots__ = ("asked", "bits", "free", "grads", "saving", "staying")

    def __init__(self, work: Work, walk: History, order: Sequence[Node], grads: Sequence[tuple[Node, Node]], asked: Sequence[Any]) -> None:
        super().__init__(work, walk)
        number, position = walk.number, {t: k for k, t in enumerate(work.targets)}
        self.asked, self.bits, self.free = asked, walk.bits(), frozenset[int]()
        self.grads = [(number[n], position[g] if g in position else ~number[g]) for n, g in grads]
        outside, calls = [n for n in order if n not in walk.inside], {walk.nodes[i] for i in walk.calls}
        self.saving, self.staying = ([number[n] for n in part] for part in parted(outside, calls))

    def generalize(self, older: _Gradients, walk: History) -> None:
        """Compare with what was made of the same structure with other floats: those that differ may vary if all that became of them are

        the places in the work where they stand. (Such a place may be that of another constant as well, one that the rules make, where the
        values of both are equal by chance: then the two are not one in the other work.)
        """
        if self.program is not older.program:
            return
        changed = {i for i, (a, b) in enumerate(zip(self.bits, older.bits, strict=True)) if a != b}
        at = {walk.floats[i][1] for i in changed}
        places = [(k, i) for k, n in enumerate(self.constants) if (i := walk.number.get(n, -1)) in at]
        differ = [k for k, (a, b) in enumerate(zip(self.constants, older.constants, strict=True))
                  if a.fn is not _OFFSET and a.attrs["bits"] != b.attrs["bits"]]
        readers = [n.fn for n in walk.nodes if n.operands and any(walk.number.get(o) in at for o in n.operands)]
        if [k for k, _ in places] == differ and all(fn.scalar_polymorphic for fn in readers):
            self.free, self.varying = older.free | changed, [*{*self.varying, *older.varying, *places}]


class Backward:
    """One call of backward from `root`, or of grad by `inputs`, whose structure may be known.

    Where `run` cannot make it, `learn` is told how it was made. Hold `realize.lock`, once, from here to the end of `run`, or another thread
    computes, and frees, some of what was walked over. The backward of a custom Function is called each time, on values (`answered` of
    custom/user_call.py): parts of the backward are recalled between such calls, if kernels would fuse nothing across them (`_small`).
    """

    def __init__(self, root: Tensor, inputs: Sequence[Node] | None = None) -> None:
        self.walk: History | None = None
        self.tells = inputs is None                                 # listeners of backwards of its gradients, one by one
        self.told: tuple[Listener, Underway] | None = None          # who wanted to hear of them
        self.asked: list[Any] | None = None                         # the custom calls so far, if they are noted
        self.works: list[Work] = []                                 # what was computed for them
        if inputs is not None and not all(n.fn is _VARIABLE for n in inputs):
            return
        if not (state.plain and config.recall):
            return
        pending, self.count = pending_nodes()
        if pending.keys() <= {root._device}:
            # What is made of numbers alone may wait, as gradients that were set to zero: the sum in their place has them as operands.
            walk = History(root._device, [n for n in pending.get(root._device, ()) if n.needs_grad or not (
                n.fn.constant and all(o.constant for o in n.operands))])          # (a LazyNode has no operands yet)
            if walk.follow(root._node(), inputs):
                self.walk = walk

    def run(self) -> Sequence[Tensor] | None:
        """Make the backward of a structure that is remembered: pending work is computed, the history freed, gradients go to the leaves.

        Returns these leaves (of `grad`, the gradients by the inputs); None where the structure is not remembered.
        """
        walk = self.walk
        if walk is None:
            return None
        nodes, recipe = walk.nodes, _known(walk)
        if recipe is None:
            walk.unfold()
            self.asked = [] if walk.customs and walk.key in recipes and recipes[walk.key] is None else None
            return None
        results = self._results(walk, recipe)
        if results is None:                         # at length, what can be computed is
            walk.unfold()
            return None
        self._settle(walk, recipe, results)
        found = _given(walk, recipe, results) if self.tells else [
            _gradient(walk, nodes[i].aval, results[k] if k >= 0 else nodes[~k].value) for i, k in recipe.grads]
        self.walk = None
        free_saved([nodes[i] for i in recipe.saving])
        staying = [weakref.ref(nodes[i]) for i in recipe.staying]
        for part in (walk.number, walk.pending, walk.leaves, nodes):
            part.clear()
        without_freed(staying)
        return found

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

    def _settle(self, walk: History, part: _Part, results: Sequence[Any]) -> None:
        """Give nodes the values that were computed for them."""
        nodes = walk.nodes
        for i, k in part.values:
            nodes[i].value = results[k]
        for i, _ in part.values:
            if not nodes[i].needs_grad:
                forget_operands(nodes[i])
        nodes += [data(aval, results[k]) for aval, k in part.made]
        if self.count >= 0:                         # the first part's: nothing is pending from then on
            cut(walk.pending)
            no_longer_pending(self.count)
            self.count = -1

    def _results(self, walk: History, recipe: _Gradients) -> list[Any] | None:
        """What the last part gives, behind the custom calls, whose code may wait for other threads: all that it sees has values, so no lock
        is held. None where one gives gradients of another form than before, or something cannot be computed; what was given is kept."""
        nodes, answers = walk.nodes, []
        for before, number, given, gives in recipe.asked:
            if (found := before.results(nodes)) is None:
                break
            self._settle(walk, before, found)
            call = nodes[number]
            lock.release()
            try:
                answer = call.fn.answered([None if i is None else nodes[i] for i in given], call)
            finally:
                lock.acquire()
            answers.append((call.fn, answer))
            if [g is not None and g.aval for g in answer] != gives:
                break
            nodes += [g for g in answer if g is not None]
        else:
            found = recipe.results(nodes, self._expected(walk, recipe) if self.tells and listeners and not recipe.asked else None)
            answers = answers if found is None else []
        for fn, answer in answers:
            fn.answer = answer
        return None if answers else found

    def ask(self, node: Node, given: Sequence[Node | None]) -> Sequence[Node | None]:
        """The cotangents of a custom call's operands, from its own. How to come to them the next time is noted."""
        walk, works = self.walk, list[Work]()
        fn: Any = node.fn
        given = [g.twin() if g is not None and g.constant else g for g in given]
        if walk is None or node not in walk.number:                             # inside another call, whose operands may be symbolic
            return fn._pulled(given, node, node.operands)  # type: ignore[no-any-return]
        if self.asked is None:
            return fn.answered(given, node)  # type: ignore[no-any-return]
        realize([*walk.pending, *(g for g in given if g is not None)], walk.device, lambda n: n.needs_grad and n.fn.expensive, works)
        work = works[0] if works else Work([], walk.device)
        self.works.append(work)
        try:
            part = _Part(work, walk)
            part.made = [(t.aval, k) for k, t in enumerate(work.targets) if t not in walk.number]
            walk.add([work.targets[k] for _, k in part.made])
            walk.valued.update([walk.number[t] for t in work.targets])
            at = [None if g is None else walk.number[resolve(g)] for g in given]
        except KeyError:                            # not a function of what was walked over
            self.asked = None
            return fn.answered(given, node)  # type: ignore[no-any-return]
        answer: list[Node | None] = fn.answered(given, node)
        walk.add([g for g in answer if g is not None])
        self.asked.append((part, walk.number[node], at, [g is not None and g.aval for g in answer]))
        return answer

    def learn(self, works: Sequence[Any], order: Sequence[Node], grads: Sequence[tuple[Node, Node]], beside: Sequence[Node] = ()) -> None:
        """Remember how the backward was made. works: what was computed in it. order: the nodes that it went through. grads: variables of
        leaves (grad's inputs), and what gives the values of the leaves' gradients. beside: the nodes of the history that it did not go
        through. (A call is freed as a whole: what goes through a part of one is made at length each time.)
        """
        walk, self.walk = self.walk, None
        if walk is None or walk.key is None:
            return
        key, generic_key = walk.key, walk.without_floats()
        if self.asked and not works:
            works = [Work([], walk.device)]
        work = works[0] if len(works) == 1 and works[0].device is walk.device else None
        with lock:
            if work is not None and not _computed_all([*self.works, work], walk.pending):
                work = None
            if walk.customs and (self.asked is None or work is None or not _small([*self.works, work])):
                recipes[key] = None if not self.works and _small(works) else False          # None: the next time calls are noted
                return
            recipe, older = None, None if generic_key is None else recipes[generic_key]
            # Most structures are never seen again; but of one with calls that were made before, the next is expected to come.
            again = recipes[key] is not None or key in recipes or older is not None or (walk.calls and not walk.customs)
            if work is not None and (again or generic_key is not None) and walk.inside.isdisjoint(beside):
                with contextlib.suppress(KeyError):
                    recipe = _Gradients(work, walk, order, grads, self.asked or [])
            if recipe is not None and generic_key is not None:
                if older is not None:
                    recipe.generalize(older, walk)
                recipes[generic_key] = recipe
            recipes[key] = (recipe if again else None) or (recipes[key] if self.asked is None else False)


def _computed_all(works: Sequence[Work], pending: Sequence[Node]) -> bool:
    """Whether the works computed all that was pending. (Another thread may have computed some of it since the walk.)"""
    made = {id(target.value) for work in works for target in work.targets}
    return all(id(resolve(node).value) in made for node in pending)


def _small(works: Sequence[Work]) -> bool:
    """Whether all is NumPy's for ever, part by part as in one: no kernel fuses what is before a custom call with what is behind it."""
    return all(p.usage.tier_up == NEVER and max(map(numpy_time, p.order)) <= LIMIT for p in [w.program for w in works if w.order])


def _known(walk: History) -> _Gradients | None:
    """The recipe of what was walked over, whatever its floats are, if need be."""
    recipe: _Gradients | None = recipes[walk.key] or None
    if recipe is None and (generic_key := walk.without_floats()) is not None:
        recipe = recipes[generic_key]
        if recipe is not None and not (recipe.free and fixed(walk.bits(), recipe.free) == fixed(recipe.bits, recipe.free)):
            return None
    recipes.hits += recipe is not None
    return recipe


def _given(walk: History, recipe: _Gradients, results: Sequence[Any]) -> list[Tensor]:
    """The leaves that are still there, which have their gradients now."""
    reached = []
    for i, k in recipe.grads:
        variable, value = walk.nodes[i], results[k] if k >= 0 else walk.nodes[~k].value
        tensor = walk.leaves.get(variable)
        if tensor is not None:
            if tensor._grad is None:
                tensor._grad = _gradient(walk, variable.aval, value)
            else:
                tensor._grad._n = data(variable.aval, value)
                tensor._grad._versions += 1
            reached.append(tensor)
    return reached


def _gradient(walk: History, aval: Aval, value: Any) -> Tensor:
    return holding(walk.device, aval, {"aval": aval}, value)
