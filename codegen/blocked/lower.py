"""The groups of `graph/large_matrices.py`, as kernels. Start at `lower_blocked`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.codegen.blocked.cholesky import cholesky
from tracegrad.codegen.blocked.lu import lu
from tracegrad.codegen.blocked.triangle import triangle
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.host_call import siblings
from tracegrad.codegen.schedule.grouping import Group

_KERNELS: dict[str, Callable[..., list[Kernel]]] = {"cholesky": cholesky, "solve_triangular": triangle, "lu_factor": lu}


@lowering("blocked")
def lower_blocked(group: Group, context: Context) -> list[Kernel]:
    outputs = siblings(group, context)
    if outputs is None:
        return []
    fn: Any = group.anchor.fn
    return _KERNELS[fn.fn.name](group, context, *outputs)
