"""The order of steps where the host begins calls beside the device, such as messages to other ranks. Start at `overlapped`."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from tracegrad.codegen.planning.batch_launches import Step, dependencies
from tracegrad.support.plan import HostStart, HostStep, HostWait


def overlapped(steps: Sequence[Step]) -> list[Step]:
    """The steps, with calls begun as early, and waited for as late, as can be.

    First whatever the first call needs, then its beginning; what the second one needs besides; and so on. Then all that needs no call's
    results, and then, call after call in the order in which they began, what does. The order of beginnings stays what it is (each hands a
    token to the next one), as does that of other host steps; and else kernels go in the order in which they are given. So it is the plan
    alone that it depends on: all ranks that make one program begin their calls in one order.
    """
    starts = [i for i, s in enumerate(steps) if isinstance(s, HostStart)]
    if not starts:
        return list(steps)
    left, users = dependencies(steps)
    others = [i for i, s in enumerate(steps) if isinstance(s, HostStep) and not isinstance(s, (HostStart, HostWait))]
    for one, other in pairwise(others):
        if other not in users[one]:
            users[one].append(other)
            left[other] += 1
    before: list[list[int]] = [[] for _ in steps]
    for i, after in enumerate(users):
        for user in after:
            before[user].append(i)
    out: list[Step] = []
    done: set[int] = set()
    for goal in (*starts, None):
        wanted = set(range(len(steps))) - done if goal is None else _needed(goal, before, done)
        ready = [(isinstance(steps[i], HostWait), i) for i in wanted if not left[i]]           # those that wait are last
        heapify(ready)
        while ready:
            _, i = heappop(ready)
            out.append(steps[i])
            done.add(i)
            for user in users[i]:
                left[user] -= 1
                if not left[user] and user in wanted:
                    heappush(ready, (isinstance(steps[user], HostWait), user))
    return out


def _needed(goal: int, before: Sequence[Sequence[int]], done: set[int]) -> set[int]:
    """A step, and those that have to come before it and are not done."""
    found, todo = {goal} - done, [goal]
    while todo:
        for i in before[todo.pop()]:
            if i not in found and i not in done:
                found.add(i)
                todo.append(i)
    return found
