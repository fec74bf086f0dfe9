"""What a kernel can be: the kinds of groups, what each accepts, and why not. Start at `Kind` and `NotFused`.

A group is one kernel to be. Its kind is one of five: `Flat`, `Rows`, `Chunks`, `Columns`, `TemplateGroup`. What stands alone has a kind,
too (`kind_of`), and kinds are joined: a flat group that takes in a sum over rows is one over rows from then on. `accept` gives the kind of
the joined group and where in it the newcomer stands, or the `NotFused` that keeps it out. Which groups are asked, and what else must hold,
is `fusion`'s business. What `explain()` prints of a kernel are these objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tracegrad.codegen.kernel.index.facts import Fact
from tracegrad.codegen.kernel.ir.vectors import ceil_div, computed_in, lanes
from tracegrad.codegen.schedule.access_maps import IDENTITY, UNKNOWN, Maps, Reads
from tracegrad.errors import CompilerBug
from tracegrad.graph.ir import ON_HOST, Node
from tracegrad.support.plan import Plain, Target
from tracegrad.support.tuning import tuning

# ------------------------------------------------------------------------------------------------------------------ reasons


class NotFused(Enum):
    """Why a kernel ends: why `user` is not in the kernel that computes `value`, which it reads; COPY and RESULT if nobody reads it."""

    OPERAND = "{value} is an operand of {user}"
    CLOSED = "nothing is fused behind {value}, whose kernel has loops of its own"
    LANES = "{value} is stored lane by lane: what follows is done better by a kernel with vectors"
    SHAPE = "{value} is needed by a kernel over another shape"
    CHUNKS = "{user} needs what its chunks have found: it waits until all are done"
    POSITION = "{value} is read at other positions (transposed, sliced, broadcast or by another row)"
    WAITS = "{user}, the user of {value}, also waits for other kernels"
    FUSED = "{user}, the user of {value}, is fused with something else that it reads"
    LENGTH = "with {user} the kernel would be longer than a driver compiles well"
    BUFFERS = "with {user} the kernel would read too many buffers"
    OFF = "fusion is off"
    COPY = "a copy: the old value of the buffer was still being read"
    RESULT = "its results are results of the program"

    def text(self, value: Node | None = None, user: Node | None = None) -> str:
        """What `explain()` says of it."""
        return self.value.format(value=None if value is None else _called(value), user=None if user is None else _called(user))


class Fusion(Enum):
    """Why `values` are in a kernel that computes others, too."""

    PRODUCER = "fuses {values} with what they read of it, at their own element or row"
    SIBLING = "fuses {values} with the rest: the same domain, and no other kernel to wait for"

    def text(self, values: Iterable[Node]) -> str:
        """What `explain()` says of it."""
        return self.value.format(values=", ".join(dict.fromkeys(map(_called, values))))


def _called(node: Node) -> str:
    """An operation's name; of a part of a reduction, the reduction's."""
    name: str = node.attrs["op"].name if node.fn.family == "partial" else node.fn.name
    return name


class Granularity(Enum):
    """Where in a kernel a value stands: one for each element of its domain, for each row, or for each chunk."""

    ELEMENT = "element"
    ROW = "row"
    CHUNK = "chunk"


class Accepted(Plain):
    """The kind of a group that has taken something in, and where in it that stands."""

    kind: Kind
    place: Granularity


# -------------------------------------------------------------------------------------------------------------------- kinds


class Flat(Plain):
    """Element by element.

    parts: of a row, how many elements each has, if each is computed of other values than the next: of lists put together (on CPUs).
    """

    size: int
    parts: tuple[int, ...] = ()

    def accept(self, other: Kind, reads_row: bool = False) -> Accepted | NotFused:
        """Elements of the same number; reductions over rows (or chunks of them) that have so many, if all elements are computed alike."""
        if isinstance(other, TemplateGroup):
            return NotFused.OPERAND
        if other.size != self.size or isinstance(other, Columns):
            return NotFused.SHAPE
        if other == self or (self.parts and other == Flat(self.size)):
            return Accepted(self, other.place)
        if self.parts or (isinstance(other, Flat) and other.parts):
            return NotFused.SHAPE                               # what is computed alike everywhere is not written once for each part
        return Accepted(other, other.place)

    @property
    def alike(self) -> bool:
        """Whether all parts have as many elements: then they are computed side by side, else one behind the other."""
        return len(set(self.parts)) == 1

    @property
    def place(self) -> Granularity:
        return Granularity.ELEMENT

    def __str__(self) -> str:
        parts = f", in {len(self.parts)} parts {'side by side' if self.alike else 'one behind the other'}" if self.parts else ""
        return f"{self.size} element{'s' * (self.size != 1)}{parts}"


class Rows(Plain):
    """Reductions over whole rows, what is done with every element of them, and what is done with a row's values.

    length: of the chunks of rows over which columns are reduced, too (on CPUs); 0: none are.
    """

    rows: int
    cols: int
    length: int = 0

    def accept(self, other: Kind, reads_row: bool = False) -> Accepted | NotFused:
        """Reductions of these rows or their columns; elements; as many as there are rows if they read a row's value (`reads_row`)."""
        if isinstance(other, TemplateGroup):
            return NotFused.OPERAND
        if isinstance(other, Columns):
            same = other.over(self) and self.length in (0, other.length)
            return Accepted(replace(self, length=other.length), Granularity.CHUNK) if same else NotFused.SHAPE
        rows = isinstance(other, Rows) and (other.rows, other.cols, other.length) == (self.rows, self.cols, 0)
        if rows or other == Flat(self.size):
            return Accepted(self, other.place)
        if other == Flat(self.rows) and reads_row:
            return Accepted(self, Granularity.ROW)
        return NotFused.SHAPE

    @property
    def size(self) -> int:
        return self.rows * self.cols

    @property
    def place(self) -> Granularity:
        return Granularity.ROW

    def __str__(self) -> str:
        columns = f", and their columns in chunks of {self.length}" if self.length else ""
        return f"{self.rows} row{'s' * (self.rows != 1)} of {self.cols}{columns}"


