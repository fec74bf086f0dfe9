"""What tile programs are fused with: operands read through what lies before them, and what becomes of the result. Start at `Fused`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tracegrad.codegen.kernel.elements import Storage
from tracegrad.codegen.kernel.index.guards import Reads, branches
from tracegrad.codegen.kernel.index.index import Index, Var, bounded, constant, ravel, unravel
from tracegrad.codegen.kernel.ir.expressions import Expression, Held, Lanes, Load, Local
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access
from tracegrad.codegen.kernel.ir.vectors import computed_in, ctype
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile import cpu, matrix
from tracegrad.codegen.tile.program import Element, ElementAt, Program
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, is_half
from tracegrad.support.plan import Plain

LOWERED = {"cpu": cpu.written, "gpu": matrix.written}           # what makes statements of a program, by `DeviceKind.kernels`

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
        self.writer = context.writer(group, index)
        self.ev = context.evaluator(group, self.writer)
        self.noted: dict[str, Index] = {}

    def operand(self, node: Node, where: Map) -> ElementAt:
        """Elements of `node`, with all that is computed where it is read."""
        def find(*at: Index) -> Element:
            flat, tests = where(self, at)
            return Element(tuple(tests), read=lambda: self.ev.value(node, flat))

        return find

    def copied(self, read: Strided, each: int) -> Callable[..., Access]:
        """Where `each` elements of a plain array are, from an element on."""
        def find(*at: Index) -> Access:
            buffer = self.writer.buffer(read.storage.ref, self.writer.base(read.node), read.node.dtype, read.storage.access)
            return Access(buffer, read.at(at), each=each, whole=each > 1)

        return find

    def plain(self, read: Strided) -> ElementAt:
        """Elements of a plain array."""
        buffer = self.writer.buffer(read.storage.ref, self.writer.base(read.node), read.node.dtype, read.storage.access)

        def element(*at: Index) -> Element:
            access = Access(buffer, read.at(at))
            return Element((), lambda: Load(access, buffer.dtype), access=access)

        return element

    def result(self, node: Node, where: Map) -> ElementAt:
        """Elements of `node`, of which every stored root of the group is made."""
        def find(*at: Index) -> Element:
            flat, tests = where(self, at)

            def write(value: Expression) -> None:
                if value.lanes == 1:
                    self.store(node, flat, value)
                    return
                lane = next(iter(at[-1].opened().vars))
                if all(x.opened().stride_of(lane, value.lanes) == 1 for x, _ in self.places(flat)):
                    with self.ev.along(lane, value.lanes):
                        self.store(node, flat, value)
                    return
                if not isinstance(value, Local):
                    value = self.writer.declare(self.writer.base(node), value, node)
                for n in range(value.lanes):
                    self.store(node, where(self, (*at[:-1], bounded(at[-1].opened() + n, 0, at[-1].hi + 1)))[0], Lanes(value, n))

            return Element(tuple(tests), write=write)

        return find

    def store(self, node: Node, flat: Index, value: Expression) -> None:
        """Every stored root of the group at element `flat` of `node`, whose value is known."""
        stored = self.group.stored
        value = Load(value.access, node.dtype, value.lanes) if isinstance(value, Load) else value
        if stored != [node]:
            if is_half(node.dtype):                          # what is made of it is made of what would be stored
                value = self.ev.rounded(value, node.dtype)
            if not isinstance(value, Local):
                value = self.writer.declare(self.writer.base(node), value, node)
        known = value if value.dtype == node.dtype else Held(value, node.dtype)
        self.ev.given = lambda x, _: known if x is node else None
        for at, roots in self.places(flat):
            self.context.store(self.ev, self.group, roots, at)

    def places(self, flat: Index) -> list[tuple[Index, list[Node]]]:
        """The elements of results that are made of element `flat`, each with the roots that are stored there."""
        found: list[tuple[Index, list[Node]]] = []
        for moved in dict.fromkeys(map(self.group.moved.get, self.group.stored)):
            at = flat
            if moved is not None:
                indices = unravel(flat, moved.operands[0].shape)
                at = ravel([indices[d] for d in moved.attrs["dims"]], moved.shape)
            found.append((at, [s for s in self.group.stored if self.group.moved.get(s) is moved]))
        return found

    def scratch(self, temp: Temp, name: str, access: str, shape: Sequence[int]) -> ElementAt:
        """Elements of a buffer between two kernels, an array of `shape`."""
        buffer = self.writer.buffer(temp, name, temp.dtype, access)

        def find(*at: Index) -> Element:
            place = Access(buffer, ravel(at, shape))

            def write(value: Expression) -> None:
                self.writer.store(Access(buffer, place.at, each=value.lanes), value)

            return Element((), lambda: Load(place, temp.dtype), write, place)

        return find

    def array(self, name: str, dtype: DType, shape: Sequence[int]) -> ElementAt:
        """Elements of an array of a work-item's own."""
        array = self.writer.array(name, ctype(dtype), prod(shape))

        def find(*at: Index) -> Element:
            place = Access(array, ravel(at, shape))
            return Element((), write=lambda value: self.writer.store(Access(array, place.at, each=value.lanes), value), access=place)

        return find

    def kernel(self, program: Program, entry: str, comment: str, flops: int, moved: int, note: str) -> Kernel:
        """The kernel of `program`, whose loads and stores are this one's."""
        # Updates of factorizations are laid out by work-groups wherever there is local memory, on a CPU too.
        LOWERED["gpu" if program.grouped else self.context.target.traits.kernels](self.writer, program)
        required = program.cooperates or prod(program.local) == 1
        return self.finish(program.launched, program.local, required, entry, comment, flops, moved, note)

    def finish(
        self, launched: tuple[int, ...], local: tuple[int, ...], required: bool, entry: str, comment: str, flops: int, moved: int, note: str
    ) -> Kernel:
        """The kernel of what was written."""
        made = self.context.finish(self.group, self.writer, launched, local, required, entry)
        made.comment, made.flops, made.bytes, made.note = comment, flops, moved, note
        return made


