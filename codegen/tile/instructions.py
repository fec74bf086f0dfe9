"""Matrix instructions: of which shapes and dtypes, which work-item holds what, and how they are spelled. Start at `TABLE`.

A target has an entry only after a trial on the device (`tracegrad/execute/matrix_trial.py`), whose name then stands in `Target.matrix`.
What an instruction computes is worked out from its layouts (`_multiplied`), in the driverless interpreter and in the trial alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir.instructions import Given, Instruction, instruction
from tracegrad.codegen.kernel.ir.vectors import ctype
from tracegrad.support.dtypes import DType, bfloat16, float16, float32, float64
from tracegrad.support.plan import Plain, Target

Array = np.ndarray[Any, Any]
Coordinates = tuple[int, int]
WARP = 32


class Layout(Plain):
    """Which elements of a matrix a work-item holds. at: (work-item, register) -> the places of those in a register, the low one first."""

    registers: int
    type: str                             # of a register
    at: Callable[[int, int], tuple[Coordinates, ...]]


class MatrixInstruction(Plain):
    """C (m x n) += A (m x k) B (k x n), by the work-items of a warp together.

    name: in `Target.matrix`; of: the dtype of the operands in memory; into: of C. a, b, c: the layouts. precision: the setting (see
    set_float32_matmul_precision) from which on float32 may be computed so; "" where it is exact.
    """

    name: str
    m: int
    n: int
    k: int
    of: DType
    into: DType
    a: Layout
    b: Layout
    c: Layout
    multiply: Instruction
    precision: str = ""

    @property
    def word(self) -> DType:
        """What registers and local memory hold: numbers, or pairs of 16-bit ones."""
        return np.dtype(np.uint32) if self.of.itemsize == 2 else self.of


# ---- layouts -----------------------------------------------------------------------------------------------------------------


def _operand(type_: str, each: int, lines: int, across: bool) -> Layout:
    """Of A (16 rows: two `lines` of a work-item) or B (8 columns: one). A register has `each` neighbours along k; a line is for every four
    work-items, and the next 8 lines are in the next register.
    """
    def at(lane: int, register: int) -> tuple[Coordinates, ...]:
        line, k = lane // 4 + 8 * (register % lines), each * (lane % 4 + 4 * (register // lines))
        return tuple([(k + e, line) if across else (line, k + e) for e in range(each)])

    return Layout(2 * lines, type_, at)


def _result(lane: int, register: int) -> tuple[Coordinates, ...]:
    """Of C: two neighbours in a row, and two in the eighth row below."""
    return ((lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2),)


def held(layout: Layout, registers: Sequence[Array], shape: Coordinates, unpack: Callable[[Any], Sequence[Any]], dtype: Any) -> Array:
    """The matrix that work-items hold in `registers`, of each its own."""
    out = np.zeros(shape, dtype)
    for lane, own in enumerate(registers):
        for register in range(layout.registers):
            for place, value in zip(layout.at(lane, register), unpack(own[register]), strict=True):
                out[place] = value
    return out


# ---- what they compute -------------------------------------------------------------------------------------------------------


def towards_zero(x: Array, dtype: DType) -> Array:
    """float64 numbers as `dtype`, what does not fit cut off: tensor cores add so."""
    with np.errstate(over="ignore"):
        near = x.astype(dtype)
    return np.where(np.isfinite(x) & (np.abs(near.astype(np.float64)) > np.abs(x)), np.nextafter(near, dtype.type(0)), near)


def _pair_of(dtype: DType) -> Callable[[Any], Sequence[Any]]:
    """The two numbers of 16 bits in one of 32."""
    return lambda word: list(np.array([word], np.uint32).view(dtype))


def cut_to_tf32(x: Any) -> list[Any]:
    """The number without the bits that TF32 does not have."""
    return list((np.array([x], np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))


def _multiplied(m: int, n: int, k: int, layouts: tuple[Layout, Layout, Layout], unpack: Callable[[Any], Sequence[Any]], into: DType
                ) -> Callable[[Sequence[tuple[Any, ...]]], Sequence[Sequence[Array]]]:
    """The meaning of an instruction with these layouts."""
    def meaning(given: Sequence[tuple[Any, ...]]) -> Sequence[Sequence[Array]]:
        c, a, b = zip(*given, strict=True)
        exact = np.float64 if into == np.float32 else np.longdouble
        left, right = held(layouts[0], a, (m, k), unpack, exact), held(layouts[1], b, (k, n), unpack, exact)
        before = held(layouts[2], c, (m, n), lambda x: [x], exact)
        with np.errstate(all="ignore"):
            total = before + left @ right
        result = towards_zero(total, into) if into == np.float32 else total.astype(into)
        return [[np.array([result[layouts[2].at(lane, r)[0]] for r in range(layouts[2].registers)], into)] for lane in range(len(given))]

    return meaning


# ---- how they are spelled ----------------------------------------------------------------------------------------------------

# A pointer to local memory is an address for PTX as a number of 32 bits. What reads or writes memory keeps its place between barriers.
_LOCAL = "(uint)(ulong)({})"


def _each(name: str, count: int, constraint: str, of: str = "{}") -> str:
    """The registers of an operand; of: what is given of one."""
    return ", ".join(f'"{constraint}"({of.format(f"({name})[{i}]")})' for i in range(count))


def _ldmatrix(name: str, across: str) -> Instruction:
    """Four matrices of 8 x 8 halves, a row of one from each work-item; each gets a pair of each matrix."""
    text = (f'#define {name}(to, from) asm volatile("ldmatrix.sync.aligned.m8n8.x4{across}.shared.b16 {{%0,%1,%2,%3}}, [%4];" '
            f': {_each("to", 4, "=r")} : "r"({_LOCAL.format("from")}) : "memory")')

    def meaning(given: Sequence[tuple[Any, ...]]) -> Sequence[Sequence[Array]]:
        rows = np.stack([np.asarray(x).view(np.uint16) for x, in given]).reshape(4, 8, 8)
        rows = rows.transpose(0, 2, 1) if across else rows
        pairs = np.ascontiguousarray(rows).view(np.uint32)                     # matrix, row, pair
        return [[pairs[:, lane // 4, lane % 4]] for lane in range(WARP)]

    return instruction(name, text, (Given("uint", 4, reads=False, writes=True), Given("", 16)), WARP, "value", meaning)


LDMATRIX, LDMATRIX_ACROSS = _ldmatrix("LDMATRIX4", ""), _ldmatrix("LDMATRIX4_TRANS", ".trans")
COPY = instruction(
    "COPY16", '#define COPY16(to, from) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" '
    f': : "r"({_LOCAL.format("to")}), "l"(from) : "memory")', (Given("", 16, reads=False, writes=True), Given("", 16)), 1, "copy")
COMMIT = instruction("COMMIT_COPIES", '#define COMMIT_COPIES() asm volatile("cp.async.commit_group;" : : : "memory")', (), 1,
                     "commit")
WAIT = instruction("WAIT_COPIES", '#define WAIT_COPIES(n) asm volatile("cp.async.wait_group %0;" : : "n"(n) : "memory")',
                   (Given("int"),), 1, "wait")
CLEAR = {type_: instruction(
    f"CLEAR16_{type_.upper()}", f"#define CLEAR16_{type_.upper()}(to) (*(__local {type_}{count} *)(to) = ({type_}{count})(0))",
    (Given(type_, count, reads=False, writes=True),), 1, "value", lambda given: [[np.zeros(16, np.uint8)]])
    for type_, count in (("uint", 4), ("float", 4), ("double", 2))}


def _packed(dtype: DType, ptx: str) -> Instruction:
    """Two float32 as numbers of 16 bits in one of 32."""
    name = f"PACK_{ptx.upper()}"
    text = (f'#define {name}(to, low, high) do {{ uint packed_bits; asm("cvt.rn.{ptx}x2.f32 %0, %1, %2;" : "=r"(packed_bits) '
            ': "f"(high), "f"(low)); *(to) = packed_bits; } while (0)')

    def meaning(given: Sequence[tuple[Any, ...]]) -> Sequence[Sequence[Array]]:
        with np.errstate(over="ignore"):
            return [[np.array(given[0], np.float32).astype(dtype).view(np.uint32)]]

    return instruction(name, text, (Given("uint", 1, reads=False, writes=True), Given("float"), Given("float")), 1, "value", meaning)


PACK = {dtype.name: _packed(dtype, ptx) for dtype, ptx in ((float16, "f16"), (bfloat16, "bf16"))}

PTX = "cl_nv_device_attribute_query"      # the extension where PTX is taken: other compilers may not even refuse what they do not know


def _entry(name: str, k: int, of: DType, into: DType, types: str, precision: str = "") -> MatrixInstruction:
    """That of m16n8 and so many k. types: what PTX calls the dtypes of the result, A, B and C."""
    halves = of.itemsize == 2
    operand = partial(_operand, "uint" if halves else ctype(of), 2 if halves else 1)
    a, b, c = operand(2, False), operand(1, True), Layout(4, ctype(into), _result)
    unpack: Callable[[Any], Sequence[Any]] = _pair_of(of) if halves else cut_to_tf32 if of == float32 else lambda x: [x]
    given_as = "d" if of == float64 else "r", "as_uint({})" if of == float32 else "{}"
    operands = [_each(n, x.registers, *given_as) for n, x in (("a", a), ("b", b))]
    results = _each("c", 4, "+d" if into == float64 else "+f")
    text = (f'#define {name}(c, a, b) asm("mma.sync.aligned.m16n8k{k}.row.col.{types} {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, '
            f'{{%0,%1,%2,%3}};" : {results} : {", ".join(operands)})')         # a pure function of its operands, so not volatile
    given = (Given(c.type, c.registers, writes=True), Given(a.type, a.registers), Given(b.type, b.registers))
    multiply = instruction(name, text, given, WARP, "value", _multiplied(16, 8, k, (a, b, c), unpack, into))
    return MatrixInstruction(name, 16, 8, k, of, into, a, b, c, multiply, precision)


TABLE = {entry.name: entry for entry in (                                                       # seen to work on
    _entry("MMA_BF16", 16, bfloat16, float32, "f32.bf16.bf16.f32"),                             # NVIDIA H200
    _entry("MMA_F16", 16, float16, float32, "f32.f16.f16.f32"),                                 # NVIDIA H100
    _entry("MMA_TF32", 8, float32, float32, "f32.tf32.tf32.f32", "high"),                       # NVIDIA H100
    _entry("MMA_F64", 8, float64, float64, "f64.f64.f64.f64"),                                  # NVIDIA H100
)}


def candidates(target: Target, extensions: Iterable[str]) -> tuple[str, ...]:
    """The names of those that a device with these extensions may have."""
    there = [x.name for x in TABLE.values() if PTX in extensions and (target.fp64 or x.of != float64)]
    return tuple(there) if target.local_memory else ()


def instruction_for(target: Target, a: DType, b: DType, into: DType) -> MatrixInstruction | None:
    """What the target multiplies matrices of these dtypes with, and adds to one of `into`; None if it has nothing for that."""
    allowed = {"": True, "high": target.float32_precision != "highest", "medium": target.float32_precision == "medium"}
    return next((x for name in target.matrix if (x := TABLE[name]).of == a == b and x.into == into and allowed[x.precision]), None)
