"""tracegrad.array_api against the array API standard 2024.12: names and signatures, dtypes, special values, devices; at the end, libraries.

`make array-api` runs the consortium's own suite. What is here is fast, and holds what that suite leaves open (traces, 0-d arrays in every
place, errors). The signatures are the standard's; the fixture on_numpy keeps all but a few tests away from compilers.
"""

from __future__ import annotations

import inspect
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.array_api as xp

pytestmark = pytest.mark.usefixtures("on_numpy")
ROOT = Path(__file__).resolve().parents[2]

UNARY = (
    "abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf isnan log log1p log2 log10 "
    "logical_not negative positive real reciprocal round sign signbit sin sinh square sqrt tan tanh trunc"
)
BINARY = (
    "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal floor_divide greater "
    "greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum minimum multiply nextafter not_equal pow "
    "remainder subtract"
)
SIGNATURES = {
    "elementwise": [f"{name}(x, /)" for name in UNARY.split()] + [f"{name}(x1, x2, /)" for name in BINARY.split()] + [
        "clip(x, /, min=None, max=None)"],
    "creation": """arange(start, /, stop=None, step=1, *, dtype=None, device=None)
        asarray(obj, /, *, dtype=None, device=None, copy=None)
        empty(shape, *, dtype=None, device=None)
        empty_like(x, /, *, dtype=None, device=None)
        eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
        from_dlpack(x, /, *, device=None, copy=None)
        full(shape, fill_value, *, dtype=None, device=None)
        full_like(x, /, fill_value, *, dtype=None, device=None)
        linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
        meshgrid(*arrays, indexing='xy')
        ones(shape, *, dtype=None, device=None)
        ones_like(x, /, *, dtype=None, device=None)
        tril(x, /, *, k=0)
        triu(x, /, *, k=0)
        zeros(shape, *, dtype=None, device=None)
        zeros_like(x, /, *, dtype=None, device=None)""",
    "data types": """astype(x, dtype, /, *, copy=True, device=None)
        can_cast(from_, to, /)
        finfo(type, /)
        iinfo(type, /)
        isdtype(dtype, kind)
        result_type(*arrays_and_dtypes)""",
    "indexing, searching, sorting, sets": """take(x, indices, /, *, axis=None)
        take_along_axis(x, indices, /, *, axis=-1)
        argmax(x, /, *, axis=None, keepdims=False)
        argmin(x, /, *, axis=None, keepdims=False)
        count_nonzero(x, /, *, axis=None, keepdims=False)
        nonzero(x, /)
        searchsorted(x1, x2, /, *, side='left', sorter=None)
        where(condition, x1, x2, /)
        argsort(x, /, *, axis=-1, descending=False, stable=True)
        sort(x, /, *, axis=-1, descending=False, stable=True)
        unique_all(x, /)
        unique_counts(x, /)
        unique_inverse(x, /)
        unique_values(x, /)""",
    "manipulation": """broadcast_arrays(*arrays)
        broadcast_to(x, /, shape)
        concat(arrays, /, *, axis=0)
        expand_dims(x, /, axis)
        flip(x, /, *, axis=None)
        moveaxis(x, source, destination, /)
        permute_dims(x, /, axes)
        repeat(x, repeats, /, *, axis=None)
        reshape(x, /, shape, *, copy=None)
        roll(x, /, shift, *, axis=None)
        squeeze(x, /, axis)
        stack(arrays, /, *, axis=0)
        tile(x, repetitions, /)
        unstack(x, /, *, axis=0)""",
    "statistics and utilities": """cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
        cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
        max(x, /, *, axis=None, keepdims=False)
        mean(x, /, *, axis=None, keepdims=False)
        min(x, /, *, axis=None, keepdims=False)
        prod(x, /, *, axis=None, dtype=None, keepdims=False)
        std(x, /, *, axis=None, correction=0.0, keepdims=False)
        sum(x, /, *, axis=None, dtype=None, keepdims=False)
        var(x, /, *, axis=None, correction=0.0, keepdims=False)
        all(x, /, *, axis=None, keepdims=False)
        any(x, /, *, axis=None, keepdims=False)
        diff(x, /, *, axis=-1, n=1, prepend=None, append=None)""",
    "linear algebra": """matmul(x1, x2, /)
        matrix_transpose(x, /)
        tensordot(x1, x2, /, *, axes=2)
        vecdot(x1, x2, /, *, axis=-1)""",
    "inspection": "__array_namespace_info__()",
}
LINALG = """cholesky(x, /, *, upper=False)
    cross(x1, x2, /, *, axis=-1)
    det(x, /)
    diagonal(x, /, *, offset=0)
    eigh(x, /)
    eigvalsh(x, /)
    inv(x, /)
    matmul(x1, x2, /)
    matrix_norm(x, /, *, keepdims=False, ord='fro')
    matrix_power(x, n, /)
    matrix_rank(x, /, *, rtol=None)
    matrix_transpose(x, /)
    outer(x1, x2, /)
    pinv(x, /, *, rtol=None)
    qr(x, /, *, mode='reduced')
    slogdet(x, /)
    solve(x1, x2, /)
    svd(x, /, *, full_matrices=True)
    svdvals(x, /)
    tensordot(x1, x2, /, *, axes=2)
    trace(x, /, *, offset=0, dtype=None)
    vecdot(x1, x2, /, *, axis=-1)
    vector_norm(x, /, *, axis=None, keepdims=False, ord=2)"""
