"""How the source is laid out: short files and functions, few files a folder, imports without circles, few floors.

The numbers are those that were reached. They may fall, and then the tables here are changed; they do not grow.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.helpers.sources import ROOT, SOURCE, named, parsed, paths

LINES, FUNCTION, MODULES = 500, 80, 12
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

FULL = {"tracegrad": 13, "tracegrad/nn/modules": 17, "tracegrad/distributions": 15}    # of more; torch's layers, constraints


def test_files_are_short():
    found = {named(p): len(p.read_text().splitlines()) for p in paths(*SOURCE)}
    assert {name: n for name, n in found.items() if n > LINES} == {}


def test_the_numpy_backend_is_small():
    """What both backends need is a pass; what one operation needs of NumPy, it says itself."""
    assert sum(len(p.read_text().splitlines()) for p in paths("tracegrad/numpy_backend")) <= 600


def test_few_lines_recall_what_came_before():
    """Calls, eager calls, views; backwards, what is around custom Functions in them, keys, optimizers' steps, recipes; detected loops;
    deferral and policy."""
    names = ("graph/cached_calls", "execute/eager_executor", "tensors/cached_views", "autograd/backward_cache", "autograd/history_key",
             "optim/update", "control_flow/loop_detection", "execute/deferred", "execute/policy")
    lines = sum(len((ROOT / "tracegrad" / f"{name}.py").read_text().splitlines()) for name in names)
    recipe, = (n for n in parsed(ROOT / "tracegrad/execute/program.py").body if isinstance(n, ast.ClassDef) and n.name == "Recipe")
    assert lines + recipe.end_lineno - recipe.lineno + 1 <= 1700


def test_few_lines_make_the_kernels_of_products_and_run_kernels():
    """Tile programs, products, convolutions, attention, small matrices; the interpreter of kernels: docs/measurements.md has the counts."""
    def lines(*folders: str) -> int:
        return sum(len(p.read_text().splitlines()) for p in paths(*folders))

    attention = len((ROOT / "codegen/lower/attention.py").read_text().splitlines())
    assert lines("codegen/tile", "codegen/matmul", "codegen/conv", "codegen/lower/matrices") + attention <= 6609
    assert lines("codegen/kernel/run") <= 685


def may_be_long(path: Path) -> bool:
    """Whether more than FUNCTION lines lie between a `def` and the next one that is not deeper: what has none need not be parsed."""
    defs = [(number, len(line) - len(line.lstrip())) for number, line in enumerate(path.read_text().splitlines())
            if line.lstrip().startswith(("def ", "async def "))]
    end = len(path.read_text().splitlines())
    return any(next((other for other, depth in defs[i + 1:] if depth <= own), end) - number > FUNCTION
               for i, (number, own) in enumerate(defs))


def test_functions_are_short():
    found = {}
    for path in paths(*SOURCE, "tests", "benchmarks", "examples"):
        if not may_be_long(path):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION:
                    found[f"{named(path)}: {node.name}"] = lines
    assert found == {}


def test_files_of_tests_have_names_of_their_own():
    """pytest imports them by these: of two of one name the second is not run, where the first was."""
    names = Counter(path.name for path in paths("tests") if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_folders_have_few_modules():
    count: dict[str, int] = {}
    for path in paths(*SOURCE):
        if path.name != "__init__.py":
            folder = named(path.parent)
            count[folder] = count.get(folder, 0) + 1
    assert {folder: n for folder, n in count.items() if n > FULL.get(folder, MODULES)} == {}


def test_every_file_says_what_it_holds():
    assert [named(p) for p in paths(*SOURCE) if not ast.get_docstring(parsed(p))] == []


@cache
def imports(type_checking: bool) -> nx.DiGraph:
    """Which module imports which. type_checking: also what is imported for annotations only."""
    names = {}
    for path in paths(*SOURCE):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "tracegrad" else ("tracegrad", *parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    for name, path in names.items():
        tree = parsed(path)
        left_out: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not type_checking:
                left_out.update(ast.walk(node))
            if node in left_out:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in names else node.module for a in node.names]
            else:
                found = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            graph.add_edges_from((name, other) for other in found if other in names and other != name)
    return graph


def floors(graph: nx.DiGraph) -> list[str]:
    """The longest chain of modules of which each imports the next (of a circle, one module)."""
    condensed = nx.condensation(graph)
    return [min(condensed.nodes[c]["members"]) for c in nx.dag_longest_path(condensed)]


def folders(graph: nx.DiGraph) -> nx.DiGraph:
    """The same of the folders and files at the top of the package."""
    def top(name: str) -> str:
        return ".".join(name.split(".")[:2])

    out = nx.DiGraph()
    out.add_edges_from((top(a), top(b)) for a, b in graph.edges if top(a) != top(b))
    return out


@pytest.mark.parametrize(("type_checking", "most"), [(False, 1), (True, 2)])
def test_imports_make_no_circle(type_checking, most):
    """With what is for annotations only, two files may name each other (a node and its operation)."""
    assert [sorted(c) for c in nx.strongly_connected_components(imports(type_checking)) if len(c) > most] == []


# What imports modules for what they register, and nothing else: one list of them all, with the check that it is full.
REGISTRIES = {"codegen/lowering_table.py"}


def unused_imports(tree: ast.Module) -> set[str]:
    """The names that a file imports and never reads, but to give a name to what is never read either, or for `__all__`."""
    found = {a.asname or a.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
             and getattr(node, "module", "") != "__future__" for a in node.names if a.name != "*" and a.asname != a.name}
    kept = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Tuple))
            and all(isinstance(t, ast.Name) and t.id.startswith("_") for t in node.targets)]
    reads = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    for node in kept:
        if not any(t.id in reads for t in node.targets):
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Name):
                    reads.remove(inner.id)
    return {name for name in found if name not in reads}


def test_no_import_is_kept_for_its_side_effect():
    found = {named(p): unused for p in paths(*SOURCE) if p.name != "__init__.py" and named(p) not in REGISTRIES
             and not named(p).startswith("tracegrad/torch_api/") and (unused := unused_imports(parsed(p)) - _exported(parsed(p)))}
    assert found == {}
    assert [named(p) for p in paths(*SOURCE) if "noqa: F401" in p.read_text()] == []


def _exported(tree: ast.Module) -> set[str]:
    """The names in a file's `__all__`: it gives them on."""
    return {c.value for node in tree.body if isinstance(node, (ast.Assign, ast.AugAssign)) and "__all__" in ast.unparse(node)
            for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}


