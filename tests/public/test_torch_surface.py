"""torch's names around the operations: generators, limits of dtypes, settings, strides, out=, functions that work in place, counts."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tracegrad as tg
from tracegrad import nn

pytestmark = pytest.mark.usefixtures("on_numpy")
NAMES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


# ------------------------------------------------------------------------------------------------------------- generators


def test_a_generator_is_a_stream_of_its_own() -> None:
    draws = {
        "rand": lambda g: tg.rand(33, generator=g), "randn": lambda g: tg.randn(7, 5, generator=g),
        "randint": lambda g: tg.randint(0, 100, (65,), generator=g), "randperm": lambda g: tg.randperm(31, generator=g),
        "normal": lambda g: tg.normal(1.0, 2.0, (13,), generator=g), "bernoulli": lambda g: tg.bernoulli(tg.full((65,), 0.5), generator=g),
        "multinomial": lambda g: tg.multinomial(tg.ones(31), 16, generator=g),
        "poisson": lambda g: tg.poisson(tg.full((33,), 4.0), generator=g),
        "rand_like": lambda g: tg.rand_like(tg.ones(9), generator=g), "uniform_": lambda g: tg.empty(9).uniform_(generator=g),
        "exponential_": lambda g: tg.empty(9).exponential_(2.0, generator=g), "random_": lambda g: tg.empty(9).random_(0, 50, generator=g),
        "init": lambda g: nn.init.kaiming_uniform_(tg.empty(7, 5), generator=g),
        "orthogonal": lambda g: nn.init.orthogonal_(tg.empty(7, 5), generator=g),
    }  # fmt: skip
    for name, draw in draws.items():
        tg.manual_seed(5)
        plain, after = draw(None), tg.rand(3)
        tg.manual_seed(9)
        first, second = tg.Generator().manual_seed(5), tg.Generator("cpu")
        np.testing.assert_array_equal(draw(first).numpy(), plain.numpy(), err_msg=name)
        np.testing.assert_array_equal(tg.rand(3, generator=first).numpy(), after.numpy(), err_msg=name)
        here = tg.get_rng_state()
        assert here == (9, 0)
        state = second.get_state()
        other = draw(second)
        np.testing.assert_array_equal(draw(second.set_state(state)).numpy(), other.numpy(), err_msg=name)
        assert (other.numpy() != plain.numpy()).any(), name


def test_seeds() -> None:
    assert tg.manual_seed(3) is tg.default_generator
    assert tg.initial_seed() == tg.default_generator.initial_seed() == 3
    before = tg.get_rng_state()
    with tg.random.fork_rng():
        tg.rand(100)
    assert tg.get_rng_state() == before
    assert tg.seed() == tg.initial_seed() == tg.random.initial_seed()
    twin = tg.Generator().manual_seed(7).clone_state()
    assert tg.rand(3, generator=twin).tolist() == tg.rand(3, generator=tg.Generator().manual_seed(7)).tolist()


def test_errors_of_generators() -> None:
    with pytest.raises(TypeError, match=r"rand: generator must be a tg.Generator, got int"):
        tg.rand(3, generator=5)
    with pytest.raises(TypeError, match=r"generator"):
        tg.zeros(3, generator=None)
    with pytest.raises(ValueError, match=r"manual_seed.*-1"):
        tg.Generator().manual_seed(-1)
    g = tg.Generator()
    with pytest.raises(tg.TraceError, match=r"rand: a generator cannot be drawn from inside @trace"):
        tg.trace(lambda x: x + tg.rand(3, generator=g))(tg.ones(3))


def test_poisson_and_binomial() -> None:
    tg.manual_seed(0)
    for rate in (0.3, 4.0, 60.0):
        x = tg.poisson(tg.full((10000,), rate, dtype=tg.float64)).numpy()
        assert abs(x.mean() - rate) < 5 * (rate / 10000) ** 0.5
        assert abs(x.var() / rate - 1) < 0.1
        assert (x == np.rint(x)).all()
    for count, prob in ((1.0, 0.3), (20.0, 0.5), (300.0, 0.01)):
        x = tg.binomial(tg.full((10000,), count), tg.tensor(prob)).numpy()
        assert x.dtype == np.float32
        assert abs(x.mean() - count * prob) < 5 * (count * prob * (1 - prob) / 10000) ** 0.5
        assert abs(x.var() / (count * prob * (1 - prob)) - 1) < 0.1
    w = tg.full((7,), 3.0, requires_grad=True)
    tg.poisson(w).sum().backward()
    assert w.grad.tolist() == [0.0] * 7
    draw = tg.trace(lambda r: (tg.poisson(r), tg.rand(3)))
    tg.manual_seed(1)
    traced = [[v.tolist() for v in draw(tg.full((31,), 2.0))] for _ in range(2)]
    tg.manual_seed(1)
    plain = [[tg.poisson(tg.full((31,), 2.0)).tolist(), tg.rand(3).tolist()] for _ in range(2)]
    assert traced == plain
    assert traced[0] != traced[1]
    with pytest.raises(tg.ArgumentError, match=r"poisson: the rates must not be negative"):
        tg.poisson(tg.tensor([-1.0])).numpy()
    with pytest.raises(tg.ArgumentError, match=r"binomial: the counts"):
        tg.binomial(tg.ones(2), tg.tensor([0.5, 1.5])).numpy()
    with pytest.raises(tg.DTypeError, match=r"poisson: .*int64"):
        tg.poisson(tg.tensor([1]))
    with pytest.raises(tg.ShapeError, match=r"binomial: "):
        tg.binomial(tg.ones(2), tg.ones(3))
    with pytest.raises(tg.DTypeError, match=r"binomial: count float32 and prob float64"):
        tg.binomial(tg.ones(2), tg.ones(2, dtype=tg.float64))


def test_truncated_normal_numbers() -> None:
    tg.manual_seed(2)
    x = nn.init.trunc_normal_(tg.empty(20000, dtype=tg.float64), mean=0.5, std=2.0, a=-1.0, b=3.0).numpy()
    assert stats.kstest(x, stats.truncnorm((-1 - 0.5) / 2, (3 - 0.5) / 2, 0.5, 2.0).cdf).pvalue > 1e-3
    with pytest.raises(tg.ArgumentError, match=r"trunc_normal_: a must be below b"):
        nn.init.trunc_normal_(tg.empty(3), a=1.0, b=1.0)


# ----------------------------------------------------------------------------------------------------------------- dtypes


def test_limits_of_dtypes() -> None:
    for name, bits in (("float16", 16), ("float32", 32), ("float64", 64)):
        found, known = tg.finfo(getattr(tg, name)), np.finfo(name)
        assert (found.bits, found.eps, found.max, found.min, found.tiny, found.smallest_normal) == (
            bits, float(known.eps), float(known.max), float(known.min), float(known.tiny), float(known.tiny))
        assert found.dtype == name
        assert found.resolution == {16: 1e-3, 32: 1e-6, 64: 1e-15}[bits]
        assert type(found.eps) is float
    brain = tg.finfo(tg.bfloat16)
    assert (brain.bits, brain.eps, brain.max, brain.tiny, brain.resolution) == (16, 2.0**-7, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 1e-2)
    assert tg.finfo().dtype == tg.float32 == tg.finfo(tg.complex64).dtype
    assert (tg.iinfo(tg.int8).min, tg.iinfo(tg.int8).max, tg.iinfo(tg.uint8).max, tg.iinfo(tg.int64).bits) == (-128, 127, 255, 64)
    assert repr(tg.iinfo(tg.int8)) == "iinfo(min=-128, max=127, dtype=int8)"
    assert "eps=1.19209e-07" in repr(tg.finfo())
    with pytest.raises(TypeError, match=r"finfo: .*int8; use tg.iinfo"):
        tg.finfo(tg.int8)
    with pytest.raises(TypeError, match=r"iinfo: .*float32; use tg.finfo"):
        tg.iinfo(tg.float32)
    assert isinstance(tg.float32, tg.dtype)


def operands(t: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"True": True, "1": 1, "1.5": 1.5, "1j": 1j}
    for name in NAMES:
        x = t.ones(3).to(getattr(t, name))
        found[name], found[f"{name}, 0-d"] = x, x[0]
    return found


def test_result_type_is_what_operations_have() -> None:
    for (a, x), (b, y) in itertools.product(operands(tg).items(), repeat=2):
        found = tg.result_type(x, y)
        assert tg.result_type(y, x) == found
        if isinstance(x, tg.Tensor) or isinstance(y, tg.Tensor):
            assert found == (x * y).dtype, (a, b)
    for a, b in itertools.product(NAMES, NAMES):
        assert tg.promote_types(getattr(tg, a), getattr(tg, b)) == tg.result_type(operands(tg)[a], operands(tg)[b])
    assert tg.can_cast(tg.float64, tg.float32)
    assert tg.can_cast(tg.int64, tg.uint8)
    assert not tg.can_cast(tg.float32, tg.int64)
    assert not tg.can_cast(tg.int8, tg.bool_)
    assert not tg.can_cast(tg.complex64, tg.float64)
    with pytest.raises(TypeError, match=r"result_type: takes tensors and numbers, got list"):
        tg.result_type([1], 2)


@pytest.mark.slow
def test_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    name = lambda d: str(d).removeprefix("torch.")
    for (a, x), (b, y) in itertools.product(operands(torch).items(), repeat=2):
        expected = name(torch.result_type(x, y))
        if expected not in ("complex32", "bcomplex32"):             # which are not here
            assert str(tg.result_type(operands(tg)[a], operands(tg)[b])) == expected, (a, b)
    for a, b in itertools.product(NAMES, NAMES):
        x, y = getattr(torch, a), getattr(torch, b)
        assert str(tg.promote_types(getattr(tg, a), getattr(tg, b))) == name(torch.promote_types(x, y)).replace("complex32", "complex64")
        assert tg.can_cast(getattr(tg, a), getattr(tg, b)) == torch.can_cast(x, y)


# --------------------------------------------------------------------------------------------------------------- settings


def test_how_tensors_print() -> None:
    x = tg.tensor([1 / 3, 1e-7, 2e5], dtype=tg.float64)
    try:
        tg.set_printoptions(precision=2)
        assert repr(tg.tensor([1 / 3])).startswith("Tensor([0.33]")
        tg.set_printoptions(sci_mode=True)
        assert repr(x).startswith("Tensor([3.33e-01, 1.00e-07, 2.00e+05]")
        tg.set_printoptions(profile="default", sci_mode=False, precision=3)
        assert "e-" not in repr(x)
        tg.set_printoptions(threshold=5, edgeitems=1)
        assert repr(tg.arange(33)).startswith("Tensor([ 0, ..., 32]")
        tg.set_printoptions(profile="full")
        assert "..." not in repr(tg.arange(2000))
        with pytest.raises(ValueError, match=r"set_printoptions: profile must be one of"):
            tg.set_printoptions(profile="long")
        with pytest.raises(ValueError, match=r"set_printoptions: precision"):
            tg.set_printoptions(precision=-1)
    finally:
        tg.set_printoptions(profile="default")
    assert repr(tg.tensor([1 / 3])).startswith("Tensor([0.3333]")


def test_settings_that_are_accepted() -> None:
    assert not tg.are_deterministic_algorithms_enabled()
    tg.use_deterministic_algorithms(True, warn_only=True)
    assert tg.are_deterministic_algorithms_enabled()
    assert tg.is_deterministic_algorithms_warn_only_enabled()
    tg.use_deterministic_algorithms(False)
    tg.set_float32_matmul_precision("high")
    assert tg.get_float32_matmul_precision() == "high"
    tg.set_float32_matmul_precision("highest")
    with pytest.raises(ValueError, match=r"set_float32_matmul_precision: .*'low'"):
        tg.set_float32_matmul_precision("low")
    assert tg.typename(tg.ones(2)) == "tracegrad.tensors.tensor.Tensor"
    assert tg.get_default_device() is tg.device()


def test_names_of_older_programs() -> None:
    x = tg.tensor([1.0, 2.0, 4.0])
    assert x.type() == "torch.FloatTensor"
    assert [x.type(t).dtype for t in ("torch.DoubleTensor", tg.LongTensor, tg.float64, "int32", "float")] == [
        tg.float64, tg.int64, tg.float64, tg.int32, tg.float32]
    v = tg.autograd.Variable(x, requires_grad=True)
    assert (v.requires_grad, x.requires_grad, v.tolist(), isinstance(x, tg.autograd.Variable)) == (True, False, x.tolist(), True)
    tg.set_num_threads(tg.get_num_threads())
    with pytest.warns(UserWarning, match=r"set_num_threads: 1000 has no effect"):
        tg.set_num_threads(1000)
    with pytest.raises(ValueError, match="set_num_threads: expected a positive integer, got 0"):
        tg.set_num_threads(0)
    for layer, dim in ((tg.nn.Softmax(), 0), (tg.nn.LogSoftmax(), 0), (tg.nn.Softmin(), 0)):
        with pytest.warns(UserWarning, match="dim was left out"):
            assert layer(x).tolist() == type(layer)(dim)(x).tolist()


def test_older_arguments_of_losses() -> None:
    F, x, y = tg.nn.functional, tg.tensor([[1.0, 2.0], [3.0, 5.0]]), tg.tensor([[0.5, 0.0], [1.0, 1.0]])
    values = {(False, None): "sum", (True, None): "mean", (None, True): "mean", (True, False): "none", (None, False): "none"}
    for (average, reduce), reduction in values.items():
        for fn, layer in ((F.mse_loss, tg.nn.MSELoss), (F.binary_cross_entropy_with_logits, tg.nn.BCEWithLogitsLoss),
                          (F.poisson_nll_loss, tg.nn.PoissonNLLLoss)):
            expected = fn(x, y, reduction=reduction).tolist()
            with pytest.warns(UserWarning, match=f"use reduction='{reduction}'"):
                assert fn(x, y, size_average=average, reduce=reduce).tolist() == expected
            with pytest.warns(UserWarning, match=f"use reduction='{reduction}'"):
                assert layer(size_average=average, reduce=reduce)(x, y).tolist() == expected


@pytest.mark.filterwarnings("ignore:size_average")
def test_older_arguments_of_losses_by_position() -> None:
    """torch's order has size_average and reduce in its middle: a flag there was taken for the class to ignore, silently, or for eps."""
    F = tg.nn.functional
    x, y, classes = tg.randn(10, 5), tg.rand(10, 5), tg.arange(10) % 5
    for given, expected in [
        (F.cross_entropy(x, classes, None, False), F.cross_entropy(x, classes, reduction="sum")),
        (F.cross_entropy(x, classes, None, None, 1), F.cross_entropy(x, classes, ignore_index=1)),
        (F.nll_loss(x, classes, None, True, 1, False), F.nll_loss(x, classes, ignore_index=1, reduction="none")),
        (F.poisson_nll_loss(x, y, True, True, False, 1e-3), F.poisson_nll_loss(x, y, full=True, eps=1e-3, reduction="sum")),
        (F.mse_loss(x, y, None, None, "sum"), F.mse_loss(x, y, reduction="sum")),
        (F.smooth_l1_loss(x, y, None, None, "sum", 0.3), F.smooth_l1_loss(x, y, reduction="sum", beta=0.3)),
        (nn.CrossEntropyLoss(None, False)(x, classes), F.cross_entropy(x, classes, reduction="sum")),
        (nn.CrossEntropyLoss(None, None, 3)(x, classes), F.cross_entropy(x, classes, ignore_index=3)),
        (nn.MarginRankingLoss(0.5, None, None, "sum")(x, y, x.sign()), F.margin_ranking_loss(x, y, x.sign(), 0.5, reduction="sum")),
        (nn.PoissonNLLLoss(True, True, None, 1e-3)(x, y), F.poisson_nll_loss(x, y, full=True, eps=1e-3)),
        (F.cross_entropy(x, classes, None, 1, "sum"), F.cross_entropy(x, classes, ignore_index=1, reduction="sum")),     # this order, too
    ]:
        assert given.tolist() == expected.tolist()
    with pytest.raises(TypeError, match="several values for reduction"):
        F.mse_loss(x, y, None, None, "sum", reduction="mean")
    with pytest.raises(TypeError, match="size_average, reduce, reduction, got 6 arguments"):
        F.soft_margin_loss(x, y, None, None, "sum", 1)


