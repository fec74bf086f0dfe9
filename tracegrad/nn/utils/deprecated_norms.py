"""torch.nn.utils' older weight_norm and spectral_norm, for programs and checkpoints that have their names: weight_g, weight_v, weight_orig.

module.<name> becomes a property, as in parametrize.py. `parametrizations.weight_norm` and `spectral_norm` are the newer ones.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import named
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.nn.utils.parametrize import compute_attribute, computed_attribute, removed_parts, taken_parameter
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.random_numbers import randn

M = TypeVar("M", bound=Module)


class WeightNorm:
    """How a weight comes of <name>_g, norms, and <name>_v, directions: g v / |v|, along all dimensions but dim (None: all of them)."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, None if dim == -1 else dim

    def norm(self, v: Any) -> Any:
        """The norms of directions."""
        if self.dim is None:
            return (v * v).sum() ** 0.5
        return (v * v).sum(tuple(d for d in range(v.ndim) if d != self.dim % v.ndim), keepdim=True) ** 0.5

    def __call__(self, module: Module) -> Any:
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return v * (g / self.norm(v))


class SpectralNorm:
    """How a weight comes of <name>_orig and the buffers <name>_u and <name>_v, near its first singular vectors: weight / uᵀ W v."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        self.name, self.n_power_iterations, self.dim, self.eps = name, n_power_iterations, dim, eps

    def matrix(self, weight: Any) -> Any:
        """The weight as a matrix, its dimension dim in front."""
        return weight.movedim(self.dim, 0).reshape(weight.shape[self.dim], -1)

    def __call__(self, module: Module) -> Any:
        weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        return weight / u.clone().dot(self.matrix(weight).mv(v.clone()))

    def iterate(self, module: Module, args: Any) -> None:
        """Before each forward in training: bring the vectors nearer."""
        if module.training:
            weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
            with no_grad():
                matrix = self.matrix(weight.detach())
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(matrix.mT.mv(u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(matrix.mv(v), dim=0, eps=self.eps))


@named
def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """module.<name> becomes g v / |v|, with the parameters <name>_g and <name>_v (Salimans & Kingma 2016); returns the module.

    >>> layer = nn.utils.weight_norm(nn.Linear(20, 40))
    """
    how = WeightNorm(name, dim)
    weight = taken_parameter("weight_norm", module, name)
    with no_grad():
        module.register_parameter(f"{name}_g", Parameter(how.norm(weight), weight.requires_grad))
        module.register_parameter(f"{name}_v", Parameter(weight.detach().clone(), weight.requires_grad))
    return compute_attribute(module, name, how)


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Make module.<name> a plain parameter again, of its present value; returns the module."""
    return removed_parts("remove_weight_norm", WeightNorm, module, name, f"{name}_g", f"{name}_v")


@named
def spectral_norm(module: M, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None) -> M:
    """module.<name> becomes <name>_orig over its largest singular value (Miyato et al. 2018), estimated in training; returns the module.

    dim: the outputs' dimension; None: 1 for transposed convolutions, else 0.

    >>> layer = nn.utils.spectral_norm(nn.Linear(20, 40))
    """
    if n_power_iterations < 1:
        raise ArgumentError(f"spectral_norm: n_power_iterations must be at least 1, got {n_power_iterations}")
    how = SpectralNorm(name, n_power_iterations, int(getattr(module, "transposed", False)) if dim is None else dim, eps)
    weight = taken_parameter("spectral_norm", module, name)
    with no_grad():
        u, v = (F.normalize(randn(n, dtype=weight.dtype, device=weight.device), dim=0, eps=eps) for n in how.matrix(weight).shape)
    module.register_parameter(f"{name}_orig", weight)
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    how.handle = module.register_forward_pre_hook(how.iterate)  # type: ignore[attr-defined]
    return compute_attribute(module, name, how)


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """Make module.<name> a plain parameter again, of its present value; returns the module."""
    how = computed_attribute(module, name)
    found = removed_parts("remove_spectral_norm", SpectralNorm, module, name, f"{name}_orig", f"{name}_u", f"{name}_v")
    how.handle.remove()
    return found


__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]
