"""A loop by numpy: what it does before the turns, in each of them, and after them. Start at `turns`.

numpy takes as long to begin an operation as it computes for a thousand elements, so a turn should have few. What no carry goes into is
therefore computed for all turns at once, before them (in the derivative of an LSTM half of the operations: the gates, and their
derivatives), or once, if it is the same in all of them; and what is only added up from turn to turn, after them. What is read in equal
parts (gates) is computed as an array of these; and a turn that comes often is written as Python, with its loop: see
numpy_backend/generated_loop.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.autodiff.batching import batch
from tracegrad.autodiff.derivatives import substituted
from tracegrad.config import config
from tracegrad.execute.compile import Work
from tracegrad.graph.ir import Aval, Graph, Node, topological
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.numpy_backend.generated_loop import Turns
from tracegrad.numpy_backend.numpy_program import LINES, WRITTEN, Routine
from tracegrad.ops.primitives.movement import narrow, permute, reshape

_ADD, _SUM, _SLICE, _RESHAPE = REGISTRY["add"], REGISTRY["sum"], REGISTRY["slice"], REGISTRY["reshape"]
ROW, WHOLE = 1 << 14, 1 << 20       # bytes, of a turn and of all: larger arrays take no less time together than one after the other
_KNOWN, _ROW, _TURN = range(3)      # what a node of a turn depends on: nothing that changes, what is scanned, a carry


def turns(graph: Graph, carries: int, rows: int, length: int, reverse: bool, used: Sequence[int]) -> Callable[..., list[Any]]:
    """What computes, from arrays of a loop's operands, its results `used`: last carries, and rows of all turns, stacked.

    graph: a turn of operations that report nothing. Its inputs are `carries` carries, `rows` rows and what stays; its outputs the new
    carries and rows.
    """
    stacked = [i for i in used if i >= carries]
    graph = _joined(graph)
    graph = _in_rows(graph, _dependence(graph, carries, rows, length))
    inputs, outs = list(graph.inputs), list(graph.outputs)
    depends = _dependence(graph, carries, rows, length)
    sums = _sums(inputs[:carries], outs, stacked)
    kept = [i for i in range(carries) if i not in sums]
    wholes = list(dict.fromkeys([*(outs[i] for i in stacked), *sums.values()]))         # whose values of all turns are wanted
    room = _Room([n for n in wholes if depends[n] == _TURN], {inputs[i]: outs[i] for i in kept}, depends, length, reverse)

    # In a turn: the carries that are not added up afterwards, and what is stacked.
    ends = [*(outs[i] for i in kept), *room.made]
    border = _border(ends, depends, set(inputs))
    ahead = [n for n in border if depends[n] == _ROW]
    once = [n for n in border if depends[n] == _KNOWN]
    stand_ins = {n: placeholder(n.aval) for n in border}
    scanned, level = inputs[carries:carries + rows], inputs[carries + rows:]
    new = substituted(ends, stand_ins)
    read = set(topological(new))
    scanned_there = [k for k, p in enumerate(scanned) if p in read]
    turn = _Part(new, [*(inputs[i] for i in kept), *(scanned[k] for k in scanned_there), *(stand_ins[n] for n in ahead), *level,
                       *(stand_ins[n] for n in once)])

    # Before: those of `wholes` that no carry goes into, and what turns read.
    whole_rows = [placeholder(Aval((length, *p.shape), p.dtype)) for p in scanned]
    given = [n for n in wholes if depends[n] != _TURN]
    before = _Part([*batch([*ahead, *given], dict(zip(scanned, whole_rows, strict=True)), length), *once], [*whole_rows, *level])

    # After: the sums.
    starts = {i: inputs[i] for i in sums}
    terms = {n: placeholder(Aval((length, *n.shape), n.dtype)) for n in dict.fromkeys(sums.values())}
    after = _Part([starts[i] + bind(_SUM, (batch([_added(inputs[i], outs[i])], {n: terms[n]}, length)[0],), {"dim": (0,)})
                   for i, n in sums.items()], [*starts.values(), *terms.values()])
    turning = _Turns(turn, len(kept), len(scanned_there) + len(ahead), length, reverse)

    place = {n: k for k, n in enumerate([*given, *room.found])}
    sources = [place[outs[i]] if i >= carries else ~i for i in used]
    summed = [place[n] for n in terms]

    def run(*arrays: Any) -> list[Any]:
        whole, stay = arrays[carries:carries + rows], arrays[carries + rows:]
        found = before([*whole, *stay])
        still = [*stay, *found[len(found) - len(once):]]
        moving = [*[whole[k] for k in scanned_there], *found[:len(ahead)]]
        state = [arrays[i] for i in kept]
        wide = room.wide(state)
        state = turning(state, moving, still, [x[room.new] if len(x) > length else x for x in wide])
        all_of = [*found[len(ahead):len(ahead) + len(given)], *room.arrays(wide)]
        lasts = dict(zip(kept, state, strict=True))
        if sums:
            lasts.update(zip(sums, after([*[arrays[i] for i in sums], *[all_of[k] for k in summed]]), strict=True))
        return [all_of[k] if k >= 0 else lasts[~k] for k in sources]

    return run


class _Part:
    """Nodes computed from the values of `inputs`, again and again."""

    def __init__(self, targets: Sequence[Node], inputs: Sequence[Node]) -> None:
        work = Work(list(targets), None, inputs=inputs)
        self.routine, self.order = Routine(work.order, work.places, work.ends), work.order
        self.constants = [np.asarray(c.attrs["value"]) for c in work.constants]       # which ufuncs take in half of a scalar's time

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        return self.routine(arrays, self.constants, self.order, [])


class _Room:
    """Where turns put what is wanted of all of them.

    made: the nodes that they put there. Of `found`, a part of an array is found in the array, and a carry in what becomes of it, which has
    room for one more. new: the rows of the latter that turns make.
    """

    def __init__(self, wanted: Sequence[Node], carried: dict[Node, Node], depends: dict[Node, int], length: int, reverse: bool) -> None:
        """carried: of each carry, what becomes of it."""
        self._length = length
        early, late = slice(length), slice(1, None)
        self._old: slice = late if reverse else early
        self.new: slice = early if reverse else late
        becomes = {new: carry for carry, new in carried.items() if carry in wanted and depends[new] == _TURN and new not in carried}
        sizes: Counter[Node] = Counter()
        for n in wanted:
            sizes[_part(n)[0]] += n.aval.size
        parts = {n: whole for n in wanted for whole in [_part(n)[0]] if n is not whole and n not in becomes and whole not in carried
                 and depends[whole] == _TURN and 2 * sizes[whole] >= whole.aval.size}
        self.made = list(dict.fromkeys([*becomes, *(parts.get(n, n) for n in wanted if n not in becomes.values())]))
        self._shapes = [((length + (n in becomes), *n.shape), n.dtype) for n in self.made]
        place = {n: k for k, n in enumerate(self.made)}
        first, carries = length if reverse else 0, list(carried)
        self._firsts = [(place[new], first, carries.index(carry)) for new, carry in becomes.items()]
        self._parts = [(place[whole], (slice(None), *_part(n)[1])) for n, whole in parts.items()]
        self.found = [*self.made, *becomes.values(), *parts]

    def wide(self, state: Sequence[Any]) -> list[Any]:
        """New arrays for `made`, and one more row where it becomes a carry, of which `state` has the first."""
        arrays = [np.empty(shape, dtype) for shape, dtype in self._shapes]
        for k, first, carry in self._firsts:
            arrays[k][first] = state[carry]
        return arrays

    def arrays(self, wide: Sequence[Any]) -> list[Any]:
        """Those of `found`."""
        narrow = [x[self.new] if len(x) > self._length else x for x in wide]
        return [*narrow, *(wide[k][self._old] for k, _, _ in self._firsts), *(narrow[k][part] for k, part in self._parts)]


class _Turns:
    """A part that is a turn, for all turns of a loop: one after the other, and once they were seen to come often, as they are written.

    carries, rows: how many of its inputs, the first ones, are carries; how many after them rows.
    """

    def __init__(self, turn: _Part, carries: int, rows: int, length: int, reverse: bool) -> None:
        self.turn, self.carries, self.rows, self.length, self.reverse = turn, carries, rows, length, reverse
        self.uses = 0
        self.written: Callable[..., list[Any]] | None = None

    def __call__(self, state: list[Any], moving: Sequence[Any], still: Sequence[Any], stacks: Sequence[Any]) -> list[Any]:
        """The last carries. stacks: get the other results."""
        state = [np.ascontiguousarray(a) if a.ndim else a for a in state]
        moving = [np.ascontiguousarray(x) if x.ndim > 1 else x for x in moving]             # or rows take three times as long
        stacks = [stack if stack.ndim > 1 else stack[:, None] for stack in stacks]
        if self.reverse:
            moving, stacks = [x[::-1] for x in moving], [x[::-1] for x in stacks]
        done, written = 0, self.written if config.recall else None
        if written is None:
            self.uses += 1
            often = config.recall and (self.uses > 1 or self.length >= WRITTEN) and len(self.turn.routine.steps) <= LINES
            done = min(2, self.length) if often else self.length
            seen: list[dict[int, Any]] = []             # the strides of what turns made; those that differ are not relied on
            for i in range(done):
                seen.append({})
                inputs = [*state, *(x[i] for x in moving), *still]
                state = self._turn(inputs, stacks, i, seen[-1] if often else None)
            if often:
                strides = {place: s if s == seen[0][place] else None for place, s in seen[-1].items()}
                written = self.written = Turns(self.turn.routine, inputs, strides, self.carries, self.rows).function
        if written is None or done == self.length:
            return state
        late = [[x[done:] for x in arrays] if done else arrays for arrays in (moving, stacks)]
        try:
            return written(state, late[0], still, late[1], self.turn.constants, self.length - done)
        except Exception:                               # raised again, with the user's line
            for i in range(done, self.length):
                state = self._turn([*state, *(x[i] for x in moving), *still], stacks, i, None)
            return state

    def _turn(self, inputs: list[Any], stacks: Sequence[Any], i: int, strides: dict[int, Any] | None) -> list[Any]:
        turn = self.turn
        values = turn.routine.run(inputs, turn.constants, turn.order, [], strides)
        for stack, value in zip(stacks, values[self.carries:], strict=True):
            stack[i] = value
        return values[:self.carries]


def _joined(graph: Graph) -> Graph:
    """The graph with functions of parts of one array, such as the gates of an LSTM, as parts of a function of the array."""
    found: dict[Any, list[Node]] = {}
    for node in graph:
        part = node.operands[0] if len(node.operands) == 1 and node.fn.family == "elementwise" else None
        if part is not None and part.fn is _SLICE and part.aval.nbytes <= ROW:
            found.setdefault((part.operands[0], node.fn, *node.attrs.items()), []).append(node)
    new: dict[Node, Node] = {}
    for (base, fn, *_), nodes in found.items():
        parts = dict.fromkeys(n.operands[0] for n in nodes)
        if len(parts) > 1 and 2 * sum(part.aval.size for part in parts) >= base.aval.size:
            whole = bind(fn, (base,), nodes[0].attrs)
            new.update((n, bind(_SLICE, (whole,), n.operands[0].attrs)) for n in nodes)
    return Graph.capture(graph.inputs, substituted(graph.outputs, new)) if new else graph


def _in_rows(graph: Graph, depends: dict[Node, int]) -> Graph:
    """The graph with arrays of which only equal parts of rows are read, such as the gates of an LSTM, as arrays of the parts.

    numpy takes three times as long for what lies apart.
    """
    users: dict[Node, list[Node]] = {}
    for node in graph:
        for o in node.operands:
            users.setdefault(o, []).append(node)
    ends, done, new = set(graph.outputs), set[Node](), dict[Node, Node]()
    for base in graph:
        if base in done or depends[base] != _TURN or base.fn.family != "elementwise" or base.aval.nbytes > ROW:
            continue
        functions = [base, *(u for u in users.get(base, ()) if u.fn.family == "elementwise" and len(u.operands) == 1)]
        parts = [(f, u) for f in functions for u in users.get(f, ()) if u not in functions]
        width, shape = _width(base, [u for _, u in parts]), base.shape
        if not width or not ends.isdisjoint(functions) or any(o.shape != shape for o in base.operands):
            continue
        done.update(functions)
        cut, turned = (*shape[:-1], shape[-1] // width, width), (len(shape) - 1, *range(len(shape) - 1), len(shape))
        rows = {base: bind(base.fn, tuple(permute(reshape(o, cut), turned) for o in base.operands), base.attrs)}
        rows.update((f, bind(f.fn, (rows[base],), f.attrs)) for f in functions[1:])
        new.update((u, reshape(narrow(rows[f], 0, u.attrs["start"][-1] // width, 1), u.shape)) for f, u in parts)
    return Graph.capture(graph.inputs, substituted(graph.outputs, new)) if new else graph


def _width(whole: Node, parts: Sequence[Node]) -> int:
    """How long these parts of an array of several rows are, if each is one of the equal parts of all rows; else 0."""
    shape = whole.shape
    width = parts[0].shape[-1] if parts and parts[0].fn is _SLICE and shape else 0
    if not 0 < width < shape[-1] < whole.aval.size or shape[-1] % width:
        return 0
    for part in parts:
        if part.fn is not _SLICE:
            return 0
        *others, (start, stop, step) = zip(*(part.attrs[end] for end in ("start", "stop", "step")), strict=True)
        if others != [(0, n, 1) for n in shape[:-1]] or start % width or (stop, step) != (start + width, 1):
            return 0
    return width


def _part(n: Node) -> tuple[Node, Any]:
    """The array that a node is a part of, and which; else itself."""
    cut = n.operands[0] if n.fn is _RESHAPE else n
    if cut.fn is not _SLICE or (n is not cut and cut.shape != (1, *n.shape)):
        return n, ()
    index: list[Any] = [slice(*ends) for ends in zip(*(cut.attrs[end] for end in ("start", "stop", "step")), strict=True)]
    return cut.operands[0], tuple(index if n is cut else [index[0].start, *index[1:]])


def _dependence(graph: Graph, carries: int, rows: int, length: int) -> dict[Node, int]:
    """What each node depends on; one that is to be computed in a turn depends on what is there only."""
    depends = {n: _TURN if i < carries else _ROW if i < carries + rows else _KNOWN for i, n in enumerate(graph.inputs)}
    for node in graph:
        if node in depends:
            continue
        found = max((depends[o] for o in node.operands), default=_KNOWN)
        small = node.aval.nbytes <= ROW and length * node.aval.nbytes <= WHOLE
        depends[node] = _TURN if found == _ROW and not (small and node.fn.family in ("elementwise", "movement")) else found
    return depends


def _sums(carries: Sequence[Node], outs: Sequence[Node], stacked: Sequence[int]) -> dict[int, Node]:
    """The carries that nothing but an addition to them reads, with what is added, or with what that is a sum of."""
    uses = Counter(o for node in topological([*outs[:len(carries)], *(outs[i] for i in stacked)]) for o in node.operands)
    uses.update([*outs[:len(carries)], *(outs[i] for i in stacked)])
    found: dict[int, Node] = {}
    for i, (carry, out) in enumerate(zip(carries, outs, strict=False)):
        if out.fn is _ADD and carry in out.operands and uses[carry] == uses[out] == 1 and out.dtype in (np.float32, np.float64):
            added = _added(carry, out)
            if added.aval is carry.aval:
                source = added.operands[0] if added.fn is _SUM and added.operands[0].aval.nbytes <= ROW else added
                found[i] = source
    return found


def _added(carry: Node, out: Node) -> Node:
    """What an addition to `carry` adds."""
    a, b = out.operands
    return b if a is carry else a


def _border(ends: Sequence[Node], depends: dict[Node, int], inputs: set[Node]) -> list[Node]:
    """What is computed elsewhere, and read where `ends` are."""
    found: dict[Node, None] = {}
    for node in topological(ends, lambda n: n in inputs or depends[n] != _TURN):
        if node not in inputs and depends[node] != _TURN and node.operands:
            found[node] = None
    return list(found)