def test_arguments_by_torchs_names() -> None:
    x = tg.arange(36.0).reshape(6, 6)
    for given, expected in [
        (tg.hsplit(x, sections=2)[1], x[:, 3:]), (tg.vsplit(x, indices=(2, 4))[1], x[2:4]),
        (tg.tensor_split(x, sections=4)[0], x[:2]), (x.tensor_split(indices=(1, 3), dim=1)[1], x[:, 1:3]),
        (x.tensor_split(tensor_indices_or_sections=tg.tensor([1, 3]))[1], x[1:3]),
        (x.view(size=(4, 9)), x.reshape(4, 9)), (x.view(dtype=tg.int32), x.view(tg.int32)),
        (tg.full_like(x, fill_value=2), tg.full_like(x, 2)), (tg.zeros(6, 6).copy_(x, True), x),
        (tg.zeros(6, 6).copy_(other=x, non_blocking=True), x),
        (tg.cholesky_inverse(input=tg.eye(3) * 2), tg.eye(3) / 4),
    ]:
        assert (given.dtype, given.tolist()) == (expected.dtype, expected.tolist())
    with pytest.raises(TypeError, match="takes indices or a number of sections"):
        tg.tensor_split(x)
    with pytest.raises(TypeError, match=r"full_like\(\) got an unexpected keyword argument 'value'"):
        tg.full_like(x, value=2)
    with pytest.raises(ValueError, match="view: takes a shape or a dtype"):
        x.view(6, 6, dtype=tg.int32)


