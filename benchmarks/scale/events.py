"""Discrete events: what happens when, and things that do one job after the other. Start at `Clock.run`."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

Do = Callable[[], None]


class Clock:
    """Calls what is planned `at` a time, in the order of time; equal times in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Do]] = []
        self._number = count()

    def at(self, time: float, do: Do) -> None:
        """Plan a call. Raises ValueError for a time that is over."""
        if time < self.now:
            raise ValueError(f"at: {time} s is over, it is {self.now} s")
        heapq.heappush(self._planned, (time, next(self._number), do))

    def run(self) -> float:
        """Until nothing is planned. The time then."""
        while self._planned:
            self.now, _, do = heapq.heappop(self._planned)
            do()
        return self.now


class Worker:
    """Does one job at a time, in the order in which it gets them: a device's queue, or a rank's collectives."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.busy, self._waiting, self._idle = clock, 0.0, deque[tuple[float, Do]](), True

    def submit(self, seconds: float, done: Do = lambda: None) -> None:
        """A job of so many seconds; `done` is called when it ends."""
        self._waiting.append((seconds, done))
        if self._idle:
            self._next()

    def _next(self) -> None:
        self._idle = not self._waiting
        if self._waiting:
            seconds, done = self._waiting.popleft()
            self.busy += seconds

            def ended() -> None:
                done()
                self._next()

            self.clock.at(self.clock.now + seconds, ended)
