"""Sizes that cannot be had are refused by the function that is asked for them, not when a value is looked at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tracegrad import nn
from tracegrad.errors import OutOfMemoryError
from tracegrad.graph.ir import ADDRESSED, Aval

HUGE = 2**63
B, X, IMAGE = 2**62, tg.ones(3), tg.ones(1, 1, 4, 4)
ROW, VOLUME = IMAGE[0, :, :1], tg.ones(1, 1, 4, 4, 4)
PLANE, CUBE = (2**31, 2**31), (2**21, 2**21, 2**21)
WHERE: dict[str, Any] = {"": tg, "F.": F, "fft.": tg.fft, "linalg.": tg.linalg, "windows.": tg.signal.windows, "Tensor.": tg.Tensor}
# By where and name: arguments, and those by name. Beside them `others`, which are no functions that a name of an argument tells of.
CALLS: dict[str, Any] = {
    **dict.fromkeys(("zeros", "ones", "empty", "rand", "randn", "arange"), (HUGE,)), "full": ((B,), 2.0), "randint": (0, 9, (B,)),
    "randperm": (B,), "normal": (0.0, 1.0, (B,)), "linspace": (0, 1, B), "logspace": (0, 1, B), "eye": (2**32,),
    "empty_strided": ((B,), (1,)), "empty_permuted": ((B,), (0,)), "triu_indices": (2**32, 2**32), "tril_indices": (HUGE, 1),
    "as_strided": (X, (B,), (0,)), "as_strided_copy": (X, (B,), (0,)), "expand": (X, (B, 3)), "expand_copy": (X, (B, 3)),
    "broadcast_to": (X, (B, 3)), "repeat": (X, B), "tile": (X, (B,)), "repeat_interleave": (X, B), "one_hot": (tg.arange(3), B),
    "constant_pad_nd": (X, (B, B)), "diag_embed": (X, B), "diagflat": (X, B), "diag": (X, 2**61), "vander": (X, 2**61),
    "bincount": (tg.tensor([1]), None, B), "histc": (X, B), "histogram": (X, B), "multinomial": (X, B, True),
    "nonzero_static": (X, {"size": B}), "combinations": (tg.arange(200), 100),
    "affine_grid_generator": (tg.ones(1, 2, 3), (1, 1, *PLANE), False),
    "istft": (tg.ones(3, 3, dtype=tg.complex64), 4, {"length": B, "return_complex": False}),
    **{f"{name}_window": (B,) for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")},
    **{f"{where}avg_pool1d": (ROW, B, {"padding": B // 2}) for where in ("", "F.")},
    **{f"{where}adaptive_avg_pool1d": (ROW, B) for where in ("", "F.")}, "F.adaptive_avg_pool2d": (IMAGE, PLANE),
    "F.adaptive_avg_pool3d": (VOLUME, CUBE), "F.adaptive_max_pool1d": (ROW, B), "F.adaptive_max_pool2d": (IMAGE, PLANE),
    "F.adaptive_max_pool3d": (VOLUME, CUBE),
    **{f"{where}conv{n}d": (x, x[..., :3], {"padding": p}) for where in ("", "F.") for n, x, p in (
        (1, ROW[None, 0], B), (2, IMAGE, 2**32), (3, VOLUME, 2**22))},
    **{f"{where}conv_transpose{n}d": (x, x, {"stride": p}) for where in ("", "F.") for n, x, p in (
        (1, ROW[None, 0], B), (2, IMAGE, 2**32), (3, VOLUME, 2**22))},
    **{f"{where}conv_tbc": (tg.ones(3, 1, 1), tg.ones(3, 1, 1), tg.ones(1), B) for where in ("", "F.")},
    "F.affine_grid": (tg.ones(1, 2, 3), (1, 1, *PLANE), {"align_corners": False}), "F.one_hot": (tg.arange(3), B), "F.pad": (X, (B, B)),
    "F.interpolate": (IMAGE, PLANE), **{f"F.upsample{what}": (IMAGE, PLANE) for what in ("", "_nearest", "_bilinear")},
    "F.unfold": (IMAGE, 2, {"padding": 2**32}), "F.local_response_norm": (IMAGE, B),
    **{f"fft.{name}": (X, B) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"fft.{name}": (IMAGE, PLANE) for name in ("fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2")},
    **{f"fft.{name}": (IMAGE, PLANE) for name in ("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn")},
    "fft.fftfreq": (B,), "fft.rfftfreq": (HUGE,), "linalg.vander": (X, {"N": 2**61}),
    **{f"windows.{name}": (B, {"a": [0.5, 0.5]} if name == "general_cosine" else {}) for name in tg.signal.windows.__all__},
    **{f"Tensor.{name}": (X, B) for name in ("new_empty", "new_ones", "new_zeros")}, "Tensor.new_full": (X, (HUGE,), 2),
    "Tensor.new_empty_strided": (X, (B,), (1,)), "Tensor.resize_": (tg.ones(2, 2), B),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "expand": lambda x: tg.zeros_like(x, dtype=tg.float32).expand(B, 3), "outer": lambda x: tg.outer(*[x[:1].expand(2**31)] * 2),
    "meshgrid": lambda x: tg.meshgrid(*[x[:1].expand(2**20)] * 4), "add": lambda x: x[:1].expand(2**31, 1) + x[:1].expand(1, 2**32),
    "matmul": lambda x: x[:1].expand(2**31, 1) @ x[:1].expand(1, 2**32), "kron": lambda x: tg.kron(*[x.expand(2**31, 3)] * 2),
    "cat": lambda x: tg.cat([x[:1].expand(2**60)] * 8), "stack": lambda x: tg.stack([x[:1].expand(2**60)] * 8),
    "bincount": lambda x: tg.bincount(tg.tensor([2**60])), "zeros": lambda x: tg.zeros(0, HUGE), "pad": lambda x: nn.ZeroPad2d(B)(IMAGE),
    "cartesian_prod": lambda x: tg.cartesian_prod(*[tg.arange(200)] * 12), "embedding": lambda x: F.embedding(
        tg.zeros(1, dtype=tg.int64).expand(2**40), tg.ones(1, 1).expand(1, 2**30)),
}
# Arguments that say how large a result is. The functions that have one, but whose result is no larger than what they are given:
SIZES = {"size", "n", "m", "row", "col", "steps", "window_length", "repeats", "num_classes", "sizes", "num_samples", "minlength", "bins",
         "length", "output_size", "padding", "pad", "M", "s", "N", "end", "offset", "diagonal", "r", "dims", "shape"}
NO_LARGER = {"as_strided_scatter", "diagonal", "diagonal_copy", "diagonal_scatter", "diff", "flip", "fold", "fractional_max_pool2d",
             "fractional_max_pool3d", "frombuffer", "lerp", "matrix_power", "max_pool1d", "max_pool2d", "max_pool3d",
             "max_pool2d_with_indices_backward", "max_unpool1d", "max_unpool2d", "max_unpool3d", "avg_pool2d", "avg_pool3d", "narrow",
             "narrow_copy", "native_group_norm", "new_tensor", "opencl_function", "permute", "permute_copy", "polygamma", "reshape", "roll",
             "rot90", "scalar_tensor", "scan", "set_num_threads", "slice_scatter", "sum_to_size", "svd_lowrank", "tensordot",
             "tensorsolve", "tril", "triu", "unflatten", "unfold", "unfold_copy", "unravel_index", "view", "view_copy", "histogramdd"}


def sized() -> set[str]:
    """The public functions that an argument tells the size of."""
    found = set()
    for where, space in WHERE.items():
        for name in dir(space):
            fn, again = getattr(space, name), where not in ("", "F.", "linalg.") and hasattr(tg, name.removesuffix("_"))
            name = name.removesuffix("_with_indices")              # the same, with places
            if name.startswith("_") or not callable(fn) or isinstance(fn, type) or again:
                continue
            try:
                arguments = inspect.signature(fn).parameters
            except (TypeError, ValueError):
                continue
            if SIZES & set(arguments) and (name not in NO_LARGER or f"{where}{name}" in CALLS):
                found.add(f"{where}{name}")
    return found


def test_every_function_with_a_size_has_a_call() -> None:
    assert sized() - set(CALLS) == set()
    assert {name for name in CALLS if not callable(getattr(WHERE[name[:name.find(".") + 1]], name.split(".")[-1], None))} == set()


@pytest.mark.filterwarnings("ignore:istft")
@pytest.mark.parametrize("name", CALLS)
def test_what_no_index_reaches_is_refused_by_the_function(name: str) -> None:
    where, called = name[:name.find(".") + 1], name.split(".")[-1]
    args, named = [a for a in CALLS[name] if not isinstance(a, dict)], [a for a in CALLS[name] if isinstance(a, dict)]
    refused(called, lambda x: getattr(WHERE[where], called)(*args, **(named[0] if named else {})))


# What layers take: sizes of their parameters are huge, what else they need is small.
FEATURES = {"in_features", "out_features", "in1_features", "in2_features", "num_features", "num_embeddings", "embedding_dim", "input_size",
            "hidden_size", "in_channels", "out_channels", "embed_dim", "d_model", "num_channels", "normalized_shape", "num_parameters",
            "n_classes", "num_classes"}
NEEDED = {"out_features": (2**40,), "kernel_size": 3, "cutoffs": [5], "nhead": 1, "num_heads": 1, "num_groups": 1, "affine": True}
LAYERS = [name for name in dir(nn) if isinstance(layer := getattr(nn, name), type) and issubclass(layer, nn.Module)
          and not name.startswith("Lazy") and FEATURES & set(inspect.signature(layer).parameters)
          and inspect.signature(layer).parameters.keys() & {"device"}]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_refused_when_they_are_made(name: str) -> None:
    takes = inspect.signature(getattr(nn, name)).parameters
    given = {key: 2**62 if len(FEATURES & set(takes)) == 1 else 2**40 for key, a in takes.items() if key in FEATURES and a.default != ()}
    needed = {key: value for key, value in NEEDED.items() if key in takes}
    refused(name, lambda x: getattr(nn, name)(**needed | given))


def test_every_layer_with_weights_is_among_them() -> None:
    assert len(LAYERS) > 30
    assert {"Linear", "Bilinear", "Embedding", "EmbeddingBag", "LSTM", "GRUCell", "MultiheadAttention", "Transformer", "LayerNorm", "PReLU",
            "TransformerEncoderLayer", "Conv3d", "ConvTranspose1d", "BatchNorm2d", "GroupNorm"} <= set(LAYERS)


# Other names of functions, by which those call themselves.
ALSO = {"affine_grid_generator": "affine_grid", "new_empty": "empty",
        "new_ones": "ones", "new_zeros": "zeros", "new_full": "full", "new_empty_strided": "empty_strided"}


def refused(name: str, call: Callable[[Any], Any]) -> None:
    x = tg.ones(3)
    with pytest.raises(OutOfMemoryError) as error:
        call(x)
    text = str(error.value)
    assert text.startswith(f"{ALSO.get(name, name)}:")
    assert "test_impossible_sizes.py" in text


@pytest.mark.parametrize("name", OTHERS)
def test_what_no_index_reaches_is_refused_by_the_call(name: str) -> None:
    refused(name, OTHERS[name])


def test_a_draw_that_is_refused_draws_nothing() -> None:
    before = tg.get_rng_state()
    for draw in (lambda: tg.rand(2**62), lambda: tg.randn(2**40, 2**40), lambda: tg.randint(0, 9, (HUGE,))):
        with pytest.raises(OutOfMemoryError):
            draw()
    assert tg.get_rng_state() == before


def test_the_message_says_what_was_asked_for_and_what_there_is() -> None:
    with pytest.raises(OutOfMemoryError, match=r"zeros: a float32 tensor of shape \(9223372036854775808,\) has .* 36893488147419103232 "
                                               r"bytes; indices have 64 bits.*make it smaller") as error:
        tg.zeros(2**63)
    if tg.device().kind != "numpy":
        assert f"{tg.device().name} has " in str(error.value)
    assert Aval((ADDRESSED,), tg.uint8).nbytes == ADDRESSED


def test_parameters_are_stored_so_they_have_to_fit() -> None:
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter has no limit of its own")
    n = tg.device().max_buffer // 4 + 1
    for make in (lambda: nn.Linear(n, 1), lambda: nn.Parameter(tg.zeros(n)), lambda: nn.Embedding(n, 1), lambda: nn.Buffer(tg.zeros(n))):
        with pytest.raises(OutOfMemoryError, match=rf"{4 * n} bytes.*at most {tg.device().max_buffer}.*smaller"):
            make()


@pytest.mark.long
def test_what_is_never_stored_may_be_larger_than_the_device() -> None:
    """A tensor that is only reduced, or of which a part is taken, needs no memory."""
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter computes every node")
    x = tg.zeros(2**33) + 1
    assert x[2**33 - 3:].tolist() == [1, 1, 1]
    with pytest.raises(OutOfMemoryError, match=r"34359738368 bytes"):
        x.numpy()


WIDE = 2**17 + 3                                           # a row; there are 2**16 of them
PLACES = np.array([5, 2**31 - 1, 2**31, 2**32 + 11, 2**16 * WIDE - 1])
PICKED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "rows": (lambda x: x, PLACES % WIDE),
    "flip": (lambda x: x.flip(0), -(PLACES + 1) % WIDE),
    "roll": (lambda x: x.roll(2**31 + 5), (PLACES - 2**31 - 5) % (2**16 * WIDE) % WIDE),
    "cat": (lambda x: tg.cat([x[:3] - 9, x]), np.where(PLACES < 3, -9, (PLACES - 3) % WIDE)),
    "pad": (lambda x: F.pad(x[:WIDE], (2**31 - 5, 2**33)), np.where(abs(PLACES - 2**31) < 9, PLACES - 2**31 + 5, 0)),
    "arange": (lambda x: tg.arange(2**34), PLACES),
    "where": (lambda x: tg.where(tg.arange(len(x)) > 2**32, x, -x), np.where(PLACES > 2**32, PLACES % WIDE, -(PLACES % WIDE))),
}


@pytest.mark.parametrize("name", ["rows", *(pytest.param(name, marks=pytest.mark.long) for name in [*PICKED][1:])])
def test_elements_are_picked_from_beyond_2_31(name: str) -> None:
    """Neither what is read nor what results is large, only what they are picked from, which is never stored."""
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter computes every node")
    fn, wanted = PICKED[name]
    picked = tg.trace(lambda row, at: fn(row.expand(2**16, WIDE).reshape(-1))[at])
    assert picked(tg.arange(WIDE), tg.tensor(PLACES)).tolist() == wanted.tolist()
    if name == "rows":                                     # an index that is computed, of two
        picked = tg.trace(lambda row, y, x: row.expand(2**16, WIDE)[y, x])
        assert picked(tg.arange(WIDE), *(tg.tensor(i) for i in divmod(PLACES, WIDE))).tolist() == wanted.tolist()