def statements(group: Group, context: Context, node: Node, where: Map, dtype: DType, sizes: Sequence[int]) -> int:
    """How many it takes to store an element of a result, see `Fused.result`, with all that is computed of it."""
    f = Fused(group, context)
    f.result(node, where)(*[Var("at", n).index for n in sizes]).write(Local("c", dtype))
    return f.writer.statements


def read_for(group: Group, context: Context, node: Node, sizes: Sequence[int], flat: Callable[..., Index]) -> tuple[list[Var], list[Index]]:
    """Variables up to `sizes`, and the indices of all that is read for the element of `node` that `flat` has there."""
    vars = [Var("at", n) for n in sizes]
    found = Reads(context.storage(group), context.scalars)
    found.add(node, flat(*[v.index for v in vars]))
    return vars, found.indices


def lies_across(vars: Sequence[Var], indices: Sequence[Index], axis: int, other: int) -> bool:
    """Whether what is read (`read_for`) for neighbours along `axis` lies side by side, in all that has elements along `other`, too."""
    own, others = vars[axis], vars[other]
    read = [x for x in indices if own in x.reached() and (others in x.reached() or others.hi == 0)]
    return bool(read) and all(x.stride(own) == 1 and x.directly(own) for x in read)


def as_it_lies(group: Group, context: Context, node: Node, sizes: Sequence[int], flat: Callable[..., Index]) -> Strided | None:
    """How what is read for indices up to `sizes` lies in memory, if it is an array that is stored, and moved at most; None if it is not."""
    find = context.storage(group)
    vars = [Var("at", n) for n in sizes]
    at = flat(*[v.index for v in vars])
    while (stored := find(node)) is None:
        if node.fn.family != "movement" or node in context.scalars:
            return None
        if node.fn.name == "reshape":                        # the same element, whose index need not be taken apart
            node = node.operands[0]
            continue
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


def plainly(found: Strided | None, node: Node) -> Strided | None:
    """The same, if it is stored in the dtype that it is computed with."""
    return found if found is not None and found.node.dtype == node.dtype == computed_in(node.dtype) else None
