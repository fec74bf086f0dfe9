"""What tile programs are fused with: operands read through what lies before them, and what becomes of the result. Start at `Fused`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.codegen.kernel.expressions import Expression, Load
from tracegrad.codegen.kernel.guards import Reads
from tracegrad.codegen.kernel.index import Index, Var, ravel
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.statements import Access
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.gpu import written
from tracegrad.codegen.tile.program import Element, Place, Program
from tracegrad.ir import Node

# An index map: which element of a node is at indices along axes, and what has to hold for it to be there. It may declare variables.
Map = Callable[["Fused", Sequence[Index]], tuple[Index, Sequence[Expression]]]


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

    def result(self, node: Node, where: Map) -> Place:
        """Elements of `node`, of which every stored sink of the group is made."""
        def find(*at: Index) -> Element:
            flat, tests = where(self, at)

            def write(value: Expression) -> None:
                stored = self.group.stored
                if isinstance(value, Load):
                    value = Load(value.access, node.dtype)
                    if stored != [node]:
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
        written(self.writer, program)
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
