"""The model of benchmarks/scale against closed forms: without MPI, and nothing is timed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest
from click.testing import CliRunner

import tracegrad as tg
from benchmarks.frameworks import namespace
from benchmarks.gpu_rows import ROWS
from benchmarks.scale import collectives
from benchmarks.scale.__main__ import WANTED, main, today
from benchmarks.scale.collectives import ALL_REDUCE, halo, halo_bytes, seconds
from benchmarks.scale.events import Clock, Worker
from benchmarks.scale.network import FatTree, Link, Torus, cube
from benchmarks.scale.programs import GPT2, PROGRAMS, Grid, Kernel, Recorded, gpt2, planned, resnet, resnet50, stencil
from benchmarks.scale.replay import Device, replay
from tests.helpers.ranks import ENVIRONMENT, ROOT, why_not
from tracegrad.distributed.exchange import factors

ALPHA, BETA = 1e-6, 1e-9
LINK = Link(ALPHA, 0.0, 1 / BETA)
N = 1e6
DEVICE = Device(flops=1.0, bandwidth=1.0, launch=0.0)              # a kernel of n bytes takes n seconds


def crossbar(ranks):
    """A network without contention: all ranks at one switch."""
    return FatTree(ranks, LINK, radix=128)


@pytest.mark.parametrize("network", [crossbar(8), crossbar(48), FatTree(100, LINK), Torus(64, LINK), Torus(12, LINK, (3, 4))],
                         ids=lambda n: f"{n.name} {n.ranks}")
def test_a_ring_takes_what_its_formula_says(network):
    p, adds = network.ranks, 1e10
    expected = 2 * (p - 1) * (ALPHA + N / p * BETA) + (p - 1) * N / p / adds
    assert seconds(network, collectives.ring(network, N), adds) == pytest.approx(expected)


@pytest.mark.parametrize("p", [1, 2, 3, 8, 13, 32])
def test_trees_take_what_their_formula_says(p):
    network = crossbar(p)
    once = ceil(log2(p)) * (ALPHA + N * BETA)
    assert seconds(network, collectives.broadcast(network, N)) == pytest.approx(once)
    assert seconds(network, collectives.tree(network, N)) == pytest.approx(2 * once)


@pytest.mark.parametrize("p", [2, 8, 12, 35, 64])
def test_levels_and_the_grid_take_what_their_formulas_say(p):
    network = crossbar(p)
    moved = 2 * (p - 1) / p * N * BETA
    assert seconds(network, collectives.levels(network, N)) == pytest.approx(2 * sum(f - 1 for f in factors(p)) * ALPHA + moved)
    assert seconds(Torus(p, LINK), collectives.grid(network, N)) == pytest.approx(2 * sum(n - 1 for n in cube(p)) * ALPHA + moved)


def test_a_message_alone_takes_latency_hops_and_bytes():
    link = Link(ALPHA, 1e-7, 1 / BETA)
    tree, torus = FatTree(1000, link), Torus(64, link)
    assert tree.seconds(np.array([0]), np.array([0]), N)[0] == 0
    for network, dst, switches in ((tree, 1, 1), (tree, 18, 3), (tree, 999, 5), (torus, 1, 2), (torus, 21, 4), (torus, 3, 2)):
        expected = ALPHA + switches * 1e-7 + N * BETA
        assert network.seconds(np.array([0]), np.array([dst]), N)[0] == pytest.approx(expected), (network.name, dst)


def test_messages_share_a_link_and_leave_it_to_those_that_last_longer():
    line = Torus(8, LINK, (8,))
    assert line.seconds(np.array([0, 1]), np.array([2, 3]), N) == pytest.approx([ALPHA + 2 * N * BETA] * 2)         # both go 1 -> 2
    longer = line.seconds(np.array([0, 1]), np.array([2, 3]), np.array([N, 2 * N]))
    assert longer == pytest.approx([ALPHA + 2 * N * BETA, ALPHA + 3 * N * BETA])
    assert line.seconds(np.array([0, 4]), np.array([2, 6]), N) == pytest.approx([ALPHA + N * BETA] * 2)             # nothing shared
    here, there = np.arange(18), np.arange(18, 36)
    for share in (1, 2, 3):
        assert FatTree(36, LINK, oversubscription=share).seconds(here, there, N) == pytest.approx([ALPHA + share * N * BETA] * 18)


def test_no_link_carries_more_than_it_can_and_all_bytes_arrive():
    rng = np.random.default_rng(0)
    for network in (FatTree(60, LINK, oversubscription=2), Torus(60, LINK)):
        src, dst, nbytes = rng.integers(0, 60, 200), rng.integers(0, 60, 200), rng.uniform(0, N, 200)
        paths, active = network.routes(src, dst), src != dst
        rates = network._rates(paths, active)
        load = np.bincount(paths[paths >= 0], np.repeat(rates, (paths >= 0).sum(1)), network.links)
        assert load.max() <= LINK.bandwidth * (1 + 1e-9)
        assert (rates[active] > 0).all()
        for rate, path in zip(rates[active], paths[active], strict=True):       # each has a full link, on which nothing is faster
            links = path[path >= 0]
            assert any(load[n] > LINK.bandwidth * (1 - 1e-6) and rate >= rates[(paths == n).any(1)].max() * (1 - 1e-6) for n in links)
        done = network.seconds(src, dst, nbytes)
        assert (done[active] >= ALPHA + nbytes[active] * BETA * (1 - 1e-9)).all()
        assert (done[~active] == 0).all()


@pytest.mark.parametrize("name", ALL_REDUCE)
@pytest.mark.parametrize("p", [2, 8, 12, 16])
def test_an_all_reduce_sends_what_it_receives_and_every_rank_hears_of_all(name, p):
    sent, received, added, known = np.zeros(p), np.zeros(p), 0.0, [{i} for i in range(p)]
    for r in ALL_REDUCE[name](crossbar(p), N):
        np.add.at(sent, r.src, r.nbytes * r.times)
        np.add.at(received, r.dst, r.nbytes * r.times)
        added += r.added * r.times
        for _ in range(round(r.times)):
            before = [set(k) for k in known]
            for a, b in zip(r.src, r.dst, strict=True):
                known[b] |= before[a]
    assert sent.sum() == pytest.approx(received.sum())
    assert known == [set(range(p))] * p
    if name != "tree":                                             # these send no more than has to be sent
        assert sent == pytest.approx(received)
        assert sent == pytest.approx(np.full(p, 2 * (p - 1) / p * N))
        assert added == pytest.approx((p - 1) / p * N)


def test_a_halo_goes_to_both_neighbours_along_each_dimension():
    """A rank's way into the network is full: it sends what 102³ points have more than 100³."""
    assert seconds(crossbar(27), halo((3, 3, 3), 100, 4)) == pytest.approx(3 * ALPHA + 4 * (102**3 - 100**3) * BETA)
    assert halo_bytes((3, 3, 3), 100, 4) == 4 * (102**3 - 100**3)
    rounds = list(halo((2, 3), 10))
    assert [sorted(zip(r.src.tolist(), r.dst.tolist(), strict=True))[:2] for r in rounds] == [[(0, 3), (0, 3)], [(0, 1), (0, 2)]]
    assert [r.nbytes for r in rounds] == pytest.approx([10, 12])
    assert list(halo((1, 1), 10)) == []
    assert halo_bytes((1, 4), 10) == 20


