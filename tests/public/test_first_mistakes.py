"""What beginners do: each error names the call, shows what was given and the user's line, and ends with what to write instead."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.__main__ import main
from tracegrad.nn import functional as F


class InAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2)]


class NoStatic(tg.Function):
    def forward(self, ctx, x):
        return x * x


MISTAKES = [
    # what is done with scores (8, 3), class numbers and a weight; the error; words of the message
    ("images into a linear layer", lambda s, y, w: nn.Linear(784, 10)(tg.ones(2, 1, 28, 28)), tg.ShapeError,
     ["linear: ", "(2, 1, 28, 28)", "(10, 784)", "input.flatten(1)"]),
    ("a layer for other features", lambda s, y, w: nn.Linear(5, 4)(s), tg.ShapeError,
     ["linear: ", "(8, 3)", "(4, 5)", "Linear(3, 4) takes"]),
    ("a linear layer without a bias", lambda s, y, w: F.linear(s, w), tg.ShapeError, ["linear: ", "(8, 3)", "(4,)"]),
    ("float labels", lambda s, y, w: F.cross_entropy(s, y.float()), tg.ShapeError,
     ["cross_entropy: ", "float32", "(8,)", "(8, 3)", "target.long()"]),
    ("one-hot labels", lambda s, y, w: F.cross_entropy(s, F.one_hot(y, 3)), tg.ShapeError,
     ["cross_entropy: ", "(8, 3)", "target.argmax(1)"]),
    ("a column of labels", lambda s, y, w: F.cross_entropy(s, y.unsqueeze(1)), tg.ShapeError,
     ["cross_entropy: ", "(8, 1)", "target.reshape(8,)"]),
    ("channels last", lambda s, y, w: nn.Conv2d(3, 8, 3)(tg.ones(2, 28, 28, 3)), tg.ShapeError,
     ["conv2d: ", "28 channels", "movedim(-1, 1)"]),
    ("an image's channels last", lambda s, y, w: nn.Conv2d(3, 8, 3)(tg.ones(28, 28, 3)), tg.ShapeError, ["conv2d: ", "movedim(-1, 0)"]),
    ("an image without channels", lambda s, y, w: nn.Conv2d(1, 8, 3)(tg.ones(28, 28)), tg.ShapeError,
     ["conv2d: ", "(28, 28)", "unsqueeze(0)"]),
    ("a batch of one", lambda s, y, w: nn.BatchNorm1d(3)(s[:1]), tg.ShapeError, ["batch_norm: ", "(1, 3)", "model.eval()"]),
    ("cuda", lambda s, y, w: s.to("cuda"), tg.NoDriverError, ["device: none matches 'cuda'", "called 'gpu' here"]),
    ("cuda:0", lambda s, y, w: tg.set_device("cuda:0"), tg.NoDriverError, ["device: none matches 'cuda:0'", "called 'gpu' here"]),
    ("a model for its parameters", lambda s, y, w: optim.Adam(nn.Sequential(nn.Linear(3, 3))), tg.ArgumentTypeError,
     ["Adam: ", "Linear", "model.parameters()"]),
    ("layers in a list", lambda s, y, w: optim.Adam(InAList().parameters()), tg.ArgumentError,
     ["Adam: ", "no parameters", "nn.ModuleList"]),
    ("another name for lr", lambda s, y, w: optim.SGD([w], learning_rate=0.1), tg.ArgumentTypeError,
     ["SGD: got an unexpected argument 'learning_rate'; it takes lr, "]),
    ("lr as a word", lambda s, y, w: optim.SGD([w], lr="0.1"), tg.ArgumentError, ["SGD: lr: must be a Python number, got '0.1' (str)"]),
    ("NumPy on what requires grad", lambda s, y, w: np.sin(w), tg.AutogradError, ["numpy.asarray: ", "tg.sin", "x.detach()"]),
    ("an array as a factor", lambda s, y, w: s @ np.eye(3), tg.DTypeError, ["matmul: ", "ndarray", "tg.tensor(...)"]),
    ("an array times a tensor", lambda s, y, w: np.eye(8) @ s, tg.DTypeError, ["matmul: ", "ndarray", "tg.tensor(...)"]),
    ("math on a vector", lambda s, y, w: math.sin(y), tg.ShapeError, ["float: ", "(8,)", "tg's take tensors"]),
    ("int of a vector", lambda s, y, w: int(y), tg.ShapeError, ["int: ", "(8,)"]),
    ("jvp without tuples", lambda s, y, w: tg.jvp(lambda x: x, s, s), tg.ArgumentTypeError,
     ["jvp: primals must be a tuple", "(8, 3)", "(x,)"]),
    ("jvp along no tuple", lambda s, y, w: tg.jvp(lambda x: x, (s,), s), tg.ArgumentTypeError, ["jvp: tangents must be a tuple", "(x,)"]),
    ("tensors one by one", lambda s, y, w: tg.cat(s, y), tg.ArgumentTypeError, ["cat: dim ", "int64[8]", "cat([a, b])"]),
    ("tensors to stack", lambda s, y, w: tg.stack(s, s), tg.ArgumentTypeError, ["stack: dim ", "float32[8, 3]", "stack([a, b])"]),
    ("a forward with self", lambda s, y, w: NoStatic.apply(w), tg.ArgumentError,
     ["NoStatic.apply: ", "forward(self, ctx, x)", "@staticmethod"]),
]


@pytest.mark.parametrize(("call", "error", "words"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told_with_the_way_out(call, error, words):
    with pytest.raises(error) as told:
        call(tg.rand(8, 3), tg.arange(8) % 3, tg.ones(4, requires_grad=True))
    message = str(told.value)
    assert message.startswith(words[0])
    assert [word for word in words if word not in message] == []
    assert message.endswith(f"(at {__file__}:{call.__code__.co_firstlineno})")


def test_run_tells_of_a_device_that_is_not_there_before_the_program_runs(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('it ran')\n")
    assert main(["run", "--device", "cuda", str(script)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("run: device: none matches 'cuda'; a GPU of any vendor is called 'gpu' here; present are ")


def indexed(x):
    return range(x.sum().long())


LOOKS = [
    # what a traced function does with its argument, what the message calls that, and the way out
    (lambda x: x if x.sum() > 0 else -x, "bool()", "tg.where for a choice between values, tg.cond or tg.while_loop"),
    (lambda x: print(f"{x.sum().item():.3f}"), "item()", "return the tensor and look at it outside"),
    (lambda x: x * float(x.sum()), "float()", "tg.sin for math.sin"),
    (lambda x: math.sin(x.sum()), "float()", "tg.sin for math.sin"),
    (lambda x: x[: int(x[0])], "int()", "as a Python (static) argument"),
    (indexed, "index()", "as a Python (static) argument"),
    (lambda x: 2 * np.sin(x), "numpy.asarray()", "tg.sin for numpy.sin"),
    (lambda x: tg.tensor(x.numpy()), "numpy()", "tg.sin for numpy.sin"),
    (lambda x: x.tolist(), "tolist()", "return the tensor and look at it outside"),
]


@pytest.mark.parametrize(("body", "call", "way"), LOOKS, ids=[f"{look[1]} {i}" for i, look in enumerate(LOOKS)])
def test_a_look_at_a_value_inside_a_trace_names_itself_and_the_way_out(body, call, way):
    line = body.__code__.co_firstlineno + (body is indexed)
    with pytest.raises(tg.TraceError) as told:
        tg.trace(body)(tg.ones(3))
    assert str(told.value).startswith(f"{call} at {__file__}:{line}: inside @trace ({body.__name__}")
    assert way in str(told.value)
    assert str(told.value).count("(at ") == 0                           # the line is told once


def test_numbers_that_are_known_in_a_trace_can_be_looked_at():
    constant, kept = tg.trace(lambda x: x * float(tg.arange(3).sum().float())), tg.tensor(2.0)
    assert constant(tg.ones(2)).tolist() == [3.0, 3.0]
    assert float(kept) == 2.0
    assert [*range(tg.tensor(2))] == [0, 1]


WARNED = [
    lambda x: F.softmax(2 * x),
    lambda x: nn.Softmax(dim=None)(2 * x),
    lambda x: x[x.to(tg.uint8)],
    lambda x: nn.LSTM(2, 3, dropout=0.5),
    lambda x: nn.Hardtanh(min_value=-2.0),
    lambda x: F.mse_loss(x, x, size_average=False),
    lambda x: (x + 1j).to(tg.float32),
    lambda x: tg.set_num_threads(tg.get_num_threads() + 1),
    lambda x: nn.InstanceNorm1d(5)(x.reshape(1, 3, 1).expand(1, 3, 4)),
    lambda x: tg.cuda.amp.GradScaler(),
]


@pytest.mark.parametrize("call", WARNED, ids=range(len(WARNED)))
def test_warnings_are_at_the_users_line(call):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call(tg.ones(3))
    assert [(w.filename, w.lineno) for w in told] == [(__file__, call.__code__.co_firstlineno)]


def test_another_name_is_proposed_for_a_mistyped_one():
    with pytest.raises(AttributeError, match=r"^tracegrad has no 'tenosr'; did you mean 'tensor'\?$"):
        tg.tenosr([1.0])
    with pytest.raises(AttributeError, match=r"^tracegrad has no 'xyzzyx'$"):
        tg.xyzzyx([1.0])
    for far in ("hub", "library"):                                       # no name is near: none is proposed
        with pytest.raises(AttributeError, match=f"^tracegrad has no '{far}'$"):
            getattr(tg, far)


@pytest.mark.parametrize(("name", "here"), [("compile", r"tg\.trace\(f\)"), ("jit", r"tg\.trace\(f\)"), ("array", r"tg\.tensor"),
                                            ("profiler", r"f\.profile\(\) of a traced function f")])
def test_what_has_another_name_here_is_told(name, here):
    with pytest.raises(AttributeError, match=f"^tracegrad has no '{name}'; use {here}$"):
        getattr(tg, name)
