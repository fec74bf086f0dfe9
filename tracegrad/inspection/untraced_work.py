"""What `tg.report()` tells of untraced work: how it was computed so far, and what the caches of the process hold."""

from __future__ import annotations

from typing import Any

from tracegrad.execute import plan_files, policy
from tracegrad.graph.operators import public
from tracegrad.runtime.programs.build import counts as kernels
from tracegrad.support import cache


def _counted(counts: dict[str, int]) -> list[str]:
    """What is known of a cache, in words."""
    size = f"size {counts['size']}" + (f" of {counts['budget']}" if "budget" in counts else "")
    return [size, *(f"{counts[what]} {what}" for what in ("hits", "misses") if what in counts)]


class Report(dict[str, Any]):
    """What `tg.report()` gives: a dict that prints as a table."""

    def __str__(self) -> str:
        lines = [f"{self['eager']:7} small operations done with numpy when they were called",
                 f"{self['interpreted']:7} times that pending work was done with numpy",
                 f"{self['compiled']:7} times by kernels; programs built for that: {self['programs']} while the user waited, "
                 f"{self['background']} by a thread"]
        lines += [f"{count:11} {reason}" for reason, count in self["reasons"].items()]
        lines += [f"{self['lowered']:7} programs lowered to kernels; plans of earlier processes read from the disk: {self['read']}",
                  f"{self['built']:7} kernels built; of earlier processes, read from the disk: {self['loaded']}; "
                  f"shared with earlier programs: {self['shared']}"]
        functions = {name: n for name, n in self["caches"].items() if "." in name}           # results that a function of ours has recalled
        lines += [f"{n['entries']:7} in the cache of {name} ({', '.join(_counted(n))})" for name, n in self["caches"].items()
                  if name not in functions]
        if functions:
            entries = sum(n["entries"] for n in functions.values())
            lines.append(f"{entries:7} in the caches of {len(functions)} functions (tg.report()['caches'])")
        return "\n".join(lines)

    __repr__ = __str__


@public(method=False)
def report() -> Report:
    """How untraced work was done so far in this process: a dict that prints as a table.

    eager: how many small operations numpy did when they were called. interpreted: how many times pending work was done by numpy,
    operation by operation. compiled: how many times by kernels. programs: how many programs were compiled for that while the user waited,
    background: by a thread. reasons: why it was kernels, with counts. lowered: of all programs, traced ones included, those that this
    process made kernels for, read: those whose plan was on the disk. built: kernels that the driver built, loaded: that it had from the
    disk, shared: that an earlier program of this process has, too. caches: for each cache of the process that was asked, its entries, their
    size and the most that it may hold, and how many look-ups found something (hits, where that is counted) and how many nothing (misses).
    `config.eager = False` (TRACEGRAD_EAGER=0) makes it kernels always. Otherwise traced functions are not counted: they always run kernels.

    >>> print(tg.report())
    """
    made = {"eager": policy.eager_calls[0], **{what: policy.counts[what] for what in ("interpreted", "compiled", "programs", "background")}}
    return Report(made, reasons=dict(policy.reasons), lowered=plan_files.counts["lowered"], read=plan_files.counts["read"],
                  built=kernels["built"], loaded=kernels["read"], shared=kernels["known"], caches=cache.statistics())