FFT = """fft(x, /, *, n=None, axis=-1, norm='backward')
    ifft(x, /, *, n=None, axis=-1, norm='backward')
    fftn(x, /, *, s=None, axes=None, norm='backward')
    ifftn(x, /, *, s=None, axes=None, norm='backward')
    rfft(x, /, *, n=None, axis=-1, norm='backward')
    irfft(x, /, *, n=None, axis=-1, norm='backward')
    rfftn(x, /, *, s=None, axes=None, norm='backward')
    irfftn(x, /, *, s=None, axes=None, norm='backward')
    hfft(x, /, *, n=None, axis=-1, norm='backward')
    ihfft(x, /, *, n=None, axis=-1, norm='backward')
    fftfreq(n, /, *, d=1.0, dtype=None, device=None)
    rfftfreq(n, /, *, d=1.0, dtype=None, device=None)
    fftshift(x, /, *, axes=None)
    ifftshift(x, /, *, axes=None)"""
DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128"
CONSTANTS = dict(e=math.e, inf=math.inf, pi=math.pi, newaxis=None)
METHODS = (
    "__array_namespace__ __bool__ __complex__ __dlpack__ __dlpack_device__ __float__ __getitem__ __index__ __int__ __setitem__ to_device"
)
OPERATORS = "add and eq floordiv ge gt le lshift lt matmul mod mul ne or pow rshift sub truediv xor"
IN_PLACE = "add and floordiv lshift mod mul or pow rshift sub truediv xor"


def lines(text: list[str] | str) -> list[str]:
    return text if isinstance(text, list) else [line.strip() for line in text.splitlines()]


# ------------------------------------------------------------------------------------------------------ names and signatures


@pytest.mark.parametrize(("module", "signature"), [
    *((xp, line) for text in SIGNATURES.values() for line in lines(text)),
    *((xp.linalg, line) for line in lines(LINALG)),
    *((xp.fft, line) for line in lines(FFT)),
], ids=str)
def test_signature(module, signature):
    name, arguments = signature.split("(", 1)
    function = getattr(module, name)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(function).parameters.values()]
    assert str(inspect.Signature(plain)) == f"({arguments}"
    assert function.__doc__


def test_the_namespace_holds_nothing_else():
    functions = [line.split("(")[0] for text in SIGNATURES.values() for line in lines(text)]
    public = {name for name in dir(xp) if not name.startswith("_")}
    assert public == {*functions, *DTYPES.split(), *CONSTANTS, "nan", "linalg", "fft"} - {"__array_namespace_info__"}
    assert set(xp.linalg.__all__) == {line.split("(")[0] for line in lines(LINALG)}
    assert set(xp.fft.__all__) == {line.split("(")[0] for line in lines(FFT)}


def test_constants_and_dtypes():
    assert {name: getattr(xp, name) for name in CONSTANTS} == CONSTANTS
    assert math.isnan(xp.nan)
    assert [str(getattr(xp, name)) for name in DTYPES.split()] == DTYPES.split()
    assert xp.__array_api_version__ == "2024.12"


def test_what_an_array_has():
    x = xp.ones((2, 3))
    for name in METHODS.split():
        assert callable(getattr(x, name)), name
    for name in OPERATORS.split():
        assert callable(getattr(x, f"__{name}__")), name
    for name in IN_PLACE.split():
        assert callable(getattr(x, f"__i{name}__")), name
        assert callable(getattr(x, f"__r{name}__")), name
    assert (x.ndim, x.shape, x.size, x.dtype, x.device) == (2, (2, 3), 6, xp.float32, tg.device())
    assert x.T.shape == x.mT.shape == (3, 2)
    assert x.__array_namespace__() is x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(tg.ArgumentError, match=r"__array_namespace__: api_version must be one of .*'2024.12', got '2030.12'"):
        x.__array_namespace__(api_version="2030.12")


