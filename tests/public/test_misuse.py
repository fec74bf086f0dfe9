"""Wrong arguments: every error is ours, names the call and what it was given; a user's own errors pass as they are."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import ArgumentError, DTypeError, ShapeError, TracegradError
from tracegrad.nn import functional as F
from tracegrad.optim import lr_scheduler


def optimizer() -> tg.optim.SGD:
    return tg.optim.SGD([nn.Parameter(tg.ones(2))], 0.1)


def complex_parameter() -> Any:
    return [nn.Parameter(tg.ones(2, 2, dtype=tg.complex64))]


CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "complex numbers have no order": (lambda: F.relu6(tg.ones(2, dtype=tg.complex64)), DTypeError, "relu6: does not take complex64"),
    "nor a largest": (lambda: F.adaptive_max_pool2d(tg.ones(1, 4, 4, dtype=tg.complex64), 2), DTypeError, "does not take complex64"),
    "integers have no gates": (lambda: nn.LSTM(2, 3)(tg.ones(4, 2, dtype=tg.int64)), DTypeError, "LSTM: does not take int64"),
    "a scheduler of 3": (lambda: lr_scheduler.LambdaLR(3, lambda epoch: 1.0), ArgumentError, "LambdaLR: optimizer: .* got int"),
    "a plateau of 3": (lambda: lr_scheduler.ReduceLROnPlateau(3), ArgumentError, "ReduceLROnPlateau: optimizer: .* got int"),
    "a factor that is none": (lambda: lr_scheduler.LambdaLR(optimizer(), 3), ArgumentError, "lr_lambda: expected functions"),
    "steps of 0": (lambda: lr_scheduler.StepLR(optimizer(), 0), ArgumentError, "StepLR: step_size must be at least 1"),
    "a cosine of 0": (lambda: lr_scheduler.CosineAnnealingLR(optimizer(), 0), ArgumentError, "T_max must be at least 1"),
    "milestones": (lambda: lr_scheduler.MultiStepLR(optimizer(), 3), ArgumentError, "milestones: expected a list of epochs, got int"),
    "a factor of None": (lambda: lr_scheduler.ConstantLR(optimizer(), None), ArgumentError, r"ConstantLR: .* of \(SGD, None\)"),
    "parameters": (lambda: tg.optim.SGD(3), ArgumentError, "SGD: params: expected an iterable"),
    "betas": (lambda: tg.optim.Adam(optimizer().param_groups[0]["params"], betas=0.9), ArgumentError, "Adam: betas: must be two numbers"),
    "Adafactor": (lambda: tg.optim.Adafactor(complex_parameter()), DTypeError, "Adafactor: params: .* is complex64"),
    "Muon": (lambda: tg.optim.Muon(complex_parameter()), DTypeError, "Muon: params: .* is complex64"),
    "init of a list": (lambda: nn.init.zeros_([1]), DTypeError, "zeros_: tensor must be a Tensor, got list"),
    "a negative width": (lambda: nn.init.normal_(tg.zeros(2), std=-1), ArgumentError, "normal_: std must not be negative"),
    "an empty interval": (lambda: nn.init.uniform_(tg.zeros(2), 2, 1), ArgumentError, "uniform_: a must not be above b"),
    "integers from a range": (lambda: tg.ones(2).long().uniform_(), DTypeError, "uniform_: makes floats, not int64"),
    "normal integers": (lambda: tg.ones(2).long().normal_(), DTypeError, "normal_: makes floats, not int64"),
    "a word of a range": (lambda: tg.ones(2).uniform_(0, "b"), ArgumentError, "uniform_: high must be a number, got 'b'"),
    "a median of None": (lambda: tg.ones(2).cauchy_(None), ArgumentError, "cauchy_: median must be a number, got None"),
    "trials of bools": (lambda: (tg.ones(2) > 0).geometric_(0.5), DTypeError, "geometric_: makes numbers of trials, not bool"),
    "complex integers": (lambda: tg.ones(2, dtype=tg.complex64).random_(), DTypeError, "random_: makes integers, not complex64"),
    "a diagonal that is NaN": (lambda: tg.ones(2, 2).diagonal(float("nan")), ArgumentError, "diagonal: offset must be an integer, got nan"),
    "the diagonal True": (lambda: tg.ones(2).diag(True), ArgumentError, "diag: offset must be an integer, got True"),
    "counts below 0": (lambda: tg.distributions.Binomial(-1, 0.5), ArgumentError, "Binomial: parameter total_count"),
    "half a count": (lambda: tg.distributions.Binomial(tg.tensor([1.5]), 0.5), ArgumentError, "Binomial: parameter total_count"),
    "a complex mean of floats": (lambda: nn.init.normal_(tg.ones(2), 1j), DTypeError, "init: float32 cannot hold complex64"),
    "a width that is NaN": (lambda: nn.init.normal_(tg.ones(2), std=float("nan")), ArgumentError, "std must not be negative, got nan"),
    "a trace of a number": (lambda: tg.trace(3), ArgumentError, "trace: takes a function, got int"),
    "a gradient of a tensor": (lambda: tg.func.grad(tg.ones(2)), ArgumentError, r"grad: takes a function, got Tensor; .* y.backward\(\)"),
    "a map of a tensor": (lambda: tg.vmap(tg.ones(2)), ArgumentError, "vmap: takes a function, got Tensor"),
    "a product with a tensor's Jacobian": (lambda: tg.vjp(tg.ones(2), tg.ones(2)), ArgumentError, "vjp: takes a function, got Tensor"),
    "a Jacobian of None": (lambda: tg.jacfwd(None)(tg.ones(2)), ArgumentError, "jacfwd: takes a function, got NoneType"),
    "a Jacobian for half": (lambda: tg.jacfwd(tg.sin, 1.5)(tg.ones(2)), ArgumentError, "jacfwd: argnums must be an integer, got 1.5"),
    "a call of None": (lambda: tg.func.functional_call(None, {}, ()), ArgumentError, "functional_call: takes a Module .* NoneType"),
    "a call with 3": (lambda: tg.func.functional_call(nn.Linear(2, 2), 3, ()), ArgumentError, "functional_call: .* Linear and int"),
    "a norm of words": (lambda: nn.utils.clip_grad_norm_([nn.Parameter(tg.ones(2))], "a"), ArgumentError, "max_norm must .* 'a'"),
    "a batch of None": (lambda: nn.BatchNorm1d(2)(None), DTypeError, "BatchNorm1d: input must be a Tensor, got NoneType"),
    "a sequence of lists": (lambda: nn.GRU(2, 2)([[1.0]]), DTypeError, "GRU: input must be a Tensor, got list"),
    "a query of None": (lambda: nn.TransformerEncoderLayer(4, 2)(None), DTypeError, "query must be a Tensor, got None"),
    "half a decimal": (lambda: tg.ones(2).round(decimals=1.5), ArgumentError, "decimals must be an integer, got 1.5"),
    "a huge number": (lambda: tg.exp(10**30), DTypeError, "the number 10+ does not fit int64"),
    "a switch": (lambda: tg.sum(tg.ones(2), 0, keepdim=np.ones(2)), ArgumentError, r"sum: keepdim must be True or False, got ndarray"),
    "a switch that says False": (lambda: F.dropout(tg.ones(2), 0.5, "False"), ArgumentError, "dropout: training must be .* 'False'"),
    "a switch by place": (lambda: tg.ones(2).mean(0, "a"), ArgumentError, "mean: keepdim must be True or False, got 'a'"),
    "no switch": (lambda: tg.ones(2).sum(0, keepdim=None), ArgumentError, "sum: keepdim must be True or False, got None"),
    "a switch of a tensor": (lambda: tg.zeros(2, requires_grad="no"), ArgumentError, "zeros: requires_grad must be True .* got 'no'"),
    "a switch in place": (lambda: tg.ones(2).requires_grad_("no"), ArgumentError, "requires_grad_: requires_grad must be .* got 'no'"),
    "a switch that may be None": (lambda: tg.ones(2).std(0, unbiased="no"), ArgumentError, "std: unbiased must be True or False, got 'no'"),
    "a layer's switch": (lambda: nn.Linear(2, 3, bias="False"), ArgumentError, "Linear: bias must be True or False, got 'False'"),
    "a backward's switch": (lambda: tg.ones(1, requires_grad=True).sum().backward(retain_graph="no"), ArgumentError,
                            "backward: retain_graph must be True or False, got 'no'"),
    "two dtypes": (lambda: tg.ones(2).to(tg.float64, tg.float32), ArgumentError, "to: takes one dtype and one device"),
    "two devices": (lambda: tg.ones(2).to("cpu", "cpu"), ArgumentError, r"to: takes one .* got \('cpu', 'cpu'\)"),
    "a module of integers": (lambda: nn.Linear(2, 3).to(tg.int64), DTypeError, "to: a module's parameters .* cannot be int64"),
    "data that is a number": (lambda: setattr(tg.ones(2), "data", 5), ArgumentError, "data: must be a Tensor, got int"),
    "bits of floats": (lambda: tg.ones(2) << 1, DTypeError, r"bitwise_left_shift: does not take float32; .* x.to\(tg.int64\)"),
    "a divisor": (lambda: tg.lcm(tg.ones(2), tg.ones(2)), DTypeError, "^lcm: does not take float32"),
    "a factor of a sum": (lambda: tg.ones(2).add(tg.ones(2), alpha="a"), DTypeError, "^add: expected a Tensor or a Python scalar, got str"),
    "columns": (lambda: tg.hstack([tg.ones(3, 4), tg.ones(4, 5)]), ShapeError, "^hstack: shapes .* must agree"),
    "a mask of attention": (lambda: F.scaled_dot_product_attention(*[tg.ones(2, 3, 4)] * 3, attn_mask=tg.ones(7, 7)), ShapeError,
                            "^scaled_dot_product_attention: shapes"),
    "gradients of nothing": (lambda: tg.autograd.grad(tg.ones(1, requires_grad=True).sum(), []), ArgumentError, "grad: inputs is empty"),
    "a gradient by 5": (lambda: tg.autograd.grad(tg.ones(1, requires_grad=True).sum(), 5), ArgumentError, "inputs must .* got int"),
    "an argument twice": (lambda: tg.func.grad(lambda a: a.sum(), argnums=(0, -1))(tg.ones(2)), ArgumentError, "grad: argnums .* twice"),
    "an argument's name": (lambda: tg.func.grad(lambda a: a.sum(), argnums="a")(tg.ones(2)), ArgumentError, "grad: argnums must .* 'a'"),
    "a condition of words": (lambda: tg.cond("no", lambda a: a, lambda a: a, tg.ones(2)), ArgumentError, "cond: pred must be .* got str"),
    "a rate of None": (lambda: tg.optim.SGD(optimizer().param_groups[0]["params"], lr=None), ArgumentError, "SGD: lr: must .* got None"),
    "a group of 5": (lambda: optimizer().add_param_group(5), ArgumentError, "add_param_group: params: a group must be .* got int"),
    "a group that holds 5": (lambda: optimizer().add_param_group({"params": 5}), ArgumentError, "add_param_group: params: .* got int"),
    "a class's group that holds [5]": (lambda: tg.optim.SGD([{"params": [5]}]), ArgumentError, "^SGD: params: expected Tensors, got int"),
    "ends of many": (lambda: tg.linspace(tg.ones(2), 3, 4), ShapeError, r"linspace: expected a number, .* got shape \(2,\)"),
    "another's shape": (lambda: tg.ones(6).reshape_as(tg.ones(4)), ShapeError, "^reshape_as: "),
    "a size like 3": (lambda: tg.ones(6).resize_as_(3), ArgumentError, "resize_as_: the_template must be a Tensor, got int"),
    "a size like another's": (lambda: tg.ones(6, requires_grad=True).resize_as_(tg.ones(2)), tg.AutogradError, "^resize_as_: "),
    "a window of -1": (lambda: tg.hamming_window(-1), ArgumentError, "hamming_window: window_length must not be negative"),
    "a window of 2.5": (lambda: tg.hann_window(2.5), ArgumentError, "hann_window: window_length must be an integer, got 2.5"),
    "an integer window": (lambda: tg.kaiser_window(4, dtype=tg.int64), DTypeError, "kaiser_window: dtype must be a float dtype"),
    "an optimizer's state of 5": (lambda: optimizer().load_state_dict(5), ArgumentError, "load_state_dict: takes .* got int"),
    "an optimizer's empty state": (lambda: optimizer().load_state_dict({}), ArgumentError, "load_state_dict: there is no 'param_groups'"),
    "a buffer called 5": (lambda: nn.Module().register_buffer(5, tg.ones(2)), ArgumentError, "register_buffer: a name must .* int"),
    "a bias of 5": (lambda: nn.Linear(2, 1).load_state_dict({"weight": tg.ones(1, 2), "bias": 5}), ArgumentError,
                    "load_state_dict: Linear: bias must be a Tensor, got int"),
    "a stride": (lambda: F.avg_pool1d(tg.ones(1, 1, 8), 2, 10**30), ArgumentError, "stride must be an integer"),
    "limits": (lambda: nn.utils.clip_grad_value_(3, 1.0), ArgumentError, "clip_grad_value_: parameters: .* got int"),
    "a layer": (lambda: nn.Linear("a", 3), ArgumentError, "Linear: empty: sizes"),
    "a distribution": (lambda: tg.distributions.Dirichlet(None), ArgumentError, r"Dirichlet: .* of \(None\)"),
    "a length for each transform": (lambda: tg.distributions.CatTransform([tg.distributions.ExpTransform()], lengths=[1, 2]), ArgumentError,
                                    "CatTransform: .* got 2 lengths and 1 transforms"),
    "a transform for each slice": (lambda: tg.distributions.StackTransform([tg.distributions.ExpTransform()])(tg.ones(3)), ShapeError,
                                   "StackTransform: has 1 transforms for 3 slices"),
    "a stick of nothing": (lambda: tg.distributions.StickBreakingTransform()(tg.tensor(1.0)), ShapeError, "StickBreakingTransform: takes"),
    "a transform of a list": (lambda: tg.distributions.ExpTransform()([1.0]), DTypeError, "exp: expected a Tensor .* got list"),
    "a divergence of numbers": (lambda: tg.distributions.register_kl(1, 2), ArgumentError, "register_kl: takes two classes .* got 1"),
    "entries that are cut off": (lambda: tg.func.SparseCOO(tg.zeros(2, 2, dtype=tg.int64), tg.ones(3), (2, 2)).to_dense(), ShapeError,
                                 r"SparseCOO.to_dense: .* indices must be \(2, 3\), got \(2, 2\)"),
    "a state of letters": (lambda: tg.set_rng_state(("a", "b")), ArgumentError, "set_rng_state: expected a pair of ints"),
    "without gradients of 3": (lambda: tg.no_grad(3), ArgumentError, "no_grad: takes nothing, or the function"),
    "with gradients of 3": (lambda: tg.enable_grad(3), ArgumentError, "enable_grad: takes nothing, or the function"),
    "a mode of a word": (lambda: tg.set_grad_enabled("no"), ArgumentError, "set_grad_enabled: mode must be True or False, got 'no'"),
    "inference of a word": (lambda: tg.inference_mode("no"), ArgumentError, "inference_mode: mode must be True or False, got 'no'"),
    "a negative shape": (lambda: tg.unravel_index(tg.tensor([1]), (-2, 2)), ArgumentError, "unravel_index: shape must hold sizes of 0"),
    "no function": (lambda: tg.func.vjp(None, tg.ones(2)), ArgumentError, "vjp: takes a function, got NoneType"),
    "which argument": (lambda: tg.func.grad(lambda x: x, argnums=None), ArgumentError, "grad: argnums must be an integer, got None"),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_name_the_call(name: str) -> None:
    call, kind, message = CALLS[name]
    with pytest.raises(kind, match=message):
        call()


def test_a_users_own_errors_pass() -> None:
    """What a function that we were given raises is not ours, whatever calls it."""
    def wrong(*args: Any) -> Any:
        return {}["key"] if len(args) > 5 else None + 1  # type: ignore[operator]

    class Layer(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            wrong()

    for call in (lambda: tg.func.vjp(wrong, tg.ones(2)), lambda: tg.func.vmap(wrong)(tg.ones(2)), lambda: tg.grad(wrong)(tg.ones(2)),
                 lambda: tg.scan(wrong, tg.ones(2), tg.ones(3, 2)), lambda: tg.cond(tg.ones(()) > 0, wrong, wrong, (tg.ones(2),)), Layer,
                 lambda: lr_scheduler.LambdaLR(optimizer(), wrong)):
        with pytest.raises(TypeError, match="unsupported operand") as found:
            call()
        assert not isinstance(found.value, TracegradError)


def test_a_traced_function_is_copied_without_its_recordings() -> None:
    traced = tg.trace(lambda x: x + 1)
    traced(tg.ones(2))
    again = copy.deepcopy(traced)
    assert again.compilations == []
    np.testing.assert_array_equal(again(tg.ones(2)).numpy(), [2, 2])


def test_a_traced_function_of_what_has_no_values() -> None:
    y = tg.trace(lambda x: (x @ x.mT).sum(0))(tg.ones(3, 2, device="meta"))
    assert (y.shape, y.device.type) == ((3,), "meta")


# ---- every public function whose docstring has an example: one argument is replaced by what makes no sense -------------------

WRONG: list[Any] = [None, "none such", 1.5, -1, [], [1], object(), 1j, {}, (0,), float("nan"), 10**30, np.ones(2), lambda x: x]
NOT_CALLED = ("set_", "use_", "manual_seed", "save", "load", "trace", "compile", "device")      # they change what is everybody's, or files
# They call the example's function with what makes no sense to it.
CALLING = {"while_loop", "cond", "scan", "triplet_margin_with_distance_loss", "linearize", "vjp", "jvp"}


def examples() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Functions, and the arguments of the first example of each."""
    for module in (tg, F, tg.linalg, tg.fft, tg.special, nn.init, tg.optim, nn, lr_scheduler, tg.func, nn.utils):
        for name in sorted(getattr(module, "__all__", dir(module))):
            fn = getattr(module, name, None)
            if not callable(fn) or name.startswith(("_", *NOT_CALLED)) or name in CALLING:
                continue
            lines = re.findall(r"^>>> (.*)$", inspect.getdoc(fn) or "", re.MULTILINE)
            scope: dict[str, Any] = {"tg": tg, "nn": nn, "np": np}
            try:
                calls = [x for line in lines for x in ast.walk(ast.parse(line)) if isinstance(x, ast.Call)
                         and name in (getattr(x.func, "attr", ""), getattr(x.func, "id", ""))]
                for line in lines[:-1]:
                    exec(line, scope)
                value = SimpleNamespace(of=lambda x: eval(compile(ast.Expression(x), "", "eval"), scope))       # noqa: B023
                args = tuple(value.of(a) for a in calls[0].args)
                kwargs = {k.arg or "": value.of(k.value) for k in calls[0].keywords}
                fn(*args, **kwargs)
            except Exception:                       # an example that goes over several lines
                continue
            yield f"{module.__name__}.{name}", fn, args, kwargs


@pytest.mark.usefixtures("on_numpy")
def test_no_error_is_pythons_or_numpys() -> None:
    found, tried = [], 0
    for name, fn, args, kwargs in examples():
        for place in [*range(len(args)), *kwargs]:
            for wrong in WRONG:
                if isinstance(wrong, int) and wrong > 10**9 and re.search("niter|num_.*layers|^[0-9]$", str(place)):
                    continue                        # so many layers are made until memory or patience ends
                new = list(args)
                if isinstance(place, int):
                    new[place] = wrong
                tried += 1
                try:
                    result = fn(*new, **kwargs if isinstance(place, int) else {**kwargs, place: wrong})
                    for x in result if isinstance(result, tuple) else (result,):
                        if isinstance(x, tg.Tensor) and x.numel() < 10**6:
                            x.numpy()
                except (TracegradError, Warning):
                    pass
                except Exception as error:
                    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                        found.append(f"{name}({place}={wrong!r}): {type(error).__name__}: {error}")
    assert tried > 8000
    assert not found, "\n".join(found)
