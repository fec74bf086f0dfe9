"""Trains an MLP on the handwritten digits with several ranks, each with its part of every batch, and prints the test accuracy.

With --devices 2 a rank's part is divided once more, between two halves of its CPU, or between its device and NumPy's interpreter.
The batch of all ranks together has 64 digits, and the numbers are float64: any number of ranks and devices gives the same accuracy.

    mpiexec -n 2 python examples/digits_mpi.py [--epochs N] [--device NAME] [--devices 2]
"""

import argparse

import numpy as np
import pyopencl as cl
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tracegrad as tg
from tracegrad import distributed as dist
from tracegrad import nn, optim
from tracegrad.nn import functional as F
from tracegrad.runtime.device import Device

BATCH = 64


def two_devices():
    """Two halves of the default device, if its driver makes some (CPUs' do); else it, and the interpreter. And what they are."""
    here = tg.device("")
    if here.kind != "numpy":
        half, equally = here.cl_device.max_compute_units // 2, cl.device_partition_property.EQUALLY
        if half and equally in here.cl_device.partition_properties:
            parts = here.cl_device.create_sub_devices([equally, half])[:2]
            return [Device(part) for part in parts], f"two halves of {here.name}, of {half} core{'s' * (half > 1)} each"
    return [here, tg.device("numpy")], f"{here.name} and the interpreter: its driver makes no halves"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--devices", type=int, choices=(1, 2), default=1, help="on how many devices a rank trains")
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)
    dist.init_process_group(timeout=120)
    rank, size = dist.get_rank(), dist.get_world_size()
    devices, found = two_devices() if args.devices == 2 else ([tg.device("")], "")
    if found:
        tg.set_device(devices[0])
    if found and rank == 0:
        print(f"on two devices: {found}")

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images / 16, labels.astype(np.int64), test_size=450, random_state=0, stratify=labels)
    tg.manual_seed(rank)                            # the first weights are rank 0's, whatever the others have
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(tg.float64))
    optimizer = optim.Adam(model.parameters(), lr=3e-3)

    @tg.trace
    def step(parts):
        optimizer.zero_grad()
        losses = [F.cross_entropy(on(x.device, x), y).to(devices[0]) for x, y in parts]
        loss = tg.stack(losses).mean()              # the parts are of one length
        loss.backward()                             # ends with the mean of the gradients over the ranks
        optimizer.step()
        return loss

    def on(device, x):
        """The model of x, with its weights sent to x's device; their gradients come back."""
        if device is devices[0]:
            return model(x)
        weights = {name: p.to(device) for name, p in model.module.named_parameters()}
        return tg.func.functional_call(model.module, weights, (x,))

    rng = np.random.default_rng(0)                  # the same order on all ranks
    for _ in range(args.epochs):
        order = rng.permutation(len(train_x))
        for i in range(len(train_x) // BATCH):
            mine = order[i * BATCH : (i + 1) * BATCH][rank::size]
            parts = [mine[k :: len(devices)] for k in range(len(devices))]
            step([(tg.tensor(train_x[part], device=d), tg.tensor(train_y[part], device=d)) for part, d in zip(parts, devices, strict=True)])
    with tg.no_grad():
        accuracy = (model(tg.from_numpy(test_x)).argmax(dim=1).numpy() == test_y).mean()
    if rank == 0:
        on_two = " on two devices" if found else ""
        print(f"{size} {'ranks' if size > 1 else 'rank'}{on_two}: test accuracy {accuracy:.2%} on {len(test_y)} digits")
        kernels = step.kernels()
        print(f"\nThe shortest kernel of a step:\n\n{min(kernels, key=len, default=kernels)}")       # without any, `kernels` says why
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
