"""torch.backends' names that programs set or ask before they start: of libraries that are not used here.

Their switches may be set as in torch, and change nothing (results are the same at every run without them), but for what float32 products
may be computed with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.support.modes import float32_matmul


class Backend:
    """A library of torch's. Only the switches that it has can be set."""

    _name: str

    def __init__(self, name: str, **switches: Any) -> None:
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

    def __init__(self) -> None:
        self.allow_fp16_reduced_precision_reduction = self.allow_bf16_reduced_precision_reduction = True
        self.allow_fp16_accumulation = False                # all three mean nothing here

    @property
    def fp32_precision(self) -> str:
        """The newer name of the same: "ieee", or "tf32" where the precision is less; "none" sets "ieee"."""
        return "tf32" if self.allow_tf32 else "ieee"

    @fp32_precision.setter
    def fp32_precision(self, precision: str) -> None:
        if precision not in ("ieee", "tf32", "none"):
            raise ArgumentError(f"backends.cuda.matmul.fp32_precision: is \"ieee\", \"tf32\" or \"none\", got {precision!r}")
        self.allow_tf32 = precision == "tf32"

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
    """The part of it that means something here, and which of torch's attentions are chosen: of one, so that it changes nothing."""

    matmul = Products()

    def __init__(self) -> None:
        super().__init__("cuda")
        for kind in _ATTENTIONS:
            vars(self)[f"_{kind}"] = True
            vars(self)[f"enable_{kind}_sdp"] = partial(vars(self).__setitem__, f"_{kind}")
            vars(self)[f"{kind}_sdp_enabled"] = partial(vars(self).__getitem__, f"_{kind}")

    @contextmanager
    def sdp_kernel(self, enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True,
                   enable_cudnn: bool = True) -> Iterator[None]:
        """A block in which attentions are chosen."""
        before = {f"_{kind}": vars(self)[f"_{kind}"] for kind in _ATTENTIONS}
        vars(self).update(_flash=enable_flash, _math=enable_math, _mem_efficient=enable_mem_efficient, _cudnn=enable_cudnn)
        try:
            yield
        finally:
            vars(self).update(before)

    def preferred_linalg_library(self, backend: Any = None) -> Any:
        """"default", whatever is asked for."""
        return "default"

    def is_flash_attention_available(self) -> bool:
        """False: it is the name of torch's kernels."""
        return False


class Cudnn(Backend):
    """The library is not there, as in a torch for CPUs."""

    def version(self) -> None:
        """None."""

    def is_acceptable(self, tensor: Any) -> bool:
        """Whether it computes with this tensor: False."""
        return False


class Mps(Backend):
    """Apple's."""

    def is_macos_or_newer(self, major: int, minor: int) -> bool:
        """False."""
        return False


_CAPABILITIES = {"AVX512": ("X86_V4", "AVX512_SKX"), "AVX2": ("X86_V3", "AVX2")}      # as NumPy's releases name them


class Cpu(Backend):
    """The processor."""

    def get_cpu_capability(self) -> str:
        """What the processor has, by torch's names: "AVX512", "AVX2" or "DEFAULT". (Of which the driver chooses instructions.)"""
        simd = np.show_config(mode="dicts")["SIMD Extensions"]
        has = {*simd.get("baseline", ()), *simd.get("found", ())}
        return next((name for name, ways in _CAPABILITIES.items() if not has.isdisjoint(ways)), "DEFAULT")


class Mha(Backend):
    """torch's shortcut for attention layers that are not trained."""

    def get_fastpath_enabled(self) -> bool:
        """What `set_fastpath_enabled` was given, at first True."""
        return bool(vars(self)["_fastpath"])

    def set_fastpath_enabled(self, value: bool) -> None:
        """Nothing changes: layers have one way to compute."""
        vars(self)["_fastpath"] = value


_ATTENTIONS = ("flash", "math", "mem_efficient", "cudnn")
fp32_precision = "none"
cudnn = Cudnn("cudnn", enabled=False, benchmark=False, benchmark_limit=10, deterministic=False, allow_tf32=False, fp32_precision="none",
              conv=SimpleNamespace(fp32_precision="tf32"), rnn=SimpleNamespace(fp32_precision="tf32"))
mkl, openmp, nnpack = (Backend(name) for name in ("mkl", "openmp", "nnpack"))
opt_einsum = Backend("opt_einsum", enabled=False, strategy=None)
mkldnn = Backend("mkldnn", enabled=False, deterministic=False, allow_tf32=False, fp32_precision="none")
quantized = Backend("quantized", engine="none", supported_engines=["none"])
cuda, mps, cpu, mha = Cuda(), Mps("mps"), Cpu("cpu"), Mha("mha", _fastpath=True)
