"""The import hook: `import torch` and its submodules give tracegrad's names. Start at `install`.

A module of torch's is a `Facade`: a name is looked up in the module of `names/` with the same path, then in the modules of tracegrad that
`modules.py` tells, then among submodules. So a name stands in one place, and a module costs nothing before it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, get_type_hints

from tracegrad.errors import TracegradError
from tracegrad.nn.module import Module
from tracegrad.nn.modules.function import FunctionModule
from tracegrad.ops.neural.losses import losses_that_broadcast, losses_that_refuse
from tracegrad.torch_api import devices, dtypes, modules, overrides, random_numbers, requirements, tensor_methods
from tracegrad.torch_api.modules import ABSENT, placeholder

_DUNDERS = {"__version__", "__config__", "__future__"}         # names of torch's that look like Python's own


_own: Callable[[ModuleType], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__             # of a facade: the names that were asked for


def _is_found(name: str) -> bool:
    """Whether a facade looks for the name among its sources: Python's own names are those of each module."""
    return name in _DUNDERS or not (name.startswith("__") and name.endswith("__"))


class Facade(ModuleType):
    """A module of torch's. `_sources`: the modules that have its names, the first that has one wins."""

    _sources: tuple[ModuleType, ...]

    def __getattr__(self, name: str) -> Any:
        if _is_found(name):
            for source in self._sources:
                if hasattr(source, name):
                    value = overrides.overridable(getattr(source, name), name)
                    if isinstance(value, ModuleType) and modules.is_ours(value):
                        break                                   # a submodule: torch's, not tracegrad's
                    _own(self)[name] = value
                    return value
            if absent := placeholder(self.__name__, name):
                return absent
            if modules.sources(path := f"{self.__name__}.{name}") or path in ABSENT:
                return importlib.import_module(path)
        elif name == "__all__":
            declared = getattr(self._sources[0], "__all__", None) if len(self._sources) == 1 else None
            return declared or [n for n in dir(self) if not n.startswith("_") and hasattr(self, n)]     # not modules that sources import
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}: tracegrad does not have it (docs/torch.md)")

    def __setattr__(self, name: str, value: Any) -> None:
        """A submodule that is imported does not hide a function of its name, since torch's packages bind theirs afterwards."""
        if not (isinstance(value, Facade) and any(callable(getattr(s, name, None)) for s in self._sources if ".torch_api." in s.__name__)):
            super().__setattr__(name, value)

    @property
    def __dict__(self) -> dict[str, Any]:                       # type: ignore[override]
        """All names with their values: programs look for classes in `vars(torch.optim)`."""
        for source in self._sources:
            for name in dir(source):
                if not name.startswith("_") and not isinstance(getattr(source, name, None), ModuleType):
                    getattr(self, name)
        return _own(self)

    def __dir__(self) -> list[str]:
        return sorted({*_own(self), *(n for source in self._sources for n in dir(source) if _is_found(n))})


class Finder(importlib.metadata.DistributionFinder, importlib.abc.Loader):
    """Finds torch's modules and its distribution, and makes the modules' facades."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in ("torch", "functorch"):
            return None
        if not modules.sources(fullname) and fullname not in ABSENT and not modules.setting(fullname):
            raise ModuleNotFoundError(f"No module named {fullname!r}: tracegrad does not have it (docs/torch.md)", name=fullname)
        return importlib.util.spec_from_loader(fullname, self, is_package=True, origin="tracegrad")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        facade = Facade(spec.name)
        facade._sources = tuple(importlib.import_module(name) for name in modules.sources(spec.name))
        return facade

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        return [requirements.Torch()] if getattr(context, "name", None) in (None, "torch") else []

    def exec_module(self, module: ModuleType) -> None:
        """Names are found when they are asked for. (`torch.torch` is torch, as it imports itself; `torch.backends.cudnn` is an object.)"""
        if found := modules.setting(module.__name__):
            sys.modules[module.__name__] = found
        if module.__name__ == "torch":
            _own(module)["torch"] = module
        if isinstance(module, Facade) and module._sources:
            _own(module)["__file__"] = module._sources[-1].__file__             # programs ask in which folder torch is


def install(device: str | None = None) -> None:
    """From now on `import torch` in this process gives tracegrad's names. Again: nothing, but for another `device`.

    device: the device of new tensors, and what a program's "cuda" and "mps" lead to (see `tg.device`). None: the default device, and
    `torch.cuda.is_available()` is False.

    Raises TracegradError where torch itself was imported before: two libraries under one name would be mixed up.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        devices.use(device)
        return
    if "torch" in sys.modules:
        raise TracegradError("as_torch: torch is imported already, and what has its classes would not fit; import tracegrad.as_torch first")
    sys.meta_path.insert(0, Finder())
    for layer in (Module, FunctionModule):                  # programs evaluate annotations among their own names: here they are values
        layer.__annotations__ = get_type_hints(layer)
    dtypes.install()
    devices.install()
    random_numbers.install()
    tensor_methods.install()
    overrides.install()
    losses_that_broadcast.update(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"))
    losses_that_refuse.update(("binary_cross_entropy", "gaussian_nll_loss"))
    devices.use(device)
