"""Small untraced calls beside torch: `python -m benchmarks.small_calls`, `python -m benchmarks.small_calls normal_ randn --native`.

tracegrad (as `import torch`, or with --native as `import tracegrad`) and torch take turns in processes of their own, some milliseconds
of one call each; the medians of the processor's time are compared. The calls are `CALLS`: a name, and how it is written with `torch`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.frameworks import ROOT, environment

SETUP = """
import warnings; warnings.simplefilter("ignore")
import numpy as np
torch.manual_seed(0)
x, y, m, n = torch.rand(64), torch.rand(64), torch.rand(8, 8), torch.rand(8, 8)
k, mask, labels, p = torch.arange(8), torch.rand(64) > 0.5, torch.randint(0, 8, (16,)), torch.rand(64)
logits, w, pred = torch.rand(16, 8), torch.rand(8, 8, requires_grad=True), torch.randint(0, 8, (16,))
index, source, matrix = torch.arange(8).repeat(8), torch.rand(64), torch.zeros(8, 8)
array, row, one = np.ones((8, 8), np.float32), [0.1, 0.2, 0.3, 0.4], torch.tensor(3.0)
layer = torch.nn.Linear(8, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
parameters, state = list(model.parameters()), model.state_dict()
generator = torch.Generator().manual_seed(1)
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2
double = Double.apply
F = torch.nn.functional
batches = torch.utils.data.TensorDataset(torch.rand(64, 8), torch.arange(64))
def without():
    with torch.no_grad():
        return None
"""
CALLS = {
    # random numbers
    "normal_": "x.normal_()", "normal_ of 8": "k8.normal_()", "normal_(0, 0.1)": "m.normal_(0, 0.1)", "uniform_": "x.uniform_(-1, 1)",
    "exponential_": "e8.exponential_()", "bernoulli_": "x.bernoulli_(0.5)", "random_": "whole.random_(10)", "rand": "torch.rand(64)",
    "rand(1)": "torch.rand(1)", "rand(4, 4)": "torch.rand(4, 4)", "randn": "torch.randn(64)", "randn(8)": "torch.randn(8)",
    "randn(1)": "torch.randn(1)", "randn(16, 8)": "torch.randn(16, 8)", "randn(100)": "torch.randn(100)",
    "rand_like": "torch.rand_like(x)", "randn_like": "torch.randn_like(x)", "randint": "torch.randint(0, 10, (8,))",
    "randint(1)": "torch.randint(0, 10, (1,)).item()", "randperm": "torch.randperm(64)", "randperm(16)": "torch.randperm(16)",
    "bernoulli": "torch.bernoulli(p)", "multinomial": "torch.multinomial(p, 1)", "normal": "torch.normal(x, 0.1)",
    "generator": "torch.rand(8, generator=generator)", "dropout": "F.dropout(x, 0.5)",
    "kaiming_uniform_": "torch.nn.init.kaiming_uniform_(w)", "xavier_normal_": "torch.nn.init.xavier_normal_(w)",
    "manual_seed": "torch.manual_seed(0)", "Linear": "torch.nn.Linear(8, 8)",
    # creation
    "zeros": "torch.zeros(8)", "ones": "torch.ones(4, 4)", "empty": "torch.empty(8)", "full": "torch.full((8,), 2.0)",
    "zeros_like": "torch.zeros_like(x)", "ones_like": "torch.ones_like(x)", "empty_like": "torch.empty_like(x)",
    "arange": "torch.arange(10)", "linspace": "torch.linspace(0, 1, 8)", "eye": "torch.eye(4)", "tensor(1.0)": "torch.tensor(1.0)",
    "tensor(list)": "torch.tensor(row)", "from_numpy": "torch.from_numpy(array)", "as_tensor": "torch.as_tensor(array)",
    "device": 'torch.device("cpu")', "to(device)": 'x.to("cpu")', "zeros(device)": 'torch.zeros(8, device="cpu")',
    # what a tensor tells
    "shape": "x.shape", "size(0)": "m.size(0)", "data": "x.data", "w.data": "w.data", "detach": "w.detach()", "item": "one.item()",
    "float(x)": "float(one)", "numpy": "x.numpy()", "tolist": "x.tolist()", "numel": "x.numel()", "requires_grad": "w.requires_grad",
    "grad": "w.grad", "dtype": "x.dtype", "device of": "x.device", "is_tensor": "torch.is_tensor(x)", "len": "len(x)",
    "cpu().numpy()": "w.detach().cpu().numpy()", "is_cuda": "x.is_cuda", "dim": "x.dim()",
    # arithmetic
    "add": "x + y", "mul": "x * 2.0", "sub": "x - y", "pow": "x ** 2", "exp": "x.exp()", "relu": "F.relu(x)",
    "where": "torch.where(mask, x, y)",
    "clamp": "x.clamp(0, 1)", "add_": "x.add_(0.0)", "mul_": "x.mul_(1.0)", "zero_": "matrix.zero_()", "fill_": "matrix.fill_(1.0)",
    "copy_": "x.copy_(y)", "compare": "x > y", "eq": "(labels == pred)", "matmul": "m @ n", "softmax": "logits.softmax(-1)",
    "linear": "F.linear(m, n)", "layer": "layer(m)", "model": "model(m)", "lerp": "torch.lerp(x, y, 0.5)",
    # reductions
    "sum": "x.sum()", "mean": "x.mean()", "max": "x.max()", "max(dim)": "logits.max(1)", "argmax": "logits.argmax(1)", "norm": "x.norm()",
    "any": "mask.any()", "all": "mask.all()", "equal": "torch.equal(x, y)", "allclose": "torch.allclose(x, y)", "std": "x.std()",
    "isnan": "torch.isnan(x).any()", "topk": "logits.topk(2)", "sort": "x.sort()", "cumsum": "x.cumsum(0)",
    "accuracy": "(logits.argmax(1) == labels).float().mean().item()", "correct": "(logits.argmax(1) == labels).sum().item()",
    "cross_entropy": "F.cross_entropy(logits, labels).item()", "mse_loss": "F.mse_loss(x, y).item()",
    # indices
    "x[0]": "x[0]", "x[a:b]": "x[8:16]", "m[:, 0]": "m[:, 0]", "x[mask]": "x[mask]", "x[index]": "x[k]", "x[0] = 1": "write_one()",
    "x[index] = y": "write_many()", "gather": "logits.gather(1, labels[:, None])", "index_select": "m.index_select(0, k)",
    "scatter_": "matrix.scatter_(1, k[:, None], 1.0)", "scatter_add_": "k_sums.scatter_add_(0, index, source)",
    "index_add_": "matrix.index_add_(0, k, m)", "nonzero": "mask.nonzero()", "masked_fill": "x.masked_fill(mask, 0.0)",
    "one_hot": "F.one_hot(labels, 8)", "bincount": "torch.bincount(labels, minlength=8)", "unique": "torch.unique(labels)",
    "confusion": "torch.bincount(labels * 8 + pred, minlength=64).reshape(8, 8)", "confusion loop": "confusion()",
    # shapes
    "reshape": "x.reshape(8, 8)", "view": "x.view(8, 8)", "permute": "m.permute(1, 0)", "t": "m.T", "unsqueeze": "x.unsqueeze(0)",
    "squeeze": "x.squeeze()", "cat": "torch.cat([m, n])", "stack": "torch.stack([x, y])", "clone": "x.clone()", "float": "labels.float()",
    "long": "x.long()", "expand": "one.expand(4)", "chunk": "x.chunk(4)", "flatten": "m.flatten()", "contiguous": "m.T.contiguous()",
    # modules, optimizers, autograd
    "SGD": "torch.optim.SGD(parameters, lr=0.1)", "Adam": "torch.optim.Adam(parameters)", "zero_grad": "model.zero_grad()",
    "parameters": "list(model.parameters())", "state_dict": "model.state_dict()", "load_state_dict": "model.load_state_dict(state)",
    "train": "model.train()", "no_grad": "without()", "Function": "double(w)", "Function, backward": "double(w).sum().backward()",
    "dataset[i]": "batches[3]", "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_(parameters, 1.0)", "Parameter": "torch.nn.Parameter(m)",
    "grad of": "torch.autograd.grad((w * w).sum(), w)", "backward": "(w * w).sum().backward()", "save, load": "state['0.weight'].clone()",
}
MORE = """
e8, k8, k_sums, whole = torch.empty(8), torch.empty(8), torch.zeros(8), torch.arange(8)
def write_one():
    x[0] = 1.0
def write_many():
    x[k] = e8
def confusion():
    c = torch.zeros(8, 8, dtype=torch.int64)
    for a, b in zip(labels, pred):
        c[a, b] += 1
    return c
for q in parameters:
    q.grad = torch.ones_like(q)
"""


def work(name: str) -> None:
    """A process of its own: for each line, a call's text and how often, print the seconds of the processor that so many calls took."""
    if name == "hook":
        import tracegrad.as_torch  # noqa: F401 - what it is imported for
    import importlib

    torch: Any = importlib.import_module("tracegrad" if name == "native" else "torch")
    if name == "torch":
        torch.set_num_threads(1)
        importlib.import_module("torch.utils.data")
    names: dict[str, Any] = {"torch": torch}
    exec(SETUP + MORE, names)
    loops: dict[str, Any] = {}
    for line in sys.stdin:
        text, count = json.loads(line)
        if text not in loops:
            made: dict[str, Any] = {}
            exec(f"def loop(count):\n    for _ in range(count):\n        {text}\n", names, made)
            loops[text] = made["loop"]
        try:
            start = time.process_time()
            loops[text](count)
            print(json.dumps(time.process_time() - start), flush=True)
        except Exception as error:
            print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)


