"""Ready parametrizations: weight_norm and spectral_norm, torch.nn.utils.parametrizations' names."""

from __future__ import annotations

from typing import Any

from tracegrad.creation import randn
from tracegrad.errors import ArgumentError
from tracegrad.modes import no_grad
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.utils.parametrize import register_parametrization
from tracegrad.tensor import Tensor


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


def spectral_norm(module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int = 0) -> Module:
    """module.<name> becomes the weight over its largest singular value (Miyato et al. 2018); returns the module.

    The value is estimated by n_power_iterations of power iteration at every use while training; its vectors are buffers. dim: the outputs'
    dimension (1 for transposed convolutions).

    >>> layer = nn.utils.parametrizations.spectral_norm(nn.Linear(20, 40))
    """
    weight = module._parameters.get(name)
    if weight is None:
        raise ArgumentError(f"spectral_norm: {type(module).__name__} has no parameter {name!r}")
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


__all__ = ["spectral_norm", "weight_norm"]
