"""Writes docs/coverage.md: `make coverage-table`. What each public name does is found by calling it, on the interpreter: nothing is stated.

`probe` is where to start reading: a name is called with SAMPLES of its own, or with the first of the COMMON ones that it takes. The
names that torch has and tracegrad has not come from op_db.txt (the names of torch's operator database, 2.15), with REASONS; those of its
namespaces from torch_namespaces.py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from inspect import getdoc
from pathlib import Path
from typing import Any

import numpy as np

import tracegrad as tg
from tests.public import torch_namespaces
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, SPECIAL
from tracegrad.nn import functional as F

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
NAMES = (Path(__file__).parent / "op_db.txt").read_text().split()
DTYPES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64")
FAILURES = (tg.TracegradError, TypeError, ValueError, RuntimeError, NotImplementedError, IndexError, AttributeError)
RANDOM = {
    "bernoulli",
    "multinomial",
    "normal",
    "rand_like",
    "randn_like",
    "randint_like",
    "rrelu",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
    "gumbel_softmax",
    "native_dropout",
    "svd_lowrank",
    "pca_lowrank",
}
SPACES = {"linalg": tg.linalg.__all__, "masked": tg.masked.__all__, "signal.windows": tg.signal.windows.__all__}


def make(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Values that most functions take: between 0.2 and 0.8, or small positive integers."""
    rng = np.random.default_rng(seed)
    array = rng.integers(1, 4, shape) if dtype[0] in "iu" else rng.random(shape) < 0.5 if dtype == "bool" else rng.uniform(0.2, 0.8, shape)
    array = array + 1j * rng.uniform(0.2, 0.8, shape) if dtype == "complex64" else array
    return tg.tensor(array.astype(dtype))


def ints(*values: Any) -> Any:
    return tg.tensor(list(values))


