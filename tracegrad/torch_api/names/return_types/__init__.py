"""torch.return_types: the classes of named results. Here functions share them: a `max` is also an instance of `min`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracegrad.ops.arrays.reductions import ValuesIndices
from tracegrad.ops.linalg.decompositions import EighResult, EigResult, QRResult, SVDResult
from tracegrad.ops.linalg.properties import SlogdetResult
from tracegrad.ops.statistics.bins import Histogram
from tracegrad.ops.statistics.moments import MinMax


class _Returned(type):
    """Of a name that `isinstance` asks about, and that makes a result of its parts, which are one argument, as in torch."""

    kind: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.kind)

    def __call__(cls, items: Iterable[Any]) -> Any:
        return cls.kind(*items)


_KINDS: dict[type, str] = {ValuesIndices: "max min sort topk kthvalue mode median nanmedian cummax cummin", MinMax: "aminmax",
                           Histogram: "histogram", EighResult: "linalg_eigh", EigResult: "linalg_eig", QRResult: "linalg_qr",
                           SVDResult: "linalg_svd", SlogdetResult: "linalg_slogdet slogdet"}
globals().update({name: _Returned(name, (), {"kind": kind, "__module__": "torch.return_types"})
                  for kind, names in _KINDS.items() for name in names.split()})
