"""Trains an MLP on the handwritten digits with several ranks, each with its part of every batch, and prints the test accuracy.

The batch of all ranks together has 64 digits, and the numbers are float64: any number of ranks gives the same accuracy.

    mpiexec -n 2 python examples/digits_mpi.py [--epochs N] [--device NAME]
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tracegrad as tg
from tracegrad import distributed as dist
from tracegrad import nn, optim
from tracegrad.nn import functional as F

BATCH = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)
    dist.init_process_group(timeout=120)
    rank, size = dist.get_rank(), dist.get_world_size()

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images / 16, labels.astype(np.int64), test_size=450, random_state=0, stratify=labels)
    tg.manual_seed(rank)                            # the first weights are rank 0's, whatever the others have
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(tg.float64))
    optimizer = optim.Adam(model.parameters(), lr=3e-3)

    @tg.trace
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()                             # ends with the mean of the gradients over the ranks
        optimizer.step()
        return loss

    rng = np.random.default_rng(0)                  # the same order on all ranks
    for _ in range(args.epochs):
        order = rng.permutation(len(train_x))
        for i in range(len(train_x) // BATCH):
            mine = order[i * BATCH : (i + 1) * BATCH][rank::size]
            step(tg.from_numpy(train_x[mine]), tg.from_numpy(train_y[mine]))
    with tg.no_grad():
        accuracy = (model(tg.from_numpy(test_x)).argmax(dim=1).numpy() == test_y).mean()
    if rank == 0:
        print(f"{size} {'ranks' if size > 1 else 'rank'}: test accuracy {accuracy:.2%} on {len(test_y)} digits")
        kernels = step.kernels()
        print(f"\nThe shortest kernel of a step:\n\n{min(kernels, key=len, default=kernels)}")       # without any, `kernels` says why
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
