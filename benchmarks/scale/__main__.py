"""How programs of several ranks scale.

    python -m benchmarks.scale measure                    # here: collectives by size, what hides behind a backward, one rank's overhead
    python -m benchmarks.scale model                      # GPT-2 small, ResNet-50 and a 3-d stencil on 8 to 4,096 ranks
    python -m benchmarks.scale model --ranks 1024 --program gpt2 --batch 16 --bandwidth 25e9

`model` needs no MPI and no GPU: it compiles the programs for one, and replays the kernels of the plan and the messages on a modelled
network (`replay.py`). Numbers of the device and of the network are options; where the defaults come from stands in `Device` and `Link`.
"""

from __future__ import annotations

from dataclasses import replace

import click

from benchmarks.scale.measure import measure
from benchmarks.scale.network import NETWORKS, Link
from benchmarks.scale.programs import PROGRAMS, Recorded, gpt2, resnet50, stencil
from benchmarks.scale.replay import BUCKET, Device, Step, replay

RANKS = (8, 64, 512, 1024, 4096)
WANTED = 0.9
_POSITIVE = click.FloatRange(0, min_open=True)


def today(device: Device) -> Device:
    """What tracegrad.distributed does now: through the host's memory, with sums by one core.

    Pinned copies over PCIe 4.0 x16 reach 24.8 GB/s (nvbandwidth on an A100, https://forums.developer.nvidia.com/t/352186); `measure`
    printed 21 GB/s for the sums (2026-11-28).
    """
    return replace(device, staged=25e9, adds=21e9)


def row(name: str, network: str, ranks: int, step: Step) -> str:
    times = f"{1e3 * step.alone:10.2f}{1e3 * step.seconds:10.2f}{1e3 * step.after:9.2f}"
    return f"{name:10}{network:10}{ranks:6}{times}{step.efficiency:8.1%}  {step.reason}"


@click.group(help=__doc__)
def main() -> None:
    """Two commands."""


@main.command()
@click.option("--program", "programs", multiple=True, type=click.Choice(list(PROGRAMS)), help="Only these.")
@click.option("--network", "networks", multiple=True, type=click.Choice(list(NETWORKS)), help="Only these.")
@click.option("--ranks", "counts", multiple=True, type=click.IntRange(1), help=f"Instead of {RANKS}.")
@click.option("--batch", type=click.IntRange(1), help="Texts or images a rank.")
@click.option("--side", type=click.IntRange(3), help="Points along each dimension of a rank's part of the stencil.")
@click.option("--bucket", default=BUCKET, type=click.IntRange(1), show_default=True, help="Bytes that are sent together.")
@click.option("--latency", default=Link.latency, type=click.FloatRange(0), show_default=True, help="Seconds of a message.")
@click.option("--hop", default=Link.hop, type=click.FloatRange(0), show_default=True, help="Seconds of a switch.")
@click.option("--bandwidth", default=Link.bandwidth, type=_POSITIVE, show_default=True, help="Bytes a second of a link.")
@click.option("--speed", default=1.0, type=_POSITIVE, show_default=True, help="How many times as fast as an H200 in float32 the device is.")
@click.option("--now", is_flag=True, help="As tracegrad.distributed works now: through the host's memory, sums by one core.")
def model(programs: tuple[str, ...], networks: tuple[str, ...], counts: tuple[int, ...], batch: int | None, side: int | None, bucket: int,
          latency: float, hop: float, bandwidth: float, speed: float, now: bool) -> None:
    """Weak scaling: the time of a step on one rank over that on many, each with the same work."""
    link, device = Link(latency, hop, bandwidth), Device()
    device = replace(device, flops=speed * device.flops, bandwidth=speed * device.bandwidth, adds=speed * device.adds)
    print(f"{'program':10}{'network':10}{'ranks':>6}{'one, ms':>10}{'step, ms':>10}{'waits':>9}{'':8}  why")
    for name in programs or PROGRAMS:
        recorded = _recorded(name, batch, side)
        for network in networks or NETWORKS:
            for ranks in counts or RANKS:
                wires = NETWORKS[network](ranks, link)
                step = (replay(recorded, wires, today(device), True, "levels", bucket) if now
                        else replay(recorded, wires, device, bucket=bucket))
                print(row(name, network, ranks, step) + (f" (wanted: {WANTED:.0%})" if step.efficiency < WANTED else ""), flush=True)


def _recorded(name: str, batch: int | None, side: int | None) -> Recorded:
    if name == "stencil":
        return PROGRAMS[name]() if side is None else stencil(side)
    return PROGRAMS[name]() if batch is None else {"gpt2": gpt2, "resnet50": resnet50}[name](batch)


main.add_command(measure)

if __name__ == "__main__":
    main()
