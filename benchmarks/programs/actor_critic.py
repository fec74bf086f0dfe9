"""Actor-critic with advantages: moves in eight environments at once, two heads on one body, an entropy bonus, clipped gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make(f: Any, environments: int = 8, moves: int = 5) -> Callable[[], float]:
    """Five moves in each environment and the update after them; the loss."""
    T, F, nn = f.T, f.F, f.T.nn
    T.manual_seed(0)

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
            self.policy, self.value = nn.Linear(32, 3), nn.Linear(32, 1)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return self.policy(h), self.value(h).squeeze(-1)

    model = Model()
    optimizer = T.optim.Adam(model.parameters(), lr=1e-3)
    world = T.randn(4, 4) * 0.3
    push = T.randn(3, 4) * 0.3
    state = T.randn(environments, 4)

    def step() -> float:
        nonlocal state
        chances, values, doubts, rewards = [], [], [], []
        for _ in range(moves):
            logits, value = model(state)
            logs = F.log_softmax(logits, -1)
            action = logs.detach().argmax(-1)
            chances.append(logs.gather(1, action[:, None]).squeeze(1))
            doubts.append(-(logs.exp() * logs).sum(-1))
            values.append(value)
            state = T.tanh(state @ world + push[action])
            rewards.append(-state.pow(2).sum(-1))
        with T.no_grad():
            gain, gains = model(state)[1], []
            for reward in reversed(rewards):
                gain = reward + 0.9 * gain
                gains.insert(0, gain)
        goal, value = T.stack(gains), T.stack(values)
        advantage = goal - value
        loss = -(T.stack(chances) * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean() - 0.01 * T.stack(doubts).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return float(loss.item())

    return step
