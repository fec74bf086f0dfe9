"""Transforms of whole values: several put together, other shapes, matrices, and by a distribution's cdf. Start at `CatTransform`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tracegrad.distributions import constraints
from tracegrad.distributions.distribution import Distribution
from tracegrad.distributions.transforms import ComposeTransform, Transform
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.tensors.tensor import Tensor

identity_transform = ComposeTransform([])


class CatTransform(Transform):
    """Along `dim`, one transform for each piece, of `lengths` elements (default: 1 each).

    dtype: float. Raises ArgumentError unless there are as many lengths as transforms, ShapeError where they do not add up to x's size.

    >>> t = tg.distributions.CatTransform([tg.distributions.ExpTransform(), tg.distributions.AffineTransform(0.0, 2.0)], lengths=[1, 2])
    >>> t(tg.tensor([0.0, 1.0, 2.0]))
    Tensor([1., 2., 4.], device='cpu')
    """

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim, self.lengths = list(tseq), dim, list(lengths or [1] * len(tseq))
        if not self.transforms or len(self.lengths) != len(self.transforms):
            raise ArgumentError(f"CatTransform: takes a length for each of one or more transforms, got {len(self.lengths)} lengths and "
                                f"{len(self.transforms)} transforms")
        self.domain = constraints.cat([t.domain for t in tseq], dim, self.lengths)
        self.bijective = all(t.bijective for t in tseq)
        self.codomain = constraints.cat([t.codomain for t in tseq], dim, self.lengths)

    @property
    def length(self) -> int:
        """How many elements there are along `dim`."""
        return sum(self.lengths)

    def _pieces(self, x: Tensor) -> Any:
        return PUBLIC["split"](x, self.lengths, self.dim)

    def _call(self, x: Tensor) -> Any:
        return PUBLIC["cat"]([t(part) for t, part in zip(self.transforms, self._pieces(x), strict=True)], self.dim)

    def _inverse(self, y: Tensor) -> Any:
        return PUBLIC["cat"]([t._inv_call(part) for t, part in zip(self.transforms, self._pieces(y), strict=True)], self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        found = []
        for t, a, b in zip(self.transforms, self._pieces(x), self._pieces(y), strict=True):
            each, dims = t.log_abs_det_jacobian(a, b), self.event_dim - t.event_dim
            found.append(each.sum(tuple(range(-dims, 0))) if dims > 0 else each)
        dim = self.dim - x.ndim if self.dim >= 0 else self.dim
        dim += self.event_dim
        return PUBLIC["cat"](found, dim) if dim < 0 else sum(found)


class StackTransform(Transform):
    """Along `dim`, one transform for each slice. dtype: float. Raises ShapeError unless x has as many slices as there are transforms.

    >>> t = tg.distributions.StackTransform([tg.distributions.ExpTransform(), tg.distributions.AffineTransform(0.0, 2.0)])
    >>> t(tg.tensor([0.0, 3.0]))
    Tensor([1., 6.], device='cpu')
    """

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = list(tseq), dim
        self.bijective = all(t.bijective for t in tseq)
        self.domain = constraints.stack([t.domain for t in tseq], dim)
        self.codomain = constraints.stack([t.codomain for t in tseq], dim)

    def _slices(self, x: Tensor) -> Any:
        found = x.unbind(self.dim)
        if len(found) != len(self.transforms):
            raise ShapeError(f"StackTransform: has {len(self.transforms)} transforms for {len(found)} slices of {x.shape} along {self.dim}")
        return found

    def _call(self, x: Tensor) -> Any:
        return PUBLIC["stack"]([t(part) for t, part in zip(self.transforms, self._slices(x), strict=True)], self.dim)

    def _inverse(self, y: Tensor) -> Any:
        return PUBLIC["stack"]([t._inv_call(part) for t, part in zip(self.transforms, self._slices(y), strict=True)], self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        parts = zip(self.transforms, self._slices(x), self._slices(y), strict=True)
        return PUBLIC["stack"]([t.log_abs_det_jacobian(a, b) for t, a, b in parts], self.dim)


class ReshapeTransform(Transform):
    """Values of the shape in_shape as values of out_shape. Raises ShapeError if they have not as many elements. Any dtype.

    >>> tg.distributions.ReshapeTransform((4,), (2, 2))(tg.arange(4))
    Tensor([[0, 1],
            [2, 3]], device='cpu')
    """

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if prod(self.in_shape) != prod(self.out_shape):
            raise ShapeError(f"ReshapeTransform: in_shape {self.in_shape} and out_shape {self.out_shape} must have as many elements")
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Any:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Any:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return PUBLIC["zeros"](x.shape[:x.ndim - len(self.in_shape)], dtype=x.dtype, device=x.device)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _replaced(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _replaced(shape, self.out_shape, self.in_shape)


def _replaced(shape: Sequence[int], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    cut = len(shape) - len(old)
    if cut < 0 or tuple(shape[cut:]) != old:
        raise ShapeError(f"ReshapeTransform: expected a shape that ends with {old}, got {tuple(shape)}")
    return (*shape[:cut], *new)


class CumulativeDistributionTransform(Transform):
    """y = distribution.cdf(x), of a distribution of numbers.

    dtype: float. Raises ShapeError where x does not broadcast with the batch, MissingRuleError for a distribution without a cdf.

    >>> tg.distributions.CumulativeDistributionTransform(tg.distributions.Normal(0.0, 1.0))(tg.zeros(2))
    Tensor([0.5, 0.5], device='cpu')
    """

    codomain = constraints.unit_interval

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution, self.sign, self.domain = distribution, 1, distribution.support

    def _call(self, x: Tensor) -> Any:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Any:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return self.distribution.log_prob(x)


class LowerCholeskyTransform(Transform):
    """From matrices to lower triangular ones with a positive diagonal, the exponential of theirs; what is above is not looked at.

    (*, n, n), of a float dtype. Raises ShapeError for fewer dimensions.

    >>> tg.distributions.LowerCholeskyTransform()(tg.ones(2, 2))
    """

    domain, codomain = constraints.independent(constraints.real, 2), constraints.lower_cholesky

    def _call(self, x: Tensor) -> Any:
        return x.tril(-1) + x.diagonal(0, -2, -1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Any:
        return y.tril(-1) + y.diagonal(0, -2, -1).log().diag_embed()


class PositiveDefiniteTransform(Transform):
    """From matrices to positive definite ones: L L^T of what `LowerCholeskyTransform` makes. (*, n, n), of a float dtype.

    Raises ShapeError for fewer dimensions; the inverse LinAlgError for a matrix that is not positive definite.

    >>> tg.distributions.PositiveDefiniteTransform()(tg.ones(2, 2))
    """

    domain, codomain = constraints.independent(constraints.real, 2), constraints.positive_definite

    def _call(self, x: Tensor) -> Any:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Any:
        return LowerCholeskyTransform().inv(PUBLIC["cholesky"](y))


class CorrCholeskyTransform(Transform):
    """From n(n - 1)/2 real numbers (the last dimension) to the Cholesky factor of an n x n correlation matrix. dtype: float.

    Raises ShapeError for another count of numbers.

    >>> tg.distributions.CorrCholeskyTransform()(tg.zeros(3))
    """

    domain, codomain = constraints.real_vector, constraints.corr_cholesky

    def _call(self, x: Tensor) -> Any:
        x = x.tanh().clamp(-1 + 2.0**-22, 1 - 2.0**-22) if x.dtype == "float32" else x.tanh()
        r = _triangle(x)
        left = (1 - r * r).sqrt().cumprod(-1)
        r = r + PUBLIC["eye"](r.shape[-1], dtype=r.dtype, device=r.device)
        return r * PUBLIC["cat"]([PUBLIC["ones_like"](left[..., :1]), left[..., :-1]], -1)

    def _inverse(self, y: Tensor) -> Any:
        left = (1 - (y * y).cumsum(-1)).sqrt()
        left = PUBLIC["cat"]([PUBLIC["ones_like"](left[..., :1]), left[..., :-1]], -1)
        rows, columns = _places(y.shape[-1])
        ratio = y[..., rows, columns] / left[..., rows, columns]
        return (ratio.log1p() - (-ratio).log1p()) / 2

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        rows, columns = _places(y.shape[-1])
        left = (1 - (y * y).cumsum(-1))
        left = PUBLIC["cat"]([PUBLIC["ones_like"](left[..., :1]), left[..., :-1]], -1)[..., rows, columns]
        inner = columns > 0                                            # of the first column everything is left
        return 0.5 * PUBLIC["where"](inner, left, 1.0).log().sum(-1) - 2.0 * (x + PUBLIC["softplus"](-2.0 * x) - 0.6931471805599453).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], *(2 * (_size(shape[-1]),)))

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        n = shape[-1]
        return (*shape[:-2], n * (n - 1) // 2)


def _size(count: int) -> int:
    """n of n(n - 1)/2."""
    n = int((0.25 + 2 * count)**0.5 + 0.75)
    if n * (n - 1) // 2 != count:
        raise ShapeError(f"CorrCholeskyTransform: takes n(n - 1)/2 numbers, got {count}")
    return n


def _places(n: int) -> Any:
    """The rows and columns of what is below the diagonal of n x n matrices."""
    return PUBLIC["tril_indices"](n, n, -1)


def _triangle(x: Tensor) -> Any:
    """Matrices with x (..., k) below the diagonal, row by row."""
    n = _size(x.shape[-1])
    rows, columns = _places(n)
    flat = PUBLIC["zeros"]((*x.shape[:-1], n * n), dtype=x.dtype, device=x.device)
    return flat.index_copy(-1, rows * n + columns, x).reshape((*x.shape[:-1], n, n))