def test_the_check_sees_an_import_that_nothing_reads():
    assert unused_imports(ast.parse("from a import b\n_FIRST = b")) == {"b"}
    assert unused_imports(ast.parse("from a import b\n_FIRST = (b,)\n_FIRST.run()")) == set()
    assert unused_imports(ast.parse("import a\nprint(a)")) == set()


def asked(node: ast.Compare | ast.match_case) -> list[ast.AST]:
    """What a comparison compares, also `in` a list, and what a case of a `match` is."""
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [*ast.walk(node.pattern)]
    return [c for side in sides for c in (side, *(side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else ()))]


def test_the_check_sees_a_comparison_of_every_form():
    for text in ('kind == "gpu"', '"gpu" != kind', 'kind in ("gpu", "cpu")', 'match kind:\n    case "gpu": pass', 'target.kind != "cpu"',
                 '{"cpu": 1}[device.kind]', '{"cpu": 1}.get(target.kind)'):
        assert any(asks_for_the_kind(n) for n in ast.walk(ast.parse(text))), text
    for text in ('device.kind == "numpy"', 'device.type == "cpu"', 'self.kind == wanted', 'LOWERED["gpu" if grouped else traits.kernels]'):
        assert not any(asks_for_the_kind(n) for n in ast.walk(ast.parse(text))), text


def asks_for_the_kind(node: ast.AST) -> bool:
    """Whether it compares something with "gpu", or the attribute `kind` with "cpu"; or looks it up in a table written on the spot."""
    if isinstance(node, (ast.Compare, ast.match_case)):
        found = asked(node)
        kind = any(isinstance(n, ast.Attribute) and n.attr == "kind" for n in found)
        return any(isinstance(c, ast.Constant) and (c.value == "gpu" or (kind and c.value == "cpu")) for c in found)
    table = node.value if isinstance(node, ast.Subscript) else node.func.value if (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)) else None
    return isinstance(table, ast.Dict) and any(isinstance(c, ast.Constant) and c.value in ("gpu", "cpu") for c in table.keys)


def test_no_place_asks_which_kind_a_device_is_of():
    """A fact of a kind is a column of `device_kinds.KINDS`; kernels of its own are rows of a table (`lowering(..., on="gpu")`)."""
    assert [f"{named(p)}: {ast.unparse(n)}" for p in paths(*SOURCE) for n in ast.walk(parsed(p)) if asks_for_the_kind(n)] == []


def constants_of_others(tree: ast.Module) -> list[str]:
    """What is assigned to a name in capitals of something else, or to a part of it: a module's constant or table is its own."""
    assigned = [place for node in ast.walk(tree) for place in (
        node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign))
        else [])]
    places = [part for place in assigned for part in (place.elts if isinstance(place, ast.Tuple) else [place])]
    found = []
    for place in places:
        while isinstance(place, ast.Subscript):
            place = place.value
        if isinstance(place, ast.Attribute) and place.attr.isupper() and len(place.attr) > 1:
            found += [ast.unparse(place)] if ast.unparse(place.value) not in ("self", "cls") else []
    return found


def test_no_module_assigns_anothers_constants():
    assert constants_of_others(ast.parse("a.TABLE[:] = [1]\nb, c.LIMIT = 1, 2\nself.MOST = x.T = 3")) == ["a.TABLE", "c.LIMIT"]
    assert {named(p): found for p in paths(*SOURCE) if (found := constants_of_others(parsed(p)))} == {}


def test_import_linters_layers_are_ordered_lists():
    """`a : b` would let two modules of a layer import each other; no contract has one. Each is exhaustive, so a new module gets a place."""
    contracts = [c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    assert len(contracts) >= 17
    assert [layer for c in contracts for layer in c["layers"] if ":" in layer] == []
    assert [c["name"] for c in contracts if not c.get("exhaustive")] == []


def test_tests_mirror_the_folders():
    """A folder of tests is named as what it tests; those of another kind are listed."""
    others = {"helpers", "programs", "project", "public", "random_programs"}
    source = {p.name for folder in ("tracegrad", ".") for p in (ROOT / folder).iterdir() if (p / "__init__.py").exists()}
    assert {p.parent.name for p in (ROOT / "tests").glob("*/test_*.py")} - source - others == set()


@pytest.mark.parametrize("type_checking", [False, True])
def test_folders_make_no_circle(type_checking):
    assert [c for c in nx.strongly_connected_components(folders(imports(type_checking))) if len(c) > 1] == []


def test_the_house_has_few_floors():
    chain = floors(imports(False))
    assert len(chain) <= 24, chain
    above = floors(folders(imports(False)))
    assert len(above) <= 13, above