def test_size_is_a_number_and_torchs_method():
    for shape in ((), (7,), (3, 0), (13, 16)):
        x = tg.zeros(shape)
        assert x.size == math.prod(shape)
        assert isinstance(x.size, int)
        assert x.size() == shape
        assert [x.size(d) for d in range(len(shape))] == list(shape)
    with pytest.raises(tg.IndexOutOfRange, match=r"^size: "):
        tg.zeros(3).size(1)


def test_to_device():
    x = xp.asarray([1.0, 2.0])
    assert x.to_device(x.device) is x
    assert x.to_device("numpy").device is tg.device("numpy")
    with pytest.raises(tg.ArgumentError, match=r"^to_device: stream must be None"):
        x.to_device(x.device, stream=1)


def test_python_numbers_of_arrays_without_dimensions():
    assert complex(xp.asarray(1.5)) == 1.5
    assert complex(xp.asarray(1 + 2j, dtype=xp.complex128)) == 1 + 2j
    assert (float(xp.asarray(2)), int(xp.asarray(2.75)), bool(xp.asarray(0.0))) == (2.0, 2, False)
    assert [10, 20, 30][xp.asarray(1, dtype=xp.uint16)] == 20


# ------------------------------------------------------------------------------------------------------------------ dtypes


REAL = [getattr(xp, name) for name in DTYPES.split()[1:11]]
INTEGERS = REAL[:8]


def defined(a, b):
    """Whether the standard says what a and b promote to: they are of one kind, and not uint64 beside a signed integer."""
    return a.kind == b.kind or (a.kind in "iu" and b.kind in "iu" and xp.uint64 not in (a, b))


@pytest.mark.parametrize("shapes", [((), (3,)), ((3,), ()), ((), ()), ((2, 1), (3,))], ids=str)
def test_operands_promote_whatever_their_dimensions(shapes):
    """numpy's promotion is the standard's; an array without dimensions has the same say as any other, which torch's has not."""
    for a, b in itertools.product([*REAL, xp.complex64, xp.complex128], repeat=2):
        if not defined(a, b):
            continue
        x, y = xp.ones(shapes[0], dtype=a), xp.ones(shapes[1], dtype=b)
        wanted = np.promote_types(a, b)
        assert xp.result_type(a, b) == xp.result_type(x, y) == xp.result_type(x, b) == wanted
        assert {xp.add(x, y).dtype, xp.multiply(x, y).dtype, xp.where(xp.asarray(True), x, y).dtype} == {wanted}, (a, b)
        if a.kind != "c":
            assert {f(x, y).dtype for f in (xp.maximum, xp.remainder, xp.subtract)} == {wanted}, (a, b)
        if a.kind in "iu":
            assert {f(x, y).dtype for f in (xp.bitwise_and, xp.bitwise_left_shift, xp.floor_divide)} == {wanted}, (a, b)
        if shapes[0] and shapes[1]:
            assert xp.concat([xp.reshape(x, (-1,)), y]).dtype == xp.tensordot(x, y, axes=0).dtype == wanted
        assert xp.can_cast(a, wanted)
        assert xp.can_cast(x, wanted)


def test_comparisons_of_integers_of_two_widths_see_the_numbers():
    for equal, other in ((xp.equal, xp.not_equal), (xp.less_equal, xp.greater)):
        assert not bool(equal(xp.asarray(260, dtype=xp.int32), xp.asarray([4], dtype=xp.uint8)))
        assert bool(other(xp.asarray(260, dtype=xp.int32), xp.asarray([4], dtype=xp.uint8)))


def test_python_numbers_take_the_arrays_dtype():
    for dtype in [*REAL, xp.complex64, xp.complex128]:
        for shape in ((), (3,)):
            x = xp.ones(shape, dtype=dtype)
            assert xp.add(x, 1).dtype == xp.multiply(2, x).dtype == xp.result_type(x, 1) == xp.result_type(dtype, True, 2) == dtype
            if dtype.kind in "fc":
                assert xp.pow(x, 2.5).dtype == xp.divide(1.5, x).dtype == xp.result_type(x, 2.5) == dtype
            if dtype.kind == "f":
                two = [f(*pair) for f in (xp.atan2, xp.copysign, xp.hypot, xp.logaddexp, xp.nextafter) for pair in ((x, 2.0), (2.0, x))]
                assert {y.dtype for y in two} == {dtype}
    with pytest.raises(tg.DTypeError, match=r"^add: expected at least one array, got int, float"):
        xp.add(1, 2.0)
    with pytest.raises(tg.ArgumentError, match=r"^result_type: expected at least one array or dtype"):
        xp.result_type(1, 2.0)


