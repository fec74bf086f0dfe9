"""Kernels without a driver: each program that the interpreter runs, compiled for targets and run by `run_kernel`. Start at `Checked`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracegrad import compile as tg_compile
from tracegrad.codegen.passes import compile_graph
from tracegrad.codegen.run_kernel import KernelFault, run_plan
from tracegrad.ir import Graph
from tracegrad.plan import Plan, Target
from tracegrad.printing import namer

CPU = Target(cores=2)
TARGETS = {
    "avx2": CPU,
    "avx512": replace(CPU, simd_bytes=64, registers=32),
    "sse, 16 cores": replace(CPU, simd_bytes=16, cores=16),
    "builtins": replace(CPU, plain_math=False, clang_builtins=False),
    "gpu": Target("gpu", 16, 16, 4, 256, 32768, plain_math=False, clang_builtins=False),
    "gpu, no local memory": Target("gpu", 16, 16, 2, 64, 0, plain_math=False, clang_builtins=False),
}
TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-11}


def plans(graph: Graph, targets: Sequence[Target], donate: dict[int, int] | None = None) -> list[Plan]:
    """The plans of a graph without boundary nodes."""
    return [compile_graph(graph, target, donate=donate or {}, name=namer(graph)) for target in targets]


def readable(plan: Plan) -> bool:
    """Whether the interpreter of kernels reads all of it: it does not read what users wrote."""
    return all("a kernel of the user's" not in step.note for step in plan.launches)


def agree(found: Sequence[Any], wanted: Sequence[Any], dtypes: Sequence[Any], what: str) -> None:
    coarsest = max((TOLERANCE[str(d)] for d in dtypes if str(d) in TOLERANCE), default=0.0)
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        assert (f.shape, f.dtype) == (w.shape, w.dtype), f"{what}: result {k}"
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(f, w, err_msg=f"{what}: result {k}")
        else:
            tolerance = max(coarsest, TOLERANCE[str(w.dtype)])
            scale = np.max(np.abs(w), initial=1.0, where=np.isfinite(w))
            np.testing.assert_allclose(f, w, rtol=tolerance, atol=float(tolerance * scale), err_msg=f"{what}: result {k}")


class Checked:
    """Every program that runs on the interpreter inside the block also runs as kernels for `targets`, and gives the same.

    largest: elements of a graph's nodes, all together, up to which a program is looked at. `count` tells how many plans were run.
    """

    def __init__(self, targets: dict[str, Target] | None = None, largest: int = 2_000_000) -> None:
        self.targets, self.largest, self.count = targets or TARGETS, largest, 0

    def __enter__(self) -> Checked:
        self._init, self._run = tg_compile.Program.__init__, tg_compile.Program._interpreted
        outer = self

        def init(program: Any, inputs: Any, outputs: Any, device: Any, donate: Any = None, *rest: Any, **more: Any) -> None:
            outer._init(program, inputs, outputs, device, donate, *rest, **more)
            program.donated = dict(donate or {})

        def run(program: Any, values: Any, lines: Any) -> Any:
            given = [np.array(v if weak else v.array, copy=True) for v, weak in zip(values, program.weak, strict=True)]
            results = outer._run(program, values, lines)
            outer.check(program, given, [np.asarray(r.array) for r in results])
            return results

        tg_compile.Program.__init__, tg_compile.Program._interpreted = init, run  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *exc: object) -> None:
        tg_compile.Program.__init__, tg_compile.Program._interpreted = self._init, self._run  # type: ignore[method-assign]

    def check(self, program: Any, given: Sequence[Any], wanted: Sequence[Any]) -> None:
        graph = program._graph
        if sum(node.aval.size for node in graph) > self.largest:
            return
        arrays = [a for a, weak in zip(given, program.weak, strict=True) if not weak]
        numbers = [a.item() for a, weak in zip(given, program.weak, strict=True) if weak]
        dtypes = {node.dtype for node in graph}
        for name, target in self.targets.items():
            plan, = plans(graph, [target], getattr(program, "donated", None))
            if not readable(plan):
                continue
            self.count += 1
            try:
                with np.errstate(all="ignore"):
                    found = run_plan(plan, arrays, numbers)
                agree(found, [w.reshape(f.shape) for f, w in zip(found, wanted, strict=True)], list(dtypes), f"kernels for {name}")
            except (KernelFault, AssertionError) as error:
                error.add_note(f"target {name}\n{plan.source}")
                raise
