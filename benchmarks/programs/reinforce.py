"""REINFORCE on a walk that ends at either side: each episode has a length of its own, and a look at a probability in every move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make(f: Any) -> Callable[[], float]:
    """An episode and the update after it; the number of moves. (The walk is the same for every framework, whatever the policy says.)"""
    T = f.T
    T.manual_seed(0)
    policy = T.nn.Sequential(T.nn.Linear(2, 16), T.nn.Tanh(), T.nn.Linear(16, 2))
    optimizer = T.optim.Adam(policy.parameters(), lr=1e-3)
    state = 12345

    def step() -> float:
        nonlocal state
        place, chances, doubt = 0, [], 0.0
        while abs(place) < 3 and len(chances) < 24:
            logits = policy(T.tensor([place / 3.0, 1.0]))
            doubt += T.softmax(logits, -1)[1].item()
            state = (1103515245 * state + 12345) % 2**31
            right = state / 2**31 < 0.5
            chances.append(T.log_softmax(logits, -1)[int(right)])
            place += 1 if right else -1
        gain = 1.0 if place > 0 else -1.0
        loss = -gain * T.stack(chances).sum() / len(chances)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return len(chances) + 0.0 * doubt

    return step
