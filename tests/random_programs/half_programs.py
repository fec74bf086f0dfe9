"""Random programs of float16 or bfloat16 as Python text, of operations that have one right result. Start at `half_program`.

Products, sums, quotients and roots of halves in float32, rounded to a half, are the exact result rounded. So a program of these, and of
whatever looks at their results (comparisons, roundings, conversions), gives the same bits in whatever kernels it is computed.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad.nn import functional as F

ROWS, COLUMNS = 5, 37
ARITHMETIC = ["{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} + 0.1", "{a} * 2.5", "{a} * 0.001", "{a} - {c}", "{a} * {c}", "-{a}", "{a}.abs()",
              "{a} * {a}", "1.5 - {a}"]
QUOTIENTS = ["{a} / {b}", "{a}.abs().sqrt()", "{a}.reciprocal()"]
LOOKS = [
    "tg.where({a} > {b}, {a}, {b})", "tg.where(tg.isfinite({a}), {a}, 0.0)", "tg.nan_to_num({a})", "{a}.clamp(-2.0, 3.0)", "{a}.floor()",
    "{a}.sign()", "{a}.round()", "tg.maximum({a}, {b})", "({a} == {b}).half()", "({a} < {b}).half() + {a}", "{a}.float().half()",
    "(tg.nan_to_num({a}).clamp(-9000.0, 9000.0)).to(tg.int32).half()", "({a}.float() * 3.0 + {b}.float()).half()", "tg.fmod({a}, 1.5)",
    "tg.copysign({a}, {b})", "({a} - {a}.trunc())", "F.relu({a})", "({a} != {a}).half()", "{a}.isinf().half() + {b}",
    "{a}.float().floor().half()",
]
MOVES = [
    "{a}.flip(-1)", "{a}.roll(3, -1)", "F.pad({a}, (1, 0))[:, :-1]", "tg.cat(({a}[:, 9:], {b}[:, :9]), 1)",
    "{a}.amax(-1, keepdim=True) - {b}", "({a} == {a}.amax(-1, keepdim=True)).half()", "{a}.sort(-1)[0]",
    "{a}.argmax(-1, keepdim=True).half() * {b}", "{a}.amin(0) + {b}", "{a}.argsort(-1).half()",
    "(({a} * {b}).amax(0) == {a} * {b}).half()", "{a}.cummax(-1)[0]",
]
LAST = ["{a} == {b}", "{a} > {b}", "tg.isfinite({a})", "{a}.isfinite().all()", "({a} <= 1).any(-1)", "{a}.argmax(-1)", "{a}.isinf()"]
SPECIAL = {tg.float16: np.array([0.0, -0.0, 1.0, 1 + 2.0**-10, 2.0**-12, 2.0**-11, 3 * 2.0**-12, 2048.0, 2049.0, 5000.0, 65504.0, -65504.0,
                                 255.9, 2.0**-24, 3e-7, 6.1e-5, 2.0**-14, np.inf, -np.inf, np.nan, 0.1, 0.3333], np.float16),
           tg.bfloat16: np.array([0.0, -0.0, 1.0, 1 + 2.0**-7, 2.0**-9, 2.0**-8, 3 * 2.0**-9, 256.0, 257.0, 1e20, 3.39e38, -3.39e38, 127.8,
                                  2.0**-126, 1e-38, 1.5e-19, 2.0**-63, np.inf, -np.inf, np.nan, 0.1, 0.3333], tg.bfloat16)}


def half_program(rng: Random, dtype: Any = tg.float16, quotients: bool = True, lines: int = 9) -> tuple[str, Callable[..., Any], list[Any]]:
    """(its text, the function, its arguments as arrays). quotients: division and roots, too, which drivers may not compute exactly."""
    pool = [*ARITHMETIC * 2, *(QUOTIENTS if quotients else []), *LOOKS, *MOVES]
    names, body = ["x", "y"], []
    for number in range(lines):
        a, b = (rng.choice(names[-4:]) if rng.random() < 0.7 else rng.choice(names) for _ in range(2))
        body.append(f"    v{number} = " + rng.choice(pool).format(a=a, b=b, c="c"))
        names.append(f"v{number}")
    results = [rng.choice(names) for _ in range(3)] + [names[-1]]
    looks = [rng.choice(LAST).format(a=rng.choice(names), b=rng.choice(names)) for _ in range(3)]
    text = "\n".join(["def program(x, y, c):", *body, f"    return {', '.join([*results, *looks])}"]) + "\n"
    text = text.replace(".half()", ".bfloat16()") if dtype == tg.bfloat16 else text
    filename = f"<half program {hash(text):x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    world: dict[str, Any] = {"tg": tg, "F": F}
    exec(compile(text, filename, "exec"), world)
    draw = np.random.default_rng(rng.randrange(1 << 30))
    arrays = []
    for shape in ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,)):
        values = (draw.standard_normal(shape) * 10.0 ** draw.uniform(-3, 3, shape)).astype(dtype)
        arrays.append(np.where(draw.random(shape) < 0.4, draw.choice(SPECIAL[dtype], shape), values))
    return text, world["program"], arrays
