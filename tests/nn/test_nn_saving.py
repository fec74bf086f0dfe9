"""tg.save and tg.load: nested state, checkpoints of torch without torch, and what is refused."""

import io
import math
import os
import pickle
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("on_numpy")


def again(value):
    file = io.BytesIO()
    tg.save(value, file)
    file.seek(0)
    return tg.load(file)


def test_nested_state():
    shared = tg.arange(33.0)
    state = {
        "epoch": 3, 7: "seven", (1, "a"): None, "big": 2**70, "losses": [0.1, math.inf, -0.0, 1.0], "pair": (True, b"\x00\xff"),
        "names": {"a", "b"}, "ordered": OrderedDict([("z", 1), ("a", 2)]), "shared": [shared, shared], "complex": 1.5 - 2j,
        "array": np.arange(6, dtype=np.int16).reshape(2, 3), "scalar": np.float32(0.1), "empty": [tg.zeros(0, 3), {}, [], ()],
        "kinds": [tg.tensor([1, 2], dtype=d) for d in (tg.int8, tg.int64, tg.uint8, tg.bool_, tg.float64, tg.float16, tg.bfloat16)],
        "parameter": nn.Parameter(tg.ones(2)), "leaf": tg.ones(3, requires_grad=True), "number": tg.tensor(2.5),
    }
    back = again(state)
    assert list(back) == list(state)
    for key in (7, "epoch", (1, "a"), "big", "losses", "pair", "names", "ordered", "complex"):
        assert back[key] == state[key]
        assert type(back[key]) is type(state[key])
    assert math.copysign(1, back["losses"][2]) == -1
    assert isinstance(back["losses"][3], float)
    assert math.isnan(again([math.nan])[0])
    assert back["shared"][0] is back["shared"][1]
    np.testing.assert_array_equal(back["shared"][0].numpy(), np.arange(33.0))
    assert back["array"].dtype == np.int16
    assert (back["array"] == state["array"]).all()
    back["array"][0, 0] = 5                                     # an array of its own
    assert type(back["scalar"]) is np.float32
    assert back["empty"][0].shape == (0, 3)
    for a, b in zip(back["kinds"], state["kinds"], strict=True):
        assert a.dtype == b.dtype
        assert a.tolist() == b.tolist()
    assert isinstance(back["parameter"], nn.Parameter)
    assert back["leaf"].requires_grad
    assert not isinstance(back["leaf"], nn.Parameter)
    assert back["number"].shape == ()


def test_structures_of_any_length():
    """The first bytes of a file are the length of its header: they may look like those of other formats."""
    for n in range(0, 700, 8):
        assert again(["x" * n])[0] == "x" * n
    n = 0x4B50 - 200                                            # around where the length reads "PK"
    for k in range(0, 400, 8):
        assert again(["x" * (n + k)])[0] == "x" * (n + k)