def test_sums_of_integers_are_64_bits_wide_and_keep_their_sign():
    for dtype in INTEGERS:
        x = xp.ones((2, 3), dtype=dtype)
        wide = xp.int64 if dtype.kind == "i" else xp.uint64
        sums = [xp.sum(x), xp.prod(x, axis=0), xp.cumulative_sum(x, axis=1), xp.cumulative_prod(x, axis=0, include_initial=True),
                xp.linalg.trace(x), xp.sum(x, axis=())]
        assert {y.dtype for y in sums} == {wide}, dtype
        assert {xp.sum(x, dtype=dtype).dtype, xp.max(x).dtype, xp.sort(x).dtype, xp.abs(x).dtype} == {dtype}
    big = xp.full(3, 2**63, dtype=xp.uint64)
    assert int(xp.max(big)) == 2**63
    assert int(xp.sum(big)) == 2**63                            # wraps in 64 bits
    assert xp.sum(xp.ones(3, dtype=xp.float32)).dtype == xp.float32


def test_isdtype_and_limits():
    kinds = {"bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f", "complex floating": "c",
             "numeric": "iufc"}
    for dtype in (getattr(xp, name) for name in DTYPES.split()):
        assert [kind for kind in kinds if xp.isdtype(dtype, kind)] == [kind for kind, members in kinds.items() if dtype.kind in members]
        assert xp.isdtype(dtype, dtype)
        assert xp.isdtype(dtype, ("bool", "numeric"))
    assert not xp.isdtype(xp.float32, (xp.float64, "integral"))
    with pytest.raises(tg.ArgumentError, match=r"isdtype: kind must be .*, got 'float'"):
        xp.isdtype(xp.float32, "float")
    for dtype, of in ((xp.float32, np.float32), (xp.complex128, np.float64)):
        for given in (dtype, xp.ones(2, dtype=dtype)):
            info, wanted = xp.finfo(given), np.finfo(of)
            assert (info.bits, info.eps, info.max, info.min, info.smallest_normal, info.dtype) == (
                wanted.bits, wanted.eps, wanted.max, wanted.min, wanted.smallest_normal, np.dtype(of))
            assert {type(v) for v in (info.eps, info.max, info.min, info.smallest_normal)} == {float}
    for dtype in INTEGERS:
        info, wanted = xp.iinfo(xp.ones(1, dtype=dtype)), np.iinfo(dtype)
        assert (info.bits, info.max, info.min, info.dtype) == (wanted.bits, wanted.max, wanted.min, dtype)
    for function, dtype in ((xp.finfo, xp.int8), (xp.iinfo, xp.float32), (xp.finfo, 1.0)):
        with pytest.raises(tg.DTypeError, match=rf"^{function.__name__}: "):
            function(dtype)


def test_astype():
    x = xp.asarray([0.0, -1.5, math.nan], dtype=xp.float64)
    assert xp.astype(x, xp.bool).tolist() == [False, True, True]
    assert xp.astype(x, xp.float64, copy=False) is x
    copied = xp.astype(x, xp.float64)
    copied[0] = 7.0
    assert float(x[0]) == 0.0
    assert xp.astype(xp.asarray([True, False]), xp.complex64).tolist() == [1 + 0j, 0j]
    assert xp.astype(xp.asarray([0j, 1j]), xp.bool).tolist() == [False, True]
    with pytest.raises(tg.DTypeError, match=r"astype: complex64 cannot become float32.*real\(x\)"):
        xp.astype(xp.asarray([1j]), xp.float32)


def test_dtypes_of_what_is_made():
    assert [xp.asarray(v).dtype for v in (True, 1, 1.0, 1j, [1, 2.0], [True, 2], [[1, 1j]])] == [
        xp.bool, xp.int64, xp.float32, xp.complex64, xp.float32, xp.int64, xp.complex64]
    assert [xp.full(2, v).dtype for v in (True, 1, 1.0, 1j)] == [xp.bool, xp.int64, xp.float32, xp.complex64]
    assert [f(2).dtype for f in (xp.zeros, xp.ones, xp.empty, xp.eye)] == [xp.float32] * 4
    assert [xp.arange(3).dtype, xp.arange(0.0, 1.0, 0.25).dtype, xp.linspace(0, 1, 3).dtype] == [xp.int64, xp.float32, xp.float32]
    assert xp.asarray([0, 2**64 - 1], dtype=xp.uint64).tolist() == [0, 2**64 - 1]
    assert xp.asarray([2**53 + 1], dtype=xp.int64).tolist() == [2**53 + 1]
    assert xp.asarray([[1.0], [2**63]]).tolist() == [[1.0], [2.0**63]]
    for values in ([1, 2**63], [-1, 2**70]):                   # numpy makes floats, or objects, of these
        with pytest.raises(tg.DTypeError, match=rf"^asarray: values from .* to {max(values)} do not fit int64; use a wider dtype"):
            xp.asarray(values)
    defaults = xp.__array_namespace_info__().default_dtypes()
    assert defaults == {"real floating": xp.float32, "complex floating": xp.complex64, "integral": xp.int64, "indexing": xp.int64}


