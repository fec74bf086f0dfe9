"""Torch's tensors in memory: how one lies there (`Layout`), and what shares an argument's memory (`Argument`); integers (`Number`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np

from tracegrad.errors import DLPackError
from tracegrad.execute.devices import find_device, upload
from tracegrad.graph.ir import Aval
from tracegrad.ops.primitives.movement import inverse
from tracegrad.runtime.buffer import Buffer
from tracegrad.runtime.device import Device
from tracegrad.runtime.faults import verify
from tracegrad.support import dtypes
from tracegrad.support.cache import listed
from tracegrad.tensors.creation.from_data import from_dlpack
from tracegrad.tensors.tensor import Tensor, from_own, holding

COPIED = 64               # bytes of a tensor up to which it is copied, which takes a third of the time that sharing its memory does


def name_of(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return "bool_" if name == "bool" else name


class Layout:
    """How a tensor of a graph lies in memory. (What torch records of one is slow to ask.)"""

    def __init__(self, value: Any) -> None:
        self.shape, self.stride = tuple(value.shape), tuple(value.stride())
        rows = tuple(range(len(self.shape)))
        # Its dimensions from the one with the largest stride to the smallest: row by row if it is dense.
        self.order = rows if 0 in self.shape else tuple(sorted(rows, key=lambda d: (-self.stride[d], d)))
        self.in_order, self.inverse = self.order == rows, inverse(self.order)
        room, last = 1, 0
        self.dense = True                           # its elements fill a piece of memory, each place once
        self.overlaps = False                       # several elements may be in one place
        for d in reversed(self.order):
            self.dense &= self.shape[d] <= 1 or self.stride[d] == room
            self.overlaps |= self.shape[d] > 1 and self.stride[d] <= last
            room *= self.shape[d]
            last += (self.shape[d] - 1) * self.stride[d]

    def in_torch(self, x: Tensor) -> Any:
        """A result, its dimensions in the order of memory, as torch's tensor. Waits for the values."""
        import torch  # noqa: PLC0415

        value, aval = x._n.value, x._n.aval
        shared = type(x._device) is Device and x._device.in_host_memory
        if shared and type(value) is Buffer and value.nbytes and aval.dtype != dtypes.bfloat16:
            verify(value)
            made = torch.from_numpy(value.contents(aval.shape, aval.dtype))         # (half the time of DLPack)
        else:
            made = torch.from_dlpack(x).contiguous()
        if shared and aval.nbytes > COPIED and type(value) is Buffer:          # (what NumPy holds may move while torch's tensor goes)
            results[made.data_ptr()] = value
        return made

    def as_promised(self, x: Any) -> Any:
        """What `in_torch` gave with the dimensions and the strides of torch's own result."""
        if self.dense:
            return x if x.shape == self.shape and x.stride() == self.stride else x.as_strided_(self.shape, self.stride)
        return x if self.in_order else x.permute(self.inverse)