def test_what_was_made_in_inference_mode() -> None:
    """Tensors say whether they were, views what their base says; also what a call known before gives (graph/cached_calls.py)."""
    x, fresh = tg.ones(3), tg.inference_mode(lambda x: x.exp() * 2)
    for _ in range(6):
        with tg.no_grad():
            assert not tg.is_inference_mode_enabled()
            assert not (x.exp() * 2).is_inference()
        with tg.inference_mode():
            assert tg.is_inference_mode_enabled()
            assert not tg.is_grad_enabled()
            made, view = x.exp() * 2, x[1:]
            assert tg.zeros(3).is_inference()
            assert tg.is_inference(made)
            with tg.inference_mode(False):
                assert tg.is_grad_enabled()
                assert not tg.zeros(3).is_inference()
        assert made.is_inference()
        assert made[1:].is_inference()
        assert not view.is_inference()
        assert not x.is_inference()
        assert fresh(x).is_inference()
        assert not tg.is_inference_mode_enabled()
        assert not tg.zeros(3).is_inference()


def test_the_default_device_comes_back() -> None:
    before = tg.device()
    tg.set_default_device("numpy")
    assert tg.zeros(1).device is tg.device("numpy") is tg.get_default_device()
    with pytest.raises(tg.NoDriverError):
        tg.set_device("no such thing")
    assert tg.get_default_device() is tg.device("numpy")
    automatic = tg.set_device("")
    tg.set_default_device(None)
    assert tg.get_default_device() is automatic
    tg.set_device(before)