def test_training_goes_on_from_a_checkpoint(tmp_path):
    x = tg.randn(16, 3)
    runs = []
    for broken in (False, True):
        tg.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
        opt = optim.Adam(model.parameters(), lr=0.1)
        schedule = optim.lr_scheduler.ExponentialLR(opt, 0.9)

        def train(steps, model, opt, schedule):
            for _ in range(steps):
                opt.zero_grad()
                (model(x) ** 2).mean().backward()
                opt.step()
                schedule.step()

        train(3, model, opt, schedule)
        if broken:
            parts = {"model": model, "opt": opt, "schedule": schedule}
            tg.save({name: part.state_dict() for name, part in parts.items()}, tmp_path / "state.tg")
            tg.manual_seed(5)
            model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
            opt = optim.Adam(model.parameters(), lr=0.7)
            schedule = optim.lr_scheduler.ExponentialLR(opt, 0.9)
            loaded = tg.load(tmp_path / "state.tg")
            model.load_state_dict(loaded["model"])
            opt.load_state_dict(loaded["opt"])
            schedule.load_state_dict(loaded["schedule"])
        train(3, model, opt, schedule)
        runs.append([p.detach().numpy() for p in model.parameters()] + [np.array(opt.lr)])
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("value", "match"), [
    (nn.Linear(1, 1), r"save: obj is a tracegrad\.nn\.modules\.linear\.Linear; .* state_dict"),
    ({"a": [len]}, r"obj\['a'\]\[0\] is a builtins\."),
    ({object(): 1}, "a key of type object"), ([np.array(["x"])], r"obj\[0\] is a numpy ndarray of <U1"), (optim.SGD, "builtins.type"),
])
def test_what_is_not_data_is_refused_and_no_file_is_left(value, match, tmp_path):
    with pytest.raises(ArgumentError, match=match):
        tg.save(value, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_plain_safetensors_files(tmp_path):
    nn.save_file({"w": tg.ones(2, 3)}, tmp_path / "w.safetensors")
    assert tg.load(tmp_path / "w.safetensors")["w"].shape == (2, 3)


@pytest.mark.parametrize(("data", "match"), [
    (b"", "neither a file of tg.save"), (b"hello world, this is text", "neither"), (pickle.dumps({"a": 1}, 2), "is a pickle"),
    (b"PK\x03\x04 no archive", "not a whole checkpoint"), (struct.pack("<Q", 2) + b"{}" + b"rest", "neither"),
])
def test_other_files(data, match):
    with pytest.raises(ArgumentError, match=f"load: .*{match}"):
        tg.load(io.BytesIO(data))
    with pytest.raises(ArgumentError, match="weights_only"):
        tg.load(io.BytesIO(data), weights_only=False)


# ------------------------------------------------------------------------------------------------------- torch's checkpoints


class Global:
    """A name in a pickle, which may be called with arguments."""

    def __init__(self, module, name, args=None):
        self.module, self.name, self.args = module, name, args


class Storage:
    def __init__(self, kind, key, count):
        self.id = ("storage", Global("torch", kind), key, "cpu", count)


def pickled(value):
    """A pickle like torch's, protocol 2, written by hand as far as names and storages go."""
    def dump(v):
        if isinstance(v, Storage):
            return dump(v.id) + b"Q"
        if isinstance(v, Global):
            name = b"c" + f"{v.module}\n{v.name}\n".encode()
            return name if v.args is None else name + dump(v.args) + b"R"
        if isinstance(v, dict):
            return b"}(" + b"".join(dump(k) + dump(x) for k, x in v.items()) + b"u"
        if isinstance(v, tuple):
            return b"(" + b"".join(map(dump, v)) + b"t"
        if isinstance(v, list):
            return b"](" + b"".join(map(dump, v)) + b"e"
        return pickle.dumps(v, 2)[2:-1]
    return b"\x80\x02" + dump(value) + b"."


def checkpoint(value, storages, order="little", root="archive"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{root}/data.pkl", pickled(value))
        archive.writestr(f"{root}/byteorder", order)
        for key, array in storages.items():
            archive.writestr(f"{root}/data/{key}", array.tobytes())
    file.seek(0)
    return file


def tensor(kind, key, count, offset, size, stride, grad=False):
    return Global("torch._utils", "_rebuild_tensor_v2",
                  (Storage(kind, key, count), offset, size, stride, grad, Global("collections", "OrderedDict", ())))


def test_checkpoints_of_torch():
    floats, longs = np.arange(13, dtype=np.float32), np.array([5, -7, 9])
    value = {"weight": tensor("FloatStorage", "0", 13, 1, (3, 4), (4, 1)),
             "transposed": tensor("FloatStorage", "0", 13, 1, (4, 3), (1, 4)),
             "expanded": tensor("LongStorage", "1", 3, 2, (2, 2), (0, 0)), "leaf": tensor("FloatStorage", "0", 13, 12, (), (), True),
             "p": Global("torch._utils", "_rebuild_parameter", (tensor("FloatStorage", "0", 13, 0, (2,), (1,)), True, None)),
             "empty": tensor("FloatStorage", "0", 13, 0, (0, 4), (4, 1)), "lr": 0.1, "names": ["a", None, True, (1, 2)],
             "size": Global("torch", "Size", ((2, 3),)), "set": Global("__builtin__", "set", ([1, 2],)),
             "dtype": Global("torch", "float32")}
    found = tg.load(checkpoint(value, {"0": floats, "1": longs}))
    np.testing.assert_array_equal(found["weight"].numpy(), floats[1:].reshape(3, 4))
    np.testing.assert_array_equal(found["transposed"].numpy(), floats[1:].reshape(3, 4).T)
    assert found["expanded"].tolist() == [[9, 9], [9, 9]]
    assert found["expanded"].dtype == tg.int64
    assert found["leaf"].requires_grad
    assert found["leaf"].item() == 12.0
    assert isinstance(found["p"], nn.Parameter)
    assert found["empty"].shape == (0, 4)
    assert (found["lr"], found["names"], found["size"], found["set"]) == (0.1, ["a", None, True, (1, 2)], (2, 3), {1, 2})
    assert found["dtype"] == tg.float32
    swapped = tg.load(checkpoint(value, {"0": floats.astype(">f4"), "1": longs.astype(">i8")}, order="big"))
    np.testing.assert_array_equal(swapped["weight"].numpy(), floats[1:].reshape(3, 4))


@pytest.mark.parametrize(("value", "match"), [
    (Global("os", "system", ("echo caught > caught",)), r"holds os\.system, which is not loaded"),
    (Global("builtins", "eval", ("1+1",)), r"holds builtins\.eval"),
    (Global("torch.nn.modules.linear", "Linear"), r"torch\.nn\.modules\.linear\.Linear"),
    (Global("torch._utils", "_rebuild_device_tensor_from_numpy", ()), "_rebuild_device_tensor"),
    (Global("numpy.core.multiarray", "scalar"), r"numpy\.core\.multiarray\.scalar"), (Global("posix", "system", ("true",)), "posix"),
    (tensor("QInt8Storage", "0", 4, 0, (4,), (1,)), r"QInt8Storage.*no such dtype.*x\.float\(\)"),
    (tensor("FloatStorage", "0", 13, 2, (3, 4), (4, 1)), "beyond its storage"),
    (tensor("FloatStorage", "0", 99, 0, (3,), (1,)), "damaged"),
    (tensor("FloatStorage", "0", 13, -1, (3,), (1,)), "beyond its storage"),
    (tensor("FloatStorage", "7", 13, 0, (3,), (1,)), "not a whole"),
])
def test_what_a_checkpoint_may_not_hold(value, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=f"load: .*{match}"):
        tg.load(checkpoint({"x": value}, {"0": np.zeros(13, np.float32)}))
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_what_torch_itself_writes(tmp_path):
    torch = pytest.importorskip("torch", reason="torch, which writes the file, is not installed")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 5))
    opt = torch.optim.Adam(model.parameters(), amsgrad=True)
    model[1](model[0](torch.randn(6, 3))).sum().backward()
    opt.step()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": 3, "set": {1},
                "half": torch.ones(3).half()}, tmp_path / "c.pt")
    found = tg.load(tmp_path / "c.pt", map_location=tg.device())
    ours = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LSTM(4, 5))
    assert ours.load_state_dict(found["model"]) == ([], [])
    for name, t in model.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name].numpy(), t.numpy())
    mine = optim.Adam(ours.parameters(), amsgrad=True)
    mine.load_state_dict(found["opt"])
    np.testing.assert_array_equal(mine.state[ours[0].weight]["exp_avg"].numpy(), opt.state[model[0].weight]["exp_avg"].numpy())
    assert found["half"].dtype == tg.float16
    weights = torch.randn(7, 5).bfloat16()
    torch.save({"w": weights, "t": weights.T, "dtype": torch.bfloat16}, tmp_path / "b.pt")
    found = tg.load(tmp_path / "b.pt", map_location=tg.device())
    assert found["dtype"] == found["w"].dtype == tg.bfloat16
    words = weights.view(torch.int16).numpy()
    np.testing.assert_array_equal(found["w"].numpy().view(np.int16), words)
    np.testing.assert_array_equal(found["t"].numpy().view(np.int16), words.T)
    torch.save(model, tmp_path / "whole.pt")
    with pytest.raises(ArgumentError, match="Sequential, which is not loaded"):
        tg.load(tmp_path / "whole.pt")
