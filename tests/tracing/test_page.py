"""The page of a traced function, f.memory(), what notebooks show: kernels, operations and lines have their links, and no text is HTML."""

import json
import linecache
import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import ArgumentError, printable
from tracegrad.inspection.page.document import embedded
from tracegrad.inspection.page.layout import folded, layered
from tracegrad.nn import functional as F

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028<!--&"
VOID = {"meta", "input", "img", "br"}


pytestmark = pytest.mark.usefixtures("on_a_cpu")


class Parsed(HTMLParser):
    """The elements of a page, which have to be closed in order; `data` is the JSON in it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.inside = [], [], {}, None
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        self.data = json.loads(self.text["data"]) if "data" in self.text else None

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self.inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text[self.inside] = self.text.get(self.inside, "") + data


def training():
    tg.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    @tg.trace
    def step(x, y, lr):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with tg.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=lr)
                p.grad = None
        return loss

    return step


def page_of(traced, path, **options):
    traced.page(path, **options)
    return Parsed(path.read_text()).data


def check_links(program):
    """Links go both ways, and lead to something that is there."""
    nodes, steps, kernels, slots, lines = (program[kind] for kind in ("nodes", "steps", "kernels", "slots", "lines"))
    for i, node in enumerate(nodes):
        assert node["how"] in ("computed", "line", "inlined", "read", "gone")
        assert bool(node["steps"]) == (node["how"] != "gone")
        assert all(o < i for o in node["inputs"])
        if node["line"] >= 0:
            assert i in lines[node["line"]]["nodes"]
        for k in node["steps"]:
            assert (i in steps[k]["nodes"]) == (node["how"] != "read")
    for k, step in enumerate(steps):
        assert step["host"] or (k in kernels[step["kernel"]]["steps"] and kernels[step["kernel"]]["name"] == step["name"])
        assert step["host"] or step["why"], "why the kernel ends"
        for line in step["lines"]:
            assert k in lines[line]["steps"]
        for slot in step["slots"]:
            assert k in slots[slot]["steps"]
    for j, kernel in enumerate(kernels):
        assert kernel["code"]
        assert all(-1 <= line < len(lines) for _, line, _ in kernel["code"])
        assert all(j in lines[line]["kernels"] for line in kernel["lines"])
        assert {line for _, line, _ in kernel["code"]} - {-1} <= set(kernel["lines"])
    for i, line in enumerate(lines):
        assert line["nodes"] or line["steps"] or line["slots"] or line["kernels"]
        parts = [part for part in program["files"]["parts"] if part[0] == line["file"] and part[1] <= line["line"] < part[1] + len(part[2])]
        assert len(parts) == 1, f"line {i} is shown once"
    for fold in program["folds"].values():
        members = sorted(n for box in fold["boxes"] for n in box["nodes"])
        assert members == list(range(len(nodes)))
        assert sorted(n for box in fold["boxes"] for row in box["inside"] for n in row) == members
        assert sorted(b for row in fold["rows"] for side in row for b in side) == list(range(len(fold["boxes"])))
        assert all(not fold["boxes"][b]["derived"] for left, _ in fold["rows"] for b in left)
        assert all(fold["boxes"][b]["derived"] for _, right in fold["rows"] for b in right)


def test_everything_of_a_training_step_is_linked(tmp_path):
    step = training()
    x, y = tg.randn(100, 8), tg.rand(100, 1)
    step(x, y, 0.1)
    data = page_of(step, tmp_path / "step.html", runs=2)
    program = data["programs"][0]
    check_links(program)
    assert [kernel["name"] for kernel in program["kernels"]] == step.kernels().names
    for kernel in program["kernels"]:
        assert "\n".join(text for text, _, _ in kernel["code"]) == step.kernels()[kernel["name"]].rstrip("\n")
    assert data["compilations"] == ["first call"]
    assert {node["module"] for node in program["nodes"]} == {"", "model.0", "model.1", "model.2"}
    derived = {node["module"] for node in program["nodes"] if node["derived"]}
    assert derived >= {"model.0", "model.1", "model.2"}, "a derivative is its module's, too"
    assert program["seconds"] > 0
    assert {at for at, _, _ in program["timeline"]} == set(range(len(program["steps"])))
    assert all(step["seconds"] > 0 and step["share"] > 0 and step["limit"] in ("memory", "arithmetic") for step in program["steps"])
    loss = next(line for line in program["lines"] if any(program["nodes"][n]["op"] == "tanh" for n in line["nodes"]))
    assert loss["bytes"] == sum(program["steps"][i]["bytes"] for i in loss["steps"]) > 0
    statements = {(line, derived) for kernel in program["kernels"] for text, line, derived in kernel["code"] if "tg_tanh(" in text}
    assert statements == {(program["lines"].index(loss), False)}


def test_a_line_that_is_used_for_several_things_has_them_apart(tmp_path):
    @tg.trace
    def f(x, w):
        y = tg.tanh(x @ w)
        z = (y * y).sum(0)
        return z.sort()[0] @ w

    f(tg.ones(40, 30), tg.ones(30, 30))
    program = page_of(f, tmp_path / "f.html", runs=0)["programs"][0]
    check_links(program)
    first, second = (next(n for n in program["nodes"] if n["op"] == op) for op in ("tanh", "sum"))
    assert first["line"] != second["line"]
    assert program["untimed"] == "not measured"
    assert program["timeline"] == []


def test_what_is_computed_again_is_told(tmp_path):
    @tg.trace
    def f(x):
        y = x.abs() * x
        return y.sum(0), y.sum(1)

    f(tg.ones(600, 600))
    program = page_of(f, tmp_path / "f.html", runs=0)["programs"][0]
    check_links(program)
    counts = {}
    for step in f.plan.launches:
        for entry in step.fused:
            counts[entry] = counts.get(entry, 0) + 1
    assert sorted(item["op"] for item in program["recomputed"]) == sorted(entry[0] for entry, n in counts.items() if n > 1)
    assert {"mul", "abs"} <= {item["op"] for item in program["recomputed"]}
    stored = tg.trace(lambda x: (lambda y: (y.sum(0), y.sum(1)))(tg.materialize(x.abs() * x)))
    stored(tg.ones(600, 600))
    assert page_of(stored, tmp_path / "f.html", runs=0)["programs"][0]["recomputed"] == []


def test_guards_reasons_and_compilations_side_by_side(tmp_path):
    scale = [2.0]

    @tg.trace
    def f(x):
        return (x * scale[0]).sin()

    @tg.trace
    def after(x):
        return (x * scale[0]).sin().sum()

    f(tg.ones(3))
    f(tg.ones(5))
    scale[0] = 3.0
    x = tg.ones(5)
    f(x)
    after(x)
    data = page_of(f, tmp_path / "f.html", runs=1, beside=[after])
    assert data["compilations"] == f.compilations
    assert len(data["compilations"]) == 3
    names = [(program["name"], program["inputs"], program["reason"]) for program in data["programs"]]
    assert names == [("f", ["x: float32[5]"], f.compilations[2]), ("after", ["x: float32[5]"], "first call"),
                     ("f", ["x: float32[3]"], f.compilations[0]), ("f", ["x: float32[5]"], f.compilations[1])]
    assert "item 0 = 3.0" in data["programs"][0]["guards"]
    assert "item 0 = 2.0" in data["programs"][2]["guards"]
    for program in data["programs"]:
        check_links(program)
    assert data["programs"][0]["timeline"]
    assert "nothing holds x" in data["programs"][2]["untimed"]


def test_loops_host_steps_and_user_kernels_are_linked(tmp_path):
    @tg.trace
    def f(x, w):
        h, rows = tg.scan(lambda h, row: (tg.tanh(h @ w + row), h.sum()), tg.zeros(200), x)
        return h, rows, tg.linalg.eigvalsh(w + w.t())

    x, w = tg.randn(7, 200), tg.randn(200, 200)
    f(x, w)
    program = page_of(f, tmp_path / "f.html", runs=1)["programs"][0]
    check_links(program)
    assert any(step["host"] for step in program["steps"])
    tanh = [text for kernel in program["kernels"] for text, line, _ in kernel["code"] if "tanh" in text and line >= 0]
    assert tanh
    assert all(program["kernels"][step["kernel"]]["name"] == step["name"] for step in program["steps"] if not step["host"])


def test_the_interpreter_has_a_page_without_kernels(tmp_path):
    tg.set_device("numpy")
    f = tg.trace(lambda x: (x * x).sum())
    f(tg.ones(3))
    program = page_of(f, tmp_path / "f.html")["programs"][0]
    assert program["kernels"] == program["steps"] == []
    assert "numpy" in program["untimed"]
    assert program["nodes"]
    assert program["folds"]["line"]["boxes"]
    with pytest.raises(ArgumentError, match=r"^memory: .*tg\.set_device"):
        f.memory()


def test_text_of_users_is_never_html(tmp_path):
    source = f"def f(x):\n    y = x * 2.0  # {HOSTILE}\n    return y.sin()  # ]]> \ud800\n"
    name = f"/tmp/{HOSTILE}.py"
    linecache.cache[name] = (len(source), None, [f"{line}\n" for line in source.split("\n")], name)
    space = {}
    exec(compile(source.encode("utf-8", "backslashreplace"), name, "exec"), space)
    space["f"].__name__ = HOSTILE
    f = tg.trace(space["f"])
    f(tg.ones(3))
    f.page(tmp_path / "f.html", runs=0)
    text = (tmp_path / "f.html").read_text()
    page = Parsed(text)
    tags = "html head meta meta meta title style body div noscript script script"
    assert [tag for tag, _ in page.tags] == tags.split()
    assert page.data["programs"][0]["name"] == printable(HOSTILE)
    assert HOSTILE in page.data["programs"][0]["files"]["parts"][0][2][1]
    outside = Parsed(f"<div>{f._repr_html_()}</div>")
    assert [tag for tag, _ in outside.tags] == ["div", "iframe"]
    assert dict(outside.tags)["iframe"]["sandbox"] == "allow-scripts"
    assert Parsed(dict(outside.tags)["iframe"]["srcdoc"]).tags[0][0] == "html"
    ElementTree.fromstring(f.graph._repr_svg_())


def test_nothing_comes_from_elsewhere(tmp_path):
    f = tg.trace(lambda x: x.sin())
    f(tg.ones(3))
    f.page(tmp_path / "f.html", runs=0)
    page = Parsed((tmp_path / "f.html").read_text())
    assert not any({"src", "href", "action"} & attributes.keys() for _, attributes in page.tags)
    policy = next(attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    with pytest.raises(AssertionError):
        Parsed("<div><p></div>")


def test_json_that_ends_no_element():
    for text in (HOSTILE, "]]>", "\ud800", "\x00\x7f", "\\u003c"):
        found = embedded({text: [text]})
        assert not set("<>&\u2028") & set(found)
        assert json.loads(found) == {text: [text]}
    with pytest.raises(ValueError):
        embedded([float("nan")])


def test_layout_rows_lead_downwards_and_derivatives_stand_beside():
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0)]
    rows = layered(4, edges)
    row_of = {item: i for i, row in enumerate(rows) for item in row}
    assert sorted(row_of) == [0, 1, 2, 3]
    assert all(row_of[a] < row_of[b] for a, b in edges if a < b)
    crossed = layered(6, [(0, 5), (1, 4), (2, 3)])
    assert [(crossed[0].index(a), crossed[1].index(b)) for a, b in ((0, 5), (1, 4), (2, 3))] == [(0, 0), (1, 1), (2, 2)], "no edges cross"
    folding = folded(["a", "b", "b", "a", "c"], [False, False, True, True, True], [(0, 1), (1, 2), (2, 3), (3, 4)])
    sides = [([folding.boxes[i].key for i in left], [folding.boxes[i].key for i in right]) for left, right in folding.rows]
    assert sides == [(["a"], ["a"]), (["b"], ["b", "c"])]
    late = folded(["late", "early", "early", "late", "late"], [False] * 5, [(0, 4), (1, 2), (2, 3), (3, 4)])
    assert [late.boxes[i].key for left, _ in late.rows for i in left] == ["early", "late"], "what a box is given first does not move it up"


def large():
    """A traced function of 5,000 operations, called."""
    @tg.trace
    def f(x, w):
        for _ in range(1250):
            x = tg.tanh(x * w + 0.1 * x)
        return x

    f(tg.ones(3), tg.ones(3))
    return f


@pytest.mark.long
def test_five_thousand_operations(tmp_path):
    f = large()
    program = page_of(f, tmp_path / "f.html", runs=0)["programs"][0]
    check_links(program)
    assert len(program["nodes"]) > 5000
    assert len(program["folds"]["line"]["boxes"]) <= 3
    assert (tmp_path / "f.html").stat().st_size < 10_000_000


# ---------------------------------------------------------------------------------------------------------------- memory


def test_memory_is_what_the_plan_holds():
    f = tg.trace(lambda x, w: ((x @ w).tanh() @ w).sin().sum(0))
    f(tg.ones(300, 300), tg.ones(300, 300))
    memory = f.memory()
    plan = f.plan
    assert [moment.step for moment in memory] == [launch.entry for launch in plan.launches]
    assert len(memory) == len(plan.launches)
    assert {value.slot for value in memory.values} == {i for i, slot in enumerate(plan.slots) if slot.kind == "temp"}
    for moment in memory:
        assert moment.bytes == sum(value.bytes for value in moment.alive) <= memory.peak.bytes <= memory.reserved
    for i, launch in enumerate(plan.launches):
        assert {a for a in launch.args if isinstance(a, int) and plan.slots[a].kind == "temp"} <= {v.slot for v in memory[i].alive}
    assert memory.inputs == 2 * 300 * 300 * 4
    assert memory.outputs == 300 * 4
    assert sum(memory.by_line.values()) == memory.peak.bytes
    assert all(re.match(r"test_page.py:\d+", line) for line in memory.by_line)
    assert "alive" in str(memory)
    assert "<table>" in memory._repr_html_()
    assert repr(memory).startswith("<memory of")


def test_memory_of_a_loop_is_there_for_all_of_it():
    @tg.trace
    def f(x, w):
        h, rows = tg.scan(lambda h, row: (tg.tanh(h @ w + row), (h @ w).sum()), tg.zeros(300), x.sin())
        return h, rows.cos()

    f(tg.randn(5, 300), tg.randn(300, 300))
    memory, plan = f.memory(), f.plan
    blocks = {}
    for value in memory.values:
        blocks.setdefault(plan.slots[value.slot].block, []).append((value.first, value.last))
    for spans in blocks.values():                       # what shares a block is never alive together
        spans.sort()
        assert all(a[1] < b[0] for a, b in pairwise(spans))


# ---------------------------------------------------------------------------------------------------------- notebooks, CLI


def test_notebooks_draw_graphs_and_show_functions():
    f = tg.trace(tg.grad(lambda x: (x.sin() * x).sum()))
    assert f._repr_html_() is None
    f(tg.ones(3))
    root = ElementTree.fromstring(f.graph._repr_svg_())
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    assert len(boxes) == len(f.graph)
    assert 'class="derived"' in f.graph._repr_svg_()
    assert type(f.graph.copy()) is type(f.graph)
    assert f.graph.inputs
    assert f.graph.outputs
    assert f._repr_html_().startswith("<iframe")
    kernels = f.kernels()._repr_html_()
    assert kernels.startswith("<pre>")
    assert Parsed(kernels).tags == [("pre", {})]


def test_rich_displays_of_tensors_modules_profiles_and_devices():
    x = tg.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    f = tg.trace(lambda x: x.sin())
    f(x)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    given = {"tensor": x, "module": module, "profile": f.profile(runs=1), "device": x.device}
    shown = {name: found._repr_html_() for name, found in given.items()}
    for text in shown.values():
        Parsed(text)
    assert "float32" in shown["tensor"]
    assert "2 x 3" in shown["tensor"]
    assert "5." in shown["tensor"]
    assert "Linear" in shown["module"]
    assert "16" in shown["module"]
    assert f.plan.launches[0].entry in shown["profile"]
    assert x.device.name in shown["device"]
    big = tg.zeros(3, 100_000)
    assert len(big._repr_html_()) < 5000
    assert "requires_grad" in tg.ones(2, requires_grad=True)._repr_html_()
    g = tg.trace(lambda x: (x._repr_html_(), x * 2)[1])
    assert g(x).tolist() == (x * 2).tolist(), "in a trace it says what is known"


def test_refusals(tmp_path):
    f = tg.trace(lambda x: x.sin())
    with pytest.raises(ArgumentError, match="call it once first"):
        f.page(tmp_path / "f.html")
    f(tg.ones(3))
    with pytest.raises(ArgumentError, match=r"^page: runs must be 0 or more, got -1"):
        f.page(tmp_path / "f.html", runs=-1)
