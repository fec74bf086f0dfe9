"""Families of operations that follow one rule: `Elementwise`, `Movement`, `Reduction`; and what dtypes operands are cast to, `Cast`.

Say here what an op class of the family must give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tracegrad.errors import DTypeError, ShapeError
from tracegrad.graph.intervals import Interval
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation import Pair
from tracegrad.graph.operators import Operators
from tracegrad.graph.primitive import PYTHON_SCALARS, REAL_SCALARS, REGISTRY, Primitive, Shape, as_node, bind, cast, filled, scalar
from tracegrad.support import dtypes
from tracegrad.support.dtypes import DType, dtype_kind


def broadcast_shapes(name: str, shapes: Sequence[Shape]) -> Shape:
    """The common shape, by numpy's rule; a ShapeError names the op and the shapes."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    n = max(map(len, shapes))
    out = [1] * n
    for s in shapes:
        for i, d in enumerate(s, n - len(s)):
            if d != 1 and d != out[i]:
                if out[i] != 1:
                    raise ShapeError(f"{name}: shapes {' and '.join(str(tuple(s)) for s in shapes)} do not broadcast together "
                                     f"(sizes {out[i]} and {d} at dimension {i - n}); reshape or unsqueeze one of them")
                out[i] = d
    return tuple(out)


class Elementwise(Primitive):
    """y[i] = f(x0[i], x1[i], ...), operands broadcast implicitly and of one dtype.

    Give: `nin`, `numpy`, `vjp`, `opencl(self, *operands: str) -> str` (an expression in plain OpenCL C: operators, ?:, and
    builtin names; it is used for scalars and for vectors), and `domain` (where tests draw operands).
    `result`: "same" as the operands, "bool" (comparisons), "float" (integers become the default float first), or "real" (of complex
    numbers: the dtype of their parts). Those that take complex numbers ("c" in `kinds`) give `pair`.
    """

    family = "elementwise"
    required = ("numpy",)
    nin: ClassVar[int] = 1
    result: ClassVar[str] = "same"
    domain: ClassVar[tuple[float, float]] = (-2.0, 2.0)
    kinds: ClassVar[str] = "biuf"           # dtype kinds it takes
    promotes_bools: ClassVar[bool] = True   # whether it takes bools beside numbers, whose dtype they then get
    orders: ClassVar[int] = 1               # how many derivatives, itself included, kernels call as functions: by the attribute "order"

    opencl: Any = None

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("name") and cls.opencl is None and cls.pair is None:
            raise TypeError(f"op class {cls.__name__} lacks opencl")
        super().__init_subclass__()

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        shape = operands[0].shape
        for o in operands:
            if o.shape != shape and o.shape:
                shape = broadcast_shapes(self.name, [o.shape for o in operands])
                break
        dtype = operands[-1].dtype
        if dtype_kind(dtype) not in self.kinds:
            raise not_taken(self.name, dtype, self.kinds)
        weak = operands[0].weak and all(o.weak for o in operands) and self.result != "bool"
        if self.result == "bool":
            dtype = dtypes.bool_
        elif self.result == "real" and dtype.kind == "c":
            dtype = dtypes.real_of(dtype)
        return Aval(shape, dtype, weak)

    def prepare(self, args: list[Any]) -> tuple[Node, ...]:
        if not self.promotes_bools:
            refuse_bools(self.name, args)
        return tuple(common_dtype(args, self.result == "float", self.name))


class Float(Elementwise):
    """Base of functions that make floats of integers."""
    result, kinds = "float", "f"


def not_taken(name: str, dtype: DType, kinds: str = "f") -> DTypeError:
    """The error for an operand of a dtype that an operation, which takes `kinds`, does not take."""
    if dtype.kind == "c":
        return DTypeError(f"{name}: does not take {dtype}; use the real numbers x.real, x.imag, x.abs() or x.angle()")
    taken = "int64" if "f" not in kinds else "float64" if dtype == "float32" else "float32"
    return DTypeError(f"{name}: does not take {dtype}; cast first, for example x.to(tg.{taken})")


