"""What a statement reads and writes: declared variables, lanes that fit, elements in their buffers. Start at `Operands.expression`."""

from __future__ import annotations

from typing import Any

from tracegrad.codegen.kernel.checks.proof import facts, guarded
from tracegrad.codegen.kernel.checks.races import Races
from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.kernel.ir.expressions import Address, At, Expression, Load, Made, Named, Pointer
from tracegrad.codegen.kernel.ir.statements import Access, Array, Atomic, Buffer, Local, Part, Store
from tracegrad.codegen.kernel.ir.vectors import computed_in, ctype


class Operands(Races):
    """The checks of expressions and accesses."""

    def declare(self, symbol: Any) -> None:
        self.scope.add(symbol)
        self.called[symbol.name] = symbol

    def use(self, symbol: Any) -> None:
        if symbol not in self.scope:
            raise self.fail(f"{symbol} is used before it is declared")
        if self.called[symbol.name] is not symbol:
            raise self.fail(f"{symbol} is used where another variable is called so")

    def read(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if isinstance(part, Expression):
                self.expression(part)
            elif isinstance(part, Access):
                self.access(part, False)
            elif isinstance(part, Index):
                for var in part.vars:
                    self.use(var)
            else:
                self.use(part)

    def differs(self, part: Part) -> bool:
        if isinstance(part, Expression):
            return not part.vars.isdisjoint(self.divergent)
        if isinstance(part, Access):
            return part.at is None or self.differs(part.at)
        if isinstance(part, Index):
            return not part.vars.isdisjoint(self.divergent)
        return part in self.divergent

    def expression(self, x: Expression) -> None:
        """That variables are declared, elements are there, and types agree."""
        if isinstance(x, Named):                             # as most; nothing is in it whose lanes could not fit
            self.use(x)
            return
        wide = x.lanes > 1
        for k, part in enumerate(x.operands):
            wide = wide or part.lanes > 1
            holds = x.where(k) if k else None                # (a first operand is always looked at)
            if holds is None:
                self.expression(part)
                continue
            known = len(self.known)
            self.known += facts(*holds)
            self.expression(part)
            del self.known[known:]
        if not isinstance(x, Made):                          # of operands alone
            if isinstance(x, At):
                for var in x.index.vars:
                    self.use(var)
            elif isinstance(x, Address):
                self.read((x.memory, x.base))
            elif isinstance(x, Load):
                self.access(x.access, False)
        if wide and (wrong := x.misfit()):                   # values of one lane make one
            raise self.fail(wrong)

    def pointed(self, pointer: Pointer, value: Expression) -> None:
        """That a pointer points to what it is said to point to."""
        if isinstance(value, Pointer):
            right = set(value.of) <= set(pointer.of) and value.base == pointer.base and value.size >= pointer.size
        else:
            right = isinstance(value, Address) and value.memory in pointer.of and value.base == pointer.base
        if not right:
            raise self.fail(f"{value} is not what {pointer} may point to")

    def made(self, symbol: Local, value: Expression) -> None:
        """That a variable is of the type of its value."""
        if symbol.lanes != value.lanes:
            raise self.fail(f"{value.lanes} lanes of {value} make {symbol.lanes}")
        if symbol.lanes > 1 and symbol.type != value.type:
            raise self.fail(f"{symbol} is {symbol.type}, and its value is {value.type}")

    def stored(self, s: Store) -> None:
        access, value, memory = s.access, s.value, s.access.memory
        lanes = access.count * (memory.lanes if isinstance(memory, Array) else 1)
        if value.lanes not in (1, lanes):
            raise self.fail(f"{value.lanes} lanes are stored as {lanes}")
        if value.lanes > 1:
            wanted = ctype(computed_in(memory.dtype), value.lanes) if isinstance(memory, Buffer) else f"{memory.type}{value.lanes}"
            wanted = memory.type if isinstance(memory, Array) and memory.lanes > 1 else wanted
            if value.type != wanted:
                raise self.fail(f"a {value.type} is stored as {wanted}")

    def atomic(self, s: Atomic) -> None:
        """That an integer is changed by one of its dtype."""
        memory = s.access.memory
        if not isinstance(memory, (Buffer, Array)) or memory.dtype.kind not in "iu" or memory.dtype.itemsize < 4:
            raise self.fail(f"{memory} does not have integers of 32 or 64 bits")
        if s.value.lanes > 1 or s.value.dtype != memory.dtype:
            raise self.fail(f"{s.value} is {s.value.type}, not {ctype(memory.dtype)}")
        self.access(s.access, True, atomic=True)

    def access(self, access: Access, writes: bool, atomic: bool = False) -> None:
        memory, at = access.memory, access.at
        self.use(memory)
        if writes and access.place is not None:
            self.expression(access.place)
        if isinstance(memory, Pointer):
            for buffer in memory.of:
                self.access(Access(buffer, None if at is None else memory.base + at, guards=access.guards), writes)
            memory = Array(memory.name, "", memory.size, False)          # and it stays where the pointer says
            if at is None:
                return
        if isinstance(memory, Buffer):
            if writes and memory.access == "const":
                raise self.fail(f"{memory} is const")
            if atomic:
                self.atomics.add(memory)
        if at is None:
            if isinstance(memory, Buffer) and not atomic:
                self.touched.setdefault(memory, []).append(None)
            return
        for var in at.vars:
            self.use(var)
        if isinstance(memory, Buffer) and not atomic:
            self.remember(access, writes)
        held = None
        if access.lane is not None and access.lanes > 1 and access.lane in self.ranges:
            held = low, high = self.ranges[access.lane]
            self.lanes = access.lane, access.lanes - 1
            self.ranges[access.lane] = low, high + access.lanes - 1
            if high + access.lanes - 1 > access.lane.hi:
                raise self.fail(f"the lanes of {access.lane} are taken to be in {access.lane.lo}..{access.lane.hi}, and go to "
                                f"{high + access.lanes - 1}")
        self.never = False
        enough = None if memory.size is None else (0, memory.size - access.each)
        low, high = self.interval(at, (*access.guards, *self.known), enough)
        high += access.each - 1
        if held is not None and access.lane is not None:
            self.ranges[access.lane], self.lanes = held, None
        if self.never:                                       # the guards do not hold here
            return
        if (low < 0 or (memory.size is not None and high >= memory.size)) and guarded(at, access.guards):
            low, high = at.lo, at.hi + access.each - 1       # what a guard says of another form of the index: believed
        if low < 0 or (memory.size is not None and high >= memory.size):
            raise self.fail(f"elements {low}..{high} of {memory} are {'written' if writes else 'read'}, of {memory.size} that it has")
