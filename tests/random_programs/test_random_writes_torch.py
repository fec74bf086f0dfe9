"""Random programs that write through views, untraced, traced and mapped, as torch does them."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.random_programs.random_writes import given, run, statements

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")
pytestmark = pytest.mark.slow
OVERLAP = "one memory location"             # which torch sees where a stride is 0 only, tracegrad in all views


def drawn(seed, most):
    """A program that torch can run, and the arrays that it begins with."""
    arrays = given(seed)

    def made(line, t):
        exec(line, {"T": torch, "t": t})
        for x in t:
            x.detach().numpy()          # raises where a write has spoilt a view

    return statements(seed, [torch.tensor(a, requires_grad=True) * 1.0 for a in arrays], made, most), arrays


def same(found, wanted):
    return found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-9, atol=1e-11, equal_nan=True)


def scalar(T, tensors):
    return sum((x * T.cos(x)).sum() for x in tensors)


def beside(lines, inputs):
    """What torch makes of a program, after a backward; None where it refuses: what was saved and then written (tracegrad keeps the values),

    or, in the backward only, what lies over itself.
    """
    try:
        made = run(torch, lines, inputs)
        scalar(torch, [y for y in made if y.requires_grad]).backward()
    except RuntimeError as error:
        if any(why in str(error) for why in ("modified inplace", "modified by an inplace", "a single memory location", "a leaf Variable")):
            return None
        raise
    return made


def gradients(inputs):
    return [np.zeros(tuple(x.shape)) if x.grad is None else x.grad.numpy() for x in inputs]


@pytest.mark.parametrize("start", range(0, 400, 40))
@pytest.mark.parametrize("traced", [False, True])
def test_values_and_gradients(start, traced):
    for seed in range(start, start + (10 if traced else 40)):
        lines, arrays = drawn(seed, 10)
        program = tg.trace(lambda *t, lines=lines: tuple(run(tg, lines, t))) if traced else lambda *t, lines=lines: run(tg, lines, t)
        wanted = [[torch.tensor(a, requires_grad=k == 0 or seed % 3 > 0) for k, a in enumerate(arrays)] for _ in range(2)]
        found = [[tg.tensor(a, requires_grad=k == 0 or seed % 3 > 0) for k, a in enumerate(arrays)] for _ in range(2)]
        text = f"{seed}\n" + "\n".join(lines)
        for theirs, ours in zip(wanted, found, strict=True):            # twice: a replay follows the first call
            expected = beside(lines, theirs)
            if expected is None:
                break
            try:
                made = program(*ours)
            except tg.ArgumentError as error:
                if OVERLAP in str(error):
                    break
                raise AssertionError(text) from error
            for x, y in zip(made, expected, strict=True):
                assert same(np.asarray(x.detach().numpy()), y.detach().numpy()), text
                assert x.requires_grad == y.requires_grad, text
            scalar(tg, [x for x in made if x.requires_grad]).backward()
            assert all(map(same, gradients(ours), gradients(theirs))), text
            for x, y in zip(made, expected, strict=True):               # what backward let go of is not asked for
                assert same(np.asarray(x.detach().numpy()), y.detach().numpy()), text


@pytest.mark.parametrize("start", range(1000, 1320, 40))
def test_mapped_and_differentiated_twice(start):
    for seed in range(start, start + 40):
        lines, arrays = drawn(seed, 9)
        if len(lines) < 2 or any("detach() >" in line for line in lines):           # how many elements differs along the batch
            continue
        text = f"{seed}\n" + "\n".join(lines)
        batch = [np.stack([a, a + 0.1, 0.9 * a]) for a in arrays]
        try:
            mapped = tg.vmap(lambda *t, lines=lines: tuple(run(tg, lines, t)))(*map(tg.tensor, batch))
            grads = tg.vmap(tg.grad(lambda *t, lines=lines: scalar(tg, run(tg, lines, t)), (0, 1)))(*map(tg.tensor, batch))
            hessian = tg.hessian(lambda *t, lines=lines: scalar(tg, run(tg, lines, t)), (0, 1))(*map(tg.tensor, arrays))
        except tg.ArgumentError as error:
            if OVERLAP in str(error):
                continue
            raise AssertionError(text) from error
        for k in range(3):
            inputs = [torch.tensor(b[k], requires_grad=True) for b in batch]
            expected = beside(lines, inputs)
            if expected is None:
                break
            assert all(same(np.asarray(x.numpy())[k], y.detach().numpy()) for x, y in zip(mapped, expected, strict=True)), text
            assert all(same(np.asarray(g.numpy())[k], w) for g, w in zip(grads, gradients(inputs), strict=True)), text
        if expected is None:
            continue
        inputs = tuple(map(torch.tensor, arrays))
        wanted = torch.autograd.functional.hessian(lambda *t, lines=lines: scalar(torch, run(torch, lines, t)), inputs)
        assert all(same(np.asarray(hessian[i][j].numpy()), wanted[i][j].numpy()) for i in range(2) for j in range(2)), text
