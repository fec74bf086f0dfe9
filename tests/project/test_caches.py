"""Every cache of the process is one of support/cache.py's, with a budget and statistics; what forgets, and when."""

from __future__ import annotations

import ast
import importlib
import threading
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.sources import parsed
from tracegrad.execute.program import programs
from tracegrad.support import cache
from tracegrad.support.cache import Cache

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tracegrad", "codegen", "runtime")
MODULES = {f"{'' if folder == 'tracegrad' else 'tracegrad.'}{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}": path
           for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
           if path.relative_to(ROOT).parts[:2] not in (("tracegrad", "codegen"), ("tracegrad", "runtime"))}
CHANGES = {"append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert", "remove", "discard", "appendleft",
           "popleft"}
MAKERS = {"dict", "list", "set", "OrderedDict", "Counter", "defaultdict", "deque", "WeakSet", "WeakValueDictionary", "WeakKeyDictionary"}

# What changes and is no cache: registries, which are full once everything is imported; state; and counts.
OTHERS = {
    "graph.operators": {"PUBLIC": "registry", "FUNCTIONAL": "registry", "SPECIAL": "registry", "LINALG": "registry", "FOURIER": "registry"},
    "graph.primitive": {"REGISTRY": "registry", "_uid": "a count"},
    "ops.primitives.formula": {"DOUBLE_FORMULAS": "registry", "PAIR_FORMULAS": "registry"},
    "codegen.lower.context": {"LOWERINGS": "registry", "TARGET_LOWERINGS": "registry"},
    "codegen.kernel.ir.instructions": {"INSTRUCTIONS": "registry"},
    "support.modes": {"float32_matmul": "state: a setting", "unusual": "a count"},
    "distributions.divergence": {"_RULES": "registry"},
    "support.cache": {"_tables": "the list of caches", "_caches": "the list of caches"},
    "execute.policy": {"eager_calls": "a count", "counts": "counts", "reasons": "counts"},
    "execute.plan_files": {"counts": "counts"},
    "runtime.programs.build": {"counts": "counts"},
    "execute.devices": {"aliases": "state: names of the default device"},
    "execute.realize": {"_detached": "state: what is to be cut from its history"},
    "runtime.programs.background": {"_pool": "one thread"},
    "execute.deferred": {"waiting": "state: the pending work", "flushes": "a count"},
    "ops.arrays.subscripts": {"parts_of_tuples": "a setting"},
    "ops.neural.losses": {"losses_that_broadcast": "a setting", "losses_that_refuse": "a setting"},
    "support.philox": {"_last": "one entry"},
    "support.random_state": {"_torchs": "state: a setting"},
    "support.dtypes": {"default_float": "state: the default dtype", "users": "what programs see in place of dtypes: set once",
                       "_known": "what stands for dtypes, which programs see: set once"},
    "nn.torch_files": {"device_of": "a setting"},
    "torch_api.checkpoints": {"_known": "the classes that a program allows"},
    "torch_api.storages": {"_copies": "what addresses point to, as long as their tensors live",
                           "_shared": "what share_memory_ was called of, as long as it lives"},
    "torch_api.names.fx._symbolic_trace": {"_wrapped": "functions that a program wraps", "_tracing": "state: the tracers at work"},
    "torch_api.names.fx.node": {"_with_side_effects": "functions that a program tells"},
    "torch_api.overrides": {"_entered": "state: the modes that are entered", "_plain": "types that override nothing, as they are met",
                            "_wrappers": "what programs get in the place of functions", "_sees": "state: a setting"},
    "torch_api.sparse.tensor": {"SPARSE_RULES": "registry"},
    "torch_api.printing": {"_options": "state: how tensors are printed"},
    "torch_api.names.profiler": {"_recording": "state: the profilers that record"},
    "torch_api.names.utils._pytree": {"_keyed": "what programs register"},
    "torch_api.names.hub": {"_dir": "state: a setting"},
    "torch_api.names.ops": {"_registered": "the operations that a program registers"},
    "tensors.settings": {"_deterministic": "state: a setting"},
    "tensors.bases.conversion": {"PRINTING": "state: how tensors are printed"},
    "ops.arrays.index_checks": {"_conditions": "state: of the code that is recorded"},
    "autograd.hooks": {"listeners": "models whose ranks average gradients, while they live"},
    "distributed.functional": {"_order": "state: for each device, the number that keeps collectives of a trace in order"},
    "autograd.forward_ad": {"_levels": "state: the levels that are open"},
    "nn.utils.parametrize": {"_within": "state: the blocks that are open", "_values": "of the blocks that are open, with which it ends"},
    "codegen.kernel.run.memory": {"group_arrays": "of the group that runs"},
    "runtime.device": {"_devices": "as many as the drivers have", "_decided": "state: the default device",
                       "chosen": "state: the default device"},
}


def tables(tree):
    """The module-level names that a container is assigned to."""
    found = set()
    for node in tree.body:
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        call = value.func if isinstance(value, ast.Call) else None
        maker = call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else ""
        if isinstance(value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)) or maker in MAKERS:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.id for t in targets if isinstance(t, ast.Name)}
    return found