class _InChunks:
    """Partial results of reductions: they are not there before the kernel has ended, and a later one reduces them."""

    def accept(self: Any, other: Kind, reads_row: bool = False) -> Accepted | NotFused:
        """The elements, and other reductions in the same chunks."""
        if isinstance(other, TemplateGroup):
            return NotFused.OPERAND
        return Accepted(self, other.place) if other == self or other == Flat(self.size) else NotFused.SHAPE

    @property
    def place(self) -> Granularity:
        return Granularity.CHUNK


class Chunks(_InChunks, Plain):
    """Of reductions over rows, one for every `length` columns."""

    rows: int
    cols: int
    length: int

    @property
    def size(self) -> int:
        return self.rows * self.cols

    @property
    def chunks(self) -> int:
        """Of a row."""
        return ceil_div(self.cols, self.length)

    def __str__(self) -> str:
        return f"{Rows(self.rows, self.cols)} in chunks of {self.length}"


class Columns(_InChunks, Plain):
    """Of reductions over the middle of (outer, middle, inner), one for every `length` of it: of the same columns."""

    outer: int
    middle: int
    inner: int
    length: int

    def accept(self, other: Kind, reads_row: bool = False) -> Accepted | NotFused:
        """The elements, and other reductions in the same chunks, or over the rows."""
        if isinstance(other, Rows) and self.over(other):
            return Accepted(replace(other, length=self.length), Granularity.ROW)
        return super().accept(other, reads_row)

    def over(self, rows: Rows) -> bool:
        """Whether these are the columns of `rows`."""
        return (self.outer, self.middle, self.inner) == (1, rows.rows, rows.cols)

    @property
    def size(self) -> int:
        return self.outer * self.middle * self.inner

    @property
    def chunks(self) -> int:
        """Of a column."""
        return ceil_div(self.middle, self.length)

    def __str__(self) -> str:
        times = f"{self.outer} times " * (self.outer != 1)
        return f"{times}{self.inner} column{'s' * (self.inner != 1)} of {self.middle} in chunks of {self.length}"


