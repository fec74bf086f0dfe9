"""Checkpoints that ranks write together: read under other numbers of ranks, and whole when a rank is killed."""

from __future__ import annotations

import pytest

import tracegrad as tg
from tracegrad.errors import ArgumentError, ShapeError

WRITE = """
    Shard, save = dist.checkpoint.Shard, dist.checkpoint.save
    net = nn.Linear(3, 2)
    with tg.no_grad():
        net.weight.copy_(tg.arange(6.0).reshape(2, 3) + {0})
    rows = tg.from_numpy(np.array_split(np.arange(30.0).reshape(10, 3), size)[rank]) + {0}
    columns = tg.from_numpy(np.ascontiguousarray(np.array_split(np.arange(14).reshape(2, 7), size, 1)[rank])) + {0}
    state = {{"net": net.state_dict(), "rows": Shard(rows), "columns": Shard(columns, 1), "epoch": {0},
             "half": tg.ones(2, dtype=tg.bfloat16), "more": [tg.tensor({0}.0), "text"]}}
    save(state, {1!r})
"""
READ = """
    Shard = dist.checkpoint.Shard
    net = nn.Linear(3, 2)
    rows = [a.shape for a in np.array_split(np.zeros((10, 3)), size)][rank]
    columns = [a.shape for a in np.array_split(np.zeros((2, 7)), size, 1)][rank]
    state = {{"net": net.state_dict(), "rows": Shard(tg.zeros(rows, dtype=tg.float64)),
             "columns": Shard(tg.zeros(columns, dtype=tg.int64), 1), "epoch": 0,
             "half": tg.zeros(2, dtype=tg.bfloat16), "more": [tg.tensor(0.0), ""]}}
    dist.checkpoint.load(state, {1!r})
    same(net.weight, np.arange(6).reshape(2, 3) + {0})
    same(state["rows"].tensor, np.array_split(np.arange(30).reshape(10, 3), size)[rank] + {0})
    same(state["columns"].tensor, np.array_split(np.arange(14).reshape(2, 7), size, 1)[rank] + {0})
    assert state["epoch"] == {0} and state["half"].tolist() == [1, 1] and state["more"][0].item() == {0} and state["more"][1] == "text"
    whole = {{"rows": tg.zeros(10, 3, dtype=tg.float64)}}                # a Shard, read as one tensor
    dist.checkpoint.load(whole, {1!r})
    same(whole["rows"], np.arange(30).reshape(10, 3) + {0})
"""


@pytest.mark.long
@pytest.mark.parametrize(("writers", "readers"), [(1, 3), (3, 2), (2, 1)])
def test_read_by_another_number_of_ranks(ranks, tmp_path, writers, readers):
    ranks(writers, WRITE.format(4, str(tmp_path)))
    ranks(readers, READ.format(4, str(tmp_path)))
    assert len(list(tmp_path.glob("*.shard"))) == writers


@pytest.mark.long
@pytest.mark.parametrize("when", ["os.fsync", "json.dumps", "os.replace"])
def test_a_rank_that_is_killed_leaves_the_last_whole_checkpoint(ranks, tmp_path, when):
    """While a rank writes its part, before the index is written, before it is in its place: the others end, and the old one is read."""
    ranks(2, WRITE.format(4, str(tmp_path)))
    kill = f"""
    import json
    if rank == 0:
        {when} = lambda *args, **more: os.kill(os.getpid(), 9)
    """
    ranks(2, kill + WRITE.format(5, str(tmp_path)), code=1)
    ranks(3, READ.format(4, str(tmp_path)))
    ranks(2, WRITE.format(6, str(tmp_path)))
    ranks(1, READ.format(6, str(tmp_path)))
    assert len(list(tmp_path.glob("*.shard"))) == 2             # those of the save that was killed are gone, too


@pytest.mark.long
def test_a_rank_that_cannot_write_is_an_error_on_all(ranks, tmp_path):
    told = ranks(2, f"""
        state = {{"a": tg.ones(3), "b": object() if rank == 1 else 1}}
        print(raises(tg.errors.DistributedError, lambda: dist.checkpoint.save(state, {str(tmp_path)!r})))
    """)
    assert told.count("save: rank 1 could not write its part: ArgumentError: save: b is a object; a state is dicts") == 2
    assert not (tmp_path / "index.json").exists()


def test_errors(tmp_path, monkeypatch):
    """One rank, without MPI."""
    monkeypatch.setattr(tg.distributed.world.importlib.util, "find_spec", lambda *_: None)
    tg.distributed.init_process_group()
    try:
        with pytest.raises(ArgumentError, match="load: there is no whole checkpoint in"):
            tg.distributed.checkpoint.load({"a": tg.ones(2)}, tmp_path)
        tg.distributed.checkpoint.save({"a": tg.ones(2), "n": 3}, tmp_path)
        with pytest.raises(ArgumentError, match=r"load: the checkpoint has no 'b'; it has a, n"):
            tg.distributed.checkpoint.load({"b": tg.ones(2)}, tmp_path)
        with pytest.raises(ShapeError, match=r"load: 'a' has shape \(2,\) in the checkpoint and \(3,\) here"):
            tg.distributed.checkpoint.load({"a": tg.ones(3)}, tmp_path)
        with pytest.raises(ShapeError, match="Shard: a tensor of shape"):
            tg.distributed.checkpoint.Shard(tg.ones(2), 1)
    finally:
        tg.distributed.destroy_process_group()
