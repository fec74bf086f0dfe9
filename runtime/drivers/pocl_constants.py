"""A kernel's constants in memory before its loops choose among them, with PoCL. Start at `present`.

What machine code needs of constants lies on a page of the kernel's own, which the system reads in when something is loaded from there.
AVX-512 loads for some lanes only: `x != x ? (int16)(7) : y` loads 7 where x is NaN. Where no lane wants it the load is none, and the page
stays away; but the processor finds that out anew each time, in 400 cycles (the places of extrema along columns of 3: 114 times as slow).
So a kernel loads one constant first, for good.
"""

from __future__ import annotations

import re

# Of one work-item a group: a load that has to be made keeps PoCL from putting work-items side by side in vectors.
_KERNEL = re.compile(r"(__attribute__\(\(reqd_work_group_size\(1, 1, 1\)\)\)\n__kernel void \w+\([^{;]*\) \{)")
_PAGE = "static __constant int tg_constants[1] = {0};"
_LOAD = " (void)*(volatile __constant int *)tg_constants;"


def present(source: str) -> str:
    """The text, whose kernels load a constant on their first line; what is declared for that stands on a line that is not counted."""
    if "?" not in source:                                    # nothing is chosen
        return source
    text, count = _KERNEL.subn(rf"\1{_LOAD}", source)
    return f"{_PAGE}\n#line 1\n{text}" if count else source