class Argument:
    """A tensor that a graph reads: what stands for torch's tensors in its calls.

    Sharing memory costs more than most kernels do, so what shares a tensor's memory is used again as long as that tensor lives (a
    parameter), and a result of another graph that comes here (what a backward pass needs of the forward) is the buffer that it was.
    What is copied is uploaded anew only where its contents are others than in the latest call: the gradient of a loss is always 1.
    """

    def __init__(self, value: Any, varying: Sequence[int] = ()) -> None:
        self.layout = Layout(value)
        self.inverse = self.layout.inverse
        self.varying = [self.layout.order.index(d) for d in varying]
        self.aval = Aval(tuple(value.shape[d] for d in self.layout.order), getattr(dtypes, name_of(value.dtype)))
        self.attrs = {"aval": self.aval}
        self._latest: tuple[Any, int, Any, Any] | None = None              # torch's tensor, weakly; where its memory is; what shares that
        self._is_copied = self.aval.nbytes <= COPIED and self.aval.dtype != dtypes.bfloat16
        self._copy: tuple[bytes, Device, Any] | None = None                # the latest contents of what is copied, and their value

    def of(self, x: Any) -> Tensor:
        """A torch tensor as tracegrad's, its dimensions in the order of its memory; a copy where its memory cannot be shared."""
        device, place = find_device(None), x.data_ptr()
        found = self._known(x, place, device)
        if found is not None:
            return holding(device, self.aval, self.attrs, found)
        if self._is_copied:
            return holding(device, self.aval, self.attrs, self._copied(x, device))
        own = self._in_order(x)
        try:
            made = from_dlpack(own, copy=False)
        except DLPackError:
            return from_dlpack(own.contiguous())
        if own.data_ptr() == place and made._n.value is not None:
            self._latest = ref(x, self._forget), place, device, made._n.value
        return made

    def value(self, x: Any, device: Device) -> Any:
        """The value of `of`; None if that has none yet."""
        found = self._known(x, x.data_ptr(), device)
        if found is not None:
            return found
        return self._copied(x, device) if self._is_copied else self.of(x)._n.value

    def _in_order(self, x: Any) -> Any:
        own = x.detach().resolve_conj().resolve_neg()
        return own if self.layout.in_order else own.permute(self.layout.order)

    def _copied(self, x: Any, device: Any) -> Any:
        """The value of a small tensor; nobody writes its memory (Program copies small results that may be arguments)."""
        array = self._in_order(x).numpy()
        contents, latest = array.tobytes(), self._copy
        if latest is not None and latest[0] == contents and latest[1] is device:
            return latest[2]
        value = upload(device, np.array(array, order="C"), own=True)
        if type(device) is Device:
            self._copy = contents, device, value
        return value

    def _known(self, x: Any, place: int, device: Any) -> Any:
        """The value that stands for x already; None if there is none."""
        latest = self._latest
        if latest is not None and latest[0]() is x and latest[1] == place and latest[2] is device:
            return latest[3]
        buffer = results.get(place) if self.layout.dense else None           # an expanded view has as many elements, too
        known = buffer is not None and buffer.device is device and buffer.nbytes == self.aval.nbytes and not (x.is_conj() or x.is_neg())
        return buffer if known else None

    def _forget(self, gone: Any) -> None:
        if self._latest is not None and self._latest[0] is gone:
            self._latest = None


class Number:
    """An integer that a graph reads: in its calls a tensor without dimensions, so that one program is for all values."""

    inverse: tuple[int, ...] = ()
    varying: Sequence[int] = ()

    def of(self, x: int) -> Tensor:
        return from_own(np.array(x, np.int64))

    def value(self, x: int, device: Device) -> Any:
        return self.of(x)._n.value


# Where a result's memory is in the host's -> its buffer, as long as torch has the tensor that shares it.
results = listed("torch.compile's results", WeakValueDictionary[int, Any]())


def overlaps(given: Sequence[Any], made: Sequence[Any]) -> list[int]:
    """Which of the results lie in the memory of an argument or of a result before."""
    spans = [(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in (*given, *made)]
    return [k for k, (start, size) in enumerate(spans[len(given):]) if size and any(
        start < other + room and other < start + size for other, room in spans[:len(given) + k])]


def to_torch(array: np.ndarray[Any, Any], promised: Any) -> Any:
    """A numpy array as a torch tensor with the strides that the graph says."""
    import torch  # noqa: PLC0415

    own = array if array.flags.writeable else array.copy()
    x = torch.from_numpy(own.view(np.int16)).view(torch.bfloat16) if own.dtype == dtypes.bfloat16 else torch.from_numpy(own)
    return x if x.stride() == promised.stride() else torch.empty_strided(x.shape, promised.stride(), dtype=x.dtype).copy_(x)


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    import torch  # noqa: PLC0415

    x = x.detach().resolve_conj().resolve_neg().contiguous()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(dtypes.bfloat16)  # type: ignore[no-any-return]
    return x.numpy()  # type: ignore[no-any-return]
