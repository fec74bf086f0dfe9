"""What the programs of the gallery have in common: `main` runs one, prints its numbers, and saves its picture and its page.

    python examples/gallery/ising.py [--device NAME] [--out FOLDER]
    python examples/gallery/show.py               # all of them, a summary at the end

Each program has a function `run`. It returns numbers by name, a matplotlib figure, and the traced function that did the work. A test holds
the numbers within bounds (tests/project/test_gallery.py).
"""

import argparse
import importlib
import time
from pathlib import Path

import matplotlib as mpl

import tracegrad as tg

mpl.use("Agg")                                       # no window: pictures go into files

HERE = Path(__file__).parent
OUT = HERE.parent / "out" / "gallery"


def programs():
    """The names of all programs, sorted."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem != "show")


def save(name, result, out):
    """Print the numbers of a program's result, and write NAME.png and NAME.html into the folder."""
    numbers, figure, traced = result
    for what, value in numbers.items():
        print(f"{what:>36}  {value:.5g}")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name}.png", dpi=80, bbox_inches="tight")
    mpl.pyplot.close(figure)
    print(f"{'kernels':>36}  {len(traced.kernels())}")
    traced.page(out / f"{name}.html")
    print(f"{'picture':>36}  {out / name}.png\n{'source, graph and kernels':>36}  {out / name}.html")


def main(run=None):
    """Run the program whose `run` this is, or all, as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder for the picture and the page")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)
    names = programs() if run is None else [Path(run.__code__.co_filename).stem]
    for name in names:
        tg.manual_seed(0)
        start = time.perf_counter()
        print(name)
        save(name, (run or importlib.import_module(name).run)(), args.out)
        print(f"{'seconds':>36}  {time.perf_counter() - start:.1f}")


if __name__ == "__main__":
    main()
