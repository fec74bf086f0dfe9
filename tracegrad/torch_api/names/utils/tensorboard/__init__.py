"""torch.utils.tensorboard: the writer of tensorboardX, which gets tensors as arrays."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import Any

import optree

from tracegrad.errors import UnsupportedError
from tracegrad.support.cache import memoize
from tracegrad.tensors.tensor import Tensor


def _arrays(values: Any) -> Any:
    return optree.tree_map(lambda v: v.detach().cpu().numpy() if isinstance(v, Tensor) else v, values, none_is_leaf=True)


def _with_arrays(method: Any) -> Any:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *_arrays(args), **_arrays(kwargs))

    return call


def _no_graph(self: Any, *_: Any, **__: Any) -> None:
    """Raise UnsupportedError: tensorboardX draws graphs of torch.jit only."""
    raise UnsupportedError("SummaryWriter.add_graph: draws graphs of torch.jit, which is not in tracegrad; leave the call out")


@memoize(1)
def _writer() -> Any:
    try:
        real: Any = import_module("tensorboardX").SummaryWriter
    except ImportError as error:
        raise ImportError("torch.utils.tensorboard: is tensorboardX's writer here; pip install tensorboardX") from error
    adding = {name: _with_arrays(getattr(real, name)) for name in dir(real) if name.startswith("add_")}
    names = {"__module__": __name__, "log_dir": property(lambda self: self.logdir), **adding, "add_graph": _no_graph}
    return type("SummaryWriter", (real,), names)


def __getattr__(name: str) -> Any:
    if name != "SummaryWriter":
        raise AttributeError(name)
    return _writer()
