"""tg.load of files that nobody's program wrote: each is refused with one error, in time and memory that the file's size bounds."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import random
import struct
import tracemalloc
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.nn.test_nn_saving import Global, Storage, checkpoint, pickled, tensor
from tracegrad import nn
from tracegrad.errors import ArgumentError
from tracegrad.nn import pickles

pytestmark = pytest.mark.usefixtures("on_numpy")
FLOATS = {"0": np.arange(13, dtype=np.float32)}
PROTO = b"\x80\x02"


def archive(data: bytes, storages: Any = FLOATS, order: bytes = b"little", method: int = zipfile.ZIP_STORED) -> bytes:
    """A checkpoint with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as into:
        into.writestr("a/data.pkl", data)
        into.writestr("a/byteorder", order)
        for key, array in storages.items():
            into.writestr(f"a/data/{key}", array.tobytes())
    return file.getvalue()


def held(value: Any, **more: Any) -> bytes:
    return archive(pickled({"x": value}), **more)


def doubled(start: bytes, twice: bytes, times: int) -> bytes:
    """Each value is twice the one before."""
    return PROTO + start + b"".join(b"q" + bytes([k]) + twice.replace(b"?", b"h" + bytes([k])) for k in range(times)) + b"."


def with_bytes(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


def moved(data: bytes, field: int, size: int, value: int) -> bytes:
    """The archive with a field of the last entry of its directory changed."""
    at = data.rindex(b"PK\x01\x02") + field
    return data[:at] + value.to_bytes(size, "little") + data[at + size:]


def safe(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def structured(structure: Any, **arrays: Any) -> bytes:
    text = structure if isinstance(structure, str) else json.dumps(structure)
    header: dict[str, Any] = {"__metadata__": {"tracegrad.structure": text}}
    header |= {k: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for k in arrays}
    return safe(header, bytes(8 * len(arrays)))


# Tuples, complex numbers and whole numbers of one hash: a dict of them takes the square of their number.
ALIKE = {"tuples": list(itertools.product((-1, -2), repeat=8)), "complex": [complex(2**44 - 1000003 * k, k) for k in range(1, 200)]}


def in_batches(keys: list[Any]) -> bytes:
    """A dict that is filled by many instructions, a few keys each."""
    parts = [pickle.dumps(dict.fromkeys(keys[k:k + 9]), 2)[2:-1].removeprefix(b"}q\x00") for k in range(0, len(keys), 9)]
    return archive(PROTO + b"}" + b"".join(parts) + b".")


PLAIN = held(tensor("FloatStorage", "0", 13, 1, (3, 4), (4, 1)))
HOSTILE: dict[str, tuple[bytes, str]] = {
    # time
    **{f"{what} of one hash {where}": (made(keys), "of one hash") for what, keys in ALIKE.items() for where, made in {
        "in a dict": lambda k: archive(pickle.dumps(dict.fromkeys(k), 2)), "in parts of a dict": in_batches,
        "in a set": lambda k: archive(pickle.dumps(set(k), 4)), "in a frozen set": lambda k: archive(pickle.dumps(frozenset(k), 4)),
        "in an ordered one": lambda k: archive(pickle.dumps(OrderedDict.fromkeys(k), 2))}.items()},
    "numbers of one hash in a structure": (structured({"dict": [[k * (2**61 - 1), 0] for k in range(1, 200)]}), "of one hash"),
    "complex numbers of one hash in a structure": (structured({"set": [{"complex": [2**44 - 1000003 * k, k]} for k in range(1, 200)]}),
                                                   "of one hash"),
    # memory
    "tuples of tuples": (archive(doubled(b")", b"\x86?", 60).replace(b"h", b"h")), "damaged|not a whole|again and again"),
    "lists of lists": (archive(PROTO + b"]q\x00" + b"".join(
        b"0](h" + bytes([k]) + b"h" + bytes([k]) + b"eq" + bytes([k + 1]) for k in range(60)) + b"."),
                       "again and again.*save each once"),
    "tuples twice": (archive(PROTO + b")q\x00" + b"".join(
        b"h" + bytes([k]) + b"h" + bytes([k]) + b"\x86q" + bytes([k + 1]) for k in range(60)) + b"."),
                     "again and again|damaged"),
    "doubled by the stack": (archive(PROTO + b")" + b"2\x86" * 60 + b"."), "again and again"),
    "a key of nested tuples": (archive(PROTO + b"}(" + b")" + b"2\x86" * 60 + b"K\x01u."), "nested tuples"),
    "a set of nested tuples": (archive(PROTO + b"\x8f(" + b")" + b"2\x86" * 60 + b"\x90."), "nested tuples"),
    "a storage that is nested": (archive(PROTO + b")" + b"2\x86" * 60 + b"Q."), "unknown kind of storage"),
    "a size that is nested": (archive(PROTO + b"ctorch\nSize\n" + b")" + b"2\x86" * 60 + b"\x85R."), "torch.Size"),
    "expanded": (held(tensor("FloatStorage", "0", 13, 0, (200_000, 200_000), (0, 0))), r"160000000000 bytes.*x\.contiguous"),
    "overlapping windows": (archive(pickled([tensor("ByteStorage", "0", 52, 0, (26, 26), (1, 1)),
                                             tensor("ByteStorage", "0", 52, 0, (2**30,), (0,))])),
                            r"x\.contiguous"),
    "one storage again and again": (archive(pickled([tensor("FloatStorage", "0", 10**5, 0, (10**5,), (1,))] * 300),
                                            {"0": np.zeros(10**5, np.float32)}), "times the file"),
    "a compressed pickle": (archive(pickled("x" * 10**7), method=zipfile.ZIP_DEFLATED), r"compressed.*zip -0"),
    "a bomb in the byte order": (archive(pickled(1), order=b"x" * 10**7, method=zipfile.ZIP_DEFLATED), "compressed"),
    "a long byte order": (archive(pickled(1), order=b"little" * 10**6), "byteorder"),
    "another byte order": (archive(pickled(1), order=b"middle"), "byte order b'middle'"),
    "a memo of billions": (archive(PROTO + b"]r\xff\xff\xff\x7f."), "numbers a value 2147483647"),
    "a memo that is not there": (archive(PROTO + b"j\xff\xff\xff\x7f."), "not a whole"),
    "text of gigabytes": (archive(PROTO + b"X\xff\xff\xff\x7f."), "2147483647 bytes are to follow"),
    "text of 2**63": (archive(PROTO + b"\x8d" + b"\xff" * 8 + b"."), "bytes are to follow"),
    "bytes of 2**63": (archive(PROTO + b"\x96" + b"\xff" * 8 + b"."), "bytes are to follow"),
    "a number of megabytes": (archive(PROTO + b"\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6 + b"."),
                              "whole number of 1000000 bytes"),
    "a number of negative length": (archive(PROTO + b"\x8b\xff\xff\xff\xff."), "whole number of 4294967295 bytes"),
    # depth
    "deep lists": (archive(PROTO + b"]" * 10**5 + b"a" * (10**5 - 1) + b"."), "nested more than 200 deep.*flat"),
    "deep tuples": (archive(PROTO + b")" + b"\x85" * 10**5 + b"."), "nested more than 200 deep"),
    "deep dicts": (archive(PROTO + b"}K\x00" * 10**4 + b"N" + b"s" * 10**4 + b"."), "nested more than 200 deep"),
    "a list of itself": (archive(PROTO + b"]q\x00h\x00a."), "holds itself"),
    "a dict of itself": (archive(PROTO + b"}q\x00K\x01h\x00s."), "holds itself"),
    "a tuple in its list": (archive(PROTO + b"]q\x00h\x00\x85a."), "holds itself"),
    "attributes of itself": (archive(PROTO + b"ccollections\nOrderedDict\n)Rq\x00}X\x01\x00\x00\x00ah\x00sb."), "holds itself"),
    # sizes
    "size 2**63": (held(tensor("FloatStorage", "0", 13, 0, (2**63,), (0,))), "times the file"),
    "size 2**70": (held(tensor("FloatStorage", "0", 13, 0, (2**70, 2**70), (0, 0))), "times the file"),
    "size of an empty one": (held(tensor("FloatStorage", "0", 13, 0, (0, 2**63), (1, 1))), "beyond its storage"),
    "stride 2**70": (held(tensor("FloatStorage", "0", 13, 0, (2,), (2**70,))), "beyond its storage"),
    "offset 2**63": (held(tensor("FloatStorage", "0", 13, 2**63, (1,), (1,))), "beyond its storage"),
    "negative": (held(tensor("FloatStorage", "0", 13, 0, (-1,), (1,))), "beyond its storage"),
    "negative stride": (held(tensor("FloatStorage", "0", 13, 12, (3,), (-1,))), "beyond its storage"),
    "a size that is a float": (held(tensor("FloatStorage", "0", 13, 0, (3.0,), (1,))), "whole numbers"),
    "a size that is a word": (held(tensor("FloatStorage", "0", 13, 0, ("3",), (1,))), "whole numbers"),
    "a hundred dimensions": (held(tensor("FloatStorage", "0", 13, 0, (1,) * 100, (1,) * 100)), "100 dimensions; the most are 64"),
    "sizes without strides": (held(tensor("FloatStorage", "0", 13, 0, (1, 1), (1,))), "whole numbers"),
    "count 2**70": (held(tensor("FloatStorage", "0", 2**70, 0, (3,), (1,))), "damaged"),
    "count -1": (held(tensor("FloatStorage", "0", -1, 0, (0,), (1,))), "damaged"),
    "count of words": (held(tensor("FloatStorage", "0", "13", 0, (0,), (1,))), "damaged"),
    "gradients of whole numbers": (held(tensor("LongStorage", "0", 3, 0, (3,), (1,), True)), "not a whole|grad"),
    "no storage": (held(Global("torch._utils", "_rebuild_tensor_v2", ([1, 2, 3], 0, (3,), (1,)))), "something else than a storage"),
    "a parameter of a list": (held(Global("torch._utils", "_rebuild_parameter", ([1], True, None))), "something else than a tensor"),
    "a key that leads out": (held(tensor("FloatStorage", "../../data.pkl", 1, 0, (1,), (1,))), "not a whole"),
    "a persistent id of text": (archive(PROTO + b"X\x01\x00\x00\x00aQ."), "unknown kind of storage"),
    "a storage's key that is a number": (held(Global("torch._utils", "_rebuild_tensor_v2",
                                                     (Storage("FloatStorage", 0, 13), 0, (1,), (1,)))), "unknown kind"),
    # instructions
    "a call of a number": (archive(PROTO + b"K\x01)R."), "calls a int"),
    "a call of a dtype": (archive(PROTO + b"ctorch\nfloat32\n)R."), "calls a"),
    "attributes of a set": (archive(PROTO + b"c__builtin__\nset\n)R}b."), "sets attributes of a set"),
    "attributes of a tensor": (held(tensor("FloatStorage", "0", 13, 0, (1,), (1,))).replace(b"}(", b"}(", 1)[:0]
                               + archive(pickled(tensor("FloatStorage", "0", 13, 0, (1,), (1,)))[:-1] + b"}b."),
                               "sets attributes of a Tensor"),
    "an object": (archive(PROTO + b"ccollections\nOrderedDict\n)\x81."), r"instruction b'\\x81'"),
    "an extension": (archive(PROTO + b"\x82\x01."), r"instruction b'\\x82'"),
    "text instructions": (archive(b"I1\n."), "instruction b'I'"),
    "protocol 9": (archive(b"\x80\x09N."), "protocol 9"),
    "items of a list": (archive(PROTO + b"]K\x01K\x02s."), "no dict"),
    "appended to a tuple": (archive(PROTO + b")K\x01a."), "no list"),
    "a list as a key": (archive(PROTO + b"}]K\x01s."), "a key of type list"),
    "keys without values": (archive(PROTO + b"}(K\x01u."), "no dict"),
    "large keys": (archive(PROTO + b"}\x8a\x0a" + b"\x7f" * 10 + b"K\x01s."), "numbers of 64 bits"),
    "two values": (archive(PROTO + b"NN."), "more or less than one value"),
    "a mark that stays": (archive(PROTO + b"(N."), "more or less than one value"),
    "nothing": (archive(PROTO + b"."), "more or less than one value"),
    "no end": (archive(PROTO + b"N"), "not a whole"),
    "an empty pickle": (archive(b""), "not a whole"),
    "a pop of nothing": (archive(PROTO + b"0."), "not a whole"),
    "a name of half a line": (archive(PROTO + b"ctorch"), "not a whole"),
    "a name that is long": (archive(PROTO + b"c" + b"x" * 10**6 + b"\ny\n."), r"holds x{200}\.\.\.\.y, which is not loaded"),
    "a name that is no text": (archive(PROTO + b"K\x01K\x02\x93."), "no text"),
    "text that is not UTF-8": (archive(PROTO + b"X\x01\x00\x00\x00\xff."), "not a whole"),
    # the archive
    "cut off": (PLAIN[:-30], "not a whole"),
    "cut in the middle": (PLAIN[:len(PLAIN) // 2], "not a whole"),
    "a wrong checksum": (with_bytes(PLAIN, FLOATS["0"].tobytes(), FLOATS["0"].tobytes()[::-1]), "CRC"),
    "an entry that is larger": (moved(PLAIN, 24, 4, 2**31), "2147483648 bytes"),
    "an entry of 4 GiB": (moved(moved(PLAIN, 24, 4, 2**32 - 2), 20, 4, 2**32 - 2), "beyond the"),
    "an entry behind the end": (moved(PLAIN, 42, 4, 2**31), "beyond the|not a whole"),
    "an entry over another": (moved(PLAIN, 42, 4, 0), "overlaps|not a whole"),
    "an encrypted entry": (moved(PLAIN, 8, 2, 1), "encrypted"),
    "an unknown method": (moved(PLAIN, 10, 2, 99), "compressed|not a whole"),
    "no pickle": (archive(pickled(1)).replace(b"data.pkl", b"data.pkx"), "no data.pkl"),
    "the old format": (pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2), "is a pickle"),
    # safetensors, and structures of tg.save
    "a header of 2**63": (b"\xff" * 7 + b"\x7f{}", "neither"), "a header without its end": (struct.pack("<Q", 99) + b"{}", "neither"),
    "a header that is deep": (safe(b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "neither"),
    "tensors that overlap": (safe({k: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for k in "ab"}, bytes(8)), "neither"),
    "a shape of NaN": (safe(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)), "neither"),
    "a shape of -1": (safe({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, bytes(8)), "neither"),
    "a shape of 2**70": (safe({"a": {"dtype": "F32", "shape": [2**70, 0], "data_offsets": [0, 0]}}), "neither"),
    "a shape of 2**63, empty": (safe({"a": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]}}), "neither"),
    "offsets that go back": (safe({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, bytes(8)), "neither"),
    "an unknown dtype": (safe({"a": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "neither"),
    "a dtype that NumPy lacks": (safe({"a": {"dtype": "F8_E5M2", "shape": [4], "data_offsets": [0, 4]}}, bytes(4)), "neither"),
    "a structure that is deep": (structured("[" * 10**5 + "]" * 10**5), "damaged"),
    "a structure of dicts": (structured('{"tuple":[' * 10**4 + "]}" * 10**4), "damaged"),
    "an empty kind": (structured({}), "damaged"), "an unknown kind": (structured({"os.system": ["true"]}), "damaged"),
    "a tensor that is not there": (structured({"tensor": "7", "grad": False}), "damaged"),
    "a tensor without grad": (structured({"tensor": "0"}, **{"0": 1}), "damaged"),
    "a tensor's number that is a list": (structured({"tensor": [1], "grad": False}), "damaged"),
    "complex numbers of one part": (structured({"tensor": "0", "grad": False, "complex": True}, **{"0": 1})[:-4] + b"", "neither|damaged"),
    "a complex number of words": (structured({"complex": ["a", "b"]}), "damaged"),
                                         "bytes that are none": (structured({"bytes": "?"}), "damaged"),
    "a float of a list": (structured({"float": [1]}), "damaged"), "keys that are lists": (structured({"dict": [[[1], 2]]}), "damaged"),
    "a number of many digits": (structured("9" * 10**5), "damaged"), "a dict of numbers": (structured({"dict": [1, 2]}), "damaged"),
    "a set of lists": (structured({"set": [[1]]}), "damaged"),
}


def refused(data: bytes, match: str = "") -> None:
    """Refused by the one error, in memory of the file's size."""
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError, match=f"(?s)^load: .*({match})"):
            tg.load(io.BytesIO(data))
        assert tracemalloc.get_traced_memory()[1] < (64 << 20) + 60 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused(what: str) -> None:
    refused(*HOSTILE[what])


def test_messages_are_short() -> None:
    for data, _ in HOSTILE.values():
        with pytest.raises(ArgumentError) as error:
            tg.load(io.BytesIO(data))
        text = str(error.value)
        assert len(text) < 900
        assert text.isprintable()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_of_one_name() -> None:
    file = io.BytesIO(PLAIN)
    with zipfile.ZipFile(file, "a") as into:
        into.writestr("a/data/0", FLOATS["0"].tobytes())
    refused(file.getvalue(), "two entries of one name")


def test_a_container_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it occurs: else a list of one list, a thousand times each, would take a million steps."""
    looked = []
    real = pickles._children
    monkeypatch.setattr(pickles, "_children", lambda value: looked.append(value) or real(value))
    inner = list(range(1000))
    pickles.check_size([[inner] * 1000, {"a": inner, "b": (inner,)}], 200_000)
    assert len(looked) == 2 * 5                              # on the way down, and up


# ---------------------------------------------------------------------------------------------------------------- files that are right


def test_what_shares_is_loaded() -> None:
    """Within the bounds: expanded tensors, windows, one storage as two dtypes, a storage of which a part is used."""
    value = {"expanded": tensor("FloatStorage", "0", 13, 3, (1000, 1000), (0, 0)),
             "windows": tensor("FloatStorage", "0", 13, 0, (5, 9), (1, 1)),
             "bytes": tensor("ByteStorage", "0", 52, 4, (4,), (1,)), "part": tensor("FloatStorage", "0", 2, 1, (), ()),
             "nothing": tensor("FloatStorage", "0", 13, 0, (0, 10**9), (1, 1)), "shared": [1, 2]}
    found = tg.load(checkpoint(value, FLOATS))
    assert found["expanded"].shape == (1000, 1000)
    assert found["expanded"].sum().item() == 3e6
    np.testing.assert_array_equal(found["windows"].numpy(), np.lib.stride_tricks.sliding_window_view(FLOATS["0"], 9))
    np.testing.assert_array_equal(found["bytes"].numpy(), FLOATS["0"][1:2].view(np.uint8))
    assert found["part"].item() == 1
    assert found["nothing"].shape == (0, 10**9)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_of_every_protocol(protocol: int) -> None:
    shared = [1, 2, (3, None)]
    ordered = OrderedDict([("b", 1), ("a", {"x": shared})])
    vars(ordered)["_metadata"] = OrderedDict([("", {"version": 1})])
    value = {"words": ["", "é", "\udcff", "x" * 300, "y" * 70_000],
             "numbers": [0, -1, 255, 256, 65536, -(2**31), 2**40, -(2**63), 2**70, 0.1, -0.0, 1e300],
             "flags": (True, False, None), "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "shared": [shared, shared],
             "ordered": ordered,
             (1, "a"): 1 + 2j, 3: {1, 2}, "deep": [[[[[[[1]]]]]]], None: 1.5}
    if protocol > 2:
        value |= {"bytes": [b"", b"abc", b"x" * 300], "set": {"a", "b"}}
    found = tg.load(io.BytesIO(archive(pickle.dumps(value, protocol))))
    assert found == value
    assert found["shared"][0] is found["shared"][1]
    assert vars(found["ordered"])["_metadata"] == {"": {"version": 1}}
    assert list(found["ordered"]) == ["b", "a"]


@pytest.mark.parametrize("n", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_entries(n: int) -> None:
    value = {f"layer.{k}.weight": [k, 0.5, (k,)] for k in range(n)}
    assert tg.load(io.BytesIO(archive(pickle.dumps(value, 2)))) == value


@pytest.mark.slow
def test_what_torch_saves_is_loaded_bit_by_bit(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch, which writes the files, is not installed")
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    opt = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 16)).sum().backward()
    opt.step()
    base = torch.randn(50, 40)
    kinds = [torch.arange(5).to(getattr(torch, d)) for d in ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
                                                             "bool", "complex64",
                                                             "complex128", "uint16", "uint32", "uint64")]
    value = {"model": model.state_dict(), "opt": opt.state_dict(), "views": [base, base.t(), base[1:3], base[::2, 1], base[:, 3:9].t()],
             "kinds": kinds,
             "expanded": torch.ones(3, 1).expand(3, 500), "empty": torch.empty(0, 7), "number": torch.tensor(2.5),
             "parameter": torch.nn.Parameter(base),
             "size": base.shape, "many": {f"t{k}": torch.full((2,), float(k)) for k in range(5000)}, "tied": [base, base],
             "half": torch.float16}
    for protocol in (2, 3, 4, 5):
        torch.save(value, tmp_path / "c.pt", pickle_protocol=protocol)
        found = tg.load(tmp_path / "c.pt")

        def same(a: Any, b: Any) -> None:
            if isinstance(b, torch.Tensor):
                assert isinstance(a, tg.Tensor)
                b = b.detach().contiguous()
                assert a.numpy().tobytes() == (b.view(torch.int16) if b.dtype == torch.bfloat16 else b).numpy().tobytes()
                assert a.shape == tuple(b.shape)
                assert (a.requires_grad, isinstance(a, nn.Parameter)) == (b.requires_grad, isinstance(b, torch.nn.Parameter))
            elif isinstance(b, dict):
                assert list(a) == list(b)
                for k in b:
                    same(a[k], b[k])
            elif isinstance(b, (list, tuple)):
                assert len(a) == len(b)
                for x, y in zip(a, b, strict=True):
                    same(x, y)
            elif isinstance(b, torch.dtype):
                assert str(a) == str(b).removeprefix("torch.")
            else:
                assert a == b

        with tg.no_grad():
            same({k: v for k, v in found.items() if k != "parameter"}, {k: v for k, v in value.items() if k != "parameter"})


# ---------------------------------------------------------------------------------------------------------------- mutations


def sources() -> list[bytes]:
    """Files that are right, of each kind."""
    file = io.BytesIO()
    tg.save({"a": tg.ones(3), "b": [1, (2.5, b"x"), {"c"}, OrderedDict(z=1)], "p": nn.Parameter(tg.ones(2, 2)), "c": 1 + 2j}, file)
    plain = pickle.dumps({"a": [1, 2.5, "x", (None, True)], "b": OrderedDict(q={1: 2}), "c": 10**12}, 4)
    return [PLAIN, archive(plain), file.getvalue(),
            archive(pickled({"t": [tensor("FloatStorage", "0", 13, 1, (3, 4), (4, 1)), Global("torch", "Size", ((2, 3),))], "n": 3}))]


def mutated(data: bytes, draw: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(out))
        kind = draw.randrange(5)
        if kind == 0:
            out[at] = draw.randrange(256)
        elif kind == 1:
            out[at:at + 8] = draw.choice((b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", struct.pack("<q", -1), struct.pack("<Q", 1 << 62)))
        elif kind == 2:
            del out[at:at + draw.randrange(1, 20)]
        elif kind == 3:
            out[at:at] = out[draw.randrange(len(out)):][:draw.randrange(1, 40)]
        else:
            out[at:at + 1] = bytes([draw.choice(b"().0123QRXbcehjqrsu\x80\x81\x85\x86\x8a\x8b\x94")])
    return bytes(out)


def mutate(seeds: range) -> int:
    """How many of the mutated files load; each of the others is refused by the one error."""
    loaded = 0
    files = sources()
    for seed in seeds:
        draw = random.Random(seed)
        base = files[seed % len(files)]
        if seed % 2 and base.startswith(b"PK"):              # of the pickle alone, with right checksums
            with zipfile.ZipFile(io.BytesIO(base)) as old:
                data = archive(mutated(old.read(next(n for n in old.namelist() if n.endswith("data.pkl"))), draw))
        else:
            data = mutated(base, draw)
        try:
            tg.load(io.BytesIO(data))
            loaded += 1
        except ArgumentError as error:
            message = str(error)
            if not message.startswith("load: ") or len(message) > 1000:
                raise
    return loaded


def test_mutated_files() -> None:
    assert 0 < mutate(range(2000)) < 1600


@pytest.mark.long
def test_many_mutated_files() -> None:
    assert mutate(range(2000, 42_000))


def of_torch(torch: Any) -> list[bytes]:
    """Files that torch.save itself writes: archives, and its format before version 1.6, of states of a model and its optimizer."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    base = torch.arange(12.0)
    value = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "shared": [base, base[2:5], base.view(3, 4).t()],
             "bits": base.to(torch.bfloat16), "unsigned": torch.arange(3).to(torch.uint16), "p": torch.nn.Parameter(base),
             "size": base.shape}
    found = []
    for protocol, archives in ((2, True), (4, True), (2, False)):
        file = io.BytesIO()
        torch.save(value, file, pickle_protocol=protocol, _use_new_zipfile_serialization=archives)
        found.append(file.getvalue())
    return found


def rewritten(data: bytes, draw: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        names = old.namelist()
        chosen = draw.choice([*names, *[name for name in names if name.endswith("data.pkl")] * len(names) * 3])
        for name in names:
            held = old.read(name)
            if name == chosen:
                held = mutated(held, draw) if len(held) > 100 else draw.randbytes(draw.randrange(9))
            new.writestr(name, held)
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_mutated_files_of_torch(count: int) -> None:
    """Each loads, or is refused by the one error; of the old format all are, as whole ones are."""
    files = of_torch(pytest.importorskip("torch", reason="torch, which writes the files, is not installed"))
    loaded = [0, 0, 0]
    for seed in range(count):
        draw, which = random.Random(seed), seed % 3
        data = files[which]
        if which < 2 and draw.random() < 0.7:                   # of an entry, mostly the pickle, with right checksums
            data = rewritten(data, draw)
        else:
            data = mutated(data, draw)
        try:
            tg.load(io.BytesIO(data))
            loaded[which] += 1
        except ArgumentError as error:
            message = str(error)
            if not message.startswith("load: ") or len(message) > 1000 or not message.isprintable():
                raise
    assert loaded[2] == 0
    for data in files[:2]:
        assert set(tg.load(io.BytesIO(data))) == {"model", "optimizer", "shared", "bits", "unsigned", "p", "size"}