# ------------------------------------------------------------------------------------------------- what tensors tell, and out=


def test_layouts() -> None:
    x = tg.zeros(2, 3, 4)
    assert (x.stride(), x.stride(1), x.stride(-1), tg.zeros(()).stride(), tg.zeros(0, 3).stride()) == ((12, 4, 1), 4, 1, (), (3, 1))
    assert (x.storage_offset(), x.dim_order(), x.layout, x.get_device()) == (0, (0, 1, 2), tg.strided, -1)
    assert x.is_cpu
    assert not any((x.is_cuda, x.is_sparse, x.is_quantized, x.is_meta, x.is_nested, x.is_pinned(), x.is_inference()))
    assert x.is_contiguous()
    assert not x.is_contiguous(memory_format=tg.channels_last)
    for same in (x.contiguous(memory_format=tg.channels_last), x.to(memory_format=tg.channels_last_3d),
                 x.clone(memory_format=tg.preserve_format), tg.zeros_like(x, memory_format=tg.contiguous_format),
                 tg.zeros(2, 3, 4, layout=tg.strided, pin_memory=False)):  # fmt: skip
        assert same.shape == (2, 3, 4)
    with pytest.raises(ValueError, match=r"zeros: layout .* dense tensors only"):
        tg.zeros(3, layout="sparse")
    with pytest.raises(ValueError, match=r"zeros: pin_memory"):
        tg.zeros(3, pin_memory=True)
    with pytest.raises(TypeError, match=r"contiguous: memory_format"):
        x.contiguous(memory_format="channels_last")
    with pytest.raises(IndexError, match=r"stride: dim 3"):
        x.stride(3)
    assert x[tg.newaxis].shape == (1, 2, 3, 4)
    assert isinstance(x.shape, tg.Size)


