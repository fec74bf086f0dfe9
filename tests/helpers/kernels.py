"""Kernels without a driver: each program that the interpreter runs, compiled for targets and run by `run_kernel`. Start at `Checked`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers.plan_audit import misnamed, most_local_bytes
from tests.helpers.values import plain
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.run import KernelFault, run_plan
from tracegrad.execute import program as tg_program
from tracegrad.graph.printing import namer
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.plan import Plan, Target
from tracegrad.support.tuning import Tuning, tuned

CPU = Target(cores=2)
TARGETS = {
    "avx2": CPU,
    "avx512": replace(CPU, simd_bytes=64, registers=32),
    "sse, 16 cores": replace(CPU, simd_bytes=16, cores=16),
    "builtins": replace(CPU, plain_math=False, clang_builtins=False),
    "gpu": Target("gpu", 16, 16, 4, 256, 32768, plain_math=False, clang_builtins=False),
    "gpu, no local memory": Target("gpu", 16, 16, 2, 64, 0, plain_math=False, clang_builtins=False),
}
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-11}


# What thresholds may be: tiny, so that tiny programs take every path. Sizes that halve or double each other stay powers of two.
THRESHOLDS: dict[str, list[Any]] = dict(
    max_statements=[4, 20, 240], max_reads=[4, 32], list_work=[1, 1 << 20], max_again=[0, 12], reduced_work=[1, 8], max_flops=[0, 80],
    max_chain=[0, 120],
    few_bytes=[0, 64], components=[0, 2, 4, 4, 9], few_components=[0, 0, 100, 4096], unrolled=[1, 3, 16],
    long_row=[16, 100, 8192], row_chunk=[8, 4096], row_chunks=[1, 2], small_columns=[1, 64, 1 << 14],
    item=[1, 16, 100, 4096], most_items=[8, 64, 1 << 16], costly=[1, 12, 1000], private_bytes=[64, 64 << 10], fetch_bytes=[1, 1 << 20],
    side_by_side=[1, 64], turns=[1, 3, 8],
    line_bytes=[16, 64], group=[1, 8, 256], short_row=[2, 4, 32], owners=[1, 4, 64], column_chunk=[2, 64], tiled=[1, 1, 1 << 14],
    wide_items=[0, 2], row_registers=[0, 4, 32], arg_chunk=[2, 16, 2048], arg_short=[0, 8, 32], arg_rows=[2, 5, 16],
    scan_chunk=[2, 16, 2048], scan_chunks=[2, 7, 1024], select_chunk=[4, 2048],
    scatter_skip=[1, 1, 16], scatter_columns=[4, 64], sort_run=[2, 32], sort_block=[32, 4096], sort_part=[4, 4096], scatter_few=[1, 32],
    sort_vectors=[0, 1, 16],
    digit_bits=[1, 3, 8], sort_each=[1, 2, 8], sort_chunks=[1, 3, 256], sort_few_chunks=[1, 160], sort_counted=[0, 1 << 20],
    scatter_alone=[0, 0, 1 << 12], scatter_part=[2, 64], few_rows_items=[2, 64, 1 << 16],
    exact_columns=[0, 4, 64], exact_spread=[1, 64],
    sort_local=[8, 64, 4096], sort_part_gpu=[2, 16], split_k=[2, 16, 128],
    split_flops=[1, 1 << 19], pack_items=[1, 4096], panel_bytes=[64, 1 << 10, 32 << 10], gemm_step=[2, 8], thin=[1, 4],
    conv_unrolled=[1, 7], conv_weights=[0, 1 << 10], written_out=[0, 48], pool_cores=[0, 1, 8], ranges=[1, 3, 8], max_values=[16, 128],
    attention_scores=[0, 0, 1 << 12], attention_width=[16, 256], attention_keys=[1, 4, 8],
    attention_groups=[((8, 8, 2), (4, 4, 1)), ((4, 8, 1),)], attention_long=[0, 1 << 12],
    launch_work=[0, 1 << 10, 3 << 16], little_work=[0, 3 << 14],
    repeats=[1, 3], merged_items=[1, 64], merged_lines=[40, 400], merged_buffers=[4, 24], merged_elements=[0, 1 << 16],
    merged_parameters=[4, 96], matrix_size=[0, 2, 16], stacked_columns=[0, 5, 64], looped_lines=[0, 4800], looped_work=[0, 3 << 19],
    parted_work=[0, 1 << 26, 1 << 26], parted_iterations=[0, 1 << 24], iteration_work=[0, 3 << 17],
    item_iteration_work=[0, 1 << 13], branch_work=[1, 40], branch_wait=[0, 6, 1000], looped_bytes=[1, 1 << 14], looped_sums=[0, 1 << 24],
    kept_bytes=[0, 1 << 16], kept_iterations=[1, 8], products=[2, 4], product_rows=[2, 64],
    matrix_blocks=[((2, ((1, 1), (1, 4), 32, 3, True)), (8, ((1, 1), (1, 4), 16, 2, False))),
                   ((2, ((2, 1), (1, 4), 32, 2, False)), (8, ((1, 2), (2, 2), 16, 3, True)))],
    few_columns=[2, 4, 9], tail_statements=[0, 60], sum_steps=[1, 3, 32], sum_rows=[1, 2, 64],
    factor_block=[2, 4, 8, 32], factor_rows=[2, 16, 128], factor_items=[8, 1024], factor_shared=[4, 512],
    fourier_radix=[2, 4, 16], fourier_points=[4, 32, 8192], fourier_group=[1, 16, 256], fourier_across=[8, 64],
    fourier_butterfly=[4, 8],
    conv_steps=[1, 5, 2048], product_steps=[1, 2, 7, 512], product_blocks=[2, 3, 64],
)
CPU_FIELDS: dict[str, list[Any]] = dict(
    simd_bytes=[16, 32, 64], cores=[1, 2, 16], registers=[8, 16, 32], plain_math=[False, True], clang_builtins=[False, True],
    l2_bytes=[256, 512 << 10],
)
GPU_FIELDS: dict[str, list[Any]] = dict(
    kind=["gpu"], simd_bytes=[16], cores=[1, 4], max_work_group=[1, 64, 256, 256], local_memory=[0, 4096, 32768], plain_math=[False],
    clang_builtins=[False], matrix=[(), ("MMA_F16", "MMA_F64")], lanes=[16, 32, 64], host_memory=[False, True], resident=[128, 1024, 2560],
    atomics64=[False, True],
)


def random_tuning(rng: Random) -> Tuning:
    return Tuning(**{name: rng.choice(values) for name, values in THRESHOLDS.items()})


def random_target(rng: Random, kind: str = "any") -> Target:
    """kind: cpu, gpu or any."""
    fields = {"cpu": CPU_FIELDS, "gpu": GPU_FIELDS}.get(kind) or rng.choice([CPU_FIELDS, GPU_FIELDS])
    return Target(**{name: rng.choice(values) for name, values in fields.items()})


TUNINGS = st.builds(random_tuning, st.randoms(use_true_random=False))
DEVICES = st.builds(random_target, st.randoms(use_true_random=False))


def readable(plan: Plan) -> bool:
    """Whether the interpreter of kernels reads all of it: it does not read what users wrote."""
    return all("a kernel of the user's" not in step.note for step in plan.launches)


def agree(found: Sequence[Any], wanted: Sequence[Any], dtypes: Sequence[Any], what: str, slack: float = 1.0) -> None:
    coarsest = slack * max((TOLERANCE[str(d)] for d in dtypes if str(d) in TOLERANCE), default=0.0)
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        assert (f.shape, f.dtype) == (w.shape, w.dtype), f"{what}: result {k}"
        dtype, f, w = w.dtype, plain(f), plain(w)
        if dtype_kind(w.dtype) != "f" or not slack:
            np.testing.assert_array_equal(f, w, err_msg=f"{what}: result {k}")
        else:
            tolerance = max(coarsest, TOLERANCE[str(dtype)])
            scale = np.max(np.abs(w), initial=1.0, where=np.isfinite(w))
            np.testing.assert_allclose(f, w, rtol=tolerance, atol=float(tolerance * scale), err_msg=f"{what}: result {k}")


def in_pairs(array: Any) -> Any:
    """Complex numbers as pairs of real ones, which is what kernels see."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array).view(array.real.dtype).reshape(*array.shape, 2)


