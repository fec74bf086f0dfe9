"""Plain data that crosses between the code generator, the runtime and `compile`. Start at `Plan`.

A `Target` describes a device to the code generator (numbers, no vendor names). A `Plan` is what the code generator
makes and the runtime launches: one OpenCL C source, an ordered list of steps, and a table of buffer slots. Nothing here
knows graphs, pyopencl or Tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal, Protocol, dataclass_transform

import numpy as np

from tracegrad.errors import ArgumentError, IndexOutOfRange, LinAlgError, TracegradError
from tracegrad.support.blas import factored
from tracegrad.support.device_kinds import OfKind


@dataclass_transform(frozen_default=True)
class Plain:
    """Base of plain data: a dataclass, equal and hashed by its fields. mypy has it that nobody changes them, so the hash is computed once.

    (What dataclass would write for each class by itself, one method at a time, took a twentieth of the time of `import tracegrad`.)
    """

    __slots__ = ("__dict__", "__weakref__", "_hash")          # a slot is none of the fields
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _hash: int

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = found = hash(tuple(vars(self).values()))
            return found

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)                                    # in another process strings hash otherwise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([f'{name}={value!r}' for name, value in vars(self).items()])})"


class Target(Plain, OfKind):
    """What the code generator may know of a device. Filled in by `runtime.device` from OpenCL queries."""

    kind: str = "cpu"                     # a row of `device_kinds.KINDS`
    simd_bytes: int = 32                  # vector register width (AVX2: 32)
    registers: int = 16                   # vector registers a kernel may plan on
    cores: int = 4                        # compute units that have their own local memory
    max_work_group: int = 4096            # CL_DEVICE_MAX_WORK_GROUP_SIZE
    local_memory: int = 0                 # bytes of *real* local memory; 0 where it is emulated (CPUs)
    l2_bytes: int = 512 << 10
    fp64: bool = True
    plain_math: bool = True               # builtins stop this driver's vectoriser: use the plain-operator library
    host_memory: bool = True              # it computes in the host's memory, so that host steps need no copies
    clang_builtins: bool = True           # __builtin_fma & co and vectors at any element's address compile
    gathers: bool = False                 # the processor reads a vector at 8 or 16 indices faster than one element after the other
    lanes: int = 32                       # work-items of a GPU that run in step
    resident: int = 1024                  # work-items that a core of a GPU holds
    atomics64: bool = False               # work-items may add to an integer of 64 bits together
    matrix: tuple[str, ...] = ()          # its matrix instructions, by their names in codegen's table (tile/instructions.py)
    float32_precision: str = "highest"    # what float32 products may be computed with: see set_float32_matmul_precision

    @property
    def parts(self) -> int:
        """Into how many parts to cut work whose work-items have nothing to do with each other, at most."""
        return 4 * self.cores if self.traits.long_items else self.items

    @property
    def items(self) -> int:
        """Work-items that a GPU holds at a time: with fewer, some of it has nothing to do."""
        return self.cores * self.resident

    def groups(self, size: int) -> int:
        """Work-groups of `size` items that a GPU holds at a time."""
        return max(1, self.items // size)

    def group(self, most: int) -> int:
        """Items of a work-group, up to `most`, that have nothing to do with each other: as many as can run in step, several times."""
        most = min(most, self.max_work_group)
        return most if most < self.lanes else most - most % self.lanes


def by_one(cores: int, launch: int) -> int:
    """The work (see Launch.work) up to which one core is as fast as all, launched, if waking them takes it as long as the work `launch`.

    After that each of n cores does a part of n.
    """
    return launch * max(cores, 2) // (max(cores, 2) - 1)


class Slot(Plain):
    """One buffer a plan touches.

    kind: "input" and "output" buffers come from the caller; "temp" slots share the plan's own storage; "constant" slots
    hold `data` and are uploaded once; the one of kind "faults" (see Check, Fault) is zeros at first. An output with `alias` = an input
    slot's index is written into that input's buffer (a real in-place update). A temp names the storage block it lives in (`block`, an
    index into `Plan.blocks`).
    """

    kind: Literal["input", "output", "temp", "constant", "faults"]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    name: str = ""
    alias: int | None = None
    block: int | None = None
    data: np.ndarray[Any, Any] | None = None
    line: tuple[str, int, bool] | None = None         # of a temp or output that is a node's value: file, line, whether derived

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for n in self.shape:
            size *= n
        return size


class Scalar(Plain):
    """A kernel argument passed by value: run-time scalar number `index` of the plan, converted to `dtype`."""

    index: int
    dtype: np.dtype[Any]


class Fault(Plain):
    """A kernel argument passed by value: where in the buffer of kind "faults" check number `index` of this run writes."""

    index: int


class Iteration(Plain):
    """A kernel argument passed by value, an int: which iteration loop number `loop` is in, from 0 on."""

    loop: int


class Offset(Plain):
    """A kernel argument passed by value: a number that is the same in every run (launches that share a kernel differ in it)."""

    value: int | float
    dtype: np.dtype[Any] = np.dtype(np.int32)


# An operation that a kernel computes: its name, the user's line, whether a derivative rule made it, the line's file, and its number in the
# program. One number in several launches is a value that is computed again, in place of being stored.
Computed = tuple[str, int, bool, str, int]


class Launch(Plain):
    """One kernel of `Plan.source` over an NDRange. `args` are slot indices (ints), Scalars, Faults and Offsets, in the kernel's
    order.

    Sizes are in work-items, first dimension fastest; a `local_size` of None leaves the choice to the driver; every
    global size is a multiple of its local size. `flops` and `bytes` are estimates for routing and `explain()`.
    """

    entry: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    args: tuple[int | Scalar | Fault | Iteration | Offset, ...]
    flops: int = 0
    bytes: int = 0
    note: str = ""                        # why this kernel ends where it does, for explain()
    fused: tuple[Computed, ...] = ()      # what it computes, in order
    work: int = 0                         # how long a core takes, for what threads could save of it: see codegen's Kernel.work


class HostStep(Plain):
    """A Python function between launches: called with numpy arrays of `inputs`, returns one array per slot of `outputs`.

    into(outputs, *inputs), if there is one, does the same on the buffers' own memory, where the host shares it.
    """

    fn: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = "host_call"
    into: HostInto | None = None
    note: str = ""                        # why it is the host's, for explain()


class HostStart(HostStep):
    """The first half of a call that takes a while beside the device: fn(*arrivals) begins it, and returns what is called for its results.

    An arrival is a function that waits for an input's values, which are copied meanwhile. The last input, and the only output, are tokens:
    they keep the calls in order, and nobody reads or writes their values. The `HostWait` that has the output as its input ends the call.
    """


class HostWait(HostStep):
    """The second half: fn, called with what the HostStart's fn returned, waits, and returns the results.

    Its inputs are the token and the HostStart's operands, which may be read until then: nothing else is kept in their memory.
    """


Shapes = tuple[tuple[int, ...], ...]
Layouts = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


class HostBegin(Plain):
    """What a HostStart calls: the operation's `begin`. operands: the shapes that it wants."""

    fn: Any
    operands: Shapes

    def __call__(self, *arrivals: Callable[[], Any]) -> Callable[[], Any]:
        return self.fn.begin(*(partial(_arrived, a, s) for a, s in zip(arrivals, self.operands, strict=True)))  # type: ignore[no-any-return]