def test_out() -> None:
    x, y = tg.arange(6.0).reshape(2, 3), tg.ones(2, 3)
    out = tg.empty(2, 3)
    base = tg.zeros(4, 3)
    assert tg.add(x, y, out=out) is out
    tg.mul(x, 2, out=base[1:3])
    values, places = tg.empty(0), tg.empty(0, dtype=tg.int64)
    found = tg.max(x, 1, out=(values, places))
    grown = tg.matmul(x, y.T, out=tg.empty(0))
    wide = tg.sum(x, 0, out=tg.empty(3, dtype=tg.float64))
    tg.linalg.inv(tg.eye(3) * 2, out=(inverse := tg.empty(3, 3)))
    tg.fft.fft(x[0], out=(spectrum := tg.empty(3, dtype=tg.complex64)))
    tg.special.erfinv(x / 10, out=(special := tg.empty(2, 3)))
    assert out.tolist() == (x + 1).tolist()
    assert base.tolist() == [[0] * 3, [0, 2, 4], [6, 8, 10], [0] * 3]
    assert found.values is values
    assert (values.tolist(), places.tolist()) == ([2, 5], [2, 2])
    assert grown.tolist() == [[3, 3], [12, 12]]
    assert (wide.dtype, wide.tolist()) == (tg.float64, [3, 5, 7])
    np.testing.assert_allclose(inverse.numpy(), np.eye(3) / 2)
    np.testing.assert_allclose(spectrum.numpy(), np.fft.fft(x[0].numpy()), rtol=1e-5)
    np.testing.assert_array_equal(special.numpy(), tg.special.erfinv(x / 10).numpy())
    assert tg.exp(x, out=None).shape == (2, 3)
    into = tg.trace(lambda a, o: tg.exp(a, out=o))
    into(x, out)
    np.testing.assert_allclose(out.numpy(), np.exp(x.numpy()), rtol=1e-6)
    with pytest.raises(ValueError, match=r"add: out: .*\(2, 3\).*\(3,\)"):
        tg.add(x, y, out=tg.empty(3))
    with pytest.raises(TypeError, match=r"max: out must be 2 tensors"):
        tg.max(x, 1, out=tg.empty(2))
    with pytest.raises(TypeError, match=r"add: out must be a Tensor, got list"):
        tg.add(x, y, out=[1])
    w = tg.ones(2, 3, requires_grad=True)
    with pytest.raises(tg.AutogradError, match=r"exp: .* out=\.\.\. has no derivative"):
        tg.exp(w, out=out)
    with tg.no_grad():
        tg.exp(w, out=out)
    assert not out.requires_grad


