"""Trains a model whose layers are cut over several ranks (tensor parallelism), and prints losses: those of one rank, to rounding.

A column-parallel Linear has a part of the outputs on each rank, a row-parallel one a part of the inputs, attention some of the heads; an
Embedding and the cross-entropy have a part of the vocabulary. So two layers need one sum over the ranks, and no rank has all logits.
(Shoeybi et al., Megatron-LM, 2019.)

    mpiexec -n 2 python examples/tensor_parallel.py [--steps N] [--device NAME]
"""

import argparse
from pathlib import Path

import numpy as np

import tracegrad as tg
from tracegrad import distributed as dist
from tracegrad import nn

CONTEXT, WIDTH, HEADS, HIDDEN, BATCH = 6, 8, 4, 64, 128


class ToAll(tg.Function):
    """Where what all ranks have goes into parts: each part sends its gradient back, and they are added up."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return dist.functional.all_reduce(grad)


class SumOfAll(tg.Function):
    """Where parts are added up: the gradient of the sum, which all ranks have, is that of each part."""

    @staticmethod
    def forward(ctx, x):
        return dist.functional.all_reduce(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def own_range(n):
    """This rank's part of 0, ..., n - 1: where it begins and ends."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return n * rank // size, n * (rank + 1) // size


class ColumnParallelLinear(nn.Module):
    """(*, inputs) on all ranks -> (*, this rank's part of the outputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        low, high = own_range(outputs)
        whole = nn.Linear(inputs, outputs, dtype=tg.float64)            # the same on all ranks, as their seeds are
        self.weight, self.bias = nn.Parameter(whole.weight[low:high]), nn.Parameter(whole.bias[low:high])

    def forward(self, x):
        return nn.functional.linear(ToAll.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """(*, this rank's part of the inputs) -> (*, outputs) on all ranks. unit: how many inputs stay together."""

    def __init__(self, inputs, outputs, unit=1):
        super().__init__()
        low, high = (unit * n for n in own_range(inputs // unit))
        whole = nn.Linear(inputs, outputs, dtype=tg.float64)
        self.weight, self.bias = nn.Parameter(whole.weight[:, low:high]), nn.Parameter(whole.bias)

    def forward(self, x):
        return SumOfAll.apply(nn.functional.linear(x, self.weight)) + self.bias


class ParallelAttention(nn.Module):
    """(*, L, width) on all ranks -> the same: each rank has some of the heads, of width // heads features each."""

    def __init__(self, width, heads):
        super().__init__()
        low, high = own_range(heads)
        self.heads, self.size = high - low, width // heads
        whole = nn.Linear(width, 3 * width, dtype=tg.float64)
        own = [x.unflatten(0, (3, heads, self.size))[:, low:high].flatten(0, 2) for x in (whole.weight, whole.bias)]
        self.weight, self.bias = map(nn.Parameter, own)
        self.out = RowParallelLinear(width, width, self.size)

    def forward(self, x):
        parts = nn.functional.linear(ToAll.apply(x), self.weight, self.bias).unflatten(-1, (3, self.heads, self.size))
        q, k, v = (part.transpose(-2, -3) for part in parts.unbind(-3))                 # (*, heads, L, size)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(-2, -3).flatten(-2))


class VocabParallelEmbedding(nn.Module):
    """Indices (*) -> vectors (*, width) on all ranks: each rank has those of its part of the vocabulary, and zeros for others."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.low, self.high = own_range(vocabulary)
        self.weight = nn.Parameter(nn.Embedding(vocabulary, width, dtype=tg.float64).weight[self.low:self.high])

    def forward(self, tokens):
        here = (tokens >= self.low) & (tokens < self.high)
        found = nn.functional.embedding((tokens - self.low).where(here, 0), self.weight)
        return SumOfAll.apply(found * here.unsqueeze(-1))


def vocab_parallel_cross_entropy(logits, targets, low):
    """The mean of -log softmax(logits)[target], where logits are this rank's part of the vocabulary, from `low` on."""
    largest = dist.functional.all_reduce(logits.detach().amax(1), dist.ReduceOp.MAX)
    shifted = logits - largest.unsqueeze(1)
    here = (targets >= low) & (targets < low + logits.shape[1])
    own = shifted.gather(1, (targets - low).where(here, 0).unsqueeze(1)).squeeze(1) * here
    return (SumOfAll.apply(shifted.exp().sum(1)).log() - SumOfAll.apply(own)).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)
    dist.init_process_group(timeout=120)

    letters, text = np.unique(np.frombuffer(Path(__file__).read_bytes(), np.uint8), return_inverse=True)     # it learns this file
    tg.manual_seed(0)
    model = nn.Sequential(VocabParallelEmbedding(len(letters), WIDTH), ParallelAttention(WIDTH, HEADS), nn.Flatten(),
                          ColumnParallelLinear(CONTEXT * WIDTH, HIDDEN), nn.Tanh(), RowParallelLinear(HIDDEN, HIDDEN), nn.Tanh(),
                          ColumnParallelLinear(HIDDEN, len(letters)))
    optimizer = tg.optim.Adam(model.parameters(), lr=1e-2)
    first_letter = own_range(len(letters))[0]

    @tg.trace
    def step(context, following):
        optimizer.zero_grad()
        loss = vocab_parallel_cross_entropy(model(context), following, first_letter)
        loss.backward()
        optimizer.step()
        return loss

    rng = np.random.default_rng(0)                                      # the same batches on all ranks
    for k in range(args.steps):
        at = rng.integers(0, len(text) - CONTEXT, size=BATCH)
        windows = text[at[:, None] + np.arange(CONTEXT + 1)].astype(np.int64)
        loss = step(tg.from_numpy(windows[:, :-1].copy()), tg.from_numpy(windows[:, -1].copy()))
        if dist.get_rank() == 0 and (k % 20 == 0 or k == args.steps - 1):
            print(f"step {k:3d}: loss {loss.item():.10f}")
    if dist.get_rank() == 0:
        size = dist.get_world_size()
        print(f"{size} {'ranks' if size > 1 else 'rank'}: this one has {sum(p.numel() for p in model.parameters())} parameters")
        kernels = step.kernels()
        print(f"\nThe shortest kernel of a step:\n\n{min(kernels, key=len, default=kernels)}")       # without any, `kernels` says why
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
