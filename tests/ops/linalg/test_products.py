"""The products beside matmul: addbmm, addmv, addr, cross, vdot."""

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.names import Case, checks

RNG = np.random.default_rng(9)


def u(*shape: int) -> Any:
    return RNG.uniform(-2, 2, shape)


CASES = {
    "addbmm": Case(
        lambda t, F, x, a, b: (t.addbmm(x, a, b), t.addbmm(x, a, b, beta=0.5, alpha=2)),
        u(7, 5),
        u(3, 7, 13),
        u(3, 13, 5),
        expected=lambda x, a, b: (x + (a @ b).sum(0), 0.5 * x + 2 * (a @ b).sum(0)),
    ),
    "addmv": Case(
        lambda t, F, x, a, v: (t.addmv(x, a, v), x.addmv(a, v, beta=0, alpha=2)),
        u(7),
        u(7, 33),
        u(33),
        expected=lambda x, a, v: (x + a @ v, 2 * (a @ v)),
    ),
    "addr": Case(
        lambda t, F, x, a, b: t.addr(x, a, b, beta=2, alpha=0.5),
        u(7, 13),
        u(7),
        u(13),
        expected=lambda x, a, b: 2 * x + 0.5 * np.outer(a, b),
    ),
    "cross": Case(
        lambda t, F, x, y: (t.cross(x, y, 1), t.cross(x[:3].mT, y[:3].mT, dim=0), t.cross(x, y[:1], dim=-1)),
        u(7, 3),
        u(7, 3),
        expected=lambda x, y: (np.cross(x, y), np.cross(x[:3].T, y[:3].T, axis=0), np.cross(x, y[:1])),
    ),
    "vdot": Case(lambda t, F, x, y: t.vdot(x, y), u(65), u(65), expected=np.vdot),
}

test_values, test_gradients, test_as_in_torch = checks(CASES)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: tg.addbmm(x, x, x), "addbmm: takes 3-d and 3-d"),
        (lambda x: tg.addmv(x[0], x, tg.ones(4)), "addmv: "),
        (lambda x: tg.addr(x, x[0], tg.ones(4)), "addr: shapes"),
        (lambda x: tg.cross(tg.ones(2), tg.ones(2)), "cross: no dimension"),
        (lambda x: tg.cross(tg.ones(2, 3), tg.ones(2, 3), 0), "cross: dimension 0"),
    ],
)
def test_errors(fn: Any, words: str) -> None:
    with pytest.raises(tg.ShapeError, match=words):
        fn(tg.ones(3, 3))
