"""A compiled program as plain data, all of it linked: what the page shows. Start at `model`.

Lines, operations (nodes), steps (launches and host steps), kernels and values in memory (slots) are numbered; each says which of the
others it has to do with.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from os.path import basename
from typing import Any

from tracegrad.errors import ArgumentError, DeviceError
from tracegrad.execute.compile import executable_graph
from tracegrad.execute.partition import PartitionedProgram
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.printing import aval_text
from tracegrad.inspection.memory import Row, memory, rows_of, touched
from tracegrad.inspection.page.layout import folded
from tracegrad.inspection.profiling import Measured, for_whom, measured
from tracegrad.inspection.remedies import remedies
from tracegrad.inspection.report import device_names, inner_plans, kernel_text, no_plan
from tracegrad.support.plan import HostStep, Launch, Plan
from tracegrad.support.source_lines import lines_of, parsed

Model = dict[str, Any]
_MARK = re.compile(r"//\s*(.*?):(\d+)( ∂)?(?:  .*)?$")
_MARGIN = 2                      # lines shown around one that is in no function


class _Lines:
    """The user's lines, numbered as they turn up."""

    def __init__(self) -> None:
        self.number: dict[tuple[str, int], int] = {}

    def of(self, file: str, line: int) -> int:
        """-1 for no line."""
        return self.number.setdefault((file, line), len(self.number)) if file else -1


def model(program: Any, name: str, reason: str = "", guards: Sequence[str] = (), runs: int = 0) -> Model:
    """A Program as JSON takes it. runs: how often to run it again for its times; 0 for not at all.

    reason: why it was compiled. guards: what a replay compares.
    """
    graph = executable_graph(program.graph, transfers=True)
    lines = _Lines()
    nodes = list(graph)
    number = {node: i for i, node in enumerate(nodes)}
    shown = [_node(node, number, graph, lines) for node in nodes]
    timed, untimed = _times(program, name, runs)
    rows, names = rows_of(program), _names(program)
    plans = {i: part.plan for i, part in enumerate(program.parts) if part.plan is not None}
    found: Model = {
        "name": name, "device": " and ".join(names.values()), "devices": list(names.values()), "reason": reason, "guards": list(guards),
        "inputs": [_input(node) for node in graph.inputs], "nodes": shown, "steps": [], "kernels": [], "slots": [], "moments": [],
        "recomputed": [], "timeline": [], "untimed": untimed, "notes": [note for plan in plans.values() for note in plan.notes],
        "remedies": list(dict.fromkeys([*remedies(graph, program.plan), *([] if timed is None else timed.profile.remedies)])),
        "limits": None if timed is None else _limits(timed),
    }
    if rows or plans:
        of = {i: f"part {i}, on {names[part.device]}" if len(names) > 1 else "" for i, part in enumerate(program.parts)}
        found["kernels"] = _kernels([(i, of[i], plan) for i, plan in plans.items()], inner_plans(program.graph))
        places = {key: i for i, key in enumerate(found["kernels"])}
        found["kernels"] = list(found["kernels"].values())
        first = dict(zip(plans, accumulate([0, *(len(plan.slots) for plan in plans.values())]), strict=False))
        found["steps"] = [_step(row, plans.get(row.part), first.get(row.part, 0), lines, places) | {"lane": list(names).index(row.device)}
                          for row in rows]
        _memory(found, program, plans, lines)
        _link(nodes, number, graph, rows, program.parts, found)
        found["recomputed"] = _recomputed(rows, lines)
        if timed is not None:
            _timed(found, timed, rows)
    _code_lines(found["kernels"], lines)
    found["files"] = _files(lines)
    found["lines"] = _line_links(found, lines)
    found["folds"] = {what: _fold(shown, what) for what in ("line", "module", "kernel")}
    found["totals"] = _totals(found)
    return found


def _names(program: Any) -> dict[Any, str]:
    return device_names(program) if isinstance(program, PartitionedProgram) else {program.device: program.device.name}


