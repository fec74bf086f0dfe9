"""What tile programs are fused with: operands read through what lies before them, and what becomes of the result. Start at `Fused`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.codegen.kernel.elements import Storage
from tracegrad.codegen.kernel.expressions import Expression, Load
from tracegrad.codegen.kernel.guards import Reads, branches
from tracegrad.codegen.kernel.index import Index, Var, constant, ravel
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.statements import Access
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile import gpu, matrix
from tracegrad.codegen.tile.program import Element, Place, Program
from tracegrad.dtypes import is_half
from tracegrad.ir import Node
from tracegrad.plan import Plain

# An index map: which element of a node is at indices along axes, and what has to hold for it to be there. It may declare variables.
Map = Callable[["Fused", Sequence[Index]], tuple[Index, Sequence[Expression]]]


class Strided(Plain):
    """What an operand reads is `node`, stored as it is: at `first` and so much further for each step along an axis."""

    node: Node
    storage: Storage
    first: int
    strides: tuple[int, ...]

    def at(self, indices: Sequence[Index]) -> Index:
        """The element there."""
        found = constant(self.first)
        for x, stride in zip(indices, self.strides, strict=True):
            found = found + x * stride
        return found


class Fused:
    """One kernel of a group while it is written. index: the type that indices need at least; noted: what its index maps have declared."""

    def __init__(self, group: Group, context: Context, index: str = "int") -> None:
        self.group, self.context = group, context
        self.writer = context.writer(group, index=index)
        self.ev = context.evaluator(group, self.writer)
        self.noted: dict[str, Index] = {}

    def operand(self, node: Node, where: Map) -> Place:
        """Elements of `node`, with all that is computed where it is read."""
        def find(*at: Index) -> Element:
            flat, tests = where(self, at)
            return Element(tuple(tests), read=lambda: self.ev.value(node, flat))

        return find

    def copied(self, read: Strided, each: int) -> Callable[..., Access]:
        """Where `each` elements of a plain array are, from an element on."""
        def find(*at: Index) -> Access:
            buffer = self.writer.buffer(read.storage.ref, self.writer.base(read.node), read.node.dtype, read.storage.access)
            return Access(buffer, read.at(at), each=each)

        return find

    def result(self, node: Node, where: Map) -> Place:
        """Elements of `node`, of which every stored sink of the group is made."""
        def find(*at: Index) -> Element:
            flat, tests = where(self, at)

            def write(value: Expression) -> None:
                stored = self.group.stored
                if isinstance(value, Load):
                    value = Load(value.access, node.dtype)
                if stored != [node]:
                    half = is_half(node.dtype)
                    if half:                                 # what is made of it is made of what would be stored
                        value = self.ev.rounded(value, node.dtype)
                    if half or isinstance(value, Load):
                        value = self.writer.declare(self.writer.base(node), value, node)
                self.ev.given = lambda x, _: value if x is node else None
                self.context.store(self.ev, self.group, stored, flat)

            return Element(tuple(tests), write=write)

        return find

    def scratch(self, temp: Temp, name: str, access: str, shape: Sequence[int]) -> Place:
        """Elements of a buffer between two kernels, an array of `shape`."""
        buffer = self.writer.buffer(temp, name, temp.dtype, access)

        def find(*at: Index) -> Element:
            place = Access(buffer, ravel(at, shape))
            return Element((), lambda: Load(place, temp.dtype), lambda value: self.writer.store(place, value))

        return find

    def kernel(self, program: Program, entry: str, comment: str, flops: int, moved: int, note: str) -> Kernel:
        """The kernel of `program`, whose loads and stores are this one's."""
        (gpu if program.by is None else matrix).written(self.writer, program)
        made = self.context.finish(self.group, self.writer, program.launched, program.local, program.cooperates, entry)
        made.comment, made.flops, made.bytes, made.note = comment, flops, moved, note
        return made


def lies_across(
    group: Group, context: Context, node: Node, sizes: Sequence[int], flat: Callable[..., Index], axis: int, other: int
) -> bool:
    """Whether what is read for neighbours along dimension `axis` lies side by side, in all that has elements along `other`, too."""
    vars = [Var("at", n) for n in sizes]
    found = Reads(context.storage(group), context.scalars)
    found.add(node, flat(*[v.index for v in vars]))
    own, others = vars[axis], vars[other]
    read = [x for x in found.indices if own in x.reached() and (others in x.reached() or sizes[other] == 1)]
    return bool(read) and all(x.stride(own) == 1 and x.directly(own) for x in read)


def as_it_lies(group: Group, context: Context, node: Node, sizes: Sequence[int], flat: Callable[..., Index]) -> Strided | None:
    """How what is read for indices up to `sizes` lies in memory, if it is an array that is stored, and moved at most; None if it is not."""
    find = context.storage(group)
    vars = [Var("at", n) for n in sizes]
    at = flat(*[v.index for v in vars])
    while (stored := find(node)) is None:
        if node.fn.family != "movement" or node in context.scalars:
            return None
        found, _ = branches(node, at, ())
        if len(found) != 1 or found[0][1]:
            return None
        node, at, _ = found[0][0]
    at = at.opened()
    strides = [at.stride(v) if v.hi > v.lo else 0 for v in vars]
    if None in strides:
        return None
    made = Strided(node, stored, at.constant, tuple(s or 0 for s in strides))
    return made if made.at([v.index for v in vars]) == at else None
