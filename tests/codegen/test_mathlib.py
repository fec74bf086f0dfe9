"""codegen.mathlib: every function against a longer-precision reference, on every edge; integers; Philox."""

from __future__ import annotations

import math
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.codegen.mathlib import integers
from tracegrad.codegen.mathlib import library as mathlib
from tracegrad.runtime.device import devices
from tracegrad.support.philox import philox_numpy
from tracegrad.support.plan import Target

cl = pytest.importorskip("pyopencl")

Array = np.ndarray[Any, Any]
LONG = np.longdouble
BINARY: dict[str, Callable[..., Array]] = {"pow": np.power, "atan2": np.arctan2, "fmin": np.fmin, "fmax": np.fmax, "tg_min": np.minimum,
                                           "tg_max": np.maximum, "copysign": np.copysign, "hypot": np.hypot}
UNARY: dict[str, Callable[..., Array]] = {
    name: getattr(np, name)
    for name in [
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "sin", "cos",
        "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc", "rint", "fabs",
    ]
}
UNARY |= {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "rsqrt": lambda x: 1 / np.sqrt(x), "exp10": lambda x: LONG(10) ** x,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + LONG(0.5)), x),
    "erf": lambda x: np.vectorize(math.erf)(x.astype(np.float64)).astype(LONG),
    "erfc": lambda x: np.vectorize(math.erfc)(x.astype(np.float64)).astype(LONG),
    "exp_nonpositive": lambda x: np.exp(-np.abs(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "softplus": lambda x: np.where(x > 0, x, 0) + np.log1p(np.exp(-np.abs(x))),
    "sign": lambda x: np.nan_to_num(np.sign(x), nan=0.0), "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
}
LIMIT = {"erf": 3.5, "erfc": 5.0, "tan": 3.0, "tanh": 3.0}      # ulp; 2.5 for the others
SCALARS = ["float", "double"]


def operands(dtype: Any, n: int = 4096) -> tuple[Array, Array]:
    """Pairs: random bits, ordinary sizes, near every threshold, and all pairs of special values."""
    rng, info = np.random.default_rng(1), np.finfo(dtype)
    word: Any = np.uint32 if info.bits == 32 else np.uint64
    top = 720 if info.bits == 64 else 105
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 1e10, -1e30, 2.5, -2.5, 8388609, 89.4, -103.98,
                        88.8, 709.8, 710.4, -745.1, -745.2, 128, -150, 1024, -1075, info.max, -info.max, info.tiny,
                        -info.tiny, info.smallest_subnormal, -info.smallest_subnormal, info.eps, 1 + info.eps, 1 - info.eps / 2], dtype)
    parts = [
        rng.integers(0, np.iinfo(word).max, n, dtype=word).view(dtype), rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 2, n),
        rng.uniform(-1.2, 1.2, n), rng.uniform(-top, top, n), np.pi / 2 * rng.integers(-1000, 1000, n),
        1 + rng.standard_normal(n) * 10.0 ** rng.uniform(-info.precision, 0, n),
    ]
    x = np.concatenate([np.asarray(part, dtype) for part in parts])
    y = np.where(rng.random(len(x)) < 0.5, rng.integers(-20, 20, len(x)), rng.permutation(x)).astype(dtype)
    a, b = np.meshgrid(special, special)
    x, y = np.concatenate([x, a.ravel()]), np.concatenate([y, b.ravel()])
    pad = -len(x) % 16
    return np.concatenate([x, x[:pad]]), np.concatenate([y, y[:pad]])


@pytest.fixture(scope="module")
def queue() -> Any:
    cpus = [device for device in devices() if device.kind == "cpu"]
    if not cpus:
        pytest.skip("no OpenCL device")
    pocl = [device for device in cpus if "PoCL" in device.driver] or cpus
    return pocl[-1].queue


