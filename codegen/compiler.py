"""The compiler: a graph in, a plan out. Start at `passes` and `compile_graph`.

Graph passes turn a graph into a simpler one; then the graph is scheduled (which nodes become which kernels), results are
matched with the inputs they may overwrite, kernels are written, and temporaries get their storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tracegrad.codegen.conv.few_pixels import few_pixels
from tracegrad.codegen.graph import large_matrices, small_matrices
from tracegrad.codegen.graph.attention import attention, written
from tracegrad.codegen.graph.bit_widths import halves
from tracegrad.codegen.graph.complex_pairs import in_pairs
from tracegrad.codegen.graph.fourier.transforms import in_kernels
from tracegrad.codegen.graph.pooling import pooling
from tracegrad.codegen.graph.reductions import canonical, few_terms, stacked_terms
from tracegrad.codegen.graph.simplify import simplify
from tracegrad.codegen.kernel.index.varying import any_vary, derived, sizes_that_vary
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lowering_table import LOWERINGS
from tracegrad.codegen.planning.arguments.generic import Folder
from tracegrad.codegen.planning.assemble import assemble
from tracegrad.codegen.planning.batch_launches import batched
from tracegrad.codegen.planning.equal_launches import side_by_side
from tracegrad.codegen.planning.lowering_cache import lower_all
from tracegrad.codegen.planning.overlap import overlapped
from tracegrad.codegen.schedule.donation import arrange, separate
from tracegrad.codegen.schedule.fusion import schedule
from tracegrad.codegen.schedule.grouping import strip
from tracegrad.codegen.schedule.host_scalars import host_scalars
from tracegrad.codegen.schedule.overlapped_messages import cut
from tracegrad.codegen.tile.instructions import TABLE as MATRIX_INSTRUCTIONS
from tracegrad.codegen.tile.instructions import candidates
from tracegrad.config import config
from tracegrad.graph.ir import Graph, Node, own_leaves
from tracegrad.ops.primitives.dynamic_slice import in_slices
from tracegrad.passes.loops import counted_before, hoisted
from tracegrad.passes.paddings import Limits, paddings
from tracegrad.passes.products import Limits as Together
from tracegrad.passes.products import products
from tracegrad.passes.verify import verify
from tracegrad.support.modes import without_collection
from tracegrad.support.plan import Plan, Target
from tracegrad.support.tuning import tuning

# What the stages above see (`execute/backend_interfaces.py`):
__all__ = ["MATRIX_INSTRUCTIONS", "candidates", "compile_graph", "passes"]
Pass = Callable[[Graph, Target], Graph]


def passes() -> list[tuple[str, Pass]]:
    """The pipeline for one graph."""
    settled: set[Node] = set()                                       # what `simplify` has found nothing to do about
    return [
        ("loops", lambda graph, target: hoisted(graph)),             # what is slow and the same in all iterations, before them
        ("counters", lambda graph, target: counted_before(graph)),   # of elementwise loops, as loops of their own
        ("dynamic_slice", lambda graph, target: in_slices(graph)),   # slices that start where an operand says
        ("fourier", in_kernels),                                     # transforms, where the host cannot compute them on the device's memory
        ("large_matrices", large_matrices.in_blocks),                # factorisations of large ones, where there is local memory
        ("matrices", small_matrices.in_kernels),                     # factorisations of many small ones
        ("pooling", pooling),                                        # of windows; the gradient plane by plane, or of windows
        ("complex", lambda graph, target: in_pairs(graph)),          # complex numbers as pairs of real ones
        ("halves", lambda graph, target: halves(graph)),             # sums and powers of halves, in float32
        ("few_pixels", few_pixels),                                  # convolutions of small images as products
        ("written", written),                                        # softmax(q kᵀ) v, however it is written, as one operation
        ("simplify", lambda graph, target: simplify(graph, settled)),          # algebra, constants, identities, dead code
        ("paddings", lambda graph, target: paddings(graph, limits())),          # sums of many: concatenations of what is summed
        ("products", lambda graph, target: products(graph, shared())),          # with a matrix in common, as one
        ("stacks", lambda graph, target: stacked_terms(graph)),      # products of stacked numbers with a vector, as sums
        ("few_terms", lambda graph, target: graph if any_vary() else few_terms(graph, target)),   # of rows of few by small matrices
        ("attention", attention),                                    # in tiles, or as products and a softmax
        ("reductions", canonical),                                   # every reduction as one over rows or columns, long ones in chunks
        ("tidy", lambda graph, target: simplify(graph, settled)),    # the reshapes that this left
    ]


def limits() -> Limits:
    """Which sums of paddings kernels had better put together."""
    numbers = tuning()
    return Limits(numbers.paddings, numbers.padding_parts, numbers.put_together)


def shared() -> Together:
    """Which small products kernels had better compute as one."""
    numbers = tuning()
    return Together(numbers.products, numbers.product_rows, numbers.put_together)


assert LOWERINGS, "codegen: no lowerings"


@without_collection
def compile_graph(
    graph: Graph, target: Target, *, donate: Mapping[int, int] | None = None, name: Callable[[Node], str] | None = None,
    results: Sequence[str] = (), varying: frozenset[int] = frozenset(), templates: Folder | None = None,
) -> Plan:
    """The plan that computes `graph.outputs` on a device like `target`.

    Inputs that are weak placeholders are the plan's run-time scalars, the others its buffers, each in their order. donate: output
    number -> number (in graph.inputs) of the input whose buffer it is to be written to. name: what the user calls a node's value.
    results: what he calls the outputs, in their order; "" where that is not known. varying: sizes of the inputs that will be others.
    templates: where those of kernels whose sizes vary are kept for later processes, if anywhere.
    """
    given = frozenset(n for x in graph.inputs for n in x.shape)
    if varying:
        varying = derived(varying, given, [n for x in graph for n in x.shape])
    with own_leaves(graph), sizes_that_vary(varying, given):
        return _compile(graph, target, donate or {}, name, results, varying, templates)


def _compile(
    graph: Graph, target: Target, donate: Mapping[int, int], name: Callable[[Node], str] | None, results: Sequence[str],
    varying: frozenset[int], templates: Folder | None,
) -> Plan:
    graph = _through_passes(graph, target)
    graph, outputs, wanted = separate(graph, dict(donate))              # results that need a buffer of their own are copies
    called = {node: text for node, text in zip(graph.outputs, results, strict=False) if text and node.fn.family != "leaf"}
    called |= {strip(node): text for node, text in called.items() if strip(node) not in called and strip(node).fn.family != "leaf"}

    @cache
    def namer(node: Node) -> str:
        return called.get(node) or (name(node) if name is not None else "")

    scalars, program = host_scalars(graph)                                    # 0-d arithmetic on Python numbers stays on the host
    plan = schedule(graph, outputs, scalars, target, config.fuse)             # groups of nodes, one a kernel
    alias, copies = arrange(plan, outputs, wanted, target.traits.row_groups)       # in place where nothing reads the old value later
    plan.groups = cut(plan, scalars) if config.fuse else plan.groups          # what waits for messages apart from what does not
    context = Context(plan, target, namer, scalars, alias, varying)
    prepared = cache(lambda body, numbers: _through_passes(body, target))
    context.prepared = lambda body: prepared(body, tuning())                  # loops' bodies are graphs of their own
    steps = lower_all(plan.groups, context)                                   # kernels, as statements; equal groups share them
    steps = overlapped(steps)                                                 # messages to other ranks beside them
    if config.fuse:
        steps = side_by_side(batched(steps), context)                          # small kernels in one launch: one-work-item ones, equal ones
    return assemble(graph, steps, context, copies, program, templates)        # slots, storage, source


def _through_passes(graph: Graph, target: Target) -> Graph:
    with own_leaves(graph):
        for label, run in passes():
            before, graph = graph, run(graph, target)
            if config.check and graph is not before:
                verify(graph, label)
    return graph
