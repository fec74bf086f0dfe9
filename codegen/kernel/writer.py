"""One kernel while it is written: blocks, names, parameters, statements (see `statements`). Start at `Writer`.

Statements go into nested blocks (loops). A value that does not depend on a loop's variable is placed in front of the loop,
however deep the place is where it was asked for. Every statement knows the node it computes, and the finished text shows
that node's line of the user's program beside it, wherever the line changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Mutable, Var, constant
from tracegrad.codegen.kernel.ir.expressions import (
    Address,
    At,
    Call,
    Cast,
    Expression,
    Infix,
    Operand,
    Select,
    value,
)
from tracegrad.codegen.kernel.ir.statements import (
    Access,
    Allocate,
    Array,
    Assign,
    Atomic,
    Barrier,
    Block,
    Bound,
    BoundLike,
    Break,
    Buffer,
    Declare,
    If,
    Item,
    Local,
    Loop,
    Number,
    Pointer,
    Prefetch,
    Repeat,
    Report,
    Statement,
    Store,
    Update,
    bound,
)
from tracegrad.codegen.kernel.text.names import means_something, possible
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, int32, int64
from tracegrad.support.plan import Target

Namer = Callable[[Node], str]

class Writer:
    """Collects one kernel's parameters and statements.

    blocks: the open blocks, outermost first. `declare` puts a statement at a depth and returns the new variable.
    """

    def __init__(self, target: Target, namer: Namer, index: str = "int") -> None:
        self.target, self.namer, self.index = target, namer, index
        self.index_dtype = int32 if index == "int" else int64
        self.params: dict[Any, Buffer | Number] = {}         # by what they bind to
        self.helpers: set[str] = set()                       # keys of mathlib
        self.blocks: list[Block] = [Block("")]
        self.given: set[Any] = set()                         # what is called as the user calls it: names that others give way to
        self.used: set[str] = set()                          # their names
        self.held: frozenset[str] = frozenset()              # what the buffers are called
        self._counts: dict[str, int] = {}
        self.updates = False                                 # whether a buffer is both read and written
        self.statements = 0
        self.doubtful: list[Var | Local] = []                # indices that were computed, and that perhaps nothing reads in the end

    # -- names and parameters

    def unique(self, base: str, pointer: bool = False, ending: str = "") -> str:
        """A name from `base` that is, with the ending, not used in this kernel; those of `held` are for pointers."""
        base = stem = possible(base)
        name = f"{stem}{ending}"
        first = name
        n = self._counts.get(first, 0)
        used, held = self.used, () if pointer else self.held
        while name in used or name in held or means_something(name):
            n += 1
            stem = f"{base}_{n}" if base[-1].isdigit() else f"{base}{n}"            # w1_1: w11 would be the eleventh
            name = f"{stem}{ending}"
        self._counts[first] = n
        self.used.add(name)
        return stem

    def rewind(self, names: set[str]) -> None:
        """Free the names that were given since `names` was taken of `used`: their scope is closed. (Parameters stay.)"""
        self.used &= names | {p.name for p in self.params.values()}
        self._counts.clear()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """`with`: names of what is declared in blocks that are opened in it are free again at its end. (What is declared in the open
        blocks keeps its name: among it is what does not change in the inner ones, and stands in front of them.)
        """
        before = set(self.used)
        yield
        items = [s for block in self.blocks for s in block.items]
        kept = {s.symbol.name for s in items if isinstance(s, Declare)} | {s.array.name for s in items if isinstance(s, Allocate)}
        self.rewind(before | kept)

    def base(self, node: Node) -> str:
        """What to call `node`'s value: as the user did, else after its operation."""
        return self.namer(node) or node.attrs.get("label", "") or ("in" if node.fn.family == "leaf" else node.fn.name)

    def buffer(self, storage: Any, base: str, dtype: DType, access: str) -> Buffer:
        """The pointer parameter for `storage` (a Node or a Temp). access: "const", "out" or "inout"."""
        found = self.params.get(storage)
        if not isinstance(found, Buffer):
            size = storage.aval.size if isinstance(storage, Node) else storage.size or None
            found = self.params[storage] = Buffer(storage, self.unique(base, pointer=True), dtype, size, access)
            self.given.add(found)
            self.updates |= access == "inout"
        return found

    def scattered(self, storage: Any) -> None:
        """What lies at `storage` is written twice, at places that memory tells: not `restrict`, see `batch_launches.united`."""
        found = self.params[storage]
        assert isinstance(found, Buffer)
        found.restrict = False

    def scalar(self, ref: Any, base: str, dtype: DType) -> Number:
        """The by-value parameter that binds to `ref`."""
        found = self.params.get(ref)
        if not isinstance(found, Number):
            found = self.params[ref] = Number(ref, self.unique(base), dtype)
            self.given.add(found)
        return found

    # -- statements and blocks

    @property
    def depth(self) -> int:
        return len(self.blocks) - 1

    def add(self, statement: Statement, depth: int | None = None) -> None:
        """Add a statement to the innermost block, or to the one at `depth`, in front of the inner block that is open in it."""
        self.statements += 1
        if depth is None or depth >= self.depth:
            self.blocks[-1].items.append(statement)
        else:
            items = self.blocks[depth].items
            at = len(items) - 1
            while isinstance(inner := items[at], If) and inner.otherwise:     # a branch goes with those in front of it
                at -= 1
            items.insert(at, statement)

    def declare(self, base: str, value: Expression, node: Node | None = None, depth: int | None = None,
                only_if: Expression | None = None) -> Local:
        """A new variable with that value."""
        local = Local(self.unique(base), value.dtype, value.lanes, value.mask, only_if)
        self.given.add(local)
        self.define(local, value, node, depth)
        return local

    def define(self, local: Local, value: Expression, node: Node | None = None, depth: int | None = None, const: bool = False) -> None:
        """Declares a variable that is there already."""
        self.add(Declare(local, f"{'const ' * const}{local.type}", value, node), depth)
        self.blocks[self.depth if depth is None else depth].vars.add(local)

    def computed(self, base: str, size: int, value: Expression, node: Node | None = None, depth: int | None = None) -> Var:
        """A new index variable, known to be in 0..size-1, that is computed: a row number that was read, say."""
        var = Var(base, size, of=frozenset(v for v in value.vars if isinstance(v, Var)))
        self.add(Declare(var, self.index + (str(value.lanes) if value.lanes > 1 else ""), value, node), depth)
        self.bind(var, depth)
        return var

    def bounding(self, name: str, size: int, value: BoundLike) -> Var:
        """An index variable, in 0..size, that bounds a loop."""
        value = bound(value)
        if value.low is not None and value.low == value.high and value.limit is None and (
                known := value.low.alone) is not None and type(known) is Var and known.hi <= size:
            return known                                     # no copy of what does not change
        var = Var(name, size + 1)
        self.add(Declare(var, f"const {self.index}", value.value, None, value))
        return var

    def bounded_by(self, name: str, size: int, value: BoundLike) -> Index:
        """The same as an index: what depends on it is computed where it is known."""
        var = self.bounding(name, size, value)
        self.bind(var)
        return var.index

    def block_end(self, name: str, block: Var, many: int, first: BoundLike, stop: BoundLike, size: int) -> BoundLike:
        """Where one of the blocks of `many` ends into which a loop from first to stop, which is not above `size`, is cut."""
        end = block.index + many
        if not isinstance(first, Bound) and not isinstance(stop, Bound):
            length = self.at(stop).index - self.at(first).index
            if not length.terms and length.constant % many == 0:             # none is shorter: drivers make better code
                return end
        a, b = self.at(end), bound(stop).value
        return self.bounding(name, size, Bound(Select(Infix("<", a, b), a, b), ZERO, end, size))

    def in_blocks(self, inside: ExitStack, name: str, end: str, blocks: Sequence[tuple[int, Callable[[], None]]], first: Index,
                  last: Index, size: int) -> tuple[Index, BoundLike]:
        """Loops over blocks, one in the other: of so many each, and what is done where it ends. name, end: what variables are called.

        Returns where the innermost begins and ends.
        """
        begin: Index = first
        stop: BoundLike = last
        for many, ended in blocks:
            block = Var(name, size)
            inside.enter_context(self.loop(block, begin, stop, many))
            inside.callback(ended)
            stop = self.block_end(end, block, many, begin, stop, size)
            begin = block.index
        return begin, stop

    def known(self, name: str, size: int, value_: Operand, said: str = "", node: Node | None = None) -> Var:
        """An index of that name that is computed, in 0..size-1 where something is read or written at it. said: what stands beside it."""
        if isinstance(value_, Index) and (var := value_.alone) is not None and type(var) is Var and var.hi < size:
            return var                                       # no copy of what does not change
        return self._named(f"const {self.index}", name, size, value_, said, node)

    def variable(self, name: str, size: int, value_: Operand, said: str = "", node: Node | None = None) -> Mutable:
        """The same, of one that changes."""
        return self._named(self.index, name, size, value_, said, node)

    def _named(self, type_: str, name: str, size: int, value_: Operand, said: str, node: Node | None) -> Mutable:
        var = Mutable(name, size)
        self.add(Declare(var, type_, value(value_), node, said=said))
        self.bind(var)
        return var

    def let(self, name: str, value: Expression, node: Node | None = None, changes: bool = False) -> Local:
        """A new variable of the kernel's own. changes: it is assigned to."""
        local = Local(name, value.dtype, value.lanes, value.mask)
        self.define(local, value, node, const=not changes)
        return local

    def indexed(self, base: str, x: Index) -> Index:
        """The index as a variable, if it is more than a number or a variable."""
        if not x.terms or (len(x.terms) == 1 and x.terms[0][1] == 1 and not x.constant and x.terms[0][0].var is not None):
            return x
        var = Var(base, x.hi - x.lo + 1, x.lo)
        self.add(Declare(var, f"const {self.index}", self.at(x), bound=bound(x)))
        self.bind(var)
        return var.index

    def least(self, a: Operand, b: Operand) -> Expression:
        """The less of two indices. (C's `min` is of two numbers of one type.)"""
        return Call("min", *(value(x) if self.index == "int" else Cast(value(x), self.index_dtype) for x in (a, b)))

    def at_most(self, name: str, x: Index, most: int) -> Index:
        """x, or `most` where it is more: a variable then, with a name of its own."""
        if x.hi <= most:
            return x
        var = Var(name, most + 1)
        self.add(Declare(var, f"const {self.index}", self.least(x, most), bound=Bound(self.at(x), ZERO, x, most)))
        self.bind(var)
        return var.index

    def pointer(self, name: str, to: Buffer, others: tuple[Buffer, ...], base: Index, size: int) -> Pointer:
        """A variable that points to element `base` of `to`, or of one of `others`, and so many from there on."""
        pointer = Pointer(name, (to, *others), base, size)
        self.add(Declare(pointer, pointer.type, Address(to, base)))
        return pointer

    def at(self, x: Index | Var | int) -> At:
        """An index as a number."""
        return At(x if isinstance(x, Index) else x.index if isinstance(x, Var) else constant(x), self.index_dtype)

    def bind(self, var: Var, depth: int | None = None) -> None:
        """What depends on `var` is computed in the innermost block, or the one at `depth`."""
        self.blocks[self.depth if depth is None else depth].vars.add(var)

    def depth_of(self, vars: Set[Any]) -> int:
        """The depth of the innermost block that binds one of `vars`: what depends on them is computed there, in front of inner loops."""
        if vars:
            for depth in range(len(self.blocks) - 1, 0, -1):
                if not self.blocks[depth].vars.isdisjoint(vars):
                    return depth
        return 0

    def item(self, name: str, size: int, axis: int, of: str = "global", type_: str = "") -> Var:
        """The number of the work-item along a dimension of the launch: all there is in the kernel depends on it."""
        var = Var(name, size)
        self.add(Item(var, type_ or self.index, axis, of))
        self.bind(var, 0)
        return var

    def number(self, name: str, count: int, axis: int, of: str = "global") -> Index:
        """The same as an index, which of one is 0."""
        return self.item(name, count, axis, of, "int" if of == "local" else "").index if count > 1 else ZERO

    def assign(self, to: Local | Var | Pointer | Access, value_: Operand, node: Node | None = None) -> None:
        if isinstance(to, Access):
            self.store(to, value(value_), node)
        else:
            self.add(Assign(to, value(value_, to if isinstance(to, Local) else 0), node))

    def update(self, of: Local | Var | Access, sign: str, value_: Operand, node: Node | None = None) -> None:
        """`of sign= value_`."""
        self.add(Update(of, sign, value(value_), node))

    def atomic(self, access: Access, sign: str, value_: Operand, node: Node | None = None) -> None:
        """An integer in memory that several work-items change: see Atomic."""
        self.add(Atomic(access, sign, value(value_), node))

    def store(self, access: Access, value: Expression, node: Node | None = None, stride: int = 1) -> None:
        """Writes `value` to what `access` says; a vector's lanes `stride` elements apart."""
        self.add(Store(access, value, node, stride))

    def array(self, base: str, type_: str, size: int, shared: bool = False, node: Node | None = None) -> Array:
        array = Array(possible(base), type_, size, shared)
        self.add(Allocate(array, node))
        return array

    def report(self, function: str, given: tuple[Expression, ...], faults: Buffer, place: Number, node: Node | None = None,
               depth: int | None = None) -> None:
        """Note in `faults` what is wrong (see Report)."""
        self.add(Report(function, given, faults, place, node), depth)

    def prefetch(self, memory: Buffer, at: Index, node: Node | None = None) -> None:
        """Ask for what is there, which is read soon (see Prefetch)."""
        self.add(Prefetch(memory, at, node))

    def barrier(self) -> None:
        self.add(Barrier())

    def leave(self) -> None:
        """Leave the innermost loop."""
        self.add(Break())

    @contextmanager
    def block(self, block: Block) -> Iterator[Block]:
        """What is added inside of `with` goes into it."""
        self.blocks[-1].items.append(block)
        self.blocks.append(block)
        yield block
        self.blocks.pop().memo = {}

    def loop(self, var: Var, start: BoundLike, stop: BoundLike, step: int = 1, whole: bool = False, known: tuple[Any, ...] = (),
             unrolled: int = 0, kept: bool = False) -> Any:
        """`with w.loop(...)`: for var from start to stop; whole: as long as a whole step fits. known, unrolled, kept: see Block, Loop."""
        return self.block(Loop(var, self.index, bound(start), bound(stop), step, whole, known, unrolled, kept))

    @contextmanager
    def unrolled(self, **counts: int) -> Iterator[list[Index]]:
        """`with w.unrolled(i=n, ...) as (i, ...)`: loops, one in the other, that the compiler is asked to write out; over 1, none."""
        with self.scope(), ExitStack() as inside:
            found = []
            for name, n in counts.items():
                var = Var(name, n)
                if n > 1:
                    inside.enter_context(self.loop(var, 0, n, unrolled=1))
                found.append(var.index if n > 1 else ZERO)
            yield found

    def branch(self, condition: Expression, known: tuple[Any, ...] = (), otherwise: bool = False) -> Any:
        """`with w.branch(...)`: only where the condition holds (and that of the branch before does not). known: see Block."""
        return self.block(If(condition, known, otherwise))

    def otherwise(self) -> Any:
        """`with w.otherwise()`: where the condition of the branch before does not hold."""
        return self.block(If(None, (), True))

    def repeat(self, condition: Expression) -> Any:
        """`with w.repeat(...)`: as often as the condition holds."""
        return self.block(Repeat(condition))

    def counting(self, var: Mutable, start: Operand, condition: Expression, sign: str, by: Operand, known: tuple[Any, ...] = ()) -> Any:
        """`for (var = start; condition; var sign= by)`, or `var = by`: var is in its range where the condition holds. known: see Block."""
        more = Update(var, sign, value(by)) if sign != "=" else Assign(var, value(by))
        return self.block(Repeat(condition, Declare(var, self.index, value(start)), more, known))

    @contextmanager
    def halving(self, item: Index, count: int) -> Iterator[Index]:
        """What half of `count` items, a power of two, do with those `half_size` behind them, then half of these, with barriers between."""
        half_size = Mutable("half_size", count // 2 + 1)
        with self.counting(half_size, count // 2, Infix(">", half_size, 0), "/", 2):
            with self.branch(Infix("<", item, half_size)):
                yield half_size.index
            self.barrier()

    def helper(self, names: frozenset[str]) -> None:
        self.helpers |= names
