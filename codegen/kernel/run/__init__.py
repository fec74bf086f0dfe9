"""Runs kernels without a driver and checks them while they run: an interpreter of the C that is generated. Start at `run_plan`.

A kernel's text is parsed and translated, statement by statement, to Python on numpy values (translate.py). Work-items run one after
the other, those of a group that meet at barriers in lockstep. Reported as a `KernelFault`, with kernel, work-item and line of C:

- reads and writes outside of a buffer or array, reads of what nobody wrote;
- two work-items that write one element, or one that reads what another writes, without a barrier between them;
- writes through const pointers, overlapping `restrict` pointers of which one is written, barriers that not all items reach;
- types that do not fit: vectors of different lengths, masks of another width than what they select, undeclared names;
- signed overflow and division by zero.

So every schedule for every `Target` that can be written down is tested without a device. What is not interpreted is the math library:
the functions that kernels call have numpy's meaning here (tests/codegen/test_mathlib.py compares their texts with it). Users' own kernels
are not read.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.run.memory import KernelFault
from tracegrad.codegen.kernel.run.run import run_plan

__all__ = ["KernelFault", "run_plan"]
