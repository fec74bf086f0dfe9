"""aten's operators as functions of tracegrad: `find("aten.add.Tensor")`. They have the arguments of aten's schemas.

Most are the public function of that name. What torch's decompositions take apart is not here. No torch is imported.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tracegrad.autograd.transforms import vjp
from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import FOURIER, FUNCTIONAL, LINALG, PUBLIC, SPECIAL
from tracegrad.ops import aten
from tracegrad.tensors.tensor import Tensor

# Where functions are whose operators have such a prefix: aten.fft_fftshift is fft.fftshift. They have the arguments of torch's own.
_SPACES = {"fft_": FOURIER, "linalg_": LINALG, "special_": SPECIAL}


def _pulled(fn: Callable[..., Any], grad: Tensor, inputs: Sequence[Any], mask: Sequence[bool]) -> tuple[Any, ...]:
    """The gradients of fn's inputs where mask holds, else None."""
    wanted = [k for k, asked in enumerate(mask) if asked]

    def of(*xs: Any) -> Any:
        given = list(inputs)
        for k, x in zip(wanted, xs, strict=True):
            given[k] = x
        return fn(*given)

    found = iter(vjp(of, *[inputs[k] for k in wanted])[1](grad)) if wanted else iter(())
    return tuple(next(found) if asked else None for asked in mask)


def _convolution(input: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any,
                 groups: int) -> Tensor:
    ndim = weight.ndim - 2
    if transposed:
        y = FUNCTIONAL[f"conv_transpose{ndim}d"](input, weight, bias, stride, padding, output_padding, groups, dilation)
    else:
        y = FUNCTIONAL[f"conv{ndim}d"](input, weight, bias, stride, padding, dilation, groups)
    return y  # type: ignore[no-any-return]


def _convolution_backward(grad: Tensor, input: Tensor, weight: Tensor, bias_sizes: Any, *rest: Any) -> tuple[Any, ...]:
    """The gradients of (input, weight, bias); rest: the arguments of `_convolution` from stride on, and which gradients are wanted."""
    how, mask = rest[:-1], rest[-1]
    first = _pulled(lambda x, w: _convolution(x, w, None, *how), grad, (input, weight), mask[:2])
    others = [d for d in range(grad.ndim) if d != 1]
    return *first, PUBLIC["sum"](grad, others) if mask[2] else None


def _max_pool(ndim: int) -> Callable[..., Any]:
    def pool(input: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
        return FUNCTIONAL[f"max_pool{ndim}d"](input, kernel_size, stride or None, padding, dilation, ceil_mode, return_indices=True)

    return pool


def _max_pool_backward(ndim: int) -> Callable[..., Any]:
    """Of all that takes the largest of windows: the last argument is where they are, counted over the last ndim dimensions."""
    def backward(grad: Tensor, input: Tensor, *rest: Any) -> Any:
        lead = input.shape[:-ndim]
        zeros, places, values = (x.reshape(*lead, prod(x.shape[-ndim:])) for x in (PUBLIC["zeros_like"](input), rest[-1], grad))
        return zeros.scatter_add(-1, places, values).reshape(input.shape)

    return backward


def _avg_pool(ndim: int) -> Callable[..., Any]:
    def pool(input: Tensor, kernel_size: Any, stride: Any = (), *rest: Any) -> Any:
        return FUNCTIONAL[f"avg_pool{ndim}d"](input, kernel_size, stride or None, *rest)

    return pool


def _avg_pool_backward(ndim: int) -> Callable[..., Any]:
    return lambda grad, input, *how: _pulled(lambda x: _avg_pool(ndim)(x, *how), grad, (input,), (True,))[0]


def _adaptive_avg_pool_backward(ndim: int) -> Callable[..., Any]:
    pool = FUNCTIONAL[f"adaptive_avg_pool{ndim}d"]
    return lambda grad, input: _pulled(lambda x: pool(x, grad.shape[-ndim:]), grad, (input,), (True,))[0]


def _adaptive_max_pool(ndim: int) -> Callable[..., Any]:
    return lambda input, output_size: FUNCTIONAL[f"adaptive_max_pool{ndim}d"](input, output_size, return_indices=True)


def _pools(ndim: int) -> dict[str, Callable[..., Any]]:
    return {
        f"aten._adaptive_avg_pool{ndim}d": FUNCTIONAL[f"adaptive_avg_pool{ndim}d"],
        f"aten._adaptive_avg_pool{ndim}d_backward": _adaptive_avg_pool_backward(ndim),
        f"aten.adaptive_max_pool{ndim}d": _adaptive_max_pool(ndim),
        f"aten.adaptive_max_pool{ndim}d_backward": _max_pool_backward(ndim),
        f"aten.avg_pool{ndim}d": _avg_pool(ndim),
        f"aten.avg_pool{ndim}d_backward": _avg_pool_backward(ndim),
        f"aten.fractional_max_pool{ndim}d": _fractional_max_pool(ndim),
        f"aten.fractional_max_pool{ndim}d_backward": _max_pool_backward(ndim),
        f"aten.max_pool{ndim}d_with_indices": _max_pool(ndim),
        f"aten.max_pool{ndim}d_with_indices_backward": PUBLIC.get(f"max_pool{ndim}d_with_indices_backward", _max_pool_backward(ndim)),
    }


def _index(input: Tensor, indices: Sequence[Any]) -> Tensor:
    return input[tuple(builtins.slice(None) if k is None else k for k in indices)]  # type: ignore[no-any-return]


def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return PUBLIC["cdist"](x1, x2, p)  # type: ignore[no-any-return]


def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Any:
    return _pulled(lambda x: PUBLIC["cdist"](x, x2, p), grad, (x1,), (True,))[0]


def _grid_sampler_backward(ndim: int) -> Callable[..., Any]:
    def backward(grad: Tensor, input: Tensor, grid: Tensor, *rest: Any) -> Any:
        how, mask = rest[:-1], rest[-1]
        return _pulled(lambda x, places: PUBLIC[f"grid_sampler_{ndim}d"](x, places, *how), grad, (input, grid), mask)

    return backward


def _fractional_max_pool(ndim: int) -> Callable[..., Any]:
    pool = FUNCTIONAL[f"fractional_max_pool{ndim}d"]
    return lambda input, kernel_size, output_size, samples: pool(input, kernel_size, output_size, None, True, samples)


def _replication_pad_backward(grad: Tensor, input: Tensor, padding: Any) -> Any:
    return _pulled(lambda x: FUNCTIONAL["pad"](x, padding, "replicate"), grad, (input,), (True,))[0]


def _upsample_aa_backward(grad: Tensor, output_size: Any, input_size: Any, align_corners: bool, scales_h: Any = None,
                          scales_w: Any = None) -> Any:
    def resized(x: Any) -> Any:
        return PUBLIC["_upsample_bilinear2d_aa"](x, output_size, align_corners, None, scales_w, scales_h=scales_h)

    return _pulled(resized, grad, (_empty(input_size, dtype=grad.dtype),), (True,))[0]


def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Any) -> Any:
    source = _empty(sizes, dtype=grad.dtype)
    return _pulled(lambda x: PUBLIC["masked_scatter"](grad, mask, x), grad, (source,), (True,))[0]