def test_jobs_run_one_after_the_other_and_time_does_not_go_back():
    clock, seen = Clock(), []
    one, other = Worker(clock), Worker(clock)
    one.submit(2.0, lambda: (seen.append(("a", clock.now)), other.submit(5.0, lambda: seen.append(("b", clock.now)))))
    one.submit(1.0, lambda: seen.append(("c", clock.now)))
    assert clock.run() == 7.0
    assert seen == [("a", 2.0), ("c", 3.0), ("b", 7.0)]
    assert (one.busy, other.busy) == (3.0, 5.0)
    with pytest.raises(ValueError, match="is over"):
        clock.at(1.0, lambda: None)


@pytest.mark.parametrize("overlap", [False, True])
def test_without_messages_weak_scaling_is_one(overlap):
    silent = Recorded((Kernel(1.0, 0.0), Kernel(2.0, 0.0)))
    one = Recorded((Kernel(1.0, 0.0, (4,)),), 4)
    for ranks in (1, 8, 512):
        step = replay(silent, Torus(ranks, LINK), DEVICE, overlap)
        assert (step.seconds, step.efficiency, step.network, step.reason) == (3.0, 1.0, 0.0, "")
    assert replay(one, Torus(1, LINK), DEVICE, overlap).efficiency == 1.0
    assert replay(Recorded((Kernel(3.0, 0.0),), 0, Grid((), (), (), 100)), Torus(1, LINK), DEVICE, overlap).efficiency == 1.0