# ---------------------------------------------------------------------------------------------------------------- nodes


def _input(node: Node) -> str:
    return f"{node.attrs.get('label') or 'input'}: {aval_text(node.aval)}"


def _node(node: Node, number: dict[Node, int], graph: Graph, lines: _Lines) -> Model:
    leaf = node.fn.family == "leaf"
    inputs = [] if node in graph.inputs else [number[o] for o in node.operands]
    label = str(node.attrs.get("label") or "") or (str(node.attrs["value"]) if node.fn.name == "const" else
                                                  f"to {node.attrs['target'].name}" if node.fn.name == "transfer" else "")
    line = -1 if leaf else lines.of(node.loc.filename, node.loc.line)
    return {"op": node.fn.name, "label": label, "type": aval_text(node.aval), "line": line, "derived": node.loc.derived,
            "module": node.loc.module, "call": node.loc.call, "inputs": inputs, "steps": [], "how": "", "bytes": node.aval.nbytes}


def _keys(rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[Any, list[int]]]:
    """What steps compute: (operation, line, derived, file) -> its number, and that of its part -> the steps."""
    found: dict[tuple[Any, ...], dict[Any, list[int]]] = defaultdict(dict)
    for i, row in enumerate(rows):
        for *key, number in row.step.fused if isinstance(row.step, Launch) else ():
            at = found[tuple(key)].setdefault((row.part, number), [])
            if i not in at:
                at.append(i)
    return found


def _link(nodes: Sequence[Node], number: dict[Node, int], graph: Graph, rows: Sequence[Row], parts: Sequence[Any], found: Model) -> None:
    """Which steps have to do with which nodes, and how: a node is "computed" there, computed as part of the "line" (passes made something
    else of it), "inlined" in what reads it, "read" if it is given, or "gone" if passes found that nothing needs it.
    """
    keys, shown = _keys(rows), found["nodes"]
    alike: dict[tuple[Any, ...], list[Node]] = defaultdict(list)
    of_line: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for (_, *line), numbers in keys.items():
        of_line[tuple(line)] |= {i for at in numbers.values() for i in at}
    for node in nodes:
        alike[node.fn.name, node.loc.line, node.loc.derived, node.loc.filename].append(node)
    hosts: dict[str, list[int]] = defaultdict(list)
    apart: dict[Any, list[int]] = defaultdict(list)             # what no kernel computes: transfers, and what the interpreter does
    for i, row in enumerate(rows):
        if isinstance(row.step, HostStep):
            hosts[row.step.name].append(i)
        elif row.step is None:
            for node in parts[row.part].graph if row.transfer is None else [row.transfer]:
                apart[_place(node)].append(i)
    for alike_key, group in alike.items():
        places = list(keys.get(alike_key, {}).values())
        for k, node in enumerate(group):
            links = places[k] if len(places) == len(group) else sorted({i for at in places for i in at})
            shown[number[node]].update(steps=links, how="computed" if links else "")
    for node in reversed(nodes):
        own = shown[number[node]]
        if own["how"]:
            continue
        users = sorted({i for user in graph.users(node) for i in shown[number[user]]["steps"]})
        line = sorted(of_line.get((node.loc.line, node.loc.derived, node.loc.filename), ()))
        leaf = node.fn.family == "leaf"
        if node.fn.name in hosts:
            own.update(steps=hosts[node.fn.name], how="computed")
        elif not leaf and _place(node) in apart:
            own.update(steps=sorted(set(apart[_place(node)])), how="computed")
        elif leaf:
            own.update(steps=users, how="read" if users else "gone")
        else:
            first, then = (users, line) if node.fn.family in ("movement", "index", "elementwise") else (line, users)
            found_in = first or then
            own.update(steps=found_in, how="gone" if not found_in else "line" if found_in is line else "inlined")
    for node in nodes:
        own = shown[number[node]]
        for i in own["steps"]:
            if own["how"] != "read":
                found["steps"][i]["nodes"].append(number[node])


