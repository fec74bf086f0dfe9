"""One guard, `modes.state.plain`, decides whether what came before may be recalled: each field of the state that forbids it, everywhere."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

import tracegrad as tg
from tests.helpers.sources import parsed
from tests.helpers.values import given
from tracegrad import amp, autograd, nn
from tracegrad.autograd import backward_cache
from tracegrad.execute import policy
from tracegrad.optim.update import update
from tracegrad.support import modes
from tracegrad.support.modes import GUARDS, state
from tracegrad.tracing.recording import Recording
from tracegrad.tracing.replay import Replay

ROOT = Path(__file__).resolve().parents[2]
SET = {"trace": lambda: Recording("test", tg.device()), "examples": lambda: 1, "hidden": lambda: True, "pulling": lambda: True,
       "comparing": lambda: True, "anomaly": lambda: autograd.anomaly.Check(False), "watch": lambda: (print,),
       "autocast": lambda: amp._casts("cpu", tg.bfloat16)}
# The other fields, and why what was done under another value of theirs may be recalled all the same.
ALLOWED = {
    "grad": "what is recalled is found by whether its operands require a derivative",
    "scopes": "a vmap sets `examples`, a recorded body is in a trace; in inference mode tensors are told in which scope they were made",
    "values_read": "it is noted by the read of a value, and a custom forward sets `hidden`",
    "holds": "it says only when pending work is run, and is set where `comparing` is",
    "own": "one call's nodes: set inside a call that is not recalled, and not around calls of the user's",
    "asking": "set while a backward is made at length, and not while the user's code in it runs",
    "shown": "inside a custom forward, which sets `hidden`",
    "leaves": "set while a program is recorded or compiled; what is recalled has constants of its own",
    "symbolic": "follows from the guards", "anew": "follows from the guards", "plain": "follows from the guards",
    "usual": "follows from the guards and the scopes",
}


def test_every_field_of_the_state_guards_or_has_a_reason():
    assert GUARDS.keys() == SET.keys()
    assert modes._State.__annotations__.keys() == GUARDS.keys() | ALLOWED.keys()


def test_what_follows_from_the_guards_is_right_after_every_change():
    assert (state.plain, state.symbolic) == (True, False)
    for name, make in SET.items():
        setattr(state, name, make())
        try:
            assert not state.plain
            assert state.symbolic == (name in ("trace", "examples"))
        finally:
            setattr(state, name, GUARDS[name])
        assert (state.plain, state.symbolic) == (True, False)


def test_changes_meet():
    """The guard holds until the last of them ends."""
    with autograd.set_detect_anomaly(True):
        tg.vmap(lambda x: x.sin())(given(0, 3))
        assert not state.plain
        assert not state.symbolic
    assert state.plain


def test_threads_whose_state_is_not_usual_are_counted():
    """Where there are none, hot paths do not look at their own state."""
    found = []

    def inside(x):
        found.append(modes.unusual[0])
        return x.sin()

    before = modes.unusual[0]
    with tg.inference_mode():
        tg.vmap(inside)(given(0, 3))
        assert modes.unusual[0] == before + 1
        thread = threading.Thread(target=lambda: tg.vmap(inside)(given(0, 3)))
        thread.start()
        thread.join()
    assert found == [before + 1, before + 2]
    assert modes.unusual[0] == before


def known_steps():
    """A call, a view, constants, a call without history, a backward, a step of an optimizer and a traced call that are recalled."""
    model = nn.Linear(3, 2)
    optimizer = tg.optim.SGD(model.parameters(), lr=0.1)
    x, z = given(0, 4, 3), given(1, 4, 3)               # what kernels have read, numpy is not asked for
    traced = tg.trace(lambda x: x * 2)

    def prepare():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        for _ in range(2):
            traced(z)
            tg.arange(4)
            x.T
            x * 2.0
            with tg.no_grad():
                x * 3.0
        return loss

    for _ in range(4):
        prepare().backward()
        optimizer.step()
    loss = prepare()
    for p in model.parameters():
        p.grad = tg.zeros_like(p)
    return loss, x, lambda: traced(z), optimizer


@pytest.mark.skipif(tg.device().kind == "numpy" or not tg.device().in_host_memory, reason="nothing is eager on this device")
@pytest.mark.parametrize("field", [None, *SET])
@pytest.mark.recall
def test_each_guard_turns_recall_off(field, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    loss, x, traced, optimizer = known_steps()
    params = optimizer.param_groups[0]["params"]
    tg.flush()
    again = []
    real = Replay.fast_replay.func
    monkeypatch.setattr(Replay, "fast_replay", property(lambda self: again.append(0) or real(self)))
    found = {}
    before = policy.eager_calls[0]
    if field is not None:
        setattr(state, field, SET[field]())
    try:
        x * 2.0
        tg.arange(4)
        x.T
        found["eager calls"] = policy.eager_calls[0] - before > 0
        found["backward"] = backward_cache.Backward(loss).walk is not None
        with tg.no_grad():
            found["optimizer"] = update(optimizer, optimizer.param_groups[0], params)
        traced()
        found["trace"] = bool(again)
    finally:
        if field is not None:
            setattr(state, field, GUARDS[field])
    assert set(found.values()) == {field is None}, found


def test_nobody_reads_the_guards_one_by_one_to_decide_on_recall():
    """Where calls, views, values, backwards and steps are recalled, `plain` (of nodes: `symbolic`) is all that is asked."""
    own = {"graph/cached_calls": {"hidden"}}                        # what `detach` has to be applied to
    for name in ("execute/eager_executor", "tensors/cached_views", "tensors/numpy_subscripts", "autograd/backward_cache",
                 "autograd/history_key", "execute/program", "graph/cached_calls", "optim/update"):
        tree = ast.parse((ROOT / "tracegrad" / f"{name}.py").read_text())
        read = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "state"
                and isinstance(n.ctx, ast.Load)}
        assert not read & GUARDS.keys() - own.get(name, set()), name


def imported_modules(tree):
    """The names that stand for modules of tracegrad."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.asname or a.name.split(".")[0] for a in node.names if a.name.split(".")[0] == "tracegrad"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tracegrad":
            place = ROOT / node.module.replace(".", "/")
            found |= {a.asname or a.name for a in node.names
                      if (place / f"{a.name}.py").exists() or (place / a.name / "__init__.py").exists()}
    return found


# Under torch's names the functions of nn.functional, which modules call by attribute, ask `__torch_function__` first.
HOOKED = ROOT / "tracegrad" / "torch_api" / "overrides.py"


@pytest.mark.parametrize("folder", ["tracegrad", "codegen", "runtime"])
def test_no_module_sets_anothers_attribute(folder):
    """What a module needs of those above it is registered with an object that it has for that."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path.relative_to(ROOT).parts[:2] in (("tracegrad", "codegen"), ("tracegrad", "runtime")) or path == HOOKED:
            continue                                                    # links
        tree = parsed(path)
        modules = imported_modules(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                assert not (isinstance(node.value, ast.Name) and node.value.id in modules), f"{path}:{node.lineno}: {ast.unparse(node)}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                assert not (isinstance(node.args[0], ast.Name) and node.args[0].id in modules), f"{path}:{node.lineno}"
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Attribute):
                of = node.value.value                                   # (an entry of what another module has)
                assert not (isinstance(of, ast.Name) and of.id in modules), f"{path}:{node.lineno}: {ast.unparse(node)}"
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Call):
                assert not (isinstance(node.value.func, ast.Name) and node.value.func.id == "vars"
                            and isinstance(node.value.args[0], ast.Name) and node.value.args[0].id in modules), f"{path}:{node.lineno}"