def refuse_complex(name: str, *operands: Any) -> None:
    """DTypeError if one of `operands` (avals, nodes or tensors) is complex: for operations on real numbers only."""
    for x in operands:
        if x.dtype.kind == "c":
            raise not_taken(name, x.dtype)


def refuse_bools(name: str, operands: Sequence[Any]) -> None:
    """DTypeError if one of `operands` (nodes, tensors and numbers) is a bool: who writes `-` of a mask mostly means `~`."""
    for x in operands:
        if isinstance(x, bool) or (isinstance(x, Operators) and x.dtype.kind == "b"):
            raise DTypeError(f"{name}: does not take bools; use ~x or logical_not() to invert a mask, x ^ y for where two differ, "
                             "or cast first, for example x.to(tg.int64)")


def by_parts(self: Any, *operands: Any, **attrs: Any) -> Pair:
    """The `pair` of operations that move elements, or add them up: they do the same to both parts."""
    def part(k: int) -> Node:
        chosen = {**attrs, "value": (attrs["value"].real, attrs["value"].imag)[k]} if "value" in attrs else attrs
        return bind(self, tuple([o[k] if isinstance(o, Pair) else o for o in operands]), chosen)

    return Pair(part(0), part(1))


def bilinear(self: Any, a: Pair, b: Pair, **attrs: Any) -> Pair:
    """The `pair` of products of two operands: four real ones, or two where an operand is a real one that was promoted."""
    def product(x: Node, y: Node) -> Any:
        return bind(self, (x, y), attrs)

    if _zeros(a.im):
        return Pair(product(a.re, b.re), product(a.re, b.im))
    if _zeros(b.im):
        return Pair(product(a.re, b.re), product(a.im, b.re))
    return Pair(product(a.re, b.re) - product(a.im, b.im), product(a.re, b.im) + product(a.im, b.re))


def _zeros(x: Node) -> bool:
    """Whether every element is known to be 0."""
    while isinstance(x.fn, Movement) and len(x.operands) == 1 and x.fn.name != "pad":
        x = x.operands[0]
    return x.fn is REGISTRY["const"] and not x.attrs["value"]


def common_dtype(args: Sequence[Any], to_float: bool = False, name: str = "") -> list[Node]:
    """Operand nodes cast to the dtype they promote to, by torch's rule: the tensors with dimensions decide; 0-d ones, and
    after them weak nodes and Python and numpy scalars, only raise the category. name: the op's, for errors.
    """
    if len(args) == 2:                      # what nearly all calls are
        a, b = args
        if isinstance(a, Node) and not a.aval.weak and (not to_float or dtype_kind(a.aval.dtype) in "fc"):
            if isinstance(b, Node):
                if a.aval.dtype is b.aval.dtype and not b.aval.weak:
                    return [a, b]
            elif dtype_kind(a.aval.dtype) == "f" and type(b) in REAL_SCALARS:
                return [a, scalar(name, b, a.aval.dtype)]
    args = [a.item() if isinstance(a, np.generic) else a for a in args]
    dtype: DType | None = None
    of_scalars: DType | None = None
    for a in args:
        if isinstance(a, Node) and not a.aval.weak:
            if a.aval.shape:
                dtype = a.aval.dtype if dtype is None else dtypes.promote(dtype, a.aval.dtype)
            else:
                of_scalars = a.aval.dtype if of_scalars is None else dtypes.promote(of_scalars, a.aval.dtype)
    if of_scalars is not None and (dtype is None or dtypes.category(of_scalars) > dtypes.category(dtype)):
        dtype = dtypes.complex_of(dtype) if dtype is not None and dtype_kind(dtype) == "f" else of_scalars
    weak = dtype is None
    if dtype is None:
        dtype = dtypes.bool_
        for a in args:
            dtype = dtypes.promote(dtype, as_node(a, name).dtype)
    else:
        for a in args:
            if isinstance(a, Node):
                if a.aval.weak:
                    dtype = dtypes.promote_scalar(dtype, a.dtype.type(0).item())
            elif isinstance(a, PYTHON_SCALARS):
                dtype = dtypes.promote_scalar(dtype, a)
    if to_float and dtype_kind(dtype) not in "fc":
        dtype = dtypes.float64 if weak else dtypes.get_default_dtype()
    out = []
    for a in args:
        if isinstance(a, Node):
            out.append(a if a.aval.dtype == dtype and (a.aval.weak == weak or weak) else cast(a, dtype))
        elif isinstance(a, PYTHON_SCALARS):
            out.append(scalar(name, a, dtype, weak))
        else:
            out.append(cast(as_node(a, name), dtype))       # raises, unless it is a 0-d array
    return out


