"""Runs kernels without a driver and checks them while they run: an interpreter of their statements. Start at `run_plan`.

A kernel's statements become a Python function on numpy values (python.py). Work-items run one after the other, those
of a group that meet at barriers in lockstep. Reported as a `KernelFault`, with kernel, work-item and line of C:

- reads and writes outside of a buffer or array, reads of what nobody wrote;
- two work-items that write one element, or one that reads what another writes, without a barrier between them;
- overlapping `restrict` pointers of which one is written, barriers that not all items reach, undeclared names;
- signed overflow and division by zero.

So every schedule for every `Target` that can be written down is tested without a device. What is not interpreted is the math library:
the functions that kernels call have numpy's meaning here (`mathlib/builtins.py`; tests/codegen/test_mathlib.py compares their texts with
it). What ops, and users' expressions, are in C is read (`ir/spelling.py`); kernels that users wrote are not.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.run.memory import KernelFault
from tracegrad.codegen.kernel.run.run import run_plan

__all__ = ["KernelFault", "run_plan"]
