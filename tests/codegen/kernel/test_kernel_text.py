"""Nobody reads the text of generated kernels: what is known of one its objects say. And what they say of text is true.

Tests may read C: here it is compared with that.
"""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.corpus import TARGETS, N, fit, programs
from tests.helpers.marks import one_of
from tracegrad import codegen
from tracegrad.codegen import compiler
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.index.index import Var
from tracegrad.codegen.kernel.ir.expressions import At, Held, Local
from tracegrad.codegen.kernel.ir.kernel import Iteration, Kernel, LoweredLoop
from tracegrad.codegen.kernel.ir.statements import Assign, Declare, Update
from tracegrad.codegen.kernel.ir.vectors import prelude
from tracegrad.codegen.kernel.text.markup import unmarked_in
from tracegrad.codegen.kernel.text.names import means_something
from tracegrad.codegen.mathlib import library
from tracegrad.codegen.planning.source import vector_access
from tracegrad.execute.compile import executable_graph
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.support.dtypes import OPENCL
from tracegrad.support.plan import Target

# What takes text apart, and what that text is.
PATTERNS = {
    "kernel/text/markup.py": "its own marks, and the words of text that says which names are in it",
    "kernel/text/names.py": "names that users gave",
    "kernel/ir/spelling.py": "what ops give as their C, users' among them: a template, an expression",
    "lower/user_sources.py": "users' OpenCL C",
    "mathlib": "templates of functions, and what ops give as their C",
}
METHODS = {
    **PATTERNS,
    "kernel/index/index.py": "a sum that it has just written: + - becomes -",
    "kernel/statement_passes.py": "names that end with a digit, or begin as another does, and the keys of functions that round",
    "kernel/ir/render.py": "a head of two lines",
    "kernel/ir/line_comments.py": "the user's Python line",
    "kernel/writer.py": "a name that ends with a digit",
    "lower/matrices/kernel.py": "the name of an operation, as below",
    "lower/matrices/small_matrices.py": "the name of an operation, which for complex numbers is that of real ones with something before it",
    "planning/source.py": "the space behind the last line",
}
TAKES_APART = {
    "split", "rsplit", "splitlines", "partition", "rpartition", "replace", "startswith", "endswith", "rfind", "removeprefix",
    "removesuffix", "isidentifier", "isdigit", "isalnum", "strip", "lstrip", "rstrip",
}


