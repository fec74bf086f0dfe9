"""The two backends, as the stages from here on see them. `tracegrad/__init__.py` provides both, so that nothing here depends on how they
work.

The code generator is loaded when a first program is compiled: that takes a third of the time of `import tracegrad`, and plans often come
from the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tracegrad.errors import DeviceError
from tracegrad.graph.ir import Graph, Node
from tracegrad.support.plan import Plan, Target

B = TypeVar("B")


class CodeGenerator(Protocol):
    """What `codegen/compiler.py` has for others."""

    MATRIX_INSTRUCTIONS: Any
    """By name: the matrix instructions that it knows. `of` is the dtype that one multiplies."""

    def candidates(self, target: Target, extensions: Iterable[str]) -> tuple[str, ...]:
        """The names of the matrix instructions that a device with these extensions may have."""

    def compile_graph(self, graph: Graph, target: Target, *, donate: Mapping[int, int] | None = None,
                      name: Callable[[Node], str] | None = None, results: Sequence[str] = (),
                      varying: frozenset[int] = frozenset(), templates: Any = None) -> Plan:
        """The plan that computes a graph's outputs on a device like `target`.

        templates: where those of kernels whose sizes vary are kept for later processes: a folder, as `runtime.disk` has it, or None.
        """


class NumpyBackend(Protocol):
    """What `numpy_backend/interpreter.py` has for others."""

    def interpret(self, graph: Graph, inputs: Sequence[Any], notes: list[int] | None = None) -> list[Any]:
        """The values of a graph's outputs, by its operations' rules. notes: gets what the ops that report have to report."""

    def prepared(self, order: Sequence[Any], places: Sequence[tuple[int, ...]], ends: Sequence[int]) -> Any:
        """The same, prepared for many runs: a NumpyProgram of operations, places of their operands, and of the results."""


class Provided(Generic[B]):
    """A backend, or another part that stands above who asks for it, loaded by the first call. what: what an error says is not provided."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._load: Callable[[], B] | None = None

    def by(self, load: Callable[[], B]) -> None:
        """From now on `load()` is it."""
        self._load = load

    def __call__(self) -> B:
        """The part. Raises DeviceError where none was provided."""
        if self._load is None:
            raise DeviceError(f"tracegrad: {self.what} is provided; import tracegrad as a whole")
        return self._load()


code_generator = Provided[CodeGenerator]("no code generator")
numpy_rules = Provided[NumpyBackend]("no NumPy backend")