def by_value(args: Sequence[Any]) -> Sequence[Any]:
    """The operands of a comparison of two, where none is a number outside of the other's integer dtype, which it could not be cast to.

    Such a number is beyond all elements. So ones are compared in the place of these, with 0 or with 2.
    """
    for k, number in enumerate(args if len(args) == 2 else ()):
        x = args[1 - k]
        if isinstance(number, (int, np.integer)) and not isinstance(number, bool) and isinstance(x, Node) and dtype_kind(x.dtype) in "biu":
            limits = np.iinfo(dtypes.int64 if dtype_kind(x.dtype) == "b" else x.dtype)
            if not limits.min <= number <= limits.max:
                operands = [filled(1, x), 2 if number > 0 else 0]
                return operands[::-1] if k == 0 else operands
    return args


class Cast(Primitive):
    """Conversion to another dtype, as C converts (floats to integers truncate towards zero). Of complex numbers to others: the real part,

    but to bools: whether they are not 0.
    """

    name, family, saves, monotone = "cast", "elementwise", False, True

    def aval(self, x: Aval, *, dtype: DType, weak: bool) -> Aval:
        return Aval(x.shape, dtype, weak)

    def numpy(self, x: Any, *, dtype: DType, weak: bool) -> Any:
        x = np.asarray(x)
        with np.errstate(all="ignore"):
            return (x.real if x.dtype.kind == "c" and dtype.kind not in "cb" else x).astype(dtype, _order(x))

    def numpy_with(self, *, dtype: DType, weak: bool) -> Any:
        whole = dtype.kind in "cb"
        return lambda x: (x if whole or x.dtype.kind != "c" else x.real).astype(dtype, _order(x))

    def vjp(self, ct: Node, y: Node, x: Node, *, dtype: DType, weak: bool) -> tuple[Any, ...]:
        return (cast(ct, x.dtype) if dtype_kind(x.dtype) in "fc" and dtype_kind(dtype) in "fc" else None,)

    def pair(self, x: Any, *, dtype: DType, weak: bool) -> Any:
        real = dtypes.real_of(dtype)
        if not isinstance(x, Pair):
            part = x if x.dtype == real else cast(x, real)
            return Pair(part, filled(0, part))
        if dtype.kind == "c":
            return Pair(cast(x.re, real), cast(x.im, real))
        if dtype.kind == "b":
            return cast(x.re, real) | cast(x.im, real)
        return cast(x.re, real)

    def interval(self, node: Node, *operands: Interval) -> Interval | None:
        return operands[0] if operands and node.operands[0].dtype.kind in "biu" else None

    cases = [(((2, 3),), dict(dtype=dtypes.float32, weak=False)), (((2, 3),), dict(dtype=dtypes.int64, weak=False))]