def test_buckets_go_while_kernels_run():
    """Two buckets of 1 s each: the first hides behind the second kernel, the last waits for it."""
    sent = int(8 / 14 / BETA)                                      # 2 (p - 1) / p of it take a second among 8 ranks
    program = Recorded(tuple(Kernel(t, 0.0, (sent,)) for t in (3.0, 5.0)))
    network = FatTree(8, Link(0.0, 0.0, 1 / BETA))
    device = Device(flops=1.0, bandwidth=1.0, launch=0.0, adds=float("inf"))
    beside = replay(program, network, device, True, "ring", 1)
    after = replay(program, network, device, False, "ring", 1)
    assert (beside.seconds, beside.after) == pytest.approx((9.0, 1.0), rel=1e-6)
    assert (after.seconds, after.after) == pytest.approx((10.0, 2.0), rel=1e-6)
    assert after.reason.endswith("all after backward")
    assert "came 0.0 ms before" in beside.reason
    staged = replay(program, network, Device(1.0, 1.0, 0.0, float("inf"), staged=2.0 * sent), False, "ring", 1)
    assert staged.after == pytest.approx(4.0, rel=1e-6)            # out and back: a second for each bucket
    staged = replay(program, network, Device(1.0, 1.0, 0.0, float("inf"), staged=sent), True, "ring", 1)
    assert (staged.after, staged.network) == pytest.approx((3.0, 4.0), rel=1e-6)       # a second out; a second back, behind the kernels


def test_the_inside_of_a_grid_is_computed_while_its_halo_comes():
    """4 s inside, 1 s before and 2 s for the edges; a side of 1e9 points of a byte is a second, both of them at once two."""
    grid = Recorded((Kernel(5.0, 0.0),), 0, Grid((Kernel(1.0, 0.0),), (Kernel(4.0, 0.0),), (Kernel(2.0, 0.0),), 10, 1e8))
    network = Torus(27, Link(0.0, 0.0, 1 / BETA), (27,))
    assert cube(27) == (3, 3, 3)
    messages = halo_bytes((3, 3, 3), 10, 1e8) * BETA
    assert messages > 4
    sent = seconds(network, halo((3, 3, 3), 10, 1e8))
    beside, after = (replay(grid, network, DEVICE, overlap) for overlap in (True, False))
    assert (beside.seconds, after.seconds) == pytest.approx((1 + max(4.0, sent) + 2, 1 + sent + 4 + 2))
    assert beside.after == pytest.approx(sent - 4)
    staged = replay(grid, network, replace(DEVICE, staged=1e9), True)
    assert staged.seconds == pytest.approx(1 + sent + messages + messages + 2)          # out, and back before the edges


def test_the_models_are_those_of_their_papers():
    with tg.device("meta"):
        assert sum(p.numel() for p in GPT2().parameters()) == 124_439_808
        assert sum(p.numel() for p in resnet().parameters()) == 25_557_032


def test_a_recorded_plan_has_every_gradient_once_in_the_order_of_backward():
    for program in (gpt2(2, 16, layers=2, width=48, heads=4, words=100), resnet50(2, 32, blocks=(1, 1), width=8, classes=10)):
        assert sum(n for k in program.kernels for n in k.gradients) == program.parameters > 0
        assert program.kernels[0].gradients == ()
        assert all(k.bytes > 0 for k in program.kernels)
    words = 4 * 48 * 100
    at = {n: i for i, k in enumerate(gpt2(2, 16, layers=2, width=48, heads=4, words=100).kernels) for n in k.gradients}
    assert at[words] > at[4 * 48 * 16] > at[4 * 48 * 192]          # the embeddings after the layers


def test_a_stencil_moves_three_arrays_and_computes_its_inside_first():
    program = stencil(64)
    moved = 4 * 3 * 64**3                                           # (a value that is read at seven places counts as one)
    assert sum(k.bytes for k in program.kernels) == pytest.approx(moved, rel=0.2)
    grid = program.grid
    assert len(grid.inside) == 1
    assert grid.inside[0].bytes == pytest.approx(moved, rel=0.2)
    assert sum(k.bytes for k in (*grid.before, *grid.edges)) > 0
    assert len(grid.edges) <= 6


def test_rings_go_through_a_torus_from_neighbour_to_neighbour():
    for dims in ((4, 4, 4), (2, 3, 5), (7,)):
        torus = Torus(int(np.prod(dims)), LINK, dims)
        order = torus.order()
        assert sorted(order) == list(range(torus.ranks))
        assert {int((path >= 0).sum()) for path in torus.routes(order[:-1], order[1:])} == {3}         # in, one link, out