def _arrived(arrival: Callable[[], Any], shape: tuple[int, ...]) -> Any:
    return arrival().reshape(shape)


class HostFinish(Plain):
    """What a HostWait calls: the operation's `finish`, with its results in the shapes of the slots they go to."""

    fn: Any
    places: Shapes

    def __call__(self, begun: Callable[[], Any]) -> list[Any]:
        return placed(self.fn.finish(begun), self.places)


def placed(results: Sequence[Any], places: Shapes) -> list[Any]:
    """The results of an operation in the shapes of the slots they go to."""
    return [r.reshape(s) if r.size else np.zeros(s, r.dtype) for r, s in zip(results, places, strict=True)]


class HostOperation(Plain):
    """What a HostStep calls: all results of the operation `fn` (its `results(*arrays, **attrs)`), in the shapes of the slots they go to.

    operands: the shapes that the operation wants. line, who, position: what errors tell (see LinAlgError.of). Not a closure, so that
    plans can be kept on disk.
    """

    fn: Any
    attrs: tuple[tuple[str, Any], ...]
    operands: Shapes
    places: Shapes
    line: str
    who: str = ""
    position: int = -1

    def __call__(self, *arrays: Any) -> list[Any]:
        try:
            with factored(self.operands):
                results = self.fn.results(*(a.reshape(s) for a, s in zip(arrays, self.operands, strict=True)), **dict(self.attrs))
        except LinAlgError as error:
            error.of(self.line, self.who, self.position)
            raise
        return placed(results, self.places)


class HostInto(Plain):
    """The same on the buffers' own memory (the operation's `into`). operands, results: the shapes and dtypes that the operation has."""

    fn: Any
    attrs: tuple[tuple[str, Any], ...]
    operands: Layouts
    results: Layouts

    def __call__(self, outs: Sequence[Any], *arrays: Any) -> None:
        self.fn.into(outs, *arrays, **dict(self.attrs))