def reads(source: str) -> set[str]:
    """How a module takes text apart: "re", or the methods of strings that do."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported = {name.name for name in node.names} if isinstance(node, ast.Import) else {node.module}
            found |= {"re"} & imported
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKES_APART:
            if not isinstance(node.func.value, ast.Constant):
                found.add(node.func.attr)
        elif isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
            texts = [n for n in node.comparators if isinstance(n, ast.Attribute) and n.attr in ("text", "source", "code")]
            found.update(f"in .{n.attr}" for n in texts)
    return found


def test_nobody_reads_the_text_of_kernels() -> None:
    root = Path(codegen.__file__).parent
    modules = {path.relative_to(root).as_posix(): reads(path.read_text(encoding="utf-8")) for path in root.rglob("*.py")}
    for module, found in modules.items():
        assert "re" not in found or any(module.startswith(p) for p in PATTERNS), f"{module} looks for patterns: what it needs, objects say"
        assert not found or any(module.startswith(p) for p in METHODS), f"{module} takes text apart: {sorted(found)}"
    for place in METHODS:
        assert any(found for module, found in modules.items() if module.startswith(place)), f"{place} reads nothing any more: take it out"


@pytest.mark.parametrize(("source", "found"), [
    ("import re\nre.search('double', kernel.text)", {"re"}), ("from re import sub", {"re"}),
    ("head = kernel.text.partition('{')", {"partition"}), ("if 'inside' not in kernel.text: pass", {"in .text"}),
    ("lines = code.split(' = ')", {"split"}), ("', '.join(texts).upper()", set()),
])
def test_who_reads_is_found(source: str, found: set[str]) -> None:
    assert reads(source) == found


# ------------------------------------------------------------------------------------------------------------------- what text says

PROGRAMS: dict[str, Any] = {
    "softmax": lambda x, y: tg.softmax(x, 1), "columns": lambda x, y: (x * y).sum(0), "picks": lambda x, y: (x.argmax(0), y.argmin(1)),
    "scans": lambda x, y: x.cumsum(1) + y.cumprod(0), "sorts": lambda x, y: (tg.sort(x, 0), tg.topk(y, 3)),
    "scatter": lambda x, y: x.scatter_add(1, (y > 0).long(), y), "index": lambda x, y: x.scatter(0, (y > 2).long(), y),
    "product": lambda x, y: F.relu(x @ y.t()) + 1, "split": lambda x, y: fit(x, (4, 3000)) @ fit(y, (3000, 4)),
    "batched": lambda x, y: fit(x, (5, 20, 40)) @ fit(y, (5, 40, 9)).exp(), "vector": lambda x, y: x @ y[0],
    "convolution": lambda x, y: tg.grad(lambda w: F.conv2d(fit(x, (2, 4, 9, 13)), w, padding=1).square().sum())(fit(y, (6, 4, 3, 3))),
    "grouped": lambda x, y: tg.grad(lambda z: F.conv2d(z, fit(y, (6, 2, 3, 3)), stride=2, groups=2).exp().sum())(fit(x, (2, 4, 9, 13))),
    "attention": lambda x, y: tg.grad(lambda q: F.scaled_dot_product_attention(q, fit(y, (1, 2, 70, 16)), fit(x, (1, 2, 70, 16)),
                                                                               is_causal=True).sum())(fit(x, (1, 2, 65, 16))),
    "solve": lambda x, y: tg.linalg.solve(fit(x, (9, 4, 4)), fit(y, (9, 4, 2))), "qr": lambda x, y: tg.linalg.qr(fit(x, (3, 6, 4))),
    "mathematics": lambda x, y: x.sin() * tg.special.digamma(y.abs() + 1) + (x * 9).long() // 3,
    "updates": lambda x, y: tuple(fit(x, (n, 30)) * 0.9 + fit(y, (n, 30)) for n in (3, 5, 8, 13, 21)),
    "turned": lambda x, y: fit(x, (300, 400)).t() + fit(y, (400, 300)),
    "weights": lambda x, y: tg.grad(lambda w: F.conv2d(fit(x, (4, 3, 8, 8)), w, padding=1).square().sum())(fit(y, (5, 3, 3, 3))) + 1,
    "long epilogue": lambda x, y: F.gelu(F.gelu(fit(x, (64, 64)) @ fit(y, (64, 64))).sin() + 1).tanh(),
    "draws": lambda x, y: tg.randn(x.shape) + y,
}
WORDS = {"pragma", "unroll", "aligned", "CLK_LOCAL_MEM_FENCE"}


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels of the programs that are compiled, as their plans are assembled."""
    found: list[Kernel] = []
    assemble = compiler.assemble

    def look(graph: Any, steps: Any, *rest: Any) -> Any:
        found.extend(LoweredLoop(tuple(steps), 1, Iteration()).kernels)
        return assemble(graph, steps, *rest)

    monkeypatch.setattr(compiler, "assemble", look)
    return found


def compiled(program: Any, dtype: str, target: Target) -> str:
    """The source of a program of two matrices."""
    draws = np.random.default_rng(0)
    x, y = (tg.tensor(draws.standard_normal((33, 40)).astype(dtype)) for _ in range(2))
    traced = tg.trace(program)
    traced(x, y)
    return compile_graph(executable_graph(traced._seen().program.graph), target).source


def copies(kernel: Kernel) -> list[str]:
    """The variables that are another one by another name: neither changes."""
    statements = list(kernel.statements())
    changed = {s.symbol if isinstance(s, Assign) else s.of for s in statements if isinstance(s, (Assign, Update))}
    found = []
    for s in statements:
        if isinstance(s, Declare) and s.symbol not in changed:
            of: Any = s.value
            while isinstance(of, Held):
                of = of.x
            of = of.index.alone if isinstance(of, At) and of.each is None else of
            if isinstance(of, (Local, Var)) and of not in changed:
                found.append(f"{s.symbol} = {of}")
    return found


