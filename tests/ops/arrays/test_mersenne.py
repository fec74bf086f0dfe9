"""torch's generator (tracegrad/support/mersenne): words are made ahead, and what is drawn is the stream's all the same."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.execute import policy
from tracegrad.nn import functional as F
from tracegrad.runtime.buffer import held
from tracegrad.support import random_state
from tracegrad.support.mersenne import generator
from tracegrad.support.mersenne.generator import Mersenne

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
DRAWS = {
    "uniform": lambda m, n: m.uniform((n,), F32),
    "range": lambda m, n: m.uniform((n,), F32, -2.0, 3.0),
    "doubles": lambda m, n: m.doubles(n),
    "halves": lambda m, n: m.uniform((n,), np.dtype(np.float16)),
    "normal": lambda m, n: m.normal((n,), F32),
    "scaled": lambda m, n: m.normal((n,), F32, 1.0, 0.02),
    "normal doubles": lambda m, n: m.normal((n,), F64),
    "one by one": lambda m, n: m.normals(n),
    "integers": lambda m, n: m.integers((n,), -3, 90),
    "wide": lambda m, n: m.integers((n,), 0, 2**40),
    "order": lambda m, n: m.permutation(n),
    "events": lambda m, n: m.bernoulli((n,), 0.3),
    "times": lambda m, n: m.exponential((n,), 2.0),
    "state": lambda m, n: m.save(),
    "double": lambda m, n: np.array([m.double() for _ in range(n % 5)]),
}
COUNTS = (0, 1, 2, 7, 15, 16, 17, 48, 64, 100, 128, 700, 5000)


def drawn(seed: int) -> list[tuple[str, np.ndarray]]:
    """Draws of a few kinds and sizes by turns: for some time the same ones, then others."""
    choose, m, found = np.random.default_rng(seed), Mersenne(seed), []
    for _ in range(12):
        names = choose.choice([*DRAWS], 3)
        counts = choose.choice(COUNTS, 3)
        for k in range(int(choose.integers(1, 40))):
            name, count = names[k % 3], int(counts[k % 3])
            found.append((f"{name} {count}", np.array(DRAWS[name](m, count))))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_what_is_drawn_does_not_depend_on_words_made_ahead(seed, monkeypatch):
    ahead = drawn(seed)
    monkeypatch.setattr(generator, "_MANY", 0)
    for (name, found), (_, wanted) in zip(ahead, drawn(seed), strict=True):
        assert found.dtype == wanted.dtype, name
        assert found.tobytes() == wanted.tobytes(), name


def test_a_saved_state_goes_on_where_it_was_saved():
    m = Mersenne(3)
    for _ in range(9):
        m.uniform((64,), F32)
    other = Mersenne(0)
    other.load(m.save())
    assert [m.normal((64,), F32).tobytes() for _ in range(9)] == [other.normal((64,), F32).tobytes() for _ in range(9)]


class Counting:
    """A generator of words that counts how often it is asked for some."""

    def __init__(self, words: np.random.MT19937) -> None:
        self.words, self.calls = words, 0

    def random_raw(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        return self.words.random_raw(*args, **kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(self.words, name)


@pytest.mark.parametrize("name", ["uniform", "doubles", "normal", "one by one", "integers", "events", "times"])
def test_draws_of_few_take_words_in_few_calls(name):
    m = Mersenne(0)
    m._words = Counting(m._words)
    for _ in range(200):
        DRAWS[name](m, 16)
    assert m._words.calls < 20


def test_what_was_drawn_nobody_else_has():
    """An array that is handed out is no part of those ahead."""
    m, again = Mersenne(1), Mersenne(1)
    for _ in range(20):
        for name in ("uniform", "range", "normal", "events", "times", "halves"):
            found = DRAWS[name](m, 32)
            found[...] = 0
        wanted = [DRAWS[name](again, 32) for name in ("uniform", "range", "normal", "events", "times", "halves")]
    for name, b in zip(("uniform", "range", "normal", "events", "times", "halves"), wanted, strict=True):
        assert b.any(), name
    assert m.save().tobytes() == again.save().tobytes()


@pytest.mark.recall
def test_dropout_of_few_numbers_is_numpys(monkeypatch):
    """Under torch's stream the mask is an array that NumPy holds, and the call is done when it is called."""
    if tg.device().kind == "numpy" or not tg.device().in_host_memory:
        pytest.skip("all is deferred on this device")
    monkeypatch.setattr(tg.config, "eager", True)
    monkeypatch.setattr(random_state, "_torchs", [Mersenne])
    x = tg.ones(40)
    x.numpy()
    for _ in range(4):
        before, out = policy.eager_calls[0], F.dropout(x, 0.5)
    assert policy.eager_calls[0] > before
    assert held(out._n.value) is not None
    assert {*out.tolist()} == {0.0, 2.0}
