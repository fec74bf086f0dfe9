"""Common mistakes raise what programs for torch catch, and the message names the call, what was seen and the user's line.

MISTAKES holds torch's exception of each; the slow test asks torch itself. `test_functions_name_arguments_of_wrong_types` calls every public
function with arguments that it cannot take.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import tracegrad as tg
from tracegrad.graph.operators import FOURIER, FUNCTIONAL, LINALG, PUBLIC, SPECIAL

pytestmark = pytest.mark.usefixtures("on_numpy")
KINDS = {"R": RuntimeError, "I": IndexError, "T": TypeError, "V": ValueError}
# kind of exception in torch, call (of the namespace and a (3, 4) matrix of ones), words of the message
MISTAKES: list[tuple[str, Callable[[Any, Any], Any], list[str]]] = [
    ("R", lambda t, x: x + t.ones(5), ["add", "(3, 4)", "(5,)"]),
    ("R", lambda t, x: x @ x, ["matmul", "(3, 4)"]),
    ("R", lambda t, x: t.mm(x, x), ["mm", "(3, 4)"]),
    ("R", lambda t, x: t.dot(x, x), ["dot", "(3, 4)", "matmul"]),
    ("R", lambda t, x: x.T.matmul(t.ones(7)), ["matmul", "(4, 3)", "(7,)"]),
    ("R", lambda t, x: x.view(5), ["view", "(3, 4)", "(5,)"]),
    ("R", lambda t, x: x.reshape(2, 5), ["reshape", "12", "10"]),
    ("R", lambda t, x: x.expand(2, 4), ["expand", "(3, 4)", "(2, 4)"]),
    ("R", lambda t, x: x.permute(0, 0), ["permute", "(0, 0)"]),
    ("R", lambda t, x: t.stack([x, t.ones(2)]), ["stack", "(3, 4)", "(2,)"]),
    ("R", lambda t, x: t.cat([x, t.ones(2, 2)]), ["cat", "(3, 4)", "(2, 2)"]),
    ("R", lambda t, x: t.split(x, -1), ["split", "-1"]),
    ("R", lambda t, x: t.chunk(x, 0), ["chunk", "0"]),
    ("R", lambda t, x: t.topk(x, 9), ["topk", "9", "(3, 4)"]),
    ("R", lambda t, x: t.zeros(2, -1), ["zeros", "-1"]),
    ("R", lambda t, x: t.eye(-1), ["eye", "-1"]),
    ("R", lambda t, x: t.linspace(0, 1, -1), ["linspace", "-1"]),
    ("R", lambda t, x: t.arange(0, 1, 0), ["arange", "step"]),
    ("R", lambda t, x: t.arange(4) // 0, ["floor_divide", "zero", "int64"]),
    ("R", lambda t, x: (x > 0) % 0, ["remainder", "zero", "bool"]),
    ("R", lambda t, x: t.fmod(t.arange(4), 0), ["fmod", "zero"]),
    ("R", lambda t, x: t.div(t.arange(4), 0, rounding_mode="trunc"), ["zero"]),
    ("R", lambda t, x: t.arange(4).remainder_(0), ["remainder", "zero"]),
    ("R", lambda t, x: t.einsum("ij,jk", x, x), ["einsum", "'j'"]),
    ("R", lambda t, x: t.gather(x, 0, x), ["gather", "float32", "index"]),
    ("R", lambda t, x: t.cross(t.ones(2), t.ones(2), dim=0), ["cross", "(2,)"]),
    ("R", lambda t, x: t.linalg.inv(x), ["inv", "(3, 4)", "square"]),
    ("R", lambda t, x: t.linalg.inv(t.zeros(2, 2)).numpy(), ["inv", "singular", "pivot 1"]),
    ("R", lambda t, x: t.linalg.cholesky(-t.eye(2)).numpy(), ["cholesky", "positive definite", "pivot 1"]),
    ("R", lambda t, x: t.linalg.solve(t.stack([t.eye(3), t.zeros(3, 3)]), t.ones(2, 3, 1)).numpy(), ["solve", "singular"]),
    ("R", lambda t, x: t.linalg.lu_factor(t.zeros(2, 2)).LU.numpy(), ["lu_factor", "zero", "lu_factor_ex"]),
    ("R", lambda t, x: t.linalg.lu_factor_ex(t.zeros(2, 3), check_errors=True).pivots.numpy(), ["lu_factor_ex", "zero"]),
    ("R", lambda t, x: t.normal(0.0, t.tensor([1.0, -1.0])).numpy(), ["normal", "std"]),
    ("R", lambda t, x: t.normal(t.ones(2), t.tensor([1.0, -1.0])).numpy(), ["normal", "std"]),
    *[("R", call, ["sub" if k else "neg", "bools", "~x", "logical_not", "x ^ y"]) for k, call in enumerate((
        lambda t, x: -(x > 0), lambda t, x: (x > 0) - 1, lambda t, x: 1 - (x > 0), lambda t, x: (x > 0) - (x > 0), lambda t, x: x - (x > 0),
        lambda t, x: x - True, lambda t, x: (x > 0).sub(x), lambda t, x: t.rsub(x > 0, 1), lambda t, x: t.sub(x, x > 0, alpha=2),
        lambda t, x: x.sub_(x > 0), lambda t, x: (x > 0) - t.tensor(1)))],
    ("R", lambda t, x: +(x > 0), ["positive", "bools"]),
    ("R", lambda t, x: t.as_strided_copy(x, (20,), (1,)), ["as_strided_copy: size"]),
    ("R", lambda t, x: t.as_strided_scatter(x, t.ones(20), (20,), (1,)), ["as_strided_scatter: size"]),
    ("I", lambda t, x: t.ones(()).unbind(), ["unbind"]),
    ("I", lambda t, x: t.ones(()).select(0, 0), ["select"]),
    ("I", lambda t, x: t.fft.fft(t.ones(())), ["fft", "0-d"]),
    ("I", lambda t, x: t.fft.irfft(t.ones(())), ["irfft", "0-d"]),
    ("I", lambda t, x: t.trapz(t.ones(())), ["trapezoid"]),
    ("R", lambda t, x: t.max(t.ones(0)), ["max", "(0,)"]),
    ("R", lambda t, x: t.ones(2, dtype=t.int64).mean(), ["mean", "int64", "float"]),
    ("R", lambda t, x: t.ones(2, dtype=t.int64).std(), ["std", "int64", "float"]),
    ("R", lambda t, x: t.bitwise_and(x, x), ["bitwise_and", "float32"]),
    ("R", lambda t, x: x << 1, ["bitwise_left_shift", "float32"]),
    ("R", lambda t, x: x.item(), ["item", "(3, 4)"]),
    ("R", lambda t, x: bool(x), ["bool", "(3, 4)"]),
    ("R", lambda t, x: t.ones(2).backward(), ["backward", "require grad"]),
    ("R", lambda t, x: t.ones(2, requires_grad=True).backward(), ["backward", "(2,)", "one element"]),
    ("R", lambda t, x: t.ones(2, requires_grad=True).numpy(), ["numpy", "detach()"]),
    ("R", lambda t, x: t.ones(2, requires_grad=True).add_(1), ["add_", "leaf", "no_grad"]),
    ("R", lambda t, x: t.tensor([1]).requires_grad_(), ["requires_grad_", "int64"]),
    ("R", lambda t, x: t.ones(2, dtype=t.int64).add_(0.5), ["add_", "int64", "float"]),
    ("R", lambda t, x: x.masked_fill(x > 0, 1j), ["masked_fill", "1j"]),
    ("R", lambda t, x: t.arange(3).masked_fill(t.arange(3) > 0, t.tensor(1j)), ["masked_fill", "complex64", "int64"]),
    ("R", lambda t, x: t.nn.functional.linear(x, t.ones(5, 3)), ["linear", "(3, 4)", "(5, 3)"]),
    ("R", lambda t, x: t.nn.functional.conv2d(x, x), ["conv2d", "(3, 4)"]),
    ("R", lambda t, x: t.nn.functional.conv2d(t.ones(1, 3, 5, 5), t.ones(4, 2, 3, 3)), ["conv2d", "groups=1", "3 channels"]),
    ("R", lambda t, x: t.nn.functional.conv2d(t.ones(1, 3, 2, 2), t.ones(4, 3, 3, 3)), ["conv2d", "kernel", "padded"]),
    ("R", lambda t, x: t.nn.functional.max_pool2d(t.ones(1, 1, 2, 2), 3), ["max_pool2d", "(1, 1, 2, 2)"]),
    ("R", lambda t, x: t.nn.functional.pad(x, (1,)), ["pad", "(1,)", "(3, 4)"]),
    ("R", lambda t, x: t.nn.functional.mse_loss(x, t.ones(2)), ["mse_loss", "(3, 4)", "(2,)"]),
    ("R", lambda t, x: t.nn.functional.nll_loss(x, t.tensor([0.0, 1.0, 2.0])), ["nll_loss", "target", "float32"]),
    ("R", lambda t, x: t.nn.functional.one_hot(t.tensor([-1]), 3).numpy(), ["one_hot", "-1"]),
    ("R", lambda t, x: t.nn.Linear(3, 4)(t.ones(2, 5)), ["linear", "(2, 5)", "(4, 3)"]),
    ("R", lambda t, x: t.nn.Linear(-1, 4), ["(4, -1)", "non-negative"]),
    ("R", lambda t, x: t.nn.BatchNorm2d(3)(t.ones(2, 4, 5, 5)), ["BatchNorm2d", "3 channels", "(2, 4, 5, 5)"]),
    ("R", lambda t, x: t.nn.LayerNorm(5)(x), ["layer_norm", "(5,)", "(3, 4)"]),
    ("R", lambda t, x: t.nn.LSTM(3, 4)(t.ones(2, 2, 2)), ["LSTM", "(2, 2, 2)"]),
    ("R", lambda t, x: t.nn.Embedding(3, 2)(t.tensor([1.0])), ["embedding", "float32"]),
    ("R", lambda t, x: t.nn.Sequential(t.nn.Linear(2, 2)).load_state_dict({}), ["load_state_dict", "0.weight"]),
    ("R", lambda t, x: t.add(t.ones(2, requires_grad=True), 1, out=t.empty(2)), ["add", "out", "requires grad"]),
    ("R", lambda t, x: t.add(t.ones(2), 1.5, out=t.empty(2, dtype=t.int64)), ["add", "out", "int64"]),
    ("I", lambda t, x: x[5], ["getitem", "index 5", "(3, 4)"]),
    ("I", lambda t, x: x[0, 0, 0], ["getitem", "3 indices"]),
    ("I", lambda t, x: x.sum(2), ["sum", "dim 2"]),
    ("I", lambda t, x: x.max(dim=9), ["max", "dim 9"]),
    ("I", lambda t, x: t.sort(x, dim=4), ["sort", "dim 4"]),
    ("I", lambda t, x: x.transpose(0, 5), ["transpose", "dim 5"]),
    ("I", lambda t, x: t.index_select(x, 0, t.tensor([7])).numpy(), ["index_select", "7"]),
    ("I", lambda t, x: t.nn.functional.embedding(t.tensor([9]), x).numpy(), ["embedding", "9"]),
    ("I", lambda t, x: t.nn.functional.cross_entropy(x, t.tensor([0, 1, 9])).item(), ["cross_entropy", "9", "4 classes"]),
    ("T", lambda t, x: t.zeros("a"), ["zeros", "'a'"]),
    ("T", lambda t, x: t.nn.Linear("a", 4), ["'a'"]),
    ("T", lambda t, x: t.full((2,), 1, dtype="foo"), ["dtype", "'foo'"]),
    ("T", lambda t, x: t.tensor([1, "a"]), ["tensor", "list"]),
    ("T", lambda t, x: len(t.tensor(1)), ["len"]),
    ("T", lambda t, x: ~x, ["bitwise_not", "float32"]),
    ("T", lambda t, x: t.kron(x, 1), ["kron", "other", "int"]),
    ("T", lambda t, x: t.clamp_min(2, x), ["clamp_min", "int", "Tensor"]),
    ("T", lambda t, x: t.relu([x]), ["relu", "list", "Tensor"]),
    ("T", lambda t, x: t.softmax(x, dim="a"), ["softmax", "dim", "'a'"]),
    ("T", lambda t, x: x.reshape("a"), ["reshape", "a"]),
    ("T", lambda t, x: t.sum(x, foo=1), ["sum", "foo"]),
    ("T", lambda t, x: t.optim.SGD(x, lr=0.1), ["SGD", "params", "[tensor]"]),
    ("V", lambda t, x: t.optim.SGD([], lr=0.1), ["SGD", "params"]),
    ("V", lambda t, x: t.optim.SGD([x], lr=-1), ["SGD", "lr", "-1"]),
    ("V", lambda t, x: t.optim.Adam([x], betas=(1, 2)), ["Adam", "betas", "(1, 2)"]),
    ("V", lambda t, x: t.nn.functional.dropout(x, 2.0), ["dropout", "p ", "2.0"]),
    ("V", lambda t, x: t.nn.functional.cross_entropy(x, t.tensor([0, 1])), ["cross_entropy", "target", "(2,)"]),
    ("V", lambda t, x: t.nn.CrossEntropyLoss(reduction="foo")(x, t.tensor([0, 1, 2])), ["reduction", "'foo'"]),
    ("V", lambda t, x: t.nn.BatchNorm2d(3)(t.ones(2, 3)), ["BatchNorm2d", "(2, 3)"]),
    ("V", lambda t, x: t.nn.Conv2d(3, 4, 3, padding="foo"), ["Conv2d", "padding", "'foo'"]),
    ("V", lambda t, x: t.nn.Conv2d(3, 4, 3, padding="same", stride=2), ["Conv2d", "'same'", "stride (2, 2)"]),
    ("V", lambda t, x: t.nn.Conv2d(3, 4, 3, groups=0), ["Conv2d", "groups", "0"]),
    ("V", lambda t, x: t.nn.init.xavier_uniform_(t.ones(3)), ["init", "(3,)"]),
    ("V", lambda t, x: t.manual_seed("a"), ["manual_seed", "'a'"]),
]  # fmt: skip


def test_mistakes() -> None:
    for kind, call, words in MISTAKES:
        x = tg.ones(3, 4)
        with pytest.raises(KINDS[kind]) as caught:
            call(tg, x)
        message = str(caught.value)
        line = f"{__file__}:{call.__code__.co_firstlineno}"
        assert all(word in message for word in words), (message, words)
        assert line in message or words[-1] == "foo", (message, line)              # Python's own error of an unknown keyword
        assert x.tolist() == [[1.0] * 4] * 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torch_raises_the_same_kinds() -> None:
    torch = pytest.importorskip("torch")
    for kind, call, _ in MISTAKES:
        with pytest.raises(KINDS[kind]):
            call(torch, torch.ones(3, 4))


@pytest.mark.filterwarnings("ignore")                               # what numpy says of the dtype "a"
def test_functions_name_arguments_of_wrong_types() -> None:
    x = tg.ones(3, 4)
    calls: list[tuple[Any, ...]] = [
        (2,), (2, x), ([1.0, 2.0],), ("a",), (None,), (x, "a"), (x, None), (x, 2, "a"), ([x],), (x, [x]), (x, x, [2]), (x, 0, "a"), (x, {}),
        (2, x, x), (2, x, x, x)]  # fmt: skip
    own = re.compile("argument|could not convert string to float: 'a'")           # Python's own words
    for space in (PUBLIC, FUNCTIONAL, SPECIAL, LINALG, FOURIER):
        for name, fn in space.items():
            if not callable(fn) or not fn.__module__.startswith("tracegrad.ops"):
                continue
            for args in calls:
                found = failure(fn, args)
                assert not isinstance(found, (tg.GraphError, tg.CompilerBug)), (name, args, found)
                assert found is None or isinstance(found, tg.TracegradError) or own.search(str(found)), (name, args, found)


def failure(fn: Callable[..., Any], args: tuple[Any, ...]) -> Exception | None:
    """The exception that fn(*args) ends in."""
    try:
        fn(*args)
    except Exception as error:
        return error
    return None
