"""Reinforcement learning: a cart learns to balance a pole.

The policy plays 64 games at once, in a simulation that is tensor code too. The gradient of log probabilities, weighted by what came
after (REINFORCE), makes good moves likelier.

In its kernels: 200 moves of all games are a loop in one kernel, with the network, the dice and the physics inside.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg
from tracegrad import nn
from tracegrad.nn import functional as F

GAMES, MOVES = 64, 200


def physics(state, push):
    """Barto, Sutton and Anderson's cart and pole, 0.02 s later. state: (games, 4); push: 10 or -10 newtons."""
    x, v, angle, spin = state.unbind(1)
    sin, cos = tg.sin(angle), tg.cos(angle)
    force = (push + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * force) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    return tg.stack([x + 0.02 * v, v + 0.02 * (force - 0.05 * turn * cos / 1.1), angle + 0.02 * spin, spin + 0.02 * turn], 1)


def run():
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = tg.optim.Adam(policy.parameters(), lr=0.01)

    @tg.trace
    def play():
        def move(carry, _):
            state, alive = carry
            right = (tg.rand(GAMES) < tg.sigmoid(policy(state)[:, 0])).to(tg.float32)
            after = physics(state, 20 * right - 10)
            still = alive * ((after[:, 0].abs() < 2.4) & (after[:, 2].abs() < 0.21)).to(tg.float32)
            return (after, still), (state, right, alive)

        with tg.no_grad():
            start = 0.1 * tg.rand(GAMES, 4) - 0.05, tg.ones(GAMES)
            states, right, alive = tg.scan(move, start, tg.arange(MOVES))[1]
            after = alive.flip(0).cumsum(0).flip(0)                          # how long each game goes on
            mean = (after * alive).sum() / alive.sum()
        log_probability = -F.binary_cross_entropy_with_logits(policy(states)[..., 0], right, reduction="none")
        loss = -(log_probability * (after - mean) * alive).sum() / alive.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return alive.sum(0), states[:, 0]

    lengths, pictures = [], []
    for _ in range(150):
        alive, states = play()
        lengths.append(alive.mean().item())
        pictures.append(states[:, 2].numpy())
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.5))
    axes[0].plot(lengths)
    axes[0].set_title("moves before the pole falls")
    axes[1].plot(pictures[0][:60], label="first game")
    axes[1].plot(pictures[-1], label="last game")
    axes[1].set_ylim(-0.5, 0.5)
    axes[1].set_title("angle of the pole")
    axes[1].legend()
    return {"moves at first": lengths[0], "moves at last (200)": np.mean(lengths[-10:])}, figure, play


if __name__ == "__main__":
    show.main(run)
