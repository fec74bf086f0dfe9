"""Whatever a user's file, cell or name holds that Python takes: kernels are right, texts can be shown, errors name the line."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.modules import imported
from tracegrad import nn
from tracegrad.support import source_lines

pytestmark = pytest.mark.usefixtures("kernels")
X = np.linspace(0.1, 1, 12, dtype=np.float32).reshape(3, 4)
LINES = ["import tracegrad as tg", "def f(x):", "    a = x * 2  # COMMENT", "    b = a.sin() + 1", "    return b.sum(0) * a",
         "def bad(x):", "    a = x + 1", "    return a + tg.ones(7)", ""]
TEXT = "\n".join(LINES)
BAD = 8                                     # the line of the error
PLAIN = TEXT.encode()


def shown(f: Any, folder: Path) -> str:
    """The texts of a traced function that was called: each can be written anywhere. What stands beside its kernels."""
    source = str(f.source())
    for text in (str(f.kernels()), str(f.explain()), source, str(f.graph), f.plan.source, str(f.memory())):
        text.encode()
        assert [line for line in text.split("\n") if not line.isprintable()] == []
    exec(source, {})
    f.page(folder / "page.html", 0)
    f.timeline(folder / "timeline.json")
    (folder / "page.html").read_text(encoding="utf-8")
    return str(f.plan.source)


def check(f: Callable[..., Any], bad: Callable[..., Any], folder: Path, line: int | None = BAD, beside: str = "") -> None:
    """f and bad are functions of TEXT. line: where the error is; beside: what stands beside the kernel."""
    x = tg.tensor(X)
    traced = tg.trace(f)
    np.testing.assert_allclose(traced(x).numpy(), (np.sin(X * 2) + 1).sum(0) * X * 2, rtol=1e-5)
    assert beside in shown(traced, folder)
    for call in (bad, tg.trace(bad)):
        with pytest.raises(tg.ShapeError) as error:
            call(x)
        assert str(error.value).isprintable()
        assert line is None or f":{line}" in str(error.value)


def written(path: bytes | Path, data: bytes) -> types.ModuleType:
    with open(path, "wb") as to:
        to.write(data)
    return imported(path)


FILES: dict[str, tuple[bytes, int, str]] = {
    "tabs": (PLAIN.replace(b"    ", b"\t"), BAD, "a = x * 2"),
    "form feeds": (PLAIN.replace(b"def", b"\x0c\ndef"), BAD + 2, "a = x * 2"),
    "a form feed in front": (PLAIN.replace(b"    a = x * 2", b"\x0c    a = x * 2"), BAD, "a = x * 2"),
    "what ends lines elsewhere": (TEXT.replace("COMMENT", "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029 c").encode(), BAD, "a = x * 2"),
    "BOM": (b"\xef\xbb\xbf" + PLAIN, BAD, "a = x * 2"),
    "CRLF": (PLAIN.replace(b"\n", b"\r\n"), BAD, "a = x * 2"), "CR": (PLAIN.replace(b"\n", b"\r"), BAD, "a = x * 2"),
    "all ends": (PLAIN.replace(b"\n", b"\r", 3).replace(b"\n", b"\r\n", 2), BAD, "a = x * 2"),
    "latin-1": (b"# coding: latin-1\n" + TEXT.replace("COMMENT", "café").encode("latin-1"), BAD + 1, "a = x * 2  # café"),
    "a long line": (PLAIN.replace(b"COMMENT", b"long " * 20_000), BAD, "a = x * 2"),
    "many statements": (PLAIN.replace(b"a = x * 2", b"q = 1;" * 20_000 + b"a = x * 2"), BAD, ""),
    "many lines": (PLAIN.replace(b"def f(x):", b"def f(x):\n" + b"    q = 1\n" * 70_000), BAD + 70_001, "a = x * 2"),
    "from right to left": (TEXT.replace("COMMENT", "\u202e\u200f */ \u2066").encode(), BAD, "a = x * 2"),
    "a backslash": (PLAIN.replace(b"x * 2", b"x \\\n  * 2"), BAD + 1, ""),
    "a backslash in a comment": (PLAIN.replace(b"COMMENT", b"\\"), BAD, "a = x * 2"),
    "an unknown escape": (PLAIN.replace(b"x * 2", rb"x * len(r'\d')"), BAD, "a = x * len"),
    "an expression that assigns": (PLAIN.replace(b"a = x * 2", b"(a := x * 2)"), BAD, "(a := x * 2)"),
}


@pytest.mark.parametrize("what", FILES)
def test_files(what: str, tmp_path: Path) -> None:
    data, line, beside = FILES[what]
    module = written(tmp_path / "module.py", data)
    check(module.f, module.bad, tmp_path, line, beside)


NAMES = [b"new\nline", b"quo\"te'", b"back\\slash", b"ends in \\", b"*", b"%s{}", b"tab\t", "\u202ertl".encode(), b"x" * 240, "é".encode(),
         b"caf\xe9", b"-->", b"<!--", b"#include", b"what??", b"\x1b[31m", b" ", "名前".encode(), b"-c", b"a;b", b"\x01\x02"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files(name: bytes, tmp_path: Path) -> None:
    if sys.getfilesystemencoding() != "utf-8" or os.name != "posix":
        pytest.skip("file names are not bytes here")
    module = written(os.fsencode(tmp_path) + b"/" + name + b".py", PLAIN)
    check(module.f, module.bad, tmp_path, BAD, "a = x * 2")


# What exec and eval, the prompt, IPython's and Jupyter's cells, and code of other programs call their files.
PLACES = ["<stdin>", "<string>", "<ipython-input-3-abcdef>", "/tmp/ipykernel_1/23.py", "<python-input-0>", "<doctest x[0]>", "", "<", "/",
          "/tmp", "/proc/self/mem", "/dev/zero", "/dev/tty", "/dev/stdin", "a\nb", "*/", "\ud800", "x" * 100_000, "//", "\\", "http://x",
          "C:\\x.py", "a/"]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ascii(place)[:20])
def test_code_without_a_file(place: str, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    try:
        code = compile(TEXT, place, "exec")
    except ValueError:
        pytest.skip("Python takes no such name")
    exec(code, scope)
    check(scope["f"], scope["bad"], tmp_path)


@pytest.mark.parametrize("place", ["<ipython-input-7-0123>", "/tmp/ipykernel_1/9.py", "<cell line: 1>"])
def test_cells_of_notebooks(place: str, tmp_path: Path) -> None:
    """IPython gives linecache the text of a cell; another cell of that name replaces it."""
    for text, beside in ((TEXT, "a = x * 2"), (TEXT.replace("x * 2", "2 * x"), "a = 2 * x")):
        linecache.cache[place] = len(text), None, text.splitlines(True), place
        scope: dict[str, Any] = {}
        exec(compile(text, place, "exec"), scope)
        check(scope["f"], scope["bad"], tmp_path, BAD, beside)


# Texts that are not those of the code: of a file that was changed, or that a program gave to linecache.
OTHERS = ["(" * 50_000, "a = " + "-" * 50_000 + "1", "a = " + "x." * 50_000 + "x", "a\0b = '", "\ud800 = 1", "a = b = c\r", "1 = 2",
          "class = '</script><!--<script>'", "a = 9" + "9" * 5_000, "a = '\\N{NO SUCH LETTER}' \\x ", "a = '\\d'", "a: 'b' = lambda: 3", ""]


@one_of(2, "text", OTHERS, ids=lambda text: ascii(text)[:20])
@pytest.mark.filterwarnings("error")
def test_other_texts(text: str, tmp_path: Path) -> None:
    place = "<other text>"
    linecache.cache[place] = 9, None, [f"{text}\n"] * 9 if text else [], place
    scope: dict[str, Any] = {}
    exec(compile(TEXT, place, "exec"), scope)
    check(scope["f"], scope["bad"], tmp_path)


@pytest.mark.parametrize("changed", [
    {"co_filename": "a\0b"}, {"co_linetable": b""}, {"co_firstlineno": 0}, {"co_firstlineno": 2**31 - 10}, {"co_name": "*/ \n ??/"},
    {"co_name": "\ud800"}], ids=str)
def test_code_that_a_program_made(changed: Any, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(TEXT, scope)
    made = [types.FunctionType(scope[name].__code__.replace(**changed), scope, name) for name in ("f", "bad")]
    check(made[0], made[1], tmp_path, None)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_modules_in_archives(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's importer of archives gives the text, if it is UTF-8; a form feed ends no line."""
    name = f"in_archive_{encoding.replace('-', '_')}"
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        text = f"# coding: {encoding}\n{TEXT.replace('COMMENT', 'é')}".replace("def f", "\x0c\ndef f")
        archive.writestr(f"{name}.py", text.encode(encoding))
    monkeypatch.syspath_prepend(str(tmp_path / "lib.zip"))
    module = importlib.import_module(name)
    check(module.f, module.bad, tmp_path, BAD + 2, "a = x * 2  # é" if encoding == "utf-8" else "")