@one_of(2, "program", PROGRAMS)
def test_what_is_said_of_text_is_true(program: str, assembled: list[Kernel]) -> None:
    """Which variables are in it (none is a copy of another), which types it computes with, and whether it has arrays."""
    before = tg.device()
    tg.set_device("numpy")
    try:
        for dtype in ("float32", "float64"):
            for target in (*TARGETS.values(), Target(simd_bytes=16)):
                assembled.clear()
                source = compiled(PROGRAMS[program], dtype, target)
                for kernel in assembled:
                    assert copies(kernel) == []
                    for text, _ in kernel.printed:
                        for word in unmarked_in(text):
                            assert means_something(word) or word in WORDS, f"{word!r} is not declared: {text!r}"
                    arrays = any(re.match(r" *(const )?\w+ (\w+, )*\w+\[|.*(__local|barrier\()", line) for line in kernel.lines)
                    alone = kernel.cooperates or kernel.arrays > 0
                    assert alone == arrays if target.kind == "cpu" else alone >= arrays, kernel.text
                    shown = " ".join(line.partition("//")[0] for line in kernel.lines)
                    widest = max(of.itemsize * lanes for of, lanes in kernel.types)
                    for name, lanes in re.findall(r"\b(u?(?:char|short|int|long)|float|double)(2|4|8|16)?\b", shown):
                        if name == "double":
                            assert any(of == np.float64 for of, _ in kernel.types), kernel.text
                        if lanes and int(lanes) * SIZES[name] > target.simd_bytes:
                            assert int(lanes) * SIZES[name] <= widest, kernel.text
                assert ("cl_khr_fp64" in source) == (re.search(r"\bdouble\d*\b", re.sub(r"#define.*", "", source)) is not None)
    finally:
        tg.set_device(before)


def test_the_prelude_has_each_type_once_and_only_what_the_target_computes_in() -> None:
    uses = [("LOAD", "uchar8"), ("STORE", "uchar8"), ("LOCAL", "float4"), ("LOAD", "double2"), ("GATHER4", "float4")]
    text = "\n".join(prelude(uses, Target(fp64=False)))
    assert text.count("uchar8_u;") == 1
    assert text.count("#define LOAD(") == text.count("#define STORE_uchar8(") == text.count("#define LOCAL_float4(") == 1
    assert "double" not in text
    assert "GATHER" not in text


def test_gathers_are_the_processors_where_it_has_a_fast_one() -> None:
    """Those of 32-bit elements, if the compiler has it, too; by 64-bit indices and of other elements one after the other, as elsewhere."""
    def defined(uses: set[tuple[str, str]], **more: Any) -> dict[str, str]:
        text = "\n".join(vector_access(frozenset(uses), Target(simd_bytes=64, **more)))
        return dict(re.findall(r"^#define (\w+)\(.*?\) (.*)$", text, re.MULTILINE)[::-1])

    uses = {("GATHER16", "float16"), ("GATHER16", "long16"), ("GATHER8", "double8"), ("GATHER8_IF", "float8"), ("FAR_GATHER16", "float16")}
    found, plain = defined(uses, gathers=True), defined(uses)
    assert "gathersiv16sf((float16)(0), " in found["GATHER16_float16"]
    assert found["GATHER16_long16"] == plain["GATHER16"].replace("(V)", "(long16)")
    assert found["GATHER8_double8"] == plain["GATHER8"].replace("(V)", "(double8)")
    assert [found[name] for name in ("GATHER8_IF", "FAR_GATHER16")] == [plain[name] for name in ("GATHER8_IF", "FAR_GATHER16")]
    assert found["FAR_GATHER16"] == plain["GATHER16"]
    few = defined({("GATHER16", "long16")}, gathers=True)            # beside other kernels' in one program: one macro
    assert few == {name: found[name] for name in few}