class HostArithmetic(Plain):
    """The operation `fn` on numbers, of `dtypes`; constants: those that are known, None where a call supplies one."""

    fn: Any
    attrs: tuple[tuple[str, Any], ...]
    dtype: np.dtype[Any]
    dtypes: tuple[np.dtype[Any], ...]
    constants: tuple[Any, ...]

    def __call__(self, *values: Any) -> Any:
        supply = iter(values)
        operands = [np.asarray(next(supply)).astype(d) if c is None else np.asarray(c)
                    for c, d in zip(self.constants, self.dtypes, strict=True)]
        with np.errstate(all="ignore"):
            return np.asarray(self.fn.computed(operands, dict(self.attrs), self.dtype)).astype(self.dtype)[()]


class Known(Plain):
    """A number that is known beforehand, as what computes it."""

    value: Any

    def __call__(self) -> Any:
        return self.value


class Loop(Plain):
    """Steps that are launched `length` times in order. What differs between iterations is the argument `Iteration(number)` of kernels."""

    steps: tuple[Launch | HostStep | Loop, ...]
    length: int
    number: int
    name: str = "scan"


Step = Launch | HostStep | Loop


class Parameter(Plain):
    """A kernel's: a number of the C type `type`, or (pointer) where elements of it begin in global memory."""

    type: str
    name: str
    pointer: bool = False
    const: bool = True                    # nothing is written to it
    restrict: bool = False

    @property
    def whole_type(self) -> str:
        """Its type, but for `restrict`, and for `const` of a number: what a value is cast to."""
        return f"__global {'const ' * self.const}{self.type} *" if self.pointer else self.type

    @property
    def declaration(self) -> str:
        if self.pointer:
            return f"{self.whole_type}{'restrict ' * self.restrict}{self.name}"
        return f"{'const ' * self.const}{self.type} {self.name}"


class Function(Plain):
    """A kernel as drivers get it, with neither comments nor the user's names; body: what stands between the braces.

    entry: what it is called in `Plan.source`. key: the hash of all that is built for it; kernels of one key are one. above: which of
    `Plan.parts` stand in front of it, in groups, each of which comes before the next. group: the work-groups that it requires, if it
    does. cooperates: the items of a work-group have to do with each other. arrays: bytes of the arrays that a work-item has of its own.
    """

    entry: str
    key: str
    parameters: tuple[Parameter, ...]
    body: str
    above: tuple[tuple[int, ...], ...]
    group: tuple[int, ...] | None = (1, 1, 1)
    cooperates: bool = False
    arrays: int = 0

    def text(self, name: str) -> str:
        """The whole kernel, called so."""
        declared = ", ".join([p.declaration for p in self.parameters])
        return f"{required(self.group)}__kernel void {name}({declared}) {{\n{self.body}\n}}"


def required(group: tuple[int, ...] | None) -> str:
    """The line above a kernel that requires work-groups of `group` work-items; "" if it takes any."""
    size = (*(group or ()), 1, 1)[:3]
    return f"__attribute__((reqd_work_group_size({', '.join(map(str, size))})))\n" if group else ""


class SourceLine(Protocol):
    """A line of the user's: an ir.Location."""

    @property
    def who(self) -> str:
        """What the message of an error there begins with."""


Line = str | SourceLine              # where a check stands: as the plan has it, or as the caller of the plan knows it


class Check(Plain):
    """Indices that kernels compare with their range: `call` (the user's function) got them as `what`, an index into `of`.

    Valid are low ... high, and `ignore`. line: where the user called it; position >= 0: the caller of the plan knows better.
    Kernels write two integers for each check: by how much the worst index was above its range, and below; 0 for none.
    """

    call: str
    what: str
    of: str
    low: int
    high: int
    ignore: int | None = None
    line: str = ""
    position: int = -1

    def message(self, index: int, line: Line) -> str:
        """The error for an index out of range; line: where the call was, "" if it is the present one."""
        spared = "" if self.ignore is None else f" (or ignore_index, {self.ignore})"
        way_out = "check where it comes from, or clamp it"
        if self.low == 0 and -self.high - 1 <= index < 0:
            way_out = f"negative ones do not count from the end here: use {self.what} % {self.high + 1}"
        return (f"{self.call}{line and f' at {line}'}: {self.what} holds {index}, out of range for {self.of}: valid are {self.low} to "
                f"{self.high}{spared}; {way_out}")

    def error(self, above: int, below: int, line: Line) -> TracegradError:
        """The error for what kernels wrote."""
        return IndexOutOfRange(self.message(self.high + above if above else self.low - below, line))


class DomainCheck(Check):
    """Values that `call` takes; `what` is the error where there were others: of "matrices" a LinAlgError."""

    def error(self, above: int, below: int, line: Line) -> TracegradError:
        """The error for what kernels wrote."""
        return (LinAlgError if self.of else ArgumentError)(f"{self.call}{line and f' at {line}'}: {self.what}")


