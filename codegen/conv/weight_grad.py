"""CPU kernels of the gradient of a convolution by its weights, as tile programs. Start at `kernels`.

Each work-item holds, for some output channels and a block of taps, a vector accumulator per weight; it runs over images and units of
pixels (see `layout`) and adds up the lanes at the end. Images are split into parts, each with partial results of its own that a last kernel
adds in order, where that is needed to feed the cores or to stay in cache.
"""

from __future__ import annotations

from math import prod

from tracegrad.codegen.conv.layout import Read, Units, in_place, laid_out, pad, padded, units
from tracegrad.codegen.conv.problem import Sum, Window, weight_grad
from tracegrad.codegen.kernel.index.index import Index, ravel
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.vectors import ceil_div, index_type
from tracegrad.codegen.lower.fused import Fused
from tracegrad.codegen.matmul.cpu import of_parts
from tracegrad.codegen.matmul.problem import Product, partial
from tracegrad.codegen.tile.program import ALONE, Axis, Dot, Element, Load, Loop, Program, Tile, digits, summed
from tracegrad.support.tuning import tuning


def kernels(of: Sum) -> list[Kernel]:
    """The kernels of the gradient by the weights, in launch order."""
    v, p, made = of.v, weight_grad(of), list[Kernel]()
    u = units((v.oh, v.ow), of.dtype, of.target)
    x, gy = map(of.source, p.result.operands)
    planes = in_place(x, u, v.reach, v.stride, v.padding) or pad(
        made, x, p.name, padded(v.c, u, v.reach, v.stride), v.stride, v.padding)
    rows_of = (gy.plain() if u.covered == u.out and gy.stride(3) == 1 else None) or laid_out(
        made, gy, "rows", "noyx", (v.n, v.o, *u.covered), p.name,
        f"Copies each channel of the gradient to {u.covered[0]} rows of {u.covered[1]}, zero beyond.", "lays out the gradient for")
    block = _block(v)
    taps, channels = prod(block), v.o // v.groups
    rows = max(1, min(8, channels, (p.target.registers - 1 - taps) // taps))
    rows = ceil_div(channels, ceil_div(channels, rows))
    items = ceil_div(channels, rows) * (v.c // block[0]) * (v.kh // block[1])
    footprint = rows * v.n * u.count * u.width * p.dtype.itemsize
    parts = min(v.n, max(ceil_div(2 * p.target.cores, items) if items < p.target.cores else 1, ceil_div(footprint, p.target.l2_bytes // 2)))
    parts = ceil_div(v.n, ceil_div(v.n, parts))               # none of them is empty
    made.append(_main(p, v, u, planes, rows_of, rows, block, parts))
    return made if parts == 1 else [*made, of_parts(p, parts)]


def _block(v: Window) -> tuple[int, int, int]:
    """The taps whose accumulators a work-item holds for each of its output channels, channels x height x width of them.

    A row of taps; two channels of a 1x1 kernel; all taps of a small depthwise kernel (where there is one output channel to hold).
    """
    if v.kh * v.kw == 1:
        return 2 if v.c // v.groups % 2 == 0 else 1, 1, 1
    if v.o == v.groups and v.kh * v.kw <= 9:
        return 1, v.kh, v.kw
    return 1, 1, v.kw if v.kw <= tuning().conv_unrolled else 1


def _main(p: Product, v: Window, u: Units, planes: Read, rows_of: Read, rows: int, block: tuple[int, int, int], parts: int) -> Kernel:
    """w[g,o,c,ky,kx] = sum over n, y, x of gy[n,g,o,y,x] * in[n,g,c, y * stride + ky * dilation - padding, ...].

    A work-item does `rows` output channels by one block of taps, of one part of the images.
    """
    (channels, height, width), sizes = block, (v.groups, p.m, v.c // v.groups, v.kh, v.kw)
    groups, og, cg, kh, kw = sizes
    part, g = (Axis.of_items("part", parts, 2),) if parts > 1 else (), Axis.of_items("g", groups, 1)
    o, c = Axis("o", og, digits(ceil_div(og, rows), 1, rows, 1)), Axis("c", cg, digits(cg // channels, 1, channels, 0))
    ky = Axis("ky", kh, digits(kh // height, 1, height, 0))
    kx = Axis.tiled("kx", kw, width)
    n, y, x = Axis("n", v.n), Axis("y", u.out[0], (), u.rows, True), Axis("x", u.out[1], (), u.piece)
    f = Fused(p.group, p.context, index_type(2 * v.n * v.c * v.h * v.w, 2 * v.n * v.o * prod(u.covered), prod(sizes)))
    pixels, gradient = planes(f), rows_of(f)

    def under_taps(n: Index, g: Index, c: Index, ky: Index, kx: Index, y: Index, x: Index) -> Element:
        down, right = ky * v.dilation[0], kx * v.dilation[1]
        return pixels(n, g * cg + c, y * v.stride[0] + down, right % v.stride[1], x + right // v.stride[1])

    sums = Tile("c", (*part, g, o, c, ky, kx), p.dtype)
    values, factors = Tile("v", (n, g, c, ky, kx, y, x), p.dtype), Tile("g", (n, g, o, y, x), p.dtype)
    loads = Load(values, under_taps), Load(factors, lambda n, g, o, y, x: gradient(n, g * og + o, y, x))
    inner = Loop(y, (Loop(x, (*loads, Dot(sums, factors, values)), early=True, steps=tuning().conv_steps),), early=True)
    loop = Loop(n, (inner,), part[0] if part else None, ceil_div(v.n, parts))
    whole = f.result(p.result, lambda f, at: (ravel((at[0] * og + at[1], *at[2:]), p.result.shape), ()))
    root = partial(f, p.name, p.dtype, (parts, *sizes)) if part else whole
    what = f"{rows} output channels x {prod(block)} taps, vectors of {u.rows}x{u.piece} pixels"
    program = Program((*part, g, o, c, ky, kx), ALONE, summed(loop, root, 1 if part else p.statements, fold=True))
    return f.kernel(program, p.name, f"Gradient by {kh}x{kw} weights: {what}.", v.flops, p.bytes, what)