# ----------------------------------------------------------------------------------------------------- kernels and steps


def _kernels(plans: Sequence[tuple[int, str, Plan]], inner: Sequence[tuple[str, Plan]]) -> dict[tuple[int, str], Model]:
    """Each kernel once, by its part and name. of: what of the program runs it, "" for the program itself."""
    found: dict[tuple[int, str], Model] = {}
    for part, of, plan in [*plans, *((plans[0][0] if plans else 0, what, plan) for what, plan in inner)]:
        for launch in plan.launches:
            if (part, launch.entry) not in found:
                text = kernel_text(plan.source, launch.entry)
                found[part, launch.entry] = {"name": launch.entry, "of": of, "text": text.rstrip("\n").split("\n"), "code": [], "steps": [],
                                             "lines": [], "fused": []}
            found[part, launch.entry]["fused"] += launch.fused
    return found


def _step(row: Row, plan: Plan | None, first: int, lines: _Lines, kernels: Mapping[tuple[int, str], int]) -> Model:
    """first: the number of the plan's first slot."""
    step, node = row.step, row.transfer
    found: Model = {"name": row.name, "kernel": -1, "host": True, "times": row.times, "bytes": 0, "flops": 0, "computes": [], "lines": [],
                    "why": [], "nodes": [], "slots": [] if step is None else [first + slot for slot in touched(step)], "items": ""}
    if node is not None:
        line = lines.of(node.loc.filename, node.loc.line)
        return found | {"bytes": node.aval.nbytes, "why": [f"sent from {node.attrs['source'].name}"], "lines": [line] if line >= 0 else []}
    if not isinstance(step, Launch) or plan is None:
        return found | {"why": [step.note] if step is not None and step.note else []}
    fused = for_whom(step, plan)
    return found | {"kernel": kernels[row.part, step.entry], "host": False,
                    "bytes": step.bytes * row.times, "flops": step.flops * row.times,
                    "why": [w for w in step.note.split("; ") if w], "computes": [name for name, *_ in step.fused],
                    "lines": list(dict.fromkeys(lines.of(file, line) for _, line, _, file, _ in fused)),
                    "items": "x".join(map(str, step.global_size))}


def _place(node: Node) -> tuple[Any, ...]:
    """What a node of the graph, and the same one in what runs, have in common."""
    return node.fn.name, node.shape, node.loc.filename, node.loc.line, node.loc.derived, node.attrs.get("target")


def _recomputed(rows: Sequence[Row], lines: _Lines) -> list[Model]:
    """What several steps compute, each for itself, in place of storing it."""
    return [{"op": op, "line": lines.of(file, line), "derived": derived, "steps": at}
            for (op, line, derived, file), numbers in _keys(rows).items() for at in numbers.values() if len(at) > 1]


def _code_lines(kernels: Sequence[Model], lines: _Lines) -> None:
    """Which line of the user's each line of C is for. A comment holds for the statements below it, up to the next."""
    for kernel in kernels:
        known = {(basename(file), line): (file, line) for _, line, _, file, _ in kernel.pop("fused")}
        known = {(basename(file), line): (file, line) for file, line in lines.number} | known
        current, derived = -1, False
        for text in kernel.pop("text"):
            mark, code = _MARK.search(text), text.split("//")[0].strip()
            if mark and (mark[1], int(mark[2])) in known:
                current, derived = lines.of(*known[mark[1], int(mark[2])]), bool(mark[3])
            elif "//" in text and code == "{":
                current = -1                                      # a part that begins has marks of its own
            own = current if code.endswith((";", "{")) and code != "{" else -1
            kernel["code"].append([text, own, derived])
            if own >= 0 and own not in kernel["lines"]:
                kernel["lines"].append(own)


# ---------------------------------------------------------------------------------------------------------------- memory


