"""Lists that Python loops fill, stacked: numbers, rows and columns, of few and of many steps, alone and in context; for all targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.support.tuning import Tuning


def numbers(x: Any, steps: int) -> Any:
    """A discounted sum from the end, as reinforcement learning writes it."""
    found: list[Any] = []
    total = tg.zeros((), dtype=x.dtype)
    for t in reversed(range(steps)):
        total = x[0, t] + 0.9 * total
        found.insert(0, total)
    return tg.stack(found)


def averages(x: Any, steps: int) -> Any:
    """A moving average of every row: the columns of a matrix."""
    found = [x[:, 0]]
    for t in range(1, steps):
        found.append(0.3 * x[:, t] + 0.7 * found[-1])
    return tg.stack(found, 1)


def states(x: Any, steps: int) -> Any:
    """The states of a simulation: the rows of a matrix."""
    found, state = [], x[:, 0]
    for _ in range(min(steps, 12)):
        state = state + 0.1 * tg.sin(state)
        found.append(state)
    return tg.stack(found)


def branching(x: Any, steps: int) -> Any:
    """Pieces of several lengths, one of them read twice, and a number among them."""
    a, b = x[0, :steps], x[-1, : steps // 2 + 1].exp()
    return tg.cat([a[:1], b * 2, a[-1:] + b[:1], b, x.sum().reshape(1), a.flip(0)])


PROGRAMS: dict[str, Callable[[Any, int], Any]] = {f.__name__: f for f in (numbers, averages, states, branching)}
CONTEXT: dict[str, Callable[[Any], Any]] = {
    "alone": lambda y: y,
    "summed": lambda y: (y * y).sum(-1),
    "of columns": lambda y: y.sum(0) + y.amax(0),
    "softmax": lambda y: y.softmax(-1),
    "padded": lambda y: tg.nn.functional.pad(y, (2, 3)).roll(1, -1),
    "stacked again": lambda y: tg.stack([y, y.cos(), y * 2, y + 1], -1),
}


CASES = [*((name, steps) for name in PROGRAMS for steps in (2, 3, 4, 7, 13, 16, 33)), ("numbers", 64), ("numbers", 65)]


@pytest.mark.long
@pytest.mark.parametrize(("name", "steps"), CASES)
def test_kernels_compute_what_the_interpreter_does(name: str, steps: int, on_numpy: None) -> None:
    rng = np.random.default_rng(steps)
    choice = steps + 5 * list(PROGRAMS).index(name)
    for number, (context, around) in list(enumerate(CONTEXT.items()))[choice % 3::3]:
        dtype = "float64" if (number + steps) % 3 else "float32"
        x = tg.tensor(rng.normal(size=(1 + (7 * number + steps) % 37, steps)).astype(dtype), requires_grad=True)

        @tg.trace
        def step(x: Any, around: Any = around) -> Any:
            y = around(PROGRAMS[name](x, steps))
            g, = tg.autograd.grad((y * y.detach().cos()).sum(), x, create_graph=True)
            return y, g

        tuning = Tuning(stacked_columns=(0, 5, 64)[(steps + number) % 3], max_again=(0, 12)[number % 2]) if number else None
        targets = dict(list(TARGETS.items())[(choice + number // 3) % 3::3])
        with Checked(targets, tuning=tuning, slack=8.0) as checked:
            step(x)
        assert checked.count, context


def test_numbers_are_computed_once_and_stored_one_by_one() -> None:
    """Thirty numbers are some sixty lines, not one branch of a chain of tests, in vectors, for each of them (3,000 lines)."""
    values = np.random.default_rng(0).normal(size=(1, 30))
    x = tg.tensor(values)
    f = tg.trace(lambda x: numbers(x, 30))
    wanted, total = np.zeros(30), 0.0
    for t in reversed(range(30)):
        total = wanted[t] = values[0, t] + 0.9 * total
    np.testing.assert_allclose(f(x).numpy(), wanted, rtol=1e-12)
    text = str(f.kernels())
    assert "?" not in text
    assert text.count("0.9 *") == 30
    assert text.count("\n") < 130


def median(x: Any) -> Any:
    """Of nine neighbours."""
    return tg.stack([x[i:20 + i, j:20 + j] for i in range(3) for j in range(3)]).sort(0)[0][4]


def test_what_a_gather_reads_of_a_list_is_put_together_first() -> None:
    """Not looked for in each part for every lane: the median was 250 lines that took a driver 0.7 s."""
    values = np.random.default_rng(0).normal(size=(22, 23)).astype("float32")
    f = tg.trace(median)
    wanted = np.sort(np.stack([values[i:20 + i, j:20 + j] for i in range(3) for j in range(3)]), 0)[4]
    np.testing.assert_array_equal(np.asarray(f(tg.tensor(values))), wanted)
    assert "inside" not in str(f.kernels())


def test_the_same_on_all_targets(on_numpy: None) -> None:
    with Checked(TARGETS) as checked:
        tg.trace(median)(tg.tensor(np.random.default_rng(0).normal(size=(22, 23))))
    assert checked.count


def test_few_elements_of_a_long_list_are_read_where_they_are() -> None:
    xs = [tg.arange(n, n + 4000.0) for n in range(3)]
    f = tg.trace(lambda i, *xs: tg.cat(xs)[i])
    np.testing.assert_array_equal(np.asarray(f(tg.tensor([5, 4003, 11999]), *xs)), [5.0, 4.0, 4001.0])
    assert "concat_k" not in str(f.kernels())