def test_a_vector_at_an_edge_is_one_load_where_the_processor_has_masks() -> None:
    """Of the types that have an instruction, if the compiler has it, too; else lane by lane, which is what every other compiler gets."""
    uses = frozenset({("LOAD16_IF", "float16"), ("LOAD8_IF", "double8"), ("LOAD8_IF", "uchar8")})
    text = "\n".join(vector_access(uses, Target(simd_bytes=64)))
    lines = dict(re.findall(r"^#define (\w+)\(.*?\) (.*)$", text, re.MULTILINE)[::-1])
    plain = dict(re.findall(r"^#define (\w+)\(.*?\) (.*)$", "\n".join(vector_access(uses, Target(clang_builtins=False))), re.MULTILINE))
    assert lines["LOAD16_IF_float16"].startswith("__builtin_ia32_loadups512_mask(")
    assert lines["LOAD8_IF_double8"].startswith("__builtin_ia32_loadupd512_mask(")
    assert lines["LOAD8_IF_uchar8"] == plain["LOAD8_IF"].replace("(V)", "(uchar8)")
    assert text.count("#else\n") == 2
    assert plain["LOAD16_IF"].startswith("((V)(((m).s0 ? (p)[(i).s0] : 0), ")
    assert "ia32" not in "".join(plain.values())


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int64", "uint8", "bool", "float16"])
@pytest.mark.parametrize("n", [3, 15, 16, 17, 31, 45])
def test_neighbours_at_the_edges_of_memory(dtype: str, n: int) -> None:
    """The lanes that a vector does not have lie before the first element of all, or behind the last: nothing is read there."""
    x = (np.random.default_rng(n).random((2, n)) * 100).astype(dtype)
    pad = tg.nn.functional.pad
    f = tg.trace(lambda x: (pad(x[:, 1:], (2, 1)), pad(x, (3, 5)), pad(x[:, :-2], (0, 9))))
    want = np.pad(x[:, 1:], ((0, 0), (2, 1))), np.pad(x, ((0, 0), (3, 5))), np.pad(x[:, :-2], ((0, 0), (0, 9)))
    for got, expected in zip(f(tg.from_numpy(x)), want, strict=True):
        np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("size", [8, 16, 24, 1000])
