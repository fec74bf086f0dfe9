"""What is so of all devices of a kind: the table `KINDS`. What differs between devices of one kind are numbers of the `plan.Target`.

Code asks for one of these facts (`target.traits`, `device.traits`), and never which kind it is (tests/project/test_layout.py): another
kind of device is another row. (So LLVM's passes ask its TargetTransformInfo.)
"""

from __future__ import annotations

from typing import NamedTuple


class DeviceKind(NamedTuple):
    """The facts of a kind."""

    opencl: str              # OpenCL's name of such devices: DEVICE_TYPE_...
    kernels: str             # whose it takes where there are several, in `lower.context.TARGET_LOWERINGS` and `lower.fused.LOWERED`; those
                             # of "gpu" have many work-items, and groups of them make a row together
    long_items: bool         # a work-item is a core's loop over a large part of the work; else there are many, of a few elements each
    vectors: bool            # kernels are written with vectors, whose lanes are elements side by side; else work-items are the lanes
    row_groups: bool         # the work-items of a group make a row, or a block, together; else one of them does
    idle_launches: bool      # a small launch leaves most of the device idle, and the next one waits for it: equal ones are joined
    quick_float64: bool      # float64 takes about twice as long as float32, and no more
    matrix: bool             # there may be matrix instructions
    host_memory: bool        # its memory is the host's
    flushed: bool            # commands may wait in the driver until the queue is flushed
    first: bool              # it is the default device where there are others, too


KINDS = {
    "cpu": DeviceKind(opencl="CPU", kernels="cpu", long_items=True, vectors=True, row_groups=False, idle_launches=False,
                      quick_float64=True, matrix=False, host_memory=True, flushed=False, first=False),
    "gpu": DeviceKind(opencl="GPU", kernels="gpu", long_items=False, vectors=False, row_groups=True, idle_launches=True,
                      quick_float64=False, matrix=True, host_memory=False, flushed=True, first=True),
}


class OfKind:
    """What is of a kind: a Target, a Device."""

    __slots__ = ()
    kind: str

    @property
    def traits(self) -> DeviceKind:
        """What is so of its kind."""
        return KINDS[self.kind]