def test_functions_that_work_in_place() -> None:
    x = tg.tensor([-1.0, 4.0])
    assert tg.relu_(x) is x
    assert tg.sqrt_(x).tolist() == [0.0, 2.0]
    assert tg.fill_(x, 3.0).tolist() == [3.0, 3.0]
    assert tg.clamp_(x, max=2.0).tolist() == x.tolist() == [2.0, 2.0]
    assert tg.selu_(x) is x
    with pytest.raises(TypeError, match=r"exp_: expected a Tensor, got list"):
        tg.exp_([1.0])


def test_python_functions_of_elements() -> None:
    x = tg.arange(6).reshape(2, 3)
    assert x.apply_(lambda v: v * v) is x
    assert x.tolist() == [[0, 1, 4], [9, 16, 25]]
    assert x.map_(tg.ones(2, 3), lambda a, b: a + 2 * b).tolist() == [[2, 3, 6], [11, 18, 27]]
    assert x.map2_(x, x, lambda a, b, c: a + b + c).tolist() == [[6, 9, 18], [33, 54, 81]]
    with pytest.raises(tg.ShapeError, match=r"map_: "):
        x.map_(tg.ones(3), lambda a, b: a)
    with pytest.raises(tg.AutogradError, match=r"apply_: "):
        tg.ones(2, requires_grad=True).apply_(lambda v: v)
    with pytest.raises(tg.TraceError, match=r"apply_"):
        tg.trace(lambda x: x.apply_(lambda v: v))(x)


def test_hooks_after_accumulation() -> None:
    layers = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    twin = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    twin.load_state_dict(layers.state_dict())
    x = tg.randn(13, 5, dtype=tg.float64)
    plain = tg.optim.SGD(twin.parameters(), lr=0.1)
    own = {p: tg.optim.SGD([p], lr=0.1) for p in layers.parameters()}

    def update(p: Any) -> None:
        own[p].step()
        own[p].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(update) for p in layers.parameters()]
    for _ in range(5):
        (layers(x) ** 2).mean().backward()
        plain.zero_grad()
        (twin(x) ** 2).mean().backward()
        plain.step()
    for p, q in zip(layers.parameters(), twin.parameters(), strict=True):
        assert p.grad is None
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())
    for handle in handles:
        handle.remove()
    (layers(x) ** 2).mean().backward()
    assert all(p.grad is not None for p in layers.parameters())
    with pytest.raises(tg.AutogradError, match=r"register_post_accumulate_grad_hook"):
        (layers[0].weight * 2).register_post_accumulate_grad_hook(update)
    p = tg.ones(3, requires_grad=True)
    p.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(tg.TraceError, match=r"post-accumulate-grad hook"):
        tg.trace(lambda: (p * p).sum().backward())()
    p.register_post_accumulate_grad_hook(lambda p: p.grad)
    with pytest.raises(tg.AutogradError, match=r"hook must return None, got Tensor"):
        (p * p).sum().backward()