def test_what_is_read_at_indices(dtype: str, size: int) -> None:
    """The first and the last element of a table, too; that of one element; and one that is written meanwhile."""
    table = (np.random.default_rng(0).random(37) * 100).astype(dtype)
    index = np.random.default_rng(1).integers(-37, 37, size)
    index[[0, 3, -1]] = [-37, 36, 0]
    f = tg.trace(lambda t, i: (t[i], t[:1][i * 0]))
    for got, want in zip(f(tg.tensor(table), tg.tensor(index)), (table[index], table[:1][index * 0]), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    g = tg.trace(lambda t, i: t.add_(t[i]))
    t = tg.tensor(table[:1].repeat(size)) if dtype == "bool" else tg.tensor(np.resize(table, size))
    want = t.numpy() | t.numpy()[index % size] if dtype == "bool" else t.numpy() + t.numpy()[index % size]
    np.testing.assert_array_equal(g(t, tg.tensor(index % size)).numpy(), want)


SIZES = {type_: dtype.itemsize for dtype, type_ in OPENCL.items()}


def test_functions_say_their_types() -> None:
    """A sine of floats computes with doubles."""
    assert ("double", 8) in library.types(["tg_sin:float8"], Target())
    assert library.types(["tg_exp:float8"], Target()) == {("float", 8)}


def test_cpus_read_arrays_of_the_host_which_may_begin_anywhere() -> None:
    """Vectors that begin at a multiple of their size in an array need not do so in memory."""
    x = placeholder(Aval((64, 256), np.dtype("float32")), "x")
    source = compile_graph(Graph.capture([x], [(x * 2.0).exp()]), TARGETS["avx2"]).source
    assert "LOAD(float8, x" in source
    assert "ALIGNED" not in source


def test_a_user_may_call_a_variable_what_a_kernel_calls_its_own() -> None:
    """The search for the largest element on a GPU has a variable `best`, which gives way to the user's."""
    x = placeholder(Aval((3, 5000), np.dtype("float32")), "best")
    source = compile_graph(Graph.capture([x], [bind(REGISTRY["argmax"], (x,), {"dim": 1})]), TARGETS["gpu"]).source
    assert "float best1 = " in source
    assert "__global const float *restrict best," in source


def test_bits_are_called_after_what_they_are(kernels: None) -> None:
    """Not after the operation."""
    f = tg.trace(lambda x: tg.sin(((x >> 3) & 7).float()) + (x >> 5).float().cos())
    f(tg.arange(4096).reshape(64, 64))
    found = re.findall(r"^ +\w+ (\w+) = ", f.plan.source.split("__kernel")[1], re.MULTILINE)
    assert {"bits", "shifted"} <= set(found)
    assert not any(name.startswith("bitwise") for name in found)


def test_a_number_that_the_host_makes_is_called_after_what_it_makes_it_of(kernels: None) -> None:
    """Not after the last operation on it, which says nothing; unless the user named it."""
    def scaled(x: Any, rate: float) -> Any:
        twice = rate * 2
        return x * twice, x * (rate + 1)

    def numbers(fn: Any, *given: Any) -> list[str]:
        """The by-value parameters of its kernel, as they are shown."""
        f = tg.trace(fn)
        f(*given)
        return re.findall(r"const \w+ (\w+)[,)]", f.plan.source)

    assert numbers(lambda x: F.dropout(x, 0.5, True), tg.zeros(64, 64)) == ["seed_low", "seed_high", "offset"]
    assert numbers(scaled, tg.zeros(64), 0.5) == ["twice", "rate"]


@pytest.mark.parametrize("name", ["conv", "strided conv", "gradient of conv", "attention", "softmax", "matmul", "column sum", "sort"])
def test_kernels_declare_no_index_that_is_a_number(name: str, kernels: None) -> None:
    """It is printed as the number: a loop of one iteration, the one tile of an axis, the rest of a row behind its vectors."""
    x, y = (tg.tensor(np.random.default_rng(n).standard_normal(N).astype(np.float32)) for n in range(2))
    traced = tg.trace(programs()[name])
    traced(x, y, 0.5)
    for target in TARGETS.values():
        source = compile_graph(executable_graph(traced._seen().program.graph), target).source
        assert not re.findall(r"const (?:int|long) \w+ = -?\d+;", source)
        loops = re.findall(r"for \(int (\w+) = (\d+); \1 < (\d+); \1(?:\+\+| \+= (\d+))\) (?!.*break)", source)
        once = [loop for loop in loops if int(loop[2]) - int(loop[1]) <= int(loop[3] or 1)]
        assert not once or "break;" in source


def test_steps_of_random_numbers_are_called_by_what_they_are_for(kernels: None) -> None:
    f = tg.trace(lambda x: F.dropout(x, 0.3, True))
    f(tg.zeros(64, 64))
    body = f.plan.source.rpartition("__kernel")[2]
    assert {"counter", "word", "bits", "keep"} <= set(re.findall(r"\b\w*[a-z](?= = )", body))
    assert "bitwise" not in body


COPIED: dict[str, Any] = {
    "halves": lambda x, y: (x.half() * 2 + y.half()).float().exp(), "few columns": lambda x, y: tg.softmax(fit(x, (64, 5)), 1),
    "dropout": lambda x, y: F.dropout(x, 0.5) + y, "draws": PROGRAMS["draws"],
}


@pytest.mark.parametrize("program", COPIED)
def test_no_variable_is_a_copy(program: str, assembled: list[Kernel]) -> None:
    """Nor is what a function is given in parentheses of its own, or a cast of a value a line away from it."""
    compiled(COPIED[program], "float32", TARGETS["avx2"])
    kernels = re.sub(r" *//.*", "", "\n".join([line for kernel in assembled for line in kernel.lines]))
    assert not re.search(r"^ *(?:u?(?:int|long)|float)\d* \w+ = [a-z]\w*;", kernels, re.MULTILINE), kernels
    assert not re.search(r"\w\(\([^()]*(\([^()]*\))?[^()]*\)\)", re.sub(r"\)\(", "", kernels)), kernels
    assert not re.search(r"^ *\w+ (\w+) = (?!.*convertvector).*;\n *\w+ \1\d+ = __builtin_convertvector\(\1, \w+\);", kernels, re.MULTILINE)
