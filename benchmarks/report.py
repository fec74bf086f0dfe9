"""The benchmark's words: the line printed for a row, RESULTS.md, and the machine described without naming it."""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workloads import MEAN_TARGET, SAMPLES, WORKLOADS, Workload

if TYPE_CHECKING:
    from benchmarks.run import Result

HERE = Path(__file__).parent
Ratio = tuple[float, float, float] | None


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def spread(result: Result | None) -> str:
    if result is None:
        return "–"
    if result.failed:
        return "failed"
    low, middle, high = statistics.quantiles(result.times, n=4)
    return f"{duration(middle)} [{duration(low)}–{duration(high)}]"


def ratio_text(ratio: Ratio) -> str:
    return "–" if ratio is None else f"{ratio[0]:.2f} [{ratio[1]:.2f}–{ratio[2]:.2f}]"


def share_text(result: Result | None) -> str:
    """`62 % memory`: of the measured limit that is nearest."""
    found = None if result is None or result.failed else result.share
    return "–" if found is None else f"{found[0]:.0%} {found[1]}"


def geometric_mean(ratios: dict[str, Ratio]) -> float:
    return statistics.geometric_mean([max(r[0], 1e-9) for r in ratios.values() if r is not None] or [1.0])


def summary(table: dict[str, dict[str, Result]], ratios: dict[str, Ratio]) -> str:
    """The geometric mean beside its target, and how many rows meet theirs."""
    verdicts = [_verdict(WORKLOADS[row].target, ratios[row], results) for row, results in table.items()]
    ratios = {row: ratio for row, ratio in ratios.items() if WORKLOADS[row] not in SAMPLES}
    mean = geometric_mean(ratios)
    return (f"Geometric mean of the ratios of {sum(r is not None for r in ratios.values())} rows: {mean:.2f}; target {MEAN_TARGET}: "
            f"{'met' if mean <= MEAN_TARGET else 'missed'}. Rows: {verdicts.count('met')} met, {verdicts.count('missed')} missed, "
            f"{verdicts.count('failed')} failed.")


def print_row(workload: Workload, results: dict[str, Result], ratio: Ratio) -> None:
    print(workload.title)
    for name, result in results.items():
        if result.failed:
            print(f"  {name:13s} FAILED: {result.failed}")
        else:
            first = f"first call {duration(result.cold)} cold" + (f", {duration(result.warm)} warm" if result.warm else "")
            print(f"  {name:13s} {spread(result):34s} error {result.error:.1e}   {first}")
    if ratio is not None:
        target = f"; target {workload.target}: {_verdict(workload.target, ratio, results)}" if workload.target else ""
        print(f"  over the best peer: {ratio_text(ratio)}{target}; share of the machine's limit: {share_text(results.get('tracegrad'))}")
    print(flush=True)


def describe_machine(settings: Any) -> str:
    """The machine in words: what matters to a reader of times, and no name that would single it out."""
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "") if platform.system() == "Linux" else platform.platform()
    facts = [
        f"{_cpu()}, {settings.threads} of {os.cpu_count()} cores used by every contender",
        _memory(),
        release,
        f"Python {platform.python_version()}",
        f"{settings.rounds} rounds",
    ]
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        facts.append(f"load {os.getloadavg()[0]:.1f} before the start")
    return "Machine: " + "; ".join(fact for fact in facts if fact) + "."


def _cpu() -> str:
    try:
        lines = dict(line.split("\t:")[:2] for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if "\t:" in line)
    except OSError:
        return platform.processor() or platform.machine()
    fields = {key.strip(): value.strip() for key, value in lines.items()}
    flags = fields.get("flags", "").split()
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX")) if flag in flags), "")
    words = [fields.get("model name", platform.machine()), vectors, "virtual machine" if "hypervisor" in flags else ""]
    return ", ".join(word for word in words if word)


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB of memory"
    except (ValueError, AttributeError):
        return ""


def write(table: dict[str, dict[str, Result]], ratios: dict[str, Ratio], machine: str) -> None:
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    about = {result.about for row in table.values() for result in row.values() if result.about}
    text = (HERE / "RESULTS.template.md").read_text().format(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=machine + "\n\nContenders: " + "; ".join(sorted(about)) + ".",
        table=_markdown(
            ["workload", *names, "ratio", "target", "", "of the limit"],
            [
                [
                    WORKLOADS[row].title, *(spread(results.get(name)) for name in names), ratio_text(ratios[row]),
                    str(WORKLOADS[row].target or "–"), _verdict(WORKLOADS[row].target, ratios[row], results),
                    share_text(results.get("tracegrad")),
                ]
                for row, results in table.items()
            ],
        ),
        first=_markdown(
            ["workload", *(f"{name}, {when}" for name in names for when in ("cold", "warm"))],
            [
                [WORKLOADS[row].title, *(_first(results.get(name), when) for name in names for when in ("cold", "warm"))]
                for row, results in table.items()
            ],
        ),
        first_mean=first_calls(table),
        missed=_missed(table, ratios),
        summary=summary(table, ratios),
    )
    (HERE / "RESULTS.md").write_text(text)


FIRST = {"Intel": 1.5, "": 4.0}          # what first calls may take of jax.jit's, at the geometric mean, by a part of the driver's name


def first_calls(table: dict[str, dict[str, Result]]) -> str:
    """A line for tracegrad, and for it on each driver that is named: its cold first calls to jax.jit's, and the target."""
    lines = []
    for name in dict.fromkeys(name for row in table.values() for name in row if name.startswith("tracegrad")):
        pairs = [(row[name].cold, row["jax"].cold) for row in table.values()
                 if name in row and "jax" in row and not row[name].failed and not row["jax"].failed]
        if not pairs:
            continue
        found = math.exp(statistics.fmean(math.log(mine / theirs) for mine, theirs in pairs))
        target = next(most for part, most in FIRST.items() if part in name)
        verdict = "met" if found <= target else "missed"
        lines.append(f"- First call of {name}, cold, to jax.jit's: {found:.2f} at the geometric mean of {len(pairs)} rows; "
                     f"target {target}: {verdict}.")
    return "\n".join(lines) or "- jax was not there."


def _verdict(target: float | None, ratio: Ratio, results: dict[str, Result]) -> str:
    if "tracegrad" in results and results["tracegrad"].failed:
        return "failed"
    if target is None or ratio is None:
        return ""
    return "met" if ratio[0] <= target else "missed"


def _first(result: Result | None, when: str) -> str:
    seconds = 0.0 if result is None or result.failed else getattr(result, when)
    return f"{seconds:.2g}" if seconds else "–"


def _missed(table: dict[str, dict[str, Result]], ratios: dict[str, Ratio]) -> str:
    reasons = tomllib.loads((HERE / "reasons.toml").read_text())
    missed = [row for row, results in table.items() if _verdict(WORKLOADS[row].target, ratios[row], results) in ("missed", "failed")]
    return "\n".join(f"- {WORKLOADS[row].title}: {reasons.get(row, 'reason not yet measured.')}" for row in missed) or "None."


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])