class TemplateGroup(Plain):
    """A node whose kernels have loops of their own: a product, a scan, a call. refuses: why nothing is fused behind it."""

    node: Node
    refuses: NotFused | None

    def accept(self, other: Kind, reads_row: bool = False) -> Accepted | NotFused:
        """Elements of its result, where they are stored (an epilogue): products and convolutions do so."""
        if isinstance(other, TemplateGroup):
            return NotFused.OPERAND
        if self.refuses:
            return self.refuses
        return Accepted(self, Granularity.ELEMENT) if other == Flat(self.size) else NotFused.SHAPE

    @property
    def size(self) -> int:
        return self.node.aval.size

    @property
    def place(self) -> Granularity:
        return Granularity.ELEMENT

    @property
    def is_call(self) -> bool:
        """Whether one step computes all results of a call, of which the anchor is one."""
        return self.node.fn.family in (*ON_HOST, "opencl_call", "loop", "branch", "small_matrices", "blocked")

    def __str__(self) -> str:
        return f"the elements of {self.node.fn.name}"


Kind = Flat | Rows | Chunks | Columns | TemplateGroup


def kind_of(node: Node, target: Target) -> Kind:
    """The kind of a group of `node` alone."""
    family = node.fn.family
    if family == "partial":
        (outer, middle, inner), length = node.operands[0].shape, node.attrs["length"]
        if inner > 1:
            return Columns(outer, middle, inner, length)
        return Chunks(outer, middle, length) if length < middle else Rows(outer, middle)
    if family == "pair":
        return Flat(node.operands[0].aval.size)
    if family == "leaf" or is_inline(node):
        return Flat(node.aval.size)
    if family == "reduction":
        x = node.operands[0]
        rows, cols = x.aval.size // x.shape[-1], x.shape[-1]
        if node.aval.size != rows or len(x.shape) - 1 not in node.attrs["dim"]:
            raise CompilerBug(f"grouping: {node!r}, computed at {node.loc}, is no reduction of rows, as the pass `reductions` leaves them")
        return Rows(rows, cols)
    if family not in ("contraction", "conv"):
        return TemplateGroup(node, NotFused.CLOSED)
    return TemplateGroup(node, NotFused.LANES if _lane_by_lane(node, target) else None)


def _lane_by_lane(anchor: Node, target: Target) -> bool:
    """Whether a product or convolution is stored one lane after the other.

    (Written out for every lane of every accumulator, a kernel of 100 lines becomes one of 2,000, and takes PoCL a second.)
    """
    if not target.traits.vectors:
        return False
    if anchor.fn.family == "contraction":
        m, n = anchor.shape[-2:]
        return n < lanes(computed_in(anchor.dtype), target) and m > n and (n > 1 or anchor.operands[0].shape[-1] < 16)
    return anchor.fn.name == "conv2d_input_grad" and anchor.attrs["stride"][1] > 1


# ------------------------------------------------------------------------------------------------------- nodes, as fusion sees them


def strip(node: Node) -> Node:
    """The node whose buffer holds `node`: reshapes share it."""
    while node.fn.name == "reshape":
        node = node.operands[0]
    return node


