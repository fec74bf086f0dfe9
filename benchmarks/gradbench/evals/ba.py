"""Bundle adjustment: errors of projected points, and their sparse Jacobian (31 numbers an observation)."""

import numpy as np

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def reprojection(cam, x, w, feat):
    rotation, away = cam[:3], x - cam[3:6]
    angle = (rotation**2).sum().sqrt()
    axis = rotation / angle
    turned = away * tg.cos(angle) + tg.linalg.cross(axis, away) * tg.sin(angle) + axis * (axis @ away) * (1 - tg.cos(angle))
    flat = turned[:2] / turned[2]
    r = (flat**2).sum()
    return w * (flat * (1 + cam[9] * r + cam[10] * r * r) * cam[6] + cam[7:9] - feat)


def errors(cams, xs, ws, feats):
    return {"reproj": tg.vmap(reprojection)(cams, xs, ws, feats), "w": 1 - ws**2}


def derivatives(cams, xs, ws, feats):
    blocks = tg.vmap(tg.jacobian(reprojection, argnums=(0, 1, 2)))(cams, xs, ws, feats)
    return tg.cat([tg.cat([b.reshape(len(ws), 2, -1) for b in blocks], 2).flatten(), -2 * ws])


def prepare(given):
    return tuple(array(given[key]).expand(given["p"], *np.shape(given[key])).clone() for key in ("cam", "x", "w", "feat"))


def jacobian(given):
    n, m, p = given["n"], given["m"], given["p"]
    k, i = np.arange(p)[:, None, None], np.arange(15)
    cols = np.where(i < 11, k % n * 11 + i, np.where(i < 14, 11 * n + k % m * 3 + i - 11, 11 * n + 3 * m + k))
    cols = cols.repeat(2, 1)
    rows, last = np.arange(2 * p + 1) * 15, np.arange(p)
    parts = {"rows": np.r_[rows, 30 * p + 1 + last], "cols": np.r_[cols.ravel(), 11 * n + 3 * m + last]}
    vals, times = timed(prepare)(JACOBIAN)(given)
    parts = {key: part.tolist() for key, part in parts.items()} | {"vals": vals}
    return {key: [*part[:30], part[-1]] for key, part in parts.items()}, times


JACOBIAN = tg.trace(derivatives)
objective = timed(prepare, lambda e: {"reproj_error": dict(elements=e["reproj"][0].tolist(), repeated=len(e["w"])),
                                      "w_err": dict(element=e["w"][0].item(), repeated=len(e["w"]))})(tg.trace(errors))
