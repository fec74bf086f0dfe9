"""Quotients and remainders of integers by numbers: both ends of each dtype, both signs, positions, in vectors and one by one.

And what PoCL's compiler made of choices among integers by wider ones: nothing, it ended the process.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.runtime.drivers.pocl_conversions import by_halves

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@one_of(3, ("n", "dtype"), product([12, 100], DTYPES))
def test_by_numbers(dtype, n, device):
    info = np.iinfo(dtype)
    a = np.random.default_rng(n).integers(info.min, info.max, n, dtype=dtype, endpoint=True)
    a[:3] = a[-3:] = info.min, info.max, 0
    for k in (1, 3, 10, 100, -7):
        if info.min <= k <= info.max:
            b = np.array(k, dtype)
            least = np.abs(a) if info.min else a           # that of the least number is itself

            @tg.trace
            def f(x):
                i = tg.arange(n)
                return x % k, x // k, i % k, i // k, x.abs() % k, tg.where(x % k == 0, x, x // k)  # noqa: B023

            with np.errstate(over="ignore"):
                wanted = a % b, a // b, np.arange(n) % k, np.arange(n) // k, least % b, np.where(a % b == 0, a, a // b)
            for got, want in zip(f(tg.tensor(a)), wanted, strict=True):
                np.testing.assert_array_equal(got.numpy(), want)


def test_signs_that_are_known_are_not_looked_at(kernels):
    if tg.device().kind == "numpy":
        pytest.skip("kernels")
    f = tg.trace(lambda x: (x * (tg.arange(100) % 3), (x.long() % 7) + tg.arange(100) // 5))
    f(tg.ones(100))
    text = str(f.kernels())
    assert "tg_remainder(" not in text
    assert "tg_floordiv" not in text
    assert "tg_remainder_by(" in text


@one_of(3, ("n", "dtype"), product([64, 100], ["int32", "uint32"]))
def test_a_choice_of_32_bits_by_64(dtype, n, device):
    rng = np.random.default_rng(n)
    a, b = (rng.integers(0, 97, (16, n)).astype(dtype) for _ in range(2))
    c, d = rng.integers(-4, 5, (16, n)), rng.standard_normal((16, n))
    x, y, z, w = map(tg.tensor, (a, b, c, d))
    every = np.arange(n) % 3 == 0
    for f, want in (
        (lambda x, y, z, w: tg.where(z == 3, x, y).sum(-1), np.where(c == 3, a, b).sum(-1)),
        (lambda x, y, z, w: tg.where(z % 3 == 0, x, y).long(), np.where(c % 3 == 0, a, b)),
        (lambda x, y, z, w: tg.where(z * z > 4, x.long(), y.long()), np.where(c * c > 4, a, b)),
        (lambda x, y, z, w: tg.where(w > 0, x.long(), y.long()), np.where(d > 0, a, b)),
        (lambda x, y, z, w: tg.where(tg.arange(n) % 3 == 0, x, x.roll(1, 1)).cumsum(-1), np.where(every, a, np.roll(a, 1, 1)).cumsum(-1)),
        (lambda x, y, z, w: tg.where(z == 0, x, x.roll(1, 1)).double(), np.where(c == 0, a, np.roll(a, 1, 1))),
    ):
        np.testing.assert_array_equal(tg.trace(f)(x, y, z, w).numpy(), want)


def test_conversions_by_halves():
    """Between 32 and 64 bits, in wide vectors; those in others too; nothing else."""
    text = "a = __builtin_convertvector(b ? (c) : d, long4) + __builtin_convertvector(e, float8);\nlong8 g;"
    assert by_halves(text) == text
    text = "f = __builtin_convertvector(-(__builtin_convertvector(m, int16) & 1), long16); /* __builtin_convertvector( */"
    head, _, body = by_halves(text).partition("\n#line 1\n")
    assert body == "f = tg_to_long16(-(tg_to_int16(m) & 1)); /* __builtin_convertvector( */"
    assert "tg_to_long8(int8 x) { return (long8)(__builtin_convertvector(x.lo, long4), __builtin_convertvector(x.hi, long4)); }" in head
    assert "long8 tg_to_long8(short8 x) { return __builtin_convertvector(x, long8); }" in head
    assert "int16 tg_to_int16(ulong16 x) { return (int16)(tg_to_int8(x.lo), tg_to_int8(x.hi)); }" in head


@one_of(4, ("dtype", "narrow", "n"), product(["int16", "uint16", "int8", "int32", "int64"], ["int8", "uint8"], [12, 33, 100]))
def test_a_choice_of_more_bits_by_fewer(dtype, narrow, n, device):
    """A mask of 8 bits is made one of 16: C has no vector of shorts beside an int."""
    rng = np.random.default_rng(n)
    a, c = rng.integers(0, 97, (5, n)).astype(dtype), rng.integers(0, 3, (5, n)).astype(narrow)
    f = tg.trace(lambda x, z: (tg.where(z < 1, x, 3), (z > 1) * x, tg.where(z == 2, x, x.flip(1)).sum(-1)))
    for got, want in zip(f(tg.tensor(a), tg.tensor(c)), (
            np.where(c < 1, a, 3), (c > 1) * a, np.where(c == 2, a, a[:, ::-1]).astype("int64").sum(-1)), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
