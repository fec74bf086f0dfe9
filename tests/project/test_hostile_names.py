"""Names and text that users give: whatever Python admits can be read in kernels and programs, means nothing there, and ends with its line.

Words: those of OpenCL C 1.2 to 3.0 with its extensions (opencl_words.txt), and those of the headers that the driver itself includes.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import linecache
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers import corpus
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel import statement_passes as finish
from tracegrad.codegen.kernel.ir.statements import Block, declared_in
from tracegrad.codegen.kernel.text.markup import beside
from tracegrad.codegen.kernel.text.names import means_something, possible, spelled
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.errors import ArgumentError, printable
from tracegrad.execute.compile import executable_graph
from tracegrad.graph.printing import identifier, namer, to_dot, to_text
from tracegrad.runtime.device import Device
from tracegrad.runtime.programs.build import build
from tracegrad.support.plan import Target

WORDS = (Path(__file__).parent / "opencl_words.txt").read_text(encoding="utf-8").split()
# What Python reads as another name, what C may not have in one, and what our own texts call something.
OTHERS = ["µ", "ﬁ", "ª", "ℵ", "℘", "x·y", "कि", "ſ", "𝐱", "ß", "É", "Δx", "名前", "_", "__", "__x", "x__", "_1", "match",
          "self", "cls", "np", "tg", "primitive", "result", "lambda_", "complex", "range", "print", "k0", "x" * 300]
X = np.linspace(0.1, 1, 25, dtype=np.float32).reshape(5, 5)


@pytest.fixture
def driver() -> Device:
    found = tg.device()
    if found.kind == "numpy":
        pytest.skip("the default device is the interpreter, which has no driver")
    return found


def of_headers(device: Device) -> list[str]:
    """Every word of the headers that PoCL reads in front of a kernel, where they are to be had."""
    places = [Path("/usr/share/pocl/include")]
    package = importlib.util.find_spec("pocl_binary_distribution")
    if package is not None and package.origin is not None:
        places.append(Path(package.origin).parent / ".libs/share/pocl/include")
    texts = [path.read_text(errors="replace") for place in places for path in sorted(place.glob("*.h"))]
    if not texts or "Portable" not in device.cl_device.platform.name:
        pytest.skip(f"the headers of {device.cl_device.platform.name} are not to be had as files")
    return sorted({word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text)})


def holding(words: list[str]) -> str:
    """A program of kernels that have these words as parameters, as pointers and numbers in blocks, and still can call functions."""
    writer = Writer(Target(kind="cpu"), lambda node: "")
    writer.used.add("at")
    parts = []
    for k in range(0, len(words), 100):
        names = [writer.unique(word) for word in words[k:k + 100]]
        taken = ", ".join(f"__global const float *{name}" for name in names)
        numbers = "".join(f"  {{ float {name} = 1; at[0] += {name} + sin({name}); const int {name}_i = 0; at[{name}_i] += 1; }}\n"
                          for name in names)
        parts.append(f"__kernel void pointers_{k}(__global float *at, {taken}) {{ {' '.join(f'at[0] += {name}[0];' for name in names)} }}\n"
                     f"__kernel void numbers_{k}(__global float *at) {{\n{numbers}}}\n")
        writer.rewind({"at"})
    return "".join(parts)


@pytest.mark.matrix
def test_no_word_of_the_language_gets_into_a_kernel(driver: Device) -> None:
    build(driver, holding([*WORDS, *OTHERS]))


@pytest.mark.matrix
def test_no_word_of_the_drivers_headers_gets_into_a_kernel(driver: Device) -> None:
    found = of_headers(driver)
    assert len(found) > 1000
    build(driver, holding(found))


@pytest.mark.matrix
def test_what_the_driver_defines_is_known(driver: Device) -> None:
    """The driver's own preprocessor says which words are macros for more than another word: none of them is a name."""
    candidates = [word for word in {*WORDS, *OTHERS} if word.isascii() and word.isidentifier()]
    texts = " ".join(f'TEXT({word}) "\\n"' for word in candidates)
    program = build(driver, f"""
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
__constant char texts[] = {texts};
__kernel void defined_here(__global int *size, __global char *to) {{
  *size = sizeof(texts);
  for (int i = 0; i < (int)sizeof(texts); i++)
    to[i] = texts[i];
}}
""")
    import pyopencl as cl  # noqa: PLC0415 - tests of the interpreter need no driver

    queue = cl.CommandQueue(driver.context, driver.cl_device)
    size, found = np.zeros(1, np.int32), np.zeros(1 << 18, np.int8)
    buffers = [cl.Buffer(driver.context, cl.mem_flags.READ_WRITE, a.nbytes) for a in (size, found)]
    program.defined_here(queue, (1,), None, *buffers)
    cl.enqueue_copy(queue, size, buffers[0])
    cl.enqueue_copy(queue, found, buffers[1])
    means = found[:size[0] - 1].tobytes().decode().split("\n")
    macros = [word for word, text in zip(candidates, means, strict=False) if not re.fullmatch(r"[A-Za-z_]\w*", text)]
    assert "FLT_MAX" in macros
    writer = Writer(Target(kind="cpu"), lambda node: "")
    assert [m for m in macros if writer.unique(m) == m] == [], macros


