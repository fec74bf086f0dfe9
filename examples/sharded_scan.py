"""Trains a linear recurrence over a sequence that is cut in time over several ranks, and prints losses: those of one rank, to rounding.

h[t] = decay h[t - 1] + x[t] weight depends on all times before. Each rank scans its own piece as if nothing had been before it; one message
with the last h of every piece tells what had, and that fades into the piece by powers of the decay. So all ranks scan at once. (Blelloch,
"Prefix sums and their applications", 1990.) Derivatives follow: that of the message is a message back.

    mpiexec -n 2 python examples/sharded_scan.py [--steps N] [--length N] [--device NAME]
"""

import argparse

import numpy as np

import tracegrad as tg
from tracegrad import distributed as dist
from tracegrad import nn

INPUTS, WIDTH = 3, 8
F64 = {"dtype": tg.float64}


def own_range(n, rank):
    """The rank's part of 0, ..., n - 1: where it begins and ends."""
    size = dist.get_world_size()
    return n * rank // size, n * (rank + 1) // size


def sharded_scan(decay, rows, length):
    """h[t] = decay h[t - 1] + rows[t] from zeros, for this rank's times. decay: (width,); rows: (own times, width); length: all times."""
    rank, size = dist.get_rank(), dist.get_world_size()
    last, own = tg.scan(lambda h, row: (decay * h + row,) * 2, tg.zeros_like(decay), rows)
    if size == 1:
        return own
    ends = tg.tensor([own_range(length, r)[1] for r in range(size)], **F64)
    begin = own_range(length, rank)[0]
    before = tg.arange(size) < rank
    faded = decay ** (begin - ends).where(before, 0).unsqueeze(1)                      # from the end of each piece to here
    carry = (dist.functional.all_gather(last) * faded * before.unsqueeze(1)).sum(0)
    return own + decay ** tg.arange(1, len(rows) + 1, **F64).unsqueeze(1) * carry


class Recurrence(nn.Module):
    """(own times, INPUTS) -> (own times, 1): what a sequence does to some decaying memories."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(tg.linspace(-2.0, 2.0, WIDTH, **F64))
        self.into, self.out = nn.Linear(INPUTS, WIDTH, **F64), nn.Linear(WIDTH, 1, **F64)

    def forward(self, x, length):
        return self.out(sharded_scan(tg.sigmoid(self.rate), self.into(x), length))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--length", type=int, default=1000, help="times of the whole sequence")
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)
    dist.init_process_group(timeout=120)

    x = np.random.default_rng(0).normal(size=(args.length, INPUTS))
    target, memory = np.empty((args.length, 1)), 0.0                    # one slow memory of the first input
    for t in range(args.length):
        memory = 0.97 * memory + 0.1 * x[t, 0]
        target[t] = memory
    low, high = own_range(args.length, dist.get_rank())
    mine, wanted = tg.from_numpy(x[low:high].copy()), tg.from_numpy(target[low:high].copy())

    tg.manual_seed(0)                                                   # all ranks begin with the same model
    model = Recurrence()
    optimizer = tg.optim.Adam(model.parameters(), lr=0.05)

    @tg.trace
    def step(x, wanted):
        optimizer.zero_grad()
        loss = (model(x, args.length) - wanted).square().sum() / args.length          # this rank's share
        loss.backward()
        for p in model.parameters():
            p.grad = dist.functional.all_reduce(p.grad)
        optimizer.step()
        return dist.functional.all_reduce(loss.detach())

    for k in range(args.steps):
        loss = step(mine, wanted)
        if dist.get_rank() == 0 and (k % 20 == 0 or k == args.steps - 1):
            print(f"step {k:3d}: loss {loss.item():.10f}")
    if dist.get_rank() == 0:
        size = dist.get_world_size()
        print(f"{size} {'ranks' if size > 1 else 'rank'}: this one has times {low} to {high} of {args.length}")
        kernels = step.kernels()
        print(f"\nThe shortest kernel of a step:\n\n{min(kernels, key=len, default=kernels)}")       # without any, `kernels` says why
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
