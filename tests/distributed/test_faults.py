"""What the other ranks do where one raises, ends, is killed or is slow: they end, with an error that names rank, operation and line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.ranks import ROOT


def test_a_rank_that_raises_ends_the_others(ranks):
    """With an error that names it, and the operation and the line where they waited."""
    told = ranks(3, """
        if rank == 1:
            raise ValueError("no data here")
        dist.all_reduce(tg.ones(3))
    """, code=1)
    assert told.count("all_reduce: rank 1 failed with ValueError: no data here") >= 2
    assert "rank 0 waited for it at <string>:" in told
    assert "rank 2 waited for it at <string>:" in told


def test_a_rank_that_is_killed(ranks):
    """The launcher kills the others, which then say nothing: the watcher says where each was."""
    told = ranks(3, """
        dist.broadcast(tg.ones(2), 0)
        print(f"rank {rank} is process {os.getpid()}", flush=True)
        if rank == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), 9)
        dist.all_reduce(tg.ones(3))
    """, code=1, seconds=60)
    process = dict(re.findall(r"rank (\d) is process (\d+)", told))
    assert f"tracegrad.distributed: rank 1 (process {process['1']}) was after broadcast at <string>:" in told
    assert "was killed, by a signal or for want of memory" in told
    for other in ("0", "2"):
        assert f"rank {other} (process {process[other]}) waited in all_reduce at <string>:" in told
    assert "Traceback" not in told


RANK = """
import sys, time
from watch import Watched                       # by itself: the watcher and its ranks need nothing of tracegrad
own = Watched(sys.argv[1], int(sys.argv[2]), int(sys.argv[2]) + 10)
own.at("was here")
until = time.monotonic() + 60
print("ready", flush=True)
if sys.argv[3] == "listen":
    while not (found := own.heard()) and time.monotonic() < until:
        time.sleep(0.01)
    print(found, flush=True)
else:
    input()
own.leave(failing=sys.argv[3] == "fail")
"""


def watched(*ends):
    """What a watcher prints, and what it tells the last rank, of ranks of which the first is killed or fails. No MPI is needed."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "tracegrad" / "distributed")}
    pipes = {"env": env, "text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    program = f"import watch; print(watch.start({len(ends)}), flush=True)"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, **pipes) as starter:
        folder = starter.stdout.readline().strip()
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, folder, str(k), end], **pipes) for k, end in enumerate(ends)]
        assert [r.stdout.readline() for r in ranks] == ["ready\n"] * len(ranks)
        for k, (rank, end) in enumerate(zip(ranks, ends, strict=True)):
            if end == "be killed":
                rank.kill()
            told = rank.communicate("" if end == "listen" else "\n", timeout=60)[0]
            assert k or rank.returncode == (-9 if end == "be killed" else 0)
        assert not Path(folder).exists()
        return starter.stderr.read().replace(str(ranks[0].pid), "N"), told.strip().replace(str(ranks[0].pid), "N")


def test_the_watcher():
    """Ranks that live on hear of one that was killed; of ranks that end after one that failed, and said so, there is nothing to say."""
    text = "rank 10 (process N) was here was killed, by a signal or for want of memory"
    assert watched("be killed", "listen") == (f"tracegrad.distributed: {text}\n", str({10: text}))
    assert watched("fail", "be killed")[0] == ""
    assert watched("end", "end")[0] == ""


@pytest.mark.long
@pytest.mark.parametrize("where", ["untraced", "traced"])
def test_a_rank_that_runs_out_of_memory(ranks, where):
    """Python's MemoryError, of a limit on the process; with the line that asked for it."""
    told = ranks(2, f"""
        import resource
        def step(x):
            return F.all_reduce(x)
        if {where == "traced"}:
            step = tg.trace(step)
        for k in range(3):
            step(tg.ones(3))
        if rank == 1:
            held = resource.getrlimit(resource.RLIMIT_AS)[1]
            size_now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size_now + (64 << 20), held))
            np.ones(1 << 28)
        step(tg.ones(3))
    """, code=1)
    assert re.search(r"all_reduce: rank 1 failed with \w*MemoryError: Unable to allocate.*at <string>:\d+\); rank 0 waited for it", told)


@pytest.mark.long
@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "os._exit(0)", "os._exit(4)", "os.abort()"])
def test_a_rank_that_ends_before_the_others(ranks, end):
    told = ranks(2, f"""
        if rank == 0:
            dist.all_reduce(tg.ones(3))
        time.sleep(0.5)
        {end}
    """, code=1)
    assert "rank 1 has ended its program; rank 0 waited for it" in told or re.search(
        r"rank 1 .process \d+. had called no operation was killed.*rank 0 .process \d+. waited in all_reduce at <string>:", told)


@pytest.mark.long
def test_a_rank_that_is_slow(ranks):
    """The error says where the slow rank is: at a line of Python, or in a call that does not answer."""
    told = ranks(3, """
        dist.destroy_process_group()
        dist.init_process_group(timeout=1)
        dist.broadcast(tg.ones(2), 0)
        if rank == 1:
            time.sleep(8)                                   # the slow line
        dist.all_reduce(tg.ones(3))
    """, code=1)
    assert re.search(r"all_reduce: rank [02] waited for 1 s at <string>:\d+. rank 1 is at <string>:\d+, after broadcast at <string>:", told)
    assert "recv from rank 1: rank 0 waited for 1 s" in ranks(2, """
        dist.destroy_process_group()
        dist.init_process_group(timeout=1)
        if rank == 1:
            time.sleep(8)
        else:
            dist.recv(tg.ones(3), 1)
    """, code=1)


@pytest.mark.long
def test_other_operations_on_other_ranks_are_an_error(ranks):
    told = ranks(2, "dist.all_reduce(tg.ones(3 + rank))", code=1)
    assert "all_reduce(float32[3], sum) at <string>" in told
    assert "all_reduce(float32[4], sum) at <string>" in told
    assert "operation 1 of world" in told
