"""The generated matrix products and convolutions of CPUs against numpy in float64: shapes, layouts, fused loads and epilogues."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from tests.marks import one_of
from tracegrad.codegen.conv import schedules as conv
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.names import is_reserved
from tracegrad.codegen.kernel.statements import Buffer
from tracegrad.codegen.kernel.vectors import load, plus, prelude, write
from tracegrad.codegen.matmul import schedules as gemm
from tracegrad.codegen.plan.source import vector_access
from tracegrad.codegen.tuning import Tuning, tuned
from tracegrad.plan import Target
from tracegrad.runtime.device import devices

pytestmark = pytest.mark.filterwarnings("ignore::pyopencl.CompilerWarning")      # some drivers report every build
CPU = Target()
AVX512 = Target(simd_bytes=64, registers=32)
VLOAD = Target(simd_bytes=16, cores=16, clang_builtins=False)
Floats = np.ndarray[Any, np.dtype[np.float64]]
F32, F64 = np.dtype("float32"), np.dtype("float64")


def plain(name: str, dtype: np.dtype[Any], strides: Sequence[int]) -> tuple[Any, tuple[Buffer, ...]]:
    def read(emit: Any, *index: str) -> str:
        return f"{name}[{plus(*zip(index, strides, strict=True))}]"

    return read, (Buffer(name, name, dtype, None, "const"),)


def result(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> tuple[Any, tuple[Buffer, ...]]:
    """A store that adds to what the buffer holds, so that an element stored twice, or never, shows."""
    strides = [int(np.prod(shape[axis + 1:])) for axis in range(len(shape))]

    def save(emit: Any, *args: Any) -> None:
        *index, value, width = args
        address = f"{name} + {plus(*zip(index, strides, strict=True))}"
        write(emit, dtype, width, address, f"{load(dtype, width, address)} + {value}")

    return save, (Buffer(name, name, dtype, None, "out"),)


class Bench:
    """Collects kernels and buffers, builds one program, runs it and hands back results."""

    def __init__(self, target: Target, dtypes: Sequence[np.dtype[Any]]) -> None:
        self.target, self.dtypes = target, dtypes
        self.kernels: list[Kernel] = []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.want: dict[str, np.ndarray[Any, Any]] = {}

    def expect(self, name: str, kernels: list[Kernel], want: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
        self.kernels += kernels
        self.arrays[name] = np.ones(want.shape, dtype)
        self.want[name] = want + 1

    def check(self) -> None:
        device = [d for d in devices() if d.kind == "cpu"][-1]
        context, queue = device.context, device.queue
        given: Any = SimpleNamespace(target=self.target)
        uses = frozenset().union(*(k.uses for k in self.kernels))
        source = "\n".join([*vector_access(uses, given), *(k.text for k in self.kernels)])
        program = cl.Program(context, source).build()
        assert len({k.entry for k in self.kernels}) == len(self.kernels)
        for kernel in self.kernels:
            body = kernel.text[kernel.text.index("{"):]
            declared = re.findall(r"\b(?:int|long|float\d*|double\d*) \*?(\w+)", body) + re.findall(r"(\w+) = \S+[,;]", body)
            assert [name for name in declared if not is_reserved(name)] == []

        def upload(a: np.ndarray[Any, Any]) -> cl.Buffer:
            a = a if a.size else np.zeros(1, a.dtype)
            return cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(a))

        buffers: dict[Any, cl.Buffer] = {name: upload(a) for name, a in self.arrays.items()}
        for kernel in self.kernels:
            for ref in kernel.refs:
                if isinstance(ref, Temp) and ref not in buffers:
                    buffers[ref] = upload(np.full(ref.size, 77, ref.dtype))
            entry = cl.Kernel(program, kernel.entry)
            entry.set_args(*(buffers[ref] for ref in kernel.refs))
            if kernel.local_size is not None:
                assert all(g % n == 0 for g, n in zip(kernel.global_size, kernel.local_size, strict=True))
            cl.enqueue_nd_range_kernel(queue, entry, kernel.global_size, kernel.local_size)
        for name, want in self.want.items():
            got = np.empty(want.shape, self.arrays[name].dtype)
            if got.size:
                cl.enqueue_copy(queue, got, buffers[name])
            scale = 1e-5 if got.dtype == F32 else 1e-12 if got.dtype == F64 else 0
            np.testing.assert_allclose(got, want, rtol=scale, atol=scale * 30 * max(1.0, float(np.abs(want).max(initial=0))), err_msg=name)


def operand(bench: Bench, name: str, values: np.ndarray[Any, Any], how: str) -> gemm.Matrix:
    """A (batch, rows, columns) matrix stored plainly, transposed, broadcast over the batch, or only readable by callback."""
    stored = np.swapaxes(values, 1, 2) if "t" in how else values
    stored = stored[:1] if "1" in how else stored
    bench.arrays[name] = stored
    strides = [0 if "1" in how else stored.shape[1] * stored.shape[2], stored.shape[2], 1]
    if "t" in how:
        strides[1], strides[2] = strides[2], strides[1]
    read, params = plain(name, values.dtype, strides)
    return gemm.Matrix(read, params, None if "f" in how else (name, *strides))


SHAPES = [
    (1, 1, 1, 1), (1, 7, 3, 5), (1, 6, 16, 8), (1, 13, 37, 41), (1, 64, 10, 100), (1, 1, 50, 70), (1, 50, 1, 70), (1, 3, 4, 0),
    (3, 9, 11, 13), (2, 33, 2, 40), (1, 5, 40, 1000), (1, 100, 70, 3), (4, 1, 1, 33), (1, 8, 8, 2100), (2, 20, 24, 1500), (0, 3, 4, 5),
]


@one_of(
    3,
    ("target", "dtype", "every", "count"),
    [(CPU, F32, 1, 2), (CPU, F64, 2, 1), (CPU, np.dtype("int32"), 3, 1),
     (AVX512, F32, 2, 1), (VLOAD, F32, 3, 1)],
    ids=["cpu", "cpu_double", "cpu_int", "avx512", "vload"],
)
def test_products_of_every_shape_and_layout(target: Target, dtype: np.dtype[Any], every: int, count: int) -> None:
    bench, rng = Bench(target, [dtype]), np.random.default_rng(0)
    layouts = [("", ""), ("", "t"), ("t", ""), ("t", "t"), ("f", "f"), ("", "1t"), ("f", "1")]
    for number, (batch, m, n, k) in enumerate(SHAPES):
        for how_a, how_b in [layouts[(number + 2 * turn) % 7] for turn in range(count)] if number % every == 0 else []:
            tag = f"p{number}{how_a}_{how_b}"
            a, b = (rng.integers(-9, 9, (batch, m, k)).astype(dtype), rng.integers(-9, 9, (batch, k, n)).astype(dtype))
            if dtype.kind == "f":
                a, b = a + rng.random(a.shape).astype(dtype), b + rng.random(b.shape).astype(dtype)
            if "1" in how_b:
                b = np.broadcast_to(b[:1], b.shape)
            x, y = operand(bench, f"{tag}_a", a, how_a), operand(bench, f"{tag}_b", b, how_b)
            c = gemm.Store(*result(f"{tag}_c", dtype, (batch, m, n)))
            kernels = gemm.gemm(tag, batch, m, n, k, dtype, x, y, c, target, tag)
            bench.expect(f"{tag}_c", kernels, np.matmul(a.astype(np.float64), b.astype(np.float64)), dtype)
    bench.check()


def test_large_products_are_packed_and_right() -> None:
    bench, rng = Bench(replace(CPU, l2_bytes=8 << 10), [F32]), np.random.default_rng(1)
    for how_a, how_b in (("", ""), ("t", ""), ("", "t")):
        tag = f"large{how_a}_{how_b}"
        a, b = rng.standard_normal((1, 131, 150), dtype=F32.type), rng.standard_normal((1, 150, 90), dtype=F32.type)
        kernels = gemm.gemm(
            tag, 1, 131, 90, 150, F32, operand(bench, f"{tag}_a", a, how_a), operand(bench, f"{tag}_b", b, how_b),
            gemm.Store(*result(f"{tag}_c", F32, (1, 131, 90))), bench.target, tag,
        )
        assert any("pack_b" in k.entry for k in kernels)
        bench.expect(f"{tag}_c", kernels, np.matmul(a.astype(F64), b.astype(F64)), F32)
    bench.check()


@pytest.mark.parametrize(("target", "dtype"), [(CPU, F32), (AVX512, F64)], ids=["cpu", "avx512_double"])
def test_lines_along_k_are_transposed_into_panels(target: Target, dtype: np.dtype[Any]) -> None:
    """Lines and k below, at and above a block that is transposed, and several, with a rest and without; k in one part, and in many."""
    bench, rng, blocks = Bench(replace(target, l2_bytes=1 << 10), [dtype]), np.random.default_rng(1), set()
    shapes = [(1, 150, 7, 13), (3, 129, 33, 65), (1, 100, 100, 129), (2, 130, 16, 16)]
    with tuned(Tuning(pack_items=64)):
        for number, (batch, m, n, k) in enumerate(shapes):
            tag = f"turned{number}"
            a, b = (rng.integers(-9, 9, size).astype(dtype) for size in ((batch, m, k), (batch, k, n)))
            kernels = gemm.gemm(tag, batch, m, n, k, dtype, operand(bench, f"{tag}_a", a, ""), operand(bench, f"{tag}_b", b, "t"),
                                gemm.Store(*result(f"{tag}_c", dtype, (batch, m, n))), bench.target, tag)
            blocks |= set(re.findall(r"(\d+x\d+) transposed at a time", "".join(kernel.text for kernel in kernels)))
            bench.expect(f"{tag}_c", kernels, np.matmul(a.astype(np.int64), b.astype(np.int64)).astype(dtype), dtype)
    assert blocks
    bench.check()


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_a_product_beyond_the_second_cache_has_its_k_in_blocks(dtype: np.dtype[Any]) -> None:
    """k below, at and above a block and two, whole and with a rest, in all layouts; the epilogue is called once for each element."""
    bench, rng, blocked = Bench(replace(CPU, l2_bytes=8 << 10, cores=2), [dtype]), np.random.default_rng(1), []
    shapes = [(1, 97, 90, 63), (1, 97, 90, 64), (1, 131, 90, 65), (2, 100, 64, 129), (1, 96, 33, 257), (3, 129, 7, 300), (1, 300, 100, 128)]
    with tuned(Tuning(panel_bytes=4 << 10)):
        for number, (batch, m, n, k) in enumerate(shapes):
            how_a, how_b = [("", ""), ("t", ""), ("", "t"), ("f", "f"), ("t", "t")][number % 5]
            tag = f"deep{number}{how_a}_{how_b}"
            a, b = rng.standard_normal((batch, m, k)).astype(dtype), rng.standard_normal((batch, k, n)).astype(dtype)
            kernels = gemm.gemm(tag, batch, m, n, k, dtype, operand(bench, f"{tag}_a", a, how_a), operand(bench, f"{tag}_b", b, how_b),
                                gemm.Store(*result(f"{tag}_c", dtype, (batch, m, n))), bench.target, tag)
            blocked.append("k0 += " in kernels[-1].text)
            bench.expect(f"{tag}_c", kernels, np.matmul(a.astype(F64), b.astype(F64)), dtype)
    assert {True, False} <= set(blocked), blocked
    bench.check()


@pytest.mark.parametrize(("target", "dtype"), [
    pytest.param(CPU, F32, id="cpu"), pytest.param(AVX512, F64, id="avx512_double", marks=pytest.mark.long),
    pytest.param(VLOAD, F32, id="vload", marks=pytest.mark.long),
])
def test_long_sums_are_cut_so_that_a_part_of_all_rows_is_in_the_cache(target: Target, dtype: np.dtype[Any]) -> None:
    """k on both sides of four parts, m and n on both sides of many tiles, in all layouts; vectors (None: cut where rows lie across k)."""
    bench, rng = Bench(replace(target, l2_bytes=1 << 10, cores=1), [dtype]), np.random.default_rng(1)
    shapes = {(1, 32, 48, 511): False, (1, 32, 48, 512): True, (1, 13, 37, 1000): True, (3, 24, 17, 513): True, (1, 12, 12, 515): True,
              (1, 11, 12, 515): False, (1, 1, 90, 600): None, (1, 90, 1, 600): None, (1, 100, 20, 1025): True, (2, 7, 65, 777): True,
              (1, 400, 300, 520): False}
    for number, ((batch, m, n, k), cut) in enumerate(shapes.items()):
        for how_a, how_b in {("t", ""), [("", ""), ("", "t"), ("f", "f"), ("t", "t"), ("f", "1")][number % 5]}:
            tag = f"long{number}{how_a}_{how_b}"
            a, b = rng.standard_normal((batch, m, k)).astype(dtype), rng.standard_normal((batch, k, n)).astype(dtype)
            b = np.broadcast_to(b[:1], b.shape) if "1" in how_b else b
            kernels = gemm.gemm(tag, batch, m, n, k, dtype, operand(bench, f"{tag}_a", a, how_a), operand(bench, f"{tag}_b", b, how_b),
                                gemm.Store(*result(f"{tag}_c", dtype, (batch, m, n))), bench.target, tag)
            rows = (how_a, how_b) == ("t", "")             # of which a tile reads a piece
            assert any(kernel.entry.endswith("_total") for kernel in kernels) == (rows if cut is None else cut), tag
            bench.expect(f"{tag}_c", kernels, np.matmul(a.astype(F64), b.astype(F64)), dtype)
    bench.check()


def test_the_prelude_has_each_type_once_and_only_what_the_target_computes_in() -> None:
    uses = [("LOAD", "uchar8"), ("STORE", "uchar8"), ("LOAD_LOCAL", "float4"), ("LOAD", "double2"), ("GATHER4", "float4")]
    text = "\n".join(prelude(uses, Target(fp64=False)))
    assert text.count("uchar8_u;") == 1
    assert text.count("#define LOAD(") == text.count("#define STORE_uchar8(") == text.count("#define LOAD_LOCAL_float4(") == 1
    assert "double" not in text
    assert "GATHER" not in text


def test_texts_are_deterministic_and_a_direct_product_is_one_kernel() -> None:
    def make() -> list[Kernel]:
        bench = Bench(CPU, [F32])
        a, b = (operand(bench, name, np.zeros((1, 64, 64), F32), "") for name in ("a_", "b_"))
        return gemm.gemm("mm", 1, 64, 64, 64, F32, a, b, gemm.Store(*result("c_", F32, (1, 64, 64))), CPU, 0)

    assert make()[0].text == make()[0].text
    assert len(make()) == 1


WINDOWS = [
    conv.Window(2, 1, 8, 8, 16, 3, 3, padding=(1, 1)), conv.Window(5, 3, 8, 8, 7, 3, 3, padding=(1, 1)),
    conv.Window(2, 3, 28, 28, 5, 3, 3), conv.Window(2, 4, 4, 4, 6, 3, 3, padding=(1, 1)), conv.Window(1, 2, 9, 11, 3, 5, 2, (2, 2), (2, 1)),
    conv.Window(2, 4, 12, 13, 6, 3, 3, (1, 1), (2, 2), (2, 2), 2), conv.Window(3, 6, 7, 7, 6, 3, 3, (2, 1), (1, 1), (1, 1), 6),
    conv.Window(2, 3, 5, 6, 4, 1, 1), conv.Window(2, 4, 6, 5, 4, 1, 1, (2, 2)), conv.Window(10, 3, 3, 3, 5, 3, 3),
    conv.Window(1, 2, 20, 40, 3, 2, 9, (1, 1), (0, 4)), conv.Window(2, 2, 10, 17, 3, 3, 3, (3, 3), (1, 2), (2, 2)),
    conv.Window(2, 2, 3, 2, 3, 2, 2, (1, 1), (3, 3)), conv.Window(9, 2, 6, 3, 2, 2, 2, (2, 2), (1, 1), (1, 1)),
]


def reference(v: conv.Window, x: Floats, w: Floats, gy: Floats) -> tuple[Floats, Floats, Floats]:
    """Forward, gradient by x, gradient by w, tap by tap."""
    (sy, sx), (py, px), (dy, dx) = v.stride, v.padding, v.dilation
    padded = np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)))
    y, gx, gw = np.zeros(gy.shape), np.zeros(padded.shape), np.zeros(w.shape)
    og, cg = v.o // v.groups, v.c // v.groups
    for g in range(v.groups):
        o, c = slice(g * og, (g + 1) * og), slice(g * cg, (g + 1) * cg)
        for ky in range(v.kh):
            for kx in range(v.kw):
                at = np.s_[:, c, ky * dy: ky * dy + (v.oh - 1) * sy + 1: sy, kx * dx: kx * dx + (v.ow - 1) * sx + 1: sx]
                y[:, o] += np.einsum("nchw,oc->nohw", padded[at], w[o, :, ky, kx])
                gx[at] += np.einsum("nohw,oc->nchw", gy[:, o], w[o, :, ky, kx])
                gw[o, :, ky, kx] += np.einsum("nohw,nchw->oc", gy[:, o], padded[at])
    return y, gx[:, :, py: py + v.h, px: px + v.w], gw


@one_of(
    6,
    ("target", "dtype", "every", "plain_buffers"),
    [(CPU, F32, 1, True), (CPU, F64, 4, False), (replace(CPU, l2_bytes=64), F32, 4, True),
     (AVX512, F32, 5, True), (VLOAD, F32, 7, False)],
    ids=["cpu", "cpu_double_fused", "cpu_padded", "avx512", "vload_fused"],
)
def test_convolutions_and_their_gradients(target: Target, dtype: np.dtype[Any], every: int, plain_buffers: bool) -> None:
    bench, rng = Bench(target, [dtype]), np.random.default_rng(2)
    for number, v in enumerate(WINDOWS[:: every]):
        shapes = {"x": (v.n, v.c, v.h, v.w), "w": (v.o, v.c // v.groups, v.kh, v.kw), "g": (v.n, v.o, v.oh, v.ow)}
        values = {key: rng.standard_normal(shape) for key, shape in shapes.items()}
        arrays: dict[str, conv.Array] = {}
        for key, shape in shapes.items():
            name = f"{key}_{number}_in"
            bench.arrays[name] = values[key].astype(dtype)
            strides = (shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1)
            arrays[key] = conv.Array(*plain(name, dtype, strides), (name, strides) if plain_buffers else None)
        want = reference(v, *(values[key].astype(dtype).astype(F64) for key in "xwg"))
        for tag, function, first, second, expected in (
            (f"y{number}", conv.conv2d, "x", "w", want[0]), (f"gx{number}", conv.conv2d_input_grad, "g", "w", want[1]),
            (f"gw{number}", conv.conv2d_weight_grad, "x", "g", want[2]),
        ):
            store = conv.Store(*result(f"{tag}_out", dtype, expected.shape))
            bench.expect(f"{tag}_out", function(tag, v, dtype, arrays[first], arrays[second], store, target, tag), expected, dtype)
    bench.check()
