"""Instructions of a device while kernels are run: what work-items do together, and copies that are there only when they are waited for.

Start at `together` and `alone`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir.instructions import Given, Instruction
from tracegrad.codegen.kernel.run.memory import Array, KernelFault, Pointer, State

WITH_OTHERS = "with others"              # what a work-item yields where it waits for those that it does something with, at no barrier


def together(state: State, of: Instruction, *args: Any) -> Iterator[str]:
    """One work-item's part in an instruction of `of.lanes` of them, neighbours in their group."""
    (x, y, z), (nx, ny, _) = state.local_id, state.local_size
    some, lane = divmod(x + nx * (y + ny * z), of.lanes)
    mine = state.together.setdefault(some, (of, {}))
    if mine[0] is not of:
        raise KernelFault(f"{of.name}, while others do {mine[0].name}")
    mine[1][lane] = _read(of, args)
    yield WITH_OTHERS
    if some not in state.results:                            # the first of them that goes on
        found = state.together.pop(some)[1]
        if len(found) != of.lanes:
            raise KernelFault(f"{of.name}: {len(found)} of the {of.lanes} work-items are there")
        assert of.meaning is not None
        state.results[some] = dict(enumerate(of.meaning([found[n] for n in range(of.lanes)])))
    results = state.results[some].pop(lane)
    if not state.results[some]:
        del state.results[some]
    _write(of, args, results)


def alone(state: State, of: Instruction, *args: Any) -> None:
    """An instruction of one work-item."""
    if of.kind == "value":
        assert of.meaning is not None
        _write(of, args, of.meaning([_read(of, args)])[0])
        return
    groups = state.copies.setdefault(state.item, [[]])
    if of.kind == "copy":
        to, source = args
        for place in args:
            if place.at * place.memory.array.itemsize % 16:
                raise KernelFault(f"{of.name}: {place.memory.name}[{place.at}] does not begin at a multiple of 16 bytes")
        value = source.vector(16 // source.memory.array.itemsize).view(to.memory.array.dtype)
        groups[-1].append((to, value))
    elif of.kind == "commit":
        groups.append([])
    else:
        left = 1 + int(args[0])                              # and what was not committed
        for group in groups[:-left]:
            for to, value in group:
                to.put_vector(value)
        del groups[:-left]


def _read(of: Instruction, args: Any) -> tuple[Any, ...]:
    return tuple([_elements(x, wanted) for x, wanted in zip(args, of.given, strict=True) if wanted.reads])


def _elements(x: Any, wanted: Given) -> Any:
    if not wanted.count:
        return x
    assert isinstance(x, Pointer)
    return x.vector(wanted.count if wanted.type else wanted.count // x.memory.array.itemsize)


def _write(of: Instruction, args: Any, results: Any) -> None:
    places = [x for x, wanted in zip(args, of.given, strict=True) if wanted.writes]
    for place, value in zip(places, results, strict=True):
        put: Array = np.asarray(value)
        place.put_vector(put if put.dtype == place.memory.array.dtype else put.view(place.memory.array.dtype))
