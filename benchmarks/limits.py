"""How near a traced function is to what the machine can do: `demand`, and the share of a measured limit that a time is, `share`.

The limits of memory and of multiply-adds are the runtime's (tracegrad/runtime/limits.py). That of exponentials is measured here: a sum
of several of each element, which tracegrad computes in one pass, so it is the rate of its own exp where memory does not matter.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

TRANSCENDENTAL = {"exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "tanh", "sigmoid", "erf", "erfc", "sin", "cos", "tan", "pow",
                  "softplus", "log_sigmoid", "gelu", "silu"}
_TERMS = 16


def demand(traced: Any) -> dict[str, Any]:
    """Bytes, multiply-adds (as flops) and transcendental functions of a call, and the limits, a second each."""
    from tracegrad.codegen.graph.simplify import simplify
    from tracegrad.execute.compile import executable_graph
    from tracegrad.execute.devices import find_device
    from tracegrad.runtime.limits import limits
    from tracegrad.support.plan import Launch

    plan, device = traced.plan, find_device()
    launches = [(step, times) for step, times in plan.each() if isinstance(step, Launch)]
    graph = simplify(executable_graph(traced._seen().program.graph))
    floats = [slot.dtype.itemsize for slot in plan.slots if slot.dtype.kind == "f"]
    most = limits(device)
    return {
        "bytes": sum(step.bytes * times for step, times in launches), "flops": sum(step.flops * times for step, times in launches),
        "functions": sum(node.aval.size for node in graph if node.fn.name in TRANSCENDENTAL and node.dtype.kind == "f"),
        "bandwidth": most.bandwidth, "arithmetic": most.flops(max(floats, default=4)), "exponentials": exponentials(),
    }


def share(demand: dict[str, Any], seconds: float) -> tuple[float, str] | None:
    """The largest of the shares of the limits that a call of `seconds` is, and of which limit."""
    if not demand:
        return None
    shares = {"memory": demand["bytes"] / demand["bandwidth"], "arithmetic": demand["flops"] / demand["arithmetic"],
              "functions": demand["functions"] / demand["exponentials"]}
    what = max(shares, key=shares.__getitem__)
    return shares[what] / seconds, what


def exponentials() -> float:
    """exp of float32, a second."""
    import tracegrad as tg

    @tg.trace
    def several(x: Any) -> Any:
        return sum((tg.exp(x * (-0.25 * k)) for k in range(1, _TERMS)), tg.exp(-x))

    x = tg.rand(1 << 20)
    times = []
    for _ in range(8):
        start = perf_counter()
        several(x)
        tg.synchronize()
        times.append(perf_counter() - start)
    return _TERMS * x.numel() / min(times[1:])