def test_other_names() -> None:
    assert tg.frombuffer(b"\x01\x02\x03\x04", dtype=tg.uint8, offset=1, count=2).tolist() == [2, 3]
    with pytest.raises(ValueError, match=r"frombuffer: "):
        tg.frombuffer(b"abc", dtype=tg.float32)
    x, w, b = tg.randn(9, 2, 5), tg.randn(3, 5, 4), tg.randn(4)
    expected = nn.functional.conv1d(x.permute(1, 2, 0), w.permute(2, 1, 0), b, padding=1).permute(2, 0, 1)
    np.testing.assert_allclose(nn.functional.conv_tbc(x, w, b, 1).numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    q, r = tg.qr(tg.randn(7, 4), some=False)
    assert (q.shape, r.shape) == ((7, 7), (7, 4))
    condition = tg.tensor([[True, False], [True, True]])
    assert [p.tolist() for p in tg.where(condition)] == [[0, 1, 1], [0, 0, 1]]


VIEWS: dict[str, Any] = {          # of a 4 x 5 matrix -> whether torch's contiguous() gives the view itself
    "x": (lambda x: x, True), "t": (lambda x: x.t(), False), "t t": (lambda x: x.t().t(), True), "row": (lambda x: x[2], True),
    "rows": (lambda x: x[1:3], True), "column": (lambda x: x[:, 1], False), "columns": (lambda x: x[:, 1:2], False),
    "second": (lambda x: x[::2], False), "first of four": (lambda x: x[::4], True), "flat": (lambda x: x.view(-1), True),
    "repeated": (lambda x: x[0].expand(3, 5), False), "expanded": (lambda x: x.expand(4, 5), True),
    "block": (lambda x: x[1:2, 2:4], True), "element": (lambda x: x[1, 2], True), "diagonal": (lambda x: x.diagonal(), False),
    "windows": (lambda x: x.unfold(1, 2, 1), False), "row of t": (lambda x: x.t()[1], False), "column as row": (lambda x: x[1:2].t(), True),
    "permuted ones": (lambda x: x.view(4, 1, 5).permute(1, 0, 2), True), "parts": (lambda x: x.view(2, 10)[1].view(2, 5)[1:], True),
    "detached": (lambda x: x.t().detach(), False), "nothing": (lambda x: x[:, 2:2], True), "some": (lambda x: x[1:2, ::2], False),
}


@pytest.mark.parametrize("traced", [False, True])
def test_contiguous_copies_what_torch_copies(traced: bool) -> None:
    """What is written to the result is written to the base where the view lies row by row there, and nowhere else."""
    for name, (view, same) in VIEWS.items():
        def write(x: Any, view: Any = view) -> Any:
            x = x + 0
            y = view(x).contiguous()
            y += 100
            z = view(x).contiguous()
            before = z * 1
            x.mul_(2)
            return x, z, before, y

        x = tg.arange(20.0).reshape(4, 5)
        found, z, before, y = (tg.trace(write) if traced else write)(x)
        expected = x.numpy()
        if same:
            index = view(tg.arange(20).reshape(4, 5)).flatten().tolist()
            expected.reshape(-1)[index] += 100
        np.testing.assert_array_equal(found.numpy(), 2 * expected, err_msg=name)
        np.testing.assert_array_equal(z.numpy(), (2 if same else 1) * before.numpy(), err_msg=name)
        np.testing.assert_array_equal(y.numpy(), view(x).numpy() + 100 if not same else 2 * (view(x).numpy() + 100), err_msg=name)
    x = tg.ones(3, 4, requires_grad=True)
    y = x.t().contiguous()
    (y * tg.arange(12.0).reshape(4, 3)).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.arange(12.0).reshape(4, 3).T)


def test_a_shallow_copy_shares_its_memory() -> None:
    x = tg.zeros(3)
    y = copy.copy(x)
    y[0] = 5
    assert x.tolist() == [5, 0, 0]
    w = tg.nn.Parameter(tg.ones(2))
    twin = copy.copy(w)
    assert (type(twin), twin.requires_grad, twin.is_leaf, twin.tolist()) == (tg.nn.Parameter, True, True, [1, 1])