# ---------------------------------------------------------------------------------------------------------- values and shapes


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(("function", "operands", "wanted"), [
    ("sign", [NAN], NAN), ("sign", [-0.0], 0.0), ("floor_divide", [INF, 2.0], INF), ("floor_divide", [INF, -2.0], -INF),
    ("floor_divide", [1.0, -INF], -0.0), ("floor_divide", [-1.0, INF], -0.0), ("floor_divide", [INF, INF], NAN),
    ("floor_divide", [-7.0, 2.0], -4.0), ("remainder", [-1.0, INF], INF), ("remainder", [INF, 2.0], NAN), ("pow", [1.0, NAN], 1.0),
    ("pow", [NAN, 0.0], 1.0), ("pow", [-0.0, 3.0], -0.0), ("atan2", [-0.0, -1.0], -math.pi), ("atan2", [0.0, -0.0], math.pi),
    ("hypot", [NAN, INF], INF), ("maximum", [NAN, 1.0], NAN), ("minimum", [1.0, NAN], NAN), ("logaddexp", [-INF, -INF], -INF),
    ("copysign", [NAN, -1.0], NAN), ("round", [2.5], 2.0), ("round", [-0.4], -0.0), ("trunc", [-0.5], -0.0), ("ceil", [-0.5], -0.0),
    ("sqrt", [-0.0], -0.0), ("log1p", [-1.0], -INF), ("expm1", [-0.0], -0.0), ("tanh", [-INF], -1.0), ("signbit", [-0.0], True),
    ("tanh", [complex(INF, 2.0)], 1 + 0j), ("tanh", [complex(-INF, -2.0)], complex(-1.0, -0.0)), ("expm1", [complex(-0.0, 0.0)], 0j),
    ("expm1", [complex(INF, NAN)], complex(INF, NAN)), ("expm1", [complex(-INF, NAN)], -1 + 0j), ("exp", [complex(-INF, INF)], 0j),
    ("sqrt", [complex(-INF, 1.0)], complex(0.0, INF)), ("round", [complex(2.5, -0.5)], complex(2.0, -0.0)), ("sign", [3 + 4j], 0.6 + 0.8j),
    ("imag", [2.5], 0.0), ("conj", [2.5], 2.5), ("bitwise_invert", [5], -6), ("square", [3 + 4j], -7 + 24j),
], ids=str)
def test_special_values(function, operands, wanted):
    wide = {float: xp.float64, complex: xp.complex128, int: xp.int64}
    for shape in ((), (5,)):
        found = getattr(xp, function)(*(xp.full(shape, v, dtype=wide[type(v)]) for v in operands))
        assert found.shape == shape
        value = np.asarray(found).reshape(-1)[-1]
        np.testing.assert_allclose(value, wanted, rtol=1e-15)
        for part in (np.real, np.imag):
            assert np.isnan(part(wanted)) or np.signbit(part(value) * 1.0) == np.signbit(part(wanted) * 1.0), value


def test_reductions_over_no_axis_reduce_nothing():
    x = xp.asarray(np.random.default_rng(0).normal(size=(7, 13)))
    for name in ("sum", "prod", "max", "min", "mean"):
        assert (getattr(xp, name)(x, axis=()) == x).all(), name
        assert getattr(xp, name)(x, axis=(), keepdims=True).shape == (7, 13)
        assert getattr(xp, name)(x, axis=(0, 1), keepdims=True).shape == (1, 1)
        assert getattr(xp, name)(x, axis=-2).shape == (13,)
    assert (xp.var(x, axis=()) == 0.0).all()
    np.testing.assert_allclose(xp.linalg.vector_norm(x, axis=()), np.abs(x), rtol=1e-15)
    np.testing.assert_allclose(xp.std(x, axis=1, correction=1.5), np.sqrt(np.var(np.asarray(x), 1) * 13 / 11.5))
    assert xp.any(x, axis=()).dtype == xp.all(xp.ones(3, dtype=xp.uint8)).dtype == xp.bool
    assert xp.count_nonzero(x > 0, axis=0, keepdims=True).shape == (1, 13)


def test_cumulative_results_with_the_initial_value():
    x = xp.asarray([[1, 2, 3], [4, 5, 6]], dtype=xp.int8)
    assert xp.cumulative_sum(x, axis=1, include_initial=True).tolist() == [[0, 1, 3, 6], [0, 4, 9, 15]]
    assert xp.cumulative_prod(x, axis=0, include_initial=True).tolist() == [[1, 1, 1], [1, 2, 3], [4, 10, 18]]
    assert xp.cumulative_sum(x[0, :]).tolist() == [1, 3, 6]
    assert xp.cumulative_sum(xp.zeros((0, 3)), axis=0, include_initial=True).tolist() == [[0.0, 0.0, 0.0]]
    with pytest.raises(tg.ArgumentError, match="cumulative_sum: axis must be given"):
        xp.cumulative_sum(x)


