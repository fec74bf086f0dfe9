"""Every threshold and size of the code generator, with its reason. Start at `Tuning`; `tuning()` is the one that holds.

A kernel has to be right whatever they are, so tests draw them: with tiny ones, tiny programs take every path
(tests/codegen/kernel/test_run_kernel.py). What a device tells of itself is in `plan.Target`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Tuning(NamedTuple):
    """The numbers. (Figures were measured with PoCL on 4 cores of Zen 3, where nothing else is said.)"""

    # what is one kernel (schedule/fusion.py)
    max_statements: int = 240          # of one kernel: longer ones take drivers too long to compile
    max_reads: int = 32                # buffers that one kernel reads
    list_work: int = 1 << 20           # flops of a list of more than `ranges` parts, each for all elements, from which on they are stored
    max_again: int = 12                # flops an element that a reader may repeat because it reads a value at several places (a stencil)
    reduced_work: int = 8              # flops an element from which on few elements are reduced in a loop, not written out

    # what is computed again rather than stored (schedule/rematerialization.py)
    flops_per_byte: int = 6            # what arithmetic costs beside memory traffic
    max_flops: int = 80                # an element of one value that is ever computed again,
    max_chain: int = 120               # and of a chain of them, each counted as 5 at least
    max_values: int = 128              # that are looked at for one kernel
    few_bytes: int = 64                # from which on down a value is not worth a buffer

    pool_cores: int = 8                # of a CPU, for each plane, up to which max pooling's gradient goes plane by plane: it takes a tenth

    paddings: int = 8                  # from which on a sum of paddings that are mostly apart is put together of its parts,
    padding_parts: int = 4             # cut into so many parts each, at most,
    put_together: int = 48             # so many at a time: more than half of `max_reads`, or all would be one kernel with an argument each

    products: int = 4                  # from which on small products with a matrix in common are one (passes/products.py),
    product_rows: int = 64             # of so many rows each, at most: more fill tiles by themselves

    # reductions (reductions.py)
    unrolled: int = 16                 # reductions over this many elements or fewer are written out
    long_row: int = 8192               # a row shorter than this is never cut in chunks
    row_chunk: int = 4096              # elements of such a chunk, about,
    row_chunks: int = 2                # and how many times the device is full of chunks, at most
    small_columns: int = 1 << 14       # reductions over columns of fewer elements than this are one chunk
    sum_steps: int = 32                # terms that an accumulator takes before it starts anew (lower/sums.py): equal ones make it off by
                                       # 5e-7 at most, as torch's are; with 16, softmax of 4096 numbers takes 1.06 of the time
    sum_rows: int = 64                 # the same of columns that are added up beside sums over rows, where a block's end costs a pass over
                                       # them: 1.02 of the time of layer norm's gradients with 32

    components: int = 4                # of a result's last dimension, up to which each is reduced by itself on a CPU,
    few_components: int = 1 << 12      # where so many elements are reduced: of fewer, one kernel more costs more than is gained

    # rows and elementwise work on CPUs (lower/rows/rows_cpu.py)
    stacked_columns: int = 64          # columns that are written out one by one if they come from about as many places
    few_columns: int = 4               # rows that are shorter than this are done as many at once as a vector has lanes
    item: int = 4096                   # elements that a work-item should at least have to do,
    most_items: int = 1 << 16          # and at most, if it is given more than `item`
    costly: int = 12                   # flops from which on a value that several passes over a row need is kept, not computed again
    side_by_side: int = 64             # flops from which on two vectors are computed side by side: a core does not look further ahead
    ranges: int = 8                    # that a loop over columns is cut into, so that inside no element's place needs a test
    tail_statements: int = 60          # of a body that is written once more for each of the narrower vectors that a row ends with
    private_bytes: int = 64 << 10      # of a work-item's private arrays
    turns: int = 12                    # vectors that are read or written in turn, element by element, at most (colours, coordinates)
    fetch_bytes: int = 1 << 20         # from which on the rows to come are asked for ahead: less is in a cache anyway
    line_bytes: int = 64               # of a cache line

    # the same on GPUs (lower/rows/rows_gpu.py)
    group: int = 256                   # work-items of a group
    short_row: int = 4                 # rows from this length on are a few items', side by side, and not written out in one
    column_chunk: int = 64             # rows of a chunk of columns, at least
    wide_items: int = 2                # times the work-items that the device holds, of an elementwise kernel whose items do four elements
    tiled: int = 1 << 14               # elements from which on what is read transposed goes through tiles in local memory
    row_registers: int = 32            # words that a work-item keeps of its row between passes
    owners: int = 64                   # work-items of a group that have nothing to do with each other

    # what owners of parts do (lower/)
    arg_chunk: int = 2048              # elements of a chunk of a row, at least
    arg_short: int = 32                # elements of a row up to which a CPU searches as many rows as it has lanes (of 24: 0.7 of the time)
    arg_rows: int = 16                 # and from which on it searches them one by one, in vectors of their elements
    scan_chunk: int = 2048
    scan_chunks: int = 1024            # chunks of a row, at most, on a GPU: each work-group goes over the sums of those before its own
    select_chunk: int = 2048           # and 16 k
    scatter_skip: int = 16             # elements up to which a row is added faster than a CPU can skip those of others: there is one owner
    scatter_alone: int = 1 << 12       # elements up to which one owner adds them faster than several find theirs, if the base has less than
                                       # 8 times as many
    scatter_few: int = 32              # indices that each element of the result looks at on a GPU; more are sorted
    exact_columns: int = 4             # of a row up to which float32 are added as integers, by atomics, on GPUs that have them of 64 bits,
    exact_spread: int = 4              # and elements of the result for each one that is added: eight integers of each are set and read
    few_rows_items: int = 64           # work-items of a group on a GPU that have a total of each row in local memory, at least
    scatter_part: int = 64             # sorted indices that are added up together on a GPU, at least
    scatter_columns: int = 64          # a part of a row is at least so long (and many of them, with vectors: cache lines are not shared)
    sort_vectors: int = 16             # vectors of a row up to which a CPU counts what stands before each element (101: 0.2 of the time),
    sort_run: int = 32                 # elements that one work-item sorts by insertion,
    sort_block: int = 4096             # sorts, runs and their merges, on a CPU (on a GPU: a run),
    sort_local: int = 4096             # a row sorted in local memory, at most (on a GPU; longer ones by digits),
    sort_part: int = 4096              # and does of a merge, on a CPU,
    sort_part_gpu: int = 16            # on a GPU
    digit_bits: int = 8                # that a GPU sorts by in one launch, at most,
    sort_each: int = 8                 # elements of an item in local memory then,
    sort_chunks: int = 256             # work-groups of one row, at most: each goes over what all have counted,
    sort_few_chunks: int = 160         # up to which an item has fewer elements where that makes more items,
    sort_counted: int = 1 << 20        # and elements up to which a digit is counted while they are sorted by the one before

    # factorisations of small matrices (graph/small_matrices.py)
    matrix_size: int = 16              # rows and columns up to which kernels do them: on one core 0.1 to 0.5 of LAPACK's time for 1000
                                       # matrices, and for one, a host step's, 0.4 to 0.8 (larger ones are LAPACK's strength)

    # factorizations of large matrices (codegen/blocked)
    factor_block: int = 32             # columns of a step, whose block on the diagonal a work-group holds in local memory,
    factor_rows: int = 128             # rows below it that a group solves, at most,
    factor_items: int = 1024           # items of the one work-group that eliminates a block's columns,
    factor_shared: int = 512           # rows up to which a GPU that shares the host's memory leaves them to LAPACK

    # Fourier transforms (lower/fourier.py)
    fourier_radix: int = 16            # points of a butterfly, which a work-item holds in registers,
    fourier_points: int = 8192         # of a line that a work-group transforms, at most,
    fourier_group: int = 256           # its work-items, where lines are short,
    fourier_across: int = 64           # bytes side by side that it reads of lines that are columns,
    fourier_butterfly: int = 8         # points of a butterfly of a CPU's vectors (4, 16: up to 1.2 of the time),
    fourier_kept: int = 512 << 10      # and bytes of points that its work-item keeps, at most: its stack, and a core's cache

    # products and convolutions (matmul/, conv/)
    product_steps: int = 512           # terms that a float accumulator of a product takes before it is added to another: equal ones make it
                                       # off by 4e-6 at most (3e-6 with 256, as MKL, but then 1024 cubed takes up to 1.02 of the time),
    conv_steps: int = 2048             # the same of a convolution: tiles of accumulators are larger (576 in two blocks: 1.05 of the time),
    product_blocks: int = 64           # and blocks that this other one takes
    split_k: int = 128                 # k of a part, at least, where k is split,
    split_flops: int = 1 << 19         # which pays from so much work on
    pack_items: int = 4096             # elements that a work-item packs, or adds up, at least
    written_along: int = 256           # bytes of a result's row for each k, from which on tiles are made row by row, not column by column
                                       # (1000 x 8 by 8 x 1000 in float64, a core of Zen 5: 0.75 of the time; k 64: 0.93; k 256: 1.0)
    panel_bytes: int = 32 << 10        # that a block of k reads of B's columns for every tile: in a core's first cache. (2048 cubed in
                                       # float64, a core of Zen 5: 98, 106, 100, 92 Gflop/s with 16, 32, 64, 128 K; 42 without blocks)
    gemm_step: int = 8                 # k of one block in local memory
    # of matrix instructions, by the bytes of elements (see tile/matrix.Blocks; on an H200 371, 193 and 51 Tflop/s of 4096 cubed): of those
    # that there is room for, what takes the least time
    matrix_blocks: tuple[tuple[int, tuple[tuple[int, int], tuple[int, int], int, int, bool]], ...] = (
        (2, ((2, 2), (4, 8), 32, 3, False)), (2, ((2, 2), (2, 4), 32, 3, False)), (2, ((2, 2), (2, 4), 32, 2, False)),
        (4, ((2, 2), (4, 8), 16, 3, True)), (4, ((2, 2), (2, 4), 16, 3, True)), (4, ((2, 2), (2, 4), 16, 2, True)),
        (8, ((2, 2), (4, 4), 16, 2, False)), (8, ((2, 2), (2, 4), 16, 3, False)), (8, ((2, 2), (2, 2), 16, 2, False)))
    thin: int = 4                      # rows or columns of a product on a GPU up to which the other operand is read once
    attention_scores: int = 1 << 12    # rows x keys of a head from which on attention has kernels of its own,
    attention_width: int = 256         # for rows up to so long (its blocks are in a core's first cache),
    attention_keys: int = 64           # keys of a block (on a CPU),
    attention_groups: tuple[tuple[int, int, int], ...] = (      # lines of a group, of the others at a time, and of an item (on a GPU):
        (64, 32, 4), (32, 32, 2), (32, 32, 4), (32, 16, 1), (32, 16, 2), (16, 16, 1),     # the first read least of any memory
        (8, 32, 1), (8, 16, 1))        # (for few lines)
    attention_long: int = 1 << 12      # keys, and rows on a GPU, above which a block's sum is made apart and then added
    written_out: int = 48              # lines of a tile's epilogue up to which it is written out for each vector; longer ones are a loop
    conv_unrolled: int = 7             # windows up to this width have their inner loop unrolled
    conv_weights: int = 1 << 10        # times the pixels of an image, squared: weights from which on convolutions of few are products
                                       # (Zen 5, 16 lanes: 0.4 of the time for 36,864 at 2 x 2; 1.05 for 147,456 at 4 x 4, 64 images)

    # small kernels in one launch (plan/batch_launches.py)
    launch_work: int = 3 << 16         # flops + bytes that a core does in the time of a launch (5 and 15 us on PoCL)
    little_work: int = 3 << 14         # so few that even
    repeats: int = 3                   # equal kernels, which share one function if each has its own launch, had better be merged
    shared_lines: int = 64             # from which on even a few that are alike but for offsets share one
    merged_items: int = 64             # work-items of a kernel that becomes a loop over them: many are for many cores
    merged_lines: int = 300            # of a merged kernel at most, and
    merged_buffers: int = 24
    merged_elements: int = 1 << 16     # of equal kernels of a GPU in one launch: those of more take longer than a launch (5 us),
    merged_parameters: int = 96        # and of such a launch: 8 bytes each, of 1024 that every device takes
    looped_lines: int = 4800           # of a kernel with a loop over iterations in it, which saves the launches of every iteration,
    iteration_work: int = 3 << 17      # that a core does in the time in which a launch wakes all of them (7 us on PoCL; see plan.by_one),
    register_elements: int = 8         # of a temporary that one work-item keeps in registers
    branch_work: int = 40              # flops from which on a branch of one work-item's loop is an `if`,
    branch_wait: int = 6               # or flops one after the other, of 4 cycles each, to its condition: a wrong guess takes 20 cycles
    item_iteration_work: int = 1 << 13 # and that a work-item of a GPU does in the time of a launch whose result the host waits for (20 us)
    looped_work: int = 3 << 19         # flops + bytes of an iteration with large rows where each work-item loops for itself: with more they
                                       # are far apart;
    looped_bytes: int = 1 << 14        # that a work-item reads and writes in each iteration where it does a block of elements,
    looped_sums: int = 1 << 24         # and bytes that all of these leave for sums over them, at most
    kept_bytes: int = 1 << 16          # of a carry from which on iterations write over its old value: it is copied before the first one,
    kept_iterations: int = 8                # which is worth it from so many iterations on
    parted_work: int = 1 << 26         # flops + bytes of an iteration up to which each core takes a part of the batch through all of them:
                                       # launches of more cost nothing beside it, and take whatever core is free,
    parted_iterations: int = 1 << 24        # and the work of all iterations from which on that is worth waking the cores

    # untraced work (execute/realize.py): what NumPy computes before anybody reads it, so that what is made of it is computed when called
    early_operations: int = 64         # at most,
    early_time: int = 60_000           # and the nanoseconds that NumPy takes for them,
    early_uses: int = 12               # for the first so many uses of a call


_DEFAULT = Tuning()
_active: ContextVar[Tuning] = ContextVar("tuning")


def tuning() -> Tuning:
    """The numbers that hold now."""
    return _active.get(_DEFAULT)


def changed() -> Tuning | None:
    """The numbers that hold now, if they are not the library's own."""
    return None if tuning() == _DEFAULT else tuning()


@contextmanager
def tuned(numbers: Tuning) -> Iterator[None]:
    """Others, while the block runs (in this thread)."""
    token = _active.set(numbers)
    try:
        yield
    finally:
        _active.reset(token)
