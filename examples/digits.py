"""Trains an MLP and a convnet on scikit-learn's real handwritten digits, through OpenCL kernels that tracegrad generates.

Shows modules, Adam, and a whole training step (forward, backward, update) traced into one plan; prints the test accuracy, saves
the loss curves, and shows a kernel. Ends with an error if the accuracy is below 97 % (MLP) or 98 % (convnet).

    python examples/digits.py [--device NAME] [--epochs N] [--seed N]     writes examples/out/digits.png
"""

import argparse
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.nn import functional as F

BATCH = 64


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.2)
        self.linear = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.linear(self.dropout(x.flatten(1)))


def shifted(images, rng):
    """Each image moved by at most one pixel in each direction: eight more examples of every digit."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    dy, dx = rng.integers(0, 3, (2, len(images), 1, 1))
    rows = np.arange(8)
    return padded[np.arange(len(images))[:, None, None], 0, dy + rows[:, None], dx + rows][:, None]


def train(name, model, data, epochs, rng, augment):
    """Trains on batches drawn anew every epoch (shifted by up to a pixel if `augment`). Returns losses, test accuracy, traced step."""
    train_x, test_x, train_y, test_y = data
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)  # a new rate every epoch; the step is compiled once

    @tg.trace
    def step(images, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    @tg.trace
    def predict(images):
        return model(images).argmax(dim=1)

    losses = []
    batches = len(train_x) // BATCH
    loss_column = TextColumn("loss {task.fields[loss]:.4f}")
    start = time.perf_counter()
    with Progress(TextColumn("{task.description:8s}"), BarColumn(), MofNCompleteColumn(), loss_column, TimeElapsedColumn()) as progress:
        task = progress.add_task(name, total=epochs * batches, loss=float("nan"))
        for _ in range(epochs):
            images, order = shifted(train_x, rng) if augment else train_x, rng.permutation(len(train_x))
            epoch = []
            for i in range(batches):
                batch = order[i * BATCH : (i + 1) * BATCH]
                epoch.append(step(tg.from_numpy(images[batch]), tg.from_numpy(train_y[batch])))
                progress.advance(task)
            schedule.step()
            losses += [loss.item() for loss in epoch]
            progress.update(task, loss=np.mean(losses[-batches:]))
    seconds = time.perf_counter() - start

    model.eval()
    accuracy = (predict(tg.from_numpy(test_x)).numpy() == test_y).mean()
    print(f"{name}: test accuracy {accuracy:.2%} on {len(test_y)} digits; {len(losses)} steps in {seconds:.1f} s, compiling included")
    return losses, accuracy, step


def save_plot(curves):
    path = Path(__file__).parent / "out" / "digits.png"
    path.parent.mkdir(exist_ok=True)
    plt.switch_backend("agg")
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, losses in curves.items():
        axis.plot(np.convolve(losses, np.ones(20) / 20, mode="valid"), label=name)
    axis.set(xlabel="step", ylabel="training loss, mean of 20 steps", yscale="log", title="scikit-learn digits")
    axis.legend()
    figure.savefig(path, dpi=120)
    print(f"loss curves: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)
    print(f"device: {tg.device()}")

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    data = train_test_split(images, labels.astype(np.int64), test_size=450, random_state=0, stratify=labels)

    tg.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    curves, enough = {}, True
    for name, model, augment, least in (("MLP", mlp(), False, 0.97), ("convnet", ConvNet(), True, 0.98)):
        curves[name], accuracy, step = train(name, model, data, args.epochs, rng, augment)
        enough = enough and accuracy >= least
    save_plot(curves)

    kernels = step.kernels()
    print(f"\nThe convnet's training step is {len(kernels)} kernels. One of them:\n")
    print(next(iter(kernels), kernels))                             # without any, `kernels` says why
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
