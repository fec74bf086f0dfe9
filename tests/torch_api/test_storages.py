"""Storages beside torch's: what memory is shared, what is in it, and files of it."""

from __future__ import annotations

import pytest

from tests.torch_api.both import beside_torch, reports


def test_what_is_in_a_storage():
    beside_torch("""
import copy
x = torch.arange(6.0).reshape(2, 3)
say("sizes", lambda: [(s.nbytes(), len(s), s.element_size(), s._nbytes() if hasattr(s, "_nbytes") else s.nbytes())
                      for s in (x.storage(), x.untyped_storage(), x[1:].storage(), torch.ones(1).expand(5).untyped_storage())])
say("kinds", lambda: (isinstance(x.storage(), torch.FloatStorage), isinstance(x.storage(), torch.LongStorage), x.storage().dtype,
                      isinstance(x, torch.FloatStorage), torch.is_storage(x.untyped_storage()), x.storage().type(),
                      isinstance(x.untyped_storage(), torch.UntypedStorage)))
say("texts", lambda: (str(x.storage()), str(torch.zeros(3, dtype=torch.uint8).untyped_storage())))
say("same", lambda: (x._typed_storage()._data_ptr() == x.const_data_ptr(),
                     x.storage()._cdata == x[1].storage()._cdata == x.clone().storage()._cdata,
                     x[0]._is_view(), x._is_view(), x.storage()._untyped_storage.data_ptr() == x.data_ptr()))
say("made", lambda: (torch.TypedStorage([1.5, 2], dtype=torch.float64).tolist(), torch.UntypedStorage([1, 2, 3]).tolist(),
                     torch.FloatStorage([1, 2]).tolist(), torch.TypedStorage(3, dtype=torch.int32).size(), torch.UntypedStorage(5).nbytes(),
                     torch.TypedStorage(wrap_storage=x.untyped_storage(), dtype=torch.int32).tolist(), len(torch.TypedStorage())))
say("others", lambda: (x.storage().double().tolist(), x.storage().int().dtype, x.storage().clone().tolist(),
                       copy.deepcopy(x.storage()).tolist(),
                       list(x.untyped_storage())[:8], x.untyped_storage().cpu().nbytes(), x.storage().to(device="cpu").size()))
def written():
    y = torch.arange(4.0)
    part = y[2:]
    y.storage()[3] = 9.0
    a = part.clone()
    y.untyped_storage().copy_(torch.ones(4).untyped_storage())
    b = part.clone()
    y.storage().fill_(5)
    c = part.clone()
    z = torch.tensor([1, 256], dtype=torch.int32)
    z.untyped_storage().byteswap(torch.int32)
    return a, b, c, z
say("written", written)
def own():
    s = torch.TypedStorage([1, 2], dtype=torch.int64)
    first = s.clone()
    s[0] = 7
    s.resize_(3)
    s[2] = 0
    return s.tolist(), first.tolist(), s.size()
say("own", own)
say("shared", lambda: (x.is_shared(), x.share_memory_() is x, x.is_shared(), x[1].is_shared(), x.untyped_storage().is_shared(),
                       x.clone().is_shared(), torch.UntypedStorage._new_shared(16).is_shared()))
""")


def test_tensors_are_set_to_memory():
    beside_torch("""
x = torch.arange(6.0).reshape(2, 3)
def through(make):
    "What a tensor shows, before and after the other one is written, and the other one once it is written itself."
    x = torch.arange(6.0).reshape(2, 3)
    t = make(x)
    first = t.clone()
    x.mul_(2)
    second = t.clone()
    t.add_(1)
    return first, second, x, t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
say("tensor", lambda: through(lambda x: torch.empty(0).set_(x)))
say("part", lambda: through(lambda x: torch.empty(0).set_(x[1])))
say("storage", lambda: through(lambda x: torch.empty(0).set_(x.untyped_storage())))
say("typed", lambda: through(lambda x: torch.ones(7).set_(x.storage(), 1, (2, 2), (3, 1))))
say("named", lambda: through(lambda x: torch.empty(0).set_(x.storage(), storage_offset=2, size=(2,), stride=(1,))))
say("rows", lambda: through(lambda x: torch.empty(0).set_(x.storage(), 2, (2, 2))))
say("none", lambda: torch.ones(3).set_().shape)
say("itself", lambda: (lambda t: t.set_(t.storage(), 1, (2,), (2,)))(torch.arange(6.0)))
say("returns", lambda: (lambda t: t.set_(x) is t)(torch.empty(0)))
def of_own():
    s = torch.TypedStorage([1.0, 2, 3], dtype=torch.float32)
    t = torch.empty(0).set_(s)
    t[1] = 8
    return s.tolist(), t
say("own", of_own)
def leaf():
    p = torch.nn.Parameter(torch.ones(2))
    with torch.no_grad():
        p.set_(torch.tensor([3.0, 4.0]))
    (p * p).sum().backward()
    return p, p.grad, p.is_leaf
say("leaf", leaf)
""")
    refused = reports("""
say("dtype", lambda: torch.empty(0).set_(torch.ones(2, dtype=torch.int32)))
say("resized", lambda: torch.ones(2).untyped_storage().resize_(0))
say("wrong size", lambda: torch.ones(2).storage().copy_(torch.ones(3).storage()))
""", True)
    assert refused["dtype"].startswith("DTypeError: set_: the tensor is torch.float32")
    assert refused["resized"].startswith("UnsupportedError: resize_: ")
    assert refused["wrong size"].startswith("ArgumentError: copy_: ")