def test_usual_names_stay_as_they_are() -> None:
    usual = ["x", "W", "Q", "K", "V", "lr", "LR", "MAX", "BATCH_SIZE", "LEARNING_RATE", "hidden", "h_t", "x_t", "loss", "Integer",
             "intercept", "constants", "generics", "cluster", "clip", "class_weights", "M",
             "m_pi", "interest", "doubled", "long_name", "Linear"]
    assert [possible(name) for name in usual] == usual
    assert [spelled(name) for name in ("α", "Δx", "dθ", "θ0", "é", "ñu", "ø", "ß", "µ", "ﬁ", "ℵ", "Ж", "x²")] == [
        "alpha", "Delta_x", "d_theta", "theta0", "e", "nu", "o", "s", "mu", "fi", "alef", "Zhe", "x2"]
    assert spelled("名前").isascii()
    assert spelled("名前") != spelled("前名")


@pytest.mark.parametrize("text", ["", "0", "a\nb", "*/", '"', "\udcff", "\0", "\u2028", "ﷺ", "a b", "class", "__debug__", "ͺx", "·"])
def test_any_text_becomes_a_name(text: str) -> None:
    name = identifier(text)
    assert name.isidentifier()
    assert not keyword.iskeyword(name)
    assert unicodedata.normalize("NFKC", name) == name
    assert possible(text).isascii()
    assert possible(text).isidentifier()


# --------------------------------------------------------------------------------------------------------- names in programs

PLACES = {
    "argument": ("def f({n}, w):\n    return ({n} * 2).sin() + w\n", "f(X, X)"),
    "variable": ("def f(x):\n    {n} = x * 2\n    {n} = {n} + x.sum(0)\n    return {n}\n", "f(X)"),
    "product": ("def f({n}, w):\n    return ({n} @ w).relu() + {n}\n", "f(X, X)"),
    "function": ("def {n}(x):\n    return x.exp() + 1\nf = {n}\n", "f(X)"),
    "keyword": ("def f(*args, **kw):\n    return {{k: v * 2 for k, v in kw.items()}}\n", "f(**{{{n!r}: X}})"),
    "closure": ("def make():\n    {n} = X * 1\n    def f(x):\n        return x * {n} + {n}.sum()\n    return f\nf = make()\n", "f(X)"),
    "attribute": ("class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                  "        self.at_{n} = nn.Parameter(tg.ones(5, 5))\n"
                  "    def forward(me, x):\n        return x @ me.at_{n}\nm = M()\ndef f(x):\n    return m(x).sum()\n", "f(X)"),
    "scan": ("def f({n}):\n    def step(c, {n}):\n        {n}2 = c * 0.5 + {n}\n"
             "        return {n}2, {n}2.sum()\n    return tg.scan(step, {n}[0], {n})\n",
             "f(X)"),
    "elementwise": ("e = tg.elementwise('{n}*{n} + 1', args=[{n!r}], derivatives={{{n!r}: '2*{n}'}}, name={n!r})\n"
                    "def f(x):\n    return e(x)\n", "f(X)"),
    "host": ("def {n}(a):\n    return a + 1\nh = {n}\ndef f(x):\n    return tg.host_call(h, x * 2) * 3\n", "f(X)"),
    "opencl": ("k = tg.opencl_function(entry='twice', source='''__kernel void twice(__global const float *x, __global float *y) "
               "{{ int i = get_global_id(0); y[i] = 2 * x[i]; }}''')\ndef f({n}):\n    return k({n} + 1) * 3\n", "f(X)"),
    "result": ("def f(x):\n    return {{{n!r}: x + 1, 'b': x * 2}}\n", "f(X)"),
    "state": ("{n} = tg.ones(5, 5)\ndef f(x):\n    {n}.add_(x)\n    return {n} * 2\n", "f(X)"),
}
# Where the program itself needs the word for what it calls.
NEEDS = {("tg", "scan"), ("tg", "elementwise"), ("tg", "host"), ("tg", "closure"), ("tg", "state"), ("self", "function")}


