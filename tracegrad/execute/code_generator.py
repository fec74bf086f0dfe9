"""The code generator, as the stages from here on see it. `tracegrad/__init__.py` provides it, so that nothing here depends on how it works.

It is loaded when a first program is compiled: that takes a third of the time of `import tracegrad`, and plans often come from the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tracegrad.errors import DeviceError
from tracegrad.graph.ir import Graph, Node
from tracegrad.support.plan import Plan, Target


class CodeGenerator(Protocol):
    """What `codegen/passes.py` has for others."""

    MATRIX_INSTRUCTIONS: Any
    """By name: the matrix instructions that it knows. `of` is the dtype that one multiplies."""

    TEMPLATES: list[Any]
    """Where templates of kernels whose sizes vary are kept for later processes: a folder, as `runtime.disk` has it, or nothing."""

    def candidates(self, target: Target, extensions: Iterable[str]) -> tuple[str, ...]:
        """The names of the matrix instructions that a device with these extensions may have."""

    def compile_graph(self, graph: Graph, target: Target, *, donate: Mapping[int, int] | None = None,
                      name: Callable[[Node], str] | None = None, results: Sequence[str] = (),
                      varying: frozenset[int] = frozenset()) -> Plan:
        """The plan that computes a graph's outputs on a device like `target`."""


class Provided:
    """The code generator, loaded by the first call."""

    def __init__(self) -> None:
        self._load: Callable[[], CodeGenerator] | None = None

    def by(self, load: Callable[[], CodeGenerator]) -> None:
        """From now on `load()` is the code generator."""
        self._load = load

    def __call__(self) -> CodeGenerator:
        """The code generator. Raises DeviceError where none was provided."""
        if self._load is None:
            raise DeviceError("tracegrad: no code generator is provided, so nothing can be compiled; use the device \"numpy\"")
        return self._load()


code_generator = Provided()