Sample = Callable[[Any, Callable[..., Any]], Any]  # (function, maker of arrays of shapes) -> result
COMMON: list[Sample] = [
    lambda f, x: f(x(4, 4)),
    lambda f, x: f(x(4, 4), x(4, 4)),
    lambda f, x: f(x(4, 4), 0),
    lambda f, x: f([x(4, 4), x(4, 4)]),
    lambda f, x: f(x(4, 4), x(4, 4), x(4, 4)),
    lambda f, x: f(x(4, 4), 2, 0),
    lambda f, x: f(x(4, 4), (2, 8)),
    lambda f, x: f(x(4)),
    lambda f, x: f(x(2, 4, 4, 4), 2),
    lambda f, x: f(x(2, 4, 4), 2),
    lambda f, x: f(x(2, 4, 4, 4, 4), 2),
    lambda f, x: f(x(4), x(4)),
    lambda f, x: f(x(2, 3, 3), x(2, 3, 3)),
    lambda f, x: f(x(2, 3, 4), x(2, 4)),
    lambda f, x: f(x(4, 4), x(4)),
]
_ROWS = lambda f, x: f(x(4, 4), 0, ints(0, 2))
SAMPLES: dict[str, Sample] = {
    "where": lambda f, x: f(tg.eye(4) > 0, x(4, 4), x(4, 4)),
    "gather": lambda f, x: f(x(4, 4), 0, ints([0, 1, 2, 3])),
    "index_select": _ROWS,
    "index_add": lambda f, x: f(x(4, 4), 0, ints(0, 2), x(2, 4)),
    "index_copy": lambda f, x: f(x(4, 4), 0, ints(0, 2), x(2, 4)),
    "index_fill": lambda f, x: f(x(4, 4), 0, ints(0, 2), 1),
    "index_reduce": lambda f, x: f(x(4, 4), 0, ints(0, 2), x(2, 4), "amax"),
    "index_put": lambda f, x: f(x(4, 4), (ints(0, 2),), x(2, 4)),
    "put": lambda f, x: f(x(4, 4), ints(0, 2), x(2)),
    "take": lambda f, x: f(x(4, 4), ints(0, 2)),
    "take_along_dim": lambda f, x: f(x(4, 4), ints([0, 1, 2, 3]), 0),
    "take_along_axis": lambda f, x: f(x(4, 4), ints([0, 1, 2, 3]), 0),
    "scatter": lambda f, x: f(x(4, 4), 0, ints([0, 1, 2, 3]), x(1, 4)),
    "scatter_add": lambda f, x: f(x(4, 4), 0, ints([0, 1, 2, 3]), x(1, 4)),
    "scatter_reduce": lambda f, x: f(x(4, 4), 0, ints([0, 1, 2, 3]), x(1, 4), "amax"),
    "masked_fill": lambda f, x: f(x(4, 4), tg.eye(4) > 0, 1),
    "masked_scatter": lambda f, x: f(x(4, 4), tg.eye(4) > 0, x(4)),
    "masked_select": lambda f, x: f(x(4, 4), tg.eye(4) > 0),
    "select_scatter": lambda f, x: f(x(4, 4), x(4), 0, 1),
    "slice_scatter": lambda f, x: f(x(4, 4), x(2, 4), 0, 1, 3),
    "diagonal_scatter": lambda f, x: f(x(4, 4), x(4)),
    "as_strided": lambda f, x: f(x(4, 4), (2, 2), (4, 1)),
    "nonzero_static": lambda f, x: f(x(4, 4), size=3),
    "embedding": lambda f, x: f(ints(0, 2), x(4, 4)),
    "embedding_bag": lambda f, x: f(ints([0, 2]), x(4, 4)),
    "one_hot": lambda f, x: f(ints(0, 2), 4),
    "polygamma": lambda f, x: f(1, x(4, 4)),
    "mvlgamma": lambda f, x: f(x(4, 4) + 1.5, 2),
    "multigammaln": lambda f, x: f(x(4, 4) + 1.5, 2),
    "acosh": lambda f, x: f(x(4, 4) + 1),
    "arccosh": lambda f, x: f(x(4, 4) + 1),
    "igamma": lambda f, x: f(2.5, x(4, 4)),
    "igammac": lambda f, x: f(2.5, x(4, 4)),
    "gammainc": lambda f, x: f(2.5, x(4, 4)),
    "gammaincc": lambda f, x: f(2.5, x(4, 4)),
    "zeta": lambda f, x: f(2.5, x(4, 4)),
    "movedim": lambda f, x: f(x(4, 4), 0, 1),
    "moveaxis": lambda f, x: f(x(4, 4), 0, 1),
    "transpose": lambda f, x: f(x(4, 4), 0, 1),
    "swapaxes": lambda f, x: f(x(4, 4), 0, 1),
    "swapdims": lambda f, x: f(x(4, 4), 0, 1),
    "permute": lambda f, x: f(x(4, 4), (1, 0)),
    "narrow": lambda f, x: f(x(4, 4), 0, 1, 2),
    "select": lambda f, x: f(x(4, 4), 0, 1),
    "expand": lambda f, x: f(x(1, 4), (4, 4)),
    "broadcast_to": lambda f, x: f(x(1, 4), (4, 4)),
    "sum_to_size": lambda f, x: f(x(4, 4), (1, 4)),
    "unflatten": lambda f, x: f(x(4, 4), 0, (2, 2)),
    "roll": lambda f, x: f(x(4, 4), 1, 0),
    "dsplit": lambda f, x: f(x(4, 4, 4), 2),
    "split_with_sizes": lambda f, x: f(x(4, 4), (1, 3)),
    "cartesian_prod": lambda f, x: f(x(4), x(4)),
    "block_diag": lambda f, x: f(x(4, 4), x(4, 4)),
    "meshgrid": lambda f, x: f(x(4), x(4), indexing="ij"),
    "tensordot": lambda f, x: f(x(4, 4), x(4, 4), 1),
    "einsum": lambda f, x: f("ij,jk->ik", x(4, 4), x(4, 4)),
    "lerp": lambda f, x: f(x(4, 4), x(4, 4), 0.5),
    "clamp": lambda f, x: f(x(4, 4), 0.3, 0.6),
    "clip": lambda f, x: f(x(4, 4), 0.3, 0.6),
    "quantile": lambda f, x: f(x(4, 4), 0.5),
    "nanquantile": lambda f, x: f(x(4, 4), 0.5),
    "histogram": lambda f, x: f(x(4, 4), 4),
    "renorm": lambda f, x: f(x(4, 4), 2, 0, 1.0),
    "bucketize": lambda f, x: f(x(4, 4), x(4).sort()[0]),
    "searchsorted": lambda f, x: f(x(4).sort()[0], x(4, 4)),
    "isin": lambda f, x: f(x(4, 4), x(4)),
    "baddbmm": lambda f, x: f(x(2, 3, 3), x(2, 3, 3), x(2, 3, 3)),
    "unravel_index": lambda f, x: f(ints(0, 2), (2, 2)),
    "addmm": lambda f, x: f(x(4, 4), x(4, 4), x(4, 4)),
    "threshold": lambda f, x: f(x(4, 4), 0.5, 1.0),
    "pad": lambda f, x: f(x(4, 4), (1, 1)),
    "constant_pad_nd": lambda f, x: f(x(4, 4), (1, 1)),
    "layer_norm": lambda f, x: f(x(4, 4), (4,)),
    "rms_norm": lambda f, x: f(x(4, 4), (4,)),
    "group_norm": lambda f, x: f(x(2, 4, 4), 2),
    "batch_norm": lambda f, x: f(x(4, 4), None, None, training=True),
    "linear": lambda f, x: f(x(4, 4), x(3, 4)),
    "bilinear": lambda f, x: f(x(4, 3), x(4, 2), x(5, 3, 2)),
    "conv1d": lambda f, x: f(x(1, 2, 5), x(3, 2, 2)),
    "conv2d": lambda f, x: f(x(1, 2, 5, 5), x(3, 2, 2, 2)),
    "conv3d": lambda f, x: f(x(1, 2, 3, 3, 3), x(3, 2, 2, 2, 2)),
    "conv_transpose1d": lambda f, x: f(x(1, 2, 5), x(2, 3, 2)),
    "conv_transpose2d": lambda f, x: f(x(1, 2, 3, 3), x(2, 3, 2, 2)),
    "conv_transpose3d": lambda f, x: f(x(1, 2, 2, 2, 2), x(2, 3, 2, 2, 2)),
    "lp_pool1d": lambda f, x: f(x(2, 4, 4), 2, 2),
    "lp_pool2d": lambda f, x: f(x(2, 4, 4), 2, 2),
    "lp_pool3d": lambda f, x: f(x(2, 4, 4, 4), 2, 2),
    "max_unpool1d": lambda f, x: f(x(1, 2, 2), ints([[0, 2], [1, 3]]), 2),
    "max_unpool2d": lambda f, x: f(x(1, 1, 2), ints([[0, 3]]), (1, 2)),
    "max_unpool3d": lambda f, x: f(x(1, 1, 1, 2), ints([[[0, 3]]]), (1, 1, 2)),
    "fold": lambda f, x: f(x(1, 8, 4), (3, 3), 2),
    "F.unfold": lambda f, x: f(x(1, 2, 3, 3), 2),
    "unfold": lambda f, x: f(x(4, 4), 0, 2, 1),
    "interpolate": lambda f, x: f(x(1, 2, 3, 3), 5),
    "grid_sample": lambda f, x: f(x(1, 2, 3, 3), x(1, 2, 2, 2), align_corners=False),
    "affine_grid": lambda f, x: f(x(1, 2, 3), (1, 1, 3, 3)),
    "local_response_norm": lambda f, x: f(x(2, 4, 4), 2),
    "instance_norm": lambda f, x: f(x(2, 4, 4)),
    "pixel_shuffle": lambda f, x: f(x(4, 2, 2), 2),
    "cross_entropy": lambda f, x: f(x(3, 4), ints(0, 1, 2)),
    "nll_loss": lambda f, x: f(x(3, 4), ints(0, 1, 2)),
    "multi_margin_loss": lambda f, x: f(x(3, 4), ints(0, 1, 2)),
    "multilabel_margin_loss": lambda f, x: f(x(1, 3), ints([0, 1, -1])),
    "ctc_loss": lambda f, x: f(x(3, 1, 4), ints([1, 2]), [3], [2]),
    "cosine_embedding_loss": lambda f, x: f(x(3, 4), x(3, 4), ints(1, -1, 1)),
    "gaussian_nll_loss": lambda f, x: f(x(3, 4), x(3, 4), x(3, 4)),
    "hinge_embedding_loss": lambda f, x: f(x(3), ints(1, -1, 1)),
    "soft_margin_loss": lambda f, x: f(x(3), ints(1, -1, 1)),
    "margin_ranking_loss": lambda f, x: f(x(3), x(3), ints(1, -1, 1)),
    "gumbel_softmax": lambda f, x: f(x(3, 4)),
    "normal": lambda f, x: f(x(4, 4), 1.0),
    "multinomial": lambda f, x: f(x(4), 2),
    "bincount": lambda f, x: f(x(4)),
    "scaled_dot_product_attention": lambda f, x: f(x(1, 3, 4), x(1, 3, 4), x(1, 3, 4)),
    "to_dtype": lambda f, x: f(x(4, 4), "float32"),
    "rot90": lambda f, x: f(x(4, 4)),
    "dropout2d": lambda f, x: f(x(2, 3, 4, 4)),
    "dropout3d": lambda f, x: f(x(2, 3, 2, 2, 2)),
    "max_pool2d": lambda f, x: f(x(1, 2, 4, 4), 2),
    "max_pool3d": lambda f, x: f(x(1, 2, 4, 4, 4), 2),
    "full_like": lambda f, x: f(x(4, 4), 1),
    "randint_like": lambda f, x: f(x(4, 4), 3),
    "hardtanh": lambda f, x: f(x(4, 4)),
    "as_strided_copy": lambda f, x: f(x(4, 4), (2, 2), (4, 1)),
    "as_strided_scatter": lambda f, x: f(x(4, 4), x(2, 2), (2, 2), (4, 1)),
    "expand_copy": lambda f, x: f(x(1, 4), (4, 4)),
    "narrow_copy": lambda f, x: f(x(4, 4), 0, 1, 2),
    "select_copy": lambda f, x: f(x(4, 4), 0, 1),
    "permute_copy": lambda f, x: f(x(4, 4), (1, 0)),
    "transpose_copy": lambda f, x: f(x(4, 4), 0, 1),
    "split_with_sizes_copy": lambda f, x: f(x(4, 4), (1, 3)),
    "unsafe_split_with_sizes": lambda f, x: f(x(4, 4), (1, 3)),
    "unfold_copy": lambda f, x: f(x(4, 4), 0, 2, 1),
    "addbmm": lambda f, x: f(x(3, 3), x(2, 3, 3), x(2, 3, 3)),
    "addmv": lambda f, x: f(x(4), x(4, 4), x(4)),
    "addr": lambda f, x: f(x(4, 4), x(4), x(4)),
    "cholesky": lambda f, x: f(tg.matmul(x(3, 3), x(3, 3).mT) + tg.eye(3).to(x(1).dtype)),
    "grid_sampler": lambda f, x: f(x(1, 2, 3, 3), x(1, 2, 2, 2), 0, 0, False),
    "grid_sampler_2d": lambda f, x: f(x(1, 2, 3, 3), x(1, 2, 2, 2), 0, 0, False),
    "grid_sampler_3d": lambda f, x: f(x(1, 2, 3, 3, 3), x(1, 2, 2, 2, 3), 0, 0, False),
    "native_layer_norm": lambda f, x: f(x(4, 4), (4,), None, None, 1e-5),
    "native_group_norm": lambda f, x: f(x(2, 4, 4), None, None, 2, 4, 4, 2, 1e-5),
    "native_batch_norm": lambda f, x: f(x(4, 4), None, None, None, None, True, 0.1, 1e-5),
    "native_dropout": lambda f, x: f(x(4, 4), 0.5, True),
    "native_dropout_backward": lambda f, x: f(x(4, 4), tg.eye(4) > 0, 2.0),
    "histogramdd": lambda f, x: f(x(4, 2), 3),
    "lu_unpack": lambda f, x: f(*tg.lu(x(4, 4))),
    "lu_solve": lambda f, x: f(x(4, 2), *tg.lu(x(4, 4))),
    "ormqr": lambda f, x: f(x(4, 3), x(3), x(4, 2)),
    "orgqr": lambda f, x: f(x(4, 3), x(3)),
    "svd_lowrank": lambda f, x: f(x(4, 4), 2),
    "pca_lowrank": lambda f, x: f(x(4, 4), 2),
    "chain_matmul": lambda f, x: f(x(4, 4), x(4, 4)),
    "dropout": lambda f, x: f(x(4, 4), 0.5, True),
    "max_pool1d": lambda f, x: f(x(2, 4, 4), 2),
    "fractional_max_pool2d": lambda f, x: f(x(1, 2, 4, 4), 2, 2, _random_samples=x(1, 2, 2)),
    "fractional_max_pool3d": lambda f, x: f(x(1, 2, 4, 4, 4), 2, 2, _random_samples=x(1, 2, 3)),
    "linear_cross_entropy": lambda f, x: f(x(3, 4), x(5, 4), ints(0, 1, 2)),
    "stft": lambda f, x: f(x(2, 16), 8, return_complex=True),
    "istft": lambda f, x: f(x(5, 4), 8),
    "segment_reduce": lambda f, x: f(x(4, 4), "sum", lengths=ints(1, 3)),
    "_softmax_backward_data": lambda f, x: f(x(4, 4), x(4, 4), 0, x(1).dtype),
    "_native_batch_norm_legit": lambda f, x: f(x(4, 4), None, None, None, None, True, 0.1, 1e-5),
    "_batch_norm_with_update": lambda f, x: f(x(4, 4), None, None, None, None, 0.1, 1e-5),
    "_upsample_bilinear2d_aa": lambda f, x: f(x(1, 2, 4, 4), (3, 3), False),
    "max_pool2d_with_indices_backward": lambda f, x: f(x(1, 2, 1, 1), x(1, 2, 4, 4), 4, 4, 0, 1, False, ints([[[[3]], [[5]]]])[0]),
    "_chunk_cat": lambda f, x: f([x(4, 4), x(4, 3)], 0, 2),
    "_unsafe_masked_index": lambda f, x: f(x(4, 4), tg.eye(4) > 0, (ints([0], [1], [2], [3]), ints(0, 1, 2, 3)), 1),
    "_unsafe_masked_index_put_accumulate": lambda f, x: f(x(4, 4), tg.eye(4) > 0, (ints([0], [1], [2], [3]), ints(0, 1, 2, 3)), x(4, 4)),
    "threshold_": lambda f, x: f(x(4, 4) * 1, 0.5, 1.0),
    "multi_head_attention_forward": lambda f, x: f(*[x(3, 1, 4)] * 3, 4, 2, x(12, 4), None, None, None, False, 0.0, x(4, 4), None),
}
for _stem in ("elu", "selu", "celu", "relu", "leaky_relu", "hardtanh", "rrelu"):
    SAMPLES[f"{_stem}_"] = lambda f, x: f(x(4, 4) * 1)