class MatrixCheck(Plain):
    """Matrices (*, m, n) of the shape `shape` that kernels factorise for `call`: some may be `what`, a text with the {pivot} in it.

    Kernels write the largest `note` of one; 0 for none. line, who, position: what errors tell (see LinAlgError.of).
    """

    call: str
    shape: tuple[int, ...]
    what: str
    line: str = ""
    who: str = ""
    position: int = -1

    PIVOTS: ClassVar[int] = 32            # more than the numbers of pivots there are, from 1,
    MOST: ClassVar[int] = (1 << 31) // 32 - 1      # and matrices, for an int holds both
    ENDS: ClassVar[tuple[str, str]] = "it holds NaN or infinity", "the iteration did not converge"      # instead of pivots 1 and 2

    def message(self, matrix: int, pivot: int) -> str:
        """The error for a matrix: its number in the batch."""
        *batch, m, n = self.shape
        place = tuple(int(i) for i in np.unravel_index(matrix, batch)) if batch else ()
        shown = f"matrix {place[0] if len(place) == 1 else place} of the batch {tuple(batch)}" if place else "the matrix"
        end = self.ENDS[pivot == 2]
        what = self.what.format(pivot=f" (pivot {pivot})" if pivot else "", element=f"({pivot - 1}, {pivot - 1})", end=end)
        return f"{self.call}: {shown} ({m}x{n}) {what}"

    def error(self, note: int, _: int, line: Line) -> TracegradError:
        """The error for what kernels wrote: the first matrix, since the number that is largest there is the smallest."""
        error = LinAlgError(self.message(prod(self.shape[:-2]) - note // self.PIVOTS, note % self.PIVOTS))
        error.of(str(line), self.who if isinstance(line, str) else line.who)
        return error


class LargeMatrixCheck(MatrixCheck):
    """The same of matrices with more rows. Kernels note PIVOTS less the pivot, so the first one is the largest of a matrix, too."""

    PIVOTS: ClassVar[int] = 1 << 16
    MOST: ClassVar[int] = (1 << 31) // (1 << 16) - 1

    def error(self, note: int, _: int, line: Line) -> TracegradError:
        """The error for what kernels wrote."""
        error = LinAlgError(self.message(prod(self.shape[:-2]) - note // self.PIVOTS, self.PIVOTS - note % self.PIVOTS))
        error.of(str(line), self.who if isinstance(line, str) else line.who)
        return error


class Plan(Plain):
    """A compiled program: launch `steps` in order (each sees the writes of those before it)."""

    source: str
    steps: tuple[Step, ...]
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]               # slot of each input, in call order
    outputs: tuple[int, ...]              # slot of each output, in result order (a slot may be an input's: passed through)
    scalars: int = 0                      # how many run-time scalars a call takes
    blocks: tuple[int, ...] = ()          # bytes of each temp storage block
    notes: tuple[str, ...] = ()
    scalar_program: tuple[tuple[Callable[..., Any], tuple[int, ...]], ...] = ()   # scalar number scalars + i is fn(*scalars[args])
    checks: tuple[Check | MatrixCheck, ...] = ()
    reads: tuple[int, ...] = ()           # for each output: the inputs that it depends on, as a bit mask over their order
    checked: tuple[int, ...] = ()         # for each output: the checks that it depends on, as a bit mask
    functions: tuple[Function, ...] = ()  # what is built: the kernels of `source` one by one, but for users' own
    parts: tuple[str, ...] = ()           # what stands in front of them: extensions, macros, functions
    foreign: str = ""                     # the program of those that users wrote, which is built as it is
    kernels: tuple[Any, ...] = ()         # what the code generator made them of, to run them without a driver

    def all_scalars(self, given: Sequence[Any]) -> list[Any]:
        """The scalars of a call and those that are computed from them on the host, as `Scalar.index` counts them."""
        values = list(given)
        for fn, args in self.scalar_program:
            values.append(fn(*[values[a] for a in args]))
        return values

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches that it writes down: those in a loop once."""
        return tuple(step for step, _ in self.each() if isinstance(step, Launch))

    def each(self) -> list[tuple[Launch | HostStep, int]]:
        """The steps in order, those of loops included, and how often each runs."""
        return each(self.steps, 1)


def each(steps: Sequence[Step], times: int) -> list[tuple[Launch | HostStep, int]]:
    """Steps that run `times` times, and those in loops among them, with how often each runs."""
    return [found for s in steps for found in (each(s.steps, times * s.length) if isinstance(s, Loop) else [(s, times)])]
