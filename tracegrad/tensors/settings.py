"""torch's global settings, where they mean something here: how tensors print, the default device, and what is asked of arithmetic."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, warn
from tracegrad.execute.devices import find_device, set_device
from tracegrad.support.modes import float32_matmul
from tracegrad.tensors.bases.conversion import PRINTING

_deterministic = [False, False]


def set_printoptions(precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
                     linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None) -> None:
    """How tensors print: digits, from how many elements on in short, how many at each end then, width of lines, and powers of ten.

    profile: "default", "short" (2 digits) or "full" (all elements), on which the others, if given, are put. sci_mode: True for powers of
    ten always, False for never, None to decide by the values. Raises ArgumentError for another profile, and for negative numbers.

    >>> tg.set_printoptions(precision=2)
    >>> tg.set_printoptions(profile="default")
    """
    profiles = {"default": (4, 1000, 3, 80), "short": (2, 1000, 2, 80), "full": (4, float("inf"), 3, 80)}
    if profile is not None:
        if profile not in profiles:
            raise ArgumentError(f"set_printoptions: profile must be one of {', '.join(profiles)}, got {profile!r}")
        PRINTING.update(zip(("precision", "threshold", "edgeitems", "linewidth"), profiles[profile], strict=True), sci_mode=None)
    given = dict(precision=precision, threshold=threshold, edgeitems=edgeitems, linewidth=linewidth)
    for name, value in given.items():
        if value is not None:
            if not value >= 0:
                raise ArgumentError(f"set_printoptions: {name} must be a number that is not negative, got {value!r}")
            PRINTING[name] = value
    if sci_mode is not None:
        PRINTING["sci_mode"] = bool(sci_mode)


def set_default_device(device: Any) -> None:
    """`set_device`, by torch's name: where new tensors are made. None: where they were made before any was set.

    Raises NoDriverError if there is none such.

    >>> tg.set_default_device(tg.get_default_device())
    """
    set_device(device)


def get_default_device() -> Any:
    """The device of new tensors.

    >>> device = tg.get_default_device()
    """
    return find_device()


def get_num_threads() -> int:
    """On how many cores the default device computes.

    >>> threads = tg.get_num_threads()
    """
    target = find_device().target
    return int(target.cores) if target is not None else 1


def set_num_threads(n: int) -> None:
    """Accepted, with a warning unless it asks for what is: an OpenCL driver has the threads, and is told before it starts.

    PoCL is by the environment's POCL_MAX_PTHREAD_COUNT (POCL_CPU_MAX_CU_COUNT from PoCL 4 on), every driver for CPUs by `taskset`.
    Raises ArgumentError unless n is a positive integer.

    >>> tg.set_num_threads(tg.get_num_threads())
    """
    if type(n) is not int or n < 1:
        raise ArgumentError(f"set_num_threads: expected a positive integer, got {n!r}")
    if n != get_num_threads():
        warn(f"set_num_threads: {n} has no effect, {find_device().name} computes on {get_num_threads()} cores; the driver decides "
             "before it starts (POCL_CPU_MAX_CU_COUNT or, to PoCL 3, POCL_MAX_PTHREAD_COUNT; taskset)")


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Accepted: every operation here gives the same bits on the same device at every run, whatever is asked for.

    >>> tg.use_deterministic_algorithms(False)
    """
    _deterministic[:] = [bool(mode), bool(warn_only)]


def are_deterministic_algorithms_enabled() -> bool:
    """What `use_deterministic_algorithms` was last told.

    >>> tg.are_deterministic_algorithms_enabled()
    False
    """
    return _deterministic[0]


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether it was told warn_only.

    >>> tg.is_deterministic_algorithms_warn_only_enabled()
    False
    """
    return _deterministic[1]


def set_float32_matmul_precision(precision: str) -> None:
    """How exact products of float32 matrices have to be, in all threads from now on.

    "highest" (what holds at first): as float32 arithmetic. "high": a GPU may use its matrix instructions for TF32, which have 10 binary
    digits of each operand, and add in float32. "medium" allows 7 digits; products are as for "high" so far. Devices without such
    instructions compute as for "highest". A traced function that was called before is compiled anew at its next call.

    Raises ArgumentError for anything else.

    >>> tg.set_float32_matmul_precision("high")
    >>> tg.get_float32_matmul_precision()
    'high'
    >>> tg.set_float32_matmul_precision("highest")
    """
    if precision not in ("highest", "high", "medium"):
        raise ArgumentError(f"set_float32_matmul_precision: must be 'highest', 'high' or 'medium', got {precision!r}")
    float32_matmul[0] = precision


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was last told.

    >>> tg.get_float32_matmul_precision()
    'highest'
    """
    return float32_matmul[0]


def typename(obj: Any) -> str:
    """The name of an object's type, with its module's.

    >>> tg.typename(tg.ones(2))
    'tracegrad.tensors.tensor.Tensor'
    """
    cls = obj if isinstance(obj, type) else type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
