"""torch.device for programs written for torch: a type whose call finds one of tracegrad's devices."""

from __future__ import annotations

import sys
from typing import Any

from tracegrad.execute.devices import HostDevice, aliases, find_device, set_device
from tracegrad.nn.torch_files import device_of
from tracegrad.runtime.device import Device

ACCELERATORS = "cuda", "mps", "xpu", "opencl"


def use(spec: str | None) -> None:
    """Make `spec` the device of new tensors and what the names of accelerators lead to; None changes nothing."""
    if spec is None:
        return
    aliases.update(dict.fromkeys(ACCELERATORS, set_device(spec)))
    sys.stderr.write(f"tracegrad: 'cuda' and 'mps' are {aliases['cuda'].name}\n")


def accelerator() -> Any | None:
    """The device that the names of accelerators lead to, if the user has said which."""
    return aliases.get("cuda")


class Elsewhere:
    """A device that can be named and compared, but not computed on: "cuda" where the user has named none for it."""

    def __init__(self, kind: str, index: int | None = None) -> None:
        self.type, self.index = kind, index
        self.name = kind if index is None else f"{kind}:{index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elsewhere) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"device(type={self.type!r})" if self.index is None else f"device(type={self.type!r}, index={self.index})"

    def __str__(self) -> str:
        return self.name

    def __enter__(self) -> None:
        find_device(self.name)                                  # says that there is none

    def __exit__(self, *_: Any) -> None:
        """Never reached."""


class _Type(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (Device, HostDevice, Elsewhere))

    def __call__(cls, type: Any = "", index: int | None = None) -> Any:
        if isinstance(type, int):
            type, index = "cuda", type
        name, _, number = type.partition(":") if isinstance(type, str) else (type, "", "")
        if name in ("cuda", "mps", "xpu") and name not in aliases:
            return Elsewhere(name, int(number) if number.isdigit() else index)
        return find_device("" if name == "opencl" and name not in aliases else name)


class device(metaclass=_Type):
    """torch.device: its calls find a device, and `isinstance` knows those.

    type: "cpu", or "cuda", "mps", "xpu" and "opencl" for the device that `install` or `--device` names; else as in `tg.device`.
    """

    __module__ = "torch"                                        # as what torch saves calls it


def _reduced(self: Any) -> Any:
    return device, ((self.type, self.index) if isinstance(self, Elsewhere) else (self.type,))


def install() -> None:
    """From now on devices can be pickled, as torch's: by the kind, which is found anew."""
    for cls in (Device, HostDevice, Elsewhere):
        cls.__reduce__ = _reduced  # type: ignore[method-assign]
    device_of[:] = [device]
