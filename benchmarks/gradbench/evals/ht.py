"""Hand tracking: a posed hand against measured points; the Jacobian of its pose and of each point's place in its triangle."""

import numpy as np

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed

ANGLES = np.full((2, 22), 26)                                 # which entry of theta is a bone's angle around x, around z; 26: none
for f in range(5):
    ANGLES[:, 4 * f + 2 : 4 * f + 5] = [[4 * f + 6, 4 * f + 8, 4 * f + 9], [4 * f + 7, 26, 26]]


def rotation(turn):
    angle, fixed = turn.norm().clamp(min=1e-12), tg.eye(3, dtype=turn.dtype)
    across = tg.linalg.cross((turn / angle).expand(3, 3), fixed).mT
    return fixed + tg.where(angle < 1e-4, 0.0, tg.sin(angle) * across + (1 - tg.cos(angle)) * (across @ across))     # as ADBench


def errors(theta, us, parents, mirror, relatives, inverses, positions, weights, places, points):
    x, z = tg.cat([theta, theta.new_zeros(1)])[ANGLES]
    no, one = tg.zeros_like(x), tg.ones_like(x)
    rows = [[z.cos(), -z.sin() * x.cos(), z.sin() * x.sin(), no], [z.sin(), z.cos() * x.cos(), -z.cos() * x.sin(), no],
            [no, x.sin(), x.cos(), no], [no, no, no, one]]
    bones = relatives @ tg.stack([tg.stack(row, 1) for row in rows], 1)
    while max(parents) >= 0:                                  # 1, 2, 4, ... bones up at a time
        bones = tg.cat([bones, tg.eye(4, dtype=x.dtype)[None]])[parents] @ bones
        parents = [parents[p] if p >= 0 else -1 for p in parents]
    moves = weights @ (bones @ inverses)[:, :3].reshape(-1, 12)
    hand = (mirror * (moves.reshape(-1, 3, 4) * positions[:, None]).sum(2)) @ rotation(theta[:3]).mT + theta[3:6]
    return points - (hand[places] * tg.cat([us, 1 - us.sum(1, keepdim=True)], 1)[:, :, None]).sum(1)


def derivatives(theta, us, *hand):
    def moved(both):                                          # a point depends on its own u alone: all of them move together
        return errors(both[us.shape[1]:], us + both[: us.shape[1]], *hand)

    return tg.func.jacfwd(moved)(tg.cat([theta.new_zeros(us.shape[1]), theta])).flatten(0, 1)


def prepare(given):
    model, places = given["data"]["model"], np.array(given["data"]["correspondences"])
    us = array(given["us"]).reshape(len(places), -1)
    places = np.array(model["triangles"])[places] if us.shape[1] else places[:, None]
    arrays = [array(model[key]) for key in ("base_relatives", "inverse_base_absolutes", "base_positions", "weights")]
    mirror = array([-1 if model["is_mirrored"] else 1, 1, 1])
    return array(given["theta"]), us, model["parents"], mirror, *arrays, tg.from_numpy(places), array(given["data"]["points"])


objective = timed(prepare, lambda e: e.flatten().tolist())(tg.trace(errors))
jacobian = timed(prepare)(tg.trace(derivatives))