def run(queue: Any, ctype: str, calls: dict[str, str], x: Array, y: Array, out: Any = None) -> dict[str, Array]:
    """Each expression of `calls` (in a and b) on the elements of x and y, all kernels in one program."""
    needed: set[str] = set()
    kernels = []
    result_type = ctype if out is None else out
    for name, call in calls.items():
        text, keys = mathlib.translate(call, Target(), ctype)
        needed |= keys
        kernels.append(f"""__kernel void k_{name}(__global const {ctype} *x, __global const {ctype} *y, __global {result_type} *r) {{
    size_t i = get_global_id(0);
    {ctype} a = x[i];
    {ctype} b = y[i];
    r[i] = {text};\n}}""")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = cl.Program(queue.context, mathlib.source(needed, Target()) + "\n".join(kernels)).build()
    lanes = int("".join(c for c in ctype if c.isdigit()) or 1)
    flags, results = cl.mem_flags, {}
    bx, by = (cl.Buffer(queue.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=v) for v in (x, y))
    for name in calls:
        host = np.empty_like(x)
        buffer = cl.Buffer(queue.context, flags.READ_WRITE, host.nbytes)
        getattr(program, "k_" + name)(queue, (len(x) // lanes,), None, bx, by, buffer)
        cl.enqueue_copy(queue, host, buffer)
        results[name] = host
    return results


def ulps(got: Array, want: Array, signed_zero: bool = True) -> Array:
    """The error in units of the last place; inf where the kind of value or the sign of a zero is wrong."""
    dtype = got.dtype
    rounded = want.astype(dtype)
    spacing = np.spacing(np.minimum(np.abs(rounded), np.finfo(dtype).max)).astype(LONG)
    error = np.abs(got.astype(LONG) - want) / spacing
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(np.isfinite(rounded) & np.isfinite(got), error, np.where(same, 0, np.inf))
    wrong_zero = signed_zero & (got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(rounded))
    return np.asarray(np.where(wrong_zero, np.inf, error))


@pytest.mark.parametrize("ctype", [
    "float", "double8", *(pytest.param(c, marks=pytest.mark.long) for c in ("double", "float8", "float16", "double4")),
])
def test_functions_are_accurate_everywhere(queue: Any, ctype: str) -> None:
    x, y = operands(np.float32 if "float" in ctype else np.float64)
    masks = {"isnan", "isinf", "isfinite"}
    calls = {n: f"{n}(a)" for n in UNARY if n not in masks} | {n: f"{n}(a, b)" for n in BINARY}
    if ctype in SCALARS:
        calls |= {n: f"{n}(a)" for n in masks}
    calls["exp_nonpositive"] = "exp_nonpositive(-fabs(a))"         # it is promised
    results = run(queue, ctype, calls, x, y)
    with np.errstate(all="ignore"):
        for name, got in results.items():
            want = BINARY[name](x.astype(LONG), y.astype(LONG)) if name in BINARY else UNARY[name](x.astype(LONG))
            error = ulps(got, np.asarray(want).astype(LONG), name not in ("fmin", "fmax", "tg_min", "tg_max"))
            worst = int(np.argmax(error))
            assert error[worst] <= LIMIT.get(name, 2.5), f"{name}({x[worst]!r}, {y[worst]!r}) = {got[worst]!r}, not {want[worst]!r}"


@pytest.mark.parametrize("ctype", ["float", "float16", "double8"])
def test_exponentials_below_the_smallest_normal_number_are_rounded_once(queue: Any, ctype: str) -> None:
    """And what is 0 by no product that gives such a number, which stalls many CPUs."""
    dtype: Any = np.float32 if "float" in ctype else np.float64
    info = np.finfo(dtype)
    least, zero = int(np.log2(info.tiny)), int(np.log2(info.smallest_subnormal)) - 1
    around = [np.nextafter(dtype(each), dtype(to)) for each in (least, zero, zero * np.log(2), least * np.log(2)) for to in (-1e9, 0)]
    parts = [np.linspace(2.0 * zero, 0, 8192), np.linspace(zero - 2, least + 2, 8192), np.arange(2 * zero, 1), around, [-np.inf, np.nan]]
    x = np.concatenate([np.asarray(part, dtype) for part in parts])
    x = np.concatenate([x, np.zeros(-len(x) % 16, dtype)])
    calls = {name: f"{name}(a)" for name in ("exp", "exp_nonpositive", "exp2", "exp10")}
    for name, got in run(queue, ctype, calls, x, x).items():
        want = LONG(10) ** x.astype(LONG) if name == "exp10" else getattr(np, name.split("_")[0])(x.astype(LONG))
        assert ulps(got, want).max() <= 1.3, name
        assert "tg_scale" not in mathlib.source(mathlib.translate(f"{name}(a)", Target(), ctype)[1], Target())
        if name == "exp2":
            whole = x == np.round(x)
            np.testing.assert_array_equal(got[whole], want[whole].astype(dtype))


@pytest.mark.parametrize("ctype", ["float", "float16"])
def test_erf_is_never_above_one_and_one_where_it_rounds_to_that(queue: Any, ctype: str) -> None:
    """Of every float from where it is 1 - 2^-22 on to where it is 1, and of some beyond."""
    first, last = (int(np.float32(x).view(np.uint32)) for x in (3.6, 4.0))
    x = np.concatenate([np.arange(first, last, dtype=np.uint32).view(np.float32), np.float32([4, 9, 1e19, 1e20, 3e38, np.inf] * 8)])
    x = np.concatenate([x, -x])[: 2 * len(x) // 16 * 16]
    found = run(queue, ctype, {"erf": "erf(a)"}, x, x)["erf"]
    assert np.abs(found).max() == 1
    assert (found == np.copysign(np.float32(1), x))[np.abs(x) > 3.93].all()


@pytest.mark.parametrize("ctype", ["float", "float16", "double8"])
def test_the_cosine_of_a_narrow_angle(queue: Any, ctype: str) -> None:
    """As accurate as that of any, next to the multiples of pi/2, too."""
    dtype = np.float32 if "float" in ctype else np.float64
    near = np.asarray(np.pi / 2 * np.arange(-5, 6), dtype)
    parts = [np.nextafter(near, dtype(-9)), near, np.nextafter(near, dtype(9)), np.linspace(-8, 8, 4096), [0.0, -0.0, np.nan, 1e-30]]
    x = np.concatenate([np.asarray(part, dtype) for part in parts])
    x = np.concatenate([x, np.zeros(-len(x) % 16, dtype)])
    got = run(queue, ctype, {"cos_narrow": "cos_narrow(a)"}, x, x)["cos_narrow"]
    assert ulps(got, np.cos(x.astype(LONG)), True).max() <= 2.5


@pytest.mark.parametrize("ctype", ["float8", "double4", "int8", "uchar"])
def test_the_driver_has_nothing_to_warn_of(queue: Any, ctype: str) -> None:
    """PoCL prints the number of warnings to the user's terminal."""
    real = ctype.startswith(("float", "double"))
    names = ["tg_floordiv", "tg_remainder"] + ([*UNARY, *BINARY] if real else ["tg_fmod", "tg_pow_int", "min", "abs"])
    keys = set().union(*(mathlib.translate(f"{name}({'a, b' if name in BINARY else 'a'})", Target(), ctype)[1] for name in names))
    head = f'#pragma clang diagnostic ignored "-Wpsabi"\n// {uuid.uuid4()}: not from a cache, which would tell nothing\n'
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = head + mathlib.source(keys, Target()) + "__kernel void k(__global int *r) { r[0] = 1; }"
        program = cl.Program(queue.context, text).build()
    log = program.get_build_info(queue.device, cl.program_build_info.LOG)
    assert "warning" not in log


def test_huge_angles(queue: Any) -> None:
    x = np.array([6381956970095103.0 * 2.0**797, 1e22, 1e300, 2.0**1023, 2.0**32, 2.0**512 * 1.7, 1e18, 5.0], np.float64)
    got = run(queue, "double", {"sin": "sin(a)", "cos": "cos(a)"}, x, x)
    # the first is the double nearest to a multiple of pi/2, 2^-61 away: the one place where the reduction loses 3 bits
    np.testing.assert_allclose(got["sin"], [math.sin(v) for v in x], rtol=2e-15)
    np.testing.assert_allclose(got["cos"], [math.cos(v) for v in x], rtol=2e-15)


@pytest.mark.parametrize("ctype", SCALARS)
def test_float_remainder_has_the_divisors_sign(queue: Any, ctype: str) -> None:
    x, y = (v[np.abs(v) < 1e6] for v in operands(np.dtype(ctype if ctype == "double" else "float32")))
    n = min(len(x), len(y)) // 16 * 16
    x, y = x[:n], y[:n]
    y = np.where(np.abs(y) < 1e-3, 1, y).astype(x.dtype)
    got = run(queue, ctype, {"r": "tg_remainder(a, b)", "q": "tg_floordiv(a, b)"}, x, y)
    np.testing.assert_array_equal(got["r"], np.remainder(x, y))
    np.testing.assert_array_equal(got["q"], np.floor_divide(x, y))


@pytest.mark.parametrize(("ctype", "dtype"), [("int", "int32"),
                                         ("long", "int64"), ("uchar", "uint8"), ("char", "int8"), ("uint4", "uint32"),
                                         ("int8", "int32")])
def test_integers_divide_as_numpy(queue: Any, ctype: str, dtype: str) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(2)
    special = np.array([0, 1, 2, 3, 7, info.max, info.min, info.max - 1, info.min + 1], dtype)
    special = np.unique(np.concatenate([special, np.array([-1, -2, -7], np.int64).astype(dtype)]))
    a, b = np.meshgrid(special, special)
    x = np.concatenate([a.ravel(), rng.integers(info.min, info.max, 2000, dtype=dtype)])
    y = np.concatenate([b.ravel(), rng.integers(info.min, info.max, 2000, dtype=dtype) % 11]).astype(dtype)
    pad = -len(x) % 16
    x, y = np.concatenate([x, x[:pad]]), np.concatenate([y, y[:pad]])
    got = run(queue, ctype, {"q": "tg_floordiv(a, b)", "r": "tg_remainder(a, b)", "m": "min(a, b)", "p": "tg_pow_int(a, b)"}, x, y)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got["q"], np.floor_divide(x, y))
        np.testing.assert_array_equal(got["r"], np.remainder(x, y))
        np.testing.assert_array_equal(got["m"], np.minimum(x, y))
        natural = y >= 0
        np.testing.assert_array_equal(got["p"][natural], np.power(x[natural], y[natural]))


def test_philox_known_answers(queue: Any) -> None:
    ones = 0xFFFFFFFF
    vectors = [                                                          # Random123's kat_vectors
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones, ones), (ones, ones, ones, ones), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]
    for key, counter, answer in vectors:
        assert tuple(philox_numpy(key, np.array(counter, np.uint32))) == answer
    kernel = mathlib.source(["tg_philox:uint"], Target()) + """
    __kernel void k(__global uint *r) {
        uint i = get_global_id(0);
        uint a, b, c, d;
        tg_philox(1u, 2u, i, 3u, 4u, 5u, &a, &b, &c, &d);
        r[4 * i] = a; r[4 * i + 1] = b; r[4 * i + 2] = c; r[4 * i + 3] = d;
    }"""
    got = np.empty((512, 4), np.uint32)
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, got.nbytes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cl.Program(queue.context, kernel).build().k(queue, (512,), None, buffer)
    cl.enqueue_copy(queue, got, buffer)
    counters = np.array([[i, 3, 4, 5] for i in range(512)], np.uint32)
    np.testing.assert_array_equal(got, philox_numpy((1, 2), counters))


def test_builtins_stay_where_they_are_fast() -> None:
    gpu = Target(kind="gpu", plain_math=False)
    assert mathlib.translate("exp(x) + fmin(a, b)", gpu, "float") == ("exp(x) + fmin(a, b)", frozenset())
    assert mathlib.translate("tg_min(a, b)", gpu, "float")[1] == {"tg_min:float"}
    assert "log1p(exp(" in mathlib.source({"tg_softplus:float"}, gpu)


def test_names_are_whole_words() -> None:
    text, keys = mathlib.translate("my_exp(x) + s.exp + exp (x) * native_log(x)", Target(), "float8")
    assert text == "my_exp(x) + s.exp + tg_exp (x) * native_log(x)"
    assert keys == {"tg_exp:float8"}


def test_source_is_deterministic_and_minimal() -> None:
    keys = ["tg_tanh:float", "tg_erf:double", "tg_sin:float8"]
    assert mathlib.source(keys, Target()) == mathlib.source(keys[::-1], Target())
    assert mathlib.source([], Target()) == ""
    assert "tg_log" not in mathlib.source(keys, Target())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_larger_number_of_vectors_is_an_instruction_of_its_own(dtype: str) -> None:
    """What a NaN gives is a constant: two blends of the same two vectors are one by the mask of both, which is no maximum for compilers."""
    for name in ("tg_max", "tg_min"):
        text = integers.FLOAT_TEXTS[name]
        assert "|" not in text
        assert "(T)(NAN)" in text
    x = np.array([np.nan, 1, -np.inf, 0, np.nan, 2, -0.0, np.inf] * 4, dtype)
    y = np.array([1, np.nan, -np.inf, -0.0, np.nan, 1, 0.0, np.nan] * 4, dtype)
    step = tg.trace(lambda x, y: (tg.maximum(x, y), tg.minimum(x, y)))
    for found, want in zip(step(tg.tensor(x), tg.tensor(y)), (np.maximum(x, y), np.minimum(x, y)), strict=True):
        np.testing.assert_array_equal(np.asarray(found), want)
