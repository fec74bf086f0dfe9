"""The functional interface, torch.nn.functional's names: every op family exports its functions here with `functional`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegrad.ops import FUNCTIONAL, PUBLIC

# Activations and the like that torch has under both names.
_SHARED = ("tanh", "sigmoid", "softmax", "log_softmax", "relu", "pad", "one_hot", "embedding", "normalize", "cosine_similarity", "unfold")

_NAMES = {**{name: PUBLIC[name] for name in _SHARED if name in PUBLIC}, **FUNCTIONAL}
globals().update(_NAMES)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracegrad.tensors.tensor import Tensor

    def __getattr__(name: str) -> Callable[..., Tensor]: ...


__all__ = sorted(_NAMES)        # noqa: PLE0605  (computed: the families decide; a test holds it)
