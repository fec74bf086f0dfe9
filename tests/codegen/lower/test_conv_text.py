"""The generated convolutions of CPUs against numpy in float64: shapes, layouts, fused loads and epilogues."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from tests.helpers.marks import one_of
from tracegrad.codegen.conv import schedules as conv
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.names import is_reserved
from tracegrad.codegen.kernel.statements import Buffer
from tracegrad.codegen.kernel.vectors import load, plus, prelude, write
from tracegrad.codegen.plan.source import vector_access
from tracegrad.runtime.device import devices
from tracegrad.support.plan import Target

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


def test_the_prelude_has_each_type_once_and_only_what_the_target_computes_in() -> None:
    uses = [("LOAD", "uchar8"), ("STORE", "uchar8"), ("LOAD_LOCAL", "float4"), ("LOAD", "double2"), ("GATHER4", "float4")]
    text = "\n".join(prelude(uses, Target(fp64=False)))
    assert text.count("uchar8_u;") == 1
    assert text.count("#define LOAD(") == text.count("#define STORE_uchar8(") == text.count("#define LOAD_LOCAL_float4(") == 1
    assert "double" not in text
    assert "GATHER" not in text


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
