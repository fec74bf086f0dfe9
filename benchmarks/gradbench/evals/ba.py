"""Bundle adjustment: errors of projected points, and their sparse Jacobian (31 numbers an observation).

Written number by number, so that a kernel has all of an observation in registers: in vectors of 3 it takes twice as long.
"""

import numpy as np

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def reprojection(cam, x, w, feat):
    a, b, c, *centre, focal, middle_x, middle_y, k1, k2 = cam.unbind()
    x, y, z = (p - q for p, q in zip(x.unbind(), centre, strict=True))
    angle = (a * a + b * b + c * c).sqrt()
    a, b, c, sine, cosine = a / angle, b / angle, c / angle, tg.sin(angle), tg.cos(angle)
    along = (a * x + b * y + c * z) * (1 - cosine)
    depth = z * cosine + (a * y - b * x) * sine + c * along
    u = (x * cosine + (b * z - c * y) * sine + a * along) / depth
    v = (y * cosine + (c * x - a * z) * sine + b * along) / depth
    r = u * u + v * v
    scale = focal * (1 + k1 * r + k2 * r * r)
    return w * (tg.stack([u * scale + middle_x, v * scale + middle_y]) - feat)


def errors(cams, xs, ws, feats):
    return {"reproj": tg.vmap(reprojection)(cams, xs, ws, feats), "w": 1 - ws**2}


def derivatives(cams, xs, ws, feats):
    blocks = tg.vmap(tg.jacobian(reprojection, argnums=(0, 1, 2)))(cams, xs, ws, feats)
    return tg.cat([b.reshape(len(ws), 2, -1) for b in blocks], 2), -2 * ws


def prepare(given):
    return tuple(array(given[key]).expand(given["p"], *np.shape(given[key])).clone() for key in ("cam", "x", "w", "feat"))


def jacobian(given):                                          # the suite wants the first block and the last number
    vals, times = timed(prepare, lambda found: [*found[0][0].flatten().tolist(), found[1][-1].item()])(JACOBIAN)(given)
    points, weights = 11 * given["n"], 11 * given["n"] + 3 * given["m"]
    cols = [*range(11), points, points + 1, points + 2, weights] * 2 + [weights + given["p"] - 1]
    return {"rows": [*range(0, 450, 15), 31 * given["p"]], "cols": cols, "vals": vals}, times


JACOBIAN = tg.trace(derivatives)
objective = timed(prepare, lambda e: {"reproj_error": {"elements": e["reproj"][0].tolist(), "repeated": len(e["w"])},
                                      "w_err": {"element": e["w"][0].item(), "repeated": len(e["w"])}})(tg.trace(errors))
