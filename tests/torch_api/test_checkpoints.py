"""torch.save and torch.load under the hook: files go both ways, bit by bit; whole objects are loaded where the program allows it."""

from __future__ import annotations

import pytest

from tests.nn.test_hostile_files import PROTO, archive
from tests.torch_api.both import reports

PROGRAM = """
import sys, pickle
from torch import nn
FOLDER = {folder!r}
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
optimizer = torch.optim.Adam(model.parameters())
def write(name):
    torch.manual_seed(5)
    for p in model.parameters():
        nn.init.uniform_(p)
    model(torch.randn(4, 2)).square().sum().backward()
    optimizer.step()
    weight = model[0].weight.detach()
    torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(), n=3, moved=torch.arange(6).bfloat16().reshape(2, 3).t(),
                    complex=torch.randn(2, dtype=torch.complex64), rng=torch.get_rng_state(), parameter=nn.Parameter(torch.ones(2)),
                    empty=torch.zeros(0, 3), number=torch.tensor(True), words=["a", (1, 2.5, None)], again=[weight, weight]), FOLDER + name)
def read(name, **options):
    found = torch.load(FOLDER + name, **options)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    assert isinstance(found["parameter"], nn.Parameter) and torch.equal(found["again"][0], model[0].weight)
    return found
"""


def test_files_go_both_ways(tmp_path):
    pytest.importorskip("torch")
    text = PROGRAM.format(folder=f"{tmp_path}/")
    written = {name: reports(f'{text}\nwrite("{name}")\nsay("own", lambda: read("{name}"))', name == "ours")["own"]
               for name in ("ours", "theirs")}
    for name, other in (("ours", "theirs"), ("theirs", "ours")):
        for options in ("", ", weights_only=False"):
            found = reports(f'{text}\nsay("other", lambda: read("{other}"{options}))', name == "ours")["other"]
            assert found == written[other]


def test_map_location_is_a_function_or_a_table_as_well(tmp_path):
    options = ["lambda storage, place: storage", "lambda storage, place: storage.cpu()", "lambda storage, place: storage.to('meta')",
               "{'cuda:0': 'cpu'}", "{'cpu': 'meta'}", "torch.device('meta')"]
    program = PROGRAM.format(folder=f"{tmp_path}/") + 'torch.save([torch.ones(2)], FOLDER + "f")\n'
    program += "\n".join(f'say({o!r}, lambda: torch.load(FOLDER + "f", map_location={o})[0].is_meta)' for o in options)
    found = reports(program, True)
    assert [found[o] for o in options] == ["meta" in o for o in options]


def test_whole_objects(tmp_path):
    """A model comes back as it was; classes of the program where it allows them, and as an error that tells how where not."""
    found = reports(PROGRAM.format(folder=f"{tmp_path}/") + """
class Own:
    def __init__(self):
        self.x = torch.ones(2)
sys.modules["__main__"].Own = Own
torch.save(model, FOLDER + "model")
torch.save(Own(), FOLDER + "own")
same = torch.load(FOLDER + "model", weights_only=False)
say("model", lambda: (str(same) == str(model), torch.equal(same[0].weight, model[0].weight), same[0].weight is not model[0].weight))
say("refused", lambda: torch.load(FOLDER + "own"))
def allowed():
    with torch.serialization.safe_globals([Own]):
        return torch.load(FOLDER + "own").x
say("allowed", allowed)
say("refused again", lambda: torch.load(FOLDER + "own"))
torch.serialization.add_safe_globals([Own])
say("added", lambda: torch.load(FOLDER + "own").x)
""", True)
    assert found["model"] == [True, True, True]
    for name in ("refused", "refused again"):
        assert found[name].startswith("UnpicklingError: Weights only load failed")
        assert "Own" in found[name]
    assert found["allowed"] == found["added"] == [1.0, 1.0]


def test_hostile_files_are_refused_by_what_bounds_them(tmp_path):
    """Where no class is allowed, no file gets to Python's unpickler: these take it minutes, or the machine's memory."""
    files = {"memo": PROTO + b"]r\xff\xff\xff\x7f.", "tuples": PROTO + b"}(" + b")" + b"2\x86" * 60 + b"K\x01u.",
             "a class": PROTO + b"c__main__\nOwn\n)R."}
    for name, data in files.items():
        (tmp_path / name).write_bytes(archive(data))
    program = "import pickle\n" + "\n".join(f"say({name!r}, lambda: torch.load({str(tmp_path / name)!r}))" for name in files)
    for text in reports(program, True).values():
        assert text.startswith("UnpicklingError: Weights only load failed. load: ")
