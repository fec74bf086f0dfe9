"""Full-waveform inversion: what lies underground, from what microphones at the surface hear.

A shot makes a wave, which is reflected where the speed changes. The simulated sound is compared with the measured one, and the
gradient with respect to the speed of every cell comes through 240 time steps.

In its kernels: the 220 steps of the wave are a loop in one kernel, with shifted reads; the backward's loop is another kernel.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

DEEP, WIDE, STEPS, DT = 40, 60, 220, 0.4
SHOTS = (6, 18, 30, 42, 54)
time = np.arange(STEPS) * DT
PULSE = tg.from_numpy(((1 - 2 * (0.35 * (time - 8)) ** 2) * np.exp(-((0.35 * (time - 8)) ** 2))).astype(np.float32))
sponge = np.ones((DEEP, WIDE))
for k in range(8):                                       # waves die at three sides, so that the box has no echo
    sponge[: DEEP - k, k : WIDE - k] = 1 - 0.004 * (7 - k) ** 2
SPONGE = tg.from_numpy(sponge.astype(np.float32))
AT = np.zeros((len(SHOTS), DEEP, WIDE), np.float32)
AT[np.arange(len(SHOTS)), 2, SHOTS] = 1
AT = tg.from_numpy(AT)


def sound(speed):
    """What is heard at depth 2: (time, shot, place)."""
    def step(state, pulse):
        before, now = state
        padded = tg.nn.functional.pad(now, (1, 1, 1, 1))
        laplacian = padded[:, 2:, 1:-1] + padded[:, :-2, 1:-1] + padded[:, 1:-1, 2:] + padded[:, 1:-1, :-2] - 4 * now
        after = SPONGE * (2 * now - before + (DT * speed) ** 2 * laplacian) + pulse * AT
        return (SPONGE * now, after), after[:, 2]

    quiet = tg.zeros(len(SHOTS), DEEP, WIDE)
    return tg.scan(step, (quiet, quiet), PULSE)[1]


@tg.trace
def misfit(speed, heard):
    return tg.value_and_grad(lambda speed: ((sound(speed) - heard) ** 2).sum())(speed)


def run():
    true = np.full((DEEP, WIDE), 1.0, np.float32)
    true[20:] = 1.2
    y, x = np.indices(true.shape)
    true[(y - 15) ** 2 + (x - 30) ** 2 < 20] = 0.8
    background = np.full_like(true, 1.0)
    background[20:] = 1.2
    with tg.no_grad():
        heard = sound(tg.from_numpy(true))
    speed = tg.from_numpy(background.copy())
    optimizer = tg.optim.Adam([speed], lr=0.015)
    losses = []
    for _ in range(150):
        loss, gradient = misfit(speed, heard)
        gradient[:5] = 0.0                                # the shots' own surroundings are known
        speed.grad = gradient
        optimizer.step()
        losses.append(loss.item())
    found = speed.numpy()
    figure, axes = plt.subplots(1, 3, figsize=(13, 3))
    axes[0].imshow(true, vmin=0.75, vmax=1.25)
    axes[0].set_title("true speed")
    axes[1].imshow(heard[:, 2].numpy(), aspect="auto", cmap="gray", vmin=-0.1, vmax=0.1)
    axes[1].set_title("what is heard of one shot")
    axes[2].imshow(found, vmin=0.75, vmax=1.25)
    axes[2].set_title("found")
    blob = true < 0.9
    return {"misfit at first": losses[0], "misfit at last": losses[-1], "speed in the bubble (0.8)": found[blob].mean(),
            "speed beside it (1)": found[10:19, 5:20].mean()}, figure, misfit


if __name__ == "__main__":
    show.main(run)