def test_sets():
    values = np.array([[3, 1, 3], [2, 1, 3]], np.int32)
    found = xp.unique_all(xp.asarray(values))
    wanted = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    for field, array in zip(("values", "indices", "inverse_indices", "counts"), wanted, strict=True):
        assert getattr(found, field).tolist() == array.reshape(values.shape if field == "inverse_indices" else -1).tolist()
    large = np.random.default_rng(0).integers(0, 40, 300)
    assert xp.unique_all(xp.asarray(large)).indices.tolist() == np.unique(large, return_index=True)[1].tolist()
    nans = xp.unique_counts(xp.asarray([NAN, 1.0, NAN, -0.0, 0.0]))
    assert nans.counts.tolist() == [2, 1, 1, 1]                 # zeros are equal, NaNs are not
    assert xp.unique_inverse(xp.asarray(7)).inverse_indices.shape == ()
    assert xp.unique_values(xp.asarray([True, False, True])).tolist() == [False, True]


def test_searching_and_indexing():
    x = xp.asarray([[3.0, 1.0, 2.0], [6.0, 5.0, 4.0]])
    assert xp.take(x, xp.asarray([-1, 0]), axis=1).tolist() == [[2.0, 3.0], [4.0, 6.0]]
    assert xp.take(x[0, :], xp.asarray([2, 2])).tolist() == [2.0, 2.0]
    assert xp.take_along_axis(x, xp.argsort(x, descending=True)).tolist() == [[3.0, 2.0, 1.0], [6.0, 5.0, 4.0]]
    with pytest.raises(tg.ArgumentError, match=r"take: axis must be given"):
        xp.take(x, xp.asarray([0]))
    assert [i.tolist() for i in xp.nonzero(x > 3.5)] == [[1, 1, 1], [0, 1, 2]]
    with pytest.raises(tg.ShapeError, match=r"nonzero: takes at least 1 dimension"):
        xp.nonzero(xp.asarray(1.0))
    edges = xp.asarray([1.0, 2.0, 2.0, 3.0])
    assert xp.searchsorted(edges, xp.asarray([[2.0], [9.0]])).tolist() == [[1], [4]]
    assert xp.searchsorted(xp.flip(edges), xp.asarray([2.0]), side="right", sorter=xp.asarray([3, 2, 1, 0])).tolist() == [3]
    assert xp.argsort(xp.asarray([1, 1, 0, 1]), descending=True).tolist() == [0, 1, 3, 2]
    assert xp.where(xp.asarray([True, False]), 1.5, xp.asarray([2, 3], dtype=xp.float64)).dtype == xp.float64


def test_masks_with_a_dimension_of_size_0_select_nothing():
    for shape, mask in (((0, 1), (0, 0)), ((2, 3), (0,)), ((2, 3), (2, 0)), ((2, 3), (0, 3))):
        x = xp.ones(shape)
        assert x[xp.zeros(mask, dtype=xp.bool)].shape == np.ones(shape)[np.zeros(mask, bool)].shape
        x[xp.zeros(mask, dtype=xp.bool)] = 5.0
        assert (x == 1.0).all()
    with pytest.raises(IndexError, match=r"getitem: a boolean mask of shape \(2,\)"):
        xp.ones((3, 2))[xp.ones(2, dtype=xp.bool)]
    with pytest.raises(IndexError, match=r"setitem: a mask of shape \(2,\)"):
        xp.ones((3, 2))[xp.ones(2, dtype=xp.bool)] = 0.0