def traced(place: str, name: str) -> tuple[Any, Any, Any]:
    """A program with a user's name in it: the traced function, its results, and those of the plain function."""
    template, call = PLACES[place]
    text, call = template.format(n=name), call.format(n=name)
    file = f"<{place} {name[:9]}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    found = []
    for wrap in (lambda f: f, tg.trace):
        scope: dict[str, Any] = {"tg": tg, "nn": nn, "X": tg.tensor(X)}
        exec(compile(text, file, "exec"), scope)
        scope["f"] = wrap(scope["f"])
        found.append(eval(call, scope))
    return scope["f"], found[1], found[0]


def leaves(results: Any) -> list[np.ndarray[Any, Any]]:
    items = results.values() if isinstance(results, dict) else results if isinstance(results, tuple) else [results]
    return [item.detach().numpy() for item in items]


def names_for(place: str) -> Iterator[str]:
    words = ["read_only", "image2d_t", "float4_u", "M_PI_F", "FLT_MAX", "HUGE_VALF", "CLK_LOCAL_MEM_FENCE", "cl_khr_fp64", "sin",
             "generic", "LOAD", "get_global_id", *OTHERS]
    return (word for word in words if (word, place) not in NEEDS and not keyword.iskeyword(word))


@one_of(16, ("place", "name"), [(place, name) for place in PLACES for name in names_for(place)])
def test_a_name_in_every_place(place: str, name: str, driver: Device, tmp_path: Path) -> None:
    f, found, wanted = traced(place, name)
    for a, b in zip(leaves(found), leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert str(f.kernels())
    assert str(f.explain())
    assert to_text(f.graph)
    assert to_dot(f.graph)
    source = f.source()
    scope: dict[str, Any] = {}
    exec(source, scope)
    assert callable(next(v for k, v in reversed(scope.items()) if f"def {k}(" in unicodedata.normalize("NFKC", source)))
    f.timeline(tmp_path / "t.json")
    json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))


@one_of(8, "place", PLACES)
def test_the_text_for_people_builds(place: str, driver: Device) -> None:
    """What `f.kernels()` shows is C: with the names, lines and comments that drivers are not given."""
    texts = [traced(place, name)[0].plan.source for name in list(names_for(place))[:13]]
    for text in texts:
        build(driver, text)


OWN_NAMES = {
    **{row: corpus.ROWS[row] for row in ("cumsum", "cumprod", "sort", "topk", "argmax", "scatter", "softmax of columns", "wide product",
                                         "conv")},
    "max pool": "tg.func.grad(lambda v: (F.max_pool2d(v, 3, 2) * fit(y, (4, 8, 4, 4))).sum())(fit(x, (4, 8, 9, 9)))",
    "long running sum": "fit(x, (100_000,)).cumsum(0)", "running sums of columns": "fit(x, (3000, 40)).cumsum(0)",
    "long sort": "fit(x, (30_000,)).sort()", "products": "fit(x, (100_000,)).cumprod(0)", "variance": "fit(x, (3000, 40)).var(0)",
    "eigenvalues": "tg.linalg.eigh(x @ x.mT)", "singular values": "tg.linalg.svd(x @ x.mT)", "Fourier": "tg.fft.fft(x)",
    "systems": "tg.linalg.solve(x @ x.mT + tg.eye(3), y[:, :3])", "exponential": "tg.matrix_exp(x @ x.mT)",
}
OWN_TARGETS = TARGETS | {"gpu without fp64": replace(TARGETS["gpu"], fp64=False)}


