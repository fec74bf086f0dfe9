"""codegen.facts: what is known of values before they are computed, and that nothing is taken to be known that is not."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.marks import one_of
from tracegrad import ops  # noqa: F401
from tracegrad.codegen.graph.reductions import canonical
from tracegrad.codegen.graph.simplify import simplify
from tracegrad.codegen.kernel.index.facts import largest, never_positive
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import cast, placeholder
from tracegrad.support.plan import Target


def leaf(*shape: int) -> Node:
    return placeholder(Aval(shape, np.dtype("float32")))


def compiled(inputs: list[Node], y: Any) -> Node:
    """y as the scheduler sees it."""
    return simplify(canonical(simplify(Graph.capture(inputs, [y])), Target())).outputs[0]


NEVER: dict[str, Callable[[Any, Any], Any]] = {
    "last": lambda x, z: x - x.amax(-1, keepdim=True),
    "all": lambda x, z: x - x.amax(),
    "reshaped": lambda x, z: x.reshape(-1, 6) - x.reshape(-1, 6).amax(1, keepdim=True),
    "abs": lambda x, z: -abs(x),
    "square": lambda x, z: -(x * x),
    "branches": lambda x, z: tg.where(x < 0, x, -x),
    "negative times": lambda x, z: -x * x / 0.02,
    "factor": lambda x, z: x ** 2 * -0.5,
    "two squares": lambda x, z: -(x * x + z ** 2) / 8.0,
    "times a magnitude": lambda x, z: -abs(x) * z.exp(),
}
SOMETIMES: dict[str, Callable[[Any, Any], Any]] = {
    "another's maximum": lambda x, z: x - z.amax(-1, keepdim=True),
    "another row's maximum": lambda x, z: x - x.amax(-1),
    "another row's, turned": lambda x, z: x.t() - x.amax(-1, keepdim=True),
    "minimum": lambda x, z: x - x.amin(-1, keepdim=True),
    "the other way round": lambda x, z: x.amax(-1, keepdim=True) - x,
    "product": lambda x, z: -(x * z),
    "another's branches": lambda x, z: tg.where(z < 0, x, -x),
    "another limit": lambda x, z: tg.where(x < 1, x, -x),
    "positive branches": lambda x, z: tg.where(x < 0, -x, x),
    "two factors": lambda x, z: -x * z,
    "negative twice": lambda x, z: -(x * x) * -0.5,
    "by a negative": lambda x, z: -(x * x) / -2.0,
    "square and more": lambda x, z: z - x * x,
    "squares apart": lambda x, z: -(x * x) + z * z,
}


@pytest.mark.parametrize("name", NEVER)
def test_what_is_never_positive(name: str) -> None:
    x, z = leaf(6, 6), leaf(6, 6)
    assert never_positive(compiled([x, z], NEVER[name](x, z)))


@pytest.mark.parametrize("name", SOMETIMES)
def test_what_may_be_positive(name: str) -> None:
    x, z = leaf(6, 6), leaf(6, 6)
    assert not never_positive(compiled([x, z], SOMETIMES[name](x, z)))


def test_arrays_without_elements_tell_nothing() -> None:
    x = leaf(3, 0)
    turned = x.flip(0)
    assert not never_positive(turned - turned.amax(0, keepdim=True))
    assert not never_positive(compiled([x], turned - turned.amax(0, keepdim=True)))


@one_of(3, ("name", "size"), product([*NEVER, *SOMETIMES], [6, 40]))
def test_exponentials_on_the_device(name: str, size: int) -> None:
    rng = np.random.default_rng(3)
    x, z = (rng.standard_normal((size, 6 if name == "reshaped" else size)) * 30 for _ in range(2))
    x[0, 0], x[1, 1], x[2, 0] = np.inf, -np.inf, np.nan
    f = {**NEVER, **SOMETIMES}[name]
    a, b = (tg.tensor(v.astype(np.float32)) for v in (x, z))
    value = f(a, b).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(f(a, b).exp().numpy(), np.exp(value), rtol=1e-6, atol=1e-44)


@one_of(2, ("shape", "label_dtype"), product([(5, 70), (300, 33), (1, 40), (40,), (4, 35, 3), (6, 4)], ["int64", "int32", "uint8"]))
def test_a_sum_that_picks_one_element(shape: tuple[int, ...], label_dtype: str) -> None:
    """where(position == label, x, 0) summed: -0 becomes 0, NaN and inf elsewhere do not count, no label picks 0."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape).astype(np.float32)
    axis = 0 if len(shape) == 1 else 1
    classes = shape[axis]
    label = rng.integers(0, classes + 2, shape[:axis] + shape[axis + 1:]).astype(label_dtype)
    x.reshape(-1)[:3] = np.nan, np.inf, -0.0
    position = np.arange(classes).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    hit = position == np.expand_dims(label, axis)

    def f(a: Any, t: Any) -> Any:
        here = tg.arange(classes, dtype=t.dtype).reshape(position.shape) == t.unsqueeze(axis)
        return tg.where(here, a * 2.0, 0.0).sum(axis), a.amax(axis)

    want = np.where(hit, x * 2, 0).sum(axis)
    for run in (f, tg.trace(f)):
        got = run(tg.tensor(x), tg.tensor(label))[0].numpy()
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_cross_entropy_reads_one_logit_a_row_for_its_label() -> None:
    @tg.trace
    def loss(logits: Any, label: Any) -> Any:
        return F.cross_entropy(logits, label)

    loss(tg.randn(64, 96), tg.zeros(64, dtype=tg.int64))
    text = str(loss.kernels())
    assert "inside ?" in text
    assert "cols ==" not in text         # no class is compared with the label
    assert "exp_nonpositive" in text or not tg.device().target.plain_math


def test_how_large_a_value_may_be() -> None:
    x = leaf(5)
    unit = cast(placeholder(Aval((5,), np.dtype("uint32"))) >> 8, np.dtype("float32")) * 2.0 ** -24
    for y, most in ((unit, 1.0), (unit * 6.0, 6.0), (unit * -2.0, 2.0), (x, np.inf), (x * 0.0, np.inf), (unit + x, np.inf)):
        assert largest(y) == most


def test_random_angles_are_narrow_and_others_are_not() -> None:
    normal, any_angle = tg.trace(lambda: tg.randn(64)), tg.trace(lambda x: x.cos())
    normal(), any_angle(tg.randn(64))
    if tg.device().target.plain_math:
        assert "cos_narrow" in str(normal.kernels())
        assert "cos_narrow" not in str(any_angle.kernels())