for _stem in ("max_pool1d", "max_pool2d", "max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d"):
    SAMPLES[f"{_stem}_with_indices"] = SAMPLES[_stem]
for _stem in (
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
):
    SAMPLES[_stem] = SAMPLES[f"shifted_{_stem}"] = lambda f, x: f(x(4, 4), 3)
REASONS = [  # (names, why they are missing)
    (r"chalf", "a complex number of two float16: NumPy has none"),
    (r"torch\._scaled_mm", "there is no such dtype (float8)"),
    (r"sparse|to_sparse", "no sparse tensors"),
    (r"torch\.ops\.aten\._(flash|efficient)_attention_forward", "kernels of CUDA only, with layouts and random states of their own; "
     "`nn.functional.scaled_dot_product_attention` is the function"),
]
# names of the database for what has another name in torch itself
ELSEWHERE = {"_segment_reduce": "segment_reduce", "slice": "ops.aten.slice",
             "torch.ops.aten._safe_softmax.default": "ops.aten._safe_softmax",
             "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "ops.aten._scaled_dot_product_flash_attention_for_cpu",
             "jiterator_unary": "jiterator.create_jit_fn", "jiterator_binary": "jiterator.create_jit_fn",
             "jiterator_4inputs_with_extra_args": "jiterator.create_jit_fn",
             "jiterator_binary_return_by_ref": "jiterator.create_multi_output_jit_fn",
             "jiterator_2inputs_2outputs": "jiterator.create_multi_output_jit_fn"}  # fmt: skip


