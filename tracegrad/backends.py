"""torch.backends' names that programs set or ask before they start: of libraries that are not used here.

Their switches may be set as in torch, and change nothing (results are the same at every run without them), but for what float32 products
may be computed with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tracegrad.support.modes import float32_matmul


class Backend:
    """A library of torch's. Only the switches that it has can be set."""

    _name: str

    def __init__(self, name: str, **switches: bool) -> None:
        vars(self).update(_name=name, **switches)

    def is_available(self) -> bool:
        """False."""
        return False

    is_built = is_available

    @contextmanager
    def flags(self, **switches: Any) -> Iterator[None]:
        """A block in which the switches are set otherwise."""
        before = {name: getattr(self, name) for name in switches}
        try:
            for name, value in switches.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name not in vars(self):
            raise AttributeError(f"backends.{self._name} has no switch {name!r}, only {', '.join(n for n in vars(self) if n[0] != '_')}")
        vars(self)[name] = value

    def __repr__(self) -> str:
        return f"<backends.{self._name}: not used here>"


class Products:
    """Matrix products of float32 on GPUs, by torch's older name of the setting. allow_tf32: see `set_float32_matmul_precision`.

    >>> tg.backends.cuda.matmul.allow_tf32
    False
    """

    __slots__ = ()

    @property
    def allow_tf32(self) -> bool:
        """Whether the precision of float32 products is less than "highest"; True sets "high"."""
        return float32_matmul[0] != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        float32_matmul[0] = "high" if allow else "highest"

    def __repr__(self) -> str:
        return f"<backends.cuda.matmul: allow_tf32={self.allow_tf32}>"


class Cuda(Backend):
    """The part of it that means something here."""

    matmul = Products()


cudnn = Backend("cudnn", enabled=False, benchmark=False, deterministic=False, allow_tf32=False)
mps, mkl, openmp, opt_einsum = (Backend(name) for name in ("mps", "mkl", "openmp", "opt_einsum"))
mkldnn = Backend("mkldnn", enabled=False, deterministic=False, allow_tf32=False)
cuda = Cuda("cuda")
