"""torch.device for programs written for torch: a type whose call finds one of tracegrad's devices."""

from __future__ import annotations

import sys
from typing import Any

import tracegrad as tg
from tracegrad.execute.compile import HostDevice
from tracegrad.runtime.device import Device

_accelerator: list[Any] = []            # what "cuda", "mps" and "opencl" lead to, where the user has said so


def use(spec: str | None) -> None:
    """Make `spec` the device of new tensors and what the names of accelerators lead to; None changes nothing."""
    if spec is None:
        return
    _accelerator[:] = [tg.set_device(spec)]
    print(f"tracegrad: 'cuda' and 'mps' are {_accelerator[0].name}", file=sys.stderr)


def accelerator() -> Any | None:
    """The device that the names of accelerators lead to, if the user has said which."""
    return _accelerator[0] if _accelerator else None


class MetaDevice:
    """torch's device of tensors without values. Programs compare with it; a tensor on it cannot be made."""

    name = type = "meta"
    index = None


META = MetaDevice()


class _Type(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (Device, HostDevice, MetaDevice))

    def __call__(cls, type: Any = "", index: int | None = None) -> Any:
        name = type.partition(":")[0] if isinstance(type, str) else type
        if name == "meta":
            return META
        if name in ("cuda", "mps", "opencl", "xpu") or isinstance(name, int):
            return tg.device(_accelerator[0] if _accelerator else "gpu" if name != "opencl" else "")
        return tg.device(name)


class device(metaclass=_Type):
    """torch.device: its calls find a device, and `isinstance` knows those.

    type: "cpu", or "cuda", "mps", "xpu" and "opencl" for the device that `install` or `--device` names; else as in `tg.device`.
    """
