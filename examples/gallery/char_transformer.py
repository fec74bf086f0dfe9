"""A transformer that writes: it learns the Zen of Python, character by character.

Two layers of causal attention see 32 characters and predict the next. The text is short, so it is learned by heart: after some
hundred steps the model goes on from a few words as the text does.

In its kernels: so few scores (32 x 32) are stored, between two products and a softmax; from 4,096 on attention is one kernel that
keeps none. Bias, GELU and residual are in the products' kernels.
"""

import codecs
import contextlib
import io

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg
from tracegrad import nn
from tracegrad.nn import functional as F

with contextlib.redirect_stdout(io.StringIO()):                       # importing it prints it
    import this

TEXT = codecs.decode(this.s, "rot13")
CHARS = sorted(set(TEXT))
CODES = np.array([CHARS.index(c) for c in TEXT])
SEEN, WIDTH, HEADS = 32, 64, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.char, self.place = nn.Embedding(len(CHARS), WIDTH), nn.Embedding(SEEN, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(CHARS))

    def forward(self, codes):
        return self.head(self.norm(self.blocks(self.char(codes) + self.place(tg.arange(SEEN)))))


def run():
    model = Model()
    optimizer = tg.optim.AdamW(model.parameters(), lr=3e-3)

    @tg.trace
    def step(x, y):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    @tg.trace
    def next_char(codes):
        return model(codes)[0, -1].argmax()

    rng, losses = np.random.default_rng(0), []
    for k in range(500):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - k / 500)
        start = rng.integers(0, len(CODES) - SEEN, 32)
        pieces = CODES[start[:, None] + np.arange(SEEN + 1)]
        losses.append(step(tg.from_numpy(pieces[:, :-1]), tg.from_numpy(pieces[:, 1:])).item())

    written = list(CODES[:SEEN])
    for _ in range(200):
        written.append(next_char(tg.from_numpy(np.array(written[-SEEN:])[None])).item())
    text = "".join(CHARS[c] for c in written)
    known = np.mean([text[k : k + 12] in TEXT for k in range(SEEN, len(text) - 12)])
    print(text)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    axes[0].plot(losses)
    axes[0].set_title("loss")
    axes[1].text(0, 0, text, family="monospace", size=7)
    axes[1].axis("off")
    return {"first loss": losses[0], "last loss": np.mean(losses[-10:]), "pieces of 12 that are in the text": known}, figure, step


if __name__ == "__main__":
    show.main(run)