def test_a_fat_tree_sends_all_that_has_one_destination_down_the_same_links():
    paths = FatTree(1000, LINK).routes(np.array([0, 19, 500]), np.array([999] * 3))
    assert (paths[:, 3:] == paths[0, 3:]).all()
    assert len({*paths[:, 0]}) == 3
    spread = FatTree(1000, LINK).routes(np.zeros(18, int), np.arange(982, 1000))
    assert len({*spread[:, 1]}) == 18                               # and destinations have links of their own


def test_the_modelled_device_takes_no_longer_than_the_measured_one():
    """benchmarks/RESULTS-gpu.md, 2026-11-28: so a network has less time than in truth, not more."""
    row = next(row for row in ROWS if row.name == "GPT-2 block, gradients")
    args = [tg.tensor(a, device="numpy") for a in row.arguments(np.random.default_rng(0), 6)]
    steps = planned(lambda *args: row.fn(namespace("tracegrad"), *args), *args).each()
    milliseconds = 1e3 * sum(times * Device().seconds(Kernel(step.bytes, step.flops)) for step, times in steps)
    assert 0.7 * 15.457 < milliseconds < 15.457


def test_networks_say_what_they_cannot_be():
    for make, message in ((lambda: FatTree(12000), "joins up to 11664 ranks, got 12000"), (lambda: FatTree(4, oversubscription=5), "got 5"),
                          (lambda: Torus(8, dims=(3, 3)), "are 9 ranks, not 8"), (lambda: Torus(0), "1 or more, got 0")):
        with pytest.raises(ValueError, match=message):
            make()
    assert [cube(n) for n in (8, 12, 1024, 7)] == [(2, 2, 2), (2, 2, 3), (8, 8, 16), (1, 1, 7)]


def test_the_command_prints_a_row_for_each_network():
    done = CliRunner().invoke(main, ["model", "--program", "stencil", "--side", "32", "--ranks", "8"], catch_exceptions=False)
    rows = done.output.splitlines()
    assert [row[:20].split() for row in rows[1:]] == [["stencil", "fat", "tree"], ["stencil", "torus"]]
    assert "(wanted: 90%)" in rows[1]


@pytest.mark.long
def test_the_documents_efficiencies_are_the_models():
    """docs/distributed.md's table, to two points: kernels get faster, and then a network is slower beside them."""
    text = (ROOT / "docs" / "distributed.md").read_text()
    names = {"GPT-2 small": "gpt2", "ResNet-50": "resnet50", "3-d wave": "stencil"}
    rows = [cells for cells in (line.strip("| ").split(" | ") for line in text.splitlines()) if cells[0] in names and len(cells) == 5]
    assert [row[0] for row in rows] == list(names)
    for title, _, *columns, verdict in rows:
        found = []
        for make, column in zip((FatTree, Torus), columns, strict=True):
            steps = [replay(PROGRAMS[names[title]](), make(ranks)) for ranks in (8, 1024, 4096)]
            shown = [float(x) for x in column.replace("%", "").split(", ")]
            assert [100 * step.efficiency for step in steps] == pytest.approx(shown, abs=2), title
            found.append(steps[1].efficiency >= WANTED)
        assert verdict == ("reached" if all(found) else "missed"), title
    now = [cells for cells in (line.strip("| ").split(" | ") for line in text.splitlines()) if cells[0] in names and len(cells) == 4]
    assert [row[0] for row in now] == list(names)
    for title, tree, *_ in now:                                    # as the code is
        program = PROGRAMS[names[title]]()
        steps = [replay(program, FatTree(ranks), today(Device()), True, "levels") for ranks in (8, 1024, 4096)]
        shown = [float(x) for x in tree.replace("%", "").split(", ")]
        assert [100 * step.efficiency for step in steps] == pytest.approx(shown, abs=2), title


@pytest.mark.long
def test_what_can_be_measured_here_is_printed():
    if why_not():
        pytest.skip(f"several ranks: {why_not()}")
    command = [sys.executable, "-m", "benchmarks.scale", "measure", "--repeats", "1", "--largest", "10"]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    for text in ("one rank, untraced: DistributedDataParallel adds", "one rank, traced:", "GB/s of float32", "2 ranks, microseconds",
                 "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "isend and irecv", "hides behind the other",
                 "with 8 messages of 1 MiB: ", "with 8 messages of 10 ms that need no core: "):
        assert text in done.stdout, done.stdout
