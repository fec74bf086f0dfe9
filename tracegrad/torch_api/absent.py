"""Classes of torch's that are not here, but that programs name in annotations and in `isinstance`. Start at `placeholder`.

`docs/torch.md` has the reasons. A test holds the list against the installed torch.
"""

from __future__ import annotations

from typing import Any

from tracegrad.errors import UnsupportedError
from tracegrad.support.cache import memoize

ABSENT = {
    "torch": "BoolStorage ByteStorage CharStorage DoubleStorage FloatStorage IntStorage LongStorage ShortStorage HalfStorage "
             "BFloat16Storage ComplexFloatStorage ComplexDoubleStorage "
             "Stream Event ScriptObject ScriptModule DispatchKey DispatchKeySet",
    "torch.cuda": "graph CUDAPluggableAllocator MemPool ExternalStream GreenContext",
    "torch.nn": "CrossMapLRN2d",
    "torch.profiler": "profile schedule tensorboard_trace_handler",
    "torch.ao": "",
    "torch.ao.quantization": "QuantStub DeQuantStub QuantWrapper FakeQuantize QConfig",
    "torch.ao.nn": "",
}


@memoize(256)
def placeholder(module: str, name: str) -> type | None:
    """A class that has no instances, and says so when it is called; None for a name that is not in the list."""
    if name not in ABSENT.get(module, "").split():
        return None

    def refuse(cls: type, *_: Any, **__: Any) -> Any:
        raise UnsupportedError(f"{module}.{name}: is not in tracegrad (docs/torch.md says why, and what to use)")

    return type(name, (), {"__module__": module, "__new__": refuse, "__doc__": f"{module}.{name}, which is not here."})
