"""Ready parametrizations: orthogonal, weight_norm and spectral_norm, torch.nn.utils.parametrizations' names."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import LINALG, PUBLIC
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.utils.parametrize import register_parametrization
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.random_numbers import randn
from tracegrad.tensors.tensor import Tensor


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """module.<name> becomes g v / |v| (Salimans & Kingma 2016); returns the module.

    g = original0 holds norms, v = original1 directions. dim: the dimension that keeps its own norms (None: one norm for all).

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(20, 40))
    """
    return register_parametrization(module, name, _WeightNorm(dim))


class _WeightNorm(Module):
    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def _norm(self, v: Any) -> Any:
        if self.dim is None:
            return (v * v).sum() ** 0.5
        keep = self.dim % v.ndim
        return (v * v).sum(tuple(d for d in range(v.ndim) if d != keep), keepdim=True) ** 0.5

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / self._norm(v))  # type: ignore[no-any-return]

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Norms and directions of a weight."""
        return self._norm(weight), weight


def spectral_norm(module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None) -> Module:
    """module.<name> becomes the weight over its largest singular value (Miyato et al. 2018); returns the module.

    The value is estimated by n_power_iterations of power iteration at every use while training; its vectors are buffers. dim: the outputs'
    dimension; None: 1 for transposed convolutions, else 0.

    >>> layer = nn.utils.parametrizations.spectral_norm(nn.Linear(20, 40))
    """
    weight = module._parameters.get(name)
    if weight is None:
        raise ArgumentError(f"spectral_norm: {type(module).__name__} has no parameter {name!r}")
    dim = int(getattr(module, "transposed", False)) if dim is None else dim
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if n_power_iterations < 1:
            raise ArgumentError(f"spectral_norm: n_power_iterations must be at least 1, got {n_power_iterations}")
        self.dim, self.eps, self.n_power_iterations = dim % max(1, weight.ndim), eps, n_power_iterations
        if weight.ndim > 1:
            with no_grad():
                matrix = self._matrix(weight.detach())
                u, v = (F.normalize(randn(n, dtype=weight.dtype, device=weight.device), dim=0, eps=eps) for n in matrix.shape)
                self.register_buffer("_u", u)
                self.register_buffer("_v", v)
                self._iterate(matrix, 15)

    def _matrix(self, weight: Any) -> Any:
        return weight.movedim(self.dim, 0).flatten(1)

    def _iterate(self, matrix: Any, count: int) -> None:
        with no_grad():
            u, v = self._u, self._v
            for _ in range(count):
                u = F.normalize(matrix.mv(v), dim=0, eps=self.eps)
                v = F.normalize(matrix.mT.mv(u), dim=0, eps=self.eps)
            self._u.copy_(u)
            self._v.copy_(v)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        return weight / self._u.clone().dot(matrix.mv(self._v.clone()))  # type: ignore[no-any-return]

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value itself."""
        return value


def orthogonal(module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True) -> Module:
    """module.<name>, a matrix (*, m, n), becomes one of orthonormal columns (m >= n) or rows, unitary if complex; returns the module.

    orthogonal_map: "matrix_exp" or "cayley" of a skew-symmetric matrix, or "householder", a product of reflections (real only); default:
    the first for square and complex matrices, else the last. use_trivialization: what they make is multiplied by a matrix `base`, so that
    training begins at the weight, made orthogonal by a QR decomposition (Lezcano-Casado 2019). Raises ArgumentError for other maps and
    for parameters of less than two dimensions.

    >>> layer = nn.utils.parametrizations.orthogonal(nn.Linear(20, 40))
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        raise ArgumentError(f"orthogonal: {type(module).__name__} has no parameter {name!r} of two dimensions or more")
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if square or weight.is_complex() else "householder"
    if orthogonal_map not in ("matrix_exp", "cayley", "householder"):
        raise ArgumentError(f"orthogonal: orthogonal_map must be 'matrix_exp', 'cayley' or 'householder', got {orthogonal_map!r}")
    if weight.is_complex() and orthogonal_map == "householder":
        raise ArgumentError("orthogonal: 'householder' is for real matrices; take 'matrix_exp' or 'cayley'")
    return register_parametrization(module, name, _Orthogonal(weight, orthogonal_map, use_trivialization), unsafe=True)


class _Orthogonal(Module):
    def __init__(self, weight: Any, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape, self.orthogonal_map = tuple(weight.shape), orthogonal_map
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Any) -> Any:
        wide = x.shape[-2] < x.shape[-1]
        x = x.mT if wide else x
        n, k = x.shape[-2:]
        if self.orthogonal_map == "householder":
            a = x.tril(-1)
            q = LINALG["householder_product"](a, 2.0 / (1.0 + (a * a).sum(-2)))
            q = q * x.detach().diagonal(dim1=-2, dim2=-1).trunc().unsqueeze(-2)        # ones and minus ones, which are not trained
        else:
            x = x.tril()
            if n != k:                                                                 # n k - k (k - 1) / 2 numbers are all that it takes
                x = PUBLIC["cat"]([x, x.new_zeros(*x.shape[:-1], n - k)], -1)
            a = x - x.mH
            if self.orthogonal_map == "matrix_exp":
                q = LINALG["matrix_exp"](a)
            else:
                one = PUBLIC["eye"](n, dtype=a.dtype, device=a.device)
                q = LINALG["solve"](one - a * 0.5, one + a * 0.5)
            q = q[..., :k]
        if "base" in self._buffers:
            q = self.base @ q
        return q.mT if wide else q

    def right_inverse(self, value: Any) -> Any:
        """What makes the value, made orthogonal. ArgumentError where that is not to be told: of the first two maps without a base."""
        if tuple(value.shape) != self.shape:
            raise ShapeError(f"orthogonal: expected a value of shape {self.shape}, got {tuple(value.shape)}")
        wide = value.shape[-2] < value.shape[-1]
        q = value.mT if wide else value
        n, k = q.shape[-2:]
        if "base" not in self._buffers:
            if self.orthogonal_map != "householder":
                raise ArgumentError(f"orthogonal: a value cannot be assigned through {self.orthogonal_map!r} with use_trivialization=False")
            a, tau = PUBLIC["geqrf"](q)
            sign = PUBLIC["where"](tau == 0.0, -1.0, 1.0) * a.diagonal(dim1=-2, dim2=-1).sign()
            a = PUBLIC["diagonal_scatter"](a, sign, 0, -2, -1)
            return a.mT if wide else a
        if n != k:
            q = PUBLIC["cat"]([q, randn(*q.shape[:-1], n - k, dtype=q.dtype, device=q.device)], -1)
        one = PUBLIC["eye"](n, dtype=q.dtype, device=q.device)
        near = 10.0 * n * float(np.finfo(q.real.dtype).eps)
        if n != k or float((q.mH @ q - one).abs().max()) > near:
            q, r = LINALG["qr"](q)
            diagonal = r.diagonal(dim1=-2, dim2=-1)
            q = q * (diagonal / diagonal.abs() if q.is_complex() else diagonal.sign()).unsqueeze(-2)
        self.base = q.detach().clone()
        negative = PUBLIC["zeros_like"](value)                                         # so that Householder's reflections make the identity
        diagonal = PUBLIC["full"]((*value.shape[:-2], min(n, k)), -1.0, dtype=value.dtype, device=value.device)
        return PUBLIC["diagonal_scatter"](negative, diagonal, 0, -2, -1)


__all__ = ["orthogonal", "spectral_norm", "weight_norm"]
