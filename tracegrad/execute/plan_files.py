"""Plans on disk: a program that an earlier process compiled is not lowered again. Start at `load` and `store`; `key` says what for.

A plan is kept under the hash of all that it depends on: the graph's structure (operations, attributes, shapes, constants; the user's lines
and what stands in them, which names and comments are made of), the device's `Target`, the switches, and the library's own files. A file
holds plain data: JSON, and the bytes of arrays. Python objects that a plan calls are operations: those of the registry are known by
name, users' (`host_call`, loops that the host drives) by their number in the graph; what they do is asked of them, and no part of the plan.

Not kept, and lowered in every process (`Unkept` says why): programs with a `tg.elementwise` that has a numpy function, which might be
applied to constants; with operations that a user put into the registry; with attributes that are no plain data.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.graph.canonical import canonical
from tracegrad.graph.ir import ON_HOST, Aval, Graph, Size
from tracegrad.graph.leaf_operations import host_step
from tracegrad.graph.locations import Location
from tracegrad.graph.operation import Operation
from tracegrad.graph.primitive import REGISTRY
from tracegrad.runtime.disk import LIBRARY, Folder
from tracegrad.support import plan as plans
from tracegrad.support.dtypes import spelled
from tracegrad.support.plan import Plan, Target
from tracegrad.support.source_lines import line_of

FOLDER = Folder("plans")
TEMPLATES = Folder("templates")        # of kernels whose sizes vary (codegen/planning/arguments/generic.py)
LARGE = 16 << 20               # bytes of constants from which on a plan is not kept
counts: Counter[str] = Counter()       # programs that were lowered, and plans that were read instead


class Unkept(Exception):
    """Why a plan cannot be kept."""


# ---------------------------------------------------------------------------------------------------------------- the key


class Key:
    """The name of a plan's file, and the graph's operations that are not in the registry, by number."""

    __slots__ = ("given", "name")

    def __init__(self, name: str, given: Sequence[Operation]) -> None:
        self.name, self.given = name, list(given)


def key(graph: Graph, target: Target, donate: Mapping[int, int], results: Sequence[str], varying: frozenset[int] = frozenset()
        ) -> Key | None:
    """What the plan of an executable graph depends on; None where plans are not kept."""
    if not (config.cache and LIBRARY) or config.check:      # checks are made while a plan is
        return None
    described = _Described()
    try:
        program = described.graph(graph)
    except Unkept:
        return None
    lines = [(*loc, line_of(loc.filename, loc.line)) for loc in described.lines]
    tuned = sys.modules.get("tracegrad.support.tuning")     # not loaded: nobody can have asked for other numbers than the library's
    switches = config.fuse, config.fourier, tuned and tuned.changed()
    parts = (LIBRARY, target, switches, sorted(donate.items()), tuple(results), lines, program, sorted(varying))
    return Key(hashlib.sha256(repr(parts).encode()).hexdigest(), list(described.given))


class _Described:
    """A graph in plain data, such that equal ones have equal plans."""

    def __init__(self) -> None:
        self.given: dict[Operation, int] = {}
        self.lines: dict[Location, int] = {}
        self.operations: dict[Operation, Any] = {}

    def graph(self, graph: Graph) -> Any:
        found = canonical(graph.outputs, graph.inputs, lambda node: (node.aval, _contents(node.value)) if node.fn.name == "data" else None)
        lines = [self.lines.setdefault(n.loc, len(self.lines)) for n in (*found.leaves, *found.order)]
        given = [(self.operation(n.fn), n.attrs.get("label")) for n in graph.inputs]
        calls = [(n.fn.avals(*[o.aval for o in n.operands], **n.attrs), n.loc.who, n.loc.position)  # type: ignore[attr-defined]
                 for n in found.order if n.fn.family in ON_HOST]         # results that nobody uses are made, too; errors name the line
        return given, self.value(found.key(graph.outputs).parts), self.value(tuple(calls)), lines

    def operation(self, fn: Operation) -> Any:
        """What the plan depends on of an operation."""
        known = self.operations.get(fn)
        if known is None:
            known = self.operations[fn] = self._operation(fn)
        return known

    def _operation(self, fn: Operation) -> Any:
        if fn.registered:
            if not type(fn).__module__.startswith("tracegrad."):
                raise Unkept(f"{fn.name} is an operation of the user's")
            return fn.name
        number = self.given.setdefault(fn, len(self.given))
        described = fn.described
        if described is None:
            raise Unkept(f"{fn.name} cannot be described")
        return number, type(fn).__qualname__, fn.name, fn.family, fn.reports, tuple(map(self.value, described))

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple or kind is Size:
            return tuple(map(self.value, value))
        if kind is Aval or isinstance(value, np.dtype):
            return repr(value)
        if isinstance(value, np.generic):
            return spelled(value.dtype), value.tobytes()
        if isinstance(value, Graph):
            return self.graph(value)
        if isinstance(value, Operation):
            return self.operation(value)
        raise Unkept(f"{value!r} is an attribute that is no plain data")


_PLAIN = frozenset((int, float, bool, str, bytes, complex, type(None)))


def _contents(value: Any) -> Any:
    array = getattr(value, "array", value)
    if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.hasobject:
        raise Unkept("a constant is no numpy array")
    return spelled(array.dtype), array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


# --------------------------------------------------------------------------------------------------------------- the file

_CLASSES = {c.__name__: c for c in (
    plans.Plan, plans.Slot, plans.Scalar, plans.Fault, plans.Iteration, plans.Offset, plans.Launch, plans.HostStep, plans.HostStart,
    plans.HostWait, plans.HostOperation, plans.HostBegin, plans.HostFinish, plans.HostInto, plans.HostArithmetic, plans.Known, plans.Loop,
    plans.Check, plans.DomainCheck, plans.MatrixCheck, plans.LargeMatrixCheck, plans.Function, plans.Parameter)}
_FIELDS = {c: tuple([f.name for f in fields(c)]) for c in _CLASSES.values()}


def load(found: Key | None) -> Plan | None:
    """The plan that was stored under a key; None if there is none, or none that can be read."""
    contents = None if found is None else FOLDER.get(found.name)
    if found is None or contents is None:
        return None
    try:
        length = int.from_bytes(contents[:8], "little")
        plan = _decoded(json.loads(contents[8:8 + length]), memoryview(contents)[8 + length:], found.given)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    if not isinstance(plan, Plan):
        return None
    counts["read"] += 1
    return plan


def store(found: Key | None, plan: Plan) -> None:
    """Keep the plan, which was lowered, for later processes, if that can be done."""
    counts["lowered"] += 1
    if found is None or sum(s.data.nbytes for s in plan.slots if s.data is not None) > LARGE:
        return
    arrays: list[bytes] = []
    try:
        text = json.dumps(_encoded(plan, arrays, {fn: i for i, fn in enumerate(found.given)}), separators=(",", ":")).encode()
    except Unkept:
        return
    FOLDER.put(found.name, b"".join([len(text).to_bytes(8, "little"), text, *arrays]))


_AS_THEY_ARE = frozenset((int, bool, str, type(None)))


def _encoded(value: Any, arrays: list[bytes], given: Mapping[Operation, int]) -> Any:
    """A value as JSON: tuples are lists, whatever else JSON does not know is a dict of one entry that says what it is."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if kind is int:
        return value if -1 << 62 < value < 1 << 62 else {"int": hex(value)}
    if kind is tuple or kind is Size:
        if _AS_THEY_ARE.issuperset(map(type, value)) and all(type(v) is not int or -1 << 62 < v < 1 << 62 for v in value):
            return value                                     # as most: JSON writes a tuple as a list
        return [_encoded(v, arrays, given) for v in value]
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind.__name__ in _CLASSES and kind is _CLASSES[kind.__name__]:
        return {kind.__name__: [_encoded(getattr(value, name), arrays, given) for name in _FIELDS[kind]]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if isinstance(value, np.dtype):
        return {"dtype": spelled(value)}
    if kind is Aval:
        return {"aval": [list(value.shape), spelled(value.dtype), value.weak]}
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        arrays.append(np.ascontiguousarray(value).tobytes())
        return {"array": [isinstance(value, np.generic), spelled(value.dtype), list(value.shape), sum(map(len, arrays[:-1]))]}
    if isinstance(value, Operation):
        if value in given:
            return {"given": given[value]}
        if value.registered and value.executed is None:
            return {"op": value.name}
        if kind.__name__ == "OnHost":                       # what complex_pairs makes of a host step
            return {"on_host": [_encoded(value.fn, arrays, given), [_encoded(a, arrays, given) for a in value.operands]]}  # type: ignore[attr-defined]
    raise Unkept(f"{value!r} is no plain data")


def _decoded(value: Any, arrays: memoryview, given: Sequence[Operation]) -> Any:
    kind = type(value)
    if kind is list:
        return tuple([_decoded(v, arrays, given) for v in value])
    if kind is not dict:
        return value
    ((name, what),) = value.items()
    found = _CLASSES.get(name)
    if found is not None:
        return found(*[_decoded(v, arrays, given) for v in what])
    if name == "int":
        return int(what, 16)
    if name == "float":
        return float.fromhex(what)
    if name == "complex":
        return complex(*map(float.fromhex, what))
    if name == "bytes":
        return bytes.fromhex(what)
    if name == "dtype":
        return np.dtype(what)
    if name == "aval":
        return Aval(tuple(what[0]), np.dtype(what[1]), what[2])
    if name == "array":
        scalar, dtype, shape, start = what
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(arrays, np.dtype(dtype), count, start).reshape(shape).copy()
        return array[()] if scalar else array
    if name == "given":
        return given[what]
    if name == "op":
        return REGISTRY[what]
    if name == "on_host":
        return host_step(_decoded(what[0], arrays, given), _decoded(what[1], arrays, given))
    raise ValueError(f"plan_files: nothing is called {name}")