class Worker:
    """A process that makes calls when asked to."""

    def __init__(self, name: str, caches: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "benchmarks.small_calls", "--work", name], cwd=ROOT, env=environment(caches),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, text: str, count: int) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([text, count]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def measure(name: str, workers: dict[str, Worker], turns: int, about: float) -> tuple[list[float], str]:
    """Microseconds a call of each worker, and what went wrong."""
    text, counts, found = CALLS[name], [], []
    for worker in workers.values():
        first = worker.seconds(text, 60)
        if isinstance(first, str):
            return [], first
        counts.append(max(10, int(about / max(worker.seconds(text, 20) / 20, 1e-7))))
    times: list[list[float]] = [[] for _ in workers]
    for _ in range(turns):
        for worker, count, own in zip(workers.values(), counts, times, strict=True):
            own.append(worker.seconds(text, count) / count * 1e6)
    found = [statistics.median(own) for own in times]
    return found, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of calls, or parts of their names; all if none is named")
    parser.add_argument("--native", action="store_true", help="import tracegrad, in the place of `import torch` under the hook")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.004, help="of each turn")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    chosen = [name for name in CALLS if not options.names or any(part in name for part in options.names)]
    with tempfile.TemporaryDirectory() as caches:
        workers = {name: Worker(name, caches) for name in ("native" if options.native else "hook", "torch")}
        print(f"{'':22}{'ours, us':>10}{'torch, us':>10}{'ratio':>8}")
        for name in chosen:
            found, wrong = measure(name, workers, options.turns, options.seconds)
            print(f"{name:22}" + (wrong or f"{found[0]:>10.2f}{found[1]:>10.2f}{found[0] / found[1]:>8.1f}"), flush=True)
        for worker in workers.values():
            worker.process.communicate()


if __name__ == "__main__":
    main()
