"""The rows of the benchmark, in the order of the table. Each is a `Workload`: see `base.py`, and `derived.py` for most of them."""

import numpy as np

from benchmarks.workloads.base import Workload
from benchmarks.workloads.clusters import MixtureProduct, NearestCentre
from benchmarks.workloads.convnet import ConvnetStep
from benchmarks.workloads.elementwise_chain import ChainGradient, ChainValue
from benchmarks.workloads.finance import BlackScholes
from benchmarks.workloads.gemm import LARGE_PRODUCTS, PRODUCTS
from benchmarks.workloads.graph_size import GraphSize
from benchmarks.workloads.heat import HeatAdjoint, HeatStep, PeriodicHeat, SmallFields
from benchmarks.workloads.inference import GaussianProcess, GroupSums, HamiltonianSteps, Histogram
from benchmarks.workloads.iterations import MINIMISERS, ScanUntil, WhileLoop, WhileLoopGradient
from benchmarks.workloads.layers import Attention, LayerNorm, MlpAdam, MlpUntraced, Recurrent, TransformerBlock, WrittenAttention
from benchmarks.workloads.lists import ListOfLists
from benchmarks.workloads.physics import LennardJones, Stencil, Trajectories
from benchmarks.workloads.samples import SAMPLES
from benchmarks.workloads.single import ArgMax, Bilinear, Conv1d, ImageEdges, Interpolation, Normal, Pooling, RunningSum, Sort, Sums, TopK
from benchmarks.workloads.softmax_cross_entropy import CrossEntropyGradient, CrossEntropyOfTen, CrossEntropyValue
from benchmarks.workloads.sparse import BundleAdjustment, StencilJacobian
from benchmarks.workloads.spellings import SPELLINGS
from benchmarks.workloads.tables import EmbeddingBag
from benchmarks.workloads.tiny import Tiny
from benchmarks.workloads.two_layer import TwoLayerStep

# At most this multiple of the best peer's time: of the programs that people run, of single operations and variants of those, and of what
# data sets do with a sample, where the time is all Python's. And the geometric mean of all rows that have peers, but those of samples.
TARGET, SINGLE_TARGET, SAMPLE_TARGET, MEAN_TARGET = 1.0, 1.1, 3.0, 0.55

PROGRAMS: list[Workload] = [
    Tiny(),
    TwoLayerStep(),
    ConvnetStep(),
    MlpAdam(),
    TransformerBlock(),
    Recurrent("GRU", 3),
    Attention(),
    WrittenAttention(),
    LayerNorm(),
    CrossEntropyValue(),
    CrossEntropyGradient(),
    CrossEntropyOfTen(),
    LayerNorm(rows=100_000, columns=24),
    EmbeddingBag(),
    NearestCentre(16),
    ChainValue(),
    ChainGradient(),
    BlackScholes(),
    LennardJones(),
    Trajectories(),
    HeatStep(),
    HeatAdjoint(),
    PeriodicHeat(),
    SmallFields(),
    *LARGE_PRODUCTS,
]
SINGLE: list[Workload] = [
    *PRODUCTS,
    Sums(),
    ArgMax(),
    RunningSum(),
    Sort(),
    TopK(),
    Normal(),
    Pooling(),
    Conv1d(),
    ImageEdges(),
    Interpolation(),
    Bilinear(),
    GaussianProcess(),
    HamiltonianSteps(),
    Histogram(),
    GroupSums(),
    ListOfLists(),
    NearestCentre(17),
    MixtureProduct(),
    StencilJacobian(),
    BundleAdjustment(),
    *SPELLINGS,
    WhileLoop(),
    WhileLoopGradient(),
    ScanUntil(),
    *MINIMISERS,
    *(Stencil(size, dimensions) for size, dimensions in ((1 << 24, 1), (4096, 2), (256, 3))),
    Recurrent("LSTM", 4),
    ChainValue(np.float64),
    CrossEntropyGradient(np.float64),
    LayerNorm(np.float64),
    MlpUntraced(),
]
GRAPHS: list[Workload] = [GraphSize(nodes) for nodes in (1_000, 4_000, 16_000)]

for workload in PROGRAMS:
    workload.target = TARGET
for workload in SINGLE:
    workload.target = SINGLE_TARGET
for workload in SAMPLES:
    workload.target = SAMPLE_TARGET

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in (*PROGRAMS, *SINGLE, *SAMPLES, *GRAPHS)}
