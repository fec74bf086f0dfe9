"""Every public name of the installed torch is here, or in the list of those that are not (missing.py)."""

from __future__ import annotations

import pytest

from tests.torch_api import names_table
from tests.torch_api.missing import MISSING, REASONS
from tracegrad.torch_api.requirements import VERSION


@pytest.fixture(scope="module")
def torchs():
    torch = pytest.importorskip("torch")
    if torch.__version__.partition("+")[0] != VERSION:
        pytest.skip(f"the table is of torch {VERSION}, here is {torch.__version__}")
    return {module: names_table.public(module) for module in MISSING}


def test_names_are_here_or_listed(torchs):
    found, wrong = names_table.here(torchs), []
    for module, names in torchs.items():
        listed = [n for by_reason in MISSING[module].values() for n in by_reason.split()]
        wrong += [f"{module}.{n}: neither here nor listed" for n in set(names) - set(found[module]) - set(listed)]
        wrong += [f"{module}.{n}: listed, but here" for n in set(listed) & set(found[module])]
        wrong += [f"{module}.{n}: listed, but not torch's" for n in set(listed) - set(names)]
        wrong += [f"{module}.{n}: listed twice" for n in set(listed) if listed.count(n) > 1]
    assert not wrong
    assert {reason for by_reason in MISSING.values() for reason in by_reason} == set(REASONS)


def test_the_page_shows_the_table(torchs):
    assert names_table.PAGE.read_text() == names_table.page(), "run `make torch-names`"
