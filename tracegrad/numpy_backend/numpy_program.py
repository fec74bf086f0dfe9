"""Work by numpy that comes again: `Routine`, the numpy rules of a structure, ready to be called one after the other. Start there.

What a step of it costs beside numpy's own time (half a microsecond of looking up, checking, dropping) is as much as numpy takes for few
elements. So from its `WRITTEN`-th use on a routine is Python of its own, a line an operation (`Writer`): straight on, with variables that
take each other's places, without the broadcasts that numpy makes anyway, and with arrays that nobody needs any more written over.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from tracegrad.config import config
from tracegrad.errors import LinAlgError, OutOfMemoryError
from tracegrad.graph.canonical import is_number
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.primitives.reduction import SHORT
from tracegrad.support.blas import quiet
from tracegrad.support.cache import memoize

WRITTEN = 12            # Python takes 20 us to read a line, which is saved in 40 uses; of longer ones than
LINES = 3000            # this that many times later, since somebody waits for it
SPREAD = 1 << 12        # bytes from which on an array is written over, or dropped at once: the next one then finds its memory

_WHERE = REGISTRY["where"]
_ADD, _PAD = REGISTRY["add"], REGISTRY["pad"]
_EXPAND, _RESHAPE, _PERMUTE = REGISTRY["expand"], REGISTRY["reshape"], REGISTRY["permute"]
_MATMUL, _DOT = REGISTRY["matmul"], np.ndarray.dot
_SUM = np.add.reduce
_OUT_BY_NAME = (np.maximum, np.minimum)            # NumPy 2.4 warns where it is given by position
_REDUCTIONS: dict[Any, Any] = {REGISTRY["sum"]: _SUM, REGISTRY["amax"]: np.maximum.reduce, REGISTRY["amin"]: np.minimum.reduce}
# Families whose rules give arrays of the node's dtype, or never do.
_STEADY = frozenset(("elementwise", "movement", "reduction", "contraction", "gather", "dynamic_slice"))


def out_of_memory(node: Node | None) -> OutOfMemoryError:
    """The error for a result that numpy has no memory for."""
    return OutOfMemoryError(f"out of memory: numpy cannot have {node and node.aval.nbytes} bytes for {node!r}; drop tensors that are no "
                            "longer needed, or use smaller batches")


class Step(NamedTuple):
    """One call. arity: how many operands. dtype: of the result; None for those of a loop, all together. dead: places that nobody reads

    after it.
    """

    rule: Callable[..., Any]
    operands: tuple[int, ...]
    arity: int
    place: int
    dtype: Any
    dead: tuple[int, ...]
    reports: bool
    fn: Any = None
    attrs: Any = None


class Routine:
    """The numpy rules of a structure: what its second use makes and the later ones take.

    Values have places (see graph/canonical.py): those of `size` operations, then those of leaves, the last one first. The results of a loop
    are computed together, by a step whose place is between the operations' and the leaves'. ends: the places of what a call gives.
    """

    __slots__ = ("avals", "constants", "ends", "first", "fixed", "size", "steps", "uses", "written")

    def __init__(self, order: Sequence[Node], places: Sequence[tuple[int, ...]], ends: Sequence[int]) -> None:
        self.size, self.ends, self.uses = len(order), tuple(ends), 0
        self.written: Callable[..., list[Any]] | None = None
        self.constants = [i for i, node in enumerate(order) if is_number(node)]
        self.avals: list[Aval] = [node.aval for node in order]
        given = set(self.constants)
        put_together = _put_together(order, places, ends)
        if put_together:
            places = [put_together[i][0] if i in put_together else operands for i, operands in enumerate(places)]
        self.fixed: list[tuple[int, Any]] = []          # what does not depend on anything
        last: dict[int, int] = {}
        for i, operands in enumerate(places):
            for o in operands:
                last[o] = i
        steps: list[Step] = []
        keep = {*ends, *given}
        loops: dict[Any, list[int]] = {}
        for i, (node, operands) in enumerate(zip(order, places, strict=True)):
            if node.fn.family == "loop":
                loops.setdefault((node.fn, operands), []).append(i)
        together = dict.fromkeys(loops, -1)
        self.first: list[int] = []                      # of each loop, the first result
        for i, (node, operands) in enumerate(zip(order, places, strict=True)):
            if i in given or (i in put_together and put_together[i][1] is None):
                continue
            fn: Any = node.fn
            if not operands:
                self.fixed.append((i, np.asarray(fn.computed((), node.attrs, node.aval.dtype), node.aval.dtype)))
                keep.add(i)
                continue
            dead = tuple(o for o in dict.fromkeys(operands) if last[o] == i and o not in keep)
            if fn.family == "loop":
                results = loops[fn, operands]
                used = sorted({order[k].attrs["index"] for k in results})
                at = together[fn, operands]
                if at < 0:
                    at = together[fn, operands] = self.size + len(self.first)
                    self.first.append(i)
                    steps.append(Step(fn.turns(tuple(used)), operands, -1, at, None, (), False))
                rule = itemgetter(used.index(node.attrs["index"]))
                steps.append(Step(rule, (at,), 1, i, node.aval.dtype, dead + (at,) * (i == results[-1]), False))
                continue
            call: Any = put_together[i][1] if i in put_together else fn.rule(node.attrs, node.aval.dtype, node.given)
            steps.append(Step(call, operands, len(operands), i, node.aval.dtype, dead, fn.reports, fn, node.attrs))
        self.steps = steps

    def __call__(self, inputs: Sequence[Any], constants: Sequence[Any], nodes: Any, notes: list[int]) -> list[Any]:
        """The values at `ends`. nodes: the operations, for what they report (to `notes`)."""
        if self.written is not None:
            known = len(notes)
            try:
                return self.written(inputs, constants, nodes, notes)
            except Exception:                           # raised again, with the user's line
                del notes[known:]
        else:
            self.uses += 1
            if self.uses == WRITTEN * (1 + len(self.steps) // LINES) and config.recall:
                strides: dict[int, Any] = {}
                found = self.run(inputs, constants, nodes, notes, strides)
                self.written = Writer(self, inputs, strides).function
                return found
        return self.run(inputs, constants, nodes, notes, None)

    def run(self, inputs: Sequence[Any], constants: Sequence[Any], nodes: Any, notes: list[int],
             strides: dict[int, Any] | None) -> list[Any]:
        """The same step by step. strides: gets those of each result; None of what was no array of the right dtype before it was made one.
        """
        values: list[Any] = [None] * (self.size + len(self.first))
        values += reversed(inputs)
        for i, value in zip(self.constants, constants, strict=True):
            values[i] = value
        for i, value in self.fixed:
            values[i] = value
        i = -1
        array = np.ndarray
        try:
            for rule, operands, arity, i, dtype, dead, reports, _, _ in self.steps:
                if arity == 2:
                    made = rule(values[operands[0]], values[operands[1]])
                elif arity == 1:
                    made = rule(values[operands[0]])
                else:
                    made = rule(*[values[o] for o in operands])
                right = dtype is None or (type(made) is array and made.dtype is dtype)
                values[i] = made if right else np.asarray(made, dtype)
                if strides is not None:
                    strides[i] = made.strides if right and dtype is not None else None
                if reports:
                    notes += nodes[i].fn.excess(values[operands[0]], nodes[i])
                for o in dead:
                    values[o] = None
        except LinAlgError as error:
            self._node(nodes, i).loc.tell(error)
            raise
        except MemoryError:
            raise out_of_memory(self._node(nodes, i)) from None
        return [values[t] for t in self.ends]

    def _node(self, nodes: Any, i: int) -> Any:
        """The operation whose step has the place i."""
        return nodes[i if i < self.size else self.first[i - self.size]]

    def flat(self, inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any] | None:
        """What a call gives, of operations that report nothing; None where numpy raises."""
        try:
            with quiet():
                return self(inputs, constants, (), [])
        except Exception:                                              # whoever does it at length raises it, and knows the line
            return None


@memoize(2000)
def _read(source: str) -> CodeType:
    """The code of the function that a text defines: routines that differ in sizes and numbers only have one text."""
    module = compile(source, "<a routine of tracegrad>", "exec")           # made of names from here
    return next(part for part in module.co_consts if isinstance(part, CodeType))


def _put_together(order: Sequence[Node], places: Sequence[tuple[int, ...]],
                  ends: Sequence[int]) -> dict[int, tuple[tuple[int, ...], Callable[..., Any] | None]]:
    """Sums of parts that are padded with zeros and do not overlap, as the derivatives of split and chunk are.

    For the last addition the places of the parts, and a rule that writes each where it belongs; for operations that are not needed then,
    (), None.
    """
    found: dict[int, tuple[tuple[int, ...], Callable[..., Any] | None]] = {}
    if not any(node.fn is _PAD for node in order):
        return found
    uses = Counter(o for operands in places for o in operands)
    uses.update(ends)
    for i in range(len(order) - 1, -1, -1):
        if i in found or order[i].fn is not _ADD:
            continue
        made = _padded(i, order, places, uses)
        pads = [k for k in made or () if order[k].fn is _PAD]
        shape = order[i].aval.shape
        boxes = [tuple(zip(order[k].attrs["low"], (n - h for n, h in zip(shape, order[k].attrs["high"], strict=True)), strict=True))
                 for k in pads]
        apart = all(any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(one, other, strict=True))
                    for j, one in enumerate(boxes) for other in boxes[:j])
        if made is None or not apart:
            continue
        found.update(dict.fromkeys(made, ((), None)))
        whole = sum(prod(b - a for a, b in box) for box in boxes) == order[i].aval.size
        slices = [tuple(slice(a, b) for a, b in box) for box in boxes]
        found[i] = tuple([places[k][0] for k in pads]), _writes(order[i].aval, slices, whole)
    return found


def _padded(i: int, order: Sequence[Node], places: Sequence[tuple[int, ...]], uses: Counter[int]) -> list[int] | None:
    """The paddings with zeros that operation `i` is the sum of, and the additions; None if it is another sum."""
    made, rest = [], [i]
    while rest:
        k = rest.pop()
        node = order[k] if 0 <= k < len(order) else None
        if node is None or node.aval is not order[i].aval or (k != i and uses[k] != 1):
            return None
        attrs = node.attrs
        if node.fn is _ADD:
            rest += reversed(places[k])
        elif node.fn is not _PAD or attrs["value"] or any(attrs["interior"]) or min(*attrs["low"], *attrs["high"], 0) < 0:
            return None
        made.append(k)
    return made


def _writes(aval: Aval, boxes: Sequence[tuple[slice, ...]], whole: bool) -> Callable[..., Any]:
    """The rule that puts parts where they belong. Where zeros were added to -0.0, there is 0.0: so it is here."""
    shape, dtype, zero, make = aval.shape, aval.dtype, np.zeros((), aval.dtype), np.empty if whole else np.zeros
    apart = [d for d, n in enumerate(shape) if any(box[d] != slice(0, n) for box in boxes)]
    if whole and len(apart) == 1:
        return SideBySide(aval, apart[0], [box[apart[0]] for box in boxes])

    def rule(*parts: Any) -> Any:
        out = make(shape, dtype)
        for box, part in zip(boxes, parts, strict=True):
            np.add(part, zero, out=out[box])
        return out

    return rule


class SideBySide:
    """The rule that puts parts next to each other along a dimension. rows: the shape of an array that holds them, each in a row of its own

    (`row`: which), from which `joined` takes them; None where they are no equals.
    """

    into = True

    def __init__(self, aval: Aval, dim: int, places: Sequence[slice]) -> None:
        self._dim, self._zero = dim, np.zeros((), aval.dtype)
        self._order = sorted(range(len(places)), key=lambda k: places[k].start)
        self.row = [self._order.index(k) for k in range(len(places))]
        widths = {p.stop - p.start for p in places}
        before, width, after = aval.shape[:dim], min(widths), aval.shape[dim + 1:]
        self.rows = (len(places), *before, width, *after) if len(widths) == 1 else None
        self._cut = (*before, len(places), width, *after)
        self._turned = (*range(1, dim + 1), 0, *range(dim + 1, len(self._cut)))

    def __call__(self, *given: Any) -> Any:
        """given: the parts, and maybe what to write to."""
        count = len(self._order)
        out = np.concatenate([given[k] for k in self._order], self._dim, *given[count:])
        return np.add(out, self._zero, out)             # where zeros were added to -0.0, there is 0.0

    def joined(self, rows: Any, out: Any) -> Any:
        """The same from an array of rows."""
        np.add(rows.transpose(self._turned), self._zero, out.reshape(self._cut))
        return out


class Writer:
    """Makes the `function` of a routine: what Routine.run does, as Python without loops and look-ups.

    inputs: those of one call; all calls' have these shapes and dtypes. strides: of each result; None where a conversion has to be tried.
    """

    parameters = "inputs, constants, nodes, notes"

    def __init__(self, routine: Routine, inputs: Sequence[Any], strides: dict[int, Any]) -> None:
        self.routine, self.inputs, self.strides = routine, len(inputs), strides
        self.given = [(x.shape, x.dtype) if type(x) is np.ndarray else None for x in inputs]
        self.names: dict[str, Any] = {"asarray": np.asarray}        # what the text names: its last arguments, which nobody gives
        self.known: dict[int, str] = {}                 # what is in `names`, by id
        self.sources: dict[int, int] = {}               # of what only broadcasts: the place of what is broadcast
        self.steps = self._keeping(self._needed([self._direct(step) for step in routine.steps]))
        lines = self._lines()
        read = _read if len(lines) <= LINES else _read.__wrapped__           # long code is not kept for others
        code = read("\n ".join([f"def function({self.parameters}, {', '.join(self.names)}):", *lines]))
        self.function: Callable[..., list[Any]] = FunctionType(code, {}, "function", tuple(self.names.values()))

    def _shape(self, place: int) -> tuple[int, ...] | None:
        """The shape of an operation's result; None where that is not known (leaves)."""
        return self.routine.avals[place].shape if 0 <= place < self.routine.size else None

    def _direct(self, step: Step) -> Step:
        """The step, with what is broadcast in the place of broadcasts that numpy makes by itself."""
        fn = step.fn
        if fn is None or step.dtype is None:
            return step
        shape = self.routine.avals[step.place].shape
        source = self._shape(step.operands[0])
        if source is not None and (fn is _EXPAND or (fn is _RESHAPE and shape[len(shape) - len(source):] == source
                                                     and set(shape[:len(shape) - len(source)]) <= {1})):
            self.sources[step.place] = self.sources.get(step.operands[0], step.operands[0])
        if not self._broadcasts(step) or not any(o in self.sources for o in step.operands):
            return step
        operands = list(step.operands)
        shapes = [self._shape(o) for o in operands]
        for k, o in enumerate(operands):
            other = self.sources.get(o)
            if other is None:
                continue
            tried = [self._shape(other) if j == k else s for j, s in enumerate(shapes)]
            # A leaf beside it has an unknown shape: it must be there already, in another operand of the result's.
            known = [s for s in tried if s is not None]
            beside = any(s == shape for j, s in enumerate(tried) if j != k)
            if beside or (len(known) == len(tried) and np.broadcast_shapes(*known) == shape):
                operands[k], shapes = other, tried
        return step._replace(operands=tuple(operands))

    @staticmethod
    def _broadcasts(step: Step) -> bool:
        """Whether numpy broadcasts the operands itself: it then goes through the same elements in the same way, to the same bits."""
        return isinstance(step.rule, np.ufunc) or isinstance(step.fn, type(_WHERE))

    def _needed(self, steps: list[Step]) -> list[Step]:
        """The steps that something needs, each with the places that nobody reads after it."""
        wanted = set(self.routine.ends)
        found = []
        for step in reversed(steps):
            if step.place in wanted or step.reports:
                dead = tuple(o for o in dict.fromkeys(step.operands) if o not in wanted)
                wanted.update(step.operands)
                found.append(step._replace(dead=dead))
        return found[::-1]

    def _keeping(self, steps: list[Step]) -> list[Step]:
        """The steps, with reductions that keep their dims where a reshape put them back: of what lies row by row that is the same array."""
        uses = Counter(o for step in steps for o in step.operands)
        uses.update(self.routine.ends)
        at = {step.place: k for k, step in enumerate(steps)}
        gone = set[int]()
        for k, step in enumerate(steps):
            made = steps[at[step.operands[0]]] if step.fn is _RESHAPE and step.operands[0] in at else None
            if made is None or made.fn not in _REDUCTIONS or uses[made.place] != 1 or self._by_itself(made) is None:
                continue
            aval, strides = self.routine.avals[step.place], self.strides[made.place]
            kept = tuple(1 if d in made.attrs["dim"] else n for d, n in enumerate(self._array(made.operands[0])[0]))
            if aval.shape == kept and strides == np.empty(self.routine.avals[made.place].shape, aval.dtype).strides:
                gone.add(made.place)
                dead = (*made.dead, *[o for o in step.dead if o != made.place])
                steps[k] = made._replace(place=step.place, dead=dead, attrs={"dim": made.attrs["dim"], "keepdim": True})
        return [step for step in steps if step.place not in gone]

    def _name(self, what: Any, hint: str) -> str:
        name = self.known.get(id(what))
        if name is None:
            name = self.known[id(what)] = f"{hint}{len(self.names)}"
            self.names[name] = what
        return name

    def _fresh(self) -> set[int]:
        """The places of arrays that nothing else shares memory with: made by ufuncs and products, read by what makes no views."""
        made = {s.place for s in self.steps if s.fn is not None and self.strides[s.place] is not None
                and (isinstance(s.rule, np.ufunc) or s.fn.family == "contraction")}
        for step in self.steps:
            if step.fn is None or not (self._broadcasts(step) or step.fn.family in ("contraction", "reduction", "gather")):
                made.difference_update(step.operands)
        return made.difference(self.routine.ends)

    def _lines(self) -> list[str]:
        routine = self.routine
        at: dict[int, str] = {~k: f"i{k}" for k in range(self.inputs)}
        lines = []
        if self.inputs:
            lines.append(f"{', '.join(f'i{k}' for k in range(self.inputs))}, = inputs")
        if routine.constants:
            lines.append(f"{', '.join(f'c{i}' for i in routine.constants)}, = constants")
        at.update({i: f"c{i}" for i in routine.constants})
        at.update({i: self._name(value, "f") for i, value in routine.fixed})
        fresh, free, count = self._fresh(), list[str](), 0
        for step in self.steps:
            shape = routine.avals[step.place].shape if step.place < routine.size else ()
            arguments = [at[o] for o in step.operands]
            large = step.dtype is not None and routine.avals[step.place].nbytes >= SPREAD
            over = None
            if large and isinstance(step.rule, np.ufunc):
                over = next((o for o in step.dead if o in fresh and routine.avals[o] is routine.avals[step.place]
                             and self.strides[o] == self.strides[step.place]), None)       # sums depend on how what they read lies
            if over is not None:
                name = at[over]
                lines.append(self._rule(step, arguments, name))
            else:
                name = free.pop() if free else f"v{count}"
                count += name == f"v{count}"
                call = self._call(step, arguments)
                if self._is_right(step, shape):
                    lines.append(f"{name} = {call}")
                else:
                    lines.append(f"{name} = asarray({call}, {self._name(step.dtype, 'd')})")
            if step.reports:
                lines.append(f"notes += nodes[{step.place}].fn.excess({arguments[0]}, nodes[{step.place}])")
            at[step.place] = name
            for o in step.dead:
                if o != over and at[o].startswith("v") and o != step.place:
                    free.append(at[o])
                    if o >= routine.size or routine.avals[o].nbytes >= SPREAD:
                        lines.append(f"{at[o]} = None")
        lines.append(f"return [{', '.join(at[t] for t in routine.ends)}]")
        return lines

    def _is_right(self, step: Step, shape: tuple[int, ...]) -> bool:
        """Whether what the step's rule gives is an array of its dtype, as it was: it depends on nothing but the structure."""
        steady = step.fn is not None and step.fn.family in _STEADY and self.strides[step.place] is not None
        return step.dtype is None or bool(shape and steady)

    def _call(self, step: Step, arguments: Sequence[str], *out: str) -> str:
        """out: the array that it is computed into, if its rule takes one."""
        if step.fn is _PERMUTE and step.attrs["dims"] == (1, 0):
            return f"{arguments[0]}.T"
        if step.fn is _RESHAPE and step.attrs["shape"]:
            return f"{arguments[0]}.reshape({self._name(tuple(map(operator.index, step.attrs['shape'])), 's')})"
        rule = self._by_itself(step)
        if rule is _DOT:
            return f"{arguments[0]}.dot({', '.join([arguments[1], *out])})"
        if rule is not None:
            keeps = ["True"] if "keepdim" in step.attrs else []
            more = ["None", *(out or ["None"]), *keeps] if out or keeps else []
            return f"{self._name(rule, 'r')}({', '.join([arguments[0], self._name(step.attrs['dim'], 'd'), *more])})"
        return self._rule(step, arguments, *out)

    def _rule(self, step: Step, arguments: Sequence[str], *out: str) -> str:
        named = [f"out={array}" for array in out] if step.rule in _OUT_BY_NAME else out
        return f"{self._name(step.rule, 'r')}({', '.join([*arguments, *named])})"

    def _by_itself(self, step: Step) -> Any:
        """What the rule of a product or a reduction calls for operands like these, without its questions; None where that is not known."""
        reduce = _REDUCTIONS.get(step.fn)
        if reduce is None and step.fn is not _MATMUL:
            return None
        known = [self._array(o) for o in step.operands]
        if any(k is None or k[1].char not in "fd" for k in known):
            return None
        shape = known[0][0]
        if reduce is None:
            return _DOT if len(shape) == 2 else None
        dim = step.attrs["dim"]
        if reduce is not _SUM or prod(shape[d] for d in dim) <= SHORT:
            return reduce
        last, place = tuple(range(len(shape) - len(dim), len(shape))), step.operands[0]
        lies = place >= 0 and self.strides[place] == np.empty(shape, known[0][1]).strides
        return reduce if lies and dim == last else None      # else numpy adds up one after the other: the rule knows better

    def _array(self, place: int) -> Any:
        """The shape and dtype of an operand that is an array; else None."""
        if place < 0:
            return self.given[~place]
        steady = place < self.routine.size and self.strides.get(place) is not None
        return (self.routine.avals[place].shape, self.routine.avals[place].dtype) if steady else None