def test_shapes():
    x = xp.reshape(xp.arange(6), (1, 2, 3))
    assert xp.squeeze(x, 0).shape == xp.squeeze(x, (0,)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"squeeze: dimensions \(1,\) of \(1, 2, 3\) must have size 1"):
        xp.squeeze(x, 1)
    assert xp.concat([x, x], axis=None).shape == (12,)
    assert xp.flip(x, axis=(1, 2)).tolist() == [[[5, 4, 3], [2, 1, 0]]]
    assert xp.flip(x).tolist() == xp.flip(x, axis=(0, 1, 2)).tolist()
    assert xp.roll(x, (1, 1), axis=(1, 2)).tolist() == np.roll(np.arange(6).reshape(1, 2, 3), (1, 1), (1, 2)).tolist()
    assert xp.repeat(xp.asarray([1, 2]), xp.asarray([2, 1])).tolist() == [1, 1, 2]
    assert xp.tile(x, (2, 1)).shape == (1, 4, 3)
    assert [tuple(p.shape) for p in xp.unstack(x, axis=2)] == [(1, 2)] * 3
    assert xp.moveaxis(x, (0, 1), (2, 0)).shape == (2, 3, 1)
    assert isinstance(xp.broadcast_arrays(x, xp.asarray(1)), list)
    assert [g.shape for g in xp.meshgrid(xp.arange(2), xp.arange(3))] == [(3, 2)] * 2
    copied, seen = xp.reshape(x, (6,), copy=True), xp.reshape(x, (-1,), copy=False)
    seen[0] = 100
    assert (int(x[0, 0, 0]), int(copied[0])) == (100, 0)
    assert xp.linspace(0.0, 1.0, 4, endpoint=False).tolist() == [0.0, 0.25, 0.5, 0.75]
    for k in (-10**30, -2, 0, 1, 10**30):
        wanted = np.eye(3, 4, k=max(-9, min(k, 9)))
        assert xp.eye(3, 4, k=k).tolist() == wanted.tolist()
        assert xp.tril(xp.ones((3, 4)), k=k).tolist() == np.tril(np.ones((3, 4)), max(-9, min(k, 9))).tolist()
        assert xp.triu(xp.ones((3, 4)), k=k).tolist() == np.triu(np.ones((3, 4)), max(-9, min(k, 9))).tolist()


def test_clip():
    x = xp.asarray([-2.0, NAN, 3.0])
    np.testing.assert_array_equal(xp.clip(x, -1.0, xp.asarray([5.0, 5.0, NAN])), [-1.0, NAN, NAN])
    np.testing.assert_array_equal(xp.clip(x), x)
    assert xp.clip(x) is not x
    assert xp.clip(xp.asarray([1, 9], dtype=xp.uint8), xp.asarray(3, dtype=xp.uint8), None).dtype == xp.uint8


# ----------------------------------------------------------------------------------------------------------- linear algebra


def test_solve_takes_matrices_unless_the_right_side_has_one_dimension():
    rng = np.random.default_rng(0)
    for a, b in (((3, 3), (3,)), ((7, 3, 3), (3,)), ((3, 3, 3), (3, 3)), ((2, 3, 3), (2, 3, 5)), ((3, 3), (4, 3, 2)),
                 ((2, 1, 3, 3), (5, 3, 1))):
        x, y = rng.normal(size=a) + 5 * np.eye(3), rng.normal(size=b)
        np.testing.assert_allclose(xp.linalg.solve(xp.asarray(x), xp.asarray(y)), np.linalg.solve(x, y), rtol=1e-10)


