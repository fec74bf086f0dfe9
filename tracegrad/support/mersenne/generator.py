"""The random numbers of torch's CPU generator: a Mersenne Twister, and what torch makes of its words. Start at `Mersenne`.

Programs that are written for torch print with them what they printed with torch (`tracegrad.torch_api`). The numbers are made on the
host, one word after the other, so everything else draws from Philox (`philox.py`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from math import cos, log1p, pi, prod, sin, sqrt
from typing import Any

import numpy as np

from tracegrad.support import dtypes

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
_WORDS = 624
# What torch.get_rng_state() gives, as fields.
_SAVED = np.dtype([("seed", "u8"), ("left", "i4"), ("seeded", "i4"), ("next", "u8"), ("words", "u8", _WORDS), ("x", "f8"), ("y", "f8"),
                   ("rho", "f8"), ("valid", "i4"), ("pad", "i4"), ("sample", "f4"), ("sample_valid", "i4")])
_WIDE_RANGE = 1 << 28                   # from here on torch takes 64 bits for an integer
_SHORT = 200                            # up to which Python exchanges elements faster than arrays find all exchanges
_LOW_24, _UNIT_24 = np.uint64((1 << 24) - 1), np.float32(2.0**-24)       # bits of a word that a float32 is made of, and what they count
_LOW_53, _HALF_WORD, _ZERO = np.uint64((1 << 53) - 1), np.uint64(32), np.float32(0)
_MANY = 1 << 12                         # words that are made ahead at most; a draw of more makes its own
_NONE = np.zeros(0, np.uint64)
_LEFT, _PLACES = np.arange(_SHORT, 1, -1, dtype=np.uint64), np.arange(_SHORT, dtype=np.uint64)
_lock = threading.RLock()


class Mersenne:
    """torch's CPU generator, seeded. Arrays are drawn in the order of their elements.

    Words are made ahead, as many as draws of few took in a row: NumPy takes as long for few as for some. So are the numbers that draws make
    of them, for each place where a draw may begin.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._words = np.random.MT19937()
        self._words._legacy_seeding(seed & 0xFFFFFFFF)
        self._normal: float | None = None                       # normal numbers are made in pairs: the one that was not asked for yet
        self._forget()

    def _forget(self) -> None:
        """There are no words ahead."""
        self._ahead, self._at, self._row = _NONE, 0, 0          # the words; the place of the next one; how many were drawn in a row
        self._before = b""                                      # the state before the last ones of these, and how many are before those
        self._rest = 0
        self._made: dict[Any, Array] = {}                       # by what makes numbers of words, those of the words ahead

    def raw(self, count: int) -> Array:
        """`count` words of 32 bits, as uint64. Nobody writes them."""
        return self._drawn(count)

    def _drawn(self, count: int, make: Callable[[Array], Array] | None = None, step: int = 1) -> Array:
        """`count` words, or what `make` makes of them: its last dimension has a number for each word. Nobody writes it.

        step: where those may begin of which `make` makes something, from the first word on.
        """
        with _lock:
            at, end = self._at, self._at + count
            if end > len(self._ahead):
                if count > _MANY:
                    words = self._words.random_raw(end - len(self._ahead))
                    if at < len(self._ahead):
                        words = np.concatenate([self._ahead[at:], words])
                    self._forget()
                    return words if make is None else make(words)
                at, end = self._go_on(count), count
            self._at = end
            if make is None:
                return self._ahead[at:end]
            first = at % step
            found = self._made.get((make, first))
            if found is None:
                found = self._made[make, first] = make(self._ahead[first:])
            return found[..., at - first:end - first]

    def _go_on(self, count: int) -> int:
        """Have `count` words ahead, and some more where few were drawn before; the place of the first."""
        rest, row = self._ahead[self._at:], self._row
        self._rest = len(rest)
        missing = max(min(row, _MANY), count) - self._rest
        self._before = bytes(self._place()) if missing > count - self._rest else b""
        words = self._words.random_raw(missing)
        self._ahead = np.concatenate([rest, words]) if self._rest else words
        self._row, self._made = row + len(self._ahead), {}
        return 0

    def _settle(self) -> None:
        """Have no words ahead: the next one is the one behind those that were drawn."""
        if self._at < len(self._ahead):
            self._place()[:] = self._before
            self._words.random_raw(self._at - self._rest, output=False)
        self._forget()

    def _place(self) -> Any:
        """The memory of the state, which is copied in a 60th of the time that `state` takes."""
        return (ctypes.c_char * (4 * _WORDS + 4)).from_address(self._words.ctypes.state_address)

    def long(self, count: int) -> Array:
        """`count` words of 64 bits."""
        pairs = self.raw(2 * count)
        found: Array = pairs[0::2] << _HALF_WORD
        found |= pairs[1::2]
        return found

    def doubles(self, count: int) -> Array:
        """Uniform in [0, 1), float64. Nobody writes them."""
        if 2 * count <= _MANY:
            return self._drawn(2 * count, _doubles)[::2]
        words = self.long(count)
        words &= _LOW_53
        return words * 2.0**-53

    def double(self) -> float:
        """One of `doubles`."""
        return float(self._drawn(2, _doubles)[0])

    def uniform(self, shape: Shape, dtype: Any, low: float = 0.0, high: float = 1.0) -> Array:
        """Uniform in [low, high)."""
        count = prod(shape)
        if dtype == dtypes.float64:
            return (self.doubles(count) * (high - low) + low).reshape(shape)
        unit = self._drawn(count, _units)
        if low != 0.0 or high != 1.0:
            first = np.float32(low)
            unit = _fused(unit, float(np.float32(high) - first), float(first))
        elif count <= _MANY:
            unit = unit.copy()                                  # a part of those ahead
        if dtype == dtypes.float32:
            return unit.reshape(shape)
        out = unit.astype(dtype)
        if dtypes.is_half(dtype):                               # rounding reaches the end, which is left out
            out[out == np.asarray(high, dtype)] = low
        return out.reshape(shape)

    def normal(self, shape: Shape, dtype: Any, mean: float = 0.0, std: float = 1.0) -> Array:
        """Normal numbers, by Box and Muller: 16 and more as the cosines of eight angles and then their sines, fewer in pairs of float64."""
        count = prod(shape)
        if count < 16:
            return np.array([x * std + mean for x in self._few_normals(count)], dtype).reshape(shape)
        half = dtype != dtypes.float32 and dtypes.is_half(dtype)
        kind = np.float32 if half else dtype.type
        rest = count % 16                                       # the last 16 are drawn anew
        words = (count - rest if half else count) + (16 if rest else 0)
        if words <= _MANY and kind is np.float32 and not rest:
            out = self._drawn(words, _blocks, 16).copy()
        elif words <= _MANY and kind is np.float32:
            both = self._drawn(words, _normals)
            out = np.concatenate([_in_blocks(both[:, :count - rest])[:count - 16], both[:, -16:-8].reshape(-1)])
        else:
            drawn = self.uniform((words,), np.dtype(kind))
            out = _box_muller(np.concatenate([drawn[:count - rest], drawn[-16:]]) if rest else drawn)
            out = np.concatenate([out[:count - 16], out[-16:]]) if rest else out
        if kind is not np.float32:
            out = out * kind(std) + kind(mean)
        elif mean:
            out = _fused(out, float(np.float32(std)), float(np.float32(mean)))
        elif std != 1.0 or words > _MANY:
            out *= np.float32(std)
            out += _ZERO                                        # (which makes 0.0 of -0.0)
        return (out.astype(dtype) if half else out).reshape(shape)

    def truncated(self, shape: Shape, dtype: Any, mean: float, std: float, low: float, high: float) -> Array:
        """Normal numbers from low to high: all are drawn again until none lies outside."""
        least, most = np.asarray(low, dtype), np.asarray(high, dtype)
        out = self.normal(shape, dtype, mean, std)
        while (outside := (out < least) | (out > most)).any():
            out = np.where(outside, self.normal(shape, dtype, mean, std), out)
        return out

    def one_normal(self) -> float:
        """A normal number of float64: they are made in pairs."""
        found, self._normal = self._normal, None
        if found is None:
            found, self._normal = _normal_pair(self.double(), self.double())
        return found

    def _few_normals(self, count: int) -> list[float]:
        """`count` numbers of `one_normal`."""
        found = [self.one_normal()] if count and self._normal is not None else []
        drawn = self.doubles(-(-(count - len(found)) // 2) * 2).tolist()
        for u, v in zip(drawn[::2], drawn[1::2], strict=True):
            found += _normal_pair(u, v)
        if len(found) > count:
            self._normal = found.pop()
        return found

    def normals(self, count: int) -> Array:
        """Normal numbers of float64 one by one, as torch's log_normal_ and its gamma numbers take them."""
        return np.array(self._few_normals(count))

    def integers(self, shape: Shape, low: int, high: int) -> Array:
        """Integers from low to high - 1, as int64."""
        count, span = prod(shape), high - low
        words = self.long(count) if span >= _WIDE_RANGE else self.raw(count)
        return ((words % np.uint64(span)).astype(np.int64) + low).reshape(shape)

    def any_integers(self, shape: Shape, dtype: Any) -> Array:
        """Integers from 0 to the largest that the dtype holds, with all below it."""
        most = 1 if dtype == np.bool_ else np.iinfo(dtype).max if dtype.kind in "ui" else 2 ** (dtypes.finfo(dtype).nmant + 1)
        count = prod(shape)
        words = self.long(count) if dtype.itemsize == 8 else self.raw(count)
        found: Array = (words % np.uint64(int(most) + 1)).astype(np.int64)
        return found.astype(dtype).reshape(shape)

    def permutation(self, n: int) -> Array:
        """0 ... n - 1 in a random order (Fisher and Yates, from the first place on)."""
        words = self.raw(max(n - 1, 0))
        if n > _SHORT:
            return exchanged((words % np.arange(n, 1, -1, dtype=np.uint64)).astype(np.int64))
        order = list(range(n))
        for i, step in enumerate((words % _LEFT[_SHORT - n:] + _PLACES[:n - 1]).tolist() if n > 1 else []):
            order[i], order[step] = order[step], order[i]
        return np.array(order, np.int64)

    def bernoulli(self, shape: Shape, p: float) -> Array:
        """Whether each of float64's uniform numbers is below p."""
        return (self.doubles(prod(shape)) < p).reshape(shape)

    def exponential(self, shape: Shape, lambd: float = 1.0) -> Array:
        """Exponential numbers, as float64."""
        return (-1.0 / lambd * np.log1p(-self.doubles(prod(shape)))).reshape(shape)

    def choices(self, weights: Array, count: int) -> Array:
        """`count` places for each row of weights, drawn with replacement."""
        total = np.cumsum(weights, -1, dtype=weights.dtype)
        total = (total / total[..., -1:]).reshape(-1, weights.shape[-1])
        drawn = self.doubles(len(total) * count).reshape(len(total), count)
        found = [np.searchsorted(row.astype(np.float64), u) for row, u in zip(total, drawn, strict=True)]
        places: Array = np.minimum(np.array(found, np.int64), weights.shape[-1] - 1)
        return places.reshape(*weights.shape[:-1], count)

    def save(self) -> Array:
        """The state as torch writes it: 5056 bytes."""
        with _lock:
            self._settle()
        now: Any = self._words.state["state"]
        out = np.zeros((), _SAVED)
        place = int(now["pos"])
        out["seed"], out["left"], out["seeded"], out["next"] = self.seed & (2**64 - 1), _WORDS + 1 - place, 1, place % _WORDS
        out["words"] = now["key"]
        out["valid"], out["y"] = self._normal is not None, self._normal or 0.0
        return np.frombuffer(out.tobytes(), np.uint8)

    def load(self, saved: Array) -> None:
        """Go on where `save` was called, here or in torch."""
        found = np.frombuffer(np.ascontiguousarray(saved, np.uint8).tobytes(), _SAVED)[0]
        self.seed = int(found["seed"])
        self._words.state = {"bit_generator": "MT19937",
                             "state": {"key": found["words"].astype(np.uint32), "pos": _WORDS + 1 - int(found["left"])}}
        self._forget()
        self._normal = float(found["y"]) if found["valid"] else None


def exchanged(steps: Array) -> Array:
    """0 ... n - 1 after each place i but the last, in turn, was exchanged with the one `steps[i]` behind it, all at once. Shape (n,).

    Before exchange i the place i holds what the latest exchange with it brought, and that is what the place of that exchange held then: a
    chain that ends at a place nobody exchanged with. Chains are some log n long, so a few doublings of their steps find all ends.
    """
    n = len(steps) + 1
    here = np.arange(n)
    before, there = here[:-1], here[:-1] + steps
    held = here.copy()
    moved = steps.nonzero()[0]
    held[there[moved]] = moved                              # (of equal places the last assignment stays)
    while not ((further := held[held]) == held).all():
        held = further
    order = held.copy()                                     # (the last place gets what it holds at the end)
    order[:-1] = there
    bits = n.bit_length()
    exchanges = np.sort(there << bits | before)             # of each place, one behind the other
    places, exchanges = exchanges >> bits, exchanges & ((1 << bits) - 1)
    again = (places[1:] == places[:-1]).nonzero()[0]
    order[exchanges[again + 1]] = held[exchanges[again]]    # the place holds what the exchange before this one put there
    return order


def _box_muller(uniform: Array) -> Array:
    """Normal numbers with mean 0 and deviation 1 of uniform ones, a multiple of 16, each step in their own dtype."""
    kind = uniform.dtype.type
    if kind is np.float32:
        chunks = [uniform[at:at + _CHUNK].reshape(-1, 2, 8) for at in range(0, len(uniform), _CHUNK)]
        parts = [_box_muller32(pairs[:, 0].reshape(-1), pairs[:, 1].reshape(-1)).reshape(2, -1, 8) for pairs in chunks]
        return np.concatenate([part.transpose(1, 0, 2).reshape(-1) for part in parts])
    pairs = uniform.reshape(-1, 2, 8)
    radius = np.sqrt(kind(-2) * np.log(kind(1) - pairs[:, 0]))
    angle = kind(2 * np.pi) * pairs[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)


def _normal_pair(u: float, v: float) -> tuple[float, float]:
    """Two normal numbers of float64 of two uniform ones."""
    radius, angle = sqrt(-2.0 * log1p(-v)), 2.0 * pi * u
    return radius * cos(angle), radius * sin(angle)


# What `Mersenne._drawn` makes of words: a number for each, which only those use that begin there.

def _units(words: Array) -> Array:
    """Uniform in [0, 1), float32."""
    unit = (words & _LOW_24).astype(np.float32)
    unit *= _UNIT_24
    return unit


def _doubles(words: Array) -> Array:
    """Uniform in [0, 1), float64: of a word and the next one."""
    pairs = words << _HALF_WORD
    pairs[:-1] |= words[1:]
    pairs &= _LOW_53
    return pairs * 2.0**-53


def _normals(words: Array) -> Array:
    """Normal numbers of float32 with mean 0 and deviation 1, one below the other: of a word and the eighth one after it."""
    unit = _units(words)
    found = _box_muller32(unit, np.concatenate([unit[8:], unit[:8]]))
    found += _ZERO                                      # (which makes 0.0 of -0.0)
    return found


def _blocks(words: Array) -> Array:
    """Those of each 16 words from the first one on, as torch has them."""
    found = _box_muller(_units(words[:len(words) // 16 * 16]))
    found += _ZERO
    return found


def _in_blocks(both: Array) -> Array:
    """Those of `_normals` as torch has them: of each 16 words the eight of the first row, and those of the second one."""
    return both.reshape(2, -1, 2, 8)[:, :, 0].transpose(1, 0, 2).reshape(-1)


# In float32 torch computes logarithm, sine and cosine by the polynomials of the Cephes library (S. Moshier), with fused multiply-adds. They
# are computed the same way here, so that the bits are torch's.

_CHUNK = 1 << 14                                        # numbers whose intermediate results stay in the cache


def _single(*values: float) -> tuple[float, ...]:
    """The values as float32 has them."""
    return tuple(float(np.float32(v)) for v in values)


_LOG = _single(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1,
               -2.4999993993e-1, 3.3333331174e-1)
_SIN = _single(-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = _single(2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_SIN_COS = tuple(np.array(pair).reshape(2, 1) for pair in zip(_SIN, _COS, strict=True))
_QUARTER_PI = _single(-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)        # in three parts, negative
_HALF_ROOT, _SIGN = np.float32(0.7071067811865476).view(np.int32), np.int32(-2**31)           # their bits


def _fused(a: Array, b: float, c: float) -> Array:
    """a * b + c of float32, rounded once. The numbers are of float32, too."""
    found = a.astype(np.float64)
    found *= b
    found += c
    return found.astype(np.float32)


def _polynomial(wide: Array, factors: Any, shape: Shape) -> tuple[Array, Array]:
    """That of float32, which `wide` has in float64, by Horner's rule: each step is rounded once. And an array of float64 to go on with.

    Factors with dimensions: a polynomial for each of the first one.
    """
    narrow, found, y = np.empty(shape, np.float32), np.empty(shape), factors[0]
    for c in factors[1:-1]:
        np.multiply(y, wide, found)
        found += c
        narrow[...] = found
        found[...] = narrow
        y = found
    np.multiply(y, wide, found)
    found += factors[-1]
    narrow[...] = found
    return narrow, found


# What follows works in float32 where no product is rounded, or nothing is added to one: there, two operations are a fused one. Each call
# of NumPy's takes as long as a thousand numbers, so results are written over what is done with.


def _log(x: Array) -> Array:
    """The natural logarithm of float32 above 0, a vector."""
    bits = x.view(np.int32)
    exponent = bits - _HALF_ROOT                        # x = m * 2 ** exponent with m from sqrt(1/2) up to sqrt(2)
    exponent >>= 23
    x = (bits - (exponent << 23)).view(np.float32)
    x -= np.float32(1)
    e, z = exponent.astype(np.float32), x * x
    y, wide = _polynomial(x.astype(np.float64), _LOG, x.shape)
    y *= x
    wide[...] = y
    wide *= z
    y[...] = e
    y *= np.float32(-2.12194440e-4)
    wide += y
    y[...] = wide
    z *= np.float32(0.5)
    y -= z
    y += x
    e *= np.float32(0.693359375)                        # (355 / 512: exact)
    y += e
    return y


def _sin_cos(x: Array) -> Any:
    """Sine and cosine, one below the other, of float32 that is not negative, a vector."""
    octant = (x * np.float32(1.27323954473516)).astype(np.int32)
    octant += 1
    octant &= ~1
    places, (first, second, third) = octant.astype(np.float32), _QUARTER_PI
    x = x + places * np.float32(first)                  # (what has few bits: exact)
    x += places * np.float32(second)
    rest = octant * third
    rest += x
    given = np.empty((2, len(x)), np.float32)           # x, and its square
    given[0] = rest
    np.multiply(given[0], given[0], given[1])
    wide = given.astype(np.float64)
    y, found = _polynomial(wide[1], _SIN_COS, given.shape)
    y *= given[1]
    found[...] = y
    found *= wide
    given[1] *= np.float32(-0.5)
    found += given
    y[...] = found
    y[1] += np.float32(1)
    bits = y.view(np.int32)
    swapped = octant << 30                              # all bits, where sine and cosine change places
    swapped >>= 31
    out = bits ^ ((bits[0] ^ bits[1]) & swapped)
    octant <<= 29
    out[0] ^= octant & _SIGN
    octant += np.int32(2 << 29)
    out[1] ^= octant & _SIGN
    return out.view(np.float32)


def _box_muller32(u: Array, v: Array) -> Array:
    """Normal numbers with mean 0 and deviation 1 of pairs of uniform ones: by the cosines of v, and below those by its sines."""
    radius = _log(np.float32(1) - u)
    radius *= np.float32(-2)
    np.sqrt(radius, radius)
    found: Array = _sin_cos(np.float32(2 * np.pi) * v)
    found *= radius
    return found[::-1]
