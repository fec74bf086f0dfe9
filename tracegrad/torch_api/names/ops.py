"""torch.ops: the operations that `torch.library.custom_op` has made, as `torch.ops.<library>.<op>`, and aten's by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracegrad.tensors.tensor import Tensor, from_array
from tracegrad.torch_api.dispatch import Operator

_registered: dict[str, dict[str, Any]] = {}


class Namespace:
    """The operations of one library."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, op: str) -> Any:
        try:
            return _registered[self._name][op]
        except KeyError:
            if self._name == "aten" and not op.startswith("__"):
                return Operator(op)
            raise AttributeError(f"torch.ops.{self._name} has no operation {op!r}: torch.library.custom_op has made none") from None


def register(name: str, op: Any) -> None:
    library, _, own = name.partition("::")
    _registered.setdefault(library, {})[own] = op


def is_registered(name: str) -> bool:
    """Whether there is an operation "library::op"."""
    library, _, own = name.partition("::")
    return own in _registered.get(library, ())


def find(name: str) -> Any:
    """The operation that was registered as "library::op"."""
    library, _, own = name.partition("::")
    return getattr(Namespace(library), own)


def load_library(path: Any) -> None:
    """Refused, as libraries of compiled operations are made for torch; but torchaudio cannot be imported without its own: it gets these."""
    if not Path(path).name.startswith(("_torchaudio", "libtorchaudio")):
        raise OSError(f"torch.ops.load_library: {path} has operations that are compiled for torch")
    register("_torchaudio::cuda_version", lambda: None)
    register("_torchaudio::is_align_available", lambda: False)
    register("torchaudio::_lfilter_core_loop", _recursive_filter)
    register("torchaudio::_overdrive_core_loop", _overdrive)


def _recursive_filter(waveform: Tensor, a_flipped: Tensor, padded: Tensor) -> None:
    """y[t] = x[t] - sum_k a[k] y[t - k], into padded (N, channels, order - 1 + time). x: (N, channels, time); a: (channels, order)."""
    x, a, y = waveform.detach().numpy(), a_flipped.detach().numpy(), padded.detach().numpy().copy()
    order = a.shape[1]
    for t in range(x.shape[2]):
        y[:, :, t + order - 1] = x[:, :, t] - (y[:, :, t:t + order] * a).sum(-1)
    padded.copy_(from_array(y, padded.device))


def _overdrive(waveform: Tensor, distorted: Tensor, last_in: Tensor, last_out: Tensor, output: Tensor) -> None:
    """A high-pass filter of `distorted`, mixed with the waveform, into output. All are (channels, time), the last ones (channels,)."""
    x, temp, y = waveform.detach().numpy(), distorted.detach().numpy(), output.detach().numpy().copy()
    before, filtered = last_in.detach().numpy(), last_out.detach().numpy()
    for t in range(x.shape[1]):
        filtered = temp[:, t] - before + 0.995 * filtered
        before = temp[:, t]
        y[:, t] = x[:, t] * 0.5 + filtered * 0.75
    output.copy_(from_array(y, output.device))


def __getattr__(name: str) -> Namespace:
    if name.startswith("__"):
        raise AttributeError(name)
    return Namespace(name)