def test_sizes_know_their_number_of_elements() -> None:
    x = tg.zeros(3, 4, 5)
    s = x.shape
    assert isinstance(s, tuple)
    assert (s, hash(s), s.numel(), x.size().numel(), x.mT.shape.numel(), tg.Size().numel()) == ((3, 4, 5), hash((3, 4, 5)), 60, 60, 60, 1)
    for sizes, expected in ((s[1:], (4, 5)), (s + (2,), (3, 4, 5, 2)), ((2,) + s, (2, 3, 4, 5)), (s * 2, (3, 4, 5, 3, 4, 5)),
                            (tg.Size([np.int64(2), 3]), (2, 3)), (copy.deepcopy(s), s), (pickle.loads(pickle.dumps(s)), s)):
        assert (type(sizes), sizes) == (tg.Size, expected)
    assert (s[0], str(s)) == (3, "(3, 4, 5)")
    with pytest.raises(TypeError):
        tg.Size([1.5])
    file = io.BytesIO()
    tg.save({"sizes": [s]}, file)
    file.seek(0)
    assert tg.load(file)["sizes"][0].numel() == 60

    @tg.trace
    def f(x: Any, sizes: Any) -> Any:
        return x.reshape(sizes) * s.numel(), x.shape, sizes

    for sizes in (tg.Size([4, 3]), tg.zeros(6, 2).shape, (12,)):
        y, before, given = f(tg.ones(3, 4), sizes)
        assert (y.shape, y.sum().item(), before.numel(), given, type(given)) == (sizes, 720, 12, sizes, type(sizes))


def test_numbers_of_numpy_in_lists_keep_their_dtypes() -> None:
    third = np.float64(1) / 3
    for data, dtype in (([third], "float64"), ([[2.0], [third]], "float64"), ((1, third), "float64"), ([np.float16(1)], "float16"),
                        ([np.float16(1), 2.0], "float32"), ([np.float32(1), 2], "float32"), ([np.float32(1), third], "float64"),
                        ([np.complex64(1), 2.0], "complex64"), ([np.complex128(1), 1.0], "complex128"), ([1.0, np.int64(3)], "float32"),
                        ([True, third], "float64"), ([tg.bfloat16.type(1)], "bfloat16"), ([tg.bfloat16.type(1), np.float16(1)], "float32"),
                        ([np.float16(1), np.int64(7)], "float16"), ([[np.ones(2)], [np.ones(2)]], "float64"),
                        ([tg.ones((), dtype=tg.float64), 2.0], "float64"), ([1.0, 2.0], "float32"), ([np.int32(1), 2.0], "float32")):
        assert (str(tg.tensor(data).dtype), str(tg.as_tensor(data).dtype)) == (dtype, dtype), data
    assert tg.tensor([third])[0].item() == third
    assert tg.tensor([third], dtype=tg.float32).dtype == tg.float32


def test_tensors_in_texts() -> None:
    loss = tg.tensor(0.25, requires_grad=True) * 3
    assert f"{loss} {loss:.3f} {loss:>8.2%}|{tg.tensor(7)} {tg.tensor(7):03d} {tg.tensor(True)}" == "0.75 0.750   75.00%|7 007 True"
    assert f"{tg.tensor([1.5])}" == repr(tg.tensor([1.5]))
    with pytest.raises(TypeError, match=r"format: '.2f' is for one number, the tensor has shape \(3,\)"):
        f"{tg.ones(3):.2f}"
    assert [x.tolist() for x in (reversed(tg.arange(6).reshape(3, 2)), reversed(tg.tensor(2)))] == [[[4, 5], [2, 3], [0, 1]], 2]


@pytest.mark.parametrize("way", [lambda f: f, tg.trace])
def test_writing_to_a_detached_copy(way: Any) -> None:
    q = nn.Parameter(tg.ones(13))

    def written(s: Any) -> Any:
        s.add_(1.0)
        s[0] = 7.0
        s[1:].mul_(3.0)
        with tg.no_grad():
            s -= 1.0
        return s

    for make, value in ((lambda: q.clone().detach(), 5.0), (lambda: (q * 2).data, 8.0), (lambda: (q * 2)[None].detach()[0], 8.0)):
        assert way(lambda q, make=make: written(make()))(q).tolist() == [6.0] + [value] * 12
    z = q * 3
    d, squared = z.detach(), z * z
    del z
    d.add_(5.0)                                          # nobody else sees it: the history of squared keeps what it saved
    squared.sum().backward()
    assert (q.grad.tolist(), d.tolist(), d.requires_grad) == ([18.0] * 13, [8.0] * 13, False)
    y = q * 2
    part, s = y[:2], y.detach()
    for seen, value in ((y, 3.0), (part, 4.0)):          # by y and by a view of it
        s.add_(1.0)
        assert (seen[0].item(), seen.requires_grad) == (value, True)
        y = None


@pytest.mark.parametrize("call", [
    lambda x: x.uniform_(float("nan"), 1.0),
    lambda x: x.normal_(0.0, float("nan")),
    lambda x: tg.nn.functional.huber_loss(x, 2 * x, delta=float("nan")),
])
def test_nan_is_within_no_bounds(call: Any) -> None:
    with pytest.raises(tg.ArgumentError, match="nan"):
        call(tg.ones(10))
