"""Temporaries of one launch in registers. Start at `in_registers`.

What kernels of one work-item left each other in memory is, once they are one kernel, a variable of that work-item. So is what a loop inside
a kernel hands from iteration to iteration: there, a store and a load of it would be waited for at every iteration. Short loops are
written out, since an array whose index varies is in memory after all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any

from tracegrad.codegen.kernel.ir.expressions import At
from tracegrad.codegen.kernel.ir.kernel import FAULTS, Kernel, LoweredLoop, Temp
from tracegrad.codegen.kernel.ir.statements import Allocate, Array, Block, Buffer, Loop, Statement
from tracegrad.codegen.kernel.ir.vectors import ctype
from tracegrad.codegen.kernel.text.markup import whole_in
from tracegrad.codegen.planning.batch_launches import Step, effects
from tracegrad.graph.ir import Node
from tracegrad.support.tuning import tuning


def in_registers(steps: Sequence[Step], outside: Container[Any]) -> list[Step]:
    """The steps, with the temporaries of few numbers that only one kernel of one work-item touches as variables of it.

    outside: the buffers that somebody else reads or has written.
    """
    count = Counter(_touched(steps))
    return [_own(s, count, outside) if isinstance(s, Kernel) else s for s in steps]


def _touched(steps: Sequence[Step]) -> Iterator[Any]:
    """The buffers that each step touches."""
    for step in steps:
        yield from {r for refs in effects(step) for r in refs}
        if isinstance(step, LoweredLoop):
            yield from step.held


def _own(kernel: Kernel, count: Counter[Any], outside: Container[Any]) -> Kernel:
    if kernel.foreign or kernel.cooperates or prod(kernel.global_size) > 1:
        return kernel
    found = [p for p in kernel.parameters if isinstance(p, Buffer) and p.access != "const" and count[p.ref] == 1
             and 0 < _size(p.ref) <= tuning().register_elements and p.ref not in outside]
    if not found:
        return kernel
    addressed = whole_in("\n".join(kernel.bare))           # by loads of vectors, and by pointers to one of several
    found = [p for p in found if p.name not in addressed]
    body = Block("")
    body.items = [*(Allocate(Array(p.name, ctype(p.dtype), _size(p.ref), False)) for p in found), *_written_out(kernel.body).items]
    gone = set(map(id, found))
    return replace(kernel, parameters=tuple(p for p in kernel.parameters if id(p) not in gone), body=body)


def _written_out(block: Block) -> Block:
    """The block, of which the compiler is asked to write out the innermost loops that have few iterations, known now."""
    made = copy(block)
    made.items = [_written_out(item) if isinstance(item, Block) else item for item in block.items]
    if isinstance(made, Loop) and _is_short(made):
        made.unrolled = made.unrolled or 1
    return made


def _is_short(loop: Loop) -> bool:
    known = all(isinstance(b.value, At) and not b.value.index.terms for b in (loop.start, loop.stop)) and not loop.kept
    count = loop.var.hi + 1
    innermost = all(isinstance(item, Statement) for item in loop.items)
    return known and innermost and count <= tuning().register_elements and count * len(loop.items) <= tuning().max_statements


def _size(ref: Any) -> int:
    """How many elements a temporary has; 0 of what is none."""
    if isinstance(ref, Temp):
        return 0 if ref is FAULTS else ref.size
    return ref.aval.size if isinstance(ref, Node) and ref.fn.name != "data" else 0
