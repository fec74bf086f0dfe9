"""torch.cuda, about the device that the user has named for a program (see `tracegrad.as_torch.install`); there is none where nobody has."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from tracegrad.errors import DeviceError
from tracegrad.errors import OutOfMemoryError as OutOfMemoryError
from tracegrad.execute.deferred import synchronize as wait
from tracegrad.graph.operators import PUBLIC
from tracegrad.support.dtypes import OLDER
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import devices, random_numbers
from tracegrad.torch_api.names._markers import Unchanged


class _OnDevice(type):
    """The class of torch.cuda.FloatTensor and its like, which are those of torch where the user has named a device."""

    dtype: Any

    def __instancecheck__(cls, value: object) -> bool:
        return is_available() and isinstance(value, Tensor) and value.dtype == cls.dtype

    def __call__(cls, *data: Any, device: Any = None) -> Any:
        _named(cls.__name__)
        return PUBLIC[cls.__name__](*data, device=device)


globals().update({f"{name}Tensor": _OnDevice(f"{name}Tensor", (), {"dtype": dtype}) for name, dtype in OLDER.items()})

def is_available() -> bool:
    """Whether the user has named a device."""
    return devices.accelerator() is not None


is_initialized = is_available
default_generators = ()               # of devices: random numbers are made on the host
_initialized = False                  # random states of a device would have to be kept beside the host's: see torch.utils.checkpoint


def device_count() -> int:
    return int(is_available())


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    """Nothing: there is one."""


def get_device_name(device: Any = None) -> str:
    return str(_named("get_device_name").name)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(0, 0): no version of CUDA's instructions."""
    return 0, 0


def get_device_properties(device: Any = None) -> Any:
    """name, total_memory in bytes, multi_processor_count, major and minor (0)."""
    found = _named("get_device_properties")
    target = found.target
    return SimpleNamespace(name=found.name, total_memory=getattr(found, "memory", 0), major=0, minor=0,
                           multi_processor_count=int(target.cores) if target is not None else 1)


def _named(what: str) -> Any:
    found = devices.accelerator()
    if found is None:
        raise DeviceError(f"torch.cuda.{what}: there is no CUDA; `python -m tracegrad run --device gpu` names the device to take for it")
    return found


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 is computed in float32 where a device has no such arithmetic."""
    return is_available()


def synchronize(device: Any = None) -> None:
    """Wait until everything that was asked for is computed."""
    wait()


def memory_allocated(device: Any = None) -> int:
    """0: not counted."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_cached = max_memory_cached = memory_allocated


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Nothing: not counted."""
    return {}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A text without counts."""
    return "tracegrad counts no memory here; tg.trace(f).memory() tells what a traced function needs"


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """What is free, as far as is known: all, and all of the device's memory, in bytes."""
    total = getattr(_named("mem_get_info"), "memory", 0)
    return total, total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Nothing: memory is taken as it is needed."""


def get_arch_list() -> list[str]:
    """None of CUDA's."""
    return []


def is_tf32_supported() -> bool:
    return False


def get_rng_state(device: Any = "cuda") -> Any:
    """The default generator's state: there is one for all devices."""
    return random_numbers.get_rng_state()


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Continue where `get_rng_state` saw it."""
    random_numbers.set_rng_state(new_state)


def set_stream(stream: Any) -> None:
    """Nothing: there is one queue."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """Nothing."""


ipc_collect = init = reset_max_memory_allocated = reset_peak_memory_stats


def is_current_stream_capturing() -> bool:
    return False


class Stream:
    """A queue of commands. There is one: a device's work is done in the order of the program."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        wait()

    def wait_stream(self, stream: Any) -> None:
        """Nothing: what was asked for before is done before."""

    wait_event = record_event = wait_stream


class Event:
    """A moment of a program. elapsed_time: the milliseconds between two, each taken when the device had done all work before."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        wait()
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing: `record` has waited."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return (end._at - self._at) * 1e3


class CUDAGraph:
    """None is made here: a traced function's plan is launched as one."""


def current_stream(device: Any = None) -> Stream:
    return Stream()


default_stream = current_stream


StreamContext = Unchanged             # there is one queue, and one device
stream = device = device_of = StreamContext


def get_rng_state_all() -> list[Any]:
    """The states of the devices' generators, which is one: the default generator's for each device; none where there is no device."""
    return [random_numbers.get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Any) -> None:
    """Continue where `get_rng_state_all` saw it."""
    for state in new_states:
        random_numbers.set_rng_state(state)