class Checked:
    """Every program that runs on the interpreter inside the block also runs as kernels for `targets`, and gives the same.

    largest: elements of a graph's nodes, all together, up to which a program is looked at. `count` tells how many plans were run.
    slack: factor of the tolerances; terms of a derivative may cancel. 0: every bit is the same (NaNs and zeros are all alike).
    """

    def __init__(
        self, targets: dict[str, Target] | None = None, largest: int = 2_000_000, tuning: Tuning | None = None, slack: float = 1.0
    ) -> None:
        self.slack = slack
        self.targets, self.largest, self.tuning, self.count = targets or TARGETS, largest, tuning or Tuning(), 0

    def __enter__(self) -> Checked:
        self._init, self._run = tg_program.Program.__init__, tg_program.Program._interpreted
        outer = self

        def init(program: Any, inputs: Any, outputs: Any, device: Any, donate: Any = None, *rest: Any, **more: Any) -> None:
            outer._init(program, inputs, outputs, device, donate, *rest, **more)
            program.donated = dict(donate or {})

        def run(program: Any, values: Any, lines: Any) -> Any:
            given = [np.array(v if weak else v.array, copy=True) for v, weak in zip(values, program.weak, strict=True)]
            results = outer._run(program, values, lines)
            outer.check(program, given, [np.asarray(r.array) for r in results])
            return results

        tg_program.Program.__init__, tg_program.Program._interpreted = init, run  # type: ignore[method-assign, assignment]
        self._tuned = tuned(self.tuning)                      # derivatives ask for the same numbers
        self._tuned.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._tuned.__exit__(None, None, None)
        tg_program.Program.__init__, tg_program.Program._interpreted = self._init, self._run  # type: ignore[method-assign]

    def check(self, program: Any, given: Sequence[Any], wanted: Sequence[Any]) -> None:
        graph = program._graph
        if sum(node.aval.size for node in graph) > self.largest:
            return
        arrays = [in_pairs(a) for a, weak in zip(given, program.weak, strict=True) if not weak]
        wanted = [in_pairs(w) for w in wanted]
        numbers = [a.item() for a, weak in zip(given, program.weak, strict=True) if weak]
        dtypes = {node.dtype for node in graph}
        for name, target in self.targets.items():
            with tuned(self.tuning):
                plan = compile_graph(graph, target, donate=getattr(program, "donated", {}), name=namer(graph))
            if not readable(plan):
                continue
            self.count += 1
            try:
                assert not misnamed(plan), f"kernels for {name}: {misnamed(plan)}"
                if target.kind == "gpu":
                    held = most_local_bytes(plan)
                    assert held <= target.local_memory, f"kernels for {name} have {held} bytes of local memory"
                with np.errstate(all="ignore"):
                    found = run_plan(plan, arrays, numbers)
                agree(found, [w.reshape(f.shape) for f, w in zip(found, wanted, strict=True)], list(dtypes), f"kernels for {name}",
                      self.slack)
            except (KernelFault, AssertionError) as error:
                error.add_note(f"{target}\n{self.tuning}\n{plan.source}")
                raise
