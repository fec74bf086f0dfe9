"""A graph network: who went with whom, from two known people.

Zachary's karate club split in two. A graph convolution averages over friends (Kipf 2017). Told the side of the two leaders only, it
says that of the other 32 from who trains with whom.

In its kernels: a layer's product and normalization, the gather along edges and the `index_add` of what was gathered share a launch.
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import show

import tracegrad as tg
from tracegrad import nn
from tracegrad.nn import functional as F

CLUB = nx.karate_club_graph()
SIDES = np.array([CLUB.nodes[n]["club"] == "Officer" for n in CLUB]).astype(np.int64)
edges = np.array([*CLUB.edges]).T
FROM, TO = (tg.from_numpy(np.concatenate([edges[a], edges[1 - a], np.arange(34)])) for a in (0, 1))       # both ways, and to oneself
DEGREE = tg.zeros(34).index_add(0, TO, tg.ones(len(TO)))


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        x = self.linear(x) / tg.sqrt(DEGREE)[:, None]
        return tg.zeros(34, x.shape[1]).index_add(0, TO, x[FROM]) / tg.sqrt(DEGREE)[:, None]


def run():
    model = nn.Sequential(GraphConvolution(34, 16), nn.Tanh(), GraphConvolution(16, 2), nn.Tanh(), GraphConvolution(2, 2))
    optimizer = tg.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    people, known, sides = tg.eye(34), tg.tensor([0, 33]), tg.tensor([0, 1])

    @tg.trace
    def step():
        out = model(people)
        loss = F.cross_entropy(out[known], sides)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, out

    losses = []
    for _ in range(300):
        loss, out = step()
        losses.append(loss.item())
    scores = out.detach().numpy()
    found = scores.argmax(1)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    nx.draw_networkx(CLUB, nx.spring_layout(CLUB, seed=1), ax=axes[0], node_color=scores[:, 1] - scores[:, 0], cmap="coolwarm",
                     edgecolors=["k" if f != s else "none" for f, s in zip(found, SIDES, strict=True)], node_size=200, font_size=8)
    axes[1].plot(losses)
    axes[1].set_title("loss")
    return {"loss": losses[-1], "right": (found == SIDES).mean(), "wrong people": float((found != SIDES).sum())}, figure, step


if __name__ == "__main__":
    show.main(run)
