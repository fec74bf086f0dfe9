"""Of what each of torch's modules is made. Start at `sources`."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

# Modules of torch's that are elsewhere here; others have the same path.
_ELSEWHERE = {
    "torch.nn.modules.batchnorm": "nn", "torch.nn.modules.instancenorm": "nn", "torch.nn.modules.container": "nn", "torch.nn.modules.module": "nn",
    "torch.nn.modules.flatten": "nn", "torch.nn.modules.fold": "nn", "torch.nn.modules.padding": "nn", "torch.nn.modules.pixelshuffle": "nn",
    "torch.nn.modules.rnn": "nn", "torch.nn.modules.upsampling": "nn", "torch.nn.modules.channelshuffle": "nn", "torch.nn.modules.utils": "",
    "torch.nn.modules": "nn", "torch.nn.modules._functions": "", "torch.nn.grad": "",
    "torch.functional": ".", "torch._tensor": ".", "torch.random": "random", "torch.storage": "", "torch.utils.data.dataset": "utils.data",
    "torch.utils.data.dataloader": "utils.data", "torch.utils.data.sampler": "utils.data", "torch.utils.data._utils.collate": "utils.data.collate",
    "torch.utils.data._utils": "", "torch.utils.data.distributed": "", "torch.optim.adamw": "optim", "torch.optim.sgd": "optim", "torch.optim.adam": "optim",
    "torch.distributions.kl": "distributions.divergence", "torch.distributions.utils": "", "torch.autograd.variable": "",
    "torch.autograd.function": "autograd.function", "torch.autograd.grad_mode": ".", "torch.amp.autocast_mode": "amp", "torch.amp.grad_scaler": "amp",
    "torch.cuda.amp.autocast_mode": "cuda.amp", "torch.cuda.amp.grad_scaler": "cuda.amp", "torch.cuda.amp.common": "", "torch.backends.cuda.matmul": "",
}


@cache
def sources(name: str) -> tuple[str, ...]:
    """The modules that have the names of torch's module `name`, those of `names/` first; empty if it is not here."""
    path = name.partition(".")[2]
    own = f"tracegrad.torch_api.names.{path}".rstrip(".")
    there = _ELSEWHERE.get(name, path)
    candidates = [own] if there == "" and path else [own, f"tracegrad.{there}".rstrip(".")]
    return tuple(module for module in candidates if _exists(module))


def is_ours(module: ModuleType) -> bool:
    """Whether it is one of this library's."""
    return module.__name__.partition(".")[0] == "tracegrad"


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