def changed(tree):
    """The names of what functions change."""
    found = set()
    for outer in tree.body:
        for node in ast.walk(outer) if isinstance(outer, (ast.FunctionDef, ast.ClassDef)) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
                found |= {n.id for n in [node.func.value] if isinstance(n, ast.Name)}
            targets = [*node.targets] if isinstance(node, (ast.Assign, ast.Delete)) else []
            targets += [node.target] if isinstance(node, ast.AugAssign) else []
            for t in targets:
                while isinstance(t, (ast.Subscript, ast.Starred)):
                    t = t.value
                    found |= {n.id for n in [t] if isinstance(n, ast.Name)}
                found |= {t.id for t in [t] if isinstance(node, ast.AugAssign) and isinstance(t, ast.Name)}
    return found


def test_every_cache_is_listed():
    trees = {name: parsed(path) for name, path in MODULES.items()}
    changes = {name: changed(tree) for name, tree in trees.items()}
    everywhere = set().union(*changes.values())
    known = {id(t) for t in [*cache.tables().values(), *cache.caches()]}
    found = {}
    for name, tree in trees.items():
        short = name.removeprefix("tracegrad.").removesuffix(".__init__")
        others = OTHERS.get(short, {})
        for table in sorted(tables(tree) & (changes[name] | {n for n in everywhere if n[0] != "_"})):
            if table in others:
                found.setdefault(short, set()).add(table)
                continue
            module = importlib.import_module(name.removesuffix(".__init__"))
            assert id(getattr(module, table)) in known, f"{name}.{table} changes and is not listed: make it a Cache, or say what it is"
    assert found == {name: set(names) for name, names in OTHERS.items()}                    # nothing is excused that is not there


def test_nothing_memoizes_by_itself():
    """functools' caches are made by cache.memoize, which lists them; those of a call's own are its own."""
    for name, path in MODULES.items():
        tree = parsed(path)
        lasting = [*tree.body, *(n for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body)]
        texts = [ast.unparse(d) for n in lasting if isinstance(n, ast.FunctionDef) for d in n.decorator_list]
        assert not [t for t in texts if t.split("(")[0].split(".")[-1] in ("lru_cache", "cache")], name


@pytest.mark.parametrize("weigh", [None, lambda key, value: 1])
def test_what_is_used_stays(weigh):
    made = Cache("test", 100, weigh)
    made["used"] = 1
    for k in range(1000):
        made[k] = k
        assert made["used"] == 1
        assert made.size() == len(made.entries()) <= 100
    assert made["new"] is None
    assert made[999] == 999
    assert made[3] is None
    assert made.misses == 2
    assert 950 in dict(made.entries())


def test_half_the_budget_is_never_forgotten():
    made = Cache("test", 100)
    for step in range(5):
        for k in range(50):
            if made[k] is None:
                assert step == 0
                made[k] = k


def test_weights():
    dropped = []
    made = Cache("test", 100, lambda key, value: value, dropped=lambda key, value: dropped.append(key))
    made["a"] = 20
    made["b"] = 20
    made["a"] = 30                                          # another value of the same key
    assert made.size() == 50
    made["c"] = 40
    assert made.size() == 90
    made["large"] = 1000
    assert (dict(made.entries()), dropped) == ({"large": 1000}, ["a", "b", "c"])
    assert made.take("large") == 1000
    assert (made.size(), made["large"]) == (0, None)
    made["d"] = 60
    made["e"] = 60
    assert dict(made.entries()) == {"e": 60}
    made.clear()
    assert (made.entries(), made.size(), made["d"]) == ([], 0, None)


def test_none_is_a_value():
    made = Cache("test", 4)
    assert made["a"] is None
    assert "a" not in made
    made["a"] = None
    for k in range(2):
        made[k] = k
    assert made["a"] is None
    assert "a" in made
    assert made.misses == 1


def test_uses_are_counted_past_what_is_forgotten():
    made = Cache("test", 4, uses=lambda value: value)
    for k in range(20):
        made[k] = 1
    assert made.used() == 20


def test_threads():
    made, wrong = Cache("test", 50), []

    def work(n):
        for k in range(3000):
            key = k * n % 97
            if made[key] not in (None, key):
                wrong.append(key)
            made[key] = key

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 5, 7)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert made.size() == len(made.entries()) <= 50


def test_a_name_that_no_cache_has():
    with pytest.raises(KeyError, match="nothing"):
        cache.clear(["nothing"])


@pytest.mark.recall
@pytest.mark.skipif(tg.device().kind == "numpy" or not tg.device().in_host_memory, reason="nothing is eager on this device")
def test_the_report_tells_sizes_and_hits(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    programs.clear()
    before = tg.report()["caches"]
    x = tg.tensor(np.ones((3, 5), np.float32))
    (x + 2.625).numpy()
    for _ in range(6):
        y = (x * 1.625).sum()
        view = x.T
    assert (y.item(), view.shape) == (24.375, (5, 3))
    found = tg.report()["caches"]
    assert found["calls"]["hits"] - before.get("calls", {"hits": 0})["hits"] >= 11
    assert 0 < found["programs"]["size"] <= found["programs"]["budget"]
    assert all(counts["entries"] >= 0 for counts in found.values())
    assert "in the cache of calls (size" in str(tg.report())
