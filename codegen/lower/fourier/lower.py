"""The kernels of Fourier transforms: by the vectors of a CPU, or by work-groups in local memory. Start at `transforms`."""

from __future__ import annotations

from tracegrad.codegen.graph.fourier.vectors_cpu import VECTORS
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.fourier.lines_gpu import LineTransforms
from tracegrad.codegen.lower.fourier.vectors_cpu import VectorTransforms
from tracegrad.codegen.schedule.grouping import Group


@lowering("fourier")
def transforms(group: Group, context: Context) -> list[Kernel]:
    """The operation says which: the graph's pass has chosen it for the device (`graph/fourier/transforms.py`)."""
    return [(VectorTransforms if group.anchor.fn is VECTORS else LineTransforms)(group, context).kernel()]