def cost(node: Node) -> int:
    """Flops an element."""
    if node.fn.family == "elementwise":
        return node.fn.flops
    if node.fn.family == "reduction":
        return max(1, node.operands[0].aval.size // max(1, node.aval.size))
    return 8 if node.fn.family == "gather" else 0


_INLINE = frozenset(("elementwise", "movement", "index", "gather", "pair"))


def is_inline(node: Node) -> bool:
    """Whether a node can be computed inside any kernel that needs it."""
    return node.fn.family in _INLINE or bool(small_reduction(node))


def is_reduction(node: Node) -> bool:
    """Whether a node is accumulated over a loop (a reduction over few elements is written out like arithmetic)."""
    return node.fn.family == "partial" or (node.fn.family == "reduction" and not small_reduction(node))


def _small(node: Node) -> bool:
    """Whether a reduction is written out inside the kernels that need it: over few elements that are there or are cheap to compute.

    One number from values that take a computation is a row's, though: it is accumulated where those are computed anyway.
    """
    if node.operands[0].aval.size > tuning().unrolled * node.aval.size:
        return False
    return node.aval.size > 1 or node.operands[0].shape[-1] != node.operands[0].aval.size or not takes_work(node.operands[0])


small_reduction = Fact("small_reduction", lambda n: n.fn.family == "reduction", _small)


def takes_work(node: Node) -> bool:
    """Whether an element costs some arithmetic, counted up to what is stored for certain."""
    total, seen, todo = 0, {node}, [node]
    while todo and total < tuning().reduced_work:
        node = todo.pop()
        if node.fn.family == "elementwise" or node.fn.name == "reshape":
            total += cost(node) if node.fn.family == "elementwise" else 0
            fresh = [o for o in node.operands if o not in seen]
            seen.update(fresh)
            todo += fresh
    return total >= tuning().reduced_work


# ------------------------------------------------------------------------------------------------------------------- groups


@dataclass(eq=False)
class Group:
    """One kernel to be: its kind, and what it computes. See `Kind`."""

    kind: Kind
    number: int
    roots: list[Node] = field(default_factory=list)
    place: dict[Node, Granularity] = field(default_factory=dict)   # of each root
    stored: list[Node] = field(default_factory=list)
    reads: Reads = field(default_factory=dict)               # stored nodes and inputs
    statements: int = 0
    ancestors: int = 0                                       # bit n: depends on group number n
    users: dict[int, Group] = field(default_factory=dict)    # groups that read from it
    work: int = 0                                            # its arithmetic, roughly, in operations
    positional: bool = False                                 # something in it depends on the index by more than the flat position
    moved: dict[Node, Node] = field(default_factory=dict)    # roots of a product that are at other places than it, with the permutation
    fused: dict[Node, Fusion] = field(default_factory=dict)  # why it has roots beyond the first
    why: tuple[str, ...] = ()                                # what `explain()` tells of all that
    part_of: Group | None = None                             # the group of which this one computes some elements (see early_parts.py)
    into: dict[Node, Node] = field(default_factory=dict)     # then its results, slices of that group's, with what they are slices of

    @property
    def size(self) -> int:
        """Elements of its domain."""
        return self.kind.size

    @property
    def cols(self) -> int:
        """Elements that share a row's value; 1 where there are no rows."""
        return self.kind.cols if isinstance(self.kind, (Rows, Chunks)) else 1

    def repeats(self, maps: Maps) -> bool:
        """Whether what an element reads by these maps, if it was computed here, would be so for each element: no loop over rows has it."""
        if isinstance(self.kind, Flat):
            return UNKNOWN in maps
        inner = self.kind.inner if isinstance(self.kind, Columns) else self.cols
        return any(m == UNKNOWN or (m != IDENTITY and (isinstance(self.kind, TemplateGroup) or m % inner)) for m in maps)

    @property
    def anchor(self) -> Node:
        """The node of an anchored group."""
        if not isinstance(self.kind, TemplateGroup):
            raise CompilerBug(f"codegen: the kernel of {self.roots[0]!r}, computed at {self.roots[0].loc}, has no anchor")
        return self.kind.node

    @property
    def lowered_by(self) -> Any:
        """What `LOWERINGS` knows it by: the class of its kind, or the family of its anchor."""
        return self.kind.node.fn.family if isinstance(self.kind, TemplateGroup) else type(self.kind)

    def results(self, place: Granularity) -> list[Node]:
        """What it stores that stands there."""
        return [s for s in self.stored if self.place[s] is place]


@dataclass
class Schedule:
    """The groups in launch order, and for each stored node its group."""

    groups: list[Group]
    group_of: dict[Node, Group]
    stored: set[Node]
    deps: dict[Node, Reads]
    costs: dict[Node, int]