class Row:
    """What was found out about a name."""

    def __init__(self, name: str, fn: Any) -> None:
        self.name, self.fn, self.notes = name, fn, ""
        self.dtypes: list[str] = []
        self.gradient = self.forward = self.vmapped = self.traced = "-"


def probe(name: str, fn: Any) -> Row:
    """Calls fn with sample arguments, of every dtype, differentiated, mapped and traced."""
    row = Row(name, fn)
    short = name.rpartition(".")[2]
    own = SAMPLES.get(f"F.{short}" if name.startswith("nn.") else name) or SAMPLES.get(short)
    found = next((s for s in ([own] if own else COMMON) if any(works(s, fn, d) for d in ("float32", "int64", "bool", "complex64"))), None)
    if found is None:
        row.notes = "not probed"
        return row
    row.dtypes = [d for d in DTYPES if works(found, fn, d)]
    if "float32" in row.dtypes and (kinds := differentiable(found, fn)):        # complex ones: tests/ops/complex/test_complex.py
        row.gradient, row.forward = "yes" if kinds[0] else "no", "yes" if kinds[1] else "no"
    row.traced, row.vmapped = transformed(found, fn, "trace"), transformed(found, fn, "vmap")
    if short in RANDOM:
        row.notes = "random"
    elif row.traced == "no":
        row.notes = "reads values"
    return row


