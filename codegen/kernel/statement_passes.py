"""What is done to a kernel's statements once all of them are written. Start at `finish`.

Indices that nothing reads go, what is the kernel's own gets its names, and values that are rounded or cast only to be stored are not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from itertools import chain, pairwise
from typing import Any

from tracegrad.codegen.kernel.index.index import Var
from tracegrad.codegen.kernel.ir.expressions import (
    Cast,
    Convert,
    Expression,
    Held,
    Interleaved,
    Load,
    Op,
    Select,
)
from tracegrad.codegen.kernel.ir.render import lines
from tracegrad.codegen.kernel.ir.statements import (
    Access,
    Array,
    Assign,
    Block,
    Buffer,
    Declare,
    Local,
    Statement,
    Store,
    Update,
    declared_in,
    statements_in,
)
from tracegrad.codegen.kernel.ir.vectors import turns
from tracegrad.codegen.kernel.text.markup import marked, names_in
from tracegrad.codegen.kernel.text.names import means_something, possible
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.support.dtypes import DType, bfloat16, float16

ROUNDING: dict[DType, str] = {float16: "tg_to_half", bfloat16: "tg_to_bfloat"}      # the library's functions that round


def finish(w: Writer) -> None:
    """All of it, in that order."""
    _write_in_turn(w)
    _sweep(w)
    name_own(w)
    round_once(w)
    _cast_at_once(w)


def _sweep(w: Writer) -> None:
    """Take doubtful indices that nothing reads out, then those that nothing but these read."""
    unread: set[Var | Local] = set()
    names = [var.name for var in w.doubtful]
    for number, var in enumerate(w.doubtful):         # names are not yet their own: they are counted by others, which are
        _call(var, f"__{number}")
    while w.doubtful:
        count = Counter(name for text, _ in lines(w.blocks[0], False) for name in names_in(text))
        more = {var for var in w.doubtful if count[var.name] == 1} - unread
        if not more:
            break
        unread |= more
        todo = [w.blocks[0]]
        while todo:
            block = todo.pop()
            block.items = [item for item in block.items if not (isinstance(item, Declare) and item.symbol in more)]
            todo += [item for item in block.items if isinstance(item, Block)]
    for var, name in zip(w.doubtful, names, strict=True):
        _call(var, name)


def side_by_side(items: list[Any], starts: Sequence[int]) -> None:
    """Statements that do the same for several vectors, which begin at `starts`, one of each in turn.

    A core looks at a few hundred instructions ahead. Where those of one vector are as many, and each waits for the one before, it has
    nothing else to do meanwhile. Nothing happens where the vectors have something in common, or a loop or a test.
    """
    ends = [*starts[1:], len(items)]
    parts = [items[a:b] for a, b in zip(starts, ends, strict=True)]
    first, *others = [[(type(s), id(s.node)) for s in part] for part in parts]
    if not others or others != [first] * len(others) or not {*map(type, parts[0])} <= {Declare, Assign, Store}:
        return
    own = [{s.symbol for s in part if type(s) is Declare} for part in parts]
    read = [{var for s in part for x in ((*s.parts, s.access.at) if type(s) is Store else s.parts)
             for var in getattr(x.at if type(x) is Access else x, "vars", ())} for part in parts]
    if not any(own[j] & read[k] for j in range(len(parts)) for k in range(len(parts)) if j != k):
        items[starts[0]:] = chain.from_iterable(zip(*parts, strict=True))


def _write_in_turn(w: Writer) -> None:
    """Vectors that are written in turn, one element of each, become vectors of what lies side by side: colours, coordinates.

    A store of each lane is an instruction, and a vector of some of several takes one for each of them after the first.
    """
    most = turns(w.target)
    blocks = [w.blocks[0]]
    for block in blocks:
        blocks += [item for item in block.items if isinstance(item, Block)]
        alike: dict[Any, list[int]] = {}
        for k, s in enumerate(block.items):
            if isinstance(s, Store) and 1 < s.stride <= most and isinstance(s.access.memory, Buffer) and s.access.at is not None:
                key = s.access.memory, s.stride, s.access.lanes, (s.access.at - s.access.at.constant).key, s.value.type
                alike.setdefault(key, []).append(k)
        found = {places[-1]: (places, made) for places in alike.values() if (made := _in_turn(block.items, places))}
        gone = {k for places, _ in found.values() for k in places}
        block.items = [x for k, item in enumerate(block.items) for x in ((found[k][1] if k in found else ()) if k in gone else (item,))]


def _in_turn(items: Sequence[Any], places: Sequence[int]) -> list[Store]:
    """What writes as the stores at `places` do, if they are all of what lies side by side, and nothing else happens there meanwhile."""
    stores: list[Any] = sorted((items[k] for k in places), key=lambda s: s.access.at.constant)
    first, n = stores[0].access, stores[0].stride
    between = [s for s in items[places[0]:places[-1]] if s not in stores]
    if [s.access.at.constant - first.at.constant for s in stores] != list(range(n)):
        return []
    if any(not isinstance(s, (Declare, Store)) or _reads(s, first.memory) for s in between):
        return []
    values = tuple([s.value for s in stores])
    return [Store(Access(first.memory, first.at, first.lanes, first.lane, first.guards, n, skip), Interleaved(values, skip), stores[0].node)
            for skip in range(0, n * first.lanes, first.lanes)]


def _reads(s: Statement, memory: Buffer) -> bool:
    """Whether a statement reads what lies there."""
    todo = [part for part in s.parts if isinstance(part, Expression)]
    while todo:
        x = todo.pop()
        if isinstance(x, Load) and x.access.memory is memory:
            return True
        todo += x.operands
    return False


def name_own(w: Writer) -> None:
    """Name what is the kernel's own and not in `given`, such as loops' variables and arrays: as whoever wrote the kernel calls it,
    with a number behind that where something that is given, or another of its own that is in scope there, is called so.
    """
    blocks: list[tuple[Block, frozenset[str]]] = [(w.blocks[0], frozenset())]
    for block, _ in blocks:
        blocks += [(item, frozenset()) for item in block.items if isinstance(item, Block)]
    names = {p.name for p in w.params.values()}
    names.update(symbol.name for block, _ in blocks for symbol in declared_in(block) if symbol in w.given)
    todo = blocks[:1]
    while todo:
        block, around = todo.pop()
        visible = set(around)
        for symbol in declared_in(block):
            if symbol in w.given:
                continue
            _rename(symbol, names, visible)
            (names if isinstance(symbol, Array) and symbol.shared else visible).add(symbol.name)        # a work-group's: everywhere
        inside = frozenset(visible)
        todo += [(item, inside) for item in block.items if isinstance(item, Block)]


def _rename(symbol: Any, names: Set[str], visible: Set[str]) -> None:
    if symbol.name not in names and symbol.name not in visible:
        return
    base = name = possible(symbol.name)
    n = 0
    while name in names or name in visible or means_something(name):
        n += 1
        name = f"{base}_{n}" if base[-1].isdigit() else f"{base}{n}"
    _call(symbol, name)


def _call(symbol: Any, name: str) -> None:
    symbol.name = name
    if isinstance(symbol, Var):
        symbol.marked = marked(name)


def round_once(w: Writer) -> None:
    """Take the rounding to 16 bits off values that nothing reads but stores, which round."""
    if not any(key.startswith(tuple(ROUNDING.values())) for key in w.helpers):
        return
    found = statements_in(w.blocks[0])
    rounded = {s.symbol: s for s in found if isinstance(s, Declare) and isinstance(s.symbol, Local) and rounding(s.value)}
    if not rounded:
        return
    stored = Counter(s.value for s in found if isinstance(s, Store) and s.value in rounded and isinstance(s.access.memory, Buffer)
                     and s.access.memory.dtype == s.value.dtype)
    texts = [text for text, _ in lines(w.blocks[0], False)]
    count = Counter(name for text in texts for name in names_in(text))
    left = {dtype: sum(text.count(f"{name}(") for text in texts) for dtype, name in ROUNDING.items()}
    for symbol, statement in rounded.items():
        if stored[symbol] and count[symbol.name] == stored[symbol] + 1:
            exact = rounding(statement.value)
            assert exact is not None
            statement.value = Held(exact, statement.value.dtype)
            left[statement.value.dtype] -= 1
    unused = [f"{name}:" for dtype, name in ROUNDING.items() if not left[dtype]]
    w.helpers -= {key for key in w.helpers if key.startswith(tuple(unused))}


def rounding(x: Expression) -> Expression | None:
    """What is rounded to a dtype of 16 bits, if `x` does that."""
    name = ROUNDING.get(x.dtype)
    if name and isinstance(x, Held) and isinstance(x.x, Op) and any(key.startswith(f"{name}:") for key in x.x.spelling.helpers):
        return x.x.parts[0]
    return None


def _cast_at_once(w: Writer) -> None:
    """Take a value that only its own cast in the next line reads into that: `convert(counter & 255)`, called as the value was. And a
    variable that is only another's copy, for a store in the next line.
    """
    blocks = [w.blocks[0]]
    for block in blocks:
        blocks += [item for item in block.items if isinstance(item, Block)]
    todo = [(block, k) for block in blocks for k, (a, b) in enumerate(pairwise(block.items))
            if type(a) is Declare and (_casts(a, b) or _copies(a, b))]
    if not todo:
        return
    read = [part for block in blocks for of in (block, *block.items) for part in (*of.parts, *getattr(of, "places", ()))]
    readers = Counter(var for part in read for var in _locals(part))
    changed = {s.symbol if isinstance(s, Assign) else s.of for s in statements_in(w.blocks[0]) if isinstance(s, (Assign, Update))}
    for block, k in reversed(todo):
        a, b = block.items[k:k + 2]
        assert isinstance(a, Declare) and isinstance(a.symbol, Local)  # noqa: PT018 - for mypy, as the next
        if readers[a.symbol] != 1 or a.symbol in changed:
            continue
        if isinstance(b, Store):
            b.value = a.value
            del block.items[k]
            continue
        assert isinstance(b, Declare) and isinstance(b.symbol, Local)  # noqa: PT018
        if b.symbol not in changed:
            b.value = Cast(a.value, b.value.dtype) if isinstance(b.value, Cast) else Convert(a.value, b.value.dtype, b.value.mask)
            b.symbol.name = a.symbol.name
            del block.items[k]


def _casts(a: Declare, b: Statement | Block) -> bool:
    """Whether b declares nothing but a cast of what a declares, called as that but for a number: what an op does in two steps."""
    return (isinstance(b, Declare) and isinstance(b.symbol, Local) and type(b.value) in (Cast, Convert)
            and b.value.operands[0] is a.symbol and b.symbol.name.startswith(a.symbol.name)
            and not isinstance(a.value, (Cast, Convert, Load, Select)))


def _copies(a: Declare, b: Statement | Block) -> bool:
    """Whether a declares what another variable is, and b stores it."""
    x = a.value if isinstance(a.symbol, Local) and isinstance(b, Store) and b.value is a.symbol else None
    while isinstance(x, Held):
        x = x.x
    return isinstance(x, Local)


def _locals(part: Any) -> list[Local]:
    """The variables in what is read, as often as they stand there."""
    inside = [part] if isinstance(part, Expression) else [part.place] if isinstance(part, Access) and part.place is not None else []
    found: list[Local] = []
    while inside:
        x = inside.pop()
        found += [x] if isinstance(x, Local) else []
        inside += x.operands
    return found
