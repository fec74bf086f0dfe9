"""The rows of the benchmark, in the order of the table. Each is a `Workload`: see `base.py`."""

from benchmarks.workloads.base import Workload
from benchmarks.workloads.convnet import ConvnetStep
from benchmarks.workloads.elementwise_chain import ChainGradient, ChainValue
from benchmarks.workloads.gemm import Gemm
from benchmarks.workloads.graph_size import GraphSize
from benchmarks.workloads.heat import HeatAdjoint, HeatStep
from benchmarks.workloads.softmax_cross_entropy import CrossEntropyGradient, CrossEntropyValue
from benchmarks.workloads.tiny import Tiny
from benchmarks.workloads.two_layer import TwoLayerStep

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in [
        ChainValue(),
        ChainGradient(),
        CrossEntropyValue(),
        CrossEntropyGradient(),
        *(Gemm(transpose_a, transpose_b) for transpose_a in (False, True) for transpose_b in (False, True)),
        TwoLayerStep(),
        ConvnetStep(),
        HeatStep(),
        HeatAdjoint(),
        Tiny(),
        *(GraphSize(nodes) for nodes in (1_000, 4_000, 16_000)),
    ]
}
