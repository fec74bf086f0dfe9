"""Loss of an LSTM with diagonal weights over a text, and its gradient."""

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def loss(main, extra, state, text):
    def predict(state, xs):
        seen, wanted = xs
        x, new = seen * extra[0], []
        for weight, bias, hidden, cell in zip(main[0::2], main[1::2], state[0::2], state[1::2], strict=True):
            forget, ingate, outgate, change = (tg.cat((x, hidden, x, hidden)) * weight + bias).chunk(4)
            cell = cell * tg.sigmoid(forget) + tg.sigmoid(ingate) * tg.tanh(change)
            x = tg.sigmoid(outgate) * tg.tanh(cell)
            new += [x, cell]
        y = x * extra[1] + extra[2]
        return tg.stack(new), (wanted * (y - tg.log(tg.exp(y).sum() + 2))).sum()

    return -tg.scan(predict, state, (text[:-1], text[1:]))[1].sum() / text[1:].numel()


def prepare(given):
    return tuple(array(given[name]) for name in ("main_params", "extra_params", "state", "sequence"))


def gradients(main, extra, state, text):
    return tg.cat([g.flatten() for g in tg.grad(loss, argnums=(0, 1))(main, extra, state, text)])


objective = timed(prepare)(tg.trace(loss))
jacobian = timed(prepare)(tg.trace(gradients))