def test_loaders_that_fail(tmp_path: Path) -> None:
    class Loader:
        def __init__(self, text: Any) -> None:
            self.text = text

        def get_source(self, name: str) -> Any:
            if isinstance(self.text, BaseException):
                raise self.text
            return self.text

    for k, text in enumerate((RuntimeError("no"), ImportError("no"), None, b"bytes", 3, "", "(" * 10_000)):
        scope: dict[str, Any] = {"__name__": "loaded", "__loader__": Loader(text)}
        exec(compile(TEXT, f"/no such folder/{k}.py", "exec"), scope)
        check(scope["f"], scope["bad"], tmp_path)


def test_a_file_that_is_gone_or_another_one(tmp_path: Path) -> None:
    for k, change in enumerate((os.remove, lambda p: (os.remove(p), os.mkdir(p)), lambda p: Path(p).write_bytes(b"\xff\0(" * 2000),
                                lambda p: (os.remove(p), os.mkfifo(p)))):
        if os.name != "posix" and k == 3:
            continue
        path = tmp_path / f"module{k}.py"
        module = written(path, PLAIN)
        change(path)
        check(module.f, module.bad, tmp_path)


def test_a_file_that_is_edited_and_loaded_again(tmp_path: Path) -> None:
    """As notebooks reload modules: the text is that of the new code, and variables are called as there."""
    path = tmp_path / "module.py"
    module = written(path, PLAIN)
    check(module.f, module.bad, tmp_path, BAD, "a = x * 2")
    module = written(path, PLAIN.replace(b"b = a.sin() + 1", b"renamed = a.sin() + 1").replace(b"b.sum", b"renamed.sum"))
    os.utime(path, (1, 1))
    check(module.f, module.bad, tmp_path, BAD, "renamed = a.sin() + 1")
    assert not source_lines.line_of(str(path), 0)
    assert not source_lines.line_of(str(path), 99)