def test_files_are_mapped(tmp_path):
    program = f"""
import numpy as np
name = {str(tmp_path / 'numbers')!r}
np.arange(100000, dtype=np.float32).tofile(name)
say("read", lambda: (torch.from_file(name, size=4), torch.from_file(name, False, 2, dtype=torch.int64).shape,
                     torch.from_file(name, size=0).shape))
def own():
    t = torch.from_file(name, shared=False, size=100000)
    t[1] = 5
    return t[:3], t.double().sum(), np.fromfile(name, np.float32)[:3].tolist()
say("own", own)
say("storages", lambda: (torch.FloatStorage.from_file(name, False, 3).tolist(), len(torch.UntypedStorage.from_file(name, False, 8))))
say("requires grad", lambda: torch.from_file(name, size=2, requires_grad=True).requires_grad)
"""
    beside_torch(program)
    refused = reports(program + """
say("long", lambda: torch.from_file(name, size=100001))
say("shared", lambda: torch.from_file(name, shared=True, size=1))
""", True)
    assert refused["long"].startswith("ArgumentError: from_file: 100001 elements of float32")
    assert refused["shared"].startswith("UnsupportedError: from_file: ")


def test_tensors_of_a_programs_classes_keep_them_in_files(tmp_path):
    text = """
import io
class Own(torch.Tensor):
    pass
class OwnParameter(torch.nn.Parameter):
    pass
def kept(x, **options):
    x.tag = [3]
    data = io.BytesIO()
    torch.save({"x": x}, data)
    data.seek(0)
    found = torch.load(data, **options)["x"]
    return type(found).__name__, found.tag, found, found.requires_grad
say("tensor", lambda: kept(torch.ones(2).as_subclass(Own), weights_only=False))
say("parameter", lambda: kept(OwnParameter(torch.ones(2)), weights_only=False))
say("plain", lambda: kept(torch.ones(2), weights_only=False))
def allowed():
    with torch.serialization.safe_globals([Own]):
        return kept(torch.ones(2).as_subclass(Own))
say("allowed", allowed)
say("not allowed", lambda: kept(torch.ones(2).as_subclass(Own))[:1])
"""
    ours = reports(text, True)
    assert ours.pop("not allowed").startswith("UnpicklingError: Weights only load failed.")
    assert ours == {"tensor": ["Own", [3], [1.0, 1.0], False], "parameter": ["Parameter", [3], [1.0, 1.0], True],
                    "plain": ["Tensor", [3], [1.0, 1.0], False], "allowed": ["Own", [3], [1.0, 1.0], False]}
    pytest.importorskip("torch")
    theirs = reports(text, False)
    assert {name: theirs[name] for name in ours} == ours
    for writes in (True, False):                        # files go both ways
        name = str(tmp_path / f"file{writes}")
        head = "class Own(torch.Tensor):\n    pass\n"
        reports(head + f"x = torch.arange(3.0).as_subclass(Own)\nx.tag = 1\ntorch.save(x, {name!r})", writes)
        read = f"torch.load({name!r}, weights_only=False)"
        said = reports(head + f'say("x", lambda: (lambda x: (type(x).__name__, x.tag, x))({read}))', not writes)
        assert said["x"] == ["Own", 1, [0.0, 1.0, 2.0]]