def works(sample: Sample, fn: Any, dtype: str) -> bool:
    """Whether fn takes arrays of that dtype."""
    try:
        values = floats(sample(fn, lambda *shape: make(dtype, *shape)), every=True)
        return all(v.numpy() is not None for v in values)
    except FAILURES:
        return False


def floats(result: Any, every: bool = False) -> list[Any]:
    """The tensors of a result: those of floats, or every one."""
    if isinstance(result, (tuple, list)):
        return [v for part in result for v in floats(part, every)]
    return [result] if isinstance(result, tg.Tensor) and (every or result.dtype.kind == "f") else []


def arrays(sample: Sample, dtype: str) -> list[Any]:
    """The arrays that a sample makes."""
    made: list[Any] = []

    def note(*shape: int) -> Any:
        made.append(make(dtype, *shape, seed=len(made)))
        return made[-1]

    sample(lambda *args, **named: None, note)
    return made


def called(sample: Sample, fn: Any, given: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors of the sample's result, for those arrays."""
    state = list(given)[::-1]
    return tuple(floats(sample(fn, lambda *shape: state.pop()), every=True))


def differentiable(sample: Sample, fn: Any) -> tuple[bool, bool] | None:
    """(reverse, forward), in the first array; None if no result is a float."""
    given = arrays(sample, "float32")
    if not given:
        return None
    x, *rest = given

    def value(x: Any) -> Any:
        return sum((v.sum() for v in called(sample, fn, [x, *rest]) if v.dtype.kind == "f"), start=tg.zeros(()))

    try:
        if not any(v.dtype.kind == "f" for v in called(sample, fn, [x, *rest])):
            return None
        if not value(x.clone().requires_grad_()).requires_grad:
            return (False, False)
        tg.grad(value)(x).numpy()
    except FAILURES:
        return (False, False)
    try:
        tg.jvp(value, (x,), (x,))[1].numpy()
    except FAILURES:
        return (True, False)
    return (True, True)


def transformed(sample: Sample, fn: Any, how: str) -> str:
    """Whether a trace of fn, or fn mapped over a further dimension of its arrays, computes it."""
    for dtype in ("float32", "int64", "bool"):
        if works(sample, fn, dtype):
            given = arrays(sample, dtype)
            if not given:
                return "-"
            try:
                if how == "trace":
                    results = tg.trace(lambda *xs: called(sample, fn, xs))(*given)
                else:
                    results = tg.vmap(lambda *xs: called(sample, fn, xs), randomness="different")(*(tg.stack([x, x, x]) for x in given))
                for v in results:
                    v.numpy()
            except FAILURES:
                return "no"
            return "yes"
    return "-"


def public() -> dict[str, Any]:
    """The functions of tensors by torch's names (creation functions are in the list below the table)."""
    found = {**PUBLIC, **{f"nn.functional.{n}": f for n, f in FUNCTIONAL.items()}, **{f"special.{n}": f for n, f in SPECIAL.items()}}
    found.pop("broadcast_shapes")  # of shapes, not of tensors
    return {n: f for n, f in sorted(found.items()) if callable(f) and getattr(f, "__module__", "").startswith("tracegrad.ops")}


def present(name: str) -> bool:
    """Whether a name of torch's operator database is here: as a function, a method, or a method that works in place."""
    space, _, short = ELSEWHERE.get(name, name).rpartition(".")
    if space == "nn.functional":
        return hasattr(F, short)
    if space == "special":
        return short in SPECIAL
    if space:
        owner: Any = tg
        for part in space.split("."):
            owner = getattr(owner, part) if part in dir(owner) else None
        return hasattr(owner, short)
    return short in PUBLIC or hasattr(tg.Tensor, short) or hasattr(tg.Tensor, f"{short}_")


def missing() -> dict[str, list[str]]:
    """Reason -> names of the database that are not here."""
    out: dict[str, list[str]] = {}
    for name in NAMES:
        if not present(name):
            reason = next((why for pattern, why in REASONS if re.match(pattern, name)), "not written yet")
            out.setdefault(reason, []).append(name)
    return out


def dtype_words(row: Row) -> str:
    if row.dtypes == list(DTYPES):
        return "all"
    parts = []
    groups = {"bool": ("bool",), "integers": ("uint8", "int32", "int64"), "floats": ("float16", "bfloat16", "float32", "float64"),
              "complex": ("complex64",)}
    for word, members in groups.items():
        held = [m for m in members if m in row.dtypes]
        parts += [word] if held == list(members) else held
    return ", ".join(parts)


def text() -> str:
    """The page."""
    functions = public()
    rows = [probe(name, fn) for name, fn in functions.items()]
    absent = missing()
    count = len(NAMES) - sum(map(len, absent.values()))
    lines = [
        "# Coverage",
        "",
        f"Of the {len(NAMES)} names of torch's operator database (2.15), {count} are here. This page is written by `make coverage-table`,",
        "which calls every function with small arguments on the interpreter (dtypes: which of bool, uint8, int32, int64, float16,",
        "bfloat16, float32, float64, complex64 its arrays may have, ints being promoted where torch does;",
        "derivative: reverse mode; forward: `jvp`; vmap: over all arrays; traced: in `@trace`). A dash: no float results, or not",
        "probed. A dtype that a device lacks is an UnsupportedError there.",
        "",
        "## Functions",
        "",
        "| name | dtypes | derivative | forward | vmap | traced | notes |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| `{r.name}` | {dtype_words(r)} | {r.gradient} | {r.forward} | {r.vmapped} | {r.traced} | {r.notes} |" for r in rows]
    creation = sorted(n for n, f in PUBLIC.items() if callable(f) and n not in functions and not n.endswith("_"))
    lines += [
        "",
        "## Creation, random numbers, transforms, control flow",
        "",
        ", ".join(f"`{n}`" for n in creation) + ".",
        "",
        "In place, as methods: " + ", ".join(f"`{n}`" for n in sorted(dir(tg.Tensor)) if re.fullmatch(r"[a-z]\w*[a-z0-9]_", n)) + ".",
    ]
    lines += [
        "",
        "## Other namespaces",
        "",
        *(f"`tg.{space}`: {', '.join(f'`{n}`' for n in sorted(names))}.\n" for space, names in SPACES.items()),
    ]
    lines += ["## Missing", "", "| why | names |", "|---|---|"]
    lines += [f"| {why} | {', '.join(f'`{n}`' for n in names)} |" for why, names in absent.items()]
    lines += ["", *torch_namespaces.text()]
    return "\n".join(lines) + "\n"


def documented() -> list[str]:
    """Public functions without a docstring."""
    return [name for name, fn in public().items() if not getdoc(fn)]


def main() -> None:
    previous = tg.device()
    tg.set_device("numpy")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            PAGE.write_text(text())
    finally:
        tg.set_device(previous)


if __name__ == "__main__":
    main()