# --------------------------------------------------------------------------------------------------- names that are no identifiers

KEYWORDS = ["a b", "*/", "", "class", "\udcff", "x\ny", "get_global_id(0)", "\\", "??/", "a\x00b", "1", "\u202e*/", "x;y", '"', "None",
            "{}", "%s", "\x01x\x02", "</script>", "x" * 10_000, "µ", "\u212a", "🎉", "self", "fn", "kwargs", "x.y", " ", "\t", "\x1b[31m",
            "lambda"]


def messages_of(error: BaseException) -> str:
    text = str(error)
    assert all(line.isprintable() for line in text.split("\n"))
    return text


@one_of(2, "name", KEYWORDS, ids=lambda name: ascii(name)[:20])
def test_names_of_keywords_attributes_and_functions(name: str, tmp_path: Path) -> None:
    x = tg.tensor(X)
    f = tg.trace(lambda **given: {key: (value * 2).sum(0) for key, value in given.items()})
    np.testing.assert_allclose(f(**{name: x})[name].numpy(), 2 * X.sum(0), rtol=1e-5)
    shown(f, tmp_path)
    with pytest.raises(tg.ShapeError) as error:
        tg.trace(lambda **given: given[name] + tg.ones(9))(**{name: x})
    messages_of(error.value)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, f"{name}w", nn.Parameter(tg.ones(3, 4)))
            self.inner = nn.ModuleDict({f"{name}l".replace(".", ""): nn.Linear(4, 4)})

        def forward(self, x: Any) -> Any:
            for layer in self.inner.values():
                x = layer(x * getattr(self, f"{name}w"))
            return x.sum()

    held = {name: x * 1}
    scaled = tg.elementwise("v*v", args=["v"], name=name)
    on_host = types.FunctionType((lambda a: a + 1).__code__, {}, "on_host")
    on_host.__name__ = on_host.__qualname__ = name

    def step(x: Any) -> Any:
        held[name].add_(1)
        return tg.host_call(on_host, scaled(x) * held[name])

    step.__name__ = step.__qualname__ = name
    if "." not in name:
        layer = Layer()
        f = tg.trace(layer)
        f(x).backward()
        shown(f, tmp_path)
        assert set(layer.state_dict()) == set(dict(layer.named_parameters()))
        with pytest.raises(tg.ArgumentError) as wrong:
            layer.load_state_dict({})
        messages_of(wrong.value)
    f = tg.trace(step)
    np.testing.assert_allclose(f(x).numpy(), X * X * (X + 1) + 1, rtol=1e-5)
    shown(f, tmp_path)


SIGNATURES = ["lambda x, /: x*2", "lambda *, x: x*2", "lambda *x: x[0]*2", "lambda **x: x['x']*2", "lambda x, _=3: x*2",
              "lambda _: _*2", "lambda __: __*2", "lambda x, /, **kw: x*2 + kw.get('x', 0)", "lambda self: self*2",
              "lambda args, *kwargs: args*2", "lambda fn: fn*2", "lambda x=(lambda y: y): x*2", "lambda x: (lambda x: x*2)(x)",
              "lambda x, /, *args, y=2, **kw: x*y"]


@pytest.mark.parametrize("signature", SIGNATURES)
def test_signatures(signature: str, tmp_path: Path) -> None:
    plain, x = eval(signature), tg.tensor(X)
    for args, kwargs in (((x,), {}), ((), {"x": x}), ((x,), {"x": x + 1})):
        f = tg.trace(eval(signature))
        try:
            wanted = plain(*args, **kwargs)
        except (TypeError, KeyError) as error:
            with pytest.raises(type(error)):
                f(*args, **kwargs)
            continue
        np.testing.assert_allclose(f(*args, **kwargs).numpy(), wanted.numpy())
        shown(f, tmp_path)