def _order(x: Any) -> str:
    """NumPy's order of a copy of x. Row by row where few elements lie side by side, as of an image whose channels come last in memory:

    NumPy goes over these again and again, and an operation with one number a channel takes 15 times as long.
    """
    if x.ndim < 3 or x.flags.c_contiguous:
        return "K"
    return "C" if x.shape[min(range(x.ndim), key=lambda d: abs(x.strides[d]))] < SHORT else "K"


MASKED = 1 << 10        # elements from which on floats are masked by their bits
_BITS = {"f": np.dtype(np.int32), "d": np.dtype(np.int64)}


def selected(c: Any, a: Any, b: Any) -> Any:
    """a where c holds, else b. Many floats by their bits, which as integers are multiplied by 1 or 0: NumPy branches at each element, and

    what a derivative of relu or a dropout asks for is not to be foreseen. (A hot path: few calls before the arithmetic.)
    """
    bits = _BITS.get(a.dtype.char)
    if bits is None or c.size < MASKED or a.dtype != b.dtype or not c.flags.c_contiguous:
        return np.where(c, a, b)
    ours = a.shape == c.shape and a.flags.c_contiguous
    others = b.shape == c.shape and b.flags.c_contiguous
    if ours and _is_zero(b):
        factors = c.astype(bits)
        return np.multiply(a.view(bits), factors, out=factors).view(a.dtype)
    if others and _is_zero(a):
        factors = np.logical_not(c).astype(bits)
        return np.multiply(b.view(bits), factors, out=factors).view(a.dtype)
    if not (ours and others):
        return np.where(c, a, b)
    kept = b.view(bits)
    found = np.bitwise_xor(a.view(bits), kept)              # what is to be changed in b's bits
    np.multiply(found, c.astype(bits), out=found)
    return np.bitwise_xor(found, kept, out=found).view(a.dtype)


def _is_zero(x: Any) -> bool:
    """Whether an array is the number 0.0, which may be broadcast. (-0.0 has other bits.)"""
    if any(x.strides):
        return False
    value = x.item() if x.ndim == 0 else x[(0,) * x.ndim].item()
    return value == 0.0 and math.copysign(1.0, value) > 0.0


class Movement(Primitive):
    """Results whose elements are elements of the operands: no arithmetic, so it never runs by itself.

    Give `aval`, `numpy`, `vjp` and `locate`, from which the code generator gets index arithmetic.
    """

    family, saves, linear, moves = "movement", False, True, True
    pair = by_parts
    required: ClassVar[tuple[str, ...]] = ("aval", "numpy", "locate")
    fill: Any = None                        # the attribute that holds the value where no operand is hit (pad)

    def interval(self, node: Node, *operands: Interval) -> Interval | None:
        ends = [*operands, *((int(v), int(v)) for k, v in node.attrs.items() if k == "value")]       # what pad fills in
        return (min(low for low, _ in ends), max(high for _, high in ends)) if operands else None

    locate: Any = None
    # def locate(self, index, *operands: Aval, **attrs) -> list[tuple[int, tuple, list[guard]]]
    #   index: one symbolic integer per result dimension (they support + - * // % with ints and each other). The element at
    #   `index` is that of the first entry (operand number, index into it, guards) whose guards all hold, else the fill value.
    #   A guard is ("range", expression, low, high): low <= expression < high; or ("multiple", expression, k): it is a multiple of k.


SHORT = 16                                                 # so many numbers numpy may add up one after the other


class Reduction(Primitive):
    """Combine elements along the dims `dim` (a sorted tuple), which vanish from the shape.

    Give `numpy`, `vjp`, `identity(dtype)` (the value of an empty reduction) and `combine(a, b) -> str` (OpenCL expression,
    associative). keepdim is a reshape by the caller.
    """

    family, expensive = "reduction", True
    required = ("numpy", "identity", "combine")
    identity: Any = None
    combine: Any = None

    def aval(self, x: Aval, *, dim: tuple[int, ...]) -> Aval:
        return Aval(tuple(d for i, d in enumerate(x.shape) if i not in dim), x.dtype)