@one_of(6, "row", OWN_NAMES)
def test_what_a_kernel_calls_its_own_gives_way_to_users_names(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' variables that are called as kernels call their own keep their names. (`verify_kernel` proves that each means one.)"""
    own: Counter[str] = Counter()
    parameters: set[str] = set()
    name_own = finish.name_own

    def see(writer: Writer) -> None:
        blocks = [writer.blocks[0]]
        for block in blocks:
            blocks += [item for item in block.items if isinstance(item, Block)]
            own.update(s.name for s in declared_in(block) if s not in writer.given)
        parameters.update(p.name for p in writer.params.values())
        name_own(writer)

    def compiled(x: str, y: str) -> None:
        text = re.sub(r"\by\b", y, re.sub(r"\bx\b", x, OWN_NAMES[row]))
        fn = eval(f"lambda {x}, {y}: {text}", {"tg": tg, "F": tg.nn.functional, "fit": corpus.fit})
        draw = np.random.default_rng(0)
        traced_ = tg.trace(fn)
        traced_(*(tg.tensor(draw.standard_normal(corpus.N).astype(np.float32)) for _ in range(2)))
        graph = executable_graph(traced_.graph)
        for target in OWN_TARGETS.values():
            compile_graph(graph, target, name=namer(graph))

    monkeypatch.setattr(finish, "name_own", see)
    compiled("x", "y")
    assert "x" in parameters
    names = [name for name, _ in own.most_common() if possible(name) == name and not means_something(name) and not keyword.iskeyword(name)]
    parameters.clear()
    x, y, *_ = *names, "y", "z"
    compiled(x, y)
    assert x in parameters


@pytest.mark.parametrize(("name", "call"), [
    *((name, f"tg.func.grad(lambda v: (F.max_pool2d(v, 3, 2) * {name}).sum())(x)") for name in ("plane", "plane_first", "pixel", "window")),
    ("share_low", "share_low.reshape(-1, 16).cumsum(0) * 1")])
def test_users_names_that_kernels_had(name: str, call: str) -> None:
    scope: dict[str, Any] = {"tg": tg, "F": tg.nn.functional}
    exec(f"def f(x, {name}):\n    return {call}", scope)
    previous = tg.device()
    tg.set_device("numpy")
    try:
        with Checked() as checked:
            tg.trace(scope["f"])(tg.ones(4, 8, 9, 9), tg.arange(512.0).reshape(4, 8, 4, 4))
    finally:
        tg.set_device(previous)
    assert checked.count >= len(TARGETS)


def test_source_of_a_function_that_is_called_as_what_it_calls() -> None:
    f = tg.elementwise("x*x", name="f")
    text = tg.trace(f)
    text.__name__ = "f"
    text(tg.tensor(X))
    scope: dict[str, Any] = {}
    exec(text.source(), scope)
    np.testing.assert_allclose(scope["f"](tg.tensor(X))[0].numpy(), X * X, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------------------- text

LINES = ["a = x * 2  # what??/", "a = x * 2  # what\\", "a = x * 2  # ???/", "a = x * 2  # */ } /* //",
         "a = x * 2  # \x01x\x02 \x0e \x10get_global_id(0)\x11",
         "a = x * 2  # \x0c\x0b\x85 \u2028 \u2029 \x1b[31m", "a = x * 2  # \udcff\ud800", "a = x * 2  # \x00",
         "a = x * 2  # " + "long " * 9999,
         'a = x * 2  # """ \\N{x} %s {} \t "', "a = x * 2  # #define a 3 \\u0041 \ufeff \u202e"]


def test_a_comment_ends_with_its_line(driver: Device) -> None:
    for line in LINES:
        file = f"<line {LINES.index(line)}>"
        linecache.cache[file] = len(line), None, ["def f(x):\n", f"    {line}\n", "    b = a + 1\n", "    return b.sum(0) * a\n"], file
        scope: dict[str, Any] = {}
        exec(compile("def f(x):\n    a = x * 2\n    b = a + 1\n    return b.sum(0) * a\n", file, "exec"), scope)
        f = tg.trace(scope["f"])
        np.testing.assert_allclose(f(tg.tensor(X)).numpy(), (X * 2 + 1).sum(0) * X * 2, rtol=1e-5)
        build(driver, f.plan.source)
        texts = f.plan.source, str(f.explain()), f.source(), to_text(f.graph)
        for text in texts:
            assert all(part.isprintable() for part in text.split("\n")), line
            text.encode()
        assert not any(part.endswith(("??/", "\\")) for part in f.plan.source.split("\n"))
        exec(f.source(), {})


def test_what_a_comment_is_made_of() -> None:
    for code in [*range(0x300), *range(0x2000, 0x2100), *range(0xD7FE, 0xE002), 0xFEFF, 0xFFFF, 0x10FFFF]:
        text = beside(f"a{chr(code)}b??/")
        assert len(text.splitlines()) == 1
        assert text.isprintable()
        assert "??/" not in text
        assert "\\" not in text
        text.encode()
    assert printable("as it is, ∂") == "as it is, ∂"


SCRIPT = """
import json, os, sys
import numpy as np
import tracegrad as tg
tg.config.eager = False
def f(x):
    a = x * 2
    return a.sin() + 1
f = tg.trace(f)
x = tg.ones(5)
y = f(x)
for text in (f.kernels(), f.source(), f.explain(), f.plan.source, f.graph):
    print(text)
f.timeline("trace.json")
json.load(open("trace.json"))
try:
    tg.ones(3) + tg.ones(4)
except tg.ShapeError as error:
    print(error, error.line)
try:
    tg.linalg.inv(tg.zeros(3, 3)).numpy()
except tg.errors.LinAlgError as error:
    print(error)
print("done")
"""


def test_a_script_whose_name_is_not_unicode(tmp_path: Path) -> None:
    if sys.getfilesystemencoding() != "utf-8" or os.name != "posix":
        pytest.skip("file names are not bytes here")
    path = os.fsencode(tmp_path) + b"/caf\xe9 \xff.py"
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
    except OSError:
        pytest.skip("this file system has no such names")
    env = {**os.environ, "PYTHONPATH": str(Path(tg.__file__).parent.parent), "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([sys.executable.encode(), path], capture_output=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert done.stdout.endswith(b"done\n")
    assert "caf\ufffd \ufffd.py:7" in done.stdout.decode()


# ------------------------------------------------------------------------------------------------------------ users' own C


@pytest.mark.parametrize("expression", ["x + 1; y", "x) + (x", "(x + 1", "x + 1 \\", "x \0", "x # 2", "x ??/",
                                        "", "/* x", "{x}", "x \udcff", "// x"])
def test_what_is_no_expression(expression: str) -> None:
    with pytest.raises(ArgumentError, match=r"elementwise: .*expression"):
        tg.elementwise(expression, args=["x"])


def test_expressions_with_comments_and_names_of_physics() -> None:
    x = tg.tensor(X)
    scaled = tg.elementwise("x * µ // by the mass */ )", derivatives=dict(µ="x", x="µ  /* ; */"))
    assert scaled.args == ("x", "μ")
    np.testing.assert_allclose(tg.trace(scaled)(x, x + 1).numpy(), X * (X + 1), rtol=1e-6)
    several = tg.elementwise("ﬁ\n + ª * 2", args=["ﬁ", "ª"])
    np.testing.assert_allclose(tg.trace(several)(x, x).numpy(), X * 3, rtol=1e-6)
    with pytest.raises(ArgumentError, match=r"elementwise: 'a b' cannot be the name"):
        tg.elementwise("a + b", args=["a b"])


def test_kernels_of_users_and_ours_do_not_meet(driver: Device) -> None:
    """A user's macro or function may be called as a variable of ours, or as a function that ours call."""
    twice = tg.opencl_function(entry="twice", source="""
        #define x 3 +
        #define LOAD nonsense
        typedef float float4_u;
        static float tg_sin(float v) { return 2 * v; }
        __kernel void twice(__global const float *values, __global float *y) { int i = get_global_id(0); y[i] = tg_sin(values[i]); }""")
    f = tg.trace(lambda x, values: (twice((x + values).sin()) * x).sin())
    np.testing.assert_allclose(f(tg.tensor(X), tg.tensor(X)).numpy(), np.sin(2 * np.sin(2 * X) * X), rtol=1e-5)
    assert {step.entry for step in f.plan.launches} - {function.entry for function in f.plan.functions} == {"twice"}


@pytest.mark.parametrize("source", ["__kernel void k() {}\0", "__kernel void k() {} // \udcff"])
def test_sources_that_no_driver_can_be_given(source: str) -> None:
    with pytest.raises(ArgumentError, match=r"opencl_function: .*UTF-8"):
        tg.opencl_function(entry="k", source=source)