def test_tolerances_may_be_arrays():
    a = np.random.default_rng(0).normal(size=(2, 5, 3))
    a[1, :, 2] = a[1, :, 1] + 1e-3 * a[1, :, 2]
    rtol = xp.asarray([1e-12, 1e-2], dtype=xp.float64)
    x = xp.asarray(a)
    assert xp.linalg.matrix_rank(x, rtol=rtol).tolist() == [3, 2]
    assert xp.linalg.matrix_rank(x).tolist() == [3, 3]
    np.testing.assert_allclose(xp.linalg.pinv(x, rtol=rtol), np.linalg.pinv(a, rcond=np.array([1e-12, 1e-2])), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(xp.linalg.pinv(x, rtol=1e-2)[1, ...], xp.linalg.pinv(x, rtol=rtol)[1, ...], rtol=1e-9, atol=1e-12)
    z = a + 1j * np.roll(a, 1, 1)
    wanted = np.linalg.pinv(z, rcond=np.array([1e-12, 1e-2]))
    np.testing.assert_allclose(xp.linalg.pinv(xp.asarray(z), rtol=rtol), wanted, rtol=1e-9, atol=1e-12)
    assert xp.linalg.pinv(xp.zeros((2, 0, 3)), rtol=xp.ones(2)).shape == (2, 3, 0)
    assert tg.linalg.matrix_rank(x, atol=tg.tensor(100.0)).tolist() == [0, 0]
    with pytest.raises(tg.ShapeError, match=r"pinv: rtol \(3,\) does not broadcast to the batch of \(2, 5, 3\)"):
        xp.linalg.pinv(x, rtol=xp.ones(3))
    with pytest.raises(tg.ArgumentError, match=r"matrix_rank: rtol must be a number or a tensor, got str"):
        xp.linalg.matrix_rank(x, rtol="small")


def test_contracted_axes_do_not_broadcast():
    assert xp.vecdot(xp.ones((3, 4)), xp.ones((2, 1, 4))).shape == (2, 3)
    with pytest.raises(tg.ShapeError, match=r"vecdot: sizes along axis -1"):
        xp.vecdot(xp.ones((3, 4)), xp.ones((3, 1)))
    assert xp.linalg.cross(xp.ones((5, 3)), xp.ones(3)).shape == (5, 3)
    with pytest.raises(tg.ShapeError, match=r"cross: "):
        xp.linalg.cross(xp.ones((5, 3)), xp.ones(1))


# --------------------------------------------------------------------------------------------- devices, traces, differentiation


def test_inspection():
    info = xp.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    assert xp.ones((1,) * 64).sum().item() == 1.0
    assert info.default_device() is tg.device()
    assert info.default_device() in info.devices()
    assert info.dtypes() == {name: getattr(xp, name) for name in DTYPES.split()}
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert set(info.dtypes(kind=("bool", "complex floating"))) == {"bool", "complex64", "complex128"}
    for device in info.devices():
        for dtype in info.dtypes(device=device).values():
            assert xp.zeros(1, dtype=dtype, device=device).device is device


def numerics(x, y):
    """A little of everything that has a shape known beforehand."""
    z = xp.add(x, xp.astype(xp.mean(y, axis=0, keepdims=True), xp.float64))
    z = xp.where(z > 0, xp.clip(z, None, 1.0), xp.sign(z)) * xp.floor_divide(z, 0.3)
    z = xp.concat([z, xp.cumulative_sum(z, axis=0, include_initial=True)], axis=0)
    z = xp.take_along_axis(z, xp.argsort(z, axis=1, descending=True), axis=1)
    return xp.matmul(z, xp.matrix_transpose(z)), xp.std(z, axis=(0, 1), correction=1.0), xp.linalg.vector_norm(z, axis=1, ord=3)


def test_in_a_trace_and_on_every_device(device):
    rng = np.random.default_rng(0)
    x, y = tg.tensor(rng.normal(size=(13, 7))), tg.tensor(rng.normal(size=(31, 7)).astype(np.float32))
    traced, untraced = tg.trace(numerics)(x, y), numerics(x, y)
    for a, b in zip(traced, untraced, strict=True):
        assert a.dtype == b.dtype == xp.float64
        np.testing.assert_allclose(a, b, rtol=1e-6)            # a mean of float32 is in it


def test_a_traced_functions_number_does_not_promote():
    half = tg.trace(lambda x, s: xp.multiply(x, s) + xp.zeros_like(x))
    assert half(xp.ones(3), 0.5).dtype == xp.float32
    assert half(xp.ones(3), 0.25).tolist() == [0.25] * 3


def test_functions_are_differentiable():
    x = tg.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=tg.float64, requires_grad=True)
    xp.sum(xp.linalg.pinv(xp.linalg.solve(x, xp.eye(2, dtype=xp.float64)), rtol=tg.tensor(1e-9)) * xp.clip(x, -1.0, 2.0)).backward()
    np.testing.assert_allclose(x.grad, [[2.0, -1.0], [1.0, 2.0]], atol=1e-9)          # pinv(inv(x)) is x; the clip stops two gradients


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_unsigned_integers_in_kernels(kernels, name):
    most = np.iinfo(name).max
    a, b = (np.random.default_rng(k).integers(most // 2, most, (9, 33), dtype=name, endpoint=True) for k in range(2))

    def fn(x, y):
        return (x + y, x - y, x * y, x // y, x % y, x & y, x | y, x ^ y, ~x, x << 3, x >> 3, x > y, xp.maximum(x, y), xp.sum(x, axis=0),
                xp.max(x, axis=1), xp.sort(x, axis=1), xp.astype(x, xp.float64), xp.astype(x, xp.int64), xp.argmax(x, axis=0))
    found, (p, q) = tg.trace(fn)(tg.tensor(a), tg.tensor(b)), (a, b)
    wanted = (p + q, p - q, p * q, p // q, p % q, p & q, p | q, p ^ q, ~p, p << 3, p >> 3, p > q, np.maximum(p, q),
              p.sum(0, dtype=np.uint64), p.max(1), np.sort(p, 1), p.astype(float), p.astype(np.int64), p.argmax(0))
    for got, array in zip(found, wanted, strict=True):
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


# ---------------------------------------------------------------------------------------------------------------- libraries


@pytest.mark.slow
def test_libraries():
    """array_api_compat, SciPy and scikit-learn (tests/array_api/array_api_libraries.py), in a process of its own: SciPy reads a switch at
    import."""
    pytest.importorskip("array_api_compat", reason="`make array-api` installs it")
    pytest.importorskip("sklearn")
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(ROOT / "tests/array_api/array_api_libraries.py")]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=os.environ | {"SCIPY_ARRAY_API": "1", "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