def _pdist_backward(grad: Tensor, input: Tensor, p: float, distances: Tensor) -> Any:
    return _pulled(lambda x: FUNCTIONAL["pdist"](x, p), grad, (input,), (True,))[0]


def _trilinear(i1: Tensor, i2: Tensor, i3: Tensor, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, unroll_dim: int = 1) -> Any:
    """The sum over sumdim of the three's product. Each lacks the dimensions of its `expand`."""
    letters = "abcdefghijklmnopqrstuvwxyz"[:i1.ndim + len(expand1)]
    terms = ["".join(c for d, c in enumerate(letters) if d not in left) for left in (expand1, expand2, expand3, sumdim)]
    return PUBLIC["einsum"](f"{terms[0]},{terms[1]},{terms[2]}->{terms[3]}", i1, i2, i3)


def _elu(input: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    return PUBLIC["where"](input > 0, input * scale, PUBLIC["expm1"](input * input_scale) * (alpha * scale))  # type: ignore[no-any-return]


def _to_copy(input: Any, dtype: Any = None) -> Tensor:
    if not isinstance(input, Tensor):                        # under vmap numbers are tensors in aten's eyes
        return PUBLIC["scalar_tensor"](input, dtype=dtype)  # type: ignore[no-any-return]
    return input.clone() if dtype is None or dtype == input.dtype else input.to(dtype)


def _copy(input: Tensor, src: Tensor) -> Tensor:
    return src.to(input.dtype).expand(input.shape)  # type: ignore[no-any-return]


def _softmax(input: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return PUBLIC["softmax"](input.float() if half_to_float else input, dim)  # type: ignore[no-any-return]


def _log_softmax(input: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return PUBLIC["log_softmax"](input.float() if half_to_float else input, dim)  # type: ignore[no-any-return]


def _iota(length: int, start: int, step: int, dtype: Any, **rest: Any) -> Tensor:
    return PUBLIC["arange"](length, dtype=dtype) * step + start  # type: ignore[no-any-return]


def _attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, dropout_p: float,
                        is_causal: bool, *, attn_mask: Any = None, scale: float | None = None) -> tuple[Any, ...]:
    if dropout_p:
        raise ArgumentError(f"attention: dropout_p must be 0, got {dropout_p}")
    found = aten.attention_gradients(grad, query, key, value, out, sums, is_causal, scale) if attn_mask is None else None
    if found is not None:
        return found

    def attention(q: Any, k: Any, v: Any) -> Any:
        return FUNCTIONAL["scaled_dot_product_attention"](q, k, v, attn_mask, 0.0, is_causal, scale)

    return _pulled(attention, grad, (query, key, value), (True,) * 3)


# How aten says by what a transform is divided: 0 by nothing, 1 by the root of the number of elements, 2 by that number.
_FORWARD, _INVERSE = ("backward", "ortho", "forward"), ("forward", "ortho", "backward")


def _fft_c2c(input: Tensor, dim: Any, normalization: int, forward: bool) -> Tensor:
    if not dim:
        return input.clone()
    name, norms = ("fftn", _FORWARD) if forward else ("ifftn", _INVERSE)
    return FOURIER[name](input, dim=dim, norm=norms[normalization])  # type: ignore[no-any-return]


def _fft_r2c(input: Tensor, dim: Any, normalization: int, onesided: bool) -> Tensor:
    return FOURIER["rfftn" if onesided else "fftn"](input, dim=dim, norm=_FORWARD[normalization])  # type: ignore[no-any-return]


def _fft_c2r(input: Tensor, dim: Any, normalization: int, last_dim_size: int) -> Tensor:
    sizes = [*(input.shape[d] for d in dim[:-1]), last_dim_size]
    return FOURIER["irfftn"](input, s=sizes, dim=dim, norm=_INVERSE[normalization])  # type: ignore[no-any-return]


def _linalg_eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> Any:
    return LINALG["eigh"](A, UPLO) if compute_v else (LINALG["eigvalsh"](A, UPLO), _empty((0,), dtype=A.dtype))


def _linalg_svd(A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None) -> Any:
    nothing = _empty((0,), dtype=A.dtype)
    return LINALG["svd"](A, full_matrices) if compute_uv else (nothing, LINALG["svdvals"](A), nothing)


def _empty(size: Any, *layout: Any, dtype: Any = None) -> Tensor:
    return PUBLIC["zeros"](size, dtype=dtype)  # type: ignore[no-any-return]


def _new_empty(input: Tensor, size: Any, *stride: Any, dtype: Any = None) -> Tensor:
    return PUBLIC["zeros"](size, dtype=input.dtype if dtype is None else dtype)  # type: ignore[no-any-return]


_OTHERS: dict[str, Callable[..., Any]] = _pools(2) | _pools(3) | {
    "aten._cdist_backward": _cdist_backward,
    "aten._cdist_forward": _cdist,
    "aten._conj": PUBLIC["conj"],
    "aten._conj_physical": PUBLIC["conj"],
    "aten._efficientzerotensor": _empty,
    "aten._fft_c2c": _fft_c2c,
    "aten._fft_c2r": _fft_c2r,
    "aten._fft_r2c": _fft_r2c,
    "aten._linalg_eigh": _linalg_eigh,
    "aten._linalg_svd": _linalg_svd,
    "aten._log_softmax": _log_softmax,
    "aten._neg_view": PUBLIC["neg"],
    "aten._pdist_backward": _pdist_backward,
    "aten._pdist_forward": FUNCTIONAL["pdist"],
    "aten._scaled_dot_product_flash_attention_for_cpu": aten._scaled_dot_product_flash_attention_for_cpu,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten._softmax": _softmax,
    "aten._to_copy": _to_copy,
    "aten._trilinear": _trilinear,
    "aten._unsafe_view": PUBLIC["view"],
    "aten._upsample_bilinear2d_aa_backward": _upsample_aa_backward,
    "aten.alias": lambda input: input,
    "aten.clone": lambda input: input.clone(),
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten.copy": _copy,
    "aten.detach": lambda input: input,
    "aten.elu": _elu,
    "aten.embedding": lambda weight, indices, *rest: FUNCTIONAL["embedding"](indices, weight),     # the rest is about the gradient
    "aten.empty": _empty,
    "aten.empty_permuted": _empty,
    "aten.empty_strided": _empty,
    "aten.grid_sampler_2d_backward": _grid_sampler_backward(2),
    "aten.grid_sampler_3d_backward": _grid_sampler_backward(3),
    "aten.hardtanh": lambda input, low=-1.0, high=1.0: PUBLIC["clamp"](input, low, high).to(input.dtype),
    "aten.index": _index,
    "aten.lift_fresh_copy": lambda input: input.clone(),
    "aten.masked_scatter_backward": _masked_scatter_backward,
    "aten.new_empty_strided": _new_empty,
    "aten.replication_pad1d_backward": _replication_pad_backward,
    "aten.replication_pad2d_backward": _replication_pad_backward,
    "aten.replication_pad3d_backward": _replication_pad_backward,
    "aten.slice": aten.slice,
    "prims.convert_element_type": lambda input, dtype: input.to(dtype),
    "prims.iota": _iota,
}


def find(operator: str) -> Callable[..., Any] | None:
    """The function for an operator, which is named with its overload: "aten.add.Tensor". None if there is none."""
    name = operator.rpartition(".")[0]
    space, _, short = name.partition(".")
    if name in _OTHERS or space != "aten":
        return _OTHERS.get(name)
    table, prefix = next(((table, prefix) for prefix, table in _SPACES.items() if short.startswith(prefix)), (PUBLIC, ""))
    return table.get(short.removeprefix(prefix))