def _memory(found: Model, program: Any, plans: Mapping[int, Plan], lines: _Lines) -> None:
    held = memory(program, "")
    lives = {(value.part, value.slot): value for value in held.values if value.slot >= 0}
    blocks = 0
    for part, plan in plans.items():
        first = len(found["slots"])
        for i, slot in enumerate(plan.slots):
            line = lines.of(*slot.line[:2]) if slot.line else -1
            life = lives.get((part, i))
            at = first + (i if slot.alias is None else slot.alias)          # where its bytes are
            steps = [k for k, step in enumerate(found["steps"]) if at in step["slots"]]
            if life is not None and line < 0 and steps:
                line = next(iter(found["steps"][steps[0]]["lines"]), -1)
            found["slots"].append({
                "name": slot.name or slot.kind, "kind": slot.kind, "bytes": slot.nbytes, "line": line,
                "type": f"{slot.dtype}[{', '.join(map(str, slot.shape))}]", "block": None if slot.block is None else blocks + slot.block,
                "alias": None if slot.alias is None else first + slot.alias, "first": life.first if life else -1,
                "last": life.last if life else -1, "steps": steps})
        blocks += len(plan.blocks)
    for block, value in enumerate((value for value in held.values if value.slot < 0), blocks):
        found["slots"].append({"name": value.name, "kind": "temp", "bytes": value.bytes, "line": -1, "block": block, "alias": None,
                               "type": f"{value.dtype}[{', '.join(map(str, value.shape))}]", "first": value.first, "last": value.last,
                               "steps": []})
    found["moments"] = [moment.bytes for moment in held]
    found["memory"] = {"inputs": held.inputs, "outputs": held.outputs, "constants": held.constants, "reserved": held.reserved,
                       "peak": held.peak.bytes}


# ----------------------------------------------------------------------------------------------------------------- times


def _times(program: Any, name: str, runs: int) -> tuple[Measured | None, str]:
    """The measured times; or why there are none."""
    if not runs:
        return None, "not measured"
    if program.plan is None and not isinstance(program, PartitionedProgram):
        return None, no_plan(name)
    try:
        return measured(program, name, runs, "page"), ""
    except (ArgumentError, DeviceError) as error:
        return None, str(error)


def _limits(timed: Measured) -> Model:
    most = timed.profile.limits
    return {"bandwidth": most.bandwidth, "float32": most.float32, "float64": most.float64}


def _timed(found: Model, timed: Measured, rows: Sequence[Row]) -> None:
    places: dict[Any, int] = {}
    counts: Counter[tuple[int, bool]] = Counter()
    for i, row in enumerate(rows):
        own = row.part, not isinstance(row.step, Launch)
        places[(*own, counts[own]) if row.transfer is None else row.transfer] = i
        counts[own] += 1
    last = timed.runs[-1]
    for key, measured_row in zip([*timed.keys, *(sent.transfer for sent in last.sent)], timed.profile, strict=True):
        found["steps"][places[key]].update(seconds=measured_row.seconds, share=measured_row.share, limit=measured_row.limit)
    found["seconds"] = timed.profile.seconds
    best = min(timed.runs, key=lambda run: run.end)                         # others on the machine hold up the rest
    ran = [((s.part, s.host, s.number), s.start, s.end) for s in best.spans] + [(s.transfer, s.start, s.end) for s in best.sent]
    found["timeline"] = [[places[key], round(1e-3 * start, 3), round(1e-3 * end, 3)] for key, start, end in ran]


# ----------------------------------------------------------------------------------------------------------------- lines


def _line_links(found: Model, lines: _Lines) -> list[Model]:
    """For each of the user's lines, what it has to do with. bytes, flops, seconds: of the steps that it is part of, in all."""
    rows: list[Model] = [{"file": file, "line": line, "nodes": [], "steps": [], "kernels": [], "slots": []} for file, line in lines.number]
    for what in ("nodes", "slots"):
        for i, item in enumerate(found[what]):
            if item["line"] >= 0:
                rows[item["line"]][what].append(i)
    for i, step in enumerate(found["steps"]):
        for line in dict.fromkeys([*step["lines"], *(found["nodes"][n]["line"] for n in step["nodes"])]):
            if line >= 0:
                rows[line]["steps"].append(i)
    for i, kernel in enumerate(found["kernels"]):
        kernel["steps"] = [k for k, step in enumerate(found["steps"]) if step["kernel"] == i]
        for line in dict.fromkeys([*kernel["lines"], *(own for k in kernel["steps"] for own in found["steps"][k]["lines"])]):
            if line >= 0:
                rows[line]["kernels"].append(i)
                if line not in kernel["lines"]:
                    kernel["lines"].append(line)
    for row in rows:
        row["file"] = found["files"]["names"].index(row["file"])
        own = [found["steps"][i] for i in row["steps"]]
        row.update(bytes=sum(s["bytes"] for s in own), flops=sum(s["flops"] for s in own), seconds=sum(s.get("seconds", 0.0) for s in own))
    found["files"]["names"] = [basename(file) for file in found["files"]["names"]]
    return rows


def _files(lines: _Lines) -> Model:
    """The functions that the lines are in: the names of the files, and parts of them, each (file, number of its first line, lines)."""
    names = list(dict.fromkeys(file for file, _ in lines.number))
    parts = []
    for i, file in enumerate(names):
        text = [line.rstrip("\n") for line in lines_of(file)]
        spans = sorted({_around(text, line, functions) for functions in [_functions(text)] for f, line in lines.number if f == file})
        merged: list[tuple[int, int]] = []
        for start, end in spans:
            if merged and start <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        parts += [[i, start, text[start - 1:end] or [""] * (end - start + 1)] for start, end in merged]
    return {"names": names, "parts": parts}


def _functions(text: Sequence[str]) -> list[tuple[int, int]]:
    return [(min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or node.lineno)
            for statement in parsed("\n".join(text)) for node in ast.walk(statement)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _around(text: Sequence[str], line: int, functions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The lines of the innermost function around a line, else a few lines."""
    inside = [(end - start, start, end) for start, end in functions if start <= line <= end]
    if inside:
        return min(inside)[1:]
    last = max(line, len(text))
    return max(1, line - _MARGIN), min(last, line + _MARGIN)


# ----------------------------------------------------------------------------------------------------------------- folds


def _fold(nodes: Sequence[Model], what: str) -> Model:
    """The boxes by line, module or kernel. What is given, and constants, stand with what first reads them."""
    keys: list[Any] = [None] * len(nodes)
    users: dict[int, int] = {}
    for i, node in enumerate(nodes):
        for o in node["inputs"]:
            users.setdefault(o, i)
    derived = [node["derived"] for node in nodes]
    for i in range(len(nodes) - 1, -1, -1):
        node, user = nodes[i], users.get(i)
        if not node["inputs"] and user is not None:
            keys[i], derived[i] = keys[user], derived[user]
        else:
            steps = node["steps"]
            keys[i] = {"line": node["line"], "module": node["module"], "kernel": steps[0] if steps else -1}[what]
    edges = [(o, i) for i, node in enumerate(nodes) for o in node["inputs"]]
    folding = folded(keys, derived, edges)
    boxes = [{"key": box.key, "derived": box.derived, "nodes": box.nodes, "inside": box.inside} for box in folding.boxes]
    return {"boxes": boxes, "rows": [list(row) for row in folding.rows]}


def _totals(found: Model) -> Model:
    steps = found["steps"]
    return {"operations": sum(bool(node["inputs"]) for node in found["nodes"]),
            "derived": sum(bool(node["inputs"]) and node["derived"] for node in found["nodes"]),
            "kernels": len(found["kernels"]), "launches": sum(s["times"] for s in steps if not s["host"]),
            "host steps": sum(s["times"] for s in steps if s["host"]), "bytes": sum(s["bytes"] for s in steps),
            "flops": sum(s["flops"] for s in steps), "memory": found.get("memory", {}).get("peak", 0), "seconds": found.get("seconds")}
